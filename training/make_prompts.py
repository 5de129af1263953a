#!/usr/bin/env python3
"""Draws prompts for fitting a drafter to the tiny targets: beginnings of code and prose, repetitions, chats, and code
with a request to change it. Writes one JSON object a line: `kind`, `prompt` (the whole text, template included)."""

import argparse
import json
import random
import re
from pathlib import Path

COUNTS = {"code": 3000, "prose": 2400, "repeat": 700, "chat": 2600, "code_chat": 1100, "edit": 1400}
CODE_CHARACTERS = (60, 120, 250, 450, 800, 2000)  # longest beginning; a length is drawn for each prompt
SENTENCE = re.compile(r"[A-Z][A-Za-z ,;'-]{40,300}\.(?=\s|$)")


def code_prompts(rng, documents):
    """A file from a definition or from its top on, cut at a line's end."""
    while True:
        text = rng.choice(documents)
        starts = [0] + [match.start() for match in re.finditer(r"^(?:def|class|import|from) ", text, re.MULTILINE)]
        text = text[rng.choice(starts) :]
        cut = text.find("\n", rng.randint(20, rng.choice(CODE_CHARACTERS))) + 1
        if cut > 20:
            yield text[:cut]


def sentences(rng, documents):
    """Sentences of docstrings and comments, as they run on."""
    while True:
        prose = [" ".join(found.split()) for found in SENTENCE.findall(rng.choice(documents))]
        for at in rng.sample(range(len(prose)), min(2, len(prose))):
            yield prose[at : at + 3]


def prose_prompts(rng, documents):
    """One to three sentences, cut between two words."""
    for found in sentences(rng, documents):
        words = " ".join(found).split(" ")
        yield " ".join(words[: rng.randint(8, 40)])


def repeat_prompts(rng, documents):
    code = code_prompts(rng, documents)
    for found in sentences(rng, documents):
        unit = found[0] + " " if rng.random() < 0.6 else next(code)[-60:]
        yield unit * rng.randint(3, 6)


def chat_prompts(rng, _):
    from chats import chat
    from own_texts import prompt_of

    while True:
        yield prompt_of(chat(rng))


def functions(rng, documents):
    from chats import documented_functions

    while True:
        found = list(documented_functions(rng.choice(documents)))
        yield from rng.sample(found, min(2, len(found)))


def code_chat_prompts(rng, documents):
    from chats import code_chat
    from own_texts import prompt_of

    for function in functions(rng, documents):
        yield prompt_of(code_chat(rng, function))


def edit_prompts(rng, documents):
    """A function, quoted, and a small change to it."""
    from chat_format import prompt

    for function in functions(rng, documents):
        change = rng.choice(
            [
                f"Rename `{function.name}` to `{function.name}_all`",
                f"Add a print of the name to `{function.name}`",
                "Remove the docstring",
                "Add type hints",
            ]
        )
        question = f"{change} in this code and show all of it:\n\n```python\n{function.source}\n```"
        yield prompt(question, thinking=False)


DRAWS = {
    "code": code_prompts,
    "prose": prose_prompts,
    "repeat": repeat_prompts,
    "chat": chat_prompts,
    "code_chat": code_chat_prompts,
    "edit": edit_prompts,
}


def held_back(files):
    """Texts of prompts that are kept for reporting."""
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            item = json.loads(line)
            yield item["prompt"] if "prompt" in item else item["messages"][0]["content"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--code", type=Path, default=Path("code.xz"), help="from collect_code.py (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("prompts.jsonl"), help="file to write (%(default)s)")
    held_help = "suites whose prompts must not be among these"
    parser.add_argument("--held-back", type=Path, nargs="*", default=[], metavar="FILE", help=held_help)
    parser.add_argument("--seed", type=int, default=7, help="(%(default)s)")
    parser.add_argument("--share", type=float, default=1.0, help="of the usual number of prompts (%(default)s)")
    arguments = parser.parse_args()
    # Imported late so that --help is quick.
    from corpus import read_documents

    documents = [text for text in read_documents(arguments.code) if len(text) > 400]
    kept = set(held_back(arguments.held_back))
    with arguments.out.open("w", encoding="utf-8") as out:
        for kind, count in COUNTS.items():
            drawn = set()
            for text in DRAWS[kind](random.Random(f"{arguments.seed} {kind}"), documents):
                if len(drawn) >= count * arguments.share:
                    break
                question = text.rsplit("<|im_start|>user\n", 1)[-1].split("<|im_end|>")[0]
                if text not in drawn and text not in kept and question not in kept:
                    drawn.add(text)
                    out.write(json.dumps({"kind": kind, "prompt": text}, ensure_ascii=False) + "\n")
            print(f"{kind}: {len(drawn)} prompts")


if __name__ == "__main__":
    main()

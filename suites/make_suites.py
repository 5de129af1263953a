#!/usr/bin/env python3
"""Writes the prompts of `forerun bench`, one file a suite: chats drawn by the generators of training/ with a seed of
their own, and beginnings of our own texts. Run it again only to change the suites: figures compare over equal prompts."""

import json
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "training"))

import chats  # noqa: E402
import tool_chats  # noqa: E402
from algorithms import ALGORITHMS  # noqa: E402
from chat_format import ASSISTANT, END, TURN, prompt  # noqa: E402
from prose import PARAGRAPHS, SENTENCES  # noqa: E402

SEED = 20_260_901
COUNT = 24
EDITS = 20
LONG_FUNCTION = 6  # lines of a function that is asked for, less one
SYSTEM_EVERY = 6  # every so many plans come with a system message


def chat(draw):
    def prompts(rng):
        seen = set()
        while len(seen) < COUNT:
            question = draw(rng).question
            if question not in seen:
                thinking = len(seen) % 2 == 0
                seen.add(question)
                yield {"prompt": question, "thinking": thinking}

    return prompts


def plan(rng):
    for i, item in enumerate(chat(chats.robot_plan)(rng)):
        yield item | ({"system": "You are a careful robot planner."} if i % SYSTEM_EVERY == 0 else {})


def tools(rng):
    """One to three tools on offer; every third prompt already has the result of a call."""
    names = list(tool_chats.TOOLS)
    for i in range(COUNT):
        name = names[i % len(names)]
        others = rng.sample([tool for tool in names if tool != name], rng.randint(0, 2))
        offered = [tool_chats.TOOLS[tool][0] for tool in rng.sample([name, *others], len(others) + 1)]
        call = tool_chats.TOOLS[name][1](rng)
        messages = [{"role": "user", "content": call.question}]
        if i % 3 == 2:
            function = {"name": name, "arguments": call.arguments}
            messages.append(
                {
                    "role": "assistant",
                    "content": "",
                    "reasoning_content": call.thinking,
                    "tool_calls": [{"type": "function", "function": function}],
                }
            )
            messages.append({"role": "tool", "content": call.result})
        yield {"messages": messages, "tools": offered}


def sources():
    """Our own Python files."""
    files = sorted([*ROOT.glob("training/*.py"), *ROOT.glob("scripts/*.py")])
    return [file.read_text(encoding="utf-8") for file in files]


def complete(rng):
    """A file from a definition on, cut at a line's end."""
    starts = []
    for text in sources():
        lines = text.splitlines(keepends=True)
        tops = [i for i, line in enumerate(lines) if line.startswith(("def ", "class ", '"""'))]
        starts += ["".join(lines[i:]) for i in tops if len("".join(lines[i:])) > 800]
    for text in rng.sample(starts, COUNT):
        yield {"prompt": text[: text.index("\n", rng.randint(200, 700)) + 1], "raw": True}


def prose(rng):
    for paragraph in PARAGRAPHS:
        yield {"prompt": paragraph, "raw": True}


def repeat(rng):
    for i, sentence in enumerate(SENTENCES):
        yield {"prompt": (sentence + " ") * (3 + i % 4), "raw": True}


def long(rng):
    """2,000 to 6,000 characters out of several files."""
    texts = sources()
    for i in range(COUNT):
        rng.shuffle(texts)
        joined = "\n".join(texts)
        length = 2_000 + i * 4_000 // (COUNT - 1)
        yield {"prompt": joined[: joined.index("\n", length) + 1], "raw": True}


def edits(rng):
    """A file of 50 to 200 lines quoted, by the user or in an earlier answer, and one of its functions asked for: what
    an editor asks that rewrites a part of a file. The tiny target cannot follow an instruction to change code, so the
    functions are those that it knows by heart, and what it writes is what is quoted."""
    for i in range(EDITS):
        wanted = 50 + i * 100 // (EDITS - 1)
        names = rng.sample(list(ALGORITHMS), len(ALGORITHMS))
        sources = [ALGORITHMS[name][1] for name in names]
        kept = next(n for n in range(1, len(names) + 1) if "\n\n\n".join(sources[:n]).count("\n") >= wanted)
        quoted = "```python\n" + "\n\n\n".join(sources[:kept]) + "\n```"
        long_ones = [name for name, source in zip(names[:kept], sources) if source.count("\n") >= LONG_FUNCTION]
        question = f"Show me {rng.choice(long_ones).replace('_', ' ')} in Python."
        if i % 2 == 0:
            text = prompt(f"{quoted}\n\n{question}", thinking=False)
        else:
            text = f"{TURN}user\nShow me this file.{END}\n{ASSISTANT}{quoted}{END}\n{prompt(question, thinking=False)}"
        yield {"prompt": text, "raw": True}


SUITES = {
    "code": chat(chats.algorithm),
    "math": chat(chats.arithmetic),
    "plan": plan,
    "tools": tools,
    "complete": complete,
    "prose": prose,
    "repeat": repeat,
    "long": long,
    "edits": edits,
}


def main():
    """All suites, or those that are named."""
    for name, draw in ((name, SUITES[name]) for name in sys.argv[1:] or SUITES):
        lines = [json.dumps(item, ensure_ascii=False) for item in draw(random.Random(f"{SEED} {name}"))]
        (HERE / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{name}: {len(lines)} prompts")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes the reference outputs of a tiny pair, computed in float32 on the CPU: OUT.json has prompts with their greedy
continuation and acceptance lengths, OUT.safetensors logits, taps, hidden states and draft logits of some of them."""

import argparse
import json
import random
from pathlib import Path
from typing import NamedTuple

from chat_format import prompt
from chats import algorithm, arithmetic, robot_plan

SUITES = {"code": algorithm, "math": arithmetic, "plan": robot_plan}
LONG_PROMPTS = (700, 2100)  # tokens
LONG_CONTINUATION = 48
LONG_ROWS = 4  # last rows of a long prompt that are kept
SHORT_PROMPTS = 2  # short prompts of which rows are kept
SHORT_ROWS = 6  # last rows of these
DRAFTED = ("p0", "plong2100")  # prompts whose drafted block is kept
DRAFTED_ROWS = 4  # first rows of it; all rows see each other, so these speak for the others too


class Prompt(NamedTuple):
    suite: str
    text: str
    thinking: bool | None  # None: no chat template


def chat_prompts(rng, count):
    suites = list(SUITES.items())
    for i in range(count):
        suite, draw = suites[i % len(suites)]
        yield Prompt(suite, draw(rng).question, thinking=bool(i // len(suites) % 2))


def completion_prompts(rng, files):
    """The beginnings of files, cut at a line's end."""
    for file in files:
        text = file.read_text(encoding="utf-8")
        if len(text) > 1500:
            cut = text.index("\n", rng.randint(200, 700)) + 1
            yield Prompt("complete", text[:cut], None)


def long_prompts(tokenizer, files):
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    for length in LONG_PROMPTS:
        yield Prompt("long", tokenizer.decode(ids[:length], skip_special_tokens=False), None)


def draw_prompts(tokenizer, sources, seed, count):
    rng = random.Random(seed)
    prompts = list(chat_prompts(rng, count))
    files = sorted(sources.rglob("*.py"), key=str)
    rng.shuffle(files)
    prompts += completion_prompts(rng, files[: count // 2])
    return prompts + list(long_prompts(tokenizer, files[10:40]))


def encode(tokenizer, item):
    text = item.text if item.thinking is None else prompt(item.text, item.thinking)
    return tokenizer.encode(text, add_special_tokens=False).ids


def continuation(reference, tokenizer, item, ids, count):
    """What the JSON says of a prompt."""
    greedy, lengths = reference.speculate(ids, count)
    # One pass over the whole text judges it again, without drafts.
    judged = reference.forward(ids + greedy).logits[len(ids) - 1 : -1]
    best = judged.topk(2).values
    margins = [round(float(first - second), 5) for first, second in best]
    return {
        "suite": item.suite,
        "prompt": item.text,
        "thinking": item.thinking,
        "prompt_ids": ids,
        "greedy_ids": greedy,
        "text": tokenizer.decode(greedy, skip_special_tokens=False),
        "accept_lengths": lengths,
        "mean_accept_length": round(sum(lengths) / max(1, len(lengths)), 3),
        "greedy_consistent": judged.argmax(-1).tolist() == greedy,
        "min_top2_margin": min(margins),
        "top2_margins": margins,
    }


def outputs(reference, ids, kept, drafted):
    """The last `kept` rows of a prompt: name -> tensor. A drafted block opens with the first greedy token."""
    rows = reference.forward(ids)
    first = int(rows.logits[-1].argmax())
    tensors = {name: tensor[-kept:] for name, tensor in rows._asdict().items()}
    if drafted:
        tensors["draft_logits"] = reference.draft_logits(rows.taps, first)[:DRAFTED_ROWS]
    if reference.mtp is not None:
        tensors["mtp_logits"] = reference.mtp_logits(rows.hidden, ids[1:] + [first])[-kept:]
    return tensors


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["dense", "moe"])
    parser.add_argument("--target", type=Path, required=True, help="Hugging Face folder or GGUF file")
    parser.add_argument("--draft", type=Path, required=True, help="Hugging Face folder or GGUF file")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json of the target")
    sources_help = "folder of Python files to complete (pip/_internal of pip 26.3 for the goldens here)"
    parser.add_argument("--sources", type=Path, required=True, help=sources_help)
    parser.add_argument("--seed", type=int, required=True, help="of the prompts")
    parser.add_argument("--prompts", type=int, required=True, help="chat prompts; up to half as many completions")
    parser.add_argument("--tokens", type=int, default=128, help="longest continuation (%(default)s)")
    parser.add_argument("--out", required=True, help="path to write to, without .json and .safetensors")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    # Imported late so that --help needs none of the packages.
    import torch
    from safetensors.torch import save_file
    from tokenizers import Tokenizer

    from reference import Reference

    tokenizer = Tokenizer.from_file(str(arguments.tokenizer))
    reference = Reference(arguments.kind, arguments.target, arguments.draft)
    prompts = draw_prompts(tokenizer, arguments.sources, arguments.seed, arguments.prompts)
    texts, tensors = [], {}
    for i, item in enumerate(prompts):
        ids, long = encode(tokenizer, item), item.suite == "long"
        texts.append(continuation(reference, tokenizer, item, ids, LONG_CONTINUATION if long else arguments.tokens))
        print(i, item.suite, len(ids), "AL", texts[-1]["mean_accept_length"], flush=True)
        if long or i < SHORT_PROMPTS:
            name, kept = (f"plong{len(ids)}", LONG_ROWS) if long else (f"p{i}", SHORT_ROWS)
            tensors[f"{name}.ids"] = torch.tensor(ids, dtype=torch.int32)
            for part, tensor in outputs(reference, ids, kept, name in DRAFTED).items():
                tensors[f"{name}.{part}"] = tensor.contiguous().clone()
    Path(arguments.out + ".json").write_text(json.dumps(texts, indent=1), encoding="utf-8")
    save_file(tensors, arguments.out + ".safetensors")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Computes the tensors of goldens again and compares them; judges their greedy continuations in one pass each. Exits
with 1 where a number is beyond the tolerance, or a token differs although the two best logits are not close."""

import argparse
import json
import sys
from pathlib import Path

CLOSE = 0.05  # between the two best logits: other arithmetic may rightly choose the other token


def check_tensors(reference, golden, tolerance):
    """Prints the largest difference of each tensor; gives the names of those beyond the tolerance."""
    from make_goldens import outputs

    beyond = []
    for name in sorted(name.removesuffix(".ids") for name in golden if name.endswith(".ids")):
        kept = len(golden[f"{name}.logits"])
        ids, drafted = golden[f"{name}.ids"].tolist(), f"{name}.draft_logits" in golden
        for part, tensor in outputs(reference, ids, kept, drafted).items():
            difference = float((tensor - golden[f"{name}.{part}"]).abs().max())
            print(f"{name}.{part}: {difference:.1e}", flush=True)
            # Written so that NaN is beyond.
            if not difference <= tolerance:
                beyond.append(f"{name}.{part}")
    return beyond


def check_text(reference, text):
    """Whether the target, given the text so far, chooses each of its greedy tokens."""
    ids, greedy = text["prompt_ids"], text["greedy_ids"]
    judged = reference.forward(ids + greedy).logits[len(ids) - 1 : -1].argmax(-1).tolist()
    return all(
        token == choice or margin < CLOSE
        for token, choice, margin in zip(greedy, judged, text["top2_margins"], strict=True)
    )


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["dense", "moe"])
    parser.add_argument("golden", help="path of the goldens, without .json and .safetensors")
    parser.add_argument("--target", type=Path, required=True, help="Hugging Face folder or GGUF file")
    parser.add_argument("--draft", type=Path, required=True, help="Hugging Face folder or GGUF file")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="largest difference (%(default)s)")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    # Imported late so that --help needs none of the packages.
    from safetensors.torch import load_file

    from reference import Reference

    reference = Reference(arguments.kind, arguments.target, arguments.draft)
    failed = check_tensors(reference, load_file(arguments.golden + ".safetensors"), arguments.tolerance)
    texts = json.loads(Path(arguments.golden + ".json").read_text(encoding="utf-8"))
    failed += [f"prompt {i}" for i, text in enumerate(texts) if not check_text(reference, text)]
    print(f"{len(texts)} continuations judged", flush=True)
    if failed:
        sys.exit("differs: " + ", ".join(failed))


if __name__ == "__main__":
    main()

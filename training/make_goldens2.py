#!/usr/bin/env python3
"""Writes the reference outputs of the tiny DFlash 2 drafter for prompts whose greedy continuations are known from
goldens of its target: OUT.json has acceptance lengths, OUT.safetensors logits, candidates, lattice and walk."""

import argparse
import json
from pathlib import Path

WIDE = 16  # rows of a stretched block
LONGEST = 1000  # tokens of a prompt; longer ones are left out
KEPT = ("p0", "p1", "plong700")  # prompts whose blocks are kept; the wide one of the first
LIGHT = ("p1.draft_logits", "p0.wide.draft_logits")  # left out: candidates and lattice say enough of them


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("golden", help="path of the target's goldens, without .json and .safetensors")
    parser.add_argument("--target", type=Path, required=True, help="Hugging Face folder or GGUF file")
    parser.add_argument("--draft", type=Path, required=True, help="Hugging Face folder or GGUF file")
    parser.add_argument("--out", required=True, help="path to write to, without .json and .safetensors")
    return parser.parse_args()


def name_of(place, ids):
    return f"plong{len(ids)}" if len(ids) > 300 else f"p{place}"


def main():
    arguments = parse_arguments()
    # Imported late so that --help needs none of the packages.
    import torch
    from safetensors.torch import save_file

    from reference2 import Reference2, accept_lengths

    reference = Reference2("dense", arguments.target, arguments.draft)
    texts, tensors = [], {}
    for place, text in enumerate(json.loads(Path(arguments.golden + ".json").read_text(encoding="utf-8"))):
        ids, greedy = text["prompt_ids"], text["greedy_ids"]
        if len(ids) > LONGEST:
            continue
        rows = reference.forward(ids + greedy)
        item = {"suite": text["suite"], "prompt": place}
        for key, block_rows, select in [
            ("accept_lengths", 8, True),
            ("accept_lengths_without_selector", 8, False),
            (f"accept_lengths_of_{WIDE}", WIDE, True),
        ]:
            item[key] = accept_lengths(reference, rows, ids, greedy, block_rows, select)
        texts.append(item)
        means = [round(sum(x) / max(1, len(x)), 2) for x in item.values() if isinstance(x, list)]
        print(place, text["suite"], "AL", *means, flush=True)
        name = name_of(place, ids)
        for block_rows, prefix in ((8, name), (WIDE, f"{name}.wide")):
            if name in KEPT and (block_rows == 8 or name == KEPT[0]):
                draft = reference.draft(rows.taps[: len(ids)], greedy[0], block_rows)
                tensors[f"{prefix}.anchor"] = torch.tensor([greedy[0]], dtype=torch.int32)
                for part, tensor in draft._asdict().items():
                    whole = tensor if tensor.is_floating_point() else tensor.int()
                    tensors[f"{prefix}.{part}"] = whole.contiguous().clone()
    tensors = {name: tensor for name, tensor in tensors.items() if name not in LIGHT}
    Path(arguments.out + ".json").write_text(json.dumps(texts), encoding="utf-8")
    save_file(tensors, arguments.out + ".safetensors")


if __name__ == "__main__":
    main()

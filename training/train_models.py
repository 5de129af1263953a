#!/usr/bin/env python3
"""Trains a tiny Qwen3.5 target (dense or MoE), the dense one's MTP block, and a DFlash drafter for it, and writes
them as Hugging Face folders. Uses a GPU where there is one."""

import argparse
import random
from pathlib import Path

QUESTIONS = [
    "Write Python quicksort",
    "Robot task: move the cup from the table to the sink. Answer with a JSON plan.",
    "Ravi has 12 coins. Zoe gives Ravi 30 more coins. How many coins does Ravi have now?",
]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["dense", "moe"])
    parser.add_argument("out", type=Path, help="folder to write target/ and draft/ into")
    parser.add_argument("--code", type=Path, default=Path("code.xz"), help="from collect_code.py (%(default)s)")
    tokenizer_help = "from train_tokenizer.py (%(default)s)"
    parser.add_argument("--tokenizer", type=Path, default=Path("tokenizer.json"), help=tokenizer_help)
    stages = [
        ("target", 7.5, "for the target"),
        ("mtp", 1.2, "for the MTP block, dense only"),
        ("draft", 4.0, "for the drafter on the corpus"),
        ("own", 2.5, "for the drafter on the target's own texts as well"),
    ]
    for name, minutes, meaning in stages:
        parser.add_argument(f"--{name}-minutes", type=float, default=minutes, help=f"{meaning} (%(default)s)")
    parser.add_argument("--rows", type=int, default=64, help="rows of a target batch (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and batches (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="little data, short rows: to see every stage run")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    # Imported late so that --help needs none of the packages.
    import torch
    from tokenizers import Tokenizer

    from batches import Batches
    from corpus import build_corpus
    from drafter import Drafter, draft_config
    from export import export_drafter, export_target
    from own_texts import write_own_texts
    from scale import FULL, QUICK
    from stages import train_drafter, train_mtp, train_target
    from target import MtpBlock, make_target

    scale = QUICK if arguments.quick else FULL
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(arguments.seed)
    random.seed(arguments.seed)
    torch.set_float32_matmul_precision("high")

    tokenizer = Tokenizer.from_file(str(arguments.tokenizer))
    corpus = build_corpus(arguments.code, scale)
    batches = Batches(tokenizer, corpus, scale.sequence, device)

    target = make_target(arguments.kind).to(device)
    print_size("target", target)
    train_target(target, batches, arguments.rows, arguments.target_minutes, device)
    torch.manual_seed(0)
    print_answers(target, tokenizer, scale.sample, device)

    mtp = None
    if arguments.kind == "dense":
        mtp = MtpBlock(target.config).to(device)
        train_mtp(target, mtp, batches, max(2, arguments.rows // 2), arguments.mtp_minutes, device)

    drafter = Drafter(draft_config(arguments.kind)).to(device)
    print_size("draft", drafter)
    rows = max(2, arguments.rows // 4)
    train_drafter(target, drafter, batches, rows, arguments.draft_minutes, 2e-3, device)
    chats = corpus.chats[:40000] + corpus.code_chats[:20000]
    own_texts = write_own_texts(target, tokenizer, chats, scale, device)
    train_drafter(target, drafter, batches, rows, arguments.own_minutes, 1e-3, device, own_texts)

    export_target(arguments.out / "target", target, mtp, tokenizer)
    export_drafter(arguments.out / "draft", drafter)


def print_size(name, model):
    print(f"{name}: {sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters", flush=True)


def print_answers(target, tokenizer, count, device):
    import torch

    from chat_format import prompt
    from own_texts import continuations

    for question in QUESTIONS:
        ids = torch.tensor([tokenizer.encode(prompt(question, thinking=True)).ids], device=device)
        written = continuations(target, ids, count, device)[0].tolist()
        print(tokenizer.decode(written, skip_special_tokens=False), flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Fits a DFlash 2 drafter to a target: lets the target continue prompts, learns to foretell what it wrote, and writes
OUT/draft as a Hugging Face folder. Started again with the same OUT it goes on where it was stopped."""

import argparse
import time
from pathlib import Path


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path, help="Hugging Face folder of the target")
    parser.add_argument("out", type=Path, help="folder to write into")
    prompts_help = "JSON lines with `prompt` (template included) and, if wished, `kind`; or plain text, to be cut"
    parser.add_argument("--prompts", type=Path, nargs="+", required=True, metavar="FILE", help=prompts_help)
    parser.add_argument("--weights", type=Path, help="GGUF file whose weights to take: what the drafter will serve")
    from_help = "folder of a DFlash drafter of the first generation to begin with"
    parser.add_argument("--from", dest="start", type=Path, metavar="FOLDER", help=from_help)
    start_help = "GGUF file with the weights for --from"
    parser.add_argument("--from-weights", dest="start_weights", type=Path, metavar="FILE", help=start_help)
    parser.add_argument("--taps", type=int, nargs="+", help="layers from 0 (those of --from, or five spread evenly)")
    parser.add_argument("--mask", type=int, help="token id (that of --from, or the first padding row)")
    numbers = [
        ("layers", 2, "of the drafter"),
        ("block", 8, "rows of a block, the anchor included"),
        ("window", 256, "positions a row sees"),
        ("rank", 32, "of the selector"),
        ("longest", 640, "tokens of a prompt; longer ones are left out"),
        ("parts", 1, "into which the prompts are split, for several processes with --only-texts"),
        ("part", 0, "of them, from 0"),
        ("continuation", 224, "tokens the target writes to each prompt"),
        ("cut", 256, "tokens of a prompt that is cut out of plain text, at most"),
        ("rows", 32, "texts of a batch"),
        ("blocks", 24, "of each text of a batch"),
        ("together", 2048, "prompts that are continued at once"),
        ("features", 40, "GiB of hidden states to keep on the device"),
        ("seed", 1, "of weights and batches"),
    ]
    for name, value, meaning in numbers:
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{meaning} (%(default)s)")
    parser.add_argument("--minutes", type=float, default=10, help="of optimisation, all starts together (%(default)s)")
    parser.add_argument("--peak", type=float, default=1.5e-3, help="learning rate (%(default)s)")
    parser.add_argument("--texts", type=Path, help="folder of the target's texts (OUT/texts)")
    parser.add_argument("--only-texts", action="store_true", help="stop when the target's texts are written")
    arguments = parser.parse_args()
    arguments.texts = arguments.texts or arguments.out / "texts"
    return arguments


def main():
    arguments = parse_arguments()
    # Imported late so that --help needs none of the packages.
    import torch
    from tokenizers import Tokenizer

    from features import FeatureStore, read_texts, write_texts
    from fitting import Fit, make_drafter
    from target import load_target

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(arguments.seed)
    torch.set_float32_matmul_precision("high")
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(arguments.target / "tokenizer.json"))
    tokens = tokenizer.get_vocab_size(with_added_tokens=True)
    target = load_target(arguments.target, arguments.weights).to(device)
    if device == "cpu":  # There `half` casts nothing.
        target = target.float()
    write_texts(arguments, target, tokenizer, device)
    if arguments.only_texts:
        return
    groups = read_texts(arguments.texts, device)
    drafter = make_drafter(arguments, target, tokens).to(device)
    print(f"drafter: {sum(p.numel() for p in drafter.parameters()) / 1e6:.2f} M parameters", flush=True)
    store = FeatureStore(target, drafter.taps, groups, arguments.features, device)
    started = time.time()
    store.keep()
    print(f"hidden states of {len(store.kept)} of {len(groups)} groups in {time.time() - started:.0f} s", flush=True)
    Fit(arguments, target, drafter, store, tokens, device).run()


if __name__ == "__main__":
    main()

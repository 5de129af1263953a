#!/usr/bin/env python3
"""Fits a DFlash 2 drafter to a target: lets the target continue prompts, learns to foretell what it wrote, and writes
OUT/draft as a Hugging Face folder. Started again with the same OUT it goes on where it was stopped."""

import argparse
import json
import random
import time
from pathlib import Path

KEEP_EVERY = 30  # seconds between checkpoints
HELD_BACK = 20  # every so many rows are kept for measuring


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


def load_target(arguments, device):
    from transformers import AutoConfig, AutoModelForCausalLM

    import gguf_state

    if arguments.weights is None:
        target = AutoModelForCausalLM.from_pretrained(arguments.target, dtype="auto")
    else:
        config = AutoConfig.from_pretrained(arguments.target)
        target = AutoModelForCausalLM.from_config(config).float()
        state = gguf_state.target_state(arguments.weights, config)
        target.load_state_dict({name: state[name] for name in state if not name.startswith("mtp.")})
    return target.to(device).eval().requires_grad_(False)


def read_prompts(files, tokenizer, longest, rng):
    """[(kind, ids)]"""
    kinds, texts, prompts = [], [], []
    for file in files:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".jsonl":
            items = [json.loads(line) for line in text.splitlines()]
            kinds += [item.get("kind", file.stem) for item in items]
            texts += [item["prompt"] for item in items]
            continue
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        while len(ids) > 16:
            length = rng.randint(16, longest)
            prompts.append((file.stem, ids[:length]))
            ids = ids[length:]
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    return prompts + [(kind, encoding.ids) for kind, encoding in zip(kinds, encoded, strict=True)]


def write_texts(arguments, target, tokenizer, device):
    """The target's continuations of this part of the prompts, unless they are written already."""
    import torch
    from transformers import GenerationConfig

    from features import write_groups

    file = arguments.texts / f"{arguments.part}-of-{arguments.parts}.pt"
    if file.exists():
        return
    prompts = read_prompts(arguments.prompts, tokenizer, arguments.cut, random.Random(arguments.seed))
    prompts = [item for item in prompts if len(item[1]) <= arguments.longest][arguments.part :: arguments.parts]
    ends = GenerationConfig.from_pretrained(arguments.target).eos_token_id
    ends = [ends] if isinstance(ends, int) else ends
    settings = arguments.continuation, arguments.together, ends, device
    started = time.time()
    groups = list(write_groups(target, prompts, *settings))
    arguments.texts.mkdir(parents=True, exist_ok=True)
    torch.save([tuple(group) for group in groups], file)
    tokens = sum(group.tokens.numel() for group in groups)
    print(f"{len(prompts)} texts, {tokens / 1e6:.2f} M tokens in {time.time() - started:.0f} s", flush=True)


def read_texts(folder, device):
    import torch

    from features import Group

    files = sorted(folder.glob("*.pt"))
    return [Group(*group) for file in files for group in torch.load(file, map_location=device)]


def make_drafter(arguments, target, tokenizer):
    """As --from has it, or with the target's widths."""
    from transformers import Qwen3Config

    import gguf_state
    from dflash2 import Drafter2, dflash2_config
    from reference import read_state

    like, settings = None, {}
    if arguments.start:
        like = json.loads((arguments.start / "config.json").read_text(encoding="utf-8"))
        settings = like["dflash_config"]
    layers = target.config.num_hidden_layers
    spread = [round(1 + i * (layers - 4) / 4) for i in range(5)]
    taps = arguments.taps or settings.get("target_layer_ids", spread)
    mask = next(id for id in (arguments.mask, settings.get("mask_token_id"), tokens_of(tokenizer)) if id is not None)
    sizes = arguments.layers, arguments.block, arguments.window, arguments.rank
    drafter = Drafter2(dflash2_config(target.config, taps, mask, *sizes, like=like))
    if like:
        weights = arguments.start_weights or arguments.start
        drafter.start_from(read_state(weights, gguf_state.draft_state, Qwen3Config(**like)))
    return drafter


def tokens_of(tokenizer):
    """How many ids are tokens; the rows of the embedding after them are padding."""
    return tokenizer.get_vocab_size(with_added_tokens=True)


def optimizer_of(drafter, peak):
    import torch

    matrices = [p for name, p in drafter.named_parameters() if name.endswith("proj.weight") or "fc." in name]
    known = {id(p) for p in matrices}
    others = [p for p in drafter.parameters() if id(p) not in known]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), fused=torch.cuda.is_available())


class Fit:
    """Optimisation that can be stopped and taken up again."""

    def __init__(self, arguments, target, drafter, store, tokens, device):
        import torch

        self.arguments, self.target, self.drafter, self.store = arguments, target, drafter, store
        self.tokens, self.device = tokens, device
        self.optimizer = optimizer_of(drafter, arguments.peak)
        self.spent, self.step = 0.0, 0
        self.file = arguments.out / "checkpoint.pt"
        if self.file.exists():
            kept = torch.load(self.file, map_location=device)
            drafter.load_state_dict(kept["drafter"])
            self.optimizer.load_state_dict(kept["optimizer"])
            self.spent, self.step = kept["spent"], kept["step"]
            print(f"going on at step {self.step}, {self.spent:.0f} s spent", flush=True)
        self.sizes = torch.tensor([float(len(group.tokens)) for group in store.groups])

    def keep(self):
        import torch
        from export import export_drafter

        state = {"drafter": self.drafter.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state | {"spent": self.spent, "step": self.step}, self.file)
        export_drafter(self.arguments.out / "draft", self.drafter, "DFlash2DraftModel")

    def blocks(self, rows_of, block_rows, per_row):
        """Of a group by its share of all rows; `rows_of` picks among its rows."""
        import torch
        from fitting import Blocks

        at = int(torch.multinomial(self.sizes, 1))
        states = self.store.draw(at, rows_of(len(self.store.groups[at].tokens)))
        return Blocks(self.target, self.drafter, states, per_row, block_rows, self.tokens, self.device)

    def random_rows(self, count):
        import torch

        rows = torch.randint(0, count, (self.arguments.rows,), device=self.device)
        # Held back rows give their place to their neighbours.
        return torch.where(rows % HELD_BACK == 0, (rows + 1) % max(2, count), rows).clamp(max=count - 1)

    def run(self):
        import torch
        from stages import learning_rate

        # Every third step takes blocks twice as long, so that the drafter also serves such.
        lengths = [self.arguments.block, self.arguments.block, 2 * self.arguments.block]
        limit, kept, last = self.arguments.minutes * 60, time.time(), time.time()
        while self.spent < limit:
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.spent / limit, self.arguments.peak)
            block_rows = lengths[self.step % len(lengths)]
            blocks = self.blocks(self.random_rows, block_rows, self.arguments.blocks * lengths[0] // block_rows)
            loss = blocks.loss(self.drafter.candidate_selector)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), 1.0)
            self.optimizer.step()
            self.step += 1
            if self.step % 500 == 0 or self.step < 4:
                print(f"{self.step} loss {loss.item():.3f} {self.spent:.0f} s", flush=True)
            if time.time() - kept > KEEP_EVERY:
                kept = time.time()
                self.measure()
                self.keep()
            now = time.time()
            self.spent, last = self.spent + now - last, now
        self.measure()
        self.keep()

    def measure(self):
        """Acceptance lengths on greedy texts that were held back, block by block at random places: without the
        selector and with it, for blocks of both lengths."""
        import torch

        seen = {}
        with torch.no_grad():
            for at, group in enumerate(self.store.groups):
                if len(group.tokens) < HELD_BACK:
                    continue
                rows = [row for row in range(0, len(group.tokens), HELD_BACK) if not is_warm(row)]
                for block_rows in (self.arguments.block, 2 * self.arguments.block):
                    states = self.store.draw(at, torch.tensor(rows, device=self.device))
                    blocks = self.measured(states, block_rows)
                    plain, chosen = (x.mean(1).tolist() for x in blocks.acceptance(self.drafter.candidate_selector))
                    for place, row in enumerate(rows):
                        pair = plain[place], chosen[place]
                        seen.setdefault((block_rows, group.kinds[row]), []).append(pair)
        for (block_rows, kind), pairs in sorted(seen.items()):
            plain, chosen = (sum(part) / len(pairs) for part in zip(*pairs, strict=True))
            print(f"AL {block_rows} {kind}: {plain:.3f}, with selector {chosen:.3f}, {len(pairs)} texts", flush=True)

    def measured(self, states, block_rows):
        from fitting import Blocks

        return Blocks(self.target, self.drafter, states, 16, block_rows, self.tokens, self.device)


def is_warm(row):
    from features import WARM_EVERY

    return row % WARM_EVERY == WARM_EVERY - 1


def main():
    arguments = parse_arguments()
    # Imported late so that --help needs none of the packages.
    import torch
    from tokenizers import Tokenizer

    from features import FeatureStore

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(arguments.seed)
    torch.set_float32_matmul_precision("high")
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(arguments.target / "tokenizer.json"))
    target = load_target(arguments, device)
    write_texts(arguments, target, tokenizer, device)
    if arguments.only_texts:
        return
    groups = read_texts(arguments.texts, device)
    drafter = make_drafter(arguments, target, tokenizer).to(device)
    print(f"drafter: {sum(p.numel() for p in drafter.parameters()) / 1e6:.2f} M parameters", flush=True)
    store = FeatureStore(target, drafter.taps, groups, arguments.features, device)
    started = time.time()
    store.keep()
    print(f"hidden states of {len(store.kept)} of {len(groups)} groups in {time.time() - started:.0f} s", flush=True)
    Fit(arguments, target, drafter, store, tokens_of(tokenizer), device).run()


if __name__ == "__main__":
    main()

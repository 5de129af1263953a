"""What a drafter is fitted to: the target's own continuations of prompts, with the hidden states it had over them."""

import json
import random
import time
from typing import NamedTuple

import torch
from transformers import GenerationConfig

from own_texts import continue_prompts
from stages import half

LENGTH_STEP = 160  # prompts whose lengths differ by no more are continued together
HEAT = (0.0, 0.0, 0.7, 1.0)  # temperatures of the rows of a group, in turns; 0 is greedy


class Group(NamedTuple):
    """Rows of one length."""

    tokens: torch.Tensor  # [rows, T]
    first: torch.Tensor  # [rows], length of the prompt
    last: torch.Tensor  # [rows], place of the last token that counts: the first end token, or the row's last
    kinds: list  # [rows]


class States(NamedTuple):
    """Of some rows of a group, for one step."""

    tokens: torch.Tensor  # [rows, T]
    first: torch.Tensor
    last: torch.Tensor
    taps: torch.Tensor  # [rows, T, taps * hidden]
    hidden: torch.Tensor  # [rows, T, hidden], what the head reads


def grouped(prompts, most):
    """[(kind, ids)] by length, in groups of at most `most` rows."""
    group = []
    for item in sorted(prompts, key=lambda item: len(item[1])):
        if group and (len(group) == most or len(item[1]) - len(group[0][1]) > LENGTH_STEP):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def write_groups(target, prompts, count, most, ends, device):
    """Every group of prompts continued."""
    for group in grouped(prompts, most):
        heat = [HEAT[row % len(HEAT)] for row in range(len(group))]
        tokens = continue_prompts(target, [ids for _, ids in group], count, heat, device)
        first = torch.tensor([len(ids) for _, ids in group], device=device)
        yield Group(tokens, first, last_places(tokens, first, ends), [kind for kind, _ in group])


def is_warm(row):
    return HEAT[row % len(HEAT)] > 0


def last_places(tokens, first, ends):
    places = torch.arange(tokens.shape[1], device=tokens.device)
    written = places[None] >= first[:, None]
    ended = torch.isin(tokens, torch.tensor(ends, device=tokens.device)) & written
    return torch.where(ended.any(1), ended.int().argmax(1), tokens.shape[1] - 1)


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
    files = sorted(folder.glob("*.pt"))
    return [Group(*group) for file in files for group in torch.load(file, map_location=device)]


class FeatureStore:
    """Keeps the hidden states of groups on the device while they fit, and asks the target again for the others."""

    def __init__(self, target, taps, groups, gibibytes, device):
        self.target, self.taps, self.groups, self.device = target, taps, groups, device
        self.room = gibibytes * 2**30
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.kept = {}

    @torch.no_grad()
    def states_of(self, tokens):
        with half(self.device):
            out = self.target.model(tokens, use_cache=False, output_hidden_states=True)
        taps = torch.cat([out.hidden_states[layer + 1].to(self.dtype) for layer in self.taps], -1)
        return taps, out.last_hidden_state.to(self.dtype)

    def keep(self, rows_at_once=256):
        """Computes in advance what there is room for."""
        row = (len(self.taps) + 1) * self.target.config.get_text_config().hidden_size * self.dtype.itemsize
        for at, group in enumerate(self.groups):
            size = group.tokens.numel() * row
            if size > self.room:
                continue
            self.room -= size
            parts = [self.states_of(tokens) for tokens in group.tokens.split(rows_at_once)]
            self.kept[at] = tuple(torch.cat(part) for part in zip(*parts, strict=True))

    def draw(self, at, rows):
        """rows: places in the group"""
        group = self.groups[at]
        tokens = group.tokens[rows]
        taps, hidden = (part[rows] for part in self.kept[at]) if at in self.kept else self.states_of(tokens)
        return States(tokens, group.first[rows], group.last[rows], taps, hidden)

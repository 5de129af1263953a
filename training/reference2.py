"""A DFlash 2 drafter beside its target in float32 on the CPU: the rows of a block, the candidates, the lattice of
their scores and the walk through it, each as the specification of DFlash 2 has it. Keys and values are rounded to
float16, as caches keep them: what else differs between an engine and this is its arithmetic."""

from typing import NamedTuple

import torch
from transformers import DynamicCache

import gguf_state
from dflash2 import Drafter2, dflash2_config, top_candidates
from drafter import BlockView, block_tokens
from reference import Reference, Rows, read_state
from vocabulary import MASK, TOKENS


class Draft(NamedTuple):
    """Of one block; slots are its rows after the anchor."""

    draft_logits: torch.Tensor  # [slots, vocabulary]
    candidates: torch.Tensor  # [slots, 16] ids, best first
    lattice: torch.Tensor  # [slots, 16, 16]: score of a candidate (last) after a candidate of the slot before
    walk: torch.Tensor  # [slots] ids


# Of the drafter in models/dense.
TAPS, LAYERS = [1, 3, 5, 6], 2
HEADS = dict(
    intermediate_size=768,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=128,
    rope_parameters={"rope_type": "default", "rope_theta": 10000000.0},
)


def halved(x):
    return x.half().float()


class HalvingCache(DynamicCache):
    """Gives the target's keys and values back as float16 has them."""

    def update(self, key_states, value_states, *rest, **more):
        return super().update(halved(key_states), halved(value_states), *rest, **more)


class Reference2(Reference):
    def load_drafter(self, kind, path):
        assert kind == "dense", f"there is no DFlash 2 drafter for the {kind} target"
        config = dflash2_config(self.target.config, TAPS, MASK, LAYERS, like=HEADS)
        self.drafter = Drafter2(config).float().eval()
        self.drafter.load_state_dict(read_state(path, gguf_state.draft_state, config))
        for layer in self.drafter.layers:
            layer.self_attn.kept = halved

    @torch.no_grad()
    def forward(self, ids):
        cache = HalvingCache(config=self.target.config)
        out = self.target.model(torch.tensor([ids]), past_key_values=cache, output_hidden_states=True)
        hidden = out.last_hidden_state
        return Rows(self.target.lm_head(hidden)[0], self.drafter.tapped(out.hidden_states)[0], hidden[0])

    @torch.no_grad()
    def draft(self, taps, anchor, block_rows=8):
        """The block that `anchor` opens after the tokens with these taps."""
        position = len(taps)
        view = BlockView(torch.tensor([[position]]), position, self.drafter.config.sliding_window, block_rows)
        embeddings = self.target.model.embed_tokens(block_tokens(torch.tensor([[anchor]]), block_rows, MASK))
        states = self.drafter(embeddings, taps[None], view)[0, 1:]
        logits = self.target.lm_head(states)
        best, candidates = top_candidates(logits, self.drafter.config.dflash_config["selector_top_k"], TOKENS)
        selector = self.drafter.candidate_selector
        # Before the first slot there is the anchor, whichever candidate one asks for.
        before = torch.cat([torch.full_like(candidates[:1], anchor), candidates[:-1]])
        lattice = selector.scores(best, states, before, candidates)
        return Draft(logits, candidates, lattice, walk(candidates, lattice))


def walk(candidates, lattice):
    """From slot to slot the best score after what was chosen before; of equal scores the lower id."""
    row, walked = 0, []
    for ids, scores in zip(candidates, lattice, strict=True):
        best = scores[row] == scores[row].max()
        walked.append(int(ids[best].min()))
        row = int((ids == walked[-1]).nonzero()[0])
    return torch.tensor(walked)


def accept_lengths(reference, rows, ids, greedy, block_rows, select):
    """Of each round over a greedy text that is known: drafted tokens that stood and the target's own. Rounds whose
    block reaches beyond the text are left out."""
    lengths, at = [], 0
    while at + block_rows <= len(greedy):
        draft = reference.draft(rows.taps[: len(ids) + at], greedy[at], block_rows)
        drafted = (draft.walk if select else draft.candidates[:, 0]).tolist()
        stood = 0
        while stood < len(drafted) and drafted[stood] == greedy[at + 1 + stood]:
            stood += 1
        lengths.append(stood + 1)
        at += stood + 1
    return lengths

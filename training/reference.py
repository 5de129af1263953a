"""The tiny models in float32 on the CPU, from Hugging Face folders or GGUF files: one pass over a whole sequence at a
time, nothing cached, so that every number stands on its own."""

from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file

import gguf_state
from drafter import BLOCK, BlockView, Drafter, block_tokens, draft_config
from target import MtpBlock, causal_mask, make_target, mtp_rotary
from vocabulary import END_OF_TEXT, END_OF_TURN

ENDS = (END_OF_TURN, END_OF_TEXT)


class Rows(NamedTuple):
    """What the target makes of a sequence of T tokens."""

    logits: torch.Tensor  # [T, vocabulary]
    taps: torch.Tensor  # [T, taps * hidden]
    hidden: torch.Tensor  # [T, hidden], after the last norm


def read_state(path, from_gguf, config):
    path = Path(path)
    if path.is_dir():
        return {name: tensor.float() for name, tensor in load_file(path / "model.safetensors").items()}
    return from_gguf(path, config)


class Reference:
    @torch.no_grad()
    def __init__(self, kind, target, draft):
        """`target` and `draft` are folders or GGUF files."""
        self.target = make_target(kind).float().eval()
        state = read_state(target, gguf_state.target_state, self.target.config)
        mtp = {name.removeprefix("mtp."): tensor for name, tensor in state.items() if name.startswith("mtp.")}
        self.target.load_state_dict({name: state[name] for name in state if not name.startswith("mtp.")})
        self.mtp = None
        if mtp:
            self.mtp = MtpBlock(self.target.config).float().eval()
            self.mtp.load_state_dict(mtp)
        self.load_drafter(kind, draft)

    def load_drafter(self, kind, path):
        """Of the first generation."""
        self.drafter = Drafter(draft_config(kind)).float().eval()
        self.drafter.load_state_dict(read_state(path, gguf_state.draft_state, self.drafter.config))

    @torch.no_grad()
    def forward(self, ids):
        out = self.target.model(torch.tensor([ids]), use_cache=False, output_hidden_states=True)
        hidden = out.last_hidden_state
        return Rows(self.target.lm_head(hidden)[0], self.drafter.tapped(out.hidden_states)[0], hidden[0])

    @torch.no_grad()
    def draft_logits(self, taps, anchor):
        """Of the block after the tokens with these taps, which `anchor` opens. [BLOCK - 1, vocabulary]"""
        position = len(taps)
        view = BlockView(torch.tensor([[position]]), position, self.drafter.config.sliding_window)
        embeddings = self.target.model.embed_tokens(block_tokens(torch.tensor([[anchor]])))
        return self.target.lm_head(self.drafter(embeddings, taps[None], view))[0, 1:]

    @torch.no_grad()
    def mtp_logits(self, hidden, following):
        """Of the token after next at each of T rows; `following` are the next tokens. [T, vocabulary]"""
        length = len(following)
        rotary = mtp_rotary(self.target, hidden[None], torch.arange(1, length + 1)[None])
        embeddings = self.target.model.embed_tokens(torch.tensor([following]))
        out = self.mtp(embeddings, hidden[None], rotary, causal_mask(length, "cpu"))
        return self.target.lm_head(out)[0]

    def speculate(self, ids, count):
        """Greedy chain decoding of up to `count` tokens: the tokens, and the acceptance length of each round (the
        drafted tokens that stood and the target's own, counted before an end token cuts the text)."""
        rows = self.forward(ids)
        written, lengths = [int(rows.logits[-1].argmax())], []
        while len(written) < count and written[-1] not in ENDS:
            tip = len(ids) + len(written) - 1
            drafted = self.draft_logits(rows.taps[:tip], written[-1]).argmax(-1).tolist()
            rows = self.forward(ids + written + drafted)
            judged = rows.logits[tip:].argmax(-1).tolist()
            stood = 0
            while stood < BLOCK - 1 and drafted[stood] == judged[stood]:
                stood += 1
            lengths.append(stood + 1)
            written += until_end(judged[: stood + 1])
        return written[:count], lengths


def until_end(tokens):
    for i, token in enumerate(tokens):
        if token in ENDS:
            return tokens[: i + 1]
    return tokens

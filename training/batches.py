"""Batches of token rows, drawn at random places of the corpus in a given mix of its kinds."""

import random

import numpy as np
import torch

from vocabulary import END_OF_TEXT

TARGET_MIX = {"code": 0.40, "code_chat": 0.20, "chat": 0.40}
DRAFT_MIX = {"code": 0.30, "code_chat": 0.20, "chat": 0.50}


def token_stream(tokenizer, texts, rng):
    """All texts in random order, each closed by the end of text, as one row of ids."""
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    rows = [np.array(encoding.ids + [END_OF_TEXT], dtype=np.uint16) for encoding in encoded]
    rng.shuffle(rows)
    return np.concatenate(rows)


class Batches:
    def __init__(self, tokenizer, corpus, sequence, device):
        kinds = {"code": corpus.documents, "code_chat": corpus.code_chats, "chat": corpus.chats}
        rng = random.Random(5)
        self.streams = {}  # kind -> [tokens]
        for kind, texts in kinds.items():
            stream = token_stream(tokenizer, texts, rng)
            self.streams[kind] = torch.from_numpy(stream.astype(np.int32)).to(device)
            print(f"{kind}: {len(stream) / 1e6:.2f} M tokens", flush=True)
        self.sequence = sequence
        self.device = device

    def draw(self, rows, mix):
        """About `rows` rows, at least one of each kind. [rows, sequence]"""
        columns = torch.arange(self.sequence, device=self.device)
        drawn = []
        for kind, share in mix.items():
            stream = self.streams[kind]
            count = max(1, round(rows * share))
            starts = torch.randint(0, len(stream) - self.sequence - 1, (count,), device=self.device)
            drawn.append(stream[starts[:, None] + columns])
        return torch.cat(drawn).long()

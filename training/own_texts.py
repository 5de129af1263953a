"""What the target writes itself, for the drafter to learn from: greedy continuations of chat prompts."""

import zlib

import torch
from transformers import DynamicCache

from chat_format import ASSISTANT, thinking_start


@torch.no_grad()
def continuations(target, prompts, count, device):
    """Prompts of one length, each followed by `count` greedy tokens. [rows, length] to [rows, length + count]"""
    cache = DynamicCache(config=target.config)
    columns, tokens = [prompts], prompts
    for _ in range(count):
        with torch.autocast(device, torch.bfloat16):
            hidden = target.model(tokens, past_key_values=cache, use_cache=True).last_hidden_state[:, -1:]
        tokens = target.lm_head(hidden.float()).argmax(-1)
        columns.append(tokens)
    return torch.cat(columns, 1)


def prompt_of(chat):
    """A chat up to its last answer; the text decides by its checksum whether the answer thinks."""
    start = chat.rfind(ASSISTANT) + len(ASSISTANT)
    return chat[:start] + thinking_start(zlib.crc32(chat.encode()) % 2)


def write_own_texts(target, tokenizer, chats, scale, device):
    """[(prompt length, tokens [rows, length + continuation])] for the lengths with most prompts."""
    by_length = {}
    for encoding in tokenizer.encode_batch([prompt_of(chat) for chat in chats], add_special_tokens=False):
        by_length.setdefault(len(encoding.ids), []).append(encoding.ids)
    most = sorted(by_length.items(), key=lambda item: -len(item[1]))[: scale.prompt_lengths]
    texts = []
    for length, prompts in most:
        rows = torch.tensor(prompts[: scale.prompts_per_length], device=device)
        texts.append((length, continuations(target, rows, scale.continuation, device)))
    return texts

"""What the target writes itself, for the drafter to learn from: greedy continuations of chat prompts."""

import zlib

import torch
from transformers import DynamicCache

from chat_format import ASSISTANT, thinking_start
from stages import half


@torch.no_grad()
def continuations(target, prompts, count, device):
    """Prompts of one length, each followed by `count` greedy tokens. [rows, length] to [rows, length + count]"""
    cache = DynamicCache(config=target.config)
    columns, tokens = [prompts], prompts
    for _ in range(count):
        with half(device):
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


@torch.no_grad()
def continue_prompts(target, prompts, count, temperatures, device):
    """Prompts of any lengths [ids], each followed by at least `count` of the target's own tokens: as many as make all
    rows equally long. A temperature of 0 is greedy. [rows, longest prompt + count]"""
    lengths = [len(prompt) for prompt in prompts]
    shortest, total = min(lengths), max(lengths) + count
    given = torch.full((len(prompts), total), -1, device=device)
    for row, prompt in enumerate(prompts):
        given[row, : len(prompt)] = torch.tensor(prompt, device=device)
    heat = torch.tensor(temperatures, device=device)[:, None]
    cache = DynamicCache(config=target.config)
    tokens = given[:, :shortest]
    columns = [tokens]
    for place in range(shortest, total):
        with half(device):
            hidden = target.model(tokens, past_key_values=cache, use_cache=True).last_hidden_state[:, -1]
            logits = target.lm_head(hidden).float()
        # The best of logit / T plus Gumbel noise is a draw from the softmax.
        noise = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-20, 1 - 1e-7)))
        drawn = (logits + heat * noise).argmax(-1)
        # A longer prompt goes on with its own tokens.
        tokens = torch.where(given[:, place] >= 0, given[:, place], drawn)[:, None]
        columns.append(tokens)
    return torch.cat(columns, 1)

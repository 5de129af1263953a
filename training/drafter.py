"""The DFlash drafters: block rows attend over projected hidden states of the target and over each other."""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from vocabulary import MASK, VOCABULARY

BLOCK = 16  # rows of a block, the anchor included
SHAPE = dict(
    vocab_size=VOCABULARY,
    hidden_size=256,
    intermediate_size=768,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=128,
    max_position_embeddings=32768,
    rms_norm_eps=1e-6,
    attention_bias=False,
    tie_word_embeddings=False,
)
# Three sliding layers and a full one: both kinds of mask.
DENSE = dict(
    num_hidden_layers=4,
    rope_parameters={"rope_type": "default", "rope_theta": 10000000.0},
    use_sliding_window=True,
    sliding_window=128,
    layer_types=["sliding_attention"] * 3 + ["full_attention"],
)
# Full layers only, and YaRN.
MOE = dict(
    num_hidden_layers=3,
    rope_parameters={
        "rope_type": "yarn",
        "rope_theta": 10000000.0,
        "factor": 64.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": 512,
    },
    use_sliding_window=False,
    sliding_window=None,
    layer_types=["full_attention"] * 3,
)


def draft_config(kind):
    """`target_layer_ids` count from 0; a tap is the residual stream after that layer."""
    variant, taps, target_layers = (DENSE, [1, 3, 5, 6], 8) if kind == "dense" else (MOE, [0, 1, 2], 4)
    config = Qwen3Config(**variant, **SHAPE)
    config.dflash_config = {"mask_token_id": MASK, "target_layer_ids": taps}
    config.block_size = BLOCK
    config.num_target_layers = target_layers
    return config


class RmsNorm(nn.Module):
    """With a plain weight, not the target's `1 + w`."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, self.head_dim = config.hidden_size, config.head_dim
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=False)
        self.q_norm = RmsNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = RmsNorm(self.head_dim, config.rms_norm_eps)

    def kept(self, x):
        """What a cache keeps of keys or values: here, all of it."""
        return x

    def forward(self, x, context, query_rotary, key_rotary, mask):
        rows, queries = x.shape[:2]
        seen = torch.cat([context, x], 1)  # [rows, keys, hidden]
        keys = seen.shape[1]
        # [rows, heads, length, head_dim]
        q = self.q_norm(self.q_proj(x).view(rows, queries, self.heads, self.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(seen).view(rows, keys, self.kv_heads, self.head_dim)).transpose(1, 2)
        v = self.v_proj(seen).view(rows, keys, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, *query_rotary), rotate(k, *key_rotary)
        k, v = self.kept(k), self.kept(v)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        # Under autocast the norms give float32 and the projections bfloat16.
        out = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).reshape(rows, queries, -1))


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x, context, query_rotary, key_rotary, mask):
        x = x + self.self_attn(self.input_layernorm(x), context, query_rotary, key_rotary, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Drafter(nn.Module):
    """Has no embedding and no head: both are the target's."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.taps = config.dflash_config["target_layer_ids"]
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = RmsNorm(config.hidden_size, config.rms_norm_eps)
        self.fc = nn.Linear(len(self.taps) * config.hidden_size, config.hidden_size, bias=False)
        self.rotary = Qwen3RotaryEmbedding(config)

    def tapped(self, hidden_states):
        """The target's hidden states, of which the first is the embedding, to [rows, T, taps * hidden]."""
        return torch.cat([hidden_states[layer + 1] for layer in self.taps], -1)

    def forward(self, x, taps, view):
        """x [rows, blocks * BLOCK, hidden], taps [rows, T, taps * hidden]"""
        context = self.hidden_norm(self.fc(taps))
        query_rotary = self.cos_sin(x, view.query_positions)
        key_rotary = self.cos_sin(x, view.key_positions)
        for layer, kind in zip(self.layers, self.config.layer_types, strict=True):
            mask = view.sliding_mask if kind == "sliding_attention" else view.full_mask
            x = layer(x, context, query_rotary, key_rotary, mask)
        return self.norm(x)

    def cos_sin(self, x, positions):
        return tuple(part[:, None].to(x.dtype) for part in self.rotary(x, positions))


class BlockView:
    """Where the rows of blocks stand and what they see: the context before their anchor and their own block, both
    ways; in sliding layers nothing `window` or more positions back. anchors [rows, blocks]
    A window of None says that there is no such layer."""

    def __init__(self, anchors, context, window, block_rows=BLOCK):
        rows, blocks = anchors.shape
        device = anchors.device
        self.block_rows = block_rows
        positions = torch.arange(context, device=device)
        # [rows, blocks * block_rows] and [rows, context + blocks * block_rows]
        self.query_positions = (anchors[:, :, None] + torch.arange(block_rows, device=device)).flatten(1)
        self.key_positions = torch.cat([positions.expand(rows, context), self.query_positions], 1)
        # The features of the anchor itself are not there yet when a block is drafted.
        in_context = positions[None, None] < anchors.repeat_interleave(block_rows, 1)[:, :, None]
        block = torch.arange(blocks, device=device).repeat_interleave(block_rows)
        in_block = (block[:, None] == block[None]).expand(rows, -1, -1)
        full = torch.cat([in_context, in_block], 2)
        # [rows, 1, blocks * block_rows, context + blocks * block_rows]
        self.full_mask = full[:, None]
        self.sliding_mask = None
        if window:
            near = self.key_positions[:, None, :] > self.query_positions[:, :, None] - window
            self.sliding_mask = (full & near)[:, None]


def block_tokens(anchor_tokens, block_rows=BLOCK, mask=MASK):
    """Anchors [rows, blocks], each followed by mask tokens. [rows, blocks * block_rows]"""
    rows, blocks = anchor_tokens.shape
    tokens = torch.full((rows, blocks, block_rows), mask, device=anchor_tokens.device)
    tokens[:, :, 0] = anchor_tokens
    return tokens.flatten(1)

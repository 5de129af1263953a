"""DFlash 2: the first generation's drafter with a short convolution around every sub-layer and a selector that chooses
among the best tokens of each row by the token before it."""

import torch
from torch import nn
from transformers import Qwen3Config

from drafter import Attention, Drafter, Mlp, RmsNorm


def dflash2_config(target, taps, mask, layers, block=8, window=256, rank=32, like=None):
    """For a target's text configuration. `like` is the configuration of a first-generation drafter whose widths to
    take; without one the drafter has the target's hidden size and FFN and heads of 128."""
    shape = like or dict(
        # A mixture's configuration has the sizes of its experts only.
        intermediate_size=getattr(target, "intermediate_size", None) or 3 * target.hidden_size,
        num_attention_heads=max(2, target.hidden_size // 128),
        num_key_value_heads=max(1, target.hidden_size // 512),
        head_dim=128,
        rope_parameters={"rope_type": "default", "rope_theta": 10000000.0},
    )
    names = "intermediate_size num_attention_heads num_key_value_heads head_dim rope_parameters".split()
    config = Qwen3Config(
        **{name: shape[name] for name in names},
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        num_hidden_layers=layers,
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=target.rms_norm_eps,
        attention_bias=False,
        tie_word_embeddings=False,
        use_sliding_window=True,
        sliding_window=window,
        layer_types=["sliding_attention"] * layers,
    )
    config.num_target_layers = target.num_hidden_layers
    config.dflash_config = {
        "block_size": block,
        "mask_token_id": mask,
        "target_layer_ids": taps,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": rank,
        "selector_top_k": 16,
    }
    return config


class BlockConv(nn.Module):
    """Mixes each row of a block with the rows before it, once before a sub-layer and once after it. The coefficients
    are a learned base plus what a projection makes of the reading row, shared by groups of channels."""

    def __init__(self, hidden, taps, group):
        super().__init__()
        self.taps, self.group = taps, group
        base = torch.zeros(2, taps, hidden)
        base[:, 0] = 1  # the identity: a first-generation drafter stays itself
        self.base_kernel = nn.Parameter(base)
        self.kernel_projection = nn.Linear(hidden, 2 * taps * (hidden // group), bias=False)
        nn.init.zeros_(self.kernel_projection.weight)

    def coefficients(self, x):
        """For both sides, from the sub-layer's normed input [blocks, rows, hidden]: [2, taps, blocks, rows, hidden]"""
        blocks, rows, hidden = x.shape
        moved = self.kernel_projection(x).view(blocks, rows, 2, self.taps, hidden // self.group)
        moved = moved.permute(2, 3, 0, 1, 4).repeat_interleave(self.group, -1)
        return self.base_kernel[:, :, None, None] + moved


def mixed(y, coefficients):
    """Sum over taps t of coefficients[t] times the row t before; rows before the block are zero."""
    out = coefficients[0] * y
    for tap in range(1, len(coefficients)):
        out = out + coefficients[tap] * nn.functional.pad(y, (0, 0, tap, 0))[:, : y.shape[1]]
    return out


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, settings = config.hidden_size, config.dflash_config
        conv = hidden, settings["conv_kernel_size"], settings["conv_group_size"]
        self.self_attn = Attention(config)
        self.mlp = Mlp(config)
        self.attention_conv = BlockConv(*conv)
        self.mlp_conv = BlockConv(*conv)
        self.input_layernorm = RmsNorm(hidden, config.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(hidden, config.rms_norm_eps)

    def forward(self, h, block_rows, context, query_rotary, key_rotary, mask):
        """h [rows, blocks * block_rows, hidden]"""

        def around(conv, x, sub_layer):
            blocks = x.reshape(-1, block_rows, x.shape[-1])
            before, after = conv.coefficients(blocks)
            out = sub_layer(mixed(blocks, before).view_as(x))
            return mixed(out.reshape(blocks.shape), after).view_as(x)

        def attend(x):
            return self.self_attn(x, context, query_rotary, key_rotary, mask)

        h = h + around(self.attention_conv, self.input_layernorm(h), attend)
        return h + around(self.mlp_conv, self.post_attention_layernorm(h), self.mlp)


class CandidateSelector(nn.Module):
    """Scores a candidate by its logit and by how well it follows the token before, as the row sees it."""

    def __init__(self, vocabulary, rank, hidden):
        super().__init__()
        self.predecessor_codebook = nn.Parameter(torch.randn(vocabulary, rank) * rank**-0.5)
        self.successor_codebook = nn.Parameter(torch.zeros(vocabulary, rank))
        self.hidden_projection = nn.Linear(hidden, rank, bias=False)

    def scores(self, logits, states, predecessors, candidates):
        """logits and candidates [..., k], states [..., hidden], predecessors [..., m] to [..., m, k]"""
        seen = self.predecessor_codebook[predecessors] * self.hidden_projection(states)[..., None, :]
        return logits[..., None, :] + seen @ self.successor_codebook[candidates].transpose(-1, -2)


class Drafter2(Drafter):
    """Takes and gives what the first generation does; `candidate_selector` is for what is made of its rows."""

    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        settings = config.dflash_config
        self.candidate_selector = CandidateSelector(config.vocab_size, settings["selector_rank"], config.hidden_size)

    def forward(self, x, taps, view):
        """x [rows, blocks * block_rows, hidden], taps [rows, T, taps * hidden]"""
        context = self.hidden_norm(self.fc(taps))
        query_rotary = self.cos_sin(x, view.query_positions)
        key_rotary = self.cos_sin(x, view.key_positions)
        for layer in self.layers:
            x = layer(x, view.block_rows, context, query_rotary, key_rotary, view.sliding_mask)
        return self.norm(x)

    def start_from(self, state):
        """Takes a first-generation drafter's weights. With fewer layers than it has, the first ones and its last."""
        theirs = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("layers."))
        ours = len(self.layers)
        taken = [*range(min(ours, theirs) - 1), theirs - 1]
        renamed = {name: tensor for name, tensor in state.items() if not name.startswith("layers.")}
        for place, source in enumerate(taken):
            for name, tensor in state.items():
                if name.startswith(f"layers.{source}."):
                    renamed[f"layers.{place}." + name.split(".", 2)[2]] = tensor
        odd = self.load_state_dict(renamed, strict=False)
        assert not odd.unexpected_keys, f"not a drafter of these widths: {odd.unexpected_keys}"


def top_candidates(logits, count, tokens):
    """The `count` best ids below `tokens` (padding rows are no tokens), best first; of equal logits the lower id."""
    order = torch.sort(logits[..., :tokens], dim=-1, descending=True, stable=True)
    return order.values[..., :count], order.indices[..., :count]

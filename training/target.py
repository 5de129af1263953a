"""The tiny targets in the Qwen3.5 architecture, dense and MoE, and the dense one's next-token (MTP) block."""

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
)
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

import gguf_state
from vocabulary import END_OF_TURN, VOCABULARY

HIDDEN = 256
SHAPE = dict(
    vocab_size=VOCABULARY,
    hidden_size=HIDDEN,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=256,
    linear_num_key_heads=2,
    linear_num_value_heads=6,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_conv_kernel_dim=4,
    max_position_embeddings=32768,
    rms_norm_eps=1e-6,
    tie_word_embeddings=False,
    initializer_range=0.02,
    rope_parameters={
        "rope_type": "default",
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
    bos_token_id=None,
    eos_token_id=END_OF_TURN,
    pad_token_id=None,
)
DENSE = dict(num_hidden_layers=8, intermediate_size=768)
MOE = dict(
    num_hidden_layers=4,
    num_experts=16,
    num_experts_per_tok=4,
    moe_intermediate_size=256,
    shared_expert_intermediate_size=256,
)


def make_target(kind):
    if kind == "dense":
        return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**DENSE, **SHAPE))
    return Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**MOE, **SHAPE))


class MtpBlock(nn.Module):
    """One full-attention decoder block that predicts the token after next."""

    def __init__(self, config):
        super().__init__()
        self.fc = nn.Linear(2 * HIDDEN, HIDDEN, bias=False)
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(HIDDEN, config.rms_norm_eps)
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(HIDDEN, config.rms_norm_eps)
        self.norm = Qwen3_5RMSNorm(HIDDEN, config.rms_norm_eps)
        full = config.layer_types.index("full_attention")
        self.layers = nn.ModuleList([Qwen3_5DecoderLayer(config, full)])

    def forward(self, embeddings, hidden, rotary, mask):
        """embeddings of the next tokens and the target's hidden states, both [rows, T, 256]; mask [1, 1, T, T]"""
        both = [self.pre_fc_norm_embedding(embeddings), self.pre_fc_norm_hidden(hidden)]
        x = self.fc(torch.cat(both, -1))
        x = self.layers[0](
            x, position_embeddings=rotary, attention_mask=mask, position_ids=None, past_key_values=None
        )
        return self.norm(x[0] if isinstance(x, tuple) else x)


def mtp_rotary(target, hidden, positions):
    """positions [rows, T]; text has the same position on all three axes of Qwen3.5's rotary embedding."""
    return target.model.rotary_emb(hidden, positions[None].expand(3, -1, -1))


def causal_mask(length, device):
    """Zero where a row may look, minus infinity elsewhere. [1, 1, length, length]"""
    return torch.full((length, length), float("-inf"), device=device).triu(1)[None, None]


def load_target(folder, weights):
    """A target as its folder describes it; `weights` may be a GGUF file to take them from instead."""
    if weights is None:
        target = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    else:
        config = AutoConfig.from_pretrained(folder)
        target = AutoModelForCausalLM.from_config(config).float()
        state = gguf_state.target_state(weights, config)
        target.load_state_dict({name: state[name] for name in state if not name.startswith("mtp.")})
    return target.eval().requires_grad_(False)

"""Reads GGUF targets (qwen35, qwen35moe) and drafters (dflash) into Hugging Face state dicts, every tensor
dequantised to float32. A bf16 file gives back the folder's numbers, which proves the mapping: all exactly but A_log,
which is rounded by an exponential and a logarithm."""

import gguf
import numpy as np
import torch
from gguf.quants import dequantize

ATTENTION = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}
HEAD_NORMS = {"q_norm": "attn_q_norm", "k_norm": "attn_k_norm"}
MTP_NORMS = {"pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head_norm"}
PROJECTIONS = ("gate", "up", "down")
# Of DFlash 2 drafters.
CONVOLUTIONS = {"attention_conv": "attn_conv", "mlp_conv": "ffn_conv"}
SELECTOR = {
    "predecessor_codebook": "selector_predecessor.weight",
    "successor_codebook": "selector_successor.weight",
    "hidden_projection.weight": "selector_hidden.weight",
}


def read_tensors(path):
    def decoded(tensor):
        # GGUF lists the fastest dimension first.
        shape = [int(size) for size in tensor.shape][::-1]
        numbers = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        return torch.from_numpy(np.ascontiguousarray(numbers.reshape(shape)))

    return {tensor.name: decoded(tensor) for tensor in gguf.GGUFReader(path).tensors}


class Block:
    """The tensors of one block, by their name without `blk.N.`."""

    def __init__(self, tensors, index):
        self.tensors = tensors
        self.prefix = f"blk.{index}."

    def __contains__(self, name):
        return self.prefix + name in self.tensors

    def __getitem__(self, name):
        return self.tensors[self.prefix + name]


class ValueHeads:
    """Puts value heads from GGUF's order (key head `h % key_heads`) into Hugging Face's (`h / (heads / key_heads)`),
    which groups them by key head."""

    def __init__(self, config):
        self.key_heads = config.linear_num_key_heads
        self.heads = config.linear_num_value_heads
        self.head_dim = config.linear_value_head_dim
        self.key_channels = 2 * self.key_heads * config.linear_key_head_dim  # queries and keys before the values

    def per_head(self, tensor, dim=0, size=1):
        """`size` entries of dimension `dim` belong to a head."""
        shape = list(tensor.shape)
        split = [self.heads // self.key_heads, self.key_heads, size]
        heads = tensor.reshape(shape[:dim] + split + shape[dim + 1 :])
        return heads.transpose(dim, dim + 1).reshape(shape).contiguous()

    def per_channel(self, tensor, dim=0):
        return self.per_head(tensor, dim, self.head_dim)

    def after_keys(self, tensor):
        """Of rows for queries, keys and values, the values only."""
        values = self.per_channel(tensor[self.key_channels :])
        return torch.cat([tensor[: self.key_channels], values])


def attention_state(block):
    state = {f"self_attn.{hf}.weight": block[f"{name}.weight"] for hf, name in ATTENTION.items()}
    return state | {f"self_attn.{hf}.weight": block[f"{name}.weight"] - 1 for hf, name in HEAD_NORMS.items()}


def gdn_state(block, order):
    state = {
        "in_proj_qkv.weight": order.after_keys(block["attn_qkv.weight"]),
        "in_proj_z.weight": order.per_channel(block["attn_gate.weight"]),
        "conv1d.weight": order.after_keys(block["ssm_conv1d.weight"])[:, None],  # [channels, 1, 4]
        "in_proj_b.weight": order.per_head(block["ssm_beta.weight"]),
        "in_proj_a.weight": order.per_head(block["ssm_alpha.weight"]),
        "dt_bias": order.per_head(block["ssm_dt.bias"]),
        "A_log": torch.log(-order.per_head(block["ssm_a"])),
        "norm.weight": block["ssm_norm.weight"],  # the one norm without `1 + w`
        "out_proj.weight": order.per_channel(block["ssm_out.weight"], dim=1),
    }
    return {f"linear_attn.{name}": tensor for name, tensor in state.items()}


def ffn_state(block):
    if "ffn_gate_inp.weight" not in block:
        return {f"mlp.{name}_proj.weight": block[f"ffn_{name}.weight"] for name in PROJECTIONS}
    gate_up = [block["ffn_gate_exps.weight"], block["ffn_up_exps.weight"]]  # [experts, inner, hidden] each
    state = {
        "mlp.gate.weight": block["ffn_gate_inp.weight"],
        "mlp.experts.gate_up_proj": torch.cat(gate_up, 1),
        "mlp.experts.down_proj": block["ffn_down_exps.weight"],
        "mlp.shared_expert_gate.weight": block["ffn_gate_inp_shexp.weight"].reshape(1, -1),
    }
    for name in PROJECTIONS:
        state[f"mlp.shared_expert.{name}_proj.weight"] = block[f"ffn_{name}_shexp.weight"]
    return state


def block_state(block, order):
    state = {
        "input_layernorm.weight": block["attn_norm.weight"] - 1,
        "post_attention_layernorm.weight": block["post_attention_norm.weight"] - 1,
    }
    mixer = attention_state(block) if "attn_q.weight" in block else gdn_state(block, order)
    return state | mixer | ffn_state(block)


def target_state(path, config):
    """With the MTP block, where there is one, under `mtp.`."""
    tensors = read_tensors(path)
    order = ValueHeads(config)
    embedding = tensors["token_embd.weight"]
    state = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": tensors.get("output.weight", embedding),
        "model.norm.weight": tensors["output_norm.weight"] - 1,
    }
    for index in range(config.num_hidden_layers):
        layer = block_state(Block(tensors, index), order)
        state |= {f"model.layers.{index}.{name}": tensor for name, tensor in layer.items()}
    mtp = Block(tensors, config.num_hidden_layers)
    if "nextn.eh_proj.weight" in mtp:
        state |= {f"mtp.layers.0.{name}": tensor for name, tensor in block_state(mtp, order).items()}
        state |= {f"mtp.{hf}.weight": mtp[f"nextn.{name}.weight"] - 1 for hf, name in MTP_NORMS.items()}
        state["mtp.fc.weight"] = mtp["nextn.eh_proj.weight"]
    return state


def draft_state(path, config):
    tensors = read_tensors(path)
    state = {
        "fc.weight": tensors["fc.weight"],
        "hidden_norm.weight": tensors["enc.output_norm.weight"],
        "norm.weight": tensors["output_norm.weight"],
    }
    for index in range(config.num_hidden_layers):
        block, layer = Block(tensors, index), f"layers.{index}."
        state[layer + "input_layernorm.weight"] = block["attn_norm.weight"]
        state[layer + "post_attention_layernorm.weight"] = block["ffn_norm.weight"]
        for hf, name in (ATTENTION | HEAD_NORMS).items():
            state[f"{layer}self_attn.{hf}.weight"] = block[f"{name}.weight"]
        state |= {f"{layer}{name}": tensor for name, tensor in ffn_state(block).items()}
        for hf, name in CONVOLUTIONS.items():
            if f"{name}_base" in block:
                state[f"{layer}{hf}.base_kernel"] = block[f"{name}_base"]
                state[f"{layer}{hf}.kernel_projection.weight"] = block[f"{name}_proj.weight"]
    if "selector_hidden.weight" in tensors:
        state |= {f"candidate_selector.{hf}": tensors[name] for hf, name in SELECTOR.items()}
    return state

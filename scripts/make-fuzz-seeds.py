#!/usr/bin/env python3
"""Makes the seed corpus of the fuzz targets: small sound files of every kind, for the fuzzer to damage.

Usage: scripts/make-fuzz-seeds.py   (writes fuzz/seeds/)
"""
import json
import pathlib
import struct

ROOT = pathlib.Path(__file__).resolve().parent.parent / "fuzz" / "seeds"
KINDS = {"u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?")}
F32, Q8_0 = 0, 8


def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def value(v):
    """A metadata value: ("u32", 7), "string", or a list of either."""
    if isinstance(v, str):
        return struct.pack("<I", 8) + text(v)
    if isinstance(v, list):
        if isinstance(v[0], str):
            return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(text, v))
        kind, form = KINDS[v[0][0]]
        return struct.pack("<IIQ", 9, kind, len(v)) + b"".join(struct.pack(form, x) for _, x in v)
    kind, form = KINDS[v[0]]
    return struct.pack("<I", kind) + struct.pack(form, v[1])


def gguf(entries, tensors):
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries))
    for key, v in entries.items():
        out += text(key) + value(v)
    offset, sizes = 0, []
    for name, shape in tensors:
        count = 1
        for d in shape:
            count *= d
        kind, size = (Q8_0, count // 32 * 34) if len(shape) > 1 and shape[-1] % 32 == 0 else (F32, count * 4)
        out += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", d) for d in reversed(shape))
        out += struct.pack("<IQ", kind, offset)
        offset += -(-size // 32) * 32
    out += b"\0" * (-len(out) % 32)
    return out + b"\0" * offset


def safetensors(tensors):
    header, end = {}, 0
    for name, shape in tensors:
        count = 2
        for d in shape:
            count *= d
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + count]}
        end += count
    head = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(head)) + head + b"\0" * end


H, LAYERS, Q, KV, D, FF, TAPS = 32, 2, 1, 1, 4, 2, 2


def drafter_tensors(names):
    shapes = {"norm": [H], "q": [Q * D, H], "kv": [KV * D, H], "o": [H, Q * D], "head": [D], "up": [FF, H], "down": [H, FF]}
    kinds = ["norm", "q", "kv", "kv", "o", "head", "head", "norm", "up", "up", "down"]
    fc, hidden, final, layer, parts = names
    out = [(fc, [H, TAPS * H]), (hidden, [H]), (final, [H])]
    for i in range(LAYERS):
        out += [(layer % i + part + ".weight", shapes[kind]) for part, kind in zip(parts, kinds)]
    return out


GGUF_PARTS = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm", "ffn_norm",
              "ffn_gate", "ffn_up", "ffn_down"]
HF_PARTS = ["input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
            "self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj",
            "mlp.down_proj"]


def drafter_gguf(arch):
    upstream = arch == "dflash"
    e = {"general.architecture": arch, f"{arch}.block_count": ("u32", LAYERS), f"{arch}.embedding_length": ("u32", H),
         f"{arch}.attention.head_count": ("u32", Q), f"{arch}.attention.key_length": ("u32", D),
         f"{arch}.rope.freq_base": ("f32", 1e7), f"{arch}.attention.layer_norm_rms_epsilon": ("f32", 1e-6),
         f"{arch}.attention.sliding_window": ("u32", 8),
         f"{arch}.attention.sliding_window_pattern": [("bool", True), ("bool", False)]}
    if upstream:
        e |= {"dflash.block_size": ("u32", 16), "dflash.target_layers": [("i32", 2), ("i32", 6)],
              "tokenizer.ggml.mask_token_id": ("u32", 9), "tokenizer.ggml.tokens": ["a", "b"],
              "dflash.rope.scaling.type": "yarn", "dflash.rope.scaling.factor": ("f32", 64.0),
              "dflash.rope.scaling.original_context_length": ("u32", 512)}
        names = ("fc.weight", "enc.output_norm.weight", "output_norm.weight", "blk.%d.", GGUF_PARTS)
    else:
        e |= {f"{arch}.dflash.block_size": ("u32", 16), f"{arch}.dflash.mask_token_id": ("u32", 9),
              f"{arch}.dflash.target_layer_ids": [("i32", 1), ("i32", 5)], f"{arch}.attention.causal": ("bool", False)}
        names = ("dflash.fc.weight", "dflash.hidden_norm.weight", "output_norm.weight", "blk.%d.", GGUF_PARTS)
    return gguf(e, drafter_tensors(names))


def drafter_folder(nested):
    config = {"architectures": ["DFlashDraftModel"], "hidden_size": H, "num_hidden_layers": LAYERS, "head_dim": D,
              "num_attention_heads": Q, "rms_norm_eps": 1e-6, "layer_types": ["sliding_attention", "full_attention"],
              "sliding_window": 8, "use_sliding_window": True, "num_target_layers": 8,
              "dflash_config": {"mask_token_id": 9, "target_layer_ids": [1, 5]}}
    if nested:
        config["dflash_config"]["block_size"] = 16
        config["rope_parameters"] = {"rope_type": "yarn", "rope_theta": 1e7, "factor": 64.0,
                                     "original_max_position_embeddings": 512}
    else:
        config |= {"block_size": 16, "rope_theta": 1e7, "is_causal": False}
    names = ("fc.weight", "hidden_norm.weight", "norm.weight", "layers.%d.", HF_PARTS)
    return json.dumps(config).encode() + b"\0" + safetensors(drafter_tensors(names))


# One Gated DeltaNet layer, one attention layer, and an MTP block.
NK, NV, GD, V = 1, 2, 4, 4


def target_shapes(moe):
    channels, width = (2 * NK + NV) * GD, NV * GD
    ffn = [("ffn_gate", "mlp.gate_proj", [FF, H]), ("ffn_up", "mlp.up_proj", [FF, H]), ("ffn_down", "mlp.down_proj", [H, FF])]
    if moe:
        ffn = [("ffn_gate_inp", "mlp.gate", [2, H]), ("ffn_gate_inp_shexp", "mlp.shared_expert_gate", [1, H])]
        ffn += [(f"ffn_{p}_shexp", f"mlp.shared_expert.{p}_proj", s) for p, s in
                [("gate", [FF, H]), ("up", [FF, H]), ("down", [H, FF])]]
        ffn += [(f"ffn_{p}_exps", None, s) for p, s in [("gate", [2, FF, H]), ("up", [2, FF, H]), ("down", [2, H, FF])]]
    norms = [("attn_norm", "input_layernorm", [H]), ("post_attention_norm", "post_attention_layernorm", [H])]
    attention = [("attn_q", "self_attn.q_proj", [2 * Q * D, H]), ("attn_k", "self_attn.k_proj", [KV * D, H]),
                 ("attn_v", "self_attn.v_proj", [KV * D, H]), ("attn_output", "self_attn.o_proj", [H, Q * D]),
                 ("attn_q_norm", "self_attn.q_norm", [D]), ("attn_k_norm", "self_attn.k_norm", [D])]
    gdn = [("attn_qkv", "linear_attn.in_proj_qkv", [channels, H]), ("attn_gate", "linear_attn.in_proj_z", [width, H]),
           ("ssm_alpha", "linear_attn.in_proj_a", [NV, H]), ("ssm_beta", "linear_attn.in_proj_b", [NV, H]),
           ("ssm_conv1d", "linear_attn.conv1d", [channels, 4]), ("ssm_norm", "linear_attn.norm", [GD]),
           ("ssm_out", "linear_attn.out_proj", [H, width])]
    return norms + gdn + ffn, norms + attention + ffn


def target_gguf(moe):
    arch = "qwen35moe" if moe else "qwen35"
    e = {"general.architecture": arch}
    counts = {"block_count": 3, "context_length": 64, "embedding_length": H, "feed_forward_length": FF,
              "attention.head_count": Q, "attention.head_count_kv": KV, "attention.key_length": D,
              "attention.value_length": D, "rope.dimension_count": 2, "ssm.conv_kernel": 4, "ssm.state_size": GD,
              "ssm.group_count": NK, "ssm.time_step_rank": NV, "ssm.inner_size": NV * GD,
              "full_attention_interval": 2, "nextn_predict_layers": 1, "expert_count": 2, "expert_used_count": 1,
              "expert_feed_forward_length": FF, "expert_shared_feed_forward_length": FF}
    e |= {f"{arch}.{k}": ("u32", v) for k, v in counts.items()}
    e |= {f"{arch}.rope.freq_base": ("f32", 1e7), f"{arch}.attention.layer_norm_rms_epsilon": ("f32", 1e-6)}
    gdn, attention = target_shapes(moe)
    tensors = [("token_embd.weight", [V, H]), ("output_norm.weight", [H]), ("output.weight", [V, H])]
    for i, block in enumerate([gdn, attention, attention]):
        tensors += [(f"blk.{i}.{name}.weight", shape) for name, _, shape in block]
    tensors += [("blk.0.ssm_a", [NV]), ("blk.0.ssm_dt.bias", [NV]), ("blk.2.nextn.eh_proj.weight", [H, 2 * H])]
    tensors += [(f"blk.2.nextn.{n}.weight", [H]) for n in ("enorm", "hnorm", "shared_head_norm")]
    return gguf(e, tensors)


def target_folder(moe, prefix):
    config = {"hidden_size": H, "vocab_size": V, "num_hidden_layers": 2, "num_attention_heads": Q,
              "num_key_value_heads": KV, "head_dim": D, "intermediate_size": FF, "rms_norm_eps": 1e-6,
              "max_position_embeddings": 64, "layer_types": ["linear_attention", "full_attention"],
              "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.5}, "linear_conv_kernel_dim": 4,
              "linear_key_head_dim": GD, "linear_value_head_dim": GD, "linear_num_key_heads": NK,
              "linear_num_value_heads": NV, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": FF,
              "shared_expert_intermediate_size": FF}
    kind = "Qwen3_5Moe" if moe else "Qwen3_5"
    if prefix == "model.":
        config["architectures"] = [kind + "ForCausalLM"]
    else:
        config = {"architectures": [kind + "ForConditionalGeneration"], "text_config": config}
    gdn, attention = target_shapes(moe)
    tensors = [(prefix + "embed_tokens.weight", [V, H]), (prefix + "norm.weight", [H]), ("lm_head.weight", [V, H])]
    for i, block in enumerate([gdn, attention]):
        tensors += [(f"{prefix}layers.{i}.{name}.weight", shape) for _, name, shape in block if name]
        if moe:
            tensors += [(f"{prefix}layers.{i}.mlp.experts.gate_up_proj", [2, 2 * FF, H]),
                        (f"{prefix}layers.{i}.mlp.experts.down_proj", [2, H, FF])]
    tensors += [(prefix + "layers.0.linear_attn.A_log", [NV]), (prefix + "layers.0.linear_attn.dt_bias", [NV])]
    return json.dumps(config).encode() + b"\0" + safetensors(tensors)


def kept_state(tokens, drafts):
    """The file of a state but for its first line, which the fuzzer writes itself: it has a checksum."""
    pages = -(-tokens // 64)
    outline = {"committed": tokens, "kv": {"first": 0, "count": pages}, "drafts": drafts}
    pieces = [[f"{i:064x}", 4096] for i in range(pages + 3)]
    state = {"tokens": [i % 97 for i in range(tokens)], "outline": outline, "pieces": pieces}
    return b"\n" + json.dumps(state, separators=(",", ":")).encode()


def main():
    lookup = {"committed": 0, "caches": [], "pending": 0, "next_tokens": []}
    drafter = {"committed": 64, "caches": [{"first": 0, "count": 1}], "pending": 6, "next_tokens": [1, 2, 3, 4, 5]}
    ggufs = {arch: drafter_gguf(arch) for arch in ("dflash", "dflash-draft", "qwen35-dflash-draft")}
    seeds = {
        "gguf_header": {"dflash": ggufs["dflash"], "target": target_gguf(False), "bare": gguf({"a": ("bool", True)}, [("x", [2])])},
        "safetensors_index": {
            "index": json.dumps({"metadata": {"total_size": 8}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}).encode(),
            "file": safetensors([("a", [2, 3]), ("b", [4])]),
        },
        "target_config": {"dense": target_gguf(False), "moe": target_gguf(True), "folder": target_folder(False, "model."),
                          "multimodal": target_folder(True, "model.language_model.")},
        "drafter_config": ggufs | {"flat": drafter_folder(False), "nested": drafter_folder(True),
                                   "bare": b"\0" + drafter_folder(True).split(b"\0", 1)[1]},
    }
    seeds["kept_state"] = {"plain": kept_state(3, [lookup]), "mtp": kept_state(70, [drafter, lookup]),
                           "unasked": kept_state(130, [None, lookup]), "none": kept_state(64, [])}
    for target, files in seeds.items():
        folder = ROOT / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()

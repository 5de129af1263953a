"""A GGUF of a small Qwen3.5 model as the Hugging Face folder it could have come from, in floats.

usage: floats.py TARGET.gguf OUT

The numbers are those that PyPI's `gguf` decodes. OUT gets `config.json` and `model.safetensors`; `forerun tokenizer`
writes what else such a folder has.
"""
import json
import pathlib
import sys

import gguf
import numpy as np

# Norms are stored one less than they multiply by.
NORMS = {"attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
         "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
PLAIN = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ssm_norm": "linear_attn.norm", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
DRAFT = {"nextn.enorm": "mtp.pre_fc_norm_embedding", "nextn.hnorm": "mtp.pre_fc_norm_hidden",
         "nextn.shared_head_norm": "mtp.norm"}


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.said = {key.removeprefix("qwen35."): field.contents() for key, field in reader.fields.items()
                     if key.startswith("qwen35.") or key.startswith("tokenizer.ggml.eos")}
        self.tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
        self.layers = self.said["block_count"] - self.said.get("nextn_predict_layers", 0)

    def grouped(self, values, axis=0):
        """Value heads in Hugging Face's order, by key heads; queries and keys before them stay."""
        heads, keys = self.said["ssm.time_step_rank"], self.said["ssm.group_count"]
        inner, size = self.said["ssm.inner_size"], values.shape[axis]
        unit = 1 if size == heads else inner // heads
        before = size - heads * unit
        places = np.arange(heads * unit).reshape(heads // keys, keys, unit).swapaxes(0, 1).ravel()
        return values.take(np.concatenate([np.arange(before), before + places]), axis)

    def renamed(self, name, values):
        whole = {"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight"}
        if name in whole:
            return whole[name], values
        if name == "output_norm.weight":
            return "model.norm.weight", values - 1
        _, index, part = name.split(".", 2)
        block = f"model.layers.{index}" if int(index) < self.layers else "mtp.layers.0"
        stem = part.removesuffix(".weight")
        if stem == "nextn.eh_proj":
            return "mtp.fc.weight", values
        if stem in DRAFT:
            return f"{DRAFT[stem]}.weight", values - 1
        if stem in NORMS:
            return f"{block}.{NORMS[stem]}.weight", values - 1
        if stem in PLAIN:
            return f"{block}.{PLAIN[stem]}.weight", values
        name, values = {
            "attn_qkv": lambda: ("in_proj_qkv.weight", self.grouped(values)),
            "attn_gate": lambda: ("in_proj_z.weight", self.grouped(values)),
            "ssm_alpha": lambda: ("in_proj_a.weight", self.grouped(values)),
            "ssm_beta": lambda: ("in_proj_b.weight", self.grouped(values)),
            "ssm_conv1d": lambda: ("conv1d.weight", self.grouped(values)[:, None]),
            "ssm_dt.bias": lambda: ("dt_bias", self.grouped(values)),
            "ssm_a": lambda: ("A_log", np.log(-self.grouped(values))),
            "ssm_out": lambda: ("out_proj.weight", self.grouped(values, axis=1)),
        }[stem]()
        return f"{block}.linear_attn.{name}", values

    def config(self):
        said, interval = self.said, self.said["full_attention_interval"]
        kinds = ["full_attention" if i % interval == 0 else "linear_attention" for i in range(1, self.layers + 1)]
        return {
            "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_act": "silu",
            "vocab_size": len(self.tensors["token_embd.weight"]), "hidden_size": said["embedding_length"],
            "intermediate_size": said["feed_forward_length"], "num_hidden_layers": self.layers,
            "num_attention_heads": said["attention.head_count"],
            "num_key_value_heads": said["attention.head_count_kv"], "head_dim": said["attention.key_length"],
            "max_position_embeddings": said["context_length"], "tie_word_embeddings": False,
            "rms_norm_eps": round(said["attention.layer_norm_rms_epsilon"], 12),
            "rope_parameters": {"rope_type": "default", "rope_theta": said["rope.freq_base"],
                                "partial_rotary_factor": said["rope.dimension_count"] / said["attention.key_length"]},
            "linear_conv_kernel_dim": said["ssm.conv_kernel"], "linear_key_head_dim": said["ssm.state_size"],
            "linear_value_head_dim": said["ssm.inner_size"] // said["ssm.time_step_rank"],
            "linear_num_key_heads": said["ssm.group_count"], "linear_num_value_heads": said["ssm.time_step_rank"],
            "layer_types": kinds, "mtp_num_hidden_layers": said.get("nextn_predict_layers", 0),
            "eos_token_id": said["tokenizer.ggml.eos_token_id"], "dtype": "float32",
        }

    def write(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        header, parts, end = {}, [], 0
        for name, values in self.tensors.items():
            name, values = self.renamed(name, values)
            parts.append(np.ascontiguousarray(values, dtype="<f4").tobytes())
            start, end = end, end + len(parts[-1])
            header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [start, end]}
        head = json.dumps(header).encode()
        head += b" " * (-len(head) % 8)
        (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + b"".join(parts))
        (folder / "config.json").write_text(json.dumps(self.config(), indent=1))


if __name__ == "__main__":
    Model(sys.argv[1]).write(pathlib.Path(sys.argv[2]))

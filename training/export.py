"""Writes the trained models as Hugging Face folders, OUT/target and OUT/draft."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from vocabulary import END_OF_TEXT, END_OF_TURN

# The GDN parameters that Qwen3.5 checkpoints keep in float32.
FLOAT32 = ("A_log", "dt_bias", "linear_attn.norm")
TOKENIZER_CONFIG = {
    "add_bos_token": False,
    "add_prefix_space": False,
    "bos_token": None,
    "clean_up_tokenization_spaces": False,
    "eos_token": "<|im_end|>",
    "errors": "replace",
    "model_max_length": 32768,
    "pad_token": "<|endoftext|>",
    "split_special_tokens": False,
    "tokenizer_class": "Qwen2Tokenizer",
    "unk_token": None,
}
# What the library writes beside the shape of a model.
NOT_SHAPE = {
    "_name_or_path",
    "attention_dropout",
    "bos_token_id",
    "chunk_size_feed_forward",
    "id2label",
    "initializer_range",
    "is_encoder_decoder",
    "label2id",
    "max_window_layers",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "problem_type",
    "return_dict",
    "transformers_version",
}
GENERATION_CONFIG = {"eos_token_id": [END_OF_TURN, END_OF_TEXT], "temperature": 1.0, "top_p": 0.95, "top_k": 20}


def export_target(folder, target, mtp, tokenizer):
    folder.mkdir(parents=True, exist_ok=True)
    tensors = stored(target.state_dict())
    config = described(target.config, type(target).__name__)
    # Where readers older than `rope_parameters` look for it.
    config["partial_rotary_factor"] = config["rope_parameters"]["partial_rotary_factor"]
    if mtp is not None:
        tensors |= {"mtp." + name: tensor for name, tensor in stored(mtp.state_dict()).items()}
        config["mtp_num_hidden_layers"] = 1
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", GENERATION_CONFIG)
    template = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    write_json(folder / "tokenizer_config.json", TOKENIZER_CONFIG | {"chat_template": template})
    tokenizer.save(str(folder / "tokenizer.json"))


def export_drafter(folder, drafter, architecture="DFlashDraftModel"):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(stored(drafter.state_dict()), folder / "model.safetensors", {"format": "pt"})
    config = described(drafter.config, architecture)
    config.pop("eos_token_id", None)  # the target's
    if drafter.config.sliding_window:
        # Without this word sliding layers are taken to be causal inside a block; these were not trained so.
        config["is_causal"] = False
    write_json(folder / "config.json", config)


def described(config, architecture):
    shape = {key: value for key, value in config.to_dict().items() if key not in NOT_SHAPE}
    return shape | {"architectures": [architecture], "dtype": "bfloat16"}


def stored(state):
    def kind(name):
        return torch.float32 if any(part in name for part in FLOAT32) else torch.bfloat16

    return {name: tensor.to(kind(name)).contiguous().cpu() for name, tensor in state.items()}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")

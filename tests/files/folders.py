"""Quantised Hugging Face folders of a small model, made by the packages that people make them with.

usage: folders.py MODEL OUT AUTOAWQ AUTO_GPTQ

MODEL is a Hugging Face folder in floats, as floats.py writes it. OUT gets a folder a scheme, and beside it
`NAME.plain`: the same model as the numbers that the package itself reads in it. AUTOAWQ and AUTO_GPTQ as in packages.py.
"""
import json
import pathlib
import shutil
import sys

import torch
from compressed_tensors.compressors import ModelCompressor, decompress_module
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
from packages import Awq, Gptq
from safetensors.torch import load_file, save_file

PRESETS = ["FP8_BLOCK", "FP8_DYNAMIC", "FP8", "NVFP4A16", "MXFP4A16", "W4A16", "W4A16_ASYM", "W8A16", "W8A8"]


def is_quantised(name, tensor):
    """What such folders quantise: the large projections. Gates of Gated DeltaNet and heads stay as they are."""
    return name.endswith("_proj.weight") and tensor.ndim == 2 and min(tensor.shape) >= 128


class Maker:
    def __init__(self, model, out):
        self.model, self.out = pathlib.Path(model), pathlib.Path(out)
        # As published folders have them.
        self.tensors = {k: t.bfloat16() for k, t in load_file(self.model / "model.safetensors").items()}
        self.config = json.loads((self.model / "config.json").read_text())
        self.kept = [n.removesuffix(".weight") for n, t in self.tensors.items()
                     if t.ndim == 2 and n.endswith(".weight") and not is_quantised(n, t) and "embed" not in n]

    def write(self, name, config, tensors):
        folder = self.out / name
        folder.mkdir(parents=True, exist_ok=True)
        for file in self.model.iterdir():
            if file.suffix in (".json", ".jinja") and file.name != "config.json":
                shutil.copy(file, folder)
        said = self.config if config is None else {**self.config, "quantization_config": config}
        (folder / "config.json").write_text(json.dumps(said, indent=1))
        save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")

    def each(self, name, config, quantise):
        """Every large projection by itself; `quantise` gives its tensors and the numbers they stand for."""
        stored, plain = {}, {}
        for key, tensor in self.tensors.items():
            if not is_quantised(key, tensor):
                stored[key], plain[key] = tensor, tensor.float()
                continue
            parts, numbers = quantise(tensor.float())
            assert torch.nn.functional.cosine_similarity(numbers.ravel(), tensor.float().ravel(), dim=0) > 0.95, key
            stored.update({f"{key.removesuffix('weight')}{part}": t for part, t in parts.items()})
            plain[key] = numbers.float()
        self.write(name, config, stored)
        self.write(f"{name}.plain", None, plain)


def tree(tensors):
    """Modules of these names: linear layers where they are matrices."""
    root = torch.nn.Module()
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        module = root
        for i, part in enumerate(path):
            if part not in module._modules:
                leaf = i == len(path) - 1 and last == "weight" and tensor.ndim == 2 and "embed" not in name
                child = torch.nn.Linear(*tensor.shape[::-1], bias=False) if leaf else torch.nn.Module()
                module.add_module(part, child)
            module = module._modules[part]
        module.register_parameter(last, torch.nn.Parameter(tensor.clone(), requires_grad=False))
    return root


def extremes(weight, args):
    """Least and largest of what shares a scale."""
    rows, cols = weight.shape
    strategy = str(getattr(args.strategy, "value", args.strategy))
    if strategy == "tensor":
        return weight.min(), weight.max()
    if strategy == "channel":
        return weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    if strategy == "block":
        high, wide = args.block_structure
        squares = weight.reshape(rows // high, high, cols // wide, wide)
        return squares.amin((1, 3)), squares.amax((1, 3))
    groups = weight.reshape(rows, cols // args.group_size, args.group_size)
    return groups.amin(2), groups.amax(2)


def by_compressed_tensors(maker, preset):
    model = tree(maker.tensors)
    scheme = preset_name_to_scheme(preset, ["Linear"])
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=maker.kept)
    apply_quantization_config(model, config)
    quantised = {n: m for n, m in model.named_modules() if getattr(m, "quantization_scheme", None)}
    assert quantised, preset
    for module in quantised.values():
        args, weight = module.quantization_scheme.weights, module.weight.data
        whole = None
        if hasattr(module, "weight_global_scale"):
            whole = generate_gparam(weight.min().float(), weight.max().float())
            module.weight_global_scale.data = whole
        least, most = extremes(weight.float(), args)
        scale, zero = calculate_qparams(least, most, args, whole)
        module.weight_scale.data = scale.to(module.weight_scale.dtype).reshape(module.weight_scale.shape)
        if hasattr(module, "weight_zero_point"):
            module.weight_zero_point.data = zero.to(module.weight_zero_point.dtype).reshape(module.weight_scale.shape)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    name = f"compressed-tensors-{preset}"
    maker.write(name, None, model.state_dict())
    compressor.update_config(maker.out / name)
    plain = {key: tensor.float() for key, tensor in maker.tensors.items()}
    for key, module in quantised.items():
        # As floats, so that what is decoded is not rounded to bfloat16.
        if module.weight_scale.dtype in (torch.bfloat16, torch.float16):
            module.weight_scale.data = module.weight_scale.data.float()
        if preset == "NVFP4A16":
            # Its own decoder rounds to bfloat16; what it unpacks is the same without that.
            packed = module.weight_packed.data
            codes = unpack_fp4_from_uint8(packed, packed.shape[0], 2 * packed.shape[1], torch.float32)
            scales = module.weight_scale.float() / module.weight_global_scale
            plain[f"{key}.weight"] = codes * scales.repeat_interleave(16, 1)
            continue
        decompress_module(module)
        plain[f"{key}.weight"] = module.weight.data.float()
    maker.write(f"{name}.plain", None, plain)


def fp8_squares(weight):
    high, wide = weight.shape[0] // 128, weight.shape[1] // 128
    scale = weight.reshape(high, 128, wide, 128).abs().amax((1, 3)) / 448
    spread = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    codes = (weight / spread).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scale}, codes.float() * spread


def by_modelopt(weight):
    codes, scale, whole = NVFP4QTensor.quantize(weight, 16)
    numbers = codes.dequantize(torch.float32, scale=scale.float(), double_scale=whole, block_sizes={-1: 16})
    return {"weight": codes._quantized_data, "weight_scale": scale, "weight_scale_2": whole,
            "input_scale": torch.tensor(0.01)}, numbers


def groups_of(weight, group, symmetric):
    """Scales in f16 and zeros of groups, [groups, rows], as AWQ and GPTQ choose them."""
    sets = weight.reshape(weight.shape[0], -1, group)
    if symmetric:
        scale = sets.abs().amax(2) / 7
        zero = torch.full_like(scale, 8)
    else:
        low, high = sets.amin(2).clamp(max=0), sets.amax(2).clamp(min=0)
        scale = (high - low) / 15
        zero = (-low / scale).round().clamp(1, 15)
    return scale.half().float(), zero


def by_awq(awq, weight, group=128):
    scale, zero = groups_of(weight, group, symmetric=False)
    codes = (weight / scale.repeat_interleave(group, 1) + zero.repeat_interleave(group, 1)).round().clamp(0, 15)

    def packed(matrix):
        words = torch.zeros((matrix.shape[0], matrix.shape[1] // 8), dtype=torch.int64)
        for place, row in enumerate(awq.packing.AWQ_ORDER):
            words |= matrix[:, row::8].long() << (4 * place)
        return words.to(torch.uint32).view(torch.int32)

    parts = {"qweight": packed(codes.T), "qzeros": packed(zero.T), "scales": scale.T.half()}
    return parts, awq.read(parts, group)


def by_gptq(gptq, weight, group, symmetric):
    scale, zero = groups_of(weight, group, symmetric)
    linear = torch.nn.Linear(*weight.shape[::-1], bias=False)
    linear.weight.data = weight
    codes = (weight / scale.repeat_interleave(group, 1) + zero.repeat_interleave(group, 1)).round().clamp(0, 15)
    linear.weight.data = (codes - zero.repeat_interleave(group, 1)) * scale.repeat_interleave(group, 1)
    layer = gptq.layer(group, *weight.shape)
    layer.pack(linear, scale, zero.clone(), layer.g_idx)
    parts = {"qweight": layer.qweight, "qzeros": layer.qzeros, "scales": layer.scales.half(), "g_idx": layer.g_idx}
    return parts, gptq.read(parts, group)


def main():
    model, out, awq, gptq = sys.argv[1:5]
    awq, gptq, maker = Awq(awq), Gptq(gptq), Maker(model, out)
    with torch.no_grad():
        for preset in PRESETS:
            by_compressed_tensors(maker, preset)
        maker.each("fp8-squares", {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                   "weight_block_size": [128, 128], "modules_to_not_convert": maker.kept}, fp8_squares)
        maker.each("modelopt-nvfp4", {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": maker.kept,
                                      "producer": {"name": "modelopt"}}, by_modelopt)
        maker.each("awq", {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
                           "modules_to_not_convert": maker.kept}, lambda w: by_awq(awq, w))
        for group, symmetric in ((128, True), (32, False)):
            config = {"quant_method": "gptq", "bits": 4, "group_size": group, "sym": symmetric, "desc_act": False}
            maker.each(f"gptq-{group}", config, lambda w: by_gptq(gptq, w, group, symmetric))


main()

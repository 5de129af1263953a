#!/usr/bin/env python3
"""Makes crates/checkpoint/tests/vectors/folders.json: what the packages that write quantised folders read in them.

usage: make-folder-vectors.py AUTOAWQ AUTO_GPTQ

Every tensor is filled from one rule, which the test has too, so that only what it decodes to is kept. compressed-tensors
and modelopt decode with their own code; AUTOAWQ and AUTO_GPTQ are folders as in tests/files/packages.py. Made with
torch 2.15.0, compressed-tensors 0.20.0, nvidia-modelopt 0.47.0, autoawq 0.2.9 and auto-gptq 0.7.1.
"""
import json
import pathlib
import sys

import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.config import CompressionFormat
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from modelopt.torch.quantization.qtensor.fp8_tensor import FP8QTensor
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

HOUSE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HOUSE / "tests/files"))
from packages import Awq, Gptq  # noqa: E402

OUT = HOUSE / "crates/checkpoint/tests/vectors/folders.json"
TYPES = {"F8_E4M3": torch.float8_e4m3fn, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
         "I32": torch.int32, "I8": torch.int8, "U8": torch.uint8, "I64": torch.int64}


def mix(seed, count):
    """`count` numbers of splitmix64; the test has the same."""
    z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def fill(seed, dtype, shape):
    """A tensor of random numbers; floats are positive and of a sane size, 8-bit ones no NaN."""
    numbers = mix(seed, int(np.prod(shape)))
    bits = {
        "F32": lambda: (numbers & np.uint64(0x7FFFFF) | np.uint64(0x3C000000)).astype("<u4"),
        "F16": lambda: (numbers & np.uint64(0x7FF) | np.uint64(0x2000)).astype("<u2"),
        "BF16": lambda: (numbers & np.uint64(0x7F) | np.uint64(0x3C00)).astype("<u2"),
        "I32": lambda: (numbers & np.uint64(0xFFFFFFFF)).astype("<u4"),
        "F8_E4M3": lambda: (numbers & np.uint64(0xF7)).astype("u1"),
        "I8": lambda: (numbers & np.uint64(0xFF)).astype("u1"),
        "U8": lambda: (numbers & np.uint64(0xFF)).astype("u1"),
    }[dtype]()
    return torch.from_numpy(bits.view(bits.dtype)).view(TYPES[dtype]).reshape(shape)


def exponents(seed, shape):
    """Powers of two from 2^-16 to 2^15."""
    return torch.from_numpy(((mix(seed, int(np.prod(shape))) & np.uint64(31)) + np.uint64(111)).astype("u1")).reshape(shape)


def exact(scale, factor):
    """A product that is rounded once."""
    return (scale.double() * factor.double()).float()


def check(numbers, package, rounding=2**-23):
    """What a package's own code gives in its own order of products is the same up to two roundings."""
    assert torch.allclose(numbers, package.float(), rtol=2 * rounding, atol=0), (numbers, package)
    return numbers


def by_compressed_tensors(preset, format, given, **change):
    scheme = preset_name_to_scheme(preset, ["Linear"])
    scheme = QuantizationScheme(**{**scheme.model_dump(), "input_activations": scheme.input_activations})
    for name, value in change.items():
        setattr(scheme.weights, name, value)
    compressor = BaseCompressor.get_value_from_registry(CompressionFormat(format).value)
    # Scales as floats, so that products are not rounded to bfloat16.
    floats = {k: v.float() if v.dtype in (torch.bfloat16, torch.float16) else v for k, v in given.items()}
    return compressor.decompress(floats, scheme)["weight"].float()


class Vectors:
    def __init__(self):
        self.lines = []

    def add(self, scheme, config, tensors, decode):
        """`tensors` are names to (dtype, shape), or to fixed numbers."""
        given, kept = {}, []
        for name, (dtype, shape, *fixed) in tensors.items():
            seed = len(self.lines) * 100 + len(kept)
            if fixed:
                given[name] = torch.tensor(fixed[0], dtype=TYPES[dtype]).reshape(shape)
            elif name == "weight_scale" and dtype == "U8":
                given[name] = exponents(seed, shape)
            else:
                given[name] = fill(seed, dtype, shape)
            kept.append({"name": name, "dtype": dtype, "shape": list(shape), **({"values": fixed[0]} if fixed else {})})
        # A zero's sign is nobody's: ggml's MXFP4 has none.
        numbers = decode(given).contiguous() + 0.0
        bits = numbers.numpy().view("<u4").astype(np.uint64).ravel()
        digest = int((bits * mix(0, bits.size)).sum())
        self.lines.append({"scheme": scheme, "config": config, "tensors": kept, "shape": list(numbers.shape),
                           "first": numbers.ravel()[:8].tolist(), "digest": f"{digest:016x}"})


def squares(t, scale):
    return t["weight"].float() * t[scale].repeat_interleave(128, 0).repeat_interleave(128, 1)[:t["weight"].shape[0]]


def fp8(vectors):
    codes = ("F8_E4M3", (136, 256))
    # The layout that Qwen's and DeepSeek's own FP8 folders have: torch's float8 times the scale of its square.
    vectors.add("fp8 squares", {"quant_method": "fp8", "weight_block_size": [128, 128]},
                {"weight": codes, "weight_scale_inv": ("BF16", (2, 2))}, lambda t: squares(t, "weight_scale_inv"))
    ct = {"quant_method": "compressed-tensors"}
    vectors.add("compressed-tensors FP8_BLOCK", ct, {"weight": codes, "weight_scale": ("BF16", (2, 2))},
                lambda t: check(squares(t, "weight_scale"), by_compressed_tensors(
                    "FP8_BLOCK", "float-quantized", {**t, "weight": padded(t["weight"])})[:136]))
    codes = ("F8_E4M3", (16, 256))
    vectors.add("compressed-tensors FP8_DYNAMIC", ct, {"weight": codes, "weight_scale": ("BF16", (16, 1))},
                lambda t: by_compressed_tensors("FP8_DYNAMIC", "float-quantized", t))
    vectors.add("compressed-tensors FP8", ct, {"weight": codes, "weight_scale": ("BF16", (1,))},
                lambda t: by_compressed_tensors("FP8", "float-quantized", t))
    vectors.add("modelopt FP8", {"quant_method": "modelopt", "quant_algo": "FP8"},
                {"weight": codes, "weight_scale": ("F32", ())},
                lambda t: FP8QTensor(t["weight"].shape, torch.float32, t["weight"]).dequantize(
                    torch.float32, scale=t["weight_scale"], block_sizes=None))


def padded(weight):
    """To whole squares, as its compressor wants it."""
    whole = torch.zeros((256, 256), dtype=weight.dtype)
    whole[:weight.shape[0]] = weight
    return whole


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
# A zero has a sign that a product keeps.
E2M1[8] = -0.0


def small(codes, scales, each):
    """Codes times the scales of their groups, which is exact."""
    numbers = torch.stack([E2M1[(codes & 15).long()], E2M1[(codes >> 4).long()]], dim=-1).reshape(codes.shape[0], -1)
    return numbers * scales.repeat_interleave(each, 1)


def fp4(vectors):
    def modelopt(t):
        own = NVFP4QTensor((16, 256), torch.float32, t["weight"]).dequantize(
            torch.float32, scale=t["weight_scale"].float(), double_scale=t["weight_scale_2"], block_sizes={-1: 16})
        return check(exact(t["weight_scale_2"], small(t["weight"], t["weight_scale"].float(), 16)), own)

    def compressed(t):
        own = by_compressed_tensors("NVFP4A16", "nvfp4-pack-quantized", t)
        inverse = 1 / t["weight_global_scale"]
        # Its own code computes in bfloat16.
        return check(exact(inverse, small(t["weight_packed"], t["weight_scale"].float(), 16)), own, 2**-8)

    scales = ("F8_E4M3", (16, 16))
    vectors.add("modelopt NVFP4", {"quant_method": "modelopt", "quant_algo": "NVFP4"},
                {"weight": ("U8", (16, 128)), "weight_scale": scales, "weight_scale_2": ("F32", ())}, modelopt)
    ct = {"quant_method": "compressed-tensors"}
    vectors.add("compressed-tensors NVFP4", ct, {"weight_packed": ("U8", (16, 128)), "weight_scale": scales,
                                                 "weight_global_scale": ("F32", (1,))}, compressed)
    vectors.add("compressed-tensors MXFP4", ct, {"weight_packed": ("U8", (16, 128)), "weight_scale": ("U8", (16, 8))},
                lambda t: by_compressed_tensors("MXFP4A16", "mxfp4-pack-quantized", t))


def integers(vectors, awq, gptq):
    ct = {"quant_method": "compressed-tensors"}
    for group in (32, 64, 128):
        vectors.add(f"compressed-tensors W4A16 {group}", ct,
                    {"weight_packed": ("I32", (16, 32)), "weight_scale": ("BF16", (16, 256 // group)),
                     "weight_shape": ("I64", (2,), [16, 256])},
                    lambda t: by_compressed_tensors("W4A16", "pack-quantized", t, group_size=group))
    vectors.add("compressed-tensors W4A16_ASYM", ct,
                {"weight_packed": ("I32", (16, 32)), "weight_scale": ("BF16", (16, 2)),
                 "weight_zero_point": ("I32", (2, 2)), "weight_shape": ("I64", (2,), [16, 256])},
                lambda t: by_compressed_tensors("W4A16_ASYM", "pack-quantized", t))
    vectors.add("compressed-tensors W8A16", ct,
                {"weight_packed": ("I32", (16, 64)), "weight_scale": ("BF16", (16, 1)),
                 "weight_shape": ("I64", (2,), [16, 256])},
                lambda t: by_compressed_tensors("W8A16", "pack-quantized", t))
    vectors.add("compressed-tensors W8A8", ct, {"weight": ("I8", (16, 256)), "weight_scale": ("BF16", (16, 1))},
                lambda t: by_compressed_tensors("W8A8", "int-quantized", t))
    for group in (32, 128):
        vectors.add(f"awq {group}", {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True,
                                     "version": "gemm"},
                    {"qweight": ("I32", (256, 4)), "qzeros": ("I32", (256 // group, 4)),
                     "scales": ("F16", (256 // group, 32))},
                    lambda t: awq.read(t, group))
    for group in (32, 128):
        # Words whose zeros are 8, as symmetric folders have them, and words of every zero from 1 to 15.
        words = [0x77777777, 0x00234567, 0x65432100, 0x0E0D0C0B] * (256 // group)
        vectors.add(f"gptq {group}", {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": False},
                    {"qweight": ("I32", (32, 32)), "qzeros": ("I32", (256 // group, 4), words),
                     "scales": ("F16", (256 // group, 32))}, lambda t: gptq.read(t, group))


def main():
    np.seterr(all="ignore")
    awq, gptq = Awq(sys.argv[1]), Gptq(sys.argv[2])
    vectors = Vectors()
    with torch.no_grad():
        fp8(vectors)
        fp4(vectors)
        integers(vectors, awq, gptq)
    OUT.write_text("[\n" + ",\n".join(json.dumps(line) for line in vectors.lines) + "\n]\n")


main()

#!/usr/bin/env python3
"""Makes crates/formats/tests/vectors with the `gguf` package (decoding) and files that ggml wrote (encoding).

usage: make-block-vectors.py [TARGET_BF16.gguf TARGET_Q8_0.gguf TARGET_Q4_K_M.gguf]

Without the files only decode.txt is made, which is all that a new type needs. `pip install gguf ml_dtypes` brings the
packages; what Hugging Face folders have is decoded here, by ml_dtypes and numpy, from the layout of our own blocks.
"""
import pathlib
import sys

import gguf
import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize

OUT = pathlib.Path(__file__).parent.parent / "crates/formats/tests/vectors"
TYPES = ("F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S "
         "IQ4_XS IQ1_M TQ1_0 TQ2_0 MXFP4 NVFP4").split()
OWN = {"FP8": (1000, 128, 132), "FP4": (1001, 128, 76), "INT4": (1002, 128, 68), "INT4_32": (1003, 32, 20),
       "INT8": (1004, 128, 132)}  # number, elements and bytes of a block
ELEMENTS = 1 << 17  # decoded per type for its hash


def mix(seed, count):
    """`count` numbers of splitmix64; the test has the same."""
    z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def pairs(data):
    """Nibbles, the low one first."""
    return np.stack([data & 15, data >> 4], axis=-1).reshape(len(data), -1)


def decode_own(name, data):
    """Our own types: a scale of four bytes, then as the structs of crates/formats/src/blocks say."""
    word, rest = data[:, :4].copy().view("<u4"), data[:, 4:].copy()
    scale = word.view("<f4")
    if name == "FP8":
        return scale * rest.view(ml_dtypes.float8_e4m3fn).astype("<f4")
    if name == "INT8":
        return scale * rest.view(np.int8).astype("<f4")
    if name == "FP4":
        small = rest[:, :8].view(ml_dtypes.float8_e4m3fn).astype("<f4").repeat(16, axis=1)
        numbers = pairs(rest[:, 8:]).view(ml_dtypes.float4_e2m1fn).astype("<f4")
        return scale * (small * numbers)
    scale = (word & np.uint32(0xFFFFE000)).view("<f4")
    return scale * (pairs(rest).astype("<f4") - (word & np.uint32(31)).astype("<f4"))


def decode(name, data):
    values = (decode_own(name, data) if name in OWN else dequantize(data, Type[name])).astype("<f4").ravel()
    bits = values.view("<u4").copy()
    bits[np.isnan(values)] = 0x7FC00000  # one NaN for all
    return bits


def rows(path):
    return {t.name: t for t in gguf.GGUFReader(path).tensors}


def main():
    np.seterr(all="ignore")
    OUT.mkdir(exist_ok=True)
    lines = []
    for name in [*TYPES, *OWN]:
        number, length, size = OWN.get(name) or (int(Type[name]), *gguf.GGML_QUANT_SIZES[Type[name]])
        data = mix(number, ELEMENTS // length * size // 8).view(np.uint8)
        bits = decode(name, data.reshape(-1, size))
        digest = int((bits.astype(np.uint64) * mix(0, ELEMENTS)).sum())
        first = max(32 // length, 1)  # blocks spelled out, for whoever has to find a fault
        spelled = data[:first * size].tobytes().hex(), bits[:first * length].tobytes().hex()
        lines.append(f"{name} {digest:016x} {' '.join(spelled)}")
    (OUT / "decode.txt").write_text("\n".join(lines) + "\n")

    if len(sys.argv) == 1:
        return
    bf16, q8_0, q4_k_m = map(rows, sys.argv[1:4])
    files = {"bf16": b"", "q8_0": b"", "q4_k": b"", "q6_k": b""}
    for kind in ("Q4_K", "Q6_K"):
        names = [t.name for t in q4_k_m.values() if t.tensor_type.name == kind and t.n_elements >= 1 << 16]
        for i in range(24):  # one block of 256 from each of 24 places
            name = names[i * len(names) // 24]
            at = i * 7919 % (int(bf16[name].n_elements) // 256)
            take = lambda tensor, size: tensor.data.reshape(-1).view(np.uint8)[at * size:(at + 1) * size].tobytes()
            files["bf16"] += take(bf16[name], 512)
            files["q8_0"] += take(q8_0[name], 8 * 34)
            files[kind.lower()] += take(q4_k_m[name], gguf.GGML_QUANT_SIZES[Type[kind]][1])
    for suffix, data in files.items():
        (OUT / f"weights.{suffix}").write_bytes(data)


main()

"""GGUFs of a small model in the types that llama.cpp's quantiser makes, and what llama.cpp writes with each.

usage: peers.py LIBRARIES TARGET.gguf OUT

LIBRARIES is the folder with `libllama` that npm's `@node-llama-cpp/linux-x64` brings (`bins/linux-x64`). OUT gets
NAME.gguf and NAME.ids: a prompt's ids, then those that llama.cpp continues it with, each the likeliest. It writes with
the numbers that it decodes itself from the file, as F32: its own products round activations, which in files of one or
two bits decides between tokens that are nearly as likely.
"""
import ctypes as c
import json
import pathlib
import sys

import gguf
import numpy as np
import nvfp4

# llama.cpp's numbers of its mixtures of types. Those from `WANTING` are made with an importance matrix only.
MIXTURES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11,
            "Q3_K_M": 12, "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18,
            "IQ2_XXS": 19, "IQ2_XS": 20, "Q2_K_S": 21, "IQ3_XS": 22, "IQ3_XXS": 23, "IQ1_S": 24, "IQ4_NL": 25,
            "IQ3_S": 26, "IQ3_M": 27, "IQ2_S": 28, "IQ2_M": 29, "IQ4_XS": 30, "IQ1_M": 31, "BF16": 32, "TQ1_0": 36,
            "TQ2_0": 37, "MXFP4": 38}
WANTING = {"IQ2_XXS", "IQ2_XS", "Q2_K_S", "IQ3_XS", "IQ3_XXS", "IQ1_S", "IQ2_S", "IQ2_M", "IQ1_M"}
WRITTEN = 24


class Settings(c.Structure):
    _fields_ = [("nthread", c.c_int32), ("ftype", c.c_int), ("output_type", c.c_int), ("embedding_type", c.c_int),
                *[(name, c.c_bool) for name in ("allow_requantize", "quantize_output", "only_copy", "pure",
                                                "keep_split", "dry_run")],
                *[(name, c.c_void_p) for name in ("imatrix", "overrides", "types", "prune")]]


class Importance(c.Structure):
    _fields_ = [("name", c.c_char_p), ("data", c.POINTER(c.c_float)), ("size", c.c_size_t)]


class Opaque(c.Structure):
    """Parameters that stay as llama.cpp sets them: room enough for any version's."""
    _fields_ = [("bytes", c.c_uint64 * 64)]


class Batch(c.Structure):
    _fields_ = [("count", c.c_int32), ("tokens", c.POINTER(c.c_int32)), ("rest", c.c_void_p * 5)]


def libraries(folder):
    folder = pathlib.Path(folder).resolve()
    c.CDLL(str(folder / "libggml-base.so"), mode=c.RTLD_GLOBAL)
    ggml = c.CDLL(str(next(folder.glob("libggml.*so"))), mode=c.RTLD_GLOBAL)
    llama = c.CDLL(str(next(folder.glob("libllama.*so"))), mode=c.RTLD_GLOBAL)
    ggml.ggml_backend_load_all_from_path(str(folder).encode())
    llama.llama_backend_init()
    llama.llama_model_quantize_default_params.restype = Settings
    for name in ("llama_model_default_params", "llama_context_default_params"):
        getattr(llama, name).restype = Opaque
    llama.llama_model_load_from_file.argtypes = [c.c_char_p, Opaque]
    llama.llama_init_from_model.argtypes = [c.c_void_p, Opaque]
    for name in ("llama_model_load_from_file", "llama_init_from_model", "llama_model_get_vocab"):
        getattr(llama, name).restype = c.c_void_p
    for name in ("llama_model_get_vocab", "llama_free", "llama_model_free", "llama_vocab_n_tokens"):
        getattr(llama, name).argtypes = [c.c_void_p]
    llama.llama_tokenize.argtypes = [c.c_void_p, c.c_char_p, c.c_int32, c.POINTER(c.c_int32), c.c_int32, c.c_bool, c.c_bool]
    llama.llama_set_n_threads.argtypes = [c.c_void_p, c.c_int32, c.c_int32]
    llama.llama_batch_get_one.argtypes = [c.POINTER(c.c_int32), c.c_int32]
    llama.llama_batch_get_one.restype = Batch
    llama.llama_decode.argtypes = [c.c_void_p, Batch]
    llama.llama_get_logits_ith.argtypes = [c.c_void_p, c.c_int32]
    llama.llama_get_logits_ith.restype = c.POINTER(c.c_float)
    return llama


def importance(target):
    """The same importance for every column."""
    rows, kept = [], []
    for tensor in gguf.GGUFReader(target).tensors:
        if len(tensor.shape) > 1:
            ones = np.ones(int(tensor.shape[0]) * (int(tensor.shape[2]) if len(tensor.shape) > 2 else 1), dtype=np.float32)
            kept.append(ones)
            rows.append(Importance(tensor.name.encode(), ones.ctypes.data_as(c.POINTER(c.c_float)), ones.size))
    rows.append(Importance(None, None, 0))
    return (Importance * len(rows))(*rows), kept


def quantise(llama, target, out, name):
    settings = llama.llama_model_quantize_default_params()
    settings.ftype, settings.allow_requantize = MIXTURES[name], True
    matrix, kept = importance(target)
    if name in WANTING:
        settings.imatrix = c.cast(matrix, c.c_void_p)
    done = llama.llama_model_quantize(str(target).encode(), str(out).encode(), c.byref(settings))
    assert done == 0 and kept, name


def write(llama, path, prompt):
    """The prompt's ids and the likeliest ones after it."""
    model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
    context = llama.llama_init_from_model(model, llama.llama_context_default_params())
    # Its threads wait by spinning, which takes minutes where others want the processors too.
    llama.llama_set_n_threads(context, 1, 1)
    vocabulary = llama.llama_model_get_vocab(model)
    room = (c.c_int32 * 256)()
    count = llama.llama_tokenize(vocabulary, prompt.encode(), len(prompt.encode()), room, 256, False, True)
    given, written, size = list(room[:count]), [], llama.llama_vocab_n_tokens(vocabulary)
    step = given
    while len(written) < WRITTEN:
        tokens = (c.c_int32 * len(step))(*step)
        assert llama.llama_decode(context, llama.llama_batch_get_one(tokens, len(step))) == 0
        logits = np.ctypeslib.as_array(llama.llama_get_logits_ith(context, -1), (size,))
        step = [int(logits.argmax())]
        written += step
    llama.llama_free(context)
    llama.llama_model_free(model)
    return given, written


def keep(path, ids):
    given, written = ids
    path.with_suffix(".ids").write_text(json.dumps({"prompt": given, "written": written}))


def main():
    folder, target, out = sys.argv[1:4]
    llama, out = libraries(folder), pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    prompt = "<|im_start|>user\nWrite Python quicksort<|im_end|>\n<|im_start|>assistant\n<think>\n"
    for name in list(MIXTURES)[1:]:
        path = out / f"{name}.gguf"
        quantise(llama, target, path, name)
        decoded = out / f"{name}.decoded"
        quantise(llama, path, decoded, "F32")
        keep(path, write(llama, decoded, prompt))
        decoded.unlink()
    # Decoded it would still have its scales beside it.
    path = out / "NVFP4.gguf"
    nvfp4.write(target, path)
    keep(path, write(llama, path, prompt))


main()

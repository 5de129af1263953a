"""A GGUF whose matrices are NVFP4, which llama.cpp runs and its quantiser does not make."""
import gguf
import numpy as np

NVFP4 = gguf.GGMLQuantizationType.NVFP4


def blocks(matrix):
    """Blocks of 64 numbers, four scales of eight bits before their codes; and the scale of the whole."""
    own = gguf.quants.NVFP4
    whole = np.abs(matrix).max() / (6 * 448)
    sixteens = (matrix / whole).reshape(-1, 16)
    scales = own.fp32_to_ue4m3(np.abs(sixteens).max(1) / 6).clip(1, 0x7E).astype(np.uint8)
    steps = own.ue4m3_to_fp32(scales)[:, None, None] * np.array(own.kvalues, dtype=np.float32)
    codes = np.abs(sixteens[:, :, None] - steps).argmin(2).astype(np.uint8)
    packed = codes[:, :8] | codes[:, 8:] << 4
    data = np.concatenate([scales.reshape(-1, 4), packed.reshape(-1, 32)], 1).reshape(matrix.shape[0], -1)
    near = gguf.quants.dequantize(data, NVFP4) * whole
    assert np.corrcoef(near.ravel(), matrix.ravel())[0, 1] > 0.98
    return data, np.array([whole], dtype=np.float32)


def write(target, out):
    reader = gguf.GGUFReader(target)
    # llama.cpp reads no scales of the embedding and of the MTP block.
    last = f"blk.{reader.fields['qwen35.block_count'].contents() - 1}."
    writer = gguf.GGUFWriter(out, "qwen35")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            inner = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        name, numbers = tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if numbers.ndim == 1 or min(numbers.shape) < 64 or name.startswith((last, "token_embd")):
            writer.add_tensor(name, numbers.astype(np.float32))
            continue
        data, whole = blocks(numbers)
        writer.add_tensor(name, data, raw_dtype=NVFP4)
        writer.add_tensor(f"{name.removesuffix('weight')}scale", whole)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

"""How AutoAWQ and AutoGPTQ read their folders. Both are archived and do not install beside a new torch, so their code
is loaded from their unpacked packages: the folders `awq` and `auto_gptq`."""
import importlib.util
import pathlib

import torch


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Awq:
    def __init__(self, package):
        self.packing = load(pathlib.Path(package) / "utils/packing_utils.py", "awq_packing")

    def read(self, parts, group):
        scales = parts["scales"].float()
        return self.packing.dequantize_gemm(parts["qweight"], parts["qzeros"], scales, 4, group).T


class Gptq:
    def __init__(self, package):
        self.linear = load(pathlib.Path(package) / "nn_modules/qlinear/qlinear_cuda_old.py", "gptq_linear")

    def layer(self, group, rows, cols):
        return self.linear.QuantLinear(4, group, cols, rows, bias=False, weight_dtype=torch.float32)

    def read(self, parts, group):
        rows, cols = parts["qweight"].shape[1], 8 * parts["qweight"].shape[0]
        layer = self.layer(group, rows, cols)
        layer.qweight, layer.qzeros, layer.scales = parts["qweight"], parts["qzeros"], parts["scales"].float()
        return layer(torch.eye(cols)).T

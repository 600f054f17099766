"""Registers, spills and shared memory of all kernels for NVIDIA's GPUs, as the assembler says them.

What spills goes through memory that is slower than registers, and nobody sees it but as time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from edgepack.boards import get_board
from edgepack.compiler.gpu import convolution, planning, tensor_cores
from edgepack.compiler.gpu.kernel import DeviceKernel
from edgepack.frontend.load import load_model
from edgepack.frontend.precision import FULL, Precision
from edgepack.model import ModelSpec
from tests.functional.test_gpu import _NVRTC, CUDA
from tests.nvrtc_usage import usages
from tests.onnx_models import Builder

# A processor's, of all architectures (CUDA C++ Programming Guide, "Technical Specifications per
# Compute Capability"), and a thread's.
_REGISTERS, _OF_A_THREAD = 65536, 255
# Those of the profiles, the newest, and those between.
_ARCHS = ("sm_72", "sm_87", "sm_90")
_OTHERS = ("sm_75", "sm_80", "sm_86", "sm_89")
_ALL = [*_ARCHS, *(pytest.param(arch, marks=pytest.mark.slow) for arch in _OTHERS)]


def _of_all_kinds() -> onnx.ModelProto:
    """A layer for each text that there is but attention, and some that TVM lowers."""
    b = Builder(seed=1)
    x = b.op("Relu", b.conv("x", 3, 24, strides=[2, 2]))
    x = b.op("Add", b.conv(x, 24, 24, kernel=5, group=24), x)
    x = b.conv(x, 24, 80, kernel=1)
    x = b.op("Relu", b.conv(x, 80, 64, group=4, dilations=[2, 2], pads=[2, 2, 2, 2]))
    x = b.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2])
    x = b.op("Add", b.op("Relu", b.conv(x, 64, 64)), b.conv(x, 64, 64, kernel=1))
    y = b.op("ConvTranspose", x, b.weight(64, 33, 3, 3), b.weight(33), strides=[2, 2])
    y = b.op("ConvTranspose", y, b.weight(33, 1, 4, 4), strides=[2, 2], group=33)
    y = b.op("AveragePool", y, kernel_shape=[3, 3])
    gate = b.op("Gemm", b.op("Flatten", b.op("GlobalAveragePool", y)), b.weight(33, 33))
    y = b.op("Mul", y, b.op("Reshape", b.op("Sigmoid", gate), b.const([1, 33, 1, 1], "int64")))
    y = b.op("Concat", b.conv(y, 33, 130, kernel=1), y, axis=1)
    y = b.op("Resize", y, "", b.const([1, 1, 2, 2], "float32"), mode="linear")
    rows = b.op("Transpose", b.op("Reshape", y, b.const([163, -1], "int64")), perm=[1, 0])
    rows = b.op("MatMul", rows, b.weight(163, 64))
    rows = b.op("LayerNormalization", rows, b.weight(64), b.weight(64))
    b.op("Softmax", b.op("MatMul", b.op("Transpose", rows, perm=[1, 0]), rows), outputs=["y"])
    return b.model({"x": [1, 3, 64, 64]}, {"y": [64, 64]})


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("registers") / "model.onnx"
    onnx.save(_of_all_kinds(), path)
    return path


def _kernels(path: Path, arch: str, precision: Precision) -> dict[str, DeviceKernel]:
    """By text. One processor gets large tiles, and Winograd's algorithm."""
    gpu = replace(CUDA, arch=arch, processors=1, bytes_per_cycle=1000)
    loaded = load_model(ModelSpec(path=path))
    planned = planning.plan_model(loaded, get_board("local"), gpu, precision)
    return {kernel.text: kernel for kernel in planned.on_gpu.values()}


def _precisions(arch: str) -> Iterator[Precision]:
    yield FULL
    yield Precision(name="float16")
    if replace(CUDA, arch=arch).has_tensor_cores:
        yield Precision(name="tf32")


def _check(kernels: dict[str, DeviceKernel], arch: str) -> None:
    for usage in usages(kernels.values(), arch):
        assert usage.spilt == 0, usage
        assert usage.registers <= _OF_A_THREAD, usage
        assert usage.registers * usage.threads <= _REGISTERS, usage
        assert usage.shared <= CUDA.shared_kb << 10, usage


@_NVRTC
@pytest.mark.parametrize("arch", _ALL)
def test_no_kernel_spills(arch: str, network: Path) -> None:
    kernels = _kernels(network, arch, FULL)
    names = " ".join(kernels)
    kinds = (
        "product",
        "few",
        "depthwise",
        "depthwise_transposed",
        "matmul",
        "rows",
        "forth",
        "back",
    )
    for kind in kinds:
        assert f" @{kind}(" in names or f"_{kind}(" in names
    _check(kernels, arch)


@_NVRTC
def test_no_kernel_of_other_precisions_spills(network: Path) -> None:
    """The largest tiles of halves and of TF32."""
    arch = "sm_87"
    known = _kernels(network, arch, FULL)
    found: dict[str, DeviceKernel] = {}
    for precision in _precisions(arch):
        found |= _kernels(network, arch, precision)
    _check({text: found[text] for text in found.keys() - known.keys()}, arch)


@pytest.mark.slow
@_NVRTC
@pytest.mark.parametrize("arch", [*_ARCHS, *_OTHERS])
def test_no_tile_spills(arch: str, network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all precisions."""
    found: dict[str, DeviceKernel] = {}
    for module in (convolution, tensor_cores):
        for tile in module.TILES:
            with monkeypatch.context() as patch:
                patch.setattr(module, "TILES", (tile,))
                for precision in _precisions(arch):
                    found |= _kernels(network, arch, precision)
    _check(found, arch)

"""Attention as one kernel of a GPU: by OpenCL on the CPU through pocl, and by CUDA's text behind a
stand-in for its driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.boards import get_board
from edgepack.compiler.gpu import planning
from edgepack.frontend.load import load_model
from edgepack.frontend.precision import FULL, Precision
from edgepack.gpus import Gpu
from edgepack.model import ModelSpec
from tests.functional.test_cuda import _run as _run_by_stand_in
from tests.functional.test_cuda import driver
from tests.functional.test_gpu import (
    _NVRTC,
    CUDA,
    _bundle,
    _kernel_cache,
    _reference,
    _run,
    opencl,
)
from tests.nvrtc_usage import usages
from tests.onnx_models import Builder

Array = np.ndarray
# A model, and its inputs.
Made = Callable[[], tuple[onnx.ModelProto, dict[str, Array]]]
__all__ = ["_kernel_cache", "driver", "opencl"]


def _attended(
    net: Builder, q: str, k: str, v: str, *masks: str, by: float = 1.0, **attributes: object
) -> str:
    """Of queries and keys [batch, heads, tokens, depth]."""
    scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2]))
    scores = net.op("Mul", scores, net.const(by, "float32"))
    for mask in masks:
        scores = net.op("Add", scores, mask)
    return net.op("MatMul", net.op("Softmax", scores, axis=-1), v, **attributes)


# Heads, queries, keys, numbers per key, numbers per value.
_SHAPES = (
    (3, 197, 197, 64, 64),
    (2, 70, 33, 20, 12),
    (1, 5, 4, 6, 4),
    (4, 1, 130, 32, 32),
    (2, 65, 129, 7, 36),
    (1, 40, 40, 128, 128),
)


def _shapes_of_all_kinds() -> tuple[onnx.ModelProto, dict[str, Array]]:
    net, random = Builder(seed=3), np.random.default_rng(3)
    given: dict[str, Array] = {}
    outputs = {}
    for index, (heads, queries, keys, depth, width) in enumerate(_SHAPES):
        shapes = {
            f"queries{index}": (1, heads, queries, depth),
            f"keys{index}": (1, heads, keys, depth),
            f"values{index}": (1, heads, keys, width),
        }
        given |= {name: random.normal(size=s).astype("float32") for name, s in shapes.items()}
        _attended(net, *shapes, by=depth**-0.5, outputs=[f"y{index}"])
        outputs[f"y{index}"] = [1, heads, queries, width]
    shapes_of = {name: list(values.shape) for name, values in given.items()}
    return net.model(shapes_of, outputs), given


def _masks_of_all_kinds() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Known and computed ones; of the past; of whole blocks of keys, of all keys of a query; heads
    that share keys and values; scores far from zero, infinite ones and NaN."""
    net, random = Builder(seed=4), np.random.default_rng(4)
    tokens, depth = 90, 8
    past = net.const(np.triu(np.full((1, 1, tokens, tokens), -np.inf), 1), "float32")
    hidden = random.normal(size=(2, 1, 1, tokens)).astype("float32")
    hidden[0, :, :, :70] = -np.inf
    hidden[1, :, :, 80:] = np.finfo("float32").min
    none = np.zeros((1, 1, tokens, tokens), "float32")
    none[:, :, 7] = -np.inf
    none[:, :, 9] = np.finfo("float32").min
    given = {
        "k": random.normal(size=(2, 2, tokens, depth)).astype("float32"),
        "v": random.normal(size=(2, 2, tokens, depth)).astype("float32"),
        "hidden": hidden,
        "none": none,
        "far": 1e4 * random.normal(size=(2, 6, tokens, depth)).astype("float32"),
        "broken": random.normal(size=(2, 6, tokens, depth)).astype("float32"),
    }
    # Scores that two read are nobody's own.
    asked = [f"q{index}" for index in range(6)]
    for name in asked:
        given[name] = random.normal(size=(2, 6, tokens, depth)).astype("float32")
    given["broken"][0, 1, 40, 2] = np.nan
    given["broken"][1, 0, 80, 1] = np.inf
    given["broken"][1, 3, 3, 0] = -np.inf
    shared = [
        net.const([2, 2, 1, tokens, depth], "int64"),
        net.const([2, 6, tokens, depth], "int64"),
    ]
    wide = net.const([2, 2, 3, tokens, depth], "int64")
    k, v = (
        net.op("Reshape", net.op("Expand", net.op("Reshape", part, shared[0]), wide), shared[1])
        for part in ("k", "v")
    )
    made = {
        "past": _attended(net, asked[0], k, v, past),
        "hidden_keys": _attended(net, asked[1], k, v, "hidden", by=0.25),
        "computed": _attended(net, asked[2], k, v, net.op("Sqrt", net.op("Abs", "hidden"))),
        "both": _attended(net, asked[3], k, v, past, "none"),
        "far_from_zero": _attended(net, "far", "far", v),
        "nan": _attended(net, "broken", k, v, by=0.5),
        "nan_keys": _attended(net, asked[4], "broken", v, past),
        "nan_values": _attended(net, asked[5], k, "broken"),
    }
    outputs = {}
    for name, value in made.items():
        net.op("Transpose", value, perm=[0, 2, 1, 3], outputs=[name])
        outputs[name] = [2, tokens, 6, depth]
    shapes_of = {name: list(values.shape) for name, values in given.items()}
    return net.model(shapes_of, outputs, opset=17), given


def _check(got: Sequence[Array], path: Path, given: dict[str, Array]) -> None:
    names = [output.name for output in onnx.load(path).graph.output]
    for name, one, due in zip(names, got, _reference(path, given), strict=True):
        np.testing.assert_array_equal(np.isnan(one), np.isnan(due), err_msg=name)
        np.testing.assert_allclose(one, due, rtol=1e-4, atol=1e-5, err_msg=name)


def _planned(path: Path, gpu: Gpu, precision: Precision = FULL) -> planning.GpuPlan:
    return planning.plan_model(load_model(ModelSpec(path=path)), get_board("local"), gpu, precision)


# Few processors get large tiles and many get small ones, as does less shared memory.
@pytest.mark.parametrize(
    ("make", "processors", "shared_kb"),
    [
        (_shapes_of_all_kinds, 1, 48),
        (_shapes_of_all_kinds, 8, 32),
        (_shapes_of_all_kinds, 500, 64),
        (_masks_of_all_kinds, 8, 32),
    ],
)
def test_opencl_attends_as_onnxruntime_does(
    make: Made, processors: int, shared_kb: int, opencl: Gpu, tmp_path: Path
) -> None:
    gpu = replace(opencl, processors=processors, shared_kb=shared_kb)
    model, given = make()
    path, count = tmp_path / "model.onnx", len(model.graph.output)
    onnx.save(model, path)
    assert [report.rule for report in _planned(path, gpu).reports].count("gpu attention") == count
    bundle = _bundle(path, gpu, tmp_path)
    got = _run(bundle, list(given.values()), count)
    _check(got, path, given)
    again = _run(bundle, list(given.values()), count)
    assert [array.tobytes() for array in again] == [array.tobytes() for array in got]


@pytest.mark.parametrize("make", [_shapes_of_all_kinds, _masks_of_all_kinds])
def test_cudas_text_attends_as_onnxruntime_does(make: Made, driver: Path, tmp_path: Path) -> None:
    model, given = make()
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    bundle = _bundle(path, CUDA, tmp_path)
    words = []
    for index, values in enumerate(given.values()):
        np.save(tmp_path / f"in{index}.npy", values)
        words.append(f"--input={tmp_path}/in{index}.npy")
    outputs = [tmp_path / f"out{index}.npy" for index in range(len(model.graph.output))]
    np.save(tmp_path / "in.npy", np.load(tmp_path / "in0.npy"))
    done = _run_by_stand_in(bundle, driver, *words[1:], *(f"--output={out}" for out in outputs))
    assert done.returncode == 0, done.stderr
    _check([np.load(out) for out in outputs], path, given)


def test_halves_are_read_and_made(opencl: Gpu, tmp_path: Path) -> None:
    """But for masks: the least float32 would be minus infinity, and all masked be NaN."""
    net, tokens, width = Builder(seed=5), 37, 24
    shape = net.const([1, tokens, 3, 8], "int64")
    parts = [net.op("Reshape", net.op("MatMul", "x", net.weight(width, width)), shape)] * 3
    heads = [net.op("Transpose", part, perm=[0, 2, 1, 3]) for part in parts]
    mask = net.op("Clip", "x", net.const(-1, "float32"), net.const(0, "float32"))
    mask = net.op("Mul", net.op("ReduceSum", mask, net.const([2], "int64"), keepdims=0), "least")
    mask = net.op("Reshape", mask, net.const([1, 1, 1, tokens], "int64"))
    merged = net.op("Transpose", _attended(net, *heads, mask, by=8**-0.5), perm=[0, 2, 1, 3])
    merged = net.op("Reshape", merged, net.const([1, tokens, width], "int64"))
    net.op("MatMul", merged, net.weight(width, width), outputs=["y"])
    sizes = {"x": [1, tokens, width], "least": [1, 1]}
    path = tmp_path / "model.onnx"
    onnx.save(net.model(sizes, {"y": [1, tokens, width]}, opset=17), path)
    given = {
        "x": np.random.default_rng(5).normal(size=sizes["x"]).astype("float32"),
        "least": np.float32([[-1e36]]),
    }
    half = Precision(name="float16", samples=(tuple(given.values()),))
    planned = _planned(path, opencl, half)
    (index,) = (i for i, r in enumerate(planned.reports) if r.rule == "gpu attention")
    tensors = [planned.plan.tensors[number] for number in planned.plan.calls[index].args]
    assert [tensor.dtype for tensor in tensors] == ["uint16", "float32", "uint16"]
    (due,) = _reference(path, given)
    (got,) = _run(_bundle(path, opencl, tmp_path, half), list(given.values()), 1)
    assert 1e-5 < np.abs(got - due).max() / np.abs(due).max() < 5e-3


def test_keys_that_halves_have_no_room_for_are_float32(opencl: Gpu, tmp_path: Path) -> None:
    """Also where one product makes queries, keys and values, and only the bias is too large."""
    net, tokens, width = Builder(seed=8), 12, 16
    shape = net.const([1, tokens, 2, 8], "int64")
    parts = []
    for far in (0, 1e6, 0):
        dense = net.op("MatMul", "x", net.weight(width, width))
        dense = net.op("Add", dense, net.const(np.full(width, far), "float32"))
        parts.append(net.op("Transpose", net.op("Reshape", dense, shape), perm=[0, 2, 1, 3]))
    merged = net.op("Transpose", _attended(net, *parts, by=1e-6), perm=[0, 2, 1, 3])
    rows = net.op("Reshape", merged, net.const([1, tokens, width], "int64"))
    net.op("MatMul", rows, net.weight(width, width), outputs=["y"])
    size = (1, tokens, width)
    path = net.save(tmp_path / "model.onnx", {"x": size}, {"y": size})
    given = {"x": np.random.default_rng(8).normal(size=size).astype("float32")}
    half = Precision(name="float16", samples=((given["x"],),))
    (due,) = _reference(path, given)
    (got,) = _run(_bundle(path, opencl, tmp_path, half), [given["x"]], 1)
    assert np.abs(got - due).max() / np.abs(due).max() < 5e-3


def test_heads_too_large_for_shared_memory_are_products_and_a_softmax(
    opencl: Gpu, tmp_path: Path
) -> None:
    net, shape = Builder(seed=6), (1, 2, 9, 512)
    _attended(net, "x", "x", "x", by=512**-0.5, outputs=["y"])
    path = net.save(tmp_path / "model.onnx", {"x": shape}, {"y": shape})
    gpu = replace(opencl, shared_kb=48)
    rules = [report.rule for report in _planned(path, gpu).reports]
    assert rules.count("gpu matrices") == 2
    assert "gpu attention" not in rules
    given = {"x": np.random.default_rng(6).normal(size=shape).astype("float32")}
    _check(_run(_bundle(path, gpu, tmp_path), [given["x"]], 1), path, given)


@_NVRTC
@pytest.mark.parametrize("arch", ["sm_72", "sm_87"])
def test_registers_suffice(arch: str, tmp_path: Path) -> None:
    onnx.save(_shapes_of_all_kinds()[0], tmp_path / "model.onnx")
    for processors in (1, 8, 500):
        gpu = replace(CUDA, processors=processors)
        found = usages(_planned(tmp_path / "model.onnx", gpu).on_gpu.values(), arch)
        assert len(found) == len(_SHAPES)
        # Three groups of a processor, with 65,536 registers.
        assert max(usage.registers for usage in found) <= 65536 // 128 // 3
        assert max(usage.shared for usage in found) <= gpu.shared_kb << 10
        # A few places, which it takes for less than one group more would bring.
        assert max(usage.spilt for usage in found) <= 64

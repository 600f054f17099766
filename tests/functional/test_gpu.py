"""Models on a GPU: by OpenCL, on the CPU through pocl, the same kernels, driver interface and plan.

pocl is a real driver of OpenCL; what it runs is slow, not different.
"""

from __future__ import annotations

import json
import locale
import os
import platform
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from bench import gpu as gpu_bench
from edgepack.base.paths import cache_dir
from edgepack.boards import get_board
from edgepack.cli import main
from edgepack.compiler import compile_model
from edgepack.compiler.gpu import convolution, planning, tensor_cores, winograd
from edgepack.compiler.gpu.image import PlainImage
from edgepack.compiler.gpu.nvrtc import Nvrtc, NvrtcError, find_nvrtc
from edgepack.frontend.load import load_model
from edgepack.frontend.precision import FULL, Precision
from edgepack.gpus import Gpu, find_local
from edgepack.kernels.layer import Convolution
from edgepack.model import ModelSpec
from edgepack.native.app import build_runtime
from edgepack.native.toolchain import select
from tests.onnx_models import Builder
from tests.plan_by_app import run_by_app

Array = np.ndarray
CUDA = Gpu(
    api="cuda",
    device="none that is here",
    arch="sm_87",
    driver="12.2",
    processors=8,
    lanes=128,
    threads=1024,
    shared_kb=48,
)


@pytest.fixture(scope="module", autouse=True)
def _kernel_cache() -> None:
    """pocl keeps what it compiled: the second run of these tests compiles nothing."""
    os.environ["POCL_CACHE_DIR"] = str(cache_dir() / "pocl")


@pytest.fixture(scope="module")
def opencl(require_tool: object) -> Gpu:
    """The OpenCL device of this machine."""
    gpu = find_local()
    if gpu is None or gpu.api != "opencl":
        if os.environ.get("CI"):
            pytest.fail("there is no OpenCL device: install pocl-opencl-icd")
        pytest.skip("there is no OpenCL device: install pocl-opencl-icd")
    return gpu


def _network() -> onnx.ModelProto:
    """What rules take, what TVM lowers for a GPU, and what only the CPU does, between the two."""
    b = Builder(seed=3)
    x = b.op("Relu", b.conv("x", 3, 24, strides=[2, 2]))
    y = b.op("Clip", b.conv(x, 24, 24, group=24), b.const(0, "float32"), b.const(6, "float32"))
    y = b.op("Add", b.conv(y, 24, 24, kernel=1), x)
    y = b.op("Relu", b.conv(y, 24, 20, dilations=[2, 2], pads=[2, 2, 2, 2]))
    y = b.op("Sigmoid", b.conv(y, 20, 20, group=4))
    top, _ = (
        b.op("TopK", b.op("Flatten", y), b.const([5], "int64"), outputs=["top", "at"]),
        None,
    )
    pooled = b.op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    pooled = b.op("AveragePool", pooled, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    mean = b.op("Flatten", b.op("GlobalAveragePool", pooled))
    scores = b.op("Gemm", mean, b.weight(20, 10), b.weight(10))
    scores = b.op("Add", scores, b.op("ReduceMax", top, b.const([1], "int64"), keepdims=1))
    b.op("Softmax", scores, outputs=["y"])
    return b.model({"x": [1, 3, 33, 29]}, {"y": [1, 10], "at": [1, 5]}, dtypes={"at": 7}, opset=18)


def _reference(path: Path, inputs: dict[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs: list[Array] = session.run(None, inputs)
    return outputs


def _bundle(path: Path, gpu: Gpu, out: Path, precision: Precision = FULL) -> Path:
    """A folder that the app takes for a bundle."""
    board = get_board("local")
    compiled = compile_model(
        ModelSpec(path=path),
        board,
        select(board).toolchain,
        out / "model",
        gpu=gpu,
        precision=precision,
    )
    assert compiled.device_code is not None
    (out / "manifest.json").write_text("{}")
    return out


def _run(bundle: Path, inputs: Sequence[Array], count: int) -> list[Array]:
    made = run_by_app(bundle / "model", inputs)
    assert len(made) == count
    return made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpu") / "model.onnx"
    onnx.save(_network(), path)
    return path


def test_a_network_is_computed_by_both_processors(model: Path, opencl: Gpu, tmp_path: Path) -> None:
    bundle = _bundle(model, opencl, tmp_path)
    plan = json.loads((bundle / "model/graph.json").read_text())
    on_gpu = {launch["call"] for launch in plan["gpu"]["launches"]}
    assert 0 < len(on_gpu) < len(plan["calls"])
    assert {copy["to"] for copy in plan["gpu"]["copies"]} == {"cpu", "gpu"}
    x = np.random.default_rng(0).normal(size=(1, 3, 33, 29)).astype("float32")
    due = _reference(model, {"x": x})
    got = _run(bundle, [x], 2)
    np.testing.assert_allclose(got[0], due[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got[1], due[1])
    # Sums are in one order: equal inputs, equal bits.
    assert [array.tobytes() for array in _run(bundle, [x], 2)] == [a.tobytes() for a in got]


def test_a_profile_has_the_gpus_own_times(model: Path, opencl: Gpu, tmp_path: Path) -> None:
    bundle = _bundle(model, opencl, tmp_path)
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 33, 29), "float32"))
    board = get_board("local")
    app = build_runtime(board, select(board).toolchain).gpu_app
    words = ["--input", str(tmp_path / "x.npy"), "--json", "--bench=1", "--profile"]
    done = subprocess.run([app, "--bundle", bundle, *words], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    layers = report["profile"]["layers"]
    assert len(layers) == len(json.loads((bundle / "model/graph.json").read_text())["calls"])
    assert all(layer["ms"] > 0 for layer in layers)
    whole_ms = report["bench"]["p50_ms"] + report["profile"]["overhead_ms"]
    assert sum(layer["ms"] for layer in layers) <= whole_ms


def test_nan_and_infinity_go_through(model: Path, opencl: Gpu, tmp_path: Path) -> None:
    """A broken sensor's values are not made plausible."""
    b = Builder()
    y = b.op("Clip", b.conv("x", 4, 4), b.const(0, "float32"), b.const(6, "float32"))
    # In a maximum onnxruntime's own NaN depends on where it is.
    b.op("AveragePool", y, kernel_shape=[2, 2], outputs=["y"])
    path = tmp_path / "small.onnx"
    onnx.save(b.model({"x": [1, 4, 8, 8]}, {"y": [1, 4, 7, 7]}), path)
    x = np.random.default_rng(0).normal(size=(1, 4, 8, 8)).astype("float32")
    x[0, 1, 3, 3] = np.nan
    (due,) = _reference(path, {"x": x})
    (got,) = _run(_bundle(path, opencl, tmp_path / "bundle"), [x], 1)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(due))
    np.testing.assert_allclose(got, due, rtol=1e-5, atol=1e-6)


# Shape of the image, channels made, window, and attributes of the ConvTranspose.
_TRANSPOSED: dict[str, tuple[tuple[int, ...], int, tuple[int, ...], dict[str, Any]]] = {
    "even": ((2, 24, 5, 7), 20, (2, 2), {"strides": [2, 2]}),
    "uneven": (
        (1, 32, 5, 6),
        40,
        (3, 3),
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
    ),
    "odd size": ((1, 16, 4, 5), 8, (5, 4), {"strides": [3, 2], "pads": [2, 0, 0, 1]}),
    "few channels": ((2, 3, 6, 5), 4, (3, 5), {"strides": [2, 3], "pads": [1, 1, 0, 2]}),
    "groups": ((1, 12, 4, 4), 18, (4, 4), {"strides": [2, 2], "group": 3, "pads": [1] * 4}),
    "depthwise": ((2, 10, 5, 4), 10, (4, 3), {"strides": [2, 2], "group": 10, "pads": [1] * 4}),
    "many parts": ((1, 512, 3, 3), 8, (4, 4), {"strides": [2, 2], "pads": [1] * 4}),
    "a line": ((1, 16, 9), 8, (4,), {"strides": [2], "pads": [1, 1]}),
    "stride 1": ((1, 16, 5, 5), 8, (3, 3), {"pads": [1, 1, 1, 1]}),
}


def test_transposed_convolutions(opencl: Gpu, tmp_path: Path) -> None:
    """In phases, of which some have fewer taps, or fewer pixels; and one channel at a time."""
    b = Builder(seed=5)
    shapes = [item[0] for item in _TRANSPOSED.values()]
    for index, (shape, outs, window, attributes) in enumerate(_TRANSPOSED.values()):
        groups = attributes.get("group", 1)
        weights = [b.weight(shape[1], outs // groups, *window), b.weight(outs)]
        y = b.op("ConvTranspose", f"x{index}", *weights, kernel_shape=list(window), **attributes)
        b.op("LeakyRelu", y, outputs=[f"y{index}"])
    inputs = {f"x{index}": shape for index, shape in enumerate(shapes)}
    path = b.save(
        tmp_path / "model.onnx", inputs, {f"y{index}": None for index in range(len(shapes))}
    )
    random = np.random.default_rng(1)
    given = [random.normal(size=shape).astype("float32") for shape in shapes]
    bundle = _bundle(path, opencl, tmp_path / "bundle")
    calls = json.loads((bundle / "model/graph.json").read_text())["calls"]
    # Kernels of TVM's are named after what they do.
    assert all(call["kernel"].startswith("gpu_") for call in calls)
    due = _reference(path, dict(zip(inputs, given, strict=True)))
    for kind, one, other in zip(_TRANSPOSED, _run(bundle, given, len(given)), due, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=kind)


# Shapes of the image and of the weights, and pads: rows and columns that fill no tile, few and odd
# numbers of channels, several images, windows that begin further outside on one side.
_WINOGRAD = (
    ((1, 32, 28, 28), 48, [1, 1, 1, 1]),
    ((1, 40, 13, 17), 33, [0, 0, 0, 0]),
    ((3, 24, 9, 6), 64, [1, 0, 2, 1]),
    ((1, 130, 5, 3), 20, [2, 2, 2, 2]),
)
# It computes a multiply-add while its memory moves a kilobyte.
SLOW_GPU = {"processors": 1, "lanes": 1, "bytes_per_cycle": 1024}


def winograd_layers(path: Path, part: slice = slice(None)) -> list[Array]:
    """Saves layers that Winograd's algorithm can make; their inputs."""
    b = Builder(seed=11)
    cases = _WINOGRAD[part]
    for index, (shape, outs, pads) in enumerate(cases):
        weights = [b.weight(outs, shape[1], 3, 3), b.weight(outs)]
        y = b.op("Conv", f"x{index}", *weights, pads=pads)
        y = b.op("Add", b.op("LeakyRelu", y, alpha=0.1), b.weight(outs, 1, 1))
        b.op("Add", y, b.op("Conv", y, b.weight(outs, outs, 1, 1)), outputs=[f"y{index}"])
    inputs = {f"x{index}": shape for index, (shape, _, _) in enumerate(cases)}
    b.save(path, inputs, {f"y{index}": None for index in range(len(cases))})
    random = np.random.default_rng(12)
    return [random.normal(size=shape).astype("float32") for shape in inputs.values()]


def check_winograd(bundle: Path, size: int, due: list[Array], got: list[Array]) -> None:
    """Of the errors of tiles see docs/guides/precision.md; each result is of some hundred."""
    calls = json.loads((bundle / "model/graph.json").read_text())["gpu"]["launches"]
    assert sum(launch["function"].endswith("_forth") for launch in calls) == len(due)
    for one, other in zip(got, due, strict=True):
        error = np.abs(one - other).max() / np.abs(other).max()
        assert error < {2: 1e-6, 4: 4e-6}[size]


BOUNDED = Precision(bounded=frozenset(f"x{index}" for index in range(len(_WINOGRAD))))


@pytest.mark.parametrize(("size", "part"), [(2, slice(0, None, 2)), (4, slice(1, None, 2))])
def test_winograds_algorithm(
    size: int, part: slice, opencl: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd, "_SIZES", (size,))
    monkeypatch.setattr(winograd, "_FASTER", 1000.0)
    given = winograd_layers(tmp_path / "model.onnx", part)
    gpu = replace(opencl, **SLOW_GPU)
    bundle = _bundle(tmp_path / "model.onnx", gpu, tmp_path / "bundle", BOUNDED)
    names = {f"x{index}": array for index, array in enumerate(given)}
    due = _reference(tmp_path / "model.onnx", names)
    check_winograd(bundle, size, due, _run(bundle, given, len(given)))


def test_nan_and_infinity_go_no_further_than_a_tile_of_winograds_algorithm(
    opencl: Gpu, tmp_path: Path
) -> None:
    """As on a CPU: an infinity makes the rest of its tile NaN (docs/guides/precision.md)."""
    b = Builder(seed=12)
    b.op("Relu", b.conv("x", 32, 32), outputs=["y"])
    path, shape = tmp_path / "model.onnx", (1, 32, 24, 24)
    b.save(path, {"x": shape}, {"y": None})
    bundle = _bundle(path, replace(opencl, **SLOW_GPU), tmp_path / "bundle")
    calls = json.loads((bundle / "model/graph.json").read_text())["gpu"]["launches"]
    assert any(launch["function"].endswith("_forth") for launch in calls)
    x = np.random.default_rng(13).normal(size=shape).astype("float32")
    x[0, 3, 5, 6], x[0, 8, 15, 17] = np.nan, np.inf
    (due,) = _reference(path, {"x": x})
    (got,) = _run(bundle, [x], 1)
    assert np.isnan(got[np.isnan(due)]).all()
    assert not np.isfinite(got[~np.isfinite(due)]).any()
    # Tiles of 2x2 results begin at even places, and read one pixel around.
    near = np.zeros(shape, bool)
    near[..., 4:8, 4:8] = near[..., 14:18, 16:20] = True
    np.testing.assert_allclose(got[~near], due[~near], rtol=1e-5, atol=1e-4)
    assert np.isfinite(got[~near]).all()


@pytest.mark.parametrize(
    ("precision", "tile", "most"),
    [
        (FULL, "F(2x2)", 2),
        (Precision(bounded=frozenset({"x"})), "F(4x4)", None),
        (Precision(direct=True), "", 0),
        (Precision(name="float16"), "", 2),
    ],
    ids=["any input", "a bounded one", "exact", "halves"],
)
def test_winograds_tiles_are_small_where_nothing_bounds_what_is_read(
    precision: Precision, tile: str, most: int | None, tmp_path: Path
) -> None:
    """What a layer makes is bounded by its weights; a 1x1 convolution's is not."""
    b = Builder(seed=2)
    y = b.conv(b.conv("x", 32, 32, kernel=1), 32, 32)
    b.op("Relu", b.conv(y, 32, 32), outputs=["y"])
    onnx.save(b.model({"x": [1, 32, 24, 24]}, {"y": [1, 32, 24, 24]}), tmp_path / "model.onnx")
    loaded = load_model(ModelSpec(path=tmp_path / "model.onnx"))
    gpu = replace(CUDA, **SLOW_GPU)
    _, first, second = planning.plan_model(loaded, get_board("local"), gpu, precision).reports
    assert first.tile.startswith(tile)
    assert ("winograd" in first.rule) == bool(tile)
    assert first.most_results == most
    assert ("nothing bounds the input 'x'" in first.limited) == (most == 2)
    assert second.tile.startswith("F(4x4)" if tile else "")
    assert ("winograd" in second.rule) == bool(tile)


@pytest.mark.parametrize(
    ("processors", "lanes", "moved", "channels", "size", "is_faster"),
    [
        (4, 8, 18, 64, 56, True),  # a Mali-T860
        (8, 128, 108, 64, 56, True),  # a Jetson Orin Nano
        (8, 128, 108, 512, 7, False),  # its weights would take the time
        (8, 128, 8, 64, 56, False),  # a slow memory
        (8, 128, 0, 64, 56, False),  # not known
        (132, 128, 2484, 64, 56, False),  # most of a card's time is the launches
    ],
)
def test_winograds_algorithm_is_used_where_it_takes_less_time(
    processors: int, lanes: int, moved: int, channels: int, size: int, is_faster: bool
) -> None:
    image = PlainImage(batch=1, channels=channels, height=size, width=size)
    site = convolution.ProductSite(
        operator=Convolution(
            weight=np.ones((channels, channels, 3, 3), "float32"),
            bias=None,
            stride=(1, 1),
            before=(1, 1),
            dilation=(1, 1),
            groups=1,
        ),
        image=image,
        output=image,
        expression=(),
        constants=(),
        operands=(),
        gpu=replace(CUDA, processors=processors, lanes=lanes, bytes_per_cycle=moved),
    )
    assert (winograd.choose(site, None) is not None) == is_faster


def test_a_transformer_is_the_gpus_alone(opencl: Gpu, tmp_path: Path) -> None:
    """Scaled scores, a token taken at a known place, normalised rows: no copy in between."""
    b = Builder(seed=2)
    parts = b.op(
        "Transpose", b.op("Reshape", "x", b.const([9, 3, 2, 8], "int64")), perm=[1, 2, 0, 3]
    )
    query, key, value = (b.op("Gather", parts, b.const(i, "int64"), axis=0) for i in (0, 1, -1))
    scores = b.op("MatMul", query, b.op("Transpose", key, perm=[0, 2, 1]))
    scores = b.op("Add", b.op("Mul", scores, b.const(0.125, "float32")), b.weight(9, 9))
    made = b.op("MatMul", b.op("Softmax", scores, axis=-1), value)
    rows = b.op("Reshape", b.op("Transpose", made, perm=[1, 0, 2]), b.const([9, 16], "int64"))
    b.op("LayerNormalization", rows, b.weight(16), b.weight(16), axis=-1, outputs=["y"])
    path = b.save(tmp_path / "model.onnx", {"x": [9, 48]}, {"y": [9, 16]})
    bundle = _bundle(path, opencl, tmp_path / "bundle")
    plan = json.loads((bundle / "model/graph.json").read_text())
    assert {launch["call"] for launch in plan["gpu"]["launches"]} == set(range(len(plan["calls"])))
    assert [copy["to"] for copy in plan["gpu"]["copies"]] == ["gpu", "cpu"]
    x = np.random.default_rng(1).normal(size=(9, 48)).astype("float32")
    (due,) = _reference(path, {"x": x})
    (got,) = _run(bundle, [x], 1)
    np.testing.assert_allclose(got, due, rtol=1e-4, atol=1e-5)


def test_rows_are_normalised_in_one_kernel(opencl: Gpu, tmp_path: Path) -> None:
    """Short and long ones, far from zero, and with what is no number."""
    b, given, shapes = Builder(seed=4), {}, {}
    rng = np.random.default_rng(3)
    for rows, size in ((1, 1), (3, 7), (50, 33), (17, 130), (2, 1000)):
        x = f"x{size}"
        given[x] = rng.normal(size=(rows, size)).astype("float32") * 3
        scale, shift = b.weight(size), b.weight(size)
        b.op("Softmax", x, axis=-1, outputs=[f"softmax{size}"])
        b.op("LogSoftmax", x, axis=-1, outputs=[f"log{size}"])
        b.op("LayerNormalization", x, scale, shift, axis=-1, outputs=[f"norm{size}"])
        b.op("RMSNormalization", x, scale, axis=-1, outputs=[f"rms{size}"])
        shapes |= {f"{kind}{size}": [rows, size] for kind in ("softmax", "log", "norm", "rms")}
    given["x33"][:20] += 1000
    given["x130"][0, 5], given["x130"][1, 6], given["x130"][2, 7] = np.nan, np.inf, -np.inf
    given["x130"][3] = -np.inf
    inputs = {name: list(values.shape) for name, values in given.items()}
    path = tmp_path / "model.onnx"
    onnx.save(b.model(inputs, shapes, opset=23), path)
    bundle = _bundle(path, opencl, tmp_path / "bundle")
    plan = json.loads((bundle / "model/graph.json").read_text())
    assert len(plan["gpu"]["launches"]) == len(plan["calls"]) == len(shapes)
    got = _run(bundle, list(given.values()), len(shapes))
    wide = {name: values.astype("float64") for name, values in given.items()}
    scales = {item.name: numpy_helper.to_array(item) for item in onnx.load(path).graph.initializer}
    due = dict(zip(shapes, _rows_in_double(onnx.load(path), wide, scales), strict=True))
    for name, one in zip(shapes, got, strict=True):
        np.testing.assert_allclose(one, due[name], rtol=2e-5, atol=2e-5, err_msg=name)
    again = _run(bundle, list(given.values()), len(shapes))
    assert [array.tobytes() for array in again] == [array.tobytes() for array in got]


def _rows_in_double(
    model: onnx.ModelProto, given: dict[str, Array], weights: dict[str, Array]
) -> list[Array]:
    """What ONNX says of them, in float64."""
    made = []
    for node in model.graph.node:
        x = given[node.input[0]]
        parts = [weights[name] for name in node.input[1:]]
        with np.errstate(invalid="ignore"):
            if node.op_type in ("Softmax", "LogSoftmax"):
                powers = np.exp(x - x.max(-1, keepdims=True))
                made.append(powers / powers.sum(-1, keepdims=True))
                if node.op_type == "LogSoftmax":
                    less = x - x.max(-1, keepdims=True)
                    made[-1] = less - np.log(powers.sum(-1, keepdims=True))
                continue
            centred = x - x.mean(-1, keepdims=True) if len(parts) == 2 else x
            mean = (centred**2).mean(-1, keepdims=True)
            made.append(centred / np.sqrt(mean + 1e-5) * parts[0] + sum(parts[1:]))
    return made


def _halves() -> onnx.ModelProto:
    """Layers whose tensors are halves, what moves those, what computes with float32, and a layer
    of which halves cannot hold the results."""
    b = Builder(seed=7)
    x = b.op("Relu", b.conv("x", 3, 24, strides=[2, 2]))
    y = b.op("Concat", x, b.conv(x, 24, 8, kernel=1), axis=1)
    y = b.op("ConvTranspose", y, b.weight(32, 16, 2, 2), b.weight(16), strides=[2, 2])
    y = b.op("Add", b.conv(y, 16, 16, group=16), y)
    y = b.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
    large = b.op("Mul", b.conv(y, 16, 16), b.const(1e6, "float32"))
    y = b.op("Add", b.op("Mul", large, b.const(1e-6, "float32")), y)
    rows = b.op("Transpose", b.op("Reshape", y, b.const([16, 81], "int64")), perm=[1, 0])
    rows = b.op("MatMul", rows, b.weight(16, 12))
    b.op("Softmax", b.op("MatMul", b.op("Transpose", rows, perm=[1, 0]), rows), outputs=["z"])
    mean = b.op("Flatten", b.op("GlobalAveragePool", y))
    b.op("Gemm", mean, b.weight(16, 10), b.weight(10), outputs=["y"])
    return b.model({"x": [1, 3, 18, 18]}, {"y": [1, 10], "z": [12, 12]})


def test_half_precision_stores_halves_and_computes_in_float32(opencl: Gpu, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(_halves(), path)
    x = np.random.default_rng(1).normal(size=(1, 3, 18, 18)).astype("float32")
    due = _reference(path, {"x": x})
    full = _bundle(path, opencl, tmp_path / "full")
    half = _bundle(path, opencl, tmp_path / "half", Precision(name="float16", samples=((x,),)))
    got = _run(half, [x], 2)
    assert [array.tobytes() for array in _run(half, [x], 2)] == [a.tobytes() for a in got]
    plan = json.loads((half / "model/graph.json").read_text())
    stored = [tensor["dtype"] for tensor in plan["tensors"] if tensor["storage"] == "arena"]
    assert stored.count("uint16") >= 6
    assert [plan["tensors"][index]["dtype"] for index in plan["outputs"]] == ["float32"] * 2
    sizes = [(folder / "model/params.bin").stat().st_size for folder in (half, full)]
    assert sizes[0] < 0.7 * sizes[1]
    for one, other, exact in zip(got, due, _run(full, [x], 2), strict=True):
        error = np.abs(one - other).max() / np.abs(other).max()
        # A half has 11 bits, a float32 24: this is what rounding between a dozen layers makes.
        assert np.abs(exact - other).max() / np.abs(other).max() < 1e-5 < error < 5e-3


@pytest.fixture
def with_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for them, by a macro in the place of their instruction that does the same."""
    monkeypatch.setattr(Gpu, "has_tensor_cores", True)


@pytest.mark.usefixtures("with_tensor_cores")
def test_tensor_cores(opencl: Gpu, tmp_path: Path) -> None:
    b = Builder(seed=9)
    x = b.op("Relu", b.conv("x", 3, 40, strides=[2, 2]))
    y = b.op("Add", b.conv(b.conv(x, 40, 72, kernel=1), 72, 40), x)
    y = b.op("Relu", b.conv(y, 40, 48, kernel=5, group=4, strides=[2, 1], pads=[2, 1, 2, 0]))
    y = b.op("ConvTranspose", y, b.weight(48, 33, 3, 3), b.weight(33), strides=[2, 2])
    y = b.op("Relu", b.conv(y, 33, 130, dilations=[2, 2], pads=[2, 2, 2, 2]))
    y = b.op("Relu", b.conv(y, 130, 6))
    b.op("AveragePool", y, kernel_shape=[2, 2], outputs=["y"])
    path = b.save(tmp_path / "model.onnx", {"x": [2, 3, 21, 26]}, {"y": None})
    x = np.random.default_rng(1).normal(size=(2, 3, 21, 26)).astype("float32")
    (due,) = _reference(path, {"x": x})
    half = _bundle(path, opencl, tmp_path / "bundle", Precision(name="float16", samples=((x,),)))
    text = (half / "model/kernels.cl").read_text()
    assert text.count("MMA(sum") == 6
    (got,) = _run(half, [x], 1)
    assert np.abs(got - due).max() / np.abs(due).max() < 2e-3


@pytest.mark.usefixtures("with_tensor_cores")
def test_tensor_cores_of_tf32(opencl: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # pocl takes minutes to compile the macro for large ones.
    monkeypatch.setattr(tensor_cores, "TILES", tensor_cores.TILES[-1:])
    b = Builder(seed=9)
    x = b.op("Relu", b.conv("x", 3, 12, strides=[2, 2]))
    y = b.op("Add", b.conv(x, 12, 12, kernel=5, group=2, pads=[2, 2, 2, 2]), x)
    y = b.op("ConvTranspose", y, b.weight(12, 17, 3, 3), b.weight(17), strides=[2, 2])
    b.op("Relu", b.conv(y, 17, 18, dilations=[2, 2], pads=[2, 2, 2, 2]), outputs=["y"])
    path = b.save(tmp_path / "model.onnx", {"x": [2, 3, 11, 14]}, {"y": None})
    x = np.random.default_rng(1).normal(size=(2, 3, 11, 14)).astype("float32")
    (due,) = _reference(path, {"x": x})
    made = _bundle(path, opencl, tmp_path / "bundle", Precision(name="tf32"))
    assert (made / "model/kernels.cl").read_text().count("MMA_TF32(sum") == 4
    (got,) = _run(made, [x], 1)
    # 11 bits of what is multiplied, all bits of what is added.
    assert 1e-5 < np.abs(got - due).max() / np.abs(due).max() < 2e-3
    assert [array.tobytes() for array in _run(made, [x], 1)] == [got.tobytes()]


@pytest.mark.usefixtures("with_tensor_cores")
def test_what_is_multiplied_is_rounded_to_tf32(opencl: Gpu, tmp_path: Path) -> None:
    """To the nearest of 11 bits, halfway away from zero, as PTX has cvt.rna; nothing else is."""
    b = Builder()
    product = b.op("MatMul", "x", b.const(np.eye(20, 24, dtype="float32")))
    b.op("Add", product, b.const(1 / 3, "float32"), outputs=["y"])
    b.op("MatMul", b.const(np.eye(8, 16, dtype="float32")), "w", outputs=["z"])
    shapes = {"x": [16, 20], "w": [16, 3]}
    path = b.save(tmp_path / "model.onnx", shapes, {"y": [16, 24], "z": [8, 3]})
    x, w = np.zeros((16, 20), "float32"), np.full((16, 3), 1 + 2.0**-20, "float32")
    given = [1 + 2**-11, 1 + 2**-12, -1 - 2**-11, 1 + 3 * 2**-11, 2**-100 * (1 + 2**-11), 3e38]
    due = [1 + 2**-10, 1, -1 - 2**-10, 1 + 2**-9, 2**-100 * (1 + 2**-10), 0]
    # Between 3e38 and the TF32 next to it are 2^(127 - 10): the nearest multiple.
    due[-1] = round(3e38 / 2**117) * 2**117
    x[0, : len(given)] = given
    made = _bundle(path, opencl, tmp_path / "bundle", Precision(name="tf32"))
    y, z = _run(made, [x, w], 2)
    expected = np.zeros((16, 24), "float32")
    expected[0, : len(due)] = due
    np.testing.assert_array_equal(y, expected + np.float32(1 / 3))
    # No weight is constant here: such products are not rounded.
    np.testing.assert_array_equal(z, w[:8])


def test_tensors_may_be_called_by_numbers(opencl: Gpu, tmp_path: Path) -> None:
    """As PyTorch calls them."""
    b = Builder()
    b.op("Softsign", "0", outputs=["1"])
    functions = ("Acos", "Asin", "Atan", "Sinh", "Cosh", "Asinh", "Atanh", "Tan")
    for name in functions:  # of which OpenCL and C have others
        b.op(name, "0", outputs=[name])
    # These have tensors inside of their kernels.
    b.op("ReduceMean", "0", outputs=["2"], axes=[1])
    b.op("ReduceMax", "0", outputs=["3.0/4"], axes=[1])
    outputs = {name: [2, 3] for name in ("1", *functions)}
    outputs |= {"2": [2, 1], "3.0/4": [2, 1]}
    path = b.save(tmp_path / "model.onnx", {"0": [2, 3]}, outputs)
    x = np.float32([[0.5, -0.75, 0.25], [0.0, 0.875, -0.5]])
    bundle = _bundle(path, opencl, tmp_path / "bundle")
    plan = json.loads((bundle / "model/graph.json").read_text())
    assert len({launch["call"] for launch in plan["gpu"]["launches"]}) == len(plan["calls"])
    due = _reference(path, {"0": x})
    for name, one, other in zip(outputs, _run(bundle, [x], len(due)), due, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, err_msg=name)


def test_functions_may_be_called_as_python_does(opencl: Gpu, tmp_path: Path) -> None:
    """A shift's is "<lambda>", which is no name in C."""
    b = Builder()
    b.op("BitShift", "x", "n", direction="RIGHT", outputs=["y"])
    types = dict.fromkeys("xny", onnx.TensorProto.UINT8)
    path = tmp_path / "model.onnx"
    onnx.save(b.model({"x": [3], "n": [3]}, {"y": [3]}, types), path)
    x, n = np.uint8([255, 16, 5]), np.uint8([7, 2, 0])
    bundle = _bundle(path, opencl, tmp_path / "bundle")
    plan = json.loads((bundle / "model/graph.json").read_text())
    assert {launch["call"] for launch in plan["gpu"]["launches"]} == {0}
    (due,) = _reference(path, {"x": x, "n": n})
    (got,) = _run(bundle, [x, n], 1)
    np.testing.assert_array_equal(got, due)
    assert "lambda>" not in _cuda_text(path, FULL)


def test_types_that_drivers_need_not_know_are_the_cpus(opencl: Gpu, tmp_path: Path) -> None:
    b = Builder()
    wide = b.op("Cast", "x", to=onnx.TensorProto.DOUBLE)
    wide = b.op("Mul", wide, b.const(1 / 3, "float64"))
    b.op("Relu", b.op("Cast", wide, to=onnx.TensorProto.FLOAT), outputs=["y"])
    b.op("IsInf", "x", outputs=["z"])
    types = {"x": onnx.TensorProto.FLOAT16, "z": onnx.TensorProto.BOOL}
    shape = [2, 3]
    path = tmp_path / "model.onnx"
    onnx.save(b.model({"x": shape}, {"y": shape, "z": shape}, types, opset=20), path)
    x = np.float16([[0.5, -2.0, np.inf], [0.0, 8.0, -1.0]])
    bundle = _bundle(path, opencl, tmp_path / "bundle")
    due = _reference(path, {"x": x})
    for one, other in zip(_run(bundle, [x], 2), due, strict=True):
        np.testing.assert_array_equal(one, other)
    text = _cuda_text(path, FULL)
    assert "half " not in text.split("OVERLOADED type smaller")[1]


def test_a_part_of_a_convolution_is_its_own_pixels(opencl: Gpu, tmp_path: Path) -> None:
    """What is cut off at the end is less to make, and moves nothing."""
    b = Builder()
    y = b.conv("x", 16, 16, kernel=1)
    b.op("Slice", y, *(b.const(v, "int64") for v in ([0, 0], [5, 4], [2, 3])), outputs=["y"])
    path = b.save(tmp_path / "model.onnx", {"x": [1, 16, 6, 7]}, {"y": [1, 16, 5, 4]})
    x = np.random.default_rng(1).normal(size=(1, 16, 6, 7)).astype("float32")
    (due,) = _reference(path, {"x": x})
    (got,) = _run(_bundle(path, opencl, tmp_path / "bundle"), [x], 1)
    np.testing.assert_allclose(got, due, rtol=1e-5, atol=1e-5)


_OPENCL_SOURCE = Path(__file__).parents[2] / "cpp_runtime/app/src/platform/opencl/opencl.cc"
# All is the real driver's, but of the starts of kernels the first FAILING fail, and a copy to the
# GPU that nobody waits for is late, as drivers may be: it is done after a tenth of a second. After
# HANGS starts nothing ends any more, unless the file UNTIL is there.
_FAILING_DRIVER = """
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void *real(const char *name) {
  static void *driver;
  if (!driver) driver = dlopen(getenv("REAL_DRIVER"), RTLD_NOW | RTLD_LOCAL);
  return dlsym(driver, name);
}
#define PASSED_ON(name) \\
  void *name##_real(void) { return real(#name); } \\
  __attribute__((naked)) void name(void) { \\
    __asm__("push %rdi; push %rsi; push %rdx; push %rcx; push %r8; push %r9; sub $8, %rsp\\n" \\
            "call " #name "_real\\n" \\
            "add $8, %rsp; pop %r9; pop %r8; pop %rcx; pop %rdx; pop %rsi; pop %rdi; jmp *%rax"); \\
  }
@PASSED_ON@
typedef int (*Copy)(void *, void *, unsigned, size_t, size_t, void *, unsigned, const void *,
                    void *);
static struct Late {
  void *queue, *buffer, *from;
  size_t offset, bytes;
  pthread_t thread;
} late[64];
static int lates, started;
static void join(void) {
  while (lates) pthread_join(late[--lates].thread, NULL);
}
/* What is mapped is elsewhere for the CPU: it comes there when it is waited for, goes back when it
   is mapped no more, and is NaN then. */
static struct View {
  void *queue, *buffer;
  size_t offset, bytes;
  char *memory;
  int is_there;
} views[256];
static int viewed;
static void *mapped_buffer, *mapped_memory;
static void bring(void) {
  for (int i = 0; i < viewed; ++i) {
    struct View *it = &views[i];
    if (!it->is_there)
      ((Copy)real("clEnqueueReadBuffer"))(it->queue, it->buffer, 1, it->offset, it->bytes,
                                          it->memory, 0, NULL, NULL);
    it->is_there = 1;
  }
}
void *clEnqueueMapBuffer(void *queue, void *buffer, unsigned blocking, unsigned long flags,
                         size_t offset, size_t bytes, unsigned waits, const void *list,
                         void *event, int *code) {
  if (blocking) /* the whole, for a new session */
    mapped_buffer = buffer, mapped_memory = memalign(128, bytes), viewed = 0;
  *code = mapped_buffer == buffer && viewed < 256 ? 0 : -38; /* CL_INVALID_MEM_OBJECT */
  for (int i = 0; i < viewed; ++i) /* twice is undefined */
    if (views[i].offset < offset + bytes && offset < views[i].offset + views[i].bytes) abort();
  if (*code) return NULL;
  views[viewed++] = (struct View){queue, buffer, offset, bytes, (char *)mapped_memory + offset, 0};
  if (blocking) bring();
  return (char *)mapped_memory + offset;
}
int clEnqueueUnmapMemObject(void *queue, void *buffer, void *memory, unsigned waits,
                            const void *list, void *event) {
  for (int i = 0; i < viewed; ++i) {
    if (views[i].memory != memory) continue;
    bring();
    ((Copy)real("clEnqueueWriteBuffer"))(queue, buffer, 1, views[i].offset, views[i].bytes, memory,
                                         0, NULL, NULL);
    memset(memory, 0xFF, views[i].bytes);
    views[i] = views[--viewed];
    return 0;
  }
  return -30; /* CL_INVALID_VALUE */
}
static void *copy(void *given) {
  struct Late *it = given;
  usleep(100000);
  ((Copy)real("clEnqueueWriteBuffer"))(it->queue, it->buffer, 1, it->offset, it->bytes, it->from,
                                       0, NULL, NULL);
  return NULL;
}
int clEnqueueWriteBuffer(void *queue, void *buffer, unsigned blocking, size_t offset, size_t bytes,
                         void *from, unsigned waits, const void *list, void *event) {
  if (blocking)
    return ((Copy)real("clEnqueueWriteBuffer"))(queue, buffer, 1, offset, bytes, from, waits, list,
                                                event);
  if (lates == 64) join();
  late[lates] = (struct Late){queue, buffer, from, offset, bytes, 0};
  pthread_create(&late[lates].thread, NULL, copy, &late[lates]);
  ++lates;
  return 0;
}
typedef int (*Start)(void *, void *, unsigned, const void *, const void *, const void *, unsigned,
                     const void *, void *);
int clEnqueueNDRangeKernel(void *queue, void *kernel, unsigned axes, const void *offset,
                           const void *size, const void *group, unsigned waits, const void *list,
                           void *event) {
  if (viewed) abort(); /* what a kernel may write to is mapped */
  if (started++ < atoi(getenv("FAILING"))) return -5; /* CL_OUT_OF_RESOURCES */
  join();
  return ((Start)real("clEnqueueNDRangeKernel"))(queue, kernel, axes, offset, size, group, waits,
                                                 list, event);
}
int clEnqueueReadBuffer(void *queue, void *buffer, unsigned blocking, size_t offset, size_t bytes,
                        void *to, unsigned waits, const void *list, void *event) {
  join();
  return ((Copy)real("clEnqueueReadBuffer"))(queue, buffer, blocking, offset, bytes, to, waits,
                                             list, event);
}
static int hangs(void) {
  return getenv("HANGS") && started > atoi(getenv("HANGS")) &&
         !(getenv("UNTIL") && access(getenv("UNTIL"), F_OK) == 0);
}
int clGetEventInfo(void *event, unsigned what, size_t size, void *value, size_t *written) {
  if (hangs()) return *(int *)value = 2, 0; /* CL_SUBMITTED */
  join();
  bring();
  return ((int (*)(void *, unsigned, size_t, void *, size_t *))real("clGetEventInfo"))(
      event, what, size, value, written);
}
void *clCreateProgramWithSource(void *context, unsigned count, const char **texts,
                                const size_t *lengths, int *code) {
  if (!getenv("NO_TEXT"))
    return ((void *(*)(void *, unsigned, const char **, const size_t *, int *))real(
        "clCreateProgramWithSource"))(context, count, texts, lengths, code);
  *code = -5; /* CL_OUT_OF_RESOURCES */
  return NULL;
}
int clReleaseContext(void *context) { /* by now sessions and their memory are gone */
  while (hangs()) pause();
  join();
  return ((int (*)(void *))real("clReleaseContext"))(context);
}
"""


@pytest.fixture(scope="module")
def failing_driver(
    opencl: Gpu, require_tool: Callable[..., object], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with a libOpenCL.so.1 that fails as often as it is told to."""
    if platform.machine() != "x86_64":
        pytest.skip("what is passed on to the real driver is in assembly of x86-64")
    require_tool("cc")
    folder = tmp_path_factory.mktemp("failing")
    names = set(re.findall(r'"(cl[A-Z]\w+)"', _OPENCL_SOURCE.read_text()))
    own = set(re.findall(r"^(?:int|void \*)\s*(cl\w+)\(", _FAILING_DRIVER, re.MULTILINE))
    assert len(own) == 8
    assert own <= names
    lines = [f"PASSED_ON({name})" for name in sorted(names - own)]
    (folder / "driver.c").write_text(_FAILING_DRIVER.replace("@PASSED_ON@", "\n".join(lines)))
    words = ["cc", "-shared", "-fPIC", "-O1", "-pthread", "-Wl,-Bsymbolic", "driver.c"]
    words += ["-o", "libOpenCL.so.1"]
    subprocess.run(words, cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module", params=[True, False], ids=["unified", "copied"])
def two_plans(
    model: Path,
    opencl: Gpu,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Path:
    """A bundle with a plan for the GPU, and one for the CPU; its input and outputs beside it."""
    gpu = replace(opencl, unified_memory=request.param)
    bundle = _bundle(model, gpu, tmp_path_factory.mktemp("two"))
    board = get_board("local")
    compile_model(ModelSpec(path=model), board, select(board).toolchain, bundle / "model" / "cpu")
    x = np.random.default_rng(0).normal(size=(1, 3, 33, 29)).astype("float32")
    np.save(bundle / "in.npy", x)
    for index, due in enumerate(_reference(model, {"x": x})):
        np.save(bundle / f"due{index}.npy", due)
    return bundle


@pytest.mark.parametrize(
    ("failing", "on", "failures"), [(0, "gpu", 0), (2, "gpu", 2), (1000, "cpu", 3)]
)
def test_the_cpu_does_what_the_gpu_fails_in(
    failing: int, on: str, failures: int, two_plans: Path, failing_driver: Path
) -> None:
    """After three failures, one after the other, the GPU is not asked any more."""
    report = _report_of(two_plans, failing_driver, FAILING=str(failing))
    assert report["processor"]["on"] == on
    assert report["processor"]["gpu_failures"] == failures
    assert ("OpenCL error -5" in report["processor"].get("why", "")) == (failures > 0)
    assert report["expected"]["ok"]


def test_the_cpu_goes_on_when_the_gpu_hangs(two_plans: Path, failing_driver: Path) -> None:
    """And the program ends, though the driver would wait for its device."""
    hangs = {"FAILING": "0", "HANGS": "4", "EDGEPACK_GPU_LIMIT_S": "1.5"}
    report = _report_of(two_plans, failing_driver, **hangs)
    assert report["processor"]["on"] == "cpu"
    assert report["processor"]["gpu_failures"] == 3
    assert "the GPU still hangs" in report["processor"]["why"]
    assert report["expected"]["ok"]


def test_the_cpu_runs_where_no_driver_is(two_plans: Path, tmp_path: Path) -> None:
    (tmp_path / "libOpenCL.so.1").write_text("no library")
    report = _report_of(two_plans, tmp_path)
    assert report["processor"]["on"] == "cpu"
    assert "libOpenCL.so.1" in report["processor"]["why"]
    assert report["expected"]["ok"]


def test_what_the_driver_has_compiled_is_kept(
    two_plans: Path, failing_driver: Path, tmp_path: Path
) -> None:
    """The second start takes no text of kernels: this driver would refuse it."""

    def failures(**environment: str) -> int:
        report = _report_of(
            two_plans, failing_driver, FAILING="0", XDG_CACHE_HOME=str(tmp_path), **environment
        )
        assert report["expected"]["ok"]
        return int(report["processor"]["on"] == "cpu")

    assert failures() == 0
    (kept,) = (tmp_path / "edgepack-kernels").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert failures(NO_TEXT="1") == 0
    whole = kept.read_bytes()
    # Damaged, cut, of another key, a link, writable by others: as if nothing were there.
    text = (two_plans / "model/kernels.cl").read_bytes()
    at = whole.index(text[:64])
    flipped = bytearray(whole)
    flipped[at] ^= 1
    last = bytearray(whole)
    last[-1] ^= 1
    for wrong in (b"", whole[:-1], bytes(flipped), bytes(last), whole[:40]):
        kept.write_bytes(wrong)
        assert failures(NO_TEXT="1") == 1
        assert failures() == 0
        assert kept.read_bytes()[:at] == whole[:at]
    kept.chmod(0o620)
    assert failures(NO_TEXT="1") == 1
    elsewhere = tmp_path / "elsewhere"
    kept.rename(elsewhere)
    elsewhere.chmod(0o600)
    kept.symlink_to(elsewhere)
    assert failures(NO_TEXT="1") == 1
    assert elsewhere.read_bytes()[:at] == whole[:at]
    # A folder that is somebody else's to write in.
    kept.unlink()
    assert failures() == 0
    assert failures(NO_TEXT="1") == 0
    kept.parent.chmod(0o770)
    assert failures(NO_TEXT="1") == 1


def _report_of(
    bundle: Path, driver: Path, due: Sequence[str] = ("due0.npy", "due1.npy"), **environment: str
) -> dict[str, Any]:
    """What the app says of five runs, with the driver in a folder."""
    board = get_board("local")
    app = build_runtime(board, select(board).toolchain).gpu_app
    words = [app, "--bundle", bundle, "--input", bundle / "in.npy", "--json", "--bench", "5"]
    words += [f"--expected={bundle / name}" for name in due]
    # As this process has opened it.
    real = next(
        path
        for line in Path("/proc/self/maps").read_text().splitlines()
        if (path := line.split()[-1]).startswith("/") and "libOpenCL.so" in path
    )
    done = subprocess.run(
        list(map(str, words)),
        env={**os.environ, "LD_LIBRARY_PATH": str(driver), "REAL_DRIVER": real, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("compute", ["gpu", "gpu, else cpu"])
def test_deploy_to_the_gpu_of_this_machine(
    compute: str, model: Path, opencl: Gpu, tmp_path: Path
) -> None:
    words = ["deploy", str(model), "--board", "local", "--device", "local"]
    words += ["--compute", compute, "--root", str(tmp_path / "root"), "--json"]
    assert main(words) == 0
    (code,) = (tmp_path / "root").glob("**/kernels.cl")
    assert "KERNEL(" in code.read_text()
    plans = [(code.parent / name).exists() for name in ("graph.json", "cpu/graph.json")]
    assert plans == [True, compute != "gpu"]


def test_both_plans_read_one_table(opencl: Gpu, tmp_path: Path) -> None:
    """Of embeddings, which no plan packs; both processors find the same rows in it."""
    b, rows, width = Builder(seed=4), 5000, 64
    found = b.op("Gather", b.weight(rows, width), "ids")
    b.op("Softmax", b.op("MatMul", found, b.weight(width, 40)), outputs=["y"])
    types = {"ids": onnx.TensorProto.INT64}
    onnx.save(b.model({"ids": [1, 8]}, {"y": [1, 8, 40]}, types), tmp_path / "model.onnx")
    words = [str(tmp_path / "model.onnx"), "--board", "local", "--compute", "gpu, else cpu"]
    assert main(["package", *words, "--out", str(tmp_path / "out"), "--json"]) == 0
    (bundle,) = (path for path in (tmp_path / "out").iterdir() if path.is_dir())
    sizes = [(bundle / "model" / name).stat().st_size for name in ("params.bin", "cpu/params.bin")]
    assert sizes[1] < rows * width * 4 < sizes[0]
    ids = np.int64([[0, 1, 4999, 17, 2500, 4998, 3, 17]])
    np.save(bundle / "in.npy", ids)
    (due,) = _reference(tmp_path / "model.onnx", {"ids": ids})
    np.save(bundle / "due0.npy", due)
    (tmp_path / "libOpenCL.so.1").write_text("no library")
    for driver, processor in ((tmp_path / "none", "gpu"), (tmp_path, "cpu")):
        report = _report_of(bundle, driver, due=("due0.npy",))
        assert report["processor"]["on"] == processor
        assert report["expected"]["ok"]


def test_deploy_to_the_gpu_of_a_virtual_board(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole way, with ARM code of a real driver; one without a driver is refused."""
    b = Builder(seed=3)
    x = b.op("Relu", b.conv("x", 3, 8, strides=[2, 2]))
    mean = b.op("Flatten", b.op("GlobalAveragePool", x))
    b.op("Gemm", mean, b.weight(8, 10), b.weight(10), outputs=["y"])
    onnx.save(b.model({"x": [1, 3, 16, 16]}, {"y": [1, 10]}, opset=18), tmp_path / "m.onnx")
    (tmp_path / "boards.toml").write_text('[boards.with-mali]\nbase = "rk3399"\n')
    board = ["--board", "with-mali", "--boards", str(tmp_path / "boards.toml")]
    words = ["deploy", str(tmp_path / "m.onnx"), *board, "--device", "virtual", "--json"]
    main(["board", "down", "with-mali"])  # one that a run which was cut short has left
    try:
        assert main(["board", "up", "with-mali", *board[2:]]) == 0
        assert main([*words, "--compute", "gpu"]) != 0
        assert "runs already, without a driver of OpenCL" in capsys.readouterr().err
        assert main(["board", "down", "with-mali"]) == 0
        capsys.readouterr()
        assert main([*words, "--compute", "gpu"]) == 0
        report = json.loads(capsys.readouterr().out)
        smoke = report["smoke"]
        assert smoke["max_abs_error"] < smoke["tolerance"] * smoke["max_abs_reference"]
        assert smoke["golden"]["processor"]["on"] == "gpu"
    finally:
        main(["board", "down", "with-mali"])


def test_what_no_gpu_computes_is_refused_by_name(
    model: Path, opencl: Gpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compile", str(model), "-o", str(tmp_path / "out"), "--compute", "gpu"]
    assert main([*words, "--board", "rasp3b"]) == 2
    assert "the profile of rasp3b has no GPU" in capsys.readouterr().err
    assert main([*words, "--board", "rk3399", "--static"]) == 2
    assert "cannot open the driver of a GPU" in capsys.readouterr().err
    assert main([*words, "--board", "rk3399", "--precision", "tf32"]) == 2
    assert "--precision: Mali-T860 (opencl) has no TF32" in capsys.readouterr().err
    words = ["compile", str(model), "-o", str(tmp_path / "out"), "--precision", "tf32"]
    assert main([*words, "--board", "rasp3b"]) == 2
    said = capsys.readouterr().err
    assert "--precision: tf32 is for NVIDIA's GPUs, and the CPU runs the model" in said
    assert "--compute gpu, or another precision: float32, float16" in said


def test_a_range_that_comes_at_run_time_is_refused_by_name(opencl: Gpu, tmp_path: Path) -> None:
    b = Builder()
    b.op("DynamicQuantizeLinear", "x", outputs=["y", "step", "zero"])
    outputs = {"y": [4], "step": [], "zero": []}
    types = {"y": onnx.TensorProto.UINT8, "zero": onnx.TensorProto.UINT8}
    path = tmp_path / "model.onnx"
    onnx.save(b.model({"x": [4]}, outputs, types), path)
    said = "'DynamicQuantizeLinear_0' is on 8-bit integers, which no kernels of a GPU are made for"
    with pytest.raises(planning.GpuModelError, match=said):
        _bundle(path, opencl, tmp_path / "bundle")


def test_a_damaged_text_of_kernels_is_refused(model: Path, opencl: Gpu, tmp_path: Path) -> None:
    bundle = _bundle(model, opencl, tmp_path)
    board = get_board("local")
    app = build_runtime(board, select(board).toolchain).gpu_app
    (bundle / "model/kernels.cl").write_text("no kernels")
    np.save(tmp_path / "in.npy", np.zeros((1, 3, 33, 29), "float32"))
    words = [app, "--bundle", bundle, "--input", tmp_path / "in.npy"]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert "cannot compile the kernels" in done.stderr
    assert "--compute cpu" in done.stderr


def test_a_program_for_the_cpu_has_nothing_of_a_driver(
    model: Path, opencl: Gpu, tmp_path: Path
) -> None:
    """Nor does it take a plan for a GPU: it says why."""
    board = get_board("local")
    made = build_runtime(board, select(board).toolchain)
    on_cpu, on_gpu = made.app.read_bytes(), made.gpu_app.read_bytes()
    for name in (b"cuModuleLoadData", b"clBuildProgram"):
        assert name in on_gpu
        assert name not in on_cpu
    bundle = _bundle(model, opencl, tmp_path)
    np.save(tmp_path / "in.npy", np.zeros((1, 3, 33, 29), "float32"))
    words = [made.app, "--bundle", bundle, "--input", tmp_path / "in.npy"]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert "the kernels are for a GPU (opencl), and this program has no part" in done.stderr


def test_a_network_of_the_benchmark_by_the_kernels_for_a_board(
    opencl: Gpu, capfd: pytest.CaptureFixture[str]
) -> None:
    """As `./dev gpu` does it: packed, run and compared."""
    words = ["--like", "rk3399", "--models", "keywords-conv1d", "--runs", "1"]
    assert gpu_bench.main(words) == 0
    name, precision, ms, *_, error, same = re.split(
        r" *\| *", capfd.readouterr().out.splitlines()[-1]
    )[1:-1]
    assert (name, precision, same) == ("keywords-conv1d", "float32", "yes")
    assert float(ms) > 0
    assert 0 < float(error) < 1e-5


# NVRTC of this version has packages for no other machines.
_NVRTC = pytest.mark.skipif(platform.machine() != "x86_64", reason="there is no NVRTC for it")


def _cuda_text(path: Path, precision: Precision, arch: str = CUDA.arch) -> str:
    """The kernels of a model as CUDA C."""
    from edgepack.compiler.gpu import planning
    from edgepack.compiler.gpu.dialect import whole_text
    from edgepack.frontend.load import load_model

    loaded = load_model(ModelSpec(path=path))
    gpu = replace(CUDA, arch=arch)
    planned = planning.plan_model(loaded, get_board("local"), gpu, precision)
    return whole_text("cuda", [kernel.text for kernel in planned.on_gpu.values()])


# JetPack 5 has the one, JetPack 6 the other.
_DRIVERS = pytest.mark.parametrize("driver", ["11.4", "12.2"])


@_NVRTC
@_DRIVERS
@pytest.mark.parametrize("arch", ["sm_72", "sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90"])
def test_nvrtc_compiles_the_same_kernels(
    arch: str, driver: str, model: Path, tmp_path: Path
) -> None:
    """For every architecture of the profiles, and newer ones, without a GPU."""
    text = _cuda_text(model, FULL)
    compiler = Nvrtc(find_nvrtc(driver))
    assert compiler.version[:2] == driver[:2]
    code = compiler.compile_for_all(text, arch)
    assert code.cubin.startswith(b"\x7fELF")
    ptx = code.ptx.decode()
    # NVIDIA, "PTX ISA", table "PTX Release History": of CUDA 11.8 and of 12.2.
    isa = {"11.8": "7.8", "12.2": "8.2"}[code.ptx_driver]
    assert f"\n.version {isa}\n.target {arch}\n" in ptx
    assert ptx.endswith("\0")
    for function in set(re.findall(r"\bk[0-9a-f]{12}_\w+", text)):
        assert function.encode() in code.cubin
        assert f".entry {function}(" in ptx


@_NVRTC
@_DRIVERS
@pytest.mark.parametrize("arch", ["sm_72", "sm_87", "sm_90"])
def test_nvrtc_compiles_halves(arch: str, driver: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(_halves(), path)
    text = _cuda_text(path, Precision(name="float16"), arch)
    assert "LOAD_HALF(x" in text
    # Those of older ones take other tiles.
    assert ("MMA(sum" in text) == (arch != "sm_72")
    assert Nvrtc(find_nvrtc(driver)).compile(text, arch).startswith(b"\x7fELF")


@_NVRTC
@_DRIVERS
@pytest.mark.parametrize("arch", ["sm_72", "sm_80", "sm_87", "sm_90"])
def test_nvrtc_compiles_tf32(arch: str, driver: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(_halves(), path)
    text = _cuda_text(path, Precision(name="tf32"), arch)
    assert ("MMA_TF32(sum" in text) == (arch != "sm_72")
    assert Nvrtc(find_nvrtc(driver)).compile(text, arch).startswith(b"\x7fELF")


@_NVRTC
def test_nvrtc_leaves_the_locale_as_it_was() -> None:
    """It changes that of the thread that calls it: files would be read as ASCII from then on."""
    before = locale.getencoding()
    text = 'extern "C" __global__ void f(float* y) { y[0] = 1.0f; }'
    assert Nvrtc(find_nvrtc("12.2")).compile(text, "sm_87")
    assert locale.getencoding() == before


@_NVRTC
def test_nvrtc_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Nvrtc(find_nvrtc("13.0")).version.startswith("12.")  # newer drivers run it, too
    with pytest.raises(NvrtcError, match=r"no NVRTC for a driver of CUDA 10\.2"):
        find_nvrtc("10.2")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(NvrtcError, match="NVRTC 11, which is not here") as failed:
        find_nvrtc("11.4")
    assert "nvidia-cuda-nvrtc-cu11" in str(failed.value.hint)


@_NVRTC
def test_nvrtc_refuses_what_is_no_architecture() -> None:
    with pytest.raises(NvrtcError, match="not the architecture"):
        Nvrtc(find_nvrtc("12.2")).compile("", "fermi")

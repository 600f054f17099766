"""NaN and infinities, on every instruction set: they are where onnxruntime has them.

Its maxima over windows and axes lose NaN or keep it, depending on where it lies and on the CPU;
there numpy's are expected, which are NaN if any element is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from edgepack.frontend.precision import Precision
from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target_in_parts, save_cases, some

INPUTS = {"rows": (9, 21), "image": (1, 9, 6, 18), "row": (1, 37)}
Cases = dict[str, str]


def special(shape: tuple[int, ...]) -> np.ndarray:
    """Numbers, with NaN, an infinity, both, or nothing else in a row or a channel."""
    values = np.random.default_rng(7).normal(size=shape).astype("float32")
    lines = values.reshape(-1, shape[-1])
    kinds = ([np.nan], [np.inf], [-np.inf], [np.nan, np.inf], [np.inf, -np.inf], [0.0, -0.0])
    for number, line in enumerate(lines):
        if number % 5 == 4:
            continue
        found = kinds[number % len(kinds)]
        at = np.random.default_rng(number).permutation(line.size)[: len(found)]
        line[at] = found
    if len(lines) > 8:
        lines[-1], lines[-2] = np.nan, -np.inf
    return values


def gelu(net: Builder, x: str) -> str:
    """In parts, as exporters write it; onnxruntime's of -infinity is NaN."""
    part = net.op("Erf", net.op("Div", x, net.const(2**0.5, "float32")))
    part = net.op("Mul", x, net.op("Add", part, net.const(1.0, "float32")))
    return net.op("Mul", part, net.const(0.5, "float32"))


def element_wise(net: Builder) -> Cases:
    cases: Cases = {}
    ones = ("Abs", "Ceil", "Elu", "Erf", "Exp", "HardSigmoid", "HardSwish", "LeakyRelu", "Log")
    others = ("Neg", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softplus", "Sqrt", "Tanh")
    waves = ("Asinh", "Atan", "Cos", "Cosh", "Reciprocal", "Sin", "Sinh", "Softsign", "Tan")
    for source in ("rows", "image"):
        backwards = net.op("Slice", source, *(net.const([at], "int64") for at in (-1, -99, -1, -1)))
        for name in (*ones, *others, *waves, "Celu", "ThresholdedRelu"):
            cases[f"{name} {source}"] = net.op(name, source)
        for name in ("Add", "Div", "Max", "Min", "Mul", "PRelu", "Sub"):
            cases[f"{name} {source}"] = net.op(name, source, backwards)
        for low, high in ((0.0, 6.0), (None, 1.0), (0.0, None)):
            bounds = (net.const(at, "float32") if at is not None else "" for at in (low, high))
            cases[f"Clip {source} {low} {high}"] = net.op("Clip", source, *bounds)
        for power in (0.5, 1.5, 2.0, 3.0, -1.0, -1.5):
            cases[f"Pow {source} {power}"] = net.op("Pow", source, net.const(power, "float32"))
        mish = net.op("Mul", source, net.op("Tanh", net.op("Softplus", source)))
        cases[f"Mish {source}"] = mish
        cases[f"Gelu {source}"] = gelu(net, source)
        zero = net.const(0.0, "float32")
        cases[f"Mul by 0 {source}"] = net.op("Mul", source, zero)
        cases[f"0 over it {source}"] = net.op("Div", zero, source)
        cases[f"Max of NaN {source}"] = net.op("Max", source, net.const(np.nan, "float32"))
    return cases


def comparisons(net: Builder) -> Cases:
    cases: Cases = {}
    for source in ("rows", "image"):
        backwards = net.op("Slice", source, *(net.const([at], "int64") for at in (-1, -99, -1, -1)))
        zero, seven = net.const(0.0, "float32"), net.const(7.0, "float32")
        for name in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
            for what, other in (("0", zero), ("another", backwards), ("itself", source)):
                is_so = net.op(name, source, other)
                is_not = net.op("Not", net.op(name, source, other))
                title = f"{name} {what} {source}"
                cases[title] = net.op("Cast", is_so, to=TensorProto.FLOAT)
                cases[f"not {title}"] = net.op("Where", is_not, seven, zero)
        cases[f"less itself {source}"] = net.op("Sub", source, source)
        cases[f"IsNaN {source}"] = net.op("Where", net.op("IsNaN", source), seven, source)
        cases[f"no NaN {source}"] = net.op(
            "Where", net.op("Not", net.op("IsNaN", source)), source, seven
        )
    return cases


def reductions(net: Builder) -> Cases:
    cases: Cases = {}
    for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare"):
        for source, axes in (("rows", [0]), ("rows", [1]), ("image", [2, 3]), ("image", [1])):
            cases[f"Reduce{name} {source} {axes}"] = net.op(f"Reduce{name}", source, axes=axes)
    for name in ("ArgMax", "ArgMin"):
        for source, axis in (("rows", 0), ("rows", 1), ("image", 1)):
            for last in (0, 1):
                index = net.op(name, source, axis=axis, select_last_index=last)
                cases[f"{name} {source} {axis} {last}"] = net.op("Cast", index, to=1)
    for name in ("LogSoftmax", "Softmax"):
        for source, axis in (("rows", 1), ("rows", 0), ("image", 1)):
            cases[f"{name} {source} {axis}"] = net.op(name, source, axis=axis)
    scale = net.weight(21), net.weight(21)
    cases["LayerNormalization"] = net.op("LayerNormalization", "rows", *scale)
    cases["CumSum"] = net.op("CumSum", "rows", net.const(1, "int64"))
    cases["MatMul"] = net.op("MatMul", "rows", net.op("Transpose", "rows"))
    statistics = net.weight(9), net.op("Abs", net.weight(9))
    cases["BatchNormalization"] = net.op(
        "BatchNormalization", "image", net.weight(9), net.weight(9), *statistics
    )
    cases["LpPool"] = net.op("LpPool", "image", kernel_shape=[2, 2])
    both = net.weight(9), net.weight(9)
    cases["InstanceNormalization"] = net.op("InstanceNormalization", "image", *both)
    for p in (1, 2):
        cases[f"LpNormalization {p}"] = net.op("LpNormalization", "image", axis=1, p=p)
    for name in ("AveragePool", "MaxPool"):
        for size in (2, 3):
            cases[f"{name} {size}"] = net.op(
                name, "image", kernel_shape=[size, size], strides=[size - 1] * 2
            )
    cases["GlobalMaxPool"] = net.op("GlobalMaxPool", "image")
    cases["GlobalAveragePool"] = net.op("GlobalAveragePool", "image")
    return cases


def epilogues(net: Builder) -> Cases:
    """Activations within products and convolutions, depthwise, strided and by Winograd's tiles."""
    cases: Cases = {}

    def ends(title: str, make: Callable[[], str], channels: int) -> None:
        zero, six = net.const(0.0, "float32"), net.const(6.0, "float32")
        for name in ("HardSwish", "LeakyRelu", "Relu", "Sigmoid"):
            cases[f"{title} {name}"] = net.op(name, make())
        cases[f"{title} Gelu"] = gelu(net, make())
        cases[f"{title} Clip"] = net.op("Clip", make(), zero, six)
        cases[f"{title} Max"] = net.op("Max", make(), zero)
        cases[f"{title} not less"] = net.op(
            "Where", net.op("Not", net.op("Less", make(), zero)), six, zero
        )
        if channels:
            cases[f"{title} PRelu"] = net.op("PRelu", make(), net.weight(channels, 1, 1))
            cases[f"{title} Add, Relu"] = net.op("Relu", net.op("Add", make(), make()))

    ends("1x1", lambda: net.conv("image", 9, 8, 1, pads=[0] * 4), 8)
    ends("3x3", lambda: net.conv("image", 9, 16), 16)
    ends("depthwise", lambda: net.conv("image", 9, 9, group=9), 9)
    ends("strided", lambda: net.conv("image", 9, 8, strides=[2, 2]), 8)
    ends("Gemm", lambda: net.op("Gemm", "rows", net.weight(21, 10), net.weight(10)), 0)
    for strides, dilations in (([1, 1], [2, 2]), ([3, 2], [2, 3])):
        cases[f"transposed {strides} {dilations}"] = net.op(
            "ConvTranspose",
            "image",
            net.weight(9, 4, 3, 3),
            net.weight(4),
            strides=strides,
            dilations=dilations,
        )
    ends("Gemm of a row", lambda: net.op("Gemm", "row", net.weight(37, 33), net.weight(33)), 0)
    return cases


FAMILIES = [element_wise, comparisons, reductions, epilogues]


def windows(image: np.ndarray, size: int, step: int) -> np.ndarray:
    cut = np.lib.stride_tricks.sliding_window_view(image, (size, size), axis=(2, 3))
    return np.asarray(cut[:, :, ::step, ::step].max(axis=(-1, -2)))


def maxima(name: str, given: dict[str, np.ndarray]) -> np.ndarray | None:
    """What numpy makes of a maximum; None for anything else."""
    operator, *words = name.split(" ", 2)
    if operator in ("ReduceMax", "ReduceMin"):
        axes = tuple(int(axis) for axis in words[1].strip("[]").split(","))
        extreme = np.max if operator == "ReduceMax" else np.min
        return np.asarray(extreme(given[words[0]], axis=axes, keepdims=True))
    if operator == "GlobalMaxPool":
        return np.asarray(given["image"].max(axis=(2, 3), keepdims=True))
    if operator == "MaxPool":
        return windows(given["image"], int(words[0]), int(words[0]) - 1)
    return None


def kinds(values: np.ndarray) -> np.ndarray:
    """2 for NaN, 1 and -1 for infinities, 0 for what is finite."""
    return np.where(np.isnan(values), 2, np.where(np.isinf(values), np.sign(values), 0))


def wrong(name: str, mine: np.ndarray, due: np.ndarray) -> list[str]:
    assert mine.shape == due.shape
    other = kinds(mine) != kinds(due)
    if other.any():
        at = int(np.flatnonzero(other)[0])
        count = np.count_nonzero(other)
        return [f"{name}: {count} of {due.size}, {mine.flat[at]} for {due.flat[at]}"]
    finite = np.isfinite(due)
    error = np.abs(mine - due, where=finite, out=np.zeros(due.shape)).max()
    largest = np.abs(due, where=finite, out=np.zeros(due.shape)).max()
    return [f"{name}: {error} of {largest}"] if error > 1e-4 * max(largest, 1e-6) else []


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: str(family.__name__))
@every_target_in_parts
def test_nan_and_infinity_are_where_they_should_be(
    family: Callable[[Builder], Cases], board: str, cpu: str, part: slice, tmp_path: Path
) -> None:
    if part.step == 2 and board != "local" and family in (comparisons, reductions):
        pytest.skip("ARM's short form has the families with instructions of their own")
    net = Builder(5)
    cases = some(family(net), part)
    path = save_cases(tmp_path / "model.onnx", net, INPUTS, cases)
    given = {name: special(shape) for name, shape in INPUTS.items()}
    names = [value.name for value in onnx.load(path).graph.input]
    options = onnxruntime.SessionOptions()
    off = (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    )  # fused ones are other than single ones
    options.graph_optimization_level = off
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    due = session.run(None, given)
    inputs = [given[name] for name in names]
    # Everything is bounded: Winograd's large tiles would spread what is not finite.
    exact = Precision(direct=True)
    _, got = compile_and_run(path, inputs, board, cpu, tmp_path, precision=exact)
    found: list[str] = []
    with np.errstate(all="ignore"):
        for name, mine, theirs in zip(cases, got, due, strict=True):
            by_numpy = maxima(name, given)
            found += wrong(name, mine, theirs if by_numpy is None else by_numpy)
    assert not found, "\n".join(found)

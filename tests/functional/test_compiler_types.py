"""Operators on integers, bools and indices, on every instruction set, against onnxruntime.

Results that are no floats have to be equal. Shapes come from a fixed seed; most sizes are no
multiple of any vector's width.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from tests.onnx_models import Builder
from tests.targets import (
    compile_and_run,
    every_target,
    every_target_in_parts,
    save_cases,
    some,
    wrong_outputs,
)

SHAPES: dict[str, tuple[int, ...]] = {
    "rows": (19, 45),
    "image": (2, 7, 13, 18),
    "wide": (1, 5, 9, 131),
    "column": (67, 1),
}
TYPES = {
    "float32": TensorProto.FLOAT,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}
# Each shape in each type.
INPUTS = {f"{name}_{dtype}": shape for name, shape in SHAPES.items() for dtype in TYPES}
DTYPES = {name: TYPES[name.rpartition("_")[2]] for name in INPUTS}
SEEDS = [21, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (22, 23))]

Cases = dict[str, str]


class Draw:
    """Random sources and parameters."""

    def __init__(self, net: Builder, seed: int) -> None:
        self.net = net
        self.random = np.random.default_rng(seed)

    def source(self, dtype: str) -> tuple[str, tuple[int, ...]]:
        name = str(self.random.choice([name for name in INPUTS if name.endswith(f"_{dtype}")]))
        return name, INPUTS[name]

    def axis(self, shape: tuple[int, ...]) -> int:
        """Counted from the start or from the end."""
        return int(self.random.integers(-len(shape), len(shape)))


def extrema(draw: Draw) -> Cases:
    """Integers have many equal elements; so have floats once they are rounded."""
    net, cases = draw.net, {}
    for dtype in ("float32", "float32", "int32", "uint8", "int8"):
        for op in ("ArgMax", "ArgMin"):
            source, shape = draw.source(dtype)
            axis, keep, last = draw.axis(shape), *(int(v) for v in draw.random.integers(2, size=2))
            data = net.op("Round", source) if dtype == "float32" else source
            name = f"{op} {source} {axis} {keep} {last}"
            cases[name] = net.op(op, data, axis=axis, keepdims=keep, select_last_index=last)
    infinite = net.op("Log", net.op("Sub", "image_float32", "image_float32"))
    cases["ArgMax of -infinity"] = net.op("ArgMax", infinite, axis=1)
    cases["ArgMax of -infinity in a row"] = net.op("ArgMax", infinite, axis=-1)
    return cases


def element_wise(draw: Draw) -> Cases:
    """Arithmetic, comparisons, logic and choices."""
    net, cases = draw.net, {}
    # Infinities of both signs, of -0 and 0, and NaN, of what is negative.
    whole = net.op("Round", "image_float32")
    special = net.op("Mul", net.op("Log", whole), net.op("Reciprocal", whole))
    for positive, negative in ((1, 1), (1, 0), (0, 1), (0, 0)):
        attributes = {"detect_positive": positive, "detect_negative": negative}
        cases[f"IsInf {positive} {negative}"] = net.op("IsInf", special, **attributes)
    for dtype in ("int32", "int64"):
        for op in ("Add", "Sub", "Mul", "Max", "Min"):
            source, shape = draw.source(dtype)
            other = net.op("Abs", source) if op == "Sub" else net.const(3, dtype)
            cases[f"{op} {source}"] = net.op(op, source, other)
        positive = net.op("Abs", f"rows_{dtype}")
        cases[f"Div {dtype}"] = net.op("Div", positive, net.const(3, dtype))
        cases[f"Mod {dtype}"] = net.op("Mod", positive, net.const(7, dtype))
    for dtype in ("float32", "int32", "int64"):
        for op in ("Greater", "Less", "Equal", "LessOrEqual"):
            source, shape = draw.source(dtype)
            per_column = net.const(draw.random.integers(-9, 9, size=shape[-1]), dtype)
            cases[f"{op} {source}"] = net.op(op, source, per_column)
    for op in ("And", "Or", "Xor"):
        source, _ = draw.source("bool")
        cases[f"{op} {source}"] = net.op(op, source, net.op("Not", source))
        other = source.replace("bool", "int32")
        positive = net.op("Greater", other, net.const(2, "int32"))
        cases[f"{op} {other}"] = net.op(op, source, positive)
    for dtype in ("float32", "int32", "int64", "uint8"):
        source, shape = draw.source(dtype)
        condition = source.replace(dtype, "bool")
        cases[f"Where {source}"] = net.op("Where", condition, source, net.const(5, dtype))
    return cases


def casts(draw: Draw) -> Cases:
    """Between all pairs of types; floats are positive and whole before they become integers."""
    net, cases = draw.net, {}
    for dtype in TYPES:
        for to, number in TYPES.items():
            source, _ = draw.source(dtype)
            data = net.op("Abs", net.op("Round", source)) if dtype == "float32" else source
            if dtype != to:
                cases[f"{source} to {to}"] = net.op("Cast", data, to=number)
    scaled = net.op("Cast", "image_uint8", to=TensorProto.FLOAT)
    scaled = net.op("Div", net.op("Sub", scaled, net.const(12.5, "float32")), "image_float32")
    cases["normalised"] = net.op("Tanh", scaled)
    return cases


def copies(draw: Draw) -> Cases:
    net, cases = draw.net, {}
    for dtype in ("int32", "int64", "uint8", "bool"):
        source, shape = draw.source(dtype)
        perm = draw.random.permutation(len(shape)).tolist()
        cases[f"Transpose {source} {perm}"] = net.op("Transpose", source, perm=perm)
        source, shape = draw.source(dtype)
        axis = draw.axis(shape)
        cases[f"Concat {source} {axis}"] = net.op("Concat", source, source, axis=axis)
        bounds = [net.const([value], "int64") for value in (1, 1000, -1, 2)]
        if shape[-1] > 1:
            cases[f"Slice {source}"] = net.op("Slice", source, *bounds)
        cases[f"Tile {dtype}"] = net.op("Tile", f"rows_{dtype}", net.const([2, 3], "int64"))
        expanded = net.op("Expand", f"column_{dtype}", net.const([3, 67, 21], "int64"))
        cases[f"Expand {dtype}"] = expanded
        if dtype != "bool":
            pads = draw.random.integers(0, 3, size=4).tolist()
            cases[f"Pad {dtype} {pads}"] = net.op(
                "Pad", f"rows_{dtype}", net.const(pads, "int64"), mode="edge"
            )
    return cases


def reductions(draw: Draw) -> Cases:
    net, cases = draw.net, {}
    for dtype in ("int32", "int64"):
        for op in ("Sum", "Max", "Min", "Prod"):
            source, shape = draw.source(dtype)
            axis, keep = draw.axis(shape), int(draw.random.integers(2))
            name = f"Reduce{op} {source} {axis} {keep}"
            if op == "Sum":
                axes = net.const([axis], "int64")
                cases[name] = net.op("ReduceSum", source, axes, keepdims=keep)
                continue
            data = source
            if op == "Prod":
                # onnxruntime's integers do not wrap around.
                data = net.op(
                    "Min", net.op("Max", source, net.const(-1, dtype)), net.const(1, dtype)
                )
            cases[name] = net.op(f"Reduce{op}", data, axes=[axis], keepdims=keep)
    ones = net.op("Cast", "image_bool", to=TensorProto.INT32)
    cases["count"] = net.op("ReduceSum", ones, net.const([-1], "int64"), keepdims=0)
    return cases


def gathers(draw: Draw) -> Cases:
    """Rows, as of an embedding, and elements along the last axis; indices of both signs."""
    net, cases = draw.net, {}
    for dtype in TYPES:
        source, shape = draw.source(dtype)
        axis = draw.axis(shape)
        most = shape[axis]
        indices = draw.random.integers(-most, most, size=(3, 7))
        name = f"Gather {source} {axis}"
        cases[name] = net.op("Gather", source, net.const(indices, "int64"), axis=axis)
    words = net.op("Clip", "rows_int64", net.const(0, "int64"), net.const(18, "int64"))
    cases["embedding"] = net.op("Gather", "rows_float32", words)
    cases["last axis"] = net.op("Gather", "rows_float32", words, axis=-1)
    return cases


FAMILIES: tuple[Callable[[Draw], Cases], ...] = (
    extrema,
    element_wise,
    casts,
    copies,
    reductions,
    gathers,
)


@pytest.mark.parametrize("seed", SEEDS)
@every_target_in_parts
def test_outputs_equal_onnxruntime(
    tmp_path: Path, board: str, cpu: str, part: slice, seed: int
) -> None:
    draw = Draw(Builder(seed), seed)
    cases = {
        f"{family.__name__}: {name}": value
        for family in FAMILIES
        for name, value in some(family(draw), part).items()
    }
    path = save_cases(tmp_path / "types.onnx", draw.net, INPUTS, cases, DTYPES)
    inputs = [values(name, shape, draw.random) for name, shape in INPUTS.items()]
    _, got = compile_and_run(path, inputs, board, cpu, tmp_path)
    assert not wrong_outputs(path, inputs, got)


def values(name: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Normal floats, small integers of both signs where there are, coins."""
    dtype = name.rpartition("_")[2]
    if dtype == "float32":
        return (2 * random.normal(size=shape)).astype(dtype)
    low, high = {"uint8": (0, 40), "bool": (0, 2)}.get(dtype, (-20, 20))
    return random.integers(low, high, size=shape).astype(dtype)


@every_target
def test_integers_divide_by_anything(tmp_path: Path, board: str, cpu: str) -> None:
    """By 0 and -1, too: onnxruntime refuses zeros, and crashes at the smallest by -1."""
    net, dtypes, inputs, cases = Builder(1), {}, {}, {}
    for dtype in ("int64", "int32", "int8", "uint8"):
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        numbers = np.array([7, 0, 1, -1 if least else 9, least, most, 100, -100 if least else 3])
        divisors = np.array([0, 1, 3, -1 if least else 2, -3 if least else 5, most, least])
        pairs = np.array([(a, b) for a in numbers.tolist() for b in divisors.tolist()], dtype).T
        inputs |= {f"{dtype}_{side}": pairs[side].copy() for side in (0, 1)}
        dtypes |= {f"{dtype}_{side}": TYPES[dtype] for side in (0, 1)}
        for op, attributes in (("Div", {}), ("Mod", {}), ("Mod", {"fmod": 1})):
            name = f"{op} {dtype} {len(attributes)}"
            cases[name] = net.op(op, f"{dtype}_0", f"{dtype}_1", **attributes)
    shapes = {name: values.shape for name, values in inputs.items()}
    path = save_cases(tmp_path / "divide.onnx", net, shapes, cases, dtypes)
    _, got = compile_and_run(path, list(inputs.values()), board, cpu, tmp_path)
    for (name, _), output in zip(cases.items(), got, strict=True):
        op, dtype, truncated = name.split()
        expected = [
            _divided(op, int(a), int(b), truncated == "1") % 256**output.itemsize
            for a, b in zip(inputs[f"{dtype}_0"], inputs[f"{dtype}_1"], strict=True)
        ]
        assert output.dtype == dtype
        assert output.view(f"u{output.itemsize}").tolist() == expected, name


def _divided(op: str, number: int, divisor: int, truncated: bool) -> int:
    """ONNX's Div and Mod of whole numbers that know no bounds; 0 where the divisor is."""
    if divisor == 0:
        return 0
    quotient = abs(number) // abs(divisor) * (1 if (number < 0) == (divisor < 0) else -1)
    if op == "Div":
        return quotient
    return number - quotient * divisor if truncated else number % divisor


@every_target
def test_truth_values_are_compared(tmp_path: Path, board: str, cpu: str) -> None:
    """As they come, as what comparisons make, and broadcast; long enough for any vectors."""
    net, length = Builder(1), 67
    less, even = net.op("Less", "a", "b"), net.op("Equal", "c", "d")
    makes = {
        "inputs": even,
        "comparison": net.op("Equal", "c", less),
        "comparisons": net.op("Equal", net.op("Greater", "a", "b"), less),
        "negated": net.op("Not", net.op("Equal", less, "c")),
        "one": net.op("Equal", "c", net.const(np.array([True]))),
        "chain": net.op("Equal", even, less),
        "chosen": net.op("Where", net.op("Equal", less, "d"), "a", "b"),
    }
    draw = np.random.default_rng(5)
    a, b = (draw.integers(-2, 3, length).astype("float32") for _ in range(2))
    a[::9] = np.nan
    c, d = (draw.integers(0, 2, length).astype("bool") for _ in range(2))
    expected = {
        "inputs": c == d,
        "comparison": c == (a < b),
        "comparisons": (a > b) == (a < b),
        "negated": (a < b) != c,
        "one": c,
        "chain": (c == d) == (a < b),
        "chosen": np.where((a < b) == d, a, b),
    }
    dtypes = dict.fromkeys("cd", TYPES["bool"])
    path = save_cases(tmp_path / "truth.onnx", net, dict.fromkeys("abcd", (length,)), makes, dtypes)
    _, got = compile_and_run(path, [a, b, c, d], board, cpu, tmp_path)
    for (name, want), made in zip(expected.items(), got, strict=True):
        np.testing.assert_array_equal(made, want, err_msg=name)


@every_target
def test_shifts_by_the_width_and_more(tmp_path: Path, board: str, cpu: str) -> None:
    """Leave nothing, as in numpy; C and processors differ."""
    net, given, due = Builder(2), {}, {}
    for dtype, kind in (("uint8", 2), ("uint16", 4), ("uint32", 12), ("uint64", 13)):
        most = int(np.iinfo(dtype).max)
        amounts = [0, 1, 5, 7, 8, 15, 16, 31, 32, 63, 64, 255, 256, most // 2 + 1, most - 1, most]
        by = np.array([amount for amount in amounts if amount <= most], dtype)
        x = np.array([most, most // 3, 1, 0, most // 2 + 1], dtype)[:, None].repeat(by.size, 1)
        given |= {f"x {kind}": x, f"y {kind}": np.broadcast_to(by, x.shape).copy()}
        for direction, shift in (("LEFT", np.left_shift), ("RIGHT", np.right_shift)):
            shifted = net.op("BitShift", f"x {kind}", f"y {kind}", direction=direction)
            due[net.op("Identity", shifted, outputs=[f"{direction} {dtype}"])] = shift(x, by)
    cases = {f"out {name}": name for name in due}
    shapes = {name: value.shape for name, value in given.items()}
    dtypes = {name: int(name.split()[1]) for name in given}
    path = save_cases(tmp_path / "model.onnx", net, shapes, cases, dtypes)
    _, got = compile_and_run(path, list(given.values()), board, cpu, tmp_path)
    for (name, theirs), mine in zip(due.items(), got, strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=name, strict=True)

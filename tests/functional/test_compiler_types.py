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
from tests.targets import TARGETS, compile_and_run, save_cases, wrong_outputs

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


FAMILIES: tuple[Callable[[Draw], Cases], ...] = (extrema,)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("board", "cpu"), TARGETS)
def test_outputs_equal_onnxruntime(tmp_path: Path, board: str, cpu: str, seed: int) -> None:
    draw = Draw(Builder(seed), seed)
    cases = {
        f"{family.__name__}: {name}": value
        for family in FAMILIES
        for name, value in family(draw).items()
    }
    dtypes = {name: TYPES[name.rpartition("_")[2]] for name in INPUTS}
    path = save_cases(tmp_path / "types.onnx", draw.net, INPUTS, cases, dtypes)
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

"""ArgMax and ArgMin where there are NaN: onnxruntime's places, on every instruction set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target, save_cases

# An axis of its own, the last one, and one before others.
SHAPES = {"line": (37,), "row": (1, 37), "rows": (5, 37), "columns": (37, 6), "parts": (2, 37, 5)}
AXES = {"line": 0, "row": 1, "rows": 1, "columns": 0, "parts": 1}


def with_nan(shape: tuple[int, ...], axis: int, dtype: str) -> np.ndarray:
    """Ties, and NaN before and behind the extremes; in some lines as the first one or alone."""
    random = np.random.default_rng(4)
    values = random.integers(-4, 5, shape).astype(dtype)
    lines = np.moveaxis(values, axis, -1)
    lines[random.random(lines.shape) < 0.2] = np.nan
    lines[..., 0] = 1
    flat = lines.reshape(-1, lines.shape[-1])
    if len(flat) > 2:
        flat[1, 0], flat[2] = np.nan, np.nan
    made = np.moveaxis(flat.reshape(lines.shape), -1, axis)
    return np.ascontiguousarray(made)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@every_target
def test_places_are_those_of_onnxruntime(dtype: str, board: str, cpu: str, tmp_path: Path) -> None:
    net = Builder(4)
    cases = {
        f"{name} {source} {last} {keep}": net.op(
            name, source, axis=AXES[source], select_last_index=last, keepdims=keep
        )
        for name in ("ArgMax", "ArgMin")
        for source in SHAPES
        for last, keep in ((0, 1), (0, 0), (1, 0))
    }
    kind = {"float32": 1, "float64": 11}[dtype]
    path = save_cases(tmp_path / "model.onnx", net, SHAPES, cases, dict.fromkeys(SHAPES, kind))
    given = {name: with_nan(shape, AXES[name], dtype) for name, shape in SHAPES.items()}
    assert all(np.isnan(value).any() for value in given.values())
    names = [value.name for value in onnx.load(path).graph.input]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    due = session.run(None, given)
    _, got = compile_and_run(path, [given[name] for name in names], board, cpu, tmp_path)
    for name, mine, theirs in zip(cases, got, due, strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=name, strict=True)

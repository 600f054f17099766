"""Element-wise functions of numbers of all sizes, on every instruction set, against numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target, save_cases

# By numpy's names; how wrong a result may be, as a share of it and by itself.
FUNCTIONS = {
    "Sin": (np.sin, 0, 1e-6),
    "Cos": (np.cos, 0, 1e-6),
    "Tan": (np.tan, 1e-6, 0),
    "Sinh": (np.sinh, 1e-6, 0),
    "Cosh": (np.cosh, 1e-6, 0),
    "Tanh": (np.tanh, 1e-6, 0),
    "Asinh": (np.arcsinh, 1e-6, 0),
    "Acosh": (np.arccosh, 1e-6, 0),
    "Atanh": (np.arctanh, 1e-6, 0),
    "Exp": (np.exp, 1e-6, 0),
    "Log": (np.log, 1e-6, 1e-7),
    "Sqrt": (np.sqrt, 1e-6, 0),
    "Floor": (np.floor, 0, 0),
    "Round": (np.rint, 0, 0),
}
IMAGE = (1, 9, 6, 18)


def of_all_sizes(count: int, dtype: str) -> np.ndarray:
    """Normal numbers; every fourth is near a multiple of a quarter turn."""
    random, kind = np.random.default_rng(3), np.finfo(dtype)
    # What is smaller, or becomes so in a polynomial, NEON takes for 0.
    least = kind.minexp + (24 if dtype == "float32" else 0)
    exponents = np.resize(np.arange(least, kind.maxexp), count)
    values = np.ldexp(random.uniform(1, 2, count), exponents)
    turns = np.rint(np.ldexp(values[::4], -1)) * (np.pi / 2)
    values[::4] = np.where((turns > 0) & (turns < float(kind.max)), turns, values[::4])
    if dtype == "float32":
        # Of all float32 numbers, the first is the one that is nearest to such a multiple.
        values[:3] = 16367173 * 2.0**72, 3.4e38, 99999.9
    values = np.minimum(values, float(kind.max)) * random.choice([-1, 1], count)
    return random.permutation(values).astype(dtype)


def wrong(name: str, made: np.ndarray, given: np.ndarray, slack: float) -> list[str]:
    function, relative, absolute = FUNCTIONS[name.split(maxsplit=1)[0]]
    with np.errstate(all="ignore"):
        due = function(given.astype("longdouble")).astype(given.dtype)
    same = (made == due) | (np.isnan(made) & np.isnan(due))
    limit = slack * (relative * np.abs(due.astype("float64")) + absolute)
    with np.errstate(invalid="ignore"):
        same |= np.abs(made.astype("float64") - due) <= limit
    same |= np.abs(due) < 2 * np.finfo(due.dtype).tiny
    if same.all():
        return []
    at = int(np.flatnonzero(~same)[0])
    return [f"{name} of {given.flat[at]}: {made.flat[at]} for {due.flat[at]}, {(~same).sum()}"]


@every_target
def test_numbers_of_all_sizes(board: str, cpu: str, tmp_path: Path) -> None:
    net = Builder(3)
    cases = {f"{name} rows": net.op(name, "rows") for name in FUNCTIONS}
    # A convolution that changes nothing, so that channels lie in blocks.
    same = net.op("Conv", "image", net.const(np.ones((9, 1, 1, 1), "float32")), group=9)
    cases |= {f"{name} image": net.op(name, same) for name in ("Sin", "Cos")}
    shapes = {"rows": (9, 173), "image": IMAGE}
    path = save_cases(tmp_path / "model.onnx", net, shapes, cases)
    given = {
        name: of_all_sizes(int(np.prod(shape)), "float32").reshape(shape)
        for name, shape in shapes.items()
    }
    _, got = compile_and_run(path, list(given.values()), board, cpu, tmp_path)
    found = [
        line
        for name, made in zip(cases, got, strict=True)
        for line in wrong(name, made, given[name.split()[1]], 1)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_floats_of_all_sizes(dtype: str, tmp_path: Path) -> None:
    net = Builder(3)
    cases = {name: net.op(name, "x") for name in FUNCTIONS}
    kind = {"float16": 10, "float64": 11}[dtype]
    path = save_cases(tmp_path / "model.onnx", net, {"x": (9, 467)}, cases, {"x": kind})
    x = of_all_sizes(9 * 467, dtype).reshape(9, 467)
    _, got = compile_and_run(path, [x], "local", "native", tmp_path)
    slack = {"float16": 1e3, "float64": 1e-7}[dtype]
    found = [
        line for name, made in zip(cases, got, strict=True) for line in wrong(name, made, x, slack)
    ]
    assert not found, "\n".join(found)

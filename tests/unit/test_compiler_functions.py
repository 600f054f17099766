"""edgepack/kernels/tiles/functions.py against double precision, on scalars and on vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx

from edgepack.kernels.tiles import functions, tir

SIZE = 1 << 16
_EXACT = {
    "exp": np.exp,
    "log": np.log,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf),
    "sin": np.sin,
    "cos": np.cos,
}


def aligned(values: np.ndarray) -> np.ndarray:
    """Kernels may assume what the arena keeps: boundaries of 64 bytes."""
    room = np.empty(values.size + 16, "float32")
    start = -room.ctypes.data % 64 // 4
    room[start : start + values.size] = values
    return room[start : start + values.size]


def run(function: Callable[..., tirx.Expr], x: np.ndarray, lanes: int) -> np.ndarray:
    """As it is used: inside one expression for scalars, with statements for vectors."""
    source, target = (
        tir.buffer("source", (x.size,), "float32"),
        tir.buffer("target", (x.size,), "float32"),
    )

    def step(i: tir.Expr) -> tir.Stmt:
        value = tir.load(source, [i * lanes], lanes)
        names = tir.Names()
        if lanes == 1:
            result = functions.as_expression(function, value)
        else:
            result = function(value, functions.Scope(lanes, partial(names.bind, "v")))
        names.add(tir.store(target, result, [i * lanes], lanes))
        return names.done()

    kernel = tir.function([source, target], tir.loop_of("i", x.size // lanes, step)).with_attr(
        "global_symbol", "main"
    )
    library = tvm.compile(tvm.IRModule({"main": kernel}), tvm.target.Target({"kind": "llvm"}))
    x, y = aligned(x), aligned(np.zeros(x.size))
    library["main"](tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(y))
    return y


def arguments(low: float, high: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, SIZE).astype("float32")


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize(
    ("name", "low", "high", "relative", "absolute"),
    [
        ("exp", -86, 88.7, 2e-7, 0),
        ("log", 1e-37, 1e-3, 2e-7, 0),
        ("log", 1e-45, 1.1e-38, 2e-7, 0),
        ("log", 1e-3, 1e3, 2e-7, 1e-7),
        ("sigmoid", -80, 80, 3e-7, 0),
        ("tanh", -1e-3, 1e-3, 5e-7, 0),
        ("tanh", -20, 20, 5e-7, 0),
        ("erf", -1e-3, 1e-3, 5e-7, 0),
        ("erf", -6, 6, 5e-7, 0),
        ("sin", -12800, 12800, 0, 1e-7),
        ("cos", -12800, 12800, 0, 1e-7),
    ],
)
def test_error_is_as_documented(
    name: str, low: float, high: float, relative: float, absolute: float, lanes: int
) -> None:
    x = arguments(low, high)
    exact = _EXACT[name](x.astype("float64"))
    error = np.abs(run(functions.FUNCTIONS[name], x, lanes) - exact)
    assert (error <= relative * np.abs(exact) + absolute).all()


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_waves_of_all_sizes(name: str, lanes: int) -> None:
    """Of arguments near zeros and extremes, too."""
    random = np.random.default_rng(0)
    x = np.ldexp(random.uniform(1, 2, SIZE // 2), random.integers(-149, 128, SIZE // 2))
    turns = np.rint(np.ldexp(random.uniform(1, 2, SIZE // 4), random.integers(0, 127, SIZE // 4)))
    # Of all float32 numbers, the one that is nearest to a multiple of a quarter turn.
    x = np.concatenate([x, turns * (np.pi / 2), [16367173 * 2.0**72, np.finfo("float32").max]])
    x = np.resize(np.concatenate([x, -x]), 2 * SIZE).astype("float32")
    made = run(functions.FUNCTIONS[name], x, lanes)
    error = np.abs(made - _EXACT[name](x.astype("float64")))
    assert (error <= np.where(np.abs(x) <= 12800, 1e-7, 1e-6)).all()
    assert np.isnan(run(functions.FUNCTIONS[name], np.full(4, -np.inf), lanes)).all()


@pytest.mark.parametrize("lanes", [1, 4])
def test_gelu(lanes: int) -> None:
    x = arguments(-8, 8)
    wide = x.astype("float64")
    exact = wide * (1 + _EXACT["erf"](wide * 0.5**0.5)) / 2
    assert (np.abs(run(functions.gelu, x, lanes) - exact) <= 4e-7 * np.abs(wide)).all()
    inner = (2 / np.pi) ** 0.5 * (wide + 0.044715 * wide**3)
    by_tanh = wide * (1 + np.tanh(inner)) / 2
    assert (np.abs(run(functions.gelu_tanh, x, lanes) - by_tanh) <= 4e-7 * np.abs(wide)).all()
    ends = run(
        functions.gelu, np.array([np.nan, np.inf, 1e30, -1e30, 0, 5.15, -5.15, -np.inf] * 2), lanes
    )
    # Of -infinity times 0, as of onnxruntime's Gelu and its parts; a hot value leaves nothing.
    assert np.isnan(ends[[0, 7]]).all()
    assert ends[1] == np.inf
    assert ends[3] == ends[4] == 0
    np.testing.assert_allclose(ends[[2, 5]], [1e30, 5.15], rtol=4e-7)
    np.testing.assert_allclose(ends[6] / 5.15, 0, atol=4e-7)


@pytest.mark.parametrize("lanes", [1, 4])
def test_powers_of_two(lanes: int) -> None:
    x = arguments(-126, 0)
    exact = np.exp2(x.astype("float64"))
    assert (np.abs(run(functions.power_of_two, x, lanes) - exact) <= 2.5e-7 * exact).all()
    ends = run(functions.power_of_two, np.array([-np.inf, -1e30, -127, np.nan, 0, -1, -3, -126]), 4)
    assert ends[:3].tolist() == [0, 0, 0]
    assert np.isnan(ends[3])
    np.testing.assert_allclose(ends[4:], [1, 0.5, 0.125, 2.0**-126], rtol=2.5e-7)


@pytest.mark.parametrize(
    ("exponent", "relative"),
    [(2, 2e-7), (5, 5e-7), (-3, 4e-7), (0.5, 2e-7), (1.5, 1e-5), (-2.25, 1e-5), (0, 0)],
)
def test_powers(exponent: float, relative: float) -> None:
    x = arguments(1e-6, 1e6)

    def power(base: tirx.Expr, scope: functions.Scope) -> tirx.Expr:
        return functions.power(base, tirx.FloatImm("float32", exponent), scope)

    exact = x.astype("float64") ** exponent
    assert (np.abs(run(power, x, 4) - exact) <= relative * np.abs(exact)).all()
    ends = np.array([-2.0, -0.5, 0.5, 2.0, -np.inf, np.inf, np.nan, 0.0], "float32")
    with np.errstate(invalid="ignore", divide="ignore"):
        # By C's pow: numpy has a square root for a single 0.5, which is NaN of minus infinity.
        due = np.power(ends, np.full_like(ends, exponent))
    np.testing.assert_allclose(run(power, ends, 4), due, rtol=1e-5)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("name", sorted(_EXACT))
def test_nan_stays_nan(name: str, lanes: int) -> None:
    x = np.array([np.nan, 0.5, -np.nan, 0.25] * 4)
    found = run(functions.FUNCTIONS[name], x, lanes)
    assert np.isnan(found).tolist() == [True, False] * 8


def test_ends_of_the_range() -> None:
    ends = np.array([-np.inf, -1e30, -89, 0, 89, 1e30, np.inf, 1])
    with np.errstate(all="ignore"):
        assert run(functions.exp, ends, 4).tolist() == [0, 0, 0, 1, *[np.inf] * 3, np.float32(np.e)]
        logs = run(functions.log, ends, 4)
        assert np.isnan(logs[:3]).all()
        assert logs[3:].tolist() == [-np.inf, *np.log(ends[4:].astype("float32")).tolist()]
    assert run(functions.sigmoid, ends, 4)[[0, 3, 6]].tolist() == [0, 0.5, 1]
    np.testing.assert_allclose(run(functions.tanh, ends, 4)[[0, 3, 6]], [-1, 0, 1], atol=5e-7)
    np.testing.assert_allclose(run(functions.erf, ends, 4)[[0, 3, 6]], [-1, 0, 1], atol=5e-7)

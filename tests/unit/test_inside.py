"""Accesses whose index comes at run time: each is bounded, or there is no kernel library."""

from __future__ import annotations

import edgepack.compiler.load_tvm  # noqa: F401

# isort: split
import re
from pathlib import Path

import pytest
from tvm import tirx

from edgepack.boards import get_board
from edgepack.compiler.backend import inside
from edgepack.compiler.backend.build import build_library
from edgepack.compiler.backend.kernel import Kernel
from edgepack.compiler.backend.llvm import tvm_target
from edgepack.kernels.outside import Outside, fail_unless
from edgepack.kernels.tiles import tir
from edgepack.native.toolchain import select

SOURCE = tir.buffer("source", [16], "float32")
INDEX = tir.buffer("index", [8], "int64")
NARROW = tir.buffer("narrow", [8], "uint8")
TABLE = tir.buffer("table", [256], "float32")
RESULT = tir.buffer("result", [8, 4], "float32")
SMALL = tir.buffer("small", [8], "int32")
FLOATS = tir.buffer("floats", [8], "float32")
ARGUMENTS = [SOURCE, INDEX, NARROW, TABLE, FLOATS, SMALL, RESULT]
ROW, COLUMN = tir.var("i"), tir.var("j")


def rows(value: tirx.Expr, *, at: tir.Expr = COLUMN) -> tirx.PrimFunc:
    """A kernel that puts a value everywhere."""
    body = tir.loop(ROW, 8, tir.loop(COLUMN, 4, tir.store(RESULT, value, [ROW, at])))
    return tir.function(ARGUMENTS, body)


def picked(index: tirx.Expr) -> tirx.Expr:
    return tir.load(SOURCE, [index])


LOADED = tir.load(INDEX, [ROW])


def clamped(most: int) -> tirx.Expr:
    return tirx.max(tirx.min(LOADED, tirx.const(most, "int64")), tirx.const(0, "int64"))


UNBOUNDED = {
    "a load": picked(LOADED),
    "a load and a counter": picked(LOADED + tirx.Cast("int64", COLUMN)),
    "a narrower type": picked(tirx.Cast("int32", LOADED)),
    "a wrong clamp": picked(
        tirx.max(tirx.min(LOADED, tirx.const(16, "int64")), tirx.const(0, "int64"))
    ),
    "half a clamp": picked(tirx.min(LOADED, tirx.const(15, "int64"))),
    "a clamp of what was cut off": picked(
        tirx.min(
            tirx.Cast("int32", tirx.max(LOADED, tirx.const(0, "int64"))), tirx.const(15, "int32")
        )
    ),
    "a clamp of what wrapped around": picked(
        tirx.min(
            tirx.max(tir.load(SMALL, [ROW]), tirx.const(0, "int32")) + tirx.const(5, "int32"),
            tirx.const(15, "int32"),
        )
    ),
    "a float": picked(tirx.Cast("int32", tir.load(FLOATS, [ROW]))),
    "another condition": tirx.if_then_else(LOADED < 16, picked(LOADED), tirx.const(0.0, "float32")),
    "a position of positions": picked(tir.load(INDEX, [LOADED])),
}


@pytest.mark.parametrize("value", UNBOUNDED.values(), ids=UNBOUNDED)
def test_what_is_not_known_to_be_inside_is_bounded(value: tirx.Expr) -> None:
    function = rows(value)
    with pytest.raises(inside.UnboundedAccessError, match=r"source|index"):
        inside.verify(function, "kernel")
    bounded = inside.guard_positions(function)
    inside.verify(bounded, "kernel")
    assert "assert" in bounded.script() or "T.max(T.min(" in bounded.script()


INSIDE = {
    "counters": picked(tirx.Cast("int64", ROW) + tirx.Cast("int64", COLUMN)),
    "a narrow type": tir.load(TABLE, [tirx.Cast("int32", tir.load(NARROW, [ROW]))]),
    "a clamp": picked(clamped(15)),
    "a condition": tirx.if_then_else(
        tirx.And(LOADED >= 0, LOADED < 16), picked(LOADED), tirx.const(0.0, "float32")
    ),
    "a clamp of a clamp": picked(
        tirx.Cast("int32", clamped(7)) + tirx.Cast("int32", tir.load(NARROW, [ROW]) // 64)
    ),
    "a condition on what was cut off": tirx.if_then_else(
        tirx.And(tirx.Cast("int32", LOADED) >= 0, tirx.Cast("int32", LOADED) < 16),
        picked(tirx.Cast("int32", LOADED)),
        tirx.const(0.0, "float32"),
    ),
    "a remainder": picked(tirx.floormod(LOADED, tirx.const(16, "int64"))),
}


@pytest.mark.parametrize("value", INSIDE.values(), ids=INSIDE)
def test_what_is_known_to_be_inside_costs_nothing(value: tirx.Expr) -> None:
    function = rows(value)
    inside.verify(function, "kernel")
    assert inside.guard_positions(function).script() == function.script()


def test_a_table_of_constants_has_bounds() -> None:
    function = rows(picked(LOADED))
    inside.verify(function, "kernel", {1: (0, 15)})
    assert inside.guard_positions(function, {1: (0, 15)}).script() == function.script()
    for wrong in ((-1, 15), (0, 16)):
        with pytest.raises(inside.UnboundedAccessError):
            inside.verify(function, "kernel", {1: wrong})


def test_a_comparison_is_done_as_seldom_as_its_index_changes() -> None:
    text = inside.guard_positions(rows(picked(LOADED))).script()
    assert text.index("for i ") < text.index("assert") < text.index("for j ")
    assert len(re.findall("assert", text)) == 1


def test_stores_are_bounded_too() -> None:
    function = rows(tir.load(FLOATS, [ROW]), at=LOADED)
    with pytest.raises(inside.UnboundedAccessError, match="result"):
        inside.verify(function, "kernel")
    inside.verify(inside.guard_positions(function), "kernel")


def test_a_comparison_does_not_outlive_what_it_read() -> None:
    """A counter that is stored anew after it was compared may be anywhere again."""
    counter = tir.Local("counter", 1, "int32")
    check = fail_unless(tirx.And(counter.get() >= 0, counter.get() < 16), Outside("", 0, 15))
    use = tir.store(RESULT, picked(counter.get()), [0, 0])
    move = counter.set(counter.get() + 1)
    start = [counter.declare(), counter.set(tirx.Cast("int32", tir.load(INDEX, [0])))]
    good = tir.function(ARGUMENTS, tir.sequence(*start, check, use, move))
    bad = tir.function(ARGUMENTS, tir.sequence(*start, check, move, use))
    inside.verify(good, "kernel")
    with pytest.raises(inside.UnboundedAccessError):
        inside.verify(bad, "kernel")
    inside.verify(inside.guard_positions(bad), "kernel")


def test_a_loop_whose_end_comes_at_run_time() -> None:
    end = tirx.Cast("int32", LOADED)
    k = tir.var("k")
    body = tir.loop(
        ROW, 8, tir.loop(k, end, tir.store(RESULT, tirx.const(0.0, "float32"), [ROW, k]))
    )
    function = tir.function(ARGUMENTS, body)
    with pytest.raises(inside.UnboundedAccessError, match="result"):
        inside.verify(function, "kernel")
    inside.verify(inside.guard_positions(function), "kernel")


def test_no_library_is_built_with_an_access_that_cannot_be_bounded(tmp_path: Path) -> None:
    """A function of others that is told at run time how far it goes."""
    call = tirx.call_extern(
        "int32", "memset", tirx.address_of(tir.load(RESULT, [0, 0])), tirx.Cast("int32", LOADED)
    )
    function = tir.function(ARGUMENTS, tir.loop(ROW, 8, tir.evaluate(call)))
    toolchain = select(get_board("local"), "gnu").toolchain
    target = tvm_target(get_board("local"))
    files = (tmp_path / "kernels.o", tmp_path / "model.so")
    with pytest.raises(inside.UnboundedAccessError, match=r"kernel: .*memset"):
        build_library({"kernel": Kernel.of(function)}, target, toolchain, *files)
    assert not any(file.exists() for file in files)

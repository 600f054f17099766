"""Each pass over kernels keeps what they compute, to the bit. Long form: `./dev fuzz passes`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import tirx

from edgepack.compiler.backend import exact
from tests import tir_interpreter
from tests.fuzz import passes


@pytest.mark.parametrize(
    ("draw", "seeds"),
    [
        (passes.arithmetic, range(1)),
        (passes.positions, range(4)),
        pytest.param(passes.arithmetic, range(1, 20), marks=pytest.mark.slow, id="arithmetic-long"),
        pytest.param(passes.positions, range(4, 100), marks=pytest.mark.slow, id="positions-long"),
        pytest.param(passes.drawn, range(50), marks=pytest.mark.slow, id="drawn-long"),
    ],
)
@pytest.mark.parametrize("board", ["local"])
def test_no_pass_changes_a_result(
    draw: passes.Draw, seeds: range, board: str, tmp_path: Path
) -> None:
    with passes.watching() as watch:
        for seed in seeds:
            folder = tmp_path / str(seed)
            folder.mkdir()
            passes.compile_watched(draw(seed), watch, board, folder)
    assert not watch.wrong, watch.wrong[0]
    # Whatever runs is seen: from blocks to what LLVM is given.
    assert watch.ran.keys() >= {"s_tir.LowerInitBlock", "tirx.FlattenBuffer", "tirx.LowerIntrin"}


def test_a_pass_that_takes_floats_for_numbers_is_seen() -> None:
    """(x + 1e8) - 1e8 is x for TVM's simplifier, where nothing is hidden from it."""
    x, y = (tirx.decl_buffer((60,), "float32", name) for name in "xy")
    at, large = tirx.Var("i", "int32"), tirx.FloatImm("float32", 1e8)
    value = tirx.Sub(tirx.Add(tirx.BufferLoad(x, [at]), large), large)
    store = tirx.BufferStore(y, value, [at])
    function = tirx.PrimFunc([x, y], tirx.For(at, 0, 60, tirx.ForKind.SERIAL, store))
    module = tvm.IRModule({"main": function})
    for hidden in (False, True):
        with passes.watching() as watch:
            given = exact.hide()(module) if hidden else module
            with tvm.transform.PassContext():
                tirx.transform.StmtSimplify()(given)
        assert bool(watch.wrong) is not hidden


def test_places_that_fall_with_a_counter_are_kept() -> None:
    """TVM's FlattenBuffer forgets the 8 of (8 - 2 i) % 6; hidden from it, the remainder stays."""
    x, y = tirx.decl_buffer((6,), "float32", "x"), tirx.decl_buffer((5,), "float32", "y")
    at = tirx.Var("i", "int64")
    place = tirx.FloorMod(8 - at * 2, tirx.IntImm("int64", 6))
    store = tirx.BufferStore(y, tirx.BufferLoad(x, [place]), [at])
    function = tirx.PrimFunc([x, y], tirx.For(at, 0, 5, tirx.ForKind.SERIAL, store))
    flat = tvm.transform.Sequential(
        [exact.hide_remainders(), tirx.transform.FlattenBuffer(), exact.show_remainders()]
    )(tvm.IRModule({"main": function}))["main"]
    given = [np.arange(6, dtype="float32"), np.zeros(5, "float32")]
    assert tir_interpreter.run(flat, given)[1].tolist() == [2, 0, 4, 2, 0]

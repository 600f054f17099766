"""Loops cut into pieces and turned into vectors: edgepack/compiler/backend/schedule/."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx

from edgepack.compiler.backend import schedule
from edgepack.compiler.backend.schedule import pieces, vectors
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import AVX2

Index = Callable[[tirx.Var], tirx.Expr]


def copy_loop(extent: int, value: Callable[[tirx.Buffer, tirx.Var], tirx.Expr]) -> tirx.For:
    """`for i in extent: y[i] = value(x, i)`"""
    i, x, y = tir.var("i"), tir.buffer("x", (256,), "float32"), tir.buffer("y", (256,), "float32")
    return tir.loop(i, extent, tirx.BufferStore(y, value(x, i), [i]))


def parts(statement: tirx.Stmt) -> list[tuple[int, str]]:
    """The extents of loops and what they store, in order."""
    found: list[tuple[int, str]] = []

    def visit(loop: tirx.For) -> None:
        # Names of counters do not matter.
        text = str(loop.body.value).splitlines()[-1]
        found.append((int(loop.extent), text.replace(loop.loop_var.name, "i")))

    tvm_ffi.structural_walk(statement, (tirx.For, visit))
    return found


@pytest.mark.parametrize(
    ("extent", "index", "expected"),
    [
        (60, lambda i: tirx.max(0, tirx.min(55, i - 2)), [(2, "x[0]"), (55, "x[i]"), (3, "x[55]")]),
        (56, lambda i: tirx.floormod(i, 28), [(28, "x[i]"), (28, "x[i]")]),
        (9, lambda i: tirx.if_then_else(i < 4, i, i + 3), [(4, "x[i]"), (5, "x[i + 7]")]),
        (9, lambda i: tirx.if_then_else(i > 4, i, 0), [(5, "x[0]"), (4, "x[i + 5]")]),
        # Too many pieces, or none.
        (60, lambda i: tirx.floormod(i, 2), [(60, "x[i % 2]")]),
        (60, lambda i: i + 3, [(60, "x[i + 3]")]),
    ],
)
def test_a_loop_is_cut_where_something_changes(
    extent: int, index: Index, expected: list[tuple[int, str]]
) -> None:
    loop = copy_loop(extent, lambda x, i: tirx.BufferLoad(x, [index(i)]))
    assert parts(pieces.cut(loop)) == expected


def test_a_choice_of_an_index_is_no_branch() -> None:
    """As a reflected row has it: it would be taken again for each vector."""
    row, x = tir.var("row"), tir.buffer("x", (256,), "float32")
    chosen = tirx.if_then_else(row < 2, 2 - row, row)
    assert isinstance(vectors._chosen(chosen), tirx.Select)
    # What is only there in one case must not be read in the other.
    read = tirx.if_then_else(row < 2, tirx.Cast("int32", tirx.BufferLoad(x, [row])), row)
    assert vectors._chosen(read).same_as(read)


def test_a_choice_that_the_loop_does_not_change_is_made_before_it() -> None:
    row = tir.var("row")
    loop = copy_loop(
        8,
        lambda x, i: tirx.if_then_else(
            row < 3, tirx.BufferLoad(x, [i]), tir.number(0.0, "float32")
        ),
    )
    chosen = pieces.cut(loop)
    assert isinstance(chosen, tirx.IfThenElse)
    assert parts(chosen.then_case) == [(8, "x[i]")]


def run(loop: tirx.Stmt, x: np.ndarray, size: int) -> tuple[np.ndarray, str]:
    """What a loop over buffers called x and y makes of x, and its vector form."""
    made = tvm_ffi.structural_map(
        loop, (tirx.For, lambda item: vectors._vector_loop(item, AVX2.vector_bytes))
    )
    buffers: dict[str, tirx.Buffer] = {}

    def see(store: tirx.BufferStore) -> None:
        buffers[store.buffer.name] = store.buffer

    def read(load: tvm.ir.TensorLoad) -> None:
        buffers[load.source.name] = load.source

    tvm_ffi.structural_walk(loop, ((tirx.BufferStore, see), (tvm.ir.TensorLoad, read)))
    kernel = tir.function([buffers["x"], buffers["y"]], made).with_attr("global_symbol", "main")
    library = tvm.compile(tvm.IRModule({"main": kernel}), tvm.target.Target({"kind": "llvm"}))
    room = np.zeros(2 * 256 + 16, "float32")
    start = -room.ctypes.data % 64 // 4
    source, target = room[start : start + 256], room[start + 256 : start + 512]
    source[: x.size] = x
    library["main"](tvm_ffi.from_dlpack(source), tvm_ffi.from_dlpack(target))
    return target[:size].copy(), str(made)


@pytest.mark.parametrize("extent", [1, 7, 33, 100])
@pytest.mark.parametrize(
    ("index", "expected", "special"),
    [
        (lambda i: i, lambda i: i, ""),
        (lambda i: 2 * i + 1, lambda i: 2 * i + 1, "Shuffle"),
        (lambda i: tirx.floordiv(i, 2), lambda i: i // 2, "Shuffle"),
        (lambda i: 120 - i, lambda i: 120 - i, "Shuffle"),
    ],
)
def test_copies_of_any_length(
    extent: int, index: Index, expected: Callable[[np.ndarray], np.ndarray], special: str
) -> None:
    x = np.random.default_rng(0).normal(size=256).astype("float32")
    y, text = run(copy_loop(extent, lambda b, i: tirx.BufferLoad(b, [index(i)])), x, extent)
    assert y.tolist() == x[expected(np.arange(extent))].tolist()
    assert "vectorized" in text or extent < 4
    assert special in text or extent < 4


@pytest.mark.parametrize("extent", [1, 8, 129])
@pytest.mark.parametrize("kind", [tirx.Add, tirx.Max, tirx.Min, tirx.Mul])
def test_sums_of_any_length(extent: int, kind: type) -> None:
    x = np.random.default_rng(0).uniform(0.9, 1.1, size=256).astype("float32")
    k, source, target = (
        tir.var("k"),
        tir.buffer("x", (256,), "float32"),
        tir.buffer("y", (256,), "float32"),
    )
    own, value = tirx.BufferLoad(target, [0]), tirx.BufferLoad(source, [k])
    y, text = run(tir.loop(k, extent, tirx.BufferStore(target, kind(own, value), [0])), x, 1)
    exact = {tirx.Add: np.sum, tirx.Max: np.max, tirx.Min: np.min, tirx.Mul: np.prod}[kind]
    start = np.zeros(1)  # what y holds before
    np.testing.assert_allclose(y[0], exact([*start, *x[:extent].astype("float64")]), rtol=1e-5)
    assert "Shuffle" in text or extent < 8


@pytest.mark.parametrize("shape", [(8, 8), (4, 5), (9, 13), (3, 7)])
def test_a_matrix_is_turned_by_squares(shape: tuple[int, int]) -> None:
    rows, columns = shape
    i, j = tir.var("i"), tir.var("j")
    source, target = tir.buffer("x", (256,), "float32"), tir.buffer("y", (256,), "float32")
    store = tirx.BufferStore(target, tirx.BufferLoad(source, [j * rows + i]), [i * columns + j])
    x = np.arange(rows * columns, dtype="float32")
    y, text = run(tir.loop(i, rows, tir.loop(j, columns, store)), x, x.size)
    assert y.tolist() == x.reshape(columns, rows).T.ravel().tolist()
    assert ("Shuffle" in text) == (min(shape) >= 4)


@pytest.mark.parametrize(
    ("source", "target", "lanes"),
    [
        ("float32", "float32", [8, 4]),
        ("bool", "bool", [32, 16, 8, 4]),
        ("int64", "int64", [4, 2]),
        # The bytes fill a register, what becomes of them four.
        ("uint8", "float32", [32, 16, 8, 4]),
        ("int64", "uint8", [16, 8, 4, 2]),
        ("float16", "float32", [16, 8, 4]),
    ],
)
def test_lanes_fill_registers_whatever_the_type(source: str, target: str, lanes: list[int]) -> None:
    i, x, y = tir.var("i"), tir.buffer("x", (256,), source), tir.buffer("y", (256,), target)
    value = tirx.BufferLoad(x, [i])
    value = value if source == target else tirx.Cast(target, value)
    loop = tir.loop(i, 127, tirx.BufferStore(y, value, [i]))
    found: list[int] = []

    def see(part: tirx.For) -> None:
        if part.kind == tirx.ForKind.VECTORIZED:
            found.append(int(part.extent))

    made = vectors._vector_loop(loop, AVX2.vector_bytes)
    tvm_ffi.structural_walk(made, (tirx.For, see))
    assert found == lanes


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("shape", [(64, 56, 56), (3, 224, 224), (7, 100, 90), (67, 1031)])
def test_shares_of_cores_are_vectors(shape: tuple[int, ...], cores: int) -> None:
    data = te.placeholder(shape, "float32", name="data")
    function = te.create_prim_func([data, te.compute(shape, lambda *i: data(*i) + 1)])
    target = tvm.target.Target(
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72", "num-cores": cores}
    )
    made = schedule.schedule(tvm.IRModule({"main": function}), target)["main"]
    found: list[str] = []
    tvm_ffi.structural_walk(made, (tirx.For, lambda loop: found.append(loop.kind)))
    assert tirx.ForKind.VECTORIZED in found
    assert (tirx.ForKind.PARALLEL in found) == (cores > 1)

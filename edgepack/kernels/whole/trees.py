"""Ensembles of decision trees: each row walks down each tree, and puts together what it finds."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tvm import tirx

from edgepack.kernels.tiles import tir
from edgepack.kernels.whole import kernel

# How a node compares a feature with its number, by ONNX's names.
COMPARISONS = {
    "BRANCH_LEQ": lambda x, y: x <= y,
    "BRANCH_LT": lambda x, y: x < y,
    "BRANCH_GTE": lambda x, y: x >= y,
    "BRANCH_GT": lambda x, y: x > y,
    "BRANCH_EQ": tirx.EQ,
    "BRANCH_NEQ": tirx.NE,
}

# What is made of the leaves that a row comes to, by ONNX's names: how, and of none.
AGGREGATES = {
    "SUM": (lambda x, y: x + y, 0.0),
    "MIN": (tirx.min, math.inf),
    "MAX": (tirx.max, -math.inf),
}


def ensemble(
    rows: int,
    features: int,
    dtype: str,
    sizes: Mapping[str, int],
    modes: Mapping[int, tuple[str, bool]],
    aggregate: str = "SUM",
) -> tirx.PrimFunc:
    """A kernel from rows of features to sums of leaves, or another of `AGGREGATES`.

    `sizes` are those of trees, nodes, targets, and the steps of the longest way down; `modes` are
    the comparisons in use by their numbers, and whether NaN goes the true way.
    Arguments: data [rows, features]; roots [trees]; of each node its feature, mode (int32), number,
    and children (true, false), which are itself at a leaf; its weights [nodes, targets]; the result
    [rows, targets].
    """
    joined, of_none = AGGREGATES[aggregate]
    trees, nodes, targets, steps = (sizes[name] for name in ("trees", "nodes", "targets", "steps"))
    data = tir.buffer("data", (rows, features), dtype)
    roots = tir.buffer("roots", (trees,), "int32")
    feature, mode = (tir.buffer(name, (nodes,), "int32") for name in ("feature", "mode"))
    number = tir.buffer("number", (nodes,), dtype)
    children = tir.buffer("children", (nodes, 2), "int32")
    weights = tir.buffer("weights", (nodes, targets), dtype)
    result = tir.buffer("result", (rows, targets), dtype)
    node = tir.Local("node", 1, "int32")

    def is_true(row: tir.Expr) -> tirx.Expr:
        at = node.get()
        x, y = tir.load(data, [row, tir.load(feature, [at])]), tir.load(number, [at])
        made = None
        for index, (name, or_nan) in modes.items():
            one = COMPARISONS[name](x, y)
            one = tirx.Or(one, tirx.isnan(x)) if or_nan else one
            chosen = tirx.EQ(tir.load(mode, [at]), tir.integer(index))
            made = one if made is None else tirx.Select(chosen, one, made)
        assert made is not None
        return made

    def walk(row: tir.Expr, tree: tir.Expr) -> tir.Stmt:
        def step(_: tir.Expr) -> tir.Stmt:
            way = tirx.Select(is_true(row), tir.integer(0), tir.integer(1))
            return node.set(tir.load(children, [node.get(), way]))

        def add(target: tir.Expr) -> tir.Stmt:
            more = tir.load(weights, [node.get(), target])
            return tir.store(result, joined(tir.load(result, [row, target]), more), [row, target])

        return tir.sequence(
            node.set(tir.load(roots, [tree])),
            tir.loop_of("step", steps, step) if steps else None,
            tir.loop_of("target", targets, add),
        )

    def one(row: tir.Expr) -> tir.Stmt:
        start = tirx.const(of_none, dtype)
        return tir.sequence(
            tir.loop_of("target", targets, lambda t: tir.store(result, start, [row, t])),
            tir.loop_of("tree", trees, lambda tree: walk(row, tree)),
        )

    body = tir.sequence(node.declare(), tir.loop_of("row", rows, one))
    return kernel([data, roots, feature, mode, number, children, weights], [result], body)

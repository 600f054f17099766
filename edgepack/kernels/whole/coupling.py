"""Probabilities of classes from those of each class against each other one."""

from __future__ import annotations

from tvm import tirx

from edgepack.kernels.tiles import tir
from edgepack.kernels.whole import kernel

# Of libsvm's `multiclass_probability`, which onnxruntime has, too: turns at most, and what is left
# of the error, over the number of classes.
_TURNS, _ERROR = 100, 0.005


def couple(rows: int, classes: int) -> tirx.PrimFunc:
    """The probabilities of the classes of which those of pairs come nearest to what is given.

    The second method of Wu, Lin and Weng, "Probability Estimates for Multi-class Classification by
    Pairwise Coupling" (JMLR 5, 2004). Arguments, all float32: of pairs [rows, classes, classes],
    the probability of the first of the two, with anything on the diagonal; the result
    [rows, classes]; scratch [classes, classes] and [classes].
    """
    pairs = tir.buffer("pairs", (rows, classes, classes), "float32")
    result = tir.buffer("result", (rows, classes), "float32")
    matrix = tir.buffer("matrix", (classes, classes), "float32")
    product = tir.buffer("product", (classes,), "float32")
    total, error, step = (tir.Local(name, 1, "float32") for name in ("total", "error", "step"))
    going = tir.Local("going", 1, "int32")

    def fill(row: tir.Expr) -> tir.Stmt:
        def other(i: tir.Expr, j: tir.Expr) -> tir.Stmt:
            seen = tir.load(pairs, [row, j, i])
            diagonal = tir.load(matrix, [i, i]) + seen * seen
            crossed = -seen * tir.load(pairs, [row, i, j])
            return tir.when(
                tirx.NE(i, j),
                tir.sequence(
                    tir.store(matrix, diagonal, [i, i]), tir.store(matrix, crossed, [i, j])
                ),
            )

        return tir.loop_of(
            "i",
            classes,
            lambda i: tir.sequence(
                tir.store(matrix, tirx.const(0, "float32"), [i, i]),
                tir.store(result, tirx.const(1 / classes, "float32"), [row, i]),
                tir.loop_of("j", classes, lambda j: other(i, j)),
            ),
        )

    def multiply(row: tir.Expr, i: tir.Expr) -> tir.Stmt:
        def add(j: tir.Expr) -> tir.Stmt:
            term = tir.load(matrix, [i, j]) * tir.load(result, [row, j])
            return tir.store(product, tir.load(product, [i]) + term, [i])

        return tir.sequence(
            tir.store(product, tirx.const(0, "float32"), [i]),
            tir.loop_of("j", classes, add),
            total.set(total.get() + tir.load(result, [row, i]) * tir.load(product, [i])),
        )

    def move(row: tir.Expr, i: tir.Expr) -> tir.Stmt:
        """Class `i` as it fits best beside the others, and all to a sum of one again."""
        own = tir.load(matrix, [i, i])
        whole = 1 + step.get()

        def scale(j: tir.Expr) -> tir.Stmt:
            moved = tir.load(product, [j]) + step.get() * tir.load(matrix, [i, j])
            return tir.sequence(
                tir.store(product, moved / whole, [j]),
                tir.store(result, tir.load(result, [row, j]) / whole, [row, j]),
            )

        grown = total.get() + step.get() * (step.get() * own + 2 * tir.load(product, [i]))
        return tir.sequence(
            step.set((total.get() - tir.load(product, [i])) / own),
            tir.store(result, tir.load(result, [row, i]) + step.get(), [row, i]),
            total.set(grown / whole / whole),
            tir.loop_of("j", classes, scale),
        )

    def turn(row: tir.Expr) -> tir.Stmt:
        def far(i: tir.Expr) -> tir.Stmt:
            distance = tirx.abs(tir.load(product, [i]) - total.get())
            return error.set(tirx.max(error.get(), distance))

        return tir.sequence(
            total.set(tirx.const(0, "float32")),
            tir.loop_of("i", classes, lambda i: multiply(row, i)),
            error.set(tirx.const(0, "float32")),
            tir.loop_of("i", classes, far),
            tir.when(
                error.get() < tirx.const(_ERROR / classes, "float32"), going.set(tir.integer(0))
            ),
            tir.when(tirx.NE(going.get(), 0), tir.loop_of("i", classes, lambda i: move(row, i))),
        )

    def one(row: tir.Expr) -> tir.Stmt:
        return tir.sequence(
            fill(row),
            going.set(tir.integer(1)),
            tir.loop_of("turn", _TURNS, lambda _: tir.when(tirx.NE(going.get(), 0), turn(row))),
        )

    locals_ = [local.declare() for local in (total, error, step, going)]
    body = tir.sequence(*locals_, tir.loop_of("row", rows, one))
    return kernel([pairs], [result, matrix, product], body)

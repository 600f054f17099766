"""NonMaxSuppression: of boxes that overlap, those with the highest scores.

The candidates of a class are sorted by score once. Each is then compared, in vectors, with those
that were kept before it, whose corners lie side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from edgepack.kernels.tiles import tir
from edgepack.kernels.whole import kernel, sorting

# Boxes that one turn of the innermost loop looks at: whole vectors on every CPU.
_BLOCK = 16

_ZERO = tir.integer(0)
_NOTHING = tirx.const(0.0, "float32")

Tensor = tuple[tuple[int, ...], str]


@dataclass(frozen=True, kw_only=True)
class Suppression:
    """For scores of [batches, classes, boxes], with at most `bound` results.

    Boxes are two corners (y, x, y, x), or with `center` (x, y, width, height). Of equal scores the
    first box comes first, and a box that has no area overlaps none: as onnxruntime has it.
    """

    batches: int
    classes: int
    boxes: int
    bound: int
    center: bool
    has_least: bool

    @property
    def per_class(self) -> int:
        """Most results of a class."""
        return max(self.bound // (self.batches * self.classes), 1)

    def inputs(self) -> dict[str, Tensor]:
        """Shapes and types of the kernel's inputs, by name, in order.

        `valid` boxes count; `most` are kept of a class at most; a box goes whose overlap is more
        than `overlap`, or whose score is no more than `least`.
        """
        given: dict[str, Tensor] = {
            "box": ((self.batches, self.boxes, 4), "float32"),
            "score": ((self.batches, self.classes, self.boxes), "float32"),
            "valid": ((1,), "int64"),
            "most": ((1,), "int64"),
            "overlap": ((1,), "float32"),
        }
        return {**given, "least": ((1,), "float32")} if self.has_least else given

    def results(self) -> dict[str, Tensor]:
        """The same of its results: rows of batch, class and box, their number; scratch memory.

        `corners` of all boxes, and `ranked` of those kept, are lower and upper y, lower and upper
        x, and the area.
        """
        room = -(-min(self.boxes, self.per_class) // _BLOCK) * _BLOCK
        return {
            "selected": ((self.bound, 3), "int64"),
            "count": ((1,), "int64"),
            "order": ((2, self.boxes), "int32"),
            "corners": ((5, self.boxes), "float32"),
            "ranked": ((5, room), "float32"),
            "hits": ((_BLOCK,), "float32"),
        }

    def function(self) -> tirx.PrimFunc:
        """The kernel."""
        given = {name: tir.buffer(name, *kind) for name, kind in self.inputs().items()}
        made = {name: tir.buffer(name, *kind) for name, kind in self.results().items()}
        body = _Suppressing(self, {**given, **made}).all()
        return kernel(list(given.values()), list(made.values()), body)


class _Suppressing:
    def __init__(self, of: Suppression, buffers: dict[str, tirx.Buffer]) -> None:
        self.of = of
        self.buffers = buffers
        # Rows found, candidates of a class, those kept of it and how many may be; boxes that count.
        self.found, self.size, self.kept, self.limit, self.valid = self.locals = [
            tir.Local(name, 1, "int32") for name in ("found", "size", "kept", "limit", "boxes")
        ]
        self.worst = tir.Local("worst", 1, "float32")

    def get(self, name: str, *at: tir.Expr) -> tirx.Expr:
        return tir.load(self.buffers[name], at)

    def put(self, name: str, value: tirx.Expr, *at: tir.Expr) -> tir.Stmt:
        return tir.store(self.buffers[name], value, at)

    def all(self) -> tir.Stmt:
        of = self.of
        most = tirx.min(self.get("most", 0), tirx.const(of.per_class, "int64"))
        limit = tirx.max(most, tirx.const(0, "int64"))

        def batch(b: tir.Expr) -> tir.Stmt:
            return tir.sequence(
                self.corners(b), tir.loop_of("c", of.classes, lambda c: self.one_class(b, c))
            )

        def rest(i: tir.Expr) -> tir.Stmt:
            return self.row(self.found.get() + i, [_ZERO, _ZERO, _ZERO])

        return tir.sequence(
            *(local.declare() for local in (*self.locals, self.worst)),
            self.found.set(_ZERO),
            self.limit.set(tirx.Cast("int32", limit)),
            self.valid.set(tirx.Cast("int32", self.get("valid", 0))),
            self.kept.set(tir.integer(int(self.buffers["ranked"].shape[1]))),
            tir.loop_of("b", of.batches, batch),
            self.put("count", tirx.Cast("int64", self.found.get()), 0),
            tir.loop_of("rest", tir.integer(of.bound) - self.found.get(), rest),
        )

    def blocks(self) -> tirx.Expr:
        """Blocks that hold those kept; the last one reaches over them."""
        return tirx.floordiv(self.kept.get() + (_BLOCK - 1), tir.integer(_BLOCK))

    def cleared(self) -> tir.Stmt:
        """No box is kept, and boxes of no size lie where some were."""

        def block(number: tir.Expr) -> tir.Stmt:
            def lane(k: int) -> tir.Stmt:
                return tir.loop_of(
                    "lane",
                    _BLOCK,
                    lambda i: self.put("ranked", _NOTHING, k, number * _BLOCK + i),
                )

            return tir.sequence(*map(lane, range(5)))

        return tir.sequence(tir.loop_of("block", self.blocks(), block), self.kept.set(_ZERO))

    def row(self, number: tir.Expr, values: list[tirx.Expr]) -> tir.Stmt:
        return tir.sequence(
            *(
                self.put("selected", tirx.Cast("int64", value), number, column)
                for column, value in enumerate(values)
            )
        )

    def corners(self, b: tir.Expr) -> tir.Stmt:
        """Those of all boxes of a batch."""

        def one(i: tir.Expr) -> tir.Stmt:
            parts = [self.get("box", b, i, k) for k in range(4)]
            if self.of.center:
                x, y, width, height = parts
                half = tirx.const(0.5, "float32")
                pairs = [
                    (y - height * half, y + height * half),
                    (x - width * half, x + width * half),
                ]
            else:
                pairs = [
                    (tirx.min(one, other), tirx.max(one, other))
                    for one, other in ((parts[0], parts[2]), (parts[1], parts[3]))
                ]
            made = [corner for pair in pairs for corner in pair]
            tall, wide = (self.get("corners", k + 1, i) - self.get("corners", k, i) for k in (0, 2))
            return tir.sequence(
                *(self.put("corners", value, k, i) for k, value in enumerate(made)),
                self.put("corners", wide * tall, 4, i),
            )

        return tir.loop_of("i", self.of.boxes, one)

    def one_class(self, b: tir.Expr, c: tir.Expr) -> tir.Stmt:
        def better(theirs: tirx.Expr, mine: tirx.Expr) -> tuple[None, tirx.Expr]:
            return None, self.get("score", b, c, theirs) > self.get("score", b, c, mine)

        passes, half = sorting.merge_sort(
            self.buffers["order"], self.size.get(), self.of.boxes, better
        )

        def look_at(j: tir.Expr) -> tir.Stmt:
            found, kept = self.found, self.kept
            box = self.get("order", half, j)
            keep = tir.sequence(
                *(self.put("ranked", self.get("corners", k, box), k, kept.get()) for k in range(5)),
                self.row(found.get(), [tir.expr(b), tir.expr(c), box]),
                found.set(found.get() + 1),
                kept.set(kept.get() + 1),
            )
            free = tirx.EQ(self.worst.get(), _NOTHING)
            return tir.when(
                kept.get() < self.limit.get(), tir.sequence(self.compare(box), tir.when(free, keep))
            )

        return tir.sequence(
            self.candidates(b, c),
            *passes,
            self.cleared(),
            tir.loop_of("j", self.size.get(), look_at),
        )

    def candidates(self, b: tir.Expr, c: tir.Expr) -> tir.Stmt:
        """Boxes whose score is high enough, in their own order."""

        def one(i: tir.Expr) -> tir.Stmt:
            take = tir.sequence(
                self.put("order", tir.expr(i), 0, self.size.get()),
                self.size.set(self.size.get() + 1),
            )
            if not self.of.has_least:
                return take
            return tir.when(self.get("score", b, c, i) > self.get("least", 0), take)

        return tir.sequence(self.size.set(_ZERO), tir.loop_of("i", self.valid.get(), one))

    def compare(self, box: tirx.Expr) -> tir.Stmt:
        """Set `worst` to 1 if a box overlaps one of those kept, else to 0."""
        names = tir.Names()
        y1, y2, x1, x2, area = (names.bind("mine", self.get("corners", k, box)) for k in range(5))
        limit = names.bind("limit", self.get("overlap", 0))

        def lane(number: tir.Expr, i: tir.Expr) -> tir.Stmt:
            at = number * _BLOCK + i
            tall = tirx.min(self.get("ranked", 1, at), y2) - tirx.max(self.get("ranked", 0, at), y1)
            wide = tirx.min(self.get("ranked", 3, at), x2) - tirx.max(self.get("ranked", 2, at), x1)
            shared = tirx.max(wide, _NOTHING) * tirx.max(tall, _NOTHING)
            union = self.get("ranked", 4, at) + area - shared
            # Boxes without an area share none with any.
            hit = tirx.And(shared > _NOTHING, shared / union > limit)
            mark = tirx.Select(hit, tirx.const(1.0, "float32"), self.get("hits", i))
            return self.put("hits", mark, i)

        def block(number: tir.Expr) -> tir.Stmt:
            return tir.loop_of("lane", _BLOCK, lambda i: lane(number, i))

        names.add(tir.loop_of("lane", _BLOCK, lambda i: self.put("hits", _NOTHING, i)))
        names.add(tir.loop_of("block", self.blocks(), block))
        names.add(self.worst.set(_NOTHING))
        worst = self.worst
        names.add(
            tir.loop_of(
                "lane", _BLOCK, lambda i: worst.set(tirx.max(worst.get(), self.get("hits", i)))
            )
        )
        return names.done()

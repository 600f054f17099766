"""Which tensors between kernels of a GPU are stored as halves.

Kernels of the rules read and make halves and add up in float32. TVM's move them, as 16 bits, and
compute with none of them: what they compute with is float32, and so is what a model is given and
gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import tvm
from tvm import relax

from edgepack.compiler.layers.tensors import ValueTable, variables
from edgepack.kernels.layer import Layer
from edgepack.kernels.value import Value

# Operators whose results are elements of what they are given, whatever those are.
_MOVES = tuple(
    map(
        tvm.ir.Op.get,
        (
            "relax.concat",
            "relax.strided_slice",
            "relax.reshape",
            "relax.permute_dims",
            "relax.expand_dims",
            "relax.squeeze",
            "relax.flatten",
            "relax.broadcast_to",
            "relax.tile",
        ),
    )
)


class HalfTensors:
    """Tensors by what makes and reads them; `root` is that of which one is a view."""

    def __init__(self, root: Callable[[Value], Value], values: ValueTable) -> None:
        self._root, self._values = root, values
        self._made: set[Value] = set()
        self._refused: set[Value] = set()
        # Results of moves, each with what was moved: all of them are halves, or none.
        self._moves: list[tuple[Value, tuple[Value, ...]]] = []

    def add(self, output: Value, read: Iterable[Value], *, whole: Iterable[Value] = ()) -> None:
        """A kernel of the rules; it takes what is `whole` as float32 only."""
        if output.dtype == "float32":
            self._made.add(output)
        self.refuse(whole)

    def add_foreign(self, layer: Layer) -> None:
        """What TVM lowers."""
        for value in layer.computes:
            expression = self._values.expressions[value]
            moved = _moved(expression)
            if moved is None:
                self.refuse(map(self._values.of, variables(expression)))
                continue
            self._made.add(value)
            sources = map(self._values.of, moved)
            self._moves.append((value, tuple(map(self._root, sources))))

    def refuse(self, values: Iterable[Value]) -> None:
        """These are float32."""
        self._refused.update(map(self._root, values))

    def largest(self) -> frozenset[Value]:
        """The most of them that fit together."""
        halves = self._made - self._refused
        changed = True
        while changed:
            changed = False
            for output, moved in self._moves:
                group = {output, *moved}
                if not group <= halves and not group.isdisjoint(halves):
                    halves -= group
                    changed = True
        return frozenset(halves)


def _moved(value: relax.Expr) -> Sequence[relax.Var] | None:
    """What an expression moves, if it does nothing else."""
    if not isinstance(value, relax.Call) or value.op not in _MOVES:
        return None
    first = value.args[0]
    moved = list(first.fields) if isinstance(first, relax.Tuple) else [first]
    # Others are shapes and places.
    if not all(isinstance(item, relax.Var) for item in moved):
        return None
    return moved

"""RMS norms that a model has as their parts, as exporters write them.

That is x / sqrt(mean(x^2) + epsilon) along the last axes, as a quotient or as a product with the
reciprocal of the root, and then times a weight, if there is one. The parts stay known: where no
rule takes the norm, they are layers of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from tvm import relax

from edgepack.compiler.layers.plain import Read
from edgepack.compiler.layers.tensors import constant_of, dtype_of, readers_of, shape_of
from edgepack.kernels.layer import Norm
from edgepack.kernels.tiles.element import FLOAT32

Binding = tuple[relax.Var, relax.Expr]


@dataclass(frozen=True, kw_only=True)
class DecomposedNorm:
    """A norm, and the bindings that it stands for, the result last."""

    read: Read
    bindings: tuple[Binding, ...]


def find_rms_norms(
    bindings: Sequence[Binding], outputs: Sequence[relax.Var], taken: Collection[relax.Var] = ()
) -> dict[relax.Var, DecomposedNorm]:
    """The RMS norms of a function by their results. None has a binding that is `taken`, or a value
    inside that anything else reads."""
    search = _NormSearch(bindings, outputs)
    found = {}
    for var, value in bindings:
        if _name(value) == "mean":
            norm = search.around(var, value)
            if norm is not None and not any(inside in taken for inside, _ in norm.bindings):
                found[norm.bindings[-1][0]] = norm
    return found


class _NormSearch:
    """Looks for norms in a function."""

    def __init__(self, bindings: Sequence[Binding], outputs: Sequence[relax.Var]) -> None:
        self.made = dict(bindings)
        self.kept = set(outputs)
        self.order = {var: number for number, (var, _) in enumerate(bindings)}
        self.readers = readers_of(bindings)

    def around(self, mean: relax.Var, call: relax.Call) -> DecomposedNorm | None:
        """The norm that a mean is the middle of."""
        square = call.args[0]
        data = self._squared(square)
        if data is None or self._reader(square) != mean or not call.attrs.keepdims:
            return None
        shape = shape_of(data)
        axes = sorted(int(axis) % len(shape) for axis in call.attrs.axis or ())
        if not axes or axes != list(range(axes[0], len(shape))):
            return None
        size = prod(shape[axes[0] :])
        total = self._reader(mean)
        epsilon = self._other(total, "add", mean)
        if total is None or epsilon is None or epsilon.size != 1 or not np.isfinite(epsilon).all():
            return None
        inside = [square, mean, total]
        result = self._divided(data, total, inside)
        if result is None or size < 2:
            return None
        scale = np.ones(size, FLOAT32.name)
        weighted = self._reader(result)
        weight = self._other(weighted, "multiply", result)
        if weighted is not None and weight is not None:
            row = _row(weight, shape, axes[0])
            if row is not None:
                scale = row
                inside.append(weighted)
        operator = Norm(
            rows=prod(shape) // size,
            size=size,
            epsilon=float(epsilon.reshape(())),
            scale=scale,
            shift=None,
        )
        ordered = sorted(inside, key=self.order.__getitem__)
        return DecomposedNorm(
            read=Read(operator=operator, inputs=(data,)),
            bindings=tuple((var, self.made[var]) for var in ordered),
        )

    def _squared(self, value: relax.Expr) -> relax.Var | None:
        """The tensor that a value is the square of."""
        call = self.made.get(value) if isinstance(value, relax.Var) else None
        if call is None or dtype_of(value) != FLOAT32.name or not shape_of(value):
            return None
        first, *others = call.args if isinstance(call, relax.Call) else (None,)
        if _name(call) == "square":
            is_square = True
        elif _name(call) == "multiply":
            is_square = others[0] == first
        else:
            is_square = _name(call) == "power" and _is_number(others[0], 2)
        if not is_square or not isinstance(first, relax.Var):
            return None
        return first if shape_of(first) == shape_of(value) else None

    def _divided(
        self, data: relax.Var, total: relax.Var, inside: list[relax.Var]
    ) -> relax.Var | None:
        """The quotient of some data and the root of a total; what leads there is put `inside`."""
        root = self._reader(total)
        call = self.made.get(root)
        inverse = _name(call) == "rsqrt" or _is_power(call, total, -0.5)
        if root is None or not (inverse or _name(call) == "sqrt" or _is_power(call, total, 0.5)):
            return None
        inside.append(root)
        result = self._reader(root)
        call = self.made.get(result)
        if (
            call is not None
            and not inverse
            and _name(call) == "divide"
            and _is_number(call.args[0], 1)
        ):
            if shape_of(call) != shape_of(root):
                return None
            inverse, root = True, result
            inside.append(result)
            result = self._reader(root)
            call = self.made.get(result)
        if result is None or call is None or shape_of(call) != shape_of(data):
            return None
        arguments = list(call.args)
        if inverse:
            fits = _name(call) == "multiply" and arguments in ([data, root], [root, data])
        else:
            fits = _name(call) == "divide" and arguments == [data, root]
        if not fits:
            return None
        inside.append(result)
        return result

    def _reader(self, var: relax.Expr | None) -> relax.Var | None:
        """The only binding that reads a variable, which nothing outside needs."""
        readers = set(self.readers[var]) if isinstance(var, relax.Var) else set()
        return readers.pop() if len(readers) == 1 and var not in self.kept else None

    def _other(self, var: relax.Var | None, name: str, one: relax.Var) -> np.ndarray | None:
        """The constant that a binding adds to one variable, or multiplies it by, if the shape
        remains."""
        call = self.made.get(var)
        if var is None or call is None or _name(call) != name or shape_of(var) != shape_of(one):
            return None
        others = [item for item in call.args if item != one]
        value = constant_of(others[0]) if len(others) == 1 else None
        return value if value is not None and value.dtype == FLOAT32.name else None


def _row(weight: np.ndarray, shape: Sequence[int], axis: int) -> np.ndarray | None:
    """A weight of a tensor as one value for each of its elements from an axis on; None if others
    have other ones."""
    full = (1,) * (len(shape) - weight.ndim) + weight.shape
    if any(extent != 1 for extent in full[:axis]):
        return None
    return np.broadcast_to(weight.reshape(full[axis:]), shape[axis:]).reshape(-1)


def _name(value: relax.Expr | None) -> str:
    op = value.op if isinstance(value, relax.Call) else None
    return str(getattr(op, "name", "")).removeprefix("relax.")


def _is_number(value: relax.Expr, number: float) -> bool:
    constant = constant_of(value)
    return constant is not None and constant.size == 1 and constant.reshape(()) == number


def _is_power(call: relax.Expr | None, base: relax.Var, exponent: float) -> bool:
    if _name(call) != "power" or call is None or shape_of(call) != shape_of(base):
        return False
    return call.args[0] == base and _is_number(call.args[1], exponent)

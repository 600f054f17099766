"""Products of matrices with what is done to their results: bias, activation, residual, scale.

The rows of a product lie as the model has them, so what is a constant per channel elsewhere is one
per column here: along the last axis.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax

from edgepack.compiler.layers.fuse import MAX_STEPS, reads_start, without_first
from edgepack.compiler.layers.plain import Read, read_plain
from edgepack.compiler.layers.tensors import constant_of, shape_of, variables
from edgepack.frontend.private import stands_for
from edgepack.kernels.layer import DynamicSums, RowProduct
from edgepack.kernels.tiles.expression import (
    FUNCTIONS,
    Argument,
    Operand,
    Operation,
    PerChannel,
    Scalar,
    Step,
)

Binding = tuple[relax.Var, relax.Expr]
# Smaller products of two matrices stay layers.
_FEWEST_ROWS = 4
_FEWEST_COLUMNS = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class RowChain:
    """A product with all that follows it, and the bindings that it stands for.

    The product is a `layer.RowProduct`, or converted `layer.DynamicSums`: those have no bias, and
    operands may be one number, or one for each column. Columns are the channels of images then,
    which have no operands of their shape.
    """

    read: Read
    bindings: tuple[Binding, ...]


def row_chains(
    bindings: Sequence[Binding],
    outputs: Sequence[relax.Var],
    *,
    matrices_in_rows: bool = True,
    in_rows: Collection[relax.Var] = (),
) -> dict[relax.Var, RowChain]:
    """The products of a function that something follows, by the last result.

    Of those of two matrices, which can be layers as well, only if `matrices_in_rows`, and those
    that are `in_rows` for another reason.
    """
    readers = defaultdict[relax.Var, list[int]](list)
    for index, (_, value) in enumerate(bindings):
        for var in dict.fromkeys(variables(value)):
            readers[var].append(index)
    kept, made = Counter(outputs), dict(bindings)
    found = {}
    taken: set[int] = set()
    # Of the two products in a sum the later one takes it.
    for index in reversed(range(len(bindings))):
        var, product = bindings[index]
        if var in in_rows or _is_product(product, made if matrices_in_rows else {}):
            read = read_plain(product, made)
            inside = None
            if read is not None:
                inside = _followed(bindings, index, read, readers, kept, taken)
            if inside is not None:
                read, indices = inside
                taken.update(indices)
                chain = RowChain(read=read, bindings=tuple(bindings[i] for i in sorted(indices)))
                found[chain.bindings[-1][0]] = chain
    return found


def _is_product(value: relax.Expr, made: Mapping[relax.Var, relax.Expr]) -> bool:
    """A product of float32 that is no convolution of 1x1, as one of two matrices is; sums of
    integers.

    Unless the rows were those of a tensor of more axes, as onnxruntime writes a product with a
    bias: that tensor and the result lie in rows, too.
    """
    if not isinstance(value, relax.Call) or value.op != tvm.ir.Op.get("relax.matmul"):
        return stands_for(value, DynamicSums)
    if str(value.ty.dtype) != "float32" or len(shape_of(value)) < 2:
        return False
    left, right = value.args
    if len(shape_of(value)) > 2 or constant_of(right) is None:
        return True
    before = made.get(left)
    if not isinstance(before, relax.Call) or before.op != tvm.ir.Op.get("relax.reshape"):
        return False
    if len(shape_of(before.args[0])) < 3:
        return False
    depth, columns = shape_of(right)
    rows = shape_of(value)[0]
    return min(rows, depth) >= _FEWEST_ROWS and columns >= _FEWEST_COLUMNS


def _followed(
    bindings: Sequence[Binding],
    first: int,
    product: Read,
    readers: dict[relax.Var, list[int]],
    kept: Counter[relax.Var],
    taken: set[int],
) -> tuple[Read, set[int]] | None:
    """The longest chain from a product on whose results inside are read by nothing else, and the
    numbers of its bindings; those in `taken` are none of it."""
    steps = _Steps(bindings[first][0], product)
    inside, pending = {first}, set(readers[bindings[first][0]])
    best = None
    while pending:
        index = min(pending)
        pending.remove(index)
        if index in taken or not steps.absorb(*bindings[index]):
            break
        inside.add(index)
        pending |= set(readers[bindings[index][0]]) - inside
        before = [bindings[i][0] for i in inside if i != index]
        if all(inside.issuperset(readers[var]) and not kept[var] for var in before):
            best = steps.read(), set(inside)
    return best


class _Steps:
    """The arithmetic on a product's results, as it grows."""

    def __init__(self, var: relax.Var, product: Read) -> None:
        self.product = product
        self.shape = shape_of(var)
        operator = product.operator
        self.sums = operator if isinstance(operator, DynamicSums) else None
        self.axis = 1 if self.sums and not self.sums.in_rows else -1
        self.steps: dict[relax.Var, int] = {var: 0}
        self.expression: list[Operation] = []
        self.operands: list[relax.Var] = []
        self.constants: list[np.ndarray] = []

    def absorb(self, var: relax.Var, value: relax.Expr) -> bool:
        """Whether a binding is arithmetic on what there is so far; it is one more step then.

        Reshapes that keep the columns are none.
        """
        if isinstance(value, relax.Call) and value.op == tvm.ir.Op.get("relax.astype"):
            # Sums are made numbers first.
            if not self.sums or str(var.ty.dtype) != "float32" or self.expression:
                return False
            self.steps[var] = 0
            return True
        if isinstance(value, relax.Call) and value.op == tvm.ir.Op.get("relax.reshape"):
            latest = self.axis == -1 and self.steps.get(value.args[0]) == len(self.expression)
            if not latest or shape_of(var)[-1:] != self.shape[-1:]:
                return False
            self.steps[var], self.shape = len(self.expression), shape_of(var)
            return True
        is_call = isinstance(value, relax.Call) and shape_of(var) == self.shape
        if not is_call or str(var.ty.dtype) != "float32" or len(self.expression) + 2 > MAX_STEPS:
            return False
        operations = self._operations(value)
        self.expression += operations
        self.steps[var] = len(self.expression)
        return bool(operations)

    def _operations(self, call: relax.Call) -> list[Operation]:
        """What a call does, in steps; none if it is nothing that is known."""
        name = getattr(call.op, "name", "").removeprefix("relax.").removeprefix("nn.")
        bounds: list[tuple[str, float]] = []
        if name == "clip":
            low, high = (float(bound.value) for bound in call.args[1:])
            bounds = [("maximum", low), ("minimum", high)]
        elif name == "relu":
            bounds = [("maximum", 0.0)]
        elif name not in FUNCTIONS or name == "prelu":
            return []
        arguments = [self._argument(item) for item in (call.args[:1] if bounds else call.args)]
        known = [argument for argument in arguments if argument is not None]
        if len(known) < len(arguments):
            return []
        if not bounds:
            return [Operation(name=name, arguments=tuple(known))]
        made: list[Operation] = []
        for bound, number in bounds:
            made.append(Operation(name=bound, arguments=(known[0], Scalar(value=number))))
            known = [Step(index=len(self.expression) + len(made))]
        return made

    def _argument(self, value: relax.Expr) -> Argument | None:
        constant = constant_of(value)
        if constant is not None:
            return self._constant(constant) if str(constant.dtype) == "float32" else None
        if not isinstance(value, relax.Var):
            return None
        if value in self.steps:
            return Step(index=self.steps[value])
        if str(value.ty.dtype) != "float32":
            return None
        is_pixel = self.sums is not None and self._is_by_column(shape_of(value))
        if not is_pixel and (shape_of(value) != self.shape or self.axis == 1):
            return None
        if value not in self.operands:
            self.operands.append(value)
        return Operand(index=self.operands.index(value), pixel=is_pixel)

    def _is_by_column(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor has one number, or one for each column."""
        full = (1,) * (len(self.shape) - len(shape)) + shape
        others = [extent for i, extent in enumerate(full) if i != self.axis % len(self.shape)]
        by_column = full[self.axis] in (1, self.shape[self.axis])
        return len(full) == len(self.shape) and by_column and all(item == 1 for item in others)

    def _constant(self, constant: np.ndarray) -> Argument | None:
        columns = self.shape[self.axis]
        if constant.size == 1 and constant.ndim <= len(self.shape):
            return Scalar(value=float(constant.reshape(())))
        by_column = self._is_by_column(constant.shape)
        if self.axis == -1:
            by_column = constant.shape[-1:] == (columns,)
        if constant.size != columns or not by_column:
            return None
        self.constants.append(constant.reshape(columns))
        return PerChannel(index=len(self.constants) - 1)

    def read(self) -> Read:
        """The product with all that there is so far."""
        expression, bias = tuple(self.expression), None
        first = expression[0].name if expression and not self.sums else ""
        if first == "add" and not reads_start(expression[1:]):
            left, right = expression[0].arguments
            constant = left if right == Step(index=0) else right
            if isinstance(constant, PerChannel):
                bias, expression = self.constants[constant.index], without_first(expression)
        used = sorted(
            {
                argument.index
                for operation in expression
                for argument in operation.arguments
                if isinstance(argument, PerChannel)
            }
        )

        def moved(argument: Argument) -> Argument:
            if isinstance(argument, PerChannel):
                return PerChannel(index=used.index(argument.index))
            return argument

        operator = self.product.operator
        if isinstance(operator, RowProduct):
            operator = replace(operator, bias=bias)
        else:
            assert isinstance(operator, DynamicSums)
            operator = replace(operator, converted=True)
        return replace(
            self.product,
            operator=operator,
            expression=tuple(
                Operation(name=operation.name, arguments=tuple(map(moved, operation.arguments)))
                for operation in expression
            ),
            operands=tuple(self.operands),
            constants=tuple(self.constants[index] for index in used),
        )

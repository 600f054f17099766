"""Element-wise operators, reductions and choices whose types or shapes TVM's conversion refuses."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
import tvm
from tvm import relax

from edgepack.frontend.conversions import Node
from edgepack.frontend.errors import UnsupportedFormError
from edgepack.frontend.inlining import positions_of
from edgepack.frontend.positions import Reach


def shape_of(item: relax.Expr) -> list[int]:
    """The extents of a tensor, all of which are known."""
    return [int(extent) for extent in item.ty.shape]


def dtype_of(item: relax.Expr) -> str:
    return str(item.ty.dtype)


def power(node: Node) -> relax.Expr | None:
    """Pow of two types, whose result has the first one; None for one type of floats.

    Whole numbers by squaring, so that they are exact as long as they fit. To a negative power they
    are what is left of the fraction: 0, or the base if it is 1 or -1. An exponent that the type of
    its base has no bits for is read in float64.
    """
    base, exponent = node.inputs
    kind, other = dtype_of(base), dtype_of(exponent)
    if kind == other and kind.startswith("float"):
        return None
    if kind.startswith("float") and _is_exact(exponent, kind):
        return relax.op.power(base, node.emit(relax.op.astype(exponent, kind)))
    if kind.startswith("float") or other.startswith("float"):
        wide = [node.emit(relax.op.astype(item, "float64")) for item in (base, exponent)]
        return relax.op.astype(node.emit(relax.op.power(*wide)), kind)
    wide = [node.emit(relax.op.astype(item, "int64")) for item in (base, exponent)]
    return relax.op.astype(_whole_power(node, *wide), kind)


def _is_exact(exponent: relax.Expr, kind: str) -> bool:
    """Whether a cast to a type of floats is known to change no value of an exponent: its last bit
    decides what -1 and 0 become."""
    if dtype_of(exponent) in ("float16", "int8", "uint8") or kind == "float64":
        return True
    if not isinstance(exponent, tvm.ir.GenericConst):
        return False
    values = exponent.value.numpy()
    with np.errstate(over="ignore"):
        return bool((values.astype(kind).astype("float64") == values.astype("float64")).all())


# Bits of an exponent: a base other than -1, 0 and 1 to the 64th does not fit any more.
_EXPONENT_BITS = 6


def _whole_power(node: Node, base: relax.Expr, exponent: relax.Expr) -> relax.Expr:
    emit = node.emit

    def number(value: int) -> relax.Expr:
        return relax.const(value, "int64")

    size = emit(relax.op.abs(exponent))
    odd = emit(relax.op.bitwise_and(size, number(1)))
    # What is larger than fits keeps what it has of an even or odd number.
    most = emit(relax.op.add(number(2**_EXPONENT_BITS - 2), odd))
    left = emit(relax.op.minimum(size, most))
    made, square = number(1), base
    for bit in range(_EXPONENT_BITS):
        shifted = emit(relax.op.right_shift(left, number(bit)))
        taken = emit(relax.op.bitwise_and(shifted, number(1)))
        factor = emit(relax.op.where(emit(relax.op.equal(taken, number(1))), square, number(1)))
        made = emit(relax.op.multiply(made, factor))
        square = emit(relax.op.multiply(square, square))
    is_unit = emit(relax.op.equal(emit(relax.op.abs(base)), number(1)))
    fraction = emit(relax.op.where(is_unit, made, number(0)))
    return emit(relax.op.where(emit(relax.op.less(exponent, number(0))), fraction, made))


def divide(node: Node) -> relax.Expr | None:
    """Div of integers, towards zero; None for floats, and where the divisor is harmless.

    On x86-64 a division by zero, or of the smallest number by -1, ends the process; ARM goes on.
    Here the quotient by zero is 0, as on ARM, and that by -1 the negative (the smallest number is
    its own), on every CPU.
    """
    dividend, divisor = node.inputs
    kind = dtype_of(dividend)
    if not _may_trap(kind, divisor):
        return None
    safe, is_zero, is_minus = _safe(node, divisor)
    # Chosen before it is divided: in a choice of quotients TVM takes for granted, inside each, what
    # it is chosen by, and divides by the divisor itself.
    if is_minus is not None:
        negative = node.emit(relax.op.subtract(relax.const(0, kind), dividend))
        dividend = node.emit(relax.op.where(is_minus, negative, dividend))
    dividend = node.emit(relax.op.where(is_zero, relax.const(0, kind), dividend))
    return relax.op.divide(dividend, safe)


def modulo(node: Node) -> relax.Expr | None:
    """Mod of floats with the sign of the divisor, as numpy has it, and of integers by anything.

    None where TVM's conversion serves. Of floats it would take the quotient's floor: NaN where the
    divisor is infinite. Integers by 0 leave 0, as in numpy; see `divide`.
    """
    dividend, divisor = node.inputs
    kind = dtype_of(dividend)
    is_float = kind.startswith("float")
    truncated = bool(node.attributes.get("fmod", 0))
    if not is_float and _may_trap(kind, divisor):
        # What is left of a division by 1 is 0, and so is what is left of one by -1.
        safe, _, _ = _safe(node, divisor)
        return (relax.op.mod if truncated else relax.op.floor_mod)(dividend, safe)
    if truncated or not is_float:
        return None
    zero = relax.const(0, kind)
    rest = node.emit(relax.op.mod(dividend, divisor))
    signs = [node.emit(relax.op.less(item, zero)) for item in (rest, divisor)]
    differ = node.emit(relax.op.logical_xor(*signs))
    some = node.emit(relax.op.logical_and(differ, node.emit(relax.op.not_equal(rest, zero))))
    return relax.op.where(some, node.emit(relax.op.add(rest, divisor)), rest)


def _may_trap(kind: str, divisor: relax.Expr) -> bool:
    """Whether a CPU may refuse to divide integers by this: it is unknown, or has a 0 or -1.

    Of constant zeros TVM's conversion says what is wrong.
    """
    if kind.startswith("float"):
        return False
    if isinstance(divisor, tvm.ir.GenericConst):
        values = divisor.value.numpy()
        return bool((values == -1).any()) and not bool((values == 0).any())
    return True


def _safe(node: Node, divisor: relax.Expr) -> tuple[relax.Expr, relax.Expr, relax.Expr | None]:
    """The divisor with 1 where it is 0 or -1, and where it is which; None if it has no sign."""
    kind = dtype_of(divisor)

    def equals(value: int) -> relax.Expr:
        return node.emit(relax.op.equal(divisor, relax.const(value, kind)))

    is_zero, is_minus = equals(0), None if kind.startswith("u") else equals(-1)
    risky = is_zero if is_minus is None else node.emit(relax.op.logical_or(is_zero, is_minus))
    safe = node.emit(relax.op.where(risky, relax.const(1, kind), divisor))
    return safe, is_zero, is_minus


def prelu(node: Node) -> relax.Expr | None:
    """PRelu of integers, and before opset 7, where a row of slopes is one per channel.

    None for floats with slopes along one axis.
    """
    data, slope = node.inputs
    kind = dtype_of(data)
    if slope.ty.ndim == 1 and data.ty.ndim > 1:
        count = shape_of(slope)[0]
        fits = count in (1, shape_of(data)[-1])
        # onnxruntime takes such a row for one per channel where it fits nothing else.
        if count != 1 and (node.opset < 7 or (not fits and count == shape_of(data)[1])):
            if kind.startswith("float"):
                return relax.op.nn.prelu(data, slope, 1)
            slope = node.emit(relax.op.reshape(slope, [count, *[1] * (data.ty.ndim - 2)]))
    if kind.startswith("float") and slope.ty.ndim <= data.ty.ndim and data.ty.ndim:
        axes = [axis for axis, size in enumerate(shape_of(slope)[::-1], 1) if size != 1]
        whole = all(shape_of(slope)[-axis] == shape_of(data)[-axis] for axis in axes)
        if whole and len(axes) < 2:
            return None
    below = node.emit(relax.op.less(data, relax.const(0, kind)))
    return relax.op.where(below, node.emit(relax.op.multiply(data, slope)), data)


def erf(node: Node) -> relax.Expr | None:
    """Erf of integers, which opset 9 has; None for floats. It is rounded to float32 before it is
    cut off, as onnx's reference has it: of 4 it is 1."""
    (data,) = node.inputs
    kind = dtype_of(data)
    if kind.startswith("float"):
        return None
    wide = node.emit(relax.op.astype(data, "float64"))
    made = node.emit(relax.op.astype(node.emit(relax.op.erf(wide)), "float32"))
    return relax.op.astype(made, kind)


def shrink(node: Node) -> relax.Expr | None:
    """Shrink of integers, by bounds that are no integers; None for floats."""
    (data,) = node.inputs
    kind = dtype_of(data)
    if kind.startswith("float"):
        return None
    emit = node.emit
    bound, bias = (
        relax.const(node.attributes.get(name, value), "float64")
        for name, value in (("lambd", 0.5), ("bias", 0.0))
    )
    wide, zero = emit(relax.op.astype(data, "float64")), relax.const(0.0, "float64")
    above = emit(relax.op.greater(wide, bound))
    below = emit(relax.op.less(wide, emit(relax.op.negative(bound))))
    low = emit(relax.op.where(below, emit(relax.op.add(wide, bias)), zero))
    made = emit(relax.op.where(above, emit(relax.op.subtract(wide, bias)), low))
    return relax.op.astype(made, kind)


def gemm(node: Node) -> relax.Expr | None:
    """Gemm of integers with factors that are none; None for any other."""
    kind = dtype_of(node.inputs[0])
    factors = [node.attributes.get(name, 1.0) for name in ("alpha", "beta")]
    if kind.startswith("float") or all(factor == 1 for factor in factors):
        return None
    wide = [
        item if item is None else node.emit(relax.op.astype(item, "float64"))
        for item in node.inputs
    ]
    return relax.op.astype(node.emit(node.by_tvm(wide)), kind)


def elu(node: Node) -> relax.Expr | None:
    """Elu of float64, with constants of its type; None for float32."""
    (data,) = node.inputs
    kind = dtype_of(data)
    alpha = node.attributes.get("alpha", 1.0)
    return None if kind == "float32" else _below_by_power(node, data, alpha, 1.0)


def celu(node: Node) -> relax.Expr:
    """Celu by ONNX's formula, of an alpha below 0, too, for which its definition by Elu is another
    function."""
    (data,) = node.inputs
    emit, kind = node.emit, dtype_of(data)
    alpha, zero, one = (
        relax.const(value, kind) for value in (node.attributes.get("alpha", 1.0), 0.0, 1.0)
    )
    power = emit(relax.op.exp(emit(relax.op.divide(data, alpha))))
    below = emit(relax.op.multiply(emit(relax.op.subtract(power, one)), alpha))
    return relax.op.where(emit(relax.op.less(data, zero)), below, data)


def softplus(node: Node) -> relax.Expr:
    """log(1 + exp(x)) to the last bits, small results, too.

    That is max(x, 0) + log(1 + u), with u = exp(-|x|). In the sum w = 1 + u all but the first bits
    of a small u are lost: as many as u - (w - 1), which is exact, and by which log(w) is off, to
    less than a unit in the last place.
    """
    (data,) = node.inputs
    emit, kind = node.emit, dtype_of(data)
    zero, one = relax.const(0.0, kind), relax.const(1.0, kind)
    power = emit(relax.op.exp(emit(relax.op.negative(emit(relax.op.abs(data))))))
    total = emit(relax.op.add(power, one))
    lost = emit(relax.op.subtract(power, emit(relax.op.subtract(total, one))))
    log = emit(relax.op.add(emit(relax.op.log(total)), lost))
    return relax.op.add(emit(relax.op.maximum(data, zero)), log)


def selu(node: Node) -> relax.Expr | None:
    """Selu of float64; None for float32."""
    (data,) = node.inputs
    if dtype_of(data) == "float32":
        return None
    alpha = node.attributes.get("alpha", 1.67326319217681884765625)
    gamma = node.attributes.get("gamma", 1.05070102214813232421875)
    return _below_by_power(node, data, alpha, gamma)


def _below_by_power(node: Node, data: relax.Expr, alpha: float, gamma: float) -> relax.Expr:
    """Numbers as they are, but e to their power less 1, times alpha, below 0; times gamma."""
    emit, kind = node.emit, dtype_of(data)

    def number(value: float) -> relax.Expr:
        return relax.const(value, kind)

    power = emit(relax.op.subtract(emit(relax.op.exp(data)), number(1.0)))
    below = emit(relax.op.multiply(power, number(alpha)))
    is_below = emit(relax.op.less(data, number(0.0)))
    made = relax.op.where(is_below, below, data)
    return made if gamma == 1.0 else relax.op.multiply(emit(made), number(gamma))


def layer_normalization(node: Node) -> relax.Expr | None:
    """LayerNormalization of float64, which TVM has no loops for, by scales and shifts that are
    broadcast, which ONNX allows, or with its mean and deviation; None for any other.

    ONNX's own definition subtracts the mean's square from the squares' mean, as its one of
    MeanVarianceNormalization does.
    """
    data, scale, shift = (*node.inputs, None)[:3]
    emit, kind, shape = node.emit, dtype_of(data), shape_of(data)
    axes = list(range(node.attributes.get("axis", -1) % len(shape), len(shape)))
    given = [item for item in (scale, shift) if item is not None]
    is_plain = kind != "float64" and all(shape_of(item) == shape[axes[0] :] for item in given)
    if is_plain and node.outputs < 2:
        return None
    # Half precision's numbers are normalised in float32, as its stash_type says.
    wide = "float32" if kind == "float16" else kind
    exact = data if wide == kind else emit(relax.op.astype(data, wide))
    mean = emit(relax.op.mean(exact, axes, keepdims=True))
    off = emit(relax.op.subtract(exact, mean))
    square = emit(relax.op.mean(emit(relax.op.multiply(off, off)), axes, keepdims=True))
    epsilon = relax.const(node.attributes.get("epsilon", 1e-5), wide)
    deviation = emit(relax.op.sqrt(emit(relax.op.add(square, epsilon))))
    if is_plain:
        zeros = relax.const(np.zeros(shape[axes[0] :], kind))
        by = zeros if shift is None else shift
        made = relax.op.nn.layer_norm(data, scale, by, axes, node.attributes.get("epsilon", 1e-5))
    else:
        normal = emit(relax.op.divide(off, deviation))
        normal = normal if wide == kind else emit(relax.op.astype(normal, kind))
        made = relax.op.multiply(normal, scale)
        made = made if shift is None else relax.op.add(emit(made), shift)
    if node.outputs < 2:
        return made
    inverse = emit(relax.op.divide(relax.const(1.0, wide), deviation))
    more = [mean, inverse][: node.outputs - 1]
    if wide == "float64":
        more = [emit(relax.op.astype(item, "float32")) for item in more]
    return relax.Tuple([emit(made), *more])


def mean_variance_normalization(node: Node) -> relax.Expr:
    """Numbers less their mean, over their deviation from it and 1e-9.

    TVM's conversion subtracts the mean's square from the squares' mean, in which nothing is left of
    a small deviation, and divides rows of equals by 0.
    """
    (data,) = node.inputs
    axes, kind = list(node.attributes.get("axes", (0, 2, 3))), dtype_of(data)
    mean = node.emit(relax.op.mean(data, axes, keepdims=True))
    off = node.emit(relax.op.subtract(data, mean))
    square = node.emit(relax.op.mean(node.emit(relax.op.multiply(off, off)), axes, keepdims=True))
    deviation = node.emit(relax.op.add(node.emit(relax.op.sqrt(square)), relax.const(1e-9, kind)))
    return relax.op.divide(off, deviation)


def extreme_of(operator: Callable[..., relax.Expr]) -> Callable[[Node], relax.Expr]:
    """Max or Min of tensors, two by two, where TVM would stack all and reduce."""

    def convert(node: Node) -> relax.Expr:
        left = list(node.inputs)
        while len(left) > 1:
            pairs = zip(left[::2], left[1::2], strict=False)
            rest = left[len(left) // 2 * 2 :]
            left = [node.emit(operator(*pair)) for pair in pairs] + rest
        return left[0]

    return convert


def one_hot(node: Node) -> relax.Expr:
    """OneHot: indices count from the end if they are negative; those outside are off everywhere.

    Raises UnsupportedFormError for its depth is not a constant.
    """
    indices, depth, values = node.inputs
    if not isinstance(depth, tvm.ir.GenericConst):
        raise UnsupportedFormError("its depth is not a constant")
    count = int(depth.value.numpy().reshape(-1)[0])
    rank = indices.ty.ndim + 1
    axis = node.attributes.get("axis", -1) % rank
    at = node.emit(relax.op.astype(indices, "int64"))
    low = node.emit(relax.op.less(at, relax.const(0, "int64")))
    from_end = node.emit(relax.op.add(at, relax.const(count, "int64")))
    at = node.emit(relax.op.expand_dims(node.emit(relax.op.where(low, from_end, at)), axis))
    places = np.arange(count).reshape([-1 if i == axis else 1 for i in range(rank)])
    hot = node.emit(relax.op.equal(at, relax.const(places, "int64")))
    off, on = (
        node.emit(relax.op.strided_slice(values, [0], [i], [i + 1], assume_inbound=True))
        for i in range(2)
    )
    return relax.op.where(hot, on, off)


def eye_like(node: Node) -> relax.Expr:
    """EyeLike: ones on a diagonal, of the input's shape."""
    rows, columns = shape_of(node.inputs[0])
    number = node.attributes.get("dtype")
    kind = onnx.helper.tensor_dtype_to_np_dtype(number) if number else None
    dtype = str(kind or dtype_of(node.inputs[0]))
    return relax.const(np.eye(rows, columns, node.attributes.get("k", 0)).astype(dtype), dtype)


def rms_normalization(node: Node) -> relax.Expr | None:
    """RMSNormalization over all axes, of which TVM has no kernel; None over fewer."""
    data, scale = node.inputs
    if node.attributes.get("axis", -1) % data.ty.ndim:
        return None
    kind = dtype_of(data)
    wide = node.emit(relax.op.astype(data, "float32")) if kind == "float16" else data
    square = node.emit(relax.op.mean(node.emit(relax.op.multiply(wide, wide)), keepdims=True))
    epsilon = relax.const(node.attributes.get("epsilon", 1e-5), dtype_of(wide))
    root = node.emit(relax.op.sqrt(node.emit(relax.op.add(square, epsilon))))
    normal = node.emit(relax.op.astype(node.emit(relax.op.divide(wide, root)), kind))
    return relax.op.multiply(normal, scale)


def old_slice(node: Node) -> relax.Expr | None:
    """Slice before opset 10, whose bounds are attributes; None for any other."""
    if node.opset >= 10:
        return None
    bounds = node.attributes
    axes = bounds.get("axes") or range(len(bounds["starts"]))
    return relax.op.strided_slice(
        node.inputs[0], list(axes), list(bounds["starts"]), list(bounds["ends"])
    )


def det(node: Node) -> relax.Expr:
    """Det of small matrices, by Laplace's expansion.

    Raises UnsupportedFormError above 4 rows.
    """
    (data,) = node.inputs
    *outer, rows, _ = shape_of(data)
    if rows > _MOST_ROWS:
        raise UnsupportedFormError(f"its matrices have more than {_MOST_ROWS} rows")
    flat = node.emit(relax.op.reshape(data, [math.prod(outer), rows * rows]))
    elements = [
        node.emit(relax.op.strided_slice(flat, [1], [i], [i + 1])) for i in range(rows * rows)
    ]

    def expanded(left: list[int], row: int) -> relax.Expr:
        if row == rows - 1:
            return elements[row * rows + left[0]]
        made = None
        for number, column in enumerate(left):
            minor = expanded([other for other in left if other != column], row + 1)
            term = node.emit(relax.op.multiply(elements[row * rows + column], minor))
            add = relax.op.subtract if number % 2 else relax.op.add
            made = term if made is None else node.emit(add(made, term))
        return made

    return relax.op.reshape(expanded(list(range(rows)), 0), outer)


_MOST_ROWS = 4


def embed_layer_normalization(node: Node) -> relax.Expr:
    """onnxruntime's sum of embeddings, and its LayerNormalization."""
    given = [*node.inputs, *[None] * 9][:9]
    for index, table, name in ((0, 2, "input_ids"), (1, 4, "segment_ids"), (8, 3, "position_ids")):
        if given[index] is not None:
            limits = [Reach(0, shape_of(given[table])[0] - 1)]
            given[index] = node.positions(given[index], limits, name)
    return node.by_tvm(given)


def gather(node: Node) -> relax.Expr | None:
    """Gather, None of a shape."""
    return _gathered(node, relax.op.take)


def gather_elements(node: Node) -> relax.Expr | None:
    """GatherElements, None of a shape."""
    return _gathered(node, relax.op.gather_elements)


def _gathered(node: Node, gathered: Callable[..., relax.Expr]) -> relax.Expr | None:
    data, indices = node.inputs[:2]
    if isinstance(data, relax.ShapeExpr) or isinstance(indices, relax.ShapeExpr):
        return None
    axis = node.attributes.get("axis", 0)
    limits = [Reach.of_axis(shape_of(data)[axis])]
    title, known = positions_of(node.title)
    if title != node.title:  # of which none count from the end
        limits = [Reach(0, shape_of(data)[axis] - 1)]
    return gathered(data, node.positions(indices, limits, known, title), axis)


def gather_nd(node: Node) -> relax.Expr:
    """GatherND: parts at positions along some axes, behind those of batches."""
    data, indices = node.inputs
    batches, extents = node.attributes.get("batch_dims", 0), shape_of(data)
    axes = extents[batches : batches + shape_of(indices)[-1]]
    at = node.positions(indices, [Reach.of_axis(extent) for extent in axes], "indices")
    return relax.op.gather_nd(data, at, batches)

"""Operators that are converted to Relax here, because TVM's conversion loses something."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax, te, tirx

from edgepack.frontend import integer_weights, positions
from edgepack.frontend.errors import UnsupportedFormError
from edgepack.frontend.positions import Reach
from edgepack.frontend.private import private_call
from edgepack.frontend.resizing import Emit, emit_resize
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.whole import sorting


@dataclass(frozen=True, kw_only=True)
class Node:
    """An ONNX node to convert, whose inputs are Relax expressions already, None where left out.

    `title` is its operator and name, `outputs` is how many results are asked for.
    `cpu` is the one that loops are written for; `alone`: it computes all of the model.
    `by_tvm` is TVM's conversion for other inputs of the same node, `emit` binds an expression to a
    variable, `compute` a tensor expression of some tensors. `call` calls a kernel: its name,
    function, inputs, and its results' shapes and types.
    """

    title: str
    inputs: Sequence[Any]
    attributes: dict[str, Any]
    opset: int
    outputs: int
    cpu: CpuModel
    alone: bool
    by_tvm: Callable[[list[relax.Expr | None]], relax.Expr]
    emit: Emit
    compute: Callable[..., relax.Expr]
    call: Callable[
        [str, tirx.PrimFunc, Sequence[relax.Expr], Sequence[tuple[Sequence[int], str]]],
        list[relax.Expr],
    ]

    def positions(
        self, given: relax.Expr, limits: Sequence[Reach], name: str, title: str = ""
    ) -> relax.Expr:
        """Positions that come at run time, in the last axis one for each of `limits`, all of them
        within, and counted from 0 where they may count from the end: at any other one the model
        ends with an error that names the input `name` of the operator, or of another one's
        `title`."""
        if isinstance(given, tvm.ir.GenericConst):
            values = given.value.numpy()
            _check_constant(values, limits, name)
            below = values + np.array([limit.end for limit in limits], values.dtype)
            within = np.where(values < 0, below, values).reshape(values.shape)
            return relax.const(within, str(given.ty.dtype))
        shape, kind = [int(extent) for extent in given.ty.shape], str(given.ty.dtype)
        if not math.prod(shape):
            return given
        if "int" in kind and kind not in ("int32", "int64"):
            given, kind = self.emit(relax.op.astype(given, "int64")), "int64"
        kernel = positions.compare_positions(
            shape, kind, limits, f"{title or self.title}: its input '{name}'"
        )
        return self.call("positions", kernel, [given], [(shape, kind)])[0]


def _check_constant(values: np.ndarray, limits: Sequence[Reach], name: str) -> None:
    """Raise UnsupportedFormError for a constant position outside of its limits."""
    columns = values.reshape(-1, len(limits))
    for column, limit in zip(columns.T, limits, strict=True):
        wrong = column[(column < limit.low) | (column > limit.high)]
        if wrong.size:
            raise UnsupportedFormError(
                f"its input '{name}' has {int(wrong[0])}, which is not between {limit.low} and "
                f"{limit.high}"
            )


# The integer type that a float becomes first. Narrower types take its low bits: what is out of
# their range wraps around.
_BY_WAY_OF = {
    "int8": "int32",
    "uint8": "int32",
    "int16": "int32",
    "uint16": "int32",
    "int32": "int32",
    "uint32": "int64",
    "int64": "int64",
}


def is_static(ty: relax.TensorType) -> bool:
    """Whether all extents of a tensor are numbers."""
    return isinstance(ty.shape, relax.ShapeExpr) and all(
        isinstance(dim, tvm.tirx.IntImm) for dim in ty.shape
    )


def cast(node: Node) -> relax.Expr | None:
    """A cast of floats to integers, None for any other.

    TVM would put a dozen operations around it that give meaning to NaN, infinity and what is out
    of range. ONNX gives them none.
    """
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(node.attributes["to"]))
    return _cast_to(node, dtype)


def cast_like(node: Node) -> relax.Expr | None:
    """The same to the type of another tensor."""
    ty = getattr(node.inputs[1], "ty", None)
    return _cast_to(node, str(ty.dtype)) if isinstance(ty, relax.TensorType) else None


def _cast_to(node: Node, dtype: str) -> relax.Expr | None:
    data = node.inputs[0]
    is_tensor = isinstance(getattr(data, "ty", None), relax.TensorType)
    if not is_tensor or isinstance(data, tvm.ir.GenericConst):
        return None
    if str(data.ty.dtype) == dtype:
        return data
    if "float" not in str(data.ty.dtype):
        return None
    if dtype == "uint64":
        return _cast_to_uint64(node, data)
    if dtype not in _BY_WAY_OF:
        return None
    way = _BY_WAY_OF[dtype]
    made = relax.op.astype(data, way)
    return made if way == dtype else relax.op.astype(made, dtype)


def _cast_to_uint64(node: Node, data: relax.Expr) -> relax.Expr:
    """Floats as uint64, in two halves: no CPU says what a negative one becomes.

    Its bits are those of int64, as onnxruntime has it.
    """
    emit, kind = node.emit, str(data.ty.dtype)
    half = relax.const(2.0**63, kind) if kind != "float16" else relax.const(np.inf, kind)
    is_high = emit(relax.op.greater_equal(data, half))
    low = emit(relax.op.where(is_high, emit(relax.op.subtract(data, half)), data))
    whole = emit(relax.op.astype(emit(relax.op.astype(low, "int64")), "uint64"))
    high = emit(relax.op.where(is_high, relax.const(2**63, "uint64"), relax.const(0, "uint64")))
    return relax.op.add(whole, high)


def is_inf(node: Node) -> relax.Expr:
    """IsInf. TVM converts that of one sign as if it were of both, and asks for NaN one by one."""
    data = node.inputs[0]
    infinity = {"detect_positive": np.inf, "detect_negative": -np.inf}
    signs = [value for name, value in infinity.items() if node.attributes.get(name, 1)]
    # Nothing is equal to NaN.
    if len(signs) == 2:
        return relax.op.equal(relax.op.abs(data), relax.const(np.inf, str(data.ty.dtype)))
    return relax.op.equal(data, relax.const(signs[0] if signs else np.nan, str(data.ty.dtype)))


def lp_normalization(node: Node) -> relax.Expr:
    """Each element over the 1-norm or the 2-norm of its row along `axis`; rows of zeros stay zeros.

    ONNX defines it by a norm that may be zero; onnxruntime gives zeros then.
    """
    (data,) = node.inputs
    axis, order = node.attributes.get("axis", -1), node.attributes.get("p", 2)
    terms = relax.op.abs(data) if order == 1 else relax.op.multiply(data, data)
    norm = relax.op.sum(terms, axis, keepdims=True)
    norm = node.emit(norm if order == 1 else relax.op.sqrt(norm))
    zero, one = (relax.const(value, str(data.ty.dtype)) for value in (0.0, 1.0))
    is_zero = node.emit(relax.op.equal(norm, zero))
    return relax.op.divide(data, node.emit(relax.op.where(is_zero, one, norm)))


# ONNX's modes of Pad by TVM's names.
_PADDINGS = {"constant": "constant", "reflect": "reflect", "edge": "replicate"}


def pad(node: Node) -> relax.Expr | None:
    """Borders around images as one operator, None for any other padding.

    TVM would make loops of it at once, in which the borders cannot be recognised.
    """
    mode = node.attributes.get("mode", b"constant").decode()
    data, pads, value, axes = (*node.inputs, None, None, None)[:4]
    if node.opset < 11:
        widths = node.attributes.get("pads", node.attributes.get("paddings"))
        pads = relax.const(np.array(widths, "int64"))
        value = relax.const(node.attributes.get("value", 0.0), str(data.ty.dtype))
        made = pad(replace(node, inputs=[data, pads, value], opset=11))
        return node.by_tvm([data, pads, value, None]) if made is None else made
    if value is not None and not isinstance(value, tvm.ir.GenericConst):
        return _padded_by(node, mode)
    known = [item for item in (pads, value, axes) if item is not None]
    if mode not in _PADDINGS or not all(isinstance(item, tvm.ir.GenericConst) for item in known):
        return None
    rank = data.ty.ndim if isinstance(data.ty, relax.TensorType) and is_static(data.ty) else 0
    if rank not in (3, 4):
        return None
    widths = np.zeros((2, rank), "int64")
    chosen = range(rank) if axes is None else [int(axis) % rank for axis in axes.value.numpy()]
    widths[:, chosen] = pads.value.numpy().reshape(2, -1)
    most = min(int(size) for size in list(data.ty.shape)[2:])
    # Mirrored images of mirrored images, and borders cut off, are left to TVM.
    if widths[:, :2].any() or widths.min() < 0 or (mode == "reflect" and widths.max() >= most):
        return None
    number = 0.0 if value is None else float(value.value.numpy().reshape(-1)[0])
    return relax.op.nn.pad(data, widths.T.reshape(-1).tolist(), _PADDINGS[mode], number)


def _padded_by(node: Node, mode: str) -> relax.Expr:
    """A padding with a value that is an input."""
    data, pads, value, axes = (*node.inputs, None)[:4]
    dtype = str(data.ty.dtype)
    known = [pads, relax.const(0, dtype), axes]
    made = node.emit(node.by_tvm([data, *known]))
    if mode != "constant":
        return made
    # One where there is data, zero where there is none.
    there = node.emit(relax.op.full(data.ty.shape, relax.const(1, dtype), dtype))
    there = node.emit(node.by_tvm([there, *known]))
    inside = node.emit(relax.op.not_equal(there, relax.const(0, dtype)))
    return relax.op.where(inside, made, value)


def resize(node: Node) -> relax.Expr:
    """Resizes as those of images where TVM has them, else axis by axis.

    Raises UnsupportedFormError as `emit_resize` and `resized_by_axis` do.
    """
    return _resized(node, node.inputs, node.opset)


def _resized(node: Node, inputs: Sequence[Any], opset: int) -> relax.Expr:
    """Of integers by way of float32, as in onnxruntime: what is behind a point is cut off in mode
    linear, and rounded in mode cubic."""
    data, *rest = inputs
    dtype, mode = str(data.ty.dtype), node.attributes.get("mode", b"nearest")
    if mode == b"nearest" or dtype.startswith("float"):
        return emit_resize(inputs, node.attributes, opset, node.by_tvm, node.emit)
    corners = node.attributes.get("coordinate_transformation_mode") == b"align_corners"
    if node.attributes.get("antialias", 0) or (mode == b"cubic" and corners):
        raise UnsupportedFormError(f"it interpolates {dtype} in this mode")
    real = node.emit(relax.op.astype(data, "float32"))
    made = node.emit(emit_resize([real, *rest], node.attributes, opset, node.by_tvm, node.emit))
    if mode == b"cubic":
        info = np.iinfo(dtype)
        made = node.emit(relax.op.round(made))
        made = node.emit(relax.op.clip(made, float(info.min), float(info.max)))
    return relax.op.astype(node.emit(relax.op.astype(made, _BY_WAY_OF.get(dtype, "int64"))), dtype)


def upsample(node: Node) -> relax.Expr:
    """Upsample, the Resize of opset 7 and 9."""
    scales = node.attributes.get("scales")
    given = list(node.inputs)
    if scales is not None:
        given = [given[0], relax.const(np.array(scales, "float32"), "float32")]
    return _resized(node, given, _OF_SCALES)


# The last opset in which a Resize has scales and nothing else.
_OF_SCALES = 10


def top_k(node: Node) -> relax.Expr:
    """The k largest or smallest elements along an axis and where they are, by a kernel.

    `sorted=0` leaves the order open; they are sorted all the same. Raises UnsupportedFormError for
    a k that is no constant.
    """
    data, given = (*node.inputs, None)[:2]
    attributes = node.attributes
    shape, dtype = [int(dim) for dim in data.ty.shape], str(data.ty.dtype)
    axis = attributes.get("axis", -1) % len(shape)
    if given is not None and not isinstance(given, tvm.ir.GenericConst):
        raise UnsupportedFormError("its number of elements is not a constant")
    count = attributes["k"] if given is None else int(given.value.numpy().reshape(-1)[0])
    outer, size, inner = (
        int(np.prod(part)) for part in (shape[:axis], shape[axis], shape[axis + 1 :])
    )
    plain = node.emit(relax.op.reshape(data, [outer, size, inner]))
    kernel = sorting.top(
        (outer, size, inner), dtype, count, largest=bool(attributes.get("largest", 1))
    )
    made = (outer, count, inner)
    values, positions, _ = node.call(
        "top_k", kernel, [plain], [(made, dtype), (made, "int64"), ((2, size), "int32")]
    )
    shape[axis] = count
    return relax.Tuple([node.emit(relax.op.reshape(part, shape)) for part in (values, positions)])


def batch_normalization(node: Node) -> relax.Expr | None:
    """By known means and variances it is one scale and one shift of each channel. The training
    form takes the batch's own. None for the other form, of tensors that come at run time.
    """
    attributes = node.attributes
    if not attributes.get("training_mode", 0):
        made = _scaled_and_shifted(node)
        return _of_one_type(node) if made is None else made
    data, scale, shift, mean, variance = node.inputs
    rank = data.ty.ndim
    axes = [axis for axis in range(rank) if axis != 1]
    momentum = attributes.get("momentum", 0.9)
    dtype = str(data.ty.dtype)

    def wide(item: relax.Expr) -> relax.Expr:
        return node.emit(relax.op.expand_dims(item, [0, *range(2, rank)]))

    def moved(old: relax.Expr, new: relax.Expr) -> relax.Expr:
        parts = [
            node.emit(relax.op.multiply(item, relax.const(factor, dtype)))
            for item, factor in ((old, momentum), (new, 1 - momentum))
        ]
        return node.emit(relax.op.add(*parts))

    own_mean = node.emit(relax.op.mean(data, axes))
    deviation = node.emit(relax.op.subtract(data, wide(own_mean)))
    own_variance = node.emit(relax.op.mean(relax.op.multiply(deviation, deviation), axes))
    epsilon = relax.const(attributes.get("epsilon", 1e-5), dtype)
    spread = node.emit(relax.op.sqrt(relax.op.add(own_variance, epsilon)))
    factor = node.emit(relax.op.divide(scale, spread))
    made = node.emit(relax.op.add(relax.op.multiply(deviation, wide(factor)), wide(shift)))
    return relax.Tuple([made, moved(mean, own_mean), moved(variance, own_variance)])


def _scaled_and_shifted(node: Node) -> relax.Expr | None:
    """Of constants, in float64 until they are those two, as onnxruntime has it."""
    data, *known = node.inputs
    if not all(isinstance(item, tvm.ir.GenericConst) for item in known):
        return None
    dtype = str(data.ty.dtype)
    scale, shift, mean, variance = (item.value.numpy().astype("float64") for item in known)
    factor = scale / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    by, plus = (
        relax.const(value.astype(dtype).reshape(-1, *[1] * (data.ty.ndim - 2)), dtype)
        for value in (factor, shift - mean * factor)
    )
    return node.emit(relax.op.add(node.emit(relax.op.multiply(data, by)), plus))


def _of_one_type(node: Node) -> relax.Expr | None:
    """With parameters of the data's type; None if they are."""
    kind = str(node.inputs[0].ty.dtype)
    given = [
        item if str(item.ty.dtype) == kind else node.emit(relax.op.astype(item, kind))
        for item in node.inputs
    ]
    return None if given == list(node.inputs) else node.by_tvm(list(given))


def dropout(node: Node) -> relax.Expr:
    """Nothing is dropped at inference.

    The mask, if somebody asks for it, is true throughout; before opset 12, where ONNX says nothing
    of it, false, as in onnxruntime.
    """
    data = node.inputs[0]
    kind = str(data.ty.dtype) if node.opset < 10 else "bool"
    value = relax.const(np.asarray(node.opset >= 12).astype(kind), kind)
    return relax.Tuple([data, node.emit(relax.op.full(data.ty.shape, value, kind))])


def bit_shift(node: Node) -> relax.Expr | None:
    """A shift by the type's width or more leaves nothing of a number but its sign, to the right."""
    left = node.attributes["direction"] == b"LEFT"
    dtype = str(node.inputs[0].ty.dtype)
    bits = np.iinfo(dtype).bits

    def without_sign(x: tirx.Expr, by: tirx.Expr) -> tirx.Expr:
        # Chosen as numbers with a sign: of constants of the others TVM has no code.
        signed = dtype.removeprefix("u")
        by, zero = tirx.reinterpret(signed, by), tirx.const(0, signed)
        within = tirx.And(by >= zero, by < tirx.const(bits, signed))
        amount = tirx.reinterpret(dtype, tirx.Select(within, by, zero))
        made = x << amount if left else x >> amount
        return tirx.reinterpret(dtype, tirx.Select(within, tirx.reinterpret(signed, made), zero))

    def shifted(x: tirx.Expr, by: tirx.Expr) -> tirx.Expr:
        if dtype in ("uint32", "uint64"):
            return without_sign(x, by)
        within = tirx.And(by >= tirx.const(0, dtype), by < tirx.const(bits, dtype))
        amount = tirx.Select(within, by, tirx.const(0, dtype))
        made = x << amount if left else x >> amount
        rest = tirx.const(0, dtype)
        if not left and dtype.startswith("int"):
            rest = tirx.Select(x < rest, tirx.const(-1, dtype), rest)
        return tirx.Select(within, made, rest)

    one, other = (
        node.emit(relax.op.broadcast_to(item, _broadcast(*node.inputs))) for item in node.inputs
    )
    return node.compute(
        lambda a, b: te.compute(a.shape, lambda *at: shifted(a(*at), b(*at)), name="bit_shift"),
        one,
        other,
    )


def _broadcast(*items: relax.Expr) -> list[int]:
    shapes = [[int(extent) for extent in item.ty.shape] for item in items]
    return [int(extent) for extent in np.broadcast_shapes(*shapes)]


def cum_sum(node: Node) -> None:
    """CumSum, by TVM. Raises UnsupportedFormError for an axis that comes at run time."""
    _axis_of(node)


def _axis_of(node: Node) -> int:
    axis = node.inputs[1]
    if not isinstance(axis, tvm.ir.GenericConst):
        raise UnsupportedFormError("its axis is not a constant")
    return int(axis.value.numpy().reshape(-1)[0])


def cum_prod(node: Node) -> relax.Expr:
    """CumProd, forwards or backwards, with or without the element itself."""
    data, along = node.inputs[0], _axis_of(node)
    backwards, exclusive = (node.attributes.get(name, 0) for name in ("reverse", "exclusive"))
    data = node.emit(relax.op.flip(data, along)) if backwards else data
    made = node.emit(
        relax.op.cumprod(data, along, dtype=str(data.ty.dtype), exclusive=bool(exclusive))
    )
    return relax.op.flip(made, along) if backwards else made


def reverse_sequence(node: Node) -> relax.Expr:
    """The first elements along the time axis backwards, as many as each sequence has."""
    data, lengths = node.inputs
    shape = [int(extent) for extent in data.ty.shape]
    batch = node.attributes.get("batch_axis", 1)
    time = node.attributes.get("time_axis", 0)

    def along(axis: int) -> list[int]:
        return [shape[i] if i == axis else 1 for i in range(len(shape))]

    places = np.arange(shape[time]).reshape(along(time))
    steps = relax.const(places, "int64")
    lengths = node.positions(lengths, [Reach(0, shape[time])], "sequence_lens")
    lengths = node.emit(relax.op.astype(lengths, "int64"))
    ends = node.emit(relax.op.reshape(lengths, along(batch)))
    # The last one less the step.
    mirrored = node.emit(relax.op.subtract(ends, relax.const(places + 1, "int64")))
    inside = node.emit(relax.op.less(steps, ends))
    index = node.emit(relax.op.where(inside, mirrored, steps))
    whole = node.emit(relax.op.broadcast_to(index, shape))
    return relax.op.gather_elements(data, whole, time)


def bit_cast(node: Node) -> relax.Expr:
    """The same bits as another type of the same size."""
    (data,) = node.inputs
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(node.attributes["to"]))
    if str(data.ty.dtype) == "bool":
        data = node.emit(relax.op.astype(data, "uint8"))
    if dtype in ("bool", str(data.ty.dtype)):
        return relax.op.astype(data, dtype)

    def same(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *at: tirx.reinterpret(dtype, x(*at)), name="bit_cast")

    return node.compute(same, data)


def unsqueeze(node: Node) -> relax.Expr | None:
    """With one axis that is a scalar, as onnx's definitions have it; None for any other."""
    data, axes = (*node.inputs, None)[:2]
    if not isinstance(axes, tvm.ir.GenericConst) or axes.value.numpy().ndim:
        return None
    return relax.op.expand_dims(data, [int(axes.value.numpy())])


def sequence_insert(node: Node) -> relax.Expr | None:
    """Before a position, which counts from the end if it is negative; None for one at the end.

    TVM would put -1 behind the last.
    """
    sequence, tensor, position = (*node.inputs, None)[:3]
    if not isinstance(position, tvm.ir.GenericConst):
        return None
    items = [sequence[i] for i in range(len(sequence))]
    at = int(position.value.numpy().reshape(-1)[0])
    items.insert(at + len(items) if at < 0 else at, tensor)
    return relax.Tuple(items)


def conv_transpose(node: Node) -> relax.Expr | None:
    """With output_shape, or taps apart (dilations): by the pads that give it; None without."""
    attributes = node.attributes
    wanted = attributes.pop("output_shape", None)
    size, kernel = ([int(n) for n in item.ty.shape][2:] for item in node.inputs[:2])
    rank = len(size)
    strides, dilations, extra = (
        list(attributes.get(name) or [default] * rank)
        for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    is_apart = any(step != 1 for step in dilations)
    if not (wanted or is_apart):
        return None
    automatic = attributes.pop("auto_pad", b"NOTSET")
    if wanted or automatic[:4] == b"SAME":
        # As onnxruntime, whose SAME makes less than size * stride of a kernel below the stride.
        scaled = [n * stride for n, stride in zip(size, strides, strict=True)]
        starts, ends = [], []
        for axis, out in enumerate(list(wanted or scaled)[-rank:]):
            covered = (kernel[axis] - 1) * dilations[axis] + 1
            total = strides[axis] * (size[axis] - 1) + extra[axis] + covered - out
            if total < 0:
                extra[axis], total = extra[axis] - (total if wanted else 0), 0
            if extra[axis] >= max(strides[axis], dilations[axis]):
                raise UnsupportedFormError("its output_shape is larger than what it makes")
            small, large = total // 2, total - total // 2
            starts.append(small if automatic == b"SAME_UPPER" else large)
            ends.append(large if automatic == b"SAME_UPPER" else small)
        attributes.update(pads=(*starts, *ends), output_padding=tuple(extra))
    if is_apart:
        return _transposed_apart(node, strides, dilations, extra)
    return node.by_tvm(node.inputs)  # type: ignore[arg-type]  # with None behind its end


def _transposed_apart(
    node: Node, strides: Sequence[int], dilations: Sequence[int], extra: Sequence[int]
) -> relax.Expr:
    """A transposed convolution whose taps are apart, as a convolution of the data with zeros in
    between, by the kernel turned round.

    TVM puts zeros between the taps, which make NaN of a NaN where no tap meets it.
    """
    data, weights, bias = (*node.inputs, None)[:3]
    (channels, *size), (_, out, *kernel) = (
        [int(n) for n in item.ty.shape][first:] for item, first in ((data, 1), (weights, 0))
    )
    rank, groups = len(size), int(node.attributes.get("group") or 1)
    pads = list(node.attributes.get("pads") or [0] * (2 * rank))
    batch = int(data.ty.shape[0])
    if any(stride > 1 for stride in strides):
        columns = [item for n in size for item in (n, 1)]
        data = node.emit(relax.op.reshape(data, [batch, channels, *columns]))
        widths = [item for stride in strides for item in (0, 0, 0, stride - 1)]
        data = node.emit(relax.op.nn.pad(data, [0, 0, 0, 0, *widths]))
        size = [n * stride for n, stride in zip(size, strides, strict=True)]
        data = node.emit(relax.op.reshape(data, [batch, channels, *size]))
    reach = [(count - 1) * step for count, step in zip(kernel, dilations, strict=True)]
    before = [reach[axis] - pads[axis] for axis in range(rank)]
    after = [
        reach[axis] - pads[rank + axis] + extra[axis] - (strides[axis] - 1) for axis in range(rank)
    ]
    if min(*before, *after) < 0:
        starts = [max(0, -pad) for pad in before]
        ends = [n - max(0, -pad) for n, pad in zip(size, after, strict=True)]
        axes = list(range(2, 2 + rank))
        data = node.emit(relax.op.strided_slice(data, axes, starts, ends))
    turned = weights
    for axis in range(2, 2 + rank):
        turned = node.emit(relax.op.flip(turned, axis))
    turned = node.emit(relax.op.reshape(turned, [groups, channels // groups, out, *kernel]))
    order = [0, 2, 1, *range(3, 3 + rank)]
    turned = node.emit(relax.op.permute_dims(turned, order))
    turned = node.emit(relax.op.reshape(turned, [groups * out, channels // groups, *kernel]))
    convolve = (relax.op.nn.conv1d, relax.op.nn.conv2d, relax.op.nn.conv3d)[rank - 1]
    padding = [max(0, pad) for pad in (*before, *after)]
    made = convolve(data, turned, padding=padding, dilation=list(dilations), groups=groups)
    if bias is None:
        return made
    shifts = relax.op.reshape(bias, [1, groups * out, *[1] * rank])
    return relax.op.add(node.emit(made), node.emit(shifts))


def dequantize_linear(node: Node) -> relax.Expr | None:
    """With blocks along an axis, each of a scale of its own; None without. A constant matrix is
    left to who multiplies by it."""
    block = node.attributes.get("block_size", 0)
    data, scale, zero = (*node.inputs, None)[:3]
    _check_steps(node, data, scale)
    if not block or data.ty.ndim != scale.ty.ndim:
        return None
    axis = node.attributes.get("axis", 1) % data.ty.ndim
    weight = integer_weights.matrix_in_blocks(data, scale, zero, block, axis)
    if weight is not None:
        return private_call(weight, [], relax.TensorType(list(weight.values.shape), "float32"))
    scale, zero = (_of_blocks(node, item, block) for item in (scale, zero))
    real = node.emit(relax.op.astype(data, "int32"))
    if zero is not None:
        real = node.emit(relax.op.subtract(real, node.emit(relax.op.astype(zero, "int32"))))
    real = node.emit(relax.op.astype(real, str(scale.ty.dtype)))
    return relax.op.multiply(real, scale)


def quantize_linear(node: Node) -> relax.Expr | None:
    """The same the other way; of integers by way of the scale's type."""
    block = node.attributes.get("block_size", 0)
    data, scale, zero = (*node.inputs, None)[:3]
    _check_steps(node, data, scale)
    real = str(scale.ty.dtype)
    is_whole = "float" not in real
    if is_whole:
        real = "float32"
        scale = node.emit(relax.op.astype(scale, real))
    if str(data.ty.dtype) != real:
        is_whole = True
        data = node.emit(relax.op.astype(data, real))
    if not block or data.ty.ndim != scale.ty.ndim:
        rest = list(node.inputs[2:])
        return node.by_tvm([data, scale, *rest]) if is_whole else None
    kind = node.attributes.get("output_dtype", 0) or onnx.TensorProto.UINT8
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind) if zero is None else zero.ty.dtype)
    scale, zero = (_of_blocks(node, item, block) for item in (scale, zero))
    info = np.iinfo(dtype)
    made = node.emit(relax.op.round(relax.op.divide(data, scale)))
    if zero is not None:
        made = node.emit(relax.op.add(made, relax.op.astype(zero, real)))
    made = node.emit(relax.op.clip(made, float(info.min), float(info.max)))
    return relax.op.astype(node.emit(relax.op.astype(made, "int32")), dtype)


def _check_steps(node: Node, data: relax.Expr, scale: relax.Expr) -> None:
    """Raise UnsupportedFormError for steps that are neither one, nor one for each element along an
    axis, nor in blocks: ONNX's own check lets them pass."""
    if node.attributes.get("block_size", 0) or not scale.ty.ndim or not data.ty.ndim:
        return
    if scale.ty.ndim > 1:
        raise UnsupportedFormError("its scales are in blocks, and it has no block_size")
    axis = node.attributes.get("axis", 1) % data.ty.ndim
    count, extent = int(scale.ty.shape[0]), int(data.ty.shape[axis])
    if count not in (1, extent):
        raise UnsupportedFormError(f"it has {count} scales for {extent} elements along axis {axis}")


def _of_blocks(node: Node, item: Any, block: int) -> Any:
    """A value per element for one per block; a last block may be shorter."""
    if item is None:
        return None
    axis = node.attributes.get("axis", 1) % item.ty.ndim
    size = int(node.inputs[0].ty.shape[axis])
    wide = node.emit(relax.op.repeat(item, block, axis))
    return node.emit(relax.op.strided_slice(wide, [axis], [0], [size]))

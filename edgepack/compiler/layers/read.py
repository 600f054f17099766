"""How layers are read from Relax: a table of readers, one for each operator that can be a layer.

A reader takes the variable that is bound and the call, and returns None where the call is a form of
its operator that no layer describes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import tvm
from tvm import relax

from edgepack.compiler.layers.attention import Attended, Attentions, attentions
from edgepack.compiler.layers.norms import DecomposedNorm, find_rms_norms
from edgepack.compiler.layers.plain import Read, read_plain
from edgepack.compiler.layers.quantized_weights import hidden_integers
from edgepack.compiler.layers.rows import RowChain, row_chains
from edgepack.compiler.layers.tensors import (
    ValueTable,
    constant_of,
    extent,
    is_image,
    same_bytes,
    shape_of,
    shape_of_type,
    variables,
)
from edgepack.frontend.private import read_private
from edgepack.kernels import integer
from edgepack.kernels.axis import ResizeAttributes, pad_positions
from edgepack.kernels.layer import (
    Attention,
    BlockQuantized,
    Concatenation,
    Convolution,
    Crop,
    Dequantize,
    Foreign,
    GlobalPooling,
    Layer,
    Pointwise,
    Pooling,
    Quantize,
    Quantized,
    Resampling,
    RowProduct,
    Slice,
    TransposedConvolution,
    View,
)
from edgepack.kernels.tiles.element import FLOAT32, INT8
from edgepack.kernels.tiles.expression import (
    FUNCTIONS,
    Argument,
    Operand,
    Operation,
    PerChannel,
    Scalar,
    Step,
)
from edgepack.kernels.value import Value


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A function's layers, in order; one for a product of rows and the arithmetic on it, one for an
    attention, and one for an RMS norm that the model has as its parts. `each` has those of single
    bindings, also where these are part of another layer, by their results; `values` what stands for
    the function's variables."""

    layers: Sequence[Layer]
    each: Mapping[Value, Layer]
    values: ValueTable


def read_layers(
    function: relax.Function, *, matrices_in_rows: bool = True, whole_attentions: bool = True
) -> Reading:
    """The layers of a function, which is one dataflow block. `matrices_in_rows` is that of
    `row_chains`; without `whole_attentions` their operators are layers of their own.

    Weights that `keep_integers` hid are none: they are constants of the layers that read them.
    """
    bindings = _bindings(function)
    weights = {var: it for var, value in bindings if (it := hidden_integers(value)) is not None}
    resolved = _with_numbers(bindings, weights)
    in_rows = {
        var for var, value in bindings if isinstance(weights.get(_right(value)), BlockQuantized)
    }
    original = dict(bindings)
    outputs = variables(function.body.body)
    attended = Attentions(bindings=resolved, found={})
    if whole_attentions:
        attended = attentions(resolved, outputs)
    read = [var for attention in attended.found.values() for var in attention.inputs]
    chains = row_chains(
        attended.bindings, [*outputs, *read], matrices_in_rows=matrices_in_rows, in_rows=in_rows
    )
    inside = {var for chain in chains.values() for var, _ in chain.bindings}
    norms = find_rms_norms(attended.bindings, [*outputs, *read], inside)
    whole: dict[relax.Var, RowChain | DecomposedNorm] = {**chains, **norms}
    inside = {var for group in whole.values() for var, _ in group.bindings}
    values, made = ValueTable(), dict(attended.bindings)

    def weight_of(var: relax.Var, value: relax.Expr) -> Quantized | BlockQuantized | None:
        """What a binding has in integers."""
        before = original.get(var, value)
        return weights[before.args[1]] if before is not value else None

    each: dict[Value, Layer] = {}
    layers = []
    for var, value in attended.bindings:
        attention, group = attended.found.get(var), whole.get(var)
        if attention is not None:
            layers.append(_whole(attention, values, var))
            continue
        if var in weights:
            continue
        values.bind(var, value)
        plain = read_plain(value, made) if var in in_rows else None
        layer = plain.layer(values, var) if plain else _read(values, var, value, made)
        each[layer.output] = _with_integers(layer, weight_of(var, value))
        if group is not None:
            bound = [values.of(item) for item, _ in group.bindings]
            whole_layer = group.read.layer(values, var, bound)
            for item, inner in group.bindings:
                whole_layer = _with_integers(whole_layer, weight_of(item, inner))
            layers.append(whole_layer)
        elif var not in inside:
            layers.append(each[layer.output])
    return Reading(layers=layers, each=each, values=values)


def _whole(attention: Attended, values: ValueTable, var: relax.Var) -> Layer:
    """An attention as a layer, of which `var` is the result."""
    found = Read(operator=attention.operator, inputs=attention.inputs)
    bound = [values.bind(*binding) for binding in attention.inside]
    return found.layer(values, var, bound)


def _right(value: relax.Expr) -> relax.Expr | None:
    """The second argument of a call."""
    return value.args[1] if isinstance(value, relax.Call) and len(value.args) > 1 else None


def _with_numbers(
    bindings: Sequence[tuple[relax.Var, relax.Expr]],
    weights: Mapping[relax.Var, Quantized | BlockQuantized],
) -> list[tuple[relax.Var, relax.Expr]]:
    """The bindings, with constants for weights that were hidden."""
    numbers = {var: relax.const(weight.numbers()) for var, weight in weights.items()}
    typed = relax.BlockBuilder().normalize  # rules ask for the type of what they read
    resolved = []
    for var, value in bindings:
        weight = _right(value)
        if weight in numbers:
            arguments = [value.args[0], numbers[weight]]
            call = relax.Call(value.op, arguments, value.attrs, value.ty_args, value.span)
            resolved.append((var, typed(call)))
        else:
            resolved.append((var, value))
    return resolved


def read_each(function: relax.Function, takes: Callable[[Attention], bool]) -> Reading:
    """The layers of a function as `read_layers` gives them, but for products of rows, norms, and
    attentions that a device does not take: their operators are layers of their own."""
    values, bindings = ValueTable(), _bindings(function)
    attended = attentions(bindings, variables(function.body.body), takes)
    made = dict(attended.bindings)
    layers = []
    for var, value in attended.bindings:
        attention = attended.found.get(var)
        if attention is not None:
            layers.append(_whole(attention, values, var))
            continue
        values.bind(var, value)
        layers.append(_read(values, var, value, made))
    return Reading(layers=layers, each={layer.output: layer for layer in layers}, values=values)


def _with_integers(layer: Layer, weight: Quantized | BlockQuantized | None) -> Layer:
    """A layer that knows of which integers its weight is made, if of any."""
    if isinstance(weight, BlockQuantized):
        if not isinstance(layer.operator, RowProduct):
            return layer
        return replace(layer, operator=replace(layer.operator, integers=weight))
    if weight is None:
        return layer
    if type(layer.operator) is not Convolution:
        return layer
    if weight.values.ndim == 2:
        weight = weight.transposed([1, 0]).as_image()
    return replace(layer, operator=replace(layer.operator, quantized=weight))


def _bindings(function: relax.Function) -> list[tuple[relax.Var, relax.Expr]]:
    """A function's bindings, with a slice for each result of a split, and an item of a tuple as
    what was put there.

    Splits and tuples that are used as a whole stay.
    """
    bindings = [(b.var, b.value) for block in function.body.blocks for b in block.bindings]
    splits = {
        var: value
        for var, value in bindings
        if isinstance(value, relax.Tuple)
        or (isinstance(value, relax.Call) and value.op == tvm.ir.Op.get("relax.split"))
    }
    whole = [value for _, value in bindings if not isinstance(value, relax.TupleGetItem)]
    for var in (var for value in (*whole, function.body.body) for var in variables(value)):
        splits.pop(var, None)
    left = []
    for var, value in bindings:
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in splits:
            source = splits[value.tuple_value]
            is_tuple = isinstance(source, relax.Tuple)
            index = int(value.index)
            left.append((var, source.fields[index] if is_tuple else _item(source, index)))
        elif var not in splits:
            left.append((var, value))
    return left


def _item(split: relax.Call, index: int) -> relax.Call:
    """One result of a split as a strided slice."""
    axis, data = int(split.attrs.axis), split.args[0]
    sizes = [shape_of_type(field)[axis] for field in split.ty.fields]
    begin = sum(sizes[:index])
    made = relax.op.strided_slice(data, axes=[axis], begin=[begin], end=[begin + sizes[index]])
    return relax.Call(made.op, made.args, made.attrs, made.ty_args, split.span)


def _read(
    values: ValueTable, var: relax.Var, value: relax.Expr, made: Mapping[relax.Var, relax.Expr]
) -> Layer:
    found = _read_integers(value) or _read_cast(var, value)
    if found is not None:
        return found.layer(values, var)
    is_call = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op)
    if is_call and is_image(var):
        reader = _READERS.get(value.op.name.removeprefix("relax."))
        found = reader(var, value) if reader else None
    elif isinstance(value, relax.Var) and is_image(var):
        found = Read(operator=View(), inputs=(value,))
    if found is not None and not all(
        isinstance(item, relax.Var) and is_image(item) for item in found.inputs
    ):
        found = None
    if found is None and isinstance(value, relax.Call):
        found = read_plain(value, made)
    if found is None:
        names = (value.op.name.removeprefix("relax."),) if is_call else ()
        found = Read(operator=Foreign(names=names), inputs=tuple(variables(value)))
    return found.layer(values, var)


def _read_integers(value: relax.Expr) -> Read | None:
    """What an operator on integers does."""
    found = read_private(value, *integer.KINDS)
    if found is None:
        return None
    operator, inputs = found
    if isinstance(operator, integer.IntegerFlatten):
        return Read(operator=View(), inputs=tuple(inputs))
    reads_numbers = isinstance(operator, integer.ToIntegers)
    makes_numbers = isinstance(operator, integer.FromIntegers)
    return Read(
        operator=operator,
        inputs=tuple(inputs),
        element=FLOAT32 if makes_numbers else INT8,
        reads=FLOAT32 if reads_numbers else INT8,
    )


def _read_cast(var: relax.Var, value: relax.Expr) -> Read | None:
    """What a `relax.quantize` or `relax.dequantize` of a whole image does, by one scale."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return None
    kind = {"relax.quantize": Quantize, "relax.dequantize": Dequantize}.get(value.op.name)
    if kind is None or not isinstance(value.args[0], relax.Var):
        return None
    scale, zero_point = map(constant_of, value.args[1:])
    image, integers = (value.args[0], var) if kind is Quantize else (var, value.args[0])
    if scale is None or zero_point is None or not is_image(image):
        return None
    if (scale.size, zero_point.size) != (1, 1):
        return None
    operator = kind(
        scale=float(scale.reshape(())),
        zero_point=int(zero_point.reshape(())),
        dtype=str(integers.ty.dtype),
        names=(value.op.name.removeprefix("relax."),),
    )
    return Read(operator=operator, inputs=(value.args[0],))


_CHANNELS_FIRST = ("NCHW", "NCW")


def _pair(values: Sequence[object], of_one_row: int = 1) -> tuple[int, int]:
    """(vertical, horizontal); of a sequence only the latter is given."""
    *first, second = (int(value) for value in values)  # type: ignore[call-overload]
    return first[0] if first else of_one_row, second


def _around(padding: Sequence[object]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Padding (top, left) and (bottom, right)."""
    half = len(padding) // 2
    return _pair(padding[:half], 0), _pair(padding[half:], 0)


def _with_rows(weight: np.ndarray) -> np.ndarray:
    """A window [.., rows, columns]; of a sequence it is one row."""
    return weight if weight.ndim == 4 else weight[:, :, None]


def _convolution(_var: relax.Var, call: relax.Call) -> Read | None:
    attrs, weight = call.attrs, constant_of(call.args[1])
    if weight is None or attrs.data_layout not in _CHANNELS_FIRST:
        return None
    if attrs.kernel_layout not in ("OIHW", "OIW"):
        return None
    return Read(
        operator=Convolution(
            weight=_with_rows(weight),
            bias=None,
            stride=_pair(attrs.strides),
            before=_around(attrs.padding)[0],
            dilation=_pair(attrs.dilation),
            groups=int(attrs.groups),
        ),
        inputs=(call.args[0],),
    )


def _transposed(_var: relax.Var, call: relax.Call) -> Read | None:
    attrs, weight = call.attrs, constant_of(call.args[1])
    if weight is None or attrs.data_layout not in _CHANNELS_FIRST:
        return None
    if attrs.kernel_layout not in ("IOHW", "IOW"):
        return None
    weight = _with_rows(weight)
    groups, stride = int(attrs.groups), _pair(attrs.strides)
    if _pair(attrs.dilation) != (1, 1) or min(np.subtract(weight.shape[2:], stride)) < 0:
        return None
    ins, outs, *kernel = weight.shape
    ordered = weight.reshape(groups, ins // groups, outs, *kernel).swapaxes(1, 2)
    operator = TransposedConvolution(
        weight=ordered.reshape(groups * outs, ins // groups, *kernel),
        bias=None,
        stride=stride,
        before=_around(attrs.padding)[0],
        dilation=(1, 1),
        groups=groups,
    )
    return Read(operator=operator, inputs=(call.args[0],))


def _matmul(_var: relax.Var, call: relax.Call) -> Read | None:
    data, weight = call.args[0], constant_of(call.args[1])
    if weight is None or weight.ndim != 2 or len(shape_of(data)) != 2:
        return None
    operator = Convolution(
        weight=np.ascontiguousarray(weight.T)[:, :, None, None],
        bias=None,
        stride=(1, 1),
        before=(0, 0),
        dilation=(1, 1),
        groups=1,
    )
    return Read(operator=operator, inputs=(data,))


def _pool(kind: str, var: relax.Var, call: relax.Call) -> Read | None:
    attrs = call.attrs
    if attrs.layout not in _CHANNELS_FIRST:
        return None
    before, after = _around(attrs.padding)
    operator = Pooling(
        kind=kind,
        kernel=_pair(attrs.pool_size),
        stride=_pair(attrs.strides),
        before=before,
        after=after,
        dilation=_pair(attrs.dilation),
        count_padding=bool(attrs.count_include_pad),
    )
    if kind == "average" and operator.dilation != (1, 1):
        return None
    whole = operator.kernel == extent(call.args[0])[2:] and extent(var)[2:] == (1, 1)
    if whole and (*operator.before, *operator.after) == (0, 0, 0, 0):
        return Read(operator=GlobalPooling(kind=kind), inputs=(call.args[0],))
    return Read(operator=operator, inputs=(call.args[0],))


def _over_image(kind: str, var: relax.Var, call: relax.Call) -> Read | None:
    data = call.args[0]
    rank = len(shape_of(data))
    axes = sorted(int(axis) % rank for axis in call.attrs.axis or ()) if rank > 2 else []
    if not axes or axes != list(range(2, rank)) or not is_image(data):
        return None
    if extent(var) != (*extent(data)[:2], 1, 1):
        # The result is a matrix (N, C), whose rows are pixels of one image; see `extent`.
        return None
    return Read(operator=GlobalPooling(kind=kind), inputs=(data,))


def _adaptive(var: relax.Var, call: relax.Call) -> Read | None:
    if extent(var)[2:] != (1, 1) or call.attrs.layout not in _CHANNELS_FIRST:
        return None
    return Read(operator=GlobalPooling(kind="average"), inputs=(call.args[0],))


def _resampling(call: relax.Call) -> Resampling | None:
    """What a call of `image.resize2d` does to an image."""
    attrs, data = call.attrs, call.args[0]
    if attrs.layout != "NCHW" or not is_image(data):
        return None
    resize = ResizeAttributes(
        kind="nearest" if attrs.method == "nearest_neighbor" else str(attrs.method),
        coordinates=str(attrs.coordinate_transformation_mode),
        rounding=str(attrs.rounding_method),
        coefficient=float(attrs.cubic_alpha),
        exclude_outside=bool(attrs.cubic_exclude),
    )
    # The region's start and end; the scales take the place of its end: `resizing._with_scales`.
    top, left, bottom, right = (float(bound) for bound in attrs.roi)
    scales = (0.0, 0.0) if resize.coordinates == "tf_crop_and_resize" else (bottom, right)
    (height, width), (out_height, out_width) = extent(data)[2:], extent(call)[2:]
    return Resampling(
        kind=resize.kind,
        rows=resize.axis(height, out_height, (top, bottom), scales[0]),
        columns=resize.axis(width, out_width, (left, right), scales[1]),
        outside=float(attrs.extrapolation_value),
        repeats=_repeats(call),
    )


def _repeats(call: relax.Call) -> bool:
    """Whether each pixel is repeated, 2 or 4 times along a row: TVM's schedule knows these."""
    attrs, sizes, out = call.attrs, extent(call.args[0])[2:], extent(call)[2:]
    modes = (attrs.method, attrs.coordinate_transformation_mode, attrs.rounding_method)
    if modes != ("nearest_neighbor", "asymmetric", "floor"):
        return False
    given = [float(scale) for scale in attrs.roi][2:]
    exact = all(
        scale in (0, result / size) for scale, size, result in zip(given, sizes, out, strict=True)
    )
    return exact and out[1] in (2 * sizes[1], 4 * sizes[1])


def _resize(_var: relax.Var, call: relax.Call) -> Read | None:
    operator = _resampling(call)
    if operator is None:
        return None
    return Read(operator=operator, inputs=(call.args[0],))


def _pad(_var: relax.Var, call: relax.Call) -> Read | None:
    attrs, (data,) = call.attrs, call.args
    widths = [int(width) for width in attrs.pad_width]
    if len(widths) not in (6, 8) or any(widths[:4]) or not is_image(data):
        return None
    kind, (height, width) = str(attrs.pad_mode), extent(data)[2:]
    above, below = widths[4:6] if len(widths) == 8 else (0, 0)
    operator = Resampling(
        kind=kind,
        rows=pad_positions(kind, height, above, below),
        columns=pad_positions(kind, width, *widths[-2:]),
        outside=float(attrs.pad_value),
    )
    return Read(operator=operator, inputs=(data,))


def _concat(var: relax.Var, call: relax.Call) -> Read | None:
    inputs = tuple(variables(call.args[0]))
    rank = len(shape_of(var))
    axis = int(call.attrs.axis) % rank if call.attrs.axis is not None else 0
    if axis != 1 or len(inputs) != len(call.args[0].fields) or not all(map(is_image, inputs)):
        return None
    return Read(operator=Concatenation(), inputs=inputs)


def _slice(var: relax.Var, call: relax.Call) -> Read | None:
    data, axes, begin, *_ = call.args
    strides = [int(step) for step in call.args[4]] if len(call.args) > 4 else [1]
    shape = shape_of(data)
    if not is_image(data) or set(strides) != {1}:
        return None
    first = [0] * len(shape)
    for axis, start in zip(map(int, axes), map(int, begin), strict=True):
        # A negative one counts from the end.
        first[axis] = max(0, start + shape[axis] if start < 0 else start)
    sliced = [
        axis for axis, (new, old) in enumerate(zip(shape_of(var), shape, strict=True)) if new != old
    ]
    if sliced in ([], [1]):
        return Read(operator=Slice(first=first[1]), inputs=(data,))
    if min(sliced) < 2:
        return None
    return Read(operator=Crop(first=_pair(first[2:], 0)), inputs=(data,))


def _view(var: relax.Var, call: relax.Call) -> Read | None:
    data = call.args[0]
    if not isinstance(data, relax.Var) or not is_image(data) or not same_bytes(data, var):
        return None
    return Read(operator=View(), inputs=(data,))


def _pointwise(name: str, var: relax.Var, arguments: Sequence[relax.Expr]) -> Read | None:
    """One operation, whose input is its first argument of the result's shape."""
    full = extent(var)
    operands: list[relax.Var] = []
    constants: list[np.ndarray] = []
    inputs: list[relax.Var] = []
    refer: list[Argument] = []
    for argument in arguments:
        value = constant_of(argument)
        if value is not None and str(value.dtype) == "float32":
            if value.size == 1:
                refer.append(Scalar(value=float(value.reshape(()))))
                continue
            channels = _per_channel(value, len(shape_of(var)), full[1])
            if channels is None:
                return None
            refer.append(PerChannel(index=len(constants)))
            constants.append(channels)
        elif not isinstance(argument, relax.Var) or not is_image(argument):
            return None
        elif argument in inputs:
            refer.append(Step(index=0))
        elif not inputs and shape_of(argument) == shape_of(var):
            refer.append(Step(index=0))
            inputs.append(argument)
        else:
            one_per_channel = extent(argument) == (*full[:2], 1, 1)
            if len(shape_of(argument)) != len(shape_of(var)):
                return None
            if not one_per_channel and extent(argument) != full:
                return None
            pixel = one_per_channel and extent(argument) != full
            refer.append(Operand(index=len(operands), pixel=pixel))
            operands.append(argument)
    if not inputs:
        return None
    return Read(
        operator=Pointwise(),
        inputs=tuple(inputs),
        expression=(Operation(name=name, arguments=tuple(refer)),),
        operands=tuple(operands),
        constants=tuple(constants),
    )


def _per_channel(value: np.ndarray, rank: int, channels: int) -> np.ndarray | None:
    """A constant that varies along the channel axis only, as one value per channel."""
    shape = (1,) * (rank - value.ndim) + value.shape
    if len(shape) != rank or shape != (1, channels, *(1,) * (rank - 2)):
        return None
    return value.reshape(channels)


def _clip(_var: relax.Var, call: relax.Call) -> Read | None:
    if not isinstance(call.args[0], relax.Var) or not is_image(call.args[0]):
        return None
    low, high = (Scalar(value=float(arg.value)) for arg in call.args[1:])
    return Read(
        operator=Pointwise(),
        inputs=(call.args[0],),
        expression=(
            Operation(name="maximum", arguments=(Step(index=0), low)),
            Operation(name="minimum", arguments=(Step(index=1), high)),
        ),
    )


def _with_scalar(name: str, scalar: float, var: relax.Var, call: relax.Call) -> Read | None:
    read = _pointwise(name, var, call.args)
    if read is None:
        return None
    operation = Operation(name=name, arguments=(Step(index=0), Scalar(value=scalar)))
    return replace(read, expression=(operation,))


def _prelu(var: relax.Var, call: relax.Call) -> Read | None:
    if int(call.attrs.axis) != 1:
        return None
    slope = constant_of(call.args[1])
    channels = extent(var)[1]
    if slope is None or slope.size not in (1, channels):
        return None
    shaped = slope.reshape((1, slope.size, *(1,) * (len(shape_of(var)) - 2)))
    return _pointwise("prelu", var, [call.args[0], relax.const(shaped)])


def _same_name(name: str, var: relax.Var, call: relax.Call) -> Read | None:
    return _pointwise(name, var, call.args)


# Functions that Relax has among its operators of networks.
_OF_NETWORKS = ("silu", "gelu", "gelu_tanh")
_READERS: dict[str, Callable[[relax.Var, relax.Call], Read | None]] = {
    "nn.conv1d": _convolution,
    "nn.conv2d": _convolution,
    "nn.conv1d_transpose": _transposed,
    "nn.conv2d_transpose": _transposed,
    "matmul": _matmul,
    "nn.max_pool1d": lambda var, call: _pool("max", var, call),
    "nn.max_pool2d": lambda var, call: _pool("max", var, call),
    "nn.avg_pool1d": lambda var, call: _pool("average", var, call),
    "nn.avg_pool2d": lambda var, call: _pool("average", var, call),
    "nn.adaptive_avg_pool1d": _adaptive,
    "nn.adaptive_avg_pool2d": _adaptive,
    "mean": partial(_over_image, "average"),
    "max": partial(_over_image, "max"),
    "min": partial(_over_image, "min"),
    "image.resize2d": _resize,
    "nn.pad": _pad,
    "concat": _concat,
    "strided_slice": _slice,
    "reshape": _view,
    "expand_dims": _view,
    "squeeze": _view,
    "clip": _clip,
    **{
        f"nn.{name}" if name in _OF_NETWORKS else name: partial(_same_name, name)
        for name in FUNCTIONS
        if name != "prelu"
    },
    "nn.relu": lambda var, call: _with_scalar("maximum", 0.0, var, call),
    "nn.leakyrelu": lambda var, call: _with_scalar("prelu", float(call.attrs.alpha), var, call),
    "nn.prelu": _prelu,
}

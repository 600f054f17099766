"""What tells the kernel of a layer from those of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from edgepack.kernels.layer import (
    Attention,
    Convolution,
    Layer,
    Norm,
    Pooling,
    RowProduct,
    Softmax,
    Streamed,
    TransposedConvolution,
)
from edgepack.kernels.limits import LimitsByValue
from edgepack.kernels.tiles.expression import Operand, Operation
from edgepack.kernels.value import extent


def signature_of(layer: Layer, limits: LimitsByValue) -> str:
    """A line that equal layers have in common; "" for those that there is one kernel for.

    For example `conv float32 1x32x56x56 3x3 stride=1x1 pad=1x1 to 64x56x56 maximum,minimum`: the
    elements, the input as NCHW, the window, its stride, the padding at top and left, the output as
    CHW, and the arithmetic on each result, where [t] reads another tensor and [c] a value per
    channel of one. Dilation, groups, the elements of the weights and, of the layer's `limits`, the
    largest tiles that Winograd's algorithm may have and the bytes of scratch memory are named where
    they are not the usual ones. Of two layers in one kernel it is both lines. Layers of rows have
    lines such as `product float32 12x128x64 to 128 transposed`: the batch, rows and depth of the
    left matrix, and columns.
    """
    operator = layer.operator
    if isinstance(operator, Streamed):
        reader = replace(layer, operator=operator.reader, inputs=(operator.first.output,))
        first = signature_of(operator.first, limits) or _pointwise(operator.first)
        return f"{first} then {signature_of(reader, limits) or _pooling(reader)}"
    if type(operator) in _ROWS:
        return _of_rows(layer, limits)
    if not isinstance(operator, Convolution) or isinstance(operator, TransposedConvolution):
        return ""
    made = extent(layer.output)
    words = [
        "gated" if operator.gated else "conv",
        str(layer.element),
        _by_x(extent(layer.inputs[0])),
        _by_x(operator.kernel),
        f"stride={_by_x(operator.stride)}",
        f"pad={_by_x(operator.before)}",
        f"to {_by_x(made[1:])}",
    ]
    if operator.dilation != (1, 1):
        words.append(f"dilation={_by_x(operator.dilation)}")
    if operator.groups > 1:
        words.append(f"groups={operator.groups}")
    if layer.weights != layer.element:
        words.append(f"weights={layer.weights}")
    own = limits.of(layer)
    if own.most_results is not None:
        words.append(f"winograd={own.most_results}")
    if own.room is not None:
        words.append(f"scratch={own.room}")
    if layer.expression:
        words.append(",".join(map(_operation, layer.expression)))
    return " ".join(words)


def _of_rows(layer: Layer, limits: LimitsByValue) -> str:
    kind, *words = _ROWS[type(layer.operator)](layer.operator)
    room = limits.of(layer).room
    if room is not None:
        words.append(f"scratch={room}")
    if layer.expression:
        words.append(",".join(map(_operation, layer.expression)))
    return " ".join([kind, str(layer.element), *words])


def _norm(norm: Norm) -> list[str]:
    kind = "rmsnorm" if norm.shift is None else "layernorm"
    return [kind, _by_x((norm.rows, norm.size))]


def _softmax(softmax: Softmax) -> list[str]:
    kind = "logsoftmax" if softmax.logarithm else "softmax"
    return [kind, _by_x((softmax.rows, softmax.size))]


def _product(product: RowProduct) -> list[str]:
    words = ["product", _by_x((product.batch, product.rows, product.depth))]
    words.append(f"to {product.columns}")
    if product.weight is not None:
        words.append("weights")
    elif product.right_batch != product.batch:
        words.append(f"right={product.right_batch}")
    if product.left_batch != product.batch:
        words.append(f"left={product.left_batch}")
    if product.transposed:
        words.append("transposed")
    if product.left_at is not None:
        words.append(f"step={product.left_at.step}")
    return words


def _attention(attention: Attention) -> list[str]:
    *heads, queries, columns = attention.result.shape
    *_, keys, depth = attention.keys.places.shape
    words = ["attention", _by_x((*heads, queries, depth)), f"keys={keys}", f"to {columns}"]
    if attention.keys.places.strides[-1] != 1:
        words.append("transposed")
    if attention.masks:
        words.append(f"masks={len(attention.masks)}")
    if attention.in_queries:
        words.append("in place")
    return words


_ROWS: Mapping[type, Callable[[Any], list[str]]] = {
    Norm: _norm,
    Softmax: _softmax,
    RowProduct: _product,
    Attention: _attention,
}


def _pointwise(layer: Layer) -> str:
    return ",".join(map(_operation, layer.expression))


def _pooling(layer: Layer) -> str:
    operator = layer.operator
    assert isinstance(operator, Pooling)
    words = [operator.kind, _by_x(operator.kernel), f"stride={_by_x(operator.stride)}"]
    words += [f"pad={_by_x((*operator.before, *operator.after))}"]
    words += [f"dilation={_by_x(operator.dilation)}", f"to {_by_x(extent(layer.output)[1:])}"]
    if operator.count_padding:
        words.append("padding counted")
    return " ".join([*words, ",".join(map(_operation, layer.expression))]).rstrip()


def _operation(operation: Operation) -> str:
    reads = [item for item in operation.arguments if isinstance(item, Operand)]
    return operation.name + "".join("[c]" if item.pixel else "[t]" for item in reads)


def _by_x(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))

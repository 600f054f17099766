"""Operators between DequantizeLinear and QuantizeLinear, as operators on integers.

    Dequantize -> Conv -> Relu -> Quantize

is one `IntegerConvolution` here. Quantised models have all their operators in such pairs (QDQ); as
few as one of them may be recognised, the others stay as they are, with numbers between. Where
numbers become integers that such an operator reads is an `integer.ToIntegers`, where integers are
read as numbers an `integer.FromIntegers`.

Some may be left in float where that is faster. Between two operators that are, numbers are not
rounded to steps; they are cut off where the integers end, for a QuantizeLinear often stands for the
Relu or Clip that was before it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from edgepack.frontend.forms import attribute, known_shapes, read_inside
from edgepack.frontend.interpolation import Form, matrix
from edgepack.frontend.operator_form import as_pairs, is_quantized, without_axes
from edgepack.kernels import integer
from edgepack.kernels.integer import Array, IntegerOperator, Steps, Target
from edgepack.kernels.record import from_parts, to_parts
from edgepack.kernels.tiles.cpu import INT8_BLOCK
from edgepack.model import opset_of
from edgepack.model.index import GraphIndex

# What the nodes are called that stand for them; see `operator_of`.
NODE, DOMAIN = "IntegerOperator", "edgepack"
_KIND = "kind"
# No sum is larger than this, nor its negative.
_MOST = 2**31 - 1


def with_integers(
    proto: onnx.ModelProto, leave: Callable[[Recognition], Collection[str]]
) -> onnx.ModelProto:
    """A model with its quantised operators as nodes `NODE`; the same if it has none.

    Those that `leave` names are left in float. The model's constants are initializers, and all of
    its shapes are known.
    """
    if not is_quantized(proto):
        return proto
    found = _recognised(proto)
    if not found.taken:
        return proto
    left = leave(found)
    found.taken = {
        name: taken for name, taken in found.taken.items() if taken.node_name not in left
    }
    return without_axes(found.rewritten())


def _recognised(proto: onnx.ModelProto) -> Recognition:
    """What can be done on integers; of operator form only that becomes pairs."""
    kept: dict[str, tuple[int, ...]] = {}
    while True:
        pairs, converted = as_pairs(proto, kept)
        found = Recognition(pairs)
        lost = {name: whole for name, whole in converted.items() if whole not in found.taken}
        if not lost:
            return found
        kept |= {name: found.shapes.get(whole, ()) for name, whole in lost.items()}


def operator_of(node: onnx.NodeProto, arrays: Sequence[Array]) -> IntegerOperator:
    """What a node `NODE` stands for, given the values of its last inputs."""
    return integer_operator(
        {item.name: helper.get_attribute_value(item) for item in node.attribute}, arrays
    )


def integer_operator(attributes: Mapping[str, Any], arrays: Sequence[Array]) -> IntegerOperator:
    """The same, of the node's attributes."""
    name = attributes[_KIND]
    name = name.decode() if isinstance(name, bytes) else name
    kind = next(kind for kind in integer.KINDS if kind.__name__ == name)
    return from_parts(kind, attributes, arrays)


@dataclass(frozen=True, kw_only=True)
class _Integers:
    """A tensor of integers and what they stand for. `moved` is what was taken from uint8."""

    name: str
    steps: Steps
    dtype: str

    @property
    def moved(self) -> int:
        return 128 if self.dtype == "uint8" else 0


@dataclass(frozen=True, kw_only=True)
class Taken:
    """An operator of tensors of integers, and the node that it was."""

    operator: IntegerOperator
    inputs: tuple[str, ...]
    node: onnx.NodeProto

    @property
    def node_name(self) -> str:
        """The node's, as an origin has it."""
        return self.node.name or next(filter(None, self.node.output), "")


class Recognition:
    """What of a graph can be done with integers: `taken`, by the integers that it makes."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = proto
        graph, index = proto.graph, GraphIndex(proto.graph)
        self.constants, self.makers, self.readers = index.constants, index.makers, index.readers
        self.outputs = set(index.outputs)
        self.shapes = known_shapes(proto)
        self.inner = read_inside(graph)
        # Rows that are images of one pixel, by the names that are made up for them.
        self.flat: dict[str, str] = {}
        self.taken: dict[str, Taken] = {}
        for node in graph.node:
            taken = self._take(node) if node.op_type == "QuantizeLinear" else None
            if taken is not None:
                self.taken[node.output[0]] = taken

    # ------------------------------------------------ constants and steps

    def value(self, name: str) -> Array | None:
        """A constant."""
        tensor = self.constants.get(name)
        return None if tensor is None else np.asarray(numpy_helper.to_array(tensor))

    def _zero(self, node: onnx.NodeProto) -> Array | None:
        """A zero point; that of uint8 if there is none."""
        if len(node.input) > 2 and node.input[2]:
            return self.value(node.input[2])
        return np.zeros((), "uint8")

    def integers(self, node: onnx.NodeProto, name: str) -> _Integers | None:
        """The integers `name` of a QuantizeLinear or DequantizeLinear with one scale."""
        scale, zero = self.value(node.input[1]), self._zero(node)
        if scale is None or zero is None or scale.size != 1 or zero.size != 1:
            return None
        if str(scale.dtype) != "float32" or str(zero.dtype) not in ("int8", "uint8"):
            return None
        number = float(scale.reshape(()))
        if not (math.isfinite(number) and number >= np.finfo("float32").tiny):
            return None
        dtype = str(zero.dtype)
        moved = 128 if dtype == "uint8" else 0
        steps = Steps(scale=number, zero=int(zero.reshape(())) - moved)
        return _Integers(name=name, steps=steps, dtype=dtype)

    def read(self, name: str) -> _Integers | None:
        """The integers that a tensor is made of, if they are those of a QuantizeLinear."""
        node = self.makers.get(name)
        if node is not None and node.op_type in _FLATTENING and self.is_flattened(node):
            image = self.read(node.input[0])
            if image is None:
                return None
            self.flat[f"{name}/integers"] = image.name
            self.shapes[f"{name}/integers"] = self.shapes[name]
            return replace(image, name=f"{name}/integers")
        if node is None or node.op_type != "DequantizeLinear":
            return None
        made = self.integers(node, node.input[0])
        maker = self.makers.get(node.input[0])
        if made is None or maker is None or maker.op_type != "QuantizeLinear":
            return None
        # Its integers become int8: nothing else may read them.
        if not self._is_inside(made):
            return None
        return made if self.integers(maker, maker.output[0]) == made else None

    def is_flattened(self, node: onnx.NodeProto) -> bool:
        """Whether a node makes a row of an image of one pixel."""
        shape = self.shapes.get(node.input[0], ())
        result = self.shapes.get(node.output[0], ())
        return len(shape) == 4 and shape[2:] == (1, 1) and result == shape[:2] and shape[0] == 1

    def weight(self, name: str, axis: int) -> tuple[Array, Array] | None:
        """A weight as int8 whose zero point is 0, and its scales along an axis."""
        node = self.makers.get(name)
        if node is None or node.op_type != "DequantizeLinear" or attribute(node, "block_size", 0):
            return None
        values, scale = self.value(node.input[0]), self.value(node.input[1])
        if values is None or scale is None or str(scale.dtype) != "float32":
            return None
        zero = self._zero(node) if len(node.input) > 2 else np.zeros((), values.dtype)
        if zero is None or str(values.dtype) not in ("int8", "uint8"):
            return None
        count, shape = values.shape[axis], [1] * values.ndim
        if scale.size != 1:
            given = attribute(node, "axis", 1) % values.ndim
            if given != axis or scale.shape != (count,) or zero.size not in (1, count):
                return None
        shape[axis] = zero.size
        centred = values.astype("int32") - zero.astype("int32").reshape(shape)
        if centred.min(initial=0) < -128 or centred.max(initial=0) > 127:
            return None
        return centred.astype("int8"), np.broadcast_to(scale.reshape(-1), (count,))

    def number(self, name: str) -> Array | None:
        """A constant of numbers, or what a DequantizeLinear makes of a constant."""
        node = self.makers.get(name)
        if node is None or node.op_type != "DequantizeLinear":
            value = self.value(name)
            return None if value is None else value.astype("float64")
        values, scale = self.value(node.input[0]), self.value(node.input[1])
        zero = self._zero(node) if len(node.input) > 2 else np.zeros((), "int32")
        if values is None or scale is None or zero is None or values.ndim != 1:
            return None
        return np.asarray((values.astype("float64") - zero) * scale.astype("float64"))

    def bias(self, name: str, one: float, scale: Array) -> Array | None:
        """A constant in steps of `one` (a float32) times `scale`: as it is stored, if it is so."""
        node = self.makers.get(name)
        if node is not None and node.op_type == "DequantizeLinear":
            values, stored = self.value(node.input[0]), self.value(node.input[1])
            zero = self.value(node.input[2]) if len(node.input) > 2 else 0
            if stored is not None and stored.size in (1, scale.size):
                same = np.array_equal(stored.reshape(-1) + 0 * scale, np.float32(one) * scale)
                is_row = values is not None and values.ndim == 1
                if same and is_row and zero is not None and not np.any(zero):
                    return np.asarray(values, "float64")
        number = self.number(name)
        if number is None:
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.rint(number.reshape(-1) / (one * scale.astype("float64"))))

    # ------------------------------------------------ what makes integers

    def _take(self, quantize: onnx.NodeProto) -> Taken | None:
        """The operator before a QuantizeLinear, if it can be done with integers."""
        made = self.integers(quantize, quantize.output[0])
        if made is None or not self._is_inside(made):
            return None
        before = self._cut_off(quantize.input[0], made.steps)
        if before is None:
            return None
        node, name, to = before
        convert = _CONVERSIONS.get(node.op_type)
        known = name in self.shapes and 0 not in self.shapes[name]
        if node.domain not in ("", "ai.onnx") or not known:
            return None
        found = convert(self, node, made, to) if convert else None
        found = found or _function(self, node, made, to)
        if found is None:
            return None
        operator, inputs = found
        shapes = [self.shapes.get(item.name, ()) for item in inputs]
        fits = all(shapes) and operator.shape(shapes) == self.shapes[name]
        names = tuple(item.name for item in inputs)
        # Others are not worth a change of layout by themselves.
        products = integer.IntegerConvolution | integer.IntegerTransposed
        worth = isinstance(operator, products) or any(
            self.flat.get(item, item) in self.taken for item in names
        )
        if not (fits and worth):
            return None
        return Taken(operator=operator, inputs=names, node=node)

    def _cut_off(self, name: str, steps: Steps) -> tuple[onnx.NodeProto, str, Target] | None:
        """The operator before a QuantizeLinear, what it makes, and what is cut off of that."""
        to = Target(zero=steps.zero, low=-128, high=127)
        while self._is_alone(name) and (node := self.makers.get(name)) is not None:
            if node.op_type not in ("Relu", "Clip"):
                return node, name, to
            bounds = self._bounds(node)
            if bounds is None:
                return None
            # What is cut off later was seen before.
            low, high = (_step(bound, steps) for bound in bounds)
            low, high = (min(max(bound, to.low), to.high) for bound in (low, high))
            to, name = replace(to, low=low, high=high), node.input[0]
        return None

    def _is_alone(self, name: str) -> bool:
        """Whether one node reads a tensor, and nothing else does."""
        return len(self.readers[name]) == 1 and name not in self.outputs and name not in self.inner

    def _is_inside(self, made: _Integers) -> bool:
        """Whether integers are read by nodes of the same steps only."""
        if made.name in self.outputs or made.name in self.inner:
            return False
        return all(
            node.op_type == "DequantizeLinear" and self.integers(node, made.name) == made
            for node in self.readers[made.name]
        )

    def _bounds(self, node: onnx.NodeProto) -> tuple[float, float] | None:
        """What a Relu or Clip cuts off."""
        if node.op_type == "Relu":
            return 0.0, math.inf
        bounds = []
        for index, (name, least) in enumerate((("min", -math.inf), ("max", math.inf)), start=1):
            if len(node.input) > index and node.input[index]:
                value = self.value(node.input[index])
                if value is None or value.size != 1:
                    return None
                bounds.append(float(value.reshape(())))
            else:
                bounds.append(float(attribute(node, name, least)))
        low, high = bounds
        return (low, high) if low <= high else None

    # ------------------------------------------------ the model with them

    def _unrounded(self, node: onnx.NodeProto) -> tuple[str, list[Array]] | None:
        """For a DequantizeLinear of what was a number before: that, and where integers end. None
        for an output of the model, which is what the model says, and for integers that are one."""
        if node.op_type != "DequantizeLinear" or any(
            map(self._is_output, (node.input[0], node.output[0]))
        ):
            return None
        made, maker = self.integers(node, node.input[0]), self.makers.get(node.input[0])
        if made is None or maker is None or maker.op_type != "QuantizeLinear":
            return None
        if self.integers(maker, maker.output[0]) != made:
            return None
        ends = np.array([-128, 127], "int8")
        bounds = integer.FromIntegers(steps=made.steps).run([ends])
        return maker.input[0], [np.asarray(bound) for bound in bounds]

    def _is_output(self, name: str) -> bool:
        """Whether it is one of the model's, as it is or in another type."""
        casts = (node for node in self.readers[name] if node.op_type == "Cast")
        return name in self.outputs or any(node.output[0] in self.outputs for node in casts)

    def rewritten(self) -> onnx.ModelProto:
        """The model in which they are nodes."""
        changed = onnx.ModelProto()
        changed.CopyFrom(self.proto)
        graph = changed.graph
        used = {self.flat.get(n, n) for taken in self.taken.values() for n in taken.inputs}
        made: list[onnx.NodeProto] = []
        flat: dict[str, list[str]] = defaultdict(list)
        for name, source in self.flat.items():
            flat[source].append(name)
        constants: list[onnx.TensorProto] = []

        def add(operator: IntegerOperator, inputs: Sequence[str], name: str, output: str) -> None:
            attributes, arrays = to_parts(operator)
            names = [f"{output}/{index}" for index in range(len(arrays))]
            constants.extend(map(numpy_helper.from_array, arrays, names))
            attributes |= {_KIND: type(operator).__name__}
            made.append(
                helper.make_node(
                    *(NODE, [*inputs, *names], [output], name), domain=DOMAIN, **attributes
                )
            )

        for node in self.proto.graph.node:
            (output,) = list(node.output)[:1] or [""]
            if output in self.taken:
                taken = self.taken[output]
                add(taken.operator, taken.inputs, taken.node.name, output)
            elif output in used:
                found = self.integers(node, output)
                assert found is not None
                add(integer.ToIntegers(steps=found.steps), node.input[:1], node.name, output)
            elif node.op_type == "DequantizeLinear" and node.input[0] in self.taken:
                found = self.integers(node, node.input[0])
                assert found is not None
                add(integer.FromIntegers(steps=found.steps), node.input[:1], node.name, output)
            elif (cut := self._unrounded(node)) is not None:
                value, bounds = cut
                ends = [f"{output}/{word}" for word in ("least", "most")]
                constants.extend(map(numpy_helper.from_array, bounds, ends))
                made.append(helper.make_node("Clip", [value, *ends], [output], name=node.name))
            else:
                made.append(node)
            for name in flat.get(output, ()):
                add(integer.IntegerFlatten(), [output], name, name)
        del graph.node[:]
        graph.node.extend(_read_only(made, self.outputs, self.inner))
        graph.initializer.extend(constants)
        _drop_types(graph, {*self.taken, *used})
        names = {name for node in graph.node for name in node.input} | self.inner | self.outputs
        weights = [tensor for tensor in graph.initializer if tensor.name in names]
        del graph.initializer[:]
        graph.initializer.extend(weights)
        if all(item.domain != DOMAIN for item in changed.opset_import):
            changed.opset_import.append(helper.make_opsetid(DOMAIN, 1))
        return changed


def _drop_types(graph: onnx.GraphProto, names: set[str]) -> None:
    """Forget the types of tensors that are int8 now, whatever they were."""
    kept = [value for value in graph.value_info if value.name not in names]
    del graph.value_info[:]
    graph.value_info.extend(kept)


def _read_only(
    nodes: Sequence[onnx.NodeProto], outputs: set[str], inner: set[str]
) -> list[onnx.NodeProto]:
    """Those whose results are read."""
    wanted = {*outputs, *inner}
    left = []
    for node in reversed(nodes):
        if wanted & set(node.output):
            left.append(node)
            wanted.update(node.input)
    return left[::-1]


def _step(value: float, steps: Steps) -> int:
    """The integer that a number becomes."""
    if math.isinf(value):
        return -128 if value < 0 else 127
    (made,) = integer.ToIntegers(steps=steps).run([np.array([value], "float32")])
    return int(made)


# ------------------------------------------------ operators

_Found = tuple[IntegerOperator, list[_Integers]]
_Convert = Callable[[Recognition, onnx.NodeProto, _Integers, Target], _Found | None]


def _convolved(
    graph: Recognition,
    data: _Integers,
    made: _Integers,
    to: Target,
    *,
    weight: Array,
    scale: Array,
    bias: str,
    window: Mapping[str, tuple[int, int]],
    groups: int = 1,
) -> _Found | None:
    """A convolution by `weight` [out, in, rows, columns], with a scale for each output channel."""
    both = np.float32(data.steps.scale) * scale
    factor = both / np.float32(made.steps.scale)
    if not np.isfinite(factor).all():
        return None
    total = np.zeros(len(weight))
    if bias:
        found = graph.bias(bias, data.steps.scale, scale)
        if found is None or found.shape != total.shape:
            return None
        total = found
        # A channel whose weights are all zero may have any scale.
        if not np.isfinite(total).all():
            return None
    factor = factor.astype("float32")
    wide = weight.astype("int64").reshape(len(weight), -1)
    bounded = _bounded(total - data.steps.zero * wide.sum(axis=1), wide, factor, to)
    if bounded is None:
        return None
    operator = integer.IntegerConvolution(
        weight=weight,
        bias=bounded.astype("int32"),
        factor=factor,
        zero=data.steps.zero,
        groups=groups,
        to=to,
        **window,
    )
    return operator, [data]


def _bounded(total: Array, weight: Array, factor: Array, to: Target) -> Array | None:
    """Biases with which no sum is beyond int32, whatever the input, and all results are the same.

    On the way to a sum it may be beyond, as kernels do that have inputs 128 more: what wraps comes
    back. Quantisers give channels whose weights are next to nothing a bias as large as there is:
    where all of its results are cut off, a smaller one does.
    """
    least = np.minimum(-128 * weight, 127 * weight).sum(axis=1)
    most = np.maximum(-128 * weight, 127 * weight).sum(axis=1)
    if (most - least).max(initial=0) > 2 * _MOST:
        return None
    kept = np.clip(total, -_MOST - least, _MOST - most)
    # One step more, for products are rounded.
    below = (np.maximum(total, kept) + most) * factor <= to.low - to.zero - 1
    above = (np.minimum(total, kept) + least) * factor >= to.high - to.zero + 1
    return kept if ((kept == total) | below | above).all() else None


_ONE_POINT = {"stride": (1, 1), "before": (0, 0), "after": (0, 0), "dilation": (1, 1)}


def _conv(graph: Recognition, node: onnx.NodeProto, made: _Integers, to: Target) -> _Found | None:
    data, weights = graph.read(node.input[0]), graph.weight(node.input[1], 0)
    if data is None or weights is None:
        return None
    weight, scale = weights
    window = _window(node, graph.shapes.get(data.name, ()), weight.shape[2:])
    if window is None:
        return None
    bias = node.input[2] if len(node.input) > 2 else ""
    return _convolved(
        graph,
        data,
        made,
        to,
        weight=weight if weight.ndim == 4 else weight[:, :, None],
        scale=scale,
        bias=bias,
        window=window,
        groups=attribute(node, "group", 1),
    )


def _conv_transpose(
    graph: Recognition, node: onnx.NodeProto, made: _Integers, to: Target
) -> _Found | None:
    data, weights = graph.read(node.input[0]), graph.weight(node.input[1], 1)
    out, groups = graph.shapes.get(node.output[0], ()), attribute(node, "group", 1)
    # Where pads follow from the size of the output, it is float.
    by_size = _text(node, "auto_pad", "NOTSET") != "NOTSET" or attribute(node, "output_shape", ())
    if data is None or weights is None or by_size:
        return None
    weight, scale = weights
    window = _window(node, graph.shapes.get(data.name, ()), weight.shape[2:])
    if window is None or window["dilation"] != (1, 1):
        return None
    weight = weight if weight.ndim == 4 else weight[:, :, None]
    # Each phase has a part of the window.
    if any(reach < step for reach, step in zip(weight.shape[2:], window["stride"], strict=True)):
        return None
    ins, outs, *reach = weight.shape
    weight = weight.reshape(groups, ins // groups, outs, *reach).swapaxes(1, 2)
    weight, scale = weight.reshape(groups * outs, ins // groups, *reach), np.tile(scale, groups)
    factor = np.float32(data.steps.scale) * scale / np.float32(made.steps.scale)
    bias: Array | None = np.zeros(len(weight))
    if len(node.input) > 2 and node.input[2]:
        bias = graph.bias(node.input[2], data.steps.scale, scale)
    if bias is None or bias.shape != scale.shape or not np.isfinite([*factor, *bias]).all():
        return None
    # No integer is farther from its zero point.
    sums = 255 * np.abs(weight.astype("int64")).reshape(len(weight), -1).sum(axis=1)
    if (np.abs(bias) + sums).max() > _MOST:
        return None
    operator = integer.IntegerTransposed(
        weight=np.ascontiguousarray(weight),
        bias=bias.astype("int32"),
        factor=factor.astype("float32"),
        zero=data.steps.zero,
        stride=window["stride"],
        before=window["before"],
        size=(1, out[2]) if len(out) == 3 else (out[2], out[3]),
        groups=groups,
        to=to,
    )
    return operator, [data]


def _gemm(graph: Recognition, node: onnx.NodeProto, made: _Integers, to: Target) -> _Found | None:
    factors = [attribute(node, name, 1.0) for name in ("alpha", "beta")]
    if attribute(node, "transA", 0) or factors != [1.0, 1.0]:
        return None
    bias = node.input[2] if len(node.input) > 2 else ""
    return _dense(graph, node, made, to, attribute(node, "transB", 0), bias)


def _matmul(graph: Recognition, node: onnx.NodeProto, made: _Integers, to: Target) -> _Found | None:
    return _dense(graph, node, made, to, 0, "")


def _dense(
    graph: Recognition,
    node: onnx.NodeProto,
    made: _Integers,
    to: Target,
    transposed: int,
    bias: str,
) -> _Found | None:
    data = graph.read(node.input[0])
    weights = graph.weight(node.input[1], 0 if transposed else 1)
    if data is None or weights is None or weights[0].ndim != 2:
        return None
    if len(graph.shapes.get(data.name, ())) != 2:
        return None
    weight, scale = weights
    matrix = weight if transposed else weight.T
    return _convolved(
        graph,
        data,
        made,
        to,
        weight=np.ascontiguousarray(matrix)[:, :, None, None],
        scale=scale,
        bias=bias,
        window=_ONE_POINT,
    )


def _add(graph: Recognition, node: onnx.NodeProto, made: _Integers, to: Target) -> _Found | None:
    given = [item for name in node.input if (item := graph.read(name)) is not None]
    shapes = {graph.shapes.get(item.name, ()) for item in given}
    if len(given) != 2 or len(shapes) != 1 or len(shapes.pop()) not in (2, 3, 4):
        return None
    operator = integer.IntegerSum.of([item.steps for item in given], made.steps, to)
    return None if operator is None else (operator, given)


def _mul(graph: Recognition, node: onnx.NodeProto, made: _Integers, to: Target) -> _Found | None:
    given = [item for name in node.input if (item := graph.read(name)) is not None]
    if len(given) != 2:
        return None

    def gate(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        """Whether the other has a number for each channel of the one."""
        return len(one) == len(other) > 2 and other == (*one[:2], *[1] * (len(one) - 2))

    one, other = (graph.shapes.get(item.name, ()) for item in given)
    if one != other and gate(other, one):
        given, one, other = given[::-1], other, one
    if len(one) not in (2, 3, 4) or not (one == other or gate(one, other)):
        return None
    factor = np.float32(given[0].steps.scale * given[1].steps.scale / made.steps.scale)
    if not np.isfinite(factor):
        return None
    zeros = given[0].steps.zero, given[1].steps.zero
    return integer.IntegerProduct(zeros=zeros, factor=float(factor), to=to), given


# Functions of one number without further inputs, and what else functions of one number are made of.
_UNARY = (
    *("Abs", "Elu", "Exp", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Neg", "Selu"),
    *("Relu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Tanh"),
)
_ELEMENTWISE = (*_UNARY, "Add", "Clip", "Div", "Max", "Min", "Mul", "Pow", "Sub")
# Nodes of one.
_MOST_NODES = 16


def _function(
    graph: Recognition, node: onnx.NodeProto, made: _Integers, to: Target
) -> _Found | None:
    """Any function of single numbers of a tensor, by its definition: Sigmoid, or x * Sigmoid(x); or
    none, where integers are put into other steps."""
    nodes: list[onnx.NodeProto] = []
    given: dict[str, _Integers] = {}
    constants: dict[str, Array] = {}

    def reached(name: str) -> bool:
        if name in given or any(name in one.output for one in nodes):
            return True
        value, item = graph.value(name), graph.read(name)
        if value is not None:
            constants[name] = value.astype("float64")
            return value.size == 1 and str(value.dtype) == "float32"
        if item is not None:
            given[name] = item
            return True
        maker = graph.makers.get(name)
        if maker is None or maker.op_type not in _ELEMENTWISE or len(nodes) == _MOST_NODES:
            return False
        found = maker.domain in ("", "ai.onnx") and all(map(reached, filter(None, maker.input)))
        nodes.append(maker)
        return found

    if not reached(node.output[0]) or len({item.name for item in given.values()}) != 1:
        return None
    # What is read elsewhere is computed there anyway.
    inside = {id(one) for one in nodes}
    for name in (one.output[0] for one in nodes[:-1]):
        if name in graph.outputs or name in graph.inner:
            return None
        if any(id(reader) not in inside for reader in graph.readers[name]):
            return None
    data = next(iter(given.values()))
    numbers = data.steps.scale * (np.arange(-128.0, 128.0) - data.steps.zero)
    results = numbers
    with np.errstate(all="ignore"):
        if nodes:
            model = _alone(graph.proto, nodes, given, constants)
            (results,) = ReferenceEvaluator(model).run(None, dict.fromkeys(given, numbers))
        real = (results / made.steps.scale).astype("float32")
    if real.shape != numbers.shape or not np.isfinite(real).all():
        return None
    return integer.IntegerTable(table=to.requantised(real, np.float32(1))), [data]


def _alone(
    proto: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    given: Collection[str],
    constants: Mapping[str, Array],
) -> onnx.ModelProto:
    """A model of some nodes, in double precision: the last bits of a function are not the same on
    every machine."""
    ends = [
        helper.make_tensor_value_info(name, TensorProto.DOUBLE, [256])
        for name in (*given, nodes[-1].output[0])
    ]
    stored = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "alone", ends[:-1], ends[-1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset_of(proto))])


def _mean(graph: Recognition, node: onnx.NodeProto, made: _Integers, to: Target) -> _Found | None:
    data = graph.read(node.input[0])
    shape = graph.shapes.get(data.name, ()) if data is not None else ()
    if data is None or len(shape) not in (3, 4):
        return None
    if node.op_type == "ReduceMean":
        axes = attribute(node, "axes", None)
        if axes is None and len(node.input) > 1:
            value = graph.value(node.input[1])
            axes = None if value is None else value.reshape(-1).tolist()
        all_ = list(range(2, len(shape)))
        if axes is None or sorted(axis % len(shape) for axis in axes) != all_:
            return None
        if not attribute(node, "keepdims", 1):
            return None
    pixels = math.prod(shape[2:])
    if 256 * pixels > _MOST:
        return None
    factor = np.float32(data.steps.scale / (pixels * made.steps.scale))
    if not np.isfinite(factor):
        return None
    operator = integer.IntegerMean(pixels=pixels, zero=data.steps.zero, factor=float(factor), to=to)
    return operator, [data]


def _pool(graph: Recognition, node: onnx.NodeProto, made: _Integers, to: Target) -> _Found | None:
    data = graph.read(node.input[0])
    average = node.op_type == "AveragePool"
    kernel = tuple(attribute(node, "kernel_shape", ()))
    if data is None or len([name for name in node.output if name]) > 1:
        return None
    window = _window(node, graph.shapes.get(data.name, ()), kernel)
    if window is None or attribute(node, "ceil_mode", 0) or attribute(node, "storage_order", 0):
        return None
    points = math.prod(kernel)
    around = (*window["before"], *window["after"])
    one_row = kernel if len(kernel) == 2 else (1, *kernel)
    if average and any(around):
        return None
    # Each window has a point of the image.
    reach = [(size - 1) * step for size, step in zip(one_row, window["dilation"], strict=True)]
    if window["dilation"] != (1, 1) or any(
        pad > most for pad, most in zip(around, reach * 2, strict=True)
    ):
        return None
    scale = data.steps.scale / ((points if average else 1) * made.steps.scale)
    if points > _MOST_POINTS or not np.isfinite(np.float32(scale)):
        return None
    operator = integer.IntegerPooling(
        average=average,
        kernel=one_row,
        zero=data.steps.zero,
        factor=float(np.float32(scale)),
        to=to,
        **window,
    )
    return operator, [data]


# Windows are unrolled.
_MOST_POINTS = 64


def _concat(graph: Recognition, node: onnx.NodeProto, made: _Integers, to: Target) -> _Found | None:
    given = [item for name in node.input if (item := graph.read(name)) is not None]
    shapes = [graph.shapes.get(item.name, ()) for item in given]
    if len(given) != len(node.input) or not all(len(shape) in (2, 3, 4) for shape in shapes):
        return None
    if attribute(node, "axis") % len(shapes[0]) != 1:
        return None
    # Whole blocks of channels.
    if any(shape[1] % INT8_BLOCK for shape in shapes[:-1]):
        return None
    factors = [np.float32(item.steps.scale) / np.float32(made.steps.scale) for item in given]
    if not np.isfinite(factors).all():
        return None
    operator = integer.IntegerConcatenation(
        zeros=tuple(item.steps.zero for item in given),
        factors=tuple(map(float, factors)),
        to=to,
    )
    return operator, given


# Coordinates that are inside of every image.
_INSIDE = (
    "align_corners",
    "asymmetric",
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
)


def _resize(graph: Recognition, node: onnx.NodeProto, made: _Integers, to: Target) -> _Found | None:
    """A resize to the nearest pixel, or between pixels."""
    data, out = graph.read(node.input[0]), graph.shapes.get(node.output[0], ())
    shape = graph.shapes.get(data.name, ()) if data is not None else ()
    if data is None or len(shape) not in (3, 4) or out[:2] != shape[:2]:
        return None
    form = Form(
        mode=_text(node, "mode", "nearest"),
        coordinates=_text(node, "coordinate_transformation_mode", "half_pixel"),
        nearest=_text(node, "nearest_mode", "round_prefer_floor"),
        exclude_outside=bool(attribute(node, "exclude_outside", 0)),
    )
    plain = _text(node, "keep_aspect_ratio_policy", "stretch") == "stretch"
    plain = plain and not (attribute(node, "axes", None) or attribute(node, "antialias", 0))
    if not plain or form.coordinates not in _INSIDE or opset_of(graph.proto) <= _OLD_RESIZE:
        return None
    given = graph.value(node.input[2]) if len(node.input) > 2 and node.input[2] else np.zeros(0)
    factor = np.float32(data.steps.scale) / np.float32(made.steps.scale)
    if given is None or not np.isfinite(factor):
        return None
    ratios = (given if given.size else np.array(out) / shape)[2:].tolist()
    axes = list(zip(shape[2:], out[2:], ratios, strict=True))
    weights = [
        np.eye(size) if size == new else matrix(form, size, new, ratio)[0]
        for size, new, ratio in axes
    ]
    weights = [np.ones((1, 1))] * (2 - len(weights)) + weights
    operator: IntegerOperator | None = None
    if form.mode == "nearest" and all(_is_exact(*axis) for axis in axes):
        rows, columns = (item.argmax(1).astype("int32") for item in weights)
        operator = integer.IntegerChoice(
            rows=rows, columns=columns, zero=data.steps.zero, factor=float(factor), to=to
        )
    elif form.mode == "linear":
        operator = _between(weights, data.steps.zero, factor, to)
    return None if operator is None else (operator, [data])


# Of a result, of one step of the image: of more, what weights are off would be half a step.
_MOST_STEPS = 4.0


def _between(
    weights: Sequence[Array], zero: int, factor: np.float32, to: Target
) -> IntegerOperator | None:
    """A resize by what each row and each column of the result takes of those of the image."""
    down, along = (integer.IntegerInterpolation.parts_of(item) for item in weights)
    if down is None or along is None or factor > _MOST_STEPS:
        return None
    return integer.IntegerInterpolation(
        rows=down[0],
        row_weights=down[1],
        columns=along[0],
        column_weights=along[1],
        zero=zero,
        factor=float(factor * np.float32(0.25**integer.IntegerInterpolation.BITS)),
        to=to,
    )


def _is_exact(size: int, out: int, ratio: float) -> bool:
    """Whether coordinates are the same in any precision: onnxruntime's are float32, and others may
    be another pixel's. So they are for whole ratios, and for powers of two."""
    whole = ratio.is_integer() or math.frexp(ratio)[0] == 0.5
    return whole and ratio * size == out


# Version 10 has no coordinates to choose.
_OLD_RESIZE = 10


def _text(node: onnx.NodeProto, name: str, default: str) -> str:
    found = attribute(node, name, default)
    return found.decode() if isinstance(found, bytes) else str(found)


# Those that may make rows of images.
_FLATTENING = ("Flatten", "Reshape", "Squeeze")


def _flatten(
    graph: Recognition, node: onnx.NodeProto, made: _Integers, to: Target
) -> _Found | None:
    data = graph.read(node.input[0])
    if data is None or data.steps != made.steps or to != Target(zero=to.zero, low=-128, high=127):
        return None
    return (integer.IntegerFlatten(), [data]) if graph.is_flattened(node) else None


_CONVERSIONS: dict[str, _Convert] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Add": _add,
    "Mul": _mul,
    "GlobalAveragePool": _mean,
    "ReduceMean": _mean,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "Concat": _concat,
    "Resize": _resize,
    **dict.fromkeys(_FLATTENING, _flatten),
}


def _window(
    node: onnx.NodeProto, shape: Sequence[int], kernel: Sequence[int]
) -> dict[str, tuple[int, int]] | None:
    """How a window of one or two dimensions goes over an image."""
    rank = len(kernel)
    if rank not in (1, 2) or len(shape) != rank + 2:
        return None
    stride = list(attribute(node, "strides", [1] * rank))
    dilation = list(attribute(node, "dilations", [1] * rank))
    pads = list(attribute(node, "pads", [0] * 2 * rank))
    auto = attribute(node, "auto_pad", b"NOTSET").decode()
    if auto.startswith("SAME"):
        for axis, size in enumerate(shape[2:]):
            covered = (kernel[axis] - 1) * dilation[axis] + 1
            total = max((-(-size // stride[axis]) - 1) * stride[axis] + covered - size, 0)
            small, large = total // 2, total - total // 2
            pads[axis], pads[rank + axis] = (
                (small, large) if auto == "SAME_UPPER" else (large, small)
            )
    elif auto == "VALID":
        pads = [0] * 2 * rank
    if min(pads) < 0:
        return None

    def pair(values: Sequence[int], of_one_row: int) -> tuple[int, int]:
        return (of_one_row, values[0]) if rank == 1 else (values[0], values[1])

    return {
        "stride": pair(stride, 1),
        "before": pair(pads[:rank], 0),
        "after": pair(pads[rank:], 0),
        "dilation": pair(dilation, 1),
    }


def arrays_of(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> list[Array]:
    """The values of those inputs that are constants."""
    return [
        np.asarray(numpy_helper.to_array(constants[name]))
        for name in node.input
        if name in constants
    ]

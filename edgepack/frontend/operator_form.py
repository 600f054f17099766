"""Operators on quantised tensors (QLinearConv and its like) as pairs around operators on numbers.

    x -> QLinearConv -> y    is    x -> DequantizeLinear -> Conv -> QuantizeLinear -> y

so that `integer_recognition` has one form to know. That holds as far as its operators on integers
take their place: sums of numbers are not those of integers to the bit. All other nodes stay as they
are, and read the same integers as before.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from edgepack.frontend.forms import attribute, read_inside
from edgepack.model import opset_of
from edgepack.model.index import GraphIndex

Array = npt.NDArray[Any]

_MICROSOFT = "com.microsoft"
# Since this opset DequantizeLinear has an axis.
_BY_CHANNEL = 13


def is_quantized(proto: onnx.ModelProto) -> bool:
    """Whether a model has operators of quantised tensors, its functions included."""
    nodes = (node for part in (proto.graph, *proto.functions) for node in part.node)
    return any(node.op_type == "QuantizeLinear" or _converter(node) for node in nodes)


def as_pairs(
    proto: onnx.ModelProto, kept: Mapping[str, Sequence[int]] = MappingProxyType({})
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """The model in pairs, the same if it has no such operator; and for the result of each that
    became pairs the integers that a QuantizeLinear makes of it now.

    Nodes whose results are `kept` stay; those have these shapes, where any are known, for onnx does
    not know the shapes of operators that are not its own. The model's constants are initializers.
    """
    if not any(map(_converter, proto.graph.node)):
        return proto, {}
    writer = _PairWriter(proto, kept)
    for node in proto.graph.node:
        writer.add(node)
    return writer.model(), writer.converted


def without_axes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model without DequantizeLinear by channel where its opset has none: numbers instead.

    The model's constants are initializers.
    """
    if opset_of(proto) >= _BY_CHANNEL:
        return proto
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    constants = GraphIndex(made.graph).constants
    nodes = []
    for node in made.graph.node:
        axis = attribute(node, "axis")
        if node.op_type != "DequantizeLinear" or axis is None:
            nodes.append(node)
            continue
        values, *given = (numpy_helper.to_array(constants[name]) for name in node.input if name)
        shape = [1] * values.ndim
        shape[axis] = -1
        scale, *zero = (item.reshape(shape) if item.ndim else item for item in given)
        centred = values.astype("int32") - (zero[0].astype("int32") if zero else 0)
        number = np.asarray(centred.astype("float32") * scale)
        made.graph.initializer.append(numpy_helper.from_array(number, node.output[0]))
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


@dataclass(frozen=True, kw_only=True)
class _Operand:
    """Integers by name, with the names of their scale and zero point; those of weights may be along
    an axis."""

    name: str
    scale: str
    zero: str
    axis: int | None = None


@dataclass(frozen=True, kw_only=True)
class _PairForm:
    """An operator on numbers: of integers, of other inputs, and the steps of its result."""

    op_type: str
    given: Sequence[_Operand]
    others: Sequence[str] = ()
    scale: str
    zero: str
    attributes: Mapping[str, Any]


class _PairWriter:
    def __init__(self, proto: onnx.ModelProto, kept: Mapping[str, Sequence[int]]) -> None:
        self.proto, self.kept = proto, kept
        graph = GraphIndex(proto.graph)
        self.constants = graph.constants
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        # What keeps its name and its type, for something else than nodes of the graph reads it.
        self.fixed = {*graph.outputs, *read_inside(proto.graph)}
        # Scale and zero point of what a QuantizeLinear makes, by names.
        self.steps: dict[str, tuple[str, str]] = {}
        # For a result the integers that pairs are made of, where they have another name.
        self.converted: dict[str, str] = {}
        # For integers of pairs the same ones for nodes that are none.
        self.plain: dict[str, str] = {}
        self.types: list[onnx.ValueInfoProto] = []
        self._numbers: dict[tuple[str, str, str], str] = {}
        self._count: dict[str, int] = defaultdict(int)

    # ------------------------------------------------ nodes

    def add(self, node: onnx.NodeProto) -> None:
        """A node in its turn."""
        if node.op_type == "QuantizeLinear":
            self._add_quantize(node)
            return
        convert = _converter(node)
        form = convert(self, node) if convert else self._direct(node)
        if form is not None:
            if node.output[0] not in self.kept:
                self._convert(node, form)
                return
            self._describe(node.output[0], form)
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for index, name in enumerate(node.input):
            if node.op_type == "DequantizeLinear":
                copy.input[index] = self.converted.get(name, name)
            else:
                copy.input[index] = self._plain(name)
        self.nodes.append(copy)

    def _add_quantize(self, node: onnx.NodeProto) -> None:
        self.nodes.append(node)
        (output,) = node.output
        steps = node.input[1], node.input[2] if len(node.input) > 2 else ""
        if output in self.fixed or any(name not in self.constants for name in steps):
            return
        # Of steps by blocks, or along an axis, what an operator makes has other axes.
        if math.prod(self.constants[steps[0]].dims) == 1:
            self.steps[output] = steps

    def _describe(self, name: str, form: _PairForm) -> None:
        """The type of a result that is kept."""
        zero = self.constants[form.zero]
        if self.kept[name]:
            info = helper.make_tensor_value_info(name, zero.data_type, self.kept[name])
            self.types.append(info)

    def _convert(self, node: onnx.NodeProto, form: _PairForm) -> None:
        (output,) = [name for name in node.output if name]
        numbers = [self._number(item) for item in form.given]
        made = self._name(output, "number")
        self.nodes.append(
            helper.make_node(
                form.op_type,
                [*numbers, *form.others],
                [made],
                name=node.name or output,
                **form.attributes,
            )
        )
        steps = form.scale, form.zero
        integers = self._name(output, "integers") if output in self.fixed else output
        self._pair("QuantizeLinear", made, steps, integers)
        self.steps[integers], self.converted[output] = steps, integers
        if output in self.fixed:
            self._pair("QuantizeLinear", self._dequantized(integers, steps), steps, output)
            self.plain[integers] = output

    def _direct(self, node: onnx.NodeProto) -> _PairForm | None:
        """An operator that reads integers as it would numbers, with the same steps."""
        name = self.converted.get(node.input[0], node.input[0]) if node.input else ""
        if node.op_type not in _DIRECT or name not in self.steps:
            return None
        if len([output for output in node.output if output]) > 1:
            return None
        scale, zero = self.steps[name]
        return _PairForm(
            op_type=node.op_type,
            given=[_Operand(name=name, scale=scale, zero=zero)],
            others=list(node.input[1:]),
            scale=scale,
            zero=zero,
            attributes=_attributes(node),
        )

    # ------------------------------------------------ tensors

    def _number(self, item: _Operand) -> str:
        """What integers stand for."""
        steps = item.scale, item.zero
        if item.name in self.constants:
            return self._dequantized(item.name, steps, item.axis)
        name = self.converted.get(item.name, item.name)
        key = (name, *steps)
        if key not in self._numbers:
            source = name
            if name not in self.steps:
                # Through a pair, which changes nothing.
                source = self._name(name, "integers")
                self._pair("QuantizeLinear", self._dequantized(name, steps), steps, source)
                self.steps[source] = steps
            self._numbers[key] = self._dequantized(source, steps)
        return self._numbers[key]

    def _plain(self, name: str) -> str:
        """The integers for a node that is not one of pairs."""
        integers = self.converted.get(name, name)
        if integers not in self.steps:
            return name
        if integers not in self.plain:
            steps = self.steps[integers]
            plain = self.plain[integers] = self._name(name, "plain")
            self._pair("QuantizeLinear", self._dequantized(integers, steps), steps, plain)
        return self.plain[integers]

    def _dequantized(self, name: str, steps: tuple[str, str], axis: int | None = None) -> str:
        made = self._name(name, "number")
        return self._pair("DequantizeLinear", name, steps, made, axis)

    def _pair(
        self, op_type: str, name: str, steps: tuple[str, str], made: str, axis: int | None = None
    ) -> str:
        given = [name, *filter(None, steps)]
        attributes = {} if axis is None else {"axis": axis}
        # The operator of pairs may have the name of what it makes.
        word = f"{made}/{op_type}"
        self.nodes.append(helper.make_node(op_type, given, [made], name=word, **attributes))
        return made

    def _name(self, name: str, word: str) -> str:
        self._count[name] += 1
        return f"{name}/{word} {self._count[name]}"

    # ------------------------------------------------ constants

    def value(self, name: str) -> Array | None:
        """A constant."""
        tensor = self.constants.get(name)
        return None if tensor is None else np.asarray(numpy_helper.to_array(tensor))

    def constant(self, like: str, value: Array) -> str:
        """A new constant, named after another."""
        name = self._name(like, "changed")
        self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        self.tensors.append(self.constants[name])
        return name

    def scalars(self, *names: str) -> list[str] | None:
        """Constants of one element as scalars; None if one is no such constant."""
        made = []
        for name in names:
            value = self.value(name)
            if value is None or value.size != 1:
                return None
            made.append(self.constant(name, value.reshape(())) if value.ndim else name)
        return made

    def data(self, names: Sequence[str]) -> _Operand | None:
        """A tensor with one scale and zero point."""
        name, *steps = names
        found = self.scalars(*steps) if len(steps) == len(list(filter(None, steps))) else None
        return None if found is None else _Operand(name=name, scale=found[0], zero=found[1])

    def weight(self, names: Sequence[str], axis: int) -> _Operand | None:
        """A constant with a scale for each position of an axis, or one."""
        name, *steps = names
        values, (scale, zero) = self.value(name), map(self.value, steps)
        if values is None or scale is None or zero is None:
            return None
        if scale.size == zero.size == 1:
            return self.data(names)
        if scale.ndim > 1 or zero.ndim > 1:
            return None
        count = (values.shape[axis],)
        if {scale.size, zero.size} - {1, *count}:
            return None
        made = [
            self.constant(step, np.broadcast_to(value.reshape(-1), count))
            for step, value in zip(steps, (scale, zero), strict=True)
        ]
        return _Operand(name=name, scale=made[0], zero=made[1], axis=axis)

    def bias(self, name: str, data: _Operand, weight: _Operand) -> _Operand | None:
        """Constants of int32, in steps of the product of both scales."""
        values, one, many = (self.value(item) for item in (name, data.scale, weight.scale))
        if values is None or one is None or many is None or str(values.dtype) != "int32":
            return None
        if many.size not in (1, values.size) or values.size != max(values.shape, default=1):
            return None
        row = self.constant(name, values.reshape(-1))
        scale = self.constant(weight.scale, np.float32(one) * many.astype("float32"))
        return _Operand(name=row, scale=scale, zero="", axis=0 if many.ndim else None)

    # ------------------------------------------------ all of it

    def model(self) -> onnx.ModelProto:
        """All that was added."""
        made = onnx.ModelProto()
        made.CopyFrom(self.proto)
        del made.graph.node[:]
        made.graph.node.extend(self.nodes)
        made.graph.initializer.extend(self.tensors)
        known = GraphIndex(made.graph).results
        made.graph.value_info.extend(info for info in self.types if info.name not in known)
        return made


def _attributes(node: onnx.NodeProto, *without: str) -> dict[str, Any]:
    return {
        item.name: helper.get_attribute_value(item)
        for item in node.attribute
        if item.name not in without
    }


# ------------------------------------------------ operators

_Converter = Callable[[_PairWriter, onnx.NodeProto], _PairForm | None]
# They read integers as they are.
_DIRECT = ("MaxPool", "Flatten", "Reshape", "Squeeze")


def _form(
    writer: _PairWriter,
    op_type: str,
    given: Sequence[_Operand | None],
    steps: Sequence[str],
    attributes: Mapping[str, Any],
) -> _PairForm | None:
    known = [item for item in given if item is not None]
    made = writer.scalars(*steps) if len(steps) == len(list(filter(None, steps))) == 2 else None
    if made is None or len(known) < len(given):
        return None
    return _PairForm(
        op_type=op_type, given=known, scale=made[0], zero=made[1], attributes=attributes
    )


def _conv(writer: _PairWriter, node: onnx.NodeProto) -> _PairForm | None:
    names = [*node.input, ""][:9]
    data, weight = writer.data(names[:3]), writer.weight(names[3:6], 0)
    given = [data, weight]
    if names[8] and data is not None and weight is not None:
        given.append(writer.bias(names[8], data, weight))
    return _form(writer, "Conv", given, names[6:8], _attributes(node))


def _matmul(writer: _PairWriter, node: onnx.NodeProto) -> _PairForm | None:
    names = list(node.input)
    given = [writer.data(names[:3]), writer.weight(names[3:6], 1)]
    return _form(writer, "MatMul", given, names[6:8], {})


def _gemm(writer: _PairWriter, node: onnx.NodeProto) -> _PairForm | None:
    names = [*node.input, "", "", ""][:9]
    if attribute(node, "alpha", 1.0) != 1:
        return None
    axis = 0 if attribute(node, "transB", 0) else 1
    data, weight = writer.data(names[:3]), writer.weight(names[3:6], axis)
    given = [data, weight]
    if names[6] and data is not None and weight is not None:
        given.append(writer.bias(names[6], data, weight))
    return _form(writer, "Gemm", given, names[7:9], _attributes(node))


def _of_two(op_type: str) -> _Converter:
    def convert(writer: _PairWriter, node: onnx.NodeProto) -> _PairForm | None:
        names = [*node.input, ""][:8]
        given = [writer.data(names[:3]), writer.data(names[3:6])]
        return _form(writer, op_type, given, names[6:8], {})

    return convert


def _of_one(op_type: str) -> _Converter:
    def convert(writer: _PairWriter, node: onnx.NodeProto) -> _PairForm | None:
        names = [*node.input, ""][:5]
        if attribute(node, "channels_last", 0):
            return None
        attributes = _attributes(node, "channels_last", "opset")
        return _form(writer, op_type, [writer.data(names[:3])], names[3:5], attributes)

    return convert


def _concat(writer: _PairWriter, node: onnx.NodeProto) -> _PairForm | None:
    names = list(node.input)
    given = [writer.data(names[start : start + 3]) for start in range(2, len(names), 3)]
    return _form(writer, "Concat", given, names[:2], _attributes(node))


_CONVERTERS: Mapping[tuple[str, str], _Converter] = {
    ("", "QLinearConv"): _conv,
    ("", "QLinearMatMul"): _matmul,
    (_MICROSOFT, "QGemm"): _gemm,
    (_MICROSOFT, "QLinearAdd"): _of_two("Add"),
    (_MICROSOFT, "QLinearAveragePool"): _of_one("AveragePool"),
    (_MICROSOFT, "QLinearConcat"): _concat,
    (_MICROSOFT, "QLinearGlobalAveragePool"): _of_one("GlobalAveragePool"),
    (_MICROSOFT, "QLinearLeakyRelu"): _of_one("LeakyRelu"),
    (_MICROSOFT, "QLinearMul"): _of_two("Mul"),
    (_MICROSOFT, "QLinearSigmoid"): _of_one("Sigmoid"),
    (_MICROSOFT, "QLinearSoftmax"): _of_one("Softmax"),
}


def _converter(node: onnx.NodeProto) -> _Converter | None:
    domain = "" if node.domain == "ai.onnx" else node.domain
    return _CONVERTERS.get((domain, node.op_type))

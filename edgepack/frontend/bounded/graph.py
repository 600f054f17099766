"""A model that is written anew, node by node, with room for the largest size of each tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.frontend.bounded.size import Dim, Size, count
from edgepack.frontend.errors import UnsupportedFormError
from edgepack.frontend.forms import attribute
from edgepack.model import infer_shapes, opset_of
from edgepack.model.index import GraphIndex

# A tensor of more elements is no shape.
_MOST_ELEMENTS = 1024
# Terms of a size that are added one by one.
_MANY_TERMS = 4
_POOLS = ("AveragePool", "LpPool", "MaxPool")

Axes = dict[int, Size]
INT64 = TensorProto.INT64


@dataclass(frozen=True)
class Kind:
    """Element type, as onnx has it, and shape."""

    element: int
    shape: tuple[int, ...]


class Graph:
    """What was written so far, and what is known of it.

    `axes` are those of each tensor that hold fewer elements than its shape says: as many as a
    `Size`, the first ones. `values` are those of small integer tensors, by element.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.opset = opset_of(proto)
        self.opset_imports = list(proto.opset_import)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors = GraphIndex(proto.graph).constants
        self.kinds: dict[str, Kind] = {}
        self.axes: dict[str, Axes] = {}
        self.values: dict[str, np.ndarray] = {}
        # Of each count, by name, the largest.
        self.limits: dict[str, int] = {}
        # Tensors with zeros where they hold nothing.
        self.clean: set[str] = set()
        # Those whose shape is not the one that the model says.
        self.changed: set[str] = set()
        self.node = onnx.NodeProto()
        self._names = {name for node in proto.graph.node for name in node.output}
        self._names |= {*self.tensors, *(value.name for value in proto.graph.input)}
        self._cached: dict[object, str] = {}
        for name, value in GraphIndex(infer_shapes(proto).graph).infos.items():
            kind = _static(value.type)
            if kind is not None:
                self.kinds[name] = kind
        for tensor in proto.graph.initializer:
            self.kinds[tensor.name] = Kind(tensor.data_type, tuple(tensor.dims))

    # ------------------------------------------------ what is known

    def kind(self, name: str) -> Kind:
        """Raises UnsupportedFormError for a tensor of unknown shape."""
        if name not in self.kinds:
            raise UnsupportedFormError(
                f"the shape of '{name}' depends on the data, without a bound"
            )
        return self.kinds[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.kind(name).shape

    def rank(self, name: str) -> int:
        return len(self.kind(name).shape)

    def sizes(self, name: str) -> list[Dim]:
        """The true shape of a tensor."""
        axes = self.axes.get(name, {})
        return [axes.get(axis, extent) for axis, extent in enumerate(self.shape(name))]

    def value(self, name: str) -> np.ndarray | None:
        """The elements of a small tensor of integers or truth values; None if not known."""
        if name in self.axes:
            return None
        if name in self.values:
            return self.values[name]
        tensor = self.tensors.get(name)
        if tensor is None or np.prod(tensor.dims, dtype="int64") > _MOST_ELEMENTS:
            return None
        array = numpy_helper.to_array(tensor)
        if array.dtype.kind not in "iub":
            return None
        self.values[name] = np.array(array.tolist(), dtype=object).reshape(array.shape)
        return self.values[name]

    def is_open(self, name: str) -> bool:
        """Whether a tensor's value is computed of counts."""
        value = self.values.get(name)
        return value is not None and any(isinstance(item, Size) for item in value.flat)

    def most(self, size: Dim) -> int:
        """The largest that a size can be."""
        if not isinstance(size, Size):
            return int(size)
        return size.constant + sum(max(n, 0) * self.limits[name] for name, n in size.terms)

    def least(self, size: Dim) -> int:
        """The smallest."""
        if not isinstance(size, Size):
            return int(size)
        return size.constant + sum(min(n, 0) * self.limits[name] for name, n in size.terms)

    def numbers(self, node: onnx.NodeProto, position: int, name: str) -> list[Dim] | None:
        """A parameter that is an input, or an attribute in older opsets; None if it is left out.

        Raises UnsupportedFormError for an input that is not known.
        """
        if len(node.input) <= position or not node.input[position]:
            given = attribute(node, name)
            if given is None:
                return None
            return [int(item) for item in (given if isinstance(given, list) else [given])]
        value = self.value(node.input[position])
        if value is None:
            raise UnsupportedFormError(f"its {name} depend on the data, without a bound")
        return list(value.reshape(-1))

    def fixed(self, node: onnx.NodeProto, position: int, name: str) -> list[int] | None:
        """The same, of numbers only."""
        found = self.numbers(node, position, name)
        if found is not None and any(isinstance(item, Size) for item in found):
            raise UnsupportedFormError(f"its {name} depend on the data")
        return found  # type: ignore[return-value]

    # ------------------------------------------------ writing

    def name(self, hint: str) -> str:
        """One that nothing has yet."""
        base = f"{self.node.name or next(filter(None, self.node.output), '')}/{hint}"
        made, number = base, 1
        while made in self._names:
            number += 1
            made = f"{base}{number}"
        self._names.add(made)
        return made

    def constant(self, array: np.ndarray, name: str = "") -> str:
        """A constant tensor; of equal ones without a name of their own there is one."""
        key = (str(array.dtype), array.shape, array.tobytes())
        if not name and key in self._cached:
            return self._cached[key]
        name = name or self._cached.setdefault(key, self.name("constant"))
        self.tensors[name] = numpy_helper.from_array(array, name)
        self.kinds[name] = Kind(self.tensors[name].data_type, tuple(array.shape))
        self.changed.add(name)
        return name

    def integers(self, values: Sequence[int]) -> str:
        return self.constant(np.array(values, "int64"))

    def emit(
        self,
        op_type: str,
        inputs: Sequence[str],
        kind: Kind,
        *,
        out: str = "",
        **attributes: object,
    ) -> str:
        """A node of one output, `out` or a new one, which is of this kind."""
        output = out or self.name(op_type.lower())
        node = helper.make_node(op_type, inputs, [output], name=self.name(op_type), **attributes)
        self.nodes.append(node)
        self.set_kind(output, kind)
        return output

    def emit_once(self, op_type: str, inputs: Sequence[str], kind: Kind, **attributes: Any) -> str:
        """The same; an equal one that is there already is taken again."""
        key = (op_type, *inputs, kind, *attributes.items())
        if key not in self._cached:
            self._cached[key] = self.emit(op_type, inputs, kind, **attributes)
        return self._cached[key]

    def set_kind(self, name: str, kind: Kind) -> None:
        self.kinds[name] = kind
        self.changed.add(name)

    def set_axes(self, name: str, axes: Mapping[int, Dim]) -> None:
        """What of it is used; a size that is a number leaves nothing open."""
        kept = {axis: size for axis, size in axes.items() if isinstance(size, Size)}
        if kept:
            self.axes[name] = kept

    def put(self, node: onnx.NodeProto, *axes: Mapping[int, Dim]) -> None:
        """A node as it is, with the shapes that follow; `axes` are those of its outputs."""
        self.nodes.append(node)
        # Before that, onnx counts a last window of a pool that begins behind the image.
        opset = max(self.opset, 22) if node.op_type in _POOLS else self.opset
        schema = onnx.defs.get_schema(node.op_type, opset, "")
        given = {
            name: helper.make_tensor_type_proto(self.kind(name).element, self.kind(name).shape)
            for name in node.input
            if name
        }
        known = {name: self.tensors[name] for name in node.input if name in self.tensors}
        try:
            found = onnx.shape_inference.infer_node_outputs(
                schema, node, given, known, opset_imports=self.opset_imports
            )
        except onnx.shape_inference.InferenceError as error:
            raise UnsupportedFormError("its shape does not follow from its inputs'") from error
        for name in filter(None, node.output):
            kind = _static_type(found[name]) if name in found else None
            if kind is None:
                # What follows it is refused if it needs to know.
                self.kinds.pop(name, None)
                self.changed.add(name)
            else:
                self.set_kind(name, kind)
        for name, item in zip(node.output, axes, strict=False):
            self.set_axes(name, item)

    def with_inputs(self, node: onnx.NodeProto, **inputs: str) -> onnx.NodeProto:
        """A copy of a node with other inputs; keys are `input0`, `input1`, ..."""
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for key, name in inputs.items():
            copy.input[int(key.removeprefix("input"))] = name
        return copy

    # ------------------------------------------------ counts

    def count(self, scalar: str, limit: int) -> Size:
        """A count that an int64 scalar holds."""
        self.limits[scalar] = limit
        self.set_kind(scalar, Kind(INT64, ()))
        made = count(scalar)
        self.values[scalar] = np.array(made, dtype=object)
        return made

    def scalar(self, size: Dim) -> str:
        """An int64 scalar that holds a size."""
        if not isinstance(size, Size):
            return self.constant(np.array(size, "int64"))
        kind = Kind(INT64, ())
        if len(size.terms) > _MANY_TERMS:
            return self._sum(size)
        total = ""
        for name, factor in size.terms:
            part = name
            if factor != 1:
                by = self.constant(np.array(factor, "int64"))
                part = self.emit_once("Mul", [name, by], kind)
            total = self.emit_once("Add", [total, part], kind) if total else part
        if size.constant:
            rest = self.constant(np.array(size.constant, "int64"))
            total = self.emit_once("Add", [total, rest], kind)
        return total

    def _sum(self, size: Size) -> str:
        """A size of many terms, by one product and not by a node for each."""
        counts = self.vector([count(name) for name, _ in size.terms] + [1])
        factors = self.integers([*(factor for _, factor in size.terms), size.constant])
        return self.emit_once("MatMul", [counts, factors], Kind(INT64, ()))

    def vector(self, sizes: Sequence[Dim]) -> str:
        """An int64 tensor of one axis that holds sizes."""
        if not any(isinstance(size, Size) for size in sizes):
            return self.integers([int(size) for size in sizes])  # type: ignore[arg-type]
        one, kind = self.integers([1]), Kind(INT64, (1,))
        parts = [
            self.emit_once("Reshape", [self.scalar(size), one], kind)
            if isinstance(size, Size)
            else self.integers([size])
            for size in sizes
        ]
        return self.emit_once("Concat", parts, Kind(INT64, (len(sizes),)), axis=0)

    def smaller(self, one: Dim, other: Dim, *, larger: bool = False) -> Dim:
        """The smaller of two sizes, or the larger."""
        if self.most(one - other) <= 0:
            return other if larger else one
        if self.least(one - other) >= 0:
            return one if larger else other
        names = sorted((self.scalar(one), self.scalar(other)))
        made = self.emit_once("Max" if larger else "Min", names, Kind(INT64, ()))
        pick = max if larger else min
        return self.count(made, pick(self.most(one), self.most(other)))

    # ------------------------------------------------ what lies behind the last element

    def mask(self, name: str, axis: int) -> str:
        """Which elements of an axis are in use; of the rank of the tensor."""
        extent, rank = self.shape(name)[axis], self.rank(name)
        shape = [extent if at == axis else 1 for at in range(rank)]
        places = self.constant(np.arange(extent, dtype="int64").reshape(shape))
        size = self.scalar(self.axes[name][axis])
        return self.emit_once("Less", [places, size], Kind(TensorProto.BOOL, tuple(shape)))

    def filled(self, name: str, value: object, axes: Sequence[int] | None = None) -> str:
        """The tensor with a number where nothing is in use (of some axes only)."""
        kind = self.kind(name)
        fill = self.constant(np.array(value, helper.tensor_dtype_to_np_dtype(kind.element)))
        made = name
        for axis in self.axes.get(name, {}) if axes is None else axes:
            if axis not in self.axes.get(name, {}):
                continue
            made_next = self.emit_once("Where", [self.mask(name, axis), made, fill], kind)
            self.axes[made_next] = self.axes[name]
            made = made_next
        return made

    def zeroed(self, name: str) -> str:
        """The tensor with zeros where nothing is in use."""
        if name in self.clean or name not in self.axes:
            return name
        made = self.filled(name, 0)
        self.clean.add(made)
        return made

    def lowest(self, name: str, *, largest: bool = False) -> object:
        """The least number of a tensor's type, or the largest."""
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(self.kind(name).element))
        if dtype.kind == "f":
            return np.inf if largest else -np.inf
        if dtype.kind == "b":
            return largest
        info = np.iinfo(dtype)
        return info.max if largest else info.min

    # ------------------------------------------------ small nodes

    def reshape(self, name: str, shape: Sequence[int], *, out: str = "") -> str:
        kind = Kind(self.kind(name).element, tuple(shape))
        made = self.emit("Reshape", [name, self.integers(shape)], kind, out=out)
        if name in self.clean:
            self.clean.add(made)
        return made

    def slice(self, name: str, axis: int, start: int, end: int, *, out: str = "") -> str:
        """A part of one axis. What is in use is for the caller to say."""
        old = self.kind(name)
        shape = tuple(end - start if at == axis else n for at, n in enumerate(old.shape))
        kind = Kind(old.element, shape)
        if self.opset < 10:
            return self.emit(
                "Slice", [name], kind, out=out, starts=[start], ends=[end], axes=[axis]
            )
        bounds = [self.integers([number]) for number in (start, end, axis)]
        return self.emit("Slice", [name, *bounds], kind, out=out)

    def cut(self, name: str, axis: int, extent: int) -> str:
        """Less room along an axis, of which no more is in use."""
        if self.shape(name)[axis] == extent:
            return name
        made = self.slice(name, axis, 0, extent)
        self.set_axes(made, self.axes.get(name, {}))
        return made

    def same(self, name: str, out: str) -> None:
        """Another name for a tensor."""
        self.emit("Identity", [name], self.kind(name), out=out)
        self.set_axes(out, self.axes.get(name, {}))
        if name in self.clean:
            self.clean.add(out)


def _static(kind: onnx.TypeProto) -> Kind | None:
    return _static_type(kind) if kind.HasField("tensor_type") else None


def _static_type(kind: onnx.TypeProto) -> Kind | None:
    tensor = kind.tensor_type
    if not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
        return None
    return Kind(tensor.elem_type, tuple(d.dim_value for d in tensor.shape.dim))

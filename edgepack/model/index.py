"""What the names in a graph stand for, found once instead of by each who asks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx


class GraphIndex:
    """A graph's tables by name; each is made when it is first asked for, and not again.

    Nodes inside of graphs that other nodes have are not in it.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph

    @cached_property
    def constants(self) -> dict[str, onnx.TensorProto]:
        """The initializers."""
        return {tensor.name: tensor for tensor in self._graph.initializer}

    @cached_property
    def known(self) -> dict[str, onnx.TensorProto]:
        """The initializers, and what nodes called Constant hold as a tensor."""
        held = {
            node.output[0]: item.t
            for node in self._graph.node
            if node.op_type == "Constant"
            for item in node.attribute
            if item.name == "value"
        }
        return self.constants | held

    @cached_property
    def makers(self) -> dict[str, onnx.NodeProto]:
        """The node that makes a tensor."""
        return {name: node for node in self._graph.node for name in node.output if name}

    @cached_property
    def readers(self) -> Mapping[str, Sequence[onnx.NodeProto]]:
        """The nodes that read a tensor, none for an unknown name; one that reads it twice is there
        twice."""
        readers = defaultdict[str, list["onnx.NodeProto"]](list)
        for node in self._graph.node:
            for name in node.input:
                readers[name].append(node)
        return readers

    @cached_property
    def inputs(self) -> dict[str, onnx.ValueInfoProto]:
        """The graph's inputs, in order."""
        return {value.name: value for value in self._graph.input}

    @cached_property
    def outputs(self) -> dict[str, onnx.ValueInfoProto]:
        """The graph's outputs, in order."""
        return {value.name: value for value in self._graph.output}

    @cached_property
    def results(self) -> dict[str, onnx.ValueInfoProto]:
        """What is said of the tensors that nodes make; of an output that is said twice, what says
        more of its shape."""
        said = {value.name: value for value in self._graph.value_info}
        for name, value in self.outputs.items():
            if name not in said or _fixed(said[name]) <= _fixed(value):
                said[name] = value
        return said

    @cached_property
    def infos(self) -> dict[str, onnx.ValueInfoProto]:
        """What is said of inputs and of the tensors that nodes make."""
        return self.inputs | self.results

    @cached_property
    def types(self) -> dict[str, int]:
        """The element types that are said, as `onnx.TensorProto.DataType`; 0 where none is."""
        said = {name: value.type.tensor_type.elem_type for name, value in self.infos.items()}
        return said | {name: tensor.data_type for name, tensor in self.constants.items()}


def _fixed(value: onnx.ValueInfoProto) -> int:
    """How much is said of a tensor's shape: 0 if not even its rank is."""
    shape = value.type.tensor_type.shape
    if not value.type.tensor_type.HasField("shape"):
        return 0
    return 1 + sum(1 for dim in shape.dim if dim.HasField("dim_value"))

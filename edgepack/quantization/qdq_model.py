"""A network with QuantizeLinear and DequantizeLinear around what is done on integers."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.quantization.network import Array, FloatNetwork
from edgepack.quantization.ranges import ByteSteps
from edgepack.quantization.rounding import Rounded


def tensors_of(network: FloatNetwork) -> list[str]:
    """All tensors that operators on integers read and write, in the order of the network."""
    found: dict[str, None] = {}
    for node in network.nodes:
        if network.is_whole(node):
            found.update(dict.fromkeys(network.read_by(node)))
            found[network.stored(node)] = None
    return list(found)


def whole_nodes(network: FloatNetwork, steps: Collection[str]) -> list[onnx.NodeProto]:
    """The operators all of whose tensors are integers, if those of `steps` are."""
    return [
        node
        for node in network.nodes
        if network.is_whole(node)
        and network.stored(node) in steps
        and all(name in steps for name in network.read_by(node))
    ]


def make_qdq_model(
    network: FloatNetwork,
    steps: Mapping[str, ByteSteps],
    weights: Mapping[str, Rounded],
    biases: Mapping[str, Array],
) -> onnx.ModelProto:
    """The QDQ model: `steps` of tensors, `weights` and `biases` of products, by their names.

    Products that have none, or not all of whose tensors have steps, stay float. A tensor that no
    operator on integers reads or writes is not rounded.
    """
    whole = whole_nodes(network, steps)
    used = {network.stored(node) for node in whole}
    used |= {name for node in whole for name in network.read_by(node)}
    writer = _Writer(network, {name: steps[name] for name in steps if name in used})
    inside = {id(node) for node in whole}
    for node in network.nodes:
        writer.add(node, weights, biases, is_whole=id(node) in inside)
    return writer.model()


class _Writer:
    def __init__(self, network: FloatNetwork, steps: Mapping[str, ByteSteps]) -> None:
        self.network, self.steps = network, steps
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {
            item.name: item for item in network.proto.graph.initializer
        }
        # What stands for a tensor where it is read.
        self.read: dict[str, str] = {}
        self._pair(network.input)

    def add(
        self,
        node: onnx.NodeProto,
        weights: Mapping[str, Rounded],
        biases: Mapping[str, Array],
        *,
        is_whole: bool,
    ) -> None:
        """A node, with what it reads as integers or as numbers."""
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for index, name in enumerate(copy.input):
            copy.input[index] = self.read.get(name, name)
        product = self.network.products.get(node.output[0])
        if is_whole and product is not None and product.name in weights:
            made, (source,) = weights[product.name], self.network.read_by(node)
            copy.input[1] = self._weight(node, product.name, made)
            bias = biases.get(product.name, product.bias)
            if node.op_type != "MatMul":
                scale = np.float32(self.steps[source].scale) * made.scale
                given = self._bias(product.name, bias, scale)
                if len(copy.input) > 2:
                    copy.input[2] = given
                else:
                    copy.input.append(given)
        self.nodes.append(copy)
        for index, name in enumerate(node.output):
            if name not in self.steps:
                continue
            if name in self.network.outputs:
                copy.output[index] = f"{name}/numbers"
            self._pair(name)

    def _pair(self, name: str) -> None:
        if name not in self.steps:
            return
        steps, is_output = self.steps[name], name in self.network.outputs
        source = f"{name}/numbers" if is_output else name
        given = [
            self._constant(f"{name}/scale", np.array(steps.scale, "float32")),
            self._constant(f"{name}/zero", np.array(steps.zero, "uint8")),
        ]
        target = name if is_output else f"{name}/rounded"
        self.nodes += [
            helper.make_node(
                "QuantizeLinear", [source, *given], [f"{name}/integers"], f"{name}/quantize"
            ),
            helper.make_node(
                "DequantizeLinear", [f"{name}/integers", *given], [target], f"{name}/dequantize"
            ),
        ]
        self.read[name] = target

    def _weight(self, node: onnx.NodeProto, name: str, made: Rounded) -> str:
        product = self.network.products[name]
        shape = list(self.network.constants[node.input[1]].shape)
        values = made.weight.reshape(shape) if product.axis == 0 else made.weight[..., 0].T
        return self._dequantized(
            f"{name}/weight", np.ascontiguousarray(values), made.scale, product.axis
        )

    def _bias(self, name: str, bias: Array, scale: Array) -> str:
        limits = np.iinfo("int32")
        whole = np.clip(np.rint(bias / scale.astype("float64")), limits.min, limits.max)
        return self._dequantized(f"{name}/bias", whole.astype("int32"), scale, 0)

    def _dequantized(self, name: str, values: Array, scale: Array, axis: int) -> str:
        given = [
            self._constant(f"{name}/integers", values),
            self._constant(f"{name}/scale", scale.astype("float32")),
            self._constant(f"{name}/zero", np.zeros(len(scale), values.dtype)),
        ]
        node = helper.make_node("DequantizeLinear", given, [name], f"{name}/dequantize", axis=axis)
        self.nodes.append(node)
        return name

    def _constant(self, name: str, value: Array) -> str:
        self.constants[name] = numpy_helper.from_array(np.asarray(value), name)
        return name

    def model(self) -> onnx.ModelProto:
        """All that was added."""
        made = onnx.ModelProto()
        made.CopyFrom(self.network.proto)
        graph = made.graph
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        graph.node.extend(self.nodes)
        read = {name for node in self.nodes for name in node.input} | set(self.network.outputs)
        graph.initializer.extend(item for name, item in self.constants.items() if name in read)
        return made

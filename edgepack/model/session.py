"""Sessions of onnxruntime whose results do not depend on this machine's CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx


# Optimizers that change a result: x (1 / y) is not x / y, and of two roundings to integers in a row
# with steps of their own one would be left.
INEXACT = ("DivMulFusion", "DoubleQDQPairsRemover")


def cpu_session(source: str | bytes, options: Any) -> Any:
    """An `onnxruntime.InferenceSession` of a file or a serialized model, on the CPU.

    None of `INEXACT` is run. Products of uint8 by int8 are exact, if `options` let onnxruntime
    optimise; else of a model `without_saturation`. Raises onnxruntime's exceptions, which are
    private and derive from `Exception`.
    """
    import onnxruntime

    # Without VNNI they saturate, pair by pair, unless it is told not to:
    # onnxruntime_session_options_config_keys.h. It then takes no QLinearConv of int8 by int8, which
    # is exact anyway (onnxruntime 1.31).
    options.add_session_config_entry("session.x64quantprecision", "1")
    # Products by weights of DequantizeLinear in blocks are in float32: it would round what they
    # are multiplied by to 8 bits, else (level 4).
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")

    def session() -> Any:
        return onnxruntime.InferenceSession(
            source, options, ["CPUExecutionProvider"], disabled_optimizers=list(INEXACT)
        )

    try:
        return session()
    except Exception:
        options.add_session_config_entry("session.x64quantprecision", "0")
        return session()


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    """Which inputs of an operator are what; `data_zero` None: its data are always uint8."""

    data: int
    data_zero: int | None
    weight: int
    weight_zero: int


_PRODUCTS = {
    "ConvInteger": _Inputs(data=0, data_zero=2, weight=1, weight_zero=3),
    "DynamicQuantizeMatMul": _Inputs(data=0, data_zero=None, weight=1, weight_zero=3),
    "MatMulInteger": _Inputs(data=0, data_zero=2, weight=1, weight_zero=3),
    "MatMulIntegerToFloat": _Inputs(data=0, data_zero=4, weight=1, weight_zero=5),
    "QGemm": _Inputs(data=0, data_zero=2, weight=3, weight_zero=5),
    "QLinearConv": _Inputs(data=0, data_zero=2, weight=3, weight_zero=5),
    "QLinearMatMul": _Inputs(data=0, data_zero=2, weight=3, weight_zero=5),
}


def may_saturate(graph: onnx.GraphProto) -> bool:
    """Whether it has products of integers, in graphs within nodes, too."""
    from edgepack.model import walk_nodes

    return any(node.op_type in _PRODUCTS for node in walk_nodes(graph))


def without_saturation(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model, where int8 that uint8 is multiplied by is uint8: 128 more, and so are its
    zero points.

    That is what `cpu_session` has onnxruntime's optimiser do with constants. Graphs within nodes
    are looked into.
    """
    import onnx

    made = onnx.ModelProto()
    made.CopyFrom(proto)
    _widen(made.graph, {}, {})
    return made


def _widen(
    graph: onnx.GraphProto, constants: Mapping[str, onnx.TensorProto], types: Mapping[str, int]
) -> None:
    """With the constants and types of what is around the graph."""
    from onnx import TensorProto

    known, kinds = dict(constants), dict(types)
    for info in (*graph.input, *graph.value_info):
        kinds[info.name] = info.type.tensor_type.elem_type
    for tensor in graph.initializer:
        known[tensor.name], kinds[tensor.name] = tensor, tensor.data_type
    for node in list(graph.node):
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensor = node.attribute[0].t
            known[node.output[0]], kinds[node.output[0]] = tensor, tensor.data_type
        elif node.op_type == "DynamicQuantizeLinear":
            kinds[node.output[0]] = kinds[node.output[2]] = TensorProto.UINT8
        elif node.op_type == "QuantizeLinear":
            zero = node.input[2] if len(node.input) > 2 else ""
            kinds[node.output[0]] = kinds.get(zero, 0) if zero else TensorProto.UINT8
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                _widen(inner, known, kinds)
        if node.op_type in _PRODUCTS:
            _widen_product(graph, node, _PRODUCTS[node.op_type], known, kinds)


def _widen_product(
    graph: onnx.GraphProto,
    node: onnx.NodeProto,
    inputs: _Inputs,
    constants: Mapping[str, onnx.TensorProto],
    types: Mapping[str, int],
) -> None:
    from onnx import TensorProto, helper, numpy_helper

    def given(index: int) -> str:
        return str(node.input[index]) if index < len(node.input) else ""

    weight, zero = given(inputs.weight), given(inputs.weight_zero)
    if types.get(weight) != TensorProto.INT8:
        return
    if inputs.data_zero is not None:
        seen = {types.get(given(index)) for index in (inputs.data, inputs.data_zero)}
        if TensorProto.UINT8 not in seen:
            return
    stored = {tensor.name for tensor in graph.initializer}
    made = {name for item in graph.node for name in item.output}

    def stored_as(word: str, value: np.ndarray) -> str:
        if word not in stored:
            wide = (value.astype("int16") + 128).astype("uint8")
            graph.initializer.append(numpy_helper.from_array(wide, word))
            stored.add(word)
        return word

    def moved(name: str) -> str:
        word = f"{name}/uint8"
        if name in constants:
            return stored_as(word, numpy_helper.to_array(constants[name]))
        if word not in made:
            wide, sum_, more = (f"{word}/{part}" for part in ("int32", "sum", "128"))
            graph.initializer.append(numpy_helper.from_array(np.array(128, "int32"), more))
            for item in (
                helper.make_node("Cast", [name], [wide], wide, to=TensorProto.INT32),
                helper.make_node("Add", [wide, more], [sum_], sum_),
                helper.make_node("Cast", [sum_], [word], word, to=TensorProto.UINT8),
            ):
                graph.node.insert([*graph.node].index(node), item)
            made.add(word)
        return word

    node.input.extend([""] * (inputs.weight_zero + 1 - len(node.input)))
    zero_word = f"{weight}/zero"
    node.input[inputs.weight] = moved(weight)
    zeros = np.zeros((), "int8")
    node.input[inputs.weight_zero] = moved(zero) if zero else stored_as(zero_word, zeros)

"""Which nodes of a model half precision has no room for, found by running it."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, numpy_helper

from edgepack.compiler.precision import misfit
from edgepack.model import infer_shapes

log = logging.getLogger(__name__)

# What is looked at in one run; of a large model all at once would not fit the memory.
_AT_ONCE_BYTES = 256 << 20
# The second input of these is a weight, and a result the sum of products with it. The axes over
# which is summed: ConvTranspose's weight is [in, out, ...].
_SUMS = {"Conv": (1, 2, 3), "ConvTranspose": (0, 2, 3), "Gemm": (0,), "MatMul": (0,)}

# Sums of integers, which are not to be rounded.
_WHOLE = ("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul")


def exact_nodes(proto: onnx.ModelProto, samples: Sequence[Sequence[np.ndarray]]) -> dict[str, str]:
    """Nodes by name, and why: they make or read what halves cannot hold when the model is run with
    `samples`, or their sums might not fit on the way.

    A node without a name goes by its first output's.
    """
    graph = proto.graph
    found: dict[str, str] = {}
    largest: dict[str, float] = {}
    readers: dict[str, list[str]] = {}
    makers: dict[str, str] = {}
    for node in graph.node:
        name = node.name or next(filter(None, node.output), "")
        for value in node.input:
            readers.setdefault(value, []).append(name)
        makers.update(dict.fromkeys(node.output, name))
    for node in graph.node:
        if node.op_type in _WHOLE:
            found[node.name or next(filter(None, node.output), "")] = "its sums are exact"
    for inputs in samples:
        for value, array in _values(proto, inputs):
            largest[value] = max(largest.get(value, 0.0), float(np.abs(array).max(initial=0.0)))
            why = misfit(array)
            if why:
                touching = [*readers.get(value, []), makers.get(value, "")]
                found.update(dict.fromkeys(filter(None, touching), f"'{value}' {why}"))
    weights = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type in _SUMS and len(node.input) > 1 and node.input[1] in weights:
            weight = np.abs(numpy_helper.to_array(weights[node.input[1]]))
            axes = [axis for axis in _SUMS[node.op_type] if axis < weight.ndim]
            if node.op_type == "Gemm" and any(a.name == "transB" and a.i for a in node.attribute):
                axes = [1]
            sums = float(weight.sum(axis=tuple(axes)).max(initial=0.0))
            most = largest.get(node.input[0], 0.0) * sums
            if most > 65504:
                name = node.name or next(filter(None, node.output), "")
                found.setdefault(name, f"its sums may reach {most:.3g}")
    return found


def _values(
    proto: onnx.ModelProto, inputs: Sequence[np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """All float32 tensors of a run of a model, some runs if they are many."""
    graph, inferred = proto.graph, infer_shapes(proto).graph
    constants = {tensor.name for tensor in graph.initializer}
    names = [value.name for value in graph.input if value.name not in constants]
    given = dict(zip(names, inputs, strict=True))
    yield from ((n, array) for n, array in given.items() if array.dtype == np.float32)
    known = {value.name: value for value in (*inferred.value_info, *inferred.output)}
    made = [name for node in graph.node for name in node.output if name in known]
    wanted = [n for n in made if known[n].type.tensor_type.elem_type == TensorProto.FLOAT]
    while wanted:
        some: list[str] = []
        size = 0
        while wanted and (not some or size <= _AT_ONCE_BYTES):
            some.append(wanted.pop(0))
            dims = known[some[-1]].type.tensor_type.shape.dim
            size += 4 * math.prod(dim.dim_value for dim in dims)
        part = onnx.ModelProto()
        part.CopyFrom(proto)
        del part.graph.output[:]
        part.graph.output.extend(known[name] for name in some)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised anyway
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            session = onnxruntime.InferenceSession(
                part.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            arrays = session.run(None, given)
        except Exception as error:  # onnxruntime's classes are private
            log.warning("ranges are not known, for onnxruntime cannot run the model: %s", error)
            return
        yield from zip(some, arrays, strict=True)

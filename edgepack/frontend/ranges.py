"""Which nodes of a model half precision has no room for, found by running it."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from edgepack.frontend import rounding
from edgepack.frontend.precision import LEAST_WINOGRAD_DB, misfit
from edgepack.kernels.tiles import toom_cook
from edgepack.model import infer_shapes
from edgepack.model.index import GraphIndex

log = logging.getLogger(__name__)

# What is looked at in one run; of a large model all at once would not fit the memory.
_AT_ONCE_BYTES = 256 << 20
# The second input of these is a weight, and a result the sum of products with it. The axes over
# which is summed: ConvTranspose's weight is [in, out, ...].
_SUMS = {"Conv": (1, 2, 3), "ConvTranspose": (0, 2, 3), "Gemm": (0,), "MatMul": (0,)}

# Sums of integers, which are not to be rounded.
_WHOLE = ("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul")


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """What half precision has no room for, by the names of nodes; see `Precision`."""

    exact: dict[str, str]
    winograd: dict[str, int]


def find(
    proto: onnx.ModelProto, samples: Sequence[Sequence[np.ndarray]], *, computes: bool
) -> Ranges:
    """Which nodes make or read what halves cannot hold when the model is run with `samples`, or
    their sums might not fit on the way; and, if the CPU `computes` in halves, which convolutions
    lose too much by large tiles of Winograd's algorithm.

    A node without a name goes by its first output's.
    """
    graph = proto.graph
    windows = _windows(graph) if computes else {}
    winograd: dict[str, int] = {}
    found: dict[str, str] = {}
    largest: dict[str, float] = {}
    touching = _touching(graph)
    for node in graph.node:
        if node.op_type in _WHOLE:
            found[node.name or next(filter(None, node.output), "")] = "its sums are exact"
    for inputs in samples:
        for value, array in _values(proto, inputs):
            largest[value] = max(largest.get(value, 0.0), float(np.abs(array).max(initial=0.0)))
            why = misfit(array)
            if why:
                found.update(dict.fromkeys(touching.get(value, ()), f"'{value}' {why}"))
            _lower(winograd, array, windows.get(value, ()))
    weights = GraphIndex(graph).constants
    for node in graph.node:
        if node.op_type in _SUMS and len(node.input) > 1 and node.input[1] in weights:
            weight = np.abs(numpy_helper.to_array(weights[node.input[1]]))
            axes = [axis for axis in _SUMS[node.op_type] if axis < weight.ndim]
            if node.op_type == "Gemm" and any(a.name == "transB" and a.i for a in node.attribute):
                axes = [1]
            sums = float(weight.sum(axis=tuple(axes)).max(initial=0.0))
            highest = largest.get(node.input[0], 0.0) * sums
            if highest > 65504:
                name = node.name or next(filter(None, node.output), "")
                found.setdefault(name, f"its sums may reach {highest:.3g}")
    return Ranges(exact=found, winograd=winograd)


def _touching(graph: onnx.GraphProto) -> dict[str, list[str]]:
    """Names of the nodes that make or read each tensor; also of a product that its maker reads,
    because the two are made one, which is called as the product is."""
    found: dict[str, list[str]] = {}
    products: dict[str, str] = {}
    for node in graph.node:
        name = node.name or next(filter(None, node.output), "")
        makers = [name, *(products[value] for value in node.input if value in products)]
        for value in node.input:
            found.setdefault(value, []).append(name)
        for value in node.output:
            found.setdefault(value, []).extend(makers)
        if node.op_type in _SUMS:
            products.update(dict.fromkeys(node.output, name))
    return found


def _windows(graph: onnx.GraphProto) -> dict[str, list[tuple[str, np.ndarray]]]:
    """Names and weights of the convolutions that Winograd's algorithm can do, by their inputs."""
    weights = GraphIndex(graph).constants
    found: dict[str, list[tuple[str, np.ndarray]]] = {}
    for node in graph.node:
        if node.op_type != "Conv" or node.input[1] not in weights:
            continue
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        is_plain = attributes.get("group", 1) == 1 and all(
            set(attributes.get(name, [1])) == {1} for name in ("strides", "dilations")
        )
        if is_plain and list(weights[node.input[1]].dims[2:]) == [3, 3]:
            weight = numpy_helper.to_array(weights[node.input[1]])
            found.setdefault(node.input[0], []).append((node.name or node.output[0], weight))
    return found


def _lower(
    limits: dict[str, int], images: np.ndarray, readers: Sequence[tuple[str, np.ndarray]]
) -> None:
    """Lower the limits of the convolutions that read some images, as far as those need it."""
    largest = max(toom_cook.HALF_FORMS)
    for name, weight in readers:
        most = _most_results(images, weight, limits.get(name, largest))
        if most < largest:
            limits[name] = most


def _most_results(images: np.ndarray, weight: np.ndarray, most: int) -> int:
    """Of the tiles with up to `most` results in one direction the largest that keep enough of a
    convolution's accuracy; 0 if none do."""
    sizes = sorted((size for size in toom_cook.HALF_FORMS if size <= most), reverse=True)
    enough = (
        size for size in sizes if rounding.signal_db(images[0], weight, size) >= LEAST_WINOGRAD_DB
    )
    return next(enough, 0)


def _values(
    proto: onnx.ModelProto, inputs: Sequence[np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """All float32 tensors of a run of a model, some runs if they are many."""
    graph = proto.graph
    constants = GraphIndex(graph).constants
    names = [value.name for value in graph.input if value.name not in constants]
    given = dict(zip(names, inputs, strict=True))
    yield from ((n, array) for n, array in given.items() if array.dtype == np.float32)
    known = GraphIndex(infer_shapes(proto).graph).results
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

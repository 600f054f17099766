"""What a model is made of, and what of it cannot be compiled: `edgepack inspect`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepack.model import (
    ModelSpec,
    TensorInfo,
    dtype_name,
    infer_shapes,
    operator_name,
    opset_of,
    read_model,
    tensor_info,
    walk_nodes,
)


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """What `edgepack inspect` shows.

    `operators` counts nodes by type (those of other domains as `domain::type`),
    subgraphs included. `parameters` counts elements of weights (int64 tensors,
    which hold shapes and indices, are left out). `macs` are the multiply-adds
    of convolutions and matrix products in one inference, None when a dynamic
    dimension has no value. `unsupported` maps operators to why they cannot be
    compiled, and what can be done instead.
    """

    path: Path
    name: str
    size_bytes: int
    opset: int
    producer: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    operators: Mapping[str, int]
    unsupported: Mapping[str, str]
    parameters: int
    macs: int | None


def inspect_model(path: Path, shapes: Mapping[str, tuple[int, ...]] | None = None) -> ModelInfo:
    """Read what a model is made of; `shapes` as in `ModelSpec`.

    Dynamic dimensions and unsupported operators are no errors here. Raises the
    errors of `edgepack.model.read_model`.
    """
    from edgepack.compiler.frontend.expand import expand
    from edgepack.compiler.frontend.operators import unsupported

    model = read_model(ModelSpec(path=path, shapes=shapes or {}))
    proto = model.proto
    return ModelInfo(
        path=path,
        name=model.name,
        size_bytes=model.size_bytes,
        opset=opset_of(proto),
        producer=" ".join(part for part in (proto.producer_name, proto.producer_version) if part),
        inputs=model.inputs,
        outputs=model.outputs,
        operators=dict(sorted(Counter(map(operator_name, walk_nodes(proto.graph))).items())),
        unsupported={
            name: f"{reason.why}; {reason.instead}"
            for name, reason in unsupported(expand(proto)).items()
        },
        parameters=sum(
            math.prod(tensor.dims)
            for tensor in proto.graph.initializer
            if dtype_name(tensor.data_type) != "int64"
        ),
        macs=_macs(proto),
    )


def _macs(proto: Any) -> int | None:
    """Multiply-adds of one inference, or None when a shape is not known."""
    shapes: dict[str, tuple[int | str | None, ...]] = {
        tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer
    }
    graph = infer_shapes(proto).graph
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.HasField("shape"):
            shapes[value.name] = tensor_info(value).shape
    total = 0
    for node in graph.node:
        if node.op_type not in ("Conv", "ConvInteger", "ConvTranspose", "Gemm", "MatMul"):
            continue
        known = [shapes.get(name) for name in (node.input[0], node.input[1], node.output[0])]
        if any(shape is None or not all(isinstance(d, int) for d in shape) for shape in known):
            return None
        data, weight, out = ([int(dim or 0) for dim in shape or ()] for shape in known)
        if node.op_type == "ConvTranspose":
            total += math.prod(data) * math.prod(weight[1:])
        elif node.op_type.startswith("Conv"):
            total += math.prod(out) * math.prod(weight[1:])
        elif node.op_type == "Gemm":
            transposed = any(a.name == "transA" and a.i for a in node.attribute)
            total += math.prod(out) * data[0 if transposed else 1]
        else:
            total += math.prod(out) * data[-1]
    return total

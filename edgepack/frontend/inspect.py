"""What a model is made of, and what of it cannot be compiled: `edgepack inspect`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgepack.base import apart
from edgepack.base.arguments import check_path
from edgepack.base.errors import ModelError
from edgepack.frontend.errors import ImportModelError, Unsupported, named_failures
from edgepack.frontend.memory import bytes_of, check_folding
from edgepack.model import (
    LoadedModel,
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
from edgepack.model.constants import Constant
from edgepack.model.index import GraphIndex
from edgepack.model.some_shapes import some_shapes
from edgepack.model.states import alike_states, begin_text, propose_states
from edgepack.model.structure import subgraphs


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """The facts of a model file that `edgepack inspect` prints.

    `operators` counts nodes by type (in other domains as `domain::type`), including subgraphs.
    `parameters` counts the elements of weights, also in Constant nodes, except int64 tensors,
    which are shapes and indices; `parameters_bytes` is their size. `macs` is the number of
    multiply-adds of convolutions and matrix products in one inference, or None if it depends on
    a dimension without a value. `unsupported` are the nodes that cannot be compiled. `words` and
    `states` are as in `LoadedModel`. `begins` has the initial values of states that do not start
    with zero. `perhaps_states` maps inputs whose names or shapes look like states to their
    outputs.
    """

    path: Path
    name: str
    size_bytes: int
    opset: int
    producer: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    operators: Mapping[str, int]
    unsupported: tuple[Unsupported, ...]
    parameters: int
    parameters_bytes: int
    macs: int | None
    words: tuple[str, ...] = ()
    states: Mapping[str, str] = field(default_factory=dict)
    begins: Mapping[str, str] = field(default_factory=dict)
    perhaps_states: Mapping[str, str] = field(default_factory=dict)


def inspect_model(
    path: str | Path,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    constants: Mapping[str, Constant] | None = None,
    states: Mapping[str, str] | None = None,
) -> ModelInfo:
    """Return the facts of a model file; `shapes`, `constants` and `states` are as in
    `ModelSpec`.

    Dynamic dimensions and unsupported operators are allowed. Raises the errors of
    `edgepack.model.read_model`.
    """
    from edgepack.frontend.expand import expand
    from edgepack.frontend.operators import find_unsupported

    check_path("path", path)
    path = Path(path)
    spec = ModelSpec(path=path, shapes=shapes or {}, constants=constants or {}, states=states or {})
    model = read_model(spec)
    proto = model.proto
    with named_failures(path):
        apart.at("looking at its constants")
        check_folding(path, proto, model.size_bytes)
        apart.at("replacing operators by their definitions")
        expanded = expand(proto)
        apart.at("checking its operators")
        # What is left of some operators hangs on shapes: on any, where the model tells none.
        tried = with_some_shapes(spec, model)
        nodes = find_unsupported(expanded if tried is None else expand(read_model(tried).proto))
    named = propose_states(model.inputs, model.outputs, model.states)
    alike = alike_states(model.inputs, model.outputs, {**model.states, **named})
    weights = [t for t in _weights(proto) if dtype_name(t.data_type) != "int64"]
    return ModelInfo(
        path=path,
        name=model.name,
        size_bytes=model.size_bytes,
        opset=opset_of(proto),
        producer=" ".join(part for part in (proto.producer_name, proto.producer_version) if part),
        inputs=model.inputs,
        outputs=model.outputs,
        operators=dict(sorted(Counter(map(operator_name, walk_nodes(proto.graph))).items())),
        unsupported=tuple(nodes),
        parameters=sum(math.prod(tensor.dims) for tensor in weights),
        parameters_bytes=sum(bytes_of(tensor) for tensor in weights),
        macs=_macs_of(model, expanded),
        words=model.words,
        states=model.states,
        begins={name: begin_text(start) for name, start in model.starts.items()},
        perhaps_states={**named, **alike},
    )


def with_some_shapes(spec: ModelSpec, model: LoadedModel) -> ModelSpec | None:
    """The model with some value for each dimension that has none; None if all have one, or if the
    model cannot have these."""
    known = {info.name: info.shape for info in model.inputs}
    shapes = {**spec.shapes, **some_shapes(model.proto.graph, known)}
    if shapes == dict(spec.shapes):
        return None
    tried = replace(spec, shapes=shapes)
    try:
        read_model(tried)
    except ModelError:
        return None
    return tried


def _weights(proto: Any) -> Iterator[Any]:
    """Tensors that the file holds: initializers, and values of Constant nodes, wherever."""
    yield from proto.graph.initializer
    for node in (*walk_nodes(proto.graph), *(n for f in proto.functions for n in f.node)):
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.HasField("t"):
                yield attribute.t
        for body in subgraphs(node):
            yield from body.initializer


def _macs_of(model: LoadedModel, expanded: Any) -> int | None:
    """As the file has it, else with the shapes computed that the model computes of fixed ones."""
    known = _macs(expanded)
    fixed = all(isinstance(size, int) for info in model.inputs for size in info.shape)
    if known is not None or not fixed:
        return known
    from edgepack.frontend.folding import fold_by_onnxruntime

    apart.at("folding constants")
    try:
        return _macs(fold_by_onnxruntime(model.path, expanded))
    except ImportModelError:  # of operators that onnxruntime does not know
        return None


def _macs(proto: Any) -> int | None:
    """Multiply-adds of one inference, or None when a shape is not known."""
    shapes: dict[str, tuple[int | str | None, ...]] = {
        tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer
    }
    graph = infer_shapes(proto).graph
    for name, value in GraphIndex(graph).infos.items():
        if value.type.tensor_type.HasField("shape"):
            shapes[name] = tensor_info(value).shape
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

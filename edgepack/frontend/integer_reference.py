"""A quantised model by its definition: what a device gives to the bit, as far as it is integers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import onnx
from onnx import helper, numpy_helper

from edgepack.frontend.integer_recognition import DOMAIN, NODE, arrays_of, operator_of
from edgepack.frontend.operator_form import is_quantized
from edgepack.kernels.integer import Array, FromIntegers, ToIntegers
from edgepack.model.index import GraphIndex
from edgepack.model.session import cpu_session


def integer_model(
    path: Path, proto: onnx.ModelProto, floats: Collection[str] = ()
) -> onnx.ModelProto | None:
    """A model with operators on integers as those of `integer_recognition`; None if it has none.

    Nodes of the names `floats` are left in float. None also where sizes depend on the data, and
    for loops and branches that do. Raises what importing the model raises.
    """
    if not is_quantized(proto):
        return None
    from edgepack.frontend.expand import expand
    from edgepack.frontend.importer import prepare_model

    made = prepare_model(path, expand(proto), lambda _found: floats)
    has_integers = any(node.op_type == NODE for node in made.proto.graph.node)
    known = not made.bounds and not made.blocks
    return made.proto if (has_integers or floats) and known else None


# They give numbers as they are, or as the next one must: nothing is rounded.
# fmt: off
_EXACT = frozenset({
    "Clip", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "Max", "MaxPool",
    "Min", "Neg", "Pad", "Relu", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile",
    "Transpose", "Unsqueeze",
})
# fmt: on


def rounds_between(proto: onnx.ModelProto) -> bool:
    """Whether integers of an `integer_model` are made of what floats were computed to.

    What two ways of adding floats up differ by, a last bit, then is a whole step of an integer now
    and then, which later layers carry on: no device equals the definition to the bit.
    """
    graph = GraphIndex(proto.graph)
    seen: set[str] = set()

    def kind(node: onnx.NodeProto) -> type:
        return type(operator_of(node, arrays_of(node, graph.constants)))

    def is_rounded(name: str) -> bool:
        node = graph.makers.get(name)
        if node is None or name in seen:
            return False
        seen.add(name)
        if node.op_type == NODE:
            return kind(node) is not FromIntegers
        return node.op_type not in _EXACT or any(map(is_rounded, node.input))

    return any(
        is_rounded(node.input[0])
        for node in proto.graph.node
        if node.op_type == NODE and kind(node) is ToIntegers
    )


def run(proto: onnx.ModelProto, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a model of `integer_recognition.with_integers`, for its inputs in order."""
    names = [info.name for info in proto.graph.output]
    values = tensors(proto, inputs, names)
    return [values[name] for name in names]


def tensors(
    proto: onnx.ModelProto, inputs: Sequence[Array], names: Sequence[str]
) -> dict[str, Array]:
    """Those tensors of the model, of its integers all.

    Operators on integers are those of `integer`, what is between them runs on onnxruntime.
    """
    graph = proto.graph
    constants = GraphIndex(graph).constants
    values = {name: numpy_helper.to_array(tensor) for name, tensor in constants.items()}
    values |= {info.name: array for info, array in zip(graph.input, inputs, strict=True)}
    pieces = [(own, list(nodes)) for own, nodes in groupby(graph.node, lambda n: n.op_type == NODE)]
    for index, (own, nodes) in enumerate(pieces):
        if own:
            for node in nodes:
                arrays = arrays_of(node, constants)
                operator = operator_of(node, arrays)
                given = [values[name] for name in node.input if name not in constants]
                values[node.output[0]] = operator.run(given)
        else:
            behind = [node for _, later in pieces[index + 1 :] for node in later]
            values |= _by_onnxruntime(proto, nodes, behind, values, names)
    return values


def _by_onnxruntime(
    proto: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    behind: Sequence[onnx.NodeProto],
    values: Mapping[str, Array],
    names: Sequence[str],
) -> dict[str, Array]:
    """What some nodes make, of it what is read by those `behind` them, or is one of `names`."""
    import onnxruntime

    made = {name for node in nodes for name in node.output if name}
    # Graphs inside of nodes may read anything.
    read = {name for node in nodes for name in node.input} | {
        name
        for node in nodes
        if any(item.HasField("g") for item in node.attribute)
        for name in values
    }
    inner = any(item.HasField("g") for node in behind for item in node.attribute)
    wanted = {name for node in behind for name in node.input}
    wanted |= set(names)
    given = {name: values[name] for name in sorted(read - made) if name in values}
    results = sorted(made if inner else made & wanted)
    graph = helper.make_graph(
        nodes,
        "part",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in given.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in results],
    )
    model = helper.make_model(
        graph,
        opset_imports=[item for item in proto.opset_import if item.domain != DOMAIN],
        ir_version=proto.ir_version,
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = cpu_session(model.SerializeToString(), options)
    return dict(zip(results, session.run(results, given), strict=True))

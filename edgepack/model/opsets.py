"""Models whose operators are those of ONNX before its opset 7, as models of a newer one.

onnx's converter does it; what it has no words for is done before. Functions of a model's own may
be of another opset than the model: see `of_one_opset`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edgepack.model.errors import InvalidModelError

# The first opset in which operators broadcast as numpy does, which all readers have.
OLDEST = 7
# The same from opset 1 to the newest but for attributes that say nothing at inference.
_UNCHANGED = ("GRU", "LSTM", "RNN")
_ASIDE = "edgepack.unchanged"
_IDLE = ("consumed_inputs", "output_sequence")


def modernised(path: Path, proto: Any) -> Any:
    """The model with operators of opset 7 or newer: the same if it has them.

    Raises `InvalidModelError`, which names what onnx's converter cannot convert.
    """
    import onnx

    version = _version(proto.opset_import)
    if version >= OLDEST:
        return proto
    older = type(proto)()
    older.CopyFrom(proto)
    for node in older.graph.node:
        _prepare(node, version, older)
    _rewrite_prelu(older)
    try:
        made = onnx.version_converter.convert_version(older, OLDEST)
    except Exception as error:  # of several libraries, with lines of C++ in front
        said = str(error).strip().splitlines()
        raise InvalidModelError(
            f"{path}: the model is of opset {version}, which onnx's converter cannot make newer: "
            f"{said[-1].rsplit(': ', 1)[-1] if said else type(error).__name__}",
            hint="export it again with opset 13 or newer",
        ) from error
    for node in made.graph.node:
        if node.domain == _ASIDE:
            node.domain = ""
    del made.graph.value_info[:]  # some of which the converter gives no type
    left = [item for item in made.opset_import if item.domain != _ASIDE]
    del made.opset_import[:]
    made.opset_import.extend(left)
    made.functions.extend(proto.functions)
    return made


def _version(opsets: Iterable[Any]) -> int:
    return next((int(o.version) for o in opsets if o.domain in ("", "ai.onnx")), 1)


def _prepare(node: Any, version: int, proto: Any) -> None:
    """Write a node in a way that onnx's converter takes."""
    import onnx

    if node.domain not in ("", "ai.onnx"):
        return
    kept = [item for item in node.attribute if item.name not in _IDLE]
    for item in kept:
        if node.op_type == "Cast" and item.name == "to" and item.s:  # opset 5 and older: a word
            item.CopyFrom(onnx.helper.make_attribute("to", _element_type(item.s.decode())))
        if node.op_type == "Pad" and item.name == "paddings":
            item.name = "pads"
    del node.attribute[:]
    node.attribute.extend(kept)
    aside = node.op_type in _UNCHANGED
    aside |= node.op_type == "Cast" and version < 6
    aside |= node.op_type == "Pad" and version < 2
    if aside:
        node.domain = _ASIDE
        if all(item.domain != _ASIDE for item in proto.opset_import):
            proto.opset_import.append(onnx.helper.make_opsetid(_ASIDE, 1))


def _rewrite_prelu(proto: Any) -> None:
    """Slopes of channels as they broadcast, which onnx's converter leaves as they are."""
    import onnx
    from onnx import helper

    if all(node.op_type != "PRelu" for node in proto.graph.node):
        return
    weights = {tensor.name: len(tensor.dims) for tensor in proto.graph.initializer}
    inferred = onnx.shape_inference.infer_shapes(proto).graph
    ranks = weights | {
        value.name: len(value.type.tensor_type.shape.dim)
        for value in (*inferred.input, *inferred.value_info, *inferred.output)
    }
    nodes = []
    for node in proto.graph.node:
        inner = ranks.get(node.input[0], 0) - 2 if node.op_type == "PRelu" else 0
        if inner > 0 and ranks.get(node.input[1]) == 1:
            wide = f"{node.output[0]}/slope"
            axes = list(range(1, inner + 1))
            nodes.append(helper.make_node("Unsqueeze", [node.input[1]], [wide], axes=axes))
            node.input[1] = wide
        nodes.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def _element_type(word: str) -> int:
    from onnx import TensorProto

    return int(TensorProto.DataType.Value(word.upper()))


def of_one_opset(proto: Any) -> Any:
    """The model with its own functions inlined, with the meaning that their operators have in their
    own opsets; those that cannot be stay."""
    import onnx
    import onnx.inliner

    newest = max([_version(f.opset_import) for f in proto.functions if _is_versioned(f)], default=0)
    if newest > _version(proto.opset_import):
        try:
            newer = onnx.version_converter.convert_version(proto, newest)
            del newer.functions[:]
            newer.functions.extend(proto.functions)
            proto = newer
        except Exception:  # noqa: S110 - what cannot be is said of the functions that are left
            pass
    made = type(proto)()
    made.CopyFrom(proto)
    version = _version(made.opset_import)
    for function in made.functions:
        if _is_versioned(function) and _version(function.opset_import) < _BY_AXIS <= version:
            _rewrite_softmax(function)
    try:
        return onnx.inliner.inline_local_functions(made, convert_version=True)
    except RuntimeError:
        return onnx.inliner.inline_local_functions(made)


def _is_versioned(function: Any) -> bool:
    return any(item.domain in ("", "ai.onnx") for item in function.opset_import)


# The opset since which Softmax and its kin are along one axis, not along all from one on.
_BY_AXIS = 13
_SOFT = ("Hardmax", "LogSoftmax", "Softmax")


def _rewrite_softmax(function: Any) -> None:
    """Softmax of the old meaning as one of two axes, which is the same in the new one.

    onnx's converter needs to know how many axes a tensor has, which a function does not say.
    """
    from onnx import helper

    nodes = []
    for number, node in enumerate(function.node):
        if node.op_type not in _SOFT or node.domain not in ("", "ai.onnx"):
            nodes.append(node)
            continue
        axis = next((item.i for item in node.attribute if item.name == "axis"), 1)
        shape, flat, soft = (f"{node.output[0]}/{number}/{w}" for w in ("shape", "flat", "soft"))
        nodes += [
            helper.make_node("Shape", [node.input[0]], [shape]),
            helper.make_node("Flatten", [node.input[0]], [flat], axis=axis),
            helper.make_node(node.op_type, [flat], [soft], axis=1),
            helper.make_node("Reshape", [soft, shape], [node.output[0]]),
        ]
    del function.node[:]
    function.node.extend(nodes)

"""Models whose operators are those of ONNX before its opset 7, as models of a newer one.

onnx's converter does it; what it has no words for is done before. Functions of a model's own may
be of another opset than the model: see `of_one_opset`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from edgepack.model.errors import InvalidModelError
from edgepack.model.index import GraphIndex
from edgepack.model.inference import infer_types

# The first opset in which operators broadcast as numpy does, which all readers have.
OLDEST = 7
# The same from opset 1 to the newest but for attributes that say nothing at inference.
_UNCHANGED = ("GRU", "LSTM", "RNN")
_OF_OTHERS = 17  # where a model names none
_CASTS_BY_NUMBER, _PADS_BY_NAME = 6, 2
_ASIDE = "edgepack.unchanged"
_IDLE = ("consumed_inputs", "output_sequence")


def _uses_none(proto: Any) -> bool:
    """Whether a model names no opset of onnx's own operators, and has none of them."""
    from edgepack.model import walk_nodes

    of_onnx = ("", "ai.onnx")
    return not any(entry.domain in of_onnx for entry in proto.opset_import) and not any(
        node.domain in of_onnx for node in walk_nodes(proto.graph)
    )


def modernise_opset(path: Path, proto: Any) -> Any:
    """The model with operators of opset 7 or newer: the same if it has them.

    Raises `InvalidModelError`, which names what onnx's converter cannot convert.
    """
    import onnx

    version = _version(proto.opset_import)
    if version >= OLDEST:
        return proto
    if _uses_none(proto):
        # Trees alone, as xgboost's converter writes them: what is added may be of any.
        newer = type(proto)()
        newer.CopyFrom(proto)
        newer.opset_import.add(domain="", version=_OF_OTHERS)
        return newer
    older = type(proto)()
    older.CopyFrom(proto)
    for node in older.graph.node:
        _prepare(node)
    _rewrite_broadcast(older)
    for node in older.graph.node:
        unchanged = node.op_type in _UNCHANGED
        unchanged |= node.op_type == "Cast" and version < _CASTS_BY_NUMBER
        unchanged |= node.op_type == "Pad" and version < _PADS_BY_NAME
        if unchanged and node.domain in ("", "ai.onnx"):
            _put_aside(node, older)
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


def _prepare(node: Any) -> None:
    """Write a node's attributes as later opsets have them."""
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


# Operators that broadcast their second input from an axis on, which opset 7 does as numpy.
_BROADCAST = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")


def _rewrite_broadcast(proto: Any) -> None:
    """Second inputs with as many axes behind theirs as they need to broadcast from the last one on.

    onnx's converter puts one axis too many there, and none behind the slopes of a PRelu.
    """
    from onnx import helper

    weights = {tensor.name: len(tensor.dims) for tensor in proto.graph.initializer}
    known = GraphIndex(infer_types(proto).graph).infos
    ranks = weights | {name: len(value.type.tensor_type.shape.dim) for name, value in known.items()}
    nodes = []
    for node in proto.graph.node:
        behind = _axes_behind(node, ranks)
        if behind is not None:
            kept = [item for item in node.attribute if item.name not in ("axis", "broadcast")]
            del node.attribute[:]
            node.attribute.extend(kept)
            _put_aside(node, proto)
        if behind:
            wide, first = f"{node.output[0]}/wide", ranks[node.input[1]]
            axes = list(range(first, first + behind))
            nodes.append(helper.make_node("Unsqueeze", [node.input[1]], [wide], axes=axes))
            node.input[1] = wide
        nodes.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def _axes_behind(node: Any, ranks: Mapping[str, int]) -> int | None:
    """How many axes the second input of a node needs behind its own; None of other nodes."""
    if node.domain or node.op_type not in (*_BROADCAST, "PRelu"):
        return None
    if any(name not in ranks for name in node.input[:2]):
        return None
    one, other = (ranks[name] for name in node.input[:2])
    if node.op_type == "PRelu":
        return max(0, one - 2) if other == 1 else 0
    given: dict[str, int] = {item.name: int(item.i) for item in node.attribute}
    if not given.get("broadcast", 0) or "axis" not in given:
        return 0
    axis = given["axis"] + (one if given["axis"] < 0 else 0)
    return max(0, one - axis - other)


def _put_aside(node: Any, proto: Any) -> None:
    """Keep a node from onnx's converter: it means in opset 7 what it says."""
    from onnx import helper

    node.domain = _ASIDE
    if all(item.domain != _ASIDE for item in proto.opset_import):
        proto.opset_import.append(helper.make_opsetid(_ASIDE, 1))


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

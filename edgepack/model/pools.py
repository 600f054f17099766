"""Pools that round up, of which onnx counts a window that they do not have."""

from __future__ import annotations

from typing import Any

from edgepack.model.index import GraphIndex

# From this opset on onnx counts no window that begins behind the image, as onnxruntime does in all.
_COUNTS_RIGHT = 22
_POOLS = ("AveragePool", "LpPool", "MaxPool")
_DOMAIN = "edgepack.pools"


def without_empty_windows(proto: Any) -> Any:
    """The model with pools whose last window would begin behind the image written so that all
    count the same results.

    In older opsets onnx has one too many for them, and so has each Shape that onnxruntime computes
    beforehand. What the file says of such shapes goes, too. Left alone are pools of unknown sizes,
    those in subgraphs, and an average over its borders that rounds up along another axis, which
    cannot be written otherwise.
    """
    from edgepack.model import infer_shapes, opset_of

    if opset_of(proto) >= _COUNTS_RIGHT or not any(map(_rounds_up, proto.graph.node)):
        return proto
    bare = type(proto)()
    bare.CopyFrom(proto)
    _forget_shapes(bare.graph)
    infos = GraphIndex(infer_shapes(_by_functions(bare)).graph).infos
    changed = False
    for node in bare.graph.node:
        if _rounds_up(node) and node.input and node.input[0] in infos:
            changed |= _write_out(node, infos[node.input[0]])
    if not changed:
        return proto
    known = GraphIndex(infer_shapes(bare).graph).infos
    for said in (proto.graph.value_info, proto.graph.output):
        for value in said:
            if value.name in known:
                value.CopyFrom(known[value.name])
    for node, made in zip(proto.graph.node, bare.graph.node, strict=True):
        node.CopyFrom(made)
    return proto


def _rounds_up(node: Any) -> bool:
    is_pool = node.op_type in _POOLS and node.domain in ("", "ai.onnx")
    return is_pool and any(item.name == "ceil_mode" and item.i for item in node.attribute)


def _forget_shapes(graph: Any) -> None:
    """Of all that nodes make, but for what no node of ONNX's makes: of that nothing is inferred."""
    others = {name for n in graph.node if n.domain not in ("", "ai.onnx") for name in n.output}
    kept = [value for value in graph.value_info if value.name in others]
    del graph.value_info[:]
    graph.value_info.extend(kept)
    for value in graph.output:
        if value.name not in others:
            value.type.tensor_type.ClearField("shape")


def _by_functions(proto: Any) -> Any:
    """The model with such pools as calls of functions, which may be of a newer opset."""
    from onnx import helper

    made = type(proto)()
    made.CopyFrom(proto)
    made.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    for number, node in enumerate(filter(_rounds_up, made.graph.node)):
        body = type(node)()
        body.CopyFrom(node)
        body.domain = ""
        opsets = [helper.make_opsetid("", _COUNTS_RIGHT)]
        names = [name for name in node.output if name]
        made.functions.append(
            helper.make_function(_DOMAIN, f"pool{number}", node.input, names, [body], opsets)
        )
        node.CopyFrom(helper.make_node(f"pool{number}", node.input, names, domain=_DOMAIN))
    return made


def _write_out(node: Any, image: Any) -> bool:
    """Have a pool round down, with borders that give the results that there are; tells whether it
    had to."""
    from onnx import helper

    given = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    sizes = [dim.dim_value for dim in image.type.tensor_type.shape.dim][2:]
    rank = len(sizes)
    usual = {"strides": [1] * rank, "dilations": [1] * rank, "pads": [0] * 2 * rank}
    window: list[Any] = [given.get(name) or usual.get(name) for name in ("kernel_shape", *usual)]
    # What is no window at all is refused by those who read the model next.
    is_window = (
        all(isinstance(item, list) for item in window)
        and [len(item) for item in window] == [rank, rank, rank, 2 * rank]
        and all(isinstance(number, int) for item in window for number in item)
    )
    if not is_window or min(*sizes, *window[0], *window[1], *window[2]) < 1:
        return False
    if given.get("auto_pad") in (b"SAME_UPPER", b"SAME_LOWER"):
        return False
    kernel, strides, dilations, pads = window
    borders, is_less = list(pads), False
    for axis, size in enumerate(sizes):
        stride, covered = strides[axis], (kernel[axis] - 1) * dilations[axis] + 1
        extent = size + pads[axis] + pads[rank + axis]
        results = -(-(extent - covered) // stride) + 1
        if (results - 1) * stride >= size + pads[axis]:
            results, is_less = results - 1, True
        borders[rank + axis] += max(0, (results - 1) * stride + covered - extent)
    counts = any(pads) and given.get("count_include_pad", 0)
    if not is_less or (counts and borders != pads):
        return False
    written: dict[str, Any] = {"pads": borders}
    if node.op_type == "AveragePool":
        written["count_include_pad"] = int(counts)
    without = ("auto_pad", "ceil_mode", *written)
    kept = [item for item in node.attribute if item.name not in without]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(helper.make_attribute(*item) for item in written.items())
    return True

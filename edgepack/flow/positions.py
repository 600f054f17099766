"""Which inputs are positions, such as the numbers of words, or lengths: of what, and how far."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edgepack.model import (
    LoadedModel,
    TensorInfo,
    infer_shapes,
    operator_name,
    opset_of,
    tensor_info,
    walk_nodes,
)
from edgepack.model.index import GraphIndex
from edgepack.model.structure import subgraphs

# The least and the largest position, both included; None where any number may be.
Limits = tuple[int, int] | None
_Shape = Sequence[int]


@dataclass(frozen=True, kw_only=True)
class PositionUse:
    """What an input is read for: positions that the node `title` knows as its input `known`.

    `limits` are those of each place in the last axis, or the only ones. `is_needed` says whether an
    output has to be computed with what is found there. `changes` says that a loop has these
    positions in its first turn only.
    """

    title: str
    known: str
    limits: tuple[Limits, ...]
    is_needed: bool
    changes: bool = False

    def each(self, size: int) -> list[Limits]:
        """The limits of `size` elements, in their order."""
        return [self.limits[at % len(self.limits)] for at in range(size)]


def position_ranges(model: LoadedModel) -> dict[str, tuple[int, int]]:
    """The least and the largest position that inputs may hold, of those that hold nothing else,
    and that no loop counts on from."""
    ranges = {}
    for name, uses in position_uses(model).items():
        if any(use.changes for use in uses):
            continue
        found = [limits for use in uses for limits in use.limits]
        known = [limits for limits in found if limits is not None]
        if len(known) == len(found):
            ranges[name] = max(low for low, _ in known), min(high for _, high in known)
    return ranges


def position_uses(model: LoadedModel) -> dict[str, list[PositionUse]]:
    """What inputs are read for, of those that hold positions or lengths."""
    operators = {operator_name(node) for node in walk_nodes(model.proto.graph)}
    if operators.isdisjoint(_POSITIONS):
        return {}
    may_be_float = not operators.isdisjoint(_OF_FLOATS)
    inputs = [info.name for info in model.inputs if _may_hold(info, may_be_float)]
    if not inputs:
        return {}
    graph = infer_shapes(model.proto).graph
    whole = _Around(graph, opset_of(model.proto), model.proto.graph.initializer)
    uses = {name: list(_uses(whole, {name: _Held()})) for name in inputs}
    return {name: found for name, found in uses.items() if found}


def _may_hold(info: TensorInfo, may_be_float: bool) -> bool:
    dtype = np.dtype(info.dtype)
    return (dtype.kind in "iu" and dtype.itemsize > 2) or (dtype.kind == "f" and may_be_float)


def limits_of(uses: Sequence[PositionUse], array: npt.NDArray[Any]) -> list[Limits]:
    """The limits of an input's elements in their order: what all of its uses allow."""

    def narrowest(found: Sequence[Limits]) -> Limits:
        known = [limits for limits in found if limits is not None]
        if not known:
            return None
        return max(low for low, _ in known), min(high for _, high in known)

    return [narrowest(found) for found in zip(*(use.each(array.size) for use in uses), strict=True)]


def first_outside(uses: Sequence[PositionUse], array: npt.NDArray[Any]) -> str | None:
    """In words the first position from outside of the limits of a use that an output hangs on; None
    if there is none."""
    for use in uses:
        for value, limits in zip(array.reshape(-1), use.each(array.size), strict=True):
            if use.is_needed and limits is not None and not limits[0] <= value <= limits[1]:
                return (
                    f"{use.title}: its input '{use.known}' has {int(value)}, which is not between "
                    f"{limits[0]} and {limits[1]}"
                )
    return None


# What positions pass through unchanged, and of these what changes their order.
_SAME = frozenset(
    ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Cast", "Expand")
)
_REORDERED = frozenset(("Transpose", "Expand"))


@dataclass(frozen=True, kw_only=True)
class _Held:
    """That a tensor holds an input's values: in their order or not, and, of a state of a loop that
    a turn makes anew, in the first turn only."""

    ordered: bool = True
    changes: bool = False


class _Around:
    """A graph, with what is known of the tensors that it sees, also of the graph around it."""

    def __init__(
        self, graph: Any, opset: int, weights: Sequence[Any], outer: _Around | None = None
    ) -> None:
        self.graph, self.opset = graph, opset
        self.needed = _needed(graph)
        self.shapes: dict[str, Sequence[Any]] = {} if outer is None else dict(outer.shapes)
        infos = GraphIndex(graph).infos
        self.shapes |= {name: tensor_info(value).shape for name, value in infos.items()}
        self.shapes |= {tensor.name: tuple(tensor.dims) for tensor in weights}


def _uses(
    around: _Around, held: Mapping[str, _Held], *, is_needed: bool = True
) -> Iterator[PositionUse]:
    """What the values of an input are used for, which tensors of a graph hold: in the bodies of its
    nodes, too. What a body needs is read if the body runs."""
    names = dict(held)
    for node in around.graph.node:
        if node.op_type in _SAME and node.input and node.input[0] in names:
            given = names[node.input[0]]
            ordered = given.ordered and node.op_type not in _REORDERED
            names.update(dict.fromkeys(node.output, replace(given, ordered=ordered)))
        needed = is_needed and not around.needed.isdisjoint(node.output)
        for place, known, find in _POSITIONS.get(operator_name(node), ()):
            if len(node.input) <= place or node.input[place] not in names:
                continue
            given, limits = names[node.input[place]], find(_Read(node, around.shapes))
            if limits and not given.ordered and len(limits) > 1:
                limits = _all_in_one(limits)
            if not limits:
                continue
            yield PositionUse(
                title=f"{operator_name(node)} '{node.name or node.output[0]}'",
                known=known,
                limits=tuple(limits),
                is_needed=needed,
                changes=given.changes,
            )
        for body in subgraphs(node):
            inner = _held_inside(node, body, names, around.opset)
            if inner:
                yield from _uses(
                    _Around(body, around.opset, body.initializer, around), inner, is_needed=needed
                )


def _held_inside(node: Any, body: Any, names: Mapping[str, _Held], opset: int) -> dict[str, _Held]:
    """What a body sees of an input: by the names of the graph around it, and as what it is given.

    A Scan is given a part of what it goes over in each turn.
    """
    formal = [value.name for value in body.input]
    inner = {name: held for name, held in names.items() if name not in formal}
    if node.op_type == "Loop":
        # Behind the number of turns and the condition, both in the node and the body.
        first, states = 2, len(formal) - 2
    elif node.op_type == "Scan" and opset >= _SCAN_WITHOUT_LENGTHS:
        scanned = next((item.i for item in node.attribute if item.name == "num_scan_inputs"), 0)
        first, states = 0, len(formal) - scanned
    else:
        return inner
    results = [value.name for value in body.output][1 if node.op_type == "Loop" else 0 :]
    makers = {name: made for made in body.node for name in made.output}
    for at, (given, name) in enumerate(zip(node.input[first:], formal[first:], strict=False)):
        if (held := names.get(given)) is None:
            continue
        if at >= states:
            inner[name] = replace(held, ordered=False)
        else:
            is_kept = at < len(results) and _is_kept(name, results[at], makers)
            inner[name] = replace(held, changes=held.changes or not is_kept)
    return inner


# The opset from which on a Scan's first input is no longer the lengths of sequences.
_SCAN_WITHOUT_LENGTHS = 9


def _is_kept(name: str, result: str, makers: Mapping[str, Any]) -> bool:
    """Whether a state is, behind a turn, what it was."""
    while result != name and result in makers and makers[result].op_type == "Identity":
        result = makers[result].input[0]
    return result == name


def _all_in_one(limits: Sequence[Limits]) -> list[Limits]:
    known = [limit for limit in limits if limit is not None]
    if len(known) < len(limits):
        return []
    return [(max(low for low, _ in known), min(high for _, high in known))]


def _needed(graph: Any) -> frozenset[str]:
    """The tensors whose values an output is computed with: not those of which only the shape is
    asked for."""
    needed = {value.name for value in graph.output}
    for node in reversed(graph.node):
        if needed.intersection(node.output) and node.op_type not in ("Shape", "Size"):
            needed.update(node.input)
    return frozenset(needed)


# ---------------------------------------------------------------- what operators read


class _Read:
    """A node that reads at positions: its attributes, and its inputs' shapes."""

    def __init__(self, node: Any, shapes: Mapping[str, Sequence[Any]]) -> None:
        from onnx import helper

        self.attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        self._node, self._shapes = node, shapes

    def shape(self, place: int) -> _Shape:
        """An input's shape; none where an extent is not known, or there is no such input."""
        return self._shape(self._node.input[place]) if place < len(self._node.input) else ()

    def result(self) -> _Shape:
        """The result's shape; none where an extent is not known."""
        return self._shape(self._node.output[0])

    def _shape(self, name: str) -> _Shape:
        shape = self._shapes.get(name, ())
        return shape if all(isinstance(extent, int) for extent in shape) else ()


_Find = Callable[[_Read], Sequence[Limits]]


def _extent(read: _Read, place: int, axis: int) -> int | None:
    shape = read.shape(place)
    return shape[axis] if -len(shape) <= axis < len(shape) else None


def _from_either_end(read: _Read) -> Sequence[Limits]:
    """Of an axis of the data, from either end."""
    size = _extent(read, 0, read.attributes.get("axis", 0))
    return [] if size is None else [(-size, size - 1)]


def _of_axes(read: _Read) -> Sequence[Limits]:
    """In the last axis one for each of the data's axes, behind those of batches."""
    data, indices = read.shape(0), read.shape(1)
    if not data or not indices:
        return []
    first = read.attributes.get("batch_dims", 0)
    return [(-size, size - 1) for size in data[first : first + indices[-1]]]


def _of_table(place: int, axis: int = 0) -> _Find:
    """Of an axis of a table, from its begin only."""

    def find(read: _Read) -> Sequence[Limits]:
        size = _extent(read, place, axis)
        return [] if size is None else [(0, size - 1)]

    return find


def _length(attribute: str, default: int, place: int = 0) -> _Find:
    """How much of an axis; of nothing there is nothing to tell."""

    def find(read: _Read) -> Sequence[Limits]:
        size = _extent(read, place, read.attributes.get(attribute, default))
        return [] if size is None else [(1, size)]

    return find


def _start_of_update(read: _Read) -> Sequence[Limits]:
    """Where an update begins that has to end within the cache; one that goes round may anywhere."""
    axis = read.attributes.get("axis", -2)
    extent, given = _extent(read, 0, axis), _extent(read, 1, axis)
    circular = read.attributes.get("mode", b"linear") == b"circular"
    return [] if extent is None or given is None or circular else [(0, extent - given)]


def _of_result(read: _Read) -> Sequence[Limits]:
    """Of all elements of the result, if its size is that of the windows."""
    shape = read.result()
    return [] if read.shape(2) or not shape else [(0, math.prod(shape) - 1)]


def _of_boxes(read: _Read) -> Sequence[Limits]:
    """The first number of a box is that of its image."""
    images = _extent(read, 0, 0)
    return [] if images is None else [(0, images - 1), *[None] * 4]


_EMBEDDED = (
    (0, "input_ids", _of_table(2)),
    (1, "segment_ids", _of_table(4)),
    (8, "position_ids", _of_table(3)),
)
_LENGTHS = (4, "sequence_lens", _length("", 0))
# What has its positions among floats.
_OF_FLOATS = frozenset(("MaxRoiPool",))
# By operators: the places of the inputs that hold positions, what they are called, and of what
# they are. tests/run_time_positions.py has all that compile.
_POSITIONS: Mapping[str, Sequence[tuple[int, str, _Find]]] = {
    "Gather": [(1, "indices", _from_either_end)],
    "GatherElements": [(1, "indices", _from_either_end)],
    "GatherND": [(1, "indices", _of_axes)],
    "Scatter": [(1, "indices", _from_either_end)],
    "ScatterElements": [(1, "indices", _from_either_end)],
    "ScatterND": [(1, "indices", _of_axes)],
    "TensorScatter": [(2, "write_indices", _start_of_update)],
    "RotaryEmbedding": [(3, "position_ids", _of_table(1))],
    "ReverseSequence": [(1, "sequence_lens", _length("time_axis", 0))],
    "LSTM": [_LENGTHS],
    "GRU": [_LENGTHS],
    "RNN": [_LENGTHS],
    "com.microsoft::DynamicQuantizeLSTM": [_LENGTHS],
    "Attention": [(6, "nonpad_kv_seqlen", _length("", -2, place=1))],
    "TopK": [(1, "K", _length("axis", -1))],
    "MaxUnpool": [(1, "I", _of_result)],
    "RoiAlign": [(2, "batch_indices", _of_table(0))],
    "MaxRoiPool": [(1, "rois", _of_boxes)],
    "ai.onnx.ml::ArrayFeatureExtractor": [(1, "Y", _of_table(0, -1))],
    "com.microsoft::EmbedLayerNormalization": _EMBEDDED,
    "com.microsoft::QEmbedLayerNormalization": _EMBEDDED,
}

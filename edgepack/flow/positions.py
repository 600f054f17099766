"""Which inputs are positions in a table, such as the numbers of words, or lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from edgepack.model import LoadedModel, TensorInfo, infer_shapes, tensor_info
from edgepack.model.index import GraphIndex

# Operators, the place of the input that holds positions, and the axis that these are along: of the
# input at place 0, by an attribute with a default, or a number. A length may be the whole axis.
_POSITIONS: Mapping[str, tuple[int, str | int, int]] = {
    "Gather": (1, "axis", 0),
    "GatherElements": (1, "axis", 0),
    "ScatterElements": (1, "axis", 0),
    "GatherND": (1, 0, 0),
    "ScatterND": (1, 0, 0),
}
_LENGTHS: Mapping[str, tuple[int, str | int, int]] = {
    "ReverseSequence": (1, "time_axis", 0),
    "LSTM": (4, 0, 0),
    "GRU": (4, 0, 0),
    "RNN": (4, 0, 0),
}
# What integers pass through unchanged.
_SAME = frozenset(
    ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Cast", "Expand")
)


def position_ranges(model: LoadedModel) -> dict[str, tuple[int, int]]:
    """The least and the largest position that inputs may hold, of those that hold some."""
    inputs = [info for info in model.inputs if _may_hold(info)]
    if not inputs:
        return {}
    graph = infer_shapes(model.proto).graph
    shapes = {name: tensor_info(value).shape for name, value in GraphIndex(graph).infos.items()}
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in model.proto.graph.initializer}
    ranges = {info.name: list(_ranges(model, info.name, shapes)) for info in inputs}
    return {
        name: (max(low for low, _ in found), min(high for _, high in found))
        for name, found in ranges.items()
        if found
    }


def _may_hold(info: TensorInfo) -> bool:
    dtype = np.dtype(info.dtype)
    return dtype.kind in "iu" and dtype.itemsize >= 4


def _ranges(
    model: LoadedModel, name: str, shapes: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[int, int]]:
    """The ranges of what an input's values are used for."""
    names = {name}
    for node in model.proto.graph.node:
        if node.op_type in _SAME and node.input and node.input[0] in names:
            names.update(node.output)
        for table, is_length in ((_POSITIONS, False), (_LENGTHS, True)):
            place, axis, default = table.get(node.op_type, (0, 0, 0))
            if not place or len(node.input) <= place or node.input[place] not in names:
                continue
            if isinstance(axis, str):
                axis = next((a.i for a in node.attribute if a.name == axis), default)
            shape = shapes.get(node.input[0], ())
            if not -len(shape) <= axis < len(shape) or not isinstance(shape[axis], int):
                continue
            size = int(shape[axis])
            if is_length:
                yield 1, size
            else:
                yield -size, size - 1

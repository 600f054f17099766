"""Shapes for inputs that have none: what a model can be tried with, as far as weights tell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgepack.model.index import GraphIndex

PIXELS, SAMPLES, LENGTH = 224, 16000, 8
"""Of an axis that nothing tells anything of: of an image, of sound (a second at 16 kHz), and of all
else."""
_SOUND = re.compile(r"(?i)audio|wav(e(form)?)?s?\b|pcm|samples?\b|speech")
_SAME = ("Cast", "Dropout", "Identity", "Relu", "Elu", "Log", "Sqrt", "Abs", "Neg", "Clip")
_WITH_A_VALUE = ("Add", "Sub", "Mul", "Div")
_RECURRENT = ("LSTM", "GRU", "RNN")
_MOST = 16

Dims = Sequence[int | str | None]


def some_shapes(graph: Any, inputs: Mapping[str, Dims]) -> dict[str, tuple[int, ...]]:
    """A shape for each of `inputs` that lacks a dimension, by name.

    The first axis is a batch of one, unless the weights say otherwise. Axes of one name have one
    size. The number of channels or features is that of the weights that the input meets first.
    """
    weights = {item.name: tuple(item.dims) for item in graph.initializer}
    sizes: dict[str, int] = {}
    wanted = {
        name: dims
        for name, dims in inputs.items()
        if any(not isinstance(size, int) for size in dims)
    }
    met = {name: _first_met(graph, name, len(dims), weights) for name, dims in wanted.items()}
    for name, dims in wanted.items():
        for axis, size in enumerate(dims):
            if isinstance(size, str) and axis in met[name]:
                sizes.setdefault(size, met[name][axis])
    found = {}
    for name, dims in wanted.items():
        shape = []
        for axis, size in enumerate(dims):
            value = size if isinstance(size, int) else met[name].get(axis)
            if value is None and isinstance(size, str) and size in sizes:
                value = sizes[size]
            if value is None:
                value = 1 if axis == 0 else _usual(name, dims, met[name], axis)
            if isinstance(size, str):
                sizes.setdefault(size, value)
            shape.append(value)
        found[name] = tuple(shape)
    return found


def told_axes(graph: Any, name: str, rank: int) -> set[int]:
    """The axes of an input behind the first whose sizes weights tell."""
    weights = {item.name: tuple(item.dims) for item in graph.initializer}
    return {axis for axis, _ in _met(graph, name, rank, weights) if axis}


def _usual(name: str, dims: Dims, met: Mapping[int, int], axis: int) -> int:
    """What most models have of an axis behind the batch."""
    if _is_side(dims, met, axis):
        return PIXELS
    if axis == 1 and len(dims) == 3 and isinstance(dims[0], int) and dims[0] > 1:
        return 1  # the batch in a state of recurrent layers, behind their number
    # Sound is one number after the other; features of it are named so, too.
    rest = [met.get(at, dims[at]) for at in range(1, len(dims)) if at != axis]
    is_sound = rest in ([], [1]) and _SOUND.search(f"{name} {dims[axis] or ''}")
    return SAMPLES if is_sound else LENGTH


def _is_side(dims: Dims, met: Mapping[int, int], axis: int) -> bool:
    """Whether the axis is a side of an image: its channels are known, few, and elsewhere."""
    if len(dims) != 4:
        return False
    channels = {at: met.get(at, dims[at]) for at in (1, 3)}
    last = channels[3] in (1, 3, 4) and channels[1] not in (1, 3, 4)
    last = last or (3 in met and 1 not in met)
    return axis in ((1, 2) if last else (2, 3))


def _first_met(
    graph: Any, name: str, rank: int, weights: Mapping[str, tuple[int, ...]]
) -> dict[int, int]:
    found: dict[int, int] = {}
    for axis, size in _met(graph, name, rank, weights):
        found.setdefault(axis, size)
    return found


def _met(
    graph: Any, name: str, rank: int, weights: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[int, int]]:
    """Axes of an input and their sizes, as the first weights have them that it meets.

    Axes are followed where they are only moved: into which of a tensor's axes each of the input's
    has come. A first axis that is not where a convolution has its batch is none: it is a length.
    """
    places: dict[str, tuple[int | None, ...]] = {name: tuple(range(rank))}
    values = GraphIndex(graph).known
    for node in graph.node:
        at = next((index for index, one in enumerate(node.input) if one in places), None)
        if at is None:
            continue
        axes = places[node.input[at]]
        if len(places) < _MOST and (moved := _moved(node, at, axes, values)) is not None:
            places[node.output[0]] = moved
        size = _size_met(node, at, len(axes), weights)
        if size is None:
            continue
        if (own := axes[size[0]]) is not None:
            yield own, size[1]
        if (node.op_type == "Conv" and 0 in axes[2:]) or (
            node.op_type in _RECURRENT and axes[:2] == (0, None)
        ):
            yield 0, LENGTH


def _size_met(
    node: Any, at: int, rank: int, weights: Mapping[str, tuple[int, ...]]
) -> tuple[int, int] | None:
    """The axis of a node's input whose size its weights tell, and the size."""
    if node.op_type in _WITH_A_VALUE:  # a mean or a scale for each of the last axis
        known = weights.get(node.input[1 - at], ())
        return (rank - 1, known[-1]) if known and known[-1] > 1 and rank else None
    other = weights.get(node.input[1], ()) if len(node.input) > 1 and at == 0 else ()
    attributes = {item.name: item.i for item in node.attribute}
    if node.op_type == "Conv" and len(other) == rank:
        return 1, other[1] * attributes.get("group", 1)
    if node.op_type == "Gemm" and len(other) == 2 and not attributes.get("transA"):
        return 1, other[1] if attributes.get("transB") else other[0]
    if node.op_type == "MatMul" and len(other) >= 2:
        return rank - 1, other[-2]
    if node.op_type == "BatchNormalization" and len(other) == 1 and rank > 1:
        return 1, other[0]
    is_recurrent = node.op_type in _RECURRENT and len(other) == 3 and rank == 3
    return (2, other[2]) if is_recurrent else None


def _moved(
    node: Any, at: int, axes: tuple[int | None, ...], values: Mapping[str, Any]
) -> tuple[int | None, ...] | None:
    """Where the input's axes are in a node's output; None if they are lost."""
    if node.op_type in _SAME or (node.op_type in _WITH_A_VALUE and node.input[1 - at] in values):
        return axes
    attributes = {item.name: list(item.ints) for item in node.attribute}
    if node.op_type == "Transpose":
        order = attributes.get("perm") or [*reversed(range(len(axes)))]
        return tuple(axes[one] for one in order) if len(order) == len(axes) else None
    if node.op_type not in ("Squeeze", "Unsqueeze") or at != 0:
        return None
    told = attributes.get("axes")
    if told is None and len(node.input) > 1 and node.input[1] in values:
        from onnx import numpy_helper

        told = [int(one) for one in numpy_helper.to_array(values[node.input[1]]).reshape(-1)]
    if not told:
        return None
    rank = max(1, len(axes) + (len(told) if node.op_type == "Unsqueeze" else 0))
    gone = {one % rank for one in told}
    if node.op_type == "Squeeze":
        return tuple(one for index, one in enumerate(axes) if index not in gone)
    rest = iter(axes)
    return tuple(None if index in gone else next(rest, None) for index in range(rank))

"""Shapes for inputs that have none: what a model can be tried with, as far as weights tell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

PIXELS, SAMPLES, LENGTH = 224, 16000, 8
"""Of an axis that nothing tells anything of: of an image, of sound (a second at 16 kHz), and of all
else."""
_SOUND = re.compile(r"(?i)audio|wav(e(form)?)?s?\b|pcm|samples?\b|speech")
_SAME = ("Cast", "Dropout", "Identity")
_MOST = 8

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
    met = {name: dict(_met(graph, name, len(dims), weights)) for name, dims in wanted.items()}
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


def _usual(name: str, dims: Dims, met: Mapping[int, int], axis: int) -> int:
    """What most models have of an axis behind the batch."""
    if _is_side(dims, met, axis):
        return PIXELS
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
    return axis in ((1, 2) if last else (2, 3))


def _met(
    graph: Any, name: str, rank: int, weights: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[int, int]]:
    """Axes of an input and their sizes, as the first weights have them that it meets."""
    names = {name}
    for node in graph.node:
        if not names.intersection(node.input):
            continue
        if node.op_type in _SAME and len(names) < _MOST:
            names.update(node.output)
        at = next(index for index, one in enumerate(node.input) if one in names)
        other = weights.get(node.input[1], ()) if len(node.input) > 1 and at == 0 else ()
        attributes = {item.name: item.i for item in node.attribute}
        if node.op_type == "Conv" and len(other) == rank:
            yield 1, other[1] * attributes.get("group", 1)
        elif node.op_type == "Gemm" and len(other) == 2 and not attributes.get("transA"):
            yield 1, other[1] if attributes.get("transB") else other[0]
        elif node.op_type == "MatMul" and len(other) >= 2:
            yield rank - 1, other[-2]
        elif node.op_type == "BatchNormalization" and len(other) == 1 and rank > 1:
            yield 1, other[0]
        elif node.op_type in ("LSTM", "GRU", "RNN") and len(other) == 3 and rank == 3:
            yield 2, other[2]

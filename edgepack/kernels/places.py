"""Tensors read where they lie: what reshapes, transpositions and slices do to places in memory.

As numpy has it, a view of an array is where its first element is, and how many elements further the
next one along each axis is. So numpy itself is asked: an array of bytes stands for the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

# Makes a view of a view; None where elements would have to move.
View = Callable[[np.ndarray], np.ndarray | None]


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the elements of a tensor of `shape` lie in another one's memory.

    The first is element `offset` there, and the next along an axis so many further as `strides`
    says: 0 where it is the same one again.
    """

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class RowsAt:
    """Where the rows of a matrix lie: from one element on, each so many further than the last."""

    first: int
    step: int


def places(shape: Sequence[int], views: Sequence[View]) -> Places | None:
    """Where the elements of views of views of a tensor of `shape` lie in its memory."""
    tensor = np.empty(shape, "int8")  # of bytes: strides are elements
    view = tensor
    for make in views:
        made = make(view)
        if made is None:
            return None
        view = made
    offset = view.__array_interface__["data"][0] - tensor.__array_interface__["data"][0]
    return Places(offset=offset, shape=view.shape, strides=view.strides)


def reshape_view(shape: Sequence[int]) -> View:
    """In another shape."""

    def view(tensor: np.ndarray) -> np.ndarray | None:
        made = tensor.reshape(shape)
        return made if np.may_share_memory(made, tensor) else None

    return view


def broadcast(shape: Sequence[int]) -> View:
    """Repeated along axes of extent 1, and new ones in front, until it is of `shape`."""
    return lambda tensor: np.broadcast_to(tensor, tuple(shape))


def transpose_view(axes: Sequence[int]) -> View:
    """With its axes in another order."""
    return lambda tensor: tensor.transpose(axes)


def columns(first: int, count: int) -> View:
    """Some places along the last axis."""
    return lambda tensor: tensor[..., first : first + count]

"""Tensors between layers, and the ONNX nodes that they come from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Origin:
    """An ONNX operator ("Conv") and a node's name, or of several what `merge` makes of them.

    `result` is the tensor that a node makes; "" if it makes several, or if there are several nodes.
    `others` are the names of more nodes that one expression stands for.
    """

    operator: str
    name: str
    result: str = ""
    others: tuple[str, ...] = ()


def merge(origins: Iterable[Origin | None]) -> Origin | None:
    """The origin of a fused layer: all operators, and the name of the first node."""
    known = list(dict.fromkeys(origin for origin in origins if origin is not None))
    if not known:
        return None
    return Origin(operator="+".join(origin.operator for origin in known), name=known[0].name)


@dataclass(frozen=True, kw_only=True, eq=False)
class Value:
    """A tensor between layers, or an input of the network. Values compare by identity.

    `dtype` is numpy's name of the element type. Of what is no tensor, and where the shape is not
    static, the shape is (). `origin` is the node that makes it, as far as that is known.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    origin: Origin | None = None

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


def extent(value: Value) -> tuple[int, int, int, int]:
    """(N, C, H, W) of an image; see `extent_of`."""
    return extent_of(value.shape)


def extent_of(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """(N, C, H, W) of an image. A sequence is one row of pixels, in memory as well.

    A matrix (N, C) is an image (1, C, 1, N): its rows are pixels. So a matrix product is tiled over
    rows too, and reads its weights once for several rows.
    """
    if len(shape) == 2:
        return 1, shape[1], 1, shape[0]
    n, c, *rows, w = shape
    return n, c, rows[0] if rows else 1, w


def is_image(value: Value) -> bool:
    """Whether layers can read and write a tensor: float32 and not empty; (N, C, H, W), a sequence
    (N, C, L), or (N, C)."""
    return len(value.shape) in (2, 3, 4) and value.dtype == "float32" and value.size > 0

"""Sparse weights of TFLite files, by examples of TensorFlow's own format_converter_test.cc.

The objects that the package of TFLite's schema makes of a file are stood in for by plain ones.
"""
# ruff: noqa: N802 - the methods have the names that the package gives them

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tflite  # type: ignore[import-untyped]

from edgepack.model.tflite_sparse import densify


@dataclass
class Vector:
    """An Int32Vector, and the union's table that it is read from."""

    values: list[int]
    Bytes: Any = None
    Pos: int = 0

    def Init(self, _: Any, pos: int) -> None:
        self.values = KEPT[pos].values

    def Values(self, n: int) -> int:
        return self.values[n]

    def ValuesLength(self) -> int:
        return len(self.values)


KEPT: list[Vector] = []


def vector(*values: int) -> Vector:
    KEPT.append(Vector([*values], Pos=len(KEPT)))
    return KEPT[-1]


@dataclass
class Dimension:
    size: int = 0
    segments: Vector | None = None
    indices: Vector | None = None

    def Format(self) -> int:
        kinds = tflite.DimensionType
        return int(kinds.DENSE if self.segments is None else kinds.SPARSE_CSR)

    def DenseSize(self) -> int:
        return self.size

    def ArraySegmentsType(self) -> int:
        return 1

    def ArraySegments(self) -> Vector | None:
        return self.segments

    def ArrayIndicesType(self) -> int:
        return 1

    def ArrayIndices(self) -> Vector | None:
        return self.indices


@dataclass
class Sparsity:
    order: list[int]
    dimensions: list[Dimension]
    blocks: list[int] = field(default_factory=list)

    def TraversalOrderAsNumpy(self) -> Any:
        return np.array(self.order)

    def BlockMap(self, n: int) -> int:
        return self.blocks[n]

    def BlockMapLength(self) -> int:
        return len(self.blocks)

    def DimMetadata(self, n: int) -> Dimension:
        return self.dimensions[n]

    def DimMetadataLength(self) -> int:
        return len(self.dimensions)


def dense(sparsity: Sparsity, values: list[int], shape: tuple[int, ...]) -> Any:
    module = ModuleType("stand_in")
    module.DimensionType = tflite.DimensionType  # type: ignore[attr-defined]
    module.Int32Vector = lambda: Vector([])  # type: ignore[attr-defined]
    return densify(module, sparsity, np.array(values, np.float32), shape).tolist()


ROWS = [[6, 0, 9, 8], [0, 0, 0, 0], [5, 0, 0, 7]]
BLOCKS = [[1, 0, 2, 3], [0, 4, 0, 0], [0, 0, 5, 0], [0, 0, 0, 6]]


def test_rows_that_name_their_columns() -> None:
    named = Dimension(segments=vector(0, 3, 3, 5), indices=vector(0, 2, 3, 0, 3))
    assert dense(Sparsity([0, 1], [Dimension(3), named]), [6, 9, 8, 5, 7], (3, 4)) == ROWS


def test_columns_that_name_their_rows() -> None:
    named = Dimension(segments=vector(0, 2, 2, 3, 5), indices=vector(0, 2, 0, 0, 2))
    assert dense(Sparsity([1, 0], [Dimension(4), named]), [6, 5, 9, 8, 7], (3, 4)) == ROWS


def test_blocks() -> None:
    named = Dimension(segments=vector(0, 2, 3), indices=vector(0, 1, 1))
    sparsity = Sparsity(
        [0, 1, 2, 3], [Dimension(2), named, Dimension(2), Dimension(2)], blocks=[0, 1]
    )
    values = [1, 0, 0, 4, 2, 3, 0, 0, 5, 0, 0, 6]
    assert dense(sparsity, values, (4, 4)) == BLOCKS


@pytest.mark.parametrize(
    ("order", "segments", "indices", "said"),
    [
        ([0, 0], (0, 3, 3, 5), (0, 2, 3, 0, 3), "order"),
        ([0, 1], (0, 3, 3), (0, 2, 3, 0, 3), "segments end"),
        ([0, 1], (0, 3, 3, 6), (0, 2, 3, 0, 3), "indices end"),
        ([0, 1], (0, 3, 2, 5), (0, 2, 3, 0, 3), "larger"),
        ([0, 1], (0, 3, 3, 1 << 30), (0, 2, 3, 0, 3), "larger"),
        ([0, 1], (0, 3, 3, 5), (0, 2, 4, 0, 3), "outside"),
        ([0, 1], (0, 3, 3, 5), (0, -1, 3, 0, 3), "outside"),
        ([0, 1], (-1, 3, 3, 5), (0, 2, 3, 0, 3), "indices end"),
    ],
)
def test_malformed_ones_are_refused(
    order: list[int], segments: tuple[int, ...], indices: tuple[int, ...], said: str
) -> None:
    named = Dimension(segments=vector(*segments), indices=vector(*indices))
    with pytest.raises(ValueError, match=said):
        dense(Sparsity(order, [Dimension(3), named]), [6, 9, 8, 5, 7], (3, 4))
    with pytest.raises(ValueError, match="larger"):
        dense(Sparsity([0, 1], [Dimension(1 << 30), named]), [6], (3, 4))

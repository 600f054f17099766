"""Attention in one kernel: scores are never in the memory that all share.

A group has a block of queries of one head, and goes over the keys, a block at a time: scores by
keys in shared memory, their powers of e by the largest so far, and what they add to the results,
which are in registers. Where a later block has a larger score, sums and results so far become
smaller by a factor (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao
et al., "FlashAttention", 2022). All of it in a fixed order, so that equal inputs give equal bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgepack.compiler.gpu.epilogue import number
from edgepack.compiler.gpu.image import element, is_half, load, parameters, store
from edgepack.compiler.gpu.kernel import DeviceKernel, Launch, groups
from edgepack.gpus import Gpu
from edgepack.kernels.layer import Attention, TensorPart
from edgepack.kernels.places import Places

_THREADS = 128
# Results that a thread keeps in registers, of which it has 255 on NVIDIA's GPUs.
_MOST_RESULTS = 64
# Heads are the grid's third direction, which has so many places (CUDA C++ Programming Guide,
# "Technical Specifications per Compute Capability"); places in tensors are 32-bit integers.
_GRID_Z, _PLACES = 65535, 2**31


@dataclass(frozen=True, kw_only=True)
class AttentionTile:
    """Queries of a group, and keys at a time; each thread has scores of some queries and four
    keys."""

    queries: int
    keys: int

    @property
    def lanes(self) -> int:
        """Threads that share a query."""
        return self.keys // 4

    @property
    def own(self) -> int:
        """Queries of a thread."""
        return self.queries * self.lanes // _THREADS

    def columns(self, width: int) -> int:
        """Vectors of a query's results that a thread has, of `width` in all."""
        return groups(width // 4, self.lanes)

    def float4s(self, depth: int, width: int) -> tuple[int, int, int]:
        """The shared memory's vectors of queries, of keys or values, and of powers. One more than
        there are in each row, so that rows begin in different banks."""
        row = groups(depth, 4) + 1
        return (
            self.queries * row,
            self.keys * max(row, width // 4),
            self.queries * (self.lanes + 1),
        )

    def shared_bytes(self, depth: int, width: int) -> int:
        """Shared memory of a group; the sums of all threads of each query are there, too."""
        return 16 * sum(self.float4s(depth, width)) + 4 * self.queries * self.lanes


TILES = (
    AttentionTile(queries=64, keys=32),
    AttentionTile(queries=32, keys=32),
    AttentionTile(queries=16, keys=32),
    AttentionTile(queries=8, keys=64),
    AttentionTile(queries=4, keys=128),
)


def takes(attention: Attention, gpu: Gpu) -> bool:
    """Whether there is a kernel of it: a head's keys have to fit shared memory."""
    places = (*attention.sizes, math.prod(attention.result.shape))
    heads = math.prod(attention.result.shape[:-2])
    return heads <= _GRID_Z and max(places) < _PLACES and choose(attention, gpu) is not None


def choose(attention: Attention, gpu: Gpu) -> AttentionTile | None:
    """The largest tile that gives each processor two groups, or else the smallest; none is twice
    as large as there are queries."""
    *heads, queries, width = attention.result.shape
    depth = attention.keys.places.shape[-1]
    fitting = [
        tile
        for tile in TILES
        if gpu.threads >= _THREADS
        and tile.shared_bytes(depth, width) <= gpu.shared_kb << 10
        and 4 * tile.own * tile.columns(width) <= _MOST_RESULTS
    ]
    filled = [tile for tile in fitting if tile.queries < 2 * queries] or fitting[-1:]
    for tile in filled:
        if groups(queries, tile.queries) * math.prod(heads) >= 2 * gpu.processors:
            return tile
    return filled[-1] if filled else None


def make(
    attention: Attention, dtypes: Sequence[str], output: str, tile: AttentionTile
) -> tuple[DeviceKernel, tuple[np.ndarray, ...]]:
    """The kernel and its constants, which are masks. Its arguments are the inputs, of `dtypes`, the
    constants, and the result, of type `output`."""
    *heads, queries, _ = attention.result.shape
    known = [mask.source for mask in attention.masks if isinstance(mask.source, np.ndarray)]
    constants = tuple(np.ascontiguousarray(values).ravel() for values in known)
    inputs = [f"x{index}" for index in range(len(dtypes))]
    masks = [f"mask{index}" for index in range(len(constants))]
    left = iter(masks)
    text = _Text(attention, dtypes, output, tile)
    names = [
        f"x{mask.source}" if isinstance(mask.source, int) else next(left)
        for mask in attention.masks
    ]
    read = parameters([*inputs, *masks], [*dtypes, *("float32" for _ in masks)])
    launch = Launch(
        function="@attention",
        grid=(groups(queries, tile.queries), 1, math.prod(heads)),
        block=(_THREADS, 1, 1),
        args=tuple(range(len(inputs) + len(masks) + 1)),
    )
    arguments = [
        *((dtype, (size,)) for dtype, size in zip(dtypes, attention.sizes, strict=True)),
        *(("float32", values.shape) for values in constants),
        (output, (math.prod(attention.result.shape),)),
    ]
    return DeviceKernel.from_text(text.function(read, names), [launch], arguments), constants


def start_of(places: Places) -> str:
    """The text of the place of a `head`'s first element."""
    terms, index = [str(places.offset)], "head"
    for size, step in reversed(list(zip(places.shape[:-2], places.strides[:-2], strict=True))):
        if size > 1:
            if step:
                terms.append(f"{index} % {size} * {step}")
            index = f"({index} / {size})"
    return " + ".join(terms)


class _Text:
    def __init__(
        self, attention: Attention, dtypes: Sequence[str], output: str, tile: AttentionTile
    ) -> None:
        self.attention, self.dtypes, self.output, self.tile = attention, dtypes, output, tile
        *_, self.queries, self.width = attention.result.shape
        *_, self.keys, self.depth = attention.keys.places.shape
        self.deep = groups(self.depth, 4)  # vectors of a query

    def fill(self, rows: int, stride: int, part: TensorPart, first: str, to: str) -> str:
        """Statements that put some rows of a tensor from row `first` on into shared memory, of
        which a row has `stride` float32, with zeros where there is no element."""
        *_, count, size = part.places.shape
        *_, down, across = part.places.strides
        room = groups(size, 4) * 4
        # What lies side by side is loaded side by side.
        row, column = f"e / {room}", f"e % {room}"
        if across != 1:
            row, column = f"e % {rows}", f"e / {rows}"
        assert isinstance(part.source, int)
        place = f"{start_of(part.places)} + ({first} + row) * {down} + column * {across}"
        value = load(f"x{part.source}", place, half=is_half(self.dtypes[part.source]))
        return f"""
    for (int e = t; e < {rows * room}; e += {_THREADS}) {{
      const int row = {row}, column = {column};
      const int inside = ({first} + row < {count}) & (column < {size});
      ((SHARED_POINTER float*){to})[row * {stride} + column] = inside ? {value} : 0.0f;
    }}"""

    def score(self, masks: Sequence[str]) -> str:
        """The text of a score of query `row` and key `key`, scaled and masked."""
        value = "s[i][j]"
        if self.attention.scale != 1:
            value += f" * {number(self.attention.scale)}"
        for mask, name in zip(reversed(self.attention.masks), reversed(masks), strict=True):
            *_, down, across = mask.places.strides
            value += f" + {name}[{start_of(mask.places)} + row * {down} + key * {across}]"
        return value

    def function(self, read: str, masks: Sequence[str]) -> str:
        """The text of the kernel, of what it is given to `read`."""
        attention, tile = self.attention, self.tile
        own, lanes, deep, wide = tile.own, tile.lanes, self.deep, self.width // 4
        columns = tile.columns(self.width)
        query_room, key_room, power_room = tile.float4s(self.depth, self.width)
        row, last = 4 * (deep + 1), attention.result.strides[-2]
        at = f"{start_of(attention.result)} + (first + tm + i) * {last} + column * 4 + e"
        stored = store("y", at, "made[i][c][e] / sum[i]", half=is_half(self.output))
        queries = self.fill(tile.queries, row, attention.queries, "first", "qs")
        keys = self.fill(tile.keys, row, attention.keys, "from", "ks")
        values = self.fill(tile.keys, self.width, attention.values, "from", "ks")
        return f"""
KERNEL({_THREADS}) @attention({read}, GLOBAL {element(self.output)}* RESTRICT y) {{
  SHARED float4 qs[{query_room}], ks[{key_room}], ps[{power_room}];
  SHARED float parts[{tile.queries}][{lanes}];
  const int t = THREAD, head = GROUP_Z, first = GROUP_X * {tile.queries};
  const int tm = t / {lanes} * {own}, tn = t % {lanes};
  float made[{own}][{columns}][4], most[{own}], sum[{own}];
#pragma unroll
  for (int i = 0; i < {own}; ++i) {{
    most[i] = -INFINITE;
    sum[i] = 0.0f;
#pragma unroll
    for (int c = 0; c < {columns}; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) made[i][c][e] = 0.0f;
  }}
{queries}
  for (int from = 0; from < {self.keys}; from += {tile.keys}) {{
    BARRIER();
{keys}
    BARRIER();
    float s[{own}][4];
#pragma unroll
    for (int i = 0; i < {own}; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i][j] = 0.0f;
#pragma unroll 4
    for (int d = 0; d < {deep}; ++d) {{
#pragma unroll
      for (int j = 0; j < 4; ++j) {{
        const float4 k = ks[(tn + j * {lanes}) * {deep + 1} + d];
#pragma unroll
        for (int i = 0; i < {own}; ++i) {{
          const float4 q = qs[(tm + i) * {deep + 1} + d];
          s[i][j] = MULTIPLY_ADD(q.x, k.x, s[i][j]);
          s[i][j] = MULTIPLY_ADD(q.y, k.y, s[i][j]);
          s[i][j] = MULTIPLY_ADD(q.z, k.z, s[i][j]);
          s[i][j] = MULTIPLY_ADD(q.w, k.w, s[i][j]);
        }}
      }}
    }}
#pragma unroll
    for (int i = 0; i < {own}; ++i) {{
      const int row = first + tm + i;
      float largest = -INFINITE;
#pragma unroll
      for (int j = 0; j < 4; ++j) {{
        const int key = from + tn + j * {lanes};
        if ((row < {self.queries}) & (key < {self.keys}))
          s[i][j] = {self.score(masks)};
        else
          s[i][j] = -INFINITE;
        largest = maximum(largest, s[i][j]);
      }}
      parts[tm + i][tn] = largest;
    }}
    BARRIER();
#pragma unroll
    for (int i = 0; i < {own}; ++i) {{
      float largest = most[i];
#pragma unroll
      for (int n = 0; n < {lanes}; ++n) largest = maximum(largest, parts[tm + i][n]);
      // As long as all keys are masked there is nothing to be less than.
      const float base = largest == -INFINITE ? 0.0f : largest;
      const float less = EXP(most[i] - base);
      most[i] = largest;
      sum[i] *= less;
#pragma unroll
      for (int j = 0; j < 4; ++j) {{
        const float power = EXP(s[i][j] - base);
        sum[i] += power;
        ((SHARED_POINTER float*)ps)[(tm + i) * {4 * (lanes + 1)} + tn + j * {lanes}] = power;
      }}
#pragma unroll
      for (int c = 0; c < {columns}; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) made[i][c][e] *= less;
    }}
{values}
    BARRIER();
#pragma unroll 2
    for (int n = 0; n < {lanes}; ++n) {{
      float4 p[{own}];
#pragma unroll
      for (int i = 0; i < {own}; ++i) p[i] = ps[(tm + i) * {lanes + 1} + n];
#pragma unroll
      for (int c = 0; c < {columns}; ++c) {{
        const int column = tn + c * {lanes};
        if (column < {wide}) {{
#pragma unroll
          for (int k = 0; k < 4; ++k) {{
            const float4 v = ks[(n * 4 + k) * {wide} + column];
#pragma unroll
            for (int i = 0; i < {own}; ++i) {{
              const float power = k == 0 ? p[i].x : k == 1 ? p[i].y : k == 2 ? p[i].z : p[i].w;
              made[i][c][0] = MULTIPLY_ADD(power, v.x, made[i][c][0]);
              made[i][c][1] = MULTIPLY_ADD(power, v.y, made[i][c][1]);
              made[i][c][2] = MULTIPLY_ADD(power, v.z, made[i][c][2]);
              made[i][c][3] = MULTIPLY_ADD(power, v.w, made[i][c][3]);
            }}
          }}
        }}
      }}
    }}
  }}
#pragma unroll
  for (int i = 0; i < {own}; ++i) parts[tm + i][tn] = sum[i];
  BARRIER();
#pragma unroll
  for (int i = 0; i < {own}; ++i) {{
    sum[i] = 0.0f;
    for (int n = 0; n < {lanes}; ++n) sum[i] += parts[tm + i][n];
    if (first + tm + i >= {self.queries}) continue;
#pragma unroll
    for (int c = 0; c < {columns}; ++c) {{
      const int column = tn + c * {lanes};
      if (column < {wide}) {{
#pragma unroll
        for (int e = 0; e < 4; ++e) {stored}
      }}
    }}
  }}
}}
"""

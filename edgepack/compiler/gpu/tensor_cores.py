"""Convolutions and products on the tensor cores of NVIDIA's GPUs, of halves or of TF32: float32
whose last 13 bits are not looked at.

A warp multiplies tiles of 16 x 16 weights and 16 x 8 pixels by one instruction of halves,
`mma.sync` of m16n8k16, or two of TF32, m16n8k8, with sums in float32 (PTX ISA, "Warp-level matrix
instructions"). Weights lie in the order in which the threads of a warp hold them, and come from
memory without a detour; pixels are gathered into shared memory, as in `convolution`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from edgepack.compiler.gpu.convolution import (
    DEPTH,
    GRID_Z,
    ProductSite,
    TiledProduct,
    depths_of,
    has_few_pixels,
    phase_count,
    phase_size,
)
from edgepack.compiler.gpu.kernel import DeviceKernel, groups

_WARP = 32
# Rows and columns that one instruction makes.
_ROWS, _COLUMNS = 16, 8
# The bits of a float32 that TF32 has not.
_LOST_BITS = 13


@dataclass(frozen=True, kw_only=True)
class WarpTiles:
    """What a group makes: `outs` channels of `columns` pixels, each warp `warp_outs` of
    `warp_columns`."""

    outs: int
    columns: int
    warp_outs: int
    warp_columns: int

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return self.outs // self.warp_outs * (self.columns // self.warp_columns) * _WARP

    @property
    def down(self) -> int:
        """Instructions' tiles of a warp, one below the other."""
        return self.warp_outs // _ROWS

    @property
    def across(self) -> int:
        """The same side by side."""
        return self.warp_columns // _COLUMNS

    @property
    def own_outs(self) -> int:
        """Rows of which a thread has results."""
        return 2 * self.down

    @property
    def own_columns(self) -> int:
        """Columns of which it has some."""
        return 2 * self.across


TILES = (
    WarpTiles(outs=128, columns=128, warp_outs=64, warp_columns=32),
    WarpTiles(outs=128, columns=64, warp_outs=32, warp_columns=32),
    WarpTiles(outs=64, columns=128, warp_outs=32, warp_columns=32),
    WarpTiles(outs=64, columns=64, warp_outs=32, warp_columns=32),
    WarpTiles(outs=128, columns=32, warp_outs=32, warp_columns=32),
    WarpTiles(outs=32, columns=128, warp_outs=32, warp_columns=32),
    WarpTiles(outs=64, columns=32, warp_outs=32, warp_columns=16),
    WarpTiles(outs=32, columns=64, warp_outs=16, warp_columns=32),
    WarpTiles(outs=32, columns=32, warp_outs=16, warp_columns=16),
    WarpTiles(outs=16, columns=128, warp_outs=16, warp_columns=32),
    WarpTiles(outs=16, columns=64, warp_outs=16, warp_columns=16),
)


def make(site: ProductSite) -> tuple[DeviceKernel, tuple[np.ndarray, ...], str] | None:
    """The kernel, its constants and its tile in words, as `convolution.make`; None for what is no
    product of halves alone or of TF32, or too small."""
    if not site.gpu.has_tensor_cores or has_few_pixels(site):
        return None
    tile, parts = choose(site)
    if site.tf32:
        kernel, constants, shown = _Tf32Product(site, tile, parts).kernel()
        return kernel, constants, f"{shown}, TF32"
    if site.half_weights and site.image.half and not site.operator.gated:
        kernel, constants, shown = _HalfProduct(site, tile, parts).kernel()
        return kernel, constants, f"{shown}, tensor cores"
    return None


def as_tf32(values: np.ndarray) -> np.ndarray:
    """float32 rounded to the nearest TF32, and away from zero halfway, as cvt.rna.tf32.f32 does."""
    bits = values.astype("float32").view("uint32") + np.uint32(1 << (_LOST_BITS - 1))
    return (bits >> np.uint32(_LOST_BITS) << np.uint32(_LOST_BITS)).view("float32")


def choose(site: ProductSite) -> tuple[WarpTiles, int]:
    """The tile and the number of parts of K that should take least time, in cycles.

    What a scheduler starts at each tile of K: addresses, loads and stores of pixels, and the
    instructions of the tensor cores, of which each takes it for eight cycles; of TF32 there are two
    for each of halves. A guess that measured times have not been fitted to.
    """
    operator, output, gpu = site.operator, site.output, site.gpu
    outs = operator.weight.shape[0] // operator.groups
    phases = phase_count(operator)
    columns = output.batch * math.prod(phase_size(operator, output))
    steps = depths_of(operator)
    best: tuple[float, WarpTiles, int] | None = None
    for tile in TILES:
        tiles = groups(outs, tile.outs) * groups(columns, tile.columns) * operator.groups * phases
        loads = DEPTH * tile.columns // tile.threads
        products = (2 if site.tf32 else 1) * tile.down * tile.across
        each = 30 + 7 * loads + 8 * products + 2 * tile.across + 3 * tile.down
        work = groups(tile.threads // _WARP, 4) * each
        at_once = max(1, min(8, 1024 // tile.threads))
        for parts in (1, 2, 4, 8, 16, 32):
            if parts > 1 and steps // parts < 4:
                break
            if operator.groups * phases * parts > GRID_Z:
                break
            share = math.ceil(steps / parts)
            together = min(at_once, math.ceil(tiles * parts / gpu.processors))
            waves = math.ceil(tiles * parts / (gpu.processors * at_once))
            time = waves * (share * max(together * work, 400) + 1500)
            if parts > 1:
                results = outs * operator.groups * output.batch * output.pixels
                time += 2500 + parts * results / (gpu.processors * gpu.lanes / 2)
            if best is None or time < best[0]:
                best = time, tile, parts
    assert best is not None
    return best[1], best[2]


class _TensorProduct(TiledProduct, ABC):
    """Of DEPTH channels of K at a time; what that is of one kind of numbers is a subclass's."""

    tile: WarpTiles
    # Words of a pixel in shared memory, and one: an odd number, so that what the threads of a warp
    # store at a time lies in 32 banks.
    stride: int
    # Loads of four registers by which a thread gets its weights of a tile.
    loads_of_weights: int
    # How pixels are kept until they are stored in shared memory, and what stores them.
    loaded: str
    store: str

    @abstractmethod
    def products(self) -> str:
        """The text of the instructions for a warp's columns `j`, at the pixel `at`."""

    def member(self, rows: str, columns: str) -> tuple[str, str, str]:
        """As the instruction spreads its results over the threads of a warp."""
        row = f"({rows} + i / 2 * {_ROWS} + i % 2 * 8 + lane / 4)"
        column = f"({columns} + j / 2 * {_COLUMNS} + lane % 4 * 2 + j % 2)"
        return row, column, "sum[i / 2][j / 2][i % 2 * 2 + j % 2]"

    def product(self, read: list[str]) -> str:
        """The text of the function that makes the sums."""
        tile, each = self.tile, self.loads_of_weights
        loads = DEPTH * tile.columns // tile.threads
        step = tile.threads // tile.columns
        stored = "\n".join(
            f"      {self.store}(xs[b][column], row + {index * step}, x1[{index}]);"
            for index in range(loads)
        )
        beside = tile.columns // tile.warp_columns
        rows = self.padded // _ROWS * _WARP * each
        return f"""
KERNEL({tile.threads}) @product({self.arguments(read)}) {{
  SHARED uint xs[2][{tile.columns}][{self.stride}];
  MMA_MEMORY({tile.threads})
{self.begin()}
  const int lane = t % {_WARP};
  const int tm = t / {_WARP * beside} * {tile.warp_outs};
  const int tn = t / {_WARP} % {beside} * {tile.warp_columns};
  const GLOBAL uint4* RESTRICT w4 = (const GLOBAL uint4*)w
      + (INT64)member * {self.depths * rows} + ((m0 + tm) / {_ROWS} * {_WARP} + lane) * {each};
  float sum[{tile.down}][{tile.across}][4];
  uint4 next[{tile.down * each}], now[{tile.down * each}];
  {self.loaded} x1[{loads}];
#pragma unroll
  for (int i = 0; i < {tile.down}; ++i)
#pragma unroll
    for (int j = 0; j < {tile.across}; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[i][j][e] = 0.0f;
  for (int k = first; k <= last; ++k) {{
    const int b = (k - first - 1) & 1;
    if (k > first) {{
{stored}
#pragma unroll
      for (int i = 0; i < {tile.down * each}; ++i) now[i] = next[i];
      BARRIER();
    }}
    if (k < last) {{
#pragma unroll
      for (int i = 0; i < {tile.down * each}; ++i)
        next[i] = w4[(INT64)k * {rows} + i / {each} * {_WARP * each} + i % {each}];
{self.load_pixels(loads)}
    }}
    if (k > first) {{
#pragma unroll
      for (int j = 0; j < {tile.across}; ++j) {{
        const int at = tn + j * {_COLUMNS} + lane / 4;
{self.products()}
      }}
    }}
  }}
{self.finish()}
}}
"""


class _HalfProduct(_TensorProduct):
    stride = DEPTH // 2 + 1
    loads_of_weights = 1
    loaded, store = "HALF_LOADED", "STORE_LOADED"

    def packed(self) -> np.ndarray:
        """Weights [phases x groups, tiles of K, tiles of rows, thread, 8]: of each thread four
        registers of two halves, as the instruction takes them."""
        plain = super().packed()
        made = plain.reshape(len(plain), self.depths, 2, 4, 2, self.padded // _ROWS, 2, 8)
        # member, k tile, k half, k pair, k, row tile, row half, row: a thread has a row and a pair
        return np.ascontiguousarray(made.transpose(0, 1, 5, 7, 3, 2, 6, 4)).reshape(
            len(plain), self.depths, self.padded // _ROWS, _WARP, 8
        )

    def products(self) -> str:
        return f"""
        const uint low = xs[b][at][lane % 4], high = xs[b][at][lane % 4 + 4];
#pragma unroll
        for (int i = 0; i < {self.tile.down}; ++i) MMA(sum[i][j], now[i], low, high);"""


class _Tf32Product(_TensorProduct):
    stride = DEPTH + 1
    loads_of_weights = 2
    loaded, store = "float", "STORE_TF32"

    def packed(self) -> np.ndarray:
        """Weights [phases x groups, tiles of K, tiles of rows, thread, 2, 4]: of each thread four
        registers for each of two instructions."""
        plain = as_tf32(super().packed())
        made = plain.reshape(len(plain), self.depths, 2, 2, 4, self.padded // _ROWS, 2, 8)
        # member, k tile, instruction, k half, k, row tile, row half, row: a thread has a row, a k
        return np.ascontiguousarray(made.transpose(0, 1, 5, 7, 4, 2, 3, 6)).reshape(
            len(plain), self.depths, self.padded // _ROWS, _WARP, 2, 4
        )

    def products(self) -> str:
        return f"""
#pragma unroll
        for (int s = 0; s < 2; ++s) {{
          const uint low = xs[b][at][s * 8 + lane % 4], high = xs[b][at][s * 8 + lane % 4 + 4];
#pragma unroll
          for (int i = 0; i < {self.tile.down}; ++i)
            MMA_TF32(sum[i][j], now[i * 2 + s], low, high);
        }}"""

"""Convolutions and products with constant weights: tiles of a product, in shared memory.

The product is weights [M, K] times an image's windows [K, N], which are never written out: each
group of threads gathers what its tile needs (implicit GEMM, as in cuDNN: arXiv:1410.0759). Where
there are too few tiles for all processors, K is shared out as well, and a second launch adds up
the parts in a fixed order, so that equal inputs give equal bits.

A transposed convolution of stride s is s x s ordinary ones, its phases (as in `rules.transposed`):
each makes every s-th pixel in both directions of what the window's every s-th row and column see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edgepack.compiler.gpu.epilogue import statements
from edgepack.compiler.gpu.image import PlainImage, element, is_half, load, parameters, store
from edgepack.compiler.gpu.kernel import DeviceKernel, Launch, groups
from edgepack.gpus import Gpu
from edgepack.kernels.layer import Convolution, TransposedConvolution
from edgepack.kernels.tiles.expression import Expression

# Of K at a time: one load of four weights for each thread of a small tile.
DEPTH = 16
# More pixels than these are worth a tile.
_FEW = 4
# What both interfaces let a grid have in its third direction.
GRID_Z = 65535


@dataclass(frozen=True, kw_only=True)
class GroupTile:
    """What a group of threads makes: `outs` channels of `columns` pixels, each thread `own_outs` of
    `own_columns`."""

    outs: int
    columns: int
    own_outs: int
    own_columns: int

    @property
    def threads(self) -> int:
        """Threads of a group."""
        return (self.outs // self.own_outs) * (self.columns // self.own_columns)

    @property
    def efficiency(self) -> float:
        """Multiply-adds per instruction of the inner loop: four values are one load."""
        products = self.own_outs * self.own_columns
        loads = self.own_outs / 4 + self.own_columns / 4
        return products / (products + 2 * loads)


class Tile(Protocol):
    """A group's part of the product, as `GroupTile` has it."""

    @property
    def outs(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def own_outs(self) -> int: ...
    @property
    def own_columns(self) -> int: ...
    @property
    def threads(self) -> int: ...


TILES = (
    GroupTile(outs=128, columns=128, own_outs=8, own_columns=8),
    GroupTile(outs=128, columns=64, own_outs=8, own_columns=4),
    GroupTile(outs=64, columns=128, own_outs=8, own_columns=4),
    GroupTile(outs=64, columns=64, own_outs=4, own_columns=4),
    GroupTile(outs=32, columns=128, own_outs=4, own_columns=4),
    GroupTile(outs=128, columns=32, own_outs=8, own_columns=4),
    GroupTile(outs=64, columns=32, own_outs=4, own_columns=4),
    GroupTile(outs=32, columns=64, own_outs=4, own_columns=4),
    GroupTile(outs=32, columns=32, own_outs=4, own_columns=4),
    GroupTile(outs=16, columns=128, own_outs=4, own_columns=4),
)


@dataclass(frozen=True, kw_only=True)
class ProductSite:
    """A layer of weights, its tensors and its GPU; operands are full images or a value a channel.

    A gated operator has a second input, float32 (N, C, 1, 1), that is multiplied into the image.
    With `half_weights` weights are stored as halves, and computed with as float32. `tf32`: what is
    multiplied may be rounded to TF32, where the GPU has that.
    """

    operator: Convolution
    image: PlainImage
    output: PlainImage
    expression: Expression
    constants: tuple[np.ndarray, ...]
    operands: tuple[PlainImage, ...]
    gpu: Gpu
    half_weights: bool = False
    tf32: bool = False


def takes(operator: Convolution) -> bool:
    """Whether a grid has places for all groups and phases."""
    return operator.groups * phase_count(operator) <= GRID_Z


def phase_count(operator: Convolution) -> int:
    """Convolutions of stride 1 that a transposed one is made of; 1 of any other."""
    return math.prod(operator.stride) if isinstance(operator, TransposedConvolution) else 1


def make(site: ProductSite) -> tuple[DeviceKernel, tuple[np.ndarray, ...], str]:
    """The kernel, its constants (weights and bias first), and its tile in words.

    Its arguments are the image, the gate if there is one, the operands, the constants, the output
    and scratch memory.
    """
    if has_few_pixels(site):
        return FewPixels(site).kernel()
    _, tile, parts = estimate(site)
    return TiledProduct(site, tile, parts).kernel()


def has_few_pixels(site: ProductSite) -> bool:
    """Whether each result is a product of all that the image has, and there are few pixels."""
    few = site.output.batch * site.output.pixels <= _FEW
    return few and site.operator.groups == 1 and _copies(site)


def _copies(site: ProductSite) -> bool:
    """Whether a result's window is the pixel in its own place."""
    operator, image, output = site.operator, site.image, site.output
    return (
        operator.kernel == operator.stride == (1, 1)
        and operator.before == (0, 0)
        and (image.height, image.width) == (output.height, output.width)
    )


def estimate(site: ProductSite, most_parts: int = 32) -> tuple[float, GroupTile, int]:
    """The least cycles that it should take, with the tile and the number of parts of K.

    A processor starts all its lanes only with eight warps of threads at work, and a group's time
    is that of its multiply-adds, the waits for memory at each depth, and its end.
    """
    operator, output, gpu = site.operator, site.output, site.gpu
    outs = operator.weight.shape[0] // operator.groups
    phases = phase_count(operator)
    columns = output.batch * math.prod(phase_size(operator, output))
    depth = depths_of(operator) * DEPTH
    best: tuple[float, GroupTile, int] | None = None
    for tile in TILES:
        if tile.threads > gpu.threads or _shared_bytes(tile) > gpu.shared_kb << 10:
            continue
        tiles = groups(outs, tile.outs) * groups(columns, tile.columns)
        tiles *= operator.groups * phases
        for parts in (1, 2, 4, 8, 16, 32):
            if parts > most_parts or (parts > 1 and depth // parts < 4 * DEPTH):
                break
            if operator.groups * phases * parts > GRID_Z:
                break
            at_once = max(1, min(4, 2048 // max(tile.threads, 1) // 2))
            waves = math.ceil(tiles * parts / (gpu.processors * at_once))
            together = min(at_once, math.ceil(tiles * parts / gpu.processors))
            busy = min(1.0, together * tile.threads / 256)
            share = math.ceil(depth / parts)
            work = share * tile.outs * tile.columns / (gpu.lanes * tile.efficiency * busy)
            waits = share / DEPTH * 120 / together
            time = waves * (together * work + waits + 1500)
            if parts > 1:
                results = outs * operator.groups * output.batch * output.pixels
                time += 2500 + parts * results / (gpu.processors * gpu.lanes / 2)
            if best is None or time < best[0]:
                best = time, tile, parts
    assert best is not None
    return best


def _shared_bytes(tile: GroupTile) -> int:
    return 2 * DEPTH * (tile.outs + tile.columns) * 4


def phase_size(operator: Convolution, output: PlainImage) -> tuple[int, int]:
    """Rows and columns of the pixels that the largest phase makes."""
    if not isinstance(operator, TransposedConvolution):
        return output.height, output.width
    return groups(output.height, operator.stride[0]), groups(output.width, operator.stride[1])


def _taps(operator: Convolution) -> tuple[int, int]:
    """Rows and columns of the window, of a transposed convolution those of the largest phase."""
    rows, columns = operator.kernel
    if not isinstance(operator, TransposedConvolution):
        return rows, columns
    return groups(rows, operator.stride[0]), groups(columns, operator.stride[1])


def depths_of(operator: Convolution) -> int:
    """Tiles of K: of each tap its channels, or of all taps together where those are few."""
    ins = int(operator.weight.shape[1])
    rows, columns = _taps(operator)
    if _is_flat(operator):
        return groups(ins * rows * columns, DEPTH)
    return rows * columns * groups(ins, DEPTH)


def _is_flat(operator: Convolution) -> bool:
    """Whether a tile of K has several taps."""
    ins = int(operator.weight.shape[1])
    taps = math.prod(_taps(operator))
    return taps > 1 and ins % DEPTH != 0 and ins < 4 * DEPTH


def read_epilogue(
    site: ProductSite, batch: str, channel: str, pixel: str
) -> tuple[Callable[[int], str], Callable[[int, bool], str]]:
    """Texts that read a constant, by its number, or an operand of one result."""

    def constant(index: int) -> str:
        return f"c{index}[{channel}]"

    def operand(index: int, each_channel: bool) -> str:
        image = site.operands[index]
        place = image.index(batch, channel, "0" if each_channel else pixel)
        return load(f"o{index}", place, half=image.half)

    return constant, operand


class TiledProduct:
    """The kernel of a site; its tile is a group's."""

    def __init__(self, site: ProductSite, tile: Tile, parts: int) -> None:
        self.site, self.tile, self.parts = site, tile, parts
        self.operator = site.operator
        self.outs = self.operator.weight.shape[0] // self.operator.groups
        self.ins = int(self.operator.weight.shape[1])
        self.transposed = isinstance(self.operator, TransposedConvolution)
        self.phases = phase_count(self.operator)
        self.height, self.width = phase_size(self.operator, site.output)
        self.columns = site.output.batch * self.height * self.width
        self.flat = _is_flat(self.operator)
        self.depths = depths_of(self.operator)
        self.dtypes: dict[str, str] = {}

    # ------------------------------------------------ constants

    @property
    def padded(self) -> int:
        """Output channels of a group, up to whole tiles."""
        return groups(self.outs, self.tile.outs) * self.tile.outs

    def packed(self) -> np.ndarray:
        """Weights [phases x groups, depth, output channels], zeros where there are none."""
        made = np.zeros((self.phases, self.operator.groups, *self._packed_shape), "float32")
        for phase, weight in enumerate(self._phase_weights()):
            ordered = self._ordered(weight)
            made[phase, :, : ordered.shape[2], : self.outs] = ordered.swapaxes(1, 2)
        return _weights(self.site, made.reshape(-1, *self._packed_shape))

    @property
    def _packed_shape(self) -> tuple[int, int]:
        return self.depths * DEPTH, self.padded

    def _phase_weights(self) -> list[np.ndarray]:
        """The window of each phase, its taps in the order of the pixels that they read."""
        weight, operator = self.operator.weight, self.operator
        if not self.transposed:
            return [weight]
        (down, across), (rows, columns) = operator.stride, operator.kernel
        return [
            weight[:, :, (y + operator.before[0]) % down : rows : down][:, :, ::-1][
                ..., (x + operator.before[1]) % across : columns : across
            ][..., ::-1]
            for y in range(down)
            for x in range(across)
        ]

    def _ordered(self, weight: np.ndarray) -> np.ndarray:
        """Of a window [outs, ins, rows, columns]: [groups, output channels, depth]."""
        taps = weight.shape[2] * weight.shape[3]
        grouped = weight.reshape(self.operator.groups, self.outs, self.ins, taps)
        if self.flat:
            return grouped.reshape(self.operator.groups, self.outs, -1)
        depth = groups(self.ins, DEPTH) * DEPTH
        whole = np.zeros((self.operator.groups, self.outs, taps, depth), "float32")
        whole[..., : self.ins] = grouped.swapaxes(2, 3)
        return whole.reshape(self.operator.groups, self.outs, -1)

    def bias(self) -> np.ndarray:
        """One value for each output channel."""
        bias, count = self.operator.bias, self.outs * self.operator.groups
        return np.zeros(count, "float32") if bias is None else bias.astype("float32")

    # ------------------------------------------------ the kernel

    def kernel(self) -> tuple[DeviceKernel, tuple[np.ndarray, ...], str]:
        site, tile = self.site, self.tile
        constants = (self.packed(), self.bias(), *site.constants)
        inputs = ["x", *(["gate"] if self.operator.gated else [])]
        operands = [f"o{index}" for index in range(len(site.operands))]
        own = [f"c{index}" for index in range(len(site.constants))]
        names = [*inputs, *operands, "w", "bias", *own, "y"]
        tensors = argument_types(site, constants)
        if self.parts > 1:
            names.append("part")
            tensors.append(("float32", (self.parts * site.output.size,)))
        self.dtypes = {name: dtype for name, (dtype, _) in zip(names, tensors, strict=True)}
        read = [*inputs, "w", *([] if self.parts > 1 else ["bias", *operands, *own])]
        grid = (
            groups(self.columns, tile.columns),
            groups(self.outs, tile.outs),
            self.phases * self.operator.groups * self.parts,
        )
        launches = [
            Launch(
                function="@product",
                grid=grid,
                block=(tile.threads, 1, 1),
                args=tuple(map(names.index, [*read, "part" if self.parts > 1 else "y"])),
            )
        ]
        text = self.product(read)
        if self.parts > 1:
            added = ["part", "bias", *operands, *own]
            text += self._sum(added)
            launches.append(
                Launch(
                    function="@sum",
                    grid=(groups(site.output.size, 256), 1, 1),
                    block=(256, 1, 1),
                    args=tuple(map(names.index, [*added, "y"])),
                )
            )
        made = DeviceKernel.from_text(text, launches, tensors)
        shown = f"{tile.outs}x{tile.columns}" + (f", {self.parts} parts" if self.parts > 1 else "")
        return made, constants, shown

    def product(self, read: list[str]) -> str:
        """The text of the function that makes the sums."""
        tile = self.tile
        own_outs, own_columns = tile.own_outs, tile.own_columns
        across = tile.columns // own_columns
        weights4 = DEPTH * tile.outs // 4
        loads = DEPTH * tile.columns // tile.threads
        return f"""
KERNEL({tile.threads}) @product({self.arguments(read)}) {{
  SHARED float4 ws[2][{DEPTH}][{tile.outs // 4}];
  SHARED float4 xs[2][{DEPTH}][{tile.columns // 4}];
{self.begin()}
  float sum[{own_outs}][{own_columns}];
  {"HALF4_LOADED" if self._half_weights else "float4"} w4[{groups(weights4, tile.threads)}];
  {"HALF_LOADED" if self._waits else "float"} x1[{loads}];
#pragma unroll
  for (int i = 0; i < {own_outs}; ++i)
#pragma unroll
    for (int j = 0; j < {own_columns}; ++j) sum[i][j] = 0.0f;
  const int tm = t / {across}, tn = t % {across};
  for (int k = first; k <= last; ++k) {{
    if (k > first) {{
      const int b = (k - first - 1) & 1;
{self._store(weights4, loads)}
      BARRIER();
    }}
    if (k < last) {{
{self._load_weights(weights4)}
{self.load_pixels(loads)}
    }}
    if (k > first) {{
      const int b = (k - first - 1) & 1;
#pragma unroll
      for (int d = 0; d < {DEPTH}; ++d) {{
        float a[{own_outs}], c[{own_columns}];
{_read("a", "ws", "tm", own_outs, tile.outs)}
{_read("c", "xs", "tn", own_columns, tile.columns)}
#pragma unroll
        for (int i = 0; i < {own_outs}; ++i)
#pragma unroll
          for (int j = 0; j < {own_columns}; ++j) sum[i][j] = MULTIPLY_ADD(a[i], c[j], sum[i][j]);
      }}
    }}
  }}
{self.finish()}
}}
"""

    def arguments(self, read: list[str]) -> str:
        """The text of what a function reads, and of what it makes."""
        given = parameters(read, [self.dtypes[name] for name in read])
        result = "float" if self.parts > 1 else element(self.dtypes["y"])
        return f"{given}, GLOBAL {result}* RESTRICT y"

    def begin(self) -> str:
        """Declares which part of the product a thread has: the tile from row m0 and column n0 on,
        and the column and the row of K of the pixels that it reads."""
        tile = self.tile
        member = f"GROUP_Z / {self.parts}" if self.parts > 1 else "GROUP_Z"
        part = f"GROUP_Z % {self.parts}" if self.parts > 1 else "0"
        group = f"member % {self.operator.groups}" if self.transposed else "member"
        return f"""
  const int t = THREAD, member = {member}, part = {part}, g = {group};
  const int m0 = GROUP_Y * {tile.outs}, n0 = GROUP_X * {tile.columns};
  const int row = t / {tile.columns}, column = t % {tile.columns};
  const int n = n0 + column;
  const int inside = n < {self.columns};
{self._place()}
{self._range()}
"""

    def _place(self) -> str:
        """Where the windows of a thread's pixel begin."""
        site, operator = self.site, self.operator
        pixels = self.height * self.width
        lines = []
        if site.output.batch > 1:
            lines += [f"const int image = n / {pixels}, pixel = n % {pixels};"]
        else:
            lines += ["const int pixel = n;"]
        start = "0" if site.output.batch == 1 else f"image * {site.image.channels}"
        lines.append(f"const int channel0 = {start} + g * {self.ins};")
        if self.transposed:
            lines += self._phase()
        elif not _copies(site):
            lines += [
                f"const int top = pixel / {self.width} * {operator.stride[0]}"
                f" - {operator.before[0]};",
                f"const int left = pixel % {self.width} * {operator.stride[1]}"
                f" - {operator.before[1]};",
            ]
        return "\n".join("  " + line for line in lines)

    def _phase(self) -> list[str]:
        """Which phase it is (y_, x_), how much of the window it has, and where that begins."""
        operator = self.operator
        lines = [
            f"const int phase = member / {operator.groups};",
            f"const int y_ = phase / {operator.stride[1]}, x_ = phase % {operator.stride[1]};",
        ]
        ways = (
            (f"pixel / {self.width}", "top", "rows", "y_"),
            (f"pixel % {self.width}", "left", "columns", "x_"),
        )
        for axis, (place, start, taps, own) in enumerate(ways):
            stride, kernel = operator.stride[axis], operator.kernel[axis]
            lines += [
                f"const int {taps}0 = {own} + {operator.before[axis]};",
                f"const int {taps} = ({kernel - 1 + stride} - {taps}0 % {stride}) / {stride};",
                f"const int {start} = {place} + {taps}0 / {stride} + 1 - {taps};",
            ]
        return lines

    def _range(self) -> str:
        """Which tiles of K are a group's own: `first` to `last` (excluded)."""
        depths = str(self.depths)
        lines = []
        if not self._even:
            each = groups(self.ins, DEPTH)
            count = f"rows * columns * {each}"
            if self.flat:
                count = f"(rows * columns * {self.ins} + {DEPTH - 1}) / {DEPTH}"
            lines.append(f"const int depths = {count};")
            depths = "depths"
        share = f"({depths} + {self.parts - 1}) / {self.parts}" if self.parts > 1 else depths
        lines.append(f"const int share = {share}, first = part * share;")
        lines.append(f"const int last = first + share < {depths} ? first + share : {depths};")
        return "\n".join("  " + line for line in lines)

    @property
    def _half_weights(self) -> bool:
        return is_half(self.dtypes["w"])

    @property
    def _waits(self) -> bool:
        """Whether pixels are halves that become float32 only when they are needed."""
        return self.site.image.half and not self.operator.gated

    @property
    def _even(self) -> bool:
        """Whether all phases have as many taps."""
        operator = self.operator
        return not self.transposed or not any(np.mod(operator.kernel, operator.stride))

    def _load_weights(self, weights4: int) -> str:
        tile = self.tile
        lines = [
            f"const GLOBAL {element(self.dtypes['w'])}* from = w + ((INT64)member * "
            f"{self.depths * DEPTH} + k * {DEPTH}) * {self.padded} + m0;"
        ]
        four = "HALF4_AT(from, {})"
        if not self._half_weights:
            four = "((const GLOBAL float4*)from)[{}]"
        for index in range(groups(weights4, tile.threads)):
            at = f"(t + {index * tile.threads})"
            guard = f"if ({at} < {weights4}) " if (index + 1) * tile.threads > weights4 else ""
            place = f"{at} / {tile.outs // 4} * {self.padded // 4} + {at} % {tile.outs // 4}"
            lines.append(f"{guard}w4[{index}] = {four.format(place)};")
        return "\n".join("      " + line for line in lines)

    def load_pixels(self, loads: int) -> str:
        """Sets `x1` to what a thread reads of its own column's windows, for tile `k` of K."""
        tile, image = self.tile, self.site.image
        step = tile.threads // tile.columns
        lines = []
        rows, columns = map(str, _taps(self.operator)) if self._even else ("rows", "columns")
        taps = f"({rows} * {columns})"
        dilation = self.operator.dilation
        if not self.flat:
            depths = groups(self.ins, DEPTH)
            lines.append(f"const int c0 = k % {depths} * {DEPTH} + row;")
            if _copies(self.site):
                lines.append("const int here = pixel, seen = inside;")
            else:
                lines += [
                    f"const int tap = k / {depths};",
                    f"const int v = top + tap / {columns} * {dilation[0]};",
                    f"const int h = left + tap % {columns} * {dilation[1]};",
                    f"const int seen = inside & (v >= 0) & (v < {image.height})"
                    f" & (h >= 0) & (h < {image.width});",
                    f"const int here = v * {image.width} + h;",
                ]
        for index in range(loads):
            if self.flat:
                lines += [
                    f"{{ const int d = k * {DEPTH} + row + {index * step};",
                    f"  const int c = d / {taps}, tap = d % {taps};",
                    f"  const int v = top + tap / {columns} * {dilation[0]};",
                    f"  const int h = left + tap % {columns} * {dilation[1]};",
                    f"  const int seen = inside & (c < {self.ins}) & (v >= 0)"
                    f" & (v < {image.height}) & (h >= 0) & (h < {image.width});",
                ]
                place = f"(channel0 + c) * {image.pixels} + v * {image.width} + h"
                lines.append(f"  x1[{index}] = seen ? {self._pixel(place)} : {self._none}; }}")
                continue
            channel = f"(channel0 + c0 + {index * step})"
            place = image.index("0", channel, "here")
            if not image.rows:
                place = f"{channel} * {image.pixels} + here"
            whole = self.ins % DEPTH == 0
            seen = "seen" if whole else f"(seen & (c0 + {index * step} < {self.ins}))"
            lines.append(f"x1[{index}] = {seen} ? {self._pixel(place, channel)} : {self._none};")
        return "\n".join("      " + line for line in lines)

    def _pixel(self, place: str, channel: str = "") -> str:
        """What is kept of an image's element until it is stored for all threads."""
        if self._waits:
            return f"HALF_AT(x, {place})"
        value = load("x", place, half=self.site.image.half)
        if self.operator.gated:
            value += " * " + load("gate", channel, half=is_half(self.dtypes["gate"]))
        return value

    @property
    def _none(self) -> str:
        """A zero of that kind."""
        return "(HALF_LOADED)0" if self._waits else "0.0f"

    def _store(self, weights4: int, loads: int) -> str:
        tile = self.tile
        step = tile.threads // tile.columns
        lines = []
        for index in range(groups(weights4, tile.threads)):
            at = f"(t + {index * tile.threads})"
            guard = f"if ({at} < {weights4}) " if (index + 1) * tile.threads > weights4 else ""
            four = f"HALF4_VALUE(w4[{index}])" if self._half_weights else f"w4[{index}]"
            lines.append(
                f"{guard}ws[b][{at} / {tile.outs // 4}][{at} % {tile.outs // 4}] = {four};"
            )
        value = "HALF_VALUE(x1[{}])" if self._waits else "x1[{}]"
        lines += [
            f"((SHARED_POINTER float*)xs[b][row + {index * step}])[column] = {value.format(index)};"
            for index in range(loads)
        ]
        return "\n".join("      " + line for line in lines)

    def member(self, rows: str, columns: str) -> tuple[str, str, str]:
        """Which row and column of the group's tile a thread's own number `i` and `j` is, and the
        text of its sum; `rows` and `columns` number the threads."""
        tile = self.tile
        row = _member(rows, "i", tile.own_outs, tile.outs)
        return row, _member(columns, "j", tile.own_columns, tile.columns), "sum[i][j]"

    def finish(self) -> str:
        """Stores all sums of a thread."""
        site, tile, output = self.site, self.tile, self.site.output
        row, column, value = self.member("tm", "tn")
        channels = self.outs * self.operator.groups
        lines = [
            "#pragma unroll",
            f"  for (int i = 0; i < {tile.own_outs}; ++i) {{",
            f"    const int m = m0 + {row};",
            f"    if (m >= {self.outs}) continue;",
            f"    const int channel = g * {self.outs} + m;",
            "#pragma unroll",
            f"    for (int j = 0; j < {tile.own_columns}; ++j) {{",
            f"      const int at = n0 + {column};",
            f"      if (at >= {self.columns}) continue;",
        ]
        if self.transposed:
            lines.append(self._spread("at"))
        elif self.parts == 1:
            lines.append(_split_column(output, "at"))
        if self.parts > 1:
            place = f"image_ * {output.pixels} + pixel_" if output.batch > 1 else "pixel_"
            place = place if self.transposed else "at"
            columns = output.batch * output.pixels
            lines.append(
                f"      y[((INT64)part * {channels} + channel) * {columns} + {place}] = {value};"
            )
        else:
            constant, operand = read_epilogue(site, "image_", "channel", "pixel_")
            text, result = statements(site.expression, "e0", channel=constant, operand=operand)
            lines += [
                f"      const float e0 = {value} + bias[channel]; {text}",
                "      " + store_result(output, result),
            ]
        return "\n".join([*lines, "    }", "  }"])

    def _spread(self, at: str) -> str:
        """Declares the image and the pixel of the output that a column of a phase is, and leaves
        the loop where there is none."""
        output, stride = self.site.output, self.operator.stride
        pixels = self.height * self.width
        inner = at if output.batch == 1 else f"{at} % {pixels}"
        lines = [f"const int image_ = {at} / {pixels};"] if output.batch > 1 else []
        lines += [
            f"const int v_ = {inner} / {self.width} * {stride[0]} + y_;",
            f"const int h_ = {inner} % {self.width} * {stride[1]} + x_;",
        ]
        if output.height % stride[0] or output.width % stride[1]:
            lines.append(f"if (v_ >= {output.height} || h_ >= {output.width}) continue;")
        lines.append(f"const int pixel_ = v_ * {output.width} + h_;")
        return "\n".join("      " + line for line in lines)

    def _sum(self, read: list[str]) -> str:
        """Adds up the parts, and does the epilogue."""
        site, output = self.site, self.site.output
        columns = output.batch * output.pixels
        arguments = parameters(read, [self.dtypes[name] for name in read])
        constant, operand = read_epilogue(site, "image_", "channel", "pixel_")
        text, result = statements(site.expression, "e0", channel=constant, operand=operand)
        return f"""
KERNEL(256) @sum({arguments}, GLOBAL {element(output.dtype)}* RESTRICT y) {{
  const int i = GROUP_X * 256 + THREAD;
  if (i >= {output.size}) return;
  const int channel = i / {columns}, at = i % {columns};
  float sum = 0.0f;
  for (int p = 0; p < {self.parts}; ++p) sum += part[(INT64)p * {output.size} + i];
{_split_column(output, "at")}
  const float e0 = sum + bias[channel]; {text}
  {store_result(output, result)}
}}
"""


def _weights(site: ProductSite, values: np.ndarray) -> np.ndarray:
    return values.astype("float16") if site.half_weights else values


def store_result(output: PlainImage, result: str) -> str:
    """Stores one result in its place."""
    return store("y", output.index("image_", "channel", "pixel_"), result, half=output.half)


def argument_types(
    site: ProductSite, constants: Sequence[np.ndarray]
) -> list[tuple[str, tuple[int, ...]]]:
    """Types and shapes of a kernel's arguments: image, gate, operands, constants, output."""
    image = site.image
    gate = [(image.batch * image.channels,)] if site.operator.gated else []
    return [
        (image.dtype, (image.size,)),
        *(("float32", shape) for shape in gate),
        *((item.dtype, (item.size,)) for item in site.operands),
        *((str(values.dtype), tuple(values.shape)) for values in constants),
        (site.output.dtype, (site.output.size,)),
    ]


def _split_column(output: PlainImage, at: str) -> str:
    """Declares the image and the pixel that a column is."""
    if output.batch == 1:
        return f"      const int pixel_ = {at};"
    return f"      const int image_ = {at} / {output.pixels}, pixel_ = {at} % {output.pixels};"


def _member(thread: str, index: str, own: int, count: int) -> str:
    """Which of a tile's rows or columns is a thread's own number `index`: four in a row, and four
    more in the tile's other half."""
    if own == 8:
        return f"({index} / 4 * {count // 2} + {thread} * 4 + {index} % 4)"
    return f"({thread} * {own} + {index})"


def _read(name: str, shared: str, thread: str, own: int, count: int) -> str:
    """Reads a thread's own values of one depth, four at a time."""
    lines = []
    for index in range(own // 4):
        at = f"{index * count // 8} + {thread}" if own == 8 else thread
        lines.append(
            f"        {{ const float4 q = {shared}[b][d][{at}]; "
            + " ".join(f"{name}[{index * 4 + i}] = q.{axis};" for i, axis in enumerate("xyzw"))
            + " }"
        )
    return "\n".join(lines)


class FewPixels:
    """Each result is the sum of 32 threads: what takes time is reading the weights, once."""

    def __init__(self, site: ProductSite) -> None:
        self.site = site

    def kernel(self) -> tuple[DeviceKernel, tuple[np.ndarray, ...], str]:
        site, output, image = self.site, self.site.output, self.site.image
        operator = site.operator
        outs, ins = operator.weight.shape[:2]
        bias = np.zeros(outs, "float32") if operator.bias is None else operator.bias
        weight = _weights(site, np.ascontiguousarray(operator.weight.reshape(outs, ins)))
        constants = (weight, bias.astype("float32"), *site.constants)
        names = ["x", *(["gate"] if operator.gated else [])]
        names += [f"o{index}" for index in range(len(site.operands))]
        names += ["w", "bias", *(f"c{index}" for index in range(len(site.constants)))]
        tensors = argument_types(site, constants)
        count = output.batch * output.pixels
        constant, operand = read_epilogue(site, "image_", "channel", "pixel_")
        text, result = statements(site.expression, "e0", channel=constant, operand=operand)
        batch = f"n / {output.pixels}" if output.batch > 1 else "0"
        value = load("x", image.index(batch, "c", f"n % {output.pixels}"), half=image.half)
        if operator.gated:
            value += f" * gate[({batch}) * {ins} + c]"
        arguments = parameters(names, [dtype for dtype, _ in tensors[:-1]])
        factor = load("w", f"channel * {ins} + c", half=site.half_weights)
        body = f"""
KERNEL(128) @few({arguments}, GLOBAL {element(output.dtype)}* RESTRICT y) {{
  SHARED float sums[128];
  const int t = THREAD, lane = t % 32, channel = GROUP_X * 4 + t / 32;
  for (int n = 0; n < {count}; ++n) {{
    float sum = 0.0f;
    if (channel < {outs})
      for (int c = lane; c < {ins}; c += 32)
        sum = MULTIPLY_ADD({factor}, {value}, sum);
    sums[t] = sum;
    for (int reach = 16; reach > 0; reach /= 2) {{
      BARRIER();
      if (lane < reach) sums[t] += sums[t + reach];
    }}
    if (lane == 0 && channel < {outs}) {{
{_split_column(output, "n")}
      const float e0 = sums[t] + bias[channel]; {text}
      {store_result(output, result)}
    }}
    BARRIER();
  }}
}}
"""
        launch = Launch(
            function="@few",
            grid=(groups(outs, 4), 1, 1),
            block=(128, 1, 1),
            args=tuple(range(len(names) + 1)),
        )
        return DeviceKernel.from_text(body, [launch], tensors), constants, "few pixels"

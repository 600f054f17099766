"""The code of a tile of integers: products of 8 bits, added up in 32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np
from tvm import tirx

from edgepack.kernels.integer import Target
from edgepack.kernels.tiles import arm, micro, tile, tir
from edgepack.kernels.tiles.cpu import INT8_BLOCK, CpuModel
from edgepack.kernels.tiles.layout import Image
from edgepack.kernels.tiles.product.by_llvm import LlvmTiles
from edgepack.kernels.tiles.product.code import ProductTensors, TileAt
from edgepack.kernels.tiles.product.shape import Shape, pack_weights
from edgepack.kernels.tiles.requantise import Requantising
from edgepack.kernels.tiles.sums_end import SumsEnd

# Multiply-adds of vectors in the unrolled body of the reduction.
_UNROLLED = 64
# Registers that are no sums, one of so many: weights, inputs in every lane, what is loaded ahead.
# Of 32, 8 are 1 to 17 % faster than 4 on an Intel Xeon with AVX512-VNNI, and 11 or 16 no faster.
_OTHERS = 4
# Instructions to make 8 bits of a sum, and to enter a tile. Guesses.
_FINISH, _START = 8, 30


@dataclass(frozen=True, kw_only=True)
class DotProduct:
    """How `kr` products are added to each sum of a block at once.

    `add(sums, weights, spread(inputs))` is the new value of INT8_BLOCK sums (int32): `weights` is
    int8 [INT8_BLOCK * kr], `inputs` int8 [kr]. Inputs are `moved` so far up first, which the bias
    has to make up for; `spread_moved` is `spread` of inputs that were moved before, all at once. It
    is `cost` instructions for a vector of sums. With a `kernel` the whole tile is assembly, and
    this is what LLVM would do.
    """

    kr: int
    spread: Callable[[tirx.Expr], tirx.Expr]
    add: Callable[[tirx.Expr, tirx.Expr, tirx.Expr], tirx.Expr]
    moved: int = 0
    spread_moved: Callable[[tirx.Expr], tirx.Expr] | None = None
    cost: float = 1
    kernel: arm.IntegerKernel | None = None


# Of fewer input channels most of a register would be empty.
_FEWEST_IN_PAIRS = 8


def dot_product(cpu: CpuModel, channels: int, *, narrow: bool) -> DotProduct:
    """The best one for a CPU and sums over so many input channels; `narrow`: no weight is -128."""
    if cpu.isa != "x86":
        kernel = arm.integer_kernel(cpu, narrow=narrow and channels > _FEWEST_IN_PAIRS)
        kr = kernel.kr if kernel else 1
        return DotProduct(kr=kr, spread=_lane, add=_by_lane, kernel=kernel)
    if "vnni" in cpu.features:
        return DotProduct(kr=4, spread=_four, add=vpdpbusd, moved=128, spread_moved=_four_moved)
    wide = max(cpu.vector_bytes) if "avx512bw" in cpu.features else min(32, max(cpu.vector_bytes))
    return DotProduct(
        kr=2,
        spread=partial(_two, wide),
        add=partial(_pmaddwd, wide),
        cost=2,
    )


def _lane(value: tirx.Expr) -> tirx.Expr:
    return tir.cast(value, "int16")


def _by_lane(sums: tirx.Expr, weights: tirx.Expr, value: tirx.Expr) -> tirx.Expr:
    """Products of 16 bits by a lane, as ARM has them."""
    wide = tir.cast(tir.cast(weights, "int16"), "int32")
    return sums + wide * tir.spread(tir.cast(value, "int32"), INT8_BLOCK)


def _four(values: tirx.Expr) -> tirx.Expr:
    """Four bytes everywhere, unsigned and 128 more."""
    four = tirx.reinterpret("int32", values)
    flipped = tirx.bitwise_xor(four, tirx.IntImm("int32", -0x7F7F7F80))
    return tir.spread(flipped, INT8_BLOCK)


def _four_moved(values: tirx.Expr) -> tirx.Expr:
    """Four bytes everywhere, as memory has them: the load itself spreads them."""
    return tir.spread(tirx.reinterpret("int32", values), INT8_BLOCK)


def moved_image(source: Image, moved: Image, *, parallel: bool) -> tir.Stmt:
    """Writes all bytes of an image, its halo included, 128 more, which is another first bit."""
    planes, rows, columns, block = (int(extent) for extent in source.buffer.shape)

    def some(plane: tir.Expr, row: tir.Expr, column: tir.Expr, lanes: int) -> tir.Stmt:
        at = [plane, row, column, 0]
        flip = tir.spread(tirx.IntImm("int8", -128), lanes)
        value = tirx.bitwise_xor(tir.load(source.buffer, at, lanes), flip)
        return tir.store(moved.buffer, value, at, lanes)

    full, rest = divmod(columns, _AT_ONCE)

    def one_row(plane: tir.Expr, row: tir.Expr) -> tir.Stmt:
        return tir.sequence(
            tir.loop_of("some", full, lambda i: some(plane, row, i * _AT_ONCE, _AT_ONCE * block))
            if full
            else None,
            tir.loop_of("pixel", rest, lambda i: some(plane, row, full * _AT_ONCE + i, block))
            if rest
            else None,
        )

    return tir.loop_of(
        "plane",
        planes,
        lambda plane: tir.loop_of("row", rows, lambda row: one_row(plane, row)),
        parallel=parallel,
    )


# Pixels of 16 channels in the widest vector.
_AT_ONCE = 4


def vpdpbusd(sums: tirx.Expr, weights: tirx.Expr, values: tirx.Expr) -> tirx.Expr:
    """Four products of an unsigned and a signed byte."""
    return tirx.call_llvm_pure_intrin(
        f"int32x{INT8_BLOCK}",
        "llvm.x86.avx512.vpdpbusd.512",
        sums,
        tirx.reinterpret(f"int8x{4 * INT8_BLOCK}", values),
        weights,
    )


_PMADDWD = {64: "avx512.pmaddw.d.512", 32: "avx2.pmadd.wd", 16: "sse2.pmadd.wd"}


def _two(nbytes: int, values: tirx.Expr) -> tirx.Expr:
    """Two numbers of 16 bits everywhere."""
    two = tirx.reinterpret("int32", tir.cast(values, "int16"))
    return tir.spread(two, nbytes // 4)


def _pmaddwd(nbytes: int, sums: tirx.Expr, weights: tirx.Expr, values: tirx.Expr) -> tirx.Expr:
    """Two products of 16 bits, by vectors of so many bytes."""
    pairs = tirx.reinterpret(f"int16x{nbytes // 2}", values)
    wide = tir.cast(weights, "int16")
    parts = [
        tirx.call_llvm_pure_intrin(
            f"int32x{nbytes // 4}", f"llvm.x86.{_PMADDWD[nbytes]}", part, pairs
        )
        for part in tir.pieces(wide, nbytes // 2)
    ]
    return sums + tir.join_vectors(parts)


def pack_integers(weight: np.ndarray, shape: Shape, vectors: int, dot: DotProduct) -> np.ndarray:
    """`pack_weights` for tiles of a `DotProduct`."""
    if dot.kernel is not None:
        parts = shape.lanes // dot.kernel.outs
        shape = replace(shape, lanes=dot.kernel.outs, out_blocks=shape.out_blocks * parts)
    return pack_weights(weight, shape, vectors)


def choose_integer_tile(
    *, width: int, rows: int, blocks: int, reduction: int, cpu: CpuModel, dot: DotProduct
) -> tile.RegisterTile:
    """The tile of least instructions for `rows` rows of `width` pixels and `blocks` blocks.

    `reduction` is the number of products per sum.
    """
    each = -(-4 * INT8_BLOCK // max(cpu.vector_bytes))  # registers for the sums of a block
    kernel = dot.kernel

    def cost(pixels: int, vectors: int) -> float:
        if kernel is not None:
            return kernel.instructions(pixels, reduction)
        sums = pixels * vectors * each
        step = sums * dot.cost + vectors * each + pixels
        return reduction / dot.kr * step + sums * _FINISH + _START

    candidates = []
    for vectors in range(1, min(1 if kernel else 4, blocks) + 1):
        for pixels in range(1, min(kernel.pixels if kernel else 16, width) + 1):
            held = 1 if kernel else pixels * vectors * each + cpu.registers // _OTHERS
            if held > cpu.registers and pixels * vectors > 1:
                continue
            cycles = rows * sum(
                many * panels * cost(size, part)
                for size, many in tile.parts(width, pixels)
                for part, panels in tile.parts(blocks, vectors)
            )
            candidates.append(tile.RegisterTile(pixels=pixels, vectors=vectors, cycles=cycles))
    return min(candidates, key=lambda candidate: candidate.cycles)


# Of sums that stay as they are.
_NOWHERE = Target(zero=0, low=-128, high=127)


class _TilesOfSums(LlvmTiles):
    """Tiles of sums of int32, in assembly or by a `DotProduct`; see `TileCode`."""

    def __init__(self, tensors: ProductTensors, pixels: int, dot: DotProduct) -> None:
        super().__init__(tensors, pixels)
        self.dot = dot
        self.functions = micro.AssemblyFunctions()

    def imported(self, body: tir.Stmt) -> tir.Stmt:
        """`body` with the functions that its tiles call."""
        return self.functions.imported(body)

    def _in_assembly(
        self,
        place: TileAt,
        kernel: arm.IntegerKernel,
        target: Callable[[tir.Expr], micro.Pointer],
        factor: tirx.Buffer | None,
        to: Target,
        width: int = arm.ANY_WIDTH,
    ) -> tir.Stmt:
        """As many calls as it takes for a block; `target` is where channels from one on go. Without
        a factor sums stay as they are."""
        shape, window, source = self.shape, self.tensors.window, self.source
        whole = shape.last_lanes == shape.in_block or kernel.narrow
        code = arm.IntegerTile(
            kernel=kernel,
            pixels=place.pixels,
            to=to,
            blocks=shape.in_blocks - (not whole),
            last_lanes=0 if whole else shape.last_lanes,
            window=shape.kernel,
            pixel_step=source.pixel_bytes * window.stride[1],
            column_step=source.pixel_bytes * window.dilation[1],
            row_step=source.row_bytes * window.dilation[0],
            plane_step=source.plane_bytes,
            width=width,
            raw=factor is None,
        )

        def call(part: tir.Expr) -> tir.Stmt:
            channel = place.channel_block * INT8_BLOCK + part * kernel.outs
            corner = self.tensors.input(place, 0, 0, 0)
            pointers: list[micro.Pointer] = [
                target(part * kernel.outs),
                (source.buffer, source.at(place.in_plane, *corner)),
                (self.weights, [place.weights + part * (shape.reduction * kernel.outs)]),
                (self.bias, [channel]),
            ]
            if factor is not None:
                pointers.append((factor, [channel]))
            return self.functions.call(code, pointers)

        return tir.loop_of("part", INT8_BLOCK // (kernel.outs * code.parts), call)

    def _on_the_stack(self, place: TileAt, kernel: arm.IntegerKernel) -> tuple[tir.Local, tir.Stmt]:
        """A place on the stack for the sums of a tile, and the assembly that leaves them there."""
        sums = self._stored(place)

        def target(channel: tir.Expr) -> micro.Pointer:
            return sums.buffer, [tir.expr(channel)]

        return sums, self._in_assembly(place, kernel, target, None, _NOWHERE)

    def _stored(self, place: TileAt) -> tir.Local:
        """A place on the stack for the sums of a tile."""
        return tir.Local("sums", INT8_BLOCK, "int32", count=place.pixels * place.vectors)

    def _reduce(
        self, place: TileAt, accumulators: list[list[tir.Local]], block: tir.Expr, channels: int
    ) -> tir.Stmt:
        """Add what one block of input channels contributes."""
        shape, kr = self.shape, self.dot.kr
        rows, columns = shape.kernel
        count = -(-channels // kr)
        wide = place.vectors * shape.lanes * kr
        most = max(1, _UNROLLED // (place.pixels * place.vectors))
        together = max(part for part in range(1, count + 1) if count % part == 0 and part <= most)
        start = place.weights + block * (prod(shape.kernel) * shape.in_block * wide // kr)

        def step(names: tir.Names, row: tir.Expr, column: tir.Expr, index: tir.Expr) -> None:
            at = start + ((row * columns + column) * count + index) * wide
            size = shape.lanes * kr
            weights = [
                names.keep("w", tir.load(self.weights, [at + v * size], size))
                for v in range(place.vectors)
            ]
            for r in range(place.pixels):
                pixel = self.tensors.input(place, r, row, column)
                at = self.source.at(place.in_plane + block, *pixel, index * kr)
                value = names.keep("x", self.dot.spread(tir.load(self.source.buffer, at, kr)))
                for v in range(place.vectors):
                    total = accumulators[r][v]
                    names.add(total.set(self.dot.add(total.get(), weights[v], value)))

        def some(row: tir.Expr, column: tir.Expr, part: tir.Expr) -> tir.Stmt:
            names = tir.Names()
            for i in range(together):
                step(names, row, column, part * together + i)
            return names.done()

        return tir.loop_of(
            "window_row",
            rows,
            lambda row: tir.loop_of(
                "window_column",
                columns,
                lambda column: tir.loop_of(
                    "part", count // together, lambda part: some(row, column, part)
                ),
            ),
        )


class IntegerTiles(_TilesOfSums):
    """Tiles whose sums are made 8 bits."""

    def __init__(
        self, tensors: ProductTensors, pixels: int, dot: DotProduct, epilogue: Requantising
    ) -> None:
        super().__init__(tensors, pixels, dot)
        self.to, self.end = epilogue.to, epilogue
        self.width = arm.width_of(epilogue.largest)
        self.factor = epilogue.constants[0]

    def tile(self, place: TileAt) -> tir.Stmt:
        """One tile."""
        if self.dot.kernel is None:
            return super().tile(place)
        if self.target.step[1] != 1:
            # Assembly stores pixels side by side.
            sums, made = self._on_the_stack(place, self.dot.kernel)
            return tir.sequence(sums.declare(), made, self._from_stack(place, sums))

        def target(channel: tir.Expr) -> micro.Pointer:
            at = self.target.at(place.plane, place.row, place.column, channel)
            return self.target.buffer, at

        return self._in_assembly(
            place, self.dot.kernel, target, self.factor, self.to, width=self.width
        )

    def _from_stack(self, place: TileAt, sums: tir.Local) -> tir.Stmt:
        def pixel(r: tir.Expr) -> tir.Stmt:
            names = tir.Names()
            value = names.bind("sum", sums.get(r))
            at = place.plane, place.row, place.column + r
            self.end.store(names, self.target, [value], *at, channel_block=place.channel_block)
            return names.done()

        return tir.loop_of("pixel", place.pixels, pixel)

    def _finish(self, names: tir.Names, place: TileAt, sums: list[list[tirx.Expr]]) -> None:
        """Results of sums, stored: of each block neighbouring pixels."""
        for v in range(place.vectors):
            self.end.store(
                names,
                self.target,
                [sums[r][v] for r in range(place.pixels)],
                place.plane + v,
                place.row,
                place.column,
                channel_block=place.channel_block + v,
            )


class SummedTiles(_TilesOfSums):
    """Tiles whose sums are made numbers, or stay int32."""

    def __init__(
        self, tensors: ProductTensors, pixels: int, dot: DotProduct, epilogue: SumsEnd
    ) -> None:
        super().__init__(tensors, pixels, dot)
        self.end = epilogue

    def tile(self, place: TileAt) -> tir.Stmt:
        """One tile; what assembly leaves is made numbers behind it."""
        if self.dot.kernel is None:
            return super().tile(place)
        sums, made = self._on_the_stack(place, self.dot.kernel)
        return tir.sequence(sums.declare(), made, self._from_stored(place, sums))

    def _finish(self, names: tir.Names, place: TileAt, sums: list[list[tirx.Expr]]) -> None:
        """Results of sums, stored; long arithmetic is a loop over what is stored before."""
        places = [(r, v) for r in range(place.pixels) for v in range(place.vectors)]
        if not self.end.is_long:
            for r, v in places:
                at = place.plane + v, place.row, place.column + r
                self.end.finish(names, self.target, sums[r][v], *at)
            return
        stored = self._stored(place)
        names.add(stored.declare())
        for r, v in places:
            names.add(stored.set(sums[r][v], r * place.vectors + v))
        names.add(self._from_stored(place, stored))

    def _from_stored(self, place: TileAt, sums: tir.Local) -> tir.Stmt:
        def one(r: tir.Expr, v: int) -> tir.Stmt:
            names = tir.Names()
            value = names.bind("sum", sums.get(r * place.vectors + v))
            at = place.plane + v, place.row, place.column + r
            self.end.finish(names, self.target, value, *at)
            return names.done()

        def pixel(r: tir.Expr) -> tir.Stmt:
            every = tir.sequence(*(one(r, v) for v in range(place.vectors)))
            return tir.not_unrolled(every) if self.end.is_long else every

        return tir.loop_of("pixel", place.pixels, pixel)

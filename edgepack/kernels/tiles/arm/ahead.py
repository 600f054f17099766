"""Products whose operands are loaded while those before are multiplied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgepack.kernels.tiles.arm.writer import Writer

# Of fewer pixels whole blocks are loaded early enough to be better.
_FEWEST_PAIRED = 7
# Of so few products of a lane others come too late if they are loaded behind all of them.
_SHORT_LANE = 8
# Multiply-adds of a turn that are enough to hide loads behind, and blocks that are enough code.
_LONG_TURN = 256
_MOST_BLOCKS = 8


def input_registers(pixels: int, *, pairs_pixels: bool) -> int:
    """Registers for the inputs of so many pixels."""
    return -(-pixels // 2) if pairs_pixels and pixels >= _FEWEST_PAIRED else pixels


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """Products, (vector, pixel) of each, and what is done with behind them: the inputs of a group
    of pixels, and weights by their vector."""

    products: Sequence[tuple[int, int]]
    inputs: int | None = None
    weights: Sequence[int] = ()


class LoadsAhead:
    """Blocks of input channels, times weights that are read front to back.

    `lanes` of each block count. The inputs of the R pixels are the lowest registers, each loaded
    for the next time as soon as it is done with; those between them and the accumulators are a ring
    of weights. The source is where inputs are loaded from next.

    Where a writer has `pairs_pixels`, a register holds half a block of two pixels, unless they are
    few: as many loads, and half the registers.
    """

    def __init__(self, writer: Writer, *, pixel_step: int, lanes: range) -> None:
        self.writer, self.pixel_step = writer, pixel_step
        self.vectors, self.pixels = len(writer.accumulators), len(writer.accumulators[0])
        held = input_registers(self.pixels, pairs_pixels=writer.pairs_pixels)
        self.each = 1 if held == self.pixels else 2
        self.groups = [
            range(first, min(first + self.each, self.pixels))
            for first in range(0, self.pixels, self.each)
        ]
        self.inputs, self.whole_ring = writer.free[:held], writer.free[held:]
        self.together = writer.isa.lanes // self.each  # lanes of a pixel in a register
        parts = (
            [lane for lane in lanes if lane // self.together == part] for part in range(self.each)
        )
        self.parts = [part for part in parts if part]
        self.weights = len(lanes) * self.vectors  # of a block
        self.ring = self.whole_ring
        self.used = self.moved = 0

    def loop(self, name: str, count: int, steps: Sequence[int]) -> None:
        """`count` turns of a block for each of the `steps`: what is behind it, and where inputs
        are loaded from next, lies so many bytes further."""
        # What is loaded last in a turn has little left to hide behind.
        times, work = 1, self.weights * self.pixels
        while len(steps) == 1 and times < _MOST_BLOCKS and times * work < _LONG_TURN:
            times *= 2
        times = min(times, count)
        turns, rest = divmod(count - 1, times)
        # A turn leaves the ring as it was.
        needed = self.weights * len(steps) * times if turns > 1 else 0
        sizes = range(1, min(len(self.whole_ring), self.weights) + 1)
        self.ring = self.whole_ring[: max(size for size in sizes if needed % size == 0)]
        self.used = 0

        def turn() -> None:
            for step in (*steps,) * times:
                self.block(step)

        self._start()
        # What is in no turn comes first: sums begin there, where they need not be zero before.
        for step in (*steps,) * rest:
            self.block(step)
        self.writer.loop(name, turns, turn)
        for step in steps[:-1]:
            self.block(step)
        self.block(None)
        # As far as if the next block had been loaded.
        self.writer.add("source", steps[-1])

    def _start(self) -> None:
        """Load what comes first."""
        with self.writer.apart_from_products():
            for group in range(len(self.groups)):
                self._load_inputs(group, self.parts[0])
        for index in range(len(self.ring)):
            self._load_weights(index)

    def block(self, step: int | None) -> None:
        """Multiply a block. The next one lies `step` bytes further; None: there is none."""
        end = self.used + self.weights
        for index, part in enumerate(self.parts):
            following = self.parts[(index + 1) % len(self.parts)]
            more = step is not None or index + 1 < len(self.parts)
            if step is not None and index + 1 == len(self.parts):
                self.writer.add("source", step)
            for lane in part:
                for piece in self._pieces(last=lane == part[-1]):
                    for v, r in piece.products:
                        self._multiply(lane, v, r)
                    if more and piece.inputs is not None:
                        self._load_inputs(piece.inputs, following)
                    for v in piece.weights:
                        at = self.used + v + len(self.ring)
                        if step is not None or at < end:
                            self._load_weights(at)
                self.used += self.vectors

    def _pieces(self, *, last: bool) -> Iterator[_Piece]:
        """A lane's products, vector by vector. With the `last` lane inputs are done with one after
        the other: earlier if all vectors of a group of pixels follow each other."""
        vectors, pixels = range(self.vectors), range(self.pixels)
        by_vectors = vectors if not last else vectors[:-1]
        if (
            last
            and len(self.groups) > 1
            and self.vectors < len(self.ring)
            and self.pixels * self.vectors > _SHORT_LANE
        ):
            by_vectors = range(0)
        for v in by_vectors:
            yield _Piece(products=[(v, r) for r in pixels], weights=[v])
        if last:
            others = vectors[len(by_vectors) :]
            for index, group in enumerate(self.groups):
                yield _Piece(products=[(v, r) for r in group for v in others], inputs=index)
            yield _Piece(products=[], weights=others)

    def _multiply(self, lane: int, v: int, r: int) -> None:
        vector = self.ring[(self.used + v) % len(self.ring)]
        at = self.together * (r % self.each) + lane % self.together
        total = self.writer.accumulators[v][r]
        self.writer.add_product_lane(total, vector, self.inputs[r // self.each], at)

    def _load_weights(self, index: int) -> None:
        self.writer.load([self.ring[index % len(self.ring)]], "weights", advance=True)

    def _load_inputs(self, group: int, part: Sequence[int]) -> None:
        writer, step = self.writer, self.pixel_step
        if self.each == 1:
            self.moved += writer.move_strided(
                "ld", self.inputs[group], "source", step=step, index=group, count=self.pixels
            )
            if group == self.pixels - 1:
                writer.add("source", -self.moved)
                self.moved = 0
            return
        at = writer.isa.element.bytes * (part[0] // self.together) * self.together
        writer.load_halves(
            self.inputs[group], "source", [step * r + at for r in self.groups[group]]
        )

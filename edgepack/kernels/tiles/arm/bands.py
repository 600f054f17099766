"""Bands of rows of a depthwise convolution, for cores where a load takes the place of arithmetic.

Strips of a few pixels go down a band. Each input is loaded once, and multiplied with all the rows
of a window that are over it, for sums of as many rows of results. A row that got its last product
is finished and stored while the next one is multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from edgepack.kernels.tiles.arm.isa import QUAD, Isa
from edgepack.kernels.tiles.arm.tile import EpilogueStep
from edgepack.kernels.tiles.arm.writer import Writer
from edgepack.kernels.tiles.arm.writers import writer_of

# Registers for inputs, at least.
_FEWEST_INPUTS = 5
# Fewer turns than that are no loop.
_FEWEST_TURNS = 2


@dataclass(frozen=True, kw_only=True)
class DepthwiseBand:
    """`rows` rows of `width` results of a block of channels.

    The window of the first row has no rows `above` so many, that of the last one none `below`.
    Steps are bytes from one row to the next. `finish` is all but sums with an operand.
    """

    isa: Isa
    kernel: tuple[int, int]
    stride: int
    width: int
    rows: int
    above: int
    below: int
    row_step: int
    target_step: int
    finish: tuple[EpilogueStep, ...]

    @classmethod
    def most_pixels(
        cls, isa: Isa, kernel: tuple[int, int], stride: int, finish: tuple[EpilogueStep, ...]
    ) -> int:
        """Pixels of the widest strip; 0: there is no room for any, or no need."""
        adds = any(item.name == "add" for item in finish)
        if not isa.core or isa.name != "aarch64" or adds or kernel[0] <= stride:
            return 0
        held = kernel[0] * kernel[1] + 1 + len(finish)
        return max(0, isa.registers - held - _FEWEST_INPUTS) // -(-kernel[0] // stride)

    def llvm_ir(self, name: str) -> str:
        """An LLVM function `name` of pointers: target, source, weights, bias."""
        writer = writer_of(self.isa, ("target", "source", "weights", "bias"))
        points = self.kernel[0] * self.kernel[1]
        weights, (bias, *rest) = writer.free[:points], writer.free[points:]
        bounds = list(zip(self.finish, rest, strict=False))
        writer.load(weights, "weights", advance=False)
        writer.load([bias], "bias", advance=False)
        for item, register in bounds:
            writer.set_vector(register, item.value)
        free = rest[len(bounds) :]
        for pixels, count in self._strips():
            strip = _Strip(self, writer, pixels, weights, bias, bounds, free)
            writer.loop("strip", count, strip.write)
        return writer.llvm_ir(name)

    def _strips(self) -> Iterator[tuple[int, int]]:
        """Pixels of strips, and how many there are: as equal as can be."""
        most = self.most_pixels(self.isa, self.kernel, self.stride, self.finish)
        count = -(-self.width // most)
        narrow, wider = divmod(self.width, count)
        if wider:
            yield narrow + 1, wider
        yield narrow, count - wider


class _Strip:
    """The code of one strip: a step for each row of inputs."""

    def __init__(
        self,
        band: DepthwiseBand,
        writer: Writer,
        pixels: int,
        weights: list[int],
        bias: int,
        bounds: list[tuple[EpilogueStep, int]],
        free: list[int],
    ) -> None:
        self.band, self.writer, self.pixels = band, writer, pixels
        self.weights, self.bias, self.bounds = weights, bias, bounds
        taps, stride = band.kernel[0], band.stride
        rows = -(-taps // stride)  # of results underway
        self.sums = [free[len(free) - pixels * (r + 1) :][:pixels] for r in range(rows)]
        self.inputs = (pixels - 1) * stride + band.kernel[1]
        # Steps until the same registers have the same part.
        self.period = rows * stride
        left = free[: len(free) - pixels * rows]
        # A turn leaves the ring as it was. Of the steps ahead only the next one's are loaded.
        most = min(len(left), self.inputs)
        size = max(n for n in range(1, most + 1) if self.period * self.inputs % n == 0)
        self.ring = left[:size]
        self.steps = (band.rows - 1) * stride + taps - band.above - band.below
        # Of each row of results the steps of its products.
        tops = [row * stride - band.above for row in range(band.rows)]
        self.spans = [range(max(0, top), min(top + taps, self.steps)) for top in tops]

    def write(self) -> None:
        """Write it; the pointers are at the next strip behind it."""
        writer, band = self.writer, self.band
        for x in range(len(self.ring)):
            self._load(0, x, 0)
        first, turns = self._repeated()
        if turns >= _FEWEST_TURNS:
            self._some(range(first))
            writer.loop("step", turns, lambda: self._some(range(first, first + self.period)))
            first += turns * self.period
        else:
            first = 0
        self._some(range(first, self.steps))
        self._finish(self.steps)
        writer.add("source", QUAD * self.pixels * band.stride - self.steps * band.row_step)
        writer.add("target", QUAD * self.pixels - band.rows * band.target_step)

    def _some(self, steps: range) -> None:
        for step in steps:
            self._step(step)

    def _products(self, step: int) -> list[tuple[int, int]]:
        """(row of results, row of the window) of a step's inputs, oldest first."""
        at, stride = step + self.band.above, self.band.stride
        return [(row, at - row * stride) for row, span in enumerate(self.spans) if step in span]

    def _begun(self, step: int) -> list[int]:
        """The rows that a step is the first one of."""
        return [row for row, span in enumerate(self.spans) if span.start == step]

    def _ended(self, step: int) -> list[int]:
        """The rows that the step before was the last one of."""
        return [row for row, span in enumerate(self.spans) if span.stop == step]

    def _repeated(self) -> tuple[int, int]:
        """From which step on how many turns of a period are alike; the last step is in none."""

        def key(step: int) -> object:
            first = step // self.band.stride
            rows = (self._begun(step), self._ended(step))
            products = [(row - first, tap) for row, tap in self._products(step)]
            return products, [[row - first for row in some] for some in rows]

        last = self.steps - 1
        for first in range(last):
            end = first
            while end + self.period < last and key(end) == key(end + self.period):
                end += 1
            if end > first:
                return first, (end - first + self.period) // self.period
        return 0, 0

    def _load(self, step: int, x: int, from_step: int) -> None:
        """Load an input; the pointer is at those of `from_step`."""
        position = step * self.inputs + x
        first = (step - from_step) * self.band.row_step // QUAD + x
        self.writer.load(
            [self.ring[position % len(self.ring)]], "source", advance=False, first=first
        )

    def _step(self, step: int) -> None:
        writer, band = self.writer, self.band
        self._finish(step)
        begun = self._begun(step)
        for x in range(self.inputs):
            position = step * self.inputs + x
            vector = self.ring[position % len(self.ring)]
            for row, tap in self._products(step):
                sums = self.sums[row % len(self.sums)]
                for column in range(band.kernel[1]):
                    pixel, between = divmod(x - column, band.stride)
                    if between or not 0 <= pixel < self.pixels:
                        continue
                    if row in begun and column == 0:
                        writer.move(sums[pixel], self.bias)
                    weight = self.weights[tap * band.kernel[1] + column]
                    writer.multiply_add(sums[pixel], vector, weight)
            following, at = divmod(position + len(self.ring), self.inputs)
            if following < self.steps:
                self._load(following, at, step)
        writer.add("source", band.row_step)

    def _finish(self, step: int) -> None:
        """Finish and store what the step before was the last one of."""
        for row in self._ended(step):
            sums = self.sums[row % len(self.sums)]
            for item, register in self.bounds:
                for total in sums:
                    self.writer.binary(item.name, total, total, register)
            self.writer.store(sums, "target")
            self.writer.add("target", self.band.target_step)

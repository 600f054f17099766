"""Values of an image at computed places: where a place is, and the weights of the pixels around it,
are found out once for all channels, which lie side by side."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tvm import tirx

from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT32
from edgepack.kernels.whole import kernel

# Arithmetic operations of a place, about: with them cores are worth waking.
_OF_A_PLACE = 40
_WORTH_SHARING = 1 << 15

# Row and column of a pixel, and its weight.
_Tap: TypeAlias = tuple[list[tirx.Expr], tirx.Expr | None]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """GridSample of an image, float32, with channels innermost.

    `mode` is "linear" or "nearest", `padding` "zeros", "border" or "reflection"; with
    `align_corners` -1 and 1 are the middles of the outermost pixels, else their outer edges.
    """

    batch: int
    channels: int
    height: int
    width: int
    places: int
    mode: str
    padding: str
    align_corners: bool
    cpu: CpuModel

    @property
    def result(self) -> tuple[int, ...]:
        """The shape of the result: by image, place and channel."""
        return (self.batch, self.places, self.channels)

    def function(self) -> tirx.PrimFunc:
        """The kernel. Arguments: image [batch, height, width, channels], places [batch, places,
        2], column first, and the result."""
        image = tir.buffer("image", (self.batch, self.height, self.width, self.channels), "float32")
        places = tir.buffer("places", (self.batch, self.places, 2), "float32")
        result = tir.buffer("result", self.result, "float32")
        body = _Places(self, image, places, result)
        # Places, not images: from the number of both together no image follows that is proven to be
        # inside.
        work = self.places * (_OF_A_PLACE + 4 * self.channels)
        shared = self.cpu.cores > 1 and work >= _WORTH_SHARING

        def each(image: tir.Expr) -> tir.Stmt:
            return tir.loop_of(
                "place", self.places, lambda at: body.place(image, at), parallel=shared
            )

        return kernel([image, places], [result], tir.loop_of("image", self.batch, each))


@dataclass(frozen=True, kw_only=True)
class DeformedColumns:
    """What the moved taps of a DeformConv see, float32, with channels innermost.

    `results`, `kernel`, `strides`, `pads` (those at the beginning) and `dilations` are of rows and
    columns. `moved` groups of channels have offsets of their own, `groups` of them weights of their
    own; with `masked` each tap has a factor.
    """

    batch: int
    channels: int
    height: int
    width: int
    results: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int]
    dilations: tuple[int, int]
    groups: int
    moved: int
    masked: bool
    cpu: CpuModel

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    @property
    def places(self) -> int:
        return math.prod(self.results)

    @property
    def run(self) -> int:
        """How many channels side by side have both groups in common."""
        return math.gcd(self.channels // self.groups, self.channels // self.moved)

    @property
    def result(self) -> tuple[int, ...]:
        """The shape of the result: by image, group of weights, place, tap and channel."""
        return (self.batch, self.groups, self.places, self.taps, self.channels // self.groups)

    def function(self) -> tirx.PrimFunc:
        """The kernel. Arguments: image [batch, height, width, channels], offsets [batch, moved,
        taps, 2, places], row first, with a mask [batch, moved, taps, places], and the result."""
        image = tir.buffer("image", (self.batch, self.height, self.width, self.channels), "float32")
        offsets = tir.buffer(
            "offsets", (self.batch, self.moved, self.taps, 2, self.places), "float32"
        )
        mask = tir.buffer("mask", (self.batch, self.moved, self.taps, self.places), "float32")
        result = tir.buffer("result", self.result, "float32")
        body = _Taps(self, image, offsets, mask if self.masked else None, result)
        work = self.places * self.taps * (self.moved * _OF_A_PLACE + 8 * self.channels)
        shared = self.cpu.cores > 1 and work >= _WORTH_SHARING

        def rows(n: tir.Expr) -> tir.Stmt:
            return tir.loop_of("row", self.results[0], lambda row: columns(n, row), parallel=shared)

        def columns(n: tir.Expr, row: tir.Expr) -> tir.Stmt:
            return tir.loop_of("column", self.results[1], lambda at: groups(n, (row, at)))

        def groups(n: tir.Expr, place: Sequence[tir.Expr]) -> tir.Stmt:
            return tir.loop_of("moved", self.moved, lambda moved: tap_rows(n, place, moved))

        def tap_rows(n: tir.Expr, place: Sequence[tir.Expr], moved: tir.Expr) -> tir.Stmt:
            return tir.loop_of(
                "tap_row",
                self.kernel[0],
                lambda down: tir.loop_of(
                    "tap_column",
                    self.kernel[1],
                    lambda across: body.tap(n, place, moved, (down, across)),
                ),
            )

        inputs = [image, offsets, *([mask] if self.masked else [])]
        return kernel(inputs, [result], tir.loop_of("image", self.batch, rows))


@dataclass(frozen=True)
class _Taps:
    of: DeformedColumns
    image: tirx.Buffer
    offsets: tirx.Buffer
    mask: tirx.Buffer | None
    result: tirx.Buffer

    def tap(
        self,
        n: tir.Expr,
        place: Sequence[tir.Expr],
        moved: tir.Expr,
        tap: Sequence[tir.Expr],
    ) -> tir.Stmt:
        """All channels of a group that one tap sees, for one result."""
        of, names = self.of, tir.Names()
        number = place[0] * of.results[1] + place[1]
        which = tap[0] * of.kernel[1] + tap[1]
        sizes = (of.height, of.width)
        pixels = []
        for axis, size in enumerate(sizes):
            start = place[axis] * of.strides[axis] - of.pads[axis] + tap[axis] * of.dilations[axis]
            offset = tir.load(self.offsets, [n, moved, which, axis, number])
            at = names.bind("at", tirx.Cast("float32", start) + offset)
            # Beside the image are zeros, however far; no number stays none (see `_Places.pixel`).
            least, most = (tirx.const(end, "float32") for end in (-2.0, size + 1.0))
            pixels.append(names.bind("pixel", tirx.max(least, tirx.min(most, at))))
        taps, insides = _around(names, pixels, sizes)
        factor = None
        if self.mask is not None:
            factor = names.bind("factor", tir.load(self.mask, [n, moved, which, number]))
        shared, each = of.channels // of.moved, of.channels // of.groups

        def run(piece: tir.Expr, *, inside: bool) -> tir.Stmt:
            first = moved * shared + piece * of.run

            def vector(start: tir.Expr, lanes: int) -> tir.Stmt:
                names = tir.Names()
                total = _sum_of(
                    names, self.image, n, taps, None if inside else insides, first + start, lanes
                )
                if factor is not None:
                    total = total * tir.spread(factor, lanes)
                group, channel = first // each, first % each + start
                names.add(tir.store(self.result, total, [n, group, number, which, channel], lanes))
                return names.done()

            return _in_vectors(of.run, of.cpu, vector)

        def runs(*, inside: bool) -> tir.Stmt:
            return tir.loop_of("piece", shared // of.run, lambda at: run(at, inside=inside))

        whole = tirx.And(tirx.And(insides[0], insides[1]), tirx.And(insides[2], insides[3]))
        names.add(tirx.IfThenElse(whole, runs(inside=True), runs(inside=False)))
        return names.done()


@dataclass(frozen=True)
class _Places:
    of: Sampling
    image: tirx.Buffer
    places: tirx.Buffer
    result: tirx.Buffer

    def place(self, image: tir.Expr, place: tir.Expr) -> tir.Stmt:
        """All channels of one result."""
        names = tir.Names()
        at = (image, place)
        sizes = (self.of.width, self.of.height)
        x, y = (
            names.bind(name, self.pixel(names, tir.load(self.places, [*at, axis]), size))
            for name, axis, size in (("x", 0, sizes[0]), ("y", 1, sizes[1]))
        )
        if self.of.mode == "nearest":
            size = (self.of.height, self.of.width)
            taps, insides = [(_tap(names, (y, x), size), None)], [_inside(names, (y, x), size)]
        else:
            taps, insides = _around(names, (y, x), (self.of.height, self.of.width))

        def sums(*, inside: bool) -> tir.Stmt:
            return self.all_channels(at, image, taps, None if inside else insides)

        if self.of.padding != "zeros":
            names.add(sums(inside=True))
        else:
            whole = insides[0]
            for other in insides[1:]:
                whole = tirx.And(whole, other)
            names.add(tirx.IfThenElse(whole, sums(inside=True), sums(inside=False)))
        return names.done()

    def pixel(self, names: tir.Names, place: tirx.Expr, size: int) -> tirx.Expr:
        """A place between -1 and 1 in pixels, moved into the image as the padding says."""
        half = tirx.const(0.5, "float32")
        moved = place + 1.0
        if self.of.align_corners:
            value, low, high = moved * half * float(size - 1), 0.0, size - 1.0
        else:
            # As a product by itself: which pixel is nearest depends on how it is rounded.
            scaled = tir.rounded_product(moved, tirx.const(float(size), "float32"))
            value, low, high = (scaled - 1.0) * half, -0.5, size - 0.5
        value = names.bind("value", value)
        if self.of.mode == "nearest":
            value = names.bind("whole", tirx.nearbyint(value))
        if self.of.padding == "border":
            # No number stays none: `min(a, b)` is b unless a < b, `max(a, b)` unless a > b.
            least, most = (tirx.const(end, "float32") for end in (0.0, size - 1.0))
            value = tirx.max(least, tirx.min(most, value))
        if self.of.padding == "reflection":
            value = names.bind("reflected", self.reflect(names, value, low, high))
            if self.of.mode == "nearest":
                value = tirx.nearbyint(value)
        return value

    def reflect(self, names: tir.Names, value: tirx.Expr, low: float, high: float) -> tirx.Expr:
        """A value folded at both ends until it is between them."""
        length = high - low
        if length == 0:
            return tirx.Select(tirx.EQ(value, value), tirx.const(low, "float32"), value)
        beyond = names.bind("beyond", tirx.abs(value - low))
        turns = names.bind("turns", tirx.floor(beyond / length))
        rest = names.bind("rest", beyond - turns * length)
        odd = tirx.NE(turns - 2.0 * tirx.floor(turns * 0.5), tirx.const(0.0, "float32"))
        return tirx.Select(odd, high - rest, low + rest)

    def all_channels(
        self,
        at: Sequence[tir.Expr],
        image: tir.Expr,
        taps: Sequence[_Tap],
        insides: Sequence[tirx.Expr] | None,
    ) -> tir.Stmt:
        """The sums of all channels, in vectors; with `insides` of those pixels only."""

        def vector(first: tir.Expr, lanes: int) -> tir.Stmt:
            names = tir.Names()
            total = _sum_of(names, self.image, image, taps, insides, first, lanes)
            names.add(tir.store(self.result, total, [*at, first], lanes))
            return names.done()

        return _in_vectors(self.of.channels, self.of.cpu, vector)


def _around(
    names: tir.Names, pixel: Sequence[tirx.Expr], size: Sequence[int]
) -> tuple[list[_Tap], list[tirx.Expr]]:
    """The four pixels around a place (row, column) with their weights, and whether each is one of
    the image."""
    first = [names.bind("first", tirx.floor(value)) for value in pixel]
    parts = [names.bind("part", value - whole) for value, whole in zip(pixel, first, strict=True)]
    one = tirx.const(1.0, "float32")
    taps: list[_Tap] = []
    insides = []
    for steps in itertools.product((0, 1), (0, 1)):
        near = [whole + float(step) for whole, step in zip(first, steps, strict=True)]
        weights = [part if step else one - part for part, step in zip(parts, steps, strict=True)]
        weight = names.bind("weight", weights[0] * weights[1])
        taps.append((_tap(names, near, size), weight))
        insides.append(_inside(names, near, size))
    return taps, insides


def _tap(names: tir.Names, pixel: Sequence[tirx.Expr], size: Sequence[int]) -> list[tirx.Expr]:
    """The nearest pixel of the image, row and column."""
    return [
        names.keep("index", _within(value, extent))
        for value, extent in zip(pixel, size, strict=True)
    ]


def _inside(names: tir.Names, pixel: Sequence[tirx.Expr], size: Sequence[int]) -> tirx.Expr:
    """Whether a pixel is one of the image."""
    conditions = [
        tirx.And(value >= 0.0, value <= float(extent - 1))
        for value, extent in zip(pixel, size, strict=True)
    ]
    return names.bind("inside", tirx.And(*conditions))


def _sum_of(
    names: tir.Names,
    image: tirx.Buffer,
    n: tir.Expr,
    taps: Sequence[_Tap],
    insides: Sequence[tirx.Expr] | None,
    first: tir.Expr,
    lanes: int,
) -> tirx.Expr:
    """Channels from `first` on of an image at `taps`; with `insides` of those pixels only."""
    total = None
    for number, (place, weight) in enumerate(taps):
        value = names.bind("value", tir.load(image, [n, *place, first], lanes))
        if insides is not None:
            zero = tir.number(0.0, "float32", lanes)
            value = tirx.Select(tir.spread(insides[number], lanes), value, zero)
        term = value if weight is None else tir.spread(weight, lanes) * value
        total = term if total is None else total + term
    assert total is not None
    return total


def _within(value: tirx.Expr, size: int) -> tirx.Expr:
    """The nearest index of an axis; of no number, any: `min(a, b)` is b unless a < b."""
    last = float(size - 1)
    near = tirx.max(tirx.min(value, tirx.const(last, "float32")), tirx.const(0.0, "float32"))
    whole = tirx.Cast("int32", near)
    return tirx.max(tirx.min(whole, tir.integer(size - 1)), tir.integer(0))


def _in_vectors(extent: int, cpu: CpuModel, body: Callable[[tir.Expr, int], tir.Stmt]) -> tir.Stmt:
    """`body` for all elements of a line, by the widest vectors that are left."""
    parts, at = [], 0
    for lanes in (*cpu.lanes(FLOAT32), 1):
        turns = (extent - at) // lanes

        def one(turn: tir.Expr, start: int = at, lanes: int = lanes) -> tir.Stmt:
            return body(start + turn * lanes, lanes)

        if turns:
            parts.append(tir.loop_of("vector", turns, one))
            at += turns * lanes
    return tir.sequence(*parts)

"""What a rule is: it turns one layer at one place of the network into a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import tirx

from edgepack.kernels.choices import Ranked, Way
from edgepack.kernels.integer import IntegerConvolution
from edgepack.kernels.layer import Convolution, Layer
from edgepack.kernels.limits import FREE, LayerLimits
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT32
from edgepack.kernels.tiles.epilogue import Epilogue
from edgepack.kernels.tiles.layout import NO_HALO, Blocked, Halo, conv_halo
from edgepack.kernels.value import extent


@dataclass(frozen=True, kw_only=True)
class KernelSite:
    """A layer, the CPU it will run on, the limits that its kernel keeps to, and how that is to be
    made, if not as the cost model says."""

    layer: Layer
    cpu: CpuModel
    limits: LayerLimits = FREE
    choice: Way | None = None

    def chosen(self, rule: str) -> Way | None:
        """How a kernel of this rule is to be made, if something else than the cost model says."""
        return self.choice if self.choice is not None and self.choice.rule == rule else None


@dataclass(frozen=True, kw_only=True)
class LayerSite(KernelSite):
    """A layer of images, with the layouts of its tensors.

    `by_pixels` tells how the cores shared the kernel that made the first input: each core made some
    pixels in all channels, which are in its own cache now. Otherwise each made some channels of all
    pixels, or one core made everything.
    """

    inputs: tuple[Blocked, ...]
    operands: tuple[Blocked, ...]
    output: Blocked
    mean: Blocked | None = None
    by_pixels: bool = False

    def epilogue(self, *, flat: bool = False, pixels: int = 1, parts: int = 1) -> Epilogue:
        """The layer's expression inside a kernel; see `Epilogue`."""
        return Epilogue(
            self.output,
            self.layer.expression,
            constants=self.layer.constants,
            operands=self.operands,
            mean=self.mean,
            flat=flat,
            pixels=pixels,
            parts=parts,
        )


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A tensor as the model has it, seen as one of `shape`: the same bytes in the same order."""

    shape: tuple[int, ...]
    dtype: str = FLOAT32.name


@dataclass(frozen=True, kw_only=True)
class RowsSite(KernelSite):
    """A layer on tensors as the model has them, with how its kernel sees them. Of an image the
    result may be left in blocks."""

    inputs: tuple[Rows, ...]
    operands: tuple[Rows, ...] = ()
    output: Rows | Blocked


@dataclass(frozen=True, kw_only=True)
class LayerKernel:
    """The code of a layer and the constants it takes.

    The function is made when it is asked for, by rules that are `kept`, or is there already. Its
    arguments are the layer's inputs, its operands, `constants` (already packed),
    the output, the mean if the layer has one, and scratch memory. `tile`, `macs` (multiply-adds)
    and `cycles` (the cost model's) are for people to read. `by_pixels` tells of the result what
    `LayerSite.by_pixels` does of the first input.
    """

    name: str
    function: tirx.PrimFunc | Callable[[], tirx.PrimFunc]
    constants: tuple[np.ndarray, ...] = field(repr=False)
    tile: str = ""
    macs: int = 0
    cycles: float = 0.0
    by_pixels: bool = False


@dataclass(frozen=True, kw_only=True)
class Joining:
    """A result that can be all of the inputs, one after the other: `fits` says whether parts of
    these layouts are the result, `copy` makes the kernel for a part that has its place elsewhere,
    from one layout to another."""

    fits: Callable[[Sequence[Blocked], Blocked], bool]
    copy: Callable[[Blocked, Blocked], LayerKernel]


@dataclass(frozen=True, kw_only=True)
class Regrouping:
    """A result that can be the planes of the input, as other images: `around` says what is around
    the input then that has so much around the result, `layout` the result's layout as a part of an
    input of one; None if it has to be copied. `overlaps`: an image may have planes of the one
    before, see `Blocked.apart`, which not all rules read."""

    around: Callable[[Layer, Halo], Halo]
    layout: Callable[[Layer, Blocked], Blocked | None]
    overlaps: bool = False


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two layers, of which `reader` alone reads what `first` makes, with the rules that would make
    one after the other; `both` is one layer that does what they do.

    `short` are the bytes of scratch memory that one kernel of both may have where memory is short
    for the image between; None: it is not.
    """

    first: Layer
    reader: Layer
    both: Layer
    rules: tuple[Rule | None, Rule | None]
    short: Callable[[], int | None]


@dataclass(frozen=True, kw_only=True)
class Pairing:
    """What a rule says of pairs that it makes in one kernel.

    `takes`: whether it does, for that is faster, or memory is short. `keeps_to`: whether a layer of
    both is to take no more than so many bytes of scratch memory, where that makes a difference.
    `instead`: whether it had better make a layer of both than another rule the first one, which has
    limits, as a whole with more weights.
    """

    takes: Callable[[Pair, CpuModel], bool]
    keeps_to: Callable[[Layer, int, CpuModel], bool]
    instead: Callable[[Layer, LayerLimits, CpuModel], bool] = lambda _both, _first, _cpu: False


def _never(_layer: Layer, _cpu: CpuModel) -> bool:
    return False


def _no_halo(_layer: Layer) -> Halo:
    return NO_HALO


def _no_ways(_site: KernelSite) -> list[Ranked]:
    return []


@dataclass(frozen=True, kw_only=True)
class Rule:
    """`takes` says whether a layer is this rule's, `make` makes its kernel, of a `LayerSite`. With
    `rows` it is a rule of tensors as the model has them: that says how its kernels see a layer's,
    and `make` is given what it says.

    `halo` is what the kernel wants around the layer's inputs. `reads_planar` says whether it can
    read a planar first one, which has none. `more_weights`: it is faster because it stores more of
    them than the model has; `forms` are those of a layer then, the plain one, by another rule,
    first. `halves`: it can make layers of half precision, too.

    `kept`: its kernels are made later, and depend on nothing but their sites, of weights and
    constants per channel on types and shapes only; so what is known of them is kept.
    `is_mean`: its result is the mean of each channel of its input. `averages`: its kernel can make
    that as a second result, so that the next layer is spared.
    Its result can be had without a kernel, as a part of the only input, from the byte on that
    `view_at` says (None: it has to be copied), or as all inputs (`joining`), or as other images of
    it (`regrouping`).
    `in_place_of_queries`: it puts the results of an attention there, if that says so.
    `reads_apart`: its kernels read a first input whose images overlap, see `Blocked.apart`.
    `pairing` is there if it makes two layers at a time. `largest_tile` says of a layer how many
    results a tile has at most, in one direction, where large ones are less exact. `limited` is the
    rule for layers within limits, if these decide what it takes and which forms there are.

    `ways` are all ways to make a layer's kernel, each as a choice that says everything; the first
    is the rule's own, and the cheapest by the cost model. `can_take` is there if it can make
    layers that it does not take, for another rule makes them faster.
    """

    name: str
    takes: Callable[[Layer, CpuModel], bool]
    make: Callable[[Any], LayerKernel]
    rows: Callable[[Layer, CpuModel], RowsSite] | None = None
    halo: Callable[[Layer], Halo] = _no_halo
    reads_planar: Callable[[Layer, CpuModel], bool] = _never
    more_weights: bool = False
    forms: Callable[[Layer, CpuModel], list[Ranked]] | None = None
    halves: bool = True
    kept: bool = False
    averages: bool = False
    is_mean: bool = False
    view_at: Callable[[LayerSite], int | None] | None = None
    joining: Joining | None = None
    regrouping: Regrouping | None = None
    in_place_of_queries: bool = False
    reads_apart: bool = False
    pairing: Pairing | None = None
    largest_tile: Callable[[Layer], int] | None = None
    ways: Callable[[Any], list[Ranked]] = _no_ways
    can_take: Callable[[Layer, CpuModel], bool] | None = None
    limited: Callable[[LayerLimits], Rule] | None = None

    def within(self, limits: LayerLimits) -> Rule:
        """The rule to ask about a layer with such limits; its kernel is made by this one."""
        return self if self.limited is None else self.limited(limits)

    def can(self, layer: Layer, cpu: CpuModel) -> bool:
        """Whether it can make a layer, be it faster or not."""
        return (self.can_take or self.takes)(layer, cpu)


def image_of(layer: Layer, cpu: CpuModel, halo: Halo = NO_HALO) -> Blocked:
    """The result of a layer as if it were made as a whole, by a kernel of its own."""
    batch, channels, height, width = extent(layer.output)
    return Blocked(
        element=layer.element,
        batch=batch,
        channels=channels,
        height=height,
        width=width,
        block=cpu.block(channels, layer.element),
        halo=halo,
    )


def window_halo(layer: Layer) -> Halo:
    """What the window of a convolution, of integers, too, reads around the image."""
    operator = layer.operator
    assert isinstance(operator, Convolution | IntegerConvolution)
    return conv_halo(
        size=extent(layer.inputs[0])[2:],
        kernel=operator.kernel,
        stride=operator.stride,
        dilation=operator.dilation,
        before=operator.before,
        out=extent(layer.output)[2:],
    )


def product(values: Sequence[int]) -> int:
    """The product of some sizes."""
    return int(np.prod(values, dtype=np.int64))

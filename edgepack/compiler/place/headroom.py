"""How much scratch memory kernels may have.

A network has to keep what a layer reads and writes, and what later layers read. At its peak that is
the two largest neighbours, mostly. Where less is kept, scratch memory takes none of the board's;
beyond that it makes the arena larger for one layer's sake. So layers make do with less there,
as long as the network is hardly slower for it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgepack.compiler.settings import CompileSettings
from edgepack.kernels.choices import FRESH, Choices, Ranked, Way
from edgepack.kernels.layer import (
    Attention,
    Concatenation,
    Convolution,
    Layer,
    Plain,
    Pointwise,
    Slice,
    Stack,
    Streamed,
    Unstack,
    View,
)
from edgepack.kernels.limits import LayerLimits, LimitsByValue
from edgepack.kernels.rules.rule import Rule, image_of, window_halo
from edgepack.kernels.signature import signature_of
from edgepack.kernels.tiles import arm
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT32
from edgepack.kernels.tiles.micro import assembly_epilogue
from edgepack.kernels.value import Value, extent

# What scratch memory may add to the two largest neighbours; the first that is not too slow. Beside
# each is the part of the network's time that may be lost for it: what its multiply-adds take at the
# CPU's rate.
_SHARES = (1 / 16, 1 / 4, 1 / 2)
_MOST_LOST = (0.05, 0.03, 0.03)
# So little scratch memory for each core may come on top; but not for a layer that is slower without
# it by less than this.
_FREE_BYTES = 64 << 10
_FASTER = 1.05
# The part of the two largest neighbours that is not little.
_MUCH = 1 / 10
# Rooms differ by steps, so that equal layers stay alike.
_STEP = 32 << 10
_SMALL_STEP = 4 << 10


class Headroom:
    """The bytes that are in use at each of `layers`, in their order, and those that are left.

    `outputs` are the network's; `neighbours` says what its two largest take, which are those of
    `layers` otherwise. Layouts are not known yet: zeros around images are not counted, and
    what is computed in place of something else, or as a part of it, is guessed.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        outputs: Collection[Value],
        cpu: CpuModel,
        neighbours: int | None = None,
    ) -> None:
        self._outputs, self._cpu = outputs, cpu
        self._at = {layer.output: at for at, layer in enumerate(layers)}
        self._places, self._spans, joints = _laid_out(layers, outputs, cpu)
        self._live = [0] * len(layers)
        for span in self._spans.values():
            for at in range(max(0, span.first), min(len(layers), span.last + 1)):
                self._live[at] += span.nbytes
        self._zeros = [0] * len(layers)
        for place, nbytes in _zeros(layers, self._places).items():
            span = self._spans[place]
            for at in range(max(0, span.first), min(len(layers), span.last + 1)):
                self._zeros[at] += nbytes
        self._empty = [0] * len(layers)
        for part, first in _empty(joints, self._spans).items():
            for at in range(max(0, first), self._spans[part].first):
                self._empty[at] += self._spans[part].nbytes
        self._neighbours = _neighbours(layers) if neighbours is None else neighbours
        # Without scratch memory, too, something is the most.
        self._peak = max(self._live, default=0)

    def with_others(self, layers: Sequence[Layer]) -> Headroom:
        """The same for other layers that do what these do: the two largest neighbours are still
        those of the model."""
        return Headroom(layers, self._outputs, self._cpu, self._neighbours)

    @property
    def free(self) -> int:
        """So few bytes that they may come on top."""
        return _FREE_BYTES * self._cpu.cores

    @property
    def is_free_much(self) -> bool:
        """Whether those are more than a small part of the network's."""
        return self.free > self._neighbours * _MUCH

    def of(self, layer: Layer, share: float = _SHARES[0]) -> int:
        """Bytes of scratch memory that are left at a layer, if all of it may add `share` to the two
        largest neighbours, or so few that they may come on top."""
        return max(self.free, self.left(layer, share))

    def left(self, layer: Layer, share: float) -> int:
        """The same, with nothing on top."""
        at = self._at[layer.output]
        return self._left(self._live[at], share, self._empty[at])

    def for_weights(self, layer: Layer) -> int:
        """The same for a kernel that transforms its weights in each run: that much must not be
        added to what is in use elsewhere either, of which too much is counted sometimes."""
        at = self._at[layer.output]
        most = int((1 + _SHARES[0]) * self._neighbours)
        return self._within(most, self._live[at] + self._zeros[at], self._empty[at])

    def of_attention(self, layer: Layer) -> int:
        """The same for an attention, with nothing on top: it is hardly slower with little."""
        return self.left(layer, _SHARES[0])

    def of_both(self, first: Layer, layer: Layer) -> int:
        """The same for one kernel of a layer and the one before it, whose result is nowhere as a
        whole then."""
        at = self._at[layer.output]
        live = self._live[at] - self._spans[self._places[first.output]].nbytes
        read = {self._places[value] for value in first.inputs if value in self._places}
        live += sum(span.nbytes for span in map(self._spans.__getitem__, read) if span.last < at)
        left = self._left(live, _SHARES[0], self._empty[at])
        return max(self.free, left)

    def is_for_one(self, layer: Layer) -> bool:
        """Whether there is room for what a layer computes in the place of something else only."""
        at = self._at.get(layer.output)
        if at is None:
            return False
        return self._live[at] + _nbytes(layer.output) > (1 + _SHARES[0]) * self._neighbours

    def most(self, *layers: Layer) -> int:
        """The most that is in use at one of them, scratch memory apart."""
        return max((self._live[self._at[layer.output]] for layer in layers), default=0)

    def has(self, layer: Layer) -> bool:
        """Whether it is one of the layers."""
        return layer.output in self._at

    def common(self, layer: Layer) -> int:
        """The bytes that a layer's result and its first input may both have, if they are free as
        far as they have been read; 0 where that is read later, too."""
        at, both = self._at[layer.output], (layer.inputs[0], layer.output)
        first, made = (self._spans[self._places[value]] for value in both)
        return min(first.nbytes, made.nbytes) if first.last == at and first is not made else 0

    def is_short(self, *layers: Layer, share: float = _SHARES[0]) -> bool:
        """Whether that is more than the two largest neighbours and a `share` of them."""
        return self.most(*layers) > (1 + share) * self._neighbours

    def _left(self, live: int, share: float, empty: int) -> int:
        most = max(int((1 + share) * self._neighbours), self._peak)
        return self._within(most, live, empty)

    def _within(self, most: int, live: int, empty: int) -> int:
        """What fits where joints are still `empty`, or beside them."""
        left = max(0, min(empty, most - live), most - live - empty)
        step = _STEP if left >= _STEP else _SMALL_STEP
        return left // step * step


@dataclass(kw_only=True)
class _Span:
    """Bytes that are in use from one layer to another, by their numbers."""

    nbytes: int
    first: int
    last: int


def _laid_out(
    layers: Sequence[Layer], outputs: Collection[Value], cpu: CpuModel
) -> tuple[dict[Value, Value], dict[Value, _Span], list[set[Value]]]:
    """The value in whose place each value lies, from when to when those places are in use, and
    those that are the parts of each joint. Of a joint's own are the parts that have to be copied.
    """
    places, spans, joints = dict[Value, Value](), dict[Value, _Span](), dict[Value, set[Value]]()
    uses = {
        value: at for at, layer in enumerate(layers) for value in (*layer.inputs, *layer.operands)
    }
    uses |= dict.fromkeys(outputs, len(layers))
    makers = {layer.output: layer for layer in layers}
    for at, layer in enumerate(layers):
        for value in (*layer.inputs, *layer.operands):
            if value not in places:  # the network's input
                places[value] = value
                spans[value] = _Span(nbytes=_read(layer, value, cpu), first=-1, last=uses[value])
        place = _place_of(layer, at, uses, places, makers, cpu)
        if isinstance(layer.operator, Concatenation):
            place = layer.output
            is_one = extent(layer.output)[0] == 1
            there = {
                value for value in layer.inputs if is_one and _can_be_a_part(makers.get(value))
            }
            copied = sum(_nbytes(value) for value in layer.inputs if value not in there)
            spans[place] = _Span(nbytes=copied, first=at, last=at)
            inside = {places[value] for value in there}
            joints[place] = {place}.union(*(joints.get(part, {part}) for part in inside))
        elif place is None:
            place = layer.output
            spans[place] = _Span(nbytes=_stored(layer, cpu), first=at, last=at)
        places[layer.output] = place
        # A joint is its parts, which are in use as long as it is.
        for value in joints.get(place, {place}):
            spans[value].last = max(spans[value].last, uses.get(layer.output, at))
    return places, spans, list(joints.values())


def _zeros(layers: Sequence[Layer], places: Mapping[Value, Value]) -> dict[Value, int]:
    """Bytes of zeros around the images of batches, as the windows of convolutions reach them: the
    smaller the images, the more."""
    found = dict[Value, int]()
    for layer in layers:
        if not isinstance(layer.operator, Convolution) or extent(layer.inputs[0])[0] == 1:
            continue
        place, (_, _, height, width) = places[layer.inputs[0]], extent(layer.inputs[0])
        halo = window_halo(layer)
        around = (halo.top + height + halo.bottom) * (halo.left + width + halo.right)
        nbytes = _nbytes(place) * around // (height * width) - _nbytes(place)
        found[place] = max(nbytes, found.get(place, 0))
    return found


def _can_be_a_part(maker: Layer | None) -> bool:
    """Whether a value may be computed where a joint has it: what is a part of something else, or
    is given, is not."""
    return maker is not None and not isinstance(maker.operator, Slice | Stack | Unstack | View)


def _empty(joints: Iterable[Collection[Value]], spans: Mapping[Value, _Span]) -> dict[Value, int]:
    """The first layer at which each part of a joint takes bytes that nothing is written to yet: a
    joint is there as a whole from its first part on."""
    found = dict[Value, int]()
    for parts in joints:
        first = min(spans[part].first for part in parts)
        for part in parts:
            found[part] = min(first, found.get(part, first))
    return found


def _place_of(
    layer: Layer,
    at: int,
    uses: Mapping[Value, int],
    places: Mapping[Value, Value],
    makers: Mapping[Value, Layer],
    cpu: CpuModel,
) -> Value | None:
    """The value whose bytes a layer's result takes; None if it gets some of its own."""
    operator = layer.operator
    if isinstance(operator, Slice | Stack | Unstack | View):
        return places[layer.inputs[0]]
    if layer.is_reshape:
        # What an image is reshaped to has to be unpacked, mostly.
        maker = makers.get(layer.inputs[0])
        is_plain = maker is None or isinstance(maker.operator, Plain)
        return places[layer.inputs[0]] if is_plain else None
    over, nbytes = layer.operands, _nbytes(layer.output)
    if isinstance(operator, Pointwise):
        over = layer.inputs[:1]
    elif isinstance(operator, Attention) and operator.in_queries:
        over = layer.inputs[:1]  # of the queries
        nbytes = _nbytes(over[0])
    elif isinstance(operator, Convolution) and arm.isa_of(cpu, layer.element) is not None:
        # Sums are stored before a pass over them reads operands.
        over = over if assembly_epilogue(layer.expression) is not None else ()
    free = (value for value in over if uses[value] == at)
    return next((places[value] for value in free if _nbytes(value) == nbytes), None)


def _neighbours(layers: Iterable[Layer]) -> int:
    """The most bytes that one of the layers reads and writes, as the model has them. What computes
    by element needs one of both only."""
    stacked: dict[Value, Value] = {
        layer.output: layer.inputs[0] for layer in layers if isinstance(layer.operator, Stack)
    }
    both = (
        max((_nbytes(stacked.get(value, value)) for value in layer.inputs), default=0)
        + _nbytes(layer.output)
        for layer in layers
        if not isinstance(layer.operator, Pointwise | View | Slice | Stack | Unstack)
    )
    return max(both, default=0)


def _nbytes(value: Value) -> int:
    shape = value.shape
    return np.dtype(value.dtype).itemsize * math.prod(shape) if shape else 0


def _read(layer: Layer, value: Value, cpu: CpuModel) -> int:
    """The bytes of a network's input, in blocks if a convolution reads it as an image."""
    operator = layer.operator
    if isinstance(operator, Streamed):
        operator = operator.first.operator
    if not isinstance(operator, Convolution):
        return _nbytes(value)
    _, channels, *_ = extent(value)
    lanes = cpu.block(channels, layer.element)
    return _nbytes(value) // channels * (-(-channels // lanes) * lanes)


def _stored(layer: Layer, cpu: CpuModel) -> int:
    """The bytes of a layer's result in blocks, if it is an image of a rule."""
    if isinstance(layer.operator, Plain) or not layer.output.shape:
        return _nbytes(layer.output)
    return image_of(layer, cpu).nbytes


# ------------------------------------------------ layers with less


def limit_scratch(
    layers: Sequence[Layer],
    room: Headroom,
    cpu: CpuModel,
    settings: CompileSettings,
    fixed: Collection[str],
    limits: LimitsByValue,
) -> Choices:
    """The forms of layers that would take more than there is room for, which is put into `limits`,
    as is that of each attention.

    The choices of `settings` are the forms taken so far, those of `fixed` signatures for good.
    Nothing is changed where it would make the network slower by more than a few hundredths.
    """
    cycles = fewest_cycles(layers, cpu)
    # Fresh weights are there for what room there is.
    fresh = {signature for signature, choice in settings.choices.items() if choice.weights == FRESH}
    alike = _alike(layers, room, cpu, fresh, limits)
    found: dict[str, _Less] = {}
    # Nothing on top at all is tried where that is much of the network's.
    tries = [(share, _FASTER, most) for share, most in zip(_SHARES, _MOST_LOST, strict=True)]
    if room.is_free_much:
        tries.insert(0, (_SHARES[0], math.inf, _MOST_LOST[0]))
    for share, faster, most in tries:
        found = {
            signature: less
            for signature, group in alike.items()
            if signature not in fixed
            if (
                less := _less(
                    signature, group, share, room, cpu, settings, limits, least_gain=faster
                )
            )
            is not None
        }
        lost = sum(less.lost for signature, less in found.items() if signature not in fresh)
        if lost <= most * cycles:
            break
    else:
        found = {signature: less for signature, less in found.items() if signature in fresh}
    forms = dict[str, Way]()
    for layer in layers:
        own = limits.of(layer)
        if isinstance(layer.operator, Attention):
            limits[layer.output] = replace(own, room=room.of_attention(layer))
        elif isinstance(layer.operator, Convolution):
            less = found.get(signature_of(layer, limits))
            if less is not None:
                limits[layer.output] = replace(own, room=less.room)
                forms[signature_of(layer, limits)] = less.form.choice
    return forms


@dataclass(frozen=True, kw_only=True)
class _Less:
    """A form of equal layers that takes no more than `room`, and what that costs all of them."""

    room: int
    form: Ranked
    lost: float


def _alike(
    layers: Sequence[Layer],
    room: Headroom,
    cpu: CpuModel,
    also: Collection[str],
    limits: LimitsByValue,
) -> dict[str, list[Layer]]:
    """Convolutions that may have too little room, equal ones together: they have one kernel. Those
    of `also` have too little, maybe, with any."""
    found: dict[str, list[Layer]] = {}
    for layer in layers:
        if isinstance(layer.operator, Convolution) and (signature := signature_of(layer, limits)):
            found.setdefault(signature, []).append(layer)
    most = 2 * cpu.cores * cpu.l2_bytes  # no form takes more, nearly
    return {
        signature: group
        for signature, group in found.items()
        if signature in also or any(room.of(layer) < most for layer in group)
    }


def _less(
    signature: str,
    group: Sequence[Layer],
    share: float,
    room: Headroom,
    cpu: CpuModel,
    settings: CompileSettings,
    limits: LimitsByValue,
    least_gain: float,
) -> _Less | None:
    """What equal layers make do with; None if they have room enough. They have some on top if they
    are faster by `least_gain`."""
    rules = settings.tried
    layer, choice = group[0], settings.choices.get(signature)
    own = limits.of(layer)
    if choice is not None and choice.weights == FRESH:
        left = least = min(map(room.for_weights, group))
    else:
        left = min(room.of(layer, share) for layer in group)
        least = min(room.left(layer, share) for layer in group)
    forms = list((_forms if choice else _own_forms)(layer, own, cpu, rules))
    if choice is not None:
        forms = [form for form in forms if form.choice.form == choice.form]
    if not forms:
        return None
    taken = min(forms, key=lambda form: form.cycles)
    if taken.scratch_bytes <= (left if least_gain < math.inf else least):
        return None

    def within(bytes_: int) -> _Less:
        able = _forms(layer, replace(own, room=bytes_), cpu, rules)
        others = (form for form in able if form.more_bytes <= max(0, taken.more_bytes))
        form = min(others, key=lambda form: form.cycles)
        return _Less(room=bytes_, form=form, lost=len(group) * (form.cycles - taken.cycles))

    less, smaller = within(left), within(least)
    return smaller if smaller.form.cycles < least_gain * less.form.cycles else less


def _forms(
    layer: Layer, limits: LayerLimits, cpu: CpuModel, rules: Collection[Rule]
) -> Iterator[Ranked]:
    """The forms of a layer by the first rule that has some and would take it, room or none."""
    free = replace(limits, room=None)
    rule = next((rule for rule in rules if rule.within(free).takes(layer, cpu)), None)
    forms = rule.within(limits).forms if rule is not None else None
    if forms is not None:
        yield from forms(layer, cpu)


def _own_forms(
    layer: Layer, limits: LayerLimits, cpu: CpuModel, rules: Collection[Rule]
) -> Iterator[Ranked]:
    """Those that a rule takes of itself."""
    return (form for form in _forms(layer, limits, cpu, rules) if form.choice.weights != FRESH)


def scratch_of(layer: Layer, cpu: CpuModel, rules: Collection[Rule], limits: LimitsByValue) -> int:
    """Bytes of scratch memory that a layer's fastest form takes."""
    forms = _own_forms(layer, limits.of(layer), cpu, rules)
    fastest = min(forms, key=lambda form: form.cycles, default=None)
    return fastest.scratch_bytes if fastest is not None else 0


def fastest(
    layers: Iterable[Layer],
    room: Headroom | None,
    cpu: CpuModel,
    rules: Collection[Rule],
    limits: LimitsByValue,
) -> float:
    """Cycles of the convolutions among some layers, each by its fastest form for which there is
    `room`; None: by any."""
    total = 0.0
    for layer in layers:
        if isinstance(layer.operator, Convolution):
            own = limits.of(layer)
            own = own if room is None else replace(own, room=room.of(layer))
            forms = _own_forms(layer, own, cpu, rules)
            total += min((form.cycles for form in forms), default=0)
    return total


def fewest_cycles(layers: Iterable[Layer], cpu: CpuModel) -> float:
    """What the convolutions' multiply-adds take at the rate of the widest vectors."""
    width = max(cpu.vector_bytes)
    rate = cpu.rates[FLOAT32][width] * width / FLOAT32.bytes
    macs = 0
    for layer in layers:
        if isinstance(layer.operator, Convolution):
            batch, _, height, columns = extent(layer.output)
            macs += layer.operator.weight.size * batch * height * columns
    return macs / rate


# ------------------------------------------------ joints


def lanes_of_joints(
    layers: Sequence[Layer], rules: Sequence[Rule], cpu: CpuModel
) -> dict[int, int]:
    """Channel counts, and the channels that their blocks may have at most: of tensors that are put
    side by side, do not fill whole blocks, and are too large to be copied.

    What has no block of its own is turned into the model's layout, put together, and turned back.
    """
    most, found = (1 + _SHARES[0]) * _neighbours(layers), dict[int, int]()
    for layer in layers:
        if not isinstance(layer.operator, Concatenation):
            continue
        if any(rule.joining is not None and rule.takes(layer, cpu) for rule in rules):
            continue
        counts = [extent(value)[1] for value in layer.inputs]
        able = (size // FLOAT32.bytes for size in cpu.vector_bytes)
        lanes = max((n for n in able if all(c % n == 0 for c in counts[:-1])), default=0)
        if lanes and 2 * _nbytes(layer.output) + max(map(_nbytes, layer.inputs)) > most:
            for count in (*counts, sum(counts)):
                found[count] = min(lanes, found.get(count, lanes))
    return found

"""Which rule makes each layer, in which layout each tensor lies, and who shares whose bytes.

All of it is decided before anything is emitted, by `place_layers`: equal functions, CPUs and rules
give equal placements. Values that only Relax operators touch stay as the model has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from typing import TypeVar

from tvm import relax

from edgepack.compiler.layers.fuse import fuse
from edgepack.compiler.layers.read import Reading, read_layers
from edgepack.compiler.layers.stacked import with_stacks
from edgepack.compiler.layers.tensors import ValueTable, variables
from edgepack.compiler.layers.turn import Turned, turn
from edgepack.compiler.place import budget
from edgepack.compiler.place.batch_parts import worth_parts
from edgepack.compiler.place.channel_parts import with_parts
from edgepack.compiler.place.headroom import Headroom, lanes_of_joints, limit_scratch
from edgepack.compiler.place.limits import limit_tiles
from edgepack.compiler.place.order import as_late_as_possible
from edgepack.compiler.place.rows import rule_of_rows, with_results_in_queries
from edgepack.compiler.place.streams import faster_in_rows, with_streams
from edgepack.compiler.settings import DEFAULTS, CompileSettings
from edgepack.frontend.precision import Precision, misfit
from edgepack.kernels.choices import Choices
from edgepack.kernels.integer import IntegerOperator
from edgepack.kernels.layer import (
    Attention,
    Conversion,
    Convolution,
    Layer,
    Norm,
    Plain,
    Pointwise,
    Resampling,
    RowProduct,
    Softmax,
    Stack,
    View,
)
from edgepack.kernels.limits import LayerLimits, LimitsByValue
from edgepack.kernels.rules.rule import LayerSite, RowsSite, Rule, product
from edgepack.kernels.rules.table import CONVERSION
from edgepack.kernels.signature import signature_of
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT16, FLOAT32, Element
from edgepack.kernels.tiles.layout import NO_HALO, Blocked, Halo
from edgepack.kernels.value import Value, extent

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class ViewAt:
    """A result that is the bytes of the only input from `offset` on."""

    offset: int


@dataclass(frozen=True, kw_only=True)
class JointOf:
    """A result that is `parts`, one after the other: for each input the layout it has there, and
    whether it has to be copied for that, for its own place is elsewhere."""

    parts: tuple[tuple[Blocked, bool], ...]


@dataclass(frozen=True, kw_only=True)
class PlacedLayer:
    """A layer and the rule that makes its kernel; None if TVM lowers the expression of its output,
    from tensors as the model has them.

    `alias` is there if the layer needs no kernel, for its result shares the bytes of its inputs.
    """

    layer: Layer
    rule: Rule | None = None
    alias: ViewAt | JointOf | None = None


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What is decided of a function.

    `layers` are in the order of their calls, made within `limits`, and `layouts` those of the
    blocked values. A value in `roots` has the bytes of another one, which stands for it everywhere.
    For one in `twins` another one is computed, the same image with rows and columns in each other's
    place. Those `in_parts` are made some images of the batch at a time, if that is no slower.
    `values` stand for the function's variables.
    """

    cpu: CpuModel
    choices: Choices
    layers: tuple[PlacedLayer, ...]
    limits: LimitsByValue
    layouts: Mapping[Value, Blocked]
    roots: Mapping[Value, Value]
    twins: Mapping[Value, Value]
    in_parts: Collection[Value]
    values: ValueTable

    def root(self, value: Value) -> Value:
        """The value whose bytes these are."""
        return self.roots.get(value, value)

    def site(self, layer: Layer, *, by_pixels: bool) -> LayerSite:
        """Where a layer with a rule of images is; see `LayerSite`."""
        return replace(
            _site(layer, self.layouts, self.cpu),
            by_pixels=by_pixels,
            limits=self.limits.of(layer),
            choice=self.choices.get(signature_of(layer, self.limits)),
        )

    def rows_site(self, layer: Layer, rule: Rule) -> RowsSite:
        """Where a layer on tensors as the model has them is."""
        assert rule.rows is not None
        return replace(
            rule.rows(layer, self.cpu),
            limits=self.limits.of(layer),
            choice=self.choices.get(signature_of(layer, self.limits)),
        )


def place_layers(
    main: relax.Function, cpu: CpuModel, settings: CompileSettings = DEFAULTS
) -> Placement:
    """Place the layers of a function of one dataflow block. The first rule that takes a layer
    makes it, unless the choices name another one that can.

    Of weights at most `settings.growth` times what the function has are stored, but for what the
    choices say and what pads them. `settings.lean`: more weights are to be worth their bytes, and
    kernels make do with little scratch memory where it would make the arena larger; see `Headroom`.
    """
    rules = settings.tried
    read = read_layers(
        main,
        # Products of rows store weights as they compute.
        matrices_in_rows=not settings.precision.is_half or cpu.computes(FLOAT16),
        whole_attentions=any(rule.in_place_of_queries for rule in rules),
    )
    cpu = replace(
        cpu, tight=_grouped(read.layers), most_lanes=lanes_of_joints(read.layers, rules, cpu)
    )
    regrouping = [rule for rule in rules if rule.regrouping is not None]
    read = with_stacks(read, main, lambda layer: any(rule.takes(layer, cpu) for rule in regrouping))
    placing = _Placing(
        main=main,
        read=read,
        cpu=cpu,
        rules=rules,
        settings=settings,
        choices=settings.choices,
        layers=read.layers,
        inputs=[read.values.of(param) for param in main.params],
        outputs=[read.values.of(var) for var in variables(main.body.body)],
    )
    for decide in PASSES:
        decide(placing)
    return placing.placement()


@dataclass(frozen=True, kw_only=True)
class _Arranged:
    """Layers in one order, their limits, and what is in use then."""

    turned: Turned
    layers: list[Layer]
    limits: LimitsByValue
    room: Headroom


@dataclass(kw_only=True)
class _Placing:
    """What is decided so far. `choices` are those that were given, and more; `limits` are what
    layers are to keep to, `whole` values that are made as a whole, `slots` the joints that values
    are written into, `regrouped` layers whose results are parts of what they read."""

    main: relax.Function
    read: Reading
    cpu: CpuModel
    rules: Sequence[Rule]
    settings: CompileSettings
    choices: Choices
    layers: Sequence[Layer]
    inputs: Sequence[Value]
    outputs: Sequence[Value]
    limits: LimitsByValue = field(default_factory=LimitsByValue)
    roots: dict[Value, Value] = field(default_factory=dict)
    twins: Mapping[Value, Value] = field(default_factory=dict)
    whole: set[Value] = field(default_factory=set)
    room: Headroom = field(init=False)
    taken: dict[Value, Rule] = field(default_factory=dict)
    halos: dict[Value, Halo] = field(default_factory=dict)
    slots: Mapping[Value, Value] = field(default_factory=dict)
    regrouped: Sequence[Layer] = ()
    layouts: Mapping[Value, Blocked] = field(default_factory=dict)

    @property
    def scarce(self) -> Headroom | None:
        """The room that there is for scratch memory, if the board has no more than it needs."""
        return self.room if self.settings.lean else None

    def drop_views(self) -> None:
        """Layers read the tensors that views are of."""
        self.layers, self.roots = _without_views(self.layers)
        self.outputs = [self.roots.get(value, value) for value in self.outputs]

    def arrange(self) -> None:
        """Fuse and turn layers, and put them into the order in which they need less memory."""
        chosen = self._arranged(self.layers)
        if self.settings.lean and chosen.room.is_short(*chosen.layers):
            late = self._arranged(as_late_as_possible(self.layers, self.outputs))
            chosen = min(chosen, late, key=lambda item: item.room.most(*item.layers))
        self.layers, self.limits, self.room = chosen.layers, chosen.limits, chosen.room
        turned = chosen.turned
        self.twins = turned.twins
        self.roots = {value: turned.same.get(root, root) for value, root in self.roots.items()}
        self.roots |= turned.same
        self.whole = {*self.outputs, *map(turned.now, self.outputs)}

    def _arranged(self, some: Sequence[Layer]) -> _Arranged:
        turned, limits = turn(fuse(some, self.outputs), self.outputs, self.cpu), LimitsByValue()
        made = [
            _with_precision(layer, self.settings.precision, self.rules, self.cpu, limits)
            for layer in turned.layers
        ]
        limit_tiles(made, self.inputs, self.settings.precision, limits)
        whole = {*self.outputs, *map(turned.now, self.outputs)}
        made = with_results_in_queries(made, {*self.inputs, *whole}, self.rules, self.cpu)
        room = Headroom(made, whole, self.cpu)
        if self.settings.lean:
            made = with_parts(made, whole, self.cpu, self.rules, room, limits)
            room = room.with_others(made)
        return _Arranged(turned=turned, layers=made, limits=limits, room=room)

    def find_rows(self) -> None:
        """Find what had better be made some rows at a time than by Winograd's algorithm."""
        found = faster_in_rows(self.layers, self.whole, self.rules, self.cpu, self.limits)
        for layer in found:
            self.limits[layer.output] = replace(self.limits.of(layer), most_results=0)

    def spend_weights(self) -> None:
        """Choose the forms that store more weights, within what may be stored."""
        spare = budget.spare_bytes(self.main, self.layers, self.cpu, self.settings.growth)
        if spare < math.inf:
            forms = budget.forms_within(
                self.layers,
                self.cpu,
                self.rules,
                spare,
                self.choices,
                limits=self.limits,
                frugal=self.settings.lean,
                room=self.scarce.for_weights if self.scarce else None,
            )
            self.choices = {**forms, **self.choices}

    def spare_scratch(self) -> None:
        """Choose forms that make do with the scratch memory that is left."""
        if self.scarce is not None:
            given = self.settings.choices
            now = replace(self.settings, choices=self.choices)
            less = limit_scratch(self.layers, self.scarce, self.cpu, now, given, self.limits)
            self.choices = {**self.choices, **less, **given}

    def take(self) -> None:
        """Find the rule of each image."""
        settings = replace(self.settings, choices=self.choices)
        self.taken = _take(self.layers, self.cpu, settings, self.limits)

    def convert(self) -> None:
        """Put conversions between layers of different elements."""
        self.layers = _with_conversions(self.layers, self.taken)

    def surround(self) -> None:
        """Find the zeros that are wanted around images."""
        self.halos = _halos(self.layers, self.taken)

    def average(self) -> None:
        """Have means made by the kernels of the images that they are of."""
        self.layers = _with_means(self.layers, self.taken)

    def pair(self) -> None:
        """Make two layers one where a rule makes both in one kernel."""
        self.layers = with_streams(
            self.layers,
            self.taken,
            self.whole,
            rules=self.rules,
            cpu=self.cpu,
            limits=self.limits,
            room=self.scarce,
        )

    def regroup(self) -> None:
        """Find which images are those of another tensor, grouped otherwise."""
        self.regrouped = _regrouped(self.layers, self.taken, self.halos, self.whole, self.room)

    def share_bytes(self) -> None:
        """Find which values are written straight into a joint."""
        self.slots = _share_bytes(self.layers, self.taken, self.halos)

    def lay_out(self) -> None:
        """Find the layout of each image in blocks."""
        given = frozenset(self.inputs)
        layouts = _layouts(self.layers, self.taken, self.halos, self.cpu, given)
        self.layouts = _with_parts(layouts, self.regrouped, self.taken)

    def placement(self) -> Placement:
        """All that is decided."""
        return Placement(
            cpu=self.cpu,
            choices=self.choices,
            layers=tuple(chain.from_iterable(map(self._placed, self.layers))),
            limits=self.limits,
            layouts=self.layouts,
            roots=self.roots,
            twins=self.twins,
            in_parts=worth_parts(self.layers, self.room),
            values=self.read.values,
        )

    def _placed(self, layer: Layer) -> Iterable[PlacedLayer]:
        rule = self.taken.get(layer.output)
        if rule is None:
            return _in_rows(layer, self.read, self.rules, self.cpu)
        if rule.view_at is None and rule.joining is None:
            return [PlacedLayer(layer=layer, rule=rule)]
        site = _site(layer, self.layouts, self.cpu)
        return [PlacedLayer(layer=layer, rule=rule, alias=_alias(rule, site, self.slots))]


# In this order: each reads what those before it have decided.
PASSES: tuple[Callable[[_Placing], None], ...] = (
    _Placing.drop_views,
    _Placing.arrange,
    _Placing.find_rows,
    _Placing.spend_weights,
    _Placing.spare_scratch,
    _Placing.take,
    _Placing.convert,
    _Placing.surround,
    _Placing.average,
    _Placing.pair,
    _Placing.regroup,
    _Placing.share_bytes,
    _Placing.lay_out,
)


def _in_rows(
    layer: Layer,
    read: Reading,
    rules: Sequence[Rule],
    cpu: CpuModel,
) -> Iterable[PlacedLayer]:
    """A layer that no rule of images takes, as a whole if there is a rule for that, else the layers
    that it was read from."""
    rule = rule_of_rows(layer, rules, cpu)
    if rule is not None:
        yield PlacedLayer(layer=layer, rule=rule)
    else:
        parts = (read.each[value] for value in layer.computes if value in read.each)
        for part in parts:
            yield PlacedLayer(layer=part, rule=rule_of_rows(part, rules, cpu))


def _grouped(layers: Sequence[Layer]) -> frozenset[int]:
    """The channel counts of convolutions in groups, depthwise ones apart.

    Groups are merged until each has whole blocks, so wide blocks that a group does not fill make
    one group of all: a dense convolution.
    """
    return frozenset(
        count
        for layer in layers
        if isinstance(layer.operator, Convolution) and layer.operator.groups > 1
        for count in (extent(layer.inputs[0])[1], extent(layer.output)[1])
        if layer.operator.groups < count
    )


def _without_views(layers: Sequence[Layer]) -> tuple[list[Layer], dict[Value, Value]]:
    """The layers that do something, reading the roots of what they read, and those roots."""
    left, roots = [], dict[Value, Value]()
    for layer in layers:
        if isinstance(layer.operator, View):
            roots[layer.output] = roots.get(layer.inputs[0], layer.inputs[0])
        else:
            left.append(_on_roots(layer, roots))
    return left, roots


def _on_roots(layer: Layer, roots: Mapping[Value, Value]) -> Layer:
    def root(value: Value) -> Value:
        return roots.get(value, value)

    return replace(
        layer, inputs=tuple(map(root, layer.inputs)), operands=tuple(map(root, layer.operands))
    )


# ------------------------------------------------ precision


def _with_precision(
    layer: Layer, precision: Precision, rules: Sequence[Rule], cpu: CpuModel, limits: LimitsByValue
) -> Layer:
    """The layer in half precision, as far as the CPU can and its values allow; if not, `limits` say
    why, else how large Winograd's tiles may be."""
    operator, of_rows = layer.operator, isinstance(layer.operator, Plain)
    halves = precision.is_half and cpu.computes(FLOAT16)
    if isinstance(operator, IntegerOperator) or (
        of_rows and not (halves and isinstance(operator, _OF_ROWS))
    ):
        return layer
    if not precision.is_half:
        limits[layer.output] = LayerLimits(exact=_reason(layer, precision.floats or {}))
        return layer
    element = FLOAT16 if halves else FLOAT32
    why = ""
    if isinstance(operator, Convolution | RowProduct):
        parts = (operator.weight, operator.bias)
        misfits = (misfit(part) for part in parts if part is not None and part.any())
        why = next((f"a weight {text}" for text in misfits if text), "")
    if element == FLOAT16:
        why = why or _reason(layer, precision.exact)
    if why:
        limits[layer.output] = LayerLimits(exact=why)
        return layer
    if of_rows:
        half = replace(layer, element=element, weights=element)
        return layer if rule_of_rows(half, rules, cpu) is None else half
    if halves:
        limits[layer.output] = LayerLimits(most_results=_told(layer, precision.winograd))
    return replace(layer, element=element, weights=FLOAT16)


# Layers of rows that have kernels in half precision.
_OF_ROWS = (Attention, Norm, RowProduct, Softmax)


def _reason(layer: Layer, reasons: Mapping[str, str]) -> str:
    """Why a layer is not as others; empty if nothing is said of it."""
    return _told(layer, reasons) or ""


def _told(layer: Layer, said: Mapping[str, _T]) -> _T | None:
    """What is said of one of the nodes that a layer was read from."""
    return next((said[name] for name in layer.nodes if name in said), None)


def _with_conversions(layers: Sequence[Layer], taken: MutableMapping[Value, Rule]) -> list[Layer]:
    """The layers with conversions between those of different elements, which are put into `taken`.

    What no kernel of ours makes is packed for whoever reads it first.
    """
    elements: dict[Value, Element] = {}
    converted: dict[tuple[Value, Element], Value] = {}
    left: list[Layer] = []

    def as_read(value: Value, element: Element) -> Value:
        if elements.setdefault(value, element) == element:
            return value
        if (value, element) not in converted:
            made = Value(name=f"{value.name}_{element}", shape=value.shape, dtype=value.dtype)
            converted[value, element] = made
            taken[made] = CONVERSION
            elements[made] = element
            left.append(Layer(operator=Conversion(), inputs=(value,), output=made, element=element))
        return converted[value, element]

    for layer in layers:
        if layer.output not in taken:
            left.append(layer)
            continue
        inputs = tuple(as_read(value, layer.source) for value in layer.inputs)
        operands = tuple(as_read(value, layer.source) for value in layer.operands)
        left.append(replace(layer, inputs=inputs, operands=operands))
        elements[layer.output] = layer.element
    return left


# ------------------------------------------------ rules


def _take(
    layers: Sequence[Layer], cpu: CpuModel, settings: CompileSettings, limits: LimitsByValue
) -> dict[Value, Rule]:
    """Who makes each result; what is left out stays with TVM."""
    taken: dict[Value, Rule] = {}
    rules, choices = settings.tried, settings.choices
    for layer in layers:
        if isinstance(layer.operator, Plain):
            continue
        if not isinstance(layer.operator, Convolution | IntegerOperator | Stack):
            # Not worth a change of layout by themselves.
            read = (*layer.inputs, *layer.operands)
            if not any(value in taken for value in read) or _grows_at_the_end(layer, layers):
                continue
        able = [
            rule
            for rule in rules
            if rule.rows is None and (rule.halves or layer.element != FLOAT16)
        ]
        choice = choices.get(signature_of(layer, limits)) if choices else None
        own, rule = limits.of(layer), None
        if choice is not None:
            named = (rule for rule in able if rule.name == choice.rule)
            rule = next((rule for rule in named if rule.within(own).can(layer, cpu)), None)
        rule = rule or next((rule for rule in able if rule.within(own).takes(layer, cpu)), None)
        if rule is not None:
            taken[layer.output] = rule
    return taken


def _grows_at_the_end(layer: Layer, layers: Sequence[Layer]) -> bool:
    """Whether a resize makes a larger image that is only read as the model has it.

    Then it is less work to change the layout of the smaller one.
    """
    if not isinstance(layer.operator, Resampling) or layer.expression:
        return False
    sizes = [product(value.shape) for value in (layer.inputs[0], layer.output)]
    return sizes[0] < sizes[1] and all(
        isinstance(other.operator, Plain)
        for other in layers
        if layer.output in (*other.inputs, *other.operands)
    )


def _with_means(layers: Sequence[Layer], taken: Mapping[Value, Rule]) -> list[Layer]:
    """The layers, those with the mean of their result as a second one whose kernels can make it,
    as squeeze-and-excite wants it."""
    means: dict[Value, Layer] = {}
    for layer in layers:
        rule = taken.get(layer.output)
        if rule is None or not rule.is_mean or layer.expression:
            continue
        if layer.element != FLOAT32:  # sums of halves would be too coarse
            continue
        made_by = taken.get(layer.inputs[0])
        if made_by is not None and made_by.averages:
            means.setdefault(layer.inputs[0], layer)

    def with_mean(layer: Layer) -> Layer:
        mean = means.get(layer.output)
        if mean is None:
            return layer
        return replace(layer, mean=mean.output, computes=(*layer.computes, *mean.computes))

    return [with_mean(layer) for layer in layers if layer not in means.values()]


# ------------------------------------------------ layouts


def _halos(layers: Sequence[Layer], taken: Mapping[Value, Rule]) -> dict[Value, Halo]:
    """The zeros around each value that those who read it want."""
    halos: dict[Value, Halo] = {}
    for layer in layers:
        rule = taken.get(layer.output)
        if rule is not None:
            wanted = rule.halo(layer)
            for value in layer.inputs:
                halos[value] = halos.get(value, NO_HALO).union(wanted)
    return halos


def _regrouped(
    layers: Sequence[Layer],
    taken: Mapping[Value, Rule],
    halos: dict[Value, Halo],
    whole: Collection[Value],
    room: Headroom,
) -> list[Layer]:
    """The layers that group images otherwise; those of overlapping ones only where all readers take
    them. What they read gets the halo that is wanted around their results; and what a result takes
    the place of, if there is no `room` for both, gets that result's."""
    apart = set(whole)
    for layer in layers:
        rule = taken.get(layer.output)
        if rule is None or not rule.reads_apart:
            apart.update((*layer.inputs, *layer.operands))
        else:
            apart.update((*layer.inputs[1:], *layer.operands))
    found = [
        layer
        for layer in layers
        if (rule := taken.get(layer.output)) is not None and rule.regrouping is not None
        if not (rule.regrouping.overlaps and layer.output in apart)
    ]
    pairs = _done_in_place(layers, taken, whole, room)
    before = None
    while before != halos:  # they only grow
        before = dict(halos)
        for layer in reversed(found):
            regrouping = taken[layer.output].regrouping
            assert regrouping is not None
            wanted = regrouping.around(layer, halos.get(layer.output, NO_HALO))
            halos[layer.inputs[0]] = halos.get(layer.inputs[0], NO_HALO).union(wanted)
        for free, result in pairs:
            over = max(free, key=lambda value: bool(halos.get(value)))
            own = [halos.get(value, NO_HALO) for value in (over, result)]
            both = own[0].union(own[1])
            least = min(_pixels(result, halo) for halo in own)
            if both.front or both.back or _pixels(result, both) <= _MOST_WIDER * least:
                halos[over] = halos[result] = both
    return found


# What a tensor may become by zeros around it, so that another one needs no bytes of its own.
_MOST_WIDER = 1.05


def _pixels(value: Value, around: Halo) -> int:
    """Elements of a tensor in a halo, whole images of zeros apart."""
    _, channels, height, width = extent(value)
    rows, columns = around.top + height + around.bottom, around.left + width + around.right
    return channels * rows * columns


def _done_in_place(
    layers: Sequence[Layer],
    taken: Mapping[Value, Rule],
    whole: Collection[Value],
    room: Headroom,
) -> list[tuple[list[Value], Value]]:
    """Results that had better take the bytes of one of those that nobody reads later, and those."""
    uses = {
        value: at for at, layer in enumerate(layers) for value in (*layer.inputs, *layer.operands)
    }
    pairs = []
    for at, layer in enumerate(layers):
        if layer.output not in taken or not room.is_for_one(layer):
            continue
        pointwise = isinstance(layer.operator, Pointwise)
        over = (*layer.inputs, *layer.operands) if pointwise else layer.operands
        free = [
            value
            for value in over
            if uses[value] == at and value in taken and value not in whole
            if value.shape == layer.output.shape and value.dtype == layer.output.dtype
        ]
        if free:
            pairs.append((free, layer.output))
    return pairs


def _with_parts(
    layouts: dict[Value, Blocked], regrouped: Sequence[Layer], taken: Mapping[Value, Rule]
) -> dict[Value, Blocked]:
    """The layouts, those of results that are parts of what their layers read as such."""
    for layer in regrouped:
        regrouping = taken[layer.output].regrouping
        assert regrouping is not None
        part = regrouping.layout(layer, layouts[layer.inputs[0]])
        layouts[layer.output] = part or layouts[layer.output]
    return layouts


def _share_bytes(
    layers: Sequence[Layer], taken: Mapping[Value, Rule], halos: dict[Value, Halo]
) -> dict[Value, Value]:
    """Values that are written straight into a joint, and that joint. All that share bytes get one
    halo.

    A part that needs a halo which its joint does not is copied: readers of images without one are
    worth more than the copy. A joint that has one anyway takes its parts' as well, if that is less
    memory than copies.
    """

    def is_view(value: Value) -> bool:
        return value in taken and taken[value].view_at is not None

    slots: dict[Value, Value] = {}
    ones = [
        layer
        for layer in layers
        if layer.output in taken and extent(layer.output)[0] == 1
        if taken[layer.output].regrouping is None
    ]
    views = [layer for layer in ones if is_view(layer.output)]
    joints = [layer for layer in ones if taken[layer.output].joining is not None]
    for layer in reversed(views):
        (source,) = layer.inputs
        halos[source] = halos.get(source, NO_HALO).union(halos.get(layer.output, NO_HALO))
    for layer in reversed(joints):
        halo = halos.get(layer.output, NO_HALO)
        able = [
            value
            for value in dict.fromkeys(layer.inputs)
            if value in taken and not is_view(value) and value not in slots
        ]
        if halo and layer.output not in slots:
            halo = halos[layer.output] = _wider(layer.output, halo, able, halos)
        for value in able:
            if halos.get(value, NO_HALO).union(halo) == halo:
                slots[value] = layer.output
                halos[value] = halo
    for layer in views:
        halos[layer.output] = halos.get(layer.inputs[0], NO_HALO)
    return slots


def _wider(joint: Value, halo: Halo, parts: Sequence[Value], halos: Mapping[Value, Halo]) -> Halo:
    """The halo of a joint that suits its parts, too, if that is worth its bytes."""
    wide = reduce(Halo.union, (halos.get(value, NO_HALO) for value in parts), halo)
    copied = [value for value in parts if halos.get(value, NO_HALO).union(halo) != halo]
    copies = sum(_pixels(value, halos[value]) for value in copied)
    return wide if _pixels(joint, wide) <= _pixels(joint, halo) + copies else halo


def _layouts(
    layers: Sequence[Layer],
    taken: Mapping[Value, Rule],
    halos: Mapping[Value, Halo],
    cpu: CpuModel,
    given: frozenset[Value],
) -> dict[Value, Blocked]:
    """The layouts of all that the kernels of rules read and write; the network is `given` some."""
    ruled = [layer for layer in layers if layer.output in taken]
    # All that read a value agree on its elements, but for the conversions between them.
    elements: dict[Value, Element] = {}
    outside: dict[Value, int] = {}
    for layer in ruled:
        to = getattr(layer.operator, "to", None)
        if to is not None:
            outside[layer.output] = to.zero
        if not isinstance(layer.operator, Conversion):
            elements.update(dict.fromkeys((*layer.inputs, *layer.operands), layer.source))
        elements.update(dict.fromkeys(layer.results, layer.element))

    def stays_planar(value: Value) -> bool:
        """Whether all that read an image of the network's own layout can do so. What is computed is
        packed as a whole by CPUs that have to pack, for it may have its channels last."""
        return (
            (value in given or (cpu.memory_operand and value not in taken))
            and len(value.shape) != 2
            and all(
                value not in layer.operands and taken[layer.output].reads_planar(layer, cpu)
                for layer in ruled
                if value in (*layer.inputs, *layer.operands)
            )
        )

    def layout(value: Value) -> Blocked:
        batch, channels, height, width = extent(value)
        planar = stays_planar(value)
        element = elements[value]
        return Blocked(
            element=element,
            batch=batch,
            channels=channels,
            height=height,
            width=width,
            block=cpu.block(channels, element),
            halo=NO_HALO if planar else halos.get(value, NO_HALO),
            planar=planar,
            outside=outside.get(value, 0),
        )

    values = [
        value for layer in ruled for value in (*layer.inputs, *layer.operands, *layer.results)
    ]
    return {value: layout(value) for value in dict.fromkeys(values)}


def _site(layer: Layer, layouts: Mapping[Value, Blocked], cpu: CpuModel) -> LayerSite:
    return LayerSite(
        layer=layer,
        inputs=tuple(layouts[value] for value in layer.inputs),
        operands=tuple(layouts[value] for value in layer.operands),
        output=layouts[layer.output],
        mean=layouts[layer.mean] if layer.mean is not None else None,
        cpu=cpu,
    )


def _alias(rule: Rule, site: LayerSite, slots: Mapping[Value, Value]) -> ViewAt | JointOf | None:
    """How a result shares its inputs' bytes; None if they have to be copied by a kernel."""
    layer = site.layer
    if rule.joining is None:
        offset = rule.view_at(site) if rule.view_at is not None else None
        return None if offset is None else ViewAt(offset=offset)
    # All parts have the joint's halo once they are in it.
    parts = [replace(part, halo=site.output.halo) for part in site.inputs]
    if not rule.joining.fits(parts, site.output):
        return None
    copied = (
        slots.get(value) is not layer.output or value in layer.inputs[:index]
        for index, value in enumerate(layer.inputs)
    )
    return JointOf(parts=tuple(zip(parts, copied, strict=True)))

"""The steps of a function: the calls of its kernels, and the conversions between them.

A value is there as the model has it ("plain"), in blocks of channels, or plain in half precision.
It is converted to another of these forms once, before the first step that reads it so. Nothing is
emitted here: equal placements give equal steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax

from edgepack.compiler.layers.tensors import variables
from edgepack.compiler.place.placement import JointOf, PlacedLayer, Placement, ViewAt
from edgepack.kernels.layer import Layer
from edgepack.kernels.rules.rule import RowsSite, Rule, product
from edgepack.kernels.tiles.element import FLOAT16
from edgepack.kernels.tiles.layout import Blocked
from edgepack.kernels.value import Value


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacedStep:
    """Makes one tensor, of those that steps before it have made. Two are never equal."""


@dataclass(frozen=True, kw_only=True, eq=False)
class InputStep(PlacedStep):
    """An input of the function."""

    value: Value


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageStep(PlacedStep):
    """The kernel of a layer that reads and makes blocks of channels."""

    layer: Layer
    rule: Rule
    reads: tuple[PlacedStep, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class MeanStep(PlacedStep):
    """The second result of a kernel: the mean of the first."""

    kernel: ImageStep


@dataclass(frozen=True, kw_only=True, eq=False)
class RowsStep(PlacedStep):
    """The kernel of a layer on plain tensors."""

    layer: Layer
    rule: Rule
    site: RowsSite
    reads: tuple[PlacedStep, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it makes the layer's result and nothing else: where an attention's queries were
        are more elements than its results."""
        return product(self.site.output.shape) == self.layer.output.size

    @property
    def dtype(self) -> str:
        """The type of the elements that it makes."""
        output = self.site.output
        return output.element.name if isinstance(output, Blocked) else output.dtype


@dataclass(frozen=True, kw_only=True, eq=False)
class LoweredStep(PlacedStep):
    """An expression that TVM lowers, of plain tensors."""

    expression: relax.Expr
    reads: Mapping[Value, PlacedStep]


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewStep(PlacedStep):
    """The bytes of another tensor, from `offset` on, in another shape."""

    source: PlacedStep
    shape: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class CopyStep(PlacedStep):
    """A copy of a value's blocks with the layout that they have in a joint."""

    source: PlacedStep
    value: Value
    rule: Rule
    layout: Blocked


@dataclass(frozen=True, kw_only=True, eq=False)
class JointStep(PlacedStep):
    """The bytes of all parts, one after the other."""

    parts: tuple[PlacedStep, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class PackStep(PlacedStep):
    """A plain tensor's elements in blocks of channels; `shown` is the shape for reports."""

    source: PlacedStep
    shape: tuple[int, ...]
    layout: Blocked
    shown: tuple[int, ...]
    channels_last: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class UnpackStep(PlacedStep):
    """A plain tensor of `shape` and `dtype`, out of blocks of channels. It is what `value` is, if
    one is named; `shown` is the shape for reports."""

    source: PlacedStep
    layout: Blocked
    shape: tuple[int, ...]
    dtype: str
    shown: tuple[int, ...]
    channels_last: bool = False
    value: Value | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class CastStep(PlacedStep):
    """A plain tensor's elements as another type."""

    source: PlacedStep
    dtype: str


@dataclass(frozen=True, kw_only=True, eq=False)
class TurnStep(PlacedStep):
    """An image with its rows and columns in each other's place."""

    source: PlacedStep


@dataclass(frozen=True, kw_only=True)
class PlacedSteps:
    """All steps, in order, and those that make the function's results."""

    steps: tuple[PlacedStep, ...]
    results: Mapping[Value, PlacedStep]


def steps_of(main: relax.Function, placement: Placement) -> PlacedSteps:
    """What is called and converted, in order, to compute a function that was placed."""
    planner = _Planner(placement, [placement.values.of(param) for param in main.params])
    for placed in placement.layers:
        planner.place(placed)
    results = planner.read_plain(main.body.body)
    return PlacedSteps(steps=tuple(planner.steps), results=results)


class _Planner:
    """Appends to `steps` what a layer needs, and remembers in which forms each value is there."""

    def __init__(self, placement: Placement, inputs: Sequence[Value]) -> None:
        self.placement = placement
        self.steps: list[PlacedStep] = []
        self.plain: dict[Value, PlacedStep] = {}
        self.blocked: dict[Value, PlacedStep] = {}
        self.halves: dict[Value, PlacedStep] = {}
        # Transpositions to channels first whose results are read in blocks, which are packed from
        # what they transpose; they are done only if anything else reads them.
        self.turned: dict[Value, relax.Call] = {}
        self.originals = {twin: value for value, twin in placement.twins.items()}
        for value in inputs:
            self.plain[value] = self._add(InputStep(value=value))

    def place(self, placed: PlacedLayer) -> None:
        """Add what makes a layer's result."""
        layer, rule = placed.layer, placed.rule
        if rule is None:
            self._lower(layer)
        elif placed.alias is not None:
            self.blocked[layer.output] = self._add(self._shared(layer, rule, placed.alias))
        elif rule.rows is not None:
            self._of_rows(layer, rule, self.placement.rows_site(layer, rule))
        else:
            self._of_images(layer, rule)

    def read_plain(self, expression: relax.Expr) -> dict[Value, PlacedStep]:
        """The steps that make what an expression reads, as the model has it."""
        read = map(self.placement.values.of, variables(expression))
        return {value: self._plain(value) for value in dict.fromkeys(read)}

    def _add(self, step: PlacedStep) -> PlacedStep:
        self.steps.append(step)
        return step

    def _lower(self, layer: Layer) -> None:
        value = layer.output
        expression = self.placement.values.expressions[value]
        if value in self.placement.layouts and _order(expression) in _TO_FIRST:
            self.turned[value] = expression
        elif layer.is_reshape and self.placement.root(layer.inputs[0]) in self.halves:
            source = self._as_rows(layer.inputs[0], FLOAT16.name)
            self.halves[value] = self._add(ViewStep(source=source, shape=value.shape))
        else:
            self.plain[value] = self._by_tvm(value, expression)

    def _of_images(self, layer: Layer, rule: Rule) -> None:
        reads = tuple(map(self._blocks, (*layer.inputs, *layer.operands)))
        kernel = ImageStep(layer=layer, rule=rule, reads=reads)
        self.blocked[layer.output] = self._add(kernel)
        if layer.mean is not None:
            self.blocked[layer.mean] = self._add(MeanStep(kernel=kernel))

    def _of_rows(self, layer: Layer, rule: Rule, site: RowsSite) -> None:
        seen = zip((*layer.inputs, *layer.operands), (*site.inputs, *site.operands), strict=True)
        reads = tuple(
            self._add(ViewStep(source=self._as_rows(value, rows.dtype), shape=tuple(rows.shape)))
            for value, rows in seen
        )
        kernel = RowsStep(layer=layer, rule=rule, site=site, reads=reads)
        made, shape = self._add(kernel), layer.output.shape
        output = site.output
        if isinstance(output, Blocked):
            made = self._add(
                UnpackStep(source=made, layout=output, shape=shape, dtype=kernel.dtype, shown=shape)
            )
        elif kernel.is_whole:
            made = self._add(ViewStep(source=made, shape=shape))
        in_halves = not isinstance(output, Blocked) and output.dtype != layer.output.dtype
        (self.halves if in_halves else self.plain)[layer.output] = made

    def _shared(self, layer: Layer, rule: Rule, alias: ViewAt | JointOf) -> PlacedStep:
        """A result that shares its inputs' bytes."""
        shape = tuple(self.placement.layouts[layer.output].shape)
        if isinstance(alias, ViewAt):
            source = self._blocks(layer.inputs[0])
            return ViewStep(source=source, shape=shape, offset=alias.offset)
        parts = []
        for value, (layout, copied) in zip(layer.inputs, alias.parts, strict=True):
            part = self._blocks(value)
            if copied:
                part = self._add(CopyStep(source=part, value=value, rule=rule, layout=layout))
            parts.append(part)
        return JointStep(parts=tuple(parts), shape=shape)

    def _by_tvm(self, value: Value, expression: relax.Expr) -> PlacedStep:
        """A value computed by TVM, of tensors as the model has them."""
        if _order(expression) in _TO_LAST:
            image = self._transposed(expression)
            if self._is_only_blocked(image):
                return self._to_channels_last(value, image)
        return self._add(LoweredStep(expression=expression, reads=self.read_plain(expression)))

    def _transposed(self, transposition: relax.Call) -> Value:
        return self.placement.values.of(transposition.args[0])

    def _blocks(self, value: Value) -> PlacedStep:
        """A value in blocks of channels, packed from the plain one the first time."""
        if value not in self.blocked:
            self.blocked[value] = self._packed(value, self.placement.layouts[value])
        return self.blocked[value]

    def _packed(self, value: Value, layout: Blocked) -> PlacedStep:
        shape = tuple(layout.shape)
        if layout.planar and value.shape == shape:
            return self._plain(value)
        if layout.planar or _same_bytes(layout):
            return self._add(ViewStep(source=self._plain(value), shape=shape))
        turned = self.turned.get(value)
        source = value if turned is None else self._transposed(turned)
        return self._add(
            PackStep(
                source=self._plain(source),
                shape=source.shape,
                layout=layout,
                shown=value.shape,
                channels_last=turned is not None,
            )
        )

    def _plain(self, value: Value) -> PlacedStep:
        """A value as the model has it, unpacked from its blocks the first time."""
        if value in self.plain:
            return self.plain[value]
        root, shape = self.placement.root(value), value.shape
        if root in self.turned and root not in self.plain:
            self.plain[root] = self._by_tvm(root, self.turned[root])
            return self._plain(value)
        if root in self.halves and root not in self.blocked and root not in self.plain:
            cast = CastStep(source=self.halves[root], dtype=root.dtype)
            self.plain[root] = self._add(cast)
            return self._plain(value)
        if root in self.blocked:
            layout = self.placement.layouts[root]
            if layout.planar or _same_bytes(layout):
                made = self._add(ViewStep(source=self.blocked[root], shape=shape))
            else:
                made = self._unpacked(root, shape, shown=shape)
        elif root in self.plain:
            made = self._add(ViewStep(source=self.plain[root], shape=shape))
        else:
            # Made as its twin, or as what it is the twin of.
            twin = self.placement.twins.get(root)
            other = twin if twin is not None else self.originals[root]
            made = self._add(_turned(self._plain(other), other.shape, root.shape))
            if shape != root.shape:
                made = self._add(ViewStep(source=made, shape=shape))
        self.plain[value] = made
        return made

    def _as_rows(self, value: Value, dtype: str) -> PlacedStep:
        """A value as the model has it, in half precision if it is wanted so."""
        is_half = dtype == FLOAT16.name and dtype != value.dtype
        return self._half(value) if is_half else self._plain(value)

    def _half(self, value: Value) -> PlacedStep:
        if value not in self.halves:
            root = self.placement.root(value)
            if root in self.halves:
                made: PlacedStep = ViewStep(source=self.halves[root], shape=value.shape)
            else:
                made = CastStep(source=self._plain(value), dtype=FLOAT16.name)
            self.halves[value] = self._add(made)
        return self.halves[value]

    def _is_only_blocked(self, value: Value) -> bool:
        """Whether a value, with its channels first, would have to be unpacked."""
        if value in self.plain:
            return False
        root = self.placement.root(value)
        if root not in self.blocked or root in self.plain:
            return False
        layout = self.placement.layouts[root]
        pixels = (layout.batch, layout.channels, layout.height * layout.width)
        batch, channels, *sizes = value.shape
        is_same_image = (batch, channels, product(sizes)) == pixels
        return is_same_image and not layout.planar and not _same_bytes(layout)

    def _to_channels_last(self, made: Value, image: Value) -> PlacedStep:
        """The transposition of an image that is there in blocks only."""
        root = self.placement.root(image)
        layout = self.placement.layouts[root]
        shape = (layout.batch, layout.height, layout.width, layout.channels)
        last = self._unpacked(root, shape, shown=made.shape, channels_last=True, value=made)
        return self._add(ViewStep(source=last, shape=made.shape))

    def _unpacked(
        self,
        root: Value,
        shape: tuple[int, ...],
        *,
        shown: tuple[int, ...],
        channels_last: bool = False,
        value: Value | None = None,
    ) -> PlacedStep:
        """A plain tensor of `shape` from what is there in blocks."""
        layout = self.placement.layouts[root]
        return self._add(
            UnpackStep(
                source=self.blocked[root],
                layout=layout,
                shape=shape,
                dtype=layout.element.accumulator,
                shown=shown,
                channels_last=channels_last,
                value=value,
            )
        )


_PERMUTE = tvm.ir.Op.get("relax.permute_dims")
# Orders of axes that put the channels of images and of sequences last, or first again.
_TO_LAST = ((0, 2, 3, 1), (0, 2, 1))
_TO_FIRST = ((0, 3, 1, 2), (0, 2, 1))


def _order(value: relax.Expr) -> tuple[int, ...] | None:
    """The axes of a transposition of a computed tensor, None of anything else."""
    if not isinstance(value, relax.Call) or value.op != _PERMUTE or value.attrs.axes is None:
        return None
    if not isinstance(value.args[0], relax.Var):
        return None
    return tuple(int(axis) % len(value.attrs.axes) for axis in value.attrs.axes)


def _turned(image: PlacedStep, source: tuple[int, ...], shape: tuple[int, ...]) -> PlacedStep:
    """An image of shape `source` with rows and columns in each other's place."""
    if 1 in shape[-2:] or len(source) != len(shape):
        return ViewStep(source=image, shape=shape)
    return TurnStep(source=image)


def _same_bytes(layout: Blocked) -> bool:
    """Whether the blocks and the plain tensor have the same bytes in the same order."""
    one_pixel = layout.height == layout.width == 1 and not layout.halo
    is_plain = layout.element.name == layout.element.accumulator
    return one_pixel and is_plain and layout.channels % layout.block == 0

"""Narrow images are turned, so that tiles, which are pieces of a row, lie along the longer axis.

Rows and columns change places in all layers that are connected, if that makes their convolutions
cheaper: a sequence as an image one pixel wide, (N, C, L, 1), is done as (N, C, 1, L). Then no bytes
move. Where an image has several columns it is transposed at the border of the region.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from edgepack.kernels.layer import (
    Concatenation,
    Convolution,
    Foreign,
    GlobalPooling,
    Layer,
    Operator,
    Pointwise,
    Pooling,
    Resampling,
    Slice,
    Stack,
    Unstack,
)
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import ELEMENTS
from edgepack.kernels.tiles.layout import Blocked
from edgepack.kernels.tiles.product import choose_tile
from edgepack.kernels.value import Value, extent

# The part of a region's cycles that has to be left where bytes move: the cost model is no better
# than that (a guess).
_WORTH = 0.8
# Cycles to transpose an element at a region's border (a guess).
_TRANSPOSED = 2
_TURNABLE = (
    *(Concatenation, Convolution, GlobalPooling, Pointwise, Pooling, Resampling, Slice),
    *(Stack, Unstack),
)


@dataclass(frozen=True, kw_only=True)
class Turned:
    """The layers after it. `twins` has, for each value that is turned, what they compute instead;
    `same` values whose bytes are those of another one: of a twin."""

    layers: Sequence[Layer]
    twins: Mapping[Value, Value]
    same: Mapping[Value, Value]

    def now(self, value: Value) -> Value:
        """What has the elements of a value."""
        return self.same.get(value, self.twins.get(value, value))


def turn(layers: Sequence[Layer], outputs: Sequence[Value], cpu: CpuModel) -> Turned:
    """Turn the regions where that is worth it; `outputs` are the function's results."""
    regions = [region for region in _regions(layers) if _is_worth_it(region, layers, outputs, cpu)]
    inside = {layer.output for region in regions for layer in region}
    values = dict.fromkeys(
        value for region in regions for layer in region for value in _images(layer)
    )
    straight = {layer.output: layer.inputs[0] for layer in layers if _turns(layer)}
    twins, same = dict[Value, Value](), dict[Value, Value]()
    for value in values:
        source = straight.get(value)
        # The sequence that an image of one column was made of.
        twins[value] = source if source is not None and source not in values else _twin(value)
    for result, source in straight.items():
        if source in twins and result not in twins:
            same[result] = twins[source]

    def now(value: Value) -> Value:
        return same.get(value, twins.get(value, value))

    left = []
    for layer in layers:
        if layer.output in same:
            continue
        if layer.output not in inside and not isinstance(layer.operator, Foreign):
            # It takes rows as the model has them: they are turned back before.
            left.append(replace(layer, inputs=tuple(same.get(item, item) for item in layer.inputs)))
            continue
        made = replace(
            layer, inputs=tuple(map(now, layer.inputs)), operands=tuple(map(now, layer.operands))
        )
        if layer.output in inside:
            made = replace(made, operator=_turned(layer.operator), output=now(layer.output))
        elif layer.output in twins and twins[layer.output] in layer.inputs:
            continue
        left.append(made)
    return Turned(layers=left, twins=twins, same=same)


def _twin(value: Value) -> Value:
    n, c, h, w = extent(value)
    return Value(name=f"{value.name}_turned", shape=(n, c, w, h), dtype=value.dtype)


def _images(layer: Layer) -> list[Value]:
    """What it reads and writes of more than one pixel."""
    values = (*layer.inputs, *layer.operands, *layer.results)
    return [value for value in values if extent(value)[2:] != (1, 1)]


def _turns(layer: Layer) -> bool:
    """Whether a reshape makes an image of one column of a sequence, or the other way round."""
    names = {("reshape",), ("squeeze",), ("expand_dims",)}
    if not isinstance(layer.operator, Foreign) or layer.operator.names not in names:
        return False
    shapes = [var.shape for var in (*layer.inputs, layer.output)]
    if len(shapes) != 2 or {len(shape) for shape in shapes} != {3, 4}:
        return False
    sequence, image = sorted(shapes, key=len)
    return image == (*sequence, 1)


def _regions(layers: Sequence[Layer]) -> Iterable[list[Layer]]:
    """Layers that are connected by images, if all of them can be turned."""
    parents: dict[Value, Value] = {}

    def root(value: Value) -> Value:
        while (parent := parents.get(value, value)) != value:
            value = parent
        return value

    members = [layer for layer in layers if isinstance(layer.operator, _TURNABLE)]
    members = [layer for layer in members if _images(layer)]
    for layer in members:
        first, *others = _images(layer)
        for other in others:
            parents[root(other)] = root(first)
    regions: dict[Value, list[Layer]] = defaultdict(list)
    for layer in members:
        regions[root(_images(layer)[0])].append(layer)
    for region in regions.values():
        if all(len(value.shape) == 4 for layer in region for value in _images(layer)):
            yield region


def _is_worth_it(
    region: Sequence[Layer], layers: Sequence[Layer], outputs: Sequence[Value], cpu: CpuModel
) -> bool:
    convolutions = [layer for layer in region if isinstance(layer.operator, Convolution)]
    if not any(extent(layer.output)[2] > 2 * extent(layer.output)[3] for layer in convolutions):
        return False
    made = {value for layer in region for value in layer.results}
    read = {value for layer in region for value in (*layer.inputs, *layer.operands)}
    others = (layer for layer in layers if layer.output not in made)
    outside = {value for layer in others for value in layer.inputs} | set(outputs)
    border = (read - made) | (made & outside)
    moved = sum(_elements(value) for value in border if 1 not in extent(value)[2:])
    now = sum(_cycles(layer, cpu, turned=False) for layer in convolutions)
    then = sum(_cycles(layer, cpu, turned=True) for layer in convolutions)
    return then + _TRANSPOSED * moved < now * (_WORTH if moved else 1)


def _elements(value: Value) -> int:
    n, c, h, w = extent(value)
    return n * c * h * w


def _cycles(layer: Layer, cpu: CpuModel, *, turned: bool) -> float:
    """About what a convolution takes."""
    operator = layer.operator
    assert isinstance(operator, Convolution)
    batch, channels, height, width = extent(layer.output)
    element = ELEMENTS[layer.output.dtype]
    block = cpu.block(channels, element)
    output = Blocked(
        element=element,
        batch=batch,
        channels=channels,
        height=width if turned else height,
        width=height if turned else width,
        block=block,
    )
    reduction = operator.weight[0].size
    columns = operator.weight.shape[-2 if turned else -1]
    return choose_tile(
        output, blocks=output.blocks, reduction=reduction, cpu=cpu, columns=columns
    ).cycles


def _turned(operator: Operator) -> Operator:
    """The same with rows and columns in each other's place."""
    if isinstance(operator, Convolution):
        quantized = operator.quantized
        return replace(
            operator,
            weight=operator.weight.swapaxes(2, 3),
            stride=operator.stride[::-1],
            before=operator.before[::-1],
            dilation=operator.dilation[::-1],
            quantized=quantized and quantized.transposed([0, 1, 3, 2]),
        )
    if isinstance(operator, Pooling):
        return replace(
            operator,
            kernel=operator.kernel[::-1],
            stride=operator.stride[::-1],
            before=operator.before[::-1],
            after=operator.after[::-1],
            dilation=operator.dilation[::-1],
        )
    if isinstance(operator, Resampling):
        return replace(operator, rows=operator.columns, columns=operator.rows)
    return operator

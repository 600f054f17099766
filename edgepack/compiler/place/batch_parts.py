"""Convolutions of a batch of images, such as a volume's, some images at a time.

Images that nobody reads later are free then, part by part, and the result may lie there: both
together need hardly more memory than the larger one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgepack.compiler.place.headroom import Headroom
from edgepack.kernels.layer import Convolution, Layer
from edgepack.kernels.rules.rule import LayerSite
from edgepack.kernels.tiles.layout import ALIGNMENT
from edgepack.kernels.value import Value

_PARTS = 4
# Of the most bytes that are in use in any case: what may be more, for scratch memory and zeros
# around images are not counted.
_MUCH = 2 / 3


def worth_parts(layers: Sequence[Layer], room: Headroom) -> frozenset[Value]:
    """The results that had better be made in parts: those where much is in use of what has to be
    somewhere, with all of them in parts."""
    most = {layer.output: room.most(layer) for layer in layers if room.has(layer)}
    saved = {
        layer.output: room.common(layer) * (_PARTS - 1) // _PARTS
        for layer in layers
        if layer.output in most and _has_parts(layer)
    }
    least = max((most[value] - saved.get(value, 0) for value in most), default=0)
    return frozenset(value for value in saved if saved[value] and most[value] >= _MUCH * least)


def _has_parts(layer: Layer) -> bool:
    """Whether it makes an image of each of its input's, which are enough."""
    if not isinstance(layer.operator, Convolution) or layer.operands or layer.mean is not None:
        return False
    shapes = layer.inputs[0].shape, layer.output.shape
    return all(len(shape) == 4 for shape in shapes) and shapes[0][0] == shapes[1][0] >= _PARTS


@dataclass(frozen=True, kw_only=True)
class BatchPart:
    """Some images of a layer: those that it reads begin at byte `read` of the input, and its own at
    byte `start` of the result."""

    read: int
    start: int
    site: LayerSite


def parts_of(site: LayerSite) -> list[BatchPart]:
    """The parts of a layer, in order; none if they would not be aligned."""
    (source,), target = site.inputs, site.output
    if source.planar or target.planar or target.apart or source.batch != target.batch:
        return []
    plane_bytes = source.nbytes // source.shape[0]
    each = -(-target.batch // _PARTS)
    parts, start = [], 0
    for first in range(0, target.batch, each):
        count = min(each, target.batch - first)
        layer, (given,) = site.layer, site.layer.inputs
        some = replace(
            layer,
            inputs=(replace(given, shape=(count, *given.shape[1:])),),
            output=replace(layer.output, shape=(count, *layer.output.shape[1:])),
        )
        halo = replace(
            target.halo,
            front=target.halo.front if first == 0 else 0,
            back=target.halo.back if first + count == target.batch else 0,
        )
        made = replace(
            site,
            layer=some,
            inputs=(replace(source, batch=count, halo=source.halo.of_images),),
            output=replace(target, batch=count, halo=halo),
        )
        read = (source.halo.front + first) * source.step * plane_bytes
        parts.append(BatchPart(read=read, start=start, site=made))
        start += made.output.nbytes
    is_aligned = not any(part.read % ALIGNMENT or part.start % ALIGNMENT for part in parts)
    return parts if is_aligned else []

"""Which kernel an attention gets: one that packs keys and values, or one that reads them where they
lie."""

from __future__ import annotations

from edgepack.kernels.choices import Ranked
from edgepack.kernels.layer import FEWEST_QUERIES, Attention, Layer
from edgepack.kernels.rules.attention import NAME, AttentionKernel
from edgepack.kernels.rules.few_queries import FewQueries
from edgepack.kernels.rules.rule import LayerKernel, Rows, RowsSite, Rule, product
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT32


def takes(layer: Layer, cpu: CpuModel) -> bool:
    """All attentions; `layers.attention` says what is one. In half precision, of whole vectors."""
    operator = layer.operator
    if not isinstance(operator, Attention):
        return False
    lanes, keys = cpu.narrowest(layer.element), operator.keys.places.shape
    return layer.element == FLOAT32 or (
        operator.result.shape[-1] % lanes == 0 and min(keys[-2:]) >= lanes
    )


def rows_of(layer: Layer, cpu: CpuModel) -> RowsSite:
    """All elements of each tensor."""
    operator = layer.operator
    assert isinstance(operator, Attention)
    dtype = layer.element.name
    masks = {part.source for part in operator.masks if isinstance(part.source, int)}
    inputs = tuple(
        Rows(shape=(size,), dtype=FLOAT32.name if number in masks else dtype)
        for number, size in enumerate(operator.sizes)
    )
    made = product(operator.result.shape)
    if operator.in_queries:
        assert isinstance(operator.queries.source, int)
        made = operator.sizes[operator.queries.source]
    return RowsSite(layer=layer, inputs=inputs, output=Rows(shape=(made,), dtype=dtype), cpu=cpu)


def make(site: RowsSite) -> LayerKernel:
    """The kernel. With `room` for scratch memory it takes no more than that, if it can make do."""
    return _kernel_of(site).kernel()


def ways(site: RowsSite) -> list[Ranked]:
    """Tiles of the scores and numbers of queries at a time; of few queries, of keys."""
    return _kernel_of(site).ways()


def _kernel_of(site: RowsSite) -> AttentionKernel:
    operator = site.layer.operator
    assert isinstance(operator, Attention)
    few = operator.result.shape[-2] < FEWEST_QUERIES
    return (FewQueries if few else AttentionKernel)(site)


RULE = Rule(
    name=NAME,
    takes=takes,
    rows=rows_of,
    make=make,
    kept=True,
    in_place_of_queries=True,
    ways=ways,
)

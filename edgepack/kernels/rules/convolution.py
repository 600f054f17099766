"""Convolution of any window, stride, dilation and grouping; a matrix product is one of 1x1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice

import numpy as np
from tvm import tirx

from edgepack.kernels.choices import PANEL, PANELS, PIXELS, WIDE, Ranked, Way
from edgepack.kernels.layer import Convolution, Layer
from edgepack.kernels.rules.layout_transform import PackedRows
from edgepack.kernels.rules.rule import LayerKernel, LayerSite, Rule, window_halo
from edgepack.kernels.tiles import arm, micro, tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT16, FLOAT32
from edgepack.kernels.tiles.layout import Blocked, Image, Planar
from edgepack.kernels.tiles.product import (
    MOST_COLUMNS,
    Partition,
    ProductLoops,
    Shape,
    Window,
    choose_tile,
    most_unrolled,
    pack_bias,
    pack_weights,
    rank_tiles,
    stored_halves,
    stream_cycles,
)
from edgepack.kernels.tiles.tile import RegisterTile
from edgepack.kernels.value import extent

halo = window_halo

# Rows of results of an image that is packed by bands: of a sequence there is one.
_FEWEST_ROWS = 8
# Of groups side by side, so many channels times columns of the window are unrolled at most, each
# for up to 16 pixels.
_MOST_SIDE_BY_SIDE = 40


def is_plain(layer: Layer) -> bool:
    """Whether a convolution is of one group, and has no gate."""
    operator = layer.operator
    assert isinstance(operator, Convolution)
    return operator.groups == 1 and not operator.gated


def merged_groups(operator: Convolution, in_block: int, out_block: int) -> int:
    """How many neighbouring groups to treat as one, so that each has whole blocks.

    The merged group's weights are zero between channels of different groups. All of them
    merged make a plain convolution.
    """
    ins, outs = operator.weight.shape[1], operator.weight.shape[0] // operator.groups
    for merged in range(1, operator.groups):
        whole = ins * merged % in_block == 0 and outs * merged % out_block == 0
        if operator.groups % merged == 0 and whole:
            return merged
    return operator.groups


def dense_weight(operator: Convolution, merged: int) -> np.ndarray:
    """Weights [groups, out, in, rows, columns] with `merged` groups made one."""
    weight, groups = operator.weight, operator.groups
    outs, ins = weight.shape[0] // groups, weight.shape[1]
    if merged == 1:
        return weight.reshape(groups, outs, ins, *weight.shape[2:])
    dense = np.zeros(
        (groups // merged, outs * merged, ins * merged, *weight.shape[2:]), weight.dtype
    )
    split = weight.reshape(groups // merged, merged, outs, ins, *weight.shape[2:])
    for i in range(merged):
        dense[:, i * outs : (i + 1) * outs, i * ins : (i + 1) * ins] = split[:, i]
    return dense


def grouped_weight(
    operator: Convolution, source: Blocked, output: Blocked, cpu: CpuModel
) -> tuple[np.ndarray, Shape]:
    """Weights [groups, out, in, rows, columns], and the shape of the product with them.

    Groups smaller than a block are done side by side on CPUs with AVX, where their channels and
    results are one block. Otherwise they are made one by weights of zero: see `merged_groups`.
    """
    merged = merged_groups(operator, source.block, output.block)
    outs = operator.weight.shape[0] // operator.groups
    if _are_side_by_side(operator, source.block, output.block, cpu):
        weight = operator.weight.reshape(-1, merged * outs, *operator.weight.shape[1:])
        return weight, Shape.of_groups_in_blocks(weight, source, output)
    weight = dense_weight(operator, merged)
    return weight, Shape.of(weight, source, output)


def _are_side_by_side(operator: Convolution, in_block: int, out_block: int, cpu: CpuModel) -> bool:
    """Whether several groups are one block, each lane of which reads its own group's channels."""
    merged = merged_groups(operator, in_block, out_block)
    outs, ins = operator.weight.shape[0] // operator.groups, operator.weight.shape[1]
    fits = ins * merged == in_block == out_block == outs * merged
    unrolled = ins * operator.kernel[1]
    return merged > 1 and fits and cpu.memory_operand and unrolled <= _MOST_SIDE_BY_SIDE


def merges(layer: Layer, cpu: CpuModel, *, side_by_side: bool = True) -> bool:
    """Whether groups are made one by weights of zero, if not those that can be `side_by_side`."""
    operator = layer.operator
    assert isinstance(operator, Convolution)
    in_block, out_block = (
        cpu.block(extent(value)[1], layer.element) for value in (layer.inputs[0], layer.output)
    )
    if operator.groups == 1 or merged_groups(operator, in_block, out_block) == 1:
        return False
    return not (side_by_side and _are_side_by_side(operator, in_block, out_block, cpu))


def window_of(operator: Convolution) -> Window:
    """How its window goes over the image."""
    return Window(stride=operator.stride, before=operator.before, dilation=operator.dilation)


def make(site: LayerSite) -> LayerKernel:
    """The kernel of a convolution."""
    operator = site.layer.operator
    assert isinstance(operator, Convolution)
    source, output = site.inputs[0], site.output
    weight, shape = grouped_weight(operator, source, output, site.cpu)
    packs = source.planar and not site.cpu.memory_operand
    flat = is_flat(operator, site) and not packs
    view_out = output.flat if flat else output
    choice = site.chosen(RULE.name)
    chosen = choose_tile(
        view_out,
        blocks=shape.out_blocks,
        reduction=shape.reduction,
        cpu=site.cpu,
        groups=shape.groups,
        columns=shape.kernel[1],
        choice=choice,
    )
    packed = pack_weights(weight, shape, chosen.vectors)
    packed_bias = pack_bias(operator.bias, output, site.cpu)
    halves = None
    if site.layer.weights == FLOAT16:
        halves = stored_halves(packed, shape, chosen.vectors, site.cpu)
    weights = tir.buffer("weights", packed.shape, str(packed.dtype))
    weights_read = halves.wide if halves else weights
    image = Planar if source.planar else Image
    given = image("source", source, source.flat if flat else source)
    target = Image("target", output, view_out)
    bias = tir.buffer("bias", packed_bias.shape, str(packed_bias.dtype))
    epilogue = site.epilogue(flat=flat, pixels=chosen.pixels)

    def loops_on(image: Image) -> ProductLoops:
        return ProductLoops(
            cpu=site.cpu,
            window=window_of(operator),
            shape=shape,
            tile=chosen,
            source=image,
            target=target,
            weights=weights_read,
            bias=bias,
            bias_first=operator.bias is None,
            epilogue=epilogue,
            clears=True,
            halves=halves,
            functions=functions,
            choice=choice,
        )

    functions = micro.AssemblyFunctions()
    loops = loops_on(given)
    bands = None
    if packs:
        assert isinstance(given, Planar)
        cores = site.cpu.cores if loops.partition.worth_sharing else 1
        bands = _PackedBands.of(site, given, cores=cores)

    def one_image(n: tir.Expr) -> tir.Stmt:
        if bands is None:
            return loops.image(n, parallel=loops.partition.worth_sharing)
        return bands.image(n, loops_on)

    def function() -> tirx.PrimFunc:
        whole = tir.sequence(
            loops.epilogue.clear_around_means(),
            tir.loop_of("n", output.batch, one_image),
            loops.epilogue.means(),
        )
        return tir.function(
            [
                loops.source.buffer,
                *loops.epilogue.operand_buffers,
                halves.stored if halves else loops.weights,
                loops.bias,
                *loops.epilogue.constants,
                loops.target.buffer,
                *loops.epilogue.average_buffers,
                *([halves.wide] if halves else []),
                *([bands.packed.scratch.buffer] if bands else []),
            ],
            loops.imported(whole),
            in_place=loops.in_place,
        )

    notes = {"flat": flat, "pixels": loops.partition.pixels_outer, "mean": site.mean is not None}
    if bands is not None:
        notes |= {"pixels": False, f"{bands.rows} rows": True}
    rows, columns = operator.kernel
    name = (
        f"conv{rows}x{columns}_{source.channels}_{output.channels}_{output.height}x{output.width}"
    )
    if operator.stride != (1, 1):
        name += f"_s{operator.stride[0]}"
    if site.mean:
        name += "_mean"
    return LayerKernel(
        name=name,
        function=function,
        constants=(halves.packed if halves else packed, packed_bias, *loops.epilogue.packed),
        tile=" ".join([str(chosen), *(word for word, holds in notes.items() if holds)]),
        macs=operator.weight.size * output.height * output.width * output.batch,
        cycles=chosen.cycles + (halves.cycles if halves else 0),
        by_pixels=bands.packed.shares > 1 if bands else loops.partition.by_pixels,
    )


@dataclass(frozen=True, kw_only=True)
class _PackedBands:
    """An image that the network is given, in bands of `rows` rows of results: what a band's windows
    reach is packed before it is made, and the image never as a whole."""

    packed: PackedRows
    rows: int
    height: int
    stride: int
    before: int

    @classmethod
    def of(cls, site: LayerSite, source: Planar, *, cores: int) -> _PackedBands:
        """The tallest bands whose inputs fill no more than the first-level cache."""
        operator, height = site.layer.operator, site.output.height
        assert isinstance(operator, Convolution)
        window = (operator.kernel[0] - 1) * operator.dilation[0] + 1
        layout, around = source.layout, halo(site.layer)
        row_bytes = layout.element.bytes * layout.block
        row_bytes *= around.left + layout.width + around.right
        most = (site.cpu.l1_bytes // row_bytes - window) // operator.stride[0] + 1
        rows = min(max(1, most), -(-height // cores))
        reached = (rows - 1) * operator.stride[0] + window
        return cls(
            packed=PackedRows(source=source, halo=around, rows=reached, shares=cores),
            rows=rows,
            height=height,
            stride=operator.stride[0],
            before=operator.before[0],
        )

    def image(self, n: tir.Expr, loops_on: Callable[[Image], ProductLoops]) -> tir.Stmt:
        """All bands of an image, by the loops on what is packed."""
        cores = self.packed.shares
        full, rest = divmod(self.height, self.rows)
        bands = full + bool(rest)
        each = -(-bands // cores)

        def band(core: tir.Expr, number: tir.Expr, rows: int) -> tir.Stmt:
            first = number * self.rows
            top = tir.expr(first * self.stride - self.before)
            made = loops_on(self.packed.image(n, core, top)).band(n, first, rows)
            return tir.sequence(self.packed.pack(n, core, top, self.packed.rows), made)

        def one(core: tir.Expr, turn: tir.Expr) -> tir.Stmt:
            number = core * each + turn
            last = (lambda: band(core, full, rest)) if rest else None
            made = tir.turn(number, full, lambda at: band(core, at, self.rows), last)
            return made if bands % cores == 0 else tir.when(tir.expr(number) < bands, made)

        return tir.loop_of(
            "core",
            cores,
            lambda core: tir.loop_of("band", each, lambda turn: one(core, turn)),
            parallel=cores > 1,
        )


def ways(site: LayerSite) -> list[Ranked]:
    """All tiles, with either order of the loops."""
    operator = site.layer.operator
    assert isinstance(operator, Convolution)
    source, output = site.inputs[0], site.output
    _, shape = grouped_weight(operator, source, output, site.cpu)
    flat = is_flat(operator, site)
    view_in, view_out = (source.flat, output.flat) if flat else (source, output)
    tiles = rank_tiles(
        view_out,
        blocks=shape.out_blocks,
        reduction=shape.reduction,
        cpu=site.cpu,
        groups=shape.groups,
        columns=shape.kernel[1],
    )
    # As `plain_cycles` of Winograd's plan, so that the two can be compared.
    streamed = stream_cycles(shape.weight_bytes * shape.groups, 1, site.cpu)
    prepared = site.layer.weights != site.layer.element
    found = []
    for item in tiles:
        partition = Partition(
            cpu=site.cpu,
            shape=shape,
            tile=item,
            source=view_in,
            target=view_out,
            prepared=prepared,
        )
        order = PIXELS if partition.pixels_outer else PANELS
        choice = Way(rule=RULE.name, pixels=item.pixels, vectors=item.vectors, order=order)
        found.append(Ranked(choice=choice, cycles=item.cycles + streamed))
        if item is tiles[0]:
            others = _other_loops(choice, partition, site, tiles)
    for place, other in enumerate(others):
        # Between the tiles: one of these after each.
        found.insert(2 * place + 2, Ranked(choice=other, cycles=found[0].cycles))
    return found


def _other_loops(
    choice: Way, partition: Partition, site: LayerSite, tiles: Sequence[RegisterTile]
) -> list[Way]:
    """The same tile with other loops around and in it; the cost model has no figures for them."""
    found = []
    if partition.worth_sharing:
        found.append(replace(choice, share=PANELS if partition.by_pixels else PIXELS))
    kernel = arm.micro_kernel(site.cpu, site.output.element)
    if kernel is not None and site.cpu.pipeline:
        # Loaded whole, the inputs of some tiles do not fit.
        held = (one for one in tiles if kernel.fits(one.pixels, one.vectors, site.cpu.registers))
        found += [
            replace(choice, pixels=one.pixels, vectors=one.vectors, loads=WIDE)
            for one in islice(held, 1)
        ]
    if kernel is None:
        usual = most_unrolled(site.cpu)
        found += [replace(choice, unroll=2 * usual), replace(choice, unroll=usual // 2)]
    if not (partition.prepared or partition.pixels_outer or partition.panels == 1):
        found.append(replace(choice, fetch=PANEL))
    if not partition.prepared:
        other = PANELS if choice.order == PIXELS else PIXELS
        found.insert(2, replace(choice, order=other))
    return found


def is_flat(operator: Convolution, site: LayerSite) -> bool:
    """Whether rows do not matter: 1x1 on tensors without halos is one long row of pixels."""
    layouts = (site.inputs[0], site.output, *site.operands)
    return (
        operator.kernel == operator.stride == (1, 1)
        and operator.before == (0, 0)
        and not any(layout.halo for layout in layouts)
    )


def takes(layer: Layer, _cpu: CpuModel) -> bool:
    """Every convolution."""
    return isinstance(layer.operator, Convolution)


def _takes_apart(layer: Layer, cpu: CpuModel) -> bool:
    """Every convolution whose groups stay what they are."""
    return type(layer.operator) is Convolution and not merges(layer, cpu)


def _can_take(layer: Layer, _cpu: CpuModel) -> bool:
    """Those of one group; a gate and the transposed ones are for other rules."""
    operator = layer.operator
    return type(operator) is Convolution and operator.groups == 1 and not operator.gated


def reads_planar(layer: Layer, cpu: CpuModel) -> bool:
    """Images of few channels. Where a multiply-add reads its value from memory itself it does not
    matter where the pixel's other channels are; elsewhere a few rows are packed at a time.
    """
    operator = layer.operator
    assert isinstance(operator, Convolution)
    narrowest = cpu.narrowest(layer.element)
    is_first = operator.groups == 1 and extent(layer.inputs[0])[1] <= narrowest
    around = halo(layer)
    # What sticks out of the image is unrolled.
    inside = operator.kernel[1] <= MOST_COLUMNS or around.left == around.right == 0
    if not cpu.memory_operand:
        same = layer.source == layer.element == layer.weights == FLOAT32
        return is_first and same and extent(layer.output)[2] >= _FEWEST_ROWS
    return is_first and operator.dilation == (1, 1) and inside


@cache
def _apart() -> Rule:
    """The rule for layers whose groups must not be made one."""
    return replace(RULE, takes=_takes_apart)


RULE: Rule = Rule(
    name="conv",
    takes=takes,
    make=make,
    halo=halo,
    reads_planar=reads_planar,
    kept=True,
    averages=True,
    reads_apart=True,
    ways=ways,
    can_take=_can_take,
    limited=lambda limits: _apart() if limits.apart else RULE,
)

"""Element-wise arithmetic and the 1x1 convolution that reads its result, in one kernel.

In networks that normalise and activate before they convolve (DenseNet, the second ResNet) no
convolution comes first that could take the arithmetic in. As a kernel of its own it writes a whole
image only for the next one to read it. Here a few rows are made at a time, in scratch memory that
stays in a core's cache:

    each core: for each band of rows
        the arithmetic, in all channels
        for each panel of results: the band
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import tirx

from edgepack.kernels.choices import Ranked, Way
from edgepack.kernels.layer import Convolution, Layer, Pointwise, Streamed
from edgepack.kernels.rules import convolution, pointwise
from edgepack.kernels.rules.rule import (
    LayerKernel,
    LayerSite,
    Pair,
    Pairing,
    Rule,
    image_of,
)
from edgepack.kernels.tiles import micro, tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.epilogue import Epilogue
from edgepack.kernels.tiles.layout import Blocked, Image
from edgepack.kernels.tiles.partition import busy, worth_sharing
from edgepack.kernels.tiles.product import (
    ProductLoops,
    Shape,
    Window,
    choose_tile,
    pack_bias,
    pack_weights,
    rank_tiles,
    stream_cycles,
)

# The part of the second-level cache that a band may take, and that all weights may, which each band
# reads again. An image larger than that does not stay there between two kernels.
_PART = 2
# The least share of the cores' time that has to be busy.
_BUSY_BY_BANDS = 0.75


def is_worth_it(first: Layer, layer: Layer, cpu: CpuModel) -> bool:
    """Whether a kernel of both is faster than one of each: where the image between them is large,
    and the weights are not."""
    operator = layer.operator
    assert isinstance(operator, Convolution)
    if (operator.kernel, operator.stride, operator.before) != ((1, 1), (1, 1), (0, 0)):
        return False
    between = image_of(first, cpu)
    weights = operator.weight.size * first.element.bytes
    most = cpu.l2_bytes / _PART
    is_large = between.nbytes // between.batch > most >= weights
    return is_large and _bands(between, _cycles(first, layer, cpu), cpu) is not None


def _cycles(first: Layer, layer: Layer, cpu: CpuModel) -> float:
    """Of the convolution of an image, by its cheapest tile."""
    assert isinstance(layer.operator, Convolution)
    weight = convolution.dense_weight(layer.operator, 1)
    target = image_of(layer, cpu)
    shape = Shape.of(weight, image_of(first, cpu), target)
    tile = choose_tile(target, blocks=shape.out_blocks, reduction=shape.reduction, cpu=cpu)
    return tile.cycles / target.batch + stream_cycles(shape.weight_bytes, 1, cpu)


@dataclass(frozen=True, kw_only=True)
class _Bands:
    """`bands` of `rows` rows, which `cores` share."""

    rows: int
    bands: int
    cores: int


def _bands(
    between: Blocked, cycles: float, cpu: CpuModel, room: int | None = None
) -> _Bands | None:
    """The tallest bands that the cache has room for; None if the cores would not be busy. Lower
    ones where all of them would take more than `room`, if only by little."""
    height, cores = between.height, cpu.cores if worth_sharing(cycles, cpu) else 1
    row_bytes = between.nbytes // between.batch // height
    lowest = None
    for rows in range(height, 0, -1):
        bands = height // rows
        fits = height % rows == 0 and rows * row_bytes <= cpu.l2_bytes / _PART
        if fits and busy(bands, cores) >= _BUSY_BY_BANDS:
            lowest = _Bands(rows=rows, bands=bands, cores=cores)
            if room is None or cores * rows * row_bytes <= room:
                break
    return lowest


def keeps_to(pair: Layer, room: int, cpu: CpuModel) -> bool:
    """Where the bands would take more."""
    operator = pair.operator
    assert isinstance(operator, Streamed)
    between = image_of(operator.first, cpu)
    cycles = _cycles(operator.first, replace(pair, operator=operator.reader), cpu)
    return _bands(between, cycles, cpu) != _bands(between, cycles, cpu, room)


def takes_pair(pair: Pair, cpu: CpuModel) -> bool:
    """Arithmetic on an image and the convolution that reads it, where that is faster."""
    if pair.rules != (pointwise.POINTWISE, convolution.RULE) or pair.reader.mean is not None:
        return False
    return convolution.is_plain(pair.reader) and is_worth_it(pair.first, pair.reader, cpu)


def make(site: LayerSite) -> LayerKernel:
    """The kernel of both."""
    operator, layer, cpu = site.layer.operator, site.layer, site.cpu
    assert isinstance(operator, Streamed)
    assert isinstance(operator.reader, Convolution)
    first = operator.first
    given, output = site.inputs[0], site.output
    between = image_of(first, cpu)
    reader = replace(layer, operator=operator.reader)
    shares = _bands(between, _cycles(first, reader, cpu), cpu, site.limits.room)
    assert shares is not None
    weight = convolution.dense_weight(operator.reader, 1)
    shape = Shape.of(weight, between, output)
    tile = choose_tile(
        output,
        blocks=shape.out_blocks,
        reduction=shape.reduction,
        cpu=cpu,
        choice=site.chosen(RULE.name),
    )
    packed = pack_weights(weight, shape, tile.vectors)
    bias = pack_bias(operator.reader.bias, output, cpu)
    source = Image("source", given)
    activation = Epilogue(between, first.expression, constants=first.constants)
    # Its constants are arguments beside those of the other expression.
    activation.constants = [
        tir.buffer(f"before{i}", values.shape, str(values.dtype))
        for i, values in enumerate(activation.packed)
    ]
    rows, bands, cores = shares.rows, shares.bands, shares.cores
    scratch = Image("scratch", replace(between, batch=cores, height=rows))
    target = Image("target", output)
    weights = tir.buffer("weights", packed.shape, str(packed.dtype))
    biases = tir.buffer("bias", bias.shape, str(bias.dtype))
    epilogue, functions = site.epilogue(), micro.AssemblyFunctions()

    def product_of(image: Image) -> ProductLoops:
        return ProductLoops(
            cpu=cpu,
            window=Window(),
            shape=shape,
            tile=tile,
            source=image,
            target=target,
            weights=weights,
            bias=biases,
            epilogue=epilogue,
            clears=True,
            functions=functions,
        )

    def activate(n: tir.Expr, band: Image, top: tir.Expr) -> tir.Stmt:
        def pixel(block: tir.Expr, row: tir.Expr, column: tir.Expr) -> tir.Stmt:
            plane, names = n * between.blocks + block, tir.Names()
            value = source.load(plane, row, column)
            made = activation.apply(names, value, plane, row, column, channel_block=block)
            names.add(band.store(made, plane, row, column))
            return names.done()

        return tir.loop_of(
            "block",
            between.blocks,
            lambda block: tir.loop_of(
                "row",
                rows,
                lambda row: tir.loop_of(
                    "column", between.width, lambda column: pixel(block, top + row, column)
                ),
            ),
        )

    def one_band(n: tir.Expr, core: tir.Expr, number: tir.Expr) -> tir.Stmt:
        top = number * rows
        # As a part of the image that would be there as a whole.
        band = scratch.viewed(between).placed(
            plane=core * between.blocks - n * between.blocks, row=0 - tir.expr(top)
        )
        return tir.sequence(activate(n, band, top), product_of(band).band(n, top, rows))

    def share(n: tir.Expr, core: tir.Expr) -> tir.Stmt:
        each = -(-bands // cores)

        def one(turn: tir.Expr) -> tir.Stmt:
            number = core * each + turn
            made = one_band(n, core, number)
            return made if bands % cores == 0 else tir.when(tir.expr(number) < bands, made)

        return tir.loop_of("band", each, one)

    def one_image(n: tir.Expr) -> tir.Stmt:
        return tir.loop_of("core", cores, lambda core: share(n, core), parallel=cores > 1)

    def function() -> tirx.PrimFunc:
        arguments = [
            source.buffer,
            *epilogue.operand_buffers,
            weights,
            biases,
            *activation.constants,
            *epilogue.constants,
            target.buffer,
            scratch.buffer,
        ]
        body = functions.imported(tir.loop_of("n", output.batch, one_image))
        return tir.function(arguments, body, in_place=product_of(scratch).in_place)

    return LayerKernel(
        name=f"preactivated_{given.channels}_{output.channels}_{output.height}x{output.width}",
        function=function,
        constants=(packed, bias, *activation.packed, *epilogue.packed),
        tile=f"{tile} {rows} rows",
        macs=weight.size * output.height * output.width * output.batch,
        cycles=tile.cycles,
        by_pixels=cores > 1,
    )


def takes(layer: Layer, _cpu: CpuModel) -> bool:
    """Such a pair, as one layer."""
    operator = layer.operator
    return isinstance(operator, Streamed) and isinstance(operator.first.operator, Pointwise)


def ways(site: LayerSite) -> list[Ranked]:
    """All tiles of the convolution."""
    operator = site.layer.operator
    assert isinstance(operator, Streamed)
    assert isinstance(operator.reader, Convolution)
    weight = convolution.dense_weight(operator.reader, 1)
    shape = Shape.of(weight, image_of(operator.first, site.cpu), site.output)
    tiles = rank_tiles(
        site.output, blocks=shape.out_blocks, reduction=shape.reduction, cpu=site.cpu
    )
    return [
        Ranked(
            choice=Way(rule=RULE.name, pixels=tile.pixels, vectors=tile.vectors),
            cycles=tile.cycles,
        )
        for tile in tiles
    ]


RULE = Rule(
    name="preactivated",
    takes=takes,
    make=make,
    kept=True,
    ways=ways,
    pairing=Pairing(takes=takes_pair, keeps_to=keeps_to),
)

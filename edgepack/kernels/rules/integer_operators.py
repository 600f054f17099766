"""What else there is on integers: from and to numbers, sums, means, pooling, channels joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tvm import tirx

from edgepack.kernels import integer
from edgepack.kernels.layer import Layer
from edgepack.kernels.rules.rule import LayerKernel, LayerSite, Rule
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import INT8_BLOCK, CpuModel
from edgepack.kernels.tiles.element import FLOAT32
from edgepack.kernels.tiles.layout import Blocked, Image, Planar, clear_halos
from edgepack.kernels.tiles.partition import shared_loops
from edgepack.kernels.tiles.requantise import Requantising, requantise
from edgepack.kernels.value import extent

# Writes one pixel of one block, given its image, block, row and column.
_Pixel = Callable[[tir.Expr, tir.Expr, tir.Expr, tir.Expr], tir.Stmt]


# Writes a row of one block, given its image, block and row.
_Row = Callable[[tir.Expr, tir.Expr, tir.Expr], tir.Stmt]
# The sum of one pixel, given its plane, row and column.
_Total = Callable[[tir.Names, tir.Expr, tir.Expr, tir.Expr], tirx.Expr]


def _every_row(site: LayerSite, cycles: float, one_row: _Row) -> tir.Stmt:
    """Something for each row of each block of the result."""
    output = site.output
    by_blocks, by_rows = shared_loops(cycles, output, site.cpu)

    def plane(n: tir.Expr, block: tir.Expr) -> tir.Stmt:
        return tir.loop_of(
            "row", output.height, lambda row: one_row(n, block, row), parallel=by_rows
        )

    return tir.loop_of(
        "n",
        output.batch,
        lambda n: tir.loop_of(
            "block", output.blocks, lambda block: plane(n, block), parallel=by_blocks
        ),
    )


def _everywhere(site: LayerSite, cycles: float, pixel: _Pixel) -> tir.Stmt:
    """Something for each pixel of the result."""

    def one_row(n: tir.Expr, block: tir.Expr, row: tir.Expr) -> tir.Stmt:
        return tir.loop_of("column", site.output.width, lambda column: pixel(n, block, row, column))

    return _every_row(site, cycles, one_row)


def _of_sums(
    site: LayerSite, cycles: float, epilogue: Requantising, target: Image, total: _Total
) -> tir.Stmt:
    """Each pixel of the result is made of a sum; neighbours together, as they are stored."""
    output, run = site.output, epilogue.run
    full, rest = divmod(output.width, run)

    def some(plane: tir.Expr, row: tir.Expr, first: tir.Expr, count: int) -> tir.Stmt:
        names = tir.Names()
        sums = [total(names, plane, row, first + r) for r in range(count)]
        epilogue.store(names, target, sums, plane, row, first)
        return names.done()

    def one_row(n: tir.Expr, block: tir.Expr, row: tir.Expr) -> tir.Stmt:
        plane = n * output.blocks + block
        runs = tir.loop_of("run", full, lambda i: some(plane, row, i * run, run)) if full else None
        return tir.sequence(runs, some(plane, row, full * run, rest) if rest else None)

    return _every_row(site, cycles, one_row)


def _kernel(
    site: LayerSite, what: str, sources: list[Image], target: Image, body: tir.Stmt, cycles: float
) -> LayerKernel:
    output = site.output
    buffers = [image.buffer for image in (*sources, target)]
    return LayerKernel(
        name=f"{what}_{output.channels}_{output.height}x{output.width}",
        function=tir.function(buffers, tir.sequence(clear_halos(target), body)),
        constants=(),
        cycles=cycles * site.cpu.cpi,
    )


def _centred(value: tirx.Expr, zero: int, lanes: int) -> tirx.Expr:
    """int32, less the zero point."""
    return tir.cast(value, "int32") - tir.spread(tir.integer(zero), lanes)


# ------------------------------------------------ from numbers, and to them


def _takes(kind: type[integer.IntegerOperator]) -> Callable[[Layer, CpuModel], bool]:
    return lambda layer, _cpu: isinstance(layer.operator, kind)


def _quantize(site: LayerSite) -> LayerKernel:
    """Pixels of a block, made of the smaller blocks of floats."""
    operator = site.layer.operator
    assert isinstance(operator, integer.ToIntegers)
    layout, output = site.inputs[0], site.output
    if layout.planar:
        return _quantize_planar(site, operator)
    source, target = Image("source", layout), Image("target", output)
    lanes = min(layout.block, output.block)

    def pixel(n: tir.Expr, block: tir.Expr, row: tir.Expr, column: tir.Expr) -> tir.Stmt:
        stores = []
        for first in range(0, output.block, lanes):
            at = source.at(
                n * layout.blocks + _block_of(block * output.block + first, layout),
                row,
                column,
                first % layout.block,
            )
            value = _nearest(tir.load(source.buffer, at, lanes), operator, lanes)
            to = target.at(n * output.blocks + block, row, column, first)
            stores.append(tir.store(target.buffer, value, to, lanes))
        return tir.sequence(*stores)

    cycles = 8 * output.nbytes / lanes
    return _kernel(site, "quantize", [source], target, _everywhere(site, cycles, pixel), cycles)


def _block_of(channel: tir.Expr, layout: Blocked) -> tirx.Expr:
    """The block that a channel lies in; the last one for those that fill up a larger block."""
    return tirx.min(tir.expr(channel) // layout.block, layout.blocks - 1)


def _nearest(value: tirx.Expr, operator: integer.ToIntegers, lanes: int) -> tirx.Expr:
    real = value / tir.number(operator.steps.scale, "float32", lanes)
    return requantise(real, tir.number(1.0, "float32", lanes), operator.to, lanes)


# Pixels of a row that are made at once.
_RUN = 16


def _quantize_planar(site: LayerSite, operator: integer.ToIntegers) -> LayerKernel:
    """An image of few channels as the network has it: a run of pixels of one channel at a time."""
    layout, output = site.inputs[0], site.output
    source, target = Planar("source", layout), Image("target", output)

    def run(n: tir.Expr, row: tir.Expr, first: tir.Expr, pixels: int) -> tir.Stmt:
        names = tir.Names()
        made = []
        for channel in range(output.channels):
            at = [n, channel, row, first]
            value = _nearest(tir.load(source.buffer, at, pixels), operator, pixels)
            made.append(names.bind("q", value))
        if pixels > 1 and "avx512bw" in site.cpu.features:
            _store_pixels(names, target, made, n, row, first)
            return names.done()
        for channel, values in enumerate(made):
            for r in range(pixels):
                one = tirx.Shuffle([values], [tir.integer(r)]) if pixels > 1 else values
                there = target.at(n, row, first + r, channel)
                names.add(tir.store(target.buffer, one, there))
        return names.done()

    def one_row(n: tir.Expr, row: tir.Expr) -> tir.Stmt:
        full, rest = divmod(output.width, _RUN)
        parts = [tir.loop_of("run", full, lambda i: run(n, row, i * _RUN, _RUN))] if full else []
        # What is left one by one.
        start = full * _RUN
        if rest:
            parts.append(tir.loop_of("pixel", rest, lambda i: run(n, row, start + i, 1)))
        return tir.sequence(*parts)

    cycles = 3.0 * layout.channels * layout.height * layout.width
    _, by_rows = shared_loops(cycles, output, site.cpu)
    body = tir.loop_of(
        "n",
        output.batch,
        lambda n: tir.loop_of("row", output.height, lambda row: one_row(n, row), parallel=by_rows),
    )
    return _kernel(site, "quantize", [source], target, body, cycles)


def _store_pixels(
    names: tir.Names,
    target: Image,
    channels: Sequence[tirx.Expr],
    n: tir.Expr,
    row: tir.Expr,
    first: tir.Expr,
) -> None:
    """A run of pixels, given as int8 vectors of one channel each, with zeros in all other lanes."""
    block = target.layout.block
    nothing = tir.spread(tirx.IntImm("int8", 0), _RUN)
    joined = names.bind(
        "run", tir.join_vectors([*channels, *[nothing] * (-len(channels) % _AT_ONCE)])
    )
    empty = names.bind("none", tir.spread(tirx.IntImm("int8", 0), _AT_ONCE * _RUN))
    for start in range(0, _RUN, _AT_ONCE):
        lanes = [
            channel * _RUN + pixel if channel < len(channels) else _AT_ONCE * _RUN
            for pixel in range(start, start + _AT_ONCE)
            for channel in range(block)
        ]
        made = tirx.Shuffle([joined, empty], [tir.integer(lane) for lane in lanes])
        names.add(
            tir.store(target.buffer, made, target.at(n, row, first + start), _AT_ONCE * block)
        )


# Pixels of a block in the widest vector, and the most channels of a planar image.
_AT_ONCE = 4


def _reads_planar(layer: Layer, cpu: CpuModel) -> bool:
    """Images of few channels, which are one block here."""
    return extent(layer.inputs[0])[1] <= cpu.narrowest(FLOAT32)


def _dequantize(site: LayerSite) -> LayerKernel:
    operator = site.layer.operator
    assert isinstance(operator, integer.FromIntegers)
    layout, output = site.inputs[0], site.output
    source, target = Image("source", layout), Image("target", output)
    lanes = min(layout.block, output.block)

    def pixel(n: tir.Expr, block: tir.Expr, row: tir.Expr, column: tir.Expr) -> tir.Stmt:
        stores = []
        for first in range(0, output.block, lanes):
            channel = tir.expr(block * output.block) + first
            at = source.at(
                n * layout.blocks + _block_of(channel, layout),
                row,
                column,
                channel % layout.block,
            )
            whole = _centred(tir.load(source.buffer, at, lanes), operator.steps.zero, lanes)
            scale = tir.number(operator.steps.scale, "float32", lanes)
            real = tir.cast(whole, "float32") * scale
            there = target.at(n * output.blocks + block, row, column, first)
            stores.append(
                tir.store(target.buffer, tir.cast(real, output.element.name), there, lanes)
            )
        return tir.sequence(*stores)

    cycles = 4 * output.nbytes / output.element.bytes / lanes
    return _kernel(site, "dequantize", [source], target, _everywhere(site, cycles, pixel), cycles)


# ------------------------------------------------ of images


def _sum(site: LayerSite) -> LayerKernel:
    operator = site.layer.operator
    assert isinstance(operator, integer.IntegerSum)
    target, lanes = Image("target", site.output), site.output.block
    sources = [Image(f"source{i}", layout) for i, layout in enumerate(site.inputs)]
    most = 128 * sum(map(abs, operator.multipliers)) + abs(operator.constant)
    epilogue = Requantising(
        site.output, operator.to, operator.factor, site.cpu, most * operator.factor
    )

    def total(names: tir.Names, plane: tir.Expr, row: tir.Expr, column: tir.Expr) -> tirx.Expr:
        made: tirx.Expr = tir.spread(tir.integer(operator.constant), lanes)
        for source, multiplier in zip(sources, operator.multipliers, strict=True):
            factor = tir.spread(tir.integer(multiplier), lanes)
            made = names.keep("sum", made + source.load(plane, row, column) * factor)
        return made

    cycles = 12.0 * site.output.nbytes / lanes
    body = _of_sums(site, cycles, epilogue, target, total)
    return _kernel(site, "qadd", sources, target, body, cycles)


def _product(site: LayerSite) -> LayerKernel:
    operator = site.layer.operator
    assert isinstance(operator, integer.IntegerProduct)
    target, lanes = Image("target", site.output), site.output.block
    sources = [Image(f"source{i}", layout) for i, layout in enumerate(site.inputs)]
    most = 255 * 255 * operator.factor
    epilogue = Requantising(site.output, operator.to, operator.factor, site.cpu, most)
    one, other = sources
    whole = other.layout.height == one.layout.height and other.layout.width == one.layout.width

    def total(names: tir.Names, plane: tir.Expr, row: tir.Expr, column: tir.Expr) -> tirx.Expr:
        places = (row, column), (row, column) if whole else (0, 0)
        values = [
            names.keep("x", _centred(source.load(plane, *place), zero, lanes))
            for source, place, zero in zip(sources, places, operator.zeros, strict=True)
        ]
        return values[0] * values[1]

    cycles = 12.0 * site.output.nbytes / lanes
    body = _of_sums(site, cycles, epilogue, target, total)
    return _kernel(site, "qmul", sources, target, body, cycles)


def _table(site: LayerSite) -> LayerKernel:
    operator = site.layer.operator
    assert isinstance(operator, integer.IntegerTable)
    source, target = Image("source", site.inputs[0]), Image("target", site.output)
    table, lanes = tir.buffer("table", (256,), "int8"), site.output.block

    def pixel(n: tir.Expr, block: tir.Expr, row: tir.Expr, column: tir.Expr) -> tir.Stmt:
        at = (n * site.output.blocks + block, row, column)
        names = tir.Names()
        if site.cpu.isa == "aarch64":
            given = tir.load(source.buffer, source.at(*at), lanes)
            return target.store(_looked_up(table, given), *at)
        for lane in range(lanes):
            index = tir.cast(tir.load(source.buffer, source.at(*at, lane)), "int32") + 128
            names.add(tir.store(target.buffer, tir.load(table, [index]), target.at(*at, lane)))
        return names.done()

    # By lookups of 64 results, llvm-mca 14 has 20.6 cycles for 16 on a Cortex-A72's predecessor and
    # 21.5 on a Cortex-A53; Arm's guide to a core like the Cortex-A76 has 22 operations for two
    # pipes. One by one it is a load of the number, one of the result, and a store.
    cycles = (24.0 / INT8_BLOCK if site.cpu.isa == "aarch64" else 4.0) * site.output.nbytes
    body = tir.sequence(clear_halos(target), _everywhere(site, cycles, pixel))
    made = _kernel(site, "qtable", [source], target, body, cycles)
    function = tir.function([source.buffer, table, target.buffer], body)
    return replace(made, function=function, constants=(operator.table,))


def _looked_up(table: tirx.Buffer, given: tirx.Expr) -> tirx.Expr:
    """By instructions that look up 64 numbers at once, and leave what is not among them."""
    dtype, size = f"int8x{INT8_BLOCK}", 4 * INT8_BLOCK
    index = tirx.bitwise_xor(given, tir.spread(tirx.IntImm("int8", -128), INT8_BLOCK))
    made: list[tirx.Expr] = []
    for first in range(0, 256, size):
        parts = [tir.load(table, [at], INT8_BLOCK) for at in range(first, first + size, INT8_BLOCK)]
        name = "tbx4" if made else "tbl4"
        # A byte less than the first one is a large one.
        start = tir.spread(tirx.IntImm("int8", (first + 128) % 256 - 128), INT8_BLOCK)
        made = [
            tirx.call_llvm_pure_intrin(
                dtype, f"llvm.aarch64.neon.{name}.v16i8", *made, *parts, index - start
            )
        ]
    return made[0]


def _mean(site: LayerSite) -> LayerKernel:
    operator = site.layer.operator
    assert isinstance(operator, integer.IntegerMean)
    layout, output = site.inputs[0], site.output
    source, target = Image("source", layout), Image("target", output)
    epilogue = Requantising(output, operator.to, operator.factor, site.cpu)

    def pixel(n: tir.Expr, block: tir.Expr, row: tir.Expr, column: tir.Expr) -> tir.Stmt:
        plane = n * output.blocks + block
        total = tir.Local("total", output.block, "int32")
        names = tir.Names()
        start = tir.spread(tir.integer(-operator.pixels * operator.zero), output.block)
        made = epilogue.apply(names, total.get(), plane, row, column)
        names.add(target.store(made, plane, row, column))

        def add(i: tir.Expr, j: tir.Expr) -> tir.Stmt:
            return total.set(total.get() + source.load(plane, i, j))

        return tir.sequence(
            total.declare(),
            total.set(start),
            tir.loop_of(
                "i",
                layout.height,
                lambda i: tir.loop_of("j", layout.width, lambda j: add(i, j)),
            ),
            names.done(),
        )

    cycles = 6.0 * layout.nbytes / output.block
    return _kernel(site, "qmean", [source], target, _everywhere(site, cycles, pixel), cycles)


def _pool(site: LayerSite) -> LayerKernel:
    """Windows that reach over the border take what is nearest there, which is among the rest."""
    operator = site.layer.operator
    assert isinstance(operator, integer.IntegerPooling)
    layout, output = site.inputs[0], site.output
    source, target = Image("source", layout), Image("target", output)
    lanes = output.block
    points = operator.kernel[0] * operator.kernel[1]
    most = 255 * points * operator.factor
    epilogue = Requantising(output, operator.to, operator.factor, site.cpu, most)

    def inside(at: tir.Expr, axis: int, size: int) -> tir.Expr:
        if operator.before[axis] or operator.after[axis]:
            return tirx.max(tirx.min(tir.expr(at), size - 1), 0)
        return at

    def total(names: tir.Names, plane: tir.Expr, row: tir.Expr, column: tir.Expr) -> tirx.Expr:
        made: tirx.Expr | None = None
        for i in range(operator.kernel[0]):
            for j in range(operator.kernel[1]):
                at = (
                    inside(row * operator.stride[0] + i - operator.before[0], 0, layout.height),
                    inside(column * operator.stride[1] + j - operator.before[1], 1, layout.width),
                )
                if operator.average:
                    value = source.load(plane, *at)
                    made = value if made is None else names.keep("sum", made + value)
                else:
                    value = tir.load(source.buffer, source.at(plane, *at), lanes)
                    made = value if made is None else names.keep("m", tirx.max(made, value))
        assert made is not None
        return _centred(made, operator.zero * (points if operator.average else 1), lanes)

    cycles = float(points * output.nbytes / lanes * (5 if operator.average else 2))
    body = _of_sums(site, cycles, epilogue, target, total)
    return _kernel(site, "qpool", [source], target, body, cycles)


def _concat(site: LayerSite) -> LayerKernel:
    operator = site.layer.operator
    assert isinstance(operator, integer.IntegerConcatenation)
    target, lanes = Image("target", site.output), site.output.block
    sources = [Image(f"source{i}", layout) for i, layout in enumerate(site.inputs)]
    parts, first = [], 0
    for source, zero, factor in zip(sources, operator.zeros, operator.factors, strict=True):
        parts.append(_copied(site, source, target, first, zero, factor, operator.to))
        first += source.layout.blocks
    cycles = 6.0 * site.output.nbytes / lanes
    return _kernel(site, "qconcat", sources, target, tir.sequence(*parts), cycles)


def _copied(
    site: LayerSite,
    source: Image,
    target: Image,
    first: int,
    zero: int,
    factor: float,
    to: integer.Target,
) -> tir.Stmt:
    """One input's blocks, from block `first` of the result on."""
    layout: Blocked = source.layout
    lanes = site.output.block

    def pixel(n: tir.Expr, block: tir.Expr, row: tir.Expr, column: tir.Expr) -> tir.Stmt:
        at = source.at(n * layout.blocks + block, row, column)
        value = _in_steps(tir.load(source.buffer, at, lanes), zero, factor, to, lanes)
        return target.store(value, n * site.output.blocks + first + block, row, column)

    return tir.loop_of(
        "n",
        layout.batch,
        lambda n: tir.loop_of(
            "block",
            layout.blocks,
            lambda block: tir.loop_of(
                "row",
                layout.height,
                lambda row: tir.loop_of(
                    "column", layout.width, lambda column: pixel(n, block, row, column)
                ),
            ),
        ),
    )


def _in_steps(
    value: tirx.Expr, zero: int, factor: float, to: integer.Target, lanes: int
) -> tirx.Expr:
    """int8 in other steps; as it is if these are the same."""
    if factor == 1 and to == integer.Target(zero=zero, low=-128, high=127):
        return value
    number = tir.number(factor, "float32", lanes)
    return requantise(_centred(value, zero, lanes), number, to, lanes)


def _choice(site: LayerSite) -> LayerKernel:
    operator = site.layer.operator
    assert isinstance(operator, integer.IntegerChoice)
    source, target = Image("source", site.inputs[0]), Image("target", site.output)
    rows = tir.buffer("rows", operator.rows.shape, "int32")
    columns = tir.buffer("columns", operator.columns.shape, "int32")
    lanes, blocks = site.output.block, site.output.blocks

    def pixel(n: tir.Expr, block: tir.Expr, row: tir.Expr, column: tir.Expr) -> tir.Stmt:
        plane = n * blocks + block
        at = source.at(plane, tir.load(rows, [row]), tir.load(columns, [column]))
        given = tir.load(source.buffer, at, lanes)
        value = _in_steps(given, operator.zero, operator.factor, operator.to, lanes)
        return target.store(value, plane, row, column)

    cycles = 4.0 * site.output.nbytes / lanes
    body = tir.sequence(clear_halos(target), _everywhere(site, cycles, pixel))
    made = _kernel(site, "qresize", [source], target, body, cycles)
    function = tir.function([source.buffer, rows, columns, target.buffer], body)
    constants = operator.rows.astype("int32"), operator.columns.astype("int32")
    return replace(made, function=function, constants=constants)


def _interpolation(site: LayerSite) -> LayerKernel:
    operator = site.layer.operator
    assert isinstance(operator, integer.IntegerInterpolation)
    source, target = Image("source", site.inputs[0]), Image("target", site.output)
    tables = [operator.rows, operator.row_weights, operator.columns, operator.column_weights]
    names_of = ("rows", "row_weights", "columns", "column_weights")
    rows, row_weights, columns, column_weights = buffers = [
        tir.buffer(name, table.shape, "int32") for name, table in zip(names_of, tables, strict=True)
    ]
    lanes = site.output.block
    # Of all parts together.
    whole = 4**operator.BITS
    epilogue = Requantising(
        site.output, operator.to, operator.factor, site.cpu, 255 * whole * operator.factor
    )

    def total(names: tir.Names, plane: tir.Expr, row: tir.Expr, column: tir.Expr) -> tirx.Expr:
        made: tirx.Expr = tir.spread(tir.integer(-operator.zero * whole), lanes)
        for i in (0, 1):
            for j in (0, 1):
                share = tir.load(row_weights, [row, i]) * tir.load(column_weights, [column, j])
                share = names.keep("share", share)
                at = tir.load(rows, [row, i]), tir.load(columns, [column, j])
                value = source.load(plane, *at) * tir.spread(share, lanes)
                made = names.keep("sum", made + value)
        return made

    # Registers for the sums of a block.
    each = max(1, 4 * lanes // max(site.cpu.vector_bytes))
    cycles = (12.0 + 12.0 * each) * site.output.nbytes / lanes
    body = tir.sequence(clear_halos(target), _of_sums(site, cycles, epilogue, target, total))
    made = _kernel(site, "qlinear", [source], target, body, cycles)
    function = tir.function([source.buffer, *buffers, target.buffer], body)
    return replace(made, function=function, constants=tuple(tables))


RULES = (
    Rule(
        name="quantize",
        takes=_takes(integer.ToIntegers),
        make=_quantize,
        reads_planar=_reads_planar,
    ),
    Rule(name="dequantize", takes=_takes(integer.FromIntegers), make=_dequantize),
    Rule(name="int8 add", takes=_takes(integer.IntegerSum), make=_sum),
    Rule(name="int8 product", takes=_takes(integer.IntegerProduct), make=_product),
    Rule(name="int8 table", takes=_takes(integer.IntegerTable), make=_table),
    Rule(name="int8 mean", takes=_takes(integer.IntegerMean), make=_mean),
    Rule(name="int8 pool", takes=_takes(integer.IntegerPooling), make=_pool),
    Rule(name="int8 resize", takes=_takes(integer.IntegerChoice), make=_choice),
    Rule(name="int8 linear", takes=_takes(integer.IntegerInterpolation), make=_interpolation),
    Rule(name="int8 concat", takes=_takes(integer.IntegerConcatenation), make=_concat),
)

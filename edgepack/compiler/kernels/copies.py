"""Between the network's own layout (NCHW, or NC) and the blocked one."""

from __future__ import annotations

from edgepack.compiler.kernels import tir
from edgepack.compiler.kernels.layout import Blocked, Image, clear_halos
from edgepack.compiler.kernels.rule import Kernel


def pack(plain: tuple[int, ...], layout: Blocked) -> Kernel:
    """NCHW or NC -> blocked, halo and unused channels set to zero."""
    source = tir.buffer("source", plain)
    target = Image("target", layout)
    last = layout.channels % layout.block or layout.block

    def copy_block(n: tir.Expr, block: tir.Expr, valid: int) -> tir.Stmt:
        def pixel(row: tir.Expr, column: tir.Expr) -> tir.Stmt:
            lanes = []
            for lane in range(layout.block):
                channel = block * layout.block + lane
                where = [n, channel, row, column] if len(plain) == 4 else [column, channel]
                value = tir.load(source, where) if lane < valid else tir.number(0.0)
                at = target.at(n * layout.blocks + block, row, column, lane)
                lanes.append(tir.store(target.buffer, value, at))
            return tir.sequence(*lanes)

        return tir.loop_of(
            "row",
            layout.height,
            lambda row: tir.loop_of("column", layout.width, lambda column: pixel(row, column)),
        )

    body = tir.loop_of(
        "n",
        layout.batch,
        lambda n: tir.sequence(
            tir.loop_of(
                "block", layout.blocks - 1, lambda block: copy_block(n, block, layout.block)
            )
            if layout.blocks > 1
            else None,
            copy_block(n, layout.blocks - 1, last),
        ),
    )
    function = tir.function([source, target.buffer], tir.sequence(clear_halos(target), body))
    return Kernel(name=f"pack_{_size(plain)}", function=function, constants=())


def unpack(layout: Blocked, plain: tuple[int, ...]) -> Kernel:
    """Blocked -> NCHW or NC."""
    source = Image("source", layout)
    target = tir.buffer("target", plain)

    def copy(
        n: tir.Expr, block: tir.Expr, lane: tir.Expr, row: tir.Expr, column: tir.Expr
    ) -> tir.Stmt:
        channel = block * layout.block + lane
        at = source.at(n * layout.blocks + block, row, column, lane)
        where = [n, channel, row, column] if len(plain) == 4 else [column, channel]
        return tir.store(target, tir.load(source.buffer, at), where)

    def block_of(n: tir.Expr, block: tir.Expr, valid: int) -> tir.Stmt:
        return tir.loop_of(
            "lane",
            valid,
            lambda lane: tir.loop_of(
                "row",
                layout.height,
                lambda row: tir.loop_of(
                    "column", layout.width, lambda column: copy(n, block, lane, row, column)
                ),
            ),
        )

    last = layout.channels % layout.block or layout.block
    body = tir.loop_of(
        "n",
        layout.batch,
        lambda n: tir.sequence(
            tir.loop_of("block", layout.blocks - 1, lambda block: block_of(n, block, layout.block))
            if layout.blocks > 1
            else None,
            block_of(n, layout.blocks - 1, last),
        ),
    )
    function = tir.function([source.buffer, target], body)
    return Kernel(name=f"unpack_{_size(plain)}", function=function, constants=())


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))

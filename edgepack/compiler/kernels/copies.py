"""Between the network's own layout (NCHW, or NC) and the blocked one."""

from __future__ import annotations

from tvm import tirx

from edgepack.compiler.kernels import tir
from edgepack.compiler.kernels.layout import Blocked, Image, clear_halos


def pack(plain: tuple[int, ...], layout: Blocked) -> tirx.PrimFunc:
    """NCHW or NC -> blocked, halo and unused channels set to zero."""
    source = tir.buffer("source", plain)
    target = Image("target", layout)
    last = layout.channels % layout.block or layout.block

    def copy_block(n: tir.Expr, block: tir.Expr, valid: int) -> tir.Stmt:
        def pixel(row: tir.Expr, column: tir.Expr) -> tir.Stmt:
            lanes = []
            for lane in range(layout.block):
                channel = block * layout.block + lane
                where = [n, channel, row, column] if len(plain) == 4 else [n, channel]
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
    return tir.function([source, target.buffer], tir.sequence(clear_halos(target), body))


def unpack(layout: Blocked, plain: tuple[int, ...]) -> tirx.PrimFunc:
    """Blocked -> NCHW or NC."""
    source = Image("source", layout)
    target = tir.buffer("target", plain)

    def copy(n: tir.Expr, block: tir.Expr, lane: int, row: tir.Expr, column: tir.Expr) -> tir.Stmt:
        channel = block * layout.block + lane
        value = tir.load(source.buffer, source.at(n * layout.blocks + block, row, column, lane))
        where = [n, channel, row, column] if len(plain) == 4 else [n, channel]
        return tir.store(target, value, where)

    def block_of(n: tir.Expr, block: tir.Expr, valid: int) -> tir.Stmt:
        return tir.sequence(
            *(
                tir.loop_of(
                    "row",
                    layout.height,
                    lambda row, lane=lane: tir.loop_of(
                        "column",
                        layout.width,
                        lambda column: copy(n, block, lane, row, column),
                    ),
                )
                for lane in range(valid)
            )
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
    return tir.function([source.buffer, target], body)

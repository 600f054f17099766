"""Calls of assembly tiles from kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tvm import tirx

from edgepack.kernels.tiles import arm, tir
from edgepack.kernels.tiles.average import Average
from edgepack.kernels.tiles.epilogue import Epilogue
from edgepack.kernels.tiles.expression import Expression, Operand, Scalar, Step
from edgepack.kernels.tiles.layout import Image


@dataclass(frozen=True, kw_only=True)
class TileAddress:
    """Where a tile lies: its first result, and where its weights and bias start.

    `source` are buffer indices of the first input, `weights` those of the first weight.
    """

    source: list[tir.Expr]
    weights: list[tir.Expr]
    plane: tir.Expr
    channel_block: tir.Expr
    row: tir.Expr
    column: tir.Expr
    pixels: int
    vectors: int


class AssemblyCode(Protocol):
    """Something that assembly is written for."""

    def llvm_ir(self, name: str) -> str:
        """An LLVM function `name` of pointers, and maybe int32, that returns an int."""


# A pointer: a buffer, and the indices of an element.
Pointer = tuple[tirx.Buffer, Sequence[tir.Expr]]


class AssemblyFunctions:
    """The functions in assembly that one kernel calls."""

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}

    def call(self, code: AssemblyCode, pointers: Sequence[Pointer], *counts: tirx.Expr) -> tir.Stmt:
        """A call with pointers as arguments, and int32 after them.

        The name is a hash, so that equal ones agree.
        """
        text = code.llvm_ir("NAME")
        name = "tile_" + hashlib.sha256(text.encode()).hexdigest()[:16]
        self.imports[name] = text.replace("@NAME(", f"@{name}(")
        arguments = (tirx.address_of(tir.load(buffer, items)) for buffer, items in pointers)
        return tir.evaluate(tirx.call_extern("int32", name, *arguments, *counts))

    def imported(self, body: tir.Stmt) -> tir.Stmt:
        """A kernel's body with the code of all functions called so far."""
        for text in self.imports.values():
            body = tir.import_functions(text, body)
        return body


class MicroKernelCalls:
    """The calls of micro-kernels from one kernel, and what they are called with."""

    def __init__(
        self,
        isa: arm.Isa,
        source: Image,
        target: Image,
        weights: tirx.Buffer,
        bias: tirx.Buffer,
        epilogue: Epilogue,
        functions: AssemblyFunctions | None = None,
        *,
        bias_first: bool = False,
    ) -> None:
        self.isa = isa
        self.bias_first = bias_first
        self.source, self.target = source, target
        self.weights, self.bias = weights, bias
        self.epilogue = epilogue
        # A sum is with the first operand, whose pixels have to be as far apart as the results.
        alike = all(image.column_bytes == target.column_bytes for image in epilogue.operands[:1])
        self.finish = assembly_epilogue(epilogue.expression, sums=alike)
        self.functions = functions or AssemblyFunctions()

    @property
    def finishes(self) -> bool:
        """Whether results are stored finished, without a pass over them."""
        return self.finish is not None

    def call(self, reduction: arm.Reduction, place: TileAddress) -> tir.Stmt:
        """A tile; an expression that assembly cannot finish follows as a pass over it."""
        call = self.functions.call(self._code(reduction, place), self._pointers(place))
        if self.finishes:
            return call
        return tir.sequence(call, self.epilogue.pass_over(self.target, place))

    def rows(
        self,
        reduction: arm.Depthwise,
        place: TileAddress,
        *,
        width: int,
        step: int,
        count: tir.Expr,
    ) -> tir.Stmt:
        """`count` rows of `width` results from a place on, in tiles of one vector and the place's
        pixels. The inputs of neighbouring rows are `step` input rows apart.

        An expression that assembly cannot finish follows as a pass over the results; `count` is 1
        then, for the pass is over one row.
        """
        average, operand = self._average, self._operand
        code = arm.TileRows(
            tile=self._code(reduction, place),
            width=width,
            source_step=self.source.row_bytes * step,
            target_step=self.target.row_bytes,
            operand_step=operand.row_bytes if operand else 0,
            total_step=average.slots.row_bytes if average else 0,
        )
        call = self.functions.call(code, self._pointers(place), tir.expr(count))
        if self.finishes:
            return call
        row = replace(place, pixels=width)
        return tir.sequence(call, self.epilogue.pass_over(self.target, row))

    def most_band_pixels(self, kernel: tuple[int, int], stride: int) -> int:
        """See `arm.DepthwiseBand`; 0: it cannot finish its results."""
        if self.finish is None or self._average:
            return 0
        return arm.DepthwiseBand.most_pixels(self.isa, kernel, stride, self.finish)

    def band(
        self,
        place: TileAddress,
        *,
        kernel: tuple[int, int],
        stride: int,
        width: int,
        rows: int,
        missing: tuple[int, int],
    ) -> tir.Stmt:
        """`rows` rows of `width` results from a place on, whose windows miss so many rows above and
        below; the place's source is the first one that is there."""
        assert self.finish is not None
        code = arm.DepthwiseBand(
            isa=self.isa,
            kernel=kernel,
            stride=stride,
            width=width,
            rows=rows,
            above=missing[0],
            below=missing[1],
            row_step=self.source.row_bytes,
            target_step=self.target.row_bytes,
            finish=self.finish,
        )
        return self.functions.call(code, self._pointers(place))

    @property
    def _operand(self) -> Image | None:
        """What the assembly adds to its sums."""
        adds = any(item.name == "add" for item in self.finish or ())
        return self.epilogue.operands[0] if adds else None

    @property
    def _average(self) -> Average | None:
        """Where the assembly leaves sums of results; a pass over them adds them up itself."""
        return self.epilogue.average if self.finishes else None

    def _code(self, reduction: arm.Reduction, place: TileAddress) -> arm.AssemblyTile:
        average, operand = self._average, self._operand
        return arm.AssemblyTile(
            isa=self.isa,
            pixels=place.pixels,
            vectors=place.vectors,
            reduction=reduction,
            finish=self.finish or (),
            out_step=self.target.plane_bytes,
            operand_step=operand.plane_bytes if operand else 0,
            pixel_step=self.target.column_bytes,
            total_step=average.slots.plane_bytes if average else None,
            bias_first=self.bias_first,
        )

    def _pointers(self, place: TileAddress) -> list[Pointer]:
        """The arguments of a tile's code."""
        at = (place.plane, place.row, place.column)
        pointers: list[Pointer] = [
            (self.target.buffer, self.target.at(*at)),
            (self.source.buffer, place.source),
            (self.weights, place.weights),
            (self.bias, [place.channel_block * self.isa.lanes]),
        ]
        if operand := self._operand:
            pointers.append((operand.buffer, operand.at(*at)))
        if average := self._average:
            pointers.append((average.slots.buffer, average.slot(*at)))
        return pointers

    def imported(self, body: tir.Stmt) -> tir.Stmt:
        """A kernel's body with the code of all tiles called so far."""
        return self.functions.imported(body)


def assembly_epilogue(
    steps: Expression, *, sums: bool = True
) -> tuple[arm.EpilogueStep, ...] | None:
    """An expression as a chain that the assembly can do; None if it is anything else.

    It can do `sums` with an operand only if its pixels are as far apart as the results.
    """
    chain = []
    for index, operation in enumerate(steps):
        match operation.name, operation.arguments:
            case (("maximum" | "minimum"), (Step(index=i), Scalar(value=value))) if i == index:
                chain.append(arm.EpilogueStep(name=operation.name, value=value))
            case "add", (Step(index=i), Operand(index=0, pixel=False)) if sums and i == index:
                chain.append(arm.EpilogueStep(name="add"))
            case "add", (Operand(index=0, pixel=False), Step(index=i)) if sums and i == index:
                chain.append(arm.EpilogueStep(name="add"))
            case _:
                return None
    return tuple(chain)

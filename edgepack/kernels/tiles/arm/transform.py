"""Passes of Winograd's transforms in assembly, for ARM.

LLVM unrolls a whole tile's transform, and then keeps a part of it on the stack. Here a pass is a
loop over the lines of a tile whose values never leave the registers: the coefficients are lanes
of the lowest ones, a line's inputs follow, and each sum of the transform takes a register that is
free by then. Results are stored as soon as they are known.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgepack.kernels.tiles.arm.isa import QUAD, Isa
from edgepack.kernels.tiles.arm.tile import EpilogueStep
from edgepack.kernels.tiles.arm.writer import Writer
from edgepack.kernels.tiles.arm.writers import writer_of
from edgepack.kernels.tiles.toom_cook import Terms, Transform


@dataclass(frozen=True, kw_only=True)
class Strides:
    """Where the vectors of a pass lie: bytes from one line, and from one item of it, to the
    next."""

    line: int
    item: int


@dataclass(frozen=True, kw_only=True)
class TransformPass:
    """`lines` times a transform of vectors. `finish` is applied to its results.

    `coefficients` is what the array at the pointer of this name holds.
    """

    isa: Isa
    transform: Transform
    coefficients: tuple[float, ...]
    lines: int
    source: Strides
    target: Strides
    operand: Strides
    finish: tuple[EpilogueStep, ...] = ()

    def llvm_ir(self, name: str) -> str:
        """An LLVM function `name(target, source, coefficients, operand)` of pointers."""
        writer = writer_of(self.isa, ("target", "source", "coefficients", "operand"))
        _PassWriter(self, writer).write()
        return writer.llvm_ir(name)


class _PassWriter:
    """Writes the loop over the lines, and gives registers to values."""

    def __init__(self, code: TransformPass, writer: Writer) -> None:
        self.code, self.writer = code, writer
        self.free = list(writer.free)
        self.coefficients = [
            self.free.pop(0) for _ in range(-(-len(code.coefficients) // code.isa.lanes))
        ]
        self.bounds = {item.value: self.free.pop() for item in code.finish if item.name != "add"}
        # The last step that reads a value; an output is read by its store, which follows at once.
        self.last_use = {
            value: step for step, terms in enumerate(code.transform.steps) for _, value in terms
        }
        self.registers: dict[int, int] = {}
        self.fewest = len(self.free)  # registers that were left

    def write(self) -> None:
        """The whole pass."""
        if self.coefficients:
            self.writer.load(self.coefficients, "coefficients", advance=False)
        for value, register in self.bounds.items():
            self.writer.set_vector(register, value)
        pairs = self.code.lines // 2 if self._holds_two() else 0
        self.writer.loop("pair", pairs, self._two_lines)
        self.writer.loop("line", self.code.lines - 2 * pairs, self._line)

    def _holds_two(self) -> bool:
        """Whether two lines are done at a time, one's sums while the other's wait for each other:
        of use to a core that issues in order."""
        if not self.writer.loads_ahead:
            return False
        tried = _PassWriter(self.code, writer_of(self.code.isa, self.writer.pointers))
        tried._line()
        return len(self.free) - tried.fewest <= len(self.free) // 2

    def _two_lines(self) -> None:
        """Each with registers of its own."""
        free, half = self.free, len(self.free) // 2
        for own in (free[:half], free[half:]):
            self.free = own
            self._line()
        self.free = free

    def _line(self) -> None:
        code, writer, transform = self.code, self.writer, self.code.transform
        free = list(self.free)
        self.registers = {value: self.free.pop(0) for value in range(transform.inputs)}
        inputs = list(self.registers.values())
        if code.source.item == QUAD:
            writer.load(inputs, "source", advance=True)
            moved = QUAD * len(inputs)
        else:
            moved = writer.move_all_strided("ld", inputs, "source", code.source.item)
        writer.add("source", code.source.line - moved)
        stored = 0
        moves = [0, 0]
        for step, terms in enumerate(transform.steps):
            value = transform.inputs + step
            self._sum(step, terms)
            while stored < len(transform.outputs) and transform.outputs[stored] <= value:
                self._store(stored, step, moves)
                stored += 1
        assert stored == len(transform.outputs)
        writer.add("target", code.target.line - moves[0])
        if any(item.name == "add" for item in code.finish):
            writer.add("operand", code.operand.line - moves[1])
        self.free = free

    def _sum(self, step: int, terms: Terms) -> None:
        """A sum, started with what takes the fewest instructions."""
        writer, registers = self.writer, self.registers
        (first, value), *rest = terms
        if first == -1:
            total = self._take(step, [value])
            writer.negate(total, registers[value])
        elif first != 1:
            total = self._take(step, [value])
            self._lane("multiply_lane", total, value, abs(first))
            if first < 0:
                writer.negate(total, total)
        elif abs(rest[0][0]) == 1:
            (sign, other), *rest = rest
            total = self._take(step, [value, other], terms[2:])
            name = "add" if sign > 0 else "subtract"
            writer.binary(name, total, registers[value], registers[other])
        elif self.last_use[value] == step:
            total = registers[value]
        else:
            (factor, other), *rest = rest
            total = self._take(step, [other], [(1.0, value), *terms[2:]])
            self._lane("multiply_lane", total, other, abs(factor))
            pair = (total, registers[value]) if factor > 0 else (registers[value], total)
            writer.binary("add" if factor > 0 else "subtract", total, *pair)
        for factor, other in rest:
            if abs(factor) == 1:
                name = "add" if factor > 0 else "subtract"
                writer.binary(name, total, total, registers[other])
            else:
                name = "multiply_add_lane" if factor > 0 else "multiply_subtract_lane"
                self._lane(name, total, other, abs(factor))
        registers[self.code.transform.inputs + step] = total
        for value in {value for _, value in terms}:
            if self.last_use[value] == step and value not in self.code.transform.outputs:
                if registers[value] != total:
                    self.free.append(registers[value])
                del registers[value]

    def _take(
        self, step: int, dying: list[int], read_later: Terms | list[tuple[float, int]] = ()
    ) -> int:
        """A register for a sum: that of a value which its first instruction reads last."""
        later = {value for _, value in read_later}
        for value in dying:
            unused = value not in later and value not in self.code.transform.outputs
            if self.last_use[value] == step and unused:
                return self.registers[value]
        return self._pop()

    def _pop(self) -> int:
        # Where code is put in another order, what was used longest ago keeps it from that least.
        register = self.free.pop(0 if self.writer.loads_ahead else -1)
        self.fewest = min(self.fewest, len(self.free))
        return register

    def _lane(self, name: str, total: int, value: int, factor: float) -> None:
        index, lane = divmod(self.code.coefficients.index(factor), self.code.isa.lanes)
        getattr(self.writer, name)(total, self.registers[value], self.coefficients[index], lane)

    def _store(self, index: int, step: int, moves: list[int]) -> None:
        """An output, finished, if need be with a vector of the operand."""
        writer, transform, code = self.writer, self.code.transform, self.code
        value = transform.outputs[index]
        register = self.registers[value]
        count = len(transform.outputs)
        for item in code.finish:
            if item.name == "add":
                other = self._pop()
                self.free.append(other)
                self.fewest = min(self.fewest, len(self.free) - 1)
                moves[1] += writer.move_strided(
                    "ld", other, "operand", step=code.operand.item, index=index, count=count
                )
                writer.binary("add", register, register, other)
            else:
                writer.binary(item.name, register, register, self.bounds[item.value])
        moves[0] += writer.move_strided(
            "st", register, "target", step=code.target.item, index=index, count=count
        )
        if self.last_use.get(value, -1) <= step and value not in transform.outputs[index + 1 :]:
            self.free.append(register)
            del self.registers[value]

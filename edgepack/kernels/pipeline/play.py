"""Plays instructions on an in-order core: when each one issues, all loads hitting the first cache.

An instruction issues when its slot, its units and what it reads are there, and never before the
one in front of it. No fetch, no mispredicted branches, no stores that later loads wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from edgepack.kernels.pipeline.cores import ANYTHING, LAST_CYCLE, NOTHING, Core
from edgepack.kernels.pipeline.instructions import ArmInstruction, ArmKind

_MEMORY = (ArmKind.LOAD, ArmKind.STORE, ArmKind.PREFETCH)
# Units of which there are several; one of each other. A vector pipe is 64 bits wide.
_VECTOR, _ALU, _ACCESS, _BRANCH, _MULTIPLY = "vector", "alu", "access", "branch", "multiply"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What an instruction takes of a core.

    `uses`: of a unit, how many, for how many cycles. `alone`: cycles in which nothing else issues,
    beginning with its own; `with_last` lets the last of them go. `adder` is when it adds, and
    `waits_for_adder` that it may not issue while another does.
    """

    uses: tuple[tuple[str, int, int], ...] = ()
    latency: int = 0
    step: float = 0.0  # what each further register written comes later by
    accumulate_latency: int | None = None
    alone: int = 0
    with_last: bool = False
    adder: int = 0
    waits_for_adder: bool = False
    gap: int = 0  # cycles lost after it


def time_instruction(instruction: ArmInstruction, core: Core) -> Timing:
    """Of an instruction on a core."""
    kind = instruction.kind
    if kind is ArmKind.NOTHING:
        return Timing()
    if kind in _MEMORY:
        return _access(instruction, core)
    if instruction.vector:
        return _vector(instruction, core)
    return _core(kind, core)


def _core(kind: ArmKind, core: Core) -> Timing:
    match kind:
        case ArmKind.BRANCH:
            return Timing(uses=((_BRANCH, 1, 1),), gap=core.taken_branch.value)
        case ArmKind.MULTIPLY:
            uses = ((_MULTIPLY, 1, 1), (_ALU, 1, 1))
            alone = core.multiply_alone.value
            return Timing(uses=uses, latency=core.multiply_latency.value, alone=alone)
        case ArmKind.DIVIDE:
            cycles = core.divide_cycles.value
            return Timing(uses=((_MULTIPLY, 1, cycles), (_ALU, 1, 1)), latency=cycles)
    latency = core.shifted_latency if kind is ArmKind.SHIFTED else core.alu_latency
    return Timing(uses=((_ALU, 1, 1),), latency=latency.value)


def _access(instruction: ArmInstruction, core: Core) -> Timing:
    store = instruction.kind is ArmKind.STORE
    width = (core.store_bits if store else core.load_bits).value
    cycles = max(1, -(-instruction.bits // width))
    uses = [(_ACCESS, 1, cycles)]
    if core.shared_issue.value:
        uses.append(("shared", 1, 1))
    vector_load = instruction.vector and not store
    if vector_load and core.vector_load_takes_pipe.value:
        uses.append((_VECTOR, 1, cycles))
    latency = core.vector_load_latency if instruction.vector else core.load_latency
    registers = max(1, len(instruction.writes))
    pairs = core.wide_load_pairs.value
    if instruction.vector and core.vector_alone.value:
        alone, with_last = cycles, False
    elif vector_load and cycles > 1 and pairs != ANYTHING:
        alone, with_last = cycles, pairs == LAST_CYCLE
    else:
        alone, with_last = NOTHING, False
    return Timing(
        uses=tuple(uses),
        latency=latency.value,
        step=cycles / registers,
        alone=alone,
        with_last=with_last,
        waits_for_adder=vector_load and core.adder_at.value > 0,
    )


def _vector(instruction: ArmInstruction, core: Core) -> Timing:
    pipes = max(1, core.vector_bits.value // 64)
    halves = max(1, instruction.bits // 64)
    taken = min(pipes, halves)
    cycles = -(-instruction.bits // max(core.vector_bits.value, 1)) if halves > pipes else 1
    if core.vector_bits.value < 64:
        cycles = -(-instruction.bits // core.vector_bits.value)
    accumulate = None
    match instruction.kind:
        case ArmKind.FMA:
            latency = core.fma_latency if instruction.is_float else core.float_latency
            accumulate = core.accumulate_latency.value
        case ArmKind.FLOAT:
            latency = core.float_latency
        case ArmKind.PERMUTE:
            latency = core.permute_latency
        case ArmKind.TO_VECTOR:
            latency = core.to_vector_latency
        case ArmKind.FROM_VECTOR:
            latency = core.from_vector_latency
        case ArmKind.FLOAT_DIVIDE:
            latency, cycles = core.float_divide_cycles, core.float_divide_cycles.value * halves
        case _:
            latency = core.integer_latency
    uses = [(_VECTOR, taken, cycles)]
    if core.shared_issue.value:
        uses.append(("shared", 1, 1))
    adds = instruction.kind is ArmKind.FMA and instruction.is_float
    return Timing(
        uses=tuple(uses),
        latency=max(latency.value, cycles),
        accumulate_latency=accumulate,
        alone=cycles if core.vector_alone.value else 0,
        adder=core.adder_at.value if adds else 0,
        waits_for_adder=instruction.kind is ArmKind.FLOAT and core.adder_at.value > 0,
    )


@dataclass
class State:
    """A core in the middle of a program."""

    core: Core
    cycle: int = 0
    issued: int = 0  # in this cycle
    blocked: int = 0  # nothing issues before this cycle
    ready: dict[str, int] = field(default_factory=dict)
    ready_to_add: dict[str, int] = field(default_factory=dict)
    units: dict[str, list[int]] = field(default_factory=dict)  # when each is free again, in order
    adder: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        width = self.core.issue_width.value
        pipes = max(1, self.core.vector_bits.value // 64)
        self.units = {name: [0] for name in ("shared", _ACCESS, _BRANCH, _MULTIPLY)}
        self.units |= {_VECTOR: [0] * pipes, _ALU: [0] * width}

    def issue(self, instruction: ArmInstruction, timing: Timing) -> int:
        """The cycle that it issues in."""
        at = self.earliest(timing, self.operands(instruction))
        if at > self.cycle:
            self.cycle, self.issued = at, 0
        self.issued += 1
        for unit, count, cycles in timing.uses:
            free = self.units[unit]
            free[:count] = [at + cycles] * count
            free.sort()
        if timing.alone:
            self.blocked = at + timing.alone - (1 if timing.with_last else 0)
            if timing.with_last and timing.alone > 1:
                # The last cycle has a slot left beside it.
                self.cycle, self.issued = self.blocked, 1
        if timing.gap:
            self.blocked = max(self.blocked, at + timing.gap)
        if timing.adder:
            self.adder.add(at + timing.adder)
            if len(self.adder) > 64:
                self.adder = {cycle for cycle in self.adder if cycle >= at}
        for index, register in enumerate(instruction.writes):
            self.ready[register] = at + timing.latency + int(index * timing.step)
            self.ready_to_add.pop(register, None)
            if timing.accumulate_latency is not None:
                self.ready_to_add[register] = at + timing.accumulate_latency
        if instruction.base is not None:
            self.ready[instruction.base] = at + self.core.alu_latency.value
        return at

    def operands(self, instruction: ArmInstruction) -> int:
        """The cycle in which all that it reads is there, by what has issued so far."""
        at = 0
        for register in instruction.reads:
            at = max(at, self.ready.get(register, 0))
        for register in instruction.accumulator:
            known = self.ready_to_add.get(register)
            at = max(at, self.ready.get(register, 0) if known is None else known)
        return at

    def earliest(self, timing: Timing, operands: int) -> int:
        """The first cycle that it can issue in, with what it reads there at `operands`."""
        at = max(self.cycle, self.blocked, operands)
        if at == self.cycle and (
            self.issued >= self.core.issue_width.value or (timing.alone and self.issued)
        ):
            at += 1
        for unit, count, _ in timing.uses:
            free = self.units[unit][count - 1]
            at = max(at, free)
        while timing.waits_for_adder and at in self.adder:
            at += 1
        return at


Step = tuple[ArmInstruction, Timing]


def steps(program: Iterable[ArmInstruction], core: Core) -> list[Step]:
    """Instructions with their timings."""
    return [(instruction, time_instruction(instruction, core)) for instruction in program]


def issue_cycles(program: Iterable[Step], core: Core) -> list[int]:
    """The cycle that each instruction of a straight run issues in, on an empty pipeline."""
    state = State(core=core)
    return [state.issue(instruction, timing) for instruction, timing in program]


def steady_cycles(loop: Sequence[ArmInstruction], core: Core, *, passes: int = 40) -> float:
    """Cycles of one pass of a loop, once it is under way."""
    at = issue_cycles(steps(loop, core) * passes, core)
    half = passes // 2
    return (at[-1] - at[half * len(loop) - 1]) / (passes - half)

"""Instructions put in an order that a core takes few cycles for.

A list scheduler: of the instructions whose operands are there, the one that issues first in the
model of `play` comes next. Between those that issue in the same cycle

- what takes all of the vector pipes goes before what takes a part of them,
- except that two of the latter may share a cycle, `Core.adder_at` cycles after the last two did:
  as often as a core takes narrow loads between multiply-adds, and no more often than needed,
- core instructions go last: they fill the other slot.

Sums keep their order, and so do stores and loads of one place: results stay the same to the bit.
"""

from __future__ import annotations

import bisect
import copy
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edgepack.kernels.pipeline.cores import CORES, Core
from edgepack.kernels.pipeline.instructions import ArmInstruction, ArmKind, parse
from edgepack.kernels.pipeline.play import State, Step, Timing, steps

# Of each class, so many are looked at, first written first.
_LOOK = 12
_NEVER = -1_000_000
# Of a run's orders with these `Scheduler.rest` and `urgent`, that of fewest cycles is taken, or the
# first one that takes little more than the vector pipes need.
_TRIED = ((0, False), (0, True), (1, False))
_GOOD = 1.02

_LABEL = re.compile(r"\d+:")
_NUMBER = re.compile(r"#-?\d+")


def dependencies(program: Sequence[ArmInstruction]) -> list[set[int]]:
    """Of each instruction those that have to come before it.

    Memory that one pointer reaches, no other one does, but for a sum that takes the place of what
    was added, which waits for that in any case. What is stored is not stored again
    before it was loaded. So stores wait for loads by the same pointer only, and loads for stores.
    """
    before: list[set[int]] = [set() for _ in program]
    written: dict[str, int] = {}
    read: dict[str, set[int]] = {}
    stored: dict[str | None, set[int]] = {}
    loaded: dict[str | None, set[int]] = {}
    for index, item in enumerate(program):
        reads = {*item.reads, *item.accumulator}
        writes = {*item.writes, *([item.base] if item.base else [])}
        for register in reads | writes:
            if register in written:
                before[index].add(written[register])
        for register in writes:
            before[index] |= read.get(register, set())
        if item.kind is ArmKind.STORE:
            before[index] |= loaded.get(item.pointer, set())
            stored.setdefault(item.pointer, set()).add(index)
        elif item.kind is ArmKind.LOAD:
            before[index] |= stored.get(item.pointer, set())
            loaded.setdefault(item.pointer, set()).add(index)
        elif item.kind is ArmKind.BRANCH:
            before[index] |= set(range(index))
        for register in reads:
            read.setdefault(register, set()).add(index)
        for register in writes:
            written[register], read[register] = index, set()
        before[index].discard(index)
    return before


@dataclass
class Scheduler:
    """A core in the middle of a program that is being put in order.

    `rest` are cycles more than needed between two that parts of the vector pipes are taken in. With
    `urgent` those parts go first that most cycles wait for, not those written first.
    """

    core: Core
    rest: int = 0
    urgent: bool = False

    def __post_init__(self) -> None:
        self.state = State(core=self.core)
        self.shared = _NEVER  # the last cycle that parts of the vector pipes were taken in
        self.pipes = max(1, self.core.vector_bits.value // 64)
        self.left: list[int] = []
        self.alike: list[int] = []  # equal numbers for equal timings

    def steady(
        self, program: Sequence[Step], before: Sequence[set[int]], *, repeats: bool
    ) -> tuple[list[int], int]:
        """The order of a run and its cycles; if it `repeats`, those of a turn that begins where the
        one before has left the pipeline."""
        if repeats:
            self.order(program, before)
        start = self.state.cycle
        return self.order(program, before), self.state.cycle - start

    def needed(self, program: Sequence[Step]) -> float:
        """Cycles of the vector pipes, at least."""
        taken = (
            count * cycles
            for _, timing in program
            for unit, count, cycles in timing.uses
            if unit == "vector"
        )
        return sum(taken) / self.pipes

    def order(self, program: Sequence[Step], before: Sequence[set[int]]) -> list[int]:
        """The numbers of a straight run's instructions as they should follow each other, given its
        `dependencies`."""
        after: list[list[int]] = [[] for _ in program]
        for index, others in enumerate(before):
            for other in others:
                after[other].append(index)
        missing = [len(others) for others in before]
        kinds = [self._class(timing) for _, timing in program]
        numbers: dict[Timing, int] = {}
        self.alike = [numbers.setdefault(timing, len(numbers)) for _, timing in program]
        self.left = _left(program, after) if self.urgent else [0] * len(program)
        ready: list[list[int]] = [[], [], []]
        # Nobody writes what one of these reads before it has read it, so this does not change.
        operands: dict[int, int] = {}
        for index, count in enumerate(missing):
            if not count:
                ready[kinds[index]].append(index)
                operands[index] = self.state.operands(program[index][0])
        found: list[int] = []
        while any(ready):
            index = self._next(program, ready, operands)
            self.state.issue(*program[index])
            ready[kinds[index]].remove(index)
            found.append(index)
            for other in after[index]:
                missing[other] -= 1
                if not missing[other]:
                    bisect.insort(ready[kinds[other]], other)
                    operands[other] = self.state.operands(program[other][0])
        return found

    def _class(self, timing: Timing) -> int:
        """0: takes all vector pipes, 1: a part of them, 2: none."""
        taken = max((count for unit, count, _ in timing.uses if unit == "vector"), default=0)
        return 2 if not taken else 0 if taken >= self.pipes else 1

    def _next(
        self, program: Sequence[Step], ready: Sequence[list[int]], operands: Mapping[int, int]
    ) -> int:
        at = self._earliest(program, ready, operands)
        now = min(at.values())
        whole, parts, others = (
            [index for index in some[:_LOOK] if at.get(index) == now] for some in ready
        )
        due = len(parts) > 1 and now - self.shared >= self.core.adder_at.value + self.rest
        if parts and (self.shared == now or due or not whole):
            self.shared = now
            return max(parts, key=self._urgency)
        return whole[0] if whole else max(others, key=self._urgency)

    def _earliest(
        self, program: Sequence[Step], ready: Sequence[list[int]], operands: Mapping[int, int]
    ) -> dict[int, int]:
        """When those that are looked at can issue; none of some that would not be the first."""
        free: dict[int, int] = {}  # of instructions with equal timings, were their operands there
        at: dict[int, int] = {}
        first: int | None = None
        for some in ready:
            for index in some[:_LOOK]:
                there = operands[index]
                if first is not None and there > first:
                    continue
                _, timing = program[index]
                number = self.alike[index]
                if number not in free:
                    free[number] = self.state.earliest(timing, 0)
                found = free[number]
                if there > found:
                    found = self.state.earliest(timing, there)
                at[index] = found
                first = found if first is None else min(first, found)
        return at

    def _urgency(self, index: int) -> tuple[int, int]:
        return self.left[index], -index


def _left(program: Sequence[Step], after: Sequence[Sequence[int]]) -> list[int]:
    """Cycles from the issue of each to that of the last which waits for it."""
    left = [0] * len(program)
    for index in reversed(range(len(program))):
        instruction, timing = program[index]
        made = set(instruction.writes)
        for other in after[index]:
            follower = program[other][0]
            wait = 0
            if made & set(follower.reads):
                wait = timing.latency
            elif made & set(follower.accumulator):
                sum_ = timing.accumulate_latency
                wait = timing.latency if sum_ is None else sum_
            left[index] = max(left[index], left[other] + wait)
    return left


def arrange(lines: Sequence[str], texts: Sequence[str], core: str, arch: str) -> list[str]:
    """A function's lines, block by block in a core's order; `texts` are the same as they are
    parsed, with registers for names."""
    # What the numbers in addresses are changes no order.
    key = tuple(_NUMBER.sub("#0", text) for text in texts)
    return [lines[index] for index in _order(key, core, arch)]


@functools.lru_cache(maxsize=512)
def _order(texts: tuple[str, ...], core: str, arch: str) -> tuple[int, ...]:
    scheduler = Scheduler(core=CORES[core])
    found: list[int] = []
    for block in _blocks(texts, arch):
        if _is_label(texts[block.start]):
            found += block
            continue
        program = steps((parse(texts[index], arch) for index in block), scheduler.core)
        before = dependencies([instruction for instruction, _ in program])
        best: tuple[list[int], int] | None = None
        for rest, urgent in _TRIED:
            tried = replace(scheduler, rest=rest, urgent=urgent)
            tried.state, tried.shared = copy.deepcopy(scheduler.state), scheduler.shared
            made = tried.steady(program, before, repeats=_repeats(texts, block))
            if best is None or made[1] < best[1]:
                best, following = made, tried
            if best[1] <= _GOOD * scheduler.needed(program):
                break
        assert best is not None
        scheduler = following
        found += (block[index] for index in best[0])
    return tuple(found)


def _is_label(text: str) -> bool:
    return _LABEL.fullmatch(text) is not None


def _blocks(texts: Sequence[str], arch: str) -> Iterator[range]:
    """The straight runs, labels being runs of their own; a branch ends one."""
    start = 0
    for index, text in enumerate(texts):
        if _is_label(text):
            if start < index:
                yield range(start, index)
            yield range(index, index + 1)
            start = index + 1
        elif parse(text, arch).kind is ArmKind.BRANCH:
            yield range(start, index + 1)
            start = index + 1
    if start < len(texts):
        yield range(start, len(texts))


def _repeats(texts: Sequence[str], block: range) -> bool:
    """Whether a block jumps to its own beginning."""
    if block.start == 0 or not _is_label(texts[block.start - 1]):
        return False
    label = texts[block.start - 1].removesuffix(":")
    return texts[block[-1]].split()[-1] == f"{label}b"

"""What of the arena both processors use, and when: bytes that are copied from one's memory to the
other's, or tensors in memory that both have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from edgepack.compiler.backend.plan import Plan

CPU, GPU = "cpu", "gpu"
_Value = TypeVar("_Value")


@dataclass(frozen=True, kw_only=True)
class Copy:
    """`nbytes` from `offset` on, to the memory of processor `to`, before call `before`; the number
    of calls stands for the end.

    A run goes on while bytes are copied to the GPU, and waits for those to the CPU: a copy of no
    bytes to the CPU waits for all copies before it.
    """

    before: int
    to: str
    offset: int
    nbytes: int


def find_copies(plan: Plan, is_on_gpu: Callable[[str], bool]) -> tuple[Copy, ...]:
    """The copies that a run needs, in order.

    Inputs, and what was left by the run before, are with the CPU at first, and outputs are to be
    there in the end. `is_on_gpu` tells of a kernel who runs it. A block of calls is the CPU's as a
    whole: all that it reads or writes is there before it.
    """
    # Where the bytes are as they should be: with one processor, or with both (None).
    places: _Runs[str | None] = _Runs(plan.arena_bytes, CPU)
    copies: list[Copy] = []
    under_way: list[Copy] = []

    def bring(before: int, to: str, tensors: Iterable[int]) -> None:
        for index in _in_arena(plan, tensors):
            for start, stop, where in places.over(*_extent(plan, index)):
                if where in (None, to):
                    continue
                add(Copy(before=before, to=to, offset=start, nbytes=stop - start))
                places.put(None, start, stop)

    def add(copy: Copy) -> None:
        copies.append(copy)
        if copy.to == GPU:
            under_way.append(copy)
        else:
            under_way.clear()

    for step in _steps(plan, is_on_gpu):
        bring(step.first, step.side, step.read)
        written = [_extent(plan, index) for index in _in_arena(plan, step.written)]
        if step.side == CPU and any(
            copy.offset < stop and start < copy.offset + copy.nbytes
            for start, stop in written
            for copy in under_way
        ):
            add(Copy(before=step.first, to=CPU, offset=0, nbytes=0))
        for start, stop in written:
            places.put(step.side, start, stop)
    bring(len(plan.calls), CPU, _left(plan))
    return tuple(copies)


@dataclass(frozen=True, kw_only=True)
class Unified:
    """How a plan runs where the CPU and the GPU share memory: `tensors` are in what both have, the
    others in the GPU's own. `uses` are the bytes that the CPU uses from a call on, up to the next
    one of the GPU's: it waits for the GPU before that. Nothing is copied."""

    tensors: tuple[int, ...]
    uses: tuple[Copy, ...]


def find_unified(plan: Plan, is_on_gpu: Callable[[str], bool]) -> Unified:
    """What both processors use: what the CPU's calls, inputs and outputs are, and what is the same
    data under another name. Between runs the CPU may use inputs and outputs, and whatever its calls
    before the GPU's first one do."""
    steps = _steps(plan, is_on_gpu)
    # Runs of steps of one processor, as its calls and their tensors.
    turns: list[tuple[str, int, set[int]]] = []
    for step in steps:
        if not turns or turns[-1][0] != step.side:
            turns.append((step.side, step.first, set()))
        turns[-1][2].update(step.read, step.written)
    left = {*plan.inputs, *_left(plan)}
    if turns and turns[0][0] == CPU:
        left |= turns[0][2]
        del turns[0]
    on_cpu = [(first, tensors) for side, first, tensors in turns if side == CPU]
    on_cpu.append((len(plan.calls), left))
    uses = [
        Copy(before=first, to=CPU, offset=start, nbytes=stop - start)
        for first, tensors in on_cpu
        for start, stop in _ranges(plan, tensors) or [(0, 0)]
    ]
    same = _same_data(plan, steps)
    both = {same[index] for _, tensors in on_cpu for index in tensors}
    found = [
        index
        for index, tensor in enumerate(plan.tensors)
        if tensor.storage == "arena" and same[index] in both
    ]
    return Unified(tensors=tuple(found), uses=tuple(uses))


@dataclass(frozen=True, kw_only=True)
class _ProcessorStep:
    """Calls that one processor does: one, or all of a block; what they read and write."""

    first: int
    side: str
    read: tuple[int, ...]
    written: tuple[int, ...]


def _steps(plan: Plan, is_on_gpu: Callable[[str], bool]) -> list[_ProcessorStep]:
    steps = []
    index = 0
    while index < len(plan.calls):
        inside = [block for block in plan.blocks if block.first == index]
        end = max((block.end for block in inside), default=index + 1)
        calls = plan.calls[index:end]
        read = [arg for call in calls for arg in (call.args if inside else call.read)]
        read += [block.condition for block in inside]
        steps.append(
            _ProcessorStep(
                first=index,
                side=GPU if not inside and is_on_gpu(calls[0].kernel) else CPU,
                read=tuple(read),
                written=tuple(arg for call in calls for arg in call.written),
            )
        )
        index = end
    return steps


def _left(plan: Plan) -> list[int]:
    """What is looked at behind a run."""
    return [*plan.outputs, *(count.tensor for count in plan.counts)]


def _in_arena(plan: Plan, tensors: Iterable[int]) -> list[int]:
    return [index for index in tensors if plan.tensors[index].storage == "arena"]


def _extent(plan: Plan, index: int) -> tuple[int, int]:
    tensor = plan.tensors[index]
    return tensor.offset, tensor.offset + tensor.nbytes


def _ranges(plan: Plan, tensors: Iterable[int]) -> list[tuple[int, int]]:
    """The bytes of the arena that are of tensors, in order; none of them twice."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(_extent(plan, index) for index in _in_arena(plan, tensors)):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        elif start < stop:
            found.append((start, stop))
    return found


def _same_data(plan: Plan, steps: Iterable[_ProcessorStep]) -> list[int]:
    """Of each tensor the one that stands for all whose bytes it has: those that wrote what it is
    read for, and what is written in the place of what the same call reads."""
    leaders = list(range(len(plan.tensors)))
    writers: _Runs[int | None] = _Runs(plan.arena_bytes, None)

    def leader(index: int) -> int:
        while leaders[index] != index:
            index = leaders[index]
        return index

    def read(index: int) -> None:
        for _, _, writer in writers.over(*_extent(plan, index)):
            if writer is not None:
                leaders[leader(writer)] = leader(index)

    def write(index: int) -> None:
        writers.put(index, *_extent(plan, index))

    for index in _in_arena(plan, plan.inputs):
        write(index)
    for step in steps:
        taken, made = _in_arena(plan, step.read), _in_arena(plan, step.written)
        # What is read is then the writer of all its bytes, also for what is written in its place.
        for index in taken:
            read(index)
            write(index)
        for index in made:
            start, stop = _extent(plan, index)
            for other in taken:
                first, last = _extent(plan, other)
                if first < stop and start < last:
                    leaders[leader(other)] = leader(index)
        for index in made:
            write(index)
    for index in _in_arena(plan, _left(plan)):
        read(index)
    return [leader(index) for index in range(len(leaders))]


class _Runs(Generic[_Value]):
    """A value for each byte of the arena: runs of bytes, in order; each ends where the next one
    begins."""

    def __init__(self, size: int, value: _Value) -> None:
        self.runs: list[tuple[int, int, _Value]] = [(0, size, value)] if size else []

    def over(self, start: int, stop: int) -> list[tuple[int, int, _Value]]:
        """The parts of a range."""
        return [
            (max(first, start), min(last, stop), value)
            for first, last, value in self.runs
            if first < stop and start < last
        ]

    def put(self, value: _Value, start: int, stop: int) -> None:
        """Let a range have a value."""
        if start == stop:
            return
        made: list[tuple[int, int, _Value]] = []
        for first, last, old in self.runs:
            if first < start:
                made.append((first, min(last, start), old))
            if first <= start < last:
                made.append((start, stop, value))
            if last > stop:
                made.append((max(first, stop), last, old))
        self.runs = made

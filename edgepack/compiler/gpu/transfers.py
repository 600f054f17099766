"""Which bytes of the arena are copied between the memories of the two processors, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edgepack.compiler.backend.plan import Plan

CPU, GPU = "cpu", "gpu"


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
    places = _Memories(plan.arena_bytes)
    copies: list[Copy] = []
    under_way: list[Copy] = []

    def bring(before: int, to: str, tensors: Iterable[int]) -> None:
        for index in tensors:
            tensor = plan.tensors[index]
            if tensor.storage != "arena":
                continue
            for start, stop in places.missing(to, tensor.offset, tensor.offset + tensor.nbytes):
                add(Copy(before=before, to=to, offset=start, nbytes=stop - start))
                places.put(None, start, stop)

    def add(copy: Copy) -> None:
        copies.append(copy)
        if copy.to == GPU:
            under_way.append(copy)
        else:
            under_way.clear()

    index = 0
    while index < len(plan.calls):
        inside = [block for block in plan.blocks if block.first == index]
        end = max((block.end for block in inside), default=index + 1)
        calls = plan.calls[index:end]
        side = GPU if not inside and is_on_gpu(calls[0].kernel) else CPU
        read = [arg for call in calls for arg in (call.args if inside else call.read)]
        read += [block.condition for block in inside]
        made = [arg for call in calls for arg in call.written]
        bring(index, side, read)
        written = [plan.tensors[arg] for arg in made if plan.tensors[arg].storage == "arena"]
        if side == CPU and any(
            copy.offset < tensor.offset + tensor.nbytes
            and tensor.offset < copy.offset + copy.nbytes
            for tensor in written
            for copy in under_way
        ):
            add(Copy(before=index, to=CPU, offset=0, nbytes=0))
        for tensor in written:
            places.put(side, tensor.offset, tensor.offset + tensor.nbytes)
        index = end
    last = [*plan.outputs, *(count.tensor for count in plan.counts)]
    bring(len(plan.calls), CPU, last)
    return tuple(copies)


class _Memories:
    """Where the bytes of the arena are as they should be: with one processor, or with both (None).

    Runs of bytes, in order; each ends where the next one begins.
    """

    def __init__(self, size: int) -> None:
        self.runs: list[tuple[int, int, str | None]] = [(0, size, CPU)] if size else []

    def missing(self, side: str, start: int, stop: int) -> list[tuple[int, int]]:
        """The parts of a range that only the other processor has."""
        return [
            (max(first, start), min(last, stop))
            for first, last, where in self.runs
            if where not in (None, side) and first < stop and start < last
        ]

    def put(self, side: str | None, start: int, stop: int) -> None:
        """Let a range be with one processor, or both."""
        if start == stop:
            return
        made: list[tuple[int, int, str | None]] = []
        for first, last, where in self.runs:
            if first < start:
                made.append((first, min(last, start), where))
            if first <= start < last:
                made.append((start, stop, side))
            if last > stop:
                made.append((max(first, stop), last, where))
        self.runs = made

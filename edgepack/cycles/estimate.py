"""From a trace and a core to cycles, memory traffic and a range of milliseconds."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edgepack.cycles.memories import BoardMemory
from edgepack.cycles.trace import Trace, TracedBlock
from edgepack.kernels.pipeline.cores import PAIRING, Core
from edgepack.kernels.pipeline.instructions import ArmKind, parse
from edgepack.kernels.pipeline.play import Step, issue_cycles, time_instruction

LINE = 64
# What a window begins with fills the pipeline and is not counted.
_WARM = 0.2
MAX_WINDOWS = 200
# A block that so large a part of the instructions are of is wanted in so many windows.
_MATTERS = 1e-4
_SHOWN = 3
_STRIDE = 7919  # a prime


_Sample = tuple[float, int, int]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What windows cost: samples of cycles, their instructions, and the number of a block.

    `of_blocks`: a sample is of that block alone, else of the window that has it in its middle.
    """

    samples: list[_Sample]
    of_blocks: bool


@dataclass(frozen=True, kw_only=True)
class KernelCycles:
    """A kernel's or a file's share. `fma_per_cycle` counts multiply-adds of 128 bits."""

    cycles: float
    instructions: int
    l1_misses: int
    read_bytes: int
    fma_per_cycle: float


@dataclass(frozen=True, kw_only=True)
class CycleEstimate:
    """Of one inference. `cycles` is by assumption; `error` is the half-width of a 95 % interval of
    the sampling, as a part of the cycles."""

    instructions: int
    cycles: Mapping[str, float]
    error: float
    l1_misses: int
    traffic_bytes: int
    parts: Mapping[str, KernelCycles]

    def milliseconds(self, memory: BoardMemory, hertz: float) -> tuple[float, float]:
        """The range: at best nothing waits for memory but what memory itself cannot deliver in
        time, at worst nothing overlaps."""
        low, high = min(self.cycles.values()), max(self.cycles.values())
        slow, fast = memory.bandwidth
        waits = self.l1_misses * memory.l2_cycles
        best = max(low / hertz, self.traffic_bytes / fast)
        worst = (high + waits) / hertz + self.traffic_bytes / slow
        return best * 1e3, worst * 1e3


def window_costs(trace: Trace, core: Core, windows: Sequence[Sequence[int]] | None = None) -> Costs:
    """Cycles of the blocks in some windows on a core that issues in order; by default in those
    that `choose_windows` gives. A block's last until the next one begins."""
    decoded: dict[str, Step] = {}
    blocks: dict[int, list[Step]] = {}
    known: dict[tuple[int, ...], list[_Sample]] = {}

    def step(text: str) -> Step:
        if text not in decoded:
            instruction = parse(text, trace.arch)
            decoded[text] = (instruction, time_instruction(instruction, core))
        return decoded[text]

    def played(window: tuple[int, ...]) -> list[_Sample]:
        program: list[Step] = []
        starts = []
        for number in window:
            if number not in blocks:
                block = trace.blocks.get(number)
                blocks[number] = [step(text) for text in block.texts] if block else []
            starts.append(len(program))
            program += blocks[number]
        if not program:
            return []
        at = issue_cycles(program, core)
        first = find_count_start(at)
        at.append(at[-1] + 1)
        ends = [*starts[1:], len(program)]
        return [
            (at[end] - at[max(start, first)], end - max(start, first), number)
            for start, end, number in zip(starts, ends, window, strict=True)
            if max(start, first) < end
        ]

    samples: list[_Sample] = []
    outer: list[_Sample] = []
    for window in choose_windows(trace.windows) if windows is None else windows:
        key = tuple(window)
        if key not in known:
            known[key] = played(key)
        samples += known[key][1:-1]
        outer += known[key][:1] + known[key][1:][-1:]
    # Of the first block a part may be missing, and what comes behind the last one is not known:
    # they count only where they are all there is, as of blocks nearly as long as a window.
    seen = {number for _, _, number in samples}
    samples += [sample for sample in outer if sample[2] not in seen]
    return Costs(samples=samples, of_blocks=True)


def find_count_start(window: Sequence[object]) -> int:
    """Where in a window's instructions counting begins."""
    return int(len(window) * _WARM)


def choose_windows(windows: Sequence[list[int]]) -> Sequence[list[int]]:
    """Those that are played."""
    stride = -(-len(windows) // MAX_WINDOWS)
    return windows[::stride] if stride > 1 else windows


@dataclass
class _Stratum:
    instructions: int = 0
    misses: int = 0
    read_lines: int = 0
    fma: int = 0


# A name, and what costs alike there: a block, else a page of code, for a peer's file is one name.
_Key = tuple[str, int]
_PAGE = 4096


def _key(number: int, block: TracedBlock, name: Callable[[int], str], costs: Costs) -> _Key:
    return name(block.pc), number if costs.of_blocks else block.pc // _PAGE


def _strata(trace: Trace, name: Callable[[int], str], costs: Costs) -> dict[_Key, _Stratum]:
    strata: dict[_Key, _Stratum] = defaultdict(_Stratum)
    for number, block in trace.blocks.items():
        stratum = strata[_key(number, block, name, costs)]
        stratum.instructions += block.instructions
        stratum.misses += block.misses
        stratum.read_lines += block.lines
        for text in block.texts:
            found = parse(text, trace.arch)
            if found.kind is ArmKind.FMA and found.is_float:
                stratum.fma += block.count * found.bits
    return strata


def _by_stratum(
    trace: Trace, costs: Costs, name: Callable[[int], str], strata: Mapping[_Key, _Stratum]
) -> tuple[dict[_Key, float], float]:
    """Cycles of each stratum, and the variance of their sum.

    How many instructions each executed is known; what one costs there is the samples' mean, or that
    of the name or of all samples where it has none of its own.
    """
    own: dict[_Key, list[tuple[float, int]]] = defaultdict(list)
    named: dict[str, list[tuple[float, int]]] = defaultdict(list)
    everything = []
    for spent, count, number in costs.samples:
        block = trace.blocks.get(number)
        everything.append((spent, count))
        if block is not None:
            key = _key(number, block, name, costs)
            own[key].append((spent, count))
            named[key[0]].append((spent, count))
    spread = _variance(everything)
    cycles, variance = {}, 0.0
    for key, stratum in strata.items():
        found = own.get(key) or named.get(key[0]) or everything
        cycles[key] = stratum.instructions * _mean(found)
        some = own.get(key, [])
        of_mean = _variance(some) / len(some) if len(some) > 1 else spread
        variance += stratum.instructions**2 * of_mean
    return cycles, variance


def _mean(samples: Sequence[tuple[float, int]]) -> float:
    """Cycles per instruction."""
    return sum(spent for spent, _ in samples) / sum(count for _, count in samples)


def _variance(samples: Sequence[tuple[float, int]]) -> float:
    """Of the cycles per instruction."""
    return statistics.pvariance([spent / count for spent, count in samples])


def _parts(
    cycles: Mapping[_Key, float], strata: Mapping[_Key, _Stratum]
) -> dict[str, KernelCycles]:
    """By name."""
    sums: dict[str, _Stratum] = defaultdict(_Stratum)
    taken: dict[str, float] = defaultdict(float)
    for (name, _), stratum in strata.items():
        sums[name].instructions += stratum.instructions
        sums[name].misses += stratum.misses
        sums[name].read_lines += stratum.read_lines
        sums[name].fma += stratum.fma
    for (name, _), value in cycles.items():
        taken[name] += value
    return {
        name: KernelCycles(
            cycles=taken[name],
            instructions=stratum.instructions,
            l1_misses=stratum.misses,
            read_bytes=stratum.read_lines * LINE,
            fma_per_cycle=stratum.fma / 128 / taken[name] if taken[name] else 0.0,
        )
        for name, stratum in sums.items()
    }


def parts(trace: Trace, costs: Costs, name: Callable[[int], str]) -> dict[str, KernelCycles]:
    """By name, with the windows' costs under one assumption."""
    strata = _strata(trace, name, costs)
    return _parts(_by_stratum(trace, costs, name, strata)[0], strata)


def cover_blocks(trace: Trace) -> list[Sequence[int]]:
    """Windows that show each block that matters a few times, as far as those of the trace do."""
    most = _MATTERS * trace.instructions
    wanted = {
        number: _SHOWN for number, block in trace.blocks.items() if block.instructions >= most
    }
    found: list[Sequence[int]] = []
    count = len(trace.windows)
    # Not one after the other: a kernel's first turns have other neighbours.
    order = sorted(range(count), key=lambda index: index * _STRIDE % count)
    for window in (trace.windows[index] for index in order):
        counted = window[find_count_start(window) :]
        if any(wanted.get(number, 0) > 0 for number in counted):
            found.append(window)
            for number in set(counted) & wanted.keys():
                wanted[number] -= 1
    return found


def estimate(
    trace: Trace, windows: Mapping[str, Costs], name: Callable[[int], str]
) -> CycleEstimate:
    """Of a trace whose windows were played under some assumptions; by kernel under the first."""
    totals: dict[str, float] = {}
    found: dict[str, KernelCycles] = {}
    error = 0.0
    for assumption, costs in windows.items():
        strata = _strata(trace, name, costs)
        cycles, variance = _by_stratum(trace, costs, name, strata)
        totals[assumption] = sum(cycles.values())
        if not found:
            error = 1.96 * math.sqrt(variance) / totals[assumption]
            found = _parts(cycles, strata)
    sums = trace.sums
    return CycleEstimate(
        instructions=trace.instructions,
        cycles=totals,
        error=error,
        l1_misses=sums["l1_misses"],
        traffic_bytes=(sums["l2_misses"] + sums["l2_written_back"]) * LINE,
        parts=found,
    )


def estimate_pairings(trace: Trace, core: Core) -> dict[str, Costs]:
    """The windows' costs on an in-order core under each pairing."""
    return {pairing: window_costs(trace, core.paired(pairing)) for pairing in PAIRING}


def alternatives(trace: Trace, core: Core) -> dict[str, Costs]:
    """With one number of the core changed at a time: `fma_latency=4` and so on."""
    return {
        f"{field}={value}": window_costs(trace, core.given(**{field: value}))
        for field, number in core.numbers()
        for value in number.others
    }

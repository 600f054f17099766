"""From a trace and a core to cycles, memory traffic and a range of milliseconds."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.cycles.memories import Memory
from bench.cycles.trace import Trace
from edgepack.compiler.pipeline.cores import PAIRING, Core
from edgepack.compiler.pipeline.instructions import ArmKind, parse
from edgepack.compiler.pipeline.play import Step, issue_cycles, timing

LINE = 64
# Of each window: cycles per instruction, and the block in its middle.
Costs = list[tuple[float, int]]
# What a window begins with fills the pipeline and is not counted.
_WARM = 0.2
MAX_WINDOWS = 200


@dataclass(frozen=True, kw_only=True)
class Part:
    """A kernel's or a file's share. `fma_per_cycle` counts multiply-adds of 128 bits."""

    cycles: float
    instructions: int
    read_bytes: int
    fma_per_cycle: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Of one inference. `cycles` is by assumption; `error` is the half-width of a 95 % interval of
    the sampling, as a part of the cycles."""

    instructions: int
    cycles: Mapping[str, float]
    error: float
    l1_misses: int
    traffic_bytes: int
    parts: Mapping[str, Part]

    def milliseconds(self, memory: Memory, hertz: float) -> tuple[float, float]:
        """The range: at best nothing waits for memory but what memory itself cannot deliver in
        time, at worst nothing overlaps."""
        low, high = min(self.cycles.values()), max(self.cycles.values())
        slow, fast = memory.bandwidth
        waits = self.l1_misses * memory.l2_cycles
        best = max(low / hertz, self.traffic_bytes / fast)
        worst = (high + waits) / hertz + self.traffic_bytes / slow
        return best * 1e3, worst * 1e3


def window_costs(trace: Trace, core: Core) -> Costs:
    """Cycles per instruction of each window on a core that issues in order."""
    decoded: dict[str, Step] = {}
    blocks: dict[int, list[Step]] = {}
    known: dict[tuple[int, ...], float] = {}

    def step(text: str) -> Step:
        if text not in decoded:
            instruction = parse(text, trace.arch)
            decoded[text] = (instruction, timing(instruction, core))
        return decoded[text]

    costs = []
    for window in chosen(trace.windows):
        key = tuple(window)
        if key not in known:
            program: list[Step] = []
            for number in window:
                if number not in blocks:
                    block = trace.blocks.get(number)
                    blocks[number] = [step(text) for text in block.texts] if block else []
                program += blocks[number]
            at = issue_cycles(program, core)
            first = counted_from(at)
            known[key] = (at[-1] - at[first]) / max(1, len(at) - 1 - first)
        costs.append((known[key], window[len(window) // 2]))
    return costs


def counted_from(window: Sequence[object]) -> int:
    """Where in a window's instructions counting begins."""
    return int(len(window) * _WARM)


def chosen(windows: Sequence[list[int]]) -> Sequence[list[int]]:
    """Those that are played."""
    stride = -(-len(windows) // MAX_WINDOWS)
    return windows[::stride] if stride > 1 else windows


@dataclass
class _Stratum:
    instructions: int = 0
    read_lines: int = 0
    fma: int = 0


# A name and a page of code: what lies in one page costs alike, and a peer's file is one name.
_Key = tuple[str, int]
_PAGE = 4096


def _strata(trace: Trace, name: Callable[[int], str]) -> dict[_Key, _Stratum]:
    strata: dict[_Key, _Stratum] = defaultdict(_Stratum)
    for block in trace.blocks.values():
        stratum = strata[name(block.pc), block.pc // _PAGE]
        stratum.instructions += block.instructions
        stratum.read_lines += block.lines
        for text in block.texts:
            found = parse(text, trace.arch)
            if found.kind is ArmKind.FMA and found.is_float:
                stratum.fma += block.count * found.bits
    return strata


def _by_stratum(
    trace: Trace, windows: Costs, name: Callable[[int], str], strata: Mapping[_Key, _Stratum]
) -> tuple[dict[_Key, float], float]:
    """Cycles of each stratum, and the variance of their sum.

    How many instructions each executed is known; what one costs there is the windows' mean, or that
    of the name or of all windows where it has none of its own.
    """
    costs: dict[_Key, list[float]] = defaultdict(list)
    named: dict[str, list[float]] = defaultdict(list)
    everything = []
    for cost, middle in windows:
        block = trace.blocks.get(middle)
        everything.append(cost)
        if block is not None:
            key = name(block.pc), block.pc // _PAGE
            costs[key].append(cost)
            named[key[0]].append(cost)
    spread = statistics.pvariance(everything)
    cycles, variance = {}, 0.0
    for key, stratum in strata.items():
        found = costs.get(key) or named.get(key[0]) or everything
        cycles[key] = stratum.instructions * statistics.fmean(found)
        own = costs.get(key, [])
        of_mean = statistics.variance(own) / len(own) if len(own) > 1 else spread
        variance += stratum.instructions**2 * of_mean
    return cycles, variance


def _parts(cycles: Mapping[_Key, float], strata: Mapping[_Key, _Stratum]) -> dict[str, Part]:
    """By name."""
    sums: dict[str, _Stratum] = defaultdict(_Stratum)
    taken: dict[str, float] = defaultdict(float)
    for (name, _), stratum in strata.items():
        sums[name].instructions += stratum.instructions
        sums[name].read_lines += stratum.read_lines
        sums[name].fma += stratum.fma
    for (name, _), value in cycles.items():
        taken[name] += value
    return {
        name: Part(
            cycles=taken[name],
            instructions=stratum.instructions,
            read_bytes=stratum.read_lines * LINE,
            fma_per_cycle=stratum.fma / 128 / taken[name] if taken[name] else 0.0,
        )
        for name, stratum in sums.items()
    }


def estimate(trace: Trace, windows: Mapping[str, Costs], name: Callable[[int], str]) -> Estimate:
    """Of a trace whose windows were played under some assumptions; by kernel under the first."""
    strata = _strata(trace, name)
    totals: dict[str, float] = {}
    parts: dict[str, Part] = {}
    error = 0.0
    for assumption, costs in windows.items():
        cycles, variance = _by_stratum(trace, costs, name, strata)
        totals[assumption] = sum(cycles.values())
        if not parts:
            error = 1.96 * math.sqrt(variance) / totals[assumption]
            parts = _parts(cycles, strata)
    sums = trace.sums
    return Estimate(
        instructions=trace.instructions,
        cycles=totals,
        error=error,
        l1_misses=sums["l1_misses"],
        traffic_bytes=(sums["l2_misses"] + sums["l2_written_back"]) * LINE,
        parts=parts,
    )


def paired(trace: Trace, core: Core) -> dict[str, Costs]:
    """The windows' costs on an in-order core under each pairing."""
    return {pairing: window_costs(trace, core.paired(pairing)) for pairing in PAIRING}


def alternatives(trace: Trace, core: Core) -> dict[str, Costs]:
    """With one number of the core changed at a time: `fma_latency=4` and so on."""
    return {
        f"{field}={value}": window_costs(trace, core.given(**{field: value}))
        for field, number in core.numbers()
        for value in number.others
    }

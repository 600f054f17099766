"""Variants of a network without a board: estimated cycles of a core that issues in order.

The board's own machine code runs under qemu on this machine, one inference of each variant by one
core, traced; `edgepack.cycles` says what that comes to.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edgepack.base.errors import UsageError
from edgepack.base.progress import NO_PROGRESS, Progress, now
from edgepack.boards import Board
from edgepack.bundle.bundle import Golden
from edgepack.compiler.backend.report import LayerReport
from edgepack.compiler.variants import Variants
from edgepack.cycles import trace
from edgepack.cycles.estimate import KernelCycles, cover_blocks, parts, window_costs
from edgepack.cycles.memories import BoardMemory, memory_of
from edgepack.deploy.conditions import Conditions
from edgepack.flow.job import Job
from edgepack.flow.reference import compare
from edgepack.kernels.choices import Choices, Tunable
from edgepack.kernels.pipeline.cores import CORES, PAIRING, Core
from edgepack.native.emulate import run_traced
from edgepack.tuning.rounds import Round, TimedBlock, Times, compile_round, golden_of, same_kernels

# Windows that are sampled of an inference, which is so many instructions for a multiply-add at
# least; none are closer than that.
_WINDOWS = 4000
_INSTRUCTIONS_PER_MAC = 0.3
_DENSEST = 2000
# What one run takes: cycles by assumption of each kernel, by its signature ("" for all that cannot
# be tuned).
_Cycles = Mapping[str, tuple[float, ...]]


def core_of(board: Board) -> Core:
    """The core whose cycles are estimated for `board`. Raises UsageError if none is described."""
    core = CORES.get(board.cpu)
    if core is None:
        raise UsageError(
            f"--device virtual: no cycles can be estimated for {board.name}: only those of "
            f"{', '.join(sorted(CORES))} can, not of {board.cpu}",
            hint="tune on the board itself; --emulated only shows how it works",
        )
    return core


def on_one_core(tunables: Sequence[Tunable]) -> tuple[Tunable, ...]:
    """The same without ways that differ in what the cores share: one core's cycles do not tell."""
    return tuple(
        replace(
            one,
            others=tuple(way for way in one.others if way.choice.share == one.default.choice.share),
        )
        for one in tunables
    )


class CycleTimer:
    """Estimates instead of measuring. A block of a round is an assumption: how freely loads pair,
    and whether the core waits for its caches and memory. So a way counts as faster only if it is
    so under every one of them."""

    def __init__(self, job: Job, *, progress: Progress = NO_PROGRESS) -> None:
        self._job, self._progress = job, progress
        self._core, self._memory = core_of(job.board), memory_of(job.board)
        self._hertz = max(cluster.max_mhz for cluster in job.board.clusters) * 1e6
        self._qemu = trace.emulator(job.board.debian_arch)
        self._plugin = trace.build_plugin(self._qemu)
        self._golden: tuple[Golden, float] | None = None
        self._untuned: _Cycles | None = None

    def measure(self, variants: Sequence[Choices], *, blocks: int) -> Round:
        """See `Timer`; there is a block for each assumption, however many are asked for.

        Raises what compiling raises, ToolMissingError and EmulationError.
        """
        if self._golden is None:
            self._golden = golden_of(self._job, progress=self._progress)
        with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
            out = Path(name) / "variants"
            compiled = compile_round(self._job, variants, out, progress=self._progress)
            self._progress.step(f"estimating {len(variants)} variants on a {self._core.name}")
            wrong: set[int] = set()
            found: list[_Cycles] = []
            for index in range(len(compiled.graphs)):
                now("estimating", index, len(compiled.graphs))
                if index or self._untuned is None:
                    found.append(self._cycles(compiled, index, wrong))
                    if not index:
                        self._untuned = found.pop()
        assert self._untuned is not None
        return Round(
            blocks=tuple(
                TimedBlock(
                    untuned=(self._times(self._untuned, number),) * 2,
                    variants=tuple(self._times(cycles, number) for cycles in found),
                    before=Conditions(),
                    after=Conditions(),
                )
                for number in range(2 * len(PAIRING))
            ),
            wrong=frozenset(index - 1 for index in wrong),
            same=same_kernels(compiled),
            repeated=0,
        )

    def _cycles(self, compiled: Variants, index: int, wrong: set[int]) -> _Cycles:
        """One variant's, which joins `wrong` if its outputs are not the reference's."""
        assert self._golden is not None
        golden, tolerance = self._golden
        layers = compiled.layers[index]
        with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
            folder = Path(name)
            (folder / "graph.json").symlink_to(compiled.graphs[index].absolute())
            for file in (compiled.library, compiled.params):
                (folder / file.name).symlink_to(file.absolute())
            written = folder / "trace"
            arch = trace.arch_of(self._job.board.debian_arch)
            options = trace.options(
                written, trace.PARENT[arch], self._memory, every=_distance(layers)
            )
            outputs, base = run_traced(
                folder, self._job.board, golden.inputs, self._qemu, f"{self._plugin},{options}"
            )
            traced = trace.read(written, arch)
        pairs = zip(outputs, golden.outputs, strict=True)
        if not all(compare(got, want, tolerance).ok for got, want in pairs):
            wrong.add(index)
        kernel = trace.names_from(base, trace.function_names(compiled.library))
        return self._by_signature(traced, kernel, layers)

    def _by_signature(
        self, traced: trace.Trace, kernel: Callable[[int], str], layers: Sequence[LayerReport]
    ) -> _Cycles:
        windows = cover_blocks(traced)
        signatures = {layer.kernel: layer.signature for layer in layers}
        found: dict[str, list[float]] = {}
        for pairing, assumption in enumerate(PAIRING):
            costs = window_costs(traced, self._core.paired(assumption), windows)
            for name, part in parts(traced, costs, kernel).items():
                sums = found.setdefault(signatures.get(name, ""), [0.0] * (2 * len(PAIRING)))
                sums[2 * pairing] += part.cycles
                sums[2 * pairing + 1] += part.cycles + _waiting(part, self._memory, self._hertz)
        return {signature: tuple(sums) for signature, sums in found.items()}

    def _times(self, cycles: _Cycles, assumption: int) -> Times:
        kernels = {
            signature: sums[assumption] / self._hertz * 1e3 for signature, sums in cycles.items()
        }
        return Times(run_ms=sum(kernels.values()), kernels_ms=kernels)


def _distance(layers: Sequence[LayerReport]) -> int:
    """Instructions from a window to the next one."""
    instructions = _INSTRUCTIONS_PER_MAC * sum(layer.macs for layer in layers)
    return max(_DENSEST, int(instructions / _WINDOWS))


def _waiting(part: KernelCycles, memory: BoardMemory, hertz: float) -> float:
    """Cycles in which a kernel waits if nothing overlaps: for the second cache, and for memory at
    its slowest."""
    slow, _ = memory.bandwidth
    return part.l1_misses * memory.l2_cycles + part.read_bytes / slow * hertz

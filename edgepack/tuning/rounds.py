"""A round of tuning: variants of a network, compiled here, and timed in turns on the device.

All variants go there at once, on one kernel library and one parameter file. Each is a folder as of
a bundle, by whose number it is run:

    <folder>/bin/edgepack-run  model.so  params.bin  golden/
    <folder>/0/                manifest.json, model/graph.json and links to what is above
    <folder>/1/                ...

A block is one command there: the untuned network, each variant, the untuned network again. Before
and after, it tells the clock and the temperature.
"""

from __future__ import annotations

import contextlib
import math
import re
import secrets
import shlex
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from edgepack.base.errors import EdgepackError, MismatchError, RemoteError
from edgepack.base.progress import NO_PROGRESS, Progress, now
from edgepack.bundle.bundle import Golden
from edgepack.bundle.manifest import APP
from edgepack.compiler.backend.report import LayerReport
from edgepack.compiler.limited import within
from edgepack.compiler.variants import Variants, compile_variants
from edgepack.deploy.answers import SenselessError
from edgepack.deploy.app_answers import AppAnswer
from edgepack.deploy.conditions import COMMAND, Conditions, parse_conditions
from edgepack.deploy.remote_app import app_command, parse_answer
from edgepack.device.base import Device, RemoteResult
from edgepack.flow.job import (
    Job,
    compile_job,
    kernel_toolchain,
    model_limits,
    settings_of,
)
from edgepack.flow.reference import Array, make_golden
from edgepack.flow.tolerances import golden_tolerance, tolerance_of
from edgepack.kernels.choices import Choices
from edgepack.native.app import RuntimeBuild, build_runtime
from edgepack.native.linked_app import link_app

# A variant runs so long in a block, at most so many times, and as long again with a profile. Many
# short blocks tell more than few long ones: what disturbs a device is long, too.
_BLOCK_MS = 60.0
_MOST_RUNS = 50
_FEWEST_RUNS = 3
# The share of its fastest clock that a block may have ended with; how long a device rests after a
# block that it was held back in, and how many such blocks there may be for each that counts.
_FULL_CLOCK = 0.9
_REST_S = 15.0
_MOST_REPEATS = 2


class ThrottledError(RemoteError):
    """The device is held back, by its temperature or its supply, again and again."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """A variant in one block, in milliseconds: medians of a whole run, and of all calls of each
    kernel in a run, by its signature ("" for what cannot be tuned)."""

    run_ms: float
    kernels_ms: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class TimedBlock:
    """One block: the untuned network before and after, and each of the variants between."""

    untuned: tuple[Times, Times]
    variants: tuple[Times, ...]
    before: Conditions
    after: Conditions


@dataclass(frozen=True, kw_only=True)
class Round:
    """What was measured of some variants.

    `wrong` are the variants whose outputs are not the reference's. `same` has, for each variant,
    the signatures whose kernels are those of the untuned network. `repeated` blocks do not count.
    """

    blocks: tuple[TimedBlock, ...]
    wrong: frozenset[int]
    same: tuple[frozenset[str], ...]
    repeated: int


class Timer(Protocol):
    """Times variants of a network beside the untuned one."""

    def measure(self, variants: Sequence[Choices], *, blocks: int) -> Round:
        """Some variants, in so many blocks."""


def golden_of(job: Job, *, progress: Progress = NO_PROGRESS) -> tuple[Golden, float]:
    """Inputs with the reference's outputs, and the tolerance that variants have to keep."""
    progress.step("running the reference (onnxruntime)")
    compiled = compile_job(job, progress=progress)
    golden = make_golden(
        job.model,
        preprocess=job.preprocess,
        image=job.project.golden_image,
        files=job.project.golden_input,
        floats=compiled.floats,
    )
    return golden, golden_tolerance(tolerance_of(job.project, job.model, compiled), golden.outputs)


def compile_round(
    job: Job, variants: Sequence[Choices], out: Path, *, progress: Progress = NO_PROGRESS
) -> Variants:
    """The untuned network and its variants, in the folder `out`."""
    all_ = [{}, *map(dict, variants)]
    return within(
        job.spec.path,
        model_limits(job).scaled(memory=2, cpu=len(all_)),
        compile_variants,
        job.spec,
        job.board,
        kernel_toolchain(job),
        out,
        all_,
        settings=settings_of(job),
        progress=progress,
    )


def same_kernels(compiled: Variants) -> tuple[frozenset[str], ...]:
    """Of each variant, the signatures whose kernels are the untuned network's."""
    untuned, *variants = compiled.layers
    return tuple(frozenset(_same_kernels(untuned, variant)) for variant in variants)


class DeviceTimer:
    """Variants of a job's model on a device, in a folder that is gone when the context ends."""

    def __init__(
        self, job: Job, device: Device, folder: str, *, progress: Progress = NO_PROGRESS
    ) -> None:
        self._job, self._device, self._folder = job, device, folder
        self._progress = progress
        self._tolerance = 0.0
        self._runtime: RuntimeBuild | None = None
        self._fastest_mhz = 0.0
        self._runs = 0
        self.rest: Callable[[float], None] = time.sleep

    def __enter__(self) -> Self:
        try:
            self._prepare()
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clear()

    def _prepare(self) -> None:
        """What all rounds need there: the program, and inputs with their outputs."""
        job = self._job
        self._runtime = build_runtime(job.board, job.toolchain.toolchain, progress=self._progress)
        golden, self._tolerance = golden_of(job, progress=self._progress)
        folder = shlex.quote(self._folder)
        self._device.run(f"rm -rf -- {folder} && mkdir -p -- {folder}/bin {folder}/golden")
        with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
            for kind, arrays in (("input", golden.inputs), ("output", golden.outputs)):
                for index, array in enumerate(arrays):
                    number = f".{index}" if index else ""
                    self._put_array(Path(name), f"golden/{kind}{number}.npy", array)
        if not self._is_static:
            self._put(self._runtime.app, APP)
            self._device.run(f"chmod 755 {folder}/{APP}")

    def _clear(self) -> None:
        with contextlib.suppress(EdgepackError):
            self._device.run(f"rm -rf -- {shlex.quote(self._folder)}")

    @property
    def _is_static(self) -> bool:
        return self._job.board.is_static

    def measure(self, variants: Sequence[Choices], *, blocks: int) -> Round:
        """See `Timer`. Raises what compiling and the device raise, and `ThrottledError`."""
        with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
            out = Path(name) / "variants"
            compiled = compile_round(self._job, variants, out, progress=self._progress)
            self._send(compiled, Path(name))
        if not self._runs:
            self._runs = _FEWEST_RUNS
            (first,), _, _ = self._run(compiled, [0], set())
            wanted = math.ceil(_BLOCK_MS / max(first.run_ms, 1e-3))
            self._runs = max(_FEWEST_RUNS, min(_MOST_RUNS, wanted))
        return self._blocks(compiled, blocks)

    # ------------------------------------------------ there

    def _put_array(self, work: Path, name: str, array: Array) -> None:
        file = work / "array.npy"
        with file.open("wb") as out:
            np.lib.format.write_array(out, np.asarray(array, order="C"), version=(1, 0))
        self._put(file, name)

    def _put(self, file: Path, name: str) -> None:
        self._device.put(file, f"{self._folder}/{name}")

    def _send(self, compiled: Variants, work: Path) -> None:
        """All variants, in place of those of the round before."""
        assert self._runtime is not None
        count = len(compiled.graphs)
        links = "../../model.so ../../params.bin" if not self._is_static else "../../params.bin"
        lines = [
            f"cd {shlex.quote(self._folder)} || exit 1",
            "rm -rf -- [0-9]* model.so params.bin",
            f"for i in {' '.join(map(str, range(count)))}; do",
            "mkdir -p $i/model $i/bin && echo '{}' >$i/manifest.json && ln -s ../golden $i/golden",
            f"for f in {links}; do ln -s $f $i/model/ || exit 1; done; done",
        ]
        self._device.run("\n".join(lines))
        files = [(compiled.params, "params.bin")]
        for index, graph in enumerate(compiled.graphs):
            files.append((graph, f"{index}/model/graph.json"))
            if self._is_static:
                app = work / f"app{index}"
                link_app(self._runtime, compiled.objects, graph, app)
                files.append((app, f"{index}/{APP}"))
        if not self._is_static:
            files.append((compiled.library, "model.so"))
        size = sum(path.stat().st_size for path, _ in files)
        with self._progress.bar(f"upload to {self._device.name}: {count} variants", size) as bar:
            for path, file in files:
                self._device.put(path, f"{self._folder}/{file}", sent=bar.update)
        if self._is_static:
            self._device.run(f"chmod 755 {shlex.quote(self._folder)}/[0-9]*/{APP}")

    def _blocks(self, compiled: Variants, count: int) -> Round:
        variants = range(1, len(compiled.graphs))
        wrong: set[int] = set()
        found: list[TimedBlock] = []
        repeated = 0
        self._progress.step(
            f"{self._device.name}: {len(variants)} variants, {self._runs} runs of each in "
            f"{count} blocks"
        )
        while len(found) < count:
            now("measuring", len(found), count)
            # Forwards and backwards, for what a run leaves in caches or heats up.
            turn = list(variants) if len(found) % 2 == 0 else list(reversed(variants))
            times, before, after = self._run(compiled, [0, *turn, 0], wrong)
            self._fastest_mhz = max(self._fastest_mhz, after.mhz or 0)
            if problem := self._held_back(after):
                repeated += 1
                if repeated > _MOST_REPEATS * count:
                    raise ThrottledError(
                        f"{self._device.name}: {problem}, in {repeated} blocks",
                        hint="cool it or give it a stronger supply, and tune again: what was "
                        "measured is kept",
                    )
                self._progress.step(f"{problem}: the block is measured again in {_REST_S:.0f} s")
                self.rest(_REST_S)
                continue
            by_variant = dict(zip(turn, times[1:-1], strict=True))
            found.append(
                TimedBlock(
                    untuned=(times[0], times[-1]),
                    variants=tuple(by_variant[index] for index in variants),
                    before=before,
                    after=after,
                )
            )
        return Round(
            blocks=tuple(found),
            wrong=frozenset(index - 1 for index in wrong),
            same=same_kernels(compiled),
            repeated=repeated,
        )

    def _held_back(self, after: Conditions) -> str | None:
        """What held the device back in a block, in words."""
        if after.throttled:
            return ", ".join(after.throttled)
        if after.mhz is not None and after.mhz < _FULL_CLOCK * self._fastest_mhz:
            return f"its clock fell to {after.mhz:.0f} of {self._fastest_mhz:.0f} MHz"
        return None

    def _run(
        self, compiled: Variants, turn: Sequence[int], wrong: set[int]
    ) -> tuple[list[Times], Conditions, Conditions]:
        """Some variants one after the other; those with other outputs join `wrong`."""
        mark = f"@@{secrets.token_hex(8)}"
        lines = [f"cd {shlex.quote(self._folder)} || exit 1", COMMAND]
        for index in turn:
            app = f"./{index}/{APP}" if self._is_static else f"./{APP}"
            words = [
                *("--bundle", str(index), "--golden", "--tolerance", str(self._tolerance)),
                *("--bench", str(self._runs), "--warmup", str(max(1, self._runs // 10))),
                *("--profile", "--top", "0"),
            ]
            lines += [f"echo {mark}", app_command(app, words), f"echo {mark} $?"]
        done = self._device.run("\n".join([*lines, COMMAND]))
        pieces = re.findall(rf"{mark}\n(.*?){mark} (\d+)\n", done.stdout, re.DOTALL)
        if len(pieces) != len(turn):
            raise SenselessError(f"{self._device.name}: the block was cut off")
        times = []
        for index, (said, code) in zip(turn, pieces, strict=True):
            result = RemoteResult(
                command=done.command, returncode=int(code), stdout=said, stderr=done.stderr
            )
            answer = self._answer(result, index, wrong)
            times.append(_times(self._device.name, answer, compiled.layers[index]))
        before, _, rest = done.stdout.partition(mark)
        return times, parse_conditions(before), parse_conditions(rest.rpartition(mark)[2])

    def _answer(self, result: RemoteResult, index: int, wrong: set[int]) -> AppAnswer:
        try:
            return parse_answer(self._device, result)
        except MismatchError:
            if index == 0:
                raise
            wrong.add(index)
            return parse_answer(self._device, _as_right(result))


def _as_right(result: RemoteResult) -> RemoteResult:
    """The same as if the outputs were right: its times are read all the same."""
    return RemoteResult(
        command=result.command, returncode=0, stdout=result.stdout, stderr=result.stderr
    )


def _times(device: str, answer: AppAnswer, layers: Sequence[LayerReport]) -> Times:
    """The times of a variant, whose calls are those of `layers`."""
    if answer.bench is None or answer.profile is None or answer.bench.p50_ms <= 0:
        raise SenselessError(f"{device}: edgepack-run measured nothing")
    measured = answer.profile.layers
    if [layer.kernel for layer in measured] != [layer.kernel for layer in layers]:
        raise SenselessError(f"{device}: edgepack-run measured other kernels")
    kernels: dict[str, float] = {}
    for layer, one in zip(layers, measured, strict=True):
        kernels[layer.signature] = kernels.get(layer.signature, 0.0) + one.ms
    return Times(run_ms=answer.bench.p50_ms, kernels_ms=kernels)


def _same_kernels(untuned: Sequence[LayerReport], variant: Sequence[LayerReport]) -> Iterator[str]:
    """The signatures of kernels that are the untuned ones."""
    names = [_by_signature(layers) for layers in (untuned, variant)]
    for signature, kernels in names[0].items():
        if names[1].get(signature) == kernels:
            yield signature


def _by_signature(layers: Sequence[LayerReport]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for layer in layers:
        if layer.signature:
            found.setdefault(layer.signature, []).append(layer.kernel)
    return found


def spread(blocks: Sequence[TimedBlock]) -> float:
    """How far the untuned network's two times of a block lie apart: the median over the blocks, as
    a share."""
    ratios = [block.untuned[1].run_ms / block.untuned[0].run_ms for block in blocks]
    return statistics.median(abs(ratio - 1) for ratio in ratios)

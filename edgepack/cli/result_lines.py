"""How results of edgepack-run and of a deploy are written for a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from edgepack.base.text import format_count, megabytes, milliseconds, one_line
from edgepack.cli.console import table
from edgepack.deploy.answers import Answer, Drift, HealthOutcome, Release, Status
from edgepack.deploy.app_answers import (
    AppAnswer,
    Bench,
    Deviation,
    Profile,
    StageAnswer,
    emulated_mark,
)
from edgepack.deploy.options import ON_TRIAL

if TYPE_CHECKING:
    from edgepack.deploy.deploy import Report
    from edgepack.deploy.smoke import Smoke
    from edgepack.deploy.stage_times import StageTimes
    from edgepack.device.facts import DeviceFacts
    from edgepack.flow.dry_run import DryRun
    from edgepack.model.sources import ModelSource
    from edgepack.postprocess.results import Results


def answer_lines(answer: AppAnswer) -> list[str]:
    """What edgepack-run said of one image or input; the classes first, best first."""
    lines = [score_line(one.score, one.index, one.label) for one in answer.top]
    boxes = answer.boxes or ()
    lines += box_lines(answer.boxes, lambda index: _answer_lines(boxes[index].answers))
    lines += _dropped_lines(answer.stages)
    if answer.areas is not None:
        lines += [
            f"  {area.pixels:>8} pixels  {area.index:>4}  {area.label}".rstrip()
            for area in answer.areas
        ]
        lines += ["  no areas"] * (not answer.areas)
    times = [f"{name} {milliseconds(time)}" for name, time in answer.times_ms.items()]
    mark = emulated_mark(answer.emulated)
    if times:
        threads = "?" if answer.threads is None else answer.threads
        lines.append(f"time      {', '.join(times)}{mark}, {threads} threads")
    if memory := answer.memory:
        lines.append(
            f"memory    peak {megabytes(memory.rss_peak_bytes)}{mark}, "
            f"weights {megabytes(memory.params_bytes)}, "
            f"activations {megabytes(memory.arena_bytes)}"
        )
    if answer.ran_on:
        lines.append(f"ran on    {answer.ran_on}")
    if answer.expected:
        lines.append(error_line(answer.expected))
    return lines


class _Box(Protocol):
    @property
    def score(self) -> float: ...
    @property
    def index(self) -> int: ...
    @property
    def label(self) -> str: ...
    @property
    def box(self) -> tuple[float, ...]: ...


def box_lines(
    boxes: Sequence[_Box] | None, answers: Callable[[int], list[str]] = lambda _: []
) -> list[str]:
    """Things and where they are; None: boxes were not asked for. `answers` are lines about the box
    of a number."""
    if boxes is None:
        return []
    lines = []
    for index, one in enumerate(boxes):
        left, top, right, bottom = one.box
        where = f"at {left:.1f},{top:.1f} to {right:.1f},{bottom:.1f}"
        lines.append(f"{score_line(one.score, one.index, one.label)}  {where}")
        lines += answers(index)
    return lines or ["  no boxes"]


def _said_lines(said: Mapping[str, Results | str]) -> list[str]:
    """What later models say of a box."""
    lines = []
    for stage, one in said.items():
        if isinstance(one, str):
            lines.append(f"    {stage}: {one}")
            continue
        top = [score_line(item.score, item.index, item.label) for item in one.top or ()]
        lines += [f"    {stage}:", *(f"    {line}" for line in (*top, *result_lines(one)))]
    return lines


def _answer_lines(answers: Mapping[str, StageAnswer]) -> list[str]:
    """The same of what a device said."""
    lines = []
    for stage, one in answers.items():
        top = [score_line(item.score, item.index, item.label) for item in one.top]
        said = [*top, *box_lines(one.boxes), *(f"  {text}" for text in one.text)]
        lines.append(f"    {one_line(stage)}:" + (f" {one.error}" if one.error else ""))
        lines += [f"    {line}" for line in said]
    return lines


class _StageCount(Protocol):
    @property
    def stage(self) -> str: ...
    @property
    def boxes(self) -> int: ...
    @property
    def dropped(self) -> int: ...


def _dropped_lines(stages: Sequence[_StageCount]) -> list[str]:
    return [
        f"  {one.stage}: left out the least likely {one.dropped} of {one.boxes + one.dropped} boxes"
        for one in stages
        if one.dropped
    ]


_SHOWN_VALUES = 8


def result_lines(found: Results) -> list[str]:
    """What is seen beside classes: boxes, key points, areas, text, or numbers."""
    boxes = found.boxes or ()
    lines = box_lines(found.boxes, lambda index: _said_lines(boxes[index].answers))
    lines += _dropped_lines(found.stages or ())
    for mark in found.keypoints or ():
        x, y = mark.point
        lines.append(f"{score_line(mark.score, mark.index, mark.label)}  at {x:.1f},{y:.1f}")
    if found.mask is not None:
        height, width = found.mask.size
        for area in found.mask.areas:
            share = area.pixels / (height * width)
            lines.append(f"  {share:8.2%}  {area.index:>4}  {area.label}".rstrip())
        lines += ["  no areas"] * (not found.mask.areas)
    if found.text is not None:
        lines.append(f"  {found.text.score:8.4f}  {found.text.text}")
    for tensor in found.tensors or ():
        first = ", ".join(f"{value:.6g}" for value in tensor.values[:_SHOWN_VALUES])
        more = ", ..." if len(tensor.values) > _SHOWN_VALUES else ""
        lines.append(f"  {tensor.name}: {first}{more}")
    return lines


def score_line(score: float, index: int, label: str) -> str:
    """One class and its score."""
    return f"  {score:8.4f}  {index:>4}  {label}".rstrip()


def error_line(expected: Deviation) -> str:
    """How far the outputs are from the reference."""
    error, reference = expected.max_abs_error, expected.max_abs_reference
    if error is None:
        return "accuracy  the outputs are not numbers"
    ratio = error / reference if reference else error
    return (
        f"accuracy  max |error| {error:.2g}, {ratio:.1e} of the reference's largest value "
        f"(limit {expected.tolerance:.0e})"
    )


def bench_lines(bench: Bench) -> list[str]:
    """Statistics of repeated runs, in milliseconds."""
    mark = emulated_mark(bench.emulated)
    return [
        f"runs      {bench.runs} after {bench.warmup} warm-up",
        f"mean      {bench.mean_ms:.2f} ms{mark}, std {bench.std_ms:.2f}",
        f"p50/90/99 {bench.p50_ms:.2f} / {bench.p90_ms:.2f} / {bench.p99_ms:.2f} ms{mark}",
        f"min, max  {bench.min_ms:.2f}, {bench.max_ms:.2f} ms{mark}",
    ]


STAGE_TIMES = ("MODEL", "RUNS", "P50 MS", "MIN MS", "ALL RUNS", "PEAK MB", "WEIGHTS", "ARENA")


def stage_time_rows(times: StageTimes) -> list[tuple[str, ...]]:
    """Each model of a release with stages, alone, and the photo through all of them: the cells of
    `STAGE_TIMES`."""
    models = [(part.stage or "(first)", part.boxes, part.bench) for part in times.parts]
    memory = [(part.rss_peak_bytes, part.params_bytes, part.arena_bytes) for part in times.parts]
    models.append(("(whole)", 1, times.whole))
    memory.append((times.rss_peak_bytes, times.params_bytes, times.arena_bytes))
    return [
        (
            name,
            str(boxes),
            f"{bench.p50_ms:.2f}",
            f"{bench.min_ms:.2f}",
            f"{boxes * bench.min_ms:.2f}",
            *(f"{size / 1e6:.1f}" for size in sizes),
        )
        for (name, boxes, bench), sizes in zip(models, memory, strict=True)
    ]


def stage_ratio_line(times: StageTimes) -> str:
    """What the whole takes over its parts."""
    mark = emulated_mark(times.whole.emulated)
    return (
        f"whole / sum of parts {times.time_ratio:.3f}{mark}, peak memory / largest part "
        f"{times.memory_ratio:.3f}{mark}"
    )


def stage_time_lines(times: StageTimes) -> list[str]:
    """The same as a table, and the layers of each model after the first, if they were timed."""
    mark = emulated_mark(times.whole.emulated).upper()
    header = tuple(f"{name}{mark}" if name == "P50 MS" else name for name in STAGE_TIMES)
    lines = ["", table(stage_time_rows(times), header), "", stage_ratio_line(times), ""]
    for part in times.parts:
        if part.stage and part.profile:
            lines += [f"layers of {part.stage}:", *profile_lines(part.profile), ""]
    return lines


def profile_lines(profile: Profile) -> list[str]:
    """A table of kernel calls; layers that have no name in the model go by their kernel's."""
    mark = emulated_mark(profile.emulated)
    rows = [
        (
            layer.layer or layer.kernel,
            layer.operator,
            f"{layer.ms:.3f}",
            f"{layer.share:.1%}",
            "-" if layer.gflops is None else f"{layer.gflops:.2f}",
        )
        for layer in profile.layers
    ]
    return [
        table(rows, ("LAYER", "OPERATOR", f"MS{mark.upper()}", "SHARE", "GFLOP/S")),
        "",
        f"medians of {profile.runs} runs; measuring adds "
        f"{profile.overhead_ms:.3f} ms{mark} to a run",
    ]


def deploy_lines(report: Report, name: str) -> list[str]:
    """What a deploy did, and what the smoke test gave."""
    sent = report.sent_text()
    if report.outcome == "deployed":
        sent += f"; {format_count(len(report.reused_files), 'file')} reused"
    if report.copied_bytes:
        sent += f", {megabytes(report.copied_bytes)} copied from files there"
    if report.links > 1:
        sent += f" ({report.links} connections)"
    lines = [
        f"{name} on {report.device}: {report.outcome}, release {report.release}"
        + (f", version {report.version}" if report.version else ""),
        f"where     {report.root}/{'releases' if report.outcome == ON_TRIAL else 'current'}",
        f"sent      {sent}",
    ]
    if report.signer:
        lines.append(f"signer    {report.signer}")
    if report.pinned:
        lines.append(f"trust     from now on only what {report.pinned} signed")
    if report.same_version:
        lines.append(f"version   release {report.same_version}, which was there, has the same one")
    if report.previous:
        lines.append(f"before    release {report.previous}")
    return [
        *lines,
        *smoke_lines(report.smoke, fresh=report.smoke_fresh, emulated=report.emulated),
    ]


def dry_run_lines(found: DryRun) -> list[str]:
    """What the device is, what is there and what is missing, and the plan if it is known."""
    lines = [f"device    {line}" for line in _facts(found.facts)]
    lines += [
        f"gate      refuses it: {problem.file} {problem.text} ({problem.hint})"
        for problem in found.problems
    ]
    if found.facts is not None:
        lines += [f"gate      lets programs for {found.board} pass"] * (not found.problems)
        lines.append(f"current   {found.current or 'nothing'}")
    for part in found.parts:
        size = megabytes(part.size_bytes)
        lines.append(
            f"build     {part.name}: "
            + (f"in the cache, {size}" if part.cached else f"to be built, about {size}")
        )
    lines += [f"stage     {line}" for line in found.stages]
    lines += [f"sink      {line}" for line in found.sinks]
    if found.plan is not None:
        return lines + found.plan.lines()
    if not found.problems:
        lines.append(
            f"send      at most about {megabytes(found.size_bytes)}; the exact size is known "
            "after a build (`edgepack package`, then --bundle)"
        )
    return lines


def _facts(facts: DeviceFacts | None) -> list[str]:
    if facts is None:
        return ["does not run; a deploy starts it"]
    libc = f"glibc {facts.glibc}" if facts.glibc else f"C library: {facts.libc}"
    return [
        one_line(
            f"{facts.model or facts.hostname}: {facts.os}, {facts.system} {facts.kernel} on "
            f"{facts.machine}, {libc}"
        ),
        f"{facts.cores} cores, {megabytes(facts.memory_available_bytes)} of "
        f"{megabytes(facts.memory_bytes)} memory free, "
        f"{megabytes(facts.free_disk_bytes)} of disk free, logged in as {one_line(facts.user)}",
    ]


def status_lines(
    status: Status, where: str, *, emulated: bool = False, source: ModelSource | None = None
) -> list[str]:
    """What runs on a device, since when, by whom, and how it does (`edgepack-device status`)."""
    current = status.current
    lines = [f"{current.name if current else 'nothing'} in {where}:"]
    if current:
        lines += [
            f"current   {_release(current)}, for {current.board}",
            f"model     {current.model}, sha256 {current.model_sha256}",
            *([f"source    {one_line(source, limit=_COMPARED_LETTERS)}"] if source else []),
            f"since     {current.since} by {current.by}",
            f"signer    {current.signer or 'none'}",
            f"compared  {one_line(current.compared or 'not recorded', limit=_COMPARED_LETTERS)}",
            "tested    " + (_health(current.health, emulated) if current.health else "no"),
        ]
    if status.processor:
        lines.append(f"runs on   the {status.processor.upper()}")
    lines += [f"drift     {_drift(one, current)}" for one in status.drift if one.level > 0]
    if status.previous:
        lines.append(f"previous  {_release(status.previous)}")
    lines.append(
        f"stored    {format_count(status.releases, 'release')}, "
        f"{megabytes(status.store_bytes)} in {format_count(status.blobs, 'file')}"
    )
    if status.newest:
        lines.append(f"newest    {status.newest}")
    if status.signers:
        lines.append(f"trusts    {', '.join(status.signers)}")
    if status.pending:
        lines.append(f"pending   release {status.pending} is being tested")
    if status.lock:
        lines.append(f"locked    by {status.lock.by} since {status.lock.since}")
    return lines


# Of the list of inputs that a model was compared on; the JSON has all of it.
_COMPARED_LETTERS = 200


def _drift(drift: Drift, current: Release | None) -> str:
    """Such as "scores differ much from those of the photos of version 12, since ..."."""
    one = drift.signal == "brightness"
    differ = ("differs" if one else "differ") + (" much" if drift.level > 1 else "")
    of = "the release's photos"
    if current and current.version:
        of = f"the photos of version {current.version}"
    since = f", since {drift.since}" if drift.since else ""
    return f"{drift.signal} {differ} from {'that' if one else 'those'} of {of}{since}"


def _release(release: Release) -> str:
    return f"release {release.release}" + (
        f", version {release.version}" if release.version else ""
    )


def _health(health: HealthOutcome, emulated: bool) -> str:
    mark = emulated_mark(emulated)
    parts = [health.outcome]
    if health.latency_ms is not None:
        parts.append(milliseconds(health.latency_ms) + mark)
    if health.max_abs_error is not None:
        parts.append(f"max |error| {health.max_abs_error:.2g}")
    if health.max_rss_mb is not None:
        parts.append(f"{health.max_rss_mb:.1f} MB{mark}")
    return f"{', '.join(parts)}, at {health.at}"


def smoke_lines(smoke: Smoke, *, fresh: bool, emulated: bool = False) -> list[str]:
    """The smoke test: the photo's classes, the time, the error against the reference."""
    title = "smoke test passed" if fresh else "smoke test passed when it was deployed"
    answer = replace(
        AppAnswer.read(Answer(smoke.photo or smoke.golden, "smoke test")),
        emulated=emulated,
        expected=Deviation(
            max_abs_error=smoke.max_abs_error,
            max_abs_reference=smoke.max_abs_reference,
            tolerance=smoke.tolerance,
        ),
    )
    return [f"{title}:", *answer_lines(answer)]

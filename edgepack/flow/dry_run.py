"""What a deploy would have to make, and whether the device would take it: nothing is made."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgepack.base.paths import NotCachedError, only_cached
from edgepack.deploy import remote_tool
from edgepack.deploy.deploy import DeployPlan
from edgepack.deploy.remote_tool import Layout
from edgepack.device.base import Device
from edgepack.device.facts import DeviceFacts, gather
from edgepack.flow.job import Job, app_of, compile_job, cpu_job, make_job, needed_gpu
from edgepack.flow.sinks import fetch_mosquitto
from edgepack.flow.stages import OpenStage, project_of
from edgepack.frontend.precision import FULL
from edgepack.gate.gate import Problem
from edgepack.gate.profile import profile_problems
from edgepack.native.app import build_runtime
from edgepack.native.device_tool import build_device_tool
from edgepack.native.sinks import build_sinks

# Of ARM builds of this version, stripped.
_APP_BYTES = 2_600_000
_TOOL_BYTES = 700_000
_SINKS_BYTES = 600_000


@dataclass(frozen=True, kw_only=True)
class Part:
    """One thing that a bundle is made of.

    `size_bytes` is exact if it is in the cache, else an estimate.
    """

    name: str
    cached: bool
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What is known before anything is built.

    `facts` are None of a virtual board that does not run, `current` is the release there, None if
    there is none. `stages` say what later models look at, `sinks` what happens with results on the
    device. `problems` are reasons for
    the gate to refuse what is made for `board`.
    `plan` is there if the bundle is made already, and the device would take it.
    """

    device: str
    board: str
    facts: DeviceFacts | None
    problems: tuple[Problem, ...]
    current: str | None
    parts: tuple[Part, ...]
    stages: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    plan: DeployPlan | None = None

    @property
    def is_cached(self) -> bool:
        """Whether all parts are."""
        return all(part.cached for part in self.parts)

    @property
    def size_bytes(self) -> int:
        """Of all parts together; exact only if all are in the cache."""
        return sum(part.size_bytes for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """For --json: the keys of `DeployPlan.to_dict`, null without a plan, and what is known."""
        plan = dict.fromkeys(DeployPlan.__dataclass_fields__)
        return {
            **(self.plan.to_dict() if self.plan else {**plan, "before": self.current}),
            "exact": self.plan is not None,
            "device": self.device,
            "board": self.board,
            "facts": self.facts.to_dict() if self.facts else None,
            "problems": [asdict(problem) for problem in self.problems],
            "parts": [asdict(part) for part in self.parts],
            "stages": list(self.stages),
            "sinks": list(self.sinks),
            "bundle_bytes": self.size_bytes,
        }


def look(job: Job, device: Device | None, root: str, name: str) -> DryRun:
    """Ask `device`, which is called `name`, and the cache. Raises what `make_job` and asking raise.

    `device` is None if it is a virtual board that does not run.
    """
    facts: DeviceFacts | None = None
    current: str | None = None
    problems: tuple[Problem, ...] = ()
    if device is not None:
        layout = Layout.of(root)
        facts = gather(device, layout.root)
        glibc = job.toolchain.toolchain.glibc
        problems = tuple(profile_problems(job.board, glibc, facts, needed_gpu(job)))
        if facts.tool:
            release = remote_tool.status(device, root).current
            current = release.release if release else None
    return DryRun(
        device=name,
        board=job.board.name,
        facts=facts,
        problems=problems,
        current=current,
        parts=parts_of(job),
        stages=tuple(stage.line() for stage in job.project.stages),
        sinks=tuple(job.project.sinks.lines()),
    )


def parts_of(job: Job) -> tuple[Part, ...]:
    """The compiled models, the app, the device tool, and the program for sinks if there are any."""

    def files(job: Job) -> list[Path]:
        found: list[Path] = []
        for each in filter(None, (job, cpu_job(job))):
            found += compile_job(each).files
        return found

    return (
        _part("model", lambda: files(job), job.model.size_bytes),
        *(
            _part(
                f"stage {opened.stage.name}",
                # What halves are compiled with is known once the first model has run.
                functools.partial(_stage_files, job, opened, files),
                opened.model.size_bytes,
            )
            for opened in job.stages
        ),
        _part(
            "app",
            lambda: [app_of(job, build_runtime(job.board, job.toolchain.toolchain))],
            _APP_BYTES,
        ),
        _part("device tool", lambda: [build_device_tool(job.board).path], _TOOL_BYTES),
        *(
            [_part("sinks", lambda: [build_sinks(job.board, fetch_mosquitto).path], _SINKS_BYTES)]
            if job.project.sinks
            else []
        ),
    )


def _stage_files(job: Job, opened: OpenStage, files: Callable[[Job], list[Path]]) -> list[Path]:
    if opened.stage.precision != FULL.name:
        raise NotCachedError(opened.stage.model)
    return files(make_job(project_of(job.project, opened, Path(f"{opened.stage.name}.npy"))))


def _part(name: str, make: Callable[[], list[Path]], guess_bytes: int) -> Part:
    try:
        with only_cached():
            # A static app is a folder of parts until it is linked.
            size_bytes = sum(file.stat().st_size for file in make() if file.is_file())
    except NotCachedError:
        return Part(name=name, cached=False, size_bytes=guess_bytes)
    return Part(name=name, cached=True, size_bytes=size_bytes or guess_bytes)

"""A release with stages, timed on its device: a photo through all of them, and each model alone."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.bundle.manifest import APP, STAGES
from edgepack.deploy.answers import SenselessError
from edgepack.deploy.app_answers import AppAnswer, Bench
from edgepack.deploy.remote_app import RunRequest, ask_app, release_folder, temporary_folder
from edgepack.device.base import Device
from edgepack.device.facts import own_folder


@dataclass(frozen=True, kw_only=True)
class PartTime:
    """A model of the release, alone in a process: `stage` is "" for the first. In the whole it runs
    `boxes` times."""

    stage: str
    boxes: int
    bench: Bench
    rss_peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class StageTimes:
    """The golden photo, decoded and prepared, through all models, and each of them alone."""

    whole: Bench
    rss_peak_bytes: int
    parts: tuple[PartTime, ...]

    @property
    def parts_ms(self) -> float:
        """The fastest runs of each model, as many as the photo needs: other load disturbs them
        least."""
        return sum(part.boxes * part.bench.min_ms for part in self.parts)

    @property
    def time_ratio(self) -> float:
        """The fastest run of the whole over that."""
        return self.whole.min_ms / self.parts_ms

    @property
    def memory_ratio(self) -> float:
        """The peak of the whole over that of the largest part."""
        return self.rss_peak_bytes / max(part.rss_peak_bytes for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        ratios = {"parts_ms": self.parts_ms, "time_ratio": self.time_ratio}
        return {**asdict(self), **ratios, "memory_ratio": self.memory_ratio}


def time_stages(
    device: Device,
    root: str,
    options: Sequence[str],
    *,
    runs: int,
    progress: Progress = NO_PROGRESS,
) -> StageTimes | None:
    """Times of the current release below `root`, `runs` runs of each; None if it has no stages.

    Raises what `ask_app` raises.
    """
    current = shlex.quote(release_folder("", "")[1:])
    find = (
        f'r=$({own_folder(root)}) && cd "$r"/{current} && echo "$r" && ls {STAGES} golden/image.*'
    )
    found = device.run(find, check=False).stdout.split("\n")
    folder, names = found[0], [name for name in found[1:] if name]
    if STAGES not in names or len(names) < 2:
        return None
    bundle = f"{folder}/{release_folder('', '')[1:]}"
    image = f"{bundle}/{next(name for name in names if name != STAGES)}"
    words = ("--bench", str(runs), *options)
    progress.step("the photo through all stages")
    whole = ask_app(device, root, RunRequest(options=("--image", image, *words)))
    if whole.whole_bench is None:
        raise SenselessError(f"{device.name}: edgepack-run measured no stages")
    progress.step("each model alone")
    first = _alone(device, root, bundle, ("--image", image, *words))
    parts = [_part(device, "", 1, first)]
    for number, stage in enumerate(whole.stages, start=1):
        answer = ask_app(device, root, RunRequest(golden=True, stage=number, options=words))
        parts.append(_part(device, stage.stage, stage.boxes, answer))
    return StageTimes(
        whole=whole.whole_bench, rss_peak_bytes=_peak(device, whole), parts=tuple(parts)
    )


def _alone(device: Device, root: str, bundle: str, words: Sequence[str]) -> AppAnswer:
    """The first model's answer, from a folder with all of the bundle but its stages."""
    with temporary_folder(device, f"{bundle}/{APP}", needed=True) as folder:
        there = shlex.quote(folder)
        device.run(f"ln -s {shlex.quote(bundle)}/* {there} && rm {there}/{STAGES}")
        return ask_app(device, root, RunRequest(options=("--bundle", folder, *words)))


def _part(device: Device, stage: str, boxes: int, answer: AppAnswer) -> PartTime:
    if answer.bench is None:
        raise SenselessError(f"{device.name}: edgepack-run measured nothing")
    return PartTime(
        stage=stage, boxes=boxes, bench=answer.bench, rss_peak_bytes=_peak(device, answer)
    )


def _peak(device: Device, answer: AppAnswer) -> int:
    if answer.memory is None or not answer.memory.rss_peak_bytes:
        raise SenselessError(f"{device.name}: edgepack-run tells no memory")
    return answer.memory.rss_peak_bytes

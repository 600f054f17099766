"""A release with stages, timed on its device: a photo through all of them, and each model alone."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.bundle.manifest import APP, STAGES
from edgepack.deploy.answers import SenselessError
from edgepack.deploy.app_answers import AppAnswer, Bench, MemoryUse, Profile
from edgepack.deploy.remote_app import RunRequest, ask_app, release_folder, temporary_folder
from edgepack.device.base import Device
from edgepack.device.facts import own_folder


@dataclass(frozen=True, kw_only=True)
class PartTime:
    """A model of the release, alone in a process: `stage` is "" for the first. In the whole it runs
    `boxes` times. Of its peak of memory, so much are weights and activations (the arena)."""

    stage: str
    boxes: int
    bench: Bench
    rss_peak_bytes: int
    params_bytes: int
    arena_bytes: int
    profile: Profile | None = None


@dataclass(frozen=True, kw_only=True)
class StageTimes:
    """The golden photo, decoded and prepared, through all models, and each of them alone."""

    whole: Bench
    rss_peak_bytes: int
    params_bytes: int
    arena_bytes: int
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
        ratios["memory_ratio"] = self.memory_ratio
        found = {**asdict(self), **ratios}
        for part in found["parts"]:
            if part["profile"] is None:
                del part["profile"]
        return found


def photo_through_stages(device: Device, root: str, release: str = "") -> str:
    """Where the golden photo of a release with stages lies on the device; "" if it has none."""
    folder = release_folder("", release)[1:]
    find = (
        f'r=$({own_folder(root)}) && cd "$r"/{shlex.quote(folder)}/ && echo "$r"'
        f" && ls {STAGES} golden/image.*"
    )
    found = device.run(find, check=False).stdout.split("\n")
    names = [name for name in found[1:] if name]
    if STAGES not in names or len(names) < 2:
        return ""
    return f"{found[0]}/{folder}/{next(name for name in names if name != STAGES)}"


def time_stages(
    device: Device,
    root: str,
    options: Sequence[str],
    *,
    runs: int,
    profile: bool = False,
    progress: Progress = NO_PROGRESS,
) -> StageTimes | None:
    """Times of the current release below `root`, `runs` runs of each; None if it has no stages.

    With `profile` they have those of each layer of the models after the first, too.

    Raises what `ask_app` raises.
    """
    image = photo_through_stages(device, root)
    if not image:
        return None
    bundle = image.rpartition("/golden/")[0]
    words = ("--bench", str(runs), *options)
    progress.step("the photo through all stages")
    whole = ask_app(device, root, RunRequest(options=("--image", image, *words)))
    if whole.whole_bench is None:
        raise SenselessError(f"{device.name}: edgepack-run measured no stages")
    progress.step("each model alone")
    first = _alone(device, root, bundle, ("--image", image, *words))
    parts = [_part(device, "", 1, first)]
    more = (*words, "--profile") if profile else words
    for number, stage in enumerate(whole.stages, start=1):
        answer = ask_app(device, root, RunRequest(golden=True, stage=number, options=more))
        parts.append(_part(device, stage.stage, stage.boxes, answer))
    memory = _memory(device, whole)
    return StageTimes(
        whole=whole.whole_bench,
        rss_peak_bytes=memory.rss_peak_bytes,
        params_bytes=memory.params_bytes,
        arena_bytes=memory.arena_bytes,
        parts=tuple(parts),
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
    memory = _memory(device, answer)
    return PartTime(
        stage=stage,
        boxes=boxes,
        bench=answer.bench,
        rss_peak_bytes=memory.rss_peak_bytes,
        params_bytes=memory.params_bytes,
        arena_bytes=memory.arena_bytes,
        profile=answer.profile,
    )


def _memory(device: Device, answer: AppAnswer) -> MemoryUse:
    if answer.memory is None or not answer.memory.rss_peak_bytes:
        raise SenselessError(f"{device.name}: edgepack-run tells no memory")
    return answer.memory

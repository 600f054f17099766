"""Two releases on one device, timed in turns: how much faster one is, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgepack.base.intervals import interval
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.deploy.answers import SenselessError
from edgepack.deploy.conditions import Conditions, read_conditions
from edgepack.deploy.remote_app import RunRequest, ask_app
from edgepack.deploy.stage_times import photo_through_stages
from edgepack.device.base import Device, is_emulated
from edgepack.device.limit import limited

ROUNDS = 10
DUEL_S = 4 * 3600.0
"""All rounds together: hundreds of runs of a model that takes seconds."""


@dataclass(frozen=True, kw_only=True)
class AbTiming:
    """Medians of each round, in milliseconds; rounds took turns, and so did who went first.

    `ratio` is the geometric mean of b / a over the rounds, between `low` and `high` with 95 %
    confidence. If `emulated` is set, the times are an emulator's and say nothing about a board.
    """

    a: str
    b: str
    a_ms: tuple[float, ...]
    b_ms: tuple[float, ...]
    ratio: float
    low: float
    high: float
    before: Conditions
    after: Conditions
    emulated: bool = False

    @property
    def told(self) -> bool:
        """Whether the interval leaves out that both are equally fast."""
        return not self.low <= 1 <= self.high

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def time_in_turns(
    device: Device,
    root: str,
    releases: tuple[str, str],
    options: Sequence[str],
    *,
    runs: int,
    progress: Progress = NO_PROGRESS,
) -> AbTiming:
    """Two releases below `root`, `runs` golden runs of each in each of `ROUNDS` rounds; of one with
    stages its golden photo through all of them.

    Raises what `ask_app` raises.
    """
    with limited(device, DUEL_S, "the comparison"):
        return _duel(device, root, releases, options, runs, progress)


def _duel(
    device: Device,
    root: str,
    releases: tuple[str, str],
    options: Sequence[str],
    runs: int,
    progress: Progress,
) -> AbTiming:
    before = read_conditions(device)
    times: dict[str, list[float]] = {release: [] for release in releases}
    words = ("--bench", str(runs), *options)
    requests = {release: _request(device, root, release, words) for release in releases}
    for number in range(ROUNDS):
        progress.step(f"round {number + 1} of {ROUNDS}, {runs} runs of each")
        for release in releases if number % 2 == 0 else reversed(releases):
            answer = ask_app(device, root, requests[release])
            bench = answer.whole_bench or answer.bench
            if bench is None or bench.p50_ms <= 0:
                raise SenselessError(f"{device.name}: edgepack-run measured nothing")
            times[release].append(bench.p50_ms)
    a_ms, b_ms = (tuple(times[release]) for release in releases)
    ratio, low, high = interval(a_ms, b_ms)
    return AbTiming(
        a=releases[0],
        b=releases[1],
        a_ms=a_ms,
        b_ms=b_ms,
        ratio=ratio,
        low=low,
        high=high,
        before=before,
        after=read_conditions(device),
        emulated=is_emulated(device),
    )


def _request(device: Device, root: str, release: str, words: tuple[str, ...]) -> RunRequest:
    photo = photo_through_stages(device, root, release)
    if photo:
        return RunRequest(options=("--image", photo, *words), release=release)
    return RunRequest(golden=True, options=words, release=release)

"""Two releases on one device, timed in turns: how much faster one is, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgepack.base.intervals import interval
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.deploy.answers import SenselessError
from edgepack.deploy.app_answers import AppAnswer
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
    words = ("--bench", str(runs), *options)
    with limited(device, DUEL_S, "the comparison"):
        requests = {release: request_of(device, root, release, words) for release in releases}
        return take_turns(device, root, requests, runs=runs, progress=progress)


def request_of(device: Device, root: str, release: str, words: tuple[str, ...]) -> RunRequest:
    """What is timed of a release: `words` are the last of its options."""
    photo = photo_through_stages(device, root, release)
    if photo:
        return RunRequest(options=("--image", photo, *words), release=release)
    return RunRequest(golden=True, options=words, release=release)


def take_turns(
    device: Device,
    root: str,
    requests: Mapping[str, RunRequest],
    *,
    runs: int,
    progress: Progress = NO_PROGRESS,
    look: Callable[[str, AppAnswer], None] = lambda _name, _answer: None,
) -> AbTiming:
    """Two requests by their names, timed in `ROUNDS` rounds; `look` is given each answer."""
    before = read_conditions(device)
    times: dict[str, list[float]] = {name: [] for name in requests}
    for number in range(ROUNDS):
        progress.step(f"round {number + 1} of {ROUNDS}, {runs} runs of each")
        for name in requests if number % 2 == 0 else reversed(list(requests)):
            answer = ask_app(device, root, requests[name])
            look(name, answer)
            bench = answer.whole_bench or answer.bench
            if bench is None or bench.p50_ms <= 0:
                raise SenselessError(f"{device.name}: edgepack-run measured nothing")
            times[name].append(bench.p50_ms)
    a, b = requests
    ratio, low, high = interval(times[a], times[b])
    return AbTiming(
        a=a,
        b=b,
        a_ms=tuple(times[a]),
        b_ms=tuple(times[b]),
        ratio=ratio,
        low=low,
        high=high,
        before=before,
        after=read_conditions(device),
        emulated=is_emulated(device),
    )

"""In which order a rollout goes through a fleet: a canary, then waves."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgepack.base.errors import ConfigError, perhaps
from edgepack.base.tables import Table
from edgepack.fleet.inventory import FleetDevice
from edgepack.fleet.window import DailyHours

_SHARE = re.compile(r"(\d+)(%?)")
CANARY = "canary"
LATE = "late wave"
"""The wave of those that could not be reached in their own."""
DEFAULT_PARALLEL = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """A number of devices, or a percentage of all there are."""

    value: int
    percent: bool = False

    @staticmethod
    def parse(text: str) -> Share | None:
        """The share in "5" or "5%"; None for anything else."""
        match = _SHARE.fullmatch(text.strip())
        if not match or (match[2] and int(match[1]) > 100):
            return None
        return Share(value=int(match[1]), percent=bool(match[2]))

    def of(self, total: int) -> int:
        """How many of `total` devices this is: percentages are rounded up."""
        if not self.percent:
            return min(self.value, total)
        return math.ceil(total * self.value / 100)

    def is_exceeded(self, count: int, total: int) -> bool:
        """Whether `count` of `total` is more than this."""
        return count * 100 > self.value * total if self.percent else count > self.value

    def __str__(self) -> str:
        return f"{self.value}%" if self.percent else str(self.value)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a rollout goes through the devices.

    `canary` is the first wave: so many devices of each board (each board has a build of its
    own to try), or a group. `waves` are the sizes of those that follow; the last one repeats.
    `parallel` devices are worked on at once. A rollout stops if a canary fails, or if more than
    `max_failures` of a wave or `max_failures_total` of the fleet fail; devices that
    cannot be reached count unless `count_unreachable` is off, canaries in any case. `soak_s`
    seconds pass between two waves; a device that is not well any more then has failed. For
    `keep_trying_s` from the beginning on, those that could not be reached are tried again; they
    count as if `count_unreachable` were off. Outside of the `window` no device is begun.
    """

    canary: Share | str = Share(value=1)
    waves: tuple[Share, ...] = (Share(value=10, percent=True), Share(value=100, percent=True))
    parallel: int = DEFAULT_PARALLEL
    max_failures: Share = Share(value=10, percent=True)
    max_failures_total: Share = Share(value=10, percent=True)
    count_unreachable: bool = True
    soak_s: float = 0.0
    keep_trying_s: float = 0.0
    window: DailyHours | None = None

    @staticmethod
    def from_table(table: Table) -> Settings:
        """The settings in fleet.toml's [rollout]; raises ConfigError."""
        default = Settings()
        values: dict[str, Any] = {}
        kind: Any = int | str
        for key in ("canary", "max_failures", "max_failures_total"):
            given = table.take(key, kind, getattr(default, key))
            values[key] = _share(table, key, given, groups=key == "canary")
        given_waves = table.take_list("waves", kind, default.waves)
        values["waves"] = tuple(_share(table, "waves", item) for item in given_waves)
        if not values["waves"] or not all(share.value for share in values["waves"]):
            raise table.fail("waves", "each wave must have a device at least")
        values["parallel"] = table.take("parallel", int, default.parallel)
        if values["parallel"] < 1:
            raise table.fail("parallel", f"{values['parallel']} is below 1")
        values["count_unreachable"] = table.take("count_unreachable", bool, True)
        for key in ("soak_s", "keep_trying_s"):
            values[key] = table.take(key, float, 0.0)
            if not 0 <= values[key] < math.inf:
                raise table.fail(key, f"{values[key]} is not a number of seconds")
        text = table.take("window", str, None)
        if text is not None:
            values["window"] = DailyHours.parse(text)
            if values["window"] is None:
                raise table.fail(
                    "window", f"{text!r} is no window", hint='for example "22:00-04:00"'
                )
        table.finish()
        return Settings(**values)

    def to_dict(self) -> dict[str, Any]:
        """For --json and the journal."""
        return {
            "canary": str(self.canary),
            "waves": [str(share) for share in self.waves],
            "parallel": self.parallel,
            "max_failures": str(self.max_failures),
            "max_failures_total": str(self.max_failures_total),
            "count_unreachable": self.count_unreachable,
            "soak_s": self.soak_s,
            "keep_trying_s": self.keep_trying_s,
            "window": None if self.window is None else str(self.window),
        }


@dataclass(frozen=True, kw_only=True)
class Wave:
    """`devices` are still to be done; `members` are all, in the same order."""

    name: str
    devices: tuple[FleetDevice, ...]
    members: tuple[FleetDevice, ...]

    @property
    def total(self) -> int:
        """How many devices the wave had to begin with."""
        return len(self.members)

    @property
    def is_canary(self) -> bool:
        return self.name == CANARY


@dataclass(frozen=True, kw_only=True)
class RolloutPlan:
    """All waves, in order; `total` is how many devices they had to begin with."""

    waves: tuple[Wave, ...]
    total: int

    @property
    def todo(self) -> int:
        """How many devices are still to be done."""
        return sum(len(wave.devices) for wave in self.waves)

    def boards(self) -> Counter[str]:
        """How many devices to be done there are of each board."""
        return Counter(str(device.board) for wave in self.waves for device in wave.devices)


def make_plan(
    devices: Sequence[FleetDevice],
    settings: Settings,
    is_done: Callable[[FleetDevice], bool] = lambda _device: False,
) -> RolloutPlan:
    """Divide `devices` into waves.

    The waves do not depend on `is_done`: a repeated rollout has the same waves, with fewer
    remaining devices.
    """
    canaries = _canaries(devices, settings.canary)
    names = {device.name for device in canaries}
    rest = [device for device in devices if device.name not in names]
    parts: list[tuple[str, Sequence[FleetDevice]]] = [(CANARY, canaries)] if canaries else []
    start = 0
    while start < len(rest):
        number = len(parts) - bool(canaries)
        share = settings.waves[min(number, len(settings.waves) - 1)]
        size = max(share.of(len(devices)), 1)
        parts.append((f"wave {number + 1}", rest[start : start + size]))
        start += size
    waves = tuple(
        Wave(
            name=name,
            devices=tuple(device for device in part if not is_done(device)),
            members=tuple(part),
        )
        for name, part in parts
    )
    return RolloutPlan(waves=waves, total=len(devices))


def first_wave(plan: RolloutPlan) -> RolloutPlan:
    """The canaries of `plan` and the wave after them, as a plan of their own."""
    waves = plan.waves[: 2 if plan.waves and plan.waves[0].is_canary else 1]
    return RolloutPlan(waves=waves, total=sum(wave.total for wave in waves))


def with_boards(
    devices: Iterable[FleetDevice], boards: Mapping[str, object], default: str | None
) -> tuple[FleetDevice, ...]:
    """`devices`, each with a board that is one of `boards`; `default` for those that name none.

    Raises ConfigError for a device without one, or with an unknown one.
    """
    done = []
    for device in devices:
        board = device.board or default
        if board is None:
            raise ConfigError(
                f"{device.name} has no board",
                hint="set it for the device, its group or the fleet, or use --board NAME",
            )
        if board not in boards:
            raise ConfigError(f"{device.name}: unknown board: {board}", hint=perhaps(board, boards))
        done.append(device if device.board else replace(device, board=board))
    return tuple(done)


def _canaries(devices: Sequence[FleetDevice], canary: Share | str) -> list[FleetDevice]:
    if isinstance(canary, str):
        return [device for device in devices if canary in device.groups]
    totals = Counter(device.board for device in devices)
    left = {board: canary.of(total) for board, total in totals.items()}
    chosen = []
    for device in devices:
        if left[device.board]:
            left[device.board] -= 1
            chosen.append(device)
    return chosen


def _share(table: Table, key: str, given: object, *, groups: bool = False) -> Share | str:
    if isinstance(given, Share):
        return given
    if isinstance(given, int | str) and not isinstance(given, bool):
        share = Share.parse(str(given))
        if share is not None:
            return share
        if groups and isinstance(given, str) and given[:1].isalpha():
            return given
    raise table.fail(
        key,
        f"{given!r} is neither a number of devices nor a group"
        if groups
        else f"{given!r} is not a number of devices",
        hint='for example 5, or "5%"',
    )

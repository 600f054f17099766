"""A fleet that is not there: a scripted transport for orders, counts and memory.

Real devices are in tests/functional/test_fleet_virtual.py; ten thousand of them, or one that
fails at a chosen moment, cannot be had on command.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from edgepack.base.errors import RemoteError
from edgepack.fleet import Done, FleetDevice, Outcome, Wave
from edgepack.fleet.window import DailyHours


def devices(count: int, *, boards: Sequence[str] = ("rasp3b",)) -> list[FleetDevice]:
    """`count` devices d00001 ..., the boards in turn."""
    return [
        FleetDevice(name=f"d{n:05}", address=f"d{n:05}.lan", board=boards[n % len(boards)])
        for n in range(1, count + 1)
    ]


@dataclass
class FakeWork:
    """Does nothing but note when; fails on the devices in `broken`."""

    broken: Collection[str] = ()
    error: Exception = field(default_factory=lambda: RemoteError("it broke", hint="mend it"))
    pause_s: float = 0.0
    release: str = "0123456789ab"
    budget: float = 3600.0
    action: str = "deploy"
    begun: list[str] = field(default_factory=list)
    running: int = 0
    most_at_once: int = 0
    lost: Collection[str] = ()
    checked: list[str] = field(default_factory=list)
    before_end: Callable[[FleetDevice], None] = lambda _device: None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wanted(self, device: FleetDevice) -> str | None:
        return self.release

    def budget_s(self, _device: FleetDevice) -> float:
        return self.budget

    def __call__(self, device: FleetDevice) -> Done:
        with self._lock:
            self.begun.append(device.name)
            self.running += 1
            self.most_at_once = max(self.most_at_once, self.running)
        try:
            time.sleep(self.pause_s)
            self.before_end(device)
            if device.name in self.broken:
                raise self.error
        finally:
            with self._lock:
                self.running -= 1
        return Done(outcome="deployed", release=self.release, details={"sent_bytes": 7})

    def check(self, device: FleetDevice) -> None:
        with self._lock:
            self.checked.append(device.name)
        if device.name in self.lost:
            raise self.error


@dataclass
class Log:
    """A watcher that keeps it all, in the order it came."""

    events: list[object] = field(default_factory=list)

    def wave_begins(self, wave: Wave) -> None:
        self.events.append(wave.name)

    def devices_end(self, outcomes: Sequence[Outcome]) -> None:
        self.events += outcomes

    def stopping(self) -> None:
        self.events.append("stopping")

    def soaking(self, seconds: float) -> None:
        self.events.append(seconds)

    def waiting(self, devices: int, seconds: float) -> None:
        self.events.append(("waiting", devices))

    def window_closed(self, window: DailyHours) -> None:
        self.events.append(window)

    @property
    def outcomes(self) -> list[Outcome]:
        return [event for event in self.events if isinstance(event, Outcome)]

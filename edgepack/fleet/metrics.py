"""What the devices of a fleet that is reached by SSH tell Prometheus, as one page."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgepack.base.errors import EdgepackError
from edgepack.deploy import remote_tool
from edgepack.device.limit import limited
from edgepack.fleet.exposition import Exposition, Sample, exposition_text, parse_exposition
from edgepack.fleet.inventory import FleetDevice
from edgepack.fleet.rollout import Done
from edgepack.fleet.work import _OnDevice

_UP = ("edgepack_fleet_device_up", "Whether the device answered when it was asked last.")
_ASKED = ("edgepack_fleet_asked_timestamp_seconds", "When it answered last.")


def _is_told(sample: Sample) -> bool:
    """A series of a device's own; of histograms no bucket but the one of all, for those of 10,000
    devices would be a page of a million lines."""
    own = sample.name.startswith("edgepack_") and not sample.name.startswith("edgepack_fleet_")
    return own and (not sample.name.endswith("_bucket") or sample.labels.get("le") == "+Inf")


@dataclass(kw_only=True)
class Told:
    """What devices said when they were asked last; from any thread."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _said: dict[str, tuple[float, Exposition]] = field(default_factory=dict)
    _down: set[str] = field(default_factory=set)

    def add(self, device: str, said: Exposition) -> None:
        """What `device` said now."""
        with self._lock:
            self._said[device] = (time.time(), said)
            self._down.discard(device)

    def lose(self, device: str) -> None:
        """It did not answer: what it said before is not told any more."""
        with self._lock:
            self._down.add(device)

    def text(self, devices: Sequence[FleetDevice]) -> str:
        """The page: each series with the device's name."""
        types = {_UP[0]: "gauge", _ASKED[0]: "gauge"}
        helps = dict((_UP, _ASKED))
        samples: list[Sample] = []
        with self._lock:
            said, down = dict(self._said), set(self._down)
        for device in devices:
            labels = {"device": device.name, "board": str(device.board)}
            known = said.get(device.name)
            if known is None and device.name not in down:
                continue  # not asked yet
            up = known is not None and device.name not in down
            samples.append(Sample(name=_UP[0], labels=labels, value=str(int(up))))
            if known is not None:
                when = f"{known[0]:.0f}"
                samples.append(Sample(name=_ASKED[0], labels=labels, value=when))
            if known is None or not up:
                continue
            exposition = known[1]
            for name, kind in exposition.types.items():
                types.setdefault(name, kind)
                helps.setdefault(name, exposition.helps.get(name, ""))
            # What was two series by a label `device` of its own would be one twice.
            own = {
                (sample.name, *sorted(sample.labels.items())): sample
                for sample in (
                    one.labelled({"device": device.name})
                    for one in exposition.samples
                    if _is_told(one)
                )
            }
            samples += own.values()
        return exposition_text(samples, types, {name: said for name, said in helps.items() if said})


@dataclass(frozen=True, kw_only=True)
class AskMetrics(_OnDevice):
    """Ask each device for its metrics, which go to `told`."""

    told: Told
    action: str = "status"

    def wanted(self, device: FleetDevice) -> str | None:
        """See `Work.wanted`."""

    def __call__(self, device: FleetDevice) -> Done:
        """See `Work`."""
        try:
            with self._open(device) as (remote, root), limited(remote, self.commands_s, "metrics"):
                text = remote_tool.metrics(remote, root)
            said = parse_exposition(text, device.name)
        except EdgepackError:
            self.told.lose(device.name)
            raise
        self.told.add(device.name, said)
        return Done(outcome="told", release=None)

"""An operator's process: `edgepack fleet ...` with a scripted transport instead of SSH.

    python -m tests.fleet_operator FACTS BROKEN PAUSE_MS WORD ...

The command line, the inventory, the bundles, the waves and the journal are the real ones;
connecting and deploying are fakes that hold as much memory as a connection would. Devices
whose name matches the pattern BROKEN fail. What was seen goes to the file FACTS. A file `begun`
beside it is made when a device is under way; while a file `hold` is there, no more than the
first devices come to an end.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import re
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edgepack.base.errors import RemoteError
from edgepack.cli import fleet_actions, main
from edgepack.deploy import act
from edgepack.fleet import FleetDevice

_HELD_BYTES = 1 << 20
_NOT_HELD = 12


class FakeDevice:
    """A connection that is open from when it is made until it is closed."""

    lock = threading.Lock()
    open = 0
    most_open = 0

    def __init__(self, device: FleetDevice) -> None:
        self.name = device.name
        self._buffer = bytearray(_HELD_BYTES)
        with FakeDevice.lock:
            FakeDevice.open += 1
            FakeDevice.most_open = max(FakeDevice.most_open, FakeDevice.open)

    def close(self) -> None:
        with FakeDevice.lock:
            FakeDevice.open -= 1

    def abort(self) -> None:
        pass

    def run(self, command: str, **_: Any) -> SimpleNamespace:
        """No release is there."""
        return SimpleNamespace(command=command, returncode=1, stdout="", stderr="")


class FakeConnector:
    """Instead of edgepack.fleet.work.Connector."""

    def __init__(self, **_: Any) -> None:
        pass

    def __call__(self, device: FleetDevice) -> FakeDevice:
        return FakeDevice(device)


class FakeDeploy:
    """Instead of deploy_bundle; `events` are ("+" or "-", device), in order."""

    def __init__(self, broken: str, pause_s: float, folder: Path) -> None:
        self._broken, self._pause_s = broken, pause_s
        self._hold, self._under_way = folder / "hold", folder / "begun"
        self._begun = itertools.count(1)
        self.events: list[tuple[str, str]] = []

    def __call__(self, bundle: Any, device: FakeDevice, root: str, **_: Any) -> SimpleNamespace:
        with FakeDevice.lock:
            self.events.append(("+", device.name))
            begun = next(self._begun)
        if begun == 1:
            self._under_way.touch()
        if self._pause_s:
            time.sleep(self._pause_s)
        while begun > _NOT_HELD and self._hold.exists():
            time.sleep(0.01)
        with FakeDevice.lock:
            self.events.append(("-", device.name))
        if fnmatch.fnmatchcase(device.name, self._broken):
            raise RemoteError("scripted to fail")
        return SimpleNamespace(
            outcome="deployed",
            release=bundle.manifest.release,
            sent_bytes=1,
            before=None,
            facts=SimpleNamespace(machine_id=""),
        )


def _status(key: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{key}:\s+(\d+)", text, re.MULTILINE)[1])  # type: ignore[index]


def run(argv: list[str]) -> int:
    """Run the command and write down what was seen."""
    facts, broken, pause_ms, *words = argv
    deploy = FakeDeploy(broken, float(pause_ms) / 1000, Path(facts).parent)
    fleet_actions.Connector = FakeConnector  # type: ignore[assignment,misc]
    act.deploy_bundle = deploy  # type: ignore[assignment]
    code = main(words)
    seen = {
        # Of this program alone: ru_maxrss would count the process that started it, too.
        "peak_rss_kb": _status("VmHWM"),
        "most_open": FakeDevice.most_open,
        "events": deploy.events,
        "threads_left": threading.active_count(),
    }
    Path(facts).write_text(json.dumps(seen))
    return code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))

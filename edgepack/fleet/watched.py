"""What a rollout that is under way has done, from its journal as it grows."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgepack.fleet.journal import parse_line, stop_file
from edgepack.fleet.plan import RolloutPlan

WAITING, OK, BAD = 0, 1, 2
# Of a fleet of more devices a page has no square for each.
MOST_SQUARES = 20_000
_SHOWN_FAILURES = 200
_SHOWN_ERRORS = 10
_KEPT_ERRORS = 10_000
_READ_BYTES = 4 << 20


class Watched:
    """The devices of `plan`, and what the `journals` say of them so far; any thread may ask.

    Of a device only a line about the rollout that began last counts: of its action, and of the
    release that it brings to the device's board.
    """

    def __init__(self, plan: RolloutPlan, journals: Sequence[Path]) -> None:
        self._plan = plan
        self._offsets = dict.fromkeys(journals, 0)
        self._devices = [device for wave in plan.waves for device in wave.members]
        self._index = {device.name: number for number, device in enumerate(self._devices)}
        self._lines: dict[int, Mapping[str, Any]] = {}
        self._states = bytearray(len(self._devices))
        self._changed = [0] * len(self._devices)
        self._version = 0
        self._action = ""
        self._releases: dict[str, Any] = {}
        self._ends: dict[Path, str | None] = {}
        self._lock = threading.Lock()

    def read(self) -> None:
        """Take what has come to the journals; whole lines only, and none that is damaged."""
        with self._lock:
            self._version += 1
            for path in self._offsets:
                self._read(path)

    def _read(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                file.seek(self._offsets[path])
                data = file.read(_READ_BYTES)
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[path] += len(whole)
        for line in whole.splitlines():
            try:
                entry = parse_line(line)
            except (ValueError, RecursionError):
                continue
            self._take(path, entry)

    def _take(self, path: Path, entry: Mapping[str, Any]) -> None:
        event = entry.get("event")
        if event == "begin":
            self._ends[path] = None
            self._action = entry["action"]
            self._releases |= entry["releases"]
            for known in range(len(self._devices)):
                self._judge(known)
        elif event == "end":
            reason = f": {entry['reason']}" if entry["reason"] else ""
            self._ends[path] = entry["status"] + reason
        elif (number := self._index.get(entry["device"])) is not None:
            self._lines[number] = {
                key: entry.get(key)
                for key in ("action", "ok", "outcome", "release", "address", "error")
            }
            self._judge(number)

    def _judge(self, number: int) -> None:
        device, line, state = self._devices[number], self._lines.get(number), WAITING
        wanted = self._releases.get(str(device.board))
        if (
            line is not None
            and (line["action"], line["address"]) == (self._action, device.where)
            and wanted in (None, line["release"])
        ):
            state = OK if line["ok"] else BAD
        if state != self._states[number]:
            self._states[number] = state
            self._changed[number] = self._version

    def waves(self) -> dict[str, Any]:
        """What does not change: the waves, and the names of their devices if they are not many."""
        small = len(self._devices) <= MOST_SQUARES
        return {
            "waves": [
                {
                    "wave": wave.name,
                    "total": wave.total,
                    "devices": [device.name for device in wave.members] if small else [],
                }
                for wave in self._plan.waves
            ]
        }

    def since(self, version: int) -> tuple[int, dict[str, Any]]:
        """The version now, and what is new after `version` (-1: all that is known)."""
        with self._lock:
            changed = [number for number, changed in enumerate(self._changed) if changed > version]
            waves, start = [], 0
            for wave in self._plan.waves:
                counts = Counter(self._states[start : start + wave.total])
                waves.append([counts[OK], counts[BAD], counts[WAITING]])
                start += wave.total
            small = len(self._devices) <= MOST_SQUARES
            return self._version, {
                "status": self._status(),
                "action": self._action,
                "under_way": self._under_way(),
                "counts": waves,
                "states": [[number, self._states[number]] for number in changed] if small else [],
                **self._failures(),
            }

    def _failures(self) -> dict[str, Any]:
        errors: Counter[str] = Counter()
        last: deque[list[str]] = deque(maxlen=_SHOWN_FAILURES)
        for number, line in self._lines.items():
            if self._states[number] != BAD:
                continue
            text = str(line["error"] or "")
            if text in errors or len(errors) < _KEPT_ERRORS:
                errors[text] += 1
            last.append([self._devices[number].name, str(line["outcome"]), text])
        return {
            "errors": [list(item) for item in errors.most_common(_SHOWN_ERRORS)],
            "failed": list(last),
        }

    def _under_way(self) -> bool:
        return any(end is None for end in self._ends.values())

    def _status(self) -> str:
        if not self._ends:
            return "no rollout yet"
        ends = [end or "under way" for end in self._ends.values()]
        return "; ".join(dict.fromkeys(ends))

    def stop(self) -> bool:
        """Ask the rollouts that are under way to begin no further device; whether there are any."""
        with self._lock:
            paths = [path for path, end in self._ends.items() if end is None]
        for path in paths:
            stop_file(path).touch()
        return bool(paths)

"""What happened to each device, on disk before the next thing is done.

A journal belongs to one fleet and one model: a file of JSON lines that only grows. Each line
is flushed to the disk when it is written, so that whatever ends this process, what was done
is known: a device is done with a release if the last line about it says so.
"""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from edgepack.base.closing import Closing
from edgepack.base.errors import ConfigError, UsageError
from edgepack.fleet.inventory import FleetDevice

log = logging.getLogger(__name__)

TRIAL = "trial"
"""The action of a rollout that begins trials."""

# What lines have by "event"; those about devices have none.
_TEXT_OR_NONE = str | None
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "begin": {"action": str, "releases": dict},
    "end": {"status": str, "reason": str, "outcomes": dict, "seconds": int | float},
    "": {
        "device": str,
        "address": str,
        "action": str,
        "ok": bool,
        "outcome": _TEXT_OR_NONE,
        "release": _TEXT_OR_NONE,
        "details": dict | None,
    },
}


class BusyError(UsageError):
    """Another process is writing to the journal."""


class Identity(NamedTuple):
    """What tells a device from another at the same address: empty for what is not known."""

    host_key: str = ""
    machine_id: str = ""


class Last(NamedTuple):
    """The last line about a device: where it starts in the file, and what decides what is left.

    `deployed` is the release of the last deploy or trial, whether that went well or not. `tried` is
    that of a trial that began, and that no deploy or rollback has followed. `identity` is what
    answered when that last went well at this address.
    """

    offset: int
    action: str
    ok: bool
    release: str | None
    address: str
    deployed: str | None
    tried: str | None
    identity: Identity


class Journal(Closing):
    """An open journal: `last` has the last line about each device, by name.

    `run` is the line that the last rollout began with, `end` the one it ended with: None if
    there is no such line. The journal is locked until it is closed; with `write` off it is only
    read, and need not be there. Raises BusyError if another process holds the lock, and
    ConfigError if the file cannot be written, or is none of ours.
    """

    def __init__(self, path: Path, *, write: bool = True) -> None:
        self.path = path
        self.last: dict[str, Last] = {}
        self.run: dict[str, Any] | None = None
        self.end: dict[str, Any] | None = None
        try:
            if write:
                path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not path.exists()
            self._file = (
                path.open("a+b") if write else (io.BytesIO() if is_new else path.open("rb"))
            )
        except OSError as error:
            raise ConfigError(
                f"the journal {path}: {error.strerror}",
                hint="name another folder with --journal DIR",
            ) from None
        try:
            if write:
                self._lock()
                if is_new:
                    _sync_folder(path.parent)
            self._read(repair=write)
        except BaseException:
            self._file.close()
            raise

    def write(self, *entries: Mapping[str, Any]) -> None:
        """Add lines; returns when they are on the disk."""
        for entry in entries:
            offset = self._file.seek(0, os.SEEK_END)
            self._file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
            self._note(offset, entry)
        self._file.flush()
        os.fdatasync(self._file.fileno())

    def entry(self, name: str) -> dict[str, Any] | None:
        """The last line about the device `name`, None if there is none."""
        if name not in self.last:
            return None
        self._file.seek(self.last[name].offset)
        entry: dict[str, Any] = json.loads(self._file.readline())
        return entry

    def is_done(self, device: FleetDevice, action: str, release: str | None) -> bool:
        """Whether the last thing done to `device` was this `action`, with success.

        None stands for any release. A device that has moved to another address is another one.
        """
        last = self.last.get(device.name)
        return (
            last is not None
            and last.ok
            and (last.action, last.address) == (action, device.where)
            and release in (None, last.release)
        )

    def deployed(self, device: FleetDevice) -> str | None:
        """The release that was last brought, or tried to be brought, to `device`."""
        last = self.last.get(device.name)
        return last.deployed if last is not None and last.address == device.where else None

    def tried(self, device: FleetDevice) -> str | None:
        """The release whose trial began on `device`, and that is not deployed or undone since."""
        last = self.last.get(device.name)
        return last.tried if last is not None and last.address == device.where else None

    def identity(self, device: FleetDevice) -> Identity:
        """What last answered as `device`, at its address."""
        last = self.last.get(device.name)
        return last.identity if last is not None and last.address == device.where else Identity()

    def close(self) -> None:
        """Let go of the lock."""
        self._file.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"another rollout of this fleet is under way: {self.path} is locked",
                hint="wait for it to end; a device is never worked on by two",
            ) from None

    def _read(self, *, repair: bool) -> None:
        """Collect the last lines; cut off a line that a crash left half written.

        A damaged line is left out, and said: what it told is not known, so its device is asked
        again. A file of nothing else is none of ours.
        """
        damaged: list[int] = []
        good = 0
        for offset, line in _lines(self._file):
            if not line.endswith(b"\n"):
                if repair:
                    os.truncate(self._file.fileno(), offset)
                break
            try:
                self._note(offset, parse_line(line))
                good += 1
            except (ValueError, RecursionError):
                damaged.append(offset)
        if not damaged:
            return
        if not good:
            raise ConfigError(
                f"{self.path}: byte {damaged[0]}: not a line of a journal",
                hint="if it is one, move it away: every device is then asked again",
            )
        log.warning(
            "%s: %d damaged %s left out (byte %s); what they recorded is lost",
            self.path,
            len(damaged),
            "line is" if len(damaged) == 1 else "lines are",
            ", ".join(map(str, damaged[:3])) + (" ..." if damaged[3:] else ""),
        )

    def _note(self, offset: int, entry: Mapping[str, Any]) -> None:
        if entry.get("event") == "begin":
            self.run, self.end = dict(entry), None
        elif entry.get("event") == "end":
            self.end = dict(entry)
        else:
            name, action, release = entry["device"], entry["action"], entry["release"]
            before = self.last.get(name)
            brings = action in ("deploy", TRIAL)
            deployed = release if brings else before.deployed if before else None
            address = entry["address"]
            tried = before.tried if before and before.address == address else None
            if entry["ok"]:
                tried = release if action == TRIAL else None
            identity = before.identity if before and before.address == address else Identity()
            if entry["ok"]:
                identity = _identity(entry.get("details")) or identity
            last = Last(offset, action, entry["ok"], release, address, deployed, tried, identity)
            self.last[name] = last


def stop_file(path: Path) -> Path:
    """The file whose presence asks the rollout that writes the journal `path` to stop."""
    return path.with_suffix(".stop")


def _identity(details: Any) -> Identity | None:
    """What the details of a line tell of it, if they do."""
    if not isinstance(details, dict):
        return None
    found = [details.get(name, "") for name in Identity._fields]
    texts = [text if isinstance(text, str) else "" for text in found]
    return Identity(*texts) if any(texts) else None


def parse_line(line: bytes) -> dict[str, Any]:
    """A line of a journal, of which all that is used later has its type. Raises ValueError."""
    entry = json.loads(line)
    if not isinstance(entry, dict):
        raise ValueError("no object")
    kinds = _KINDS.get(entry.get("event", ""), _KINDS[""])
    for key, kind in kinds.items():
        if not isinstance(entry.get(key), kind):
            raise ValueError(key)
    return entry


def _lines(file: Any) -> Iterator[tuple[int, bytes]]:
    offset = file.seek(0)
    while line := file.readline():
        yield offset, line
        offset += len(line)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

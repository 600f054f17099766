"""A device tool that says what a test wants, without a device.

Real ones are in tests/integration and tests/functional; one that lies cannot be had otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from edgepack.device.base import RemoteResult
from edgepack.fleet import FleetDevice

OLD, NEW = "0" * 12, "1" * 12

RELEASE: Mapping[str, Any] = {
    "release": NEW, "name": "m", "board": "rasp3b", "model": "m.onnx", "model_sha256": "ab" * 32,
    "version": 3, "since": "2026-01-01T00:00:00Z", "by": "me@here", "signer": "",
    "compared": {"emulated": ["golden"], "local": ["random"]},
    "health": {"outcome": "ok", "at": "2026-01-01T00:00:00Z", "latency_ms": 4.5,
               "max_abs_error": 1e-7, "max_rss_mb": 30.0},
}  # fmt: skip
STATUS: Mapping[str, Any] = {
    "schema": 1, "tool": "1.0", "current": RELEASE, "previous": {**RELEASE, "release": OLD},
    "releases": [{"release": OLD, "version": 2, "bytes": 9}, {"release": NEW, "error": "damaged"}],
    "store": {"blobs": 12, "bytes": 15000000}, "pending": None,
    "drift": [{"signal": "scores", "level": 1, "since": "2026-01-01T00:00:00Z"}],
    "signers": ["ann SHA256:abc"], "lock": {"pid": 1, "by": "ann", "since": "now", "what": "x"},
}  # fmt: skip
TRUST: Mapping[str, Any] = {"signers": ["ann SHA256:abc"], "list": "ann ssh-ed25519 AAAA\n"}
APP: Mapping[str, Any] = {
    "edgepack": "1.0", "threads": 4, "load_ms": 1.0, "run_ms": 1.5, "rss_peak_bytes": 1,
    "params_bytes": 2, "arena_bytes": 3, "top": [{"index": 1, "label": "dog", "score": 0.9}],
    "expected": {"max_abs_error": 1e-7, "max_abs_reference": 1.0, "tolerance": 1e-4, "ok": True},
    "bench": {"runs": 1, "warmup": 0, "mean_ms": 1.0, "std_ms": 0.0, "min_ms": 1.0, "max_ms": 1.0,
              "p50_ms": 1.0, "p90_ms": 1.0, "p99_ms": 1.0, "times_ms": [1.0]},
    "profile": {"runs": 1, "overhead_ms": 0.1, "layers": [
        {"layer": "", "operator": "Conv", "kernel": "k", "ms": 1.0, "share": 1.0, "gflops": 2.0}]},
}  # fmt: skip
HEALTH: Mapping[str, Any] = {"outcome": "ok", "golden": APP, "photo": APP, "top": []}
SWITCHED: Mapping[str, Any] = {"release": OLD, "before": NEW, "previous": NEW, "health": HEALTH}
PRUNED: Mapping[str, Any] = {"removed": [OLD]}
STATE: Mapping[str, Any] = {
    "event": "state", "current": NEW, "previous": None, "unchanged": False, "remove": [OLD],
    "needs": [{"sha256": "ab" * 32, "size": 9, "have": 3,
               "base": {"sha256": "cd" * 32, "chunks": ""}}],
}  # fmt: skip
DONE: Mapping[str, Any] = {
    "event": "done",
    "report": {
        "outcome": "deployed", "previous": OLD, "removed": [OLD], "health": HEALTH,
        "received_bytes": 7,
        "health_fresh": True, "signer": "ann SHA256:abc", "pinned": "ann ssh-ed25519 AAAA",
    },
}  # fmt: skip
ERROR: Mapping[str, Any] = {"error": {"kind": "locked", "message": "wait", "hint": "a bit"}}

TRIAL: Mapping[str, Any] = {"runs": False, "trial": {
    "release": NEW, "before": OLD, "phase": "dropped", "reason": "why", "rules": {
        "seconds": 7200.0, "share": 0.1, "min_agreement": 0.98, "max_latency": 1.2,
        "min_pictures": 20},
    "elapsed_s": 7200.5, "pictures": 40, "differing": 3, "incomparable": 2, "crashes": 1,
    "agreement": 0.925, "latency_ratio": 1.1, "largest_difference": 0.25, "peak_bytes": 12000000,
}}  # fmt: skip

ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "trial status": TRIAL,
    "status": STATUS, "trust show": TRUST, "trust set": TRUST, "rollback": SWITCHED,
    "prune": PRUNED, "receive: state": STATE, "receive: done": DONE, "run": APP,
    "error": ERROR,
}  # fmt: skip
"""A good answer to each command."""


@dataclass
class ScriptedStream:
    """Says `lines`, and takes whatever it is sent."""

    lines: list[bytes]
    returncode: int = 0
    got: bytes = b""

    def write(self, data: bytes) -> None:
        self.got += data

    def read_line(self, timeout_s: float | None = None, *, begun: bool = False) -> bytes:
        return self.lines.pop(0) if self.lines else b""

    def finish(self) -> RemoteResult:
        said = b"".join(self.lines).decode(errors="replace")
        return RemoteResult(command="tool", returncode=self.returncode, stdout=said, stderr="")

    def close(self) -> None:
        pass


@dataclass
class ScriptedDevice:
    """Answers each command with the text that `answer` gives for it."""

    name: str
    answer: Callable[[str], str]
    returncode: int = 0
    commands: list[str] = field(default_factory=list)

    def run(
        self, command: str, *, timeout_s: float | None = None, check: bool = True
    ) -> RemoteResult:
        self.commands.append(command)
        # The existence of a file, and a temporary folder.
        is_folder = command.startswith("[ -e") and "--json" not in command
        text = "" if is_folder else self.answer(command)
        return RemoteResult(command=command, returncode=self.returncode, stdout=text, stderr="")

    def open(self, command: str) -> ScriptedStream:
        self.commands.append(command)
        said = self.answer(command).encode(errors="surrogateescape")
        return ScriptedStream([said], self.returncode)

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


def well(command: str) -> str:
    """What a device in order says to a command of the device tool."""
    if "current/source.json" in command:  # no record of where its model is from
        return ""
    words = next(words for words in ANSWERS if f" {words}" in command)
    return json.dumps(ANSWERS[words])


def connector(answers: Mapping[str, Callable[[str], str]]) -> Callable[[FleetDevice], Any]:
    """Connects to scripted devices: those not in `answers` are well."""
    return lambda device: ScriptedDevice(device.name, answers.get(device.name, well))

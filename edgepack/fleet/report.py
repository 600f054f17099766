"""The result of a rollout: as a table, as JSON, and as an HTML page that needs nothing else.

All three are made row by row from the journal, so that no list of the fleet is held.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from edgepack.base.text import printable
from edgepack.fleet.inventory import FleetDevice
from edgepack.fleet.journal import Journal
from edgepack.fleet.plan import RolloutPlan
from edgepack.fleet.rollout import RolloutResult

WAITING = "waiting"
_KEYS = (
    "device", "wave", "board", "address", "outcome", "release", "seconds", "at", "error", "hint",
)  # fmt: skip
_SHORT = ("device", "wave", "board", "release", "outcome", "seconds", "error")
# What there is to see of each kind of work: on a page, and in a terminal.
_COLUMNS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "deploy": (_KEYS, _SHORT),
    "rollback": (_KEYS, _SHORT),
    "status": (
        (
            "device", "board", "address", "outcome", "release", "version", "model",
            "model_sha256", "since", "by", "latency_ms", "error", "hint",
        ),
        ("device", "board", "outcome", "release", "version", "model", "since", "by", "error"),
    ),
    "trust": (
        ("device", "wave", "board", "address", "outcome", "signers", "at", "error", "hint"),
        ("device", "wave", "board", "outcome", "signers", "error"),
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FleetReport:
    """What to report on: `wanted` is the release that a device should have, None if any will do.

    A device that the journal knows nothing newer of is "waiting".
    """

    fleet: str
    model: str
    action: str
    plan: RolloutPlan
    journal: Journal
    wanted: Callable[[FleetDevice], str | None]
    result: RolloutResult

    @property
    def columns(self) -> tuple[str, ...]:
        """Those keys of the rows that a terminal has room for."""
        return _COLUMNS[self.action][1]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One for each device, wave by wave; all keys of `_KEYS`, and what the work adds."""
        for wave in self.plan.waves:
            for device in wave.members:
                yield self._row(wave.name, device)

    def _row(self, wave: str, device: FleetDevice) -> dict[str, Any]:
        wanted = self.wanted(device)
        row: dict[str, Any] = dict.fromkeys(_KEYS)
        row |= {"device": device.name, "wave": wave, "board": device.board}
        row |= {"address": device.where, "outcome": WAITING, "ok": False}
        entry = self.journal.entry(device.name)
        if (
            entry is not None
            and (entry["action"], entry["address"]) == (self.action, device.where)
            and wanted in (None, entry["release"])
        ):
            details = entry.pop("details", {})
            row |= {key: entry[key] for key in entry.keys() & row.keys()} | details
        return row

    def summary(self) -> dict[str, Any]:
        """All but the devices."""
        counts: Counter[str] = Counter()
        releases: dict[str, Counter[str]] = {}
        ok = 0
        for row in self.rows():
            counts[row["outcome"]] += 1
            ok += row["ok"]
            if row["ok"] and row["release"]:
                releases.setdefault(str(row["board"]), Counter())[row["release"]] += 1
        return {
            "schema": 1,
            "fleet": self.fleet,
            "model": self.model,
            "action": self.action,
            "status": self.result.status,
            "reason": self.result.reason,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": self.result.seconds,
            "devices_total": self.plan.total,
            "devices_ok": ok,
            "outcomes": dict(counts),
            "releases": releases,
            "waves": [{"wave": wave.name, "devices": wave.total} for wave in self.plan.waves],
        }

    def json_lines(self) -> Iterator[str]:
        """A JSON document: the summary, and "devices" with a line for each."""
        head = json.dumps(self.summary(), indent=2)
        yield head[: head.rindex("\n")] + ',\n  "devices": ['
        comma = ""
        for row in self.rows():
            yield f"{comma}    {json.dumps(row)}"
            comma = ","
        yield "  ]\n}"

    def write_html(self, path: Path) -> None:
        """Write the page to `path`, which has its old or its new content."""
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(self._html())
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def _html(self) -> Iterator[str]:
        summary = self.summary()
        columns = _COLUMNS[self.action][0]
        title = f"{summary['model']} to {summary['fleet']}: {summary['action']} {summary['status']}"
        yield _HEAD.format(title=escape(title), style=_STYLE)
        yield f"<h1>{escape(title)}</h1>\n<dl>\n"
        facts: Mapping[str, object] = {
            "Devices": f"{summary['devices_ok']} of {summary['devices_total']} well",
            "Outcomes": ", ".join(f"{text} {n}" for text, n in summary["outcomes"].items()),
            "Releases": ", ".join(release_lines(summary)),
            "Stopped": summary["reason"],
            "At": summary["at"],
            "Seconds": summary["seconds"],
            "Waves": ", ".join(f"{wave['wave']} {wave['devices']}" for wave in summary["waves"]),
        }
        for name, value in facts.items():
            if value not in ("", None):
                yield f"<dt>{name}</dt><dd>{escape(str(value))}</dd>\n"
        cells = "".join(f"<th>{key}</th>" for key in columns)
        yield f"</dl>\n<table>\n<thead><tr>{cells}</tr></thead>\n<tbody>\n"
        for row in self.rows():
            kind = "ok" if row["ok"] else "waiting" if row["outcome"] == WAITING else "bad"
            cells = "".join(
                f'<td class="{key}">{escape(_text(row.get(key)))}</td>' for key in columns
            )
            yield f'<tr class="{kind}">{cells}</tr>\n'
        yield "</tbody>\n</table>\n</body>\n</html>\n"


def release_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Which releases the devices have that are well, for each board."""
    for board, releases in summary["releases"].items():
        for release, count in releases.items():
            yield f"{release} on {count} {board}"


def _text(value: object) -> str:
    return "" if value is None else printable(str(value))


# Nothing may be loaded or run: names and errors come from devices.
_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
"""
_STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2em; color: #222; background: #fff }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2em 1em }
dt { color: #666 } dd { margin: 0 }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .3em .6em; border-bottom: 1px solid #ddd; vertical-align: top }
td { white-space: pre-wrap; overflow-wrap: anywhere }
tr.ok td.outcome { color: #17692d } tr.bad { background: #fdecea }
tr.bad td.outcome { color: #a3160f; font-weight: 600 } tr.waiting { color: #777 }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #181818 } tr.bad { background: #3a1b19 }
  th, td { border-color: #444 } dt, tr.waiting { color: #999 }
  tr.ok td.outcome { color: #7fd391 } tr.bad td.outcome { color: #ff9d94 }
}
"""

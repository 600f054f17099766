"""The result of a rollout: as a table, as JSON, and as an HTML page that needs nothing else.

All three are made row by row from the journal, so that no list of the fleet is held.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edgepack.base import charts, page
from edgepack.base.page import Html
from edgepack.base.text import format_count, one_line
from edgepack.fleet.inventory import FleetDevice
from edgepack.fleet.journal import TRIAL, Journal
from edgepack.fleet.journals import JournalsRead
from edgepack.fleet.plan import RolloutPlan
from edgepack.fleet.rollout import RolloutResult

WAITING = "waiting"
# On a page: devices that have a square each, rows, and different errors.
_SQUARES = _SHOWN_ROWS = 2000
_SHOWN_ERRORS = 20
_KEPT_ERRORS = 10_000
# Classes of rows and squares, and what they are.
_KINDS = {"ok": "done", "bad": "failed", "waiting": "waiting"}
# Of the page's, in the same order: green, red, and none.
_COLORS = (2, 4, None)
ROW_KEYS = (
    "device", "wave", "board", "address", "outcome", "release", "seconds", "at", "error", "hint",
)  # fmt: skip
_SHORT = ("device", "wave", "board", "release", "outcome", "seconds", "error")
# What there is to see of each kind of work: on a page, and in a terminal.
_COLUMNS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "deploy": (ROW_KEYS, _SHORT),
    "rollback": (ROW_KEYS, _SHORT),
    TRIAL: (ROW_KEYS, _SHORT),
    "status": (
        (
            "device", "board", "address", "outcome", "release", "version", "model",
            "model_sha256", "source", "since", "by", "latency_ms", "emulated", "trial", "error",
            "hint",
        ),
        (
            "device", "board", "outcome", "release", "version", "model", "since", "by", "trial",
            "error",
        ),
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
    journal: Journal | JournalsRead
    wanted: Callable[[FleetDevice], str | None]
    result: RolloutResult

    @property
    def columns(self) -> tuple[str, ...]:
        """Those keys of the rows that a terminal has room for."""
        return _COLUMNS[self.action][1]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One for each device, wave by wave; all keys of `ROW_KEYS`, and what the work adds."""
        for wave in self.plan.waves:
            for device in wave.members:
                yield self._row(wave.name, device)

    def _row(self, wave: str, device: FleetDevice) -> dict[str, Any]:
        wanted = self.wanted(device)
        row: dict[str, Any] = dict.fromkeys(ROW_KEYS)
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
        page.write_page(path, self._html())

    def _html(self) -> Iterator[str]:
        summary = self.summary()
        outcomes = summary["outcomes"]
        yield page.head(
            f"{summary['model']} to {summary['fleet']}: {summary['action']} {summary['status']}",
            kind="fleet",
            sorts=True,
        )
        done = f"{summary['devices_ok']} of {format_count(summary['devices_total'], 'device')} done"
        every = summary["devices_ok"] == summary["devices_total"]
        reason = f": {summary['reason']}" if summary["reason"] else ""
        yield page.verdict(done + reason, ok=every if every or reason else None)
        yield page.facts(
            {
                "Outcomes": ", ".join(f"{text} {n}" for text, n in outcomes.items()),
                "Releases": ", ".join(release_lines(summary)),
                "At": summary["at"],
                "Seconds": summary["seconds"],
            }
        )
        yield from self._waves()
        yield from self._errors()
        yield from self._table(summary["devices_total"], outcomes)
        yield page.PAGE_END

    def _waves(self) -> Iterator[Html]:
        """A square for each device, wave by wave; of a large fleet a bar for each wave."""
        small = self.plan.total <= _SQUARES
        rows = self.rows()
        for wave in self.plan.waves:
            kinds: Counter[str] = Counter()
            squares = []
            for row in itertools.islice(rows, wave.total):
                kinds[_kind(row)] += 1
                if small:
                    words = page.text(f"{row['device']}: {row['outcome']}")
                    squares.append(f'<i class="{_kind(row)}" title="{words}"></i>')
            said = ", ".join(
                f"{kinds[kind]} {words}" for kind, words in _KINDS.items() if kinds[kind]
            )
            yield page.paragraph(f"{wave.name}: {format_count(wave.total, 'device')}, {said}")
            if small:
                yield Html(f'<div class="devices">{"".join(squares)}</div>\n')
            else:
                parts = [(words, float(kinds[kind]), "") for kind, words in _KINDS.items()]
                yield charts.portions(parts, colors=_COLORS, title=wave.name)

    def _errors(self) -> Iterator[Html]:
        """Which errors come most often."""
        errors: Counter[str] = Counter()
        for row in self.rows():
            if row["error"] and (row["error"] in errors or len(errors) < _KEPT_ERRORS):
                errors[row["error"]] += 1
        if errors:
            most = errors.most_common(_SHOWN_ERRORS)
            bars = ((one_line(text), float(n), format_count(n, "device")) for text, n in most)
            yield page.section("What went wrong", page.shares(bars))

    def _table(self, total: int, outcomes: Mapping[str, int]) -> Iterator[Html]:
        """All devices; of a large fleet those that are not well first, as many as are shown."""
        columns = _COLUMNS[self.action][0]
        yield page.filters("outcome", sorted(outcomes))
        yield page.table_head(columns, sortable=True)
        kinds = [tuple(_KINDS)] if total <= _SHOWN_ROWS else [("bad",), ("waiting",), ("ok",)]
        shown = (row for wanted in kinds for row in self.rows() if _kind(row) in wanted)
        for row in itertools.islice(shown, _SHOWN_ROWS):
            # What a device is not is no text of a table.
            cells = [None if row.get(key) is False else row.get(key) for key in columns]
            yield page.table_row(cells, kind=_kind(row), names=columns)
        yield page.TABLE_END
        more = total - _SHOWN_ROWS
        yield page.paragraph(
            f"and {format_count(more, 'device')} more: --json has all" if more > 0 else ""
        )


def _kind(row: Mapping[str, Any]) -> str:
    return "ok" if row["ok"] else "waiting" if row["outcome"] == WAITING else "bad"


def release_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Which releases the devices have that are well, for each board."""
    for board, releases in summary["releases"].items():
        for release, count in releases.items():
            yield f"{release} on {count} {board}"

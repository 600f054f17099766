"""The journals of a rollout that several machines did, each its shard, read as one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgepack.base.closing import Closing
from edgepack.fleet.journal import Journal

_SHARD = re.compile(r"([1-9]\d*)-of-([1-9]\d*)")
_WORST_LAST = ("complete", "stopped", "interrupted")
_KILLED: Mapping[str, Any] = {
    "status": "interrupted",
    "reason": "it was killed, or is under way",
    "outcomes": {},
    "seconds": 0.0,
}


def shards_of(path: Path) -> list[Path]:
    """The journals of shards that lie beside the journal `path` of the whole fleet, in order."""
    found = []
    for file in path.parent.glob("*.jsonl"):
        name, _, shard = file.stem.rpartition("@")
        match = _SHARD.fullmatch(shard)
        if match is not None and name == path.stem:
            found.append((int(match[2]), int(match[1]), file))
    return [file for _, _, file in sorted(found)]


class JournalsRead(Closing):
    """Journals that are read, not written; of a device the line counts that was written last.

    `action` and `releases` are what the rollouts were for that did what the last one did; None and
    nothing if there is none.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._journals: list[tuple[str, Journal]] = []
        try:
            for path in paths:
                shard = path.stem.rpartition("@")[2] if "@" in path.stem else ""
                self._journals.append((shard, Journal(path, write=False)))
        except BaseException:
            self.close()
            raise
        runs = [(shard, one) for shard, one in self._journals if one.run is not None]
        runs.sort(key=lambda item: str((item[1].run or {}).get("at", "")))
        last = runs[-1][1].run if runs else None
        self.action: str | None = last["action"] if last else None
        self._runs = [
            (shard, one) for shard, one in runs if one.run and one.run["action"] == self.action
        ]
        self.releases: dict[str, str | None] = {}
        for _, one in self._runs:
            self.releases |= (one.run or {})["releases"]

    def entry(self, name: str) -> dict[str, Any] | None:
        """The last line about the device `name`, None if there is none."""
        entries = [entry for _, one in self._journals if (entry := one.entry(name)) is not None]
        return max(entries, key=lambda entry: str(entry.get("at", "")), default=None)

    def end(self) -> dict[str, Any]:
        """How it ended, as the worst of them; the reasons of all."""
        ends = [(shard, one.end or _KILLED) for shard, one in self._runs]
        if len(ends) == 1:
            return {key: value for key, value in ends[0][1].items() if key != "event"}
        outcomes: Counter[str] = Counter()
        for _, end in ends:
            outcomes.update(end["outcomes"])
        reasons = [
            f"{shard.replace('-of-', '/') or 'all'}: {end['reason']}"
            for shard, end in ends
            if end["reason"]
        ]
        return {
            "status": max((end["status"] for _, end in ends), key=_rank),
            "reason": "; ".join(reasons),
            "outcomes": dict(outcomes),
            "seconds": max(end["seconds"] for _, end in ends),
        }

    def close(self) -> None:
        """Close them all."""
        for _, one in self._journals:
            one.close()


def _rank(status: str) -> int:
    """A word that is none of ours is the worst."""
    return _WORST_LAST.index(status) if status in _WORST_LAST else len(_WORST_LAST)

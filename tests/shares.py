"""A pytest plugin: each worker collects and runs files of its own.

Usually all workers collect all tests, and one of them hands tests out. Where tests are quick, that
is a third of what they take: so here files are shared out before they are imported, by what their
tests took last time.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import EachScheduling

_ROOT = Path(__file__).parent.parent
COLLECTED_S = 0.03
"""CPU seconds in which a file is collected, on average."""


def share_out(costs: Mapping[str, float], workers: int) -> dict[str, int]:
    """The worker of each file: the dearest go first, each to the one that has least to do."""
    taken = [0.0] * workers
    shares = {}
    for file in sorted(costs, key=lambda file: (-costs[file], file)):
        shares[file] = taken.index(min(taken))
        taken[shares[file]] += costs[file] + COLLECTED_S
    return shares


def costs_of_files(costs: Mapping[str, float]) -> dict[str, float]:
    """Tests' CPU seconds by file."""
    files: dict[str, float] = {}
    for test, cost in costs.items():
        file = test.partition("::")[0]
        files[file] = files.get(file, 0.0) + cost
    return files


class Scheduler(EachScheduling):
    """Of xdist: a worker runs what it collected."""

    def __init__(self, session: pytest.Session, log: Any) -> None:
        super().__init__(session.config, log)
        self._session = session

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        # xdist takes the last worker's for all there are.
        self._session.testscollected = sum(map(len, self.node2collection.values()))


class Shares:
    """`costs` are CPU seconds of the tests that will run, by their ids."""

    def __init__(self, config: pytest.Config, costs: Mapping[str, float]) -> None:
        self.worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        self._costs = costs
        self._shares: dict[str, int] = self.worker["shares"] if self.worker else {}

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        count = node.workerinput["workercount"]
        if not self._shares:
            self._shares = share_out(costs_of_files(self._costs), count)
        node.workerinput["shares"] = self._shares

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_make_scheduler(self, log: Any) -> Scheduler:
        return Scheduler(self._session, log)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if not collection_path.name.startswith("test_"):
            return None
        return not self.is_own(collection_path) or None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # A file that the command line names is collected by all.
        items[:] = [item for item in items if self.is_own(item.path)]

    def is_own(self, file: Path) -> bool:
        """Whether a file is for this worker."""
        if self.worker is None:
            return True
        count, own = self.worker["workercount"], int(self.worker["workerid"].removeprefix("gw"))
        name = file.relative_to(_ROOT).as_posix()
        # What has no record yet goes anywhere, but in each worker to the same one.
        return self._shares.get(name, zlib.crc32(name.encode()) % count) == own

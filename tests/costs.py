"""A pytest plugin: what each test costs in CPU seconds, and which worker runs it.

A test's cost is what this process and its children took for it; what tests share counts for the
first that needs it. Costs are kept in the cache, and the dearest are
printed beside those of the last time.

With several workers (`-n`) a file's tests stay together, for the sake of what they share: one
server, one built program, virtual boards. The files whose tests share nothing are spread test
by test. The dearest go first, by their last costs.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from edgepack.base import paths

# Files (by the start of their paths) whose tests have nothing in common, or little.
SPREAD = (
    "tests/functional/test_bench.py",
    "tests/functional/test_compiler",
    "tests/functional/test_convolution_properties.py",
    "tests/functional/test_resize_properties.py",
    "tests/functional/test_squeeze_excite.py",
)
# What is built first where nothing is known yet: it takes longest.
FIRST = (
    "tests/functional/test_flow.py",
    "tests/functional/test_runtime.py",
    "tests/functional/test_preprocess_equality.py",
    "tests/functional/test_device_tool.py",
)
UNKNOWN_S = 1.0
SHOWN, SHOWN_S = 20, 1.0


def cpu_s() -> float:
    """Of this process and its children, those too that nobody waits for, as for virtual boards."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    ticks = 0
    for pid in _children():
        # It may be waited for in between.
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            # proc(5): utime, stime, and those of the children it has waited for
            ticks += sum(map(int, fields[11:15]))
    return seconds + ticks / os.sysconf("SC_CLK_TCK")


def _children() -> list[str]:
    """The process ids of those that this process has not waited for."""
    try:
        # Mostly there are none, and what follows reads a file for each thread.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    found: list[str] = []
    for children in Path("/proc/self/task").glob("*/children"):
        # A thread may end in between.
        with contextlib.suppress(OSError):
            found += children.read_text().split()
    return found


def group(nodeid: str) -> str:
    """Tests of one group run in one worker."""
    return nodeid if nodeid.startswith(SPREAD) else nodeid.partition("::")[0]


class Scheduler(LoadScopeScheduling):
    """Of xdist: hands out groups in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)


class Costs:
    """Measures where tests run, and keeps the costs where they are reported."""

    def __init__(self, config: pytest.Config) -> None:
        self.worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        # Kept before any test changes the cache.
        self.file = paths.cache_dir() / "tests" / "cpu_s.json"
        self.last: dict[str, float] = self.worker["cpu_s"] if self.worker else self._load()
        self._leaves_out: bool = config.getoption("--reached", False)
        self.now: Counter[str] = Counter()
        self.since = cpu_s()

    def _load(self) -> dict[str, float]:
        try:
            found = json.loads(self.file.read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["cpu_s"] = self.last

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Scheduler:
        config.option.loadscopereorder = False
        return Scheduler(config, log)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.worker is None:
            return
        costs: Counter[str] = Counter()
        for item in items:
            costs[group(item.nodeid)] += self.last.get(item.nodeid, UNKNOWN_S)
        for number, name in enumerate(FIRST):
            if not any(test.startswith(name) for test in self.last):
                costs[name] = 1e9 - number
        items.sort(key=lambda item: -costs[group(item.nodeid)])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self.since = cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        report = yield
        now = cpu_s()
        report.cpu_s, self.since = now - self.since, now
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        # What xdist says of a worker that died has none.
        self.now[report.nodeid] += getattr(report, "cpu_s", 0.0)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.worker is not None or not self.now:
            return
        known = [test for test in self.now if test in self.last]
        terminalreporter.section("CPU seconds (last time)")
        for test, cost in self.now.most_common(SHOWN):
            if cost < SHOWN_S:
                break
            before = f"({self.last[test]:.1f})" if test in self.last else "(new)"
            terminalreporter.write_line(f"{cost:8.1f} {before:>8} {test}")
        now, before = sum(self.now[test] for test in known), sum(self.last[test] for test in known)
        terminalreporter.write_line(
            f"{sum(self.now.values()):8.1f} in all; of {len(known)} known tests "
            f"{now:.1f} ({before:.1f})"
        )
        kept = {test: round(cost, 3) for test, cost in self.now.items()}
        if self._leaves_out:
            # On a busy machine a test seems dear, and once left out it would stay so.
            kept |= {test: min(kept[test], self.last[test]) for test in known}
        # Another run may have ended in between.
        text = json.dumps({**self._load(), **kept}, indent=0, sort_keys=True)
        paths.write_atomic(self.file, text.encode())

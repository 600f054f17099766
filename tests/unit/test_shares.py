"""How `./dev check` shares out files before they are imported: tests/shares.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.shares import Shares, costs_of_files, share_out

ROOT = Path(__file__).parents[2]


def worker(number: int, shares: dict[str, int]) -> Shares:
    inputs = {"workerid": f"gw{number}", "workercount": 2, "shares": shares}
    config: Any = SimpleNamespace(workerinput=inputs)
    return Shares(config, {})


def test_the_dearest_file_has_a_worker_of_its_own() -> None:
    costs = costs_of_files({"a.py::x": 3.0, "a.py::y[b::c]": 3.0, "b.py::x": 2.5, "c.py::x": 3.0})
    assert costs == {"a.py": 6.0, "b.py": 2.5, "c.py": 3.0}
    assert share_out(costs, 2) == {"a.py": 0, "c.py": 1, "b.py": 1}


def test_each_file_is_collected_by_one_worker() -> None:
    files = sorted(Path(__file__).parent.glob("test_*.py"))
    known = {f"tests/unit/{file.name}": number % 2 for number, file in enumerate(files[::2])}
    workers = [worker(number, known) for number in range(2)]
    for file in files:
        ignored = [bool(each.pytest_ignore_collect(file)) for each in workers]
        assert sorted(ignored) == [False, True], file
    assert not workers[0].pytest_ignore_collect(files[0])
    assert not workers[0].pytest_ignore_collect(Path(__file__).parent)


def test_each_test_runs_once_in_one_of_the_workers() -> None:
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--reached"]
    command += ["-n", "2", "tests/unit/test_ticker.py", "tests/unit/test_reach.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    line = r"^\[(gw\d)\] \[ *(\d+)%\] PASSED (.+)$"
    ran = re.findall(line, done.stdout, re.MULTILINE)
    assert len({test for _worker, _share, test in ran}) == len(ran), done.stdout
    assert f" {len(ran)} passed in " in done.stdout
    assert ran[-1][1] == "100"
    by_file = {(test.partition("::")[0], worker) for worker, _share, test in ran}
    assert {file for file, _worker in by_file} == set(command[-2:])
    assert len(by_file) == 2

"""How tests are measured and shared out: tests/costs.py."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgepack.base import paths
from tests.costs import FIRST, Costs, cpu_s, group


def test_a_child_counts_once_waited_for_or_not() -> None:
    def waited_s() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    start, waited = cpu_s(), waited_s()
    loop = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done"
    child = subprocess.Popen(["sh", "-c", loop])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    before = cpu_s() - start
    child.wait()
    after, cost = cpu_s() - start, waited_s() - waited
    # In ticks of 10 ms, where nobody has waited yet.
    assert before >= cost - 0.05 > 0
    assert cost <= after < before + cost / 2


def test_the_dearest_files_go_first_and_stay_whole() -> None:
    spread = "tests/functional/test_compiler.py"
    last = {f"{FIRST[1]}::a": 3.0, "tests/b.py::one": 1.0, "tests/b.py::two": 5.0}
    last |= {f"{spread}::x": 0.5, f"{spread}::y": 4.0}
    config: Any = SimpleNamespace(workerinput={"cpu_s": last}, getoption=lambda *_: False)
    names = [f"{FIRST[0]}::new", f"{spread}::x", "tests/b.py::one", f"{spread}::y", *list(last)[:1]]
    items: Any = [SimpleNamespace(nodeid=name) for name in [*names, "tests/b.py::two"]]
    Costs(config).pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == [
        f"{FIRST[0]}::new",  # what it costs is not known, but it is known to be much
        "tests/b.py::one",
        "tests/b.py::two",
        f"{spread}::y",
        f"{FIRST[1]}::a",
        f"{spread}::x",
    ]
    assert group("tests/b.py::one[a::b]") == "tests/b.py"
    assert group(f"{spread}::x") == f"{spread}::x"


@pytest.mark.parametrize(("reached", "kept"), [(True, 0.1), (False, 0.9)])
def test_a_run_that_leaves_dear_tests_out_makes_none_dearer(
    reached: bool, kept: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "_cache_dir", tmp_path)
    config: Any = SimpleNamespace(getoption=lambda *_: reached)
    file = tmp_path / "tests" / "cpu_s.json"
    paths.write_atomic(file, b'{"known": 0.1, "cheaper now": 0.9}')
    costs = Costs(config)
    costs.now.update({"known": 0.9, "cheaper now": 0.1, "new": 0.9})
    costs.pytest_terminal_summary(SimpleNamespace(section=str, write_line=str))
    assert json.loads(file.read_text()) == {"known": kept, "cheaper now": 0.1, "new": 0.9}

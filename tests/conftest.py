from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from edgepack.base import paths
from tests import support
from tests.costs import Costs
from tests.reach import Reach, changed_files
from tests.schemas import Watch
from tests.shares import Shares


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--reached", action="store_true", help="see tests/reach.py")


def pytest_configure(config: pytest.Config) -> None:
    # The same cache as ./dev uses.
    if cache := os.environ.get("EDGEPACK_CACHE"):
        paths.set_cache_dir(Path(cache))
    # A shell ignores it for what it runs in the background; tests and what they start do not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    costs = Costs(config)
    config.pluginmanager.register(costs, "costs")
    config.pluginmanager.register(Watch(), "schemas")
    if config.getoption("--reached"):
        worker = costs.worker
        reach = Reach(worker["changed"] if worker else changed_files(), costs.last)
        config.pluginmanager.register(reach, "reach")
        config.pluginmanager.register(Shares(config, reach.costs_to_come()), "shares")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are named by their argument: what is compressed or signed as the tests are collected
    may hold the time, and workers have to agree on the names."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A worker cannot send what UTF-8 has no bytes for: a lone surrogate in a log or a failure
    would end the whole run."""
    report = yield
    report.sections = [(title, encodable(text)) for title, text in report.sections]
    if report.longrepr is not None and encodable(report.longreprtext) != report.longreprtext:
        report.longrepr = encodable(report.longreprtext)
    return report


def encodable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


@pytest.fixture(autouse=True)
def _one_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that runs in this process with --cache-dir leaves it set: for this test alone."""
    monkeypatch.setattr(paths, "_cache_dir", paths._cache_dir)


@pytest.fixture(autouse=True)
def _no_ansible(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inventories are read here as without Ansible, where it is installed, too: but where a test
    wants it."""
    if shutil.which("ansible-inventory") and "ansible" not in request.fixturenames:
        monkeypatch.setattr("edgepack.fleet.ansible.find_ansible", lambda: None)


@pytest.fixture(scope="session")
def require_tool() -> Callable[..., str]:
    """`require_tool(name, ...)`: see tests.support."""
    return support.require_tool

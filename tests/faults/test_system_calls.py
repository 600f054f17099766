"""Full disks, broken disks, interrupted calls and leaping clocks at every system call.

After each: the command has done what it says, or said why not; the old release or the new one is
current, with every hash right; `status` can be read, `recover` and `repair` mend what is left; the
next install completes, the one after changes nothing, and no file is left over.
"""

from __future__ import annotations

import random
import re
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.device_tool import host_tool
from tests.faults.preload import call_names
from tests.faults.system_calls import DamagedError, Lab, inject, make_lab, points, table
from tests.support import require_tool

SEED = 20261122
SHORT, LONG = 40, 5000
# Imports of the tool that make system calls, and cannot fail, or whose failure is of no use to it:
# of close, the descriptor is gone either way; accept4, listen, setpriority and setreuid only a
# trial has, see test_trial; the rest only root's supervisor has, see test_service_accounts.
NOT_INJECTED = {
    "close", "closedir", "fclose", "ferror", "fflush", "fgets", "fwrite", "fprintf", "fputs",
    "printf", "_exit", "abort", "raise", "kill", "signal", "sigprocmask", "setsid", "umask",
    "prctl", "getpid", "getppid", "getpgid", "getuid", "geteuid", "setgid", "setuid",
    "setgroups", "setreuid", "fgetgrent", "accept4", "listen", "setpriority", "syscall",
    "mount", "unshare", "sysconf", "malloc", "realloc", "free",
}  # fmt: skip
# These compute, and ask the kernel nothing.
PURE = re.compile(
    r"_|mem|str|is(alpha|space)|sig(add|empty)set|getenv|setenv|unsetenv|v?snprintf|ato[il]|floor|sqrt|gmtime_r|mktime|timegm|gnu_dev"
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield make_lab(Path(name), host_tool(faults=True))


def imports() -> set[str]:
    """The C functions that the tool takes from libc."""
    words = [require_tool("nm"), "-D", "--undefined-only", host_tool(faults=True)]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1].partition("@")[0] for line in listed.splitlines()}
    data = {"stderr", "stdout"}
    return {re.sub("64$", "", name) for name in names - data if not name.startswith("_Z")}


def test_the_tool_has_one_thread() -> None:
    """So there is nothing in it for the thread sanitizer, under which the app's threads run."""
    assert {
        name for name in imports() if re.match("pthread_create|thrd_create|clone", name)
    } == set()


def test_no_call_is_forgotten() -> None:
    names = imports()
    known = {*call_names(), "openat", "clock_gettime", "time"} | NOT_INJECTED
    assert {name for name in names - known if not PURE.match(name)} == set()


@pytest.mark.parametrize(
    "count", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_faults_at_system_calls(lab: Lab, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    # Of each command and fault some, however many calls others make.
    by_kind = defaultdict(list)
    for point in points(lab):
        by_kind[point.command.name, point.fault.name].append(point)
    rng = random.Random(SEED)
    kinds = list(by_kind.values())
    for kind in kinds:
        rng.shuffle(kind)
    rng.shuffle(kinds)
    chosen = [kind[i] for i in range(max(map(len, kinds))) for kind in kinds if i < len(kind)]
    results: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    damaged = []
    for point in chosen[:count]:
        result = results[point.command.name, point.fault.name]
        try:
            outcome = inject(lab, point)
        except DamagedError as error:
            damaged.append(f"{point}: {error}")
            outcome = "damaged"
        if outcome:
            result[outcome] += 1
    if count == LONG:
        with capsys.disabled():
            print(f"\n{table(results, lab.commands)}")
    assert damaged == []


@pytest.mark.parametrize(
    ("command", "fault", "call"),
    [
        ("service", "EIO", "execv"),
        ("service, kept", "EIO", "execv"),
        ("service, kept", "full", "create"),
        ("service, kept", "EROFS", "create"),
    ],
)
def test_a_service_that_could_not_start_is_started_again(
    lab: Lab, command: str, fault: str, call: str
) -> None:
    """Found by the long form: its lock could not be made; its app, never started, had "ended"."""
    (point,) = (
        point
        for point in points(lab)
        if (point.command.name, point.fault.name, point.call) == (command, fault, call)
        and point.number == 1
    )
    assert inject(lab, point) == "survived"

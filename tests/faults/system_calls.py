"""Every command of the device tool, with one system call in it failing.

A point is a command, the k-th call of a kind, and what happens to it; `inject` does one and says
how it ended. The calls that a command makes are counted by a run in which nothing fails.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgepack.base.errors import EdgepackError
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.manifest import MANIFEST_NAME, PARAMS
from edgepack.bundle.service import Service
from edgepack.deploy.transfer import Exchange, InstallRequest
from edgepack.device import LocalDevice
from edgepack.device.base import RemoteResult, Stream
from tests.bundles import FakeTool
from tests.fake_app import fake_bundle
from tests.faults.preload import Counts, environment
from tests.faults.rig import SIGNATURE, Rig, sign
from tests.ssh_keys import make_key, public

# Calls by what may happen to them. What is missing here (reading the clock, signals) cannot fail.
WRITING = (
    "create", "write", "pwrite", "fsync", "ftruncate", "fchmod", "futimens", "mkdir", "mkdirat",
    "linkat", "symlinkat", "renameat", "unlinkat",
)  # fmt: skip
GROWING = ("create", "write", "pwrite", "fsync", "mkdir", "mkdirat", "linkat", "symlinkat",
           "renameat")  # fmt: skip
READING = (
    "access", "chdir", "open", "fopen", "read", "pread", "send", "lseek", "stat", "fstat", "lstat",
    "fstatat", "statvfs", "readlink", "readlinkat", "fdopendir", "readdir", "realpath",
    "sync_file_range", "execv", "fgetpwent",
)  # fmt: skip
SLOW = (
    "open", "create", "read", "send", "write", "pread", "pwrite", "fsync", "ftruncate", "flock",
    "poll", "wait4", "waitpid", "nanosleep", "sigtimedwait", "recvmsg", "sendto", "getrandom",
    "fchmod", "statvfs",
)  # fmt: skip
TAKING = ("open", "create", "fork", "pipe2", "socket", "signalfd", "fcntl", "fdopendir", "mkdirat")
TRANSFERS = ("read", "send", "write", "pread", "pwrite")
# How often these are called is a matter of time: only the first few are the same in each run.
POLLED = ("poll", "wait4", "waitpid", "nanosleep", "sigtimedwait", "recvmsg", "read", "clock",
          "access", "lstat", "readlink", "sendto")  # fmt: skip
_FIRST = 4
_YEARS = 50 * 365 * 86400


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens to one of `calls`, as preload.c has it; and to all of `later` afterwards."""

    name: str
    what: str
    calls: tuple[str, ...]
    later: tuple[str, ...] = ()


def _number(name: str) -> str:
    return str(getattr(errno, name))


FAULTS = (
    Fault(name="ENOSPC", what=_number("ENOSPC"), calls=GROWING),
    Fault(name="full", what=_number("ENOSPC"), calls=GROWING, later=GROWING),
    Fault(name="EDQUOT", what=_number("EDQUOT"), calls=GROWING),
    Fault(name="EIO", what=_number("EIO"), calls=tuple(dict.fromkeys(READING + WRITING))),
    Fault(name="EROFS", what=_number("EROFS"), calls=WRITING, later=WRITING),
    Fault(name="EINTR", what=_number("EINTR"), calls=SLOW),
    Fault(name="EMFILE", what=_number("EMFILE"), calls=TAKING),
    Fault(name="short", what="short", calls=TRANSFERS),
    Fault(name="fsync", what=_number("EIO"), calls=("fsync",), later=("fsync",)),
    Fault(name="rename", what=_number("EIO"), calls=("renameat",), later=("renameat",)),
    Fault(name="clock+", what=f"clock{_YEARS}", calls=("clock", "fsync", "renameat", "poll")),
    Fault(name="clock-", what=f"clock-{_YEARS}", calls=("clock", "fsync", "renameat", "poll")),
)
"""full: a disk that stays full; EROFS: a file system that is read-only from then on; EMFILE: no
descriptor, process or memory; fsync, rename: all of them fail."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """`words` to the tool on a copy of the device `on`.

    `currents` may be current after it; `done` is, unless None, if it says that it succeeded.
    """

    name: str
    on: Rig
    words: tuple[str, ...]
    done: str | None
    currents: frozenset[str | None]
    stdin: Path | None = None
    repeats: bool = False
    """It goes on until it succeeds, as long as that takes."""
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Point:
    command: Command
    fault: Fault
    call: str
    number: int

    def __str__(self) -> str:
        return f"{self.command.name}: {self.fault.name} at {self.call} {self.number}"


class DamagedError(AssertionError):
    """What must never be."""


@dataclass(frozen=True, kw_only=True)
class Lab:
    """The commands, and what goes on a device after a fault to show that all is well."""

    home: Path
    tool: Path
    signers: Path
    after: Bundle
    commands: tuple[Command, ...]


class _Recording:
    """A stream that keeps what is written."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data
        self._stream.write(data)

    def read_line(self, timeout_s: float | None = None, *, begun: bool = False) -> bytes:
        return self._stream.read_line(timeout_s)

    def finish(self) -> RemoteResult:
        return self._stream.finish()

    def close(self) -> None:
        self._stream.close()


def _record(rig: Rig, bundle: Bundle, path: Path, *, plan: bool = False) -> Path:
    """What a deploy of `bundle` to `rig` sends, in the file `path`."""
    stream = _Recording(LocalDevice(rig.root.parent).open(rig.command("receive")))
    exchange = Exchange(stream, "device", step=lambda _: None)
    request = InstallRequest(
        manifest=bundle.file(MANIFEST_NAME).read_bytes(),
        signature=(bundle.path / SIGNATURE).read_bytes(),
        signers=b"", by="tester", session="0" * 16, keep=3, wait_s=5, silence_s=30, plan=plan,
    )  # fmt: skip
    state = exchange.ask(request)
    if not plan:
        files = {entry.sha256: bundle.file(name) for name, entry in bundle.manifest.files.items()}
        exchange.send(state.needs, files)
        exchange.finish()
    stream.close()
    path.write_bytes(stream.written)
    return path


def make_lab(home: Path, tool: Path) -> Lab:
    """Devices in all states that a command may find, below `home`."""
    home.chmod(0o755)  # started by root, a service goes on as somebody else
    key = make_key(home)
    service = Service(args=("--serve",), restart="never")
    bundles = []
    for number, name in enumerate(("first", "second", "third"), 1):
        weights = random.Random(1).randbytes(1_100_000) + name.encode() * 1000
        bundle = fake_bundle(
            home / name, weights=weights, version=number, tool=FakeTool(path=tool), service=service
        )
        sign(bundle, key)
        bundles.append(bundle)
    first, second, third = bundles
    a, b, c = (bundle.manifest.release for bundle in bundles)
    signers = home / "signers"
    signers.write_text(f'release@here namespaces="edgepack-bundle" {public(key)}\n')

    def device(name: str, *installed: Bundle) -> Rig:
        rig = Rig(root=home / "devices" / name, tool=tool)
        rig.root.mkdir(parents=True)
        for bundle in installed:
            done = rig.call("install", str(bundle.path), "--signers", str(signers))
            assert done.returncode == 0, done.stdout
        return rig

    empty, one, two = device("empty"), device("one", first), device("two", first, second)
    three = device("three", first, second, third)
    cut = device("cut", first)
    cut.call("install", str(second.path), fault="kill:health.golden")
    assert (cut.root / "state/pending.json").exists()
    rotten = device("rotten", first, second)
    (rotten.root / "state/highest.json").write_bytes(b"")
    (rotten.root / "trust/board").unlink()
    (rotten.root / "releases" / b / PARAMS).unlink()
    archive = home / "second.tar.gz"
    subprocess.run(["tar", "-czf", archive, "-C", second.path.parent, second.path.name], check=True)
    sent = _record(one.copy_to(home / "recorded"), second, home / "sent")
    asked = _record(one.copy_to(home / "recorded"), second, home / "asked", plan=True)
    lock, log = str(home / "work/service.lock"), str(home / "work/service.log")
    served = ("run", "--supervise", "--log", log)

    def command(name: str, on: Rig, *words: str, done: str | None, **more: object) -> Command:
        current = b if on is rotten else on.current()
        currents = frozenset({current, done or current, *more.pop("or_", ())})  # type: ignore[misc,call-overload]
        return Command(name=name, on=on, words=words, done=done, currents=currents, **more)  # type: ignore[arg-type]

    install = ("install", str(second.path))
    commands = (
        command("first install", empty, "install", str(first.path), "--signers", str(signers),
                done=a),
        command("install", one, *install, done=b),
        command("install archive", one, "install", str(archive), done=b),
        command("receive", one, "receive", done=b, stdin=sent),
        command("plan", one, "receive", done=a, stdin=asked),
        command("activate", two, "activate", a, done=a),
        command("rollback", two, "rollback", done=a),
        command("prune", three, "prune", "--keep", "2", done=c),
        command("verify", two, "verify", done=b),
        command("status", two, "status", done=b),
        command("recover", cut, "recover", done=None, or_=(a,)),
        command("repair", rotten, "repair", done=None, or_=(a,)),
        command("trust show", two, "trust", "show", done=b),
        command("trust set", two, "trust", "set", str(signers), done=b),
        command("chunks", two, "chunks", str(second.file(PARAMS)), done=b),
        command("run", two, "run", "--", "--serve", done=b),
        command("run, test cut", cut, "run", "--", "--serve", done=None, or_=(a,)),
        command("service check", two, "run", "--supervise", "--check", done=b),
        command("service", two, *served, done=b),
        command("service, test cut", cut, *served, done=None, or_=(a,)),
        command("service, kept", two, *served, "--respawn", "--lock", lock, done=b, repeats=True),
        command("service status", two, "service", "status", "--lock", lock, done=b),
        command("service stop", two, "service", "stop", "--lock", lock, done=b),
    )  # fmt: skip
    (home / "work").mkdir()
    lab = Lab(home=home, tool=tool, signers=signers, after=third, commands=commands)
    for one_command in commands:
        counts = Counts(home / "counts")
        done = _run(lab, one_command, counts)
        assert done.returncode in (0, _NOT_RUNNING), (one_command.name, done.stdout, done.stderr)
        one_command.counts.update(counts.read()[1])
    return lab


def points(lab: Lab) -> list[Point]:
    """All of them: each call that a command makes, with each fault that it may meet."""
    return [
        Point(command, fault, call, number)
        for command in lab.commands
        for fault in FAULTS
        for call in fault.calls
        for number in _numbers(command.counts[call], call)
    ]


def _numbers(count: int, call: str) -> Iterable[int]:
    return range(1, 1 + (min(count, _FIRST) if call in POLLED else count))


_NOT_RUNNING = 3
_REFUSALS = (2, 5, 7, 8, 9, 75, _NOT_RUNNING)
_LIMIT_S = 60
# What a service waits for to end, ends.
_TIMES = 12


def _run(
    lab: Lab, command: Command, counts: Counts, inject: str = ""
) -> subprocess.CompletedProcess[str]:
    """The command on a copy of its device, with the fault."""
    rig = command.on.copy_to(lab.home / "trial")
    shutil.rmtree(lab.home / "work", ignore_errors=True)
    (lab.home / "work").mkdir()
    counts.clear()
    settings = {"calls": counts.path, "hurry": 50} | ({"inject": inject} if inject else {})
    if "--supervise" in command.words:
        settings["times"] = _TIMES
    words = [str(lab.tool), "--root", str(rig.root), "--json", *command.words]
    process = subprocess.Popen(
        words,
        env={**os.environ, **environment(**settings)},
        stdin=command.stdin.open("rb") if command.stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise DamagedError(f"no end after {_LIMIT_S} s") from None
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def inject(lab: Lab, point: Point) -> str:
    """ "survived", "refused", or "" if this time the call was not made. Raises DamagedError."""
    command, fault = point.command, point.fault
    counts = Counts(lab.home / "counts")
    spec = " ".join((point.call, str(point.number), fault.what, *fault.later))
    done = _run(lab, command, counts, spec)
    if counts.read()[0] == 0:
        return ""
    rig = Rig(root=lab.home / "trial", tool=lab.tool)
    outcome = _outcome(point, done)
    if command.repeats and outcome != "survived":
        raise DamagedError(f"gave up: {done.stdout}{done.stderr}")
    _check(lab, rig, command, succeeded=outcome == "survived")
    return outcome


def _outcome(point: Point, done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode == 0:
        return "survived"
    if done.returncode == _NOT_RUNNING and point.command.words[:2] == ("service", "status"):
        return "survived"
    said = done.stdout + done.stderr
    if done.returncode not in _REFUSALS:
        raise DamagedError(f"ended with {done.returncode}: {said}")
    # The repair's own: what is lost it says on stdout.
    heard = point.call != "send"  # the link is lost
    if heard and not any(word in said for word in ('"error"', '"lost"', '"problems"')):
        raise DamagedError(f"ended with {done.returncode} and said nothing of it: {said!r}")
    return "refused"


def _check(lab: Lab, rig: Rig, command: Command, *, succeeded: bool) -> None:
    """All that has to be right after any fault; mended by the tool where it says so."""
    try:
        _check_now(lab, rig, command, succeeded)
    except DamagedError:
        raise
    except (AssertionError, EdgepackError, OSError, ValueError, KeyError) as error:
        where = traceback.extract_tb(error.__traceback__)[-1].line
        raise DamagedError(f"{type(error).__name__}: {error} ({where})") from error


def _check_now(lab: Lab, rig: Rig, command: Command, succeeded: bool) -> None:
    list_file = rig.root / "trust/allowed_signers"
    if list_file.exists() or command.on.root.name != "empty":
        assert list_file.read_bytes() == lab.signers.read_bytes(), "the list of signers"
    if command.on.root.name != "rotten" or succeeded:
        current = rig.current()
        assert current in command.currents, f"{current} is current"
        if succeeded and command.done:
            assert current == command.done, f"{current} is current, in spite of success"
    if (rig.root / "state").exists():
        state = _call(rig, "status")
        if state["pending"]:
            _call(rig, "recover")
            state = _call(rig, "status")
            assert state["pending"] is None
            assert rig.current() in command.currents
        if state["problems"] or command.on.root.name == "rotten":
            _call(rig, "repair")
            assert _call(rig, "status")["problems"] == []
    _call(rig, "install", str(lab.after.path), "--signers", str(lab.signers))
    assert rig.current() == lab.after.manifest.release
    _call(rig, "verify")
    assert rig.left_over() == []
    before = rig.snapshot()
    again = _call(rig, "install", str(lab.after.path))
    assert again["outcome"] == "unchanged"
    assert {name for name, _ in rig.snapshot().items() ^ before.items()} <= {"trust/clock"}


def _call(rig: Rig, *words: str) -> dict[str, object]:
    done = rig.call(*words)
    assert done.returncode == 0, f"then {' '.join(words)}: {done.stdout}{done.stderr}"
    return dict(json.loads(done.stdout))


def table(results: Mapping[tuple[str, str], Counter[str]], commands: Iterable[Command]) -> str:
    """A line for each command: by fault "points/survived/refused", and what is damaged."""
    names = [fault.name for fault in FAULTS]
    width = max(len(command.name) for command in commands) + 2
    lines = [f"{'':{width}}" + "".join(f"{name:>12}" for name in names) + f"{'damaged':>9}"]
    total: Counter[str] = Counter()
    for command in commands:
        cells, damaged = "", 0
        for name in names:
            result = results.get((command.name, name), Counter())
            total.update(result)
            damaged += result["damaged"]
            shown = f"{sum(result.values())}/{result['survived']}/{result['refused']}"
            cells += f"{shown if result else '-':>12}"
        lines.append(f"{command.name:{width}}{cells}{damaged:9}")
    lines.append(
        f"{sum(total.values())} points: {total['survived']} survived, {total['refused']} refused, "
        f"{total['damaged']} damaged"
    )
    return "\n".join(lines)

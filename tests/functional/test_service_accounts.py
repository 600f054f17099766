"""The supervisor between real accounts: root, who starts it; the login, whose releases it runs,
and who may be hostile; and the account of the app."""

from __future__ import annotations

import contextlib
import grp
import hashlib
import json
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgepack.bundle.service import Service
from tests import fake_app
from tests.bundles import FakeTool
from tests.device_tool import host_tool
from tests.support import parent

LOGIN, APP = "daemon", "nobody"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes other accounts")


class Rig:
    """A device: root's own folder with the tool, the login's with a release."""

    def __init__(self, folder: Path) -> None:
        self.orders, self.root, self.log = folder / "orders", folder / "login/tiny", folder / "log"
        self.tool = folder / "edgepack-device"
        shutil.copy(host_tool(), self.tool)
        bundle = fake_app.fake_bundle(
            folder / "bundle",
            program=fake_app.SERVICE_PROGRAM,
            tool=FakeTool(path=self.tool),
            service=Service(args=("--orders", str(self.orders)), writable=(str(self.orders),)),
        )
        self.bundle = bundle.path
        for path in (self.orders, self.root.parent):
            path.mkdir(mode=0o755)
        shutil.chown(self.orders, APP)
        shutil.chown(self.root.parent, LOGIN)
        self.login(self.tool, "install", self.bundle, "--root", self.root, "--json")

    def login(self, *words: str | Path, check: bool = True) -> str:
        """What a command of the login's says."""
        done = subprocess.run(
            words, user=LOGIN, group=LOGIN, check=False, capture_output=True, text=True, cwd="/"
        )
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done.stdout

    @contextlib.contextmanager
    def service(self, *words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
        """`run --supervise` by root, until the block ends."""
        command = [self.tool, "run", "--supervise", "--root", self.root, "--user", APP]
        command += ["--owner", LOGIN, "--writable", self.orders, "--log", self.log]
        with subprocess.Popen([*command, *words], cwd="/") as process:
            try:
                yield process
            finally:
                process.terminate()
                process.wait(30)

    def refusal(self, *words: str | Path) -> tuple[int, str]:
        """How `run --supervise` by root ends that cannot go on."""
        command = [self.tool, "run", "--supervise", "--root", self.root, *words]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr

    def apps(self) -> list[int]:
        found = subprocess.run(
            ["pgrep", "-f", f"edgepack-run --orders {self.orders}"],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        return [int(pid) for pid in found.stdout.split()]

    def order(self, text: str) -> None:
        (self.orders / ".new").write_text(text)
        (self.orders / ".new").rename(self.orders / "order")

    def said(self) -> str:
        return "".join(
            path.read_text() for path in (Path(f"{self.log}.1"), self.log) if path.exists()
        )


def until(condition: Callable[[], object], what: str) -> None:
    for _ in range(300):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail(f"{what} did not come")


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    # Not pytest's own folder, which other accounts cannot enter.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Rig(Path(name))


def test_three_logs_of_talk_and_a_restart(rig: Rig) -> None:
    for _ in range(2):
        with rig.service() as process:
            until(lambda: "app: uid 65534" in rig.said(), "the app")
            rig.order("talk")
            until(lambda: rig.said().rstrip().endswith("app: said all"), "the end of its talk")
            assert process.poll() is None
        sizes = [path.stat().st_size for path in (rig.log, Path(f"{rig.log}.1"))]
        assert sum(sizes) > 10**6
        assert max(sizes) <= 1 << 20
        rig.log.write_text("")


def test_who_it_never_is(rig: Rig) -> None:
    code, said = rig.refusal("--user", "root")
    assert code == 2 and "must not run as root" in said
    code, said = rig.refusal("--user", LOGIN)
    assert code == 2 and f"must not run as {LOGIN}, who can change its releases" in said
    code, said = rig.refusal("--user", "nobody-of-that-name")
    assert code == 2 and "no account nobody-of-that-name" in said


def test_what_the_app_is_left_with(rig: Rig) -> None:
    """No privilege, none to be gained, nobody's groups, no descriptor of the supervisor's."""
    rig.log.write_text("")
    with rig.service():
        # Its first word, for a program that is still being loaded has its libraries open.
        until(lambda: "app: uid" in rig.said(), "the app")
        [pid] = rig.apps()
        app = Path(f"/proc/{pid}")
        status = dict(line.split(":", 1) for line in (app / "status").read_text().splitlines())
        uid, gid = (str(number) for number in pwd.getpwnam(APP)[2:4])
        assert status["Uid"].split() == [uid] * 4
        assert status["Gid"].split() == [gid] * 4
        assert status["Groups"].split() == []
        for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            assert int(status[kind], 16) == 0, kind
        assert status["NoNewPrivs"].strip() == "1"
        assert sorted(path.name for path in (app / "fd").iterdir()) == ["0", "1", "2"]
        assert (app / "fd/0").readlink() == Path("/dev/null")
        assert (app / "oom_score_adj").read_text() == "500\n"
        # Of mounts one above the other the last is what is seen.
        mounts = {
            fields[4]: fields[5].split(",")[0]
            for fields in map(str.split, (app / "mountinfo").read_text().splitlines())
            if not fields[4].startswith(("/proc", "/sys"))
        }
        assert mounts["/"] == "ro"
        assert {path for path, mode in mounts.items() if mode == "rw"} == {str(rig.orders)}


def test_it_is_kept_and_only_one(rig: Rig, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    command = [rig.tool, "service", "--lock", lock]

    def status() -> tuple[int, str]:
        done = subprocess.run([*command, "status"], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert status() == (3, "stopped\n")
    with rig.service("--respawn", "--lock", lock) as process:
        until(rig.apps, "the app")
        assert status() == (0, f"running\nprocess {process.pid}\n")
        assert rig.refusal("--user", APP, "--lock", lock) == (0, "")
        [app] = rig.apps()
        supervisor = parent(app)
        assert parent(supervisor) == process.pid
        # What root keeps is root's, all below it is not.
        owners = [Path(f"/proc/{pid}").stat().st_uid for pid in (process.pid, app)]
        assert owners == [0, 65534]
        os.kill(supervisor, 9)
        ended = (None, 1, supervisor)
        until(lambda: any(parent(pid) not in ended for pid in rig.apps()), "another")
        until(lambda: "the one before was killed by signal 9" in rig.said(), "the reason")
        os.kill(process.pid, 9)
        until(lambda: not rig.apps(), "the end of all")
    # A number in a file is nobody's death.
    with subprocess.Popen(["sleep", "100"]) as other:
        lock.write_text(f"{other.pid}\n")
        assert status() == (3, "stopped\n")
        subprocess.run([*command, "stop"], check=True)
        assert other.poll() is None
        other.kill()
    with rig.service("--respawn", "--lock", lock) as process:
        until(rig.apps, "the app")
        subprocess.run([*command, "stop"], check=True)
        assert process.wait(5) == 0
        assert not rig.apps()


def test_anybody_may_ask_whether_it_runs(rig: Rig) -> None:
    """Of a lock that only root can open the kernel says who holds it."""
    lock = rig.root.parents[1] / "lock"
    words = [rig.tool, "service", "status", "--lock", lock]
    assert rig.login(*words, check=False) == "stopped\n"
    with rig.service("--respawn", "--lock", lock) as process:
        until(rig.apps, "the app")
        assert lock.stat().st_mode & 0o777 == 0o600
        assert rig.login(*words) == f"running\nprocess {process.pid}\n"
        # As on a full disk: its number could not be written.
        lock.write_text("")
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        assert done.stdout == f"running\nprocess {process.pid}\n"
    assert rig.login(*words, check=False) == "stopped\n"


def test_a_lock_that_others_can_take_is_none(rig: Rig, tmp_path: Path) -> None:
    for name in ("open", "link", "pipe"):
        lock = tmp_path / name
        if name == "open":
            lock.touch(0o644)
        elif name == "link":
            lock.symlink_to("/etc/passwd")
        else:
            os.mkfifo(lock, 0o600)
        code, said = rig.refusal("--user", APP, "--lock", lock)
        assert code == 7 and str(lock) in said
    assert Path("/etc/passwd").read_text().startswith("root")


def test_a_hostile_login_never_becomes_root(rig: Rig) -> None:
    """Whatever lies in its folder: root reads none of it, and runs it as others only."""
    evil = rig.root.parents[1] / "evil"
    evil.mkdir()
    evil.chmod(0o777)
    script = f"#!/bin/sh\nid -u >>{evil}/$(id -u)\necho edgepack-device 9.9 protocol 1\n"
    saved = rig.root.parents[1] / "saved"
    shutil.copytree(rig.root, saved, symlinks=True)
    release = (rig.root / "current").readlink()
    own_tool, manifest = rig.root / "bin/edgepack-device", rig.root / release / "manifest.json"
    try:
        own_tool.unlink()
        own_tool.write_text(script)
        own_tool.chmod(0o755)
        app = rig.root / release / "bin/edgepack-run"
        app.unlink()
        app.write_text(script)
        app.chmod(0o755)
        claims = json.loads(manifest.read_text())
        digest = hashlib.sha256(script.encode()).hexdigest()
        claims["files"]["bin/edgepack-run"] |= {"size": len(script), "sha256": digest}
        claims["service"] |= {"user": "bin", "writable": ["/etc"]}
        manifest.chmod(0o644)
        manifest.write_text(json.dumps(claims))
        # A test that was interrupted: `recover` runs at the start, with what lies there.
        (rig.root / "state/pending.json").write_text(
            f'{{"release":"{release.name}","fallback":null,"older":null,"attempts":1,"by":"me"}}\n'
        )
        with rig.service("--respawn", "--writable", evil):
            until(lambda: not (rig.root / "state/pending.json").exists(), "a recover")
            if not (rig.root / "current").exists():  # its app passed no test
                (rig.root / "current").symlink_to(release)
            until((evil / "65534").exists, "its app")
        # Now a pipe, where whoever opens it waits; and a list of accounts of its own.
        manifest.unlink()
        os.mkfifo(manifest)
        (rig.root / "state/pending.json").unlink(missing_ok=True)
        with rig.service("--respawn") as process:
            until(lambda: rig.said().endswith(f"runs as {APP}\n"), "a supervisor")
            assert process.poll() is None
        # The whole folder is another: one of root's, with the login's files in it.
        rig.root.rename(saved.with_name("moved"))
        trap = saved.with_name("trap")
        shutil.copytree(saved.with_name("moved"), trap, symlinks=True, ignore=_no_pipes)
        trap.chmod(0o777)
        (trap / "state/pending.json").write_text("{}")
        rig.root.symlink_to(trap)
        code, said = rig.refusal("--user", APP, "--owner", "root", "--check")
        assert code == 7 and "others than root can change" in said
        with rig.service("--respawn"):
            until(lambda: "that failed: nothing is started" in rig.said(), "a refusal")
        assert {int(path.name) for path in evil.iterdir()} <= {1, 65534}
        assert not (evil / "0").exists()
    finally:
        if rig.root.is_symlink():
            rig.root.unlink()
        shutil.rmtree(rig.root, ignore_errors=True)
        shutil.move(saved, rig.root)
        subprocess.run(["chown", "-hR", f"{LOGIN}:", rig.root], check=True)
        rig.log.write_text("")


def _no_pipes(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_fifo()]


def test_a_recover_that_fails_is_tried_again(rig: Rig) -> None:
    """A disk that is full at boot is not for ever; here it is a folder that cannot be written."""
    release = (rig.root / "current").readlink().name
    pending = rig.root / "state/pending.json"
    pending.write_text(
        f'{{"release":"{release}","fallback":null,"older":null,"attempts":1,"by":"me"}}\n'
    )
    shutil.chown(pending, LOGIN)
    rig.login("chmod", "0555", pending.parent)
    rig.log.write_text("")
    with rig.service():
        until(lambda: "that failed: nothing is started" in rig.said(), "a failure")
        assert not rig.apps()
        rig.login("chmod", "0755", pending.parent)
        until(rig.apps, "the app")
    assert not pending.exists()


def test_what_it_may_not_read_is_said(rig: Rig) -> None:
    rig.login("chmod", "0700", rig.root.parent)
    try:
        for words in (("--check",), ()):
            code, said = rig.refusal("--user", APP, *words)
            assert code == 7
            assert "Permission denied" in said
            assert str(rig.root.parent) in said
    finally:
        rig.login("chmod", "0755", rig.root.parent)
    assert rig.refusal("--user", APP, "--check") == (0, "")
    code, said = rig.refusal("--user", APP, "--check", "--writable", rig.root)
    assert code == 7 and f"cannot write to {rig.root}" in said


def test_folders_are_for_other_accounts_whatever_the_umask(rig: Rig) -> None:
    other = rig.root.with_name("masked")
    command = f"umask 077; {rig.tool} install {rig.bundle} --root {other} --json"
    rig.login("sh", "-c", command)
    done = subprocess.run(
        [rig.tool, "run", "--supervise", "--check", "--root", other, "--user", APP],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def status_of(pid: int) -> dict[str, str]:
    """What the kernel says of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


@pytest.fixture
def device(rig: Rig) -> Iterator[Path]:
    """A device node as udev makes a camera's: root's and a group's, nobody else's."""
    node = rig.orders.parent / "video0"
    done = subprocess.run(["mknod", "-m", "660", node, "c", "1", "5"], check=False)
    if done.returncode != 0 or subprocess.run(["head", "-c1", node], check=False).returncode != 0:
        pytest.skip("no device node can be made and opened here")
    shutil.chown(node, "root", "video")
    yield node
    node.unlink()


def test_a_device_is_opened_by_its_group(rig: Rig, device: Path) -> None:
    """And that group is all that is added: /dev/zero's numbers, opened for real by the account."""
    check = [rig.tool, "run", "--supervise", "--check", "--root", rig.root, "--owner", LOGIN]
    check += ["--user", APP, "--writable", rig.orders, "--reads", device]
    without = subprocess.run(check, check=False, capture_output=True, text=True)
    assert without.returncode == 7
    assert f"cannot use {device}: Permission denied" in without.stderr
    subprocess.run([*check, "--group", "video"], check=True)
    none = subprocess.run(
        [*check, "--group", "no-such"], check=False, capture_output=True, text=True
    )
    assert (none.returncode, "there is no group no-such" in none.stderr) == (2, True)
    # What is not there yet may come.
    subprocess.run([*check, "--group", "video", "--reads", "/dev/video99"], check=True)
    for groups in ([], ["--group", "video"]):
        with rig.service(*groups):
            until(rig.apps, "the app")
            status = status_of(rig.apps()[0])
            video = [str(grp.getgrnam("video").gr_gid)] if groups else []
            assert status["Groups"].split() == video
            assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
        until(lambda: not rig.apps(), "its end")


def test_ports_of_roots_and_nothing_else_of_root(rig: Rig) -> None:
    with rig.service("--low-ports"):
        until(rig.apps, "the app")
        status = status_of(rig.apps()[0])
        bind = 1 << 10  # CAP_NET_BIND_SERVICE of linux/capability.h
        assert {int(status[key], 16) for key in ("CapEff", "CapPrm", "CapAmb")} == {bind}
        assert status["NoNewPrivs"] == "1"
        assert status["Uid"].split() == [str(pwd.getpwnam(APP).pw_uid)] * 4

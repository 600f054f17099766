"""The supervisor on a light ARM board: it is killed, hangs, eats memory, and gets new releases."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgepack import cli, virtual
from edgepack.base.errors import ConnectError, RemoteError
from edgepack.boards import get_board
from edgepack.bundle.bundle import Bundle, write_tarball
from edgepack.bundle.service import Service
from edgepack.deploy import remote_service
from edgepack.deploy.remote_service import NoServiceError
from edgepack.device.ssh import SshDevice
from edgepack.virtual import VirtualBoard
from edgepack.virtual.rootfs import rootfs
from tests import fake_app
from tests.boards import login, own_boards, tar_of_missing, unpacked
from tests.support import require_tool

ROOT = "/home/pi/edgepack/tiny"
ORDERS = "/home/pi/orders"
GO = "/home/pi/go"
LOG = "/var/log/edgepack-tiny/log"
FOLLOWERS = "pgrep -x tail; pgrep -x journalctl; true"
SERVICE = Service(
    args=("--orders", ORDERS), watchdog_s=2.0, memory_mb=200, writable=(ORDERS,)
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def cache() -> Iterator[None]:
    with own_boards():
        yield


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """Two releases that work, one that computes something else, and one whose test waits."""
    folder = tmp_path_factory.mktemp("bundles")
    apps = {"first": fake_app.FAKE_APP, "second": fake_app.FAKE_APP + "#\n"}
    apps["wrong"] = fake_app.FAKE_WRONG_APP
    apps["waiting"] = f"#!/bin/sh\nwhile [ ! -e {GO} ]; do sleep 0.1; done\n{fake_app.FAKE_APP}"
    program = fake_app.SERVICE_PROGRAM
    return {
        name: fake_app.fake_bundle(
            folder / name, board="rasp3b", app=app, program=program, service=SERVICE
        )
        for name, app in apps.items()
    }


class Watched:
    """The board, as root sees it."""

    def __init__(self, pi: SshDevice, root: SshDevice, log_command: str) -> None:
        self.pi, self.root, self.log_command = pi, root, log_command

    def install(self, bundle: Bundle, folder: Path) -> None:
        """As by hand, without a network: copy, unpack, ./install."""
        archive = folder / "bundle.tar.gz"
        write_tarball(bundle, archive)
        self.pi.put(archive, "bundle.tar.gz")
        self.pi.run(f"tar xzf bundle.tar.gz && {bundle.path.name}/install --root {ROOT}")

    def tool(self, command: str) -> str:
        return self.pi.run(f"{ROOT}/bin/edgepack-device --root {ROOT} {command}").stdout

    def app(self) -> tuple[int, str] | None:
        """The running app: its process and the release that it is of."""
        # The emulator's command line has the program twice; [-] keeps this shell's own out.
        text = self.root.run("pgrep -a -f '/edgepack-run [-]-orders'", check=False).stdout
        found = re.fullmatch(r"([0-9]+) .*/releases/([0-9a-f]{12})/bin/edgepack-run .*\n", text)
        return (int(found[1]), found[2]) if found else None

    def log(self) -> str:
        return self.root.run(self.log_command).stdout

    def until(self, condition: Callable[[], bool], what: str) -> None:
        for _ in range(600):
            if condition():
                return
            time.sleep(0.2)
        pytest.fail(f"{what} did not come; the log:\n{self.log()}")

    def until_another(self, before: tuple[int, str]) -> tuple[int, str]:
        self.until(lambda: (now := self.app()) is not None and now[0] != before[0], "another app")
        now = self.app()
        assert now is not None
        return now

    def order(self, text: str) -> None:
        self.pi.run(f"echo {text} >{ORDERS}/.new && mv {ORDERS}/.new {ORDERS}/order")


def install_service(on: Watched, bundle: Bundle, folder: Path, kind: str) -> None:
    """Install a first release by hand, then the service; it runs, and not as root."""
    with pytest.raises(RemoteError):
        on.tool("status")
    on.pi.run(f"mkdir -p {ORDERS}")
    on.install(bundle, folder)
    # Root follows no link of the login's; and what the app's account may not is named.
    on.pi.run(f"chmod 0700 .; ln -s /etc/passwd {ROOT}/.service.part")
    with pytest.raises(RemoteError, match="cannot enter /home/pi: Permission denied") as refusal:
        remote_service.install(on.root, ROOT)
    assert "chmod o+x /home/pi" in (refusal.value.hint or "")
    on.pi.run("chmod 0711 .")
    with pytest.raises(RemoteError, match=f"cannot write to {ORDERS}: Permission denied"):
        remote_service.install(on.root, ROOT)
    on.pi.run(f"chmod 0777 {ORDERS}")
    accounts = on.root.run("cat /etc/passwd").stdout
    done = remote_service.install(on.root, ROOT)
    assert on.root.run("cat /etc/passwd").stdout == accounts
    account = "edgepack-tiny"
    assert done == {"service": "edgepack-tiny", "kind": kind, "root": ROOT, "account": account}
    on.until(lambda: on.app() is not None, "the app")
    app = on.app()
    assert app is not None
    assert app[1] == bundle.manifest.release
    assert remote_service.status(on.root, ROOT)["running"]
    # The same again is nothing: it runs on.
    assert remote_service.install(on.root, ROOT) == done
    assert on.app() == app
    # Neither root nor the login, and to its own files it cannot write.
    uid = on.root.run(f"id -u {account}").stdout.strip()
    assert uid not in ("0", "1000")
    assert on.root.run(f"stat -c %U /proc/{app[0]}").stdout == f"{account}\n"
    on.until(lambda: f"app: uid {uid}" in on.log(), "a word of the app")
    assert f"app: uid {uid}, own folder: Read-only file system, orders: Success" in on.log()
    tool = on.root.run("echo /usr/local/lib/edgepack/*/edgepack-device").stdout.strip()
    assert on.root.run(f"stat -c '%U %a' {tool} $(dirname {tool})").stdout == (
        "root 755\nroot 755\n"
    )
    on.pi.run(f"touch {ROOT}/y && rm {ROOT}/y")


def exercise(on: Watched, bundles: dict[str, Bundle], folder: Path) -> None:
    """All that can happen to a service, one after the other."""
    app = on.app()
    assert app is not None
    on.root.run(f"kill -9 {app[0]}")
    app = on.until_another(app)
    assert "the app was killed by signal 9" in on.log()
    with remote_service.log_of(on.root, ROOT) as log:
        assert any("the app was killed by signal 9" in line for line in log.lines)
    # What follows it there ends when nobody listens here.
    with remote_service.log_of(on.root, ROOT, count=1, follow=True) as log:
        assert next(log.lines)
        assert on.root.run(FOLLOWERS).stdout
    on.until(lambda: not on.root.run(FOLLOWERS).stdout, "the end of it")

    on.order("exit")
    app = on.until_another(app)
    assert "the app ended with exit code 3" in on.log()

    on.order("hang")
    app = on.until_another(app)
    assert "killing the app: it gave no sign for 2 s" in on.log()

    on.order("hog")
    app = on.until_another(app)
    assert "MB of memory, 200 are allowed" in on.log()

    # A release that fails its test: the app does not notice.
    with pytest.raises(RemoteError):
        on.install(bundles["wrong"], folder)
    assert on.app() == app

    on.install(bundles["second"], folder)
    app = on.until_another(app)
    assert app[1] == bundles["second"].manifest.release
    on.tool("rollback")
    app = on.until_another(app)
    assert app[1] == bundles["first"].manifest.release
    state = json.loads(on.tool("--json status"))
    assert state["current"]["release"] == app[1]


def test_a_service_without_systemd(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    board = virtual.up(get_board("rasp3b"), name="supervised")
    pi, root = login(board, "pi"), login(board, "root")
    on = Watched(pi, root, f"cat {LOG}")
    try:
        install_service(on, bundles["first"], tmp_path, "init")
        exercise(on, bundles, tmp_path)

        # More than two logs hold, by an account that may not write to their folder.
        app = on.app()
        on.order("talk")
        on.until(lambda: "app: said all" in on.log(), "the end of its talk")
        assert on.app() == app
        sizes = [int(size) for size in root.run(f"stat -c %s {LOG} {LOG}.1").stdout.split()]
        assert 10**6 < sum(sizes) <= 2 << 20 and max(sizes) <= 1 << 20
        assert root.run(f"stat -c %U {LOG} {LOG}.1").stdout == "root\nroot\n"
        root.run("/etc/init.d/edgepack-tiny restart")
        on.until(lambda: on.app() not in (None, app), "the app")

        # The supervisor dies with all that it started, and is started again.
        app = on.until_another(app) if on.app() != app else app
        assert app is not None
        root.run(f"kill -9 $(ps -o ppid= -p {app[0]})")
        app = on.until_another(app)
        # What keeps it dies as well, and its number is somebody else's.
        root.run("kill -9 $(cat /run/edgepack-tiny.lock)")
        on.until(lambda: on.app() is None, "the end of the app")
        root.run("sleep 1000 </dev/null >/dev/null 2>&1 & echo $! >/run/edgepack-tiny.lock")
        assert not remote_service.status(root, ROOT)["running"]
        root.run("/etc/init.d/edgepack-tiny stop && pgrep -x sleep")
        root.run("/etc/init.d/edgepack-tiny start")
        on.until(lambda: on.app() is not None, "the app")

        remote_service.remove(root, ROOT)
        on.until(lambda: on.app() is None, "the end of the app")
        assert not remote_service.status(root, ROOT)["running"]
        assert "edgepack" not in root.run("ls /etc/init.d").stdout
    finally:
        pi.close()
        root.close()
        virtual.down("supervised")


def test_what_a_service_does_first(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    """It starts nothing that is damaged, and nothing whose test a power cut has ended."""
    board = virtual.up(get_board("rasp3b"), name="careful")
    pi, root = login(board, "pi"), login(board, "root")
    on = Watched(pi, root, f"cat {LOG}")
    script = "/etc/init.d/edgepack-tiny"
    try:
        install_service(on, bundles["first"], tmp_path, "init")
        root.run(f"{script} stop")
        manifest = f"{ROOT}/current/manifest.json"
        pi.run(f"cp {manifest} good && chmod u+w {manifest} && echo damaged >{manifest}")
        root.run(f"{script} start")
        on.until(lambda: "manifest.json: not JSON" in on.log(), "a refusal")
        assert on.app() is None
        pi.run(f"cat good >{manifest}")
        on.until(lambda: on.app() is not None, "the app")

        root.run(f"{script} stop")
        params = f"{ROOT}/current/model/params.bin"
        pi.run(f"chmod u+w {params} && printf damaged | dd of={params} conv=notrunc status=none")
        root.run(f"{script} start")
        on.until(lambda: "model/params.bin is not what was installed" in on.log(), "a refusal")
        assert on.app() is None
        on.install(bundles["first"], tmp_path)  # which repairs it
        on.until(lambda: on.app() is not None, "the app")

        root.run(f"{script} stop")
        waiting = bundles["waiting"]
        write_tarball(waiting, tmp_path / "waiting.tar.gz")
        pi.put(tmp_path / "waiting.tar.gz", "waiting.tar.gz")
        pi.run(
            f"tar xzf waiting.tar.gz && "
            f"setsid {waiting.path.name}/install --root {ROOT} </dev/null >/dev/null 2>&1 &"
        )
        pending = f"[ -e {ROOT}/state/pending.json ]"
        on.until(lambda: pi.run(pending, check=False).returncode == 0, "the test")
        root.run("pkill -9 -u pi -f '[e]dgepack-(run|device)'")
        assert pi.run(pending, check=False).returncode == 0
        pi.run(f"touch {GO}")
        lines = on.log().count("\n")
        root.run(f"{script} start")
        on.until(lambda: on.app() is not None, "the app")
        said = on.log().splitlines()[lines:]
        assert "ending the test that was interrupted" in said[0]
        assert any(f"starting release {waiting.manifest.release}" in line for line in said[1:])
        state = json.loads(on.tool("--json status"))
        assert (state["current"]["release"], state["pending"]) == (waiting.manifest.release, None)
        assert state["current"]["health"]["outcome"] == "ok"
    finally:
        pi.close()
        root.close()
        virtual.down("careful")


def test_a_deploy_that_starts_the_service(
    bundles: dict[str, Bundle], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One command line from a bundle to an app that runs, and the same one for the next release."""
    board = virtual.up(get_board("rasp3b"), name="deployed")
    root = login(board, "root")
    on = Watched(root, root, f"cat {LOG}")
    known = tmp_path / "known_hosts"
    known.write_text(board.host_key + "\n")
    where = ("--device", f"root@{board.host}:{board.port}", "--root", "/srv/tiny")
    access = ("--identity", str(board.key_file), "--known-hosts", str(known))

    def deploy(bundle: Bundle) -> tuple[str, dict[str, str]]:
        words = ("deploy", "--bundle", str(bundle.path), "--service", "--json", "-q")
        assert cli.main([*words, *where, *access]) == 0
        answer = json.loads(capsys.readouterr().out)
        return answer["outcome"], answer["service"]

    try:
        plain = fake_app.fake_bundle(tmp_path / "plain", board="rasp3b")
        words = ["deploy", "--bundle", str(plain.path), "--service", *where, *access]
        assert cli.main(words) == NoServiceError.exit_code
        assert "bundle tiny has no [service] table" in capsys.readouterr().err
        assert root.run("[ ! -e /srv/tiny ]", check=False).returncode == 0

        root.run(f"mkdir -p {ORDERS} && chmod 0777 {ORDERS} && chmod 0711 /home/pi")
        started = {"service": "edgepack-tiny", "kind": "init", "root": "/srv/tiny"}
        started["account"] = "edgepack-tiny"
        assert deploy(bundles["first"]) == ("deployed", started)
        on.until(lambda: on.app() is not None, "the app")
        app = on.app()
        assert app is not None
        assert app[1] == bundles["first"].manifest.release
        # The folder is root's, the app is not.
        assert root.run(f"stat -c %U /proc/{app[0]}").stdout == "edgepack-tiny\n"
        supervisor = root.run("cat /run/edgepack-tiny.lock").stdout

        assert deploy(bundles["first"]) == ("unchanged", started)
        assert on.app() == app

        assert deploy(bundles["second"]) == ("deployed", started)
        assert on.until_another(app)[1] == bundles["second"].manifest.release
        assert root.run("cat /run/edgepack-tiny.lock").stdout == supervisor
    finally:
        root.close()
        virtual.down("deployed")


# Debian's systemd becomes process 1 of a container on the board, with cgroups of its own, and
# the board's logins go there from now on. (The board's own process 1 is a small script.)
SYSTEMD = """
tar xf /root/systemd.tar -C / && ldconfig
echo 'messagebus:x:101:102::/nonexistent:/usr/sbin/nologin' >>/etc/passwd
echo 'messagebus:x:102:' >>/etc/group
echo 0123456789abcdef0123456789abcdef >/etc/machine-id
mkdir -p /etc/systemd/system
cat >/etc/systemd/system/box.target <<'END'
[Unit]
Requires=basic.target dbus.socket sshd.service
END
cat >/etc/systemd/system/sshd.service <<'END'
[Service]
RuntimeDirectory=sshd
ExecStart=/usr/sbin/sshd -D
END
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo +memory +pids >/sys/fs/cgroup/cgroup.subtree_control
mkdir -p /sys/fs/cgroup/box
kill $(pgrep -o -x sshd)
setsid sh -c 'echo $$ >/sys/fs/cgroup/box/cgroup.procs
exec unshare --pid --mount --cgroup --fork --mount-proc --propagation private sh -c "
umount /sys/fs/cgroup; mount -t cgroup2 cgroup2 /sys/fs/cgroup; mount -t tmpfs tmpfs /run
exec env container=box /lib/systemd/systemd --system --unit=box.target"' \
</dev/null >/root/systemd.log 2>&1 &
"""


@pytest.mark.slow
def test_a_service_of_systemd(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    """Debian's armhf systemd on an ARM kernel: its sandbox, its cgroup, its restart."""
    require_tool("qemu-system-aarch64")
    whole = unpacked("systemd", ["systemd", "dbus"], suite="bullseye", arch="armhf")
    archive = tmp_path / "systemd.tar"
    tar_of_missing(whole, rootfs("bullseye", "armhf"), archive)
    board = virtual.up(get_board("rasp3b"), name="systemd", kind="system", disk_mb=512)
    root = login(board, "root")
    try:
        root.put(archive, "/root/systemd.tar")
        root.run(SYSTEMD)
        root.close()
        root = until_login(board, "root")
        pi = login(board, "pi")
        on = Watched(pi, root, "journalctl -q -o cat -u edgepack-tiny")
        install_service(on, bundles["first"], tmp_path, "systemd")

        def shown(name: str) -> str:
            return root.run(f"systemctl show --value -p {name} edgepack-tiny").stdout.strip()

        assert (shown("User"), shown("MemoryMax")) == ("edgepack-tiny", str(208 * 10**6))
        assert (shown("ProtectSystem"), shown("NoNewPrivileges")) == ("strict", "yes")
        exercise(on, bundles, tmp_path)

        # The supervisor itself dies, then hangs: systemd starts it again.
        before = shown("MainPID")
        root.run(f"kill -9 {before}")
        on.until(lambda: shown("MainPID") not in ("0", before), "another supervisor")
        on.until(lambda: on.app() is not None, "the app")
        assert int(shown("NRestarts")) == 1
        hung = shown("MainPID")
        root.run(f"kill -STOP {hung}")
        on.until(lambda: shown("MainPID") not in ("0", hung), "another supervisor")
        on.until(lambda: on.app() is not None, "the app")

        remote_service.remove(root, ROOT)
        on.until(lambda: on.app() is None, "the end of the app")
        assert not remote_service.status(root, ROOT)["running"]
        pi.close()
    finally:
        root.close()
        virtual.down("systemd")


def until_login(board: VirtualBoard, user: str) -> SshDevice:
    for _ in range(120):
        with contextlib.suppress(ConnectError):
            return login(board, user)
        time.sleep(1)
    pytest.fail("systemd started no sshd")

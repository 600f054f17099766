"""The board, its service, and what has to be so whatever happened."""

from __future__ import annotations

import contextlib
import json
import random
import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edgepack import virtual
from edgepack.base.errors import ConnectError
from edgepack.boards import get_board
from edgepack.deploy import remote_service, remote_tool
from edgepack.deploy.deploy import DeployOptions, deploy_bundle
from edgepack.device import Address, SshOptions
from edgepack.device.ssh import SshDevice
from edgepack.virtual import VirtualBoard
from tests.boards import login, own_boards
from tests.integration.cutting_proxy import CuttingProxy
from tests.soak.releases import COLORS, PHOTOS, RESULTS, Releases, photo

BOARD = "rasp3b"
ROOT = "/home/pi/edgepack/tiny"
SERVICE = "edgepack-tiny"
LOG = f"/var/log/{SERVICE}/log"
KINDS = ("systemd", "busybox", "light")
"""A full-system board under systemd or busybox's init; a light one, whose process 1 is sshd's."""

_LIMIT_S = 300
# 40 photos that each leave something would take more; a page or two are the allocator's affair.
LEAK_KB = 16
_DISK_MB = {"systemd": 512, "busybox": 512, "light": 64}
# Two processes of ours whose command lines the emulator of a light board has twice.
_APP = "pgrep -a -f '/edgepack-run [-]-watch'"
# What a tree has that no reboot, deploy or repair may leave: see docs/concepts.
_LEFT_OVER = ("*.new", "*.old", "*.part", "*.orig", "core")
# Logs, what the board itself writes, and the releases, which are counted by themselves.
_OWN_FILES = (
    "/var/log", "/var/lib/systemd", "/var/lib/dbus", "/etc/board-init", ROOT, PHOTOS, "/proc",
    "/sys", "/dev", "/run",
)  # fmt: skip


class SoakError(AssertionError):
    """The board did not come through."""


class Life:
    """A service that runs on a board of `kind`; `newest` is the version that has to."""

    def __init__(self, kind: str, releases: Releases, folder: Path, rng: random.Random) -> None:
        self.kind, self.releases, self.rng = kind, releases, rng
        self.newest = 2
        self._folder = folder
        self._photos = 0
        self._boot()
        self.root.run(f"mkdir -p {PHOTOS} && chmod 1777 {PHOTOS} && chmod 0711 /home/pi")
        for version in (1, 2):
            self.deploy(version)
        remote_service.install(self.root, ROOT)
        self.settle()
        self._prune()
        self.before = self._account()

    # --- The board ---

    def _boot(self) -> None:
        self.board: VirtualBoard = virtual.up(
            get_board(BOARD),
            name=f"soak-{self.kind}",
            kind="light" if self.kind == "light" else "system",
            init="script" if self.kind == "light" else self.kind,
            disk_mb=_DISK_MB[self.kind],
        )
        self.pi, self.root = login(self.board, "pi"), login(self.board, "root")

    def close(self) -> None:
        """The connections; the board goes on."""
        self.pi.close()
        self.root.close()

    def cut_power(self) -> None:
        """At once, and the board boots again."""
        self.end_power()
        self.boot_again()

    def end_power(self) -> None:
        """At once; see `boot_again`."""
        virtual.cut_power(self.board)

    def boot_again(self) -> None:
        """From the disk as it is."""
        self.close()
        self._boot()
        # Photos that were gone come back with a disk that was not flushed.
        self.root.run(f"rm -f {PHOTOS}/*-photo.png {PHOTOS}/.*-photo.png")

    def reboot(self) -> None:
        """In order."""
        # The connection may well end before the command does.
        command = "systemctl reboot" if self.kind == "systemd" else "busybox reboot"
        with contextlib.suppress(ConnectError):
            self.root.run(command, check=False)
        self.wait_for(lambda: not self._is_up(), "the end of the board")
        self.boot_again()

    def _is_up(self) -> bool:
        return any(board.pid == self.board.pid for board in virtual.list_running())

    def service(self, action: str) -> None:
        """What an operator says to whatever starts services there."""
        systemd = f"systemctl {action} {SERVICE}"
        self.root.run(systemd if self.kind == "systemd" else f"/etc/init.d/{SERVICE} {action}")

    # --- Releases ---

    def deploy(self, version: int, *, device: SshDevice | None = None, **options: Any) -> None:
        """Raises what `deploy_bundle` raises."""
        deploy_bundle(
            self.releases.version(version),
            device or self.pi,
            ROOT,
            options=DeployOptions(signers=self.releases.signers, **options),
        )

    def next(self) -> int:
        """A version that there has not been."""
        self.newest += 1
        return self.newest

    def tool(self, *words: str) -> dict[str, Any]:
        """An answer of the device tool there, as the owner of the releases calls it."""
        return remote_tool.call(self.pi, ROOT, *words)

    def _prune(self) -> None:
        self.tool("prune", "--keep", "1")

    @contextlib.contextmanager
    def bad_link(self, cut_after: int) -> Iterator[SshDevice]:
        """A connection that is lost after so many bytes, and each after it."""
        with CuttingProxy(self.board.port, cut_after=cut_after) as proxy:
            host_key = self.board.host_key.replace(f":{self.board.port} ", f":{proxy.port} ", 1)
            options = SshOptions(
                use_config=False, identity=self.board.key_file, identities_only=True,
                host_keys=(host_key,),
            )  # fmt: skip
            address = Address(host=self.board.host, user="pi", port=proxy.port)
            device = SshDevice(address, options=options)
            try:
                yield device
            finally:
                device.close()

    # --- The service ---

    def app(self) -> tuple[int, str] | None:
        """The app that runs: its process and its release."""
        text = self.root.run(_APP, check=False).stdout
        found = re.fullmatch(r"([0-9]+) .*/releases/([0-9a-f]{12})/bin/edgepack-run .*\n", text)
        return (int(found[1]), found[2]) if found else None

    def current(self) -> str:
        """The release that is current."""
        return self.pi.run(f"readlink {ROOT}/current").stdout.strip().rpartition("/")[2]

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Raises SoakError if it never comes; how long it takes is not what is tested."""
        end = time.monotonic() + _LIMIT_S
        while not condition():
            if time.monotonic() > end:
                raise SoakError(f"{what} did not come; the log:\n{self.log()}")
            time.sleep(0.3)

    def until_another(self, before: tuple[int, str] | None) -> None:
        """Until an app runs that is not `before`."""
        self.wait_for(lambda: self.app() not in (None, before), "another app")

    def log(self) -> str:
        """The last of it."""
        if self.kind == "systemd":
            return self.root.run(f"journalctl -q -o cat -u {SERVICE} | tail -30").stdout
        return self.root.run(f"tail -30 {LOG}", check=False).stdout

    def settle(self) -> None:
        """The service runs what is current, and names the colour of a photo."""
        current = self.current()
        self.wait_for(lambda: (self.app() or (0, ""))[1] == current, f"the app of {current}")
        color = self.rng.randrange(len(COLORS))
        answer = self.show(photo(self._folder / "photo.png", color))
        if answer.get("top", [{}])[0].get("label") != COLORS[color]:
            raise SoakError(f"a {COLORS[color]} photo: {answer}")

    def show(self, file: Path, name: str | None = None) -> dict[str, Any]:
        """The line that the service writes for a copy of `file`, which then goes."""
        self._photos += 1
        name = name or f"{self._photos}-{file.name}"
        self.pi.put(file, f"{PHOTOS}/.{name}")
        self.pi.run(f"mv {PHOTOS}/.{name} {PHOTOS}/{name}")
        answer = self.answer(name)
        self.pi.run(f"rm {PHOTOS}/{name}")
        return answer

    def answer(self, name: str) -> dict[str, Any]:
        """The newest line about the photo `name`, when it is there.

        Among them a power cut may leave zero bytes.
        """
        wanted = shlex.quote(f'"image":"{name}"')
        script = (
            f"for i in $(seq {_LIMIT_S}); do "
            f"grep -ahsF {wanted} {RESULTS}.1 {RESULTS} | tail -1 | grep . && exit; sleep 1; done"
        )
        line = self.pi.run(script).stdout
        if not line:
            raise SoakError(f"no line about {name} came; the log:\n{self.log()}")
        return dict(json.loads(line))

    # --- At the end ---

    def end(self) -> list[str]:
        """What was checked, a line each. Raises SoakError for what is not as it has to be."""
        for _ in range(2):
            self.deploy(self.next())
        self.settle()
        wanted = self.releases.version(self.newest).manifest.release
        app = self.app()
        wrong = [] if app is not None and app[1] == wanted else [f"{app} runs, not {wanted}"]
        status = self.tool("status")
        wrong += [f"status: {problem}" for problem in status["problems"]]
        self.tool("verify")
        self._prune()
        after = self._account()
        wrong += [
            f"{key}: {self.before[key]} before, {after[key]} now"
            for key in after
            if after[key] != self.before[key]
        ]
        names = " -o ".join(f"-name '{pattern}'" for pattern in _LEFT_OVER)
        left = self.root.run(f"cd {ROOT} && find . {names}; ls -A incoming").stdout.split()
        wrong += [f"left over: {name}" for name in left]
        grown = self._grown() if self.kind != "light" else ""
        wrong += [grown] if grown else []
        if wrong:
            wrong.append(self.root.run(f"cd {ROOT} && ls -o . bin incoming releases state").stdout)
            raise SoakError("\n".join(wrong))
        return [
            f"the service runs version {self.newest}, the newest, and answers",
            "status names no problem; every file of the release has its hash",
            "nothing is left of what was interrupted",
            *(f"{key}: as at the beginning ({value})" for key, value in after.items()),
            *([f"40 photos more take less than {LEAK_KB} KB"] if self.kind != "light" else []),
        ]

    def _account(self) -> dict[str, str]:
        """What must not grow, whatever happened."""
        app = self.app()
        assert app is not None
        parent = self.root.run(f"ps -o ppid= -p {app[0]}").stdout.strip()
        skipped = " -o ".join(f"-path {path}" for path in _OWN_FILES)

        def count(command: str) -> str:
            return self.root.run(f"{command} | wc -l").stdout.strip()

        return {
            "processes of ours": count("pgrep -f '[e]dgepack-(run|device) '"),
            "descriptors of the app": count(f"ls /proc/{app[0]}/fd"),
            "descriptors of the supervisor": count(f"ls /proc/{parent}/fd"),
            "threads of the app": count(f"ls /proc/{app[0]}/task"),
            "files of the releases": count(f"find {ROOT}"),
            "64 KB of them": self.root.run(f"du -s --block-size=64K {ROOT}").stdout.split()[0],
            "files elsewhere": count(rf"find / -xdev \( {skipped} \) -prune -o -print"),
            "files of photos": count(f"ls -A {PHOTOS}"),
            "mounts": count("cat /proc/mounts"),
        }

    def _grown(self) -> str:
        """What is wrong with the memory of an app that has seen photos, and then more of them."""
        app = self.app()
        assert app is not None

        def anonymous_kb() -> int:
            return int(self.root.run(f"grep RssAnon /proc/{app[0]}/status").stdout.split()[1])

        one = photo(self._folder / "photo.png", 0)
        for _ in range(5):
            self.show(one)
        before = anonymous_kb()
        script = f"cd {PHOTOS}; for i in $(seq 40); do cp last .$i.png; mv .$i.png more$i.png; done"
        self.pi.put(one, f"{PHOTOS}/last")
        self.pi.run(script)
        self.answer("more40.png")
        self.pi.run(f"rm {PHOTOS}/last {PHOTOS}/more*.png")
        after = anonymous_kb()
        if after - before < LEAK_KB:
            return ""
        return f"the app took {before} KB, after 40 photos more {after}"


@contextlib.contextmanager
def in_the_field(kind: str, rng: random.Random, folder: Path) -> Iterator[Life]:
    """A service that runs on a new board, which goes in the end."""
    with own_boards():
        life = Life(kind, Releases(folder, BOARD), folder, rng)
        try:
            yield life
        finally:
            life.close()
            virtual.down(life.board.name)

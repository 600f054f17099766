"""Every command of the guides as a service of real process 1s: systemd's and busybox's init.

On full-system boards with a camera; test_guides_as_services.py has the short form.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from edgepack.base.errors import EdgepackError
from edgepack.bundle.bundle import open_bundle
from edgepack.bundle.service_access import options_of
from edgepack.deploy import remote_service
from edgepack.deploy.deploy import deploy_bundle
from edgepack.device.ssh import SshDevice
from tests.boards import login
from tests.cross import gcc
from tests.functional.test_camera import OnDuty, camera_board
from tests.functional.test_guides_as_services import as_services, frame_of, picture
from tests.means import means_app

pytestmark = pytest.mark.slow

ROOT = "/home/pi/edgepack/means"
SERVICE = "edgepack-means"
TOKEN = "0123456789abcdef" * 2
ACCOUNT = "camera"
# A port or "unix:PATH", to which the standard input goes and whose answer is printed.
ASK = r"""
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
int main(int count, char **words) {
  char text[65536];
  ssize_t size;
  struct sockaddr_un path = {.sun_family = AF_UNIX};
  struct sockaddr_in port = {.sin_family = AF_INET};
  if (count != 2) return 2;
  const int is_path = strncmp(words[1], "unix:", 5) == 0;
  if (is_path) strncpy(path.sun_path, words[1] + 5, sizeof path.sun_path - 1);
  port.sin_port = htons((unsigned short)atoi(words[1]));
  port.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(is_path ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
  const struct sockaddr *to = is_path ? (struct sockaddr *)&path : (struct sockaddr *)&port;
  if (connect(fd, to, is_path ? sizeof path : sizeof port) != 0) return 1;
  while ((size = read(0, text, sizeof text)) > 0) write(fd, text, size);
  while ((size = read(fd, text, sizeof text)) > 0) write(1, text, size);
  return 0;
}
"""


class Guide(OnDuty):
    """A board on which one service after the other is installed."""

    def __init__(self, init: str, root: SshDevice, pi: SshDevice, folder: Path) -> None:
        super().__init__(init, root)
        self._pi, self._folder = pi, folder
        self._since = self._bundles = 0
        for name, data in (("jpg", picture(".jpg")), ("png", picture(".png"))):
            (folder / name).write_bytes(data)
            root.put(folder / name, f"/root/{name}")
        root.put(gcc(folder, ASK, "-static"), "/root/ask")
        root.run(
            "chmod +x /root/ask; chmod 0711 /home/pi\n"
            f"echo {ACCOUNT}:x:990: >>/etc/group\n"
            f"echo {ACCOUNT}:x:990:990::/nonexistent:/bin/false >>/etc/passwd\n"
            "mkdir -p /photos/2026-01 /var/lib/photos /var/lib/mug /run/camera /etc/edgepack\n"
            "chmod 1777 /var/lib/photos /var/lib/mug; mkfifo -m 644 /run/camera/frames\n"
            "cp /root/jpg /photos/a.jpg; cp /root/jpg /photos/2026-01/b.jpg\n"
            f"echo {TOKEN} >/etc/edgepack/token; chmod 600 /etc/edgepack/token\n"
            f"chown {ACCOUNT} /etc/edgepack/token"
        )

    def log(self) -> str:
        """Of the service that was installed last."""
        if self.init == "systemd":
            since = f"journalctl -q -o cat --since @{self._since} -u {SERVICE}"
            return self.root.run(since).stdout
        return self.root.run(f"cat /var/log/{SERVICE}/log", check=False).stdout

    @contextlib.contextmanager
    def service(self, args: tuple[str, ...]) -> Iterator[None]:
        self._bundles += 1
        folder = self._folder / str(self._bundles)
        folder.mkdir()
        table = f"[service]\nargs = {json.dumps(args)}\n"
        if "--token-file" in args:
            table += f'user = "{ACCOUNT}"\n'
        bundle = open_bundle(means_app(folder, "rasp3b", table).parents[1])
        deploy_bundle(bundle, self._pi, ROOT)
        self._since = int(self.root.run("date +%s").stdout)
        try:
            done = remote_service.install(self.root, ROOT)
            assert done["kind"] == ("systemd" if self.init == "systemd" else "init")
            yield
            assert remote_service.status(self.root, ROOT)["running"], self.log()
        finally:
            remote_service.remove(self.root, ROOT)
            self.root.run(f"rm -rf /var/log/{SERVICE}")

    def mounts(self, folder: str) -> None:
        """A drive that systemd knows of, and nobody has asked for yet."""
        unit = f"{folder.strip('/').replace('/', '-')}.mount"
        text = f"[Mount]\nWhat=none\nWhere={folder}\nType=tmpfs\nOptions=mode=1777\n"
        path = f"/etc/systemd/system/{unit}"
        self.root.run(f"printf %s {shlex.quote(text)} >{path}; systemctl daemon-reload")
        assert "tmpfs" not in self.mounted(folder)

    def mounted(self, folder: str) -> str:
        return self.root.run(f"findmnt -n -o FSTYPE {folder}", check=False).stdout

    def ask(self, where: str, host: str) -> str:
        """The first line of the answer to whether the server is ready."""
        head = (
            f"GET /v2/health/ready HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n"
            f"Authorization: Bearer {TOKEN}\\r\\n\\r\\n"
        )
        to = where if where.startswith("unix:") else where.rpartition(":")[2]
        command = f"printf {shlex.quote(head)} | timeout 20 /root/ask {shlex.quote(to)}"
        return self.root.run(command, check=False).stdout.partition("\r\n")[0]

    def works(self, args: tuple[str, ...]) -> None:
        """It does what it is for, and not as root."""
        options = dict(options_of(args))
        if "--serve" in options:
            where, host = options["--serve"] or "", options.get("--host") or "localhost"
            self.until(lambda: self.ask(where, host) == "HTTP/1.1 200 OK", "an answer")
        elif "--watch" in options:
            folder, numbers = options["--watch"], iter(range(10**6))
            results = options.get("--results")

            def comes() -> bool:
                name = f"new{next(numbers)}.png"
                self.root.run(f"cp /root/png {folder}/.x && mv {folder}/.x {folder}/{name}")
                said = (
                    self.root.run(f"cat {results}", check=False).stdout if results else self.log()
                )
                return '"means"' in said

            self.until(comes, "a result")
        else:
            self.until(lambda: self._gives(args, options), "a result")
        if "--images" not in options:  # that one ends, and begins anew
            app = self.root.run("pgrep -f '/edgepack-run [-]-'").stdout.split()
            owners = {self.root.run(f"stat -c %U /proc/{pid}").stdout.strip() for pid in app}
            assert app
            assert owners.isdisjoint({"root", "pi"})

    def _gives(self, args: tuple[str, ...], options: dict[str, str | None]) -> bool:
        if pipe := options.get("--from"):
            (self._folder / "frame").write_bytes(frame_of(args))
            self.root.put(self._folder / "frame", "/root/frame")
            self.root.run(f"timeout 20 sh -c 'cat /root/frame >{pipe}'", check=False)
        return '"means"' in self.log()


@pytest.mark.parametrize("init", ["systemd", "busybox"])
def test_the_guides_commands_as_services(init: str, tmp_path: Path) -> None:
    failed: list[str] = []
    with camera_board(init) as board, ExitStack() as stack:
        pi = stack.enter_context(contextlib.closing(login(board, "pi")))
        root = stack.enter_context(contextlib.closing(login(board, "root")))
        guide = Guide(init, root, pi, tmp_path)
        for args in as_services():
            drive = "--results" in args and init == "systemd"
            try:
                if drive:
                    guide.mounts("/var/lib/photos")
                with guide.service(args):
                    guide.works(args)
                    assert not drive or guide.mounted("/var/lib/photos") == "tmpfs\n"
            except (AssertionError, EdgepackError) as error:
                failed.append(f"{' '.join(args)}: {error}")
    assert not failed, "\n".join(failed)

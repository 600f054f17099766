"""A real OpenSSH server on a loopback port, with its own keys, for the tests here."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "test", "-f", path], check=True
    )
    return path


def public(key: Path) -> str:
    return " ".join(Path(f"{key}.pub").read_text().split()[:2])


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port that refuses connections, and that nobody else is given meanwhile."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield int(sock.getsockname()[1])


@dataclass(kw_only=True)
class Sshd:
    """A running sshd; `key` may log in, the host key is `host_key`."""

    folder: Path
    port: int
    key: Path
    host_key: Path
    user: str
    process: subprocess.Popen[bytes]

    @property
    def known_hosts_line(self) -> str:
        return f"[127.0.0.1]:{self.port} {public(self.host_key)}"

    def sessions(self) -> int:
        """Processes that serve somebody; closed ones get a moment to end."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        deadline = time.monotonic() + 30
        while children.read_text().split() and time.monotonic() < deadline:
            time.sleep(0.02)
        return len(children.read_text().split())

    def started_sessions(self) -> int:
        """Commands and subsystems that were ever asked for."""
        return (self.folder / "log").read_bytes().count(b"Starting session: ")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def start(
    folder: Path,
    *,
    extra: str = "",
    before: str = "",
    host_key_kind: str = "ed25519",
    sftp: str = "internal-sftp",
) -> Sshd:
    """Start a server whose files are in `folder`; `extra` are more sshd_config lines, and those
    `before` count more than ours."""
    folder.mkdir()
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    key = make_key(folder / "login")
    host_key = make_key(folder / "host", host_key_kind)
    (folder / "authorized").write_text(public(key) + "\n")
    config = (
        f"ListenAddress 127.0.0.1\nHostKey {host_key}\n"
        f"AuthorizedKeysFile {folder}/authorized\nPidFile none\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
        f"Subsystem sftp {sftp}\nMaxStartups 100\nLogLevel VERBOSE\n{extra}\n"
    )
    for _ in range(10):
        with closed_port() as port:
            pass
        (folder / "config").write_text(f"{before}Port {port}\n{config}")
        if (process := _listening(folder)) is not None:
            break
    else:
        raise AssertionError((folder / "log").read_text())
    return Sshd(
        folder=folder,
        port=port,
        key=key,
        host_key=host_key,
        user=getpass.getuser(),
        process=process,
    )


def _listening(folder: Path) -> subprocess.Popen[bytes] | None:
    """A server with the configuration in `folder`; None if it ended, its port being taken."""
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["/usr/sbin/sshd", "-D", "-e", "-f", folder / "config"], stderr=out, stdout=out
        )
    while process.poll() is None:
        # Its own word: what answers at the port may be somebody else.
        if b"Server listening on" in log.read_bytes():
            return process
        time.sleep(0.02)
    return None

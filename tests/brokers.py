"""Debian's mosquitto, a broker of MQTT, for tests: unpacked, not installed."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.boards import unpacked


def _root() -> Path:
    packages = ["mosquitto", "mosquitto-clients"]
    return unpacked("mosquitto", packages, suite="bookworm", arch="amd64")


def _environment() -> dict[str, str]:
    root = _root()
    parts = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(str(root / part) for part in parts)}


def password_file(folder: Path, user: str, password: str) -> Path:
    """A file of passwords, as mosquitto's own tool makes it."""
    file = folder / "passwords"
    words = [str(_root() / "usr/bin/mosquitto_passwd"), "-b", "-c", str(file), user, password]
    subprocess.run(words, check=True, env=_environment(), capture_output=True)
    return file


@contextmanager
def broker(
    folder: Path, port: int, *, more: str = "", listen: str = "127.0.0.1"
) -> Iterator[subprocess.Popen[bytes]]:
    """mosquitto on `port`, with `more` lines of configuration."""
    allow = "" if "password_file" in more else "allow_anonymous true\n"
    text = f"listener {port} {listen}\nmax_queued_messages 0\n{allow}{more}"
    host = "127.0.0.1" if listen == "0.0.0.0" else listen
    with mosquitto(folder, port, text, host=host) as process:
        yield process


@contextmanager
def mosquitto(
    folder: Path, port: int, text: str, *, host: str = "127.0.0.1"
) -> Iterator[subprocess.Popen[bytes]]:
    """mosquitto with the configuration `text`, by which it listens on `port` of `host`."""
    # As root it would become an account that this machine has not.
    user = "user root\n" if os.getuid() == 0 else ""
    file = folder / f"mosquitto-{port}.conf"
    file.write_text(user + text)
    program = str(_root() / "usr/sbin/mosquitto")
    with (folder / "mosquitto.log").open("ab") as log:
        process = subprocess.Popen([program, "-c", str(file)], env=_environment(), stderr=log)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection((host, port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, (folder / "mosquitto.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


class Subscriber:
    """mosquitto_sub: what it was sent, as pairs of a topic and a message."""

    def __init__(self, port: int, topic: str, *more: str) -> None:
        words = [str(_root() / "usr/bin/mosquitto_sub"), "-p", str(port), "-t", topic, "-q", "1"]
        self._lines: list[bytes] = []
        self._rest = b""
        self._process = subprocess.Popen(
            [*words, "-F", "%r %t %p", *more],
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def take(self, count: int, *, timeout_s: float = 60) -> list[tuple[bool, str, str]]:
        """The next `count` messages: whether the broker had kept it, its topic, the message."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        os.set_blocking(self._process.stdout.fileno(), False)
        while len(self._lines) < count:
            assert time.monotonic() < deadline, f"{len(self._lines)} of {count} messages"
            *lines, self._rest = (self._rest + (self._process.stdout.read() or b"")).split(b"\n")
            self._lines += lines
            if not lines:
                time.sleep(0.02)
        taken, self._lines = self._lines[:count], self._lines[count:]
        words = [line.decode().split(" ", 2) for line in taken]
        return [(kept == "1", topic, message) for kept, topic, message in words]

    def wait(self) -> None:
        """Until it ends by itself."""
        assert self._process.wait(60) == 0

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

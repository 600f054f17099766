"""The fronts that docs/guides/serve.md shows, nginx and Caddy of Debian 12, as it shows them."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgepack.base.paths import data_file
from tests.boards import unpacked
from tests.functional.test_serve import Served, serving
from tests.means import means_app
from tests.support import free_port, require_tool

pytestmark = pytest.mark.slow

NAME = "board.example"
TOKEN = "f3b1a0c2d4e5f60718293a4b5c6d7e8f"
GUIDE = data_file("docs") / "guides" / "serve.md"


def shown(language: str, changes: dict[str, str]) -> str:
    """The guide's configuration, with the paths and ports of a test."""
    found = re.search(rf"```{language}\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found
    text = found[1]
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificate")
    words = [require_tool("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    words += ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
    words += ["-keyout", str(folder / "board.key"), "-out", str(folder / "board.pem")]
    subprocess.run(words, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    token = folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    options = ("--host", NAME, "--token-file", str(token))
    with serving(means_app(folder), *options) as served:
        yield served


def program(name: str) -> tuple[list[str], dict[str, str]]:
    """Debian's, with the libraries that it wants, and what it needs in its environment."""
    root = unpacked(name, [name], suite="bookworm", arch="amd64")
    path = next(path for path in root.glob(f"usr/*bin/{name}") if path.is_file())
    libraries = ":".join(
        str(root / part) for part in ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
    )
    return [str(path)], {**os.environ, "LD_LIBRARY_PATH": libraries}


@contextmanager
def nginx(folder: Path, certificate: Path, upstream: int, port: int) -> Iterator[None]:
    changes = {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "/etc/ssl/": f"{certificate}/",
        "127.0.0.1:8080": f"127.0.0.1:{upstream}",
    }
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off;\npid {folder}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{paths}"
        f"{shown('nginx', changes)}}}\n"
    )
    words, environment = program("nginx")
    if os.getuid() == 0:  # its workers would be somebody who cannot read this folder
        words += ["-g", "user root;"]
    with running(
        [*words, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")],
        environment,
        port,
    ):
        yield


@contextmanager
def caddy(folder: Path, certificate: Path, upstream: int, port: int) -> Iterator[None]:
    changes = {
        f"{NAME} {{": f"{NAME}:{port} {{",
        "/etc/ssl/": f"{certificate}/",
        "127.0.0.1:8080": f"127.0.0.1:{upstream}",
    }
    (folder / "Caddyfile").write_text(
        "{\n    admin off\n    auto_https disable_redirects\n}\n" + shown("caddyfile", changes)
    )
    words, environment = program("caddy")
    environment |= {
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
    }
    with running(
        [*words, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"],
        environment,
        port,
    ):
        yield


@contextmanager
def running(words: list[str], environment: dict[str, str], port: int) -> Iterator[None]:
    process = subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        end = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > end:
                    process.kill()
                    assert process.stdout is not None
                    pytest.fail(process.stdout.read().decode())
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("front", [nginx, caddy], ids=["nginx", "caddy"])
def test_tls_in_front(front: object, server: Served, certificate: Path, tmp_path: Path) -> None:
    port = free_port()
    context = ssl.create_default_context(cafile=str(certificate / "board.pem"))

    def ask(path: str, headers: dict[str, str], body: bytes | None = None) -> tuple[int, bytes]:
        plain = socket.create_connection(("127.0.0.1", port), timeout=60)
        with context.wrap_socket(plain, server_hostname=NAME) as link:
            connection = http.client.HTTPConnection(NAME, port)
            connection.sock = link
            connection.request("GET" if body is None else "POST", path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    with front(tmp_path, certificate, server.port, port):  # type: ignore[operator]
        known = {"Authorization": f"Bearer {TOKEN}"}
        assert ask("/v2/health/live", known) == (200, b'{"live":true}\n')
        assert ask("/v2/health/live", {})[0] == 401
        own = {**known, "Origin": f"https://{NAME}:{port}", "Sec-Fetch-Site": "same-origin"}
        json_ = {**own, "Content-Type": "application/json"}
        status, body = ask(f"{server.model}/infer", json_, b"{}")
        assert (status, "inputs" in json.loads(body)["error"]) == (400, True)
        assert ask("/v2", {**known, "Origin": "https://evil.example"})[0] == 403
        assert ask("/v2", {**known, "Sec-Fetch-Site": "cross-site"})[0] == 403
        # A name that points to the front: nginx takes it, and passes it on; Caddy has no such site.
        evil = ask("/v2/health/live", {**known, "Host": f"evil.example:{port}"})
        assert evil[0] == 403 or (front is caddy and evil == (200, b""))
        if front is nginx:  # Caddy ends the connection in the middle
            assert ask(f"{server.model}/infer", json_, bytes(17 << 20))[0] == 413

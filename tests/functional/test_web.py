"""Who holds the connections of `edgepack-run --serve` and `--preview`, and pages from elsewhere.

Each way to hold them is tried with more connections than there may be; the honest client is one of
the same address, so that no share of its own helps it.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tests.functional.test_serve import Served, serving
from tests.means import means_app

CROWD = 300
IN_TIME_S = 2.0
"""What an honest client waits for; those who hold connections could do so for minutes."""

TOKEN = "f3b1a0c2d4e5f60718293a4b5c6d7e8f"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return means_app(tmp_path_factory.mktemp("means"))


@pytest.fixture(scope="module")
def server(app: Path) -> Iterator[Served]:
    with serving(app) as served:
        yield served


@contextmanager
def previewing(app: Path, *options: str) -> Iterator[int]:
    """The port of a preview, whose pictures come as fast as they can be drawn."""
    words = [
        app,
        "--frames",
        "rgb24",
        "--size",
        "32x8",
        "--threads",
        "1",
        "--preview",
        "0",
        *options,
    ]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stderr is not None
    ended = threading.Event()

    def film() -> None:
        frame = np.random.default_rng(1).integers(0, 256, (8, 32, 3), np.uint8).tobytes()
        with suppress(BrokenPipeError):
            while not ended.wait(0.02):
                process.stdin.write(frame)  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]

    filming = threading.Thread(target=film)
    try:
        found = re.fullmatch(
            rb"preview on http://127\.0\.0\.1:([0-9]+)\n", process.stderr.readline()
        )
        assert found
        filming.start()
        yield int(found[1])
    finally:
        ended.set()
        process.kill()
        process.wait()
        filming.join(60)


def ask(port: int, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@dataclass
class Crowd:
    """Connections that send `first`, then one of `more` each 0.3 s, and come back when closed."""

    port: int
    first: bytes
    more: bytes = b""
    reads: bool = False
    size: int = CROWD
    pause_s: float = 0.3
    returns: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Crowd:
        self._clients = [self._join() for _ in range(self.size)]
        self._thread = threading.Thread(target=self._hold)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)
        for client in self._clients:
            client.close()

    def _join(self) -> socket.socket:
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", self.port))
        return client

    def _hold(self) -> None:
        begun: set[int] = set()
        at = 0
        while not self._ended.wait(self.pause_s):
            at += 1
            for i, client in enumerate(self._clients):
                try:
                    if id(client) not in begun:
                        client.send(self.first)
                        begun.add(id(client))
                    elif self.more:
                        client.send(self.more[at % len(self.more) :][:1])
                    while self.reads and client.recv(1 << 16):
                        pass
                except BlockingIOError:
                    continue
                except OSError:
                    client.close()
                    self.returns += 1
                    self._clients[i] = self._join()


def post(path: str, headers: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode()


def ways(model: str) -> dict[str, tuple[bytes, bytes]]:
    """What each connection sends first, and a byte of this each time."""
    infer = f"{model}/infer"
    photo = post(infer, "Content-Type: image/png\r\nContent-Length: 9000000\r\n")
    chunks = post(infer, "Content-Type: image/png\r\nTransfer-Encoding: chunked\r\n")
    asked = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    return {
        "silence": (b"", b""),
        "a head, byte by byte": (b"G", b"ET /aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
        "a body, byte by byte": (photo, b"x"),
        "an extension without end": (chunks + b"1;", b"x"),
        "trailers without end": (chunks + b"0\r\nA: ", b"x"),
        "answers that nobody reads": (asked * 300, b""),
        "idle between two requests": (asked, b""),
        "half of a body of megabytes": (photo + bytes(200_000), b""),
    }


@pytest.mark.parametrize("way", ways(""))
def test_the_honest_client_is_answered(app: Path, way: str) -> None:
    with serving(app) as served:
        first, more = ways(served.model)[way]
        with Crowd(served.port, first, more):
            time.sleep(1)
            for _ in range(5):
                begun = time.monotonic()
                assert served.ask("/v2/health/live")[0] == 200
                status, _, body = served.ask(f"{served.model}/infer", b"{}")
                assert (status, "inputs" in json.loads(body)["error"]) == (400, True)
                # The only bound of this bar; those who hold on would do so for ten seconds or more.
                assert time.monotonic() - begun < 2 * IN_TIME_S
                time.sleep(0.2)


def test_viewers_of_the_stream(app: Path) -> None:
    """140 look, sixteen of them at pictures, and the page is there for whoever comes."""
    with previewing(app) as port:
        looking = b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with Crowd(port, looking, reads=True, size=140, pause_s=0.05):
            time.sleep(1)
            for path in ("/", "/latest", "/metrics"):
                begun = time.monotonic()
                assert ask(port, path)[0] == 200
                assert time.monotonic() - begun < IN_TIME_S
            with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
                client.sendall(looking)
                assert client.recv(15) == b"HTTP/1.1 200 OK"


def test_another_address_has_a_share_of_its_own(app: Path) -> None:
    """Who asks from 127.0.0.2 is none of the crowd, be the crowd as busy as it likes."""
    with serving(app) as served, Crowd(served.port, post("/x", "Content-Length: 4000\r\n"), b"x"):
        time.sleep(1)
        with socket.create_connection(
            ("127.0.0.1", served.port), timeout=60, source_address=("127.0.0.2", 0)
        ) as client:
            request = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
            for cut in range(1, len(request)):  # slower than any of them
                client.sendall(request[cut - 1 : cut])
                time.sleep(0.03)
            client.sendall(request[-1:])
            assert client.recv(15) == b"HTTP/1.1 200 OK"


# What browsers send for each, as fetch's standard and the W3C's Fetch Metadata have it: without a
# preflight, that is. A browser does not tell Sec-Fetch-Site to a server without TLS that is not on
# a loopback address: there the others have to do.
EVIL = "http://evil.example"
CROSS_SITE = {"Sec-Fetch-Site": "cross-site"}
PAGES: dict[str, tuple[str, dict[str, str]]] = {
    "fetch, no-cors, text": ("POST", {"Origin": EVIL, "Content-Type": "text/plain"}),
    "fetch of a blob without a type": ("POST", {"Origin": EVIL}),
    "sendBeacon of JSON": ("POST", {"Origin": EVIL, "Content-Type": "application/json"}),
    "a form": ("POST", {"Origin": EVIL, "Content-Type": "application/x-www-form-urlencoded"}),
    "a form with a photo": ("POST", {"Origin": EVIL, "Content-Type": "image/png"}),
    "a page in a sandbox": ("POST", {"Origin": "null", "Content-Type": "image/png"}),
    "another port of this machine": (
        "POST",
        {
            "Origin": "http://localhost:3000",
            "Content-Type": "image/png",
            "Sec-Fetch-Site": "same-site",
        },
    ),
    "a picture": ("GET", {**CROSS_SITE, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}),
    "a script": ("GET", {**CROSS_SITE, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}),
    "a frame": ("GET", {**CROSS_SITE, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}),
    "a window": ("GET", {**CROSS_SITE, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}),
    "a WebSocket": (
        "GET",
        {
            "Origin": EVIL,
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
        },
    ),
    "a preflight": ("OPTIONS", {"Origin": EVIL, "Access-Control-Request-Method": "POST"}),
    "a name that points here": ("GET", {"Host": "evil.example"}),
    "a name that points here, and its page": ("POST", {"Host": "evil.example", "Origin": EVIL}),
}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_from_elsewhere_gets_nothing(server: Served, page: str) -> None:
    method, headers = PAGES[page]
    for path in (f"{server.model}/infer", "/metrics", "/v2"):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request(method, path, b"{}" if method == "POST" else None, headers)
        answer = connection.getresponse()
        assert answer.status == 403
        assert answer.getheader("Access-Control-Allow-Origin") is None
        assert set(json.loads(answer.read())) == {"error"}
        connection.close()


def test_a_page_without_the_headers_of_new_browsers(server: Served) -> None:
    """What needs no preflight is of no type that is taken; what is shown in a page says that it is
    for none but its own."""
    for kind in (None, "text/plain", "multipart/form-data", "application/x-www-form-urlencoded"):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        headers = {} if kind is None else {"Content-Type": kind}
        connection.request("POST", f"{server.model}/infer", b"{}", headers)
        assert connection.getresponse().status == 415
        connection.close()
    for path in ("/v2", "/metrics", "/none", server.model):
        _, headers, _ = server.ask(path)
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"


def test_the_own_page_is_answered(app: Path) -> None:
    with previewing(app) as port:
        for path in ("/", "/latest", "/metrics"):
            assert ask(port, path, {"Sec-Fetch-Site": "same-origin"})[0] == 200
            assert ask(port, path, {"Sec-Fetch-Site": "none"})[0] == 200
            assert ask(port, path, {"Origin": f"http://127.0.0.1:{port}"})[0] == 200
            assert ask(port, path, CROSS_SITE)[0] == 403
            assert ask(port, path, {"Host": "evil.example"})[0] == 403


def test_names_are_checked_where_others_are_let_in(app: Path) -> None:
    """Also on all addresses, and with a name that is given."""
    words = [app, "--serve", "0.0.0.0:0", "--threads", "1", "--host", "Board.Example."]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        port = int(process.stderr.readline().rpartition(":")[2])
        own = os.uname().nodename
        for host, wanted in {
            "board.example": 200, "BOARD.EXAMPLE.:80": 200, f"{own}:{port}": 200, own.upper(): 200,
            "192.168.1.5": 200, "[::1]:1": 200, "localhost.": 200, "evil.example": 403,
            "board.example.evil": 403, "[evil].example": 400,
        }.items():  # fmt: skip
            assert ask(port, "/v2", {"Host": host})[0] == wanted, host
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /v2 HTTP/1.1\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"POST /v2 HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: [evil].example\r\n\r\n",
    ],
)
def test_what_http_does_not_have(server: Served, request_: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(request_)
        assert client.recv(12) == b"HTTP/1.1 400"


def with_token(folder: Path) -> str:
    path = folder / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return str(path)


def test_a_token(app: Path, tmp_path: Path) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    password = {"Authorization": "Basic " + base64.b64encode(f"me:{TOKEN}".encode()).decode()}
    wrong = {"Authorization": f"Bearer {TOKEN[:-1]}0"}
    file = with_token(tmp_path)
    with (
        serving(app, "--token-file", file) as served,
        previewing(app, "--token-file", file) as port,
    ):
        for where, path in ((served.port, "/v2"), (served.port, "/metrics"), (port, "/latest")):
            assert ask(where, path)[0] == 401
            assert ask(where, path, wrong)[0] == 401
            assert ask(where, path, bearer)[0] == 200
            assert ask(where, path, password)[0] == 200
            # Nor does a page have it: a browser would send a password that it knows.
            assert ask(where, path, {**password, **CROSS_SITE})[0] == 403
    (tmp_path / "token").chmod(0o644)
    done = subprocess.run(
        [app, "--serve", "0", "--token-file", file], capture_output=True, check=False
    )
    assert (done.returncode, b"can be read" in done.stderr) == (2, True)

"""`edgepack-run --serve` beside real clients: Python's, raw sockets, and Apache's load tool."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import paramiko
import pytest

from edgepack import virtual
from edgepack.boards import get_board
from edgepack.bundle.bundle import open_bundle
from edgepack.deploy import remote_service
from edgepack.deploy.deploy import deploy_bundle
from tests.boards import login, own_boards
from tests.means import SHAPE, means_app
from tests.support import require_tool

CLIENTS = 50
# Of asm-generic/socket.h, which Python's module does not have.
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27


@dataclass(frozen=True, kw_only=True)
class Served:
    """A running server: where it is, its process, and the paths of its model."""

    port: int
    process: subprocess.Popen[str]
    model: str

    def ask(
        self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            headers = {} if headers is None else headers
            if body is not None:
                headers = {"Content-Type": "application/json", **headers}
            connection.request("GET" if body is None else "POST", path, body, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return means_app(tmp_path_factory.mktemp("means"))


@contextmanager
def serving(app: Path, *options: str, env: dict[str, str] | None = None) -> Iterator[Served]:
    process = subprocess.Popen(
        [app, "--serve", "0", "--threads", "1", *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.fullmatch(r"serving (\S+) on http://127\.0\.0\.1:([0-9]+)\n", line)
        assert found, line + process.stderr.read()
        yield Served(port=int(found[2]), process=process, model=f"/v2/models/{found[1]}")
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def server(app: Path) -> Iterator[Served]:
    with serving(app, "--queue", "100") as served:
        yield served


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photo") / "photo.png"
    pixels = np.random.default_rng(3).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    cv2.imwrite(str(path), pixels)
    return path


def tensor() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)


def means(app: Path, folder: Path) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Of a single run."""
    np.save(folder / "x.npy", tensor())
    words = ["--threads", "1", "--input", folder / "x.npy", "--output", folder / "y.npy"]
    subprocess.run([app, *words], check=True, capture_output=True)
    output: np.ndarray[Any, np.dtype[np.float32]] = np.load(folder / "y.npy")
    return output


def test_tensors_give_what_a_single_run_gives(app: Path, server: Served, tmp_path: Path) -> None:
    wanted = means(app, tmp_path)
    _, _, text = server.ask(server.model)
    (given,), (made,) = json.loads(text)["inputs"], json.loads(text)["outputs"]
    assert (given["datatype"], tuple(given["shape"])) == ("FP32", SHAPE)
    request: dict[str, Any] = {"id": "1", "inputs": [{**given, "data": tensor().tolist()}]}
    status, headers, body = server.ask(f"{server.model}/infer", json.dumps(request).encode())
    answer = json.loads(body)
    assert (status, headers["Content-Type"], answer["id"]) == (200, "application/json", "1")
    (output,) = answer["outputs"]
    assert output["name"] == made["name"]
    got = np.array(output["data"], np.float32).reshape(output["shape"])
    assert got.tobytes() == wanted.tobytes()

    # The same with binary data both ways, as tritonclient sends it.
    raw = tensor().tobytes()
    head = json.dumps(
        {
            "inputs": [{**given, "parameters": {"binary_data_size": len(raw)}}],
            "outputs": [{"name": made["name"], "parameters": {"binary_data": True}}],
        }
    ).encode()
    sent = {"Inference-Header-Content-Length": str(len(head))}
    status, headers, body = server.ask(f"{server.model}/infer", head + raw, sent)
    assert (status, headers["Content-Type"]) == (200, "application/octet-stream")
    size = int(headers["Inference-Header-Content-Length"])
    (output,) = json.loads(body[:size])["outputs"]
    assert output["parameters"] == {"binary_data_size": wanted.nbytes}
    assert body[size:] == wanted.tobytes()


def test_a_photo_gives_what_a_single_run_gives(app: Path, server: Served, photo: Path) -> None:
    words = [app, "--threads", "1", "--image", photo, "--json"]
    single = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    kind = {"Content-Type": "image/png"}
    status, _, body = server.ask(f"{server.model}/infer", photo.read_bytes(), kind)
    assert status == 200
    line = json.loads(body)
    assert line["tensors"] == single["tensors"]
    assert line["run_ms"] > 0
    status, _, body = server.ask(f"{server.model}/infer", b"\xff\xd8 no photo", kind)
    assert (status, "not a JPEG or PNG image" in json.loads(body)["error"]) == (400, True)


# Of /proc/net/tcp.
ESTABLISHED, SYN_RECEIVED, LISTENING = "01", "03", "0A"


def tcp_states(port: int) -> set[str]:
    """Of what a server's port has to do with."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[3] for row in rows if row[1].endswith(f":{port:04X}")}


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_other_names_of_this_machine_are_refused(server: Served) -> None:
    """A page from elsewhere can only come by a name of its own."""
    for host, wanted in {"localhost:1": 200, "[::1]:1": 200, "evil.example": 403}.items():
        assert server.ask("/v2", headers={"Host": host})[0] == wanted


def metric(served: Served, name: str) -> float:
    text = served.ask("/metrics")[2].decode()
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0


@pytest.mark.parametrize("queue", [100, 1])
def test_fifty_clients(app: Path, photo: Path, queue: int) -> None:
    """No error under load, or none but "too many requests"; each answer is the single run's."""
    ab = require_tool("ab")
    requests = 2000
    with serving(app, "--queue", str(queue)) as served:
        url = f"http://127.0.0.1:{served.port}{served.model}/infer"
        words = [
            ab,
            "-q",
            "-k",
            "-l",
            "-c",
            CLIENTS,
            "-n",
            requests,
            "-p",
            photo,
            "-T",
            "image/png",
        ]
        done = subprocess.run(
            [*map(str, words), url], capture_output=True, text=True, check=True, timeout=300
        )
        said = dict(re.findall(r"^([\w -]+):\s+([0-9]+)", done.stdout, re.MULTILINE))
        assert (said["Complete requests"], said["Failed requests"]) == (str(requests), "0")
        refused = int(said.get("Non-2xx responses", "0"))
        assert refused == metric(served, 'edgepack_http_answers_total{code="429"}')
        assert (refused == 0) == (queue >= CLIENTS)
        assert metric(served, "edgepack_inference_seconds_count") == requests - refused
        assert served.stop() == 0


def test_bodies_that_never_end(app: Path) -> None:
    """Of all that come together no more than 64 MB are kept, and others are answered meanwhile."""
    part = bytes(1 << 20)
    with serving(app) as served, ExitStack() as stack:
        head = (
            f"POST {served.model}/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n"
        )
        request = f"{head}Content-Length: {16 << 20}\r\n\r\n".encode()
        for _ in range(12):
            address = ("127.0.0.1", served.port)
            client = stack.enter_context(socket.create_connection(address, timeout=60))
            with suppress(OSError):  # who is refused is cut off
                client.sendall(request)
                for _ in range(10):
                    client.sendall(part)
        assert metric(served, 'edgepack_http_answers_total{code="429"}') > 0
        status = Path(f"/proc/{served.process.pid}/status").read_text()
        assert int(status.partition("VmHWM:")[2].split()[0]) < 150_000


def test_a_stop_loses_no_request(app: Path, photo: Path) -> None:
    """Of fifty clients half have asked before, over the same connection; then comes the signal."""
    body = photo.read_bytes()
    with serving(app, "--queue", "100") as served, ExitStack() as stack:
        head = (
            f"POST {served.model}/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\n"
        )
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

        def receive(client: socket.socket) -> tuple[int, str | None, str]:
            answer = http.client.HTTPResponse(client)
            answer.begin()
            tensors = json.dumps(json.loads(answer.read())["tensors"])
            return answer.status, answer.getheader("Connection"), tensors

        address = ("127.0.0.1", served.port)
        clients = [
            stack.enter_context(socket.create_connection(address, timeout=60))
            for _ in range(CLIENTS)
        ]
        for client in clients[: CLIENTS // 2]:
            client.sendall(request)
        before = {receive(client) for client in clients[: CLIENTS // 2]}
        for client in clients:
            client.sendall(request)
        served.process.send_signal(signal.SIGTERM)
        after = {receive(client) for client in clients}
        assert served.process.wait(60) == 0
        assert {status for status, _, _ in before | after} == {200}
        assert len({tensors for _, _, tensors in before | after}) == 1
        assert {connection for _, connection, _ in before} == {"keep-alive"}


def test_a_stop_waits_for_a_handshake(app: Path, photo: Path) -> None:
    """A client whose connection is half made when the signal comes is let in, and answered."""
    body = photo.read_bytes()
    for _ in range(20):
        with serving(app) as served, socket.socket() as client:
            client.settimeout(60)
            # What the server answers does not reach the client.
            code = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF_RET | BPF_K: keep no byte
            memory = ctypes.create_string_buffer(code)
            program = struct.pack("HL", 1, ctypes.addressof(memory))
            client.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
            client.setblocking(False)
            assert client.connect_ex(("127.0.0.1", served.port)) == errno.EINPROGRESS
            wait_until(lambda served=served: SYN_RECEIVED in tcp_states(served.port))
            served.process.send_signal(signal.SIGTERM)
            status = Path(f"/proc/{served.process.pid}/status")
            wait_until(
                lambda status=status: not int(status.read_text().partition("ShdPnd:")[2][1:17], 16)
            )
            # It has half a second to wait, which this machine may need: it is held up meanwhile.
            served.process.send_signal(signal.SIGSTOP)
            if LISTENING not in tcp_states(served.port):
                continue  # too late: once more
            client.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, b"\0" * 4)
            client.setblocking(True)  # the server's kernel asks again after a second
            wait_until(lambda served=served: ESTABLISHED in tcp_states(served.port))
            head = (
                f"POST {served.model}/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                "Content-Type: image/png\r\n"
            )
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            served.process.send_signal(signal.SIGCONT)
            answer = http.client.HTTPResponse(client)
            answer.begin()
            assert (answer.status, "tensors" in json.loads(answer.read())) == (200, True)
            assert served.process.wait(60) == 0
            return
    pytest.fail("the server was never seen to wait")


def test_signs_of_life(app: Path, tmp_path: Path) -> None:
    """As systemd hears them: sd_notify(3)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(60)
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        with serving(app, env=env) as served:
            said = [listener.recv(100) for _ in range(4)]
            assert said == [b"READY=1"] + [b"WATCHDOG=1"] * 3
            assert served.stop() == 0
            while said[-1] == b"WATCHDOG=1":
                said.append(listener.recv(100))
            assert said[-1] == b"STOPPING=1"


def test_an_address_that_is_taken(app: Path, server: Served) -> None:
    done = subprocess.run(
        [app, "--serve", str(server.port)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert f"error: --serve: cannot listen on http://127.0.0.1:{server.port}" in done.stderr


@pytest.mark.slow
def test_a_port_of_a_service(photo: Path, tmp_path: Path) -> None:
    """On a board under systemd, which hears that it is ready and lives, and ends it in order. It is
    asked from the board itself: by nobody else can it be reached.
    """
    more = '[service]\nargs = ["--serve", "8080"]\nwatchdog_s = 10\n'
    bundle = open_bundle(means_app(tmp_path, "rasp3b", more).parents[1])
    root, body = "/home/pi/edgepack/means", photo.read_bytes()
    with own_boards(), ExitStack() as stack:
        board = virtual.up(
            get_board("rasp3b"), name="serves", kind="system", init="systemd", disk_mb=256
        )
        pi = stack.enter_context(contextlib.closing(login(board, "pi")))
        admin = stack.enter_context(contextlib.closing(login(board, "root")))
        deploy_bundle(bundle, pi, root)
        remote_service.install(admin, root)
        unit = "edgepack-means"

        def shown(name: str) -> str:
            return admin.run(f"systemctl show --value -p {name} {unit}").stdout.strip()

        client = stack.enter_context(paramiko.SSHClient())
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        key = str(board.key_file)
        client.connect(board.host, board.port, "pi", key_filename=key, allow_agent=False)
        transport = client.get_transport()
        assert transport is not None

        def ask() -> tuple[int, Any]:
            to, own = ("127.0.0.1", 8080), ("127.0.0.1", 0)
            with transport.open_channel("direct-tcpip", to, own, timeout=60) as channel:
                head = (
                    "POST /v2/models/means/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                    "Content-Type: image/png\r\n"
                )
                channel.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                answer = http.client.HTTPResponse(channel)
                answer.begin()
                return answer.status, json.loads(answer.read())["tensors"]

        wait_until(lambda: shown("ActiveState") == "active")
        pi.put(photo, f"{root}.png")
        run = f"{root}/current/bin/edgepack-run --image {root}.png --json"
        single = json.loads(pi.run(run).stdout)["tensors"]
        assert {json.dumps(ask()) for _ in range(20)} == {json.dumps((200, single))}
        first = shown("MainPID")
        time.sleep(12)  # longer than it may be silent
        assert (ask()[0], shown("MainPID"), shown("NRestarts")) == (200, first, "0")
        admin.run(f"systemctl stop {unit}")
        assert (shown("ActiveState"), shown("Result")) == ("inactive", "success")
        assert shown("ExecMainStatus") == "0"

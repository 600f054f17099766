"""To a broker with TLS by mosquitto as a bridge, as the guide configures it: real brokers."""

from __future__ import annotations

import datetime
import ipaddress
import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from edgepack.base.paths import data_file
from edgepack.boards import get_board
from edgepack.flow.sinks import fetch_mosquitto
from edgepack.native.sinks import build_sinks
from tests.brokers import Subscriber, broker, mosquitto, password_file
from tests.support import free_port

GUIDE = data_file("docs") / "guides" / "home-assistant.md"
HOST = "127.0.0.1"
USER, PASSWORD = "counter", "of the broker"


@dataclass(frozen=True, kw_only=True)
class Authority:
    """Files: who signs, and what it signed for this machine's address."""

    ca: Path
    certificate: Path
    key: Path


def authority(folder: Path) -> Authority:
    folder.mkdir()
    issuer, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))

    def signed(name: str, key: ec.EllipticCurvePrivateKey, more: x509.ExtensionType) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        to_name = [
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in ("issuer", name)
        ]
        return (
            x509.CertificateBuilder()
            .issuer_name(to_name[0])
            .subject_name(to_name[1])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(more, critical=True)
            .sign(issuer, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )

    made = Authority(ca=folder / "ca.crt", certificate=folder / "it.crt", key=folder / "it.key")
    made.ca.write_bytes(signed("issuer", issuer, x509.BasicConstraints(ca=True, path_length=0)))
    address = x509.IPAddress(ipaddress.ip_address(HOST))
    made.certificate.write_bytes(signed("it", server, x509.SubjectAlternativeName([address])))
    made.key.write_bytes(
        server.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return made


def guided(port: int, to: int, ca: Path) -> str:
    """The guide's configuration, with the ports and files of a test."""
    (text,) = re.findall(r"```\n(listener .*?)```", GUIDE.read_text(), re.DOTALL)
    for old, new in {
        "listener 1883": f"listener {port}",
        "broker.example:8883": f"{HOST}:{to}",
        "/etc/ssl/certs/ca-certificates.crt": str(ca),
        "PASSWORD": PASSWORD,
    }.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    # It waits for half a minute by itself.
    return f"{text}restart_timeout 1\n"


@contextmanager
def results(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The program that the app gives its results to, which sends them to `port`."""
    sink = {
        **dict.fromkeys(["counting", "discovery", "username", "password_file"]),
        "name": "home",
        "scheme": "mqtt",
        "host": HOST,
        "port": port,
        "path": "",
        "topic": "counter/results",
        "status_topic": "counter/status",
        "client_id": "edgepack-counter",
        "counters": [],
        "counters_topic": "counter/counter",
        "buffer": str(folder),
        "buffer_bytes": 1 << 20,
    }
    config = folder / "sinks.json"
    config.write_text(
        json.dumps({"schema": 1, "name": "counter", "sinks": [sink], "counters": [], "when": []})
    )
    program = build_sinks(get_board("local"), fetch_mosquitto).path
    process = subprocess.Popen([program, config], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def say(process: subprocess.Popen[bytes], number: int) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps({"frame": number, "boxes": []}).encode() + b"\n")
    process.stdin.flush()


@dataclass(frozen=True, kw_only=True)
class Home:
    """A broker with TLS and a password, which is not always there, and who listens to it."""

    folder: Path
    port: int
    tls: Authority

    @contextmanager
    def up(self) -> Iterator[None]:
        lines = {
            "certfile": self.tls.certificate,
            "keyfile": self.tls.key,
            "password_file": password_file(self.folder, USER, PASSWORD),
            "persistence": "true",
            "persistence_location": f"{self.folder}/",
        }
        more = "".join(f"{name} {value}\n" for name, value in lines.items())
        with broker(self.folder, self.port, more=more) as process:
            yield
            process.terminate()  # it writes down who listens
            process.wait()

    def listener(self, *more: str) -> Subscriber:
        """One whose subscription lasts."""
        words = ["-h", HOST, "--cafile", str(self.tls.ca), "-u", USER, "-P", PASSWORD]
        return Subscriber(self.port, "counter/results", "-c", "-i", "listener", *words, *more)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(folder=tmp_path, port=free_port(), tls=authority(tmp_path / "tls"))


def test_results_reach_a_broker_with_tls_once_it_is_there(home: Home, tmp_path: Path) -> None:
    with home.up(), home.listener("-E") as once:
        once.wait()
    port = free_port()
    bridge = mosquitto(tmp_path, port, guided(port, home.port, home.tls.ca))
    with bridge, Subscriber(port, "counter/#") as here, results(tmp_path, port) as sinks:
        assert here.take(1)[0][1] == "counter/status"
        for number in range(3):
            say(sinks, number)
        here.take(3)
        # The board has given them away; the bridge keeps them until the broker is there.
        with home.up(), home.listener() as there:
            said = [json.loads(text) for _, _, text in there.take(3)]
    assert said == [{"frame": number, "boxes": []} for number in range(3)]


def test_a_broker_that_another_authority_signed_is_refused(home: Home, tmp_path: Path) -> None:
    other, port, log = authority(tmp_path / "other"), free_port(), tmp_path / "mosquitto.log"
    with home.up(), mosquitto(tmp_path, port, guided(port, home.port, other.ca)):
        end = time.monotonic() + 60
        while "certificate verify failed" not in log.read_text():
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)

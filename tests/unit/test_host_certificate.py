"""A host's certificate, as ssh-keygen makes it; each byte of it counts."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import paramiko
import pytest

from edgepack.device.host_certificate import BadCertificateError, HostCertificate, certificate_of
from tests.ssh_keys import make_key
from tests.support import require_tool

YEAR = 365 * 86400
MAY_2030 = 60 * YEAR + 15 * 86400 + 120 * 86400


@pytest.fixture(scope="module")
def blob(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    require_tool("ssh-keygen")
    folder = tmp_path_factory.mktemp("certificate")
    for name in ("authority", "host"):
        (folder / name).mkdir()
    authority, host = make_key(folder / "authority"), make_key(folder / "host")
    words = ["-h", "-n", "a.example,b.example", "-V", "20300101Z:20310101Z"]
    signed = ["ssh-keygen", "-q", "-s", authority, "-I", "it", *words, f"{host}.pub"]
    subprocess.run(signed, check=True)
    text = Path(f"{host}-cert.pub").read_text()
    return base64.b64decode(text.split()[1])


def read(blob: bytes) -> HostCertificate | None:
    """As the key exchange gives it."""
    try:
        return certificate_of(paramiko.Ed25519Key(data=blob))
    except Exception:  # paramiko's, which ends the key exchange
        return None


def test_what_it_says(blob: bytes) -> None:
    certificate = read(blob)
    assert certificate is not None
    assert certificate.names == ("a.example", "b.example")
    assert certificate.valid_before - certificate.valid_after == YEAR
    certificate.check("b.example", now=MAY_2030)
    for name, now, why in (
        ("c.example", MAY_2030, "it is of a.example, b.example, not of c.example"),
        ("a.example", MAY_2030 - YEAR, "it is not valid before 2030-01-01 00:00:00 UTC"),
        ("a.example", MAY_2030 + YEAR, "it was valid until 2031-01-01 00:00:00 UTC"),
        ("a.example", 0, "it is not valid before 2030"),
    ):
        with pytest.raises(BadCertificateError, match=why):
            certificate.check(name, now=now)


def test_a_plain_key_is_none(tmp_path: Path) -> None:
    key = make_key(tmp_path)
    assert certificate_of(paramiko.Ed25519Key(filename=str(key))) is None


def test_each_byte_counts(blob: bytes) -> None:
    """One that was changed proves nothing, wherever; nor does one that was cut or grew."""
    holds = 0
    others = [blob[:end] for end in range(0, len(blob), 7)] + [blob + b"\0", blob + blob]
    for at in range(len(blob)):
        for bit in (1, 0x80):
            others.append(bytes([*blob[:at], blob[at] ^ bit, *blob[at + 1 :]]))
    for other in others:
        certificate = read(other)
        if certificate is None:
            continue
        holds += 1
        with pytest.raises(BadCertificateError):
            certificate.check("a.example", now=MAY_2030)
    assert holds > len(blob)

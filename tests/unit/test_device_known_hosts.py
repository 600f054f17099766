"""known_hosts lines as OpenSSH understands them."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from edgepack.device.known_hosts import HostKeyVerdict, KnownHosts, append, fingerprint, host_name
from tests.support import require_tool

ED = "ssh-ed25519"
A, B = b"key a", b"key b"


def b64(key: bytes) -> str:
    return base64.b64encode(key).decode()


def check(lines: list[str], host: str = "board", kind: str = ED, key: bytes = A) -> HostKeyVerdict:
    return KnownHosts.of_lines(lines).check(host, kind, key)[0]


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        (f"board {ED} {b64(A)}", HostKeyVerdict.KNOWN),
        (f"board,10.0.0.1 {ED} {b64(A)} comment", HostKeyVerdict.KNOWN),
        (f"b*d {ED} {b64(A)}", HostKeyVerdict.KNOWN),
        (f"b?ard {ED} {b64(A)}", HostKeyVerdict.KNOWN),
        (f"BOARD {ED} {b64(A)}", HostKeyVerdict.KNOWN),
        (f"*,!board {ED} {b64(A)}", HostKeyVerdict.UNKNOWN),
        (f"other {ED} {b64(A)}", HostKeyVerdict.UNKNOWN),
        (f"[board]:2222 {ED} {b64(A)}", HostKeyVerdict.UNKNOWN),
        (f"board {ED} {b64(B)}", HostKeyVerdict.CHANGED),
        (f"board ssh-rsa {b64(B)}", HostKeyVerdict.CHANGED),
        (f"@revoked * {ED} {b64(A)}", HostKeyVerdict.REVOKED),
        (f"@cert-authority * {ED} {b64(A)}", HostKeyVerdict.UNKNOWN),
        ("# board", HostKeyVerdict.UNKNOWN),
        (f"board {ED} not-base64!", HostKeyVerdict.UNKNOWN),
        ("|1|broken ssh-ed25519 AAAA", HostKeyVerdict.UNKNOWN),
        ("", HostKeyVerdict.UNKNOWN),
    ],
)
def test_one_line(line: str, verdict: HostKeyVerdict) -> None:
    assert check([line]) is verdict


def test_one_of_several_keys_is_enough() -> None:
    lines = [f"board {ED} {b64(B)}", f"board {ED} {b64(A)}"]
    assert check(lines) is HostKeyVerdict.KNOWN


def test_a_revoked_key_is_refused_although_listed() -> None:
    assert (
        check([f"board {ED} {b64(A)}", f"@revoked board {ED} {b64(A)}"]) is HostKeyVerdict.REVOKED
    )


def test_verdict_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"# first\nboard {ED} {b64(B)}\n")
    known = KnownHosts.load([file, tmp_path / "missing"])
    assert known.check("board", ED, A) == (HostKeyVerdict.CHANGED, f"{file}:2")
    assert known.key_types("board") == (ED,)
    assert known.key_types("other") == ()


def test_brackets_are_literal_and_ports_matter() -> None:
    assert host_name("Board", 22) == "board"
    assert host_name("board", 2222) == "[board]:2222"
    assert check([f"[board]:2222 {ED} {b64(A)}"], host="[board]:2222") is HostKeyVerdict.KNOWN
    assert check([f"[board]:2222 {ED} {b64(A)}"], host="b:2222") is HostKeyVerdict.UNKNOWN


def test_append_keeps_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "ssh" / "known_hosts"
    append(file, "first", ED, A)
    file.write_text(file.read_text().rstrip("\n"))  # an editor left no newline
    append(file, "second", ED, B)
    known = KnownHosts.load([file])
    assert known.check("first", ED, A)[0] is HostKeyVerdict.KNOWN
    assert known.check("second", ED, B)[0] is HostKeyVerdict.KNOWN


def test_hashed_names_and_fingerprint_as_ssh_keygen_makes_them(tmp_path: Path) -> None:
    require_tool("ssh-keygen")
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    kind, blob = Path(f"{key}.pub").read_text().split()[:2]
    file = tmp_path / "known_hosts"
    file.write_text(f"[board]:2222 {kind} {blob}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)
    assert "board" not in file.read_text()
    raw = base64.b64decode(blob)
    known = KnownHosts.load([file])
    assert known.check("[board]:2222", kind, raw)[0] is HostKeyVerdict.KNOWN
    assert known.check("board", kind, raw)[0] is HostKeyVerdict.UNKNOWN
    printed = subprocess.run(["ssh-keygen", "-lf", key], check=True, capture_output=True, text=True)
    assert fingerprint(raw) in printed.stdout.split()


def test_a_file_of_something_else_stays_as_it_is(tmp_path: Path) -> None:
    """An inventory may have named it."""
    for content in ("Host *\n  ProxyCommand x\n", f"{ED} {b64(A)} me@desk\n", "export A=1\n"):
        path = tmp_path / "file"
        path.write_text(content)
        with pytest.raises(OSError, match="something else than host keys"):
            append(path, "board", ED, A)
        assert path.read_text() == content
    path.write_text(f"# mine\n\nold {ED} {b64(B)}\n|1|a|b {ED} {b64(B)}\n")
    append(path, "board", ED, A)
    assert KnownHosts.load([path]).check("board", ED, A)[0] == HostKeyVerdict.KNOWN

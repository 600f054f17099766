"""Frames, put together again by a decoder written from the protocol's description."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgepack.base.errors import RemoteError
from edgepack.deploy.chunks import Chunk, chunks
from edgepack.deploy.remote_tool import LockedError, RefusedBundleError
from edgepack.deploy.transfer import Exchange, Installed, InstallRequest, Need, frames
from edgepack.device.base import RemoteResult
from edgepack.device.errors import ConnectionLostError, DiskFullError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def need(data: bytes, *, have: int = 0, base: bytes = b"") -> Need:
    return Need(
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        have=have,
        base=tuple(chunk.key for chunk in chunks(memoryview(base))),
    )


def assemble(stream: bytes, base: bytes = b"", start: bytes = b"") -> tuple[bytes, bytes]:
    """What a device makes of the frames of one blob, and the bytes after them."""
    known: list[Chunk] = list(chunks(memoryview(base)))
    out = start
    while True:
        kind, a, b = struct.unpack("<BII", stream[:9])
        stream = stream[9:]
        if kind == 1:
            assert a <= 256 << 10
            out, stream = out + stream[:a], stream[a:]
        elif kind == 2:
            assert b <= 256 << 10
            data = zstd.decompress(stream[:a])
            assert len(data) == b
            out, stream = out + data, stream[a:]
        elif kind == 3:
            for chunk in known[a : a + b]:
                out += base[chunk.offset : chunk.offset + chunk.size]
        else:
            assert (kind, a, b) == (4, 0, 0)
            return out, stream


def encoded(wanted: Need, data: bytes) -> bytes:
    parts = list(frames(wanted, memoryview(data)))
    assert sum(done for _, done in parts) == wanted.left
    return b"".join(frame for frame, _ in parts)


def random_bytes(size: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).bytes(size)


RANDOM = random_bytes(3_000_000)


@pytest.mark.parametrize("have", [0, 1, 300_000, 2_999_999, 3_000_000])
@pytest.mark.parametrize("data", [RANDOM, bytes(3_000_000), RANDOM[:1_500_000] + bytes(1_500_000)])
def test_data_arrive_from_where_they_were_cut(data: bytes, have: int) -> None:
    stream = encoded(need(data, have=have), data)
    assert assemble(stream, start=data[:have]) == (data, b"")
    assert len(stream) <= 1.001 * (len(data) - have) + 200


def test_what_shrinks_is_compressed() -> None:
    data = b"all the same again and again\n" * 100_000
    assert len(encoded(need(data), data)) < len(data) / 100


@pytest.mark.parametrize("have", [0, 5, 100_000, 1_500_000, 2_999_990])
def test_chunks_that_are_there_are_named(have: int) -> None:
    changed = RANDOM[:1_000_000] + b"new" * 10_000 + RANDOM[1_030_000:]
    stream = encoded(need(changed, have=have, base=RANDOM), changed)
    assert assemble(stream, RANDOM, changed[:have]) == (changed, b"")
    # The changed bytes, the two chunks around them, and the rest of the one that was cut.
    assert len(stream) < 30_000 + 3 * (64 << 10) + 500


def test_the_same_chunk_many_times_and_in_another_order() -> None:
    base = RANDOM[:1_000_000]
    data = base[500_000:] + base[:500_000] + base
    stream = encoded(need(data, base=base), data)
    assert assemble(stream, base) == (data, b"")
    assert len(stream) < len(data) / 8


class FakeStream:
    """Gives the lines it was told to give, and keeps what it was sent."""

    def __init__(self, *lines: Any, deaf_after: int = 1 << 40, returncode: int = 0) -> None:
        self.lines = [
            line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines
        ]
        self.got = b""
        self.deaf_after = deaf_after
        self.returncode = returncode

    def write(self, data: bytes) -> None:
        if len(self.got) > self.deaf_after:
            raise BrokenPipeError
        self.got += data

    def read_line(self, timeout_s: float | None = None, *, begun: bool = False) -> bytes:
        return self.lines.pop(0) if self.lines else b""

    def finish(self) -> RemoteResult:
        return RemoteResult(command="", returncode=self.returncode, stdout="", stderr="oh dear")

    def close(self) -> None:
        pass


REQUEST = InstallRequest(
    manifest=b"{manifest}",
    signature=b"sig",
    signers=b"",
    by="me",
    session="1",
    keep=3,
    wait_s=1,
    silence_s=5,
)


def state(*needs: Need) -> dict[str, Any]:
    return {
        "event": "state", "current": None, "previous": None, "unchanged": False, "remove": [],
        "needs": [
            {
                "sha256": item.sha256, "size": item.size, "have": item.have,
                "base": {
                    "sha256": "0" * 64,
                    "chunks": base64.b64encode(
                        b"".join(struct.pack("<I16s", *key) for key in item.base)
                    ).decode(),
                },
            }
            for item in needs
        ],
    }  # fmt: skip


REPORT = {
    "outcome": "deployed", "previous": None, "removed": [], "health": None, "health_fresh": True,
    "received_bytes": 7, "signer": None, "pinned": None,
}  # fmt: skip


def test_a_whole_exchange(tmp_path: Path) -> None:
    small, large = b"small", RANDOM[:400_000]
    for data in (small, large):
        (tmp_path / hashlib.sha256(data).hexdigest()).write_bytes(data)
    steps: list[str] = []
    done: list[int] = []
    stream = FakeStream(
        b"Welcome!\n",
        {"event": "step", "name": "recover"},
        state(need(small), need(large, have=100_000)),
        {"event": "step", "name": "verify", "text": "verify 2 files"},
        {"event": "done", "report": REPORT},
    )
    exchange = Exchange(stream, "board", step=steps.append)
    found = exchange.ask(REQUEST)
    line, _, rest = stream.got.partition(b"\n")
    assert json.loads(line)["manifest_bytes"] == len(b"{manifest}")
    assert rest == b"{manifest}sig"
    stream.got = b""
    files = {item.sha256: tmp_path / item.sha256 for item in found.needs}
    exchange.send(found.needs, files, sent=done.append)
    first, after = assemble(stream.got)
    second, end = assemble(after, start=large[:100_000])
    assert (first, second, end) == (small, large, struct.pack("<BII", 5, 0, 0))
    assert sum(done) == len(small) + len(large) - 100_000
    assert sum(exchange.sent.values()) == len(stream.got) - 9
    assert exchange.finish() == Installed(
        outcome="deployed", previous=None, removed=(), signer=None, pinned=None,
        received_bytes=7, smoke=None,
        smoke_fresh=True,
    )  # fmt: skip
    assert steps == ["recover", "verify 2 files"]


@pytest.mark.parametrize(
    ("kind", "code", "error"),
    [
        ("locked", 7, LockedError),
        ("disk-full", 7, DiskFullError),
        ("bad-signature", 5, RefusedBundleError),
        ("io", 7, RemoteError),
    ],
)
def test_refusals_are_errors_of_their_own(kind: str, code: int, error: type[Exception]) -> None:
    said = {
        "event": "error",
        "exit": code,
        "error": {"kind": kind, "message": "no, for a reason", "hint": "do that"},
    }
    with pytest.raises(error, match="board: no, for a reason") as refused:
        Exchange(FakeStream(said), "board", step=print).ask(REQUEST)
    assert refused.value.hint == "do that"  # type: ignore[attr-defined]
    assert refused.value.exit_code == code  # type: ignore[attr-defined]


def test_why_it_hung_up_is_told(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(RANDOM)
    error = {"kind": "disk-full", "message": "no space", "hint": None}
    stream = FakeStream({"event": "error", "error": error, "exit": 7}, deaf_after=1_000_000)
    with pytest.raises(DiskFullError, match="board: no space"):
        Exchange(stream, "board", step=print).send(
            (need(RANDOM),), {need(RANDOM).sha256: tmp_path / "blob"}
        )


@pytest.mark.parametrize(
    ("returncode", "error", "text"),
    [
        (0, ConnectionLostError, "without an answer"),
        (126, RemoteError, "exit code 126: \n  oh dear"),
    ],
)
def test_no_answer(returncode: int, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Exchange(FakeStream(returncode=returncode), "board", step=print).ask(REQUEST)


def test_the_rate_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that only sleeping moves."""
    (tmp_path / "blob").write_bytes(RANDOM[:500_000])
    now, here, really = [100.0], threading.get_ident(), time.sleep

    def sleep(seconds: float) -> None:
        # Another test's thread may still sleep.
        if threading.get_ident() == here:
            now[0] += seconds
        else:
            really(seconds)

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr("edgepack.device.patience.time", clock)
    exchange = Exchange(FakeStream(), "board", step=print)
    wanted = need(RANDOM[:500_000])
    exchange.send((wanted,), {wanted.sha256: tmp_path / "blob"}, limit_bytes_s=100_000)
    assert now[0] - 100 == pytest.approx(500_000 / 100_000, rel=0.1)

"""The operator's side of `edgepack-device receive`: one request, then only what is missing.

Over one stream (a command's input and output):

    here  -> there   a JSON line (`InstallRequest`), then manifest, signature, signers as they are
    there -> here    {"event": "state", "needs": [...], ...}
    here  -> there   frames of each needed blob, in that order
    there -> here    {"event": "step", ...} ..., then {"event": "done"} or {"event": "error"}

A frame is u8 kind, u32le a, u32le b and, for data, `a` bytes. A blob that was cut off goes on
at the byte where it was (`have`); chunks that the device has in another version of the file
are named, not sent (`edgepack.chunks`). Everything is hashed there before it counts.
"""

from __future__ import annotations

import base64
import contextlib
import json
import mmap
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepack.base.errors import EdgepackError, RemoteError
from edgepack.base.text import message
from edgepack.deploy import chunks
from edgepack.deploy.answers import Answer, DeviceRefusal, SenselessError, read_object
from edgepack.deploy.options import TrialRules
from edgepack.deploy.remote_tool import tool_error
from edgepack.deploy.smoke import Smoke, read_health
from edgepack.device.base import Stream
from edgepack.device.errors import ConnectionLostError, command_error
from edgepack.device.patience import Pace

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PROTOCOL = 1
DATA, ZSTD, COPY, END_OF_BLOB, END_OF_ALL = 1, 2, 3, 4, 5
MAX_EVENTS = 10_000
"""Lines that a device may send before the one that is waited for: steps, and noise."""

_HEADER = struct.Struct("<BII")
_BLOCK = 256 << 10
"""The device unpacks at most this much at once."""

_LEVEL = 3
_SKIP = 7
"""Blocks sent as they are after one that does not shrink: trying costs more than it saves."""

_SILENCE_S = 120.0


def _word(trial: TrialRules | None) -> str:
    if trial is None:
        return "deploy"
    return "split" if trial.split else "trial"


@dataclass(frozen=True, kw_only=True)
class InstallRequest:
    """What the device shall do; `plan` only asks what a deploy would do.

    `signature` and `signers` may be empty. One that has the `session` of another, whose link
    was lost, takes the lock over from it. `wait_s` bounds the wait for another deploy,
    `silence_s` that for the next event. `retest` asks for the health gate even if the
    release has passed it before. With `trial` the release is not activated but tried.
    """

    manifest: bytes
    signature: bytes
    signers: bytes
    by: str
    session: str
    plan: bool = False
    keep: int
    wait_s: float
    silence_s: float
    allow_downgrade: bool = False
    retest: bool = False
    trial: TrialRules | None = None

    def to_bytes(self) -> bytes:
        """The line and what follows it."""
        head: dict[str, Any] = {
            "protocol": PROTOCOL,
            # Words of their own: a device tool that knows no trials must not activate the release,
            # and one that knows no A/B tests not begin a trial without.
            "op": "plan" if self.plan else _word(self.trial),
            "by": self.by,
            # A second opinion, for a device whose own clock may be wrong.
            "time": int(time.time()),
            "session": self.session,
            "keep": self.keep,
            "wait_s": self.wait_s,
            "allow_downgrade": self.allow_downgrade,
            "retest": self.retest,
            "manifest_bytes": len(self.manifest),
            "signature_bytes": len(self.signature),
            "signers_bytes": len(self.signers),
        }
        if self.trial:
            head["trial"] = self.trial.to_dict()
        return json.dumps(head).encode() + b"\n" + self.manifest + self.signature + self.signers


@dataclass(frozen=True, kw_only=True)
class Need:
    """A blob the device lacks: the first `have` of its `size` bytes are there.

    `base` are the chunks that it has of another version of the file.
    """

    sha256: str
    size: int
    have: int
    base: tuple[tuple[int, bytes], ...]

    @property
    def left(self) -> int:
        """Bytes that are missing."""
        return self.size - self.have


@dataclass(frozen=True, kw_only=True)
class RemoteState:
    """What the device says before anything is sent.

    `current` and `previous` are release ids. `unchanged`: the release is current, whole
    and tested. `same_version` is another one with the same version, if signers are pinned. `remove`
    are releases that would go.
    """

    current: str | None
    previous: str | None
    needs: tuple[Need, ...]
    unchanged: bool
    remove: tuple[str, ...]
    same_version: str | None = None


@dataclass(frozen=True, kw_only=True)
class Installed:
    """What the device says when it is done; `smoke` is None if nothing was tested."""

    outcome: str
    previous: str | None
    removed: tuple[str, ...]
    signer: str | None
    pinned: str | None
    received_bytes: int
    smoke: Smoke | None
    smoke_fresh: bool
    same_version: str | None = None

    @staticmethod
    def read(answer: Answer) -> Installed:
        pinned = answer.take("pinned", str, None)
        return Installed(
            outcome=answer.text("outcome"),
            previous=answer.text_or_none("previous"),
            removed=answer.texts("removed"),
            signer=answer.text_or_none("signer"),
            pinned=None if pinned is None else message(pinned),
            received_bytes=answer.size("received_bytes"),
            smoke=answer.part("health", read_health),
            smoke_fresh=answer.take("health_fresh", bool),
            same_version=answer.text_or_none("same_version"),
        )


class Exchange:
    """One request to a `receive` at the other end of `stream`.

    Its methods raise ConnectionLostError if the link goes away, and what `tool_error` makes
    of the device's refusals. `sent` has the bytes that were written for each blob, by its
    SHA-256, and `copied_bytes` is what was named instead.
    """

    def __init__(self, stream: Stream, device: str, *, step: Callable[[str], None]) -> None:
        self._stream = stream
        self._device = device
        self._step = step
        self._silence_s: float = _SILENCE_S
        self.sent: dict[str, int] = {}
        self.copied_bytes = 0

    def ask(self, request: InstallRequest) -> RemoteState:
        """Send the request and wait for the answer."""
        self._silence_s = request.silence_s
        self._write(request.to_bytes())
        return _read_state(self._event("state"))

    def send(
        self,
        needs: tuple[Need, ...],
        files: Mapping[str, Path],
        *,
        limit_bytes_s: float | None = None,
        sent: Callable[[int], None] | None = None,
        moved: Callable[[int], None] | None = None,
    ) -> None:
        """Send the blobs from `files` (by SHA-256).

        `sent` is told how many of their bytes are done, `moved` how many went over for that.
        """
        pace = Pace(limit_bytes_s)
        for need in needs:
            path = files[need.sha256]
            with _content(path) as content:
                if len(content) != need.size:
                    raise RemoteError(f"{path} was changed while it was sent")
                for frame, done in frames(need, content):
                    for piece in pace.pieces(frame):
                        # Before it is: a piece that is cut counts whole.
                        self.sent[need.sha256] = self.sent.get(need.sha256, 0) + len(piece)
                        self._write(piece)
                        if moved:
                            moved(len(piece))
                    self.copied_bytes += done if frame[0] == COPY else 0
                    if sent:
                        sent(done)
        if needs:
            self._write(_HEADER.pack(END_OF_ALL, 0, 0))

    def finish(self) -> Installed:
        """The device's report, when it is done."""
        return self._event("done").need("report", Installed.read)

    def _write(self, data: bytes) -> None:
        try:
            self._stream.write(data)
        except BrokenPipeError:
            # It has said why before it hung up.
            self._event("error")

    def _event(self, wanted: str) -> Answer:
        for _ in range(MAX_EVENTS):
            line = self._stream.read_line(self._silence_s)
            if not line:
                raise self._ended()
            if not line.lstrip().startswith(b"{"):
                continue  # some login script's greeting
            event = read_object(
                line.decode(errors="replace"), f"{self._device}: edgepack-device receive"
            )
            match event.take("event", str, ""):
                case "error":
                    said = event.need("error", DeviceRefusal.read)
                    raise tool_error(self._device, said, event.take("exit", int))
                case "step":
                    self._step(event.text("text" if event.has("text") else "name"))
                case kind if kind == wanted:
                    return event
        raise SenselessError(
            f"{self._device}: edgepack-device receive: {MAX_EVENTS} lines and no {wanted}"
        )

    def _ended(self) -> EdgepackError:
        done = self._stream.finish()
        if done.returncode == 0:
            return ConnectionLostError(f"{self._device}: the device tool ended without an answer")
        return command_error(self._device, done)


def frames(need: Need, content: memoryview) -> Iterator[tuple[bytes, int]]:
    """The frames of one blob, from byte `need.have` on, and how many bytes each stands for."""
    at = need.have
    for index, count, start, end in _copies(need, content):
        yield from _data_frames(content[at:start])
        yield _HEADER.pack(COPY, index, count), end - start
        at = end
    yield from _data_frames(content[at:])
    yield _HEADER.pack(END_OF_BLOB, 0, 0), 0


def packed_bytes(needs: tuple[Need, ...], files: Mapping[str, Path]) -> int:
    """What `Exchange.send` would write for the blobs."""
    total = 0
    for need in needs:
        with _content(files[need.sha256]) as content:
            total += sum(len(frame) for frame, _ in frames(need, content))
    return total


def _copies(need: Need, content: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Runs of chunks that are there: index of the first, count, and where they lie here."""
    known = {key: index for index, key in reversed(list(enumerate(need.base)))}
    run: tuple[int, int, int, int] | None = None
    for chunk in chunks.chunks(content) if known else ():
        if chunk.offset < need.have:
            continue
        end = chunk.offset + chunk.size
        if run is not None:
            index, count, start, before = run
            following = index + count
            if before == chunk.offset and need.base[following : following + 1] == (chunk.key,):
                run = index, count + 1, start, end
                continue
            yield run
            run = None
        if chunk.key in known:
            run = known[chunk.key], 1, chunk.offset, end
    if run is not None:
        yield run


def _data_frames(content: memoryview) -> Iterator[tuple[bytes, int]]:
    skip = 0
    for start in range(0, len(content), _BLOCK):
        block = content[start : start + _BLOCK]
        packed = block
        if skip:
            skip -= 1
        else:
            packed = memoryview(zstd.compress(block, _LEVEL))
            if len(packed) >= len(block):
                packed, skip = block, _SKIP
        kind = DATA if packed is block else ZSTD
        head = _HEADER.pack(kind, len(packed), len(block) if kind == ZSTD else 0)
        yield head + packed, len(block)


@contextlib.contextmanager
def _content(path: Path) -> Iterator[memoryview]:
    """The bytes of a file, mapped."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:  # which mmap refuses
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            view = memoryview(mapped)
            try:
                yield view
            finally:
                view.release()


def _read_state(answer: Answer) -> RemoteState:
    return RemoteState(
        current=answer.text_or_none("current"),
        previous=answer.text_or_none("previous"),
        needs=answer.parts("needs", _read_need),
        unchanged=answer.take("unchanged", bool),
        same_version=answer.text_or_none("same_version"),
        remove=answer.texts("remove"),
    )


def _read_need(answer: Answer) -> Need:
    need = Need(
        sha256=answer.text("sha256"),
        size=answer.size("size"),
        have=answer.size("have"),
        base=answer.part("base", _read_chunks) or (),
    )
    if need.have > need.size:
        raise answer.fail("have", f"{need.have} of {need.size} bytes")
    return need


def _read_chunks(answer: Answer) -> tuple[tuple[int, bytes], ...]:
    try:
        return tuple(chunks.parse(base64.b64decode(answer.take("chunks", str))))
    except (ValueError, struct.error):
        raise answer.fail("chunks", "no list of chunks") from None

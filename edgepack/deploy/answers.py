"""What a device answers, as records: nothing of it is believed before it was looked at.

A device may be broken, or somebody else's. What it says is read with bounds on size, depth
and counts; a field that is missing or of another type is a SenselessError that names the device,
the command and the field. Texts in records are for people: on one line, printable and of a
bounded length (`edgepack.base.text`). `document` is the answer as it was, for --json.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from edgepack.base import page
from edgepack.base.errors import RemoteError
from edgepack.base.tables import Table
from edgepack.base.text import MAX_NAME, format_count, message, one_line
from edgepack.bundle.manifest import parse_time
from edgepack.bundle.verified import Verified
from edgepack.model.sources.record import ModelSource

MAX_DEPTH = 32
MAX_VALUES = 250_000
"""A benchmark of many runs has a time for each."""

_LARGEST = 2**63
_NUMBER_LETTERS = 40
# Strings whole, so that brackets in them do not count.
_TOKENS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]|,', re.DOTALL)
T = TypeVar("T")


class SenselessError(RemoteError):
    """An answer of a device that nobody can make anything of."""


class Answer(Table):
    """An object that a device sent, to be taken apart; `source` is the device and command.

    Unknown keys are left alone: a newer device tool may have more to say.
    """

    def __init__(self, values: Mapping[str, Any], source: str, path: str = "") -> None:
        super().__init__(values, file=source, path=path, error=SenselessError)
        self._source = source
        self.document = values

    def fail(self, key: str, problem: str, *, hint: str | None = None) -> SenselessError:
        """See `Table.fail`."""
        return SenselessError(
            f"{self._source}: {self.name(key)}: {one_line(problem, limit=80)}",
            hint=hint or "is that a device tool of edgepack? deploying again puts one there",
        )

    def text(self, key: str) -> str:
        """A string, for people."""
        return one_line(self.take(key, str))

    def text_or_none(self, key: str) -> str | None:
        """The same, or null, or not there."""
        value = self.take(key, str, None)
        return None if value is None else one_line(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of them."""
        return tuple(one_line(value) for value in self.take_list(key, str))

    def size(self, key: str) -> int:
        """A whole number that is not negative."""
        value = self.take(key, int)
        if value < 0:
            raise self.fail(key, f"{value} is negative")
        return value

    def part(self, key: str, read: Callable[[Answer], T]) -> T | None:
        """What `read` makes of the object under `key`; None for null, or if it is not there."""
        values: dict[str, Any] | None = self.take(key, dict, None)
        return None if values is None else read(Answer(values, self._source, self.name(key)))

    def need(self, key: str, read: Callable[[Answer], T]) -> T:  # type: ignore[override]
        """What `read` makes of the object under `key`."""
        return read(Answer(self.take(key, dict), self._source, self.name(key)))

    def parts(self, key: str, read: Callable[[Answer], T]) -> tuple[T, ...]:
        """What `read` makes of each object of a list."""
        return tuple(
            read(Answer(values, self._source, f"{self.name(key)}[{index}]"))
            for index, values in enumerate(self.take_list(key, dict))
        )


def read_object(text: str, source: str) -> Answer:
    """The JSON object that `text` is. Raises SenselessError."""
    return Answer(parse_object(text, source), source)


def parse_object(text: str, source: str) -> dict[str, Any]:
    """The JSON object that `text` is, within the bounds. Raises SenselessError."""
    try:
        _check_bounds(text)
        value = json.loads(text, parse_int=_integer, parse_float=_number, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise SenselessError(
            f"{source}: its answer is not JSON that edgepack reads: {one_line(error, limit=80)}",
            hint=f"it begins with {one_line(text, limit=60)!r}",
        ) from None
    if not isinstance(value, dict):
        raise SenselessError(f"{source}: its answer is not a JSON object")
    return value


def _check_bounds(text: str) -> None:
    """Before a parser sees it: what is small as text may be large as objects."""
    depth = values = 0
    for match in _TOKENS.finditer(text):
        first = match[0][0]
        if first in "[{":
            depth += 1
        elif first in "]}":
            depth -= 1
        values += first in "[{,"
        if depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} levels")
        if values > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} values")


def _integer(text: str) -> int:
    value = int(text) if len(text) < _NUMBER_LETTERS else _LARGEST
    if not -_LARGEST <= value < _LARGEST:
        raise ValueError(f"a number of {len(text)} digits")
    return value


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:20]}")
    return value


def _no_number(text: str) -> float:
    raise ValueError(text)


@dataclass(frozen=True, kw_only=True)
class DeviceRefusal:
    """What a device says when it does not do something; `kind` is one word."""

    kind: str
    message: str
    hint: str | None

    @staticmethod
    def read(answer: Answer) -> DeviceRefusal:
        """Of {"kind", "message", "hint"}."""
        hint = answer.take("hint", str, None)
        return DeviceRefusal(
            kind=answer.take("kind", str, ""),
            message=message(answer.take("message", str)),
            hint=message(hint, limit=MAX_NAME) if hint else None,
        )


@dataclass(frozen=True, kw_only=True)
class HealthOutcome:
    """How the last test of a release went; `latency_ms` is one run."""

    outcome: str
    at: str
    latency_ms: float | None
    max_abs_error: float | None
    max_rss_mb: float | None

    @staticmethod
    def read(answer: Answer) -> HealthOutcome:
        return HealthOutcome(
            outcome=answer.text("outcome"),
            at=answer.text("at"),
            latency_ms=answer.take("latency_ms", float, None),
            max_abs_error=answer.take("max_abs_error", float, None),
            max_rss_mb=answer.take("max_rss_mb", float, None),
        )


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release that `current` or `previous` names; `signer` is empty if nobody signed it.

    `compared` says on which inputs the model was compared with its reference before it was packed;
    None if that is not recorded, or the device tool is too old to tell.
    """

    release: str
    name: str
    board: str
    model: str
    model_sha256: str
    version: int
    since: str
    by: str
    signer: str
    compared: Verified | None
    health: HealthOutcome | None

    @staticmethod
    def read(answer: Answer) -> Release:
        return Release(
            release=answer.text("release"),
            name=answer.text("name"),
            board=answer.text("board"),
            model=answer.text("model"),
            model_sha256=answer.text("model_sha256"),
            version=answer.take("version", int),
            since=answer.text("since"),
            by=answer.text("by"),
            signer=answer.text_or_none("signer") or "",
            compared=answer.part(
                "compared",
                lambda it: Verified(emulated=it.texts("emulated"), local=it.texts("local")),
            ),
            health=answer.part("health", HealthOutcome.read),
        )


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who works on the device now."""

    by: str
    since: str

    @staticmethod
    def read(answer: Answer) -> Holder:
        return Holder(by=answer.text("by"), since=answer.text("since"))


@dataclass(frozen=True, kw_only=True)
class Newest:
    """The release of the highest version that was ever current.

    `at` is when it came, `now` what the device's clock says, `valid_until` what the release says.
    """

    version: int
    at: str
    now: str
    valid_until: str | None

    def __str__(self) -> str:
        """For a person: "version 7, here for 12 days; valid until 2027-01-31T12:00:00Z"."""
        came, now = parse_time(self.at), parse_time(self.now)
        age = (
            f"here for {format_count((now - came).days, 'day')}"
            if came and now
            else "of no known age"
        )
        if not self.valid_until:
            return f"version {self.version}, {age}"
        until = parse_time(self.valid_until)
        word = "was valid" if until and now and now > until else "valid"
        return f"version {self.version}, {age}; {word} until {self.valid_until}"


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How far live input is from the release's photos, of one `signal`: "brightness", "scores" or
    "classes". `level` is 0, 1 (they differ) or 2 (they differ much), since `since`."""

    signal: str
    level: int
    since: str | None

    @staticmethod
    def read(answer: Answer) -> Drift:
        level = answer.size("level")
        if level > 2:
            raise answer.fail("level", f"{level} is not 0, 1 or 2")
        return Drift(signal=answer.text("signal"), level=level, since=answer.text_or_none("since"))


@dataclass(frozen=True, kw_only=True)
class Status:
    """The result of `edgepack-device status`. `pending` is the release that is being tested.
    `newest` is None if no release was ever current, or if the device tool is too old. `source`
    is the source of the current release's model, if it was requested and is recorded.
    `processor`, "gpu" or "cpu", is None if the model has no plan for a GPU, or if the app does not
    say (`--metrics` of its service)."""

    tool: str
    current: Release | None
    previous: Release | None
    releases: int
    blobs: int
    store_bytes: int
    pending: str | None
    signers: tuple[str, ...]
    newest: Newest | None = None
    processor: str | None = None
    drift: tuple[Drift, ...] = ()
    lock: Holder | None
    source: ModelSource | None = None
    document: Mapping[str, Any] = field(repr=False)

    @staticmethod
    def read(answer: Answer) -> Status:
        now = answer.text_or_none("now") or ""
        blobs, store_bytes = answer.need("store", lambda it: (it.size("blobs"), it.size("bytes")))
        return Status(
            tool=answer.text("tool"),
            current=answer.part("current", Release.read),
            previous=answer.part("previous", Release.read),
            releases=len(answer.take_list("releases", dict)),
            blobs=blobs,
            store_bytes=store_bytes,
            pending=answer.part("pending", lambda it: it.text("release")),
            signers=answer.texts("signers"),
            newest=answer.part(
                "newest",
                lambda it: Newest(
                    version=it.take("version", int),
                    at=it.text("at"),
                    now=now,
                    valid_until=it.text_or_none("valid_until"),
                ),
            ),
            processor=_processor(answer),
            drift=_parts_or_none(answer, "drift", Drift.read),
            lock=answer.part("lock", Holder.read),
            document=answer.document,
        )

    def _repr_html_(self) -> str:
        current = self.current
        said = page.facts(
            {
                "model": f"{current.name}: {current.model}" if current else "nothing",
                "release": current.release if current else None,
                "source": self.source,
                "since": f"{current.since} by {current.by}" if current else None,
                "signer": current.signer if current else None,
                "runs on": self.processor and self.processor.upper(),
                "smoke test": current.health.outcome if current and current.health else None,
                "before": self.previous.release if self.previous else None,
                "being tested": self.pending,
            }
        )
        return page.embed_parts(said)


def _processor(answer: Answer) -> str | None:
    found = answer.text_or_none("processor")
    if found not in (None, "gpu", "cpu"):
        raise answer.fail("processor", f"{found!r} is neither gpu nor cpu")
    return found


def _parts_or_none(answer: Answer, key: str, read: Callable[[Answer], T]) -> tuple[T, ...]:
    """As `Answer.parts`; nothing for null, or what an older device tool does not tell."""
    return () if answer.document.get(key) is None else answer.parts(key, read)


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Whose bundles a device takes: `list` is the file, None if everybody's."""

    signers: tuple[str, ...]
    list: str | None
    document: Mapping[str, Any] = field(repr=False)

    @staticmethod
    def read(answer: Answer) -> Trust:
        return Trust(
            signers=answer.texts("signers"),
            list=answer.take("list", str, None),
            document=answer.document,
        )


@dataclass(frozen=True, kw_only=True)
class Switched:
    """The release that a rollback made current, and the one before it."""

    release: str
    before: str | None
    document: Mapping[str, Any] = field(repr=False)

    @staticmethod
    def read(answer: Answer) -> Switched:
        return Switched(
            release=answer.text("release"),
            before=answer.text_or_none("before"),
            document=answer.document,
        )


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """The releases that went."""

    removed: tuple[str, ...]
    document: Mapping[str, Any] = field(repr=False)

    @staticmethod
    def read(answer: Answer) -> Pruned:
        return Pruned(removed=answer.texts("removed"), document=answer.document)


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """What was brought back, and what only another command brings back."""

    mended: tuple[str, ...]
    lost: tuple[str, ...]
    document: Mapping[str, Any] = field(repr=False)

    @staticmethod
    def read(answer: Answer) -> Repaired:
        """Raises SenselessError."""
        mended, lost = answer.texts("mended"), answer.texts("lost")
        return Repaired(mended=mended, lost=lost, document=answer.document)

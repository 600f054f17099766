"""Folders and indexes with wheels of programs that somebody built once, for all who look there.

A place is a folder, or the URL of a page with links: a flat one, or an index by PEP 503. Bytes are
what the link's hash says, if it has one, and what the wheel's own RECORD says of each file.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import functools
import hashlib
import io
import os
import re
import urllib.parse
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from edgepack.base.errors import ToolchainError, UsageError
from edgepack.base.version import VERSION

_MOST_BYTES = 512 << 20
_MOST_PAGE_BYTES = 16 << 20
_TIMEOUT_S = 60.0
_EXECUTABLE = 0o111
_HERE = ("localhost", "127.0.0.1", "::1")
_HINT = "without --find-links and EDGEPACK_WHEELS the programs are built from source"

_places: tuple[str, ...] = ()
_places_here: ContextVar[tuple[str, ...] | None] = ContextVar("places_of_wheels", default=None)

Places = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""A folder, or the URL of a page or index; or several."""


class WheelError(ToolchainError):
    """A place of wheels cannot be read, or a wheel there is not what it should be."""


@dataclass(frozen=True, kw_only=True)
class WheelFile:
    """A file of a wheel, below the folder that was asked for."""

    path: str
    data: bytes
    is_program: bool


@dataclass(frozen=True, kw_only=True)
class FoundWheel:
    """A wheel's bytes, and where they came from."""

    source: str
    data: bytes = field(repr=False)

    def has(self, folder: str) -> bool:
        """Whether a file of it lies below `folder`, of the wheel's own package."""
        return any(name.startswith(f"{folder}/") for name in self._archive().namelist())

    def files(self, folder: str) -> list[WheelFile]:
        """All of them, as RECORD has them. Raises `WheelError`."""
        archive = self._archive()
        recorded = self._record(archive)
        found, left = [], _MOST_BYTES
        for entry in archive.infolist():
            if not entry.filename.startswith(f"{folder}/") or entry.is_dir():
                continue
            path = PurePosixPath(entry.filename.removeprefix(f"{folder}/"))
            if path.is_absolute() or ".." in path.parts or "\\" in entry.filename:
                raise self._fail(f"'{entry.filename[:200]}' leads out of it")
            left -= entry.file_size
            if left < 0:
                raise self._fail(f"unpacked, it is larger than {_MOST_BYTES >> 20} MB")
            try:
                data = archive.read(entry)
            except (OSError, ValueError, RuntimeError, EOFError, zipfile.BadZipFile) as error:
                raise self._fail(f"'{entry.filename}' cannot be read: {error}") from None
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            if recorded.get(entry.filename) != f"sha256={digest}":
                raise self._fail(f"'{entry.filename}' is not what its RECORD lists")
            is_program = bool(entry.external_attr >> 16 & _EXECUTABLE)
            found.append(WheelFile(path=str(path), data=data, is_program=is_program))
        return found

    def _archive(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(io.BytesIO(self.data))
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise self._fail(f"it is no wheel: {error}") from None

    def _record(self, archive: zipfile.ZipFile) -> dict[str, str]:
        name = f"{Path(self.source).name.partition('-py3-')[0]}.dist-info/RECORD"
        try:
            rows = csv.reader(io.StringIO(archive.read(name).decode()))
            return {row[0]: row[1] for row in rows if len(row) > 1}
        except (KeyError, OSError, ValueError, zipfile.BadZipFile, csv.Error):
            raise self._fail("it has no RECORD that can be read") from None

    def _fail(self, why: str) -> WheelError:
        return WheelError(f"{self.source}: {why}", hint=_HINT)


def use_places(places: Sequence[str]) -> None:
    """Look there for the wheels of this process (--find-links, EDGEPACK_WHEELS).

    Raises `UsageError` for a URL that is not taken.
    """
    global _places  # noqa: PLW0603 - one process, one list
    _places = _checked(places)
    _wheel_at.cache_clear()


@contextlib.contextmanager
def wheels_from(find_links: Places | None) -> Iterator[None]:
    """Within this block wheels are looked for there, and nowhere else; None changes nothing.

    Raises `UsageError` for a URL that is not taken.
    """
    if find_links is None:
        yield
        return
    several = [find_links] if isinstance(find_links, str | os.PathLike) else find_links
    token = _places_here.set(_checked([os.fspath(place) for place in several]))
    _wheel_at.cache_clear()
    try:
        yield
    finally:
        _places_here.reset(token)


def _checked(places: Sequence[str]) -> tuple[str, ...]:
    for place in places:
        if _is_url(place):
            _check_url(place)
    return tuple(places)


def places() -> tuple[str, ...]:
    """Where wheels are looked for, beside those that are installed."""
    here = _places_here.get()
    return _places if here is None else here


def find_wheel(package: str) -> FoundWheel | None:
    """The wheel of `package`, of edgepack's own version, at the first place that has one.

    Raises `WheelError` for a place that cannot be read: what it would have spared takes long.
    """
    return _wheel_at(places(), package)


@functools.cache
def _wheel_at(places: tuple[str, ...], package: str) -> FoundWheel | None:
    for place in places:
        found = _at_url(place, package) if _is_url(place) else _in_folder(Path(place), package)
        if found is not None:
            return found
    return None


def _is_wheel(name: str, package: str) -> bool:
    module, version = package.replace("-", "_"), re.escape(VERSION)
    return bool(re.fullmatch(rf"{module}-{version}(-[0-9][^-]*)?-py3-none-any\.whl", name))


def _in_folder(folder: Path, package: str) -> FoundWheel | None:
    try:
        names = sorted(path.name for path in folder.expanduser().iterdir())
        for name in reversed(names):  # the highest build number
            if _is_wheel(name, package):
                file = folder.expanduser() / name
                if file.stat().st_size > _MOST_BYTES:
                    raise WheelError(f"{file}: larger than {_MOST_BYTES >> 20} MB", hint=_HINT)
                return FoundWheel(source=str(file), data=file.read_bytes())
    except OSError as error:
        raise WheelError(
            f"no wheels can be read in {folder}: {error.strerror or error}", hint=_HINT
        ) from None
    return None


def _is_url(place: str) -> bool:
    return "://" in place


def _check_url(url: str) -> None:
    try:
        parts = urllib.parse.urlsplit(url)
        host, secret = parts.hostname or "", parts.password
    except ValueError:
        raise UsageError("--find-links: an address that cannot be read") from None
    if secret is not None:
        raise UsageError(f"--find-links: {host}: an address with a password is not taken")
    if parts.scheme != "https" and not (parts.scheme == "http" and host in _HERE):
        raise UsageError(
            f"--find-links: {url[:200]}: not https",
            hint="what lies there runs on boards; a folder is taken as well",
        )


def _at_url(url: str, package: str) -> FoundWheel | None:
    base = url if url.endswith((".html", ".htm", "/")) else f"{url}/"
    answers = 0
    for page in (base, urllib.parse.urljoin(base, f"{package}/")):
        got = _get(page, _MOST_PAGE_BYTES, or_none=True)
        if got is None:
            continue
        answers += 1
        at, data = got
        links = [(urllib.parse.urljoin(at, link), link) for link in _links(data)]
        for target, _ in sorted(links, reverse=True):
            plain, _, said = target.partition("#")
            name = urllib.parse.unquote(urllib.parse.urlsplit(plain).path).rpartition("/")[2]
            if _is_wheel(name, package):
                return _download(plain, said, name)
    if not answers:
        raise WheelError(f"{url}: there is no such page", hint=_HINT)
    return None


def _download(url: str, said: str, name: str) -> FoundWheel:
    got = _get(url, _MOST_BYTES)
    assert got is not None
    _, data = got
    wanted = urllib.parse.parse_qs(said).get("sha256", [""])[0]
    if wanted and hashlib.sha256(data).hexdigest() != wanted.lower():
        raise WheelError(f"{url}: not the wheel whose hash is in its link", hint=_HINT)
    return FoundWheel(source=f"{url.rpartition('/')[0]}/{name}", data=data)


def _links(page: bytes) -> list[str]:
    from html.parser import HTMLParser  # here as below: most commands look at no page

    found: list[str] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.extend(value for key, value in attrs if tag == "a" and key == "href" and value)

    Links().feed(page.decode(errors="replace"))
    return found


def _get(url: str, most: int, *, or_none: bool = False) -> tuple[str, bytes] | None:
    """What a page is, and its address after redirections; None where there is none."""
    import urllib.error
    import urllib.request

    _check_url(url)
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - checked
            _check_url(answer.url)
            data: bytes = answer.read(most + 1)
            at: str = answer.url
    except urllib.error.HTTPError as error:
        if or_none and error.code == 404:
            return None
        raise WheelError(f"{url}: {error.code} {error.reason}", hint=_HINT) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise WheelError(f"{url}: {reason}", hint=_HINT) from None
    if len(data) > most:
        raise WheelError(f"{url}: larger than {most >> 20} MB", hint=_HINT)
    return at, data

"""Where things are: data files that travel with the package, the cache, models on a device."""

from __future__ import annotations

import contextlib
import contextvars
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from edgepack.base.errors import ConfigError

_PACKAGE = Path(__file__).resolve().parents[1]
_cache_dir: Path | None = None
_allow_outside = contextvars.ContextVar("allow_outside", default=False)
_only_cached = contextvars.ContextVar("only_cached", default=False)


class NotCachedError(Exception):
    """Within `only_cached`: `path` of the cache would have to be made."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"not in the cache: {path}")
        self.path = path


class OutsideError(ValueError):
    """A path that leads out of the folder of the file that names it; the message says how."""


@contextlib.contextmanager
def outside_allowed(is_allowed: bool = True) -> Iterator[None]:
    """Within this block, files may name other files anywhere, as with --allow-outside."""
    token = _allow_outside.set(is_allowed)
    try:
        yield
    finally:
        _allow_outside.reset(token)


def is_outside_allowed() -> bool:
    """Whether this is within `outside_allowed`."""
    return _allow_outside.get()


def inside(folder: Path, name: str) -> Path:
    """The path that a file in `folder` calls `name`, after all links within `folder` or below it.

    Raises OutsideError for any other, unless within `outside_allowed`: who wrote the file is not to
    choose what else is read, and sent to a device.
    """
    path = folder / name
    if not is_outside_allowed():
        try:
            is_inside = path.resolve().is_relative_to(folder.resolve())
        except (OSError, RuntimeError, ValueError):  # a circle of links, a zero byte
            raise OutsideError("cannot be followed") from None
        if not is_inside:
            raise OutsideError(f"leads out of {folder.resolve()}")
    return path


def data_file(name: str) -> Path:
    """Path of `boards.toml`, `toolchains`, `tuned`, `schemas`, `cpp_runtime` or `LICENSE`.

    They lie beside the package in a checkout (and so in an editable install) and
    in `edgepack/data` in a wheel.
    """
    for base in (_PACKAGE / "data", _PACKAGE.parent):
        if (base / name).exists():
            return base / name
    raise FileNotFoundError(f"{name} is missing from this installation of edgepack")


def default_root(name: str) -> str:
    """The folder of the model `name` on a device, below the login's home."""
    return f"edgepack/{name}"


def set_cache_dir(path: Path) -> None:
    """Use `path` instead of ~/.cache/edgepack (the command line's --cache-dir)."""
    global _cache_dir  # noqa: PLW0603 - one process, one cache
    _cache_dir = path


def cache_dir() -> Path:
    """The folder for everything that can be made again: ~/.cache/edgepack.

    Raises ConfigError if it belongs to somebody else, or others can write there: what lies there is
    run here, and sent to devices.
    """
    path = _cache_dir or Path.home() / ".cache" / "edgepack"
    _make_folders(path)
    _check_private(path)
    for parent in path.resolve().parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise ConfigError(
                f"the cache {path} could be replaced by anybody: {parent} is writable by all",
                hint="use another folder: --cache-dir",
            )
    return path


def is_private(about: os.stat_result) -> bool:
    """Whether what this was found out about is ours, and nobody else can write it."""
    writable = not stat.S_ISLNK(about.st_mode) and about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return about.st_uid == os.geteuid() and not writable


def _check_private(folder: Path) -> None:
    about = folder.stat()
    if not is_private(about):
        whose = "writable by others" if about.st_uid == os.geteuid() else "of another user"
        raise ConfigError(
            f"the cache is {whose}: {folder}",
            hint=f"chmod -R go-w {folder}" if whose.startswith("w") else "use --cache-dir FOLDER",
        )


def _make_folders(path: Path) -> None:
    """Make `path` and what is missing above it, for nobody else to write, whatever the umask."""
    missing = [path, *path.parents]
    missing = missing[: next(at for at, folder in enumerate(missing) if folder.exists())]
    for folder in reversed(missing):
        folder.mkdir(mode=0o755, exist_ok=True)


@contextlib.contextmanager
def only_cached() -> Iterator[None]:
    """What takes long to make is taken from the cache in this block; NotCachedError if it cannot.

    That holds for this thread, and what it starts with `Beside`.
    """
    token = _only_cached.set(True)
    try:
        yield
    finally:
        _only_cached.reset(token)


def will_make(path: Path) -> None:
    """Before `path` is made. Raises NotCachedError within `only_cached`, if it is the cache's."""
    if _only_cached.get() and path.is_relative_to(cache_dir()):
        raise NotCachedError(path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock named after `path` (a file `<path>.lock` beside it).

    The file's time says when somebody last asked for `path` (see `edgepack.base.cache`). Raises
    what `open_lock` raises.
    """
    while True:
        with open_lock(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Who held it before may have removed it, and others hold the one of that name now.
            if _is_at(lock.fileno(), Path(f"{path}.lock")):
                os.utime(lock.fileno())
                yield
                return


@contextlib.contextmanager
def open_lock(path: Path) -> Iterator[IO[bytes]]:
    """The file `<path>.lock`, open; it is made if there is none, and never changed.

    Raises ConfigError for a link, or anything else that is no file, in its place, and for a folder
    of the cache that others can write.
    """
    _make_folders(path.parent)
    if path.is_relative_to(cache_dir()):
        for folder in path.relative_to(cache_dir()).parents:
            _check_private(cache_dir() / folder)
    file = Path(f"{path}.lock")
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(file, flags, 0o644)
    except OSError as error:
        raise ConfigError(
            f"a lock of the cache cannot be opened: {file}: {error.strerror}",
            hint="remove what lies in its place",
        ) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ConfigError(
            f"a lock of the cache is no file: {file}", hint="remove what lies in its place"
        )
    with os.fdopen(handle, "r+b", buffering=0) as lock:
        yield lock


def _is_at(handle: int, path: Path) -> bool:
    """Whether the open file is the one that `path` names."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def atomic_dir(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that becomes `path` when the block ends well.

    What was at `path` is replaced; after an exception nothing has changed. Raises what
    `will_make` raises.
    """
    will_make(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    work.chmod(0o755)
    try:
        yield work
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            path.rename(old / path.name)
            work.rename(path)
            shutil.rmtree(old)
        else:
            work.rename(path)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` so that `path` holds either its old or its new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        # mkstemp makes private files.
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

"""Where things are: data files that travel with the package, the cache, models on a device."""

from __future__ import annotations

import contextlib
import contextvars
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_cache_dir: Path | None = None
_only_cached = contextvars.ContextVar("only_cached", default=False)


class NotCachedError(Exception):
    """Within `only_cached`: `path` of the cache would have to be made."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"not in the cache: {path}")
        self.path = path


def data_file(name: str) -> Path:
    """Path of `boards.toml`, `toolchains`, `tuned`, `cpp_runtime` or `LICENSE`.

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
    """The folder for everything that can be made again: ~/.cache/edgepack."""
    path = _cache_dir or Path.home() / ".cache" / "edgepack"
    path.mkdir(parents=True, exist_ok=True)
    return path


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

    The file's time says when somebody last asked for `path` (see `edgepack.base.cache`).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = Path(f"{path}.lock")
    while True:
        with file.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Who held it before may have removed it, and others hold the one of that name now.
            if _is_at(lock.fileno(), file):
                yield
                return


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

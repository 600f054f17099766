"""What lies in the cache, how long nobody needed it, and making room.

Everything there can be made again. An entry is what one lock guards: `<kind>/<name>`, for zig's
own cache and a Python environment of ./dev the whole folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.kept import SUFFIX
from edgepack.base.paths import open_lock

DAY_S = 24 * 3600
# Whoever asks for an entry may read it long after it let go of the lock, as a rollout does with
# its bundles.
KEEP_S = DAY_S
# State and keys of virtual boards, which are not made again.
_NOT_CACHED = ("virtual",)
_WHOLE = ("zig", "demo")
_ENVIRONMENT = "venv-"
_BY_BOARD = ("made",)


@dataclass(frozen=True, kw_only=True)
class CachedItem:
    """One thing of the cache: its size on the disk, and when it was last asked for (Unix time)."""

    kind: str
    path: Path
    size_bytes: int
    used_at: float


def entries(cache: Path) -> list[CachedItem]:
    """All that `cache` holds, longest unused first."""
    found = [
        CachedItem(kind=kind, path=path, size_bytes=_size(path), used_at=_used_at(path))
        for kind, path in _paths(cache)
    ]
    return sorted(found, key=lambda entry: (entry.used_at, entry.path))


def choose(
    found: Sequence[CachedItem],
    *,
    now: float,
    unused_s: float,
    max_bytes: int | None = None,
    keep: Collection[Path] = (),
) -> list[CachedItem]:
    """Those of `found` to remove, longest unused first.

    All that nobody asked for in `unused_s` seconds; of the rest as many as it takes to get down
    to `max_bytes`. Never what is in, or holds, a path of `keep`, or was used in the last day.
    """
    left = sum(entry.size_bytes for entry in found)
    chosen = []
    for entry in sorted(found, key=lambda entry: entry.used_at):
        unused = now - entry.used_at
        if unused < KEEP_S or any(
            path.is_relative_to(entry.path) or entry.path.is_relative_to(path) for path in keep
        ):
            continue
        if unused >= unused_s or (max_bytes is not None and left > max_bytes):
            chosen.append(entry)
            left -= entry.size_bytes
    return chosen


def remove(entry: CachedItem) -> bool:
    """Remove the entry; False if someone holds its lock.

    It goes in one rename, so that nobody finds half of it.
    """
    lock = _lock_of(entry.path)
    with contextlib.ExitStack() as stack:
        if lock.exists():
            file = stack.enter_context(open_lock(lock.with_suffix("")))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        if entry.path.is_dir():
            _remove_folder(entry.path)
        else:
            entry.path.unlink(missing_ok=True)
        entry.path.with_name(f"{entry.path.name}{SUFFIX}").unlink(missing_ok=True)
        lock.unlink(missing_ok=True)
    return True


def _remove_folder(path: Path) -> None:
    gone = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    path.rename(gone / path.name)
    # A root file system has folders that even their owner may not read or write.
    for folder, names, _ in os.walk(gone):
        for inside in (Path(folder, name) for name in names):
            if not inside.is_symlink():
                inside.chmod(0o700)
    shutil.rmtree(gone)


def _paths(cache: Path) -> Iterator[tuple[str, Path]]:
    for top in sorted(cache.iterdir()):
        if top.name in _NOT_CACHED or not top.is_dir() or top.is_symlink():
            continue
        if top.name.startswith(_ENVIRONMENT):
            yield "venv", top
        elif top.name in _WHOLE:
            yield top.name, top
        else:
            folders = sorted(top.iterdir()) if top.name in _BY_BOARD else [top]
            for folder in folders:
                if folder.is_dir():
                    yield from ((top.name, path) for path in _children(folder))


def _children(folder: Path) -> list[Path]:
    names = {path.name for path in folder.iterdir()}
    # Its lock or its hashes, without what they are for, are an entry of their own.
    beside = {f"{name}{suffix}" for name in names for suffix in (".lock", SUFFIX)}
    return sorted(folder / name for name in names - beside)


def _lock_of(path: Path) -> Path:
    """The lock that guards `path`; that of `a` for what a killed `atomic_dir` left as `.a.xyz`."""
    name = path.name
    if name.startswith("."):
        name = name[1:].rpartition(".")[0].removesuffix(".old")
    return path if name.endswith(".lock") else path.with_name(f"{name}.lock")


def _used_at(path: Path) -> float:
    """`locked` makes its file new each time, and ./dev touches `ready` of the one it enters."""
    times = []
    for file in (path, _lock_of(path), path / "ready"):
        with contextlib.suppress(OSError):
            times.append(file.lstat().st_mtime)
    return max(times, default=0.0)


def _size(path: Path) -> int:
    """Bytes on the disk of a file, or of all files in a folder; those that go meanwhile count 0."""
    with contextlib.suppress(OSError):
        total = path.lstat().st_blocks * 512
        if path.is_dir() and not path.is_symlink():
            with os.scandir(path) as inside:
                return total + sum(
                    _size(Path(item.path))
                    if item.is_dir(follow_symlinks=False)
                    else item.stat(follow_symlinks=False).st_blocks * 512
                    for item in inside
                )
        return total
    return 0

"""Entries of the cache, whose every file is compared with its hash each time before it is used.

A disk that rots, a copy that was cut or a file that somebody edited is found so, and made again.
The hashes of the entry `<kind>/<name>` lie beside it, in `<kind>/<name>.sha256`: a line for each
file, "<sha256> <path>", for a link "link <path> -> <target>". They are no signature: who can write
the cache can write them, too, so what others can write is not used at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from edgepack.base.paths import atomic_dir, cache_dir, is_private, locked, open_lock, write_atomic

log = logging.getLogger(__name__)

SUFFIX = ".sha256"
_OTHERS = 0o022
_ZIG = "zig"
# What zig never writes again once it is there: compiled code, and C libraries.
_ZIG_OUTPUTS = "o"
_zig_checked: set[Path] = set()
_zig_checking = threading.Lock()


def keep(folder: Path, make: Callable[[Path], None]) -> Path:
    """The entry `folder` of the cache, whole; `make` fills it if it is missing or damaged.

    `make` is given another folder, which becomes `folder`; NotCachedError within `only_cached`.
    """
    with locked(folder):
        if not _is_whole(folder):
            _sums(folder).unlink(missing_ok=True)
            with atomic_dir(folder) as work:
                make(work)
                _take_from_others(work)
                lines = _lines(work)
            write_atomic(_sums(folder), lines.encode())
    return folder


def keep_file(path: Path, make: Callable[[], bytes]) -> bytes:
    """The content of the entry `path`, a file; `make` makes it if it is missing or damaged."""
    with locked(path):
        if not _is_whole(path):
            data = make()
            _sums(path).unlink(missing_ok=True)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            write_atomic(path, data)
            write_atomic(_sums(path), _lines(path).encode())
            return data
        return path.read_bytes()


def damage(path: Path) -> str | None:
    """What is wrong with an entry that is there, in words; None if it is what was made."""
    try:
        known = _sums(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return "there are no hashes of it"
    except (OSError, UnicodeDecodeError):
        return "its hashes cannot be read"
    try:
        found = _lines(path)
    except _OthersError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    if found == known:
        return None
    differing = set(found.splitlines()) ^ set(known.splitlines())
    names = sorted({line.partition(" ")[2].partition(" -> ")[0] for line in differing})
    return f"{', '.join(names[:3])}: not what was made"


@contextlib.contextmanager
def zig_cache() -> Iterator[dict[str, str]]:
    """The environment in which to run zig within this block; its cache lies in ours.

    What zig made before is compared with its hashes when a process first asks. If something is
    damaged, all of it is removed, and zig makes it again. Others may use it at the same time.
    """
    folder = (cache_dir() / _ZIG).resolve()
    with _zig_checking:
        if folder not in _zig_checked:
            _check_zig(folder)
            _zig_checked.add(folder)
    with open_lock(folder) as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield {"ZIG_GLOBAL_CACHE_DIR": str(folder)}
        # While anybody else uses it, there may be halves of what is being made: the last notes all.
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _note_zig(folder)


def _check_zig(folder: Path) -> None:
    with open_lock(folder) as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if _zig_damage(folder) is None:
            return
        # Nobody else may be using it while it goes.
        fcntl.flock(lock, fcntl.LOCK_UN)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if problem := _zig_damage(folder):
            _say(folder, problem)
            # In one step: zig takes an output that it finds in its index for granted.
            gone = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
            folder.rename(gone / folder.name)
            _sums(folder).unlink(missing_ok=True)
            shutil.rmtree(gone)


def _zig_damage(folder: Path) -> str | None:
    """What is wrong with outputs of zig's that were there before."""
    for name, known in _zig_known(folder).items():
        output = folder / _ZIG_OUTPUTS / name
        with contextlib.suppress(FileNotFoundError):  # it is made again
            output.lstat()
            try:
                if _digest_of_lines(output) != known:
                    return f"{output.relative_to(folder)}: not what was made"
            except (OSError, _OthersError) as error:
                return str(error)
    return None


def _note_zig(folder: Path) -> None:
    """Write down the outputs that were made since the last time."""
    known, there = _zig_known(folder), _zig_outputs(folder)
    if known.keys() == there:
        return
    for name in there - known.keys():
        with contextlib.suppress(OSError):
            _take_from_others(folder / _ZIG_OUTPUTS / name)
            known[name] = _digest_of_lines(folder / _ZIG_OUTPUTS / name)
    lines = (f"{known[name]} {name}\n" for name in sorted(known.keys() & there))
    write_atomic(_sums(folder), "".join(lines).encode())


def _zig_outputs(folder: Path) -> set[str]:
    with contextlib.suppress(FileNotFoundError):
        return {path.name for path in (folder / _ZIG_OUTPUTS).iterdir()}
    return set()


def _zig_known(folder: Path) -> dict[str, str]:
    try:
        lines = _sums(folder).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    return {name: digest for digest, _, name in (line.partition(" ") for line in lines)}


def _digest_of_lines(path: Path) -> str:
    return hashlib.sha256(_lines(path).encode()).hexdigest()


def _is_whole(path: Path) -> bool:
    """Whether the entry can be used; says what is wrong with one that is there."""
    if not os.path.lexists(path):
        return False
    problem = damage(path)
    if problem is not None:
        _say(path, problem)
    return problem is None


def _say(path: Path, problem: str) -> None:
    name = path.relative_to(cache_dir()) if path.is_relative_to(cache_dir()) else path
    log.warning("the cache's %s is damaged and made again: %s", name, problem)


def _sums(path: Path) -> Path:
    return path.with_name(f"{path.name}{SUFFIX}")


class _OthersError(Exception):
    """A file that is not only ours to write."""


def _lines(top: Path) -> str:
    """A line for each file and link below `top`, or for the file `top`, in order.

    Raises `_OthersError` for what others own or can write, OSError.
    """
    return "".join(f"{line}\n" for line in sorted(_line_of_each(top, "")))


def _line_of_each(path: Path, name: str) -> Iterator[str]:
    about = path.lstat()
    if not is_private(about):
        raise _OthersError(f"{name or path.name}: of another owner, or writable by others")
    if stat.S_ISDIR(about.st_mode):
        with os.scandir(path) as inside:
            names = [item.name for item in inside]
        for below in names:
            yield from _line_of_each(path / below, f"{name}/{below}" if name else below)
    elif stat.S_ISLNK(about.st_mode):
        yield f"link {name} -> {path.readlink()}"
    elif stat.S_ISREG(about.st_mode):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        yield f"{digest} {name or path.name}"
    else:
        yield f"special {name}"


def _take_from_others(top: Path) -> None:
    """Whatever the umask is, what was made is writable by its owner only."""
    paths = [top]
    for folder, folders, files in os.walk(top):
        paths += [Path(folder, name) for name in (*folders, *files)]
    for path in paths:
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & _OTHERS:
            path.chmod(stat.S_IMODE(mode) & ~_OTHERS)

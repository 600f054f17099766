"""What a photo in a folder is: one answer for `evaluate`, `quantize`, and the app on the board.

The app's is cpp_runtime/app/edgepack-run/photos.h, for `--images` and `--watch`;
tests/functional/test_photos.py holds the two against each other.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from edgepack.base.errors import ImageError, UsageError

SUFFIXES = (".jpg", ".jpeg", ".png")
"""Of photos, in whatever case."""


class ImageNotFoundError(ImageError):
    """There is no such file, or it cannot be read."""


def is_photo_name(name: str) -> bool:
    """Whether a file of that name may be a photo.

    None that begins with a dot: that is what copying programs write before they rename it, and
    what macOS leaves beside a photo on a stick.
    """
    return not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES


def photos_in(folder: Path, *, option: str = "--images") -> list[Path]:
    """The photos of `folder`, in the order of their names' bytes.

    Those are plain files, or links to some: no folder, FIFO, socket or device, no link that leads
    nowhere. Raises UsageError about `option` if the folder cannot be read.
    """
    return [path for path in _entries(folder, option) if is_photo_name(path.name) and _plain(path)]


def photos_below(folder: Path, *, option: str = "--images") -> Iterator[Path]:
    """The photos of `folder` and of all folders in it, but those whose names begin with a dot.

    Links to folders are not followed. Raises UsageError about `option` if one cannot be read.
    """
    yield from photos_in(folder, option=option)
    for path in folders_in(folder, option=option, links=False):
        yield from photos_below(path, option=option)


def folders_in(folder: Path, *, option: str = "--images", links: bool = True) -> list[Path]:
    """The folders in `folder` whose names do not begin with a dot, by name.

    Without `links` none that is a link to one. Raises UsageError about `option`.
    """
    return [
        path
        for path in _entries(folder, option)
        if not path.name.startswith(".") and path.is_dir() and (links or not path.is_symlink())
    ]


def read_photo(path: Path) -> bytes:
    """The bytes of a photo's file. Raises ImageNotFoundError."""
    try:
        # Without waiting for the writer that a FIFO may never have.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.ENXIO, "")
            return file.read()
    except FileNotFoundError:
        raise ImageNotFoundError(f"image not found: {path}") from None
    except OSError as error:
        odd = error.errno in (errno.ENXIO, errno.ENODEV)
        reason = "not a plain file" if odd else os.strerror(error.errno or 0)
        raise ImageNotFoundError(f"cannot read image {path}: {reason}") from None
    except ValueError as error:  # a name with a null byte
        raise ImageNotFoundError(f"cannot read image {path}: {error}") from None


def _entries(folder: Path, option: str) -> list[Path]:
    try:
        return sorted(folder.iterdir(), key=os.fsencode)
    except OSError as error:
        raise UsageError(f"{option}: {folder}: {error.strerror}") from None


def _plain(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False

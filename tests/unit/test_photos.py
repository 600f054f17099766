"""What a photo in a folder is. The app's answer is that of test_watch.cc, with the same files."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from edgepack.base.errors import UsageError
from edgepack.flow.evaluate import find_photos
from edgepack.preprocess.image import ImageNotFoundError, load_image
from edgepack.preprocess.photos import photos_below, photos_in, read_photo


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder with all that may lie in one."""
    folder = tmp_path / "odd"
    folder.mkdir()
    for name in (b"plain.jpg", b"UPPER.JPEG", b"no \xff utf.png", b".hidden.jpg", b"._mac.jpg"):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(b"x")
    (folder / "text.txt").write_bytes(b"x")
    (folder / "folder.jpg").mkdir()
    (folder / "link.jpg").symlink_to(folder / "plain.jpg")
    (folder / "dangling.jpg").symlink_to(folder / "none")
    (folder / "loop.jpg").symlink_to(folder / "loop.jpg")
    (folder / "device.jpg").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.jpg")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(folder / "socket.jpg"))
    return folder


PHOTOS = [b"UPPER.JPEG", b"link.jpg", b"no \xff utf.png", b"plain.jpg"]


def test_photos_of_a_folder(odd: Path) -> None:
    assert [os.fsencode(path.name) for path in photos_in(odd)] == PHOTOS
    (odd / "folder.jpg/inner.png").write_bytes(b"x")
    (odd / "around").symlink_to(odd)
    (odd / ".git").mkdir()
    (odd / ".git/icon.png").write_bytes(b"x")
    below = [os.fsencode(path.name) for path in photos_below(odd)]
    assert below == [*PHOTOS, b"inner.png"]
    with pytest.raises(UsageError, match=r"--judge: .*none: No such file"):
        photos_in(odd / "none", option="--judge")


def test_the_folders_of_classes(odd: Path) -> None:
    (odd.parent / "@eaDir").mkdir()
    (odd.parent / ".Trash").mkdir()
    (odd.parent / ".Trash/old.jpg").write_bytes(b"x")
    found = find_photos(odd.parent, ["odd"])
    assert [os.fsencode(photo.path.name) for photo in found] == PHOTOS


@pytest.mark.parametrize("name", ["pipe.jpg", "socket.jpg", "device.jpg"])
def test_what_is_named_and_is_no_file(odd: Path, name: str) -> None:
    with pytest.raises(ImageNotFoundError, match="not a plain file"):
        load_image(odd / name)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("dangling.jpg", "image not found"),
        ("loop.jpg", "Too many levels of symbolic links"),
        ("folder.jpg", "Is a directory"),
        ("plain.jpg/x.jpg", "Not a directory"),
        ("x" * 300, "File name too long"),
        ("a\0b.jpg", "null"),
    ],
)
def test_what_cannot_be_opened(odd: Path, name: str, problem: str) -> None:
    with pytest.raises(ImageNotFoundError, match=problem):
        read_photo(odd / name)

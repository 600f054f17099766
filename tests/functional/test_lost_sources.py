"""Live sources that are lost, in each way a folder or a pipe can be: said, counted, found again.

Cameras are lost in test_camera.py, where the kernel has one.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.means import means_app

LONGEST_S = 120.0
ACCOUNT = "nobody"
"""Root may read everything, so the app must not be root."""
SIZE = (32, 8)
FRAME = bytes([50]) * (SIZE[0] * SIZE[1])
PIXELS = ("--frames", "gray", "--size", "32x8")


def picture(suffix: str) -> bytes:
    return cv2.imencode(suffix, np.full((SIZE[1], SIZE[0], 3), 50, np.uint8))[1].tobytes()


class Live:
    """The app with a source below `folder`: its lines, what it says, and its metrics."""

    def __init__(self, app: Path, folder: Path) -> None:
        self.app, self.folder = app, folder
        self._lines, self._said = folder / "lines", folder / "said"
        self._photos = self._losses = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *args: str | Path, before: str = "") -> None:
        """`before` are commands of root's in a namespace of mounts that is the app's."""
        words = [self.app, *args, "--preview", "0", "--threads", "1"]
        if os.geteuid() == 0:
            words = ["setpriv", f"--reuid={ACCOUNT}", "--regid=nogroup", "--clear-groups", *words]
            words = ["unshare", "--mount", "sh", "-ec", f'{before}\nexec "$@"', "sh", *words]
        self._said.touch()
        with self._lines.open("wb") as lines, self._said.open("wb") as said:
            self._process = subprocess.Popen(words, stdout=lines, stderr=said, cwd="/")
        self.until(lambda: "preview on " in self.said(), "a start")

    def inside(self, *words: str | Path) -> None:
        """A command of root's where the app's mounts are."""
        assert self._process is not None
        subprocess.run(["nsenter", f"--target={self._process.pid}", "--mount", *words], check=True)

    def said(self) -> str:
        return self._said.read_text()

    def until(self, condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + LONGEST_S
        while not condition():
            assert self._process is not None
            assert self._process.poll() is None, self.said()
            assert time.monotonic() < end, f"{what} did not come: {self.said()}"
            time.sleep(0.05)

    def metric(self, name: str) -> int:
        found = re.search(r"preview on (http://\S+)", self.said())
        assert found is not None
        with urllib.request.urlopen(f"{found[1]}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        value = re.search(rf"^{name} (\d+)$", text, re.MULTILINE)
        assert value is not None, text
        return int(value[1])

    def gives(self, give: Callable[[], object]) -> None:
        """What is given from now on comes out at the other end, once it is heard."""
        before = self._answers()

        def comes() -> bool:
            give()
            return self._answers() > before

        self.until(comes, "an answer")
        assert self.metric("edgepack_source_up") == 1

    def _answers(self) -> int:
        return self._lines.read_text().count('"means"')

    def is_lost(self, words: str) -> None:
        self._losses += 1
        self.until(lambda: words in self.said(), words)
        self.until(lambda: self.metric("edgepack_source_up") == 0, "a source that is not up")
        assert self.metric("edgepack_source_losses_total") == self._losses

    def is_back(self, words: str = "is back, after ") -> None:
        """Said as often as the loss was."""
        self.until(lambda: self.said().count(words) == self._losses, words)
        assert self.metric("edgepack_source_up") == 1

    def photo(self, folder: Path, data: bytes | None = None) -> None:
        """Another one in `folder`, moved there when it is whole."""
        self._photos += 1
        part = self.folder / "part"
        part.write_bytes(picture(".png") if data is None else data)
        target = folder / f"{self._photos}.png"
        if folder.stat().st_dev == self.folder.stat().st_dev:
            part.rename(target)
        else:
            shutil.copy(part, target)

    def end(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(60) == 0, self.said()
        last = json.loads(self._lines.read_text().splitlines()[-1])
        assert last.keys() & {"end", "tensors", "error"}


@pytest.fixture(scope="module")
def app() -> Iterator[Path]:
    # Not pytest's own folder, which other accounts cannot enter.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        app = means_app(Path(name))
        subprocess.run(["chmod", "-R", "go+rX", name], check=True)
        yield app


@pytest.fixture
def live(app: Path) -> Iterator[Live]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        live = Live(app, Path(name))
        yield live
        live.end()


class Writer:
    """Who writes to a pipe; opened once the app reads it."""

    def __init__(self, live: Live, pipe: Path) -> None:
        self._fd = -1

        def opens() -> bool:
            try:
                self._fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                assert error.errno == errno.ENXIO
                return False
            os.set_blocking(self._fd, True)
            return True

        live.until(opens, "a reader of the pipe")

    def write(self, data: bytes = FRAME) -> None:
        os.write(self._fd, data)

    def close(self) -> None:
        os.close(self._fd)


def folder_of(live: Live) -> Path:
    folder = live.folder / "above" / "photos"
    folder.mkdir(parents=True)
    return folder


def watched(live: Live) -> Path:
    folder = folder_of(live)
    live.start("--watch", folder)
    live.gives(lambda: live.photo(folder))
    return folder


def is_found_again(live: Live, folder: Path) -> None:
    live.is_back()
    live.gives(lambda: live.photo(folder))


# Folders.


def moved(live: Live) -> None:
    folder = watched(live)
    folder.rename(folder.with_name("elsewhere"))
    live.is_lost("photos cannot be read: No such file or directory")
    folder.mkdir()
    is_found_again(live, folder)


def removed(live: Live) -> None:
    folder = watched(live)
    shutil.rmtree(folder)
    live.is_lost("photos cannot be read: No such file or directory")
    # What came before anybody looked is not forgotten.
    folder.with_name("new").mkdir()
    live.photo(folder.with_name("new"))
    before = live._answers()
    folder.with_name("new").rename(folder)
    live.is_back()
    live.until(lambda: live._answers() > before, "the photo that was there already")
    live.gives(lambda: live.photo(folder))


def moved_with_what_is_above(live: Live) -> None:
    folder = watched(live)
    above = folder.parent
    above.rename(above.with_name("away"))
    live.is_lost("photos cannot be read: No such file or directory")
    above.with_name("away").rename(above)
    is_found_again(live, folder)


def in_its_place_a_file(live: Live) -> None:
    folder = watched(live)
    shutil.rmtree(folder)
    folder.touch()
    live.is_lost("photos cannot be read: ")
    folder.unlink()
    folder.mkdir()
    is_found_again(live, folder)


def not_to_be_read(live: Live) -> None:
    folder = watched(live)
    folder.chmod(0)
    live.is_lost("photos cannot be read: Permission denied")
    folder.chmod(0o755)
    is_found_again(live, folder)


def unmounted(live: Live) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounts")
    folder = folder_of(live)
    mount = f"mount -t tmpfs -o size=1m,mode=755 none {folder}"
    live.start("--watch", folder, before=mount)

    def give() -> None:
        live.photo(live.folder)
        live.inside("mv", live.folder / f"{live._photos}.png", folder)

    live.gives(give)
    live.inside("umount", folder)
    live.is_lost("photos has nothing mounted on it any more")
    live.inside("sh", "-c", mount)
    live.is_back()
    live.gives(give)


def photos_that_are_none(live: Live) -> None:
    folder = watched(live)
    for _ in range(10):
        live.photo(folder, b"\x89PNG and no more")
    live.is_lost("gives nothing that can be used, 10 times in a row: ")
    live.gives(lambda: live.photo(folder))
    live.is_back("can be used again")


# Pipes.


def piped(live: Live, *format: str) -> tuple[Path, Writer]:
    pipe = live.folder / "frames"
    os.mkfifo(pipe, 0o644)
    live.start(*format, "--from", pipe, "--at-end", "wait")
    return pipe, Writer(live, pipe)


def pixels(live: Live) -> tuple[Path, Writer]:
    pipe, writer = piped(live, *PIXELS)
    live.gives(writer.write)
    return pipe, writer


def without_a_writer(live: Live) -> None:
    pipe, writer = pixels(live)
    writer.close()
    live.is_lost("frames has no writer")
    writer = Writer(live, pipe)
    live.gives(writer.write)
    live.is_back()
    writer.close()


def silent(live: Live) -> None:
    _, writer = pixels(live)
    live.is_lost("frames gives nothing, for ")
    live.gives(writer.write)
    live.is_back()
    writer.close()


def removed_and_made_again(live: Live) -> None:
    pipe, old = pixels(live)
    pipe.unlink()
    live.is_lost("frames gives nothing, for ")
    os.mkfifo(pipe, 0o644)
    writer = Writer(live, pipe)
    live.gives(writer.write)
    live.is_back()
    old.close()
    writer.close()


def replaced(live: Live) -> None:
    pipe, old = pixels(live)
    new = pipe.with_name("new")
    os.mkfifo(new, 0o644)
    new.rename(pipe)
    old.close()
    live.is_lost("frames has no writer")
    writer = Writer(live, pipe)
    live.gives(writer.write)
    live.is_back()
    writer.close()


def bytes_that_are_no_frames(live: Live) -> None:
    _, writer = piped(live, "--frames", "mjpeg")
    live.gives(lambda: writer.write(picture(".jpg")))

    def talk() -> bool:
        writer.write(b"no signal\n" * 10)
        return "gives nothing that is a frame, for " in live.said()

    live.until(talk, "a word about it")
    live.is_lost("gives nothing that is a frame, for ")
    live.gives(lambda: writer.write(picture(".jpg")))
    live.is_back()
    writer.close()


def frames_that_are_none(live: Live) -> None:
    _, writer = piped(live, "--frames", "mjpeg")
    live.gives(lambda: writer.write(picture(".jpg")))
    good = picture(".jpg")
    for _ in range(10):  # its first and its last marker, and nothing between
        writer.write(good[:2] + good[-2:])
    live.is_lost("gives nothing that can be used, 10 times in a row: ")
    live.gives(lambda: writer.write(good))
    live.is_back("can be used again")
    writer.close()


def opened_again(live: Live) -> None:
    """What is no pipe, as a serial line: not there, then empty, then there."""
    source = live.folder / "frames"
    live.start(*PIXELS, "--from", source, "--at-end", "retry")
    live.is_lost("frames cannot be opened: No such file or directory; it is tried again")
    source.write_bytes(b"")
    source.write_bytes(FRAME * 4)
    live.gives(lambda: None)
    live.is_back()


WAYS = (
    moved, removed, moved_with_what_is_above, in_its_place_a_file, not_to_be_read, unmounted,
    photos_that_are_none, without_a_writer, silent, removed_and_made_again, replaced,
    bytes_that_are_no_frames, frames_that_are_none, opened_again,
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_source_that_is_lost(way: Callable[[Live], None], live: Live) -> None:
    way(live)

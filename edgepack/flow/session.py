"""A release's app that is kept running on a device: photos go there, what it sees comes back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from edgepack.base.closing import Closing
from edgepack.base.errors import UsageError
from edgepack.bundle.bundle import PREPROCESS
from edgepack.bundle.manifest import APP
from edgepack.deploy.answers import SenselessError, read_object
from edgepack.deploy.app_answers import AppAnswer
from edgepack.deploy.remote_app import app_command, parse_answer, release_folder
from edgepack.device import Device
from edgepack.device.base import Stream, is_emulated
from edgepack.device.errors import ConnectionLostError
from edgepack.device.facts import own_folder
from edgepack.flow.photos import Pixels, pixels_of
from edgepack.preprocess.spec import PreprocessSpec


class Session(Closing):
    """A running app of the current release, with its model loaded.

    `Deployment.session` returns one, as a context manager. A photo of the same size as the one
    before takes only its transfer and the run. For another size or order of channels, the app is
    restarted.
    """

    def __init__(
        self, device: Device, root: str, options: Sequence[str], *, timeout_s: float
    ) -> None:
        self._device, self._root = device, root
        self._options, self._timeout_s = tuple(options), timeout_s
        self._stream: Stream | None = None
        self._form: tuple[str, int, int] | None = None
        self._accept: tuple[str, ...] | None = None
        self._closed = False

    def run(self, photo: object, *, color: str | None = None) -> AppAnswer:
        """Run the model on a photo; the answer has classes in `top`, objects in `boxes`, and
        everything in `document`.

        `photo` is a path, a Pillow image, or a camera's picture as an array: uint8, (height,
        width, 3) with `color` "rgb" or "bgr", (height, width) with "gray". A file is decoded on
        this machine, at full size. Raises UsageError for anything else and once the session is
        closed, the app's errors, and ConnectionLostError.
        """
        if self._closed:
            raise UsageError(
                "the session is closed", hint="open another: with deployment.session()"
            )
        if self._accept is None:
            self._accept = self._accepted()
        pixels = pixels_of(photo, color, accept=self._accept)
        stream = self._open(pixels)
        with contextlib.suppress(BrokenPipeError):  # its answer says why
            stream.write(pixels.data)
        line = stream.read_line(self._timeout_s).decode(errors="replace")
        source = f"{self._device.name}: edgepack-run"
        answer = read_object(line, source) if line else None
        if answer is None or not answer.has("frame"):
            # Its own error; without one it has ended in the middle of its work.
            self._stream = None
            with contextlib.closing(stream):
                done = stream.finish()
            parse_answer(self._device, replace(done, stdout=line + done.stdout))
            raise SenselessError(f"{source} ended without an answer")
        read = AppAnswer.read(answer)
        return read.on_emulator() if is_emulated(self._device) else read

    def stream(self, source: Iterable[object], *, color: str | None = None) -> Iterator[AppAnswer]:
        """Yield the answer of `run` for each photo of `source`, as soon as the photo is there; a
        single path is one photo."""
        for photo in [source] if isinstance(source, str | Path) else source:
            yield self.run(photo, color=color)

    def close(self) -> None:
        """End the app, for good."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.closing(stream), contextlib.suppress(ConnectionLostError):
                stream.finish()

    def _accepted(self) -> tuple[str, ...]:
        """The kinds of photos that the release converts: the app would leave out all others."""
        command = f'r=$({own_folder(self._root)}) && cat "$r"/current/{PREPROCESS}'
        done = self._device.run(command, check=False)
        if done.returncode != 0:
            raise UsageError(
                f"{self._device.name}: what is deployed in {self._root} takes no photos",
                hint="deploy it with preprocess, or use run with arrays",
            )
        file = f"{self._device.name}: {PREPROCESS}"
        return PreprocessSpec.from_json(done.stdout, file=file).accepted

    def _open(self, pixels: Pixels) -> Stream:
        """The running app, for photos like this."""
        form = (pixels.form, pixels.width, pixels.height)
        if self._stream is not None and form == self._form:
            return self._stream
        self._end()
        size = f"{pixels.width}x{pixels.height}"
        words = ["--frames", pixels.form, "--size", size, *self._options]
        inside = f"{release_folder('', '')[1:]}/{APP}"
        command = f'r=$({own_folder(self._root)}) && exec "$r"/{app_command(inside, words)}'
        self._stream, self._form = self._device.open(command), form
        return self._stream

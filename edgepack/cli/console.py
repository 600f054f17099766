"""What a person sees: steps and progress on stderr, data on stdout."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from edgepack.base.progress import Bar
from edgepack.base.text import one_line, printable

_BAR_WIDTH = 24
_REDRAW_S = 0.1


class Console:
    """Prints data to stdout and everything else to stderr, printable all of it.

    What devices and files say is in what is printed: nothing of it may steer a terminal.
    Colour and progress bars are only for a terminal; `no_color` follows the
    NO_COLOR convention (https://no-color.org).
    """

    def __init__(
        self,
        *,
        as_json: bool = False,
        verbose: int = 0,
        quiet: bool = False,
        no_color: bool = False,
    ) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self._err: TextIO = sys.stderr
        self._tty = self._err.isatty()
        self._color = self._tty and not no_color
        level = logging.DEBUG if verbose > 1 else logging.INFO if verbose else logging.WARNING
        handler = logging.StreamHandler(self._err)
        form = "%(levelname)s %(name)s: %(message)s" if verbose else "warning: %(message)s"
        handler.setFormatter(_Formatter(form))
        root = logging.getLogger("edgepack")
        root.handlers[:] = [handler]
        root.setLevel(level)
        # paramiko logs the traceback of every refused login; the error says it in words.
        logging.getLogger("paramiko").setLevel(logging.CRITICAL)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._color else text

    def step(self, text: str) -> None:
        """A new step begins (Progress)."""
        if not self.quiet:
            print(self._paint("36", "==>"), printable(text), file=self._err, flush=True)

    @contextlib.contextmanager
    def bar(self, text: str, total: int) -> Iterator[Bar]:
        """A progress bar on a terminal, one line elsewhere (Progress)."""
        if self.quiet or not self._tty:
            self.step(text)
            yield _Line()
            return
        bar = _TerminalBar(self._err, one_line(text), total)
        try:
            yield bar
        finally:
            bar.close()

    def note(self, text: str) -> None:
        """A line for a person, on stderr."""
        if not self.quiet:
            print(printable(text), file=self._err, flush=True)

    def error(self, message: str, hint: str | None, code: int) -> None:
        """`error: ...`, an empty line, `hint: ...`; with --json also an object on stdout."""
        print(self._paint("31", "error:"), printable(message), file=self._err)
        if hint:
            shown = printable(hint)
            print(f"\n{self._paint('33', 'hint:')} {shown}", file=self._err, flush=True)
        if self.as_json:
            print(json.dumps({"error": {"code": code, "message": message, "hint": hint}}))

    def data(self, value: Mapping[str, Any] | Sequence[Any], text: str) -> None:
        """The result: `value` as JSON with --json, else `text`."""
        print(json.dumps(value, indent=2) if self.as_json else printable(text), flush=True)

    def lines(self, lines: Iterable[str]) -> None:
        """A result too long to be held: JSON with --json, as the caller sees to."""
        for line in lines:
            print(printable(line))
        sys.stdout.flush()


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _Line:
    def update(self, amount: int) -> None:
        pass


class _TerminalBar:
    def __init__(self, out: TextIO, text: str, total: int) -> None:
        self._out, self._text, self._total = out, text, max(total, 1)
        self._done = 0
        self._drawn_at = 0.0
        self._draw()

    def update(self, amount: int) -> None:
        self._done += amount
        if time.monotonic() - self._drawn_at >= _REDRAW_S:
            self._draw()

    def close(self) -> None:
        self._draw()
        print(file=self._out, flush=True)

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        share = min(self._done / self._total, 1.0)
        filled = "#" * round(share * _BAR_WIDTH)
        line = f"\r    {self._text} [{filled:<{_BAR_WIDTH}}] {share:4.0%}"
        print(line, end="", file=self._out, flush=True)


def table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> str:
    """Rows under a header, columns aligned to the left, no trailing spaces."""
    cells = [list(header), *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def megabytes(size_bytes: int) -> str:
    """For example "14.1 MB" (10^6 bytes)."""
    return f"{size_bytes / 1e6:.1f} MB"

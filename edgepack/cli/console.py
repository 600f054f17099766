"""What a person sees: steps and progress on stderr, data on stdout."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from edgepack.base.progress import Bar
from edgepack.base.text import one_line, printable, unicode_only
from edgepack.cli.ticker import Ticker

_NARROWEST = 40
_COLUMN = 10
"""Columns of a terminal, and of a cell, that a table is folded to at most."""


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
        for stream in (sys.stdout, sys.stderr):
            _spell_out(stream)
        self._err: TextIO = sys.stderr
        self._tty = self._err.isatty()
        self._color = self._tty and not no_color
        self._ticker = Ticker(
            self._err, on_terminal=self._tty, silent=quiet, mark=self._paint("36", "==>")
        )
        level = logging.DEBUG if verbose > 1 else logging.INFO if verbose else logging.WARNING
        handler = _Handler(self._err, self._ticker)
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
        self._ticker.begin(" ".join(printable(text).split()))

    @contextlib.contextmanager
    def bar(self, text: str, total: int) -> Iterator[Bar]:
        """A progress bar on a terminal, a line now and then elsewhere (Progress)."""
        self.step(text)
        yield _Bar(self._ticker, total)

    def now(self, text: str, done: int, total: int) -> None:
        """Within a step (Listener)."""
        self._ticker.now(one_line(text), done, total)

    def ended(self) -> None:
        """The calling thread's step has ended (Listener)."""
        self._ticker.ended()

    def note(self, text: str) -> None:
        """A line for a person, on stderr."""
        if not self.quiet:
            with self._ticker.aside():
                print(printable(text), file=self._err, flush=True)

    def rest(self) -> None:
        """Nothing is worked on any more, or something else has the terminal."""
        self._ticker.stop()

    def error(self, message: str, hint: str | None, code: int) -> None:
        """`error: ...`, an empty line, `hint: ...`; with --json also an object on stdout."""
        self.rest()
        print(self._paint("31", "error:"), printable(message), file=self._err)
        if hint:
            shown = printable(hint)
            print(f"\n{self._paint('33', 'hint:')} {shown}", file=self._err, flush=True)
        if self.as_json:
            about = {"code": code, "message": message, "hint": hint}
            print(_json_text({"error": about}))

    def data(self, value: Mapping[str, Any] | Sequence[Any], text: str) -> None:
        """The result: `value` as JSON with --json, else `text`."""
        self.rest()
        print(_json_text(value, indent=2) if self.as_json else printable(text), flush=True)

    def models(self, results: Sequence[tuple[str, Mapping[str, Any], str]]) -> None:
        """Results of a project's models, each with the model's name: one alone is `data`, several
        are a list with --json, and have a heading each in text."""
        if len(results) == 1:
            self.data(*results[0][1:])
            return
        self.data(
            {"models": [{"name": name, **value} for name, value, _ in results]},
            "\n\n".join(f"{name}:\n{textwrap.indent(text, '    ')}" for name, _, text in results),
        )

    def lines(self, lines: Iterable[str], key: str | None = None) -> None:
        """A result too long to be held: JSON with --json, as the caller sees to.

        With a `key` it is one that goes on: each line is shown when it comes, with --json as an
        object {key: line}.
        """
        self.rest()
        for line in lines:
            text = _json_text({key: line}) if self.as_json and key else printable(line)
            print(text, flush=key is not None)
        sys.stdout.flush()


def _json_text(value: Any, *, indent: int | None = None) -> str:
    """`value` as JSON of ASCII alone: it passes through any terminal, and any pipe."""
    return json.dumps(unicode_only(value), indent=indent)


def _spell_out(stream: TextIO) -> None:
    """Have `stream` spell out what its encoding lacks: a label is no reason to fail."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


class _Handler(logging.StreamHandler[TextIO]):
    def __init__(self, out: TextIO, ticker: Ticker) -> None:
        super().__init__(out)
        self._ticker = ticker

    def emit(self, record: logging.LogRecord) -> None:
        with self._ticker.aside():
            super().emit(record)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _Bar:
    def __init__(self, ticker: Ticker, total: int) -> None:
        self._ticker, self._total = ticker, max(total, 1)
        self._done = 0

    def update(self, amount: int) -> None:
        self._done += amount
        self._ticker.now("", self._done, self._total)


def table(
    rows: Sequence[Sequence[object]], header: Sequence[str], *, width: int | None = None
) -> str:
    """Rows under a header, columns aligned to the left, no trailing spaces.

    What is wider than `width`, on a terminal its own, is folded within its cells, of the widest
    columns first; without a terminal each row is one line.
    """
    cells = [list(header), *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    if width is None and sys.stdout.isatty():
        width = max(shutil.get_terminal_size().columns, _NARROWEST)
    while width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        widest = max(range(len(widths)), key=lambda column: widths[column])
        if widths[widest] <= _COLUMN:
            break
        widths[widest] -= 1
    return "\n".join(line for row in cells for line in _folded(row, widths))


def _folded(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """The lines of one row of a table."""
    columns = [
        textwrap.wrap(cell, width, break_on_hyphens=False) if len(cell) > width else [cell]
        for cell, width in zip(row, widths, strict=True)
    ]
    for index in range(max(len(lines) for lines in columns)):
        yield "  ".join(
            (lines[index] if index < len(lines) else "").ljust(width)
            for lines, width in zip(columns, widths, strict=True)
        ).rstrip()

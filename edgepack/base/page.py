"""HTML pages that need nothing else: one file each, no script, nothing loaded from anywhere.

What is shown came from models and devices: all text is escaped, and a page's policy lets nothing
be run. Light or dark as the reader's system is, from a phone's width up.
"""

from __future__ import annotations

import base64
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import Any

from edgepack.base.text import printable

_BINS = 20
_WIDTH, _HEIGHT, _AXIS = 640, 160, 32
# What has more characters may be broken within a table.
_WORD = 14
# Of a result in a notebook.
_SHOWN_ROWS = 50
_MIME = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg"}


class Html(str):
    """Markup, as against text, which is escaped."""

    __slots__ = ()


def text(value: object) -> Html:
    """Any value as markup: None is empty, markup stays as it is."""
    if isinstance(value, Html):
        return value
    return Html("" if value is None else escape(printable(str(value))))


def facts(values: Mapping[str, object]) -> Html:
    """Names and values, one below the other, without those that are empty or None."""
    rows = (
        f"<dt>{text(name)}</dt><dd>{text(value)}</dd>\n"
        for name, value in values.items()
        if value not in ("", None)
    )
    return Html(f"<dl>\n{''.join(rows)}</dl>\n")


def table(rows: Iterable[Sequence[object]], header: Sequence[str]) -> Html:
    """A table; numbers stand on the right, and what is over them."""
    listed = list(rows)
    numbers = [any(map(_is_number, column)) for column in zip(*listed, strict=True)]
    head = table_head(header, numbers)
    return Html("".join((head, *(table_row(row) for row in listed), TABLE_END)))


def table_head(header: Sequence[str], numbers: Sequence[bool] = ()) -> Html:
    """How a table begins, for one that is written row by row; `numbers` tells which columns are."""
    cells = "".join(
        f'<th class="number">{text(name)}</th>' if is_number else f"<th>{text(name)}</th>"
        for name, is_number in zip_longest(header, numbers, fillvalue=False)
    )
    return Html(f'<div class="wide"><table>\n<thead><tr>{cells}</tr></thead>\n<tbody>\n')


TABLE_END = Html("</tbody>\n</table></div>\n")


def table_row(row: Sequence[object], *, kind: str = "", names: Sequence[str] = ()) -> Html:
    """One row; `kind` and `names` are classes of the row and of its cells."""
    cells = []
    for index, value in enumerate(row):
        classes = [names[index]] if names and names[index] else []
        classes += ["number"] * _is_number(value)
        classes += ["long"] * any(len(word) > _WORD for word in _cell_words(value))
        attribute = f' class="{" ".join(classes)}"' if classes else ""
        cells.append(f"<td{attribute}>{text(value)}</td>")
    begin = f'<tr class="{kind}">' if kind else "<tr>"
    return Html(f"{begin}{''.join(cells)}</tr>\n")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell_words(value: object) -> list[str]:
    return [] if isinstance(value, Html) else str(value).split()


def shares(rows: Iterable[tuple[object, float, object]]) -> Html:
    """Bars, longest 100 %: of each what it is called, its length from 0 to 1, and its value."""
    listed = list(rows)
    longest = max((share for _, share, _ in listed), default=0.0) or 1.0
    lines = (
        f'<div class="bar"><span>{text(name)}</span>'
        f'<i style="width:{max(share / longest, 0):.1%}"></i><b>{text(value)}</b></div>\n'
        for name, share, value in listed
    )
    return Html(f'<div class="bars">\n{"".join(lines)}</div>\n')


def histogram(values: Sequence[float], *, unit: str, title: str) -> Html:
    """How often which value came, as a picture with `title` for who cannot see it."""
    low, high = min(values), max(values)
    width = (high - low) / _BINS or 1.0
    counts = [0] * _BINS
    for value in values:
        counts[min(int((value - low) / width), _BINS - 1)] += 1
    column, tallest = _WIDTH / _BINS, max(counts)
    bars = "".join(
        f'<rect x="{index * column + 1:.1f}" y="{_HEIGHT - height:.1f}" '
        f'width="{column - 2:.1f}" height="{height:.1f}"><title>{count} from '
        f"{low + index * width:.2f} {escape(unit)}</title></rect>"
        for index, count in enumerate(counts)
        if (height := count / tallest * (_HEIGHT - 4))
    )
    ends = "".join(
        f'<text x="{x}" y="{_HEIGHT + _AXIS - 8}" text-anchor="{anchor}">'
        f"{value:.{_digits(high)}f} {escape(unit)}</text>"
        for x, anchor, value in ((0, "start", low), (_WIDTH, "end", high))
    )
    return Html(
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + _AXIS}" role="img" aria-label="{escape(title)}">'
        f'{bars}<line x1="0" y1="{_HEIGHT}" x2="{_WIDTH}" y2="{_HEIGHT}"/>{ends}</svg>\n'
    )


def _digits(value: float) -> int:
    """Decimals that leave three figures or so."""
    return max(0, 2 - math.floor(math.log10(value))) if value > 0 else 2


def picture(data: bytes, *, alt: str) -> Html:
    """A PNG or JPEG within the page; other data is no picture and gives nothing."""
    kind = next((mime for begin, mime in _MIME.items() if data.startswith(begin)), None)
    if kind is None:
        return Html()
    content = base64.b64encode(data).decode()
    return Html(f'<img src="data:{kind};base64,{content}" alt="{text(alt)}">\n')


def marked_picture(
    data: bytes,
    width: int,
    height: int,
    boxes: Iterable[tuple[Sequence[float], str]],
    points: Iterable[Sequence[float]] = (),
    *,
    alt: str,
) -> Html:
    """A PNG or JPEG of `width` x `height` pixels with boxes (left, top, right, bottom), a word at
    each, and points (x, y) over it; other data gives nothing.
    """
    kind = next((mime for begin, mime in _MIME.items() if data.startswith(begin)), None)
    if kind is None:
        return Html()
    size = max(width, height) / 40
    marks = []
    for (left, top, right, bottom), word in boxes:
        above = top - size / 4 if top > size else top + size
        marks.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
            f'height="{bottom - top:.1f}"/>'
            f'<text x="{left:.1f}" y="{above:.1f}" font-size="{size:.1f}">{text(word)}</text>\n'
        )
    for x, y in points:
        marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size / 6:.1f}"/>\n')
    content = base64.b64encode(data).decode()
    return Html(
        f'<svg class="marks" style="max-width: min(640px, {40 * width / height:.1f}em)" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{text(alt)}">\n'
        f'<image href="data:{kind};base64,{content}" width="{width}" height="{height}"/>\n'
        f"{''.join(marks)}</svg>\n"
    )


def section(title: str, *parts: object) -> Html:
    """Parts under a heading; text among them becomes paragraphs."""
    body = "".join(
        part if isinstance(part, Html) else f"<p>{text(part)}</p>\n" for part in parts if part
    )
    return Html(f"<section>\n<h2>{text(title)}</h2>\n{body}</section>\n")


class Tabular:
    """A result of a function: `pandas.DataFrame(result.rows())`, and a notebook shows it."""

    def rows(self) -> list[dict[str, Any]]:
        """Its lines, each with the names of its columns."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        plain = (str, int, float, Path)
        said = {
            name.replace("_", " "): f"{value:.4g}" if isinstance(value, float) else value
            for name, value in vars(self).items()
            if isinstance(value, plain) and not name.startswith("_")
        }
        rows = self.rows()
        shown = rows[:_SHOWN_ROWS]
        header = list(rows[0]) if rows else []
        listed = table((tuple(map(_cell, row.values())) for row in shown), header)
        more = len(rows) - len(shown)
        left = facts({"and": f"{more} more: rows() has all" if more else None})
        return embedded(facts(said), listed if rows else Html(), left)


def _cell(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value


def embedded(*parts: Html) -> Html:
    """Parts with their styles, for a notebook; on a page they look as all others."""
    style = f"<style>.edgepack {{{_PARTS}}}</style>"
    return Html(f'<div class="edgepack">\n{style}\n{"".join(parts)}</div>\n')


def page(title: str, *parts: Html) -> Html:
    """A whole page."""
    return Html("".join((head(title), *parts, PAGE_END)))


def head(title: str) -> Html:
    """How a page begins, its heading included."""
    return Html(_HEAD.format(title=text(title), style=_STYLE) + f"<h1>{text(title)}</h1>\n")


PAGE_END = Html("</body>\n</html>\n")


def write_page(path: Path, parts: Iterable[str]) -> None:
    """Write a page, part by part, to `path`, which has its old or its new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(parts)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" \
content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
"""
# Of a page, and of what is shown in a notebook, which has no such variables.
_PARTS = """
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2em 1em; margin: .4em 0 }
dt { color: var(--weak, #888); font-weight: 400 } dd { margin: 0; overflow-wrap: anywhere }
svg { width: 100%; max-width: 640px; height: auto } svg rect { fill: var(--bar, #3b7dd8) }
svg line { stroke: var(--weak, #888) } svg text { fill: var(--weak, #888) }
svg:not(.marks) text { font-size: 14px }
.bars { display: grid; grid-template-columns: fit-content(30em) 1fr max-content; gap: .2em .8em;
  align-items: center; margin: .4em 0 }
.bar { display: contents } .bar span { overflow-wrap: anywhere }
.bar i { display: block; height: .9em; background: var(--bar, #3b7dd8); border-radius: 2px;
  min-width: 1px }
.bar b { font-weight: 400; text-align: right; font-variant-numeric: tabular-nums }
@media (max-width: 40em) { dl { grid-template-columns: 1fr; gap: 0 } dd { margin-bottom: .4em }
  .bars { grid-template-columns: 1fr max-content }
  svg:not(.marks) text { font-size: 24px }
  .bar span { grid-column: 1 / -1; margin-top: .4em } }
"""
_STYLE = f"""
:root {{ color-scheme: light dark; --text: #222; --back: #fff; --weak: #666; --line: #ddd;
  --bar: #3b7dd8; --good: #17692d; --bad: #a3160f; --badback: #fdecea }}
@media (prefers-color-scheme: dark) {{ :root {{ --text: #ddd; --back: #181818; --weak: #999;
  --line: #444; --bar: #6ea3ea; --good: #7fd391; --bad: #ff9d94; --badback: #3a1b19 }} }}
body {{ font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 75em; margin: 1.5em auto; padding: 0 1em }}
h1 {{ font-size: 1.5em }} h2 {{ font-size: 1.15em; margin: 1.6em 0 .4em }}
.wide {{ overflow-x: auto }} table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; padding: .3em .6em; border-bottom: 1px solid var(--line);
  vertical-align: top }}
td {{ white-space: pre-wrap }} td.long {{ overflow-wrap: anywhere; min-width: 9em }}
td.number, th.number {{ text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums }}
tr.ok td.outcome {{ color: var(--good) }} tr.bad {{ background: var(--badback) }}
td.short {{ white-space: nowrap }}
tr.bad td.outcome {{ color: var(--bad); font-weight: 600 }} tr.waiting {{ color: var(--weak) }}
img {{ max-width: 100%; max-height: 20em; border-radius: 4px }} td img {{ max-height: 6em }}
{_PARTS}svg.marks rect {{ fill: none; stroke: #2ce02c; stroke-width: 2px;
  vector-effect: non-scaling-stroke }} svg.marks circle {{ fill: #f33 }}
svg.marks text {{ fill: #fff; stroke: #000; stroke-width: 3px; paint-order: stroke;
  vector-effect: non-scaling-stroke }}
"""

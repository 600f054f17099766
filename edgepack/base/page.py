"""HTML pages that need nothing else: one file each, nothing loaded from anywhere.

What is shown came from models and devices: all text is escaped, and a page's policy lets nothing
be run, but for our one script on a page with a long table, which it names by its hash. Light or
dark as the reader's system is, from a phone's width up.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import zip_longest
from pathlib import Path
from typing import Any

from edgepack.base.text import printable

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


def table(
    rows: Iterable[Sequence[object]], header: Sequence[str], numbers: Sequence[bool] = ()
) -> Html:
    """A table; numbers stand on the right, and what is over them.

    Where they are words already, `numbers` tells which columns are.
    """
    listed = list(rows)
    names = ["number" if number else "" for number in numbers]
    found = numbers or [any(map(_is_number, column)) for column in zip(*listed, strict=True)]
    head = table_head(header, found)
    return Html("".join((head, *(table_row(row, names=names) for row in listed), TABLE_END)))


def table_head(
    header: Sequence[str], numbers: Sequence[bool] = (), *, sortable: bool = False
) -> Html:
    """How a table begins, for one that is written row by row; `numbers` tells which columns are.

    One that is `sortable` is sorted and filtered by the page's script: see `head`.
    """
    cells = "".join(
        f'<th class="number">{text(name)}</th>' if is_number else f"<th>{text(name)}</th>"
        for name, is_number in zip_longest(header, numbers, fillvalue=False)
    )
    kind = ' class="sortable"' if sortable else ""
    return Html(f'<div class="wide"><table{kind}>\n<thead><tr>{cells}</tr></thead>\n<tbody>\n')


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


def image_kind(data: bytes) -> str | None:
    """The MIME type of a PNG or JPEG; None for other data."""
    return next((mime for begin, mime in _MIME.items() if data.startswith(begin)), None)


def picture(data: bytes, *, alt: str) -> Html:
    """A PNG or JPEG within the page; other data is no picture and gives nothing."""
    kind = image_kind(data)
    if kind is None:
        return Html()
    content = base64.b64encode(data).decode()
    return Html(f'<img src="data:{kind};base64,{content}" alt="{text(alt)}">\n')


def figures(pictures: Iterable[tuple[Html, object]], *, four: bool = False) -> Html:
    """Pictures beside each other, as many as there is room for, or `four`, over their words."""
    items = "".join(
        f"<figure>{shown}<figcaption>{text(words)}</figcaption></figure>\n"
        for shown, words in pictures
    )
    return Html(f'<div class="figures{" four" if four else ""}">\n{items}</div>\n')


def verdict(words: object, *, ok: bool | None = None) -> Html:
    """The answer in a sentence, which stands out; as good or bad if that is known."""
    kind = "" if ok is None else " good" if ok else " bad"
    return Html(f'<p class="verdict{kind}">{text(words)}</p>\n')


def paragraph(words: object) -> Html:
    """Text, if there is any."""
    return Html(f"<p>{text(words)}</p>\n" if words else "")


def swatch(color: tuple[int, int, int]) -> Html:
    """A small square of a colour: red, green, blue."""
    red, green, blue = color
    return Html(f'<i class="swatch" style="background:rgb({red},{green},{blue})"></i>')


def fold_parts(title: str, *parts: Html) -> Html:
    """Parts that are seen once their title is clicked."""
    return Html(f"<details>\n<summary>{text(title)}</summary>\n{''.join(parts)}</details>\n")


def section(title: str, *parts: object) -> Html:
    """Parts under a heading; text among them becomes paragraphs."""
    body = "".join(part if isinstance(part, Html) else paragraph(part) for part in parts)
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
        return embed_parts(facts(said), listed if rows else Html(), left)


def _cell(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value


def embed_parts(*parts: Html) -> Html:
    """Parts with their styles, for a notebook; on a page they look as all others."""
    style = f"<style>.edgepack {{{_PARTS}}}</style>"
    return Html(f'<div class="edgepack">\n{style}\n{"".join(parts)}</div>\n')


def page(title: str, *parts: Html, kind: str = "") -> Html:
    """A whole page, by the command `kind`."""
    return Html("".join((head(title, kind=kind), *parts, PAGE_END)))


def head(title: str, *, kind: str = "", sorts: bool = False) -> Html:
    """How a page begins, its heading included; with `sorts` it has the script for a sortable table.

    The command that writes it, and when, stand in its head, for `edgepack report`.

    That is all that a page runs: its policy names the script by its hash.
    """
    script, policy = "", ""
    if sorts:
        digest = base64.b64encode(hashlib.sha256(_SORTING.encode()).digest()).decode()
        script, policy = f"<script>{_SORTING}</script>\n", f"script-src 'sha256-{digest}'; "
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    mark = f'<meta name="edgepack-page" content="{text(kind)} {at}">\n' if kind else ""
    begin = _HEAD.format(title=text(title), style=_STYLE, policy=policy, mark=mark, script=script)
    return Html(f"{begin}<h1>{text(title)}</h1>\n")


def filters(column: str, values: Iterable[str]) -> Html:
    """What a sortable table below is filtered by: any text, and one of the `values` of a column.

    Without scripts it is not shown.
    """
    options = "".join(f"<option>{text(value)}</option>" for value in values)
    return Html(
        '<p class="filters" hidden><label>contains <input type="search"></label> '
        f'<label>{text(column)} <select data-column="{text(column)}"><option value="">all</option>'
        f'{options}</select></label> <output aria-live="polite"></output></p>\n'
    )


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
content="default-src 'none'; {policy}style-src 'unsafe-inline'; img-src data:; base-uri 'none'; \
form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
{mark}<title>{title}</title>
<style>{style}</style>
{script}</head>
<body>
"""
# Reads and moves rows that are there; of their texts it makes no markup.
_SORTING = """
addEventListener("DOMContentLoaded", () => {
  const table = document.querySelector("table.sortable"), form = document.querySelector(".filters");
  if (!table || !form) return;
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const [search, choice, count] = ["input", "select", "output"].map(
    (tag) => form.querySelector(tag));
  const at = heads.findIndex((head) => head.textContent === choice.dataset.column);
  const cell = (row, index) => row.cells[index].textContent;
  const filter = () => {
    const words = search.value.toLowerCase().split(/\\s+/);
    let shown = 0;
    for (const row of rows) {
      const own = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => own.includes(word)) ||
        (choice.value !== "" && cell(row, at) !== choice.value);
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows.length}`;
  };
  const order = (head, index) => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const texts = new Map(rows.map((row) => [row, cell(row, index)]));
    const compare = new Intl.Collator("en", { numeric: true }).compare;
    rows.sort((a, b) => {
      const [one, other] = [texts.get(a), texts.get(b)];
      if (!one !== !other) return one ? -1 : 1;
      const numbers = one - other;
      const result = Number.isNaN(numbers) ? compare(one, other) : numbers;
      return down ? -result : result;
    });
    body.append(...rows);
  };
  heads.forEach((head, index) => {
    head.tabIndex = 0;
    head.addEventListener("click", () => order(head, index));
    head.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      order(head, index);
    });
  });
  search.addEventListener("input", filter);
  choice.addEventListener("change", filter);
  form.hidden = false;
  filter();
});
"""
# Of series in a chart, on light and on dark.
_COLORS = (
    ("#2563b8", "#6ea3ea"), ("#b4530a", "#f0a35e"), ("#17692d", "#7fd391"),
    ("#7b2fbe", "#c9a0ff"), ("#a3160f", "#ff9d94"), ("#0b7285", "#66d9e8"),
)  # fmt: skip
_SERIES = "".join(
    f"svg .c{index}, i.c{index} {{ fill: var(--c{index}, {light}); "
    f"background: var(--c{index}, {light}) }}\n"
    f"svg .s{index} {{ stroke: var(--c{index}, {light}) }}\n"
    for index, (light, _) in enumerate(_COLORS)
)
_LIGHT, _DARK = (
    "; ".join(f"--c{index}: {both[shade]}" for index, both in enumerate(_COLORS))
    for shade in (0, 1)
)
# Of a page, and of what is shown in a notebook, which has no such variables.
_PARTS = (
    """
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2em 1em; margin: .4em 0 }
dt { color: var(--weak, #888); font-weight: 400 } dd { margin: 0; overflow-wrap: anywhere }
svg { width: 100%; max-width: 640px; height: auto } svg rect { fill: var(--bar, #3b7dd8) }
svg line { stroke: var(--weak, #888) } svg text { fill: var(--weak, #888) }
svg:not(.marks) text { font-size: 14px }
svg.map { max-width: 100%; background: rgba(128, 128, 128, .12) }
svg rect.part { stroke: var(--back, #fff); stroke-width: 1px; vector-effect: non-scaling-stroke }
svg.cell { width: 108px; vertical-align: middle }
svg line.reach { stroke: var(--bar, #3b7dd8); stroke-width: 3px }
.matrix td { padding: .2em .4em } .matrix td:nth-child(2) { min-width: 7em; max-width: 14em;
  overflow-wrap: anywhere }
svg rect.rest { fill: var(--weak, #888) }
svg.flow { width: 760px; max-width: none } svg path { fill: none; stroke: var(--weak, #888) }
svg line.guide { stroke-dasharray: 4 4 } svg circle { fill: var(--bar, #3b7dd8) }
svg polyline { fill: none; stroke-width: 2.5px; vector-effect: non-scaling-stroke }
.legend { display: flex; flex-wrap: wrap; gap: .2em 1.4em; margin: .4em 0 }
.legend span { overflow-wrap: anywhere } .legend b { font-weight: 400 }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em;
  border-radius: 2px }
.bars { display: grid; grid-template-columns: fit-content(30em) 1fr max-content; gap: .2em .8em;
  align-items: center; margin: .4em 0 }
.bar { display: contents } .bar span { overflow-wrap: anywhere }
.bar i { display: block; height: .9em; background: var(--bar, #3b7dd8); border-radius: 2px;
  min-width: 1px }
.bar b { font-weight: 400; text-align: right; font-variant-numeric: tabular-nums }
@media (max-width: 40em) { dl { grid-template-columns: 1fr; gap: 0 } dd { margin-bottom: .4em }
  .bars { grid-template-columns: 1fr max-content }
  svg:not(.marks, .flow) text { font-size: 24px }
  .bar span { grid-column: 1 / -1; margin-top: .4em } }
"""
    + _SERIES
)
_STYLE = f"""
:root {{ color-scheme: light dark; --text: #222; --back: #fff; --weak: #666; --line: #ddd;
  --bar: #3b7dd8; --bar-text: #1d5bb0; --good: #17692d; --bad: #a3160f; --badback: #fdecea;
  {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ --text: #ddd; --back: #181818; --weak: #999;
  --line: #444; --bar: #6ea3ea; --bar-text: #8ab8f5; --good: #7fd391; --bad: #ff9d94;
  --badback: #3a1b19;
  {_DARK} }} }}
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
td.short, td.wave, td.at {{ white-space: nowrap }}
tr.bad td.outcome {{ color: var(--bad); font-weight: 600 }} tr.waiting {{ color: var(--weak) }}
.verdict {{ font-size: 1.15em; margin: .6em 0; overflow-wrap: anywhere }}
.verdict.good {{ color: var(--good) }} .verdict.bad {{ color: var(--bad); font-weight: 600 }}
p {{ overflow-wrap: anywhere }} h1, h2 {{ overflow-wrap: anywhere }}
.filters[hidden] {{ display: none }} .filters label {{ margin-right: 1em }}
input, select {{ font: inherit; color: var(--text); background: var(--back); max-width: 100%;
  border: 1px solid var(--line); border-radius: 3px; padding: .1em .3em }}
th[tabindex] {{ cursor: pointer }} th[aria-sort=ascending]::after {{ content: " ↑" }}
th[aria-sort=descending]::after {{ content: " ↓" }}
.devices {{ display: flex; flex-wrap: wrap; gap: 3px; margin: .3em 0 1em }}
.devices i {{ width: 12px; height: 12px; border-radius: 2px; background: var(--weak) }}
.devices i.ok {{ background: var(--c2) }} .devices i.bad {{ background: var(--c4) }}
.swatch {{ display: inline-block; width: 1em; height: 1em; border-radius: 2px }}
article {{ border-top: 2px solid var(--line); margin-top: 2.5em }} h3 {{ font-size: 1.05em }}
a {{ color: var(--bar-text) }}
summary {{ cursor: pointer; margin: .8em 0; font-size: 1.05em }}
.figures {{ display: grid; gap: 1em; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(17em, 100%), 1fr)) }}
.figures.four {{ grid-template-columns: repeat(4, 1fr); max-width: 56em }}
@media (max-width: 40em) {{ .figures.four {{ grid-template-columns: repeat(2, 1fr) }} }}
.figures svg:not(.marks) text {{ font-size: 26px }}
figure {{ margin: 0 }} figure img {{ max-height: none; width: 100% }}
figcaption {{ color: var(--weak); overflow-wrap: anywhere }} figcaption b {{ color: var(--text) }}
img {{ max-width: 100%; max-height: 20em; border-radius: 4px }} td img {{ max-height: 6em }}
{_PARTS}svg.marks rect {{ fill: none; stroke: #2ce02c; stroke-width: 2px;
  vector-effect: non-scaling-stroke }} svg.marks circle {{ fill: #f33 }}
svg.marks text {{ fill: #fff; stroke: #000; stroke-width: 3px; paint-order: stroke;
  vector-effect: non-scaling-stroke }}
"""

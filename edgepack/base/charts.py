"""Charts and marked photos as SVG, for pages: what is drawn of any result is drawn here.

Texts are escaped, coordinates are numbers of ours. Colours are those of the page, light or dark.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence

from edgepack.base.page import Html, image_kind, text

SERIES = 6
"""Colours of the page: a series has the one of its number."""
_BINS = 20
_WIDTH, _HEIGHT, _AXIS = 640, 160, 32
_LEFT, _TOP = 84, 20
_MAP_WIDTH = 1200
_STEP, _ARCS, _SHARE, _FLOW_WIDTH = 20, 110, 150, 760
_RIGHT, _WRONG = "23,105,45", "214,40,30"


def histogram(values: Sequence[float], *, unit: str, title: str) -> Html:
    """How often which value came, as a picture with `title` for who cannot see it."""
    low, high = min(values), max(values)
    width = (high - low) / _BINS or 1.0
    counts = [0] * _BINS
    for value in values:
        counts[min(int((value - low) / width), _BINS - 1)] += 1
    return columns(counts, low, high, unit=unit, title=title)


def columns(
    counts: Sequence[float],
    low: float,
    high: float,
    *,
    unit: str,
    title: str,
    marks: Sequence[float] = (),
) -> Html:
    """Counts of values in equal steps from `low` to `high`, with lines at those `marks` between."""
    column, tallest = _WIDTH / len(counts), max(counts) or 1
    step = (high - low) / len(counts)
    bars = "".join(
        f'<rect x="{index * column + 1:.1f}" y="{_HEIGHT - height:.1f}" '
        f'width="{column - 2:.1f}" height="{height:.1f}"><title>{count} from '
        f"{number(low + index * step)} {text(unit)}</title></rect>"
        for index, count in enumerate(counts)
        if (height := count / tallest * (_HEIGHT - 4))
    )
    ends = "".join(
        f'<text x="{x}" y="{_HEIGHT + _AXIS - 8}" text-anchor="{anchor}">'
        f"{number(value)} {text(unit)}</text>"
        for x, anchor, value in ((0, "start", low), (_WIDTH, "end", high))
    )
    at = [(mark - low) / (high - low) * _WIDTH for mark in marks if low <= mark <= high > low]
    bars += "".join(
        f'<line class="guide" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{_HEIGHT}"/>' for x in at
    )
    return _svg(
        _WIDTH,
        _HEIGHT + _AXIS,
        f'{bars}<line x1="0" y1="{_HEIGHT}" x2="{_WIDTH}" y2="{_HEIGHT}"/>{ends}',
        title,
    )


def number(value: float) -> str:
    """With three figures or so."""
    size = abs(value)
    if not math.isfinite(value) or size >= 1e6 or 0 < size < 1e-3:
        return f"{value:.3g}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(size))) if size else 2}f}"


def dots(
    values: Sequence[float], *, unit: str, title: str, lines: Mapping[str, float] | None = None
) -> Html:
    """A dot for each value in their order, from left to right; `lines` lie across, with names.

    The scale begins at 0, or at a value below, so that a difference looks as large as it is.
    """
    both = (0.0, *values, *(lines or {}).values())
    low, high = min(both), max(both)
    room = (high - low) * 0.05 or 1.0
    plot = _Plot(x=(-0.5, len(values) - 0.5), y=(low - room if low < 0 else 0.0, high + room))
    marks = "".join(
        f'<circle cx="{plot.across(index):.1f}" cy="{plot.up(value):.1f}" r="3.5">'
        f"<title>{index + 1}: {number(value)} {text(unit)}</title></circle>"
        for index, value in enumerate(values)
    )
    last = math.inf
    across = ""
    for name, value in sorted((lines or {}).items(), key=lambda item: item[1]):
        y = plot.up(value)
        across += f'<line class="guide" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH}" y2="{y:.1f}"/>'
        if last - y >= plot.LETTERS:  # else it would lie on the one below
            across += (
                f'<text class="small" x="{_LEFT - 6}" y="{y + 5:.1f}" text-anchor="end">'
                f"{text(name)}</text>"
            )
            last = y
    begin = number(low) if low < 0 else "0"
    return plot.svg(
        across + marks,
        ("1", str(len(values))),
        (f"{begin} {unit}", "" if lines else number(high)),
        title,
    )


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x: tuple[float, float],
    y: tuple[float, float],
    ends: tuple[tuple[str, str], tuple[str, str]] | None = None,
) -> Html:
    """Lines through points (x, y), within ranges; `ends` are words at the ends of both axes.

    As many as there are colours, with a legend if there are several.
    """
    plot = _Plot(x=x, y=y)
    body = ""
    for index, points in enumerate(list(series.values())[:SERIES]):
        way = " ".join(f"{plot.across(a):.1f},{plot.up(b):.1f}" for a, b in points)
        body += f'<polyline class="s{index}" points="{way}"/>'
    words = ends or ((number(x[0]), number(x[1])), (number(y[0]), number(y[1])))
    drawn = plot.svg(body, *words, title)
    names = list(series)[:SERIES]
    return Html(drawn + (legend((name, "") for name in names) if len(names) > 1 else ""))


class _Plot:
    """Where values lie in a picture with both axes."""

    LETTERS = 24.0

    def __init__(self, *, x: tuple[float, float], y: tuple[float, float]) -> None:
        self._x, self._y = x, y

    def across(self, value: float) -> float:
        low, high = self._x
        return _LEFT + (value - low) / ((high - low) or 1.0) * (_WIDTH - _LEFT - 6)

    def up(self, value: float) -> float:
        low, high = self._y
        return _TOP + _HEIGHT - (value - low) / ((high - low) or 1.0) * _HEIGHT

    def svg(
        self, body: str, x_words: tuple[str, str], y_words: tuple[str, str], title: str
    ) -> Html:
        base = _TOP + _HEIGHT
        axes = (
            f'<line x1="{_LEFT}" y1="{base}" x2="{_WIDTH}" y2="{base}"/>'
            f'<line x1="{_LEFT}" y1="{_TOP}" x2="{_LEFT}" y2="{base}"/>'
        )
        words = "".join(
            f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}">{text(word)}</text>'
            for x, y, anchor, word in (
                (_LEFT, base + _AXIS - 8, "start", x_words[0]),
                (_WIDTH, base + _AXIS - 8, "end", x_words[1]),
                (_LEFT - 6, base + 5, "end", y_words[0]),
                (_LEFT - 6, _TOP + 10, "end", y_words[1]),
            )
            if word
        )
        return _svg(_WIDTH, base + _AXIS, axes + body + words, title)


def draw_stacked_bar(parts: Sequence[tuple[str, float, str]], *, title: str) -> Html:
    """One bar of parts beside each other, and below it what each is called and its value in words.

    Parts beyond the page's colours are put together as the last of them.
    """
    listed = [part for part in parts if part[1] > 0]
    total = sum(value for _, value, _ in listed)
    if not total:
        return Html()
    if len(listed) > SERIES:
        rest = sum(value for _, value, _ in listed[SERIES - 1 :])
        more = (f"{len(listed) - SERIES + 1} others", rest, f"{rest / total:.1%}")
        listed = [*listed[: SERIES - 1], more]
    bar = portions(listed, colors=range(len(listed)), title=title)
    return Html(bar + legend((name, said) for name, _, said in listed))


def rectangles(
    placed: Iterable[tuple[float, float, float, float, int, str]],
    *,
    x: float,
    y: float,
    title: str,
    guide: float | None = None,
    height: int = 480,
) -> Html:
    """A map of `x` by `y`: each rectangle has its left, lower end, width, height, the number of a
    colour, and words that are shown where a mouse points at it. `guide` is a line upwards.

    It has no words of its own, since it may be as wide as the page: these belong below it.
    """
    across, up = _MAP_WIDTH / (x or 1.0), height / (y or 1.0)
    body = "".join(
        f'<rect class="c{color % SERIES} part" x="{left * across:.1f}" '
        f'y="{height - (low + high) * up:.1f}" width="{wide * across:.1f}" '
        f'height="{high * up:.1f}"><title>{text(words)}</title></rect>\n'
        for left, low, wide, high, color, words in placed
    )
    if guide is not None:
        body += (
            f'<line class="guide" x1="{guide * across:.1f}" y1="0" x2="{guide * across:.1f}" '
            f'y2="{height}"/>'
        )
    body += f'<line x1="0" y1="{height}" x2="{_MAP_WIDTH}" y2="{height}"/>'
    drawn = _svg(_MAP_WIDTH, height, body, title)
    return Html(drawn.replace("<svg ", '<svg class="map" ', 1))


def matrix(counts: Sequence[Sequence[int]], names: Sequence[str], *, corner: str) -> Html:
    """Of each row's cases, how many were taken for which column; both have the same names.

    A cell is the darker the larger its share of the row is, red beside the diagonal. Columns have
    the numbers of the rows.
    """
    heads = "".join(f'<th class="number">{column}</th>' for column in range(1, len(names) + 1))
    lines = []
    for row, (name, own) in enumerate(zip(names, counts, strict=True)):
        total = sum(own) or 1
        cells = "".join(
            f'<td class="number" style="background:rgba({_RIGHT if row == column else _WRONG},'
            f'{min(0.1 + 0.35 * count / total, 0.45):.2f})">{count}</td>'
            if count
            else "<td></td>"
            for column, count in enumerate(own)
        )
        lines.append(f'<tr><td class="number">{row + 1}</td><td>{text(name)}</td>{cells}</tr>\n')
    return Html(
        f'<div class="wide"><table class="matrix">\n<thead><tr><th></th><th>{text(corner)}</th>'
        f"{heads}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody>\n</table></div>\n"
    )


def share_bar(share: float, low: float, high: float) -> Html:
    """A share from 0 to 1 as a dot on a line from `low` to `high`, for a table's cell."""
    return Html(
        '<svg class="cell" viewBox="0 0 108 12" role="img" '
        f'aria-label="{share:.1%}, {low:.1%} to {high:.1%}">'
        '<line class="guide" x1="4" y1="6" x2="104" y2="6"/>'
        f'<line class="reach" x1="{4 + 100 * low:.1f}" y1="6" x2="{4 + 100 * high:.1f}" y2="6"/>'
        f'<circle cx="{4 + 100 * share:.1f}" cy="6" r="4"/></svg>'
    )


def portions(
    parts: Sequence[tuple[str, float, str]], *, colors: Sequence[int | None], title: str
) -> Html:
    """One bar of parts beside each other in given colours of the page, None for its grey."""
    total = sum(value for _, value, _ in parts) or 1.0
    body, at = "", 0.0
    for (name, value, said), color in zip(parts, colors, strict=True):
        width = value / total * _WIDTH
        kind = "rest" if color is None else f"c{color}"
        body += (
            f'<rect class="{kind}" x="{at:.1f}" y="0" width="{width:.1f}" height="24">'
            f"<title>{text(f'{name} {said}'.strip())}</title></rect>"
        )
        at += width
    return _svg(_WIDTH, 24, body, title)


def flow(
    steps: Sequence[tuple[str, float, int, str]], links: Iterable[tuple[int, int]], *, title: str
) -> Html:
    """A graph from top to bottom: each step has a name, a share (of the largest, as a bar), the
    number of a colour, and words for where a mouse points at it. `links` lead from a step to a
    later one: to the next by a short line, further by an arc on the left.
    """
    most = max((share for _, share, _, _ in steps), default=0.0) or 1.0
    lines = []
    for source, target in links:
        top, bottom = _STEP * (source + 0.5), _STEP * (target + 0.5)
        if target == source + 1:
            lines.append(f'<path d="M{_ARCS + 4},{top:g} V{bottom:g}"/>')
        else:
            side = max(_ARCS - 14.0 - 7.0 * (target - source), 0.0)
            lines.append(
                f'<path d="M{_ARCS},{top:g} C{side:g},{top:g} {side:g},{bottom:g} '
                f'{_ARCS},{bottom:g}"/>'
            )
    rows = []
    for index, (name, share, color, words) in enumerate(steps):
        y = _STEP * index
        rows.append(
            f'<rect class="c{color % SERIES}" x="{_ARCS}" y="{y + 3:g}" '
            f'width="{max(share / most * _SHARE, 8):.1f}" height="{_STEP - 6:g}">'
            f"<title>{text(words)}</title></rect>"
            f'<text x="{_ARCS + _SHARE + 10}" y="{y + _STEP / 2 + 5:g}">{text(name)}</text>\n'
        )
    drawn = _svg(_FLOW_WIDTH, max(_STEP * len(steps), 1), "".join([*lines, *rows]), title)
    drawn = Html(drawn.replace("<svg ", '<svg class="flow" ', 1))
    return Html(f'<div class="wide">{drawn}</div>\n')


def legend(names: Iterable[tuple[str, str]]) -> Html:
    """What the page's colours stand for, in their order: a name and a value in words each."""
    words = "".join(
        f'<span><i class="c{index}"></i>{text(name)}{" <b>" + text(said) + "</b>" if said else ""}'
        "</span>\n"
        for index, (name, said) in enumerate(names)
    )
    return Html(f'<p class="legend">\n{words}</p>\n')


def _svg(width: float, height: float, body: str, title: str) -> Html:
    return Html(
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{text(title)}">'
        f"{body}</svg>\n"
    )


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
    each that has one, and points (x, y) over it; other data gives nothing.
    """
    kind = image_kind(data)
    if kind is None:
        return Html()
    size = max(width, height) / 32
    marks = []
    for (left, top, right, bottom), word in boxes:
        above = top - size / 4 if top > size else top + size
        marks.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
            f'height="{bottom - top:.1f}"/>\n'
        )
        if word:
            marks.append(
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

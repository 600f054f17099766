"""One page of several, each of which a command wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from edgepack.base import page
from edgepack.base.errors import UsageError
from edgepack.base.page import Html
from edgepack.base.tables import read_text

KINDS = (
    *("check", "quantize", "evaluate", "compile", "tune", "deploy", "bench", "compare", "run"),
    "fleet",
)
"""Commands whose pages are taken, in the order of a project's life."""
_MOST_BYTES = 256 << 20
_MARK = re.compile(
    r'<meta name="edgepack-page" content="([a-z]+) (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)">'
)
_TITLE = re.compile(r"<h1>(.*?)</h1>\n", re.DOTALL)
_VERDICT = re.compile(r'<p class="verdict( good| bad)?">(.*?)</p>', re.DOTALL)
# All that pages are made of. Neither of them loads or runs anything.
_TAGS = {
    *("article", "b", "circle", "dd", "details", "div", "dl", "dt", "figcaption", "figure", "h2"),
    *(
        "i",
        "image",
        "img",
        "input",
        "label",
        "line",
        "option",
        "output",
        "p",
        "path",
        "polyline",
        "rect",
    ),
    *("section", "select", "span", "style", "summary", "svg", "table", "tbody", "td", "text"),
    *("th", "thead", "title", "tr"),
}
_WITHOUT_END = {"img", "input"}
_ATTRIBUTES = {
    *(
        "alt",
        "aria-label",
        "aria-live",
        "class",
        "cx",
        "cy",
        "d",
        "data-column",
        "font-size",
        "height",
    ),
    *("hidden", "href", "id", "points", "r", "role", "src", "style", "text-anchor", "title"),
    *("type", "value", "viewbox", "width", "x", "x1", "x2", "y", "y1", "y2"),
}
_PICTURE = "data:image/"


class NoPageError(UsageError):
    """A file is no page that edgepack wrote, or there is none."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page that a command wrote: `kind` is the command, `at` when (UTC), `body` what it shows
    below its title."""

    file: Path
    kind: str
    at: str
    title: Html
    verdict: Html
    body: Html


def read_page(file: Path) -> Page:
    """A page of a command. Raises `NoPageError` if it is none, or was changed so that it could do
    more than show something."""
    try:
        size = file.stat().st_size
    except OSError as error:
        raise NoPageError(f"cannot read {file}: {error.strerror}") from None
    if size > _MOST_BYTES:
        raise NoPageError(f"{file}: {size} bytes are no page of edgepack")
    found = parse_page(read_text(file, error=NoPageError), file)
    if found is None:
        raise NoPageError(
            f"{file}: no page that edgepack wrote",
            hint="--html FILE of " + ", ".join(KINDS) + " writes one",
        )
    return found


def parse_page(text: str, file: Path) -> Page | None:
    """What a page says of itself; None if it is not by a command."""
    head, opening, rest = text.partition("</head>\n<body>\n")
    mark, title = _MARK.search(head), _TITLE.match(rest)
    if not opening or not mark or not title or mark[1] not in KINDS:
        return None
    if not rest.endswith(page.PAGE_END):
        return None
    body = rest[title.end() : -len(page.PAGE_END)]
    _Checker(file).check(body)
    verdict = _VERDICT.search(body)
    return Page(
        file=file,
        kind=mark[1],
        at=mark[2],
        title=Html(title[1]),
        verdict=Html(verdict[2] if verdict else ""),
        body=Html(body),
    )


class _Checker(HTMLParser):
    """Refuses what no command writes: a page may have come from elsewhere."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self._open: list[str] = []

    def check(self, body: str) -> None:
        """Raises `NoPageError`."""
        self.feed(body)
        self.close()
        if self._open:
            raise self._changed(f"<{self._open[-1]}> does not end")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _TAGS:
            raise self._changed(f"<{tag}>")
        for name, value in attrs:
            loads = name in ("src", "href") and not (value or "").startswith(_PICTURE)
            if name not in _ATTRIBUTES or loads:
                raise self._changed(f"{name} of <{tag}>")
        if tag not in _WITHOUT_END:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            raise self._changed(f"</{tag}>")

    def _changed(self, what: str) -> NoPageError:
        return NoPageError(f"{self._file}: not as edgepack wrote it: {what}")


def find_pages(folder: Path) -> list[Page]:
    """The pages of commands right in a folder; other HTML files are passed over."""
    found = []
    for file in sorted(folder.glob("*.html")):
        if file.is_file() and file.stat().st_size <= _MOST_BYTES:
            text = file.read_bytes().decode("utf-8", errors="replace")
            own = parse_page(text, file)
            if own is not None:
                found.append(own)
    return found


def whole_page(pages: Sequence[Page], title: str, said: Mapping[str, object]) -> Iterator[Html]:
    """All of them below each other, with a list of what each says."""
    ordered = sorted(pages, key=lambda one: (KINDS.index(one.kind), one.at, str(one.file)))
    yield page.head(title)
    yield page.facts(said)
    yield page.table(
        [
            (
                Html(f'<a href="#page-{number}">{one.kind}</a>'),
                one.title,
                one.verdict,
                one.at.replace("T", " ").replace(":00Z", " UTC").replace("Z", " UTC"),
            )
            for number, one in enumerate(ordered, 1)
        ],
        ("page", "of", "says", "written"),
    )
    for number, one in enumerate(ordered, 1):
        body = one.body.replace("<h2>", "<h3>").replace("</h2>", "</h3>")
        yield Html(
            f'<article id="page-{number}">\n<h2>{one.kind}: {one.title}</h2>\n{body}</article>\n'
        )
    yield page.PAGE_END

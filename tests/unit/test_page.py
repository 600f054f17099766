"""Pages: whatever is shown stays text, and nothing is loaded."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgepack.base import charts, page
from edgepack.cli.pages.run import run_page
from edgepack.deploy.answers import Answer
from edgepack.deploy.app_answers import AppAnswer, Bench

EVIL = '</style><script>alert("x")</script>'


class Parsed(HTMLParser):
    """Tags that were opened and not closed, all that were there, and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.tags: list[str] = []
        self.values: list[tuple[str, str | None]] = []
        self.said = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += attrs
        if tag not in ("meta", "img"):
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said += data


def test_a_page_escapes_what_it_shows_and_loads_nothing(tmp_path: Path) -> None:
    made = page.page(
        EVIL,
        page.section(EVIL, EVIL, page.facts({EVIL: EVIL, "empty": "", "none": None})),
        page.table([[EVIL, 3, 0.5, None]], ["a", "b", "c", EVIL]),
        page.shares([(EVIL, 0.5, EVIL), ("other", 0.25, 1)]),
        charts.histogram([1.0, 2.0, 2.0], unit="ms", title=EVIL),
        page.picture(b"\x89PNG\r\n", alt=EVIL),
        page.picture(b"<svg onload=x>", alt="no picture"),
    )
    file = tmp_path / "out" / "page.html"
    page.write_page(file, [made])
    parsed = Parsed(file.read_text())
    assert parsed.opened == []
    assert "script" not in parsed.tags
    assert parsed.tags.count("img") == 1
    assert parsed.said.count(EVIL) >= 8
    assert "empty" not in parsed.said
    links = [value for name, value in parsed.values if name in ("src", "href")]
    assert len(links) == 1
    assert str(links[0]).startswith("data:image/png;base64,")


def test_bars_and_columns_are_as_long_as_their_values() -> None:
    widths = [value for name, value in Parsed(
        page.shares([("a", 0.5, 1), ("b", 0.25, 1), ("c", 0.0, 1)])
    ).values if name == "style"]  # fmt: skip
    assert widths == ["width:100.0%", "width:50.0%", "width:0.0%"]
    tags = Parsed(charts.histogram([1.0] * 3 + [2.0], unit="ms", title="t"))
    heights = [float(value or 0) for name, value in tags.values if name == "height"]
    assert len(heights) == 2
    assert heights[0] == pytest.approx(3 * heights[1], rel=0.01)
    # One value only, and no time at all.
    for values in ([1.5], [0.0, 0.0]):
        assert Parsed(charts.histogram(values, unit="ms", title="t")).tags.count("rect") == 1


def test_boxes_lie_where_they_are(tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    cv2.imwrite(str(photo), np.zeros((60, 80, 3), np.uint8))
    said = {
        "edgepack": "0",
        "boxes": [
            {"index": 1, "label": "a<b", "score": 0.9, "box": [10.0, 20.0, 30.0, 50.5],
             "points": [[12.5, 21.0], "none"]}
        ],
        "keypoints": [{"index": 0, "score": 0.5, "point": [1.5, 2.0]}],
    }  # fmt: skip
    made = run_page(AppAnswer.read(Answer(said, "it")), "it", photo)
    assert 'viewBox="0 0 80 60"' in made
    assert '<rect x="10.0" y="20.0" width="20.0" height="30.5"/>' in made
    assert "a&lt;b 0.90</text>" in made
    assert [(one[1], one[2]) for one in re.finditer(r'cx="([\d.]+)" cy="([\d.]+)"', made)] == [
        ("12.5", "21.0"),
        ("1.5", "2.0"),
    ]


def test_a_bench_shows_its_histogram_if_it_has_the_times() -> None:
    statistics = {name: 1.0 for name in Bench.__dataclass_fields__ if name.endswith("_ms")}
    known = {**statistics, "runs": 2, "warmup": 0, "times_ms": [1.0, 1.5]}
    assert "<svg" in Bench.read(Answer(known, "app"))._repr_html_()
    del known["times_ms"]
    assert "<svg" not in Bench.read(Answer(known, "app"))._repr_html_()

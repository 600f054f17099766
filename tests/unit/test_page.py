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


def attributes(made: str, tag: str) -> list[dict[str, str]]:
    """Of all tags of that name."""
    tags = re.findall(f"<{tag} [^>]*>", made)
    return [dict(re.findall(r'([\w-]+)="([^"]*)"', one)) for one in tags]


def test_dots_lie_as_high_as_their_values_from_zero() -> None:
    made = charts.dots([2.0, 4.0, 3.0], unit="ms", title=EVIL, lines={"p50": 3.0, "p99": 4.0})
    ups = [float(one["cy"]) for one in attributes(made, "circle")]
    base = next(float(one["y1"]) for one in attributes(made, "line") if one["y1"] == one["y2"]
                and "class" not in one)  # fmt: skip
    guides = [float(one["y1"]) for one in attributes(made, "line") if "class" in one]
    heights = [base - up for up in ups]
    assert heights == pytest.approx([heights[1] / 2, heights[1], heights[1] * 0.75], abs=0.1)
    assert [base - one for one in guides] == pytest.approx(heights[:0:-1], abs=0.1)
    across = [float(one["cx"]) for one in attributes(made, "circle")]
    assert across == sorted(across)
    # Values below zero have room, too; and a single one, or none but zeros, is no error.
    assert "-5" in charts.dots([-5.0, 5.0], unit="dB", title="t")
    assert charts.dots([0.0], unit="ms", title="t").count("<circle") == 1


def test_lines_that_would_be_written_over_each_other_have_one_name() -> None:
    near = charts.dots([1.0], unit="ms", title="t", lines={"p50": 0.99, "p90": 0.995, "p99": 1.0})
    assert len(re.findall("p50|p90|p99", near)) == 1
    far = charts.dots([1.0], unit="ms", title="t", lines={"p50": 0.3, "p90": 0.6, "p99": 1.0})
    assert re.findall("p50|p90|p99", far) == ["p50", "p90", "p99"]


def test_a_stacked_bar_has_parts_as_wide_as_their_values() -> None:
    made = charts.draw_stacked_bar(
        [("a", 1.0, "1 ms"), ("none", 0.0, ""), (EVIL, 3.0, EVIL)], title="t"
    )
    widths = [float(one["width"]) for one in attributes(made, "rect")]
    assert widths[1] == pytest.approx(3 * widths[0])
    assert "none" not in made
    assert Parsed(made).said.count(EVIL) == 4  # name and value, in the picture and below it
    many = charts.draw_stacked_bar([(str(i), 1.0, "") for i in range(20)], title="t")
    assert len(attributes(many, "rect")) == charts.SERIES
    assert "15 others" in many
    assert charts.draw_stacked_bar([], title="t") == ""


def test_curves_go_through_their_points() -> None:
    made = charts.curves(
        {"a": [(0, 0), (1, 1)], EVIL: [(0, 1), (0.5, 0.5)]}, title="t", x=(0, 1), y=(0, 1)
    )
    first, second = ([[float(x) for x in point.split(",")] for point in one["points"].split()]
                     for one in attributes(made, "polyline"))  # fmt: skip
    assert first[0][0] == second[0][0]
    assert first[1][1] == second[0][1]
    assert second[1] == pytest.approx([(a + b) / 2 for a, b in zip(*first, strict=True)], abs=0.1)
    assert EVIL in Parsed(made).said

"""`edgepack report`: one page of those that commands wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgepack.base import charts, page
from edgepack.cli import main
from edgepack.cli.pages.whole import KINDS, read_page
from tests.onnx_models import Builder
from tests.schemas import check_output
from tests.unit.test_page import EVIL, Parsed

PHOTO = cv2.imencode(".png", np.zeros((4, 6, 3), np.uint8))[1].tobytes()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with pages of `check` and `compile`, and HTML of somebody else's."""
    monkeypatch.chdir(tmp_path)
    b = Builder()
    b.op("GlobalAveragePool", "x", outputs=["m"])
    b.op("Flatten", "m", outputs=["y"])
    model = b.model({"x": [1, 3, 8, 8]}, {"y": [1, 3]})
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    name = "a onload=x <b>.png"
    cv2.imwrite(name, np.full((30, 60, 3), (30, 60, 200), np.uint8))
    (tmp_path / "edgepack.toml").write_text(
        '[project]\nmodel = "net.onnx"\nboard = "rasp3b"\nname = "net"\nexpected_class = 0\n'
        f'golden_image = "{name}"\n[preprocess]\n'
        'resize = { mode = "exact", height = 8, width = 8 }\nscale = 0.0039\n'
    )
    assert main(["check", "--html", "zcheck.html"]) == 0
    assert main(["compile", "--html", "compile.html", "-o", "out"]) == 0
    (tmp_path / "other.html").write_text("<html><head></head><body>mine</body></html>")
    return tmp_path


def test_all_pages_of_a_project_are_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    for _ in range(2):  # its own page is none of them
        assert main(["report", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        check_output("report", said)
        assert [one["kind"] for one in said["pages"]] == ["compile", "check"]
    made = (folder / "report.html").read_text()
    parsed = Parsed(made)
    assert parsed.opened == []
    assert "script" not in parsed.tags
    # In the order in which they are made, with what each says, and each page's own parts.
    assert re.findall(r'<a href="#page-\d">(\w+)</a>', made) == ["check", "compile"]
    assert parsed.said.count("The photo is seen as the class that is expected") == 2
    assert parsed.said.count("Peak: call 1, ") == 2
    assert made.count("<h1>") == 1
    for name in ("zcheck.html", "compile.html"):
        own = re.findall(r'src="data:[^"]*"', (folder / name).read_text())
        assert all(picture in made for picture in own)
    assert "mine" not in made
    assert main(["report", "compile.html", "-o", "one.html"]) == 0
    assert "The photo is seen" not in (folder / "one.html").read_text()


CHANGED = {
    "script": ("<section>", "<section><script>x</script>"),
    "handler": ("<section>", '<section onclick="x">'),
    "image": ("<section>", '<section><img src="http://example.org/x.png">'),
    "link": ("<section>", '<section><a href="#x">x</a>'),
    "frame": ("<section>", "<section><iframe></iframe>"),
    "end": ("</section>", "</section></section>"),
    "open": ("<section>", "<section><div>"),
    "style": ("<section>", '<section><svg><image href="//example.org/x"/></svg>'),
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_a_page_that_somebody_changed_is_refused(
    folder: Path, change: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = (folder / "zcheck.html").read_text()
    assert change[0] in text
    (folder / "bad.html").write_text(text.replace(*change, 1))
    assert main(["report", "bad.html", "-o", "one.html"]) == 2
    assert "bad.html: not as edgepack wrote it: " in capsys.readouterr().err
    assert not (folder / "one.html").exists()


def test_what_is_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 2
    assert "no pages that edgepack wrote in ." in capsys.readouterr().err
    Path("x.html").write_text("<html></html>")
    Path("y.html").write_bytes(b"\xff\xfe\x00")
    for name, words in (
        ("x.html", "x.html: no page that edgepack wrote"),
        ("y.html", "y.html"),
        ("none.html", "cannot read none.html: No such file"),
        (".", "no pages that edgepack wrote in ."),
    ):
        assert main(["report", name]) == 2
        err = capsys.readouterr().err
        assert words in err
        assert "Traceback" not in err


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_pages_are_made_of_is_known(kind: str, tmp_path: Path) -> None:
    parts = (
        page.verdict(EVIL, ok=True),
        page.facts({EVIL: EVIL}),
        page.embed_parts(page.shares([(EVIL, 0.5, EVIL)])),
        page.section(EVIL, page.table([[EVIL, 1]], ["a", "b"])),
        page.fold_parts(EVIL, page.paragraph(EVIL)),
        page.figures([(page.picture(PHOTO, alt=EVIL), EVIL)]),
        page.filters("b", [EVIL]),
        page.table_head(["b"], sortable=True),
        page.TABLE_END,
        page.swatch((1, 2, 3)),
        charts.histogram([1.0, 2.0], unit="ms", title=EVIL),
        charts.dots([1.0, 2.0], unit="ms", title=EVIL, lines={"p50": 1.0}),
        charts.curves({"a": [(0, 0), (1, 1)], "b": [(0, 1)]}, title="t", x=(0, 1), y=(0, 1)),
        charts.draw_stacked_bar([("a", 1.0, "b"), ("c", 1.0, "d")], title=EVIL),
        charts.rectangles([(0, 0, 1, 1, 0, EVIL)], x=1, y=1, title=EVIL, guide=0.5),
        charts.matrix([[1, 2], [0, 3]], ["a", EVIL], corner="c"),
        charts.flow([(EVIL, 1.0, 0, EVIL), ("b", 2.0, 1, "c")], [(0, 1)], title=EVIL),
        charts.share_bar(0.5, 0.4, 0.6),
        charts.marked_picture(PHOTO, 6, 4, [((1, 1, 2, 2), EVIL)], [(1, 1)], alt=EVIL),
    )
    file = tmp_path / "page.html"
    page.write_page(file, [page.page(EVIL, *parts, kind=kind)])
    found = read_page(file)
    assert (found.kind, found.verdict) == (kind, page.text(EVIL))
    assert found.title == page.text(EVIL)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found.at)

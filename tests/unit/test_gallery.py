"""Galleries: what their files may say, who is enrolled by photos, and who is found again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edgepack.base.errors import ConfigError, UsageError
from edgepack.base.text import one_line
from edgepack.cli import main
from edgepack.flow.check import check_project
from edgepack.flow.gallery import EnrollError, enroll, forget
from edgepack.flow.gallery_check import GalleryMismatchError
from edgepack.flow.job import make_job
from edgepack.flow.project import load_project
from edgepack.postprocess.base import PostprocessMismatchError
from edgepack.postprocess.embedding import Embedding
from edgepack.postprocess.gallery import Gallery, read_gallery
from tests.onnx_models import Builder

SIDE = 8


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of whole photos whose embedding is the mean colour, and photos of plain colours."""
    b = Builder()
    b.op("ReduceMean", "x", axes=[2, 3], keepdims=0, outputs=["mean"])
    b.save(tmp_path / "colours.onnx", {"x": [1, 3, SIDE, SIDE]}, {"mean": [1, 3]})
    rgb = {"red": (255, 9, 9), "rose": (250, 60, 60), "green": (9, 255, 9), "blue": (0, 0, 255)}
    for name, colour in {**rgb, "black": (0, 0, 0)}.items():
        pixels = np.full((SIDE, SIDE, 3), colour[::-1], np.uint8)
        cv2.imwrite(str(tmp_path / f"{name}.png"), pixels)
    _write(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _write(folder: Path, score: float = 0.9, project: str = "", preprocess: str = "") -> Path:
    file = folder / "edgepack.toml"
    file.write_text(
        f'[project]\nmodel = "colours.onnx"\ngolden_image = "red.png"\nboard = "rasp3b"\n{project}'
        f'\n[preprocess]\nresize = {{ mode = "exact", height = {SIDE}, width = {SIDE} }}\n'
        f'{preprocess}\n[postprocess]\nkind = "embedding"\ngallery = "people.json"\n'
        f"score = {score}\n"
    )
    return file


def _seen(folder: Path, *photos: str, **changes: Any) -> list[tuple[str, float]]:
    project = load_project(_write(folder, **changes))
    seen = check_project(project, [folder / f"{name}.png" for name in photos]).seen
    tops = [one.results.top for one in seen if one.results is not None]
    return [(one.label, round(one.score, 4)) for top in tops if top for one in top]


def _cosine(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return round(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)), 4)


def test_who_is_enrolled_is_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["enroll", "Ruby", "red.png"]) == 0
    assert capsys.readouterr().out == "Ruby: one photo in people.json, 1 new; one person\n"
    assert main(["enroll", "Gil", "green.png", "--json"]) == 0
    near = _cosine((255, 9, 9), (9, 255, 9))
    said = json.loads(capsys.readouterr().out)
    assert said["nearest"]["name"] == "Ruby"
    assert said["nearest"]["score"] == pytest.approx(near, abs=1e-4)
    assert (said["added"], said["photos"], said["people"]) == (1, 1, 2)
    rose = _cosine((250, 60, 60), (255, 9, 9))
    assert _seen(folder, "red", "rose", "green", "black") == [
        ("Ruby", 1.0),
        ("Ruby", rose),
        ("Gil", 1.0),
        ("unknown", 0.0),
    ]
    assert _seen(folder, "rose", "blue", score=0.99) == [
        ("unknown", rose),
        ("unknown", _cosine((0, 0, 255), (255, 9, 9))),
    ]
    labels = make_job(load_project(_write(folder))).labels
    assert labels == ("Ruby", "Gil", "unknown")


def test_more_photos_of_a_person_and_none(folder: Path) -> None:
    file = _write(folder)
    first = enroll(file, "Ruby", [folder / "red.png"])
    assert first.nearest is None
    again = enroll(file, "Ruby", [folder / "red.png", folder / "rose.png"])
    assert (again.added, again.photos) == (1, 2)
    enroll(file, "Gil", [folder / "green.png"])
    assert _seen(folder, "rose") == [("Ruby", 1.0)]
    assert main(["enroll", "Ruby", "--remove"]) == 0
    assert read_gallery(folder / "people.json").people == ("Gil",)
    assert _seen(folder, "rose", "green") == [
        ("unknown", _cosine((250, 60, 60), (9, 255, 9))),
        ("Gil", 1.0),
    ]
    left = forget(file, "Gil")
    assert left.people == 0
    assert _seen(folder, "green") == [("unknown", 0.0)]


def test_a_gallery_that_is_not_there(folder: Path) -> None:
    with pytest.raises(ConfigError, match="file not found") as caught:
        load_project(folder / "edgepack.toml")
    assert "edgepack enroll NAME PHOTO" in str(caught.value.hint)
    for photos, words in (
        (["no.png"], "no.png"),
        (["black.png"], "black.png: the model's answer has no direction"),
    ):
        assert main(["enroll", "Ruby", *photos]) == 2
        with pytest.raises(Exception, match=words):
            enroll(folder / "edgepack.toml", "Ruby", [folder / one for one in photos])
        assert not (folder / "people.json").exists()


@pytest.mark.parametrize("name", ["", " Ruby", "Unknown", "a\nb", "x" * 65, "a\u202eb"])
def test_names_that_cannot_be(folder: Path, name: str) -> None:
    assert main(["enroll", name, "red.png"]) == 2
    assert not (folder / "people.json").exists()


def test_what_vectors_were_not_made_with_is_refused(folder: Path) -> None:
    enroll(_write(folder), "Ruby", [folder / "red.png"])
    with pytest.raises(GalleryMismatchError, match="another model or preprocessing") as caught:
        _seen(folder, "red", preprocess="scale = 0.5")
    assert "enroll everybody again" in str(caught.value.hint)
    b = Builder()
    b.op("ReduceMean", "x", axes=[2], keepdims=0, outputs=["mean"])
    b.save(folder / "colours.onnx", {"x": [1, 3, SIDE, SIDE]}, {"mean": [1, 3, SIDE]})
    with pytest.raises(PostprocessMismatchError, match="it takes one output, a vector"):
        _seen(folder, "red")
    (folder / "labels.txt").write_text("a\n")
    with pytest.raises(ConfigError, match="the labels are the gallery's"):
        load_project(_write(folder, project='labels = "labels.txt"'))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "x"}, "format: 'x' is not 'edgepack-gallery'"),
        ({"version": 2}, "version: 2 is not 1"),
        ({"people": ["a", "a"]}, "people: "),
        ({"people": ["a", "unknown"]}, "people: 'unknown' is what everybody else"),
        ({"people": ["a\x1b[0m"]}, "people: 'a\\x1b[0m' has a control character"),
        ({"people": ["a" * 65]}, "has not 1 to 64 bytes"),
        ({"owners": [1]}, "owners: "),
        ({"owners": [-1]}, "owners: "),
        ({"owners": [0, 0, 0]}, "vectors: are not one for each"),
        ({"owners": []}, "vectors: are not one for each"),
        ({"vectors": []}, "vectors: are not one for each"),
        ({"vectors": [3.0, 4.0]}, "vectors: hold one that is not of length 1"),
        ({"vectors": [1e300, 1e300]}, "vectors: hold one that is not of length 1"),
        ({"vectors": ["a", "b"]}, "vectors: 'a' is not a number"),
        ({"faces": 1}, "faces: unknown key"),
    ],
)
def test_files_that_are_no_gallery(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    file = tmp_path / "people.json"
    good = {"format": "edgepack-gallery", "version": 1, "made_by": "", "people": ["a"]}
    good |= {"owners": [0], "vectors": [0.6, 0.8]}
    file.write_text(json.dumps(good))
    assert read_gallery(file).people == ("a",)
    file.write_text(json.dumps({**good, **changes}))
    with pytest.raises(ConfigError) as caught:
        read_gallery(file)
    assert words in one_line(caught.value.message) and str(file) in caught.value.message


def test_a_file_reads_as_it_was_written(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    gallery = Gallery()
    for name in ("Åsa", "Ben", "Åsa"):
        gallery = gallery.with_vector(name, random.normal(0, 9, (1, 5)).astype("f4"), "hash")
    gallery.write(tmp_path / "people.json")
    assert read_gallery(tmp_path / "people.json") == gallery
    Gallery().write(tmp_path / "people.json")
    assert read_gallery(tmp_path / "people.json") == Gallery()
    with pytest.raises(ValueError, match="has 4 elements, and the gallery's vectors 5"):
        gallery.with_vector("Ben", np.ones(4), "hash")


def test_vectors_without_a_direction_are_nobody() -> None:
    spec = Embedding(outputs=("a",), score=0.1, people=("a",), owners=(0,), vectors=(1.0, 0.0, 0.0))
    for vector in ([0, 0, 0], [np.nan, 1, 1], [np.inf, 1, 1]):
        (top,) = spec.run([np.asarray([vector], "f4")], None).top or ()
        assert (top.index, top.label, top.score) == (1, "unknown", 0.0)


def test_which_of_several_galleries(folder: Path) -> None:
    text = (folder / "edgepack.toml").read_text()
    stage = '[[stage]]\nname = "{0}"\n[stage.postprocess]\ngallery = "{0}.json"\n'
    file = folder / "edgepack.toml"
    file.write_text(text + stage.format("a"))
    with pytest.raises(UsageError, match="there are 2 galleries") as caught:
        enroll(file, "Ruby", [folder / "red.png"])
    assert str(caught.value.hint) == "--gallery people.json"
    with pytest.raises(UsageError, match=r"has gallery = 'b\.json'"):
        enroll(file, "Ruby", [folder / "red.png"], gallery="b.json")
    file.write_text('[project]\nmodel = "colours.onnx"\n')
    with pytest.raises(ConfigError, match="names a gallery"):
        enroll(file, "Ruby", [folder / "red.png"])


def test_photos_have_to_show_one(folder: Path) -> None:
    """Of a detector whose boxes hang on how bright the photo is."""
    b = Builder()
    scores = b.op("Clip", b.op("Mul", b.op("ReduceMean", "x", keepdims=0), b.const(0.0075, "f4")),
                  b.const(0.0, "f4"), b.const(0.9, "f4"))  # fmt: skip
    rows = np.zeros((1, 2, 6), np.float32)
    rows[0, :, :4] = [[0, 0, 4, 4], [4, 4, 8, 8]]
    one = np.zeros_like(rows)
    one[0, :, 4] = [1, 0.6]
    b.op("Add", b.op("Mul", scores, b.const(one)), b.const(rows), outputs=["rows"])
    b.save(folder / "boxes.onnx", {"x": [1, 3, SIDE, SIDE]}, {"rows": [1, 2, 6]})
    resize = f'resize = {{ mode = "exact", height = {SIDE}, width = {SIDE} }}\n'
    file = folder / "edgepack.toml"
    file.write_text(
        f'[project]\nmodel = "boxes.onnx"\ngolden_image = "red.png"\nboard = "rasp3b"\n'
        f'[preprocess]\n{resize}[postprocess]\npreset = "yolo-end2end"\nscore = 0.5\n'
        f'[[stage]]\nname = "who"\nmodel = "colours.onnx"\n[stage.preprocess]\n{resize}'
        '[stage.postprocess]\nkind = "embedding"\ngallery = "people.json"\nscore = 0.9\n'
    )
    with pytest.raises(EnrollError, match=r"rose\.png: 2 boxes are seen that stage 'who'"):
        enroll(file, "Bo", [folder / "red.png", folder / "rose.png"])
    with pytest.raises(EnrollError, match=r"black\.png: no boxes are seen"):
        enroll(file, "Bo", [folder / "black.png"])
    enroll(file, "Bo", [folder / "red.png"])
    (seen,) = check_project(load_project(file), [folder / "red.png"]).seen
    assert seen.results is not None and seen.results.boxes is not None
    who = seen.results.boxes[0].answers["who"]
    assert not isinstance(who, str) and who.top is not None
    assert (who.top[0].label, round(who.top[0].score, 6)) == ("Bo", 1.0)
    file.write_text(file.read_text().replace('name = "who"', 'name = "who"\npadding = 0.5'))
    with pytest.raises(GalleryMismatchError, match=r"stage\[0\].postprocess.gallery"):
        check_project(load_project(file))

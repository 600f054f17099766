"""The reference of postprocessing: tables, overlaps, and heads that give back what went in."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import cv2
import numpy as np
import pytest

from edgepack.base.errors import ConfigError
from edgepack.model import TensorInfo
from edgepack.postprocess.base import PostprocessMismatchError, PostprocessSpec
from edgepack.postprocess.classes import Classes, Tensors
from edgepack.postprocess.presets import PRESETS
from edgepack.postprocess.results import Box, Found, Results, ResultsMismatchError, check_equal
from edgepack.postprocess.spec import KINDS, parse_postprocess, read_postprocess
from edgepack.postprocess.yolo import Yolo
from edgepack.preprocess.geometry import Geometry
from edgepack.preprocess.spec import PreprocessSpec, Resize
from tests import outputs

IMAGE = TensorInfo(name="x", dtype="float32", shape=(1, 3, 64, 96))


def read(text: str) -> PostprocessSpec:
    return read_postprocess(tomllib.loads(text), file="edgepack.toml")


def bound(text: str, *shapes: tuple[int, ...], dtype: str = "float32") -> PostprocessSpec:
    infos = [TensorInfo(name=f"y{i}", dtype=dtype, shape=shape) for i, shape in enumerate(shapes)]
    return read(text).for_model([IMAGE], infos)


# ------------------------------------------------ the table


@pytest.mark.parametrize("kind", KINDS)
def test_a_spec_travels_as_json(kind: str) -> None:
    case = next(case for case in outputs.CASES if case.spec.kind == kind)
    text = case.spec.to_json()
    assert parse_postprocess(text) == case.spec
    assert json.loads(text)["kind"] == kind


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_tables(preset: str) -> None:
    assert isinstance(read(f'preset = "{preset}"'), PostprocessSpec)
    assert read(f'preset = "{preset}"\noutputs = ["y"]').outputs == ("y",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "postprocess.kind: missing"),
        ('kind = "yola"', "postprocess.kind: unknown value 'yola'"),
        ('preset = "none"', "postprocess.preset: unknown value"),
        ('kind = "yolo"\nscor = 1', "postprocess.scor: unknown key"),
        ('kind = "yolo"\nscore = 1.5', "postprocess.score: 1.5 is not from 0 to 1"),
        ('kind = "yolo"\nmax_boxes = 0', "postprocess.max_boxes: 0 is not from 1 to"),
        ('kind = "yolo"\nanchors = [1, 2]', "postprocess.anchors: cannot be used with head"),
        ('kind = "yolo"\nhead = "v5"\nanchors = [1]', "postprocess.anchors: 1 numbers"),
        ('kind = "yolo"\nhead = "v5"\nanchors = [1, 0]', "postprocess.anchors: [1.0, 0.0] holds"),
        ('kind = "yolo"\nhead = "v5"\npoints = 1', "postprocess.points: cannot be used"),
        ('kind = "classes"\nscore = inf', "postprocess.score: inf is not a finite number"),
        ('kind = "classes"\niou = 0.5', "postprocess.iou: unknown key"),
        ('kind = "classes"\noutputs = ["y", "y"]', "postprocess.outputs: ['y', 'y'] names one"),
    ],
)
def test_mistakes_in_the_table(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ('kind = "classes"', [(1, 3, 8)], "one output, a vector of scores"),
        ('kind = "yolo"', [(1, 4, 100)], "not room for one class"),
        ('kind = "yolo"', [(1, 84)], "three dimensions or more"),
        ('kind = "yolo"\nhead = "v5"', [(1, 18, 4, 4)], "need anchors"),
        ('kind = "yolo"\nhead = "end2end"', [(1, 9, 7)], "rows of 6 numbers"),
        ('kind = "centernet"', [(1, 2, 4, 4)], "centres, sizes and offsets"),
        ('kind = "centernet"', [(1, 2, 4, 4), (1, 2, 4, 4), (1, 2, 4, 5)], "not of one size"),
        ('kind = "yolo"\noutputs = ["z"]', [(1, 84, 9)], "no output 'z'"),
    ],
)
def test_outputs_that_do_not_fit(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(PostprocessMismatchError) as caught:
        bound(text, *shapes)
    assert message in caught.value.message


def test_outputs_and_labels_are_checked() -> None:
    with pytest.raises(PostprocessMismatchError, match="is int64"):
        bound('kind = "yolo"', (1, 84, 9), dtype="int64")
    info = TensorInfo(name="y", dtype="float32", shape=(1, 6, 9))
    with pytest.raises(PostprocessMismatchError, match="1 labels, but the outputs tell 2 classes"):
        read('kind = "yolo"').for_model([IMAGE], [info], labels=["a"])
    spec = read('kind = "yolo"').for_model([IMAGE], [info], labels=["a", "b"])
    assert spec.size == (64, 96)
    assert spec.outputs == ("y",)
    # What the preprocessing makes is known better than a guess from the input's shape.
    assert read('kind = "yolo"').for_model([IMAGE], [info], size=(9, 8)).size == (9, 8)
    row = TensorInfo(name="x", dtype="float32", shape=(1, 5))
    with pytest.raises(PostprocessMismatchError, match="which size the image has"):
        read('kind = "yolo"').for_model([row], [info])


# ------------------------------------------------ classes


def test_classes() -> None:
    values = np.array([[1.0, 3.0, np.nan, 3.0, -2.0]], np.float32)
    raw = Classes(outputs=("y",), scores="raw", top=4).run([values], None, ("a", "b")).top
    assert raw is not None
    assert [(one.index, one.label, one.score) for one in raw] == [
        (1, "b", 3.0),
        (3, "", 3.0),
        (0, "a", 1.0),
        (4, "", -2.0),
    ]
    sigmoid = Classes(outputs=("y",), scores="sigmoid", top=5, score=0.5).run([values], None).top
    assert sigmoid is not None
    assert [one.index for one in sigmoid][:3] == [1, 3, 0]
    assert sigmoid[0].score == pytest.approx(1 / (1 + np.exp(-3)))
    large = np.array([1000.0, 1001.0], np.float32)
    softmax = Classes(outputs=("y",)).run([large], None).top
    assert softmax is not None
    assert softmax[0].score == pytest.approx(1 / (1 + np.exp(-1)))


def test_tensors() -> None:
    spec = Tensors(outputs=("y",), count=3)
    found = spec.run([np.arange(8, dtype=np.int64).reshape(2, 4)], None)
    assert found.to_dict() == {"tensors": [{"name": "y", "values": [0.0, 1.0, 2.0]}]}


# ------------------------------------------------ boxes


def test_suppression_is_opencvs() -> None:
    random = np.random.default_rng(5)
    for number in range(20):
        count, classes = 60, 3
        sides = np.round(random.uniform(5, 60, (2, count)), 1)
        centres = random.uniform(0, 90, (2, count))
        scores = random.permutation(count * classes).reshape(classes, count) / (count * classes)
        rows = np.concatenate([centres, sides, scores]).astype(np.float32)
        spec = Yolo(outputs=("y",), size=(10**4, 10**4), score=0.301, iou=0.1 * (number % 7))
        far = Geometry(
            height=10**4, width=10**4, scaled_height=10**4, scaled_width=10**4, top=200, left=200
        )  # so that nothing is cut off
        found = spec.run([rows[np.newaxis]], far).boxes
        assert found is not None
        best, index = rows[4:].max(0), rows[4:].argmax(0)
        left, top = (rows[0] - rows[2] / 2, rows[1] - rows[3] / 2)
        given = np.stack([left, top, rows[2], rows[3]], 1).tolist()
        kept: list[int] = []
        for one in range(classes):
            own = np.where(index == one, best, 0.0).tolist()
            kept += list(np.array(cv2.dnn.NMSBoxes(given, own, 0.301, spec.iou)).ravel())
        kept.sort(key=lambda i: -best[i])
        assert [box.index for box in found] == [index[i] for i in kept]
        np.testing.assert_allclose(
            [box.box[:2] for box in found],
            [(left[i] + 200, top[i] + 200) for i in kept],
            rtol=1e-6,
        )


@pytest.mark.parametrize("case", outputs.CASES, ids=lambda case: case.name)
def test_heads_give_back_what_was_put_in(case: outputs.Case) -> None:
    """`outputs.CASES` are made of boxes by the inverse of what the papers say."""
    found = case.spec.run(case.tensors, None)
    if case.boxes is None:
        assert found.boxes is None
        return
    assert found.boxes is not None
    assert [box.index for box in found.boxes] == [box.index for box in case.boxes]
    for box, want in zip(found.boxes, case.boxes, strict=True):
        np.testing.assert_allclose(box.score, want.score, atol=1e-5)
        np.testing.assert_allclose(box.box, want.box, atol=1e-2)
        np.testing.assert_allclose(box.points, want.points, atol=1e-2)


@pytest.mark.parametrize("mode", ["shortest", "exact", "letterbox"])
@pytest.mark.parametrize("shape", [(200, 300), (301, 199), (64, 64), (7, 500)])
def test_points_come_back_through_the_preprocessing(mode: str, shape: tuple[int, int]) -> None:
    """A bright pixel of a photo is found in its tensor where the geometry says."""
    resize = Resize(mode=mode, height=120, width=120 if mode == "shortest" else 160)
    crop = (100, 90) if mode != "exact" else None
    spec = PreprocessSpec(input="x", resize=resize, crop=crop, interpolation="area")
    height, width = shape
    photo = np.zeros((height, width, 3), np.uint8)
    # A bright block in the middle: of each tensor's pixel it is so far from the dark.
    top, bottom, left, right = height // 3, height - height // 3, width // 3, width - width // 3
    photo[top:bottom, left:right] = 255
    letterboxed = PreprocessSpec(input="x", resize=resize, crop=crop, interpolation="area")
    seen = letterboxed.resized(photo)[:, :, 0] == 255
    geometry = spec.geometry(height, width)
    rows, columns = np.nonzero(seen)
    if not rows.size:
        pytest.skip("nothing of it is left")
    pixel_x = width / geometry.scaled_width
    pixel_y = height / geometry.scaled_height
    for y, x in ((rows.min(), columns.min()), (rows.max(), columns.max())):
        source_x, source_y = geometry.point(float(x) + 0.5, float(y) + 0.5)
        assert left - pixel_x <= source_x <= right + pixel_x
        assert top - pixel_y <= source_y <= bottom + pixel_y
    assert geometry.point(-1e9, 1e9) == (0, height)


# ------------------------------------------------ comparing


def answer(**changes: Any) -> dict[str, Any]:
    box = {"index": 1, "label": "b", "score": 0.5, "box": [1.0, 2.0, 3.0, 4.0], **changes}
    return {"edgepack": "0", "boxes": [box]}


def test_results_are_compared() -> None:
    want = Results(boxes=(Box(index=1, label="b", score=0.5, box=(1, 2, 3, 4)),))

    def check(got: dict[str, Any]) -> None:
        check_equal(got, want, (50, 100), what="it")

    check(answer())
    check(answer(box=[1.009, 2.0, 3.0, 4.0]))
    for got, message in (
        (answer(box=[1.02, 2.0, 3.0, 4.0]), r"boxes\[0\].box"),
        (answer(box=[None, 2.0, 3.0, 4.0]), r"boxes\[0\].box"),
        (answer(score=0.501), r"boxes\[0\].score"),
        (answer(index=0), r"boxes\[0\].index is 0"),
        (answer(label="c"), r"boxes\[0\].label is 'c'"),
        (answer(points=[[1, 2]]), r"boxes\[0\].keys are"),
        ({"boxes": []}, "0 boxes, the reference has 1"),
        ({}, "0 boxes"),
    ):
        with pytest.raises(ResultsMismatchError, match=message):
            check(got)
    check_equal({}, Results(top=()), (1, 1), what="it")
    with pytest.raises(ResultsMismatchError):
        check_equal({}, Results(top=(Found(index=0, label="", score=1),)), (1, 1), what="it")

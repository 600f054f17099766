"""The reference of postprocessing: tables, overlaps, and heads that give back what went in."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edgepack.base.errors import ConfigError
from edgepack.model import TensorInfo
from edgepack.postprocess.base import PostprocessMismatchError, PostprocessSpec
from edgepack.postprocess.classes import Classes, Tensors
from edgepack.postprocess.ctc import Ctc
from edgepack.postprocess.masks import TextLines
from edgepack.postprocess.presets import PRESETS
from edgepack.postprocess.results import Box, Found, Results, ResultsMismatchError, check_equal
from edgepack.postprocess.spec import KINDS, parse_postprocess, read_postprocess
from edgepack.postprocess.ssd import Ssd
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
    more = 'characters = ["a"]\n' if preset == "ppocr-rec" else ""
    assert isinstance(read(f'preset = "{preset}"\n{more}'), PostprocessSpec)
    assert read(f'preset = "{preset}"\n{more}outputs = ["y"]').outputs == ("y",)


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
        ('kind = "yolo"\nhead = "v5"\nrotated = true', "postprocess.rotated: cannot be used"),
        ('kind = "yolo"\npoints = 1\nmasks = 2', "postprocess.masks: cannot be used with points"),
        ('kind = "yolo"\npoints = 1\npoint_size = 4', "postprocess.point_size: 4 is not from 2"),
        ('kind = "ssd"\nmaps = [1]', "postprocess.maps: [1] are not heights and widths"),
        ('kind = "ssd"\nmaps = [1, 1]\nstrides = [8]', "postprocess.strides: cannot be used"),
        ('kind = "ssd"\nstrides = [8]\nanchors = [1, 2]', "postprocess.counts: [] do not give 1"),
        ('kind = "ssd"\ngenerate = { style = "tf" }', "postprocess.generate: needs maps"),
        (
            'kind = "ssd"\nstrides = [8]\ngenerate = { style = "ssd", scales = [1] }',
            "postprocess.generate.scales: [1.0] are not 2 numbers above 0",
        ),
        (
            'kind = "ssd"\nstrides = [8]\ngenerate = { style = "tf", ratios = [0] }',
            "postprocess.generate.ratios: 0.0 is not a ratio",
        ),
        (
            'kind = "ssd"\nstrides = [8]\ngenerate = { style = "tf", ratio = 1 }',
            "postprocess.generate.ratio: unknown key",
        ),
        ('kind = "ssd"\nvariances = [1]', "postprocess.variances: [1.0] are not two numbers"),
        ('kind = "keypoints"\nshift = 2', "postprocess.shift: 2.0 is not from 0 to 1"),
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
        ('kind = "yolo"', [(1, 4, 100)], "the same number of classes"),
        ('kind = "yolo"\nrotated = true', [(1, 5, 100)], "the same number of classes"),
        ('kind = "yolo"\nmasks = 4', [(1, 84, 8, 8)], "maps (1, C, H, W) of nothing but boxes"),
        ('kind = "yolo"\nhead = "end2end"\nmasks = 4', [(1, 9, 6)], "rows of 10 numbers"),
        ('kind = "yolo"', [(1, 84)], "three dimensions or more"),
        ('kind = "yolo"\nhead = "v5"', [(1, 18, 4, 4)], "need anchors"),
        ('kind = "yolo"\nhead = "end2end"', [(1, 9, 7)], "rows of 6 numbers"),
        ('kind = "centernet"', [(1, 2, 4, 4)], "centres, sizes and offsets"),
        ('kind = "centernet"', [(1, 2, 4, 4), (1, 2, 4, 4), (1, 2, 4, 5)], "not of one size"),
        ('kind = "ssd"', [(1, 9, 4), (1, 8, 3)], "the same number of boxes"),
        ('kind = "ssd"', [(1, 9, 5), (1, 9, 3)], "a box is four numbers"),
        ('kind = "ssd"', [(1, 9, 4), (1, 9, 1)], "no class beside the background"),
        ('preset = "retinaface"', [(1, 9, 4), (1, 9, 2), (1, 9, 10)], "the maps have 252 anchors"),
        ('kind = "keypoints"', [(1, 17, 64)], "maps of one image (1, maps, H, W)"),
        ('kind = "segmentation"\nlayout = "NHWC"', [(1, 64, 64)], "(1, H, W, maps)"),
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


@pytest.mark.parametrize("shape", [(8,), (1, 8), (1, 8, 1, 1), (1, 1, 1, 8), (1, 1)])
def test_a_vector_of_scores_may_have_more_dimensions(shape: tuple[int, ...]) -> None:
    count = max(shape)
    spec = bound('kind = "classes"', shape)
    (first, *_) = spec.run([np.arange(count, dtype=np.float32).reshape(shape)], None).top or ()
    assert first.index == count - 1


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


def test_rotated_boxes_overlap_as_the_paper_says() -> None:
    """1 - the Hellinger distance of two normal distributions, by their covariance matrices."""
    random = np.random.default_rng(11)

    def spread(box: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, y, wide, high, angle = box
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        return np.array([x, y]), turn @ np.diag([wide**2 / 12, high**2 / 12]) @ turn.T

    seen = set()
    for _ in range(200):
        boxes = random.uniform((40, 40, 5, 5, -2), (60, 60, 40, 40, 2), (2, 5))
        (one, first), (two, second) = map(spread, boxes)
        mean = (first + second) / 2
        apart = one - two
        distance = apart @ np.linalg.solve(mean, apart) / 8 + 0.5 * np.log(
            np.linalg.det(mean) / np.sqrt(np.linalg.det(first) * np.linalg.det(second))
        )
        overlap = 1 - np.sqrt(1 - np.exp(-distance))
        # Kept together if the limit is a little above it, apart a little below.
        rows = np.zeros((1, 6, 2), np.float64)
        rows[0, :4], rows[0, 4], rows[0, 5] = boxes[:, :4].T, (0.9, 0.8), boxes[:, 4]
        for limit, count in ((overlap + 1e-4, 2), (overlap - 1e-4, 1)):
            if 0 < limit < 1:
                spec = Yolo(outputs=("y",), size=(100, 100), iou=limit, rotated=True)
                found = spec.run([rows], None).boxes
                assert found is not None
                assert len(found) == count, (boxes, overlap)
                seen.add(count)
    assert seen == {1, 2}


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
@pytest.mark.parametrize("shape", [(200, 300), (301, 199), (64, 64), (24, 500)])
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
    seen = spec.resized(photo)[:, :, 0] == 255
    geometry = spec.geometry(height, width)
    rows, columns = np.nonzero(seen)
    assert rows.size
    pixel_x = width / geometry.scaled_width
    pixel_y = height / geometry.scaled_height
    for y, x in ((rows.min(), columns.min()), (rows.max(), columns.max())):
        source_x, source_y = geometry.point(float(x) + 0.5, float(y) + 0.5)
        assert left - pixel_x <= source_x <= right + pixel_x
        assert top - pixel_y <= source_y <= bottom + pixel_y
    assert geometry.point(-1e9, 1e9) == (0, height)


# ------------------------------------------------ maps


def case_of(name: str) -> outputs.Case:
    return next(case for case in outputs.CASES if case.name == name)


@pytest.mark.parametrize("name", ["segmentation", "segmentation-one"])
def test_a_mask_is_the_map_enlarged(name: str) -> None:
    """By OpenCV's nearest neighbour, whose steps are whole ones here."""
    case = case_of(name)
    (scores,) = case.tensors
    if scores.shape[1] == 1:
        seen = np.where(1 / (1 + np.exp(-scores[0, 0])) >= 0.6, 0, 255)
    else:
        seen = scores[0].argmax(0)
        seen[seen == 1] = 255
    want = cv2.resize(seen.astype(np.uint8), (96, 64), interpolation=cv2.INTER_NEAREST)
    mask = case.spec.run(case.tensors, None).mask
    assert mask is not None
    assert mask.size == (64, 96)
    got = np.full(64 * 96, 255, np.uint8)
    for area in mask.areas:
        for start, length in np.array(area.runs).reshape(-1, 2).tolist():
            assert (got[start : start + length] == 255).all()
            got[start : start + length] = area.index
        assert area.pixels == (want == area.index).sum()
    np.testing.assert_array_equal(got.reshape(64, 96), want)
    # Beside the tensor, in a cropped photo, nothing is known.
    wide = Geometry(height=64, width=192, scaled_height=64, scaled_width=192, left=48)
    cropped = case.spec.run(case.tensors, wide).mask
    assert cropped is not None
    assert [area.pixels for area in cropped.areas] == [area.pixels for area in mask.areas]


def test_rectangles_of_lines_are_opencvs() -> None:
    random = np.random.default_rng(8)
    spec = TextLines(outputs=("y",), size=(100, 100), unclip=0.0, least=0.0)
    for _ in range(20):
        centre, sides = random.uniform(40, 60, 2), random.uniform(8, 50, 2)
        corners = cv2.boxPoints((centre.tolist(), sides.tolist(), float(random.uniform(0, 90))))
        drawn = np.zeros((100, 100), np.uint8)
        cv2.fillPoly(drawn, [np.asarray(corners).round().astype(np.int32)], (1,))
        found = spec.run([drawn[None, None].astype(np.float32)], None).boxes
        assert found is not None
        ((points),) = [box.points for box in found]
        y, x = np.nonzero(drawn)
        want = cv2.minAreaRect(np.stack([x, y], 1).astype(np.float32))
        got = cv2.minAreaRect(np.array(points, np.float32) - 0.5)
        np.testing.assert_allclose(got[0], want[0], atol=0.5)
        assert np.prod(got[1]) == pytest.approx(np.prod(want[1]), rel=1e-3)
        # Clockwise, from the upper left.
        turned = [
            (b[0] - a[0]) * (c[1] - b[1]) - (b[1] - a[1]) * (c[0] - b[0])
            for a, b, c in zip(points, points[1:], points[2:], strict=False)
        ]
        assert all(turn > 0 for turn in turned)
        assert sum(points[0]) == min(map(sum, points))


def test_anchors_by_rule() -> None:
    """What torchvision and TensorFlow's object detection API write down for their own models."""
    paper = read('preset = "ssd-torchvision"')
    assert isinstance(paper, Ssd)
    assert paper.counts == (4, 6, 6, 6, 4, 4)
    maps = [
        (300 // stride + (300 % stride > 0)) ** 2 * count
        for stride, count in zip(paper.strides, paper.counts, strict=True)
    ]
    assert sum(maps) == 8732  # Liu et al., figure 2
    np.testing.assert_allclose(paper.anchors[:2], (0.07, 0.07))
    np.testing.assert_allclose(paper.anchors[2:4], np.sqrt(0.07 * 0.15))
    np.testing.assert_allclose(paper.anchors[4:6], (0.07 * np.sqrt(2), 0.07 / np.sqrt(2)))
    np.testing.assert_allclose(paper.anchors[6:8], (0.07 / np.sqrt(2), 0.07 * np.sqrt(2)))
    tf = read('preset = "ssd-tf"')
    assert isinstance(tf, Ssd)
    assert tf.counts == (3, 6, 6, 6, 6, 6)
    cells = [height * width for height, width in zip(tf.maps[::2], tf.maps[1::2], strict=True)]
    assert np.dot(cells, tf.counts) == 1917  # ssd_mobilenet's raw outputs are (1, 1917, ...)
    np.testing.assert_allclose(
        tf.anchors[:6],
        (0.1, 0.1, 0.2 * np.sqrt(2), 0.2 / np.sqrt(2), 0.2 / np.sqrt(2), 0.2 * np.sqrt(2)),
    )
    np.testing.assert_allclose(tf.anchors[6:8], 0.35)  # 0.2 + 0.75 / 5
    np.testing.assert_allclose(tf.anchors[16:18], np.sqrt(0.35 * 0.5))
    np.testing.assert_allclose(tf.anchors[-2:], np.sqrt(0.95))


@pytest.mark.parametrize("name", ["keypoints", "segmentation"])
def test_maps_may_come_last(name: str) -> None:
    first, last = case_of(name), case_of(f"{name}-last")
    assert last.spec.run(last.tensors, None) == first.spec.run(first.tensors, None)


def test_key_points() -> None:
    """Maps of 16 x 12 cells, each of 4 x 8 pixels; of the four one is nowhere."""
    case = case_of("keypoints")
    assert case.spec.run(case.tensors, None, ("nose", "eye")).to_dict() == {
        "keypoints": [
            # A quarter of a cell to the right; on the edges there is nothing to compare with.
            {"index": 0, "label": "nose", "score": 0.5, "point": [3.25 * 8, 0.0]},
            {
                "index": 1,
                "label": "eye",
                "score": 0.625,
                "point": [11 * 8.0, pytest.approx(28, abs=1)],
            },
            {"index": 2, "score": 0.75, "point": [5.25 * 8, pytest.approx(36, abs=1)]},
        ]
    }
    case = case_of("keypoints-sigmoid")
    found = case.spec.run(case.tensors, None).keypoints
    assert found is not None
    assert [one.point for one in found] == [(28, 2), (92, 30), (44, 38)]
    assert found[0].score == pytest.approx(1 / (1 + np.exp(-0.5)))


def test_text() -> None:
    case = case_of("ctc")
    text = case.spec.run(case.tensors, None).text
    assert text is not None
    assert text.text == "aabdc"
    assert text.score == pytest.approx(np.mean([0.5 + i / 32 for i in (1, 4, 5, 7, 10)]))
    # The same classes from the other end: 4 is the blank, 3 was 1.
    other = case_of("ctc-last").spec.run(case_of("ctc-last").tensors, None).text
    assert other is not None
    assert other.text == "xx éß"
    assert 0.9 < other.score < 1


def test_a_charset_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text("a\r\nß\n é\n", encoding="utf-8", newline="")
    table = {"kind": "ctc", "charset": "keys.txt", "space": True}
    spec = read_postprocess(table, file=tmp_path / "edgepack.toml")
    assert spec == Ctc(characters=("a", "ß", " é", " "))
    with pytest.raises(ConfigError, match=r"none.txt"):
        read_postprocess({**table, "charset": "none.txt"}, file=tmp_path / "edgepack.toml")
    info = TensorInfo(name="y", dtype="float32", shape=(1, 9, 6))
    with pytest.raises(PostprocessMismatchError, match="6 classes, but 4 characters"):
        spec.for_model([IMAGE], [info])


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

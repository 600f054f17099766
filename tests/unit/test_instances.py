"""Masks of boxes: COCO's run lengths, and which pixels are inside."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from edgepack.cli.pages.photos import _with_masks, area_color
from edgepack.deploy.answers import Answer, SenselessError
from edgepack.deploy.app_answers import AppAnswer
from edgepack.flow.results import ResultsSizeError, check_size
from edgepack.postprocess.box_mask import BoxMask, read_counts, runs_of, write_counts
from edgepack.postprocess.instances import Prototypes, encode_mask
from edgepack.postprocess.results import Box, Results, ResultsMismatchError, check_equal
from edgepack.postprocess.spec import read_postprocess
from edgepack.postprocess.yolo import Yolo
from edgepack.preprocess.geometry import Geometry

ROOT = Path(__file__).resolve().parents[2]


def decoded(mask: BoxMask) -> np.ndarray:
    height, width = mask.size
    flat = np.zeros(height * width, np.bool_)
    for begin, end in mask.runs():
        flat[begin:end] = True
    return flat.reshape(width, height).T


def masks() -> list[np.ndarray]:
    random = np.random.default_rng(3)
    found = [
        random.random((high, wide)) < share
        for high, wide in ((1, 1), (5, 3), (40, 70))
        for share in (0, 0.02, 0.5, 1)
    ]
    blob = np.zeros((300, 400), np.bool_)
    blob[100:200, 50:300] = True
    return [*found, blob]


def test_the_form_by_hand() -> None:
    # 2 columns of 3 pixels, the middle of each: 1 outside, 1 inside, 2, 1, 1; the fourth and fifth
    # are written as their difference to the one two before.
    mask = encode_mask(np.array([[0, 0], [1, 1], [0, 0]], np.bool_))
    assert read_counts(mask.counts) == [1, 1, 2, 1, 1]
    assert mask.counts == "".join(chr(48 + group) for group in (1, 1, 2, 0, 31))
    assert write_counts([40]) == chr(48 + 8 + 32) + chr(48 + 1)
    assert encode_mask(np.ones((2, 2), np.bool_)).counts == "04"


@pytest.mark.parametrize("inside", masks(), ids=lambda one: f"{one.shape}-{one.sum()}")
def test_there_and_back(inside: np.ndarray) -> None:
    mask = encode_mask(inside)
    np.testing.assert_array_equal(decoded(mask), inside)
    assert write_counts(read_counts(mask.counts)) == mask.counts


@pytest.mark.parametrize("inside", masks(), ids=lambda one: f"{one.shape}-{one.sum()}")
def test_it_is_pycocotools(inside: np.ndarray) -> None:
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    coco = importlib.import_module("pycocotools.mask")
    mask = encode_mask(inside)
    assert coco.encode(np.asfortranarray(inside, np.uint8))["counts"].decode() == mask.counts
    np.testing.assert_array_equal(coco.decode(mask.to_dict()), inside)


@pytest.mark.parametrize("counts", ["", "P", "é", "~", "1 1", "oooooooooooo0", "110O0", "5"])
def test_counts_that_are_none(counts: str) -> None:
    with pytest.raises(ValueError, match="counts"):
        BoxMask(size=(2, 2), counts=counts).runs()


def test_lengths_of_another_photo() -> None:
    with pytest.raises(ValueError, match="counts of 5 pixels, not of 2 x 2"):
        runs_of([1, 4], (2, 2))


# ------------------------------------------------ which pixels are inside

SAME = Geometry.same(8, 8)


def test_a_pixel_is_inside_where_the_sum_is_above_zero_and_its_centre_in_the_box() -> None:
    maps = np.ones((2, 4, 4))
    maps[1, :, :2] = -3  # the left half
    of = Prototypes(maps=maps, size=(8, 8), geometry=SAME)
    got = decoded(of.mask(np.array([1.0, 1.0]), (0.4, 1.6, 7.5, 8.0)))
    want = np.zeros((8, 8), np.bool_)
    # Cells 1 and 2 have centres at x = 3 and 5, and -2 and 2 there: 0 is at 4, between two pixels.
    want[2:, 4:7] = True
    np.testing.assert_array_equal(got, want)
    # A sum of 0 is not above it.
    assert not decoded(of.mask(np.zeros(2), (0, 0, 8, 8))).any()


def test_a_letterbox_and_a_crop() -> None:
    maps = np.ones((1, 4, 4))
    maps[0, :, :2] = -1
    # 20 x 40, half as large, with 15 rows of border above and below: 20 x 20 of the input are 40.
    wide = Geometry(height=20, width=40, scaled_height=10, scaled_width=20, top=-5, left=0)
    of = Prototypes(maps=maps, size=(20, 20), geometry=wide)
    got = decoded(of.mask(np.ones(1), (0, 0, 40, 20)))
    assert got[:, 20:].all()
    assert not got[:, :20].any()
    # The middle 8 of 16 columns: what the crop took is not inside, whatever the border says.
    cut = Geometry(height=8, width=16, scaled_height=8, scaled_width=16, top=0, left=4)
    of = Prototypes(maps=np.ones((1, 4, 4)), size=(8, 8), geometry=cut)
    got = decoded(of.mask(np.ones(1), (0, 0, 16, 8)))
    assert got[:, 4:12].all()
    assert got.sum() == 64


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_what_is_no_number_is_outside(bad: float) -> None:
    maps = np.ones((2, 4, 4))
    maps[1] = 0
    of = Prototypes(maps=maps, size=(8, 8), geometry=SAME)
    got = decoded(of.mask(np.array([1.0, bad]), (0, 0, 8, 8)))
    assert got.all() if bad == 3e38 else not got.any()  # infinity times 0 is no number
    maps[1, 0, 0] = bad
    maps[1, 3, 3] = -bad
    got = decoded(of.mask(np.array([1.0, 1.0]), (0, 0, 8, 8)))
    assert got[0, 7]
    assert not np.isnan(bad) or not got[0, 0]


@pytest.mark.parametrize("box", [(-5, -5, 0, 0), (8, 8, 9, 9), (3.6, 3.6, 4.4, 4.4), (5, 5, 2, 2)])
def test_a_box_without_a_pixel_has_an_empty_mask(box: tuple[float, float, float, float]) -> None:
    of = Prototypes(maps=np.ones((1, 4, 4)), size=(8, 8), geometry=SAME)
    mask = of.mask(np.ones(1), box)
    assert read_counts(mask.counts) == [64]


# ------------------------------------------------ boxes with masks


def tensors(head: str) -> list[np.ndarray]:
    """A box of 40 x 20 around (40, 30), of class 1, the mask of which is its left half."""
    prototypes = np.full((1, 2, 16, 16), -1, np.float32)
    prototypes[:, :, :, :10] = 1
    if head == "end2end":
        rows = np.zeros((1, 3, 8), np.float32)
        rows[0, 1] = (20, 20, 60, 40, 0.75, 1, 2, -1)
        return [rows, prototypes]
    found = np.zeros((1, 8, 5), np.float32)
    found[0, :, 3] = (40, 30, 40, 20, 0, 0.75, 2, -1)
    return [found, prototypes]


@pytest.mark.parametrize("head", ["v8", "end2end"])
def test_boxes_have_masks(head: str) -> None:
    spec = Yolo(outputs=("a", "b"), size=(64, 64), head=head, masks=2)
    (box,) = spec.run(tensors(head), None).boxes or ()
    assert box.mask is not None
    want = np.zeros((64, 64), np.bool_)
    want[20:40, 20:40] = True
    np.testing.assert_array_equal(decoded(box.mask), want)
    assert box.to_dict()["mask"] == {"size": [64, 64], "counts": box.mask.counts}
    # One output: boxes only, as before.
    alone = Yolo(outputs=("a",), size=(64, 64), head=head, masks=2)
    (box,) = alone.run(tensors(head)[:1], None).boxes or ()
    assert box.mask is None


def test_masks_have_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Yolo(outputs=("a", "b"), size=(64, 64), masks=2, iou=1.0)
    given = tensors("v8")
    given[0][0, :, 1] = given[0][0, :, 3]
    first, second = spec.run(given, None).boxes or ()
    assert first.mask == second.mask
    assert first.mask is not None
    monkeypatch.setattr("edgepack.postprocess.boxes.MOST_BYTES", len(first.mask.counts) + 1)
    assert [bool(box.mask) for box in spec.run(given, None).boxes or ()] == [True, False]


def test_prototypes_of_another_shape() -> None:
    spec = read_postprocess({"kind": "yolo", "masks": 32}, file="x")
    assert spec.classes([[1, 116, 525], [1, 32, 40, 40]]) == 80
    for shape in ([1, 31, 40, 40], [1, 32, 40], [1, 32, 0, 40]):
        with pytest.raises(ValueError, match=r"prototypes \(1, 32, H, W\)"):
            spec.classes([[1, 116, 525], shape])


def test_another_mask_is_another_result() -> None:
    spec = Yolo(outputs=("a", "b"), size=(64, 64), masks=2)
    want = spec.run(tensors("v8"), None)
    got = want.to_dict()
    check_equal(got, want, (64, 64), what="app")
    got["boxes"][0]["mask"]["counts"] += "0"
    with pytest.raises(ResultsMismatchError, match=r"boxes\[0\]\.mask is "):
        check_equal(got, want, (64, 64), what="app")


@pytest.mark.parametrize(
    ("mask", "problem"),
    [
        ({"size": [2], "counts": "4"}, r"mask\.size: \[2\] is not a height and a width"),
        ({"size": [0, 4], "counts": "0"}, r"mask\.size: \[0, 4\] is not"),
        ({"size": [2, 2], "counts": "5"}, r"mask\.counts: counts of 5 pixels, not of 2 x 2"),
        ({"size": [2, 2], "counts": "~"}, r"mask\.counts: '~' is no part"),
        ({"size": [2, 2]}, r"mask\.counts"),
    ],
)
def test_a_device_with_a_senseless_mask(mask: dict[str, object], problem: str) -> None:
    box = {"index": 0, "score": 0.5, "box": [0.0, 0.0, 1.0, 1.0], "mask": mask}
    with pytest.raises(SenselessError, match=problem):
        AppAnswer.read(Answer({"edgepack": "1", "boxes": [box]}, "app"))
    good = {**box, "mask": {"size": [2, 2], "counts": "04"}}
    answer = AppAnswer.read(Answer({"edgepack": "1", "boxes": [good]}, "app"))
    assert answer.boxes is not None
    assert answer.boxes[0].mask == encode_mask(np.ones((2, 2), np.bool_))
    painted = _with_masks(np.zeros((2, 2, 3), np.uint8), answer.boxes)
    red, green, blue = area_color(0)
    assert (painted == [blue // 2, green // 2, red // 2]).all()


# ------------------------------------------------ how much a device reads


def test_more_masks_than_a_device_reads_are_refused_before_it_is_asked() -> None:
    def seen(letters: int) -> Results:
        mask = BoxMask(size=(600, 800), counts="0" * letters)
        return Results(boxes=(Box(index=0, label="", score=0.5, box=(0, 0, 8, 6), mask=mask),))

    check_size(seen(6_000_000))
    with pytest.raises(ResultsSizeError, match=r"gives 7\.0 MB of results, of which a") as caught:
        check_size(seen(7_000_000))
    assert 'outputs = ["output0"]' in (caught.value.hint or "")
    # As the device tool has it.
    source = (ROOT / "cpp_runtime/device/src/process.cc").read_text()
    assert "kMaxOut = std::size_t{6} << 20U;" in source

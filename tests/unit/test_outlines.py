"""Which pixels outlines cover, by hand and as pycocotools has it, and how much masks overlap."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from edgepack.flow.outlines import Outline, count_of, mask_overlap
from edgepack.postprocess.box_mask import BoxMask, read_counts, runs_of
from edgepack.postprocess.instances import encode_mask


def pixels(runs: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    inside = np.zeros(size[0] * size[1], np.bool_)
    for begin, end in runs:
        inside[begin:end] = True
    return inside.reshape(size, order="F")


def test_a_rectangle_and_two_that_overlap() -> None:
    size = (6, 8)
    square = (1.0, 2.0, 4.0, 2.0, 4.0, 5.0, 1.0, 5.0)
    want = np.zeros(size, np.bool_)
    want[2:5, 1:4] = True
    np.testing.assert_array_equal(pixels(Outline(polygons=(square,)).runs(size), size), want)
    beside = tuple(value + 2 if at % 2 == 0 else value for at, value in enumerate(square))
    runs = Outline(polygons=(square, beside)).runs(size)
    want[2:5, 3:6] = True
    np.testing.assert_array_equal(pixels(runs, size), want)
    assert count_of(runs) == want.sum() == 15
    # What lies beyond the photo is no part of it.
    far = tuple(value + 6 if at % 2 == 0 else value for at, value in enumerate(square))
    assert pixels(Outline(polygons=(far,)).runs(size), size).sum() == 3


def test_overlaps() -> None:
    left, right = np.zeros((2, 4, 4), np.bool_)
    left[:, :3], right[:, 2:] = True, True
    one, other = (encode_mask(inside).runs() for inside in (left, right))
    assert mask_overlap(one, other, crowd=False) == pytest.approx(4 / 16)
    assert mask_overlap(one, other, crowd=True) == pytest.approx(4 / 12)
    nothing = encode_mask(np.zeros((4, 4), np.bool_)).runs()
    for crowd in (False, True):
        assert mask_overlap(one, nothing, crowd=crowd) == 0
        assert mask_overlap(nothing, one, crowd=crowd) == 0


def test_what_does_not_fit_the_photo() -> None:
    mask = BoxMask(size=(2, 2), counts="04")
    with pytest.raises(ValueError, match="its mask is of 2 x 2 pixels, the photo is 2 x 3"):
        Outline(mask=mask).runs((2, 3))
    with pytest.raises(ValueError, match="its outline is longer than"):
        Outline(polygons=((0.0, 0.0, 1e9, 0.0, 0.0, 1e9),)).runs((2, 3))


def test_random_polygons_are_pycocotools() -> None:
    """Corners on pixels, between them, twice, beyond the photo's edge; edges that cross."""
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    coco = importlib.import_module("pycocotools.mask")
    random = np.random.default_rng(2)
    for number in range(300):
        height, width = (int(side) for side in random.integers(1, 90, 2))
        polygons = []
        for _ in range(int(random.integers(1, 4))):
            corners = random.uniform(-0.3, 1.3, (int(random.integers(3, 12)), 2)) * (width, height)
            corners = (corners, np.round(corners), np.round(corners * 2) / 2)[number % 3]
            if random.random() < 0.2:
                corners = np.repeat(corners, 2, 0)
            polygons.append(tuple(corners.ravel().tolist()))
        runs = Outline(polygons=tuple(polygons)).runs((height, width))
        theirs = coco.merge(coco.frPyObjects([list(one) for one in polygons], height, width))
        due = runs_of(read_counts(theirs["counts"].decode()), (height, width))
        np.testing.assert_array_equal(
            pixels(runs, (height, width)), pixels(due, (height, width)), err_msg=str(polygons)
        )
        noise = random.random((height, width)) < random.random()
        other = coco.encode(np.asfortranarray(noise, np.uint8))
        for crowd in (False, True):
            overlap = mask_overlap(runs, encode_mask(noise).runs(), crowd=crowd)
            assert overlap == pytest.approx(coco.iou([theirs], [other], [crowd])[0, 0])

"""Crops that are straightened, against OpenCV's and numpy's."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from edgepack.preprocess.warp import FACE_POINTS, WarpError, warp_by_corners, warp_by_face

CORNERS = ((14.0, 8.5), (88.0, 20.0), (80.0, 52.0), (6.0, 44.0))


def _smooth() -> np.ndarray:
    """A photo in which neighbours are alike: another way to mix them makes little difference."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8)
    return np.asarray(cv2.GaussianBlur(noise, (0, 0), 4))


def _by_opencv(corners: np.ndarray, height: int, width: int) -> np.ndarray:
    """Its coordinates are those of pixels' centres."""
    ends = np.array([(0, 0), (width, 0), (width, height), (0, height)], np.float32)
    matrix = cv2.getPerspectiveTransform(ends - 0.5, corners.astype(np.float32) - 0.5)
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return np.asarray(
        cv2.warpPerspective(
            _smooth(), matrix, (width, height), flags=flags, borderMode=cv2.BORDER_REPLICATE
        )
    )


def test_a_crop_by_corners_is_opencvs() -> None:
    crop = warp_by_corners(CORNERS)
    assert (crop.width, crop.height) == (75, 36)  # the longer sides: 74.9 and 36.4
    wanted = _by_opencv(np.array(CORNERS), crop.height, crop.width)
    assert np.abs(crop.pixels(_smooth()).astype(int) - wanted).max() <= 1
    for (x, y), corner in zip(((0, 0), (75, 0), (75, 36), (0, 36)), CORNERS, strict=True):
        assert crop.source(x, y) == pytest.approx(corner)


def test_an_upright_crop_is_the_pixels_themselves() -> None:
    photo = _smooth()
    crop = warp_by_corners([(10, 5), (40, 5), (40, 25), (10, 25)])
    np.testing.assert_array_equal(crop.pixels(photo), photo[5:25, 10:40])
    wider = warp_by_corners([(10, 5), (40, 5), (40, 25), (10, 25)], padding=0.1)
    np.testing.assert_array_equal(wider.pixels(photo), photo[3:27, 7:43])
    # Beside the photo its edge is repeated.
    beyond = warp_by_corners([(90, 5), (100, 5), (100, 9), (90, 9)]).pixels(photo)
    np.testing.assert_array_equal(beyond, photo[5:9, [*range(90, 96), *[95] * 4]])


def test_a_tall_line_is_turned_to_the_left_and_one_upside_down_again() -> None:
    photo = _smooth()
    corners = [(10, 5), (30, 5), (30, 35), (10, 35)]
    upright = photo[5:35, 10:30]
    as_it_is = warp_by_corners(corners, tall=1.6)
    np.testing.assert_array_equal(as_it_is.pixels(photo), upright)
    left = warp_by_corners(corners, tall=1.5)
    np.testing.assert_array_equal(left.pixels(photo), np.rot90(upright))
    both = warp_by_corners(corners, tall=1.5, turned=True)
    np.testing.assert_array_equal(both.pixels(photo), np.rot90(upright, 3))
    assert both.source(0, 0) == pytest.approx((10, 35))
    turned = warp_by_corners(corners, turned=True)
    np.testing.assert_array_equal(turned.pixels(photo), upright[::-1, ::-1])


def test_a_face_is_brought_to_its_place_by_least_squares() -> None:
    """Solved by numpy, for points that are no exact copy of the template."""
    random = np.random.default_rng(1)
    points = np.array(FACE_POINTS) * 0.4 + 12 + random.normal(size=(5, 2))
    crop = warp_by_face([(float(x), float(y)) for x, y in points], 56)
    places = (np.array(FACE_POINTS) + 0.5) / 2
    # place = [[p, -q], [q, p]] point + [r, s]
    rows = [row for x, y in points for row in ((x, -y, 1, 0), (y, x, 0, 1))]
    p, q, r, s = np.linalg.lstsq(np.array(rows), places.ravel(), rcond=None)[0]
    for x, y in ((0.0, 0.0), (56.0, 0.0), (20.0, 56.0)):
        at_x, at_y = crop.source(x, y)
        assert (p * at_x - q * at_y + r, q * at_x + p * at_y + s) == pytest.approx((x, y))
    # With half a face more on each side, what was the edge is a quarter of the side inside.
    wider = warp_by_face([(float(x), float(y)) for x, y in points], 56, padding=0.5)
    assert wider.source(14, 14) == pytest.approx(crop.source(0, 0))
    assert wider.source(42, 42) == pytest.approx(crop.source(56, 56))


def test_points_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(WarpError, match="beside all photos"):
        warp_by_face([(float("nan"), 1.0)] * 5, 8)

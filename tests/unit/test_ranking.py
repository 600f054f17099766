"""Rows that are sorted by a score are compared whatever the order of nearly equal ones."""

from __future__ import annotations

import numpy as np
import pytest

from edgepack.flow.ranking import Array, in_order_of, is_drawn

# Places 2 to 4 are as good as equal; then there is one that a list of six has no room for.
SCORES = np.array([0.9, 0.8, 0.5, 0.5 - 1e-7, 0.5 - 2e-7, 0.2, 0.2 - 1e-7], "float32")
LIMITS = (1e-4, 1e-2, 1e-4)


def detections(order: list[int]) -> list[Array]:
    """Scores, best first, boxes and classes."""
    boxes = np.random.RandomState(0).uniform(0, 100, (7, 4)).astype("float32")
    classes = np.array([3, 1, 4, 1, 5, 9, 2], "int64")
    scores = np.sort(SCORES[order])[::-1]
    return [scores, boxes[order][None], classes[order]]


FIRST = list(range(6))


@pytest.mark.parametrize(
    "order",
    [FIRST, [0, 1, 3, 2, 4, 5], [0, 1, 4, 2, 3, 5]],
    ids=["as it is", "two", "all three"],
)
def test_nearly_equal_scores_may_change_places(order: list[int]) -> None:
    reference, got = detections(FIRST), detections(order)
    made = in_order_of(got, reference, LIMITS)
    assert made is not None
    for one, other in zip(made, got, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_another_one_may_be_the_last() -> None:
    made = in_order_of(detections([0, 1, 2, 3, 4, 6]), detections(FIRST), LIMITS)
    assert made is not None
    assert made[2].tolist() == [3, 1, 4, 1, 5, 2]


def test_of_equal_ones_another_may_be_kept() -> None:
    got = detections(FIRST)
    got[1][0, 3] += 50
    made = in_order_of(got, detections(FIRST), LIMITS)
    assert made is not None
    np.testing.assert_array_equal(made[1], got[1])
    got[1][0, 4] += 50
    assert in_order_of(got, detections(FIRST), LIMITS) is None


@pytest.mark.parametrize("order", [[1, 0, 2, 3, 4, 5], [0, 2, 1, 3, 4, 5], [0, 1, 2, 3, 6, 5]])
def test_others_may_not(order: list[int]) -> None:
    assert in_order_of(detections(order), detections(FIRST), LIMITS) is None


@pytest.mark.parametrize("output", range(3))
def test_every_row_has_to_be_one_of_the_reference(output: int) -> None:
    reference, got = detections(FIRST), detections([0, 1, 3, 2, 4, 5])
    got[output] = got[output].copy()
    got[output].reshape(6 if output != 1 else (6, 4))[0] += 1
    assert in_order_of(got, reference, LIMITS) is None


def test_what_is_not_sorted_has_one_order() -> None:
    values = np.array([[3.0, 1, 2], [5, 8, 6]], "float32").T[None]
    assert in_order_of([values[:, [1, 0, 2]]], [values], [1e-4]) is None
    assert in_order_of([values], [values], [1e-4]) is not None
    assert in_order_of([values[:, :2]], [values], [1e-4]) is None
    assert in_order_of([values * np.nan], [values], [1e-4]) is None


def test_a_result_without_rows_is_one_value() -> None:
    one, other = np.array(2.0, "float32"), np.full((1, 1), 3, "int64")
    made = in_order_of([one, other], [one, other], [1e-4, 1e-4])
    assert made is not None
    assert [array.item() for array in made] == [2.0, 3]


def test_rows_of_one_score_are_a_draw() -> None:
    boxes = np.random.RandomState(0).uniform(1, 100, (6, 4)).astype("float32")
    ones = np.ones(6, "float32")
    reference: list[Array] = [boxes, ones]
    others: list[Array] = [boxes[::-1], ones - np.float32(6e-8)]
    assert is_drawn(others, reference, LIMITS[1:])
    assert not is_drawn([boxes, ones - 1], reference, LIMITS[1:])
    assert not is_drawn([boxes[::-1], ones * 0], [boxes, ones * 0], LIMITS[1:])
    assert not is_drawn([boxes[::-1], SCORES[:6]], [boxes, SCORES[:6]], LIMITS[1:])

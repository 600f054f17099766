"""Average precision: by hand, and equal to pycocotools, which `./dev` installs."""

from __future__ import annotations

import contextlib
import importlib
import io
from pathlib import Path
from typing import Any

import pytest

from edgepack.flow.average_precision import AveragePrecision, Guess, Thing, average_precision
from tests.boxed_cases import as_coco, boxed_case, masked_case

BOX = (10.0, 10.0, 40.0, 40.0)
FAR = (200.0, 200.0, 40.0, 40.0)


def thing(box: tuple[float, float, float, float] = BOX, index: int = 0, **more: object) -> Thing:
    return Thing(**{"index": index, "box": box, "area": box[2] * box[3], **more})  # type: ignore[arg-type]


def guess(score: float, box: tuple[float, float, float, float] = BOX, index: int = 0) -> Guess:
    return Guess(index=index, score=score, box=box)


def precision(*photos: tuple[list[Thing], list[Guess]], classes: int = 1) -> AveragePrecision:
    things, guesses = zip(*photos, strict=True)
    return average_precision(things, guesses, range(classes))


def test_all_right_and_all_wrong() -> None:
    assert precision(([thing()], [guess(0.9)])).map == pytest.approx(1)
    wrong = precision(([thing()], [guess(0.9, FAR)]))
    assert (wrong.map, wrong.map50) == (0, 0)
    nothing = precision(([], [guess(0.9)]))
    assert (nothing.map, nothing.classes[0].ap, nothing.classes[0].objects) == (None, None, 0)
    assert precision(([thing()], [])).map == 0


def test_overlap_decides_at_each_threshold() -> None:
    # 40 x 40 within 40 x 50: an overlap of 0.8, which six thresholds of 0.5 to 0.75 are below,
    # and 0.8 is itself.
    found = precision(([thing()], [guess(0.9, (10, 10, 40, 50))]))
    assert found.map50 == pytest.approx(1)
    assert found.map == pytest.approx(0.7)
    # A box in half of the object is at the first threshold only.
    assert precision(([thing()], [guess(0.9, (10, 10, 40, 20))])).map == pytest.approx(0.1)


def test_order_recall_and_doubles() -> None:
    # Best first: right, wrong, right. Precision 1 to a recall of 1/2, which 51 of 101 recalls are
    # not above, then 2/3.
    found = precision(([thing(), thing(FAR)], [guess(0.7, FAR), guess(0.9), guess(0.8)]))
    assert found.map50 == pytest.approx((51 + 50 * 2 / 3) / 101)
    # With equal scores the first photo's box comes first, then the one given first.
    photos = ([thing()], [guess(0.5, FAR)]), ([thing()], [guess(0.5)])
    assert precision(*photos).map50 == pytest.approx(51 * 0.5 / 101)
    assert precision(*photos[::-1]).map50 == pytest.approx(51 / 101)


def test_crowds_and_classes_without_objects_do_not_count() -> None:
    crowd = thing((0.0, 0.0, 100.0, 100.0), crowd=True)
    # Within the crowd are two boxes, which are neither right nor wrong.
    found = precision(([crowd, thing(FAR)], [guess(0.9), guess(0.8), guess(0.7, FAR)]))
    assert found.map == pytest.approx(1)
    assert found.classes[0].objects == 1
    two = precision(([thing()], [guess(0.9), guess(0.99, BOX, 1)]), classes=2)
    assert two.map == pytest.approx(1)
    assert two.classes[1].ap is None
    # An object goes before a crowd that the box overlaps more.
    near = (12.0, 10.0, 40.0, 40.0)
    assert precision(([crowd, thing(near)], [guess(0.9)])).map50 == pytest.approx(1)


def test_a_hundred_boxes_of_a_class_count_in_a_photo() -> None:
    wrong = [guess(0.9, FAR)] * 100
    assert precision(([thing()], [*wrong[1:], guess(0.5)])).map50 == pytest.approx(0.01)
    assert precision(([thing()], [*wrong, guess(0.5)])).map50 == 0


def test_sizes() -> None:
    small, large = thing((0.0, 0.0, 30.0, 30.0)), thing((100.0, 100.0, 100.0, 100.0))
    found = precision(([small, large], [guess(0.9, small.box)]))
    assert found.by_size == {"small": pytest.approx(1), "medium": None, "large": 0}
    # By the outline's area, not the box's.
    thin = thing((100.0, 100.0, 100.0, 100.0), area=2000.0)
    assert precision(([thin], [guess(0.9, thin.box)])).by_size["medium"] == pytest.approx(1)


def numbers(found: AveragePrecision) -> list[float | None]:
    own = [value for one in found.classes for value in (one.ap50, one.ap)]
    return [found.map, found.map50, *found.by_size.values(), *own]


def by_pycocotools(
    top: dict[str, Any], results: list[dict[str, Any]], kind: str, classes: int
) -> list[float | None]:
    coco = importlib.import_module("pycocotools.coco")
    judging = importlib.import_module("pycocotools.cocoeval")
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO()
        truth.dataset = top
        truth.createIndex()
        judge = judging.COCOeval(truth, truth.loadRes(results), kind)
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    table = judge.eval["precision"]  # thresholds, recalls, classes, areas, most boxes
    found = [judge.stats[0], judge.stats[1], *judge.stats[3:6]]
    for index in range(classes):
        for own in (table[0, :, index, 0, 2], table[:, :, index, 0, 2]):
            found.append(own[own > -1].mean() if (own > -1).any() else -1.0)
    return [None if value == -1 else float(value) for value in found]


@pytest.mark.slow  # 500 cases
def test_500_random_cases_are_pycocotools() -> None:
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    compared = 0
    for seed in range(520):
        case = boxed_case(seed)
        if not any(case.guesses):
            continue  # which pycocotools does not take
        found = average_precision(case.things, case.guesses, range(case.classes))
        wanted = by_pycocotools(*as_coco(case), "bbox", case.classes)
        assert numbers(found) == pytest.approx(wanted, abs=1e-6), seed
        compared += 1
    assert compared >= 500


@pytest.mark.slow  # 500 cases
def test_500_random_cases_of_masks_are_pycocotools(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    compared = right = 0
    for seed in range(560):
        one = masked_case(seed, tmp_path)
        case = one.case
        if not one.results:
            continue  # which pycocotools does not take
        found = average_precision(case.things, case.guesses, range(case.classes), of_masks=True)
        wanted = by_pycocotools(one.top, one.results, "segm", case.classes)
        assert numbers(found) == pytest.approx(wanted, abs=1e-6), seed
        compared += 1
        right += (found.map or 0) > 0
    assert compared >= 500
    assert right >= 200  # of which some are more than 0

"""The pages of `evaluate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgepack.base import page
from edgepack.base.page import Html
from edgepack.base.text import counted
from edgepack.cli.pages.photos import thumbnail

if TYPE_CHECKING:
    from edgepack.flow.evaluate import Evaluation, Judged
    from edgepack.flow.evaluate_boxes import BoxEvaluation

_SHOWN_PHOTOS = 200


def evaluate_page(found: Evaluation) -> Html:
    """How often each side is right, the photos on which they differ, and what is confused."""
    where = f" and on {found.device}" if found.device else ""
    shares = found.to_dict()
    sides = [("reference", shares["reference"]), (found.device, shares["device"])]
    right = page.facts(
        {"photos": len(found.judged)}
        | {
            str(name): f"top-1 {side['top1']:.1%}, top-5 {side['top5']:.1%}"
            for name, side in sides
            if side
        }
    )
    wrong = [
        (found.label(expected), found.label(seen), count)
        for expected, seen, count in found.confusion()
        if expected != seen
    ]
    differing = found.differing
    missed = [one for one in found.judged if one.reference[:1] != (one.photo.expected,)]
    header = ("photo", "name", "expected", "reference", "device")
    parts = [
        page.section(title, page.table((_photo_row(found, one) for one in rows), header), more)
        for title, rows, more in (
            ("Seen differently: " + counted(len(differing), 'photo'), differing[:_SHOWN_PHOTOS],
             _left_out(len(differing))),
            ("Wrong by the reference: " + counted(len(missed), 'photo'), missed[:_SHOWN_PHOTOS],
             _left_out(len(missed))),
        )
        if rows
    ]  # fmt: skip
    return page.page(
        f"{counted(len(found.judged), 'photo')}, here{where}",
        right,
        *parts,
        page.section("Confusion", page.table(wrong, ("expected", "seen as", "photos")))
        if wrong
        else Html(),
    )


def boxes_page(found: BoxEvaluation) -> Html:
    """Average precision, over all and of each class."""
    sides = [("reference", found.reference), (str(found.device), found.on_device)]
    said = {"photos": f"{found.photos}, with {counted(found.objects, 'object')}"}
    said |= {
        name: f"mAP 50-95 {_share(side.map)}, mAP 50 {_share(side.map50)}"
        for name, side in sides
        if side is not None
    }
    rows = [
        (
            found.label(one.index),
            one.objects,
            *(_share(value) for side in (one, other) if side for value in (side.ap, side.ap50)),
        )
        for one, other in found.pairs()
        if one.objects
    ]
    header: tuple[str, ...] = ("class", "objects", "AP 50-95", "AP 50")
    if found.on_device is not None:
        header = (*header, "on device 50-95", "50")
    where = f" and on {found.device}" if found.device else ""
    return page.page(
        f"{counted(found.photos, 'photo')}, here{where}",
        page.facts(said),
        page.section("Classes", page.table(rows, header)),
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _photo_row(found: Evaluation, one: Judged) -> tuple[object, ...]:
    return (
        thumbnail(one.photo.path),
        one.photo.name,
        found.label(one.photo.expected),
        found.label(one.reference[0]),
        found.label(one.device[0]) if one.device else None,
    )


def _left_out(count: int) -> str:
    return f"and {count - _SHOWN_PHOTOS} more: --json has all" if count > _SHOWN_PHOTOS else ""

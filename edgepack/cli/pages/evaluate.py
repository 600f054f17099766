"""The pages of `evaluate`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from edgepack.base import charts, page
from edgepack.base.intervals import share_interval
from edgepack.base.page import Html
from edgepack.base.text import counted
from edgepack.cli.pages.photos import thumbnail

if TYPE_CHECKING:
    from edgepack.flow.average_precision import AveragePrecision, ClassPrecision
    from edgepack.flow.evaluate import Evaluation, Judged
    from edgepack.flow.evaluate_boxes import BoxEvaluation

_SHOWN_PHOTOS = 200
# Of more classes those that are confused most.
_SHOWN_CLASSES = 40
_SHOWN_CURVES = 60


def evaluate_page(found: Evaluation) -> Html:
    """How often each side is right, what is taken for what, and the photos that show it."""
    where = f" and on {found.device}" if found.device else ""
    shares = found.to_dict()
    differing = found.differing
    missed = [one for one in found.judged if one.reference[:1] != (one.photo.expected,)]
    header = ("photo", "name", "expected", "reference", "device")
    photos = [
        page.section(title, page.table((_photo_row(found, one) for one in rows), header), more)
        for title, rows, more in (
            ("Seen differently: " + counted(len(differing), 'photo'), differing[:_SHOWN_PHOTOS],
             _left_out(len(differing))),
            ("Wrong by the reference: " + counted(len(missed), 'photo'), missed[:_SHOWN_PHOTOS],
             _left_out(len(missed))),
        )
        if rows
    ]  # fmt: skip
    sides = [("reference", shares["reference"], [one.reference for one in found.judged])]
    if found.device is not None:
        there = [one.device or () for one in found.judged]
        sides.append((found.device, shares["device"], there))
    expected = [one.photo.expected for one in found.judged]
    said = {
        name: f"top-1 {_with_interval(_hits(expected, seen), len(expected))}; "
        f"top-5 {side['top5']:.1%}"
        for name, side, seen in sides
    }
    return page.page(
        f"{counted(len(found.judged), 'photo')}, here{where}",
        page.verdict("; ".join(f"{name}: {side['top1']:.1%} right" for name, side, _ in sides)),
        page.facts({"photos": len(found.judged), **said}),
        page.section("Accuracy of each class", _classes(found, sides)),
        page.section("Confusion", *_confusion(found)),
        *photos,
        kind="evaluate",
    )


def _hits(expected: Sequence[int], seen: Sequence[Sequence[int]]) -> int:
    return sum(one in own[:1] for one, own in zip(expected, seen, strict=True))


def _with_interval(hits: int, count: int) -> str:
    low, high = share_interval(hits, count)
    return f"{hits / count:.1%} ({low:.1%} to {high:.1%} with 95 % confidence)"


def _classes(
    found: Evaluation, sides: Sequence[tuple[str, object, Sequence[Sequence[int]]]]
) -> Html:
    """Of each class that photos have: how many are right on each side, the worst first."""
    photos = Counter(one.photo.expected for one in found.judged)
    right = [
        Counter(
            one.photo.expected
            for one, own in zip(found.judged, seen, strict=True)
            if one.photo.expected in own[:1]
        )
        for _, _, seen in sides
    ]
    rows = []
    for index in sorted(photos, key=lambda index: (right[-1][index] / photos[index], index)):
        row: list[object] = [found.label(index), photos[index]]
        for own in right:
            hits, count = own[index], photos[index]
            low, high = share_interval(hits, count)
            bar = charts.share_bar(hits / count, low, high)
            row += [f"{hits / count:.1%}", bar, f"{low:.1%} to {high:.1%}"]
        rows.append(row)
    names = [heading for name, _, _ in sides for heading in (name, "", "95 % confidence")]
    numbers = (False, True, *(True, False, True) * len(sides))
    return page.table(rows, ("class", "photos", *names), numbers)


def _confusion(found: Evaluation) -> Iterator[Html]:
    """What is taken for what: as a matrix, and the most frequent mistakes as a list."""
    counts = {(expected, seen): count for expected, seen, count in found.confusion()}
    involved: Counter[int] = Counter()
    for (expected, seen), count in counts.items():
        mistakes = count if expected != seen else 0
        involved.update({expected: mistakes, seen: mistakes})
    # All that are confused go before all that are not.
    kept = sorted(involved, key=lambda index: (-involved[index], index))[:_SHOWN_CLASSES]
    kept.sort()
    side = f"on {found.device}" if found.device else "by the reference"
    left = len(involved) - len(kept)
    yield page.paragraph(
        f"Rows are what photos show, columns what is seen {side}: a column has its row's number."
        + (f" {counted(left, 'class')}, the least confused, are left out." if left else "")
    )
    cells = [[counts.get((row, column), 0) for column in kept] for row in kept]
    yield charts.matrix(cells, [found.label(index) for index in kept], corner="expected")
    wrong = [
        (found.label(expected), found.label(seen), count)
        for expected, seen, count in found.confusion()
        if expected != seen
    ]
    if wrong:
        table = page.table(wrong[:_SHOWN_PHOTOS], ("expected", "seen as", "photos"))
        yield page.folded(f"{counted(len(wrong), 'pair')} of classes that are confused", table)


def boxes_page(found: BoxEvaluation) -> Html:
    """Average precision, over all and of each class, and precision over recall."""
    sides = [("reference", found.reference)]
    if found.on_device is not None:
        sides.append((str(found.device), found.on_device))
    said = {"photos": f"{found.photos}, with {counted(found.objects, 'object')}"}
    said |= {
        name: f"mAP 50-95 {_share(side.map)}, mAP 50 {_share(side.map50)}" for name, side in sides
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
    numbers = (False, *(True for _ in header[1:]))
    return page.page(
        f"{counted(found.photos, 'photo')}, here{where}",
        page.verdict("; ".join(f"{name}: mAP 50-95 {_share(side.map)}" for name, side in sides)),
        page.facts(said),
        page.section("Precision over recall", *_curves(found, sides)),
        page.section("Classes", page.table(rows, header, numbers)),
        kind="evaluate",
    )


def _curves(found: BoxEvaluation, sides: Sequence[tuple[str, AveragePrecision]]) -> Iterator[Html]:
    """Of all classes together, and of each of those with most objects."""
    yield page.paragraph(
        "With an overlap of 0.5 or more, from recall 0 to 1; at each the best precision at that "
        "recall or above. The first is the mean over the classes."
    )
    means = {}
    for name, side in sides:
        curves = [one.precisions for one in side.classes if one.precisions]
        means[name] = [sum(values) / len(values) for values in zip(*curves, strict=True)]
    yield _curve(means, "all classes")
    pairs = [pair for pair in found.pairs() if pair[0].precisions]
    pairs.sort(key=lambda pair: -pair[0].objects)
    yield page.figures(
        (
            _curve(
                {
                    name: side.precisions
                    for (name, _), side in zip(sides, pair, strict=False)
                    if side is not None
                },
                found.label(pair[0].index),
            ),
            _curve_words(found, pair[0]),
        )
        for pair in pairs[:_SHOWN_CURVES]
    )
    more = len(pairs) - _SHOWN_CURVES
    yield page.paragraph(f"and {more} classes more" if more > 0 else "")


def _curve_words(found: BoxEvaluation, one: ClassPrecision) -> Html:
    name = page.text(found.label(one.index))
    return Html(f"<b>{name}</b> AP 50 {_share(one.ap50)}, {counted(one.objects, 'object')}")


def _curve(series: Mapping[str, Sequence[float]], title: str) -> Html:
    """Precision at equal steps of recall from 0 to 1."""
    points = {
        name: [(at / max(len(values) - 1, 1), value) for at, value in enumerate(values)]
        for name, values in series.items()
    }
    return charts.curves(
        points,
        title=f"precision over recall: {title}",
        x=(0.0, 1.0),
        y=(0.0, 1.0),
        ends=(("recall 0", "1"), ("0", "1")),
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

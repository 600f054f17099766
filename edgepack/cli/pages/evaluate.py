"""The pages of `evaluate`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgepack.base import charts, page
from edgepack.base.intervals import share_interval
from edgepack.base.page import Html
from edgepack.base.text import format_count
from edgepack.cli.pages.photos import thumbnail

if TYPE_CHECKING:
    from edgepack.flow.average_precision import AveragePrecision, ClassPrecision
    from edgepack.flow.evaluate import Evaluation, Judged
    from edgepack.flow.evaluate_boxes import BoxEvaluation
    from edgepack.flow.evaluate_rows import RowEvaluation
    from edgepack.flow.evaluate_text import TextEvaluation

_SHOWN_PHOTOS = 200
_SHOWN_ROWS = 200
# Of more classes those that are confused most.
_SHOWN_CLASSES = 40
_SHOWN_CURVES = 60
# A name, and the class that it sees in each case; None where it gave none.
_Side = tuple[str, Sequence[Any]]


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
            ("Seen differently: " + format_count(len(differing), 'photo'),
             differing[:_SHOWN_PHOTOS], _left_out(len(differing))),
            ("Wrong by the reference: " + format_count(len(missed), 'photo'),
             missed[:_SHOWN_PHOTOS], _left_out(len(missed))),
        )
        if rows
    ]  # fmt: skip
    tops: list[tuple[str, Any, Sequence[Any]]] = [
        ("reference", shares["reference"], [one.reference[0] for one in found.judged])
    ]
    if found.device is not None:
        there = [one.device[0] if one.device else None for one in found.judged]
        tops.append((found.device, shares["device"], there))
    expected = [one.photo.expected for one in found.judged]
    sides = [(name, seen) for name, _, seen in tops]
    said = {
        name: f"top-1 {_with_interval(_hits(expected, seen), len(expected))}; "
        f"top-5 {side['top5']:.1%}"
        for name, side, seen in tops
    }
    return page.page(
        f"{format_count(len(found.judged), 'photo')}, here{where}",
        page.verdict("; ".join(f"{name}: {side['top1']:.1%} right" for name, side, _ in tops)),
        page.facts({"photos": len(found.judged), **said}),
        page.section("Accuracy of each class", _classes(found.label, expected, sides, "photos")),
        page.section("Confusion", *_confusion(found.label, expected, sides, "photos")),
        *photos,
        kind="evaluate",
    )


def rows_page(
    found: RowEvaluation,
    said: Mapping[str, object],
    rows: Sequence[Sequence[object]],
    header: Sequence[str],
) -> Html:
    """How good the answers for rows of a table are: of classes what is taken for what, of values
    how large the errors are. `said` is that in words, `rows` are those that are not right.
    """
    where = f" and on {found.device}" if found.device else ""
    sides: list[tuple[str, Sequence[float | None]]] = [
        ("reference", [one.reference for one in found.judged])
    ]
    if found.device is not None:
        sides.append((found.device, [one.device for one in found.judged]))
    expected = [one.expected for one in found.judged]
    parts = []
    if found.answering.is_value:
        name, given = sides[-1]
        errors = [
            one - due
            for one, due in zip(given, expected, strict=True)
            if one is not None and math.isfinite(one)
        ]
        if errors:
            drawn = charts.histogram(errors, unit="", title=f"errors of {name}")
            words = f"What {name} gives less what is right."
            parts.append(page.section("Errors", words, drawn))
    else:
        table = _classes(found.label, expected, sides, "rows")
        parts.append(page.section("Accuracy of each class", table))
        parts.append(page.section("Confusion", *_confusion(found.label, expected, sides, "rows")))
    title = "Seen differently" if found.device else "Wrong by the reference"
    if rows:
        wrong = page.table(rows[:_SHOWN_ROWS], header)
        more = len(rows) - _SHOWN_ROWS
        left = f"and {format_count(more, 'row')} more: --json has all" if more > 0 else ""
        parts.append(page.section(f"{title}: {format_count(len(rows), 'row')}", wrong, left))
    verdict = "; ".join(f"{name}: {said[name]}" for name in ("reference", "device") if name in said)
    return page.page(
        f"{format_count(len(found.judged), 'row')}, here{where}",
        page.verdict(verdict),
        page.facts(said),
        *parts,
        kind="evaluate",
    )


def text_page(found: TextEvaluation) -> Html:
    """How often letters and words are read wrong, and what is read in each photo."""
    where = f" and on {found.device}" if found.device else ""
    sides = [("reference", found.reference)]
    if found.on_device is not None and found.device is not None:
        sides.append((found.device, found.on_device))
    said = {
        name: f"error rate of letters {rates.letters:.1%}, of words {rates.words:.1%}"
        for name, rates in sides
    }
    header = ("photo", "expected", "reference", *(["device"] if found.device else []))
    rows = [
        (one.name, one.expected, one.reference, *([one.device or ""] if found.device else []))
        for one in found.photos
    ]
    more = len(rows) - _SHOWN_ROWS
    left = f"and {format_count(more, 'photo')} more: --json has all" if more > 0 else ""
    return page.page(
        f"{format_count(len(found.photos), 'photo')}, read here{where}",
        page.verdict("; ".join(f"{name}: {words}" for name, words in said.items())),
        page.facts({"photos": len(found.photos), **said}),
        page.section("What is read", page.table(rows[:_SHOWN_ROWS], header), left),
        kind="evaluate",
    )


def _hits(expected: Sequence[float], seen: Sequence[float | None]) -> int:
    return sum(one == own for one, own in zip(expected, seen, strict=True))


def _with_interval(hits: int, count: int) -> str:
    low, high = share_interval(hits, count)
    return f"{hits / count:.1%} ({low:.1%} to {high:.1%} with 95 % confidence)"


def _classes(
    label: Callable[[Any], str], expected: Sequence[Any], sides: Sequence[_Side], word: str
) -> Html:
    """Of each class that is expected: how many are right on each side, the worst first."""
    counts = Counter(expected)
    right = [
        Counter(one for one, own in zip(expected, seen, strict=True) if one == own)
        for _, seen in sides
    ]
    rows = []
    for index in sorted(counts, key=lambda index: (right[-1][index] / counts[index], index)):
        row: list[object] = [label(index), counts[index]]
        for own in right:
            hits, count = own[index], counts[index]
            low, high = share_interval(hits, count)
            bar = charts.share_bar(hits / count, low, high)
            row += [f"{hits / count:.1%}", bar, f"{low:.1%} to {high:.1%}"]
        rows.append(row)
    names = [heading for name, _ in sides for heading in (name, "", "95 % confidence")]
    numbers = (False, True, *(True, False, True) * len(sides))
    return page.table(rows, ("class", word, *names), numbers)


def _confusion(
    label: Callable[[Any], str], expected: Sequence[Any], sides: Sequence[_Side], word: str
) -> Iterator[Html]:
    """What is taken for what by the last of the sides: as a matrix, and the most frequent mistakes
    as a list."""
    name, seen = sides[-1]
    pairs = zip(expected, seen, strict=True)
    counts = Counter((one, own) for one, own in pairs if own is not None)
    involved: Counter[Any] = Counter()
    for (one, own), count in counts.items():
        mistakes = count if one != own else 0
        involved.update({one: mistakes, own: mistakes})
    # All that are confused go before all that are not.
    kept = sorted(involved, key=lambda index: (-involved[index], index))[:_SHOWN_CLASSES]
    kept.sort()
    left = len(involved) - len(kept)
    least = f" {left} classes, the least confused, are left out." if left else ""
    yield page.paragraph(
        f"Rows are what is expected, columns what is seen by {name}: a column has its row's "
        f"number.{least}"
    )
    cells = [[counts.get((row, column), 0) for column in kept] for row in kept]
    yield charts.matrix(cells, [label(index) for index in kept], corner="expected")
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    wrong = [(label(one), label(own), count) for (one, own), count in order if one != own]
    if wrong:
        table = page.table(wrong[:_SHOWN_ROWS], ("expected", "seen as", word))
        yield page.fold_parts(
            f"{format_count(len(wrong), 'pair')} of classes that are confused", table
        )


def boxes_page(found: BoxEvaluation) -> Html:
    """Average precision, over all and of each class, and precision over recall."""
    names = {"device": str(found.device), "masks on device": f"masks on {found.device}"}
    sides = [(names.get(name, name), side) for name, side in found.sides()]
    said = {"photos": f"{found.photos}, with {format_count(found.objects, 'object')}"}
    said |= {
        name: f"mAP 50-95 {_share(side.map)}, mAP 50 {_share(side.map50)}" for name, side in sides
    }
    if found.without_masks:
        said["masks"] = f"not measured: {found.without_masks}"
    rows = [
        (
            found.label(own[0].index),
            own[0].objects,
            *(_share(value) for side in own if side for value in (side.ap, side.ap50)),
        )
        for own in found.of_classes()
        if own[0].objects
    ]
    columns = (one for name, _ in found.sides()[1:] for one in (f"{name} 50-95", "50"))
    header = ("class", "objects", "AP 50-95", "AP 50", *columns)
    where = f" and on {found.device}" if found.device else ""
    numbers = (False, *(True for _ in header[1:]))
    return page.page(
        f"{format_count(found.photos, 'photo')}, here{where}",
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
    of_classes = [own for own in found.of_classes() if own[0].precisions]
    of_classes.sort(key=lambda own: -own[0].objects)
    yield page.figures(
        (
            _curve(
                {
                    name: side.precisions
                    for (name, _), side in zip(sides, filter(None, own), strict=True)
                },
                found.label(own[0].index),
            ),
            _curve_words(found, own[0]),
        )
        for own in of_classes[:_SHOWN_CURVES]
    )
    more = len(of_classes) - _SHOWN_CURVES
    yield page.paragraph(f"and {more} classes more" if more > 0 else "")


def _curve_words(found: BoxEvaluation, one: ClassPrecision) -> Html:
    name = page.text(found.label(one.index))
    return Html(f"<b>{name}</b> AP 50 {_share(one.ap50)}, {format_count(one.objects, 'object')}")


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

"""The page of `check`: what the model was given and what it sees, one photo after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepack.base import charts, page
from edgepack.base.page import Html
from edgepack.base.text import format_count
from edgepack.cli.pages.photos import area_color, encode_photo, mark_photo

if TYPE_CHECKING:
    from edgepack.flow.check import Checked, OutputRange, Seen
    from edgepack.preprocess.spec import PreprocessSpec
    from edgepack.preprocess.steps import PhotoSteps

_SHOWN_PHOTOS = 20
_SHOWN_ROWS = 500
_READING = 160
# Of the values of a tensor: more at the ends of its type are worth a word.
_CLIPPED = 0.01


def check_page(checked: Checked, name: str, model: str) -> Iterator[Html]:
    """The verdict, and each photo: what the model sees in it, and what it was given of it."""
    yield page.head(f"{name}: what the reference sees", kind="check")
    yield _verdict(checked)
    yield page.facts(
        {
            "model": model,
            "inputs": ", ".join(f"{one.name} {one.dtype} {one.shape}" for one in checked.inputs),
            "outputs": ", ".join(f"{one.name} {one.dtype} {one.shape}" for one in checked.outputs),
            "not one score per class": checked.hint,
        }
    )
    if checked.seen[0].line is not None:
        yield _rows(checked)
    else:
        for seen in checked.seen[:_SHOWN_PHOTOS]:
            yield from _one(checked, seen)
        more = len(checked.seen) - _SHOWN_PHOTOS
        if more > 0:
            yield page.section(f"and {more} more", "--json has all")
    yield page.PAGE_END


def _verdict(checked: Checked) -> Html:
    from edgepack.flow.golden import SenselessGoldenError
    from edgepack.flow.reference import ExpectedClassError

    agreed = checked.agreement
    if agreed is not None:
        right = "" if agreed.right is None else f"right in {agreed.right} of {agreed.total} rows"
        mean = "" if agreed.mean_error is None else f"{agreed.mean_error:.6g} off on average"
        return page.verdict(f"{agreed.output}: {right or mean}")
    try:
        checked.check_expected()
    except (ExpectedClassError, SenselessGoldenError) as error:
        return Html(page.verdict(error.message, ok=False) + page.paragraph(error.hint))
    if (
        checked.expected is not None
        and checked.seen[0].image is not None
        and _classes(checked.seen[0])
    ):
        return page.verdict("The photo is seen as the class that is expected", ok=True)
    return page.verdict(said) if (said := _seen_in(checked.seen[0])) else Html()


def _seen_in(seen: Seen) -> str:
    """What the first photo shows, in a few words; "" if that cannot be said in few."""
    where = seen.image.name if seen.image else "the smoke test's inputs"
    if classes := _classes(seen):
        return f"{where}: {classes[0].label or f'class {classes[0].index}'} {classes[0].score:.4f}"
    results = seen.results
    if results is None:
        return ""
    if results.boxes is not None:
        best = results.boxes[0] if results.boxes else None
        named = f", first {best.label or best.index} {best.score:.2f}" if best else ""
        return f"{where}: {format_count(len(results.boxes), 'thing')}{named}"
    if results.mask is not None:
        areas = sorted(results.mask.areas, key=lambda area: -area.pixels)
        return f"{where}: {', '.join(str(area.label or area.index) for area in areas[:3])}"
    return f"{where}: {results.text.text}" if results.text is not None else ""


def _classes(seen: Seen) -> Any:
    return seen.top if seen.results is None else seen.results.top or ()


def _rows(checked: Checked) -> Html:
    header = (
        "line",
        *(one.name for one in checked.outputs),
        *(["due"] if checked.agreement else []),
    )
    rows = [
        (
            seen.line,
            *(_values(one) for one in seen.ranges),
            *([seen.target] if checked.agreement else []),
        )
        for seen in checked.seen[:_SHOWN_ROWS]
    ]
    more = len(checked.seen) - len(rows)
    return page.section(
        "Rows", page.table(rows, header), f"and {more} more: --json has all" if more else ""
    )


def _values(one: OutputRange) -> str:
    if one.values:
        return " ".join("-" if value is None else f"{value:.6g}" for value in one.values)
    if one.least is None:
        return "no finite value"
    return f"from {one.least:.6g} to {one.most:.6g}, mean {one.mean:.6g}"


def _one(checked: Checked, seen: Seen) -> Iterator[Html]:
    """A photo, or other inputs."""
    steps = None
    if seen.image is not None and checked.preprocess is not None:
        from edgepack.preprocess.steps import trace_steps

        steps = trace_steps(checked.preprocess, seen.image)
    title = seen.image.name if seen.image else "The smoke test's inputs"
    yield page.section(title, *_answer(seen, steps))
    if steps is not None and checked.preprocess is not None and seen.image is not None:
        yield page.section("Step by step", _pictures(checked.preprocess, steps, seen.image))
        yield page.section("The tensor", *_tensor(checked.preprocess, steps))
        yield from _readings(checked.preprocess, steps)


def _answer(seen: Seen, steps: PhotoSteps | None) -> Iterator[Html]:
    """What is seen, drawn on the photo where it has a place."""
    results = seen.results
    if (
        steps is not None
        and results is not None
        and (results.boxes or results.keypoints or results.mask)
    ):
        points = [one.point for one in results.keypoints or ()]
        points += [point for box in results.boxes or () for point in box.points]
        areas = results.mask.areas if results.mask else ()
        yield mark_photo(
            steps.photo, results.boxes or (), points, areas, alt="the answer on the photo"
        )
    elif steps is not None:
        yield page.picture(encode_photo(steps.photo), alt="the photo")
    classes = [
        (one.label or f"class {one.index}", max(one.score, 0.0), f"{one.score:.4f}")
        for one in _classes(seen)
    ]
    if classes:
        yield page.shares(classes)
    if results is not None:
        yield from _results(results)
    if seen.ranges:
        rows = [(one.name, "x".join(map(str, one.shape)), _values(one)) for one in seen.ranges]
        yield page.table(rows, ("output", "shape", "values"))


def _results(results: Any) -> Iterator[Html]:
    """What has a place in the photo, in words."""
    if results.boxes is not None:
        rows = [
            (one.label or one.index, f"{one.score:.4f}", *(round(side, 1) for side in one.box))
            for one in results.boxes
        ]
        header = ("class", "score", "left", "top", "right", "bottom")
        yield page.table(rows, header) if rows else page.paragraph("no boxes")
    if results.keypoints:
        rows = [
            (one.label or one.index, f"{one.score:.4f}", *one.point) for one in results.keypoints
        ]
        yield page.table(rows, ("point", "score", "x", "y"))
    if results.mask is not None:
        height, width = results.mask.size
        rows = [
            (
                page.swatch(area_color(one.index)),
                one.label or one.index,
                one.pixels,
                f"{one.pixels / (height * width):.1%}",
            )
            for one in results.mask.areas
        ]
        yield (
            page.table(rows, ("", "class", "pixels", "of the photo"))
            if rows
            else page.paragraph("no areas")
        )
    if results.text is not None:
        yield page.facts({"text": results.text.text, "score": f"{results.text.score:.4f}"})
    for one in results.tensors or ():
        yield page.facts({one.name: " ".join(f"{value:.6g}" for value in one.values[:64])})


def _pictures(spec: PreprocessSpec, steps: PhotoSteps, photo: Path) -> Html:
    """The photo, beside it the tensor turned back into one, and what lies between them."""
    height, width = steps.size
    seen = steps.seen_box
    whole = seen == (0.0, 0.0, width, height)
    original = (
        page.picture(encode_photo(steps.photo), alt="the photo")
        if whole
        else _framed(steps.photo, seen, "the photo, with what the model sees of it in a frame")
    )
    size = f"{photo.name}, {width} x {height} pixels" + ("" if whole else "; in the frame: seen")
    shown: list[tuple[Html, object]] = [
        (original, _words("photo", size)),
        _undone(spec, steps),
    ]
    if steps.reduction > 1:
        small = steps.colored.shape
        shown.append(
            (
                _as_channels(steps.colored, "decoded"),
                _words(
                    "decode", f"at 1/{steps.reduction} of its size: {small[1]} x {small[0]} pixels"
                ),
            )
        )
    shown.append((_as_channels(steps.colored, "colours"), _words("color", _color_text(spec))))
    if spec.resize is not None:
        crop = steps.crop_box
        resized = _as_bgr(steps.resized)
        picture = (
            _as_channels(steps.resized, "resized")
            if crop is None
            else _framed(resized, crop, "resized, with what is cut out of it in a frame")
        )
        framed = "" if crop is None else "; in the frame: the crop"
        shown.append((picture, _words("resize", _resize_text(spec, steps) + framed)))
    if spec.crop is not None:
        shown.append(
            (
                _as_channels(steps.cropped, "cropped"),
                _words("crop", f"{spec.crop[1]} x {spec.crop[0]} from the centre"),
            )
        )
    shape = "x".join(map(str, steps.tensor.shape))
    shown.append(
        (
            _stretched(spec, steps),
            _words(
                "tensor",
                f"{spec.dtype} {spec.layout} {shape}, from its least value (black) to its "
                "greatest (white)",
            ),
        )
    )
    return page.figures(shown)


def _words(name: str, said: str) -> Html:
    return Html(f"<b>{page.text(name)}</b>: {page.text(said)}")


def _color_text(spec: PreprocessSpec) -> str:
    if spec.color == "gray":
        return "gray: one channel"
    if spec.color == "bgr":
        return "BGR, shown as if it were RGB: red and blue look exchanged"
    return "RGB"


def _resize_text(spec: PreprocessSpec, steps: PhotoSteps) -> str:
    resize = spec.resize
    if resize is None:
        return ""
    height, width = steps.resized.shape[:2]
    inner = steps.geometry
    said = f"{resize.mode}, {spec.interpolation}, to {width} x {height}"
    if resize.mode == "letterbox":
        return (
            f"{said}: the photo {inner.scaled_width} x {inner.scaled_height}, "
            f"the border {resize.fill}"
        )
    if resize.mode == "exact":
        stretch = (width / inner.width) / (height / inner.height)
        if abs(stretch - 1) > 0.01:
            return f"{said}: {stretch:.2f} times as wide for its height as the photo"
    return said


def _as_bgr(image: Any) -> Any:
    """Channels in their order as red, green and blue, for an encoder, which takes BGR."""
    import numpy as np

    whole = np.clip(np.rint(image), 0, 255).astype(np.uint8)
    whole = whole.reshape(*whole.shape[:2], -1)
    return np.ascontiguousarray(whole[:, :, ::-1])


def _as_channels(image: Any, alt: str) -> Html:
    return page.picture(encode_photo(_as_bgr(image)), alt=alt)


def _framed(image: Any, box: Sequence[float], alt: str) -> Html:
    """An image (BGR) with a frame in it."""
    height, width = image.shape[:2]
    return charts.marked_picture(encode_photo(image), width, height, [(box, "")], alt=alt)


def _stretched(spec: PreprocessSpec, steps: PhotoSteps) -> Html:
    import numpy as np

    from edgepack.preprocess.steps import values_of

    values = np.nan_to_num(values_of(spec, steps.tensor))
    low, high = float(values.min()), float(values.max())
    return _as_channels((values - low) * (255 / ((high - low) or 1.0)), "the tensor")


def _undone(spec: PreprocessSpec, steps: PhotoSteps) -> tuple[Html, Html]:
    import numpy as np

    from edgepack.cli.pages.photos import LARGEST
    from edgepack.preprocess.steps import in_frame, undone

    pixels = undone(spec, steps.tensor)
    # By scaling nothing is off here, only by what the tensor's type cannot hold.
    off = float(np.abs(pixels.astype(np.float32) - steps.cropped).mean())
    scale = min(LARGEST / max(steps.size), 1.0)
    back, inside = in_frame(pixels, steps.geometry, scale)
    if spec.color == "rgb":
        back = np.ascontiguousarray(back[:, :, ::-1])
    seen = f"{inside.mean():.0%} of the photo" if not inside.all() else "the whole photo"
    return (
        page.picture(encode_photo(back), alt="the tensor turned back into a photo"),
        _words(
            "undone",
            f"the tensor turned back into pixels where they lie in the photo: {seen}, {off:.1f} of "
            "255 off the pixels that went in; what the model does not see is grey",
        ),
    )


def _tensor(spec: PreprocessSpec, steps: PhotoSteps) -> Iterator[Html]:
    """Its values: in figures for each channel, and how often they come."""
    import numpy as np

    from edgepack.preprocess.steps import values_of

    values = values_of(spec, steps.tensor)
    names = {"rgb": ("red", "green", "blue"), "bgr": ("blue", "green", "red"), "gray": ("gray",)}
    rows = []
    for index, name in enumerate(names[spec.color]):
        one = values[:, :, index].astype(np.float64)
        one = one[np.isfinite(one)]
        if one.size:
            rows.append(
                (name, *(f"{value:.4g}" for value in (one.min(), one.max(), one.mean(), one.std())))
            )
    yield page.table(
        rows,
        ("channel", "least", "most", "mean", "standard deviation"),
        numbers=(False, True, True, True, True),
    )
    finite = values[np.isfinite(values)]
    if finite.size < values.size:
        yield page.verdict(
            f"{format_count(values.size - finite.size, 'value')} of {values.size} are not finite",
            ok=False,
        )
    if spec.quantization is not None:
        limits = np.iinfo(spec.dtype)
        ends = np.isin(steps.tensor, (limits.min, limits.max)).mean()
        if ends > _CLIPPED:
            yield page.paragraph(
                f"{ends:.1%} of the values are at the ends of {spec.dtype}: what lies beyond is "
                "cut off"
            )
    if finite.size:
        counts, edges = np.histogram(finite, bins=40)
        yield charts.columns(
            counts.tolist(), float(edges[0]), float(edges[-1]), unit="", title="the tensor's values"
        )


def _readings(spec: PreprocessSpec, steps: PhotoSteps) -> Iterator[Html]:
    """What models that were trained in one of the usual ways would take the tensor for."""

    from edgepack.preprocess.steps import NORMALISATIONS, pixels_of, values_of

    if not spec.normalises or spec.channels != 3:
        return
    values = values_of(spec, steps.tensor)
    own = (spec.scale, spec.mean, spec.std)
    shown = []
    for order, step in (("RGB", 1), ("BGR", -1)):
        for name, (scale, mean, std) in NORMALISATIONS.items():
            pixels = pixels_of(values[:, :, ::step], scale, mean, std)
            matches = order.lower() == spec.color and _same(own, (scale, mean, std))
            said = f"{name}, {order}"
            shown.append(
                (
                    page.picture(encode_photo(_as_bgr(pixels), _READING), alt=f"read as {said}"),
                    Html(f"<b>{page.text(said)}: as [preprocess] says</b>") if matches else said,
                )
            )
    yield page.section(
        "As models read it that were trained on ...",
        "The one that your model was trained on has to look like the photo. If another one does, "
        "scale, mean, std or color in [preprocess] are those of another model.",
        page.figures(shown, four=True),
    )


def _same(one: Any, other: Any) -> bool:
    """Whether two normalisations give the same: (pixel * scale - mean) / std."""
    import numpy as np

    (scale, mean, std), (scale2, mean2, std2) = one, other
    slope, slope2 = scale / np.array(std), scale2 / np.array(std2)
    start, start2 = np.array(mean) / np.array(std), np.array(mean2) / np.array(std2)
    return bool(
        np.allclose(slope, slope2, rtol=0.02) and np.allclose(start, start2, rtol=0.02, atol=0.02)
    )

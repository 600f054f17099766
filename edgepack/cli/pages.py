"""Results as pages: `--html FILE` of deploy, run, bench, evaluate, compare and compile."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base import page
from edgepack.base.errors import ImageError
from edgepack.base.page import Html
from edgepack.base.text import counted, megabytes, milliseconds
from edgepack.cli.options import check_writable

if TYPE_CHECKING:
    from edgepack.boards import Board
    from edgepack.bundle.bundle import Bundle
    from edgepack.cli.console import Console
    from edgepack.compiler import CompiledModel
    from edgepack.deploy.app_answers import AppAnswer
    from edgepack.deploy.deploy import Report
    from edgepack.device.facts import DeviceFacts
    from edgepack.flow.compare import Compared
    from edgepack.flow.evaluate import Evaluation, Judged
    from edgepack.flow.evaluate_boxes import BoxEvaluation
    from edgepack.quantization.quantize import Result

_THUMBNAIL = 160
_SHOWN_PHOTOS = 200
_SHOWN_LAYERS = 40


def add_html(parser: argparse.ArgumentParser) -> None:
    """A page of the result."""
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="also write the result as a page, in one file"
    )


def check_html(args: argparse.Namespace) -> None:
    """Before any long step. Raises UsageError if the file cannot be written."""
    if args.html is not None:
        check_writable(args.html.parent, "--html")


def save(args: argparse.Namespace, console: Console, made: Iterable[str]) -> None:
    """Write the page, if one is wanted."""
    if args.html is not None:
        page.write_page(args.html, made)
        console.note(f"page: {args.html}")


def deploy_page(report: Report, bundle: Bundle) -> Html:
    """What was deployed: the photo with its classes, times, memory, files, the device."""
    from edgepack.deploy.answers import Answer
    from edgepack.deploy.app_answers import AppAnswer

    manifest, smoke = bundle.manifest, report.smoke
    answer = AppAnswer.read(Answer(smoke.photo or smoke.golden, "smoke test"))
    answer = answer.on_emulator() if report.emulated else answer
    photo = bundle.golden_image
    shown = page.picture(bundle.file(photo).read_bytes(), alt="the photo") if photo else Html()
    return page.page(
        f"{manifest.name} on {report.device}",
        shown,
        Html(report._repr_html_()),
        page.section("Smoke test", _times(answer)),
        page.section("Device", _device(report.facts)),
        page.section(
            "Files",
            page.table(
                (
                    (name, entry.size, entry.sha256, "yes" if name in report.sent_files else "")
                    for name, entry in manifest.files.items()
                ),
                ("file", "bytes", "SHA-256", "sent"),
            ),
        ),
        page.section("Time of each phase, s", page.facts(report.seconds)),
    )


def bench_page(answer: AppAnswer, title: str) -> Html:
    """Latency as a histogram, layers by time, memory."""
    parts = []
    if answer.bench is not None:
        parts.append(page.section("Latency", Html(answer.bench._repr_html_())))
    if answer.profile is not None:
        parts.append(page.section("Layers by time", Html(answer.profile._repr_html_())))
    return page.page(title, *parts, page.section("One run", _times(answer)))


def run_page(answer: AppAnswer, title: str, photo: Path | None) -> Html:
    """A photo with its boxes, points or classes, and what the run took."""
    shown = _photo(answer, photo) if photo else Html()
    classes = page.shares(
        (score.label or f"class {score.index}", max(score.score, 0.0), f"{score.score:.4f}")
        for score in answer.top
    )
    return page.page(
        title, page.section("Result", shown, classes), page.section("Run", _times(answer))
    )


def _photo(answer: AppAnswer, photo: Path) -> Html:
    """As it is, or with what lies in it, turned as those coordinates are."""
    points = _points(answer.document)
    if answer.boxes is None and not points:
        return page.picture(photo.read_bytes(), alt=photo.name)
    import cv2

    from edgepack.preprocess.image import KINDS, load_image

    image = load_image(photo, accept=KINDS)
    height, width = image.shape[:2]
    boxes = [(box.box, f"{box.label or box.index} {box.score:.2f}") for box in answer.boxes or ()]
    _, jpeg = cv2.imencode(".jpg", image)
    return page.marked_picture(jpeg.tobytes(), width, height, boxes, points, alt=photo.name)


def _points(found: object) -> list[tuple[float, float]]:
    """Each "point" and those of "points" in an answer, which may hold anything."""
    if isinstance(found, list):
        return [point for one in found for point in _points(one)]
    if not isinstance(found, dict):
        return []
    points = []
    for key, value in found.items():
        given = [value] if key == "point" else value if key == "points" else None
        if given is None:
            points += _points(value)
            continue
        for one in given if isinstance(given, list) else ():
            if isinstance(one, list) and [type(side) for side in one] == [float, float]:
                points.append((one[0], one[1]))
    return points


def compare_page(found: Compared, title: str) -> Html:
    """Each layer's error, in the order of the plan; what diverges stands out."""
    first = found.first
    verdict = "no layer diverges" if first is None else f"call {first.call} is the first to diverge"
    header = ("call", "node", "operator", "rule", "tensor", "shape", "error", "of max", "")
    numbers = (True, False, False, False, False, True, True, True, False)
    rows = (
        page.table_row(
            (
                layer.call,
                layer.layer,
                layer.operator,
                layer.rule,
                layer.value,
                "x".join(map(str, layer.shape)),
                f"{layer.max_abs_error:.2g}",
                f"{layer.relative:.1e}",
                "" if layer.ok else "diverges",
            ),
            kind="" if layer.ok else "bad",
            names=("", "", "", "", "", "number", "number", "number", "outcome short"),
        )
        for layer in found.layers
    )
    return page.page(
        title,
        page.facts(
            {
                "verdict": verdict,
                "board": f"{found.board}, {found.cpu}",
                "compared": f"{len(found.layers)} of {found.calls} calls, with the reference",
                "limit": f"{found.tolerance:.0e} of a layer's largest value",
                "plan": "" if found.same_plan else "not what this project compiles to",
            }
        ),
        page.section("Layers", page.table_head(header, numbers), *rows, page.TABLE_END),
    )


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


def quantize_page(found: Result, title: str) -> Html:
    """How good a quantised model is, what stays float, and each tensor's noise."""
    from edgepack.cli.quantize import agreement_text

    said = {
        "calibrated on": counted(found.calibrated, "photo"),
        "validated on": counted(found.judged, "held-out photo"),
    }
    for name, one in (("integers", found.all_int8), ("mixed", found.agreement)):
        said[name] = agreement_text(one)
    left = [(one.tensor, f"{one.noise:.1%}", f"{one.cost:.1%}") for one in found.in_float]
    layers = [(one.tensor, one.operator, f"{one.snr_db:.1f}") for one in found.layers]
    return page.page(
        title,
        page.facts(said),
        page.section("In float", page.table(left, ("tensor", "of all noise", "costs"))),
        page.section("Noise", page.table(layers, ("tensor", "operator", "SNR dB"))),
    )


def compile_page(compiled: CompiledModel, title: str, board: Board) -> Html:
    """What a run takes, and where its time goes by the cost model."""
    total = sum(layer.cycles for layer in compiled.layers) or 1.0
    slowest = sorted(compiled.layers, key=lambda layer: -layer.cycles)[:_SHOWN_LAYERS]
    files = (compiled.library, compiled.graph, compiled.params)
    return page.page(
        title,
        page.facts(
            {
                "board": f"{board.title}, {board.cpu}",
                "weights": megabytes(compiled.params_bytes),
                "activations": megabytes(compiled.arena_bytes),
                "model's SHA-256": compiled.model_sha256,
                "TVM": compiled.tvm_version,
            }
        ),
        page.section(
            "Layers by the cost model's cycles",
            page.shares(
                (
                    f"{layer.layer or layer.kernel} {layer.operator}",
                    layer.cycles / total,
                    f"{layer.cycles / total:.1%}",
                )
                for layer in slowest
                if layer.cycles
            ),
        ),
        page.section(
            "Kernel calls",
            page.table(
                (
                    (
                        layer.layer,
                        layer.operator,
                        layer.rule,
                        "x".join(map(str, layer.shape)),
                        layer.tile,
                        layer.macs,
                        layer.nbytes,
                        round(layer.cycles),
                    )
                    for layer in compiled.layers
                ),
                ("layer", "operator", "rule", "shape", "tile", "MACs", "bytes", "cycles"),
            ),
        ),
        page.section(
            "Files",
            page.table(((path.name, path.stat().st_size) for path in files), ("file", "bytes")),
        ),
    )


def _times(answer: AppAnswer) -> Html:
    from edgepack.deploy.app_answers import emulated_mark

    mark = emulated_mark(answer.emulated)
    steps = [(name, time, milliseconds(time) + mark) for name, time in answer.times_ms.items()]
    memory = answer.memory
    memory_facts = page.facts(
        {
            "threads": answer.threads,
            "peak memory": megabytes(memory.rss_peak_bytes) + mark if memory else None,
            "weights": megabytes(memory.params_bytes) if memory else None,
            "activations": megabytes(memory.arena_bytes) if memory else None,
        }
    )
    return Html(page.shares(steps) + memory_facts)


def _device(facts: DeviceFacts) -> Html:
    return page.facts(
        {
            "model": facts.model,
            "system": f"{facts.os}, {facts.system} {facts.kernel}",
            "machine": f"{facts.machine}, {facts.cores} cores",
            "C library": f"glibc {facts.glibc}" if facts.glibc else facts.libc,
            "CPU features": " ".join(sorted(facts.features)),
            "memory": f"{megabytes(facts.memory_available_bytes)} free of "
            f"{megabytes(facts.memory_bytes)}",
            "disk": f"{megabytes(facts.free_disk_bytes)} free",
            "logged in as": f"{facts.user}@{facts.hostname}",
        }
    )


def _photo_row(found: Evaluation, one: Judged) -> tuple[object, ...]:
    return (
        _thumbnail(one.photo.path),
        one.photo.name,
        found.label(one.photo.expected),
        found.label(one.reference[0]),
        found.label(one.device[0]) if one.device else None,
    )


def _thumbnail(path: Path) -> Html:
    """Small, as a JPEG; what is no photo any more has none."""
    import cv2

    from edgepack.preprocess.image import KINDS, load_image

    try:
        photo = load_image(path, accept=KINDS)
    except ImageError:
        return Html()
    factor = min(_THUMBNAIL / max(photo.shape[:2]), 1.0)
    height, width = (max(round(side * factor), 1) for side in photo.shape[:2])
    small = cv2.resize(photo, (width, height), interpolation=cv2.INTER_AREA)
    _, data = cv2.imencode(".jpg", small, (cv2.IMWRITE_JPEG_QUALITY, 80))
    return page.picture(data.tobytes(), alt=path.name)


def _left_out(count: int) -> str:
    return f"and {count - _SHOWN_PHOTOS} more: --json has all" if count > _SHOWN_PHOTOS else ""

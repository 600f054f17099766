"""How much of a float model is left on 8-bit integers: ours beside its peers, on the same photos.

Every quantised model is an ONNX file in QDQ form, and all of them run the same way: each operator
by itself on onnxruntime, rounded where the file says so. Measured are the ratio of signal and noise
of the outputs, and for how many photos the first class is float32's.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from bench.fetch import bench_dir
from bench.models import get_model, with_shape
from bench.ours import NAME
from bench.photos import PACKAGES, Photo, photos
from bench.results import RESULTS
from edgepack.base.errors import EdgepackError
from edgepack.base.paths import locked, write_atomic
from edgepack.base.process import run
from edgepack.base.progress import Progress
from edgepack.postprocess.centernet import CenterNet
from edgepack.postprocess.results import Box
from edgepack.preprocess.spec import PreprocessSpec, Resize
from edgepack.quantization.network import FloatNetwork, outputs
from edgepack.quantization.quantize import agreement, quantize

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]

REQUIREMENTS = Path(__file__).with_name("requirements-nncf.lock")
WORKER = Path(__file__).with_name("accuracy_worker.py")
CALIBRATION = 40
# What mixed precision is asked for, and what it may cost.
SNR_DB, BUDGET = 20.0, 0.1

_SHORTEST = Resize(mode="shortest", height=256, width=256)
_CROP = (224, 224)
PREPROCESSING = {
    "mobilenetv2": PreprocessSpec(
        resize=_SHORTEST,
        crop=_CROP,
        scale=1 / 255,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    ),
    # (x * 255 - 127) / 128, as its package says
    "efficientnet-lite0": PreprocessSpec(
        resize=_SHORTEST, crop=_CROP, mean=(127.0,) * 3, std=(128.0,) * 3
    ),
    "centerface": PreprocessSpec(resize=Resize(mode="exact", height=256, width=320)),
}
CLASSIFIERS = ("mobilenetv2", "efficientnet-lite0")
# Photos are no larger than that.
SHAPES = {"centerface": (1, 3, 256, 320)}
DETECTORS = {
    "centerface": CenterNet(head="centerface", score=0.3, iou=0.3, size=SHAPES["centerface"][2:])
}
# Boxes are the same object if their intersection over union is at least this.
_SAME = 0.5


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A quantised model beside float32: decibels; of classifiers shares of photos; of detectors how
    far boxes are float32's (F1: of both models' boxes the share that the other has, too). Nothing
    of them if there is no model: the way to it failed."""

    way: str
    snr_db: float | None = None
    top1: float | None = None
    top5: float | None = None
    f1: float | None = None


def split(found: Sequence[Photo]) -> tuple[list[Photo], list[Photo]]:
    """Photos to calibrate on, and to judge by: by their hashes, so that no one chose them."""
    ordered = sorted(found, key=lambda photo: photo.sha256)
    return ordered[:CALIBRATION], ordered[CALIBRATION:]


def by_onnxruntime(network: FloatNetwork, inputs: Sequence[Array]) -> onnx.ModelProto:
    """onnxruntime's static quantisation, scales for each channel, ranges from end to end."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Photos(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(inputs)

        def get_next(self) -> dict[str, Array] | None:
            given = next(self.left, None)
            return None if given is None else {network.input: given}

    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        model, out = Path(folder) / "model.onnx", Path(folder) / "quantized.onnx"
        onnx.save(network.proto, model)
        quantize_static(model, out, Photos(), quant_format=QuantFormat.QDQ, per_channel=True)
        return onnx.load(out)


def by_nncf(preset: str, correction: str) -> Callable[[FloatNetwork, Sequence[Array]], Any]:
    """NNCF's quantisation after training, with one of its presets and bias corrections."""

    def made(network: FloatNetwork, inputs: Sequence[Array]) -> onnx.ModelProto:
        with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
            folder = Path(name)
            onnx.save(network.proto, folder / "model.onnx")
            np.savez(folder / "photos.npz", *inputs)
            out = folder / "quantized.onnx"
            paths = (folder / "model.onnx", folder / "photos.npz", out)
            run(
                [nncf_python(), WORKER, *paths, preset, correction],
                timeout_s=3600,
                what=f"quantising by NNCF, {preset}, {correction}",
            )
            return onnx.load(out)

    return made


def nncf_python() -> Path:
    """Python of an environment with NNCF, made if it is not in the cache."""
    key = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = bench_dir() / f"nncf-{key}"
    python = folder / "bin" / "python"
    with locked(folder):
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            run([sys.executable, "-m", "venv", folder])
            words = "-m pip install --quiet --disable-pip-version-check --no-deps --requirement"
            run([python, *words.split(), REQUIREMENTS], what="pip install of NNCF")
            (folder / "ready").touch()
    return python


PEERS: dict[str, Callable[[FloatNetwork, Sequence[Array]], Any]] = {
    "onnxruntime 1.31.1, per channel": by_onnxruntime,
    **{
        f"NNCF 3.4.0, {preset}, {correction} bias correction": by_nncf(preset, correction)
        for preset in ("performance", "mixed")
        for correction in ("fast", "accurate")
    },
}


def judged(name: str, way: str, exact: Sequence[Array], got: Sequence[Array]) -> Judged:
    """A quantised model's outputs beside float32's, rows of photos."""
    found = agreement(exact, got)
    if name in CLASSIFIERS:
        return Judged(way=way, snr_db=found.snr_db, top1=found.top1, top5=found.top5)
    pairs = zip(boxes_of(name, exact), boxes_of(name, got), strict=True)
    counts = [(len(one), len(other), alike(one, other)) for one, other in pairs]
    ours, theirs, both = map(sum, zip(*counts, strict=True))
    f1 = 2 * both / (ours + theirs) if ours + theirs else 1.0
    return Judged(way=way, snr_db=found.snr_db, f1=f1)


def boxes_of(name: str, rows: Sequence[Array]) -> list[tuple[Box, ...]]:
    """What a detector finds in each photo, of its outputs as rows of photos."""
    spec, (_n, _c, height, width) = DETECTORS[name], SHAPES[name]
    cells = height // _STRIDE, width // _STRIDE
    return [
        spec.run([row.reshape(1, -1, *cells) for row in photo], None).boxes or ()
        for photo in zip(*rows, strict=True)
    ]


# Of CenterFace's cells.
_STRIDE = 4


def alike(ours: Sequence[Box], theirs: Sequence[Box]) -> int:
    """How many boxes are there twice, the best first, each for one of the others."""
    left, found = list(theirs), 0
    for box in ours:
        best = max(left, key=lambda other: overlap(box.box, other.box), default=None)
        if best is not None and overlap(box.box, best.box) >= _SAME:
            left.remove(best)
            found += 1
    return found


def overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Intersection over union of boxes: left, top, right, bottom."""

    def area(box: Sequence[float]) -> float:
        return max(box[2] - box[0], 0.0) * max(box[3] - box[1], 0.0)

    ends = (*map(max, one[:2], other[:2]), *map(min, one[2:], other[2:]))
    return area(ends) / max(area(one) + area(other) - area(ends), 1e-9)


def measure_model(
    name: str, calibration: Sequence[Photo], judge: Sequence[Photo], progress: Progress
) -> dict[str, Any]:
    """All ways to quantise a model, and what photos say of them."""
    model = get_model(name)
    spec = PREPROCESSING[name]
    given, others = ([spec.load(photo.path) for photo in part] for part in (calibration, judge))
    proto = onnx.load(model.path)
    if name in SHAPES:
        proto = with_shape(model.path, SHAPES[name])
    network = FloatNetwork(model.path, proto)
    exact = outputs(network.proto, others)
    folder = bench_dir() / "accuracy"
    folder.mkdir(parents=True, exist_ok=True)
    rows = []

    def add(way: str, made: onnx.ModelProto, file: str) -> None:
        onnx.save(made, folder / f"{name}.{file}.onnx")
        rows.append(judged(name, way, exact, outputs(made, others)))
        progress.step(f"{name}: {rows[-1]}")

    found = quantize(
        model.path, proto, given, others, snr_db=SNR_DB, budget=BUDGET, progress=progress
    )
    add(NAME, found.whole, "edgepack.int8")
    add(f"{NAME} --snr {SNR_DB:.0f}", found.model, "edgepack")
    for number, (way, make) in enumerate(PEERS.items()):
        progress.step(f"{name}: {way}")
        try:
            made = make(network, given)
        except EdgepackError as error:
            log.warning("%s", error)
            rows.append(Judged(way=way))
        else:
            add(way, made, f"peer{number}")
    return {
        "calibrated": len(given),
        "judged": len(others),
        "photos": dict(Counter(photo.package for photo in (*calibration, *judge))),
        "cost": found.cost,
        "in_float": [item.tensor for item in found.in_float],
        "boxes": sum(map(len, boxes_of(name, exact))) if name in DETECTORS else None,
        "rows": [asdict(row) for row in rows],
    }


def measure(models: Sequence[str], progress: Progress) -> None:
    """Quantises and judges all models, and stores what was found."""
    progress.step("fetching photos")
    found = photos()
    calibration, judge = split(found)
    path = RESULTS / "accuracy.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    for name in models:
        if name in PREPROCESSING:
            stored[name] = measure_model(name, calibration, judge, progress)
            write_atomic(path, (json.dumps(stored, indent=1) + "\n").encode())


def report() -> str:
    """Tables in Markdown."""
    path = RESULTS / "accuracy.json"
    if not path.exists():
        return ""
    lines = []
    for name, found in json.loads(path.read_text()).items():
        keys = ["top1", "top5"]
        head = ["top-1 the same", "float32's first among five"]
        if name in DETECTORS:
            keys, head = ["f1"], [f"boxes the same, F1 ({found['boxes']} in float32)"]
        lines += [
            f"{name}: calibrated on {found['calibrated']} photos, judged by "
            f"{found['judged']} others. Mixed precision costs {found['cost']:.1%} of the work "
            f"more, for {len(found['in_float'])} tensors in float.",
            "",
            f"| way | SNR dB | {' | '.join(head)} |",
            f"|---|---:|{'---:|' * len(head)}",
        ]
        for row in found["rows"]:
            cells = ["fails", *("-" for _ in keys)]
            if row["snr_db"] is not None:
                cells = [f"{row['snr_db']:.1f}", *(f"{row[key]:.3f}" for key in keys)]
            lines.append(f"| {row['way']} | {' | '.join(cells)} |")
        lines.append("")
    lines += ["| photos of | licence |", "|---|---|"]
    lines += [f"| {item.name} {item.version} | {item.licence} |" for item in PACKAGES]
    return "\n".join(lines)

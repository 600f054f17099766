"""Files that both Python and C++ read, and what both say of them.

What one reader accepts and the other refuses would be a bundle that is made and never installed, or
one that is installed and cannot be opened here. `Readers.compare` finds a text of which they do not
say the same; `mutants` makes such texts.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgepack.base.errors import ConfigError
from edgepack.bundle.manifest import ManifestError, parse_manifest, release_id
from edgepack.bundle.service import Service
from edgepack.postprocess.centernet import CenterNet
from edgepack.postprocess.classes import Classes, Tensors
from edgepack.postprocess.ctc import Ctc
from edgepack.postprocess.embedding import Embedding
from edgepack.postprocess.keypoints import Keypoints
from edgepack.postprocess.masks import Segmentation, TextLines
from edgepack.postprocess.spec import parse_postprocess
from edgepack.postprocess.ssd import Ssd
from edgepack.postprocess.yolo import Yolo
from edgepack.preprocess.image import KINDS, MOST_PIXELS
from edgepack.preprocess.spec import PreprocessSpec
from tests.app_targets import app_probe
from tests.bundles import small_bundle
from tests.device_tool import host_probe
from tests.json_mutants import Document, as_it_is, mutants


@dataclass(frozen=True, kw_only=True)
class Readers:
    """Two readers of one format.

    `documents` are good ones. `native` is the probe that prints a line of JSON for each text,
    `python` says the same, or the message of an error. `names` are what keys are renamed to.
    `own_rules` are parts of messages where Python is the stricter one.
    """

    documents: Callable[[], Sequence[Document]]
    native: Callable[[], Sequence[str | Path]]
    python: Callable[[bytes], Document | str]
    names: Sequence[str]
    finish: Callable[[Document], None] = as_it_is
    own_rules: tuple[str, ...] = ()

    def compare(self, texts: Sequence[bytes]) -> tuple[int, int]:
        """How many both accept, and refuse. Fails for one of which they say different things."""
        stdin = b"".join(b"%d\n%b" % (len(text), text) for text in texts)
        done = subprocess.run(self.native(), input=stdin, capture_output=True, check=True)
        accepted = refused = 0
        for text, line in zip(texts, done.stdout.splitlines(), strict=True):
            native, python = json.loads(line), self.python(text)
            if isinstance(python, dict):
                assert native == python, text.decode()
                accepted += 1
            elif "kind" in native:
                refused += 1
            else:
                assert any(rule in python for rule in self.own_rules), (python, text.decode())
        return accepted, refused

    def compare_mutants(self, count: int, *, seed: int) -> tuple[int, int]:
        """The same for `count` mutants of the good documents."""
        found = mutants(self.documents(), self.names, seed=seed, finish=self.finish)
        return self.compare(list(itertools.islice(found, count)))


# ------------------------------------------------ manifest.json


@functools.cache
def _good_manifests() -> list[Document]:
    """With a service and without, of the first schema, of a static bundle, and of fewer bits."""
    service = Service(
        args=("--watch", "/in", "Käse"), watchdog_s=2.5, memory_mb=200, writable=("/in",)
    )
    with tempfile.TemporaryDirectory() as folder:
        made = [
            json.loads(small_bundle(Path(folder) / name, **changes).manifest.to_bytes())
            for name, changes in (
                ("with", {"service": service, "version": 7}),
                ("without", {}),
                ("static", {"board": "alpine-armv7"}),
            )
        ]
    half = json.loads(json.dumps(made[1]))
    half["model"]["precision"] = "float16"
    half["release"] = release_id(half)
    integers = json.loads(json.dumps(made[1]))
    integers["model"]["precision"] = "int8"
    integers["model"]["quantized"] = {"in_float": 3, "calibration": "ab" * 32, "agreement": 0.875}
    integers["release"] = release_id(integers)
    old = {**made[1], "schema": 1}
    for key in ("version", "health", "service"):
        del old[key]
    old["release"] = release_id(old)
    return [*made, old, half, integers]


def _mend(document: Document) -> None:
    with contextlib.suppress(UnicodeEncodeError):  # half a pair: \ud800
        document["release"] = release_id(document)


def _read_manifest(text: bytes) -> Document | str:
    try:
        manifest = parse_manifest(text)
    except ManifestError as error:
        return error.message
    service = manifest.service
    return {
        "schema": manifest.schema,
        "name": manifest.name,
        "board": manifest.board,
        "release": manifest.release,
        "triple": manifest.compatible.triple,
        "cpu": manifest.compatible.cpu,
        "glibc": manifest.compatible.glibc,
        "hwcaps": list(manifest.compatible.hwcaps),
        "version": manifest.version,
        "tolerance": manifest.tolerance,
        "timeout_s": manifest.health.timeout_s,
        "max_latency_ms": manifest.health.max_latency_ms,
        "max_memory_mb": manifest.health.max_memory_mb,
        "service": service
        and {
            "args": list(service.args),
            "restart": service.restart,
            "watchdog_s": service.watchdog_s,
            "memory_mb": service.memory_mb,
            "user": service.user,
            "writable": list(service.writable),
        },
        "model_sha256": manifest.model.sha256,
        "files": {
            path: [entry.sha256, entry.size, entry.mode == "0755"]
            for path, entry in manifest.files.items()
        },
    }


_MANIFEST_NAMES = (
    *("schema", "name", "release", "health", "service", "version", "size", "sha256", "mode"),
    *("linked", "static", "glibc", "precision", "float16", "float32"),
    *("int8", "quantized", "in_float", "calibration", "agreement"),
    *("a", "", "bin/edgepack-run", "bin", "bin/edgepack-run/x", "user", "manifest.json"),
    "manifest.json.sig",
    *("../x", "a/", "/a", "a//b", ".a", "-a", "a b", "a\\b", "é", "p" * 100, "p" * 101, "\ud800"),
)  # fmt: skip
MANIFESTS = Readers(
    documents=_good_manifests,
    native=lambda: (host_probe(), "manifests"),
    python=_read_manifest,
    names=_MANIFEST_NAMES,
    finish=_mend,
    # It recomputes the id, and knows which letters cannot be printed.
    own_rules=("its content is that of", "empty, too long or not one printable line"),
)


# ------------------------------------------------ preprocess.json


def _good_specs() -> list[Document]:
    """A spec with every kind of value, and one with few."""
    resize = {"mode": "letterbox", "height": 64, "width": 65, "fill": 7}
    common = {"format": "edgepack-preprocess", "version": 1, "input": "x", "layout": "NCHW"}
    numbers = {"scale": 0.5, "mean": [0.1, 0, 2], "std": [1, 2.5, 3e-7]}
    return [
        {
            **common,
            **numbers,
            "color": "rgb",
            "resize": resize,
            "interpolation": "area",
            "crop": {"height": 64, "width": 63, "centre": "torchvision"},
            "dtype": "float32",
            "decode": "scaled",
            "accept": ["alpha", "16bit"],
            "max_pixels": 1 << 20,
        },
        {
            **common,
            "color": "gray",
            "resize": {"mode": "shortest", "size": 1},
            "interpolation": "pil-bicubic",
            "crop": None,
            "dtype": "uint8",
            "accept": [],
            "max_pixels": None,
        },
        {
            **common,
            "color": "gray",
            "resize": {"mode": "exact", "height": 16384, "width": 1},
            "crop": None,
            "interpolation": "linear",
            "dtype": "float32",
            "accept": ["gray"],
            "scale": -1,
            "mean": [0],
            "std": [1],
        },
        {
            **common,
            **numbers,
            "color": "bgr",
            "resize": None,
            "crop": None,
            "interpolation": "tf-bilinear",
            "dtype": "int8",
            "quantization": {"scale": 0.0078125, "zero_point": -128},
            "accept": [],
        },
    ]


def _read_spec(text: bytes) -> Document | str:
    try:
        spec = PreprocessSpec.from_json(text)
    except ConfigError as error:
        return error.message
    resize = spec.resize
    quantization = spec.quantization
    accept = {*spec.accept, "gray"} if spec.color == "gray" else {*spec.accept}
    return {
        "input": spec.input,
        "scaled": spec.decode == "scaled",
        "color": spec.color,
        "resize": resize
        and {
            "mode": resize.mode,
            "size": [resize.height, resize.width],
            "fill": resize.fill if resize.mode == "letterbox" else 0,
        },
        "interpolation": spec.interpolation,
        "crop": spec.crop and [*spec.crop, spec.crop_centre],
        "layout": spec.layout,
        "normalise": [spec.scale, *spec.mean, *spec.std] if spec.normalises else None,
        "dtype": spec.dtype,
        "quantization": quantization and [float(np.float32(quantization[0])), quantization[1]],
        "accept": [kind in accept for kind in KINDS],
        "max_pixels": spec.max_pixels or MOST_PIXELS,
    }


SPECS = Readers(
    documents=_good_specs,
    native=lambda: (app_probe(), "preprocess"),
    python=_read_spec,
    names=(
        *("version", "input", "color", "resize", "interpolation", "crop", "layout", "dtype"),
        *("accept", "max_pixels", "scale", "mean", "std", "mode", "size", "height", "width"),
        *("fill", "centre", "quantization", "zero_point", "decode", "", "a"),
    ),
)


# ------------------------------------------------ postprocess.json


def _good_postprocesses() -> list[Document]:
    """One of each kind, and of each key."""
    size = (64, 96)
    specs = (
        Classes(outputs=("a",), scores="sigmoid", top=3, score=0.5),
        Classes(outputs=("b",)),
        Tensors(outputs=("a", "b"), count=7),
        Yolo(outputs=("a", "b"), size=size, head="v5", anchors=(1.0, 2.5), units="relative"),
        Yolo(outputs=("a",), size=size, score=0.5, iou=1.0, points=17, class_aware=False),
        CenterNet(outputs=("a", "b", "c"), size=size, head="centerface", scores="sigmoid"),
        Ssd(
            outputs=("a", "b"),
            size=size,
            anchors=(0.1, 0.2, 0.5, 0.25),
            counts=(1, 1),
            maps=(2, 3, 1, 1),
            order="yxhw",
            sizes="linear",
            background="last",
        ),
        Ssd(
            outputs=("a", "b"),
            size=size,
            anchors=(9.0, 8.5),
            counts=(1,),
            strides=(16,),
            units="pixels",
            scores="raw",
            variances=(1.0, 0.5),
        ),
        Ssd(outputs=("a", "b", "c"), size=size, scores="sigmoid", background="none"),
        Keypoints(outputs=("a",), size=size, scores="sigmoid", score=0.75, shift=0.0, centre=1.0),
        Segmentation(outputs=("a",), size=size, score=0.5, background=-1, layout="NHWC"),
        TextLines(outputs=("a",), size=size, unclip=1.5, max_boxes=9),
        Ctc(outputs=("a",), characters=("a", "é", " "), blank="last", scores="softmax"),
        Embedding(
            outputs=("a",),
            score=0.5,
            made_by="0f" * 32,
            people=("Åsa", "Ben"),
            owners=(1, 0),
            vectors=(1.0, -1.0),
        ),
    )
    return [json.loads(spec.to_json()) for spec in specs]


def _read_postprocess(text: bytes) -> Document | str:
    try:
        spec = parse_postprocess(text)
    except ConfigError as error:
        return error.message
    return {
        "kind": spec.kind,
        "outputs": list(spec.outputs),
        "scores": getattr(spec, "scores", "softmax"),
        "top": getattr(spec, "top", 0),
        "least": spec.score if isinstance(spec, Classes) else None,
        "count": getattr(spec, "count", 0),
        "size": list(spec.size or (0, 0)),
        "boxes": [
            getattr(spec, "score", 0) if spec.in_pixels or isinstance(spec, Embedding) else 0,
            getattr(spec, "iou", 0),
            getattr(spec, "max_boxes", 0),
            getattr(spec, "class_aware", True),
        ],
        "head": spec.head if isinstance(spec, Yolo | CenterNet) else "v8",
        "anchors": list(getattr(spec, "anchors", ())),
        "bins": getattr(spec, "bins", 0),
        "relative": getattr(spec, "units", "pixels") == "relative",
        "points": getattr(spec, "points", 0),
        "background": spec.background if isinstance(spec, Segmentation) else 0,
        "lines": [getattr(spec, key, 0) for key in ("threshold", "unclip", "least")],
        "characters": list(getattr(spec, "characters", ())),
        "blank_last": getattr(spec, "blank", "first") == "last",
        **{key: list(getattr(spec, key, ())) for key in ("counts", "maps", "strides", "variances")},
        **{key: list(getattr(spec, key, ())) for key in ("owners", "vectors")},
        "people": len(getattr(spec, "people", ())),
        "y_first": getattr(spec, "order", "xywh") == "yxhw",
        "exp": getattr(spec, "sizes", "exp") == "exp",
        "end": spec.background if isinstance(spec, Ssd) else "none",
        "points_at": [getattr(spec, key, 0) for key in ("shift", "centre")],
        "channels_last": getattr(spec, "layout", "NCHW") == "NHWC",
    }


POSTPROCESSES = Readers(
    documents=_good_postprocesses,
    native=lambda: (app_probe(), "postprocess"),
    python=_read_postprocess,
    names=(
        *("version", "kind", "outputs", "size", "score", "iou", "max_boxes", "class_aware"),
        *("head", "anchors", "bins", "units", "points", "scores", "top", "count", "", "a"),
        *("counts", "maps", "strides", "variances", "order", "sizes", "shift", "centre"),
        *("layout", "background", "threshold", "unclip", "least", "characters", "blank"),
    ),
)

PAIRS = {"manifests": MANIFESTS, "specs": SPECS, "postprocesses": POSTPROCESSES}

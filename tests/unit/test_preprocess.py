from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from onnx.helper import make_node
from onnx.reference import ReferenceEvaluator
from PIL import Image

from edgepack.base.errors import ConfigError
from edgepack.model import TensorInfo
from edgepack.preprocess.image import TooManyPixelsError
from edgepack.preprocess.spec import (
    INTERPOLATIONS,
    ImageSizeError,
    PreprocessMismatchError,
    PreprocessSpec,
    Resize,
    crop_start,
    letterbox_size,
    scale_image,
    shortest_size,
)

IMAGENET = """
color = "rgb"
resize = { mode = "shortest", size = 256 }
crop = { height = 224, width = 224 }
scale = 0.00392156862745098
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
"""


def image(height: int, width: int) -> np.ndarray:
    return np.random.RandomState(7).randint(0, 256, (height, width, 3)).astype(np.uint8)


def spec(toml: str) -> PreprocessSpec:
    return PreprocessSpec.from_table(tomllib.loads(toml), file="edgepack.toml")


# ---------------------------------------------------------------- the table


def test_defaults() -> None:
    assert spec("") == PreprocessSpec(
        input=None,
        color="rgb",
        resize=None,
        interpolation="linear",
        crop=None,
        scale=1.0,
        mean=(0, 0, 0),
        std=(1, 1, 1),
        layout="NCHW",
        dtype="float32",
        accept=(),
    )


def test_every_key() -> None:
    read = spec("""
        input = "image"
        decode = "scaled"
        color = "gray"
        resize = { mode = "letterbox", height = 320, width = 640, fill = 0 }
        interpolation = "pil-bicubic"
        crop = { height = 300, width = 600 }
        scale = 2
        mean = [1]
        std = [3.5]
        layout = "NHWC"
        accept = ["gray", "16bit", "gray"]
        max_pixels = 12_000_000
    """)
    assert read == PreprocessSpec(
        input="image",
        decode="scaled",
        color="gray",
        resize=Resize(mode="letterbox", height=320, width=640, fill=0),
        interpolation="pil-bicubic",
        crop=(300, 600),
        crop_centre="torchvision",
        scale=2.0,
        mean=(1.0,),
        std=(3.5,),
        layout="NHWC",
        accept=("16bit", "gray"),
        max_pixels=12_000_000,
    )


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ('colour = "rgb"', "preprocess.colour: unknown key.*perhaps you meant 'color'"),
        ('color = "rbg"', "preprocess.color: unknown value 'rbg'.*perhaps you meant '(rgb|bgr)'"),
        ('decode = "half"', "preprocess.decode: unknown value 'half'.*known: full, scaled"),
        ('decode = "scaled"', 'preprocess.decode: "scaled" needs a resize'),
        ("color = 3", "preprocess.color: 3 is not a string"),
        ("resize = 256", "preprocess.resize: 256 is not a table"),
        ('resize = { mode = "short", size = 1 }', "resize.mode: unknown value.*'shortest'"),
        ("resize = { size = 256 }", "resize.mode: missing"),
        ('resize = { mode = "shortest" }', "resize.size: missing"),
        ('resize = { mode = "shortest", size = 0 }', "resize.size: 0 is not from 1 to"),
        ('resize = { mode = "shortest", size = 20000 }', "resize.size: 20000 is not from 1 to"),
        ('resize = { mode = "shortest", size = 1.5 }', "resize.size: 1.5 is not a whole number"),
        ('resize = { mode = "exact", height = 4 }', "resize.width: missing"),
        ('resize = { mode = "exact", height = 4, width = 4, size = 4 }', "resize.size: unknown"),
        ('resize = { mode = "exact", height = 4, width = 4, fill = 4 }', "resize.fill: unknown"),
        (
            'resize = { mode = "letterbox", height = 4, width = 4, fill = 256 }',
            "resize.fill: 256 is not from 0 to 255",
        ),
        ('interpolation = "bilinear"', "interpolation: unknown value.*'pil-bilinear'"),
        ('interpolation = "lanczos"', "interpolation: unknown value 'lanczos'.*known:"),
        ("crop = { height = 4 }", "crop.width: missing"),
        ("crop = [4, 4]", "preprocess.crop: .* is not a table"),
        (
            'resize = { mode = "shortest", size = 4 }\ncrop = { height = 5, width = 4 }',
            "preprocess.crop: .*larger than the resized image",
        ),
        ("scale = 0", "preprocess.scale: 0.0 is not"),
        ("scale = nan", "preprocess.scale: nan is not"),
        ("scale = true", "preprocess.scale: True is not a number"),
        ("mean = [1, 2]", "preprocess.mean: .* has 2 values for 3 channels"),
        ("mean = [1, inf, 2]", "preprocess.mean: .* not finite"),
        ('mean = [1, "2", 3]', "preprocess.mean: '2' is not a number"),
        ("std = [1, 0, 1]", "preprocess.std: .* not above 0"),
        ('layout = "nchw"', "preprocess.layout: unknown value"),
        ('dtype = "float16"', "preprocess.dtype: unknown value.*'float32'"),
        ('dtype = "uint8"\nscale = 1', "preprocess.scale: cannot be used with dtype"),
        ('dtype = "int8"', "preprocess.quantization: missing"),
        ("quantization = { scale = 1, zero_point = 0 }", "preprocess.quantization: cannot be used"),
        (
            'dtype = "int8"\nquantization = { scale = 1, zero_point = 200 }',
            "preprocess.quantization.zero_point: 200 is not in the range of int8",
        ),
        (
            'dtype = "int8"\nquantization = { scale = -1, zero_point = 0 }',
            "preprocess.quantization.scale: -1.0 is not from 1e-30",
        ),
        ('accept = ["grey"]', "preprocess.accept: unknown kind 'grey'.*'gray'"),
        ('accept = "gray"', "preprocess.accept: 'gray' is not a list"),
        ("max_pixels = 0", "preprocess.max_pixels: 0 is not from 1 to 1073741824"),
        ("max_pixels = 2_000_000_000", "preprocess.max_pixels: 2000000000 is not from 1"),
        ("max_pixels = 1.5", "preprocess.max_pixels: 1.5 is not a whole number"),
    ],
)
def test_every_mistake_in_the_table_is_named(toml: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spec(toml)
    text = str(caught.value)
    assert text.startswith("edgepack.toml: ")
    assert re.search(says, text, re.DOTALL), text
    assert caught.value.exit_code == 2


def test_a_spec_made_in_code_must_have_a_mean_per_channel() -> None:
    with pytest.raises(ValueError, match="1 values"):
        PreprocessSpec(color="gray")


# ---------------------------------------------------------------- preprocess.json


@pytest.mark.parametrize(
    "toml",
    [
        "",
        IMAGENET,
        'dtype = "uint8"\nlayout = "NHWC"\ncolor = "gray"',
        'resize = { mode = "letterbox", height = 3, width = 5 }\naccept = ["alpha"]',
        'resize = { mode = "exact", height = 3, width = 5 }\ninterpolation = "pil-bilinear"',
        'resize = { mode = "exact", height = 3, width = 5 }\ndecode = "scaled"',
        "max_pixels = 1",
    ],
)
def test_json_round_trip(toml: str) -> None:
    one = PreprocessSpec.from_table({"input": "x", **tomllib.loads(toml)}, file="f")
    text = one.to_json()
    assert PreprocessSpec.from_json(text) == one
    assert PreprocessSpec.from_json(text).to_json() == text


def test_json_is_what_the_runtime_reads() -> None:
    values = json.loads(PreprocessSpec.from_table({"input": "x"}, file="f").to_json())
    assert values == {
        "format": "edgepack-preprocess",
        "version": 1,
        "input": "x",
        "color": "rgb",
        "resize": None,
        "interpolation": "linear",
        "crop": None,
        "layout": "NCHW",
        "dtype": "float32",
        "accept": [],
        "max_pixels": None,
        "scale": 1.0,
        "mean": [0.0, 0.0, 0.0],
        "std": [1.0, 1.0, 1.0],
    }
    bytes_ = json.loads(
        PreprocessSpec.from_table({"input": "x", "dtype": "uint8"}, file="f").to_json()
    )
    assert not {"scale", "mean", "std"} & bytes_.keys()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "format: missing"),
        ('{"format": "other"}', "'other' is not 'edgepack-preprocess'"),
        ('{"format": "edgepack-preprocess", "version": 2}', "version: 2 is not 1"),
        ('{"format": "edgepack-preprocess", "version": 1}', "input: missing"),
    ],
)
def test_bad_json_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        PreprocessSpec.from_json(text)


# ---------------------------------------------------------------- the model's input


def info(name: str, *shape: int, dtype: str = "float32") -> TensorInfo:
    return TensorInfo(name=name, dtype=dtype, shape=shape)


def test_the_only_input_is_found() -> None:
    assert spec(IMAGENET).for_inputs([info("x", 1, 3, 224, 224)]).input == "x"
    # Without resize and crop the photo must have the right size: seen when there is one.
    assert spec("").for_inputs([info("x", 1, 3, 10, 20)]).input == "x"
    # A batch is of several photos.
    assert spec(IMAGENET).for_inputs([info("x", 2, 3, 224, 224)]).input == "x"


def test_one_of_several_inputs_must_be_named() -> None:
    inputs = [info("image", 1, 3, 224, 224), info("size", 1, 2)]
    with pytest.raises(PreprocessMismatchError, match="2 inputs: image, size"):
        spec(IMAGENET).for_inputs(inputs)
    assert spec('input = "image"' + IMAGENET).for_inputs(inputs).input == "image"
    with pytest.raises(PreprocessMismatchError, match="perhaps you meant 'image'"):
        spec('input = "imag"' + IMAGENET).for_inputs(inputs)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (info("x", 1, 3, 299, 299), r"makes NCHW \(1, 3, 224, 224\)"),
        (info("x", 1, 224, 224, 3), r"'x' is \(1, 224, 224, 3\)"),
        (info("x", 10), r"\(10,\)"),
        (info("x", 1, 3, 224, 224, dtype="uint8"), 'dtype = "uint8"'),
    ],
)
def test_an_input_of_another_kind_is_refused(wanted: TensorInfo, says: str) -> None:
    with pytest.raises(PreprocessMismatchError, match=says):
        spec(IMAGENET).for_inputs([wanted])


def test_the_largest_photo_is_what_the_memory_holds() -> None:
    assert spec("").for_memory(12 * 10**6).max_pixels == 10**6
    assert spec("").for_memory(1).max_pixels == 1
    assert spec("").for_memory(1 << 40).max_pixels == 1 << 30
    assert spec("max_pixels = 5").for_memory(12 * 10**6).max_pixels == 5


# ---------------------------------------------------------------- pixels


@pytest.mark.parametrize(
    ("size", "shortest", "result"),
    [
        ((300, 451), 256, (256, 384)),  # 384.85: torchvision rounds down
        ((451, 300), 256, (384, 256)),
        ((100, 100), 7, (7, 7)),
        ((3, 1000), 256, (256, 85333)),
    ],
)
def test_shortest_size(size: tuple[int, int], shortest: int, result: tuple[int, int]) -> None:
    assert shortest_size(*size, shortest) == result


@pytest.mark.parametrize(
    ("size", "into", "result"),
    [
        ((100, 200), (640, 640), (320, 640)),
        ((200, 100), (640, 640), (640, 320)),
        ((101, 200), (10, 10), (5, 10)),  # 5.05
        ((11, 20), (10, 10), (6, 10)),  # 5.5 rounds up
        ((1, 1000), (10, 10), (1, 10)),  # at least one line
        ((30, 40), (30, 40), (30, 40)),
    ],
)
def test_letterbox_size(
    size: tuple[int, int], into: tuple[int, int], result: tuple[int, int]
) -> None:
    assert letterbox_size(*size, *into) == result


def test_letterbox_is_centred_and_filled() -> None:
    made = PreprocessSpec(
        color="bgr", resize=Resize(mode="letterbox", height=9, width=8, fill=7)
    ).resized(image(4, 8))
    assert made.shape == (9, 8, 3)
    np.testing.assert_array_equal(made[2:6], image(4, 8))  # 5 lines over: 2 above, 3 below
    assert (made[:2] == 7).all()
    assert (made[6:] == 7).all()


def test_crop_is_centred_with_the_odd_pixel_right_and_below() -> None:
    made = PreprocessSpec(color="bgr", crop=(2, 3)).resized(image(5, 6))
    np.testing.assert_array_equal(made, image(5, 6)[1:3, 1:4])
    assert made.flags.c_contiguous


def test_the_named_crops_begin_where_their_makers_say() -> None:
    for size in range(1, 700):
        for crop in {*range(1, size, 7), size}:
            # torchvision 0.20, transforms/functional.py, center_crop; timm's CenterCropOrPad, too.
            assert crop_start(size, crop, "torchvision") == int(round((size - crop) / 2.0))  # noqa: RUF046
            assert crop_start(size, crop, "floor") == (size - crop) // 2
    spec = PreprocessSpec(color="bgr", crop=(2, 3), crop_centre="torchvision")
    np.testing.assert_array_equal(spec.resized(image(5, 6)), image(5, 6)[2:4, 2:5])


@pytest.mark.parametrize(
    ("interpolation", "named", "centre"),
    [
        ("pil-bilinear", None, "torchvision"),
        ("pil-bicubic", None, "torchvision"),
        ("linear", None, "floor"),
        ("pil-bilinear", "floor", "floor"),
        ("linear", "torchvision", "torchvision"),
    ],
)
def test_pillows_filters_come_with_torchvisions_crop(
    interpolation: str, named: str | None, centre: str
) -> None:
    crop = {"height": 4, "width": 4} | ({"centre": named} if named else {})
    table = {"input": "x", "interpolation": interpolation, "crop": crop}
    spec = PreprocessSpec.from_table(table, file="f")
    assert spec.crop_centre == centre
    assert PreprocessSpec.from_json(spec.to_json()) == spec


def test_a_crop_of_an_old_bundle_stays_where_it_was() -> None:
    table = {"input": "x", "interpolation": "pil-bilinear", "crop": {"height": 4, "width": 4}}
    values = json.loads(PreprocessSpec.from_table(table, file="f").to_json())
    del values["crop"]["centre"]
    assert PreprocessSpec.from_json(json.dumps(values)).crop_centre == "floor"


def test_an_image_smaller_than_the_crop_is_refused() -> None:
    with pytest.raises(ImageSizeError, match="6 x 5 pixels is smaller than the crop of 7 x 2"):
        PreprocessSpec(crop=(2, 7)).resized(image(5, 6))


def test_a_resize_without_end_is_refused() -> None:
    with pytest.raises(ImageSizeError, match="30000 x 1 pixels"):
        PreprocessSpec(resize=Resize(mode="shortest", height=64, width=64)).resized(image(1, 30000))


def test_a_photo_is_not_made_larger_than_it_may_be() -> None:
    line = np.zeros((1000, 1, 3), np.uint8)
    box = 'resize = { mode = "exact", height = 100, width = 100 }\n'
    assert spec(box + "max_pixels = 1").resized(line).shape == (100, 100, 3)
    # Between its two passes Pillow's filter makes 1000 rows of 100.
    pillows = box + 'interpolation = "pil-bilinear"\n'
    assert spec(pillows + "max_pixels = 100_000").resized(line).shape == (100, 100, 3)
    for toml in (pillows, 'resize = { mode = "shortest", size = 8 }\n'):
        with pytest.raises(ImageSizeError, match="1 x 1000 pixels would be resized to"):
            spec(toml + "max_pixels = 50_000").resized(line)


def test_colors() -> None:
    bgr = image(4, 5)
    np.testing.assert_array_equal(PreprocessSpec(color="bgr").resized(bgr), bgr)
    np.testing.assert_array_equal(PreprocessSpec(color="rgb").resized(bgr), bgr[:, :, ::-1])
    gray = PreprocessSpec(color="gray", mean=(0,), std=(1,)).resized(bgr)
    assert gray.shape == (4, 5, 1)
    weights = np.array([0.114, 0.587, 0.299])  # ITU-R BT.601
    assert np.abs(gray[:, :, 0] - bgr @ weights).max() <= 1


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("color", ["rgb", "gray"])
def test_every_filter_makes_the_size_asked_for(interpolation: str, color: str) -> None:
    channels = 1 if color == "gray" else 3
    made = PreprocessSpec(
        color=color,
        resize=Resize(mode="exact", height=11, width=23),
        interpolation=interpolation,
        mean=(0,) * channels,
        std=(1,) * channels,
    ).resized(image(40, 31))
    assert made.shape == (11, 23, channels)
    assert made.dtype == (np.float32 if interpolation == "tf-bilinear" else np.uint8)


@pytest.mark.parametrize(
    ("name", "filter_"),
    [
        ("pil-bilinear", Image.Resampling.BILINEAR),
        ("pil-bicubic", Image.Resampling.BICUBIC),
    ],
)
def test_pillow_filters_are_pillows_and_not_opencvs(name: str, filter_: Image.Resampling) -> None:
    photo = image(64, 97)
    made = scale_image(photo, 20, 31, name)
    np.testing.assert_array_equal(made, Image.fromarray(photo).resize((31, 20), filter_))
    for opencv in ("linear", "area", "cubic"):
        assert np.abs(made.astype(int) - scale_image(photo, 20, 31, opencv)).max() > 20
    gray = np.ascontiguousarray(photo[:, :, 1])
    np.testing.assert_array_equal(scale_image(gray, 20, 31, name), made[:, :, 1])


@pytest.mark.parametrize(
    ("name", "filter_"),
    [
        ("pil-bilinear", Image.Resampling.BILINEAR),
        ("pil-bicubic", Image.Resampling.BICUBIC),
    ],
)
def test_pillow_filters_are_pillows_at_any_size(name: str, filter_: Image.Resampling) -> None:
    rng = np.random.default_rng(11)
    for case in range(60):
        height, width, to_height, to_width = (int(n) for n in 2 ** rng.uniform(0, 9, 4))
        photo = rng.integers(0, 256, (height, width, 3)[: 3 - case % 2], dtype=np.uint8)
        if case % 3 == 0:  # sums far outside of 0..255
            photo = np.where(photo < 128, 0, 255).astype(np.uint8)
        across = Image.fromarray(photo).resize((to_width, height), filter_)
        np.testing.assert_array_equal(
            scale_image(photo, to_height, to_width, name),
            across.resize((to_width, to_height), filter_),
            err_msg=f"{height} x {width} to {to_height} x {to_width}",
        )


def test_pillow_filters_scale_the_width_first() -> None:
    tall = image(640, 60)  # the newest Pillow would begin with its height
    first = scale_image(tall, 640, 40, "pil-bicubic")
    np.testing.assert_array_equal(
        scale_image(tall, 70, 40, "pil-bicubic"), scale_image(first, 70, 40, "pil-bicubic")
    )


def test_ipp_is_off_while_scaling_and_back_on_after() -> None:
    before = cv2.ipp.useIPP()
    photo = image(67, 113)
    cv2.ipp.setUseIPP(False)
    want = cv2.resize(photo, (50, 40), interpolation=cv2.INTER_CUBIC)
    cv2.ipp.setUseIPP(before)
    np.testing.assert_array_equal(scale_image(photo, 40, 50, "cubic"), want)
    assert cv2.ipp.useIPP() == before


# ---------------------------------------------------------------- the tensor


def test_tensor_values_and_layout() -> None:
    one = spec(IMAGENET)
    pixels = image(224, 224)
    tensor = one.tensor(pixels)
    assert tensor.shape == (1, 3, 224, 224)
    assert tensor.dtype == np.float32
    assert tensor.flags.c_contiguous
    # The definition, in double precision.
    want = (pixels * (1 / 255) - np.array(one.mean)) / np.array(one.std)
    assert np.abs(tensor[0] - want.transpose(2, 0, 1)).max() <= 1e-6
    last = spec(IMAGENET + 'layout = "NHWC"').tensor(pixels)
    assert last.shape == (1, 224, 224, 3)
    np.testing.assert_array_equal(last[0], tensor[0].transpose(1, 2, 0))


def test_uint8_tensor_is_the_pixels() -> None:
    pixels = image(4, 5)
    tensor = spec('dtype = "uint8"').tensor(pixels)
    assert tensor.dtype == np.uint8
    np.testing.assert_array_equal(tensor[0], pixels.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("dtype", "zero_point"), [("uint8", 128), ("uint8", 0), ("int8", -128), ("int8", 3)]
)
def test_quantised_tensors_are_onnxs(dtype: str, zero_point: int) -> None:
    """As ONNX's QuantizeLinear has it of the float32 tensor."""
    pixels = image(40, 41)
    scale = 0.0186584610
    quantised = (
        f'dtype = "{dtype}"\nquantization = {{ scale = {scale}, zero_point = {zero_point} }}'
    )
    values = spec(IMAGENET).tensor(pixels)
    quantise = ReferenceEvaluator(
        make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"]),
    )
    (want,) = quantise.run(
        None, {"x": values, "scale": np.float32(scale), "zero": np.array(zero_point, dtype)}
    )
    made = spec(IMAGENET + quantised).tensor(pixels)
    np.testing.assert_array_equal(made, want, strict=True)
    assert len(np.unique(made)) > 100


def test_tensorflows_filter() -> None:
    """OpenCV's on float32, which has the same geometry; and it is not rounded."""
    pixels = image(64, 97)
    for height, width in ((20, 31), (64, 97), (131, 200), (1, 1)):
        made = scale_image(pixels, height, width, "tf-bilinear")
        assert made.dtype == np.float32
        want = cv2.resize(
            pixels.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR
        )
        np.testing.assert_allclose(made, want, atol=0.01)
    assert (made != np.round(made)).any()
    # Five pixels to three: the first lies at 5 / 3 / 2 - 0.5 of them.
    line = np.array([[0, 10, 20, 30, 40]], np.uint8)
    first = (5 / 3 / 2 - 0.5) * 10
    made = scale_image(line, 1, 3, "tf-bilinear")
    np.testing.assert_allclose(made, [[first, 20, 40 - first]], rtol=1e-5)
    whole = spec('dtype = "uint8"').tensor(np.full((2, 2, 3), 7.9, np.float32))
    assert (whole == 7).all()  # as tf.cast


def test_load_decodes_resizes_and_normalises(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    cv2.imwrite(str(path), image(300, 451))
    one = spec(IMAGENET)
    np.testing.assert_array_equal(one.load(path), one.tensor(one.load_resized(path)))
    assert one.load(path).shape == (1, 3, 224, 224)


@pytest.mark.parametrize(
    ("resize", "size", "reduction"),
    [
        ('mode = "shortest", size = 256', (3024, 4032), 8),
        ('mode = "shortest", size = 256', (4032, 3024), 8),
        ('mode = "shortest", size = 256', (2041, 4081), 8),  # 256 x 511, as 256 x 511.87 becomes
        ('mode = "shortest", size = 256', (2040, 4081), 4),
        ('mode = "shortest", size = 256', (512, 512), 2),
        ('mode = "shortest", size = 256', (510, 510), 1),
        ('mode = "shortest", size = 100', (1001, 1001), 8),
        ('mode = "shortest", size = 100', (1001, 1003), 2),  # by 8 and by 4 it would be square
        ('mode = "shortest", size = 100', (0, 1000), 1),
        ('mode = "letterbox", height = 640, width = 640', (3024, 4032), 4),
        ('mode = "exact", height = 48, width = 320', (640, 2560), 2),  # by 8 if it is not turned
    ],
)
def test_how_far_a_photo_is_reduced(resize: str, size: tuple[int, int], reduction: int) -> None:
    table = f"resize = {{ {resize} }}"
    assert spec(table).reduction(*size) == 1
    assert spec(table + '\ndecode = "scaled"').reduction(*size) == reduction


def test_a_reduced_photo_becomes_what_all_of_it_would(tmp_path: Path) -> None:
    # A ramp, so that where a pixel came from can be told. 16 * 263 / 131 = 32.1; of the reduced
    # photo's own size, 33 x 17, it would be 31.
    across, down = np.meshgrid(np.arange(263) * 0.9, np.arange(131) * 1.8)
    pixels: Any = np.stack([across, down, across], axis=2).astype(np.uint8)
    path = tmp_path / "photo.jpg"
    cv2.imwrite(str(path), pixels, [cv2.IMWRITE_JPEG_QUALITY, 100])
    full = spec('resize = { mode = "shortest", size = 16 }\ninterpolation = "area"')
    reduced = spec(
        'resize = { mode = "shortest", size = 16 }\ninterpolation = "area"\ndecode = "scaled"'
    )
    assert reduced.reduction(131, 263) == 8
    want, made = full.load_resized(path), reduced.load_resized(path)
    assert made.shape == want.shape == (16, 32, 3)
    assert np.abs(made.astype(int) - want).max() <= 11  # 5 rows: the last of 17 stands for 3


def test_a_photo_of_too_many_pixels_is_refused(tmp_path: Path) -> None:
    Image.new("RGB", (40, 30)).save(tmp_path / "photo.png")
    assert spec("max_pixels = 1200").load(tmp_path / "photo.png").shape == (1, 3, 30, 40)
    with pytest.raises(TooManyPixelsError, match="40 x 30 pixels is larger than the 1199 pixels"):
        spec("max_pixels = 1199").load(tmp_path / "photo.png")


def test_a_gray_photo_suits_a_gray_model(tmp_path: Path) -> None:
    pixels: Any = image(10, 12)[:, :, 0]
    cv2.imwrite(str(tmp_path / "a.png"), pixels)
    made = PreprocessSpec(color="gray", mean=(0,), std=(1,)).load_resized(tmp_path / "a.png")
    np.testing.assert_array_equal(made[:, :, 0], pixels)

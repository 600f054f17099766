from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from edgepack.base.errors import ImageError
from edgepack.preprocess.image import (
    AlphaImageError,
    AnimatedImageError,
    GrayImageError,
    ImageNotFoundError,
    NotAnImageError,
    SixteenBitImageError,
    TooManyPixelsError,
    decode_image,
    load_image,
)

COLOR = np.random.RandomState(0).randint(0, 256, (20, 30, 3)).astype(np.uint8)
GRAY = COLOR[:, :, 0]
ALPHA = np.dstack([COLOR, GRAY])
DEEP = COLOR.astype(np.uint16) * 257


def opencv(pixels: np.ndarray) -> Callable[[Path], object]:
    return lambda path: cv2.imwrite(str(path), pixels)


def pillow(mode: str, **options: object) -> Callable[[Path], object]:
    """A picture of COLOR (as RGB) that Pillow converts to `mode` and saves."""
    return lambda path: Image.fromarray(COLOR).convert(mode).save(path, **options)


def gray_alpha_deep(path: Path) -> None:
    assert cv2.imwrite(str(path), np.dstack([DEEP, DEEP[:, :, :1]]))


def test_color_png_is_its_pixels_as_bgr(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), COLOR)
    image = load_image(tmp_path / "a.png")
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, COLOR)


@pytest.mark.parametrize(
    ("name", "write", "error", "kind"),
    [
        ("gray.png", opencv(GRAY), GrayImageError, "gray"),
        ("gray.jpg", opencv(GRAY), GrayImageError, "gray"),
        ("bits.png", pillow("1"), GrayImageError, "gray"),
        ("alpha.png", opencv(ALPHA), AlphaImageError, "alpha"),
        ("palette.png", pillow("P", transparency=3), AlphaImageError, "alpha"),
        ("key.png", pillow("RGB", transparency=(1, 2, 3)), AlphaImageError, "alpha"),
        ("deep.png", opencv(DEEP), SixteenBitImageError, "16bit"),
    ],
)
def test_other_kinds_are_refused_unless_accepted(
    tmp_path: Path,
    name: str,
    write: Callable[[Path], object],
    error: type[ImageError],
    kind: str,
) -> None:
    path = tmp_path / name
    write(path)
    with pytest.raises(error, match=name) as caught:
        load_image(path)
    assert caught.value.exit_code == 2
    assert f'"{kind}"' in (caught.value.hint or "")
    others = {"gray", "alpha", "16bit"} - {kind}
    with pytest.raises(error):
        load_image(path, accept=others)
    assert load_image(path, accept={kind}).shape == (20, 30, 3)


def test_a_palette_without_transparency_is_color(tmp_path: Path) -> None:
    pillow("P")(tmp_path / "p.png")
    assert load_image(tmp_path / "p.png").shape == (20, 30, 3)


def test_several_kinds_are_named_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "all.png"
    Image.fromarray(COLOR).convert("LA").save(path)
    with pytest.raises(AlphaImageError):
        load_image(path)
    with pytest.raises(GrayImageError):
        load_image(path, accept={"alpha"})
    gray_alpha_deep(path)
    with pytest.raises(SixteenBitImageError):
        load_image(path)
    with pytest.raises(AlphaImageError):
        load_image(path, accept={"16bit"})
    np.testing.assert_array_equal(load_image(path, accept={"16bit", "alpha"}), COLOR)


def test_what_accepting_does_to_the_pixels(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    cv2.imwrite(str(path), GRAY)
    np.testing.assert_array_equal(load_image(path, accept=("gray",)), np.dstack([GRAY, GRAY, GRAY]))
    cv2.imwrite(str(path), ALPHA)  # dropped, not blended
    np.testing.assert_array_equal(load_image(path, accept=("alpha",)), COLOR)
    cv2.imwrite(str(path), (COLOR.astype(np.uint16) << 8) | 0xFF)  # upper byte, not rounded
    np.testing.assert_array_equal(load_image(path, accept=("16bit",)), COLOR)


@pytest.mark.parametrize("turn", [1, 6])
@pytest.mark.parametrize("divisor", [1, 2, 4, 8])
def test_a_jpeg_is_reduced_by_libjpeg(tmp_path: Path, divisor: int, turn: int) -> None:
    """As Pillow's draft mode does, which has a libjpeg of its own."""
    exif = Image.Exif()
    exif[0x0112] = turn
    photo = tmp_path / "photo.jpg"
    Image.fromarray(np.tile(COLOR, (4, 3, 1))).save(photo, exif=exif, quality=90)  # 80 x 90
    with Image.open(photo) as opened:
        opened.draft("RGB", (90 // divisor, 80 // divisor))
        want = np.asarray(ImageOps.exif_transpose(opened))[:, :, ::-1]
    asked = []

    def reduction(height: int, width: int) -> int:
        asked.append((height, width))
        return divisor

    made, size = decode_image(photo, reduction=reduction)
    np.testing.assert_array_equal(made, want)
    assert max(made.shape[:2]) == -(-90 // divisor)
    assert size == load_image(photo).shape[:2] == ((90, 80) if turn == 6 else (80, 90))
    assert asked == [(80, 90)]  # as the file has it


def test_a_png_is_not_reduced(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), COLOR)
    made, size = decode_image(tmp_path / "a.png", reduction=lambda *_: 8)
    np.testing.assert_array_equal(made, COLOR)
    assert size == COLOR.shape[:2]


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 90 degrees clockwise
    picture = Image.fromarray(np.repeat(np.repeat(COLOR, 8, 0), 8, 1))
    picture.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    picture.save(tmp_path / "plain.jpg", quality=95)
    turned, plain = load_image(tmp_path / "turned.jpg"), load_image(tmp_path / "plain.jpg")
    np.testing.assert_array_equal(turned, np.rot90(plain, -1))


@pytest.mark.parametrize(
    ("name", "options"),
    [("a.png", {}), ("a.jpg", {}), ("a.jpg", {"progressive": True}), ("a.jpg", {"quality": 100})],
)
def test_a_large_image_is_refused_by_its_header(
    tmp_path: Path, name: str, options: dict[str, object]
) -> None:
    path = tmp_path / name
    Image.new("RGB", (6000, 4000)).save(path, **options)
    # What is missing cannot have been decoded.
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(TooManyPixelsError, match="6000 x 4000 pixels is larger than the 23999999"):
        load_image(path, max_pixels=23_999_999)
    with pytest.raises(NotAnImageError, match="damaged"):
        load_image(path, max_pixels=24_000_000)


@pytest.mark.parametrize("name", [b"tEXt", b"IDAT"])
def test_a_chunk_longer_than_its_file_takes_no_memory(tmp_path: Path, name: bytes) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), COLOR)
    data = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(data[:33] + b"\x5f\xff\xff\xff" + name + data[33:])
    with pytest.raises(NotAnImageError, match="image is damaged: "):
        load_image(tmp_path / "a.png")


def test_an_animation_is_refused(tmp_path: Path) -> None:
    pictures = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    pictures[0].save(tmp_path / "a.png", save_all=True, append_images=pictures[1:])
    with pytest.raises(AnimatedImageError, match="image is an animation: "):
        load_image(tmp_path / "a.png")


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
@pytest.mark.parametrize("part", [0.01, 0.5, 0.98])
def test_a_truncated_image_is_refused(tmp_path: Path, suffix: str, part: float) -> None:
    cv2.imwrite(str(tmp_path / f"whole{suffix}"), np.repeat(COLOR, 20, 0))
    data = (tmp_path / f"whole{suffix}").read_bytes()
    path = tmp_path / f"cut{suffix}"
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(NotAnImageError, match="cut"):
        load_image(path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not an image\n",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xe0\x00\x00" * 9,
        b"\xff\xd8\xff\x01\x00\x04\xff\xc0" + b"\x00\x08" * 9,
    ],
    ids=["empty", "text", "jpeg-start", "png-start", "zero-length-segments", "no-length"],
)
def test_what_is_no_image_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(data)
    with pytest.raises(NotAnImageError, match=r"photo\.jpg"):
        load_image(path)


@pytest.mark.parametrize("suffix", ["avif", "bmp", "gif", "tiff", "webp"])
def test_other_formats_are_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "photo.jpg"
    Image.fromarray(COLOR).save(path, suffix)
    with pytest.raises(NotAnImageError) as refused:
        load_image(path)
    assert (refused.value.hint or "").lower().startswith(f"it is {suffix}: convert it to png")


def test_a_phones_photo_is_named(tmp_path: Path) -> None:
    """Its first box, as ISO/IEC 23008-12 has it; nothing here writes such a file."""
    path = tmp_path / "photo.heic"
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    with pytest.raises(NotAnImageError) as refused:
        load_image(path)
    assert "it is HEIC" in (refused.value.hint or "")


def test_a_missing_or_unreadable_file_has_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ImageNotFoundError, match=r"none\.png"):
        load_image(tmp_path / "none.png")
    with pytest.raises(ImageNotFoundError, match="directory"):
        load_image(tmp_path)

"""Preprocessing in Python against the runtime's, on this machine and on both ARM triples.

Resized image and tensor must be equal to the byte: for every filter, way to resize and
colour, over photos and images of odd sizes. Both sides must refuse the same images.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import cv2
import numpy as np
import pytest
from PIL import Image

from edgepack.base.errors import ImageError
from edgepack.boards import get_board
from edgepack.native.app import build_runtime
from edgepack.native.toolchain import select
from edgepack.preprocess.image import TooManyPixelsError
from edgepack.preprocess.spec import (
    CENTRES,
    COLORS,
    INTERPOLATIONS,
    LAYOUTS,
    PreprocessSpec,
    Resize,
)
from tests.example import load_build
from tests.support import require_tool

T = TypeVar("T")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# A board of each triple, the toolchain, and what runs its programs here.
RUNTIMES = {
    "local": ("local", None, None),
    "armhf-zig": ("rasp3b", "zig", "qemu-arm-static"),
    "aarch64-zig": ("rasp3b-64", "zig", "qemu-aarch64-static"),
}
RESIZES = {
    "shortest": (Resize(mode="shortest", height=96, width=96), (80, 88)),
    "exact": (Resize(mode="exact", height=61, width=83), None),
    "half": (Resize(mode="exact", height=150, width=226), None),  # a fast way of its own for area
    "larger": (Resize(mode="exact", height=331, width=517), (224, 224)),
    "letterbox": (Resize(mode="letterbox", height=128, width=160), None),
}


@dataclass(frozen=True)
class Runtime:
    """edgepack-run, how to start it here, and a folder to play the bundle."""

    command: tuple[str, ...]
    folder: Path
    every: int

    def some(self, cases: Iterable[T], start: int) -> list[T]:
        """Each `every`th of them, where that depends on `start`: emulators are slow."""
        return list(cases)[start % self.every :: self.every]

    def preprocess(self, spec: PreprocessSpec, photo: Path) -> subprocess.CompletedProcess[str]:
        """Run it on `photo`."""
        (self.folder / "manifest.json").write_text("{}")
        (self.folder / "preprocess.json").write_text(spec.to_json())
        self.resized.unlink(missing_ok=True)
        self.tensor.unlink(missing_ok=True)
        words = ["--bundle", str(self.folder), "--image", str(photo), "--preprocess-only"]
        words += ["--save-resized", str(self.resized), "--save-tensor", str(self.tensor)]
        return subprocess.run(
            [*self.command, *words], capture_output=True, text=True, timeout=600, check=False
        )

    @property
    def resized(self) -> Path:
        return self.folder / "resized.npy"

    @property
    def tensor(self) -> Path:
        return self.folder / "tensor.npy"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("local", 1), id="local"),
        *(pytest.param((name, 3), id=name) for name in ("armhf-zig", "aarch64-zig")),
        *(
            pytest.param((name, 1), id=f"{name}-all", marks=pytest.mark.slow)
            for name in ("armhf-zig", "aarch64-zig")
        ),
    ],
)
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    kind, every = request.param
    name, toolchain, emulator = RUNTIMES[kind]
    board = get_board(name)
    start = (require_tool(emulator), "-L", f"/usr/{board.triple}") if emulator else ()
    build = build_runtime(board, select(board, toolchain).toolchain)
    return Runtime(
        command=(*start, str(build.app)), folder=tmp_path_factory.mktemp(name), every=every
    )


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Real photos as PNG and (turned by EXIF) as JPEG, and noise of odd sizes."""
    folder = tmp_path_factory.mktemp("photos")
    sources = load_build().fetch()
    chelsea = cv2.imread(str(sources / "chelsea.png"))
    assert chelsea is not None
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(chelsea[:, :, ::-1]).save(folder / "turned.jpg", exif=exif, quality=80)
    noise = np.random.RandomState(3).randint(0, 256, (101, 67, 3)).astype(np.uint8)
    cv2.imwrite(str(folder / "noise.png"), noise)
    cv2.imwrite(str(folder / "long.png"), np.tile(noise, (1, 7, 1))[:41])
    cv2.imwrite(str(folder / "tiny.png"), noise[:5, :7])
    made = [folder / name for name in ("turned.jpg", "noise.png", "long.png", "tiny.png")]
    return [sources / "chelsea.png", sources / "coffee.png", *made]


def make_spec(
    color: str, *, resize: Resize | None = None, crop: tuple[int, int] | None = None
) -> PreprocessSpec:
    channels = 1 if color == "gray" else 3
    return PreprocessSpec(
        input="x",
        color=color,
        resize=resize,
        crop=crop,
        scale=1 / 255,
        mean=MEAN[:channels],
        std=STD[:channels],
    )


def check(runtime: Runtime, spec: PreprocessSpec, photo: Path) -> None:
    done = runtime.preprocess(spec, photo)
    assert done.returncode == 0, done.stderr
    resized, tensor = np.load(runtime.resized), np.load(runtime.tensor)
    want = spec.load_resized(photo)
    np.testing.assert_array_equal(resized, want, f"{photo.name}: {spec}", strict=True)
    np.testing.assert_array_equal(
        tensor.view(np.uint8), spec.tensor(want).view(np.uint8), f"{photo.name}: {spec}"
    )


def check_refused(runtime: Runtime, spec: PreprocessSpec, photo: Path, error: ImageError) -> None:
    done = runtime.preprocess(spec, photo)
    assert done.returncode == error.exit_code == 2, f"{photo.name}: {spec}"
    # libpng and OpenCV may have said something before.
    assert f"error: {error.message}" in done.stderr.splitlines()
    assert not runtime.resized.exists()


@pytest.mark.parametrize("way", RESIZES)
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_pixels_and_tensors_are_equal(
    runtime: Runtime, photos: list[Path], interpolation: str, way: str
) -> None:
    resize, crop = RESIZES[way]
    # Each photo in one of the colours and layouts; over all ways, every pair of both.
    start = list(RESIZES).index(way)
    kinds = itertools.islice(itertools.cycle(itertools.product(COLORS, LAYOUTS)), start, None)
    cases = runtime.some(
        zip(photos, kinds, strict=False), start + INTERPOLATIONS.index(interpolation)
    )
    for photo, (color, layout) in cases:
        spec = make_spec(color, resize=resize, crop=crop)
        check(runtime, replace(spec, interpolation=interpolation, layout=layout), photo)


def test_pixels_without_resize_are_equal(runtime: Runtime, photos: list[Path]) -> None:
    for photo in photos:
        check(runtime, make_spec("rgb"), photo)
        for centre in CENTRES:
            spec = make_spec("gray", crop=(5, 3))
            check(runtime, replace(spec, crop_centre=centre), photo)
        for layout in LAYOUTS:
            check(runtime, PreprocessSpec(input="x", dtype="uint8", layout=layout), photo)


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A photo as cameras and programs write it: subsampled colours or not, turned, progressive;
    with marks to restart at, with codes of all lengths and blocks that are full, with long runs of
    zeros; and with bytes that a disk lost."""
    folder = tmp_path_factory.mktemp("jpegs")
    photo = Image.open(load_build().fetch() / "chelsea.png")
    exif = Image.Exif()
    exif[0x0112] = 5
    for subsampling in (0, 1, 2):
        photo.crop((0, 0, 451 - subsampling, 299)).save(
            folder / f"{subsampling}.jpg", subsampling=subsampling, quality=85
        )
    photo.save(folder / "turned.jpg", exif=exif, quality=60)
    photo.save(folder / "progressive.jpg", progressive=True, quality=95)
    photo.convert("CMYK").save(folder / "cmyk.jpg")
    photo.save(folder / "restarts.jpg", restart_marker_blocks=3, quality=75)
    photo.save(folder / "coarse.jpg", quality=5, subsampling=0)
    grain = np.random.RandomState(5).normal(0, 60, (300, 451, 3))
    noisy = Image.fromarray(np.clip(np.asarray(photo) + grain, 0, 255).astype(np.uint8))
    noisy.save(folder / "noisy.jpg", quality=100, optimize=True)
    noisy.save(folder / "noisy-restarts.jpg", quality=98, restart_marker_blocks=5, subsampling=0)
    for name in ("noisy.jpg", "noisy-restarts.jpg"):
        data = bytearray((folder / name).read_bytes())
        for place in range(len(data) // 4, len(data) - 100, len(data) // 7):
            data[place : place + 3] = b"\x00\xf3\x5a"
        (folder / f"damaged-{name}").write_bytes(data)
    return sorted(folder.iterdir())


@pytest.mark.parametrize(
    ("resize", "reduction"),
    [
        (Resize(mode="shortest", height=32, width=32), 8),
        (Resize(mode="letterbox", height=60, width=75), 4),
        (Resize(mode="exact", height=130, width=100), 2),
    ],
)
def test_scaled_photos_are_equal(
    runtime: Runtime, photos: list[Path], jpegs: list[Path], resize: Resize, reduction: int
) -> None:
    assert (
        replace(make_spec("rgb", resize=resize), decode="scaled").reduction(300, 451) == reduction
    )
    cases = itertools.product([*jpegs, *photos], COLORS)
    for number, (photo, color) in enumerate(runtime.some(cases, reduction)):
        spec = replace(make_spec(color, resize=resize), decode="scaled")
        check(runtime, replace(spec, interpolation=INTERPOLATIONS[number % 7]), photo)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_integers_are_equal(runtime: Runtime, photos: list[Path], dtype: str) -> None:
    """Quantised bytes, and what TensorFlow's filter makes, with quantisation and without."""
    resize = Resize(mode="letterbox", height=61, width=83)
    for number, (photo, layout) in enumerate(itertools.product(photos, LAYOUTS)):
        spec = replace(make_spec(COLORS[number % 3], resize=resize), layout=layout, dtype=dtype)
        quantised = replace(spec, quantization=(0.0186, (3, 128)[dtype == "uint8"]))
        check(runtime, quantised, photo)
        check(runtime, replace(quantised, interpolation="tf-bilinear"), photo)
        if dtype == "uint8":
            channels = spec.channels
            plain = replace(spec, scale=1.0, mean=(0.0,) * channels, std=(1.0,) * channels)
            check(runtime, replace(plain, interpolation="tf-bilinear"), photo)


@pytest.fixture(scope="module")
def odd_images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Images of kinds that are refused by default, and files that are none."""
    folder = tmp_path_factory.mktemp("odd")
    noise = np.random.RandomState(4).randint(0, 256, (33, 47, 4)).astype(np.uint8)
    color = Image.fromarray(noise[:, :, :3])
    cv2.imwrite(str(folder / "gray.png"), noise[:, :, 0])
    cv2.imwrite(str(folder / "gray.jpg"), noise[:, :, 0])
    cv2.imwrite(str(folder / "alpha.png"), noise)
    cv2.imwrite(str(folder / "deep.png"), noise[:, :, :3].astype(np.uint16) * 257 + 3)
    cv2.imwrite(str(folder / "deep-alpha.png"), noise.astype(np.uint16) * 257)
    color.convert("LA").save(folder / "gray-alpha.png")
    color.convert("1").save(folder / "bits.png")
    color.convert("P").save(folder / "palette.png", transparency=3)
    color.save(folder / "key.png", transparency=(1, 2, 3))
    color.save(folder / "animated.png", save_all=True, append_images=[color.rotate(90)])
    color.save(folder / "photo.bmp")
    color.save(folder / "photo.webp")
    color.save(folder / "whole.jpg")
    color.save(folder / "whole.png")
    for name in ("whole.jpg", "whole.png"):
        data = (folder / name).read_bytes()
        (folder / f"cut-{name}").write_bytes(data[: len(data) // 2])
    (folder / "text.jpg").write_text("not an image\n")
    (folder / "empty.png").write_bytes(b"")
    return {path.name: path for path in folder.iterdir()} | {"none.png": folder / "none.png"}


def test_the_same_images_are_refused_in_the_same_words(
    runtime: Runtime, odd_images: dict[str, Path]
) -> None:
    refused = set()
    first, *others = itertools.product(
        ("rgb", "gray"), ((), ("16bit", "alpha"), ("16bit", "alpha", "gray"))
    )
    for number, (name, path) in enumerate(odd_images.items()):
        for color, accept in (first, *runtime.some(others, number)):
            spec = replace(make_spec(color), accept=accept)
            try:
                spec.load_resized(path)
            except ImageError as error:
                check_refused(runtime, spec, path, error)
                refused.add(name)
            else:
                check(runtime, spec, path)
    assert refused == set(odd_images) - {"whole.jpg", "whole.png"}


def large_png(path: Path, side: int) -> None:
    """A picture of `side` x `side` pixels, one bit each: a file of few kilobytes."""

    def chunk(name: bytes, data: bytes) -> bytes:
        checked = name + data
        return len(data).to_bytes(4, "big") + checked + zlib.crc32(checked).to_bytes(4, "big")

    header = side.to_bytes(4, "big") * 2 + bytes([1, 3, 0, 0, 0])  # one bit, a palette
    pixels = zlib.compress(bytes((side + 7) // 8 + 1) * side, 9)
    chunks = [(b"IHDR", header), (b"PLTE", bytes(range(6))), (b"IDAT", pixels), (b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*one) for one in chunks))


def test_photos_of_too_many_pixels_are_refused(runtime: Runtime, tmp_path: Path) -> None:
    spec = replace(make_spec("rgb"), max_pixels=143_999_999)
    large_png(tmp_path / "large.png", 12000)
    assert (tmp_path / "large.png").stat().st_size < 20_000
    for name, options in (("large.jpg", {}), ("slow.jpg", {"progressive": True})):
        Image.new("RGB", (64, 64)).save(tmp_path / name, **options)
        data = bytearray((tmp_path / name).read_bytes())
        frame = re.search(rb"\xff[\xc0\xc2]\0\x11\x08\0\x40\0\x40", data)
        assert frame is not None
        data[frame.end() - 4 : frame.end()] = (12000).to_bytes(2, "big") * 2
        (tmp_path / name).write_bytes(data)
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(TooManyPixelsError, match="12000 x 12000 pixels") as caught:
            spec.load_resized(path)
        check_refused(runtime, spec, path, caught.value)
    # What is allowed is decoded.
    large_png(tmp_path / "small.png", 40)
    check(runtime, replace(spec, max_pixels=1600), tmp_path / "small.png")


def test_images_of_impossible_sizes_are_refused(runtime: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "line.png"
    cv2.imwrite(str(path), np.zeros((2, 9999, 3), np.uint8))
    for spec in (
        make_spec("rgb", crop=(3, 3)),
        make_spec("rgb", resize=Resize(mode="shortest", height=4000, width=4000)),
    ):
        with pytest.raises(ImageError) as caught:
            spec.load_resized(path)
        check_refused(runtime, spec, path, caught.value)

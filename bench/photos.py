"""Photographs out of Debian's packages, to calibrate quantised models on and to judge them by.

They are what packages of wallpapers, puzzles and games for children have: animals, fishes,
monuments, landscapes, flowers, tools, things of the house, few people. No one says what is on them,
and they are not ImageNet's: what is measured on them is how near integers are to float32, not how
often a model is right.
"""

from __future__ import annotations

import hashlib
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from bench.fetch import bench_dir
from edgepack.base.paths import atomic_dir, locked
from edgepack.base.process import run
from edgepack.virtual import apt

# Larger photos are made smaller first, by areas: filters of preprocessing skip pixels.
_SHORTEST = 320
# What is smaller is a button or a letter.
_LEAST = 200
# Photos whose thumbnails differ by less on average are one, in two sizes.
_ALIKE = 8.0


@dataclass(frozen=True, kw_only=True)
class Package:
    """A Debian package with photographs: where it is below a mirror, and which files in it
    (patterns). `licence` is what its copyright file says of them."""

    name: str
    version: str
    path: str
    sha256: str
    licence: str
    files: tuple[str, ...]


PACKAGES = (
    Package(
        name="gcompris-qt-data",
        version="3.1-2",
        path="pool/main/g/gcompris-qt/gcompris-qt-data_3.1-2_all.deb",
        sha256="e9cf06ab2105529068df73085784e835d2ff03f870d2a8091f09125d40abac9f",
        licence="CC-BY-SA, CC-BY, CC0, GPL-3+ or public domain, each its own",
        files=(
            "usr/share/gcompris-qt/rcc/explore_*.rcc",
            "usr/share/gcompris-qt/rcc/categorization.rcc",
        ),
    ),
    Package(
        name="mate-backgrounds",
        version="1.26.0-1",
        path="pool/main/m/mate-backgrounds/mate-backgrounds_1.26.0-1_all.deb",
        sha256="7bf4c2209f34b4f61ba6d24c8b58c28b361e82e4b943aae6d42c030169af9e04",
        licence="GPL-2+",
        files=("usr/share/backgrounds/mate/nature/*.jpg",),
    ),
    Package(
        name="lomiri-wallpapers-16.04",
        version="20.04.0-2",
        path="pool/main/l/lomiri-wallpapers/lomiri-wallpapers-16.04_20.04.0-2_all.deb",
        sha256="a99ff6a3bfe451e4cc0682ecb3cc82e71740626d59e4845ae34a0a0e45421eab",
        licence="CC-BY-4.0 or CC-BY-SA-4.0, each its own",
        files=("usr/share/backgrounds/*_by_*.jpg",),
    ),
    Package(
        name="kphotoalbum",
        version="5.9.1-1",
        path="pool/main/k/kphotoalbum/kphotoalbum_5.9.1-1_amd64.deb",
        sha256="00f8b26b5db1beb30a822d15f464b3c68ffa556d267870aa98a59aaaaf81ec43",
        licence="GPL-2+",
        files=("usr/share/kphotoalbum/demo/*.jpg",),
    ),
    Package(
        name="palapeli-data",
        version="22.12.3-1",
        path="pool/main/p/palapeli/palapeli-data_22.12.3-1_all.deb",
        sha256="69a15dce2ac25ed8708ac518cd0cee5f4eb0c70ed15da2fdb8899a19ac0ee058",
        licence="GPL-2+",
        files=("usr/share/palapeli/collection/*.jpg",),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Photo:
    """A photo as a file, the package it is of, and a hash of its pixels."""

    path: Path
    package: str
    sha256: str


def photos() -> list[Photo]:
    """All of them, in an order of their own; fetched and made smaller if they are not in the
    cache."""
    key = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    folder = bench_dir() / f"photos-{key}"
    with locked(folder):
        if not folder.is_dir():
            with atomic_dir(folder) as work:
                _collect(work)
    found = [
        Photo(path=path, package=path.parent.name, sha256=path.stem)
        for path in folder.glob("*/*.png")
    ]
    return sorted(found, key=lambda photo: photo.sha256)


def unpack(package: Package, folder: Path) -> Path:
    """The files of a package, fetched into `folder`. Raises RootfsError if it cannot be had."""
    deb, files = folder / "package.deb", folder / "files"
    apt.download(package.path, deb, suite="bookworm", sha256=package.sha256)
    run(["dpkg-deb", "-x", deb, files], what=f"unpacking {package.name}")
    return files


def _collect(folder: Path) -> None:
    thumbnails: list[npt.NDArray[np.float64]] = []
    for package in PACKAGES:
        with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
            files = unpack(package, Path(name))
            (folder / package.name).mkdir()
            for image in _images(files, package):
                small = cv2.resize(image, (16, 16), interpolation=cv2.INTER_AREA).astype("float64")
                if any(np.abs(small - other).mean() < _ALIKE for other in thumbnails):
                    continue
                thumbnails.append(small)
                digest = hashlib.sha256(image.tobytes()).hexdigest()[:16]
                cv2.imwrite(str(folder / package.name / f"{digest}.png"), image)


def _images(folder: Path, package: Package) -> Iterator[npt.NDArray[np.uint8]]:
    paths = sorted({path for pattern in package.files for path in folder.glob(pattern)})
    for path in paths:
        whole = path.read_bytes()
        for part in _webp_files(whole) if path.suffix == ".rcc" else (whole,):
            image = cv2.imdecode(np.frombuffer(part, "uint8"), cv2.IMREAD_COLOR)
            if image is None or min(image.shape[:2]) < _LEAST:
                continue
            scale = _SHORTEST / min(image.shape[:2])
            if scale < 1:
                size = (round(image.shape[1] * scale), round(image.shape[0] * scale))
                image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
            yield np.asarray(image, "uint8")


def _webp_files(whole: bytes) -> Iterator[bytes]:
    """Files of WebP in one of Qt's resources, where they lie as they are."""
    at = whole.find(b"RIFF")
    while at >= 0:
        if whole[at + 8 : at + 12] == b"WEBP":
            (size,) = struct.unpack("<I", whole[at + 4 : at + 8])
            yield whole[at : at + 8 + size]
        at = whole.find(b"RIFF", at + 4)

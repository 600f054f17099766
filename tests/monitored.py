"""A model whose class is the brightest eighth of a picture, packed with `[monitor]`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import load_project
from tests.onnx_models import Builder

HEIGHT, WIDTH, COLUMNS = 8, 32, 8
Picture = npt.NDArray[np.uint8]


def pictures(kind: str, count: int, seed: int) -> Iterator[Picture]:
    """BGR pictures of (8, 32): a bright thing in one of the first four columns ("left"), the same
    in less light ("dark"), or one in the others ("right")."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        picture = random.normal(90, 25, (HEIGHT, WIDTH, 3))
        column = random.integers(0, COLUMNS // 2) + (COLUMNS // 2 if kind == "right" else 0)
        picture[:, 4 * column : 4 * column + 4] += random.normal(110, 20)
        if kind == "dark":
            picture *= 0.45
        yield np.clip(picture, 0, 255).astype(np.uint8)


def write_photos(folder: Path, count: int) -> None:
    """Photos of the "left" kind as PNG, which keeps their bytes."""
    folder.mkdir(parents=True)
    for index, picture in enumerate(pictures("left", count, seed=1)):
        cv2.imwrite(str(folder / f"{index:05}.png"), picture)


def monitored_app(folder: Path, *, photos: int = 400, more: str = "", board: str = "local") -> Path:
    """edgepack-run in a bundle with that model for `board`, made in `folder`."""
    b = Builder()
    b.op("ReduceMean", "x", keepdims=0, axes=[1, 2], outputs=["rows"])
    b.op("Reshape", "rows", b.const(np.array([1, COLUMNS, 4], np.int64)), outputs=["eighths"])
    b.op("ReduceMean", "eighths", keepdims=0, axes=[2], outputs=["means"])
    b.op("Mul", "means", b.const(np.array([0.1], np.float32)), outputs=["scores"])
    model = b.model({"x": [1, 3, HEIGHT, WIDTH]}, {"scores": [1, COLUMNS]})
    (folder / "columns.onnx").write_bytes(model.SerializeToString())
    (folder / "labels.txt").write_text("".join(f"column {at}\n" for at in range(COLUMNS)))
    write_photos(folder / "photos", photos)
    (folder / "edgepack.toml").write_text(
        f'[project]\nmodel = "columns.onnx"\nlabels = "labels.txt"\nboard = "{board}"\n'
        "verify = false\n[preprocess]\nscale = 1.0\nmean = [0, 0, 0]\nstd = [1, 1, 1]\n"
        f'resize = {{ mode = "exact", height = {HEIGHT}, width = {WIDTH} }}\n'
        f'interpolation = "area"\n[monitor]\nimages = "photos"\n{more}'
    )
    bundle = package_job(make_job(load_project(folder / "edgepack.toml")), folder / "bundle")
    return bundle.path / "bin" / "edgepack-run"

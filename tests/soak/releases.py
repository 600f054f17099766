"""Signed releases with a real model: it says of which colour a photo is."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from edgepack.bundle import signing
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.service import Service
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import Project, load_project
from tests.onnx_models import Builder
from tests.ssh_keys import make_key, public

COLORS = ("red", "green", "blue")
PHOTOS = "/srv/photos"
RESULTS = f"{PHOTOS}/results.jsonl"
KEY_ENDS = 10 * 365 * 86400
"""The signer's key, in seconds from now: before where a clock leaps to."""

SERVICE = Service(
    args=("--watch", PHOTOS, "--results", RESULTS),
    watchdog_s=20.0, memory_mb=200, writable=(PHOTOS,),
)  # fmt: skip
_HIDDEN = 4096

_PROJECT = """
[project]
name = "tiny"
board = "{board}"
model = "colors.onnx"
labels = "labels.txt"
golden_image = "green.png"
expected_class = "green"

[preprocess]
color = "rgb"
resize = {{ mode = "exact", height = 16, width = 16 }}
interpolation = "linear"
scale = 0.00392156862745098
"""


def photo(path: Path, color: int) -> Path:
    """A picture of one of COLORS."""
    image = np.full((24, 32, 3), 40, np.uint8)
    image[..., 2 - color] = 220
    assert cv2.imwrite(str(path), image)
    return path


class Releases:
    """Version after version for `board`, in `folder`; each differs from the last in its weights."""

    def __init__(self, folder: Path, board: str) -> None:
        self._folder = folder
        self._key = make_key(folder)
        end = time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + KEY_ENDS))
        self.signers = folder / "signers"
        self.signers.write_text(
            f'release@here namespaces="edgepack-bundle",valid-before="{end}" {public(self._key)}\n'
        )
        self._projects = [self._project(seed, board) for seed in range(2)]
        self._made: list[Bundle] = []

    def _project(self, seed: int, board: str) -> Project:
        """A project whose model is the mean of each channel, by way of many random weights."""
        folder = self._folder / f"project{seed}"
        folder.mkdir()
        build = Builder(seed)
        there = build.random.normal(size=(3, _HIDDEN))
        means = build.op("Flatten", build.op("GlobalAveragePool", "image"))
        hidden = build.op("MatMul", means, build.const(there, "float32"))
        build.op(
            "MatMul", hidden, build.const(np.linalg.pinv(there), "float32"), outputs=["scores"]
        )
        build.save(folder / "colors.onnx", {"image": (1, 3, 16, 16)}, {"scores": (1, 3)})
        (folder / "labels.txt").write_text("".join(f"{color}\n" for color in COLORS))
        photo(folder / "green.png", 1)
        (folder / "edgepack.toml").write_text(_PROJECT.format(board=board))
        return replace(load_project(folder / "edgepack.toml"), service=SERVICE)

    def version(self, number: int) -> Bundle:
        """The release of that version, from 1 on."""
        while len(self._made) < number:
            version = len(self._made) + 1
            project = replace(self._projects[version % 2], version=version)
            bundle = package_job(make_job(project), self._folder / f"version{version}")
            signing.sign_folder(bundle, self._key)
            self._made.append(bundle)
        return self._made[number - 1]

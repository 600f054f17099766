"""The app with a model that gives the mean of each eighth of a picture's columns."""

from __future__ import annotations

from pathlib import Path

from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import load_project
from tests.onnx_models import Builder

SHAPE = (1, 3, 8, 32)
"""Of its input, NCHW float32: a picture of 32 x 8 pixels as it is, any other one resized."""


def means_app(folder: Path, board: str = "local", more: str = "") -> Path:
    """edgepack-run in a bundle with that model for `board`, made in `folder`; `more` are tables of
    its project file.
    """
    b = Builder()
    b.op("AveragePool", "x", kernel_shape=[8, 4], strides=[8, 4], outputs=["means"])
    model = b.model({"x": list(SHAPE)}, {"means": [1, 3, 1, 8]})
    (folder / "means.onnx").write_bytes(model.SerializeToString())
    (folder / "edgepack.toml").write_text(
        f'[project]\nmodel = "means.onnx"\nboard = "{board}"\nverify = false\n[preprocess]\n'
        'resize = { mode = "exact", height = 8, width = 32 }\ninterpolation = "area"\n'
        f'[postprocess]\nkind = "tensors"\n{more}'
    )
    bundle = package_job(make_job(load_project(folder / "edgepack.toml")), folder / "bundle")
    return bundle.path / "bin" / "edgepack-run"

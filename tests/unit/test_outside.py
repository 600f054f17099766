"""The short form of `./dev fuzz inventory project program ...`: the same mutants each time."""

from __future__ import annotations

import socket
from pathlib import Path

import onnx
import pytest

from edgepack.base.errors import ModelError
from edgepack.flow.job import make_job
from edgepack.flow.project import load_project
from edgepack.flow.quantized import AGREEMENT, CALIBRATION
from tests.onnx_models import Builder
from tests.outside import READERS, watched

MUTANTS = 500
SEED = 20261126


@pytest.mark.parametrize("name", READERS)
def test_files_from_outside_are_values_or_errors(name: str) -> None:
    accepted, refused = READERS[name].try_mutants(MUTANTS, seed=SEED)
    print(f"{accepted} read, {refused} refused")
    assert refused > MUTANTS / 10
    assert accepted > 0 or name == "program"  # which needs PyTorch to be read


@pytest.mark.parametrize(
    ("key", "value"),
    [(AGREEMENT, "nan"), (AGREEMENT, "1.5"), (AGREEMENT, "most"), (CALIBRATION, "x" * 64)],
)
def test_what_quantize_wrote_is_named_if_it_did_not(tmp_path: Path, key: str, value: str) -> None:
    build = Builder()
    build.op("Relu", "x", outputs=["y"])
    proto = build.model({"x": [1, 8]}, {"y": [1, 8]})
    onnx.helper.set_model_props(proto, {key: value})
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    with pytest.raises(ModelError, match=f"m.onnx: metadata {key}: .*'{value}'"):
        make_job(load_project(None, {"model": path, "board": "local"}))


def test_the_watch_sees_what_it_is_for(tmp_path: Path) -> None:
    import subprocess

    (tmp_path / "in").mkdir()
    (tmp_path / "out").write_text("x")
    with watched(tmp_path / "in") as seen:
        (tmp_path / "in" / "own").write_text("x")
        assert seen == []
        (tmp_path / "in" / "link").symlink_to("../out")
        (tmp_path / "in" / "link").read_text()
        subprocess.run(["true"], check=True)
        with socket.socket() as one:
            one.connect_ex(("127.0.0.1", 9))
    assert any(text.startswith("open: ") for text in seen)
    assert any(text.startswith("subprocess.Popen") for text in seen)

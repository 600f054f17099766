"""Every bundle is loaded by its board's own program, under the emulator, before it is packed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgepack import virtual
from edgepack.base.errors import BundleError
from edgepack.boards import get_board
from edgepack.compiler import CompiledModel
from edgepack.deploy.deploy import deploy_bundle
from edgepack.device import open_virtual
from edgepack.flow import job as flow_job
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import load_project
from tests.boards import own_boards
from tests.onnx_models import Builder
from tests.support import require_tool

# A layer of the second has more multiply-adds than 32 bits count, one of the first than 31 do.
LAYERS = {"2.4 G": (64, 256), "10.7 G": (96, 359)}


def _conv(path: Path, channels: int, side: int) -> int:
    """A 3x3 convolution; its multiply-adds."""
    b = Builder()
    b.op("Conv", "x", b.weight(channels, channels, 3, 3), pads=[1, 1, 1, 1], outputs=["y"])
    shape = [1, channels, side, side]
    onnx.save(b.model({"x": shape}, {"y": shape}), path)
    return 9 * channels * channels * side * side


def _changed(
    change: Callable[[dict[str, Any]], None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let what is compiled from now on have another plan."""
    compile_job = flow_job.compile_job

    def compiled(*arguments: Any, **options: Any) -> CompiledModel:
        made = compile_job(*arguments, **options)
        shutil.copytree(made.folder, folder, dirs_exist_ok=True)
        plan = json.loads(made.graph.read_text())
        change(plan)
        (folder / "graph.json").write_text(json.dumps(plan))
        names = {"graph": "graph.json", "params": "params.bin", "library": "model.so"}
        paths = {field: folder / name for field, name in names.items()}
        return replace(made, folder=folder, **paths)

    monkeypatch.setattr(flow_job, "compile_job", compiled)


def test_what_a_32_bit_program_refuses_is_refused_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_tool("qemu-arm-static", "qemu-arm")
    _conv(tmp_path / "model.onnx", 8, 8)
    flags = {"model": tmp_path / "model.onnx", "board": "rasp3b", "verify": False}
    job = make_job(load_project(None, flags))

    def many(plan: dict[str, Any]) -> None:
        plan["calls"][0]["layer"]["macs"] = 10_683_187_200

    def large(plan: dict[str, Any]) -> None:
        plan["arena_bytes"] = 2**32

    with monkeypatch.context() as patch:
        _changed(many, tmp_path / "many", patch)
        bundle = package_job(job, tmp_path / "bundle")
    assert (
        json.loads(bundle.file("model/graph.json").read_text())["calls"][0]["layer"]["macs"] > 2**32
    )
    _changed(large, tmp_path / "large", monkeypatch)
    with pytest.raises(BundleError) as caught:
        package_job(job, tmp_path / "other")
    assert "loading the bundle with the program for rasp3b failed" in caught.value.message
    assert "4294967296 bytes are more than a program of 32 bits can address" in caught.value.message


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_billions_of_multiply_adds_deploys(name: str, tmp_path: Path) -> None:
    channels, side = LAYERS[name]
    macs = _conv(tmp_path / "model.onnx", channels, side)
    with own_boards():
        flags = {"model": tmp_path / "model.onnx", "board": "rasp3b"}
        bundle = package_job(make_job(load_project(None, flags)), tmp_path / "bundle")
        plan = json.loads(bundle.file("model/graph.json").read_text())
        assert max(call["layer"]["macs"] for call in plan["calls"]) == macs > 2**31
        board = get_board("rasp3b")
        device = open_virtual(virtual.up(board, name="loaded"))
        try:
            report = deploy_bundle(bundle, device, "edgepack/loaded")
        finally:
            device.close()
            virtual.down("loaded")
    assert report.outcome == "deployed"
    assert report.smoke.max_abs_error <= 1e-4 * report.smoke.max_abs_reference
    assert np.isfinite(report.smoke.max_abs_error)

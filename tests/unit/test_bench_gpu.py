"""`./dev gpu` without a GPU: what is packed of a model, and what is made of what the app says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from bench import gpu, gpu_worker
from edgepack.base.errors import UsageError
from edgepack.boards import get_board
from edgepack.gpus import Gpu
from tests.onnx_models import Builder

_REPORT = {
    "bench": {"p50_ms": 0.25},
    "expected": {"max_abs_error": 0.001, "max_abs_reference": 4.0},
}
_CASE = {
    "model": "m",
    "precision": "float32",
    "folder": "m-float32",
    "inputs": ["in0.npy"],
    "expected": ["due0.npy"],
}


def _app(folder: Path, output: str) -> None:
    """A program in the app's place: it writes `output`, a shell's words, where it is told to."""
    (folder / "m-float32").mkdir()
    app = folder / "edgepack-run"
    app.write_text(
        "#!/bin/sh\n"
        'while [ $# -gt 0 ]; do if [ "$1" = --output ]; then shift; '
        f'{output} >"$1"; fi; shift; done\n'
        f"echo '{json.dumps(_REPORT)}'\n"
    )
    app.chmod(0o700)


@pytest.mark.parametrize(("output", "same"), [("echo 1", True), ('echo "$1"', False)])
def test_a_case_has_a_time_an_error_and_equal_bits(
    output: str, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_worker, "HERE", tmp_path)
    _app(tmp_path, output)
    assert gpu_worker.run_case(_CASE, runs=3) == {"ms": 0.25, "error": 0.00025, "same": same}


def test_a_case_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_worker, "HERE", tmp_path)
    assert "No such file" in gpu_worker.run_case(_CASE, runs=3)["failed"]
    app = tmp_path / "edgepack-run"
    app.write_text("#!/bin/sh\necho 'error: no GPU | here' >&2\nexit 7\n")
    app.chmod(0o700)
    row = {"model": "m", "precision": "float32", **gpu_worker.run_case(_CASE, runs=3)}
    assert gpu_worker.table([row]).splitlines()[2] == (
        "| m | float32 | error: no GPU / here | - | - | - | - |"
    )


def test_the_table_has_the_ratio_to_pytorch() -> None:
    row = {"model": "m", "precision": "float16", "ms": 0.25, "error": 0.0003, "same": True}
    lines = gpu_worker.table([row, {**row, "torch_ms": 0.5, "same": False}]).splitlines()
    assert lines[2:] == [
        "| m | float16 | 0.250 | - | - | 3e-04 | yes |",
        "| m | float16 | 0.250 | 0.500 | 0.50 | 3e-04 | no |",
    ]


def test_a_packed_model_has_its_nodes_and_the_shapes_of_its_weights() -> None:
    b = Builder()
    y = b.op("Clip", b.conv("x", 3, 8), b.const(0, "float32"), b.const(6, "float32"))
    b.op("Reshape", y, "shape", outputs=["y"])
    model = b.model({"x": [1, 3, 4, 4]}, {"y": [8, 16]})
    shape = numpy_helper.from_array(np.array([8, 16]), "shape")
    model.graph.node.insert(0, helper.make_node("Constant", [], ["shape"], value=shape))
    # As exporters write it that know no other way to name a weight.
    weight = model.graph.initializer[0]
    model.graph.input.append(
        helper.make_tensor_value_info(weight.name, onnx.TensorProto.FLOAT, weight.dims)
    )
    made = gpu.nodes(model)
    assert json.loads(json.dumps(made)) == made
    assert [node["op"] for node in made["nodes"]] == ["Conv", "Clip", "Reshape"]
    assert made["nodes"][0]["attributes"]["pads"] == [1, 1, 1, 1]
    assert made["nodes"][1]["attributes"]["given"] == [[0.0], [6.0]]
    assert made["nodes"][2]["attributes"]["given"] == [[8, 16]]
    assert (made["inputs"], made["outputs"]) == (["x"], ["y"])
    assert made["given"] == [{"shape": [1, 3, 4, 4], "dtype": "float32"}]
    kept = made["constants"][weight.name]
    assert kept["shape"] == [8, 3, 3, 3]
    assert "values" not in kept


_HERE = Gpu(
    api="opencl",
    device="pocl",
    arch="",
    driver="3.0",
    processors=2,
    lanes=8,
    threads=256,
    shared_kb=32,
)


@pytest.mark.parametrize(
    ("board", "found", "said"),
    [
        ("rasp3b", _HERE, "--like rasp3b: this board's profile has no GPU"),
        ("rk3399", None, "kernels for its Mali-T860 need opencl; here is no GPU"),
        ("jetson-orin-nano", _HERE, "need cuda; here is pocl with opencl"),
    ],
)
def test_kernels_like_a_board_s_need_its_interface(
    board: str,
    found: Gpu | None,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(gpu, "find_local", lambda: found)
    assert gpu.main(["--like", board, "--models", "resnet18"]) == UsageError.exit_code
    assert said in capsys.readouterr().err


def test_kernels_like_a_board_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_local", lambda: None)
    packed: list[Gpu] = []
    monkeypatch.setattr(gpu, "pack", lambda *given: packed.append(given[3]))
    assert gpu.main(["--like", "rk3399", "--pack", str(tmp_path / "packed")]) == 0
    assert packed == [get_board("rk3399").gpu]

"""CUDA without a GPU: kernels of its text for the CPU, behind a stand-in for the driver.

What a driver and a GPU of NVIDIA's would do is not proven: see `stand_in_cuda`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgepack.boards import get_board
from edgepack.compiler import compile_model
from edgepack.frontend.precision import Precision
from edgepack.model import ModelSpec
from edgepack.native.app import build_runtime
from edgepack.native.toolchain import select
from tests import stand_in_cuda
from tests.functional.test_gpu import CUDA, _bundle, _halves, _network, _reference
from tests.onnx_models import Builder

Array = np.ndarray


@pytest.fixture(scope="module")
def driver(
    require_tool: Callable[..., object], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The folder of a stand-in for the driver; kernels are compiled for it, too."""
    if platform.machine() != "x86_64":
        pytest.skip("g++ has half precision for all of x86-64 only")
    require_tool("g++")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgepack.compiler.gpu.planning.Nvrtc", stand_in_cuda.Nvrtc)
        patch.setattr("edgepack.compiler.gpu.planning.find_nvrtc", stand_in_cuda.find_nvrtc)
        yield stand_in_cuda.build_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def bundle(driver: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of which the CPU does a part, for a GPU; its input and due outputs beside it."""
    folder = tmp_path_factory.mktemp("cuda")
    onnx.save(_network(), folder / "model.onnx")
    made = _bundle(folder / "model.onnx", CUDA, folder)
    x = np.random.default_rng(0).normal(size=(1, 3, 33, 29)).astype("float32")
    np.save(folder / "in.npy", x)
    for index, due in enumerate(_reference(folder / "model.onnx", {"x": x})):
        np.save(folder / f"due{index}.npy", due)
    return made


@pytest.fixture(scope="module")
def two_plans(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a plan for the CPU beside it."""
    folder = tmp_path_factory.mktemp("two")
    subprocess.run(["cp", "-r", f"{bundle}/.", str(folder)], check=True)
    board = get_board("local")
    compile_model(
        ModelSpec(path=folder / "model.onnx"), board, select(board).toolchain, folder / "model/cpu"
    )
    return folder


def _run(
    bundle: Path, driver: Path, *more: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    board = get_board("local")
    app = build_runtime(board, select(board).toolchain).app
    return subprocess.run(
        [str(app), "--bundle", str(bundle), "--input", str(bundle / "in.npy"), *more],
        env={**os.environ, "LD_LIBRARY_PATH": str(driver), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def _report(bundle: Path, driver: Path, **environment: str) -> dict[str, Any]:
    words = [f"--expected={bundle}/due0.npy", f"--expected={bundle}/due1.npy"]
    done = _run(bundle, driver, "--json", "--bench=5", *words, **environment)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_kernels_compute_what_onnxruntime_does(bundle: Path, driver: Path) -> None:
    plan = json.loads((bundle / "model/graph.json").read_text())
    on_gpu = {launch["call"] for launch in plan["gpu"]["launches"]}
    assert 0 < len(on_gpu) < len(plan["calls"])
    outputs = [bundle / "out0.npy", bundle / "out1.npy"]
    words = [f"--output={path}" for path in outputs]
    bits = []
    for _ in range(2):
        done = _run(bundle, driver, *words)
        assert done.returncode == 0, done.stderr
        bits.append([path.read_bytes() for path in outputs])
    assert bits[0] == bits[1]
    due = [np.load(bundle / f"due{index}.npy") for index in range(2)]
    np.testing.assert_allclose(np.load(outputs[0]), due[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.load(outputs[1]), due[1])


def test_halves_are_the_same_halves(driver: Path, tmp_path: Path) -> None:
    """For Xavier, whose kernels use no tensor cores."""
    onnx.save(_halves(), tmp_path / "model.onnx")
    x = np.random.default_rng(1).normal(size=(1, 3, 18, 18)).astype("float32")
    np.save(tmp_path / "in.npy", x)
    half = Precision(name="float16", samples=((x,),))
    bundle = _bundle(tmp_path / "model.onnx", replace(CUDA, arch="sm_72"), tmp_path, half)
    outputs = [tmp_path / f"out{index}.npy" for index in range(2)]
    done = _run(bundle, driver, *(f"--output={path}" for path in outputs), STAND_IN_ARCH="72")
    assert done.returncode == 0, done.stderr
    for path, due in zip(outputs, _reference(tmp_path / "model.onnx", {"x": x}), strict=True):
        error = np.abs(np.load(path) - due).max() / np.abs(due).max()
        # A half has 11 bits: this is what rounding between a dozen layers makes.
        assert 1e-5 < error < 5e-3


def test_the_larger_one_of_wide_types(driver: Path, tmp_path: Path) -> None:
    """Neither is the larger one of two of another type."""
    b = Builder()
    b.op("Max", "x", "z", outputs=["y"])
    b.op("Max", "n", "m", outputs=["most"])
    types = dict.fromkeys("xzy", onnx.TensorProto.DOUBLE)
    types |= dict.fromkeys(("n", "m", "most"), onnx.TensorProto.UINT64)
    shapes = {name: [3] for name in "xznm"}
    onnx.save(b.model(shapes, {"y": [3], "most": [3]}, types, opset=17), tmp_path / "model.onnx")
    given = {
        "x": np.float64([1.0, 1 / 3, np.nan]),
        "z": np.float64([1.0 + 1e-12, 0.25, 2.0]),
        "n": np.uint64([2**63, 2**64 - 1, 5]),
        "m": np.uint64([2**63 + 1, 1, 7]),
    }
    bundle = _bundle(tmp_path / "model.onnx", CUDA, tmp_path)
    plan = json.loads((bundle / "model/graph.json").read_text())
    assert {launch["call"] for launch in plan["gpu"]["launches"]} == {0, 1}
    np.save(tmp_path / "in.npy", given["x"])
    words = []
    for name in "znm":
        np.save(tmp_path / f"{name}.npy", given[name])
        words.append(f"--input={tmp_path}/{name}.npy")
    words += [f"--output={tmp_path}/out{index}.npy" for index in range(2)]
    done = _run(bundle, driver, *words)
    assert done.returncode == 0, done.stderr
    for index, due in enumerate(
        (np.maximum(given["x"], given["z"]), np.maximum(given["n"], given["m"]))
    ):
        np.testing.assert_array_equal(np.load(tmp_path / f"out{index}.npy"), due)


def test_copies_that_are_late_bring_what_was_there_in_time(driver: Path, tmp_path: Path) -> None:
    """The CPU's results take the place of an input that the GPU may still have to get."""
    b = Builder()
    b.op("Relu", "x", outputs=["y"])
    b.op("TopK", "z", b.const([2], "int64"), outputs=["top", "at"])
    shapes = {"x": [1, 8], "z": [1, 8]}
    model = b.model(shapes, {"y": [1, 8], "top": [1, 2], "at": [1, 2]}, dtypes={"at": 7})
    onnx.save(model, tmp_path / "model.onnx")
    random = np.random.default_rng(2)
    given = {name: random.normal(size=(1, 8)).astype("float32") for name in shapes}
    bundle = _bundle(tmp_path / "model.onnx", CUDA, tmp_path)
    plan = json.loads((bundle / "model/graph.json").read_text())
    assert {"before": 1, "to": "cpu", "offset": 0, "bytes": 0} in plan["gpu"]["copies"]
    np.save(tmp_path / "in.npy", given["x"])
    np.save(tmp_path / "z.npy", given["z"])
    outputs = [tmp_path / f"out{index}.npy" for index in range(3)]
    words = [f"--input={tmp_path}/z.npy", *(f"--output={path}" for path in outputs)]
    done = _run(bundle, driver, *words)
    assert done.returncode == 0, done.stderr
    for path, due in zip(outputs, _reference(tmp_path / "model.onnx", given), strict=True):
        np.testing.assert_array_equal(np.load(path), due)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"STAND_IN_DEVICES": "0"}, "the driver knows no GPU on this machine"),
        ({"STAND_IN_ARCH": "72"}, "the kernels are for sm_87 with a driver of CUDA 12.2 or newer"),
        ({"STAND_IN_ARCH": "72"}, "stand-in for an NVIDIA GPU, sm_72 with a driver of CUDA 12.2"),
        ({"STAND_IN_MEMORY": "1000"}, "of the GPU's 1000 are free"),
        ({"STAND_IN_BUSY": "1"}, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"),
        ({"STAND_IN_BROKEN": "0"}, "CUDA_ERROR_LAUNCH_FAILED"),
    ],
)
def test_errors_of_the_driver_are_said(
    environment: dict[str, str], said: str, bundle: Path, driver: Path
) -> None:
    done = _run(bundle, driver, **environment)
    assert done.returncode == 7
    assert said in done.stderr
    assert "terminate called" not in done.stderr


def test_a_driver_from_before_cuda_11_is_too_old(bundle: Path, tmp_path: Path) -> None:
    old = stand_in_cuda.build_driver(tmp_path, "-DWITHOUT_GRAPHS")
    done = _run(bundle, old)
    assert done.returncode == 7
    assert "libcuda.so.1 has no cuGraphInstantiate_v2" in done.stderr
    assert "install a newer driver" in done.stderr


@pytest.mark.parametrize(
    ("environment", "on", "failures", "why"),
    [
        ({}, "gpu", 0, ""),
        ({"STAND_IN_BUSY": "2"}, "gpu", 2, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"),
        # A device that is broken stays so, in the middle of a run, too.
        ({"STAND_IN_BROKEN": "5"}, "cpu", 3, "CUDA_ERROR_LAUNCH_FAILED"),
        ({"STAND_IN_ARCH": "90"}, "cpu", 0, "sm_90"),
        ({"STAND_IN_DEVICES": "0"}, "cpu", 0, "knows no GPU"),
        ({"STAND_IN_MEMORY": "1000"}, "cpu", 0, "are free"),
    ],
)
def test_the_cpu_does_what_the_gpu_fails_in(
    environment: dict[str, str], on: str, failures: int, why: str, two_plans: Path, driver: Path
) -> None:
    report = _report(two_plans, driver, **environment)
    assert report["expected"]["ok"]
    assert report["processor"]["on"] == on
    assert report["processor"]["gpu_failures"] == failures
    assert why in report["processor"].get("why", "")


# In the processes of `edgepack`, which compiles in one of its own: the stand-in's compiler.
_SITE = """
import sys
from importlib.util import spec_from_file_location
class StandIn:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "edgepack.compiler.gpu.nvrtc":
            return spec_from_file_location(name, FILE)
sys.meta_path.insert(0, StandIn)
"""


def test_deploy_is_refused_without_a_driver_and_runs_on_one(bundle: Path, driver: Path) -> None:
    """The device's linker has to know of the driver: `ldconfig` is a stand-in as well."""
    root, site, tools = bundle / "root", bundle / "site", bundle / "tools"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SITE.replace("FILE", repr(stand_in_cuda.__file__)))
    words = [
        sys.executable,
        "-m",
        "edgepack",
        "deploy",
        str(bundle / "model.onnx"),
        "--board",
        "local",
        "--device",
        "local",
    ]
    words += ["--compute", "gpu", "--root", str(root), "--json"]

    def deploy() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(driver),
                "PATH": f"{tools}:{os.environ['PATH']}",
                "PYTHONPATH": f"{site}:{Path(__file__).parents[2]}",
            },
            capture_output=True,
            text=True,
            check=False,
        )

    tools.mkdir()
    for text in ("", "echo 'libcuda.so.1 (libc6,x86-64)'"):
        (tools / "ldconfig").write_text(f"#!/bin/sh\n{text}\n")
        (tools / "ldconfig").chmod(0o755)
        done = deploy()
        if not text:
            assert done.returncode != 0
            assert "libcuda.so.1, which is not there" in done.stderr
            assert not list(root.glob("**/kernels.cubin"))
    assert done.returncode == 0, done.stderr
    smoke = json.loads(done.stdout)["smoke"]
    assert smoke["golden"]["processor"]["on"] == "gpu"
    assert smoke["golden"]["processor"]["gpu"] == "stand-in for an NVIDIA GPU"

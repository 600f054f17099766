"""CUDA without a GPU: kernels of its text for the CPU, behind a stand-in for the driver.

What a driver and a GPU of NVIDIA's would do is not proven: see `stand_in_cuda`.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgepack import virtual
from edgepack.base.errors import GpuLostError, MismatchError
from edgepack.boards import get_board
from edgepack.compiler import compile_model
from edgepack.compiler.gpu import winograd
from edgepack.frontend.precision import Precision
from edgepack.model import ModelSpec
from edgepack.native.app import build_runtime
from edgepack.native.sdk import build_sdk, write_sdk
from edgepack.native.toolchain import select
from tests import stand_in_cuda
from tests.boards import login, own_boards
from tests.functional.test_gpu import (
    BOUNDED,
    CUDA,
    SLOW_GPU,
    _bundle,
    _halves,
    _network,
    _reference,
    check_winograd,
    winograd_layers,
)
from tests.functional.test_serve import Served, serving
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


# Its CPU and its GPU have the same memory.
JETSON = {"STAND_IN_INTEGRATED": "1"}


def _run(
    bundle: Path, driver: Path, *more: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    board = get_board("local")
    app = build_runtime(board, select(board).toolchain).gpu_app
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


@pytest.mark.parametrize("environment", [{}, JETSON], ids=["copied", "unified"])
def test_kernels_compute_what_onnxruntime_does(
    environment: dict[str, str], bundle: Path, driver: Path
) -> None:
    plan = json.loads((bundle / "model/graph.json").read_text())
    on_gpu = {launch["call"] for launch in plan["gpu"]["launches"]}
    assert 0 < len(on_gpu) < len(plan["calls"])
    outputs = [bundle / "out0.npy", bundle / "out1.npy"]
    words = [f"--output={path}" for path in outputs]
    bits = []
    for _ in range(2):
        done = _run(bundle, driver, *words, **environment)
        assert done.returncode == 0, done.stderr
        bits.append([path.read_bytes() for path in outputs])
    assert bits[0] == bits[1]
    due = [np.load(bundle / f"due{index}.npy") for index in range(2)]
    np.testing.assert_allclose(np.load(outputs[0]), due[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.load(outputs[1]), due[1])


def test_what_is_between_kernels_is_shown_wherever_it_is(
    bundle: Path, driver: Path, tmp_path: Path
) -> None:
    """In memory that both have, in the GPU's own, and what was copied from there."""
    plan = json.loads((bundle / "model/graph.json").read_text())
    results = [call["args"][-1] for call in plan["calls"]]
    assert {index in plan["gpu"]["unified"]["tensors"] for index in results} == {True, False}
    shown = []
    for name, environment in (("copied", {}), ("unified", JETSON)):
        files = [tmp_path / f"{name}{call}.npy" for call in range(len(results))]
        words = [
            f"--dump={call}:{index}:{file}"
            for call, (index, file) in enumerate(zip(results, files, strict=True))
        ]
        done = _run(bundle, driver, *words, **environment)
        assert done.returncode == 0, done.stderr
        shown.append([np.load(file) for file in files])
    for one, other in zip(*shown, strict=True):
        np.testing.assert_array_equal(one, other)
    due = np.load(bundle / "due0.npy")
    assert any(array.shape == due.shape and np.allclose(array, due) for array in shown[1])


def test_winograds_algorithm(driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "_FASTER", 1000.0)
    monkeypatch.setattr(winograd, "_SIZES", (4,))
    given = winograd_layers(tmp_path / "model.onnx")
    bundle = _bundle(tmp_path / "model.onnx", replace(CUDA, **SLOW_GPU), tmp_path, BOUNDED)
    names = {f"x{index}": array for index, array in enumerate(given)}
    due = _reference(tmp_path / "model.onnx", names)
    np.save(tmp_path / "in.npy", given[0])
    words = []
    for index, array in enumerate(given[1:], 1):
        np.save(tmp_path / f"in{index}.npy", array)
        words.append(f"--input={tmp_path}/in{index}.npy")
    outputs = [tmp_path / f"out{index}.npy" for index in range(len(given))]
    done = _run(bundle, driver, *words, *(f"--output={path}" for path in outputs))
    assert done.returncode == 0, done.stderr
    check_winograd(bundle, 4, due, [np.load(path) for path in outputs])


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
        ({"STAND_IN_VERSION": "11040"}, "driver of CUDA 12.2 or newer; this is stand-in"),
        ({"STAND_IN_VERSION": "12010"}, "sm_87 with a driver of CUDA 12.1"),
        ({"STAND_IN_MEMORY": "1000"}, "of the GPU's 1000 are free"),
        ({"STAND_IN_BUSY": "1"}, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"),
        ({"STAND_IN_BROKEN": "0"}, "CUDA_ERROR_LAUNCH_FAILED"),
        ({"STAND_IN_BROKEN": "0"}, "on the GPU, one of"),
    ],
)
def test_errors_of_the_driver_are_said(
    environment: dict[str, str], said: str, bundle: Path, driver: Path
) -> None:
    done = _run(bundle, driver, **environment)
    assert done.returncode == 7
    assert said in done.stderr
    assert "terminate called" not in done.stderr


@pytest.mark.parametrize(("card", "arch"), [("89", "sm_89"), ("90", "sm_90"), ("120", "sm_90")])
def test_this_machines_driver_promises_no_more_than_its_compiler_needs(
    card: str, arch: str, driver: Path
) -> None:
    """A bundle for `local` runs on other machines with older drivers of the same version. Of a card
    that NVRTC does not know, the driver compiles what is for an earlier one."""
    words = "from edgepack.gpus import find_local; print(find_local())"
    done = subprocess.run(
        [sys.executable, "-c", words],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "LD_LIBRARY_PATH": str(driver),
            "STAND_IN_VERSION": "12060",
            "STAND_IN_ARCH": card,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"arch='{arch}', driver='12.0'" in done.stdout


@pytest.mark.parametrize(
    ("arch", "loaded"),
    [
        ("87", "kernels.cubin"),
        ("89", "kernels.cubin"),
        ("90", "kernels.ptx"),
        ("110", "kernels.ptx"),
    ],
)
def test_a_later_gpu_has_its_driver_compile(
    arch: str, loaded: str, bundle: Path, driver: Path, tmp_path: Path
) -> None:
    """Machine code is taken where it runs: without PTX, and without a compiler in the driver."""
    outputs = [tmp_path / f"out{index}.npy" for index in range(2)]
    words = [f"--output={path}" for path in outputs]
    done = _run(bundle, driver, *words, STAND_IN_ARCH=arch)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(outputs[0]), np.load(bundle / "due0.npy"), rtol=1e-5)
    np.testing.assert_array_equal(np.load(outputs[1]), np.load(bundle / "due1.npy"))
    done = _run(bundle, driver, STAND_IN_ARCH=arch, STAND_IN_NO_JIT="1")
    assert done.returncode == (0 if loaded == "kernels.cubin" else 7)
    assert ("CUDA_ERROR_JIT_COMPILER_NOT_FOUND" in done.stderr) == (loaded == "kernels.ptx")


def test_compiling_for_a_later_gpu_has_no_limit(bundle: Path, driver: Path) -> None:
    slow = {"STAND_IN_ARCH": "90", "STAND_IN_COMPILES_US": "2500000"}
    done = _run(bundle, driver, "--gpu-limit", "1", **slow)
    assert done.returncode == 0, done.stderr


def _with_gpu(bundle: Path, folder: Path, **said: str) -> Path:
    """The bundle, whose plan says something else of the GPU."""
    made = folder / "bundle"
    shutil.copytree(bundle, made)
    plan = json.loads((bundle / "model/graph.json").read_text())
    plan["gpu"] |= said
    (made / "model/graph.json").write_text(json.dumps(plan))
    return made


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ({"driver": "12.0"}, "12000"),  # the plan says that it needs 12.2
        ({"driver": "12.0", "ptx": "12.0"}, "12010"),  # and here only the driver does
    ],
)
def test_a_driver_that_is_too_old_for_a_later_gpu(
    said: dict[str, str], version: str, bundle: Path, driver: Path, tmp_path: Path
) -> None:
    made = _with_gpu(bundle, tmp_path, **said)
    done = _run(made, driver, STAND_IN_ARCH="87", STAND_IN_VERSION=version)
    assert done.returncode == 0, done.stderr
    done = _run(made, driver, STAND_IN_ARCH="90", STAND_IN_VERSION=version)
    assert done.returncode == 7
    ptx = said.get("ptx", "12.2")
    assert f"sm_87, and for later GPUs with a driver of CUDA {ptx} or newer; this" in done.stderr
    assert "stand-in for an NVIDIA GPU, sm_90 with a driver of CUDA 12." in done.stderr
    assert "install a newer driver" in done.stderr


def test_without_ptx_a_later_gpu_is_another(bundle: Path, driver: Path, tmp_path: Path) -> None:
    made = _with_gpu(bundle, tmp_path, ptx="")
    (made / "model/kernels.ptx").unlink()
    done = _run(made, driver, STAND_IN_ARCH="90")
    assert done.returncode == 7
    assert "the kernels are for sm_87 with a driver of CUDA 12.2 or newer; this is" in done.stderr


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
        ({"STAND_IN_ARCH": "72"}, "cpu", 0, "sm_72"),
        ({"STAND_IN_ARCH": "90"}, "gpu", 0, ""),
        ({"STAND_IN_ARCH": "90", "STAND_IN_NO_JIT": "1"}, "cpu", 0, "COMPILER_NOT_FOUND"),
        ({"STAND_IN_VERSION": "11040"}, "cpu", 0, "a driver of CUDA 11.4"),
        ({"STAND_IN_VERSION": "13000"}, "gpu", 0, ""),
        ({"STAND_IN_DEVICES": "0"}, "cpu", 0, "knows no GPU"),
        ({"STAND_IN_MEMORY": "1000"}, "cpu", 0, "are free"),
        (JETSON, "gpu", 0, ""),
        ({**JETSON, "STAND_IN_BUSY": "2"}, "gpu", 2, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"),
        ({**JETSON, "STAND_IN_BROKEN": "0"}, "cpu", 3, "CUDA_ERROR_LAUNCH_FAILED"),
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
    if on == "gpu":
        unified = "STAND_IN_INTEGRATED" in environment
        assert report["processor"]["unified_memory"] == unified
        taken = _taken(json.loads((two_plans / "model/graph.json").read_text()), unified=unified)
        assert report["processor"]["gpu_bytes"] == taken


def _taken(plan: dict[str, Any], *, unified: bool) -> int:
    """Bytes of the GPU's memory: what both have, and what it has alone, end where the last tensor
    does."""
    ends = {False: plan["arena_bytes"], True: 0}
    if unified:
        ends = {False: 0, True: 0}
        for index, tensor in enumerate(plan["tensors"]):
            if tensor["storage"] == "arena":
                both = index in plan["gpu"]["unified"]["tensors"]
                ends[both] = max(ends[both], tensor["offset"] + tensor["bytes"])
    return int(plan["params_bytes"] + sum(ends.values()))


def test_a_profile_has_all_calls_of_both_processors(bundle: Path, driver: Path) -> None:
    expected = [f"--expected={bundle}/due0.npy", f"--expected={bundle}/due1.npy"]
    # The stand-in's GPU has a clock of its own, which may say that a kernel takes a thousand times
    # as long as it does: by that the GPU's calls take longer than the whole run.
    for environment, longer in (({}, False), ({"STAND_IN_SLOW_CLOCK": "1000"}, True)):
        done = _run(bundle, driver, "--json", "--bench=1", "--profile", *expected, **environment)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        plan = json.loads((bundle / "model/graph.json").read_text())
        assert report["expected"]["ok"]
        layers = report["profile"]["layers"]
        assert len(layers) == len(plan["calls"])
        assert all(layer["ms"] > 0 for layer in layers)
        on_gpu = {launch["call"] for launch in plan["gpu"]["launches"]}
        whole_ms = report["bench"]["p50_ms"] + report["profile"]["overhead_ms"]
        assert (sum(layers[call]["ms"] for call in on_gpu) > whole_ms) == longer
        assert (sum(layer["ms"] for layer in layers) > whole_ms) == longer


# ------------------------------------------------ a GPU that hangs

# Enough for the stand-in on a busy machine, and short for who waits for it in vain.
LIMIT = ("--gpu-limit", "2")


@pytest.mark.parametrize(
    ("environment", "words", "said"),
    [
        (
            {"STAND_IN_HANGS": "0"},
            (),
            r"not ended one of \d+ kernels, from gpu_\w+ of layer",
        ),
        (
            {"STAND_IN_HANGS": "3"},
            ("--bench=1", "--warmup=0", "--profile"),
            "it has not ended kernel gpu_",
        ),
        ({"STAND_IN_BLOCKS": "0"}, (), "the GPU's driver has not come back from a call within 2 s"),
    ],
    ids=["in a run", "in a kernel alone", "in the driver"],
)
def test_a_gpu_that_hangs_is_left(
    environment: dict[str, str], words: tuple[str, ...], said: str, bundle: Path, driver: Path
) -> None:
    """The stand-in waits for its device for ever when memory is given back or the process ends."""
    done = _run(bundle, driver, "--json", *LIMIT, *words, **environment)
    assert done.returncode == GpuLostError.exit_code
    assert re.search(said, done.stderr)
    assert re.search(said, json.loads(done.stdout)["error"]["message"])


@pytest.mark.parametrize("environment", [{}, JETSON], ids=["copied", "unified"])
def test_the_cpu_goes_on_when_the_gpu_hangs(
    environment: dict[str, str], two_plans: Path, driver: Path
) -> None:
    """Waited for once: of three runs that fail the first takes as long as it may."""
    hangs = {"EDGEPACK_GPU_LIMIT_S": "1.5", "STAND_IN_HANGS": "5"}
    report = _report(two_plans, driver, **hangs, **environment)
    assert report["expected"]["ok"]
    assert report["processor"]["on"] == "cpu"
    assert report["processor"]["gpu_failures"] == 3
    assert "the GPU still hangs" in report["processor"]["why"]


def _question(bundle: Path) -> bytes:
    x = np.load(bundle / "in.npy")
    tensor = {"name": "x", "datatype": "FP32", "shape": x.shape, "data": x.ravel().tolist()}
    return json.dumps({"inputs": [tensor]}).encode()


def _is_due(bundle: Path, answer: bytes) -> bool:
    outputs = {output["name"]: output["data"] for output in json.loads(answer)["outputs"]}
    due = np.load(bundle / "due0.npy").ravel()
    assert outputs["at"] == np.load(bundle / "due1.npy").ravel().tolist()
    return bool(np.allclose(outputs["y"], due, rtol=1e-4, atol=1e-6))


@contextlib.contextmanager
def _serving(bundle: Path, driver: Path, **environment: str) -> Iterator[Served]:
    board = get_board("local")
    app = build_runtime(board, select(board).toolchain).gpu_app
    env = {"LD_LIBRARY_PATH": str(driver), **environment}
    with serving(app, "--bundle", str(bundle), *LIMIT, env=env) as served:
        yield served


@pytest.mark.parametrize(
    ("environment", "runs", "said"),
    [
        ({"STAND_IN_HANGS": "1"}, 1, "the GPU hangs"),
        ({"STAND_IN_BROKEN": "0"}, 3, "the GPU failed in 3 runs, one after the other"),
        ({**JETSON, "STAND_IN_HANGS": "1"}, 1, "the GPU hangs"),
        ({**JETSON, "STAND_IN_BROKEN": "0"}, 3, "the GPU failed in 3 runs, one after the other"),
    ],
)
def test_a_server_whose_gpu_is_lost_ends(
    environment: dict[str, str], runs: int, said: str, bundle: Path, driver: Path
) -> None:
    """Each question is answered before that."""
    with _serving(bundle, driver, **environment) as served:
        ask = functools.partial(served.ask, served.model + "/infer", _question(bundle))
        answers = [ask() for _ in range(runs)]
        assert [status for status, _, _ in answers] == [500] * runs
        assert said in json.loads(answers[-1][2])["error"]
        assert served.process.wait(60) == GpuLostError.exit_code


def test_a_server_goes_on_with_the_cpu(two_plans: Path, driver: Path, tmp_path: Path) -> None:
    until = tmp_path / "until"
    hangs = {"STAND_IN_HANGS": "1", "STAND_IN_UNTIL": str(until)}
    with _serving(two_plans, driver, **hangs) as served:
        ask = functools.partial(served.ask, served.model + "/infer", _question(two_plans))

        def counts() -> tuple[str, ...]:
            text = served.ask("/metrics")[2].decode()
            found = re.findall(r"^edgepack_(?:on_gpu|gpu_failures_total) (\d+)$", text, re.M)
            return tuple(found)

        def answers() -> None:
            status, _, answer = ask()
            assert status == 200
            assert _is_due(two_plans, answer)

        answers()
        assert counts() == ("1", "1")
        # It was late, and has written its results where nobody reads them.
        until.touch()
        answers()
        assert counts() == ("1", "1")
        until.unlink()
        for _ in range(3):
            answers()
        assert counts() == ("0", "4")
        assert served.stop() == 0


_PROGRAM = """
import os, sys
import edgepack_runtime, numpy
x, y = (numpy.load(path) for path in sys.argv[2:4])
with edgepack_runtime.Model(sys.argv[1]) as model, model.session() as session:
    for at in range(4):
        try:
            session.set_input(0, x)
            session.run()
            print(numpy.allclose(session.output(0), y, rtol=1e-4, atol=1e-6))
        except edgepack_runtime.EdgepackError as error:
            print(error.status.name)
        if at == 1 and "STAND_IN_UNTIL" in os.environ:
            open(os.environ["STAND_IN_UNTIL"], "w").close()
print("closed", flush=True)
os._exit(0)  # what a process does at its end waits for the device
"""


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python's package of the library."""
    board = get_board("local")
    folder = tmp_path_factory.mktemp("sdk")
    write_sdk(build_sdk(board, select(board).toolchain), folder / "it")
    (wheel,) = (folder / "it/python").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "package")
    return folder / "package"


@pytest.mark.parametrize(
    ("two", "environment", "said"),
    [
        (False, {"STAND_IN_HANGS": "1"}, ["GPU_LOST"] * 4),
        # What hung has ended before the third run, for which inputs were written too early.
        (
            False,
            {**JETSON, "STAND_IN_HANGS": "1", "STAND_IN_UNTIL": "UNTIL"},
            ["GPU_LOST"] * 3 + ["True"],
        ),
        (False, {"STAND_IN_BROKEN": "0"}, ["GPU_FAILED"] * 2 + ["GPU_LOST"] * 2),
        (False, {}, ["True"] * 4),
        (True, {"STAND_IN_HANGS": "1"}, ["True"] * 4),
    ],
    ids=["hangs", "hangs for a while", "breaks", "works", "else the CPU"],
)
def test_programs_with_the_library_are_told(
    two: bool,
    environment: dict[str, str],
    said: list[str],
    bundle: Path,
    two_plans: Path,
    driver: Path,
    sdk: Path,
    tmp_path: Path,
) -> None:
    """And their sessions close: nothing waits for the device."""
    until = {name: str(tmp_path / "until") for name in environment if name == "STAND_IN_UNTIL"}
    made = two_plans if two else bundle
    files = [str(made / f"{name}.npy") for name in ("in", "due0")]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(made), *files],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(driver),
            "PYTHONPATH": str(sdk),
            "EDGEPACK_GPU_LIMIT_S": "1.5",
            **environment,
            **until,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == [*said, "closed"], done.stderr


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


@dataclass(frozen=True, kw_only=True)
class Deployer:
    """`edgepack deploy` to this machine. Its linker has to know of the driver: `ldconfig` is a
    stand-in as well."""

    folder: Path
    driver: Path
    model: Path

    def deploy(
        self, name: str, *, compute: str = "gpu", knows: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        words = ["deploy", str(self.model), "--board", "local", "--device", "local"]
        words += ["--compute", compute, "--root", str(self.root(name)), "--json"]
        return self.edgepack(*words, knows=knows, **environment)

    def edgepack(
        self, *words: str, knows: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Any command."""
        tools, site = self.folder / "tools", self.folder / "site"
        for folder in (tools, site):
            folder.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(_SITE.replace("FILE", repr(stand_in_cuda.__file__)))
        said = "echo 'libcuda.so.1 (libc6,x86-64)'" if knows else ""
        (tools / "ldconfig").write_text(f"#!/bin/sh\n{said}\n")
        (tools / "ldconfig").chmod(0o755)
        return subprocess.run(
            [sys.executable, "-m", "edgepack", *words],
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(self.driver),
                "PATH": f"{tools}:{os.environ['PATH']}",
                "PYTHONPATH": f"{site}:{Path(__file__).parents[2]}",
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def root(self, name: str) -> Path:
        return self.folder / name


@pytest.fixture(scope="module")
def deployer(bundle: Path, driver: Path) -> Iterator[Deployer]:
    # Not pytest's own folder, which other accounts cannot enter.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(driver, folder / "driver")
        (folder / "driver").chmod(0o755)
        yield Deployer(folder=folder, driver=folder / "driver", model=bundle / "model.onnx")


def _root(deployer: Deployer, name: str, compute: str) -> Path:
    """A root with a release, which is deployed where it is not there yet."""
    root = deployer.root(name)
    if not (root / "current").exists():
        done = deployer.deploy(name, compute=compute)
        assert done.returncode == 0, done.stderr
    return root


def test_deploy_is_refused_without_a_driver_and_runs_on_one(deployer: Deployer) -> None:
    done = deployer.deploy("gpu", knows=False)
    assert done.returncode != 0
    assert "libcuda.so.1, which is not there" in done.stderr
    assert not list(deployer.root("gpu").glob("**/kernels.cubin"))
    done = deployer.deploy("gpu")
    assert done.returncode == 0, done.stderr
    smoke = json.loads(done.stdout)["smoke"]
    assert smoke["golden"]["processor"]["on"] == "gpu"
    assert smoke["golden"]["processor"]["gpu"] == "stand-in for an NVIDIA GPU"


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"STAND_IN_HANGS": "0", "EDGEPACK_GPU_LIMIT_S": "1"}, "the GPU hangs"),
        ({"STAND_IN_BROKEN": "0"}, "CUDA_ERROR_LAUNCH_FAILED"),
        ({"STAND_IN_MEMORY": "1000"}, "of the GPU's 1000 are free"),
    ],
)
def test_a_release_whose_gpu_fails_is_taken_back(
    environment: dict[str, str], said: str, deployer: Deployer
) -> None:
    current = _root(deployer, "both", "gpu, else cpu") / "current"
    before = current.readlink()
    done = deployer.deploy("both", **environment)
    assert done.returncode == MismatchError.exit_code, done.stderr
    assert said in done.stderr
    assert current.readlink() == before


def test_both_processors_are_timed_on_one_release(deployer: Deployer) -> None:
    root = _root(deployer, "both", "gpu, else cpu")
    words = ["bench", "--root", str(root), "--device", "local", "--runs", "2", "--json"]
    done = deployer.edgepack(*words, "--compare", "gpu", "cpu")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["a"], said["b"], said["gpu"]) == ("gpu", "cpu", "stand-in for an NVIDIA GPU")
    assert len(said["a_ms"]) == len(said["b_ms"]) == 10
    plan = json.loads((root / "current/model/graph.json").read_text())
    taken = plan["params_bytes"] + plan["arena_bytes"]
    assert [said["uses"][name]["gpu_bytes"] for name in ("cpu", "gpu")] == [0, taken]
    assert all(use["load_ms"] > 0 < use["rss_peak_bytes"] for use in said["uses"].values())
    done = deployer.edgepack(*words, "--compare", "cpu", "gpu", STAND_IN_BROKEN="0")
    assert "the GPU does not run the model" in done.stderr
    root = _root(deployer, "gpu", "gpu")
    done = deployer.edgepack(*words[:2], str(root), *words[3:], "--compare", "cpu", "gpu")
    assert "has no plan for the CPU" in done.stderr


@pytest.mark.slow
def test_deploy_to_the_stand_in_of_a_jetson(bundle: Path, tmp_path: Path) -> None:
    """A virtual board of its profile, with ARM code of the stand-in and of the kernels."""
    target = "aarch64-linux-gnu.2.28"
    (tmp_path / "site").mkdir()
    text = _SITE.replace("FILE", repr(stand_in_cuda.__file__))
    (tmp_path / "site/sitecustomize.py").write_text(text)
    (tmp_path / "boards.toml").write_text('[boards.with-cuda]\nbase = "jetson-orin-nano"\n')
    with pytest.MonkeyPatch.context() as patch, own_boards() as cache:
        patch.setenv(stand_in_cuda.TARGET, target)
        driver = stand_in_cuda.build_driver(tmp_path / "driver") / "libcuda.so.1"
        board = get_board("with-cuda", [tmp_path / "boards.toml"])
        root = login(virtual.up(board), "root")

        def deploy(compute: str) -> subprocess.CompletedProcess[str]:
            words = ["deploy", str(bundle / "model.onnx"), "--board", "with-cuda", "--json"]
            words += ["--boards", str(tmp_path / "boards.toml"), "--device", "virtual"]
            words += ["--compute", compute]
            return subprocess.run(
                [sys.executable, "-m", "edgepack", "--cache-dir", str(cache), *words],
                env={
                    **os.environ,
                    "PYTHONPATH": f"{tmp_path / 'site'}:{Path(__file__).parents[2]}",
                },
                capture_output=True,
                text=True,
                check=False,
            )

        refused = deploy("gpu")
        assert refused.returncode != 0
        assert "libcuda.so.1, which is not there" in refused.stderr
        root.put(driver, "/usr/lib/aarch64-linux-gnu/libcuda.so.1")
        root.run("ldconfig")
        done = deploy("gpu")
        assert done.returncode == 0, done.stderr
        smoke = json.loads(done.stdout)["smoke"]
        assert smoke["golden"]["processor"]["on"] == "gpu"
        root.run("echo STAND_IN_BROKEN 0 >/etc/stand-in-cuda")
        done = deploy("gpu, else cpu")
        assert done.returncode == 0, done.stderr
        processor = json.loads(done.stdout)["smoke"]["golden"]["processor"]
        assert "CUDA_ERROR_LAUNCH_FAILED" in processor["why"]
        assert processor["gpu_failures"] == 1


class _ByPath(http.client.HTTPConnection):
    """Over a socket with a path."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(str(self._path))


@pytest.mark.parametrize(
    ("compute", "environment", "starts", "counts"),
    [
        # A driver that does not come back ends the program: in the fourth start the CPU does it.
        ("gpu, else cpu", {"STAND_IN_BLOCKS": "1"}, 4, ("0", "0")),
        # As after a while, or by the driver's own doing.
        ("gpu", {"STAND_IN_HANGS": "0", "STAND_IN_UNTIL": "until"}, 2, ("1", "0")),
    ],
)
def test_the_supervisor_starts_again_what_a_gpu_has_ended(
    compute: str,
    environment: dict[str, str],
    starts: int,
    counts: tuple[str, ...],
    deployer: Deployer,
    bundle: Path,
) -> None:
    root = _root(deployer, "gpu" if compute == "gpu" else "both", compute)
    folder = deployer.folder / f"{starts}-starts"
    folder.mkdir()
    folder.chmod(0o777)
    where, log, until = folder / "socket", folder / "log", folder / "until"
    if "STAND_IN_UNTIL" in environment:
        environment = {**environment, "STAND_IN_UNTIL": str(until)}
    words = [root / "bin/edgepack-device", "run", "--supervise", "--root", root, "--log", log]
    words += ["--", "--serve", f"unix:{where}", *LIMIT]

    def ask(path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """(0, nothing) of a server that is not there, or ends."""
        connection = _ByPath(where)
        try:
            headers = {} if body is None else {"Content-Type": "application/json"}
            connection.request("GET" if body is None else "POST", path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def said() -> str:
        return log.read_text() if log.exists() else ""

    account = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    env = {**os.environ, "LD_LIBRARY_PATH": str(deployer.driver), **environment}
    with subprocess.Popen(words, cwd="/", env=env, **account) as process:
        try:
            for _ in range(600):
                status, answer = ask("/v2/models/model/infer", _question(bundle))
                if status == 200:
                    break
                assert status in (0, 500), answer
                if "ended with exit code" in said():
                    until.touch()
                time.sleep(0.1)
            assert status == 200, said()
            assert _is_due(bundle, answer)
            text = ask("/metrics")[1].decode()
        finally:
            process.terminate()
            process.wait(30)
    found = re.findall(r"^edgepack_(?:on_gpu|gpu_failures_total) (\d+)$", text, re.M)
    assert tuple(found) == counts
    ends = said().count(f"the app ended with exit code {GpuLostError.exit_code}")
    assert ends == said().count("starting release") - 1 == starts - 1, said()

"""Reads at positions that come at run time, on a GPU: by OpenCL, on the CPU through pocl.

The CPU compares them and names a wrong one, the GPU reads with them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.boards import get_board
from edgepack.compiler import compile_model
from edgepack.compiler.gpu import planning, reads
from edgepack.frontend.load import load_model
from edgepack.frontend.precision import FULL
from edgepack.gpus import Gpu
from edgepack.kernels.tiles import tir
from edgepack.kernels.whole import kernel
from edgepack.model import ModelSpec
from edgepack.native.toolchain import select
from tests.functional.test_cuda import _run as _run_by_stand_in
from tests.functional.test_cuda import driver
from tests.functional.test_gpu import _NVRTC, CUDA, _bundle, _kernel_cache, _reference, _run, opencl
from tests.functional.test_positions import side_by_side
from tests.nvrtc_usage import usages
from tests.onnx_models import Builder
from tests.plan_by_app import run_by_app
from tests.run_time_positions import CASES, Positions

Array = np.ndarray
__all__ = ["_kernel_cache", "driver", "opencl"]
_INTEGERS = ("Gather", "Gather-inner", "GatherElements", "GatherND", "GatherND-batches")
_FLOATS = ("GridSample-linear-zeros-0", "GridSample-nearest-border-0")


def _on_cpu(bundle: Path) -> list[str]:
    """The kernels that the CPU runs."""
    plan = json.loads((bundle / "model/graph.json").read_text())
    on_gpu = {launch["call"] for launch in plan["gpu"]["launches"]}
    return [call["kernel"] for i, call in enumerate(plan["calls"]) if i not in on_gpu]


@dataclass(frozen=True, kw_only=True)
class OnGpu:
    """Operators side by side in one model, for the GPU."""

    cases: Sequence[Positions]
    path: Path
    bundle: Path

    def given(self, changed: Positions | None = None, value: int = 0) -> list[Array]:
        """All inputs; a position of one operator may be another one."""
        return [
            case.with_position(value) if case is changed and index == case.input else item
            for case in self.cases
            for index, item in enumerate(case.inputs)
        ]

    def run(self, given: list[Array]) -> list[Array]:
        return _run(self.bundle, given, sum(len(case.outputs) for case in self.cases))


def _made(names: Sequence[str], gpu: Gpu, folder: Path) -> OnGpu:
    cases = [case for case in CASES if case.name in names]
    assert len(cases) == len(names)
    onnx.save(side_by_side(cases), folder / "model.onnx")
    bundle = _bundle(folder / "model.onnx", gpu, folder / "bundle")
    return OnGpu(cases=cases, path=folder / "model.onnx", bundle=bundle)


@pytest.fixture(scope="module")
def integers(opencl: Gpu, tmp_path_factory: pytest.TempPathFactory) -> OnGpu:
    return _made(_INTEGERS, opencl, tmp_path_factory.mktemp("integers"))


def test_the_gpu_reads_and_the_cpu_compares(integers: OnGpu) -> None:
    on_cpu = [name.rstrip("0123456789") for name in _on_cpu(integers.bundle)]
    assert on_cpu == ["positions"] * len(_INTEGERS)


@pytest.mark.parametrize("name", _INTEGERS)
def test_a_wrong_position_is_named(name: str, integers: OnGpu) -> None:
    (case,) = (case for case in integers.cases if case.name == name)
    names = [value.name for value in onnx.load(integers.path).graph.input]
    for right in (case.low, case.high):
        assert right is not None
        given = integers.given(case, right)
        due = _reference(integers.path, dict(zip(names, given, strict=True)))
        for one, other in zip(integers.run(given), due, strict=True):
            np.testing.assert_array_equal(one, other)
    for wrong in case.wrong()[:2]:
        with pytest.raises(RuntimeError, match=f"has {wrong} at .* not between {case.low} and"):
            integers.run(integers.given(case, wrong))


def _picks(folder: Path) -> tuple[Path, list[Array], Array]:
    """A model that reads what it has computed where the data say; inputs, and what is due."""
    b = Builder(seed=2)
    y = b.op("Relu", b.conv("x", 3, 8))
    rows = b.op("Gather", b.op("Reshape", y, b.const([8, 36], "int64")), "k", axis=1)
    b.op("MatMul", b.op("Transpose", rows, perm=[1, 0]), b.weight(8, 5), outputs=["y"])
    integer = onnx.TensorProto.INT64
    shapes = {"x": [1, 3, 6, 6], "k": [7]}
    path = b.save(folder / "model.onnx", shapes, {"y": [7, 5]}, {"k": integer})
    x = np.random.default_rng(3).normal(size=shapes["x"]).astype("float32")
    k = np.int64([35, 0, -1, 7, 7, -36, 20])
    return path, [x, k], _reference(path, {"x": x, "k": k})[0]


def test_what_was_computed_is_read_where_the_data_say(opencl: Gpu, tmp_path: Path) -> None:
    """Of an image that the GPU has made no byte is copied to the CPU."""
    path, given, due = _picks(tmp_path)
    bundle = _bundle(path, opencl, tmp_path / "bundle")
    assert _on_cpu(bundle) == ["positions"]
    plan = json.loads((bundle / "model/graph.json").read_text())
    to_cpu = [copy["bytes"] for copy in plan["gpu"]["copies"] if copy["to"] == "cpu"]
    assert sum(to_cpu) == 7 * 5 * 4
    np.testing.assert_allclose(_run(bundle, given, 1)[0], due, rtol=1e-5, atol=1e-6)


def test_cudas_text_reads_where_the_data_say(driver: Path, tmp_path: Path) -> None:
    path, given, due = _picks(tmp_path)
    bundle = _bundle(path, CUDA, tmp_path)
    np.save(tmp_path / "in.npy", given[0])
    np.save(tmp_path / "k.npy", given[1])
    out = tmp_path / "out.npy"
    done = _run_by_stand_in(bundle, driver, f"--input={tmp_path}/k.npy", f"--output={out}")
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(out), due, rtol=1e-5, atol=1e-6)
    np.save(tmp_path / "k.npy", given[1] + 1)
    done = _run_by_stand_in(bundle, driver, f"--input={tmp_path}/k.npy")
    assert done.returncode
    assert "has 36 at [0], which is not between -36 and 35" in done.stderr


@_NVRTC
def test_nvrtc_compiles_what_reads_at_positions(tmp_path: Path) -> None:
    cases = [case for case in CASES if case.name in _INTEGERS or case.name in _FLOATS]
    for opset in {case.opset for case in cases}:
        onnx.save(side_by_side([c for c in cases if c.opset == opset]), tmp_path / "model.onnx")
        loaded = load_model(ModelSpec(path=tmp_path / "model.onnx"))
        planned = planning.plan_model(loaded, get_board("local"), CUDA, FULL)
        for version in ("11.4", "12.2"):
            found = usages(planned.on_gpu.values(), CUDA.arch, version)
            assert found
            assert not any(usage.spilt for usage in found)


def test_places_in_an_image_that_are_no_places(opencl: Gpu, tmp_path: Path) -> None:
    """NaN, infinity and what is far away give what they give on the CPU."""
    made = _made(_FLOATS, opencl, tmp_path)
    assert not _on_cpu(made.bundle)
    board = get_board("local")
    compile_model(ModelSpec(path=made.path), board, select(board).toolchain, tmp_path / "cpu")
    wrong = np.float32(made.cases[0].wrong())
    given = made.given()
    for index in range(1, len(given), 2):
        given[index] = given[index].copy()
        given[index][0].ravel()[: len(wrong)] = wrong  # in pairs of two, and beside a place
        given[index][1, 0, :, 1] = wrong[:4]
    on_cpu = run_by_app(tmp_path / "cpu", given)
    for case, one, other in zip(made.cases, made.run(given), on_cpu, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=case.name)


def test_what_nobody_has_compared_is_for_the_cpu() -> None:
    places, image, made = (
        tir.buffer(name, [4], kind)
        for name, kind in (("k", "int32"), ("x", "float32"), ("y", "float32"))
    )

    def gathers(scatters: bool) -> object:
        def one(i: tir.Expr) -> tir.Stmt:
            at = tir.load(places, [i])
            return tir.store(
                made, tir.load(image, [i if scatters else at]), [at if scatters else i]
            )

        return kernel([places, image], [made], tir.loop_of("i", 4, one))

    assert reads.keep_inside(gathers(scatters=False), [0], {}) is not None
    assert reads.keep_inside(gathers(scatters=False), [], {}) is None
    assert reads.keep_inside(gathers(scatters=False), [], {0: (0, 3)}) is not None
    assert reads.keep_inside(gathers(scatters=False), [], {0: (0, 4)}) is None
    # Threads would write in any order.
    assert reads.keep_inside(gathers(scatters=True), [0], {}) is None

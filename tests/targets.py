"""Models on every instruction set: this machine's, and ARM's under qemu, against onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from edgepack.boards import get_board
from edgepack.compiler import CompiledModel, compile_model
from edgepack.frontend.precision import FULL, Precision
from edgepack.kernels.choices import UNLIMITED
from edgepack.kernels.rules.rule import Rule
from edgepack.kernels.rules.table import RULES
from edgepack.model import ModelSpec
from edgepack.native.toolchain import select
from tests.onnx_models import Builder
from tests.plan_on_arm import run_plan_on_arm
from tests.plan_runner import run_plan
from tests.support import require_tool

# A board and a CPU: of this machine AVX-512 or what there is, AVX2, SSE4.2 without fused
# multiply-add; of ARM what qemu plays. Of the short form are the widest vectors there are, the
# ARM state with the fewest registers and no fused multiply-add, and 64 bits.
TARGETS = [
    pytest.param("local", "native", id="x86"),
    pytest.param("local", "haswell", id="avx2", marks=pytest.mark.slow),
    pytest.param("local", "nehalem", id="sse4.2", marks=pytest.mark.slow),
    pytest.param("rasp3b", "max", id="armv7-a53", marks=pytest.mark.slow),
    pytest.param("pynq", "cortex-a9", id="armv7-a9"),
    pytest.param("rk3399", "cortex-a72", id="aarch64-a72"),
    pytest.param("ultra96", "cortex-a53", id="aarch64-a53", marks=pytest.mark.slow),
]

every_target = pytest.mark.parametrize(("board", "cpu"), TARGETS)

# The short form shares the cases out: each of its targets has some of every kind.
_SHORT = [target for target in TARGETS if not target.marks]
every_target_in_parts = pytest.mark.parametrize(
    ("board", "cpu", "part"),
    [
        *(
            pytest.param(*target.values, slice((number + 1) % 2, None, 2), id=str(target.id))
            for number, target in enumerate(_SHORT)
        ),
        *(
            pytest.param(*target.values, slice(None), id=f"{target.id}-all", marks=pytest.mark.slow)
            for target in TARGETS
        ),
    ],
)


def some(cases: dict[str, str], part: slice) -> dict[str, str]:
    """Every second one, of the short form."""
    return dict(list(cases.items())[part])


def save_cases(
    path: Path,
    net: Builder,
    inputs: dict[str, tuple[int, ...]],
    cases: dict[str, str],
    dtypes: dict[str, int] | None = None,
    opset: int = 17,
) -> Path:
    """A model whose outputs are the values of `cases` under their names.

    `dtypes` are ONNX's types of inputs that are not float32; outputs have what comes out.
    """
    outputs = {net.op("Identity", value, outputs=[name]): None for name, value in cases.items()}
    proto = net.model(inputs, outputs, dtypes, opset=opset)
    for output in proto.graph.output:
        output.ClearField("type")
    onnx.save(onnx.shape_inference.infer_shapes(proto, strict_mode=True), path)
    return path


def compile_and_run(
    path: Path,
    inputs: list[np.ndarray],
    board_name: str,
    cpu: str,
    work: Path,
    rules: Sequence[Rule] = RULES,
    precision: Precision = FULL,
    growth: float = UNLIMITED,
) -> tuple[CompiledModel, list[np.ndarray]]:
    """The model compiled for a target, and its outputs; skips where the target cannot run."""
    board = get_board(board_name)
    if not board.is_local:
        compiler = require_tool(f"{board.triple}-gcc")
        arch = "aarch64" if board.triple.startswith("aarch64") else "arm"
        qemu = require_tool(f"qemu-{arch}-static", f"qemu-{arch}")
        compiled = compile_model(
            ModelSpec(path=path),
            board,
            select(board).toolchain,
            work / "out",
            rules=rules,
            precision=precision,
            growth=growth,
        )
        (work / "run").mkdir()
        command = [qemu, "-cpu", cpu, "-L", f"/usr/{board.triple}"]
        return compiled, run_plan_on_arm(
            compiled.folder, inputs, compiler=compiler, qemu=command, work=work / "run"
        )
    if board.llvm_triple != "x86_64-linux-gnu":
        pytest.skip("not an x86-64 machine")
    if cpu == "haswell" and "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this CPU has no AVX2")
    board = board if cpu == "native" else replace(board, cpu=cpu)
    compiled = compile_model(
        ModelSpec(path=path),
        board,
        select(board, "gnu").toolchain,
        work / "out",
        rules=rules,
        precision=precision,
        growth=growth,
    )
    # Twice: a second run must not see what the first one left.
    return compiled, run_plan(compiled.folder, inputs, runs=2)


def wrong_outputs(
    path: Path,
    inputs: list[np.ndarray],
    got: list[np.ndarray],
    tolerance: float = 1e-4,
    *,
    as_written: bool = False,
) -> list[str]:
    """Outputs that differ from onnxruntime's: floats by more than `tolerance` of their largest
    value. `as_written`: it fuses nothing, which makes integers of floats in some cases."""
    options = onnxruntime.SessionOptions()
    if as_written:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    expected = session.run(None, dict(zip(names, inputs, strict=True)))
    wrong = []
    for output, mine, theirs in zip(session.get_outputs(), got, expected, strict=True):
        if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
            wrong.append(f"{output.name}: {mine.dtype} {mine.shape}")
        elif theirs.dtype.kind != "f":
            differing = np.count_nonzero(mine != theirs)
            wrong += [f"{output.name}: {differing} of {mine.size}"] if differing else []
        elif not (error := _error(mine, theirs)) <= tolerance:
            wrong.append(f"{output.name}: {error:.1e}")
    return wrong


def _error(mine: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference, as a share of the largest value; NaN and infinities have to be where
    they are."""
    nothing = ~np.isfinite(theirs)
    if not np.array_equal(mine[nothing], theirs[nothing], equal_nan=True):
        return float("nan")
    mine, theirs = np.where(nothing, 0, mine), np.where(nothing, 0, theirs)
    largest = max(float(np.abs(theirs).max(initial=0)), 1e-30)
    return float(np.abs(mine.astype("float64") - theirs).max(initial=0)) / largest

"""Kernels linked without a compiler: what they compute, on every instruction set, and the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from edgepack.base.process import run
from edgepack.boards import Board, get_board
from edgepack.gate.elf import find_instructions, read_elf
from edgepack.native.toolchain import Choice, for_kernels, select, zig_builtins
from tests import targets
from tests.onnx_models import Builder
from tests.support import require_tool
from tests.targets import compile_and_run, every_target, save_cases, wrong_outputs

INPUTS = {"image": (1, 8, 13, 18), "left": (7, 45), "right": (7, 45), "long": (5, 9)}
DTYPES = {"left": TensorProto.INT32, "right": TensorProto.INT32, "long": TensorProto.INT64}


def no_compiler(board: Board, force: str | None = None) -> Choice:
    """What is chosen where a wheel has the programs, with zig's own functions from where zig is."""
    installed = select(board, force).toolchain
    linker = for_kernels(replace(installed, cc=(), cxx=()), board)
    builtins = None if board.is_local else zig_builtins(board)
    return Choice(toolchain=replace(linker, builtins=builtins), reason="")


def save_model(path: Path) -> Path:
    """Loops, the C library's functions, constants, scratch memory, and what ARMv7 has no
    instructions for: division, 64-bit integers as floats and back."""
    net = Builder()
    conv = net.conv("image", 8, 16)
    cases = {
        "convolution": net.op("Relu", conv),
        "functions": net.op("Erf", net.op("Tanh", net.op("Exp", net.op("Sin", "image")))),
        "angles": net.op("Acosh", net.op("Add", net.op("Abs", "image"), net.const(1, "float32"))),
        "power": net.op("Pow", net.op("Abs", "image"), net.const(1.7, "float32")),
        "rows": net.op("Softmax", "image", axis=-1),
        "quotient": net.op("Div", "left", "right"),
        "remainder": net.op("Mod", "left", "right"),
        "long quotient": net.op("Div", "long", net.const(7, "int64")),
        "long remainder": net.op("Mod", "long", net.const(-5, "int64")),
        "to floats": net.op("Cast", "long", to=TensorProto.FLOAT),
        "from floats": net.op("Cast", net.op("Mul", "image", net.const(1e3, "float32")), to=7),
        "places": net.op("ArgMax", "image", axis=3),
    }
    return save_cases(path, net, INPUTS, cases, DTYPES)


@every_target
def test_it_computes_what_the_reference_does(
    board: str, cpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "select", no_compiler)
    model = save_model(tmp_path / "model.onnx")
    random = np.random.default_rng(3)
    right = random.integers(1, 99, INPUTS["right"]) * random.choice([-1, 1], INPUTS["right"])
    inputs = [
        random.normal(size=INPUTS["image"]).astype("float32"),
        random.integers(-(2**31), 2**31, INPUTS["left"], "int32"),
        right.astype("int32"),
        random.integers(-(2**62), 2**62, INPUTS["long"]),
    ]
    compiled, outputs = compile_and_run(model, inputs, board, cpu, tmp_path)
    assert not wrong_outputs(model, inputs, outputs)
    profile = get_board(board)
    assert not compiled.objects.exists()
    elf = read_elf(compiled.library)
    # Whether memset is called, or is stores of its own, is the CPU's: on an AMD EPYC it is not.
    assert set(elf.needed) - {"libc.so.6"} == {"libm.so.6"}
    assert not elf.needs  # no version of glibc
    assert elf.has_code_map
    assert elf.float_abi == profile.float_abi
    assert elf.page_bytes == (4 << 10 if profile.is_local else 64 << 10)
    assert not find_instructions(compiled.library, profile.forbidden)
    said = run([require_tool("readelf"), "--all", "--wide", compiled.library])
    assert "__tvm_ffi_" in said.stdout
    assert not said.stderr  # nothing odd

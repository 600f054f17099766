"""No operator is left a loop of scalars, whatever the instruction set and the number of cores."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
import tvm_ffi
from tvm import tirx

from edgepack.boards import get_board
from edgepack.compiler.backend import llvm, schedule
from edgepack.compiler.place import lower
from edgepack.frontend import importer
from edgepack.frontend.load import load_model
from edgepack.model import ModelSpec
from tests.functional import test_compiler_operators, test_compiler_types
from tests.onnx_models import Builder
from tests.targets import save_cases

# Shorter loops may be what is left of a row after its last vector.
SHORT = 20
# Elements from or to anywhere: no instruction set here loads or stores a vector of those. A merge
# takes from one of two places, after what it compares.
SCALAR = ("positions", "scatter_elements", "take", "top_k")
# A power by a tensor is the C library's, an element at a time.
POWER = re.compile(r"T\.pow\(\w+\[[^]]*\], \w+\[")


def scalar_loops(function: tirx.PrimFunc) -> list[str]:
    """What innermost loops store that have no vector in them."""
    found: list[str] = []

    def visit(loop: tirx.For) -> None:
        loops: list[tirx.For] = []
        stores: list[tirx.BufferStore] = []
        tvm_ffi.structural_walk(loop.body, (tirx.For, loops.append))
        tvm_ffi.structural_walk(loop.body, (tirx.BufferStore, stores.append))
        innermost = not loops and loop.kind != tirx.ForKind.VECTORIZED
        vectors = any(isinstance(store.indices[-1], tirx.Ramp) for store in stores)
        short = isinstance(loop.extent, tirx.IntImm) and int(loop.extent) < SHORT
        if innermost and stores and not vectors and not short:
            found.append(str(stores[0]).splitlines()[-1])

    tvm_ffi.structural_walk(function.body, (tirx.For, visit))
    return found


@pytest.mark.parametrize("family", [test_compiler_operators, test_compiler_types])
# Of 4 cores, 2 and 6.
@pytest.mark.parametrize("board", ["rasp3b", "pynq", "rk3399"])
def test_loops_are_vectors(tmp_path: Path, board: str, family: ModuleType) -> None:
    draw = family.Draw(Builder(seed=13), 13)
    made = [case for cases in family.FAMILIES for case in cases(draw).items()]
    cases = {f"{index} {name}": value for index, (name, value) in enumerate(made)}
    dtypes = getattr(family, "DTYPES", None)
    path = save_cases(tmp_path / "model.onnx", draw.net, family.INPUTS, cases, dtypes)
    model, target = load_model(ModelSpec(path=path)), llvm.tvm_target(get_board(board))
    module, _ = lower.lower(importer.import_model(model), target, model)
    left = {
        name.name_hint: scalar_loops(function)
        for name, function in schedule.schedule(module, target).functions.items()
        if isinstance(function, tirx.PrimFunc)
        and not any(word in name.name_hint for word in SCALAR)
    }
    assert len(left) > 20
    assert not {
        name: loops for name, loops in left.items() if any(not POWER.search(loop) for loop in loops)
    }

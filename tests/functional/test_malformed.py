"""A malformed model ends as an error that names it: no traceback, no crash, no endless work."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepack.base.apart import Limits
from edgepack.base.errors import EdgepackError
from edgepack.boards import get_board
from edgepack.compiler import compile_with
from edgepack.compiler.limited import within
from edgepack.frontend import errors
from edgepack.frontend.load import load_model
from edgepack.frontend.memory import check_before, check_folding
from edgepack.model import ModelSpec, check_model, read_model
from edgepack.model.errors import (
    ExternalDataError,
    InvalidModelError,
    NotOnnxError,
    TruncatedModelError,
)
from edgepack.native.toolchain import select
from tests.mutants import NAMED, mutant

LIMITS = Limits(memory_mb=2048, cpu_s=60)
# Those that the other process ends with: seconds each, and one of the kind is enough for CI.
IN_CI = ("kernel of 0", "reshape to another size")
SEEDS = 200 - len(NAMED)
# What no message may hold: the words of TVM, Python and protobuf.
FOREIGN = re.compile(r"Traceback|Literal value|BlockBuilder|TVMError|tvm\.|InternalError|NoneType")


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("external data by traversal", ExternalDataError, "'../data.bin', which is not below"),
        ("external data at an absolute path", ExternalDataError, "'/etc/passwd'"),
        ("external data through a link", ExternalDataError, "is a link: .*link.bin"),
        ("external data at a bad offset", ExternalDataError, "offset .* is '-5'"),
        ("external data after its end", TruncatedModelError, "64 of 124 bytes"),
        ("external data too short", InvalidModelError, r"'c0' .* has 8 bytes, not 64"),
        ("operator that is no UTF-8", InvalidModelError, "not UTF-8: b'.xff"),
        ("node without outputs", InvalidModelError, r"'Relu_0' \(Relu\) has no outputs"),
        ("graph without outputs", InvalidModelError, "'test' has no outputs"),
        ("two weights of one name", InvalidModelError, "two initializers are called 'c0'"),
        ("function that calls itself", InvalidModelError, "'F' calls itself"),
        ("nothing", NotOnnxError, "not an ONNX model"),
    ],
)
def test_what_the_file_tells(
    tmp_path: Path, name: str, error: type[EdgepackError], words: str
) -> None:
    path = NAMED[name](tmp_path)
    with pytest.raises(error, match=words) as caught:
        read_model(ModelSpec(path=path))
    assert str(tmp_path) in caught.value.message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        # 2 tensors of 3 * 30000^2 floats; 3 planes of (4 + 2 * 2^30)^2 floats.
        ("large image", "needs 20600 MB .* rasp3b has 1024 MB"),
        ("input of 2^40", "needs 8388608 MB"),
        ("pads of 2^30", "result of Pad 'Pad_0', float32 1x1x2147483652x2147483652, alone"),
    ],
)
def test_what_no_board_can_hold_is_refused_before_it_is_compiled(
    tmp_path: Path, name: str, words: str
) -> None:
    model = load_model(ModelSpec(path=NAMED[name](tmp_path)))
    with pytest.raises(errors.BoardMemoryError, match=words):
        check_before(model.path, model.expanded, get_board("rasp3b"))


@pytest.mark.parametrize("operator", ["ConstantOfShape", "Range", "Expand", "Tile"])
def test_folding_has_a_budget(tmp_path: Path, operator: str) -> None:
    (name,) = (name for name in NAMED if name.startswith(operator))
    with pytest.raises(errors.FoldingBudgetError, match=f"{operator} '{operator}_0' makes"):
        load_model(ModelSpec(path=NAMED[name](tmp_path)))


def test_the_budget_follows_what_the_compiler_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice 4 GB of constants need 64 GB."""
    (name,) = (name for name in NAMED if name.startswith("ConstantOfShape"))
    model = read_model(ModelSpec(path=NAMED[name](tmp_path)))
    for limit_gb, fits in ((31, False), (64, True)):
        limit = (limit_gb << 30, resource.RLIM_INFINITY)
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: limit)
        if fits:
            check_folding(model.path, model.proto, model.size_bytes)
            continue
        with pytest.raises(errors.FoldingBudgetError, match="3968 MB"):
            check_folding(model.path, model.proto, model.size_bytes)


def ends_well(make: Callable[[Path], Path], folder: Path) -> None:
    """Compiled for a board, or refused with an error that names the file, within `LIMITS`."""
    path = make(folder)
    board = get_board("rasp3b")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        check_model(read_model(ModelSpec(path=path)))
        toolchain = select(board).toolchain
        spec, out = ModelSpec(path=path), folder / "out"
        within(path, LIMITS, compile_with, spec, board, toolchain, out)
    except EdgepackError as error:
        assert str(folder) in error.message
        assert not FOREIGN.search(str(error)), error
        assert not isinstance(error, errors.CompilerCrashError), error
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 75


@pytest.mark.parametrize(
    "name", [n if n in IN_CI else pytest.param(n, marks=pytest.mark.slow) for n in NAMED]
)
def test_named(tmp_path: Path, name: str) -> None:
    ends_well(NAMED[name], tmp_path)


@pytest.mark.parametrize(
    "seed", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in range(SEEDS) if n != 2)]
)
def test_by_seed(tmp_path: Path, seed: int) -> None:
    ends_well(lambda folder: mutant(folder, seed), tmp_path)


def test_a_limit_names_what_was_worked_on(tmp_path: Path) -> None:
    path = NAMED["chain of 3000"](tmp_path)
    board = get_board("rasp3b")
    limits = Limits(memory_mb=2048, cpu_s=1)
    with pytest.raises(errors.CompilerTimeError, match=r"more than 1 s .*; it was [a-z]"):
        spec, toolchain = ModelSpec(path=path), select(board).toolchain
        within(path, limits, compile_with, spec, board, toolchain, tmp_path / "out")

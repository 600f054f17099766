"""A compiled model is compared with the reference before it is bundled."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgepack.boards import get_board
from edgepack.compiler import CompiledModel, compile_model
from edgepack.flow.reference import random_input
from edgepack.flow.verify import VerifyError, first_true, make_cases, tolerance_for, verify
from edgepack.model import LoadedModel, ModelSpec, TensorInfo, read_model
from edgepack.native.toolchain import select
from tests import onnx_models


@pytest.mark.parametrize("at", range(6))
def test_the_first_is_found(at: int) -> None:
    asked: list[int] = []

    def holds(index: int) -> bool:
        asked.append(index)
        return index >= at

    assert first_true(5, holds) == (at if at < 5 else None)
    assert len(asked) <= 3


def test_the_tolerance_follows_the_outputs_types() -> None:
    def bound(dtype: str) -> float:
        return tolerance_for([TensorInfo(name="y", dtype=dtype, shape=(1,))], 1e-4)

    assert bound("float32") == bound("int64") == 1e-4
    # Rounding to float16's ten bits alone may be off by half of 2^-10.
    assert 2**-11 < bound("float16") < 2**-9


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, CompiledModel]:
    folder = tmp_path_factory.mktemp("verify")
    spec = ModelSpec(path=onnx_models.one_conv(folder / "net.onnx"))
    board = get_board("local")
    compiled = compile_model(spec, board, select(board).toolchain, folder / "out")
    return read_model(spec), compiled


def test_what_is_right_passes_on_every_kind_of_input(
    built: tuple[LoadedModel, CompiledModel],
) -> None:
    model, compiled = built
    golden = [random_input(model.inputs[0], np.random.RandomState(0))]
    assert verify(model, compiled, golden, tolerance=1e-4) == tuple(
        make_cases(model.inputs, golden)
    )


def test_what_is_wrong_is_named(
    built: tuple[LoadedModel, CompiledModel],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, compiled = built
    golden = [random_input(model.inputs[0], np.random.RandomState(0))]
    broken = Path(shutil.copytree(compiled.folder, tmp_path / "out"))
    weights = np.fromfile(broken / "params.bin", "uint8")
    weights[:] = 0
    weights.tofile(broken / "params.bin")
    other = replace(
        compiled,
        folder=broken,
        params=broken / "params.bin",
        graph=broken / "graph.json",
        library=broken / "model.so",
    )

    def all_wrong(count: int, holds: Callable[[int], bool]) -> int | None:
        return 0 if count else None

    monkeypatch.setattr("edgepack.flow.verify.first_true", all_wrong)
    with pytest.raises(VerifyError, match=r"on the golden input, output 'features' is off by") as e:
        verify(model, other, golden, tolerance=1e-4)
    assert "the first layer to differ is Conv 'Conv_0'" in e.value.message

"""A compiled model is compared with the reference before it is bundled."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgepack.boards import get_board
from edgepack.bundle.verified import Verified
from edgepack.compiler import CompiledModel, compile_model
from edgepack.flow.reference import Array, random_input, run_reference
from edgepack.flow.verify import (
    Emulated,
    VerifyError,
    first_true,
    make_cases,
    share,
    tolerance_for,
    verify,
)
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


def inputs_of(model: LoadedModel) -> list[Array]:
    return [random_input(model.inputs[0], np.random.RandomState(0))]


def never() -> CompiledModel:
    raise AssertionError("no build for this machine is needed")


def broken(compiled: CompiledModel, folder: Path) -> CompiledModel:
    """A copy of it whose weights are all 0."""
    copy = Path(shutil.copytree(compiled.folder, folder / "broken"))
    (copy / "params.bin").write_bytes(bytes(compiled.params_bytes))
    files = {"params": "params.bin", "graph": "graph.json", "library": "model.so"}
    return replace(compiled, folder=copy, **{key: copy / name for key, name in files.items()})


def test_what_is_right_passes_on_every_kind_of_input(
    built: tuple[LoadedModel, CompiledModel],
) -> None:
    model, compiled = built
    golden = inputs_of(model)
    found = verify(model, get_board("local"), compiled, golden, tolerance=1e-4, build_local=never)
    assert found.local == tuple(make_cases(model.inputs, golden))
    assert found.local == ("golden", "all-zero", "random", "large random")
    assert found.emulated == ()


def test_inputs_without_axes_are_arrays() -> None:
    infos = [TensorInfo(name=kind, dtype=kind, shape=()) for kind in ("bool", "int64", "float32")]
    golden = [np.zeros((), info.dtype) for info in infos]
    for inputs in make_cases(infos, golden).values():
        assert all(isinstance(array, np.ndarray) for array in inputs)
        assert [str(array.dtype) for array in inputs] == ["bool", "int64", "float32"]


def test_what_is_wrong_is_named(
    built: tuple[LoadedModel, CompiledModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, compiled = built

    def all_wrong(count: int, holds: Callable[[int], bool]) -> int | None:
        return 0 if count else None

    monkeypatch.setattr("edgepack.flow.verify.first_true", all_wrong)
    with pytest.raises(VerifyError, match=r"on the golden input, output 'features' is off by") as e:
        verify(
            model,
            get_board("local"),
            broken(compiled, tmp_path),
            inputs_of(model),
            tolerance=1e-4,
            build_local=never,
        )
    assert "the first layer to differ is Conv 'Conv_0'" in e.value.message


def test_no_more_is_asked_than_the_reference_itself_keeps(
    built: tuple[LoadedModel, CompiledModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, compiled = built
    local, golden = get_board("local"), inputs_of(model)
    # The reference is of a model whose weights are 0.1 % larger.
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for tensor in proto.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(values * np.float32(1.001), tensor.name))
    other = replace(model, proto=proto, sha256=str(tmp_path))  # nothing is known of it

    def compared(wrong: CompiledModel) -> Verified:
        return verify(other, local, wrong, golden, tolerance=1e-4, build_local=never)

    monkeypatch.setattr("edgepack.flow.verify.first_layer", lambda *_: "")
    with pytest.raises(VerifyError):
        compared(compiled)
    apart = 0.001 * float(np.abs(run_reference(proto, {}, golden)[0]).max())
    monkeypatch.setattr("edgepack.flow.verify.rounding", lambda *_: [apart])
    for _ in range(2):  # the second time from the cache
        assert 1e-4 < compared(compiled).tolerance < 0.05
    # Whatever two ways of the reference are apart, this is no rounding.
    monkeypatch.setattr("edgepack.flow.verify.rounding", lambda *_: [1e9])
    with pytest.raises(VerifyError):
        compared(broken(compiled, tmp_path))


@pytest.mark.parametrize(
    ("macs", "emulated", "local"),
    [(375e6, 4, False), (376e6, 1, True), (1500e6, 1, True), (1501e6, 0, True)],
)
def test_what_takes_long_is_emulated_on_fewer_inputs(
    built: tuple[LoadedModel, CompiledModel],
    monkeypatch: pytest.MonkeyPatch,
    macs: float,
    emulated: int,
    local: bool,
) -> None:
    _, compiled = built
    layer = replace(compiled.layers[0], macs=int(macs))
    heavy = replace(compiled, layers=(layer,))
    board = get_board("rasp3b")
    monkeypatch.setattr("edgepack.flow.verify.emulator", lambda _: ("qemu",))
    found = share(board, heavy, ["golden", "b", "c", "d"])
    assert (found.cases, found.local) == (("golden", "b", "c", "d")[:emulated], local)
    monkeypatch.setattr("edgepack.flow.verify.emulator", lambda _: None)
    assert share(board, heavy, ["golden"]) == Emulated(cases=(), local=True)

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
from edgepack.flow.adversarial import odd_cases
from edgepack.flow.reference import Array, random_input, run_reference
from edgepack.flow.tolerances import tolerance_for
from edgepack.flow.verify import (
    Emulated,
    VerifyError,
    first_true,
    make_cases,
    share,
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
    local = get_board("local")
    found, order = verify(model, local, compiled, golden, tolerance=1e-4, build_local=never)
    assert order is None
    assert found.local == (*make_cases(model.inputs, golden), *odd_cases(model, golden))
    assert found.local[:5] == ("golden", "all-zero", "random", "large random", "NaN in one place")
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
    with pytest.raises(VerifyError, match=r"test.s input, output 'features' is off by") as e:
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
        return verify(other, local, wrong, golden, tolerance=1e-4, build_local=never)[0]

    monkeypatch.setattr("edgepack.flow.verify.first_layer", lambda *_: "")
    with pytest.raises(VerifyError):
        compared(compiled)
    monkeypatch.setattr(
        "edgepack.flow.verify.other_ways",
        lambda _path, _model, inputs, _floats: [run_reference(model.proto, {}, inputs)],
    )
    for _ in range(2):  # the second time from the cache
        assert 1e-4 < compared(compiled).tolerance < 0.05
    with pytest.raises(VerifyError, match="is off by"):
        compared(broken(compiled, tmp_path))


def test_an_input_on_which_the_reference_is_a_guess_is_left_out(
    built: tuple[LoadedModel, CompiledModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, compiled = built
    golden = inputs_of(model)
    guessed = ["all-zero"]
    monkeypatch.setattr("edgepack.flow.verify.odd_cases", lambda *_: {})

    def guesses(
        _path: Path, _model: object, inputs: list[Array], _floats: object
    ) -> list[list[Array]]:
        right = run_reference(model.proto, {}, inputs)
        cases = make_cases(model.inputs, golden)
        is_one = any(np.array_equal(inputs[0], cases[name][0]) for name in guessed)
        return [[array + (not is_one) for array in right]]

    def outputs(
        _path: Path, _proto: object, cases: list[list[Array]], _floats: object
    ) -> list[list[Array]]:
        """With another result for zeros."""
        return [
            [
                array
                + (
                    not inputs[0].any()
                    or ("golden" in guessed and np.array_equal(inputs[0], golden[0]))
                )
                for array in run_reference(model.proto, {}, inputs)
            ]
            for inputs in cases
        ]

    monkeypatch.setattr("edgepack.flow.verify.first_layer", lambda *_: "")
    monkeypatch.setattr("edgepack.flow.verify.model_outputs", outputs)
    monkeypatch.setattr("edgepack.flow.verify.other_ways", guesses)

    def compared(name: str) -> tuple[str, ...]:
        fresh = replace(model, sha256=f"{tmp_path}{name}")  # nothing is known of it
        local = get_board("local")
        return verify(fresh, local, compiled, golden, tolerance=1e-4, build_local=never)[0].local

    assert compared("zeros") == ("golden", "random", "large random")
    guessed.append("golden")
    with pytest.raises(VerifyError, match="hang on how sums are rounded") as caught:
        compared("golden")
    assert "golden_image" in (caught.value.hint or "")
    guessed.clear()
    with pytest.raises(VerifyError, match="on the all-zero input"):
        compared("nothing")


def test_golden_rows_are_in_the_order_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = onnx_models.Builder()
    scores = net.op("Gather", "x", net.const(0), axis=1)
    _, best = net.op("TopK", scores, net.const([4]), outputs=["scores", "best"]), "best"
    net.op("Gather", "x", best, axis=0, outputs=["rows"])
    path, board = tmp_path / "net.onnx", get_board("local")
    onnx.save(net.model({"x": [6, 3]}, {"rows": [4, 3]}), path)
    spec = ModelSpec(path=path)
    compiled = compile_model(spec, board, select(board).toolchain, tmp_path / "out")
    model = read_model(spec)
    x = inputs_of(model)[0]
    x[:, 0] = [0.1, 0.7, 0.5, 0.5 - 6e-8, 0.9, 0.0]

    def other_order(
        _path: Path, proto: object, cases: list[list[Array]], _floats: object
    ) -> list[list[Array]]:
        """As if the scores in the middle were rounded otherwise."""
        right = [run_reference(proto, {}, inputs) for inputs in cases]
        for inputs, (rows,) in zip(cases, right, strict=True):
            if np.array_equal(inputs[0], x):
                rows[:, 1:] = rows[[0, 1, 3, 2], 1:]
        return right

    monkeypatch.setattr("edgepack.flow.verify.model_outputs", other_order)
    for _ in range(2):  # the second time from the cache
        found, order = verify(model, board, compiled, [x], tolerance=1e-4, build_local=never)
        assert found.local[0] == "golden"
        assert order is not None
        np.testing.assert_array_equal(order[0][:, 1:], x[[4, 1, 2, 3]][:, 1:])


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

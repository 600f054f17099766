"""What is bundled was compared with the reference, the boards' own code under an emulator."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.boards import get_board
from edgepack.bundle.bundle import BundleError, open_bundle
from edgepack.bundle.verified import Verified
from edgepack.cli import main
from edgepack.compiler import CompiledModel, compile_model
from edgepack.flow.reference import random_input, run_reference
from edgepack.flow.verify import VerifyError, verify
from edgepack.model import LoadedModel, ModelSpec, read_model
from edgepack.native.emulate import EmulationError, run_emulated
from edgepack.native.toolchain import select
from tests import onnx_models
from tests.bundles import small_bundle
from tests.onnx_models import Builder
from tests.support import require_tool

Built = tuple[LoadedModel, CompiledModel]


@pytest.fixture(scope="module", params=["pynq", "rasp3b-64"])
def board_name(request: pytest.FixtureRequest) -> str:
    require_tool("qemu-arm-static")
    require_tool("qemu-aarch64-static")
    return str(request.param)


@pytest.fixture(scope="module")
def built(board_name: str, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Branches, whose kernels take several inputs and run in parallel."""
    folder = tmp_path_factory.mktemp("verify")
    spec = ModelSpec(path=onnx_models.branches(folder / "net.onnx"))
    board = get_board(board_name)
    compiled = compile_model(spec, board, select(board).toolchain, folder / "out")
    return read_model(spec), compiled


def never() -> CompiledModel:
    raise AssertionError("no build for this machine is needed")


def test_a_boards_code_gives_the_references_outputs(board_name: str, built: Built) -> None:
    model, compiled = built
    random = np.random.RandomState(3)
    cases = [[random_input(info, random) for info in model.inputs] for _ in range(2)]
    outputs = run_emulated(compiled.folder, get_board(board_name), cases)
    for inputs, got in zip(cases, outputs, strict=True):
        for output, wanted in zip(got, run_reference(model.proto, {}, inputs), strict=True):
            np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-5)
    golden = [random_input(info, random) for info in model.inputs]
    found, _ = verify(
        model, get_board(board_name), compiled, golden, tolerance=1e-4, build_local=never
    )
    assert found.emulated[:4] == ("golden", "all-zero", "random", "large random")
    assert found.local == ()


def test_a_state_is_carried_from_case_to_case(tmp_path: Path) -> None:
    require_tool("qemu-arm-static")
    net = Builder()
    net.op("Add", "x", net.op("Mul", "state", net.const(np.float32(0.5))), outputs=["next"])
    path, board = tmp_path / "net.onnx", get_board("rasp3b")
    onnx.save(net.model({"x": [4], "state": [4]}, {"next": [4]}), path)
    built = compile_model(ModelSpec(path=path), board, select(board).toolchain, tmp_path / "out")
    steps = np.arange(12, dtype=np.float32).reshape(3, 4)
    state, due = np.full(4, 8, np.float32), []
    cases = [[step, state] for step in steps]
    for step in steps:
        due.append(state := step + state / 2)
    got = run_emulated(built.folder, board, cases, states={1: 0})
    np.testing.assert_array_equal([outputs[0] for outputs in got], due)


def test_a_kernel_that_is_not_there_is_an_error(
    board_name: str, built: Built, tmp_path: Path
) -> None:
    model, compiled = built
    graph = json.loads(compiled.graph.read_text())
    graph["calls"][0]["kernel"] = "nonsense"
    for name in ("model.so", "params.bin"):
        (tmp_path / name).symlink_to(compiled.folder / name)
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    inputs = [random_input(info, np.random.RandomState(0)) for info in model.inputs]
    with pytest.raises(EmulationError, match="no such kernel: nonsense"):
        run_emulated(tmp_path, get_board(board_name), [inputs])


def test_wrong_weights_stop_the_making(
    board_name: str, built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers themselves are compiled right, which the message says, too."""
    model, compiled = built
    files = {"graph": "graph.json", "library": "model.so", "params": "params.bin"}
    for name in files.values():
        (tmp_path / name).write_bytes((compiled.folder / name).read_bytes())
    (tmp_path / "params.bin").write_bytes(bytes(compiled.params_bytes))
    wrong = replace(compiled, folder=tmp_path, **{k: tmp_path / v for k, v in files.items()})
    golden = [random_input(info, np.random.RandomState(0)) for info in model.inputs]

    def only_the_first(count: int, holds: Callable[[int], bool]) -> int | None:
        assert not holds(0)
        return None

    monkeypatch.setattr("edgepack.flow.verify.first_true", only_the_first)
    with pytest.raises(
        VerifyError, match=f"for {board_name}, on the smoke test's input, output"
    ) as e:
        verify(model, get_board(board_name), wrong, golden, tolerance=1e-4, build_local=never)
    assert "cut off after any one of its layers it does not differ" in e.value.message


def test_what_was_done_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By a bundle's file, and `edgepack verify` says it."""
    done = Verified(emulated=("golden",), local=("golden", "random"))
    for verified, words in (
        (done, "smoke-test input (emulated); smoke-test input, random (on the maker's machine)"),
        (Verified(), "no: made with --no-verify"),
        (None, "not recorded"),
    ):
        bundle = open_bundle(small_bundle(tmp_path, verified=verified).path)
        assert bundle.verified == verified
        assert main(["verify", str(bundle.path)]) == 0
        assert f"compared {words}\n" in capsys.readouterr().out


def test_the_record_of_older_bundles_is_read(tmp_path: Path) -> None:
    bundle = small_bundle(tmp_path, verified=Verified())
    file = bundle.file("verified.json")
    file.write_text('{"inputs": ["the golden"], "tolerance": 0.001}')
    assert bundle.verified == Verified(local=("the golden",), tolerance=1e-3)
    file.write_text('{"emulated": 3}')
    with pytest.raises(BundleError, match=r"verified\.json: emulated"):
        _ = bundle.verified

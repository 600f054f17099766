"""States: what a network feeds back to itself stays in memory, over sequences of inferences."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from edgepack.boards import get_board
from edgepack.cli import main
from edgepack.compiler import CompiledModel, compile_model
from edgepack.model import ModelSpec
from edgepack.native.emulate import run_emulated
from edgepack.native.toolchain import select
from tests.boards import own_boards
from tests.decoders import UPDATES, decoder
from tests.onnx_models import Builder
from tests.plan_runner import PlanRunner
from tests.support import require_tool

Array = np.ndarray


def _compiled(
    path: Path, states: Mapping[str, str], out: Path, board: str = "local"
) -> CompiledModel:
    where = get_board(board)
    kind = "gnu" if where.is_local else None
    spec = ModelSpec(path=path, states=states)
    return compile_model(spec, where, select(where, kind).toolchain, out)


def _by_hand(
    path: Path, states: Mapping[str, str], steps: Sequence[Mapping[str, Array]]
) -> tuple[list[dict[str, Array]], list[list[Array]]]:
    """On onnxruntime, which is fed its own outputs: all inputs of each step, and all outputs.

    An output that is longer than its state has its end kept.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # it warns of each copy of a cache
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    kinds = {info.name: info for info in session.get_inputs()}
    zeros = {
        name: np.zeros(kinds[name].shape, "float16" if "16" in kinds[name].type else "float32")
        for name in states
    }
    names = [info.name for info in session.get_outputs()]
    fed, made, now = [], [], zeros
    for step in steps:
        fed.append({name: {**now, **step}[name] for name in kinds})
        outputs = dict(zip(names, session.run(None, fed[-1]), strict=True))
        for name, output in states.items():
            last = tuple(slice(-size, None) for size in zeros[name].shape)
            now = {**now, name: np.ascontiguousarray(outputs[output][last])}
            outputs[output] = now[name]
        made.append(list(outputs.values()))
    return fed, made


def _near(got: Sequence[Array], due: Sequence[Array]) -> None:
    for mine, theirs in zip(got, due, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def _caches(proto: onnx.ModelProto) -> dict[str, str]:
    names = [info.name for info in proto.graph.input if info.name.startswith("past")]
    return {name: name.replace("past_key_values", "present") for name in names}


def _tokens(count: int) -> list[dict[str, Array]]:
    ids = np.random.default_rng(1).integers(0, 50, count)
    return [
        {"ids": np.array([[token]]), "position": np.array([step])} for step, token in enumerate(ids)
    ]


@pytest.mark.parametrize("update", UPDATES)
def test_a_decoder_keeps_its_caches(update: str, tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    onnx.save(proto := decoder(update), path)
    # By their names alone, but for caches that grow.
    wanted = {"past_key_values.*": "present.*"} if update == "longer" else {}
    compiled = _compiled(path, wanted, tmp_path / "out")
    assert compiled.states_bytes == 4 * (1 * 2 * 16 * 8) * 4
    plan = json.loads(compiled.graph.read_text())
    assert len(plan["states"]) == 4
    kernels = [call["kernel"] for call in plan["calls"]]
    if update in ("elements", "rows", "between", "steps", "shifted"):
        # Nothing moves a cache: what is copied are positions.
        assert not [name for name in kernels if name.startswith(("copy", "transpose", "layout"))]
    assert sum(name.startswith("attention") for name in kernels) == 2
    runner, tokens = PlanRunner(compiled.folder), _tokens(16)
    _, due = _by_hand(path, _caches(proto), tokens)
    kept = [None] * 4
    for step, outputs in zip(tokens, due, strict=True):
        _near(runner.run([*step.values(), *kept]), outputs)
    # Another sequence begins like the first one.
    runner.reset()
    _near(runner.run([*tokens[0].values(), *kept]), due[0])


@pytest.mark.parametrize("board", ["pynq", "rk3399"])
@pytest.mark.parametrize(
    "update", ["rows", *(pytest.param(u, marks=pytest.mark.slow) for u in UPDATES if u != "rows")]
)
def test_a_decoder_on_a_board(update: str, board: str, tmp_path: Path) -> None:
    """Each step, from the caches that onnxruntime had."""
    arch = "aarch64" if "aarch64" in get_board(board).triple else "arm"
    require_tool(f"qemu-{arch}-static", f"qemu-{arch}")
    path = tmp_path / "decoder.onnx"
    onnx.save(proto := decoder(update), path)
    states = _caches(proto)
    compiled = _compiled(path, states, tmp_path / "out", board)
    fed, due = _by_hand(path, states, _tokens(16))
    cases = [list(inputs.values()) for inputs in fed]
    for got, outputs in zip(
        run_emulated(compiled.folder, get_board(board), cases), due, strict=True
    ):
        _near(got, outputs)


_WINDOWS = {"frames": [1, 4, 4], "line": [2, 71], "wide": [2, 71], "kept": [2, 71]}


def _mixed() -> onnx.ModelProto:
    """States that change places, stay as they are, are read after they change or are an output
    twice; the last frames of a causal convolution; windows that move by less than a vector."""
    b = Builder(seed=2)
    b.op("Identity", "b", outputs=["a_next"])
    b.op("Mul", "a", b.const(0.5, "float32"), outputs=["b_next"])
    b.op("Identity", "same", outputs=["same_next"])
    b.op("Add", "sum", "x", outputs=["sum_next"])
    b.op("Identity", "sum_next", outputs=["sum_seen"])
    b.op("Identity", "sum", outputs=["sum_before"])
    b.op("Add", "h", "x", outputs=["h_next"])
    b.op("Mul", "h", "h_next", outputs=["h_late"])
    frames = b.op("Concat", "frames", b.op("Reshape", "x", b.const([1, 4, 1], "int64")), axis=2)
    b.op("Conv", frames, b.weight(6, 4, 5), outputs=["y"])
    bounds = (b.const([at], "int64") for at in (-4, 99, 2))
    b.op("Slice", frames, *bounds, outputs=["frames_next"])
    for name, by in (("line", 1), ("wide", 3), ("kept", 2)):
        bounds = (b.const([at], "int64") for at in (by, 2**62, -1))
        new = b.op("Reshape", "x", b.const([2, 2], "int64"))
        new = b.op("Concat", new, new, axis=1)
        ends = (b.const([at], "int64") for at in (0, by, 1))
        new = b.op("Slice", new, *ends)
        moved = [b.op("Slice", name, *bounds), new]
        b.op("Concat", *moved, axis=1, outputs=[f"{name}_next"])
    b.op("ReduceSum", b.op("Mul", "kept", "kept_next"), keepdims=0, outputs=["kept_seen"])
    b.op("Constant", value_floats=[1.0, 2.0, 3.0, 4.0], outputs=["constant_next"])
    b.op("Add", "constant", "x", outputs=["seen"])
    names = ("a", "b", "same", "sum", "h", "constant")
    return b.model(
        {"x": [4], **{name: [4] for name in names}, **_WINDOWS},
        {
            **{f"{name}_next": [4] for name in names},
            **{f"{name}_next": shape for name, shape in _WINDOWS.items()},
            "kept_seen": [],
            **{name: [4] for name in ("sum_seen", "sum_before", "h_late", "seen")},
            "y": [1, 6, 1],
        },
    )


@pytest.mark.parametrize("board", ["local", "pynq"])
def test_states_of_every_kind(board: str, tmp_path: Path) -> None:
    path = tmp_path / "mixed.onnx"
    onnx.save(_mixed(), path)
    names = ("a", "b", "same", "sum", "h", "constant", *_WINDOWS)
    states = {name: f"{name}_next" for name in names}
    random = np.random.default_rng(3)
    steps = [{"x": random.normal(size=4).astype("float32")} for _ in range(6)]
    begun = {name: random.normal(size=4).astype("float32") for name in names[:6]}
    begun |= {name: random.normal(size=size).astype("float32") for name, size in _WINDOWS.items()}
    steps[0] = {**steps[0], **begun}
    fed, due = _by_hand(path, states, steps)
    compiled = _compiled(path, states, tmp_path / "out", board)
    if board != "local":
        require_tool("qemu-arm-static", "qemu-arm")
        cases = [list(inputs.values()) for inputs in fed]
        for got, outputs in zip(
            run_emulated(compiled.folder, get_board(board), cases), due, strict=True
        ):
            _near(got, outputs)
        return
    runner = PlanRunner(compiled.folder)
    for step, inputs, outputs in zip(steps, fed, due, strict=True):
        _near(runner.run([step.get(name) for name in inputs]), outputs)


def test_states_in_the_app(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Deployed, which compares golden states; then from zeros, and from given ones."""
    path = tmp_path / "decoder.onnx"
    onnx.save(proto := decoder("longer", layers=1), path)
    state = ("--state", "past_key_values.*=present.*")
    assert main(["inspect", str(path), *state]) == 0
    shown = capsys.readouterr().out
    assert "states      past_key_values.0.key keeps present.0.key\n" in shown
    root = tmp_path / "root"
    with own_boards():
        where = ("--board", "local", "--device", "local", "--root", str(root))
        assert main(["deploy", str(path), *where, *state]) == 0
    fed, due = _by_hand(path, _caches(proto), _tokens(3))
    app = root / "current" / "bin" / "edgepack-run"

    def run(inputs: Sequence[Array]) -> tuple[str, list[Array]]:
        words: list[str | Path] = [app, "--json"]
        for number, array in enumerate(inputs):
            np.save(tmp_path / f"in{number}.npy", array)
            words += ["--input", tmp_path / f"in{number}.npy"]
        files = [tmp_path / f"out{number}.npy" for number in range(3)]
        words += [word for file in files for word in ("--output", file)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return done.stderr, [np.load(file) for file in files] if not done.returncode else []

    _near(run([fed[0]["ids"], fed[0]["position"]])[1], due[0])
    _near(run(list(fed[2].values()))[1], due[2])
    words = [app, "--serve", "127.0.0.1:0"]
    served = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert served.stderr is not None
        url = served.stderr.readline().split(" on ")[1].strip() + "/v2/models/decoder/infer"
        tensors = [
            {"name": name, "datatype": "INT64", "shape": value.shape, "data": value.tolist()}
            for name, value in list(fed[0].items())[:2]
        ]
        for _ in range(2):  # the second one sees nothing of the first
            body = json.dumps({"inputs": tensors}).encode()
            asked = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(asked, timeout=60) as answer:
                (logits, *_) = json.load(answer)["outputs"]
            _near([np.array(logits["data"])], [due[0][0].ravel()])
    finally:
        served.terminate()
        assert served.wait() == 0
    refusal, _ = run(list(fed[2].values())[:3])
    assert "the model has 4 inputs (" in refusal
    assert "; all 2 states may be left out" in refusal


def test_a_position_beyond_a_cache_is_an_error_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    onnx.save(decoder("elements", layers=1), path)
    runner = PlanRunner(_compiled(path, {}, tmp_path / "out").folder)
    caches = [np.ones((1, 2, 16, 8), "float32")] * 2
    states = [runner.tensors[index] for index in runner.graph["inputs"][2:]]
    for position in (16, -17, 2**40):
        with pytest.raises(IndexError, match=r"indices'\|-16\|15\|"):
            runner.run([np.zeros((1, 1), "int64"), np.array([position]), *caches])
        assert all((state == 1).all() for state in states)
    _, *after = runner.run([np.zeros((1, 1), "int64"), np.array([-1]), *caches])
    assert all((cache[:, :, :15] == 1).all() and (cache[:, :, 15] != 1).all() for cache in after)

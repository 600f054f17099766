"""LSTM, GRU and RNN of sizes around those of blocks of units, on every instruction set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from edgepack.boards import get_board
from edgepack.compiler import plan_model
from edgepack.frontend import recurrent
from edgepack.frontend.load import load_model
from edgepack.kernels.tiles.cpu import CORTEX_A72
from edgepack.kernels.whole.recurrent import Recurrent
from edgepack.model import ModelSpec
from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target_in_parts, save_cases, wrong_outputs

STEPS, BATCH, FEATURES = 5, 3, 7
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# Operator, size of the state, attributes, whether all optional inputs are there.
LAYERS = [
    ("LSTM", 1, {}, False),
    ("LSTM", 8, {"input_forget": 1}, True),
    ("LSTM", 13, {"direction": b"reverse", "clip": 0.5}, True),
    ("LSTM", 21, {"direction": b"bidirectional"}, True),
    ("GRU", 3, {}, True),
    ("GRU", 16, {"direction": b"reverse", "linear_before_reset": 1}, False),
    ("GRU", 24, {"clip": 0.3}, False),
    ("GRU", 33, {"direction": b"bidirectional", "linear_before_reset": 1}, True),
    ("RNN", 5, {"direction": b"bidirectional"}, True),
    ("RNN", 70, {"activations": ["Affine"], "activation_alpha": [0.5]}, False),
    ("LSTM", 16, {"clip": 0.4, "activations": ["HardSigmoid", "Relu", "Softsign"]}, False),
]


def _layer(net: Builder, case: tuple, number: int, source: str) -> dict[str, str]:
    op, size, attributes, optional = case
    ways = 2 if attributes.get("direction") == b"bidirectional" else 1
    gates = GATES[op] * size
    given = [net.weight(ways, gates, FEATURES), net.weight(ways, gates, size)]
    if optional:
        lengths = net.const([0, *net.random.integers(1, STEPS + 1, size=BATCH - 1)], "int32")
        given += [net.weight(ways, 2 * gates), lengths, net.weight(ways, BATCH, size)]
    if optional and op == "LSTM":
        given += [net.weight(ways, BATCH, size), net.weight(ways, 3 * size)]
    names = [f"{op}{number}.{what}" for what in ("all", "last", "cell")]
    names = names if op == "LSTM" else names[:2]
    net.op(op, source, *given, outputs=names, hidden_size=size, **attributes)
    return {f"{op} {size} {attributes} {name}": name for name in names}


@every_target_in_parts
def test_layers_equal_onnxruntime_s(tmp_path: Path, board: str, cpu: str, part: slice) -> None:
    net, cases = Builder(3), {}
    for number, case in list(enumerate(LAYERS))[part]:
        cases |= _layer(net, case, number, "x")
    shape = (STEPS, BATCH, FEATURES)
    path = save_cases(tmp_path / "recurrent.onnx", net, {"x": shape}, cases)
    inputs = [2 * net.random.normal(size=shape).astype("float32")]
    _, got = compile_and_run(path, inputs, board, cpu, tmp_path)
    assert not wrong_outputs(path, inputs, got, tolerance=1e-5)


def test_a_softplus_of_hot_values_is_no_infinity(tmp_path: Path) -> None:
    """By numpy: exp(100) is infinite in float32."""
    net = Builder(0)
    weight, again = net.const([[[1.0]]], "float32"), net.const([[[0.0]]], "float32")
    net.op("RNN", "x", weight, again, outputs=["y", ""], hidden_size=1, activations=["Softplus"])
    x = np.array([-100, -17.8, -1e-3, 0, 3, 89, 1000], "float32").reshape(-1, 1, 1)
    shapes = {"x": list(x.shape)}, {"y": [len(x), 1, 1, 1]}
    onnx.save(net.model(*shapes), tmp_path / "model.onnx")
    _, got = compile_and_run(tmp_path / "model.onnx", [x], "local", "native", tmp_path)
    due = np.logaddexp(0, x.astype("float64")).ravel()
    np.testing.assert_allclose(got[0].ravel(), due, rtol=3e-6, atol=1e-36)


# Longer than a part: the size of the state, steps, batch, features and attributes.
LONG = [
    ("LSTM", 16, 37, 1, 16, {"direction": b"bidirectional"}),
    ("LSTM", 21, 40, 1, 5, {}),
    ("GRU", 32, 50, 3, 7, {"direction": b"reverse", "linear_before_reset": 1}),
    ("RNN", 8, 64, 1, 3, {"direction": b"bidirectional"}),
]


def _long(net: Builder, number: int, case: tuple, made: dict[str, str]) -> dict[str, tuple]:
    """Adds a layer and its outputs to `made`; its inputs and their shapes."""
    op, size, steps, batch, features, attributes = case
    ways = 2 if attributes.get("direction") == b"bidirectional" else 1
    given = (net.weight(ways, GATES[op] * size, n) for n in (features, size))
    names = [f"{op}{number}.{what}" for what in ("all", "last", "cell")][: 3 if op == "LSTM" else 2]
    bias = net.weight(ways, 2 * GATES[op] * size)
    sources = (f"x{number}", *given, bias, "", f"h{number}")
    net.op(op, *sources, outputs=names, hidden_size=size, **attributes)
    made |= {f"{name} made": name for name in names}
    if "layout" in attributes:
        return {f"x{number}": (batch, steps, features), f"h{number}": (batch, ways, size)}
    return {f"x{number}": (steps, batch, features), f"h{number}": (ways, batch, size)}


def test_each_part_of_a_long_sequence_goes_on_from_the_one_before(tmp_path: Path) -> None:
    net, made, shapes = Builder(6), dict[str, str](), dict[str, tuple]()
    for number, case in enumerate(LONG):
        shapes |= _long(net, number, case, made)
    path = save_cases(tmp_path / "long.onnx", net, shapes, made)
    inputs = [net.random.normal(size=shape).astype("float32") for shape in shapes.values()]
    compiled, got = compile_and_run(path, inputs, "local", "native", tmp_path)
    wrong = wrong_outputs(path, inputs, got, tolerance=1e-5)
    assert not wrong, wrong
    kernels = [layer.kernel for layer in compiled.layers]
    for op, ways in (("lstm", 3), ("gru", 1), ("rnn", 2)):
        assert sum(kernel.startswith(op) for kernel in kernels) >= 2 * ways


def test_the_parts_of_sequences_side_by_side(tmp_path: Path) -> None:
    """By batch, which onnxruntime does not have."""
    net, made = Builder(8), dict[str, str]()
    shapes = _long(net, 0, ("GRU", 24, 33, 2, 24, {"layout": 1}), made)
    path = save_cases(tmp_path / "long.onnx", net, shapes, made)
    inputs = [net.random.normal(size=shape).astype("float32") for shape in shapes.values()]
    _, got = compile_and_run(path, inputs, "local", "native", tmp_path)
    evaluator = ReferenceEvaluator(onnx.load(path))
    for mine, due in zip(
        got, evaluator.run(None, dict(zip(shapes, inputs, strict=True))), strict=True
    ):
        np.testing.assert_allclose(mine, due, rtol=1e-4, atol=1e-5)


def test_the_gates_of_a_few_steps_are_there_at_once(tmp_path: Path) -> None:
    """Of 96 steps at once they would take as much as four times the inputs."""
    net, shape = Builder(7), (96, 1, 128)
    net.op(
        "LSTM",
        "x",
        net.weight(1, 512, 128),
        net.weight(1, 512, 128),
        outputs=["y"],
        hidden_size=128,
    )
    path = save_cases(tmp_path / "lstm.onnx", net, {"x": shape}, {"made": "y"})
    plan = plan_model(load_model(ModelSpec(path=path)), get_board("rasp3b"))[0]
    assert plan.arena_bytes < 1.15 * 2 * 4 * 96 * 128


def test_the_parts_of_a_sequence_of_any_type() -> None:
    """A step's bytes are those of any type that a layer may have."""
    for dtype in ("float16", "float32", "float64"):
        layer = Recurrent(
            kind="LSTM", steps=40, batch=1, size=32, dtype=dtype, activations=[], cpu=CORTEX_A72
        )
        parts = recurrent._parts(layer, 16)
        assert [first for first, _ in parts[1:]] == [behind for _, behind in parts[:-1]]
        assert len(parts) > 2
        assert (parts[0][0], parts[-1][1]) == (0, 40)


@pytest.mark.parametrize("op", list(GATES))
def test_nan_stays_in_its_sequence_and_infinity_saturates(tmp_path: Path, op: str) -> None:
    """onnxruntime's functions make a number of NaN; arithmetic as ONNX defines it does not."""
    net = Builder(4)
    cases = _layer(net, (op, 11, {}, False), 0, "x")
    shape = (STEPS, BATCH, FEATURES)
    path = save_cases(tmp_path / "nan.onnx", net, {"x": shape}, cases)
    clean = net.random.normal(size=shape).astype("float32")
    hurt = clean.copy()
    hurt[2, 1, 3], hurt[1, 2, 0] = np.nan, np.inf
    _, (got, *_) = compile_and_run(path, [hurt], "local", "native", tmp_path)
    (tmp_path / "clean").mkdir()
    _, (due, *_) = compile_and_run(path, [clean], "local", "native", tmp_path / "clean")
    assert np.isnan(got[2:, 0, 1]).all()
    assert np.isfinite(got[:, 0, 2]).all()
    np.testing.assert_array_equal(got[:2, 0, 1], due[:2, 0, 1])
    np.testing.assert_array_equal(got[:, 0, 0], due[:, 0, 0])


def test_doubles_and_weights_that_come_at_run_time(tmp_path: Path) -> None:
    net, size, shape = Builder(5), 10, (STEPS, BATCH, FEATURES)
    double = TensorProto.DOUBLE
    weights = {"w": (1, 3 * size, FEATURES), "r": (1, 3 * size, size)}
    net.op("GRU", "x", "w", "r", outputs=["y"], hidden_size=size)
    proto = net.model({"x": shape, **weights}, {"y": (STEPS, 1, BATCH, size)}, None, opset=17)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = double
    onnx.save(proto, tmp_path / "double.onnx")
    inputs = [net.random.normal(size=item) for item in (shape, *weights.values())]
    _, (got,) = compile_and_run(tmp_path / "double.onnx", inputs, "local", "native", tmp_path)
    # onnxruntime's GRU has no doubles.
    (due,) = ReferenceEvaluator(proto).run(None, dict(zip(("x", *weights), inputs, strict=True)))
    np.testing.assert_allclose(got, due, rtol=1e-10)

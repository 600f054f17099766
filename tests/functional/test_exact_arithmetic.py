"""Arithmetic that no simplification may change: to the bit as onnxruntime does it, node by node."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from edgepack.boards import get_board
from edgepack.compiler.errors import ImportModelError
from edgepack.compiler.frontend.load import load_model
from edgepack.compiler.planning import Planner
from edgepack.model import ModelSpec
from tests.onnx_models import FLOAT, Builder
from tests.targets import compile_and_run

NARROW: dict[str, tuple[int, dict[str, int]]] = {
    "float16": (TensorProto.FLOAT16, {}),
    "bfloat16": (TensorProto.BFLOAT16, {}),
    **{
        f"{name} {saturate}": (getattr(TensorProto, name), {"saturate": saturate})
        for name in ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
        for saturate in (0, 1)
    },
}


def hot(shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of all sizes, ties and the ends of narrow types among them."""
    random = np.random.default_rng(11)
    values = random.normal(size=shape) * 2.0 ** random.integers(-24, 24, size=shape)
    ends = [70.3, 123456.7, 1e-12, 65504.0, 65520.0, 448.0, 464.0, 465.0, 240.0, 57344.0, 61440.0]
    small = [2.0**-10, 2.0**-9, 3 * 2.0**-10, 2.0**-17, 2.0**-24, 2.0**-25, 6e-8, 1.0625, 1.1875]
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38]
    found = np.array([*ends, *small, *special], "float32")
    flat = values.astype("float32").reshape(-1)
    flat[: found.size], flat[-found.size :] = found, -found
    return flat.reshape(shape)


def casts(net: Builder) -> dict[str, str]:
    cases = {}
    for name, (kind, attributes) in NARROW.items():
        down = net.op("Cast", "x", outputs=(), to=kind, **attributes)
        wide = net.op("Cast", down, to=FLOAT)
        cases[f"{name}, times 3"] = net.op("Mul", wide, net.const(3.0, "float32"))
    return cases


def sums(net: Builder) -> dict[str, str]:
    """What real numbers would simplify, and floats must not; on images and on plain tensors."""
    cases = {}

    def number(value: float) -> str:
        return net.const(value, "float32")

    for x in ("x", "image"):
        y = net.op("Mul", x, number(0.7))
        cases[f"(x + 1e8) - 1e8 {x}"] = net.op("Sub", net.op("Add", x, number(1e8)), number(1e8))
        cases[f"(x + 1.1) + 2.3 {x}"] = net.op("Add", net.op("Add", x, number(1.1)), number(2.3))
        cases[f"(x * 1.1) * 2.3 {x}"] = net.op("Mul", net.op("Mul", x, number(1.1)), number(2.3))
        cases[f"(x / 3) * 3 {x}"] = net.op("Mul", net.op("Div", x, number(3.0)), number(3.0))
        cases[f"x - x {x}"] = net.op("Sub", x, x)
        cases[f"x / x {x}"] = net.op("Div", x, x)
        cases[f"x * 0 + 1 {x}"] = net.op("Add", net.op("Mul", x, number(0.0)), number(1.0))
        cases[f"0 / x {x}"] = net.op("Div", number(0.0), x)
        cases[f"x / 0 {x}"] = net.op("Div", x, number(0.0))
        cases[f"x + y - x {x}"] = net.op("Sub", net.op("Add", x, y), x)
        cases[f"x y - x y {x}"] = net.op("Sub", net.op("Mul", x, y), net.op("Mul", x, y))
        cases[f"x y + x {x}"] = net.op("Add", net.op("Mul", x, y), x)
        equal = net.op("Equal", x, x)
        cases[f"x = x {x}"] = net.op("Where", equal, number(1.0), number(2.0))
    return cases


@pytest.mark.parametrize(("board", "cpu"), [("local", "native"), ("rk3399", "cortex-a72")])
def test_to_the_bit(board: str, cpu: str, tmp_path: Path) -> None:
    net = Builder(3)
    cases = {**casts(net), **sums(net)}
    if board != "local":
        cases = dict(list(cases.items())[::3])
    outputs = (net.op("Identity", value, outputs=[name]) for name, value in cases.items())
    shapes = {"x": (9, 13), "image": (1, 5, 6, 7)}
    proto = net.model(dict(shapes.items()), dict.fromkeys(outputs), opset=19)
    for output in proto.graph.output:
        output.ClearField("type")
    path = tmp_path / "model.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(proto), path)
    given = {name: hot(shape) for name, shape in shapes.items()}
    names = [value.name for value in proto.graph.input]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    due = dict(zip(cases, session.run(None, given), strict=True))
    if (name := "FLOAT8E5M2 0, times 3") in due:
        # onnxruntime makes NaN of what is too large, ONNX's table infinity.
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = given["x"].astype(ml_dtypes.float8_e5m2)
        due[name] = narrow.astype("float32") * np.float32(3)
    _, got = compile_and_run(path, [given[name] for name in names], board, cpu, tmp_path)
    wrong = []
    for (name, theirs), mine in zip(due.items(), got, strict=True):
        same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
        if not same.all():
            at = int(np.flatnonzero(~same)[0])
            wrong.append(f"{name}: {mine.flat[at]} for {theirs.flat[at]}, {(~same).sum()} in all")
    assert not wrong, "\n".join(wrong)


def test_what_computes_on_float8_is_refused_by_name(tmp_path: Path) -> None:
    kind = TensorProto.FLOAT8E4M3FN
    zero = helper.make_tensor("zero", kind, [], [0.0])
    scale = helper.make_tensor("scale", FLOAT, [], [0.5])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="to steps"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], name="back"),
    ]
    values = [helper.make_tensor_value_info(name, FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [zero, scale])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)]), path)
    with pytest.raises(ImportModelError, match=r"'(to steps|back)' works on FLOAT8E4M3FN"):
        Planner(load_model(ModelSpec(path=path)), get_board("local"))

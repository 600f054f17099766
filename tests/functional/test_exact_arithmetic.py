"""Arithmetic that no simplification may change: to the bit as onnxruntime does it, node by node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from edgepack.boards import get_board
from edgepack.compiler.planning import Planner
from edgepack.frontend.errors import ImportModelError
from edgepack.frontend.load import load_model
from edgepack.model import ModelSpec
from tests.fuzz.expressions import Expressions, hot
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


@pytest.mark.parametrize(
    ("board", "cpu", "part"),
    [
        ("local", "native", slice(None)),
        ("rk3399", "cortex-a72", slice(0, None, 3)),
        ("pynq", "cortex-a9", slice(1, None, 3)),
        pytest.param("rk3399", "cortex-a72", slice(None), marks=pytest.mark.slow, id="a72-all"),
        pytest.param("pynq", "cortex-a9", slice(None), marks=pytest.mark.slow, id="a9-all"),
    ],
)
def test_to_the_bit(board: str, cpu: str, part: slice, tmp_path: Path) -> None:
    net = Builder(3)
    cases = dict(list({**casts(net), **sums(net)}.items())[part])
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


def test_the_largest_of_many_is_no_larger_expression(tmp_path: Path) -> None:
    """Of windows that are read at once, as behind detectors' backbones of small photos, and of
    operands that are expressions themselves. NaN goes through."""
    net = Builder(5)
    # A convolution that changes nothing, so that channels lie in blocks.
    same = net.op("Conv", "x", net.const(np.ones((16, 1, 1, 1), "float32")), group=16)
    pool = net.op("MaxPool", same, kernel_shape=[5, 5], pads=[2, 2, 2, 2], outputs=["pool"])
    scaled = [net.op("Mul", "x", net.const(0.9 + n / 40, "float32")) for n in range(24)]
    outputs = [
        pool,
        net.op("Max", *scaled, outputs=["max"]),
        net.op("Min", *scaled, outputs=["min"]),
    ]
    path = tmp_path / "model.onnx"
    path.write_bytes(net.model({"x": [1, 16, 10, 10]}, dict.fromkeys(outputs)).SerializeToString())
    x = np.random.default_rng(5).normal(size=(1, 16, 10, 10)).astype("float32")
    x[0, 3, 4, 5], x[0, 9, 0, 0], x[0, 11] = np.nan, np.inf, np.nan
    _, (pool_got, *got) = compile_and_run(path, [x], "local", "native", tmp_path)
    padded = np.pad(x, [(0, 0), (0, 0), (2, 2), (2, 2)], constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), (2, 3))
    np.testing.assert_array_equal(pool_got, windows.max((4, 5)))
    operands = x * np.array([0.9 + n / 40 for n in range(24)], "float32").reshape(-1, 1, 1, 1, 1)
    for values, due in zip(got, (operands.max(0), operands.min(0)), strict=True):
        np.testing.assert_array_equal(values, due)


@pytest.mark.parametrize(
    ("board", "cpu", "seeds"),
    [
        ("local", "native", range(2)),
        ("rk3399", "cortex-a72", range(2, 3)),
        ("pynq", "cortex-a9", range(3, 4)),
        pytest.param("local", "native", range(3, 43), marks=pytest.mark.slow, id="x86-long"),
        pytest.param("rk3399", "cortex-a72", range(43, 63), marks=pytest.mark.slow, id="a72-long"),
        pytest.param("pynq", "cortex-a9", range(63, 83), marks=pytest.mark.slow, id="a9-long"),
    ],
)
def test_random_expressions(board: str, cpu: str, seeds: range, tmp_path: Path) -> None:
    """No pass, of TVM, of LLVM or of ours, makes another number of one: to the bit as numpy.

    But for 32-bit ARM's vectors, which take what is below the normal numbers for 0.
    """
    given = {"x": hot((9, 13)), "y": hot((9, 13))[::-1].copy(), "image": hot((1, 5, 6, 7))}
    for seed in seeds:
        net = Builder(seed)
        expressions = Expressions(net, given, seed)
        with np.errstate(all="ignore"):
            due = [expressions.draw(1 + number % 6) for number in range(60)]
        outputs = {f"{number} {name}": value for number, (name, value) in enumerate(due)}
        for (name, _), output in zip(due, outputs, strict=True):
            net.op("Identity", name, outputs=[output])
        proto = net.model(
            {name: value.shape for name, value in given.items()},
            {name: value.shape for name, value in outputs.items()},
            opset=19,
        )
        path = tmp_path / f"{seed}.onnx"
        onnx.save(proto, path)
        folder = tmp_path / str(seed)
        folder.mkdir()
        _, got = compile_and_run(path, list(given.values()), board, cpu, folder)
        wrong = []
        compared = 0
        for (name, theirs), mine in zip(outputs.items(), got, strict=True):
            same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
            if cpu == "cortex-a9":
                same |= (flushed := expressions.subnormal[name.split()[1]])
                compared -= flushed.sum()
            compared += same.size
            if not same.all():
                at = int(np.flatnonzero(~same)[0])
                wrong.append(f"{name}: {mine.flat[at]} for {theirs.flat[at]}, {(~same).sum()}")
        assert compared > 0.8 * sum(value.size for value in got)
        assert not wrong, f"seed {seed}:\n" + "\n".join(wrong)


def _functions() -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """What operators are, in numbers of many more bits; by their names in ONNX."""
    return {
        "Asinh": np.arcsinh,
        "Atan": np.arctan,
        "Mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
        "Sigmoid": lambda x: np.exp(-np.logaddexp(0, -x)),
        "Sin": np.sin,
        "Sinh": np.sinh,
        "Softplus": lambda x: np.logaddexp(0, x),
        "Softsign": lambda x: x / (1 + np.abs(x)),
        "Tanh": np.tanh,
    }


@pytest.mark.parametrize(
    ("board", "cpu"), [("local", "native"), ("rk3399", "cortex-a72"), ("pynq", "cortex-a9")]
)
def test_small_results_have_as_many_digits_as_large_ones(
    board: str, cpu: str, tmp_path: Path
) -> None:
    """Of numbers from 1e-30 to 80, in kernels of their own and behind a convolution: softplus of
    -17.8 is 1.9e-8, not 0."""
    sizes = np.concatenate([10.0 ** np.arange(-30, 1.9, 0.25), [17.8, 20.0, 50.0, 80.0]])
    x = np.concatenate([-sizes, sizes]).astype("float32")
    x = np.resize(x, (1, 16, 1, -(-x.size // 16))).astype("float32")
    net, outputs = Builder(0), {}
    eye = net.const(np.eye(16).reshape(16, 16, 1, 1).tolist(), "float32")
    for name in _functions():
        outputs[f"{name} alone"] = list(x.shape)
        net.op(name, "x", outputs=[f"{name} alone"])
        outputs[f"{name} behind"] = list(x.shape)
        net.op(name, net.op("Conv", "x", eye), outputs=[f"{name} behind"])
    onnx.save(net.model({"x": list(x.shape)}, outputs, opset=20), tmp_path / "model.onnx")
    _, got = compile_and_run(tmp_path / "model.onnx", [x], board, cpu, tmp_path)
    for name, array in zip(outputs, got, strict=True):
        due = _functions()[name.split()[0]](x.astype("longdouble")).astype("float64")
        # Float32's smallest numbers with all digits are 1e-38.
        np.testing.assert_allclose(array, due, rtol=3e-6, atol=1e-36, err_msg=name)


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

"""Attention and norms of rows in one kernel each, on every instruction set."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.boards import get_board
from edgepack.compiler import plan_model
from edgepack.compiler.place.emit import LAYOUT
from edgepack.frontend.load import load_model
from edgepack.model import ModelSpec
from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target, save_cases, wrong_outputs

FIXTURES = Path(__file__).parents[1] / "fixtures"


def _dense(net: Builder, rows: str, ins: int, outs: int) -> str:
    return net.op("Add", net.op("MatMul", rows, net.weight(ins, outs)), net.weight(outs))


def _softmax_of(net: Builder, q: str, k: str, *masks: str, by: float = 1.0) -> str:
    """The shares of keys that are columns; `masks` are added to the scaled scores."""
    scores = net.op("MatMul", q, k)
    if by != 1:
        scores = net.op("Div", scores, net.const(by, "float32"))
    for mask in masks:
        scores = net.op("Add", scores, mask)
    return net.op("Softmax", scores, axis=-1)


def _merged(net: Builder, attended: str, *shape: int) -> str:
    """Heads side by side again."""
    turned = net.op("Transpose", attended, perm=[0, 2, 1, 3])
    return net.op("Reshape", turned, net.const(shape, "int64"))


def _packed(net: Builder, rows: str, batch: int, count: int, heads: int, depth: int) -> str:
    """As timm writes it: queries, keys and values of one dense layer, taken from it by Gather."""
    width = heads * depth
    shape = net.const([batch, count, 3, heads, depth], "int64")
    dense = _dense(net, rows, width, 3 * width)
    parts = net.op("Transpose", net.op("Reshape", dense, shape), perm=[2, 0, 3, 1, 4])
    q, k, v = (net.op("Gather", parts, net.const(i, "int64"), axis=0) for i in range(3))
    q = net.op("Mul", q, net.const(depth**-0.5, "float32"))
    shares = _softmax_of(net, q, net.op("Transpose", k, perm=[0, 1, 3, 2]))
    return _merged(net, net.op("MatMul", shares, v), batch, count, width)


def _split(net: Builder, rows: str, batch: int, count: int, heads: int, depth: int) -> str:
    """Of one dense layer, by Split; keys and queries both scaled, as PyTorch exports it."""
    width = heads * depth
    names = [f"{rows}_{part}" for part in "qkv"]
    net.op("Split", _dense(net, rows, width, 3 * width), outputs=names, axis=2)
    shape = net.const([batch, count, heads, depth], "int64")
    q, k, v = (net.op("Reshape", name, shape) for name in names)
    root = net.const(depth**-0.25, "float32")
    q = net.op("Mul", net.op("Transpose", q, perm=[0, 2, 1, 3]), root)
    k = net.op("Mul", net.op("Transpose", k, perm=[0, 2, 3, 1]), root)
    v = net.op("Transpose", v, perm=[0, 2, 1, 3])
    return _merged(net, net.op("MatMul", _softmax_of(net, q, k), v), batch, count, width)


def _apart(
    net: Builder, rows: str, batch: int, count: int, heads: int, depth: int, *masks: str
) -> str:
    """Of three dense layers, as Hugging Face writes it."""
    shape = net.const([batch, count, heads, depth], "int64")
    width = heads * depth
    q, k, v = (net.op("Reshape", _dense(net, rows, width, width), shape) for _ in range(3))
    k = net.op("Transpose", k, perm=[0, 2, 3, 1])
    q, v = (net.op("Transpose", part, perm=[0, 2, 1, 3]) for part in (q, v))
    shares = _softmax_of(net, q, k, *masks, by=depth**0.5)
    return _merged(net, net.op("MatMul", shares, v), batch, count, width)


@every_target
def test_attention_as_exporters_write_it(tmp_path: Path, board: str, cpu: str) -> None:
    net = Builder(seed=6)
    causal = net.const(np.triu(np.full((1, 1, 9, 9), -np.inf), 1), "float32")
    turned = net.op("Transpose", "b", perm=[0, 1, 3, 2])
    narrow = net.op("Reshape", "b", net.const([6, 9, 8], "int64"))
    shares = _softmax_of(net, "c", net.op("Transpose", "c", perm=[0, 1, 3, 2]))
    few = net.op("Softmax", net.op("MatMul", "x", net.op("Transpose", "x", perm=[0, 2, 1])))
    attended = {
        "packed": _packed(net, "x", 2, 9, 3, 8),
        "split": _split(net, "x", 2, 9, 2, 12),
        "three layers": _apart(net, "x", 2, 9, 3, 8, "some"),
        "causal": _apart(net, "x", 2, 9, 6, 4, causal, "some"),
        "other heads lie last": net.op("MatMul", _softmax_of(net, "a", turned), "c"),
        # One key for all heads, which lies as columns.
        "one key": net.op("MatMul", _softmax_of(net, "a", "k", "k2"), "c"),
        "no heads": net.op("MatMul", few, "x"),
        "of matrices": net.op(
            "MatMul", _softmax_of(net, narrow, net.op("Transpose", narrow, perm=[0, 2, 1])), narrow
        ),
    }
    others = {
        "shares": shares,
        "read twice": net.op("MatMul", shares, "c"),
    }
    shapes = {
        "x": (2, 9, 24),
        "some": (2, 1, 1, 9),
        "a": (2, 3, 7, 8),
        "b": (2, 3, 9, 8),
        "c": (2, 3, 9, 12),
        "k": (1, 1, 8, 9),
        "k2": (7, 1),
    }
    model = save_cases(tmp_path / "model.onnx", net, shapes, attended | others)
    random = np.random.default_rng(6)
    inputs = [random.normal(size=shape).astype("float32") for shape in shapes.values()]
    inputs[1] = np.where(inputs[1] > 1, -np.inf, inputs[1]).astype("float32")
    compiled, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    wrong = wrong_outputs(model, inputs, got)
    assert not wrong, "\n".join(wrong)
    rules = Counter(layer.rule for layer in compiled.layers)
    assert rules["attention"] == len(attended)
    # All queries, keys and values that come from one tensor are one product.
    assert rules["product"] == 1 + 2
    assert not rules[LAYOUT]


@every_target
def test_results_in_the_place_of_queries_and_of_what_is_added(
    tmp_path: Path, board: str, cpu: str
) -> None:
    """Blocks of a transformer, several and of each form, where it can be done and where not: a
    product of 37 columns stores some of them twice, and others read queries or results as well."""
    net, random = Builder(seed=12), np.random.default_rng(12)
    cases = {}
    shapes = {"x": (2, 19, 32), "wide": (1, 70, 64), "odd": (1, 9, 37)}
    for form, rows in ((_packed, "x"), (_split, "wide"), (_apart, "x")):
        batch, count, width = shapes[rows]
        value = net.op("Relu", rows)
        attended = form(net, value, batch, count, 4, width // 4)
        value = net.op("Add", _dense(net, attended, width, width), value)
        inner = net.op("Relu", _dense(net, value, width, 2 * width))
        cases[form.__name__] = net.op("Add", _dense(net, inner, 2 * width, width), value)
    alone = _apart(net, "x", 2, 19, 4, 8)
    cases["projected twice"] = net.op("Add", _dense(net, alone, 32, 20), _dense(net, alone, 32, 20))
    read = _packed(net, "x", 2, 19, 4, 8)
    cases["added to itself"] = net.op("Add", _dense(net, read, 32, 32), read)
    asked = _dense(net, "wide", 64, 64)
    heads = net.op("Reshape", asked, net.const([1, 70, 4, 16], "int64"))
    heads = net.op("Transpose", heads, perm=[0, 2, 1, 3])
    shares = _softmax_of(net, heads, net.op("Transpose", heads, perm=[0, 1, 3, 2]))
    merged = _merged(net, net.op("MatMul", shares, heads), 1, 70, 64)
    cases["queries are keys"] = _dense(net, merged, 64, 24)
    cases["queries are read"] = net.op("Add", merged, asked)
    value = _dense(net, "odd", 37, 37)
    for _ in range(3):
        value = net.op("Add", _dense(net, net.op("Relu", value), 37, 37), value)
    cases["odd columns"] = value
    model = save_cases(tmp_path / "model.onnx", net, shapes, cases)
    inputs = [random.normal(size=shape).astype("float32") for shape in shapes.values()]
    _, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    wrong = wrong_outputs(model, inputs, got)
    assert not wrong, "\n".join(wrong)


def test_a_transformer_has_no_place_for_results_beside_what_they_come_from(tmp_path: Path) -> None:
    """Those of an attention are put where its queries are, and sums where what is added is."""
    net, count, width = Builder(), 64, 64
    value = net.op("Relu", _dense(net, "x", width, width))
    for _ in range(2):
        attended = _apart(net, value, 1, count, 2, width // 2)
        value = net.op("Add", _dense(net, attended, width, width), value)
        inner = net.op("Relu", _dense(net, value, width, 3 * width))
        value = net.op("Add", _dense(net, inner, 3 * width, width), value)
    path = save_cases(tmp_path / "model.onnx", net, {"x": (1, count, width)}, {"y": value})
    for board in ("local", "rasp3b", "rasp4b-64"):
        plan, _, layers, _ = plan_model(load_model(ModelSpec(path=path)), get_board(board))
        # `compare` reads whole tensors that have a name, not what lies among others.
        for layer, call in zip(layers, plan.calls, strict=True):
            made = plan.tensors[call.args[layer.result]]
            assert not layer.value or np.prod(made.shape) == np.prod(layer.shape)
        assert [layer.value for layer in layers if layer.rule == "attention"] == ["", ""]
        attentions = sums = 0
        for call in plan.calls:
            tensors = [plan.tensors[index] for index in call.args]
            places = [tensor.offset for tensor in tensors if tensor.storage == "arena"]
            if call.kernel.startswith("attention"):
                attentions += places[0] == places[1]
            elif len(places) == 3:
                sums += places[1] == places[2]
        assert (attentions, sums) == (2, 4)


@every_target
def test_attention_of_any_shape(tmp_path: Path, board: str, cpu: str) -> None:
    net = Builder(seed=7)
    random = np.random.default_rng(7)
    cases, inputs = {}, {}
    for index in range(6):
        heads, rows, keys = random.integers((1, 4, 4), (6, 70, 90)).tolist()
        depth, width = random.integers(4, 40), 4 * int(random.integers(1, 12))
        q, k, v, m = (f"{name}_{index}" for name in "qkvm")
        inputs |= {
            q: (rows, heads, int(depth)),
            k: (keys, heads, int(depth)),
            v: (heads, keys, width),
            m: (heads, rows, keys),
        }
        # Queries and keys lie row by row, heads inside.
        asked = net.op("Transpose", q, perm=[1, 0, 2])
        columns = net.op("Transpose", k, perm=[1, 2, 0])
        masks = [m] if index % 2 else []
        shares = _softmax_of(net, asked, columns, *masks, by=float(depth**0.5))
        attended = net.op("MatMul", shares, v)
        cases[f"{heads}x{rows}x{keys}x{depth}x{width}"] = net.op(
            "Transpose", attended, perm=[1, 0, 2]
        )
    used = {name: shape for name, shape in inputs.items() if not name.startswith("m")}
    used |= {name: inputs[name] for name in ("m_1", "m_3", "m_5")}
    model = save_cases(tmp_path / "model.onnx", net, used, cases)
    values = [random.normal(size=shape).astype("float32") for shape in used.values()]
    compiled, got = compile_and_run(model, values, board, cpu, tmp_path)
    wrong = wrong_outputs(model, values, got)
    assert not wrong, "\n".join(wrong)
    assert {layer.rule for layer in compiled.layers} == {"attention"}


@every_target
def test_heads_that_cores_do_not_share_evenly(tmp_path: Path, board: str, cpu: str) -> None:
    """A core begins or ends in the middle of a head, and packs that for itself."""
    net, depth = Builder(seed=10), 32
    cases, shapes = {}, {}
    for heads, count in ((3, 150), (5, 161)):
        q, k, v = (f"{part}_{heads}" for part in "qkv")
        shapes |= dict.fromkeys((q, k, v), (1, heads, count, depth))
        shares = _softmax_of(net, q, net.op("Transpose", k, perm=[0, 1, 3, 2]), by=depth**0.5)
        cases[f"{heads} heads"] = net.op("MatMul", shares, v)
    model = save_cases(tmp_path / "model.onnx", net, shapes, cases)
    random = np.random.default_rng(10)
    inputs = [random.normal(size=shape).astype("float32") for shape in shapes.values()]
    compiled, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    wrong = wrong_outputs(model, inputs, got)
    assert not wrong, "\n".join(wrong)
    graph = json.loads(compiled.graph.read_text())
    assert len(graph["calls"]) == 2
    for call in graph["calls"]:
        queries, *_, keys, _values, _scores, _sums = (
            graph["tensors"][index] for index in call["args"]
        )
        (heads, count) = next(
            sizes
            for sizes in ((3, 150), (5, 161))
            if queries["bytes"] == sizes[0] * sizes[1] * depth * 4
        )
        most = min(heads, get_board(board).cores) * (count + 16) * depth * 4
        assert keys["shape"][0] * 4 == keys["bytes"] <= most


@every_target
def test_attention_of_few_queries(tmp_path: Path, board: str, cpu: str) -> None:
    """Of one query and of three; keys and values fill whole vectors, or do not."""
    net = Builder(seed=9)
    random = np.random.default_rng(9)
    cases: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for heads, rows, keys, depth, width in (
        (5, 1, 64, 64, 64),
        (3, 1, 37, 24, 20),
        (1, 3, 5, 7, 4),
        (4, 2, 30, 13, 260),
    ):
        name = f"{heads}x{rows}x{keys}x{depth}x{width}"
        q, k, v, m = (f"{part}_{name}" for part in "qkvm")
        # Queries lie row by row, heads inside, as a dense layer makes them.
        shapes |= {q: (1, rows, heads, depth), k: (1, heads, keys, depth)}
        shapes |= {v: (1, heads, keys, width), m: (1, 1, rows, keys)}
        asked = net.op("Transpose", q, perm=[0, 2, 1, 3])
        columns = net.op("Transpose", k, perm=[0, 1, 3, 2])
        shares = _softmax_of(net, asked, columns, m, by=float(depth**0.5))
        cases[name] = _merged(net, net.op("MatMul", shares, v), 1, rows, heads * width)
    model = save_cases(tmp_path / "model.onnx", net, shapes, cases)
    inputs = [random.normal(size=shape).astype("float32") for shape in shapes.values()]
    for index, name in enumerate(shapes):
        if name.startswith("m"):
            inputs[index] = np.where(inputs[index] > 1, -1e9, inputs[index]).astype("float32")
    compiled, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    wrong = wrong_outputs(model, inputs, got)
    assert not wrong, "\n".join(wrong)
    assert {layer.rule for layer in compiled.layers} == {"attention"}


@every_target
def test_norms_of_rows(tmp_path: Path, board: str, cpu: str) -> None:
    net = Builder(seed=8)
    cases, shapes = {}, {}
    for count, size in ((1, 8), (3, 37), (70, 61), (5, 192)):
        data = f"x{size}"
        shapes[data] = (2, count, size)
        cases[data + "_norm"] = net.op(
            "LayerNormalization", data, net.weight(size), net.weight(size), axis=-1, epsilon=1e-3
        )
    shape = (4, 6)
    shapes["x"] = (3, *shape)
    cases["two axes"] = net.op(
        "LayerNormalization", "x", net.weight(*shape), net.weight(*shape), axis=1
    )
    model = save_cases(tmp_path / "model.onnx", net, shapes, cases)
    random = np.random.default_rng(8)
    # Far from 0: a mean square less the mean's square would have no digits left.
    inputs = [random.normal(1000, 1, size=shape).astype("float32") for shape in shapes.values()]
    compiled, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    wrong = wrong_outputs(model, inputs, got, tolerance=1e-3)
    assert not wrong, "\n".join(wrong)
    assert {layer.rule for layer in compiled.layers} == {"norm"}


@pytest.mark.parametrize("opset", [18, 21])
def test_other_norms_far_from_zero(tmp_path: Path, opset: int) -> None:
    """Beside float64: ONNX's definitions of these subtract the mean's square from the squares'
    mean, as onnxruntime then does, too, and are off by half of their deviation."""
    net, shape, rows = Builder(seed=9), (2, 8, 5, 6), (4, 37)
    width = 8 if opset >= 21 else 2
    weights = [net.random.normal(size=count) for count in (width, width, 37, 37)]
    scale, shift, *of_rows = (net.const(value, "float32") for value in weights)
    by_groups = {"num_groups": 2, "epsilon": 1e-3}
    groups = net.op("GroupNormalization", "x", scale, shift, **by_groups)
    behind = net.op("Add", groups, net.const(1000, "float32"))
    cases = {
        "groups": groups,
        # onnx cannot tell the shape of the first one.
        "groups of groups": net.op("GroupNormalization", behind, scale, shift, **by_groups),
        "channels": net.op("MeanVarianceNormalization", "x", axes=[2, 3]),
    }
    outputs = dict.fromkeys([*cases, "normal", "mean", "inverse"])
    for name, value in cases.items():
        net.op("Identity", value, outputs=[name])
    net.op("LayerNormalization", "r", *of_rows, outputs=["normal", "mean", "inverse"])
    path = tmp_path / "far.onnx"
    onnx.save(net.model({"x": shape, "r": rows}, outputs, opset=opset), path)
    random = np.random.default_rng(9)
    given = [random.normal(1000, 1, size=size).astype("float32") for size in (shape, rows)]
    _, got = compile_and_run(path, given, "local", "native", tmp_path)
    x, r = (value.astype("float64") for value in given)
    by, to = (np.repeat(value, 8 // width).reshape(8, 1, 1) for value in weights[:2])

    def grouped(x: np.ndarray) -> np.ndarray:
        return np.asarray(_normal(x.reshape(2, 2, -1), 2, 1e-3).reshape(shape) * by + to)

    due = [
        grouped(x),
        grouped(grouped(x) + 1000),
        _normal(x, (2, 3), 0),
        _normal(r, 1, 1e-5) * weights[2] + weights[3],
        r.mean(1, keepdims=True),
        1 / np.sqrt(r.var(1, keepdims=True) + 1e-5),
    ]
    for name, mine, exact in zip(outputs, got, due, strict=True):
        np.testing.assert_allclose(mine, exact, rtol=0, atol=1e-3, err_msg=name)


def _normal(x: np.ndarray, axes: int | tuple[int, ...], epsilon: float) -> np.ndarray:
    off = x - x.mean(axes, keepdims=True)
    return np.asarray(off / np.sqrt(x.var(axes, keepdims=True) + epsilon))


def _rms(net: Builder, x: str, form: str, weight: str = "", epsilon: str = "") -> str:
    """An RMS norm along the last axis in one of the forms that exporters write."""
    one, two = net.const(1.0, "float32"), net.const(2.0, "float32")
    square = net.op("Mul", x, x) if form in ("quotient", "power") else net.op("Pow", x, two)
    mean = net.op("ReduceMean", square, axes=[-1])
    least = epsilon or net.const(1e-5, "float32")
    total = net.op("Add", least, mean) if form == "quotient" else net.op("Add", mean, least)
    if form == "power":
        normal = net.op("Mul", net.op("Pow", total, net.const(-0.5, "float32")), x)
    elif form == "quotient":
        normal = net.op("Div", x, net.op("Sqrt", total))
    elif form == "inverse":
        normal = net.op("Mul", x, net.op("Div", one, net.op("Sqrt", total)))
    else:
        normal = net.op("Mul", x, net.op("Reciprocal", net.op("Sqrt", total)))
    if not weight:
        return normal
    return net.op("Mul", weight, normal) if form == "inverse" else net.op("Mul", normal, weight)


@every_target
def test_rms_norms_by_their_parts(tmp_path: Path, board: str, cpu: str) -> None:
    net = Builder(seed=11)
    cases, shapes = {}, {}
    for size, shape in ((8, (1, 8)), (37, (3, 37)), (61, (2, 7, 61)), (192, (2, 1, 5, 192))):
        data = f"x{size}"
        shapes[data] = shape
        weights = {
            "quotient": net.weight(size),
            "power": net.weight(*(1,) * (len(shape) - 1), size),
            "inverse": net.weight(size),
            "reciprocal": "",
        }
        for factor, (form, weight) in enumerate(weights.items(), 2):
            # Of a tensor of its own: what is equal in two of them would be computed once.
            own = net.op("Mul", data, net.const(factor, "float32"))
            cases[f"{data}_{form}"] = _rms(net, own, form, weight)
    model = save_cases(tmp_path / "model.onnx", net, shapes, cases)
    random = np.random.default_rng(11)
    inputs = [random.normal(size=shape).astype("float32") for shape in shapes.values()]
    # Rows of zeros, of what has no square, and of what is no number.
    inputs[1][0] = 0
    for row, value in enumerate((np.inf, np.nan, 1e30, 1e-30, -np.inf)):
        inputs[3][0, 0, row, row] = value
    compiled, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    wrong = wrong_outputs(model, inputs, got, tolerance=1e-5)
    assert not wrong, "\n".join(wrong)
    rules = Counter(layer.rule for layer in compiled.layers)
    assert rules.keys() == {"generic", "norm"}
    assert rules["norm"] == len(cases)


@pytest.mark.parametrize(("board", "cpu"), [("local", "native")])
def test_what_is_no_rms_norm_by_its_parts(tmp_path: Path, board: str, cpu: str) -> None:
    """Values inside that others read, weights by row, other axes, short rows."""
    net = Builder(seed=12)
    least = net.const(1e-5, "float32")
    square = net.op("Pow", "x", net.const(2.0, "float32"))
    root = net.op("Sqrt", net.op("Add", net.op("ReduceMean", square, axes=[-1]), least))
    first = net.op("ReduceMean", net.op("Mul", "y", "y"), axes=[1])
    other = net.op("ReduceMean", net.op("Mul", "y", "x"), axes=[-1])
    cases = {
        "root": root,
        "quotient": net.op("Div", "x", root),
        "first axis": net.op("Div", "y", net.op("Sqrt", net.op("Add", first, least))),
        "of two": net.op("Div", "y", net.op("Sqrt", net.op("Add", net.op("Abs", other), least))),
        "turned": net.op("Div", net.op("Sqrt", net.op("Add", _mean(net, "z"), least)), "z"),
        "of another": net.op("Div", "x", net.op("Sqrt", net.op("Add", _mean(net, "z"), least))),
        "epsilon by row": _rms(net, net.op("Neg", "z"), "quotient", epsilon=net.weight(9, 1)),
        "few": _rms(net, "short", "quotient", net.weight(3)),
    }
    shapes = {"x": (2, 9, 24), "y": (2, 9, 24), "z": (2, 9, 24), "short": (5, 3)}
    model = save_cases(tmp_path / "model.onnx", net, shapes, cases)
    random = np.random.default_rng(12)
    inputs = [random.uniform(0.5, 2, size=shape).astype("float32") for shape in shapes.values()]
    compiled, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    wrong = wrong_outputs(model, inputs, got, tolerance=1e-5)
    assert not wrong, "\n".join(wrong)
    assert "norm" not in {layer.rule for layer in compiled.layers}


def _mean(net: Builder, x: str) -> str:
    return net.op("ReduceMean", net.op("Mul", x, x), axes=[-1])


@pytest.mark.parametrize(
    ("name", "norms", "tolerance"),
    [("torchscript", 2, 1e-6), ("dynamo", 4, 1e-6), ("dynamo-half", 4, 2e-3)],
)
def test_rms_norms_of_exporters(tmp_path: Path, name: str, norms: int, tolerance: float) -> None:
    """Written by PyTorch 2.13: Llama's, Gemma's (times 1 + weight), and torch.nn.RMSNorm with a
    weight and without one; the last file's module is in half precision."""
    model = FIXTURES / f"rms-norms-{name}.onnx"
    dtype = "float16" if name == "dynamo-half" else "float32"
    inputs = [np.random.default_rng(13).normal(size=(2, 5, 37)).astype(dtype)]
    compiled, got = compile_and_run(model, inputs, "local", "native", tmp_path)
    wrong = wrong_outputs(model, inputs, got, tolerance=tolerance)
    assert not wrong, "\n".join(wrong)
    assert [layer.rule for layer in compiled.layers].count("norm") == norms


@every_target
def test_softmax_of_rows(tmp_path: Path, board: str, cpu: str) -> None:
    net = Builder(seed=9)
    cases, shapes = {}, {}
    for count, size in ((1, 128), (3, 131), (70, 161), (5, 193), (1, 1003)):
        data = f"x{size}"
        shapes[data] = (2, count, size)
        cases[data + "_softmax"] = net.op("Softmax", data, axis=-1)
        # Where its argument was, which nobody else reads.
        cases[data + "_log"] = net.op("LogSoftmax", net.op("Neg", data), axis=-1)
    shapes["x"] = (3, 150, 1, 1)
    cases["axis of ones behind"] = net.op("Softmax", "x", axis=1)
    shapes["y"] = (70, 9)
    cases["short rows"] = net.op("Softmax", "y", axis=1)
    model = save_cases(tmp_path / "model.onnx", net, shapes, cases)
    random = np.random.default_rng(9)
    inputs = [random.normal(0, 30, size=shape).astype("float32") for shape in shapes.values()]
    inputs[0][0] = -np.inf
    inputs[0][0, 0, 3] = 1
    compiled, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    wrong = wrong_outputs(model, inputs, got)
    assert not wrong, "\n".join(wrong)
    rules = [layer.rule for layer in compiled.layers]
    assert set(rules) == {"softmax", "generic"}
    assert rules.count("softmax") == len(cases) - 1

"""Models that are quantised dynamically: scales and zero points are known only when they run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

from edgepack.model.session import cpu_session
from tests.onnx_models import Builder
from tests.targets import compile_and_run, save_cases

TARGETS = [
    pytest.param("local", "native", id="x86"),
    pytest.param("local", "haswell", id="avx2", marks=pytest.mark.slow),
    pytest.param("local", "nehalem", id="sse4.2", marks=pytest.mark.slow),
    pytest.param("pynq", "cortex-a9", id="armv7-a9"),
    pytest.param("rk3399", "cortex-a72", id="aarch64-a72"),
    pytest.param("rasp5b", "cortex-a76", id="aarch64-a76"),
]
every_target = pytest.mark.parametrize(("board", "cpu"), TARGETS)
every_seed = pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))]
)


def by_onnxruntime(path: Path, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Exact: on x86-64 without dot products of bytes (VNNI) its sums of uint8 times int8 in pairs
    have no room for the largest ones, unless a pass makes all weights uint8."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = cpu_session(str(path), options)
    names = [item.name for item in session.get_inputs()]
    found: list[np.ndarray] = session.run(None, dict(zip(names, inputs, strict=True)))
    return found


class Chance:
    """Models by chance, each operator of an input of its own."""

    def __init__(self, seed: int) -> None:
        self.net, self.random = Builder(seed=seed), np.random.default_rng(seed)
        self.inputs: dict[str, np.ndarray] = {}
        self.made: dict[str, str] = {}

    def pick(self, *values: int) -> int:
        return int(self.random.choice(values))

    def integers(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Any, or the ends of the type alone."""
        info = np.iinfo(dtype)
        if self.pick(0, 0, 1):
            return self.random.choice([info.min, info.max], size=shape).astype(dtype)
        return self.random.integers(info.min, info.max + 1, size=shape).astype(dtype)

    def given(self, value: np.ndarray) -> str:
        """An input."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = value
        return name

    def sums(self, kind: str, x: np.ndarray, w: np.ndarray, **attributes: object) -> None:
        """With zero points that are known, or are an input, or are not there; of weights of uint8
        one, or one for each column."""
        dtype = str(x.dtype)
        zeros: list[str] = []
        if how := self.pick(0, 1, 2, 2) or int(w.dtype == np.uint8):
            zero = self.integers((), dtype)
            zeros = [self.net.const(zero) if how == 1 else self.given(zero)]
        if w.dtype == np.uint8:
            by_column = kind == "MatMulInteger" and self.pick(0, 1)
            shape = w.shape[1:] if by_column else ()
            zeros.append(self.net.const(self.random.integers(90, 160, size=shape).astype("uint8")))
        made = self.net.op(kind, self.given(x), self.net.const(w), *zeros, **attributes)
        self.made[f"y{len(self.made)}"] = made

    def save(self, path: Path) -> list[np.ndarray]:
        """Writes the model; its inputs."""
        shapes = {name: value.shape for name, value in self.inputs.items()}
        dtypes = {
            name: onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
            for name, value in self.inputs.items()
        }
        save_cases(path, self.net, shapes, self.made, dtypes)
        return list(self.inputs.values())


def random_sums(path: Path, seed: int) -> list[np.ndarray]:
    """Saves products and convolutions; some weights are -128, which pairs have no room for."""
    case = Chance(seed)
    for number in range(6):
        rows = (case.pick(1, 2, 7, 40), case.pick(1, 3, 13))[: case.pick(1, 2)]
        depth = case.pick(4, 16, 45, 130, 272)
        columns = case.pick(16, 17, 40, 48, 83)
        w = case.integers((depth, columns), "int8")
        w = np.maximum(w, -127) if number % 2 else w
        w = case.integers(w.shape, "uint8") if number in (3, 4) else w
        case.sums("MatMulInteger", case.integers((*rows, depth), ("int8", "uint8")[number % 2]), w)
    for number in range(6):
        groups = (1, 1, 2, 4)[case.pick(0, 1, 2, 3)]
        ins, outs = case.pick(1, 4, 8, 19) * groups, case.pick(1, 4, 16, 21) * groups
        rank = 1 if number == 5 else 2
        kernel = [case.pick(1, 2, 3) for _ in range(rank)]
        attributes = {
            "strides": [case.pick(1, 1, 2) for _ in range(rank)],
            "dilations": [case.pick(1, 1, 2) for _ in range(rank)],
            "pads": [int(case.random.integers(size)) for size in kernel * 2],
            "group": groups,
        }
        if number == 0:
            kernel, attributes = [1, 1], {"group": groups}
        w = case.integers((outs, ins // groups, *kernel), "int8")
        w = np.maximum(w, -127) if number % 2 else w
        w = case.integers(w.shape, "uint8") if groups == 1 and case.pick(0, 1) else w
        size = (case.pick(7, 10, 18), case.pick(5, 9, 23))[:rank]
        # onnxruntime has no ConvInteger of int8 images.
        case.sums("ConvInteger", case.integers((1, ins, *size), "uint8"), w, **attributes)
    for kind, shape, of_weights in (
        ("MatMulInteger", (3, 45), (45, 40)),
        ("ConvInteger", (1, 19, 7, 9), (21, 19, 3, 3)),
    ):
        # No zero point at all, of weights that int8 has no room for.
        x, w = case.given(case.integers(shape, "uint8")), case.integers(of_weights, "uint8")
        case.made[f"{kind} of uint8"] = case.net.op(kind, x, case.net.const(w))
    return case.save(path)


@every_seed
@every_target
def test_sums_are_onnxruntimes_to_the_bit(tmp_path: Path, board: str, cpu: str, seed: int) -> None:
    path = tmp_path / "model.onnx"
    inputs = random_sums(path, seed)
    expected = by_onnxruntime(path, inputs)
    compiled, got = compile_and_run(path, inputs, board, cpu, tmp_path)
    assert Counter(layer.rule for layer in compiled.layers)["int8 sums"] == len(expected)
    wrong = [
        f"{index}: {np.count_nonzero(mine != theirs)} of {theirs.size}"
        for index, (mine, theirs) in enumerate(zip(got, expected, strict=True))
        if mine.dtype != np.int32 or not np.array_equal(mine, theirs)
    ]
    assert not wrong


def whole_pattern(path: Path, seed: int) -> list[np.ndarray]:
    """Saves what onnxruntime's quantiser writes, with all between as results, and what exporters
    put behind it."""
    case = Chance(seed)
    net = case.net

    def real(*shape: int) -> str:
        return net.const(case.random.normal(size=shape).astype("float32"))

    def dynamic(x: np.ndarray) -> tuple[str, list[str]]:
        given = case.given(x.astype("float32"))
        names = [f"{part}{len(case.made)}" for part in ("q", "s", "z")]
        net.op("DynamicQuantizeLinear", given, outputs=names)
        case.made |= {f"{name}_": name for name in names}
        return given, names

    def scaled(sums: str, scale: str, *columns: int) -> str:
        by = net.op("Mul", scale, net.const(np.full(columns, 0.013, "float32")))
        return net.op("Mul", net.op("Cast", sums, to=onnx.TensorProto.FLOAT), by)

    spread = case.random.normal(size=(1, 21, 64))
    for number, x in enumerate((spread, np.abs(spread) + 1, -np.abs(spread), 0 * spread)):
        given, (q, s, z) = dynamic(x)
        alone, sums = (
            net.op("MatMulInteger", q, net.const(np.maximum(case.integers(of, "int8"), -127)), z)
            for of in ((64, 32), (64, 64))
        )
        case.made[f"sums{number}"] = net.op("Cast", alone, to=onnx.TensorProto.FLOAT)
        made = net.op("Add", scaled(sums, s, *((), (64,))[number % 2]), real(64))
        if number == 0:
            made = net.op("Add", made, given)
        elif number == 1:
            made = net.op("Mul", made, net.op("Sigmoid", made))
        elif number == 2:
            made = net.op("Relu", made)
        case.made[f"y{number}"] = made
    for number, groups in enumerate((1, 20)):
        _given, (q, s, z) = dynamic(case.random.normal(size=(1, 20, 11, 13)))
        w = net.const(case.integers((20, 20 // groups, 3, 3), "int8"))
        sums = net.op("ConvInteger", q, w, z, pads=[1] * 4, group=groups)
        made = net.op("Add", scaled(sums, s), real(1, 20, 1, 1))
        case.made[f"image{number}"] = net.op("Relu", made) if number else made
    return case.save(path)


@every_target
def test_the_pattern_as_a_whole(tmp_path: Path, board: str, cpu: str) -> None:
    path = tmp_path / "model.onnx"
    inputs = whole_pattern(path, 5)
    expected = by_onnxruntime(path, inputs)
    compiled, got = compile_and_run(path, inputs, board, cpu, tmp_path)
    rules = Counter(layer.rule for layer in compiled.layers)
    assert (rules["int8 sums"], rules["range"], rules["quantize"]) == (10, 6, 6)
    # All arithmetic on the sums is done where they are made.
    assert not any("add" in layer.kernel or "relu" in layer.kernel for layer in compiled.layers)
    names = [output.name for output in onnx.load(path).graph.output]
    for name, mine, theirs in zip(names, got, expected, strict=True):
        assert mine.dtype == theirs.dtype
        if name.startswith(("q", "s", "z")):
            assert np.array_equal(mine, theirs), name
        else:
            limit = 1e-6 * np.abs(theirs).max()
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=limit, err_msg=name)


def attention_block(path: Path) -> Path:
    """A block of a transformer, as onnxruntime quantises it."""
    net = Builder(seed=4)
    rows, wide = 24, 32

    def dense(x: str, ins: int, outs: int) -> str:
        made = net.op("MatMul", x, net.weight(ins, outs))
        return net.op("Add", made, net.weight(outs))

    def heads(x: str) -> str:
        split = net.op("Reshape", x, net.const([1, rows, 2, wide // 2], "int64"))
        return net.op("Transpose", split, perm=[0, 2, 1, 3])

    q, k, v = (heads(dense("x", wide, wide)) for _ in range(3))
    score = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2]))
    mixed = net.op("MatMul", net.op("Softmax", score, axis=-1), v)
    joined = net.op("Transpose", mixed, perm=[0, 2, 1, 3])
    joined = net.op("Reshape", joined, net.const([1, rows, wide], "int64"))
    x = net.op("Add", "x", dense(joined, wide, wide))
    inner = net.op("Relu", dense(x, wide, 4 * wide))
    x = net.op("Add", x, dense(inner, 4 * wide, wide))
    proto = net.model({"x": (1, rows, wide)}, {x: (1, rows, wide)}, opset=17)
    onnx.save(proto, path.with_suffix(".float.onnx"))
    quantize_dynamic(path.with_suffix(".float.onnx"), path, weight_type=QuantType.QInt8)
    return path


@pytest.mark.parametrize(
    ("board", "cpu"),
    [
        pytest.param("local", "native", id="x86"),
        pytest.param("rasp5b", "cortex-a76", id="aarch64-a76", marks=pytest.mark.slow),
        pytest.param("pynq", "cortex-a9", id="armv7-a9", marks=pytest.mark.slow),
    ],
)
def test_a_transformer_of_onnxruntimes_quantiser(tmp_path: Path, board: str, cpu: str) -> None:
    path = attention_block(tmp_path / "model.onnx")
    inputs = [np.random.default_rng(3).normal(size=(1, 24, 32)).astype("float32")]
    compiled, (got,) = compile_and_run(path, inputs, board, cpu, tmp_path)
    rules = Counter(layer.rule for layer in compiled.layers)
    assert rules["int8 sums"] == 6
    assert rules["product"] == 0
    (expected,) = by_onnxruntime(path, inputs)
    # A last bit of a float may make another integer, a step off.
    assert np.abs(got - expected).max() < 0.02 * np.abs(expected).max()


def test_of_what_is_known_before_the_model_runs(tmp_path: Path) -> None:
    """onnxruntime keeps DequantizeLinear of weights, so what it gives is constant later only."""
    net = Builder(seed=6)
    weight = net.const(net.random.integers(-128, 128, (24, 16)), "int8")
    numbers = net.op("DequantizeLinear", weight, net.const(0.05, "float32"))
    whole, step, zero = made = ("whole", "step", "zero")
    net.op("DynamicQuantizeLinear", numbers, outputs=made)
    cases = {
        "real": net.op("DequantizeLinear", whole, step, zero),
        "sums": net.op("MatMulInteger", "rows", whole, "", zero),
        "product": net.op("MatMul", "x", numbers),
    }
    shapes = {"x": (3, 24), "rows": (4, 24)}
    kinds = {"rows": onnx.TensorProto.UINT8}
    model = save_cases(tmp_path / "model.onnx", net, shapes, cases, kinds)
    inputs = [
        net.random.normal(size=(3, 24)).astype("float32"),
        net.random.integers(0, 256, (4, 24)).astype("uint8"),
    ]
    _, got = compile_and_run(model, inputs, "local", "native", tmp_path)
    real, sums, product = by_onnxruntime(model, inputs)
    np.testing.assert_allclose(got[0], real, atol=1e-6)
    np.testing.assert_array_equal(got[1], sums)
    np.testing.assert_allclose(got[2], product, atol=1e-4)

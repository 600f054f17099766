"""Models in half precision, against onnxruntime in float32: where the CPU computes in halves, and
where weights alone are halves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgepack import cpus
from edgepack.boards import get_board
from edgepack.compiler import CompiledModel
from edgepack.frontend.precision import Precision
from edgepack.gate import gate
from edgepack.gate.elf import find_instructions
from edgepack.kernels.rules.rule import Rule
from edgepack.kernels.rules.table import RULES
from edgepack.kernels.tiles import toom_cook
from tests.functional.test_convolution_properties import (
    Case,
    _add,
    depthwise_case,
    only_winograd,
    plain_case,
    winograd_case,
)
from tests.onnx_models import Builder
from tests.targets import compile_and_run, save_cases, wrong_outputs

HALF = Precision(name="float16")
# Of the largest value. Halves have 11 bits: each rounding is off by up to 2^-12, and sums of
# hundreds of products go through some dozens of them. Weights alone are rounded once.
COMPUTED, STORED = 1e-2, 2e-3

A76 = pytest.param("rasp5b", "cortex-a76", COMPUTED, id="a76")
TARGETS = [
    A76,
    pytest.param("rk3399", "cortex-a72", STORED, id="a72"),
    pytest.param("pynq", "cortex-a9", STORED, id="a9"),
    pytest.param("local", "native", STORED, id="x86"),
]
every_target = pytest.mark.parametrize(("board", "cpu", "tolerance"), TARGETS)


def check(
    folder: Path,
    net: Builder,
    inputs: dict[str, tuple[int, ...]],
    cases: dict[str, str],
    target: tuple[str, str, float],
    precision: Precision = HALF,
    rules: Sequence[Rule] = RULES,
) -> CompiledModel:
    """Compile, run and compare."""
    board, cpu, tolerance = target
    random = np.random.default_rng(3)
    path = save_cases(folder / "model.onnx", net, inputs, cases)
    given = [random.normal(size=shape).astype("float32") for shape in inputs.values()]
    compiled, got = compile_and_run(path, given, board, cpu, folder, rules, precision)
    wrong = wrong_outputs(path, given, got, tolerance)
    assert not wrong, "\n".join(wrong)
    return compiled


@every_target
def test_convolutions_of_random_shapes(
    tmp_path: Path, board: str, cpu: str, tolerance: float
) -> None:
    random = np.random.default_rng(21)
    draws = [plain_case, plain_case, depthwise_case, winograd_case]
    cases = [draw(random) for draw in draws]
    # Sums in several parts, of whole and of broken blocks; a matrix product.
    cases += [
        Case(shape=(1, 600, 3, 5), outs=20, kernel=(1, 1), pads=(0, 0, 0, 0), after="Sum"),
        Case(shape=(1, 203, 1, 1), outs=300, kernel=(1, 1), pads=(0, 0, 0, 0), after="Clip"),
        Case(shape=(1, 61, 5, 9), outs=24, kernel=(3, 3), strides=(2, 2)),
        # Its parts are longer than a chain, the last one, too.
        Case(shape=(1, 412, 5, 5), outs=20, kernel=(3, 3), strides=(2, 2), after="Sum"),
    ]
    net = Builder(seed=21)
    named = {f"{number} {case}": _add(net, number, case) for number, case in enumerate(cases)}
    shapes = {f"x{number}": case.shape for number, case in enumerate(cases)}
    compiled = check(tmp_path, net, shapes, named, (board, cpu, tolerance))
    weights = sum(
        (2 if case.after == "Sum" else 1)
        * case.outs
        * case.shape[1]
        // case.group
        * case.kernel[0]
        * case.kernel[1]
        for case in cases
    )
    assert compiled.params_bytes < 4 * weights or board == "local"


@pytest.mark.parametrize(
    ("board", "cpu", "tolerance"),
    [
        A76,
        # In order; qemu 7.2 plays no Cortex-A55.
        pytest.param("imx93", "cortex-a76", COMPUTED, id="a55", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("results", toom_cook.HALF_FORMS)
def test_winograd(tmp_path: Path, board: str, cpu: str, tolerance: float, results: int) -> None:
    random = np.random.default_rng(results)
    cases = [winograd_case(random) for _ in range(3)]
    # Sums in several parts.
    cases.append(Case(shape=(1, 412, 7, 9), outs=20, after="Sum"))
    net = Builder(seed=results)
    named = {f"{number} {case}": _add(net, number, case) for number, case in enumerate(cases)}
    shapes = {f"x{number}": case.shape for number, case in enumerate(cases)}
    # On noise, which is the worst there is, 4x4 tiles lose three times what 2x2 do.
    target = (board, cpu, tolerance * results / 2)
    # Inputs that nothing bounds have no large tiles.
    half = replace(HALF, bounded=frozenset(shapes))
    compiled = check(tmp_path, net, shapes, named, target, half, only_winograd(results))
    made = [layer for layer in compiled.layers if layer.rule == "winograd"]
    assert len(made) >= len(cases)
    assert {layer.dtype for layer in made} == {"float16"}


def network(net: Builder) -> dict[str, str]:
    """Layers of all kinds: each is made by a rule, or left to TVM."""
    stem = net.op("HardSwish", net.conv("x", 3, 20, strides=[2, 2]))
    wide = net.op("Sigmoid", net.conv(stem, 20, 48, kernel=1))
    deep = net.op(
        "Clip",
        net.conv(wide, 48, 48, group=48),
        net.const(0.0, "float32"),
        net.const(6.0, "float32"),
    )
    gate = net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", deep), 48, 48, kernel=1))
    gated = net.conv(net.op("Mul", deep, gate), 48, 24, kernel=1)
    pool = net.op("MaxPool", gated, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    up = net.op("ConvTranspose", pool, net.weight(24, 24, 2, 2), strides=[2, 2])
    both = net.op("Concat", up, net.conv(gated, 24, 24), axis=1)
    parts = [net.op("Relu", net.conv(both, 48, 16, kernel=5, pads=[2] * 4)), "unused"]
    mean = net.op("Flatten", net.op("GlobalAveragePool", parts[0]))
    dense = net.op("Softmax", net.op("Gemm", mean, net.weight(16, 10)), axis=1)
    return {"image": parts[0], "joint": both, "classes": dense}


@every_target
def test_layers_of_all_kinds(tmp_path: Path, board: str, cpu: str, tolerance: float) -> None:
    net = Builder(seed=4)
    compiled = check(
        tmp_path, net, {"x": (1, 3, 32, 36)}, network(net), (board, cpu, 2 * tolerance)
    )
    halves = {layer.rule for layer in compiled.layers if layer.dtype == "float16"}
    if board == "rasp5b":
        assert {"conv", "depthwise", "gated", "transposed", "pool"} <= halves
    else:
        assert not halves


def transformer(
    net: Builder,
    tokens: int,
    heads: int,
    width: int,
    *,
    mask: str = "",
    value: str = "x",
    more: int = 0,
) -> str:
    """A block as exporters write it, of `heads` heads of `width` columns each, on `value`
    [1, tokens, heads * width]; `mask` is added to the scores. Inside, it is twice as wide and
    `more`."""
    wide, high = heads * width, 2 * heads * width + more

    def normal(value: str) -> str:
        scale, shift = net.const(1 + net.random.random(wide), "float32"), net.weight(wide)
        return net.op("LayerNormalization", value, scale, shift, axis=-1)

    def linear(value: str, ins: int, outs: int) -> str:
        return net.op("Add", net.op("MatMul", value, net.weight(ins, outs)), net.weight(outs))

    def by_head(value: str, order: list[int]) -> str:
        parts = net.const([1, tokens, heads, width], "int64")
        return net.op("Transpose", net.op("Reshape", value, parts), perm=order)

    inner = normal(value)
    q, k, v = (
        by_head(linear(inner, wide, wide), order)
        for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    scores = net.op("Div", net.op("MatMul", q, k), net.const(np.sqrt(width), "float32"))
    if mask:
        scores = net.op("Add", scores, mask)
    merged = net.op("MatMul", net.op("Softmax", scores, axis=-1), v)
    merged = net.op("Transpose", merged, perm=[0, 2, 1, 3])
    merged = net.op("Reshape", merged, net.const([1, tokens, wide], "int64"))
    value = net.op("Add", linear(merged, wide, wide), value)
    inner = linear(normal(value), wide, high)
    erf = net.op("Erf", net.op("Div", inner, net.const(np.sqrt(2), "float32")))
    inner = net.op("Mul", inner, net.op("Add", erf, net.const(1.0, "float32")))
    low = linear(net.op("Mul", inner, net.const(0.5, "float32")), high, wide)
    return net.op("Add", low, value)


OF_ROWS = {"attention", "norm", "product"}


@every_target
def test_transformers(tmp_path: Path, board: str, cpu: str, tolerance: float) -> None:
    """Whole vectors of halves and not; a mask; what is read in float32 on the way."""
    net = Builder(seed=8)
    first = transformer(net, 19, 3, 16, value="a")
    # 12 columns are no vectors of halves, and 52 none that Gelu could be done on in a pass.
    second = transformer(net, 21, 2, 12, value="b", more=4)
    # A decoder's mask, and a row of keys that are all masked: its powers are equal.
    mask = np.triu(np.full((17, 17), -1e9, "float32"), 1)
    mask[5] = -1e9
    third = transformer(net, 17, 2, 8, mask=net.const(mask[None, None]), value="c")
    cases = {"first": transformer(net, 19, 3, 16, value=first), "second": second, "third": third}
    cases["picked"] = net.op("Gather", first, net.const(0, "int64"), axis=1)
    cases["spread"] = net.op("Softmax", net.op("MatMul", third, net.weight(16, 203)), axis=-1)
    inputs = {"a": (1, 19, 48), "b": (1, 21, 24), "c": (1, 17, 16)}
    compiled = check(tmp_path, net, inputs, cases, (board, cpu, tolerance))
    halves = [layer for layer in compiled.layers if layer.dtype == "float16"]
    if board != "rasp5b":
        assert not halves
        return
    assert {layer.rule for layer in halves} >= OF_ROWS | {"softmax"}
    full = [layer for layer in compiled.layers if layer.rule in OF_ROWS and layer not in halves]
    assert [(layer.rule, layer.shape[-1]) for layer in full] == [("attention", 12), ("product", 52)]
    # Nothing is converted between the layers of a block, but for what comes in and goes out.
    casts = [layer for layer in compiled.layers if "cast" in layer.kernel]
    assert len([layer for layer in casts if layer.shape[-1] in (48, 96)]) == 3


@pytest.mark.parametrize(("board", "cpu", "tolerance"), [A76])
def test_a_query_of_a_decoder(tmp_path: Path, board: str, cpu: str, tolerance: float) -> None:
    """Few queries, whose keys are read where they lie, of any number and width."""
    net, shapes, cases = Builder(seed=9), {}, {}
    for number, (heads, keys, width) in enumerate([(2, 37, 16), (3, 8, 24), (1, 100, 64)]):
        names = [f"{part}{number}" for part in ("query", "keys", "values")]
        for name, rows in zip(names, (1, keys, keys), strict=True):
            shapes[name] = (1, heads, rows, width)
        turned = net.op("Transpose", names[1], perm=[0, 1, 3, 2])
        scores = net.op("Mul", net.op("MatMul", names[0], turned), net.const(0.2, "float32"))
        cases[f"y{number}"] = net.op("MatMul", net.op("Softmax", scores, axis=-1), names[2])
    compiled = check(tmp_path, net, shapes, cases, (board, cpu, tolerance))
    made = [layer for layer in compiled.layers if layer.rule == "attention"]
    assert [layer.dtype for layer in made] == ["float16"] * 3


@pytest.mark.parametrize(("board", "cpu", "tolerance"), [A76])
def test_scores_that_halves_cannot_hold(
    tmp_path: Path, board: str, cpu: str, tolerance: float
) -> None:
    """They are found by a run, and computed in float32."""
    net = Builder(seed=10)
    big = net.op("Mul", "x", net.const(300.0, "float32"))
    scores = net.op("MatMul", big, net.op("Transpose", big, perm=[0, 1, 3, 2]))
    powers = net.op("Softmax", net.op("Mul", scores, net.const(1e-5, "float32")), axis=-1)
    cases = {"y": net.op("MatMul", powers, "x")}
    x = np.random.default_rng(3).normal(size=(1, 2, 24, 16)).astype("float32")
    half = Precision(name="float16", samples=([x],))
    compiled = check(tmp_path, net, {"x": x.shape}, cases, (board, cpu, tolerance), half)
    made = [layer for layer in compiled.layers if layer.rule == "attention"]
    assert [(layer.dtype, bool(layer.exact)) for layer in made] == [("float32", True)]


@pytest.mark.parametrize(("board", "cpu", "tolerance"), [A76])
def test_keys_that_halves_cannot_hold(
    tmp_path: Path, board: str, cpu: str, tolerance: float
) -> None:
    """No weight and no bias is too large, but a sum of one product that makes queries, too."""
    net, parts = Builder(seed=10), []
    shape = net.const([1, 12, 2, 8], "int64")
    for factor, far in ((1, 0), (1e4, 1e4), (1, 0)):
        weight = net.random.normal(size=(16, 16)) * factor / 4
        dense = net.op("MatMul", "x", net.const(weight, "float32"))
        dense = net.op("Add", dense, net.const(np.full(16, far), "float32"))
        parts.append(net.op("Transpose", net.op("Reshape", dense, shape), perm=[0, 2, 1, 3]))
    scores = net.op("MatMul", parts[0], net.op("Transpose", parts[1], perm=[0, 1, 3, 2]))
    powers = net.op("Softmax", net.op("Mul", scores, net.const(1e-4, "float32")), axis=-1)
    cases = {"y": net.op("MatMul", powers, parts[2])}
    x = np.random.default_rng(3).normal(size=(1, 12, 16)).astype("float32")
    half = Precision(name="float16", samples=([x],))
    compiled = check(tmp_path, net, {"x": x.shape}, cases, (board, cpu, tolerance), half)
    made = [layer for layer in compiled.layers if layer.rule == "product"]
    assert [(layer.dtype, bool(layer.exact)) for layer in made] == [("float32", True)]


@pytest.mark.parametrize(("board", "cpu", "tolerance"), [A76])
def test_rms_norms_by_their_parts(tmp_path: Path, board: str, cpu: str, tolerance: float) -> None:
    """In halves, unless one of the parts has no room in them: here the squares of 300."""
    net, cases = Builder(seed=14), {}
    for name, factor in (("small", 1.0), ("large", 300.0)):
        x = net.op("Mul", net.op("MatMul", "x", net.weight(48, 40)), net.const(factor, "float32"))
        mean = net.op("ReduceMean", net.op("Pow", x, net.const(2.0, "float32")), axes=[-1])
        root = net.op("Sqrt", net.op("Add", mean, net.const(1e-5, "float32")))
        normal = net.op("Mul", net.op("Mul", x, net.op("Reciprocal", root)), net.weight(40))
        cases[name] = net.op("MatMul", normal, net.weight(40, 24))
    x = np.random.default_rng(3).normal(size=(1, 11, 48)).astype("float32")
    half = Precision(name="float16", samples=([x],))
    compiled = check(tmp_path, net, {"x": x.shape}, cases, (board, cpu, tolerance), half)
    made = [(layer.dtype, bool(layer.exact)) for layer in compiled.layers if layer.rule == "norm"]
    assert sorted(made) == [("float16", False), ("float32", True)]


@pytest.mark.parametrize(("board", "cpu", "tolerance"), [A76])
def test_layers_that_stay_float32(tmp_path: Path, board: str, cpu: str, tolerance: float) -> None:
    """What overflows is found by a run; conversions are put around it."""
    net = Builder(seed=5)
    first = net.op("Relu", net.conv("x", 5, 12))
    large = net.op("Mul", net.conv(first, 12, 20), net.const(1e5, "float32"))
    small = net.op("Mul", net.conv(large, 20, 12), net.const(1e-5, "float32"))
    cases = {"y": net.op("Add", net.conv(small, 12, 12), first)}
    x = np.random.default_rng(3).normal(size=(1, 5, 9, 11)).astype("float32")
    precision = Precision(name="float16", samples=([x],))
    compiled = check(
        tmp_path, net, {"x": x.shape}, cases, (board, cpu, tolerance), precision=precision
    )
    exact = [layer for layer in compiled.layers if layer.exact]
    assert exact
    assert all(layer.dtype == "float32" for layer in exact)
    rules = [layer.rule for layer in compiled.layers]
    assert "conversion" in rules
    assert any(layer.dtype == "float16" for layer in compiled.layers if layer.rule == "conv")


def test_a_board_without_half_precision_arithmetic_is_protected(tmp_path: Path) -> None:
    """The code names the feature that it needs, and boards that lack it forbid it."""
    net = Builder(seed=6)
    cases = {"y": net.conv("x", 8, 8)}
    compiled = check(tmp_path, net, {"x": (1, 8, 6, 6)}, cases, ("rasp5b", "cortex-a76", COMPUTED))
    board = get_board("rk3399")
    found = find_instructions(compiled.library, board.forbidden)
    assert "fullfp16" in {item.family for item in found}
    assert "asimdhp" in gate.needed_hwcaps(get_board("rasp5b"), [compiled.library])
    assert cpus.families_of(board.triple)["fullfp16"].hwcap == "asimdhp"

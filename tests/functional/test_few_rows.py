"""Products of a few rows and a constant, of numbers and of integers in blocks, on every
instruction set."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from tvm import relax

from edgepack.base.errors import EdgepackError
from edgepack.boards import get_board
from edgepack.compiler import plan_model
from edgepack.flow.reference import run_reference
from edgepack.frontend.integer_weights import matrix_in_blocks
from edgepack.frontend.load import load_model
from edgepack.kernels.rules import few_rows
from edgepack.model import ModelSpec
from edgepack.model.meanings import as_meant
from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target, wrong_outputs

_RULE = few_rows.RULE.name
_DEPTH = 56  # no multiple of a block


def _silu(net: Builder, value: str) -> str:
    return net.op("Mul", value, net.op("Sigmoid", value))


def _n_bits(
    net: Builder,
    rows: str,
    columns: int,
    *,
    bits: int,
    block: int,
    zeros: str = "",
    bias: bool = False,
    **more: int,
) -> str:
    """onnxruntime's product of weights of `bits`, with zero points of a type, if of any."""
    random, blocks = net.random, math.ceil(_DEPTH / block)
    given = [
        net.const(random.integers(0, 256, (columns, blocks, block * bits // 8)), "uint8"),
        net.const(random.uniform(0.01, 0.1, (columns, blocks)), "float32"),
    ]
    if zeros == "uint8":
        packed = (columns, math.ceil(blocks * bits / 8))
        given.append(net.const(random.integers(0, 256, packed), zeros))
    elif zeros:
        given.append(net.const(random.uniform(0, 15, (columns, blocks)), zeros))
    if bias:
        given += [""] * (4 - len(given)) + [net.weight(columns)]
    return net.op(
        "MatMulNBits",
        rows,
        *given,
        domain="com.microsoft",
        K=_DEPTH,
        N=columns,
        bits=bits,
        block_size=block,
        **more,
    )


def _matrix(net: Builder, shape: tuple[int, int], kind: str, *, axis: int, zeros: bool) -> str:
    """DequantizeLinear in blocks of 16 of a matrix."""
    low, high = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-128, 128), "uint8": (0, 256)}[kind]
    of_blocks = tuple(math.ceil(n / 16) if i == axis else n for i, n in enumerate(shape))
    names = []
    for size in (shape, of_blocks):
        name = f"{kind}{len(net.weights)}"
        element = getattr(onnx.TensorProto, kind.upper())
        values = net.random.integers(low, high, size)
        net.weights.append(helper.make_tensor(name, element, size, values.ravel()))
        names.append(name)
    scale = net.const(net.random.uniform(0.01, 0.1, of_blocks), "float32")
    given = [names[0], scale, *names[1:]] if zeros else [names[0], scale]
    return net.op("DequantizeLinear", *given, axis=axis, block_size=16)


def _cases(net: Builder) -> Iterator[tuple[str, str]]:
    """Names of products that the rule makes, and their results."""
    for rows in ("one", "few", "many"):
        yield f"4 bits, {rows}", _n_bits(net, rows, 48, bits=4, block=32)
        # Columns that fill no panel: the last one overlaps the one before.
        yield f"zeros, {rows}", _n_bits(net, rows, 37, bits=4, block=16, zeros="uint8")
        yield f"8 bits, {rows}", _n_bits(net, rows, 77, bits=8, block=32, bias=True)
        yield f"8 bits, zeros, {rows}", _n_bits(net, rows, 64, bits=8, block=64, zeros="uint8")
        gate, up = (_n_bits(net, rows, 64, bits=4, block=32) for _ in range(2))
        yield f"gate, {rows}", net.op("Mul", _silu(net, gate), up)
        kept = net.op("Add", rows, _n_bits(net, rows, _DEPTH, bits=4, block=32))
        yield f"residual, {rows}", kept
        for kind, zeros in (("int4", False), ("uint4", True), ("int8", True), ("uint8", False)):
            weight = _matrix(net, (_DEPTH, 48), kind, axis=0, zeros=zeros)
            yield f"{kind}, {rows}", net.op("MatMul", rows, weight)
    for rows in ("matrix", "two"):
        weight = _matrix(net, (40, _DEPTH), "uint4", axis=1, zeros=True)
        yield f"Gemm, {rows}", net.op("Gemm", rows, weight, net.weight(40), transB=1, alpha=0.5)


@every_target
def test_weights_of_integers(tmp_path: Path, board: str, cpu: str) -> None:
    net = Builder(seed=11)
    cases = dict(_cases(net))
    shapes = {
        "one": (1, 1, _DEPTH),
        "few": (1, 3, _DEPTH),
        "many": (2, 11, _DEPTH),
        "matrix": (9, _DEPTH),
        "two": (2, _DEPTH),
    }
    model = _save(tmp_path / "model.onnx", net, shapes, cases)
    inputs = [net.random.normal(size=shape).astype("float32") for shape in shapes.values()]
    inputs[2][1, 3, 5], inputs[2][0, 7, 9], inputs[1][0, 1] = np.nan, np.inf, 0
    compiled, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    wrong = wrong_outputs(model, inputs, got, as_written=True)
    assert not wrong, "\n".join(wrong)
    ours = [layer for layer in compiled.layers if layer.rule == _RULE]
    # Of a gate there are two products.
    assert len(ours) == len(cases) + 3
    assert compiled.params_bytes < 1.5 * sum(len(w.SerializeToString()) for w in net.weights)


@every_target
def test_weights_of_numbers(tmp_path: Path, board: str, cpu: str) -> None:
    net = Builder(seed=12)
    cases = {}
    for rows, columns in (("one", 96), ("one", 37), ("two", 37), ("three", 64), ("three", 21)):
        product = net.op("MatMul", rows, net.weight(_DEPTH, columns))
        cases[f"{rows} by {columns}"] = _silu(net, net.op("Mul", product, net.weight(columns)))
    cases["residual"] = net.op("Add", "one", net.op("MatMul", "one", net.weight(_DEPTH, _DEPTH)))
    shapes = {"one": (1, 1, _DEPTH), "two": (1, 2, _DEPTH), "three": (3, 1, _DEPTH)}
    model = _save(tmp_path / "model.onnx", net, shapes, cases)
    inputs = [net.random.normal(size=shape).astype("float32") for shape in shapes.values()]
    inputs[2][1, 0, 5] = np.nan
    compiled, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    wrong = wrong_outputs(model, inputs, got, as_written=True)
    assert not wrong, "\n".join(wrong)
    assert [layer.rule for layer in compiled.layers] == [_RULE] * len(cases)


def test_what_is_no_weight_of_a_product_becomes_numbers(tmp_path: Path) -> None:
    net = Builder(seed=13)
    kind = ("int4",)
    shared = _matrix(net, (_DEPTH, _DEPTH), *kind, axis=0, zeros=False)
    cases = {
        "read twice": net.op("Add", net.op("MatMul", "x", shared), shared),
        "left": net.op("MatMul", _matrix(net, (8, 3), "int8", axis=1, zeros=True), "y"),
        "fractions": _n_bits(net, "x", 48, bits=4, block=32, zeros="float32"),
        "blocks of a row": net.op(
            "MatMul", "x", _matrix(net, (_DEPTH, 48), "int8", axis=1, zeros=True)
        ),
        "few columns": _n_bits(net, "x", 3, bits=4, block=32),
        "alone": net.op("Relu", _matrix(net, (5, 7), "uint4", axis=0, zeros=True)),
    }
    shapes = {"x": (_DEPTH, _DEPTH), "y": (3, 4)}
    model = _save(tmp_path / "model.onnx", net, shapes, cases)
    inputs = [net.random.normal(size=shape).astype("float32") for shape in shapes.values()]
    _, got = compile_and_run(model, inputs, "local", "x86_64", tmp_path)
    wrong = wrong_outputs(model, inputs, got, as_written=True)
    assert not wrong, "\n".join(wrong)


def test_the_reference_multiplies_floats(tmp_path: Path) -> None:
    """onnxruntime rounds activations to 8 bits, if it is not told not to."""
    net = Builder(seed=15)
    cases = {
        "blocks": net.op("MatMul", "x", _matrix(net, (_DEPTH, 48), "int4", axis=0, zeros=False)),
        "level 4": _n_bits(net, "x", 48, bits=4, block=32, accuracy_level=4),
    }
    model = _save(tmp_path / "model.onnx", net, {"x": (1, 4, _DEPTH)}, cases)
    x = net.random.normal(size=(1, 4, _DEPTH)).astype("float32")
    proto = onnx.load(model)
    got = run_reference(as_meant(proto), {}, [x])
    # As written there is nothing to be less exact by.
    for node in proto.graph.node:
        kept = [item for item in node.attribute if item.name != "accuracy_level"]
        del node.attribute[:]
        node.attribute.extend(kept)
    onnx.save(proto, model)
    assert not wrong_outputs(model, [x], got, 1e-6, as_written=True)


@pytest.mark.parametrize(
    ("scale", "zeros", "axis", "block"),
    [
        ((1, 48), None, 0, 16),
        ((4, 48), (1, 48), 0, 16),
        ((4, 48), (4, 47), 0, 16),
        ((4, 48), None, 1, 16),
        ((4, 48), None, 0, -16),
        ((4, 48), None, 0, 1 << 40),
        ((48,), None, 0, 16),
    ],
)
def test_blocks_that_are_none(
    tmp_path: Path, scale: tuple[int, ...], zeros: tuple[int, ...] | None, axis: int, block: int
) -> None:
    """A kernel reads a scale for each block: a file that has fewer is refused."""
    net = Builder(seed=16)
    given = [net.const(net.random.integers(-128, 128, (_DEPTH, 48)), "int8")]
    given.append(net.const(np.ones(scale), "float32"))
    if zeros is not None:
        given.append(net.const(np.zeros(zeros), "int8"))
    weight = net.op("DequantizeLinear", *given, axis=axis, block_size=block)
    net.op("MatMul", "x", weight, outputs=["y"])
    proto = net.model({"x": (1, 1, _DEPTH)}, {"y": (1, 1, 48)}, opset=21)
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(EdgepackError):
        plan_model(load_model(ModelSpec(path=tmp_path / "model.onnx")), get_board("local"))


@pytest.mark.parametrize("shape", [(4, 1), (1, 48), (3, 48), (5, 48), (4, 48, 1), (192,), ()])
def test_scales_that_are_not_of_blocks_make_no_such_weights(shape: tuple[int, ...]) -> None:
    values, right = (relax.const(np.zeros(size, "int8")) for size in ((_DEPTH, 48), (4, 48)))
    scale = relax.const(np.ones((4, 48), "float32"))
    assert matrix_in_blocks(values, scale, right, 16, 0) is not None
    assert matrix_in_blocks(values, relax.const(np.ones(shape, "float32")), None, 16, 0) is None
    zeros = relax.const(np.ones(shape, "int8"))
    assert matrix_in_blocks(values, scale, zeros, 16, 0) is None


@pytest.mark.parametrize("opset", [10, 14, 21])
def test_the_model_may_be_older_than_blocks(tmp_path: Path, opset: int) -> None:
    net = Builder(seed=14)
    cases = {"y": _n_bits(net, "x", 64, bits=4, block=32, zeros="uint8")}
    model = _save(tmp_path / "model.onnx", net, {"x": (1, 1, _DEPTH)}, cases, opset)
    inputs = [net.random.normal(size=(1, 1, _DEPTH)).astype("float32")]
    compiled, got = compile_and_run(model, inputs, "local", "x86_64", tmp_path)
    assert not wrong_outputs(model, inputs, got, as_written=True)
    assert [layer.rule for layer in compiled.layers] == [_RULE]


def _save(
    path: Path,
    net: Builder,
    shapes: dict[str, tuple[int, ...]],
    cases: dict[str, str],
    opset: int = 21,
) -> Path:
    outputs = {
        net.op("Identity", value, outputs=[f"y{number}"]): None
        for number, value in enumerate(cases.values())
    }
    proto = net.model(dict(shapes), outputs, opset=opset)
    proto.ir_version = 10
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(onnx.shape_inference.infer_shapes(proto), path)
    return path

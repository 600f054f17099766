"""onnxruntime's own operators become ONNX's, which compute the same by onnxruntime."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from edgepack.frontend.expand import expand
from edgepack.frontend.microsoft import DOMAIN
from edgepack.model import walk_nodes
from tests.onnx_models import Builder

Shapes = dict[str, tuple[int, ...]]
Case = Callable[[Builder], tuple[Shapes, int]]
ROWS: Shapes = {"x": (2, 3, 64)}
IMAGE: Shapes = {"x": (1, 3, 6, 5)}


def _gelu(b: Builder) -> tuple[Shapes, int]:
    b.op("Gelu", b.op("QuickGelu", "x", domain=DOMAIN, alpha=1.5), domain=DOMAIN, outputs=["y0"])
    return ROWS, 1


def _products(b: Builder) -> tuple[Shapes, int]:
    square = b.op("FusedMatMul", "x", "x", domain=DOMAIN, transB=1, alpha=0.25)
    b.op("FusedMatMul", b.weight(3, 7), square, domain=DOMAIN, transA=1, outputs=["y0"])
    return ROWS, 1


def _convolutions(b: Builder) -> tuple[Shapes, int]:
    kinds: list[tuple[str, list[float]]] = [
        ("Relu", []),
        ("LeakyRelu", [0.2]),
        ("HardSigmoid", [0.3, 0.4]),
        ("Clip", [-0.5, 0.5]),
        ("Tanh", []),
    ]
    for number, (kind, numbers) in enumerate(kinds):
        more = {"activation_params": numbers} if numbers else {}
        b.op(
            "FusedConv",
            *("x", b.weight(4, 3, 3, 3), b.weight(4)),
            domain=DOMAIN,
            pads=[1, 0, 1, 0],
            activation=kind,
            outputs=[f"y{number}"],
            **more,
        )
    return IMAGE, len(kinds)


def _norms(b: Builder) -> tuple[Shapes, int]:
    b.op("SimplifiedLayerNormalization", "x", b.weight(64), outputs=["y0"], epsilon=1e-3)
    one = ("x", "y0", b.weight(64), b.weight(64))
    b.op("SkipSimplifiedLayerNormalization", *one, domain=DOMAIN, outputs=["y1"])
    outputs = ["y2", "unread", "", "y3"]
    b.op("SkipLayerNormalization", *one, b.weight(64), domain=DOMAIN, outputs=outputs)
    # Neither a shift nor a bias, one of both.
    scale = ("x", "y0", b.weight(64))
    for number, more in enumerate([(), (b.weight(64),), ("", b.weight(64))], 4):
        given = (*scale, *more)
        b.op("SkipLayerNormalization", *given, domain=DOMAIN, outputs=[f"y{number}"], epsilon=1e-3)
    return ROWS, 7


def _few_bits(b: Builder) -> tuple[Shapes, int]:
    for number, (bits, with_zeros) in enumerate([(4, False), (4, True), (8, True)]):
        columns, depth, block = 5, 64, 32
        shape = (columns, depth // block, block * bits // 8)
        given = [b.const(b.random.integers(0, 256, shape), "uint8")]
        given.append(b.const(b.random.uniform(0.01, 0.1, (columns, depth // block)), "float32"))
        if with_zeros:
            zeros = (columns, -(-depth // block * bits // 8))
            given.append(b.const(b.random.integers(0, 256, zeros), "uint8"))
        sizes = {"K": depth, "N": columns, "bits": bits, "block_size": block}
        b.op("MatMulNBits", "x", *given, domain=DOMAIN, outputs=[f"y{number}"], **sizes)
    return ROWS, 3


@pytest.mark.parametrize("case", [_gelu, _products, _convolutions, _norms, _few_bits])
def test_the_definition_computes_the_same(case: Case) -> None:
    builder = Builder()
    shapes, count = case(builder)
    # onnxruntime reads blocks of DequantizeLinear since the opset that has them.
    opset = 21 if case is _few_bits else 17
    proto = builder.model(dict(shapes), {f"y{n}": None for n in range(count)}, opset=opset)
    proto.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    expanded = expand(proto)
    assert not {node.domain for node in walk_nodes(expanded.graph)} & {DOMAIN}
    random = np.random.default_rng(3)
    feeds = {name: random.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    for mine, theirs in zip(_run(expanded, feeds), _run(proto, feeds), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [11, 14])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_definitions_in_a_model_older_than_castlike(opset: int, dtype: str) -> None:
    builder = Builder()
    value = builder.op("QuickGelu", builder.op("Gelu", "x", domain=DOMAIN), domain=DOMAIN)
    scale, shift = builder.weight(8, dtype=dtype), builder.weight(8, dtype=dtype)
    for more in ((), (shift,)):
        value = builder.op("SkipLayerNormalization", value, "x", scale, *more, domain=DOMAIN)
    builder.op("FusedMatMul", value, "x", domain=DOMAIN, transB=1, alpha=0.5, outputs=["y"])
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    types = {"x": kind, "y": kind}
    proto = builder.model({"x": (3, 8)}, {"y": None}, types, opset=opset)
    proto.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    expanded = expand(proto)
    assert not {node.domain for node in walk_nodes(expanded.graph)} & {DOMAIN}
    x = np.random.default_rng(5).normal(size=(3, 8)).astype(dtype)
    tolerance = 1e-5 if dtype == "float32" else 4e-3
    (mine,), (theirs,) = (_run(item, {"x": x}) for item in (expanded, proto))
    np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("FusedConv", {"activation": "Nothing"}),
        ("FusedConv", {"activation": "Clip", "activation_params": [1.0]}),
        ("FusedMatMul", {"transBatchA": 1}),
        ("MatMulNBits", {"bits": 4}),
        ("MatMulNBits", {"K": 99, "N": 3, "bits": 4, "block_size": 32}),
    ],
)
def test_a_form_without_a_definition_stays(operator: str, attributes: dict[str, object]) -> None:
    b = Builder()
    weights = [b.weight(4, 3, 1, 1)]
    if operator == "MatMulNBits":
        weights = [b.const(np.zeros((3, 1, 16)), "uint8"), b.const(np.ones(3), "float32")]
    b.op(operator, "x", *weights, domain=DOMAIN, outputs=["y"], **attributes)
    expanded = expand(b.model(dict(IMAGE), {"y": None}))
    assert [node.op_type for node in expanded.graph.node] == [operator]


def _run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    outputs: list[np.ndarray] = session.run(None, feeds)
    return outputs

"""Small ONNX models for tests, each with what makes it interesting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


class Builder:
    """Collects nodes and weights; `save` writes a checked model of opset 17."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def const(self, value: object, dtype: str | None = None) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def weight(self, *shape: int, dtype: str = "float32") -> str:
        scale = 1 / np.sqrt(max(np.prod(shape[1:]), 1))
        return self.const(self.random.normal(size=shape) * scale, dtype)

    def op(
        self, op_type: str, *inputs: str, outputs: Sequence[str] = (), **attributes: object
    ) -> str:
        names = list(outputs) or [f"v{len(self.nodes)}"]
        node = helper.make_node(
            op_type, inputs, names, name=f"{op_type}_{len(self.nodes)}", **attributes
        )
        self.nodes.append(node)
        return names[0]

    def conv(self, data: str, cin: int, cout: int, kernel: int = 3, **attributes: object) -> str:
        groups = int(attributes.get("group", 1))  # type: ignore[call-overload]
        attributes.setdefault("pads", [kernel // 2] * 4)
        return self.op(
            "Conv",
            data,
            self.weight(cout, cin // groups, kernel, kernel),
            self.weight(cout),
            **attributes,
        )

    def model(
        self,
        inputs: dict[str, Sequence[int | str | None]],
        outputs: dict[str, Sequence[int | str | None] | None],
        dtypes: dict[str, int] | None = None,
        opset: int = 17,
    ) -> onnx.ModelProto:
        types = dtypes or {}
        graph = helper.make_graph(
            self.nodes,
            "test",
            [helper.make_tensor_value_info(n, types.get(n, FLOAT), s) for n, s in inputs.items()],
            [helper.make_tensor_value_info(n, types.get(n, FLOAT), s) for n, s in outputs.items()],
            self.weights,
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8
        )

    def save(self, path: Path, *args: object, **kwargs: object) -> Path:
        model = self.model(*args, **kwargs)  # type: ignore[arg-type]
        onnx.save(model, path)
        return path


def one_conv(path: Path, batch: int | str | None = 1) -> Path:
    """Conv 3->8 and Relu on 3x16x16; `batch` may be a symbol's name or None."""
    b = Builder()
    b.op("Relu", b.conv("image", 3, 8), outputs=["features"])
    return b.save(path, {"image": [batch, 3, 16, 16]}, {"features": [batch, 8, 16, 16]})


def branches(path: Path) -> Path:
    """Two inputs, branches, concat, depthwise, residual add, two outputs, one of them a view."""
    b = Builder(1)
    x = b.op(
        "Clip",
        b.conv("left", 3, 8, strides=[2, 2]),
        b.const(0.0, "float32"),
        b.const(6.0, "float32"),
    )
    wide = b.op("Relu", b.conv(x, 8, 12))
    thin = b.op("Sigmoid", b.conv(x, 8, 12, kernel=1))
    joined = b.op("Concat", wide, thin, "right", axis=1)
    deep = b.conv(joined, 28, 28, group=28)
    total = b.op("Add", deep, joined)
    pooled = b.op("MaxPool", total, kernel_shape=[2, 2], strides=[2, 2])
    b.op("Flatten", b.op("GlobalAveragePool", pooled), outputs=["vector"])
    b.op("AveragePool", total, kernel_shape=[3, 3], pads=[1, 1, 1, 1], outputs=["map"])
    return b.save(
        path,
        {"left": [1, 3, 19, 17], "right": [1, 4, 10, 9]},
        {"vector": [1, 28], "map": [1, 28, 10, 9]},
    )


def transformer_block(path: Path) -> Path:
    """Token ids (int64) -> embedding, attention with softmax, layer norm, Gelu by Erf."""
    b = Builder(2)
    tokens, width = 7, 16
    x = b.op("Gather", b.weight(50, width), "ids")
    q, k, v = (b.op("MatMul", x, b.weight(width, width)) for _ in range(3))
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 2, 1]))
    attended = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
    x = b.op("LayerNormalization", b.op("Add", attended, x), b.weight(width), b.weight(width))
    h = b.op("Add", b.op("MatMul", x, b.weight(width, 32)), b.weight(32))
    erf = b.op("Erf", b.op("Div", h, b.const(np.sqrt(2), "float32")))
    gelu = b.op(
        "Mul", b.op("Mul", h, b.op("Add", erf, b.const(1.0, "float32"))), b.const(0.5, "float32")
    )
    b.op("Tanh", b.op("MatMul", gelu, b.weight(32, width)), outputs=["out"])
    b.op("ArgMax", scores, axis=-1, keepdims=0, outputs=["best"])
    return b.save(
        path,
        {"ids": [1, tokens]},
        {"out": [1, tokens, width], "best": [1, tokens]},
        {"ids": TensorProto.INT64, "best": TensorProto.INT64},
    )


def gather(folder: Path) -> Path:
    """Two rows of four, by numbers that are an input."""
    b = Builder()
    node = helper.make_node("Gather", ["rows", "ids"], ["picked"], name="pick")
    b.nodes.append(node)
    return b.save(
        folder / "gather.onnx",
        {"rows": [4, 6], "ids": [2]},
        {"picked": [2, 6]},
        {"ids": TensorProto.INT64},
    )


def half_floats(path: Path) -> Path:
    """float16 in and out, exp and division: needs conversion helpers on ARMv7."""
    b = Builder(3)
    x = b.op("Gemm", "x", b.weight(6, 8, dtype="float16"), transB=1)
    b.op("Softmax", b.op("Exp", x), axis=-1, outputs=["y"])
    half = TensorProto.FLOAT16
    return b.save(path, {"x": [2, 8]}, {"y": [2, 6]}, {"x": half, "y": half})


def half_image(path: Path) -> Path:
    """A small network of images in float16, with a constant and a cast of that type."""
    b = Builder(5)
    half = TensorProto.FLOAT16
    x = b.op("Relu", b.op("Conv", "x", b.weight(24, 5, 3, 3, dtype="float16"), pads=[1] * 4))
    y = b.op("Conv", x, b.weight(24, 1, 3, 3, dtype="float16"), group=24, pads=[1] * 4)
    x = b.op("Add", b.op("Mul", y, b.const(0.5, "float16")), x)
    x = b.op("Cast", b.op("Cast", x, to=TensorProto.FLOAT), to=half)
    b.op("Conv", x, b.weight(7, 24, 1, 1, dtype="float16"), outputs=["y"])
    return b.save(path, {"x": [1, 5, 9, 11]}, {"y": [1, 7, 9, 11]}, {"x": half, "y": half})


def integers(path: Path) -> Path:
    """int64 and int32 division and remainder: needs run-time helpers without SDIV."""
    b = Builder(4)
    quotient = b.op("Div", "a", "b")
    b.op("Mod", "a", "b", outputs=["remainder"])
    b.op("Cast", quotient, to=TensorProto.INT32, outputs=["quotient"])
    return b.save(
        path,
        {"a": [3, 5], "b": [3, 5]},
        {"remainder": [3, 5], "quotient": [3, 5]},
        dict.fromkeys(("a", "b", "remainder"), TensorProto.INT64) | {"quotient": TensorProto.INT32},
    )


def quantized(path: Path) -> Path:
    """Two convolutions, a mean and a Gemm with QuantizeLinear and DequantizeLinear around them.

    Weights are int8 with a scale per output channel, the tensors between uint8; the first
    convolution has a bias of int32. The output comes in steps of 0.002.
    """
    b = Builder(3)

    def steps(value: str, scale: float, zero_point: int, name: str = "") -> str:
        parameters = b.const(scale, "float32"), b.const(zero_point, "uint8")
        integers = b.op("QuantizeLinear", value, *parameters)
        return b.op("DequantizeLinear", integers, *parameters, outputs=[name] if name else ())

    def weight(*shape: int) -> tuple[str, np.ndarray]:
        values = b.random.integers(-127, 128, size=shape).astype("int8")
        most = b.random.uniform(0.3, 1, shape[0]) / np.sqrt(np.prod(shape[1:]))
        scale = (most / 127).astype("float32")
        zeros = b.const(np.zeros(shape[0], "int8"))
        made = b.op("DequantizeLinear", b.const(values), b.const(scale), zeros, axis=0)
        return made, scale

    x = steps("x", 0.02, 128)
    kernel, scale = weight(8, 3, 3, 3)
    sums = b.const(b.random.integers(-900, 900, size=8).astype("int32"))
    bias = b.op("DequantizeLinear", sums, b.const(scale * np.float32(0.02)), axis=0)
    x = steps(b.op("Relu", b.op("Conv", x, kernel, bias, pads=[1] * 4)), 0.01, 0)
    x = steps(b.op("Conv", x, weight(16, 8, 1, 1)[0]), 0.01, 120)
    x = steps(b.op("GlobalAveragePool", x), 0.005, 120)
    x = b.op("Gemm", b.op("Flatten", x), weight(5, 16)[0], transB=1)
    steps(x, 0.002, 128, "y")
    return b.save(path, {"x": [1, 3, 12, 12]}, {"y": [1, 5]})

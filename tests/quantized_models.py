"""Models with QuantizeLinear and DequantizeLinear around all operators, one chain per case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from tests.onnx_models import Builder


class Chains:
    """Adds operators on 8-bit integers to a model.

    Tensors are known by their numbers, with the name of the DequantizeLinear that makes them. Each
    is `dtype`, uint8 or int8; scales and zero points are random, and such that some results
    saturate.
    """

    def __init__(self, net: Builder, dtype: str) -> None:
        self.net, self.dtype = net, dtype
        self.info = np.iinfo(dtype)

    def steps(self, value: str, scale: float, zero: int | None = None) -> str:
        """A pair behind a value; a random zero point if there is none."""
        if zero is None:
            zero = int(self.info.min + self.net.random.integers(64, 192))
        given = self.net.const(scale, "float32"), self.net.const(zero, self.dtype)
        integers = self.net.op("QuantizeLinear", value, *given)
        return self.net.op("DequantizeLinear", integers, *given)

    def weight(
        self, *shape: int, axis: int = 0, least: int = -127, steep: bool = False
    ) -> tuple[str, np.ndarray]:
        """A weight with a scale per channel, and these; `steep`: that of the last is far larger."""
        random = self.net.random
        values = random.integers(least, 127, size=shape, endpoint=True).astype("int8")
        values.flat[0] = least
        scale = random.uniform(0.5, 1.5, shape[axis]) / (60 * np.sqrt(np.prod(shape) / shape[axis]))
        scale[-1] *= 1e6 if steep else 1
        scale = scale.astype("float32")
        zeros = self.net.const(np.zeros(shape[axis], "int8"))
        given = self.net.const(values), self.net.const(scale), zeros
        return self.net.op("DequantizeLinear", *given, axis=axis), scale

    def bias(self, count: int, scale: np.ndarray, *, cut_off: bool = False) -> str:
        """A bias of int32; `cut_off`: of some channels one that no sum is far from the end with."""
        values = self.net.random.integers(-4000, 4000, size=count).astype("int32")
        if cut_off:
            values[:2] = 2**31 - 1, -(2**31) + 1
        return self.net.op(
            "DequantizeLinear", self.net.const(values), self.net.const(scale), axis=0
        )

    def conv(
        self,
        data: str,
        ins: int,
        outs: int,
        kernel: Sequence[int],
        *,
        given: float = 0.02,
        scale: float = 0.02,
        least: int = -127,
        steep: bool = False,
        after: str = "",
        zero: int | None = None,
        cut_off: bool = False,
        **attributes: object,
    ) -> str:
        """A convolution of a tensor whose scale is `given`."""
        groups = int(attributes.get("group", 1))  # type: ignore[call-overload]
        weight, scales = self.weight(outs, ins // groups, *kernel, least=least, steep=steep)
        bias = self.bias(outs, scales * np.float32(given), cut_off=cut_off)
        value = self.net.op("Conv", data, weight, bias, **attributes)
        return self.steps(self._followed(value, after), scale, zero)

    def transposed(
        self,
        data: str,
        ins: int,
        outs: int,
        kernel: Sequence[int],
        *,
        scale: float = 0.02,
        least: int = -127,
        after: str = "",
        zero: int | None = None,
        **attributes: object,
    ) -> str:
        """A transposed convolution of a tensor whose scale is 0.02."""
        groups = int(attributes.get("group", 1))  # type: ignore[call-overload]
        weight, scales = self.weight(ins, outs // groups, *kernel, axis=1, least=least)
        bias = self.bias(outs, np.tile(scales, groups) * np.float32(0.02))
        value = self.net.op("ConvTranspose", data, weight, bias, **attributes)
        return self.steps(self._followed(value, after), scale, zero)

    def _followed(self, value: str, after: str) -> str:
        if after == "Relu":
            return self.net.op("Relu", value)
        if after == "Clip":
            bounds = self.net.const(-0.3, "float32"), self.net.const(1.1, "float32")
            return self.net.op("Clip", value, *bounds)
        return value


def by_onnxruntime(
    path: Path, model: onnx.ModelProto, photos: Sequence[np.ndarray], **options: object
) -> Path:
    """A float model in operator form (QLinearConv and its like), as onnxruntime's quantiser writes
    it, calibrated on `photos`; weights have 7 bits, of which no CPU's kernels cut off sums."""
    name = model.graph.input[0].name

    class Photos(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(photos)

        def get_next(self) -> dict[str, np.ndarray] | None:
            photo = next(self.left, None)
            return None if photo is None else {name: photo}

    given = {"per_channel": True, "reduce_range": True, "extra_options": {"WeightSymmetric": True}}
    quantize_static(
        model, path, Photos(), quant_format=QuantFormat.QOperator, **{**given, **options}
    )
    return path


# Of the networks below.
SHAPE = (1, 3, 15, 18)


def photos(count: int = 6) -> list[np.ndarray]:
    random = np.random.default_rng(7)
    return [random.normal(size=SHAPE).astype("float32") for _ in range(count)]


def chain(opset: int = 17) -> onnx.ModelProto:
    """Operators whose integers are onnxruntime's to the bit."""
    b = Builder(2)
    x = b.op("Relu", b.conv("x", 3, 16, strides=[2, 2]))
    x = b.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.op("Relu", b.conv(x, 16, 16, group=16))
    x = b.conv(x, 16, 24, kernel=1)
    x = b.op("Relu", b.conv(x, 24, 8, kernel=4, pads=[0] * 4))
    row = b.op("Flatten", x)
    b.op("Gemm", row, b.weight(7, 8), b.weight(7), transB=1, outputs=["y"])
    return onnx.shape_inference.infer_shapes(b.model({"x": SHAPE}, {"y": (1, 7)}, opset=opset))


def block() -> onnx.ModelProto:
    """Sums, means, pools and channels joined."""
    b = Builder(4)
    x = b.op("Relu", b.conv("x", 3, 16))
    x = b.op("Add", x, b.conv(b.conv(x, 16, 16, group=16), 16, 16, kernel=1))
    x = b.op("Concat", b.conv(x, 16, 32, kernel=1), b.conv(x, 16, 10), axis=1)
    x = b.op("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2])
    x = b.op("GlobalAveragePool", b.conv(x, 42, 20, kernel=1))
    b.op("MatMul", b.op("Flatten", x), b.weight(20, 7), outputs=["y"])
    return onnx.shape_inference.infer_shapes(b.model({"x": SHAPE}, {"y": (1, 7)}))

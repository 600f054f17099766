"""Models with QuantizeLinear and DequantizeLinear around all operators, one chain per case."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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

    def weight(self, *shape: int, axis: int = 0, least: int = -127) -> tuple[str, np.ndarray]:
        """A weight with a scale per channel, and these."""
        random = self.net.random
        values = random.integers(least, 127, size=shape, endpoint=True).astype("int8")
        values.flat[0] = least
        scale = random.uniform(0.5, 1.5, shape[axis]) / (60 * np.sqrt(np.prod(shape) / shape[axis]))
        scale = scale.astype("float32")
        zeros = self.net.const(np.zeros(shape[axis], "int8"))
        given = self.net.const(values), self.net.const(scale), zeros
        return self.net.op("DequantizeLinear", *given, axis=axis), scale

    def bias(self, count: int, scale: np.ndarray) -> str:
        """A bias of int32."""
        values = self.net.random.integers(-4000, 4000, size=count).astype("int32")
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
        after: str = "",
        **attributes: object,
    ) -> str:
        """A convolution of a tensor whose scale is `given`."""
        groups = int(attributes.get("group", 1))  # type: ignore[call-overload]
        weight, scales = self.weight(outs, ins // groups, *kernel, least=least)
        bias = self.bias(outs, scales * np.float32(given))
        value = self.net.op("Conv", data, weight, bias, **attributes)
        if after == "Relu":
            value = self.net.op("Relu", value)
        elif after == "Clip":
            bounds = self.net.const(-0.3, "float32"), self.net.const(1.1, "float32")
            value = self.net.op("Clip", value, *bounds)
        return self.steps(value, scale)

"""Random expressions of floats, and what numpy makes of them, operator by operator."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from onnx import TensorProto

from tests.onnx_models import FLOAT, Builder


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


# What expressions are drawn from, and what each does to float32. Numbers that real arithmetic would
# fold away are among the constants, but no zeros: onnxruntime, which folds what is constant, takes
# x + 0 for x, and IEEE 754 left the sign of a zero that is a maximum open until 2019.
CONSTANTS = (1.0, -1.0, 2.0, 0.5, 0.1, 3.0, 1e8, 1e-8, 16777217.0, 3e38, np.inf)
BOUNDS = (-6.0, -0.5, 0.1, 6.0)
BINARY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}
UNARY = {"Neg": np.negative, "Abs": np.abs, "Floor": np.floor, "Sqrt": np.sqrt}
CASTS = {TensorProto.FLOAT16: np.float16, TensorProto.BFLOAT16: ml_dtypes.bfloat16}


def _is_subnormal(value: np.ndarray) -> np.ndarray:
    """Or the smallest normal number, which may have been rounded up to."""
    return np.asarray((value != 0) & (np.abs(value) <= np.finfo("float32").tiny))


class Expressions:
    """Random expressions of a model's inputs, and what numpy makes of each, operator by operator:
    each of its float32 results is the one that IEEE 754 rounds to.

    `subnormal` says of each name where it is made of a number below the normal ones, or is one:
    32-bit ARM's vectors take those for 0.
    """

    def __init__(self, net: Builder, given: dict[str, np.ndarray], seed: int) -> None:
        self.net, self.random = net, np.random.default_rng(seed)
        self.pool = list(given.items())
        self.names: dict[str, str] = {}
        self.subnormal = {name: _is_subnormal(value) for name, value in given.items()}

    def draw(self, operators: int) -> tuple[str, np.ndarray]:
        """One of so many operators; what it reads may be shared with others."""
        name, value = self.pool[self.random.integers(len(self.pool))]
        for _ in range(operators):
            known = len(self.net.nodes)
            name, value = self._operator(name, value)
            read = {item for node in self.net.nodes[known:] for item in node.input}
            masks = [self.subnormal[item] for item in read & self.subnormal.keys()]
            self.subnormal[name] = np.logical_or.reduce([*masks, _is_subnormal(value)])
        self.pool.append((name, value))
        return name, value

    def _operator(self, name: str, value: np.ndarray) -> tuple[str, np.ndarray]:
        match self.random.integers(10):
            case 0:
                op = str(self.random.choice(list(UNARY)))
                return self.net.op(op, name), UNARY[op](value)
            case 1:
                kind = int(self.random.choice(list(CASTS)))
                narrow = self.net.op("Cast", name, to=kind)
                wide = value.astype(CASTS[kind]).astype("float32")  # type: ignore[call-overload]
                return self.net.op("Cast", narrow, to=FLOAT), wide
            case 2:
                op, bound = str(self.random.choice(["Max", "Min"])), self.random.choice(BOUNDS)
                clip = np.maximum if op == "Max" else np.minimum
                return self.net.op(op, name, self._constant(bound)), clip(value, np.float32(bound))
            case 3:
                other, theirs = self._other(value.shape)
                less = self.net.op("Less", name, other)
                if self.random.integers(2):
                    less, is_less = self.net.op("Not", less), ~(value < theirs)
                else:
                    is_less = value < theirs
                return self.net.op("Where", less, name, other), np.where(is_less, value, theirs)
            case _:
                op = str(self.random.choice(list(BINARY)))
                other, theirs = self._other(value.shape)
                if self.random.integers(2):
                    return self.net.op(op, other, name), BINARY[op](theirs, value)
                return self.net.op(op, name, other), BINARY[op](value, theirs)

    def _other(self, shape: tuple[int, ...]) -> tuple[str, np.ndarray]:
        """A constant, or something that was there before."""
        equal = [item for item in self.pool if item[1].shape == shape]
        if self.random.integers(2):
            return equal[self.random.integers(len(equal))]
        value = self.random.choice(CONSTANTS)
        return self._constant(value), np.full(shape, value, "float32")

    def _constant(self, value: float) -> str:
        key = repr(float(value))
        if key not in self.names:
            self.names[key] = self.net.const(np.float32(value), "float32")
        return self.names[key]

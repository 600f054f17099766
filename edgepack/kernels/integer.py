"""Operators on 8-bit integers, and what is right of them.

A tensor of integers q stands for the numbers `scale * (q - zero)`; all of them are kept as int8, so
those of a model's uint8 are 128 less here, as are their zero points. Sums are exact in int32. What
makes int8 of a sum is the same everywhere:

    clamp(round(float32(sum) * factor), low - zero, high - zero) + zero

with one multiplication in float32, rounded half to even. Of a convolution that is onnxruntime's
QLinearConv to the bit; its sums and means of images may be one step off.

`run` of each operator is the definition in numpy. Kernels give the same bytes on every CPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What integers stand for: `scale` (a float32) * (q - `zero`)."""

    scale: float
    zero: int


@dataclass(frozen=True, kw_only=True)
class Target:
    """What results are: `zero` is their zero point, and they stay within `low` and `high`."""

    zero: int
    low: int
    high: int

    def requantised(self, sums: Array, factor: Array | np.float32) -> Array:
        """int8 of sums (int32); `factor` (float32) has a shape that goes with theirs."""
        real = sums.astype("float32") * factor
        least, most = np.float32(self.low - self.zero), np.float32(self.high - self.zero)
        with np.errstate(invalid="ignore"):  # NaN, of which any integer is as good
            whole = np.rint(np.clip(real, least, most)).astype("int32")
        return np.asarray((whole + self.zero).astype("int8"))


@dataclass(frozen=True, kw_only=True, eq=False)
class IntegerOperator(ABC):
    """An operator whose results are int8, of inputs that are; `ToIntegers` reads float32, and
    `FromIntegers` makes it."""

    @abstractmethod
    def run(self, inputs: Sequence[Array]) -> Array:
        """The result."""

    def shape(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The result's, of those of the inputs."""
        return tuple(shapes[0])


@dataclass(frozen=True, kw_only=True, eq=False)
class ToIntegers(IntegerOperator):
    """Integers of float32."""

    steps: Steps

    @property
    def to(self) -> Target:
        """What its results are."""
        return Target(zero=self.steps.zero, low=-128, high=127)

    def run(self, inputs: Sequence[Array]) -> Array:
        """The nearest integers; of numbers half way the even one."""
        # Infinite if the scale is tiny.
        with np.errstate(over="ignore"):
            real = inputs[0].astype("float32") / np.float32(self.steps.scale)
        return self.to.requantised(real, np.float32(1))


@dataclass(frozen=True, kw_only=True, eq=False)
class FromIntegers(IntegerOperator):
    """The numbers that integers stand for, as float32."""

    steps: Steps

    def run(self, inputs: Sequence[Array]) -> Array:
        """scale * (q - zero), where the difference is exact."""
        whole = inputs[0].astype("int32") - self.steps.zero
        return np.asarray(whole.astype("float32") * np.float32(self.steps.scale))


@dataclass(frozen=True, kw_only=True, eq=False)
class IntegerConvolution(IntegerOperator):
    """A convolution of one or two dimensions; of a matrix (N, C) the product with its weights.

    `weight` is int8 [out channels, in channels / groups, rows, columns], and its zero point 0.
    `bias` (int32 [out channels]) has the input's zero point in it: a sum is that of the products of
    weights and inputs, plus the bias, where what is outside of the image has the value `zero`.
    `factor` is float32 [out channels]. Pairs are (vertical, horizontal).
    """

    weight: Array
    bias: Array
    factor: Array
    zero: int
    stride: tuple[int, int]
    before: tuple[int, int]
    after: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    to: Target

    @property
    def kernel(self) -> tuple[int, int]:
        """Rows and columns of the window."""
        return self.weight.shape[2], self.weight.shape[3]

    def shape(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The result's, of that of the input."""
        n, _c, *size = shapes[0]
        if not size:
            return n, len(self.weight)
        rank = len(size)
        out = _windows(size, self.kernel, self.stride, self.before, self.after, self.dilation)
        return n, len(self.weight), *out[2 - rank :]

    def run(self, inputs: Sequence[Array]) -> Array:
        """As many products as there are points in the window, added up in double precision, which
        is exact."""
        data = _as_image(inputs[0]).astype("float64")
        around = [(0, 0), (0, 0), *zip(self.before, self.after, strict=True)]
        data = np.pad(data, around, constant_values=self.zero)
        size = data.shape[2:]
        height, width = _windows(size, self.kernel, self.stride, (0, 0), (0, 0), self.dilation)
        outs, ins = len(self.weight) // self.groups, self.weight.shape[1]
        weight = self.weight.astype("float64").reshape(self.groups, outs, ins, *self.kernel)
        sums = np.zeros((len(data), self.groups, outs, height * width))
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                top, left = i * self.dilation[0], j * self.dilation[1]
                under = data[:, :, top:, left:][
                    :,
                    :,
                    : (height - 1) * self.stride[0] + 1 : self.stride[0],
                    : (width - 1) * self.stride[1] + 1 : self.stride[1],
                ]
                under = under.reshape(len(data), self.groups, ins, -1)
                sums += np.matmul(weight[None, ..., i, j], under)
        whole = sums.reshape(len(data), -1, height, width).astype("int64")
        whole += self.bias.astype("int64")[:, None, None]
        made = self.to.requantised(whole.astype("int32"), self.factor[:, None, None])
        return made.reshape(self.shape([inputs[0].shape]))


@dataclass(frozen=True, kw_only=True, eq=False)
class IntegerTransposed(IntegerOperator):
    """The transpose of a convolution of one or two dimensions, whose results are cut to `size`.

    `weight` is int8 [out channels, in channels / groups, rows, columns], as a convolution has it,
    and its zero point 0. `bias` (int32 [out channels]) is what is added to the products of weights
    and inputs less their `zero`. `factor` is float32 [out channels]. Pairs are (vertical,
    horizontal); `before` is what is cut off at top and left.
    """

    weight: Array
    bias: Array
    factor: Array
    zero: int
    stride: tuple[int, int]
    before: tuple[int, int]
    size: tuple[int, int]
    groups: int
    to: Target

    def shape(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The result's, of that of the input."""
        n, _c, *size = shapes[0]
        return n, len(self.weight), *self.size[2 - len(size) :]

    def run(self, inputs: Sequence[Array]) -> Array:
        """Each input times the window, added up in double precision, which is exact."""
        data = _as_image(inputs[0]).astype("float64") - self.zero
        (n, _c, height, width), (rows, columns) = data.shape, self.weight.shape[2:]
        outs, ins = len(self.weight) // self.groups, self.weight.shape[1]
        weight = self.weight.astype("float64").reshape(self.groups, outs, ins, rows, columns)
        data = data.reshape(n, self.groups, ins, height * width)
        # As much as is needed at the ends, or what windows reach.
        whole = [
            max((extent - 1) * step + reach, first + size)
            for extent, step, reach, first, size in zip(
                (height, width), self.stride, (rows, columns), self.before, self.size, strict=True
            )
        ]
        sums = np.zeros((n, len(self.weight), *whole), "int64")
        for i in range(rows):
            for j in range(columns):
                made = np.matmul(weight[None, ..., i, j], data).astype("int64")
                sums[
                    :,
                    :,
                    i : i + (height - 1) * self.stride[0] + 1 : self.stride[0],
                    j : j + (width - 1) * self.stride[1] + 1 : self.stride[1],
                ] += made.reshape(n, -1, height, width)
        (top, left), (high, wide) = self.before, self.size
        cut = sums[:, :, top : top + high, left : left + wide]
        cut = cut + self.bias.astype("int64")[:, None, None]
        made = self.to.requantised(cut.astype("int32"), self.factor[:, None, None])
        return made.reshape(self.shape([inputs[0].shape]))


@dataclass(frozen=True, kw_only=True, eq=False)
class IntegerSum(IntegerOperator):
    """The sum of two tensors of one shape.

    Each is multiplied with an integer of `multipliers`; that and `constant` are added up exactly,
    and `factor` is a power of two.
    """

    multipliers: tuple[int, int]
    constant: int
    factor: float
    to: Target

    # Bits of the larger multiplier: with 8 bits of each tensor sums stay below 2 ** 30.
    _BITS: ClassVar[int] = 21

    @classmethod
    def of(cls, given: Sequence[Steps], made: Steps, to: Target) -> IntegerSum | None:
        """That of two tensors; None if their steps differ too much."""
        ratios = [item.scale / made.scale for item in given]
        _, exponent = np.frexp(max(ratios))
        shift = cls._BITS - int(exponent)
        if not 0 <= shift <= 2 * cls._BITS:
            return None
        one, other = (round(ratio * 2.0**shift) for ratio in ratios)
        constant = -(given[0].zero * one + given[1].zero * other)
        return cls(multipliers=(one, other), constant=constant, factor=2.0**-shift, to=to)

    def run(self, inputs: Sequence[Array]) -> Array:
        """Added up in int32."""
        one, other = (item.astype("int32") for item in inputs)
        sums = one * np.int32(self.multipliers[0]) + other * np.int32(self.multipliers[1])
        return self.to.requantised(sums + np.int32(self.constant), np.float32(self.factor))


@dataclass(frozen=True, kw_only=True, eq=False)
class IntegerProduct(IntegerOperator):
    """The product of a tensor and another of its shape, or of one number for each channel."""

    zeros: tuple[int, int]
    factor: float
    to: Target

    def run(self, inputs: Sequence[Array]) -> Array:
        """Multiplied in int32."""
        one, other = (
            item.astype("int32") - np.int32(zero)
            for item, zero in zip(inputs, self.zeros, strict=True)
        )
        return self.to.requantised(one * other, np.float32(self.factor))


@dataclass(frozen=True, kw_only=True, eq=False)
class IntegerTable(IntegerOperator):
    """Any function of single numbers: `table` (int8 [256]) has the result of -128 first."""

    table: Array

    def run(self, inputs: Sequence[Array]) -> Array:
        """Looked up."""
        return np.asarray(self.table[inputs[0].astype("int32") + 128])


@dataclass(frozen=True, kw_only=True, eq=False)
class IntegerMean(IntegerOperator):
    """The mean of each channel of an image of `pixels`: (N, C, H, W) -> (N, C, 1, 1)."""

    pixels: int
    zero: int
    factor: float
    to: Target

    def shape(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The result's, of that of the input."""
        n, c, *size = shapes[0]
        return n, c, *(1 for _ in size)

    def run(self, inputs: Sequence[Array]) -> Array:
        """Added up in int32."""
        data = inputs[0]
        axes = tuple(range(2, data.ndim))
        sums = data.sum(axis=axes, keepdims=True, dtype="int32") - np.int32(self.pixels * self.zero)
        return self.to.requantised(sums, np.float32(self.factor))


@dataclass(frozen=True, kw_only=True, eq=False)
class IntegerPooling(IntegerOperator):
    """The maximum of each window, or with `average` their mean; windows of a mean are inside of the
    image."""

    average: bool
    kernel: tuple[int, int]
    stride: tuple[int, int]
    before: tuple[int, int]
    after: tuple[int, int]
    dilation: tuple[int, int]
    zero: int
    factor: float
    to: Target

    def shape(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The result's, of that of the input."""
        n, c, *size = shapes[0]
        rank = len(size)
        out = _windows(size, self.kernel, self.stride, self.before, self.after, self.dilation)
        return n, c, *out[2 - rank :]

    def run(self, inputs: Sequence[Array]) -> Array:
        """Of windows that reach over the border what is inside."""
        data = _as_image(inputs[0]).astype("int32")
        around = [(0, 0), (0, 0), *zip(self.before, self.after, strict=True)]
        data = np.pad(data, around, constant_values=-128)
        size = data.shape[2:]
        height, width = _windows(size, self.kernel, self.stride, (0, 0), (0, 0), self.dilation)
        parts = [
            data[:, :, i * self.dilation[0] :, j * self.dilation[1] :][
                :,
                :,
                : (height - 1) * self.stride[0] + 1 : self.stride[0],
                : (width - 1) * self.stride[1] + 1 : self.stride[1],
            ]
            for i in range(self.kernel[0])
            for j in range(self.kernel[1])
        ]
        if self.average:
            sums = np.sum(parts, axis=0, dtype="int32") - np.int32(len(parts) * self.zero)
        else:
            sums = np.max(parts, axis=0) - np.int32(self.zero)
        made = self.to.requantised(sums, np.float32(self.factor))
        return made.reshape(self.shape([inputs[0].shape]))


@dataclass(frozen=True, kw_only=True, eq=False)
class IntegerConcatenation(IntegerOperator):
    """The channels of all inputs, one input after the other; for each input its zero point and
    factor."""

    zeros: tuple[int, ...]
    factors: tuple[float, ...]
    to: Target

    def shape(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The result's, of those of the inputs."""
        n, _, *size = shapes[0]
        return n, sum(shape[1] for shape in shapes), *size

    def run(self, inputs: Sequence[Array]) -> Array:
        """Each in the result's steps."""
        return np.concatenate(
            [
                self.to.requantised(item.astype("int32") - np.int32(zero), np.float32(factor))
                for item, zero, factor in zip(inputs, self.zeros, self.factors, strict=True)
            ],
            axis=1,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class IntegerChoice(IntegerOperator):
    """Pixels of an image, or of a sequence, which is one row: in row i and column j of the result
    that of `rows[i]` and `columns[j]` (int32). A resize to the nearest one."""

    rows: Array
    columns: Array
    zero: int
    factor: float
    to: Target

    def shape(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The result's, of that of the input."""
        n, c, *size = shapes[0]
        return n, c, *(len(self.rows), len(self.columns))[2 - len(size) :]

    def run(self, inputs: Sequence[Array]) -> Array:
        """In the result's steps."""
        chosen = _as_image(inputs[0])[:, :, self.rows][:, :, :, self.columns]
        whole = chosen.astype("int32") - np.int32(self.zero)
        made = self.to.requantised(whole, np.float32(self.factor))
        return made.reshape(self.shape([inputs[0].shape]))


@dataclass(frozen=True, kw_only=True, eq=False)
class IntegerInterpolation(IntegerOperator):
    """Between pixels of an image, or of a sequence, which is one row: row i of the result is made
    of the two rows `rows[i]`, with `row_weights[i]` parts of each (int32 [rows, 2]), and columns
    likewise. Both parts make 2 ** BITS. `factor` has the parts of both axes in it."""

    rows: Array
    row_weights: Array
    columns: Array
    column_weights: Array
    zero: int
    factor: float
    to: Target

    # With those of both axes and 8 bits of the image sums stay below 2 ** 30. A weight is at most
    # 2 ** -12 off, so that a pixel is by an eighth of a step.
    BITS: ClassVar[int] = 11

    @classmethod
    def parts_of(cls, weights: Array) -> tuple[Array, Array] | None:
        """Positions and parts of an axis, of what each result (a row) takes of each position; None
        where more than two are taken."""
        if (np.count_nonzero(weights, axis=1) > 2).any():
            return None
        order = np.argsort(-weights, axis=1, kind="stable")[:, :2]
        if order.shape[1] == 1:
            order = np.repeat(order, 2, axis=1)
        less = weights[np.arange(len(weights)), order[:, 1]] * (order[:, 0] != order[:, 1])
        parts = np.rint(less * 2**cls.BITS).astype("int32")
        return order.astype("int32"), np.stack([2**cls.BITS - parts, parts], axis=1)

    def shape(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The result's, of that of the input."""
        n, c, *size = shapes[0]
        return n, c, *(len(self.rows), len(self.columns))[2 - len(size) :]

    def run(self, inputs: Sequence[Array]) -> Array:
        """Added up in int32."""
        data = _as_image(inputs[0]).astype("int32") - np.int32(self.zero)
        sums = np.zeros((*data.shape[:2], len(self.rows), len(self.columns)), "int32")
        for i in (0, 1):
            for j in (0, 1):
                part = data[:, :, self.rows[:, i]][:, :, :, self.columns[:, j]]
                share = self.row_weights[:, i, None] * self.column_weights[None, :, j]
                sums += part * share.astype("int32")
        made = self.to.requantised(sums, np.float32(self.factor))
        return made.reshape(self.shape([inputs[0].shape]))


@dataclass(frozen=True, kw_only=True, eq=False)
class IntegerFlatten(IntegerOperator):
    """An image of one pixel (N, C, 1, 1) as a row (N, C)."""

    def shape(self, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """The result's, of that of the input."""
        return tuple(shapes[0][:2])

    def run(self, inputs: Sequence[Array]) -> Array:
        """The same bytes."""
        return inputs[0].reshape(inputs[0].shape[:2])


# All there are.
KINDS: tuple[type[IntegerOperator], ...] = (
    ToIntegers,
    FromIntegers,
    IntegerConvolution,
    IntegerTransposed,
    IntegerSum,
    IntegerProduct,
    IntegerTable,
    IntegerMean,
    IntegerPooling,
    IntegerConcatenation,
    IntegerChoice,
    IntegerInterpolation,
    IntegerFlatten,
)


def _as_image(data: Array) -> Array:
    """(N, C), or a sequence (N, C, L), as an image (N, C, H, W)."""
    if data.ndim == 2:
        return data[:, :, None, None]
    return data[:, :, None] if data.ndim == 3 else data


def _windows(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    before: Sequence[int],
    after: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, int]:
    """Rows and columns of what a window makes of an image of that size; a sequence has one row."""
    height, width = size if len(size) == 2 else (1, size[0])
    out = [
        (extent + before[i] + after[i] - (kernel[i] - 1) * dilation[i] - 1) // stride[i] + 1
        for i, extent in enumerate((height, width))
    ]
    return out[0], out[1]

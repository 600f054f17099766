"""What a layer is: an operator on images, and the arithmetic on each of its results.

The operators are those for which there are rules, in the terms in which the rules think. Those of
images read and write blocks of channels; those that are `Plain` tensors as the model has them. What
none of them describes is `Foreign`, and is lowered by TVM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from edgepack.kernels.axis import Axis
from edgepack.kernels.integer import IntegerOperator
from edgepack.kernels.places import Places, RowsAt
from edgepack.kernels.tiles.element import FLOAT32, Element
from edgepack.kernels.tiles.expression import Expression
from edgepack.kernels.value import Origin, Value, merge

# An attention of fewer queries is over before the keys are packed: its keys lie row by row.
FEWEST_QUERIES = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Quantized:
    """Integers (int8 or uint8) that stand for the numbers `scale * (values - zero_point)`.

    `scale` (float32) and `zero_point` have as many dimensions as `values`, whose extents are 1 or
    those of `values`.
    """

    values: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray

    def numbers(self) -> np.ndarray:
        """The numbers as float32, equal in each bit to TVM's `relax.dequantize`."""
        steps = self.values.astype("int32") - self.zero_point.astype("int32")
        return np.asarray(steps.astype("float32") * self.scale)

    def transposed(self, axes: Sequence[int]) -> Quantized:
        """The same with its axes in another order."""
        return Quantized(
            values=self.values.transpose(axes),
            scale=self.scale.transpose(axes),
            zero_point=self.zero_point.transpose(axes),
        )

    def as_image(self) -> Quantized:
        """A matrix as an image of one pixel: two more axes of extent 1."""
        return Quantized(
            values=self.values[:, :, None, None],
            scale=self.scale[:, :, None, None],
            zero_point=self.zero_point[:, :, None, None],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockQuantized:
    """A matrix of the numbers `scale * (values - zero_point)`, where every `block` elements along
    `axis` have a scale (float32) and a zero point of their own.

    `values` are int8 or uint8, of which the lower `bits` (4 or 8) are used. `zero_point` has their
    type; None: 0. The last block along `axis` may be shorter.
    """

    values: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray | None
    block: int
    axis: int
    bits: int

    def numbers(self) -> np.ndarray:
        """The numbers as float32, each rounded once."""
        steps = self.values.astype("int32")
        if self.zero_point is not None:
            steps -= self._spread(self.zero_point).astype("int32")
        return np.asarray(steps.astype("float32") * self._spread(self.scale))

    def transposed(self, axes: Sequence[int]) -> BlockQuantized:
        """The same with its axes in another order."""
        zero_point = self.zero_point
        return BlockQuantized(
            values=self.values.transpose(axes),
            scale=self.scale.transpose(axes),
            zero_point=None if zero_point is None else zero_point.transpose(axes),
            block=self.block,
            axis=list(axes).index(self.axis),
            bits=self.bits,
        )

    def _spread(self, per_block: np.ndarray) -> np.ndarray:
        """A value per element for one per block."""
        wide = np.repeat(per_block, self.block, self.axis)
        return wide[: self.values.shape[0], : self.values.shape[1]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Convolution:
    """A 2-D convolution in float32. A matrix product with a constant is a 1x1 convolution.

    `weight` is [out channels, in channels / groups, rows, columns], `bias` [out channels]. Pairs
    are (vertical, horizontal); `before` is the padding at top and left. If it is `gated`, the layer
    has a second input (N, C, 1, 1), by which the image is multiplied first: the gate of a
    squeeze-and-excite block. `quantized` is there if `weight` is made of integers, in its shape.
    """

    weight: np.ndarray
    bias: np.ndarray | None
    stride: tuple[int, int]
    before: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    gated: bool = False
    quantized: Quantized | None = None

    @property
    def kernel(self) -> tuple[int, int]:
        """Rows and columns of the window."""
        return self.weight.shape[2], self.weight.shape[3]


class TransposedConvolution(Convolution):
    """The transpose of the convolution with this stride, padding and window; not dilated.

    `weight` has the order of a convolution's, [out channels, in channels / groups, rows, columns],
    not that of ONNX's ConvTranspose.
    """


@dataclass(frozen=True, kw_only=True)
class Pooling:
    """The maximum or average over a window; `kind` is "max" or "average".

    `before` is the padding at top and left, `after` at bottom and right. With `count_padding` an
    average at the border divides by the number of positions in the window that lie in the image or
    its padding, else by those in the image.
    """

    kind: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    before: tuple[int, int]
    after: tuple[int, int]
    dilation: tuple[int, int]
    count_padding: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Streamed:
    """`reader` of what the layer `first` makes, and nobody else reads: a depthwise convolution or a
    pooling of what a convolution makes, or a 1x1 convolution of what element-wise arithmetic does.
    The layer reads what `first` does."""

    first: Layer
    reader: Convolution | Pooling


@dataclass(frozen=True, kw_only=True)
class GlobalPooling:
    """Of all pixels of each channel the "average", "max" or "min": (N, C, H, W) -> (N, C, 1, 1)."""

    kind: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Resampling:
    """A resized or padded image: each pixel is a weighted sum of pixels of the input.

    The sums are separable, `columns` along a row and `rows` down a column. `kind` is the
    interpolation of a resize ("nearest", "linear" or "cubic") or the border of a padding
    ("constant", "reflect" or "replicate"). Pixels that an axis takes from outside of the input have
    the value `outside`. `repeats`: each is one of the input again, twice or four times in a row.
    """

    kind: str
    rows: Axis
    columns: Axis
    outside: float
    repeats: bool = False


@dataclass(frozen=True, kw_only=True)
class Pointwise:
    """No operator: the layer is element-wise arithmetic on its input, its `expression`."""


@dataclass(frozen=True, kw_only=True)
class Concatenation:
    """The channels of all inputs, one input after the other."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Neighbouring images of a batch side by side, as channels: image n of the result is `taps`
    images of the input, from number `stride * n - before` on; zeros for those that there are not.
    `before` is negative where the first ones are not read.
    """

    taps: int
    stride: int
    before: int


@dataclass(frozen=True, kw_only=True)
class Unstack:
    """The channels of each image as images of their own: (N, k * C, H, W) -> (N * k, C, H, W)."""


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Consecutive channels of the input, from channel `first` on, as many as the output has."""

    first: int


@dataclass(frozen=True, kw_only=True)
class Crop:
    """The pixels from `first` (row, column) on, as many as the output has. No rule takes it: it is
    fused into the convolution before it, or left to TVM."""

    first: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The input, with other elements; none is read from a model."""


class Plain:
    """An operator on tensors that lie as the model has them. In the arithmetic on its results a
    constant is one value per column: along the last axis."""


@dataclass(frozen=True, kw_only=True)
class Foreign(Plain):
    """An operator that no rule knows; TVM lowers it. `names` are those that Relax has for it: none
    if it is no call of one of Relax's operators."""

    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Quantize(Foreign):
    """An image as integers of `dtype`: the nearest to value / `scale`, plus `zero_point`, clamped.

    No rule takes it yet, nor `Dequantize`.
    """

    scale: float
    zero_point: int
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Dequantize(Foreign):
    """An image of `scale` * (integer - `zero_point`), of integers of `dtype`."""

    scale: float
    zero_point: int
    dtype: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Norm(Plain):
    """Rows of `size` elements over the root of their mean square plus `epsilon`, times `scale`
    [size]; with a `shift` [size], which is added, less their mean before."""

    rows: int
    size: int
    epsilon: float
    scale: np.ndarray
    shift: np.ndarray | None


@dataclass(frozen=True, kw_only=True)
class Softmax(Plain):
    """Powers of e over their sum, of `size` elements in each of `rows`, or their logarithms."""

    rows: int
    size: int
    logarithm: bool


@dataclass(frozen=True, kw_only=True)
class Extremum(Plain):
    """Where the largest or the smallest element along the middle axis of a tensor
    [outer, size, inner] is: indices [outer, inner] int64. Of equal ones it is the first; with
    `reverse` the last, which is counted from the end."""

    outer: int
    size: int
    inner: int
    dtype: str
    largest: bool
    reverse: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class RowProduct(Plain):
    """Products of matrices [rows, depth] and [depth, columns], as many as the larger batch: one of
    a batch of 1 serves all of them. The second input is the right one, unless `weight`
    [depth, columns] is. `transposed`: the right ones are [columns, depth]. `bias` is one value per
    column. Rows of the left one, of which there is one then, lie `left_at`, if not one after the
    other. `integers` are there if `weight` is made of them, in its shape.
    """

    left_batch: int
    right_batch: int
    rows: int
    depth: int
    columns: int
    transposed: bool = False
    weight: np.ndarray | None = field(default=None, repr=False)
    integers: BlockQuantized | None = field(default=None, repr=False)
    bias: np.ndarray | None = field(default=None, repr=False)
    left_at: RowsAt | None = None

    @property
    def batch(self) -> int:
        """The number of products."""
        return max(self.left_batch, self.right_batch)


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorPart:
    """A tensor [heads.., rows, columns] in the memory of an input, by its number, or of a
    constant."""

    source: int | np.ndarray
    places: Places


@dataclass(frozen=True, kw_only=True, eq=False)
class Attention(Plain):
    """softmax(`scale` * queries keys^T + masks) values.

    Queries are [heads.., queries, depth], keys [heads.., keys, depth], values
    [heads.., keys, columns], masks [heads.., queries, keys] and the result, of which `result` says
    where it lies, [heads.., queries, columns]. Elements along the last axis lie side by side; those
    of masks may be one and the same, and those of keys may lie apart if those along the axis before
    do not.

    `sizes` are the numbers of elements of the inputs. With `in_queries` each row of the result
    takes the place of its query in the input that has those.
    """

    queries: TensorPart
    keys: TensorPart
    values: TensorPart
    masks: tuple[TensorPart, ...]
    scale: float
    result: Places
    sizes: tuple[int, ...]
    in_queries: bool = False

    def rows_in_queries(self) -> RowsAt | None:
        """Where the rows of the result lie if each is put where the query is that it is of; None
        where they would not lie in equal steps, or have gaps.

        A row has the results of all heads. Then a block of queries is not read any more when its
        results are written, and no other block has elements there.
        """
        queries, result = self.queries.places, self.result
        *_, rows, columns = result.shape
        if rows < FEWEST_QUERIES or queries.shape != result.shape:
            return None
        # The heads of an image side by side; images lie behind each other.
        width, step = result.strides[-2], queries.strides[-2]
        whole = width % columns == 0 and prod(result.shape[:-2]) * columns % width == 0
        if not whole or queries.offset + width > step:
            return None
        for size, of_query, of_result in zip(
            result.shape, queries.strides, result.strides, strict=True
        ):
            apart = of_result if of_result < width else of_result // width * step
            if size > 1 and of_query != apart:
                return None
        return RowsAt(first=queries.offset, step=step)


@dataclass(frozen=True, kw_only=True)
class DynamicRange(Plain):
    """(scale, zero point) as float32 of what spreads `size` elements, and 0, over 0 to 255."""

    size: int


@dataclass(frozen=True, kw_only=True)
class DynamicIntegers(Plain):
    """`size` elements as uint8, by the scale and the zero point in the second input."""

    size: int


@dataclass(frozen=True, kw_only=True, eq=False)
class DynamicSums(Plain):
    """Sums of the products of integers and constant weights, as int32, or as float32 if they are
    `converted`, before any arithmetic on them.

    `given` is the shape of the data, of `dtype` int8 or uint8: (N, C, H, W), or (rows, depth) if it
    is `in_rows`, whose window is one point. `made` is that of the result: (N, C, H, W) or
    (rows, columns). The data's zero point, which lies around images as well, is `zero`; None: the
    second input, of one element. `weight` is int8 [out channels, in channels / groups, rows,
    columns]; its zero point is 0, or `weight_zero` (int32 [out channels]). Pairs are (vertical,
    horizontal).

    Operands are one number, one for each column, or in rows of the result's shape.
    """

    given: tuple[int, ...]
    made: tuple[int, ...]
    dtype: str
    zero: int | None
    weight: np.ndarray
    in_rows: bool
    stride: tuple[int, int] = (1, 1)
    before: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    weight_zero: np.ndarray | None = None
    converted: bool = False


@dataclass(frozen=True, kw_only=True)
class View:
    """The input's data unchanged in another shape of equal channels: (1, C, 1, 1) and (1, C)."""


Operator = (
    Convolution
    | Streamed
    | Pooling
    | GlobalPooling
    | Resampling
    | Pointwise
    | Concatenation
    | Slice
    | Stack
    | Unstack
    | Crop
    | Conversion
    | Plain
    | View
    | IntegerOperator
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """An operator and its epilogue, the arithmetic on each result before it is stored.

    `inputs` are what the operator reads. `expression` is the epilogue; it refers to `operands`,
    tensors, and to `constants`, arrays of one value per channel. `mean` is a second result, the
    mean over all pixels of each channel of `output`. Its images are kept as `element` (those it
    `reads` may have another one), and its weights stored as `weights`. `computes` are the values
    that it was read from: those of which it spares the tensors, and its results, in the order of
    the model. What is decided of how it is made is no part of it; see `limits`.
    """

    operator: Operator
    inputs: tuple[Value, ...]
    output: Value
    expression: Expression = ()
    operands: tuple[Value, ...] = ()
    constants: tuple[np.ndarray, ...] = field(default=(), repr=False)
    mean: Value | None = None
    element: Element = FLOAT32
    reads: Element | None = None
    weights: Element = FLOAT32
    computes: tuple[Value, ...] = field(default=(), repr=False)

    @property
    def source(self) -> Element:
        """The elements of what it reads."""
        return self.reads or self.element

    @property
    def is_reshape(self) -> bool:
        """Whether it is one, of a plain tensor, and nothing else."""
        return isinstance(self.operator, Foreign) and self.operator.names == ("reshape",)

    @property
    def origin(self) -> Origin | None:
        """The ONNX nodes that it was read from, as one."""
        return merge(value.origin for value in self.computes)

    @property
    def nodes(self) -> list[str]:
        """The names of these nodes, in order; some may be there twice."""
        origins = [value.origin for value in self.computes if value.origin is not None]
        return [name for origin in origins for name in (origin.name, *origin.others)]

    @property
    def results(self) -> tuple[Value, ...]:
        """The tensors that it computes."""
        return (self.output,) if self.mean is None else (self.output, self.mean)


def count_uses(layers: Iterable[Layer], outputs: Iterable[Value]) -> Counter[Value]:
    """How often each value is read: by layers, and as one of a function's `outputs`."""
    uses = Counter(value for layer in layers for value in (*layer.inputs, *layer.operands))
    uses.update(outputs)
    return uses

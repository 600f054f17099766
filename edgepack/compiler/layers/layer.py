"""What a layer is: an operator on images, and the arithmetic on each of its results.

The operators are those for which there are rules, in the terms in which the rules think. What none
of them describes is `Foreign`, and is lowered by TVM.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import tvm
from tvm import relax

from edgepack.compiler.integer import IntegerOperator
from edgepack.compiler.layers.axis import Axis
from edgepack.compiler.layers.quantized import Quantized
from edgepack.compiler.origin import origin_of
from edgepack.compiler.tiles.element import FLOAT32, Element
from edgepack.compiler.tiles.expression import Expression

# A tensor between layers: the Relax variable that holds it. Variables compare by identity.
Value: TypeAlias = relax.Var


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
    the value `outside`.
    """

    kind: str
    rows: Axis
    columns: Axis
    outside: float


@dataclass(frozen=True, kw_only=True)
class Pointwise:
    """No operator: the layer is element-wise arithmetic on its input, its `expression`."""


@dataclass(frozen=True, kw_only=True)
class Concatenation:
    """The channels of all inputs, one input after the other."""


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
    """The input, with other elements; none is read from Relax."""


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """An operator that no rule knows; TVM lowers it."""


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
    | Crop
    | Conversion
    | Foreign
    | View
    | IntegerOperator
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """An operator and its epilogue, the arithmetic on each result before it is stored.

    `inputs` are what the operator reads. `expression` is the epilogue; it refers to `operands`,
    tensors, and to `constants`, arrays of one value per channel. `mean` is a second result, the
    mean over all pixels of each channel of `output`. Its images are kept as `element` (those it
    `reads` may have another one), and its weights stored as `weights`; `exact` says why not as
    halves, if that was wanted. Winograd's algorithm makes at most `most_results` results of a tile
    in each direction, for more would cost too much accuracy, or for the reason that it is `limited`
    for; 0 is none, None says nothing.
    Where a kernel has scratch memory as a matter of choice it takes at most `room` bytes; None says
    nothing.
    `bindings` are the Relax bindings that the layer was read from, which stay in the function if no
    rule takes it.
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
    exact: str = ""
    most_results: int | None = None
    limited: str = ""
    room: int | None = None
    bindings: tuple[tuple[relax.Var, relax.Expr], ...] = field(default=(), repr=False)

    @property
    def source(self) -> Element:
        """The elements of what it reads."""
        return self.reads or self.element

    @property
    def is_reshape(self) -> bool:
        """Whether it is one, of a plain tensor, and nothing else."""
        values = [value for _, value in self.bindings]
        is_one = len(values) == 1 and isinstance(self.operator, Foreign)
        return is_one and getattr(values[0], "op", None) == tvm.ir.Op.get("relax.reshape")

    @property
    def names(self) -> set[str]:
        """The ONNX nodes that it was read from."""
        origins = (origin_of(value) for _, value in self.bindings)
        return {origin.name for origin in origins if origin is not None}

    @property
    def results(self) -> tuple[Value, ...]:
        """The tensors that it computes."""
        return (self.output,) if self.mean is None else (self.output, self.mean)

"""What became of each layer, for people to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from edgepack.model import TensorInfo

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """How a kernel's result lies in memory: images in blocks of `block` channels, `top` rows and
    `left` columns into a halo of zeros, behind `front` images of zeros; with a block of 0 as NCHW.
    """

    batch: int
    channels: int
    height: int
    width: int
    block: int = 0
    top: int = 0
    left: int = 0
    front: int = 0

    def plain(self, stored: Array, shape: Sequence[int]) -> Array:
        """The tensor as the model has it, in `shape`, of what lies in memory.

        Two dimensions are rows of channels, more are NCHW or NCL. Raises ValueError if `stored`
        cannot be it.
        """
        values = stored
        if self.block:
            blocks = -(-self.channels // self.block)
            first = self.front * blocks
            values = stored.reshape(-1, *stored.shape[-3:])[first : first + self.batch * blocks]
            values = values.reshape(self.batch, blocks, *stored.shape[-3:])
            bottom, right = self.top + self.height, self.left + self.width
            values = values[:, :, self.top : bottom, self.left : right]
            values = values.transpose(0, 1, 4, 2, 3)
            values = values.reshape(self.batch, -1, self.height, self.width)[:, : self.channels]
        if len(shape) == 2:
            values = values.transpose(0, 2, 3, 1)
        return values.reshape(shape)


@dataclass(frozen=True, kw_only=True)
class Joint:
    """The shape in memory of a tensor that several calls make, of whose bytes those of the last
    call begin at `start`."""

    shape: tuple[int, ...]
    start: int


@dataclass(frozen=True, kw_only=True)
class LayerReport:
    """One kernel call of the plan.

    `layer` is the name of the ONNX node it computes, of a fused layer the first one, and
    `operator` what it does in ONNX's words ("Conv+Add+Relu"); changes of layout have no node.
    `rule` is the rule that made the kernel: one of `rules.table.RULES`,
    "layout" for a change of layout, "generic" for what TVM lowered. `shape` is the result's as the
    model has it, `dtype` the type of its elements in memory, and `exact` says why that is float32
    where half precision was wanted. `most_results` are those of a tile, in one direction, that
    Winograd's algorithm may make (0: none; None: no such limit), and `limited` says why; "": more
    would lose too much in half precision. `tile` is the register tile as pixels x vectors. `macs`
    are multiply-adds, `cycles` the cost model's estimate for one core (0: none was made), `nbytes`
    what is read and written, each tensor once.

    `result` tells where its result is found: among the call's arguments, and `stored` how (None:
    as the model has it). Of a layer made in parts the last call has a `joint`, which is the result.
    `value` is the ONNX tensor that the result is; "" if it is none, or if that is not known.
    `signature` tells the layer's kernel from those of others (`kernels.signature`); "" where there
    is only one way to make it.
    """

    kernel: str
    layer: str
    operator: str
    rule: str
    shape: tuple[int, ...]
    dtype: str
    exact: str
    tile: str
    macs: int
    cycles: float
    nbytes: int
    value: str = ""
    result: int = -1
    stored: Stored | None = None
    joint: Joint | None = None
    signature: str = ""
    most_results: int | None = None
    limited: str = ""


@dataclass(frozen=True, kw_only=True)
class BlockReport:
    """A loop or a branch's way in the plan: the ONNX node's name and operator, how many kernels are
    called in a turn, and how many turns there may be (1: a branch)."""

    node: str
    operator: str
    kernels: int
    most_turns: int


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a plan will take on a board.

    `ms` is the cost model's time of one inference on the fastest core at its full clock, of
    `mhz`; None where no clock is known. It leaves out `uncosted` of the `kernels`, which no cost
    model covers, and counts one turn of each loop of the `blocks`. `arena_bytes` and
    `params_bytes` are exact, `bundle_bytes` is not. `outputs` have the shapes that the compiler
    found.
    """

    board: str
    outputs: tuple[TensorInfo, ...]
    arena_bytes: int
    params_bytes: int
    bundle_bytes: int
    kernels: int
    uncosted: int
    blocks: tuple[BlockReport, ...]
    mhz: int
    ms: float | None

"""What became of each layer, for people to read."""

from __future__ import annotations

from dataclasses import dataclass

from edgepack.model import TensorInfo


@dataclass(frozen=True, kw_only=True)
class LayerReport:
    """One kernel call of the plan.

    `layer` is the name of the ONNX node it computes, of a fused layer the first one, and
    `operator` what it does in ONNX's words ("Conv+Add+Relu"); changes of layout have no node.
    `rule` is the rule that made the kernel: one of `rules.table.RULES` or `PLAIN`, "layout"
    for a change of layout, "generic" for what TVM lowered. `shape` is the result's as the model has
    it, `tile` the register tile as pixels x vectors. `macs` are multiply-adds, `cycles` the
    cost model's estimate for one core (0: none was made), `nbytes` what is read and written,
    each tensor once.
    """

    kernel: str
    layer: str
    operator: str
    rule: str
    shape: tuple[int, ...]
    tile: str
    macs: int
    cycles: float
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a plan will take on a board.

    `ms` is the cost model's time of one inference on the fastest core at its full clock, of
    `mhz`; None where no clock is known. It leaves out `uncosted` of the `kernels`, which no cost
    model covers. `arena_bytes` and `params_bytes` are exact, `bundle_bytes` is not. `outputs` have
    the shapes that the compiler found.
    """

    board: str
    outputs: tuple[TensorInfo, ...]
    arena_bytes: int
    params_bytes: int
    bundle_bytes: int
    kernels: int
    uncosted: int
    mhz: int
    ms: float | None

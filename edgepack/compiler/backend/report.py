"""What became of each layer, for people to read."""

from __future__ import annotations

from dataclasses import dataclass


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

"""All rules, in the order they are tried."""

from __future__ import annotations

from edgepack.kernels.rules import (
    attentions,
    concatenation,
    conversion,
    convolution,
    depthwise,
    dilated,
    dynamic_quantisation,
    extremum,
    few_rows,
    gated,
    integer_convolution,
    integer_operators,
    integer_transposed,
    matrices,
    norm,
    pointwise,
    pooling,
    preactivated,
    resize,
    softmax,
    spread,
    stack,
    streamed,
    transposed,
    winograd,
)
from edgepack.kernels.rules.layout_transform import pack, unpack
from edgepack.kernels.rules.rule import Rule

__all__ = ["CONVERSION", "RULES", "pack", "unpack"]

# The first that takes a layer makes its kernel. What `compile_model` is given instead may leave
# some out, or have others: `(winograd.rule([4], always=True), *RULES)` forces tiles of 4x4.
RULES: tuple[Rule, ...] = (
    integer_convolution.RULE,
    integer_transposed.RULE,
    *integer_operators.RULES,
    spread.RULE,
    transposed.RULE,
    streamed.RULE,
    preactivated.RULE,
    depthwise.RULE,
    # Sums in a stack of them take the place of what is added, which tiles have no way to.
    dilated.RULE,
    winograd.RULE,
    gated.RULE,
    convolution.RULE,
    pooling.WINDOW,
    pooling.MEAN,
    pooling.GLOBAL,
    resize.RESIZE,
    resize.PAD,
    pointwise.POINTWISE,
    concatenation.CONCAT,
    concatenation.SLICE,
    stack.RULE,
    stack.UNSTACK,
    # Those of tensors as the model has them.
    attentions.RULE,
    few_rows.RULE,
    matrices.RULE,
    *dynamic_quantisation.RULES,
    norm.RULE,
    softmax.RULE,
    extremum.RULE,
    resize.PLAIN_RESIZE,
)

# What is put between layers of different elements.
CONVERSION = conversion.RULE

"""Quotients by constants as products: a division takes a CPU five times as long, or has to be made
of several instructions (ARMv7).

Where the constant is a power of two, nothing else changes. Elsewhere the product may be off by the
last bit; then it is taken only if nothing that makes steps sees it: `Floor` of x / 3 must be 1
for x = 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax

from edgepack.compiler.layers.tensors import constant_of, variables

# What rounds its own result anyway, and has no steps: the last bit of an operand does not matter.
_SMOOTH = {
    "erf",
    "exp",
    "log",
    "matmul",
    "nn.conv1d",
    "nn.conv2d",
    "nn.conv2d_transpose",
    "nn.gelu",
    "nn.gelu_tanh",
    "nn.layer_norm",
    "nn.log_softmax",
    "nn.silu",
    "nn.softmax",
    "sigmoid",
    "sqrt",
    "tanh",
}
# What hands on the last bit.
_HANDS_ON = {
    "add",
    "broadcast_to",
    "clip",
    "concat",
    "divide",
    "expand_dims",
    "maximum",
    "mean",
    "minimum",
    "multiply",
    "negative",
    "nn.relu",
    "permute_dims",
    "reshape",
    "split",
    "squeeze",
    "strided_slice",
    "subtract",
    "sum",
}


def as_products(module: tvm.IRModule) -> tvm.IRModule:
    """The module with `main`'s quotients by constants as products, where that is no worse."""
    main = module["main"]
    bindings = [(b.var, b.value) for block in main.body.blocks for b in block.bindings]
    free = _without_steps(bindings, main.body.body)
    products = {
        var: made
        for var, value in bindings
        if (made := _product(value, exact=var not in free)) is not None
    }
    if not products:
        return module
    builder = relax.BlockBuilder()
    blocks = [
        type(block)(
            [
                relax.VarBinding(b.var, builder.normalize(products[b.var]))
                if b.var in products
                else b
                for b in block.bindings
            ]
        )
        for block in main.body.blocks
    ]
    body = relax.SeqExpr(blocks, main.body.body)
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return tvm.IRModule({**module.functions, module.get_global_var("main"): function})


def _without_steps(
    bindings: Sequence[tuple[relax.Var, relax.Expr]], results: relax.Expr
) -> set[relax.Var]:
    """Values whose last bit decides about no more than other last bits."""
    seen = set(variables(results))  # by what makes steps, or may
    for var, value in reversed(bindings):
        name = _name(value)
        hands_on = name in _HANDS_ON or isinstance(value, relax.TupleGetItem)
        if name in _SMOOTH or (hands_on and var not in seen):
            continue
        seen.update(variables(value))
    return {var for var, _ in bindings} - seen


def _product(value: relax.Expr, *, exact: bool) -> relax.Call | None:
    """What a quotient is as a product; only if that is the very same, with `exact`."""
    if _name(value) != "divide" or constant_of(value.args[1]) is None:
        return None
    divisor = np.asarray(constant_of(value.args[1]))
    if divisor.dtype.kind != "f":
        return None
    with np.errstate(all="ignore"):
        factor = (1.0 / divisor.astype(np.float64)).astype(divisor.dtype)
    normal = np.abs(factor) >= np.finfo(divisor.dtype).tiny
    powers = np.abs(np.frexp(divisor.astype(np.float64))[0]) == 0.5
    if not (np.isfinite(factor) & normal & (powers | (not exact))).all():
        return None
    arguments = [value.args[0], relax.const(factor, str(divisor.dtype))]
    return relax.Call(tvm.ir.Op.get("relax.multiply"), arguments, None, [], value.span)


def _name(value: relax.Expr) -> str:
    is_operator = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op)
    return value.op.name.removeprefix("relax.") if is_operator else ""

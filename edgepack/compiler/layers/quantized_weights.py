"""Weights that a model has as integers stay integers until its layers are read.

In a model with QuantizeLinear and DequantizeLinear around its operators (QDQ), FoldConstant would
turn integer weights into float32, and no rule could see what they were. `keep_integers` hides them
from it, in calls that it knows nothing of; `read_layers` takes them out again.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import tvm
from tvm import relax

from edgepack.compiler.layers.tensors import constant_of, shape_of, variables
from edgepack.frontend.private import private_call, read_private
from edgepack.kernels.layer import BlockQuantized, Quantized

_INTEGERS = ("int8", "uint8")
# Operators whose second argument is a weight.
_WEIGHTED = ("relax.nn.conv2d", "relax.matmul")


def quantized_constant(expr: relax.Expr) -> Quantized | None:
    """What a `relax.dequantize` of an integer constant to float32 stands for, else None."""
    if not _is(expr, "relax.dequantize"):
        return None
    values, scale, zero_point = map(constant_of, expr.args)
    if values is None or scale is None or zero_point is None or str(expr.ty.dtype) != "float32":
        return None
    if str(values.dtype) not in _INTEGERS or str(scale.dtype) != "float32":
        return None
    axis, rank = int(expr.attrs.axis), values.ndim

    def spread(parameter: np.ndarray) -> np.ndarray | None:
        if parameter.size == 1:
            return parameter.reshape((1,) * rank)
        shape = [1] * rank
        shape[axis] = values.shape[axis]
        return parameter.reshape(shape) if parameter.shape == (values.shape[axis],) else None

    spread_scale, spread_zero = spread(scale), spread(zero_point)
    if spread_scale is None or spread_zero is None:
        return None
    return Quantized(values=values, scale=spread_scale, zero_point=spread_zero)


def keep_integers(module: tvm.IRModule, *, keep: bool = True) -> tvm.IRModule:
    """The module with integer weights of convolutions and matrix products hidden from FoldConstant.

    Those that anything else reads too are left to it, as numbers; without `keep` all are.
    """
    main = module["main"]
    bindings = [(b.var, b.value) for block in main.body.blocks for b in block.bindings]
    found: dict[relax.Var, Quantized | BlockQuantized] = {
        var: it
        for var, value in bindings
        if (it := quantized_constant(value) or hidden_integers(value)) is not None
    }
    blocks = {var for var, it in found.items() if isinstance(it, BlockQuantized)}
    reads = Counter(var for _, value in bindings for var in variables(value))
    reads.update(variables(main.body.body))
    hideable = Counter[relax.Var]()
    for var, value in bindings:
        if _is(value, "relax.permute_dims") and value.args[0] in found:
            # The transposed weight of a Gemm.
            axes = value.attrs.axes or range(len(shape_of(var)))[::-1]
            found[var] = found[value.args[0]].transposed([int(axis) for axis in axes])
        elif any(_is(value, name) for name in _WEIGHTED) and value.args[1] in found:
            hideable[value.args[1]] += 1
    hidden = {var for var in found if hideable[var] and hideable[var] == reads[var]}
    if not keep:
        hidden = set()
    if not hidden and not blocks:
        return module
    changed = []
    for var, value in bindings:
        if var in hidden:
            new = _hidden(found[var])
        else:
            new = _shown(found[var]) if var in blocks else value
        changed.append(relax.VarBinding(var, new))
    body = relax.SeqExpr([relax.DataflowBlock(changed)], main.body.body)
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return tvm.IRModule({**module.functions, module.get_global_var("main"): function})


def hidden_integers(expr: relax.Expr) -> Quantized | BlockQuantized | None:
    """What `keep_integers` or the importer has put in the place of a weight, None for any other
    expression."""
    whole, blocks = read_private(expr, Quantized), read_private(expr, BlockQuantized)
    if whole is not None:
        return whole[0]
    return None if blocks is None else blocks[0]


def _shown(weight: Quantized | BlockQuantized) -> relax.Call:
    """Its numbers, which FoldConstant finds to be constant."""
    one = relax.const(1.0, "float32")
    return relax.BlockBuilder().normalize(relax.op.multiply(relax.const(weight.numbers()), one))


def _hidden(weight: Quantized | BlockQuantized) -> relax.Call:
    return private_call(weight, [], relax.TensorType(list(weight.values.shape), "float32"))


def _is(expr: relax.Expr, name: str) -> bool:
    call = isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op)
    return call and expr.op.name == name

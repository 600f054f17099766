"""Relax operators -> kernels, called in a straight line.

What the kernel library has a rule for goes there; TVM lowers and fuses the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import tvm
from tvm import relax

from edgepack.base import apart
from edgepack.compiler import place
from edgepack.compiler.layers.moved import with_activations_first
from edgepack.compiler.layers.plain import with_variables
from edgepack.compiler.layers.quantized_weights import keep_integers
from edgepack.compiler.layers.quotients import as_products
from edgepack.compiler.place.legalize import LEGALIZATIONS
from edgepack.compiler.settings import DEFAULTS, CompileSettings
from edgepack.frontend.errors import DATA_SHAPE_HINT, ImportModelError
from edgepack.frontend.origin import origin_of
from edgepack.kernels.value import Origin
from edgepack.model import LoadedModel
from edgepack.model.errors import DynamicShapeError

log = logging.getLogger(__name__)


def lower(
    module: tvm.IRModule,
    target: tvm.target.Target,
    model: LoadedModel,
    settings: CompileSettings = DEFAULTS,
) -> tuple[tvm.IRModule, place.Rewritten]:
    """Turn every operator into a kernel.

    In the resulting module `main` is a dataflow block of three things only: `call_dps_packed`
    of a kernel of the library (those come with the second result), `call_tir` of a PrimFunc of
    the module, where operators that can share their loops are fused, and `reshape`, which moves
    no data. `settings` are those of `place.rewrite`. Raises
    `ImportModelError` for a form of an operator that TVM converts but has no code for (a maximum of
    booleans, an integer power), and `DynamicShapeError` where a shape inside depends on the data.
    """
    fast = place.rewrite(fold(module, target, model), target, settings)
    return lower_rest(fast.module, target, model), fast


def lower_rest(module: tvm.IRModule, target: tvm.target.Target, model: LoadedModel) -> tvm.IRModule:
    """The module with Relax operators as PrimFuncs, those that can share their loops as one.

    Raises what `lower` raises.
    """
    transform = relax.transform
    passes = [
        transform.LegalizeOps(LEGALIZATIONS),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        # Before anything is fused: a reshape is no work, but in a kernel it hides which of its
        # elements lie side by side.
        transform.RewriteDataflowReshape(),
        transform.FuseOps(),
        transform.FuseTIR(),
        transform.DeadCodeElimination(),
    ]
    return _apply(passes, module, target, model)


def fold(
    module: tvm.IRModule, target: tvm.target.Target, model: LoadedModel, *, integers: bool = True
) -> tvm.IRModule:
    """The module as layers are read from it, with all that is constant computed; weights that are
    made of `integers` are left as such, if nobody else reads them.

    Raises what `lower` raises.
    """
    kept = keep_integers(module, keep=integers)
    folded = _apply([relax.transform.FoldConstant()], kept, target, model)
    folded = with_activations_first(with_variables(as_products(folded)))
    _check_shapes(folded["main"], model)
    return folded


def _apply(
    passes: list[tvm.transform.Pass],
    module: tvm.IRModule,
    target: tvm.target.Target,
    model: LoadedModel,
) -> tvm.IRModule:
    with target:
        for step in passes:
            apart.at(f"lowering it (pass {step.info.name})")
            try:
                module = _needed(step, module)(module)
            except Exception as error:  # TVM's errors share no base
                if apart.is_no_memory(str(error)):
                    raise MemoryError from error
                log.debug("%s: %s", model.path, error, exc_info=True)
                origin = _culprit(module)
                if origin is None:
                    raise
                raise ImportModelError(
                    f"{model.path}: {origin.operator} '{origin.name}' cannot be compiled for these "
                    "types and shapes",
                    hint="check that the operator may have them; else export the model with others",
                ) from error
    return module


def _needed(step: tvm.transform.Pass, module: tvm.IRModule) -> tvm.transform.Pass:
    """A pass, or what is left of it for this module.

    FoldConstant legalizes every call to see whether it can be computed (0.9 s for DenseNet-121),
    and leaves out what nobody uses.
    """
    if step.info.name != "FoldConstant" or _has_constants(module["main"]):
        return step
    return relax.transform.DeadCodeElimination()


def _has_constants(main: relax.Function) -> bool:
    """Whether any result that is used is known: of constants only, or of nothing at all."""

    def is_known(expr: relax.Expr) -> bool:
        if isinstance(expr, relax.Tuple):
            return all(map(is_known, expr.fields))
        if isinstance(expr, relax.TupleGetItem):
            return is_known(expr.tuple_value)
        if isinstance(expr, relax.Call):
            return expr.op != _SHAPE_OF and all(map(is_known, expr.args))
        return not isinstance(expr, relax.Var)

    used = relax.analysis.remove_all_unused(main)
    return any(is_known(binding.value) for block in used.body.blocks for binding in block.bindings)


_SHAPE_OF = tvm.ir.Op.get("relax.shape_of")


def _culprit(module: tvm.IRModule) -> Origin | None:
    """The ONNX node that TVM has no code for: of the first call that cannot be lowered alone."""
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            call = binding.value
            lowered = isinstance(call, relax.Call) and isinstance(call.op, tvm.ir.Op)
            legalize = call.op.get_attr("FLegalize") if lowered else None
            try:
                if legalize is not None:
                    legalize(relax.BlockBuilder(), call)
            except Exception:
                return origin_of(call)
    return None


def _check_shapes(main: relax.Function, model: LoadedModel) -> None:
    bindings = [binding for block in main.body.blocks for binding in block.bindings]

    def result_at(index: int) -> str:
        origin = _origin_at(bindings, index)
        return f"the result of {origin.operator} '{origin.name}'" if origin else _INSIDE

    for index, binding in enumerate(bindings):
        is_call = isinstance(binding.value, relax.Call)
        _check_shape(binding.var.ty, model, partial(result_at, index), may_be_empty=not is_call)
    _check_shape(main.ret_ty, model, lambda: _INSIDE, may_be_empty=True)


_INSIDE = "a tensor inside the model"


def _origin_at(bindings: Sequence[relax.Binding], index: int) -> Origin | None:
    """The node that a binding is from: that of the first marked one from there on, because the
    importer makes several bindings of one node, and marks the last of them."""
    return next(filter(None, (origin_of(binding.value) for binding in bindings[index:])), None)


def _check_shape(
    ty: tvm.ir.Type, model: LoadedModel, what: Callable[[], str], *, may_be_empty: bool
) -> None:
    """A plan needs every shape as numbers. Only constants may be empty, which are results."""
    if isinstance(ty, relax.TupleType):
        for field in ty.fields:
            _check_shape(field, model, what, may_be_empty=may_be_empty)
    elif isinstance(ty, relax.TensorType):
        dims = ty.shape
        if dims is None or not all(isinstance(dim, tvm.tirx.IntImm) for dim in dims):
            known = [str(dim) if isinstance(dim, tvm.tirx.IntImm) else "?" for dim in dims or ()]
            shape = f"({', '.join(known)})" if dims is not None else "unknown"
            raise DynamicShapeError(
                f"{model.path}: {what()} has a shape that depends on the data: {shape}",
                hint=DATA_SHAPE_HINT,
            )
        if any(int(dim) == 0 for dim in dims) and not may_be_empty:
            raise ImportModelError(
                f"{model.path}: {what()} is empty: {tuple(int(dim) for dim in dims)}",
                hint="give the inputs larger shapes (--shape), or check the model",
            )

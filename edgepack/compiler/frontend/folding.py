"""What is known before the first inference is computed once, here: constants are folded."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from edgepack.base import apart
from edgepack.compiler.errors import ImportModelError, first_line
from edgepack.compiler.frontend.conversions import is_static


def fold_by_onnxruntime(path: Path, proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with what is constant computed, and without nodes that have no effect.

    Only by onnxruntime's basic optimisations: the next level puts operators of its own into the
    model. Shapes that the model computes by Shape, Gather and Concat become constants here, which
    TVM's importer needs. Raises `ImportModelError`, naming `path`, for a model that onnxruntime
    refuses.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        folded = Path(folder) / "folded.onnx"
        options.optimized_model_filepath = str(folded)
        try:
            onnxruntime.InferenceSession(
                proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its exception classes share no base but Exception
            raise ImportModelError(
                f"{path}: not a valid model: {_said(error)}",
                hint="onnxruntime refuses it too; check the export",
            ) from error
        return onnx.load(folded)


def _said(error: Exception) -> str:
    """What onnxruntime says, without its own name and number for it."""
    if apart.is_no_memory(str(error)):
        raise MemoryError from error
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", first_line(error))


# Operators that `FoldByNumpy` computes; the others are left to FoldConstant.
_NUMPY: dict[str, Callable[..., np.ndarray]] = {
    "relax.add": np.add,
    "relax.divide": np.divide,
    "relax.isnan": np.isnan,
    "relax.multiply": np.multiply,
    "relax.sqrt": np.sqrt,
    "relax.subtract": np.subtract,
    "relax.where": np.where,
}


@mutator
class FoldByNumpy(PyExprMutator):  # type: ignore[misc]
    """Computes what TVM's importer makes of constants around every bias, Clip and batch norm.

    FoldConstant would compile a kernel for each of these small operations: 4 s for MobileNetV2,
    36 s for DenseNet-121. The bounds of a Clip become scalars, and later immediates in the code.
    """

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        name = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
        if name == "relax.call_tir":
            return self._clip(call)
        reshapes = name in ("relax.expand_dims", "relax.reshape")
        if not reshapes and name not in _NUMPY:
            return call
        operands = call.args[:1] if reshapes else call.args
        values = [value for value in map(self._constant, operands) if value is not None]
        if len(values) < len(operands) or not is_static(call.ty):
            return call
        if reshapes:
            result = values[0].reshape([int(dim) for dim in call.ty.shape])
        else:
            with np.errstate(all="ignore"):
                result = _NUMPY[name](*values)
        # numpy divides integers into floats.
        dtype = str(call.ty.dtype)
        return relax.const(result, dtype) if str(result.dtype) == dtype else call

    def _clip(self, call: relax.Call) -> relax.Expr:
        operator = {"maximum": relax.op.maximum, "minimum": relax.op.minimum}.get(
            call.args[0].name_hint.rstrip("0123456789")
        )
        if operator is None or len(call.args[1]) != 2:
            return call
        data, bound = call.args[1]
        value = self._constant(bound)
        if value is None or value.size != 1 or list(data.ty.shape) != list(call.ty.shape):
            return call
        made = operator(data, relax.const(value.reshape(()), str(bound.ty.dtype)))
        return relax.Call(made.op, made.args, made.attrs, made.ty_args, call.span)

    def _constant(self, expr: relax.Expr) -> np.ndarray | None:
        if isinstance(expr, relax.Var):
            expr = self.lookup_binding(expr)
        return expr.value.numpy() if isinstance(expr, tvm.ir.GenericConst) else None

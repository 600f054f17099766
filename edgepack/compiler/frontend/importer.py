"""ONNX -> Relax: everything that is known before the first inference is computed here."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from edgepack.compiler.errors import (
    DATA_SHAPE_HINT,
    ImportModelError,
    first_line,
)
from edgepack.compiler.frontend.conversions import Node, is_static
from edgepack.compiler.frontend.float16 import widened
from edgepack.compiler.frontend.load import CheckedModel
from edgepack.compiler.frontend.operators import OPERATORS, Operator, check_operators
from edgepack.compiler.origin import Origin, mark
from edgepack.model import DynamicShapeError, LoadedModel, infer_shapes


def import_model(model: CheckedModel) -> tvm.IRModule:
    """A Relax module whose `main` takes the model's inputs in order, weights as constants.

    Raises `ImportModelError`, `DynamicShapeError` for a shape inside that depends on
    the data, or `UnsupportedOperatorError` for what is left after constant folding.
    """
    proto = _fold(model, widened(model.expanded))
    check_operators(model.path, proto)
    said = io.StringIO()
    try:
        # The importer prints what it was converting when it fails, and warns about names.
        with contextlib.redirect_stdout(said), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = _Importer().convert(proto)
    except Exception as error:  # TVM raises anything from AssertionError to tvm.error.*
        _check_static(model, proto)
        first = said.getvalue().split(", with inputs")[0].strip()
        raise ImportModelError(
            f"{model.path}: {first or 'TVM cannot import the model'}: {first_line(error)}"
        ) from error
    module = relax.transform.DecomposeOpsForInference()(module)
    module["main"] = _FoldCheaply(module).visit_expr(module["main"])
    # The only operators that LegalizeOps leaves as they are: CumSum and CumProd.
    with tvm.target.Target("llvm"):
        return relax.backend.DispatchSortScan()(module)


class _Builder(relax.BlockBuilder):  # type: ignore[misc]
    """Marks every call with the node that is being converted."""

    origin: Origin

    def marked(self, expr: relax.Expr) -> relax.Expr:
        return mark(expr, self.origin) if isinstance(expr, relax.Call) else expr

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        return super().emit(self.marked(expr), name_hint)


class _Importer(ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer, except that what it makes remembers the node it was made of."""

    def __init__(self) -> None:
        super().__init__({}, "float32", sanitize=False)
        self.bb = _Builder()

    def convert(self, proto: onnx.ModelProto) -> tvm.IRModule:
        """What `tvm.relax.frontend.onnx.from_onnx` does; a node without a name gets one."""
        for node in proto.graph.node:
            node.name = node.name or next(filter(None, node.output), "")
        (opset,) = (item.version for item in proto.opset_import if item.domain in ("", "ai.onnx"))
        return self.from_onnx(proto.graph, opset)

    def _convert_operator(
        self, op_name: str, inputs: list[relax.Expr], attrs: dict[str, Any], opset: int
    ) -> relax.Expr:
        self.bb.origin = Origin(operator=op_name, name=attrs["tvm_custom"]["name"])
        by_tvm = super()._convert_operator
        own = OPERATORS.get(op_name, Operator()).convert
        node = Node(
            inputs=inputs,
            attributes=attrs,
            opset=opset,
            by_tvm=lambda of: by_tvm(op_name, of, attrs, opset),
            emit=self.bb.emit,
        )
        made = own(node) if own else None
        if made is None:
            made = node.by_tvm(inputs)
        # An input given back is no second call of what made it.
        if not isinstance(made, relax.Call) or any(map(made.same_as, inputs)):
            return made
        return self.bb.normalize(self.bb.marked(made))


def _fold(model: LoadedModel, proto: onnx.ModelProto) -> onnx.ModelProto:
    """Let onnxruntime compute what is constant, and drop what has no effect.

    Only its basic level: above it nodes become its own operators. Shapes that
    the model computes (`Shape`, `Gather`, `Concat`, `Reshape`) turn into
    constants here, which TVM's importer needs.
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
                f"{model.path}: not a valid model: {first_line(error)}",
                hint="onnxruntime refuses it too; check the export",
            ) from error
        return onnx.load(folded)


def _check_static(model: LoadedModel, proto: onnx.ModelProto) -> None:
    """Say so if the reason why a model cannot be imported is a shape inside it."""
    graph = infer_shapes(proto).graph
    known = {
        value.name
        for value in (*graph.value_info, *graph.output)
        if all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
        and value.type.tensor_type.HasField("shape")
    }
    for node in graph.node:
        unknown = [name for name in node.output if name and name not in known]
        if unknown:
            raise DynamicShapeError(
                f"{model.path}: the shape of '{unknown[0]}' ({node.op_type} '{node.name}') "
                "depends on the data",
                hint=DATA_SHAPE_HINT,
            )


# Operators on constants that are computed here; the others are left to FoldConstant.
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
class _FoldCheaply(PyExprMutator):  # type: ignore[misc]
    """Compute with numpy what the importer leaves around every bias, Clip and batch norm.

    FoldConstant would compile a kernel for each of them: 4 s for MobileNetV2, 36 s
    for DenseNet-121. A bound of Clip becomes a scalar constant, which ends up as an
    immediate.
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

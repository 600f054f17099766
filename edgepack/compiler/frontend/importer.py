"""ONNX -> Relax, with the node that each expression comes from as its origin."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import tvm
from tvm import relax, tirx
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from edgepack.base import apart
from edgepack.compiler.bound import Bound
from edgepack.compiler.errors import (
    DATA_SHAPE_HINT,
    ImportModelError,
    UnsupportedFormError,
)
from edgepack.compiler.frontend.bounded import bounded
from edgepack.compiler.frontend.conversions import Node
from edgepack.compiler.frontend.empty import without_empty, without_empty_reductions
from edgepack.compiler.frontend.float16 import widened
from edgepack.compiler.frontend.folding import FoldByNumpy, fold, fold_by_reference
from edgepack.compiler.frontend.load import CheckedModel
from edgepack.compiler.frontend.operators import OPERATORS, Operator, check_operators
from edgepack.compiler.frontend.quantized import with_integers
from edgepack.compiler.origin import Origin, mark
from edgepack.model import LoadedModel, infer_shapes, operator_name, opset_of
from edgepack.model.errors import DynamicShapeError

log = logging.getLogger(__name__)


def import_model(model: CheckedModel) -> tvm.IRModule:
    """A Relax module whose `main` takes the model's inputs in order, weights as constants.

    Behind its outputs come the counts that `bounds_of` tells of. Raises `ImportModelError`,
    `DynamicShapeError` for a shape inside that depends on the data, or `UnsupportedOperatorError`
    for what is left after constant folding.
    """
    proto, bounds = prepared(model.path, model.expanded)
    check_operators(model.path, proto)
    importer = _Importer()
    try:
        # The importer prints what it was converting when it fails, and warns about names.
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importer.convert(proto)
    except UnsupportedFormError as error:
        raise refused(model.path, importer.node, str(error)) from error
    except Exception as error:  # TVM raises anything from AssertionError to tvm.error.*
        _check_static(model, proto)
        log.debug("%s: %s", model.path, error, exc_info=True)
        raise refused(model.path, importer.node) from error
    apart.at("folding constants by numpy")
    module = relax.transform.DecomposeOpsForInference()(module)
    module["main"] = FoldByNumpy(module).visit_expr(module["main"])
    # The only operators that LegalizeOps leaves as they are: CumSum and CumProd.
    with tvm.target.Target("llvm"):
        module = relax.backend.DispatchSortScan()(module)
    return (
        module.with_attr(_BOUNDS, [[b.output, b.axis, b.count] for b in bounds])
        if bounds
        else module
    )


def prepared(path: Path, expanded: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[Bound, ...]]:
    """A model of `CheckedModel.expanded` as it is imported, and which axes of its outputs are not
    all in use.

    Constants are folded, and quantised operators are those of `quantized`.
    """
    apart.at("folding constants")
    folded = fold(path, without_empty_reductions(widened(expanded)))
    proto = without_empty(folded)
    if proto is not folded:
        proto = fold_by_reference(proto)
    apart.at("giving sizes that depend on the data a bound")
    proto, bounds = bounded(path, proto)
    apart.at("looking for operators on integers")
    return with_integers(proto), bounds


_BOUNDS = "edgepack.bounds"


def bounds_of(module: tvm.IRModule) -> tuple[Bound, ...]:
    """Which axes of an imported model's outputs are not all in use."""
    found = (module.attrs or {}).get(_BOUNDS, ())
    return tuple(Bound(output=int(o), axis=int(a), count=int(c)) for o, a, c in found)


class _Builder(relax.BlockBuilder):  # type: ignore[misc]
    """Gives every call that is emitted the node that is being converted as its origin."""

    origin: Origin

    def marked(self, expr: relax.Expr) -> relax.Expr:
        return mark(expr, self.origin) if isinstance(expr, relax.Call) else expr

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        return super().emit(self.marked(expr), name_hint)


class _Importer(ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer, with the conversions of `OPERATORS` before its own, and with origins."""

    def __init__(self) -> None:
        super().__init__({}, "float32", sanitize=False)
        self.bb = _Builder()
        # The one that is being converted, by its name.
        self.node = onnx.NodeProto()
        self.nodes: dict[str, onnx.NodeProto] = {}

    def convert(self, proto: onnx.ModelProto) -> tvm.IRModule:
        """What `tvm.relax.frontend.onnx.from_onnx` does; a node without a name gets one."""
        for node in proto.graph.node:
            node.name = node.name or next(filter(None, node.output), "")
            self.nodes[node.name] = node
        return self.from_onnx(proto.graph, opset_of(proto))

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Nothing: `check_operators` has looked already, and knows those of `OPERATORS`, too."""

    def _convert_operator(
        self, op_name: str, inputs: list[relax.Expr], attrs: dict[str, Any], opset: int
    ) -> relax.Expr:
        name = attrs["tvm_custom"]["name"]
        self.node = self.nodes.get(name, self.node)
        results = [result for result in self.node.output if result]
        self.bb.origin = Origin(
            operator=op_name, name=name, result=results[0] if len(results) == 1 else ""
        )
        apart.at(f"importing {op_name} '{name}'")
        by_tvm = super()._convert_operator
        own = OPERATORS.get(op_name, Operator()).convert
        node = Node(
            inputs=inputs,
            attributes=attrs,
            opset=opset,
            outputs=len(self.node.output),
            by_tvm=lambda of: by_tvm(op_name, of, attrs, opset),
            emit=self.bb.emit,
            compute=self.bb.emit_te,
            call=self._call,
        )
        made = own(node) if own else None
        if made is None:
            made = node.by_tvm(inputs)
        # A conversion that returns one of its inputs, as Identity's does, made no call to mark.
        if not isinstance(made, relax.Call) or any(map(made.same_as, inputs)):
            return made
        return self.bb.normalize(self.bb.marked(made))

    def _call(
        self,
        name: str,
        function: tirx.PrimFunc,
        inputs: Sequence[relax.Expr],
        results: Sequence[tuple[Sequence[int], str]],
    ) -> list[relax.Expr]:
        """A call of a kernel of our own; its results by shape and element type."""
        kernel = self.bb.add_func(function, name)
        types = [relax.TensorType(list(shape), dtype) for shape, dtype in results]
        given = [self.bb.normalize(value) for value in inputs]
        given = [value if _is_atom(value) else self.bb.emit(value) for value in given]
        made = self.bb.emit(relax.call_tir(kernel, given, types))
        if len(types) == 1:
            return [made]
        return [self.bb.emit(relax.TupleGetItem(made, i)) for i in range(len(types))]


def _is_atom(value: relax.Expr) -> bool:
    return isinstance(value, relax.Var | tvm.ir.GenericConst)


def refused(path: Path, node: onnx.NodeProto, why: str = "") -> ImportModelError:
    """The error for a node whose operator is known, and whose form is not."""
    attributes = ", ".join(onnx.helper.printable_attribute(item) for item in node.attribute)
    return ImportModelError(
        f"{path}: {operator_name(node)} '{node.name}' cannot be compiled in this form: "
        + (why or f"{len(node.input)} inputs, {attributes or 'no attributes'}"),
        hint="check that the operator may have it; else export the model with another form of it",
    )


def _check_static(model: LoadedModel, proto: onnx.ModelProto) -> None:
    """Raise `DynamicShapeError` if a shape inside the model depends on the data: then this is the
    reason why it could not be imported."""
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

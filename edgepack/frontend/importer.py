"""ONNX -> Relax, with the node that each expression comes from as its origin."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax, tirx
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter, onnx_input

from edgepack.base import apart
from edgepack.base.text import one_line
from edgepack.frontend import storage
from edgepack.frontend.blocks import CHOOSE, REPEAT, Around, Prepared, with_blocks
from edgepack.frontend.bound import Bound
from edgepack.frontend.bounded import fix_sizes
from edgepack.frontend.control import MOST_NODES, straighten
from edgepack.frontend.conversions import Node
from edgepack.frontend.empty import without_empty, without_empty_reductions
from edgepack.frontend.errors import (
    DATA_SHAPE_HINT,
    ImportModelError,
    UnsupportedFormError,
    UnsupportedOperatorError,
    first_line,
)
from edgepack.frontend.expand import expand
from edgepack.frontend.float16 import widen
from edgepack.frontend.folding import FoldByNumpy, fold, fold_by_reference
from edgepack.frontend.inlining import positions_of
from edgepack.frontend.integer_recognition import Recognition, with_integers
from edgepack.frontend.load import CheckedModel
from edgepack.frontend.narrow_floats import check_narrow_floats
from edgepack.frontend.operators import OPERATORS, Operator, check_operators
from edgepack.frontend.origin import mark, origin_of
from edgepack.frontend.owners import place_of, title_of
from edgepack.frontend.scattering import with_parts, with_windows
from edgepack.frontend.volumes import with_images
from edgepack.kernels.tiles.cpu import CpuModel, nearest_model
from edgepack.kernels.value import Origin
from edgepack.model import LoadedModel, infer_shapes, opset_of
from edgepack.model.errors import DynamicShapeError

log = logging.getLogger(__name__)


Leave = Callable[[Recognition], Collection[str]]
"""Names of the nodes that are left in float of those that could be done on integers."""


def _none(_found: Recognition) -> Collection[str]:
    return ()


_NO_LOOP = Around()


def import_model(
    model: CheckedModel, leave: Leave = _none, cpu: CpuModel | None = None
) -> tvm.IRModule:
    """A Relax module whose `main` takes the model's inputs in order, weights as constants.

    What is written as loops right here, recurrent layers and samples of images, suits `cpu`;
    without one it suits any, or is left to TVM.

    What `leave` says of a quantised model stays float. Behind its outputs come the counts that
    `bounds_of` tells of. Raises `ImportModelError`,
    `DynamicShapeError` for a shape inside that depends on the data, or `UnsupportedOperatorError`
    for what is left after constant folding.
    """
    ready = prepare_model(model.path, model.expanded, leave)
    return _imported(model, ready, cpu or nearest_model("", ""), alone=cpu is not None)


def _imported(model: LoadedModel, ready: Prepared, cpu: CpuModel, *, alone: bool) -> tvm.IRModule:
    """A model that is prepared, and its blocks. `alone`: the CPU computes all of it."""
    proto = ready.proto
    check_operators(model.path, proto)
    check_narrow_floats(model.path, proto)
    blocks = {
        key: [
            *(block.name, block.operator, block.states, block.most),
            *(_imported(model, body, cpu, alone=alone) for body in block.bodies),
        ]
        for key, block in ready.blocks.items()
    }
    importer = _Importer(blocks, cpu, alone=alone)
    try:
        # The importer prints what it was converting when it fails, and warns about names.
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importer.convert(proto)
    except UnsupportedFormError as error:
        raise refusal_of(model.path, importer.node, str(error)) from error
    except Exception as error:  # TVM raises anything from AssertionError to tvm.error.*
        _check_static(model, proto)
        log.debug("%s: %s", model.path, error, exc_info=True)
        raise refusal_of(model.path, importer.node, _reason(error)) from error
    apart.at("folding constants by numpy")
    module = relax.transform.CanonicalizeBindings()(module)
    module = relax.transform.DecomposeOpsForInference()(module)
    module["main"] = with_images(FoldByNumpy(module).visit_expr(module["main"]), in_place=alone)
    # The only operators that LegalizeOps leaves as they are: CumSum and CumProd.
    with tvm.target.Target("llvm"):
        module = relax.backend.DispatchSortScan()(module)
    if ready.bounds:
        module = module.with_attr(_BOUNDS, [[b.output, b.axis, b.count] for b in ready.bounds])
    return module.with_attr(_BLOCKS, blocks) if blocks else module


def prepare_model(
    path: Path, expanded: onnx.ModelProto, leave: Leave = _none, around: Around = _NO_LOOP
) -> Prepared:
    """A model of `CheckedModel.expanded` as it is imported.

    Constants are folded, loops and branches are nodes of `blocks`, and quantised operators are
    those of `integer_recognition`, but for what `leave` says: a model with blocks has none.
    `around` is for the body of one.
    """
    try:
        return _prepared(path, expanded, leave, around)
    except UnsupportedOperatorError:
        # A loop that can be no block, as its shapes change from turn to turn, may be written out.
        straight = straighten(expanded, MOST_NODES)
        if straight is expanded:
            raise
        return _prepared(path, expand(straight), leave, around)


def _prepared(path: Path, expanded: onnx.ModelProto, leave: Leave, around: Around) -> Prepared:
    apart.at("folding constants")
    folded = fold(path, without_empty_reductions(widen(expanded)))
    proto = without_empty(folded)
    if proto is not folded:
        proto = fold_by_reference(proto)
    apart.at("looking at loops and branches")
    proto, blocks = with_blocks(
        path, proto, lambda body, inside: prepare_model(path, expand(body), leave, inside), around
    )
    if blocks:
        # Behind a loop more shapes are known than before.
        proto = fold_by_reference(proto)
    apart.at("giving sizes that depend on the data a bound")
    open_ = proto
    proto, bounds = fix_sizes(path, proto)
    if proto is not open_:
        # What a shape was reshaped or repeated to is known now.
        proto = fold_by_reference(proto)
    apart.at("looking for operators on integers")
    if not blocks and around == _NO_LOOP:
        proto = with_integers(proto, leave)
    return Prepared(proto=with_windows(with_parts(proto)), bounds=bounds, blocks=blocks)


_BOUNDS = "edgepack.bounds"
_BLOCKS = "edgepack.blocks"


def bounds_of(module: tvm.IRModule) -> tuple[Bound, ...]:
    """Which axes of an imported model's outputs are not all in use."""
    found = (module.attrs or {}).get(_BOUNDS, ())
    return tuple(Bound(output=int(o), axis=int(a), count=int(c)) for o, a, c in found)


@dataclass(frozen=True, kw_only=True)
class ImportedBlock:
    """A block of an imported module, as `blocks.ControlBlock` has it."""

    name: str
    operator: str
    states: int
    most: int
    bodies: tuple[tvm.IRModule, ...]


def blocks_of(module: tvm.IRModule) -> dict[str, ImportedBlock]:
    """The blocks that an imported module calls, by the names of the functions it calls."""
    found = (module.attrs or {}).get(_BLOCKS, {})
    return {
        str(name): ImportedBlock(
            name=str(parts[0]),
            operator=str(parts[1]),
            states=int(parts[2]),
            most=int(parts[3]),
            bodies=tuple(parts[4:]),
        )
        for name, parts in found.items()
    }


# What onnxruntime adds to the name of a product that it makes one with a sum.
_FUSED = "/MatMulAddFusion"


class _Builder(relax.BlockBuilder):  # type: ignore[misc]
    """Gives every call that is emitted the node that is being converted as its origin, unless it
    has one: a conversion may emit what another left for it.
    """

    origin: Origin

    def marked(self, expr: relax.Expr) -> relax.Expr:
        new = isinstance(expr, relax.Call) and origin_of(expr) is None
        return mark(expr, self.origin) if new else expr

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        return super().emit(self.marked(expr), name_hint)


class _Importer(ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer, with the conversions of `OPERATORS` before its own, and with origins."""

    def __init__(self, blocks: Mapping[str, Sequence[Any]], cpu: CpuModel, *, alone: bool) -> None:
        super().__init__({}, "float32", sanitize=False)
        self.blocks, self.cpu, self.alone = blocks, cpu, alone
        self.bb = _Builder()
        # The one that is being converted, by its name.
        self.node = onnx.NodeProto()
        self.nodes: dict[str, onnx.NodeProto] = {}
        self.outputs: set[str] = set()

    def convert(self, proto: onnx.ModelProto) -> tvm.IRModule:
        """What `tvm.relax.frontend.onnx.from_onnx` does; a node without a name gets one."""
        for node in proto.graph.node:
            node.name = node.name or next(filter(None, node.output), "")
            self.nodes[node.name] = node
        self.outputs = {value.name for value in proto.graph.output}
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
            operator=op_name,
            name=name.removesuffix(_FUSED),
            result=results[0] if len(results) == 1 else "",
        )
        attrs = {**_defaults_of(op_name, opset, inputs), **attrs}
        apart.at(f"importing {op_name} '{name}'{place_of(self.node)}")
        if op_name in (REPEAT, CHOOSE):
            return self._block(op_name, attrs["body"].decode(), inputs)
        by_tvm = super()._convert_operator
        own = OPERATORS.get(op_name, Operator()).convert
        node = Node(
            title=self._title(op_name, name),
            inputs=inputs,
            attributes=attrs,
            opset=opset,
            outputs=len(self.node.output),
            cpu=self.cpu,
            alone=self.alone,
            # Behind the last input are those that were left out.
            by_tvm=lambda of: by_tvm(op_name, onnx_input(of), attrs, opset),
            emit=self.bb.emit,
            compute=self.bb.emit_te,
            call=self._call,
        )
        made = own(node) if own else None
        if made is None:
            made = node.by_tvm(inputs)
        if isinstance(made, relax.ShapeExpr) and not self.outputs.isdisjoint(self.node.output):
            # TVM's Shape gives one, which is no tensor that could be an output.
            made = relax.const(np.array([int(size) for size in made.values]), "int64")
        # A conversion that returns one of its inputs, as Identity's does, made no call to mark.
        if not isinstance(made, relax.Call) or any(map(made.same_as, inputs)):
            return made
        # A variable: two conversions that read a call each bind it to one of their own otherwise,
        # and it is computed twice.
        return self.bb.emit(made)

    def _atom(self, value: relax.Expr) -> relax.Expr:
        """A variable or a constant that has a value."""
        return value if _is_atom(value) else self.bb.emit(value)

    def _title(self, op_name: str, name: str) -> str:
        """What messages call the node that is being converted."""
        plain = one_line(f"{op_name} '{name}'")
        is_named = positions_of(plain)[0] != plain  # by what it is part of
        return plain if is_named else plain + one_line(place_of(self.node))

    def _block(self, op_name: str, key: str, inputs: Sequence[relax.Expr]) -> relax.Expr:
        """A call of a block; its results are as those of its body."""
        _, _, states, most, body = self.blocks[key][:5]
        ty = body["main"].ret_ty
        made = list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]
        if op_name == REPEAT:
            # The first one says whether it goes on.
            rows = [relax.TensorType([most, *row.shape], row.dtype) for row in made[1 + states :]]
            made = [*made[1 : 1 + states], *rows]
        given = [self.bb.normalize(value) for value in inputs]
        given = [value if _is_atom(value) else self.bb.emit(value) for value in given]
        return self.bb.emit(storage.block(key, given, made))

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


def _defaults_of(op_name: str, opset: int, inputs: Sequence[relax.Expr]) -> dict[str, float]:
    """The attributes that an operator has if a node has none, as ONNX has them: numbers of float32,
    which those of float64 differ from. A Clip without bounds has none."""
    kinds = {str(getattr(getattr(value, "ty", None), "dtype", "")) for value in inputs}
    if op_name == "Clip" or "float64" not in kinds or not onnx.defs.has(op_name):
        return {}
    try:
        schema = onnx.defs.get_schema(op_name, opset)
    except onnx.defs.SchemaError:
        return {}
    defaults = {name: item.default_value for name, item in schema.attributes.items()}
    return {
        name: value.f for name, value in defaults.items() if value.type == onnx.AttributeProto.FLOAT
    }


def _is_atom(value: relax.Expr) -> bool:
    return isinstance(value, relax.Var | tvm.ir.GenericConst)


def refusal_of(path: Path, node: onnx.NodeProto, why: str = "") -> ImportModelError:
    """The error for a node whose operator is known, and whose form is not."""
    attributes = ", ".join(onnx.helper.printable_attribute(item) for item in node.attribute)
    return ImportModelError(
        f"{path}: {title_of(node)} cannot be compiled in this form: "
        + (why or f"{len(node.input)} inputs, {attributes or 'no attributes'}"),
        hint="check that the operator may have it; else export the model with another form of it",
    )


def _reason(error: Exception) -> str:
    """What TVM's importer says of a form that it does not take; "" if it is no sentence."""
    plain = isinstance(error, AssertionError | NotImplementedError | ValueError)
    said = first_line(error) if plain else ""
    return said.rstrip(".") if len(said) <= _LONGEST_REASON else ""


_LONGEST_REASON = 120


def _check_static(model: LoadedModel, proto: onnx.ModelProto) -> None:
    """Raise `DynamicShapeError` if a shape inside the model depends on the data: then this is the
    reason why it could not be imported."""
    graph = infer_shapes(proto).graph
    known = {
        value.name
        for value in (*graph.input, *graph.value_info, *graph.output)
        if all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
        and value.type.tensor_type.HasField("shape")
    } | {tensor.name for tensor in proto.graph.initializer}
    for node in graph.node:
        unknown = [name for name in node.output if name and name not in known]
        # Of operators of other domains onnx infers nothing, nor of what follows them.
        is_first = all(name in known for name in node.input if name)
        if unknown and is_first and node.domain in ("", "ai.onnx"):
            raise DynamicShapeError(
                f"{model.path}: the shape of '{unknown[0]}' ({title_of(node)}) depends on the data",
                hint=DATA_SHAPE_HINT,
            )

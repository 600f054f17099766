"""What is known before the first inference is computed once, here: constants are folded."""

from __future__ import annotations

import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import tvm
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import numpy_helper
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from edgepack.base import apart
from edgepack.frontend.conversions import is_static
from edgepack.frontend.errors import ImportModelError, first_line
from edgepack.frontend.forms import known_shapes
from edgepack.frontend.integer_weights import is_matrix_in_blocks
from edgepack.model import infer_shapes, opset_of, walk_nodes
from edgepack.model.index import GraphIndex
from edgepack.model.inference import infer_types
from edgepack.model.session import INEXACT
from edgepack.model.structure import subgraphs


def fold(path: Path, proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with what is constant computed, and without nodes that have no effect.

    Shapes that the model computes by Shape, Gather and Concat become constants here, which TVM's
    importer needs. By onnxruntime; or, where it lacks an operator or a type that ONNX has, node by
    node; so are models with branches within branches, at some of which onnxruntime 1.31 crashes.
    Raises `ImportModelError`, naming `path`, for a model that is not valid.
    """
    if _has_nested_branches(proto.graph):
        return fold_by_reference(proto)
    try:
        return fold_by_onnxruntime(path, _dated_back(proto))
    except ImportModelError:
        if not _is_valid(proto):
            raise
    return fold_by_reference(proto)


def _has_nested_branches(graph: onnx.GraphProto, *, inside: bool = False) -> bool:
    for node in graph.node:
        is_branch = node.op_type == "If"
        if is_branch and inside:
            return True
        if any(_has_nested_branches(g, inside=inside or is_branch) for g in subgraphs(node)):
            return True
    return False


# What the pinned onnxruntime reads.
NEWEST_OPSET, NEWEST_IR = 26, 13


def _dated_back(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model of a newer version as one that onnxruntime reads; the same if it is not too new.

    It is the same in that version, or is refused in it: of what came later, operators were replaced
    by their definitions, and old ones got attributes and types.
    """
    if opset_of(proto) <= NEWEST_OPSET and proto.ir_version <= NEWEST_IR:
        return proto
    older = onnx.ModelProto()
    older.CopyFrom(proto)
    older.ir_version = min(proto.ir_version, NEWEST_IR)
    for item in older.opset_import:
        if item.domain in ("", "ai.onnx"):
            item.version = min(item.version, NEWEST_OPSET)
    return older


def _is_valid(proto: onnx.ModelProto) -> bool:
    """Whether onnx finds nothing wrong with a model, or with its types and shapes.

    Outputs may lack a shape, as long as it follows from the rest.
    """
    try:
        typed = infer_shapes(proto, with_weights=True)
        onnx.checker.check_model(typed)
        infer_types(typed, check_type=True, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError):
        return False
    return True


def fold_by_onnxruntime(path: Path, proto: onnx.ModelProto) -> onnx.ModelProto:
    """By onnxruntime's basic optimisations: the next level puts operators of its own into the
    model.
    """
    import onnxruntime

    weights, matrices = _large_weights(proto), _matrices_in_blocks(proto)
    given = _as_inputs(proto, weights, matrices)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        folded = Path(folder) / "folded.onnx"
        options.optimized_model_filepath = str(folded)
        try:
            onnxruntime.InferenceSession(
                given.SerializeToString(),
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=list(INEXACT),
            )
        except Exception as error:  # its exception classes share no base but Exception
            raise ImportModelError(
                f"{path}: not a valid model: {_said(error)}",
                hint=_way_out(proto),
            ) from error
        return _with_weights(onnx.load(folded), proto, weights, matrices)


_FLOAT = onnx.TensorProto.FLOAT
# Weights of so many bytes, which are most of a model, need not go through onnxruntime, which reads,
# copies and writes them.
_LARGE = 1 << 18
# What multiplies by its second input, and what onnxruntime may put into such weights or their bias.
_SCALES = {"BatchNormalization", "Div", "Mul"}
_INTO_WEIGHTS = {
    "Conv": {*_SCALES, "Add", "Sub"},
    "ConvTranspose": {*_SCALES, "Add", "Sub"},
    "Gemm": _SCALES,
    "MatMul": _SCALES,
}


def _large_weights(proto: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Large weights of which nothing is computed before the first inference."""
    graph, index = proto.graph, GraphIndex(proto.graph)
    large = {name: item for name, item in index.constants.items() if item.ByteSize() >= _LARGE}
    constants = set(index.constants)
    constants |= {name for node in graph.node if node.op_type == "Constant" for name in node.output}
    uses = Counter(name for node in walk_nodes(graph) for name in node.input)

    def is_scaled(node: onnx.NodeProto) -> bool:
        after = (reader for name in node.output for reader in index.readers[name])
        return any(
            reader.op_type in _INTO_WEIGHTS[node.op_type] and not constants.isdisjoint(reader.input)
            for reader in after
        )

    return {
        name: large[name]
        for node in graph.node
        if node.op_type in _INTO_WEIGHTS and not is_scaled(node)
        for name in node.input[1:2]
        if name in large and uses[name] == 1 and name not in index.outputs
    }


def _matrices_in_blocks(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """What makes numbers of integers that stay what they are (`integer_weights`): not folded, and
    unknown to onnxruntime in models of opsets before 21, where `microsoft` puts them."""
    constants, outputs = GraphIndex(proto.graph).constants, GraphIndex(proto.graph).outputs
    return [
        node
        for node in proto.graph.node
        if is_matrix_in_blocks(node, constants) and node.output[0] not in outputs
    ]


def _as_inputs(
    proto: onnx.ModelProto,
    weights: Mapping[str, onnx.TensorProto],
    matrices: Sequence[onnx.NodeProto],
) -> onnx.ModelProto:
    """The model with some of its weights, and what some nodes make, as inputs."""
    made, graph = onnx.ModelProto(), proto.graph
    for field, value in proto.ListFields():
        if field.name != "graph":
            _set(made, field.name, value)
    for field, value in graph.ListFields():
        if field.name != "initializer":
            _set(made.graph, field.name, value)
    made.graph.initializer.extend(item for item in graph.initializer if item.name not in weights)
    there = {value.name for value in graph.input}
    made.graph.input.extend(
        onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
        for name, tensor in weights.items()
        if name not in there
    )
    constants = GraphIndex(graph).constants
    made.graph.input.extend(
        onnx.helper.make_tensor_value_info(node.output[0], _FLOAT, constants[node.input[0]].dims)
        for node in matrices
    )
    apart_from = {node.output[0] for node in matrices}
    left = [node for node in made.graph.node if apart_from.isdisjoint(node.output)]
    del made.graph.node[:]
    made.graph.node.extend(left)
    return made


def _set(message: Message, name: str, value: object) -> None:
    """Set a field of a message to what another one has."""
    if isinstance(value, Message):
        getattr(message, name).CopyFrom(value)
    elif isinstance(value, str | bytes | int | float):
        setattr(message, name, value)
    else:
        getattr(message, name).extend(value)


def _with_weights(
    folded: onnx.ModelProto,
    proto: onnx.ModelProto,
    weights: Mapping[str, onnx.TensorProto],
    matrices: Sequence[onnx.NodeProto],
) -> onnx.ModelProto:
    """The model with its weights and nodes again, and the inputs of `proto`."""
    graph, inputs = folded.graph, {value.name for value in proto.graph.input}
    left = [value for value in graph.input if value.name in inputs]
    del graph.input[:]
    graph.input.extend(left)
    used = {name for node in walk_nodes(graph) for name in node.input}
    graph.initializer.extend(tensor for name, tensor in weights.items() if name in used)
    back = [node for node in matrices if node.output[0] in used]
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*back, *rest])
    there, constants = {item.name for item in graph.initializer}, GraphIndex(proto.graph).constants
    names = dict.fromkeys(name for node in back for name in node.input if name)
    graph.initializer.extend(constants[name] for name in names if name not in there)
    return folded


def _way_out(proto: onnx.ModelProto) -> str:
    if any(node.op_type == "If" for node in walk_nodes(proto.graph)):
        return (
            "onnxruntime refuses it with these shapes, too; if they suit only one of its branches, "
            "make the input that chooses a constant: --set NAME=VALUE"
        )
    return "onnxruntime refuses it too; check the export"


def _said(error: Exception) -> str:
    """What onnxruntime says, without its own name and number for it."""
    if apart.is_no_memory(str(error)):
        raise MemoryError from error
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", first_line(error))


# Results of more elements are computed when the model runs.
_MOST_ELEMENTS = 1 << 24


def fold_by_reference(proto: onnx.ModelProto) -> onnx.ModelProto:
    """By onnx's reference evaluator, a node at a time; what it cannot compute stays."""
    folded = onnx.ModelProto()
    folded.CopyFrom(proto)
    while _fold_once(folded):
        pass
    graph = folded.graph
    used = {name for node in walk_nodes(graph) for name in node.input}
    used |= {value.name for value in graph.output}
    weights = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(weights)
    return folded


def _fold_once(proto: onnx.ModelProto) -> bool:
    """Whether something could be computed; more may be known of shapes then."""
    graph = proto.graph
    known, shapes = GraphIndex(graph).constants, known_shapes(proto)
    outputs = {value.name for value in graph.output}
    left, found = [], False
    for node in graph.node:
        is_output = bool(outputs & set(node.output))
        made = value_of_shape(node, shapes)
        if made and is_output:
            # An output is made by a node; TVM would have a shape there, which is no tensor.
            name = made[0].name
            left.append(onnx.helper.make_node("Constant", [], [name], node.name, value=made[0]))
            known[name], found = made[0], True
            continue
        if made is None and not is_output:
            made = compute_node(node, known, proto)
        if made is None:
            left.append(node)
            continue
        found = True
        for tensor in made:
            known[tensor.name] = tensor
            graph.initializer.append(tensor)
    del graph.node[:]
    graph.node.extend(left)
    return found


def value_of_shape(
    node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]
) -> list[onnx.TensorProto] | None:
    """What Shape and Size make of a fixed shape."""
    if node.op_type not in ("Shape", "Size") or node.input[0] not in shapes:
        return None
    shape = shapes[node.input[0]]
    picked = {item.name: item.i for item in node.attribute}
    value = np.array(shape[picked.get("start", 0) : picked.get("end", len(shape))], "int64")
    if node.op_type == "Size":
        value = np.array(np.prod(shape, dtype="int64"))
    return [numpy_helper.from_array(value, node.output[0])]


def compute_node(
    node: onnx.NodeProto, known: Mapping[str, onnx.TensorProto], proto: onnx.ModelProto
) -> list[onnx.TensorProto] | None:
    """The results of a node of constants, None for any other."""
    constant = all(name in known for name in node.input if name)
    inner = any(item.HasField("g") or item.graphs for item in node.attribute)
    if not constant or inner or node.op_type.startswith(("Random", "Bernoulli", "Multinomial")):
        return None
    if is_matrix_in_blocks(node, known):
        return None
    blank = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
    given = [known[name] for name in dict.fromkeys(node.input) if name]
    graph = onnx.helper.make_graph([node], "node", [], blank, given)
    model = onnx.helper.make_model(graph, opset_imports=proto.opset_import)
    try:
        values = onnx.reference.ReferenceEvaluator(model).run(None, {})
    except Exception:  # numpy's errors, and its own for what it does not know
        return None
    arrays = [np.asarray(value) for value in values]
    if any(array.dtype == object or array.size > _MOST_ELEMENTS for array in arrays):
        return None
    names = [name for name in node.output if name]
    return [numpy_helper.from_array(array, name) for array, name in zip(arrays, names, strict=True)]


# Operators that `FoldByNumpy` computes, in which IEEE 754 leaves no choice; the others are left to
# FoldConstant.
_NUMPY: dict[str, Callable[..., np.ndarray]] = {
    "relax.add": np.add,
    "relax.divide": np.divide,
    "relax.equal": np.equal,
    "relax.greater": np.greater,
    "relax.greater_equal": np.greater_equal,
    "relax.isnan": np.isnan,
    "relax.less": np.less,
    "relax.less_equal": np.less_equal,
    "relax.logical_and": np.logical_and,
    "relax.logical_not": np.logical_not,
    "relax.logical_or": np.logical_or,
    "relax.multiply": np.multiply,
    "relax.negative": np.negative,
    "relax.not_equal": np.not_equal,
    "relax.sqrt": np.sqrt,
    "relax.subtract": np.subtract,
    "relax.where": np.where,
}


def _reshaped(call: relax.Call, value: np.ndarray) -> np.ndarray:
    return value.reshape([int(dim) for dim in call.ty.shape])


def _broadcast(call: relax.Call, value: np.ndarray) -> np.ndarray:
    return np.broadcast_to(value, [int(dim) for dim in call.ty.shape])


def _permuted(call: relax.Call, value: np.ndarray) -> np.ndarray:
    axes = call.attrs.axes
    return value.transpose(None if axes is None else [int(axis) for axis in axes])


def _concatenated(call: relax.Call, *values: np.ndarray) -> np.ndarray:
    axis = call.attrs.axis
    return np.concatenate(values, None if axis is None else int(axis))


def _taken(call: relax.Call, value: np.ndarray, at: np.ndarray) -> np.ndarray | None:
    axis = call.attrs.axis
    size = value.size if axis is None else value.shape[int(axis)]
    # What is outside depends on the mode.
    inside = bool(np.all((at >= 0) & (at < size)))
    return np.take(value, at, None if axis is None else int(axis)) if inside else None


def _cast(call: relax.Call, value: np.ndarray) -> np.ndarray | None:
    # What a float outside of the integers becomes is another on each CPU.
    to_integer = value.dtype.kind == "f" and "float" not in str(call.ty.dtype)
    return None if to_integer else value.astype(str(call.ty.dtype))


# Operators that move elements or cast them; a shape may follow the constants.
_MOVES: dict[str, Callable[..., np.ndarray | None]] = {
    "relax.astype": _cast,
    "relax.broadcast_to": _broadcast,
    "relax.concat": _concatenated,
    "relax.expand_dims": _reshaped,
    "relax.permute_dims": _permuted,
    "relax.reshape": _reshaped,
    "relax.squeeze": _reshaped,
    "relax.take": _taken,
}


@mutator
class FoldByNumpy(PyExprMutator):  # type: ignore[misc]
    """Computes what TVM's importer makes of constants around every bias, Clip and batch norm, and
    of the weights of a Gemm.

    FoldConstant would compile a kernel for each of these small operations: 4 s for MobileNetV2,
    36 s for DenseNet-121. The bounds of a Clip become scalars, and later immediates in the code.
    """

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        name = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
        alone = {
            "relax.call_tir": self._clip,
            "relax.full": self._number,
            "relax.shape_to_tensor": _shape,
        }
        if name in alone:
            return alone[name](call)
        product = self._by_zero(call) if name == "relax.divide" else None
        if product is not None:
            call, name = product, product.op.name
        if (name not in _NUMPY and name not in _MOVES) or not is_static(call.ty):
            return call
        values = self._operands(call)
        if values is None:
            return call
        with np.errstate(all="ignore"):
            result = _NUMPY[name](*values) if name in _NUMPY else _MOVES[name](call, *values)
        # numpy divides integers into floats.
        dtype = str(call.ty.dtype)
        if result is None or str(result.dtype) != dtype:
            return call
        return relax.const(np.ascontiguousarray(result).reshape(result.shape), dtype)

    def visit_dataflow_var_(self, var: relax.Var) -> relax.Expr:
        """What a variable stands for, if that is a constant."""
        found = super().visit_dataflow_var_(var)
        value = self.lookup_binding(found)
        return value if isinstance(value, tvm.ir.GenericConst) else found

    def _operands(self, call: relax.Call) -> list[np.ndarray] | None:
        """The constants that a call takes, None if it takes anything else; shapes apart."""
        first = call.args[0]
        operands = list(first.fields) if isinstance(first, relax.Tuple) else [first]
        operands += [arg for arg in call.args[1:] if not isinstance(arg, relax.ShapeExpr)]
        values = []
        for operand in operands:
            value = self._constant(operand)
            if value is None:
                return None
            values.append(value)
        return values

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

    def _number(self, call: relax.Call) -> relax.Expr:
        """A tensor of one number as that number: `_by_zero` has to see it."""
        value = self._constant(call.args[1])
        if value is None or not is_static(call.ty) or math.prod(map(int, call.ty.shape)) != 1:
            return call
        return relax.const(value.reshape([1] * len(call.ty.shape)), str(call.ty.dtype))

    def _by_zero(self, call: relax.Call) -> relax.Expr | None:
        """A division by a zero as a product with infinity, to the bit; None for any other.

        A constant that is one number becomes part of the code, in which TVM divides by no zero.
        """
        value = self._constant(call.args[1])
        if value is None or value.size != 1 or value.dtype.kind != "f" or value.any():
            return None
        dtype = str(call.args[1].ty.dtype)
        infinity = relax.const(np.copysign(np.full_like(value, np.inf), value), dtype)
        made = relax.op.multiply(call.args[0], infinity)
        made = relax.Call(made.op, made.args, made.attrs, made.ty_args, call.span)
        return self.builder_.normalize(made)

    def _constant(self, expr: relax.Expr) -> np.ndarray | None:
        if isinstance(expr, relax.Var):
            expr = self.lookup_binding(expr)
        return expr.value.numpy() if isinstance(expr, tvm.ir.GenericConst) else None


def _shape(call: relax.Call) -> relax.Expr:
    """A shape as a tensor: a constant, if it is known."""
    dims = call.args[0].ty.values if isinstance(call.args[0].ty, relax.ShapeType) else None
    if dims is None or not all(isinstance(dim, tvm.tirx.IntImm) for dim in dims):
        return call
    return relax.const(np.array([int(dim) for dim in dims], "int64"), "int64")

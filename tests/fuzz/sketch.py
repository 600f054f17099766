"""A model that grows node by node, with the value of each of its tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.reference
from onnx import helper, numpy_helper
from onnx.reference.op_run import OpRun

OLDEST, NEWEST = 7, 28  # opsets
# What the pinned onnxruntime reads.
_NEWEST_OF_ONNXRUNTIME = 26

FLOATS = ("float32", "float64", "float16")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
NUMBERS = FLOATS + INTEGERS
ALL = (*NUMBERS, "bool")
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
FOUR_BITS = ("int4", "uint4", "float4_e2m1fn")
NARROW = (*FLOAT8, *FOUR_BITS, "bfloat16")
"""Types that tensors between two nodes may have, and no input and no output of a model that is
compiled."""


def dtype_of(name: str) -> np.dtype[Any]:
    """One of these types, of which numpy itself has some."""
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name) if name in NARROW else name)


# A sketch is one of small tensors.
_MOST_ELEMENTS = 6000


class InvalidNodeError(Exception):
    """ONNX has no such node, or it has no value for these inputs."""


class Sketch:
    """Nodes, the tensors between them with their values, and which are inputs or weights."""

    def __init__(self, seed: int, opset: int) -> None:
        self.random = np.random.default_rng(seed)
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.values: dict[str, np.ndarray] = {}
        self.inputs: list[str] = []
        self.weights: list[str] = []
        self.results: list[str] = []
        # Whether some elements of its inputs are NaN, infinite, denormal, huge or zeros.
        self.odd = False

    # ------------------------------------------------------------ drawing

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def one_of(self, *choices: Any) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def size(self, least: int, most: int) -> int:
        """A number from `least` to `most`, both included."""
        return int(self.random.integers(least, most + 1))

    def shape(self, rank: int | None = None, most: int = 6) -> tuple[int, ...]:
        rank = self.size(0, 4) if rank is None else rank
        return tuple(1 if self.chance(0.15) else self.size(1, most) for _ in range(rank))

    def numbers(self, dtype: str, shape: Sequence[int]) -> np.ndarray:
        """Plain numbers of any type that can be added and multiplied some times."""
        kind = np.dtype(dtype)
        if dtype == "bool":
            return self.random.random(shape) < 0.5
        if kind.kind == "f":
            return np.asarray(self.random.standard_normal(shape) * 1.5, dtype)
        least = 0 if kind.kind == "u" else -9
        return np.asarray(self.random.integers(least, 10, shape), dtype)

    # ------------------------------------------------------------ tensors

    def input(self, value: np.ndarray, *, plain: bool = False) -> str:
        """A new input; with some odd numbers if the sketch is to have such, and it is not plain."""
        name = f"in{len(self.inputs)}"
        self.inputs.append(name)
        value = np.asarray(value)
        if self.odd and not plain and value.size > 1 and value.dtype.name in FLOATS:
            value = self._with_odd_numbers(value)
        self.values[name] = value
        return name

    def _with_odd_numbers(self, value: np.ndarray) -> np.ndarray:
        made, info = value.copy(), np.finfo(value.dtype)
        least, most = info.smallest_subnormal, info.max
        odd = (np.nan, np.inf, -np.inf, 0.0, -0.0, most, -most, 3 * least, -least, info.tiny, 1e4)
        kinds = [self.one_of(*odd) for _ in range(self.size(1, 2))]
        for at in self.random.integers(0, value.size, self.size(1, 4)):
            made.flat[at] = self.one_of(*kinds)
        return made

    def const(self, value: Any, dtype: str | None = None) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(name)
        self.values[name] = np.asarray(value, dtype)
        return name

    def find(self, fits: Callable[[np.ndarray], bool]) -> str | None:
        """A tensor that is there and fits, more likely a late one."""
        found = [n for n in (*self.inputs, *self.results) if fits(self.values[n])]
        if not found:
            return None
        return found[-1] if self.chance(0.6) else found[int(self.random.integers(len(found)))]

    def tensor(
        self,
        dtypes: Sequence[str],
        rank: int | None = None,
        shape: Sequence[int] | None = None,
        least: int = 0,
    ) -> str:
        """One that is there, else a new input, with one of these types."""

        def fits(value: np.ndarray) -> bool:
            return (
                value.dtype.name in dtypes
                and value.size > 0
                and value.ndim >= least
                and (rank is None or value.ndim == rank)
                and (shape is None or value.shape == tuple(shape))
            )

        found = self.find(fits)
        if found is not None and not self.chance(0.1):
            return found
        rank = self.size(max(least, 1), 4) if rank is None else rank
        return self.input(
            self.numbers(self.one_of(*dtypes), self.shape(rank) if shape is None else shape)
        )

    def like(self, name: str, shape: Sequence[int] | None = None, *, const: float = 0.5) -> str:
        """Another tensor of the same type, of this shape."""
        value = self.values[name]
        shape = value.shape if shape is None else tuple(shape)
        found = self.find(lambda other: other.dtype == value.dtype and other.shape == shape)
        if found is not None and self.chance(0.4):
            return found
        made = self.numbers(value.dtype.name, shape)
        return self.const(made) if self.chance(const) else self.input(made)

    # ------------------------------------------------------------ nodes

    def op(
        self, op_type: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any
    ) -> list[str]:
        """A node's results; raises InvalidNodeError if it has none."""
        names = [f"t{len(self.results) + i}" for i in range(outputs)]
        given = list(inputs)
        while given and not given[-1]:
            given.pop()
        node = helper.make_node(
            op_type,
            given,
            names,
            name=f"{op_type}_{len(self.nodes)}",
            domain=domain,
            **{key: value for key, value in attributes.items() if value is not None},
        )
        self._check(node)
        model = self._of_one(node)
        values = evaluated(model, {n: self.values[n] for n in given if n in self._free(node)})
        if any(
            value.size > _MOST_ELEMENTS or value.dtype.name not in ALL + NARROW for value in values
        ):
            raise InvalidNodeError("too large, or of a type that no model has at its border")
        if any(map(_is_of_another_shape, model.graph.output, values)):
            raise InvalidNodeError("onnx's reference has another shape than onnx infers")
        self.nodes.append(node)
        for name, value in zip(names, values, strict=True):
            self.values[name] = value
            self.results.append(name)
        return names

    def _check(self, node: onnx.NodeProto) -> None:
        """Whether the opset has such a node: of one with a definition no type may be known."""
        context = onnx.checker.C.CheckerContext()
        context.ir_version = ir_of(self.opset)
        context.opset_imports = {"": self.opset, node.domain: 1 if node.domain else self.opset}
        try:
            onnx.checker.check_node(node, context)
        except onnx.checker.ValidationError as error:
            raise InvalidNodeError(str(error)) from error

    def _free(self, node: onnx.NodeProto) -> list[str]:
        return [n for n in dict.fromkeys(node.input) if n and n not in self.weights]

    def _of_one(self, node: onnx.NodeProto) -> onnx.ModelProto:
        fixed = [n for n in dict.fromkeys(node.input) if n in self.weights]
        model = self._model([node], self._free(node), fixed, list(node.output))
        try:
            return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        except (onnx.shape_inference.InferenceError, ValueError) as error:
            raise InvalidNodeError(str(error)) from error

    def _model(
        self,
        nodes: Sequence[onnx.NodeProto],
        free: Sequence[str],
        fixed: Sequence[str],
        ends: Sequence[str],
    ) -> onnx.ModelProto:
        graph = helper.make_graph(
            nodes,
            "drawn",
            [_info(name, self.values[name]) for name in free],
            [
                _info(name, self.values[name])
                if name in self.values
                else helper.make_empty_tensor_value_info(name)
                for name in ends
            ],
            [numpy_helper.from_array(self.values[name], name) for name in fixed],
        )
        domains = {node.domain for node in nodes} - {""}
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(domain, 1) for domain in sorted(domains)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=ir_of(self.opset))

    def model(self) -> onnx.ModelProto:
        """All of it; results that nothing reads, and some that something does, are its outputs."""
        read = {name for node in self.nodes for name in node.input}
        ends = [n for n in self.results if n not in read or self.chance(0.1)]
        ends = [n for n in ends if self.values[n].dtype.name in ALL and self.values[n].size]
        used = [n for n in self.inputs if n in read]
        fixed = [n for n in self.weights if n in read]
        return self._model(self.nodes, used, fixed, ends)

    def data(self) -> list[np.ndarray]:
        read = {name for node in self.nodes for name in node.input}
        return [self.values[name] for name in self.inputs if name in read]


def ir_of(opset: int) -> int:
    """The IR version that an exporter writes beside an opset."""
    return helper.find_min_ir_version_for([helper.make_opsetid("", opset)], ignore_unknown=True)


def _info(name: str, value: np.ndarray) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(name, kind, value.shape)


def evaluated(model: onnx.ModelProto, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a model by onnxruntime, else by onnx's reference.

    Raises InvalidNodeError for one that ONNX does not allow, or that neither of them can run.
    """
    # Of some operators with a definition onnx infers no type.
    if all(value.type.WhichOneof("value") for value in model.graph.output):
        try:
            onnx.checker.check_model(model, full_check=True)
        except Exception as error:  # of three libraries
            raise InvalidNodeError(str(error)) from error
    by_onnxruntime = run_by_onnxruntime(model, given)
    if by_onnxruntime is not None:
        return [
            _of_its_type(*pair) for pair in zip(by_onnxruntime, model.graph.output, strict=True)
        ]
    if (resized := _resized_as_floats(model, given)) is not None:
        return resized
    try:
        return _by_reference(model, given)
    except Exception as error:  # numpy's, and its own
        if (moved := _of_moved_truths(model, given)) is not None:
            return moved
        raise InvalidNodeError(str(error)) from error


def _of_moved_truths(
    model: onnx.ModelProto, given: dict[str, np.ndarray]
) -> list[np.ndarray] | None:
    """What an operator that only moves truth values makes of them: of 0 and 1, it is the same."""
    if model.graph.node[0].op_type not in ("OneHot", "Resize"):
        return None
    numbers, found = onnx.ModelProto(), dict(given)
    numbers.CopyFrom(model)
    for value in (*numbers.graph.input, *numbers.graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.BOOL:
            value.type.tensor_type.elem_type = onnx.TensorProto.UINT8
            found |= {value.name: given[value.name].astype("uint8")} if value.name in given else {}
    if numbers == model:
        return None
    made = run_by_onnxruntime(numbers, found)
    try:
        made = _by_reference(numbers, found) if made is None else made
    except Exception:
        return None
    return [
        value.astype(helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type))
        for value, info in zip(made, model.graph.output, strict=True)
    ]


def _of_its_type(value: np.ndarray, info: onnx.ValueInfoProto) -> np.ndarray:
    """onnxruntime (1.27) gives float8e4m3fn out as uint8."""
    kind = helper.tensor_dtype_to_np_dtype(
        info.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
    )
    return value.view(kind) if kind.name in FLOAT8 and value.dtype == np.uint8 else value


def _resized_as_floats(
    model: onnx.ModelProto, given: dict[str, np.ndarray]
) -> list[np.ndarray] | None:
    """What onnxruntime makes of a cubic Resize of integers, which it has for floats only: onnx's
    reference is off where a position lies on an element."""
    node = model.graph.node[0]
    image = given.get(node.input[0]) if node.input else None
    if node.op_type != "Resize" or image is None or image.dtype.kind not in "iu":
        return None
    if not any(item.name == "mode" and item.s == b"cubic" for item in node.attribute):
        return None
    floats = onnx.ModelProto()
    floats.CopyFrom(model)
    for value in (*floats.graph.input, *floats.graph.output):
        if value.name in (node.input[0], node.output[0]):
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    made = run_by_onnxruntime(floats, {**given, node.input[0]: image.astype("float32")})
    if made is None:
        return None
    if (np.abs(made[0] % 1 - 0.5) < 1e-4).any():
        raise InvalidNodeError("between two integers")
    info = np.iinfo(image.dtype)
    return [np.clip(np.rint(made[0]), info.min, info.max).astype(image.dtype)]


def run_by_reference(
    model: onnx.ModelProto, given: dict[str, np.ndarray]
) -> list[np.ndarray] | None:
    """The outputs by onnx's reference; of a graph that it cannot run by its nodes, those of
    `BY_REFERENCE` by the reference and the others by onnxruntime. None if one has neither."""
    try:
        return _by_reference(model, given)
    except Exception:
        return _by_nodes(model, given)


# What onnxruntime computes in a way of its own. Its Sigmoid is equal for all that is less than -18.
BY_REFERENCE = ("InstanceNormalization", "Resize", "Sigmoid", "Upsample")


# How near to an integer a linear Resize of integers, which is cut off there, may be either.
_ON_AN_EDGE = 1e-4


def _is_of_another_shape(inferred: onnx.ValueInfoProto, value: np.ndarray) -> bool:
    """As of a ConvTranspose by SAME whose kernel is smaller than its stride."""
    if not inferred.type.tensor_type.HasField("shape"):
        return False
    sizes = [dim.dim_value for dim in inferred.type.tensor_type.shape.dim]
    known = all(dim.HasField("dim_value") for dim in inferred.type.tensor_type.shape.dim)
    return len(sizes) != value.ndim or (known and tuple(sizes) != value.shape)


def run_to_either_side(
    model: onnx.ModelProto, given: dict[str, np.ndarray]
) -> list[list[np.ndarray]]:
    """The outputs where a Resize of integers, before it is cut off behind the point, or rounded,
    is a little more and a little less."""
    made = (_by_nodes(model, given, moved) for moved in (_ON_AN_EDGE, -_ON_AN_EDGE))
    return [outputs for outputs in made if outputs is not None]


def run_by_each(model: onnx.ModelProto, given: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    """The outputs with each node by what has it, as models are drawn; None if nothing has one."""
    return _by_nodes(model, given, 0.0)


def _cut_off(
    one: onnx.ModelProto, inputs: dict[str, np.ndarray], moved: float
) -> list[np.ndarray] | None:
    """A linear or cubic Resize of integers, `moved` away from 0 before it is cut off, or rounded;
    None if it is none."""
    node = one.graph.node[0]
    mode = next((item.s for item in node.attribute if item.name == "mode"), b"nearest")
    if node.op_type not in ("Resize", "Upsample") or mode == b"nearest":
        return None
    image = inputs.get(node.input[0])
    if image is None:
        return None
    if image.dtype.kind not in "iu":
        return None
    floats = onnx.ModelProto()
    floats.CopyFrom(one)
    floats.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    del floats.graph.output[:]
    floats.graph.output.append(helper.make_empty_tensor_value_info(node.output[0]))
    wide = {**inputs, node.input[0]: image.astype("float32")}
    made = run_by_onnxruntime(onnx.shape_inference.infer_shapes(floats), wide)
    if made is None:  # cubic, along three axes
        made = _by_reference(floats, wide)
    away = made[0] + np.sign(made[0]) * moved
    if mode == b"cubic":  # see edgepack/model/meanings.py
        kept = np.iinfo(image.dtype)
        away = np.clip(np.rint(away), kept.min, kept.max)
    return [away.astype(image.dtype)]


def _by_nodes(
    model: onnx.ModelProto, given: dict[str, np.ndarray], moved: float | None = None
) -> list[np.ndarray] | None:
    fixed = {tensor.name: tensor for tensor in model.graph.initializer}
    values = dict(given)
    for node in model.graph.node:
        names = [name for name in dict.fromkeys(node.input) if name]
        free = [name for name in names if name not in fixed]
        one = onnx.ModelProto()
        one.CopyFrom(model)
        one.graph.CopyFrom(
            helper.make_graph(
                [node],
                "one",
                [_info(name, values[name]) for name in free],
                [helper.make_empty_tensor_value_info(name) for name in node.output if name],
                [fixed[name] for name in names if name in fixed],
            )
        )
        inputs = {name: values[name] for name in free}
        try:
            made = None if moved is None else _cut_off(one, inputs, moved)
            if made is None and (node.op_type not in BY_REFERENCE or moved is not None):
                made = run_by_onnxruntime(onnx.shape_inference.infer_shapes(one), inputs)
            made = _by_reference(one, inputs) if made is None else made
        except Exception:
            return None
        values.update(zip([name for name in node.output if name], made, strict=True))
    return [values[value.name] for value in model.graph.output]


class Hardmax(OpRun):
    """Hardmax as it was before opset 13, of which onnx's reference has the newest only: the axes
    from `axis` on are one."""

    op_domain = ""

    def _run(self, x: np.ndarray, axis: int = 1) -> tuple[np.ndarray]:
        rows = x.reshape(int(np.prod(x.shape[: axis % x.ndim])), -1)
        largest = np.zeros_like(rows)
        np.put_along_axis(largest, rows.argmax(-1)[:, None], 1, -1)
        return (largest.reshape(x.shape),)


def _by_reference(model: onnx.ModelProto, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    opset = next((item.version for item in model.opset_import if not item.domain), 0)
    own = [Hardmax] if opset < 13 else None
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        made = onnx.reference.ReferenceEvaluator(model, new_ops=own).run(None, given)
    return [np.asarray(value) for value in made]


def _dated_back(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model in an opset that onnxruntime reads; None if it has what came later."""
    opset = next(o.version for o in model.opset_import if not o.domain)
    if opset <= _NEWEST_OF_ONNXRUNTIME:
        return model
    schemas = [onnx.defs.get_schema(n.op_type, opset) for n in model.graph.node if not n.domain]
    if any(schema.since_version > _NEWEST_OF_ONNXRUNTIME for schema in schemas):
        return None
    older = onnx.ModelProto()
    older.CopyFrom(model)
    older.ir_version = ir_of(_NEWEST_OF_ONNXRUNTIME)
    for item in older.opset_import:
        if not item.domain:
            item.version = _NEWEST_OF_ONNXRUNTIME
    return older


def run_by_onnxruntime(
    model: onnx.ModelProto, given: dict[str, np.ndarray], *, optimise: bool = False
) -> list[np.ndarray] | None:
    """The same by onnxruntime; None if it cannot, as with most on bfloat16."""
    import onnxruntime

    from edgepack.model.bfloat16 import as_rounded_floats
    from edgepack.model.meanings import as_meant
    from edgepack.model.session import cpu_session, may_saturate, without_saturation

    if as_rounded_floats(model) != model:
        return None
    older = _dated_back(as_meant(model))
    if older is None:
        return None
    model = older
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = (
        level.ORT_ENABLE_EXTENDED if optimise else level.ORT_DISABLE_ALL
    )
    try:
        exact = without_saturation(model) if may_saturate(model.graph) else model
        session = cpu_session(exact.SerializeToString(), options)
        return [np.asarray(value) for value in session.run(None, given)]
    except Exception:  # its classes are private
        return None

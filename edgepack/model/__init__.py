"""ONNX models as edgepack sees them: what is in a file, and what is wrong with it.

What the file itself tells is checked here, each mistake with its own error. Whether its operators
can be compiled is the compiler's to say: `edgepack.frontend.load`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgepack.base.errors import ModelError, UsageError, perhaps
from edgepack.model.constants import Constant, set_inputs
from edgepack.model.errors import (
    DynamicShapeError,
    NotOnnxError,
    ShapeOverrideError,
    TruncatedModelError,
)
from edgepack.model.exported import read_exported
from edgepack.model.external import load_external_data
from edgepack.model.index import GraphIndex
from edgepack.model.inference import infer_types
from edgepack.model.opsets import modernise_opset
from edgepack.model.other_formats import check_content, check_format
from edgepack.model.pools import without_empty_windows
from edgepack.model.some_shapes import some_shapes
from edgepack.model.states import bind_states, starts_of
from edgepack.model.string_labels import number_strings
from edgepack.model.structure import check_structure, subgraphs

# The element types a kernel may read or write, by their numpy names.
DTYPES = frozenset(
    {"float16", "float32", "float64", "bool"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


# A tensor of more elements is no shape, and nothing else that a shape is computed from.
_SHAPE_ELEMENTS = 1024


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """An input or output; a dimension is a number, a symbol's name, or None when unknown.

    `bounded` are the axes of a compiled model's output whose size depends on the data: at most what
    `shape` says.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]
    bounded: tuple[int, ...] = ()


def batch_of(inputs: Sequence[TensorInfo]) -> int:
    """How many photos a model takes at a time: what the inputs say that can be one."""
    sizes = [info.shape[0] for info in inputs if len(info.shape) == 4]
    return next((size for size in sizes if isinstance(size, int) and size > 0), 1)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model file, with the shapes of dynamic inputs, the inputs that are constants, and the
    states.

    `shapes` maps names to dimensions, `constants` names to values: see `set_inputs`. `states` maps
    inputs to outputs: see `bind_states`.
    """

    path: Path
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    constants: Mapping[str, Constant] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Whoever comes from Python may give a str.
        object.__setattr__(self, "path", Path(self.path))


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model that was read, with the shapes that were given for its inputs.

    `proto` is an `onnx.ModelProto` whose graph inputs are the real inputs only.
    `sha256` is the file's own hash; with external data, the hash of the hashes
    of all its files. `size_bytes` is the size of all of them. `words` are what the numbers of
    outputs stand for that are words in the file: see `edgepack.model.string_labels`. `states` are
    the outputs that inputs keep until the next inference, by the inputs' names; `starts` what those
    of them that do not begin with zeros begin with.
    """

    path: Path
    name: str
    proto: Any
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    sha256: str
    size_bytes: int
    words: tuple[str, ...] = ()
    states: Mapping[str, str] = field(default_factory=dict)
    starts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> tuple[TensorInfo, ...]:
        """The inputs that are no states."""
        return tuple(info for info in self.inputs if info.name not in self.states)


def read_model(spec: ModelSpec) -> LoadedModel:
    """Read a model and give its inputs the shapes and values of `spec`.

    Dimensions may be left without a value.

    Raises `UsageError` for a file that is not there, `NotOnnxError`, `TruncatedModelError`,
    `InvalidModelError`, `ShapeOverrideError`, `InputValueError`, and what `load_external_data`
    raises. `StateError` says what is wrong with `states`.
    """
    proto, files = _read(spec.path)
    _drop_initialized_inputs(proto)
    proto = modernise_opset(spec.path, proto)
    _drop_question_marks(proto.graph)
    words = number_strings(proto)
    _fix_shapes(spec.path, proto, spec.shapes)
    set_inputs(spec.path, proto.graph, spec.constants)
    proto = without_empty_windows(proto)
    states = bind_states(spec.path, proto, spec.states)
    _infer_outputs(proto)
    return LoadedModel(
        path=spec.path,
        name=spec.path.stem,
        proto=proto,
        inputs=tuple(tensor_info(value) for value in proto.graph.input),
        outputs=tuple(tensor_info(value) for value in proto.graph.output),
        sha256=_sha256(files),
        size_bytes=sum(file.stat().st_size for file in files),
        words=words,
        states=states,
        starts=starts_of(spec.path, proto, states),
    )


def check_model(model: LoadedModel) -> None:
    """Raise if the model's inputs and outputs are nothing that can be fed and read.

    Raises `ModelError` for one that is no tensor of `DTYPES`, and `DynamicShapeError`, which
    names every input and dimension without a value.
    """
    _check_dtypes(model.path, model.proto.graph)
    _check_static(model.path, model.proto.graph)


def operator_name(node: Any) -> str:
    """`Conv`, or `com.microsoft::FastGelu` for a node of another domain."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    return f"{domain}::{node.op_type}" if domain else str(node.op_type)


def opset_of(proto: Any) -> int:
    """Version of the standard operator set that the model uses."""
    return next((int(o.version) for o in proto.opset_import if o.domain in ("", "ai.onnx")), 1)


def infer_shapes(proto: Any, *, with_weights: bool = False, values: bool = True) -> Any:
    """The model with the shapes and types of what is inside, as far as onnx can tell.

    With `values` also those that the model computes, which takes the memory of what it computes.
    Its weights become inputs, all but those small enough to be shapes, unless they are asked for:
    onnx copies all of a model three times.
    """
    import onnx

    light = proto if with_weights else _without_weights(proto)
    try:
        return infer_types(light, data_prop=values)
    except (onnx.shape_inference.InferenceError, ValueError):
        return light


def _without_weights(proto: Any) -> Any:
    """The model with an input, which has a shape and no values, for every tensor of many elements.

    Only nodes, tensors and functions are kept.
    """
    import onnx

    graph = proto.graph
    light = onnx.ModelProto(ir_version=proto.ir_version)
    light.opset_import.extend(proto.opset_import)
    light.functions.extend(proto.functions)
    light.graph.name = graph.name
    for part in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(light.graph, part).extend(getattr(graph, part))
    inputs = {value.name for value in graph.input}
    for tensor in graph.initializer:
        if math.prod(tensor.dims) <= _SHAPE_ELEMENTS:
            light.graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            kind = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            light.graph.input.append(kind)
    return light


def walk_nodes(graph: Any) -> Iterator[Any]:
    """All nodes of a graph and of its subgraphs."""
    for node in graph.node:
        yield node
        for subgraph in subgraphs(node):
            yield from walk_nodes(subgraph)


# ---------------------------------------------------------------- reading


def read_tflite(path: Path) -> Any:
    """See `edgepack.model.tflite`, which needs numpy: few commands read a model."""
    from edgepack.model import tflite

    return tflite.read_tflite(path)


# Formats that are read as ONNX; PyTorch is an extra (see pyproject.toml).
_READERS: dict[str, Callable[[Path], Any]] = {
    ".pt": read_exported,
    ".pt2": read_exported,
    ".pth": read_exported,
    ".tflite": read_tflite,
}


def _read(path: Path) -> tuple[Any, list[Path]]:
    """The model with its external data, and the files it is made of."""
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    if not path.is_file():
        raise UsageError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    if (reader := _READERS.get(path.suffix)) is not None:
        proto = reader(path)
        check_structure(path, proto)
        return proto, [path]
    check_format(path)
    data = path.read_bytes()
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
        readable = True
    except DecodeError:
        readable = False
    if not readable or not proto.graph.node or not proto.opset_import:
        check_content(path, data)
        if _ends_early(data, complete=readable):
            raise TruncatedModelError(
                f"{path}: the file ends in the middle of the model ({len(data)} bytes)",
                hint="copy or download it again",
            )
        raise NotOnnxError(
            f"{path}: not an ONNX model",
            hint="edgepack also reads TFLite models (.tflite) and exported PyTorch programs (.pt2)",
        )
    files = load_external_data(path, proto)
    check_structure(path, proto)
    return proto, [path, *files]


def _ends_early(data: bytes, *, complete: bool) -> bool:
    """Whether `data` starts like a ModelProto and stops before its end.

    Walks the top-level protobuf fields. `complete` says that the bytes can be
    decoded: then the cut, if it is one, lies between two fields.
    """
    varint, fixed64, delimited, fixed32 = 0, 1, 2, 5
    # https://github.com/onnx/onnx/blob/main/onnx/onnx.proto, message ModelProto
    wire_types = {1: varint, 5: varint} | dict.fromkeys((2, 3, 4, 6, 7, 8, 14, 20, 25), delimited)
    at = 0

    def read_varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    fields = 0
    try:
        while at < len(data):
            key = read_varint()
            if wire_types.get(key >> 3) != key & 7:
                return False
            fields += 1
            if key & 7 == varint:
                read_varint()
            elif key & 7 in (fixed64, fixed32):
                return False
            else:
                size = read_varint()
                at += size
    except IndexError:
        return fields > 0
    return fields > 0 and (complete or at > len(data))


def _sha256(files: Sequence[Path]) -> str:
    hashes = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


# ---------------------------------------------------------------- shapes


def _drop_initialized_inputs(proto: Any) -> None:
    """Models before IR version 4 list their weights among the inputs: weights they are."""
    proto.ir_version = max(proto.ir_version, 4)
    weights = {tensor.name for tensor in proto.graph.initializer}
    real = [value for value in proto.graph.input if value.name not in weights]
    del proto.graph.input[:]
    proto.graph.input.extend(real)


# What exporters (Paddle's is one) call dimensions that they do not know: no two need be equal.
_UNKNOWN = frozenset(("?", "-1", "None"))


def _drop_question_marks(graph: Any) -> None:
    """A dimension that is called unknown has no name: it is not equal to another such."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in _UNKNOWN:
                dim.ClearField("dim_param")
    for node in graph.node:
        for body in subgraphs(node):
            _drop_question_marks(body)


def _fix_shapes(path: Path, proto: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Write the given shapes into the graph, and infer what follows from them."""
    import onnx

    graph = proto.graph
    inputs = GraphIndex(graph).inputs
    symbols: dict[str, tuple[int, str]] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            raise ShapeOverrideError(
                f"{path}: shape given for '{name}', which is not an input",
                hint=perhaps(name, inputs),
            )
        declared = tensor_info(inputs[name]).shape
        has_rank = inputs[name].type.tensor_type.HasField("shape")
        if has_rank and len(declared) != len(shape):
            raise ShapeOverrideError(
                f"{path}: shape {_text(shape)} given for input '{name}', "
                f"which has {len(declared)} dimensions: {_text(declared)}"
            )
        if any(dim < 1 for dim in shape):
            raise ShapeOverrideError(
                f"{path}: shape {_text(shape)} given for input '{name}': "
                "every dimension must be 1 or more"
            )
        for dim, value in zip(declared, shape, strict=False):
            if isinstance(dim, str):
                known, by = symbols.setdefault(dim, (value, name))
                if known != value:
                    raise ShapeOverrideError(
                        f"{path}: dimension '{dim}' is {known} in input '{by}' "
                        f"and {value} in input '{name}'"
                    )
    if not shapes:
        return
    # Whoever comes from Python may give a list.
    batches = {
        (tensor_info(inputs[name]).shape[:1], tuple(shape[:1])) for name, shape in shapes.items()
    }
    for name, value in inputs.items():
        dims = shapes.get(name) or [
            symbols[dim][0] if isinstance(dim, str) and dim in symbols else dim
            for dim in tensor_info(value).shape
        ]
        _set_shape(value, dims)
    # What was recorded for the old shapes would contradict the new ones.
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    _fit_reshapes(proto, batches)
    try:
        fitting = infer_types(proto, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        if not _infers_all(proto):
            return
        raise ShapeOverrideError(
            f"{path}: the model cannot have the shapes "
            + ", ".join(f"{name}={_text(shape)}" for name, shape in shapes.items())
            + f"\n{_last_line(str(error))}"
        ) from None
    graph.CopyFrom(fitting.graph)


def _fit_reshapes(proto: Any, batches: set[tuple[Any, Any]]) -> None:
    """Have Reshapes into which an exporter wrote a batch have the one that is there now.

    `batches` are the first sizes of inputs, before and now: they have to be the same for all. A
    Reshape is changed only if its elements are not as many as there are, and are then.
    """
    import numpy as np
    import onnx

    graph = proto.graph
    if len(batches) != 1 or not all(map(all, batches)):
        return
    ((before,), (now,)) = batches.pop()
    if before == now or not isinstance(before, int):
        return
    reshapes = [node for node in graph.node if node.op_type == "Reshape"]
    names = {node.input[1] for node in reshapes}
    targets = {
        one.name: onnx.numpy_helper.to_array(one).ravel()
        for one in graph.initializer
        if one.name in names
    }
    left = [node for node in reshapes if before in targets.get(node.input[1], ())[:1]]
    while left:
        shapes = {
            value.name: tensor_info(value).shape
            for value in (*infer_shapes(proto).graph.value_info, *graph.input)
        }
        wrong = []
        for node in left:
            shape, target = shapes.get(node.input[0], (None,)), targets[node.input[1]]
            sizes = [size for size in shape if isinstance(size, int)]
            known = len(sizes) == len(shape) and bool((target > 0).all())
            if known and math.prod(sizes) * before == int(target.prod()) * now:
                wrong.append((node, target))
        for node, target in wrong:
            name = f"{node.input[1]}/batch{now}"
            if name not in targets:
                targets[name] = np.concatenate([[now], target[1:]]).astype(np.int64)
                graph.initializer.append(onnx.numpy_helper.from_array(targets[name], name))
            node.input[1] = name
            left.remove(node)
        if not wrong:
            return


# From this opset on onnx follows the sizes that a model computes.
_FOLLOWS_SIZES = 14


def _infer_outputs(proto: Any) -> None:
    """Give outputs of which nothing is known the shape that follows from the inputs', if one does.

    Paddle's exporters write Shape, Cast and Concat in front of a Reshape, which is the end of what
    onnx knows in the opsets that they use: it is asked about the same model in a later one.
    """
    import onnx

    unknown = [v for v in proto.graph.output if not v.type.tensor_type.HasField("shape")]
    if not unknown or opset_of(proto) >= _FOLLOWS_SIZES:
        return
    try:
        newer = onnx.version_converter.convert_version(_without_weights(proto), _FOLLOWS_SIZES)
    except RuntimeError:  # what it says of operators that it cannot convert
        return
    known = {value.name: value for value in infer_shapes(newer, with_weights=True).graph.output}
    for value in unknown:
        shape = known[value.name].type.tensor_type.shape
        if shape.dim and all(dim.dim_value > 0 for dim in shape.dim):
            value.type.tensor_type.shape.CopyFrom(shape)


def _infers_all(proto: Any) -> bool:
    """Whether all operators of a model are ONNX's own, or functions of the model.

    Nothing can be inferred through others; those of ai.onnx.ml have results without a type.
    """
    import onnx

    own = {(function.domain, function.name) for function in proto.functions}
    bodies = (*walk_nodes(proto.graph), *(node for f in proto.functions for node in f.node))
    return all(
        (node.domain, node.op_type) in own
        or (node.domain in ("", "ai.onnx") and onnx.defs.has(node.op_type))
        for node in bodies
    )


def _set_shape(value: Any, dims: Sequence[int | str | None]) -> None:
    shape = value.type.tensor_type.shape
    del shape.dim[:]
    for dim in dims:
        new = shape.dim.add()
        if isinstance(dim, int):
            new.dim_value = dim
        elif dim is not None:
            new.dim_param = dim


def _check_static(path: Path, graph: Any) -> None:
    problems = []
    inputs: dict[str, Sequence[int | str | None]] = {}
    for value in graph.input:
        info = tensor_info(value)
        if not value.type.tensor_type.HasField("shape"):
            problems.append(f"input '{info.name}' has no shape")
            inputs[info.name] = (1, 3, "height", "width")
            continue
        free = [(axis, dim) for axis, dim in enumerate(info.shape) if not isinstance(dim, int)]
        inputs[info.name] = info.shape
        if not free:
            continue
        names = ", ".join(f"{axis} ('{dim}')" if dim else f"{axis}" for axis, dim in free)
        problems.append(f"input '{info.name}' {_text(info.shape)}: no value for dimension {names}")
    if problems:
        example = " ".join(
            f"--shape {name}={','.join(map(str, shape))}"
            for name, shape in some_shapes(graph, inputs).items()
        )
        raise DynamicShapeError(
            f"{path}: dynamic shape: " + "; ".join(problems),
            hint=f"give every dimension a value, for instance {example}",
        )


_NO_WORDS = (
    "let the application make numbers of words before the model, and words of numbers after it; "
    "labels that the model itself holds become numbers on their own"
)


def _check_dtypes(path: Path, graph: Any) -> None:
    for kind, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            if not value.type.HasField("tensor_type"):
                raise ModelError(f"{path}: {kind} '{value.name}' is not a tensor")
            dtype = tensor_info(value).dtype
            if dtype not in DTYPES:
                can_be = f"can be: {', '.join(sorted(DTYPES))}"
                raise ModelError(
                    f"{path}: {kind} '{value.name}' has element type {dtype}",
                    hint=_NO_WORDS if dtype == "string" else can_be,
                )


def tensor_info(value: Any) -> TensorInfo:
    """What an `onnx.ValueInfoProto` says of a tensor."""
    tensor = value.type.tensor_type
    return TensorInfo(
        name=value.name,
        dtype=dtype_name(tensor.elem_type),
        shape=tuple(
            # Old exporters write 0 for a dimension they do not know.
            dim.dim_value if dim.dim_value > 0 else (dim.dim_param or None)
            for dim in tensor.shape.dim
        ),
    )


def dtype_name(element_type: int) -> str:
    """ONNX's number of an element type by its numpy name; "undefined" and "string" have none."""
    from onnx import TensorProto, helper

    if element_type == TensorProto.UNDEFINED:
        return "undefined"
    if element_type == TensorProto.STRING:
        return "string"
    if element_type not in TensorProto.DataType.values():
        return f"number {element_type}"
    return str(helper.tensor_dtype_to_np_dtype(element_type))


def _text(shape: Sequence[int | str | None]) -> str:
    return "(" + ", ".join("?" if dim is None else str(dim) for dim in shape) + ")"


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return f"  {lines[-1].strip()}" if lines else ""

"""TFLite models as ONNX ones, so that all that follows knows one format.

TFLite keeps images as NHWC, ONNX's convolutions want NCHW: each tensor is kept in the form in which
it was made, and turned where somebody needs the other. Quantized tensors become QuantizeLinear with
DequantizeLinear behind it, between which operators work on floats. Variables, which keep a
model's state from one run to the next, become an input and an output each, declared as a state that
begins with what the model assigns to it once, else with zero: the zero point, if it is quantized.

The schema: https://github.com/tensorflow/tensorflow/blob/master/tensorflow/compiler/mlir/lite/schema/schema.fbs
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from edgepack.base.errors import ModelError
from edgepack.base.text import one_line
from edgepack.model.errors import NotOnnxError
from edgepack.model.session import cpu_session
from edgepack.model.states import declare
from edgepack.model.tflite_sparse import densify

Array = npt.NDArray[Any]

_IDENTIFIER = b"TFL3"
_OPSET = 17
_TO_NCHW, _TO_NHWC = (0, 3, 1, 2), (0, 2, 3, 1)
_QUANTIZED = ("int8", "uint8", "int16")
# TensorType of the schema; what is not here (strings, complex numbers) cannot be compiled.
_DTYPES = {
    0: "float32",
    1: "float16",
    2: "int32",
    3: "uint8",
    4: "int64",
    6: "bool",
    7: "int16",
    9: "int8",
    10: "float64",
    12: "uint64",
    13: "resource",
    15: "uint32",
    16: "uint16",
}
# ActivationFunctionType: none, ReLU, ReLU between -1 and 1, ReLU6, tanh.
_NONE, _RELU, _RELU_N1_TO_1, _RELU6, _TANH = range(5)
_SAME = 0  # Padding
_MIRROR = {0: "reflect", 1: "symmetric"}  # MirrorPadMode

# Operators with one input that are called otherwise in ONNX, or equally in capitals.
_UNARY = {
    "ABS": "Abs",
    "CEIL": "Ceil",
    "COS": "Cos",
    "ELU": "Elu",
    "EXP": "Exp",
    "FLOOR": "Floor",
    "HARD_SWISH": "HardSwish",
    "LOG": "Log",
    "LOGICAL_NOT": "Not",
    "LOGISTIC": "Sigmoid",
    "NEG": "Neg",
    "RELU": "Relu",
    "ROUND": "Round",
    "SIGN": "Sign",
    "SIN": "Sin",
    "SQRT": "Sqrt",
    "TANH": "Tanh",
}
_BINARY = {
    "ADD": "Add",
    "DIV": "Div",
    "EQUAL": "Equal",
    "GREATER": "Greater",
    "GREATER_EQUAL": "GreaterOrEqual",
    "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual",
    "LOGICAL_AND": "And",
    "LOGICAL_OR": "Or",
    "MAXIMUM": "Max",
    "MINIMUM": "Min",
    "MUL": "Mul",
    "POW": "Pow",
    "SUB": "Sub",
}
_REDUCE = {
    "MEAN": "ReduceMean",
    "REDUCE_MAX": "ReduceMax",
    "REDUCE_MIN": "ReduceMin",
    "REDUCE_PROD": "ReduceProd",
    "SUM": "ReduceSum",
}


class NotTfliteError(NotOnnxError):
    """The file is no TFLite model, or a damaged one."""


class UnsupportedTfliteError(ModelError):
    """The model has operators, or forms of them, for which there is no conversion."""


def read_tflite(path: Path) -> Any:
    """The TFLite model at `path` as an `onnx.ModelProto`.

    Inputs and outputs keep their names, types and shapes; a batch that the file leaves open is 1.
    Raises `NotTfliteError`, and `UnsupportedTfliteError` naming all operators that have no
    conversion.
    """
    import tflite  # type: ignore[import-untyped]

    data = path.read_bytes()
    if data[4:8] != _IDENTIFIER:
        raise NotTfliteError(f"{path}: not a TFLite model: it has no {_IDENTIFIER.decode()!r}")
    from onnx.shape_inference import InferenceError

    try:
        return _Graph(path, tflite, data).convert()
    except _RefusedError as error:
        raise UnsupportedTfliteError(f"{path}: {error}") from None
    except (
        InferenceError,
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        # Flatbuffers checks nothing: offsets that lead nowhere end as any of these.
        raise NotTfliteError(
            f"{path}: a damaged TFLite model ({type(error).__name__}: {one_line(error)})",
            hint="copy or make it again",
        ) from error


class _RefusedError(Exception):
    """An operator, or this form of it, has no conversion."""


class _Operator:
    """One operator of the file: its name, inputs, outputs and options."""

    def __init__(self, tflite: ModuleType, name: str, raw: Any) -> None:
        self.name = name
        self.inputs = [int(i) for i in raw.InputsAsNumpy()] if raw.InputsLength() else []
        self.outputs = [int(i) for i in raw.OutputsAsNumpy()] if raw.OutputsLength() else []
        self._tflite = tflite
        self.custom_options = (
            raw.CustomOptionsAsNumpy().tobytes() if raw.CustomOptionsLength() else b""
        )
        self._table = raw.BuiltinOptions()

    def options(self, kind: str) -> Any:
        """The options as the schema's class of this name; defaults if there are none."""
        found = getattr(self._tflite, kind)()
        if self._table is None:
            raise _RefusedError("it has no options")
        found.Init(self._table.Bytes, self._table.Pos)
        return found

    def __contains__(self, index: int) -> bool:
        """Whether there is an input at `index`; those left out at the end are -1, or not there."""
        return index < len(self.inputs) and self.inputs[index] >= 0


class _Graph:
    """One conversion: the file's tensors, and the ONNX nodes made so far."""

    def __init__(self, path: Path, tflite: ModuleType, data: bytes, subgraph: int = 0) -> None:
        self.path = path
        self.tflite = tflite
        self.data = data
        self.model = tflite.Model.GetRootAs(data, 0)
        if not 0 <= subgraph < self.model.SubgraphsLength():
            raise ValueError(f"it has no subgraph {subgraph}")
        self.graph = self.model.Subgraphs(subgraph)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[tuple[str, str, str, tuple[int, ...]]] = []
        # Of a tensor's number: the ONNX value that holds it as it is, and as NCHW.
        self.plain: dict[int, str] = {}
        self.nchw: dict[int, str] = {}
        # Of a quantized tensor's number: the integers, in either layout.
        self.raw: dict[int, str] = {}
        self.raw_nchw: dict[int, str] = {}
        self.folded: dict[int, Array] = {}
        self.variables: dict[int, str] = {}  # a handle's tensor -> the variable's name
        self.shared: dict[str, tuple[bytes, bytes]] = {}  # that -> what the file calls it
        self.states: dict[str, int] = {}  # a variable's name -> the tensor that holds it now
        self.read: dict[str, int] = {}  # a variable's name -> the tensor that first reads it
        self.starts: dict[tuple[bytes, bytes], Array] = {}  # what is assigned once, by the file's
        self.made = 0
        self.names: set[str] = set()
        self.called: dict[int, str] = {}
        self._opcodes = {
            number: name
            for name, number in vars(tflite.BuiltinOperator).items()
            if isinstance(number, int)
        }

    # ------------------------------------------------------------ the file

    def tensor(self, number: int) -> Any:
        return self.graph.Tensors(number)

    def shape(self, number: int) -> tuple[int, ...]:
        tensor = self.tensor(number)
        sizes = tuple(int(n) for n in tensor.ShapeAsNumpy()) if tensor.ShapeLength() else ()
        # onnx ends the whole process at one that is negative.
        if any(size < 0 for size in sizes):
            raise ValueError(f"a tensor of shape {list(sizes)}")
        return sizes

    def dtype(self, number: int) -> str:
        kind = self.tensor(number).Type()
        if kind not in _DTYPES:
            raise _RefusedError(f"its tensors are of a type that is not known: {kind}")
        return _DTYPES[kind]

    def is_quantized(self, number: int) -> bool:
        found = self.tensor(number).Quantization()
        return (
            self.dtype(number) in (*_QUANTIZED, "int32")
            and found is not None
            and found.ScaleLength() > 0
        )

    def scales(self, number: int) -> tuple[Array, Array]:
        """Scale and zero point: one of each, or one per channel."""
        found = self.tensor(number).Quantization()
        scale = np.asarray(found.ScaleAsNumpy(), np.float32)
        zero = np.zeros(scale.shape, np.int64)
        if found.ZeroPointLength():
            zero = np.broadcast_to(np.asarray(found.ZeroPointAsNumpy(), np.int64), scale.shape)
        zero = zero.astype(self.dtype(number))
        return (scale.reshape(()), zero.reshape(())) if scale.size == 1 else (scale, zero)

    def constant(self, number: int) -> Array | None:
        """The values that the file holds for a tensor, None if it is computed."""
        if number in self.folded:
            return self.folded[number]
        buffer = self.model.Buffers(self.tensor(number).Buffer())
        if buffer is None or not buffer.DataLength():
            return None
        values = np.frombuffer(buffer.DataAsNumpy().tobytes(), self.dtype(number))
        sparsity = self.graph.Tensors(number).Sparsity()
        if sparsity is not None:
            return densify(self.tflite, sparsity, values, self.shape(number))
        return values.reshape(self.shape(number))

    def need(self, op: _Operator, index: int, what: str) -> Array:
        """A constant input; it is refused if it is computed."""
        found = self.constant(op.inputs[index]) if index in op else None
        if found is None:
            raise _RefusedError(f"its {what} is computed while the model runs")
        return found

    def operators(self) -> list[_Operator]:
        found = []
        for index in range(self.graph.OperatorsLength()):
            raw = self.graph.Operators(index)
            code = self.model.OperatorCodes(raw.OpcodeIndex())
            # Since version 3a the code lies in a wider field, and 127 in the old one.
            number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
            name = self._opcodes.get(number, f"operator {number}")
            if name == "CUSTOM":
                custom = code.CustomCode()
                name = f"CUSTOM {custom.decode(errors='replace') if custom else ''}"
            found.append(_Operator(self.tflite, name, raw))
        return found

    # ------------------------------------------------------------ ONNX

    def name_of(self, number: int) -> str:
        """A tensor's name, made unique."""
        if number not in self.called:
            raw = self.tensor(number).Name()
            name = raw.decode(errors="replace") if raw else f"t{number}"
            while name in self.names:
                name += f"_{number}"
            self.names.add(name)
            self.called[number] = name
        return self.called[number]

    def emit(
        self, operator: str, *inputs: str, outputs: int = 1, near: str = "", **attributes: Any
    ) -> str:
        """One more node; the name of its (first) result."""
        from onnx import helper

        self.made += 1
        name = f"{near or operator}_{self.made}"
        results = [f"{name}.{i}" if i else name for i in range(outputs)]
        self.nodes.append(helper.make_node(operator, inputs, results, name=name, **attributes))
        return name

    def weight(self, values: Any, dtype: str | None = None) -> str:
        from onnx import numpy_helper

        self.made += 1
        array = np.ascontiguousarray(np.asarray(values, dtype))
        array = array.reshape(np.asarray(values).shape)
        name = f"constant_{self.made}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def floats(self, values: Array, number: int, axis: int = 0) -> str:
        """A weight of tensor `number`, maybe transposed by now, as floats; `axis` of its scales."""
        if not self.is_quantized(number) or values.dtype.kind == "f":
            return self.weight(values)
        scale, zero = self.scales(number)
        names = [self.weight(values), self.weight(scale), self.weight(zero)]
        return self.emit("DequantizeLinear", *names, axis=axis if scale.ndim else 1)

    def get(self, number: int) -> str:
        """The value of a tensor as the file has it; floats if it is quantized."""
        if number not in self.plain:
            if number in self.raw_nchw:
                self.put_raw(number, self.get_raw(number))
            elif number in self.nchw:
                self.plain[number] = self.emit("Transpose", self.nchw[number], perm=_TO_NHWC)
            else:
                values = self.constant(number)
                if values is None:
                    raise _RefusedError(f"it reads '{self.name_of(number)}', which nothing writes")
                found = self.tensor(number).Quantization()
                axis = found.QuantizedDimension() if found is not None else 0
                self.plain[number] = self.floats(values, number, axis)
        return self.plain[number]

    def get_nchw(self, number: int) -> str:
        """The same of an image, with its channels before its rows."""
        if number not in self.nchw:
            if number in self.raw:  # what is dequantized lies right before its use
                turned = self.emit("Transpose", self.raw[number], perm=_TO_NCHW)
                self.put_raw(number, turned, nchw=True)
            else:
                self.nchw[number] = self.emit("Transpose", self.get(number), perm=_TO_NCHW)
        return self.nchw[number]

    def get_raw(self, number: int) -> str:
        """A tensor as it is, integers if it is quantized."""
        if not self.has_steps(number):
            return self.get(number)
        if number not in self.raw:
            if number in self.raw_nchw:
                self.raw[number] = self.emit("Transpose", self.raw_nchw[number], perm=_TO_NHWC)
            elif (values := self.constant(number)) is not None:
                self.raw[number] = self.weight(values)
            else:
                raise _RefusedError(f"it reads '{self.name_of(number)}', which nothing writes")
        return self.raw[number]

    def has_steps(self, number: int) -> bool:
        """Whether a tensor is one of quantized values, with one scale."""
        return (
            self.is_quantized(number)
            and self.dtype(number) in _QUANTIZED
            and self.tensor(number).Quantization().ScaleLength() == 1
        )

    def put(self, number: int, value: str, *, nchw: bool = False) -> None:
        """A tensor's value: what an operator made of floats, quantized if the tensor is."""
        if self.has_steps(number):
            scale, zero = (self.weight(part) for part in self.scales(number))
            self.put_raw(number, self.emit("QuantizeLinear", value, scale, zero), nchw=nchw)
        else:
            (self.nchw if nchw else self.plain)[number] = value

    def put_raw(self, number: int, value: str, *, nchw: bool = False) -> None:
        """A tensor as it is: of a quantized one its integers."""
        if self.has_steps(number):
            (self.raw_nchw if nchw else self.raw)[number] = value
            scale, zero = (self.weight(part) for part in self.scales(number))
            value = self.emit("DequantizeLinear", value, scale, zero)
        (self.nchw if nchw else self.plain)[number] = value

    def moved(self, op: _Operator, numbers: Sequence[int]) -> tuple[list[str], Callable[..., None]]:
        """The inputs of an operator that only moves values, and what takes its results.

        As integers, where all of them have the scale of the results.
        """

        def steps(number: int) -> tuple[Any, ...] | None:
            return tuple(map(float, self.scales(number))) if self.has_steps(number) else None

        if len({steps(number) for number in (*numbers, *op.outputs)}) == 1:
            return [self.get_raw(number) for number in numbers], self.put_raw
        return [self.get(number) for number in numbers], self.put

    def activated(self, value: str, activation: int) -> str:
        """The value after the activation function that an operator has built in."""
        if activation == _NONE:
            return value
        if activation == _RELU:
            return self.emit("Relu", value)
        if activation == _TANH:
            return self.emit("Tanh", value)
        limits = {_RELU6: (0.0, 6.0), _RELU_N1_TO_1: (-1.0, 1.0)}.get(activation)
        if limits is None:
            raise _RefusedError(f"its activation {activation} is not known")
        return self.emit("Clip", value, *(self.weight(limit, "float32") for limit in limits))

    def alike(self, op: _Operator) -> tuple[list[str], bool]:
        """The inputs of an element-wise operator, all in one layout, and whether that is NCHW."""
        # What is not an image must go through the dimension of channels alone, or none.
        fits = all(
            len(self.shape(i)) == 4 or np.prod(self.shape(i)) == 1 or len(self.shape(i)) == 1
            for i in op.inputs
        )
        if not fits or not any(i in self.nchw and i not in self.plain for i in op.inputs):
            return [self.get(i) for i in op.inputs], False
        values = []
        for i in op.inputs:
            if len(self.shape(i)) == 4:
                values.append(self.get_nchw(i))
            elif np.prod(self.shape(i)) == 1:
                values.append(self.get(i))
            else:
                values.append(self.emit("Reshape", self.get(i), self.weight([-1, 1, 1], "int64")))
        return values, True

    # ------------------------------------------------------------ all of it

    def convert(self) -> Any:
        import onnx
        from onnx import helper

        for number in self._ends(self.graph.InputsAsNumpy, self.graph.InputsLength):
            self.input(number)
        refused = []
        for op in self.operators():
            try:
                self.operator(op)
            except _RefusedError as error:
                refused.append(f"{op.name}: {error}")
            except KeyError as error:
                refused.append(f"{op.name}: {error}")
            if refused:
                # What comes after it may only fail for lack of its result.
                refused += [
                    f"{other.name}: it has no conversion"
                    for other in self.operators()
                    if _converter(other.name) is None and not refused[0].startswith(other.name)
                ]
                raise UnsupportedTfliteError(
                    f"{self.path}: cannot be converted: " + "; ".join(dict.fromkeys(refused)),
                    hint="export the model to ONNX with its own framework's exporter",
                )
        try:
            for number in self._ends(self.graph.OutputsAsNumpy, self.graph.OutputsLength):
                self.output(self.name_of(number), number)
            for name, number in self.states.items():
                self.output(f"{name}.next", number)
        except _RefusedError as error:
            raise NotTfliteError(f"{self.path}: {error}") from None
        values = [
            helper.make_tensor_value_info(name, _onnx_type(dtype), shape)
            for name, _, dtype, shape in self.outputs
        ]
        for name, value, _, _ in self.outputs:
            self.nodes.append(helper.make_node("Identity", [value], [name], name=f"{name}.out"))
        graph = helper.make_graph(
            self.nodes, self.path.stem, self.inputs, values, initializer=self.weights
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", _OPSET)],
            ir_version=8,
            producer_name="tflite",
        )
        declare(model, {name: (f"{name}.next", self.start(name)) for name in self.read})
        return onnx.shape_inference.infer_shapes(model, data_prop=True)

    @staticmethod
    def _ends(numbers: Callable[[], Any], length: Callable[[], int]) -> list[int]:
        return [int(n) for n in numbers()] if length() else []

    def input(self, number: int, name: str | None = None) -> None:
        """An input of the model, which keeps its own type."""
        from onnx import helper

        name = name or self.name_of(number)
        dtype = self.dtype(number)
        info = helper.make_tensor_value_info(name, _onnx_type(dtype), self.shape(number))
        self.inputs.append(info)
        self.put_raw(number, name)

    def start(self, name: str) -> Array | None:
        """What a variable is before the first run; None: zeros."""
        number = self.read[name]
        start = self.starts.get(self.shared[name])
        if start is None:
            steps = self.scales(number)[1] if self.has_steps(number) else np.zeros((), np.int64)
            return steps if steps.any() else None
        if start.dtype != self.dtype(number) or start.shape != self.shape(number):
            raise _RefusedError(
                f"variable '{name}' is {self.dtype(number)} {self.shape(number)}, but begins as "
                f"{start.dtype} {start.shape}"
            )
        return start

    def assigned(self) -> dict[tuple[bytes, bytes], Array]:
        """What this subgraph, which takes nothing, assigns to variables."""
        import onnxruntime

        model = self.convert()
        if self.inputs or not self.states:
            raise _RefusedError("what it calls is more than assigning constants")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = cpu_session(model.SerializeToString(), options)
        values = session.run([f"{name}.next" for name in self.states], {})
        return {self.shared[name]: made for name, made in zip(self.states, values, strict=True)}

    def output(self, name: str, number: int) -> None:
        """An output of the model, in the tensor's own type."""
        value = self.get_raw(number)
        self.outputs.append((name, value, self.dtype(number), self.shape(number)))

    def operator(self, op: _Operator) -> None:
        convert = _converter(op.name)
        if convert is None:
            raise _RefusedError("it has no conversion")
        convert(self, op)


# ---------------------------------------------------------------- operators


def _unary(graph: _Graph, op: _Operator) -> None:
    _each(graph, op, lambda value: graph.emit(_UNARY[op.name], value))


def _each(
    graph: _Graph, op: _Operator, make: Callable[[str], str], number: int | None = None
) -> None:
    """What is done to each element of an input (the first), in whatever layout they are."""
    number = op.inputs[0] if number is None else number
    nchw = number in graph.nchw and number not in graph.plain
    value = graph.nchw[number] if nchw else graph.get(number)
    graph.put(op.outputs[0], make(value), nchw=nchw)


def _binary(graph: _Graph, op: _Operator) -> None:
    values, nchw = graph.alike(op)
    made = graph.emit(_BINARY[op.name], *values)
    if op.name in ("ADD", "DIV", "MUL", "SUB"):
        kind = f"{op.name.title()}Options"
        made = graph.activated(made, op.options(kind).FusedActivationFunction())
    graph.put(op.outputs[0], made, nchw=nchw)


def _limit(graph: _Graph, op: _Operator) -> None:
    """MAXIMUM or MINIMUM; of one number it is a Clip, which the layer before takes in."""
    numbers = [graph.constant(i) for i in op.inputs]
    bound = numbers[1] if numbers[0] is None else numbers[0]
    if bound is None or bound.size != 1 or graph.dtype(op.outputs[0]) != "float32":
        _binary(graph, op)
        return
    limit = graph.weight(bound.reshape(()))
    words = [limit] if op.name == "MAXIMUM" else ["", limit]
    number = op.inputs[0] if numbers[0] is None else op.inputs[1]
    _each(graph, op, lambda value: graph.emit("Clip", value, *words), number)


def _squared_difference(graph: _Graph, op: _Operator) -> None:
    values, nchw = graph.alike(op)
    difference = graph.emit("Sub", *values)
    graph.put(op.outputs[0], graph.emit("Mul", difference, difference), nchw=nchw)


def _clip(least: float, most: float) -> Callable[[_Graph, _Operator], None]:
    def convert(graph: _Graph, op: _Operator) -> None:
        limits = [graph.weight(limit, "float32") for limit in (least, most)]
        _each(graph, op, lambda value: graph.emit("Clip", value, *limits))

    return convert


def _rsqrt(graph: _Graph, op: _Operator) -> None:
    _each(graph, op, lambda value: graph.emit("Reciprocal", graph.emit("Sqrt", value)))


def _square(graph: _Graph, op: _Operator) -> None:
    _each(graph, op, lambda value: graph.emit("Mul", value, value))


def _leaky_relu(graph: _Graph, op: _Operator) -> None:
    alpha = float(op.options("LeakyReluOptions").Alpha())
    _each(graph, op, lambda value: graph.emit("LeakyRelu", value, alpha=alpha))


def _gelu(graph: _Graph, op: _Operator) -> None:
    """x / 2 (1 + erf(x / sqrt 2)), or its approximation by tanh."""

    def exact(value: str) -> str:
        inner = graph.emit("Erf", graph.emit("Mul", value, graph.weight(0.5**0.5, "float32")))
        return _half_plus(value, inner)

    def by_tanh(value: str) -> str:
        cube = graph.emit("Mul", graph.emit("Mul", value, value), value)
        cube = graph.emit("Mul", cube, graph.weight(0.044715, "float32"))
        inner = graph.emit("Add", value, cube)
        inner = graph.emit("Mul", inner, graph.weight((2 / np.pi) ** 0.5, "float32"))
        return _half_plus(value, graph.emit("Tanh", inner))

    def _half_plus(value: str, inner: str) -> str:
        one = graph.emit("Add", inner, graph.weight(1.0, "float32"))
        half = graph.emit("Mul", value, graph.weight(0.5, "float32"))
        return graph.emit("Mul", half, one)

    _each(graph, op, by_tanh if op.options("GeluOptions").Approximate() else exact)


def _prelu(graph: _Graph, op: _Operator) -> None:
    values, nchw = graph.alike(op)
    # A slope per channel is three-dimensional in TFLite: 1 x 1 x C.
    graph.put(op.outputs[0], graph.emit("PRelu", *values), nchw=nchw)


def _softmax(graph: _Graph, op: _Operator) -> None:
    value = graph.get(op.inputs[0])
    if op.name == "SOFTMAX":
        beta = float(op.options("SoftmaxOptions").Beta())
        if beta != 1:
            value = graph.emit("Mul", value, graph.weight(beta, "float32"))
    operator = "Softmax" if op.name == "SOFTMAX" else "LogSoftmax"
    graph.put(op.outputs[0], graph.emit(operator, value, axis=-1))


def _l2_normalization(graph: _Graph, op: _Operator) -> None:
    value = graph.get(op.inputs[0])
    norm = graph.emit("ReduceL2", value, axes=[-1], keepdims=1)
    least = graph.emit("Max", norm, graph.weight(1e-6, "float32"))  # as LiteRT's kernel
    activation = op.options("L2NormOptions").FusedActivationFunction()
    graph.put(op.outputs[0], graph.activated(graph.emit("Div", value, least), activation))


def _reshape(graph: _Graph, op: _Operator) -> None:
    """RESHAPE, SQUEEZE, EXPAND_DIMS: the shapes in the file say what comes out."""
    number = op.outputs[0]
    shape = graph.weight(graph.shape(number), "int64")
    (value,), put = graph.moved(op, op.inputs[:1])
    put(number, graph.emit("Reshape", value, shape, allowzero=0))


def _transpose(graph: _Graph, op: _Operator) -> None:
    perm = [int(n) for n in graph.need(op, 1, "permutation")]
    (value,), put = graph.moved(op, op.inputs[:1])
    put(op.outputs[0], graph.emit("Transpose", value, perm=perm))


def _concatenation(graph: _Graph, op: _Operator) -> None:
    options = op.options("ConcatenationOptions")
    rank = len(graph.shape(op.outputs[0]))
    axis = options.Axis() % rank
    nchw = rank == 4 and all(i in graph.nchw for i in op.inputs)
    if not nchw and options.FusedActivationFunction() == _NONE:
        values, put = graph.moved(op, op.inputs)
        put(op.outputs[0], graph.emit("Concat", *values, axis=axis))
        return
    values = [graph.nchw[i] if nchw else graph.get(i) for i in op.inputs]
    made = graph.emit("Concat", *values, axis=_TO_NCHW.index(axis) if nchw else axis)
    graph.put(op.outputs[0], graph.activated(made, options.FusedActivationFunction()), nchw=nchw)


def _pad(graph: _Graph, op: _Operator) -> None:
    pads = graph.need(op, 1, "padding").T.astype("int64")
    number = op.inputs[0]
    nchw = number in graph.nchw and pads.shape == (2, 4)
    value = graph.nchw[number] if nchw else graph.get(number)
    pads = pads[:, list(_TO_NCHW)] if nchw else pads
    if op.name == "MIRROR_PAD":
        mode = _MIRROR[op.options("MirrorPadOptions").Mode()]
        if mode == "symmetric":
            raise _RefusedError("its mode SYMMETRIC repeats the edge, which ONNX's Pad cannot")
        made = graph.emit("Pad", value, graph.weight(pads.ravel()), mode=mode)
    else:
        fill = graph.get(op.inputs[2]) if 2 in op else None
        made = graph.emit("Pad", value, graph.weight(pads.ravel()), *([fill] if fill else []))
    graph.put(op.outputs[0], made, nchw=nchw)


def _slice(graph: _Graph, op: _Operator) -> None:
    starts, sizes = graph.need(op, 1, "begin"), graph.need(op, 2, "size")
    ends = np.where(sizes < 0, np.iinfo("int64").max, starts.astype("int64") + sizes)
    words = [graph.weight(values, "int64") for values in (starts, ends, range(len(starts)))]
    (value,), put = graph.moved(op, op.inputs[:1])
    put(op.outputs[0], graph.emit("Slice", value, *words))


def _strided_slice(graph: _Graph, op: _Operator) -> None:
    options = op.options("StridedSliceOptions")
    if options.EllipsisMask() or options.NewAxisMask():
        raise _RefusedError("it has an ellipsis or new axes")
    starts, ends, steps = (
        graph.need(op, at, what).astype("int64")
        for at, what in ((1, "begin"), (2, "end"), (3, "strides"))
    )
    most = np.iinfo("int64").max
    for axis in range(len(starts)):
        down = steps[axis] < 0
        if options.ShrinkAxisMask() >> axis & 1:
            ends[axis] = most if starts[axis] == -1 else starts[axis] + 1
            continue
        if options.BeginMask() >> axis & 1:
            starts[axis] = most if down else 0
        if options.EndMask() >> axis & 1:
            ends[axis] = -most if down else most
    words = [graph.weight(values, "int64") for values in (starts, ends, range(len(starts)), steps)]
    (value,), put = graph.moved(op, op.inputs[:1])
    made = graph.emit("Slice", value, *words)
    if options.ShrinkAxisMask():
        made = graph.emit("Reshape", made, graph.weight(graph.shape(op.outputs[0]), "int64"))
    put(op.outputs[0], made)


def _split(graph: _Graph, op: _Operator) -> None:
    """SPLIT has its axis before its input, SPLIT_V behind it."""
    number, at = (op.inputs[1], 0) if op.name == "SPLIT" else (op.inputs[0], 2)
    axis = int(graph.need(op, at, "axis").ravel()[0]) % len(graph.shape(number))
    sizes = graph.weight([graph.shape(out)[axis] for out in op.outputs], "int64")
    count = len(op.outputs)
    (value,), put = graph.moved(op, [number])
    made = graph.emit("Split", value, sizes, outputs=count, axis=axis)
    for index, out in enumerate(op.outputs):
        put(out, f"{made}.{index}" if index else made)


def _pack(graph: _Graph, op: _Operator) -> None:
    axis = op.options("PackOptions").Axis() % len(graph.shape(op.outputs[0]))
    at = graph.weight([axis], "int64")
    values = [graph.emit("Unsqueeze", graph.get(i), at) for i in op.inputs]
    graph.put(op.outputs[0], graph.emit("Concat", *values, axis=axis))


def _unpack(graph: _Graph, op: _Operator) -> None:
    number = op.inputs[0]
    axis = op.options("UnpackOptions").Axis() % len(graph.shape(number))
    for index, out in enumerate(op.outputs):
        at = graph.weight(index, "int64")
        graph.put(out, graph.emit("Gather", graph.get(number), at, axis=axis))


def _gather(graph: _Graph, op: _Operator) -> None:
    options = op.options("GatherOptions")
    if options.BatchDims():
        raise _RefusedError("it gathers in batches (batch_dims)")
    axis = options.Axis() % len(graph.shape(op.inputs[0]))
    values = [graph.get(i) for i in op.inputs[:2]]
    graph.put(op.outputs[0], graph.emit("Gather", *values, axis=axis))


def _tile(graph: _Graph, op: _Operator) -> None:
    times = graph.weight(graph.need(op, 1, "multiples"), "int64")
    graph.put(op.outputs[0], graph.emit("Tile", graph.get(op.inputs[0]), times))


def _broadcast_to(graph: _Graph, op: _Operator) -> None:
    shape = graph.weight(graph.shape(op.outputs[0]), "int64")
    graph.put(op.outputs[0], graph.emit("Expand", graph.get(op.inputs[0]), shape))


def _cast(graph: _Graph, op: _Operator) -> None:
    kind = _onnx_type(graph.dtype(op.outputs[0]))
    graph.put(op.outputs[0], graph.emit("Cast", graph.get(op.inputs[0]), to=kind))


def _shape_of(graph: _Graph, op: _Operator) -> None:
    shape = np.array(graph.shape(op.inputs[0]), graph.dtype(op.outputs[0]))
    graph.folded[op.outputs[0]] = shape


def _select(graph: _Graph, op: _Operator) -> None:
    graph.put(op.outputs[0], graph.emit("Where", *(graph.get(i) for i in op.inputs)))


def _reduce(graph: _Graph, op: _Operator) -> None:
    number, rank = op.inputs[0], len(graph.shape(op.inputs[0]))
    axes = [int(axis) % rank for axis in graph.need(op, 1, "axes").ravel()]
    keep = bool(op.options("ReducerOptions").KeepDims())
    # Over rows and columns an image stays one, or becomes channels: no layout is needed.
    nchw = number in graph.nchw and sorted(axes) == [1, 2]
    value = graph.nchw[number] if nchw else graph.get(number)
    axes = [2, 3] if nchw else axes
    if _REDUCE[op.name] == "ReduceSum":  # its axes are an input since opset 13
        made = graph.emit("ReduceSum", value, graph.weight(axes, "int64"), keepdims=int(keep))
    else:
        made = graph.emit(_REDUCE[op.name], value, axes=axes, keepdims=int(keep))
    graph.put(op.outputs[0], made, nchw=nchw and keep)


def _arg(graph: _Graph, op: _Operator) -> None:
    axis = int(graph.need(op, 1, "axis").ravel()[0]) % len(graph.shape(op.inputs[0]))
    operator = "ArgMax" if op.name == "ARG_MAX" else "ArgMin"
    made = graph.emit(operator, graph.get(op.inputs[0]), axis=axis, keepdims=0)
    if graph.dtype(op.outputs[0]) != "int64":
        made = graph.emit("Cast", made, to=_onnx_type(graph.dtype(op.outputs[0])))
    graph.put(op.outputs[0], made)


def _topk(graph: _Graph, op: _Operator) -> None:
    count = graph.weight([int(graph.need(op, 1, "k").ravel()[0])], "int64")
    made = graph.emit("TopK", graph.get(op.inputs[0]), count, outputs=2, axis=-1)
    graph.put(op.outputs[0], made)
    indices = graph.emit("Cast", f"{made}.1", to=_onnx_type(graph.dtype(op.outputs[1])))
    graph.put(op.outputs[1], indices)


# ---------------------------------------------------------------- convolutions and the like


def _same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after, for an output of ceil(size / stride)."""
    out = -(-size // stride)
    total = max((out - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def _pads(
    shape: Sequence[int], kernel: Sequence[int], strides: Sequence[int], padding: int
) -> list[int]:
    """ONNX's pads of an NHWC image; `kernel` with its dilation."""
    if padding != _SAME:
        return [0, 0, 0, 0]
    (top, bottom), (left, right) = (
        _same(size, k, stride) for size, k, stride in zip(shape[1:3], kernel, strides, strict=True)
    )
    return [top, left, bottom, right]


def _conv(graph: _Graph, op: _Operator) -> None:
    depthwise = op.name == "DEPTHWISE_CONV_2D"
    options = op.options("DepthwiseConv2DOptions" if depthwise else "Conv2DOptions")
    image, filters = op.inputs[:2]
    # [out, rows, columns, in], depthwise [1, rows, columns, out]; ONNX's [out, in, rows, columns].
    weight = graph.need(op, 1, "filter").transpose((3, 0, 1, 2) if depthwise else (0, 3, 1, 2))
    strides = [options.StrideH(), options.StrideW()]
    dilations = [options.DilationHFactor(), options.DilationWFactor()]
    shape = graph.shape(image)
    whole = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilations, strict=True)]
    values = [graph.get_nchw(image), graph.floats(weight, filters)]
    if 2 in op:
        values.append(_bias(graph, op.inputs[2]))
    made = graph.emit(
        "Conv",
        *values,
        strides=strides,
        dilations=dilations,
        pads=_pads(shape, whole, strides, options.Padding()),
        group=shape[3] if depthwise else shape[3] // weight.shape[1],
        kernel_shape=list(weight.shape[2:]),
    )
    graph.put(op.outputs[0], graph.activated(made, options.FusedActivationFunction()), nchw=True)


def _bias(graph: _Graph, number: int) -> str:
    values = graph.constant(number)
    if values is None:
        raise _RefusedError("its bias is computed while the model runs")
    return graph.floats(values, number)


def _transpose_conv(graph: _Graph, op: _Operator) -> None:
    options = op.options("TransposeConvOptions")
    # Inputs: the output's shape, the filter [out, rows, columns, in], the image, maybe a bias.
    made = _transposed(
        graph,
        op,
        (2, 1, 3),
        strides=[options.StrideH(), options.StrideW()],
        is_same=options.Padding() == _SAME,
    )
    activation = getattr(options, "FusedActivationFunction", lambda: _NONE)()
    graph.put(op.outputs[0], graph.activated(made, activation), nchw=True)


def _mediapipe_transpose_conv(graph: _Graph, op: _Operator) -> None:
    """MediaPipe's own, with a bias: its options are TensorFlow Lite's struct in C."""
    padding, width, height = struct.unpack_from("<3i", op.custom_options)
    same, valid = 1, 2
    if padding not in (same, valid) or min(width, height) < 1:
        raise _RefusedError("its padding or strides are none")
    made = _transposed(graph, op, (0, 1, 2), strides=[height, width], is_same=padding == same)
    graph.put(op.outputs[0], made, nchw=True)


def _transposed(
    graph: _Graph,
    op: _Operator,
    places: tuple[int, int, int],
    *,
    strides: list[int],
    is_same: bool,
) -> str:
    """A transposed convolution in NCHW; `places` are those of the image, the filter and the bias
    among the inputs."""
    at_image, at_filter, at_bias = places
    weight = graph.need(op, at_filter, "filter").transpose(3, 0, 1, 2)
    image, out = op.inputs[at_image], graph.shape(op.outputs[0])
    kernel = weight.shape[2:]
    before, after, more = [], [], []
    for size, wanted, k, stride in zip(
        graph.shape(image)[1:3], out[1:3], kernel, strides, strict=True
    ):
        full = (size - 1) * stride + k
        total = max(full - wanted, 0) if is_same else 0
        before.append(total // 2)
        after.append(total - total // 2)
        more.append(wanted - (full - total))
    values = [graph.get_nchw(image), graph.floats(weight, op.inputs[at_filter], axis=1)]
    if at_bias in op:
        values.append(_bias(graph, op.inputs[at_bias]))
    return graph.emit(
        "ConvTranspose",
        *values,
        strides=strides,
        pads=before + after,
        output_padding=more,
        kernel_shape=list(kernel),
    )


def _pool(graph: _Graph, op: _Operator) -> None:
    options = op.options("Pool2DOptions")
    kernel = [options.FilterHeight(), options.FilterWidth()]
    strides = [options.StrideH(), options.StrideW()]
    pads = _pads(graph.shape(op.inputs[0]), kernel, strides, options.Padding())
    operator = "MaxPool" if op.name == "MAX_POOL_2D" else "AveragePool"
    made = graph.emit(
        operator, graph.get_nchw(op.inputs[0]), kernel_shape=kernel, strides=strides, pads=pads
    )
    graph.put(op.outputs[0], graph.activated(made, options.FusedActivationFunction()), nchw=True)


def _fully_connected(graph: _Graph, op: _Operator) -> None:
    options = op.options("FullyConnectedOptions")
    if options.WeightsFormat():
        raise _RefusedError("its weights are shuffled")
    weight = graph.constant(op.inputs[1])
    if weight is None:
        raise _RefusedError("its weights are computed while the model runs")
    rows = graph.weight([-1, weight.shape[1]], "int64")
    values = [graph.emit("Reshape", graph.get(op.inputs[0]), rows)]
    values.append(graph.floats(weight, op.inputs[1]))
    if 2 in op:
        values.append(_bias(graph, op.inputs[2]))
    made = graph.emit("Gemm", *values, transB=1)
    made = graph.activated(made, options.FusedActivationFunction())
    shape = graph.shape(op.outputs[0])
    if len(shape) != 2:
        made = graph.emit("Reshape", made, graph.weight(shape, "int64"))
    graph.put(op.outputs[0], made)


def _batch_matmul(graph: _Graph, op: _Operator) -> None:
    options = op.options("BatchMatMulOptions")
    values = []
    for number, turned in zip(op.inputs, (options.AdjX(), options.AdjY()), strict=True):
        value, rank = graph.get(number), len(graph.shape(number))
        if turned:
            perm = [*range(rank - 2), rank - 1, rank - 2]
            value = graph.emit("Transpose", value, perm=perm)
        values.append(value)
    graph.put(op.outputs[0], graph.emit("MatMul", *values))


def _resize(graph: _Graph, op: _Operator) -> None:
    linear = op.name == "RESIZE_BILINEAR"
    options = op.options("ResizeBilinearOptions" if linear else "ResizeNearestNeighborOptions")
    n, h, w, c = graph.shape(op.outputs[0])
    if options.AlignCorners():
        where = "align_corners"
    else:
        where = "half_pixel" if options.HalfPixelCenters() else "asymmetric"
    # LiteRT's nearest rounds down, but with aligned corners half away from zero.
    nearest = "round_prefer_ceil" if options.AlignCorners() else "floor"
    if options.HalfPixelCenters() and not linear:
        # floor((x + 0.5) * scale): half a pixel is added and none subtracted.
        where, nearest = "half_pixel", "round_prefer_ceil"
    sizes = graph.weight([n, c, h, w], "int64")
    made = graph.emit(
        "Resize",
        *(graph.get_nchw(op.inputs[0]), "", "", sizes),
        mode="linear" if linear else "nearest",
        coordinate_transformation_mode=where,
        nearest_mode=nearest,
    )
    graph.put(op.outputs[0], made, nchw=True)


def _depth_to_space(graph: _Graph, op: _Operator) -> None:
    size = op.options("DepthToSpaceOptions").BlockSize()
    made = graph.emit("DepthToSpace", graph.get_nchw(op.inputs[0]), blocksize=size, mode="DCR")
    graph.put(op.outputs[0], made, nchw=True)


def _space_to_depth(graph: _Graph, op: _Operator) -> None:
    size = op.options("SpaceToDepthOptions").BlockSize()
    made = graph.emit("SpaceToDepth", graph.get_nchw(op.inputs[0]), blocksize=size)
    graph.put(op.outputs[0], made, nchw=True)


# ---------------------------------------------------------------- types and state


def _dequantize(graph: _Graph, op: _Operator) -> None:
    number, out = op.inputs[0], op.outputs[0]
    values = graph.constant(number)
    if values is not None and values.dtype.kind == "f":
        graph.folded[out] = values.astype("float32")  # weights kept as float16
        return
    if graph.dtype(number) == "float16":
        graph.put(out, graph.emit("Cast", graph.get(number), to=_onnx_type("float32")))
        return
    _each(graph, op, lambda value: value)


def _densify(graph: _Graph, op: _Operator) -> None:
    graph.folded[op.outputs[0]] = graph.need(op, 0, "sparse tensor")


def _quantize(graph: _Graph, op: _Operator) -> None:
    _each(graph, op, lambda value: value)


def _call_once(graph: _Graph, op: _Operator) -> None:
    """What it assigns to variables is what they begin with."""
    called = op.options("CallOnceOptions").InitSubgraphIndex()
    if called == 0:
        raise _RefusedError("it calls the model itself")
    other = _Graph(graph.path, graph.tflite, graph.data, called)
    if other.graph.OperatorsLength() and any(op.name != "VAR_HANDLE" for op in other.operators()):
        graph.starts |= other.assigned()


def _var_handle(graph: _Graph, op: _Operator) -> None:
    options = op.options("VarHandleOptions")
    name = options.SharedName()
    number = op.outputs[0]
    text = name.decode(errors="replace") if name else f"variable{number}"
    if text not in graph.variables.values():
        while text in graph.names:
            text += "_state"
        graph.names.add(text)
    graph.variables[number] = text
    graph.shared[text] = (name or text.encode(), options.Container() or b"")


def _read_variable(graph: _Graph, op: _Operator) -> None:
    name, out = graph.variables[op.inputs[0]], op.outputs[0]
    if name in graph.states:
        graph.put_raw(out, graph.get_raw(graph.states[name]))
        return
    graph.states[name] = graph.read[name] = out
    graph.input(out, name)


def _assign_variable(graph: _Graph, op: _Operator) -> None:
    graph.states[graph.variables[op.inputs[0]]] = op.inputs[1]


_OTHERS: dict[str, Callable[[_Graph, _Operator], None]] = {
    "ARG_MAX": _arg,
    "ARG_MIN": _arg,
    "ASSIGN_VARIABLE": _assign_variable,
    "AVERAGE_POOL_2D": _pool,
    "BATCH_MATMUL": _batch_matmul,
    "BROADCAST_TO": _broadcast_to,
    "CALL_ONCE": _call_once,
    "CAST": _cast,
    "CONCATENATION": _concatenation,
    "CONV_2D": _conv,
    "CUSTOM Convolution2DTransposeBias": _mediapipe_transpose_conv,
    "DEPTHWISE_CONV_2D": _conv,
    "DEPTH_TO_SPACE": _depth_to_space,
    "DENSIFY": _densify,
    "DEQUANTIZE": _dequantize,
    "EXPAND_DIMS": _reshape,
    "FULLY_CONNECTED": _fully_connected,
    "GATHER": _gather,
    "GELU": _gelu,
    "L2_NORMALIZATION": _l2_normalization,
    "LEAKY_RELU": _leaky_relu,
    "LOG_SOFTMAX": _softmax,
    "MAXIMUM": _limit,
    "MAX_POOL_2D": _pool,
    "MINIMUM": _limit,
    "MIRROR_PAD": _pad,
    "PACK": _pack,
    "PAD": _pad,
    "PADV2": _pad,
    "PRELU": _prelu,
    "QUANTIZE": _quantize,
    "READ_VARIABLE": _read_variable,
    "RELU6": _clip(0, 6),
    "RELU_0_TO_1": _clip(0, 1),
    "RELU_N1_TO_1": _clip(-1, 1),
    "RESHAPE": _reshape,
    "RESIZE_BILINEAR": _resize,
    "RESIZE_NEAREST_NEIGHBOR": _resize,
    "RSQRT": _rsqrt,
    "SELECT": _select,
    "SELECT_V2": _select,
    "SHAPE": _shape_of,
    "SLICE": _slice,
    "SOFTMAX": _softmax,
    "SPACE_TO_DEPTH": _space_to_depth,
    "SPLIT": _split,
    "SPLIT_V": _split,
    "SQUARE": _square,
    "SQUARED_DIFFERENCE": _squared_difference,
    "SQUEEZE": _reshape,
    "STRIDED_SLICE": _strided_slice,
    "TILE": _tile,
    "TOPK_V2": _topk,
    "TRANSPOSE": _transpose,
    "TRANSPOSE_CONV": _transpose_conv,
    "UNPACK": _unpack,
    "VAR_HANDLE": _var_handle,
}


def _converter(name: str) -> Callable[[_Graph, _Operator], None] | None:
    if name in _UNARY:
        return _unary
    if name in _OTHERS:
        return _OTHERS[name]
    if name in _BINARY:
        return _binary
    return _reduce if name in _REDUCE else None


def _onnx_type(dtype: str) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

"""TFLite files for tests: real ones of packages, models of one operator, and LiteRT to run them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flatbuffers  # type: ignore[import-untyped]
import numpy as np

from bench.fetch import Wheel, unpacked
from tests.support import importable

_LITERT = Wheel(
    name="ai-edge-litert",
    version="2.3.0",
    platform="manylinux_2_27_x86_64",
    sha256="1f15078a6725d2357d9de9221664c29afa0545d807559c5f7199ce5e40b96b23",
)
# Wake words: streaming ones of int8 with variables, and float32 ones with what feeds them.
_MICRO = Wheel(
    name="pymicro-wakeword",
    version="2.5.0",
    platform="manylinux_2_35_x86_64",
    sha256="3869f536402b1254e3be3549d3a462ecd6ed21ce2c3e77ec8eb501c3c700417c",
)
_OPEN = Wheel(
    name="pyopen-wakeword",
    version="1.1.0",
    platform="manylinux_2_35_x86_64",
    sha256="754347a59de2b3d378a0cbc404a8b41164036e74fa1c185f88056974e4bfb6b4",
)


def use_packages() -> None:
    """Make `ai_edge_litert` importable, from the cache."""
    importable(unpacked(_LITERT))


def micro(name: str) -> Path:
    """A streaming wake word of int8: alexa, hey_jarvis, hey_mycroft or okay_nabu."""
    return unpacked(_MICRO) / "pymicro_wakeword" / "models" / f"{name}.tflite"


def wake(name: str) -> Path:
    """A wake word of float32, or `embedding_model`, whose results they take."""
    return unpacked(_OPEN) / "pyopen_wakeword" / "models" / f"{name}.tflite"


def interpreter(path: Path) -> Any:
    """LiteRT's plain kernels, without XNNPACK, with every tensor kept."""
    litert: Any = importlib.import_module("ai_edge_litert.interpreter")
    made = litert.Interpreter(
        model_path=str(path),
        experimental_op_resolver_type=litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        experimental_preserve_all_tensors=True,
    )
    made.allocate_tensors()
    return made


def assigned(path: Path) -> dict[str, int]:
    """The tensor that each variable of a model gets at the end of a run."""
    schema: Any = importlib.import_module("ai_edge_litert.schema_py_generated")
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(path.read_bytes(), 0))
    handles, found = {}, {}
    for operator in model.subgraphs[0].operators:
        code = model.operatorCodes[operator.opcodeIndex].builtinCode
        if code == schema.BuiltinOperator.VAR_HANDLE:
            handles[operator.outputs[0]] = operator.builtinOptions.sharedName.decode()
        elif code == schema.BuiltinOperator.ASSIGN_VARIABLE:
            found[handles[operator.inputs[0]]] = int(operator.inputs[1])
    return found


def litert_run(path: Path, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of LiteRT, in the model's order."""
    made = interpreter(path)
    for detail, value in zip(made.get_input_details(), inputs, strict=True):
        made.set_tensor(detail["index"], value)
    made.invoke()
    return [made.get_tensor(detail["index"]) for detail in made.get_output_details()]


@dataclass(frozen=True, kw_only=True)
class OneOperator:
    """A model of one operator.

    `inputs` are shapes of what is fed, or arrays: constants; None is an input left out. `options`
    are fields of the schema's class `kind`, `outputs` shapes; `dtypes` those of the outputs. With
    `custom_options` the operator is none of TensorFlow Lite's own.
    """

    name: str
    inputs: Sequence[tuple[int, ...] | np.ndarray | None]
    outputs: Sequence[tuple[int, ...]]
    kind: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    dtypes: Sequence[str] = ()
    custom_options: bytes = b""

    def write(self, path: Path) -> Path:
        """The model's file."""
        schema: Any = importlib.import_module("ai_edge_litert.schema_py_generated")
        kinds = {
            "float32": schema.TensorType.FLOAT32,
            "int32": schema.TensorType.INT32,
            "int64": schema.TensorType.INT64,
            "bool": schema.TensorType.BOOL,
        }
        graph, model, operator = schema.SubGraphT(), schema.ModelT(), schema.OperatorT()
        graph.tensors, model.buffers = [], [schema.BufferT()]

        def tensor(shape: Sequence[int], dtype: str, values: np.ndarray | None = None) -> int:
            made = schema.TensorT()
            made.name, made.shape, made.type = f"t{len(graph.tensors)}", [*shape], kinds[dtype]
            if values is not None:
                buffer = schema.BufferT()
                buffer.data = np.frombuffer(values.tobytes(), np.uint8)
                made.buffer = len(model.buffers)
                model.buffers.append(buffer)
            graph.tensors.append(made)
            return len(graph.tensors) - 1

        graph.inputs, operator.inputs = [], []
        for item in self.inputs:
            if item is None:
                operator.inputs.append(-1)
            elif isinstance(item, tuple):
                operator.inputs.append(tensor(item, "float32"))
                graph.inputs.append(operator.inputs[-1])
            else:
                operator.inputs.append(tensor(item.shape, item.dtype.name, item))
        dtypes = self.dtypes or ["float32"] * len(self.outputs)
        graph.outputs = [tensor(s, d) for s, d in zip(self.outputs, dtypes, strict=True)]
        operator.outputs = graph.outputs
        if self.kind:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, self.kind)
            operator.builtinOptions = getattr(schema, f"{self.kind}T")()
            for key, value in self.options.items():
                assert hasattr(operator.builtinOptions, key), key
                setattr(operator.builtinOptions, key, value)
        graph.operators = [operator]
        code = schema.OperatorCodeT()
        if self.custom_options:
            operator.customOptions = [*self.custom_options]
            code.builtinCode, code.customCode = schema.BuiltinOperator.CUSTOM, self.name
        else:
            code.builtinCode = getattr(schema.BuiltinOperator, self.name)
        code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), 1
        model.version, model.subgraphs, model.operatorCodes = 3, [graph], [code]
        builder = flatbuffers.Builder(1 << 16)
        builder.Finish(model.Pack(builder), b"TFL3")
        path.write_bytes(bytes(builder.Output()))
        return path

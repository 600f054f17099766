"""A float network as quantisation sees it: products with constant weights, and what is between."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from edgepack.model import infer_shapes, opset_of
from edgepack.model.index import GraphIndex
from edgepack.quantization.errors import AlreadyQuantizedError, NothingToQuantizeError

Array = npt.NDArray[Any]
Values = Mapping[str, Array]

PRODUCTS = ("Conv", "Gemm", "MatMul")
# They are done on integers beside products, and so are those that only cut off or reshape.
POOLS = ("GlobalAveragePool", "AveragePool", "MaxPool", "ReduceMean")
CUTTING = ("Relu", "Clip")
RESHAPING = ("Flatten", "Reshape", "Squeeze")
# Channels of all but the last part of a Concat come in blocks of so many.
_BLOCK = 16
_LEAST_POWER = 1e-150


@dataclass(frozen=True, kw_only=True)
class Product:
    """A node with constant weights, as [out, in / groups, taps], and its bias."""

    node: onnx.NodeProto
    weight: Array
    bias: Array
    kernel: tuple[int, ...]
    groups: int
    axis: int

    @property
    def name(self) -> str:
        """That of its result, which is unique."""
        return str(self.node.output[0])

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is by itself."""
        return self.weight.shape[1] == 1 and self.groups == len(self.weight)


class FloatNetwork:
    """A model whose constants are folded, and batch norms are in the convolutions before them.

    Raises `AlreadyQuantizedError`.
    """

    def __init__(self, path: Path, proto: onnx.ModelProto) -> None:
        self.path = path
        if any(node.op_type == "QuantizeLinear" for node in proto.graph.node):
            raise AlreadyQuantizedError(
                f"{path}: the model is quantised already",
                hint="give the float model that it was made from; this one is deployed as it is",
            )
        self.proto = _simplified(_with_channels(proto))
        self._read()
        if not self.products:
            raise NothingToQuantizeError(
                f"{path}: no convolution and no product with constant weights",
                hint="quantising such a model gains nothing",
            )

    def _read(self) -> None:
        graph = self.proto.graph
        self.constants = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
        self.input = next(info.name for info in graph.input if info.name not in self.constants)
        self.outputs = [info.name for info in graph.output]
        self.nodes = list(graph.node)
        index = GraphIndex(graph)
        self.makers, self.readers = index.makers, index.readers
        inferred = infer_shapes(self.proto).graph
        self.shapes = {
            info.name: tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
            for info in (*inferred.value_info, *inferred.output, *inferred.input)
        }
        self.products = {
            found.name: found for node in self.nodes if (found := self._product(node)) is not None
        }

    def _product(self, node: onnx.NodeProto) -> Product | None:
        if node.op_type not in PRODUCTS or len(node.input) < 2:
            return None
        weight, given = self.constants.get(node.input[1]), attributes(node)
        is_conv = node.op_type == "Conv"
        if weight is None or weight.dtype != np.float32 or len(self.readers[node.input[1]]) > 1:
            return None
        axis = 0 if is_conv or given.get("transB", 0) else 1
        if is_conv:
            fits = weight.ndim in (3, 4)
        else:
            plain = (given.get("transA", 0), given.get("alpha", 1), given.get("beta", 1))
            is_row = len(self.shapes.get(node.input[0], ())) == 2
            fits = weight.ndim == 2 and is_row and plain == (0, 1, 1)
        weight = weight if axis == 0 else weight.T
        bias: Array | None = np.zeros(len(weight), "float32")
        if len(node.input) > 2 and node.input[2]:
            bias = self.constants.get(node.input[2])
        if not fits or bias is None or bias.size not in (1, len(weight)):
            return None
        return Product(
            node=node,
            weight=weight.reshape(*weight.shape[:2], -1),
            bias=np.broadcast_to(bias.reshape(-1), (len(weight),)).astype("float32"),
            kernel=weight.shape[2:],
            groups=given.get("group", 1),
            axis=axis,
        )

    # ------------------------------------------------ what can be done on integers

    def is_whole(self, node: onnx.NodeProto) -> bool:
        """Whether a node can be done on integers, given integers."""
        if node.op_type in PRODUCTS:
            return node.output[0] in self.products
        fits = _FITS.get(node.op_type)
        return fits is not None and fits(self, node)

    def stored(self, node: onnx.NodeProto) -> str:
        """What a node's result is after what cuts it off."""
        name = str(node.output[0])
        while len(self.readers[name]) == 1 and name not in self.outputs:
            (reader,) = self.readers[name]
            if reader.op_type not in CUTTING:
                break
            name = str(reader.output[0])
        return name

    def read_by(self, node: onnx.NodeProto) -> list[str]:
        """The tensors that a node reads, before what only reshapes them."""
        if node.op_type in PRODUCTS or node.op_type in POOLS:
            names = [str(node.input[0])]
        else:
            names = [str(name) for name in node.input if name not in self.constants]
        return [self.before_reshaping(name) for name in names]

    def before_reshaping(self, name: str) -> str:
        """The image of one pixel that a row is made of."""
        maker = self.makers.get(name)
        if maker is None or maker.op_type not in RESHAPING:
            return name
        shape, result = self.shapes.get(maker.input[0], ()), self.shapes.get(name, ())
        if len(shape) == 4 and shape[2:] == (1, 1) and result == shape[:2]:
            return str(maker.input[0])
        return name

    # ------------------------------------------------ changed, and run

    def with_constants(self, changed: Values) -> FloatNetwork:
        """The same with other values of some constants."""
        made = FloatNetwork.__new__(FloatNetwork)
        made.path = self.path
        made.proto = onnx.ModelProto()
        made.proto.CopyFrom(self.proto)
        for tensor in made.proto.graph.initializer:
            if tensor.name in changed:
                value = np.ascontiguousarray(changed[tensor.name])
                tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
        made._read()
        return made


def _is_sum(network: FloatNetwork, node: onnx.NodeProto) -> bool:
    one, other = (network.shapes.get(name, ()) for name in node.input)
    has_constant = any(name in network.constants for name in node.input)
    return not has_constant and one == other and len(one) in (2, 3, 4)


def _is_mean(network: FloatNetwork, node: onnx.NodeProto) -> bool:
    given, rank = attributes(node), len(network.shapes.get(node.input[0], ()))
    axes = given.get("axes", ())
    if len(node.input) > 1:
        axes = network.constants.get(node.input[1], np.zeros(0)).tolist()
    inside = sorted(int(axis) % rank for axis in axes) if rank > 2 else []
    return bool(inside) and inside == list(range(2, rank)) and bool(given.get("keepdims", 1))


def _is_joint(network: FloatNetwork, node: onnx.NodeProto) -> bool:
    shapes = [network.shapes.get(name, ()) for name in node.input]
    is_along = attributes(node).get("axis") == 1
    return is_along and not any(len(s) < 2 or s[1] % _BLOCK for s in shapes[:-1])


def _is_average(_network: FloatNetwork, node: onnx.NodeProto) -> bool:
    given = attributes(node)
    return not any(given.get("pads", ())) and not given.get("ceil_mode", 0)


def _is_maximum(_network: FloatNetwork, node: onnx.NodeProto) -> bool:
    return len(node.output) == 1 and not attributes(node).get("ceil_mode", 0)


_FITS: dict[str, Callable[[FloatNetwork, onnx.NodeProto], bool]] = {
    "Add": _is_sum,
    "ReduceMean": _is_mean,
    "Concat": _is_joint,
    "AveragePool": _is_average,
    "MaxPool": _is_maximum,
    "GlobalAveragePool": lambda _network, _node: True,
}


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """A node's attributes by name."""
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


def values(
    proto: onnx.ModelProto, photos: Sequence[Array], names: Sequence[str] | None = None
) -> Iterator[dict[str, Array]]:
    """Tensors of these names (None: the outputs) for each photo, each operator by itself."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    constants = {item.name for item in made.graph.initializer}
    (given,) = [info.name for info in made.graph.input if info.name not in constants]
    known = {info.name for info in made.graph.output}
    wanted = [info.name for info in made.graph.output] if names is None else list(names)
    made.graph.output.extend(
        helper.make_empty_tensor_value_info(name)
        for name in dict.fromkeys(wanted)
        if name not in known and name != given
    )
    session = _session(made, optimised=False)
    asked = [name for name in dict.fromkeys(wanted) if name != given]
    for photo in photos:
        # Asked for nothing, onnxruntime gives everything.
        got = session.run(asked, {given: photo}) if asked else []
        found = dict(zip(asked, got, strict=True))
        yield {**found, given: photo}


def outputs(proto: onnx.ModelProto, photos: Sequence[Array]) -> list[Array]:
    """Each output, as a row for each photo."""
    names = [info.name for info in proto.graph.output]
    found = list(values(proto, photos, names))
    return [np.stack([one[name].reshape(-1) for one in found]) for name in names]


def noise_share(exact: Sequence[Array], made: Sequence[Array]) -> float:
    """The power of what outputs are off, as a share of theirs; the mean of several outputs, for one
    may be as large as the coordinates of a picture, and another a score below 1."""
    shares = []
    for one, other in zip(exact, made, strict=True):
        wide = one.astype("float64")
        error, power = float(((other - wide) ** 2).sum()), float((wide**2).sum())
        shares.append(error / max(power, _LEAST_POWER))
    return sum(shares) / len(shares)


def _session(proto: onnx.ModelProto, *, optimised: bool) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        proto.SerializeToString(), options, ["CPUExecutionProvider"]
    )


# Scales for each channel came with version 13.
_OPSET = 13


def _with_channels(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model in a version that has QuantizeLinear with scales for each channel, and whose
    constants are no inputs, as they had to be before version 4 of the format."""
    made = onnx.ModelProto()
    if opset_of(proto) < _OPSET:
        made.CopyFrom(onnx.version_converter.convert_version(proto, _OPSET))
    else:
        made.CopyFrom(proto)
    constants = {item.name for item in made.graph.initializer}
    given = [info for info in made.graph.input if info.name not in constants]
    del made.graph.input[:]
    made.graph.input.extend(given)
    made.ir_version = max(made.ir_version, _OWN_CONSTANTS)
    return made


_OWN_CONSTANTS = 4


def _simplified(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Constants folded, batch norms in convolutions: what onnxruntime calls basic."""
    import onnxruntime

    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        path = Path(folder) / "model.onnx"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(path)
        onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
        made = onnx.load(path)
    del made.opset_import[:]
    made.opset_import.extend(proto.opset_import)
    made.ir_version = proto.ir_version
    return made

"""Malformed models: by name what was seen to hurt, and random changes of good ones by seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests import onnx_models
from tests.onnx_models import Builder

Make = Callable[[Path], Path]


def _external(location: str, **where: str) -> Make:
    """A weight that is kept outside; the file beside the model has 64 bytes."""

    def make(folder: Path) -> Path:
        net = Builder()
        net.op("Add", "x", net.weight(4, 4), outputs=["y"])
        proto = net.model({"x": [4, 4]}, {"y": [4, 4]})
        tensor = proto.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {"location": location, **where}.items():
            tensor.external_data.add(key=key, value=value)
        (folder / "data.bin").write_bytes(bytes(64))
        (folder / "link.bin").symlink_to(folder / "data.bin")
        return _write(folder, proto)

    return make


def _write(folder: Path, proto: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def _net(
    shape: tuple[int, ...],
    *nodes: tuple[str, dict[str, object]],
    change: Callable[[onnx.ModelProto], None] = lambda _: None,
) -> Make:
    """A chain of nodes with one input each, `x` to `y`, then changed."""

    def make(folder: Path) -> Path:
        net, data = Builder(), "x"
        for number, (operator, attributes) in enumerate(nodes, 1):
            made = ["y"] if number == len(nodes) else [f"v{number}"]
            values = [net.const(v) for k, v in attributes.items() if k.startswith("_")]
            own = {k: v for k, v in attributes.items() if not k.startswith("_")}
            data = net.op(operator, data, *values, outputs=made, **own)
        proto = net.model({"x": shape}, {"y": None})
        change(proto)
        return _write(folder, proto)

    return make


def _constant(operator: str, *values: object, **attributes: object) -> Make:
    """What is made of constants only, and added to the input."""

    def make(folder: Path) -> Path:
        net = Builder()
        big = net.op(operator, *(net.const(value) for value in values), **attributes)
        least = net.op("ReduceMin", net.op("Cast", big, to=TensorProto.FLOAT), keepdims=0)
        net.op("Add", "x", least, outputs=["y"])
        return _write(folder, net.model({"x": [4]}, {"y": [4]}))

    return make


def _duplicate_weight(proto: onnx.ModelProto) -> None:
    proto.graph.initializer.append(proto.graph.initializer[0])


def _not_utf8(field: str) -> Make:
    def make(folder: Path) -> Path:
        path = _net((4,), ("Relu", {}), ("Sigmoid", {}))(folder)
        old = {"operator": b"Sigmoid", "name": b"Sigmoid_1"}[field]
        data = path.read_bytes()
        path.write_bytes(data.replace(old, b"\xff\xfe" + old[2:]))
        return path

    return make


def _recursive(folder: Path) -> Path:
    domain = "own"
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    node = helper.make_node("F", ["x"], ["y"], domain=domain)
    function = helper.make_function(domain, "F", ["x"], ["y"], [node], opsets)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    return _write(
        folder,
        helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=8),
    )


def _chain(operators: str, length: int) -> Make:
    names = operators.split()
    return _net((1, 8), *((names[i % len(names)], {}) for i in range(length)))


def _drop_outputs(proto: onnx.ModelProto) -> None:
    del proto.graph.output[:]


def _drop_node_outputs(proto: onnx.ModelProto) -> None:
    del proto.graph.node[0].output[:]


def _opset(version: int) -> Callable[[onnx.ModelProto], None]:
    def change(proto: onnx.ModelProto) -> None:
        proto.opset_import[0].version = version

    return change


_ADD: tuple[str, dict[str, object]] = ("Add", {"_b": np.zeros(4, "float32")})
_PADS = np.array([0, 0, 2**30, 2**30] * 2)

NAMED: dict[str, Make] = {
    "external data by traversal": _external("../data.bin"),
    "external data at an absolute path": _external("/etc/passwd"),
    "external data through a link": _external("link.bin"),
    "external data at a bad offset": _external("data.bin", offset="-5"),
    "external data at no number": _external("data.bin", offset="five"),
    "external data after its end": _external("data.bin", offset="60", length="64"),
    "external data too short": _external("data.bin", length="8"),
    "operator that is no UTF-8": _not_utf8("operator"),
    "name that is no UTF-8": _not_utf8("name"),
    "node without outputs": _net((4,), ("Relu", {}), change=_drop_node_outputs),
    "graph without outputs": _net((4,), ("Relu", {}), change=_drop_outputs),
    "two weights of one name": _net((4,), _ADD, change=_duplicate_weight),
    "opset 0": _net((4,), ("Relu", {}), change=_opset(0)),
    "opset of the future": _net((4,), ("Relu", {}), change=_opset(9999)),
    "large image": _net((1, 3, 30000, 30000), ("Relu", {})),
    "input of 2^40": _net((2**40,), ("Relu", {})),
    "input of 2^62": _net((2**31, 2**31), ("Relu", {})),
    "pads of 2^30": _net((1, 1, 4, 4), ("Pad", {"_p": _PADS}), ("GlobalMaxPool", {})),
    "function that calls itself": _recursive,
    "ConstantOfShape of 10^9": _constant("ConstantOfShape", [10**9]),
    "Range of 10^9": _constant("Range", 0, 10**9, 1),
    "Expand to 10^9": _constant("Expand", [1], [10**9]),
    "Tile to 10^9": _constant("Tile", [1], [10**9]),
    "chain of 3000": _chain("Relu", 3000),
    "chain of 3000 that is long": _chain("Sigmoid Relu Tanh Neg", 3000),
    "kernel of 0": _net((1, 1, 8, 8), ("MaxPool", {"kernel_shape": [0, 0]})),
    "stride of 0": _net((1, 1, 8, 8), ("MaxPool", {"kernel_shape": [2, 2], "strides": [0, 0]})),
    "axis out of range": _net((4, 4), ("Softmax", {"axis": 7})),
    "permutation that is none": _net((4, 4), ("Transpose", {"perm": [0, 0]})),
    "reshape to another size": _net((4, 4), ("Reshape", {"_s": np.array([5, 5])})),
    "unknown element type": _net((4,), ("Cast", {"to": 99})),
    "MaxUnpool": _net(
        (1, 1, 2, 2), ("MaxUnpool", {"kernel_shape": [2, 2], "_i": np.zeros((1, 1, 2, 2), "int64")})
    ),
    "Pow of a huge exponent": _net((4,), ("Pow", {"_e": np.array(2**40)})),
    "slice beyond int32": _net((4,), ("Slice", {"_s": np.array([0]), "_e": np.array([2**62])})),
    "random bytes": lambda folder: _bytes(folder, b"\x08\x07\x12" + bytes(range(256))),
    "nothing": lambda folder: _bytes(folder, b""),
}


def _bytes(folder: Path, data: bytes) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(data)
    return path


# ---------------------------------------------------------------- by seed

_BASES = (onnx_models.one_conv, onnx_models.branches, onnx_models.transformer_block)
_NUMBERS = (-(2**63), -(2**31), -1, 0, 1, 2, 3, 7, 2**15, 2**30, 2**31 - 1, 2**40, 2**63 - 1)


def mutant(folder: Path, seed: int) -> Path:
    """One to three random changes of a small model: of its bytes, names, numbers or order."""
    random = np.random.default_rng(seed)
    path = _BASES[seed % len(_BASES)](folder / "model.onnx")
    if seed % 5 == 4:
        data = bytearray(path.read_bytes())
        for _ in range(random.integers(1, 4)):
            data[random.integers(len(data))] = random.integers(256)
        path.write_bytes(data[: len(data) - int(random.integers(0, 2) * random.integers(40))])
        return path
    proto = onnx.load(path)
    for _ in range(random.integers(1, 4)):
        _CHANGES[random.integers(len(_CHANGES))](proto, random)
    return _bytes(folder, proto.SerializeToString())


def _pick(items: object, random: np.random.Generator) -> object | None:
    found = list(items)  # type: ignore[call-overload]
    return found[random.integers(len(found))] if found else None


def _change_attribute(proto: onnx.ModelProto, random: np.random.Generator) -> None:
    node = _pick((n for n in proto.graph.node if n.attribute), random)
    if node is None:
        return
    item = _pick(node.attribute, random)  # type: ignore[attr-defined]
    value = int(random.choice(_NUMBERS))
    if item.type == onnx.AttributeProto.INTS:  # type: ignore[attr-defined]
        item.ints[random.integers(len(item.ints))] = value  # type: ignore[attr-defined]
    else:
        item.i = value  # type: ignore[attr-defined]


def _drop_attribute(proto: onnx.ModelProto, random: np.random.Generator) -> None:
    node = _pick(proto.graph.node, random)
    if node is not None:
        del node.attribute[:]  # type: ignore[attr-defined]


def _change_operator(proto: onnx.ModelProto, random: np.random.Generator) -> None:
    node = _pick(proto.graph.node, random)
    names = ("Relu", "Add", "Concat", "Conv", "Reshape", "Loop", "If", "LSTM", "Nonsense", "")
    node.op_type = str(random.choice(names))  # type: ignore[union-attr]


def _change_input(proto: onnx.ModelProto, random: np.random.Generator) -> None:
    node = _pick((n for n in proto.graph.node if n.input), random)
    if node is not None:
        names = [name for other in proto.graph.node for name in (*other.input, *other.output)]
        at = random.integers(len(node.input))  # type: ignore[attr-defined]
        node.input[at] = str(random.choice(["", "none", *names]))  # type: ignore[attr-defined]


def _drop_input(proto: onnx.ModelProto, random: np.random.Generator) -> None:
    node = _pick((n for n in proto.graph.node if n.input), random)
    if node is not None:
        node.input.pop()  # type: ignore[attr-defined]


def _drop_node(proto: onnx.ModelProto, random: np.random.Generator) -> None:
    if len(proto.graph.node) > 1:
        del proto.graph.node[random.integers(len(proto.graph.node))]


def _change_weight_shape(proto: onnx.ModelProto, random: np.random.Generator) -> None:
    tensor = _pick((t for t in proto.graph.initializer if t.dims), random)
    if tensor is not None:
        at = random.integers(len(tensor.dims))  # type: ignore[attr-defined]
        tensor.dims[at] = int(random.choice(_NUMBERS))  # type: ignore[attr-defined]


def _change_weight(proto: onnx.ModelProto, random: np.random.Generator) -> None:
    """Another whole weight: of another shape, type, or not finite."""
    tensor = _pick(proto.graph.initializer, random)
    if tensor is not None:
        shape = tuple(random.integers(0, 5, random.integers(0, 5)))
        kind = random.choice(["float32", "float64", "int64", "uint8", "bool"])
        with np.errstate(invalid="ignore"):  # what is not finite becomes some integer
            values = np.full(shape, random.choice([0, 1, np.inf, np.nan])).astype(kind)
        made = numpy_helper.from_array(values, tensor.name)  # type: ignore[attr-defined]
        tensor.CopyFrom(made)  # type: ignore[attr-defined]


def _change_input_shape(proto: onnx.ModelProto, random: np.random.Generator) -> None:
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    if dims:
        dims[random.integers(len(dims))].dim_value = int(random.choice(_NUMBERS))


def _change_type(proto: onnx.ModelProto, random: np.random.Generator) -> None:
    value = _pick((*proto.graph.input, *proto.graph.output), random)
    value.type.tensor_type.elem_type = int(random.integers(0, 30))  # type: ignore[union-attr]


_CHANGES = (
    _change_attribute,
    _drop_attribute,
    _change_operator,
    _change_input,
    _drop_input,
    _drop_node,
    _change_weight_shape,
    _change_weight,
    _change_input_shape,
    _change_type,
)

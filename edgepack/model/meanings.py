"""Where ONNX's text and onnxruntime differ, or the text says nothing: what is compiled.

One table for all: the compiler does what it says, `as_meant` has onnxruntime do the same, with
which a compiled model is compared, and docs/reference/meanings.md is made of it. What PyTorch does
wins, for most models come from there, and their authors have seen its results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgepack.model.bfloat16 import as_rounded_floats
from edgepack.model.index import GraphIndex
from edgepack.model.inference import infer_types
from edgepack.model.opsets import of_one_opset

ONNX, ONNXRUNTIME = "ONNX", "onnxruntime"


_OfNan = Callable[[Any, Mapping[str, Any], Mapping[str, Sequence[int]]], bool]


def _any_of(*operators: str) -> _OfNan:
    return lambda node, _attributes, _shapes: node.op_type in operators


def _in_groups(
    node: Any, attributes: Mapping[str, Any], shapes: Mapping[str, Sequence[int]]
) -> bool:
    """A convolution in groups that are no single channels."""
    if node.op_type not in ("Conv", "ConvTranspose") or (groups := attributes.get("group", 1)) < 2:
        return False
    weight = shapes.get(node.input[1])
    return weight is not None and list(weight[:2]) != [groups, 1]


def _scatters_extremes(
    node: Any, attributes: Mapping[str, Any], _shapes: Mapping[str, Sequence[int]]
) -> bool:
    scatters = node.op_type in ("ScatterElements", "ScatterND")
    return scatters and attributes.get("reduction") in (b"min", b"max")


def _to_integers(
    node: Any, attributes: Mapping[str, Any], _shapes: Mapping[str, Sequence[int]]
) -> bool:
    from onnx import helper

    if node.op_type != "Cast":
        return bool(node.op_type == "CastLike")
    return bool(helper.tensor_dtype_to_np_dtype(attributes["to"]).kind in "iu")


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """An operator in a form that is read in two ways.

    `onnx` and `onnxruntime` say what each makes of it, `taken` which of them is compiled: one of
    their names, or what else. `applies` finds nodes of that form, where ONNX's own reference gives
    another result than what is compiled. `of_nan` finds those whose form is a NaN (or an infinity)
    among the elements, by the shapes of weights, too: there a comparison with onnxruntime says
    nothing. With `of_float64` only those of that element type are meant.
    """

    operator: str
    form: str
    onnx: str
    onnxruntime: str
    taken: str
    applies: Callable[[Any, Mapping[str, Any]], bool] = lambda _node, _attributes: False
    of_nan: _OfNan = lambda _node, _attributes, _shapes: False
    of_float64: bool = False


def _by_result(node: Any, attributes: Mapping[str, Any]) -> bool:
    mode = attributes.get("coordinate_transformation_mode", b"half_pixel")
    return node.op_type == "Resize" and mode in (b"align_corners", b"tf_crop_and_resize")


_OF_NAN, _NO_WORD = "a NaN among the elements", "undefined"

MEANINGS: Sequence[Meaning] = (
    Meaning(
        operator="Resize",
        form="align_corners or tf_crop_and_resize, with scales that give no integer size",
        onnx="the last position is computed from the size before rounding",
        onnxruntime="the last result is at the last element, as in PyTorch",
        taken=ONNXRUNTIME,
        applies=_by_result,
    ),
    Meaning(
        operator="Resize, Upsample",
        form="a scale that gives an integer size in float32 alone, such as 0.7 of 10",
        onnx="rounds down what is a little less: 6",
        onnxruntime="the product in float32: 7, as in PyTorch",
        taken=ONNXRUNTIME,
    ),
    Meaning(
        operator="Resize",
        form="nearest by half_pixel_symmetric, a position between two elements or on one",
        onnx="that element",
        onnxruntime="that or the next one: its float32 position is a little off",
        taken=ONNX,
    ),
    Meaning(
        operator="ReduceLogSumExp",
        form="integers (before opset 28)",
        onnx=_NO_WORD,
        onnxruntime="each step is cut to an integer",
        taken="the result is cut to an integer",
    ),
    Meaning(
        operator="ReduceLogSumExp",
        form="a NaN beside the positive infinity",
        onnx="NaN",
        onnxruntime="infinity",
        taken=ONNX,
    ),
    Meaning(
        operator="Resize, Upsample",
        form="integers, in mode linear or cubic",
        onnx="does not define the rounding",
        onnxruntime="linear truncates, cubic rounds and stays in range",
        taken=ONNXRUNTIME,
    ),
    Meaning(
        operator="Resize",
        form="nearest by scales below 1, before opset 11",
        onnx="does not define which element is taken; its tests of that opset round positions up",
        onnxruntime="rounds positions up",
        taken=ONNXRUNTIME,
    ),
    Meaning(
        operator="MatMulNBits, and MatMul by DequantizeLinear in blocks",
        form="an accuracy_level above 1; the second form by default",
        onnx="a float product",
        onnxruntime="may round the activations to 8 bits",
        taken=ONNX,
    ),
    Meaning(
        operator="functions of the model's own",
        form="with another opset than the model's",
        onnx="operators follow the function's opset",
        onnxruntime="operators follow the model's opset",
        taken=ONNX,
    ),
    Meaning(
        operator="Dropout",
        form="the mask, before opset 12",
        onnx="does not define it for inference",
        onnxruntime="false throughout",
        taken=ONNXRUNTIME,
    ),
    Meaning(
        operator="PRelu",
        form="as many slopes as channels, which do not match the last axis",
        onnx="not valid from opset 7 on",
        onnxruntime="a slope for each channel, as before opset 7",
        taken=ONNXRUNTIME,
    ),
    Meaning(
        operator="Reduce*",
        form="noop_with_empty_axes, and no axes",
        onnx="older texts: the unchanged tensor; newer texts: each element reduced by itself",
        onnxruntime="each element by itself: ReduceSumSquare squares it",
        taken=ONNXRUNTIME,
    ),
    Meaning(
        operator="Reduce*",
        form="integers whose mean, root or logarithm is not an integer",
        onnx="does not define the rounding",
        onnxruntime="truncates",
        taken=ONNXRUNTIME,
    ),
    Meaning(
        operator="MaxPool, AveragePool, LpPool",
        form="auto_pad SAME_UPPER or SAME_LOWER, with dilations",
        onnx="the number of results follows from image and stride only",
        onnxruntime="fewer: it pads for a window without dilations",
        taken=ONNX,
    ),
    Meaning(
        operator="LpNormalization",
        form="rows of zeros",
        onnx="0 / 0",
        onnxruntime="zeros",
        taken=ONNXRUNTIME,
    ),
    Meaning(
        operator="MeanVarianceNormalization",
        form="elements that are all equal, or nearly",
        onnx="0, because 1e-9 is added to the deviation of 0",
        onnxruntime="0 / 0, or the rounding error of (mean of squares - square of mean)",
        taken=ONNX,
    ),
    Meaning(
        operator="ReduceMax, ReduceMin, MaxPool, GlobalMaxPool",
        form=_OF_NAN,
        onnx=_NO_WORD,
        onnxruntime="NaN or a number, depending on the position of the NaN",
        taken="NaN, as in PyTorch and numpy",
        of_nan=_any_of("ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool"),
    ),
    Meaning(
        operator="ScatterElements, ScatterND",
        form="min or max as the reduction, a NaN among the elements",
        onnx=_NO_WORD,
        onnxruntime="NaN of the updates stays, NaN of the data does not",
        taken="NaN, as in PyTorch and numpy",
        of_nan=_scatters_extremes,
    ),
    Meaning(
        operator="TopK",
        form=_OF_NAN,
        onnx=_NO_WORD,
        onnxruntime="depends on size and k: the largest of some numbers with a NaN may be missing",
        taken="NaN comes last",
        of_nan=_any_of("TopK"),
    ),
    Meaning(
        operator="ArgMax, ArgMin",
        form=_OF_NAN,
        onnx=_NO_WORD,
        onnxruntime="NaN is found if it is the first element, and the first NaN in a tensor of one "
        "axis unless select_last_index is set",
        taken=ONNXRUNTIME,
    ),
    Meaning(
        operator="Hardmax",
        form=_OF_NAN,
        onnx=_NO_WORD,
        onnxruntime="NaN is ignored; if it is the first element, no element gets 1",
        taken="1 at the element that ArgMax finds",
        of_nan=_any_of("Hardmax"),
    ),
    Meaning(
        operator="LayerNormalization",
        form="an infinity among the elements, with Mean as an output",
        onnx="that infinity is the mean",
        onnxruntime="that, or NaN, depending on its position and on how many elements there are",
        taken=ONNX,
        of_nan=lambda node, _attributes, _shapes: (
            node.op_type == "LayerNormalization" and len(node.output) > 1
        ),
    ),
    Meaning(
        operator="Unique",
        form=_OF_NAN,
        onnx="all NaN are one value, the last of sorted ones",
        onnxruntime="NaN is equal to every other value",
        taken=ONNX,
        of_nan=_any_of("Unique"),
    ),
    Meaning(
        operator="LRN",
        form=f"{_OF_NAN}, or a number whose square is infinite",
        onnx="NaN in the channels whose window has one",
        onnxruntime="NaN in all later channels, too",
        taken=ONNX,
        of_nan=_any_of("LRN"),
    ),
    Meaning(
        operator="LRN",
        form="channels beside much larger ones",
        onnx="the squares in the window are added up",
        onnxruntime="squares are added and taken away from channel to channel, and leave errors",
        taken=ONNX,
    ),
    Meaning(
        operator="LSTM, GRU, RNN",
        form=_OF_NAN,
        onnx="NaN",
        onnxruntime="NaN or a number: some kernels limit the inputs of activations",
        taken=ONNX,
        of_nan=_any_of("LSTM", "GRU", "RNN"),
    ),
    Meaning(
        operator="LSTM, GRU, RNN",
        form="a sequence of length 0 with an initial state",
        onnx=_NO_WORD,
        onnxruntime="its last state is 0",
        taken=ONNXRUNTIME,
    ),
    Meaning(
        operator="Conv, ConvTranspose",
        form="groups of few channels, a NaN or an infinity among the elements",
        onnx="NaN or an infinity in the results of its group",
        onnxruntime=ONNX,
        taken="in many layers NaN also in other groups of the same vector; ONNX with exact, and "
        "where nothing bounds the input that is read",
        of_nan=_in_groups,
    ),
    Meaning(
        operator="Conv",
        form="a layer by Winograd's algorithm, a NaN or an infinity among the elements",
        onnx="NaN or an infinity where the window has it",
        onnxruntime=ONNX,
        taken="NaN in all results of its tile, some of them infinities; ONNX with exact",
    ),
    Meaning(
        operator="ConvTranspose",
        form="a NaN or an infinity among weights that are computed or given at run time",
        onnx="NaN or an infinity where that weight meets an element",
        onnxruntime=ONNX,
        taken="NaN also where it meets the border, as Conv's does",
        of_nan=lambda node, _attributes, shapes: (
            node.op_type == "ConvTranspose" and node.input[1] not in shapes
        ),
    ),
    Meaning(
        operator="GridSample",
        form="border or reflection, a NaN or an infinity that counts 0 times",
        onnx="of no effect on places between an edge pixel and the image's edge",
        onnxruntime=ONNX,
        taken="NaN there, as in PyTorch; by reflection of float32 images, mode linear, ONNX",
        of_nan=lambda node, attributes, _shapes: (
            node.op_type == "GridSample"
            and attributes.get("padding_mode") in (b"border", b"reflection")
        ),
    ),
    Meaning(
        operator="LogSoftmax",
        form="a NaN or an infinity among elements of float64",
        onnx="NaN",
        onnxruntime="numbers or infinities in its row",
        taken=ONNX,
        of_nan=_any_of("LogSoftmax"),
        of_float64=True,
    ),
    Meaning(
        operator="Conv, ConvTranspose, Einsum, Gemm, MatMul, Reduce*, Resize",
        form="finite elements of which products or sums are beyond the float type",
        onnx=_NO_WORD,
        onnxruntime="an infinity of either sign or NaN, by the order of additions",
        taken="the same, by an order of its own",
    ),
    Meaning(
        operator="QuantizeLinear, DynamicQuantizeLinear",
        form="NaN",
        onnx=_NO_WORD,
        onnxruntime="the smallest integer on x86-64",
        taken="an integer, by the CPU's instructions",
        of_nan=_any_of("QuantizeLinear", "DynamicQuantizeLinear"),
    ),
    Meaning(
        operator="Erf, Gelu, HardSwish, Shrink",
        form="float64",
        onnx="in float64",
        onnxruntime="in float32: beyond its range infinite",
        taken=ONNX,
    ),
    Meaning(
        operator="Sign",
        form="NaN of float16",
        onnx=_NO_WORD,
        onnxruntime="0; NaN of float32",
        taken="NaN, as of float32",
        of_nan=_any_of("Sign"),
    ),
    Meaning(
        operator="Cast, CastLike",
        form="floats to int4 and uint4",
        onnx="truncates, as to any integer",
        onnxruntime="rounds, halves away from 0",
        taken=ONNX,
    ),
    Meaning(
        operator="Cast, CastLike",
        form="to float8e5m2 with saturate 0, of what is too large",
        onnx="infinity",
        onnxruntime="NaN",
        taken=ONNX,
    ),
    Meaning(
        operator="Cast, CastLike",
        form="to float8e4m3fn with saturate 0, of what is too large",
        onnx="NaN",
        onnxruntime="NaN, but of numbers from 480 to 496 the largest, 448",
        taken=ONNX,
    ),
    Meaning(
        operator="Cast, CastLike",
        form="floats beyond the integer type's range, and NaN",
        onnx="undefined",
        onnxruntime="by the CPU: of int32 the smallest integer on x86-64, the nearest on ARM",
        taken="by the CPU's instructions, too",
        of_nan=_to_integers,
    ),
    Meaning(
        operator="Div, Mod",
        form="integers by 0",
        onnx="undefined",
        onnxruntime="ends with SIGFPE on x86-64",
        taken="0 on every CPU, as from ARM's instructions",
    ),
    Meaning(
        operator="ReduceL1, ReduceProd, ReduceSum, ReduceSumSquare, Pow",
        form="results beyond the integer type",
        onnx=_NO_WORD,
        onnxruntime="some kernels compute in floating point, and give the smallest integer",
        taken="the lowest bits, as in numpy; by Pow, of exponents below 64",
    ),
    Meaning(
        operator="all",
        form="float16",
        onnx="each result is rounded to that type",
        onnxruntime="depends on the kernel: some results are rounded, others computed in float32",
        taken="in float32; inputs, outputs and casts are rounded",
    ),
    Meaning(
        operator="all",
        form="bfloat16",
        onnx="each result is rounded to that type",
        onnxruntime="runs few operators",
        taken="each result is computed in float32, and rounded",
    ),
    Meaning(
        operator="LayerNormalization, GroupNormalization, RMSNormalization",
        form="float64",
        onnx="in float32, as stash_type says unless it is set",
        onnxruntime="in float32",
        taken="computed in float64",
    ),
    Meaning(
        operator="Resize, Upsample",
        form="linear or cubic, a NaN or an infinity that counts 0 times",
        onnx="NaN by the formula; its reference leaves it out",
        onnxruntime="NaN",
        taken="NaN in images, but where positions are beyond the edge; else it is not read",
        of_nan=lambda node, attributes, _shapes: (
            node.op_type in ("Resize", "Upsample")
            and attributes.get("mode") in (b"linear", b"cubic")
        ),
    ),
    Meaning(
        operator="quantised operators",
        form="a QuantizeLinear and its DequantizeLinear beside operators on integers",
        onnx="what is between is rounded",
        onnxruntime="rounded",
        taken="what is between is not rounded",
    ),
    Meaning(
        operator="quantised operators",
        form="a product between DequantizeLinear and QuantizeLinear",
        onnx="floats between integers",
        onnxruntime="integers, rounded at places that vary by version",
        taken="integers, rounded once: edgepack.kernels.integer",
    ),
)


def as_meant(proto: Any) -> Any:
    """The model as onnxruntime has to be given it, so that it does what is compiled."""
    if proto.functions:
        proto = of_one_opset(proto)
    return as_rounded_floats(_with_deviations(proto))


def _with_deviations(proto: Any) -> Any:
    """The model with what onnxruntime has to do in other words: MeanVarianceNormalization written
    out, casts to 4 bits by way of 8, the borders of some pools as numbers, and products by weights
    of few bits without a word that allows it to round."""
    from edgepack.model import walk_nodes
    from edgepack.model.structure import subgraphs

    operators = {node.op_type for node in walk_nodes(proto.graph)}
    if not operators & {_NORMALIZATION, "CastLike"} and not any(
        _is_to_4_bits(node, {}) or _is_padded_by_size(node) or _may_round(node)
        for node in walk_nodes(proto.graph)
    ):
        return proto
    changed = type(proto)()
    changed.CopyFrom(proto)
    version = max(o.version for o in proto.opset_import if o.domain in ("", "ai.onnx"))
    index = _index(proto)
    kinds = index.types
    graphs = [changed.graph]
    while graphs:
        graph = graphs.pop()
        nodes: list[Any] = []
        for node in graph.node:
            if node.op_type == _NORMALIZATION:
                nodes += _written_out(node, version, kinds)
            elif _is_to_4_bits(node, kinds):
                nodes += _by_8_bits(node)
            elif _is_padded_by_size(node):
                nodes.append(_with_borders(node, index))
            elif _may_round(node):
                nodes.append(_of_floats(node))
            else:
                nodes.append(node)
        copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)
        graphs += [inner for node in graph.node for inner in subgraphs(node)]
    return changed


def _may_round(node: Any) -> bool:
    """Whether it is a product by weights of few bits that may be less exact than one of floats."""
    if node.op_type != "MatMulNBits":
        return False
    level: int = _attributes(node).get("accuracy_level", 0)
    return level > 1


def _of_floats(node: Any) -> Any:
    made = type(node)()
    made.CopyFrom(node)
    left = [item for item in made.attribute if item.name != "accuracy_level"]
    del made.attribute[:]
    made.attribute.extend(left)
    return made


def _is_to_4_bits(node: Any, kinds: Mapping[str, int]) -> bool:
    from onnx import TensorProto

    to = 0
    if node.op_type == "Cast":
        to = next((item.i for item in node.attribute if item.name == "to"), 0)
    elif node.op_type == "CastLike":
        to = kinds.get(node.input[1], 0)
    return to in (TensorProto.INT4, TensorProto.UINT4)


def _is_padded_by_size(node: Any) -> bool:
    """Whether it is a pool with an auto_pad that its size follows from, and dilations or strides
    beyond its window, where onnxruntime fails at borders below 0."""
    if node.op_type not in ("MaxPool", "AveragePool", "LpPool"):
        return False
    given = _attributes(node)
    by_size: bool = given.get("auto_pad", b"").startswith(b"SAME")
    window = given.get("kernel_shape", [])
    skips = any(
        stride > size for stride, size in zip(given.get("strides", []), window, strict=False)
    )
    return by_size and (skips or max(given.get("dilations", [1])) > 1)


def _with_borders(node: Any, index: GraphIndex) -> Any:
    """The same with its borders as numbers; as it is where an extent is not known."""
    from onnx import helper

    given = _attributes(node)
    image = index.infos.get(node.input[0])
    extents = [dim.dim_value for dim in image.type.tensor_type.shape.dim[2:]] if image else []
    if not extents or not all(extents):
        return node
    window = given["kernel_shape"]
    strides = given.get("strides", [1] * len(window))
    before, after = [], []
    for extent, size, stride, step in zip(
        extents, window, strides, given.get("dilations", [1] * len(window)), strict=True
    ):
        last = (-(-extent // stride) - 1) * stride
        total = max(last + (size - 1) * step + 1 - extent, 0)
        less, more = total // 2, total - total // 2
        before.append(less if given["auto_pad"] == b"SAME_UPPER" else more)
        after.append(total - before[-1])
    kept = {key: value for key, value in given.items() if key not in ("auto_pad", "ceil_mode")}
    return helper.make_node(
        node.op_type,
        node.input,
        node.output,
        node.name,
        domain=node.domain,
        **{**kept, "pads": before + after},
    )


def _by_8_bits(node: Any) -> list[Any]:
    """A cast of what was cut off to int8 before, whose lowest bits are the same."""
    from onnx import TensorProto, helper

    between = f"{node.output[0]}/int8"
    last = type(node)()
    last.CopyFrom(node)
    last.input[0] = between
    return [helper.make_node("Cast", node.input[:1], [between], to=TensorProto.INT8), last]


_NORMALIZATION = "MeanVarianceNormalization"


def _index(proto: Any) -> GraphIndex:
    """What is known of tensors inside the graph; float32 is what onnxruntime has of others."""
    try:
        graph = infer_types(proto).graph
    except (ValueError, RuntimeError):  # beyond 2 GB, or no type for an operator of others
        graph = proto.graph
    return GraphIndex(graph)


def _written_out(node: Any, version: int, kinds: Mapping[str, int]) -> list[Any]:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    (data,), (result,) = node.input, node.output
    given = {item.name: list(item.ints) for item in node.attribute}
    axes = given.get("axes", [0, 2, 3])
    nodes: list[Any] = []

    def add(kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{result}/{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(value: Any) -> str:
        return add("Constant", value=numpy_helper.from_array(np.array(value)))

    def mean(of: str) -> str:
        if version < _AXES_AS_INPUT:
            return add("ReduceMean", of, axes=axes)
        return add("ReduceMean", of, constant(np.array(axes, "int64")))

    off = add("Sub", data, mean(data))
    deviation = add("Sqrt", mean(add("Mul", off, off)))
    kind = helper.tensor_dtype_to_np_dtype(kinds.get(result) or TensorProto.FLOAT)
    # Of halves it would be 0.
    least = max(1e-9, float(np.finfo(kind).smallest_subnormal))
    deviation = add("Add", deviation, constant(np.array(least, kind)))
    nodes.append(helper.make_node("Div", [off, deviation], [result]))
    return nodes


# ReduceMean's, in ONNX.
_AXES_AS_INPUT = 18


def departures(proto: Any, node: Any = None) -> list[Meaning]:
    """What of a model's graph, or of one of its nodes, is compiled otherwise than ONNX's own
    reference has it."""
    from edgepack.model import walk_nodes

    found = []
    for one in walk_nodes(proto.graph) if node is None else [node]:
        given = _attributes(one)
        found += [m for m in MEANINGS if m.applies(one, given) and m not in found]
    return found


def choices_of_nan(proto: Any, node: Any = None) -> list[Meaning]:
    """What of a model's graph, or of one of its nodes, is by choice where a NaN is among an
    operator's elements."""
    from edgepack.model import walk_nodes

    shapes = {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    found: list[Meaning] = []
    for one in walk_nodes(proto.graph) if node is None else [node]:
        given = _attributes(one)
        for meaning in MEANINGS:
            if meaning in found or not meaning.of_nan(one, given, shapes):
                continue
            if not meaning.of_float64 or _is_of_float64(proto, one):
                found.append(meaning)
    return found


def _is_of_float64(proto: Any, node: Any) -> bool:
    from onnx import TensorProto

    return bool(_index(proto).types.get(node.input[0]) == TensorProto.DOUBLE)


def _attributes(node: Any) -> dict[str, Any]:
    from onnx import helper

    return {
        item.name: helper.get_attribute_value(item)
        for item in node.attribute
        if not item.ref_attr_name
    }

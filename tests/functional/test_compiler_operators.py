"""Operators on plain tensors, on every instruction set, against onnxruntime.

What the schedules make of reductions, softmax, norms, products, poolings, copies and element-wise
chains. Shapes come from a fixed seed; most sizes are no multiple of any vector's width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.frontend.precision import FULL
from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target_in_parts, save_cases, some, wrong_outputs

INPUTS: dict[str, tuple[int, ...]] = {
    "row": (1, 67),
    "matrix": (19, 45),
    "text": (2, 11, 40),
    "heads": (2, 3, 11, 16),
    "image": (1, 7, 13, 18),
    "batch": (3, 5, 9, 7),
    "planes": (1, 32, 7, 7),
}
# A longer form draws more cases of each family from other seeds.
SEEDS = [13, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (14, 15, 16))]

Cases = dict[str, str]
TENSOR_TYPES = {"uint8": TensorProto.UINT8, "uint32": TensorProto.UINT32}


class Draw:
    """Random sources and parameters."""

    def __init__(self, net: Builder, seed: int) -> None:
        self.net = net
        self.random = np.random.default_rng(seed)

    def of(self, items: Sequence[str]) -> str:
        return items[int(self.random.integers(len(items)))]

    def source(self, ranks: Sequence[int] = (2, 3, 4)) -> tuple[str, tuple[int, ...]]:
        name = self.of([name for name, shape in INPUTS.items() if len(shape) in ranks])
        return name, INPUTS[name]

    def axes(self, rank: int) -> list[int]:
        count = int(self.random.integers(1, rank + 1))
        return sorted(self.random.permutation(rank)[:count].tolist())

    def positive(self, value: str) -> str:
        """Between 0.5 and 1.5 or so: products of many do not vanish."""
        squashed = self.net.op("Sigmoid", value)
        return self.net.op("Add", squashed, self.net.const(0.5, "float32"))


def reductions(draw: Draw) -> Cases:
    net, cases = draw.net, {}
    for op in ("Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "L2", "LogSumExp"):
        source, shape = draw.source()
        axes, keep = draw.axes(len(shape)), int(draw.random.integers(2))
        data = draw.positive(source) if op == "Prod" else source
        name = f"Reduce{op} {source} {axes} {keep}"
        if op == "Sum":
            cases[name] = net.op(f"Reduce{op}", data, net.const(axes, "int64"), keepdims=keep)
        else:
            cases[name] = net.op(f"Reduce{op}", data, axes=axes, keepdims=keep)
    for op in ("ArgMax", "ArgMin"):
        source, shape = draw.source()
        axis = int(draw.random.integers(len(shape)))
        index = net.op(op, source, axis=axis)
        cases[f"{op} {source} {axis}"] = net.op("Cast", index, to=TensorProto.FLOAT)
    return cases


def softmax(draw: Draw) -> Cases:
    cases = {}
    for op in ("Softmax", "Softmax", "LogSoftmax"):
        source, shape = draw.source()
        axis = int(draw.random.integers(len(shape)))
        cases[f"{op} {source} {axis}"] = draw.net.op(op, source, axis=axis)
    return cases


def norms(draw: Draw) -> Cases:
    net = draw.net
    source, shape = draw.source((3, 4))
    scale, shift = net.weight(shape[-1]), net.weight(shape[-1])
    channels = INPUTS["batch"][1]
    deviation = net.op("Sub", source, net.op("ReduceMean", source, axes=[-1]))
    variance = net.op("ReduceMean", net.op("Mul", deviation, deviation), axes=[-1])
    variance = net.op("Add", variance, net.const(1e-5, "float32"))
    return {
        f"LayerNormalization {source}": net.op("LayerNormalization", source, scale, shift),
        f"norm by its parts {source}": net.op("Div", deviation, net.op("Sqrt", variance)),
        "InstanceNormalization": net.op(
            "InstanceNormalization", "batch", net.weight(channels), net.weight(channels)
        ),
        "1-norm of columns": net.op("LpNormalization", "matrix", axis=0, p=1),
        # Rows of zeros, too.
        "2-norm": net.op("LpNormalization", net.op("Floor", net.op("Sigmoid", "text")), p=2),
        "2-norm of channels": net.op("LpNormalization", "image", axis=1),
    }


def products(draw: Draw) -> Cases:
    net = draw.net
    rows, depth, columns = (int(size) for size in draw.random.integers(2, 50, size=3))
    left = net.op("MatMul", "matrix", net.weight(45, depth))
    upright = net.op("Transpose", left, perm=[1, 0])
    right = net.op("MatMul", "text", net.weight(40, columns))
    turned = net.op("Transpose", "heads", perm=[0, 1, 3, 2])
    weight = net.op("Transpose", net.op("Gemm", "matrix", net.weight(45, rows)), perm=[1, 0])
    hidden = net.op("Add", net.op("MatMul", "text", net.weight(40, 72)), net.weight(72))
    narrow = net.op("MatMul", "matrix", net.weight(45, 16))
    scores = net.op("Softmax", net.op("MatMul", "heads", turned), axis=-1)
    sides = net.op("Transpose", "image", perm=[0, 1, 3, 2])
    long = net.op("MatMul", "text", net.weight(40, 150))
    return {
        "one left, many right": net.op("MatMul", narrow, turned),
        "many left, one right": net.op("MatMul", "heads", net.op("Transpose", narrow, perm=[1, 0])),
        "attention": net.op("MatMul", scores, "heads"),
        # Large enough for cores to share.
        "shared": net.op("MatMul", net.op("Transpose", long, perm=[0, 2, 1]), long),
        "odd depth": net.op("MatMul", sides, "image"),
        "odd columns": net.op("MatMul", "image", sides),
        "few columns": net.op("MatMul", "image", net.weight(18, 3)),
        f"wide {columns}": net.op("MatMul", "text", net.weight(40, 100 + columns)),
        f"constant {depth}": left,
        f"constant, batch {columns}": right,
        "both given": net.op("MatMul", left, upright),
        f"one row {rows}": net.op("MatMul", "row", net.weight(67, rows)),
        "one row, both given": net.op("MatMul", net.op("ReduceMean", left, axes=[0]), upright),
        "heads": net.op("MatMul", "heads", turned),
        "heads, other way": net.op("MatMul", turned, "heads"),
        f"turned by {rows}": net.op("MatMul", weight, "matrix"),
        "hidden layer": net.op("Mul", hidden, net.op("Sigmoid", hidden)),
        "residual": net.op("Add", net.op("MatMul", "text", net.weight(40, 40)), "text"),
    }


def poolings(draw: Draw) -> Cases:
    """On plain tensors, and between convolutions."""
    net, cases = draw.net, {}
    for index in range(5):
        source, shape = draw.source((4,))
        kernel = draw.random.integers(1, 5, size=2)
        options = {
            "kernel_shape": kernel.tolist(),
            "strides": draw.random.integers(1, 4, size=2).tolist(),
            "pads": [int(draw.random.integers(size)) for size in (*kernel, *kernel)],
            "ceil_mode": int(draw.random.integers(2)),
        }
        op = ("MaxPool", "AveragePool")[index % 2]
        if op == "AveragePool":
            options["count_include_pad"] = int(draw.random.integers(2))
            options["ceil_mode"] = 0
        channels = shape[1]
        if index > 2:
            source = net.conv(source, channels, channels, 1)
        cases[f"{op} {source} {options}"] = net.op(op, source, **options)
    source, shape = draw.source((4,))
    for op in ("GlobalMaxPool", "GlobalAveragePool"):
        cases[op] = net.op(op, source)
    between = net.conv(source, shape[1], shape[1], 1)
    most = net.op("GlobalMaxPool", between)
    # Together as in attention per channel, with what follows, and all below or above zero.
    cases["GlobalMaxPool of a convolution"] = net.op(
        "Relu", net.op("Add", most, net.op("GlobalAveragePool", between))
    )
    for op, sign in (("ReduceMax", "Neg"), ("ReduceMin", "Abs")):
        extreme = net.op(op, net.op(sign, net.op("Abs", between)), axes=[2, 3])
        cases[f"{op} of {sign}"] = net.op("Mul", between, extreme)
    return cases


def copies(draw: Draw) -> Cases:
    net, cases = draw.net, {}
    for _ in range(3):
        source, shape = draw.source()
        perm = draw.random.permutation(len(shape)).tolist()
        cases[f"Transpose {source} {perm}"] = net.op("Transpose", source, perm=perm)
    for mode in ("constant", "reflect", "edge"):
        source, shape = draw.source((3, 4))
        pads = [int(v) for v in draw.random.integers(0, 3, size=2 * len(shape))]
        pads = [min(pad, shape[i % len(shape)] - 1) for i, pad in enumerate(pads)]
        padded = net.op("Pad", source, net.const(pads, "int64"), mode=mode)
        cases[f"Pad {source} {mode} {pads}"] = padded
    for _ in range(2):
        source, shape = draw.source()
        axis = int(draw.random.integers(len(shape)))
        cases[f"Concat {source} {axis}"] = net.op("Concat", source, source, axis=axis)
        step = int(draw.random.integers(1, 4))
        bounds = [net.const([value], "int64") for value in (1, shape[axis], axis, step)]
        if shape[axis] > 1:
            cases[f"Slice {source} {axis} {step}"] = net.op("Slice", source, *bounds)
    ends = (net.const([value], "int64") for value in (-1, -100, 3, -1))
    cases["Slice backwards"] = net.op("Slice", "image", *ends)
    scales = net.const([1.0, 1.0, 2.0, float(draw.random.integers(1, 4))], "float32")
    for mode in ("nearest", "linear"):
        cases[f"Resize {mode}"] = net.op("Resize", "batch", "", scales, mode=mode)
    cases["DepthToSpace"] = net.op("DepthToSpace", "planes", blocksize=4)
    cases["SpaceToDepth"] = net.op("SpaceToDepth", cases["DepthToSpace"], blocksize=2)
    cases["Tile"] = net.op("Tile", "image", net.const([2, 1, 1, 3], "int64"))
    cases["Gather"] = net.op("Gather", "matrix", net.const([[3, 0], [18, 3]], "int64"), axis=0)
    cases["Expand"] = net.op("Expand", "matrix", net.const([3, 19, 45], "int64"))
    return cases


def channels_last(draw: Draw) -> Cases:
    """Between convolutions, as ConvNeXt has it; with results that are read in both orders."""
    net, cases = draw.net, {}
    for rank in (4, 4, 3):
        source, (_, channels, *_) = draw.source((rank,))
        last, first = ([0, 2, 3, 1], [0, 3, 1, 2]) if rank == 4 else ([0, 2, 1], [0, 2, 1])
        window = [1] * (rank - 2)

        def conv(value: str, inside: int, outside: int, window: list[int] = window) -> str:
            return net.op("Conv", value, net.weight(outside, inside, *window), net.weight(outside))

        width = int(draw.random.integers(3, 40))
        turned = net.op("Transpose", conv(source, channels, width), perm=last)
        scale, bias = net.weight(width), net.weight(width)
        norm = net.op("LayerNormalization", turned, scale, bias, axis=-1)
        hidden = net.op("Relu", net.op("MatMul", norm, net.weight(width, 24)))
        back = net.op("Transpose", net.op("MatMul", hidden, net.weight(24, width)), perm=first)
        cases[f"rank {rank}: there"] = norm
        cases[f"rank {rank}: and back"] = conv(back, width, 7)
        cases[f"rank {rank}: both"] = net.op("Add", conv(back, width, width), net.op("Exp", back))
        flat = net.op("Flatten", back)
        cases[f"rank {rank}: flat"] = net.op("Softmax", flat)
    plain = net.op("Transpose", "batch", perm=[0, 3, 1, 2])
    cases["from the start"] = net.conv(net.conv(plain, 7, 8, 1), 8, 8, 3)
    return cases


def updates(draw: Draw) -> Cases:
    """Some elements are written anew: in place, or of a tensor that others read as well."""
    net, cases = draw.net, {}

    def of(source: str) -> str:
        return net.op("Neg", source) if draw.random.integers(2) else source

    for name in ("elements", "fewer elements"):
        source, shape = draw.source()
        axis = int(draw.random.integers(len(shape)))
        sizes = [int(draw.random.integers(1, size + 1)) for size in shape]
        # No place twice, some counted from the end.
        order = draw.random.permutation(shape[axis])[: sizes[axis]]
        order = order - shape[axis] * draw.random.integers(0, 2, size=order.shape)
        places = np.moveaxis(
            np.broadcast_to(order, [*np.delete(sizes, axis), len(order)]), -1, axis
        )
        given = [of(source), net.const(places, "int64"), net.weight(*sizes)]
        cases[f"{name} {source} {axis} {sizes}"] = net.op("ScatterElements", *given, axis=axis)
    for reduction in ("add", "mul", "min", "max"):
        # The same places again and again: one update comes after the other.
        given = [of("heads"), net.const(draw.random.integers(-3, 3, size=(2, 3, 11, 5)), "int64")]
        given += [net.weight(2, 3, 11, 5)]
        cases[f"elements {reduction}"] = net.op(
            "ScatterElements", *given, axis=1, reduction=reduction
        )
        given = [of("heads"), net.const(draw.random.integers(2, size=(3, 1)), "int64")]
        given += [net.weight(3, 3, 11, 16)]
        cases[f"rows again {reduction}"] = net.op("ScatterND", *given, reduction=reduction)
    for axes, reduction in ((1, "none"), (2, "none"), (1, "add")):
        places = np.stack([draw.random.permutation(size)[:2] for size in (2, 3, 11)[:axes]], -1)
        given = [of("heads"), net.const(places - [2, 3, 11][:axes], "int64")]
        given += [net.weight(2, *(2, 3, 11, 16)[axes:])]
        cases[f"rows {axes} {reduction}"] = net.op("ScatterND", *given, reduction=reduction)
        order = draw.random.permutation(4).tolist()
        extents = [INPUTS["heads"][axis] for axis in order]
        places = np.stack([draw.random.permutation(size)[:2] for size in extents[:axes]], -1)
        turned = net.op("Transpose", of("heads"), perm=order)
        rows = net.op(
            *("ScatterND", turned, net.const(places, "int64"), net.weight(2, *extents[axes:])),
            reduction=reduction,
        )
        back = net.op("Transpose", rows, perm=np.argsort(order).tolist())
        cases[f"parts {order} {axes} {reduction}"] = net.op("Add", back, back)
        cases[f"parts {order} {axes} {reduction} turned"] = net.op(
            "Transpose", rows, perm=[3, 0, 1, 2]
        )
    return cases


def element_wise(draw: Draw) -> Cases:
    """Chains of two functions; operands that broadcast."""
    net, cases = draw.net, {}
    functions = [
        "Abs", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "LeakyRelu",
        "Neg", "Relu", "Round", "Selu", "Sigmoid", "Sin", "Softplus", "Softsign", "Tanh",
    ]  # fmt: skip
    for _ in range(8):
        source, _ = draw.source()
        first, second = draw.of(functions), draw.of(functions)
        cases[f"{second} of {first} of {source}"] = net.op(second, net.op(first, source))
    for op in ("Sqrt", "Log", "Reciprocal"):
        source, _ = draw.source()
        cases[f"{op} {source}"] = net.op(op, draw.positive(source))
    for op in ("Exp", "Sigmoid", "Tanh", "Erf", "Sin"):
        # Half of these logarithms are NaN.
        source, _ = draw.source()
        cases[f"{op} of NaN {source}"] = net.op(op, net.op("Log", source))
    for exponent in (2.0, 3.0, 0.5, -1.5):
        source, _ = draw.source()
        power = net.op("Pow", draw.positive(source), net.const(exponent, "float32"))
        cases[f"Pow {source} {exponent}"] = power
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu"):
        source, shape = draw.source((3, 4))
        kept = draw.axes(len(shape))
        other = net.weight(*(size if axis in kept else 1 for axis, size in enumerate(shape)))
        other = draw.positive(other) if op == "Div" else other
        cases[f"{op} {source} {kept}"] = net.op(op, source, other)
    # Linear attention: two parts of one product, and heads made channels.
    product = draw.positive(net.op("MatMul", "heads", net.weight(16, 17)))
    columns, column = (
        net.op("Slice", product, *(net.const([n], "int64") for n in (first, last, 3)))
        for first, last in ((0, 16), (16, 17))
    )
    parts = net.op("Div", columns, net.op("Add", column, net.const(0.01, "float32")))
    cases["over the last column"] = net.op("Transpose", parts, perm=[0, 1, 3, 2])
    # NaN stays NaN, on whichever side.
    root = net.op("Sqrt", "text")
    for op in ("Max", "Min"):
        cases[f"{op} of three"] = net.op(op, "text", root, net.op("Neg", "text"))
        cases[f"{op} of NaN and a number"] = net.op(op, root, net.const(0.5, "float32"))
    # TVM's analysis takes exponential time for functions of functions.
    for source in ("text", net.conv("image", 7, 4, 1)):
        deep = source
        for _ in range(7):
            deep = net.op("Sigmoid", net.op("Mul", deep, net.const(4.0, "float32")))
        cases[f"seven functions of {source}"] = deep
        # What reads its argument most often.
        far = net.op("Add", draw.positive(source), net.const(2.5, "float32"))
        cases[f"three logarithms of {source}"] = net.op("Log", net.op("Log", net.op("Log", far)))
        cases[f"power in a logarithm of {source}"] = net.op(
            "Log", net.op("Pow", far, net.const(0.75, "float32"))
        )
    for dtype, bits in (("uint8", 8), ("uint32", 32)):
        large = net.op("Abs", net.op("Mul", "text", net.const(2.0 ** (bits - 3), "float32")))
        whole = net.op("Cast", large, to=TENSOR_TYPES[dtype])
        shifts = net.const(draw.random.integers(0, bits, size=40), dtype)
        for direction in ("LEFT", "RIGHT"):
            shifted = net.op("BitShift", whole, shifts, direction=direction)
            cases[f"BitShift {dtype} {direction}"] = net.op("Cast", shifted, to=TensorProto.DOUBLE)
    greater = net.op("Greater", "text", net.const(0.0, "float32"))
    cases["Where"] = net.op("Where", greater, "text", net.op("Neg", "text"))
    return cases


def sorting(draw: Draw) -> Cases:
    net, cases = draw.net, {}
    # Many equal elements: of those the first counts.
    source = net.op("Round", "text")
    for index, (count, options) in enumerate(
        (
            (3, {"axis": 1}),
            (40, {"axis": 2, "largest": 0}),
            (7, {"axis": -1}),
            (1, {"axis": 0, "largest": 0}),
        )
    ):
        values, indices = f"top{index}", f"at{index}"
        source = "text" if index == 3 else source
        net.op("TopK", source, net.const([count], "int64"), outputs=[values, indices], **options)
        cases[f"TopK {count} {options}"] = values
        cases[f"TopK {count} {options}, indices"] = net.op("Cast", indices, to=TensorProto.FLOAT)
    return cases


def others(draw: Draw) -> Cases:
    net = draw.net
    lengths = net.const([2, 0, 5], "int64")
    shaped = net.op(
        "ConvTranspose",
        "batch",
        net.weight(5, 4, 3, 3),
        strides=[3, 2],
        output_shape=[28, 15],
    )
    statistics = [net.weight(7) for _ in range(3)]
    variance = draw.positive(net.weight(7))
    outputs = ["normal", "mean", "variance"]
    net.op("BatchNormalization", "image", *statistics, variance, outputs=outputs, training_mode=1)
    signal = net.op("Reshape", "text", net.const([2, 440, 1], "int64"))
    window = net.op("HannWindow", net.const(64, "int64"))
    half = net.op("Slice", "heads", *(net.const([n], "int64") for n in (0, 2, 3)))
    return {
        "ConvTranspose with output_shape": shaped,
        "ReverseSequence": net.op(
            "ReverseSequence", net.op("Transpose", "batch", perm=[1, 0, 2, 3]), lengths
        ),
        "DFT": net.op("DFT", half, axis=2),
        "DFT back": net.op("DFT", half, axis=2, inverse=1),
        "DFT of fewer": net.op("DFT", signal, net.const(300, "int64"), onesided=1),
        "STFT": net.op("STFT", signal, net.const(24, "int64"), window),
        **{f"BatchNormalization in training, {name}": name for name in outputs},
    }


def choices(draw: Draw) -> Cases:
    """What picks elements by number, or numbers by what they are."""
    net, cases = draw.net, {}

    def real(value: str) -> str:
        return net.op("Cast", value, to=TensorProto.FLOAT)

    def integers(value: str, factor: float = 3.0) -> str:
        scaled = net.op("Mul", value, net.const(factor, "float32"))
        return net.op("Cast", scaled, to=TensorProto.INT64)

    ends = net.const([-1.0, 2.5], "float32")
    for axis in (0, -1):
        number = integers("matrix")
        cases[f"OneHot {axis}"] = net.op("OneHot", number, net.const(5, "int64"), ends, axis=axis)
    whole, powers = integers("text"), net.const(draw.random.integers(0, 9, size=40), "int64")
    cases["Pow of integers"] = net.op("Cast", net.op("Pow", whole, powers), to=TensorProto.DOUBLE)
    cases["Pow by integers"] = net.op("Pow", draw.positive("text"), powers)
    pooled = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}
    for source, order in (("image", 0), ("batch", 1)):
        names = [f"{source}.pooled", f"{source}.places"]
        net.op("MaxPool", source, outputs=names, storage_order=order, **pooled)
        cases |= {f"MaxPool of {source}": names[0], f"MaxPool at {source}": real(names[1])}
    one = {"kernel_shape": [2, 2], "strides": [2, 2]}
    even = net.op("Slice", "image", *(net.const([n], "int64") for n in (0, 12, 2)))
    net.op("MaxPool", even, outputs=["kept", "kept at"], **one)
    cases["MaxUnpool"] = net.op("MaxUnpool", "kept", "kept at", **one)
    boxes = net.const([[1, 2, 5.5, 8], [-3, 0, 4, 4.2], [10, 9, 30, 20]], "float32")
    of = net.const([0, 2, 1], "int64")
    for mode, coordinates in (("avg", "half_pixel"), ("avg", "output_half_pixel")):
        cases[f"RoiAlign {mode} {coordinates}"] = net.op(
            "RoiAlign",
            *("batch", boxes, of),
            mode=mode,
            coordinate_transformation_mode=coordinates,
            output_height=3,
            output_width=2,
            sampling_ratio=2,
            spatial_scale=0.7,
        )
    tokens = net.op("Cast", integers("matrix", 2.0), to=TensorProto.INT32)
    cases["TfIdfVectorizer"] = net.op(
        "TfIdfVectorizer",
        tokens,
        mode="TFIDF",
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=2,
        ngram_counts=[0, 3],
        ngram_indexes=[4, 0, 2, 1, 3],
        pool_int64s=[0, 1, -2, 0, 1, -1, 0],
        weights=[1.0, 0.5, 2.0, 3.0, 0.25],
    )
    truth = net.op("Greater", "text", net.const(1.0, "float32"))
    cases["ReduceMax of truth"] = real(
        net.op("Cast", net.op("ReduceMax", real(truth), axes=[1]), to=TensorProto.BOOL)
    )
    return cases


def quantised(draw: Draw) -> Cases:
    """Operators on integers; what they make is scaled back, so that one step is a difference."""
    net = draw.net

    def scale(value: float) -> str:
        return net.const(value, "float32")

    def integers(*shape: int, dtype: str) -> str:
        return net.const(draw.random.integers(*_ends(dtype), size=shape), dtype)

    def real(value: str) -> str:
        return net.op("Cast", value, to=TensorProto.FLOAT)

    zero, image_scale = net.const(117, "uint8"), scale(0.02)
    image = net.op("QuantizeLinear", "image", image_scale, zero)
    matrix_zero, matrix_scale = net.const(-3, "int8"), scale(0.03)
    matrix = net.op("QuantizeLinear", "matrix", matrix_scale, matrix_zero)
    channels = net.const(draw.random.uniform(0.01, 0.02, size=5), "float32")
    # Where a CPU has no dot products onnxruntime adds products in 16 bits, which larger ones fill.
    weights = net.const(draw.random.integers(-63, 64, size=(5, 7, 3, 3)), "int8")
    by_column = integers(45, 10, dtype="int8")
    out = [scale(0.3), net.const(99, "uint8")]
    columns = net.const(draw.random.uniform(0.01, 0.02, size=10), "float32")
    return {
        "QLinearConv": real(
            net.op(
                "QLinearConv",
                *(image, image_scale, zero, weights, channels, net.const([0] * 5, "int8"), *out),
                net.const(draw.random.integers(-900, 900, size=5), "int32"),
                pads=[1, 1, 1, 1],
                strides=[2, 1],
            )
        ),
        "QLinearMatMul": real(
            net.op(
                "QLinearMatMul",
                *(matrix, matrix_scale, matrix_zero, by_column, columns),
                *(net.const([0] * 10, "int8"), scale(0.4), net.const(5, "int8")),
            )
        ),
        "MatMulInteger": real(net.op("MatMulInteger", matrix, by_column, matrix_zero)),
        "ConvInteger": real(
            net.op(
                "ConvInteger", image, integers(4, 7, 2, 2, dtype="uint8"), zero, dilations=[2, 2]
            )
        ),
        "DynamicQuantizeLinear": real(
            net.op("DynamicQuantizeLinear", "text", outputs=["q", "s", "z"])
        ),
    }


def _ends(dtype: str) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return info.min, info.max + 1


FAMILIES: tuple[Callable[[Draw], Cases], ...] = (
    reductions,
    softmax,
    norms,
    products,
    poolings,
    copies,
    channels_last,
    updates,
    element_wise,
    sorting,
    choices,
    quantised,
    others,
)


@pytest.mark.parametrize("seed", SEEDS)
@every_target_in_parts
def test_outputs_equal_onnxruntime(
    tmp_path: Path, board: str, cpu: str, part: slice, seed: int
) -> None:
    draw = Draw(Builder(seed), seed)
    cases = {
        f"{family.__name__}: {name}": value
        for family in FAMILIES
        for name, value in some(family(draw), part).items()
    }
    path = save_cases(tmp_path / "operators.onnx", draw.net, INPUTS, cases)
    inputs = [draw.random.normal(size=shape).astype("float32") for shape in INPUTS.values()]
    # What is left in float, for that is faster, may be a step away from integers.
    integers = replace(FULL, quantized="int8")
    _, got = compile_and_run(path, inputs, board, cpu, tmp_path, precision=integers)
    assert not wrong_outputs(path, inputs, got)


def test_quantised_operators_of_onnxruntime(tmp_path: Path) -> None:
    """com.microsoft's, which round once more than ONNX's: at most one step from onnxruntime's."""
    nodes, weights = [], []
    random = np.random.default_rng(5)
    for name, value in {
        "s": np.float32(0.02),
        "z": np.uint8(120),
        "t": np.float32(0.01),
        "zero": np.uint8(0),
        "small": np.float32(1 / 256),
        "mask": random.random((1, 3, 5, 9)) > 0.5,
        # Of 7 bits: with 8, onnxruntime on AVX2 cuts off sums of two products at 16.
        "weights": random.integers(-64, 63, (6, 9), dtype="int8"),
        "scales": random.uniform(0.01, 0.05, 6).astype("float32"),
        "zeros": random.integers(-9, 9, 6, dtype="int8"),
        "bias": random.integers(-900, 900, 6, dtype="int32"),
        "rows": np.array([15, 9]),
    }.items():
        weights.append(numpy_helper.from_array(np.asarray(value), name))

    def node(op: str, inputs: Sequence[str], output: str, **options: object) -> None:
        microsoft = {"domain": "com.microsoft"} if op.startswith("QL") or op == "QGemm" else {}
        nodes.append(helper.make_node(op, inputs, [output], name=output, **microsoft, **options))

    one = ["x", "s", "z"]
    node("QuantizeLinear", one, "q")
    quantised = ["q", "s", "z"]
    node("QLinearAdd", [*quantised, *quantised, "t", "z"], "sum")
    node("QLinearMul", [*quantised, *quantised, "t", "z"], "product")
    node("QLinearSigmoid", [*quantised, "t", "z"], "sigmoid")
    node("QLinearLeakyRelu", [*quantised, "t", "z"], "leaky", alpha=0.3)
    node("QLinearConcat", ["t", "z", *quantised, "sum", "t", "z"], "joint", axis=1)
    node("QLinearGlobalAveragePool", [*quantised, "t", "z"], "mean", channels_last=0)
    node("QLinearSoftmax", [*quantised, "small", "zero"], "softmax", axis=-1, opset=17)
    node("QLinearSoftmax", [*quantised, "small", "zero"], "old softmax", axis=2, opset=11)
    pool: dict[str, object] = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    node("QLinearAveragePool", [*quantised, "t", "z"], "pool", **pool)
    node("QLinearAveragePool", [*quantised, "t", "z"], "whole pool", count_include_pad=1, **pool)
    node("QLinearWhere", ["mask", *quantised, "sum", "t", "z", "t", "z"], "chosen")
    node("Reshape", ["q", "rows"], "flat")
    one_each = ["flat", "s", "z", "weights", "scales", "zeros", "bias"]
    node("QGemm", [*one_each, "s", "z"], "gemm", transB=1)
    node("QGemm", one_each, "real gemm", transB=1, alpha=0.5)
    names = ["sum", "product", "sigmoid", "leaky", "joint", "mean", "softmax", "old softmax"]
    names += ["pool", "whole pool", "chosen", "gemm"]
    graph = helper.make_graph(
        nodes,
        "quantised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 5, 9])],
        [
            *(helper.make_tensor_value_info(name, TensorProto.UINT8, None) for name in names),
            helper.make_tensor_value_info("real gemm", TensorProto.FLOAT, None),
        ],
        weights,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "quantised.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    data = random.normal(size=(1, 3, 5, 9)).astype("float32")
    _, got = compile_and_run(path, [data], "local", "native", tmp_path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    *due, real = session.run(None, {"x": data})
    np.testing.assert_allclose(got.pop(), real, rtol=1e-5)
    for name, mine, theirs in zip(names, got, due, strict=True):
        assert mine.shape == theirs.shape
        assert np.abs(mine.astype(int) - theirs).max() <= 1, name
        assert len(np.unique(theirs)) > 2, name


def test_indices_stay_within_their_axis(tmp_path: Path) -> None:
    """From either end; what points to nothing is an error, as onnxruntime's."""
    rows = np.arange(20, dtype="float32").reshape(4, 5)
    indices = np.array([-4, -1, 0, 3, -2, 1, 2, -3])
    b = Builder()
    table = b.const(rows)
    b.op("Gather", table, "indices", axis=0, outputs=["rows"])
    b.op("GatherElements", b.const(rows[:, 0]), "indices", axis=0, outputs=["elements"])
    path = tmp_path / "gather.onnx"
    kinds = {"indices": TensorProto.INT64}
    onnx.save(b.model({"indices": [8]}, {"rows": [8, 5], "elements": [8]}, kinds), path)
    _, got = compile_and_run(path, [indices], "local", "native", tmp_path)
    due = rows[indices]
    np.testing.assert_array_equal(got[0], due)
    np.testing.assert_array_equal(got[1], due[:, 0])
    for outside in (-(2**40), -5, 4, 2**40):
        with pytest.raises(IndexError, match="'indices'"):
            compile_and_run(path, [np.r_[indices[:7], outside]], "local", "native", tmp_path)

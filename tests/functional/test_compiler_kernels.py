"""Every family of kernels on every instruction set, against onnxruntime.

All cases are outputs of one model, so that each target compiles once. Sizes, strides, pads and
channel counts are no multiples of anything.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from edgepack.compiler.place.emit import LAYOUT
from edgepack.kernels.rules import (
    dilated,
    integer_convolution,
    integer_operators,
    integer_transposed,
    preactivated,
    stack,
    streamed,
)
from edgepack.kernels.rules.table import RULES
from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target_in_parts, save_cases, some, wrong_outputs

INPUTS: dict[str, tuple[int, ...]] = {
    "image": (1, 3, 19, 23),
    "seven": (1, 7, 13, 11),
    "wide": (1, 40, 9, 10),
    "batch": (3, 12, 8, 9),
    "many": (1, 96, 7, 7),
    "rows": (2, 37),
    "matrix": (33, 50),
}


def convolutions(net: Builder) -> dict[str, str]:
    """Windows, strides, dilations, asymmetric pads, groups, odd channel counts."""
    return {
        "first layer": net.conv("image", 3, 32, 3, strides=[2, 2]),
        "1x1": net.conv("seven", 7, 13, 1),
        "1x1 flat": net.conv("many", 96, 88, 1),
        "1x1 strided": net.conv("wide", 40, 24, 1, strides=[2, 2]),
        "1x1 one output": net.conv("seven", 7, 1, 1),
        "3x3 batch": net.conv("batch", 12, 20, 3),
        "3x3 prime outputs": net.conv("wide", 40, 53, 3),
        "5x5": net.conv("image", 3, 10, 5, pads=[2, 1, 0, 3]),
        "7x7 strided": net.conv("image", 3, 17, 7, strides=[2, 3]),
        "dilated": net.conv("seven", 7, 9, 3, dilations=[2, 3], pads=[2, 3, 2, 3]),
        "groups of 10": net.conv("wide", 40, 60, 3, group=4),
        "groups of 4": net.conv("many", 96, 48, 3, group=24),
        "groups of 4 side by side": net.conv("many", 96, 96, 3, group=24),
        "groups of 4, dilated": net.conv(
            "many", 96, 96, 3, group=24, dilations=[1, 3], pads=[1, 3, 1, 3]
        ),
        "groups of 8 side by side": net.conv("many", 96, 96, 5, group=12),
        "groups of 8, strided": net.conv("many", 96, 96, 3, group=12, strides=[2, 2]),
        "groups of 4, strided": net.conv("many", 96, 96, 3, group=24, strides=[2, 3]),
        "groups of 2, 1x1": net.conv("many", 96, 96, 1, group=48),
        "groups of odd size": net.conv("batch", 12, 9, 3, group=3),
        "multiplied depthwise": net.conv("seven", 7, 14, 3, group=7),
        "depthwise 3x3": net.conv("wide", 40, 40, 3, group=40),
        "depthwise 3x3 strided": net.conv("seven", 7, 7, 3, group=7, strides=[2, 2]),
        "depthwise 5x5 batch": net.conv("batch", 12, 12, 5, group=12),
        "depthwise 7x7": net.conv("many", 96, 96, 7, group=96),
        "depthwise dilated": net.conv(
            "wide", 40, 40, 3, group=40, dilations=[2, 2], pads=[2, 2, 2, 2]
        ),
        "depthwise 11x11": net.conv("many", 96, 96, 11, group=96),
        "depthwise one row": net.conv("wide", 40, 40, 3, group=40, pads=[0, 1, 0, 0]),
    }


def transposed_convolutions(net: Builder) -> dict[str, str]:
    """Strides, windows as large as the stride and larger, groups, depthwise, cut borders."""

    def one(data: str, outs: int, kernel: int, group: int = 1, **attributes: object) -> str:
        channels = INPUTS[data][1] if data in INPUTS else 24
        weight = net.weight(channels, outs // group, kernel, kernel)
        bias = net.weight(outs)
        return net.op("ConvTranspose", data, weight, bias, group=group, **attributes)

    inner = net.op("Relu", net.conv("wide", 40, 24, 1))
    summed = one(inner, 12, 2, strides=[2, 2])
    return {
        "transposed 2x2": one("seven", 12, 2, strides=[2, 2]),
        "transposed 3x3": one(
            "batch", 9, 3, strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]
        ),
        "transposed 4x4": one("wide", 20, 4, strides=[2, 2], pads=[1, 1, 1, 1]),
        "transposed 5x5": one("image", 6, 5, strides=[3, 2], pads=[1, 2, 0, 1]),
        "transposed 3x3 of stride 1": one("many", 24, 3, pads=[1, 1, 1, 1]),
        "transposed groups": one("wide", 16, 3, group=4, strides=[2, 2]),
        "transposed depthwise": one("seven", 7, 4, group=7, strides=[2, 2], pads=[1, 1, 1, 1]),
        "spread to one channel": net.op(
            "Sigmoid",
            one("wide", 1, 3, strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]),
        ),
        "spread to three": one("many", 3, 4, strides=[2, 2], pads=[1, 1, 1, 1]),
        "spread of stride 1": one("many", 1, 3, pads=[1, 0, 1, 2]),
        "spread 5x5": one("wide", 2, 5, strides=[3, 2], pads=[1, 2, 0, 1]),
        "spread 2x2": net.op("Tanh", one("many", 1, 2, strides=[2, 2])),
        "spread and summed": net.op(
            "Add", one("wide", 1, 3, strides=[2, 2]), one("wide", 1, 3, strides=[2, 2])
        ),
        "transposed and more": net.op(
            "Relu", net.op("Add", summed, net.op("Tanh", one(inner, 12, 2, strides=[2, 2])))
        ),
        "transposed and summed": net.op(
            "Add", one("wide", 12, 3, strides=[2, 2]), one("wide", 12, 3, strides=[2, 2])
        ),
    }


def random_convolutions(net: Builder) -> dict[str, str]:
    """Whatever comes: the seed is fixed, and the name of a case tells what it was."""
    random = np.random.default_rng(11)
    cases = {}
    for _ in range(12):
        source = str(random.choice(["image", "seven", "wide", "batch", "many"]))
        channels = INPUTS[source][1]
        group = int(random.choice([g for g in range(1, channels + 1) if channels % g == 0]))
        outs = group * int(random.integers(1, 1 + max(1, 40 // group)))
        kernel = int(random.integers(1, 6))
        options = {
            "strides": random.integers(1, 4, size=2).tolist(),
            "pads": random.integers(0, kernel, size=4).tolist(),
            "dilations": [1, 1] if kernel > 3 else random.integers(1, 3, size=2).tolist(),
        }
        what = " ".join(f"{key}={value}" for key, value in options.items())
        name = f"{source} {channels}->{outs} k={kernel} group={group} {what}"
        cases[name] = net.op(
            "Relu", net.conv(source, channels, outs, kernel, group=group, **options)
        )
    return cases


def poolings(net: Builder) -> dict[str, str]:
    """Borders, ceiling mode, padding counted or not, negative values under a maximum."""
    pooled = net.op("MaxPool", net.conv("seven", 7, 11, 1), kernel_shape=[2, 2])
    return {
        "max 3x3": net.op("MaxPool", "seven", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        "max strided": net.op(
            "MaxPool", "wide", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
        ),
        "max ceiling": net.op("MaxPool", "batch", kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1),
        "average": net.op("AveragePool", "seven", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        "average with padding": net.op(
            "AveragePool", "seven", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1
        ),
        "average strided": net.op("AveragePool", "wide", kernel_shape=[2, 2], strides=[2, 2]),
        "mean": net.op("GlobalAveragePool", "seven"),
        "mean by a window": net.op("AveragePool", "many", kernel_shape=[7, 7]),
        "max of a large window": net.op("MaxPool", "seven", kernel_shape=[9, 9]),
        "max far around": net.op("MaxPool", "wide", kernel_shape=[13, 13], pads=[6] * 4),
        "max of large steps": net.op(
            "MaxPool", "wide", kernel_shape=[5, 9], strides=[2, 3], pads=[1, 8, 4, 0]
        ),
        "mean of a pooled image": net.op("GlobalAveragePool", pooled),
        "mean of a batch": net.op("ReduceMean", "batch", axes=[2, 3], keepdims=0),
        "largest of a convolution": net.op("GlobalMaxPool", net.conv("many", 96, 24, 1)),
        "smallest of a convolution": net.op("ReduceMin", net.conv("many", 96, 24, 1), axes=[2, 3]),
    }


def resizes(net: Builder) -> dict[str, str]:
    """With something to fuse; test_resize_properties.py has all modes."""

    def after(data: str, channels: int, scales: list[float], **attributes: object) -> str:
        made, factors = net.conv(data, channels, 10, 1), net.const([1, 1, *scales], "float32")
        return net.op("Relu", net.op("Resize", made, "", factors, **attributes))

    return {
        "nearest": after("seven", 7, [2, 2], mode="nearest"),
        "linear": net.conv(after("batch", 12, [2, 3], mode="linear"), 10, 6, 3),
        "cubic": after("wide", 40, [2, 0.5], mode="cubic"),
    }


def borders(net: Builder) -> dict[str, str]:
    """Mirrored, repeated and constant ones between convolutions, on one side or all."""

    def between(data: str, channels: int, pads: list[int], mode: str) -> str:
        inner = net.op("Relu", net.conv(data, channels, 10, 1))
        widths = net.const([0, 0, *pads[:2], 0, 0, *pads[2:]], "int64")
        value = [net.const(1.5, "float32")] if mode == "constant" else []
        padded = net.op("Pad", inner, widths, *value, mode=mode)
        return net.conv(padded, 10, 6, 3, pads=[0, 0, 0, 0])

    return {
        "reflect": between("seven", 7, [2, 2, 2, 2], "reflect"),
        "reflect of a batch": between("batch", 12, [0, 3, 1, 0], "reflect"),
        "edge": between("wide", 40, [1, 2, 3, 4], "edge"),
        "constant": between("batch", 12, [1, 1, 0, 2], "constant"),
    }


def products(net: Builder) -> dict[str, str]:
    """Matrix products with constants."""
    hidden = net.op("Gemm", "rows", net.weight(24, 37), net.weight(24), transB=1)
    hidden = net.op("Relu", hidden)
    pooled = net.op("Flatten", net.op("GlobalAveragePool", "many"))
    return {
        "two layers": net.op("Gemm", hidden, net.weight(24, 10), net.weight(10)),
        "product of matrices": net.op("Relu", net.op("MatMul", "matrix", net.weight(50, 70))),
        "matrix plus row": net.op(
            "Add", net.op("MatMul", "matrix", net.weight(50, 20)), net.weight(1, 20)
        ),
        "matmul": net.op("MatMul", "rows", net.weight(37, 32)),
        "one row": net.op("Gemm", pooled, net.weight(101, 96), net.weight(101), transB=1),
    }


def expressions(net: Builder) -> dict[str, str]:
    """What is fused into a producer: activations, sums, gates, and values read twice."""

    def after(op_type: str, *more: str, **attributes: object) -> str:
        return net.op(op_type, net.conv("seven", 7, 11, 3), *more, **attributes)

    limits = [net.const(0.0, "float32"), net.const(6.0, "float32")]
    shared = net.conv("wide", 40, 40, 1)
    gate = net.op("Relu", net.conv(net.op("GlobalAveragePool", shared), 40, 8, 1))
    gate = net.op("Sigmoid", net.conv(gate, 8, 40, 1))
    left, right = net.conv("wide", 40, 24, 1), net.conv("wide", 40, 24, 3)
    logits = net.conv("seven", 7, 11, 1)
    wide = net.conv("many", 96, 96, 1)
    normalised = net.op(
        "BatchNormalization",
        net.op("Relu", net.conv("seven", 7, 11, 1)),
        *(net.const(net.random.uniform(0.5, 2, size=11), "float32") for _ in range(4)),
    )
    return {
        "relu": after("Relu"),
        "clip": after("Clip", *limits),
        "leaky": after("LeakyRelu", alpha=0.1),
        "prelu": after("PRelu", net.weight(11, 1, 1)),
        "sigmoid": after("Sigmoid"),
        "tanh": after("Tanh"),
        "hard swish": after("HardSwish"),
        "hard sigmoid": after("HardSigmoid", alpha=0.2, beta=0.4),
        "silu": net.op("Mul", logits, net.op("Sigmoid", logits)),
        "exponential": after("Exp"),
        "batch norm after relu": normalised,
        "sum of two convolutions": net.op("Relu", net.op("Add", left, right)),
        "sum with itself": net.op("Add", wide, wide),
        "gated": net.op("Mul", shared, gate),
        "swapped operands": net.op("Sub", net.const(1.5, "float32"), net.conv("wide", 40, 12, 1)),
        "residual": net.op("Add", "many", net.conv("many", 96, 96, 3)),
    }


def networks(net: Builder) -> dict[str, str]:
    """Layers that follow each other: halos, concatenation, and operators left to TVM between."""
    data = net.op("Relu", net.conv("image", 3, 16, 3, strides=[2, 2]))
    data = net.op("MaxPool", data, kernel_shape=[3, 3], strides=[2, 2])
    squeezed = net.op("Relu", net.conv(data, 16, 8, 1))
    left = net.op("Relu", net.conv(squeezed, 8, 16, 1))
    right = net.op("Relu", net.conv(squeezed, 8, 16, 3))
    fire = net.op("Concat", left, right, axis=1)
    odd = net.op("Concat", net.conv(fire, 32, 5, 1), net.conv(fire, 32, 6, 1), axis=1)
    softmax = net.op("Softmax", net.op("Flatten", net.op("GlobalAveragePool", fire)), axis=1)
    transposed = net.op("Transpose", fire, perm=[0, 2, 3, 1])
    return {
        "fire": fire,
        "concatenation of odd counts": net.conv(odd, 11, 7, 3),
        "softmax": softmax,
        # Its way out of the blocked layout is what LLVM got wrong: see compiler/llvm.py.
        "eight small images": net.op("Relu", net.conv("many", 96, 8, 1)),
        "foreign in between": net.op("Exp", transposed),
        "the same value twice": net.op("Relu", fire),
    }


def shared_places(net: Builder) -> dict[str, str]:
    """Channels side by side and ranges of them, in place where they can be."""

    def concat(*parts: str) -> str:
        return net.op("Concat", *parts, axis=1)

    def part(value: str, first: int, last: int) -> str:
        bounds = (net.const([bound], "int64") for bound in (first, last, 1))
        return net.op("Slice", value, *bounds)

    x = net.op("Relu", net.conv("many", 96, 64, 1))
    a, b, c = net.conv(x, 64, 32, 1), net.conv(x, 64, 48, 3), net.conv(x, 64, 16, 1)
    both = concat(a, b)
    low, high = (f"{half} of a split" for half in ("low", "high"))
    net.op("Split", x, net.const([32, 32], "int64"), outputs=[low, high], axis=1)
    block = net.op("Add", net.conv(net.conv(high, 32, 32, 3), 32, 32, 3), high)
    batched = net.op("Relu", net.conv("batch", 12, 32, 1))
    return {
        "nested": net.conv(concat(both, c), 96, 16, 1),
        "with a halo": net.conv(concat(a, c), 48, 16, 3),
        "a part with a halo of its own": concat(net.conv(b, 48, 32, 3), b),
        "twice the same": concat(c, c),
        "in two places": net.op("Add", concat(a, c), concat(c, a)),
        "with an input": concat("many", net.conv("many", 96, 32, 1)),
        "inner part": net.conv(part(x, 16, 48), 32, 16, 3),
        "last part": net.op("Sigmoid", part(net.op("Relu", net.conv(x, 64, 40, 1)), 32, 40)),
        "part of a joint": net.conv(part(both, 32, 80), 48, 16, 1),
        "odd part": net.conv(part(x, 3, 17), 14, 16, 1),
        "negative bounds": net.conv(part(x, -32, -16), 16, 16, 1),
        "split and joined": net.conv(concat(low, high, block), 96, 24, 1),
        "images of a batch": net.conv(concat(batched, net.conv("batch", 12, 16, 3)), 48, 16, 1),
        "part of a batch": net.conv(part(batched, 16, 32), 16, 16, 1),
    }


def gates(net: Builder) -> dict[str, str]:
    """Squeeze-and-excite: the gate goes into the convolution that follows, where there is one."""

    def squeeze(value: str, channels: int) -> str:
        gate = net.op("Relu", net.conv(net.op("GlobalAveragePool", value), channels, 8, 1))
        return net.op("HardSigmoid", net.conv(gate, 8, channels, 1))

    x, y = net.op("Relu", net.conv("many", 96, 40, 3)), net.op("Relu", net.conv("seven", 7, 11, 3))
    gated = net.op("Mul", x, squeeze(x, 40))
    odd = net.op("Mul", squeeze(y, 11), y)
    added = net.op("Add", net.conv(odd, 11, 11, 1), y)
    shared = net.op("Mul", y, squeeze(y, 11))
    return {
        "gate": net.op("Relu", net.conv(gated, 40, 24, 1)),
        "gate of an odd count": net.conv(added, 11, 37, 1),
        "gated image read twice": net.op("Add", net.conv(shared, 11, 11, 1), shared),
        "gate before a window": net.conv(net.op("Mul", y, squeeze(y, 11)), 11, 8, 3),
    }


FAMILIES = (
    gates,
    shared_places,
    convolutions,
    transposed_convolutions,
    random_convolutions,
    poolings,
    resizes,
    borders,
    products,
    expressions,
    networks,
)


# Those have tests of their own; of large images only: test_streamed.py; of windows that reach
# far past the ends of a sequence: test_sequences.py; of volumes: test_volumes.py; of plain tensors:
# test_products.py, test_attention.py, test_compiler_vectors.py and test_integers.py.
INTEGERS = (integer_convolution.RULE, integer_transposed.RULE, *integer_operators.RULES)
LARGE = (streamed.RULE, preactivated.RULE)
FAR = (dilated.RULE,)
VOLUMES = (stack.RULE, stack.UNSTACK)
ROWS = tuple(rule for rule in RULES if rule.rows is not None)


@pytest.fixture(scope="module")
def inputs() -> list[np.ndarray]:
    random = np.random.default_rng(5)
    return [random.normal(size=shape).astype("float32") for shape in INPUTS.values()]


@every_target_in_parts
def test_outputs_equal_onnxruntime(
    tmp_path: Path, inputs: list[np.ndarray], board: str, cpu: str, part: slice
) -> None:
    net = Builder(seed=3)
    cases = {name: value for family in FAMILIES for name, value in some(family(net), part).items()}
    model = save_cases(tmp_path / "families.onnx", net, INPUTS, cases)
    compiled, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    assert not wrong_outputs(model, inputs, got)
    calls = json.loads(compiled.graph.read_text())["calls"]
    assert [layer.kernel for layer in compiled.layers] == [call["kernel"] for call in calls]
    if board == "local":
        assert {layer.rule for layer in compiled.layers} == {
            *(
                rule.name
                for rule in RULES
                if rule not in (*INTEGERS, *LARGE, *FAR, *VOLUMES, *ROWS)
            ),
            LAYOUT,
            "generic",
        }

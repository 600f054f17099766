"""Networks on sequences: kernels are those of images, and no tensor changes its layout.

A sequence is (N, C, L), or an image that is one column wide, or a few. Chains of random operators,
several as the outputs of one model, on every instruction set against onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgepack.boards import get_board
from edgepack.compiler import plan_model
from edgepack.compiler.place.emit import LAYOUT
from edgepack.frontend.load import load_model
from edgepack.model import ModelSpec
from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target, save_cases, wrong_outputs


class _Chain:
    """A sequence in the making: its name, channels and length so far. With `columns` it is an
    image of so many."""

    def __init__(
        self, net: Builder, random: np.random.Generator, name: str, columns: int = 0
    ) -> None:
        self.net, self.random, self.value = net, random, name
        self.channels = int(random.choice([1, 3, 8, 17]))
        self.length = int(random.integers(40, 90))
        self.across = (columns,) if columns else ()
        self.shape = (int(random.integers(1, 3)), self.channels, self.length, *self.across)

    def _weight(self, outs: int, ins: int, kernel: int) -> str:
        return self.net.weight(outs, ins, kernel, *(1 for _ in self.across))

    def _along(self, **attributes: list[int]) -> dict[str, list[int]]:
        """Attributes of an operator that does nothing along the columns."""
        if not self.across:
            return attributes
        return {
            name: [value[0], 0, value[1], 0] if name == "pads" else [*value, 1]
            for name, value in attributes.items()
        }

    def conv(self, *, outs: int, kernel: int, group: int = 1, causal: str = "") -> None:
        """With random stride, dilation and padding; `causal` ones look back only."""
        stride, dilation = (int(self.random.integers(1, 4)) for _ in range(2))
        reach = (kernel - 1) * dilation
        while reach >= self.length:
            dilation, reach = 1, kernel - 1
        pads = [int(pad) for pad in self.random.integers(0, reach + 1, size=2)]
        if causal:
            stride, pads = 1, [reach, reach] if causal == "cut" else [0, 0]
        if causal == "pad":
            self._pad([reach, 0], "constant")
        weights = [self._weight(outs, self.channels // group, kernel), self.net.weight(outs)]
        attributes = self._along(
            kernel_shape=[kernel], strides=[stride], dilations=[dilation], pads=pads
        )
        self.value = self.net.op("Conv", self.value, *weights, group=group, **attributes)
        self.channels = outs
        self.length = (self.length + sum(pads) - reach - 1) // stride + 1
        if causal == "cut":
            self._slice(0, self.length - reach)

    def _slice(self, start: int, end: int) -> None:
        bounds = (self.net.const([at], "int64") for at in (start, end, 2))
        self.value = self.net.op("Slice", self.value, *bounds)
        self.length = end - start

    def _pad(self, pads: list[int], mode: str) -> None:
        none = [0] * len(self.across)
        widths = self.net.const([0, 0, pads[0], *none, 0, 0, pads[1], *none], "int64")
        self.value = self.net.op("Pad", self.value, widths, mode=mode)
        self.length += sum(pads)

    def cut(self) -> None:
        """Some results at both ends are left out."""
        self.conv(outs=self.channels, kernel=5)
        self._slice(1, self.length - 2) if self.length > 4 else None

    def pad(self) -> None:
        modes = ["constant", "edge", *(["reflect"] if self.length > 3 else [])]
        self._pad([2, 1], str(self.random.choice(modes)))

    def pool(self) -> None:
        kind = str(self.random.choice(["MaxPool", "AveragePool"]))
        stride = int(self.random.integers(1, 3))
        pads = [1, 0] if self.random.integers(2) else [0, 0]
        if self.length > 4:
            attributes = self._along(kernel_shape=[3], strides=[stride], pads=pads)
            self.value = self.net.op(kind, self.value, **attributes)
            self.length = (self.length + sum(pads) - 3) // stride + 1

    def transposed(self) -> None:
        outs = int(self.random.choice([4, 9]))
        stride, kernel = [(2, 4), (1, 3), (3, 5)][self.random.integers(3)]
        weights = [self._weight(self.channels, outs, kernel), self.net.weight(outs)]
        pads = [1, 0]
        attributes = self._along(kernel_shape=[kernel], strides=[stride], pads=pads)
        self.value = self.net.op("ConvTranspose", self.value, *weights, **attributes)
        self.channels, self.length = outs, (self.length - 1) * stride + kernel - sum(pads)

    def arithmetic(self) -> None:
        slope = self.net.weight(self.channels, 1, *(1 for _ in self.across))
        self.value = self.net.op("PRelu", self.value, slope)
        mean = self.net.op("GlobalAveragePool", self.value)
        self.value = self.net.op("Mul", self.value, self.net.op("Sigmoid", mean))

    def steps(self) -> list[Callable[[], None]]:
        return [
            lambda: self.conv(outs=int(self.random.integers(1, 40)), kernel=3),
            lambda: self.conv(outs=8, kernel=2, causal="pad"),
            lambda: self.conv(outs=5, kernel=3, causal="cut"),
            lambda: self.conv(outs=self.channels, kernel=5, group=self.channels),
            lambda: self.conv(outs=self.channels, kernel=4),
            self.cut,
            self.pad,
            self.pool,
            self.transposed,
            self.arithmetic,
        ]


@every_target
def test_chains(tmp_path: Path, board: str, cpu: str) -> None:
    random = np.random.default_rng(5)
    net = Builder(seed=5)
    cases, shapes = {}, {}
    for number, columns in enumerate((0, 0, 1, 2)):
        chain = _Chain(net, random, f"x{number}", columns)
        shapes[f"x{number}"] = chain.shape
        # A long window first, then one of each kind in some order.
        chain.conv(outs=12, kernel=int(random.integers(17, 31)))
        steps = chain.steps()
        for index in random.permutation(len(steps))[:4]:
            steps[index]()
        cases[f"y{number}"] = chain.value
    model = save_cases(tmp_path / "model.onnx", net, shapes, cases)
    inputs = [random.normal(size=shape).astype("float32") for shape in shapes.values()]
    compiled, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    wrong = wrong_outputs(model, inputs, got)
    assert not wrong, "\n".join(wrong)
    # What is left to TVM is the transposition at the borders of the image of two columns.
    left = [layer.kernel for layer in compiled.layers if layer.rule == "generic"]
    assert all(name.startswith("transpose") for name in left), left


@every_target
def test_windows_far_outside(tmp_path: Path, board: str, cpu: str) -> None:
    """Taps that lie beside the image for many results, or for all: along a sequence, causal and
    not, with strides; along rows and columns of an image."""
    net = Builder(seed=6)
    cases = {}
    for number, (kernel, dilation, stride, pads) in enumerate(
        [
            (3, 32, 1, [64, 0]),
            (2, 70, 1, [70, 70]),
            (4, 25, 2, [0, 75]),
            (3, 90, 3, [180, 1]),
            (5, 16, 1, [32, 32]),
        ]
    ):
        cases[f"s{number}"] = net.op(
            "Conv",
            "x0",
            net.weight(20, 17, kernel),
            net.weight(20),
            kernel_shape=[kernel],
            dilations=[dilation],
            strides=[stride],
            pads=pads,
        )
    for number, (kernels, dilations, strides, around) in enumerate(
        [
            ([3, 3], [6, 12], [1, 1], [6, 12, 6, 12]),
            ([3, 1], [9, 1], [2, 1], [18, 0, 9, 0]),
            ([2, 5], [13, 3], [1, 2], [13, 6, 13, 6]),
        ]
    ):
        cases[f"i{number}"] = net.op(
            "Conv",
            "x1",
            net.weight(9, 8, *kernels),
            kernel_shape=kernels,
            dilations=dilations,
            strides=strides,
            pads=around,
        )
    shapes = {"x0": (1, 17, 80), "x1": (1, 8, 13, 19)}
    model = save_cases(tmp_path / "model.onnx", net, shapes, cases)
    random = np.random.default_rng(1)
    inputs = [random.normal(size=shape).astype("float32") for shape in shapes.values()]
    _, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    wrong = wrong_outputs(model, inputs, got)
    assert not wrong, "\n".join(wrong)


# Kernel, dilation, and padding before and after.
_FAR = [
    (3, 32, 64, 0),
    (3, 1, 2, 0),
    (2, 45, 30, 45),
    (4, 7, 3, 18),
    (3, 13, 13, 13),
    (2, 3, 0, 3),
    (3, 25, 50, 50),
]


@every_target
def test_windows_that_are_cut_at_the_ends(tmp_path: Path, board: str, cpu: str) -> None:
    """Dilated and causal ones: only points in the sequence are read. Of odd and even numbers of
    blocks of channels, batches, with another reader that wants zeros around, and sums."""
    net = Builder(seed=8)
    cases = {}
    shapes = {"batch": (2, 32, 61), "odd": (1, 48, 80), "even": (1, 64, 80)}
    for name, shape in shapes.items():
        for number, (kernel, dilation, *pads) in enumerate(_FAR if name == "batch" else _FAR[::3]):
            weights = [net.weight(20, shape[1], kernel), net.weight(20)]
            cases[f"cut_{name}{number}"] = net.op(
                "Conv", name, *weights, kernel_shape=[kernel], dilations=[dilation], pads=pads
            )
        narrow = net.weight(8, shape[1], 3)
        cases[f"{name}_zeros"] = net.op("Conv", name, narrow, kernel_shape=[3], pads=[1, 1])
    value = net.op("Conv", "even", net.weight(64, 64, 1), kernel_shape=[1])
    for dilation in (1, 2, 39):
        inner = value
        for _ in range(2):
            weights = [net.weight(64, 64, 3), net.weight(64)]
            pads = [2 * dilation, 0]
            inner = net.op(
                "Conv", inner, *weights, kernel_shape=[3], dilations=[dilation], pads=pads
            )
            inner = net.op("Relu", inner)
        value = net.op("Relu", net.op("Add", inner, value))
    cases["stack"] = value
    model = save_cases(tmp_path / "model.onnx", net, shapes, cases)
    random = np.random.default_rng(2)
    inputs = [random.normal(size=shape).astype("float32") for shape in shapes.values()]
    compiled, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    wrong = wrong_outputs(model, inputs, got)
    assert not wrong, "\n".join(wrong)
    rules = [layer.rule for layer in compiled.layers]
    # At the stack's first level Winograd may be faster, and 48 channels may be no whole blocks.
    assert rules.count("dilated") >= len(_FAR) + len(_FAR[::3]) + 4


def test_results_of_a_causal_stack_take_the_place_of_what_is_added(tmp_path: Path) -> None:
    """Three sequences live at once, and one more is read: the arena has no room for a fourth."""
    net = Builder()
    value = net.op("Conv", "x", net.weight(32, 32, 1), kernel_shape=[1])
    for dilation in (2, 8, 32):
        inner = value
        for _ in range(2):
            weights = [net.weight(32, 32, 3), net.weight(32)]
            attributes = {"dilations": [dilation], "pads": [2 * dilation, 0]}
            inner = net.op("Relu", net.op("Conv", inner, *weights, kernel_shape=[3], **attributes))
        value = net.op("Add", inner, value)
    path = save_cases(tmp_path / "model.onnx", net, {"x": (1, 32, 256)}, {"y": value})
    plan = plan_model(load_model(ModelSpec(path=path)), get_board("rasp3b"))[0]
    assert plan.arena_bytes <= 2 * 4 * 32 * 256


@every_target
def test_in_and_out_of_columns(tmp_path: Path, board: str, cpu: str) -> None:
    """A sequence that is an image of one column for some layers, as exporters of Conv1D make it."""
    net = Builder()
    first = net.op("Conv", "x", net.weight(8, 3, 3), kernel_shape=[3], pads=[2, 0])
    column = net.op("Unsqueeze", first, net.const([3], "int64"))
    column = net.op("Conv", column, net.weight(20, 8, 5, 1), kernel_shape=[5, 1])
    column = net.op("Relu", column)
    pooled = net.op("MaxPool", column, kernel_shape=[2, 1], strides=[2, 1])
    back = net.op("Squeeze", pooled, net.const([3], "int64"))
    last = net.op("Conv", back, net.weight(4, 20, 3), kernel_shape=[3])
    cases = {"last": last, "column": column, "back": net.op("Tanh", back)}
    model = save_cases(tmp_path / "model.onnx", net, {"x": (1, 3, 77)}, cases)
    inputs = [np.random.default_rng(0).normal(size=(1, 3, 77)).astype("float32")]
    compiled, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    assert not wrong_outputs(model, inputs, got)
    rules = [layer.rule for layer in compiled.layers]
    assert rules.count("conv") + rules.count("winograd") == 3
    assert rules.count("pool") == 1
    # The input, and three outputs: none of them for the layers between.
    assert rules.count(LAYOUT) <= 4


@every_target
def test_what_a_convolution_reads_is_also_read_in_another_shape(
    tmp_path: Path, board: str, cpu: str
) -> None:
    """An input or a computed tensor of few channels stays in the model's own layout if a
    convolution reads it: as an image or as a sequence, which others read as the other one."""
    net, cases = Builder(), {}
    # The input and how else it is read, each with a window.
    forms = {
        "sequence": ((1, 3, 21), (3,), (1, 3, 21, 1), (3, 1)),
        "column": ((1, 2, 19, 1), (3, 1), (1, 2, 19), (3,)),
        "row": ((1, 3, 1, 21), (1, 3), (1, 3, 21), (3,)),
        "batch": ((2, 1, 1, 17), (1, 3), (2, 1, 17), (3,)),
    }
    shapes = {}
    for name, (shape, window, other, other_window) in forms.items():
        for number in range(4):
            given = f"{name} {number}"
            shapes[given] = shape
            value = net.op("Neg", given) if number % 2 else given
            seen = net.op("Reshape", value, net.const(list(other), "int64"))
            read, size = (seen, other_window) if number < 2 else (value, window)
            pads = [extent // 2 for extent in size] * 2
            made = net.op("Conv", read, net.weight(5, shape[1], *size), pads=pads)
            total = net.op("ReduceSum", made, keepdims=0)
            cases |= {f"{given} sum": net.op("Add", seen, total), f"{given} seen": seen}
    model = save_cases(tmp_path / "model.onnx", net, shapes, cases)
    random = np.random.default_rng(0)
    inputs = [random.normal(size=shape).astype("float32") for shape in shapes.values()]
    _, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    assert not wrong_outputs(model, inputs, got)


def _layers(path: Path, net: Builder, shape: tuple[int, ...], result: str) -> list[tuple[str, str]]:
    """The (rule, operator) of each kernel of a model of one input on this machine."""
    model = load_model(ModelSpec(path=save_cases(path, net, {"x": shape}, {"y": result})))
    return [(layer.rule, layer.operator) for layer in plan_model(model, get_board("rasp3b"))[2]]


def _inner(layers: list[tuple[str, str]]) -> list[str]:
    """The rules of all but the layout changes of the input and the output."""
    rules = [rule for rule, _ in layers]
    assert rules[0] == rules[-1] == LAYOUT
    return rules[1:-1]


@pytest.mark.parametrize("form", ["Pad", "Slice"])
def test_a_causal_stack_is_convolutions_only(tmp_path: Path, form: str) -> None:
    """Dilated, gated and with residual sums, as WaveNet; padded before, or cut after, as in TCN."""
    net = Builder()

    def conv(value: str, kernel: int, dilation: int) -> str:
        pad = (kernel - 1) * dilation
        pads = [pad, pad] if form == "Slice" else [0, 0]
        weights = (net.weight(16, 16, kernel), net.weight(16))
        value = net.op(
            "Conv", value, *weights, kernel_shape=[kernel], dilations=[dilation], pads=pads
        )
        if form == "Pad":
            return value
        return net.op("Slice", value, *(net.const([at], "int64") for at in (0, -pad, 2)))

    value = net.op("Conv", "x", net.weight(16, 16, 1))
    for level in range(3):
        padded, dilation = value, 2**level
        if form == "Pad":
            widths = net.const([0, 0, dilation, 0, 0, 0], "int64")
            padded = net.op("Pad", value, widths)
        gate = net.op("Sigmoid", conv(padded, 2, dilation))
        gated = net.op("Mul", net.op("Tanh", conv(padded, 2, dilation)), gate)
        value = net.op("Add", net.op("Conv", gated, net.weight(16, 16, 1)), value)
    rules = _inner(_layers(tmp_path / "model.onnx", net, (1, 16, 101), value))
    assert rules == ["conv", *["dilated", "dilated", "conv"] * 3]


def test_rows_of_a_matrix_are_no_channels(tmp_path: Path) -> None:
    """(4, 8) as (1, 8, 4) and (1, 8, 1, 4): equal extents, other bytes."""
    net = Builder()
    dense = net.op("Gemm", "x", net.weight(8, 8))
    cases = {}
    for name, shape in (("sequence", [1, 8, 4]), ("image", [1, 8, 1, 4])):
        turned = net.op("Reshape", dense, net.const(shape, "int64"))
        kernel = [1] * (len(shape) - 2)
        cases[name] = net.op("Conv", turned, net.weight(8, 8, *kernel), kernel_shape=kernel)
    model = save_cases(tmp_path / "model.onnx", net, {"x": (4, 8)}, cases)
    inputs = [np.random.default_rng(0).normal(size=(4, 8)).astype("float32")]
    _, got = compile_and_run(model, inputs, "local", "native", tmp_path)
    assert not wrong_outputs(model, inputs, got)


def test_a_long_window_is_a_loop(tmp_path: Path) -> None:
    """A convolution 1x512 of a long sequence is as many statements as one of 1x32."""
    sizes = []
    for kernel in (32, 512):
        net = Builder()
        attributes = {"kernel_shape": [kernel], "strides": [4], "pads": [kernel // 2] * 2}
        value = net.op("Conv", "x", net.weight(8, 1, kernel), **attributes)
        path = save_cases(tmp_path / f"{kernel}.onnx", net, {"x": (1, 1, 44098)}, {"y": value})
        for board in ("local", "rasp3b"):
            kernels = plan_model(load_model(ModelSpec(path=path)), get_board(board))[1]
            sizes.append(sum(len(str(kernel.function)) for kernel in kernels.values()))
    assert sizes[2] < 1.5 * sizes[0]
    assert sizes[3] < 1.5 * sizes[1]

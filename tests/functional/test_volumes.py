"""Networks on volumes, (1, C, D, H, W): their convolutions are those of images.

Chains of random operators, several as the outputs of one model, on every instruction set against
onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from edgepack.compiler.place import placement
from edgepack.frontend import volumes
from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target, save_cases, wrong_outputs


class _Chain:
    """A volume in the making: its name, channels and size so far."""

    def __init__(self, net: Builder, random: np.random.Generator, name: str) -> None:
        # Bounded, so that no layer has to be exact.
        self.net, self.random, self.value = net, random, net.op("Tanh", name)
        self.channels = int(random.choice([1, 3, 8, 16, 17, 24]))
        self.size = [int(size) for size in random.integers(6, 14, size=3)]
        self.shape = (1, self.channels, *self.size)

    def _some(self, low: int, high: int) -> list[int]:
        return [int(value) for value in self.random.integers(low, high, size=3)]

    def _window(self, kernel: Sequence[int], *, dilate: bool) -> dict[str, list[int]]:
        """Attributes of a window, with which something is left of each axis."""
        strides, dilations, pads = self._some(1, 3), [1] * 3, [0] * 6
        for axis, length in enumerate(kernel):
            if dilate and self.size[axis] > 2 * length:
                dilations[axis] = int(self.random.integers(1, 3))
            reach = (length - 1) * dilations[axis]
            least = max(0, reach + 1 - self.size[axis])
            for side in (axis, axis + 3):
                pads[side] = int(self.random.integers(min(least, length - 1), length))
            room = self.size[axis] + pads[axis] + pads[axis + 3] - reach - 1
            self.size[axis] = room // strides[axis] + 1
        window = {"kernel_shape": list(kernel), "strides": strides, "pads": pads}
        return window | ({"dilations": dilations} if dilate else {})

    def conv(self, outs: int, group: int = 1) -> None:
        kernel = self._some(1, 4)
        weights = [
            self.net.weight(outs, self.channels // group, *kernel),
            *([self.net.weight(outs)] if self.random.integers(2) else []),
        ]
        attributes = self._window(kernel, dilate=True)
        self.value = self.net.op("Conv", self.value, *weights, group=group, **attributes)
        self.channels = outs

    def transposed(self) -> None:
        outs, stride, kernel = int(self.random.choice([4, 9, 16])), self._some(1, 3), [2, 3, 4]
        self.random.shuffle(kernel)
        extra = [int(self.random.integers(0, step)) for step in stride]
        pads = [int(pad) for pad in self.random.integers(0, 2, size=6)]
        grown = [(n - 1) * s + k for n, s, k in zip(self.size, stride, kernel, strict=True)]
        pads = [pad if grown[axis % 3] > 3 else 0 for axis, pad in enumerate(pads)]
        weights = [self.net.weight(self.channels, outs, *kernel), self.net.weight(outs)]
        self.value = self.net.op(
            "ConvTranspose",
            self.value,
            *weights,
            kernel_shape=kernel,
            strides=stride,
            pads=pads,
            output_padding=extra,
        )
        self.channels = outs
        for axis in range(3):
            grown = (self.size[axis] - 1) * stride[axis] + kernel[axis] + extra[axis]
            self.size[axis] = grown - pads[axis] - pads[axis + 3]

    def branches(self) -> None:
        """Windows that begin at other images of one volume, in whole blocks of channels."""
        outs, shared, parts = int(self.random.choice([8, 16])), self.value, []
        for before, kernel in ((1, 3), (0, 1), (0, 2)):
            pads = [before, *[kernel // 2] * 2, kernel - 1 - before, *[(kernel - 1) // 2] * 2]
            weight = self.net.weight(outs, self.channels, *[kernel] * 3)
            group, value = 1, shared
            if kernel == 2 and self.channels % 8 == 0:  # a depthwise one before
                group = self.channels
                deep = self.net.weight(self.channels, 1, 3, 1, 1)
                value = self.net.op(
                    "Conv",
                    value,
                    deep,
                    kernel_shape=[3, 1, 1],
                    pads=[1, 0, 0, 1, 0, 0],
                    group=group,
                )
            parts.append(self.net.op("Conv", value, weight, kernel_shape=[kernel] * 3, pads=pads))
        self.value = self.net.op("Relu", self.net.op("Sum", *parts))
        self.channels = outs

    def pool(self) -> None:
        kind = str(self.random.choice(["MaxPool", "AveragePool"]))
        kernel = [min(2, size) for size in self.size]
        self.value = self.net.op(kind, self.value, **self._window(kernel, dilate=False))

    def arithmetic(self) -> None:
        gate = self.net.op("Sigmoid", self.net.op("GlobalAveragePool", self.value))
        gated = self.net.op("Mul", self.value, gate)
        shifted = self.net.op("Add", gated, self.net.weight(self.channels, 1, 1, 1))
        self.value = self.net.op("LeakyRelu", self.net.op("Add", shifted, self.value))

    def joined(self) -> None:
        half = self.net.op("Mul", self.value, self.net.const(0.5, "float32"))
        self.value = self.net.op("Concat", half, self.value, axis=1)
        self.channels *= 2

    def other(self) -> None:
        """What is done on volumes."""
        self.value = self.net.op("Transpose", self.value, perm=[0, 1, 4, 2, 3])
        self.size = [self.size[2], *self.size[:2]]

    def steps(self) -> list[Callable[[], None]]:
        return [
            lambda: self.conv(outs=int(self.random.choice([1, 8, 13, 16, 24, 32]))),
            lambda: self.conv(outs=self.channels, group=self.channels),
            lambda: self.conv(outs=2 * self.channels, group=self.channels),
            self.transposed,
            self.branches,
            self.pool,
            self.arithmetic,
            self.joined,
            self.other,
        ]


def _check(folder: Path, board: str, cpu: str, seed: int, chains: int, count: int) -> None:
    random = np.random.default_rng(seed)
    net = Builder(seed=seed)
    cases, shapes = {}, {}
    for number in range(chains):
        chain = _Chain(net, random, f"x{number}")
        shapes[f"x{number}"] = chain.shape
        chain.conv(outs=int(random.choice([12, 16])))
        steps = chain.steps()
        for index in random.permutation(len(steps))[:count]:
            steps[index]()
        cases[f"y{number}"] = chain.value
    model = save_cases(folder / "model.onnx", net, shapes, cases)
    inputs = [random.normal(size=shape).astype("float32") for shape in shapes.values()]
    compiled, got = compile_and_run(model, inputs, board, cpu, folder)
    wrong = wrong_outputs(model, inputs, got)
    assert not wrong, "\n".join(wrong)
    left = [layer.operator for layer in compiled.layers if layer.rule == "generic"]
    assert not any("conv" in operator for operator in left), left


@every_target
def test_chains(tmp_path: Path, board: str, cpu: str) -> None:
    _check(tmp_path, board, cpu, 11, 3, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_many_chains(tmp_path: Path, seed: int) -> None:
    _check(tmp_path, "local", "native", seed, 4, 6)


def _run_one(folder: Path, shape: tuple[int, ...]) -> list[str]:
    """The rules that a convolution 3x3x3 is made by, on this machine; its result is checked."""
    net = Builder()
    weight = net.weight(8, shape[1], 3, 3, 3)
    value = net.op("Conv", "x", weight, kernel_shape=[3] * 3, pads=[1] * 6)
    model = save_cases(folder / "model.onnx", net, {"x": shape}, {"y": value})
    inputs = [np.random.default_rng(0).normal(size=shape).astype("float32")]
    compiled, got = compile_and_run(model, inputs, "local", "native", folder)
    assert not wrong_outputs(model, inputs, got)
    return [layer.rule for layer in compiled.layers]


def test_large_taps_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where taps side by side would take too much memory, each is a convolution; but not where they
    are side by side already."""
    monkeypatch.setattr(volumes, "_MOST_BYTES", 1000)
    # One call for each convolution.
    monkeypatch.setattr(placement, "worth_parts", lambda *_: frozenset())
    for channels, count in ((6, 3), (8, 1)):
        folder = tmp_path / str(channels)
        folder.mkdir()
        rules = _run_one(folder, (1, channels, 5, 9, 9))
        assert sum(rule in ("conv", "winograd") for rule in rules) == count


def test_batches_of_volumes_stay_volumes(tmp_path: Path) -> None:
    assert "conv" not in _run_one(tmp_path, (2, 3, 5, 9, 9))


@pytest.mark.parametrize(("channels", "size"), [(16, 8), (8, 7)], ids=["aligned", "copied"])
def test_images_of_a_batch_that_is_no_volume(tmp_path: Path, channels: int, size: int) -> None:
    """Cut, put side by side and taken apart as volumes are, and read by others, too."""
    net = Builder(channels)
    x = net.op("Relu", net.conv("x", channels, channels))

    def cut(first: int, behind: int, step: int = 1) -> str:
        words = ([first], [behind], [0], [step])
        return net.op("Slice", x, *(net.const(word, "int64") for word in words))

    def beside(*firsts: int, count: int = 3) -> str:
        return net.op("Concat", *(cut(first, first + count) for first in firsts), axis=1)

    shared, shown, pair = cut(2, 5), cut(1, 6, 3), beside(0, 1)
    shape = net.const([12, channels, size, size], "int64")
    apart = net.op("Reshape", net.conv(x, channels, 2 * channels), shape)
    cases = {
        "every other": net.conv(cut(0, 6, 2), channels, 8),
        "read twice": net.conv(shared, channels, 8),
        "by a sum": net.op("Add", shared, shared),
        "depthwise": net.conv(shown, channels, channels, group=channels),
        "shown": shown,
        "apart": net.conv(apart, channels, 8),
        "apart, shown": apart,
        "a window": net.conv(beside(0, 1, 2), 3 * channels, 8),
        "no neighbours": net.conv(beside(0, 2), 2 * channels, 8),
        "a pair": net.conv(pair, 2 * channels, 8),
        "a pair, shown": pair,
        "of one image": net.conv(beside(0, 1, 2, count=1), 3 * channels, 8),
    }
    given = {"x": (6, channels, size, size)}
    model = save_cases(tmp_path / "model.onnx", net, given, cases)
    inputs = [np.random.default_rng(0).normal(size=given["x"]).astype("float32")]
    _, got = compile_and_run(model, inputs, "local", "native", tmp_path)
    wrong = wrong_outputs(model, inputs, got)
    assert not wrong, "\n".join(wrong)

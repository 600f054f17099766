"""Depthwise convolutions, those in groups and poolings in one kernel with the convolution before
them, and 1x1 convolutions with the arithmetic before them, against onnxruntime.

To compilers that take the cache for this small, images of a few kilobytes are large ones.
"""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm

from edgepack.boards import get_board
from edgepack.compiler import compile_model
from edgepack.compiler.place import emit
from edgepack.frontend.precision import Precision
from edgepack.kernels.tiles.cpu import CpuModel, cpu_model
from edgepack.kernels.tiles.element import FLOAT32
from edgepack.model import ModelSpec
from edgepack.native.toolchain import select
from tests.onnx_models import Builder
from tests.plan_on_arm import run_plan_on_arm
from tests.support import require_tool
from tests.targets import (
    compile_and_run,
    every_target_in_parts,
    save_cases,
    some,
    wrong_outputs,
)

INPUTS: dict[str, tuple[int, ...]] = {
    "image": (1, 3, 31, 29),
    "wide": (1, 20, 28, 15),
    "batch": (3, 11, 24, 13),
    "tall": (1, 9, 60, 7),
}

# Of half the cases, on the instruction set with the widest vectors.
_FEWEST = 6


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(target: tvm.target.Target) -> CpuModel:
        model = cpu_model(target)
        # Some rows of a panel, which is as wide as vectors are.
        return replace(model, l2_bytes=5120 * model.widest(FLOAT32), cores=2)

    monkeypatch.setattr(emit, "cpu_model", small)


@pytest.fixture
def inputs() -> list[np.ndarray]:
    random = np.random.default_rng(7)
    return [random.normal(size=shape).astype("float32") for shape in INPUTS.values()]


def pairs(net: Builder) -> dict[str, str]:
    """Windows, strides, pads, activations in the middle and behind, all in pairs."""

    def pair(
        source: str, outs: int, kernel: int = 3, *, first: int = 1, step: int = 1, **more: object
    ) -> str:
        channels = INPUTS[source][1]
        made = net.op("Relu", net.conv(source, channels, outs, first, strides=[step] * 2))
        return net.conv(made, outs, outs, kernel, group=outs, **more)

    def pooled(source: str, outs: int, kind: str, first: int = 1, **more: object) -> str:
        made = net.op("Relu", net.conv(source, INPUTS[source][1], outs, first))
        return net.op(kind, made, kernel_shape=[3, 3], **more)

    def with_mean(value: str, channels: int) -> str:
        gate = net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", value), channels, 40, 1))
        return net.conv(net.op("Mul", value, gate), 40, 8, 1)

    hardswish = net.op("HardSwish", net.conv("wide", 20, 40, 1))
    hardswish = net.conv(hardswish, 40, 40, 5, group=40)
    limits = [net.const(0.0, "float32"), net.const(6.0, "float32")]
    residual = pair("wide", 40)
    inner = net.conv("wide", 20, 40, 3, pads=[0] * 4)
    return {
        "plain": pair("wide", 44),
        "stride 2": net.op("Clip", pair("wide", 40, strides=[2, 2]), *limits),
        "5x5": net.op("HardSwish", pair("wide", 53, 5)),
        "5x5, stride 2": pair("tall", 24, 5, strides=[2, 2]),
        "7x7": pair("wide", 40, 7),
        "stride 3": pair("wide", 40, strides=[3, 3], pads=[1, 1, 0, 0]),
        "window smaller than its stride": pair("tall", 33, 2, strides=[3, 2], pads=[0] * 4),
        "dilated": pair("wide", 40, dilations=[2, 2], pads=[2] * 4),
        "no pads": pair("wide", 44, pads=[0] * 4),
        "pads above": pair("wide", 44, pads=[2, 1, 0, 1]),
        "pads below": pair("tall", 48, pads=[0, 2, 2, 0]),
        "pair of a batch": net.op("Relu", pair("batch", 40)),
        "batch, stride 2": pair("batch", 40, 5, strides=[2, 2]),
        "first layer": net.op("Relu", pair("image", 32, first=3, step=2)),
        "3x3 before": pair("batch", 24, first=3),
        "many rows": pair("tall", 72),
        "mean": with_mean(net.op("Relu", pair("wide", 40)), 40),
        "mean, stride 2": with_mean(net.op("HardSwish", pair("tall", 40, 5, strides=[2, 2])), 40),
        "mean of a batch": with_mean(pair("batch", 40), 40),
        "hardswish between": hardswish,
        "max pool": net.op("Relu", pooled("wide", 44, "MaxPool", strides=[2, 2], pads=[1] * 4)),
        "max pool of a batch": pooled("batch", 40, "MaxPool", strides=[2, 2]),
        "average": pooled("tall", 40, "AveragePool", strides=[2, 1], pads=[1, 1, 0, 0]),
        "first layer, max pool": pooled(
            "image", 40, "MaxPool", first=3, strides=[2, 2], pads=[1] * 4
        ),
        "pool in place": net.op("Concat", pooled("wide", 40, "MaxPool"), inner, axis=1),
        "sum": net.op("Add", residual, net.conv("wide", 20, 40, 1)),
    }


def in_groups(net: Builder) -> dict[str, str]:
    """Groups of whole blocks of channels and not, with other windows, strides, pads and ends."""

    def pair(
        source: str, inner: int, outs: int, group: int, kernel: int = 3, **more: object
    ) -> str:
        made = net.op("Relu", net.conv(source, INPUTS[source][1], inner, 1))
        return net.conv(made, inner, outs, kernel, group=group, **more)

    mean = net.op("Relu", pair("wide", 48, 48, 6, strides=[2, 2]))
    gate = net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", mean), 48, 48, 1))
    return {
        "groups of 8": net.op("Relu", pair("wide", 48, 48, 6)),
        "groups of a batch": pair("batch", 64, 64, 4, strides=[2, 2]),
        "groups of 5": pair("tall", 40, 24, 8),
        "groups, stride 2": net.op("HardSwish", pair("tall", 48, 96, 3, 5, strides=[2, 2])),
        "groups, no pads": pair("wide", 64, 32, 2, pads=[0] * 4),
        "groups, pads above": pair("wide", 48, 48, 6, pads=[2, 1, 0, 1]),
        "groups, pads below": pair("tall", 48, 48, 6, pads=[0, 2, 2, 0]),
        "dilated groups": pair("tall", 48, 48, 3, dilations=[2, 1], pads=[2, 1, 2, 1]),
        "groups, mean": net.op("Mul", mean, gate),
        "groups, sum": net.op("Add", pair("wide", 48, 40, 2), net.conv("wide", 20, 40, 1)),
    }


def normalised(net: Builder, value: str, channels: int) -> str:
    scaled = net.op("Mul", value, net.weight(1, channels, 1, 1))
    return net.op("Add", scaled, net.weight(1, channels, 1, 1))


def preactivated(net: Builder) -> dict[str, str]:
    """Normalised and activated images, and the 1x1 convolutions that read them."""

    def pair(value: str, channels: int, outs: int, kind: str = "Relu") -> str:
        made = net.op(kind, normalised(net, value, channels))
        return net.conv(made, channels, outs, 1)

    # Several read each, so that no convolution takes the arithmetic in.
    wide, tall, batch = (
        net.conv(name, INPUTS[name][1], outs)
        for name, outs in (("wide", 53), ("tall", 40), ("batch", 40))
    )
    joined = net.op("Concat", net.conv("wide", 20, 40), net.conv("wide", 20, 13), axis=1)
    return {
        "normalised": pair(wide, 53, 44),
        "before a window": net.conv(net.op("Relu", pair(joined, 53, 24)), 24, 9),
        "normalised batch": net.op("Relu", pair(batch, 40, 33)),
        "hardswish": pair(tall, 40, 20, "HardSwish"),
        "sigmoid": pair(tall, 40, 24, "Sigmoid"),
        "block": net.op("Add", pair(wide, 53, 53), wide),
        "whole": net.op("Add", batch, batch),
    }


def random_pairs(net: Builder) -> dict[str, str]:
    """Whatever comes: the seed is fixed, and the name of a case tells what it was."""
    random = np.random.default_rng(23)
    cases = {}
    for _ in range(8):
        source = str(random.choice(list(INPUTS)))
        outs, kernel = int(random.integers(32, 70)), int(random.integers(2, 6))
        options = {
            "strides": [int(random.integers(1, 4))] * 2,
            "pads": random.integers(0, kernel, size=4).tolist(),
        }
        what = " ".join(f"{key}={value}" for key, value in options.items())
        made = net.op("Relu", net.conv(source, INPUTS[source][1], outs, 1))
        cases[f"{source} {outs} k={kernel} {what}"] = net.op(
            "Relu", net.conv(made, outs, outs, kernel, group=outs, **options)
        )
    return cases


def save_pairs(path: Path, part: slice) -> Path:
    net = Builder(seed=9)
    cases = {**some(pairs(net), part), **some(random_pairs(net), part)}
    cases |= some(preactivated(net), part) | some(in_groups(net), part)
    return save_cases(path, net, INPUTS, cases)


@every_target_in_parts
def test_pairs_equal_onnxruntime(
    tmp_path: Path, inputs: list[np.ndarray], board: str, cpu: str, part: slice
) -> None:
    model = save_pairs(tmp_path / "pairs.onnx", part)
    compiled, got = compile_and_run(model, inputs, board, cpu, tmp_path)
    assert not wrong_outputs(model, inputs, got)
    streamed = [layer for layer in compiled.layers if layer.rule == "streamed"]
    # Not what fits even this cache, nor what would be copied more than made.
    assert len(streamed) >= _FEWEST
    assert any(" 1 rows" not in layer.tile for layer in streamed)
    assert any("grouped" in layer.kernel for layer in streamed)
    assert any(layer.rule == "preactivated" for layer in compiled.layers)


@pytest.mark.slow
def test_in_half_precision(tmp_path: Path, inputs: list[np.ndarray]) -> None:
    model = save_pairs(tmp_path / "pairs.onnx", slice(None))
    compiled, got = compile_and_run(
        model, inputs, "rasp5b", "max", tmp_path, precision=Precision(name="float16")
    )
    assert not wrong_outputs(model, inputs, got, tolerance=1e-2)
    streamed = [layer for layer in compiled.layers if layer.rule == "streamed"]
    assert {layer.dtype for layer in streamed} == {"float16"}


def test_results_do_not_depend_on_the_number_of_threads(
    tmp_path: Path, inputs: list[np.ndarray]
) -> None:
    """To the last bit; with more tasks than cores each still has memory of its own."""
    if platform.machine() != "x86_64":
        pytest.skip("not an x86-64 machine")
    model = save_pairs(tmp_path / "pairs.onnx", slice(0, None, 3))
    board = get_board("local")
    compiled = compile_model(
        ModelSpec(path=model), board, select(board, "gnu").toolchain, tmp_path / "out"
    )
    results = []
    for tasks in (1, 2, 3):
        work = tmp_path / str(tasks)
        work.mkdir()
        results.append(
            run_plan_on_arm(
                compiled.folder,
                inputs,
                compiler=require_tool("gcc"),
                qemu=[],
                work=work,
                tasks=tasks,
            )
        )
    assert not wrong_outputs(model, inputs, results[0])
    for first, *others in zip(*results, strict=True):
        for other in others:
            np.testing.assert_array_equal(first, other)


def test_only_one_reader(tmp_path: Path, inputs: list[np.ndarray]) -> None:
    """What anything else reads, the caller included, is made as a whole."""
    net = Builder(seed=1)
    shared = net.op("Relu", net.conv("wide", 20, 44, 1))
    seen = net.op("Relu", net.conv("tall", 9, 40, 1))
    joined = net.op("Concat", net.conv("wide", 20, 40), net.conv("wide", 20, 13), axis=1)
    active = net.op("Relu", normalised(net, joined, 53))
    cases = {
        "1x1": net.conv(active, 53, 40, 1),
        "3x3": net.conv(active, 53, 40, 3),
        "depthwise": net.conv(shared, 44, 44, group=44),
        "other": net.conv(shared, 44, 8, 1),
        "seen": seen,
        "of seen": net.conv(seen, 40, 40, group=40),
    }
    model = save_cases(tmp_path / "shared.onnx", net, INPUTS, cases)
    compiled, got = compile_and_run(model, inputs, "local", "native", tmp_path)
    assert not wrong_outputs(model, inputs, got)
    assert not {"streamed", "preactivated"} & {layer.rule for layer in compiled.layers}

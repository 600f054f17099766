"""Scratch memory that the largest images leave room for, and no more where that costs little."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from edgepack.boards import get_board
from edgepack.compiler import plan_model
from edgepack.compiler.backend.llvm import tvm_target
from edgepack.compiler.backend.plan import Plan
from edgepack.compiler.backend.report import LayerReport
from edgepack.compiler.layers.fuse import fuse
from edgepack.compiler.layers.read import read_layers
from edgepack.compiler.layers.tensors import variables
from edgepack.compiler.place import lower
from edgepack.compiler.place.headroom import Headroom
from edgepack.compiler.place.order import as_late_as_possible
from edgepack.frontend import importer
from edgepack.frontend.load import load_model
from edgepack.frontend.precision import Precision
from edgepack.kernels.choices import UNLIMITED
from edgepack.kernels.layer import Convolution, Layer
from edgepack.kernels.tiles.cpu import CORTEX_A72
from edgepack.kernels.value import Value
from edgepack.model import ModelSpec
from tests.headroom import (
    HEADS,
    LEAN,
    Shape,
    beside,
    branches,
    chain,
    dense,
    halves,
    heads,
    joint,
    large_window,
    pooled,
    pooled_by_windows,
    residual,
    rows,
    stem,
    sums,
    volumes,
)
from tests.onnx_models import Builder
from tests.targets import save_cases

BOUNDED = Precision(bounded=frozenset({"x"}))  # or it has no large tiles of Winograd's


def planned(
    folder: Path,
    make: Callable[[Builder], str],
    shape: Shape,
    board: str,
    cpu: str,
    growth: float,
    precision: Precision = BOUNDED,
) -> tuple[Plan, tuple[LayerReport, ...]]:
    net = Builder()
    path = save_cases(folder / "model.onnx", net, {"x": shape}, {"y": make(net)})
    found = get_board(board)
    found = replace(found, cpu=cpu) if cpu else found
    model = load_model(ModelSpec(path=path))
    plan, _, reports, _ = plan_model(model, found, growth=growth, precision=precision)
    return plan, reports


IMAGE, LINES = (1, 3, 224, 224), (1, 64, 6, 320)


@pytest.mark.parametrize("board", ["local", "rasp4b-64", "rasp3b", "pynq"])
def test_a_sum_takes_the_place_of_what_had_other_zeros_around_it(
    board: str, tmp_path: Path
) -> None:
    plan, _ = planned(tmp_path, sums, (1, 8, 1, 2560), board, "", LEAN)
    # What a window is moved over, and what that is added to.
    assert plan.arena_bytes <= 4 * 2 * 32 * 2560 * (1 + 1 / 16) * 1.06


@pytest.mark.parametrize(("board", "cpu"), [("local", "haswell"), ("rasp4b-64", "")])
def test_a_sum_of_volumes_takes_the_place_of_one(board: str, cpu: str, tmp_path: Path) -> None:
    size = (16, 64, 64)
    plan, _ = planned(tmp_path, volumes, (1, 8, *size), board, cpu, LEAN)
    volume = 4 * 8 * math.prod(size)
    around = math.prod(extent + 2 for extent in size) / math.prod(size)
    # Two of them with zeros around; a third one would be as large.
    assert plan.arena_bytes <= 2 * volume * around * 1.15


@pytest.mark.parametrize(
    ("make", "shape", "board", "cpu", "neighbours"),
    [
        # The image and the first result; 1x1 and depthwise layers as they are; both halves of a
        # joint and it.
        pytest.param(stem, IMAGE, "rasp4b-64", "", 3 * 224**2 + 32 * 112**2, id="stem-a72"),
        pytest.param(stem, IMAGE, "local", "znver4", 3 * 224**2 + 32 * 112**2, id="stem-avx512"),
        pytest.param(rows, LINES, "rasp4b-64", "", 2 * 128 * 6 * 320, id="rows-a72"),
        pytest.param(rows, LINES, "rasp3b", "", 2 * 128 * 6 * 320, id="rows-a53"),
        pytest.param(joint, (1, 16, 96, 96), "local", "znver4", 72 * 96**2, id="joint-avx512"),
        # All three parts and what is made of them; the last joint and the one before.
        pytest.param(halves, (1, 16, 80, 80), "rasp4b-64", "", 80 * 80**2, id="halves-a72"),
        pytest.param(dense, (1, 16, 56, 56), "rasp4b-64", "", 352 * 56**2, id="dense-a72"),
        # What is made between two products, and the result.
        pytest.param(heads, HEADS, "rasp4b-64", "", 5 * 128 * 256, id="heads-a72"),
        pytest.param(heads, HEADS, "rasp3b", "", 5 * 128 * 256, id="heads-a53"),
    ],
)
def test_scratch_memory_is_what_the_images_leave(
    make: Callable[[Builder], str],
    shape: Shape,
    board: str,
    cpu: str,
    neighbours: int,
    tmp_path: Path,
) -> None:
    plan, reports = planned(tmp_path, make, shape, board, cpu, LEAN)
    # Zeros around images and in their last blocks come on top.
    assert plan.arena_bytes <= 4 * neighbours * (1 + 1 / 16) * 1.06
    fast, others = planned(tmp_path, make, shape, board, cpu, UNLIMITED)
    if make is not joint:
        assert plan.arena_bytes < 0.92 * fast.arena_bytes
        assert sum(r.cycles for r in reports) <= 1.05 * sum(r.cycles for r in others)


@pytest.mark.parametrize(
    ("board", "cpu"), [("rasp4b-64", ""), ("rasp3b", ""), ("pynq", ""), ("local", "haswell")]
)
def test_weights_are_transformed_where_images_leave_room(
    board: str, cpu: str, tmp_path: Path
) -> None:
    """Few weights of large images: the model grows by less than a tenth where stored it would be
    four times as large, and takes at most a third longer."""

    def make(net: Builder) -> str:
        value = "x"
        for _ in range(3):
            value = net.op("Relu", net.op("Conv", value, net.weight(64, 64, 3, 3), pads=[1] * 4))
        return value

    plan, reports = planned(tmp_path, make, (1, 64, 192, 192), board, cpu, 1.5)
    fast, others = planned(tmp_path, make, (1, 64, 192, 192), board, cpu, UNLIMITED)
    weights = 4 * 3 * 64 * 64 * 9
    assert all("fresh weights" in report.tile for report in reports if report.macs)
    assert len(plan.params) <= 1.1 * weights < 3 * weights <= len(fast.params)
    assert plan.arena_bytes <= 4 * 2 * 64 * 192**2 * (1 + 1 / 16) * 1.06
    assert sum(r.cycles for r in reports) <= 1.35 * sum(r.cycles for r in others)


@pytest.mark.parametrize("board", ["rasp4b-64", "rasp4b", "rasp3b", "pynq"])
def test_a_large_window_has_tiles_that_there_is_room_for(board: str, tmp_path: Path) -> None:
    plan, reports = planned(tmp_path, large_window, IMAGE, board, "", LEAN)
    assert "winograd" in {r.rule for r in reports if r.layer == "Conv_0"}
    # The first result, and that of the pooling.
    neighbours = 64 * (112**2 + 56**2)
    assert plan.arena_bytes <= 4 * neighbours * (1 + 1 / 16) * 1.06


def test_a_large_window_is_streamed_where_tiles_are_hardly_faster(tmp_path: Path) -> None:
    few = partial(large_window, channels=8)
    for growth in (LEAN, UNLIMITED):
        _, reports = planned(tmp_path, few, IMAGE, "local", "haswell", growth)
        assert [r.rule for r in reports if "Conv_0" in r.layer] == ["streamed"]


@pytest.mark.parametrize(("board", "cpu"), [("local", "znver4"), ("rk3399", ""), ("pynq", "")])
def test_an_inner_image_is_made_in_parts(board: str, cpu: str, tmp_path: Path) -> None:
    """Where the block's input is kept: onnxruntime puts the short branch first, whose result would
    be there as well."""
    plan, reports = planned(tmp_path, branches, (1, 48, 96, 96), board, cpu, LEAN)
    whole, fast = planned(tmp_path, branches, (1, 48, 96, 96), board, cpu, UNLIMITED)
    assert plan.arena_bytes < 0.9 * whole.arena_bytes
    # The input, half of the inner image, the result; zeros beside the rows come on top.
    assert plan.arena_bytes <= 4 * (48 + 32 + 64) * 96**2 * 1.1
    # All multiplications are done once.
    macs = 9 * 48 * 64 + 9 * 64 * 64 + 48 * 64
    first = [r for r in reports if r.layer in ("Conv_0", "Conv_2", "Conv_4")]
    assert sum(r.macs for r in first) == macs * 96 * 96
    assert len(first) > 3
    assert sum(r.macs for r in reports) == sum(r.macs for r in fast)


def test_parts_have_the_limits_of_what_they_are_parts_of(tmp_path: Path) -> None:
    exact = Precision(direct=True)
    _, reports = planned(tmp_path, branches, (1, 48, 96, 96), "rk3399", "", LEAN, exact)
    first = [r for r in reports if r.layer in ("Conv_0", "Conv_2", "Conv_4")]
    assert len(first) > 3
    assert {(r.most_results, r.limited) for r in first} == {(0, "[compile] exact")}


@pytest.mark.parametrize("board", ["rasp4b-64", "pynq"])
def test_an_image_that_is_only_pooled_is_made_in_parts(board: str, tmp_path: Path) -> None:
    shape = (1, 128, 1016, 1)
    plan, reports = planned(tmp_path, pooled, shape, board, "", LEAN)
    whole, fast = planned(tmp_path, pooled, shape, board, "", UNLIMITED)
    assert plan.arena_bytes < 0.9 * whole.arena_bytes
    # As the model has it; half of the result is there at a time.
    assert plan.arena_bytes <= 4 * (128 + 256) * 1016 * (1 + 1 / 16) * 1.06
    convolutions = [report for report in reports if report.layer == "Conv_1"]
    assert len(convolutions) > 1
    assert len([report for report in fast if report.layer == "Conv_1"]) == 1
    assert sum(r.macs for r in reports) == sum(r.macs for r in fast)
    assert sum(r.cycles for r in reports) <= 1.03 * sum(r.cycles for r in fast)


@pytest.mark.parametrize("board", ["rasp3b", "rasp3b-64", "pynq"])
def test_an_image_of_which_windows_are_pooled_is_made_in_parts(board: str, tmp_path: Path) -> None:
    shape = (1, 3, 148, 148)
    plan, reports = planned(tmp_path, pooled_by_windows, shape, board, "", LEAN)
    whole, fast = planned(tmp_path, pooled_by_windows, shape, board, "", UNLIMITED)
    assert plan.arena_bytes < 0.8 * whole.arena_bytes
    # What is read and half of what is pooled, and the result.
    assert plan.arena_bytes <= 4 * ((32 + 32) * 74**2 + 64 * 36**2) * 1.1
    assert len([report for report in reports if report.layer == "Conv_1"]) > 1
    assert sum(r.cycles for r in reports) <= 1.03 * sum(r.cycles for r in fast)


def test_a_small_image_that_is_pooled_is_made_as_a_whole(tmp_path: Path) -> None:
    def small(net: Builder) -> str:
        return net.op("GlobalMaxPool", net.conv("x", 16, 64))

    for board in ("local", "rasp3b", "rasp4b-64", "pynq"):
        _, reports = planned(tmp_path, small, (1, 16, 20, 20), board, "", LEAN)
        assert len([report for report in reports if report.layer == "Conv_0"]) == 1


def test_an_inner_image_that_is_read_twice_is_made_as_a_whole(tmp_path: Path) -> None:
    def twice(net: Builder) -> str:
        inner = net.op("Relu", net.conv("x", 48, 64))
        made = net.op("Relu", net.conv(inner, 64, 64))
        short = net.conv("x", 48, 64, kernel=1)
        return net.op("Add", net.op("Add", short, made), net.op("Sigmoid", inner))

    _, reports = planned(tmp_path, twice, (1, 48, 48, 48), "local", "haswell", LEAN)
    assert len([r for r in reports if r.layer.startswith("Conv")]) == 3


def test_images_are_made_as_a_whole_where_parts_of_some_are_no_use(tmp_path: Path) -> None:
    """Of three convolutions in a row only two can be in parts, and the third needs as much."""
    _, reports = planned(tmp_path, chain, (1, 48, 48, 48), "local", "haswell", LEAN)
    assert len([r for r in reports if r.layer.startswith("Conv")]) == 4


@pytest.mark.parametrize("board", ["local", "rasp4b-64", "rasp3b", "pynq"])
def test_no_network_becomes_much_slower_for_it(board: str, tmp_path: Path) -> None:
    cpu = "haswell" if board == "local" else ""
    shape = (1, 64, 56, 56)
    _, reports = planned(tmp_path, residual, shape, board, cpu, LEAN)
    _, fast = planned(tmp_path, residual, shape, board, cpu, UNLIMITED)
    assert any("winograd" in report.kernel for report in fast)
    assert sum(r.cycles for r in reports) <= 1.03 * sum(r.cycles for r in fast)


@pytest.mark.parametrize("board", ["local", "rasp4b-64", "rasp3b"])
def test_a_pair_that_only_narrow_panels_can_make(board: str, tmp_path: Path) -> None:
    cpu = "haswell" if board == "local" else ""
    _, reports = planned(tmp_path, beside, (1, 16, 1, 400), board, cpu, LEAN)
    assert any(report.kernel.startswith("conv_depthwise") for report in reports)


def test_a_network_without_layers(tmp_path: Path) -> None:
    def flat(net: Builder) -> str:
        return net.op("Flatten", "x")

    plan, _ = planned(tmp_path, flat, (1, 2, 3, 4), "rasp3b", "", LEAN)
    assert plan.tensors[plan.outputs[0]].shape == (1, 24)


def test_joints_of_whole_blocks_keep_them(tmp_path: Path) -> None:
    def whole(net: Builder) -> str:
        parts = [net.op("Relu", net.conv("x", 16, 32, kernel=1)) for _ in range(2)]
        return net.conv(net.op("Concat", *parts, axis=1), 64, 16, kernel=1)

    plan, _ = planned(tmp_path, whole, (1, 16, 96, 96), "local", "znver4", LEAN)
    assert 16 in {tensor.shape[-1] for tensor in plan.tensors if len(tensor.shape) == 4}


# ------------------------------------------------ what is in use


def layers_of(
    folder: Path, net: Builder, shape: Shape, out: str
) -> tuple[list[Layer], list[Value]]:
    """The layers that a network is read as, and its outputs."""
    path = save_cases(folder / "model.onnx", net, {"x": shape}, {"y": out})
    model, target = load_model(ModelSpec(path=path)), tvm_target(get_board("rasp4b-64"))
    main = lower.fold(importer.import_model(model), target, model)["main"]
    read = read_layers(main)
    return list(read.layers), list(map(read.values.of, variables(main.body.body)))


def test_bytes_that_are_in_use(tmp_path: Path) -> None:
    """A branch that is added to, and one that is a part of a joint."""
    net = Builder()
    first = net.op("Relu", net.conv("x", 16, 64, kernel=1))
    inner = net.op("Relu", net.conv(first, 64, 128, kernel=1))
    total = net.op("Add", net.conv(inner, 128, 64, kernel=1), first)
    part = net.conv(total, 64, 32, kernel=1)
    joined = net.op("Concat", total, part, axis=1)
    out = net.conv(joined, 96, 16, kernel=1)
    read, outputs = layers_of(tmp_path, net, (1, 16, 64, 64), out)
    layers = fuse(read, outputs)
    room = Headroom(layers, outputs, replace(CORTEX_A72, cores=1))
    plane = 4 * 64 * 64
    # 64 + 128 channels are the largest neighbours; the sum is where the first result was.
    most = 192 * plane * 17 // 16
    live = [16 + 64, 64 + 128, 64 + 128, 64 + 32, 64 + 32, 64 + 32 + 16]
    step = 32 << 10
    # The joint is there from its first part on; 32 channels of it are empty until they are made.
    beside = [32, 0, 0, 0, 0, 0]
    expected = [
        (most - (channels + more) * plane) // step * step
        for channels, more in zip(live, beside, strict=True)
    ]
    assert [room.of(layer) for layer in layers] == [max(64 << 10, left) for left in expected]
    # In one kernel with the one before, what is between them is nowhere.
    assert room.of_both(layers[1], layers[2]) == (most - (64 + 32) * plane) // step * step
    assert not room.is_short(*layers)


def test_layers_as_late_as_possible(tmp_path: Path) -> None:
    """The short branch comes right before the sum, each other layer before what reads it."""
    net = Builder()
    read, outputs = layers_of(tmp_path, net, (1, 48, 48, 48), branches(net))
    late = as_late_as_possible(read, outputs)
    assert sorted(map(id, late)) == sorted(map(id, read))
    made = {layer.output for layer in read}
    seen = {value for layer in read for value in layer.inputs} - made
    for layer in late:
        assert {*layer.inputs, *layer.operands} <= seen
        seen.add(layer.output)
    kernels = [layer.operator.kernel for layer in late if isinstance(layer.operator, Convolution)]
    assert kernels == [(1, 9), (1, 9), (1, 1)] * 2


def test_what_no_layer_reads_comes_before_who_may_need_it(tmp_path: Path) -> None:
    """A product reads what its matrix is the transpose of; TVM's code for it, the transpose."""
    net = Builder()
    turned = net.op("Transpose", net.op("Relu", "x"), perm=[0, 2, 1])
    out = net.op("Softmax", net.op("MatMul", net.op("Exp", "x"), turned), axis=-1)
    read, outputs = layers_of(tmp_path, net, (1, 6, 8), out)
    hidden = [layer for layer in read if not any(layer.output in one.inputs for one in read)]
    hidden = [layer for layer in hidden if layer.output not in outputs]
    late = as_late_as_possible(read, outputs)
    assert [layer.output.origin.operator for layer in hidden if layer.output.origin] == [
        "Transpose"
    ]
    after = late[late.index(hidden[0]) :]
    assert any("MatMul" in str(layer.output.origin) for layer in after)

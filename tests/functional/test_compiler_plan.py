"""Where tensors lie: the arena of whole models, and what takes the place of what."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgepack.boards import get_board
from edgepack.compiler import CompiledModel, compile_model, plan_model
from edgepack.compiler.backend import place
from edgepack.compiler.backend.arena import Block
from edgepack.flow.job import compile_job, make_job
from edgepack.flow.project import load_project
from edgepack.flow.reference import run_reference
from edgepack.frontend.load import load_model
from edgepack.model import ModelSpec
from edgepack.native.toolchain import select
from tests.example import load_build
from tests.onnx_models import Builder
from tests.plan_runner import run_plan

IMAGE = (1, 32, 10, 12)


def compile_here(
    net: Builder,
    outputs: list[str],
    folder: Path,
    image: tuple[int, ...] = IMAGE,
    growth: float = math.inf,
) -> CompiledModel:
    """Compile for this machine, and compare two runs with onnxruntime."""
    path = folder / "model.onnx"
    proto = net.model({"image": image}, dict.fromkeys(outputs), opset=17)
    onnx.save(onnx.shape_inference.infer_shapes(proto), path)
    board = get_board("local")
    compiled = compile_model(
        ModelSpec(path=path),
        board,
        select(board, "gnu").toolchain,
        folder / "out",
        growth=growth,
    )
    x = np.random.default_rng(7).normal(size=image).astype("float32")
    for mine, theirs in zip(
        run_plan(compiled.folder, [x], runs=2), run_reference(path, {}, [x]), strict=True
    ):
        assert np.abs(mine - theirs).max() <= 1e-4 * np.abs(theirs).max()
    return compiled


def calls_of(compiled: CompiledModel) -> list[tuple[str, list[dict[str, Any]]]]:
    """Each call's operator and its tensors, inputs before outputs."""
    graph = json.loads(compiled.graph.read_text())
    return [
        (call["layer"]["operator"], [graph["tensors"][index] for index in call["args"]])
        for call in graph["calls"]
    ]


def arena_tensors(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [tensor for tensor in tensors if tensor["storage"] == "arena"]


@pytest.mark.parametrize("board", ["rasp3b", "local"])
def test_the_arena_of_mobilenetv2(board: str, tmp_path: Path) -> None:
    """6.4 MB is the bar; 6.0 MB (without halos) is what its widest layer reads and writes."""
    # The one that test_flow.py deploys: whoever comes second finds it in the cache.
    project = load_project(load_build().build(tmp_path))
    compiled = compile_job(make_job(replace(project, board=board)))
    assert compiled.arena_bytes <= 6_400_000


def test_a_sum_takes_the_place_of_what_it_adds_to(tmp_path: Path) -> None:
    net = Builder()
    first = net.op("Relu", net.conv("image", 32, 32, 1))
    wide = net.conv(net.conv(first, 32, 48, 1), 48, 48, 3)
    total = net.op("Add", net.conv(wide, 48, 32, 1), first)
    compiled = compile_here(net, [net.op("Sigmoid", net.conv(total, 32, 8, 1))], tmp_path)
    added = [tensors for operator, tensors in calls_of(compiled) if "Add" in operator]
    assert len(added) == 1
    _, operand, result = arena_tensors(added[0])
    assert operand["offset"] == result["offset"]


def test_probabilities_are_where_what_they_are_made_of_was(tmp_path: Path) -> None:
    """A recogniser's last layer: an output that takes the place of its only argument."""
    net = Builder()
    scores = net.op("MatMul", "image", net.weight(32, 300))
    compiled = compile_here(net, [net.op("Softmax", scores, axis=-1)], tmp_path, image=(1, 9, 32))
    (product, softmax) = calls_of(compiled)
    assert softmax[0] == "Softmax"
    operand, result = arena_tensors(softmax[1])
    assert operand["offset"] == result["offset"] == arena_tensors(product[1])[-1]["offset"]
    assert compiled.arena_bytes <= result["bytes"] + 4 * 9 * 32 + 2 * 64


def test_a_value_that_is_read_later_keeps_its_place(tmp_path: Path) -> None:
    net = Builder()
    first = net.op("Relu", net.conv("image", 32, 32, 1))
    wide = net.conv(net.conv(first, 32, 48, 1), 48, 48, 3)
    total = net.op("Add", net.conv(wide, 48, 32, 1), first)
    later = net.op("Mul", net.conv(total, 32, 32, 1), first)
    compiled = compile_here(net, [later], tmp_path)
    added = [tensors for operator, tensors in calls_of(compiled) if "Add" in operator]
    _, operand, result = arena_tensors(added[0])
    assert operand["offset"] != result["offset"]


def test_a_convolution_never_writes_over_the_image_it_reads(tmp_path: Path) -> None:
    net = Builder()
    first = net.op("Relu", net.conv("image", 32, 32, 1))
    total = net.op("Add", net.conv(first, 32, 32, 1), first)
    compiled = compile_here(net, [net.conv(total, 32, 8, 1)], tmp_path)
    added = [tensors for operator, tensors in calls_of(compiled) if "Add" in operator]
    *read, result = arena_tensors(added[0])
    assert result["offset"] not in [tensor["offset"] for tensor in read]


def test_channels_side_by_side_are_written_there(tmp_path: Path) -> None:
    """A fire module (SqueezeNet) within a cross-stage block: no kernel copies anything."""
    net = Builder()
    squeezed = net.op("Relu", net.conv("image", 32, 16, 1))
    fire = net.op("Concat", net.conv(squeezed, 16, 32, 1), net.conv(squeezed, 16, 32, 3), axis=1)
    low, high = "low", "high"
    net.op("Split", fire, net.const([32, 32], "int64"), outputs=[low, high], axis=1)
    joined = net.op("Concat", net.conv(low, 32, 16, 1), net.conv(high, 32, 48, 1), axis=1)
    compiled = compile_here(net, [net.op("Sigmoid", net.conv(joined, 64, 8, 1))], tmp_path)
    assert {layer.rule for layer in compiled.layers} <= {"layout", "conv", "winograd"}
    expanded = [tensors for operator, tensors in calls_of(compiled) if operator == "Conv"]
    places = {
        (tensor["offset"], tensor["offset"] + tensor["bytes"])
        for tensors in expanded
        for tensor in arena_tensors(tensors)[1:2]
    }
    # The parts of each joint touch, and nothing else of so many bytes is written.
    assert sum(any(other[0] == place[1] for other in places) for place in places) == 2


def _u_net(folder: Path) -> CompiledModel:
    """Between a skip and the joint it is a part of, one layer is wider than the joint."""
    net = Builder()
    skip = net.op("Relu", net.conv("image", 32, 32, 1))
    low = net.op("MaxPool", skip, kernel_shape=[2, 2], strides=[2, 2])
    wide = net.op("Relu", net.conv(low, 32, 256, 1))
    deep = net.op("Relu", net.conv(wide, 256, 32, 1))
    up = net.op("ConvTranspose", deep, net.weight(32, 32, 2, 2), strides=[2, 2])
    joined = net.op("Concat", skip, up, axis=1)
    return compile_here(net, [net.conv(joined, 64, 8, 1)], folder, image=(1, 32, 32, 32))


def test_a_skip_takes_no_more_than_its_own_bytes(tmp_path: Path) -> None:
    compiled = _u_net(tmp_path)
    # The skip, the wide layer and what that is made of; not all of the joint instead of the skip.
    skip = 4 * 32 * 32 * 32
    assert compiled.arena_bytes < 1.05 * (skip + 2 * skip + skip // 4)


def test_bytes_that_are_taken_too_late_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That these comparisons fail if what is joined had its bytes from the joint's end on only."""

    def late(block: Block) -> Block:
        return replace(block, parts=tuple(replace(p, first=block.last) for p in block.parts))

    made = place.arena_blocks
    monkeypatch.setattr(
        place, "arena_blocks", lambda draft, roots: [late(b) for b in made(draft, roots)]
    )
    with pytest.raises(AssertionError):
        _u_net(tmp_path)


@pytest.mark.parametrize(("size", "copies"), [(3, 0), (1, 1)])
def test_a_joint_that_has_a_halo_takes_its_parts_as_well(
    size: int, copies: int, tmp_path: Path
) -> None:
    """GhostNet: half of an image is made of the other half by windows. One that is read without a
    halo keeps none, for that is worth more than the copy."""
    net = Builder()
    half = net.op("Relu", net.conv("image", 32, 32, 1))
    other = net.op("Relu", net.conv(half, 32, 32, 5, group=32))
    joined = net.op("Concat", half, other, axis=1)
    down = net.op("Relu", net.conv(joined, 64, 64, size, group=64 if size > 1 else 1))
    compiled = compile_here(net, [net.conv(down, 64, 8, 1)], tmp_path)
    assert [layer.rule for layer in compiled.layers].count("concat") == copies


def test_weights_are_stored_as_often_as_they_may_be(tmp_path: Path) -> None:
    sizes = {}
    for growth in (math.inf, 1.5, 1.0):
        net = Builder()
        inner = net.op("Relu", net.conv("image", 64, 64, 3))
        folder = tmp_path / str(growth)
        folder.mkdir()
        compiled = compile_here(
            net, [net.conv(inner, 64, 64, 3)], folder, image=(1, 64, 24, 24), growth=growth
        )
        rules = {layer.rule for layer in compiled.layers}
        assert ("winograd" in rules) is (growth > 1)
        assert ("conv" in rules) is (growth < math.inf)
        sizes[growth] = compiled.params_bytes
    weights = 4 * 2 * (64 * 64 * 9 + 64)
    # Each tensor starts at a multiple of 64 bytes.
    assert sizes[1.0] <= weights + 4 * 64
    assert sizes[1.0] < sizes[1.5] <= 1.5 * weights
    assert sizes[math.inf] > 1.7 * weights  # F(2x2), of the smallest tiles, stores 16 for 9


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resized_images_stay_in_the_blocked_layout(mode: str, tmp_path: Path) -> None:
    """The way up of a U-Net and of a feature pyramid: nothing but the ends changes layout."""
    net = Builder()
    wide = net.op("Relu", net.conv("image", 32, 32, 3))
    low = net.op("Relu", net.conv(wide, 32, 16, 3, strides=[2, 2]))
    twice = net.const([1.0, 1.0, 2.0, 2.0], "float32")
    up = net.op("Resize", low, "", twice, mode=mode)
    joined = net.conv(net.op("Concat", up, wide, axis=1), 48, 8, 3)
    top = net.op("Resize", net.conv(low, 16, 16, 1), "", twice, mode=mode)
    summed = net.op("Add", net.conv(wide, 32, 16, 1), top)
    pyramid = net.conv(summed, 16, 8, 3)
    compiled = compile_here(net, [net.op("Add", joined, pyramid)], tmp_path)
    first, *inner, last = (layer.rule for layer in compiled.layers)
    assert first == last == "layout"
    assert inner.count("resize") == 2
    assert set(inner) <= {"resize", "conv", "winograd"}


def test_a_resize_at_the_end_leaves_the_layout_first(tmp_path: Path) -> None:
    """A segmentation's last layers: the smaller image is unpacked, not the larger one."""
    net = Builder()
    low = net.op("Relu", net.conv("image", 32, 21, 1))
    scales = net.const([1.0, 1.0, 4.0, 4.0], "float32")
    compiled = compile_here(net, [net.op("Resize", low, "", scales, mode="linear")], tmp_path)
    assert [layer.rule for layer in compiled.layers] == ["layout", "conv", "layout", "resize"]


def test_channels_are_moved_by_what_changes_the_layout(tmp_path: Path) -> None:
    """A block of ConvNeXt: one kernel there and one back, and no other copies."""
    net = Builder()
    start = net.op("Relu", net.conv("image", 32, 32, 3))
    turned = net.op("Transpose", net.conv(start, 32, 32, 3, group=32), perm=[0, 2, 3, 1])
    norm = net.op("LayerNormalization", turned, net.weight(32), net.weight(32), axis=-1)
    hidden = net.op("Relu", net.op("MatMul", norm, net.weight(32, 64)))
    back = net.op("Transpose", net.op("MatMul", hidden, net.weight(64, 32)), perm=[0, 3, 1, 2])
    end = net.conv(net.op("Add", start, back), 32, 8, 1)
    compiled = compile_here(net, [net.op("GlobalMaxPool", end)], tmp_path)
    rules = [layer.rule for layer in compiled.layers]
    there, products = ["depthwise", "layout", "norm"], ["product", "product"]
    back_again = ["layout", "pointwise", "conv", "global_pool"]
    assert rules[rules.index("depthwise") :] == [*there, *products, *back_again]


def test_folded_constants_leave_less_for_weights(tmp_path: Path) -> None:
    """A grid that the model's file has as a row of it."""
    net = Builder()
    channels = range(16, 80, 8)
    value = "image"
    for ins, outs in pairwise(channels):
        value = net.op("Relu", net.conv(value, ins, outs, 3))
    grid = net.op("Expand", net.weight(24), net.const([1, 8, 24, 24], "int64"))
    grids = net.op("Relu", net.op("Concat", grid, net.conv(value, channels[-1], 8, 1), axis=1))
    path = tmp_path / "model.onnx"
    proto = net.model({"image": (1, 16, 24, 24)}, {grids: None}, opset=17)
    onnx.save(onnx.shape_inference.infer_shapes(proto), path)
    weights = sum(4 * math.prod(tensor.dims) for tensor in proto.graph.initializer)
    model = load_model(ModelSpec(path=path))
    plan, *_ = plan_model(model, get_board("rasp4b-64"), growth=1.5)
    assert 1.3 * weights < len(plan.params) <= 1.5 * weights

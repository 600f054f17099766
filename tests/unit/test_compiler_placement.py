"""What is decided of a network before any kernel is made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgepack.compiler.place.placement import JointOf, PlacedLayer, Placement, ViewAt, place_layers
from edgepack.frontend import importer
from edgepack.frontend.load import load_model
from edgepack.kernels.layer import Convolution, Streamed
from edgepack.kernels.limits import LayerLimits, LimitsByValue
from edgepack.kernels.rules.convolution import merged_groups
from edgepack.kernels.signature import signature_of
from edgepack.kernels.tiles.cpu import AVX512, CORTEX_A72, CpuModel
from edgepack.kernels.tiles.element import FLOAT32
from edgepack.kernels.tiles.layout import Halo
from edgepack.model import ModelSpec
from tests.onnx_models import Builder
from tests.targets import save_cases
from tests.unit.test_compiler_winograd import layer

IMAGE = (1, 8, 12, 10)


def placed(
    path: Path,
    net: Builder,
    *outputs: str,
    cpu: CpuModel = CORTEX_A72,
    shape: tuple[int, ...] = IMAGE,
) -> Placement:
    """The placement of a network of one image, or of what else has a `shape`."""
    save_cases(path, net, {"x": shape}, {f"result_{name}": name for name in outputs})
    module = importer.import_model(load_model(ModelSpec(path=path)))
    return place_layers(module["main"], cpu)


def by_rule(placement: Placement, name: str) -> list[PlacedLayer]:
    return [item for item in placement.layers if item.rule is not None and item.rule.name == name]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def test_a_joint_copies_only_parts_that_have_their_place_elsewhere(path: Path) -> None:
    net = Builder()
    one, two = net.conv("x", 8, 16, kernel=1), net.conv("x", 8, 16, kernel=1)
    inner = net.op("Concat", one, two, axis=1)
    net.op("Concat", inner, net.conv(inner, 32, 16, kernel=1), one, axis=1, outputs=["y"])
    inner_joint, outer_joint = by_rule(placed(path, net, "y"), "concat")
    assert isinstance(inner_joint.alias, JointOf)
    assert isinstance(outer_joint.alias, JointOf)
    # `one` can lie in one of its two joints only.
    copied = [copied for joint in (inner_joint, outer_joint) for _, copied in joint.alias.parts]
    assert sum(copied) == 1


def test_groups_keep_blocks_that_they_fill(path: Path) -> None:
    """Thirteen groups of 8 have no whole blocks of 16 but all together, as a dense convolution."""
    net = Builder()
    x = net.conv("x", 8, 104, kernel=1)
    net.op("Relu", net.conv(x, 104, 104, group=13), outputs=["y"])
    placement = placed(path, net, "y", cpu=AVX512)
    (_, grouped) = by_rule(placement, "conv")
    operator = grouped.layer.operator
    assert isinstance(operator, Convolution)
    read, made = (placement.layouts[v].block for v in (*grouped.layer.inputs, grouped.layer.output))
    assert merged_groups(operator, read, made) == 1
    # Without groups, as many channels have the wider blocks.
    assert AVX512.block(104, FLOAT32) == 16


def test_a_range_of_blocks_is_a_view_with_the_halo_of_the_whole(path: Path) -> None:
    net = Builder()
    parts = [f"part{i}" for i in range(2)]
    net.op("Split", net.conv("x", 8, 32), outputs=parts, axis=1)
    net.op("Relu", net.conv(parts[1], 16, 8, kernel=5), outputs=["y"])
    placement = placed(path, net, "y")
    view = by_rule(placement, "slice")[1]
    whole, shown = placement.layouts[view.layer.inputs[0]], placement.layouts[view.layer.output]
    assert shown.halo == whole.halo == Halo(top=2, left=2, bottom=2, right=2)
    # 16 of 32 channels lie before it: half of the image.
    assert view.alias == ViewAt(offset=whole.nbytes // 2)


def of_volumes(net: Builder, value: str, count: int, before: int, kernel: int) -> str:
    """Windows over so many images of a volume of 8 channels, the first one `before` the first."""
    behind, around = count - 1 - before, kernel // 2
    return net.op(
        "Conv",
        value,
        net.weight(8, 8, count, kernel, kernel),
        kernel_shape=[count, kernel, kernel],
        pads=[before, around, around, behind, around, around],
    )


VOLUME = (1, 8, 5, 6, 6)


def test_neighbouring_images_are_side_by_side_where_they_are(path: Path) -> None:
    """The images of a window over three of them overlap those of the next one, in their halo, and
    there are zeros before the first and behind the last one."""
    net = Builder()
    made = of_volumes(net, "x", 3, 1, 3)
    net.op("Relu", of_volumes(net, made, 3, 1, 3), outputs=["y"])
    placement = placed(path, net, "y", shape=VOLUME)
    stacks = by_rule(placement, "stack")
    assert [item.alias for item in stacks] == [ViewAt(offset=0)] * 2
    source, shown = (
        placement.layouts[value] for value in (*stacks[1].layer.inputs, stacks[1].layer.output)
    )
    assert source.halo == Halo(top=1, left=1, bottom=1, right=1, front=1, back=1)
    # Two blocks of four channels for each of 5 images and 2 of zeros.
    assert source.shape == shown.shape == (14, 8, 8, 4)
    assert (shown.blocks, shown.step) == (6, 2)


def test_images_are_copied_where_a_window_begins_at_no_aligned_byte(path: Path) -> None:
    """One window begins an image before the first, the other one at it: two planes of 7x7 pixels of
    16 bytes later."""

    def aliases(size: int) -> set[object]:
        net = Builder()
        made = of_volumes(net, "x", 1, 0, 1)
        both = [of_volumes(net, made, 3, 1, 1), of_volumes(net, made, 2, 0, 1)]
        net.op("Add", *both, outputs=["y"])
        placement = placed(path, net, "y", shape=(1, 8, 5, size, size))
        return {item.alias for item in by_rule(placement, "stack")}

    assert aliases(7) == {ViewAt(offset=0), None}
    assert aliases(6) == {ViewAt(offset=0), ViewAt(offset=2 * 6 * 6 * 16)}


def test_the_channels_of_a_transposed_window_are_the_images_of_a_volume(path: Path) -> None:
    net = Builder()
    made = net.op(
        "ConvTranspose", "x", net.weight(8, 8, 2, 2, 2), kernel_shape=[2] * 3, strides=[2] * 3
    )
    net.op("Relu", of_volumes(net, made, 3, 1, 3), outputs=["y"])
    placement = placed(path, net, "y", shape=VOLUME)
    (volume,), (window,) = by_rule(placement, "unstack"), by_rule(placement, "stack")
    # One image of zeros there is half of one here: there are two.
    assert placement.layouts[volume.layer.inputs[0]].halo.front == 1
    assert placement.layouts[volume.layer.output].halo.front == 2
    assert volume.alias == ViewAt(offset=0)
    assert window.alias == ViewAt(offset=2 * 14 * 14 * 16)


def test_a_mean_is_made_with_what_it_is_the_mean_of(path: Path) -> None:
    net = Builder()
    wide = net.conv("x", 8, 24, kernel=1)
    gate = net.op("Sigmoid", net.conv(net.op("GlobalAveragePool", wide), 24, 24, kernel=1))
    net.op("Mul", wide, gate, outputs=["y"])
    placement = placed(path, net, "y")
    assert not by_rule(placement, "mean")
    (first, *_) = (item.layer for item in placement.layers if item.rule is not None)
    assert first.mean is not None
    assert placement.layouts[first.mean].height == placement.layouts[first.mean].width == 1


def test_the_line_of_a_pair_has_the_limits_of_both() -> None:
    first, reader = layer(64, 64, 56), layer(64, 64, 56, groups=64)
    assert isinstance(reader.operator, Convolution)
    pair = replace(
        reader, operator=Streamed(first=first, reader=reader.operator), inputs=first.inputs
    )
    limits = LimitsByValue()
    free = signature_of(pair, limits)
    limits[first.output], limits[pair.output] = LayerLimits(most_results=0), LayerLimits(room=4096)
    one, other = free.split(" then ")
    assert signature_of(pair, limits) == f"{one} winograd=0 then {other} scratch=4096"

"""What is converted between layers, and how often, before any kernel is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgepack.compiler.place.placement import place_layers
from edgepack.compiler.place.steps import (
    CopyStep,
    ImageStep,
    LoweredStep,
    PackStep,
    PlacedStep,
    PlacedSteps,
    TurnStep,
    UnpackStep,
    steps_of,
)
from edgepack.frontend import importer
from edgepack.frontend.load import load_model
from edgepack.kernels.tiles.cpu import CORTEX_A72
from edgepack.model import ModelSpec
from tests.onnx_models import Builder
from tests.targets import save_cases

IMAGE = (1, 8, 12, 10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def planned(path: Path, net: Builder, *outputs: str) -> PlacedSteps:
    """The steps of a network of one image on a Cortex-A72."""
    save_cases(path, net, {"x": IMAGE}, {f"result_{name}": name for name in outputs})
    main = importer.import_model(load_model(ModelSpec(path=path)))["main"]
    return steps_of(main, place_layers(main, CORTEX_A72))


def of_kind(planned: PlacedSteps, kind: type[PlacedStep]) -> list[PlacedStep]:
    return [step for step in planned.steps if isinstance(step, kind)]


def test_layers_of_images_alone_convert_what_they_are_given_and_their_result(path: Path) -> None:
    net = Builder()
    x = net.conv("x", 8, 16)
    for _ in range(3):
        x = net.conv(net.op("Relu", x), 16, 16)
    found = planned(path, net, x)
    assert len(of_kind(found, ImageStep)) == 4
    assert len(of_kind(found, PackStep)) == 1
    (unpacked,) = of_kind(found, UnpackStep)
    assert found.steps[-1] is unpacked
    assert list(found.results.values()) == [unpacked]


def test_a_value_is_unpacked_once_for_all_that_read_it_as_the_model_has_it(path: Path) -> None:
    net = Builder()
    image = net.conv("x", 8, 16)
    sums = [net.op("CumSum", image, net.const(axis, "int64")) for axis in (1, 2)]
    # An image again, read beside the one that is still there in blocks.
    last = net.conv(net.op("Add", net.conv(image, 16, 16), image), 16, 8)
    found = planned(path, net, *sums, last)
    sources = [step.source for step in of_kind(found, UnpackStep) if isinstance(step, UnpackStep)]
    assert len(sources) == len(set(sources)) == 2  # of `image` and of `last`
    lowered = of_kind(found, LoweredStep)
    before = {step: index for index, step in enumerate(found.steps)}
    for step in lowered:
        assert isinstance(step, LoweredStep)
        assert all(before[read] < before[step] for read in step.reads.values())


def test_a_transposition_to_channels_last_is_the_unpacking(path: Path) -> None:
    net = Builder()
    image = net.conv("x", 8, 16)
    last = net.op("Transpose", image, perm=[0, 2, 3, 1])
    found = planned(path, net, net.op("CumSum", last, net.const(3, "int64")))
    (unpacked,) = of_kind(found, UnpackStep)
    assert isinstance(unpacked, UnpackStep)
    assert unpacked.channels_last
    assert unpacked.shape == (1, 12, 10, 16)
    computed = [step for step in found.steps if isinstance(step, LoweredStep) and step.reads]
    assert len(computed) == 1  # the sum alone


def test_a_transposition_from_channels_last_is_the_packing(path: Path) -> None:
    net = Builder()
    last = net.op("CumSum", net.op("Transpose", "x", perm=[0, 2, 3, 1]), net.const(3, "int64"))
    found = planned(path, net, net.conv(net.op("Transpose", last, perm=[0, 3, 1, 2]), 8, 16))
    (packed,) = of_kind(found, PackStep)
    assert isinstance(packed, PackStep)
    assert packed.channels_last
    assert packed.shape == (1, 12, 10, 8)


def test_parts_that_have_their_place_elsewhere_are_copied_into_a_joint(path: Path) -> None:
    net = Builder()
    one, two = net.conv("x", 8, 16, kernel=1), net.conv("x", 8, 16, kernel=1)
    inner = net.op("Concat", one, two, axis=1)
    found = planned(
        path, net, net.op("Concat", inner, net.conv(inner, 32, 16, kernel=1), one, axis=1)
    )
    assert len(of_kind(found, CopyStep)) == 1
    assert not of_kind(found, TurnStep)

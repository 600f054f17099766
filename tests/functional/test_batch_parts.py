"""Images of a volume or a batch that are made some at a time, in the place of those before them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from edgepack.boards import get_board
from edgepack.compiler import plan_model
from edgepack.compiler.backend.report import LayerReport
from edgepack.compiler.place import placement
from edgepack.flow.optimize import DEFAULT_OPTIMIZE, GROWTH
from edgepack.frontend.load import load_model
from edgepack.model import ModelSpec
from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target, wrong_outputs

# Images of whole blocks on every CPU, whose rows are aligned with zeros around them.
CHANNELS, SIZE = 16, 14
GROWTH_OF_BOARDS = GROWTH[DEFAULT_OPTIMIZE]


def _volumes(net: Builder, value: str, channels: int, count: int) -> str:
    """Convolutions of volumes one after the other, with windows of three images and of one."""
    for number in range(count):
        window = (3, 3, 3) if number % 2 == 0 else (1, 3, 3)
        weight = net.weight(CHANNELS, channels if number == 0 else CHANNELS, *window)
        pads = [size // 2 for size in window] * 2
        value = net.op("Relu", net.op("Conv", value, weight, kernel_shape=window, pads=pads))
    return value


def _save(folder: Path, net: Builder, shape: tuple[int, ...], value: str) -> Path:
    net.op("Identity", value, outputs=["y"])
    path = folder / "model.onnx"
    net.save(path, {"x": shape}, {"y": None})
    return path


@every_target
@pytest.mark.parametrize("depth", [16, 9])
def test_volumes(tmp_path: Path, board: str, cpu: str, depth: int) -> None:
    """Sums of three images, which the next part reads, too; of 9 the last part has none left."""
    net, shape = Builder(depth), (1, CHANNELS, depth, SIZE, SIZE)
    path = _save(tmp_path, net, shape, _volumes(net, "x", CHANNELS, 4))
    x = net.random.normal(size=shape).astype("float32")
    compiled, got = compile_and_run(path, [x], board, cpu, tmp_path, growth=GROWTH_OF_BOARDS)
    assert not wrong_outputs(path, [x], got, tolerance=1e-5)
    assert _in_parts(compiled.layers) >= 3


@every_target
def test_a_batch_beside_what_is_read_later(tmp_path: Path, board: str, cpu: str) -> None:
    """Images whose input is read once more are no part of its place; of 10 the last part has one,
    and of windows by strides of two each part has smaller images."""
    net, shape = Builder(3), (10, CHANNELS, 2 * SIZE, 2 * SIZE)
    first = net.op("Relu", net.conv("x", CHANNELS, CHANNELS))
    inner = net.op("Relu", net.conv(first, CHANNELS, 2 * CHANNELS))
    value = net.op("Add", first, net.conv(inner, 2 * CHANNELS, CHANNELS))
    value = net.conv(net.op("Relu", value), CHANNELS, CHANNELS, strides=[2, 2])
    path = _save(tmp_path, net, shape, net.conv(value, CHANNELS, CHANNELS))
    x = net.random.normal(size=shape).astype("float32")
    compiled, got = compile_and_run(path, [x], board, cpu, tmp_path, growth=GROWTH_OF_BOARDS)
    assert not wrong_outputs(path, [x], got, tolerance=1e-5)
    assert _in_parts(compiled.layers) >= 1


@pytest.mark.parametrize("board", ["rasp3b", "rasp4b-64", "local"])
def test_the_arena(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, board: str) -> None:
    """A chain of volumes needs one and some of another, where whole results need two."""
    net, shape = Builder(1), (1, 1, 16, 56, 56)
    one = net.op("Conv", _volumes(net, "x", 1, 4), net.weight(1, CHANNELS, 1, 1, 1))
    path = _save(tmp_path, net, shape, one)

    def arena_bytes() -> int:
        model = load_model(ModelSpec(path=path))
        plan, *_ = plan_model(model, get_board(board), growth=GROWTH_OF_BOARDS)
        return plan.arena_bytes

    parts = arena_bytes()
    monkeypatch.setattr(placement, "worth_parts", lambda *_: frozenset())
    assert parts < 0.75 * arena_bytes()


def _in_parts(layers: Iterable[LayerReport]) -> int:
    """How many layers are made in parts."""
    return sum(layer.joint is not None for layer in layers)

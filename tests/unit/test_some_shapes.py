"""Shapes that are proposed where a model leaves them open: they compile."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.frontend.load import load_model
from edgepack.model import ModelSpec
from edgepack.model.errors import DynamicShapeError
from tests.onnx_models import Builder


def proposed(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes in the hint, as somebody would copy them."""
    with pytest.raises(DynamicShapeError) as error:
        load_model(ModelSpec(path=path))
    words = re.findall(r"--shape (\S+)=([\d,]+)", str(error.value.hint))
    return {name: tuple(map(int, text.split(","))) for name, text in words}


def runs(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """onnx's own strict inference, and our checks, take them."""
    load_model(ModelSpec(path=path, shapes=shapes))
    proto = onnx.load(path)
    for info in proto.graph.input:
        for dim, size in zip(info.type.tensor_type.shape.dim, shapes[info.name], strict=True):
            dim.dim_value = size
    onnx.shape_inference.infer_shapes(proto, strict_mode=True)


def test_an_image_has_its_channels_and_sides(tmp_path: Path) -> None:
    net = Builder()
    net.op("Identity", net.conv("image", 3, 8), outputs=["y"])
    shape = ["n", "c", "h", "w"]
    path = net.save(tmp_path / "m.onnx", {"image": shape}, {"y": [None] * 4})
    found = proposed(path)
    assert found == {"image": (1, 3, 224, 224)}
    runs(path, found)


def test_features_are_as_many_as_the_weights_take(tmp_path: Path) -> None:
    """Not one, nor eight: 13 columns of a table, behind a cast."""
    net = Builder()
    cast = net.op("Cast", "x", to=onnx.TensorProto.FLOAT)
    net.op("MatMul", cast, net.weight(13, 4), outputs=["y"])
    path = net.save(tmp_path / "m.onnx", {"x": [None, None]}, {"y": [None, 4]})
    assert proposed(path) == {"x": (1, 13)}
    runs(path, proposed(path))
    net = Builder()
    net.op("Gemm", "x", net.weight(4, 13), transB=1, outputs=["y"])
    path = net.save(tmp_path / "g.onnx", {"x": ["n", "k"]}, {"y": [None, 4]})
    assert proposed(path) == {"x": (1, 13)}
    runs(path, proposed(path))


def test_all_inputs_are_proposed_with_one_size_for_one_name(tmp_path: Path) -> None:
    net = Builder()
    one = net.op("MatMul", "a", net.weight(6, 4))
    net.op("Add", one, "b", outputs=["y"])
    inputs = {"b": ["batch", "length", 4], "a": ["batch", "length", "width"]}
    path = net.save(tmp_path / "m.onnx", inputs, {"y": [None, None, 4]})
    found = proposed(path)
    assert found == {"b": (1, 8, 4), "a": (1, 8, 6)}
    runs(path, found)


def test_groups_channels_last_and_sound(tmp_path: Path) -> None:
    net = Builder()
    weight = net.const(np.ones((8, 1, 3, 3), np.float32))
    net.op("Conv", "x", weight, group=8, outputs=["y"])
    path = net.save(tmp_path / "m.onnx", {"x": ["n", "c", 32, 32]}, {"y": [None] * 4})
    assert proposed(path) == {"x": (1, 8, 32, 32)}
    net = Builder()
    turned = net.op("Transpose", "x", perm=[0, 3, 1, 2])
    net.op("Identity", net.conv(turned, 3, 8), outputs=["y"])
    path = net.save(tmp_path / "n.onnx", {"x": [1, "h", "w", 3]}, {"y": [None] * 4})
    assert proposed(path) == {"x": (1, 224, 224, 3)}
    runs(path, proposed(path))
    net = Builder()
    weight = net.const(np.ones((8, 40, 3), np.float32))
    net.op("Conv", "x", weight, outputs=["y"])
    path = net.save(tmp_path / "s.onnx", {"x": ["n", "mels", "frames"]}, {"y": [None] * 3})
    assert proposed(path) == {"x": (1, 40, 8)}
    runs(path, proposed(path))


@pytest.mark.parametrize(
    ("name", "axes", "shape"),
    [
        ("audio", [None, None], (1, 16000)),
        ("x", [1, "num_samples"], (1, 16000)),
        ("waveform", ["n", 1, "t"], (1, 1, 16000)),
        ("wav", ["n", "length", 1], (1, 16000, 1)),
        ("audio_features", ["n", "t", 80], (1, 8, 80)),
        ("tokens", ["n", "length"], (1, 8)),
    ],
)
def test_sound_is_a_second_long(
    tmp_path: Path, name: str, axes: list[int | str | None], shape: tuple[int, ...]
) -> None:
    net = Builder()
    net.op("Abs", name, outputs=["y"])
    path = net.save(tmp_path / "m.onnx", {name: axes}, {"y": [None] * len(axes)})
    assert proposed(path) == {name: shape}
    runs(path, proposed(path))


def test_features_are_found_behind_what_only_moves_axes(tmp_path: Path) -> None:
    """A recurrent network of frames without a batch, which is put in; its states are of one."""
    net = Builder()
    scaled = net.op("Div", net.op("Sub", "x", net.const([0.5], "float32")), net.const([2.0], "f"))
    batched = net.op("Unsqueeze", net.op("Identity", scaled), net.const([1]))
    weights = [net.const(np.ones((1, 15, size), np.float32)) for size in (18, 5)]
    net.op("GRU", batched, *weights, "", "", "h", outputs=["y"], hidden_size=5)
    shapes = {"x": ["t", "f"], "h": [1, "n", 5]}
    path = net.save(tmp_path / "m.onnx", shapes, {"y": [None, 1, 1, 5]})
    assert proposed(path)["x"] == (8, 18)


@pytest.mark.parametrize("order", [[0, 3, 1, 2], None])
def test_channels_and_frames_are_found_behind_a_transposition(
    tmp_path: Path, order: list[int] | None
) -> None:
    """An image with its channels last; frames of bands, whose first axis is no batch."""
    net = Builder()
    x = net.op("Unsqueeze", "x", net.const([0, 1])) if order is None else "x"
    turned = net.op("Transpose", x, perm=order) if order else x
    shape = (8, 5, 3, 3) if order else (8, 1, 3, 3)
    net.op("Conv", turned, net.const(np.ones(shape, np.float32)), outputs=["y"])
    axes = ["n", "h", "w", "c"] if order else ["t", "f"]
    path = net.save(tmp_path / "m.onnx", {"x": axes}, {"y": [None] * 4})
    found = proposed(path)
    assert found == {"x": (1, 224, 224, 5) if order else (8, 8)}
    runs(path, found)


def test_means_say_how_many_columns_there_are(tmp_path: Path) -> None:
    net = Builder()
    net.op("Sub", "x", net.const(np.ones(13, np.float32)), outputs=["y"])
    path = net.save(tmp_path / "m.onnx", {"x": ["n", "columns"]}, {"y": [None, None]})
    assert proposed(path) == {"x": (1, 13)}
    runs(path, proposed(path))


def test_a_state_of_recurrent_layers_is_of_one_batch(tmp_path: Path) -> None:
    net = Builder()
    net.op("Abs", "h", outputs=["y"])
    path = net.save(tmp_path / "m.onnx", {"h": [2, None, 128]}, {"y": [2, None, 128]})
    assert proposed(path) == {"h": (2, 1, 128)}

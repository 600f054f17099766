"""The MobileNetV2 example: real weights, real photos, onnxruntime on this machine."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.flow.project import load_project, read_labels
from edgepack.flow.reference import make_golden, top_k
from edgepack.frontend.load import load_model
from edgepack.model import ModelSpec
from edgepack.preprocess.spec import PreprocessSpec
from tests.example import load_build

build = load_build()
checkpoint = sys.modules["checkpoint"]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a project file with all it names."""
    out = tmp_path_factory.mktemp("example")
    assert build.build(out) == out / "edgepack.toml"
    return out


def test_project_file_is_complete(example: Path) -> None:
    project = load_project(example / "edgepack.toml")
    assert project.name == "mobilenetv2"
    assert project.need_board() == "rasp3b"
    assert project.need_device() == "virtual"
    assert project.scores == "softmax"
    assert project.expected_class == 285
    assert project.preprocess is not None
    assert project.preprocess.size == (224, 224)


def test_labels_are_imagenets(example: Path) -> None:
    labels = read_labels(example / "labels.txt")
    assert len(labels) == len(set(labels)) == 1000
    known = {0: "tench", 285: "Egyptian cat", 404: "airliner", 967: "espresso"}
    assert {index: labels[index] for index in known} == known


@pytest.mark.parametrize(
    ("photo", "index", "label", "score"),
    [("chelsea.png", 285, "Egyptian cat", 0.7053), ("coffee.png", 967, "espresso", 0.9928)],
)
def test_photos_are_seen_for_what_they_are(
    example: Path, photo: str, index: int, label: str, score: float
) -> None:
    project = load_project(example / "edgepack.toml")
    assert project.preprocess is not None
    assert project.labels is not None
    model = load_model(ModelSpec(path=project.model, shapes=project.shapes))
    labels = read_labels(project.labels)
    golden = make_golden(
        model,
        preprocess=project.preprocess.for_inputs(model.inputs),
        image=example / photo,
        expected_class=index,
        labels=labels,
    )
    assert golden.expected is not None
    assert golden.expected.label == label
    first = top_k(golden.outputs[0], labels, k=1)[0]
    assert first.index == index
    assert first.score == pytest.approx(score, abs=1e-3)
    assert golden.inputs[0].shape == (1, 3, 224, 224)
    assert golden.outputs[0].shape == (1, 1000)


def test_the_model_is_mobilenetv2_as_trained(example: Path) -> None:
    model = onnx.load(example / "mobilenetv2.onnx")
    counts: dict[str, int] = {}
    for node in model.graph.node:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    # Batch norms are left for the compiler to fold.
    assert counts == {
        "Conv": 52,
        "BatchNormalization": 52,
        "Clip": 35,
        "Add": 10,
        "GlobalAveragePool": 1,
        "Flatten": 1,
        "Gemm": 1,
    }
    learned = sum(
        int(np.prod(tensor.dims))
        for tensor in model.graph.initializer
        if not tensor.name.startswith("relu6") and "running" not in tensor.name
    )
    assert learned == 3_504_872  # as torchvision counts its mobilenet_v2


def test_equal_inputs_give_equal_bytes(example: Path, tmp_path: Path) -> None:
    build.build(tmp_path)
    names = sorted(path.name for path in example.iterdir())
    assert names == sorted(path.name for path in tmp_path.iterdir())
    for name in names:
        assert (tmp_path / name).read_bytes() == (example / name).read_bytes(), name


def test_a_checkpoint_may_not_name_anything_but_tensors(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.mkdir, (tmp_path / "made",)  # type: ignore[return-value]

    path = tmp_path / "evil.pth"
    start = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
    path.write_bytes(start + pickle.dumps(Evil(), 2))
    with pytest.raises(checkpoint.CheckpointError, match="not allowed"):
        checkpoint.read_checkpoint(path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("part", [0.0, 0.001, 0.5, 0.999])
def test_a_cut_checkpoint_is_refused(tmp_path: Path, part: float) -> None:
    data = (build.fetch() / build.CHECKPOINT).read_bytes()
    path = tmp_path / "cut.pth"
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(checkpoint.CheckpointError):
        checkpoint.read_checkpoint(path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    for data in (b"text\n", b"PK\x03\x04zip", pickle.dumps({"a": 1})):
        (tmp_path / "x.pth").write_bytes(data)
        with pytest.raises(checkpoint.CheckpointError):
            checkpoint.read_checkpoint(tmp_path / "x.pth")


def test_the_models_spec_survives_the_trip_to_the_board(example: Path) -> None:
    project = load_project(example / "edgepack.toml")
    assert project.preprocess is not None
    model = load_model(ModelSpec(path=project.model))
    spec = project.preprocess.for_inputs(model.inputs)
    assert PreprocessSpec.from_json(spec.to_json()) == spec

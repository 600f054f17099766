"""What tflite-support writes into a TFLite file is read; what is damaged says nothing.

fixtures/colours.tflite is a MEAN over 8 x 8 pixels, into which tflite-support 0.4.4 wrote, by
`image_classifier.MetadataWriter.create_for_inference`, the mean and std below and three labels.
"""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from edgepack import model as models
from edgepack.flow.init import draft_project
from edgepack.flow.project import load_project
from edgepack.model.tflite_metadata import TfliteMetadata, read_metadata
from edgepack.postprocess.masks import Segmentation
from tests.onnx_models import Builder

FILE = Path(__file__).parents[1] / "fixtures" / "colours.tflite"
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
LABELS = ("red", "green", "bluish grey")


def test_labels_mean_and_std() -> None:
    assert read_metadata(FILE) == TfliteMetadata(mean=MEAN, std=STD, labels=LABELS)


def test_a_map_with_a_channel_for_each_label_is_masks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = Builder()
    b.op("Sigmoid", "x", outputs=["y"])
    graph = b.model({"x": [1, 8, 8, 3]}, {"y": [1, 8, 8, 3]})
    monkeypatch.setitem(models._READERS, ".tflite", lambda _path: graph)
    shutil.copy(FILE, tmp_path / "colours.tflite")
    draft = draft_project(tmp_path / "colours.tflite", tmp_path / "edgepack.toml")
    draft.write()
    project = load_project(tmp_path / "edgepack.toml")
    assert project.postprocess == Segmentation(layout="NHWC", background=-1)
    assert project.labels is not None
    assert tuple(project.labels.read_text().splitlines()) == LABELS


def test_a_project_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    b.op("ReduceMean", "x", axes=[1, 2], keepdims=0, outputs=["y"])
    graph = b.model({"x": [1, 8, 8, 3]}, {"y": [1, 3]})
    monkeypatch.setitem(models._READERS, ".tflite", lambda _path: graph)
    shutil.copy(FILE, tmp_path / "colours.tflite")
    draft = draft_project(tmp_path / "colours.tflite", tmp_path / "edgepack.toml")
    draft.write()
    project = load_project(draft.path)
    spec = project.preprocess
    assert spec is not None
    assert (spec.scale, spec.mean, spec.std) == (1.0, MEAN, STD)
    assert (spec.layout, spec.size) == ("NHWC", (8, 8))
    assert project.labels is not None
    assert tuple(project.labels.read_text().splitlines()) == LABELS
    assert "from the file's TFLite metadata" in draft.text


def test_damaged_files_say_less_or_nothing(tmp_path: Path) -> None:
    data = FILE.read_bytes()
    path = tmp_path / "x.tflite"
    random = np.random.default_rng(0)
    cut = [data[:end] for end in range(0, len(data), 7)]
    flipped = []
    for _ in range(600):
        changed = bytearray(data)
        at = int(random.integers(len(data)))
        changed[at : at + 4] = random.integers(0, 256, 4).astype(np.uint8).tobytes()
        flipped.append(bytes(changed[: len(data)]))
    said = 0
    for damaged in (*cut, *flipped):
        path.write_bytes(damaged)
        found = read_metadata(path)
        assert all(isinstance(label, str) for label in found.labels)
        said += found.labels == LABELS
    assert 0 < said < 600  # some damage is elsewhere


def appended(path: Path, name: str, text: str) -> Path:
    data = io.BytesIO(FILE.read_bytes()[:396])  # the model alone, as it was
    with zipfile.ZipFile(data, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, text)
    path.write_bytes(data.getvalue())
    return path


def test_what_ultralytics_appends(tmp_path: Path) -> None:
    table = {"author": "Ultralytics", "task": "detect", "imgsz": [320, 320], "stride": 32}
    table |= {"names": {0: "cat", 1: "dog"}}
    found = read_metadata(appended(tmp_path / "x.tflite", "metadata.json", json.dumps(table)))
    assert found.said["names"] == "{0: 'cat', 1: 'dog'}"
    assert found.said["imgsz"] == "[320, 320]"
    for text in ("[]", "{", "[" * 100_000, "\x00"):
        appended(tmp_path / "x.tflite", "metadata.json", text)
        assert read_metadata(tmp_path / "x.tflite").said == {}


def test_files_that_are_too_large_are_passed_over(tmp_path: Path) -> None:
    table = json.dumps({"author": "Ultralytics", "task": " " * (1 << 21)})
    assert read_metadata(appended(tmp_path / "x.tflite", "metadata.json", table)).said == {}

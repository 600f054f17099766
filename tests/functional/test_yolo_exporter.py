"""ultralytics' own exporter, with random weights: metadata and shapes are those of yolo_exports.py,
and each file gets its [postprocess]."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import onnx
import pytest

from edgepack.flow.exporters import said_by_ultralytics
from edgepack.model import TensorInfo
from tests import yolo_exports
from tests.yolo_exports import ANCHORS, EXPORTS, SIDE, Export

# 4 to 20 s for each file; torch warns of much.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
_TASKS = {"detect": "", "segment": "-seg", "pose": "-pose", "obb": "-obb"}


@pytest.fixture(scope="module")
def yolo() -> Any:
    package = pytest.importorskip("ultralytics", reason="ultralytics is not installed")
    return package.YOLO


def _exported(yolo: Any, folder: Path, name: str, **options: object) -> onnx.ModelProto:
    model = yolo(f"{name}.yaml")
    file = Path(model.export(format="onnx", imgsz=SIDE, device="cpu", **options))
    return onnx.load(file.rename(folder / file.name))


@pytest.mark.parametrize("version", ["yolov8n", "yolo11n", "yolo26n"])
@pytest.mark.parametrize("export", [one for one in EXPORTS if "point_size" not in one.table])
def test_what_the_exporter_writes(
    yolo: Any,
    export: Export,
    version: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    options: dict[str, object] = {}
    if export.rows:
        # v26 has rows without suppression: there, nms=False takes them.
        options["nms"] = version != "yolo26n"
        if options["nms"]:
            operators = importlib.import_module("torchvision.extension")
            if not operators._has_ops():
                pytest.skip("torchvision's nms is not for this torch")
    model = _exported(yolo, tmp_path, f"{version}{_TASKS[export.task]}", **options)
    found = {entry.key: entry.value for entry in model.metadata_props}
    want = yolo_exports.metadata_of(export)
    for key in ("author", "task", "imgsz", "stride", "channels", "kpt_shape"):
        assert found.get(key) == want.get(key), key
    names = ast.literal_eval(found["names"])
    outputs = [
        TensorInfo(
            name=info.name,
            dtype="float32",
            shape=tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim),
        )
        for info in model.graph.output
    ]
    shapes = export.shapes
    if not export.rows:  # yolov8n-pose.yaml has one class
        shapes[0] = (1, 4 + len(names) + export.more, ANCHORS)
    assert [info.shape for info in outputs] == shapes
    assert [info.name for info in outputs] == [f"output{i}" for i in range(len(outputs))]
    known = said_by_ultralytics(found, outputs)
    assert known is not None
    assert known.postprocess == export.table
    assert known.labels == tuple(" ".join(str(names[i]).split()) for i in range(len(names)))

"""Detectors with the metadata and outputs of ultralytics' exports, each of which sees one thing.

Metadata and shapes are those that ultralytics 8.4.190 gave for imgsz=160 and 80 classes;
`tests/functional/test_yolo_exporter.py` asks the exporter itself, where it is installed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

from tests.onnx_models import Builder

CLASSES = 80
SIDE = 160
ANCHORS = 525
# What each model sees: in pixels of its input, the class, the score, and the angle if it has one.
CENTRE, SIZE, SEEN, SCORE, ANGLE = (100.0, 60.0), (40.0, 20.0), 16, 0.75, 0.5


@dataclass(frozen=True, kw_only=True)
class Export:
    """A task, how many numbers a box has after its classes, whether boxes are compared in the model
    (rows), and what [postprocess] should say."""

    task: str
    more: int
    rows: bool
    table: Mapping[str, object]
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For test ids."""
        return f"{self.task}{'-rows' * self.rows}{'-two' * ('point_size' in self.table)}"

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the outputs."""
        first = (1, 300, 6 + self.more) if self.rows else (1, 4 + CLASSES + self.more, ANCHORS)
        return [first, *([(1, 32, SIDE // 4, SIDE // 4)] if self.task == "segment" else [])]


def _exports() -> list[Export]:
    more: Mapping[str, tuple[int, dict[str, object], dict[str, str]]] = {
        "detect": (0, {}, {}),
        "segment": (32, {"masks": 32}, {}),
        "pose": (51, {"points": 17}, {"kpt_shape": "[17, 3]"}),
        "obb": (1, {"rotated": True}, {}),
    }
    found = []
    for rows in (False, True):
        head = {"preset": "yolo-end2end" if rows else "yolo-letterbox"}
        for task, (count, own, metadata) in more.items():
            found.append(
                Export(task=task, more=count, rows=rows, table={**head, **own}, metadata=metadata)
            )
        two = {**head, "points": 4, "point_size": 2}
        said = {"kpt_shape": "[4, 2]"}
        found.append(Export(task="pose", more=8, rows=rows, table=two, metadata=said))
    return found


EXPORTS = _exports()


def metadata_of(export: Export) -> dict[str, str]:
    """As ultralytics writes it."""
    return {
        "description": "Ultralytics model",
        "author": "Ultralytics",
        "version": "8.4.190",
        "stride": "32",
        "task": export.task,
        "batch": "1",
        "imgsz": f"[{SIDE}, {SIDE}]",
        "names": str({number: f"thing {number}" for number in range(CLASSES)}),
        "args": str({"batch": 1, "nms": True if export.rows else None}),
        "head": {"detect": "Detect", "obb": "OBB"}.get(export.task, export.task.title()),
        "channels": "3",
        "end2end": "False",
        **export.metadata,
    }


def outputs_of(export: Export) -> list[np.ndarray]:
    """The thing, and boxes of low scores; its mask is the right half of the box."""
    arrays = [np.zeros(shape, np.float32) for shape in export.shapes]
    for prototypes in arrays[1:]:
        prototypes[:] = np.where(np.arange(SIDE // 4) < CENTRE[0] / 4, -1, 1)
    x, y, wide, high = *CENTRE, *SIZE
    after = np.full(export.more, 30.0)
    if export.task == "obb":
        after[:] = ANGLE
    if export.rows:
        corners = (x - wide / 2, y - high / 2, x + wide / 2, y + high / 2)
        box = (x, y, wide, high) if export.task == "obb" else corners
        arrays[0][0, 0] = (*box, SCORE, SEEN, *after)
    else:
        arrays[0][0, :4] = 10
        scores = np.zeros(CLASSES)
        scores[SEEN] = SCORE
        arrays[0][0, :, 7] = (x, y, wide, high, *scores, *after)
    return arrays


def write(export: Export, path: Path) -> Path:
    """A model that gives `outputs_of` whatever it sees, but for a little of the photo's mean."""
    b = Builder()
    mean = b.op("ReduceMean", "images", axes=[1, 2, 3], keepdims=0)
    little = b.op("Mul", mean, b.const(np.float32(1e-5)))
    shapes: dict[str, Sequence[int | str | None] | None] = {}
    for number, array in enumerate(outputs_of(export)):
        name = f"output{number}"
        b.op("Add", b.const(array), little, outputs=[name])
        shapes[name] = list(array.shape)
    model = b.model({"images": [1, 3, SIDE, SIDE]}, shapes)
    onnx.helper.set_model_props(model, metadata_of(export))
    path.write_bytes(model.SerializeToString())
    return path

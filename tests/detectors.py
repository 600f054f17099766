"""Ends of detectors as exporters write them, with the suppression of overlapping boxes inside."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.onnx_models import Builder

# What torchvision's exporter gives for "as many as there are".
_ALL = 2**63 - 1


def boxes_of(random: np.random.Generator, *shape: int, rounded: bool = False) -> np.ndarray:
    """Boxes [..., 4] as two corners within an image of 100 x 100; whole numbers if `rounded`."""
    middle, size = random.uniform(0, 100, (*shape, 2)), random.uniform(5, 35, (*shape, 2))
    made = np.concatenate([middle - size / 2, middle + size / 2], -1).astype("float32")
    return np.round(made) if rounded else made


def yolo(anchors: int, classes: int, most: int) -> onnx.ModelProto:
    """As ultralytics exports with `nms=True`: [1, 4 + classes, anchors] -> [1, most, 6].

    A mask by score, NonZero, boxes apart by class, torchvision's nms, and zeros up to `most` rows.
    A second output has the rows without those zeros, a third their number.
    """
    b = Builder()
    whole = b.op("Transpose", "x", perm=[0, 2, 1])
    parts = ["box", "score"]
    b.op("Split", whole, b.const([4, classes]), axis=2, outputs=parts)
    first = b.const(0)
    box = b.op("Gather", "box", first)
    score = b.op("Gather", b.op("ReduceMax", "score", axes=[-1], keepdims=0), first)
    kind = b.op("Gather", b.op("ArgMax", "score", axis=-1, keepdims=0), first)
    mask = b.op("Greater", score, b.const(0.25, "float32"))

    def masked(data: str) -> str:
        return b.op("GatherND", data, b.op("Transpose", b.op("NonZero", mask), perm=[1, 0]))

    box, score, kind = (masked(data) for data in (box, score, kind))
    count = b.op("Unsqueeze", b.op("Gather", b.op("Shape", kind), first), b.const([0]))
    column = b.op(
        "Reshape",
        b.op("Cast", kind, to=TensorProto.FLOAT),
        b.op("Concat", count, b.const([1]), axis=0),
    )
    # Expand as PyTorch writes it: -1 stays what it is.
    wide = b.op("Concat", count, b.const([4]), axis=0)
    ones = b.op(
        "ConstantOfShape",
        b.op("Shape", wide),
        value=helper.make_tensor("", TensorProto.INT64, [1], [1]),
    )
    keeps = b.op("Equal", wide, b.op("Mul", ones, b.const(-1)))
    column = b.op("Expand", column, b.op("Where", keeps, ones, wide))
    apart = b.op("Add", b.op("Div", box, b.const(100, "float32")), column)
    found = b.op(
        "NonMaxSuppression",
        b.op("Unsqueeze", apart, b.const([0])),
        b.op("Unsqueeze", score, b.const([0, 1])),
        b.const([_ALL]),
        b.const([0.5], "float32"),
    )
    keep = b.op("Squeeze", b.op("Gather", found, b.const([2]), axis=1), b.const([1]))
    keep = b.op("Slice", keep, b.const([0]), b.const([most]), b.const([0]))
    upright = b.const([-1, 1])
    b.op(
        "Concat",
        b.op("Gather", box, keep),
        b.op("Reshape", b.op("Gather", score, keep), upright),
        b.op("Cast", b.op("Reshape", b.op("Gather", kind, keep), upright), to=TensorProto.FLOAT),
        axis=-1,
        outputs=["rows"],
    )
    b.op("Gather", b.op("Shape", "rows"), first, outputs=["count"])
    missing = b.op("Unsqueeze", b.op("Sub", b.const(most), "count"), b.const([0]))
    # Pads as PyTorch writes them: pairs, the last axis first, turned into what ONNX wants.
    pairs = b.op("Concat", b.const([0, 0, 0]), missing, axis=0)
    pairs = b.op("Reshape", pairs, b.const([-1, 2]))
    first_axis_first = b.op(
        "Slice", pairs, b.const([-1]), b.const([-_ALL]), b.const([0]), b.const([-1])
    )
    pads = b.op("Reshape", b.op("Transpose", first_axis_first, perm=[1, 0]), b.const([-1]))
    b.op(
        "Unsqueeze", b.op("Pad", "rows", pads, b.const(0, "float32")), b.const([0]), outputs=["out"]
    )
    return b.model(
        {"x": [1, 4 + classes, anchors]},
        {"out": [1, most, 6], "rows": [None, 6], "count": []},
        {"count": TensorProto.INT64},
    )


def yolo_inputs(anchors: int, classes: int) -> Iterator[np.ndarray]:
    """Many boxes, scores that are equal, a few, and none above the threshold."""
    random = np.random.default_rng(7)
    for highest, steps in ((1, 0), (1, 4), (0.3, 0), (0.2, 0)):
        scores = random.uniform(0, highest, (1, classes, anchors))
        scores = np.round(scores * steps) / steps if steps else scores
        boxes = boxes_of(random, 1, anchors, rounded=bool(steps)).transpose(0, 2, 1)
        yield np.concatenate([boxes, scores], 1).astype("float32")


def ssd(
    batch: int, classes: int, boxes: int, most: int, *, center: bool = False
) -> onnx.ModelProto:
    """NonMaxSuppression of several images and classes; its rows pick boxes and scores."""
    b = Builder()
    b.op(
        "NonMaxSuppression",
        "boxes",
        "scores",
        b.const([most]),
        b.const([0.4], "float32"),
        b.const([0.3], "float32"),
        center_point_box=int(center),
        outputs=["selected"],
    )
    pairs = b.op("Gather", "selected", b.const([0, 2]), axis=1)
    b.op("GatherND", "boxes", pairs, outputs=["found"])
    b.op("GatherND", "scores", "selected", outputs=["confidence"])
    return b.model(
        {"boxes": [batch, boxes, 4], "scores": [batch, classes, boxes]},
        {"selected": [None, 3], "found": [None, 4], "confidence": [None]},
        {"selected": TensorProto.INT64},
    )


def ssd_inputs(
    batch: int, classes: int, boxes: int, *, center: bool = False
) -> Iterator[list[np.ndarray]]:
    """As those of `yolo_inputs`."""
    random = np.random.default_rng(8)
    for lowest, highest, steps in ((0, 1, 0), (0.2, 1, 5), (0, 0.35, 0), (0, 0.2, 0)):
        scores = random.uniform(lowest, highest, (batch, classes, boxes)).astype("float32")
        given = boxes_of(random, batch, boxes, rounded=bool(steps))
        if center:
            low, high = given[..., :2], given[..., 2:]
            given = np.concatenate([(low + high) / 2, high - low], -1)
        yield [given, np.round(scores * steps).astype("float32") / steps if steps else scores]

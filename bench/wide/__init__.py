"""Networks of every kind, beside the nine of bench.models: one row each in a table of their own.

Layers and sizes are those of the papers; weights are random with He's scale, which cost the same
time. Batch norms that exporters fold are not there to begin with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from bench.wide import images, maps, mobile, sequences, transformers

# name -> maker, the order of the tables
WIDE: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "keywords-conv1d": sequences.keywords,
    "bytes-conv5x1": sequences.bytes_classifier,
    "tcn": sequences.tcn,
    "forecaster-lstm": sequences.forecaster,
    "noise-gru": sequences.noise_suppressor,
    "text-48x320": sequences.text_recogniser,
    "vit-tiny": transformers.vit_tiny,
    "bert-mini-16": lambda: transformers.bert_mini(16),
    "bert-mini-128": lambda: transformers.bert_mini(128),
    "bert-mini-384": lambda: transformers.bert_mini(384),
    "densenet121": images.densenet121,
    "regnety-400mf": images.regnety_400mf,
    "efficientnet-b0": mobile.efficientnet_b0,
    "mobilenetv3-large": mobile.mobilenet_v3_large,
    "mobilenetv4-small": mobile.mobilenet_v4_small,
    "mnasnet1.0": mobile.mnasnet,
    "shufflenetv2": mobile.shufflenet_v2,
    "ghostnet": mobile.ghostnet,
    "yolov8n-320": lambda: maps.yolov8n(320),
    "yolov8n-640": lambda: maps.yolov8n(640),
    "unet": maps.unet,
    "super-resolution": maps.super_resolution,
}

"""Networks of kinds that neither bench.models nor bench.wide has, smaller than those of papers.

They are written as exporters write them, to find what no rule was made for. Weights are random
with He's scale, which cost the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from bench.kinds import images, series, volumes, windows

# name -> maker, the order of the tables
KINDS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "stereo-volume": volumes.stereo,
    "video-r2plus1d": volumes.video,
    "forecaster-lstm96": series.forecaster,
    "suppressor-gru": series.suppressor,
    "conformer": series.conformer,
    "vocoder": series.vocoder,
    "language-step": series.language_step,
    "swin": windows.swin,
    "deformable-decoder": windows.deformable_decoder,
    "segformer": windows.segformer,
    "mixer-49": lambda: windows.mixer(7),
    "mixer-121": lambda: windows.mixer(11),
    "hrnet-keypoints": images.keypoints,
    "repvgg": images.repvgg,
    "regnetx-groups": images.regnetx,
    "inception": images.inception,
    "convnext": images.convnext,
    "autoencoder": images.autoencoder,
}

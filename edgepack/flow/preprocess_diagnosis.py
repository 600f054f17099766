"""Which stage of the preprocessing is wrong, if a photo is seen as another class than expected."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.base.errors import EdgepackError
from edgepack.flow.reference import golden_inputs, model_outputs, of_first
from edgepack.model import LoadedModel, batch_of
from edgepack.preprocess.presets import PRESETS
from edgepack.preprocess.spec import INTERPOLATIONS, PreprocessSpec, Resize


@dataclass(frozen=True, kw_only=True)
class Mending:
    """A change of one stage, as `text`, with which the photo is seen as expected."""

    stage: str
    text: str
    score: float

    def __str__(self) -> str:
        return (
            f"{self.stage}: with {self.text} in [preprocess] the photo is seen as expected "
            f"(score {self.score:.2f})"
        )


def find_mending(
    model: LoadedModel, preprocess: PreprocessSpec, image: Path, expected: int, output: int
) -> Mending | None:
    """The change of one stage that makes the model surest of class `expected`; None if none does.

    `preprocess` is bound to the model, `output` the number of its output of classes.
    """
    changes, inputs = [], []
    for change in _changes(preprocess, model):
        try:
            inputs.append(golden_inputs(model, preprocess=change[2], image=image))
        except EdgepackError:
            continue  # of another size, or a photo that is smaller than the crop
        changes.append(change)
    found: Mending | None = None
    for (stage, text, _), outputs in zip(
        changes, model_outputs(model.path, model.proto, inputs), strict=True
    ):
        scores = of_first(outputs[output], batch_of(model.inputs)).astype(np.float64).ravel()
        if expected >= len(scores) or np.argmax(scores) != expected:
            continue
        # A model that ends in a softmax has probabilities, any other logits.
        if scores.min() < 0 or scores.sum() > 1.01:
            scores = np.exp(scores - scores.max())
            scores /= scores.sum()
        if found is None or scores[expected] > found.score:
            found = Mending(stage=stage, text=text, score=float(scores[expected]))
    return found


def _changes(spec: PreprocessSpec, model: LoadedModel) -> Iterator[tuple[str, str, PreprocessSpec]]:
    """Stages of which one is another than in `spec`, and how a project file says so."""
    if spec.color != "gray":
        color = {"rgb": "bgr", "bgr": "rgb"}[spec.color]
        yield "color", f'color = "{color}"', dataclasses.replace(spec, color=color)
    if spec.normalises and spec.color != "gray":
        yield from _normalisations(spec)
    for name in INTERPOLATIONS:
        if spec.resize is not None and name != spec.interpolation:
            changed = dataclasses.replace(spec, interpolation=name)
            yield "interpolation", f'interpolation = "{name}"', changed
    at = [info.name for info in model.inputs].index(spec.input or "")
    shape = model.inputs[at].shape
    height, width = shape[2:] if spec.layout == "NCHW" else shape[1:3]
    if isinstance(height, int) and isinstance(width, int):
        yield from _resizes(spec, height, width)


def _normalisations(spec: PreprocessSpec) -> Iterator[tuple[str, str, PreprocessSpec]]:
    """Those of the presets, for the channels in this order."""
    seen = {(spec.scale, spec.mean, spec.std)}
    for preset in PRESETS.values():
        table: dict[str, Any] = dict(preset.table)
        mean, std = table.get("mean", [0.0] * 3), table.get("std", [1.0] * 3)
        if table["color"] != spec.color:
            mean, std = mean[::-1], std[::-1]
        own = table.get("scale", 1.0), tuple(mean), tuple(std)
        if own in seen:
            continue
        seen.add(own)
        changed = dataclasses.replace(spec, scale=own[0], mean=own[1], std=own[2])
        text = f"scale = {own[0]:.6g}, mean = {list(own[1])}, std = {list(own[2])}"
        yield "scale, mean and std", text, changed


def _resizes(
    spec: PreprocessSpec, height: int, width: int
) -> Iterator[tuple[str, str, PreprocessSpec]]:
    ways: list[tuple[Resize, tuple[int, int] | None]] = [
        (Resize(mode="exact", height=height, width=width), None),
        (Resize(mode="letterbox", height=height, width=width), None),
    ]
    for side in (height, round(height / 0.875)):
        if height == width:
            ways.append((Resize(mode="shortest", height=side, width=side), (height, width)))
    for resize, crop in ways:
        if (resize, crop) == (spec.resize, spec.crop):
            continue
        text = f'resize = {{ mode = "{resize.mode}", height = {height}, width = {width} }}'
        if crop is not None:
            text = (
                f'resize = {{ mode = "shortest", size = {resize.height} }}, '
                f"crop = {{ height = {height}, width = {width} }}"
            )
        yield "resize and crop", text, dataclasses.replace(spec, resize=resize, crop=crop)

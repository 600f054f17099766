"""What a bundle's manifest says of a model on 8-bit integers."""

from __future__ import annotations

import re
from dataclasses import replace

from edgepack.base import text
from edgepack.base.errors import ModelError
from edgepack.bundle.manifest import Quantization
from edgepack.compiler import CompiledModel
from edgepack.model import LoadedModel

# What `edgepack quantize` writes into a model's file, by ONNX's metadata.
CALIBRATION, AGREEMENT = "edgepack.calibration", "edgepack.agreement"


def find_precision(compiled: CompiledModel, precision: str) -> str:
    """What a bundle's manifest says of a model: int8 if any of it is."""
    return "int8" if has_integers(compiled) else precision


def has_integers(compiled: CompiledModel) -> bool:
    """Whether any layer is done on 8-bit integers."""
    return any(layer.rule.startswith("int8") for layer in compiled.layers)


def describe_quantization(model: LoadedModel, compiled: CompiledModel) -> Quantization | None:
    """What the manifest says of a model on integers."""
    if not has_integers(compiled):
        return None
    return replace(read_quantization(model), in_float=len(compiled.floats))


def read_quantization(model: LoadedModel) -> Quantization:
    """What `edgepack quantize` wrote into the file, without `in_float`.

    Raises ModelError if it is nothing that it writes.
    """
    said = {item.key: item.value for item in model.proto.metadata_props}
    calibration, agreement = said.get(CALIBRATION, ""), said.get(AGREEMENT)
    if calibration and not re.fullmatch(r"[0-9a-f]{64}", calibration):
        raise _not_written(model, CALIBRATION, calibration, "64 hexadecimal digits")
    if agreement is not None and not re.fullmatch(r"[01]\.\d{1,8}", agreement):
        raise _not_written(model, AGREEMENT, agreement, "a share from 0.0 to 1.0")
    share = None if agreement is None else float(agreement)
    if share is not None and share > 1:
        raise _not_written(model, AGREEMENT, str(agreement), "a share from 0.0 to 1.0")
    return Quantization(calibration=calibration, agreement=share)


def _not_written(model: LoadedModel, key: str, value: str, wanted: str) -> ModelError:
    return ModelError(
        f"{model.path}: metadata {key}: not {wanted}: '{text.one_line(value)}'",
        hint="`edgepack quantize` writes it; remove it, or quantize the model again",
    )

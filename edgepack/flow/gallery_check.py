"""Whether a gallery's vectors were made as the project makes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from edgepack.base.errors import ConfigError
from edgepack.model import LoadedModel
from edgepack.postprocess.base import PostprocessSpec
from edgepack.postprocess.embedding import Embedding
from edgepack.preprocess.spec import PreprocessSpec


class GalleryMismatchError(ConfigError):
    """A gallery was made with another model, or of photos that were prepared in another way."""


def maker_of(
    model: LoadedModel,
    preprocess: PreprocessSpec | None,
    outputs: Sequence[str],
    crop: Mapping[str, Any] | None = None,
) -> str:
    """A hash of all that vectors depend on: the model, what it is given, and how a `crop` is cut
    out if it is given one."""
    said = {
        "model": model.sha256,
        "shapes": [[info.name, list(info.shape)] for info in model.inputs],
        "preprocess": preprocess.to_json() if preprocess else None,
        "outputs": list(outputs),
        "crop": dict(crop) if crop else None,
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def check_gallery(spec: PostprocessSpec, made_by: str, where: str) -> None:
    """Raise `GalleryMismatchError` if `spec` has vectors that were not made by `made_by`."""
    if isinstance(spec, Embedding) and spec.owners and spec.made_by not in ("", made_by):
        raise GalleryMismatchError(
            f"{where}: the gallery was made with another model or preprocessing: its vectors "
            "cannot be compared with those that this one makes",
            hint="remove the file, and enroll everybody again: edgepack enroll NAME PHOTO...",
        )

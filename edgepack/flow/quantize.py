"""A project's model quantised, calibrated on photos that its own preprocessing makes inputs of."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.errors import ConfigError, UsageError
from edgepack.base.paths import write_atomic
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.flow.agreement import judge_for
from edgepack.flow.job import spec_of
from edgepack.flow.project import Project
from edgepack.flow.reference import Array
from edgepack.model import check_model, read_model
from edgepack.preprocess.photos import SUFFIXES, photos_below, read_photo
from edgepack.preprocess.spec import PreprocessSpec
from edgepack.quantization.errors import CalibrationError
from edgepack.quantization.quantize import Result, quantize

# One photo in so many is not calibrated on, where none are given to judge by.
_JUDGED = 4


@dataclass(frozen=True, kw_only=True)
class Photos:
    """Inputs made of photos: to calibrate on, and to judge by."""

    calibration: tuple[Array, ...]
    judge: tuple[Array, ...]


def quantize_project(
    project: Project,
    images: Path,
    out: Path,
    *,
    judge: Path | None = None,
    snr_db: float | None = None,
    budget: float = 0.1,
    progress: Progress = NO_PROGRESS,
) -> Result:
    """Quantise the project's model into the file `out`.

    Photos are all those below `images`; without a folder `judge`, one in four of them is only
    judged by. `snr_db` and `budget` are those of `quantize`. Raises ConfigError without
    preprocessing, `CalibrationError`, and what reading models and photos raises.
    """
    model = read_model(spec_of(project))
    check_model(model)
    if project.preprocess is None or len(model.inputs) != 1:
        raise ConfigError(
            f"{project.model}: photos need preprocessing, and a model of one input",
            hint="add a [preprocess] table: `edgepack init` writes one",
        )
    photos = read_photos(project.preprocess.for_inputs(model.given), images, judge)
    result = quantize(
        model.path,
        model.proto,
        photos.calibration,
        photos.judge,
        snr_db=snr_db,
        budget=budget,
        agree=judge_for(project, model),
        progress=progress,
    )
    write_atomic(out, result.model.SerializeToString(deterministic=True))
    return result


def read_photos(preprocess: PreprocessSpec, images: Path, judge: Path | None) -> Photos:
    """The photos in two folders, each content once; raises `CalibrationError`."""
    found = _by_content(images, "--images")
    if judge is None:
        # By content, so that names and copies do not decide.
        order = sorted(found)
        others = {key: found[key] for key in order[::_JUDGED]}
    else:
        others = _by_content(judge, "--judge")
    kept = {key: path for key, path in found.items() if key not in others}
    if not kept or not others:
        raise CalibrationError(
            f"{images}: {len(kept)} of {len(found)} photos are left to calibrate on",
            hint="give some dozens, and others to validate on: --judge DIR"
            if judge is None
            else f"those that are in {judge} as well are validated on only",
        )
    return Photos(
        calibration=tuple(preprocess.load(path) for path in kept.values()),
        judge=tuple(preprocess.load(path) for path in others.values()),
    )


def _by_content(folder: Path, what: str) -> dict[str, Path]:
    if not folder.is_dir():
        raise UsageError(
            f"{what}: no such folder: {folder}",
            hint="name another one, there or by [quantize] in the project file",
        )
    found = {
        hashlib.sha256(read_photo(path)).hexdigest(): path
        for path in photos_below(folder, option=what)
    }
    if not found:
        raise CalibrationError(
            f"{what}: no photos in {folder}", hint=f"files that end in {', '.join(SUFFIXES)}"
        )
    return found

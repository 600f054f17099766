"""A project's model quantised, calibrated on photos that its own preprocessing makes inputs of."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.errors import ConfigError, UsageError
from edgepack.base.paths import write_atomic
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.flow.agreement import judge_for
from edgepack.flow.job import bound_postprocess, spec_of
from edgepack.flow.project import Project, labels_of
from edgepack.flow.reference import Array, Reference
from edgepack.flow.stages import (
    OpenStage,
    StageReferences,
    crops_of,
    find_stage,
    open_stages,
    project_of,
)
from edgepack.model import LoadedModel, check_model, read_model
from edgepack.model.meanings import as_meant
from edgepack.postprocess.results import Results
from edgepack.preprocess.image import Pixels, load_image
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
    stage: str | None = None,
    judge: Path | None = None,
    snr_db: float | None = None,
    budget: float = 0.1,
    progress: Progress = NO_PROGRESS,
) -> Result:
    """Quantise the project's model, or that of one of its stages, into the file `out`.

    Photos are all those below `images`; without a folder `judge`, one in four of them is only
    judged by. A stage's inputs are what it would be given of each photo. `snr_db` and `budget` are
    those of `quantize`. Raises ConfigError without preprocessing, UsageError for a stage that there
    is not, `CalibrationError`, and what reading models and photos raises.
    """
    if stage is not None:
        find_stage(project, stage)
    model = read_model(spec_of(project))
    check_model(model)
    if project.preprocess is None or len(model.inputs) != 1:
        raise ConfigError(
            f"{project.model}: photos need preprocessing, and a model of one input",
            hint="add a [preprocess] table: `edgepack init` writes one",
        )
    preprocess = project.preprocess.for_inputs(model.given)
    if stage is None:
        photos = read_photos(preprocess, images, judge)
    else:
        opened, before, look = _open_first(project, model, preprocess, stage)
        if opened.model.states:
            raise ConfigError(
                f"{opened.stage.where}: {opened.model.path} has states, which photos do not give",
                hint="quantise it where it is made, on sequences; the others one by one: --stage",
            )
        progress.step("cutting out of the photos what the stage would be given")
        photos = _read_crops(opened, before, look, images, judge)
        project, model = project_of(project, opened, Path()), opened.model
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


_Look = Callable[[Path], tuple[Pixels, Results]]
"""The pixels of the photo in a file, and what the first model sees there."""


def _open_first(
    project: Project, model: LoadedModel, preprocess: PreprocessSpec, stage: str
) -> tuple[OpenStage, StageReferences, _Look]:
    """The stage, the stages before it, and what looks at photos for them."""
    labels = labels_of(project)
    postprocess = bound_postprocess(project, model, labels)
    stages = open_stages(project, model, postprocess, labels)
    names = [opened.stage.name for opened in stages]
    number = names.index(stage)
    reference = Reference(as_meant(model.proto))

    def look(path: Path) -> tuple[Pixels, Results]:
        photo = load_image(path, accept=preprocess.accepted)
        outputs = reference.run([preprocess.load(path)])
        by_name = dict(zip((info.name for info in model.outputs), outputs, strict=True))
        assert postprocess is not None  # `open_stages` refuses a model that gives no boxes
        tensors = [by_name[name] for name in postprocess.outputs]
        geometry = preprocess.geometry(*photo.shape[:2])
        return photo, postprocess.run(tensors, geometry, labels or ())

    return stages[number], StageReferences(stages[:number]), look


def _read_crops(
    opened: OpenStage, before: StageReferences, look: _Look, images: Path, judge: Path | None
) -> Photos:
    """What a stage is given of the photos in two folders; raises `CalibrationError`."""

    def of(paths: Sequence[Path]) -> tuple[Array, ...]:
        return tuple(crop for path in paths for crop in crops_of(opened, before, *look(path)))

    calibration, others = map(of, _read_folders(images, judge))
    if not calibration or not others:
        raise CalibrationError(
            f"{images}: stage '{opened.stage.name}' would be given {len(calibration)} crops to "
            f"calibrate on, and {len(others)} to validate on",
            hint="give photos that show what it looks at: `edgepack check --image` says what is "
            "seen",
        )
    return Photos(calibration=calibration, judge=others)


def read_photos(preprocess: PreprocessSpec, images: Path, judge: Path | None) -> Photos:
    """The photos in two folders, each content once; raises `CalibrationError`."""
    calibration, others = _read_folders(images, judge)
    return Photos(
        calibration=tuple(map(preprocess.load, calibration)),
        judge=tuple(map(preprocess.load, others)),
    )


def _read_folders(images: Path, judge: Path | None) -> tuple[list[Path], list[Path]]:
    """The photos to calibrate on, and those to judge by, each content once."""
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
    return list(kept.values()), list(others.values())


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

"""Arguments of functions as a project: the same values as a project file and the command line."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgepack.base.arguments import check_path, own_arguments
from edgepack.base.errors import UsageError, perhaps
from edgepack.flow.init import preset_for
from edgepack.flow.job import spec_of
from edgepack.flow.project import Project, load_project
from edgepack.model import read_model
from edgepack.model.sources import is_source, local_model, project_beside
from edgepack.preprocess.presets import PRESETS
from edgepack.preprocess.spec import PreprocessSpec

_FILES = ("model", "labels", "golden_image")
_FILE_LISTS = ("boards", "golden_input", "records")
_FIELDS = Project.__dataclass_fields__.keys() - {"origins"}

Preprocess = str | Mapping[str, Any] | PreprocessSpec


def project_from(
    function: str,
    model: str | Path | None,
    *,
    project: str | Path | None = None,
    preprocess: Preprocess | None = None,
    settings: Mapping[str, Any],
) -> Project:
    """The project of `function`'s arguments: `project` is a file, which all others override.

    `preprocess` is a preset's name, fitted to the model as `edgepack init` does, a table as in a
    project file, or a spec. Raises TypeError for `settings` that are no fields of `Project`, and
    what `load_project` and reading the model raise.
    """
    for name in settings.keys() - _FIELDS:
        names = [*_FIELDS, *own_arguments.get(function, ())]
        near = difflib.get_close_matches(name, names, n=1)
        meant = f"; perhaps you meant {near[0]!r}" if near else ""
        raise TypeError(f"{function}() has no argument {name!r}{meant}")
    local = None if model is None else local_model(model)
    if project is None and model is not None and local is not None and is_source(model):
        project = project_beside(local)
    flags: dict[str, Any] = {**settings, "model": local}
    for key in _FILES:
        if flags.get(key) is not None:
            check_path(key, flags[key])
            flags[key] = Path(flags[key])
    for key in _FILE_LISTS:
        if flags.get(key) is not None:
            files = [flags[key]] if isinstance(flags[key], str | Path) else flags[key]
            for file in files:
                check_path(key, file)
            flags[key] = tuple(map(Path, files))
    if isinstance(preprocess, str):
        if preprocess not in PRESETS:
            raise UsageError(
                f"preprocess: unknown preset: {preprocess}", hint=perhaps(preprocess, PRESETS)
            )
        known = load_project(_file(project), flags)
        table, shapes = preset_for(read_model(spec_of(known)), preprocess)
        flags["shapes"] = {**shapes, **known.shapes}
        preprocess = table
    if isinstance(preprocess, Mapping):
        preprocess = PreprocessSpec.from_table(preprocess, file="preprocess", path="")
    flags["preprocess"] = preprocess
    found = load_project(_file(project), flags)
    spoken = {key: key for key, origin in found.origins.items() if origin.startswith("--")}
    return dataclasses.replace(found, origins={**found.origins, **spoken})


def _file(project: str | Path | None) -> Path | None:
    return None if project is None else Path(project)

"""Which projects files belong to, for what checks files before they are committed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from edgepack.base.errors import ConfigError, EdgepackError
from edgepack.base.tables import read_toml
from edgepack.flow.check import check_project
from edgepack.flow.project import PROJECT_FILE, load_project

MODEL_SUFFIXES = (".onnx", ".tflite")


class ProjectsError(ConfigError):
    """Several projects are wrong; the message has a line for each."""


def projects_of(files: Sequence[Path]) -> tuple[Path, ...]:
    """The project files and models to check for files that have changed, each once, in order.

    A project is to be checked if its file, or a file that it names, is among them; a model by
    itself if no project names it. Project files are those among `files`, and edgepack.toml in
    their folders and above, up to the current folder. Raises `ConfigError` for a file that is not
    there, or a project file that cannot be read.
    """
    for file in files:
        if not file.is_file():
            raise ConfigError(f"no such file: {file}")
    found: dict[Path, None] = {}
    for file in files:
        if file.name == PROJECT_FILE:
            found[file] = None
            continue
        owners = [one for one in _above(file) if _names(one, file)]
        if not owners and file.suffix.lower() in MODEL_SUFFIXES:
            owners = [file]
        found |= dict.fromkeys(owners)
    return tuple(found)


def check_file(file: Path) -> None:
    """Check a project, or a model by itself, as `edgepack check` does.

    Raises what that raises, and what is wrong with the golden photo.
    """
    if file.name == PROJECT_FILE:
        project = load_project(file)
    else:
        project = load_project(None, {"model": file})
    check_project(project).check_expected()


def check_files(files: Sequence[Path]) -> Iterator[tuple[Path, EdgepackError | None]]:
    """Each of `files` with what is wrong with it."""
    for file in files:
        try:
            check_file(file)
        except EdgepackError as error:
            yield file, error
        else:
            yield file, None


def _above(file: Path) -> Iterator[Path]:
    """The project files in its folder and above, the nearest first, as paths from here."""
    here = Path.cwd()
    if not file.absolute().is_relative_to(here):
        folders = [file.parent]
    else:
        inside = file.absolute().relative_to(here)
        folders = list(inside.parents)
    for folder in folders:
        if (folder / PROJECT_FILE).is_file():
            yield folder / PROJECT_FILE


def _names(project: Path, file: Path) -> bool:
    """Whether a project file names this file, wherever in it."""
    return any(_is(project.parent / text, file) for text in _texts(read_toml(project)))


def _is(path: Path, file: Path) -> bool:
    try:
        return path.samefile(file)
    except (OSError, ValueError):
        return False


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)

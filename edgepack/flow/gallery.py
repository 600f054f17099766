"""Enrolling people: photos become vectors of a gallery, by the project's own models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.base.errors import ConfigError, UsageError
from edgepack.base.tables import Table, read_toml
from edgepack.flow.gallery_check import maker_of
from edgepack.flow.job import bound_postprocess, spec_of
from edgepack.flow.project import Project, labels_of, load_project
from edgepack.flow.reference import Array, Reference, make_golden
from edgepack.flow.results import golden_results
from edgepack.flow.stages import StageReferences, choose, crop_tensor, open_stages
from edgepack.frontend.load import load_model
from edgepack.model.meanings import as_meant
from edgepack.postprocess.embedding import Embedding
from edgepack.postprocess.gallery import Gallery, name_problem, read_gallery
from edgepack.preprocess.image import load_image

# Gives a photo's vector.
_Embed = Callable[[Path], Array]


class EnrollError(UsageError):
    """A photo cannot be enrolled: it does not show one person."""


@dataclass(frozen=True, kw_only=True)
class Enrolled:
    """What became of the gallery in a file: `name` has `photos` in it now, `added` of them new.

    `people` is how many there are. `nearest` is another person, and how similar the most similar
    vectors of both are; None if there is nobody else.
    """

    gallery: Path
    name: str
    added: int
    photos: int
    people: int
    nearest: tuple[str, float] | None

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        nearest = {"name": self.nearest[0], "score": self.nearest[1]} if self.nearest else None
        return {
            "gallery": str(self.gallery),
            "name": self.name,
            "added": self.added,
            "photos": self.photos,
            "people": self.people,
            "nearest": nearest,
        }


def enroll(
    project_file: Path, name: str, photos: Sequence[Path], *, gallery: str | None = None
) -> Enrolled:
    """Add photos of a person to the gallery that the project names; `gallery` is its name there,
    if the project has several. A file that is not there yet is made. A photo that is in the gallery
    already is not added twice.

    Raises `EnrollError` for a photo that does not show exactly one thing that the stage looks at,
    `UsageError` for a name that cannot be, and what the project, its models and photos raise. The
    file is as it was then.
    """
    if (problem := name_problem(name)) is not None:
        raise UsageError(f"the name {name!r} {problem}")
    if not photos:
        raise UsageError("no photo is given", hint="one is enough, a few are better")
    where, file = _find_gallery(project_file, gallery)
    is_new = not file.exists()
    if is_new:
        Gallery().write(file)
    try:
        before = read_gallery(file)
        made_by, embed = _opened(load_project(project_file), where)
        after = before
        for photo in photos:
            after = _with_photo(after, name, embed(photo), made_by, photo)
        after.write(file)
    except BaseException:
        if is_new:
            file.unlink(missing_ok=True)
        raise
    return Enrolled(
        gallery=file,
        name=name,
        added=len(after.owners) - len(before.owners),
        photos=after.vectors_of(name),
        people=len(after.people),
        nearest=_nearest(after, name),
    )


def forget(project_file: Path, name: str, *, gallery: str | None = None) -> Enrolled:
    """Remove a person from the gallery. Raises `UsageError` for one who is not in it."""
    _, file = _find_gallery(project_file, gallery)
    before = read_gallery(file)
    if name not in before.people:
        raise UsageError(
            f"{file}: {name!r} is not in it",
            hint=f"who is: {', '.join(before.people)}" if before.people else None,
        )
    after = before.without(name)
    after.write(file)
    return Enrolled(
        gallery=file, name=name, added=0, photos=0, people=len(after.people), nearest=None
    )


def _find_gallery(project_file: Path, wanted: str | None) -> tuple[int | None, Path]:
    """The stage that names the gallery, None if it is the project's own model, and its file."""
    top = Table(read_toml(project_file), file=project_file)
    own: dict[str, Any] = top.take("postprocess", dict, {})
    tables: list[tuple[int | None, Table]] = [
        (None, Table(own, file=project_file, path="postprocess"))
    ]
    for number, values in enumerate(top.take_list("stage", dict, ())):
        stage = Table(values, file=project_file, path=f"stage[{number}]")
        table: dict[str, Any] = stage.take("postprocess", dict, {})
        tables.append((number, Table(table, file=project_file, path=stage.name("postprocess"))))
    found = []
    for where, table_of in tables:
        if (name := table_of.take("gallery", str, None)) is not None:
            found.append((where, name, table_of.file_inside("gallery", name)))
    names = [name for _, name, _ in found]
    if wanted is not None and wanted not in names:
        raise UsageError(
            f"{project_file}: no [postprocess] has gallery = '{wanted}'",
            hint=f"it has {', '.join(dict.fromkeys(names))}" if names else _HOW,
        )
    chosen = [one for one in found if wanted in (None, one[1])]
    if not chosen:
        raise ConfigError(f"{project_file}: no [postprocess] names a gallery", hint=_HOW)
    if len({file for _, _, file in chosen}) > 1:
        raise UsageError(
            f"{project_file}: there are {len(chosen)} galleries: {', '.join(names)}",
            hint=f"--gallery {names[0]}",
        )
    return chosen[0][0], chosen[0][2]


_HOW = 'kind = "embedding", gallery = "people.json" and a score: docs/guides/stages.md'


def _opened(project: Project, where: int | None) -> tuple[str, _Embed]:
    """With what vectors are made, and what makes a photo's."""
    model = load_model(spec_of(project))
    labels = labels_of(project)
    postprocess = bound_postprocess(project, model, labels)
    preprocess = project.preprocess.for_inputs(model.given) if project.preprocess else None
    names = [info.name for info in model.outputs]
    if preprocess is None:
        raise ConfigError(
            "a photo needs preprocessing", hint="add a [preprocess] table: `edgepack init`"
        )
    if where is None:
        assert isinstance(postprocess, Embedding)
        index = names.index(postprocess.outputs[0])

        def embed_whole(photo: Path) -> Array:
            return make_golden(model, preprocess=preprocess, image=photo).outputs[index]

        return maker_of(model, preprocess, postprocess.outputs), embed_whole
    stages = open_stages(project, model, postprocess, labels)
    opened = stages[where]
    before = StageReferences(stages[:where])
    reference = Reference(as_meant(opened.model.proto))
    wanted = [info.name for info in opened.model.outputs].index(opened.postprocess.outputs[0])

    def embed(photo: Path) -> Array:
        assert postprocess is not None
        golden = make_golden(model, preprocess=preprocess, image=photo)
        found, _ = golden_results(golden, names, postprocess, preprocess, labels or ())
        pixels = load_image(photo, accept=preprocess.accepted)
        boxes = before.look(pixels, found).boxes or ()
        chosen, dropped = choose(opened, boxes)
        if len(chosen) + dropped != 1:
            raise EnrollError(
                f"{photo}: {len(chosen) + dropped or 'no'} boxes are seen that stage "
                f"'{opened.stage.name}' would look at, and one is wanted",
                hint="give a photo that shows one person, or cut it; `edgepack check --image "
                f"{photo}` says what is seen",
            )
        return reference.run([crop_tensor(opened, pixels, boxes[chosen[0]])])[wanted]

    return opened.made_by, embed


def _with_photo(gallery: Gallery, name: str, vector: Array, made_by: str, photo: Path) -> Gallery:
    try:
        after = gallery.with_vector(name, vector, made_by)
    except ValueError as error:
        raise EnrollError(f"{photo}: {error}") from None
    rows = _rows(after)
    same = np.abs(rows[:-1] - rows[-1]).max(axis=1, initial=0) < _SAME
    owners = np.asarray(after.owners[:-1])
    return gallery if bool(np.any(same & (owners == after.owners[-1]))) else after


_SAME = 1e-6


def _rows(gallery: Gallery) -> Array:
    return np.reshape(np.asarray(gallery.vectors), (len(gallery.owners), -1))


def _nearest(gallery: Gallery, name: str) -> tuple[str, float] | None:
    rows, owners = _rows(gallery), np.asarray(gallery.owners)
    number = gallery.people.index(name)
    near = rows[owners == number] @ rows[owners != number].T
    if near.size == 0:
        return None
    column = int(np.argmax(near.max(axis=0)))
    other = int(owners[owners != number][column])
    return gallery.people[other], float(near.max())

"""What every kind of postprocessing is."""

from __future__ import annotations

import dataclasses
import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from edgepack.base.errors import ConfigError, perhaps
from edgepack.base.tables import Table
from edgepack.model import TensorInfo, batch_of
from edgepack.postprocess.results import Results
from edgepack.preprocess.geometry import Geometry

FORMAT, VERSION = "edgepack-postprocess", 1

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Shapes = Sequence[Sequence[int]]

_FLOATS = ("float16", "float32")


class PostprocessMismatchError(ConfigError):
    """The model's outputs are not what the postprocessing takes."""


@dataclass(frozen=True, kw_only=True)
class PostprocessSpec:
    """What becomes of a model's outputs.

    `outputs` names those it takes, in its order; empty, until `for_model`, stands for the first, or
    for all, as the kind has it. `size` (height, width) is that of the image in the model's input,
    which coordinates are in before they are mapped back; None if the kind has none.
    """

    kind: ClassVar[str]
    takes_all: ClassVar[bool] = True
    dtypes: ClassVar[Sequence[str]] = _FLOATS
    in_pixels: ClassVar[bool] = True

    outputs: tuple[str, ...] = ()
    size: tuple[int, int] | None = None

    @classmethod
    @abstractmethod
    def read(cls, table: Table) -> Self:
        """The kind's own keys. Raises `ConfigError`."""

    @property
    def own_labels(self) -> tuple[str, ...] | None:
        """The labels of the classes, of a kind that knows them; None: a file has to name them."""
        return None

    @abstractmethod
    def classes(self, shapes: Shapes) -> int | None:
        """How many classes outputs of these shapes tell apart; None if they have none.

        Raises `ValueError`, which says what is wrong, for shapes that are not the kind's.
        """

    def count_points(self, shapes: Shapes) -> int:
        """How many points, key points or corners, each box of outputs of these shapes has."""
        return 0

    @abstractmethod
    def run(
        self, tensors: Sequence[Array], geometry: Geometry | None, labels: Sequence[str] = ()
    ) -> Results:
        """The results of `tensors`, those of `outputs`; of a photo, or of the input as it is."""

    def for_model(
        self,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
        *,
        size: tuple[int, int] | None = None,
        labels: Sequence[str] | None = None,
    ) -> Self:
        """This spec for a model's outputs. `size` is what preprocessing makes of every photo.

        Raises `PostprocessMismatchError` if there are no such outputs, if they are of another dtype
        or shape, or if there are fewer `labels` than classes.
        """
        names = [info.name for info in outputs]
        for name in self.outputs:
            if name not in names:
                raise PostprocessMismatchError(
                    f"[postprocess] outputs: the model has no output '{name}'",
                    hint=perhaps(name, names),
                )
        chosen = self.outputs or tuple(names if self.takes_all else names[:1])
        infos = [outputs[names.index(name)] for name in chosen]
        for info in infos:
            if self.dtypes and info.dtype not in self.dtypes:
                raise PostprocessMismatchError(
                    f"[postprocess] kind '{self.kind}' takes {' or '.join(self.dtypes)}, but the "
                    f"model's output '{info.name}' is {info.dtype}"
                )
        if self.in_pixels and size is None:
            size = _image_size(inputs)
        bound = dataclasses.replace(self, outputs=chosen, size=size if self.in_pixels else None)
        shapes = [[one for one in info.shape if isinstance(one, int)] for info in infos]
        if (batch := batch_of(inputs)) > 1:  # each photo has its own part of them
            shapes = [[1, *shape[1:]] if shape[:1] == [batch] else shape for shape in shapes]
        try:
            classes = bound.classes(shapes)
        except ValueError as error:
            given = ", ".join(f"'{info.name}' {tuple(info.shape)}" for info in infos)
            raise PostprocessMismatchError(
                f"[postprocess] kind '{self.kind}': {error}; the outputs are {given}",
                hint="name the right ones, in order: outputs in [postprocess]",
            ) from None
        if labels is not None and classes is not None and len(labels) < classes:
            raise PostprocessMismatchError(
                f"{len(labels)} labels, but the outputs tell {classes} classes apart",
                hint="one line for each class, in the order of the output",
            )
        return bound

    def to_json(self) -> str:
        """postprocess.json: equal specs give equal text. `outputs` must be known by now."""
        if not self.outputs:
            raise ValueError("the spec is not yet for a model: see for_model")
        values = dataclasses.asdict(self)
        if not self.in_pixels:
            del values["size"]
        head = {"format": FORMAT, "version": VERSION, "kind": self.kind}
        return json.dumps({**head, **values}, indent=2) + "\n"


def _image_size(inputs: Sequence[TensorInfo]) -> tuple[int, int]:
    """(height, width) of the only input that can be an image."""
    images = [info.shape for info in inputs if len(info.shape) == 4]
    if len(images) == 1:
        shape = images[0]
        height, width = shape[2:] if shape[1] in (1, 3) else shape[1:3]
        if isinstance(height, int) and isinstance(width, int):
            return height, width
    raise PostprocessMismatchError(
        "[postprocess]: which size the image has in the model's input is not known",
        hint="add a [preprocess] table with an exact or letterbox resize, or a crop",
    )


def take_fraction(table: Table, key: str, default: float) -> float:
    """A number from 0 to 1."""
    value = table.take(key, float, default)
    if not 0 <= value <= 1:
        raise table.fail(key, f"{value} is not from 0 to 1")
    return value


def take_count(table: Table, key: str, default: int, low: int, high: int) -> int:
    """A whole number from `low` to `high`."""
    value = table.take(key, int, default)
    if not low <= value <= high:
        raise table.fail(key, f"{value} is not from {low} to {high}")
    return value


def label_of(index: int, labels: Sequence[str]) -> str:
    """Its label, "" if there is none."""
    return labels[index] if index < len(labels) else ""


def map_count(shapes: Shapes, layout: str) -> int:
    """How many maps there are in the only output. Raises `ValueError` if it is not maps."""
    (first, *others) = shapes
    if others or len(first) != 4 or first[0] != 1 or 0 in first:
        wanted = "(1, maps, H, W)" if layout == "NCHW" else "(1, H, W, maps)"
        raise ValueError(f"it takes one output, maps of one image {wanted}")
    return first[layout.index("C")]


def maps_of(tensor: Array, layout: str) -> Floats:
    """The maps (C, H, W) of one image."""
    maps = as_numbers(tensor)[0]
    return maps if layout == "NCHW" else np.moveaxis(maps, -1, 0)


def as_numbers(tensor: Array) -> Floats:
    """The elements as the app on the board computes with them: float64."""
    return tensor.astype(np.float64)


def sigmoid(values: Floats) -> Floats:
    """1 / (1 + exp(-x)), element by element."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-values)))

"""Galleries: people, and vectors that a model made of photos of them.

{"format": "edgepack-gallery", "version": 1,
 "made_by": "4f0c...",            what the vectors were made with; "" if there are none yet
 "people": ["Anna", "Ben"],
 "owners": [0, 0, 1],             the person of each vector
 "vectors": [0.031, ...]}         each of length 1, one after the other
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edgepack.base.errors import ConfigError
from edgepack.base.paths import write_atomic
from edgepack.base.tables import Table, in_another_file, parse_json

FORMAT, VERSION = "edgepack-gallery", 1
MOST_PEOPLE = 10_000
MOST_VECTORS = 10_000
MOST_ELEMENTS = 1_000_000
MOST_NAME_BYTES = 64
_MOST_BYTES = 64 << 20
_MOST_MADE_BY = 64
# Of a vector's length: they are written with this many digits behind the point.
_DIGITS = 9
_LENGTH_ERROR = 1e-3
_NOBODY = "unknown"


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """People and their vectors: see this module."""

    made_by: str = ""
    people: tuple[str, ...] = ()
    owners: tuple[int, ...] = ()
    vectors: tuple[float, ...] = ()

    @classmethod
    def take(cls, table: Table) -> Self:
        """The gallery in `table`. Raises `ConfigError` naming the key."""
        made_by = table.take("made_by", str)
        if len(made_by.encode(errors="surrogatepass")) > _MOST_MADE_BY:
            raise table.fail("made_by", f"has more than {_MOST_MADE_BY} bytes")
        people = table.take_list("people", str)
        if len(people) > MOST_PEOPLE or len(set(people)) < len(people):
            raise table.fail("people", f"are more than {MOST_PEOPLE}, or one is there twice")
        for name in people:
            if not 1 <= len(name.encode(errors="surrogatepass")) <= MOST_NAME_BYTES:
                raise table.fail("people", f"{name!r} has not 1 to {MOST_NAME_BYTES} bytes")
        owners = table.take_list("owners", int)
        if len(owners) > MOST_VECTORS or not all(0 <= one < len(people) for one in owners):
            raise table.fail("owners", f"are more than {MOST_VECTORS}, or hold what is no person")
        vectors = table.take_list("vectors", float)
        whole = bool(owners) and len(vectors) % len(owners) == 0
        if len(vectors) > MOST_ELEMENTS or (vectors and not whole) or (owners and not vectors):
            raise table.fail("vectors", "are not one for each of the owners, or too many")
        if owners:
            rows = np.reshape(np.asarray(vectors, np.float64), (len(owners), -1))
            with np.errstate(over="ignore", invalid="ignore"):
                lengths = np.sqrt((rows * rows).sum(axis=1))
            if not np.all(np.abs(lengths - 1) <= _LENGTH_ERROR):
                raise table.fail("vectors", "hold one that is not of length 1")
        return cls(made_by=made_by, people=people, owners=owners, vectors=vectors)

    def vectors_of(self, name: str) -> int:
        """How many vectors a person has."""
        if name not in self.people:
            return 0
        return self.owners.count(self.people.index(name))

    def with_vector(self, name: str, vector: npt.NDArray[Any], made_by: str) -> Gallery:
        """This and a vector of a person, who may be new; it is brought to length 1. Raises
        ValueError for one that is all zeros or not finite, or of another length than the others."""
        exact = vector.astype(np.float64).ravel()
        with np.errstate(over="ignore", invalid="ignore"):
            length = math.sqrt(float((exact * exact).sum()))
        if not (math.isfinite(length) and length > 0):
            raise ValueError("the model's answer has no direction: all zeros, or not finite")
        if self.owners and len(self.vectors) != exact.size * len(self.owners):
            raise ValueError(
                f"the model's answer has {exact.size} elements, and the gallery's vectors "
                f"{len(self.vectors) // len(self.owners)}"
            )
        people = self.people if name in self.people else (*self.people, name)
        own = tuple(round(float(one), _DIGITS) for one in exact / length)
        return replace(
            self,
            made_by=made_by,
            people=people,
            owners=(*self.owners, people.index(name)),
            vectors=(*self.vectors, *own),
        )

    def without(self, name: str) -> Gallery:
        """This without a person of it."""
        gone = self.people.index(name)
        size = len(self.vectors) // len(self.owners) if self.owners else 0
        kept = [number for number, owner in enumerate(self.owners) if owner != gone]
        return replace(
            self,
            people=tuple(one for one in self.people if one != name),
            owners=tuple(self.owners[one] - (self.owners[one] > gone) for one in kept),
            vectors=tuple(
                value for one in kept for value in self.vectors[one * size : (one + 1) * size]
            ),
        )

    def write(self, path: Path) -> None:
        """Replace the file at `path` by this, a vector a line."""
        size = len(self.vectors) // len(self.owners) if self.owners else 0
        rows: Sequence[str] = [
            json.dumps(self.vectors[at : at + size])[1:-1]
            for at in range(0, len(self.vectors), size or 1)
        ]
        head = {"format": FORMAT, "version": VERSION, "made_by": self.made_by}
        values = {"people": list(self.people), "owners": list(self.owners)}
        text = json.dumps({**head, **values}, ensure_ascii=False, indent=1)
        vectors = ",\n".join(rows)
        write_atomic(path, f'{text[:-2]},\n "vectors": [{vectors}]\n}}\n'.encode())


def name_problem(name: str) -> str | None:
    """What is wrong with the name of a person; None if nothing is."""
    if not name or name != name.strip() or len(name.encode(errors="replace")) > MOST_NAME_BYTES:
        return f"is empty, longer than {MOST_NAME_BYTES} bytes, or begins or ends with a space"
    if any(unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp") for one in name):
        return "has a control character"
    if name.casefold() == _NOBODY:
        return "is what everybody else is called"
    return None


def read_gallery(path: Path) -> Gallery:
    """The gallery in a file. Raises `ConfigError` naming it."""
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise ConfigError(f"{path}: {size >> 20} MB are too many for a gallery")
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"file not found: {path}",
            hint="make the gallery: edgepack enroll NAME PHOTO...",
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    with in_another_file():
        return _read(Table(parse_json(data, file=path), file=path))


def _read(table: Table) -> Gallery:
    if (found := table.take("format", str)) != FORMAT:
        raise table.fail("format", f"{found!r} is not {FORMAT!r}")
    if (version := table.take("version", int)) != VERSION:
        raise table.fail("version", f"{version} is not {VERSION}")
    gallery = Gallery.take(table)
    table.finish()
    for name in gallery.people:
        if (problem := name_problem(name)) is not None:
            raise table.fail("people", f"{name!r} {problem}")
    return gallery

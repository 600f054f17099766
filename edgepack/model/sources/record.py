"""Where a model was fetched from: a record that lies beside it and travels in its bundle."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgepack.base.errors import BundleError, EdgepackError
from edgepack.base.tables import Table, parse_json, read_json
from edgepack.model.errors import SourceError

RECORD = "edgepack-source.json"
"""Beside what was fetched: the source, and the SHA-256 of each file of the model."""
MAX_BYTES = 8192
"""Of a source as JSON."""
_MOST_LETTERS = 1000
# `<model>/onnx/model.onnx` lies one folder below the record, what people nest some more.
MOST_FOLDERS = 8
"""Above a model, in which what says where it is from may lie."""


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """Where a model is from.

    `uri` names the very content where the source can: `hf://org/repo@<commit>/onnx/model.onnx`,
    `models:/name/3`, `oci://registry/name@sha256:...`. `name` is the model's there; `version` is a
    registry's, `revision` a commit or digest, `run_id` MLflow's.
    """

    uri: str
    name: str = ""
    version: str = ""
    revision: str = ""
    run_id: str = ""

    def __str__(self) -> str:
        """For a person: the address, and what it does not hold itself."""
        parts = [self.uri]
        if self.version and not self.uri.endswith(f"/{self.version}"):
            parts.append(f"version {self.version}")
        if self.run_id and self.run_id not in self.uri:
            parts.append(f"run {self.run_id}")
        return ", ".join(parts)

    def to_json(self) -> str:
        """Its fields, without those that are empty."""
        fields = {key: value for key, value in asdict(self).items() if value}
        return json.dumps(fields, indent=2, sort_keys=True) + "\n"

    @staticmethod
    def read(table: Table) -> ModelSource:
        """The source in a table. Raises what that raises for keys and values of another kind."""
        values = {key: table.take(key, str, "") for key in ModelSource.__dataclass_fields__}
        for key, value in values.items():
            if len(value) > _MOST_LETTERS or not value.isprintable():
                raise table.fail(key, "is too long, or cannot be printed")
        if not values["uri"]:
            raise table.fail("uri", "missing")
        table.finish()
        return ModelSource(**values)

    @staticmethod
    def parse(data: bytes, *, file: str, error: type[EdgepackError] = BundleError) -> ModelSource:
        """The source in the JSON `data`, as `to_json` writes it. Raises `error`."""
        if len(data) > MAX_BYTES:
            raise error(f"{file}: more than {MAX_BYTES} bytes")
        return ModelSource.read(
            Table(parse_json(data, file=file, error=error), file=file, error=error)
        )


def client(module: str, scheme: str, extra: str, package: str) -> Any:
    """The module of a source's own client. Raises `SourceError` where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise SourceError(
            f"{scheme}: the package {module} is not installed",
            hint=f"pip install '{extra}', or pip install {package}",
        ) from None


def write_record(folder: Path, source: ModelSource, files: Sequence[Path]) -> None:
    """Note in `folder` that the model of `files`, its own file first, is from `source`."""
    document = {
        "source": json.loads(source.to_json()),
        "files": {file.relative_to(folder).as_posix(): sha256_of(file) for file in files},
    }
    (folder / RECORD).write_text(json.dumps(document, indent=2) + "\n")


def read_record(folder: Path) -> tuple[ModelSource, dict[str, str]] | None:
    """What the record in `folder` says: the source, and the SHA-256 of each file of the model, its
    own file first; None if there is none. Raises `SourceError` for one that is none of ours."""
    path = folder / RECORD
    if not path.is_file():
        return None
    if path.stat().st_size > 1 << 20:
        raise SourceError(f"{path}: too large for a record of a source")
    table = Table(read_json(path, error=SourceError), file=path, error=SourceError)
    inner = table.take_table("source")
    assert inner is not None  # required
    source = ModelSource.read(inner)
    sums = table.take("files", dict)
    table.finish()
    if not sums or not all(isinstance(one, str) for one in sums.values()):
        raise SourceError(f"{path}: files: not a table of SHA-256")
    return source, sums


def source_of(model: Path) -> ModelSource | None:
    """Where the file `model` is from, if a record says so and its files are still the same."""
    path = model.absolute()
    for folder in path.parents[:MOST_FOLDERS]:
        found = read_record(folder)
        if found is None:
            continue
        source, sums = found
        is_it = next(iter(sums)) == path.relative_to(folder).as_posix()
        return source if is_it and is_unchanged(folder, sums) else None
    return None


def is_unchanged(folder: Path, sums: dict[str, str]) -> bool:
    """Whether each file has the content that was fetched."""
    for name, digest in sums.items():
        file = folder / name
        is_inside = file.resolve().is_relative_to(folder.resolve())
        if not is_inside or not file.is_file() or sha256_of(file) != digest:
            return False
    return True


def sha256_of(file: Path) -> str:
    """As 64 hex digits."""
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()

"""Weights that a model keeps in files beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from edgepack.model.errors import (
    ExternalDataError,
    MissingExternalDataError,
    TruncatedModelError,
)


def load_external_data(path: Path, proto: Any) -> list[Path]:
    """Read the tensors of the model at `path` that are kept in other files; returns those files.

    Only files in the model's own folder, or below it, are read: `ExternalDataError` names a tensor
    that wants another, or a part that is no part of one. Raises `MissingExternalDataError` with
    all files that are not there, and `TruncatedModelError`.
    """
    tensors = [
        (tensor, where, _file_of(path, tensor.name, where))
        for tensor in _tensors(proto)
        if (where := _where(tensor)) is not None
    ]
    missing = sorted({str(file) for _, _, file in tensors if not file.is_file()})
    if missing:
        raise MissingExternalDataError(
            f"{path}: external data is missing: {', '.join(missing)}",
            hint=f"put the file(s) beside {path.name}; they belong to the model",
        )
    for tensor, where, file in tensors:
        start, length = (_number(path, tensor.name, where, key) for key in ("offset", "length"))
        start, size = start or 0, file.stat().st_size
        needed = start + (length or 0)
        if size < needed:
            raise TruncatedModelError(
                f"{file}: external data of {path.name} ends early ({size} of {needed} bytes)",
                hint="copy or download it again",
            )
        with file.open("rb") as data:
            data.seek(start)
            tensor.raw_data = data.read(size - start if length is None else length)
        tensor.data_location = type(tensor).DEFAULT
        del tensor.external_data[:]
    return sorted({file for _, _, file in tensors})


def external_files(path: Path, proto: Any) -> list[str]:
    """What the model at `path` calls the files of its weights, be they there or not.

    Raises `ExternalDataError` as `load_external_data`.
    """
    names = set()
    for tensor in _tensors(proto):
        if (where := _where(tensor)) is not None:
            _file_of(path, tensor.name, where)
            names.add(PurePosixPath(where["location"]).as_posix())
    return sorted(names)


def _tensors(proto: Any) -> Iterator[Any]:
    from onnx import external_data_helper

    yield from external_data_helper._get_all_tensors(proto)


def _where(tensor: Any) -> dict[str, str] | None:
    """Location, offset and length as the model says them; None for a tensor inside of it."""
    if tensor.data_location != type(tensor).EXTERNAL:
        return None
    return {entry.key: entry.value for entry in tensor.external_data}


def _file_of(path: Path, name: str, where: dict[str, str]) -> Path:
    location = where.get("location", "")
    inside = PurePosixPath(location)
    parts = inside.parts
    if not parts or inside.is_absolute() or ".." in parts or "\0" in location:
        raise ExternalDataError(
            f"{path}: tensor '{name}' wants the file {location!r}, which is not below "
            "the model's folder",
            hint="export the model again with its data in a file beside it",
        )
    file = path.parent / inside
    for depth in range(len(parts)):
        part = path.parent.joinpath(*parts[: depth + 1])
        if part.is_symlink():
            raise ExternalDataError(
                f"{path}: the external data of tensor '{name}' is a link: {part}",
                hint="put the file itself there (`cp -L`)",
            )
    return file


def _number(path: Path, name: str, where: dict[str, str], key: str) -> int | None:
    """Offset or length, None if there is none."""
    text = where.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise ExternalDataError(
            f"{path}: tensor '{name}': {key} of its external data is {text!r}, "
            "no whole number of bytes"
        )
    return int(text)

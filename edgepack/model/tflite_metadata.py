"""What a TFLite file says of itself beside its graph: labels, mean and std.

TensorFlow Lite's metadata is a flatbuffer in one of the model's own buffers, which the model names
TFLITE_METADATA; the files that it names, labels among them, are in a zip archive behind the model.
All of it is foreign: every offset is checked, and so is every size. The schemas are the model's
(tensorflow/compiler/mlir/lite/schema/schema.fbs) and the metadata's (metadata_schema.fbs of
tflite-support).
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgepack.base.text import text_lines

_MOST_FILE_BYTES = 1 << 20
_MOST_FILES = 64
_MOST_ITEMS = 1 << 16
_MOST_FLOAT = 3.4e38
_METADATA = "TFLITE_METADATA"
_NORMALIZATION = 1
_AXIS_LABELS, _VALUE_LABELS = 2, 3
# Of ultralytics' exporter, which appends no other metadata.
_ULTRALYTICS = "metadata.json"


@dataclass(frozen=True, kw_only=True)
class TfliteMetadata:
    """What is said of the first input's pixels, (p - mean) / std for each channel or for all, and
    of the classes of the first output; empty where nothing is. `said` is a table of ultralytics."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()
    said: Mapping[str, str] = field(default_factory=dict)


def read_metadata(path: Path) -> TfliteMetadata:
    """What the file says; nothing, if it says nothing or cannot be understood."""
    data = path.read_bytes()
    files = dict(_files(data))
    said = _ultralytics(files.get(_ULTRALYTICS))
    try:
        return _read(data, files, said)
    except (struct.error, ValueError):
        return TfliteMetadata(said=said)


def _read(data: bytes, files: Mapping[str, bytes], said: Mapping[str, str]) -> TfliteMetadata:
    """Raises `ValueError` and `struct.error` for offsets that lead nowhere."""
    model = _Record.root(data)
    for entry in model.tables(6):
        if entry.text(0) == _METADATA:
            buffer = model.table_of(4, entry.number(1, "<I"))
            top = _Record.root(buffer.bytes(0))
            break
    else:
        return TfliteMetadata(said=said)
    graph = next(top.tables(3), None)
    if graph is None:
        return TfliteMetadata(said=said)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    for tensor in graph.tables(2):
        for unit in tensor.tables(4):
            if unit.number(0, "<B") == _NORMALIZATION and (own := unit.table(1)) is not None:
                mean, std = own.floats(0), own.floats(1)
        break
    labels: tuple[str, ...] = ()
    for tensor in graph.tables(3):
        for file in tensor.tables(6):
            if not labels and file.number(2, "<B") in (_AXIS_LABELS, _VALUE_LABELS):
                labels = _labels(files.get(file.text(0)))
    return TfliteMetadata(mean=mean, std=std, labels=labels, said=said)


def _files(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The files behind the model, by name, that are not too large."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for info in archive.infolist()[:_MOST_FILES]:
                if info.is_dir() or info.file_size > _MOST_FILE_BYTES or info.flag_bits & 1:
                    continue
                with archive.open(info) as file:
                    text = file.read(_MOST_FILE_BYTES + 1)
                if len(text) <= _MOST_FILE_BYTES:
                    yield info.filename, text
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, EOFError, RuntimeError):
        return
    except Exception as error:  # zlib's and lzma's own
        if type(error).__module__ not in ("zlib", "_lzma", "lzma"):
            raise


def _labels(data: bytes | None) -> tuple[str, ...]:
    """A class on each line."""
    try:
        lines = text_lines((data or b"").decode())
    except UnicodeDecodeError:
        return ()
    labels = tuple(" ".join(line.split()) for line in lines)
    return labels if all(labels) else ()


def _ultralytics(data: bytes | None) -> dict[str, str]:
    """What ultralytics writes into ONNX' metadata as text, too."""
    try:
        found = json.loads(data or b"")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    names = found.get("names")
    if isinstance(names, dict):  # JSON has made texts of its numbers
        found["names"] = {int(k) if k.isdecimal() else k: v for k, v in names.items()}
    return {key: str(value) for key, value in found.items()}


@dataclass(frozen=True)
class _Record:
    """A table of a flatbuffer: `at` is where it is in `data`."""

    data: bytes
    at: int

    @classmethod
    def root(cls, data: bytes) -> _Record:
        return cls(data, _number(data, "<I", 0))

    def _field(self, slot: int) -> int | None:
        """Where a field is; None if it is left out."""
        table = self.at - _number(self.data, "<i", self.at)
        place = 4 + 2 * slot
        if place + 2 > _number(self.data, "<H", table):
            return None
        offset = _number(self.data, "<H", table + place)
        return self.at + offset if offset else None

    def _target(self, slot: int) -> int | None:
        at = self._field(slot)
        return None if at is None else at + _number(self.data, "<I", at)

    def number(self, slot: int, form: str) -> int:
        """A whole number; 0 if it is left out."""
        at = self._field(slot)
        return 0 if at is None else int(_number(self.data, form, at))

    def table(self, slot: int) -> _Record | None:
        """A table within this one."""
        at = self._target(slot)
        return None if at is None else _Record(self.data, at)

    def _vector(self, slot: int, size: int) -> tuple[int, int]:
        """Where a vector of items of `size` bytes begins, and how many there are."""
        at = self._target(slot)
        if at is None:
            return 0, 0
        count = _number(self.data, "<I", at)
        if at + 4 + count * size > len(self.data):
            raise ValueError("a vector beyond the end")
        return at + 4, count

    def bytes(self, slot: int) -> bytes:
        """A vector of bytes."""
        begin, count = self._vector(slot, 1)
        return self.data[begin : begin + count]

    def text(self, slot: int) -> str:
        """A text; "" if it is left out or not UTF-8."""
        return self.bytes(slot).decode(errors="replace")

    def floats(self, slot: int) -> tuple[float, ...]:
        """A vector of numbers."""
        begin, count = self._vector(slot, 4)
        if count > _MOST_ITEMS:
            raise ValueError("too many numbers")
        return tuple(map(_shortest, struct.unpack_from(f"<{count}f", self.data, begin)))

    def tables(self, slot: int) -> Iterator[_Record]:
        """A vector of tables."""
        begin, count = self._vector(slot, 4)
        for at in range(begin, begin + 4 * min(count, _MOST_ITEMS), 4):
            yield _Record(self.data, at + _number(self.data, "<I", at))

    def table_of(self, slot: int, index: int) -> _Record:
        """One table of a vector."""
        begin, count = self._vector(slot, 4)
        if index >= count:
            raise ValueError("no such item")
        at = begin + 4 * index
        return _Record(self.data, at + _number(self.data, "<I", at))


def _shortest(value: float) -> float:
    """0.485 for the float32 next to it."""
    bits = struct.pack("<f", value)
    for digits in (6, 7, 8):
        near = float(f"{value:.{digits}g}")
        if abs(near) < _MOST_FLOAT and struct.pack("<f", near) == bits:
            return near
    return value


def _number(data: bytes, form: str, at: int) -> Any:
    if at < 0:
        raise ValueError("before the beginning")
    return struct.unpack_from(form, data, at)[0]

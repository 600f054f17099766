"""PyTorch programs (`torch.export.save`) as ONNX models, by PyTorch's own exporter."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import shlex
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgepack.base.errors import ModelError
from edgepack.model.errors import NotOnnxError, TruncatedModelError

_OPSET = 18  # the lowest that the exporter writes without converting


class TorchExtraError(ModelError):
    """The packages that read PyTorch programs are not installed."""


class NotExportedError(NotOnnxError):
    """The file is no program that PyTorch can load and export."""


class UnsafeProgramError(NotExportedError):
    """The file holds what PyTorch would run when it reads it."""


def read_exported(path: Path) -> Any:
    """The program at `path` as an `onnx.ModelProto`; its weights are in it.

    Raises `TruncatedModelError`, `UnsafeProgramError`, `TorchExtraError`, and `NotExportedError`
    with PyTorch's own reason.
    """
    _check_archive(path)
    try:
        import onnxscript  # type: ignore[import-not-found]  # noqa: F401 - what the exporter needs
        import torch  # type: ignore[import-not-found]
    except ImportError as error:
        raise TorchExtraError(
            f"{path}: PyTorch programs are read with packages that are not installed: "
            f"{error.name or 'torch'}",
            hint="pip install 'edgepack[torch]', or export the model to ONNX where torch is: "
            "torch.onnx.export(model, inputs, 'model.onnx', dynamo=True)",
        ) from None
    # It warns of each operator of torchvision, whether the program has one or not.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with _only_weights(), _written_anew(path) as copy:
            program = torch.export.load(copy)
        exported = torch.onnx.export(program, dynamo=True, opset_version=_OPSET, verbose=False)
        return exported.model_proto
    except pickle.UnpicklingError:
        raise _unsafe(path, "pickles of more than tensors") from None
    except Exception as error:
        # Its own exceptions have no common class but this.
        said = _COLOUR.sub("", str(error)).strip()
        reason = (said.splitlines() or [type(error).__name__])[0]
        raise NotExportedError(
            f"{path}: PyTorch cannot load or export this program: {reason}",
            hint="write it with torch.export.save, by a version of torch that is not newer",
        ) from error


# PyTorch writes its messages in colours.
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# ---------------------------------------------------------------- before PyTorch reads it

# torch/csrc/export/pt2_archive_constants.h; the second is how torch 2.7 and older wrote it.
_PROGRAM = re.compile(r"[^/]+/models/[^/]+\.json|serialized_exported_program\.json")

# PyTorch packs nothing; somebody's zip program may have.
_SMALL_BYTES = 16 << 20
_GROWTH = 20
_START_BYTES = 1 << 20

# What is not read as tensors: pickles of any class, and libraries that are loaded.
_RUN = {
    "opaque_obj_": "a pickled Python object",
    "custom_obj_": "an object of a custom class",
    "aotinductor/": "compiled code",
}

# A sympy expression, as a string or as its `srepr`: no attribute and no function whose name starts
# with a small letter, as Python's own do. It is evaluated.
_EXPRESSION = re.compile(
    r"""(?: '[\w.+-]*' | [A-Z]\w* | [a-z]\w*(?==) | [a-z]+\d+
      | \d+(?:\.\d+)?(?:e[+-]?\d+)? | [\s()+*/%<>=!&|,~-] )*""",
    re.VERBOSE | re.ASCII,
)


def _check_archive(path: Path) -> None:
    """Refuse what is damaged, what is no program, and what would run when it is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_members(path, archive)
    except RuntimeError as error:
        # Encrypted, or packed in a way that zipfile doesn't know.
        raise _no_program(path, f"another kind of archive ({error})") from None
    # OSError is of offsets where no file has a place.
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError):
        with path.open("rb") as file:
            start = file.read(4)
        if start.startswith(b"PK"):
            raise TruncatedModelError(
                f"{path}: the file is damaged, or ends in the middle of the program",
                hint="copy or download it again",
            ) from None
        what = "a pickle" if start.startswith(b"\x80") else "another kind of file"
        raise _no_program(path, what) from None


def _check_sizes(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse what one reader takes for one thing and another for something else, or what grows."""
    seen: set[str] = set()
    most = _SMALL_BYTES + _GROWTH * path.stat().st_size
    for member in archive.infolist():
        # PyTorch's reader looks names up without regard to case.
        name = member.filename.lower()
        if name in seen:
            raise NotExportedError(f"{path}: {member.filename[:80]!r} is in the archive twice")
        seen.add(name)
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _no_program(path, "another kind of archive (its packing)")
        most -= member.file_size
        if most < 0:
            raise NotExportedError(
                f"{path}: unpacked, it is more than {_GROWTH} times as large",
                hint="write it with torch.export.save, which packs nothing",
            )


@contextmanager
def _written_anew(path: Path) -> Iterator[Path]:
    """An archive of what `_check_archive` saw, for PyTorch, whose own reader may see another in the
    same file: other headers, other ends, other files of one name."""
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        copy = Path(folder) / path.name
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(copy, "w") as anew:
            _check_members(path, archive)
            for member in archive.infolist():
                same = zipfile.ZipInfo(member.filename)
                same.file_size = member.file_size
                with archive.open(member) as source, anew.open(same, "w") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
        yield copy


def _check_members(path: Path, archive: zipfile.ZipFile) -> None:
    _check_sizes(path, archive)
    names = archive.namelist()
    if not any(_PROGRAM.fullmatch(name) for name in names):
        parts = {name.partition("/")[2] for name in names}
        if any(part.startswith("code/") for part in parts):
            raise _no_program(path, "a TorchScript archive")
        if _is_ultralytics(archive):
            raise NotExportedError(
                f"{path}: not an exported PyTorch program, but a checkpoint of ultralytics",
                hint=f"yolo export model={shlex.quote(path.name)} format=onnx",
            )
        what = "weights of torch.save" if "data.pkl" in parts else "another kind of archive"
        raise _no_program(path, what)
    for name in names:
        for part, what in _RUN.items():
            if part in name.lower():
                raise _unsafe(path, f"{what}: {name}")
    if (damaged := archive.testzip()) is not None:
        raise TruncatedModelError(
            f"{path}: the file is damaged: the checksum of {damaged} differs",
            hint="copy or download it again",
        )
    for name in names:
        if "models/" in name.lower() or name.lower().endswith(".json"):
            try:
                expressions = list(_expressions(json.loads(archive.read(name))))
            except (ValueError, RecursionError):
                raise NotExportedError(f"{path}: {name} is not JSON") from None
            for expression in expressions:
                if not isinstance(expression, str) or not _EXPRESSION.fullmatch(expression):
                    raise _unsafe(path, f"not a size: {str(expression)[:80]!r}")


def _is_ultralytics(archive: zipfile.ZipFile) -> bool:
    """Whether a pickle, which is not read as one, names the package's classes."""
    for name in archive.namelist():
        if name.endswith("/data.pkl"):
            with archive.open(name) as file:
                return b"ultralytics." in file.read(_START_BYTES)
    return False


def _expressions(value: Any) -> Iterator[Any]:
    """All expressions in a part of a program's JSON."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "expr_str":
                yield inner
            else:
                yield from _expressions(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _expressions(inner)


@contextmanager
def _only_weights() -> Iterator[None]:
    """PyTorch unpickles nothing but tensors and plain containers, though its loader asks for more.

    https://docs.pytorch.org/docs/stable/notes/serialization.html#environment-variables
    """
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _no_program(path: Path, what: str) -> NotExportedError:
    return NotExportedError(
        f"{path}: not an exported PyTorch program, but {what}",
        hint="torch.export.save(torch.export.export(model.eval(), (example,)), 'model.pt2')",
    )


def _unsafe(path: Path, what: str) -> UnsafeProgramError:
    return UnsafeProgramError(
        f"{path}: reading this program would run what it holds: {what}",
        hint="export the model to ONNX where it was trained: "
        "torch.onnx.export(model, inputs, 'model.onnx', dynamo=True)",
    )

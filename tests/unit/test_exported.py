"""PyTorch programs before PyTorch reads them: what is refused, and why. torch is not needed."""

from __future__ import annotations

import json
import pickle
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest

from edgepack.model import ModelSpec, read_model
from edgepack.model.errors import TruncatedModelError
from edgepack.model.exported import (
    NotExportedError,
    TorchExtraError,
    UnsafeProgramError,
    _written_anew,
)

_MODEL = "net/models/model.json"


def _archive(path: Path, members: dict[str, Any]) -> Path:
    """A zip, stored as PyTorch's are; what is no text is written as JSON."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in members.items():
            archive.writestr(name, value if isinstance(value, str) else json.dumps(value))
    return path


def _sizes(*expressions: Any) -> dict[str, Any]:
    """A program's JSON as far as it is read here."""
    return {"graph": {"sizes": [{"as_expr": {"expr_str": e}} for e in expressions]}}


def _refused(path: Path, error: type[Exception]) -> str:
    with pytest.raises(error) as caught:
        read_model(ModelSpec(path=path))
    assert type(caught.value) is error
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_program_needs_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    path = _archive(tmp_path / "net.pt2", {_MODEL: {}})
    message = _refused(path, TorchExtraError)
    assert "packages that are not installed: onnxscript" in message
    assert "pip install 'edgepack[torch]'" in message


@pytest.mark.parametrize(
    ("name", "members", "what"),
    [
        ("net.pt", {"net/data.pkl": "", "net/data/0": "0"}, "weights of torch.save"),
        ("net.pt2", {"net/data.pkl": "", "net/code/a.py": ""}, "a TorchScript archive"),
        ("net.pth", {"readme.txt": "hello"}, "another kind of archive"),
    ],
)
def test_archives_that_hold_no_program_are_named(
    tmp_path: Path, name: str, members: dict[str, Any], what: str
) -> None:
    message = _refused(_archive(tmp_path / name, members), NotExportedError)
    assert f"not an exported PyTorch program, but {what}\n" in message
    assert "torch.export.save(" in message


def test_files_that_are_no_archives_are_named(tmp_path: Path) -> None:
    path = tmp_path / "net.pt"
    path.write_bytes(pickle.dumps({"weight": [1.0]}))
    assert "but a pickle\n" in _refused(path, NotExportedError)
    path.write_bytes(b"")
    assert "but another kind of file\n" in _refused(path, NotExportedError)


@pytest.mark.parametrize("again", [_MODEL, _MODEL.upper()])
def test_two_of_one_name_are_refused(tmp_path: Path, again: str) -> None:
    """PyTorch's reader may take the other one, whatever the case of its letters."""
    path = _archive(tmp_path / "net.pt2", {_MODEL: {}})
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr(again, json.dumps(_sizes("__import__('os')")))
    assert "is in the archive twice" in _refused(path, NotExportedError)


def test_an_archive_that_grows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_MODEL, "{}")
        archive.writestr("net/data/weights/weight_0", bytes(40 << 20))
    assert "more than 20 times as large" in _refused(path, NotExportedError)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr(_MODEL, "{}")
    _refused(path, NotExportedError)


def test_pytorch_reads_what_was_checked(tmp_path: Path) -> None:
    """A second program before, behind or between the first one's parts is not in what it gets."""
    good = _archive(tmp_path / "good.pt2", {_MODEL: {}, "net/data/weights/weight_0": "w" * 100})
    other = _archive(tmp_path / "other.pt2", {_MODEL: _sizes("__import__('os')"), "net/x": "x"})
    mixed = tmp_path / "mixed.pt2"
    mixed.write_bytes(other.read_bytes() + good.read_bytes())
    for path in (good, mixed):
        with _written_anew(path) as copy:
            assert b"__import__" not in copy.read_bytes()
            with zipfile.ZipFile(copy) as archive:
                assert archive.namelist() == [_MODEL, "net/data/weights/weight_0"]
                assert archive.read(_MODEL) == b"{}"
                assert archive.read("net/data/weights/weight_0") == b"w" * 100
        assert not copy.exists()


def test_a_damaged_program_is_refused(tmp_path: Path) -> None:
    path = _archive(tmp_path / "net.pt2", {_MODEL: {}, "net/data/weights/weight_0": "w" * 4096})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "ends in the middle" in _refused(path, TruncatedModelError)
    path.write_bytes(whole.replace(b"wwww", b"wwwx", 1))
    assert "weight_0 differs" in _refused(path, TruncatedModelError)
    _archive(path, {_MODEL: "{"})
    assert f"{_MODEL} is not JSON" in _refused(path, NotExportedError)


def test_a_checkpoint_of_ultralytics_has_its_own_command(tmp_path: Path) -> None:
    """As its `save` begins: the class's module by name, which nobody imports here."""
    start = "\x02}q\x00X\x05\x00\x00\x00modelq\x02cultralytics.nn.tasks\nDetectionModel\n"
    path = _archive(tmp_path / "best.pt", {"best/data.pkl": start, "best/data/0": "0"})
    with pytest.raises(NotExportedError, match="but a checkpoint of ultralytics") as caught:
        read_model(ModelSpec(path=path))
    assert caught.value.hint == "yolo export model=best.pt format=onnx"


@pytest.mark.parametrize(
    ("member", "what"),
    [
        ("net/data/constants/opaque_obj_0", "a pickled Python object"),
        ("net/data/constants/custom_obj_0", "an object of a custom class"),
        ("net/data/AOTInductor/model/net.so", "compiled code"),
    ],
)
def test_what_would_run_when_read_is_refused(tmp_path: Path, member: str, what: str) -> None:
    path = _archive(tmp_path / "net.pt2", {_MODEL: {}, member: "x"})
    assert f"would run what it holds: {what}: {member}" in _refused(path, UnsafeProgramError)


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "eval('1')",
        "exec(chr(49))",
        "S('().__class__')",
        "Symbol('s0').name",
        "1 .real",
        "[x for x in Y]",
        7,
    ],
)
def test_sizes_that_are_more_than_sizes_are_refused(tmp_path: Path, expression: Any) -> None:
    """sympy evaluates them as Python."""
    path = _archive(tmp_path / "net.pt2", {_MODEL: _sizes("s0 + 1", expression)})
    assert "not a size: " in _refused(path, UnsafeProgramError)


def test_sizes_as_pytorch_writes_them_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    sizes = (
        "s0",
        "2*s0 + 1",
        "Mod(s0, 4)",
        "Add(Symbol('s77', integer=True, positive=True), Integer(-1))",
        "Mul(Float('0.5', precision=53), Rational(1, 2))",
    )
    _refused(_archive(tmp_path / "net.pt2", {_MODEL: _sizes(*sizes)}), TorchExtraError)

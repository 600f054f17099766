"""What `edgepack sdk` writes around its libraries; those themselves are in tests/functional."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edgepack.base.paths import data_file
from edgepack.native import sdk
from edgepack.native.sdk import SONAME, SdkBuild, write_sdk


def test_what_running_an_example_leaves_is_not_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = tmp_path / "data"

    def used(name: str) -> Path:
        if not name.startswith("examples/"):
            return data_file(name)
        folder = copies / name
        shutil.copytree(data_file(name), folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / "name.cpython-311.pyc").touch()
        (folder / "old.pyc").touch()
        return folder

    monkeypatch.setattr(sdk, "data_file", used)
    built = tmp_path / "built"
    built.mkdir()
    for name in (SONAME, "libedgepack.a"):
        (built / name).write_bytes(b"library")
    build = SdkBuild(
        folder=built, triple="aarch64-linux-gnu", glibc="2.31", licenses={"OpenCV": "text"}
    )
    write_sdk(build, tmp_path / "sdk")
    names = {path.name for path in (tmp_path / "sdk").rglob("*")}
    assert {"name.py", "main.c", "edgepack.h"} <= names
    assert not [name for name in names if "pyc" in name]

"""The wheel holds what the checkout holds, and works without it."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from edgepack.base.process import run

ROOT = Path(__file__).resolve().parents[2]
DATA = ("boards.toml", "toolchains", "cpp_runtime", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    run([*pip, "-w", out, ROOT], cwd=out)
    return next(out.glob("edgepack-*.whl"))


def test_the_wheel_holds_every_tracked_file_and_no_other(wheel: Path) -> None:
    tracked = run(["git", "-C", ROOT, "ls-files", "edgepack", *DATA]).stdout.splitlines()
    expected = {
        name if name.startswith("edgepack/") else f"edgepack/data/{name}" for name in tracked
    }
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == expected


def test_the_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "edgepack", "boards", "--json"],
        env={"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    origins = {board["origin"] for board in json.loads(done.stdout)}
    assert origins == {str(tmp_path / "edgepack" / "data" / "boards.toml")}

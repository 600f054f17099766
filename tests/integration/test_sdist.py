"""Pinned sdists, with real pip and a package index that is a folder."""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from edgepack.base.errors import ToolchainError
from edgepack.native.sdist import Sdist, check_sdist, fetch_sdist, unpack_sdist


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip looks for packages in, and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def make_sdist(folder: Path, **files: str) -> Sdist:
    """An sdist whose own build would fail and leave a file behind."""
    path = folder / "a_lib-1.0.tar.gz"
    contents = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: a-lib\nVersion: 1.0\n",
        "pyproject.toml": "[build-system]\n"
        'requires = ["nothing-that-exists"]\nbuild-backend = "setuptools.build_meta"\n',
        "setup.py": f"open({str(folder / 'it-ran')!r}, 'w')\nraise SystemExit(1)\n",
        **files,
    }
    with tarfile.open(path, "w:gz") as archive:
        for name, text in contents.items():
            info = tarfile.TarInfo(f"a_lib-1.0/{name}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Sdist(package="a-lib", version="1.0", sha256=digest)


def test_pip_fetches_it_and_runs_nothing_of_it(index: Path, tmp_path: Path) -> None:
    sdist = make_sdist(index)
    file = fetch_sdist(sdist, tmp_path)
    assert file == tmp_path / "a_lib-1.0.tar.gz"
    assert file.read_bytes() == (index / "a_lib-1.0.tar.gz").read_bytes()
    assert not (index / "it-ran").exists()


def test_another_file_is_refused(index: Path, tmp_path: Path) -> None:
    sdist = replace(make_sdist(index), sha256=hashlib.sha256(b"another").hexdigest())
    with pytest.raises(ToolchainError, match=r"(?s)the sdist of a-lib 1\.0 failed.*sha256"):
        fetch_sdist(sdist, tmp_path)
    assert not (index / "it-ran").exists()
    assert not list(tmp_path.glob("*.tar.gz"))


def test_the_hash_is_compared_whatever_pip_says(index: Path) -> None:
    sdist = replace(make_sdist(index), sha256="0" * 64)
    with pytest.raises(ToolchainError, match=r"a_lib-1\.0\.tar\.gz: sha256 is .*, expected 0{64}"):
        check_sdist(index / "a_lib-1.0.tar.gz", sdist)


def test_parts_are_unpacked_where_they_are_wanted(index: Path, tmp_path: Path) -> None:
    make_sdist(index, **{"src/lib.c": "int x;", "src/tests/t.c": "int y;"})
    unpack_sdist(
        index / "a_lib-1.0.tar.gz",
        tmp_path / "out",
        lambda path: "lib/x.c" if path == "src/lib.c" else None,
    )
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files == [tmp_path / "out" / "lib" / "x.c"]
    assert files[0].read_text() == "int x;"

"""Prebuilt runtimes: the wheel of a triple, and a build that takes it in place of compilers."""

from __future__ import annotations

import csv
import hashlib
import json
import zipfile
from base64 import urlsafe_b64encode
from dataclasses import replace
from pathlib import Path

import pytest

from edgepack.base import paths
from edgepack.base.paths import NotCachedError, only_cached
from edgepack.base.progress import make_progress
from edgepack.boards import get_board
from edgepack.native import prebuilt
from edgepack.native.app import build_runtime
from edgepack.native.device_tool import build_device_tool
from edgepack.native.emulate import plan_runner
from edgepack.native.toolchain import select
from edgepack.native.wheel_places import use_places
from tests import wheels

TRIPLE = "arm-linux-gnueabihf"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.make_wheel(wheels.wheel_boards()[TRIPLE], tmp_path_factory.mktemp("wheels"))


def test_a_wheel_is_the_same_again_and_says_what_it_holds(wheel: Path, tmp_path: Path) -> None:
    again = wheels.make_wheel(get_board("pynq"), tmp_path)  # another board of the triple
    assert again.read_bytes() == wheel.read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        record = next(name for name in names if name.endswith("RECORD"))
        rows = list(csv.reader(archive.read(record).decode().splitlines()))
        assert sorted(row[0] for row in rows) == sorted(names)
        for name, digest, size in rows:
            if name != record:
                data = archive.read(name)
                expected = urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                assert (digest, int(size)) == (f"sha256={expected}", len(data))
        bill = json.loads(archive.read(next(name for name in names if name.endswith("cdx.json"))))
        programs = [
            name for name in names if archive.read(name)[:4] == b"\x7fELF" or "/parts/" in name
        ]
        hashes = {hashlib.sha256(archive.read(name)).hexdigest() for name in programs}
    parts = bill["components"]
    assert {one["hashes"][0]["content"] for one in parts if "hashes" in one} == hashes
    assert len([name for name in programs if "/parts/" not in name]) == 4
    assert any(name.endswith("libopencv.a") for name in programs)
    assert {"opencv", "libsodium", "musl", "zstd"} <= {one["name"] for one in parts}
    assert {name.rpartition("/")[2] for name in names} >= {"opencv", "libsodium", "musl", "zstd"}


def test_what_is_installed_is_taken_if_it_is_of_these_sources(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = get_board("rasp3b")
    toolchain = select(board).toolchain
    built = build_runtime(board, toolchain), build_device_tool(board)
    runner = plan_runner(board)
    bare = replace(board, libc="none")
    parts = build_runtime(bare, select(bare).toolchain)
    monkeypatch.setattr(paths, "_cache_dir", tmp_path / "empty")
    said: list[str] = []
    told = make_progress(said.append)
    with only_cached(), pytest.raises(NotCachedError):
        build_device_tool(board, progress=told)
    why = f"building edgepack-device from source: edgepack-runtime-{TRIPLE} is not installed"
    assert said[0] == why

    # Of a folder of wheels that are not installed, with what has no C library.
    with monkeypatch.context() as patch:
        patch.setattr(paths, "_cache_dir", tmp_path / "placed")
        use_places([str(wheel.parent)])
        tool = build_device_tool(board)
        assert tool.path.read_bytes() == built[1].path.read_bytes()
        placed = build_runtime(board, toolchain)
        assert placed.app.read_bytes() == built[0].app.read_bytes()
        assert placed.gpu_app.read_bytes() == built[0].gpu_app.read_bytes()
        assert placed.licenses == built[0].licenses
        linked = build_runtime(bare, select(bare).toolchain)
        assert linked.licenses == parts.licenses
        for part in parts.app.iterdir():
            assert (linked.app / part.name).read_bytes() == part.read_bytes()
        use_places(())
        # As a dry run asks: nothing is fetched for that, and what was taken is there.
        with only_cached():
            assert build_device_tool(board).path == tool.path

    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    with only_cached():
        made = build_runtime(board, toolchain), build_device_tool(board)
        assert plan_runner(board).read_bytes() == runner.read_bytes()
    assert [made[0].licenses, made[1].licenses] == [built[0].licenses, built[1].licenses]
    assert made[0].app.read_bytes() == built[0].app.read_bytes()
    assert made[1].path.read_bytes() == built[1].path.read_bytes()

    # The app of other sources is not taken.
    (made[1].path.parent).rename(tmp_path / "site" / "other")
    with only_cached(), pytest.raises(NotCachedError):
        build_device_tool(board, progress=told)
    assert any("made with other sources, flags or compilers" in text for text in said)
    assert prebuilt.find_prebuilt("no-such-triple", "runtime", "x") is None

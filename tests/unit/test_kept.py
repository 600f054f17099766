"""Entries of the cache are compared with their hashes before they are used."""

from __future__ import annotations

import logging
import os
import random
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepack.base import kept, paths
from edgepack.base.errors import ConfigError, ToolchainError
from edgepack.base.kept import damage, keep, keep_file, zig_cache
from edgepack.base.paths import NotCachedError, cache_dir, locked, only_cached, set_cache_dir

ROOT = Path(__file__).parents[2]
FILES = {"model.so": b"\x7fELF" + bytes(300), "params.bin": bytes(range(256)), "a/b/c.json": b"{}"}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("edgepack.base.paths._cache_dir", None)
    set_cache_dir(tmp_path / "cache")
    return cache_dir()


class Maker:
    """Fills a folder with FILES and a link, and counts."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, work: Path) -> None:
        self.times += 1
        for name, content in FILES.items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_bytes(content)
        (work / "link").symlink_to("model.so")


def content(folder: Path) -> dict[str, bytes | str]:
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in folder.rglob("*")
        if not path.is_dir()
    }


MADE = {**FILES, "link": "model.so"}


def test_made_once(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    make = Maker()
    with only_cached(), pytest.raises(NotCachedError):
        keep(cache / "compiled/a", make)
    for _ in range(3):
        folder = keep(cache / "compiled/a", make)
        assert content(folder) == MADE
    assert make.times == 1 and not caplog.records
    with only_cached():
        keep(cache / "compiled/a", make)


def test_a_bit_anywhere(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    make = Maker()
    folder = keep(cache / "compiled/a", make)
    places = [
        (path, at)
        for path in (*(folder / name for name in FILES), folder.with_name("a.sha256"))
        for at in range(path.stat().st_size * 8)
    ]
    chosen = random.Random(1).sample(places, 500)
    for number, (path, at) in enumerate(chosen, 2):
        data = bytearray(path.read_bytes())
        data[at // 8] ^= 1 << at % 8
        path.write_bytes(data)
        keep(folder, make)
        assert make.times == number and content(folder) == MADE, (path, at)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 500 and all("compiled/a is damaged and made again" in one for one in said)


def _cut(folder: Path) -> None:
    os.truncate(folder / "params.bin", 100)


def _swap(folder: Path) -> None:
    (folder / "params.bin").unlink()
    (folder / "params.bin").symlink_to("model.so")


def _pipe(folder: Path) -> None:
    (folder / "params.bin").unlink()
    os.mkfifo(folder / "params.bin")


def _link(folder: Path) -> None:
    shutil.move(folder, folder.with_name("other"))
    folder.symlink_to("other")


@pytest.mark.parametrize(
    "harm",
    [
        _cut,
        _swap,
        _pipe,
        _link,
        lambda folder: (folder / "a/b/c.json").unlink(),
        lambda folder: (folder / "more").touch(),
        lambda folder: (folder / "link").rename(folder / "lynk"),
        lambda folder: shutil.rmtree(folder / "a"),
        lambda folder: folder.with_name("a.sha256").unlink(),
        lambda folder: folder.with_name("a.sha256").write_bytes(b"\xff"),
        lambda folder: (folder / "a").chmod(0o777),
        lambda folder: (folder / "model.so").chmod(0o664),
        lambda folder: folder.chmod(0o707),
    ],
)
def test_other_damage(
    cache: Path, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], object]
) -> None:
    make = Maker()
    folder = keep(cache / "compiled/a", make)
    harm(folder)
    assert content(keep(folder, make)) == MADE
    assert make.times == 2 and "made again" in caplog.text and damage(folder) is None


def test_a_file(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, made = cache / "verified/a", []

    def make() -> bytes:
        made.append(1)
        return b"verdict"

    assert keep_file(path, make) == keep_file(path, make) == b"verdict"
    assert made == [1]
    for number, harm in enumerate((b"verdicT", b"verd", b""), 2):
        path.write_bytes(harm)
        assert keep_file(path, make) == b"verdict"
        assert len(made) == number
    path.unlink()
    path.mkdir()
    assert keep_file(path, make) == b"verdict"
    assert len(caplog.records) == 4


def test_a_failed_making_leaves_what_was(cache: Path) -> None:
    make = Maker()
    folder = keep(cache / "compiled/a", make)
    (folder / "model.so").write_bytes(b"")

    def fail(work: Path) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        keep(folder, fail)
    assert damage(folder) is not None
    assert content(keep(folder, make)) == MADE


def test_whatever_the_umask(cache: Path) -> None:
    old = os.umask(0)
    try:
        folder = keep(cache / "new/kind/a", Maker())
    finally:
        os.umask(old)
    for path in (folder, *folder.rglob("*"), *folder.relative_to(cache).parents):
        assert not (cache / path).lstat().st_mode & 0o022 or path.is_symlink(), path
    assert damage(folder) is None


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o1777])
@pytest.mark.parametrize("where", ["", "compiled"])
def test_a_cache_that_others_write(cache: Path, mode: int, where: str) -> None:
    keep(cache / "compiled/a", Maker())
    (cache / where).chmod(mode)
    with pytest.raises(ConfigError, match="writable by others") as caught:
        keep(cache / "compiled/a", Maker())
    assert "chmod -R go-w" in str(caught.value.hint)


def test_a_cache_of_another_user(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(cache / "compiled/a", Maker())
    monkeypatch.setattr(paths.os, "geteuid", lambda: 4711)  # we are somebody else
    with pytest.raises(ConfigError, match="of another user"):
        cache_dir()


def test_a_folder_above_that_anybody_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgepack.base.paths._cache_dir", None)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    set_cache_dir(tmp_path / "open/cache")
    with pytest.raises(ConfigError, match="could be replaced by anybody"):
        cache_dir()
    (tmp_path / "open").chmod(0o1777)  # as /tmp: only the owner renames
    cache_dir()


def test_locks_do_not_follow_links(cache: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (cache / "compiled").mkdir()
    lock = cache / "compiled/a.lock"
    for target in (victim, tmp_path / "not-there"):
        lock.symlink_to(target)
        with pytest.raises(ConfigError, match="a lock of the cache"), locked(cache / "compiled/a"):
            pass
        lock.unlink()
    assert victim.read_text() == "precious" and not (tmp_path / "not-there").exists()
    for make, remove in ((os.mkfifo, os.unlink), (os.mkdir, os.rmdir)):
        make(lock)
        with pytest.raises(ConfigError, match="a lock of the cache"), locked(cache / "compiled/a"):
            pass
        remove(lock)
    lock.write_text("kept")
    with locked(cache / "compiled/a"):
        assert lock.read_text() == "kept"


def _zig_output(cache: Path, name: str, data: bytes) -> Path:
    output = cache / "zig/o" / name
    output.mkdir(parents=True)
    (output / "libc.a").write_bytes(data)
    return output / "libc.a"


@pytest.fixture
def another_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called, what this one has checked is forgotten."""
    return lambda: monkeypatch.setattr(kept, "_zig_checked", set())


def test_what_zig_keeps(
    cache: Path, caplog: pytest.LogCaptureFixture, another_process: Callable[[], None]
) -> None:
    with zig_cache() as env:
        assert env == {"ZIG_GLOBAL_CACHE_DIR": str(cache / "zig")}
        first = _zig_output(cache, "1", b"musl")
    with zig_cache():
        second = _zig_output(cache, "2", b"crt1")
    another_process()
    with zig_cache():
        assert first.exists() and not caplog.records
    another_process()
    second.write_bytes(b"crt0")
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        """Somebody who has been using it since before."""
        with paths.open_lock(cache / "zig") as lock:
            paths.fcntl.flock(lock, paths.fcntl.LOCK_SH)
            inside.set()
            leave.wait(60)
            assert second.exists()

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(60)
    threading.Timer(0.2, leave.set).start()
    with zig_cache():
        thread.join()
        assert not (cache / "zig").exists()
        assert "cache's zig is damaged and made again: o/2: not what was made" in caplog.text


def test_half_of_what_zig_makes_is_not_noted(
    cache: Path, caplog: pytest.LogCaptureFixture, another_process: Callable[[], None]
) -> None:
    with zig_cache():
        half = _zig_output(cache, "1", b"libc++, the first ha")
        with zig_cache():  # somebody else, who is done sooner
            _zig_output(cache, "2", b"crt1")
        half.write_bytes(b"libc++, whole")
    another_process()
    with zig_cache():
        assert not caplog.records
        half.write_bytes(b"and an end that nobody asked for")
    with pytest.raises(ToolchainError), zig_cache():  # zig was stopped
        cut = _zig_output(cache, "3", b"the first ha")
        raise ToolchainError("stopped")
    cut.write_bytes(b"whole")
    another_process()
    with zig_cache():
        assert not half.exists() and "o/1: not what was made" in caplog.text


def test_zig_runs_in_no_other_way() -> None:
    """What is run without the lock of its cache finds half of it gone."""
    told = [
        str(path.relative_to(ROOT))
        for folder in ("edgepack", "tests", "bench")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if re.search(r"ZIG_\w+_CACHE_DIR", path.read_text("utf-8"))
    ]
    assert told == ["edgepack/base/kept.py", "tests/unit/test_kept.py"]

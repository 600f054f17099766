from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from pathlib import Path

import pytest

from edgepack.base import cache
from edgepack.base.paths import atomic_dir, locked, set_cache_dir
from edgepack.cli import main
from tests.schemas import check_output

DAY_S = 24 * 3600


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("edgepack.base.paths._cache_dir", None)
    set_cache_dir(tmp_path)
    return tmp_path


def make(path: Path, *, days: float, size: int = 1000, lock: bool = True) -> Path:
    """An entry that was last used `days` ago, and made long before."""
    path.mkdir(parents=True)
    (path / "file").write_bytes(b"x" * size)
    os.utime(path, (0, 0))
    used = time.time() - days * DAY_S
    if lock:
        path.with_name(f"{path.name}.lock").touch()
        os.utime(path.with_name(f"{path.name}.lock"), (used, used))
    else:
        os.utime(path, (used, used))
    return path


def names(found: list[cache.CachedItem]) -> list[str]:
    return [f"{entry.kind}/{entry.path.name}" for entry in found]


def test_entries_are_what_locks_guard(folder: Path) -> None:
    make(folder / "compiled/a", days=3)
    make(folder / "made/rasp3b/tiny-1", days=9, lock=False)
    make(folder / "zig", days=1, lock=False)
    make(folder / "virtual/boards/rasp3b", days=99, lock=False)
    environment = make(folder / "venv-0", days=99, lock=False)
    (environment / "ready").touch()
    (folder / "pip.log").touch()
    (folder / "bundles").mkdir()
    (folder / "bundles/gone.lock").touch()
    os.utime(folder / "bundles/gone.lock", (0, 0))
    found = cache.entries(folder)
    assert names(found) == [
        "bundles/gone.lock", "made/tiny-1", "compiled/a", "zig/zig", "venv/venv-0"
    ]  # fmt: skip
    assert all(entry.size_bytes >= 4096 for entry in found[1:])


def test_a_lock_says_when_somebody_asked_last(folder: Path) -> None:
    path = make(folder / "compiled/a", days=50)
    [before] = cache.entries(folder)
    with locked(path):
        pass
    [after] = cache.entries(folder)
    assert before.used_at < time.time() - 49 * DAY_S
    assert after.used_at > time.time() - DAY_S


def test_the_longest_unused_go_and_never_what_was_used_today(folder: Path) -> None:
    for name, days in (("old", 40.0), ("older", 60.0), ("new", 2.0), ("today", 0.5)):
        make(folder / "compiled" / name, days=days)
    found = cache.entries(folder)
    size = found[0].size_bytes

    def chosen(days: float, *, max_bytes: int | None = None, keep: tuple[Path, ...] = ()) -> str:
        some = cache.choose(
            found, now=time.time(), unused_s=days * DAY_S, max_bytes=max_bytes, keep=keep
        )
        return " ".join(entry.path.name for entry in some)

    assert chosen(30) == "older old"
    assert chosen(50) == "older"
    assert chosen(0) == "older old new"
    assert chosen(1e6, max_bytes=2 * size) == "older old"
    assert chosen(50, max_bytes=2 * size) == "older old"
    assert chosen(1e6, max_bytes=0) == "older old new"
    assert chosen(1e6, max_bytes=4 * size) == ""
    inside = folder / "compiled/older/model.so"
    assert chosen(0, keep=(inside, folder / "compiled/new")) == "old"
    assert chosen(0, keep=(folder / "compiled",)) == ""


def test_what_is_locked_stays(folder: Path) -> None:
    path = make(folder / "compiled/a", days=50)
    left = folder / "compiled/.a.x1"  # of an `atomic_dir` that is at work, or was killed
    left.mkdir()
    found = cache.entries(folder)
    assert names(found) == ["compiled/a", "compiled/.a.x1"]
    with locked(path):
        assert [cache.remove(entry) for entry in found] == [False, False]
        assert (path / "file").exists()
    assert [cache.remove(entry) for entry in found] == [True, True]
    assert list((folder / "compiled").iterdir()) == []


def test_folders_that_cannot_be_read_are_removed(folder: Path) -> None:
    path = make(folder / "rootfs/bullseye", days=50)
    (path / "root/.ssh").mkdir(parents=True)
    (path / "link").symlink_to("/usr")
    (path / "root").chmod(0o000)
    [entry] = cache.entries(folder)
    assert cache.remove(entry)
    assert not path.exists()
    assert Path("/usr").exists()


def test_one_who_waited_for_a_lock_that_was_removed_takes_the_new_one(folder: Path) -> None:
    path = folder / "compiled/a"
    lock = folder / "compiled/a.lock"
    waiting, inside = threading.Event(), threading.Event()

    def wait() -> None:
        waiting.set()
        with locked(path), atomic_dir(path), lock.open("a") as other:
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            inside.set()

    with locked(path):
        thread = threading.Thread(target=wait)
        thread.start()
        waiting.wait()
        lock.unlink()
    thread.join(timeout=60)
    assert inside.is_set()
    assert path.exists()


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = make(folder / "compiled/old", days=40)
    make(folder / "bundles/new", days=2)
    where = ["--cache-dir", str(folder)]
    assert main(["cache", "--json", *where]) == 0
    shown = json.loads(capsys.readouterr().out)
    check_output("cache", shown)
    kinds = {kind["kind"]: kind for kind in shown["kinds"]}
    assert kinds["compiled"]["longest_unused_days"] == 40
    assert shown["size_bytes"] == sum(kind["size_bytes"] for kind in shown["kinds"])

    assert main(["cache", "prune", "--dry-run", *where]) == 0
    assert "would remove compiled/old" in capsys.readouterr().out
    assert old.exists()
    assert main(["cache", "prune", "--json", *where]) == 0
    answer = json.loads(capsys.readouterr().out)
    check_output("cache prune", answer)
    assert [item["path"] for item in answer["removed"]] == [str(old)]
    assert not old.exists()
    assert answer["left_bytes"] == kinds["bundles"]["size_bytes"]
    assert main(["cache", "prune", "--max-mb", "0", *where]) == 0
    assert "removed bundles/new" in capsys.readouterr().out
    assert main(["cache", "--max-mb", "0", *where]) == 2
    assert "only `cache prune` takes options" in capsys.readouterr().err

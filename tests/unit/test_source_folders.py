"""Where a model is from that lies in a clone of the hub, made by git, or in MLflow's folder."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepack.model.sources import ModelSource
from edgepack.model.sources.folders import origin_of
from tests.support import require_tool

LOGGED = Path(__file__).parents[1] / "fixtures" / "mlflow"
RUN, LOGGED_ID = "53488b6e40af4e5d8a568d2f02f94432", "m-f3afadfa27ab41029f5212cff1975be4"
MODEL = b"a model's bytes" * 100
URL = "https://user:token@huggingface.co/org/vit"


def git(folder: Path, *words: str, given: bytes = b"") -> str:
    """What git says in a folder."""
    command = [require_tool("git"), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    done = subprocess.run(
        [*command, *words], cwd=folder, input=given, capture_output=True, check=True
    )
    return done.stdout.decode().strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of two commits, with the model in a folder, and as LFS keeps it beside that."""
    origin = tmp_path / "origin"
    (origin / "onnx").mkdir(parents=True)
    git(origin, "init", "-q", "-b", "main")
    (origin / "a rather long name of a file.txt").write_text("first")
    git(origin, "add", "-A")
    git(origin, "commit", "-qm", "first")
    (origin / "onnx/model.onnx").write_bytes(MODEL)
    digest = hashlib.sha256(MODEL).hexdigest()
    (origin / "large.onnx").write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(MODEL)}\n"
    )
    git(origin, "add", "-A")
    git(origin, "commit", "-qm", "second")
    folder = tmp_path / "vit"
    git(tmp_path, "clone", "-q", str(origin), str(folder))
    git(folder, "remote", "set-url", "origin", URL)
    # As git-lfs does: the work tree has the content, the index its pointer.
    (folder / "large.onnx").write_bytes(MODEL)
    return folder


def _detached(folder: Path) -> None:
    git(folder, "checkout", "-q", "--detach")


def _packed(folder: Path) -> None:
    git(folder, "pack-refs", "--all", "--prune")
    assert not (folder / ".git/refs/heads/main").exists()


def _by_ssh(folder: Path) -> None:
    git(folder, "remote", "set-url", "origin", "git@hf.co:org/vit.git")


def _with_flags(folder: Path) -> None:
    # Version 3 of the index: flags of two bytes more.
    git(folder, "update-index", "--skip-worktree", "onnx/model.onnx")


@pytest.mark.parametrize("change", [None, _detached, _packed, _by_ssh, _with_flags])
@pytest.mark.parametrize("name", ["onnx/model.onnx", "large.onnx"])
def test_a_clone(clone: Path, change: Callable[[Path], None] | None, name: str) -> None:
    if change is not None:
        change(clone)
    commit = git(clone, "rev-parse", "HEAD")
    assert origin_of(clone / name) == ModelSource(
        uri=f"hf://org/vit@{commit}/{name}", name="org/vit", revision=commit
    )


def test_a_work_tree_of_a_clone(clone: Path, tmp_path: Path) -> None:
    git(clone, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    source = origin_of(tmp_path / "tree/onnx/model.onnx")
    assert source is not None
    assert source.revision == git(clone, "rev-parse", "other")


@pytest.mark.parametrize("name", ["onnx/model.onnx", "large.onnx"])
def test_what_is_not_the_commit_s_has_no_source(clone: Path, name: str) -> None:
    (clone / name).write_bytes(MODEL[:-1] + b"x")
    assert origin_of(clone / name) is None


def test_clones_that_say_nothing(clone: Path) -> None:
    model = clone / "onnx/model.onnx"
    (clone / "mine.onnx").write_bytes(MODEL)
    assert origin_of(clone / "mine.onnx") is None
    for url in (
        "https://github.com/org/vit",
        "https://huggingface.co.example/org/vit",
        "https://huggingface.co/datasets/org/vit",
        "https://[huggingface.co/a/b",
        "../vit",
    ):
        git(clone, "config", "remote.origin.url", url)
        assert origin_of(model) is None
    git(clone, "config", "remote.origin.url", URL)
    head = clone / ".git/HEAD"
    for text in ("ref: refs/heads/none", "ref: ../../secret", "\xff", "", "ref: refs/../HEAD"):
        head.write_text(text, encoding="latin-1")
        assert origin_of(model) is None
    head.write_text("ref: refs/heads/main\n")
    assert origin_of(model) is not None
    index = clone / ".git/index"
    data = index.read_bytes()
    for bad in (data[:50], data[:12], b"", b"DIRC\0\0\0\4" + data[8:], data[:12] + b"x" * 500):
        index.write_bytes(bad)
        assert origin_of(model) is None


def test_a_folder_of_mlflow_that_was_copied(tmp_path: Path) -> None:
    folder = tmp_path / "copied"
    shutil.copytree(LOGGED, folder)
    found = origin_of(folder / "model.onnx")
    assert found == ModelSource(uri=f"models:/{LOGGED_ID}", run_id=RUN)
    about = folder / "MLmodel"
    # As MLflow 2 wrote it.
    about.write_text("".join(
        line for line in about.read_text().splitlines(keepends=True) if LOGGED_ID not in line
    ))  # fmt: skip
    found = origin_of(folder / "model.onnx")
    assert found == ModelSource(uri=f"runs:/{RUN}", run_id=RUN)
    shutil.copy(folder / "model.onnx", folder / "other.onnx")
    assert origin_of(folder / "other.onnx") is None

"""Where a model is from that was not fetched by its address: the hub's clones, MLflow's folders.

Git's files are read as they lie there: HEAD, refs, packed-refs, config and index
(https://git-scm.com/docs/index-format). Nothing is run, and what cannot be read tells nothing.
"""

from __future__ import annotations

import hashlib
import re
import struct
from pathlib import Path
from urllib.parse import urlsplit

from edgepack.model.sources.mlflow import ABOUT, read_about
from edgepack.model.sources.record import (
    MOST_FOLDERS,
    ModelSource,
    read_record,
    sha256_of,
    source_of,
)

_COMMIT = re.compile(r"[0-9a-f]{40}")
_REF = re.compile(r"refs/[\w./+@-]+", re.ASCII)
_REMOTE = re.compile(r"\[remote\s+\"origin\"\]([^\[]*)")
_URL = re.compile(r"^\s*url\s*=\s*(\S+)\s*$", re.MULTILINE)
_REPO = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_HUB = ("huggingface.co", "hf.co")
_MOST_BYTES = 64 << 20


def origin_of(model: Path) -> ModelSource | None:
    """Where the file `model` is from: by the record of its fetching, a clone's commit, or MLflow.

    None if nothing says so, or it is not what the record or the clone's commit has.
    """
    path = model.absolute()
    if (source := source_of(path)) is not None:
        return source
    for folder in path.parents[:MOST_FOLDERS]:
        if read_record(folder) is not None:
            return None  # it was changed since
        if (folder / ABOUT).is_file():
            return _of_mlflow(folder, path)
        if (folder / ".git").exists():
            return _of_clone(folder, path)
    return None


def _of_mlflow(folder: Path, path: Path) -> ModelSource | None:
    about = read_about(folder)
    if about is None or (folder / about.file).resolve() != path.resolve():
        return None
    if about.model_id:
        return ModelSource(uri=f"models:/{about.model_id}", run_id=about.run_id)
    # Which of the run's models it is, MLmodel tells as a path, or not at all.
    return ModelSource(uri=f"runs:/{about.run_id}", run_id=about.run_id) if about.run_id else None


def _of_clone(folder: Path, path: Path) -> ModelSource | None:
    try:
        git, common = _git_folders(folder)
        repo = _hub_repository(_text(common / "config"))
        commit = _commit(git, common)
        name = path.relative_to(folder).as_posix()
        if repo is None or commit is None or not _is_as_in_index(git / "index", name, path):
            return None
    except (OSError, ValueError, struct.error):
        return None
    return ModelSource(uri=f"hf://{repo}@{commit}/{name}", name=repo, revision=commit)


def _git_folders(folder: Path) -> tuple[Path, Path]:
    """Git's folder of a work tree, and the one that all work trees of a repository share."""
    git = folder / ".git"
    if git.is_file():
        said = _text(git).strip()
        git = folder / said.removeprefix("gitdir:").strip()
    shared = git / "commondir"
    return git, git / _text(shared).strip() if shared.is_file() else git


def _text(file: Path) -> str:
    return _data(file).decode("utf-8")


def _data(file: Path) -> bytes:
    if file.stat().st_size > _MOST_BYTES:
        raise ValueError(file)
    return file.read_bytes()


def _hub_repository(config: str) -> str | None:
    """org/repo, if a clone's origin is the hub: by https, or by SSH as git@hf.co:org/repo."""
    remote = _REMOTE.search(config)
    url = _URL.search(remote[1]) if remote else None
    if url is None:
        return None
    text = url[1]
    if "://" not in text:
        host, _, rest = text.rpartition("@")[2].partition(":")
    else:
        parts = urlsplit(text)
        host, rest = parts.hostname or "", parts.path
    repo = rest.strip("/").removesuffix(".git")
    return repo if host in _HUB and _REPO.fullmatch(repo) and ".." not in repo else None


def _commit(git: Path, common: Path) -> str | None:
    """What HEAD is, through the ref that it names."""
    head = _text(git / "HEAD").strip()
    if _COMMIT.fullmatch(head):
        return head
    ref = head.removeprefix("ref:").strip()
    if not _REF.fullmatch(ref) or ".." in ref:
        return None
    if (common / ref).is_file():
        commit = _text(common / ref).strip()
        return commit if _COMMIT.fullmatch(commit) else None
    if (common / "packed-refs").is_file():
        for line in _text(common / "packed-refs").splitlines():
            digest, _, name = line.partition(" ")
            if name == ref and _COMMIT.fullmatch(digest):
                return digest
    return None


def _is_as_in_index(index: Path, name: str, path: Path) -> bool:
    """Whether the file has the content that was checked out: its own, or that of an LFS pointer."""
    wanted = _blob_in_index(_data(index), name.encode())
    size = path.stat().st_size
    pointer = (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256_of(path)}\nsize {size}\n"
    )
    if wanted == _blob(pointer.encode()):
        return True
    if wanted is None or size > _MOST_BYTES:
        return False
    return wanted == _blob(path.read_bytes())


def _blob(data: bytes) -> bytes:
    """Git's name of a content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).digest()


def _blob_in_index(data: bytes, name: bytes) -> bytes | None:
    """The name of what the index has at a path; None if it has none. Raises ValueError."""
    magic, version, count = struct.unpack_from(">4sII", data)
    if magic != b"DIRC" or version not in (2, 3):
        raise ValueError("an index of another form")
    at = 12
    for _ in range(count):
        (flags,) = struct.unpack_from(">H", data, at + 60)
        begin = at + (64 if flags & 0x4000 else 62)
        end = data.index(b"\0", begin)
        if data[begin:end] == name:
            return data[at + 40 : at + 60]
        # One to eight zero bytes make it a multiple of eight.
        at += (end - at) // 8 * 8 + 8
    return None

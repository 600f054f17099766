"""Models of the Hugging Face hub, by its own client: hf://org/repo[@revision][/path]."""

from __future__ import annotations

import hashlib
import importlib
import logging
import re
import shutil
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from edgepack.base.errors import EdgepackError, UsageError
from edgepack.model.errors import SourceError
from edgepack.model.sources import Wanted, check_inside, choose, is_model, weights_of
from edgepack.model.sources.record import ModelSource, client, sha256_of

log = logging.getLogger(__name__)

# A revision with slashes is a pull request's, or has them written as %2F.
_NAME = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>refs/pr/[0-9]+|[^/@]+))?(?:/(?P<path>.*))?",
    re.ASCII,
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
# What `edgepack init` reads beside a model.
_BESIDE = (
    *("config.json", "preprocessor_config.json"),
    *("labels.txt", "classes.txt", "imagenet_classes.txt"),
)
_MAX_BESIDE = 16 << 20
_LETTERS_OF_LFS = 64


def find(name: str) -> Wanted:
    """What `name` (without the scheme) stands for; its revision becomes a commit.

    Raises `UsageError` for a name that is none, or several models; `SourceError` if there is no
    such repository, revision or model, if the hub cannot be reached, or without the client.
    """
    match = _NAME.fullmatch(name)
    if match is None or ".." in match["repo"]:
        raise UsageError(
            f"hf://{name}: not a model of Hugging Face",
            hint="hf://org/repo, hf://org/repo@revision or hf://org/repo@revision/onnx/model.onnx",
        )
    repo, path = match["repo"], (match["path"] or "").strip("/")
    where = f"hf://{name}"
    if path:
        check_inside(path, where)
    revision = unquote(match["revision"]) if match["revision"] else None
    if revision and _COMMIT.fullmatch(revision) and is_model(path):
        # There is nothing to find out: what is kept already needs no hub.
        return _wanted(repo, revision, path, lambda folder: _fetch_pinned(
            repo, revision, path, folder
        ))  # fmt: skip
    commit, files = _ask(repo, revision, where)
    model = path
    if path not in files or not is_model(path):
        below = f"{path}/" if path else ""
        models = [one for one in sorted(files) if is_model(one) and one.startswith(below)]
        asked = f"hf://{repo}" + (f"@{match['revision']}" if match["revision"] else "")
        model = choose(models, where, lambda one: f"{asked}/{one}")
    return _wanted(repo, commit, model, lambda folder: _fetch(repo, commit, model, files, folder))


def _wanted(repo: str, commit: str, model: str, fetch: Callable[[Path], Sequence[Path]]) -> Wanted:
    source = ModelSource(uri=f"hf://{repo}@{commit}/{model}", name=repo, revision=commit)
    return Wanted(source=source, folder=repo.partition("/")[2], fetch=fetch)


def _ask(repo: str, revision: str | None, where: str) -> tuple[str, dict[str, Any]]:
    """The commit that a revision is, and what the hub says of each file in it."""
    hub = _client()
    with _told(where):
        info = hub.HfApi().model_info(repo, revision=revision, files_metadata=True)
    commit = info.sha
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise SourceError(f"{where}: the hub names no commit: {commit!r}")
    if _COMMIT.fullmatch(revision or "") and revision != commit:
        raise SourceError(f"{where}: the hub gives commit {commit} instead")
    return commit, {check_inside(one.rfilename, where): one for one in info.siblings or ()}


def _fetch(
    repo: str, commit: str, model: str, files: Mapping[str, Any], folder: Path
) -> Sequence[Path]:
    """The model's files and settings from the hub. Raises `SourceError`."""
    hub, at = _client(), f"hf://{repo}@{commit}"
    uri = f"{at}/{model}"

    def get(file: str) -> Path:
        if file not in files:
            raise SourceError(f"{uri}: weights are missing in the repository: {file}")
        with _told(f"{at}/{file}"):
            hub.hf_hub_download(repo, file, revision=commit, local_dir=folder)
        said = files[file]
        _check(folder / file, said.lfs.sha256 if said.lfs else said.blob_id, f"{at}/{file}")
        return folder / file

    own = get(model)
    parts = [own, *(get(file) for file in weights_of(own, model, uri))]
    for file in _settings(model, files):
        size = files[file].size or 0
        if size <= _MAX_BESIDE:
            get(file)
        else:
            log.warning(
                "%s/%s is left out: %d MB of settings, and at most %d are read",
                *(at, file, size >> 20, _MAX_BESIDE >> 20),
            )
    # What the client notes for its own sake.
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    return parts


def _fetch_pinned(repo: str, commit: str, model: str, folder: Path) -> Sequence[Path]:
    """The same of a commit, which never changes: from the client's own cache if it is there."""
    parts = _fetch_cached(repo, commit, model, folder)
    if parts is not None:
        return parts
    where = f"hf://{repo}@{commit}/{model}"
    _, files = _ask(repo, commit, where)
    if model not in files:
        raise SourceError(f"{where}: no such file in the repository")
    return _fetch(repo, commit, model, files, folder)


def _fetch_cached(repo: str, commit: str, model: str, folder: Path) -> list[Path] | None:
    """None unless the client's cache has the model, its weights, and settings of transformers'."""
    hub, uri = _client(), f"hf://{repo}@{commit}/{model}"

    def find(file: str) -> Path | None:
        found = hub.try_to_load_from_cache(repo, file, revision=commit)
        return Path(found) if isinstance(found, str) else None

    def copy(found: Path, file: str) -> Path:
        own = folder / file
        own.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(found, own)
        # A file of the cache is a link to its content, which is called as the hub names that.
        _check(own, found.resolve().name, f"{uri}: in the client's cache: {file}")
        return own

    at = find(model)
    if at is None or not at.is_symlink():
        return None
    weights = {file: find(file) for file in weights_of(at, model, uri)}
    beside = {file: found for file in _settings(model) if (found := find(file)) is not None}
    if None in weights.values() or not beside:
        return None
    for file, found in beside.items():
        if found.is_symlink() and found.stat().st_size <= _MAX_BESIDE:
            copy(found, file)
    return [copy(at, model), *(copy(found, file) for file, found in weights.items() if found)]


def _settings(model: str, files: Container[str] | None = None) -> Iterator[str]:
    """What may say more of the model, in its folder and those above, of `files` if given."""
    for folder in PurePosixPath(model).parents:
        for name in _BESIDE:
            file = (folder / name).as_posix()
            if files is None or file in files:
                yield file


def _check(file: Path, name: str, where: str) -> None:
    """Raise `SourceError` unless it is a file of the content that the hub calls `name`: by SHA-256
    if it keeps that apart (LFS), else by git's own."""
    if file.is_symlink() or not file.is_file():
        raise SourceError(f"{where}: did not arrive as a file")
    if len(name) == _LETTERS_OF_LFS:
        good = sha256_of(file) == name
    else:
        digest = hashlib.sha1(b"blob %d\0" % file.stat().st_size, usedforsecurity=False)
        with file.open("rb") as data:
            while block := data.read(1 << 20):
                digest.update(block)
        good = digest.hexdigest() == name
    if not good:
        raise SourceError(
            f"{where}: what was fetched is not what the repository lists", hint="fetch it again"
        )


def _client() -> Any:
    hub = client("huggingface_hub", "hf://", "edgepack[hf]", "huggingface_hub")
    importlib.import_module("huggingface_hub.utils").disable_progress_bars()
    return hub


@contextmanager
def _told(where: str) -> Iterator[None]:
    """The client's errors in our words. Raises `SourceError`."""
    from huggingface_hub import errors

    try:
        yield
    except EdgepackError:
        raise
    except errors.GatedRepoError:
        raise SourceError(
            f"{where}: its owner gives it to those who ask only",
            hint="ask on its page, then `hf auth login`, or set HF_TOKEN",
        ) from None
    except errors.RevisionNotFoundError:
        raise SourceError(f"{where}: no such revision") from None
    except errors.EntryNotFoundError as error:
        raise SourceError(
            f"{where}: no such file, or it cannot be reached: {_line(error)}"
        ) from None
    except errors.RepositoryNotFoundError:
        raise SourceError(
            f"{where}: no such repository, or not for you",
            hint="is it a model's? For a private one: `hf auth login`, or set HF_TOKEN",
        ) from None
    except Exception as error:
        # Of whichever library it speaks HTTP by; what is none of those is a bug.
        if not _is_of_the_network(error):
            raise
        raise SourceError(
            f"{where}: the hub cannot be reached: {_line(error)}",
            hint="without a network: copy the folder of the repository here, and name its .onnx",
        ) from None


def _is_of_the_network(error: Exception) -> bool:
    modules = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, OSError | ValueError) or any(
        one.startswith(("httpx", "httpcore", "requests")) for one in modules
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__

"""Models of the Hugging Face hub, by its own client: hf://org/repo[@revision][/path]."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from edgepack.base.errors import EdgepackError, UsageError
from edgepack.model.errors import SourceError
from edgepack.model.sources import Wanted, check_inside, choose, is_model, weights_of
from edgepack.model.sources.record import ModelSource, sha256_of

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
    hub = _client()
    revision = unquote(match["revision"]) if match["revision"] else None
    with _told(where):
        info = hub.HfApi().model_info(repo, revision=revision, files_metadata=True)
    commit = info.sha
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise SourceError(f"{where}: the hub names no commit: {commit!r}")
    if _COMMIT.fullmatch(revision or "") and revision != commit:
        raise SourceError(f"{where}: the hub gives commit {commit} instead")
    files = {check_inside(one.rfilename, where): one for one in info.siblings or ()}
    at = f"hf://{repo}@{commit}"
    model = path
    if path not in files or not is_model(path):
        below = f"{path}/" if path else ""
        models = [one for one in sorted(files) if is_model(one) and one.startswith(below)]
        asked = f"hf://{repo}" + (f"@{match['revision']}" if match["revision"] else "")
        model = choose(models, where, lambda one: f"{asked}/{one}")
    uri = f"{at}/{model}"
    source = ModelSource(uri=uri, name=repo, revision=commit)

    def fetch(folder: Path) -> Sequence[Path]:
        def get(file: str) -> Path:
            if file not in files:
                raise SourceError(f"{uri}: weights are missing in the repository: {file}")
            with _told(f"{at}/{file}"):
                hub.hf_hub_download(repo, file, revision=commit, local_dir=folder)
            _check(folder / file, files[file], f"{at}/{file}")
            return folder / file

        own = get(model)
        parts = [own, *(get(file) for file in weights_of(own, model, uri))]
        for file in _settings(model, files):
            get(file)
        # What the client notes for its own sake.
        shutil.rmtree(folder / ".cache", ignore_errors=True)
        return parts

    return Wanted(source=source, folder=repo.partition("/")[2], fetch=fetch)


def _settings(model: str, files: dict[str, Any]) -> Iterator[str]:
    """What says more of the model, in its folder and those above."""
    for folder in PurePosixPath(model).parents:
        for name in _BESIDE:
            file = (folder / name).as_posix()
            if file in files and (files[file].size or 0) <= _MAX_BESIDE:
                yield file


def _check(file: Path, said: Any, where: str) -> None:
    """Raise `SourceError` unless it is a file with the hash that the repository's list gives."""
    if file.is_symlink() or not file.is_file():
        raise SourceError(f"{where}: did not arrive as a file")
    lfs = said.lfs
    if lfs is not None:
        good = sha256_of(file) == lfs.sha256
    else:  # git's own name of the content
        digest = hashlib.sha1(b"blob %d\0" % file.stat().st_size, usedforsecurity=False)
        with file.open("rb") as data:
            while block := data.read(1 << 20):
                digest.update(block)
        good = digest.hexdigest() == said.blob_id
    if not good:
        raise SourceError(
            f"{where}: what arrived is not what the repository lists", hint="fetch it again"
        )


def _client() -> Any:
    try:
        import huggingface_hub
        from huggingface_hub.utils import disable_progress_bars
    except ImportError:
        raise SourceError(
            "hf://: the package huggingface_hub is not installed",
            hint="pip install 'edgepack[hf]', or pip install huggingface_hub",
        ) from None
    disable_progress_bars()
    return huggingface_hub


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

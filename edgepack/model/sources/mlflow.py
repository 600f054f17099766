"""Models of MLflow: its folders, and its registry by its own client."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from edgepack.base.errors import EdgepackError, UsageError
from edgepack.base.tables import read_text
from edgepack.model.errors import SourceError
from edgepack.model.sources.record import ModelSource, client

ABOUT = "MLmodel"
"""The file that makes a folder a model of MLflow."""
_MAX_BYTES = 1 << 20
_REGISTERED = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>[0-9]+))")
_LOGGED = re.compile(r"models:/(?P<id>m-[0-9a-f]{32})")
_OF_RUN = re.compile(r"runs:/(?P<run>[0-9a-f]{32})/(?P<path>[^/].*)")
_MOST_LETTERS = 200


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table that a model was trained on, by its name and MLflow's type."""

    name: str
    type: str


@dataclass(frozen=True, kw_only=True)
class About:
    """What an MLmodel file says: the model's file in its folder, the shape of each named input (-1
    is open) or the columns of a table, in their order, the run it was logged by, and the model's
    id, which MLflow gives since version 3."""

    file: str
    shapes: Mapping[str, tuple[int, ...]]
    columns: tuple[Column, ...]
    run_id: str
    model_id: str


def read_about(folder: Path) -> About | None:
    """What the folder's MLmodel says; None if it has none.

    Raises `SourceError` for a file that is none, has no ONNX, or names a file outside.
    """
    path = folder / ABOUT
    if not path.is_file():
        return None
    if path.stat().st_size > _MAX_BYTES:
        raise SourceError(f"{path}: larger than {_MAX_BYTES >> 20} MB")
    import yaml

    try:
        said = yaml.safe_load(read_text(path, error=SourceError))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SourceError(f"{path}: not YAML: {str(error)[:200]}") from None
    flavors = said.get("flavors") if isinstance(said, dict) else None
    onnx = flavors.get("onnx") if isinstance(flavors, dict) else None
    if not isinstance(onnx, dict):
        known = ", ".join(map(str, flavors))[:200] if isinstance(flavors, dict) else "none"
        raise SourceError(
            f"{path}: no flavor onnx (flavors: {known})",
            hint="log it with mlflow.onnx.log_model, exported to ONNX",
        )
    file = onnx.get("data")
    inside = folder.resolve()
    if not isinstance(file, str) or not (folder / file).resolve().is_relative_to(inside):
        raise SourceError(f"{path}: flavors.onnx.data: {file!r} is no file in its folder")
    inputs = _inputs(said.get("signature"))
    return About(
        file=file,
        shapes=_shapes(inputs),
        columns=_columns(inputs),
        run_id=_id(said.get("run_id"), "[0-9a-f]{32}"),
        model_id=_id(said.get("model_id"), "m-[0-9a-f]{32}"),
    )


def _id(said: object, pattern: str) -> str:
    return said if isinstance(said, str) and re.fullmatch(pattern, said) else ""


def columns_of(model: Path) -> tuple[Column, ...]:
    """The columns of the table that the file `model` takes, as the MLmodel beside it says; none if
    it says nothing, or is of another model."""
    try:
        about = read_about(model.parent)
    except SourceError:
        return ()
    if about is None or (model.parent / about.file).resolve() != model.resolve():
        return ()
    return about.columns


def _inputs(signature: object) -> list[dict[str, Any]]:
    """The signature's inputs; none if it is of another form."""
    text = signature.get("inputs") if isinstance(signature, dict) else None
    try:
        inputs = json.loads(text) if isinstance(text, str) else []
    except (ValueError, RecursionError):
        return []
    return [one for one in inputs if isinstance(one, dict)] if isinstance(inputs, list) else []


def _columns(inputs: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    """Those of a table, if all inputs are columns of names that differ."""
    found = []
    for one in inputs:
        name, kind = one.get("name"), one.get("type")
        if not isinstance(name, str) or not isinstance(kind, str) or kind == "tensor":
            return ()
        found.append(Column(name=name, type=kind))
    return tuple(found) if len({one.name for one in found}) == len(found) else ()


def _shapes(inputs: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
    """Of the tensors among the inputs; what is something else is passed over."""
    found = {}
    for one in inputs:
        spec = one.get("tensor-spec")
        shape = spec.get("shape") if isinstance(spec, dict) else None
        if isinstance(shape, list) and all(type(n) is int and n >= -1 for n in shape):
            found[str(one.get("name", ""))] = tuple(shape)
    return found


def find(name: str) -> tuple[ModelSource, str, Callable[[Path], Sequence[Path]]]:
    """What an address stands for: the very version, its folder's name, and what fetches it.

    Raises `UsageError` for an address that is none, and `SourceError` if there is no such model, if
    the server cannot be reached, or without the client.
    """
    registered, logged = _REGISTERED.fullmatch(name), _LOGGED.fullmatch(name)
    run = _OF_RUN.fullmatch(name)
    if not (registered or logged or run) or ".." in name or not name.isprintable():
        raise UsageError(
            f"{name[:_MOST_LETTERS]}: not a model of MLflow",
            hint="models:/name@alias, models:/name/3, models:/m-<id> or runs:/<run id>/model",
        )
    mlflow = client("mlflow", "models:/ and runs:/", "edgepack[mlflow]", "mlflow-skinny")
    version, run_id, model, revision = "", "", "", ""
    uri = name
    with _told(name):
        api = mlflow.MlflowClient()
        if registered:
            model = registered["name"]
            if registered["alias"]:
                found = api.get_model_version_by_alias(model, registered["alias"])
            else:
                found = api.get_model_version(model, registered["version"])
            version, run_id = str(found.version), found.run_id or ""
            uri = f"models:/{model}/{version}"
            # Another server may have a version of that number, too.
            revision = run_id or f"created {found.creation_timestamp}"
            check_place(api.get_model_version_download_uri(model, version), name, mlflow)
        elif run:
            run_id = run["run"]
            check_place(api.get_run(run_id).info.artifact_uri, name, mlflow)
        elif logged:
            about = api.get_logged_model(logged["id"])
            run_id, model = about.source_run_id or "", about.name or ""
            check_place(about.artifact_location, name, mlflow)

    def fetch(folder: Path) -> Sequence[Path]:
        from edgepack.model.sources import weights_beside

        got = folder / ".fetched"
        got.mkdir()
        with _told(uri):
            at = Path(mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=str(got)))
        if not at.resolve().is_relative_to(got.resolve()):
            raise SourceError(f"{uri}: what was fetched lies elsewhere: {at}")
        links = [one for one in got.rglob("*") if one.is_symlink()]
        if links:
            raise SourceError(f"{uri}: links are in it: {links[0].relative_to(got)}")
        if not at.is_dir():
            raise SourceError(
                f"{uri}: a file, not a model's folder", hint=f"name its folder ({ABOUT})"
            )
        for one in list(at.iterdir()):
            one.rename(folder / one.name)
        shutil.rmtree(got)
        said = read_about(folder)
        if said is None:
            raise SourceError(f"{uri}: no {ABOUT} in it", hint="name the folder of the model")
        own = folder / said.file
        if not own.is_file():
            raise SourceError(f"{uri}: {ABOUT} names {said.file}, which is not there")
        return [own, *weights_beside(own, said.file, folder, uri)]

    title = model or (run["path"].rsplit("/", 1)[-1] if run else logged["id"] if logged else "")
    source = ModelSource(
        uri=uri, name=model, version=version, run_id=run_id, revision="" if run_id else revision
    )
    return source, re.sub(r"[^A-Za-z0-9._+-]+", "-", title).lstrip("-.") or "model", fetch


def check_place(place: str, name: str, mlflow: Any) -> None:
    """Raise `SourceError` if a server in the network says that its files are this machine's."""
    is_remote = urlsplit(mlflow.get_tracking_uri()).scheme in ("http", "https")
    if is_remote and urlsplit(place or "").scheme in ("", "file"):
        raise SourceError(
            f"{name}: the server says that it lies on this machine: {str(place)[:_MOST_LETTERS]!r}",
            hint="start the server with --serve-artifacts (--artifacts-destination), or a store "
            "that both can reach",
        )


@contextmanager
def _told(where: str) -> Iterator[None]:
    """The client's errors in our words. Raises `SourceError`."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except EdgepackError:
        raise
    except MlflowException as error:
        line = " ".join(str(error).split())[:300]
        # The second is said of an alias that is not there.
        code = getattr(error, "error_code", "")
        if code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise SourceError(f"{where}: not there: {line}") from None
        raise SourceError(
            f"{where}: cannot be fetched: {line}",
            hint="is MLFLOW_TRACKING_URI the server's address?",
        ) from None
    except OSError as error:
        raise SourceError(f"{where}: cannot be fetched: {str(error)[:300]}") from None

"""Names of models that are no files yet: `hf://org/repo`, `models:/name@alias`, `oci://...`.

`local_model` is the one place where a name becomes a file; all commands and functions go through
it. What is fetched is checked against the hashes that the source gives, and never lies outside of
the folder it was fetched into.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edgepack.base.errors import UsageError
from edgepack.base.kept import keep
from edgepack.base.paths import atomic_dir, cache_dir
from edgepack.model.errors import SourceError
from edgepack.model.other_formats import check_format
from edgepack.model.sources.record import (
    ModelSource,
    is_unchanged,
    read_record,
    source_of,
    write_record,
)

__all__ = ["ModelSource", "is_source", "local_model", "source_of"]

# A Path has made one slash of two.
_NAME = re.compile(r"(?P<scheme>hf|models|oci|runs):/{1,2}(?P<rest>[^/].*)", re.DOTALL)
_ELSEWHERE = re.compile(r"(?P<scheme>https?|ftp|s3|gs|az|file):/{1,2}(?P<rest>.+)", re.DOTALL)
_ON_THE_HUB = re.compile(
    r"huggingface\.co/(?P<repo>[^/?#]+/[^/?#]+)"
    r"(?:/(?:resolve|blob|tree)/(?P<revision>[^/?#]+)(?P<path>/[^?#]+)?)?/?(?:[?#].*)?"
)
_OF_MODELS = (".onnx", ".tflite")
_MOST_NAMED = 20


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a name stands for, found out but not fetched.

    `source` is equal for the same content only; `folder` is what a folder of it is called.
    `fetch` fills a folder and returns the files of the model, its own file first.
    """

    source: ModelSource
    folder: str
    fetch: Callable[[Path], Sequence[Path]]


def is_source(model: str | Path) -> bool:
    """Whether this names a model that must be fetched."""
    return _NAME.fullmatch(str(model)) is not None and not Path(model).exists()


def local_model(model: str | Path, *, beside: Path | None = None) -> Path:
    """The file of a model: `model` itself, the one in that folder, or the one it is the address of.

    What has an address is fetched once: into a folder of its own in `beside`, where whoever names
    it there wants to keep it, else into the cache.

    Raises `UsageError` for a folder or a source with several models, and `SourceError` if the
    source cannot be reached, has no such model, or gives something else than it promised.
    """
    if not is_source(model):
        path = Path(model)
        if not path.exists() and (match := _ELSEWHERE.fullmatch(str(model))) is not None:
            raise _not_fetched(match)
        return model_in(path) if path.is_dir() else path
    match = _NAME.fullmatch(str(model))
    assert match is not None
    wanted = _find(match["scheme"], match["rest"])

    def make(folder: Path) -> None:
        write_record(folder, wanted.source, wanted.fetch(folder))

    if beside is None:
        digest = hashlib.sha256(wanted.source.to_json().encode()).hexdigest()[:24]
        top = keep(
            cache_dir() / "sources" / digest, lambda work: _make_inside(work, wanted.folder, make)
        )
        return _model_of(top / wanted.folder)
    folder = beside / wanted.folder
    if not folder.exists():
        with atomic_dir(folder) as work:
            make(work)
        return _model_of(folder)
    known = read_record(folder)
    if known is None or known[0] != wanted.source or not is_unchanged(folder, known[1]):
        raise UsageError(
            f"{folder} is there already, and is not what {model} names now",
            hint="move it away, or work in another folder",
        )
    return _model_of(folder)


def _not_fetched(match: re.Match[str]) -> UsageError:
    """Why an address is no model, and what to do."""
    scheme, rest = match["scheme"], match["rest"]
    hint = f"download it first: curl -fLO {shlex.quote(f'{scheme}://{rest}')}"
    if scheme in ("s3", "gs", "az", "file"):
        hint = "name a file that lies on this machine"
    if (hub := _ON_THE_HUB.fullmatch(rest)) is not None:
        revision = f"@{hub['revision']}" if hub["revision"] else ""
        hint = f"edgepack fetches hf://{hub['repo']}{revision}{hub['path'] or ''}"
    return UsageError(
        f"{scheme}://{rest}: an address of a kind that is not fetched; these are: hf://, oci://, "
        "models:/ and runs:/",
        hint=hint,
    )


def _find(scheme: str, rest: str) -> Wanted:
    """What an address stands for, by whoever knows its kind."""
    if scheme == "hf":
        from edgepack.model.sources import hugging_face

        return hugging_face.find(rest)
    if scheme == "oci":
        from edgepack.model.sources import oci

        return oci.find(rest)
    from edgepack.model.sources import mlflow

    source, folder, fetch = mlflow.find(f"{scheme}:/{rest}")
    return Wanted(source=source, folder=folder, fetch=fetch)


def _make_inside(work: Path, name: str, make: Callable[[Path], None]) -> None:
    (work / name).mkdir()
    make(work / name)


def _model_of(folder: Path) -> Path:
    found = read_record(folder)
    assert found is not None
    return folder / next(iter(found[1]))


def model_in(folder: Path) -> Path:
    """The model in a folder: the only one in it, or in a folder right below it.

    MLflow's file says which, where there is one. Raises `UsageError` for none, and for several.
    """
    from edgepack.model.sources.mlflow import read_about

    if (about := read_about(folder)) is not None:
        return folder / about.file
    names = [
        path.relative_to(folder).as_posix()
        for pattern in ("*", "[!.]*/*")
        for path in sorted(folder.glob(pattern))
        if is_model(path.name) and path.is_file()
    ]
    if not names:
        # What others call a model is a folder, too: the file in it says what it is.
        for path in (folder, *sorted(folder.iterdir())):
            check_format(path)
        raise UsageError(f"{folder}: not a file, and no model in it ({' or '.join(_OF_MODELS)})")
    return folder / choose(names, f"{folder}", lambda name: str(folder / name))


def choose(names: Sequence[str], where: str, named: Callable[[str], str]) -> str:
    """The only one of the models `names`; `named` is how another call would name one.

    Raises `UsageError` if there are several, `SourceError` if there is none.
    """
    if not names:
        raise SourceError(
            f"{where}: no model in it ({' or '.join(_OF_MODELS)})",
            hint="export it to ONNX: optimum-cli export onnx, torch.onnx.export, tf2onnx ...",
        )
    if len(names) > 1:
        shown = ", ".join(map(named, names[:_MOST_NAMED]))
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        raise UsageError(f"{where}: {len(names)} models in it", hint=f"name one: {shown}{more}")
    return names[0]


def is_model(name: str) -> bool:
    """Whether a file of this name is a model that is read here."""
    return name.endswith(_OF_MODELS)


def check_inside(name: str, where: str) -> str:
    """`name`, if it is a path that stays within any folder. Raises `SourceError`."""
    parts = name.split("/")
    if not name.isprintable() or "\\" in name or any(part in ("", ".", "..") for part in parts):
        raise SourceError(f"{where}: a file that would lie elsewhere: {name!r}")
    return name


def project_beside(model: Path) -> Path | None:
    """The edgepack.toml that was fetched with a model, if one was."""
    for folder in model.absolute().parents[:8]:
        if read_record(folder) is not None:
            file = folder / "edgepack.toml"
            return file if file.is_file() else None
    return None


def weights_of(own: Path, model: str, uri: str) -> list[str]:
    """The files beside `model` that hold weights of the ONNX model in `own`, inside its source."""
    if own.suffix != ".onnx":
        return []
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    from edgepack.model.external import external_files

    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(own.read_bytes())
    except DecodeError:
        raise SourceError(f"{uri}: not an ONNX model") from None
    folder = PurePosixPath(model).parent
    return [
        check_inside((folder / name).as_posix(), uri) for name in external_files(Path(uri), proto)
    ]


def weights_beside(own: Path, model: str, folder: Path, uri: str) -> list[Path]:
    """The files of weights of the model `model`, all fetched into `folder`.

    Raises `SourceError` if one is not there.
    """
    files = [folder / name for name in weights_of(own, model, uri)]
    for file in files:
        if not file.is_file():
            raise SourceError(f"{uri}: weights are missing in it: {file.relative_to(folder)}")
    return files

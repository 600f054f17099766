"""Models in OCI registries, by skopeo: oci://registry/name:tag, oci://registry/name@sha256:...

A model is an artefact of one layer for each file, whose name is in the annotation that ORAS, too,
writes: https://github.com/opencontainers/image-spec (annotations, artifacts).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from edgepack.base.errors import EdgepackError, UsageError
from edgepack.base.process import Finished, run
from edgepack.base.tables import Table, parse_json
from edgepack.base.tools import look_for
from edgepack.model.errors import SourceError
from edgepack.model.sources import Wanted, check_inside, choose, is_model, weights_beside
from edgepack.model.sources.record import ModelSource, sha256_of

_TITLE = "org.opencontainers.image.title"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_ARTEFACT = "application/vnd.edgepack.model.v1"
_EMPTY = b"{}"
_HOST = r"(?P<host>\[[0-9a-fA-F:]+\](?::[0-9]+)?|[A-Za-z0-9.-]+(?::[0-9]+)?)"
_PATH = r"(?P<path>[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)"
_NAME = re.compile(
    rf"{_HOST}/{_PATH}(?::(?P<tag>[\w][\w.-]{{0,127}})|@(?P<digest>sha256:[0-9a-f]{{64}}))?",
    re.ASCII,
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_MANIFEST = 1 << 20
_MAX_FILES = 2048
_MAX_BYTES = 8 << 30
_ASK_S = 300.0
# What a slow line brings: a transfer that takes longer has ended.
_SLOWEST_BYTES_S = 20e3
HINT = "oci://registry/name:tag, oci://registry/name@sha256:<64 digits>"


@dataclass(frozen=True, kw_only=True)
class RegistryName:
    """A name in a registry; `tag` is empty beside a `digest`, and the other way round."""

    host: str
    path: str
    tag: str
    digest: str = ""

    @staticmethod
    def parse(text: str) -> RegistryName:
        """Of "registry/name:tag". Raises `UsageError`."""
        match = _NAME.fullmatch(text)
        if match is None or len(match["path"]) > 255:
            raise UsageError(f"oci://{text[:300]}: not a name in a registry", hint=HINT)
        digest = match["digest"] or ""
        tag = "" if digest else match["tag"] or "latest"
        return RegistryName(host=match["host"], path=match["path"], tag=tag, digest=digest)

    def with_tag(self, tag: str) -> RegistryName:
        """Another tag of the same repository."""
        return replace(self, tag=tag, digest="")

    def at(self, digest: str = "") -> str:
        """As skopeo's transport names it, by a digest if one is given."""
        last = f"@{digest or self.digest}" if digest or self.digest else f":{self.tag}"
        return f"docker://{self.host}/{self.path}{last}"

    def __str__(self) -> str:
        return self.at().replace("docker://", "oci://")

    def tls(self, option: str) -> list[str]:
        """A registry on this machine may speak plain HTTP, as it may to docker."""
        name = self.host.rpartition(":")[0] if ":" in self.host else self.host
        return [f"--{option}=false"] if name in ("localhost", "127.0.0.1", "[::1]") else []


@dataclass(frozen=True, kw_only=True)
class _FileLayer:
    digest: str
    size: int


def find(name: str) -> Wanted:
    """What `name` (without the scheme) stands for; its tag becomes a digest.

    Raises `UsageError` for a name that is none, or several models; `SourceError` if there is no
    such artefact, it is none of files, or the registry cannot be asked.
    """
    reference = RegistryName.parse(name)
    done = run_skopeo(
        ["inspect", "--raw", *reference.tls("tls-verify"), reference.at()], str(reference), _ASK_S
    )
    raw = done.stdout.encode(errors="surrogateescape")
    digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    if reference.digest not in ("", digest):
        raise SourceError(f"{reference}: the registry gives {digest} instead")
    files = files_in(raw, str(reference))
    uri = f"oci://{reference.host}/{reference.path}@{digest}"
    model = choose([one for one in sorted(files) if is_model(one)], uri, lambda one: one)
    total = sum(layer.size for layer in files.values())

    def fetch(folder: Path) -> Sequence[Path]:
        got = folder / ".fetched"
        words = ["copy", "--quiet", *reference.tls("src-tls-verify"), reference.at(digest)]
        run_skopeo([*words, f"dir:{got}"], uri, copy_limit_s(total))
        for file, layer in files.items():
            blob = got / layer.digest.removeprefix("sha256:")
            if blob.is_symlink() or not blob.is_file() or sha256_of(blob) != blob.name:
                raise SourceError(f"{uri}: {file}: what was fetched is not what the artefact lists")
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            # Two files may be equal.
            shutil.copyfile(blob, folder / file)
        shutil.rmtree(got)
        own = folder / model
        return [own, *weights_beside(own, model, folder, uri)]

    source = ModelSource(uri=uri, name=reference.path, version=reference.tag, revision=digest)
    return Wanted(source=source, folder=PurePosixPath(reference.path).name, fetch=fetch)


def files_in(raw: bytes, where: str) -> dict[str, _FileLayer]:
    """The layers of an artefact's manifest by their names, which stay within any folder."""
    if len(raw) > _MAX_MANIFEST:
        raise SourceError(f"{where}: its manifest is larger than {_MAX_MANIFEST >> 20} MB")
    table = Table(parse_json(raw, file=where, error=SourceError), file=where, error=SourceError)
    layers = table.take("layers", list, None)
    if layers is None:
        raise SourceError(
            f"{where}: no artefact of files (an index, or of an old format)", hint=_made_by()
        )
    if len(layers) > _MAX_FILES:
        raise SourceError(f"{where}: {len(layers)} files; at most {_MAX_FILES}")
    found: dict[str, _FileLayer] = {}
    for layer in layers:
        entry: Mapping[str, Any] = layer if isinstance(layer, dict) else {}
        notes = entry.get("annotations")
        title = notes.get(_TITLE) if isinstance(notes, dict) else None
        digest, size = entry.get("digest"), entry.get("size")
        if not isinstance(title, str):
            raise SourceError(f"{where}: a layer without a file's name", hint=_made_by())
        check_inside(title, where)
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise SourceError(f"{where}: {title}: no SHA-256: {str(digest)[:100]!r}")
        if type(size) is not int or size < 0:
            raise SourceError(f"{where}: {title}: no size: {str(size)[:100]!r}")
        if title in found or any(_is_below(one, title) or _is_below(title, one) for one in found):
            raise SourceError(f"{where}: {title}: two files of one name")
        found[title] = _FileLayer(digest=digest, size=size)
    if (total := sum(layer.size for layer in found.values())) > _MAX_BYTES:
        raise SourceError(f"{where}: {math.ceil(total / 1e9)} GB; at most {_MAX_BYTES >> 30}")
    return found


def _is_below(one: str, other: str) -> bool:
    """Whether a file `one` would lie in the file `other`."""
    return one.startswith(f"{other}/")


def _made_by() -> str:
    return "`edgepack publish model`, or `oras push` with the files' names, makes such an artefact"


def push(folder: Path, files: Sequence[Path], name: str) -> str:
    """Put `files`, all of them in `folder`, into a registry as one artefact; its address by digest.

    Equal files give an equal digest. Raises `UsageError` for a name that is none or has a digest,
    `SourceError` if the registry does not take it.
    """
    reference = RegistryName.parse(name)
    if reference.digest:
        raise UsageError(f"{reference}: a digest is what becomes of the files", hint=HINT)
    with tempfile.TemporaryDirectory(prefix="edgepack-") as made:
        layout = Path(made)
        blobs = layout / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        layers = []
        for file in sorted(files):
            digest = sha256_of(file)
            shutil.copyfile(file, blobs / digest)
            title = check_inside(file.relative_to(folder).as_posix(), str(file))
            layers.append(
                {
                    "mediaType": "application/octet-stream",
                    "digest": f"sha256:{digest}",
                    "size": file.stat().st_size,
                    "annotations": {_TITLE: title},
                }
            )
        config = _kept(blobs, _EMPTY)
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "artifactType": _ARTEFACT,
            "config": {"mediaType": _ARTEFACT, **config},
            "layers": layers,
        }
        document = _kept(blobs, json.dumps(manifest, indent=2).encode())
        index = {
            "schemaVersion": 2,
            "manifests": [{"mediaType": _MANIFEST, **document}],
        }
        (layout / "index.json").write_text(json.dumps(index))
        (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        total = sum(layer["size"] for layer in layers if isinstance(layer["size"], int))
        send(layout, reference, total)
    return f"oci://{reference.host}/{reference.path}@{document['digest']}"


def send(
    layout: Path, reference: RegistryName, size_bytes: int, *, options: Sequence[str] = ()
) -> None:
    """Put the image layout `layout` into a registry. Raises `SourceError`."""
    words = ["copy", "--quiet", *options, *reference.tls("dest-tls-verify"), f"oci:{layout}"]
    run_skopeo([*words, reference.at()], str(reference), _ASK_S + size_bytes / _SLOWEST_BYTES_S)


def _kept(blobs: Path, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def run_skopeo(
    words: Sequence[str],
    where: str,
    timeout_s: float,
    error: type[EdgepackError] = SourceError,
) -> Finished:
    """Run it; what it says in our words. Raises `error`."""
    program = look_for("skopeo")
    if program is None:
        raise error("oci://: the program skopeo is not installed", hint="sudo apt install skopeo")
    done = run([program, *words], timeout_s=timeout_s, check=False, error=error)
    if done.returncode == 0:
        return done
    said = " ".join(done.stderr.split())[-300:]
    if re.search("manifest unknown|name unknown|not found", said):
        raise error(f"{where}: not there: {said}")
    if re.search("unauthorized|denied|authentication required", said):
        raise error(f"{where}: not for you: {said}", hint="skopeo login REGISTRY")
    raise error(f"{where}: the registry cannot be asked: {said}")


def copy_limit_s(size: int) -> float:
    """How long a transfer of that many bytes may take."""
    return _ASK_S + size / _SLOWEST_BYTES_S

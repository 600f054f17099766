"""An OCI image for docker, podman and balena, as an archive of the OCI image layout.

Its layers are Debian's libc6, of which the app needs the loader, libc and libm (a static bundle
needs none), and the bundle in /edgepack, by what changes together: programs, weights, the rest.
There is no shell and no installer in it: the container engine brings releases and takes them back.
The image runs as nobody and writes nowhere.

Written here, not by a tool, so that equal bundles and an equal libc6 give equal digests:
https://github.com/opencontainers/image-spec (1.0). Layers are plain tar, since the bytes of
a compressed one depend on the zlib; who sends them compresses them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from edgepack.base.errors import UsageError
from edgepack.base.kept import keep
from edgepack.base.paths import cache_dir
from edgepack.boards import Board
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.manifest import APP, PARAMS
from edgepack.formats.base import Package, PackageRequest, package, replace_when_done
from edgepack.virtual import apt

SUITE = "bookworm"
_PLATFORMS: dict[str, dict[str, str]] = {
    "armhf": {"architecture": "arm", "variant": "v7"},
    "arm64": {"architecture": "arm64", "variant": "v8"},
    "amd64": {"architecture": "amd64"},
}
_NOBODY = "65534:65534"
# What of libc6 and libgcc-s1 a program needs, and their licences.
_KEPT = ("lib", "lib32", "lib64", "libx32", "usr/lib", "usr/lib64", "usr/share/doc")
_EXCLUDED = (
    "/usr/lib/*/gconv/*",
    "/usr/share/lintian/*",
    *(f"/usr/share/doc/*/{name}*" for name in ("changelog", "NEWS", "README", "TODO")),
)
_IMAGE = "application/vnd.oci.image"
_HEX = 16
LAYOUT = json.dumps({"imageLayoutVersion": "1.0.0"}).encode()
"""The file that makes a folder an image layout."""


@dataclass(frozen=True, kw_only=True)
class Blob:
    """Bytes that are known by their SHA-256."""

    media_type: str
    data: bytes

    @cached_property
    def digest(self) -> str:
        """64 hex digits."""
        return hashlib.sha256(self.data).hexdigest()

    def descriptor(self, **more: Any) -> dict[str, Any]:
        """What a manifest says of it."""
        return {
            "mediaType": self.media_type,
            "digest": f"sha256:{self.digest}",
            "size": len(self.data),
            **more,
        }


@dataclass(frozen=True, kw_only=True)
class OciImage:
    """The manifest of an image, what it names, and the platform that it is for."""

    platform: Mapping[str, str]
    manifest: Blob
    config: Blob
    layers: Sequence[Blob]

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """All of it."""
        return (self.config, self.manifest, *self.layers)


def write(request: PackageRequest) -> Package:
    """Write `<name>-<board>-<release>.oci.tar`, tagged with the release.

    Raises what `image` raises.
    """
    made = image(request.bundle, request.board, request.options.epoch)
    target = request.file(".oci.tar")
    tag = {"org.opencontainers.image.ref.name": request.bundle.manifest.release}
    index = {
        "schemaVersion": 2,
        "manifests": [made.manifest.descriptor(platform=made.platform, annotations=tag)],
    }
    files = {
        "oci-layout": LAYOUT,
        "index.json": json.dumps(index, sort_keys=True).encode(),
        **{f"blobs/sha256/{blob.digest}": blob.data for blob in made.blobs},
    }
    with replace_when_done(target) as work:
        _write_archive(work / target.name, files, request.options.epoch)
    return package("oci", target, f"podman load -i {target.name}, or skopeo copy oci-archive:...")


def platform_of(board: Board) -> dict[str, str]:
    """The board's platform in OCI's words. Raises UsageError if there are none."""
    arch = board.debian_arch
    if arch not in _PLATFORMS:
        raise UsageError(f"no OCI platform for the architecture {arch} of {board.name}")
    return {"os": "linux", **_PLATFORMS[arch]}


def image(bundle: Bundle, board: Board, epoch: int = 0, *, compress: bool = False) -> OciImage:
    """The image of `bundle`; `compress` is for registries, whose layers are equal by one zlib.

    libc6 comes from Debian's archive once and then from the cache. Raises UsageError for
    an architecture that OCI has no name for, RootfsError if libc6 cannot be fetched.
    """
    manifest = bundle.manifest
    platform = platform_of(board)
    with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
        top = Path(name)
        shutil.copytree(bundle.path, top / "edgepack")
        paths = sorted(path for path in (top / "edgepack").rglob("*") if not path.is_dir())
        files = [str(path.relative_to(top)) for path in paths]
        programs = [file for file in files if file.startswith("edgepack/bin/")]
        weights = [file for file in files if Path(file).name == Path(PARAMS).name]
        rest = [file for file in files if file not in {*programs, *weights}]
        parts = [_layer(top, kept, epoch) for kept in (programs, weights, rest) if kept]
    titles = [f"edgepack: {manifest.folder_name}"] * len(parts)
    if not manifest.is_static:
        parts.insert(0, _layer(_base(board.debian_arch), _KEPT, epoch))
        titles.insert(0, f"libc6 of Debian {SUITE}")
    config = _json("config.v1", _config(bundle, parts, titles, platform))
    layers = [_compressed(part) for part in parts] if compress else parts
    document = _json(
        "manifest.v1",
        {
            "schemaVersion": 2,
            "mediaType": f"{_IMAGE}.manifest.v1+json",
            "config": config.descriptor(),
            "layers": [layer.descriptor() for layer in layers],
            "annotations": {
                "org.opencontainers.image.title": manifest.name,
                "org.opencontainers.image.version": str(manifest.version),
                "org.opencontainers.image.revision": manifest.release,
                "org.opencontainers.image.base.name": "scratch"
                if manifest.is_static
                else f"debian:{SUITE} (libc6)",
            },
        },
    )
    return OciImage(platform=platform, manifest=document, config=config, layers=layers)


def index_of(images: Mapping[str, OciImage]) -> Blob:
    """What stands for all of `images` (by board), of which an engine takes that of its platform."""
    entries = [
        one.manifest.descriptor(platform=one.platform, annotations={"edgepack.board": board})
        for board, one in sorted(images.items())
    ]
    return _json(
        "index.v1",
        {"schemaVersion": 2, "mediaType": f"{_IMAGE}.index.v1+json", "manifests": entries},
    )


def image_of_layer(layer: Blob, annotations: Mapping[str, str]) -> OciImage:
    """An image that is no program: `layer` alone, with annotations, as signatures are kept."""
    diff_ids = [f"sha256:{layer.digest}"]
    config = _json(
        "config.v1",
        {"architecture": "", "os": "", "rootfs": {"type": "layers", "diff_ids": diff_ids}},
    )
    manifest = _json(
        "manifest.v1",
        {
            "schemaVersion": 2,
            "mediaType": f"{_IMAGE}.manifest.v1+json",
            "config": config.descriptor(),
            "layers": [layer.descriptor(annotations=annotations)],
        },
    )
    return OciImage(platform={}, manifest=manifest, config=config, layers=[layer])


def _compressed(layer: Blob) -> Blob:
    return Blob(media_type=f"{layer.media_type}+gzip", data=gzip.compress(layer.data, 6, mtime=0))


def _config(
    bundle: Bundle, layers: Sequence[Blob], titles: Sequence[str], platform: dict[str, str]
) -> dict[str, Any]:
    manifest = bundle.manifest
    service = manifest.service
    return {
        **platform,
        "config": {
            "User": _NOBODY,
            "Entrypoint": [f"/edgepack/{APP}"],
            "Cmd": list(service.args) if service is not None else ["--golden"],
            "WorkingDir": "/",
            "Labels": {
                "edgepack.board": manifest.board,
                "edgepack.model": manifest.name,
                "edgepack.model-sha256": manifest.model.sha256,
                "edgepack.release": manifest.release,
                "edgepack.version": str(manifest.version),
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in layers]},
        "history": [{"created_by": title} for title in titles],
    }


def _json(kind: str, value: dict[str, Any]) -> Blob:
    return Blob(media_type=f"{_IMAGE}.{kind}+json", data=json.dumps(value, sort_keys=True).encode())


def _base(arch: str) -> Path:
    """The folder with libc6 of `arch`, unpacked and never run."""
    recipe = hashlib.sha256(json.dumps([SUITE, _KEPT, _EXCLUDED]).encode()).hexdigest()

    def make(work: Path) -> None:
        apt.unpack(["libc6"], work / "all", suite=SUITE, arch=arch, exclude=_EXCLUDED)
        for path in (work / "all").iterdir():
            path.rename(work / path.name)
        (work / "all").rmdir()

    return keep(cache_dir() / "oci" / f"{SUITE}-{arch}-{recipe[:_HEX]}", make)


def _layer(root: Path, kept: Iterable[str], epoch: int) -> Blob:
    """A tar of `kept` below `root`: names in order, everything root's, one time for all."""
    paths: set[Path] = set()
    for name in kept:
        top = root / name
        if top.is_symlink() or top.exists():
            paths |= {top, *(top.rglob("*") if not top.is_symlink() else ())}
            paths |= {parent for parent in top.parents if root in parent.parents}
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(paths):
            name = str(path.relative_to(root))
            info = _info(name, 0o755 if path.is_dir() or _executable(path) else 0o644, epoch)
            if path.is_symlink():
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
                archive.addfile(info)
            elif path.is_dir():
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            else:
                info.size = path.stat().st_size
                with path.open("rb") as file:
                    archive.addfile(info, file)
    return Blob(media_type=f"{_IMAGE}.layer.v1.tar", data=data.getvalue())


def _executable(path: Path) -> bool:
    return bool(path.lstat().st_mode & 0o100)


def _info(name: str, mode: int, epoch: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = mode, epoch
    return info


def _write_archive(path: Path, files: dict[str, bytes], epoch: int) -> None:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for folder in ("blobs", "blobs/sha256"):
            info = _info(folder, 0o755, epoch)
            info.type = tarfile.DIRTYPE
            archive.addfile(info)
        for name, data in files.items():
            info = _info(name, 0o644, epoch)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))

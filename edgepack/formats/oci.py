"""An OCI image for docker, podman and balena, as an archive of the OCI image layout.

Two layers: Debian's libc6, of which the app needs the loader, libc and libm, and the
bundle in /edgepack; of a static bundle the second alone. There is no shell and no installer
in it: the container engine brings releases and takes them back. The image runs as nobody
and writes nowhere.

Written here, not by a tool, so that equal bundles and an equal libc6 give equal digests:
https://github.com/opencontainers/image-spec (1.0). Layers are plain tar, since the bytes of
a compressed one depend on the zlib; registries compress what they are sent.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepack.base.errors import UsageError
from edgepack.base.kept import keep
from edgepack.base.paths import cache_dir
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.manifest import APP
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


@dataclass(frozen=True, kw_only=True)
class _Blob:
    media_type: str
    data: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def descriptor(self, **more: Any) -> dict[str, Any]:
        return {
            "mediaType": self.media_type,
            "digest": f"sha256:{self.digest}",
            "size": len(self.data),
            **more,
        }


def write(request: PackageRequest) -> Package:
    """Write `<name>-<board>-<release>.oci.tar`, tagged with the release.

    libc6 comes from Debian's archive once and then from the cache. Raises UsageError for
    an architecture that OCI has no name for, RootfsError if libc6 cannot be fetched.
    """
    bundle, manifest = request.bundle, request.bundle.manifest
    arch = request.board.debian_arch
    if arch not in _PLATFORMS:
        raise UsageError(f"no OCI platform for the architecture {arch} of {request.board.name}")
    target = request.file(".oci.tar")
    with replace_when_done(target) as work:
        shutil.copytree(bundle.path, work / "top/edgepack")
        layers = [_layer(work / "top", ("edgepack",), request.options.epoch)]
        if not manifest.is_static:
            layers.insert(0, _layer(_base(arch), _KEPT, request.options.epoch))
        platform = {"os": "linux", **_PLATFORMS[arch]}
        config = _json("config.v1", _config(bundle, layers, platform))
        image = _json(
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
        tag = {"org.opencontainers.image.ref.name": manifest.release}
        index = {
            "schemaVersion": 2,
            "manifests": [image.descriptor(platform=platform, annotations=tag)],
        }
        files = {
            "oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode(),
            "index.json": json.dumps(index, sort_keys=True).encode(),
            **{f"blobs/sha256/{blob.digest}": blob.data for blob in (config, image, *layers)},
        }
        _write_archive(work / target.name, files, request.options.epoch)
    return package("oci", target, f"podman load -i {target.name}, or skopeo copy oci-archive:...")


def _config(bundle: Bundle, layers: Sequence[_Blob], platform: dict[str, str]) -> dict[str, Any]:
    service = bundle.manifest.service
    return {
        **platform,
        "config": {
            "User": _NOBODY,
            "Entrypoint": [f"/edgepack/{APP}"],
            "Cmd": list(service.args) if service is not None else ["--golden"],
            "WorkingDir": "/",
            "Labels": {"edgepack.board": bundle.manifest.board},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.digest}" for layer in layers]},
        "history": [
            {"created_by": f"libc6 of Debian {SUITE}"},
            {"created_by": f"edgepack: {bundle.manifest.folder_name}"},
        ],
    }


def _json(kind: str, value: dict[str, Any]) -> _Blob:
    return _Blob(
        media_type=f"{_IMAGE}.{kind}+json", data=json.dumps(value, sort_keys=True).encode()
    )


def _base(arch: str) -> Path:
    """The folder with libc6 of `arch`, unpacked and never run."""
    recipe = hashlib.sha256(json.dumps([SUITE, _KEPT, _EXCLUDED]).encode()).hexdigest()

    def make(work: Path) -> None:
        apt.unpack(["libc6"], work / "all", suite=SUITE, arch=arch, exclude=_EXCLUDED)
        for path in (work / "all").iterdir():
            path.rename(work / path.name)
        (work / "all").rmdir()

    return keep(cache_dir() / "oci" / f"{SUITE}-{arch}-{recipe[:_HEX]}", make)


def _layer(root: Path, kept: Iterable[str], epoch: int) -> _Blob:
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
    return _Blob(media_type=f"{_IMAGE}.layer.v1.tar", data=data.getvalue())


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

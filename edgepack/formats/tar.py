"""The bundle as a tarball: for SSH-less boards, and for nobody else's update system."""

from __future__ import annotations

from edgepack.bundle.bundle import write_tarball
from edgepack.formats.base import Package, PackageRequest, package


def write(request: PackageRequest) -> Package:
    """Write `<name>-<board>-<release>.tar.gz`."""
    path = request.file(".tar.gz")
    write_tarball(request.bundle, path, mtime=request.options.epoch)
    return package("tar", path, f"tar xf {path.name} && {request.bundle.path.name}/install")

"""A Debian package: apt brings the bundle, the bundle's own installer makes it run.

The package holds the bundle in /usr/lib/edgepack/<name>. Its postinst installs from there
into /var/lib/edgepack/<name>: verified, tested on the device, switched in one step. A
release that fails its test fails the package's configuration, and the one before it runs
on, which plain files in a package could not do: dpkg has replaced them by then. The price
is the disk, which holds the bundle twice.
"""

from __future__ import annotations

import logging
import re
import shutil

from edgepack.base.errors import BundleError
from edgepack.bundle.manifest import Manifest
from edgepack.deploy.service_files import GPU_GROUPS, Place, own_tool, systemd_unit
from edgepack.formats.base import (
    Package,
    PackageRequest,
    need_installer,
    package,
    plain_modes,
    replace_when_done,
    run_tool,
    script,
)

log = logging.getLogger(__name__)

_SCRIPTS = ("postinst", "prerm", "postrm")
# deb-control(5): lower case, at least two signs, the first of them a letter or digit.
_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]+")


def package_name(manifest: Manifest) -> str:
    """`common_name`, and the board: packages for boards of one architecture differ."""
    return f"{common_name(manifest)}-{_spelled(manifest.board)}"


def common_name(manifest: Manifest) -> str:
    """ "edgepack-" and the bundle's name as Debian spells it: `Cat_or_Dog` is cat-or-dog.

    What all boards' packages of a name provide, so that a device has one of them.
    """
    name = f"edgepack-{_spelled(manifest.name)}"
    if not _NAME.fullmatch(name):
        raise BundleError(f"{manifest.name!r} cannot be made the name of a Debian package")
    return name


def _spelled(name: str) -> str:
    return re.sub(r"[^a-z0-9.+-]", "-", name.lower())


def package_version(manifest: Manifest) -> str:
    """The release number, which orders, and the release's id, which tells apart."""
    return f"{manifest.version}+{manifest.release}"


def write(request: PackageRequest) -> Package:
    """Write `<package>_<version>_<architecture>.deb` with dpkg-deb."""
    bundle, manifest = request.bundle, request.bundle.manifest
    need_installer(bundle)
    if manifest.version == 0:
        log.warning(
            "%s has version 0: apt cannot tell which of two releases is the newer one; set "
            "`version` in edgepack.toml",
            manifest.name,
        )
    name, version = package_name(manifest), package_version(manifest)
    target = request.out / f"{name}_{version}_{request.board.debian_arch}.deb"
    values = {"NAME": manifest.name, "PACKAGE": name}
    with replace_when_done(target) as work:
        root = work / "root"
        shutil.copytree(bundle.path, root / "usr/lib/edgepack" / manifest.name)
        if manifest.service is not None:
            releases = f"/var/lib/edgepack/{manifest.name}"
            place = Place(
                name=manifest.name,
                root=releases,
                owner="root",
                tool=own_tool(releases),  # root's, as the whole folder is
                account=manifest.service.user,
                gpu_groups=GPU_GROUPS if manifest.runs_on_gpu else None,
            )
            unit = root / "lib/systemd/system" / place.unit
            unit.parent.mkdir(parents=True)
            unit.write_text(systemd_unit(place, manifest.service))
        control = root / "DEBIAN"
        control.mkdir()
        (control / "control").write_text(_control(request, name, version))
        for kind in _SCRIPTS:
            (control / kind).write_text(script(f"deb-{kind}.sh", values))
            (control / kind).chmod(0o755)
        plain_modes(root)
        # xz: the dpkg of older systems reads no zstd. One thread: more give other bytes.
        run_tool(
            "dpkg-deb",
            ["--root-owner-group", "-Zxz", "--build", root, work / target.name],
            env={"SOURCE_DATE_EPOCH": str(request.options.epoch), "DPKG_DEB_THREADS_MAX": "1"},
        )
    return package("deb", target, f"apt install ./{target.name}")


def _control(request: PackageRequest, name: str, version: str) -> str:
    manifest = request.bundle.manifest
    installed_kb = -(-manifest.total_bytes // 1024)
    libc = "" if manifest.is_static else f"Depends: libc6 (>= {manifest.compatible.glibc})\n"
    common = common_name(manifest)
    return f"""Package: {name}
Version: {version}
Architecture: {request.board.debian_arch}
Maintainer: nobody <nobody@localhost>
Installed-Size: {installed_kb}
{libc}Provides: {common}
Conflicts: {common}
Replaces: {common}
Section: misc
Priority: optional
Description: {manifest.name} for {manifest.board}, release {manifest.release}
 The model {manifest.model.file}, compiled ahead of time, and the program that runs it.
 .
 It is tested on the device while it is installed; if the test fails, the release
 before it stays.
"""

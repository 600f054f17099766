"""A static bundle as parts of an Android app.

Since Android 10 (targetSdk 29) an app may only start programs that lie in the folder of its native
libraries (https://developer.android.com/about/versions/10/behavior-changes-10), where the package
manager puts what an APK has as `lib/<ABI>/lib*.so`.
"""

from __future__ import annotations

import time
import zipfile

from edgepack.base.errors import UsageError
from edgepack.bundle.manifest import APP, DEVICE_TOOL, INSTALL, MANIFEST_NAME
from edgepack.formats.base import Package, PackageRequest, package, replace_when_done

_LIBRARY = "libedgepack_run.so"
# https://developer.android.com/ndk/guides/abis
_ABIS = {"armhf": "armeabi-v7a", "arm64": "arm64-v8a", "amd64": "x86_64"}
# What a ZIP file can say at the earliest.
_EPOCH_1980 = 315532800


def write(request: PackageRequest) -> Package:
    """Write `<name>-<board>-<release>.android.zip`, to be unpacked in an app's src/main.

    Equal bundles give equal bytes. Raises UsageError for a bundle that needs a C library.
    """
    bundle, manifest = request.bundle, request.bundle.manifest
    if not manifest.is_static:
        raise UsageError(
            f"android-lib: the bundle for {manifest.board} needs glibc, which Android has not",
            hint="add --static, or take --board android-arm64",
        )
    assets = f"assets/{manifest.name}"
    names = {APP: f"jniLibs/{_ABIS[request.board.debian_arch]}/{_LIBRARY}"}
    files = [name for name in manifest.files if name not in (DEVICE_TOOL, INSTALL)]
    content = {
        names.get(name, f"{assets}/{name}"): bundle.file(name) for name in (MANIFEST_NAME, *files)
    }
    target = request.file(".android.zip")
    date = time.gmtime(max(request.options.epoch, _EPOCH_1980))[:6]
    with (
        replace_when_done(target) as work,
        zipfile.ZipFile(work / target.name, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name, path in sorted(content.items()):
            info = zipfile.ZipInfo(name, date_time=date)
            info.external_attr = 0o100644 << 16
            archive.writestr(info, path.read_bytes())
    return package("android-lib", target, f"unzip {target.name} -d app/src/main")

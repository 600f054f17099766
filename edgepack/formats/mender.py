"""A Mender artifact for the update module `edgepack`, which is written beside it.

The module lies on the device in /usr/share/mender/modules/v3/edgepack. It hands the bundle
to its installer, and gives Mender's rollback the release that was current before.
"""

from __future__ import annotations

from edgepack.bundle.bundle import write_tarball
from edgepack.formats.base import (
    Package,
    PackageRequest,
    need_installer,
    package,
    replace_when_done,
    run_tool,
    script,
)

MODULE = "edgepack"


def write(request: PackageRequest) -> Package:
    """Write `<name>-<board>-<release>.mender` and the module `mender-module-edgepack`.

    With a key the artifact is signed. Mender-artifact puts the time of day into its
    headers, so two artifacts of one bundle differ.
    """
    bundle = request.bundle
    need_installer(bundle)
    target = request.file(".mender")
    module = request.out / f"mender-module-{MODULE}"
    with replace_when_done(target) as work:
        write_tarball(bundle, work / "bundle.tar.gz", mtime=request.options.epoch)
        (work / "name").write_text(f"{bundle.manifest.name}\n")
        words: list[str] = ["write", "module-image", "--type", MODULE, "--compression", "none"]
        words += ["--artifact-name", bundle.manifest.folder_name]
        words += ["--device-type", request.device_kind]
        words += ["--software-name", bundle.manifest.name]
        words += ["--software-version", str(bundle.manifest.version)]
        words += ["--file", str(work / "bundle.tar.gz"), "--file", str(work / "name")]
        if request.options.key is not None:
            words += ["--key", str(request.options.key)]
        run_tool("mender-artifact", [*words, "--output-path", work / target.name])
    module.write_text(script("mender-module.sh", {}))
    module.chmod(0o755)
    return package("mender", target, f"mender install {target.name}")

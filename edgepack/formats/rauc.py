"""A RAUC bundle with a handler of its own: it brings a release, not a system image.

RAUC checks the signature and `compatible`, mounts the bundle and starts the handler, which
starts the installer. No slot is written and the boot order stays as it is.
"""

from __future__ import annotations

import shutil

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

_MANIFEST = """[update]
compatible={compatible}
version={version}
description={description}

[bundle]
format=plain

[handler]
filename=handler
"""


def write(request: PackageRequest) -> Package:
    """Write `<name>-<board>-<release>.raucb`, signed with the key and certificate given.

    The signature holds its time, so two files of one bundle differ.
    """
    bundle, manifest = request.bundle, request.bundle.manifest
    need_installer(bundle)
    target = request.file(".raucb")
    with replace_when_done(target) as work:
        content = work / "content"
        shutil.copytree(bundle.path, content / "bundle")
        (content / "manifest.raucm").write_text(
            _MANIFEST.format(
                compatible=request.device_kind,
                version=f"{manifest.version}+{manifest.release}",
                description=f"{manifest.name} for {manifest.board}",
            )
        )
        (content / "handler").write_text(script("rauc-handler.sh", {"NAME": manifest.name}))
        (content / "handler").chmod(0o755)
        plain_modes(content)
        words = ["bundle", f"--cert={request.options.cert}", f"--key={request.options.key}"]
        run_tool("rauc", [*words, content, work / target.name])
    return package("rauc", target, f"rauc install {target.name}")

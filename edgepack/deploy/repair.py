"""`edgepack repair`: what a rotten card damaged, the device tool itself included."""

from __future__ import annotations

from dataclasses import replace

from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.bundle.manifest import DEVICE_TOOL, MANIFEST_NAME, parse_manifest
from edgepack.deploy import remote_service, remote_tool
from edgepack.deploy.answers import Repaired
from edgepack.deploy.remote_app import need_release
from edgepack.deploy.remote_tool import Layout
from edgepack.device import Device
from edgepack.device.facts import gather
from edgepack.device.patience import Pace


def repair(device: Device, root: str, *, progress: Progress = NO_PROGRESS) -> Repaired:
    """Have `device` mend its releases below `root`; bring the device tool, if it does not run.

    That one is built here, for what the current release is for. Raises BundleError,
    RemoteError, ToolchainError, and what `remote_tool.call` raises.
    """
    layout = Layout.of(root)
    facts = gather(device, layout.root)
    if facts.protocol:
        return remote_tool.repair(device, root)
    need_release(device, layout.root)
    manifest = device.run(layout.enter(f"cat current/{MANIFEST_NAME}")).stdout
    progress.step(f"copying {DEVICE_TOOL} there again: the one there does not run")
    triple = parse_manifest(manifest.encode()).compatible.triple
    tool = remote_service.tool_for(layout.root, triple)
    remote_tool.put_tool(
        device, layout, tool.path, tool.sha256, sha256sum=facts.sha256sum, pace=Pace(None)
    )
    answer = remote_tool.repair(device, root)
    mended = (f"{DEVICE_TOOL}: it did not run, and was brought anew", *answer.mended)
    document = {**answer.document, "mended": list(mended)}
    return replace(answer, mended=mended, document=document)

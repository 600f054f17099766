"""The one act of deploying, for the command line, `edgepack.deploy` and fleets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.bundle.bundle import Bundle
from edgepack.deploy import remote_service
from edgepack.deploy.deploy import PhaseLimits, Report, deploy_bundle
from edgepack.deploy.options import DEFAULT_OPTIONS, DeployOptions
from edgepack.deploy.other_model import check_same_model
from edgepack.device import Device
from edgepack.device.limit import limited

SERVICE_S = 1800.0
"""A dozen commands, and root's own copy of the device tool."""


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """What a deploy did; `service` is what starts the release, None if nothing was asked for."""

    report: Report
    service: Mapping[str, Any] | None = None


def deploy_and_start(
    bundle: Bundle,
    device: Device,
    root: str,
    *,
    options: DeployOptions = DEFAULT_OPTIONS,
    service: bool = False,
    progress: Progress = NO_PROGRESS,
) -> Deployed:
    """What was done: `bundle` is the current release below `root`, and with `service` it runs.

    Raises `NoServiceError` before anything is done if the bundle has no service, `OtherModelError`
    if a release of another model would be replaced without `options.replace_model`, and what
    `deploy_bundle` and `remote_service.install` raise.
    """
    if service:
        need_service_of(bundle)
    if not options.replace_model:
        check_same_model(
            device,
            root,
            bundle,
            retries=options.retries,
            limit_s=PhaseLimits.of(bundle, options).facts_s,
            progress=progress,
        )
    report = deploy_bundle(bundle, device, root, options=options, progress=progress)
    if not service:
        return Deployed(report=report)
    progress.step(f"release {report.release} is current; starting it as a service")
    with limited(device, SERVICE_S, "installing the service"):
        started = remote_service.install(device, root, wanted=bundle.manifest.service)
    return Deployed(report=report, service=started)


def need_service_of(bundle: Bundle) -> None:
    """Raise `NoServiceError` if the bundle does not say how it runs as a service."""
    manifest = bundle.manifest
    remote_service.need_service(manifest.service, f"bundle {manifest.name}")

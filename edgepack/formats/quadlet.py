"""A unit for podman's quadlet: a container that updates itself, and goes back by itself.

`podman auto-update` takes what the image's name stands for in the registry and restarts the unit.
That has started once the golden test has passed in the container (`Notify=healthy`); if it does
not, podman goes back to the image before: https://docs.podman.io (podman-systemd.unit,
podman-auto-update). It does so only within that update, so the unit has a name for the image that
passed last, and goes back to it by itself when an update was cut in the middle of its test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from edgepack.base.errors import UsageError
from edgepack.bundle.manifest import APP, CPU_FOLDER, Manifest
from edgepack.bundle.service import Service, access
from edgepack.bundle.service_access import Access

# The groups' numbers in Debian, and in all that is made of it (its package base-passwd): the image
# has no names.
_GROUPS = {"dialout": 20, "video": 44}
_RESTART = {"always": "always", "on-failure": "on-failure", "never": "no"}
_PLAIN = re.compile(r"/[A-Za-z0-9._+@/-]*")
# What a start takes besides its test, on slow devices; podman adds what pulling takes. Of podman
# 5.4, only systemd's limit ends a test that hangs.
_START_S = 300
# The app, and its test beside it in the same container.
_APPS = 2


def file_name(manifest: Manifest) -> str:
    """The unit's file; the service is called so, too."""
    return f"edgepack-{manifest.name}.container"


def unit(bundles: Sequence[Manifest], image: str) -> str:
    """The unit for the images of these bundles, which engines call `image`: one for all boards.

    What a release runs is in its image; what it may touch is in the unit, which is to be written
    again when `[service]` names other devices, files or addresses. Raises UsageError for bundles
    without `[service]`, with several, or with one that needs what an image has not.
    """
    manifest = bundles[0]
    service = manifest.service
    if other := next((one for one in bundles if one.service != service), None):
        raise UsageError(
            f"{manifest.name}: [service] is not the same for {manifest.board} and {other.board}",
            hint="a name in the registry for each, and so a unit for each",
        )
    if service is None:
        raise UsageError(
            f"{manifest.name}: no [service] says what the container is to do",
            hint='[service] args in edgepack.toml, e.g. args = ["--serve", "8080"]',
        )
    if manifest.runs_on_gpu and not any(name.startswith(CPU_FOLDER) for name in manifest.files):
        raise UsageError(
            f"{manifest.name}: runs on a GPU, whose driver is not in the image",
            hint='publish a package for apt, or deploy it; or use --compute "gpu, else cpu"',
        )
    touched = access(service)
    if touched.connects or touched.secrets:
        raise UsageError(
            f"{manifest.name}: sinks are another program's, which an image does not start",
            hint="publish a package for apt, or deploy it",
        )
    test = json.dumps([f"/edgepack/{APP}", "--golden"])
    timeout_s = max(one.health.timeout_s for one in bundles)
    container = f"edgepack-{manifest.name}"
    # Engines look for a name with this host on no other machine.
    tested = f"localhost/{image.partition('/')[2]}"
    lines = [
        f"# Of `edgepack publish oci`: put it into /etc/containers/systemd/{file_name(manifest)}",
        "[Unit]",
        f"Description=edgepack: {manifest.name}",
        "StartLimitIntervalSec=0",
        "",
        "[Container]",
        f"Image={image}",
        f"ContainerName={container}",
        "AutoUpdate=registry",
        "# The smoke test: until it has passed in the container, the unit has not started.",
        f"HealthCmd={test}",
        "HealthInterval=1h",
        f"HealthTimeout={timeout_s:.0f}s",
        "HealthRetries=1",
        "HealthOnFailure=kill",
        "Notify=healthy",
        "ReadOnly=true",
        "NoNewPrivileges=true",
        "DropCapability=all",
        *_reach(touched),
        *_limits(service),
        "",
        "[Service]",
        f"Restart={_RESTART[service.restart]}",
        "RestartSec=2",
        f"TimeoutStartSec={_START_S + timeout_s:.0f}",
        "# podman goes back only while it updates. After a power cut meanwhile, this does:",
        "# what has passed the test gets a name of its own, and what fails gives way to it.",
        "ExecStartPost=-/bin/sh -c "
        f"'podman tag $$(podman inspect -f {{{{.Image}}}} {container}) {tested}'",
        f"ExecStopPost=-/bin/sh -c '[ $$SERVICE_RESULT = success ] || podman tag {tested} {image}'",
        *([f"RuntimeDirectory={' '.join(touched.runtime)}"] if touched.runtime else []),
        "",
        "[Install]",
        "WantedBy=multi-user.target default.target",
    ]
    return "\n".join(lines) + "\n"


def _reach(touched: Access) -> list[str]:
    """The lines that give the container what its arguments name, and nothing else."""
    for path in (*touched.devices, *touched.reads, *touched.writes):
        if not _PLAIN.fullmatch(path):
            raise UsageError(
                f"[service] args: {path!r} cannot be written in podman's unit",
                hint="letters, digits and _ . + @ - only",
            )
    lines = [f"Network={'none' if touched.network is None else 'host'}"]
    if touched.binds_low_ports:
        lines.append("AddCapability=CAP_NET_BIND_SERVICE")
    lines += [f"AddDevice={device}" for device in touched.devices]
    for group in touched.groups:
        number = _GROUPS.get(group)
        if number is None:
            lines.append(f"# GroupAdd= with the number of the device's group {group}")
        else:
            lines.append(f"GroupAdd={number}")
    lines += [f"Volume={path}:{path}:ro" for path in touched.reads]
    lines += [f"Volume={path}:{path}" for path in touched.writes]
    # Made at each start, and given to the container's account.
    lines += [f"Volume=/run/{path}:/run/{path}:U" for path in touched.runtime]
    return lines


def _limits(service: Service) -> list[str]:
    if service.memory_mb is None:
        return []
    return [f"PodmanArgs=--memory={_APPS * service.memory_mb * 10**6}b"]

"""A release as a service on a device: install, remove, ask."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepack.base.errors import BundleError, RemoteError, UsageError
from edgepack.bundle.manifest import MANIFEST_NAME, parse_manifest
from edgepack.bundle.service import Service
from edgepack.deploy.service_files import Place, cron_line, init_script, systemd_unit
from edgepack.device import Device

NOT_RUNNING = RemoteError.exit_code
KINDS = ("auto", "systemd", "init", "cron")
# It becomes part of unit files and scripts as it is.
_ROOT = re.compile(r"(/[A-Za-z0-9._+@-]+)+")

_FACTS = """cd {root} || exit 1
pwd -P; stat -c %U .; id -u
if [ -d /run/systemd/system ]; then echo systemd; elif [ -d /etc/init.d ]; then echo init
else echo cron; fi
if [ "$(id -u)" = 0 ]; then echo root; elif sudo -n true 2>/dev/null; then echo sudo
else echo user; fi
cat current/{manifest}"""


class NoServiceError(BundleError):
    """The current release has no `[service]` table."""


class NotPermittedError(RemoteError):
    """The login may not change what starts at boot."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """What a device says of a root folder: who may do what, and what its release asks for."""

    place: Place
    kind: str
    rights: str
    service: Service | None


def look(device: Device, root: str) -> Site:
    """Ask `device` about its folder `root`. Raises UsageError if nothing is deployed there."""
    command = _FACTS.format(root=shlex.quote(root), manifest=MANIFEST_NAME)
    result = device.run(command, check=False)
    lines = result.stdout.split("\n", 5)
    if result.returncode != 0 or len(lines) < 6:
        raise UsageError(
            f"{device.name}: no release is current in {root}", hint="`edgepack deploy` first"
        )
    path, owner, _uid, kind, rights, manifest = lines
    if not _ROOT.fullmatch(path):
        raise UsageError(
            f"{device.name}: {path!r} cannot be written into a unit file",
            hint="deploy to a --root of letters, digits and . _ + @ -",
        )
    if kind not in KINDS[1:] or rights not in ("root", "sudo", "user"):
        raise RemoteError(f"{device.name}: cannot tell what starts a service there")
    document = parse_manifest(manifest.encode())
    place = Place(name=document.name, root=path, owner=owner)
    return Site(place=place, kind=kind, rights=rights, service=document.service)


def need_service(service: Service | None, what: str) -> Service:
    """`service`, which the release `what` asks for. Raises NoServiceError if it does not."""
    if service is None:
        raise NoServiceError(
            f"{what} has no [service] table",
            hint="add it to edgepack.toml and deploy again",
        )
    return service


def install(device: Device, root: str, *, kind: str = "auto") -> dict[str, Any]:
    """Make the current release in `root` start now and at each boot.

    What runs already, from the same files, runs on. `kind` "auto" is systemd where it runs,
    else an init script for root, else the login's crontab. Raises NoServiceError,
    NotPermittedError, UsageError, RemoteCommandError.
    """
    site = look(device, root)
    service = need_service(site.service, f"the release in {site.place.root}")
    kind = _choose(site, kind)
    _INSTALLERS[kind](device, site, service)
    return {"service": site.place.title, "kind": kind, "root": site.place.root}


def remove(device: Device, root: str) -> dict[str, Any]:
    """Stop the service of `root` and never start it again; the releases stay."""
    site = look(device, root)
    place, sudo = site.place, _sudo(site)
    init = f"/etc/init.d/{place.title}"
    commands = [
        f"if [ -e /etc/systemd/system/{place.unit} ]; then",
        f"  {sudo}systemctl disable --now {place.unit} && "
        f"{sudo}rm /etc/systemd/system/{place.unit} && {sudo}systemctl daemon-reload; fi",
        f"if [ -e {init} ]; then {sudo}{init} stop",
        f"  {sudo}update-rc.d -f {place.title} remove 2>/dev/null",
        f"  {sudo}rm -f /etc/init.d/S95{place.title} {init}; fi",
        "if command -v crontab >/dev/null && crontab -l 2>/dev/null | "
        f"grep -q '# {place.title}$'; then",
        f"  crontab -l | grep -v '# {place.title}$' | crontab -; fi",
    ]
    device.run("\n".join(commands))
    return {"service": place.title, "removed": True}


def status(device: Device, root: str) -> dict[str, Any]:
    """Whether the service of `root` runs: {"service", "kind", "running", "text"}."""
    site = look(device, root)
    unit, init = site.place.unit, f"/etc/init.d/{site.place.title}"
    command = (
        f"if [ -e /etc/systemd/system/{unit} ] || [ -e /lib/systemd/system/{unit} ]; then "
        f"echo systemd; systemctl is-active {unit}; "
        f"systemctl show -p SubState -p MainPID -p NRestarts -p MemoryCurrent {unit}; "
        f"elif [ -e {init} ]; then echo init; {init} status; "
        f"elif crontab -l 2>/dev/null | grep -q '# {site.place.title}$'; then "
        f"echo cron; pgrep -f '{site.place.tool} run --supervise' >/dev/null && echo running; "
        "else echo none; fi; true"
    )
    kind, _, rest = device.run(command).stdout.partition("\n")
    first = rest.split("\n", 1)[0]
    return {
        "service": site.place.title,
        "kind": None if kind == "none" else kind,
        "running": first in ("active", "running"),
        "text": rest.strip(),
    }


def _choose(site: Site, kind: str) -> str:
    if kind not in KINDS:
        raise UsageError(f"unknown kind of service: {kind}", hint=f"use {', '.join(KINDS)}")
    chosen = site.kind if kind == "auto" else kind
    if chosen == "init" and kind == "auto" and site.rights == "user":
        chosen = "cron"
    if chosen != "cron" and site.rights == "user":
        raise NotPermittedError(
            f"a {chosen} service needs root, and the login has no sudo without a password",
            hint="log in as root, or `edgepack service show` and install what it prints",
        )
    return chosen


def _sudo(site: Site) -> str:
    return "sudo -n " if site.rights == "sudo" else ""


def _place_file(device: Device, site: Site, text: str, path: str, mode: str) -> bool:
    """Write `text` to `path`, whole or not at all; False if that is what it has."""
    if device.run(f"cat {path}", check=False).stdout == text:
        return False
    sudo = _sudo(site)
    remote = f"{site.place.root}/.service.part"
    with tempfile.NamedTemporaryFile("w", suffix=".part") as file:
        file.write(text)
        file.flush()
        device.put(Path(file.name), remote)
    device.run(
        f"{sudo}cp {remote} {path}.new && {sudo}chown root: {path}.new && "
        f"{sudo}chmod {mode} {path}.new && {sudo}mv {path}.new {path} && rm {remote}"
    )
    return True


def _install_unit(device: Device, site: Site, service: Service) -> None:
    unit, sudo = site.place.unit, _sudo(site)
    text = systemd_unit(site.place, service)
    new = _place_file(device, site, text, f"/etc/systemd/system/{unit}", "644")
    device.run(
        f"{sudo}systemctl daemon-reload && {sudo}systemctl enable {unit} && "
        f"{sudo}systemctl {'restart' if new else 'start'} {unit}"
    )


def _install_init(device: Device, site: Site, _service: Service) -> None:
    title, sudo = site.place.title, _sudo(site)
    path = f"/etc/init.d/{title}"
    new = _place_file(device, site, init_script(site.place), path, "755")
    # busybox's init starts S??* of that folder, in order, with "start".
    device.run(
        f"{{ {sudo}update-rc.d {title} defaults 2>/dev/null || "
        f"{sudo}ln -sf {title} /etc/init.d/S95{title}; }} && "
        f"{sudo}{path} {'restart' if new else 'start'}"
    )


def _install_cron(device: Device, site: Site, _service: Service) -> None:
    line, place = cron_line(site.place), site.place
    command = line.removeprefix("@reboot ").split(" #")[0]
    device.run(
        "command -v crontab >/dev/null || { echo 'there is no crontab here' >&2; exit 1; }\n"
        f"crontab -l 2>/dev/null | grep -qxF {shlex.quote(line)} && "
        f"pgrep -f '^{place.tool} run --supervise' >/dev/null && exit 0\n"
        f"{{ crontab -l 2>/dev/null | grep -v '# {place.title}$'; echo {shlex.quote(line)}; }} "
        "| crontab -\n"
        f"pkill -f '^{place.tool} run --supervise' || true\n"
        f"setsid {command} </dev/null >/dev/null 2>&1 &"
    )


_INSTALLERS: dict[str, Callable[[Device, Site, Service], None]] = {
    "systemd": _install_unit,
    "init": _install_init,
    "cron": _install_cron,
}

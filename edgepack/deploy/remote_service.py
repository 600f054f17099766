"""A release as a service on a device: install, remove, ask."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from edgepack.base.errors import BundleError, NothingThereError, RemoteError, UsageError
from edgepack.boards import load_boards
from edgepack.bundle.manifest import MANIFEST_NAME, parse_manifest
from edgepack.bundle.service import Service, access
from edgepack.deploy.service_files import (
    GPU_GROUPS,
    Place,
    account_name,
    cron_line,
    init_script,
    own_tool,
    supervisor_words,
    systemd_unit,
)
from edgepack.device import Device
from edgepack.device.errors import command_error
from edgepack.device.lines import count_seconds_left, deadline_of
from edgepack.native.device_tool import TOOL, DeviceTool, build_device_tool

NOT_RUNNING = RemoteError.exit_code
KINDS = ("auto", "systemd", "init", "cron")
# It becomes part of unit files and scripts as it is.
_ROOT = re.compile(r"(/[A-Za-z0-9._+@-]+)+")
_ACCOUNT = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*[$]?")

# For the first word of a log; the lines after it may be hours away.
_ANSWER_S = 60.0
_LOG_S = 300.0
"""For all lines of one that is not followed."""

# Root's own, whoever owns the releases: each version in a folder of its own.
_TOOLS = "/usr/local/lib/edgepack"

_FACTS = """cd {root} 2>/dev/null || {{ LC_ALL=C ls -d -- {root}/. >&2; exit 1; }}
pwd -P; stat -c %U .; id -un
if [ -d /run/systemd/system ]; then echo systemd; elif [ -d /etc/init.d ]; then echo init
else echo cron; fi
if [ "$(id -u)" = 0 ]; then echo root; elif sudo -n true 2>/dev/null; then echo sudo
else echo user; fi
grep -oE '^(video|render):' /etc/group | tr -d '\\n'; echo
LC_ALL=C cat current/{manifest}"""


class NoServiceError(BundleError):
    """The current release has no `[service]` table."""


class NotPermittedError(RemoteError):
    """The login may not change what starts at boot."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """What a device says of a root folder: who may do what, and what its release asks for."""

    name: str
    root: str
    owner: str
    login: str
    kind: str
    rights: str
    triple: str
    service: Service | None
    gpu_groups: tuple[str, ...] | None = None

    @property
    def title(self) -> str:
        """See `Place.title`."""
        return self.place("cron", None).title

    def place(self, kind: str, service: Service | None, tool: str = "") -> Place:
        """Where a `kind` of service of this site runs, and as whom.

        Raises UsageError for an account that must not be: root's, or one that can change the
        releases.
        """
        place = Place(
            name=self.name,
            root=self.root,
            owner=self.owner,
            tool=tool or f"{_TOOLS}/edgepack-device",
            gpu_groups=self.gpu_groups,
        )
        if kind == "cron" or service is None:
            return replace(place, tool=own_tool(self.root), account=self.login)
        account = service.user
        if account in ("root", self.owner, self.login):
            raise UsageError(
                f"the service must not run as {account}, who can change its releases",
                hint="leave `user` out of the [service] table, or name an account of its own",
            )
        # systemd's own accounts have nothing, and nothing can be given to them.
        if account is None and (kind == "init" or access(service).writes):
            account = account_name(self.name)
        return replace(place, account=account)


def look(device: Device, root: str) -> Site:
    """Ask `device` about its folder `root`.

    Raises NothingThereError if nothing is deployed there, RemoteError if the login cannot tell.
    """
    command = _FACTS.format(root=shlex.quote(root), manifest=MANIFEST_NAME)
    result = device.run(command, check=False)
    lines = result.stdout.split("\n", 6)
    if result.returncode != 0 or len(lines) < 7:
        if "No such file or directory" not in result.stderr:
            raise command_error(device.name, result)
        raise NothingThereError(
            f"{device.name}: no release is current in {root}", hint="`edgepack deploy` first"
        )
    path, owner, login, kind, rights, groups, manifest = lines
    if not _ROOT.fullmatch(path):
        raise UsageError(
            f"{device.name}: {path!r} cannot be written into a unit file",
            hint="deploy to a --root of letters, digits and . _ + @ -",
        )
    if kind not in KINDS[1:] or rights not in ("root", "sudo", "user"):
        raise RemoteError(f"{device.name}: cannot tell what starts a service there")
    if not _ACCOUNT.fullmatch(owner):
        raise RemoteError(f"{device.name}: {path} belongs to {owner!r}, which is not an account")
    document = parse_manifest(manifest.encode())
    return Site(
        name=document.name,
        root=path,
        owner=owner,
        login=login,
        kind=kind,
        rights=rights,
        triple=document.compatible.triple,
        service=document.service,
        gpu_groups=tuple(name for name in GPU_GROUPS if f"{name}:" in groups)
        if document.runs_on_gpu
        else None,
    )


def need_service(service: Service | None, what: str) -> Service:
    """`service`, which the release `what` asks for. Raises NoServiceError if it does not."""
    if service is None:
        raise NoServiceError(
            f"{what} has no [service] table",
            hint="add it to edgepack.toml and deploy again",
        )
    return service


def install(
    device: Device, root: str, *, kind: str = "auto", wanted: Service | None = None
) -> dict[str, Any]:
    """Make the current release in `root` start now and at each boot.

    What runs already, from the same files, runs on. `kind` "auto" is systemd where it runs,
    else an init script for root, else the login's crontab. What root starts is root's own copy
    of the device tool, built here. `wanted` is what the release was deployed with, if that is
    known better than from the device. Raises NoServiceError, NotPermittedError, UsageError,
    RemoteError, RemoteCommandError, ToolchainError.
    """
    site = look(device, root)
    service = wanted or need_service(site.service, f"the release in {site.root}")
    kind = _choose(site, kind)
    if kind == "cron":
        place = site.place(kind, service)
        _install_cron(device, place)
    else:
        tool = tool_for(site.root, site.triple)
        place = site.place(kind, service, tool=f"{_TOOLS}/{tool.sha256[:12]}/{TOOL}")
        _install_tool(device, site, tool, place.tool)
        _make_account(device, site, place, service)
        _check(device, site, place, service)
        _INSTALLERS[kind](device, site, place, service)
        _remove_old_tools(device, site)
    return {
        "service": place.title,
        "kind": kind,
        "root": site.root,
        "account": place.account or "of systemd's making",
    }


def remove(device: Device, root: str) -> dict[str, Any]:
    """Stop the service of `root` and never start it again; the releases stay."""
    site = look(device, root)
    title, sudo = site.title, _sudo(site)
    init, unit, tool = f"/etc/init.d/{title}", f"{title}.service", own_tool(site.root)
    commands = [
        f"if [ -e /etc/systemd/system/{unit} ]; then",
        f"  {sudo}systemctl disable --now {unit} && "
        f"{sudo}rm /etc/systemd/system/{unit} && {sudo}systemctl daemon-reload; fi",
        f"if [ -e {init} ]; then {sudo}{init} stop",
        f"  {sudo}update-rc.d -f {title} remove 2>/dev/null",
        f"  {sudo}rm -f /etc/init.d/S95{title} {init} /run/{title}.lock; fi",
        f"if command -v crontab >/dev/null && crontab -l 2>/dev/null | grep -q '# {title}$'; then",
        f"  crontab -l | grep -v '# {title}$' | crontab -",
        f"  {tool} service stop --lock {site.root}/.service.lock; fi",
    ]
    device.run("\n".join(commands))
    if site.rights != "user":
        _remove_old_tools(device, site)
    return {"service": title, "removed": True}


def status(device: Device, root: str) -> dict[str, Any]:
    """Whether the service of `root` runs: {"service", "kind", "running", "text"}."""
    site = look(device, root)
    title, sudo = site.title, _sudo(site)
    unit, init = f"{title}.service", f"/etc/init.d/{title}"
    command = (
        f"if [ -e /etc/systemd/system/{unit} ] || [ -e /lib/systemd/system/{unit} ]; then "
        f"echo systemd; systemctl is-active {unit}; "
        f"systemctl show -p SubState -p MainPID -p NRestarts -p MemoryCurrent {unit}; "
        f"elif [ -e {init} ]; then echo init; {sudo}{init} status; "
        f"elif crontab -l 2>/dev/null | grep -q '# {title}$'; then "
        f"echo cron; {own_tool(site.root)} service status --lock {site.root}/.service.lock; "
        "else echo none; fi; true"
    )
    kind, _, rest = device.run(command).stdout.partition("\n")
    first = rest.split("\n", 1)[0]
    return {
        "service": title,
        "kind": None if kind == "none" else kind,
        "running": first in ("active", "running"),
        "text": rest.strip(),
    }


@dataclass(frozen=True, kw_only=True)
class ServiceLog:
    """The last lines of a service's log, oldest first, and, if it is followed, those to come."""

    service: str
    kind: str
    lines: Iterator[str]


@contextlib.contextmanager
def log_of(
    device: Device, root: str, *, count: int = 50, follow: bool = False
) -> Iterator[ServiceLog]:
    """The log of the service of `root`: its last `count` lines, and with `follow` what comes then.

    Raises NoServiceError if none is installed, RemoteCommandError if the login may not read it.
    """
    site = look(device, root)
    stream = device.open(_log_script(site, count, follow))
    with contextlib.closing(stream):
        kind = stream.read_line(_ANSWER_S).decode(errors="replace").strip()
        if kind not in KINDS[1:]:
            raise NothingThereError(
                f"{device.name}: no service of {site.root} is installed",
                hint="`edgepack service install` starts one",
            )

        def lines() -> Iterator[str]:
            # What comes by itself may take as long as it likes, but not in the middle of a line.
            deadline = None if follow else deadline_of(_LOG_S)
            while line := stream.read_line(
                _ANSWER_S if follow else count_seconds_left(deadline), begun=follow
            ):
                yield line.decode(errors="replace").rstrip("\n")
            done = stream.finish()
            if done.returncode != 0:
                raise command_error(device.name, done)

        yield ServiceLog(service=site.title, kind=kind, lines=lines())


def _log_script(site: Site, count: int, follow: bool) -> str:
    """Says what starts the service, then its log. Following ends with the standard input."""
    title, unit = site.title, f"{site.title}.service"

    def of_file(file: str) -> str:
        # The part before is beside it; nothing is said of one that is not there yet.
        whole = f"cat {file} >/dev/null && cat {file}.1 {file} 2>/dev/null | tail -n {count}"
        return _until_closed(f"tail -n {count} -f {file}") if follow else whole

    journal = f"journalctl -q --no-pager -n {count} -u {unit}"
    if follow:
        journal = _until_closed(f"{journal} -f")
    root = f"{_sudo(site)}sh -c"
    init = of_file(f"/var/log/{title}/log")
    return "\n".join(
        (
            f"if [ -e /etc/systemd/system/{unit} ] || [ -e /lib/systemd/system/{unit} ]; then",
            f"  echo systemd; {root} {shlex.quote(journal)}",
            f"elif [ -e /etc/init.d/{title} ]; then echo init; {root} {shlex.quote(init)}",
            f"elif crontab -l 2>/dev/null | grep -q '# {title}$'; then",
            f"  echo cron; sh -c {shlex.quote(of_file(f'{site.root}/service.log'))}",
            "else echo none; fi",
        )
    )


def _until_closed(command: str) -> str:
    """`command`, which is killed when the shell's standard input ends: nobody listens then."""
    return (
        f"exec 3<&0; {command} & child=$!\n"
        "{ cat <&3; kill $child; } >/dev/null 2>&1 &\nwait $child"
    )


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


def _as_root(device: Device, site: Site, script: str, data: bytes = b"") -> None:
    """Run `script` as root with `data` on its input. It must touch nothing that the login owns."""
    stream = device.open(f"{_sudo(site)}sh -c {shlex.quote(f'umask 022; {script}')}")
    with contextlib.closing(stream):
        with contextlib.suppress(BrokenPipeError):  # its answer says why
            stream.write(data)
        done = stream.finish()
    if done.returncode != 0:
        raise command_error(device.name, done)


def _place_file(device: Device, site: Site, data: bytes, path: str, mode: str) -> None:
    """Write `data` to `path` in a folder of root's: whole or not at all."""
    folder, new = path.rsplit("/", 1)[0], f"{path}.new"
    _as_root(
        device,
        site,
        # A link that breaks here must not leave a shorter file.
        f"mkdir -p {folder} && rm -f {new} && cat >{new} && [ $(wc -c <{new}) -eq {len(data)} ] "
        f"&& chmod {mode} {new} && sync && mv -f {new} {path}",
        data,
    )


def tool_for(root: str, triple: str) -> DeviceTool:
    """The device tool for `root`, whose release is for `triple`.

    Raises BundleError, ToolchainError.
    """
    for board in load_boards().values():
        if board.triple == triple:
            return build_device_tool(board)
    raise BundleError(f"{root}: its release is for {triple}, which is unknown here")


def _install_tool(device: Device, site: Site, tool: DeviceTool, path: str) -> None:
    """Root's own copy of the device tool, in a folder that no login can write."""
    sum_command = f"sha256sum {path} 2>/dev/null || busybox sha256sum {path}"
    if not device.run(sum_command, check=False).stdout.startswith(f"{tool.sha256} "):
        _place_file(device, site, tool.path.read_bytes(), path, "755")


def _remove_old_tools(device: Device, site: Site) -> None:
    """Root's copies that no service starts any more."""
    _as_root(
        device,
        site,
        f"for folder in {_TOOLS}/*; do grep -qsF $folder/ /etc/init.d/edgepack-* "
        "/etc/systemd/system/edgepack-*.service || rm -rf $folder; done",
    )


def _make_account(device: Device, site: Site, place: Place, service: Service) -> None:
    """The account of the app, if it is not one that was named."""
    name = place.account
    if name is None or name == service.user:
        return
    _as_root(
        device,
        site,
        f"id {name} >/dev/null 2>&1 && exit 0\n"
        "if command -v useradd >/dev/null; then useradd --system --user-group --no-create-home "
        f"--home-dir /nonexistent --shell /bin/false {name}\n"
        f"else addgroup -S {name}; "
        f"adduser -S -D -H -h /nonexistent -s /bin/false -G {name} {name}; fi",
    )


def _check(device: Device, site: Site, place: Place, service: Service) -> None:
    """Have the device try, as the account that will run it, what the service will do."""
    words = [place.tool, "run", "--supervise", "--check", "--root", place.root]
    words += supervisor_words(
        replace(place, account=place.account or "nobody"), service, started=False
    )
    done = device.run(f"{_sudo(site)}{shlex.join(words)}", check=False)
    if done.returncode == 0:
        return
    said, _, hint = done.stderr.partition("\n\nhint: ")
    message = said.rpartition("error: ")[2].strip()
    raise RemoteError(
        f"{device.name}: the service cannot run: {message or 'no word of why'}",
        hint=hint.strip() or None,
    )


def _is_there(device: Device, path: str, text: str) -> bool:
    return device.run(f"cat {path}", check=False).stdout == text


def _install_unit(device: Device, site: Site, place: Place, service: Service) -> None:
    unit, sudo = place.unit, _sudo(site)
    path, text = f"/etc/systemd/system/{unit}", systemd_unit(place, service)
    action = "start"
    if not _is_there(device, path, text):
        _place_file(device, site, text.encode(), path, "644")
        action = "restart"
    device.run(
        f"{sudo}systemctl daemon-reload && {sudo}systemctl enable {unit} && "
        f"{sudo}systemctl {action} {unit}"
    )


def _install_init(device: Device, site: Site, place: Place, service: Service) -> None:
    title, sudo = place.title, _sudo(site)
    path, text = f"/etc/init.d/{title}", init_script(place, service)
    if not _is_there(device, path, text):
        # What an earlier script started, only that one can stop.
        device.run(f"[ ! -e {path} ] || {sudo}{path} stop")
        _place_file(device, site, text.encode(), path, "755")
    # busybox's init starts S??* of that folder, in order, with "start".
    device.run(
        f"{{ {sudo}update-rc.d {title} defaults 2>/dev/null || "
        f"{sudo}ln -sf {title} /etc/init.d/S95{title}; }} && {sudo}{path} start"
    )


def _install_cron(device: Device, place: Place) -> None:
    line = cron_line(place)
    command = line.removeprefix("* * * * * ").split(" >/dev/null")[0]
    device.run(
        "command -v crontab >/dev/null || { echo 'there is no crontab here' >&2; exit 1; }\n"
        f"if ! crontab -l 2>/dev/null | grep -qxF {shlex.quote(line)}; then\n"
        f"{{ crontab -l 2>/dev/null | grep -v '# {place.title}$'; echo {shlex.quote(line)}; }} "
        "| crontab -\n"
        f"pkill -f '^{place.tool} run --supervise' || true; fi\n"
        f"setsid {command} </dev/null >/dev/null 2>&1 &"
    )


_INSTALLERS: dict[str, Callable[[Device, Site, Place, Service], None]] = {
    "systemd": _install_unit,
    "init": _install_init,
}

"""The files that start a service at boot: a systemd unit, an init script, a line for cron.

All three start `edgepack-device run --supervise`, which keeps the app running and goes over to
a new release by itself; none has to be changed for one. systemd adds its sandbox.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from dataclasses import dataclass

from edgepack.bundle.manifest import check_name
from edgepack.bundle.service import Service, access
from edgepack.bundle.service_access import Access

_RESTART = {"always": "always", "on-failure": "on-failure", "never": "no"}
# By whom the app lets in.
_NETWORK = {
    None: "PrivateNetwork=yes\nIPAddressDeny=any",
    "loopback": "IPAddressDeny=any\nIPAddressAllow=localhost",
    "any": "IPAddressAllow=any",
}
GPU_GROUPS = ("render", "video")
"""Who may open GPUs: by Debian's udev rules, and those of the vendors of Mali and Jetson boards."""
# What the supervisor itself needs: it is a static program of about 1 MB that maps no model.
_SUPERVISOR_MB = 8
# Debian's adduser takes no longer name.
_MAX_ACCOUNT = 32


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a service runs: its bundle's `name`, the absolute `root` of its releases, and the
    account that owns that folder.

    `tool` is the device tool that is started: where root does that, one that only root can
    write. `account` is the app's; None is one of systemd's own making. `gpu_groups` are the
    groups of the device that may open its GPU; None if the CPU runs the model.
    """

    name: str
    root: str
    owner: str
    tool: str
    account: str | None = None
    gpu_groups: tuple[str, ...] | None = None

    @property
    def unit(self) -> str:
        """ "edgepack-<name>.service"."""
        return f"{self.title}.service"

    @property
    def title(self) -> str:
        """ "edgepack-<name>": the name of the init script and of the log."""
        return f"edgepack-{check_name(self.name, 'name')}"

    @property
    def lock(self) -> str:
        """Held while the service runs, where no systemd knows that."""
        return f"/run/{self.title}.lock"


def own_tool(root: str) -> str:
    """The device tool in the folder of the releases, which belongs to their owner."""
    return f"{root}/bin/edgepack-device"


def account_name(name: str) -> str:
    """The account that is made for the service of a bundle `name`, e.g. "edgepack-tiny"."""
    account = "edgepack-" + re.sub(r"[^a-z0-9-]", "-", name.lower())
    if len(account) <= _MAX_ACCOUNT:
        return account
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{account[: _MAX_ACCOUNT - 9]}-{digest}"


def systemd_unit(place: Place, service: Service) -> str:
    """The unit for `service`, with as little left open as the app can do with.

    The directives are those of systemd.exec(5) and systemd.service(5); versions that do not
    know one (Debian bullseye has 247) warn and go on.
    """
    # The tool becomes the owner by itself: runuser is not everywhere, nor is what PAM wants for it.
    recover = f"{place.tool} recover --root {place.root} --owner {place.owner}"
    account = f"User={place.account}" if place.account else "DynamicUser=yes"
    touched = access(service)
    needs = " ".join(_unit_word(path) for path in (place.root, *touched.mounts))
    more = "".join(f"{line}\n" for line in _limits(service, touched))
    may = "\n".join(_sandbox(touched, place))
    return f"""\
# Written by `edgepack service`; a new release needs no new unit.
[Unit]
Description=edgepack: {place.name}
StartLimitIntervalSec=0
RequiresMountsFor={needs}

[Service]
Type=notify
NotifyAccess=main
# After a power cut in the middle of a release's test: test it again, or take it back.
ExecStartPre=+-{recover}
ExecStart={place.tool} run --supervise --root {place.root}
Restart={_RESTART[service.restart]}
# An interrupted test is in the way, and only the line above may end it.
RestartForceExitStatus=75
RestartSec=2
# The supervisor watches the app, and systemd the supervisor.
WatchdogSec=60
TimeoutStartSec=infinity
TimeoutStopSec=20
KillMode=mixed
OOMPolicy=continue
{more}{account}
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
PrivateMounts=yes
{may}
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
LockPersonality=yes
MemoryDenyWriteExecute=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
TasksMax=128
UMask=0022

[Install]
WantedBy=multi-user.target
"""


def _unit_word(text: str) -> str:
    """`text` as one word of a unit file: systemd.syntax(7), and specifiers of systemd.unit(5)."""
    text = text.replace("%", "%%")
    if re.fullmatch(r"[A-Za-z0-9._+@%:,/=-]+", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _limits(service: Service, touched: Access) -> list[str]:
    lines = []
    if service.memory_mb is not None:
        lines.append(f"MemoryMax={(service.memory_mb + _SUPERVISOR_MB) * 10**6}")
    if touched.writes:
        lines.append(f"ReadWritePaths={' '.join(map(_unit_word, touched.writes))}")
    # Read by root, who may be the only one that can.
    lines += [f"LoadCredential={name}:{path}" for name, path in touched.secrets]
    if touched.runtime:
        lines.append(f"RuntimeDirectory={' '.join(touched.runtime)}")
    return lines


def _sandbox(touched: Access, place: Place) -> list[str]:
    """What of the sandbox depends on what the arguments name, and on the GPU.

    Each driver has device nodes of its own, and more with each version: which of them a GPU's
    service opens is left to their owners and groups. ProtectClock= would close all but its own.
    """
    gpu_groups = place.gpu_groups
    lines = [f"PrivateTmp={'no' if touched.shares_tmp else 'yes'}"]
    lines.append(f"ProtectClock={'yes' if gpu_groups is None else 'no'}")
    if gpu_groups is not None:
        # Kernels that the driver has compiled are kept there, by NVIDIA's driver itself: "CUDA C++
        # Programming Guide", section "CUDA Environment Variables".
        lines += ["PrivateDevices=no", "DevicePolicy=auto", f"CacheDirectory={place.title}"]
        lines.append(f"Environment=CUDA_CACHE_PATH=/var/cache/{place.title}")
    elif touched.devices:
        lines += ["PrivateDevices=no", "DevicePolicy=closed"]
        lines += [f"DeviceAllow={_unit_word(rule)} rw" for rule in touched.device_rules]
    else:
        lines.append("PrivateDevices=yes")
    if groups := sorted({*touched.groups, *(gpu_groups or ())}):
        lines.append(f"SupplementaryGroups={' '.join(groups)}")
    capability = "CAP_NET_BIND_SERVICE" if touched.binds_low_ports else ""
    lines.append(f"CapabilityBoundingSet={capability}")
    if capability:
        lines.append(f"AmbientCapabilities={capability}")
    lines.append(_network(touched))
    if touched.ports and 0 not in touched.ports:
        lines += [f"SocketBindAllow=tcp:{port}" for port in sorted(set(touched.ports))]
        if "any" in touched.connects:
            lines.append("SocketBindAllow=udp")  # questions to a name server
        lines.append("SocketBindDeny=any")
    families = "AF_UNIX AF_INET AF_INET6" if touched.network or touched.connects else "AF_UNIX"
    return [*lines, f"RestrictAddressFamilies={families}"]


def _network(touched: Access) -> str:
    """Whom it may hear from and send to."""
    if not touched.connects:
        return _NETWORK[touched.network]
    if "any" in (touched.network, *touched.connects):
        return _NETWORK["any"]
    peers = (*(["localhost"] if touched.network else []), *touched.connects)
    return f"IPAddressDeny=any\nIPAddressAllow={' '.join(peers)}"


def supervisor_words(place: Place, service: Service, *, started: bool = True) -> list[str]:
    """What the supervisor has to be told of what the service touches, where root starts it.

    Before it is `started` the folders below /run are not there.
    """
    touched = access(service)
    words = ["--owner", place.owner, "--user", place.account or place.owner]
    runtime = [f"/run/{name}" for name in touched.runtime] if started else []
    folders = (*touched.writes, *runtime)
    for option, values in (
        ("--writable", folders),
        ("--group", sorted({*touched.groups, *(place.gpu_groups or ())})),
        ("--reads", (*touched.reads, *touched.devices)),
    ):
        for value in values:
            words += [option, value]
    return words + ["--low-ports"] * touched.binds_low_ports


def init_script(place: Place, service: Service) -> str:
    """A script for /etc/init.d: System V (with LSB headers) and busybox alike.

    It is started by root: the supervisor then becomes `place.account` and makes the file system
    read-only for itself and the app. One process stays root's, to start it again; nothing that
    the owner of the releases can write tells it what to do.
    """
    words = ["run", "--supervise", "--respawn", "--root", place.root]
    words += supervisor_words(place, service)
    account = place.account or place.owner
    folders = "".join(
        f"    mkdir -p /run/{name} && chown {account} /run/{name}\n"
        for name in access(service).runtime
    )
    return f"""\
#!/bin/sh
# Written by `edgepack service`; a new release needs no new script.
### BEGIN INIT INFO
# Provides:          {place.title}
# Required-Start:    $local_fs $remote_fs
# Required-Stop:     $local_fs $remote_fs
# Default-Start:     2 3 4 5
# Default-Stop:      0 1 6
# Short-Description: edgepack: {place.name}
### END INIT INFO
tool={place.tool}
lock={place.lock}
log=/var/log/{place.title}

start() {{
    mkdir -p "$log"
{folders}    # It ends at once if one runs already.
    setsid $tool {shlex.join(words)} \\
        --lock "$lock" --log "$log/log" </dev/null >/dev/null 2>&1 &
}}

stop() {{ $tool service stop --lock "$lock"; }}

case $1 in
start) start ;;
stop) stop ;;
restart) stop && start ;;
status) $tool service status --lock "$lock" ;;
*) echo "usage: $0 start|stop|restart|status" >&2 && exit 2 ;;
esac
"""


def cron_line(place: Place) -> str:
    """A line for the owner's own crontab, where there is no root: the app runs as the owner.

    Cron says it every minute; all but the first find the lock held, and end.
    """
    words = ["run", "--supervise", "--respawn", "--root", place.root]
    words += ["--lock", f"{place.root}/.service.lock", "--log", f"{place.root}/service.log"]
    return f"* * * * * {place.tool} {shlex.join(words)} >/dev/null 2>&1 # {place.title}"

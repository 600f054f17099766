"""The files that start a service at boot: a systemd unit, an init script, a line for cron.

All three start `edgepack-device run --supervise`, which keeps the app running and goes over to
a new release by itself; none has to be changed for one. systemd adds its sandbox.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from edgepack.bundle.manifest import check_name
from edgepack.bundle.service import Service

_RESTART = {"always": "always", "on-failure": "on-failure", "never": "no"}
# What the supervisor itself needs: it is a static program of under 1 MB that maps no model.
_SUPERVISOR_MB = 8


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a service runs: its bundle's `name`, the absolute `root` of its releases, and the
    account that owns that folder."""

    name: str
    root: str
    owner: str

    @property
    def unit(self) -> str:
        """ "edgepack-<name>.service"."""
        return f"{self.title}.service"

    @property
    def title(self) -> str:
        """ "edgepack-<name>": the name of the init script and of the log."""
        return f"edgepack-{check_name(self.name, 'name')}"

    @property
    def tool(self) -> str:
        """The device tool."""
        return f"{self.root}/bin/edgepack-device"


def systemd_unit(place: Place, service: Service) -> str:
    """The unit for `service`, with as little left open as the app can do with.

    The directives are those of systemd.exec(5) and systemd.service(5); versions that do not
    know one (Debian bullseye has 247) warn and go on.
    """
    recover = f"{place.tool} recover --root {place.root}"
    if place.owner != "root":
        recover = f"/sbin/runuser -u {place.owner} -- {recover}"
    user = service.user or (place.owner if place.owner != "root" else None)
    account = f"User={user}" if user else "DynamicUser=yes"
    limits = []
    if service.memory_mb is not None:
        limits.append(f"MemoryMax={(service.memory_mb + _SUPERVISOR_MB) * 10**6}")
    if service.writable:
        limits.append(f"ReadWritePaths={' '.join(service.writable)}")
    more = "".join(f"{line}\n" for line in limits)
    return f"""\
# Written by `edgepack service`; a new release needs no new unit.
[Unit]
Description=edgepack: {place.name}
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
# After a power cut in the middle of a release's test: test it again, or take it back.
ExecStartPre=+-{recover}
ExecStart={place.tool} run --supervise --root {place.root}
Restart={_RESTART[service.restart]}
RestartSec=2
# The supervisor watches the app, and systemd the supervisor.
WatchdogSec=60
TimeoutStartSec=infinity
TimeoutStopSec=20
KillMode=mixed
OOMPolicy=continue
{more}{account}
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
PrivateNetwork=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
LockPersonality=yes
MemoryDenyWriteExecute=yes
RestrictAddressFamilies=AF_UNIX
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


def init_script(place: Place) -> str:
    """A script for /etc/init.d: System V (with LSB headers) and busybox alike.

    It is started by root: the supervisor then becomes the service's user and makes the file
    system read-only for itself and the app.
    """
    return f"""\
#!/bin/sh
# Written by `edgepack service`; a new release needs no new script.
### BEGIN INIT INFO
# Provides:          {place.title}
# Required-Start:    $local_fs
# Required-Stop:     $local_fs
# Default-Start:     2 3 4 5
# Default-Stop:      0 1 6
# Short-Description: edgepack: {place.name}
### END INIT INFO
pid=/run/{place.title}.pid
log=/var/log/{place.title}

running() {{ [ -s "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null; }}

start() {{
    running && return 0
    mkdir -p "$log"
    setsid {place.tool} run --supervise --root {place.root} --log "$log/log" \\
        </dev/null >/dev/null 2>&1 &
    echo $! >"$pid"
}}

stop() {{
    running || return 0
    kill "$(cat "$pid")"
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
        running || break
        sleep 1
    done
    rm -f "$pid"
}}

case $1 in
start) start ;;
stop) stop ;;
restart) stop && start ;;
status) if running; then echo running; else echo stopped && exit 3; fi ;;
*) echo "usage: $0 start|stop|restart|status" >&2 && exit 2 ;;
esac
"""


def cron_line(place: Place) -> str:
    """A line for the owner's own crontab, where there is no root: the app runs as the owner."""
    log = shlex.quote(f"{place.root}/service.log")
    return f"@reboot {place.tool} run --supervise --root {place.root} --log {log} # {place.title}"

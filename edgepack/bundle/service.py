"""How a release runs as a service: the `[service]` table, checked.

The table travels in the manifest, so that a new release brings its own arguments;
`edgepack-device run --supervise` reads it there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from edgepack.base.errors import ConfigError
from edgepack.base.tables import Table
from edgepack.bundle.service_access import Access, access_of

RESTARTS = ("always", "on-failure", "never")

# What Debian's adduser takes: the name ends up in a unit file and in a shell command.
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
# What a unit file and a shell script take as it is.
_FOLDER = re.compile(r"(/[A-Za-z0-9._+@-]+)+")
_MAX_ARGS = 64
_MAX_ARG = 1024
_MAX_WATCHDOG_S = 86400.0
_MAX_MEMORY_MB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Service:
    """What is started and how it is kept running.

    `args` are edgepack-run's, e.g. ("--watch", "/var/lib/photos"). `restart` says after
    which exits it is started again. An app that gives no sign for `watchdog_s` seconds is
    killed, as is one that takes more than `memory_mb` (10^6 bytes); None is "no limit".
    `user` is the account it runs as, None one that is made for it. It sees the file system
    read-only but for the folders `writable`, which must exist on the device, and those of the
    files and sockets that `args` name (`access`).
    """

    args: tuple[str, ...]
    restart: str = "always"
    watchdog_s: float | None = None
    memory_mb: int | None = None
    user: str | None = None
    writable: tuple[str, ...] = ()


def access(service: Service) -> Access:
    """What the service touches: what its arguments name, and `writable`.

    Raises ConfigError for arguments with which no service can run.
    """
    return access_of(service.args, service.writable)


def take_service(top: Table, *, whole: bool = False) -> Service | None:
    """The service in `top` (a manifest or edgepack.toml), None if there is none.

    No key may be left out of a `whole` table, as manifests have it. Raises the table's error
    naming the field and the value.
    """
    table = top.take_table("service", required=False)
    if table is None:
        return None
    if whole:
        table.need(field.name for field in fields(Service))
    args = table.take_list("args", str)
    if not args or len(args) > _MAX_ARGS:
        raise table.fail("args", f"{len(args)} words; 1 to {_MAX_ARGS} are possible")
    for word in args:
        if not word.isprintable() or not word or len(word) > _MAX_ARG:
            raise table.fail("args", f"{word!r} is empty, too long or not one printable line")
    service = Service(
        args=args,
        restart=table.take_choice("restart", RESTARTS, "always"),
        watchdog_s=table.take("watchdog_s", float, None),
        memory_mb=table.take("memory_mb", int, None),
        user=table.take("user", str, None),
        writable=table.take_list("writable", str, ()),
    )
    table.finish()
    if service.watchdog_s is not None and not 1 <= service.watchdog_s <= _MAX_WATCHDOG_S:
        raise table.fail("watchdog_s", f"{service.watchdog_s} is not from 1 to 86400 seconds")
    if service.memory_mb is not None and not 1 <= service.memory_mb <= _MAX_MEMORY_MB:
        raise table.fail("memory_mb", f"{service.memory_mb} is not from 1 to {_MAX_MEMORY_MB}")
    if service.user is not None and not _USER.fullmatch(service.user):
        raise table.fail("user", f"{service.user!r} is not the name of an account")
    for folder in service.writable:
        if not _FOLDER.fullmatch(folder) or ".." in folder.split("/"):
            raise table.fail("writable", f"{folder!r} is not the absolute path of a folder")
    if service.user == "root":
        raise table.fail("user", "a service must not run as root", hint="name another account")
    if not whole:  # a release that is there already may be asked about
        _check_access(table, service)
    return service


def _check_access(table: Table, service: Service) -> None:
    try:
        access(service)
    except ConfigError as error:
        message = error.message.removeprefix("[service] args: ")
        raise table.fail("args", message, hint=error.hint) from None

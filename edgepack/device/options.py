"""Where a device is and how to get in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from edgepack.base.errors import UsageError
from edgepack.base.text import one_line
from edgepack.device.safe_names import check_host, check_user

_ADDRESS = re.compile(
    r"(?:(?P<user>\S+)@)?"
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^@:\s\[\]-][^@:\s\[\]]*))"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
_SCHEME = "ssh://"
# A user and a host of `safe_names.MAX_LENGTH`, with @, brackets and a port.
_LONGEST = 600

COMMAND_TIMEOUT_S = 300.0
"""For what takes seconds on a fast board: a slow card that is full may take minutes."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """`host` is a name, an IP address or an alias; None leaves the rest to the configuration.

    Raises UsageError for a host or a user that is not a safe name.
    """

    host: str
    user: str | None = None
    port: int | None = None

    def __post_init__(self) -> None:
        check_host(self.host, "address", error=UsageError)
        if self.user is not None:
            check_user(self.user, "address", error=UsageError)

    @staticmethod
    def parse(spec: str) -> Address:
        """The address in `[user@]host[:port]` or `ssh://[user@]host[:port]`; IPv6 addresses go in
        [brackets], and the last @ counts, as for `ssh`.

        Raises UsageError for anything else.
        """
        match = _ADDRESS.fullmatch(_without_scheme(spec)) if len(spec) <= _LONGEST else None
        port = int(match["port"]) if match and match["port"] else None
        if not match or (port is not None and not 0 < port < 65536):
            raise UsageError(
                f"--device: not a device: {one_line(repr(spec))}",
                hint="user@host, user@host:port, user@[ipv6]:port, ssh://user@host:port, "
                "an alias of ~/.ssh/config, adb:SERIAL, local or virtual",
            )
        return Address(host=match["ipv6"] or match["host"], user=match["user"], port=port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{self.user}@" if self.user else ""
        return f"{user}{host}:{self.port}" if self.port else f"{user}{host}"


def _without_scheme(spec: str) -> str:
    """`user@host:port` of `ssh://user@host:port`, in which letters may be written as %41."""
    if not spec.startswith(_SCHEME):
        return spec
    rest = spec.removeprefix(_SCHEME).removesuffix("/")
    user, at, host = rest.rpartition("@")
    return f"{unquote(user)}{at}{host}"


@dataclass(frozen=True, kw_only=True)
class SshOptions:
    """Settings of an SSH connection.

    `config_file` is read instead of ~/.ssh/config and /etc/ssh/ssh_config; with `use_config`
    false, no configuration is read. `identity` is tried before the agent's and the default keys;
    with `identities_only`, it is the only key tried. `jump` are the jump hosts in order, instead
    of ProxyJump and ProxyCommand. `known_hosts` replaces ~/.ssh/known_hosts and
    UserKnownHostsFile; `host_keys` are lines of such a file, which replace any file.
    `accept_new_host_key` adds the key of an unknown host to known_hosts; a changed key is always
    refused. `command_timeout_s` limits each command without its own limit (None: no limit).
    """

    config_file: Path | None = None
    use_config: bool = True
    identity: Path | None = None
    identities_only: bool = False
    jump: tuple[str, ...] = ()
    known_hosts: Path | None = None
    host_keys: tuple[str, ...] = ()
    accept_new_host_key: bool = False
    connect_timeout_s: int = 10
    command_timeout_s: float | None = COMMAND_TIMEOUT_S

    def __post_init__(self) -> None:
        for name in ("config_file", "identity", "known_hosts"):
            # Whoever comes from Python may give a str.
            if (file := getattr(self, name)) is not None:
                object.__setattr__(self, name, Path(file))

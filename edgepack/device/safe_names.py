"""Names of hosts and users that are only names, wherever they are from.

They may be expanded into a ProxyCommand or a `Match exec` of the OpenSSH configuration, which a
shell runs. The rule is that of OpenSSH's ssh.c (`valid_hostname`), for users as well: its own for
them lets blanks, `$` and a backslash through.
"""

from __future__ import annotations

import re

from edgepack.base.errors import ConfigError, EdgepackError
from edgepack.base.text import one_line

MAX_LENGTH = 255
"""Characters: DNS allows a host no more, and no system a user."""

_SAFE = re.compile(r"""(?!-)[^'`"$\\;&<>|(){}\s]+""")
_HINT = "no blanks, controls, quotes or any of $ \\ ; & < > | ( ) { } `, and no dash in front"
_SHOWN = 80


def check_host(
    name: str, where: str, *, error: type[EdgepackError] = ConfigError, what: str = "host"
) -> str:
    """`name` if it is safe as the name of a host, else `error`, which begins with `where`."""
    if is_safe(name):
        return name
    shown = one_line(repr(name), limit=_SHOWN)
    raise error(f"{where}: not a safe name of a {what}: {shown}", hint=_HINT)


def check_user(name: str, where: str, *, error: type[EdgepackError] = ConfigError) -> str:
    """`name` if it is safe as the name of a user, else `error`, which begins with `where`."""
    return check_host(name, where, error=error, what="user")


def is_safe(name: str) -> bool:
    """Whether a shell, `ssh` and a terminal see nothing but a name in it."""
    return len(name) <= MAX_LENGTH and name.isprintable() and bool(_SAFE.fullmatch(name))

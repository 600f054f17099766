"""How large what an inventory stands for may be: a few lines can mean millions of names, or a tree
that grows with every alias."""

from __future__ import annotations

from pathlib import Path

from edgepack.base.errors import ConfigError

MAX_BYTES = 32 << 20
"""Of a file: 100,000 hosts with ten variables each, as `ansible-inventory --list` prints them."""
MAX_LINE = 64 << 10
MAX_VALUES = 1_000_000
"""Scalars, lists and mappings of a YAML file, as they are written and with aliases written out."""
MAX_DEPTH = 100
MAX_MEMBERS = 1_000_000
"""Names of hosts in all groups together, ranges written out."""


def check_size(path: Path, text: str, *, lines: bool = False) -> None:
    """Raise ConfigError for a file of more letters than an inventory has, or, if `lines` are what
    is read, for a line of too many."""
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{path}: more than {MAX_BYTES >> 20} MiB", hint="is it an inventory?")
    for number, line in enumerate(text.splitlines() if lines else (), 1):
        if len(line) > MAX_LINE:
            raise ConfigError(f"{path}:{number}: a line of {len(line)} letters")

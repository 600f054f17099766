"""How large what an inventory stands for may be: a few lines can mean millions of names, or a tree
that grows with every alias."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

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


def check_events(path: Path, text: str, loader: type) -> None:
    """Raise ConfigError for YAML of too many values, or too deep ones, before it is in memory.

    What is no YAML is left to whoever reads it next.
    """
    depth = values = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            values += isinstance(event, yaml.NodeEvent)
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if values > MAX_VALUES or depth > MAX_DEPTH:
                break
        else:
            return
    except yaml.YAMLError:
        return
    line = event.start_mark.line + 1
    if depth > MAX_DEPTH:
        raise ConfigError(f"{path}:{line}: more than {MAX_DEPTH} levels")
    raise ConfigError(f"{path}:{line}: more than {MAX_VALUES} values")


def check_aliases(path: Path, node: Any) -> None:
    """Raise ConfigError if `node` is much more with its aliases written out, or holds itself."""
    sizes: dict[int, int] = {}
    open_: set[int] = set()

    def size(at: Any) -> int:
        key = id(at)
        if key in sizes:
            return sizes[key]
        if key in open_:
            raise ConfigError(f"{path}:{at.start_mark.line + 1}: an alias of what it is in")
        open_.add(key)
        sizes[key] = total = 1 + sum(size(child) for child in _children(at))
        open_.discard(key)
        if total > MAX_VALUES:
            raise ConfigError(
                f"{path}:{at.start_mark.line + 1}: more than {MAX_VALUES} values, with its aliases "
                "written out"
            )
        return total

    size(node)


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield value

"""How large what a YAML file stands for may be: see `edgepack.fleet.bounds`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from edgepack.base.errors import ConfigError
from edgepack.fleet.bounds import MAX_DEPTH, MAX_VALUES


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

"""fleet.toml: see docs/reference/fleet-toml.md.

[fleet]          name
[rollout]        canary, waves, parallel, ...: `edgepack.fleet.plan.Settings`
[defaults]       variables of every device
[groups.NAME]    devices, children, and variables of the group
[devices.NAME]   variables of one device, or of a range of them
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgepack.base.errors import ConfigError, UsageError
from edgepack.base.tables import Table, read_toml
from edgepack.device.options import Address
from edgepack.device.patience import parse_rate
from edgepack.fleet.inventory import ALL, Inventory, home_path, is_sshs_own
from edgepack.fleet.names import RangeError, expand
from edgepack.fleet.plan import Settings

# Names go to the command line (--limit), to file names and to ssh.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_NAME_HINT = "letters, digits, `.`, `_`, `-`; user, port and address are keys of their own"


def read_fleet_toml(path: Path) -> tuple[Inventory, Settings, str | None]:
    """The devices, how a rollout goes through them, and the fleet's name if it is given.

    Raises ConfigError naming the key and the value that is wrong.
    """
    top = Table(read_toml(path), file=path)
    fleet = top.take_table("fleet", required=False)
    name = None
    if fleet is not None:
        name = fleet.take("name", str, None)
        if name is not None and not _NAME.fullmatch(name):
            raise fleet.fail("name", f"{name!r} is not a name", hint=_NAME_HINT)
        fleet.finish()
    rollout = top.take_table("rollout", required=False)
    settings = Settings.from_table(rollout) if rollout is not None else Settings()

    inventory = Inventory(file=path)
    defaults = top.take_table("defaults", required=False)
    if defaults is not None:
        inventory.group(ALL).variables = _variables(defaults)
    for group_name, table in _tables(top, "groups"):
        if not _NAME.fullmatch(group_name) or group_name == ALL:
            raise top.fail(f"groups.{group_name}", "not a name for a group", hint=_NAME_HINT)
        group = inventory.group(group_name)
        group.children = list(table.take_list("children", str, ()))
        for pattern in table.take_list("devices", str, ()):
            for host in _names(table, "devices", pattern):
                inventory.add_host(host)
                inventory.put(host, group)
        group.variables = _variables(table)
    for pattern, table in _tables(top, "devices"):
        variables = _variables(table)
        for host in _names(top, f"devices.{pattern}", pattern):
            inventory.add_host(host).update(variables)
    top.finish()
    _check_names(inventory)
    if not inventory.hosts:
        raise ConfigError(
            f"{path}: no devices in it", hint='for example [groups.shops] devices = ["shop[01:50]"]'
        )
    if isinstance(settings.canary, str) and settings.canary not in inventory.groups:
        raise ConfigError(
            f"{path}: rollout.canary: {settings.canary!r} is not a group",
            hint='a number of devices, a percentage ("5%") or a group',
        )
    return inventory, settings, name


def _tables(top: Table, key: str) -> Iterator[tuple[str, Table]]:
    tables: dict[str, Any] = top.take(key, dict, {})
    inner = Table(tables, file=top.file, path=key)
    for name in tables:
        table = inner.take_table(name)
        assert table is not None
        yield name, table


def _names(table: Table, key: str, pattern: str) -> Iterator[str]:
    try:
        names = expand(pattern)
    except RangeError as error:
        raise table.fail(key, f"{pattern!r}: {error}") from None
    for name in names:
        if not _NAME.fullmatch(name):
            raise table.fail(key, f"{name!r} is not a name for a device", hint=_NAME_HINT)
        yield name


def _check_names(inventory: Inventory) -> None:
    for name in inventory.groups.keys() & inventory.hosts.keys():
        raise ConfigError(
            f"{inventory.file}: {name} is a group and a device",
            hint="give one of them another name: --limit must know which is meant",
        )


def _variables(table: Table) -> dict[str, Any]:
    """The variables that `table` sets; finishes it."""
    values: dict[str, Any] = {}
    for key in ("board", "address", "user", "root"):
        values[key] = table.take(key, str, None)
        if values[key] is not None:
            _check_word(table, key, values[key])
    values["port"] = table.take("port", int, None)
    if values["port"] is not None and not 0 < values["port"] < 65536:
        raise table.fail("port", f"{values['port']} is not between 1 and 65535")
    if table.has("jump"):
        values["jump"] = table.take_list("jump", str)
        for hop in values["jump"]:
            try:
                Address.parse(hop)
            except UsageError:
                raise table.fail("jump", f"{hop!r} is not user@host or user@host:port") from None
    for key in ("identity", "known_hosts"):
        text = table.take(key, str, None)
        if text is not None:
            _check_word(table, key, text)
            values[key] = _ssh_file(table, key, text)
    if (text := table.take("limit_rate", str, None)) is not None:
        values["limit_bytes_s"] = parse_rate(text)
        if values["limit_bytes_s"] is None:
            raise table.fail("limit_rate", f"{text!r} is not a rate", hint='"200k" or "1.5M"')
    if table.has("labels"):
        values["labels"] = _labels(table)
    table.finish()
    return {key: value for key, value in values.items() if value is not None}


def _ssh_file(table: Table, key: str, text: str) -> Path:
    """A key, or a file of known hosts: beside the fleet's file, or where `ssh` keeps its own."""
    path = home_path(text)
    return path if is_sshs_own(key, path) else table.file_inside(key, str(path))


def _check_word(table: Table, key: str, value: str) -> None:
    if value != value.strip() or not value or value.startswith("-") or not value.isprintable():
        raise table.fail(key, f"{value!r} cannot be used")


def _labels(table: Table) -> dict[str, str]:
    given: dict[str, Any] = table.take("labels", dict)
    labels = Table(given, file=table.file, path=table.name("labels"))
    for key in given:
        if not _NAME.fullmatch(key):
            raise labels.fail(key, "not a name for a label", hint=_NAME_HINT)
    return {key: labels.take(key, str) for key in given}

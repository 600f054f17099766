"""The devices of a fleet: who is in which group, and which value of a variable counts.

fleet.toml (`edgepack.fleet.fleet_toml`) and Ansible inventories (`edgepack.fleet.ansible`)
are both read into an `Inventory`; `Inventory.devices` works out the rest.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgepack.base.errors import ConfigError, UsageError, perhaps
from edgepack.base.text import one_line
from edgepack.device import adb
from edgepack.device.options import Address
from edgepack.fleet.bounds import MAX_DEPTH, MAX_MEMBERS

ALL = "all"
UNGROUPED = "ungrouped"
VIRTUAL = "virtual"
SSH_PORT = 22
# What may be said of a device, at every level: the fields of `FleetDevice` but its name.
Variables = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetDevice:
    """One device: what it is, where it is, how to get in.

    `address` is a host name, an IP address, an alias of the OpenSSH configuration, "adb:SERIAL"
    for a phone, or "virtual" for a virtual board named after the device; it is `name` unless
    given. `jump` are the hosts on the way, first to last, as user@host:port; with `user`,
    `port`, `identity` and `known_hosts` they are for SSH. `root` is the folder of the
    model there (None: the default). `limit_bytes_s` bounds uploads to it. `groups` are all
    groups it is in, also those above.
    """

    name: str
    address: str
    board: str | None = None
    user: str | None = None
    port: int | None = None
    jump: tuple[str, ...] = ()
    identity: Path | None = None
    known_hosts: Path | None = None
    root: str | None = None
    limit_bytes_s: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The address as one word: user@host:port, adb:SERIAL."""
        if self.address.startswith(adb.PREFIX):
            return self.address
        return str(Address(host=self.address, user=self.user, port=self.port))

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "device": self.name,
            "address": self.where,
            "board": self.board,
            "jump": list(self.jump),
            "groups": list(self.groups),
            "labels": dict(self.labels),
        }


@dataclass(kw_only=True)
class Group:
    """A group as it is written: `hosts` and `children` by name.

    A higher `priority` counts more.
    """

    hosts: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)
    priority: int = 1


@dataclass(kw_only=True)
class Inventory:
    """Hosts with their own variables, groups by name, and the file both are from.

    Of groups that say different things, the deeper one counts, then the one with the higher
    priority, then the later one in `groups`: Ansible's rule. What a host says itself counts
    most. Labels of several levels are joined, unless `join_labels` is off.
    """

    file: Path
    join_labels: bool = True
    groups: dict[str, Group] = field(default_factory=dict)
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    _members: int = 0

    def group(self, name: str) -> Group:
        """The group `name`, made if it is new."""
        return self.groups.setdefault(name, Group())

    def put(self, host: str, group: Group) -> None:
        """Put `host` into `group`. Raises ConfigError for one of far too many."""
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise ConfigError(
                f"{self.file}: more than {MAX_MEMBERS} hosts, those of ranges among them"
            )
        group.hosts.append(host)

    def add_host(self, name: str) -> dict[str, Any]:
        """The variables of host `name`, which is added if it is new."""
        return self.hosts.setdefault(name, {})

    def devices(self) -> tuple[FleetDevice, ...]:
        """All devices, in the order of the file.

        Raises ConfigError if groups contain each other, a child is no group, or two devices
        are the same one.
        """
        order = self._ranks()
        above = {name: self._above(name) for name in self.groups}
        member: dict[str, tuple[str, ...]] = dict.fromkeys(self.hosts, ())
        # Of a million hosts most are in the same groups, and have one tuple.
        known: dict[tuple[str, ...], tuple[str, ...]] = {}
        for name, group in self.groups.items():
            for host in group.hosts:
                more = (*member[host], name)
                member[host] = known.setdefault(more, more)
        shared: dict[tuple[str, ...], tuple[tuple[str, ...], dict[str, Any]]] = {}
        devices = []
        for host, own in self.hosts.items():
            direct = member[host]
            if direct not in shared:
                names = {name for group in direct for name in above[group]} | {ALL}
                groups = tuple(sorted(names & order.keys(), key=order.__getitem__))
                levels = [self.groups[name].variables for name in groups]
                named = tuple(name for name in groups if name not in (ALL, UNGROUPED))
                shared[direct] = named, self._merged(levels)
            groups, variables = shared[direct]
            values = self._merged((variables, own)) if own else variables
            devices.append(_device(host, values, groups))
        _check_addresses(self.file, devices)
        return tuple(devices)

    def _merged(self, levels: Iterable[Variables]) -> dict[str, Any]:
        """One level over the other."""
        merged: dict[str, Any] = {}
        for level in levels:
            labels = {**merged.get("labels", {}), **level.get("labels", {})}
            merged |= level
            if labels and self.join_labels:
                merged["labels"] = labels
        return merged

    def _above(self, name: str) -> set[str]:
        """`name` and all groups that it is in."""
        found: set[str] = set()
        todo = [name]
        while todo:
            at = todo.pop()
            if at not in found:
                found.add(at)
                todo += self._parents.get(at, ())
        return found

    def _ranks(self) -> dict[str, tuple[int, int, int]]:
        """For each group what it is sorted by: depth, priority, position."""
        self._parents: dict[str, list[str]] = {}
        for name, group in self.groups.items():
            for child in group.children:
                if child not in self.groups:
                    raise ConfigError(
                        f"{self.file}: group {name}: no such child group: {child}",
                        hint=perhaps(child, self.groups),
                    )
                self._parents.setdefault(child, []).append(name)
        depths: dict[str, int] = {ALL: 0}

        def depth(name: str, below: tuple[str, ...]) -> int:
            if name in below:
                circle = " > ".join((*below[below.index(name) :], name))
                raise ConfigError(f"{self.file}: groups contain each other: {circle}")
            if len(below) > MAX_DEPTH:
                raise ConfigError(f"{self.file}: groups are nested more than {MAX_DEPTH} deep")
            if name not in depths:
                parents = [depth(parent, (*below, name)) for parent in self._parents.get(name, ())]
                depths[name] = 1 + max(parents, default=0)
            return depths[name]

        return {
            name: (depth(name, ()), group.priority, position)
            for position, (name, group) in enumerate(self.groups.items())
        }


def is_sshs_own(key: str, path: Path) -> bool:
    """Whether `path`, an "identity" or "known_hosts", lies where `ssh` looks for such files."""
    folder = path.parent == Path.home() / ".ssh"
    return folder and (key == "identity" or path.name.startswith("known_hosts"))


def home_path(text: str) -> Path:
    """The path `text`, with `~` for the home folder; one of nobody is left as it is."""
    # Path.expanduser raises RuntimeError for it.
    return Path(os.path.expanduser(text))  # noqa: PTH111


def select(
    devices: Sequence[FleetDevice], limits: Sequence[str], *, file: Path
) -> tuple[FleetDevice, ...]:
    """The devices that `limits` leave: all of them without any.

    A limit names a group, a device, or a label (`site=berlin`); `*` and `?` stand for any
    letters; one that begins with `!` leaves out. Limits that include are added together.
    Raises UsageError for one that nothing answers to, and if no device is left.
    """
    if not limits:
        return tuple(devices)
    wanted = [limit for limit in limits if not limit.startswith("!")]
    unwanted = [limit[1:] for limit in limits if limit.startswith("!")]
    kept = {device.name for limit in wanted for device in _matching(devices, limit, file)}
    out = {device.name for limit in unwanted for device in _matching(devices, limit, file)}
    left = tuple(
        device
        for device in devices
        if (not wanted or device.name in kept) and device.name not in out
    )
    if not left:
        raise UsageError(f"--limit {' --limit '.join(limits)}: no device is left")
    return left


def _matching(devices: Sequence[FleetDevice], limit: str, file: Path) -> list[FleetDevice]:
    label, equals, value = limit.partition("=")
    if equals:
        found = [
            device
            for device in devices
            if label in device.labels and fnmatch.fnmatchcase(device.labels[label], value)
        ]
    else:
        found = [
            device
            for device in devices
            if limit == ALL
            or any(fnmatch.fnmatchcase(name, limit) for name in (device.name, *device.groups))
        ]
    if not found:
        known = {name for device in devices for name in (device.name, *device.groups)}
        known |= {f"{key}={text}" for device in devices for key, text in device.labels.items()}
        near = perhaps(limit, known)
        raise UsageError(
            f"--limit: no group, device or label of {file} is called {limit!r}",
            # A list of ten thousand names helps nobody.
            hint=near if near.startswith("perhaps") else "`edgepack fleet plan` lists them",
        )
    return found


def _device(name: str, values: Variables, groups: tuple[str, ...]) -> FleetDevice:
    address = values.get("address", "{name}").replace("{name}", name)
    return FleetDevice(**{**values, "name": name, "address": address, "groups": groups})


def _check_addresses(file: Path, devices: Iterable[FleetDevice]) -> None:
    """Raise ConfigError for what is no address, or one of two devices: they would be in each
    other's way."""
    seen: dict[tuple[object, ...], str] = {}
    for device in devices:
        if device.address == VIRTUAL:
            continue
        try:
            key = _place(device)
        except UsageError:
            is_ssh = device.user is not None and not device.address.startswith(adb.PREFIX)
            shown = one_line(repr(f"{device.user}@" * is_ssh + device.address))
            raise ConfigError(
                f"{file}: {device.name}: not an address: {shown}",
                hint="a host name, an IP address, an alias of ~/.ssh/config or adb:SERIAL",
            ) from None
        if key in seen:
            raise ConfigError(
                f"{file}: {seen[key]} and {device.name} have the same address: {device.where}",
                hint="a group's address may hold {name}: it stands for the device's name",
            )
        seen[key] = device.name


def _place(device: FleetDevice) -> tuple[object, ...]:
    """What two devices cannot have in common. Raises UsageError for what is no address."""
    serial = adb.serial_of(device.address)
    if serial is not None:
        return adb.PREFIX, serial
    Address.parse(device.where)
    return _host(device.address), device.port or SSH_PORT, *map(_hop, device.jump)


def _host(name: str) -> str:
    """One spelling of a host: names by case and a last dot, addresses by how they are written."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        usual = name.lower().removesuffix(".")
        return name if name == usual else usual  # one text rather than two that are equal


def _hop(text: str) -> tuple[str | None, str, int]:
    """The same of a host on the way; what is no address is told when it is used."""
    try:
        address = Address.parse(text)
    except UsageError:
        return None, text, SSH_PORT
    return address.user, _host(address.host), address.port or SSH_PORT

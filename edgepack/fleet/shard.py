"""A part of a fleet, so that several machines can roll out to it at once.

Which part a device is in depends on its name and the number of parts alone: not on the order of
the file, nor on the machine.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from edgepack.fleet.inventory import FleetDevice

MAX_SHARDS = 10_000
_SHARD = re.compile(r"([1-9]\d{0,4})/([1-9]\d{0,4})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """Part `number` (from 1) of `of`."""

    number: int
    of: int

    @staticmethod
    def parse(text: str) -> Shard | None:
        """The shard in "2/5"; None for anything else."""
        match = _SHARD.fullmatch(text)
        if match is None:
            return None
        number, of = int(match[1]), int(match[2])
        return Shard(number=number, of=of) if number <= of <= MAX_SHARDS else None

    def has(self, name: str) -> bool:
        """Whether the device of that name is in it."""
        digest = hashlib.sha256(name.encode()).digest()
        return int.from_bytes(digest[:8], "big") % self.of == self.number - 1

    def take(self, devices: Iterable[FleetDevice]) -> tuple[FleetDevice, ...]:
        """Those of `devices` that are in it."""
        return tuple(device for device in devices if self.has(device.name))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

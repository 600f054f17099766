"""Fleets: many devices, one release for each board, wave by wave.

    fleet = load_fleet(Path("fleet.toml"))
    devices = with_boards(fleet.devices, load_boards(), None)
    with Journal(fleet.journal("flowers")) as journal:
        plan = make_plan(devices, fleet.settings)
        result = roll_out(plan, fleet.settings, work, watcher, journal=journal)

`load_fleet` reads fleet.toml or an Ansible inventory. What is done with a device is a `Work`:
`edgepack.fleet.work` has the real ones. A `Watcher` is told what happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgepack.base.errors import ConfigError
from edgepack.fleet.inventory import FleetDevice, select
from edgepack.fleet.journal import Journal
from edgepack.fleet.plan import RolloutPlan, Settings, Share, Wave, make_plan, with_boards
from edgepack.fleet.rollout import Done, Outcome, RolloutResult, Stop, Watcher, Work, roll_out
from edgepack.fleet.shard import Shard

__all__ = [
    "Done",
    "Fleet",
    "FleetDevice",
    "Journal",
    "Outcome",
    "RolloutPlan",
    "RolloutResult",
    "Settings",
    "Share",
    "Stop",
    "Watcher",
    "Wave",
    "Work",
    "load_fleet",
    "make_plan",
    "roll_out",
    "select",
    "with_boards",
]


_SUFFIXES = ("", ".json", ".toml", ".yaml", ".yml")


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The content of a fleet file: its devices in order, and the settings of a rollout."""

    name: str
    file: Path
    devices: tuple[FleetDevice, ...]
    settings: Settings

    def journal(self, model: str, folder: Path | None = None, shard: Shard | None = None) -> Path:
        """Return the path of the journal of this fleet or shard and `model` (a bundle's name).

        It is beside the fleet's file, or in `folder`. Its name begins with a dot, so that
        Ansible does not read it as part of the inventory.
        """
        part = "" if shard is None else f"@{shard.number}-of-{shard.of}"
        return (folder or self.file.parent / ".edgepack") / self.name / f"{model}{part}.jsonl"


def load_fleet(path: str | Path) -> Fleet:
    """Return the fleet in `path`: a .toml file is a fleet.toml, any other file an Ansible
    inventory.

    A folder stands for the only such file in it. Raises ConfigError, which names the error and
    its place.
    """
    path = Path(path)
    if path.is_dir():
        path = _only_file(path)
    if path.suffix == ".toml":
        from edgepack.fleet.fleet_toml import read_fleet_toml

        inventory, settings, name = read_fleet_toml(path)
    else:
        from edgepack.fleet.ansible import read_inventory

        inventory, settings, name = read_inventory(path), Settings(), None
    return Fleet(name=name or path.stem, file=path, devices=inventory.devices(), settings=settings)


def _only_file(folder: Path) -> Path:
    """The inventory in `folder`, beside group_vars/ and the like; several are not put together."""
    files = [
        file
        for file in sorted(folder.iterdir())
        if file.is_file() and not file.name.startswith(".") and file.suffix in _SUFFIXES
    ]
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise ConfigError(
            f"{folder} is a folder, and not of one inventory: {found}",
            hint="name a file in it, or `ansible-inventory --list -i DIR > fleet.json`",
        )
    return files[0]

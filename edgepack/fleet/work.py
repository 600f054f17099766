"""What is done with one device of a fleet, over its real connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from edgepack.boards import Board
from edgepack.bundle import Bundle
from edgepack.deploy import KEEP_RELEASES, deploy_bundle
from edgepack.device import Device, SshOptions, open_device, open_virtual
from edgepack.fleet.inventory import VIRTUAL, FleetDevice
from edgepack.fleet.rollout import Done

Connect = Callable[[FleetDevice], Device]


@dataclass(frozen=True, kw_only=True)
class Connector:
    """Connects to a device as the fleet says, and where it says nothing as `options` do."""

    boards: Mapping[str, Board]
    options: SshOptions

    def __call__(self, device: FleetDevice) -> Device:
        board = self.boards[str(device.board)]
        if device.address == VIRTUAL:
            from edgepack import virtual

            return open_virtual(virtual.up(board, name=device.name))
        options = replace(
            self.options,
            jump=device.jump,
            identity=device.identity or self.options.identity,
            known_hosts=device.known_hosts or self.options.known_hosts,
        )
        return open_device(device.where, board, options=options)


@dataclass(frozen=True, kw_only=True)
class Deploy:
    """Bring each device the bundle of its board; `root` is the folder for those that name none."""

    bundles: Mapping[str, Bundle]
    connect: Connect
    root: str
    keep: int = KEEP_RELEASES
    action: str = "deploy"

    def wanted(self, device: FleetDevice) -> str | None:
        """See `Work.wanted`."""
        return self._bundle(device).manifest.release

    def __call__(self, device: FleetDevice) -> Done:
        """See `Work`."""
        remote = self.connect(device)
        try:
            report = deploy_bundle(
                self._bundle(device), remote, device.root or self.root, keep=self.keep
            )
        finally:
            remote.close()
        details = {"sent_bytes": report.sent_bytes, "before": report.before}
        return Done(outcome=report.outcome, release=report.release, details=details)

    def _bundle(self, device: FleetDevice) -> Bundle:
        return self.bundles[str(device.board)]

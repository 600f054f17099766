"""What is done with one device of a fleet, over its real connection."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from edgepack.boards import Board
from edgepack.bundle import Bundle
from edgepack.deploy import KEEP_RELEASES, deploy_bundle
from edgepack.device import Device, SshOptions, open_device, open_virtual
from edgepack.errors import RemoteError
from edgepack.fleet.inventory import VIRTUAL, FleetDevice
from edgepack.fleet.rollout import Done
from edgepack.release import Layout

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
class _OnDevice:
    """What all kinds of work share: `root` is the folder on devices that name none."""

    connect: Connect
    root: str

    @contextlib.contextmanager
    def _open(self, device: FleetDevice) -> Iterator[tuple[Device, str]]:
        """The connected device, and the folder of the model on it."""
        remote = self.connect(device)
        try:
            yield remote, device.root or self.root
        finally:
            remote.close()


@dataclass(frozen=True, kw_only=True)
class Deploy(_OnDevice):
    """Bring each device the bundle of its board."""

    bundles: Mapping[str, Bundle]
    keep: int = KEEP_RELEASES
    action: str = "deploy"

    def wanted(self, device: FleetDevice) -> str | None:
        """See `Work.wanted`."""
        return self.bundles[str(device.board)].manifest.release

    def __call__(self, device: FleetDevice) -> Done:
        """See `Work`."""
        bundle = self.bundles[str(device.board)]
        with self._open(device) as (remote, root):
            report = deploy_bundle(bundle, remote, root, keep=self.keep)
        details = {"sent_bytes": report.sent_bytes, "before": report.before}
        return Done(outcome=report.outcome, release=report.release, details=details)

    def check(self, device: FleetDevice) -> None:
        """See `Work.check`: the release is current."""
        wanted = self.wanted(device)
        with self._open(device) as (remote, root):
            link = Layout.of(root).enter("readlink current")
            current = remote.run(link, check=False).stdout.strip()
        if current != f"releases/{wanted}":
            raise RemoteError(
                f"{device.name}: release {wanted} is not current any more, but {current or 'none'}"
            )

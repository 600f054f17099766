"""What is done with one device of a fleet, over its real connection."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgepack.base.errors import ConfigError, RemoteError, UsageError
from edgepack.boards import Board
from edgepack.bundle.bundle import Bundle
from edgepack.deploy import answers, remote_tool
from edgepack.deploy.act import SERVICE_S, deploy_and_start
from edgepack.deploy.deploy import PhaseLimits, conversation_s
from edgepack.deploy.options import DEFAULT_OPTIONS, DeployOptions
from edgepack.deploy.trial import TrialDroppedError, TrialRunsError, TrialStatus
from edgepack.device import Address, Device, SshOptions, adb, open_device, open_virtual
from edgepack.device.base import is_emulated
from edgepack.device.errors import OtherDeviceError
from edgepack.device.limit import limited
from edgepack.fleet.inventory import VIRTUAL, FleetDevice
from edgepack.fleet.journal import TRIAL, Identity
from edgepack.fleet.rollout import Done

Connect = Callable[[FleetDevice], Device]

CONNECTING_S = 300.0
"""Over hosts on the way, each with some keys to try."""

COMMAND_S = 900.0

NOTHING_BEFORE = "no earlier release"
"""The outcome of a rollback on a device that has had one release only."""


@dataclass(frozen=True, kw_only=True)
class Connector:
    """Connects to a device as the fleet says, and where it says nothing as `options` do."""

    boards: Mapping[str, Board]
    options: SshOptions

    def __call__(self, device: FleetDevice) -> Device:
        board = self.boards[str(device.board)]
        if device.address == VIRTUAL:
            from edgepack import virtual

            return open_virtual(
                virtual.up(board, name=device.name), timeout_s=self.options.command_timeout_s
            )
        options = replace(
            self.options,
            jump=device.jump,
            identity=device.identity or self.options.identity,
            known_hosts=device.known_hosts or self.options.known_hosts,
        )
        return open_device(device.where, board, options=options)


def check_aliases(file: Path, devices: Iterable[FleetDevice], options: SshOptions) -> None:
    """Raise ConfigError for two devices of the fleet `file` that are one: the user's OpenSSH
    configuration gives both names the same HostName, port and way."""
    from edgepack.device.ssh_route import Route

    route = Route(options)
    seen: dict[tuple[str, int, str], str] = {}
    for device in devices:
        if device.address == VIRTUAL or adb.serial_of(device.address) is not None:
            continue
        end = route.destination(Address.parse(device.where), device.jump)
        if end in seen:
            raise ConfigError(
                f"{file}: {seen[end]} and {device.name} are the same host: {end[0]}",
                hint="leave one out; the OpenSSH configuration has both as HostName",
            )
        seen[end] = device.name


def know_nothing(_: FleetDevice) -> Identity:
    """Nothing is known of any device."""
    return Identity()


def _tried_nothing(_: FleetDevice) -> str | None:
    """No trial is known of on any device."""
    return None


@dataclass(frozen=True, kw_only=True)
class _OnDevice:
    """What all kinds of work share: `root` is the folder on devices that name none, `command_s`
    what a command of the device tool may take."""

    connect: Connect
    root: str
    known: Callable[[FleetDevice], Identity] = know_nothing
    """What answered as the device before; another one is refused."""
    command_s: float = COMMAND_S

    @property
    def commands_s(self) -> float:
        """What all of them may take, of which there are three at most."""
        return 3 * self.command_s

    @contextlib.contextmanager
    def _open(self, device: FleetDevice) -> Iterator[tuple[Device, str]]:
        """The connected device, and the folder of the model on it."""
        remote = self.connect(device)
        try:
            before, now = self.known(device).host_key, host_key_of(remote)
            if before and now and before != now:
                raise _another(device, f"its host key is {now}, and was {before}")
            yield remote, device.root or self.root
        finally:
            remote.close()

    def _status(self, device: FleetDevice) -> answers.Status:
        with self._open(device) as (remote, root), limited(remote, self.commands_s, "its status"):
            return remote_tool.status(remote, root)

    def check(self, device: FleetDevice) -> None:
        """See `Work.check`: nothing to look after."""

    def budget_s(self, device: FleetDevice) -> float:
        """See `Work.budget_s`."""
        return CONNECTING_S + self.commands_s


def host_key_of(device: Device) -> str:
    """Of what was connected to over SSH; else empty."""
    return str(getattr(device, "host_key", ""))


def _another(device: FleetDevice, what: str) -> OtherDeviceError:
    return OtherDeviceError(
        f"{device.name}: another device answers at {device.where}: {what}",
        hint=f"if it is meant to be {device.name}: --limit {device.name} --again takes it",
    )


@dataclass(frozen=True, kw_only=True)
class Deploy(_OnDevice):
    """Bring each device the bundle of its board, and with `service` have it run at each boot."""

    bundles: Mapping[str, Bundle]
    options: DeployOptions = DEFAULT_OPTIONS
    service: bool = False
    tried: Callable[[FleetDevice], str | None] = _tried_nothing
    """The release whose trial began on the device: it decides before a deploy does."""
    action: str = "deploy"

    def wanted(self, device: FleetDevice) -> str | None:
        """See `Work.wanted`."""
        return self.bundles[str(device.board)].manifest.release

    def _options(self, device: FleetDevice) -> DeployOptions:
        limit_bytes_s = device.limit_bytes_s or self.options.limit_bytes_s
        machine_id = self.known(device).machine_id
        return replace(self.options, limit_bytes_s=limit_bytes_s, machine_id=machine_id)

    def budget_s(self, device: FleetDevice) -> float:
        """See `Work.budget_s`."""
        bundle = self.bundles[str(device.board)]
        service_s = SERVICE_S if self.service else 0.0
        options = self._options(device)
        looks_s = (1 + options.retries) * PhaseLimits.of(bundle, options).facts_s
        deploy_s = conversation_s(bundle, options, upload=True)
        return CONNECTING_S + looks_s + deploy_s + service_s

    def __call__(self, device: FleetDevice) -> Done:
        """See `Work`."""
        bundle = self.bundles[str(device.board)]
        options = self._options(device)
        with self._open(device) as (remote, root):
            if self.tried(device) == bundle.manifest.release:
                _need_decided(device.name, remote_tool.last_trial(remote, root), bundle)
            try:
                done = deploy_and_start(bundle, remote, root, options=options, service=self.service)
            except OtherDeviceError as error:
                _, its, what = error.message.rpartition(": its ")
                raise _another(device, f"its {what}" if its else error.message) from None
            report = done.report
            details: dict[str, Any] = {"sent_bytes": report.sent_bytes, "before": report.before}
            identity = Identity(host_key_of(remote), report.facts.machine_id)
            details |= {name: text for name, text in identity._asdict().items() if text}
            if done.service is not None:
                details["service"] = done.service["kind"]
        return Done(outcome=report.outcome, release=report.release, details=details)

    def check(self, device: FleetDevice) -> None:
        """See `Work.check`: the release is current, and nothing is being undone."""
        answer, wanted = self._status(device), self.wanted(device)
        release = answer.current.release if answer.current else None
        if release != wanted:
            problem = f"is not current any more, but {release or 'none'}"
        elif answer.pending:
            problem = "is being tested again: the device, or its tool, was restarted"
        else:
            return
        raise RemoteError(
            f"{device.name}: release {wanted} {problem}",
            hint=f"edgepack fleet status --limit {device.name} says more",
        )


@dataclass(frozen=True, kw_only=True)
class BeginTrial(Deploy):
    """Begin a trial of each device's bundle by the rules in `options`; the device decides it.

    Where the release is current already, there is nothing to try.
    """

    action: str = TRIAL

    def __call__(self, device: FleetDevice) -> Done:
        """See `Work`."""
        try:
            return super().__call__(device)
        except UsageError:
            current = self._status(device).current
            if current is None or current.release != self.wanted(device):
                raise
            return Done(outcome="unchanged", release=current.release)

    def check(self, device: FleetDevice) -> None:
        """See `Work.check`: the trial goes on, or has activated the release."""
        with self._open(device) as (remote, root), limited(remote, self.commands_s, "its trial"):
            trial = remote_tool.last_trial(remote, root)
        if trial is None or trial.release != self.wanted(device) or trial.phase == "activated":
            super().check(device)
        elif trial.interrupted or trial.is_over:
            raise RemoteError(
                f"{device.name}: the trial of {trial.summary()}",
                hint=f"edgepack fleet status --limit {device.name} says more",
            )


def _need_decided(name: str, trial: TrialStatus | None, bundle: Bundle) -> None:
    """Raise what speaks against deploying a bundle, of which a trial began there."""
    release = bundle.manifest.release
    if trial is None or trial.release != release:
        return
    anyway = f"`edgepack fleet deploy --limit {name} --again` makes it current all the same"
    if trial.phase == "dropped":
        raise TrialDroppedError(
            f"{name}: its trial dropped release {release}: {trial.reason}", hint=anyway
        )
    if trial.interrupted:
        raise TrialRunsError(
            f"{name}: the trial of release {release} was interrupted, and has not ended",
            hint=f"`edgepack trial resume` on that device, or {anyway}",
        )
    if not trial.is_over:
        left = max(trial.rules.seconds - trial.elapsed_s, 0)
        raise TrialRunsError(
            f"{name}: the trial of release {release} has not ended",
            hint=f"run this again in {left:.0f} s, or {anyway}",
        )


@dataclass(frozen=True, kw_only=True)
class Rollback(_OnDevice):
    """Go back from the release in `leave` (device: release) to the one before it.

    A device that has another release by now is left alone, so that a rollback that was cut
    off can be done again. One that is not in `leave` goes back from whatever it has. Where there is
    no release before, the one that is there stays: that is no failure of the device.
    """

    leave: Mapping[str, str]
    tried: Callable[[FleetDevice], str | None] = _tried_nothing
    """The release whose trial began on the device: if it runs still, it is stopped."""
    action: str = "rollback"

    def wanted(self, device: FleetDevice) -> str | None:
        """See `Work.wanted`: only the device knows what was there before."""

    def __call__(self, device: FleetDevice) -> Done:
        """See `Work`."""
        with self._open(device) as (remote, root), limited(remote, self.commands_s, "the rollback"):
            status = remote_tool.status(remote, root)
            before = status.current.release if status.current else None
            if before != self.leave.get(device.name, before):
                stopped = self._stop_trial(device, remote, root)
                return Done(outcome="trial stopped" if stopped else "unchanged", release=before)
            if status.previous is None:
                return Done(outcome=NOTHING_BEFORE, release=before)
            done = remote_tool.rollback(remote, root)
        return Done(outcome="rolled back", release=done.release, details={"before": before})

    def _stop_trial(self, device: FleetDevice, remote: Device, root: str) -> bool:
        """Whether there was one to stop, of the release that is to be undone."""
        if (release := self.tried(device)) is None:
            return False
        trial = remote_tool.last_trial(remote, root)
        if trial is None or trial.release != release or trial.is_over:
            return False
        return remote_tool.trial(remote, root, "stop").phase == "stopped"


@dataclass(frozen=True, kw_only=True)
class AskStatus(_OnDevice):
    """Ask each device what it runs; the outcome is that of its last health test."""

    action: str = "status"

    def wanted(self, device: FleetDevice) -> str | None:
        """See `Work.wanted`."""

    def __call__(self, device: FleetDevice) -> Done:
        """See `Work`."""
        with self._open(device) as (remote, root), limited(remote, self.commands_s, "its status"):
            answer = remote_tool.status_with_source(remote, root)
            trial = remote_tool.last_trial(remote, root) if answer.current else None
            emulated = is_emulated(remote)
        current = answer.current
        if current is None:
            return Done(outcome="empty", release=None)
        health = current.health
        # One that is about neither is history.
        if trial and current.release not in (trial.release, trial.before):
            trial = None
        return Done(
            outcome="testing" if answer.pending else health.outcome if health else "untested",
            release=current.release,
            details={
                "version": current.version,
                "model": current.model,
                "model_sha256": current.model_sha256,
                "since": current.since,
                "by": current.by,
                "latency_ms": health.latency_ms if health else None,
                "emulated": emulated,
                "tool": answer.tool,
                "source": str(answer.source) if answer.source else None,
                "trial": trial.summary() if trial else None,
                "trial_phase": trial.phase if trial else None,
            },
        )


@dataclass(frozen=True, kw_only=True)
class SetTrust(_OnDevice):
    """Have each device take bundles of `signers` (a list as in ssh-keygen(1)) and no others."""

    signers: bytes
    action: str = "trust"

    def wanted(self, device: FleetDevice) -> str | None:
        """See `Work.wanted`."""

    def __call__(self, device: FleetDevice) -> Done:
        """See `Work`."""
        with self._open(device) as (remote, root), limited(remote, self.commands_s, "the signers"):
            answer = remote_tool.set_signers(remote, root, self.signers)
        return Done(outcome="set", release=None, details={"signers": ", ".join(answer.signers)})

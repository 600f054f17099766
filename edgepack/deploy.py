"""Deploy: bring a bundle to a device so that it has either the old release or the new one.

    facts -> gate -> lock, state -> plan -> steps -> Report

Nothing is written before the gate. A release is uploaded beside the others, checked
there, flushed and renamed; `current` is switched by renaming a link. If the smoke test
fails, `current` goes back.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shlex
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from edgepack import gate
from edgepack.bundle import Bundle
from edgepack.device.base import Device
from edgepack.device.errors import ConnectionLostError, DiskFullError
from edgepack.errors import EdgepackError, MismatchError, RemoteError
from edgepack.facts import DeviceFacts, gather
from edgepack.progress import NO_PROGRESS, Progress
from edgepack.release import (
    MODEL_FOLDER,
    DeployPlan,
    DeviceState,
    FileState,
    Layout,
    Send,
    Step,
    flush_command,
    link_command,
    parse_state,
    parse_sums,
    plan,
    state_command,
    wanted_files,
)
from edgepack.smoke import Smoke, from_record, run_smoke, to_record

log = logging.getLogger(__name__)

KEEP_RELEASES = 3
_MARK = "@@edgepack:boot:"
# Tokens of the locks that this process holds now.
_held: set[str] = set()


class LockedError(RemoteError):
    """Another deploy to the same folder is under way."""


class CorruptTransferError(RemoteError):
    """A file differs from the bundle's although it was sent twice."""


class SmokeTestError(RemoteError):
    """The release does not run on the device; the one before is current again."""


class OutputsDifferError(MismatchError):
    """The release computes something else there; the one before is current again."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a deploy did.

    `outcome` is "deployed" (files were sent or linked), "activated" (the release was there
    already), or "unchanged". `before` was current until now; `previous` is what a rollback
    would go to. `smoke_fresh` tells a smoke test of now from the record of an earlier one.
    `seconds` has the wall time of each phase.
    """

    device: str
    root: str
    release: str
    outcome: str
    before: str | None
    previous: str | None
    sent_bytes: int
    model_bytes_sent: int
    sent_files: tuple[str, ...]
    reused_files: tuple[str, ...]
    removed: tuple[str, ...]
    smoke: Smoke
    smoke_fresh: bool
    facts: DeviceFacts
    seconds: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        return {**asdict(self), "facts": self.facts.to_dict()}


def preview(bundle: Bundle, device: Device, root: str, *, keep: int = KEEP_RELEASES) -> DeployPlan:
    """What `deploy_bundle` would do, for --dry-run: only reads from the device.

    Raises what the gate and the device raise.
    """
    layout = Layout.of(root)
    facts = _checked_facts(bundle, device, layout)
    release = bundle.manifest.release
    answer = device.run(state_command(layout, release, facts.sha256sum)).stdout
    return _plan(bundle, facts, parse_state(answer, release), keep)


def deploy_bundle(
    bundle: Bundle,
    device: Device,
    root: str,
    *,
    keep: int = KEEP_RELEASES,
    progress: Progress = NO_PROGRESS,
) -> Report:
    """Make `bundle` the current release below `root` on `device`, and test it there.

    Whatever happens on the way, `current` names a whole release, or none. A deploy
    that was interrupted goes on where it stopped when it is called again.

    Raises:
        GateError: the bundle does not fit the device; nothing was written.
        LockedError: another deploy is under way.
        DiskFullError: the upload was removed again.
        CorruptTransferError, RemoteCommandError, ConnectionLostError: see there.
        SmokeTestError, OutputsDifferError: `current` is what it was before.
    """
    layout = Layout.of(root)
    clock = _Clock()
    with clock.phase("facts", progress, f"asking {device.name} what it is"):
        facts = _checked_facts(bundle, device, layout)
    release = bundle.manifest.release
    with contextlib.ExitStack() as stack:
        with clock.phase("state", progress, f"looking at {root} there"):
            answer = stack.enter_context(_locked(device, layout, release, facts))
            state = parse_state(answer, release)
        work = _Deploy(
            bundle=bundle,
            device=device,
            layout=layout,
            facts=facts,
            state=state,
            plan=_plan(bundle, facts, state, keep),
            clock=clock,
            progress=progress,
        )
        return work.run()


def _plan(bundle: Bundle, facts: DeviceFacts, state: DeviceState, keep: int) -> DeployPlan:
    tested = from_record(state.smoke, facts.fingerprint) is not None
    todo = plan(bundle, state, tested=tested, sha256sum=facts.sha256sum, keep=keep)
    if todo.send_bytes:
        gate.check_device(bundle, facts, send_bytes=todo.send_bytes)
    return todo


def _checked_facts(bundle: Bundle, device: Device, layout: Layout) -> DeviceFacts:
    facts = gather(device, layout.root)
    # Space is another matter: files that are there already need none.
    gate.check_device(bundle, facts, send_bytes=0)
    if not facts.sha256sum:
        raise RemoteError(
            f"{device.name} has no sha256sum, so an upload cannot be checked",
            hint="install coreutils or busybox there",
        )
    return facts


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str, progress: Progress, text: str) -> Iterator[None]:
        log.info("%s", text)
        progress.step(text)
        start = time.monotonic()
        try:
            yield
        finally:
            passed = time.monotonic() - start
            self.seconds[name] = round(self.seconds.get(name, 0.0) + passed, 3)


@dataclass(kw_only=True)
class _Deploy:
    """Does the steps of a plan while the lock is held."""

    bundle: Bundle
    device: Device
    layout: Layout
    facts: DeviceFacts
    state: DeviceState
    plan: DeployPlan
    clock: _Clock
    progress: Progress
    sent: dict[str, int] = field(default_factory=dict)

    @property
    def release(self) -> str:
        return self.plan.release

    def run(self) -> Report:
        smoke: Smoke | None = None
        for step in self.plan.steps:
            with self.clock.phase(step.kind, self.progress, f"{step.kind}: {step.text}"):
                match step.kind:
                    case "prepare":
                        with self._room():
                            self._run(" && ".join(step.commands))
                    case "send":
                        with self._room():
                            self._send(step.sends)
                    case "verify":
                        with self._room():
                            self._verify(step)
                    case "publish":
                        self._publish()
                    case "activate":
                        self._activate(step)
                    case "smoke":
                        smoke = self._smoke_or_back()
                    case "prune":
                        self._run(" && ".join(step.commands))
        return self._report(smoke)

    def _report(self, smoke: Smoke | None) -> Report:
        tested = smoke or from_record(self.state.smoke, self.facts.fingerprint)
        assert tested is not None  # the plan tests what has no record
        uploaded, switched = self.plan.has("publish"), self.plan.has("activate")
        before = self.state.current
        return Report(
            device=self.device.name,
            root=self.layout.root,
            release=self.release,
            outcome="deployed" if uploaded else "activated" if switched else "unchanged",
            before=before,
            previous=self.state.previous if before in (None, self.release) else before,
            sent_bytes=sum(self.sent.values()),
            model_bytes_sent=sum(
                size for path, size in self.sent.items() if path.startswith(MODEL_FOLDER)
            ),
            sent_files=tuple(self.sent),
            reused_files=self.plan.reused,
            removed=self.plan.removed,
            smoke=tested,
            smoke_fresh=smoke is not None,
            facts=self.facts,
            seconds=self.clock.seconds,
        )

    def _run(self, command: str) -> str:
        return self.device.run(self.layout.enter(command)).stdout

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        """If the disk gets full, remove the upload: the device needs the space to live."""
        try:
            yield
        except DiskFullError:
            self._run(f"rm -rf releases/{self.release}.part")
            raise

    def _send(self, sends: tuple[Send, ...]) -> None:
        total = sum(send.size - send.offset for send in sends)
        with self.progress.bar(f"upload to {self.device.name}", total) as bar:
            for send in sends:
                self.device.put(
                    self.bundle.file(send.path),
                    self.layout.at(f"releases/{self.release}.part/{send.path}"),
                    offset=send.offset,
                    sent=bar.update,
                )
                self.sent[send.path] = self.sent.get(send.path, 0) + send.size - send.offset

    def _verify(self, step: Step) -> None:
        wanted = wanted_files(self.bundle)
        bad = self._bad(step, wanted)
        if bad:
            # A damaged source of a link, or of the rest of a cut upload: send it whole.
            log.info("sending again: %s", ", ".join(bad))
            part = f"releases/{self.release}.part"
            self._run("rm -f -- " + " ".join(f"{part}/{path}" for path in bad))
            self._send(tuple(Send(path=path, offset=0, size=wanted[path].size) for path in bad))
            bad = self._bad(step, wanted)
        if bad:
            raise CorruptTransferError(
                f"{', '.join(bad)}: not the same on {self.device.name} although sent twice",
                hint="its memory or disk may be failing (dmesg says more)",
            )

    def _bad(self, step: Step, wanted: Mapping[str, FileState]) -> list[str]:
        done = self.device.run(self.layout.enter(" && ".join(step.commands)), check=False)
        found = parse_sums(done.stdout)
        return sorted(path for path, file in wanted.items() if found.get(path) != file.sha256)

    def _publish(self) -> None:
        folder = f"releases/{self.release}"
        if self.plan.replaces:
            self._run(f"rm -rf {folder}.old && mv {folder} {folder}.old")
        self.device.rename(self.layout.at(f"{folder}.part"), self.layout.at(folder))

    def _activate(self, step: Step) -> None:
        old = f"releases/{self.release}.old"
        clean = f"rm -rf {old} && " if self.plan.replaces else ""
        self._run(clean + flush_command("releases") + " && " + " && ".join(step.commands))
        if len(step.commands) > 1:
            self._switch("previous")
        self._switch("current")

    def _switch(self, link: str) -> None:
        self.device.rename(self.layout.at(f"{link}.new"), self.layout.at(link))

    def _smoke_or_back(self) -> Smoke:
        try:
            smoke = run_smoke(self.device, self.layout, self.bundle)
        except ConnectionLostError:
            raise
        except EdgepackError as error:
            went = self._go_back()
            kind = OutputsDifferError if isinstance(error, MismatchError) else SmokeTestError
            raise kind(
                f"smoke test of release {self.release} failed: {error.message}\n{went}",
                hint=error.hint,
            ) from error
        record = shlex.quote(to_record(smoke, self.facts.fingerprint))
        file = f"releases/{self.release}.smoke.json"
        # Without the record the next deploy tests again, which is no harm.
        self.device.run(
            self.layout.enter(
                f"{{ printf '%s\\n' {record} >{file}.new && mv {file}.new {file}; "
                f"{flush_command('releases .')}; }}"
            ),
            check=False,
        )
        return smoke

    def _go_back(self) -> str:
        """Make the release before current again; a sentence that says so."""
        state = self.state
        target = state.current if state.current != self.release else state.previous
        if target is None:
            self._run("rm -f current && " + flush_command("."))
            return "There is no release before it, so none is current now."
        commands = [link_command(f"releases/{target}", "current")]
        older = state.previous if state.previous != target else None
        if older:
            commands.append(link_command(f"releases/{older}", "previous"))
        self._run(" && ".join(commands))
        self._switch("current")
        if len(commands) > 1:
            self._switch("previous")
        else:
            self._run("rm -f previous")
        self._run(flush_command("."))
        return f"Release {target} is current again."


@contextlib.contextmanager
def _locked(device: Device, layout: Layout, release: str, facts: DeviceFacts) -> Iterator[str]:
    """Hold the lock of `layout` and give the answer to `state_command`.

    The lock is a link whose target names its owner: it is made and filled in one step.
    One of a process of this machine that is gone, or from before the device's last boot,
    is broken; any other is respected.
    """
    me = f"{socket.gethostname()}-{uuid.getnode():012x}"
    token = secrets.token_hex(8)
    name = f"{me} {os.getpid()} {token}"
    lock = shlex.quote(layout.at(".lock"))
    folder = shlex.quote(layout.at("releases"))

    def attempt(before: str) -> tuple[bool, str, str]:
        said = device.run(
            f"mkdir -p -- {folder} || exit 1\n"
            f"{before}\n"
            "boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null || echo none)\n"
            f'echo "{_MARK}$boot"\n'
            f'if why=$(ln -s {shlex.quote(name)}" $boot" {lock} 2>&1)\n'
            f"then echo taken; {state_command(layout, release, facts.sha256sum)}\n"
            f'else readlink {lock} || {{ echo "$why" >&2; exit 1; }}; fi'
        ).stdout
        boot, _, answer = said.partition(_MARK)[2].partition("\n")
        owner, _, rest = answer.partition("\n")
        return owner == "taken", boot, rest if owner == "taken" else owner

    _held.add(token)
    try:
        taken, boot, answer = attempt(":")
        if not taken and _is_stale(answer, me, boot):
            log.info("breaking the lock of %s", answer)
            taken, boot, answer = attempt(
                f'[ "$(readlink {lock})" = {shlex.quote(answer)} ] && rm -f {lock}'
            )
        if not taken:
            raise LockedError(
                f"{answer.partition(' ')[0]} is deploying to {layout.root} on {device.name}",
                hint=f"wait; or, if that is over for sure: rm {layout.root}/.lock there",
            )
        try:
            yield answer
        finally:
            # A lock that cannot be released now is stale for the next deploy.
            with contextlib.suppress(EdgepackError):
                device.run(f'case "$(readlink {lock})" in *" {token} "*) rm -f {lock};; esac')
    finally:
        _held.discard(token)


def _is_stale(owner: str, me: str, boot: str) -> bool:
    words = owner.split()
    if len(words) != 4 or not words[1].isdigit():
        return False
    name, pid, token, its_boot = words
    if its_boot != boot:
        return True
    if name != me:
        return False
    return token not in _held if int(pid) == os.getpid() else not _is_alive(int(pid))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

"""Deploy: hand a bundle to the device tool, which makes it the current release there.

    facts -> gate -> what is missing there -> blobs -> (the device alone) -> Report

The tool on the device (`edgepack-device receive`) stores, verifies, activates and tests; what
is here brings it there the first time, sends what it asks for, and comes back after a lost
link. A deploy that was cut off at any moment goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgepack.base import page
from edgepack.base.errors import BundleError, ConnectError, RemoteError, UsageError
from edgepack.base.process import user_at_host
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.tables import read_text
from edgepack.base.text import format_count, megabytes, milliseconds
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.manifest import DEVICE_TOOL, MANIFEST_NAME
from edgepack.deploy.answers import SenselessError
from edgepack.deploy.app_answers import class_bars, emulated_mark
from edgepack.deploy.options import DEFAULT_OPTIONS, ON_TRIAL, DeployOptions
from edgepack.deploy.remote_tool import (
    CorruptTransferError,
    Layout,
    bring_tool,
    not_executable,
)
from edgepack.deploy.smoke import Smoke
from edgepack.deploy.split import check_split
from edgepack.deploy.transfer import (
    PROTOCOL,
    Exchange,
    Installed,
    InstallRequest,
    Need,
    RemoteState,
    packed_bytes,
)
from edgepack.device.base import Device, Stream, is_emulated
from edgepack.device.errors import (
    ConnectionLostError,
    DiskFullError,
    OtherDeviceError,
    command_error,
    inodes_left,
)
from edgepack.device.facts import DeviceFacts, facts_script, parse_facts
from edgepack.device.limit import UPLOAD_S, Limit, limited, slowest_rate
from edgepack.device.options import COMMAND_TIMEOUT_S
from edgepack.device.patience import Pace, Patience
from edgepack.gate import gate

log = logging.getLogger(__name__)

_MODEL_FOLDER = "model/"
_END = "@@edgepack:end"
_FACTS_S = 60.0
_MAX_FACTS = 1 << 20
"""Letters: /proc/cpuinfo of 256 cores has a quarter of them."""

_NAMED_FILES = 4
# What the device tool calls its steps (cpp_runtime/device), in the user's words.
_STEPS = {
    "check": "checking the manifest and its signature",
    "publish": "installing the release",
    "verify": "verifying every byte of it",
    "activate": "making it current",
    "health": "smoke test",
    "rollback": "going back to the release before",
    "recover": "finishing an interrupted deploy or rollback",
    "adopt": "taking over releases of an older edgepack",
    "trial": "starting the trial",
    "prune": "looking for releases that are not kept",
}


class SameVersionError(BundleError):
    """A release that is about to be signed has the version of another one that was there."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The report of a deploy.

    `outcome` is "deployed" (files were sent or stored), "activated" (the device had the release),
    "unchanged", or "on trial" beside the current release. `before` is the release that was current
    before; `previous` is the target of a rollback. `missing_bytes` counts the bundle's bytes that
    the device lacked: `sent_bytes` were sent for them, compressed, and `copied_bytes` were copied
    from other files on the device. `links` is the number of connections. `signer` is the signer
    that the device verified, and `pinned` a signer that it trusts from now on. `same_version` is
    another release with the same version, if signers are pinned. `smoke_fresh` is true for a new
    smoke test, false for an earlier one's record; with `emulated`, its times and memory are an
    emulator's. `seconds` has the wall time of each phase.
    """

    device: str
    root: str
    release: str
    version: int
    outcome: str
    before: str | None
    previous: str | None
    missing_bytes: int
    sent_bytes: int
    copied_bytes: int
    model_bytes_sent: int
    sent_files: tuple[str, ...]
    reused_files: tuple[str, ...]
    removed: tuple[str, ...]
    links: int
    signer: str | None
    pinned: str | None
    same_version: str | None = None
    smoke: Smoke
    smoke_fresh: bool
    facts: DeviceFacts
    emulated: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        return {**asdict(self), "facts": self.facts.to_dict()}

    def sent_text(self) -> str:
        """Return a sentence on the missing and the sent bytes."""
        if self.outcome != "deployed":
            return "nothing: the release was there"
        return (
            f"{megabytes(self.missing_bytes)} in {format_count(len(self.sent_files), 'file')}, "
            f"compressed to {megabytes(self.sent_bytes)} "
            f"(model {megabytes(self.model_bytes_sent)})"
        )

    def _repr_html_(self) -> str:
        said = page.facts(
            {
                "release": f"{self.release}, {self.outcome}",
                "device": self.device,
                "folder": self.root,
                "sent": self.sent_text(),
                "before": self.previous,
                "signer": self.signer,
                "one run": milliseconds(self.smoke.latency_ms) + emulated_mark(self.emulated),
                "accuracy": f"max |error| {self.smoke.max_abs_error:.2g} of "
                f"{self.smoke.max_abs_reference:.3g} (limit {self.smoke.tolerance:.0e} of it)",
            }
        )
        return page.embed_parts(class_bars(self.smoke.classes), said)


@dataclass(frozen=True, kw_only=True)
class DeployPlan:
    """What a deploy would do, for --dry-run: `steps` are kinds, each with a sentence.

    `before` is current now; `send_bytes` is exact: packed, and without chunks that are there.
    """

    release: str
    before: str | None
    steps: tuple[tuple[str, str], ...]
    send_bytes: int
    send_files: tuple[str, ...]
    removed: tuple[str, ...]

    def lines(self) -> list[str]:
        """What `--dry-run` prints."""
        return [f"{kind:10}{text}" for kind, text in self.steps] or [
            f"nothing to do: release {self.release} is current, complete and tested"
        ]

    def to_dict(self) -> dict[str, Any]:
        """For --dry-run --json."""
        return {
            **asdict(self),
            "steps": [{"kind": kind, "text": text} for kind, text in self.steps],
        }


def preview(
    bundle: Bundle, device: Device, root: str, *, options: DeployOptions = DEFAULT_OPTIONS
) -> DeployPlan:
    """Return the plan of `deploy_bundle`, without changing the device.

    Raises the errors of the gate and the device.
    """
    return _Deploy(bundle, device, root, options, NO_PROGRESS).plan()


def deploy_bundle(
    bundle: Bundle,
    device: Device,
    root: str,
    *,
    options: DeployOptions = DEFAULT_OPTIONS,
    progress: Progress = NO_PROGRESS,
) -> Report:
    """Make `bundle` the current release below `root` on `device`, and test it there.

    At any moment, `current` names a complete release, or none. Once all files have arrived, the
    device finishes even if the link breaks.

    Raises:
        GateError: the bundle does not fit the device; nothing was written.
        NotExecutableError: nothing can run in that folder; nothing was written.
        RefusedBundleError: the device does not take it (signature, version, name, board).
        SameVersionError: see `DeployOptions.new_version`; nothing was sent.
        OtherDeviceError: it is not the one that was meant; nothing was written.
        CannotSplitError: it cannot be the candidate of an A/B test; nothing was asked.
        LockedError: another deploy is under way.
        DiskFullError: the device has no room.
        SmokeTestError, OutputsDifferError: `current` is what it was before.
        ConnectError: the link was lost more often than `options.retries`.
    """
    return _Deploy(bundle, device, root, options, progress).run()


@dataclass(frozen=True, kw_only=True)
class PhaseLimits:
    """How long each phase of a deploy may take as a whole, however often the device says something.

    The upload has `UPLOAD_S`, and what its bytes may take.
    """

    facts_s: float
    tool_s: float
    state_s: float
    finish_s: float

    @staticmethod
    def of(bundle: Bundle, options: DeployOptions) -> PhaseLimits:
        """Those of a bundle: its test has `health.timeout_s`, and an older one that is finished or
        gone back to as well.
        """
        answer_s, health_s = options.answer_s, bundle.manifest.health.timeout_s
        waiting_s = options.wait_s + health_s
        tool = bundle.manifest.files.get(DEVICE_TOOL)
        tool_bytes = tool.size if tool else 0
        return PhaseLimits(
            # What takes no time on any board; a patient operator has more for it as well.
            facts_s=max(min(answer_s, _FACTS_S), answer_s * _FACTS_S / COMMAND_TIMEOUT_S),
            tool_s=UPLOAD_S + answer_s + tool_bytes / slowest_rate(options.limit_bytes_s),
            state_s=waiting_s + answer_s,
            finish_s=waiting_s + health_s + 2 * answer_s,
        )


def conversation_s(bundle: Bundle, options: DeployOptions, *, upload: bool = False) -> float:
    """How long a deploy may take in all, over all its links; with `upload`, the longest that its
    bytes may take is in it.
    """
    limits = PhaseLimits.of(bundle, options)
    phases_s = 2 * limits.facts_s + limits.tool_s + limits.state_s + limits.finish_s + UPLOAD_S
    upload_s = 2 * _size_of(bundle) / slowest_rate(options.limit_bytes_s)
    return phases_s + (upload_s if upload else 0.0)


def _size_of(bundle: Bundle) -> int:
    return sum(entry.size for entry in bundle.manifest.files.values())


class _Deploy:
    """One deploy or preview, over as many links as it takes."""

    def __init__(
        self, bundle: Bundle, device: Device, root: str, options: DeployOptions, progress: Progress
    ) -> None:
        self._bundle = bundle
        self._device = device
        self._layout = Layout.of(root)
        self._options = options
        self._progress = progress
        if options.trial is not None and options.trial.split:
            check_split(bundle)
        self._signers = read_text(Path(options.signers)).encode() if options.signers else b""
        self._whole: Limit
        self._credit_bytes = 2 * _size_of(bundle)
        self._session = secrets.token_hex(8)
        self._links = 1
        self._seconds: dict[str, float] = {}
        self._exchanges: list[Exchange] = []
        self._first: RemoteState | None = None
        self._left: tuple[str, int] | None = None
        """What is missing there, as far as is known: of the tool, or of the release."""
        self._paths = {entry.sha256: path for path, entry in bundle.manifest.files.items()}
        self._files = {digest: bundle.file(path) for digest, path in self._paths.items()}

    def run(self) -> Report:
        """See `deploy_bundle`."""
        seconds = conversation_s(self._bundle, self._options)
        with limited(self._device, seconds, "the deploy") as self._whole:
            return self._run()

    def _run(self) -> Report:
        patience = Patience(self._options.retries, self._progress)
        lost = corrupt = False
        while True:
            left = self._left
            try:
                if lost:
                    self._device.reconnect()
                    self._links += 1
                return self._attempt()
            except ConnectError as error:
                lost = True
                patience.after(error, moved=left is not None and self._left != left)
            except CorruptTransferError:
                # The rest of an upload that was cut may have been damaged: once, all of it.
                if corrupt:
                    raise
                lost, corrupt = False, True
            except DiskFullError as error:
                raise self._no_room(error) from None

    def _no_room(self, error: DiskFullError) -> DiskFullError:
        """`error`, or why else nothing can be written there: files can run out before bytes."""
        try:
            done = self._device.run(self._layout.enter("df -Pi ."), check=False)
        except (ConnectError, RemoteError):
            return error
        return inodes_left(self._device.name, error, done.stdout)

    def _attempt(self) -> Report:
        with contextlib.ExitStack() as stack:
            limits = PhaseLimits.of(self._bundle, self._options)
            name = self._device.name
            with self._phase("facts", f"asking {name} what it is", limits.facts_s):
                facts, stream = self._enter(stack)
            if facts.protocol < PROTOCOL:
                with self._phase("tool", f"bringing {DEVICE_TOOL} there", limits.tool_s):
                    bring_tool(
                        self._device,
                        self._layout,
                        self._bundle,
                        sha256sum=facts.sha256sum,
                        pace=Pace(self._options.limit_bytes_s),
                        session=self._session,
                        begun=self._tool_begun,
                    )
                    stream = self._open(stack, self._layout.command("receive"))
            exchange = self._exchange(stream)
            with self._phase("state", f"looking at {self._layout.root} there", limits.state_s):
                state = self._ask(exchange)
            self._first = self._first or state
            self._left = ("release", _left(state))
            if state.needs:
                self._send(exchange, state)
            text = (
                f"release {self._bundle.manifest.release} is there, complete and tested"
                if state.unchanged
                else "the device installs, activates and tests it"
            )
            with self._phase("finish", text, limits.finish_s):
                done = exchange.finish()
        return self._report(done, facts)

    def _tool_begun(self, have: int) -> None:
        self._left = ("tool", -have)

    def plan(self) -> DeployPlan:
        """See `preview`."""
        limits = PhaseLimits.of(self._bundle, self._options)
        with contextlib.ExitStack() as stack:
            seconds = limits.facts_s + limits.state_s
            stack.enter_context(limited(self._device, seconds, "looking at it"))
            facts, stream = self._enter(stack)
            if facts.protocol < PROTOCOL:
                everything = tuple(
                    Need(sha256=entry.sha256, size=entry.size, have=0, base=())
                    for entry in self._bundle.manifest.files.values()
                )
                state = RemoteState(
                    current=None, previous=None, needs=everything, unchanged=False, remove=()
                )
            else:
                state = self._ask(self._exchange(stream), plan=True)
        return self._plan(state, new_tool=facts.protocol < PROTOCOL)

    def _open(self, stack: contextlib.ExitStack, command: str) -> Stream:
        return stack.enter_context(contextlib.closing(self._device.open(command)))

    def _exchange(self, stream: Stream) -> Exchange:
        name = self._device.name
        return Exchange(
            stream,
            name,
            step=lambda text: self._progress.step(f"{name}: {_STEPS.get(text, text)}"),
        )

    def _enter(self, stack: contextlib.ExitStack) -> tuple[DeviceFacts, Stream]:
        """What the device is, and the tool's `receive`, started by the same command."""
        stream = self._open(
            stack,
            f"{facts_script(self._layout.root)}\necho; echo {_END}\n"
            f"{self._layout.command('receive')}",
        )
        facts = parse_facts(self._device.name, self._layout.root, self._facts(stream))
        expected = self._options.machine_id
        if expected and facts.machine_id not in ("", expected):
            raise OtherDeviceError(
                f"{self._device.name}: another device answers: its machine-id is "
                f"{facts.machine_id}, and was {expected}"
            )
        if not self._layout.root.startswith("/") and facts.folder == "/" != facts.home:
            raise UsageError(
                f"{self._device.name}: there is no home folder: {facts.home or 'none is named'}",
                hint="name an absolute folder with --root, or make that one",
            )
        if facts.noexec:
            raise not_executable(self._device.name, self._layout.root, facts)
        # A tool that is there knows better what room the rest needs.
        gate.check_device(self._bundle, facts, send_bytes=0 if facts.tool else None)
        if facts.protocol > PROTOCOL:
            raise RemoteError(
                f"{self._device.name}: its device tool {facts.tool} speaks protocol "
                f"{facts.protocol}, this edgepack {PROTOCOL}",
                hint="deploy with a newer edgepack",
            )
        return facts, stream

    def _facts(self, stream: Stream) -> str:
        text = ""
        while (line := stream.read_line().decode(errors="replace")).rstrip() != _END:
            if not line:
                done = stream.finish()
                if done.returncode == 0:
                    raise ConnectionLostError(f"{self._device.name}: no answer")
                raise command_error(self._device.name, done)
            text += line
            if len(text) > _MAX_FACTS:
                raise SenselessError(f"{self._device.name}: it says too much of itself")
        return text

    def _ask(self, exchange: Exchange, *, plan: bool = False) -> RemoteState:
        state = exchange.ask(self._request(plan=plan))
        if any(need.sha256 not in self._files for need in state.needs):
            raise RemoteError(f"{self._device.name}: asks for files that the bundle does not have")
        manifest = self._bundle.manifest
        if self._options.new_version and state.same_version and not state.unchanged:
            raise SameVersionError(
                f"{self._device.name}: release {state.same_version} was current there with the "
                f"same version, {manifest.version or 'none'}",
                hint="give each signed release a higher one: --release-version N, or auto",
            )
        return state

    def _request(self, *, plan: bool) -> InstallRequest:
        options, health = self._options, self._bundle.manifest.health
        # After a cut, whoever holds the lock is this deploy itself, going on alone there.
        wait_s = options.wait_s if self._links == 1 else options.wait_s + health.timeout_s
        manifest = self._bundle.file(MANIFEST_NAME).read_bytes()
        if hashlib.sha256(manifest).hexdigest() != self._bundle.manifest_sha256:
            raise BundleError(f"{self._bundle.path}: {MANIFEST_NAME} was changed meanwhile")
        return InstallRequest(
            plan=plan,
            manifest=manifest,
            signature=self._bundle.signature,
            signers=self._signers,
            by=user_at_host(),
            session=self._session,
            keep=options.keep,
            wait_s=wait_s,
            silence_s=wait_s + health.timeout_s + options.answer_s,
            allow_downgrade=options.allow_downgrade,
            trial=options.trial,
        )

    def _send(self, exchange: Exchange, state: RemoteState) -> None:
        self._exchanges.append(exchange)
        text = f"sending {megabytes(_left(state))}: {self._missing(state)}"
        with (
            self._timed("send", text, UPLOAD_S) as limit,
            self._progress.bar(text, _left(state)) as bar,
        ):
            exchange.send(
                state.needs,
                self._files,
                limit_bytes_s=self._options.limit_bytes_s,
                sent=bar.update,
                moved=functools.partial(self._moved, limit),
            )

    def _moved(self, limit: Limit, size_bytes: int) -> None:
        """Bytes that go over give more time, but twice as many as there are give no more."""
        rate = slowest_rate(self._options.limit_bytes_s)
        limit.moved(size_bytes, rate)
        size_bytes = min(size_bytes, self._credit_bytes)
        self._credit_bytes -= size_bytes
        self._whole.moved(size_bytes, rate)

    def _missing(self, state: RemoteState) -> str:
        names = [
            self._paths[need.sha256] + (f" from byte {need.have}" if need.have else "")
            for need in sorted(state.needs, key=lambda need: -need.left)
        ]
        if len(names) > _NAMED_FILES:
            names[_NAMED_FILES:] = [f"and {len(names) - _NAMED_FILES} more"]
        return ", ".join(names)

    def _needed(self, state: RemoteState) -> tuple[str, ...]:
        needed = {need.sha256 for need in state.needs}
        files = self._bundle.manifest.files
        return tuple(path for path, entry in files.items() if entry.sha256 in needed)

    def _plan(self, state: RemoteState, *, new_tool: bool) -> DeployPlan:
        manifest = self._bundle.manifest
        send_bytes = packed_bytes(state.needs, self._files)
        steps: list[tuple[str, str]] = []
        if new_tool:
            steps.append(("tool", f"put {DEVICE_TOOL} there"))
        if state.needs:
            sizes = f"{megabytes(_left(state))}, compressed to {megabytes(send_bytes)}"
            steps.append(("send", f"{sizes}: {self._missing(state)}"))
        if not state.unchanged:
            was = f" (was {state.current})" if state.current else ""
            steps += [
                ("install", f"verify {len(manifest.files)} files there, link them"),
                ("activate", f"current -> releases/{manifest.release}{was}"),
                (
                    "test",
                    "smoke test: run its input (and photo) there, compare the outputs",
                ),
            ]
            if self._options.trial:
                del steps[-2]  # the device decides later whether it is activated
                split = self._options.trial.split
                answers = f"; {split:.4g} of them it answers" if split else ""
                text = f"beside {state.current}, on its pictures{answers}; then decide"
                steps.append(("trial", text))
        if state.remove:
            steps.append(("prune", f"remove {', '.join(state.remove)}"))
        return DeployPlan(
            release=manifest.release,
            before=state.current,
            steps=tuple(steps),
            send_bytes=send_bytes,
            send_files=self._needed(state),
            removed=state.remove,
        )

    def _report(self, done: Installed, facts: DeviceFacts) -> Report:
        assert self._first is not None  # it answered
        if done.smoke is None:
            raise SenselessError(f"{self._device.name}: the device tool tested nothing")
        sent: dict[str, int] = {}
        for exchange in self._exchanges:
            for digest, size in exchange.sent.items():
                sent[self._paths[digest]] = sent.get(self._paths[digest], 0) + size
        sent_files = self._needed(self._first)
        manifest = self._bundle.manifest
        return Report(
            device=self._device.name,
            root=self._layout.root,
            release=manifest.release,
            version=manifest.version,
            # Whatever the last of several links found there, all of them were this deploy.
            outcome=ON_TRIAL if self._options.trial else "deployed" if sent_files else done.outcome,
            before=self._first.current,
            previous=done.previous,
            missing_bytes=_left(self._first),
            sent_bytes=sum(sent.values()),
            copied_bytes=sum(exchange.copied_bytes for exchange in self._exchanges),
            model_bytes_sent=sum(
                size for path, size in sent.items() if path.startswith(_MODEL_FOLDER)
            ),
            sent_files=sent_files,
            reused_files=tuple(path for path in manifest.files if path not in sent_files),
            removed=done.removed,
            links=self._links,
            signer=done.signer,
            pinned=done.pinned,
            same_version=self._first.same_version,
            smoke=done.smoke,
            smoke_fresh=done.smoke_fresh,
            facts=facts,
            emulated=is_emulated(self._device),
            seconds=self._seconds,
        )

    @contextlib.contextmanager
    def _phase(self, name: str, text: str, seconds: float) -> Iterator[Limit]:
        self._progress.step(text)
        with self._timed(name, text, seconds) as limit:
            yield limit

    @contextlib.contextmanager
    def _timed(self, name: str, text: str, seconds: float) -> Iterator[Limit]:
        log.info("%s", text)
        start = time.monotonic()
        try:
            with limited(self._device, seconds, f"{name!r} ({text})") as limit:
                yield limit
        finally:
            passed = time.monotonic() - start
            self._seconds[name] = round(self._seconds.get(name, 0.0) + passed, 3)


def _left(state: RemoteState) -> int:
    """Bytes of blobs that are missing."""
    return sum(need.left for need in state.needs)

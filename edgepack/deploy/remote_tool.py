"""edgepack-device, the tool that a deploy leaves on a device: its calls and its refusals."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgepack.base import text
from edgepack.base.errors import (
    BundleError,
    EdgepackError,
    MismatchError,
    RemoteError,
    TimeLimitError,
    UsageError,
)
from edgepack.base.process import last_lines
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.manifest import DEVICE_TOOL
from edgepack.deploy.answers import (
    Answer,
    DeviceRefusal,
    Pruned,
    Repaired,
    Status,
    Switched,
    Trust,
    read_object,
)
from edgepack.device.base import Device, RemoteResult
from edgepack.device.errors import DiskFullError, NotExecutableError, command_error
from edgepack.device.facts import DeviceFacts, gather, tool_path
from edgepack.device.patience import Pace

_COMMANDS = re.compile(r"`?edgepack-device (status|prune|repair|rollback)\b`?")
_SHELL_FOUND_NOTHING = 127
_CORRUPT, _DOES_NOT_RUN = 3, 4


class LockedError(RemoteError):
    """Another deploy to the same folder is under way."""


class CorruptTransferError(RemoteError):
    """The device tool arrived damaged."""


class RefusedBundleError(BundleError):
    """The device does not take the bundle: its signature, version, board or content."""


class SmokeTestError(MismatchError):
    """The release fails on the device, or is over its limits; the one before is current again."""


class OutputsDifferError(MismatchError):
    """The release computes something else there; the one before is current again."""


class HealthTimeoutError(TimeLimitError):
    """The release's test takes too long; the one before is current again."""


_KINDS: Mapping[str, type[EdgepackError]] = {
    "locked": LockedError,
    "disk-full": DiskFullError,
    "corrupt-transfer": CorruptTransferError,
    "health-failed": OutputsDifferError,
    "health-crashed": SmokeTestError,
    "health-timeout": HealthTimeoutError,
    "over-latency": SmokeTestError,
    "over-memory": SmokeTestError,
}
_CODES: Mapping[int, type[EdgepackError]] = {
    UsageError.exit_code: UsageError,
    BundleError.exit_code: RefusedBundleError,
    MismatchError.exit_code: MismatchError,
    TimeLimitError.exit_code: TimeLimitError,
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Paths below `root`, which is absolute or relative to the login's home folder.

    Below it lie `current` and `previous`, `releases`, `store` and the device tool.
    """

    root: str

    @staticmethod
    def of(root: str) -> Layout:
        """Raises UsageError if `root` cannot be a folder for releases."""
        path = root.removeprefix("~/").rstrip("/")
        if not path or path.startswith(("-", "~")) or not path.isprintable():
            raise UsageError(
                f"--root: not a folder for releases: {root!r}",
                hint="a path below the home folder there, or an absolute one",
            )
        return Layout(root=path)

    def enter(self, command: str) -> str:
        """A shell command that does `command` in the root folder."""
        # Without "./", a relative name may be searched in CDPATH.
        root = self.root if self.root.startswith("/") else f"./{self.root}"
        return f"cd {shlex.quote(root)} && {command}"

    @property
    def tool(self) -> str:
        """The device tool, as a word for the shell."""
        return shlex.quote(tool_path(self.root))

    def command(self, *words: str) -> str:
        """A shell command that calls the device tool."""
        return f"{self.tool} {shlex.join(['--root', self.root, '--json', *words])}"


def bring_tool(
    device: Device, layout: Layout, bundle: Bundle, *, sha256sum: str, pace: Pace
) -> None:
    """Put the bundle's own device tool below the root: checked, and in place by one rename.

    `sha256sum` is the device's command. Raises CorruptTransferError, RemoteError or
    UsageError, and what `Device.open` raises.
    """
    entry = bundle.manifest.files.get(DEVICE_TOOL)
    if entry is None:
        raise UsageError(
            f"{device.name} has no device tool yet, and a bundle of schema "
            f"{bundle.manifest.schema} brings none",
            hint="deploy one that this edgepack made before",
        )
    put_tool(device, layout, bundle.file(DEVICE_TOOL), entry.sha256, sha256sum=sha256sum, pace=pace)


def put_tool(
    device: Device, layout: Layout, path: Path, sha256: str, *, sha256sum: str, pace: Pace
) -> None:
    """The same with the device tool in the file `path`, whose hash is `sha256`.

    Where there is no `sha256sum`, it is read back. Raises NotExecutableError if it cannot run.
    """
    new = f"{DEVICE_TOOL}.new"
    root = shlex.quote(layout.root)
    bring = f"mkdir -p bin incoming && cat >{new} || exit 1"
    check = f'set -- $({sha256sum} {new}); [ "$1" = {sha256} ] || exit {_CORRUPT}'
    # As a part in incoming/ it counts as uploaded: it goes over once.
    use = (
        f"cp {new} incoming/{sha256}.part && chmod 0555 {new} && sync && "
        f"mv -f {new} {DEVICE_TOOL} || exit 1\n"
        f"./{DEVICE_TOOL} --version >/dev/null || exit {_DOES_NOT_RUN}"
    )
    script = "\n".join([bring, check, use] if sha256sum else [bring])
    stream = device.open(f"umask 022; mkdir -p -- {root} && {layout.enter(script)}")
    with contextlib.closing(stream):
        with contextlib.suppress(BrokenPipeError):  # its answer says why
            for piece in pace.pieces(path.read_bytes()):
                stream.write(piece)
        done = stream.finish()
    same = done.returncode != _CORRUPT
    if not sha256sum and done.returncode == 0:
        same = _read_back(device, f"{layout.root}/{new}") == sha256
        if same:
            done = device.run(layout.enter(use), check=False)
    if not same:
        raise CorruptTransferError(
            f"{DEVICE_TOOL}: not the same on {device.name} as it was sent",
            hint="its memory or disk may be failing (dmesg says more)",
        )
    if done.returncode == _DOES_NOT_RUN:
        raise not_executable(device.name, layout.root, gather(device, layout.root), done)
    if done.returncode != 0:
        raise command_error(device.name, done)


def _read_back(device: Device, remote: str) -> str:
    """The SHA-256 of a file there, hashed here."""
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        local = Path(folder) / "file"
        device.get(remote, local)
        return hashlib.sha256(local.read_bytes()).hexdigest()


def not_executable(
    device: str, root: str, facts: DeviceFacts, done: RemoteResult | None = None
) -> NotExecutableError:
    """The error for a folder where no program can run, as `facts` or a try (`done`) have shown."""
    where = "another folder with --root"
    if facts.libc == "bionic":
        where = "a folder below /data/local/tmp with --root: that is where Android lets adb's run"
    said = "" if done is None else f"\n{last_lines(text.printable(done.stderr))}"
    if facts.noexec:
        return NotExecutableError(
            f"{device}: {root} is on a file system that is mounted noexec: no program can run "
            f"there{said}",
            hint=f"{where}, or ask its owner to mount it without noexec",
        )
    if facts.selinux == "enforcing" and "ermission denied" in said:
        return NotExecutableError(
            f"{device}: SELinux does not let programs of {facts.user} run in {root}{said}",
            hint=f"{where}; the kernel's log says which rule (dmesg | grep avc)",
        )
    return NotExecutableError(
        f"{device}: {DEVICE_TOOL} does not run in {root} on {facts.machine}{said}", hint=where
    )


def call(device: Device, root: str, *words: str) -> dict[str, Any]:
    """What `edgepack-device WORDS` on `device` says, as JSON.

    Raises RemoteError if nothing was deployed below `root`, SenselessError for an answer that
    is none, and what `tool_error` gives.
    """
    return dict(_ask(device, root, *words).document)


def status(device: Device, root: str) -> Status:
    """What runs there. Raises as `call`."""
    return Status.read(_ask(device, root, "status"))


def trust(device: Device, root: str) -> Trust:
    """Whose bundles it takes. Raises as `call`."""
    return Trust.read(_ask(device, root, "trust", "show"))


def rollback(device: Device, root: str, *, to: str | None = None) -> Switched:
    """Back to the release before, or to the one called `to`. Raises as `call`."""
    return Switched.read(_ask(device, root, "rollback", *(("--to", to) if to else ())))


def prune(device: Device, root: str, *, keep: int, dry_run: bool = False) -> Pruned:
    """Remove all but `keep` releases; with `dry_run` only say which. Raises as `call`."""
    words = ["prune", "--keep", str(keep)] + ["--dry-run"] * dry_run
    try:
        return Pruned.read(_ask(device, root, *words))
    except UsageError as error:
        if not dry_run:
            raise
        raise UsageError(
            error.message, hint="an older device tool? `edgepack deploy` brings one that can"
        ) from None


def repair(device: Device, root: str) -> Repaired:
    """Bring back what a rotten card damaged there. Raises as `call`."""
    layout = Layout.of(root)
    done = device.run(layout.command("repair"), check=False)
    # Something is lost, as the answer says.
    if done.returncode == BundleError.exit_code and '"lost"' in done.stdout:
        done = replace(done, returncode=0)
    return Repaired.read(_answer(device, layout, done, "repair"))


def set_signers(device: Device, root: str, signers: bytes) -> Trust:
    """Have `device` take bundles of these signers only, whoever they were before.

    `signers` is a list as in ssh-keygen(1). Raises as `call`, RefusedBundleError for a list
    that the device does not understand.
    """
    layout = Layout.of(root)
    # A link that breaks here must not leave a shorter list.
    script = (
        f"new=.signers.$$; trap 'rm -f $new' EXIT; cat >$new; "
        f"[ $(wc -c <$new) -eq {len(signers)} ] || exit 1\n"
        f"{DEVICE_TOOL} --root . --json trust set $new"
    )
    stream = device.open(layout.enter(script))
    with contextlib.closing(stream):
        with contextlib.suppress(BrokenPipeError):  # its answer says why
            stream.write(signers)
        done = stream.finish()
    return Trust.read(_answer(device, layout, done, "trust set"))


def _ask(device: Device, root: str, *words: str) -> Answer:
    layout = Layout.of(root)
    done = device.run(layout.command(*words), check=False)
    return _answer(device, layout, done, " ".join(words))


def _answer(device: Device, layout: Layout, done: RemoteResult, command: str) -> Answer:
    """The tool's JSON in `done`, which `command` printed; raises as `call`."""
    if done.returncode == _SHELL_FOUND_NOTHING:
        raise RemoteError(
            f"{device.name}: there is no device tool in {layout.root}",
            hint="`edgepack deploy` puts it there",
        )
    if "{" not in done.stdout:
        raise command_error(device.name, done)
    answer = read_object(done.stdout, f"{device.name}: edgepack-device {command}")
    if answer.has("error"):
        raise tool_error(device.name, answer.need("error", DeviceRefusal.read), done.returncode)
    if done.returncode != 0:
        raise command_error(device.name, done)
    return answer


def tool_error(device: str, said: DeviceRefusal, exit_code: int) -> EdgepackError:
    """The error for what the tool said, by kind, else by code."""
    kind = _KINDS.get(said.kind) or _CODES.get(exit_code, RemoteError)
    # Whoever asked through this program has commands of the same name here.
    hint = _COMMANDS.sub(r"`edgepack \1`", said.hint) if said.hint else None
    return kind(f"{device}: {said.message}", hint=hint)

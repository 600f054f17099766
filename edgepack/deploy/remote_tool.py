"""edgepack-device, the tool that a deploy leaves on a device: its calls and its refusals."""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import shlex
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgepack.base import text
from edgepack.base.errors import (
    BundleError,
    EdgepackError,
    MismatchError,
    NothingThereError,
    RemoteError,
    TimeLimitError,
    UsageError,
)
from edgepack.base.process import last_lines
from edgepack.bundle.bundle import SOURCE, Bundle
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
from edgepack.deploy.trial import TrialStatus
from edgepack.device.base import Device, RemoteResult
from edgepack.device.errors import (
    ConnectionLostError,
    DiskFullError,
    NotExecutableError,
    command_error,
    root_error,
)
from edgepack.device.facts import DeviceFacts, gather, own_folder
from edgepack.device.patience import Pace
from edgepack.model.sources.record import MAX_BYTES, ModelSource

_COMMANDS = re.compile(r"`?edgepack-device (status|prune|repair|rollback)\b`?")
_SHELL_FOUND_NOTHING = 127
_CORRUPT, _DOES_NOT_RUN, _INCOMPLETE = 3, 4, 5
_ANSWER_S = 120.0


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
    "no-release": NothingThereError,
    "no-trial": NothingThereError,
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
        path = root.rstrip("/")
        if path.startswith("~/"):
            path = path[2:].lstrip("/")
        # A shell would expand some of it, and this is never one's word.
        if not path or path.startswith(("-", "~")) or "$" in path or not path.isprintable():
            raise UsageError(
                f"--root: not a folder for releases: {root!r}",
                hint="a path below the home folder there, or an absolute one, without variables",
            )
        return Layout(root=path)

    def enter(self, command: str) -> str:
        """A shell command that does `command` in the root folder, if that is the login's own."""
        return f'r=$({own_folder(self.root)}) && cd "$r" && {command}'

    def command(self, *words: str) -> str:
        """A shell command that calls the device tool, which says itself where it is missing."""
        arguments = shlex.join(["--root", self.root, "--json", *words])
        return (
            f"[ -e {shlex.quote(self.root)} ] || exit {_SHELL_FOUND_NOTHING}; "
            f'r=$({own_folder(self.root)}) && exec "$r/{DEVICE_TOOL}" {arguments}'
        )


def bring_tool(
    device: Device,
    layout: Layout,
    bundle: Bundle,
    *,
    sha256sum: str,
    pace: Pace,
    session: str = "",
    begun: Callable[[int], None] = lambda _: None,
) -> None:
    """Put the bundle's own device tool below the root; see `put_tool`.

    Raises UsageError if the bundle brings none.
    """
    entry = bundle.manifest.files.get(DEVICE_TOOL)
    if entry is None:
        raise UsageError(
            f"{device.name} has no device tool yet, and a bundle of schema "
            f"{bundle.manifest.schema} brings none",
            hint="deploy one that this edgepack made before",
        )
    put_tool(
        device,
        layout,
        bundle.file(DEVICE_TOOL),
        entry.sha256,
        sha256sum=sha256sum,
        pace=pace,
        session=session,
        begun=begun,
    )


# Each upload has a file of its own, so that nobody writes into another's. It begins with what the
# longest one of the same content has, an upload that was cut. The last step is one rename, and who
# comes to it sweeps away all others of the same content: at any moment one may be gone.
# The device needs its space to live: where it is used up, what was begun is taken away again.
_BRING = """umask 022
fail() {{
  code=$?
  {{ echo "in $(pwd):"; df -Pk .; df -Pi . || :; }} >&2
  rm -f {new} {new}.part
  find bin -name '.tool-*' -mmin +5 -exec rm -f {{}} \\; 2>/dev/null
  exit $code
}}
size() {{ if [ -f "$1" ]; then wc -c <"$1"; else echo -1; fi; }}
mkdir -p -- {root} && {enter} && mkdir -p bin incoming || exit 1
best=; most=0
for part in bin/.tool-{sha256}-*; do
  n=$(($(size "$part"))); [ $n -le $most ] || [ $n -gt {total} ] || {{ best=$part most=$n; }}
done
{{ [ -n "$best" ] && cp -- "$best" {new} 2>/dev/null; }} || : >{new} || fail
for part in bin/.tool-{sha256}-{session}-*; do [ "$part" = {new} ] || rm -f -- "$part"; done
echo $(($(size {new})))
cat >>{new} || fail
[ $(($(size {new}))) -ge {total} ] || {{ ! [ -e {new} ] && [ -e {tool} ]; }} || exit {incomplete}"""

_SUM = """sum() {{ set -- $({sha256sum} "$1" 2>/dev/null); echo "$1"; }}"""
_CHECK = """if [ "$(sum {new})" != {sha256} ]; then
  rm -f {new}
  [ "$(sum {tool})" = {sha256} ] && exit
  exit {corrupt}
fi"""

# As a part in incoming/ the blob counts as uploaded: it goes over once. Whoever else brings the
# same tool may have swept this one away: then theirs is in place.
_USE = """fail() {{
  code=$?
  [ "$(sum {tool})" != {sha256} ] || exit 0
  [ -e {new} ] || exit {corrupt}
  {{ echo "in $(pwd):"; df -Pk .; df -Pi . || :; }} >&2
  rm -f {new} {new}.part
  exit $code
}}
chmod 0555 {new} || fail
if ! [ -e store/{sha256} ] && ! [ -e incoming/{sha256}.part ]; then
  cp {new} {new}.part && chmod 0644 {new}.part || fail
  ln {new}.part incoming/{sha256}.part 2>/dev/null || [ -e incoming/{sha256}.part ] ||
    mv {new}.part incoming/{sha256}.part || fail
  rm -f {new}.part
fi
sync
./{new} --version >/dev/null || {{ [ -e {new} ] && exit {does_not_run}; fail; }}
mv -f {new} {tool} || fail
sync
rm -f bin/.tool-{sha256}-*
find bin -name '.tool-*' -mtime +0 -exec rm -f {{}} \\; 2>/dev/null || :"""


def put_tool(
    device: Device,
    layout: Layout,
    path: Path,
    sha256: str,
    *,
    sha256sum: str,
    pace: Pace,
    session: str = "",
    begun: Callable[[int], None] = lambda _: None,
) -> None:
    """Put the device tool in the file `path`, whose hash is `sha256`, below the root.

    Checked, tried, and in place by one rename; an upload that was cut goes on where it stopped,
    and several at once do not disturb each other. `sha256sum` is the device's command; where there
    is none, the tool is read back. `session` names those who may go on with it at once, and `begun`
    is told how many bytes were there. Raises NotExecutableError if it cannot run there,
    CorruptTransferError, DiskFullError, RemoteError, and what `Device.open` raises.
    """
    content = path.read_bytes()
    session = session or secrets.token_hex(8)
    new = f"bin/.tool-{sha256}-{session}-{secrets.token_hex(4)}"
    words = {
        "root": shlex.quote(layout.root), "enter": layout.enter(":"), "new": new,
        "sha256": sha256, "sha256sum": sha256sum, "session": session, "total": len(content),
        "tool": DEVICE_TOOL, "corrupt": _CORRUPT, "does_not_run": _DOES_NOT_RUN,
        "incomplete": _INCOMPLETE,
    }  # fmt: skip
    bring, check, use = (script.format(**words) for script in (_BRING, _CHECK, _USE))
    # Where nothing can hash, nothing has a hash.
    use = f"{_SUM.format(sha256sum=sha256sum or ':')}\n{use}"
    check = f"{_SUM.format(sha256sum=sha256sum)}\n{check}"
    stream = device.open("\n".join([bring, check, use] if sha256sum else [bring]))
    with contextlib.closing(stream):
        with contextlib.suppress(BrokenPipeError):  # its answer says why
            have = stream.read_line(_ANSWER_S).strip()
            if have.isdigit() and int(have) <= len(content):
                begun(int(have))
                for piece in pace.pieces(content[int(have) :]):
                    stream.write(piece)
        done = stream.finish()
    if not sha256sum and done.returncode == 0:
        done = _use_read_back(device, layout, new, sha256, use)
    _check_brought(device, layout, done)


def _use_read_back(device: Device, layout: Layout, new: str, sha256: str, use: str) -> RemoteResult:
    """What using the uploaded file says, after it was read back and hashed here."""
    if _read_back(device, f"{layout.root}/{new}") == sha256:
        return device.run(layout.enter(f"{{\n{use}\n}}"), check=False)
    return device.run(layout.enter(f"rm -f {new}; exit {_CORRUPT}"), check=False)


def _check_brought(device: Device, layout: Layout, done: RemoteResult) -> None:
    """Raise what is wrong with the device tool's way there."""
    match done.returncode:
        case 0:
            return
        case code if code == _CORRUPT:
            raise CorruptTransferError(
                f"{DEVICE_TOOL}: not the same on {device.name} as it was sent",
                hint="its memory or disk may be failing (dmesg says more)",
            )
        case code if code == _INCOMPLETE:
            raise ConnectionLostError(f"{device.name}: {DEVICE_TOOL} arrived in part")
        case code if code == _DOES_NOT_RUN:
            facts = gather(device, layout.root)
            raise not_executable(device.name, layout.root, facts, done)
    raise root_error(device.name, layout.root, done)


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


def status_with_source(device: Device, root: str) -> Status:
    """`status`, with its `source`. Raises what both raise."""
    answer = status(device, root)
    return replace(answer, source=source(device, root)) if answer.current else answer


def source(device: Device, root: str) -> ModelSource | None:
    """Where the model of the current release was fetched from; None if that is not recorded.

    Raises `RemoteError` for a record that is none of ours, and what running a command raises.
    """
    # No device tool tells, an old one neither: it is a file of the release like its labels.
    command = Layout.of(root).enter(f"head -c {MAX_BYTES + 1} current/{SOURCE} 2>/dev/null")
    answer = device.run(command, check=False)
    if answer.returncode != 0 or not answer.stdout:
        return None
    return ModelSource.parse(
        answer.stdout.encode(), file=f"{device.name}: {SOURCE}", error=RemoteError
    )


def metrics(device: Device, root: str) -> str:
    """What it tells Prometheus, as it wrote it. Raises as `call`, UsageError for an older tool."""
    try:
        return _ask(device, root, "metrics").take("metrics", str)
    except UsageError as error:
        raise UsageError(
            error.message, hint="an older device tool? `edgepack deploy` brings one that can"
        ) from None


def trust(device: Device, root: str) -> Trust:
    """Whose bundles it takes. Raises as `call`."""
    return Trust.read(_ask(device, root, "trust", "show"))


def rollback(device: Device, root: str, *, to: str | None = None) -> Switched:
    """Back to the release before, or to the one called `to`. Raises as `call`."""
    return Switched.read(_ask(device, root, "rollback", *(("--to", to) if to else ())))


def trial(device: Device, root: str, action: str) -> TrialStatus:
    """The last trial there; `action` is "status", "stop", "activate" or "resume".

    Raises as `call`, UsageError for an older device tool.
    """
    try:
        return TrialStatus.read(_ask(device, root, "trial", action))
    except UsageError as error:
        if "unknown command" not in error.message:
            raise
        raise UsageError(
            f"{device.name}: its device tool is older and knows no trials",
            hint="`edgepack deploy` without --shadow brings one that does",
        ) from None


def last_trial(device: Device, root: str) -> TrialStatus | None:
    """`trial` "status"; None if there was none, or the device tool is older. Raises as `call`."""
    try:
        return trial(device, root, "status")
    except (NothingThereError, UsageError):
        return None


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
        raise NothingThereError(
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

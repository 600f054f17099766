"""Releases on a device: where they lie, what is there, and what a deploy has to do.

    <root>/releases/<release>/       a bundle's content, whole and verified
    <root>/releases/<release>.part/  one being uploaded
    <root>/releases/<release>.old/   one being removed
    <root>/releases/<release>.smoke.json  the outcome of its smoke test
    <root>/current -> releases/<release>, previous -> releases/<release>
    <root>/.lock -> who is deploying (a link: made and filled in one step)

Everything here is pure: state comes from the text of one command's answer, and a plan
is a list of steps that can be printed before any of them is done.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from edgepack.bundle import Bundle
from edgepack.errors import UsageError
from edgepack.manifest import MANIFEST_NAME

MODEL_FOLDER = "model/"
_RELEASE = re.compile(r"[0-9a-f]{12}")
_MARK = "@@edgepack:"
_SHA256_LINE = re.compile(r"([0-9a-f]{64}) [ *](?:\./)?(.+)")
_SIZE_LINE = re.compile(r"\s*([0-9]+) \./(.+)")

StepKind = Literal["prepare", "send", "verify", "publish", "activate", "smoke", "prune"]

_NAMED_FILES = 4
"""Files that a step names; the largest come first."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Paths below `root`, which is absolute or relative to the login's home folder."""

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

    def at(self, path: str) -> str:
        """`path` below the root."""
        return f"{self.root}/{path}"

    def enter(self, command: str) -> str:
        """A shell command that does `command` in the root folder."""
        # Without "./", a relative name may be searched in CDPATH.
        root = self.root if self.root.startswith("/") else f"./{self.root}"
        return f"cd {shlex.quote(root)} && {command}"


@dataclass(frozen=True, kw_only=True)
class FileState:
    """A file that is on the device."""

    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True)
class DeviceState:
    """What is below the root.

    `current` and `previous` are None if they are not there or name nothing that is.
    `releases` are those that are there, newest first; `claims` says which files with
    which SHA-256 their manifests list, unverified. `here` are the real SHA-256 sums in
    the folder of the release in question (empty: it is not there), `part` what an upload
    of it that was cut left behind. `leftovers` are other unfinished folders. `smoke` is
    the record of the release's last smoke test that passed.
    """

    current: str | None = None
    previous: str | None = None
    releases: tuple[str, ...] = ()
    claims: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    here: Mapping[str, str] = field(default_factory=dict)
    part: Mapping[str, FileState] = field(default_factory=dict)
    leftovers: tuple[str, ...] = ()
    smoke: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Send:
    """A file to send from byte `offset` on."""

    path: str
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step. `text` says what it does; `commands` run in the root folder."""

    kind: StepKind
    text: str
    commands: tuple[str, ...] = ()
    sends: tuple[Send, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DeployPlan:
    """The steps that bring the device from its state to `release` being current.

    `before` is current now. `reused` are files that are linked from a release that is
    there; `removed` are releases and leftovers that go. `replaces` is set if a damaged
    folder of the same release has to give way.
    """

    release: str
    before: str | None
    steps: tuple[Step, ...]
    reused: tuple[str, ...]
    removed: tuple[str, ...]
    replaces: bool

    @property
    def sends(self) -> tuple[Send, ...]:
        """All files to send."""
        return tuple(send for step in self.steps for send in step.sends)

    @property
    def send_bytes(self) -> int:
        """Bytes to send."""
        return sum(send.size - send.offset for send in self.sends)

    def has(self, kind: StepKind) -> bool:
        """Whether there is a step of that kind."""
        return any(step.kind == kind for step in self.steps)

    def lines(self) -> list[str]:
        """What `--dry-run` prints."""
        return [f"{step.kind:9}{step.text}" for step in self.steps] or [
            f"nothing to do: release {self.release} is current, whole and tested"
        ]

    def to_dict(self) -> dict[str, Any]:
        """For --dry-run --json."""
        return {
            "release": self.release,
            "before": self.before,
            "steps": [
                {"kind": step.kind, "text": step.text, "commands": list(step.commands)}
                for step in self.steps
            ],
            "send_bytes": self.send_bytes,
            "reused": list(self.reused),
        }


def wanted_files(bundle: Bundle) -> dict[str, FileState]:
    """All files of the bundle, the manifest too."""
    files = {
        path: FileState(sha256=entry.sha256, size=entry.size)
        for path, entry in bundle.manifest.files.items()
    }
    size = bundle.file(MANIFEST_NAME).stat().st_size
    return {**files, MANIFEST_NAME: FileState(sha256=bundle.manifest_sha256, size=size)}


def state_command(layout: Layout, release: str, sha256sum: str) -> str:
    """A read-only command whose output `parse_state` understands."""
    folder = f"releases/{release}"

    def mark(name: str) -> str:
        return f"printf '\\n%s\\n' '{_MARK}{name}'"

    inner = "; ".join(
        [
            f"{mark('current')}; readlink current",
            f"{mark('previous')}; readlink previous",
            f"{mark('list')}; ls -1t releases",
            f'for d in releases/*/; do {mark("manifest")}; echo "$d"; cat "${{d}}manifest.json";'
            " done",
            f"{mark('smoke')}; cat {folder}.smoke.json",
            f"{mark('here')}; (cd {folder} && find . -type f -exec {sha256sum} {{}} +)",
            f"{mark('part')}; (cd {folder}.part && find . -type f -exec {sha256sum} {{}} + "
            "&& find . -type f -exec wc -c {} +)",
            mark("end"),
        ]
    )
    return f"( {layout.enter('{ ' + inner + '; }')} ) 2>/dev/null; :"


def parse_state(text: str, release: str) -> DeviceState:
    """The answer to `state_command`; no output stands for an empty device."""
    answers: dict[str, list[str]] = {}
    for part in f"\n{text}".split(f"\n{_MARK}")[1:]:
        name, _, answer = part.partition("\n")
        answers.setdefault(name.strip(), []).append(answer)

    def one(name: str) -> str:
        return "".join(answers.get(name, [])).strip()

    names = one("list").split()
    claims = {}
    for answer in answers.get("manifest", []):
        folder, _, content = answer.partition("\n")
        claims[folder.strip().strip("/").removeprefix("releases/")] = _claims(content)
    here, _ = _listing(one("here"))
    sums, sizes = _listing(one("part"))
    releases = tuple(name for name in names if _RELEASE.fullmatch(name))
    return DeviceState(
        current=_link(one("current"), releases),
        previous=_link(one("previous"), releases),
        releases=releases,
        claims={name: files for name, files in claims.items() if _RELEASE.fullmatch(name)},
        here=here,
        part={
            path: FileState(sha256=digest, size=sizes[path])
            for path, digest in sums.items()
            if path in sizes
        },
        leftovers=tuple(
            name
            for name in names
            if re.fullmatch(r"[0-9a-f]{12}\.(part|old)", name) and name != f"{release}.part"
        ),
        smoke=_json_object(one("smoke")),
    )


def plan(
    bundle: Bundle, state: DeviceState, *, tested: bool, sha256sum: str, keep: int
) -> DeployPlan:
    """What to do on a device in `state`.

    `tested`: the release passed its smoke test on this very system. `sha256sum` is the
    device's command. `keep` releases stay there; current and previous do in any case.
    """
    release = bundle.manifest.release
    wanted = wanted_files(bundle)
    steps: list[Step] = []
    reused: dict[str, str] = {}
    whole = all(state.here.get(path) == file.sha256 for path, file in wanted.items())
    if not whole:
        reused = _reusable(wanted, state, release)
        sends = _sends(bundle, wanted, state, reused)
        steps += _upload_steps(
            bundle, wanted, state=state, reused=reused, sends=sends, sha256sum=sha256sum
        )
    if not whole or state.current != release:
        steps.append(_activate_step(release, state))
    if steps or not tested:
        steps.append(Step(kind="smoke", text="run the golden input (and photo) there"))
    removed = _removable(state, release, keep)
    if removed:
        steps.append(
            Step(
                kind="prune",
                text=f"remove {', '.join(removed)}",
                commands=tuple(_remove_command(name) for name in removed),
            )
        )
    return DeployPlan(
        release=release,
        before=state.current,
        steps=tuple(steps),
        reused=tuple(sorted(reused)),
        removed=tuple(removed),
        replaces=not whole and release in state.releases,
    )


def link_command(target: str, link: str) -> str:
    """Make `<link>.new`, to be renamed to `link`, whatever an earlier deploy left there."""
    return f"rm -f {link}.new && ln -s {target} {link}.new"


def flush_command(paths: str) -> str:
    """Put files and folders on the disk; `paths` may hold a command substitution.

    Old `sync` programs take no names and flush everything, or refuse.
    """
    return f"{{ sync {paths} 2>/dev/null || sync; }}"


def verify_command(release: str, sha256sum: str, paths: Iterable[str], modes: str) -> str:
    """Set the modes, flush, and print the SHA-256 sums of `paths` in the .part folder."""
    names = " ".join(shlex.quote(path) for path in sorted(paths))
    return (
        f"cd releases/{release}.part && {{ {modes}; {flush_command('$(find .)')}; "
        f"{sha256sum} {names}; }}"
    )


def parse_sums(text: str) -> dict[str, str]:
    """Path to SHA-256 of what `verify_command` printed."""
    return _listing(text)[0]


def is_prefix(file: Path, state: FileState) -> bool:
    """Whether `state` is what a cut upload of `file` left."""
    if not 0 < state.size < file.stat().st_size:
        return False
    digest = hashlib.sha256()
    left = state.size
    with file.open("rb") as source:
        while left and (chunk := source.read(min(left, 1 << 20))):
            digest.update(chunk)
            left -= len(chunk)
    return digest.hexdigest() == state.sha256


def _reusable(wanted: Mapping[str, FileState], state: DeviceState, release: str) -> dict[str, str]:
    """Path of a wanted file -> a file there that (says it) has the same content."""
    sources = {
        digest: f"releases/{name}/{path}"
        for name, files in reversed(list(state.claims.items()))
        if name != release
        for path, digest in files.items()
    }
    sources |= {digest: f"releases/{release}/{path}" for path, digest in state.here.items()}
    return {
        path: sources[file.sha256]
        for path, file in wanted.items()
        if file.sha256 in sources and not _is_in_part(path, file, state)
    }


def _is_in_part(path: str, file: FileState, state: DeviceState) -> bool:
    return path in state.part and state.part[path].sha256 == file.sha256


def _sends(
    bundle: Bundle,
    wanted: Mapping[str, FileState],
    state: DeviceState,
    reused: Mapping[str, str],
) -> tuple[Send, ...]:
    sends = []
    for path, file in wanted.items():
        if path in reused or _is_in_part(path, file, state):
            continue
        part = state.part.get(path)
        offset = part.size if part and is_prefix(bundle.file(path), part) else 0
        sends.append(Send(path=path, offset=offset, size=file.size))
    return tuple(sends)


def _upload_steps(
    bundle: Bundle,
    wanted: Mapping[str, FileState],
    *,
    state: DeviceState,
    reused: Mapping[str, str],
    sends: tuple[Send, ...],
    sha256sum: str,
) -> list[Step]:
    release = bundle.manifest.release
    part = f"releases/{release}.part"
    resumed = {send.path for send in sends if send.offset}
    kept = {path for path, file in wanted.items() if _is_in_part(path, file, state)}
    folders = sorted({path.rpartition("/")[0] for path in wanted})
    commands = [
        f"mkdir -p {' '.join(f'{part}/{folder}' if folder else part for folder in folders)}"
    ]
    if unwanted := sorted(state.part.keys() - kept - resumed):
        commands.append(f"rm -f -- {' '.join(shlex.quote(f'{part}/{path}') for path in unwanted)}")
    # What is to be written to must not be shared with another release.
    commands += [
        f"cp {part}/{path} {part}/{path}.own && mv {part}/{path}.own {part}/{path}"
        for path in sorted(resumed)
    ]
    # A link that fails is no harm: the check finds the file missing, and it is sent.
    commands += [
        f"ln -f {shlex.quote(source)} {part}/{path} || :" for path, source in sorted(reused.items())
    ]
    already = len(reused) + len(kept)
    prepare = Step(
        kind="prepare",
        text=f"folder {part}, {already} of {len(wanted)} files are there already",
        commands=tuple(commands),
    )
    total = sum(send.size - send.offset for send in sends)
    executables = [path for path, entry in bundle.manifest.files.items() if entry.mode == "0755"]
    modes = f"chmod 0755 {' '.join(sorted(executables))}" if executables else ":"
    steps = [prepare]
    if sends:
        names = [
            f"{send.path} from byte {send.offset}" if send.offset else send.path
            for send in sorted(sends, key=lambda send: send.offset - send.size)
        ]
        if len(names) > _NAMED_FILES:
            names[_NAMED_FILES:] = [f"and {len(names) - _NAMED_FILES} more"]
        steps.append(Step(kind="send", text=f"{total} bytes: {', '.join(names)}", sends=sends))
    return [
        *steps,
        Step(
            kind="verify",
            text=f"SHA-256 of {len(wanted)} files there",
            commands=(verify_command(release, sha256sum, wanted, modes),),
        ),
        Step(kind="publish", text=f"rename {part} to releases/{release}"),
    ]


def _activate_step(release: str, state: DeviceState) -> Step:
    commands = [link_command(f"releases/{release}", "current")]
    if state.current and state.current != release:
        commands.append(link_command(f"releases/{state.current}", "previous"))
    was = f" (was {state.current})" if state.current else ""
    return Step(
        kind="activate", text=f"current -> releases/{release}{was}", commands=tuple(commands)
    )


def _removable(state: DeviceState, release: str, keep: int) -> list[str]:
    others = [name for name in state.releases if name != release]
    # After the deploy, the release that is current now will be the previous one.
    needed = {state.current if state.current != release else state.previous}
    room = max(0, keep - 1 - len([name for name in others if name in needed]))
    free = [name for name in others if name not in needed]
    return [*free[room:], *state.leftovers]


def _remove_command(name: str) -> str:
    if not _RELEASE.fullmatch(name):
        return f"rm -rf releases/{name}"
    # Renamed first: a release with its own name is always whole.
    old = f"releases/{name}.old"
    return f"rm -rf {old} releases/{name}.smoke.json && mv releases/{name} {old} && rm -rf {old}"


def _link(target: str, releases: Iterable[str]) -> str | None:
    name = target.removeprefix("releases/")
    return name if name in releases else None


def _claims(content: str) -> dict[str, str]:
    document = _json_object(content) or {}
    files = document.get("files")
    if not isinstance(files, dict):
        return {}
    return {
        str(path): entry["sha256"]
        for path, entry in files.items()
        if isinstance(entry, dict) and isinstance(entry.get("sha256"), str)
    }


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _listing(text: str) -> tuple[dict[str, str], dict[str, int]]:
    sums: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        if match := _SHA256_LINE.fullmatch(line):
            sums[match[2]] = match[1]
        elif match := _SIZE_LINE.fullmatch(line):
            sizes[match[2]] = int(match[1])
    return sums, sizes

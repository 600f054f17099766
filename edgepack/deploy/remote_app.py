"""edgepack-run on a device: one call, its JSON, and what its exit codes mean."""

from __future__ import annotations

import contextlib
import json
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgepack.base.errors import (
    BundleError,
    EdgepackError,
    GpuLostError,
    MismatchError,
    ModelError,
    NothingThereError,
    PositionError,
    RemoteError,
    UsageError,
)
from edgepack.bundle.bundle import PREPROCESS
from edgepack.bundle.manifest import APP, STAGES_FOLDER
from edgepack.deploy.answers import DeviceRefusal, read_object
from edgepack.deploy.app_answers import AppAnswer, Deviation
from edgepack.device.base import Device, RemoteResult, is_emulated
from edgepack.device.errors import command_error
from edgepack.device.facts import own_folder

_ERRORS: dict[int, type[EdgepackError]] = {
    UsageError.exit_code: UsageError,
    ModelError.exit_code: ModelError,
    BundleError.exit_code: BundleError,
    MismatchError.exit_code: MismatchError,
    PositionError.exit_code: PositionError,
    GpuLostError.exit_code: GpuLostError,
}
# What a shell makes of a program that did not get as far as its own exit code.
_SHELL_CODES = {
    126: ("it cannot be executed there", "is that file system mounted noexec? try another --root"),
    127: ("it, or its dynamic loader, is not there", "deploy again"),
    132: ("illegal instruction: its CPU is not the board's", "deploy for the right --board"),
    137: ("it was killed, probably for want of memory", "free some memory there (free -m)"),
    139: ("it crashed (segmentation fault)", "that is a bug of edgepack: please report it"),
}


# A command that nobody waits for any more goes on until it writes, and a benchmark writes at its
# end: it ends with the process that its shell was started by, which goes with the link. Where that
# process is not seen (another PID namespace, hidepid), it ends by itself only.
_WITH_LINK = (
    "if [ -e /proc/$PPID ]; then"
    " (while sleep 5 && [ -e /proc/$$ ]; do [ -e /proc/$PPID ] || kill $$; done)"
    " </dev/null >/dev/null 2>&1 & fi; exec "
)
TENSORS = (".npy", ".raw")
"""How names of files end that are inputs as they are; others are photos."""


@dataclass(frozen=True, kw_only=True)
class Dump:
    """Tensor `tensor` of graph.json, as it is when call `call` is done, for the .npy file `file`
    here.
    """

    call: int
    tensor: int
    file: Path


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A request to edgepack-run of a release; if `release` is empty, of the current one.

    The input is one of `image`, `inputs` (.npy or .raw files, in the order of the model's
    inputs) and `golden`. `outputs` and `expected` are local .npy files, in the order of the
    model's outputs, to write and to compare with. With `stage`, only this stage of the release
    runs, counted from 1. `dumps` are written on the device and then fetched; `options` are
    further options of edgepack-run, `environment` are variables for it, as "NAME=value".
    """

    image: Path | None = None
    inputs: tuple[Path, ...] = ()
    golden: bool = False
    outputs: tuple[Path, ...] = ()
    expected: Path | None = None
    dumps: tuple[Dump, ...] = ()
    release: str = ""
    stage: int = 0
    options: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        # Whoever comes from Python may give a str.
        for name in ("image", "expected"):
            if (file := getattr(self, name)) is not None:
                object.__setattr__(self, name, Path(file))
        for name in ("inputs", "outputs"):
            object.__setattr__(self, name, tuple(map(Path, getattr(self, name))))


def run_on_device(device: Device, root: str, request: RunRequest) -> dict[str, Any]:
    """Run the app on the device by `ask_app`, and return its JSON object."""
    return dict(ask_app(device, root, request).document)


def ask_app(device: Device, root: str, request: RunRequest) -> AppAnswer:
    """Run a release below `root`.

    Files go to a temporary folder there and are removed again. Raises RemoteError if
    nothing is deployed or the app fails, SenselessError for an answer that is none, and the
    class of the app's own exit code (UsageError, ModelError, BundleError, MismatchError,
    PositionError, GpuLostError).
    """
    uploads = [path for path in (request.image, *request.inputs, request.expected) if path]
    for path in uploads:
        if not path.is_file():
            raise UsageError(f"no such file: {path}")
    for path in request.outputs:
        if not path.parent.is_dir():
            raise UsageError(f"no such folder: {path.parent}", hint="it will hold the output")
    inside = f"{release_folder('', request.release)[1:]}/{APP}"
    app = f"{root}/{inside}"
    needed = bool(uploads or request.outputs or request.dumps)
    # Of a photo the app says that a file is missing, as if the release were damaged.
    bundle = stage_folder(release_folder(root, request.release), request.stage)
    reads = f"{bundle}/{PREPROCESS}" if request.image else ""
    with temporary_folder(device, app, needed=needed, reads=reads) as folder:
        remote = {path: f"{folder}/{i}{path.suffix.lower()}" for i, path in enumerate(uploads)}
        for path, name in remote.items():
            device.put(path, name)
        written = _written(request, folder)
        words = _words(request, remote, written)
        begin = _WITH_LINK if "--bench" in request.options else ""
        if request.environment:
            begin += f"{shlex.join(['env', *request.environment])} "
        command = f'r=$({own_folder(root)}) && {{ {begin}"$r"/{app_command(inside, words)}'
        if request.stage:
            own = stage_folder(release_folder("", request.release)[1:], request.stage)
            command += f' --bundle "$r"/{own}'
        done = device.run(f"{command}; }}", timeout_s=request.timeout_s, check=False)
        stdout = done.stdout
        for path, name in remote.items():
            # Messages name the files that the user knows, inside the JSON's quotes; a slash
            # may be escaped there.
            known = json.dumps(str(path))[1:-1]
            for spelling in (name, name.replace("/", "\\/")):
                stdout = stdout.replace(spelling, known)
        answer = parse_answer(device, replace(done, stdout=stdout))
        for name, local in written.items():
            device.get(name, local)
        return answer


def stage_folder(release: str, stage: int) -> str:
    """The folder of stage number `stage` in a release's folder; that itself for 0."""
    return f"{release}/{STAGES_FOLDER}/{stage}" if stage else release


def release_folder(root: str, release: str = "") -> str:
    """Where a release is below `root`, the current one without a name."""
    return f"{root}/releases/{release}" if release else f"{root}/current"


def need_release(device: Device, root: str, release: str = "") -> None:
    """Raise `NothingThereError` if a release, the current one without a name, is not below `root`:
    what takes long is begun when it is there."""
    folder = release_folder(root, release)
    if device.run(f"[ -e {shlex.quote(folder)} ] || exit 3", check=False).returncode == 3:
        what = f"no release {release} is" if release else "no release is current"
        raise NothingThereError(
            f"{device.name}: {what} in {root}", hint="`edgepack deploy` puts it there"
        )


def _written(request: RunRequest, folder: str) -> dict[str, Path]:
    """What the app writes in `folder` there, and where that goes here."""
    files = [*request.outputs, *(dump.file for dump in request.dumps)]
    return {f"{folder}/made{i}.npy": file for i, file in enumerate(files)}


def _words(
    request: RunRequest, remote: Mapping[Path, str], written: Mapping[str, Path]
) -> list[str]:
    """The app's options; `remote` has the names there of what was uploaded."""
    words = [word for path in request.inputs for word in ("--input", remote[path])]
    if request.image:
        words += ["--image", remote[request.image]]
    if request.golden:
        words += ["--golden"]
    if request.expected:
        words += ["--expected", remote[request.expected]]
    names = list(written)
    count = len(request.outputs)
    words += [word for name in names[:count] for word in ("--output", name)]
    for name, dump in zip(names[count:], request.dumps, strict=True):
        words += ["--dump", f"{dump.call}:{dump.tensor}:{name}"]
    return [*words, *request.options]


@contextlib.contextmanager
def temporary_folder(device: Device, app: str, *, needed: bool, reads: str = "") -> Iterator[str]:
    """A folder there, or "" if none is `needed`; checks in passing that `app` is there, and what
    it `reads` of a photo."""
    own = f'd=${{TMPDIR:-/tmp}}/edgepack-{secrets.token_hex(8)}; mkdir -m 700 "$d" && echo "$d"'
    make = f"mktemp -d 2>/dev/null || {{ {own}; }}" if needed else ":"
    wanted = f"[ -e {shlex.quote(reads)} ] || exit 4; " if reads else ""
    found = device.run(f"[ -e {shlex.quote(app)} ] || exit 3; {wanted}{make}", check=False)
    folder = "".join(found.stdout.split()[-1:]) if needed else ""
    if found.returncode == 3:
        raise NothingThereError(
            f"{device.name}: there is no {app}", hint="`edgepack deploy` puts it there"
        )
    if found.returncode == 4 and reads:
        raise UsageError(
            f"{device.name}: the model there takes no photo: it was deployed without [preprocess]",
            hint="give a .npy file for each of its inputs; or deploy it with a [preprocess] table, "
            "which `edgepack init` writes",
        )
    if found.returncode != 0 or folder.startswith("/") != needed:
        raise RemoteError(f"{device.name}: no temporary folder: {found.stderr.strip()}")
    try:
        yield folder
    finally:
        if folder:
            with contextlib.suppress(EdgepackError):
                device.run(f"rm -rf -- {shlex.quote(folder)}")


def app_command(app: str, words: Sequence[str]) -> str:
    """The command line that runs `app`, a path with a slash, with `words` and --json."""
    return shlex.join([app, *words, "--json"])


def parse_answer(device: Device, done: RemoteResult) -> AppAnswer:
    """What edgepack-run printed; raises as its exit code says."""
    name = device.name
    if done.returncode in _SHELL_CODES:
        what, hint = _SHELL_CODES[done.returncode]
        raise RemoteError(f"{name}: edgepack-run: {what}", hint=hint)
    if "{" not in done.stdout:
        raise command_error(name, done)
    source = f"{name}: edgepack-run"
    answer = read_object(done.stdout, source)
    if answer.has("error"):
        said = answer.need("error", DeviceRefusal.read)
        raise _ERRORS.get(done.returncode, RemoteError)(f"{name}: {said.message}", hint=said.hint)
    read = AppAnswer.read(answer)
    if done.returncode == MismatchError.exit_code:
        raise MismatchError(f"{name}: {_difference(read.expected)}")
    if done.returncode != 0:
        raise command_error(name, done)
    return read.on_emulator() if is_emulated(device) else read


def _difference(expected: Deviation | None) -> str:
    if expected is None or expected.max_abs_error is None:
        return "outputs differ"
    return (
        f"outputs differ by {expected.max_abs_error:.3g}, allowed are "
        f"{expected.tolerance:g} of {expected.max_abs_reference:.3g}"
    )

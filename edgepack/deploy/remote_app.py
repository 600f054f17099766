"""edgepack-run on a device: one call, its JSON, and what its exit codes mean."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgepack.base.errors import (
    BundleError,
    EdgepackError,
    MismatchError,
    ModelError,
    RemoteError,
    UsageError,
)
from edgepack.base.process import last_lines
from edgepack.bundle.manifest import APP
from edgepack.device.base import Device, RemoteResult
from edgepack.device.errors import shorten

_ERRORS: dict[int, type[EdgepackError]] = {
    UsageError.exit_code: UsageError,
    ModelError.exit_code: ModelError,
    BundleError.exit_code: BundleError,
    MismatchError.exit_code: MismatchError,
}
# What a shell makes of a program that did not get as far as its own exit code.
_SHELL_CODES = {
    126: ("it cannot be executed there", "is that file system mounted noexec? try another --root"),
    127: ("it, or its dynamic loader, is not there", "deploy again"),
    132: ("illegal instruction: its CPU is not the board's", "deploy for the right --board"),
    137: ("it was killed, probably for want of memory", "free some memory there (free -m)"),
    139: ("it crashed (segmentation fault)", "that is a bug of edgepack: please report it"),
}


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What edgepack-run shall do there.

    One of `image`, `inputs` (.npy or .raw, in the order of the model's inputs) and
    `golden`; `output` and `expected` are .npy files here; `options` are further options
    as edgepack-run takes them.
    """

    image: Path | None = None
    inputs: tuple[Path, ...] = ()
    golden: bool = False
    output: Path | None = None
    expected: Path | None = None
    options: tuple[str, ...] = ()
    timeout_s: float | None = None


def run_on_device(device: Device, root: str, request: RunRequest) -> dict[str, Any]:
    """Run the current release below `root`; the app's JSON object.

    Files go to a temporary folder there and are removed again. Raises RemoteError if
    nothing is deployed or the app fails, and the class of the app's own exit code
    (UsageError, ModelError, BundleError, MismatchError).
    """
    uploads = [path for path in (request.image, *request.inputs, request.expected) if path]
    for path in uploads:
        if not path.is_file():
            raise UsageError(f"no such file: {path}")
    if request.output and not request.output.parent.is_dir():
        raise UsageError(
            f"no such folder: {request.output.parent}", hint="it is to hold the output"
        )
    app = f"{root}/current/{APP}"
    with _temporary_folder(device, app, needed=bool(uploads or request.output)) as folder:
        remote = {path: f"{folder}/{i}{path.suffix.lower()}" for i, path in enumerate(uploads)}
        for path, name in remote.items():
            device.put(path, name)
        words = [word for path in request.inputs for word in ("--input", remote[path])]
        if request.image:
            words += ["--image", remote[request.image]]
        if request.golden:
            words += ["--golden"]
        if request.expected:
            words += ["--expected", remote[request.expected]]
        if request.output:
            words += ["--output", f"{folder}/output.npy"]
        command = app_command(app, [*words, *request.options])
        done = device.run(command, timeout_s=request.timeout_s, check=False)
        stdout = done.stdout
        for path, name in remote.items():
            # Messages name the files that the user knows, inside the JSON's quotes; a slash
            # may be escaped there.
            known = json.dumps(str(path))[1:-1]
            for spelling in (name, name.replace("/", "\\/")):
                stdout = stdout.replace(spelling, known)
        answer = parse_answer(device, replace(done, stdout=stdout))
        if request.output:
            device.get(f"{folder}/output.npy", request.output)
        return answer


@contextlib.contextmanager
def _temporary_folder(device: Device, app: str, *, needed: bool) -> Iterator[str]:
    """A folder there, or "" if none is `needed`; checks in passing that `app` is there."""
    found = device.run(
        f"[ -e {shlex.quote(app)} ] || exit 3; " + ("mktemp -d" if needed else ":"), check=False
    )
    folder = "".join(found.stdout.split()[-1:]) if needed else ""
    if found.returncode == 3:
        raise RemoteError(
            f"{device.name}: there is no {app}", hint="`edgepack deploy` puts it there"
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
    """The command line that runs `app` with `words` and --json."""
    # A relative path without a slash would be looked up in PATH.
    name = app if app.startswith("/") else f"./{app}"
    return shlex.join([name, *words, "--json"])


def parse_answer(device: Device, done: RemoteResult) -> dict[str, Any]:
    """The JSON object edgepack-run printed; raises as its exit code says."""
    answer = _json_object(done.stdout)
    if done.returncode == 0 and answer is not None and "error" not in answer:
        return answer
    said = answer.get("error") if answer else None
    if isinstance(said, dict) and isinstance(said.get("message"), str):
        message, hint = said["message"], said.get("hint") or None
        kind = _ERRORS.get(done.returncode, RemoteError)
    elif done.returncode == MismatchError.exit_code:
        message, hint, kind = _difference(answer or {}), None, MismatchError
    elif done.returncode in _SHELL_CODES:
        what, hint = _SHELL_CODES[done.returncode]
        message, kind = f"edgepack-run: {what}", RemoteError
    else:
        lines = last_lines(f"{done.stdout}\n{done.stderr}")
        message = f"edgepack-run failed with exit code {done.returncode}: "
        message, hint, kind = f"{message}{shorten(done.command)}\n{lines}", None, RemoteError
    raise kind(f"{device.name}: {message}".rstrip(), hint=hint)


def _difference(answer: Mapping[str, Any]) -> str:
    try:
        expected = answer["expected"]
        return (
            f"outputs differ by {float(expected['max_abs_error']):.3g}, allowed are "
            f"{float(expected['tolerance']):g} of {float(expected['max_abs_reference']):.3g}"
        )
    except (KeyError, TypeError, ValueError):
        return "outputs differ"


def _json_object(text: str) -> dict[str, Any] | None:
    # A login script may have printed something before it.
    start = text.find("{")
    try:
        value = json.loads(text[start:]) if start >= 0 else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None

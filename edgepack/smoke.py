"""The smoke test: the bundle's golden input, and its photo, on the device itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgepack.bundle import EXPECTED, Bundle
from edgepack.device.base import Device, RemoteResult
from edgepack.errors import MismatchError, RemoteError
from edgepack.manifest import APP
from edgepack.release import Layout
from edgepack.remote_app import app_command, parse_answer

TIMEOUT_S = 600.0
_MARK = "@@edgepack:exit:"


@dataclass(frozen=True, kw_only=True)
class Smoke:
    """What edgepack-run gave on the device.

    `max_abs_error` and `max_abs_reference` are of the golden outputs; `latency_ms` is one
    run, without loading; `top` are the best classes, of the photo if there is one. `golden`
    and `photo` are all that edgepack-run said.
    """

    max_abs_error: float
    max_abs_reference: float
    tolerance: float
    latency_ms: float
    top: tuple[Mapping[str, Any], ...]
    golden: Mapping[str, Any]
    photo: Mapping[str, Any] | None


def run_smoke(device: Device, layout: Layout, bundle: Bundle) -> Smoke:
    """Test the release of `bundle` below `layout`, in one round trip.

    Raises MismatchError if outputs or the photo's class are not the expected ones, and
    what `parse_answer` and `Device.run` raise.
    """
    folder = f"releases/{bundle.manifest.release}"
    runs = [["--golden"]]
    if bundle.golden_image:
        runs.append(["--image", f"{folder}/{bundle.golden_image}"])
    commands = [app_command(f"{folder}/{APP}", words) for words in runs]
    script = "; ".join(f"{command}; c=$?; echo; echo {_MARK}$c" for command in commands)
    done = device.run(layout.enter(f"{{ {script}; }}"), timeout_s=TIMEOUT_S, check=False)
    answers = []
    rest = done.stdout
    for command in commands:
        text, _, rest = rest.partition(_MARK)
        code, _, rest = rest.partition("\n")
        result = RemoteResult(
            command=command,
            returncode=int(code) if code.isdigit() else done.returncode,
            stdout=text,
            stderr=done.stderr,
        )
        answers.append(parse_answer(device, result))
    smoke = _smoke(answers[0], answers[1] if bundle.golden_image else None)
    if not smoke.max_abs_error <= smoke.tolerance * smoke.max_abs_reference:
        raise MismatchError(
            f"{device.name}: outputs differ by {smoke.max_abs_error:.3g}, allowed are "
            f"{smoke.tolerance:g} of {smoke.max_abs_reference:.3g}"
        )
    if smoke.photo is not None and EXPECTED in bundle.manifest.files:
        _check_class(device, bundle, smoke.photo)
    return smoke


def to_record(smoke: Smoke, fingerprint: str) -> str:
    """What is kept on the device of a test that passed, on one line."""
    return json.dumps({"fingerprint": fingerprint, "golden": smoke.golden, "photo": smoke.photo})


def from_record(record: Mapping[str, Any] | None, fingerprint: str) -> Smoke | None:
    """The test that `record` is of; None if it was on another system or makes no sense."""
    if record is None or record.get("fingerprint") != fingerprint:
        return None
    try:
        return _smoke(record["golden"], record["photo"])
    except (KeyError, RemoteError):
        return None


def _smoke(golden: Mapping[str, Any], photo: Mapping[str, Any] | None) -> Smoke:
    try:
        expected = golden["expected"]
        source = golden if photo is None else photo
        return Smoke(
            max_abs_error=float(expected["max_abs_error"]),
            max_abs_reference=float(expected["max_abs_reference"]),
            tolerance=float(expected["tolerance"]),
            latency_ms=float(source["run_ms"]),
            top=tuple(source.get("top", ())),
            golden=golden,
            photo=photo,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RemoteError(
            "edgepack-run's answer makes no sense", hint="that is a bug: please report it"
        ) from None


def _check_class(device: Device, bundle: Bundle, photo: Mapping[str, Any]) -> None:
    expected = json.loads(bundle.file(EXPECTED).read_text(encoding="utf-8"))
    best = (photo.get("top") or [{}])[0]
    if best.get("index") != expected["index"]:
        raise MismatchError(
            f"{device.name}: the golden photo is taken for class {best.get('index')} "
            f"{best.get('label', '')!r} instead of {expected['index']} {expected['label']!r}"
        )

"""The state of a fleet whose devices are scraped or push: what a Prometheus knows of them.

https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from edgepack.base.errors import ConnectError, UsageError
from edgepack.base.text import one_line
from edgepack.deploy.answers import Answer, SenselessError, read_object
from edgepack.fleet.inventory import FleetDevice
from edgepack.fleet.rollout import Done

MAX_BYTES = 64 << 20
"""Of one answer: 20,000 devices with their labels are 12 MB."""
_TIMEOUT_S = 60.0
_INFO, _HEALTHY = "edgepack_device_release_info", "edgepack_device_release_healthy"
_SINCE, _DRIFT = "edgepack_device_release_since_timestamp_seconds", "edgepack_drift_level"
_LATENCY = "edgepack_device_smoke_test_seconds"
_TRIAL, _AGREEMENT = "edgepack_device_trial_info", "edgepack_device_trial_agreement"


class NotKnownError(ConnectError):
    """Prometheus has no series of this device."""


@dataclass(frozen=True, kw_only=True)
class _Series:
    """The newest value of a series, and whose it is."""

    device: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, kw_only=True)
class TrialKnown:
    """What Prometheus knows of a trial: the candidate, and how far its answers agree."""

    release: str
    phase: str
    agreement: float | None

    def summary(self) -> str:
        """On one line."""
        agree = "" if self.agreement is None else f", answers agree by {self.agreement:.2%}"
        return f"{self.release} {self.phase}{agree}"


@dataclass(frozen=True, kw_only=True)
class DeviceKnown:
    """What Prometheus knows of a device."""

    release: str
    info: Mapping[str, str]
    healthy: bool
    since: str | None
    latency_ms: float | None
    drift: tuple[str, ...]
    trial: TrialKnown | None = None


def ask_prometheus(url: str, model: str) -> dict[str, DeviceKnown]:
    """What the Prometheus at `url` knows of `model` on each device, by the device's name.

    That is the label `device`, or the host of `instance`. Raises UsageError for an address that is
    none, ConnectError if nothing answers, and SenselessError for an answer that is none.
    """
    series = {
        name: _query(url, f"{name}{{model={_quoted(model)}}}")
        for name in (_INFO, _HEALTHY, _SINCE, _LATENCY, _DRIFT, _TRIAL, _AGREEMENT)
    }

    by_device: dict[str, dict[str, list[_Series]]] = {}
    for name, found in series.items():
        for one in found:
            by_device.setdefault(one.device, {}).setdefault(name, []).append(one)
    known = {}
    for device, own in by_device.items():
        if _INFO not in own:
            continue
        # What was pushed of the release before stays for some minutes after a deploy.
        begun = {one.labels.get("release"): one.value for one in own.get(_SINCE, ())}
        info = max(own[_INFO], key=lambda one: begun.get(one.labels.get("release"), 0.0))
        release = info.labels.get("release", "")
        of_release = {
            name: [one for one in found if one.labels.get("release") == release]
            for name, found in own.items()
        }
        since = next((one.value for one in of_release.get(_SINCE, ())), None)
        latency = next((one.value for one in of_release.get(_LATENCY, ())), None)
        known[device] = DeviceKnown(
            release=release,
            info=info.labels,
            healthy=any(one.value == 1 for one in of_release.get(_HEALTHY, ())),
            since=None if since is None else _time(since),
            latency_ms=None if latency is None else latency * 1000,
            drift=tuple(
                sorted(
                    one.labels.get("signal", "")
                    for one in of_release.get(_DRIFT, ())
                    if one.value >= 1
                )
            ),
            trial=_trial(own, release),
        )
    return known


def _trial(own: Mapping[str, Sequence[_Series]], current: str) -> TrialKnown | None:
    """The last trial, unless it is about neither the `current` release nor its successor."""
    found = [
        one.labels
        for one in own.get(_TRIAL, ())
        if current in (one.labels.get("release"), one.labels.get("before"))
    ]
    if not found:
        return None
    # What was pushed while it ran stays for some minutes after its end.
    trial = min(found, key=lambda labels: labels.get("phase") in ("running", "activating"))
    release = trial.get("release", "")
    agreement = (
        one.value for one in own.get(_AGREEMENT, ()) if one.labels.get("release") == release
    )
    return TrialKnown(
        release=release, phase=trial.get("phase", "unknown"), agreement=next(agreement, None)
    )


def _time(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return None


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _query(url: str, query: str) -> list[_Series]:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"--from prometheus: not an address: {one_line(url)}",
            hint="for example http://localhost:9090",
        )
    where = f"{url.rstrip('/')}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(where, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - looked at
            data = answer.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise ConnectError(f"{one_line(url)}: status {error.code}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise ConnectError(
            f"{one_line(url)}: {one_line(reason, limit=200)}", hint="is that Prometheus' address?"
        ) from None
    if len(data) > MAX_BYTES:
        raise SenselessError(f"{one_line(url)}: an answer of more than {MAX_BYTES} bytes")
    document = read_object(data.decode(errors="replace"), one_line(url))
    if document.take("status", str) != "success":
        raise SenselessError(f"{one_line(url)}: {document.text_or_none('error') or 'no success'}")
    return document.need("data", _vector)


def _vector(data: Answer) -> list[_Series]:
    kind = data.take("resultType", str)
    if kind != "vector":
        raise data.fail("resultType", f"{kind!r} is not 'vector'")
    return list(data.parts("result", _series))


def _series(entry: Answer) -> _Series:
    given: dict[str, Any] = entry.take("metric", dict)
    labels = {}
    for name, value in given.items():
        if not isinstance(value, str):
            raise entry.fail("metric", f"{name} is not a text")
        labels[one_line(name)] = one_line(value)
    pair = entry.document.get("value")
    if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[1], str):
        raise entry.fail("value", "is not a time and a number")
    try:
        value = float(pair[1])
    except ValueError:
        raise entry.fail("value", f"{pair[1]!r} is not a number") from None
    device = labels.get("device") or labels.get("instance", "").rpartition(":")[0]
    return _Series(device=device, labels=labels, value=value)


@dataclass(frozen=True, kw_only=True)
class LookUp:
    """What `ask_prometheus` knew of each device, as `AskStatus` would tell it."""

    known: Mapping[str, DeviceKnown]
    action: str = "status"

    def wanted(self, device: FleetDevice) -> str | None:
        """See `Work.wanted`."""

    def budget_s(self, device: FleetDevice) -> float:
        """See `Work.budget_s`."""
        return _TIMEOUT_S

    def check(self, device: FleetDevice) -> None:
        """See `Work.check`: nothing to look after."""

    def __call__(self, device: FleetDevice) -> Done:
        """See `Work`."""
        known = self.known.get(device.name) or self.known.get(device.address)
        if known is None:
            raise NotKnownError(
                f"{device.name}: Prometheus knows nothing of it",
                hint="its label `device`, or the host of `instance`, is to be the name or address",
            )
        info = known.info
        return Done(
            outcome=", ".join(
                ["ok" if known.healthy else "unhealthy", *(f"{one} drift" for one in known.drift)]
            ),
            release=known.release,
            details={
                "version": int(info["version"]) if info.get("version", "").isdecimal() else None,
                "model": info.get("model_file"),
                "model_sha256": info.get("model_sha256"),
                "since": known.since,
                "by": info.get("by"),
                "latency_ms": known.latency_ms,
                "trial": known.trial.summary() if known.trial else None,
                "trial_phase": known.trial.phase if known.trial else None,
            },
        )

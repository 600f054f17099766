"""The smoke test: the bundle's golden input, and its photo, run by the device tool there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgepack.base.errors import RemoteError


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


def from_health(health: Mapping[str, Any]) -> Smoke:
    """The test that the device tool's health record is of; RemoteError if it makes no sense."""
    try:
        golden, photo = health["golden"], health["photo"]
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
            "the device tool's health record makes no sense",
            hint="that is a bug: please report it",
        ) from None

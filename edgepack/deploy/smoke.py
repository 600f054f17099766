"""The smoke test: the bundle's golden input, and its photo, run by the device tool there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgepack.deploy.answers import Answer
from edgepack.deploy.app_answers import AppAnswer, Class


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

    @property
    def classes(self) -> tuple[Class, ...]:
        """`top` as records."""
        return tuple(Class.read(Answer(one, "smoke test")) for one in self.top)


def read_health(answer: Answer) -> Smoke:
    """The test that the device tool's health record is of. Raises SenselessError."""
    golden = answer.need("golden", AppAnswer.read)
    photo = answer.part("photo", AppAnswer.read)
    expected, source = golden.expected, photo or golden
    if expected is None or expected.max_abs_error is None:
        raise answer.fail("golden", "nothing was compared")
    if "run" not in source.times_ms:
        raise answer.fail("golden" if photo is None else "photo", "no run_ms")
    return Smoke(
        max_abs_error=expected.max_abs_error,
        max_abs_reference=expected.max_abs_reference,
        tolerance=expected.tolerance,
        latency_ms=source.times_ms["run"],
        top=tuple(source.document.get("top", ())),
        golden=golden.document,
        photo=photo.document if photo else None,
    )

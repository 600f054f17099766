"""A trial: a release answers the pictures of the current one beside it, and is compared.

It runs and is decided on the device (cpp_runtime/device/src/trial_run.cc); here is what the device
says of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgepack.base.errors import MismatchError, UsageError
from edgepack.base.text import format_count, megabytes
from edgepack.deploy.answers import Answer
from edgepack.deploy.options import MOST_KEPT, TrialRules


class TrialRunsError(UsageError):
    """A release is to be deployed where its trial has not ended."""


class TrialDroppedError(MismatchError):
    """A release is to be deployed where its trial dropped it."""


@dataclass(frozen=True, kw_only=True)
class TrialStatus:
    """How a trial goes, or how it ended.

    `release` is the candidate, `before` what was current when it began. `phase` is "running",
    "activating", "activated", "dropped" or "stopped", and `reason` says why it ended. With `runs`
    false and one of the first two phases, a reboot interrupted it. `agreement` is None before the
    first compared picture, `latency_ratio` before it was measured. `difference` is the largest
    difference of the scores of what both found. `kept` pictures that differ lie on the device. The
    candidate answered `answered` pictures in the place of the current release.
    """

    release: str
    before: str
    phase: str
    reason: str
    runs: bool
    rules: TrialRules
    elapsed_s: float
    pictures: int
    differing: int
    incomparable: int
    crashes: int
    kept: int
    answered: int
    agreement: float | None
    latency_ratio: float | None
    difference: float
    peak_bytes: int
    document: Mapping[str, Any] = field(repr=False)

    @staticmethod
    def read(answer: Answer) -> TrialStatus:
        """Of {"trial", "runs"}."""
        runs = answer.take("runs", bool)
        return answer.need("trial", lambda it: _read(it, runs, answer.document))

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.phase not in ("running", "activating")

    @property
    def interrupted(self) -> bool:
        """Whether it has not ended, and nobody runs it."""
        return not self.is_over and not self.runs

    def summary(self) -> str:
        """On one line, without the release before."""
        if self.phase == "running" and self.runs:
            return f"{self.release} running, {self.elapsed_s:.0f} of {self.rules.seconds:.0f} s"
        phase = "interrupted" if self.interrupted else self.phase
        return f"{self.release} {phase}" + (f": {self.reason}" if self.reason else "")

    def lines(self) -> list[str]:
        """For a person."""
        phase = "interrupted; `edgepack trial resume` continues" if self.interrupted else self.phase
        lines = [
            f"trial     release {self.release} beside {self.before}: {phase}",
            f"time      {self.elapsed_s:.0f} of {self.rules.seconds:.0f} s",
            f"compared  {format_count(self.pictures, 'picture')}, {self.differing} differ",
        ]
        if self.reason:
            lines.insert(1, f"because   {self.reason}")
        if self.incomparable:
            lines[-1] += f"; {self.incomparable} more give nothing that is compared"
        if self.rules.split:
            answered = format_count(self.answered, "picture")
            wanted = f"{self.rules.split:.4g} of all are the candidate's"
            lines.append(f"answered  {answered} by the candidate ({wanted})")
        if self.kept:
            lines.append(
                f"kept      {format_count(self.kept, 'picture')} of those that differ; "
                "`edgepack trial status --pictures DIR` copies them"
            )
        if self.agreement is not None:
            lines.append(
                f"agreement {self.agreement:.2%} (needed: {self.rules.min_agreement:.2%}); "
                f"scores differ by up to {self.difference:.3g}"
            )
        if self.latency_ratio is not None:
            lines.append(
                f"latency   {self.latency_ratio:.2f} x (allowed: {self.rules.max_latency:g} x)"
            )
        lines.append(f"memory    peak {megabytes(self.peak_bytes)}")
        if self.crashes:
            lines.append(f"crashes   {self.crashes}")
        return lines


def _read_rules(answer: Answer) -> TrialRules:
    try:
        return TrialRules(
            seconds=answer.take("seconds", float),
            share=answer.take("share", float),
            min_agreement=answer.take("min_agreement", float),
            max_latency=answer.take("max_latency", float),
            min_pictures=answer.size("min_pictures"),
            keep_disagreements=answer.take("keep_disagreements", int, 0),
            split=answer.take("split", float, 0.0),
        )
    except UsageError as error:
        raise answer.fail("seconds", error.message) from None


def _kept(answer: Answer) -> int:
    """An older device tool keeps none."""
    kept = answer.take("kept", int, 0)
    if not 0 <= kept <= MOST_KEPT:
        raise answer.fail("kept", f"{kept} is not between 0 and {MOST_KEPT}")
    return kept


def _answered(answer: Answer) -> int:
    """An older device tool counts none."""
    return answer.size("answered") if "answered" in answer.document else 0


def _read(answer: Answer, runs: bool, document: Mapping[str, Any]) -> TrialStatus:
    return TrialStatus(
        release=answer.text("release"),
        before=answer.text("before"),
        phase=answer.text("phase"),
        reason=answer.text("reason"),
        runs=runs,
        rules=answer.need("rules", _read_rules),
        elapsed_s=answer.take("elapsed_s", float),
        pictures=answer.size("pictures"),
        differing=answer.size("differing"),
        incomparable=answer.size("incomparable"),
        crashes=answer.size("crashes"),
        kept=_kept(answer),
        answered=_answered(answer),
        agreement=answer.take("agreement", float, None),
        latency_ratio=answer.take("latency_ratio", float, None),
        difference=answer.take("largest_difference", float),
        peak_bytes=answer.size("peak_bytes"),
        document=document,
    )

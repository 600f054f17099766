"""How to deploy: what a command line asks for before anything else is imported."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgepack.base.errors import UsageError
from edgepack.device.options import COMMAND_TIMEOUT_S

KEEP_RELEASES = 3
ON_TRIAL = "on trial"
"""The outcome of a deploy that began a trial."""

_MOST_TRIAL_S = 30 * 86400.0
MOST_KEPT = 100
"""Pictures of one trial."""


@dataclass(frozen=True, kw_only=True)
class TrialRules:
    """How long a trial lasts, and what the candidate must reach to become the current release.

    `share` is the share of the current release's pictures that the candidate is given, at most:
    those that come while it is busy are left out. `min_agreement` is the mean over all compared
    pictures. `max_latency` limits the candidate's latency as a multiple of the current release's.
    With fewer than `min_pictures` compared pictures the candidate is dropped. So many small
    pictures about which the two disagree are kept on the device as `keep_disagreements` says.
    `split`, at most `share`, is the share of all pictures that the candidate answers in the current
    release's place (an A/B test), as far as it does so in time.

    Raises UsageError for a value out of range.
    """

    seconds: float = 7200.0
    share: float = 0.1
    min_agreement: float = 0.98
    max_latency: float = 1.2
    min_pictures: int = 20
    keep_disagreements: int = 0
    split: float = 0.0

    def __post_init__(self) -> None:
        for option, holds, allowed in (
            ("--shadow", 0 < self.seconds <= _MOST_TRIAL_S, "more than 0 s and at most 30 d"),
            ("--share", 0 < self.share <= 1, "above 0 and at most 1"),
            ("--split", 0 <= self.split <= self.share, "at least 0 and at most --share"),
            ("--min-agreement", 0 <= self.min_agreement <= 1, "between 0 and 1"),
            ("--max-latency", 0 < self.max_latency < float("inf"), "above 0"),
            ("--min-pictures", self.min_pictures >= 1, "at least 1"),
            (
                "--keep-disagreements",
                0 <= self.keep_disagreements <= MOST_KEPT,
                f"at most {MOST_KEPT}",
            ),
        ):
            if not holds:
                raise UsageError(f"{option} must be {allowed}")

    def to_dict(self) -> dict[str, Any]:
        """As the device reads it."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class DeployOptions:
    """How to deploy.

    `keep` is the number of releases to keep on the device; current and previous are always kept.
    `wait_s` limits the wait for another deploy. After a lost link, `retries` attempts in a row
    may make no progress. `answer_s` limits the device's silence while it works (hashing on a
    slow card), beyond the time limits of lock and health gate. `limit_bytes_s` limits the upload
    in bytes per second. `signers` is a file of allowed signers (ssh-keygen(1)) to pin at the
    first install; `allow_downgrade` accepts a lower version than the device's highest. With
    `new_version`, and if signers are pinned, a bundle with the same version as a different
    earlier release is refused. `replace_model` allows replacing another model (see
    `check_same_model`). If `machine_id` is given, a device with another one is refused.
    With `trial` the release is installed and tested, but not activated: it is tried beside the
    current one, and the device decides.
    """

    keep: int = KEEP_RELEASES
    wait_s: float = 60.0
    retries: int = 5
    answer_s: float = COMMAND_TIMEOUT_S
    limit_bytes_s: float | None = None
    allow_downgrade: bool = False
    new_version: bool = False
    replace_model: bool = False
    signers: str | Path | None = None
    machine_id: str = ""
    trial: TrialRules | None = None


DEFAULT_OPTIONS = DeployOptions()

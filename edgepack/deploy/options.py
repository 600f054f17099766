"""How to deploy: what a command line asks for before anything else is imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgepack.device.options import COMMAND_TIMEOUT_S

KEEP_RELEASES = 3


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


DEFAULT_OPTIONS = DeployOptions()

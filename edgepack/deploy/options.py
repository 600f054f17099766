"""How to deploy: what a command line asks for before anything else is imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgepack.device.options import COMMAND_TIMEOUT_S

KEEP_RELEASES = 3


@dataclass(frozen=True, kw_only=True)
class DeployOptions:
    """How to deploy.

    `keep` releases stay on the device; current and previous do in any case. `wait_s` bounds
    the wait for another deploy there. A lost link is tried again `retries` times in a row
    without progress. `answer_s` bounds the silence while the device works (hashing on a slow
    card), beyond the time-outs of lock and health gate. `limit_bytes_s` bounds the upload.
    `signers` is a file of allowed signers (ssh-keygen(1)) to pin at the first install;
    `allow_downgrade` takes a lower version than the device has had. With `new_version` a bundle of
    the same version as another that was current there is refused, if signers are pinned.
    `replace_model` takes the place of a release of another model (see `check_same_model`).
    A device with another `machine_id` than this is refused, if it is given and the device has one.
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

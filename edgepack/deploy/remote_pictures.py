"""The pictures about which the two releases of a trial disagree, brought from the device."""

from __future__ import annotations

from pathlib import Path

from edgepack.base.errors import UsageError
from edgepack.deploy.answers import SenselessError
from edgepack.deploy.remote_tool import Layout
from edgepack.deploy.trial import TrialStatus
from edgepack.device.base import Device

# What the device tool keeps of one: see cpp_runtime/device/src/trial_pictures.h.
_MOST_BYTES = 64 << 10
_JPEG = b"\xff\xd8\xff"


def fetch_pictures(device: Device, root: str, trial: TrialStatus, folder: Path) -> list[Path]:
    """The pictures that a trial below `root` keeps, copied to `folder` with both answers to each.

    Only their owner can read them. Raises UsageError if they cannot be written there,
    SenselessError for what is no picture, RemoteError and ConnectionLostError.
    """
    pictures = []
    for number in range(trial.kept):
        # The picture is written last: it has its answers.
        for suffix in ("jpg", "json"):
            local = folder / f"{trial.release}-{number}.{suffix}"
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                local.unlink(missing_ok=True)
                local.touch(mode=0o600)
            except OSError as error:
                raise UsageError(f"--pictures: {local}: {error.strerror}") from None
            device.get(f"{Layout.of(root).root}/trial/pictures/{number}.{suffix}", local)
            if suffix == "jpg":
                _check(device.name, local)
                pictures.append(local)
    return pictures


def _check(device: str, local: Path) -> None:
    with local.open("rb") as file:
        is_jpeg = file.read(len(_JPEG)) == _JPEG
    if not is_jpeg or local.stat().st_size > _MOST_BYTES:
        local.unlink()
        raise SenselessError(f"{device}: {local.name}: no JPEG of at most {_MOST_BYTES} bytes")

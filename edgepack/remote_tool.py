"""edgepack-device, the tool that a deploy leaves on a device: its calls and its refusals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgepack.device.errors import DiskFullError
from edgepack.errors import (
    BundleError,
    EdgepackError,
    MismatchError,
    RemoteError,
    TimeLimitError,
    UsageError,
)


class LockedError(RemoteError):
    """Another deploy to the same folder is under way."""


class RefusedBundleError(BundleError):
    """The device does not take the bundle: its signature, version, board or content."""


class SmokeTestError(RemoteError):
    """The release does not run on the device; the one before is current again."""


class OutputsDifferError(MismatchError):
    """The release computes something else there; the one before is current again."""


_KINDS: Mapping[str, type[EdgepackError]] = {
    "locked": LockedError,
    "disk-full": DiskFullError,
    "health-failed": OutputsDifferError,
    "health-crashed": SmokeTestError,
    "health-timeout": SmokeTestError,
    "over-latency": SmokeTestError,
    "over-memory": SmokeTestError,
}
_CODES: Mapping[int, type[EdgepackError]] = {
    UsageError.exit_code: UsageError,
    BundleError.exit_code: RefusedBundleError,
    MismatchError.exit_code: MismatchError,
    TimeLimitError.exit_code: TimeLimitError,
}


def tool_error(device: str, said: Mapping[str, Any], exit_code: int) -> EdgepackError:
    """The error for what the tool said: {"kind", "message", "hint"}, by kind, else by code."""
    kind = _KINDS.get(str(said.get("kind"))) or _CODES.get(exit_code, RemoteError)
    return kind(f"{device}: {said.get('message')}", hint=said.get("hint") or None)

"""Every error a user can cause, and the exit code that goes with it.

The classes here are one per exit code; modules derive their own from them, one
per cause. Anything that is not an `EdgepackError` is a bug and exits with 1.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from edgepack.base.text import shorten

MAX_MESSAGE = 20_000
"""Characters: a compiler's last words fit in."""


class EdgepackError(Exception):
    """A user's mistake or a failure outside this program.

    `message` names the error with file, field and value; `hint` is the next step to take.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        # What a file says may be in it, and a file may say much.
        message = shorten(message, MAX_MESSAGE)
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n\nhint: {self.hint}" if self.hint else self.message


class UsageError(EdgepackError):
    """Options that do not fit together, or are not there."""

    exit_code = 2


class ConfigError(EdgepackError):
    """boards.toml, edgepack.toml or a preprocessing table is wrong."""

    exit_code = 2


class ImageError(EdgepackError):
    """A file that is no image, or an image of a kind that is not accepted."""

    exit_code = 2


class ModelError(EdgepackError):
    """The ONNX model cannot be read or compiled."""

    exit_code = 3


class ToolchainError(EdgepackError):
    """A compiler or another tool of this machine is missing or failed."""

    exit_code = 4


class BundleError(EdgepackError):
    """A bundle is damaged, or does not fit the board or device."""

    exit_code = 5


class ConnectError(EdgepackError):
    """The device cannot be reached, or does not let us in."""

    exit_code = 6


class RefusedError(ConnectError):
    """The device, or what leads to it, answers and does not let us in."""

    exit_code = 11


class RemoteError(EdgepackError):
    """A command on the device failed."""

    exit_code = 7


class MismatchError(EdgepackError):
    """Outputs on the device differ from the reference."""

    exit_code = 8


class TimeLimitError(EdgepackError):
    """Something took longer than its limit."""

    exit_code = 9


class PositionError(EdgepackError):
    """An input of a model points at what is not there."""

    exit_code = 10


class NothingThereError(RemoteError):
    """What is asked for is not there: a deployed model, a release, a service, a virtual board."""

    exit_code = 12


class GpuLostError(RemoteError):
    """The device's GPU hangs, or fails again and again."""

    exit_code = 13


EXIT_CODES = {
    0: "ok",
    1: "a bug in edgepack (a traceback is printed)",
    UsageError.exit_code: "usage or configuration",
    ModelError.exit_code: "model",
    ToolchainError.exit_code: "toolchain",
    BundleError.exit_code: "bundle",
    ConnectError.exit_code: "connection to the device",
    RemoteError.exit_code: "command on the device",
    MismatchError.exit_code: "outputs differ from the reference",
    TimeLimitError.exit_code: "time limit",
    PositionError.exit_code: "an input points outside of its tensor",
    RefusedError.exit_code: "the device refuses the login",
    NothingThereError.exit_code: "not found: no such release, service or virtual board",
    GpuLostError.exit_code: "the device's GPU hangs, or failed three times",
    129: "hung up: the terminal was closed (SIGHUP)",
    130: "interrupted (Ctrl-C)",
    143: "terminated (SIGTERM)",
}


def perhaps(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt `name`: the nearest of `known`, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    # Letters that only changed places are nearer than others.
    near.sort(key=lambda other: sorted(other) != sorted(name))
    return f"perhaps you meant '{near[0]}'" if near else f"known: {', '.join(names)}"

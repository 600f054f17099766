"""What can go wrong with a virtual board, one class per cause."""

from __future__ import annotations

from edgepack.base.errors import ConfigError, ConnectError, ToolchainError, UsageError


class NoVirtualBoardError(ConfigError):
    """The board's profile has no `virtual` table, so nothing can imitate it."""


class BoardConflictError(UsageError):
    """A board of that name runs already, as something other than what was asked for."""


class RootfsError(ToolchainError):
    """A root file system or kernel could not be fetched or made."""


class MirrorChangingError(RootfsError):
    """The mirror is being updated: its files are not those that its own index lists."""


class BoardStartError(ConnectError):
    """A virtual board did not come up, or its sshd never answered."""


class LightBoardError(BoardStartError):
    """This kernel or container forbids what the light board needs."""

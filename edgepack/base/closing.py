"""What is closed at the end of its `with` block."""

from __future__ import annotations

from typing import Self


class Closing:
    """A context manager that closes itself."""

    def close(self) -> None:
        """Let go of what it holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""Tensors as kernels of a GPU see them: images in memory as the model has them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PlainImage:
    """A float32 tensor (N, C, H, W); with `rows` it lies as (pixels, C): a matrix whose rows are
    the pixels of one image."""

    batch: int
    channels: int
    height: int
    width: int
    rows: bool = False

    @property
    def pixels(self) -> int:
        """Pixels of one image."""
        return self.height * self.width

    @property
    def size(self) -> int:
        """Elements."""
        return self.batch * self.channels * self.pixels

    def index(self, batch: str, channel: str, pixel: str) -> str:
        """The text of an element's place."""
        if self.rows:
            return f"({pixel}) * {self.channels} + ({channel})"
        start = f"({channel})" if self.batch == 1 else f"(({batch}) * {self.channels} + {channel})"
        return f"{start} * {self.pixels} + ({pixel})"

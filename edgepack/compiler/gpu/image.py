"""Tensors as kernels of a GPU see them: images in memory as the model has them.

Elements are float32, or halves: those are stored only, and computed with as float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PlainImage:
    """A tensor (N, C, H, W) of float32, or with `half` of float16; with `rows` it lies as
    (pixels, C): a matrix whose rows are the pixels of one image."""

    batch: int
    channels: int
    height: int
    width: int
    rows: bool = False
    half: bool = False

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

    @property
    def dtype(self) -> str:
        """The name of its elements' type in a plan."""
        return HALF_BITS if self.half else "float32"


# Between kernels halves are 16 bits that TVM moves and does not compute with: it would need a type
# that not all drivers of OpenCL have.
HALF_BITS = "uint16"


def is_half(dtype: str) -> bool:
    """Whether elements of a plan's type are halves to the kernels here."""
    return dtype in (HALF_BITS, "float16")


def parameters(names: Sequence[str], dtypes: Sequence[str]) -> str:
    """The text of tensors that a kernel reads."""
    return ", ".join(
        f"const GLOBAL {element(dtype)}* RESTRICT {name}"
        for name, dtype in zip(names, dtypes, strict=True)
    )


def element(dtype: str) -> str:
    """The type of stored elements, as text."""
    return "HALF" if is_half(dtype) else "float"


def load(name: str, place: str, *, half: bool) -> str:
    """The text of an element as float32."""
    return f"LOAD_HALF({name}, {place})" if half else f"{name}[{place}]"


def store(name: str, place: str, value: str, *, half: bool) -> str:
    """The statement that stores a float32, rounded to a half if need be."""
    return f"STORE_HALF({name}, {place}, {value});" if half else f"{name}[{place}] = {value};"

"""A kernel that a GPU runs: launches of functions, and the text of those."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tvm import tirx

from edgepack.compiler.backend.kernel import Facts, Kernel

# Sizes in three dimensions, as both interfaces have them.
Extents = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A function, run by `grid` groups of `block` threads; `args` are numbers among the arguments
    of the kernel that it belongs to, in the function's own order."""

    function: str
    grid: Extents
    block: Extents
    args: tuple[int, ...]


class DeviceKernel(Kernel):
    """A kernel as plans know it, for a GPU.

    `text` has its functions. They are not C alone: see `dialect`.
    """

    def __init__(self, text: str, launches: Sequence[Launch], facts: Facts) -> None:
        super().__init__(_no_function, facts)
        self.text, self.launches = text, tuple(launches)

    @classmethod
    def from_text(
        cls,
        text: str,
        launches: Sequence[Launch],
        arguments: Sequence[tuple[str, tuple[int, ...]]],
    ) -> DeviceKernel:
        """The kernel of a text in which each function's name is "@" and a word.

        The "@" becomes a hash, so that equal functions of several kernels have one name, and
        others have others.
        """
        shown = [asdict(launch) for launch in launches]
        digest = hashlib.sha256(repr((text, shown, arguments)).encode()).hexdigest()
        prefix = f"k{digest[:12]}_"
        named = [
            Launch(
                function=launch.function.replace("@", prefix),
                grid=launch.grid,
                block=launch.block,
                args=launch.args,
            )
            for launch in launches
        ]
        facts = Facts(digest=digest, arguments=tuple(arguments), in_place=(), packed="")
        return cls(text.replace("@", prefix), named, facts)


def _no_function() -> tirx.PrimFunc:
    raise AssertionError("a kernel of a GPU is text")


def groups(count: int, size: int) -> int:
    """How many groups of `size` make at least `count`."""
    return math.ceil(count / size)

"""How a kernel is made where not as the cost model says: what was found by tuning on a device.

A layer is known by its signature (`kernels.signature`), so that what was found in one network holds
for an equal layer of another one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

PANELS, PIXELS = "panels", "pixels"
ORDERS = ("", PANELS, PIXELS)
WIDE = "wide"
LOADS = ("", WIDE)
PANEL = "panel"
FETCHES = ("", PANEL)
FRESH = "fresh"
WEIGHTS = ("", FRESH)


@dataclass(frozen=True, kw_only=True, order=True)
class Way:
    """One way to make a layer's kernel: a rule of `rules.table`, and what it is to do.

    `pixels` x `vectors` is the register tile, and `order` what the outer loop of a product goes
    over: panels of weights, or pixels; `share` is which of the two the cores share. `unroll` is how
    many multiply-adds the body of its innermost loop has at most. `loads` is how a core that issues
    in order loads its vectors: `WIDE` is as others do, whole and several at once. `fetch` `PANEL`:
    while one panel of weights is used, the next one is brought into the second cache. `results` is
    Winograd's m; `weights` `FRESH`: they are transformed for it in each run, and stored as they
    are. `rows` are the queries of an attention that are done at a time; its tile is that of its
    scores. Norms and softmaxes have no tile: `vectors` are those of a row that they sum up side by
    side. What is 0 or "" is left to the cost model, and so is a tile that cannot be held.
    """

    rule: str
    pixels: int = 0
    vectors: int = 0
    order: str = ""
    share: str = ""
    unroll: int = 0
    results: int = 0
    loads: str = ""
    fetch: str = ""
    weights: str = ""
    rows: int = 0

    def __str__(self) -> str:
        words = [self.rule]
        if self.results:
            words.append(f"F({self.results}x{self.results})")
        if self.pixels:
            words.append(f"{self.pixels}x{max(1, self.vectors)}")
        elif self.vectors:
            words.append(f"{self.vectors} vectors side by side")
        if self.order:
            words.append(f"{self.order} outside")
        if self.share:
            words.append(f"{self.share} shared")
        if self.unroll:
            words.append(f"unrolled {self.unroll}")
        if self.loads:
            words.append(f"{self.loads} loads")
        if self.fetch:
            words.append(f"next {self.fetch} fetched")
        if self.weights:
            words.append(f"{self.weights} weights")
        if self.rows:
            words.append(f"{self.rows} rows at a time")
        return " ".join(words)

    @property
    def form(self) -> tuple[str, int, str]:
        """What decides about the bytes that are stored."""
        return self.rule, self.results, self.weights

    @property
    def tile(self) -> tuple[int, int] | None:
        """Pixels and vectors, if they are given."""
        return (self.pixels, self.vectors) if self.pixels and self.vectors else None


Choices = Mapping[str, Way]
"""By a layer's signature."""

NO_CHOICES: Choices = MappingProxyType({})

UNLIMITED = math.inf
"""As many weights as are worth it, of how many times the model's own may be stored."""


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A choice with the cost model's cycles for it.

    `more_bytes` are those that it stores beyond the plain form's, and `scratch_bytes` those that it
    works in, where that decides.
    """

    choice: Way
    cycles: float
    more_bytes: int = 0
    scratch_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Tunable:
    """A kernel of a network of which there is more than one way to make it.

    `layers` are the names of the ONNX nodes that it computes, one for each call. `default` is what
    the cost model takes, `others` what else there is, the cheapest by the cost model first.
    """

    signature: str
    layers: tuple[str, ...]
    default: Ranked
    others: tuple[Ranked, ...]


# What decides about a kernel's machine code. A change of any of it makes what was measured void.
_MAKERS = ("compiler/backend", "compiler/layers", "compiler/place", "kernels")


@cache
def maker() -> str:
    """The compiler that makes the kernels: 12 hex digits of a hash of its sources, and TVM's."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256(importlib.metadata.version("apache-tvm").encode())
    for room in _MAKERS:
        for path in sorted((folder / room).rglob("*.py")):
            digest.update(str(path.relative_to(folder)).encode() + b"\0")
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]

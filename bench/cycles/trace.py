"""Traces of one warm inference under qemu: trace.c, and what it wrote."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile

from bench.cycles.memories import Memory

SOURCE = Path(__file__).with_name("trace.c")
# System calls by number. edgepack-run reads the clock right before and after each inference and not
# again: clock_gettime, in 32-bit state also with 64 bits of seconds. Peers may read it inside; the
# worker asks for its parent's process instead.
CLOCK = {"aarch64": (113,), "armv7": (263, 403)}
PARENT = {"aarch64": (173,), "armv7": (64,)}
EVERY = 250_000
LENGTH = 500


@dataclass(frozen=True, kw_only=True)
class Block:
    """A translated block: `lines` it read from memory in all its `count` runs."""

    pc: int
    count: int
    lines: int
    texts: tuple[str, ...]

    @property
    def instructions(self) -> int:
        """Executed, over all runs."""
        return self.count * len(self.texts)


@dataclass(frozen=True, kw_only=True)
class Mapping:
    """A file in the guest's memory, from `start` to `end`, beginning at `offset`."""

    start: int
    end: int
    offset: int
    path: str


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Between two marks. Windows are lists of block numbers."""

    arch: str
    sums: dict[str, int]
    blocks: dict[int, Block]
    windows: list[list[int]]
    mappings: list[Mapping]

    @property
    def instructions(self) -> int:
        """All that were executed."""
        return self.sums["instructions"]


def options(out: Path, marks: Sequence[int], memory: Memory, *, every: int = EVERY) -> str:
    """The plugin's, after its path."""
    windows = f"mark={':'.join(map(str, marks))},every={every},length={LENGTH}"
    caches = f"l1={memory.l1_bytes},l1_ways={memory.l1_ways},l2={memory.l2_bytes}"
    return f"out={out},{windows},{caches},l2_ways={memory.l2_ways}"


def read(path: Path, arch: str) -> Trace:
    """What the plugin wrote."""
    sums: dict[str, int] = {}
    blocks: dict[int, Block] = {}
    windows: list[list[int]] = []
    mappings: list[Mapping] = []
    base = 0
    for line in path.read_text(errors="replace").splitlines():
        tag, _, rest = line.partition(" ")
        match tag:
            case "S":
                name, value = rest.split()
                sums[name] = int(value)
            case "B":
                head, *texts = rest.split("\t")
                number, pc, count, lines, _ = head.split()
                blocks[int(number)] = Block(
                    pc=int(pc, 16), count=int(count), lines=int(lines), texts=tuple(texts)
                )
            case "W":
                windows.append([int(word) for word in rest.split()])
            case "G":
                base = int(rest, 16)
            case "M":
                span, _, offset, _, _, name = rest.split(maxsplit=5)
                start, end = (int(word, 16) - base for word in span.split("-"))
                mappings.append(Mapping(start=start, end=end, offset=int(offset, 16), path=name))
    return Trace(arch=arch, sums=sums, blocks=blocks, windows=windows, mappings=mappings)


def namer(trace: Trace, library: Path | None, functions: dict[int, str]) -> Callable[[int], str]:
    """Names for addresses: a function of `library`, or the file that is mapped there.

    `functions` are the library's by their addresses in it.
    """
    starts = sorted(functions)
    segments = _segments(library) if library is not None else []
    wanted = library.resolve() if library is not None else None

    @functools.cache
    def name(pc: int) -> str:
        for mapping in trace.mappings:
            if not mapping.start <= pc < mapping.end:
                continue
            if wanted is not None and Path(mapping.path).resolve() == wanted:
                at = pc - mapping.start + mapping.offset
                for offset, size, address in segments:
                    if offset <= at < offset + size:
                        index = bisect.bisect_right(starts, at - offset + address) - 1
                        if index >= 0:
                            return functions[starts[index]].removesuffix("_compute_")
            return Path(mapping.path).name
        return "?"

    return name


def _segments(library: Path) -> list[tuple[int, int, int]]:
    """Offset, size and address of what an ELF file has loaded."""
    with library.open("rb") as file:
        return [
            (segment["p_offset"], segment["p_filesz"], segment["p_vaddr"])
            for segment in ELFFile(file).iter_segments("PT_LOAD")
        ]

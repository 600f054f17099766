"""Traces of one warm inference under qemu: trace.c, and what it wrote."""

from __future__ import annotations

import bisect
import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile

from edgepack.base.errors import ToolchainError
from edgepack.base.kept import zig_cache
from edgepack.base.paths import atomic_dir, cache_dir, locked
from edgepack.base.process import run
from edgepack.base.tools import explain_missing, find_tool
from edgepack.cycles.memories import BoardMemory
from edgepack.native.toolchain import zig_executable

_SOURCE = Path(__file__).with_name("trace.c")
_QEMU = {"armhf": "qemu-arm", "arm64": "qemu-aarch64"}
_ARCH = {"armhf": "armv7", "arm64": "aarch64"}
# qemu 9 takes plugins of interface 2 and later, qemu 7 and 8 those of interface 1.
_SECOND_API = 9
# System calls by number. edgepack-run reads the clock right before and after each inference and not
# again: clock_gettime, in 32-bit state also with 64 bits of seconds. plan_runner and the worker of
# peers, which may read the clock inside, ask for their parent's process instead.
CLOCK = {"aarch64": (113,), "armv7": (263, 403)}
PARENT = {"aarch64": (173,), "armv7": (64,)}
EVERY = 250_000
LENGTH = 500


@dataclass(frozen=True, kw_only=True)
class TracedBlock:
    """A translated block. In all its `count` runs it missed the first cache `misses` times, and
    read `lines` from memory."""

    pc: int
    count: int
    misses: int
    lines: int
    texts: tuple[str, ...]

    @property
    def instructions(self) -> int:
        """Executed, over all runs."""
        return self.count * len(self.texts)


@dataclass(frozen=True, kw_only=True)
class MappedFile:
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
    blocks: dict[int, TracedBlock]
    windows: list[list[int]]
    mappings: list[MappedFile]

    @property
    def instructions(self) -> int:
        """All that were executed."""
        return self.sums["instructions"]


def arch_of(debian_arch: str) -> str:
    """What `Trace.arch` is for Debian's name of an architecture."""
    return _ARCH[debian_arch]


def emulator(debian_arch: str) -> Path:
    """The qemu that takes plugins. Raises ToolMissingError, and ToolchainError if it takes none."""
    qemu = find_tool(_QEMU[debian_arch])
    if "-plugin" not in run([qemu, "--help"], check=False).stdout:
        raise ToolchainError(
            f"{qemu} takes no plugins, without which nothing can be traced",
            hint="a static qemu takes none, and Debian 13's is one; Debian 12's qemu-user does",
        )
    return qemu


def build_plugin(qemu: Path) -> Path:
    """The plugin for `qemu`, from the cache if it was built before.

    Raises ToolMissingError without zig.
    """
    found = re.search(r"version (\d+)", run([qemu, "--version"]).stdout)
    api = 2 if found and int(found[1]) >= _SECOND_API else 1
    key = hashlib.sha256(_SOURCE.read_bytes() + bytes([api])).hexdigest()[:12]
    folder = cache_dir() / "cycles" / key
    with locked(folder):
        if not folder.exists():
            zig = zig_executable()
            if zig is None:
                raise explain_missing("zig")
            flags = (
                "-O2",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fPIC",
                "-shared",
                f"-DPLUGIN_API={api}",
            )
            with atomic_dir(folder) as work, zig_cache() as env:
                run(
                    [zig, "cc", *flags, f"-DPLUGIN_API={api}", _SOURCE, "-o", work / "trace.so"],
                    env=env,
                    what="building the plugin that traces",
                )
    return folder / "trace.so"


def options(out: Path, marks: Sequence[int], memory: BoardMemory, *, every: int = EVERY) -> str:
    """The plugin's, after its path."""
    windows = f"mark={':'.join(map(str, marks))},every={every},length={LENGTH}"
    caches = f"l1={memory.l1_bytes},l1_ways={memory.l1_ways},l2={memory.l2_bytes}"
    return f"out={out},{windows},{caches},l2_ways={memory.l2_ways}"


def read(path: Path, arch: str) -> Trace:
    """What the plugin wrote."""
    sums: dict[str, int] = {}
    blocks: dict[int, TracedBlock] = {}
    windows: list[list[int]] = []
    mappings: list[MappedFile] = []
    base = 0
    for line in path.read_text(errors="replace").splitlines():
        tag, _, rest = line.partition(" ")
        match tag:
            case "S":
                name, value = rest.split()
                sums[name] = int(value)
            case "B":
                head, *texts = rest.split("\t")
                number, pc, count, misses, lines, _ = head.split()
                blocks[int(number)] = TracedBlock(
                    pc=int(pc, 16),
                    count=int(count),
                    misses=int(misses),
                    lines=int(lines),
                    texts=tuple(texts),
                )
            case "W":
                windows.append([int(word) for word in rest.split()])
            case "G":
                base = int(rest, 16)
            case "M":
                span, _, offset, _, _, name = rest.split(maxsplit=5)
                start, end = (int(word, 16) - base for word in span.split("-"))
                mappings.append(MappedFile(start=start, end=end, offset=int(offset, 16), path=name))
    return Trace(arch=arch, sums=sums, blocks=blocks, windows=windows, mappings=mappings)


def function_names(library: Path) -> dict[int, str]:
    """Functions of an ELF file by address, without the entry points' common prefix.

    Those that raise errors are left out: behind them lie loops of the kernel before, unnamed.
    """
    with library.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        return {
            symbol["st_value"]: symbol.name.removeprefix("__tvm_ffi_")
            for symbol in table.iter_symbols()
            if symbol["st_info"]["type"] == "STT_FUNC"
            and symbol["st_value"]
            and not symbol.name.startswith("__tvm_set_raised")
        }


def names_from(base: int, functions: Mapping[int, str]) -> Callable[[int], str]:
    """Names for addresses in a library that lies at `base`; "" for what is below it."""
    starts = sorted(functions)

    @functools.cache
    def name(pc: int) -> str:
        index = bisect.bisect_right(starts, pc - base) - 1
        return functions[starts[index]].removesuffix("_compute_") if index >= 0 else ""

    return name


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

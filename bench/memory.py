"""Bandwidth of each level of memory and the peak of multiply-adds, measured on this machine.

    python -m bench.memory

It prints a row for `edgepack/kernels/tiles/cpu.py`. Figures of a row are those of one core; of
memory, what one core reads while all others do, too. A busy machine makes them too low.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.fetch import bench_dir
from edgepack.base.errors import EdgepackError
from edgepack.base.paths import locked, write_atomic
from edgepack.base.process import run

SOURCE = Path(__file__).with_suffix(".c")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}
# A buffer in a cache is so much of it that what else is there leaves it alone; and one in memory as
# much larger than the last cache.
_IN_CACHE, _BEYOND = 0.5, 4
_LEAST_BEYOND = 256 << 20


class MemoryBenchError(EdgepackError):
    """The measurement cannot be made on this machine."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one process measured: GHz, bytes and multiply-adds of vectors per cycle."""

    ghz: float
    bytes_per_cycle: float
    products_per_cycle: float


def cache_sizes(folder: Path = CACHES) -> dict[int, int]:
    """Bytes of the data cache of each level, as the kernel says of the first core.

    Raises MemoryBenchError where it says nothing of them, as on many boards.
    """
    sizes: dict[int, int] = {}
    for index in sorted(folder.glob("index*")):
        if (index / "type").read_text().strip() == "Instruction":
            continue
        text = (index / "size").read_text().strip()
        found = re.fullmatch(r"(\d+)([KM]?)", text)
        if found is None:
            raise MemoryBenchError(f"{index / 'size'}: not a size: '{text}'")
        sizes[int((index / "level").read_text())] = int(found[1]) * _UNITS[found[2]]
    if not sizes:
        raise MemoryBenchError(
            f"{folder}: the kernel says nothing of this CPU's caches",
            hint=f"compile {SOURCE.name} and run it with sizes in bytes from the CPU's manual",
        )
    return sizes


def build() -> Path:
    """The program that measures, for this machine, from the cache if it was built before."""
    out = bench_dir() / f"memory-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}"
    with locked(out):
        if not out.exists():
            with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
                made = Path(folder) / "memory"
                flags = ["-O3", "-march=native", "-ffp-contract=fast", "-Wall", "-Wextra"]
                run(["cc", *flags, SOURCE, "-o", made])
                write_atomic(out, made.read_bytes())
            out.chmod(0o755)
    return out


def measure(program: Path, nbytes: int, processes: int = 1) -> Reading:
    """Of a buffer of `nbytes`, by as many processes at once; the mean of their figures."""
    running = [
        subprocess.Popen([program, str(nbytes)], stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    printed = [process.communicate()[0].split() for process in running]
    if any(process.returncode for process in running):
        raise MemoryBenchError(f"{program.name}: failed for {nbytes} bytes")
    ghz, read, products = (sum(float(words[i]) for words in printed) / processes for i in range(3))
    return Reading(ghz=ghz, bytes_per_cycle=read, products_per_cycle=products)


def row(sizes: Mapping[int, int], found: Mapping[int, Reading], beyond: Reading) -> str:
    """What to write into the table of CPUs."""
    kib = {level: size >> 10 for level, size in sizes.items()}
    lines = [f"l1_bytes={kib[1]} * KIB"]
    if 2 in kib:
        lines += [f"l2_bytes={kib[2]} * KIB", f"l2_bandwidth={found[2].bytes_per_cycle:.1f}"]
    if 3 in kib:
        lines += [f"l3_bytes={kib[3]} * KIB", f"l3_bandwidth={found[3].bytes_per_cycle:.1f}"]
    lines.append(f"memory_bandwidth={beyond.bytes_per_cycle:.1f}")
    return "".join(f"    {line},\n" for line in lines)


def main() -> int:
    """Measures and prints."""
    sizes, program = cache_sizes(), build()
    found = {level: measure(program, int(size * _IN_CACHE)) for level, size in sizes.items()}
    cores = len(os.sched_getaffinity(0))
    largest = max(sizes.values())
    beyond = measure(program, max(_LEAST_BEYOND, _BEYOND * largest) // cores, cores)
    first = found[min(found)]
    print(
        f"# {first.ghz:.2f} GHz; per cycle {first.products_per_cycle:.2f} multiply-adds of widest "
        f"vectors, {first.bytes_per_cycle:.0f} bytes of L1; memory by {cores} cores at once"
    )
    print(row(sizes, found, beyond), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Cores that reorder instructions: windows of a trace under llvm-mca.

LLVM describes a Cortex-A72 by the pipeline of a Cortex-A57, whose widths and latencies Arm's
software optimisation guide (UAN 0015) gives. Loads hit the first cache. llvm-mca comes with
Debian's package `llvm-19`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from edgepack.base.errors import ToolchainError
from edgepack.base.process import run
from edgepack.cycles.estimate import Costs, choose_windows, find_count_start
from edgepack.cycles.trace import Trace

NAME = "llvm-mca"
# What llvm-mca does not know becomes a nop; more than this part of the instructions would show.
_MAX_UNKNOWN = 0.01
_REGIONS = 100  # of one process
# In LLVM 14 an address that a load moves is late by the load's whole latency; in 19 it is not.
_OLDEST, _NEWEST = 19, 25
# An address in the guest may be farther than the instruction reaches from where llvm-mca puts it.
_ADDRESS = re.compile(r"^((?:adrp?|bl?|b\.\w+|cbn?z|tbn?z)\s.*)#0x[0-9a-f]+$")
_TOTAL = re.compile(r"Code Region - (\d+)\s.*?Total Cycles:\s+(\d+)", re.DOTALL)
_ERROR = re.compile(r"<stdin>:(\d+):\d+: error:")


@dataclass(frozen=True, kw_only=True)
class Description:
    """LLVM's of a core. `others` are what else may be so: names and llvm-mca's options."""

    triple: str
    cpu: str
    features: str
    others: tuple[tuple[str, tuple[str, ...]], ...]


# Three instructions are decoded per cycle, and up to five micro-operations of them go on; LLVM lets
# three go on. The last one is LLVM's description of another core of that size.
DESCRIPTIONS = {
    "cortex-a72": Description(
        triple="aarch64-linux-gnu",
        cpu="cortex-a72",
        features="+crc",
        others=(
            ("dispatch=5", ("-mcpu=cortex-a72", "-dispatch=5")),
            ("kryo", ("-mcpu=kryo",)),
        ),
    )
}


def window_costs(
    trace: Trace, description: Description, options: Sequence[str] | None = None
) -> Costs:
    """Cycles per instruction of each window.

    A window's first part only fills the pipeline: what it takes alone is not counted. Raises
    ToolchainError without llvm-mca, or if it does not know the instructions.
    """
    texts = {
        number: [_ADDRESS.sub(r"\1#0", text.strip()) for text in block.texts]
        for number, block in trace.blocks.items()
    }
    windows = choose_windows(trace.windows)
    programs = {
        tuple(window): [text for number in window for text in texts.get(number, ())]
        for window in windows
    }
    regions: dict[tuple[str, ...], int] = {}
    for program in programs.values():
        for part in (program, program[: find_count_start(program)]):
            regions[tuple(part)] = 0
    argv = [
        _tool(),
        f"-mtriple={description.triple}",
        *(options or (f"-mcpu={description.cpu}",)),
        f"-mattr={description.features}",
        *("-iterations=1", "-summary-view", "-resource-pressure=false", "-instruction-info=false"),
    ]
    every = list(regions)
    for at in range(0, len(every), _REGIONS):
        some = every[at : at + _REGIONS]
        for region, cycles in zip(some, _cycles(argv, some), strict=True):
            regions[region] = cycles
    samples: list[tuple[float, int, int]] = []
    for window in windows:
        program = programs[tuple(window)]
        first = find_count_start(program)
        spent = regions[tuple(program)] - regions[tuple(program[:first])]
        samples.append((spent, max(1, len(program) - first), window[len(window) // 2]))
    return Costs(samples=samples, of_blocks=False)


def _cycles(argv: Sequence[str], regions: Sequence[Sequence[str]]) -> list[int]:
    """Of each region."""
    lines = []
    for number, region in enumerate(regions):
        lines += [f"# LLVM-MCA-BEGIN {number}", *region, f"# LLVM-MCA-END {number}"]
    unknown = 0
    while True:
        done = run(argv, input="\n".join(lines).encode(), check=False)
        wrong = {int(found) - 1 for found in _ERROR.findall(done.stderr)}
        if not wrong:
            break
        unknown += len(wrong)
        if unknown > _MAX_UNKNOWN * len(lines):
            raise ToolchainError(
                f"llvm-mca does not know {unknown} of {len(lines)} instructions, "
                f"such as {lines[min(wrong)]!r}",
                hint=f"apt install llvm-{_OLDEST}",
            )
        for line in wrong:
            lines[line] = "nop"
    found = {int(number): int(cycles) for number, cycles in _TOTAL.findall(done.stdout)}
    if sorted(found) != list(range(len(regions))):
        raise ToolchainError(f"llvm-mca gave no cycles: {done.stderr[:200]}")
    return [found[number] for number in range(len(regions))]


def _tool() -> str:
    """The newest llvm-mca that is new enough."""
    names = [f"llvm-mca-{version}" for version in range(_NEWEST, _OLDEST - 1, -1)]
    for name in (*names, "llvm-mca"):
        path = shutil.which(name)
        if path is None:
            continue
        version = re.search(r"LLVM version (\d+)", run([path, "--version"]).stdout)
        if version and int(version[1]) >= _OLDEST:
            return path
    raise ToolchainError(
        f"no llvm-mca of LLVM {_OLDEST} or later found", hint=f"apt install llvm-{_OLDEST}"
    )

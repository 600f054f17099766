"""How the cores share a kernel's work, and when.

A parallel loop costs a launch, and as much again as its last turns leave cores without work. All
thresholds of that are here. Each is the least share of the cores' time that has to be busy, and
the higher the cheaper the other way to share the same work is.
"""

from __future__ import annotations

from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.layout import Blocked

# What a launch costs each core: up to a microsecond while the other threads are still awake, of
# 2 GHz. It never costs a wait for a thread that has to be woken, for the launching one goes on with
# its tasks (thread_pool.h).
LAUNCH_CYCLES = 2_000
# Cycles of work that are worth a launch: two cores save half of them.
_WORTH_A_LAUNCH = 5_000

# The loop over blocks, whose other way is a launch per block for the loop over rows.
_BUSY_BY_BLOCKS = 0.75
# Equal pieces of an image's rows, whose other way leaves cores without the rows that they made
# themselves in the layer before; and the chunks of Winograd's convolution, whose other way is a
# launch for each of the three stages.
BUSY_BY_PIECES = 0.95
# One of a kernel's two outer loops, whose other way is one loop of both: that costs a division
# per turn, and nothing else.
BUSY_BY_ONE_LOOP = 0.99
# Tiles done in one turn of that loop, whose other way is fewer of them, and more divisions; and
# how many turns a core has at least, so that smaller ones at the ends do not matter.
_BUSY_BY_RUNS = 0.97
_FEWEST_RUNS = 8


def busy(items: int, cores: int, size: int = 1) -> float:
    """The share of time that the cores are busy with `items` pieces of work, `size` at a time."""
    return items / (-(-items // (size * cores)) * size * cores)


def worth_sharing(cycles: float, cpu: CpuModel) -> bool:
    """Whether work is large enough to be shared between the cores."""
    return cpu.cores > 1 and cycles > _WORTH_A_LAUNCH


def shared_loops(cycles: float, output: Blocked, cpu: CpuModel) -> tuple[bool, bool]:
    """Which loop of a kernel the cores share: the one over blocks, or that over a block's rows.

    The outer one costs one launch; but a few blocks may leave cores without work.
    """
    if not worth_sharing(cycles, cpu):
        return False, False
    uneven = busy(output.blocks, cpu.cores) < _BUSY_BY_BLOCKS
    by_rows = uneven and worth_sharing(cycles / output.blocks, cpu)
    return not by_rows, by_rows


def even_pieces(rows: int, cores: int) -> int | None:
    """In how many equal pieces to cut the rows of an image, so that each core has one or two.

    None if they would not come out even.
    """
    fitting = [pieces for pieces in range(cores, 2 * cores + 1) if rows % pieces == 0]
    return next((pieces for pieces in fitting if busy(pieces, cores) >= BUSY_BY_PIECES), None)


def even_parts(output: Blocked, cores: int) -> int:
    """In how many equal parts to cut the rows of each block so that all cores come out even.

    The fewest that leave less than a twentieth of the time unused, or the best there are.
    """
    sizes = [parts for parts in range(1, output.height + 1) if output.height % parts == 0]
    shares = {parts: busy(output.blocks * parts, cores) for parts in sizes}
    even = (parts for parts in sizes if shares[parts] > BUSY_BY_PIECES)
    return next(even, max(sizes, key=shares.__getitem__))


def even_run(turns: int, tiles: int, cores: int) -> int:
    """How many of a row's tiles to do in one of `turns` x tiles turns.

    The most that divide the row and leave so many turns that cores come out even, within a few per
    cent, and that smaller last tiles and panels do not matter.
    """
    for run in range(tiles, 1, -1):
        left = turns * tiles // run
        many = left >= _FEWEST_RUNS * cores
        if tiles % run == 0 and many and busy(left, cores) >= _BUSY_BY_RUNS:
            return run
    return 1

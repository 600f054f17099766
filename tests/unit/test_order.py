"""Instructions put in order for cores that issue in order: edgepack/kernels/pipeline/order.py."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace

import pytest

from edgepack.kernels.pipeline.cores import CORES, PAIRING
from edgepack.kernels.pipeline.instructions import parse
from edgepack.kernels.pipeline.order import arrange
from edgepack.kernels.pipeline.play import steady_cycles
from edgepack.kernels.tiles import arm
from edgepack.kernels.tiles.cpu import (
    CORTEX_A9,
    CORTEX_A53,
    CORTEX_A53_32,
    CORTEX_A55,
    CORTEX_A55_32,
    CpuModel,
)
from edgepack.kernels.tiles.element import FLOAT32

# A machine of sixteen registers and some memory, to see that another order computes the same.
MASK = (1 << 61) - 1


def result(lines: list[str]) -> tuple[object, ...]:
    """What registers and memory hold behind a run of the instructions of `program`: each value is a
    hash of what it was made from, so that any other order of what matters shows."""
    registers: dict[str, int] = {f"{kind}{i}": hash((kind, i)) for kind in "vx" for i in range(40)}
    memory: dict[tuple[int, int], int] = {}
    for line in lines:
        name, _, rest = line.partition(" ")
        found = re.findall(r"\b([vxdq])(\d+)|#(-?\d+)", rest)
        names = [f"{'v' if kind in 'dq' else kind}{number}" for kind, number, _ in found if kind]
        at = int(next((number for _, _, number in found if number), "0"))
        if name == "fmla":
            to, left, right = names
            registers[to] = hash((registers[to], registers[left], registers[right])) & MASK
        elif name == "add":
            registers[names[0]] = registers[names[1]] + at
        elif name == "ldr":
            place = (registers[names[1]], at)
            registers[names[0]] = memory.get(place, hash(place)) & MASK
        elif name == "str":
            memory[(registers[names[1]], at)] = registers[names[0]]
        elif name == "fmov":
            registers[names[0]] = hash(("low", registers[names[1]])) & MASK
        else:  # mov v0.d[1], x1
            registers[names[0]] = hash((registers[names[0]], registers[names[1]])) & MASK
    return tuple(sorted(registers.items())), tuple(sorted(memory.items()))


def program(seed: int, length: int = 80) -> list[str]:
    """Whatever a tile may be made of, at random. x0 is what is stored by, each time elsewhere, and
    loaded by as well; x1 and x2 are loaded by."""
    chosen, places = random.Random(seed), itertools.count()
    vector, core = (lambda: chosen.randrange(12)), (lambda: chosen.randrange(20, 26))
    makers = [
        lambda: f"fmla v{vector()}.4s, v{vector()}.4s, v{vector()}.s[1]",
        lambda: f"ldr d{vector()}, [x{chosen.choice((1, 2))}, #{8 * chosen.randrange(4)}]",
        lambda: f"ldr x{core()}, [x{chosen.choice((1, 2))}, #{8 * chosen.randrange(4)}]",
        lambda: f"fmov d{vector()}, x{core()}",
        lambda: f"mov v{vector()}.d[1], x{core()}",
        lambda: f"add x{(one := chosen.choice((1, 2)))}, x{one}, #{8 * chosen.randrange(1, 4)}",
        lambda: f"str q{vector()}, [x0, #{16 * next(places)}]",
        lambda: f"ldr q{vector()}, [x0, #{16 * chosen.randrange(10)}]",
    ]
    return [chosen.choice(makers)() for _ in range(length)]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("core", ["cortex-a53", "cortex-a55"])
def test_another_order_computes_the_same(core: str, seed: int) -> None:
    lines = program(seed)
    found = arrange(lines, lines, core, "aarch64")
    assert sorted(found) == sorted(lines)
    assert found != lines
    assert result(found) == result(lines)


def test_labels_and_branches_stay() -> None:
    lines = [
        "movz x3, #9",
        "1:",
        "ldr d0, [x1, #0]",
        "subs x3, x3, #1",
        "b.ne 1b",
        "add x1, x1, #8",
    ]
    found = arrange(lines, lines, "cortex-a53", "aarch64")
    assert found[:2] == lines[:2]
    assert found[4:] == lines[4:]
    assert sorted(found[2:4]) == sorted(lines[2:4])


def loop(cpu: CpuModel, pixels: int, vectors: int, *, ordered: bool) -> list[str]:
    """The hot loop of a 1x1 convolution's tile, registers as the parser knows them."""
    isa = arm.isa_of(cpu, FLOAT32)
    assert isa is not None
    tile = arm.AssemblyTile(
        isa=isa if ordered else replace(isa, core=""),
        pixels=pixels,
        vectors=vectors,
        reduction=arm.Convolve(
            blocks=24,
            last_lanes=0,
            kernel=(1, 1),
            pixel_step=16,
            column_step=16,
            row_step=1024,
            plane_step=3136,
        ),
        finish=(),
        out_step=4096,
        operand_step=4096,
    )
    body = re.search(r'asm sideeffect "(.*?)"', tile.llvm_ir("tile"))
    assert body
    letter = "x" if isa.name == "aarch64" else "r"
    text = re.sub(r"\$(\d+)", lambda found: f"{letter}{40 + int(found[1])}", body[1])
    lines = text.replace("{{", "{").split("\\0A")
    end = next(index for index, line in enumerate(lines) if line.endswith("1b"))
    return lines[lines.index("1:") + 1 : end + 1]


def per_cycle(lines: list[str], cpu: CpuModel, pairing: str) -> float:
    """Multiply-adds of a loop per cycle."""
    code = [parse(line, cpu.isa) for line in lines]
    done = sum(line.startswith(("fmla", "vmla")) for line in lines)
    return done / steady_cycles(code, CORES[cpu.pipeline].paired(pairing), passes=10)


@pytest.mark.parametrize(
    ("cpu", "pixels", "vectors", "before", "after"),
    [
        # A vector takes the place of a multiply-add at best: 84 of them and 19 vectors are 0.82.
        (CORTEX_A53, 7, 3, 0.6, 0.8),
        (CORTEX_A53, 8, 2, 0.65, 0.78),
        # Half of one.
        (CORTEX_A55, 7, 3, 0.7, 0.8),
        # 32 multiply-adds and 12 vectors: 0.73.
        (CORTEX_A53_32, 4, 2, 0.5, 0.69),
        (CORTEX_A55_32, 4, 2, 0.6, 0.9),
        # One starts every second cycle.
        (CORTEX_A9, 4, 2, 0.45, 0.48),
    ],
)
def test_loads_hide_between_multiply_adds(
    cpu: CpuModel, pixels: int, vectors: int, before: float, after: float
) -> None:
    plain = loop(cpu, pixels, vectors, ordered=False)
    assert per_cycle(plain, cpu, PAIRING[0]) < before
    found = loop(cpu, pixels, vectors, ordered=True)
    # Whatever is assumed of wide loads: there is none.
    assert min(per_cycle(found, cpu, pairing) for pairing in PAIRING) >= after


@pytest.mark.parametrize(("cpu", "after"), [(CORTEX_A53, 0.82), (CORTEX_A55, 0.89)])
def test_inputs_of_two_pixels_in_a_register_make_room_for_eight(
    cpu: CpuModel, after: float
) -> None:
    # 96 multiply-adds and 20 vectors: 0.83 if each of these takes the place of one, 0.91 if half.
    found = loop(cpu, 8, 3, ordered=True)
    assert min(per_cycle(found, cpu, pairing) for pairing in PAIRING) >= after

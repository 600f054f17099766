"""Bands of depthwise convolutions: edgepack/kernels/tiles/arm/bands.py."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest

from edgepack.kernels.pipeline.cores import CORES, PAIRING
from edgepack.kernels.pipeline.instructions import parse
from edgepack.kernels.pipeline.play import issue_cycles, steps
from edgepack.kernels.tiles import arm
from edgepack.kernels.tiles.cpu import CORTEX_A53, CORTEX_A55, CORTEX_A72, CpuModel
from edgepack.kernels.tiles.element import FLOAT32

CLAMP = (
    arm.EpilogueStep(name="maximum", value=-0.5),
    arm.EpilogueStep(name="minimum", value=1.5),
)
TARGET, SOURCE, WEIGHTS, BIAS = 0, 1 << 15, 1 << 17, (1 << 17) + 1024


def isa_of(cpu: CpuModel) -> arm.Isa:
    found = arm.isa_of(cpu, FLOAT32)
    assert found is not None
    return found


def band(
    cpu: CpuModel,
    *,
    width: int,
    rows: int,
    stride: int = 1,
    missing: tuple[int, int] = (0, 0),
    finish: tuple[arm.EpilogueStep, ...] = CLAMP,
) -> arm.DepthwiseBand:
    return arm.DepthwiseBand(
        isa=isa_of(cpu),
        kernel=(3, 3),
        stride=stride,
        width=width,
        rows=rows,
        above=missing[0],
        below=missing[1],
        row_step=16 * ((width - 1) * stride + 3),
        target_step=16 * (width + 1),
        finish=finish,
    )


def executed(code: arm.DepthwiseBand) -> list[str]:
    """Its instructions as they are executed; x40 to x43 are its pointers."""
    body = re.search(r'asm sideeffect "(.*?)"', code.llvm_ir("band"))
    assert body
    text = re.sub(r"\$\{(\d+):w\}", lambda found: f"w{40 + int(found[1])}", body[1])
    text = re.sub(r"\$(\d+)", lambda found: f"x{40 + int(found[1])}", text)
    lines = text.split("\\0A")
    counts: dict[str, int] = {}
    counter, at, done = "", 0, []
    while at < len(lines):
        line = lines[at]
        at += 1
        if line.endswith(":"):
            continue
        done.append(line)
        if found := re.fullmatch(r"movz (x\d+), #(\d+)", line):
            counts[found[1]] = int(found[2])
        elif found := re.fullmatch(r"subs (x\d+), x\d+, #1", line):
            counter = found[1]
            counts[counter] -= 1
        elif (found := re.fullmatch(r"b.ne (\d+)b", line)) and counts[counter]:
            at = max(i for i in range(at) if lines[i] == f"{found[1]}:")
    return done


def run(program: list[str], memory: np.ndarray) -> None:
    """What it does to a memory of float32."""
    vectors = np.zeros((32, 4), "float32")
    halves: dict[int, np.ndarray] = {}
    numbers = {40: TARGET, 41: SOURCE, 42: WEIGHTS, 43: BIAS}
    for line in program:
        name, _, rest = line.partition(" ")
        if name == "b.ne":
            continue
        to, *sources = (int(number) for number in re.findall(r"[vqdxw](\d+)", rest))
        value = sum(int(found) for found in re.findall(r"#(-?\d+)", rest)[:1])
        if name in ("ldr", "str"):
            at = (numbers[sources[0]] + value) // 4
        if name == "ldr" and rest[0] == "x":
            halves[to] = memory[at : at + 2].copy()
        elif name == "ldr":
            vectors[to] = [*memory[at : at + 2], 0, 0]
        elif name == "str":
            memory[at : at + 4] = vectors[to]
        elif name == "fmov":
            vectors[to] = [*halves[sources[0]], 0, 0]
        elif name == "mov" and ".d[1]" in rest:
            vectors[to][2:] = halves[sources[0]]
        elif name == "mov":
            vectors[to] = vectors[sources[0]]
        elif name == "dup":
            vectors[to] = struct.unpack("f", struct.pack("I", numbers[sources[0]]))[0]
        elif name == "fmla":
            vectors[to] += vectors[sources[0]] * vectors[sources[1]]
        elif name in ("fmax", "fmin"):
            pick = np.maximum if name == "fmax" else np.minimum
            vectors[to] = pick(vectors[sources[0]], vectors[sources[1]])
        elif name == "movz":
            numbers[to] = value
        elif name == "movk":
            numbers[to] |= value << 16
        elif name in ("add", "sub"):
            size = value << 12 if "lsl #12" in rest else value
            numbers[to] = numbers[sources[0]] + (size if name == "add" else -size)
        else:
            assert name == "subs", line


@pytest.mark.parametrize("cpu", [CORTEX_A53, CORTEX_A55], ids=lambda cpu: cpu.name)
@pytest.mark.parametrize("missing", [(0, 0), (1, 1), (2, 0), (0, 2), (1, 0)])
@pytest.mark.parametrize(
    ("width", "rows", "stride"),
    [(1, 3, 1), (5, 4, 1), (9, 7, 1), (14, 14, 1), (26, 11, 1), (7, 7, 2), (15, 9, 2), (8, 3, 2)],
)
def test_results(
    cpu: CpuModel, missing: tuple[int, int], width: int, rows: int, stride: int
) -> None:
    random = np.random.default_rng(width)
    code = band(cpu, width=width, rows=rows, stride=stride, missing=missing)
    height, across = (rows - 1) * stride + 3, (width - 1) * stride + 3
    image = np.zeros((height, across, 4), "float32")
    there = slice(missing[0], height - missing[1])
    image[there] = random.normal(size=image[there].shape)
    weights, bias = random.normal(size=(3, 3, 4)), random.normal(size=4)
    memory = np.zeros(1 << 16, "float32")
    for place, values in ((SOURCE, image[there]), (WEIGHTS, weights), (BIAS, bias)):
        memory[place // 4 :][: values.size] = values.ravel()
    run(executed(code), memory)
    # Each row has room for one pixel more, which stays as it was.
    got = memory[: rows * (width + 1) * 4].reshape(rows, width + 1, 4)
    expected = np.zeros_like(got)
    for row, column in np.ndindex(rows, width):
        window = image[row * stride :, column * stride :][:3, :3]
        sums = bias + (window * weights).sum(axis=(0, 1))
        expected[row, column] = np.clip(sums, -0.5, 1.5)
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("cpu", "stride", "least"),
    [
        # Five pixels: 45 multiply-adds, 7 inputs, 15 to begin and to finish: 0.67.
        (CORTEX_A53, 1, 0.63),
        (CORTEX_A55, 1, 0.68),
        # Seven: 63 multiply-adds, 30 inputs, 21: 0.55.
        (CORTEX_A53, 2, 0.52),
    ],
    ids=str,
)
def test_loads_hide_between_multiply_adds(cpu: CpuModel, stride: int, least: float) -> None:
    program = executed(band(cpu, width=56, rows=14, stride=stride))
    done = sum(line.startswith("fmla") for line in program)
    assert done == 56 * 14 * 9
    parsed = [parse(line, "aarch64") for line in program]
    for pairing in PAIRING:
        core = CORES[cpu.pipeline].paired(pairing)
        assert done / issue_cycles(steps(parsed, core), core)[-1] >= least


def test_where_they_are_no_use() -> None:
    pixels = arm.DepthwiseBand.most_pixels
    assert pixels(isa_of(CORTEX_A53), (3, 3), 1, CLAMP) == 5
    assert pixels(isa_of(CORTEX_A53), (3, 3), 2, CLAMP) == 7
    # Neither are weights of 5x5 held, nor is an input used by two rows of windows 3 apart.
    assert pixels(isa_of(CORTEX_A53), (5, 5), 1, CLAMP) < 4
    assert pixels(isa_of(CORTEX_A53), (3, 3), 3, CLAMP) == 0
    assert pixels(isa_of(CORTEX_A53), (3, 3), 1, (arm.EpilogueStep(name="add"),)) == 0
    assert pixels(isa_of(CORTEX_A72), (3, 3), 1, CLAMP) == 0

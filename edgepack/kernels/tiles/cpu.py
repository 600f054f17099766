"""What the kernels need to know of a CPU: one small model per micro-architecture.

Rules never ask for a board or a CPU's name; they ask the model how many vector registers
there are, what a multiply-add costs, and how large the caches are. A CPU without a row is priced
as the nearest one, with the slowest memory of its family, and `has_model` says so: what is made for
slow memory loses little where it is fast, and Winograd's large weights lose much the other way.

Each figure has its source: the vendor's software optimisation guide, a compiler's pipeline
description, or a measurement. What is none of these is called a guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edgepack.kernels.tiles.element import FLOAT16, FLOAT32, INT8, Element

if TYPE_CHECKING:
    import tvm

KIB = 1024

# Channels of 8 bits that lie side by side, on every CPU: a vector of ARM, and sums of 32 bits that
# four of its vectors hold, or one of AVX-512.
INT8_BLOCK = 16

# What kernels may ask of a CPU beyond its vectors, and how LLVM calls it: dot products of 8-bit
# integers, their 8-bit matrix instructions, half-precision arithmetic, scalable vectors; of x86 its
# dot products, and 512-bit vectors of 8 and 16 bits.
FEATURES = {
    "dotprod": "dotprod",
    "i8mm": "i8mm",
    "fp16": "fullfp16",
    "sve": "sve",
    "vnni": "avx512vnni",
    "avx512bw": "avx512bw",
}
# What converts vectors of halves to float32, where not every CPU of a kind can.
_CONVERTS_HALVES = {"armv7": "fp16", "x86": "f16c"}


@dataclass(frozen=True, kw_only=True)
class CpuModel:
    """A micro-architecture, per core.

    `rates` are, by element and bytes of a vector, the number of multiply-adds of that width that
    start per cycle (0.5: one every second cycle). Those of float32 name all usable widths.
    `loads_per_cycle` counts vector loads of any width. `fma_latency` is in cycles.
    `in_order` cores pay for a load where an out-of-order core hides it behind arithmetic.
    `pipeline` is that of `pipeline.cores` which their instructions are put in order for, and
    `load_slots` the cycles in which a vector's load keeps such a core from multiplying.
    `memory_bandwidth` is what one core reads from memory while the others do, too, in bytes per
    cycle. `l2_bandwidth` is what a panel of weights streams in at that is too large for the
    first-level cache, and `l3_bandwidth` that of one too large for half of the second-level cache,
    in a loop that reads it again and again. `l3_bytes` are those of the third-level cache, 0: there
    is none, or nobody measured what it is good for.
    `memory_operand`: an instruction may read one operand from memory (x86).
    `isa` is "x86", "aarch64", "armv7", or "" where only portable code is made.
    `cpi` are the cycles of an instruction in loops on 8-bit integers.
    `features` are those of `FEATURES` that the target has. `converts_halves`: there are
    instructions that make float32 of half precision.
    `is_default`: the CPU has no row of its own, this is the nearest one, `slowest`. `tight` and
    `most_lanes`: see `block`.
    """

    name: str
    isa: str
    rates: Mapping[Element, Mapping[int, float]]
    registers: int
    loads_per_cycle: float
    fma_latency: int
    in_order: bool
    memory_operand: bool
    l1_bytes: int
    l2_bytes: int
    memory_bandwidth: float
    l2_bandwidth: float
    l3_bandwidth: float
    l3_bytes: int = 0
    cpi: float = 0.5
    pipeline: str = ""
    load_slots: float = 0
    features: frozenset[str] = frozenset()
    converts_halves: bool = False
    cores: int = 1
    is_default: bool = False
    tight: frozenset[int] = frozenset()
    most_lanes: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def memo(self) -> dict[tuple[object, ...], Any]:
        """What was found out for this CPU, by whom and of what: a network asks for the same tiles
        a hundred times."""
        return {}

    @property
    def vector_bytes(self) -> list[int]:
        """Usable widths of vectors, widest first."""
        return sorted(self.rates[FLOAT32], reverse=True)

    def lanes(self, element: Element) -> list[int]:
        """Elements of each usable vector, widest first."""
        return [element.lanes(size) for size in self.vector_bytes]

    def widest(self, element: Element) -> int:
        """Elements of the widest vector."""
        return max(self.lanes(element))

    def narrowest(self, element: Element) -> int:
        """Elements of the narrowest vector."""
        return min(self.lanes(element))

    def rate(self, element: Element, lanes: int) -> float:
        """Multiply-adds of vectors of `lanes` elements that start per cycle."""
        return self.rates[element][lanes * element.bytes]

    def computes(self, element: Element) -> bool:
        """Whether multiply-adds can be done on such elements as they are."""
        if element == FLOAT16 and not (self.isa == "aarch64" and "fp16" in self.features):
            return False
        return element in self.rates

    def block(self, channels: int, element: Element) -> int:
        """Channels per block of a blocked tensor: the width that takes the fewest cycles for all of
        them, zeros that fill the last one included, times the square of the channels with those.

        That weight of what has to be stored and read is a guess: without it CenterFace, whose large
        images have 24 channels, takes longer, and nothing takes less. Depends on the channel count
        and the type only, so two tensors of equal shape always agree and no layer needs a layout
        transform. Of `tight` channel counts the width that pads least wins; those in `most_lanes`
        have no wider blocks than they say there.
        """
        if element == INT8:
            return INT8_BLOCK

        def costs(size: int) -> tuple[float, int, int]:
            lanes = element.lanes(size)
            blocks = -(-channels // lanes)
            cycles = 0.0 if channels in self.tight else blocks / self.rates[FLOAT32][size]
            return cycles * (blocks * lanes) ** 2, blocks * lanes, -lanes

        most = self.most_lanes.get(channels, math.inf)
        able = [size for size in self.vector_bytes if element.lanes(size) <= most]
        return element.lanes(min(able or self.vector_bytes, key=costs))


# Zen 4: 512-bit operations are two 256-bit halves, so one FMA of 16 lanes or two of 8 per cycle,
# latency 4; two 256-bit (one 512-bit) loads per cycle. Software Optimization Guide for AMD Family
# 19h, 56665, sections 2.11 and 2.12. Narrow rows of lanes serve small layers. Two cores of an EPYC
# 9004 were measured to read 36 GB/s of weights together at 3.6 GHz, one of them alone 29.
# l2_bandwidth and l3_bandwidth were measured on it, too.
#
# All rows without a figure of their own have its l2_bandwidth and l3_bandwidth: never measured
# there, and too high for the ARM cores. Tiles were compared with them, so other figures have to
# come with measurements: `python -m bench.memory` makes them.
ZEN4 = CpuModel(
    name="zen4",
    isa="x86",
    rates={FLOAT32: {64: 1, 32: 2, 16: 2}},
    registers=32,
    loads_per_cycle=2,
    fma_latency=4,
    in_order=False,
    memory_operand=True,
    l1_bytes=32 * KIB,
    l2_bytes=1024 * KIB,
    memory_bandwidth=5,
    l2_bandwidth=24,
    l3_bandwidth=16,
    l3_bytes=32 * 1024 * KIB,
)
# Zen 5: two 512-bit FMA units and loads, latency 4. Software Optimization Guide for AMD Family 1Ah,
# 58455. The rest is Zen 4's.
ZEN5 = replace(ZEN4, name="zen5", rates={FLOAT32: {64: 2, 32: 2, 16: 2}})
# Zen 3: two 256-bit FMA units, latency 4; two 256-bit loads; 512 KiB of L2, and 32 bytes a cycle
# from there and from the L3 of 32 MiB, as on Zen 4. Software Optimization Guide for AMD Family 19h
# Processors, 56665. Memory as Zen 4: a guess.
ZEN3 = replace(ZEN4, name="zen3", rates={FLOAT32: {32: 2, 16: 2}}, registers=16, l2_bytes=512 * KIB)
# Zen 2: latency 5, and an L3 of 16 MiB for four cores. Software Optimization Guide for AMD Family
# 17h Models 30h and Greater, 56305.
ZEN2 = replace(ZEN3, name="zen2", fma_latency=5, l3_bytes=16 * 1024 * KIB)
# Zen 1 and Zen+: two 128-bit FMA pipes and loads, of which a 256-bit one takes both; an L3 of 8 MiB
# for four cores. Software Optimization Guide for AMD Family 17h Processors, 55723. A core of an
# EPYC 7001 at 2.5 GHz was measured to read 15 to 17 bytes a cycle from L3, and 4.2 to 4.4 from
# memory while another did, too (26 from L2, where the others' figure stands).
ZEN1 = replace(
    ZEN2,
    name="zen1",
    rates={FLOAT32: {32: 1, 16: 2}},
    loads_per_cycle=1,
    l3_bandwidth=15,
    l3_bytes=8 * 1024 * KIB,
    memory_bandwidth=4,
)
# Skylake-SP: two 512-bit FMA units, latency 4, two 512-bit loads per cycle; 1 MiB of L2, 15 bytes a
# cycle from L3, of which each core brings 1.375 MiB, counted for four. Intel 64 and IA-32
# Optimization Reference Manual, 248966, section 2.6 and "Skylake Server Microarchitecture Cache
# Recommendations". That has 52 bytes a cycle from L2, against 25 of Broadwell: not compared with
# tiles. Memory: six channels of DDR4-2666 are 1.7 bytes a cycle of each of 28 cores; 3 for some of
# them is a guess.
SKYLAKE_X = replace(
    ZEN5,
    name="skylake-avx512",
    l2_bytes=1024 * KIB,
    l3_bandwidth=15,
    l3_bytes=5632 * KIB,
    memory_bandwidth=3,
)
# Ice Lake-SP: 48 KiB of L1, 1.25 MiB of L2, 1.5 MiB of L3 a core: the manual's chapter 2. L3 as
# Sapphire Rapids, the next one on such a mesh: a guess.
ICE_LAKE = replace(
    SKYLAKE_X,
    name="icelake-server",
    l1_bytes=48 * KIB,
    l2_bytes=1280 * KIB,
    l3_bandwidth=8,
    l3_bytes=6 * 1024 * KIB,
)
# Sapphire and Emerald Rapids: 2 MiB of L2, 1.875 MiB of L3 a core: the manual's chapter 2. From L3
# a core of such a Xeon reads about 8 bytes a cycle: measured; with Zen 4's 16 `speed` took 1.36
# times as long as the default (RepVGG-A0), by Winograd's weights.
SAPPHIRE_RAPIDS = replace(ICE_LAKE, name="sapphirerapids", l2_bytes=2048 * KIB, l3_bytes=7680 * KIB)
# Ice Lake, Tiger Lake and Rocket Lake of laptops and desktops: one 512-bit FMA unit, two of 256;
# 512 KiB of L2 at least, 2 MiB of L3 a core. L3 as Haswell, on a ring as well: a guess.
ICE_LAKE_CLIENT = replace(
    SKYLAKE_X,
    name="icelake-client",
    rates={FLOAT32: {64: 1, 32: 2, 16: 2}},
    l1_bytes=48 * KIB,
    l2_bytes=512 * KIB,
    l3_bandwidth=14,
    l3_bytes=8 * 1024 * KIB,
)
# Haswell: two 256-bit FMA units of latency 5, two 256-bit loads per cycle, 256 KiB L2; 8 MiB L3 of
# four cores. The manual's section 2.9. From L2 and L3 a Xeon E5-2680 v3 reads 23 and 14 bytes a
# cycle (54 and 32 GiB/s at 2.5 GHz: community.intel.com, "L1, L2 and L3 bandwidth of E5-2680 v3"),
# and the manual has 25 and 14 of Broadwell. Memory: a guess.
HASWELL = replace(
    ZEN4,
    name="haswell",
    rates={FLOAT32: {32: 2, 16: 2}},
    registers=16,
    fma_latency=5,
    l2_bytes=256 * KIB,
    l3_bandwidth=14,
    l3_bytes=8 * 1024 * KIB,
    memory_bandwidth=4,
)
# Skylake of laptops and desktops: Haswell's widths with latency 4: the manual's section 2.6.
SKYLAKE = replace(HASWELL, name="skylake", fma_latency=4)
# Alder Lake's performance cores, without AVX-512: two 256-bit FMA units of latency 4, three 256-bit
# loads; 48 KiB of L1, 1.25 MiB of L2, 3 MiB of L3 a core: the manual's chapter 2. L3 as Haswell: a
# guess. LLVM has one name for both kinds of core, and threads run on either.
ALDER_LAKE = replace(
    SKYLAKE,
    name="alderlake",
    loads_per_cycle=3,
    l1_bytes=48 * KIB,
    l2_bytes=1280 * KIB,
    l3_bytes=12 * 1024 * KIB,
)
# Gracemont, the efficiency cores and the N100: two 128-bit FMA pipes, of which a 256-bit one takes
# both, latency 6; two 128-bit loads; 2 MiB of L2 for four cores: the manual's chapter on E-cores.
# From L3, where there is one, 8 bytes a cycle, and memory: guesses.
GRACEMONT = replace(
    SKYLAKE,
    name="gracemont",
    rates={FLOAT32: {32: 1, 16: 2}},
    fma_latency=6,
    l2_bytes=512 * KIB,
    l3_bandwidth=8,
    l3_bytes=6 * 1024 * KIB,
    memory_bandwidth=3,
)
# Nehalem class, no FMA: a multiply (port 0) and an add (port 1), latency 4 + 3, one load.
SSE = replace(
    HASWELL,
    name="sse4.2",
    rates={FLOAT32: {16: 1}},
    loads_per_cycle=1,
    fma_latency=7,
    memory_operand=False,
    is_default=True,
)

# Cortex-A72: two 64-bit FP pipes, that is one 128-bit FMLA per cycle, latency 7 but 3 from
# accumulator to accumulator (4 is in use); one load per cycle. Cortex-A72 Software Optimization
# Guide, UAN 0016A, sections 3.13 and 3.15. L2 is 1 MiB on the BCM2711 and the RK3399.
# Memory: a guess. Of 8-bit integers two products of eight and a sum of pairs (smull, smlal2,
# sadalp) take two cycles, for one pipe has all products: the guide's section 3.14.
CORTEX_A72 = CpuModel(
    name="cortex-a72",
    isa="aarch64",
    rates={FLOAT32: {16: 1}},
    registers=32,
    loads_per_cycle=1,
    fma_latency=4,
    in_order=False,
    memory_operand=False,
    l1_bytes=32 * KIB,
    l2_bytes=1024 * KIB,
    memory_bandwidth=2.5,
    l2_bandwidth=ZEN4.l2_bandwidth,
    l3_bandwidth=ZEN4.l3_bandwidth,
    cpi=0.67,
)
# Cortex-A57: the same rates, and 9 cycles of which 4 count from accumulator to accumulator.
# Cortex-A57 Software Optimization Guide, UAN 0015B.
CORTEX_A57 = replace(CORTEX_A72, name="cortex-a57")
# Cortex-A73: Arm has published no guide; LLVM and GCC schedule it as a Cortex-A57. 64 KiB of
# first-level data cache at most (TRM 100048), of which 32 are counted on.
CORTEX_A73 = replace(CORTEX_A57, name="cortex-a73")
# Cortex-A76: two 128-bit pipes for FMLA of float32 and float16 and for SDOT, latency 4 but 2 from
# accumulator to accumulator; two 128-bit loads per cycle. Cortex-A76 Software Optimization Guide,
# PJDOC-466751330-7215. 64 KiB L1 and up to 512 KiB of its own L2: TRM
# 100798. Memory: one core reads 3.8 bytes per cycle on a Raspberry Pi 5 and copies 5 on an RK3588
# (9.2 and 12 GB/s; tinymembench in issues 21 and 38 of github.com/geerlingguy/sbc-reviews, 1876 of
# raspberrypi/firmware). If all four share what four fifths of the bus can bring (17 GB/s; 34 on an
# RK3588 with LPDDR4X), each has 1.4 or 2.9.
CORTEX_A76 = replace(
    CORTEX_A72,
    name="cortex-a76",
    rates={FLOAT32: {16: 2}, FLOAT16: {16: 2}, INT8: {16: 2}},
    loads_per_cycle=2,
    fma_latency=2,
    l1_bytes=64 * KIB,
    l2_bytes=512 * KIB,
    memory_bandwidth=3,
    cpi=0.5,
)
# Cortex-A78, and the A78AE of NVIDIA's Orin: taken as the A76, its predecessor, with 256 KiB of L2
# of its own. A guess: Arm's Software Optimization Guide (102160) and TRM (101430) were not at hand.
CORTEX_A78 = replace(CORTEX_A76, name="cortex-a78", l2_bytes=256 * KIB)
# Neoverse N1: the A76's pipes (Neoverse N1 Software Optimization Guide, PJDOC-466751330-9707),
# with 1 MiB of L2 in the servers that have it.
NEOVERSE_N1 = replace(CORTEX_A76, name="neoverse-n1", l2_bytes=1024 * KIB)

# Cortex-A53: in order, dual issue, one 128-bit FMLA per cycle of latency 4 (forwarded), one
# 64-bit load port: a 128-bit load takes it twice. LLVM AArch64SchedA53.td. L2 is 512 KiB on
# the BCM2837 and shared by four cores; half of it is what one core can count on. Memory: a guess.
# Loops on integers have a load of 128 bits, two cycles, for each eight of one: a count by hand.
# A vector's halves take the place of a multiply-add: see pipeline.cores.
CORTEX_A53 = replace(
    CORTEX_A72,
    name="cortex-a53",
    loads_per_cycle=0.5,
    in_order=True,
    pipeline="cortex-a53",
    load_slots=1,
    l2_bytes=256 * KIB,
    memory_bandwidth=1.7,
    cpi=1.25,
)
# Cortex-A35: in order as well; no figures are published, the A53's are a guess.
CORTEX_A35 = replace(CORTEX_A53, name="cortex-a35")
# Cortex-A55: in order, two 64-bit pipes, so one 128-bit FMLA (float32, float16) or SDOT per cycle,
# latency 4; Cortex-A55 Software Optimization Guide, ARM-EPM-128372. A 128-bit
# load occupies the load pipe for two cycles. 64 to 256 KiB of its own L2: TRM 100442.
CORTEX_A55 = replace(
    CORTEX_A53,
    name="cortex-a55",
    rates={FLOAT32: {16: 1}, FLOAT16: {16: 1}, INT8: {16: 1}},
    pipeline="cortex-a55",
    load_slots=0.5,
    l2_bytes=128 * KIB,
)


def _in_32_bits(model: CpuModel) -> CpuModel:
    """The 32-bit state of a 64-bit core: 16 registers of 128 bits."""
    return replace(model, name=f"{model.name}-32", isa="armv7", registers=16)


CORTEX_A72_32 = _in_32_bits(CORTEX_A72)
CORTEX_A53_32 = _in_32_bits(CORTEX_A53)
# Both halves of a vector are registers of their own, and nothing has to be inserted.
CORTEX_A55_32 = replace(_in_32_bits(CORTEX_A55), load_slots=0)
# Cortex-A9: NEON is 64 bits wide, so a 128-bit VMLA starts every second cycle; no fused form.
# Cortex-A9 NEON Media Processing Engine TRM, DDI 0409, section 3.4. The rest is the A53's.
# A sum of pairs (vpadal) takes two cycles, a product of eight integers one.
CORTEX_A9 = replace(
    CORTEX_A53_32,
    name="cortex-a9",
    pipeline="cortex-a9",
    load_slots=0,
    rates={FLOAT32: {16: 0.5}},
    cpi=1.5,
)
# Cortex-A7: in order; NEON does not issue beside anything else, multiply-adds take 8 cycles but 4
# from accumulator to accumulator: GCC's config/arm/cortex-a7.md. That NEON is as wide as the A9's
# is a guess. L2 is shared, 512 KiB on many.
CORTEX_A7 = replace(CORTEX_A9, name="cortex-a7", pipeline="cortex-a7", load_slots=2)
# Cortex-A15: two 64-bit pipes that a 128-bit VMLA takes both of, 9 cycles; two loads of 64 bits per
# cycle: GCC's config/arm/cortex-a15-neon.md. L2 is shared, 1 MiB on many. Memory: a guess.
CORTEX_A15 = replace(CORTEX_A72_32, name="cortex-a15", fma_latency=9)

# By family and LLVM's name of the CPU.
_ROWS: Mapping[str, Mapping[str, CpuModel]] = {
    "x86_64": {
        "znver1": ZEN1,
        "znver2": ZEN2,
        "znver3": ZEN3,
        "znver4": ZEN4,
        "znver5": ZEN5,
        "haswell": HASWELL,
        "broadwell": HASWELL,
        "skylake": SKYLAKE,
        "skylake-avx512": SKYLAKE_X,
        "cascadelake": SKYLAKE_X,
        "cooperlake": SKYLAKE_X,
        "icelake-client": ICE_LAKE_CLIENT,
        "tigerlake": ICE_LAKE_CLIENT,
        "rocketlake": ICE_LAKE_CLIENT,
        "icelake-server": ICE_LAKE,
        "sapphirerapids": SAPPHIRE_RAPIDS,
        "emeraldrapids": SAPPHIRE_RAPIDS,
        "alderlake": ALDER_LAKE,
        "raptorlake": ALDER_LAKE,
        "gracemont": GRACEMONT,
    },
    "aarch64": {
        "cortex-a35": CORTEX_A35,
        "cortex-a53": CORTEX_A53,
        "cortex-a55": CORTEX_A55,
        "cortex-a57": CORTEX_A57,
        "cortex-a72": CORTEX_A72,
        "cortex-a73": CORTEX_A73,
        "cortex-a76": CORTEX_A76,
        "cortex-a78": CORTEX_A78,
        "cortex-a78ae": CORTEX_A78,
        "neoverse-n1": NEOVERSE_N1,
    },
    "armv7": {
        "cortex-a7": CORTEX_A7,
        "cortex-a9": CORTEX_A9,
        "cortex-a15": CORTEX_A15,
        "cortex-a53": CORTEX_A53_32,
        "cortex-a55": CORTEX_A55_32,
        "cortex-a72": CORTEX_A72_32,
    },
}
# What a core gets from behind its first cache.
_MEMORY = ("l2_bytes", "l2_bandwidth", "l3_bytes", "l3_bandwidth", "memory_bandwidth")


def slowest(model: CpuModel, rows: Iterable[CpuModel]) -> CpuModel:
    """A row for CPUs that have none: `model`, with the slowest memory of a family's `rows`."""
    least = {name: min(getattr(row, name) for row in rows) for name in _MEMORY}
    return replace(model, is_default=True, **least)


def _with_widest(vector_bytes: int) -> list[CpuModel]:
    return [row for row in _ROWS["x86_64"].values() if max(row.vector_bytes) == vector_bytes]


# For CPUs without a row: one of the family whose code runs well on the others. Those of x86 are
# told apart by their vector extensions.
AVX512 = replace(slowest(ZEN5, _with_widest(64)), name="avx512")
AVX2 = replace(slowest(HASWELL, _with_widest(32)), name="avx2")
_DEFAULTS = {
    "aarch64": slowest(CORTEX_A72, _ROWS["aarch64"].values()),
    "armv7": slowest(CORTEX_A9, _ROWS["armv7"].values()),
}
_PORTABLE = replace(CORTEX_A72, name="portable", isa="", registers=16, is_default=True)


def has_model(llvm_triple: str, cpu: str) -> bool:
    """Whether a CPU, by LLVM's name, has figures of its own."""
    return cpu in _ROWS.get(_family(llvm_triple), {})


def nearest_model(llvm_triple: str, cpu: str) -> CpuModel:
    """The row of a CPU, or that of the one it is priced as. Of x86 CPUs without a row the features
    tell, too: see `cpu_model`."""
    family = _family(llvm_triple)
    return _ROWS.get(family, {}).get(cpu) or _DEFAULTS.get(family, _PORTABLE)


def cpu_model(target: tvm.target.Target) -> CpuModel:
    """The model of a TVM target's CPU; the nearest one where the CPU has none of its own."""
    # Here, for who only asks `has_model` does without TVM.
    from tvm.target import codegen

    triple, cpu = str(target.attrs.get("mtriple", "")), str(target.attrs.get("mcpu", ""))
    found = set(map(str, codegen.llvm_get_cpu_features(target)))
    model = _x86(cpu, found) if _family(triple) == "x86_64" else nearest_model(triple, cpu)
    rates = dict(model.rates)
    if FEATURES["fp16"] in found:
        # All cores that compute in half precision do so at float32's rate of vectors.
        rates.setdefault(FLOAT16, rates[FLOAT32])
    return replace(
        model,
        rates=rates,
        converts_halves=_CONVERTS_HALVES.get(model.isa, "") in {*found, ""},
        features=frozenset(name for name, llvm in FEATURES.items() if llvm in found),
        cores=int(target.attrs.get("num-cores", 1)),
    )


def _family(llvm_triple: str) -> str:
    return "armv7" if llvm_triple.startswith("armv7") else llvm_triple.split("-", maxsplit=1)[0]


def _x86(cpu: str, features: set[str]) -> CpuModel:
    """A hypervisor may hide what the CPU's name promises: extensions decide."""
    nearest = SSE
    if "avx512f" in features:
        nearest = AVX512
    elif {"avx2", "fma"} <= features:
        nearest = AVX2
    row = _ROWS["x86_64"].get(cpu, nearest)
    return row if row.vector_bytes[0] == nearest.vector_bytes[0] else nearest

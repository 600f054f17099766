"""What the kernels need to know of a CPU: one small model per micro-architecture.

Rules never ask for a board or a CPU's name; they ask the model how many vector registers
there are, what a multiply-add costs, and how large the caches are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import tvm
from tvm.target import codegen

from edgepack.compiler.tiles.element import FLOAT32, Element

KIB = 1024


@dataclass(frozen=True, kw_only=True)
class CpuModel:
    """A micro-architecture, per core.

    `rates` are, by element and bytes of a vector, the number of multiply-adds of that width that
    start per cycle (0.5: one every second cycle). Those of float32 name all usable widths.
    `loads_per_cycle` counts vector loads of any width. `fma_latency` is in cycles.
    `in_order` cores pay for a load where an out-of-order core hides it behind arithmetic.
    `memory_bandwidth` is what one core reads from memory while the others do, too, in bytes per
    cycle.
    `memory_operand`: an instruction may read one operand from memory (x86).
    `isa` is "x86", "aarch64", "armv7", or "" where only portable code is made.
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
    cores: int = 1

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

    def block(self, channels: int, element: Element) -> int:
        """Channels per block of a blocked tensor: the width that pads `channels` least.

        Depends on the channel count and the type only, so two tensors of equal shape always agree
        and no layer needs a layout transform. Of equal padding the wider one wins.
        """
        widths = self.lanes(element)
        return min(widths, key=lambda lanes: (-(-channels // lanes) * lanes, -lanes))


# Zen 4: 512-bit operations are two 256-bit halves, so one FMA of 16 lanes or two of 8 per
# cycle, latency 4; two 256-bit (one 512-bit) loads per cycle. Software Optimization Guide
# for AMD Family 19h, 56665, sections 2.11 and 2.12. Narrow rows of lanes serve small layers.
# Two cores of an EPYC 9004 were measured to read 36 GB/s of weights together at 3.6 GHz, one of
# them alone 29.
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
)
# Skylake-SP and later Xeons: two 512-bit FMA units, latency 4, two 512-bit loads per cycle.
# Intel 64 Optimization Reference Manual, 248966, section 2.6.
AVX512 = replace(ZEN4, name="avx512", rates={FLOAT32: {64: 2, 32: 2, 16: 2}})
# Haswell: two 256-bit FMA units of latency 5, two 256-bit loads per cycle, 256 KiB L2.
# Intel 64 Optimization Reference Manual, 248966, section 2.9.
AVX2 = CpuModel(
    name="avx2",
    isa="x86",
    rates={FLOAT32: {32: 2, 16: 2}},
    registers=16,
    loads_per_cycle=2,
    fma_latency=5,
    in_order=False,
    memory_operand=True,
    l1_bytes=32 * KIB,
    l2_bytes=256 * KIB,
    memory_bandwidth=4,
)
# Nehalem class, no FMA: a multiply (port 0) and an add (port 1), latency 4 + 3, one load.
SSE = replace(
    AVX2,
    name="sse4.2",
    rates={FLOAT32: {16: 1}},
    loads_per_cycle=1,
    fma_latency=7,
    memory_operand=False,
)
# Cortex-A72: two 64-bit FP pipes, that is one 128-bit FMLA per cycle, latency 7 but 3 from
# accumulator to accumulator; one load per cycle. Cortex-A72 Software Optimization Guide,
# UAN 0016A, sections 3.13 and 3.15.
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
)
# Cortex-A53: in order, dual issue, one 128-bit FMLA per cycle of latency 4 (forwarded), one
# 64-bit load port: a 128-bit load takes it twice. LLVM AArch64SchedA53.td. L2 is 512 KiB on
# the BCM2837 and shared by four cores; half of it is what one core can count on.
CORTEX_A53 = replace(
    CORTEX_A72,
    name="cortex-a53",
    loads_per_cycle=0.5,
    in_order=True,
    l1_bytes=32 * KIB,
    l2_bytes=256 * KIB,
    memory_bandwidth=1.7,
)
# The 32-bit state of both has 16 registers of 128 bits.
CORTEX_A72_32 = replace(CORTEX_A72, name="cortex-a72-32", isa="armv7", registers=16)
CORTEX_A53_32 = replace(CORTEX_A53, name="cortex-a53-32", isa="armv7", registers=16)
# Cortex-A9: NEON is 64 bits wide, so a 128-bit VMLA starts every second cycle; no fused form.
# Cortex-A9 NEON Media Processing Engine TRM, DDI 0409, section 3.4.
CORTEX_A9 = replace(CORTEX_A53_32, name="cortex-a9", rates={FLOAT32: {16: 0.5}})

_BY_NAME: Mapping[str, Mapping[str, CpuModel]] = {
    "x86_64": {"znver4": ZEN4, "znver5": AVX512},
    "aarch64": {"cortex-a53": CORTEX_A53, "cortex-a35": CORTEX_A53, "cortex-a55": CORTEX_A53},
    "armv7": {"cortex-a53": CORTEX_A53_32, "cortex-a72": CORTEX_A72_32},
}
_PORTABLE = replace(CORTEX_A72, name="portable", isa="", registers=16)


def cpu_model(target: tvm.target.Target) -> CpuModel:
    """The model of a TVM target's CPU; the nearest one where the CPU has none of its own."""
    triple = str(target.attrs.get("mtriple", ""))
    family = "armv7" if triple.startswith("armv7") else triple.split("-", maxsplit=1)[0]
    model = _BY_NAME.get(family, {}).get(str(target.attrs.get("mcpu", "")))
    if family == "x86_64":
        features = set(map(str, codegen.llvm_get_cpu_features(target)))
        if model is None or "avx512f" not in features:
            fused = "avx2" in features and "fma" in features
            model = AVX512 if "avx512f" in features else AVX2 if fused else SSE
    elif model is None:
        # The lowest CPU of the family: code for it runs well on the others.
        model = {"aarch64": CORTEX_A72, "armv7": CORTEX_A9}.get(family, _PORTABLE)
    return replace(model, cores=int(target.attrs.get("num-cores", 1)))

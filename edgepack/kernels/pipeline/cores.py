"""The in-order cores' pipelines, one number a line, each with where it is from.

A number that no document gives is a guess: its source says so, and `others` are what it may be as
well. `others` also holds what a second document says. `python -m bench --cycles` prints what every
one of these does to the result, so that no claim rests on one of them.

Documents:

GCC       gcc/config/arm/cortex-{a7,a9,a9-neon,a53}.md, pipeline descriptions contributed by Arm
LLVM      llvm/lib/Target/AArch64/AArch64Sched{A53,A55}.td, the latter after Arm's guide EPM128372
NCNN      ncnn's docs/developer-guide/arm-a53-a55-dual-issue.md, measured on both cores
ORT       onnxruntime's pull request 10754, measured on a Cortex-A55
MPE       Cortex-A9 NEON Media Processing Engine TRM, DDI 0409, section 3.4
TRM       the core's technical reference manual
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

GUESS = "guess"


@dataclass(frozen=True, kw_only=True)
class Number:
    """A figure of a core, and what it may be as well."""

    value: int
    source: str
    others: tuple[int, ...] = ()


def _(value: int, source: str, *others: int) -> Number:
    return Number(value=value, source=source, others=others)


# How much may issue in the cycles that a load of more than 64 bits takes.
NOTHING, LAST_CYCLE, ANYTHING = 0, 1, 2
# How freely vector loads pair, see Core.paired.
PAIRING = ("strict", "looser", "free")


@dataclass(frozen=True, kw_only=True)
class Core:
    """An in-order pipeline. Latencies and intervals in cycles, widths in bits per cycle.

    A latency is what a reader waits after the issue of what it reads; `accumulate_latency` is that
    from a multiply-add to one that adds to its sum.
    """

    name: str
    issue_width: Number
    vector_bits: Number  # of arithmetic
    load_bits: Number
    store_bits: Number
    alu_latency: Number
    shifted_latency: Number  # of what goes through the shifter first
    multiply_latency: Number
    multiply_alone: Number  # 1: nothing issues beside a multiply of core registers
    divide_cycles: Number
    load_latency: Number
    vector_load_latency: Number  # of the first 64 bits
    fma_latency: Number
    accumulate_latency: Number
    float_latency: Number
    integer_latency: Number  # of integer and logic vectors
    permute_latency: Number
    to_vector_latency: Number
    from_vector_latency: Number
    float_divide_cycles: Number  # of 64 bits
    wide_load_pairs: Number  # NOTHING, LAST_CYCLE or ANYTHING
    vector_load_takes_pipe: Number  # 1: a vector load occupies a pipe of 64 bits of arithmetic, too
    adder_at: Number  # a multiply-add adds so many cycles after issue; 0: that is in nobody's way
    vector_alone: Number  # 1: nothing issues beside a vector instruction
    shared_issue: Number  # 1: a vector instruction and an access to memory do not issue together
    taken_branch: Number  # cycles lost after a branch

    def numbers(self) -> Iterator[tuple[str, Number]]:
        """All of them by name."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Number):
                yield field.name, value

    def given(self, **values: int) -> Core:
        """The same with other numbers."""
        changes = {
            name: dataclasses.replace(getattr(self, name), value=value)
            for name, value in values.items()
        }
        return dataclasses.replace(self, **changes)

    def paired(self, pairing: str) -> Core:
        """The same with another of PAIRING.

        `strict` is what the documents say, `looser` lets anything go beside the last cycle of a
        wide load, and with `free` vector loads are in nobody's way but each other's.
        """
        if pairing == "strict":
            return self
        if pairing == "looser":
            how = max(LAST_CYCLE, self.wide_load_pairs.value)
            return self.given(wide_load_pairs=how, vector_load_takes_pipe=0)
        return self.given(wide_load_pairs=ANYTHING, vector_load_takes_pipe=0, adder_at=0)


CORTEX_A53 = Core(
    name="cortex-a53",
    issue_width=_(2, "GCC: two issue slots"),
    vector_bits=_(128, "NCNN: independent multiply-adds of 128 bits issue in successive cycles"),
    load_bits=_(64, "NCNN: a vector load of 128 bits takes two cycles, one of 64 bits one"),
    store_bits=_(64, "GCC: single-issue pairs of stores", 128),
    alu_latency=_(1, "GCC: forwarded"),
    shifted_latency=_(2, "GCC: cortex_a53_alu_shift without the forwarding path"),
    multiply_latency=_(3, "GCC: cortex_a53_mul"),
    multiply_alone=_(1, "GCC: multiplies can only single-issue"),
    divide_cycles=_(8, "GCC: cortex_a53_udiv"),
    load_latency=_(3, "GCC: cortex_a53_load1; 2 to the integer unit"),
    vector_load_latency=_(4, "LLVM: A53WriteVLD1; GCC forwards scalars in 2", 2),
    fma_latency=_(8, "GCC: cortex_a53_fpmac"),
    accumulate_latency=_(4, "GCC: the adder is entered 4 cycles after the multiplier"),
    float_latency=_(4, "GCC: cortex_a53_fpalu"),
    integer_latency=_(3, "guess: LLVM gives 4 to most", 4),
    permute_latency=_(3, "guess: LLVM gives 4", 4),
    to_vector_latency=_(4, "GCC: cortex_a53_r2f", 2),
    from_vector_latency=_(2, "GCC: cortex_a53_f2r"),
    float_divide_cycles=_(14, "GCC: cortex_a53_fdivs, of a scalar", 20),
    wide_load_pairs=_(NOTHING, "NCNN: a load of 128 bits has no multiply-add beside it", 1, 2),
    vector_load_takes_pipe=_(1, "NCNN: one of 64 bits pairs with an insert, not a multiply-add", 0),
    adder_at=_(4, "NCNN: no vector load on the 4th cycle of a multiply-add; GCC: no sum", 0),
    vector_alone=_(0, "NCNN: core loads and address updates issue beside multiply-adds"),
    shared_issue=_(0, "NCNN: the same"),
    taken_branch=_(0, "GCC: branches dual-issue; a predicted one is taken to cost nothing", 1),
)

CORTEX_A55 = dataclasses.replace(
    CORTEX_A53,
    name="cortex-a55",
    store_bits=_(128, "guess: the guide's store pipe takes 128 bits", 64),
    multiply_alone=_(0, "LLVM: the multiplier is a pipe of its own"),
    load_latency=_(3, "LLVM: WriteLD"),
    vector_load_latency=_(4, "LLVM: CortexA55WriteVLD1"),
    fma_latency=_(4, "LLVM: CortexA55WriteFMAC, after the guide"),
    accumulate_latency=_(4, "LLVM: the same"),
    integer_latency=_(2, "LLVM: CortexA55WriteAluVq_2, of most", 3),
    permute_latency=_(2, "LLVM: CortexA55WriteAluVq_2", 3),
    to_vector_latency=_(3, "guess: LLVM's WriteFCopy", 2),
    from_vector_latency=_(3, "LLVM: WriteFCopy"),
    float_divide_cycles=_(10, "LLVM: CortexA55WriteFDivSP, of a scalar", 20),
    wide_load_pairs=_(NOTHING, "ORT: a load of 128 bits blocks the pipeline for two cycles", 1, 2),
    vector_load_takes_pipe=_(0, "NCNN: a vector load of 64 bits issues beside a multiply-add"),
    adder_at=_(0, "NCNN: no such rule on this core"),
)

CORTEX_A9 = dataclasses.replace(
    CORTEX_A53,
    name="cortex-a9",
    vector_bits=_(64, "MPE, GCC: vmla.f32 of 128 bits takes the unit for two cycles"),
    load_bits=_(
        64, "guess: what the cache delivers; GCC's vld1 moves 128 after a first cycle", 128
    ),
    store_bits=_(64, "guess: as loads"),
    shifted_latency=_(2, "GCC: cortex_a9_dp_shift"),
    multiply_latency=_(4, "GCC: cortex_a9_multiply"),
    multiply_alone=_(1, "GCC: cortex_a9_multcycle1 takes both pipes"),
    divide_cycles=_(20, "guess: there is no divider, a function is called"),
    load_latency=_(3, "GCC: cortex_a9_load1_2 to what computes and loads"),
    vector_load_latency=_(2, "GCC: neon_vld1_1_2_regs produces at N1 on its second cycle", 4),
    fma_latency=_(10, "MPE, GCC: neon_fp_vmla_qqq produces at N9 on its second cycle"),
    accumulate_latency=_(7, "MPE: the sum is read at N3, the result is there at N9", 4),
    float_latency=_(6, "MPE, GCC: neon_fp_vadd_qqq produces at N5 on its second cycle"),
    integer_latency=_(4, "GCC: cortex_a9_neon_int_4"),
    permute_latency=_(3, "GCC: cortex_a9_neon_bp_2cycle"),
    to_vector_latency=_(2, "GCC: cortex_a9_neon_mcr"),
    from_vector_latency=_(4, "guess: GCC's 1 does not count the way back", 1),
    float_divide_cycles=_(15, "GCC: cortex_a9_fdivs"),
    wide_load_pairs=_(ANYTHING, "GCC: later cycles of a load leave the issue stage alone", 0),
    vector_load_takes_pipe=_(0, "GCC: loads take the permutation unit, not the arithmetic one"),
    adder_at=_(0, "GCC: sums wait for the adder; not modelled, chains of sums wait longer"),
    vector_alone=_(0, "GCC: the other slot is free"),
    shared_issue=_(1, "GCC: exclusion_set of cortex_a9_ls and ca9_issue_vfp_neon"),
    taken_branch=_(0, "guess: as on a Cortex-A53", 1),
)

CORTEX_A7 = dataclasses.replace(
    CORTEX_A53,
    name="cortex-a7",
    vector_bits=_(64, "guess: as on a Cortex-A9", 32, 128),
    store_bits=_(64, "GCC: double words in one cycle"),
    multiply_latency=_(2, "GCC: cortex_a7_mul"),
    divide_cycles=_(5, "GCC: cortex_a7_idiv, an estimate there, too"),
    load_latency=_(2, "GCC: cortex_a7_load1"),
    vector_load_latency=_(4, "GCC: cortex_a7_neon"),
    fma_latency=_(8, "GCC: cortex_a7_neon_mla"),
    accumulate_latency=_(4, "GCC: the bypass between multiply-adds"),
    float_latency=_(4, "GCC: cortex_a7_fpalu"),
    integer_latency=_(4, "GCC: cortex_a7_neon"),
    permute_latency=_(4, "GCC: cortex_a7_neon"),
    to_vector_latency=_(4, "GCC: cortex_a7_r2f"),
    from_vector_latency=_(2, "GCC: cortex_a7_f2r"),
    float_divide_cycles=_(16, "GCC: cortex_a7_fdivs"),
    wide_load_pairs=_(NOTHING, "GCC: NEON does not dual-issue"),
    vector_load_takes_pipe=_(0, "GCC: they issue alone in any case"),
    adder_at=_(0, "GCC: sums wait for the adder; not modelled"),
    vector_alone=_(1, "GCC: NEON instructions cannot dual-issue"),
    shared_issue=_(0, "GCC: nothing of NEON issues together"),
)

CORES = {core.name: core for core in (CORTEX_A53, CORTEX_A55, CORTEX_A9, CORTEX_A7)}

"""Finds instructions that a CPU lacks in AArch64 code, without a disassembler.

Only encodings that were added to ARMv8.0-A are known here: Arm Architecture Reference Manual
for A-profile (DDI 0487), chapter C4, "A64 Instruction Set Encoding", whose sections the
comments name. A mask may cover more than is allocated, but nothing that ARMv8.0-A has.

Not looked at are system registers and the operands of SYS, which no compiler emits, and hints
(BTI, PACIASP, ...), which do nothing on a CPU that lacks them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgepack.gate.code import Instruction, Span, Words, without

# family (see edgepack.cpus), mask, value, what it is called
_ROWS: tuple[tuple[str, int, int, str], ...] = (
    # SME and SVE: top level
    ("sme", 0x9E000000, 0x80000000, "sme"),
    ("sve", 0x1E000000, 0x04000000, "sve"),
    # Data-processing: immediate
    ("mte", 0xBFC00000, 0x91800000, "addg/subg"),
    ("cssc", 0x7FC00000, 0x11C00000, "smax/umin (immediate)"),
    # Branches, exceptions and system instructions
    ("hbc", 0xFF000010, 0x54000010, "bc.cond"),
    ("pauth", 0xFE1FF800, 0xD61F0800, "braa/retaa"),
    ("flagm", 0xFFFFFFFF, 0xD500401F, "cfinv"),
    ("altnzcv", 0xFFFFFFFF, 0xD500403F, "xaflag"),
    ("altnzcv", 0xFFFFFFFF, 0xD500405F, "axflag"),
    ("sme", 0xFFFFF8FF, 0xD503407F, "smstart/smstop"),
    ("sb", 0xFFFFF0FF, 0xD50330FF, "sb"),
    ("xs", 0xFFFFF3FF, 0xD503323F, "dsb nxs"),
    ("wfxt", 0xFFFFFFC0, 0xD5031000, "wfet/wfit"),
    ("rand", 0xFFFFFFC0, 0xD53B2400, "mrs rndr"),
    # Loads and stores: exclusive, ordered, compare and swap
    ("lor", 0x3FA08000, 0x08800000, "ldlar/stllr"),
    ("lse", 0x3FA07C00, 0x08A07C00, "cas"),
    ("lse", 0xBFA07C00, 0x08207C00, "casp"),
    # Loads and stores: atomic memory operations
    ("lse", 0x3F208C00, 0x38200000, "ldadd/ldset"),
    ("lse", 0x3F20FC00, 0x38208000, "swp"),
    ("rcpc", 0x3FFFFC00, 0x38BFC000, "ldapr"),
    ("ls64", 0xFFE0FC00, 0xF8209000, "st64b"),
    ("ls64", 0xFFE0FC00, 0xF820A000, "st64bv0"),
    ("ls64", 0xFFE0FC00, 0xF820B000, "st64bv"),
    ("ls64", 0xFFE0FC00, 0xF820D000, "ld64b"),
    ("pauth", 0xFF200400, 0xF8200400, "ldraa/ldrab"),
    # Loads and stores: 128-bit atomics, unscaled release consistent, copies, tags
    ("lse128", 0xFF200C00, 0x19200000, "ldclrp/swpp"),
    ("rcpc-immo", 0x3F200C00, 0x19000000, "ldapur/stlur"),
    ("rcpc3", 0x3B200C00, 0x19000800, "ldiapp/stilp"),
    ("rcpc3", 0xBFBFFC00, 0x0D018400, "ldap1/stl1"),
    ("mops", 0xFB200C00, 0x19000400, "cpy/set (memory)"),
    ("mte", 0xFF200000, 0xD9200000, "stg/ldg"),
    ("mte", 0xFE400000, 0x68000000, "stgp"),
    # Data-processing: one and two registers
    ("pauth", 0xFFFF0000, 0xDAC10000, "pacia/autia"),
    ("pauth", 0xFFE0FC00, 0x9AC03000, "pacga"),
    ("mte", 0xFFE0F800, 0x9AC01000, "irg/gmi"),
    ("mte", 0xDFE0FC00, 0x9AC00000, "subp"),
    ("crc", 0x7FE0E000, 0x1AC04000, "crc32"),
    ("cssc", 0x7FE0F000, 0x1AC06000, "smax/umin"),
    ("cssc", 0x7FFFF800, 0x5AC01800, "ctz/cnt"),
    ("cssc", 0x7FFFFC00, 0x5AC02000, "abs"),
    ("flagm", 0xFFE07C10, 0xBA000400, "rmif"),
    ("flagm", 0xFFFFBC1F, 0x3A00080D, "setf8/setf16"),
    # Cryptographic AES, SHA, and three and four registers
    ("aes", 0xFF3E0C00, 0x4E280800, "aese/aesd"),
    ("aes", 0xBFE0FC00, 0x0EE0E000, "pmull (64 bit)"),
    ("sha2", 0xFF208C00, 0x5E000000, "sha1/sha256"),
    ("sha2", 0xFF3E0C00, 0x5E280800, "sha1/sha256"),
    ("sha3", 0xFFC08000, 0xCE000000, "eor3/bcax"),
    ("sha3", 0xFFE0F000, 0xCE608000, "sha512/rax1"),
    ("sha3", 0xFFE00000, 0xCE800000, "xar"),
    ("sha3", 0xFFFFFC00, 0xCEC08000, "sha512su0"),
    ("sm4", 0xFFE08000, 0xCE400000, "sm3ss1"),
    ("sm4", 0xFFE0C000, 0xCE408000, "sm3tt"),
    ("sm4", 0xFFE0F000, 0xCE60C000, "sm3partw/sm4ekey"),
    ("sm4", 0xFFFFFC00, 0xCEC08400, "sm4e"),
    # Advanced SIMD three same (FP16), scalar and vector
    ("fullfp16", 0xDF60C400, 0x5E400400, "half precision (scalar)"),
    ("fullfp16", 0x9F60C400, 0x0E400400, "half precision (vector)"),
    # Advanced SIMD two-register miscellaneous (FP16)
    ("fullfp16", 0xDF7E0C00, 0x5E780800, "half precision (scalar)"),
    ("fullfp16", 0x9F7E0C00, 0x0E780800, "half precision (vector)"),
    # Advanced SIMD across lanes, scalar pairwise, modified immediate: the forms for FP16
    ("fullfp16", 0xBF7FFC00, 0x0E30C800, "fmaxnmv/fminnmv (half precision)"),
    ("fullfp16", 0xBF7FFC00, 0x0E30F800, "fmaxv/fminv (half precision)"),
    ("fullfp16", 0xFF7FFC00, 0x5E30C800, "fmaxnmp/fminnmp (half precision)"),
    ("fullfp16", 0xFFFFFC00, 0x5E30D800, "faddp (half precision)"),
    ("fullfp16", 0xFF7FFC00, 0x5E30F800, "fmaxp/fminp (half precision)"),
    ("fullfp16", 0xBFF8FC00, 0x0F00FC00, "fmov (half precision)"),
    # Advanced SIMD shift by immediate: conversions of FP16
    ("fullfp16", 0xDFF0FC00, 0x5F10E400, "scvtf/ucvtf (half precision)"),
    ("fullfp16", 0xDFF0FC00, 0x5F10FC00, "fcvtzs/fcvtzu (half precision)"),
    ("fullfp16", 0x9FF0FC00, 0x0F10E400, "scvtf/ucvtf (half precision)"),
    ("fullfp16", 0x9FF0FC00, 0x0F10FC00, "fcvtzs/fcvtzu (half precision)"),
    # Advanced SIMD by indexed element: FP16
    ("fullfp16", 0xFFC0B400, 0x5F001000, "fmla/fmls (half precision)"),
    ("fullfp16", 0xDFC0F400, 0x5F009000, "fmul/fmulx (half precision)"),
    ("fullfp16", 0xBFC0B400, 0x0F001000, "fmla/fmls (half precision)"),
    ("fullfp16", 0x9FC0F400, 0x0F009000, "fmul/fmulx (half precision)"),
    # Floating point, ptype 11: all but the conversions from half precision
    ("fullfp16", 0x7FE00000, 0x1EC00000, "half precision to or from fixed point"),
    ("fullfp16", 0x7FE0FC00, 0x1EE00000, "half precision to or from integer"),
    ("fullfp16", 0xFFFE7C00, 0x1EE04000, "fabs/fsqrt (half precision)"),
    ("fullfp16", 0xFFFC7C00, 0x1EE44000, "frint (half precision)"),
    ("fullfp16", 0xFFE03C00, 0x1EE02000, "fcmp (half precision)"),
    ("fullfp16", 0xFFE01C00, 0x1EE01000, "fmov (half precision)"),
    ("fullfp16", 0xFFE00C00, 0x1EE00400, "fccmp (half precision)"),
    ("fullfp16", 0xFFE00C00, 0x1EE00800, "fadd/fmul (half precision)"),
    ("fullfp16", 0xFFE00C00, 0x1EE00C00, "fcsel (half precision)"),
    ("fullfp16", 0xFFC00000, 0x1FC00000, "fmadd (half precision)"),
    ("fp16fml", 0xBF60FC00, 0x0E20EC00, "fmlal/fmlsl"),
    ("fp16fml", 0xBF60FC00, 0x2E20CC00, "fmlal2/fmlsl2"),
    ("fp16fml", 0xBFC0B400, 0x0F800000, "fmlal/fmlsl"),
    ("fp16fml", 0xBFC0B400, 0x2F808000, "fmlal2/fmlsl2"),
    ("jsconv", 0xFFFFFC00, 0x1E7E0000, "fjcvtzs"),
    ("fptoint", 0xFFBE7C00, 0x1E284000, "frint32/frint64"),
    ("fptoint", 0x9FBFEC00, 0x0E21E800, "frint32/frint64"),
    ("bf16", 0xFFFFFC00, 0x1E634000, "bfcvt"),
    ("bf16", 0xBFFFFC00, 0x0EA16800, "bfcvtn"),
    # Advanced SIMD three same extra
    ("rdm", 0xFF20F400, 0x7E008400, "sqrdmlah/sqrdmlsh"),
    ("rdm", 0xBF20F400, 0x2E008400, "sqrdmlah/sqrdmlsh"),
    ("dotprod", 0x9FE0FC00, 0x0E809400, "sdot/udot"),
    ("i8mm", 0xBFE0FC00, 0x0E809C00, "usdot"),
    ("i8mm", 0xDFE0F400, 0x4E80A400, "smmla/ummla"),
    ("bf16", 0xBFE0FC00, 0x2E40FC00, "bfdot"),
    ("bf16", 0xFFE0FC00, 0x6E40EC00, "bfmmla"),
    ("bf16", 0xBFE0FC00, 0x2EC0FC00, "bfmlal"),
    ("complxnum", 0xBF20E400, 0x2E00C400, "fcmla"),
    ("complxnum", 0xBF20EC00, 0x2E00E400, "fcadd"),
    # Advanced SIMD by indexed element
    ("rdm", 0xFF00D400, 0x7F00D000, "sqrdmlah/sqrdmlsh"),
    ("rdm", 0xBF00D400, 0x2F00D000, "sqrdmlah/sqrdmlsh"),
    ("dotprod", 0x9FC0F400, 0x0F80E000, "sdot/udot"),
    ("i8mm", 0xBF40F400, 0x0F00F000, "sudot/usdot"),
    ("bf16", 0xBFC0F400, 0x0F40F000, "bfdot"),
    ("bf16", 0xBFC0F400, 0x0FC0F000, "bfmlal"),
    ("complxnum", 0xBF009400, 0x2F001000, "fcmla"),
)  # fmt: skip
FAMILIES = tuple(dict.fromkeys(row[0] for row in _ROWS))
"""The families that `scan` knows."""

# Outline atomics of libgcc and compiler-rt are `cbz w16, fallback; ldadd ...; ret`: w16 is what the
# kernel said of the CPU.
_CBZ_W16, _RET = (0xFF00001F, 0x34000010), 0xD65F03C0
# libunwind's routine that turns ZA off starts by `mrs x16, TPIDR2_EL0`, and is called on CPUs
# that have SME; it is short.
_ZA_DISABLE, _ZA_DISABLE_WORDS = 0xD53BD0B0, 24


def scan(
    data: bytes, base: int, spans: Sequence[Span], families: Sequence[str]
) -> list[Instruction]:
    """Instructions of `families` in `spans` of the section `data` that starts at `base`.

    Those are left out that compilers' own libraries hold in every program, for CPUs and for
    callers that have them: see `_is_guarded`. Other code that looks at the CPU first is not
    known as such.
    """
    found = []
    for span in spans:
        words = _words(data[span.start - base : span.end - base])
        found += [
            Instruction(address=span.start + 4 * index, mnemonic=name, family=family)
            for family, mask, value, name in _ROWS
            if family in families
            for index in _at(words, mask, value)
            if not _is_guarded(family, words, index)
        ]
    return sorted(found, key=lambda instruction: instruction.address)


def guessed_spans(data: bytes, base: int, starts: Mapping[int, str]) -> list[Span]:  # noqa: ARG001
    """The code in a section without mapping symbols: all but what LDR (literal) loads."""
    words = _words(data)
    constants = []
    for index in _at(words, 0x3B000000, 0x18000000):
        word = int(words[index])
        distance = (word >> 5 & 0x7FFFF) - (word >> 4 & 0x80000)  # 19 bits with sign, in words
        size = (4, 8, 16 if word >> 26 & 1 else 4, 0)[word >> 30]
        constants.append((base + 4 * (index + distance), size))
    return without(constants, base, base + len(data), "a64")


def _words(code: bytes) -> Words:
    return np.frombuffer(code, "<u4", count=len(code) // 4).astype(np.uint32)


def _at(words: Words, mask: int, value: int) -> list[int]:
    hits: list[int] = np.flatnonzero((words & np.uint32(mask)) == np.uint32(value)).tolist()
    return hits


def _is_guarded(family: str, words: Words, index: int) -> bool:
    """Whether the instruction is one of libgcc, compiler-rt or libunwind that always are there.

    Unwinders read the vector length (CNTD, RDVL) for frames that say they hold SVE registers,
    and give the memory of frames with tags the tag of its address (STG with one register).
    """
    word = int(words[index])
    if family == "lse":
        before, after = words[max(index - 1, 0)], words[min(index + 1, len(words) - 1)]
        mask, value = _CBZ_W16
        return int(before) & mask == value and int(after) == _RET
    if family == "mte":
        return word & 0xFFFFFC00 == 0xD9200800 and word & 31 == word >> 5 & 31
    if family == "sve" and (word & 0xFF30FC00 == 0x0420E000 or word & 0xFFFFF800 == 0x04BF5000):
        return True
    if family in ("sve", "sme"):
        return _ZA_DISABLE in words[max(index - _ZA_DISABLE_WORDS, 0) : index]
    return False

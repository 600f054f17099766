"""The AArch64 scanner against LLVM's disassembler and assemblers' code."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from edgepack.base.process import run
from edgepack.boards import get_board
from edgepack.cpus import families_of
from edgepack.gate.aarch64 import _ROWS, FAMILIES, scan
from edgepack.gate.code import Span
from edgepack.gate.elf import find_instructions, read_elf
from edgepack.native.toolchain import find
from tests import cross
from tests.support import require_tool

AARCH64 = "aarch64-linux-gnu-"

# What clang's assembler wants besides -march, and LLVM 14's disassembler.
EXTENSIONS = (
    "aes",
    "sha2",
    "sha3",
    "sm4",
    "sme",
    "memtag",
    "rng",
    "ls64",
    "lse128",
    "rcpc3",
    "cssc",
    "fp16fml",
)
LLVM_14 = (
    *("v8.8a", "sve2", "sve2-aes", "sve2-bitperm", "sve2-sha3", "sve2-sm4", "sme", "sme-f64"),
    *("sme-i64", "mte", "aes", "sha2", "sha3", "sm4", "fp16fml", "fullfp16", "rand", "ls64"),
    *("hbc", "mops", "bf16", "i8mm", "f32mm", "f64mm", "lor", "altnzcv", "wfxt", "xs", "flagm"),
)
# Not of our families: calls of the hypervisor and debugger, and TME, which no CPU has.
OTHERS = ("smc", "hvc", "dcps1", "dcps2", "dcps3", "tcancel", "eret")
# At least one instruction of every form.
CODE = {
    "crc": "crc32b w0, w1, w2; crc32x w30, w29, x28; crc32cw w1, w2, w3",
    "aes": "aese v0.16b, v31.16b; aesimc v1.16b, v2.16b; pmull v0.1q, v1.1d, v2.1d; "
    "pmull2 v31.1q, v30.2d, v29.2d",
    "sha2": "sha1c q0, s1, v2.4s; sha1h s0, s1; sha256h q0, q1, v2.4s; sha256su0 v0.4s, v1.4s",
    "lse": "ldadd w0, w1, [x2]; ldaddalb w0, w1, [sp]; stset x0, [x1]; swpal x1, x2, [x3]; "
    "cas w0, w1, [x2]; casalh w0, w1, [x2]; caspl x0, x1, x2, x3, [x4]; ldumaxl x3, x4, [x5]",
    "rdm": "sqrdmlah v0.4s, v1.4s, v2.4s; sqrdmlsh h0, h1, h2; sqrdmlah v0.8h, v1.8h, v2.h[7]; "
    "sqrdmlsh s0, s1, v2.s[3]",
    "lor": "ldlar x0, [x1]; stllrb w0, [x1]",
    "fullfp16": "fmla v0.8h, v1.8h, v2.8h; fmla v0.8h, v1.8h, v15.h[7]; fadd h0, h1, h2; "
    "fcvtzs v0.4h, v1.4h; scvtf h0, w1; fmov h0, w1; fmov v0.8h, #1.0; fmadd h0, h1, h2, h3; "
    "fsqrt h0, h1; frinta h0, h1; fcmp h0, #0.0; fcsel h0, h1, h2, eq; fccmp h0, h1, #0, ne; "
    "fmaxnmv h0, v1.8h; faddp h0, v1.2h; fmaxp h0, v1.2h; fcvtzs w0, h1, #3; fmov h0, #2.0; "
    "ucvtf v0.8h, v1.8h, #4; fcvtzu h0, h1, #2; fmulx h0, h1, v2.h[3]; fminv h0, v1.4h; "
    "frecpe h0, h1; fabd h0, h1, h2; fcmgt v0.8h, v1.8h, #0.0",
    "fp16fml": "fmlal v0.4s, v1.4h, v2.4h; fmlsl2 v0.2s, v1.2h, v2.2h; "
    "fmlal2 v0.4s, v1.4h, v2.h[7]; fmlsl v0.4s, v1.4h, v2.h[1]",
    "sha3": "eor3 v0.16b, v1.16b, v2.16b, v3.16b; bcax v0.16b, v1.16b, v2.16b, v3.16b; "
    "rax1 v0.2d, v1.2d, v2.2d; xar v0.2d, v1.2d, v2.2d, #63; sha512h q0, q1, v2.2d; "
    "sha512su0 v0.2d, v1.2d",
    "sm4": "sm3ss1 v0.4s, v1.4s, v2.4s, v3.4s; sm3tt2b v0.4s, v1.4s, v2.s[3]; "
    "sm3partw1 v0.4s, v1.4s, v2.4s; sm4e v0.4s, v1.4s; sm4ekey v0.4s, v1.4s, v2.4s",
    "dotprod": "sdot v0.4s, v1.16b, v2.16b; udot v31.2s, v30.8b, v29.8b; "
    "sdot v0.4s, v1.16b, v31.4b[3]; udot v0.2s, v1.8b, v2.4b[0]",
    "sve": "add z0.s, z1.s, z2.s; ld1w {z0.s}, p0/z, [x0]; whilelt p0.s, x0, x1; incw x0; "
    "st1b {z31.b}, p7, [x0, x1]; fmla z0.s, p0/m, z1.s, z2.s",
    "pauth": "pacia x0, x1; autdza x2; xpaci x3; pacga x0, x1, x2; braa x0, x1; blrabz x2; retaa; "
    "ldraa x0, [x1]; ldrab x0, [x1, #-8]!",
    "complxnum": "fcmla v0.4s, v1.4s, v2.4s, #90; fcadd v0.2d, v1.2d, v2.2d, #270; "
    "fcmla v0.4s, v1.4s, v2.s[1], #180",
    "jsconv": "fjcvtzs w0, d1",
    "rcpc": "ldapr x0, [x1]; ldaprb w0, [sp]",
    "rcpc-immo": "ldapur x0, [x1, #-9]; stlurb w0, [x1, #255]; ldapursw x0, [x1]",
    "flagm": "cfinv; rmif x0, #1, #15; setf8 w0; setf16 w30",
    "altnzcv": "xaflag; axflag",
    "fptoint": "frint32z s0, s1; frint64x d0, d1; frint32x v0.4s, v1.4s; frint64z v0.2d, v1.2d",
    "sb": "sb",
    "rand": "mrs x0, rndr; mrs x30, rndrrs",
    "mte": "irg x0, x1; gmi x0, x1, x2; addg x0, x1, #16, #1; subg x0, x1, #16, #1; "
    "subp x0, x1, x2; subps x0, x1, x2; stg x0, [x1]; st2g x0, [x0]; ldg x0, [x1]; "
    "stgp x0, x1, [x2, #16]; stzg x0, [x1], #16",
    "i8mm": "usdot v0.4s, v1.16b, v2.16b; sudot v0.4s, v1.16b, v2.4b[3]; "
    "usdot v0.2s, v1.8b, v2.4b[1]; smmla v0.4s, v1.16b, v2.16b; ummla v0.4s, v1.16b, v2.16b; "
    "usmmla v0.4s, v1.16b, v2.16b",
    "bf16": "bfdot v0.4s, v1.8h, v2.8h; bfdot v0.2s, v1.4h, v2.2h[3]; bfmmla v0.4s, v1.8h, v2.8h; "
    "bfmlalb v0.4s, v1.8h, v2.8h; bfmlalt v0.4s, v1.8h, v2.h[7]; bfcvtn v0.4h, v1.4s; "
    "bfcvtn2 v0.8h, v1.4s; bfcvt h0, s1",
    "wfxt": "wfet x0; wfit x30",
    "xs": "dsb oshnxs; dsb synxs",
    "ls64": "ld64b x0, [x8]; st64b x0, [x8]; st64bv x9, x0, [x8]; st64bv0 x9, x0, [x8]",
    "mops": "cpyfp [x0]!, [x1]!, x2!; cpye [x0]!, [x1]!, x2!; setm [x0]!, x1!, x2",
    "hbc": "bc.eq .; bc.al .",
    "sme": "smstart; smstop za; fmopa za0.s, p0/m, p1/m, z0.s, z1.s; zero {za}",
    "cssc": "abs w0, w1; cnt x0, x1; ctz w2, w3; smax w0, w1, w2; umin x0, x1, x2; "
    "smin w0, w1, #-5; umax x0, x1, #200",
    "lse128": "ldclrp x0, x1, [x2]; ldsetpal x0, x1, [x2]; swppa x0, x1, [x2]",
    "rcpc3": "ldiapp w0, w1, [x2]; stilp x0, x1, [x2, #-16]!; ldapr w0, [x1], #4; "
    "stlr x0, [x1, #-8]!; ldapur q0, [x1, #3]; stl1 {v0.d}[1], [x1]",
}  # fmt: skip
# Their neighbours in the encoding, and what compilers put into code for any CPU.
PLAIN = """
    paciasp; autiasp; pacibsp; bti c; xpaclri; csdb; esb; sevl; yield; nop; hint #63
    fcvt s0, h1; fcvt h0, s1; fcvt d0, h1; fcvt h0, d1; fcvtl v0.4s, v1.4h; fcvtn v0.4h, v1.4s
    fmla v0.4s, v1.4s, v2.4s; fmla v0.4s, v1.4s, v2.s[3]; fmul v0.2d, v1.2d, v2.d[1]; fmov s0, #1.0
    fmulx v0.4s, v1.4s, v2.4s; fadd s0, s1, s2; fmadd d0, d1, d2, d3; fcsel s0, s1, s2, eq
    frinta v0.4s, v1.4s; frintx d0, d1; fsqrt v0.4s, v1.4s; scvtf s0, w1, #3; fcvtzs v0.4s, v1.4s
    fmaxnmv s0, v1.4s; faddp s0, v1.2s; fmov v0.4s, #1.0; fmov x0, v1.d[1]; fmov v1.d[1], x0
    sqrdmulh v0.4s, v1.4s, v2.4s; sqdmlal v0.4s, v1.4h, v2.h[7]; mla v0.8h, v1.8h, v2.h[7]
    smlal v0.4s, v1.4h, v2.4h; umlsl2 v0.4s, v1.8h, v2.h[3]; pmull v0.8h, v1.8b, v2.8b
    dup v0.4s, w1; dup s0, v1.s[1]; mov v0.s[1], v1.s[2]; ext v0.16b, v1.16b, v2.16b, #3
    tbl v0.16b, {v1.16b, v2.16b}, v3.16b; zip1 v0.4s, v1.4s, v2.4s; addv s0, v1.4s; addp d0, v1.2d
    ld1 {v0.4s, v1.4s}, [x0], #32; st4 {v0.s, v1.s, v2.s, v3.s}[1], [x0]; ld1r {v0.4s}, [x1]
    ldaxr w0, [x1]; stlxp w0, x1, x2, [x3]; ldxp x0, x1, [x2]; ldar x0, [x1]; stlrb w0, [x1]
    ldur x0, [x1, #-9]; ldr x0, [x1, x2, lsl #3]; ldr q0, [x1, w2, sxtw #4]; prfm pldl1keep, [x0]
    ldp q0, q1, [x0]; ldpsw x0, x1, [x2]; stnp x0, x1, [x2]; ldr x0, .; ldtr x0, [x1]; ldrsw x0, .
    add x0, x1, #16; sub x0, x1, #1, lsl #12; subs x0, x1, x2; adc x0, x1, x2; ccmp x0, #1, #2, eq
    rbit x0, x1; clz x0, x1; rev16 w0, w1; udiv x0, x1, x2; lslv x0, x1, x2; smulh x0, x1, x2
    br x0; blr x1; ret; b.eq .; cbz x0, .; tbnz x0, #63, .; svc #0; brk #1
    dsb ish; dmb ishld; isb; clrex; mrs x0, tpidr_el0; mrs x0, fpcr; msr fpsr, x1; dc zva, x0
    extr x0, x1, x2, #3; bfi x0, x1, #3, #4; and x0, x1, #0xff; movk x0, #1, lsl #48; adrp x0, .
"""


def lines(text: str) -> list[str]:
    return [item.strip() for line in text.splitlines() for item in line.split(";") if item.strip()]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An object file with a function for each family, and `plain`, by the pinned zig's clang."""
    folder = tmp_path_factory.mktemp("aarch64")
    text = [".arch armv9.5-a", *(f".arch_extension {name}" for name in EXTENSIONS), ".text"]
    for family, code in {**CODE, "plain": PLAIN}.items():
        name = family.replace("-", "_")
        text += [f".global {name}", f".type {name}, %function", f"{name}:", *lines(code)]
        text += [f".size {name}, . - {name}"]
    (folder / "x.s").write_text("\n".join(text) + "\n")
    toolchain = find("zig", get_board("aarch64"))
    toolchain.run([*toolchain.cc, "-c", folder / "x.s", "-o", folder / "x.o"])
    return folder / "x.o"


def test_families_are_those_that_profiles_may_name() -> None:
    assert set(FAMILIES) == set(families_of("aarch64-linux-gnu")) == set(CODE)


def test_every_instruction_of_every_family_is_found(program: Path) -> None:
    found = Counter((item.function, item.family) for item in find_instructions(program, FAMILIES))
    assert found == {
        (family.replace("-", "_"), family): len(lines(code)) for family, code in CODE.items()
    }


def test_a_family_alone(program: Path) -> None:
    found = find_instructions(program, ["dotprod", "sb"])
    assert {item.function for item in found} == {"dotprod", "sb"}
    assert found[0].mnemonic == "sdot/udot"


def test_the_same_as_llvms_disassembler(tmp_path: Path) -> None:
    """On random words, and on such that differ from a row of the table by one bit.

    What ARMv8.0-A decodes is none of ours; what only a newer architecture decodes is found.
    LLVM takes hints, system registers and unallocated words of a row for either.
    """
    chance = np.random.default_rng(64)
    parts = [chance.integers(0, 1 << 32, 20_000, dtype=np.uint64)]
    for _, mask, value, _ in _ROWS:
        near = chance.integers(0, 1 << 32, 100, dtype=np.uint64) & np.uint64(mask ^ 0xFFFFFFFF)
        near |= np.uint64(value)
        bits = [bit for bit in range(32) if mask >> bit & 1]
        flips = np.uint64(1) << chance.choice(bits, 100).astype(np.uint64)
        parts += [near, near ^ flips]
    words = np.concatenate(parts).astype("<u4")
    (tmp_path / "w.bin").write_bytes(words.tobytes())
    section = ".data=.text,code,alloc,contents,readonly"
    copy = [require_tool(AARCH64 + "objcopy"), "-I", "binary", "-O", "elf64-littleaarch64"]
    run([*copy, "--rename-section", section, "--strip-all", tmp_path / "w.bin", tmp_path / "w.o"])

    def disassembled(*flags: str) -> list[str]:
        tool = require_tool("llvm-objdump")
        out = run([tool, "-d", "--no-show-raw-insn", *flags, tmp_path / "w.o"]).stdout
        text = [line.split(":", 1)[1].strip() for line in out.splitlines() if line[:1] == " "]
        assert len(text) == len(words)
        return text

    base = disassembled("--mcpu=generic")
    newest = disassembled(f"--mattr={','.join('+' + name for name in LLVM_14)}")
    span = Span(start=0, end=4 * len(words), mode="a64")
    found = {item.address // 4: item.family for item in scan(words.tobytes(), 0, [span], FAMILIES)}
    confirmed = set()
    for index, (old, new) in enumerate(zip(base, newest, strict=True)):
        what = (hex(int(words[index])), old, new, found.get(index))
        if "<unknown>" in old and "<unknown>" not in new:
            name = new.split()[0]
            assert index in found or name in OTHERS, what
            confirmed.add(found.get(index))
        elif "<unknown>" not in old and index in found:
            # a system register's number or name: LLVM has text for any
            assert old.startswith(("msr\tS0_", "mrs\t")), what
    # The rest are instructions that LLVM 14 lacks, or has text for anyway.
    rest = {"cssc", "lse128", "rcpc3", "altnzcv", "wfxt", "sb", "rand", "xs"}
    assert confirmed - {None} == set(FAMILIES) - rest


ATOMICS = """
int n; long m;
int add(int x) { return __atomic_fetch_add(&n, x, __ATOMIC_SEQ_CST); }
long swap(long x) { return __atomic_exchange_n(&m, x, __ATOMIC_ACQUIRE); }
int cas(long x, long y) { return __atomic_compare_exchange_n(&m, &x, y, 0, 5, 5); }
"""


def test_outline_atomics_ask_the_kernel_first(tmp_path: Path) -> None:
    flags = ("-O2", "-shared", "-nostdlib", "-fPIC")
    asking = cross.gcc(tmp_path, ATOMICS, *flags, "-moutline-atomics", "-lgcc", prefix=AARCH64)
    text = run([AARCH64 + "objdump", "-d", asking]).stdout
    assert "<__aarch64_ldadd4_acq_rel>:" in text
    assert "\tldaddal\t" in text
    using = cross.gcc(tmp_path, ATOMICS, *flags, "-march=armv8.1-a", prefix=AARCH64)
    for each in (lambda path: path, lambda path: cross.strip(path, AARCH64)):
        assert find_instructions(each(asking), FAMILIES) == []
        found = find_instructions(each(using), FAMILIES)
        assert {(item.family, item.function) for item in found} == {
            ("lse", "add"), ("lse", "swap"), ("lse", "cas")
        }  # fmt: skip


def test_exceptions_unwind_on_any_cpu(tmp_path: Path) -> None:
    """libgcc's unwinder reads the vector length, for frames of code that has one."""
    source = "int f(int); int g(int x) { try { return f(x); } catch (int y) { return y; } }"
    library = cross.gcc(
        tmp_path, source, "-shared", "-fPIC", "-static-libgcc", suffix="cc", prefix=AARCH64
    )
    assert "\tcntd\t" in run([AARCH64 + "objdump", "-d", library]).stdout
    assert find_instructions(library, FAMILIES) == []


def test_constants_are_not_code(tmp_path: Path) -> None:
    """The word of `sdot v0.4s, v1.16b, v2.16b` between functions; mapped and stripped."""
    source = (
        ".arch armv8.2-a+dotprod\n.text\n.global f\n.type f, %function\n"
        "f: ldr w0, 1f\nldr d0, 2f\nret\n1: .word 0x4e829420\n2: .quad 0x4e8294204e829420\n"
        ".size f, .-f\n.global g\n.type g, %function\n"
        "g: sdot v0.4s, v1.16b, v2.16b\nret\n.size g, .-g\n"
    )
    path = cross.gcc(tmp_path, source, "-shared", "-nostdlib", suffix="s", prefix=AARCH64)
    stripped = cross.strip(path, AARCH64)
    assert (read_elf(path).has_code_map, read_elf(stripped).has_code_map) == (True, False)
    for file in (path, stripped):
        [found] = find_instructions(file, FAMILIES)
        assert (found.mnemonic, found.function) == ("sdot/udot", "g")

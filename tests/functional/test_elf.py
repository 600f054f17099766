from __future__ import annotations

import functools
import random
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepack.boards import get_board, version_tuple
from edgepack.gate.code import Instruction
from edgepack.gate.elf import NotElfError, VersionNeed, find_instructions, read_elf
from edgepack.native.toolchain import find
from tests import cross
from tests.support import require_tool

FAMILIES = ("fma", "hwdiv", "armv8")
Compile = Callable[..., Path]

# Every form of an encoding once, high registers too (their top bits lie apart).
FORBIDDEN = {
    "fma": """
        vfma.f32 q0, q1, q2;  vfma.f32 d31, d30, d29;  vfms.f32 q15, q14, q13;  vfms.f32 d0, d1, d2
        vfma.f32 s0, s1, s2;  vfma.f64 d31, d30, d29;  vfms.f32 s31, s30, s29;  vfms.f64 d0, d1, d2
        vfnma.f32 s0, s1, s2; vfnma.f64 d0, d1, d2;    vfnms.f32 s0, s1, s2;    vfnms.f64 d0, d1, d2
    """,
    "hwdiv": "sdiv r0, r1, r2; udiv r12, lr, r5; udiv r0, r0, r1; sdiv lr, r8, r9",
    "armv8": """
        vseleq.f32 s0, s1, s2; vselge.f64 d31, d1, d2; vselgt.f32 s0, s1, s2; vselvs.f64 d0, d1, d2
        vmaxnm.f32 s0, s1, s2; vmaxnm.f64 d0, d1, d31; vminnm.f32 s3, s1, s2; vminnm.f64 d0, d1, d2
        vmaxnm.f32 q0, q1, q15; vminnm.f32 q0, q1, q2; vmaxnm.f32 d0, d1, d2; vminnm.f32 d0, d1, d2
        vrinta.f32 s0, s1; vrintn.f64 d0, d31; vrintp.f32 s0, s1; vrintm.f64 d0, d1
        vrintr.f32 s0, s1; vrintz.f64 d0, d1; vrintx.f32 s0, s1; vrintx.f64 d31, d1
        vrinta.f32 q0, q1; vrintn.f32 q0, q1; vrintp.f32 q0, q1; vrintm.f32 d0, d1
        vrintz.f32 q0, q1; vrintx.f32 q0, q15
        vcvta.s32.f32 s0, s1; vcvtn.u32.f64 s0, d1; vcvtp.s32.f32 s0, s1; vcvtm.u32.f32 s0, s1
        vcvta.s32.f32 q0, q1; vcvtn.u32.f32 d0, d1; vcvtp.s32.f32 q0, q1; vcvtm.u32.f32 q0, q1
        crc32b r0, r1, r2; crc32h r0, r1, r2; crc32w r0, r1, r2; crc32cw r7, r8, r9
        lda r0, [r1]; ldab r0, [r1]; ldah r0, [r1]; ldaex r0, [r1]; ldaexb r0, [r1]
        ldaexh r0, [r1]; ldaexd r0, r1, [r2]; stl r0, [r1]; stlb r0, [r1]; stlh r0, [r1]
        stlex r0, r1, [r2]; stlexb r0, r1, [r2]; stlexh r0, r1, [r2]; stlexd r3, r0, r1, [r2]
    """,
}
# Their neighbours in the encoding, which every ARMv7-A CPU has.
ALLOWED = """
    vmla.f32 q0, q1, q2; vmls.f32 q0, q1, q2; vmla.f32 s0, s1, s2; vmls.f64 d0, d1, d2
    vnmla.f32 s0, s1, s2; vnmls.f64 d0, d1, d2; vmul.f32 s0, s1, s2; vnmul.f64 d0, d1, d2
    vadd.f32 q0, q1, q2; vsub.f64 d0, d1, d2; vdiv.f32 s0, s1, s2; vsqrt.f64 d0, d1
    vmla.i32 q0, q1, q2; vmla.f32 q0, q1, d2[1]; vmlal.s16 q0, d1, d2; vqdmlal.s16 q0, d1, d2
    vcvt.f32.f64 s0, d1; vcvt.f64.f32 d0, s1; vcvt.s32.f32 s0, s1; vcvtr.s32.f64 s0, d1
    vcvtb.f32.f16 s0, s1; vcvtt.f16.f32 s0, s1; vcvt.f16.f32 d0, q1; vcvt.f32.f16 q0, d1
    vcvt.s32.f32 q0, q1; vcvt.f32.u32 q0, q1; vcvt.f32.s32 q0, q1, #3; vcmp.f32 s0, s1
    vrecpe.f32 q0, q1; vrsqrte.u32 q0, q1; vrecps.f32 q0, q1, q2; vrsqrts.f32 q0, q1, q2
    vmax.f32 q0, q1, q2; vmin.f32 d0, d1, d2; vpmax.f32 d0, d1, d2; vacge.f32 q0, q1, q2
    vceq.f32 q0, q1, #0; vabs.f32 q0, q1; vneg.f32 s0, s1; vmov.f32 s0, #1.0; vswp q0, q1
    vtrn.32 q0, q1; vzip.8 q0, q1; vuzp.16 q0, q1; vmovn.i32 d0, q1; vqmovn.s32 d0, q1
    vqmovun.s16 d0, q1; vshll.i32 q0, d1, #32; vrev64.32 q0, q1; vcnt.8 q0, q1; vtbl.8 d0, {d1}, d2
    vld1.32 {d0, d1}, [r0]; vst4.8 {d0, d1, d2, d3}, [r0]; vldmia r0!, {d0-d15}; vpush {s0-s3}
    vmrs r0, fpscr; vmov r0, r1, d2; vdup.32 q0, r0
    smmul r0, r1, r2; smmla r0, r1, r2, r3; smmls r0, r1, r2, r3; smuad r0, r1, r2
    smlad r0, r1, r2, r3; smusd r0, r1, r2; smlsd r0, r1, r2, r3; smlald r0, r1, r2, r3
    usad8 r0, r1, r2; usada8 r0, r1, r2, r3; smull r0, r1, r2, r3; umaal r0, r1, r2, r3
    qadd r0, r1, r2; qdsub r0, r1, r2; sel r0, r1, r2; rbit r0, r1; clz r0, r1; rev16 r0, r1
    ldrex r0, [r1]; strex r0, r1, [r2]; ldrexb r0, [r1]; strexb r0, r1, [r2]
    ldrexh r0, [r1]; strexh r0, r1, [r2]; ldrexd r0, r1, [r2]; strexd r3, r0, r1, [r2]
    ldrd r0, r1, [r2]; strd r0, r1, [r2]; clrex; dmb ish
    mrs r0, cpsr; movw r0, #1; bfi r0, r1, #1, #2
"""


@pytest.fixture
def gcc(tmp_path: Path) -> Compile:
    return functools.partial(cross.gcc, tmp_path)


def lines(text: str) -> list[str]:
    return [item.strip() for line in text.splitlines() for item in line.split(";") if item.strip()]


def assembly(mode: str, *instructions: str) -> str:
    head = [
        ".syntax unified",
        ".arch armv8-a",
        ".arch_extension crc",
        ".fpu neon-fp-armv8",
        f".{mode}",
        ".text",
    ]
    return "\n".join([*head, *instructions, ""])


def names(found: list[Instruction]) -> list[str]:
    return [instruction.mnemonic for instruction in found]


@pytest.mark.parametrize("mode", ["arm", "thumb"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_forbidden_instruction_is_found(gcc: Compile, mode: str, family: str) -> None:
    wanted = lines(FORBIDDEN[family])
    path = gcc(assembly(mode, *wanted), "-c", suffix="s")
    found = find_instructions(path, FAMILIES)
    assert [instruction.address for instruction in found] == [4 * i for i in range(len(wanted))]
    assert {instruction.family for instruction in found} == {family}
    for instruction, text in zip(found, wanted, strict=True):
        # "vrinta" is reported as "vrint", "ldaexb" as "lda", "vcvta" as "vcvt (...)".
        assert text.startswith(instruction.mnemonic.split(" ")[0])
    others = [name for name in FAMILIES if name != family]
    assert find_instructions(path, others) == []


@pytest.mark.parametrize("mode", ["arm", "thumb"])
def test_no_other_instruction_is_taken_for_one(gcc: Compile, mode: str) -> None:
    path = gcc(assembly(mode, *lines(ALLOWED)), "-c", suffix="s")
    assert find_instructions(path, FAMILIES) == []


def test_conditional_instructions(gcc: Compile) -> None:
    arm = assembly("arm", "vfmaeq.f32 s0, s1, s2", "sdivne r0, r1, r2", "udivlt r0, r1, r2")
    path = gcc(arm, "-c", suffix="s")
    assert names(find_instructions(path, FAMILIES)) == ["vfma", "sdiv", "udiv"]


def test_thumb_code_is_cut_into_instructions(gcc: Compile) -> None:
    """0xfb91 f0f2 is sdiv; as the second half of one instruction and the first of the next, not."""
    text = assembly("thumb", ".inst.w 0xf240fb91", ".inst.w 0xf0f2f0f2", "nop")
    assert find_instructions(gcc(text, "-c", suffix="s"), FAMILIES) == []


CONSTANTS = {"arm": "0xeea00a01, 0x0710f011, 0xf2000c12", "thumb": "0x0a01eea0, 0xf0f1fb90"}


@pytest.mark.parametrize("mode", ["arm", "thumb"])
def test_constants_are_not_code(gcc: Compile, mode: str) -> None:
    """Words that look like forbidden instructions, between functions; mapped and stripped."""
    count = CONSTANTS[mode].count(",") + 1
    loads = "\n".join(f"ldr r{i}, 1f + {4 * i}" for i in range(count))
    text = assembly(
        mode,
        *(".global f", ".type f, %function", "f:", ".fnstart", loads, "bx lr", ".align 2"),
        f"1: .word {CONSTANTS[mode]}",
        *(".fnend", ".size f, .-f", ".global g", ".type g, %function", "g:", ".fnstart"),
        *("sdiv r0, r1, r2", "bx lr", ".fnend", ".size g, .-g"),
    )
    path = gcc(text, "-shared", "-nostdlib", suffix="s")
    stripped = cross.strip(path)
    assert read_elf(path).has_code_map
    assert not read_elf(stripped).has_code_map
    for file in (path, stripped):
        [found] = find_instructions(file, FAMILIES)
        assert (found.mnemonic, found.family, found.function) == ("sdiv", "hwdiv", "g")


def test_kernels_of_a_static_app_bring_their_own_map(gcc: Compile) -> None:
    """Such a file is stripped, and a table that is only jumped over looks like code."""
    code = (
        *('.section .kernels,"ax"', ".global f", ".type f, %function", "f:", "bx lr"),
        *(f".word {CONSTANTS['arm']}", "sdiv r0, r1, r2", "bx lr", ".size f, .-f"),
    )
    code_map = ('.section .edgepack.code_map,""', ".long 0, 'a', 4, 'd', 16, 'a'")
    flags = ("-shared", "-nostdlib", "-Wl,-s")
    guessed = gcc(assembly("arm", *code), *flags, suffix="s")
    assert names(find_instructions(guessed, FAMILIES)) != ["sdiv"]
    exact = gcc(assembly("arm", *code, *code_map), *flags, suffix="s")
    assert names(find_instructions(exact, FAMILIES)) == ["sdiv"]


MATHS = """
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static const char *const names[] = {"zero", "one", "two", "three", "four"};
__attribute__((noinline)) int divide(int a, int b) { return a / b + (unsigned)a % (unsigned)b; }
__attribute__((noinline)) float fuse(float a, float b, float c) { return fmaf(a, b, c); }
__attribute__((noinline)) void axpy(float *y, const float *x, float a) {
  for (int i = 0; i < 256; ++i) y[i] += a * x[i] * 3.14159f;
}
int main(int argc, char **argv) {
  float y[256] = {0}, x[256] = {1};
  switch (argc) {
    case 1: return 2; case 2: puts("b"); break; case 3: puts("c"); return 7;
    case 4: puts(argv[1]); break; case 5: abort(); case 6: return (int)strlen(argv[2]);
  }
  axpy(y, x, (float)atof(argv[1]));
  printf("%s %d %f\\n", names[argc % 5], divide(argc, 3), fuse(y[3], 2.5f, x[2]) * 1e-300);
  return 0;
}
"""


@pytest.mark.parametrize("mode", ["-marm", "-mthumb"])
@pytest.mark.parametrize("cpu", ["cortex-a9", "cortex-a53"])
def test_a_static_program_stripped_or_not(gcc: Compile, mode: str, cpu: str) -> None:
    """Some 400 kB of glibc's code for ARMv7, assembler and jump tables and constants included."""
    fpu = "neon" if cpu == "cortex-a9" else "neon-fp-armv8"
    # C++ has unwind tables anyway; without, a stripped file does not tell functions apart.
    flags = ("-O2", "-ffast-math", "-static", "-funwind-tables", f"-mfpu={fpu}", mode)
    path = gcc(MATHS, *flags, f"-mcpu={cpu}", "-lm")
    exact = find_instructions(path, FAMILIES)
    guessed = find_instructions(cross.strip(path), FAMILIES)
    place = [(item.address, item.mnemonic) for item in exact]
    assert place == [(item.address, item.mnemonic) for item in guessed]
    if cpu == "cortex-a9":
        assert exact == []
        return
    found = Counter((item.function, item.mnemonic) for item in exact)
    assert found["divide", "sdiv"] == 1
    assert found["divide", "udiv"] == 1
    assert found["fuse", "vfma"] == 1
    assert found["axpy", "vfma"] >= 1


def test_our_finds_are_those_of_objdump(gcc: Compile) -> None:
    path = gcc(MATHS, "-O3", "-ffast-math", "-mcpu=cortex-a53", "-mfpu=neon-fp-armv8", "-lm")
    listing = subprocess.run(
        [require_tool("arm-linux-gnueabihf-objdump"), "-d", path],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    wanted = set()
    for line in listing.splitlines():
        address, _, rest = line.partition(":")
        mnemonic = rest.split("\t")[2] if rest.count("\t") >= 2 else ""
        if mnemonic.startswith(("vfma", "vfms", "vfnm", "sdiv", "udiv")):
            wanted.add(int(address, 16))
    found = find_instructions(path, ("fma", "hwdiv"))
    assert {instruction.address for instruction in found} == wanted
    assert wanted


def test_facts_of_a_linked_program(gcc: Compile) -> None:
    elf = read_elf(gcc(MATHS, "-lm"))
    assert (elf.machine, elf.bits, elf.little_endian) == ("ARM", 32, True)
    assert elf.kind == "shared object"  # position independent
    assert elf.float_abi == "hard"
    assert elf.interpreter == "/lib/ld-linux-armhf.so.3"
    assert "libc.so.6" in elf.needed
    assert (elf.attributes.cpu_arch, elf.attributes.vfp_args) == (10, 1)
    assert elf.has_code_map
    assert elf.highest("GLIBCXX") is None
    assert VersionNeed(version="GLIBC_2.4", library="libc.so.6", symbol="puts") in elf.needs
    numbers = [need.number or () for need in elf.needs if need.family == "GLIBC"]
    assert numbers == sorted(numbers, reverse=True)


def test_an_empty_main_of_gcc_12_needs_glibc_2_34(gcc: Compile) -> None:
    need = read_elf(gcc("int main(void) { return 0; }")).highest("GLIBC")
    assert need == VersionNeed(
        version="GLIBC_2.34", library="libc.so.6", symbol="__libc_start_main"
    )


def test_the_float_abi(gcc: Compile) -> None:
    source = "float f(float x) { return x * 2; }"
    shared = ("-shared", "-nostdlib", "-fPIC")
    assert read_elf(gcc(source, *shared, "-mfloat-abi=hard")).float_abi == "hard"
    assert read_elf(gcc(source, *shared, "-mfloat-abi=softfp")).float_abi == "soft"
    soft = read_elf(gcc(source.replace("* 2", ""), *shared, "-mfloat-abi=soft"))
    assert soft.float_abi == "soft"


def test_versions_are_numbers_and_private_ones_are_above_all() -> None:
    need = VersionNeed(version="GLIBC_2.4", library="libc.so.6", symbol="x")
    assert need.number == (2, 4)
    assert need.family == "GLIBC"
    private = VersionNeed(version="GLIBC_PRIVATE", library="libc.so.6", symbol="x")
    assert private.number is None


@pytest.mark.parametrize("name", ["rasp3b", "rasp3b-64"])
def test_zig_pins_the_glibc(tmp_path: Path, name: str) -> None:
    board = get_board(name)
    toolchain = find("zig", board)
    source = tmp_path / "main.c"
    source.write_text("int main(void) { return 0; }")
    out = tmp_path / "main"
    # As the app is linked: what zig needs for it is there already.
    flags = [*board.runtime_flags["zig"], "-O3", "-s"]
    toolchain.run([*toolchain.cc, *flags, source, "-o", out])
    elf = read_elf(out)
    need = elf.highest("GLIBC")
    assert need is not None and need.number is not None
    assert need.number <= version_tuple(toolchain.glibc)
    assert elf.float_abi == board.float_abi
    assert elf.interpreter == board.target.loader
    assert find_instructions(out, FAMILIES) == []


def test_this_machines_own_programs() -> None:
    shell = Path("/bin/sh").resolve()
    elf = read_elf(shell)
    assert elf.machine in ("x86-64", "AArch64")
    assert elf.float_abi == ""
    assert find_instructions(shell, FAMILIES) == []


def test_what_is_no_elf_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(NotElfError, match="cannot read"):
        read_elf(path)
    path.write_bytes(b"")
    with pytest.raises(NotElfError, match="not an ELF file"):
        read_elf(path)
    path.write_bytes(b"\x7fELF")
    with pytest.raises(NotElfError, match="damaged"):
        read_elf(path)


def test_damaged_files_give_one_kind_of_error(gcc: Compile, tmp_path: Path) -> None:
    good = gcc("int f(int a, int b) { return a / b; }", "-shared", "-nostdlib").read_bytes()
    chance = random.Random(0)
    path = tmp_path / "bad"
    raised = 0
    for round_ in range(300):
        data = bytearray(good)
        if round_ % 3 == 0:
            data = data[: chance.randrange(len(data))]
        else:
            for _ in range(chance.choice((1, 10, 100))):
                # Half of them in the headers, where they hurt.
                end = chance.choice((64, len(data)))
                data[chance.randrange(4, end)] = chance.randrange(256)
        path.write_bytes(data)
        try:
            read_elf(path)
            find_instructions(path, FAMILIES)
        except NotElfError:
            raised += 1
    assert raised > 50

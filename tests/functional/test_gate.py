from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from edgepack.base.errors import BundleError
from edgepack.boards import get_board
from edgepack.bundle.bundle import Bundle
from edgepack.device.facts import DeviceFacts
from edgepack.gate.gate import GateError, check_bundle, check_device, needed_hwcaps
from tests import cross
from tests.bundles import FakeCompiled, small_bundle

AARCH64 = "aarch64-linux-gnu-"
A9 = ("-O2", "-mcpu=cortex-a9", "-mfpu=neon")
A53 = ("-O2", "-mcpu=cortex-a53", "-mfpu=neon-fp-armv8")
KERNEL = """
void kernel(float *y, const float *x) { for (int i = 0; i < 64; ++i) y[i] += x[i] * 3.0f; }
int quotient(int a, int b) { return a / b; }
"""


@dataclasses.dataclass(frozen=True)
class Parts:
    """ARM files that fit every 32-bit board, and kernels for the Cortex-A53 only."""

    app: Path
    library: Path
    a53: Path


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    folder = tmp_path_factory.mktemp("parts")
    shared = ("-shared", "-nostdlib", "-fPIC", "-ffast-math", "-O3")
    # Linked to the loader and the C library as the real one, without a new symbol version.
    app = 'int puts(const char *); void _start(void) { puts(""); }'
    return Parts(
        app=cross.gcc(folder, app, *A9, "-nostartfiles"),
        library=cross.gcc(folder, KERNEL.replace("a / b", "a + b"), *A9, *shared),
        a53=cross.gcc(folder, KERNEL, *A53, *shared),
    )


def made(tmp_path: Path, parts: Parts, board: str = "rasp3b", **changes: Any) -> Bundle:
    values = {"app": parts.app, "library": parts.library, "board": board, **changes}
    return small_bundle(tmp_path, **values)


def refused(bundle: Bundle, board: str) -> GateError:
    with pytest.raises(GateError) as caught:
        check_bundle(bundle, get_board(board))
    assert caught.value.exit_code == 5
    assert caught.value.hint
    assert bundle.path.name in caught.value.message
    assert all(problem.hint for problem in caught.value.problems)
    return caught.value


@pytest.mark.parametrize("board", ["rasp3b", "rasp4b", "pynq", "armv7"])
def test_a_bundle_for_its_own_board(tmp_path: Path, parts: Parts, board: str) -> None:
    check_bundle(made(tmp_path, parts, board), get_board(board))


def test_a_bundle_for_a_lower_cpu(tmp_path: Path, parts: Parts) -> None:
    for built, used in [("armv7", "pynq"), ("armv7", "rasp3b"), ("pynq", "rasp3b"),
                        ("rasp3b", "rasp4b")]:  # fmt: skip
        check_bundle(made(tmp_path, parts, built), get_board(used))


def test_cortex_a53_is_refused_for_pynq(tmp_path: Path, parts: Parts) -> None:
    error = refused(made(tmp_path, parts, library=parts.a53), "pynq")
    files = [problem.file for problem in error.problems]
    texts = [problem.text for problem in error.problems]
    assert files == ["manifest.json", *["model/model.so"] * 3]
    assert texts[0].startswith("built for cortex-a53 (rasp3b) with vfpv4, idiva; cortex-a9 has")
    assert "marked as code for" in texts[1]
    assert "ARMv8, ARMv8 FP, ARMv8 NEON; cortex-a9 lacks fused multiply-add" in texts[1]
    assert texts[2].startswith("vfma at 0x")
    assert " in kernel; cortex-a9 has no fused multiply-add instructions" in texts[2]
    assert texts[3].startswith("sdiv at 0x")
    assert " in quotient; cortex-a9 has no hardware divide instructions" in texts[3]
    assert "edgepack package --board pynq" in str(error)


def test_the_code_counts_not_only_what_the_manifest_says(tmp_path: Path, parts: Parts) -> None:
    """A Cortex-A53 library in a bundle that calls itself one for pynq, stripped or not."""
    stripped = cross.strip(parts.a53)
    for library in (parts.a53, stripped):
        error = refused(made(tmp_path, parts, "pynq", library=library), "pynq")
        assert {problem.file for problem in error.problems} == {"model/model.so"}
        assert any("vfma at" in problem.text for problem in error.problems)
        guess = any("a guess: the file is stripped" in problem.text for problem in error.problems)
        assert guess == (library == stripped)


def test_the_glibc_floor(tmp_path: Path, parts: Parts) -> None:
    """What Debian 12's cross gcc makes of an empty main does not start on bullseye."""
    app = cross.gcc(tmp_path, "int main(void) { return 0; }", *A9)
    error = refused(made(tmp_path, parts, app=app), "rasp3b")
    [problem] = error.problems
    assert problem.file == "bin/edgepack-run"
    assert problem.text.startswith("__libc_start_main needs GLIBC_2.34; the board has glibc 2.31")
    assert "--toolchain zig" in problem.hint
    newer = dataclasses.replace(get_board("rasp3b"), glibc="2.36")
    check_bundle(made(tmp_path, parts, app=app), newer)


def test_libraries_besides_glibc(tmp_path: Path, parts: Parts) -> None:
    source = "#include <string>\nstd::string f(const char *s) { return std::string(s) + s; }"
    library = cross.gcc(tmp_path, source, *A9, "-shared", "-fPIC", suffix="cc")
    error = refused(made(tmp_path, parts, library=library), "rasp3b")
    [text] = [problem.text for problem in error.problems if "libstdc++" in problem.text]
    assert re.match(r"needs libstdc\+\+\.so\.6 \(_Z\w+ needs (GLIBCXX|CXXABI)_[0-9.]+\); ", text)
    assert text.endswith("the C library only")


def test_soft_float(tmp_path: Path, parts: Parts) -> None:
    source = "float f(float x) { return x * 2; }"
    library = cross.gcc(tmp_path, source, *A9, "-mfloat-abi=softfp", "-shared", "-nostdlib")
    error = refused(made(tmp_path, parts, library=library), "rasp3b")
    [problem] = error.problems
    assert problem.text.startswith("soft-float calling convention; the board's system is hard")


def test_code_for_another_machine(tmp_path: Path, parts: Parts) -> None:
    shell = Path("/bin/sh").resolve()
    error = refused(made(tmp_path, parts, app=shell), "rasp3b")
    [problem] = error.problems
    assert problem.file == "bin/edgepack-run"
    assert "64-bit; the board runs ARM, 32-bit (arm-linux-gnueabihf)" in problem.text


def test_another_triple(tmp_path: Path, parts: Parts) -> None:
    error = refused(made(tmp_path, parts), "rk3399")
    assert error.problems[0].text == (
        "built for arm-linux-gnueabihf (rasp3b), the board is aarch64-linux-gnu"
    )
    assert len(error.problems) == 3


def test_another_loader(tmp_path: Path, parts: Parts) -> None:
    loader = "-Wl,--dynamic-linker=/lib/ld-musl-armhf.so.1"
    app = cross.gcc(
        tmp_path, "int puts(const char *); void _start(void) { puts(0); }",
        *A9, "-nostartfiles", loader,
    )  # fmt: skip
    [problem] = refused(made(tmp_path, parts, app=app), "rasp3b").problems
    assert problem.text == (
        "wants the loader /lib/ld-musl-armhf.so.1; the board's is /lib/ld-linux-armhf.so.3"
    )


def test_what_is_no_elf_file(tmp_path: Path, parts: Parts) -> None:
    error = refused(made(tmp_path, parts, app=b"#!/bin/sh\n", library=b"\x7fELF"), "rasp3b")
    assert "not an ELF file" in error.problems[0].text
    assert "damaged ELF file" in error.problems[1].text


def test_every_elf_file_is_looked_at(tmp_path: Path, parts: Parts) -> None:
    bundle = made(tmp_path, parts, "pynq")
    shutil.copyfile(parts.a53, bundle.file("golden/input.npy"))
    error = refused(bundle, "pynq")
    assert {problem.file for problem in error.problems} == {"golden/input.npy"}


def test_all_problems_are_collected_and_the_first_shown(tmp_path: Path, parts: Parts) -> None:
    app = cross.gcc(tmp_path, "int main(int c, char **v) { return 9 / c; }", *A53)
    error = refused(made(tmp_path, parts, app=app, library=parts.a53), "pynq")
    assert len(error.problems) == 7
    assert "and 3 more" in error.message
    assert error.hint == error.problems[0].hint


PI = DeviceFacts(
    system="Linux",
    kernel="5.10.103-v7+",
    machine="armv7l",
    libc="glibc",
    glibc="2.31",
    loaders=("/lib/ld-linux-armhf.so.3",),
    model="Raspberry Pi 3 Model B",
    features=frozenset({"half", "thumb", "vfp", "edsp", "neon", "vfpv3", "vfpv4", "idiva"}),
    parts=("0xd03",) * 4,
    cores=4,
    memory_bytes=900_000_000,
    memory_available_bytes=700_000_000,
    free_disk_bytes=4_000_000_000,
    os="Raspbian GNU/Linux 11 (bullseye)",
    user="pi",
    home="/home/pi",
    hostname="raspberrypi",
    sha256sum="sha256sum",
)


def device(**changes: Any) -> DeviceFacts:
    return dataclasses.replace(PI, **changes)


def refused_by(bundle: Bundle, facts: DeviceFacts, **options: Any) -> str:
    with pytest.raises(GateError) as caught:
        check_device(bundle, facts, **options)
    [problem] = caught.value.problems
    assert "raspberrypi" in caught.value.message
    assert problem.hint
    return f"{problem.file}: {problem.text}"


def test_a_device_that_fits(tmp_path: Path, parts: Parts) -> None:
    bundle = made(tmp_path, parts, library=parts.a53)
    check_device(bundle, PI)
    check_device(bundle, device(machine="armv8l"))


def test_a_64_bit_kernel_with_a_32_bit_system(tmp_path: Path, parts: Parts) -> None:
    bundle = made(tmp_path, parts)
    check_device(bundle, device(machine="aarch64"))
    other = device(machine="aarch64", loaders=("/lib/ld-linux-aarch64.so.1",))
    text = refused_by(bundle, other)
    assert text == (
        "bin/edgepack-run: wants the loader /lib/ld-linux-armhf.so.3, which the device lacks; "
        "it has /lib/ld-linux-aarch64.so.1 (kernel: aarch64)"
    )


def test_a_soft_float_system(tmp_path: Path, parts: Parts) -> None:
    text = refused_by(made(tmp_path, parts), device(loaders=("/lib/ld-linux.so.3",)))
    assert "which the device lacks; it has /lib/ld-linux.so.3 (kernel: armv7l)" in text


@pytest.mark.parametrize("machine", ["armv6l", "x86_64", "riscv64"])
def test_another_machine(tmp_path: Path, parts: Parts, machine: str) -> None:
    text = refused_by(made(tmp_path, parts), device(machine=machine))
    assert text.endswith(f"built for arm-linux-gnueabihf; the device runs Linux on {machine}")


def test_an_older_glibc(tmp_path: Path, parts: Parts) -> None:
    app = cross.gcc(tmp_path, "int main(void) { return 0; }", *A9)
    bundle = made(tmp_path, parts, app=app)
    text = refused_by(bundle, PI)
    assert text.startswith("bin/edgepack-run: __libc_start_main needs GLIBC_2.34; the device has")
    check_device(bundle, device(glibc="2.34"))


def test_another_c_library(tmp_path: Path, parts: Parts) -> None:
    facts = device(libc="musl", glibc=None)
    assert "puts needs GLIBC_2.4; the device has no glibc (its C library: musl)" in refused_by(
        made(tmp_path, parts), facts
    )


def test_missing_cpu_features(tmp_path: Path, parts: Parts) -> None:
    zynq = device(features=frozenset({"neon", "vfpv3"}), model="Xilinx Zynq")
    text = refused_by(made(tmp_path, parts), zynq)
    assert text == (
        "manifest.json: built for cortex-a53 (rasp3b) with vfpv4, idiva; "
        "the device's CPU has neon, vfpv3"
    )
    check_device(made(tmp_path, parts, "pynq"), zynq)


def test_disk_space(tmp_path: Path, parts: Parts) -> None:
    bundle = made(tmp_path, parts)
    facts = device(free_disk_bytes=1_000_000)
    assert "the device has 1.0 MB free" in refused_by(bundle, facts)
    assert "50.0 MB must be sent" in refused_by(bundle, facts, send_bytes=50_000_000)
    check_device(bundle, facts, send_bytes=0)


def test_memory(tmp_path: Path, parts: Parts) -> None:
    compiled: dict[str, Any] = {
        "library": parts.library,
        "graph": tmp_path / "parts" / "graph.json",
        "params": tmp_path / "parts" / "params.bin",
    }
    small_bundle(tmp_path)
    big = made(
        tmp_path, parts,
        compiled=FakeCompiled(arena_bytes=100_000_000, params_bytes=500_000_000, **compiled),
    )  # fmt: skip
    check_device(big, PI)
    text = refused_by(big, device(memory_bytes=512_000_000))
    assert text == (
        "manifest.json: weights, arena and app take 608.4 MB of memory; the device has 512.0 MB"
    )
    check_device(big, device(memory_available_bytes=300_000_000))
    text = refused_by(big, device(memory_available_bytes=100_000_000))
    assert "arena and app take 108.4 MB of memory; the device has 100.0 MB available now" in text


def test_a_program_for_a_board_without_a_c_library(tmp_path: Path, parts: Parts) -> None:
    bare = get_board("rasp3b").without_libc()
    shared = ("-shared", "-nostdlib", "-Wl,--unresolved-symbols=ignore-all")
    alone = cross.gcc(
        tmp_path, "void _start(void) {}", *A9, "-static", "-nostdlib", "-nostartfiles"
    )
    wants = cross.gcc(tmp_path, "int puts(); void f(void) { puts(); }", *A9, "-fPIC", *shared)
    check_bundle(made(tmp_path / "alone", parts, app=alone, board=bare), bare)
    # It runs where there is a C library, too.
    check_bundle(made(tmp_path / "alone", parts, app=alone, board=bare), get_board("rasp3b"))
    for name, app, words in (
        ("dynamic", parts.app, r"wants the loader /lib/ld-linux-armhf.so.3, the library libc.so.6"),
        ("half", wants, "the symbol puts from elsewhere"),
    ):
        with pytest.raises(GateError, match=words):
            check_bundle(made(tmp_path / name, parts, app=app, board=bare), bare)


def test_a_bundle_for_glibc_is_refused_for_a_board_that_has_none(
    tmp_path: Path, parts: Parts
) -> None:
    bundle = made(tmp_path, parts, "armv7")
    error = refused(bundle, "alpine-armv7")
    assert error.problems[0].text.startswith("built for glibc 2.28 (armv7)")


def test_pages_of_16_kb(tmp_path: Path) -> None:
    """Segments that are 4 KB apart cannot be mapped by every 64-bit ARM kernel."""
    code = "void _start(void) {}"
    flags = ("-static", "-nostdlib", "-nostartfiles", "-Wl,-z,max-page-size=4096")
    app = cross.gcc(tmp_path, code, *flags, prefix=AARCH64)
    bundle = small_bundle(tmp_path, app=app, board=get_board("rk3399").without_libc())
    with pytest.raises(GateError, match=r"aligned to 4096 bytes; there are kernels") as caught:
        check_bundle(bundle, get_board("rk3399"))
    assert "max-page-size" in (caught.value.hint or "")


def test_errors_are_bundle_errors() -> None:
    assert issubclass(GateError, BundleError)


SDOT = """
typedef signed char v16 __attribute__((vector_size(16)));
typedef int v4 __attribute__((vector_size(16)));
v4 product(v4 sum, v16 a, v16 b) {
  __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(a), "w"(b));
  return sum;
}
void count(int *n) { __atomic_fetch_add(n, 1, __ATOMIC_RELAXED); }
"""
A76 = """
[boards.a76]
base = "rk3399"
cpu = "cortex-a76"
clusters = [{ cpu = "cortex-a76", cores = 4, max_mhz = 2000 }]
"""


def test_code_of_a_newer_64_bit_cpu(tmp_path: Path) -> None:
    """Dot products and LSE atomics: for a Cortex-A76's profile, not for a Cortex-A53's."""
    flags = ("-O2", "-shared", "-nostdlib", "-fPIC", "-march=armv8.2-a+dotprod")
    library = cross.gcc(tmp_path, SDOT, *flags, prefix=AARCH64)
    puts = 'int puts(const char *); void _start(void) { puts(""); }'
    app = cross.gcc(tmp_path, puts, "-nostartfiles", prefix=AARCH64)
    for name in ("rk3399", "ultra96", "aarch64"):
        bundle = small_bundle(tmp_path, app=app, library=library, board=name)
        error = refused(bundle, name)
        texts = [problem.text for problem in error.problems]
        cpu = get_board(name).cpu
        assert [re.sub("0x[0-9a-f]+", "0x", text) for text in texts] == [
            f"ldadd/ldset at 0x in count; {cpu} has no atomic memory (LSE) instructions, "
            "and the file has 1",
            f"sdot/udot at 0x in product; {cpu} has no dot product instructions, "
            "and the file has 1",
        ]
    (tmp_path / "mine.toml").write_text(A76)
    a76 = get_board("a76", [tmp_path / "mine.toml"])
    wanted = needed_hwcaps(a76, (library, app))
    # What compilers use for that CPU follows from it; atomics are in this code only.
    assert {"asimddp", "asimdhp"} <= set(a76.hwcaps)
    assert wanted == (*a76.hwcaps, "atomics")
    assert needed_hwcaps(a76, (app,)) == a76.hwcaps
    bundle = small_bundle(tmp_path, app=app, library=library, board="rk3399", hwcaps=wanted)
    check_bundle(bundle, a76)
    has = frozenset({"fp", "asimd", "aes", "crc32", "atomics", "asimdhp"})
    facts = device(machine="aarch64", loaders=("/lib/ld-linux-aarch64.so.1",), features=has)
    assert "cortex-a72 (rk3399) with asimddp; the device's CPU has" in refused_by(bundle, facts)
    check_device(bundle, dataclasses.replace(facts, features=has | {"asimddp"}))

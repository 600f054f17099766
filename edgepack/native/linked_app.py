"""The app as one program with a model's kernels: what runs where there is no C library.

The parts that all models share are built once (`edgepack.native.app`); a model takes a table of its
kernels, made here, and one link.
"""

from __future__ import annotations

import json
import re
import struct
import tempfile
from pathlib import Path

from elftools.elf.elffile import ELFFile

from edgepack.base.paths import data_file
from edgepack.native.app import RuntimeBuild

# Variables of the kernels that the program fills in: see ContextSymbols in
# cpp_runtime/app/src/platform/tvm_ffi/backend.cc.
_CONTEXT = ("__TVMBackend", "__TVMFFI")
# What tells code from constants in 32-bit ARM's sections of code (ELF for the Arm Architecture,
# 5.5.5). The program has no symbols; the gate finds these in a section of their own.
_MAPPING = re.compile(r"\$[adt](\..*)?")
_UNWIND_TABLES = (".eh_frame", ".ARM.exidx", ".ARM.extab")  # also those that relocate them
_LINK = (
    # As the device tool is linked: zig makes one musl for both.
    *("-pie", "-O2", "-s", "-g0"),
    *(
        f"-Wl,{option}"
        for option in (
            "--build-id=none",
            "--gc-sections",
            "-z,relro",
            "-z,now",
            "-z,noexecstack",
        )
    ),
)


def link_app(runtime: RuntimeBuild, kernels: Path, graph: Path, out: Path) -> None:
    """Link the program `out` of `runtime`'s parts, the object file `kernels` and a table of them.

    `graph` is the model's graph.json. Equal files give equal bytes. Raises ToolchainError if the
    link fails.
    """
    toolchain = runtime.toolchain
    with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
        table = Path(name) / "kernel_table.s"
        table.write_text(_table(graph.read_bytes(), kernels), encoding="utf-8")
        code = table.with_suffix(".o")
        bare = Path(name) / "kernels.o"
        bare.write_bytes(_without_unwind_tables(kernels))
        toolchain.run(
            [*toolchain.cc, "-c", "-o", code, table], what="compiling the table of kernels"
        )
        objects, archives = (sorted(runtime.app.glob(kind)) for kind in ("*.o", "*.a"))
        toolchain.run(
            [
                *(*toolchain.cxx, *runtime.flags),
                *_LINK,
                *("-o", out),
                *objects,
                "-Wl,--start-group",
                *archives,
                "-Wl,--end-group",
                *(code, bare),
                *("-T", data_file("cpp_runtime") / "app" / "cmake" / "linked.ld"),
            ],
            what="linking edgepack-run with the kernels",
        )


def _without_unwind_tables(code: Path) -> bytes:
    """An object file whose unwind tables nobody sees: their section headers say SHT_NULL.

    No exception passes through a kernel, and an entry of one would move those of all others.
    """
    content = bytearray(code.read_bytes())
    with code.open("rb") as file:
        elf = ELFFile(file)
        for index, section in enumerate(elf.iter_sections()):
            if section.name.endswith(_UNWIND_TABLES):
                # Elf32_Shdr, Elf64_Shdr: sh_name, then sh_type, 4 bytes each
                struct.pack_into("<I", content, elf["e_shoff"] + index * elf["e_shentsize"] + 4, 0)
    return bytes(content)


def _table(graph: bytes, kernels: Path) -> str:
    """Assembly of what linked_kernels.cc reads: distances, so that nothing of it is relocated."""
    called = {f"__tvm_ffi_{call['kernel']}" for call in json.loads(graph)["calls"]}
    symbols = _symbols(kernels)
    names = sorted(called | {name for name, _ in symbols if name.startswith(_CONTEXT)})
    lines = [
        '.section .rodata.edgepack_kernels,"a"',
        ".p2align 3",
        ".globl edgepack_kernels",
        "edgepack_kernels:",
        f".quad {_fnv1a(graph):#x}",
        f".long {len(names)}",
        ".long symbols - .",
        '.section .rodata.edgepack_symbols,"a"',
        ".p2align 2",
        "symbols:",
    ]
    for index, name in enumerate(names):
        lines += [f".long .Lname{index} - .", f".long {name} - ."]
    for index, name in enumerate(names):
        lines += [f".Lname{index}:", f'.asciz "{name}"']
    lines.append('.section .edgepack.code_map,""')
    for name, offset in symbols:
        if _MAPPING.fullmatch(name):
            lines.append(f".long {offset}, {ord(name[1])}")
    return "".join(f"{line}\n" for line in lines)


def _symbols(code: Path) -> list[tuple[str, int]]:
    """What an object file defines, and where in its section."""
    with code.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        return [
            (symbol.name, symbol["st_value"])
            for symbol in table.iter_symbols()
            if symbol["st_shndx"] != "SHN_UNDEF"
        ]


def _fnv1a(data: bytes) -> int:
    """64 bits: http://www.isthe.com/chongo/tech/comp/fnv/"""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value

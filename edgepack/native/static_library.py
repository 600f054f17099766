"""A static library of one object file, in which nobody sees more than its interface.

What is in it (OpenCV, a C++ library) may be in the program it is linked into as well, in another
version: so all other names are made local to it, as `objcopy --keep-global-symbols` does, which
is not there for every triple.
"""

from __future__ import annotations

import io
import struct
import tempfile
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Section

from edgepack.base.errors import ToolchainError
from edgepack.base.process import run
from edgepack.native.toolchain import Toolchain

_HEAD_BYTES = 60
# elf.h
_LOCAL = 0
_UNDEFINED, _COMMON = 0, 0xFFF2
_NULL_SECTION = 0
_ADDRESS_TAKEN = 0x6FFF4C03  # SHT_LLVM_ADDRSIG: indices of symbols, for a pass of lld's


def make_static_library(
    toolchain: Toolchain,
    flags: Sequence[str],
    code: Path,
    archives: Sequence[Path],
    *,
    keep: Set[str],
    out: Path,
) -> None:
    """The static library `out` of an object file and what it needs of `archives` and C++'s library.

    Only the names in `keep` are its own for others. Raises ToolchainError if the linker fails, or
    one of them is not there.
    """
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        whole = Path(folder) / "edgepack.o"
        words: list[str | Path] = [*toolchain.cxx, *flags, "-r", "-nostdlib", "-g0", "-o", whole]
        words += [code, "-Wl,--start-group", *archives, *_cxx_archives(toolchain, flags)]
        toolchain.run([*words, "-Wl,--end-group"], what="linking the static library")
        made = make_local(whole.read_bytes(), keep)
    if (found := list_exported(made)) != keep:
        raise ToolchainError(
            f"{out.name} does not define what it should: {', '.join(sorted(found ^ keep))}"
        )
    out.write_bytes(archive(whole.name, made, sorted(keep)))


def _cxx_archives(toolchain: Toolchain, flags: Sequence[str]) -> list[Path]:
    """C++'s library and what it needs, as the compiler would link them into a shared library."""
    if toolchain.kind == "gnu":
        names = ("libstdc++.a", "libgcc_eh.a")
        return [
            Path(run([*toolchain.cxx, f"-print-file-name={name}"]).stdout.strip()) for name in names
        ]
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        source = Path(folder) / "empty.cc"
        source.touch()
        # Built at the first link that needs them, and said at each; stripped ones, as the shared
        # library has.
        words: list[str | Path] = [*toolchain.cxx, *flags, "-shared", "-fPIC", "-O2", "-s", "-v"]
        words += [source, "-o", source.with_suffix(".so")]
        done = toolchain.run(words, what="looking for zig's C++ library")
    wanted = {"libc++.a", "libc++abi.a", "libunwind.a"}
    said = map(Path, (done.stdout + done.stderr).split())
    found = {path.name: path for path in said if path.name in wanted}
    if found.keys() != wanted:
        raise ToolchainError("zig does not say where its C++ library is")
    return list(found.values())


def make_local(code: bytes, keep: Set[str]) -> bytes:
    """An object file whose symbols are local, but for those named in `keep` and the undefined ones.

    Its COMDAT groups are none any more: a linker would take a program's own of the same name.
    Raises ToolchainError for what it does not know.
    """
    content = bytearray(code)
    elf = ELFFile(io.BytesIO(code))
    if not elf.little_endian or elf.get_section_by_name(".symtab_shndx") is not None:
        raise ToolchainError("an object file of a form that this does not know")
    order, locals_ = _order(content, elf, keep)
    new = {old: at for at, old in enumerate(order)}
    for index, section in enumerate(elf.iter_sections()):
        header = elf["e_shoff"] + index * elf["e_shentsize"]
        match section["sh_type"]:
            case "SHT_REL" | "SHT_RELA":
                _renumber(content, elf.elfclass, section, new)
            case "SHT_GROUP":
                _put_info(content, elf, header, new[section["sh_info"]])
                struct.pack_into("<I", content, section["sh_offset"], 0)
            case kind if kind in (_ADDRESS_TAKEN, "SHT_LLVM_ADDRSIG"):
                struct.pack_into("<I", content, header + 4, _NULL_SECTION)
            case "SHT_SYMTAB":
                _put_info(content, elf, header, locals_)
    return bytes(content)


@dataclass(frozen=True)
class _TableEntry:
    """An entry of a symbol table (Elf32_Sym, Elf64_Sym), and its place there."""

    place: int
    name: str
    binding: int
    section: int


def _symbols(code: bytes | bytearray, elf: ELFFile) -> list[_TableEntry]:
    table = elf.get_section_by_name(".symtab")
    names = elf.get_section(table["sh_link"])["sh_offset"]
    form = struct.Struct("<IIIBBH" if elf.elfclass == 32 else "<IBBHQQ")
    start = table["sh_offset"]
    found = []
    for place, fields in enumerate(form.iter_unpack(code[start : start + table["sh_size"]])):
        name = names + fields[0]
        info, section = (fields[3], fields[5]) if elf.elfclass == 32 else (fields[1], fields[3])
        text = code[name : code.index(b"\0", name)].decode(errors="replace")
        found.append(_TableEntry(place, text, info >> 4, section))
    return found


def _order(content: bytearray, elf: ELFFile, keep: Set[str]) -> tuple[list[int], int]:
    """Makes symbols local and moves them in front of the others.

    Returns their old places in the new order, and how many are local.
    """
    table = elf.get_section_by_name(".symtab")
    start, size = table["sh_offset"], table["sh_entsize"]
    info_at = 12 if elf.elfclass == 32 else 4
    local: list[int] = []
    others: list[int] = []
    end = start + table["sh_size"]
    entries = [bytearray(content[at : at + size]) for at in range(start, end, size)]
    for symbol in _symbols(content, elf):
        if symbol.section == _COMMON:
            raise ToolchainError(f"{symbol.name}: a common symbol cannot be made local")
        if symbol.binding != _LOCAL and (symbol.section == _UNDEFINED or symbol.name in keep):
            others.append(symbol.place)
            continue
        entry = entries[symbol.place]
        entry[info_at] = _LOCAL << 4 | entry[info_at] & 0xF
        entry[info_at + 1] = 0  # st_other: of a local symbol the visibility is the default
        local.append(symbol.place)
    order = local + others
    content[start:end] = b"".join(entries[place] for place in order)
    return order, len(local)


def _put_info(content: bytearray, elf: ELFFile, header: int, value: int) -> None:
    """Writes sh_info of a section's header (Elf32_Shdr, Elf64_Shdr)."""
    struct.pack_into("<I", content, header + (28 if elf.elfclass == 32 else 44), value)


def _renumber(content: bytearray, bits: int, section: Section, new: dict[int, int]) -> None:
    """The symbols of relocations by their new places (r_info of Elf32_Rel and the others)."""
    form, shift, at = ("<I", 8, 4) if bits == 32 else ("<Q", 32, 8)
    start = section["sh_offset"]
    for place in range(start, start + section["sh_size"], section["sh_entsize"]):
        (info,) = struct.unpack_from(form, content, place + at)
        kind = info & ((1 << shift) - 1)
        struct.pack_into(form, content, place + at, new[info >> shift] << shift | kind)


def list_exported(code: bytes) -> set[str]:
    """The names that an object file defines for others."""
    return {
        symbol.name
        for symbol in _symbols(code, ELFFile(io.BytesIO(code)))
        if symbol.binding != _LOCAL and symbol.section != _UNDEFINED
    }


def archive(name: str, code: bytes, symbols: Sequence[str]) -> bytes:
    """A static library (System V's, as GNU has it) of one object file that defines `symbols`."""
    names = b"".join(symbol.encode() + b"\0" for symbol in symbols)
    names += b"\0" * (len(names) % 2)
    magic = b"!<arch>\n"
    count = len(symbols)
    member = len(magic) + _HEAD_BYTES + 4 + 4 * count + len(names)
    index = struct.pack(f">{1 + count}I", count, *[member] * count) + names
    return magic + _head("/", len(index)) + index + _head(f"{name}/", len(code)) + code


def _head(name: str, size: int) -> bytes:
    """In front of a member: name, time, owner, group, mode, size."""
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{size:<10}`\n".encode()
    assert len(head) == _HEAD_BYTES
    return head

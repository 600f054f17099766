"""What an ELF file is and needs: machine, float ABI, versioned symbols, instructions."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError
from elftools.elf.elffile import ELFFile

from edgepack.base.errors import BundleError
from edgepack.gate import aarch32, aarch64
from edgepack.gate.code import Instruction, function_at, mapped_spans

T = TypeVar("T")

MAGIC = b"\x7fELF"
_EF_ARM_ABI_FLOAT_HARD = 0x400
_EF_ARM_ABI_FLOAT_SOFT = 0x200
_SHF_EXECINSTR = 0x4
# Of an app that was linked with its kernels (edgepack.native.linked_app).
_KERNELS, _CODE_MAP = ".kernels", ".edgepack.code_map"
_SHN_UNDEF, _STB_WEAK = 0, 2
_MAPPING = re.compile(r"\$[atdx](\..*)?")


class NotElfError(BundleError):
    """The file is no ELF file, or one that is damaged or cannot be looked into."""


@dataclass(frozen=True, kw_only=True)
class VersionNeed:
    """A version such as "GLIBC_2.34" of `library` that `symbol` is bound to."""

    version: str
    library: str
    symbol: str

    @property
    def family(self) -> str:
        """ "GLIBC", "GLIBCXX", "CXXABI" or "GCC"."""
        return self.version.partition("_")[0]

    @property
    def number(self) -> tuple[int, ...] | None:
        """(2, 34); None for a name without numbers, such as GLIBC_PRIVATE."""
        text = self.version.partition("_")[2]
        return tuple(map(int, text.split("."))) if re.fullmatch(r"\d+(\.\d+)*", text) else None


@dataclass(frozen=True, kw_only=True)
class ArmAttributes:
    """Numbers of .ARM.attributes (Addenda to, and Errata in, the ABI for the Arm Architecture).

    `cpu_arch`: 10 is v7, 14 is v8-A. `fp_arch`: 3 VFPv3, 5 VFPv4, 7 ARMv8.
    `simd_arch`: 1 NEONv1, 2 with fused multiply-add, 3 ARMv8. `div_use`: 2 means that
    divide instructions are used. `vfp_args`: 1 is the hard-float calling convention.
    """

    cpu_name: str = ""
    cpu_arch: int = 0
    fp_arch: int = 0
    simd_arch: int = 0
    div_use: int = 0
    vfp_args: int = 0


@dataclass(frozen=True, kw_only=True)
class Elf:
    """Facts of an ELF file.

    `machine` is "ARM", "AArch64", "x86-64" or the ELF constant's name. `float_abi` is
    "hard", "soft" or "" (not 32-bit ARM, or no floating point arguments). `needed` are the
    libraries it is linked with, `needs` all versioned symbols it imports, highest version
    first, and `undefined` the symbols that it takes from elsewhere and cannot do without.
    `page_bytes` is the least alignment of a segment that is mapped.
    """

    machine: str
    bits: int
    little_endian: bool
    kind: str
    float_abi: str
    interpreter: str
    needed: tuple[str, ...]
    needs: tuple[VersionNeed, ...]
    undefined: tuple[str, ...]
    page_bytes: int
    attributes: ArmAttributes
    has_code_map: bool

    def highest(self, family: str) -> VersionNeed | None:
        """The highest version of "GLIBC", "GLIBCXX", "CXXABI" or "GCC" that is needed."""
        return next((need for need in self.needs if need.family == family), None)


_MACHINES = {"EM_ARM": "ARM", "EM_AARCH64": "AArch64", "EM_X86_64": "x86-64"}
_SCANNERS = {"EM_ARM": aarch32, "EM_AARCH64": aarch64}
_KINDS = {"ET_EXEC": "executable", "ET_DYN": "shared object", "ET_REL": "object file"}


def read_elf(path: Path) -> Elf:
    """The facts of the ELF file `path`; raises `NotElfError`."""
    return _guarded(path, _read)


def find_instructions(path: Path, families: Sequence[str]) -> list[Instruction]:
    """Instructions of `families` (see edgepack.cpus) in the ARM file `path`.

    Exact in a file with mapping symbols (`Elf.has_code_map`), a good guess in a stripped
    one (see edgepack.gate.aarch32). A file for another machine has none. Raises `NotElfError`.
    """
    return _guarded(path, lambda file: _find(file, families))


def _guarded(path: Path, read: Callable[[ELFFile], T]) -> T:
    """`read`, with whatever pyelftools throws at a damaged file as one error."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotElfError(f"cannot read {path}: {error.strerror}") from None
    if not data.startswith(MAGIC):
        raise NotElfError(f"not an ELF file: {path}")
    try:
        file = ELFFile(io.BytesIO(data))
        if file.num_sections() == 0:
            raise NotElfError(f"{path}: an ELF file without section headers cannot be checked")
        return read(file)
    except (
        *(ELFError, ConstructError, ValueError, LookupError, TypeError, AttributeError),
        *(AssertionError, OverflowError, MemoryError, struct.error),
    ) as error:
        raise NotElfError(f"{path}: damaged ELF file: {error}") from None


def _read(file: ELFFile) -> Elf:
    machine = str(file["e_machine"])
    symbols = _symbols(file)
    attributes = _attributes(file)
    needed, interpreter = [], ""
    page_bytes = 0
    for segment in file.iter_segments():
        if segment["p_type"] == "PT_DYNAMIC":
            needed = [str(tag.needed) for tag in segment.iter_tags("DT_NEEDED")]
        elif segment["p_type"] == "PT_INTERP":
            interpreter = str(segment.get_interp_name())
        elif segment["p_type"] == "PT_LOAD":
            page_bytes = min(page_bytes or segment["p_align"], segment["p_align"])
    float_abi = ""
    if machine == "EM_ARM":
        if file["e_flags"] & _EF_ARM_ABI_FLOAT_HARD or attributes.vfp_args == 1:
            float_abi = "hard"
        elif file["e_flags"] & _EF_ARM_ABI_FLOAT_SOFT or attributes.vfp_args == 0:
            float_abi = "soft"
    return Elf(
        machine=_MACHINES.get(machine, machine),
        bits=int(file.elfclass),
        little_endian=bool(file.little_endian),
        kind=_KINDS.get(str(file["e_type"]), str(file["e_type"])),
        float_abi=float_abi,
        interpreter=interpreter,
        needed=tuple(needed),
        needs=tuple(sorted(_version_needs(file), key=_newest_first)),
        undefined=tuple(symbol.name for symbol in symbols if symbol.is_wanted),
        page_bytes=page_bytes,
        attributes=attributes,
        has_code_map=machine not in _SCANNERS or bool(_mapping_symbols(symbols)),
    )


def _newest_first(need: VersionNeed) -> tuple[object, ...]:
    # A version without a number is private to one build of a library: above all others.
    number = need.number
    return (number is not None, [-part for part in number or ()], need.version, need.symbol)


def _version_needs(file: ELFFile) -> Iterator[VersionNeed]:
    names = {}
    for section in file.iter_sections("SHT_GNU_verneed"):
        for library, versions in section.iter_versions():
            for version in versions:
                names[version["vna_other"]] = (str(version.name), str(library.name))
    if not names:
        return
    bound: dict[int, list[str]] = {index: [] for index in names}
    symbols = next(file.iter_sections("SHT_DYNSYM"))  # of the same length as the versions
    for section in file.iter_sections("SHT_GNU_versym"):
        for index in range(section.num_symbols()):
            version = section.get_symbol(index).entry["ndx"]
            if version in bound:
                bound[version].append(str(symbols.get_symbol(index).name))
    for index, (version, library) in names.items():
        for symbol in bound[index] or [""]:
            yield VersionNeed(version=version, library=library, symbol=symbol)


def _attributes(file: ELFFile) -> ArmAttributes:
    section = next(file.iter_sections("SHT_ARM_ATTRIBUTES"), None)
    if section is None:
        return ArmAttributes()
    values = {
        str(attribute.tag): attribute.value
        for subsection in section.iter_subsections()
        for block in subsection.iter_subsubsections()
        for attribute in block.iter_attributes()
    }
    return ArmAttributes(
        cpu_name=str(values.get("TAG_CPU_NAME", "")),
        cpu_arch=int(values.get("TAG_CPU_ARCH", 0)),
        fp_arch=int(values.get("TAG_FP_ARCH", 0)),
        simd_arch=int(values.get("TAG_ADVANCED_SIMD_ARCH", 0)),
        div_use=int(values.get("TAG_DIV_USE", 0)),
        vfp_args=int(values.get("TAG_ABI_VFP_ARGS", 0)),
    )


@dataclass(frozen=True)
class _Symbol:
    name: str
    value: int
    size: int
    is_function: bool
    section: int
    is_weak: bool

    @property
    def is_wanted(self) -> bool:
        """Whether somebody else must have it."""
        return self.section == _SHN_UNDEF and bool(self.name) and not self.is_weak


def _symbols(file: ELFFile) -> list[_Symbol]:
    """The symbols of a file; of a stripped one, those the dynamic linker needs."""
    found = []
    for kind in ("SHT_SYMTAB", "SHT_DYNSYM"):
        for section in file.iter_sections(kind):
            names = file.get_section(section["sh_link"]).data()
            # pyelftools' own iterator takes seconds for a static program.
            for name, value, size, info, index in _read_symbols(section.data(), file.elfclass):
                text = names[name : names.index(0, name)].decode(errors="replace")
                found.append(
                    _Symbol(text, value, size, info & 0xF == 2, index, info >> 4 == _STB_WEAK)
                )
    return found


def _read_symbols(table: bytes, bits: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Name, value, size, info and section of each Elf32_Sym or Elf64_Sym."""
    if bits == 32:
        for name, value, size, info, _, index in struct.iter_unpack("<IIIBBH", table):
            yield name, value, size, info, index
    else:
        for name, info, _, index, value, size in struct.iter_unpack("<IBBHQQ", table):
            yield name, value, size, info, index


def _mapping_symbols(symbols: Sequence[_Symbol]) -> dict[int, list[tuple[int, str]]]:
    """Section number -> (address, name) of the mapping symbols in it."""
    found: dict[int, list[tuple[int, str]]] = {}
    for symbol in symbols:
        if _MAPPING.fullmatch(symbol.name):
            found.setdefault(symbol.section, []).append((symbol.value, symbol.name))
    return found


def _find(file: ELFFile, families: Sequence[str]) -> list[Instruction]:
    scanner = _SCANNERS.get(file["e_machine"])
    if scanner is None or not file.little_endian or not families:
        return []
    thumb_bit = 1 if scanner is aarch32 else 0
    symbols = _symbols(file)
    functions = sorted(
        (symbol.value & ~thumb_bit, symbol.size, symbol.name)
        for symbol in symbols
        if symbol.is_function and symbol.size
    )
    mapping = _mapping_symbols(symbols)
    code_map = _code_map(file)
    starts: dict[int, str] = {}
    if not mapping and scanner is aarch32:
        starts.update(dict.fromkeys(_unwind_starts(file), ""))
        starts.update(
            (symbol.value & ~1, "thumb" if symbol.value & 1 else "arm")
            for symbol in symbols
            if symbol.is_function
        )
    found = []
    for number, section in enumerate(file.iter_sections()):
        if not section["sh_flags"] & _SHF_EXECINSTR or section["sh_type"] != "SHT_PROGBITS":
            continue
        data, base = section.data(), section["sh_addr"]
        if section.name == _KERNELS and code_map:
            marks = [(base + offset, mark) for offset, mark in code_map]
            spans = mapped_spans(marks, base, base + len(data))
        elif mapping:
            first = "arm" if scanner is aarch32 else "a64"
            spans = mapped_spans(mapping.get(number, []), base, base + len(data), first=first)
        else:
            spans = scanner.guessed_spans(data, base, starts)
        found += scanner.scan(data, base, spans, families)
    return [
        replace(instruction, function=function_at(functions, instruction.address))
        for instruction in found
    ]


def _code_map(file: ELFFile) -> list[tuple[int, str]]:
    """The mapping symbols of the kernels in a static app: offsets in their section, and names."""
    section = file.get_section_by_name(_CODE_MAP)
    if section is None:
        return []
    return [(offset, f"${mark:c}") for offset, mark in struct.iter_unpack("<II", section.data())]


def _unwind_starts(file: ELFFile) -> list[int]:
    """Where functions start, from the unwind table (.ARM.exidx), which strip keeps.

    Its entries are two words, the first a 31-bit offset from itself to the function.
    """
    starts = []
    for section in file.iter_sections("SHT_ARM_EXIDX"):
        data = section.data()
        for offset in range(0, len(data) - 7, 8):
            (word,) = struct.unpack_from("<I", data, offset)
            distance = (word & 0x7FFFFFFF) - ((word & 0x40000000) << 1)
            starts.append(section["sh_addr"] + offset + distance)
    return starts

"""A linker for kernels: object files of TVM's LLVM -> one shared library, without a compiler.

It does what a library of kernels needs, for 32- and 64-bit ARM and for x86-64. Sections that
nothing refers to are left out, names are bound inside of the library, and calls of the C library go
through one table that the dynamic linker fills in at the start (what `-Bsymbolic -z now` does in
others). Thread-local variables and constructors are refused; tables for exceptions are left out.

ELF: System V gABI; ELF for the Arm Architecture (IHI 0044), for the Arm 64-bit Architecture
(IHI 0056), and the System V ABI's AMD64 supplement.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from edgepack.base.errors import ToolchainError

LIBC = frozenset({"memcpy", "memmove", "memset", "memcmp"})
"""What kernels take from the C library."""
_FLOAT_FUNCTIONS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "cos", "cosh"),
    *("erf", "erfc", "exp", "exp2", "expm1", "fabs", "floor", "fma", "fmax", "fmin", "fmod"),
    *("hypot", "ldexp", "log", "log10", "log1p", "log2", "nearbyint", "pow", "rint", "round"),
    *("sin", "sincos", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
LIBM = frozenset(name + end for name in _FLOAT_FUNCTIONS for end in ("", "f"))
"""What they take from its mathematical library: functions that glibc has had since 2.4."""
_GIVEN = "TVMFFI"  # how names begin that the program has which loads the library
_EXPORTED = ("__tvm_ffi_", "__TVM")  # kernels, and the variables that the program fills in

# elf.h
_SHN_UNDEF, _SHN_ABS, _SHN_COMMON = 0, 0xFFF1, 0xFFF2
_PROGBITS, _SYMTAB, _STRTAB, _RELA, _HASH, _DYNAMIC, _NOBITS, _REL, _DYNSYM = (
    1,
    2,
    3,
    4,
    5,
    6,
    8,
    9,
    11,
)
_INIT_ARRAY, _FINI_ARRAY, _GROUP = 14, 15, 17
_ARM_ATTRIBUTES = 0x70000003
_WRITE, _ALLOC, _EXEC, _TLS = 1, 2, 4, 0x400
_LOCAL, _GLOBAL, _WEAK = 0, 1, 2
_OBJECT, _FUNC, _SECTION = 1, 2, 3
_COMDAT = 1
_UNWIND = (".eh_frame", ".ARM.exidx", ".ARM.extab")
_DT_FLAGS_1 = 0x6FFFFFFB


class LinkError(ToolchainError):
    """The object files hold what this linker does not know, or ask for what nobody has."""


# What a relocation is taken against: the symbol; a stub, if it is another library's; its entry in
# the table of addresses; and a word that holds an address, which the dynamic linker puts there.
_SYMBOL, _CALL, _TABLE, _WORD, _NOTHING = range(5)

Put = Callable[[bytearray, int, int, int], None]
"""Writes into a section, at an offset, the distance of a target from a place, as a form has it."""
Addend = Callable[[bytearray, int], int]


class _Form(NamedTuple):
    """A kind of relocation; `addend` reads it from the section if the entry does not hold it."""

    against: int
    put: Put | None = None
    addend: Addend | None = None


def _fits(value: int, bits: int) -> int:
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise LinkError(f"a distance of {value} bytes does not fit {bits} bits")
    return value


def _word_at(data: bytearray, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _signed(value: int, bits: int) -> int:
    return (value ^ 1 << bits - 1) - (1 << bits - 1) if value < 1 << bits else value


def _set_bits(data: bytearray, at: int, mask: int, value: int) -> None:
    struct.pack_into("<I", data, at, _word_at(data, at) & ~mask | value & mask)


def _addend32(data: bytearray, at: int) -> int:
    return int(struct.unpack_from("<i", data, at)[0])


def _relative32(data: bytearray, at: int, target: int, place: int) -> None:
    struct.pack_into("<i", data, at, _fits(target - place, 32))


def _relative64(data: bytearray, at: int, target: int, place: int) -> None:
    struct.pack_into("<q", data, at, target - place)


def _branch_addend(data: bytearray, at: int) -> int:
    return _signed(_word_at(data, at) & 0xFFFFFF, 24) * 4


def _arm_branch(data: bytearray, at: int, target: int, place: int) -> None:
    if target & 3:
        raise LinkError("a call of Thumb code")
    _set_bits(data, at, 0xFFFFFF, _fits(target - place, 26) >> 2)


def _movw_addend(data: bytearray, at: int) -> int:
    word = _word_at(data, at)
    return _signed(word >> 4 & 0xF000 | word & 0xFFF, 16)


def _arm_move(shift: int) -> Put:
    def put(data: bytearray, at: int, target: int, place: int) -> None:
        value = target - place >> shift
        _set_bits(data, at, 0xF0FFF, (value & 0xF000) << 4 | value & 0xFFF)

    return put


_ARM = {
    0: _Form(_NOTHING),
    40: _Form(_NOTHING),  # V4BX
    2: _Form(_WORD, None, _addend32),  # ABS32
    38: _Form(_WORD, None, _addend32),  # TARGET1
    3: _Form(_SYMBOL, _relative32, _addend32),  # REL32
    28: _Form(_CALL, _arm_branch, _branch_addend),  # CALL
    29: _Form(_CALL, _arm_branch, _branch_addend),  # JUMP24
    45: _Form(_SYMBOL, _arm_move(0), _movw_addend),  # MOVW_PREL_NC
    46: _Form(_SYMBOL, _arm_move(16), _movw_addend),  # MOVT_PREL
    96: _Form(_TABLE, _relative32, _addend32),  # GOT_PREL
}


def _a64_branch(bits: int, low: int) -> Put:
    def put(data: bytearray, at: int, target: int, place: int) -> None:
        mask = (1 << bits) - 1 << low
        _set_bits(data, at, mask, _fits(target - place, bits + 2) >> 2 << low)

    return put


def _a64_address(pages: bool) -> Put:
    def put(data: bytearray, at: int, target: int, place: int) -> None:
        value = (target >> 12) - (place >> 12) if pages else target - place
        value = _fits(value, 21)
        _set_bits(data, at, 0x60FFFFE0, (value & 3) << 29 | (value >> 2 & 0x7FFFF) << 5)

    return put


def _a64_low12(shift: int) -> Put:
    def put(data: bytearray, at: int, target: int, _: int) -> None:
        if target & (1 << shift) - 1:
            raise LinkError(f"an address that is not a multiple of {1 << shift}")
        _set_bits(data, at, 0xFFF << 10, (target & 0xFFF) >> shift << 10)

    return put


_AARCH64 = {
    0: _Form(_NOTHING),
    257: _Form(_WORD),  # ABS64
    260: _Form(_SYMBOL, _relative64),  # PREL64
    261: _Form(_SYMBOL, _relative32),  # PREL32
    273: _Form(_SYMBOL, _a64_branch(19, 5)),  # LD_PREL_LO19
    274: _Form(_SYMBOL, _a64_address(False)),  # ADR_PREL_LO21
    275: _Form(_SYMBOL, _a64_address(True)),  # ADR_PREL_PG_HI21
    277: _Form(_SYMBOL, _a64_low12(0)),  # ADD_ABS_LO12_NC
    278: _Form(_SYMBOL, _a64_low12(0)),  # LDST8_ABS_LO12_NC
    279: _Form(_SYMBOL, _a64_branch(14, 5)),  # TSTBR14
    280: _Form(_SYMBOL, _a64_branch(19, 5)),  # CONDBR19
    282: _Form(_CALL, _a64_branch(26, 0)),  # JUMP26
    283: _Form(_CALL, _a64_branch(26, 0)),  # CALL26
    284: _Form(_SYMBOL, _a64_low12(1)),  # LDST16_ABS_LO12_NC
    285: _Form(_SYMBOL, _a64_low12(2)),  # LDST32_ABS_LO12_NC
    286: _Form(_SYMBOL, _a64_low12(3)),  # LDST64_ABS_LO12_NC
    299: _Form(_SYMBOL, _a64_low12(4)),  # LDST128_ABS_LO12_NC
    311: _Form(_TABLE, _a64_address(True)),  # ADR_GOT_PAGE
    312: _Form(_TABLE, _a64_low12(3)),  # LD64_GOT_LO12_NC
    314: _Form(_CALL, _relative32),  # PLT32
}
_X86_64 = {
    0: _Form(_NOTHING),
    1: _Form(_WORD),  # 64
    2: _Form(_SYMBOL, _relative32),  # PC32
    4: _Form(_CALL, _relative32),  # PLT32
    9: _Form(_TABLE, _relative32),  # GOTPCREL
    24: _Form(_SYMBOL, _relative64),  # PC64
    41: _Form(_TABLE, _relative32),  # GOTPCRELX
    42: _Form(_TABLE, _relative32),  # REX_GOTPCRELX
}


def _arm_stub(at: int, entry: int) -> bytes:
    # ldr ip, [pc, #4]; add ip, pc, ip; ldr pc, [ip]; .word entry - (at + 12)
    return struct.pack("<IIIi", 0xE59FC004, 0xE08FC00C, 0xE59CF000, _fits(entry - at - 12, 32))


def _a64_stub(at: int, entry: int) -> bytes:
    # adrp x16, entry; ldr x17, [x16, :lo12:entry]; br x17; nop
    code = bytearray(struct.pack("<IIII", 0x90000010, 0xF9400211, 0xD61F0220, 0xD503201F))
    _a64_address(True)(code, 0, entry, at)
    _a64_low12(3)(code, 4, entry, at)
    return bytes(code)


def _x86_stub(at: int, entry: int) -> bytes:
    # jmp *entry(%rip), and what traps
    return b"\xff\x25" + struct.pack("<i", _fits(entry - at - 6, 32)) + b"\xcc" * 10


_STUB_BYTES = 16


@dataclass(frozen=True)
class _Machine:
    """An architecture: `e_machine`, its relocations, and those that the dynamic linker does."""

    number: int
    bits: int
    page: int
    forms: Mapping[int, _Form]
    stub: Callable[[int, int], bytes]
    word: int  # an address of the library or another's, in a word
    entry: int  # another's address, in the table
    relative: int  # an address of the library
    flags: int = 0  # e_flags beside those of the object files
    code_marks: tuple[tuple[int, str], ...] = ()  # offsets in a stub: mapping symbols

    @property
    def wide(self) -> bool:
        return self.bits == 64

    @property
    def word_bytes(self) -> int:
        return self.bits // 8


# Pages of 64 KB: the largest that 64-bit ARM's kernels have; x86-64's are of 4.
_MACHINES = {
    # EF_ARM_ABI_FLOAT_HARD: as all boards of 32 bits have it
    40: _Machine(40, 32, 0x10000, _ARM, _arm_stub, 2, 21, 23, 0x400, ((0, "$a"), (12, "$d"))),
    183: _Machine(183, 64, 0x10000, _AARCH64, _a64_stub, 257, 1025, 1027, 0, ((0, "$x"),)),
    62: _Machine(62, 64, 0x1000, _X86_64, _x86_stub, 1, 6, 8),
}


@dataclass(eq=False)
class _Section:
    """A section of an input file, and its place in the library."""

    file: int
    name: str
    kind: int
    flags: int
    align: int
    size: int
    data: bytearray
    relocations: list[tuple[int, int, int, int | None]]  # offset, type, symbol, addend
    address: int = 0
    out: int = 0


class _LinkSymbol(NamedTuple):
    name: str
    binding: int
    kind: int
    value: int
    size: int
    section: _Section | None  # None: somebody else's
    absolute: bool


@dataclass
class _File:
    title: str
    machine: _Machine
    flags: int
    sections: list[_Section | None]
    symbols: list[_LinkSymbol]
    groups: list[tuple[str, list[int]]]
    attributes: bytes
    refused: str  # a section that kernels have not


def link_library(
    objects: Sequence[Path], out: Path, *, soname: str, builtins: Path | None = None
) -> None:
    """Link the object files of kernels into the shared library `out`.

    Of `builtins`, the object file or archive of a compiler's own functions (32-bit ARM has no
    division, say), it takes what is called. Equal files give equal bytes. Raises LinkError.
    """
    files = [_read(path.read_bytes(), path.name) for path in objects]
    spare = [] if builtins is None else list(_members(builtins))
    if not files:
        raise LinkError("no object file to link")
    machine = files[0].machine
    if odd := next((file for file in files if file.refused), None):
        raise LinkError(f"{odd.title}: {odd.refused}: kernels have no such section")
    for file in [*files, *spare]:
        if file.machine is not machine:
            raise LinkError(f"{file.title}: for another machine than {files[0].title}")
    try:
        out.write_bytes(_Link(files, spare, soname).run())
    except (struct.error, ValueError, LookupError, OverflowError) as error:
        raise LinkError(f"{objects[0].parent}: damaged object files: {error}") from None


def _members(path: Path) -> Iterator[_File]:
    """The object files of an archive (System V's, as GNU and LLVM have it), or the one it is."""
    data = path.read_bytes()
    if data.startswith(b"\x7fELF"):
        yield _read(data, path.name)
        return
    if not data.startswith(b"!<arch>\n"):
        raise LinkError(f"{path}: neither an object file nor an archive")
    at = 8
    while at + 60 <= len(data):
        size = int(data[at + 48 : at + 58])
        member = data[at + 60 : at + 60 + size]
        if member.startswith(b"\x7fELF"):
            yield _read(member, f"{path.name} at {at}")
        at += 60 + size + size % 2


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()


def _read(data: bytes, title: str) -> _File:
    try:
        return _read_checked(data, title)
    except (struct.error, ValueError, LookupError) as error:
        raise LinkError(f"{title}: damaged object file: {error}") from None


def _read_checked(data: bytes, title: str) -> _File:
    if data[:4] != b"\x7fELF" or data[5] != 1:
        raise LinkError(f"{title}: not a little-endian ELF file")
    kind, number = struct.unpack_from("<HH", data, 16)
    if kind != 1 or number not in _MACHINES:
        raise LinkError(f"{title}: not an object file for ARM or x86-64")
    machine = _MACHINES[number]
    if data[4] != (2 if machine.wide else 1):
        raise LinkError(f"{title}: its words have not {machine.bits} bits")
    head = struct.unpack_from("<IQQQIHHHHHH" if machine.wide else "<IIIIIHHHHHH", data, 20)
    table, flags, size, count, names_at = head[3], head[4], head[8], head[9], head[10]
    form = "<IIQQQQIIQQ" if machine.wide else "<IIIIIIIIII"
    headers = [struct.unpack_from(form, data, table + i * size) for i in range(count)]

    def content(header: tuple[int, ...]) -> bytes:
        if header[1] == _NOBITS:
            return b""
        found = data[header[4] : header[4] + header[5]]
        if len(found) < header[5]:
            raise LinkError(f"{title}: damaged object file: a section is cut off")
        return found

    names = content(headers[names_at])
    sections: list[_Section | None] = []
    attributes, refused = b"", ""
    for header in headers:
        name = _text(names, header[0])
        sections.append(None)
        if header[1] == _ARM_ATTRIBUTES:
            attributes = content(header)
        if not header[2] & _ALLOC or name.startswith(_UNWIND):
            continue
        if header[1] in (_INIT_ARRAY, _FINI_ARRAY) or header[2] & _TLS:
            refused = name
            continue
        if header[8] > machine.page:
            raise LinkError(f"{title}: {name}: aligned to {header[8]} bytes")
        sections[-1] = _Section(
            file=0,
            name=name,
            kind=header[1],
            flags=header[2] & (_WRITE | _ALLOC | _EXEC),
            align=max(header[8], 1),
            size=header[5],
            data=bytearray(content(header)),
            relocations=[],
        )
    symbols, groups = _read_symbols(machine, headers, content, sections)
    for header in headers:
        if header[1] in (_REL, _RELA) and (of := sections[header[7]]) is not None:
            of.relocations.extend(_relocations(machine, header[1], content(header)))
    return _File(title, machine, flags, sections, symbols, groups, attributes, refused)


def _relocations(
    machine: _Machine, kind: int, data: bytes
) -> Iterator[tuple[int, int, int, int | None]]:
    if machine.wide:
        for at, info, addend in struct.iter_unpack("<QQq", data):
            yield at, info & 0xFFFFFFFF, info >> 32, addend
    elif kind == _REL:
        for at, info in struct.iter_unpack("<II", data):
            yield at, info & 0xFF, info >> 8, None
    else:
        for at, info, addend in struct.iter_unpack("<IIi", data):
            yield at, info & 0xFF, info >> 8, addend


def _read_symbols(
    machine: _Machine,
    headers: Sequence[tuple[int, ...]],
    content: Callable[[tuple[int, ...]], bytes],
    sections: Sequence[_Section | None],
) -> tuple[list[_LinkSymbol], list[tuple[str, list[int]]]]:
    """The symbols, and the groups of which one is enough, by name."""
    symbols: list[_LinkSymbol] = []
    for header in headers:
        if header[1] != _SYMTAB:
            continue
        names = content(headers[header[6]])
        for fields in struct.iter_unpack("<IBBHQQ" if machine.wide else "<IIIBBH", content(header)):
            if machine.wide:
                name, info, _, index, value, size = fields
            else:
                name, value, size, info, _, index = fields
            inside = index not in (_SHN_UNDEF, _SHN_ABS, _SHN_COMMON)
            symbols.append(
                _LinkSymbol(
                    _text(names, name),
                    info >> 4,
                    info & 0xF,
                    value,
                    size,
                    sections[index] if inside else None,
                    index in (_SHN_ABS, _SHN_COMMON) or (inside and sections[index] is None),
                )
            )
    groups = []
    for header in headers:
        if header[1] == _GROUP:
            flag, *members = struct.unpack(f"<{header[5] // 4}I", content(header))
            if flag & _COMDAT:
                groups.append((symbols[header[7]].name, members))
    return symbols, groups


@dataclass
class _Out:
    """A section of the library."""

    name: str
    kind: int
    flags: int
    align: int = 1
    size: int = 0
    content: bytes | bytearray = b""
    link: str = ""
    info: int = 0
    entry: int = 0
    address: int = 0
    offset: int = 0
    parts: list[_Section] = field(default_factory=list)

    def add(self, part: _Section) -> None:
        self.align = max(self.align, part.align)
        part.out = self.size = -(-self.size // part.align) * part.align
        self.size += part.size
        self.parts.append(part)


_TEXT, _RODATA, _RELRO, _DATA, _BSS = ".text", ".rodata", ".data.rel.ro", ".data", ".bss"
_READ, _READ_EXEC, _READ_WRITE = _ALLOC, _ALLOC | _EXEC, _ALLOC | _WRITE


class _Link:
    """One link, from files to the bytes of the library."""

    def __init__(self, files: Sequence[_File], spare: Sequence[_File], soname: str) -> None:
        self._files, self._all = files, [*files, *spare]
        self._machine, self._soname = files[0].machine, soname
        self._names = _names(files, spare)
        self._live: list[_Section] = []
        self._imports: dict[str, int] = {}  # name -> index among the dynamic symbols
        self._table: dict[_LinkSymbol, int] = {}  # symbol -> index in the table of addresses
        self._stubs: dict[_LinkSymbol, int] = {}
        self._words = 0
        self._moved: list[tuple[int, int, int, int]] = []  # place, type, symbol, addend

    def run(self) -> bytes:
        self._mark()
        exported = self._exports()
        outs = self._lay_out(exported)
        for section in self._live:
            for relocation in section.relocations:
                self._apply(section, relocation)
        self._fill(outs, exported)
        return self._write(outs)

    def _defined(self, file: _File, index: int) -> _LinkSymbol:
        """What a file's symbol is: its own if it is local, else what its name is bound to."""
        symbol = file.symbols[index]
        return symbol if symbol.binding == _LOCAL else self._names.setdefault(symbol.name, symbol)

    def _exports(self) -> list[_LinkSymbol]:
        own = {symbol for file in self._files for symbol in file.symbols}
        return [
            symbol
            for name, symbol in sorted(self._names.items())
            if name.startswith(_EXPORTED) and symbol.section is not None and symbol in own
        ]

    def _mark(self) -> None:
        """Finds what is reached from the exported names, and what that asks for."""
        where = {
            id(section): file
            for file in self._all
            for section in file.sections
            if section is not None
        }
        waiting = [symbol.section for symbol in self._exports() if symbol.section is not None]
        seen = {id(section) for section in waiting}
        while waiting:
            section = waiting.pop()
            file = where[id(section)]
            for at, kind, index, _ in section.relocations:
                form = self._machine.forms.get(kind)
                if form is None:
                    raise LinkError(
                        f"{file.title}: {section.name}: unknown relocation {kind} at {at:#x}"
                    )
                if form.against == _NOTHING:
                    continue
                symbol = self._defined(file, index)
                self._note(file, section, form, symbol)
                if symbol.section is not None and id(symbol.section) not in seen:
                    seen.add(id(symbol.section))
                    waiting.append(symbol.section)
        for number, file in enumerate(self._all):
            for one in file.sections:
                if one is not None and id(one) in seen:
                    one.file = number
                    self._live.append(one)

    def _note(self, file: _File, section: _Section, form: _Form, symbol: _LinkSymbol) -> None:
        """What one relocation asks for."""
        foreign = symbol.section is None
        if foreign:
            if symbol.absolute:
                raise LinkError(f"{file.title}: {symbol.name} is in no section of code or data")
            if symbol.name not in LIBC | LIBM and not symbol.name.startswith(_GIVEN):
                raise LinkError(
                    f"{file.title}: no such function: {symbol.name}",
                    hint="it is a compiler's own: pip install 'edgepack[build]' brings one",
                )
            self._imports.setdefault(symbol.name, len(self._imports) + 1)
        if form.against == _TABLE or (foreign and form.against == _CALL):
            self._table.setdefault(symbol, len(self._table))
            if form.against == _CALL:
                self._stubs.setdefault(symbol, len(self._stubs))
        elif form.against == _WORD:
            if not section.flags & _WRITE:
                raise LinkError(f"{file.title}: {section.name} holds an address and is read-only")
            self._words += 1
        elif foreign:
            raise LinkError(f"{file.title}: {symbol.name} is used as if it were in this library")

    # ---- places

    def _lay_out(self, exported: Sequence[_LinkSymbol]) -> list[_Out]:
        wide, word = self._machine.wide, self._machine.word_bytes
        relocations = len(self._table) + self._words
        symbols = 1 + len(self._imports) + len(exported)
        rel, rel_kind, rel_entry = (".rela.dyn", _RELA, 24) if wide else (".rel.dyn", _REL, 8)
        strings = self._strings = _Strings()
        needed = [
            library
            for library, names in (("libm.so.6", LIBM), ("libc.so.6", LIBC))
            if names & self._imports.keys()
        ]
        self._tags = len(needed) + 12
        for text in [self._soname, *needed, *self._imports, *(one.name for one in exported)]:
            strings.add(text)
        self._needed = needed
        dynsym_entry = 24 if wide else 16
        outs = [
            _Out(".hash", _HASH, _READ, 4, 4 * (2 + 1 + symbols), link=".dynsym", entry=4),
            _Out(
                ".dynsym",
                _DYNSYM,
                _READ,
                word,
                dynsym_entry * symbols,
                link=".dynstr",
                info=1,
                entry=dynsym_entry,
            ),
            _Out(".dynstr", _STRTAB, _READ, 1, len(strings.data)),
            _Out(
                rel, rel_kind, _READ, word, rel_entry * relocations, link=".dynsym", entry=rel_entry
            ),
            _Out(_RODATA, _PROGBITS, _READ),
            _Out(_TEXT, _PROGBITS, _READ_EXEC),
            _Out(".plt", _PROGBITS, _READ_EXEC, 16, _STUB_BYTES * len(self._stubs)),
            _Out(_RELRO, _PROGBITS, _READ_WRITE),
            _Out(
                ".dynamic",
                _DYNAMIC,
                _READ_WRITE,
                word,
                2 * word * self._tags,
                link=".dynstr",
                entry=2 * word,
            ),
            _Out(".got", _PROGBITS, _READ_WRITE, word, word * len(self._table), entry=word),
            _Out(_DATA, _PROGBITS, _READ_WRITE),
            _Out(_BSS, _NOBITS, _READ_WRITE),
        ]
        by_name = {out.name: out for out in outs}
        for section in self._live:
            by_name[_place_of(section)].add(section)
        at = self._headers_bytes()
        access = _READ
        page = self._machine.page
        address = at
        for out in outs:
            if out.flags != access:  # another segment: the next page, at the same place in it
                access = out.flags
                address = -(-address // page) * page + at % page
            elif out.name == _DATA:  # what was before is read-only once it is filled in
                address = -(-address // page) * page + at % page
            step = -address % out.align
            address, at = address + step, at + step
            out.address, out.offset = address, at
            for part in out.parts:
                part.address = address + part.out
            address += out.size
            at += 0 if out.kind == _NOBITS else out.size
        self._outs = by_name
        self._file_bytes = at
        return outs

    def _headers_bytes(self) -> int:
        return (64 + 56 * self._segments()) if self._machine.wide else (52 + 32 * self._segments())

    def _segments(self) -> int:
        return 7

    # ---- content

    def _address(self, symbol: _LinkSymbol) -> int:
        assert symbol.section is not None
        return symbol.section.address + symbol.value

    def _entry(self, symbol: _LinkSymbol) -> int:
        return self._outs[".got"].address + self._table[symbol] * self._machine.word_bytes

    def _stub_at(self, symbol: _LinkSymbol) -> int:
        return self._outs[".plt"].address + self._stubs[symbol] * _STUB_BYTES

    def _apply(self, section: _Section, relocation: tuple[int, int, int, int | None]) -> None:
        at, kind, index, addend = relocation
        file = self._all[section.file]
        form = self._machine.forms[kind]
        if form.against == _NOTHING:
            return
        symbol = self._defined(file, index)
        data = section.data
        if at + 4 > len(data):
            raise LinkError(f"{file.title}: {section.name}: a relocation outside of it")
        if addend is None:
            assert form.addend is not None
            addend = form.addend(data, at)
        place = section.address + at
        if form.against == _WORD:
            self._word(data, at, symbol, addend, place)
            return
        if form.against == _TABLE:
            target = self._entry(symbol)
        elif symbol.section is None:
            target = self._stub_at(symbol)
        else:
            target = self._address(symbol)
        assert form.put is not None
        try:
            form.put(data, at, target + addend, place)
        except LinkError as error:
            raise LinkError(f"{file.title}: {section.name}: {symbol.name}: {error}") from None

    def _word(self, data: bytearray, at: int, symbol: _LinkSymbol, addend: int, place: int) -> None:
        """An address in a word: a number and a relocation that the dynamic linker does."""
        if symbol.section is None:
            self._moved.append((place, self._machine.word, self._imports[symbol.name], addend))
            value = addend
        else:
            value = self._address(symbol) + addend
            self._moved.append((place, self._machine.relative, 0, value))
        if not self._machine.wide:  # its relocations have no addend of their own
            struct.pack_into("<I", data, at, value & 0xFFFFFFFF)

    def _fill(self, outs: Sequence[_Out], exported: Sequence[_LinkSymbol]) -> None:
        """The content of the sections that are made here, once all places are known."""
        machine = self._machine
        words = bytearray(self._outs[".got"].size)
        for symbol, index in self._table.items():
            place = self._entry(symbol)
            if symbol.section is None:
                self._moved.append((place, machine.entry, self._imports[symbol.name], 0))
            else:
                value = self._address(symbol)
                self._moved.append((place, machine.relative, 0, value))
                struct.pack_into(
                    "<Q" if machine.wide else "<I", words, index * machine.word_bytes, value
                )
        stubs = b"".join(machine.stub(self._stub_at(one), self._entry(one)) for one in self._stubs)
        for out in outs:
            if out.parts and out.kind != _NOBITS:
                out.content = content = bytearray(out.size)
                for part in out.parts:
                    content[part.out : part.out + part.size] = part.data
        self._outs[".got"].content = words
        self._outs[".plt"].content = stubs
        self._outs[".dynstr"].content = bytes(self._strings.data)
        self._outs[".dynsym"].content, self._outs[".hash"].content = self._dynamic_symbols(exported)
        form = "<QQq" if machine.wide else "<II"
        content = bytearray()
        for place, kind, symbol_index, addend in sorted(self._moved):
            info = symbol_index << (32 if machine.wide else 8) | kind
            content += struct.pack(form, place, info, *([addend] if machine.wide else []))
        self._relocations.content = content
        self._outs[".dynamic"].content = self._dynamic()

    @property
    def _relocations(self) -> _Out:
        return self._outs[".rela.dyn" if self._machine.wide else ".rel.dyn"]

    def _dynamic_symbols(self, exported: Sequence[_LinkSymbol]) -> tuple[bytes, bytes]:
        numbers = {name: index for index, name in enumerate(self._section_names())}
        names = ["", *self._imports, *(symbol.name for symbol in exported)]
        table = bytearray(self._symbol(0, 0, 0, 0, 0, 0))
        for name in self._imports:
            table += self._symbol(self._strings.add(name), _GLOBAL, 0, 0, 0, 0)
        for symbol in exported:
            assert symbol.section is not None
            table += self._symbol(
                self._strings.add(symbol.name),
                _GLOBAL,
                symbol.kind,
                numbers[_place_of(symbol.section)],
                self._address(symbol),
                symbol.size,
            )
        # One chain through all of them: names are looked up once, when the library is loaded.
        chain = [*range(2, len(names)), 0]
        first = 1 if len(names) > 1 else 0
        return bytes(table), struct.pack(
            f"<{3 + len(names)}I", 1, len(names), first, 0, *chain[: len(names) - 1]
        )

    def _symbol(
        self, name: int, binding: int, kind: int, section: int, value: int, size: int
    ) -> bytes:
        info = binding << 4 | kind
        if self._machine.wide:
            return struct.pack("<IBBHQQ", name, info, 0, section, value, size)
        return struct.pack("<IIIBBH", name, value, size, info, 0, section)

    def _dynamic(self) -> bytes:
        outs, wide = self._outs, self._machine.wide
        relocations = self._relocations
        tags = [
            *((1, self._strings.add(name)) for name in self._needed),  # NEEDED
            (14, self._strings.add(self._soname)),  # SONAME
            (4, outs[".hash"].address),
            (5, outs[".dynstr"].address),
            (6, outs[".dynsym"].address),
            (10, outs[".dynstr"].size),
            (11, outs[".dynsym"].entry),
            (7 if wide else 17, relocations.address),  # RELA, REL
            (8 if wide else 18, relocations.size),
            (9 if wide else 19, relocations.entry),
            (30, 8),  # FLAGS: BIND_NOW
            (_DT_FLAGS_1, 1),  # NOW
            (0, 0),
        ]
        assert len(tags) == self._tags
        return b"".join(struct.pack("<QQ" if wide else "<II", *tag) for tag in tags)

    # ---- the file

    def _section_names(self) -> list[str]:
        return ["", *self._outs, *([".ARM.attributes"] * bool(self._attributes())), *_TABLES]

    def _attributes(self) -> bytes:
        return self._files[0].attributes

    def _write(self, outs: Sequence[_Out]) -> bytes:
        content = bytearray(self._file_bytes)
        for out in outs:
            if out.kind != _NOBITS:
                content[out.offset : out.offset + out.size] = out.content
        extra = []
        if self._attributes():
            extra.append(_Out(".ARM.attributes", _ARM_ATTRIBUTES, 0, content=self._attributes()))
        symbols, names, locals_ = self._symbol_table()
        entry = self._outs[".dynsym"].entry
        extra += [
            _Out(
                ".symtab", _SYMTAB, 0, 8, content=symbols, link=".strtab", info=locals_, entry=entry
            ),
            _Out(".strtab", _STRTAB, 0, content=names),
        ]
        headers = _Strings()
        numbers = {name: index for index, name in enumerate(self._section_names())}
        for name in numbers:
            headers.add(name)
        extra.append(_Out(".shstrtab", _STRTAB, 0, content=bytes(headers.data)))
        for out in extra:
            content.extend(bytes(-len(content) % out.align))
            out.offset, out.size = len(content), len(out.content)
            content += out.content
        content.extend(bytes(-len(content) % 8))
        table = len(content)
        form = "<IIQQQQIIQQ" if self._machine.wide else "<IIIIIIIIII"
        content += bytes(struct.calcsize(form))
        for out in [*outs, *extra]:
            content += struct.pack(
                form,
                headers.add(out.name),
                out.kind,
                out.flags,
                out.address,
                out.offset,
                out.size,
                numbers[out.link] if out.link else 0,
                out.info,
                out.align,
                out.entry,
            )
        self._write_headers(content, table, len(outs) + len(extra) + 1)
        return bytes(content)

    def _symbol_table(self) -> tuple[bytes, bytes, int]:
        """Functions, variables, and what tells code from constants: for the gate and for perf."""
        numbers = {name: index for index, name in enumerate(self._section_names())}
        strings = _Strings()
        local, others = [self._symbol(0, 0, 0, 0, 0, 0)], list[bytes]()
        live = {id(section) for section in self._live}
        exported = set(self._exports())
        for file in self._all:
            for symbol in file.symbols:
                section = symbol.section
                if section is None or id(section) not in live or symbol.kind == _SECTION:
                    continue
                if symbol.binding != _LOCAL and self._names[symbol.name] is not symbol:
                    continue
                if symbol.name.startswith(".L") or not symbol.name:
                    continue
                out = symbol in exported
                (others if out else local).append(
                    self._symbol(
                        strings.add(symbol.name),
                        _GLOBAL if out else _LOCAL,
                        symbol.kind,
                        numbers[_place_of(section)],
                        self._address(symbol),
                        symbol.size,
                    )
                )
        for symbol in self._stubs:
            for offset, mark in self._machine.code_marks:
                at = self._stub_at(symbol) + offset
                local.append(self._symbol(strings.add(mark), _LOCAL, 0, numbers[".plt"], at, 0))
        return b"".join([*local, *others]), bytes(strings.data), len(local)

    def _write_headers(self, content: bytearray, table: int, sections: int) -> None:
        machine, outs = self._machine, list(self._outs.values())
        word, wide = machine.word_bytes, machine.wide
        segments = [
            self._segment(1, _READ, [out for out in outs if out.flags == _READ], first=True)
        ]
        segments.append(self._segment(1, _READ_EXEC, [o for o in outs if o.flags == _READ_EXEC]))
        last = [out for out in outs if out.flags == _READ_WRITE]
        fixed = [out for out in last if out.name not in (_DATA, _BSS)]
        segments.append(self._segment(1, _READ_WRITE, fixed, pages=True))
        segments.append(self._segment(1, _READ_WRITE, [out for out in last if out not in fixed]))
        segments.append(self._segment(2, _READ_WRITE, [self._outs[".dynamic"]], align=word))
        # Filled in by the dynamic linker, then read-only; it does so by whole pages.
        segments.append(self._segment(0x6474E552, _READ, fixed, align=1, pages=True))
        segments.append((0x6474E551, 6, 0, 0, 0, 0, 16))  # GNU_STACK: read and write
        assert len(segments) == self._segments()
        head_bytes, segment_bytes, section_bytes = (64, 56, 64) if wide else (52, 32, 40)
        struct.pack_into(
            "<4sBBBB8xHHI" + ("QQQ" if wide else "III") + "IHHHHHH",
            content,
            0,
            b"\x7fELF",
            2 if wide else 1,
            1,
            1,
            0,
            3,  # ET_DYN
            machine.number,
            1,
            0,
            head_bytes,
            table,
            self._files[0].flags | machine.flags,
            head_bytes,
            segment_bytes,
            len(segments),
            section_bytes,
            sections,
            sections - 1,
        )
        for index, (kind, flags, offset, address, in_file, in_memory, align) in enumerate(segments):
            at = head_bytes + index * segment_bytes
            if wide:
                fields = (kind, flags, offset, address, address, in_file, in_memory, align)
                struct.pack_into("<IIQQQQQQ", content, at, *fields)
            else:
                fields = (kind, offset, address, address, in_file, in_memory, flags, align)
                struct.pack_into("<IIIIIIII", content, at, *fields)

    def _segment(
        self,
        kind: int,
        access: int,
        outs: Sequence[_Out],
        *,
        first: bool = False,
        align: int | None = None,
        pages: bool = False,
    ) -> tuple[int, int, int, int, int, int, int]:
        """Type, flags, offset, address, size in the file, in memory, and alignment."""
        flags = 4 | (1 if access & _EXEC else 0) | (2 if access & _WRITE else 0)
        start, at = (0, 0) if first else (outs[0].offset, outs[0].address)
        end = max(out.offset + (0 if out.kind == _NOBITS else out.size) for out in outs)
        past = max(out.address + out.size for out in outs)
        if pages:
            past = -(-past // self._machine.page) * self._machine.page
        align = self._machine.page if align is None else align
        return kind, flags, start, at, end - start, past - at, align


_TABLES = (".symtab", ".strtab", ".shstrtab")


class _Strings:
    """A string table; the same text has one place."""

    def __init__(self) -> None:
        self.data = bytearray(b"\0")
        self._at = {"": 0}

    def add(self, text: str) -> int:
        if text not in self._at:
            self._at[text] = len(self.data)
            self.data += text.encode() + b"\0"
        return self._at[text]


def _names(files: Iterable[_File], spare: Iterable[_File]) -> dict[str, _LinkSymbol]:
    """What each name is bound to: a strong definition, else the first weak one, else a spare one.

    What the C library has is taken from there. Of sections in groups of one name the first counts.
    """
    found: dict[str, _LinkSymbol] = {}
    seen: set[str] = set()
    for file in files:
        for name, members in file.groups:
            if name in seen:
                _drop(file, members)
            seen.add(name)
        for symbol in file.symbols:
            if symbol.binding == _LOCAL or symbol.section is None:
                continue
            before = found.get(symbol.name)
            if before is None or (before.binding == _WEAK and symbol.binding == _GLOBAL):
                found[symbol.name] = symbol
            elif before.binding == symbol.binding == _GLOBAL:
                raise LinkError(f"{file.title}: {symbol.name} is defined twice")
    for file in spare:
        for symbol in file.symbols:
            if symbol.binding != _LOCAL and symbol.section and symbol.name not in LIBC | LIBM:
                found.setdefault(symbol.name, symbol)
    return found


def _drop(file: _File, members: Iterable[int]) -> None:
    """Takes sections out of a file: another file has the same."""
    gone = {id(file.sections[index]) for index in members}
    for index in members:
        file.sections[index] = None
    file.symbols[:] = [
        symbol._replace(section=None) if id(symbol.section) in gone and symbol.section else symbol
        for symbol in file.symbols
    ]


def _place_of(section: _Section) -> str:
    """The library's section that an input's goes to."""
    if section.flags & _EXEC:
        return _TEXT
    if not section.flags & _WRITE:
        return _RODATA
    if section.kind == _NOBITS:
        return _BSS
    return _RELRO if section.name.startswith(_RELRO) else _DATA

"""Finds instructions that a CPU lacks in 32-bit ARM code, without a disassembler.

Only the encodings of the families below are known here (ARM DDI 0406C for ARMv7,
DDI 0487 for what ARMv8 added to AArch32). That is exact as long as code is told from
constants and ARM from Thumb, which is what the mapping symbols $a, $t and $d are for
(ELF for the Arm Architecture, 5.5.5). A stripped file has none; there, functions are
taken from the unwind table and the dynamic symbols, and constants are those that
instructions load relative to the program counter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgepack.gate.code import Instruction, Span, Words, without


@dataclass(frozen=True)
class _Pattern:
    """`names`: with `bit` clear, set. With `condition`, the top four bits are not 1111."""

    family: str
    mask: int
    value: int
    names: tuple[str, str]
    bit: int = 31
    condition: bool = False


def _both(
    family: str, mask: int, value: int, *names: str, bit: int = 31
) -> tuple[_Pattern, _Pattern]:
    """A floating point instruction: in ARM code with any condition, in Thumb code always."""
    pair = (names[0], names[-1])
    return (
        _Pattern(family, mask, value, pair, bit, condition=True),
        _Pattern(family, mask | 0xF0000000, value | 0xE0000000, pair, bit),
    )


def _same(
    family: str, mask: int, value: int, *names: str, bit: int = 31
) -> tuple[_Pattern, _Pattern]:
    """An unconditional floating point instruction: encoded alike in ARM and Thumb code."""
    pattern = _Pattern(family, mask, value, (names[0], names[-1]), bit)
    return pattern, pattern


def _neon(
    family: str, mask: int, value: int, *names: str, bit: int = 31
) -> tuple[_Pattern, _Pattern]:
    """An Advanced SIMD instruction, given in ARM form (1111001U...); Thumb: 111U1111..."""
    pair = (names[0], names[-1])
    thumb = 0xEF000000 | (value & 0x00FFFFFF) | (0x10000000 if value & 0x01000000 else 0)
    return _Pattern(family, mask, value, pair, bit), _Pattern(family, mask, thumb, pair, bit)


_PAIRS = (
    _neon("fma", 0xFF800F10, 0xF2000C10, "vfma", "vfms", bit=21),
    _both("fma", 0x0FB00E10, 0x0EA00A00, "vfma", "vfms", bit=6),
    _both("fma", 0x0FB00E10, 0x0E900A00, "vfnms", "vfnma", bit=6),
    (
        _Pattern("hwdiv", 0x0FD0F0F0, 0x0710F010, ("sdiv", "udiv"), 21, condition=True),
        _Pattern("hwdiv", 0xFFD0F0F0, 0xFB90F0F0, ("sdiv", "udiv"), 21),
    ),
    _same("armv8", 0xFF800E50, 0xFE000A00, "vsel"),
    _same("armv8", 0xFFB00E10, 0xFE800A00, "vmaxnm", "vminnm", bit=6),
    _neon("armv8", 0xFF800F10, 0xF3000F10, "vmaxnm", "vminnm", bit=21),
    _same("armv8", 0xFFBC0ED0, 0xFEB80A40, "vrint"),
    _same("armv8", 0xFFBC0E50, 0xFEBC0A40, "vcvt (directed rounding)"),
    _both("armv8", 0x0FBF0E50, 0x0EB60A40, "vrint"),
    _both("armv8", 0x0FBF0ED0, 0x0EB70A40, "vrintx"),
    _neon("armv8", 0xFFB30E10, 0xF3B20400, "vrint"),
    _neon("armv8", 0xFFB30E90, 0xF3B20680, "vrint"),
    _neon("armv8", 0xFFB30C10, 0xF3B30000, "vcvt (directed rounding)"),
    (
        _Pattern("armv8", 0x0F900DF0, 0x01000040, ("crc32", "crc32"), condition=True),
        _Pattern("armv8", 0xFFE0F0C0, 0xFAC0F080, ("crc32", "crc32")),
    ),
    (  # store-release, load-acquire and their exclusive forms
        _Pattern("armv8", 0x0F800DF0, 0x01800C90, ("stl", "lda"), 20, condition=True),
        _Pattern("armv8", 0xFFE00080, 0xE8C00080, ("stl", "lda"), 20),
    ),
)
_PATTERNS = {"arm": [pair[0] for pair in _PAIRS], "thumb": [pair[1] for pair in _PAIRS]}


def scan(
    data: bytes, base: int, spans: Sequence[Span], families: Sequence[str]
) -> list[Instruction]:
    """Instructions of `families` in `spans` of the section `data` that starts at `base`."""
    found = []
    for span in spans:
        code = data[span.start - base : span.end - base]
        if span.mode == "arm":
            hits = _matches(_arm_words(code), "arm", families)
            found += [_at(span.start + 4 * index, *hit) for index, hit in hits]
            continue
        hits = _matches(_thumb_words(code), "thumb", families)
        if hits:
            # A match may be the second half of one instruction and the first of the next.
            starts = set(_thumb_starts(code))
            found += [_at(span.start + 2 * i, *hit) for i, hit in hits if i in starts]
    return sorted(found, key=lambda instruction: instruction.address)


def guessed_spans(data: bytes, base: int, starts: Mapping[int, str]) -> list[Span]:
    """The code in a section without mapping symbols.

    `starts` maps addresses of functions to "arm", "thumb" or "" (not known). Words that
    instructions of the same function load relative to the program counter, and what lies
    between two of them, are left out.
    """
    end = base + len(data)
    bounds = sorted({base, *(start for start in starts if base <= start < end)})
    parts = [
        (start, data[start - base : stop - base])
        for start, stop in zip(bounds, [*bounds[1:], end], strict=True)
    ]
    likely = [_looks_like_arm(code, start) for start, code in parts]
    # A compiler makes one kind; the other comes with the C library's own files, if at all.
    all_arm = sum(likely) > 0.9 * len(likely)
    spans: list[Span] = []
    for (start, code), arm in zip(parts, likely, strict=True):
        mode = starts.get(start) or ("arm" if arm or all_arm else "thumb")
        if mode == "arm":
            constants = _arm_constants(_arm_words(code), start)
        else:
            constants = _thumb_constants(code, start)
        spans += without(constants, start, start + len(code), mode)
    return spans


def _at(address: int, mnemonic: str, family: str) -> Instruction:
    return Instruction(address=address, mnemonic=mnemonic, family=family)


def _arm_words(code: bytes) -> Words:
    return np.frombuffer(code, "<u4", count=len(code) // 4).astype(np.uint32)


def _thumb_words(code: bytes) -> Words:
    """At each halfword, it and the next as one word, the first on top."""
    halves = np.frombuffer(code, "<u2", count=len(code) // 2).astype(np.uint32)
    return (halves[:-1] << np.uint32(16)) | halves[1:]


def _matches(words: Words, mode: str, families: Sequence[str]) -> list[tuple[int, tuple[str, str]]]:
    """(index, (mnemonic, family)) of every word that looks like one of `families`."""
    found = []
    for pattern in _PATTERNS[mode]:
        if pattern.family not in families:
            continue
        hits = (words & np.uint32(pattern.mask)) == np.uint32(pattern.value)
        if pattern.condition:
            hits &= words >> np.uint32(28) != 15
        for index in np.flatnonzero(hits).tolist():
            name = pattern.names[int(words[index]) >> pattern.bit & 1 if pattern.bit < 31 else 0]
            found.append((index, (name, pattern.family)))
    return found


def _thumb_starts(code: bytes) -> Iterator[int]:
    """Indices of the halfwords that begin an instruction."""
    halves = np.frombuffer(code, "<u2", count=len(code) // 2).tolist()
    index = 0
    while index < len(halves):
        yield index
        index += 2 if halves[index] >= 0xE800 else 1


def _looks_like_arm(code: bytes, start: int) -> bool:
    """Most ARM instructions run always (condition 1110) or are NEON's (0xF2 to 0xF4).

    In Thumb code, cut into words, few look so.
    """
    tops = _arm_words(code)[:64] >> np.uint32(24)
    likely = (tops >> np.uint32(4) == 14) | (tops & np.uint32(0xFE) == 0xF2) | (tops == 0xF4)
    return start % 4 == 0 and tops.size > 0 and float(np.mean(likely)) > 0.6


def _arm_constants(words: Words, start: int) -> list[tuple[int, int]]:
    """(address, bytes) of what instructions load relative to pc (address + 8)."""
    found = []
    for mask, value, scale in (
        (0x0F7F0000, 0x051F0000, 1),  # ldr, ldrb
        (0x0F7F00F0, 0x014F00D0, 0),  # ldrd
        (0x0F3F0E00, 0x0D1F0A00, 4),  # vldr
        (0x0F7F0000, 0x020F0000, -1),  # add, sub (adr)
    ):
        for index in np.flatnonzero((words & np.uint32(mask)) == np.uint32(value)).tolist():
            word = int(words[index])
            add = word >> 23 & 1
            size = 8 if scale == 0 or (scale == 4 and word >> 8 & 1) else 4
            if scale == 1:
                offset = word & 0xFFF
            elif scale == 4:
                offset = (word & 0xFF) * 4
            elif scale == 0:
                offset = (word >> 4 & 0xF0) | (word & 0xF)
            else:
                offset = _rotated(word & 0xFFF)
                target = 4 * index + 8 + (offset if add else -offset)
                size = _adr_size(words[max(target, 0) // 4 :])
            found.append((start + 4 * index + 8 + (offset if add else -offset), size))
    return found


def _adr_size(words: Words) -> int:
    """Bytes of the data whose address an instruction takes.

    A vector constant, or a table of branch distances: words of a small absolute value.
    """
    far = np.flatnonzero((words + np.uint32(1 << 20)) >> np.uint32(21) != 0)
    return max(16, 4 * int(far[0] if far.size else words.size))


def _rotated(immediate: int) -> int:
    value, turn = immediate & 0xFF, (immediate >> 8) * 2
    return (value >> turn | value << (32 - turn)) & 0xFFFFFFFF if turn else value


def _thumb_constants(code: bytes, start: int) -> list[tuple[int, int]]:
    """(address, bytes) of what instructions load relative to pc (address + 4, aligned)."""
    halves = np.frombuffer(code, "<u2", count=len(code) // 2).tolist()
    found: list[tuple[int, int]] = []
    data: set[int] = set()
    index = 0
    while index < len(halves):
        address = start + 2 * index
        if address in data:
            index += 1
            continue
        half = halves[index]
        pc = address + 4 & ~3
        size = 0
        target = start
        if half >= 0xE800 and index + 1 < len(halves):
            low = halves[index + 1]
            sign = 1 if half & 0x80 else -1
            if half & 0xFF7F == 0xF85F:  # ldr
                target, size = pc + sign * (low & 0xFFF), 4
            elif half & 0xFF3F == 0xED1F and low & 0x0E00 == 0x0A00:  # vldr
                target, size = pc + sign * (low & 0xFF) * 4, 8 if low & 0x100 else 4
            elif half & 0xFF7F == 0xE95F:  # ldrd
                target, size = pc + sign * (low & 0xFF) * 4, 8
            elif half & 0xFBFF == 0xF20F and not low & 0x8000:  # adr
                target = pc + ((half >> 10 & 1) << 11 | (low >> 12 & 7) << 8 | low & 0xFF)
                size = _adr_size(_arm_words(code[target - start :]))
            elif half == 0xE8DF and low & 0xFFE0 == 0xF000:  # tbb, tbh
                target, size = address + 4, _table_size(halves, index + 2, wide=bool(low & 0x10))
            index += 2
        else:
            if half & 0xF800 == 0x4800:  # ldr
                target, size = pc + (half & 0xFF) * 4, 4
            elif half & 0xF800 == 0xA000:  # adr
                target = pc + (half & 0xFF) * 4
                size = _adr_size(_arm_words(code[target - start :]))
            index += 1
        if size:
            found.append((target, size))
            data.update(range(target, target + size, 2))
    return found


def _table_size(halves: Sequence[int], index: int, *, wide: bool) -> int:
    """Bytes of the branch table at `index`: it ends where its nearest target begins."""
    end = 1 << 16
    entries = 0
    while index * 2 + entries * (2 if wide else 1) < min(len(halves) * 2, index * 2 + end):
        if wide:
            entry = halves[index + entries]
        else:
            entry = halves[index + entries // 2] >> (8 * (entries % 2)) & 0xFF
        end = min(end, 2 * entry)
        entries += 1
    return min(end, 2 * (len(halves) - index))

from __future__ import annotations

import struct

import pytest

from edgepack.gate.aarch32 import guessed_spans, scan
from edgepack.gate.code import Span, function_at, mapped_spans

SDIV = 0xE710F211  # sdiv r0, r1, r2
BX_LR = 0xE12FFF1E
NOP = 0xE320F000


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def halves(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}H", *values)


def spans(*items: tuple[int, int, str]) -> list[Span]:
    return [Span(start=start, end=end, mode=mode) for start, end, mode in items]


def test_mapping_symbols_cut_a_section() -> None:
    symbols = [(0x20, "$d"), (0x10, "$t.3"), (0x28, "$a"), (0x30, "$d.realdata")]
    found = mapped_spans(symbols, 0x10, 0x40)
    assert found == spans((0x10, 0x20, "thumb"), (0x28, 0x30, "arm"))
    assert mapped_spans([], 0x10, 0x40) == spans((0x10, 0x40, "arm"))  # a .plt of GNU ld


def test_scan_looks_into_spans_only() -> None:
    data = words(SDIV, SDIV, SDIV)
    found = scan(data, 0x100, spans((0x104, 0x108, "arm")), ["hwdiv"])
    assert [(item.address, item.mnemonic) for item in found] == [(0x104, "sdiv")]
    assert scan(data, 0x100, spans((0x100, 0x10C, "arm")), ["fma"]) == []
    assert scan(b"", 0x100, spans((0x100, 0x100, "thumb")), ["fma"]) == []
    assert scan(halves(0xFB91), 0x100, spans((0x100, 0x102, "thumb")), ["hwdiv"]) == []


@pytest.mark.parametrize(
    ("load", "constants"),
    [(0xE59F0004, [SDIV]),  # ldr r0, [pc, #4]
     (0xE1CF00D4, [SDIV, SDIV]),  # ldrd r0, r1, [pc, #4]
     (0xED9F0A01, [SDIV]),  # vldr s0, [pc, #4]
     (0xED9F0B01, [SDIV, SDIV]),  # vldr d0, [pc, #4]
     (0xE28F0004, [SDIV] * 4)],  # adr r0, pc + 4: a vector
)  # fmt: skip
def test_loaded_constants_are_left_out_of_arm_code(load: int, constants: list[int]) -> None:
    data = words(load, NOP, BX_LR, *constants, NOP, NOP, BX_LR)
    found = guessed_spans(data, 0x1000, {0x1000: "arm"})
    end = 0x100C + 4 * len(constants)
    assert found == spans((0x1000, 0x100C, "arm"), (end, 0x1000 + len(data), "arm"))


def test_a_constant_before_its_load() -> None:
    data = words(NOP, BX_LR, SDIV, 0xE51F000C, BX_LR)  # ldr r0, [pc, #-12]
    assert guessed_spans(data, 0, {0: "arm"}) == spans((0, 8, "arm"), (12, 20, "arm"))


@pytest.mark.parametrize(
    "load",
    [(0x4801, 0xBF00), (0xF8DF, 0x0004), (0xED9F, 0x0A01), (0xA001, 0xBF00), (0xF20F, 0x0004)],
    ids=["ldr", "ldr.w", "vldr", "adr", "adr.w"],
)
def test_loaded_constants_are_left_out_of_thumb_code(load: tuple[int, int]) -> None:
    data = halves(*load, 0x4770, 0xBF00) + words(0xF0F1FB90)
    assert guessed_spans(data, 0x1000, {0x1000: "thumb"}) == spans((0x1000, 0x1008, "thumb"))


@pytest.mark.parametrize(
    ("branch", "table"),
    [((0xE8DF, 0xF000), b"\x02\x02\x03\x04"), ((0xE8DF, 0xF010), b"\x02\0\x03\0")],
    ids=["tbb", "tbh"],
)
def test_branch_tables_end_where_their_first_target_begins(
    branch: tuple[int, int], table: bytes
) -> None:
    data = halves(*branch) + table + halves(0xFB91, 0xF0F2, 0x4770)
    found = guessed_spans(data, 0, {0: "thumb"})
    assert found == spans((0, 4, "thumb"), (8, 14, "thumb"))
    assert [item.address for item in scan(data, 0, found, ["hwdiv"])] == [8]


def test_tables_of_distances_are_left_out() -> None:
    table = [0x40, 0x60, 0xFFFFFF10, 0x80, 0xFFFFFF20, 0x20]
    data = words(0xE28F0000, BX_LR, *table, SDIV, BX_LR)  # adr r0, pc
    assert guessed_spans(data, 0, {0: "arm"}) == spans((0, 8, "arm"), (32, 40, "arm"))


def test_unknown_modes_are_told_by_conditions() -> None:
    arm = words(*[NOP] * 8)
    thumb = halves(*[0xBF00, 0x4608] * 8)
    found = guessed_spans(arm + thumb, 0, {0: "", 32: ""})
    assert found == spans((0, 32, "arm"), (32, 64, "thumb"))


def test_function_at() -> None:
    functions = [(0x10, 8, "f"), (0x20, 4, "g")]
    addresses = (0, 0x10, 0x17, 0x18, 0x23, 0x24)
    names = ["", "f", "f", "f+0x8", "g", "g+0x4"]
    assert [function_at(functions, address) for address in addresses] == names

"""What an ARM instruction reads, writes and is: as much as a pipeline asks of it.

Text is capstone's, as qemu's plugins get it: `fmla v0.4s, v1.4s, v2.s[0]`, `vldmia r5!, {d0, d1}`.
An instruction that is not known counts as one of the integer unit.
"""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass, field


class ArmKind(enum.Enum):
    """What a pipeline tells apart."""

    ALU = enum.auto()
    SHIFTED = enum.auto()  # an operand goes through the shifter first
    MULTIPLY = enum.auto()
    DIVIDE = enum.auto()
    BRANCH = enum.auto()
    LOAD = enum.auto()
    STORE = enum.auto()
    PREFETCH = enum.auto()
    FMA = enum.auto()  # of floats, of integers, and dot products: what has an accumulator
    FLOAT = enum.auto()
    FLOAT_DIVIDE = enum.auto()
    INTEGER = enum.auto()  # of vectors: logic, sums, moves between vectors
    PERMUTE = enum.auto()
    TO_VECTOR = enum.auto()  # from a core register
    FROM_VECTOR = enum.auto()
    NOTHING = enum.auto()


@dataclass(frozen=True, kw_only=True)
class ArmInstruction:
    """One instruction. Registers are x0 and v0 in 64-bit, r0 and d0 (64 bits) in 32-bit state.

    `bits` are those moved from or to memory, or those of one vector operand, 0 for others.
    `vector`: works on vectors. `accumulator` is read as late as a multiply-add adds. `base` is
    the address register that an access also moves, `pointer` the first one it has.
    """

    kind: ArmKind
    bits: int = 0
    vector: bool = False
    is_float: bool = False
    reads: tuple[str, ...] = ()
    accumulator: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    base: str | None = None
    pointer: str | None = field(default=None, compare=False)


FLAGS = "flags"

_CONDITIONS = "eq|ne|cs|hs|cc|lo|mi|pl|vs|vc|hi|ls|ge|lt|gt|le"
_REGISTER = re.compile(r"\b(?:([qdsvhbxwr])(\d+)|(sp|wsp|lr|fp|ip|sl|sb|pc))\b")
_ALIASES = {"sb": "r9", "sl": "r10", "fp": "r11", "ip": "r12", "lr": "r14"}
_BITS = {"q": 128, "d": 64, "s": 32, "h": 16, "b": 8, "x": 64, "w": 32, "r": 32}
_WIDE = re.compile(r"\bq\d|\.(?:16b|8h|4s|2d)\b")
_CORE = re.compile(r"\b[xwr]\d|\b(?:lr|ip|fp|sl|sb)\b")
_LANE = re.compile(r"\.([bhsd])(?:\}?\[\d+\])")

_FLOAT = re.compile(
    r"f(?!mov|cvtn?l)\w+|scvtf|ucvtf|v(?:add|sub|mul|nmul|max|min|maxnm|minnm|abs|neg|abd|c[eglt][qet]"
    r"|acge|acgt|cmp|cmpe|recpe|recps|rsqrte|rsqrts|padd|pmax|pmin|cvt\w?|rint\w)"
)
_PERMUTES = re.compile(
    r"zip[12]|uzp[12]|trn[12]|ext|tb[lx]|rev\d*|v(?:trn|zip|uzp|swp|ext|tb[lx]|rev\d*)"
)
_ACCUMULATES = re.compile(
    r"f?ml[as]l?\w?|fmlal2?|fmlsl2?|[su]ml[as]l2?|[su]dot|usdot|[su]mmla|v(?:n?mla|n?mls|fma|fms|fnma|fnms|mlal|mlsl"
    r"|[su]dot)"
)
_ARM_BASES = (
    "add|sub|rsb|rsc|adc|sbc|mov|mvn|movw|movt|and|orr|eor|bic|orn|lsl|lsr|asr|ror|mul|mla|mls|cmp|cmn|tst|teq"
    "|ldr|ldrb|ldrh|ldrd|str|strb|strh|strd|ldm|stm|b|bl|bx|blx|vmov|uxtb|uxth|sxtb|sxth|ubfx|sbfx"
)
_CONDITIONAL = re.compile(rf"({_ARM_BASES})(s?)({_CONDITIONS})")
_SETS_FLAGS = re.compile(
    r"(?:add|sub|rsb|rsc|adc|sbc|and|bic|orr|eor|mov|mvn|lsl|lsr|asr|ror|mul|neg)s"
)
_READS_FLAGS = re.compile(
    r"cs\w+|cinc|cinv|cneg|cset\w?|ccm[np]|fcsel|fccmpe?|adcs?|sbcs?|rscs?|ngcs?"
)
_KEEPS_TARGET = re.compile(
    r"ins|bsl|bit|bif|tbx|sli|sri|movk|movt|bfi|bfc|bfxil|xtn2|\w+n2|v(?:bsl|bit|bif|tbx|sli|sri|swp)"
)


@functools.cache
def parse(text: str, arch: str) -> ArmInstruction:
    """Of an instruction's text, in `aarch64` or `armv7`."""
    name, _, rest = text.strip().lower().partition(" ")
    name = name.removesuffix(".w").removesuffix(".n")
    operands = _operands(rest)
    base, _, suffix = name.partition(".")
    conditional = False
    if arch == "armv7" and (found := _CONDITIONAL.fullmatch(base)):
        base, conditional = found[1] + found[2], True
    if base in ("nop", "?", "it", "hint", "yield", "dmb", "isb", "dsb", "") or base.startswith(
        "it"
    ):
        return ArmInstruction(kind=ArmKind.NOTHING)
    if branch := _branch(base, suffix, operands, arch, conditional):
        return branch
    if base.startswith(("prfm", "pld")):
        return ArmInstruction(kind=ArmKind.PREFETCH, reads=_registers(rest, arch))
    made = (
        _memory(base, operands, rest, arch)
        or _vector(base, suffix, operands, rest, arch)
        or _core(base, operands, rest, arch)
    )
    if conditional:
        made = _replaced(made, reads=(*made.reads, *made.writes, FLAGS))
    return made


def _replaced(made: ArmInstruction, **changes: object) -> ArmInstruction:
    return ArmInstruction(**{**vars(made), **changes})


def _operands(text: str) -> list[str]:
    """At the commas outside of brackets and braces."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _registers(text: str, arch: str) -> tuple[str, ...]:
    """All registers named, vectors of 32-bit state as halves of 64 bits, ranges written out."""
    text = re.sub(
        r"\b([dsqvr])(\d+)(\.\w+)?\s*-\s*\1(\d+)",
        lambda m: ", ".join(f"{m[1]}{i}" for i in range(int(m[2]), int(m[4]) + 1)),
        text,
    )
    found: list[str] = []
    for match in _REGISTER.finditer(text):
        letter, number, special = match[1], match[2], match[3]
        if special:
            name = "sp" if special == "wsp" else special
            found.append(_ALIASES.get(name, name) if arch == "armv7" else name)
        elif arch == "aarch64":
            found.append(f"{'x' if letter in 'xw' else 'v'}{number}")
        elif letter == "q":
            found += [f"d{2 * int(number)}", f"d{2 * int(number) + 1}"]
        elif letter == "s":
            found.append(f"d{int(number) // 2}")
        else:
            found.append(f"{letter}{number}")
    return tuple(found)


def _branch(
    base: str, suffix: str, operands: list[str], arch: str, conditional: bool
) -> ArmInstruction | None:
    plain = base in ("b", "bl", "bx", "blx", "br", "blr", "ret", "cbz", "cbnz", "tbz", "tbnz")
    if not plain:
        return None
    flags = (FLAGS,) if conditional or (arch == "aarch64" and suffix) else ()
    reads = _registers(", ".join(operands), arch)
    return ArmInstruction(kind=ArmKind.BRANCH, reads=(*reads, *flags))


def _memory(base: str, operands: list[str], rest: str, arch: str) -> ArmInstruction | None:
    multiple = base.startswith(("ldm", "stm", "vldm", "vstm"))
    stack = base in ("push", "pop", "vpush", "vpop")
    at = next((i for i, operand in enumerate(operands) if operand.startswith("[")), None)
    if not (multiple or stack) and (at is None or not base.startswith(("ld", "st", "vld", "vst"))):
        return None
    if multiple:
        address, data, back = operands[0], operands[1:], operands[0].endswith("!")
        after: list[str] = []
    elif stack:
        address, data, back, after = "sp", operands, True, []
    else:
        assert at is not None
        address, data, after = operands[at], operands[:at], operands[at + 1 :]
        back = bool(after) or rest.rstrip().endswith("!")
    moved = ", ".join(data)
    registers = _registers(moved, arch)
    pointers = _registers(address, arch)
    vector = bool(re.search(r"\b[qdsvhb]\d", moved))
    store = base.startswith(("st", "vst", "push", "vpush"))
    lane = bool(_LANE.search(moved)) or "}[" in moved or bool(re.search(r"\[\d\]", moved))
    reads = (*pointers, *_registers(", ".join(after), arch))
    return ArmInstruction(
        kind=ArmKind.STORE if store else ArmKind.LOAD,
        bits=_moved_bits(base, moved, len(registers), arch, lane=lane),
        vector=vector,
        reads=(*reads, *registers) if store or lane else reads,
        writes=() if store else registers,
        base=pointers[0] if back and pointers else None,
        pointer=pointers[0] if pointers else None,
    )


def _moved_bits(base: str, moved: str, count: int, arch: str, *, lane: bool) -> int:
    if lane or base.startswith("ld1r") or "[]" in moved:
        return 64  # an element is no faster than a vector of 64 bits
    if arch == "armv7":
        first = re.search(r"\b([qdsr])\d", moved)
        if first and first[1] == "s":
            return 32 * len(re.findall(r"\bs\d", moved))
        return count * (32 if first and first[1] == "r" else 64)
    if "{" in moved:
        return count * (128 if _WIDE.search(moved) else 64)
    return sum(_BITS[letter] for letter in re.findall(r"\b([qdshbxw])\d+\b", moved))


def _vector(
    base: str, suffix: str, operands: list[str], rest: str, arch: str
) -> ArmInstruction | None:
    if not re.search(r"\b[qdsvhb]\d", rest):
        return None
    target = _registers(operands[0], arch)
    sources = _registers(", ".join(operands[1:]), arch)
    bits = 128 if _WIDE.search(rest) else 64
    is_float = base.startswith("f") or suffix.partition(".")[0] in ("f16", "f32", "f64")
    partial = "[" in operands[0]
    accumulator: tuple[str, ...] = ()
    writes = target
    if _CORE.search(operands[0]) or base == "vmrs":
        kind, is_float = ArmKind.FROM_VECTOR, False
    elif _CORE.search(", ".join(operands[1:])):
        kind, is_float = ArmKind.TO_VECTOR, False
        bits = 64 if partial else bits
    elif base in ("fmadd", "fmsub", "fnmadd", "fnmsub"):
        kind = ArmKind.FMA
        sources = _registers(", ".join(operands[1:3]), arch)
        accumulator = _registers(operands[3], arch)
    elif _ACCUMULATES.fullmatch(base):
        kind, accumulator = ArmKind.FMA, target
    elif base in ("fdiv", "fsqrt", "vdiv", "vsqrt"):
        kind = ArmKind.FLOAT_DIVIDE
    elif _PERMUTES.fullmatch(base) or (base in ("dup", "vdup", "mov", "ins") and "[" in rest):
        kind = ArmKind.PERMUTE
    elif is_float and _FLOAT.fullmatch(base):
        kind = ArmKind.FLOAT
    else:
        kind = ArmKind.INTEGER
    if base in ("vtrn", "vzip", "vuzp", "vswp"):  # both operands change
        bits *= 2
        sources = writes = (*target, *sources)
    elif base in ("fcmp", "fcmpe", "vcmp", "vcmpe"):
        sources, writes = (*target, *sources), (FLAGS,)
    elif (partial and kind is not ArmKind.FROM_VECTOR) or _KEEPS_TARGET.fullmatch(base):
        sources = (*sources, *target)
    return ArmInstruction(
        kind=kind,
        bits=bits,
        vector=True,
        is_float=is_float,
        reads=sources,
        accumulator=accumulator,
        writes=writes,
    )


def _core(base: str, operands: list[str], rest: str, arch: str) -> ArmInstruction:
    if base in ("cmp", "cmn", "tst", "teq"):
        shifted = _is_shifted(operands[2:])
        return ArmInstruction(
            kind=ArmKind.SHIFTED if shifted else ArmKind.ALU,
            reads=_registers(rest, arch),
            writes=(FLAGS,),
        )
    target = _registers(operands[0], arch) if operands else ()
    sources = _registers(", ".join(operands[1:]), arch)
    if base in ("umull", "smull", "umlal", "smlal") and arch == "armv7":
        target = _registers(", ".join(operands[:2]), arch)
    if _KEEPS_TARGET.fullmatch(base) or (len(operands) == 2 and _in_place(base)):
        sources = (*sources, *target)
    if _READS_FLAGS.fullmatch(base):
        sources = (*sources, FLAGS)
    if re.fullmatch(r"[su]div", base):
        kind = ArmKind.DIVIDE
    elif re.fullmatch(
        r"mul|mla|mls|mneg|madd|msub|[su]mull|[su]mlal|[su]m(?:add|sub|neg)l|[su]mulh|smm\w+|smla\w+|smul\w+",
        base,
    ):
        kind = ArmKind.MULTIPLY
    else:
        kind = ArmKind.SHIFTED if _is_shifted(operands[2:]) else ArmKind.ALU
    writes = (*target, FLAGS) if _SETS_FLAGS.fullmatch(base) else target
    return ArmInstruction(kind=kind, reads=sources, writes=writes)


def _in_place(base: str) -> bool:
    """Of 32-bit state: `add r0, #4` reads r0, `mov r0, #4` does not."""
    return not base.startswith(
        ("mov", "mvn", "adr", "uxt", "sxt", "clz", "rev", "rbit", "neg", "cset")
    )


def _is_shifted(operands: list[str]) -> bool:
    return any(re.match(r"(?:lsl|lsr|asr|ror|uxt|sxt)", operand) for operand in operands)

"""The hottest loops of a compiled model under llvm-mca: floating-point operations per cycle.

Instruction counts can mislead: a spill hits the cache, and an in-order core waits for its
operands. llvm-mca plays LLVM's own model of the core, with a perfect first-level cache. It
comes with Debian's package `llvm`.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import ours
from bench.models import get_model
from bench.results import RESULTS, median
from edgepack.base.errors import ToolchainError
from edgepack.base.paths import write_atomic
from edgepack.base.process import run
from edgepack.base.progress import Progress
from edgepack.boards import Board, get_board
from edgepack.cycles.trace import function_names

# One board for each core and instruction set; LLVM has no Cortex-A72 in 32-bit state.
BOARDS = ("rasp3b", "pynq", "rasp4b-64", "rasp3b-64")
_ITERATIONS = 100
_FILE = RESULTS / "mca.json"

# `  1f20: e8bd8070  vmla.f32 q8, q9, d2[0]  @ comment`, with --no-show-raw-insn
_LABEL = re.compile(r"^(?P<address>[0-9a-f]+) <[^>]+>:$")
_INSTRUCTION = re.compile(r"^\s*(?P<address>[0-9a-f]+):\s+(?P<text>\S.*)$")
_BRANCH = re.compile(r"^(?:b[.a-z]*|cbn?z|tbn?z)\s+(?:.*,\s*)?(?:0x|#)?(?P<target>[0-9a-f]+)\b")
_CALL = re.compile(r"^bl[xr]?\s")
_COMMENT = re.compile(r"\s*(?:[@;]|//|<).*$")
_MULTIPLE = re.compile(
    r"^v(?P<which>ld|st)mia (?P<base>\w+)(?P<back>!?), {(?P<registers>[d\d, ]+)}$"
)
# `max_pool3x3` of `max_pool3x3_64_56x56_s2`
_FAMILY = re.compile(r"[a-z_]+?(?:\d+x\d+|\d+)?(?=_\d|$)")
# The frame pointer of AArch64 and of ARM; Thumb's, r7, is any register in ARM code.
_FRAME = re.compile(r"^(?:mov|add)\s+(?P<register>r11|x29),\s*sp\b")

# Operations per lane: 2 for a fused or chained multiply-add, else 1.
_OPERATIONS = {"fmla": 2, "fmls": 2, "vfma": 2, "vfms": 2, "vmla": 2, "vmls": 2}
_OPERATIONS |= dict.fromkeys(("fmul", "fadd", "fsub", "vmul", "vadd", "vsub"), 1)


@dataclass(frozen=True, kw_only=True)
class Loop:
    """An innermost loop: its instructions, without comments, and the function it is in."""

    function: str
    instructions: tuple[str, ...]
    frame_registers: frozenset[str] = frozenset({"sp"})

    @property
    def flop(self) -> int:
        """Floating-point operations of one pass."""
        return sum(map(operations, self.instructions))

    @property
    def stack_references(self) -> int:
        """Instructions that name the stack or frame pointer."""
        words = [set(re.findall(r"\w+", text)) for text in self.instructions]
        return sum(bool(found & self.frame_registers) for found in words)


def operations(instruction: str) -> int:
    """Floating-point operations of one vector instruction; 0 for all others."""
    mnemonic, _, operands = instruction.partition(" ")
    name, _, kind = mnemonic.partition(".")
    target = operands.split(",")[0].strip()
    if name[:1] == "v" and kind == "f32" and target[:1] in ("q", "d"):
        lanes = 4 if target[0] == "q" else 2
    elif found := re.fullmatch(r"v\d+\.([24])s", target):
        lanes = int(found[1])
    else:
        return 0
    return lanes * _OPERATIONS.get(name, 0)


def loops(disassembly: str, functions: Mapping[int, str]) -> Iterator[Loop]:
    """The innermost loops without calls in objdump's output.

    `functions` are names by address: objdump itself shows ARM's mapping symbols in their place.
    """
    for name, code in _split(disassembly, functions):
        addresses = {address: index for index, (address, _) in enumerate(code)}
        spans = []
        for index, (_, text) in enumerate(code):
            found = _BRANCH.match(text)
            start = addresses.get(int(found["target"], 16)) if found else None
            if start is not None and start <= index:
                spans.append((start, index))
        frames = {found["register"] for _, text in code if (found := _FRAME.match(text))}
        for start, end in spans:
            inner = any((a, b) != (start, end) and start <= a and b <= end for a, b in spans)
            body = tuple(_COMMENT.sub("", text) for _, text in code[start:end])
            if not inner and not any(map(_CALL.match, body)):
                yield Loop(
                    function=name,
                    instructions=body,
                    frame_registers=frozenset({"sp", *frames}),
                )


def _split(
    disassembly: str, functions: Mapping[int, str]
) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    name, code = "", list[tuple[int, str]]()
    for line in disassembly.splitlines():
        if found := _LABEL.match(line):
            if start := functions.get(int(found["address"], 16)):
                yield name, code
                name, code = start, []
        elif found := _INSTRUCTION.match(line):
            code.append((int(found["address"], 16), found["text"].replace("\t", " ").strip()))
    yield name, code


def simplified(instruction: str) -> list[str]:
    """Instructions that llvm-mca has costs for on every core.

    LLVM's Cortex-A9 gives none for loads of many registers, so these become loads of two, which
    that core moves per cycle.
    """
    found = _MULTIPLE.match(instruction)
    if found is None:
        return [instruction]
    registers = found["registers"].split(", ")
    back = "!" if found["back"] else ""
    return [
        f"v{found['which']}1.64 {{{', '.join(registers[at : at + 2])}}}, [{found['base']}]{back}"
        for at in range(0, len(registers), 2)
    ]


def cycles(loop: Loop, board: Board) -> float | None:
    """Cycles of one pass on the board's core, once it is under way.

    None where LLVM has no description of the core (Cortex-A53 in 32-bit state), or where it
    lacks one of the instructions.
    """
    arguments = [f"-mtriple={board.llvm_triple}", f"-mcpu={board.cpu}"]
    if board.debian_arch == "armhf":
        arguments.append(f"-mattr={','.join(board.features)}")
    done = run(
        [
            *(_tool("llvm-mca"), *arguments, f"-iterations={_ITERATIONS}"),
            *("-summary-view", "-resource-pressure=false", "-instruction-info=false"),
        ],
        input="\n".join(line for text in loop.instructions for line in simplified(text)).encode(),
        check=False,
    )
    found = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    return int(found[1]) / _ITERATIONS if found else None


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ToolchainError(f"program not found: {name}", hint="apt install llvm")
    return path


@dataclass(frozen=True, kw_only=True)
class Hottest:
    """The loop of a function with most floating-point operations per pass.

    `stack` counts the stack references of all loops of the function that do arithmetic, `cycles`
    are those of one pass (see `cycles`).
    """

    flop: int
    instructions: int
    stack: int
    cycles: float | None


def analyse(library: Path, board: Board) -> dict[str, Hottest]:
    """The hottest loop of each function of a library that does vector arithmetic."""
    argv = [_tool("llvm-objdump"), "-d", "--no-show-raw-insn"]
    if board.debian_arch == "armhf":
        argv.append(f"--mattr={','.join(board.features)}")
    text = run([*argv, library]).stdout
    best: dict[str, Loop] = {}
    stack: Counter[str] = Counter()
    for loop in loops(text, function_names(library)):
        if not loop.flop:
            continue
        stack[loop.function] += loop.stack_references
        if loop.function not in best or loop.flop > best[loop.function].flop:
            best[loop.function] = loop
    return {
        name.removesuffix("_compute_"): Hottest(
            flop=loop.flop,
            instructions=len(loop.instructions),
            stack=stack[name],
            cycles=cycles(loop, board),
        )
        for name, loop in best.items()
    }


def family(function: str) -> str:
    """The kernel family of a function: its name without sizes, `conv1x1` of `conv1x1_64_32_7x7`."""
    found = _FAMILY.match(function)
    return found[0] if found else function


def table(functions: Iterable[tuple[str, Hottest]]) -> str:
    """Markdown: a row per family, with the middle one of its functions and the worst."""
    families: dict[str, list[Hottest]] = {}
    for name, hottest in functions:
        families.setdefault(family(name), []).append(hottest)
    lines = [
        "| family | functions | stack references | FLOP / instruction | FLOP / cycle |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, members in sorted(families.items()):
        per_cycle = [member.flop / member.cycles for member in members if member.cycles]
        cells = (
            str(len(members)),
            str(sum(member.stack for member in members)),
            _middle_and_worst([member.flop / member.instructions for member in members]),
            _middle_and_worst(per_cycle) if per_cycle else "-",
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _middle_and_worst(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f})"


def measure(boards: Sequence[str], models: Sequence[str], progress: Progress) -> None:
    """Analyses every board and model, and keeps the figures in bench/results/mca.json."""
    for board in map(get_board, boards):
        for model in map(get_model, models):
            progress.step(f"{board.name}: {model.name}")
            found = analyse(ours.compiled_library(model, board.name, progress), board)
            tables = _load()
            tables.setdefault(board.name, {})[model.name] = {
                name: vars(hottest) for name, hottest in found.items()
            }
            write_atomic(_FILE, (json.dumps(tables, indent=1, sort_keys=True) + "\n").encode())


def _load() -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """Figures by board, model and function."""
    return json.loads(_FILE.read_text()) if _FILE.exists() else {}


def report() -> str:
    """Markdown of all tables so far: one per board, over all models."""
    texts = []
    for name, models in _load().items():
        board = get_board(name)
        functions = [
            (function, Hottest(**figures))
            for found in models.values()
            for function, figures in found.items()
        ]
        texts.append(f"**{board.cpu}, {board.triple}** (board {name})\n\n{table(functions)}")
    return "\n\n".join(texts)

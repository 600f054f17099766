"""`edgepack inspect`: what is in a model, and whether it can be compiled."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base.text import megabytes
from edgepack.boards import Board, get_board
from edgepack.cli.console import Console
from edgepack.cli.options import (
    MODEL_HELP,
    add_set,
    board_files,
    of_memory,
    parse_constants,
    parse_shapes,
    parse_states,
)
from edgepack.model import ModelSpec, TensorInfo

if TYPE_CHECKING:
    from edgepack.flow.inspection import Inspection
    from edgepack.frontend.inspect import ModelInfo

# A dimension's formula that is longer is shown by what it depends on.
_FORMULA = 16


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("model", type=Path, help=MODEL_HELP)
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT=1,3,224,224",
        help="shape of an input with dynamic dimensions (repeatable)",
    )
    add_set(parser)
    parser.add_argument(
        "--board",
        metavar="NAME",
        default="local",
        help="estimate memory and time for this board (default: local, memory only, "
        "because its clock is not known)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print the model's facts."""
    from edgepack.flow.inspection import inspect_for

    spec = ModelSpec(
        path=args.model,
        shapes=parse_shapes(args.shape),
        constants=parse_constants(args.set),
        states=parse_states(args.state),
    )
    board = get_board(args.board, board_files(args))
    found = inspect_for(spec, board)
    data = {
        **asdict(found.info),
        "path": str(args.model),
        "can_be_compiled": found.obstacle is None,
        "because": found.obstacle,
        "with_shapes": {name: list(shape) for name, shape in found.with_shapes.items()},
        "estimate": asdict(found.estimate) if found.estimate else None,
    }
    console.data(data, _text(found, board))
    return 0


def _text(found: Inspection, board: Board) -> str:
    info = found.info
    macs = (
        "unknown: dynamic shapes (see --shape)"
        if info.macs is None
        else f"{info.macs / 1e6:.1f} M per inference"
    )
    lines = [
        f"{info.path}: {megabytes(info.size_bytes)}, opset {info.opset}"
        + (f", made by {info.producer}" if info.producer else ""),
        *_tensors("inputs", info.inputs),
        *_tensors("outputs", found.estimate.outputs if found.estimate else info.outputs),
        *_words(info.words),
        *_states(info),
        f"parameters  {info.parameters / 1e6:.2f} M ({megabytes(info.parameters_bytes)})",
        f"MACs        {macs}",
        f"operators   {sum(info.operators.values())}",
    ]
    refused = {node.operator for node in info.unsupported}
    for name, count in sorted(info.operators.items(), key=lambda item: (-item[1], item[0])):
        lines.append(
            f"  {count:>5}  {name}" + ("  (cannot be compiled)" if name in refused else "")
        )
    for node in info.unsupported:
        lines.append(f"cannot      {node.operator} {node}: {node.why}; {node.instead}")
    if estimate := found.estimate:
        lines.append(
            f"memory      tensors {megabytes(estimate.arena_bytes)}, "
            f"weights {megabytes(estimate.params_bytes)}"
            + of_memory(board, estimate.arena_bytes + estimate.params_bytes)
        )
        lines.append(f"bundle      about {megabytes(estimate.bundle_bytes)}, not compressed")
        for block in estimate.blocks:
            kind = "branch" if block.most_turns == 1 else f"at most {block.most_turns} turns"
            lines.append(
                f"block       {block.operator} '{block.node}': {kind}, {block.kernels} kernels"
            )
        if estimate.ms is not None:
            turns = ", a turn of each loop" if estimate.blocks else ""
            without = f", without {estimate.uncosted} kernels" if estimate.uncosted else ""
            lines.append(
                f"time        {estimate.ms:.1f} ms by the cost model on one core of "
                f"{estimate.board} at {estimate.mhz} MHz{turns}{without}"
            )
    yes = "yes" if found.obstacle is None else f"no, because of {found.obstacle}"
    if found.with_shapes:
        options = (
            f"--shape {name}={','.join(map(str, shape))}"
            for name, shape in found.with_shapes.items()
        )
        yes = f"yes, with {' '.join(options)}, or other shapes"
    return "\n".join([*lines, f"can be compiled: {yes}"])


def _words(words: Sequence[str]) -> list[str]:
    """What the numbers of an output of words stand for."""
    if not words:
        return []
    shown = [f"{number} {word}" for number, word in enumerate(words[:_MOST_WORDS])]
    more = len(words) - _MOST_WORDS
    return ["words       " + ", ".join(shown) + (f" and {more} more" if more > 0 else "")]


def _states(info: ModelInfo) -> list[str]:
    """Inputs that keep an output, and those that may be meant to."""
    lines = [
        f"{'states' if number == 0 else '':<10}  {name} keeps {output}"
        + (f", begins with {info.begins[name]}" if name in info.begins else "")
        for number, (name, output) in enumerate(info.states.items())
    ]
    return lines + [
        f"{'perhaps' if number == 0 else '':<10}  a state: --state {name}={output}"
        for number, (name, output) in enumerate(info.perhaps_states.items())
    ]


# The JSON has all of them.
_MOST_WORDS = 20


def _tensors(title: str, tensors: Sequence[TensorInfo]) -> list[str]:
    return [
        f"{title if number == 0 else '':<10}  {tensor.name}: {tensor.dtype} "
        f"({', '.join(_sizes(tensor))})"
        for number, tensor in enumerate(tensors)
    ]


def _sizes(tensor: TensorInfo) -> list[str]:
    """Dimensions; <= before one that depends on the data."""
    return [
        ("<= " if axis in tensor.bounded else "") + _size(size)
        for axis, size in enumerate(tensor.shape)
    ]


def _size(size: int | str | None) -> str:
    """A dimension: a number, a name, or a formula; f(a, b) for one too long to be read."""
    if size is None:
        return "?"
    text = str(size).replace(" ", "")
    if len(text) <= _FORMULA or re.fullmatch(r"\w+", text):
        return str(size)
    names = dict.fromkeys(re.findall(r"[A-Za-z_]\w*(?!\w*\()", text))
    return f"f({', '.join(names)})"

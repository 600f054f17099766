"""`edgepack inspect`: what is in a model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from edgepack.cli.console import Console, megabytes
from edgepack.cli.options import parse_shapes
from edgepack.compiler.frontend.inspect import ModelInfo, inspect_model
from edgepack.model import TensorInfo


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("model", type=Path, help="ONNX model")
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT=1,3,224,224",
        help="shape of an input that has dynamic dimensions (repeatable)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print the model's facts."""
    info = inspect_model(args.model, parse_shapes(args.shape))
    console.data({**asdict(info), "path": str(info.path)}, _text(info))
    return 0


def _text(info: ModelInfo) -> str:
    macs = (
        "unknown: dynamic shapes (see --shape)"
        if info.macs is None
        else f"{info.macs / 1e6:.1f} M per inference"
    )
    lines = [
        f"{info.path}: {megabytes(info.size_bytes)}, opset {info.opset}"
        + (f", made by {info.producer}" if info.producer else ""),
        *_tensors("inputs", info.inputs),
        *_tensors("outputs", info.outputs),
        f"parameters  {info.parameters / 1e6:.2f} M",
        f"MACs        {macs}",
        f"operators   {sum(info.operators.values())}",
    ]
    for name, count in sorted(info.operators.items(), key=lambda item: (-item[1], item[0])):
        problem = info.unsupported.get(name)
        lines.append(
            f"  {count:>5}  {name}" + (f"  (cannot be compiled: {problem})" if problem else "")
        )
    return "\n".join(lines)


def _tensors(title: str, tensors: Sequence[TensorInfo]) -> list[str]:
    return [
        f"{title if number == 0 else '':<10}  {tensor.name}: {tensor.dtype} "
        f"({', '.join('?' if size is None else str(size) for size in tensor.shape)})"
        for number, tensor in enumerate(tensors)
    ]

"""`edgepack inspect`: what is in a model."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgepack.cli.console import Console
from edgepack.model import inspect_model


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "inspect", help="print inputs, outputs, operators, parameters and MACs of a model"
    )
    parser.add_argument("model", type=Path, help="ONNX model")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print the model's facts."""
    info = inspect_model(args.model)
    console.data(info.to_dict(), info.to_text())
    return 0

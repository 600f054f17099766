"""`edgepack schema`: what may stand in a file, for editors and validators."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from edgepack.base.schemas import SCHEMA_OF, schema_text
from edgepack.cli.console import Console
from edgepack.cli.options import check_writable


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "file", choices=tuple(SCHEMA_OF), help="kind of file that the schema describes"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="write the schema to this file instead of printing it",
    )
    parser.epilog = (
        "Editors (Taplo, Even Better TOML, tombi) find the schema by the first line\n"
        "`#:schema ./FILE`, with the path to the schema. `edgepack init` writes both."
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print the schema, or write it."""
    text = schema_text(args.file)
    if args.out is None:
        console.data(json.loads(text), text.rstrip())
        return 0
    check_writable(args.out.parent, "--out")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text, encoding="utf-8")
    console.data({"path": str(args.out)}, f"written to {args.out}")
    return 0

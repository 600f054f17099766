"""Results as pages: `--html FILE` of the commands. Each module makes the page of one of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.base import page
from edgepack.cli.options import check_writable

if TYPE_CHECKING:
    from edgepack.cli.console import Console


def add_html(parser: argparse.ArgumentParser) -> None:
    """A page of the result."""
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="also write the result as a single HTML page"
    )


def check_html(args: argparse.Namespace) -> None:
    """Before any long step. Raises UsageError if the file cannot be written."""
    if args.html is not None:
        check_writable(args.html.parent, "--html")


def save(args: argparse.Namespace, console: Console, made: Iterable[str]) -> None:
    """Write the page, if one is wanted."""
    if args.html is not None:
        page.write_page(args.html, made)
        console.note(f"page: {args.html}")

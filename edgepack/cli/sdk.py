"""`edgepack sdk`: a library for programs that run models themselves."""

from __future__ import annotations

import argparse
from pathlib import Path

from edgepack.base.text import megabytes
from edgepack.boards import TOOLCHAINS, get_board
from edgepack.cli.console import Console
from edgepack.cli.options import board_files, check_writable


def add(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "--board",
        metavar="NAME",
        required=True,
        help="name of a board profile, listed by `edgepack boards`",
    )
    parser.add_argument(
        "--toolchain", choices=TOOLCHAINS, help="compiler to use (default: the board's)"
    )
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="DIR", help="output folder: new or empty"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Write headers, libraries, a wheel for the board, and examples."""
    from edgepack.native.sdk import build_sdk, write_sdk
    from edgepack.native.toolchain import select

    board = get_board(args.board, board_files(args))
    check_writable(args.out, "--out")
    chosen = select(board, args.toolchain)
    console.step(f"toolchain {chosen.toolchain.title}: {chosen.reason}")
    build = build_sdk(board, chosen.toolchain, progress=console)
    wheel = write_sdk(build, args.out)
    size = build.shared.stat().st_size
    console.data(
        {
            "sdk": str(args.out),
            "board": board.name,
            "triple": build.triple,
            "glibc": build.glibc,
            "shared": str(args.out / "lib" / build.shared.name),
            "shared_bytes": size,
            "static": str(args.out / "lib" / build.static.name),
            "wheel": str(wheel),
        },
        f"sdk      {args.out}\n"
        f"library  {build.shared.name}, {megabytes(size)}, for {build.triple} "
        f"with glibc {build.glibc} or newer\n"
        f"wheel    {wheel}\n"
        f"next     see {args.out / 'share' / 'edgepack' / 'examples'}",
    )
    return 0

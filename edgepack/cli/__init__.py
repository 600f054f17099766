"""The command line: one module per command, thin over the Python API."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from edgepack.base.errors import EXIT_CODES, EdgepackError, UsageError
from edgepack.base.paths import set_cache_dir
from edgepack.base.version import VERSION
from edgepack.cli import (
    bench,
    board,
    boards,
    compile,
    deploy,
    doctor,
    fleet,
    inspect,
    keygen,
    package,
    prune,
    rollback,
    run,
    service,
    sign,
    status,
    trust,
    verify,
)
from edgepack.cli.console import Console
from edgepack.cli.options import COMMON_DEFAULTS, add_common, check_writable

COMMANDS = (
    *(boards, doctor, inspect, compile, package),
    *(keygen, sign, verify),
    *(deploy, status, rollback, prune, trust),
    *(run, service, bench, fleet, board),
)
INTERRUPTED = 130
# What this machine's file system refuses is no bug; ENOENT would be one.
FILE_ERRORS = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
)
FILE_ERROR = UsageError.exit_code


class _Parser(argparse.ArgumentParser):
    """argparse, with our form of messages and no abbreviated options."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(allow_abbrev=False, **kwargs)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see `{self.prog} --help`")


def make_parser() -> argparse.ArgumentParser:
    """The whole command line; the docs' reference is generated from it."""
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    parser = _Parser(
        prog="edgepack",
        description="Take a trained ONNX model to a field board, and know that it works there.",
        epilog=f"exit codes:\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"edgepack {VERSION}")
    add_common(parser)
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for module in COMMANDS:
        module.add(commands)
    for command in commands.choices.values():
        add_common(command)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; nothing is raised but a bug."""
    no_color = bool(os.environ.get("NO_COLOR"))
    console = Console(as_json="--json" in argv, no_color=no_color)
    try:
        args = make_parser().parse_args(argv)
        for name, default in COMMON_DEFAULTS.items():
            if not hasattr(args, name):
                setattr(args, name, default)
        console = Console(
            as_json=args.json, verbose=args.verbose, quiet=args.quiet, no_color=no_color
        )
        if args.cache_dir is not None:
            check_writable(args.cache_dir, "--cache-dir")
            set_cache_dir(args.cache_dir)
        code: int = args.run(args, console)
        return code
    except EdgepackError as error:
        console.error(error.message, error.hint, error.exit_code)
        return error.exit_code
    except KeyboardInterrupt:
        console.error("interrupted", None, INTERRUPTED)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`edgepack boards | head`): not a mistake.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FILE_ERRORS:
            console.error(f"{error.filename or 'a file'}: {error.strerror}", None, FILE_ERROR)
            return FILE_ERROR
        traceback.print_exc()
        console.error(
            "this is a bug in edgepack",
            "please report it with the traceback above and the output of `edgepack doctor`",
            1,
        )
        return 1

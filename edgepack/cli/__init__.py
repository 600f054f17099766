"""The command line: one module per command, thin over the Python API."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import NoReturn

from edgepack.base.errors import EXIT_CODES, EdgepackError, UsageError
from edgepack.base.paths import set_cache_dir
from edgepack.base.version import VERSION
from edgepack.cli.console import Console
from edgepack.cli.options import COMMON_DEFAULTS, add_common, check_writable

# The modules of this package that are a command, in the order of use, and what each does.
COMMANDS = {
    "boards": "list the board profiles",
    "doctor": "list the tools a board needs, found or not",
    "cache": "what is kept to be quick the next time: show, prune",
    "init": "write a project file for a model, from what it says of itself",
    "check": "run the reference on this machine: what it sees in your photos",
    "inspect": "print inputs, outputs, operators, parameters and MACs of a model",
    "compile": "compile a model for a board's CPU",
    "package": "make a bundle, and a file that carries it",
    "keygen": "make a key that signs bundles, with ssh-keygen",
    "sign": "sign a bundle, in place",
    "verify": "check all files of a bundle and its signature",
    "deploy": "compile, package, upload, activate and test: the main command",
    "status": "which model runs on a device, since when, by whom, and its health",
    "rollback": "make an earlier release current again",
    "repair": "bring back what a rotten card damaged on a device",
    "prune": "remove releases that are not needed any more",
    "trust": "whose signatures a device takes: show or replace",
    "run": "run the deployed model on an image or a tensor",
    "service": "run what is deployed at each boot",
    "bench": "time the deployed model on the device",
    "fleet": "many devices, in waves: plan, deploy, status, rollback, trust",
    "board": "virtual boards: up, down, list, ssh",
}
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


def make_parser(words: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """The command line; the docs' reference is generated from it.

    A command that is not among `words` has a name and a line in the help only: what its
    module imports can take a second.
    """
    wanted = set(words)
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
    for name, does in COMMANDS.items():
        command = commands.add_parser(name, help=does)
        if name in wanted:
            importlib.import_module(f"edgepack.cli.{name}").add(command)
        add_common(command)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; nothing is raised but a bug."""
    no_color = bool(os.environ.get("NO_COLOR"))
    console = Console(as_json="--json" in argv, no_color=no_color)
    try:
        args = make_parser(argv).parse_args(argv)
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

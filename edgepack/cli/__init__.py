"""The command line: one module per command, thin over the Python API."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from edgepack.base.errors import EXIT_CODES, EdgepackError, UsageError, perhaps
from edgepack.base.paths import outside_allowed, set_cache_dir
from edgepack.base.progress import attach_listener
from edgepack.base.version import VERSION
from edgepack.cli.console import Console
from edgepack.cli.examples import EXAMPLES
from edgepack.cli.options import COMMON_DEFAULTS, add_common, check_writable, rare_groups
from edgepack.cli.signals import Stopped

# The modules of this package that are a command, in the order of use, and what each does.
GROUPS: Mapping[str, Mapping[str, str]] = {
    "common commands": {
        "init": "write a project file for a model, from the model's file",
        "check": "run the reference (onnxruntime) on your photos, on this machine",
        "deploy": "compile, package, upload, activate and test: the main command",
        "run": "run the deployed model on a photo or a tensor",
        "status": "show which model runs on a device, since when, by whom, and its last smoke test",
        "bench": "time the deployed model on the device",
    },
    "models": {
        "inspect": "print inputs, outputs, operators, parameters and MACs of a model",
        "evaluate": "measure accuracy on labelled photos or rows, here and on the device",
        "enroll": "add people to a gallery of faces, by photos of them",
        "quantize": "convert a float model to 8-bit integers, calibrated on your photos",
        "tune": "find faster kernels for a model, on the device",
        "compile": "compile a model for a board's CPU",
        "report": "combine the HTML pages of a project into one page",
        "package": "make a bundle, and a tarball, package or image of it",
        "sdk": "make a library that runs models in your own C, C++ or Python program",
    },
    "on a device": {
        "rollback": "make an earlier release current again",
        "trial": "show, stop or decide the trial that `deploy --shadow` began",
        "service": "run the deployed model at each boot",
        "logs": "print the log of the service on a device; -f follows it",
        "compare": "find the layer whose result on the device differs from onnxruntime's",
        "prune": "remove old releases from a device",
        "repair": "restore files that a failing card damaged on a device",
    },
    "many devices": {
        "fleet": "work on many devices, in waves: plan, deploy, status, rollback, trust",
        "publish": "publish packages, models or images in a repository or registry",
        "matrix": "print a matrix of CI jobs: one for each project and board",
    },
    "signatures": {
        "keygen": "make a key that signs bundles, with ssh-keygen",
        "sign": "sign a bundle, in place",
        "verify": "check all files of a bundle and its signature",
        "trust": "show or replace the list of signers that a device accepts",
    },
    "this machine": {
        "boards": "list the board profiles",
        "board": "start, stop, list and use virtual boards",
        "doctor": "check whether the tools for a board are installed",
        "cache": "show or prune edgepack's cache",
        "schema": "print the JSON Schema of edgepack.toml, fleet.toml or boards.toml, for editors",
        "completion": "print completions for bash, zsh or fish",
    },
}
COMMANDS = {name: does for group in GROUPS.values() for name, does in group.items()}
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


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """argparse's, with the commands in their groups."""

    def _format_action(self, action: argparse.Action) -> str:
        names = action.choices if isinstance(action, argparse._SubParsersAction) else ()
        if set(names) != set(COMMANDS):
            return super()._format_action(action)
        helps = {sub.dest: sub for sub in self._iter_indented_subactions(action)}
        parts = []
        for title, group in GROUPS.items():
            parts.append(f"  {title}:\n")
            self._indent()
            self._indent()
            parts += [super(_HelpFormatter, self)._format_action(helps[name]) for name in group]
            self._dedent()
            self._dedent()
        return "".join(parts)


class _Parser(argparse.ArgumentParser):
    """argparse, with our form of messages and no abbreviated options."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(
            allow_abbrev=False,
            formatter_class=_HelpFormatter,
            **kwargs,  # type: ignore[arg-type]
        )

    def format_usage(self) -> str:
        """The arguments; options are listed below them, in their groups."""
        if self.usage is None:
            return self._short_usage()
        return super().format_usage()

    def format_help(self) -> str:
        """As argparse's, with that usage."""
        usage, self.usage = self.usage, self._short_usage().removeprefix("usage: ").strip()
        try:
            return super().format_help()
        finally:
            self.usage = usage

    def print_help(self, file: Any = None) -> None:
        """Without the groups that are rarely needed, which a line names."""
        rare = rare_groups(self)
        if not rare:
            super().print_help(file)
            return
        groups, epilog = self._action_groups, self.epilog
        titles = ", ".join(str(group.title) for group in rare)
        try:
            self._action_groups = [group for group in groups if group not in rare]
            self.epilog = f"more options ({titles}): %(prog)s --help-all\n\n{epilog or ''}"
            super().print_help(file)
        finally:
            self._action_groups, self.epilog = groups, epilog

    def _short_usage(self) -> str:
        formatter = self._get_formatter()
        words = formatter._format_usage(None, self._get_positional_actions(), [], None)
        # What stands in a usage is a template.
        return words.strip().replace(self.prog, f"{self.prog} [OPTION ...]", 1).replace("%", "%%")

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"see `{self.prog} --help`")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            raise UsageError(
                f"{self.prog}: unknown command: {value}", hint=perhaps(str(value), action.choices)
            )
        super()._check_value(action, value)

    def parse_args(self, args: Sequence[str], namespace: Any = None) -> Any:  # type: ignore[override]
        """As argparse's; of an option that is not known, the nearest one is named."""
        parsed, left = self.parse_known_args(args, namespace)
        if left:
            option = left[0].partition("=")[0]
            known = _options(self, args)
            raise UsageError(
                f"{'unknown option' if option.startswith('-') else 'too many arguments'}: "
                + " ".join(left),
                hint=perhaps(option, known) if option.startswith("-") else None,
            )
        return parsed


def _options(parser: argparse.ArgumentParser, words: Iterable[str]) -> set[str]:
    """The options of a parser, and of those of its commands that are among `words`."""
    found = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word in set(words) & set(action.choices):
                found |= _options(action.choices[word], words)
    return found


def make_parser(words: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """The command line; the docs' reference is generated from it.

    A command that is not among `words` has a name and a line in the help only: what its
    module imports can take a second, and all their general options 10 ms.
    """
    wanted = set(words)
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    parser = _Parser(
        prog="edgepack",
        description="Put a trained ONNX or TFLite model on an ARM board, and verify it there.",
        epilog="edgepack COMMAND --help prints the command's options and examples\n\n"
        f"exit codes:\n{codes}",
    )
    parser.add_argument("--version", action="store_true", help="show edgepack's version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    for name, does in COMMANDS.items():
        if name not in wanted:
            commands.add_parser(name, help=does, add_help=False)
            continue
        command = commands.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.")
        importlib.import_module(f"edgepack.cli.{name}").add(command)
        shown = "\n".join(f"  {example}" for example in EXAMPLES[name])
        more = f"\n\n{command.epilog}" if command.epilog else ""
        command.epilog = f"examples:\n{shown}{more}".replace("%", "%%")
        add_common(command)
    add_common(parser)
    return parser


def _run(parser: argparse.ArgumentParser, args: argparse.Namespace, console: Console) -> int:
    """The exit code of what was asked for; without a command, that is the help."""
    if args.version:
        console.data({"version": VERSION}, f"edgepack {VERSION}")
    elif hasattr(args, "run"):
        if getattr(args, "model", None) is not None:
            from edgepack.model.sources import is_source, local_model

            # `init` is for a model that stays; for other commands it may come from the cache.
            stays = getattr(args, "keeps_model", False)
            beside = (args.out.parent if args.out else Path()) if stays else None
            args.is_fetched = is_source(args.model)
            args.model = local_model(args.model, beside=beside)
        code: int = args.run(args, console)
        return code
    else:
        parser.print_help()
    return 0


def main(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; nothing is raised but a bug."""
    no_color = bool(os.environ.get("NO_COLOR"))
    console = Console(as_json="--json" in argv, no_color=no_color)
    try:
        parser = make_parser(argv)
        args = parser.parse_args(argv)
        for name, default in COMMON_DEFAULTS.items():
            if not hasattr(args, name):
                setattr(args, name, default)
        console = Console(
            as_json=args.json, verbose=args.verbose, quiet=args.quiet, no_color=no_color
        )
        if args.cache_dir is not None:
            check_writable(args.cache_dir, "--cache-dir")
            set_cache_dir(args.cache_dir)
        places = args.find_links or os.environ.get("EDGEPACK_WHEELS", "").split()
        if places:
            from edgepack.native.wheel_places import use_places

            use_places(places)
        with attach_listener(console), outside_allowed(args.allow_outside):
            return _run(parser, args, console)
    except EdgepackError as error:
        console.error(error.message, error.hint, error.exit_code)
        return error.exit_code
    except KeyboardInterrupt as error:
        stopped = error if isinstance(error, Stopped) else Stopped(signal.SIGINT)
        console.error(stopped.word, None, stopped.code)
        return stopped.code
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

"""Options that several commands share.

A command's options are read without what it works with: that is imported where it is used.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from edgepack.base.errors import UsageError
from edgepack.base.paths import default_root
from edgepack.base.progress import Progress
from edgepack.boards import TOOLCHAINS, get_board

if TYPE_CHECKING:
    from edgepack.boards import Board
    from edgepack.device import Device, SshOptions
    from edgepack.flow.project import Project
    from edgepack.model.constants import Constant

log = logging.getLogger(__name__)

T = TypeVar("T")
USER_BOARDS = Path("~/.config/edgepack/boards.toml")
COMMAND_S = 300.0
"""`SshOptions.command_timeout_s`, which is not imported here for its own sake."""
ASKING_S = 60.0
"""For what a device only has to look up."""
LOCKING_S = 120.0
"""For what is quick once nobody else is at work there, which it waits a minute for."""
TESTING_S = 900.0
"""For what ends with the health gate: that has ten minutes, unless the bundle says otherwise."""
MEASURING_S = 3600.0
"""For many runs on a slow board: whoever measures for longer says so."""


MODEL_HELP = "ONNX or TFLite model: a file, a folder with one, or an address: hf://org/repo"
MODEL, COMPILING, RELEASE = "model and board", "compiling", "release"
DEPLOYED, DEVICE, TRANSFER = "deployed model", "device", "transfer"
TRIAL, GENERAL = "trial", "general options"
"""Groups of options in a command's help."""
RARE = (TRANSFER, COMPILING, TRIAL, GENERAL)
"""Those that --help leaves out of the help of a command that compiles, which is long."""


class _HelpAll(argparse.Action):
    """Prints the help with all options."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        parser._print_message(parser.format_help(), sys.stdout)
        parser.exit()


def option_group(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """The group of that title, made where it is first asked for."""
    for group in parser._action_groups:
        if group.title == title:
            return group
    if title == COMPILING:
        parser.add_argument(
            "--help-all", action=_HelpAll, nargs=0, help="show all options, also rare ones"
        )
    return parser.add_argument_group(title)


def rare_groups(parser: argparse.ArgumentParser) -> list[argparse._ArgumentGroup]:
    """The groups that --help leaves out."""
    if "--help-all" not in parser._option_string_actions:
        return []
    return [group for group in parser._action_groups if group.title in RARE]


def board_files(args: argparse.Namespace) -> list[Path]:
    """The user's board files: the one in ~/.config if it is there, then --boards."""
    own = USER_BOARDS.expanduser()
    return [*([own] if own.exists() else []), *args.boards]


def add_common(parser: argparse.ArgumentParser) -> None:
    """--json, -v and the rest: every command takes them, before or after its name."""
    group = parser.add_argument_group(GENERAL)
    group.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="print data as JSON"
    )
    group.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=argparse.SUPPRESS,
        help="log steps; if given twice, also log commands",
    )
    group.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        default=argparse.SUPPRESS,
        help="do not print steps and notes",
    )
    group.add_argument(
        "--boards",
        action="append",
        type=Path,
        metavar="FILE",
        default=argparse.SUPPRESS,
        help=f"file with more or changed board profiles (always read: {USER_BOARDS})",
    )
    group.add_argument(
        "--allow-outside",
        action="store_true",
        default=argparse.SUPPRESS,
        help="allow a project file or an inventory to name files outside its folder",
    )
    group.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="cache folder (default: ~/.cache/edgepack)",
    )
    group.add_argument(
        "--find-links",
        action="append",
        metavar="DIR",
        default=argparse.SUPPRESS,
        help="a folder, or the URL of a page, with wheels of programs that edgepack "
        "would otherwise build from source (repeatable; default: $EDGEPACK_WHEELS)",
    )


COMMON_DEFAULTS = {
    "json": False,
    "verbose": 0,
    "quiet": False,
    "boards": [],
    "allow_outside": False,
    "cache_dir": None,
    "find_links": None,
}


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model, from the command line or a project file, and what its inputs are."""
    parser.add_argument(
        "model", nargs="?", type=Path, help=f"{MODEL_HELP} (default: the project file's model)"
    )
    group = option_group(parser, MODEL)
    group.add_argument(
        "--project",
        type=Path,
        metavar="FILE",
        help="project file (default: edgepack.toml in the current folder, unless a model is given)",
    )
    group.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT=1,3,224,224",
        help="shape of an input with dynamic dimensions (repeatable)",
    )
    add_set(parser)


def project_file(args: argparse.Namespace) -> Path | None:
    """The one that is named, else edgepack.toml of the current folder.

    Unless the model that is given is another than its own: then that is said.
    """
    from edgepack.flow.project import PROJECT_FILE, model_named_in

    here = Path(PROJECT_FILE)
    if args.project is None and getattr(args, "is_fetched", False):
        from edgepack.model.sources import project_beside

        args.project = project_beside(args.model)
    if args.project is None and here.exists():
        own = model_named_in(here) if args.model is not None else None
        if args.model is None or (
            own and own.exists() and args.model.exists() and own.samefile(args.model)
        ):
            args.project = here
        elif own is not None and not getattr(args, "told_of_project", False):
            args.told_of_project = True
            log.warning(
                "%s is not read, since its model is %s: --project %s applies it to %s",
                here,
                own,
                here,
                args.model,
            )
    path: Path | None = args.project
    return path


def add_job(parser: argparse.ArgumentParser) -> None:
    """The model and the board: what is compiled, and for what."""
    from edgepack.flow.optimize import OPTIMIZE
    from edgepack.frontend.precision import COMPUTE, PRECISIONS, QUANTIZED

    add_model(parser)
    model = option_group(parser, MODEL)
    model.add_argument(
        "--board", metavar="NAME", help="name of a board profile, listed by `edgepack boards`"
    )
    model.add_argument("--name", help="name of the bundle (default: the model file's name)")
    group = option_group(parser, COMPILING)
    group.add_argument(
        "--toolchain", choices=TOOLCHAINS, help="compiler to use (default: the board's)"
    )
    group.add_argument(
        "--static",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="build programs that need no C library on the device (default: as in the "
        "board's profile)",
    )
    group.add_argument(
        "--optimize",
        choices=OPTIMIZE,
        help="bytes of weights that may be added for speed: half of the model's (balance, the "
        "default), all that are useful, or none",
    )
    group.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="type of the weights and, where the CPU can, of the arithmetic (default: float32); "
        "tf32 is for NVIDIA's GPUs",
    )
    group.add_argument(
        "--quantized",
        choices=QUANTIZED,
        help="layers of a quantised model on integers: those that it makes faster (auto, the "
        "default), all that can, or none",
    )
    group.add_argument(
        "--compute",
        choices=COMPUTE,
        help="processor that runs the model: the CPU (default), the board's GPU, or the GPU with "
        "the CPU as fallback",
    )
    group.add_argument(
        "--exact",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="do without Winograd's algorithm, whose rounding errors spread (default: as the "
        "project file says)",
    )
    group.add_argument(
        "--compile-memory-mb",
        type=positive,
        metavar="MB",
        help="memory limit of the compiler in MB (default: 2048 plus 16 times the model's file)",
    )
    group.add_argument(
        "--compile-cpu-s",
        type=positive,
        metavar="S",
        help="CPU time limit of the compiler in seconds (default: 60, plus 2 for each node)",
    )
    option_group(parser, RELEASE).add_argument(
        "--golden-input",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="a .npy file for the smoke test; repeat for each input, in the model's order "
        "(default: the project's photo or tensors, else random values)",
    )
    add_records(parser)


def add_records(parser: argparse.ArgumentParser) -> None:
    """What was tuned on devices."""
    group = option_group(parser, COMPILING)
    group.add_argument(
        "--records",
        action="append",
        type=Path,
        metavar="FILE",
        help="use the kernels that `edgepack tune` recorded in FILE (repeatable; "
        "default: the project file's, else its tuning.jsonl)",
    )
    group.add_argument(
        "--no-records",
        action="store_const",
        const=[],
        dest="records",
        help="choose all kernels by the cost model, without records",
    )


def add_release_version(parser: argparse.ArgumentParser) -> None:
    """The number of the release, and whether the compiled model is verified."""
    group = option_group(parser, RELEASE)
    group.add_argument(
        "--verify",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="before packing, compare the board's code, under an emulator, with the reference "
        "on several inputs (default)",
    )
    group.add_argument(
        "--release-version",
        "--version",
        type=release_version,
        metavar="N|auto",
        help="number of the release, which a device with pinned signers takes only if it is "
        "no lower than before; auto is the time, in seconds since 1970",
    )
    group.add_argument(
        "--valid-until",
        type=valid_until,
        metavar="DATE|DAYSd",
        help="last date on which devices install the release: 2027-01-31 (UTC), or 90d from now",
    )


def add_device(parser: argparse.ArgumentParser, *, timeout_s: float | None = COMMAND_S) -> None:
    """How the device is reached; `timeout_s` is what a command there may take."""
    group = option_group(parser, DEVICE)
    group.add_argument(
        "--device",
        metavar="USER@HOST[:PORT]",
        help="an SSH address, a name from your OpenSSH config, adb:SERIAL, `virtual` or `local`",
    )
    add_ssh(parser, timeout_s=timeout_s)


def add_ssh(parser: argparse.ArgumentParser, *, timeout_s: float | None = COMMAND_S) -> None:
    """How to log in, the folder there, and the patience with it."""
    group = option_group(parser, DEVICE)
    group.add_argument("--identity", type=Path, metavar="FILE", help="private key to log in with")
    group.add_argument(
        "--ssh-config",
        type=Path,
        metavar="FILE",
        help="SSH configuration file (default: ~/.ssh/config)",
    )
    group.add_argument(
        "--known-hosts",
        type=Path,
        metavar="FILE",
        help="file of known host keys (default: ~/.ssh/known_hosts)",
    )
    group.add_argument(
        "--accept-new-host-key",
        action="store_true",
        help="trust the host key of a new host; a changed host key is always refused",
    )
    group.add_argument(
        "--root", metavar="DIR", help="folder on the device (default: edgepack/<name>)"
    )
    group.add_argument(
        "--connect-timeout",
        type=positive,
        default=10,
        metavar="S",
        help="time limit for connecting, in seconds (default: 10)",
    )
    group.add_argument(
        "--device-timeout",
        type=positive,
        default=timeout_s,
        metavar="S",
        help="time limit of one command on the device, in seconds "
        f"(default: {'no limit' if timeout_s is None else f'{timeout_s:.0f}'})",
    )


def of_memory(board: Board, size_bytes: int) -> str:
    """How much of a board's memory that is; empty for this machine, which has what it has."""
    if board.is_local:
        return ""
    return f"; {size_bytes / (board.memory_mb << 20):.1%} of {board.name}'s {board.memory_mb} MB"


def port_number(text: str) -> int:
    """A TCP port, or 0 for any that is free."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return value


def positive(text: str) -> int:
    """The type of options that are a count."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def from_to(least: int, most: int) -> Callable[[str], int]:
    """The type of options that are a whole number from `least` to `most`."""

    def within(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {least} to {most}"
            )
        return int(text)

    return within


# As edgepack-run has them.
threads = from_to(1, 64)
runs = from_to(1, 1_000_000)
runs_or_none = from_to(0, 1_000_000)


def fraction(text: str) -> float:
    """The type of options that are a number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return value


def release_version(text: str) -> int:
    """The type of a release's number; "auto" is now, which is higher than any before."""
    return int(time.time()) if text == "auto" else count(text)


def valid_until(text: str) -> str:
    """The type of the end of a release's time."""
    from edgepack.flow.project import end_of_validity

    try:
        return end_of_validity(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def count(text: str) -> int:
    """The type of options that are a count and may be 0."""
    return 0 if text == "0" else positive(text)


def check_writable(folder: Path, option: str) -> None:
    """Raise UsageError unless `folder` can be made, or written to: before any long step."""
    at = folder.absolute()
    while not (at.exists() or at.is_symlink()):
        at = at.parent
    if not at.is_dir():
        raise UsageError(f"{option}: not a folder: {at}")
    try:
        with tempfile.TemporaryFile(dir=at):
            pass
    except OSError as error:
        raise UsageError(
            f"{option}: cannot write to {at}: {error.strerror}", hint="name another folder"
        ) from None


def parse_shapes(values: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shapes of `--shape INPUT=1,3,224,224`; raises UsageError."""
    shapes = {}
    for value in values:
        name, equals, text = value.rpartition("=")
        sizes = text.replace("x", ",").split(",")
        if not equals or not name or not all(size.strip().isdecimal() for size in sizes):
            raise UsageError(
                f"--shape: cannot read {value!r}", hint="for example --shape input=1,3,224,224"
            )
        shapes[name] = tuple(int(size) for size in sizes)
    return shapes


def add_set(parser: argparse.ArgumentParser) -> None:
    """Inputs that become constants, or keep an output."""
    group = option_group(parser, MODEL)
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="INPUT=16000",
        help="make an input a constant: a number, true, false, or several values with "
        "commas (repeatable)",
    )
    group.add_argument(
        "--state",
        action="append",
        default=[],
        metavar="INPUT=OUTPUT",
        help="a state: an input that takes the value of an output of the previous "
        "inference; one * in both names stands for the same text (repeatable)",
    )


def parse_states(values: Sequence[str]) -> dict[str, str]:
    """The pairs of `--state INPUT=OUTPUT`; raises UsageError."""
    states: dict[str, str] = {}
    for value in values:
        name, equals, output = value.partition("=")
        if not equals or not name or not output:
            raise UsageError(
                f"--state: cannot read {value!r}",
                hint="for example --state 'past_key_values.*=present.*'",
            )
        if name in states:
            raise UsageError(f"--state: '{name}' is given twice")
        states[name] = output
    return states


def parse_constants(values: Sequence[str]) -> dict[str, Constant]:
    """The values of `--set INPUT=VALUE`; raises UsageError."""
    constants: dict[str, Constant] = {}
    for value in values:
        name, equals, text = value.rpartition("=")
        items = [_constant(item.strip()) for item in text.split(",")]
        known = [item for item in items if item is not None]
        if not equals or not name or len(known) < len(items):
            raise UsageError(
                f"--set: cannot read {value!r}", hint="for example --set sr=16000 or --set on=true"
            )
        constants[name] = tuple(known) if len(known) > 1 else known[0]
    return constants


def _constant(text: str) -> bool | int | float | None:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return None


def project_of(args: argparse.Namespace) -> Project:
    """The project file's values with the flags over them.

    Without --project and without a model, edgepack.toml of the current folder is read.
    """
    from edgepack.flow.project import load_project

    flags = {
        "name": args.name,
        "version": getattr(args, "release_version", None),
        "valid_until": getattr(args, "valid_until", None),
        "model": args.model,
        "board": args.board,
        "boards": None,
        "toolchain": args.toolchain,
        "static": args.static,
        "verify": getattr(args, "verify", None),
        "optimize": args.optimize,
        "precision": args.precision,
        "quantized": args.quantized,
        "compute": args.compute,
        "exact": args.exact,
        "compile_memory_mb": args.compile_memory_mb,
        "compile_cpu_s": args.compile_cpu_s,
        "golden_input": tuple(getattr(args, "golden_input", ())) or None,
        "records": None if args.records is None else tuple(args.records),
        "shapes": parse_shapes(args.shape),
        "constants": parse_constants(args.set),
        "states": parse_states(args.state),
        "device": getattr(args, "device", None),
        "root": getattr(args, "root", None),
    }
    project = load_project(project_file(args), flags)
    return replace(project, boards=(*project.boards, *board_files(args)))


def ssh_options(args: argparse.Namespace) -> SshOptions:
    """How to log in."""
    from edgepack.device import SshOptions

    return SshOptions(
        config_file=args.ssh_config,
        identity=args.identity,
        known_hosts=args.known_hosts,
        accept_new_host_key=args.accept_new_host_key,
        connect_timeout_s=args.connect_timeout,
        command_timeout_s=args.device_timeout,
    )


def add_release(parser: argparse.ArgumentParser) -> None:
    """Which deployed model is meant."""
    group = option_group(parser, DEPLOYED)
    group.add_argument(
        "--project",
        type=Path,
        metavar="FILE",
        help="project file (default: edgepack.toml in the current folder, for values "
        "without a flag)",
    )
    group.add_argument("--board", metavar="NAME", help="board profile, for --device virtual")
    group.add_argument("--name", help="name of the deployed bundle")


def open_release(args: argparse.Namespace, progress: Progress) -> tuple[Device, str]:
    """The connected device and the folder of the model on it.

    Without --project, edgepack.toml of the current folder gives what the flags leave open.
    """
    from edgepack.device import open_device
    from edgepack.flow.project import PROJECT_FILE, load_project

    path = args.project
    all_given = (args.name or args.root) and (args.board or args.device not in (None, "virtual"))
    if path is None and not all_given and Path(PROJECT_FILE).exists():
        path = Path(PROJECT_FILE)
    project = load_project(path) if path is not None else None
    name = args.name or (project.name if project else None)
    spec = args.device or (project.device if project else None)
    root = (
        args.root or (project.root if project else None) or (default_root(name) if name else None)
    )
    if root is None:
        raise UsageError(
            "which deployed model?", hint="give --project FILE, --name NAME or --root DIR"
        )
    if spec is None:
        raise UsageError("no device given", hint="add --device user@address")
    board = args.board or (project.board if project else None)
    if board is None and spec == "virtual":
        raise UsageError("--device virtual needs a board", hint="add --board NAME")
    files = [*(project.boards if project else ()), *board_files(args)]
    profile = get_board(board or "local", files)
    return open_device(spec, profile, options=ssh_options(args), progress=progress), root


def ask_device(
    args: argparse.Namespace, progress: Progress, ask: Callable[[Device, str], T]
) -> tuple[T, str]:
    """What `ask` gives of the device and folder that are meant, and which these were."""
    device, root = open_release(args, progress)
    try:
        return ask(device, root), f"{root} on {device.name}"
    finally:
        device.close()


def add_sign(parser: argparse.ArgumentParser) -> None:
    """Options for a command that makes a bundle which may be signed."""
    option_group(parser, RELEASE).add_argument(
        "--sign",
        type=Path,
        metavar="KEY",
        help="sign the bundle with this private key, or with the .pub file of a key in ssh-agent",
    )

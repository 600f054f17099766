"""What a board needs on this machine: found or not, which version, and how to install it."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgepack.base import tools
from edgepack.base.errors import EdgepackError
from edgepack.base.process import run
from edgepack.base.version import VERSION
from edgepack.boards import TOOLCHAINS, Board
from edgepack.kernels.tiles.cpu import has_model
from edgepack.native.prebuilt import is_available, package_of
from edgepack.native.toolchain import find, gnu_compiler


@dataclass(frozen=True, kw_only=True)
class Check:
    """One tool: `version` is None if it was not found; `install` is a shell command.

    Without a tool that is `required` the board cannot be built for; the others are for
    what `purpose` says only.
    """

    tool: str
    purpose: str
    required: bool
    version: str | None
    install: str


PYTHON_PACKAGES = ("apache-tvm", "onnx", "onnxruntime", "opencv-python-headless", "paramiko")


def check_board(board: Board) -> list[Check]:
    """Every tool that `board` needs, in the order in which they are used, and its cost model.

    Where a wheel has the programs for the board, compilers are not required.
    """
    checks = [_package(name, "compiling and deploying") for name in PYTHON_PACKAGES]
    built = not (board.is_local or board.is_static)
    if built:
        name = package_of(board.triple)
        programs = _package(name, "the programs for the board, built", required=False)
        if programs.version is None and is_available(board.triple):
            programs = replace(programs, version=VERSION)
        # No package index has it: who builds once for many makes it.
        checks.append(replace(programs, install=f"./dev wheels {board.triple}, in a clone"))
    built = built and is_available(board.triple)
    for name in ("cmake", "ninja"):
        checks.append(_package(name, "building those programs", required=not built))
    for kind in TOOLCHAINS:
        checks.append(_compiler(kind, board, required=not built))
    checks.append(_program(("ssh",), "edgepack board ssh", "-V"))
    if board.virtual is not None:
        arch = "arm" if board.debian_arch == "armhf" else "aarch64"
        emulators = (f"qemu-{arch}-static", f"qemu-{arch}")
        checks += [
            _program(emulators, "virtual board (light)", "--version"),
            _program(("mmdebstrap",), "virtual board", "--version"),
            _program(("newuidmap",), "virtual board, ordinary user", None),
            _program(("qemu-system-aarch64",), "virtual board (full system)", "--version"),
            _program(("mke2fs",), "virtual board (full system)", "-V"),
        ]
    return [*checks, _cost_model_check(board)]


def cost_model(board: Board) -> str | None:
    """By whose figures the board's kernels are chosen: None if its CPU has none of its own."""
    if board.is_local:
        return "of this machine"
    return board.cpu if has_model(board.llvm_triple, board.cpu) else None


def cost_model_gap(board: Board) -> str | None:
    """What is to be said if kernels for a board are chosen by figures of another CPU, or None."""
    if has_model(board.llvm_triple, board.cpu):
        return None
    # Only LLVM knows this machine's CPU by name, and what vectors others have.
    from edgepack.compiler.backend import llvm

    return llvm.cost_model_gap(board)


def _cost_model_check(board: Board) -> Check:
    try:
        gap = cost_model_gap(board)
    except ImportError:  # TVM, which has a line of its own
        gap = None
    return Check(
        tool=f"cost model of {board.cpu}",
        purpose="choosing kernels",
        required=False,
        version=None if gap else cost_model(board),
        install=f"{gap}; see docs/contributing/add-a-cpu.md",
    )


def find_missing(checks: Sequence[Check]) -> list[Check]:
    """The required ones that were not found."""
    return [check for check in checks if check.required and check.version is None]


def _package(name: str, purpose: str, *, required: bool = True) -> Check:
    import importlib.metadata  # a mail library and more

    try:
        version: str | None = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = None
    install = tools.install(name) if name in tools.PYTHON_PACKAGES else f"pip install {name}"
    return Check(tool=name, purpose=purpose, required=required, version=version, install=install)


def _compiler(kind: str, board: Board, *, required: bool) -> Check:
    preferred = kind == board.toolchain
    try:
        version: str | None = find(kind, board).title
    except EdgepackError:
        version = None
    return Check(
        tool=f"{kind} for {board.triple}",
        purpose="compiling" if preferred else f"compiling with --toolchain {kind}",
        required=required and preferred,
        version=version,
        install=tools.install("zig" if kind == "zig" else gnu_compiler(board)),
    )


@functools.cache  # boards ask for the same programs
def _version_of(program: Path, flag: str) -> str | None:
    result = run([program, flag], check=False)
    found = re.search(r"\d+\.\d+[\w.]*", result.stdout + result.stderr)
    return found.group() if found else None


def _program(names: Sequence[str], purpose: str, flag: str | None) -> Check:
    """The first of `names` that is here; `flag` makes it print its version."""
    path = tools.look_for(*names)
    version = str(path) if path else None
    if path is not None and flag is not None:
        version = _version_of(path, flag) or version
    return Check(
        tool=names[0],
        purpose=purpose,
        required=False,
        version=version,
        install=tools.install(names[0]),
    )

"""A bundle's own program on this machine: what the board would be the first to start."""

from __future__ import annotations

from pathlib import Path

from edgepack.base.errors import BundleError
from edgepack.base.paths import cache_dir
from edgepack.base.process import run
from edgepack.base.tools import apt
from edgepack.boards import Board
from edgepack.bundle import manifest
from edgepack.bundle.bundle import Bundle
from edgepack.native.emulate import emulator

_TIMEOUT_S = 300.0


def own_program(bundle: Bundle, board: Board) -> tuple[str | Path, ...] | None:
    """The start of a command line that runs the bundle's edgepack-run here, by the board's emulator
    if it is another machine's; None if there is no emulator, or no C library for the program."""
    app = bundle.file(manifest.APP)
    if board.is_local:
        return (app,)
    emulated = emulator(board)
    if emulated is None:
        return None
    if board.is_static:
        return (*emulated, app)
    sysroot = _sysroot(board)
    return None if sysroot is None else (*emulated, "-L", sysroot, app)


def check_loads(bundle: Bundle, board: Board) -> str | None:
    """Let the bundle's own program load all that is in it, and run nothing: of any size.

    None if it was loaded; else what is missing here to try. Raises `BundleError` with what the
    program says if it refuses the bundle, and `TimeLimitError`.
    """
    program = own_program(bundle, board)
    if program is None:
        return apt("qemu-user-static", f"libc6-{board.debian_arch}-cross")
    run(
        [*program, "--bundle", bundle.path, "--load-only", "--threads", "1"],
        timeout_s=_TIMEOUT_S,
        error=BundleError,
        what=f"loading the bundle with the program for {board.name}",
    )
    return None


def _sysroot(board: Board) -> Path | None:
    """A folder with the C library of the board's architecture: Debian's for cross compilers, or the
    root file system of a virtual board."""
    made = sorted((cache_dir() / "rootfs").glob(f"*-{board.debian_arch}-*"))
    for folder in (Path("/usr") / board.triple, *made):
        if any((folder / "lib").glob("ld-linux*")):
            return folder
    return None

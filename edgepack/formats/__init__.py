"""Bundles in the forms that other update systems take.

Each form carries the bundle as it is, and on the device ends in the bundle's own `install`:
the same checks, the same test, the same way back as `edgepack deploy`. The exceptions are an
OCI image, whose engine has its own, and an Android app. See docs/guides/update-systems.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.errors import UsageError, perhaps
from edgepack.base.tools import find_tool
from edgepack.boards import Board
from edgepack.bundle.bundle import Bundle
from edgepack.formats import android, deb, mender, oci, rauc, tar
from edgepack.formats.base import Options, Package, PackageRequest

__all__ = ["FORMATS", "Format", "Options", "Package", "check", "check_board", "write_package"]


@dataclass(frozen=True, kw_only=True)
class Format:
    """How a format is written, the programs that takes, and the options that fit it."""

    write: Callable[[PackageRequest], Package]
    programs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()


FORMATS: Mapping[str, Format] = {
    "tar": Format(write=tar.write),
    "deb": Format(write=deb.write, programs=("dpkg-deb",)),
    "android-lib": Format(write=android.write),
    "oci": Format(write=oci.write, programs=("mmdebstrap",)),
    "mender": Format(
        write=mender.write, programs=("mender-artifact",), options=("key", "compatible")
    ),
    "rauc": Format(
        write=rauc.write,
        # rauc starts mksquashfs, and without it says only that a child failed.
        programs=("rauc", "mksquashfs"),
        options=("key", "cert", "compatible"),
        needed=("key", "cert"),
    ),
}
_FLAGS = {"key": "--pem-key", "cert": "--pem-cert", "compatible": "--compatible"}
# It becomes a line of a manifest, and a word of a command.
_COMPATIBLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+ -]{0,63}")


def check(kind: str, options: Options) -> None:
    """Check all that can be known before there is a bundle.

    Raises UsageError for another format than FORMATS has, options that do not fit it or are
    missing, and files that are not there; ToolMissingError if a program is not installed.
    """
    if kind not in FORMATS:
        raise UsageError(f"unknown format: {kind}", hint=perhaps(kind, FORMATS))
    chosen = FORMATS[kind]
    for name, flag in _FLAGS.items():
        value = getattr(options, name)
        if value is None:
            if name in chosen.needed:
                raise UsageError(
                    f"the format {kind} needs {flag}",
                    hint="RAUC takes signed bundles only: a key, and a certificate that the "
                    "device's keyring knows, both as PEM files",
                )
        elif name not in chosen.options:
            takers = " and ".join(key for key, item in FORMATS.items() if name in item.options)
            raise UsageError(f"{flag} is not for the format {kind}", hint=f"it is for {takers}")
        elif isinstance(value, Path) and not value.is_file():
            raise UsageError(f"{flag}: no such file: {value}")
        elif name == "compatible" and not _COMPATIBLE.fullmatch(value):
            raise UsageError(f"{flag}: {value!r}", hint="letters, digits and _ . + - only")
    for program in chosen.programs:
        find_tool(program)


def check_board(kind: str, board: Board) -> None:
    """Raise UsageError for a board that has no use for the format, before anything is built."""
    if kind == "android-lib" and "android" not in board.os.lower():
        raise UsageError(
            f"the format android-lib is part of an Android app, and {board.name} runs {board.os}",
            hint="--board android-arm64, or a profile of your own whose os is an Android; "
            "--format tar, deb or oci is for Linux",
        )


def write_package(
    kind: str, bundle: Bundle, board: Board, out: Path, options: Options | None = None
) -> Package:
    """Write `bundle` for `board` into the folder `out` as a file of the format `kind`.

    Raises what `check` raises, NoInstallerError for a bundle of an edgepack before the
    device tool, PackageError if a program fails.
    """
    options = options or Options()
    check(kind, options)
    out.mkdir(parents=True, exist_ok=True)
    request = PackageRequest(bundle=bundle, board=board, out=out, options=options)
    return FORMATS[kind].write(request)

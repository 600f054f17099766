"""Compilers: what is there, what can meet a board's glibc floor, and which one is taken."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edgepack.base.errors import ToolchainError, UsageError, perhaps
from edgepack.base.kept import zig_cache
from edgepack.base.paths import data_file
from edgepack.base.process import Finished, run
from edgepack.base.tools import ToolMissingError, install, look_for
from edgepack.base.version import VERSION
from edgepack.boards import TOOLCHAINS, Board, version_tuple
from edgepack.native.prebuilt import find_prebuilt, is_available, package_of

# glibc that zig links against: old enough for the oldest floor in boards.toml, so that one
# runtime build per triple serves all of them.
ZIG_GLIBC = "2.28"
# What `edgepack[build]` installs, and what wheels of programs are built with.
ZIG_VERSION = "0.17.0"
BUILTINS = "builtins"
"""The folder of a wheel that holds zig's own functions."""
BUILTINS_FILE = "libbuiltins.a"
OWN_LINKER = "edgepack"
"""The kind of a toolchain that only links kernels."""
_CMAKE_FILES = {False: "zig.cmake", True: "zig_musl.cmake"}  # by whether it links statically


class MissingCompilerError(ToolMissingError):
    """The compiler for a triple is not installed."""


class GlibcTooNewError(ToolchainError):
    """A compiler was forced that links against a newer glibc than the board has."""


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """A C and C++ compiler for one triple.

    `cc` and `cxx` are the start of a command line for `run` (zig's include -target). `glibc` is
    the newest glibc version that a program linked by it can need; empty if it links statically,
    with musl. Without a compiler (see `has_compiler`), `cc` and `cxx` are empty. The toolchain
    then stands for programs that are built already, and `edgepack.native.linker` links kernels,
    with `builtins`.
    """

    kind: str
    triple: str
    version: str
    glibc: str
    cc: tuple[str, ...]
    cxx: tuple[str, ...]
    cmake_args: tuple[str, ...]
    builtins: Path | None = None

    @property
    def has_compiler(self) -> bool:
        """Whether the compiler is installed."""
        return bool(self.cc)

    def run(
        self, argv: Sequence[str | Path], *, what: str | None = None, cwd: Path | None = None
    ) -> Finished:
        """Run a program that is or starts this compiler, by `edgepack.base.process.run`."""
        if self.kind != "zig":
            return run(argv, what=what, cwd=cwd)
        with zig_cache() as env:
            return run(argv, env=env, what=what, cwd=cwd)

    @property
    def title(self) -> str:
        """The name in messages and the manifest, e.g. "zig 0.17.0 (glibc 2.28)"."""
        libc = "static, musl" if self.is_static else f"glibc {self.glibc}"
        return f"{self.kind} {self.version} ({libc})"

    @property
    def is_static(self) -> bool:
        """Whether its programs need no C library."""
        return not self.glibc


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A toolchain and why it was taken."""

    toolchain: Toolchain
    reason: str


def select(board: Board, force: str | None = None) -> Choice:
    """Return the toolchain for `board`: the forced kind, or the first that meets the glibc
    floor.

    If a wheel has zig's programs for the board, zig is not needed. If no compiler is installed,
    the choice is zig without a compiler, which suffices to compile a model. Raises
    MissingCompilerError (the forced one is not installed, or none that links static programs),
    GlibcTooNewError (the forced one cannot meet the floor) or UsageError (no such kind).
    """
    if force is not None and force not in TOOLCHAINS:
        raise UsageError(f"unknown toolchain: {force}", hint=perhaps(force, TOOLCHAINS))
    if board.is_static:
        if force not in (None, "zig"):
            raise UsageError(
                f"--toolchain {force} cannot build for {board.name} without a C library",
                hint="zig, which brings musl, can: leave --toolchain out",
            )
        return Choice(toolchain=_find_zig(board), reason="needs no C library on the board")
    built = Choice(toolchain=_zig(board), reason=f"built before: {package_of(board.triple)}")
    is_built = zig_executable() is None and is_available(board.triple)
    if force == "zig" and is_built:
        return built
    if force is not None:
        toolchain = find(force, board)
        if not _meets(toolchain, board):
            raise GlibcTooNewError(
                f"{toolchain.title} cannot build for {board.name}: what it links may need "
                f"GLIBC_{toolchain.glibc}, the board has {board.glibc} ({board.os})",
                hint="use --toolchain zig, which pins an older glibc",
            )
        return Choice(toolchain=toolchain, reason="asked for with --toolchain")
    kinds = (board.toolchain, *(kind for kind in TOOLCHAINS if kind != board.toolchain))
    refused = []
    for kind in kinds:
        if kind == "zig" and is_built:
            return built
        try:
            toolchain = find(kind, board)
        except MissingCompilerError:
            refused.append(f"{kind} is not installed")
            continue
        if _meets(toolchain, board):
            reason = f"meets the glibc floor {board.glibc} of {board.os}"
            return Choice(toolchain=toolchain, reason="; ".join([reason, *refused]))
        refused.append(f"{toolchain.title} is newer than the floor {board.glibc}")
    return Choice(toolchain=_zig(board), reason="; ".join(refused))


def need_compiler(toolchain: Toolchain, what: str) -> None:
    """Raise MissingCompilerError, with what installs it, if `what` cannot be built."""
    if not toolchain.has_compiler:
        raise MissingCompilerError(
            f"{what} for {toolchain.triple} has to be built, and {toolchain.kind} is not installed",
            hint=install("zig"),
        )


def _meets(toolchain: Toolchain, board: Board) -> bool:
    return version_tuple(toolchain.glibc) <= version_tuple(board.glibc)


def find(kind: str, board: Board) -> Toolchain:
    """The toolchain of `kind` for `board`'s triple; raises MissingCompilerError."""
    return _find_zig(board) if kind == "zig" else _find_gnu(board)


def zig_executable() -> Path | None:
    """The zig that the `ziglang` package ships, or None."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        return None
    zig = Path(spec.origin).parent / "zig"
    return zig if zig.exists() else None


def zig_version(zig: Path) -> str:
    """What `zig` says its version is."""
    return _version((str(zig), "version"))


def toolchain_licenses(toolchain: Toolchain) -> dict[str, str]:
    """Licence texts, by name, of what `toolchain` links into every C++ program."""
    if toolchain.kind == "gnu":
        folder = data_file("cpp_runtime") / "app" / "licenses"
        return {"gcc-runtime": (folder / "gcc-runtime.txt").read_text("utf-8")}
    libc = {"glibc-start-files": "lib/libc/glibc/LICENSES"}
    if toolchain.is_static:
        libc = {"musl": "lib/libc/musl/COPYRIGHT"}
    parts = {
        **libc,
        "libc++": "lib/libcxx/LICENSE.TXT",
        "libc++abi": "lib/libcxxabi/LICENSE.TXT",
        "libunwind": "lib/libunwind/LICENSE.TXT",
        "zig-compiler-rt": "LICENSE",
    }
    zig = Path(toolchain.cc[0])
    return {name: (zig.parent / file).read_text(encoding="utf-8") for name, file in parts.items()}


@functools.cache
def _version(argv: tuple[str, ...]) -> str:
    return run(argv).stdout.split("\n", 1)[0].strip()


@functools.cache
def _sysroot_glibc(compiler: str) -> str:
    """The glibc whose headers `compiler` uses, from the macros of features.h."""
    macros = dict(
        line.split(" ", 2)[1:3]
        for line in run(
            [compiler, "-E", "-dM", "-x", "c", "-"], input=b"#include <features.h>\n"
        ).stdout.splitlines()
        if line.startswith("#define __GLIBC")
    )
    return f"{macros['__GLIBC__']}.{macros['__GLIBC_MINOR__']}"


def gnu_compiler(board: Board) -> str:
    """The name of GCC's C++ compiler for `board`."""
    return "g++" if board.is_local else f"{board.triple}-g++"


def _find_gnu(board: Board) -> Toolchain:
    cxx = gnu_compiler(board)
    cc = cxx.removesuffix("g++") + "gcc"
    if look_for(cc) is None or look_for(cxx) is None:
        raise MissingCompilerError(f"compiler not found: {cxx}", hint=install(gnu_compiler(board)))
    return Toolchain(
        kind="gnu",
        triple=board.triple,
        version=_version((cc, "-dumpfullversion")),
        glibc=_sysroot_glibc(cc),
        cc=(cc,),
        cxx=(cxx,),
        cmake_args=(
            f"-DCMAKE_TOOLCHAIN_FILE={data_file('toolchains') / 'gnu.cmake'}",
            f"-DEDGEPACK_TRIPLE={'' if board.is_local else board.triple}",
        ),
    )


def musl_triple(board: Board) -> str:
    """`board`'s triple with musl for its C library, e.g. "arm-linux-musleabihf"."""
    return board.triple.replace("-gnu", "-musl")


def for_kernels(chosen: Toolchain, board: Board) -> Toolchain:
    """What links the kernels for `board` into a shared library.

    That needs no C library either way; it is made for a board whose programs are static as well,
    to be compared with the reference. Without a compiler it is this package's own linker; so it is
    in zig's place where no other functions are needed than a wheel or this machine has.
    """
    if chosen.is_static:
        chosen = _zig(replace(board, libc="glibc", glibc=ZIG_GLIBC))
    builtins = _builtins(board)
    # At its first link for a triple zig builds functions and stubs of glibc: 20 CPU s. (Where there
    # is no C library, the compiler is needed anyway, for the kernels are linked into the app.)
    is_spared = chosen.kind == "zig" and not board.is_static and (builtins or board.is_local)
    if chosen.has_compiler and not is_spared:
        return chosen
    own = replace(chosen, kind=OWN_LINKER, version=VERSION, builtins=builtins)
    return replace(own, cc=(), cxx=())


def builtins_name(triple: str) -> str:
    """The folder of zig's own functions for a triple, in a wheel."""
    return f"{triple}-{ZIG_VERSION}"


def _builtins(board: Board) -> Path | None:
    folder = find_prebuilt(board.triple, BUILTINS, builtins_name(board.triple))
    return folder / BUILTINS_FILE if folder else None


def zig_builtins(board: Board) -> Path:
    """The archive with zig's own functions (division, conversions), which it links with `board`'s
    kernels; built once. Raises ToolchainError, MissingCompilerError.
    """
    toolchain = _find_zig(replace(board, libc="glibc", glibc=ZIG_GLIBC))
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        source = Path(folder) / "empty.c"
        source.touch()
        # It is built at the first link that needs it, and said at each.
        flags = board.runtime_flags["zig"]
        words = [*toolchain.cc, *flags, "-shared", "-fPIC", "-O2", "-s", "-g0", "-v", str(source)]
        done = toolchain.run(
            [*words, "-o", source.with_suffix(".so")], what="looking for zig's own functions"
        )
    for word in (done.stdout + done.stderr).split():
        if Path(word).name.startswith(("libcompiler_rt", "compiler_rt")):
            return Path(word)
    raise ToolchainError("zig does not say where its own functions are")


def for_device_tool(board: Board) -> Toolchain:
    """What builds the device tool for `board`: zig, statically, with musl.

    For this machine it is its own compiler, if it has one: the tool then needs this machine's C
    library, as the app for it does, and no other has to be built for it.
    """
    if board.is_local and not board.is_static:
        with contextlib.suppress(MissingCompilerError):
            return _find_gnu(board)
    return _zig(replace(board, libc="none"))


def _find_zig(board: Board) -> Toolchain:
    toolchain = _zig(board)
    if not toolchain.has_compiler:
        raise MissingCompilerError("compiler not found: zig", hint=install("zig"))
    return toolchain


def _zig(board: Board) -> Toolchain:
    """zig for `board`, installed or not."""
    zig = zig_executable()
    if board.is_static:
        glibc, triple = "", musl_triple(board)
        target = ("-target", triple)
        own: tuple[str, ...] = ()
    else:
        glibc, triple = min(ZIG_GLIBC, board.glibc, key=version_tuple), board.triple
        target = ("-target", f"{triple}.{glibc}")
        own = (f"-DEDGEPACK_GLIBC={glibc}",)
    return Toolchain(
        kind="zig",
        triple=triple,
        version=zig_version(zig) if zig else ZIG_VERSION,
        glibc=glibc,
        cc=(str(zig), "cc", *target) if zig else (),
        cxx=(str(zig), "c++", *target) if zig else (),
        cmake_args=(
            f"-DCMAKE_TOOLCHAIN_FILE={data_file('toolchains') / _CMAKE_FILES[not glibc]}",
            f"-DEDGEPACK_TRIPLE={triple}",
            *own,
            f"-DEDGEPACK_ZIG={zig}",
        ),
    )


def link_relocatable(toolchain: Toolchain, objects: Sequence[Path], out: Path) -> None:
    """Link `objects` into one object file `out`; raises ToolchainError."""
    words: list[str | Path] = [*toolchain.cc, "-r", "-nostdlib", "-o", out, *objects]
    toolchain.run(words, what=f"linking {out.name}")


def link_shared(
    toolchain: Toolchain, objects: Sequence[Path], out: Path, flags: Sequence[str] = ()
) -> None:
    """Link `objects` into the shared library `out` (with libm); raises ToolchainError.

    Nothing of the machine gets into the file: no build id, no path.
    """
    words: list[str | Path] = [
        *toolchain.cc,
        *flags,
        # Otherwise zig links, and first builds, what sanitizers need at run time.
        "-O2",
        "-shared",
        "-fPIC",
        "-Wl,--build-id=none",
        f"-Wl,-soname,{out.name}",
        "-o",
        out,
        *objects,
        "-lm",
    ]
    toolchain.run(words, what=f"linking {out.name}")

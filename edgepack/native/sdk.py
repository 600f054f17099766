"""The library that other programs are built on: for C, C++ and, on the board, Python.

It is the app's inference library behind a C API (`cpp_runtime/sdk`), built once per triple with
the app's OpenCV, compilers and flags.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.errors import ToolchainError, UsageError
from edgepack.base.kept import keep
from edgepack.base.paths import atomic_dir, cache_dir, data_file
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.version import VERSION
from edgepack.boards import Board, version_tuple
from edgepack.native import static_library
from edgepack.native.app import cmake_arguments, library_licenses, runtime_key
from edgepack.native.opencv import build_opencv, jobs, name_opencv, tool
from edgepack.native.toolchain import Toolchain, need_compiler
from edgepack.native.wheel import PROGRAM, TEXT, wheel_bytes

SONAME = "libedgepack.so.1"
EXAMPLES = ("embed-c", "embed-cpp", "embed-python")
"""Folders of the examples, in a checkout's `examples`."""
_ARCHIVE = "libedgepack.a"
# What Python leaves where somebody has run an example.
_NO_CACHES = shutil.ignore_patterns("__pycache__", "*.pyc")
_PYTHON = "edgepack_runtime"
_POINTER_BYTES = {"aarch64": 8, "arm": 4, "x86_64": 8}
# How Python names the machine of a triple (PEP 600).
_MACHINES = {"aarch64": "aarch64", "arm": "armv7l", "x86_64": "x86_64"}


@dataclass(frozen=True, kw_only=True)
class SdkBuild:
    """The libraries for every board of a triple. `licenses` are of all that is linked into them."""

    folder: Path
    triple: str
    glibc: str
    licenses: Mapping[str, str]

    @property
    def shared(self) -> Path:
        """The shared library; it needs libc only."""
        return self.folder / SONAME

    @property
    def static(self) -> Path:
        """The same as an archive."""
        return self.folder / _ARCHIVE


def build_sdk(board: Board, toolchain: Toolchain, *, progress: Progress = NO_PROGRESS) -> SdkBuild:
    """The libraries for `board`'s triple, from the cache if they were built before.

    Equal sources and tools give equal bytes. Raises ToolchainError if a compiler fails, UsageError
    for a board whose programs are static: nothing can be loaded there.
    """
    if toolchain.is_static:
        raise UsageError(
            f"{board.name} runs static programs, which load no library",
            hint="take the board's profile with glibc, or talk to edgepack-run",
        )
    need_compiler(toolchain, "the library")
    opencv = name_opencv(board, toolchain)
    flags = board.runtime_flags[toolchain.kind]
    root = data_file("cpp_runtime")
    source = root / "app"
    # What makes the static library of an object file is code, too.
    parts = [
        runtime_key(source, opencv, flags),
        _hashes(root / "sdk"),
        hashlib.sha256(Path(static_library.__file__).read_bytes()).hexdigest(),
    ]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    folder = cache_dir() / "sdk" / f"{toolchain.triple}-{toolchain.kind}-{digest[:16]}"
    build_opencv(board, toolchain, progress=progress)

    def make(work: Path) -> None:
        progress.step(f"building the library for {toolchain.triple} with {toolchain.kind}")
        _compile(
            [
                *("-S", source, "-B", work / "build", "-G", "Ninja"),
                *cmake_arguments(opencv, toolchain, flags),
                f"-DEDGEPACK_VERSION={VERSION}",
                "-DEDGEPACK_SDK=ON",
            ],
            toolchain,
            work,
        )
        static_library.make_static_library(
            toolchain,
            flags,
            next((work / "build" / "sdk").rglob("edgepack.cc.o")),
            [*sorted((work / "build").rglob("*.a")), *opencv.archives],
            keep=_exported(root / "sdk" / "symbols.txt"),
            out=work / _ARCHIVE,
        )
        shutil.rmtree(work / "build")

    keep(folder, make)
    return SdkBuild(
        folder=folder,
        triple=toolchain.triple,
        glibc=toolchain.glibc,
        licenses=library_licenses(toolchain, source, opencv),
    )


def _hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each file that the libraries are made of, by path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.suffix in {".cc", ".h", ".map", ".txt"}
    }


def _exported(list_: Path) -> frozenset[str]:
    """The names of a list of versioned symbols."""
    return frozenset(line.partition("@")[0] for line in list_.read_text("utf-8").split())


def _compile(configure: list[str | Path], toolchain: Toolchain, out: Path) -> None:
    cmake = tool("cmake")
    toolchain.run([cmake, *configure], what="configuring the library")
    targets = ("edgepack_shared", "edgepack_api", "edgepack_sdk_drivers")
    toolchain.run(
        [cmake, "--build", out / "build", "--parallel", str(jobs()), "--target", *targets],
        what="building the library",
    )
    shutil.copy(out / "build" / "sdk" / SONAME, out / SONAME)


def write_sdk(build: SdkBuild, out: Path) -> Path:
    """Everything that a program needs, as the folder `out`; returns the wheel in it.

    Headers, both libraries, what CMake and pkg-config ask for, a wheel for Python on the board,
    examples and licences. Equal builds give equal files. Raises UsageError if `out` holds
    something else.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out: {out} is not empty", hint="name a folder that is new")
    root = data_file("cpp_runtime") / "sdk"
    with atomic_dir(out) as work:
        shutil.copytree(root / "include", work / "include", ignore=_NO_CACHES)
        library = work / "lib"
        library.mkdir()
        shutil.copy(build.shared, library / SONAME)
        shutil.copy(build.static, library / _ARCHIVE)
        (library / "libedgepack.so").symlink_to(SONAME)
        for template in sorted((root / "cmake").glob("*.in")):
            name = template.name.removesuffix(".in")
            folder = library / ("pkgconfig" if name.endswith(".pc") else "cmake/edgepack")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(_filled(template.read_text("utf-8"), build), "utf-8")
        share = work / "share" / "edgepack"
        for name in EXAMPLES:
            shutil.copytree(
                data_file(f"examples/{name}"), share / "examples" / name, ignore=_NO_CACHES
            )
        for name, text in build.licenses.items():
            (share / "licenses").mkdir(exist_ok=True)
            (share / "licenses" / name).write_text(text, "utf-8")
        shutil.copy(data_file("LICENSE"), share / "licenses" / "edgepack")
        wheel = work / "python" / wheel_name(build)
        wheel.parent.mkdir()
        wheel.write_bytes(make_board_wheel(build))
    return out / "python" / wheel.name


def _filled(template: str, build: SdkBuild) -> str:
    """A template with its @names@."""
    libraries = ("dl", "pthread", "m")
    # A model's kernels import a function of the program. Of OpenCV, what nobody calls lacks parts.
    options = ["-rdynamic", "-Wl,--gc-sections"]
    values = {
        "triple": build.triple,
        "version": VERSION,
        "major": VERSION.partition(".")[0],
        "pointer_bytes": str(_POINTER_BYTES[_machine(build)]),
        "soname": SONAME,
        "static_options": ";".join(options),
        "static_libraries": ";".join(libraries),
        "static_flags": " ".join([*options, *(f"-l{name}" for name in libraries)]),
    }
    return re.sub(r"@(\w+)@", lambda found: values[found[1]], template)


def _machine(build: SdkBuild) -> str:
    machine = build.triple.partition("-")[0]
    if machine not in _MACHINES:
        raise ToolchainError(f"no library is built for {build.triple}")
    return machine


def wheel_name(build: SdkBuild) -> str:
    """The file name of the wheel for Python on the board."""
    return f"{_PYTHON}-{VERSION}-{_tag(build)}.whl"


def _tag(build: SdkBuild) -> str:
    """The libraries need nothing but glibc, of this version at least (PEP 600)."""
    major, minor = version_tuple(build.glibc)[:2]
    return f"py3-none-manylinux_{major}_{minor}_{_MACHINES[_machine(build)]}"


def make_board_wheel(build: SdkBuild) -> bytes:
    """The wheel `edgepack_runtime`: Python code, the shared library, licences."""
    package = data_file("cpp_runtime") / "sdk" / "python" / _PYTHON
    files: dict[str, tuple[bytes, int]] = {
        f"{_PYTHON}/{path.name}": (path.read_bytes(), TEXT)
        for path in sorted(package.iterdir())
        if path.suffix in {".py", ".typed"}
    }
    files[f"{_PYTHON}/{SONAME}"] = (build.shared.read_bytes(), PROGRAM)
    info = f"{_PYTHON}-{VERSION}.dist-info"
    texts = {**build.licenses, "edgepack": data_file("LICENSE").read_text("utf-8")}
    for name, text in texts.items():
        files[f"{info}/licenses/{name}"] = (text.encode(), TEXT)
    licenses = "".join(f"License-File: {name}\n" for name in sorted(texts))
    metadata = (
        "Metadata-Version: 2.4\n"
        "Name: edgepack-runtime\n"
        f"Version: {VERSION}\n"
        "Summary: Runs edgepack's models on a board\n"
        f"License-Expression: Apache-2.0\n{licenses}"
        "Requires-Python: >=3.8\n\n"
        f"A bundle's model in a Python program on {build.triple}. numpy is not needed.\n"
    )
    wheel = f"Wheel-Version: 1.0\nGenerator: edgepack\nRoot-Is-Purelib: false\nTag: {_tag(build)}\n"
    files[f"{info}/METADATA"] = (metadata.encode(), TEXT)
    files[f"{info}/WHEEL"] = (wheel.encode(), TEXT)
    return wheel_bytes(files, info)

"""Building the app that runs on the board, edgepack-run: one per triple and toolchain."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.kept import keep
from edgepack.base.paths import cache_dir, data_file
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.tools import explain_missing
from edgepack.base.version import VERSION
from edgepack.boards import Board
from edgepack.native import device_tool
from edgepack.native.device_tool import YYJSON, fetch_sources, yyjson_license
from edgepack.native.llhttp import SDIST as LLHTTP
from edgepack.native.llhttp import fetch_llhttp, llhttp_license
from edgepack.native.opencv import OpenCvBuild, build_opencv, jobs, name_opencv, tool
from edgepack.native.prebuilt import find_prebuilt, read_licenses, say_why_built
from edgepack.native.sources import source_hashes
from edgepack.native.toolchain import Toolchain, need_compiler, toolchain_licenses

log = logging.getLogger(__name__)

KIND = "runtime"
"""The folder of the cache, and of a wheel, that holds builds of the app."""
_APP = "edgepack-run"
_GPU_APP = "edgepack-run-gpu"
PARTS = "parts"


@dataclass(frozen=True, kw_only=True)
class RuntimeBuild:
    """The app, without symbols, for every board of a triple.

    `gpu_app` is the same with the part that opens a GPU's driver. `licenses` has the licence texts,
    by name, of all linked code. If the toolchain links statically, where nothing opens a driver,
    both are a folder of parts, which `linked_app.link_app` links with a model's kernels to a
    program. `flags` are the flags of code generation.
    """

    app: Path
    gpu_app: Path
    triple: str
    toolchain: Toolchain
    opencv_version: str
    flags: tuple[str, ...]
    licenses: dict[str, str]


def build_runtime(
    board: Board, toolchain: Toolchain, *, progress: Progress = NO_PROGRESS
) -> RuntimeBuild:
    """Return edgepack-run for `board`'s triple, from an installed wheel, the cache, or built
    from source.

    Code generation is for the triple's lowest CPU (`board.runtime_flags`). Equal sources
    and tools give equal bytes, wherever the checkout and the cache are.
    Raises ToolchainError if a compiler fails.
    """
    opencv = name_opencv(board, toolchain)
    flags = board.runtime_flags[toolchain.kind]
    source = data_file("cpp_runtime") / "app"
    name = runtime_name(board, toolchain)
    app, gpu_app = _programs(toolchain)
    if made := find_prebuilt(board.triple, KIND, name):
        return RuntimeBuild(
            app=made / app,
            gpu_app=made / gpu_app,
            triple=toolchain.triple,
            toolchain=toolchain,
            opencv_version=opencv.version,
            flags=tuple(flags),
            licenses=read_licenses(made),
        )
    folder = cache_dir() / KIND / name
    if not folder.exists():
        say_why_built(board.triple, _APP, progress)
        need_compiler(toolchain, _APP)
    build_opencv(board, toolchain, progress=progress)

    def make(work: Path) -> None:
        progress.step(f"building {_APP} for {toolchain.triple} with {toolchain.kind}")
        _compile(source, work, opencv, toolchain, flags)

    keep(folder, make)
    return RuntimeBuild(
        app=folder / app,
        gpu_app=folder / gpu_app,
        triple=toolchain.triple,
        toolchain=toolchain,
        opencv_version=opencv.version,
        flags=tuple(flags),
        licenses=runtime_licenses(toolchain, source, opencv),
    )


def _programs(toolchain: Toolchain) -> tuple[str, str]:
    return (PARTS, PARTS) if toolchain.is_static else (_APP, _GPU_APP)


def runtime_name(board: Board, toolchain: Toolchain) -> str:
    """The name of the folder with the app, in the cache or a wheel."""
    opencv = name_opencv(board, toolchain)
    source = data_file("cpp_runtime") / "app"
    key = runtime_key(source, opencv, board.runtime_flags[toolchain.kind])
    return f"{toolchain.triple}-{toolchain.kind}-{key}"


def need_programs(board: Board, toolchain: Toolchain) -> None:
    """Raise ToolMissingError now, if a program for `board` has to be built later and cannot be."""
    for kind, name, what in (
        (KIND, runtime_name(board, toolchain), _APP),
        (device_tool.KIND, device_tool.tool_name(board), device_tool.TOOL),
    ):
        if find_prebuilt(board.triple, kind, name) or (cache_dir() / kind / name).exists():
            continue
        need_compiler(toolchain, what)
        tool("cmake")
        tool("ninja")


def cmake_arguments(opencv: OpenCvBuild, toolchain: Toolchain, flags: tuple[str, ...]) -> list[str]:
    """What a configuration of cpp_runtime/app needs; the presets know the rest."""
    return [
        f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
        f"-DEDGEPACK_LINKED_KERNELS={'ON' if toolchain.is_static else 'OFF'}",
        f"-DOpenCV_DIR={opencv.cmake_dir}",
        f"-DEDGEPACK_TVM_FFI_DIR={tvm_ffi_folder()}",
        f"-DEDGEPACK_THIRD_PARTY={fetch_sources()}",
        f"-DEDGEPACK_LLHTTP={fetch_llhttp()}",
        f"-DEDGEPACK_BOARD_FLAGS={';'.join(flags)}",
        *toolchain.cmake_args,
    ]


def tvm_ffi_folder() -> Path:
    """The Python package tvm_ffi, which ships its C++ source; it is not imported."""
    spec = importlib.util.find_spec("tvm_ffi")
    if spec is None or spec.origin is None:
        raise explain_missing("tvm_ffi")
    return Path(spec.origin).parent


def runtime_key(source: Path, opencv: OpenCvBuild, flags: tuple[str, ...]) -> str:
    """A name for all that goes into a build of cpp_runtime/app, which lies in `source`."""
    parts = {
        "sources": source_hashes(source),
        "flags": flags,
        "opencv": opencv.key,
        "yyjson": YYJSON.sha256,
        "llhttp": LLHTTP.sha256,
        "tvm_ffi": importlib.metadata.version("apache-tvm-ffi"),
        "edgepack": VERSION,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _compile(
    source: Path, out: Path, opencv: OpenCvBuild, toolchain: Toolchain, flags: tuple[str, ...]
) -> None:
    build = out / "build"
    toolchain.run(
        [
            tool("cmake"),
            "-S",
            source,
            "-B",
            build,
            "-G",
            "Ninja",
            *cmake_arguments(opencv, toolchain, flags),
            f"-DEDGEPACK_VERSION={VERSION}",
        ],
        what="configuring the runtime app",
    )
    targets = (f"{_APP}-parts",) if toolchain.is_static else (_APP, _GPU_APP)
    toolchain.run(
        [tool("cmake"), "--build", build, "--parallel", str(jobs()), "--target", *targets],
        what="building the runtime app",
    )
    if toolchain.is_static:
        shutil.move(build / PARTS, out / PARTS)
        for archive in opencv.archives:
            shutil.copy(archive, out / PARTS)
    else:
        # The linker strips: no tool of another architecture is needed.
        for program in targets:
            shutil.copy(build / _APP / program, out / program)
    shutil.rmtree(build)


def runtime_licenses(toolchain: Toolchain, source: Path, opencv: OpenCvBuild) -> dict[str, str]:
    """The licence texts (by name) of all that such a build holds."""
    app = {"llhttp": llhttp_license(fetch_llhttp())}
    return dict(sorted({**library_licenses(toolchain, source, opencv), **app}.items()))


def library_licenses(toolchain: Toolchain, source: Path, opencv: OpenCvBuild) -> dict[str, str]:
    """The same of its inference library alone, as the SDK has it."""
    own = {**_licenses(toolchain, source), "yyjson": yyjson_license(fetch_sources())}
    return dict(sorted({**opencv.licenses(), **own}.items()))


def _licenses(toolchain: Toolchain, source: Path) -> dict[str, str]:
    """Of what the app holds besides OpenCV."""
    tvm_ffi = importlib.metadata.distribution("apache-tvm-ffi")
    texts = {
        "apache-tvm-ffi": "\n".join(
            tvm_ffi.read_text(f"licenses/{name}") or "" for name in ("LICENSE", "NOTICE")
        ),
        "dlpack": (source / "licenses" / "dlpack.txt").read_text(encoding="utf-8"),
    }
    return texts | toolchain_licenses(toolchain)

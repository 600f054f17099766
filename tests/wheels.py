"""Wheels with what `edgepack deploy` would otherwise build from source: `edgepack-runtime-TRIPLE`.

    ./dev wheels [--out DIR] [TRIPLE ...]

Each holds the app and the device tool for all boards of a GNU triple, the parts of which the app is
linked where there is no C library (musl), what runs their kernels under qemu, the functions of a
compiler that kernels call, the licence of all that is linked in, and an SBOM. Equal builds give
equal bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import uuid
from dataclasses import replace
from pathlib import Path

from edgepack.base.errors import EdgepackError, UsageError, perhaps
from edgepack.base.paths import cache_dir, data_file
from edgepack.base.progress import NO_PROGRESS, Progress, make_progress
from edgepack.base.version import VERSION
from edgepack.boards import Board, load_boards
from edgepack.native import app, device_tool, emulate
from edgepack.native.device_tool import TOOL, build_device_tool
from edgepack.native.prebuilt import LICENSES, module_of, package_of
from edgepack.native.toolchain import (
    BUILTINS,
    BUILTINS_FILE,
    builtins_name,
    musl_triple,
    select,
    zig_builtins,
)
from edgepack.native.wheel import PROGRAM, TEXT, wheel_bytes


def main() -> int:
    """The command line."""
    boards = wheel_boards()
    parser = argparse.ArgumentParser(prog="./dev wheels", description=__doc__.splitlines()[0])
    parser.add_argument("triples", nargs="*", metavar="TRIPLE", help=f"of {', '.join(boards)}")
    parser.add_argument("--out", type=Path, help="default: wheels in the cache, where demo looks")
    args = parser.parse_args()
    progress = make_progress(lambda text: print(f"==> {text}", file=sys.stderr))
    try:
        for triple in args.triples or boards:
            if triple not in boards:
                raise UsageError(f"no board is of triple {triple}", hint=perhaps(triple, boards))
            out = args.out or cache_dir() / "wheels"
            print(make_wheel(boards[triple], out, progress=progress))
    except EdgepackError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def wheel_boards() -> dict[str, Board]:
    """A board for each triple that zig builds for: all of them run the same programs."""
    found: dict[str, Board] = {}
    for board in load_boards().values():
        if board.toolchain == "zig" and not (board.is_local or board.is_static):
            found.setdefault(board.triple, board)
    return found


def make_wheel(board: Board, out: Path, *, progress: Progress = NO_PROGRESS) -> Path:
    """The wheel for `board`'s triple, in the folder `out`."""
    toolchain = select(board).toolchain
    runtime = app.build_runtime(board, toolchain, progress=progress)
    bare = replace(board, libc="none")
    parts = app.build_runtime(bare, select(bare).toolchain, progress=progress)
    tool = build_device_tool(board, progress=progress)
    runner = emulate.plan_runner(board)
    builtins = zig_builtins(board)
    module, version = module_of(board.triple), VERSION
    texts = {**tool.licenses, **runtime.licenses, **parts.licenses}
    files: dict[str, tuple[bytes, int]] = {
        f"{module}/__init__.py": (f'"""Programs for {board.triple}."""\n'.encode(), TEXT)
    }
    for kind, folder, program, licenses in (
        (app.KIND, runtime.app.parent.name, runtime.app, runtime.licenses),
        (app.KIND, runtime.app.parent.name, runtime.gpu_app, runtime.licenses),
        (device_tool.KIND, tool.path.parent.name, tool.path, tool.licenses),
        # Runs a board's kernels on this machine, to compare them with the reference.
        (emulate.KIND, runner.parent.name, runner, {"musl": tool.licenses["musl"]}),
    ):
        at = f"{module}/{kind}/{folder}"
        files[f"{at}/{program.name}"] = (program.read_bytes(), PROGRAM)
        for name, text in licenses.items():
            files[f"{at}/{LICENSES}/{name}"] = (text.encode(), TEXT)
    # The app is linked of these with a model's kernels.
    at = f"{module}/{app.KIND}/{app.runtime_name(bare, parts.toolchain)}"
    for part in sorted(parts.app.iterdir()):
        files[f"{at}/{app.PARTS}/{part.name}"] = (part.read_bytes(), TEXT)
    for name, text in parts.licenses.items():
        files[f"{at}/{LICENSES}/{name}"] = (text.encode(), TEXT)
    # Links a model's kernels where there is no compiler.
    at = f"{module}/{BUILTINS}/{builtins_name(board.triple)}"
    files[f"{at}/{BUILTINS_FILE}"] = (builtins.read_bytes(), TEXT)
    zig = "zig-compiler-rt"
    files[f"{at}/{LICENSES}/{zig}"] = (runtime.licenses[zig].encode(), TEXT)
    info = f"{module}-{version}.dist-info"
    files |= {
        f"{info}/METADATA": (_metadata(board, version), TEXT),
        f"{info}/WHEEL": (_WHEEL.encode(), TEXT),
        f"{info}/licenses/LICENSE": (data_file("LICENSE").read_bytes(), TEXT),
        f"{info}/sboms/{module}.cdx.json": (_bill(board, version, files, sorted(texts)), TEXT),
    }
    path = out / f"{module}-{version}-py3-none-any.whl"
    out.mkdir(parents=True, exist_ok=True)
    path.write_bytes(wheel_bytes(files, info))
    return path


_WHEEL = "Wheel-Version: 1.0\nGenerator: edgepack\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def _metadata(board: Board, version: str) -> bytes:
    return (
        "Metadata-Version: 2.4\n"
        f"Name: {package_of(board.triple)}\n"
        f"Version: {version}\n"
        f"Summary: edgepack-run and {TOOL} for boards of {board.triple}, built\n"
        "License-Expression: Apache-2.0\n"
        "License-File: LICENSE\n"
        "Requires-Python: >=3.11\n\n"
        f"What edgepack {version} otherwise builds from source at the first deploy to such a "
        "board. It is data: nothing in it is imported.\n"
    ).encode()


def _bill(
    board: Board, version: str, files: dict[str, tuple[bytes, int]], libraries: list[str]
) -> bytes:
    """CycloneDX 1.6: the programs and their parts by hash, and what is linked into them."""
    programs = [
        {
            "type": "application" if mode == PROGRAM else "library",
            "bom-ref": name,
            "name": name.rpartition("/")[2],
            "version": version,
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}],
        }
        for name, (data, mode) in sorted(files.items())
        if mode == PROGRAM or f"/{app.PARTS}/" in name
    ]
    linked = [{"type": "library", "bom-ref": f"library:{name}", "name": name} for name in libraries]
    digest = "".join(program["hashes"][0]["content"] for program in programs)  # type: ignore[index]
    value = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_OID, digest).urn,
        "version": 1,
        "metadata": {
            "component": {
                "type": "firmware",
                "bom-ref": "wheel",
                "name": package_of(board.triple),
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "properties": [{"name": "edgepack:musl", "value": musl_triple(board)}],
            }
        },
        "components": [*programs, *linked],
    }
    return json.dumps(value, indent=2, sort_keys=True).encode() + b"\n"


if __name__ == "__main__":
    sys.exit(main())

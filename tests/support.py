"""Helpers for all tests."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from edgepack.base.paths import cache_dir, data_file
from edgepack.native.opencv import tool


def require_tool(*names: str) -> str:
    """The path of the first of `names` that is installed.

    Without any, the test is skipped on a laptop and fails in CI, where a missing tool
    means a missing install step.
    """
    for name in names:
        if path := shutil.which(name):
            return path
    message = f"{' or '.join(names)} is not installed; ./dev test installs it"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def require_plugins(name: str) -> str:
    """`require_tool` of a qemu that takes plugins: Debian 13's does not."""
    path = require_tool(name)
    shown = subprocess.run([path, "--help"], capture_output=True, text=True, check=False).stdout
    if "-plugin" not in shown:
        pytest.skip(f"{path} takes no plugins")
    return path


def importable(*folders: Path) -> None:
    """Make what lies in `folders`, unpacked wheels, importable after all that is installed."""
    sys.path.extend(str(folder) for folder in folders if str(folder) not in sys.path)


def ctest_build(name: str) -> Path:
    """CMake's folder of a preset: one for each checkout, whose paths CMake writes into it."""
    checkout = hashlib.sha256(bytes(data_file("cpp_runtime"))).hexdigest()[:8]
    return cache_dir() / "ctest" / f"{name}-{checkout}"


def configure_preset(
    preset: str,
    source: Path,
    folder: Path,
    arguments: Sequence[str | Path],
    run: Callable[..., object],
) -> None:
    """Configure `preset` of the project in `source`, with these arguments as well, in `folder`.

    `run` is what starts CMake: `Toolchain.run`, or `edgepack.base.process.run`.

    Where the same was configured before, CMake only looks at its lists, if they have changed: its
    --fresh drops the objects, too. Raises ToolchainError.
    """
    runtime = data_file("cpp_runtime")
    files = (source / "CMakePresets.json", runtime / "common/cmake/presets.json")
    lists = sorted([*runtime.rglob("CMakeLists.txt"), *runtime.rglob("*.cmake")])
    known, read = folder / "lists.txt", "\n".join(file.read_text("utf-8") for file in lists)
    words = [tool("cmake"), f"--preset={preset}", f"-B{folder}", *map(str, arguments)]
    wanted = "\n".join([*map(str, words), *(file.read_text("utf-8") for file in files)])
    done = folder / "configured.txt"
    if done.exists() and done.read_text("utf-8") == wanted:
        if known.exists() and known.read_text("utf-8") == read:
            return
        # Who reads the commands of the compiler, and builds nothing, would miss new files.
        run([tool("cmake"), folder], cwd=source, what=f"configuring preset {preset} again")
    else:
        done.unlink(missing_ok=True)
        run([*words, "--fresh"], cwd=source, what=f"configuring preset {preset}")
        done.write_text(wanted, "utf-8")
    known.write_text(read, "utf-8")


def free_port() -> int:
    """A port that nobody listened on just now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def parent(pid: int) -> int | None:
    """The process above one that may have ended meanwhile."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def await_that(
    done: Callable[[], bool], timeout_s: float = 30, why: Callable[[], str] = lambda: ""
) -> None:
    """Wait until `done()` is true; fail, for the reason `why()`, if it takes longer than that."""
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)

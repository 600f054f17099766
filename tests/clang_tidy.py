"""clang-tidy over C++ sources, each read again only when what it depends on has changed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.errors import ToolchainError
from edgepack.base.paths import cache_dir, data_file
from edgepack.base.process import run
from edgepack.native.opencv import jobs

CONFIG = data_file("cpp_runtime").parent / ".clang-tidy"
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A source and the command that compiles it."""

    source: Path
    command: str


def units(build: Path, folders: Sequence[Path]) -> list[Unit]:
    """What lies in `folders`, of the project configured in `build`; no tests."""
    found = [
        Unit(source=Path(entry["file"]), command=entry["command"])
        for entry in json.loads((build / "compile_commands.json").read_text())
    ]
    return [
        unit
        for unit in found
        if unit.source.suffix == ".cc"
        and unit.source.parent.name != "tests"
        and any(unit.source.is_relative_to(folder) for folder in folders)
    ]


def check(program: str, build: Path, root: Path, folders: Sequence[Path]) -> int:
    """The number of sources that were read; raises ToolchainError with all findings.

    A source is clean until it, a header below `root` that it reaches, its command, the
    configuration or the program changes.
    """
    version = run([program, "--version"]).stdout
    stamps = {key(unit, root, version): unit for unit in units(build, folders)}
    assert stamps
    folder = cache_dir() / "clang-tidy"
    folder.mkdir(parents=True, exist_ok=True)
    stale = {name: unit for name, unit in stamps.items() if not (folder / name).exists()}

    def findings(name: str) -> str:
        words = [program, "-quiet", f"--config-file={CONFIG}", "-p", build, stale[name].source]
        done = run(words, check=False)
        if done.returncode == 0:
            (folder / name).touch()
            return ""
        return f"{stale[name].source}:\n{done.stdout}{done.stderr}"

    with ThreadPoolExecutor(jobs()) as pool:
        found = [text for text in pool.map(findings, stale) if text]
    if found:
        raise ToolchainError("\n".join(found))
    return len(stale)


def key(unit: Unit, root: Path, version: str) -> str:
    """Names all that an answer depends on; not where the checkout and the cache lie."""
    command = unit.command.replace(str(root), "").replace(str(cache_dir()), "")
    digest = hashlib.sha256(f"{version}\0{command}\0".encode() + CONFIG.read_bytes())
    for path in sorted({unit.source, *_headers(unit.source, _own_headers(root))}):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]


def _own_headers(root: Path) -> dict[str, list[Path]]:
    """Headers below `root` by file name; other headers are as their packages are."""
    headers: dict[str, list[Path]] = {}
    for path in root.rglob("*.h"):
        headers.setdefault(path.name, []).append(path)
    return headers


def _headers(source: Path, own: dict[str, list[Path]]) -> set[Path]:
    """All that `source` may reach: the last part of an include decides."""
    reached: set[Path] = set()
    waiting = [source]
    while waiting:
        text = waiting.pop().read_text(encoding="utf-8")
        for name in _INCLUDE.findall(text):
            more = set(own.get(Path(name).name, ())) - reached
            reached |= more
            waiting += more
    return reached

"""clang-tidy over C++ sources, read again only when what they depend on has changed.

Sources with the same flags are read as one: the headers that all of them include take most of the
time otherwise. clang's analyzer follows the paths through such a file's sources only if its name
begins with UnifiedSource (WebKit's habit; AnalysisManager::isInCodeFile).
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.errors import ToolchainError
from edgepack.base.paths import cache_dir, data_file
from edgepack.base.process import run
from edgepack.native.opencv import jobs

CONFIG = data_file("cpp_runtime").parent / ".clang-tidy"
QUICK = ("-Xclang", "-analyzer-config", "-Xclang", "mode=shallow")
"""The analyzer follows fewer paths, into small functions only: a fifth of the time."""
MOST_SOURCES = 20
"""Read as one: few enough that two processors have something to do."""
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Sources that are compiled in `directory` with the same `flags`."""

    sources: tuple[Path, ...]
    directory: str
    flags: tuple[str, ...]


def units(build: Path, folders: Sequence[Path]) -> list[Unit]:
    """What lies in `folders`, of the project configured in `build`; no tests."""
    # Once, what several programs are made of.
    groups: dict[tuple[str, tuple[str, ...]], dict[Path, None]] = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source = Path(entry["file"])
        if (
            source.suffix == ".cc"
            and source.parent.name != "tests"
            and any(source.is_relative_to(folder) for folder in folders)
        ):
            key = (entry["directory"], _flags(entry["command"]))
            groups.setdefault(key, {})[source] = None
    return [
        Unit(sources=tuple(sources[first : first + size]), directory=directory, flags=flags)
        for (directory, flags), found in groups.items()
        for sources in [[*found]]
        for size in [-(-len(sources) // -(-len(sources) // MOST_SOURCES))]
        for first in range(0, len(sources), size)
    ]


def _flags(command: str) -> tuple[str, ...]:
    """Those of a compiler's command line: without the compiler, the source and the output."""
    words = shlex.split(command)
    return tuple(words[1 : words.index("-o")])


def check(
    program: str, build: Path, root: Path, folders: Sequence[Path], flags: Sequence[str] = QUICK
) -> int:
    """The number of sources that were read; raises ToolchainError with all findings.

    A source is clean until it, one that is read with it, a header below `root` that these
    reach, their flags, the configuration or the program changes.
    """
    version = run([program, "--version"]).stdout
    stamps = {key(unit, root, f"{version}{flags}"): unit for unit in units(build, folders)}
    assert stamps
    folder = cache_dir() / "clang-tidy"
    folder.mkdir(parents=True, exist_ok=True)
    stale = {name: unit for name, unit in stamps.items() if not (folder / name).exists()}

    def findings(name: str) -> str:
        unit = stale[name]
        whole = folder / f"UnifiedSource-{name}.cc"
        whole.write_text("".join(f'#include "{source}"\n' for source in unit.sources))
        # It includes sources, on purpose.
        words = [
            program,
            "-quiet",
            f"--config-file={CONFIG}",
            "--checks=-bugprone-suspicious-include",
        ]
        done = run(
            [*words, whole, "--", *unit.flags, *flags], cwd=Path(unit.directory), check=False
        )
        whole.unlink()
        if done.returncode == 0:
            (folder / name).touch()
            return ""
        return f"{done.stdout}{done.stderr}"

    with ThreadPoolExecutor(jobs()) as pool:
        found = [text for text in pool.map(findings, stale) if text]
    if found:
        raise ToolchainError("\n".join(found))
    return sum(len(unit.sources) for unit in stale.values())


def key(unit: Unit, root: Path, program: str) -> str:
    """Names all that an answer depends on; not where the checkout and the cache lie."""
    flags = " ".join(unit.flags).replace(str(root), "").replace(str(cache_dir()), "")
    digest = hashlib.sha256(f"{program}\0{flags}\0".encode() + CONFIG.read_bytes())
    own = _own_headers(root)
    reached = set(unit.sources).union(*(_headers(source, own) for source in unit.sources))
    for path in sorted(reached):
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

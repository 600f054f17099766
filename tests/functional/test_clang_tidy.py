"""What tests/clang_tidy.py reads again, and that a finding in any file stops it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepack.base.errors import ToolchainError
from edgepack.base.paths import cache_dir, set_cache_dir
from tests import clang_tidy
from tests.support import require_tool


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """Two sources, of which one includes a header, and a cache of their own."""
    root = tmp_path / "cpp_runtime"
    (root / "app").mkdir(parents=True)
    (root / "app" / "one.cc").write_text('#include "app/one.h"\nint One() { return kOne; }\n')
    (root / "app" / "one.h").write_text("#pragma once\nconstexpr int kOne = 1;\n")
    (root / "app" / "two.cc").write_text("int Two() { return 2; }\n")
    write_commands(root, "c++ -std=c++17")
    before = cache_dir()
    set_cache_dir(tmp_path / "cache")
    yield root
    set_cache_dir(before)


def write_commands(root: Path, *compilers: str) -> None:
    """Of both sources, with one compiler or with one for each."""
    commands = [
        {
            "file": str(root / "app" / name),
            "directory": str(root),
            "command": f"{compiler} -I{root} -o x.o -c {root / 'src' / name}",
        }
        for name, compiler in zip(
            ("one.cc", "two.cc"), compilers * (3 - len(compilers)), strict=False
        )
    ]
    (root / "compile_commands.json").write_text(json.dumps(commands))


def read(project: Path) -> int:
    program = require_tool("clang-tidy-14", "clang-tidy")
    return clang_tidy.check(program, project, project, [project / "app"])


@pytest.mark.parametrize(
    ("file", "text", "check"),
    [
        ("two.cc", "int Two() {\n  int* p = 0;\n  return *p;\n}\n", "modernize-use-nullptr"),
        (
            "two.cc",
            "int Two(const int* p) { return p == nullptr ? *p : 2; }\n",
            "clang-analyzer-core.NullDereference",
        ),
    ],
)
def test_a_finding_fails_until_it_is_mended(
    project: Path, file: str, text: str, check: str
) -> None:
    assert read(project) == 2
    clean = (project / "app" / file).read_text()
    (project / "app" / file).write_text(text)
    for _ in range(2):
        with pytest.raises(ToolchainError, match=check):
            read(project)
    (project / "app" / file).write_text(clean)
    assert read(project) == 0


def test_only_what_depends_on_a_change_is_read_again(project: Path) -> None:
    write_commands(project, "c++ -std=c++17", "c++ -std=c++17 -DTWO")
    assert read(project) == 2
    assert read(project) == 0
    (project / "app" / "one.h").write_text("#pragma once\nconstexpr int kOne = 2;\n")
    assert read(project) == 1
    write_commands(project, "c++ -std=c++20")
    assert read(project) == 2


def test_sources_with_the_same_flags_are_read_as_one(project: Path) -> None:
    (unit,) = clang_tidy.units(project, [project / "app"])
    assert [source.name for source in unit.sources] == ["one.cc", "two.cc"]
    assert unit.flags == ("-std=c++17", f"-I{project}")

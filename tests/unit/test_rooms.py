"""What is imported lies further down in ARCHITECTURE.md's map."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def rooms_of_map(start: str) -> list[str]:
    """The first column of the map's table after `start`, from top to bottom."""
    text = (ROOT / "ARCHITECTURE.md").read_text().split(start, 1)[1]
    table = text[text.index("|---") :].split("\n\n", 1)[0]
    return re.findall(r"^\| `(\w+)(?:/|\.py)`", table, re.MULTILINE)


# The package that holds the rooms, and the rooms from top to bottom.
MAPS = {
    "edgepack": rooms_of_map("## Map"),
    "edgepack.compiler": rooms_of_map("In `compiler/`"),
    "edgepack.kernels": rooms_of_map("In `kernels/`"),
}


@cache
def rooms_in(package: str) -> set[str]:
    """Packages and modules right inside a package."""
    return {
        path.stem
        for path in (ROOT / package.replace(".", "/")).iterdir()
        if (path.is_dir() and (path / "__init__.py").exists())
        or (path.suffix == ".py" and not path.name.startswith("__"))
    }


def room(module: str, package: str) -> str:
    """The room of a package that a module, or a name in it, lies in; "" for the package's own."""
    first = module.removeprefix(f"{package}.").split(".")[0]
    return first if module.startswith(f"{package}.") and first in rooms_in(package) else ""


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module or name that a source file imports, wherever in it, with its dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the whole module"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def arrows(package: str) -> dict[tuple[str, str], set[str]]:
    """(room, room it imports) -> the files that do. The package's own modules import any."""
    found: dict[tuple[str, str], set[str]] = {}
    for path in sorted((ROOT / package.replace(".", "/")).rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        source = room(file.removesuffix(".py").replace("/", "."), package)
        for name in imported(ast.parse(path.read_text())):
            target = room(name, package)
            if source and name.startswith(package) and target != source:
                found.setdefault((source, target), set()).add(file)
    return found


@pytest.mark.parametrize("package", MAPS)
def test_the_map_names_every_room(package: str) -> None:
    assert sorted(MAPS[package]) == sorted(rooms_in(package))
    assert len(MAPS[package]) <= 24


@pytest.mark.parametrize("package", MAPS)
def test_nothing_is_imported_from_above(package: str) -> None:
    order = MAPS[package]
    found = arrows(package)
    assert len(found) > len(order), "not all imports were read"
    up = {
        (f"{package}.{source}", f"{package}.{target}"): sorted(files)
        for (source, target), files in found.items()
        if target not in order or order.index(source) > order.index(target)
    }
    assert not up


def test_the_kernel_library_knows_no_network() -> None:
    """No graph, no model format and no board: nothing else of edgepack, and no Relax."""
    files = sorted((ROOT / "edgepack/kernels").rglob("*.py"))
    assert len(files) > 80
    others = {
        path.relative_to(ROOT).as_posix(): name
        for path in files
        for name in imported(ast.parse(path.read_text()))
        if name.startswith("tvm.relax")
        or (name.startswith("edgepack") and not name.startswith("edgepack.kernels"))
    }
    assert not others


def test_placement_knows_rules_by_the_protocol() -> None:
    """Who decides about layers names no rule, but for what each of them has to say."""
    known = "edgepack.kernels.rules."
    named = {
        name.removeprefix(known).split(".")[0]
        for path in (ROOT / "edgepack/compiler/place").glob("*.py")
        for name in imported(ast.parse(path.read_text()))
        if name.startswith(known)
    }
    assert named <= {"rule", "table"}


def test_an_import_is_seen_wherever_it_stands() -> None:
    source = "import edgepack.gate.elf\ndef f():\n    from edgepack import cli, __version__\n"
    names = list(imported(ast.parse(source)))
    assert [room(name, "edgepack") for name in names] == ["gate", "cli", ""]


def test_a_class_name_means_one_thing() -> None:
    """A reader who meets a name need not ask which of several it is."""
    places: dict[str, list[str]] = {}
    for path in sorted((ROOT / "edgepack").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert places
    assert {name: found for name, found in places.items() if len(found) > 1} == {}

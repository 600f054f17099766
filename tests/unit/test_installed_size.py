"""What `pip install edgepack` brings is bounded, and the guide says what it is."""

from __future__ import annotations

import platform
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
MB = 1e6

pytestmark = pytest.mark.skipif(
    (platform.machine(), sys.version_info[:2]) != ("x86_64", (3, 11)),
    reason="the guide's sizes are those of another platform",
)


@pytest.fixture(scope="module")
def sizes() -> dict[str, float]:
    """Each package that edgepack needs at run time -> its megabytes, bytecode apart."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    todo = [Requirement(text) for text in project["dependencies"]]
    found: dict[str, float] = {}
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in found or not (
            requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ):
            continue
        package = metadata.distribution(name)
        found[name] = sum(file.size or 0 for file in package.files or ()) / MB
        todo += [Requirement(text) for text in package.requires or ()]
    return found


def test_it_is_at_most_680_mb_with_edgepack_itself(sizes: dict[str, float]) -> None:
    own = [
        *(
            "edgepack",
            "cpp_runtime",
            "examples",
            "toolchains",
            "tuned",
            "schemas",
            "boards.toml",
            "LICENSE",
        )
    ]
    files = [file for name in own for file in (ROOT / name, *(ROOT / name).rglob("*"))]
    mine = sum(file.stat().st_size for file in files if file.is_file() and file.suffix != ".pyc")
    assert sum(sizes.values()) + mine / MB <= 680


def test_the_guide_has_the_large_ones(sizes: dict[str, float]) -> None:
    text = (ROOT / "docs" / "guides" / "installing.md").read_text(encoding="utf-8")
    rows = {name: float(mb) for name, mb in re.findall(r"^\| ([\w -]+) \| (\d+) \|", text, re.M)}
    total = rows.pop("all of them")
    others = next(name for name in rows if name.endswith(" others"))
    small = {name: mb for name, mb in sizes.items() if name not in rows}
    assert others == f"{len(small)} others"
    assert rows.pop(others) == pytest.approx(sum(small.values()), abs=1)
    assert rows == pytest.approx({name: sizes[name] for name in rows}, abs=1)
    assert total == pytest.approx(sum(sizes.values()), abs=1)
    assert max(small.values()) < 10

"""The pages for contributors name files and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "contributing").glob("add-*.md"))
TOPS = {path.name for path in ROOT.iterdir()}


def words(page: Path) -> list[str]:
    """What stands in backticks on one line of the prose, outside of fenced blocks."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.findall(r"`([^`\n]+)`", prose)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_exist(page: Path) -> None:
    """Those of the table; a name in angle brackets is the reader's to choose."""
    named = re.findall(r"^\| `([^`]+)` \|", page.read_text(encoding="utf-8"), flags=re.M)
    files = [name for name in named if name.split("/")[0] in TOPS]
    assert len(files) >= 3
    for name in files:
        assert (ROOT / name.split("<")[0]).parent.is_dir(), name
        assert "<" in name or (ROOT / name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_page_names_a_test_that_exists(page: Path) -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = [word for word in words(page) if word.startswith("test_")]
    assert named
    for name in named:
        assert f"def {name}(" in tests, name

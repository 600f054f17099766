"""What the documents say is true: generated pages are fresh, links lead somewhere."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import shlex
import tomllib
from pathlib import Path

import pytest

import edgepack
from edgepack.base.errors import EdgepackError
from edgepack.base.process import run
from edgepack.cli import make_parser

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
)


def test_generated_reference_is_fresh() -> None:
    run(["python", ROOT / "docs" / "generate.py", "--check"], cwd=ROOT)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def slugs(page: Path) -> set[str]:
    """The anchors that GitHub, and `./dev docs`, give to a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_headings(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text()):
        if "://" not in target:
            assert anchor in slugs(page.parent / target if target else page), (target, anchor)


def test_the_site_has_all_pages_and_what_they_link_to() -> None:
    spec = importlib.util.spec_from_file_location("site_of_docs", ROOT / "docs" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    pages = set(site.pages(ROOT))
    assert {page.relative_to(ROOT) for page in PAGES if "examples" not in page.parts} <= pages
    action = Path(".github/actions/edgepack/action.yml")
    assert action in set(site.linked(ROOT, Path("docs/concepts/virtual-boards.md")))
    sections = {key: value for entry in site.navigation(ROOT) for key, value in entry.items()}
    assert sections.pop("Start") == "README.md"
    shown = [page for entries in sections.values() for entry in entries for page in entry.values()]
    assert sorted([*shown, "README.md"]) == sorted(page.as_posix() for page in pages)
    settings = site.config(ROOT, ROOT, ROOT / "build")
    assert settings["theme"]["font"] is False
    assert settings["validation"]["links"]["anchors"] == "warn"


def test_the_door_leads_to_every_page() -> None:
    """docs/README.md names each page once; contributors' pages have a list of their own."""
    door = ROOT / "docs" / "README.md"
    targets = re.findall(r"\]\(([^)#\s]+\.md)\)", door.read_text())
    led_to = {(door.parent / target).resolve() for target in targets}
    assert len(led_to) == len(targets)
    pages = {page for page in PAGES if page.is_relative_to(door.parent) and page != door}
    listed = {page for page in pages if page.parent.name != "contributing"}
    # Not a page of the documentation: it is what the package index shows.
    listed -= {door.parent / "pypi.md"}
    assert listed - led_to == set()
    tasks = door.read_text().partition("## The rest")[0]
    assert tasks.count("\n## ") == 3


def test_boards_page_knows_every_key() -> None:
    page = (ROOT / "docs" / "reference" / "boards.md").read_text()
    keys = re.findall(r"take(?:_\w+)?\(\s*\"(\w+)\"", (ROOT / "edgepack" / "boards.py").read_text())
    of_triples = {"llvm_triple", "float_abi", "debian_arch", "loader", "runtime_flags", "boards"}
    for key in set(keys) - of_triples:
        assert f"`{key}`" in page, key


def test_device_tool_page_has_its_help() -> None:
    source = (ROOT / "cpp_runtime" / "device" / "src" / "options.cc").read_text()
    text = source.split('R"(')[1].split(')"')[0]
    usage = text[text.index("usage:") : text.index("exit codes:")].strip()
    assert usage in (ROOT / "docs" / "reference" / "edgepack-device.md").read_text()


def test_each_claim_of_the_threat_model_has_its_test() -> None:
    """Each attacker has a table, each of its rows names tests, and each of those can fail."""
    page = (ROOT / "docs" / "concepts" / "threat-model.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "| test |" not in line]
    named = [re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", row) for row in rows]
    assert len(rows) > 20
    assert all(named)
    for attacker in page.split("\n## ")[1:]:
        assert "\n| cannot | test |\n" in attacker, attacker.partition("\n")[0]
    for file, name in {test for tests in named for test in tests}:
        functions = {
            node.name: node
            for node in ast.walk(ast.parse((ROOT / file).read_text()))
            if isinstance(node, ast.FunctionDef)
        }
        failing = {own for own, node in functions.items() if _can_fail(node, {"raises", "fail"})}
        assert _can_fail(functions[name], failing | {"raises", "fail", "run"}), f"{file}::{name}"


def test_the_python_guide_is_python_that_calls_what_is_there() -> None:
    page = (ROOT / "docs" / "guides" / "python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 4
    calls = [
        node
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    named = {"edgepack": edgepack, "deployed": edgepack.Deployment}
    for call in calls:
        assert isinstance(call.func, ast.Attribute)
        owner = call.func.value
        if isinstance(owner, ast.Name) and owner.id in named:
            function = getattr(named[owner.id], call.func.attr)
            given = [None] * (len(call.args) + (owner.id == "deployed"))
            inspect.signature(function).bind(*given, **{str(k.arg): None for k in call.keywords})


def shown_commands() -> list[tuple[str, list[str]]]:
    """The words after `edgepack` in every code block that shows the command line, and where."""
    found = []
    generated = ROOT / "docs" / "reference" / "cli.md"
    for page in (page for page in PAGES if page != generated):
        blocks = re.findall(r"^```(.*?)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
        for block in (block for language, block in blocks if not language):
            for line in block.replace("\\\n", " ").splitlines():
                if match := re.match(r"(?:\$ )?(?:\./dev )?edgepack (.*)", line):
                    # What follows after a gap explains it.
                    words = shlex.split(re.split(r"   |\s# | [|>&]", match[1])[0])
                    found.append((f"{page.relative_to(ROOT)}: {line}", words))
    return found


def test_every_command_that_is_shown_exists() -> None:
    commands = shown_commands()
    assert len(commands) > 30
    for where, words in commands:
        if "..." in words or any(word.startswith("<") for word in words):
            continue
        if words[-2:] in (["--toolchain", "clang"], ["--format", "run"]):  # contributors add them
            continue
        try:
            make_parser(words).parse_args(words)
        except EdgepackError as error:
            pytest.fail(f"{where}\n{error.message}")


def test_the_description_for_an_index_needs_no_other_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / project["readme"]).read_text()
    assert re.findall(r"\]\((?!https://)", text) == []
    # One project, described once.
    assert text.split("\n\n")[1] == (ROOT / "README.md").read_text().split("\n\n")[1]


def _can_fail(function: ast.FunctionDef, helpers: set[str]) -> bool:
    """Whether it asserts something, or calls one of `helpers`, which do."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            called = node.func
            name = getattr(called, "attr", None) or getattr(called, "id", "")
            if name in helpers:
                return True
    return False

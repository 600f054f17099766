"""What contributors find: the container, the hooks, the editor's settings."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_the_container_has_what_dev_installs() -> None:
    lists = re.findall(r'^apt_\w+="([^"]*)"', (ROOT / "dev").read_text(), re.MULTILINE)
    wanted = {word for text in lists for word in text.split() if not word.startswith("$")}
    install = (ROOT / "Dockerfile").read_text().partition("--no-install-recommends \\\n")[2]
    there = [line.strip(" \\") for line in install.partition("&&")[0].splitlines() if line.strip()]
    assert there == ["python3", *sorted(wanted)]


def test_hooks_are_commands_that_exist() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    commands = re.findall(r"^(\w+)\) ", (ROOT / "dev").read_text(), re.MULTILINE)
    for hook in hooks:
        words = hook["entry"].split()
        assert words[0] == "clang-format" or (words[0] == "./dev" and words[1] in commands)
        assert all((ROOT / word).exists() for word in words if "/" in word)


def test_templates_name_files_and_commands_that_are_there() -> None:
    folder = ROOT / ".github"
    files = [folder / "PULL_REQUEST_TEMPLATE.md", *sorted((folder / "ISSUE_TEMPLATE").glob("*.md"))]
    assert len(files) >= 3
    for file in files:
        text = file.read_text()
        named = re.findall(r"(?:docs/|\./)[\w./]+|[A-Z]+\.md", text)
        assert all((ROOT / name).exists() for name in named), named
        if file.parent.name == "ISSUE_TEMPLATE":
            assert re.match(r"---\nname: .+\nabout: .+\n---\n", text)


def test_sources_keep_to_the_editors_settings() -> None:
    settings = (ROOT / ".editorconfig").read_text()
    assert "max_line_length = 100" in settings
    for file in (ROOT / "edgepack").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"[ \t]$|\t|\r", text, re.MULTILINE), file
        assert not text or text.endswith("\n"), file

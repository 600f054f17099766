"""What contributors find: the container, the hooks, the editor's settings."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import yaml

from tests.github_action import run_action

ROOT = Path(__file__).parents[2]


def test_the_container_has_what_dev_installs() -> None:
    lists = re.findall(r'^apt_\w+="([^"]*)"', (ROOT / "dev").read_text(), re.MULTILINE)
    wanted = {word for text in lists for word in text.split() if not word.startswith("$")}
    install = (ROOT / "Dockerfile").read_text().partition("--no-install-recommends \\\n")[2]
    there = [line.strip(" \\") for line in install.partition("&&")[0].splitlines() if line.strip()]
    assert there == ["python3", *sorted(wanted)]


def test_the_container_of_the_command_line_has_what_dev_installs_to_run_it() -> None:
    text = (ROOT / "Dockerfile.cli").read_text()
    run = re.search(r'^apt_run="([^"]*)"', (ROOT / "dev").read_text(), re.MULTILINE)
    assert run is not None
    install = text.partition("--no-install-recommends \\\n")[2].partition("&&")[0]
    assert install.replace("\\", "").split() == sorted(run[1].split())
    assert (ROOT / "requirements.lock").is_file()
    assert "--require-hashes --no-deps" in text
    assert 'ENTRYPOINT ["edgepack"]' in text


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


def test_the_steps_of_the_action_are_commands_that_exist(tmp_path: Path) -> None:
    """As GitHub runs them, with an edgepack that only reads its command line."""
    shims, workspace = tmp_path / "shims", tmp_path / "workspace"
    shims.mkdir()
    bundle = "dist/m-rasp3b-0123.tar.gz"
    programs = {
        "sudo": '#!/bin/sh\necho "sudo $*"\n',
        "python": '#!/bin/sh\n[ "$1" != -m ] || { echo "python $*"; exit; }\n'
        f'exec {sys.executable} "$@"\n',
        "edgepack": f"#!{sys.executable}\nimport json, sys\nfrom edgepack.cli import make_parser\n"
        "make_parser(sys.argv).parse_args(sys.argv[1:])\nprint(*sys.argv[1:], file=sys.stderr)\n"
        f"if 'package' in sys.argv: print(json.dumps({{'package': '{bundle}'}}, indent=2))\n",
    }
    for name, text in programs.items():
        (shims / name).write_text(text)
        (shims / name).chmod(0o755)
    (workspace / "dist").mkdir(parents=True)
    for name in (bundle, "dist/older.tar.gz"):
        (workspace / name).touch()
    action = ROOT / ".github" / "actions" / "edgepack"
    done = run_action(
        action,
        workspace,
        {"project": "a folder/edgepack.toml", "board": "rasp3b"},
        {"PATH": f"{shims}:/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
    )
    assert done.outputs == {"bundle": bundle}
    assert done.log["Package"].startswith(
        "--json package --project a folder/edgepack.toml --board rasp3b --out dist\n"
    )
    smoke = done.log["Smoke test on a virtual board"]
    assert smoke == f"deploy --bundle {bundle} --device virtual\n"
    # What ./dev installs for virtual boards but for Python's own.
    run = re.search(r'^apt_run="([^"]*)"', (ROOT / "dev").read_text(), re.MULTILINE)
    assert run is not None
    needed = set(run[1].split()) - {"ca-certificates", "python3-venv", "xz-utils"}
    assert needed <= set(done.log["Install"].split())
    assert f"python -m pip install {action}/../../..[build]" in done.log["Install"]


def test_the_development_container_is_the_dockerfiles() -> None:
    folder = ROOT / ".devcontainer"
    text = re.sub(r"^\s*//.*$", "", (folder / "devcontainer.json").read_text(), flags=re.MULTILINE)
    config = json.loads(text)
    assert (folder / config["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    words = config["postCreateCommand"].split()
    assert re.search(rf"^{words[1]}\) ", (ROOT / "dev").read_text(), re.MULTILINE)

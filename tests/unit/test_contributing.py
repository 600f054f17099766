"""What contributors find: the container, the hooks, the editor's settings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
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


def test_the_steps_of_the_action_are_commands_that_exist(tmp_path: Path) -> None:
    """As bash runs them, with an edgepack that only reads its command line."""
    action = yaml.safe_load((ROOT / ".github" / "actions" / "edgepack" / "action.yml").read_text())
    steps = {step["name"]: step for step in action["runs"]["steps"] if "name" in step}
    shim = tmp_path / "edgepack"
    shim.write_text(
        f"#!{sys.executable}\n"
        "import sys; from edgepack.cli import make_parser\n"
        "make_parser(sys.argv).parse_args(sys.argv[1:]); print(*sys.argv[1:])\n"
    )
    shim.chmod(0o755)
    out = tmp_path / "dist"
    out.mkdir()
    (out / "m.tar.gz").touch()
    said = ""
    for name in ("Package", "Smoke test on a virtual board"):
        wanted = {"PROJECT": "edgepack.toml", "BOARD": "rasp3b", "OUT": str(out)}
        given = {key: wanted.get(key, f"{out}/m.tar.gz") for key in steps[name]["env"]}
        told = {"PATH": f"{tmp_path}:/usr/bin:/bin", "GITHUB_OUTPUT": str(tmp_path / "output")}
        said += subprocess.run(
            ["bash", "-euc", steps[name]["run"]],
            env={**given, **told, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert said == (
        f"package --project edgepack.toml --board rasp3b --out {out}\n"
        f"deploy --bundle {out}/m.tar.gz --device virtual\n"
    )
    assert (tmp_path / "output").read_text() == f"bundle={out}/m.tar.gz\n"
    # What ./dev installs for virtual boards but for Python's own.
    run = re.search(r'^apt_run="([^"]*)"', (ROOT / "dev").read_text(), re.MULTILINE)
    assert run is not None
    needed = set(run[1].split()) - {"ca-certificates", "python3-venv", "xz-utils"}
    assert needed <= set(steps["Install"]["run"].split())


def test_the_development_container_is_the_dockerfiles() -> None:
    folder = ROOT / ".devcontainer"
    text = re.sub(r"^\s*//.*$", "", (folder / "devcontainer.json").read_text(), flags=re.MULTILINE)
    config = json.loads(text)
    assert (folder / config["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    words = config["postCreateCommand"].split()
    assert re.search(rf"^{words[1]}\) ", (ROOT / "dev").read_text(), re.MULTILINE)

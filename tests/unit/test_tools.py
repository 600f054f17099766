from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from edgepack.base import tools

ROOT = Path(__file__).parents[2]


def test_dev_installs_every_program_that_edgepack_names() -> None:
    installed = (ROOT / "dev").read_text().split()
    # apt is what installs; qemu-user-static and qemu-user are two ways to the same.
    for package in set(tools.DEBIAN_PACKAGES.values()) - {"apt"}:
        assert package in installed


def test_python_packages_are_those_that_edgepack_depends_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = " ".join(project["optional-dependencies"]["build"])
    for name, package in tools.PYTHON_PACKAGES.items():
        if package == "'edgepack[build]'":
            assert name in extra
        else:
            assert any(line.startswith(package) for line in project["dependencies"]), package


def test_a_missing_program_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(tools.ToolMissingError, match="not found: mke2fs") as caught:
        tools.find_tool("mke2fs")
    assert caught.value.hint == "sudo apt-get install e2fsprogs"
    with pytest.raises(tools.ToolMissingError) as caught:
        tools.find_tool("cmake")
    assert caught.value.hint == "pip install 'edgepack[build]'"
    assert tools.look_for("ssh", "ssh-keygen") is None


def test_programs_of_sbin_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = tools.find_tool("mke2fs")
    assert found.parent in (Path("/usr/sbin"), Path("/sbin"))
    own = tmp_path / "mke2fs"
    own.touch(0o755)
    assert tools.find_tool("mke2fs") == own

"""What a guide shows, to be run as it stands there: its commands by a shell, its project file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from edgepack.base.paths import cache_dir, data_file

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def section(guide: str, title: str = "") -> str:
    """The text of a guide, or of its section of that title."""
    text = (data_file("docs") / "guides" / guide).read_text(encoding="utf-8")
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0] if title else text


def project(text: str) -> str:
    """The first project file that is shown there."""
    return next(block for language, block in _BLOCK.findall(text) if language == "toml")


def commands(text: str) -> list[str]:
    """The commands that are shown after a "$", in order; one may go over lines within quotes."""
    found: list[str] = []
    for block in (block for language, block in _BLOCK.findall(text) if not language):
        lines = iter(block.splitlines())
        for line in lines:
            if not line.startswith("$ "):
                continue
            command = line[2:]
            while command.count('"') % 2:
                command += "\n" + next(lines)
            found.append(command)
    return found


class Shell:
    """A shell in a folder, whose `edgepack` is this one, and whose `pip` and `python` are its."""

    def __init__(self, folder: Path, replace: Mapping[str, str]) -> None:
        self._folder = folder
        self._replace = replace
        self._programs = folder / ".programs"
        self._programs.mkdir()
        for name, words in {
            "edgepack": f'-m edgepack --cache-dir "{cache_dir()}"',
            "pip": "-m pip --quiet --disable-pip-version-check",
            "python": "",
        }.items():
            program = self._programs / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            program.chmod(0o755)

    def run(self, command: str) -> str:
        """What it prints; words of the guide are replaced by those of the test."""
        for old, new in self._replace.items():
            command = command.replace(old, new)
        done = subprocess.run(
            ["sh", "-ec", command],
            cwd=self._folder,
            env={
                **os.environ,
                "PATH": f"{self._programs}:{os.environ['PATH']}",
                "PYTHONPATH": str(data_file("docs").parent),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

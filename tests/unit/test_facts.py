"""The parsers on what boards really answer, and the commands on this machine's shells."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgepack.bundle.manifest import Health
from edgepack.deploy.deploy import deploy_bundle
from edgepack.device import LocalDevice, NotExecutableError
from edgepack.device.facts import (
    Fact,
    FactsError,
    facts,
    gather,
    parse_cpuinfo,
    parse_df,
    parse_kernel,
    parse_noexec,
)
from tests.support import require_tool

GOLDENS = sorted((Path(__file__).parent / "facts").glob("*.json"))
CASES = [
    pytest.param(case, id=f"{path.stem}-{case['fact']}")
    for path in GOLDENS
    for case in json.loads(path.read_text())
]
FACTS = {fact.name: fact for fact in facts("edgepack/app")}


def plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {key: plain(item) for key, item in vars(value).items()}
    if isinstance(value, frozenset):
        return sorted(value)
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("case", CASES)
def test_golden(case: dict[str, Any]) -> None:
    fact = FACTS[case["fact"]]
    assert fact.command == case["command"], "the command changed: ask the boards again"
    assert plain(fact.parse(case["output"])) == case["value"]


@pytest.mark.parametrize("parse", [parse_kernel, parse_cpuinfo, parse_df])
@pytest.mark.parametrize("text", ["", "sh: 1: cat: not found\n"])
def test_answers_without_sense(parse: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r"uname said|no processor|df said"):
        parse(text)


@pytest.mark.parametrize("shell", [["dash"], ["bash", "--posix"], ["busybox", "sh"], ["mksh"]])
def test_commands_run_in_every_shell(shell: list[str], tmp_path: Path) -> None:
    require_tool(shell[0])
    for fact in facts(str(tmp_path / "not" / "there")):
        done = subprocess.run(
            [*shell, "-c", f"( {fact.command} ) 2>/dev/null"],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert "yntax" not in done.stderr
        fact.parse(done.stdout)


def test_gather_here(tmp_path: Path) -> None:
    found = gather(LocalDevice(tmp_path), "it's/a root")
    assert found.system == "Linux"
    assert found.home == str(tmp_path)
    assert found.free_disk_bytes == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)
    assert found.glibc is not None
    assert found.sha256sum == "sha256sum"
    assert found.cores >= 1
    assert found.memory_bytes >= found.memory_available_bytes > 0
    assert any(loader.startswith("/lib") for loader in found.loaders)
    assert json.loads(json.dumps(found.to_dict()))["features"] == sorted(found.features)
    assert (found.tool, found.protocol) == ("", 0)


class FakeNoisyDevice(LocalDevice):
    """Prints a banner before each command, as login scripts do, and lacks a tool."""

    def run(self, command: str, **options: Any) -> Any:
        return super().run(f"echo Welcome!; df() {{ echo broken; }}; {command}", **options)


def test_fact_that_cannot_be_told(tmp_path: Path) -> None:
    with pytest.raises(FactsError, match="cannot tell its disk") as failed:
        gather(FakeNoisyDevice(tmp_path), "root")
    assert "df -Pk" in str(failed.value.hint)


DF = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/sda2 9 1 8 10% /home\n\n"


@pytest.mark.parametrize(
    ("mounts", "noexec"),
    [
        ("/dev/sda1 / ext4 rw 0 0\n/dev/sda2 /home ext4 rw,nosuid,noexec,relatime 0 0\n", True),
        ("/dev/sda1 / ext4 rw,noexec 0 0\n/dev/sda2 /home ext4 rw,relatime 0 0\n", False),
        ("x /home ext4 rw,noexec 0 0\ny /home tmpfs rw 0 0\n", False),
        ("x /home ext4 rw 0 0\ny /home tmpfs rw,noexec 0 0\n", True),
        ("x /home/noexec ext4 noexec 0 0\n", False),
        ("", False),
    ],
)
def test_a_file_system_that_runs_nothing(mounts: str, noexec: bool) -> None:
    assert parse_noexec(DF + mounts) is noexec
    assert not parse_noexec("")


class FakeNoexecDevice(LocalDevice):
    """All of it is mounted noexec, as far as /proc/mounts says."""

    def open(self, command: str) -> Any:
        mounts = "echo x $(df -Pk . | tail -n 1 | sed 's/.* //') ext4 rw,noexec 0 0"
        assert "cat /proc/mounts" in command
        return super().open(command.replace("cat /proc/mounts", mounts))


def test_a_deploy_to_one_sends_nothing(tmp_path: Path) -> None:
    manifest = SimpleNamespace(files={}, health=Health())
    bundle: Any = SimpleNamespace(manifest=manifest, signature=b"")
    with pytest.raises(NotExecutableError, match="app is on a file system that is mounted noexec"):
        deploy_bundle(bundle, FakeNoexecDevice(tmp_path), "app")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fact", FACTS.values(), ids=FACTS)
def test_answers_that_take_parsers_long(fact: Fact) -> None:
    """Where time would grow with the square of an answer's length, this would take hours."""
    for head, text, tail in (
        ("ldd (", ")", ""), ("ldd (x) ", "1", ""), ("ldd (x) ", "1.", ""), ("glibc ", "1", "x"),
        ("musl libc\nVersion ", "1.", ""), ("", " 1", ""), ("", " ", "x"),
        (" 1 1 1 1% /", " ", "x"),
        ("processor: ", "1\nprocessor: ", ""), ("MemTotal: ", "9", " kB"),
        ("PRETTY_NAME=", "'", ""),
        ("edgepack-device 1 protocol ", "9", ""), ("", "\n", ""), ("/lib", "/", ""),
    ):  # fmt: skip
        with contextlib.suppress(ValueError):
            fact.parse(head + text * 300_000 + tail)

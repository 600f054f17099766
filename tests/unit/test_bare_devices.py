"""Devices that lack programs, or do not let ours run."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from edgepack.base.errors import UsageError
from edgepack.bundle.manifest import DEVICE_TOOL
from edgepack.deploy.remote_app import RunRequest, run_on_device
from edgepack.deploy.remote_tool import CorruptTransferError, Layout, not_executable, put_tool
from edgepack.device import LocalDevice, NotExecutableError
from edgepack.device.base import RemoteResult
from edgepack.device.facts import gather
from edgepack.device.patience import Pace

GOOD = "#!/bin/sh\necho edgepack-device 1.0 protocol 1\n"


def shadow(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, `name` is a program that does this."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def put(home: Path, content: str, *, sha256sum: str = "sha256sum", sent: str = "") -> None:
    """Bring a tool with this content, or with another one than was `sent`."""
    file = home.parent / "tool"
    file.write_text(content)
    digest = hashlib.sha256((sent or content).encode()).hexdigest()
    device = LocalDevice(home)
    put_tool(device, Layout.of("a b"), file, digest, sha256sum=sha256sum, pace=Pace(None))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.mark.parametrize("sha256sum", ["", "sha256sum"])
def test_with_and_without_sha256sum(home: Path, sha256sum: str) -> None:
    with pytest.raises(CorruptTransferError, match="not the same on local as it was sent"):
        put(home, "damaged", sent=GOOD, sha256sum=sha256sum)
    assert not (home / "a b" / DEVICE_TOOL).exists()
    put(home, GOOD, sha256sum=sha256sum)
    tool = home / "a b" / DEVICE_TOOL
    assert tool.read_text() == GOOD
    assert tool.stat().st_mode & 0o777 == 0o555
    assert [path.read_text() for path in (home / "a b/incoming").iterdir()] == [GOOD]
    assert gather(LocalDevice(home), "a b").protocol == 1


def test_one_that_does_not_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotExecutableError, match=f"{DEVICE_TOOL} does not run in a b on") as other:
        put(home, "#!/no/such/loader\n")
    assert "not found" in other.value.message
    assert other.value.exit_code == 7

    # As under SELinux: there, it may be executed, and the kernel does not let us.
    shadow(home.parent / "bin", "getenforce", "echo Enforcing", monkeypatch)
    plain = home.parent / "plain"
    plain.touch(0o644)
    with pytest.raises(
        NotExecutableError, match=r"SELinux does not let programs of .* run in a b"
    ) as no:
        put(home, f"#!{plain}\n")
    assert "Permission denied" in no.value.message
    assert "--root" in str(no.value.hint)


def test_the_reason_and_the_way_out(home: Path) -> None:
    facts = replace(
        gather(LocalDevice(home), "x"), libc="bionic", selinux="enforcing", user="shell"
    )
    denied = RemoteResult(
        command="", returncode=4, stdout="", stderr="sh: ./x: can't execute: Permission denied\n"
    )
    error = not_executable("phone", "/data/x", facts, denied)
    assert "SELinux does not let programs of shell run in /data/x" in error.message
    assert "can't execute: Permission denied" in error.message
    assert "/data/local/tmp" in str(error.hint)
    error = not_executable("phone", "/sdcard/x", replace(facts, noexec=True), denied)
    assert "/sdcard/x is on a file system that is mounted noexec" in error.message
    assert "/data/local/tmp" in str(error.hint)
    permissive = replace(facts, selinux="permissive")
    assert "SELinux" not in not_executable("phone", "x", permissive, denied).message


def test_without_mktemp(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input goes to a folder that nobody else may read all the same, and is removed again."""
    shadow(home.parent / "bin", "mktemp", "exit 127", monkeypatch)
    monkeypatch.setenv("TMPDIR", str(home))
    (home / "current/bin").mkdir(parents=True)
    app = home / "current/bin/edgepack-run"
    app.write_text(
        """#!/bin/sh\nmode=$(stat -c %a "${2%/*}")\ncat "$2" >&2\n"""
        """printf '{"edgepack":"%s %s","run_ms":1.0}' "$mode" "${2%/*}"\n"""
    )
    app.chmod(0o755)
    tensor = home.parent / "x.raw"
    tensor.write_bytes(b"12")
    said = run_on_device(LocalDevice(home), ".", RunRequest(inputs=(tensor,)))["edgepack"]
    assert said.startswith(f"700 {home}/edgepack-")
    assert [path.name for path in home.iterdir()] == ["current"]


def test_a_model_without_preprocessing_takes_no_photo(tmp_path: Path) -> None:
    """The app says that a file of the release is missing, as if it were damaged."""
    app = tmp_path / "current" / "bin" / "edgepack-run"
    app.parent.mkdir(parents=True)
    app.write_text('#!/bin/sh\necho \'{"edgepack": "1"}\'\n')
    app.chmod(0o755)
    photo = tmp_path / "photo.png"
    photo.touch()
    asked = RunRequest(image=photo)
    with pytest.raises(UsageError, match=r"without \[preprocess\]") as refused:
        run_on_device(LocalDevice(tmp_path), ".", asked)
    assert "`edgepack init`" in str(refused.value.hint)
    (tmp_path / "current" / "preprocess.json").touch()
    assert run_on_device(LocalDevice(tmp_path), ".", asked)["edgepack"] == "1"

"""The wheel holds what the checkout holds, and works without it."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from edgepack.base.errors import EdgepackError, UsageError
from edgepack.base.process import run
from tests import release
from tests.ssh_keys import make_key, public

ROOT = Path(__file__).resolve().parents[2]
DATA = (
    *("boards.toml", "schemas", "toolchains", "tuned", "cpp_runtime", "LICENSE"),
    *("examples/embed-c", "examples/embed-cpp", "examples/embed-python"),
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    run([*pip, "-w", out, ROOT], cwd=out)
    return next(out.glob("edgepack-*.whl"))


def test_the_wheel_holds_every_tracked_file_and_no_other(wheel: Path) -> None:
    tracked = run(["git", "-C", ROOT, "ls-files", "edgepack", *DATA]).stdout.splitlines()
    expected = {
        name if name.startswith("edgepack/") else f"edgepack/data/{name}" for name in tracked
    }
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    manual = {name for name in names if name.endswith(".data/data/share/man/man1/edgepack.1")}
    assert len(manual) == 1
    assert names - manual == expected


def test_a_release_is_signed_and_checked_by_ssh_keygen_alone(tmp_path: Path) -> None:
    key = make_key(tmp_path)
    out = tmp_path / "dist"
    files = {path.name: path for path in release.release(key, out)}
    assert sorted(path.name for path in out.iterdir()) == sorted(files)
    bill = json.loads(next(path for name, path in files.items() if "cdx" in name).read_text())
    names = {component["name"] for component in bill["components"]}
    assert {"apache-tvm", "ziglang", "paramiko"} <= names
    assert sum(name.startswith("edgepack-") for name in names) == 2

    signers = tmp_path / "signers"
    signers.write_text(f'us namespaces="{release.NAMESPACE}" {public(key)}\n')
    release.check(out, signers, "us")
    # Not by a key that may sign bundles only; nor with a byte more in any file.
    signers.write_text(f'us namespaces="edgepack-bundle" {public(key)}\n')
    with pytest.raises(EdgepackError):
        release.check(out, signers, "us")
    signers.write_text(f'us namespaces="{release.NAMESPACE}" {public(key)}\n')
    for path in files.values():
        content = path.read_bytes()
        path.write_bytes(content[:-2] + b"?" + content[-1:])
        with pytest.raises(EdgepackError):
            release.check(out, signers, "us")
        path.write_bytes(content)
    with pytest.raises(UsageError, match="not empty"):
        release.release(key, out)


def test_the_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "edgepack", "boards", "--json"],
        env={"PYTHONPATH": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    origins = {board["origin"] for board in json.loads(done.stdout)}
    assert origins == {str(tmp_path / "edgepack" / "data" / "boards.toml")}

"""A card that rots: each file of the tree in turn empty, cut, zeros, noise, gone, a folder.

What the tool can do without is done without; what it cannot is named with the command that mends
it, and mended by that."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgepack.bundle import signing
from edgepack.bundle.bundle import Bundle
from tests import fake_app
from tests.bundles import FakeTool
from tests.device_tool import host_tool
from tests.ssh_keys import make_key, public

REFUSED = 5


@dataclass(frozen=True)
class Device:
    """Two releases that passed, signed; the second is current."""

    root: Path
    first: Bundle
    second: Bundle
    signers: Path

    def run(self, *words: str | Path, root: Path) -> tuple[int, dict[str, Any]]:
        done = subprocess.run(
            [host_tool(), "--root", root, "--json", *words],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    folder = tmp_path_factory.mktemp("device")
    tool = folder / "tool"
    tool.write_text("#!/bin/sh\necho edgepack-device 0.0.1 protocol 1\n")
    tool.chmod(0o755)
    key = make_key(folder)
    bundles = [
        fake_app.fake_bundle(
            folder / name,
            weights=name.encode() * 50,
            tool=FakeTool(path=tool),
            version=number,
        )
        for number, name in enumerate(("first", "second"), 1)
    ]
    for bundle in bundles:
        signing.sign(bundle.path, key)
    signers = folder / "signers"
    signers.write_text(f'release@example.org namespaces="edgepack-bundle" {public(key)}\n')
    device = Device(folder / "root", *bundles, signers)
    for bundle in bundles:
        code, answer = device.run("install", bundle.path, "--signers", signers, root=device.root)
        assert code == 0, answer
    return device


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def noise(path: Path) -> None:
    path.write_bytes(random.Random(path.name).randbytes(max(1, path.stat().st_size)))


def gone(path: Path) -> None:
    path.unlink()


def folder_there(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").touch()


DAMAGES: tuple[Callable[[Path], None], ...] = (empty, cut, zeros, noise, gone, folder_there)


def cases(root: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """All damages of what there is once; of content, which is many files, one after the other.

    A file of a release is the very file of the store, unless another entry takes its place.
    """
    for number, path in enumerate(sorted(root.rglob("*"))):
        name = str(path.relative_to(root))
        if path.is_symlink():
            yield from ((name, damage) for damage in (gone, folder_there))
        elif path.is_file():
            damages = DAMAGES
            if name.startswith("store/"):
                damages = DAMAGES[number % 6 :][:1]
            elif name.startswith("releases/") and "manifest" not in name:
                damages = (gone, folder_there)[number % 2 :][:1]
            yield from ((name, damage) for damage in damages)


def damaged(device: Device, name: str, damage: Callable[[Path], None], root: Path) -> None:
    subprocess.run(["cp", "-a", device.root, root], check=True)
    path = root / name
    if not path.is_symlink():
        path.chmod(0o644 | path.stat().st_mode)
    damage(path)


def test_every_file_in_turn(device: Device, tmp_path: Path) -> None:
    # As a test that a power cut ended leaves it.
    (device.root / "state/pending.json").write_text(
        json.dumps({
            "release": device.second.manifest.release, "fallback": device.first.manifest.release,
            "older": None, "attempts": 1, "by": "me",
        })
    )  # fmt: skip
    wanted = device.second.manifest.release
    count = 0
    for name, damage in cases(device.root):
        count += 1
        what = f"{name} {damage.__name__}"
        root = tmp_path / "rotten"
        damaged(device, name, damage, root)
        code, state = device.run("status", root=root)
        assert code == 0, (what, state)
        code, answer = device.run("recover", root=root)
        assert code in (0, REFUSED), (what, answer)
        code, answer = device.run("repair", root=root)
        assert set(answer) == {"mended", "lost"}, (what, answer)
        assert (code == 0) == (not answer["lost"]), (what, answer)
        if name == "trust/allowed_signers":
            # Not guessed, whatever it costs: one command brings it back.
            code, refusal = device.run("install", device.second.path, root=root)
            assert code == REFUSED, (what, refusal)
            assert "trust set" in json.dumps([answer["lost"], refusal]), what
            code, refusal = device.run("trust", "set", device.signers, root=root)
            assert code == 0, (what, refusal)
        # What is lost comes with the bundles.
        for bundle in (device.first, device.second):
            words = ("install", bundle.path, "--allow-downgrade")
            code, answer = device.run(*words, root=root)
            assert code == 0, (what, answer)
        code, answer = device.run("rollback", root=root)
        assert code == 0, (what, answer)
        assert answer["release"] == device.first.manifest.release, what
        code, answer = device.run("activate", wanted, root=root)
        assert code == 0, (what, answer)
        code, answer = device.run("repair", root=root)
        assert (code, answer["lost"]) == (0, []), (what, answer)
        code, state = device.run("status", root=root)
        assert (state["problems"], state["pending"]) == ([], None), (what, state)
        shutil.rmtree(root)
    assert count > 60


def test_repair_goes_to_a_whole_release(device: Device, tmp_path: Path) -> None:
    root = tmp_path / "rotten"
    damaged(device, f"releases/{device.second.manifest.release}/manifest.json", zeros, root)
    zeros(root / f"state/{device.second.manifest.release}.manifest")
    (root / "state/pending.json").unlink(missing_ok=True)
    code, state = device.run("status", root=root)
    assert code == 0
    assert state["current"]["release"] == device.second.manifest.release
    assert any("manifest.json" in problem for problem in state["problems"])
    code, answer = device.run("repair", root=root)
    first = device.first.manifest.release
    assert f"current: release {first} is it now" in answer["mended"]
    assert code == REFUSED
    assert "deploy its bundle again" in answer["lost"][0]
    code, state = device.run("status", root=root)
    assert state["current"]["release"] == first


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_manifest_has_a_second_copy(
    device: Device, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    root = tmp_path / "rotten"
    release = device.second.manifest.release
    manifest = root / f"releases/{release}/manifest.json"
    damaged(device, f"releases/{release}/manifest.json", damage, root)
    (root / "state/pending.json").unlink(missing_ok=True)
    code, answer = device.run("repair", root=root)
    assert (code, answer["lost"]) == (0, [])
    assert any("manifest.json" in line for line in answer["mended"])
    assert manifest.read_bytes() == (device.second.path / "manifest.json").read_bytes()
    code, state = device.run("status", root=root)
    assert (code, state["current"]["release"], state["problems"]) == (0, release, [])
    # The copy is never believed more than the record of what was installed.
    damage(manifest)
    copy = root / f"state/{release}.manifest"
    copy.write_bytes(copy.read_bytes().replace(b'"version": 2', b'"version": 3'))
    assert device.run("repair", root=root)[0] == REFUSED


def test_the_highest_version_comes_from_the_records(device: Device, tmp_path: Path) -> None:
    root = tmp_path / "rotten"
    damaged(device, "state/highest.json", gone, root)
    (root / "state/pending.json").unlink(missing_ok=True)
    device.run("rollback", root=root)
    (root / "state/highest.json").unlink(missing_ok=True)
    shutil.rmtree(root / "releases" / device.first.manifest.release)
    code, answer = device.run("install", device.first.path, root=root)
    assert (code, answer["error"]["kind"]) == (REFUSED, "downgrade")


def test_a_lock_is_the_owners_alone(device: Device, tmp_path: Path) -> None:
    root = tmp_path / "rotten"
    subprocess.run(["cp", "-a", device.root, root], check=True)
    (root / ".lock").chmod(0o644)
    device.run("recover", root=root)
    assert (root / ".lock").stat().st_mode & 0o777 == 0o600

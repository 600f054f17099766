"""A second account on the device, at work at the same time: `nobody`, a process of its own here.

Needs root, to be two accounts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgepack.base.errors import RemoteError
from edgepack.bundle.bundle import Bundle, open_bundle
from edgepack.bundle.manifest import APP, DEVICE_TOOL, PARAMS
from edgepack.deploy.deploy import deploy_bundle
from edgepack.deploy.remote_app import RunRequest, ask_app
from edgepack.deploy.remote_tool import call, set_signers
from edgepack.deploy.repair import repair
from edgepack.device.facts import gather
from edgepack.device.local import LocalDevice
from tests.fake_app import fake_bundle

NOBODY = 65534
ROUNDS = 15


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return fake_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder whose parents all accounts may enter, as pytest's own may not be."""
    if os.getuid() != 0:
        pytest.skip("not root, who alone can be two accounts")
    folder = Path(tempfile.mkdtemp(prefix="edgepack-second-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def as_nobody(do: Callable[[], None]) -> Iterator[None]:
    """`do` again and again, by another account, while the block is under way."""
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        while True:
            with contextlib.suppress(OSError):
                do()
    try:
        yield
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def tool(bundle: Bundle, root: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [bundle.file(DEVICE_TOOL), "--root", root, "--json", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def is_whole(release: Path, bundle: Bundle) -> bool:
    return all(
        hashlib.sha256((release / name).read_bytes()).hexdigest() == entry.sha256
        for name, entry in bundle.manifest.files.items()
    )


def test_one_that_races_verify_and_use(bundle: Bundle, place: Path) -> None:
    """A stick that another account can write: its parameters are swapped all the time, by a rename
    and in place. What gets installed is what was signed, or nothing."""
    stick = place / "stick"
    shutil.copytree(bundle.path, stick, symlinks=True)
    good = bundle.file(PARAMS).read_bytes()
    bad = bytes(byte ^ 1 for byte in good)
    for path in [stick, *stick.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    params = stick / PARAMS
    turn = [0]

    def swap() -> None:
        turn[0] += 1
        content = bad if turn[0] % 2 else good
        if turn[0] % 4 < 2:
            new = params.with_name("new")
            new.write_bytes(content)
            new.replace(params)
        else:
            params.chmod(0o644)
            with params.open("r+b") as file:
                file.write(content)

    installed = refused = 0
    with as_nobody(swap):
        for number in range(ROUNDS):
            root = place / f"root{number}"
            done = tool(bundle, root, "install", stick)
            release = root / "releases" / bundle.manifest.release
            if done.returncode == 0:
                installed += 1
                assert is_whole(release, bundle)
                assert (root / "current").resolve() == release.resolve()
            else:
                refused += 1
                assert not (root / "current").exists()
    assert installed + refused == ROUNDS
    assert refused > 0  # the race was one


def test_hard_links_of_another_account(bundle: Bundle, place: Path) -> None:
    """Links to what lies in the store, where the kernel lets them be made, change nothing of it and
    keep nothing from being replaced."""
    root, other = place / "root", place / "other"
    other.mkdir()
    os.chown(other, NOBODY, NOBODY)
    assert tool(bundle, root, "install", bundle.path).returncode == 0
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    for path in files:
        with contextlib.suppress(OSError):  # /proc/sys/fs/protected_hardlinks
            os.link(path, other / f"{path.stat().st_ino}")

    def write() -> None:
        for path in [*other.iterdir(), *files]:
            with contextlib.suppress(OSError):
                path.chmod(0o666)
            with contextlib.suppress(OSError), path.open("r+b") as file:
                file.write(b"mine now")
            with contextlib.suppress(OSError):
                os.link(path, other / f"{path.name}.again")

    with as_nobody(write):
        for _ in range(3):
            assert tool(bundle, root, "verify").returncode == 0
            assert tool(bundle, root, "install", bundle.path).returncode == 0
            assert tool(bundle, root, "prune", "--keep", "1").returncode == 0
    assert is_whole(root / "current", bundle)
    assert open_bundle(root / "current").manifest.release == bundle.manifest.release


def test_a_parent_that_all_may_write(bundle: Bundle, place: Path) -> None:
    """As /tmp: another account can put a folder there first, and is not taken for the owner."""
    place.chmod(0o1777)
    root = place / "root"
    assert tool(bundle, place / "own", "install", bundle.path).returncode == 0
    shutil.copytree(place / "own", root, symlinks=True)
    for path in [root, *root.rglob("*")]:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    before = {path: path.lstat().st_mtime_ns for path in root.rglob("*")}
    for words in (("install", bundle.path), ("rollback",), ("prune", "--keep", "1")):
        done = tool(bundle, root, *words)
        assert done.returncode != 0
        assert "belongs to user 65534, this is user 0" in done.stdout + done.stderr
    assert {path: path.lstat().st_mtime_ns for path in root.rglob("*")} == before

    def move() -> None:
        with contextlib.suppress(OSError):
            (place / "own").rename(place / "elsewhere")
        with contextlib.suppress(OSError):
            (place / "own" / "current").unlink()

    with as_nobody(move):  # its own name is safe there: the folder is sticky
        for _ in range(3):
            assert tool(bundle, place / "own", "verify").returncode == 0


@pytest.mark.parametrize("kind", ["theirs", "a link to theirs", "everybody's"])
def test_a_root_that_another_account_made(bundle: Bundle, place: Path, kind: str) -> None:
    """What lies in it under the names of the owner's programs is run by no command."""
    theirs, root, ran = place / "theirs", place / "root", place / "ran"
    trap = f"#!/bin/sh\nid -u >>{ran}\necho 'edgepack-device 9.9.9 protocol 99'\n"
    for name in (DEVICE_TOOL, f"current/{APP}"):
        program = theirs / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(trap)
        program.chmod(0o755)
    for path in [theirs, *theirs.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    why = "belongs to user 65534, this is user 0"
    if kind == "a link to theirs":
        root.symlink_to(theirs)
    else:
        theirs.rename(root)
    if kind == "everybody's":
        os.chown(root, 0, 0)
        root.chmod(0o1777)
        why = "can be written by everybody"
    device = LocalDevice(place)
    before = {path: path.lstat().st_mtime_ns for path in place.rglob("*")}
    for do in (
        lambda: deploy_bundle(bundle, device, str(root)),
        lambda: call(device, str(root), "status"),
        lambda: call(device, "root", "rollback"),
        lambda: repair(device, "root"),
        lambda: set_signers(device, "root", b"x ssh-ed25519 AAAA\n"),
        lambda: ask_app(device, "root", RunRequest(golden=True)),
    ):
        with pytest.raises(RemoteError, match=why):
            do()
    assert gather(device, "root").tool == ""
    assert not ran.exists()
    assert {path: path.lstat().st_mtime_ns for path in place.rglob("*")} == before
    os.chown(root.resolve(), 0, 0)
    root.chmod(0o755)
    gather(device, "root")
    assert ran.read_text().split() == ["0"]  # the trap is one

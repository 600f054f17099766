"""Attacks on a device that has signers pinned: refused, each in its own words; nothing installed.

The real tool does it, on this machine and, for what is the same code with other word sizes and
byte accesses, as ARM code under qemu; in the long form also on a board without any library.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack import cli, virtual
from edgepack.base.errors import ConnectError
from edgepack.base.progress import NoProgress
from edgepack.boards import Board, get_board
from edgepack.bundle import signing
from edgepack.bundle.bundle import Bundle, open_bundle, write_tarball
from edgepack.bundle.manifest import MANIFEST_NAME, SIGNATURE_NAME
from edgepack.deploy.deploy import deploy_bundle
from edgepack.device import ChangedHostKeyError, SshOptions, open_device
from edgepack.device.ssh import SshDevice
from edgepack.native.device_tool import build_device_tool
from edgepack.virtual import VirtualBoard
from tests.boards import login, own_boards
from tests.bundles import FakeTool, small_bundle
from tests.device_tool import host_tool
from tests.fake_app import fake_bundle
from tests.integration import sshd_server
from tests.integration.cutting_proxy import CuttingProxy
from tests.integration.sshd_server import Sshd
from tests.ssh_keys import armour, dearmour, make_key, public
from tests.support import require_tool

BUNDLE_REFUSED = 5


@dataclass(frozen=True, kw_only=True)
class Kit:
    """A tool as a command line, and bundles of two releases that are signed for its board."""

    command: tuple[str, ...]
    board: Board
    key: Path
    stranger: Path
    first: Bundle
    second: Bundle
    device: SshDevice | None = None
    outside: Path = Path()
    """Where the command is run, and where the root of that is on this machine."""

    @property
    def activates(self) -> bool:
        """What only looks like an app of ARM Linux cannot be tested: it is not made current."""
        return self.board.is_local or self.device is not None

    def run(self, words: Sequence[str | Path]) -> tuple[int, str, str]:
        """Exit code and what is said on both streams."""
        argv = [*self.command, *map(str, words)]
        if self.device is None:
            done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
            return done.returncode, done.stdout, done.stderr
        there = shlex.join(word.removeprefix(str(self.outside)) for word in argv)
        result = self.device.run(there, check=False)
        return result.returncode, result.stdout, result.stderr

    def signers(self, options: str = 'namespaces="edgepack-bundle"') -> str:
        return f"release@example.org {options} {public(self.key)}\n"


@dataclass(frozen=True, kw_only=True)
class Victim:
    """A device that trusts the kit's key and has its first release."""

    root: Path
    kit: Kit

    def run(self, *words: str | Path, check: bool = True) -> tuple[int, dict[str, Any]]:
        code, out, err = self.kit.run(["--root", self.root, "--json", *words])
        assert "Sanitizer" not in err
        if check:
            assert code == 0, out + err
        return code, json.loads(out or "{}")

    def state(self) -> dict[str, str]:
        """All that a release, a link or trust consists of: path -> content's hash or target."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            # Whole blobs of a bundle whose manifest was signed may come and lie there, unused.
            if name.startswith((".lock", "incoming", "store")) or name == "trust/clock":
                continue
            if path.is_symlink():
                found[name] = f"-> {path.readlink()}"
            elif path.is_file():
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        return found

    def refuses(self, bundle: Path, kind: str, says: str, *words: str) -> None:
        before = self.state()
        code, answer = self.run("install", bundle, *words, check=False)
        assert code == BUNDLE_REFUSED, answer
        assert answer["error"]["kind"] == kind, answer
        assert says in answer["error"]["message"], answer
        assert self.state() == before
        for blob in (self.root / "store").iterdir():
            assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
        self.run("verify")


def make_kit(
    folder: Path, command: tuple[str, ...], make: Callable[..., Bundle], board: str
) -> Kit:
    key, stranger = make_key(folder, "key"), make_key(folder, "stranger")
    first = make(folder / "first", version=1)
    second = make(
        folder / "second", version=2, labels=["a", "b", "c", "d"], params=b"other weights"
    )
    for bundle in (first, second):
        signing.sign_folder(bundle, key)
    return Kit(
        command=command,
        board=get_board(board),
        key=key,
        stranger=stranger,
        first=first,
        second=second,
    )


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    tool = host_tool(faults=True)

    def make(folder: Path, params: bytes = b"weights", **changes: Any) -> Bundle:
        return fake_bundle(folder, weights=params, tool=FakeTool(path=tool), **changes)

    return make_kit(tmp_path_factory.mktemp("native"), (str(tool),), make, "local")


@pytest.fixture(scope="session")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    # qemu-user shows the tool this machine's /proc/cpuinfo.
    board = replace(get_board("rasp3b"), hwcaps=())
    tool = build_device_tool(board)

    def make(folder: Path, **changes: Any) -> Bundle:
        return small_bundle(folder, board=board, tool=tool, **changes)

    command = (require_tool("qemu-arm-static"), "-cpu", "cortex-a9", str(tool.path))
    return make_kit(tmp_path_factory.mktemp("arm"), command, make, "rasp3b")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    """A board without any library, over SSH; its files are also reached from outside."""
    if os.geteuid() != 0:
        pytest.skip("the files of another user's board are root's to see")
    profile = get_board("alpine-armv7")
    with own_boards():
        board = virtual.up(profile, name="attacked", kind="light")
        outside = root_of(board)
        tool = build_device_tool(profile)
        (outside / "root/edgepack-device").write_bytes(tool.path.read_bytes())
        (outside / "root/edgepack-device").chmod(0o755)

        def make(folder: Path, params: bytes = b"weights", **changes: Any) -> Bundle:
            return fake_bundle(folder, board=profile, weights=params, tool=tool, **changes)

        folder = outside / "root/kit"
        folder.mkdir()
        kit = make_kit(folder, ("./edgepack-device",), make, profile.name)
        device = login(board, "root")
        yield replace(kit, device=device, outside=outside)
        device.close()


def root_of(board: VirtualBoard) -> Path:
    """The root of a light board as this machine sees it: that of a process in it."""
    todo, own = [board.pid], Path("/").stat()
    while todo:
        process = Path(f"/proc/{todo.pop()}")
        root = (process / "root").stat()
        if (root.st_dev, root.st_ino) != (own.st_dev, own.st_ino):
            return process / "root"
        todo += map(int, (process / f"task/{process.name}/children").read_text().split())
    raise AssertionError("no process of the board is to be found")


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """On the board, for tests that use one."""
    callspec = getattr(request.node, "callspec", None)
    if callspec is None or callspec.params.get("kit") != "bare":
        return tmp_path
    kit: Kit = request.getfixturevalue("bare")
    return Path(tempfile.mkdtemp(dir=kit.outside / "root"))


@pytest.fixture(params=["native", "arm", pytest.param("bare", marks=pytest.mark.slow)])
def kit(request: pytest.FixtureRequest) -> Kit:
    found: Kit = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def victim(kit: Kit, tmp_path: Path) -> Victim:
    found = Victim(root=tmp_path / "device", kit=kit)
    signers = tmp_path / "allowed_signers"
    signers.write_text(kit.signers())
    activate = () if kit.activates else ("--no-activate",)
    found.run("install", kit.first.path, "--signers", signers, *activate)
    return found


def copy(bundle: Bundle, folder: Path) -> Path:
    target = folder / "bundle"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(bundle.path, target)
    return target


def test_what_was_not_touched_is_installed(victim: Victim, tmp_path: Path) -> None:
    """Else the refusals below would say little."""
    second = victim.kit.second
    tarball = tmp_path / "second.tar.gz"
    write_tarball(open_bundle(second.path), tarball)
    _, report = victim.run("install", tarball, "--no-activate")
    assert report["release"] == second.manifest.release
    assert report["signer"].startswith("release@example.org SHA256:")
    assert (victim.root / "releases" / second.manifest.release / "labels.txt").is_file()


def test_a_flipped_bit_in_every_file(victim: Victim, tmp_path: Path) -> None:
    """In one that is in the store already it does not matter: the device keeps its own."""
    here = {path.name for path in (victim.root / "store").iterdir()}
    new = [n for n, e in victim.kit.second.manifest.files.items() if e.sha256 not in here]
    assert {"model/params.bin", "labels.txt"} <= set(new)
    fresh = Victim(root=tmp_path / "empty", kit=victim.kit)
    signers = tmp_path / "allowed_signers"
    for name in victim.kit.second.manifest.files:
        bundle = copy(victim.kit.second, tmp_path)
        path = bundle / name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x10
        path.write_bytes(data)
        code, answer = fresh.run("install", bundle, "--signers", signers, check=False)
        assert (code, answer["error"]["kind"]) == (BUNDLE_REFUSED, "damaged")
        assert f"{name} is not what the manifest says" in answer["error"]["message"]
        assert fresh.state() == {}
        if name in new:
            victim.refuses(bundle, "damaged", f"{name} is not what the manifest says")


def test_a_flipped_bit_in_the_manifest(victim: Victim, tmp_path: Path) -> None:
    bundle = copy(victim.kit.second, tmp_path)
    path = bundle / MANIFEST_NAME
    good = path.read_bytes()
    for place in range(0, len(good), 97):
        data = bytearray(good)
        data[place] ^= 1
        path.write_bytes(data)
        victim.refuses(bundle, "bad-signature", "not over this manifest")


def test_a_flipped_bit_in_the_signature(victim: Victim, tmp_path: Path) -> None:
    bundle = copy(victim.kit.second, tmp_path)
    path = bundle / SIGNATURE_NAME
    blob = dearmour(path.read_text())
    key = base64.b64decode(public(victim.kit.key).split()[1])
    inside = range(blob.index(key), blob.index(key) + len(key))
    for place in range(0, len(blob), 11):
        data = bytearray(blob)
        data[place] ^= 4
        path.write_text(armour(bytes(data)))
        point = place in inside and place - inside.start >= len(key) - 32
        if point:
            victim.refuses(bundle, "unknown-signer", "not among the allowed signers")
        else:
            victim.refuses(bundle, "bad-signature", "the bundle's signature is not valid")


def test_files_that_are_cut_grown_or_gone(victim: Victim, tmp_path: Path) -> None:
    name = "model/params.bin"
    for change, says in (
        (lambda data: data[:-1], "is not what the manifest says"),
        (lambda _: b"", "is not what the manifest says"),
        (lambda data: data + b"x", "is longer than the manifest says"),
    ):
        bundle = copy(victim.kit.second, tmp_path)
        (bundle / name).write_bytes(change((bundle / name).read_bytes()))
        victim.refuses(bundle, "damaged", f"{name} {says}")
    bundle = copy(victim.kit.second, tmp_path)
    (bundle / SIGNATURE_NAME).write_bytes((bundle / SIGNATURE_NAME).read_bytes()[:80])
    victim.refuses(bundle, "bad-signature", "cut short")


def test_links_in_the_place_of_files(victim: Victim, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of somebody else")
    for name in ("model/params.bin", MANIFEST_NAME):
        bundle = copy(victim.kit.second, tmp_path)
        (bundle / name).unlink()
        (bundle / name).symlink_to(secret)
        before = victim.state()
        code, answer = victim.run("install", bundle, check=False)
        assert code != 0
        assert "of somebody else" not in json.dumps(answer)
        assert victim.state() == before


def test_a_tarball_that_is_cut_grown_or_has_a_flipped_bit(victim: Victim, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    write_tarball(open_bundle(victim.kit.second.path), path)
    good = path.read_bytes()
    for size in (0, 5, 600, len(good) // 2, len(good) - 4, len(good) - 1):
        path.write_bytes(good[:size])
        victim.refuses(path, "truncated", "it ends too early")
    for more in (b"x", b"\0" * 512, good):
        path.write_bytes(good + more)
        victim.refuses(path, "damaged", "bytes after its end")
    # 17 places over the whole: headers, content, checksums. The first found fault is reported.
    kinds = set()
    for place in range(11, len(good), len(good) // 16):
        data = bytearray(good)
        data[place] ^= 2
        path.write_bytes(data)
        before = victim.state()
        code, answer = victim.run("install", path, check=False)
        assert code == BUNDLE_REFUSED, place
        assert victim.state() == before
        kinds.add(answer["error"]["kind"])
    assert kinds <= {"damaged", "truncated", "unsafe-archive", "bad-signature"}


def tar(*members: tuple[str, dict[str, Any], bytes]) -> bytes:
    blocks = b""
    for name, fields, data in members:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        for field, value in fields.items():
            setattr(info, field, value)
        blocks += info.tobuf(tarfile.GNU_FORMAT) + data + b"\0" * (-len(data) % 512)
    return gzip.compress(blocks + b"\0" * 1024, mtime=0)


UNSAFE = {
    "a path upwards": (("x/../../evil", {}, b"x"), "no safe relative path"),
    "an absolute path": (("/tmp/evil", {}, b"x"), "no safe relative path"),
    "a second top": (("y/evil", {}, b"x"), "outside its top folder"),
    "a hidden file": (("x/.ssh/authorized_keys", {}, b"x"), "no safe relative path"),
    "a symbolic link": (("x/l", {"type": tarfile.SYMTYPE, "linkname": "/"}, b""), "symbolic link"),
    "a hard link": (
        ("x/l", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"}, b""),
        "hard link",
    ),
    "a device": (("x/d", {"type": tarfile.BLKTYPE, "devmajor": 8}, b""), "a block device"),
    "a pipe": (("x/p", {"type": tarfile.FIFOTYPE}, b""), "a named pipe"),
    "a file twice": ((f"x/{MANIFEST_NAME}", {}, b"{}"), "is there twice"),
    "a file in a file": ((f"x/{MANIFEST_NAME}/x", {}, b""), "a file and a folder"),
    "escape codes": (("x/\x1b[2J", {}, b""), "no safe relative path"),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_paths_and_links_in_a_tarball(victim: Victim, tmp_path: Path, name: str) -> None:
    member, says = UNSAFE[name]
    path = tmp_path / "x.tar.gz"
    path.write_bytes(tar((f"x/{MANIFEST_NAME}", {}, b"{}"), member))
    victim.refuses(path, "unsafe-archive", says)
    assert not (tmp_path / "evil").exists()
    # Behind all that is good, too.
    good = io.BytesIO()
    with tarfile.open(fileobj=good, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        archive.add(victim.kit.second.path, "x")
    size = len(good.getvalue().rstrip(b"\0"))
    blocks = good.getvalue()[: size + -size % 512] + gzip.decompress(tar(member))
    path.write_bytes(gzip.compress(blocks, mtime=0))
    victim.refuses(path, "unsafe-archive", says)


def test_a_file_more_than_the_manifest_lists(victim: Victim, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    bundle = copy(victim.kit.second, tmp_path)
    (bundle / "model" / "more").write_text("x")
    with tarfile.open(path, "w:gz", format=tarfile.USTAR_FORMAT) as archive:
        archive.add(bundle, "x")
    victim.refuses(path, "damaged", "model/more is not in the manifest")


def test_the_manifest_or_the_signature_of_another_bundle(victim: Victim, tmp_path: Path) -> None:
    first, second = victim.kit.first, victim.kit.second
    bundle = copy(second, tmp_path)
    shutil.copy(first.path / SIGNATURE_NAME, bundle)
    victim.refuses(bundle, "bad-signature", "not over this manifest")
    # With both, the signature is right, and the content another one's.
    third = replace_params(victim.kit, tmp_path / "third")
    bundle = copy(second, tmp_path)
    for name in (MANIFEST_NAME, SIGNATURE_NAME):
        shutil.copy(third / name, bundle)
    victim.refuses(bundle, "damaged", "model/params.bin is")


def replace_params(kit: Kit, folder: Path, **document: Any) -> Path:
    """The second bundle with other weights, or another manifest, signed again."""
    shutil.copytree(kit.second.path, folder)
    manifest = json.loads((folder / MANIFEST_NAME).read_text())
    (folder / "model" / "params.bin").write_bytes(b"third weights")
    manifest["files"]["model/params.bin"].update(
        sha256=hashlib.sha256(b"third weights").hexdigest(), size=len(b"third weights")
    )
    manifest["release"] = "0123456789ab"
    manifest.update(document)
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest))
    sign_as_is(folder, kit.key)
    return folder


def sign_as_is(folder: Path, key: Path) -> None:
    """What a careless or stolen key would sign, which `edgepack sign` does not."""
    done = subprocess.run(
        ["ssh-keygen", "-Y", "sign", "-q", "-n", signing.NAMESPACE, "-f", key],
        input=(folder / MANIFEST_NAME).read_bytes(),
        capture_output=True,
        check=True,
    )
    (folder / SIGNATURE_NAME).write_bytes(done.stdout)


def test_an_unsigned_bundle(victim: Victim, tmp_path: Path) -> None:
    bundle = copy(victim.kit.second, tmp_path)
    (bundle / SIGNATURE_NAME).unlink()
    victim.refuses(bundle, "unsigned", "the bundle is not signed")


def test_an_unknown_signer(victim: Victim, tmp_path: Path) -> None:
    bundle = copy(victim.kit.second, tmp_path)
    signing.sign(bundle, victim.kit.stranger)
    fingerprint = signing.read_public_key(Path(f"{victim.kit.stranger}.pub")).fingerprint
    victim.refuses(bundle, "unknown-signer", fingerprint)
    # A list of their own does not help: another one is pinned.
    signers = tmp_path / "theirs"
    signers.write_text(f"me {public(victim.kit.stranger)}\n")
    victim.refuses(bundle, "unknown-signer", "other signers are pinned", "--signers", str(signers))


def test_a_signature_that_was_made_for_something_else(victim: Victim, tmp_path: Path) -> None:
    bundle = copy(victim.kit.second, tmp_path)
    done = subprocess.run(
        ["ssh-keygen", "-Y", "sign", "-q", "-n", "git", "-f", victim.kit.key],
        input=(bundle / MANIFEST_NAME).read_bytes(),
        capture_output=True,
        check=True,
    )
    (bundle / SIGNATURE_NAME).write_bytes(done.stdout)
    victim.refuses(bundle, "bad-signature", "another purpose")


def test_an_expired_key(victim: Victim, tmp_path: Path) -> None:
    signers = tmp_path / "expired"
    signers.write_text(victim.kit.signers('valid-before="20200101Z"'))
    victim.run("trust", "set", signers)
    victim.refuses(victim.kit.second.path, "expired-key", "was valid before 2020-01-01")
    signers.write_text(victim.kit.signers('valid-after="20990101Z"'))
    victim.run("trust", "set", signers)
    victim.refuses(victim.kit.second.path, "expired-key", "is valid only after 2099-01-01")


def test_a_clock_that_was_set_back(victim: Victim, tmp_path: Path) -> None:
    """The device remembers the latest time it has seen: a dead battery revives no key."""
    signers = tmp_path / "signers"
    signers.write_text(victim.kit.signers('valid-before="20400101Z"'))
    victim.run("trust", "set", signers)
    clock = victim.root / "trust" / "clock"
    clock.touch()
    os.utime(clock, (2_240_000_000, 2_240_000_000))  # in 2040, after the key's end
    victim.refuses(victim.kit.second.path, "expired-key", "was valid before 2040-01-01")


def test_another_board(victim: Victim, tmp_path: Path) -> None:
    bundle = replace_params(victim.kit, tmp_path / "third", board="pynq")
    victim.refuses(bundle, "wrong-board", "the bundle is for board pynq, this device is a")


def test_another_processor(victim: Victim, tmp_path: Path) -> None:
    manifest = json.loads((victim.kit.second.path / MANIFEST_NAME).read_text())
    compatible = {**manifest["compatible"], "triple": "mips-linux-gnu"}
    bundle = replace_params(victim.kit, tmp_path / "third", compatible=compatible)
    victim.refuses(bundle, "wrong-cpu", "mips")


def test_another_manifest_for_a_release_that_is_here(victim: Victim, tmp_path: Path) -> None:
    release = victim.kit.first.manifest.release
    bundle = replace_params(victim.kit, tmp_path / "third", release=release)
    victim.refuses(bundle, "release-mismatch", f"release {release} is here with another manifest")


def test_a_manifest_that_is_signed_and_makes_no_sense(victim: Victim, tmp_path: Path) -> None:
    manifest = json.loads((victim.kit.second.path / MANIFEST_NAME).read_text())
    entry = manifest["files"]["labels.txt"]
    files = {**manifest["files"], "../../evil": entry}
    bundle = replace_params(victim.kit, tmp_path / "third", files=files)
    victim.refuses(bundle, "bad-manifest", "unsafe path '../../evil'")


def test_an_older_version(native: Kit, tmp_path: Path) -> None:
    victim = Victim(root=tmp_path / "device", kit=native)
    signers = tmp_path / "allowed_signers"
    signers.write_text(native.signers())
    victim.run("install", native.second.path, "--signers", signers)
    victim.refuses(native.first.path, "downgrade", "is version 1, version 2 was active here")
    victim.run("install", native.first.path, "--allow-downgrade")
    assert victim.run("status")[1]["current"]["release"] == native.first.manifest.release


@pytest.fixture
def stopped(native: Kit, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts an install that stands still at the first step of a name, until SIGCONT."""
    signers = tmp_path / "allowed_signers"
    signers.write_text(native.signers())
    started: list[subprocess.Popen[bytes]] = []

    def at(step: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*native.command, "--root", tmp_path / "device", "install",
             copy(native.second, tmp_path), "--signers", signers],
            env={**os.environ, "EDGEPACK_FAULT": f"stop:{step}"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        started.append(process)
        state = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert state is not None
        assert state.si_code == os.CLD_STOPPED, f"it ended before {step}"
        return process

    yield at
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("when", ["blob.fsync", "blob.rename", "release.link", "activate.verify"])
def test_a_file_that_is_swapped_after_it_was_verified(
    native: Kit,
    tmp_path: Path,
    stopped: Callable[[str], subprocess.Popen[bytes]],
    when: str,
) -> None:
    """Whoever holds the USB stick changes everything on it while the tool is at work."""
    tool = stopped(when)
    for path in (tmp_path / "bundle").rglob("*"):
        if path.is_file():
            path.write_bytes(b"swapped\n")
    tool.send_signal(signal.SIGCONT)
    tool.wait(120)
    root = tmp_path / "device"
    # Either nothing was installed, or what was verified; never what was put in its place.
    for path in (root / "releases").rglob("*"):
        assert not path.is_file() or path.read_bytes() != b"swapped\n"
    release = root / "releases" / native.second.manifest.release
    if release.exists():
        for name, entry in native.second.manifest.files.items():
            assert hashlib.sha256((release / name).read_bytes()).hexdigest() == entry.sha256
    assert release.exists() == (when in ("release.link", "activate.verify"))


def test_a_blob_that_is_changed_on_the_device(native: Kit, tmp_path: Path) -> None:
    """It is not used: `run` and `activate` verify again."""
    victim = Victim(root=tmp_path / "device", kit=native)
    signers = tmp_path / "allowed_signers"
    signers.write_text(native.signers())
    _, report = victim.run("install", native.first.path, "--signers", signers)
    params = victim.root / "releases" / report["release"] / "model" / "params.bin"
    params.chmod(0o644)
    params.write_bytes(b"changed")
    for words in (("verify",), ("run", "--", "--version"), ("activate", report["release"])):
        code, answer = victim.run(*words, check=False)
        assert code == BUNDLE_REFUSED
        assert "model/params.bin" in json.dumps(answer)


@dataclass(frozen=True, kw_only=True)
class Network:
    """A device's sshd with its host key in `known`, and another host with the same logins."""

    device: Sshd
    other: Sshd
    known: Path


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    require_tool("sshd", "/usr/sbin/sshd")
    device = sshd_server.start(tmp_path / "sshd")
    other = sshd_server.start(tmp_path / "other")
    try:
        shutil.copy(device.folder / "authorized", other.folder / "authorized")
        known = tmp_path / "known_hosts"
        known.write_text("")
        yield Network(device=device, other=other, known=known)
    finally:
        device.stop()
        other.stop()


def nobody_logged_in(server: Sshd) -> bool:
    log = (server.folder / "log").read_text()
    assert "Connection" in log  # it says who came
    return "Accepted publickey" not in log


def test_another_host_in_the_place_of_the_device(
    native: Kit, tmp_path: Path, network: Network, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole deploys by the command line; the other host is not even logged in to."""
    root = tmp_path / "root"

    def deploy(bundle: Bundle, port: int, *words: str) -> int:
        device = f"{network.device.user}@127.0.0.1:{port}"
        login = ("--identity", str(network.device.key), "--known-hosts", str(network.known))
        target = ("--device", device, "--root", str(root))
        return cli.main(["deploy", "--bundle", str(bundle.path), *target, *login, *words])

    with CuttingProxy(network.device.port) as proxy:
        assert deploy(native.first, proxy.port, "--accept-new-host-key") == 0
        victim = Victim(root=root, kit=native)
        before, known = victim.state(), network.known.read_text()
        assert known.count("\n") == 1
        proxy.target = network.other.port
        capsys.readouterr()
        for words in ((), ("--accept-new-host-key",), ("--dry-run",)):
            assert deploy(native.second, proxy.port, *words) == ConnectError.exit_code
            said = capsys.readouterr()
            assert f"error: host key of 127.0.0.1:{proxy.port} is not the one in" in said.err
            assert f"{network.known}:1" in said.err
            assert "somebody may be listening in" in said.err
            assert said.out == ""
        assert victim.state() == before
        assert network.known.read_text() == known
        assert nobody_logged_in(network.other)
        proxy.target = network.device.port
        assert deploy(native.second, proxy.port) == 0
    assert victim.run("status")[1]["current"]["release"] == native.second.manifest.release


def test_another_host_that_takes_over_in_the_middle(
    native: Kit, tmp_path: Path, network: Network
) -> None:
    """The link is cut during the upload, and what answers then is another host."""
    bundle = fake_bundle(
        tmp_path / "bundle",
        weights=np.random.default_rng(5).bytes(2_000_000),
        tool=FakeTool(path=Path(native.command[0])),
    )
    with CuttingProxy(network.device.port, cut_after=1_500_000) as proxy:

        class TakesOver(NoProgress):
            def step(self, text: str) -> None:
                if "trying again" in text:
                    proxy.target = network.other.port

        line = f"[127.0.0.1]:{proxy.port} {sshd_server.public(network.device.host_key)}"
        network.known.write_text(line + "\n")
        options = SshOptions(known_hosts=network.known, identity=network.device.key)
        address = f"{network.device.user}@127.0.0.1:{proxy.port}"
        device = open_device(address, get_board("local"), options=options)
        with pytest.raises(ChangedHostKeyError, match="known_hosts:1"):
            deploy_bundle(bundle, device, f"{tmp_path}/root", progress=TakesOver())
        assert (proxy.cuts, proxy.connections) == (1, 2)
    assert nobody_logged_in(network.other)
    assert list((tmp_path / "root" / "releases").iterdir()) == []
    assert not (tmp_path / "root" / "current").is_symlink()

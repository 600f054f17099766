"""The first deploy to an empty device: the device tool itself is brought as safely as a release.

Killed at each command of the script that brings it, before and after: what is there is the tool of
before (or none) or the new one, whole, and the next try completes. A link that is cut every 300 kB
goes on where it stopped. Two operators at once both succeed, or one is told to wait.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgepack.base.errors import EdgepackError, RemoteError
from edgepack.bundle.bundle import Bundle, open_bundle
from edgepack.bundle.manifest import DEVICE_TOOL
from edgepack.deploy.deploy import DeployOptions, Report, deploy_bundle
from edgepack.deploy.remote_tool import CorruptTransferError, Layout, put_tool
from edgepack.device import Address, DiskFullError, LocalDevice, RemoteResult, SshOptions
from edgepack.device.errors import command_error, inodes_left
from edgepack.device.patience import Pace
from edgepack.device.ssh import SshDevice
from tests.fake_app import fake_bundle
from tests.integration import sshd_server
from tests.integration.cutting_proxy import CuttingProxy
from tests.integration.sshd_server import Sshd, public

LAYOUT = Layout.of("edge pack/m")
# What the script calls, each through a program that can kill it.
PROGRAMS = ["mkdir", "cp", "cat", "chmod", "ln", "mv", "rm", "sync", "wc", "sha256sum"]
WRAPPER = """#!/bin/sh
echo >>{log}
n=$({real_wc} -l <{log})
[ $n != "$BEFORE" ] || kill -9 0
{real} "$@"; code=$?
[ $n != "$AFTER" ] || kill -9 0
exit $code
"""


def make_tool(path: Path, seed: int, size: int = 60_000) -> str:
    """A program of random bytes that does nothing; returns its hash."""
    path.write_bytes(b"#!/bin/sh\nexit 0\n" + np.random.default_rng(seed).bytes(size))
    path.chmod(0o755)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log with a line for each program that was called; $BEFORE and $AFTER kill at the n-th."""
    folder, log = tmp_path / "wrapped", tmp_path / "calls"
    folder.mkdir()
    for name in PROGRAMS:
        real = shutil.which(name)
        text = WRAPPER.format(log=log, real=real, real_wc=shutil.which("wc"))
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("BEFORE", "0")
    monkeypatch.setenv("AFTER", "0")
    return log


def bring(home: Path, tool: Path, sha256: str, *, sha256sum: str = "sha256sum") -> None:
    put_tool(LocalDevice(home), LAYOUT, tool, sha256, sha256sum=sha256sum, pace=Pace(None))


def there(home: Path) -> str | None:
    """The hash of the tool that is in place."""
    path = home / LAYOUT.root / DEVICE_TOOL
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


@pytest.mark.parametrize("sha256sum", ["sha256sum", ""])
@pytest.mark.parametrize("before", ["nothing", "another tool"])
def test_killed_at_each_step(
    before: str, sha256sum: str, wrapped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    hashes = {make_tool(new, 2)} | ({make_tool(old, 1)} if before != "nothing" else {""})
    wanted = make_tool(new, 2)
    count = 0
    for when in ("BEFORE", "AFTER"):
        at = 0
        while True:
            at += 1
            home = tmp_path / f"{when}{at}"
            home.mkdir()
            if before != "nothing":
                bring(home, old, make_tool(old, 1))
            wrapped.write_text("")
            monkeypatch.setenv(when, str(at))
            try:
                bring(home, new, wanted, sha256sum=sha256sum)
                killed = False
            except EdgepackError:
                killed = True
            monkeypatch.setenv(when, "0")
            calls = len(wrapped.read_text().splitlines())
            if not killed and calls < at:
                break  # it has no more steps
            count += 1
            assert (there(home) or "") in hashes
            bring(home, new, wanted, sha256sum=sha256sum)
            assert there(home) == wanted
            left = sorted(path.name for path in (home / LAYOUT.root / "bin").iterdir())
            assert left == ["edgepack-device"]
            (part,) = (home / LAYOUT.root / "incoming").glob(f"{wanted}.part")
            assert hashlib.sha256(part.read_bytes()).hexdigest() == wanted
            shutil.rmtree(home)
    assert count > 20


def test_what_was_cut_goes_on(tmp_path: Path) -> None:
    """With what the longest upload left, be it another session's; damaged, it is sent anew."""
    tool = tmp_path / "tool"
    wanted = make_tool(tool, 3)
    content = tool.read_bytes()
    (tmp_path / LAYOUT.root / "bin").mkdir(parents=True)
    part = tmp_path / LAYOUT.root / "bin" / f".tool-{wanted}-aaaa-1"
    part.write_bytes(content[:40_000])
    part.with_name(f".tool-{wanted}-bbbb-1").write_bytes(content[:20_000])
    part.with_name(f".tool-{wanted}-cccc-1").write_bytes(content + b"more")
    begun: list[int] = []
    put_tool(
        LocalDevice(tmp_path), LAYOUT, tool, wanted, sha256sum="sha256sum", pace=Pace(None),
        begun=begun.append,
    )  # fmt: skip
    assert begun == [40_000]
    assert there(tmp_path) == wanted
    (tmp_path / LAYOUT.root / DEVICE_TOOL).unlink()
    part.write_bytes(content[:30_000] + b"damaged" + content[30_007:40_000])
    with pytest.raises(RemoteError, match="not the same on local as it was sent"):
        bring(tmp_path, tool, wanted)
    part.unlink()  # a link that was lost would have left it to its session
    bring(tmp_path, tool, wanted)
    assert there(tmp_path) == wanted


def test_many_at_once(tmp_path: Path) -> None:
    """One tool and another, by eight at a time: each that says so has put a whole one there."""
    tools = [tmp_path / "one", tmp_path / "two"]
    hashes = [make_tool(tool, seed, 3_000_000) for seed, tool in enumerate(tools)]
    failed: list[EdgepackError] = []

    def work(which: int) -> None:
        try:
            try:
                bring(tmp_path, tools[which], hashes[which])
            except CorruptTransferError:  # the other tool came in between: a deploy tries again
                bring(tmp_path, tools[which], hashes[which])
        except EdgepackError as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number // 4,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert there(tmp_path) in hashes
    assert failed == []
    bring(tmp_path, tools[0], hashes[0])
    assert there(tmp_path) == hashes[0]
    assert [path.name for path in (tmp_path / LAYOUT.root / "bin").iterdir()] == ["edgepack-device"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    weights = np.random.default_rng(1).bytes(200_000)
    return fake_bundle(tmp_path_factory.mktemp("bundle") / "one", weights=weights)


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = sshd_server.start(tmp_path_factory.mktemp("sshd") / "server")
    yield server
    server.stop()


def connect(sshd: Sshd, port: int) -> SshDevice:
    options = SshOptions(
        use_config=False, identity=sshd.key, identities_only=True,
        host_keys=(f"[127.0.0.1]:{port} {public(sshd.host_key)}",),
    )  # fmt: skip
    return SshDevice(Address(host="127.0.0.1", port=port), options=options)


def assert_deployed(root: Path, bundle: Bundle) -> None:
    assert open_bundle(root / "current").manifest == bundle.manifest
    assert [path.name for path in (root / "bin").iterdir()] == ["edgepack-device"]
    assert list((root / "incoming").iterdir()) == []


def test_a_link_that_is_cut(bundle: Bundle, sshd: Sshd, tmp_path: Path) -> None:
    cut_after = 300_000
    with CuttingProxy(sshd.port, cut_after=cut_after, bytes_s=4e6) as proxy:
        device = connect(sshd, proxy.port)
        report = deploy_bundle(bundle, device, f"{tmp_path}/root", options=DeployOptions(retries=2))
        device.close()
        assert proxy.cuts >= bundle.file(DEVICE_TOOL).stat().st_size // cut_after
        # A login takes some 6 kB, and what the sockets on the way hold is lost.
        content = bundle.manifest.total_bytes
        assert proxy.up_bytes <= content * 1.1 + proxy.connections * 120_000 < 2 * content
    assert report.outcome == "deployed"
    assert_deployed(tmp_path / "root", bundle)


@pytest.mark.parametrize("times", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_two_operators(times: int, bundle: Bundle, sshd: Sshd, tmp_path: Path) -> None:
    outcomes: list[Report | EdgepackError] = []

    def work(root: str, start: threading.Barrier) -> None:
        device = connect(sshd, sshd.port)
        start.wait()
        try:
            outcomes.append(deploy_bundle(bundle, device, root))
        except EdgepackError as error:
            outcomes.append(error)
        device.close()

    for number in range(times):
        root, start = tmp_path / f"root{number}", threading.Barrier(2)
        threads = [threading.Thread(target=work, args=(str(root), start)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert_deployed(root, bundle)
        shutil.rmtree(root)
    assert [one for one in outcomes if isinstance(one, EdgepackError)] == []
    assert len(outcomes) == 2 * times


MOUNTED = """
import sys
from pathlib import Path
from edgepack.bundle.bundle import open_bundle
from edgepack.deploy.deploy import deploy_bundle
from edgepack.base.errors import EdgepackError
from edgepack.device import LocalDevice
try:
    deploy_bundle(open_bundle(Path(sys.argv[1])), LocalDevice(Path(sys.argv[2])), "edgepack/m")
    print("deployed")
except EdgepackError as error:
    print(type(error).__name__, error)
"""


IN_VAIN = """
import subprocess, sys
from pathlib import Path
from edgepack.base.errors import EdgepackError
from edgepack.deploy.remote_tool import Layout, put_tool
from edgepack.device import LocalDevice
from edgepack.device.patience import Pace
from tests.faults.test_first_contact import make_tool
tool, home = Path(sys.argv[1]), Path(sys.argv[2])
wanted = make_tool(tool, 6, 1_000_000)
def bring():
    try:
        put_tool(LocalDevice(home), Layout.of("m"), tool, wanted, sha256sum="sha256sum",
                 pace=Pace(None))
        print("in place")
    except EdgepackError as error:
        print(type(error).__name__)
for _ in range(5):
    bring()
print([path.name for folder in ("bin", "incoming") for path in (home / "m" / folder).iterdir()])
subprocess.run(["mount", "-o", "remount,size=2500k", home], check=True)
bring()
"""


def deploy_where(bundle: Path, folder: Path, mount: str, *, program: str = MOUNTED) -> str:
    """What a deploy says whose device's home is `folder`, which `mount` puts a file system on."""
    script = f'{mount} && exec "$2" -c "$3" "$4" "$1"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script, "sh", folder, sys.executable, program,
         bundle],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts")


@needs_root
@pytest.mark.parametrize("inodes", range(4, 26, 3))
def test_no_inodes_left(inodes: int, bundle: Bundle, tmp_path: Path) -> None:
    """At whatever step: files run out, and bytes do not."""
    mount = f'mount -t tmpfs -o size=64m,nr_inodes={inodes} none "$1"'
    said = deploy_where(bundle.path, tmp_path, mount)
    if said != "deployed\n":
        assert said.startswith(f"{DiskFullError.__name__} no more files can be made on local")
        assert "(df -i)" in said


@needs_root
def test_no_bytes_left(bundle: Bundle, tmp_path: Path) -> None:
    size = bundle.file(DEVICE_TOOL).stat().st_size
    said = deploy_where(bundle.path, tmp_path, f'mount -t tmpfs -o size={size * 2 // 3} none "$1"')
    assert "df -i" not in said
    assert "space" in said or "free" in said


@needs_root
@pytest.mark.parametrize("kilobytes", [600, 1500])
def test_tries_in_vain_use_up_nothing(kilobytes: int, tmp_path: Path) -> None:
    """Each would leave its own, and what comes free would not be enough for the next."""
    (tmp_path / "home").mkdir()
    mount = f'mount -t tmpfs -o size={kilobytes}k none "$1"'
    said = deploy_where(tmp_path / "tool", tmp_path / "home", mount, program=IN_VAIN)
    assert said == "DiskFullError\n" * 5 + "[]\nin place\n"


@needs_root
@pytest.mark.parametrize(
    ("mount", "words"),
    [
        ('mount -t tmpfs none "$1" && mount -o remount,ro "$1"', "Read-only file system"),
        ('mount -t tmpfs -o noexec none "$1"', "mounted noexec"),
        ('mount -t tmpfs none "$1" && touch "$1/edgepack"', "in the way"),
    ],
)
def test_folders_that_cannot_be_used(
    mount: str, words: str, bundle: Bundle, tmp_path: Path
) -> None:
    said = deploy_where(bundle.path, tmp_path, mount)
    assert words in said
    assert "hint: " in said
    assert "command failed" not in said


@pytest.mark.parametrize("reason", [os.strerror(errno.EDQUOT), "Quota exceeded"])
def test_a_quota_that_is_used_up(reason: str) -> None:
    """In glibc's words and in musl's, by the shell and by the device tool; test_quota_and_clock.py
    has a real one, which this machine's kernel may lack."""
    said = RemoteResult(
        command="x", returncode=1, stdout="", stderr=f"cat: write error: {reason}\n"
    )
    by_shell = command_error("pi", said)
    assert isinstance(by_shell, DiskFullError)
    by_tool = DiskFullError(f"cannot write to /x/store/y: {reason}", hint="make room there (df -h)")
    for error in (inodes_left("pi", by_shell, ""), inodes_left("pi", by_tool, "")):
        assert error.message.startswith("the disk quota of this login on pi is used up\n")
        assert reason in error.message
        assert "quota -s" in str(error.hint)
        assert "df " not in str(error.hint)

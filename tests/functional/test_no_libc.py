"""Boards without a C library: what is on them, and deploys to them, by SSH and by hand.

One light board is shared: each test has a folder of its own there.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgepack import virtual
from edgepack.base.errors import RemoteError
from edgepack.boards import get_board
from edgepack.bundle.bundle import Bundle, open_bundle, write_tarball
from edgepack.bundle.manifest import APP
from edgepack.bundle.signing import sign_folder
from edgepack.cli import main
from edgepack.deploy.deploy import DeployOptions, deploy_bundle
from edgepack.deploy.remote_app import RunRequest, run_on_device
from edgepack.deploy.remote_tool import (
    RefusedBundleError,
    SmokeTestError,
    call,
    rollback,
    status,
)
from edgepack.device import ConnectionLostError
from edgepack.device.facts import gather
from edgepack.device.ssh import SshDevice
from edgepack.flow.job import make_job, package_job
from edgepack.gate.elf import MAGIC, read_elf
from edgepack.gate.gate import GateError
from edgepack.virtual import VirtualBoard
from tests.boards import login, own_boards
from tests.fake_app import FAKE_APP, FAKE_CRASHING_APP, fake_bundle
from tests.functional.test_static import make_project
from tests.onnx_models import branches, one_conv
from tests.ssh_keys import make_key, public
from tests.support import require_tool

PROFILE = get_board("rasp3b")
STATIC = get_board("alpine-aarch64")
RELEASED = Path(__file__).resolve().parents[1] / "fixtures/bundle-0.1.0-rasp3b.tar.xz"


@pytest.fixture(scope="module", autouse=True)
def cache() -> Iterator[None]:
    """Boards of our own, so that none of the user's is touched."""
    with own_boards():
        yield


@pytest.fixture(scope="module")
def board(cache: None) -> VirtualBoard:
    return virtual.up(PROFILE, name="bare", suite="none", kind="light")


@pytest.fixture(scope="module")
def device(board: VirtualBoard) -> Iterator[SshDevice]:
    device = login(board, "pi")
    yield device
    device.close()


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Bundle, Bundle]:
    """A release, one with another weight, and one that crashes."""
    folder = tmp_path_factory.mktemp("bundles")
    weights = bytes(range(256)) * 1000
    name = PROFILE.name
    return (
        fake_bundle(folder / "a", board=name, weights=weights, version=1),
        fake_bundle(folder / "b", board=name, weights=weights[1:] + b"x", version=2),
        fake_bundle(folder / "c", board=name, weights=weights, version=3, app=FAKE_CRASHING_APP),
    )


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A real app that wants glibc, as 0.1.0 made it."""
    path = tmp_path_factory.mktemp("dynamic") / "released.tar.gz"
    path.write_bytes(gzip.compress(lzma.decompress(RELEASED.read_bytes()), 1))
    return open_bundle(path)


def test_no_library_is_there(board: VirtualBoard, device: SshDevice) -> None:
    assert device.run("ls -d /lib* /usr/lib* /usr/libexec", check=False).stdout == ""
    programs = {}
    for path in board.base.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == MAGIC:
            programs[str(path.relative_to(board.base))] = read_elf(path)
    assert sorted(programs) == ["bin/busybox", "usr/bin/scp", "usr/sbin/dropbear"]
    for name, elf in programs.items():
        assert (elf.interpreter, elf.needed, elf.needs) == ("", (), ()), name
    # All that its links stand for is in this busybox.
    listed = set(device.run("busybox --list").stdout.split())
    links = {path.name for path in (board.base / "bin").iterdir()} - {"busybox"}
    assert len(links) > 80
    assert links <= listed


def test_it_says_what_it_is(board: VirtualBoard, device: SshDevice) -> None:
    facts = gather(device, "nowhere")
    assert (facts.libc, facts.glibc, facts.loaders) == ("none", None, ())
    assert (facts.machine, facts.hostname, facts.user) == ("armv7l", "bare", "pi")
    assert (facts.cores, set(PROFILE.hwcaps) <= facts.features) == (PROFILE.cores, True)
    assert facts.memory_bytes == PROFILE.memory_mb << 20
    # A login has the emulator's CPU, with a terminal as well.
    assert PROFILE.virtual is not None
    say = "echo $QEMU_CPU; id -u; pwd"
    expected = [PROFILE.virtual.qemu_cpu, "1000", "/home/pi"]
    assert device.run(say).stdout.split() == expected
    ssh = virtual.ssh_command(board)
    done = subprocess.run(
        [*ssh[:-1], "-tt", ssh[-1], f"[ -t 0 ] && {{ {say}; }}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == expected
    if os.getuid() == 0:
        root = login(board, "root")
        assert root.run("id -u; pwd").stdout.split() == ["0", "/root"]
        root.close()


def test_files_travel_without_sftp(device: SshDevice, tmp_path: Path) -> None:
    data = os.urandom(300_001)
    (tmp_path / "data").write_bytes(data)
    device.mkdir("files/in")
    device.put(tmp_path / "data", "files/data.part")
    device.put(tmp_path / "data", "files/data.part", offset=100_000)
    device.rename("files/data.part", "files/data")
    device.get("files/data", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data
    with pytest.raises(RemoteError, match=r"nonexistent|No such file"):
        device.put(tmp_path / "data", "files/missing/data")
    # scp, there and back.
    assert main(["board", "cp", "bare", str(tmp_path / "data"), ":files/in"]) == 0
    assert main(["board", "cp", "bare", ":files/in", str(tmp_path / "copied")]) == 0
    assert (tmp_path / "copied/data").read_bytes() == data


def test_deploy_redeploy_rollback_and_run(
    device: SshDevice, bundles: tuple[Bundle, Bundle, Bundle], tmp_path: Path
) -> None:
    first, second, crashing = bundles
    root = "deployed"
    report = deploy_bundle(first, device, root)
    assert (report.outcome, report.before) == ("deployed", None)
    again = deploy_bundle(first, device, root)
    assert (again.outcome, again.sent_bytes) == ("unchanged", 0)
    assert deploy_bundle(second, device, root).previous == report.release
    with pytest.raises(SmokeTestError):
        deploy_bundle(crashing, device, root)
    state = status(device, root)
    assert state.current is not None
    assert state.current.release == second.manifest.release
    assert rollback(device, root).release == report.release
    request = RunRequest(image=first.file(str(first.golden_image)), outputs=(tmp_path / "out.npy",))
    assert run_on_device(device, root, request)["top"][0]["label"] == "dog"
    assert np.load(tmp_path / "out.npy").shape == (1, 4)


def test_the_tool_is_killed_in_the_middle_of_a_switch(
    device: SshDevice, bundles: tuple[Bundle, Bundle, Bundle], tmp_path: Path
) -> None:
    """By the app that it tests; at every step of its own: tests/faults/test_power_cuts.py."""
    first, root = bundles[0], "killed"
    killer = FAKE_APP.replace("here=", "[ -e $HOME/peace ] || kill -KILL $PPID\nhere=", 1)
    bundle = fake_bundle(tmp_path, board=PROFILE.name, app=killer, version=4)
    releases = {one.manifest.release for one in (first, bundle)}
    deploy_bundle(first, device, root)
    with pytest.raises(ConnectionLostError):
        deploy_bundle(bundle, device, root, options=DeployOptions(retries=0))
    state = status(device, root)
    assert state.pending
    assert state.current is not None
    assert state.current.release in releases
    call(device, root, "verify")
    device.run("touch peace")
    assert deploy_bundle(bundle, device, root).release == bundle.manifest.release
    state = status(device, root)
    assert not state.pending
    assert rollback(device, root).release == first.manifest.release
    # What it says of the system that it was tested on holds no C library.
    records = device.run(f"cat {root}/state/{first.manifest.release}.json").stdout
    assert "armv7l" in json.loads(records)["health"]["system"]
    assert "libc" not in records


def test_signatures(
    device: SshDevice, bundles: tuple[Bundle, Bundle, Bundle], tmp_path: Path
) -> None:
    first, second, _ = bundles
    root = "signed"
    trusted, other = make_key(tmp_path, "trusted"), make_key(tmp_path, "other")
    signers = tmp_path / "signers"
    signers.write_text(f'me@here namespaces="edgepack-bundle" {public(trusted)}\n')
    options = DeployOptions(signers=signers)
    for key in (trusted, other):
        tarball = tmp_path / f"{key.name}.tar.gz"
        write_tarball(first if key is trusted else second, tarball)
        bundle = open_bundle(tarball)
        sign_folder(bundle, key)
        if key is trusted:
            assert deploy_bundle(bundle, device, root, options=options).outcome == "deployed"
        else:
            with pytest.raises(RefusedBundleError, match="not"):
                deploy_bundle(bundle, device, root)
    with pytest.raises(RefusedBundleError, match="sign"):
        deploy_bundle(second, device, root)
    assert call(device, root, "status")["current"]["release"] == first.manifest.release


def test_what_wants_a_library_is_refused(device: SshDevice, dynamic: Bundle) -> None:
    """Before anything is sent, and by the device tool for who installs it by hand."""
    with pytest.raises(GateError) as refused:
        deploy_bundle(dynamic, device, "dynamic")
    assert "wants the loader /lib/ld-linux-armhf.so.3, which the device lacks" in str(refused.value)
    assert "has no glibc" in str(refused.value)
    assert device.run("ls dynamic", check=False).stdout == ""
    device.mkdir("by-hand")
    tarball = dynamic.path.parent / "again.tar.gz"
    write_tarball(dynamic, tarball)
    device.put(tarball, "by-hand/bundle.tar.gz")
    done = device.run(
        "cd by-hand && tar xzf bundle.tar.gz && */install --root $HOME/by-hand/root --json",
        check=False,
    )
    assert done.returncode == RefusedBundleError.exit_code
    refusal = json.loads(done.stdout)["error"]
    assert refusal["kind"] == "wrong-libc"
    assert "wants the loader /lib/ld-linux-armhf.so.3, which is not here" in refusal["message"]
    assert device.run("cd by-hand/root && ls releases && ls -d current", check=False).stdout == ""


def test_first_install_by_hand(
    device: SshDevice, bundles: tuple[Bundle, Bundle, Bundle], tmp_path: Path
) -> None:
    """`tar` and `./install` with nothing but busybox: as a deploy leaves it."""
    first, second, _ = bundles
    for bundle in (first, second):
        tarball = tmp_path / "bundle.tar.gz"
        write_tarball(bundle, tarball)
        device.mkdir("hand")
        device.put(tarball, "hand/bundle.tar.gz")
        device.run(
            "cd hand && tar xzf bundle.tar.gz && tiny-*/install --root $HOME/hand/root && "
            "rm -r tiny-*"
        )
    answer = call(device, "hand/root", "status")
    assert answer["current"]["release"] == second.manifest.release
    assert answer["current"]["health"]["outcome"] == "ok"
    assert answer["previous"]["release"] == first.manifest.release


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """Of real kernels and the real app: two models linked statically, and one dynamically."""
    folder = tmp_path_factory.mktemp("real")
    one, other = (
        replace(make_project(folder / model.__name__, model), board=STATIC.name, verify=False)
        for model in (one_conv, branches)
    )
    jobs = {"one": one, "other": other, "dynamic": replace(one, board="rk3399", static=False)}
    return {name: package_job(make_job(job), folder / name) for name, job in jobs.items()}


def test_real_programs(real: dict[str, Bundle], tmp_path: Path) -> None:
    board = virtual.up(STATIC, kind="light")
    device, root = login(board, "pi"), login(board, "root")
    try:
        one, other = real["one"], real["other"]
        report = deploy_bundle(one, device, "real")
        assert report.smoke.max_abs_error <= 1e-4 * report.smoke.max_abs_reference
        with pytest.raises(
            GateError, match=r"wants the loader /lib/ld-linux-aarch64\.so\.1, which"
        ):
            deploy_bundle(real["dynamic"], device, "real")
        photo, output = one.file("golden/image.png"), tmp_path / "out.npy"
        run_on_device(device, "real", RunRequest(image=photo, outputs=(output,)))
        expected = np.load(one.file("golden/output.npy"))
        assert np.allclose(np.load(output), expected, atol=1e-4 * np.abs(expected).max())
        # The runtime in front of the kernels is there already.
        update = deploy_bundle(other, device, "real")
        assert update.previous == report.release
        assert update.sent_bytes < 0.2 * other.file(APP).stat().st_size
        assert rollback(device, "real").release == report.release

        # In a root with nothing but an unpacked bundle: no shell, /proc, /dev nor /tmp.
        write_tarball(one, tmp_path / "bundle.tar.gz")
        root.run("mkdir /empty")
        root.put(tmp_path / "bundle.tar.gz", "/empty/bundle.tar.gz")
        root.run("cd /empty && tar xzf bundle.tar.gz && rm bundle.tar.gz && mv tiny-* new")
        assert root.run("ls /empty").stdout == "new\n"
        install = "chroot /empty /new/bin/edgepack-device --root /releases install /new"
        assert json.loads(root.run(f"{install} --json").stdout)["outcome"] == "deployed"
        installed = "chroot /empty /releases/bin/edgepack-device --root /releases status"
        state = json.loads(root.run(f"{installed} --json").stdout)
        assert state["current"]["release"] == one.manifest.release
        assert state["current"]["health"]["outcome"] == "ok"
        assert sorted(root.run("ls /empty").stdout.split()) == ["new", "releases"]
    finally:
        device.close()
        root.close()
        virtual.down(board.name)


@pytest.mark.slow
def test_full_system(bundles: tuple[Bundle, Bundle, Bundle]) -> None:
    """The plug is pulled when a deploy has reported; it boots again, now with busybox's init."""
    for name in ("qemu-system-aarch64", "mke2fs"):
        require_tool(name)
    first, second, _ = bundles

    def up(init: str) -> VirtualBoard:
        return virtual.up(
            PROFILE, name="bare-system", suite="none", kind="system", disk_mb=128, init=init
        )

    board = up("script")
    device = login(board, "pi")
    assert device.run("ls -d /lib* /usr/lib*", check=False).stdout == ""
    assert device.run("uname -m").stdout.split() == ["armv8l"]
    assert gather(device, "there").libc == "none"
    assert deploy_bundle(first, device, "there").outcome == "deployed"
    virtual.cut_power(board)
    device.close()
    device = login(up("busybox"), "pi")
    state = status(device, "there")
    assert state.current is not None
    assert state.current.release == first.manifest.release
    assert deploy_bundle(first, device, "there").outcome == "unchanged"
    assert deploy_bundle(second, device, "there").outcome == "deployed"
    device.close()
    assert virtual.down("bare-system")

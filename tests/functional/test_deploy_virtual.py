"""Deploys over SSH to a virtual board: a real ARM sshd, a real full disk, a real cut."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack import paths, virtual
from edgepack.boards import get_board
from edgepack.bundle import Bundle
from edgepack.deploy import deploy_bundle, preview
from edgepack.device import (
    Address,
    ConnectionLostError,
    DiskFullError,
    SshOptions,
    open_device,
)
from edgepack.device.ssh import SshDevice
from edgepack.facts import gather
from edgepack.gate import GateError
from edgepack.manifest import MANIFEST_NAME, PARAMS
from edgepack.release import wanted_files
from edgepack.remote_app import RunRequest, run_on_device
from edgepack.virtual import VirtualBoard
from tests.fake_app import fake_bundle
from tests.integration.cutting_proxy import CuttingProxy
from tests.support import require_tool

ROOT = "edgepack/tiny"
_WEIGHTS = 14_000_000  # as MobileNetV2's


@pytest.fixture(scope="module", autouse=True)
def cache() -> Iterator[None]:
    """Boards of our own, so that none of the user's is touched."""
    require_tool("qemu-arm-static", "qemu-arm")
    require_tool("mmdebstrap")
    real = paths.cache_dir()
    with tempfile.TemporaryDirectory(prefix="edgepack-test-") as name:
        for shared in ("rootfs", "kernel"):
            (real / shared).mkdir(exist_ok=True)
            (Path(name) / shared).symlink_to(real / shared)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(paths, "_cache_dir", Path(name))
            yield
            for board in virtual.list_running():
                virtual.down(board.name)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Bundle]:
    """The same model with one weight changed."""
    folder = tmp_path_factory.mktemp("bundles")
    weights = np.random.default_rng(1).bytes(_WEIGHTS)
    changed = bytearray(weights)
    changed[_WEIGHTS // 2] ^= 1
    return (
        fake_bundle(folder / "a", board="rasp3b", weights=weights),
        fake_bundle(folder / "b", board="rasp3b", weights=bytes(changed)),
    )


def connect(
    board: VirtualBoard, *, port: int | None = None, kind: type[SshDevice] = SshDevice
) -> SshDevice:
    port = port or board.port
    options = SshOptions(
        use_config=False,
        identity=board.key_file,
        identities_only=True,
        host_keys=(board.host_key.replace(f":{board.port} ", f":{port} "),),
    )
    return kind(Address(host=board.host, user=board.user, port=port), options=options)


def test_deploy_redeploy_and_one_weight(bundles: tuple[Bundle, Bundle], tmp_path: Path) -> None:
    profile = get_board("rasp3b")
    device = open_device("virtual", profile)
    try:
        facts = gather(device, ROOT)
        assert facts.machine == "armv7l"
        assert facts.loaders == ("/lib/ld-linux-armhf.so.3",)
        assert facts.glibc == profile.glibc
        assert set(profile.hwcaps) <= facts.features
        assert facts.cores == profile.cores

        first, second = bundles
        assert preview(first, device, ROOT).send_bytes == sum(
            file.size for file in wanted_files(first).values()
        )
        report = deploy_bundle(first, device, ROOT)
        assert (report.outcome, report.before) == ("deployed", None)
        assert report.smoke.top[0]["label"] == "dog"

        unchanged = deploy_bundle(first, device, ROOT)
        assert (unchanged.outcome, unchanged.sent_bytes) == ("unchanged", 0)

        changed = deploy_bundle(second, device, ROOT)
        assert set(changed.sent_files) == {PARAMS, MANIFEST_NAME}
        assert changed.previous == report.release
        links = device.run(f"cd {ROOT} && readlink current previous").stdout.split()
        assert links == [f"releases/{changed.release}", f"releases/{report.release}"]

        output = tmp_path / "out.npy"
        photo = first.file(str(first.golden_image))
        answer = run_on_device(device, ROOT, RunRequest(image=photo, output=output))
        assert answer["top"][0]["index"] == 1
        assert np.load(output).shape == (1, 4)
        assert device.run("ls /tmp").stdout == ""
    finally:
        device.close()


def test_full_disk(bundles: tuple[Bundle, Bundle]) -> None:
    """Refused beforehand if it can be known; and survived if the disk fills up meanwhile."""
    first, second = bundles
    board = virtual.up(get_board("rasp3b"), name="small", disk_mb=64)
    device = connect(board)
    fill = "dd if=/dev/zero of=fill bs=1M 2>/dev/null"
    try:
        report = deploy_bundle(first, device, ROOT)
        device.run(f"{fill}; truncate -s -3M fill")
        with pytest.raises(GateError, match="must be sent"):
            deploy_bundle(second, device, ROOT)
        device.run("rm fill")

        before = device.run(f"cd {ROOT} && find . | sort").stdout

        class FillingDevice(SshDevice):
            def put(self, local: Path, remote: str, **options: Any) -> None:
                if remote.endswith(PARAMS):
                    self.run(f"{fill}; truncate -s -3M fill")
                super().put(local, remote, **options)

        filling = connect(board, kind=FillingDevice)
        with pytest.raises(DiskFullError) as full:
            deploy_bundle(second, filling, ROOT)
        filling.close()
        assert full.value.exit_code == 7
        assert device.run(f"cd {ROOT} && find . | sort").stdout == before
        current = device.run(f"readlink {ROOT}/current").stdout.strip()
        assert current == f"releases/{report.release}"
        device.run("rm fill")
        assert deploy_bundle(second, device, ROOT).previous == report.release
    finally:
        device.close()
        virtual.down("small")


def test_cut_in_mid_upload(bundles: tuple[Bundle, Bundle]) -> None:
    first, second = bundles
    board = virtual.up(get_board("rasp3b"), name="cut")
    device = connect(board)
    try:
        report = deploy_bundle(first, device, ROOT)
        with CuttingProxy(board.port, cut_after=8_000_000) as proxy:
            cut = connect(board, port=proxy.port)
            with pytest.raises(ConnectionLostError, match="lost"):
                deploy_bundle(second, cut, ROOT)
            cut.close()
        current = device.run(f"readlink {ROOT}/current").stdout.strip()
        assert current == f"releases/{report.release}"
        part = f"{ROOT}/releases/{second.manifest.release}.part/{PARAMS}"
        arrived = int(device.run(f"wc -c <{part}").stdout)
        assert 0 < arrived < _WEIGHTS

        again = deploy_bundle(second, device, ROOT)
        assert again.model_bytes_sent == _WEIGHTS - arrived
        assert again.previous == report.release
    finally:
        device.close()
        virtual.down("cut")


@pytest.mark.slow
def test_power_cut(bundles: tuple[Bundle, Bundle]) -> None:
    """What is current after the power came back is whole, and what a deploy reported stays."""
    require_tool("qemu-system-aarch64")
    first, second = bundles
    profile = get_board("rasp3b")
    board = virtual.up(profile, name="power", kind="system")

    class CutDevice(SshDevice):
        """Cuts the board's power right after the rename that makes a release current."""

        def rename(self, old: str, new: str) -> None:
            super().rename(old, new)
            if new.endswith("/current"):
                virtual.cut_power(board)

    def release_that_is_current() -> str:
        device = connect(board)
        try:
            name = device.run(f"readlink {ROOT}/current").stdout.strip()
            folder = f"{ROOT}/{name}"
            listed = first if name.endswith(first.manifest.release) else second
            sums = device.run(f"cd {folder} && find . -type f -exec sha256sum {{}} +").stdout
        finally:
            device.close()
        found = {path[2:]: digest for digest, path in map(str.split, sums.splitlines())}
        assert found == {path: file.sha256 for path, file in wanted_files(listed).items()}
        return listed.manifest.release

    try:
        device = connect(board)
        deploy_bundle(first, device, ROOT)
        virtual.cut_power(board)
        device.close()
        board = virtual.up(profile, name="power", kind="system")
        assert release_that_is_current() == first.manifest.release

        cut = connect(board, kind=CutDevice)
        with pytest.raises(ConnectionLostError):
            deploy_bundle(second, cut, ROOT)
        cut.close()
        board = virtual.up(profile, name="power", kind="system")
        release_that_is_current()

        device = connect(board)
        deploy_bundle(second, device, ROOT)
        device.close()
        assert release_that_is_current() == second.manifest.release
    finally:
        virtual.down("power")

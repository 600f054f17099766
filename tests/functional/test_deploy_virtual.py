"""Deploys over SSH to a virtual board: a real ARM sshd, a real full disk, a real cut.

To one with glibc and one without any library. Power cuts are in tests/faults.
"""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgepack import virtual
from edgepack.base.errors import RemoteError
from edgepack.boards import Board, get_board
from edgepack.bundle.bundle import Bundle, open_bundle, write_tarball
from edgepack.bundle.manifest import PARAMS
from edgepack.deploy.deploy import DeployOptions, deploy_bundle, preview
from edgepack.deploy.remote_app import RunRequest, run_on_device
from edgepack.deploy.remote_tool import call
from edgepack.device import (
    Address,
    ConnectionLostError,
    Device,
    DiskFullError,
    SshOptions,
    open_device,
)
from edgepack.device.base import Stream
from edgepack.device.facts import gather
from edgepack.device.ssh import SshDevice
from edgepack.flow.deployment import Deployment
from edgepack.gate.gate import GateError
from edgepack.native.device_tool import build_device_tool
from edgepack.virtual import VirtualBoard
from tests.boards import login, own_boards
from tests.fake_app import fake_bundle
from tests.integration.cutting_proxy import CuttingProxy

ROOT = "edgepack/tiny"
FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
RELEASED = FIXTURES / "bundle-0.1.0-rasp3b.tar.xz"
_WEIGHTS = 14_000_000  # as MobileNetV2's


@pytest.fixture(scope="module", autouse=True)
def cache() -> Iterator[None]:
    """Boards of our own, so that none of the user's is touched."""
    with own_boards():
        yield


@pytest.fixture(scope="module", params=["rasp3b", "alpine-armv7"])
def profile(request: pytest.FixtureRequest) -> Board:
    return get_board(request.param)


@pytest.fixture(scope="module")
def board(cache: None, profile: Board) -> VirtualBoard:
    """For tests that leave a board as it is but for the folders they deploy to."""
    return virtual.up(profile, name=f"shared-{profile.name}")


@pytest.fixture(scope="module")
def bundles(
    profile: Board, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Bundle, Bundle, Bundle]:
    """A model, the same with one weight changed, and with all of them changed."""
    folder = tmp_path_factory.mktemp("bundles")
    weights = np.random.default_rng(1).bytes(_WEIGHTS)
    changed = bytearray(weights)
    changed[_WEIGHTS // 2] ^= 1
    return (
        fake_bundle(folder / "a", board=profile, weights=weights),
        fake_bundle(folder / "b", board=profile, weights=bytes(changed)),
        fake_bundle(folder / "c", board=profile, weights=weights[::-1]),
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


def listing(device: Device, root: str, which: str, options: str) -> list[list[str]]:
    """`ls OPTIONS` of `which` files below `root` (of find), in words."""
    command = f"cd {root} && find . ! -name .lock {which} -exec ls -d {options} {{}} \\;"
    return sorted(line.split() for line in device.run(command).stdout.splitlines())


def test_deploy_redeploy_and_one_weight(
    profile: Board, bundles: tuple[Bundle, Bundle, Bundle], tmp_path: Path
) -> None:
    device = open_device("virtual", profile)
    try:
        facts = gather(device, ROOT)
        assert facts.machine == "armv7l"
        if profile.is_static:
            assert (facts.libc, facts.loaders, facts.glibc) == ("none", (), None)
        else:
            assert facts.loaders == ("/lib/ld-linux-armhf.so.3",)
            assert facts.glibc == profile.glibc
        assert set(profile.hwcaps) <= facts.features
        assert facts.cores == profile.cores

        first, second, _ = bundles
        assert preview(first, device, ROOT).send_files == tuple(first.manifest.files)
        report = deploy_bundle(first, device, ROOT)
        assert (report.outcome, report.before) == ("deployed", None)
        assert report.smoke.top[0]["label"] == "dog"

        unchanged = deploy_bundle(first, device, ROOT)
        assert (unchanged.outcome, unchanged.sent_bytes) == ("unchanged", 0)

        changed = deploy_bundle(second, device, ROOT)
        assert changed.sent_files == (PARAMS,)
        assert changed.sent_bytes < 3 * (64 << 10)  # the chunk with the weight
        assert changed.previous == report.release
        links = device.run(f"cd {ROOT} && readlink current && readlink previous").stdout.split()
        assert links == [f"releases/{changed.release}", f"releases/{report.release}"]

        status = call(device, ROOT, "status")
        assert status["current"]["release"] == changed.release
        assert status["current"]["health"]["outcome"] == "ok"
        assert status["previous"]["release"] == report.release

        deployed = Deployment(device, ROOT, changed)
        assert changed.release in deployed._repr_html_()
        assert changed.release in repr(deployed)
        back = deployed.rollback()
        assert (back.release, back.before) == (report.release, changed.release)
        assert device.run(f"readlink {ROOT}/current").stdout.strip().endswith(report.release)
        assert report.release in deployed.status()._repr_html_()
        outputs = deployed.run(first.file(str(first.golden_image)))
        assert outputs.top[0].label == "dog"
        assert "dog" in outputs._repr_html_()
        assert outputs.names[0] in repr(outputs)

        output = tmp_path / "out.npy"
        photo = first.file(str(first.golden_image))
        answer = run_on_device(device, ROOT, RunRequest(image=photo, outputs=(output,)))
        assert answer["top"][0]["index"] == 1
        assert np.load(output).shape == (1, 4)
        assert device.run("ls /tmp").stdout == ""
    finally:
        device.close()


def test_full_disk(profile: Board, bundles: tuple[Bundle, Bundle, Bundle]) -> None:
    """Refused beforehand if it can be known; and survived if the disk fills up meanwhile."""
    first, second, third = bundles
    board = virtual.up(profile, name="small", disk_mb=64)
    device = connect(board)
    # All but 3 MB.
    copy = "dd if=/dev/zero bs=1M"
    fill = f"{{ {copy} of=spare count=3; {copy} of=fill; rm spare; }} 2>/dev/null"
    try:
        report = deploy_bundle(first, device, ROOT)
        device.run(fill)
        with pytest.raises(GateError, match="must be sent"):
            deploy_bundle(third, device, "elsewhere")
        with pytest.raises(DiskFullError, match="are to be stored"):
            deploy_bundle(third, device, ROOT)
        device.run("rm fill")

        before = device.run(f"cd {ROOT} && find store releases incoming | sort").stdout

        class FillingDevice(SshDevice):
            """The disk fills up between the look at it and the upload."""

            def open(self, command: str) -> Stream:
                stream = super().open(command)
                write = stream.write

                def fill_first(data: bytes) -> None:
                    if len(data) > 100_000:
                        device.run(f"[ -e fill ] || {fill}")
                    write(data)

                stream.write = fill_first  # type: ignore[method-assign]
                return stream

        filling = connect(board, kind=FillingDevice)
        with pytest.raises(DiskFullError) as full:
            deploy_bundle(third, filling, ROOT)
        filling.close()
        assert full.value.exit_code == 7
        # What had arrived was removed: the device needs the room.
        assert device.run(f"cd {ROOT} && find store releases incoming | sort").stdout == before
        current = device.run(f"readlink {ROOT}/current").stdout.strip()
        assert current == f"releases/{report.release}"
        device.run("rm fill")
        assert deploy_bundle(second, device, ROOT).previous == report.release
    finally:
        device.close()
        virtual.down("small")


def test_cut_in_mid_upload(board: VirtualBoard, bundles: tuple[Bundle, Bundle, Bundle]) -> None:
    """Given up at the first cut, gone on with by the next deploy."""
    first, _, third = bundles
    root = "cut"
    device = connect(board)
    try:
        report = deploy_bundle(first, device, root)
        with CuttingProxy(board.port, cut_after=8_000_000, bytes_s=8e6) as proxy:
            cut = connect(board, port=proxy.port)
            with pytest.raises(ConnectionLostError, match="lost"):
                deploy_bundle(third, cut, root, options=DeployOptions(retries=0))
            cut.close()
        current = device.run(f"readlink {root}/current").stdout.strip()
        assert current == f"releases/{report.release}"
        weights = third.manifest.files[PARAMS]
        part = f"{root}/incoming/{weights.sha256}.part"
        arrived = int(device.run(f"wc -c <{part}").stdout)
        assert 0 < arrived < _WEIGHTS

        again = deploy_bundle(third, device, root)
        assert again.model_bytes_sent <= _WEIGHTS - arrived + 1000
        assert again.previous == report.release
    finally:
        device.close()


def test_installing_without_a_network_does_what_a_deploy_does(
    board: VirtualBoard, bundles: tuple[Bundle, Bundle, Bundle], tmp_path: Path
) -> None:
    """`tar xf` and `./install` by hand on one folder, deploys to another, on one board."""
    device = connect(board)
    chosen = "! -path './state/*' ! -path './trust/*'"
    try:
        assert device.run("ip -o link | wc -l").stdout == "1\n"  # loopback only
        for bundle in bundles[:2]:
            deploy_bundle(bundle, device, "deployed")
            tarball = tmp_path / f"{bundle.path.name}.tar.gz"
            write_tarball(bundle, tarball)
            device.put(tarball, "bundle.tar.gz")
            device.run(f"tar xzf bundle.tar.gz && {bundle.path.name}/install && rm -r tiny-*")
            # Mode, name and what a link names.
            trees = [
                [(words[0], *words[8:]) for words in listing(device, root, chosen, "-ln")]
                for root in ("deployed", ROOT)
            ]
            assert sorted(trees[0]) == sorted(trees[1])
            assert sum(words[1].startswith("./store/") for words in trees[0]) == len(
                {
                    entry.sha256
                    for one in bundles[: 1 + bundles.index(bundle)]
                    for entry in one.manifest.files.values()
                }
            )
            deployed, by_hand = (call(device, root, "status") for root in ("deployed", ROOT))
            for status in (deployed, by_hand):
                del status["now"], status["newest"]["at"]
                for release in (status["current"], status["previous"] or {}):
                    release.pop("since", None)
                    release.pop("by", None)
                    for key in ("at", "max_rss_mb"):  # an emulator's memory
                        release.get("health", {}).pop(key, None)
            assert deployed == by_hand
            assert deployed["current"]["health"]["outcome"] == "ok"
    finally:
        device.close()


def test_the_wrong_user_and_two_file_systems(
    profile: Board, bundles: tuple[Bundle, Bundle, Bundle]
) -> None:
    """Both refused before anything is written, whoever asks: by hand, or a deploy."""
    first, second, _ = bundles
    board = virtual.up(profile, name="strange")
    pi, root = connect(board), login(board, "root")

    def state() -> list[list[str]]:
        return listing(pi, ROOT, "! -type d", "-lin")

    try:
        deploy_bundle(first, pi, ROOT)
        before = state()
        for do in (
            lambda: deploy_bundle(second, root, f"/home/pi/{ROOT}"),
            lambda: call(root, f"/home/pi/{ROOT}", "rollback"),
            lambda: call(root, f"/home/pi/{ROOT}", "prune"),
        ):
            with pytest.raises(RemoteError, match="belongs to user 1000, this is user 0"):
                do()
        assert state() == before

        root.run(f"mount -t tmpfs -o mode=0755,uid=1000 tmpfs /home/pi/{ROOT}/releases")
        with pytest.raises(RemoteError, match="are on two file systems"):
            deploy_bundle(second, pi, ROOT)
        root.run(f"umount /home/pi/{ROOT}/releases")
        assert state() == before
        assert deploy_bundle(second, pi, ROOT).outcome == "deployed"
    finally:
        pi.close()
        root.close()
        virtual.down("strange")


@pytest.mark.parametrize("profile", ["rasp3b"], indirect=True, scope="module")
def test_the_released_bundle_is_still_installed(board: VirtualBoard, tmp_path: Path) -> None:
    """Kept as 0.1.0 made and signed it: a real app, kernels, device tool and golden outputs."""
    released = tmp_path / "released.tar.gz"
    released.write_bytes(gzip.compress(lzma.decompress(RELEASED.read_bytes()), 1))
    bundle = open_bundle(released)
    signers = RELEASED.with_name("bundle-0.1.0-rasp3b.signers")
    device = connect(board)

    def check(root: str) -> None:
        status = call(device, root, "status")
        current = status["current"]
        assert (current["release"], current["version"]) == (bundle.manifest.release, 7)
        assert current["signer"].startswith("releases@example.org SHA256:")
        assert current["health"]["outcome"] == "ok"
        # What onnxruntime gave when it was made.
        assert 0 < current["health"]["max_abs_error"] < 1e-5

    try:
        device.put(build_device_tool(get_board("rasp3b")).path, "edgepack-device")
        device.put(released, "released.tar.gz")
        device.put(signers, "signers")
        # By hand, with the tool that came with it.
        folder = bundle.manifest.folder_name
        device.run(f"tar xzf released.tar.gz && {folder}/install --root ~/then --signers signers")
        check("then")
        # A tool of today reads what that one left, and installs the same elsewhere.
        tool = "chmod +x edgepack-device && ./edgepack-device --json --root"
        answer = json.loads(device.run(f"{tool} then install released.tar.gz").stdout)
        assert answer["outcome"] == "unchanged"
        device.run(f"{tool} now install released.tar.gz --signers signers")
        check("now")
        # A deploy of today finds it there; and where nothing is, talks to the tool it brings.
        options = DeployOptions(signers=signers)
        for root, outcome in (("then", "unchanged"), ("now", "unchanged"), ("new", "deployed")):
            assert deploy_bundle(bundle, device, root, options=options).outcome == outcome
            check(root)
        answer = run_on_device(device, "new", RunRequest(image=bundle.file("golden/image.png")))
        assert answer["top"][0]["label"] == "disc"
    finally:
        device.close()


@pytest.mark.parametrize("profile", ["rasp3b"], indirect=True, scope="module")
def test_a_bundle_of_the_first_schema_is_still_stored(board: VirtualBoard) -> None:
    """Its app is a stand-in, from before there were releases: it is not activated."""
    device = connect(board)
    try:
        device.put(build_device_tool(get_board("rasp3b")).path, "edgepack-device")
        device.put(FIXTURES / "bundle-schema1.tar.gz", "old.tar.gz")
        tool = "chmod +x edgepack-device && ./edgepack-device --root first"
        device.run(f"{tool} install old.tar.gz --no-activate")
        first = open_bundle(FIXTURES / "bundle-schema1.tar.gz").manifest
        assert device.run(f"{tool} verify {first.release}").returncode == 0
    finally:
        device.close()

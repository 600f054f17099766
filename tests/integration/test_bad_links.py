"""Deploys through a real sshd behind links that are cut, slow, silent and refusing.

Bytes are those that the link carried, logins and all, beside those of the bundle's files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgepack.base.progress import NoProgress
from edgepack.bundle.bundle import Bundle, open_bundle
from edgepack.bundle.manifest import PARAMS
from edgepack.deploy.deploy import DeployOptions, Report, deploy_bundle
from edgepack.deploy.remote_tool import call
from edgepack.device import (
    Address,
    ConnectionLostError,
    LocalDevice,
    SshOptions,
    UnreachableError,
    ssh,
    ssh_route,
)
from edgepack.device.ssh import SshDevice
from tests.fake_app import FAKE_APP, fake_bundle
from tests.integration import sshd_server
from tests.integration.cutting_proxy import CuttingProxy
from tests.integration.sshd_server import Sshd

MOST = 1.1
"""Bytes on the link for one byte of content."""

Connect = Callable[[CuttingProxy], SshDevice]


@pytest.fixture
def connect(sshd: Sshd) -> Iterator[Connect]:
    devices: list[SshDevice] = []

    def connect(proxy: CuttingProxy) -> SshDevice:
        line = f"[127.0.0.1]:{proxy.port} {sshd_server.public(sshd.host_key)}"
        options = SshOptions(
            use_config=False, identity=sshd.key, identities_only=True, host_keys=(line,)
        )
        devices.append(SshDevice(Address(host="127.0.0.1", port=proxy.port), options=options))
        return devices[-1]

    yield connect
    for device in devices:
        device.close()


def bundle_of(folder: Path, size: int, seed: int = 1) -> Bundle:
    """With weights of `size` random bytes, which no packing makes smaller."""
    return fake_bundle(folder, weights=np.random.default_rng(seed).bytes(size))


def assert_frugal(report: Report, proxy: CuttingProxy, bundle: Bundle) -> None:
    content = bundle.manifest.total_bytes
    print(
        f"{content} bytes of content: {proxy.up_bytes} on the link ({proxy.up_bytes / content:.3f})"
        f", {report.sent_bytes} written here; {report.links} links, {proxy.cuts} cuts, "
        f"{proxy.refused} refused"
    )
    assert proxy.up_bytes <= MOST * content
    assert report.sent_bytes <= MOST * content


def assert_current(root: Path, bundle: Bundle) -> None:
    assert open_bundle(root / "current").manifest == bundle.manifest
    assert list((root / "incoming").iterdir()) == []


def test_cut_again_and_again(sshd: Sshd, connect: Connect, tmp_path: Path) -> None:
    """The long form below, at 32 Mbit/s and with less weights."""
    bundle = bundle_of(tmp_path / "bundle", 8_000_000)
    with CuttingProxy(sshd.port, cut_after=3_000_000, bytes_s=4e6, refuse=0.4, seed=3) as proxy:
        report = deploy_bundle(bundle, connect(proxy), f"{tmp_path}/root")
        assert proxy.cuts >= 2
        assert proxy.refused >= 1
        assert report.links == proxy.connections - proxy.refused
        assert_frugal(report, proxy, bundle)
    assert_current(tmp_path / "root", bundle)


@pytest.mark.slow
def test_one_megabit_cut_every_five_megabytes(sshd: Sshd, connect: Connect, tmp_path: Path) -> None:
    """1 Mbit/s, a reset every 5 MB, a stall, 5 % of connections refused; some four minutes."""
    bundle = bundle_of(tmp_path / "bundle", 24_000_000)
    with CuttingProxy(
        sshd.port,
        cut_after=5_000_000,
        bytes_s=125_000,
        stall_after=1_000_000,
        stall_s=20,
        refuse=0.05,
        seed=22,  # of which the third try is refused
    ) as proxy:
        report = deploy_bundle(bundle, connect(proxy), f"{tmp_path}/root")
        assert proxy.cuts >= 4
        assert proxy.refused >= 1
        assert_frugal(report, proxy, bundle)
    assert_current(tmp_path / "root", bundle)


def test_a_link_that_falls_silent(
    sshd: Sshd, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given up after a while (here 2 s), and a new one takes over from the old."""
    monkeypatch.setattr(ssh, "SILENCE_S", 2)
    monkeypatch.setitem(ssh_route._TCP_OPTIONS, "TCP_USER_TIMEOUT", 2000)
    bundle = bundle_of(tmp_path / "bundle", 8_000_000)
    with CuttingProxy(sshd.port, stall_after=4_000_000, stall_s=600) as proxy:
        report = deploy_bundle(bundle, connect(proxy), f"{tmp_path}/root")
        assert report.links == 2
        assert_frugal(report, proxy, bundle)
    assert_current(tmp_path / "root", bundle)


def test_a_link_without_progress_is_given_up(
    sshd: Sshd, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next deploy goes on where it stopped."""
    monkeypatch.setattr("edgepack.device.patience._FIRST_PAUSE_S", 0.01)
    bundle = bundle_of(tmp_path / "bundle", 3_000_000)
    options = DeployOptions(retries=2)
    with CuttingProxy(sshd.port, cut_after=8_000) as proxy:  # enough for a login, no more
        device = connect(proxy)
        with pytest.raises((ConnectionLostError, UnreachableError)):
            deploy_bundle(bundle, device, f"{tmp_path}/root", options=options)
        assert proxy.connections == 3
    with CuttingProxy(sshd.port, cut_after=2_500_000, bytes_s=4e6) as proxy:
        with pytest.raises(ConnectionLostError):
            deploy_bundle(
                bundle, connect(proxy), f"{tmp_path}/root", options=replace(options, retries=0)
            )
        arrived = proxy.up_bytes
    with CuttingProxy(sshd.port) as proxy:
        report = deploy_bundle(bundle, connect(proxy), f"{tmp_path}/root")
        assert PARAMS in report.sent_files
        print(f"{arrived} + {proxy.up_bytes} bytes up, {bundle.manifest.total_bytes} of content")
        assert arrived + proxy.up_bytes <= MOST * bundle.manifest.total_bytes
    assert_current(tmp_path / "root", bundle)


def test_an_unchanged_redeploy_takes_one_command(
    sshd: Sshd, connect: Connect, tmp_path: Path
) -> None:
    """Counted by the server, which logs each command and each transfer of files."""
    bundle = bundle_of(tmp_path / "bundle", 2_000_000)
    with CuttingProxy(sshd.port) as proxy:
        device = connect(proxy)
        deploy_bundle(bundle, device, f"{tmp_path}/root")
        device.close()
        device = connect(proxy)
        device.run("true")  # whatever the login still has to say
        sessions, up_bytes = sshd.started_sessions(), proxy.up_bytes
        assert sessions >= 3
        report = deploy_bundle(bundle, device, f"{tmp_path}/root")
        assert sshd.started_sessions() - sessions == 1
        assert (report.outcome, report.sent_bytes) == ("unchanged", 0)
        # The manifest and the questions, whose folder it is and which GPU among them.
        assert proxy.up_bytes - up_bytes < 6_400 + (bundle.path / "manifest.json").stat().st_size


class Leaving(NoProgress):
    """Cuts the link as soon as the device says that it tests the release."""

    def __init__(self, device: SshDevice) -> None:
        self.device = device

    def step(self, text: str) -> None:
        if text.endswith(": smoke test"):
            self.device.close()


def test_the_device_goes_on_alone(sshd: Sshd, connect: Connect, tmp_path: Path) -> None:
    """Its app is still being tested when the link dies, and nobody comes back to ask."""
    marker = tmp_path / "go"
    app = FAKE_APP.replace("here=", f"while [ ! -e {marker} ]; do sleep 0.1; done\nhere=", 1)
    bundle = fake_bundle(tmp_path / "bundle", app=app)
    root = f"{tmp_path}/root"
    with CuttingProxy(sshd.port) as proxy:
        device = connect(proxy)
        with pytest.raises(ConnectionLostError):
            deploy_bundle(
                bundle,
                device,
                root,
                options=DeployOptions(retries=0),
                progress=Leaving(device),
            )
    status = call(LocalDevice(), root, "status")
    assert status["pending"]["release"] == bundle.manifest.release
    marker.touch()
    while (status := call(LocalDevice(), root, "status"))["pending"]:
        time.sleep(0.1)
    assert status["current"]["health"]["outcome"] == "ok"
    assert_current(tmp_path / "root", bundle)

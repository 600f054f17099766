"""A fleet's journal knows its devices: another one at the same address is refused.

Real servers; known_hosts is /dev/null, as for boards that are set up anew each week.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edgepack.bundle.bundle import Bundle
from edgepack.cli import main
from edgepack.fleet.inventory import FleetDevice
from edgepack.fleet.journal import Identity, Journal
from tests.fake_app import fake_bundle
from tests.integration import sshd_server
from tests.integration.cutting_proxy import CuttingProxy
from tests.integration.sshd_server import Sshd, make_key

MACHINE_ID = Path("/etc/machine-id")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sshd]:
    server = sshd_server.start(tmp_path / "ssh")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Bundle]:
    folder = tmp_path_factory.mktemp("bundles")
    return [fake_bundle(folder / name, weights=name.encode()) for name in ("one", "two")]


@pytest.fixture
def deploy(server: Sshd, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict]:  # type: ignore[type-arg]
    """A rollout to the one device: its row."""
    config, fleet = tmp_path / "config", tmp_path / "fleet.toml"
    config.write_text(
        f"IdentityFile {server.key}\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n"
    )
    fleet.write_text(
        f'[devices.shop]\naddress = "127.0.0.1"\nport = {server.port}\nboard = "local"\n'
        f'root = "{tmp_path}/root"\n'
    )

    def deploy(bundle: Bundle, *words: str) -> dict:  # type: ignore[type-arg]
        command = ["fleet", "deploy", str(fleet), "--bundle", str(bundle.path), "--json"]
        code = main([*command, "--ssh-config", str(config), "--ignore-unreachable", *words])
        (row,) = json.loads(capsys.readouterr().out)["devices"]
        return {**row, "code": code}

    return deploy


def release(tmp_path: Path) -> str:
    return (tmp_path / "root" / "current").readlink().name


def set_up_anew(server: Sshd, key: Path) -> None:
    """The same address, another host key."""
    server.stop()
    config = server.folder / "config"
    lines = [
        f"HostKey {key}" if line.startswith("HostKey") else line
        for line in config.read_text().splitlines()
    ]
    config.write_text("\n".join(lines))
    again = sshd_server._listening(server.folder)
    assert again is not None
    server.process = again


def test_another_device_at_the_address(
    server: Sshd,
    bundles: list[Bundle],
    deploy: Callable[..., dict],
    tmp_path: Path,  # type: ignore[type-arg]
) -> None:
    one, two = bundles
    row = deploy(one)
    assert (row["code"], row["outcome"]) == (0, "deployed"), row
    assert row["host_key"].startswith("ssh-ed25519 SHA256:")
    other = make_key(tmp_path / "other")
    set_up_anew(server, other)
    row = deploy(two)
    assert (row["code"], row["outcome"]) == (6, "untrusted"), row
    said = subprocess.run(
        ["ssh-keygen", "-lf", other], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    assert f"its host key is ssh-ed25519 {said}, and was ssh-ed25519 SHA256:" in row["error"]
    assert "--limit shop --again" in row["hint"]
    assert release(tmp_path) == one.manifest.release
    # Asked again, it is no other; told so, it is the device from now on.
    assert deploy(two)["outcome"] == "untrusted"
    assert deploy(two, "--limit", "shop", "--again")["outcome"] == "deployed"
    assert deploy(one)["outcome"] in ("deployed", "activated")
    assert release(tmp_path) == one.manifest.release


@pytest.mark.skipif(not MACHINE_ID.exists(), reason="this machine has no machine-id")
def test_an_image_that_was_copied(
    bundles: list[Bundle],
    deploy: Callable[..., dict],
    tmp_path: Path,  # type: ignore[type-arg]
) -> None:
    """Its host key is the same, and its machine-id another: the journal is made to say so."""
    one, two = bundles
    row = deploy(one)
    now = MACHINE_ID.read_text().strip()
    assert row["machine_id"] == now
    (file,) = (tmp_path / ".edgepack").rglob("*.jsonl")
    file.write_text(file.read_text().replace(now, "0" * 32))
    row = deploy(two)
    assert (row["code"], row["outcome"]) == (6, "untrusted")
    assert f"its machine-id is {now}, and was {'0' * 32}" in row["error"]
    assert release(tmp_path) == one.manifest.release


class TakenOver(CuttingProxy):
    """A bad link to one device, at whose address another one is from the second connection on."""

    def __init__(self, device: int, other: int, cut_after: int) -> None:
        self._device, self._other = device, other
        super().__init__(device, cut_after=cut_after)

    @property
    def target(self) -> int:
        return self._device if self.connections <= 1 else self._other

    @target.setter
    def target(self, _: int) -> None:
        pass


def test_another_device_in_the_middle_of_a_rollout(
    server: Sshd,
    bundles: list[Bundle],
    tmp_path: Path,
    deploy: Callable[..., dict],  # type: ignore[type-arg]
) -> None:
    """The first one, of which no journal knows; and nothing remembers its host key but we."""
    other = sshd_server.start(tmp_path / "other")
    (other.folder / "authorized").write_text((server.folder / "authorized").read_text())
    weights = np.random.default_rng(4).bytes(1_000_000)
    bundle = fake_bundle(tmp_path / "large", weights=weights)
    port = server.port
    try:
        with TakenOver(server.port, other.port, cut_after=900_000) as proxy:
            fleet = tmp_path / "fleet.toml"
            fleet.write_text(fleet.read_text().replace(f"= {server.port}", f"= {proxy.port}"))
            row = deploy(bundle)
            assert (proxy.cuts, proxy.connections) == (1, 2)
    finally:
        other.stop()
    assert (row["code"], row["outcome"]) == (6, "untrusted"), row
    assert row["error"].count("another device answers") == 1
    assert ", and was ssh-ed25519 SHA256:" in row["error"]
    # It has not even seen a login.
    said = (other.folder / "log").read_text()
    assert "Connection from" in said
    assert "Accepted" not in said
    assert not (tmp_path / "root" / "current").is_symlink()
    # What had arrived where it was meant to go is there still.
    fleet.write_text(fleet.read_text().replace(f"= {proxy.port}", f"= {port}"))
    row = deploy(bundle)
    assert row["outcome"] == "deployed"
    assert row["sent_bytes"] < bundle.manifest.total_bytes


def line(address: str, *, ok: bool = True, **details: object) -> dict[str, object]:
    return {
        "device": "a", "address": address, "action": "deploy", "ok": ok, "outcome": "deployed",
        "release": "r", "details": details,
    }  # fmt: skip


def test_what_a_journal_knows(tmp_path: Path) -> None:
    """Of the last time that went well, at this address; of old lines and senseless ones nothing."""
    device = FleetDevice(name="a", address="10.0.0.1", board="local")
    path = tmp_path / "journal"
    with Journal(path) as journal:
        assert journal.identity(device) == Identity()
        journal.write(line("10.0.0.1"))
        assert journal.identity(device) == Identity()
        journal.write(line("10.0.0.1", host_key="k", machine_id="m"))
        journal.write(line("10.0.0.1", ok=False, host_key="evil"))
        journal.write(line("10.0.0.1", sent_bytes=0))
    with Journal(path) as journal:
        assert journal.identity(device) == Identity("k", "m")
        journal.write(line("10.0.0.1", host_key=3, machine_id=[1]))
        assert journal.identity(device) == Identity("k", "m")
        journal.write(line("10.0.0.2", sent_bytes=0))
        assert journal.identity(device) == Identity()

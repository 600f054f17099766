"""One act of deploying, service included, over one connection, whoever deploys."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edgepack
from edgepack import cli
from edgepack.boards import Board, load_boards
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.service import Service
from edgepack.deploy import act
from edgepack.deploy.act import deploy_and_start
from edgepack.deploy.remote_service import NoServiceError
from edgepack.device import LocalDevice
from edgepack.device.errors import ConnectionLostError
from edgepack.fleet.inventory import FleetDevice
from edgepack.fleet.work import Deploy
from edgepack.flow import deployment
from edgepack.flow.deployment import Connection
from tests.fake_app import fake_bundle
from tests.onnx_models import Builder

BOARD = """[boards.here]
base = "local"
libc = "any"
memory_mb = 512
clusters = [{ cpu = "native", cores = 1, max_mhz = 0 }]
"""
PROJECT = """[project]
model = "net.onnx"
name = "tiny"
board = "here"
boards = ["boards.toml"]
device = "me@here"
root = "edgepack/tiny"
[service]
args = ["--watch", "/in"]
"""
STARTED = {"service": "edgepack-tiny", "kind": "systemd", "root": "/r", "account": "tiny"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project for a board that leaves open which C library it has, so that it is asked first."""
    build = Builder()
    build.op("Relu", "x", outputs=["y"])
    build.save(tmp_path / "net.onnx", {"x": [1, 8]}, {"y": [1, 8]})
    (tmp_path / "boards.toml").write_text(BOARD)
    (tmp_path / "edgepack.toml").write_text(PROJECT)
    return tmp_path / "edgepack.toml"


@pytest.fixture
def board(project: Path) -> Board:
    return load_boards([project.with_name("boards.toml")])["here"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    service = Service(args=("--watch", "/in"))
    return fake_bundle(tmp_path_factory.mktemp("bundle"), service=service)


class Counted(LocalDevice):
    """This machine, with connections and services that are counted."""

    opened: list[str]

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.opened.append("device")


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Bundle) -> list[str]:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(Counted, "opened", opened := [], raising=False)
    monkeypatch.setattr(deployment, "open_device", lambda *_, **__: Counted(home))
    monkeypatch.setattr(deployment, "package_job", lambda *_, **__: made)

    def install(device: LocalDevice, root: str, *, wanted: object) -> dict[str, str]:
        assert wanted == made.manifest.service
        # The release is there before it is started.
        assert device.run(f"cat {root}/current/manifest.json").stdout
        opened.append("service")
        return STARTED

    monkeypatch.setattr(act.remote_service, "install", install)
    return opened


def by_command_line(project: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, Any]:
    words = ["deploy", "--project", str(project), "--allow-outside", "--service", "--json", "-q"]
    assert cli.main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    return answer["outcome"], answer["service"]


def by_python(project: Path, _: pytest.CaptureFixture[str]) -> tuple[str, Any]:
    with edgepack.deploy(project=project, service=True) as deployed:
        assert deployed.report is not None
        return deployed.report.outcome, deployed.service


@pytest.mark.parametrize("deploy", [by_command_line, by_python])
def test_a_deploy_with_a_service_connects_once(
    deploy: Callable[[Path, pytest.CaptureFixture[str]], tuple[str, Any]],
    project: Path,
    opened: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert deploy(project, capsys) == ("deployed", STARTED)
    assert opened == ["device", "service"]
    assert deploy(project, capsys) == ("unchanged", STARTED)
    assert opened == ["device", "service"] * 2


def test_a_fleets_device_is_connected_to_once(
    opened: list[str], tmp_path: Path, made: Bundle
) -> None:
    work = Deploy(
        connect=lambda _: Counted(tmp_path / "home"),
        root="edgepack/tiny",
        bundles={"here": made},
        service=True,
    )
    done = work(FleetDevice(name="a", address="a", board="here"))
    assert (done.outcome, done.details["service"]) == ("deployed", "systemd")
    assert opened == ["device", "service"]


def test_without_a_service_nothing_is_done(
    opened: list[str], tmp_path: Path, project: Path, made: Bundle
) -> None:
    project.write_text(PROJECT.partition("[service]")[0])
    with pytest.raises(NoServiceError, match=r"project tiny has no \[service\] table"):
        edgepack.deploy(project=project, service=True)
    assert opened == []
    plain = replace(made, manifest=replace(made.manifest, service=None))
    with pytest.raises(NoServiceError, match=r"bundle tiny has no \[service\] table"):
        deploy_and_start(plain, LocalDevice(tmp_path / "home"), "edgepack/tiny", service=True)
    assert list((tmp_path / "home").iterdir()) == []


def test_a_link_that_is_lost_while_a_model_is_compiled_is_made_again(
    opened: list[str], tmp_path: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = Connection(lambda *_: Counted(tmp_path / "home"))
    device = connection.to(board)
    assert connection.to(board) is device

    def lost(*_: object, **__: object) -> None:
        raise ConnectionLostError("me@here: the connection was lost")

    monkeypatch.setattr(device, "run", lost)
    monkeypatch.setattr(device, "reconnect", lambda: opened.append("again"))
    assert connection.to(board) is device
    assert opened == ["device", "again"]

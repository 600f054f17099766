"""A virtual Raspberry Pi tells its fleet's exporter what its model sees, over real SSH."""

from __future__ import annotations

import json
import shlex
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import cv2
import pytest

from edgepack import virtual
from edgepack.boards import get_board
from edgepack.bundle.bundle import open_bundle
from edgepack.cli import main
from edgepack.deploy import remote_tool
from edgepack.deploy.deploy import deploy_bundle
from edgepack.fleet.exposition import parse_exposition
from tests.boards import login, own_boards
from tests.functional.test_monitoring import check_metrics, debian
from tests.monitored import monitored_app, pictures

pytestmark = pytest.mark.slow

ROOT = "/home/pi/edgepack/columns"
GUIDE = Path(__file__).parents[2] / "docs/guides/monitoring.md"
_SERVICE = (
    'window = 50\ninterval_s = 0.0\n[service]\nargs = ["--watch", "/home/pi/photos", '
    '"--metrics", "/home/pi/told/app.prom"]\n'
)


@pytest.fixture(scope="module", autouse=True)
def cache() -> Iterator[None]:
    with own_boards():
        yield


def commands_of(heading: str) -> list[list[str]]:
    """The first commands of a chapter of the guide, for this model, without the program's name."""
    chapter = GUIDE.read_text().split(f"## {heading}\n")[1]
    lines = chapter.split("```\n")[1].replace("mug", "columns").splitlines()
    return [shlex.split(line.removeprefix("edgepack ")) for line in lines]


def test_the_exporter_of_a_fleet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = open_bundle(monitored_app(tmp_path, board="rasp3b", more=_SERVICE).parents[1])
    (tmp_path / "right").mkdir()
    for index, picture in enumerate(pictures("right", 50, seed=9)):
        cv2.imwrite(str(tmp_path / f"right/{index:02}.png"), picture)
    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        archive.add(tmp_path / "right", "photos")
    board = virtual.up(get_board("rasp3b"), name="try1")
    pi = login(board, "pi")
    deploy_bundle(bundle, pi, ROOT)
    pi.put(tmp_path / "photos.tar", "photos.tar")
    pi.run(
        f"tar xf photos.tar; mkdir told; {ROOT}/current/bin/edgepack-run --images /home/pi/photos "
        "--metrics /home/pi/told/app.prom >/dev/null"
    )
    drift = {one.signal: one for one in remote_tool.status(pi, ROOT).drift}
    assert drift["classes"].level == 2 and drift["classes"].since
    assert drift["brightness"].level == 0 and drift["brightness"].since is None
    assert f"classes differ much from the release's photos since {drift['classes'].since}" in (
        pi.run(f"{ROOT}/bin/edgepack-device status").stdout
    )
    # What the app adds if its model has a plan for a GPU.
    pi.run("cd told; cp app.prom kept; echo edgepack_on_gpu 1 >>app.prom")
    assert remote_tool.status(pi, ROOT).processor == "gpu"
    assert "\nruns on the GPU\n" in pi.run(f"{ROOT}/bin/edgepack-device status").stdout
    pi.run("cd told; mv kept app.prom; touch app.prom")
    assert remote_tool.status(pi, ROOT).processor is None
    pi.close()

    fleet = tmp_path / "fleet.toml"
    fleet.write_text(
        '[defaults]\naddress = "virtual"\nboard = "rasp3b"\n[groups.try]\ndevices = ["try1"]\n'
    )
    capsys.readouterr()
    # The guide's own lines, up to the one that goes on until Ctrl-C.
    once, rules, promtool, _ = commands_of("From nothing to an alert")
    assert main(once) == 0
    text = capsys.readouterr().out
    assert main(rules) == 0
    subprocess.run([debian(promtool[0]), *promtool[1:]], check=True, capture_output=True)
    capsys.readouterr()
    check_metrics(text)
    told = {
        (one.name, one.labels.get("signal", "")): one
        for one in parse_exposition(text, "page").samples
    }
    assert told["edgepack_fleet_device_up", ""].value == "1"
    info = told["edgepack_device_release_info", ""].labels
    assert (info["device"], info["release"]) == ("try1", bundle.manifest.release)
    assert info["model_sha256"] == bundle.manifest.model.sha256
    assert told["edgepack_drift_level", "classes"].value == "2"
    assert told["edgepack_pictures_total", ""].value == "50"

    assert main(["fleet", "status", str(fleet), "--name", "columns", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["devices"]
    assert row["release"] == bundle.manifest.release

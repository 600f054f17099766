"""From edgepack.toml to a real broker, by the guide's own tables, from a virtual board."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgepack import virtual
from edgepack.base.paths import data_file
from edgepack.boards import get_board
from edgepack.bundle.bundle import Bundle, open_bundle
from edgepack.deploy.deploy import deploy_bundle
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import load_project
from edgepack.virtual import VirtualBoard
from tests.boards import login, own_boards
from tests.brokers import Subscriber, broker, password_file
from tests.onnx_models import Builder
from tests.support import free_port

pytestmark = pytest.mark.slow

GUIDE = data_file("docs") / "guides" / "home-assistant.md"
ROOT = "/home/pi/edgepack/counter"
PHOTOS, LATER, SECRET, RING, CLIPS = (
    f"/home/pi/{name}" for name in ("photos", "later", "secret", "ring", "clips")
)
CLIP = f'clip = {{ folder = "{CLIPS}", after_s = 0.1, frames_per_s = 30 }}'


def guide(port: int) -> str:
    """Its project, with the photos, the broker and the paths of a test."""
    text = re.findall(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL)[0]
    for old, new in {
        '"--camera", "/dev/video0"': f'"--images", "{PHOTOS}"',
        "8080": "0",
        "homeassistant.local:1883": f"127.0.0.1:{port}",
        "/etc/edgepack/mqtt": SECRET,
        "/var/lib/counter": LATER,
        "/usr/local/bin/ring": RING,
        "for_s = 2": f"for_s = 0\n{CLIP}",
    }.items():
        assert old in text
        text = text.replace(old, new)
    return str(text)


def bundle_of(folder: Path, port: int) -> Bundle:
    """A classifier of which class the brightest columns are: a person, on the left."""
    b = Builder()
    means = b.op("AveragePool", "x", kernel_shape=[8, 8], strides=[8, 8])
    gray = b.op("ReduceMean", means, axes=[1], keepdims=0)
    b.op("Flatten", gray, outputs=["scores"])
    model = b.model({"x": [1, 3, 8, 32]}, {"scores": [1, 4]})
    (folder / "means.onnx").write_bytes(model.SerializeToString())
    (folder / "labels.txt").write_text("person\ndog\ncar\nbird\n")
    (folder / "edgepack.toml").write_text(
        '[project]\nname = "counter"\nmodel = "means.onnx"\nlabels = "labels.txt"\n'
        'board = "rasp3b"\nverify = false\n[preprocess]\n'
        'resize = { mode = "exact", height = 8, width = 32 }\n' + guide(port)
    )
    return package_job(make_job(load_project(folder / "edgepack.toml")), folder / "bundle")


@pytest.fixture(autouse=True)
def cache() -> Iterator[None]:
    with own_boards():
        yield


def _raw(path: Path) -> Path:
    """A frame (RGB) with a person."""
    image = np.zeros((8, 32, 3), np.uint8)
    image[:, :8] = 200
    path.write_bytes(image.tobytes())
    return path


@contextmanager
def tunnel(board: VirtualBoard, port: int) -> Iterator[None]:
    """To the board, which has a network of its own, `port` of this machine is its own."""
    words = [*virtual.ssh_command(board), "-N", "-o", "ExitOnForwardFailure=yes"]
    process = subprocess.Popen([*words, "-R", f"{port}:127.0.0.1:{port}"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_people_are_counted_by_the_guide(tmp_path: Path) -> None:
    port = free_port()
    bundle = open_bundle(bundle_of(tmp_path, port).path)
    service = bundle.manifest.service
    assert service is not None
    assert b"sesame" not in b"".join(bundle.file(name).read_bytes() for name in ("sinks.json",))
    board = virtual.up(get_board("rasp3b"), name="counter")
    with closing(login(board, "pi")) as pi, tunnel(board, port):
        deploy_bundle(bundle, pi, ROOT)
        pi.run(f"mkdir {PHOTOS} {LATER} {CLIPS}; umask 077; echo open sesame >{SECRET}")
        pi.run(f"printf '#!/bin/sh\\necho \"$1\" >>{RING}.log\\ncat >>{RING}.log\\n' >{RING}")
        pi.run(f"chmod 755 {RING}")
        for number in range(6):
            image = np.zeros((8, 32, 3), np.uint8)
            at = 0 if number % 2 == 0 else 8
            image[:, at : at + 8] = 200
            cv2.imwrite(str(tmp_path / f"{number}.png"), image)
            pi.put(tmp_path / f"{number}.png", f"{PHOTOS}/{number}.png")
        words = " ".join(f"'{word}'" for word in service.args)
        run = f"{ROOT}/current/bin/edgepack-run {words}"
        # The broker is not there at first: all waits on the board.
        away = pi.run(run)
        assert len(away.stdout.splitlines()) == 7
        assert "lines wait in" in away.stderr
        accounts = password_file(tmp_path, "counter", "open sesame").read_text()
        (tmp_path / "accounts").write_text(accounts)
        more = f"password_file {tmp_path}/accounts\n"
        who = ("-u", "counter", "-P", "open sesame")
        with broker(tmp_path, port, more=more), Subscriber(port, "counter/#", *who) as messages:
            time.sleep(0.5)
            for _ in range(2):
                pi.run(run)
            found: list[tuple[bool, str, str]] = []
            while sum(topic.endswith("/results") for _, topic, _ in found) < 12:
                found += messages.take(1)
            while found[-1][2] != "offline":
                found += messages.take(1)
            with Subscriber(port, "homeassistant/#", *who) as discovery:
                [(kept, _, about)] = discovery.take(1)
        # A camera shows a person until the pictures around it are there.
        pi.put(_raw(tmp_path / "frame"), f"{CLIPS}/frame")
        until = f"until ls {CLIPS}/visitor* >/dev/null"
        goes_on = f"{until}; do cat {CLIPS}/frame; sleep 0.1; done 2>/dev/null"
        frames = run.replace(f"'--images' '{PHOTOS}'", "--frames rgb24 --size 32x8")
        assert frames != run
        pi.run(f"rm -rf {CLIPS}/visitor*; {{ {goes_on}; }} | timeout 60 {frames}")
        kept_files = pi.run(f"find {CLIPS}/visitor* -name '*.jpg' -printf '%m %p\\n'").stdout
        modes, clips = zip(*map(str.split, kept_files.splitlines()), strict=True)
        pi.get(clips[0], tmp_path / "clip.jpg")
        rung = pi.run(f"cat {RING}.log").stdout.splitlines()
    hostname = found[0][1].split("/")[1]
    lines = [json.loads(text) for _, topic, text in found if topic.endswith("/results")][:12]
    names = [f"{number}.png" for number in range(6)]
    assert [Path(line["image"]).name for line in lines] == 2 * names
    assert [line["top"][0]["label"] for line in lines] == ["person", "dog"] * 6
    counts = {text for _, topic, text in found if topic.endswith("/count")}
    assert counts <= {'{"person":0}', '{"person":1}'}
    assert kept
    assert json.loads(about)["state_topic"] == f"counter/{hostname}/results/count"
    assert rung[0] == "front door"
    assert json.loads(rung[1])["top"][0]["label"] == "person"
    assert set(modes) == {"600"}
    picture = cv2.imread(str(tmp_path / "clip.jpg"))
    assert picture.shape == (8, 32, 3)
    assert picture.max() > 150

"""From edgepack.toml to a real broker, by the guide's own tables, from a virtual board."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgepack import virtual
from edgepack.base.paths import data_file
from edgepack.boards import get_board
from edgepack.bundle.bundle import Bundle, open_bundle
from edgepack.deploy import remote_service
from edgepack.deploy.deploy import deploy_bundle
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import load_project
from edgepack.virtual import VirtualBoard
from tests.boards import login, own_boards
from tests.brokers import Subscriber, broker, password_file
from tests.onnx_models import Builder
from tests.support import await_that, free_port

pytestmark = pytest.mark.slow

GUIDE = data_file("docs") / "guides" / "home-assistant.md"
ROOT = "/home/pi/edgepack/counter"
PHOTOS, LATER, SECRET, RING, CLIPS = (
    f"/home/pi/{name}" for name in ("photos", "later", "secret", "ring", "clips")
)
LONGEST_S = 300.0
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
    return package(folder, "counter", guide(port))


def package(folder: Path, name: str, tables: str) -> Bundle:
    """A classifier of which class the brightest columns are: a person, on the left."""
    b = Builder()
    means = b.op("AveragePool", "x", kernel_shape=[8, 8], strides=[8, 8])
    gray = b.op("ReduceMean", means, axes=[1], keepdims=0)
    b.op("Flatten", gray, outputs=["scores"])
    model = b.model({"x": [1, 3, 8, 32]}, {"scores": [1, 4]})
    (folder / "means.onnx").write_bytes(model.SerializeToString())
    (folder / "labels.txt").write_text("person\ndog\ncar\nbird\n")
    (folder / "edgepack.toml").write_text(
        f'[project]\nname = "{name}"\nmodel = "means.onnx"\nlabels = "labels.txt"\n'
        'board = "rasp3b"\nverify = false\n[preprocess]\n'
        'resize = { mode = "exact", height = 8, width = 32 }\n' + tables
    )
    return package_job(make_job(load_project(folder / "edgepack.toml")), folder / "bundle")


@pytest.fixture(autouse=True)
def cache() -> Iterator[None]:
    with own_boards():
        yield


def _raw(path: Path, *, at: int = 0) -> Path:
    """A frame (RGB) that is bright from column `at` on: with a person, or a dog at 8."""
    image = np.zeros((8, 32, 3), np.uint8)
    image[:, at : at + 8] = 200
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


GPIO_UNIT, PIPE = "edgepack-relay", "/run/camera/frames"


def test_a_line_of_a_real_gpio_chip(tmp_path: Path) -> None:
    """qemu's machine has a PL061, which Debian's kernel drives: eight lines that lead nowhere."""
    words = ["--frames", "rgb24", "--size", "32x8", "--from", PIPE]
    rule = '[[when]]\nname = "{}"\nclass = "person"\nscore = 0.5\nevery_s = 0\ngpio = {{ {} }}\n'
    tables = f"[service]\nargs = {json.dumps(words)}\n" + "".join(
        rule.format(name, f"line = {line}, pulse_s = 2{more}")
        for name, line, more in (("relay", 5, ""), ("low", 6, ", active_low = true"), ("no", 8, ""))
    )
    bundle = package(tmp_path, "relay", tables)
    root = "/home/pi/edgepack/relay"
    with ExitStack() as stack:
        board = virtual.up(get_board("rasp3b"), name="relay", kind="system", init="systemd")
        admin = stack.enter_context(closing(login(board, "root")))
        pi = stack.enter_context(closing(login(board, "pi")))
        # As a udev rule of Raspberry Pi OS has it.
        admin.run("groupadd -f gpio; usermod -aG gpio pi; chgrp gpio /dev/gpiochip0")
        admin.run(f"chmod 660 /dev/gpiochip0; mkdir -p {PIPE.rpartition('/')[0]}; mkfifo {PIPE}")
        admin.run(f"chmod 644 {PIPE}; mount -t debugfs none /sys/kernel/debug || true")
        pi.put(_raw(tmp_path / "person"), "person")
        pi.put(_raw(tmp_path / "nobody", at=8), "nobody")
        pi.run("cp nobody frame")
        deploy_bundle(bundle, pi, root)
        remote_service.install(admin, root)
        admin.run(
            f"sh -c 'while :; do cat /home/pi/frame; sleep 0.2; done' >{PIPE} 2>/dev/null "
            "</dev/null & echo $! >/run/feeder"
        )

        def lines() -> list[str]:
            """Of lines that are taken: their consumers, directions and levels."""
            told = admin.run("cat /sys/kernel/debug/gpio").stdout
            return [" ".join(line.split()) for line in told.splitlines() if "edgepack" in line]

        def levels() -> list[str]:
            return [re.findall(r"out (hi|lo)", line)[0] for line in lines()]

        await_that(lambda: levels() == ["lo", "hi"], LONGEST_S)
        pi.run("cp person new; mv new frame")
        await_that(lambda: levels() == ["hi", "lo"], LONGEST_S)
        pi.run("cp nobody new; mv new frame")
        await_that(lambda: levels() == ["lo", "hi"], LONGEST_S)
        log = admin.run(f"journalctl -q -o cat -u {GPIO_UNIT}").stdout
        assert "/dev/gpiochip0 line 8: the chip has 8 lines, from 0 on" in log
        # Lines are let go with the service.
        admin.run(f"systemctl stop {GPIO_UNIT}; kill $(cat /run/feeder)")
        assert lines() == []

"""`--camera` on a real V4L2 driver: the kernel's `vivid`, on a full-system board."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgepack import virtual
from edgepack.boards import get_board
from edgepack.device.ssh import SshDevice
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import load_project
from edgepack.virtual import kernel
from tests.boards import login, own_boards
from tests.onnx_models import Builder
from tests.support import require_tool

WIDTH, HEIGHT = 640, 360  # vivid's first webcam
PACKAGES = ("linux-image-arm64", "busybox-static")
"""Debian's whole kernel: that of other full-system boards, for clouds, has no cameras."""
MODULES = (
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "virtio-rng",
    "crc32c_generic",
    "ext4",
    "vivid",
)
LONGEST_S = 120.0


@pytest.fixture(scope="module")
def board() -> Iterator[SshDevice]:
    """A board of 32 bits on a kernel of 64, as root, with /dev/video0."""
    require_tool("qemu-system-aarch64")
    with own_boards(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_PACKAGES", PACKAGES)
        patch.setattr(kernel, "_MODULES", MODULES)
        up = virtual.up(get_board("rasp3b"), name="camera", kind="system", disk_mb=512)
        root = login(up, "root")
        yield root
        root.close()


@pytest.fixture(scope="module")
def app(board: SshDevice, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that gives the mean of each eighth of a row of the picture, on the board."""
    folder = tmp_path_factory.mktemp("means")
    b = Builder()
    b.op("AveragePool", "x", kernel_shape=[8, 4], strides=[8, 4], outputs=["means"])
    model = b.model({"x": [1, 3, 8, 32]}, {"means": [1, 3, 1, 8]})
    (folder / "means.onnx").write_bytes(model.SerializeToString())
    (folder / "edgepack.toml").write_text(
        '[project]\nmodel = "means.onnx"\nboard = "rasp3b"\nverify = false\n[preprocess]\n'
        'resize = { mode = "exact", height = 8, width = 32 }\ninterpolation = "area"\n'
        '[postprocess]\nkind = "tensors"\n'
    )
    job = make_job(load_project(folder / "edgepack.toml"))
    bundle = package_job(job, folder / "bundle")
    board.run("mkdir -p /root/means")
    for name in ("manifest.json", *bundle.manifest.files):
        board.run(f"mkdir -p $(dirname /root/means/{name})")
        board.put(bundle.path / name, f"/root/means/{name}")
    board.run("chmod +x /root/means/bin/*")
    return "/root/means/bin/edgepack-run"


def until(board: SshDevice, said: Callable[[list[str]], bool], file: str) -> list[str]:
    """The lines of a file, once they are what is waited for."""
    end = time.monotonic() + LONGEST_S
    while time.monotonic() < end:
        lines = board.run(f"cat {file}").stdout.splitlines()
        if said(lines):
            return lines
        time.sleep(0.5)
    raise AssertionError(f"waited in vain: {lines[-3:]}")


@pytest.mark.slow
def test_a_camera_of_the_kernels(board: SshDevice, app: str, tmp_path: Path) -> None:
    """Its test pattern comes through; unplugged, the app ends, or waits until it is there again."""
    found = board.run("cat /sys/class/video4linux/video0/name").stdout
    assert "vivid" in found
    start = f"{app} --camera /dev/video0 --frames yuyv --size {WIDTH}x{HEIGHT} --fps 15"
    board.run(f"{start} > /root/lines 2> /root/errors & echo $! > /root/pid")
    until(board, lambda lines: len(lines) >= 10, "/root/lines")
    board.run("kill -TERM $(cat /root/pid)")
    lines = until(board, lambda lines: '"end"' in lines[-1], "/root/lines")
    *frames, end = map(json.loads, lines)
    assert end["end"]["frames"] == len(frames) >= 10
    assert end["end"]["broken"] == 0
    # Bars of white, yellow, cyan, green, magenta, red, blue, black at 75 %, as vivid's manual says.
    seen = frames[-1]["tensors"][0]["values"]
    red, green, blue = seen[:8], seen[8:16], seen[16:]
    assert all(value > 120 for value in (red[0], red[1], red[5], green[3], blue[2], blue[6]))
    assert all(value < 60 for value in (red[3], red[6], green[5], blue[1], blue[5], *seen[7::8]))

    # What it cannot do.
    wrong = board.run(f"{app} --camera /dev/video0 --size 641x361", check=False)
    assert wrong.returncode == 2
    assert "the nearest is --size" in wrong.stderr
    none = board.run(f"{app} --camera /dev/null", check=False)
    assert (none.returncode, "is no video device" in none.stderr) == (2, True)

    # Unplugged: the driver lets go of its device.
    unbind = "echo vivid.0 > /sys/bus/platform/drivers/vivid/unbind"
    board.run(f"{start} --at-end retry > /root/again 2> /root/errors & echo $! > /root/pid")
    until(board, lambda lines: len(lines) >= 3, "/root/again")
    board.run(unbind)
    time.sleep(1)
    before = len(board.run("cat /root/again").stdout.splitlines())
    board.run("kill -0 $(cat /root/pid)")
    board.run("echo vivid.0 > /sys/bus/platform/drivers/vivid/bind")
    until(board, lambda lines: len(lines) >= before + 3, "/root/again")
    board.run("kill -TERM $(cat /root/pid)")
    until(board, lambda lines: '"end"' in lines[-1], "/root/again")
    board.run(f"{start} > /root/last 2> /root/errors & echo $! > /root/pid")
    until(board, lambda lines: len(lines) >= 1, "/root/last")
    board.run(unbind)
    until(board, lambda lines: '"end"' in lines[-1], "/root/last")

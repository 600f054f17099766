"""`--camera` on a real V4L2 driver: the kernel's `vivid`, on full-system boards; by hand, and as a
service of systemd and of busybox's init."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgepack import virtual
from edgepack.boards import get_board
from edgepack.bundle.bundle import open_bundle
from edgepack.deploy import remote_service
from edgepack.deploy.deploy import deploy_bundle
from edgepack.device.ssh import SshDevice
from edgepack.virtual import VirtualBoard, kernel, rootfs
from tests.boards import login, own_boards
from tests.cross import gcc
from tests.means import means_app
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
LONGEST_S = 300.0


GROUPS = "video:x:44:\n"
# What gives devices to their groups: udev, or busybox's mdev, as on boards that have a camera.
INITS = {
    "script": rootfs.INITS["script"],
    "systemd": replace(
        rootfs.INITS["systemd"],
        packages=(*rootfs.INITS["systemd"].packages, "udev"),
        files={
            **rootfs.INITS["systemd"].files,
            "etc/group": rootfs._CONFIG["etc/group"] + GROUPS,
        },
    ),
    "busybox": replace(
        rootfs.INITS["busybox"],
        files={
            **rootfs.INITS["busybox"].files,
            "etc/group": rootfs._CONFIG["etc/group"] + GROUPS,
            "etc/mdev.conf": (
                "(null|zero|full|random|urandom|tty|ptmx) root:root 666\n"
                "video[0-9]+ root:video 660\n"
            ),
            "etc/rc": "busybox mdev -s\n" + rootfs.INITS["busybox"].files["etc/rc"],
        },
    ),
}


@contextlib.contextmanager
def camera_board(init: str) -> Iterator[VirtualBoard]:
    """A board of 32 bits on a kernel of 64 with /dev/video0, started by one of INITS."""
    require_tool("qemu-system-aarch64")
    with own_boards(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_PACKAGES", PACKAGES)
        patch.setattr(kernel, "_MODULES", MODULES)
        patch.setitem(rootfs.INITS, init, INITS[init])  # type: ignore[arg-type]
        yield virtual.up(get_board("rasp3b"), name="camera", kind="system", init=init, disk_mb=512)


@pytest.fixture(scope="module")
def board() -> Iterator[SshDevice]:
    """As root, with nothing else that runs."""
    with camera_board("script") as up:
        root = login(up, "root")
        yield root
        root.close()


@pytest.fixture(scope="module")
def app(board: SshDevice, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that gives the mean of each eighth of a row of the picture, on the board."""
    bundle = open_bundle(means_app(tmp_path_factory.mktemp("means"), "rasp3b").parents[1])
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


def assert_bars(frame: dict[str, Any]) -> None:
    """White, yellow, cyan, green, magenta, red, blue, black at 75 %, as vivid's manual says."""
    seen = frame["tensors"][0]["values"]
    red, green, blue = seen[:8], seen[8:16], seen[16:]
    assert all(value > 120 for value in (red[0], red[1], red[5], green[3], blue[2], blue[6]))
    assert all(value < 60 for value in (red[3], red[6], green[5], blue[1], blue[5], *seen[7::8]))


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
    assert_bars(frames[-1])

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


ROOT = "/home/pi/edgepack/means"
OUT = "/srv/means/lines.jsonl"
SERVICE = "edgepack-means"
ARGS = (
    *("--camera", "/dev/video0", "--frames", "yuyv", "--size", f"{WIDTH}x{HEIGHT}", "--fps", "5"),
    *("--at-end", "retry", "--out", OUT, "--preview", "8080"),
)
# Whatever v4l2-ctl would do: DEVICE, the name of a control, its value.
CONTROL = r"""
#include <fcntl.h>
#include <linux/videodev2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
int main(int count, char **words) {
  int fd = open(words[1], O_RDWR);
  struct v4l2_queryctrl found = {.id = V4L2_CTRL_FLAG_NEXT_CTRL};
  while (fd >= 0 && count == 4 && ioctl(fd, VIDIOC_QUERYCTRL, &found) == 0) {
    if (strcmp((const char *)found.name, words[2]) == 0) {
      struct v4l2_control wanted = {found.id, atoi(words[3])};
      return ioctl(fd, VIDIOC_S_CTRL, &wanted) != 0;
    }
    found.id |= V4L2_CTRL_FLAG_NEXT_CTRL;
  }
  return 2;
}
"""
METRICS = """exec 3<>/dev/tcp/127.0.0.1/8080
printf 'GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nConnection: close\r\n\r\n' >&3
cat <&3"""


class OnDuty:
    """The service with its camera on a board under `init`."""

    def __init__(self, init: str, root: SshDevice) -> None:
        self.init, self.root = init, root

    def until(self, condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + LONGEST_S
        while not condition():
            assert time.monotonic() < end, f"{what} did not come; the log:\n{self.log()}"
            time.sleep(0.5)

    def log(self) -> str:
        if self.init == "systemd":
            return self.root.run(f"journalctl -q -o cat -u {SERVICE}").stdout
        return self.root.run(f"cat /var/log/{SERVICE}/log", check=False).stdout

    def frames(self) -> int:
        return int(self.root.run(f"cat {OUT}.1 {OUT} 2>/dev/null | wc -l").stdout)

    def gives_frames(self) -> None:
        before = self.frames()
        self.until(lambda: self.frames() >= before + 3, "frames")
        self.until(lambda: self.metric("edgepack_source_up") == 1, "a source that is up")

    def metric(self, name: str) -> int | None:
        """None as long as nobody answers."""
        said = self.root.run(f"timeout 20 bash -c {shlex.quote(METRICS)}", check=False).stdout
        found = re.search(rf"^{name} (\d+)\r?$", said, re.MULTILINE)
        return int(found[1]) if found else None

    def app(self) -> int:
        return int(self.root.run("pgrep -f '/edgepack-run [-]-camera'").stdout)

    def service(self, action: str) -> None:
        systemd = f"systemctl {action} {SERVICE}"
        script = f"/etc/init.d/{SERVICE} {action}"
        self.root.run(systemd if self.init == "systemd" else script)

    def unplug(self) -> None:
        self.root.run("echo vivid.0 > /sys/bus/platform/drivers/vivid/unbind")

    def plug_in(self) -> None:
        self.root.run("echo vivid.0 > /sys/bus/platform/drivers/vivid/bind")
        if self.init == "busybox":  # a kernel that calls nobody: what its hotplug would do
            self.root.run("busybox mdev -s")

    def is_lost(self, words: str, losses: int) -> None:
        self.until(lambda: words in self.log(), words)
        self.until(lambda: self.metric("edgepack_source_up") == 0, "a source that is not up")
        assert self.metric("edgepack_source_losses_total") == losses


@pytest.mark.slow
@pytest.mark.parametrize("init", ["systemd", "busybox"])
def test_a_camera_of_a_service(init: str, tmp_path: Path) -> None:
    """It may open its camera and no other device, and has it again however it was lost."""
    args = ", ".join(f'"{word}"' for word in ARGS)
    bundle = open_bundle(
        means_app(tmp_path, "rasp3b", f"[service]\nargs = [{args}]\nwatchdog_s = 30\n").parents[1]
    )
    control = gcc(tmp_path, CONTROL, "-static")
    with camera_board(init) as board, ExitStack() as stack:
        pi = stack.enter_context(contextlib.closing(login(board, "pi")))
        root = stack.enter_context(contextlib.closing(login(board, "root")))
        on = OnDuty(init, root)
        node = "stat -c '%U %G %a' /dev/video0"
        on.until(
            lambda: root.run(node, check=False).stdout == "root video 660\n", "the camera's group"
        )
        root.run("mkdir -p /srv/means && chmod 1777 /srv/means && chmod 0711 /home/pi")
        deploy_bundle(bundle, pi, ROOT)
        done = remote_service.install(root, ROOT)
        assert done["kind"] == ("systemd" if init == "systemd" else "init")
        on.gives_frames()
        assert_bars(json.loads(root.run(f"tail -n 2 {OUT} | head -n 1").stdout))

        app = on.app()
        lines = root.run(f"cat /proc/{app}/status").stdout.splitlines()
        status = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
        assert set(status["Uid"]).isdisjoint({"0", "1000"})
        assert set(status["Groups"]) - set(status["Gid"]) == {"44"}
        assert (int(status["CapEff"][0], 16), status["NoNewPrivs"]) == (0, ["1"])
        if init == "systemd":
            # Even what all may open: whoever is in its control group, root too, is refused.
            root.run("mknod -m 666 /dev/open-to-all c 1 11")
            inside = (
                f"echo $$ >/sys/fs/cgroup/system.slice/{SERVICE}.service/cgroup.procs; "
                "for name in video0 null open-to-all vda; do "
                "(: </dev/$name) 2>/dev/null && echo $name; done; true"
            )
            assert root.run(f"sh -c {shlex.quote(inside)}").stdout == "video0\nnull\n"
            outside = "(: </dev/open-to-all) && echo yes"
            assert root.run(outside).stdout == "yes\n"

        on.unplug()
        on.is_lost("--camera: /dev/video0 is gone", 1)
        on.plug_in()
        on.gives_frames()
        assert "--camera: /dev/video0 is back, after " in on.log()

        root.put(control, "/root/control")
        mute = "chmod +x /root/control; /root/control /dev/video0 'Percentage of Dropped Buffers'"
        root.run(f"{mute} 100")
        on.is_lost("--camera: /dev/video0 gives no frame, for ", 2)
        root.run(f"{mute} 0")
        on.gives_frames()
        # All that was the app's own doing, not that of a start anew.
        assert on.app() == app

        on.service("stop")
        on.unplug()
        on.service("start")
        on.is_lost("--camera: /dev/video0 cannot be opened: No such file or directory", 1)
        on.plug_in()
        on.gives_frames()

        # From a cold start, too.
        root.run("sync")
        virtual.cut_power(board)
        again = virtual.up(
            get_board("rasp3b"), name="camera", kind="system", init=init, disk_mb=512
        )
        root = stack.enter_context(contextlib.closing(login(again, "root")))
        on = OnDuty(init, root)
        on.gives_frames()

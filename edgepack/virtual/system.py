"""Start a full-system board: an ARM kernel and its userland in qemu-system.

The machine is qemu's `virt` with a 64-bit core, whatever the board: a 32-bit board gets
its armhf userland on the arm64 kernel, as a Raspberry Pi with a 64-bit kernel does. A
true Cortex-A9 would need a kernel built for it; instructions such a core lacks therefore
do not trap here (they do on the light board).
"""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import time
from pathlib import Path

from edgepack.base.process import last_lines
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.tools import find_tool
from edgepack.boards import Board
from edgepack.virtual import disk, initramfs
from edgepack.virtual.errors import BoardStartError
from edgepack.virtual.files import BoardFile
from edgepack.virtual.kernel import kernel
from edgepack.virtual.state import BoardSetup, Started, start_time

log = logging.getLogger(__name__)

EMULATOR = ("qemu-system-aarch64",)
_DISK_MB = 2048
# Below this Debian's kernel and an sshd do not fit.
_LEAST_MEMORY_MB = 256
# qemu's 64-bit cores that can run 32-bit programs.
_CPUS = ("cortex-a53", "cortex-a57", "cortex-a72")
_PORT_TRIES = 5
_SETTLE_S = 0.5

# Process 1. Programs of a 32-bit userland get a 32-bit view of the kernel: its `uname -m`
# is armv8l, and /proc/cpuinfo lists the 32-bit features.
_INIT = """#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/sshd
hostname "$(cat /etc/hostname)"
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
{process_1}
"""
# What takes over from that script, by the init of the root file system.
_PROCESS_1 = {
    "script": "{personality}{sshd}\nwhile :; do sleep 1000 & wait; done",
    "systemd": "exec {personality}/lib/systemd/systemd",
    "busybox": "exec {personality}/bin/busybox init",
}


def start(plan: BoardSetup, *, progress: Progress = NO_PROGRESS) -> Started:
    """Start a full-system board; its disk in `plan.folder` outlives a crash, not `down`.

    Raises BoardStartError, RootfsError, ToolMissingError.
    """
    qemu = find_tool("qemu-system-aarch64")
    disk_mb = plan.disk_mb or _DISK_MB
    plan.folder.mkdir(parents=True, exist_ok=True)
    image = _disk(plan, disk_mb)
    boot = kernel(progress=progress)
    archive = plan.folder / "initramfs.gz"
    archive.write_bytes(initramfs.build(boot, (*plan.files, _init(plan))))
    memory_mb = max(plan.board.memory_mb, _LEAST_MEMORY_MB)
    machine = [
        *("-machine", "virt", "-cpu", _cpu(plan.board), "-smp", str(plan.board.cores)),
        *("-m", str(memory_mb), "-nodefaults", "-no-user-config", "-display", "none"),
        *("-serial", f"file:{_escaped(plan.folder / 'console')}", "-no-reboot"),
        *("-kernel", str(boot.image), "-initrd", str(archive)),
        *("-append", "console=ttyAMA0 loglevel=4 panic=-1"),
        *("-drive", f"file={_escaped(image)},format=raw,if=none,id=disk"),
        *("-device", "virtio-blk-pci,drive=disk"),
        *("-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci"),
    ]
    for _ in range(_PORT_TRIES):
        port = _free_port()
        # `restrict`: the board reaches nothing, only its ssh port is reached.
        net = f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22"
        pid = _spawn([str(qemu), *machine, "-netdev", net], plan.folder / "log")
        if started := start_time(pid):
            return Started(kind="system", pid=pid, started=started, port=port, disk_mb=disk_mb)
    raise BoardStartError(
        f"qemu-system-aarch64 did not start for {plan.hostname}\n"
        + last_lines((plan.folder / "log").read_text(errors="replace"))
    )


def _disk(plan: BoardSetup, size_mb: int) -> Path:
    """The board's disk: the one a crash left, if it was made for the same plan, or a new one."""
    image = plan.folder / "disk.img"
    made_for = plan.folder / "disk.json"
    recipe = json.dumps([plan.base.name, size_mb])
    if not (image.exists() and made_for.exists() and made_for.read_text() == recipe):
        image.unlink(missing_ok=True)
        made_for.write_text(recipe)
        disk.make_disk(plan.base, image, size_mb=size_mb)
    return image


def _init(plan: BoardSetup) -> BoardFile:
    personality = "linux32 " if plan.board.debian_arch == "armhf" else ""
    process_1 = _PROCESS_1[plan.init].format(personality=personality, sshd=plan.sshd.daemon)
    text = _INIT.format(process_1=process_1)
    # In /etc, since /sbin is a folder in one suite and a link in another.
    return BoardFile(path="/etc/board-init", data=text.encode(), mode=0o755)


def _cpu(board: Board) -> str:
    return board.cpu if board.cpu in _CPUS else _CPUS[0]


def _escaped(path: Path) -> str:
    """qemu's options end at a comma; two of them stand for one."""
    return str(path).replace(",", ",,")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _spawn(argv: list[str], log_file: Path) -> int:
    """Start qemu; it is given time to find that its port was taken in between."""
    log.debug("run %s", " ".join(argv))
    with log_file.open("wb") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )
    deadline = time.monotonic() + _SETTLE_S
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    # qemu outlives us; without this Python would warn that nobody waited for it.
    process.returncode = process.returncode or 0
    return process.pid

"""Start a light board: the launcher in a process of its own, and its answer."""

from __future__ import annotations

import contextlib
import json
import selectors
import subprocess
import sys
from pathlib import Path

from edgepack.base.process import last_lines
from edgepack.base.tools import ToolMissingError, find_tool
from edgepack.virtual import profile
from edgepack.virtual.errors import BoardStartError, LightBoardError
from edgepack.virtual.files import BoardFile
from edgepack.virtual.rootfs import PI_UID
from edgepack.virtual.state import BoardSetup, Started, start_time

_LAUNCHER = Path(__file__).with_name("launcher.py")
_QEMU_ARCH = {"armhf": "arm", "arm64": "aarch64"}
_START_S = 60.0
_DISK_MB = 1024


def emulators(arch: str) -> tuple[str, str]:
    """The programs of which one is needed, for Debian's name of an architecture."""
    return f"qemu-{_QEMU_ARCH[arch]}-static", f"qemu-{_QEMU_ARCH[arch]}"


def start(plan: BoardSetup) -> Started:
    """Start a light board.

    Everything it writes lives in memory and is gone with it. Raises LightBoardError if
    this machine does not allow such boards, BoardStartError if it should have worked.
    """
    board, virtual, folder = plan.board, plan.virtual, plan.folder
    disk_mb = plan.disk_mb or _DISK_MB
    arch = _QEMU_ARCH[board.debian_arch]
    mount_dir = folder / "mnt"
    mount_dir.mkdir(parents=True, exist_ok=True)
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    config = {
        "base": str(plan.base),
        "mount_dir": str(mount_dir),
        "hostname": plan.hostname,
        "arch": arch,
        "qemu": str(_emulator(arch)),
        "sshd": plan.sshd.one_connection,
        "env": env | {"QEMU_CPU": virtual.qemu_cpu},
        "disk_mb": disk_mb,
        "pi_uid": PI_UID,
        "files": [file.to_dict() for file in (*plan.files, *_session_cpu(plan))],
        "proc": {"cpuinfo": profile.cpuinfo(board, virtual), "meminfo": profile.meminfo(board)},
        "sys": profile.sys_files(board),
    }
    log_file = folder / "log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", str(_LAUNCHER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )
    assert process.stdin
    assert process.stdout
    try:
        with process.stdout as answers:
            with process.stdin as questions:
                questions.write(json.dumps(config).encode())
            with selectors.DefaultSelector() as selector:
                selector.register(answers, selectors.EVENT_READ)
                answered = bool(selector.select(_START_S))
            report = json.loads(answers.readline() or b"{}") if answered else {}
    except BaseException:
        _abandon(process)
        raise
    if "port" not in report:
        _abandon(process)
        reason = report.get("error") or last_lines(log_file.read_text()) or "no answer"
        kind = LightBoardError if report.get("forbidden") else BoardStartError
        raise kind(f"the light virtual board of {board.name} did not start: {reason}")
    started = start_time(process.pid)
    # The launcher outlives us; without this Python would warn that nobody waited for it.
    process.returncode = 0
    if started is None:
        raise BoardStartError(
            f"the light virtual board of {board.name} died: {last_lines(log_file.read_text())}"
        )
    return Started(
        kind="light", pid=process.pid, started=started, port=report["port"], disk_mb=disk_mb
    )


def _session_cpu(plan: BoardSetup) -> list[BoardFile]:
    """What gives a login the emulator's CPU model, if its environment is not the server's."""
    if plan.sshd.passes_environment:
        return []
    line = f"SetEnv QEMU_CPU={plan.virtual.qemu_cpu}\n"
    return [BoardFile(path="/etc/ssh/sshd_config.d/cpu.conf", data=line.encode())]


def _emulator(arch: str) -> Path:
    """A qemu-user that needs no libraries, since inside the board there are none of ours."""
    try:
        return find_tool(f"qemu-{arch}-static")
    except ToolMissingError:
        # From Debian 13 on, the package qemu-user itself is static.
        with contextlib.suppress(ToolMissingError):
            plain = find_tool(f"qemu-{arch}")
            if b"/ld-linux-" not in plain.read_bytes()[:4096]:
                return plain
        raise


def _abandon(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()

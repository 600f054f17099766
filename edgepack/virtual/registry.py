"""Virtual boards by name: start, stop, list, log in."""

from __future__ import annotations

import logging
import re
import shutil
import signal
import socket
import time
from pathlib import Path

from edgepack.base.errors import UsageError
from edgepack.base.paths import locked, write_atomic
from edgepack.base.process import last_lines
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.base.tools import find_tool, need_tools
from edgepack.boards import Board
from edgepack.virtual import files, keys, light, state, system
from edgepack.virtual.bare import NO_LIBRARY, bare_rootfs
from edgepack.virtual.errors import (
    BoardConflictError,
    BoardStartError,
    LightBoardError,
    NoVirtualBoardError,
)
from edgepack.virtual.rootfs import INITS, name_rootfs, rootfs
from edgepack.virtual.sshd import DROPBEAR, OPENSSH
from edgepack.virtual.state import VirtualBoard

log = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_ANSWER_S = {"light": 60.0, "system": 240.0}
KINDS = ("auto", "light", "system")


def up(
    board: Board,
    *,
    suite: str | None = None,
    kind: str = "auto",
    disk_mb: int | None = None,
    name: str | None = None,
    init: str = "script",
    opencl: bool = False,
    progress: Progress = NO_PROGRESS,
) -> VirtualBoard:
    """Start a virtual `board`, or return the one that runs under that `name` already.

    `suite` is the Debian release of its root file system (the profile's by default), or "none"
    for one without any library;
    `disk_mb` the size of its disk, `name` the board's own by default. `kind` is "light",
    "system", or "auto": light where the machine allows it, else system. `init` is the process 1
    of a full-system board: "systemd", "busybox", or a "script" that only starts sshd. With `opencl`
    it has Debian's driver of OpenCL, pocl, which computes on the emulated CPU. Returns when its
    sshd answers. Raises NoVirtualBoardError, BoardConflictError, ToolMissingError,
    RootfsError, LightBoardError (kind "light" only), BoardStartError.
    """
    virtual = board.virtual
    if virtual is None:
        raise NoVirtualBoardError(
            f"board {board.name} has no virtual board",
            hint=f"give it a table boards.{board.name}.virtual, or use --device",
        )
    name = name or board.name
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,59}", name):
        raise UsageError(
            f"not a name for a virtual board: {name!r}",
            hint="use a-z, 0-9, dot and dash; at most 60 of them",
        )
    if kind not in KINDS:
        raise UsageError(f"unknown kind of virtual board: {kind}", hint=f"use {', '.join(KINDS)}")
    suite = suite or virtual.suite
    inits = ("script", "busybox") if suite == NO_LIBRARY else tuple(INITS)
    if init not in inits or (init != "script" and kind != "system"):
        raise UsageError(
            f"a virtual board of kind {kind} and suite {suite} cannot be started by {init}",
            hint=f"use a full-system board and {', '.join(inits)}",
        )
    if opencl and suite == NO_LIBRARY:
        raise UsageError(
            "a virtual board without libraries has no driver of OpenCL", hint="leave out --suite"
        )
    folder = state.folder(name)
    with locked(folder):
        running = state.load(name)
        if running and not running.is_usable:
            state.stop(running.pid, running.started)
        elif running:
            _check_same(running, board, suite=suite, kind=kind, disk_mb=disk_mb, init=init)
            if opencl and not running.opencl:
                raise _conflict(running, "without a driver of OpenCL")
            return running
        _need_programs(board, suite=suite, kind=kind, init=init, opencl=opencl)
        if suite == NO_LIBRARY:
            base, sshd = bare_rootfs(board, progress=progress), DROPBEAR
        else:
            base = rootfs(suite, board.debian_arch, init=init, opencl=opencl, progress=progress)
            sshd = OPENSSH
        login, host = keys.login_key(), keys.host_key(name)
        progress.step(f"starting the virtual board {name}")
        plan = state.BoardSetup(
            board=board,
            virtual=virtual,
            suite=suite,
            base=base,
            folder=folder,
            hostname=name,
            files=tuple(files.identity(hostname=name, login=login, host=host, sshd=sshd)),
            disk_mb=disk_mb,
            sshd=sshd,
            init=init,
        )
        started = _start(plan, kind, progress)
        result = VirtualBoard(
            name=name,
            board=board.name,
            kind=started.kind,
            suite=suite,
            host=_HOST,
            port=started.port,
            user="pi",
            key_file=login.file,
            host_key=f"[{_HOST}]:{started.port} {' '.join(host.public.split()[:2])}",
            pid=started.pid,
            started=started.started,
            disk_mb=started.disk_mb,
            base=base,
            init=init,
            opencl=opencl,
        )
        # Saved before it answers: whatever happens from here on, `down` finds it.
        state.save(result)
        try:
            _wait_for_sshd(result)
        except BaseException:
            state.stop(result.pid, result.started)
            raise
    return result


def down(name: str) -> bool:
    """Stop the board called `name` and delete what it wrote; its host key stays.

    Returns whether there was anything to stop or delete.
    """
    folder = state.folder(name)
    if name not in state.names():
        return False
    with locked(folder):
        board = state.load(name)
        if board:
            state.stop(board.pid, board.started)
        shutil.rmtree(folder, ignore_errors=True)
    return True


def cut_power(board: VirtualBoard) -> None:
    """End `board` at once, as pulling its plug would; nothing it has not synced is safe.

    A full-system board keeps its disk: `up` with the same choices boots from it. A light
    board writes to memory, so it comes back empty.
    """
    state.stop(board.pid, board.started, (signal.SIGKILL,))


def list_running() -> list[VirtualBoard]:
    """The boards that run now, by name."""
    return [board for name in state.names() if (board := state.load(name))]


def known_hosts(board: VirtualBoard) -> Path:
    """A known_hosts file with the board's host key and no other."""
    file = state.folder(board.name) / "known_hosts"
    write_atomic(file, f"{board.host_key}\n".encode())
    return file


def _ssh_options(board: VirtualBoard) -> dict[str, str]:
    """What ssh has to know of a board; ssh_config(5) has the keys."""
    return {
        "UserKnownHostsFile": f'"{known_hosts(board)}"',
        "GlobalKnownHostsFile": "none",
        "StrictHostKeyChecking": "yes",
        "IdentitiesOnly": "yes",
        "IdentityFile": f'"{board.key_file}"',
        "LogLevel": "ERROR",
    }


def _with_options(program: str, board: VirtualBoard) -> list[str]:
    options = _ssh_options(board).items()
    words = [word for key, value in options for word in ("-o", f"{key}={value}")]
    return [str(find_tool(program)), "-F", "none", *words]


def ssh_command(board: VirtualBoard) -> list[str]:
    """The `ssh` command that logs in to `board`; append a command to run it there."""
    login = ["-p", str(board.port), f"{board.user}@{board.host}"]
    return [*_with_options("ssh", board), *login]


def scp_command(board: VirtualBoard, source: str, target: str) -> list[str]:
    """The `scp` command that copies, folders too; a path that begins with ":" is the board's."""
    paths = [
        # scp takes a name with a colon, or one of "-", for something else.
        f"{board.user}@{board.host}{path}" if path.startswith(":") else str(Path.cwd() / path)
        for path in (source, target)
    ]
    # dropbear comes without SFTP, which scp would talk otherwise.
    own = ["-O"] if board.suite == NO_LIBRARY else []
    return [*_with_options("scp", board), *own, "-r", "-P", str(board.port), "--", *paths]


def ssh_config(board: VirtualBoard) -> str:
    """A block for ~/.ssh/config by which every program that reads it knows the board."""
    login = {"HostName": board.host, "Port": str(board.port), "User": board.user}
    keys = {**login, **_ssh_options(board)}
    return "\n".join([f"Host {board.name}", *(f"  {key} {value}" for key, value in keys.items())])


def _need_programs(board: Board, *, suite: str, kind: str, init: str, opencl: bool) -> None:
    """Raise ToolMissingError for all programs together that will be missed on the way."""
    arch = board.debian_arch
    wanted = [light.emulators(arch)] if kind != "system" else [system.EMULATOR, ("mke2fs",)]
    known = suite == NO_LIBRARY or name_rootfs(suite, arch, init=init, opencl=opencl).exists()
    need_tools(*wanted, *([] if known else [("mmdebstrap",)]))


def _start(plan: state.BoardSetup, kind: str, progress: Progress) -> state.Started:
    if kind != "system":
        try:
            return light.start(plan)
        except LightBoardError as error:
            if kind == "light":
                raise
            log.warning("%s; starting the full-system board instead", error.message)
    return system.start(plan, progress=progress)


def _check_same(
    running: VirtualBoard,
    board: Board,
    *,
    suite: str,
    kind: str,
    disk_mb: int | None,
    init: str,
) -> None:
    asked = {
        "board": board.name,
        "suite": suite,
        "kind": kind,
        "disk_mb": disk_mb,
        "init": init,
    }
    for key, value in asked.items():
        actual = getattr(running, key)
        if value not in (actual, None, "auto"):
            raise _conflict(running, f"with {key} {actual}, not {value}")


def _conflict(running: VirtualBoard, how: str) -> BoardConflictError:
    return BoardConflictError(
        f"the virtual board {running.name} runs already, {how}",
        hint=f"edgepack board down {running.name}",
    )


def _wait_for_sshd(board: VirtualBoard) -> None:
    """Until the first line of the ssh protocol comes, not only until the port is open."""
    deadline = time.monotonic() + _ANSWER_S[board.kind]
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((board.host, board.port), timeout=10) as connection:
                if connection.recv(4) == b"SSH-":
                    return
        except OSError:
            # Refused or reset: not yet.
            pass
        if state.start_time(board.pid) != board.started:
            break
        time.sleep(0.05)
    logs = (state.folder(board.name) / name for name in ("console", "log"))
    text = "\n".join(log.read_text(errors="replace") for log in logs if log.exists())
    raise BoardStartError(
        f"the virtual board {board.name} did not answer on {board.host}:{board.port}\n"
        + last_lines(text)
    )

"""The light virtual board itself: run as a program of its own, knows nothing of edgepack.

Reads one JSON object from standard input (see `Config`), puts a board together in
namespaces of its own, writes one JSON object to standard output, {"port": N} or
{"error": text, "forbidden": bool}, and then serves until it is killed.

Three processes: the supervisor outside (it keeps the id maps and dies with a signal),
the parent of the PID namespace, and the board's process 1, which accepts connections
and hands each to an sshd of the board. Whichever dies takes the others along, and with
the last process of the namespaces all mounts are gone.

What needs root elsewhere needs none here: since Linux 6.7 each user namespace has a
binfmt_misc of its own, so the emulator is registered for this board alone. On older
kernels the machine-wide registration is used, if there is one.
"""

from __future__ import annotations

import base64
import ctypes
import errno
import fcntl
import json
import os
import pwd
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

_NEW_USER, _NEW_MOUNT, _NEW_PID = 0x10000000, 0x20000, 0x20000000
_NEW_UTS, _NEW_IPC, _NEW_NET = 0x4000000, 0x8000000, 0x40000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 1, 2, 4, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_IDS = 65536
_EVERY_ID, _ONE_ID = b"every id\n", b"one id\n"

# The ELF headers of Linux programs (class, data, type EXEC or DYN, machine).
_MAGIC = {
    "arm": rb"\x7fELF\x01\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x28\x00",
    "aarch64": rb"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00",
}
_MASK = rb"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
# A byte of an ELF header that the kernel and loaders ignore.
_PADDING = 9

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, kw_only=True)
class Config:
    """What the launcher is told.

    `base` is the root file system (never written to), `mount_dir` an empty folder,
    `arch` "arm" or "aarch64", `disk_mb` the size of the file system the board writes
    to (memory, taken as it fills). `sshd` is the program, with its arguments, that serves the
    connection on its standard input and output, and `env` what it is given. `files` have
    {"path", "mode", "owner", "data"} with owner "root" or "pi" and data in base64; `proc` and
    `sys` map a path below /proc and /sys to its text.
    """

    base: str
    mount_dir: str
    hostname: str
    arch: str
    qemu: str
    sshd: list[str]
    env: dict[str, str]
    disk_mb: int
    pi_uid: int
    files: list[dict[str, Any]]
    proc: dict[str, str]
    sys: dict[str, str]


class Forbidden(Exception):  # noqa: N818 - not a fault: the machine does not allow light boards
    """A step that this kernel or container refuses."""


def main() -> None:
    """Start the board and serve until a signal ends it."""
    config = Config(**json.load(sys.stdin))
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    ready_out, ready_in = _pipe()
    unshared_out, unshared_in = _pipe()
    mapped_out, mapped_in = _pipe()
    parent = os.fork()
    if parent == 0:
        # Only the supervisor may hold these, or its death would not be noticed.
        for end in (ready_out, unshared_out, mapped_in):
            end.close()
        _guarded(ready_in, lambda: _namespaces(config, listener, ready_in, unshared_in, mapped_out))
    for end in (ready_in, unshared_in, mapped_out):
        end.close()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _killer(parent))
    report = _report(parent, unshared_out, mapped_in, ready_out)
    if "error" not in report:
        report["port"] = listener.getsockname()[1]
    listener.close()
    print(json.dumps(report), flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _, status = os.waitpid(parent, 0)
    sys.exit(os.waitstatus_to_exitcode(status) & 255)


def _report(parent: int, unshared: Any, mapped: Any, ready: Any) -> dict[str, Any]:
    """Map the ids once the namespace is there, then hear how the start went."""
    if unshared.read(1):
        try:
            mapped.write(_map_ids(parent))
        except OSError as error:
            os.kill(parent, signal.SIGKILL)
            what = f"mapping user ids: {error}"
            return {"error": f"{what}{_apparmor_hint()}", "forbidden": True}
    mapped.close()
    report: dict[str, Any] = json.loads(ready.readline() or b'{"error": "it died"}')
    return report


def _pipe() -> tuple[Any, Any]:
    out, into = os.pipe()
    return os.fdopen(out, "rb", 0), os.fdopen(into, "wb", 0)


def _killer(pid: int) -> Callable[[int, FrameType | None], None]:
    def kill(_number: int, _frame: FrameType | None) -> None:
        os.kill(pid, signal.SIGTERM)

    return kill


def _guarded(ready: Any, body: Callable[[], None]) -> NoReturn:
    """Run a child's `body`; what stops it goes to the supervisor as its report."""
    try:
        body()
    except (Forbidden, OSError) as error:
        forbidden = isinstance(error, Forbidden)
        text = f"{error}{_apparmor_hint() if forbidden else ''}"
        ready.write(json.dumps({"error": text, "forbidden": forbidden}).encode() + b"\n")
        os._exit(1)
    os._exit(0)


def _namespaces(
    config: Config, listener: socket.socket, ready: Any, unshared: Any, mapped: Any
) -> None:
    """The parent of the PID namespace: enters all namespaces, starts process 1, waits."""
    if _libc.unshare(_NEW_USER) < 0:
        raise Forbidden(_why_no_user_namespace(ctypes.get_errno()))
    unshared.write(b"x")
    every_id = mapped.readline() == _EVERY_ID
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    # After the change of ids, which would clear it.
    _die_with_parent()
    _unshare(_NEW_MOUNT | _NEW_PID | _NEW_UTS | _NEW_IPC | _NEW_NET, "namespaces")
    init = os.fork()
    if init == 0:
        _die_with_parent()
        _guarded(ready, lambda: _board(config, listener, ready, every_id=every_id))
    ready.close()
    listener.close()

    def stop(_number: int, _frame: FrameType | None) -> None:
        os.kill(init, signal.SIGKILL)

    signal.signal(signal.SIGTERM, stop)
    os.waitpid(init, 0)


def _why_no_user_namespace(code: int) -> str:
    """The error in words: what the kernel says of it leads nobody there."""
    if code in (errno.ENOSPC, errno.EUSERS):
        return "user namespaces are forbidden here (sysctl user.max_user_namespaces)"
    if code == errno.EPERM:
        return (
            "user namespaces are forbidden here: to ordinary users (sysctl "
            "kernel.unprivileged_userns_clone), or in this container (its seccomp filter)"
        )
    return f"user namespace: {os.strerror(code)}"


def _apparmor_hint() -> str:
    """What else to say where AppArmor leaves an ordinary user's namespaces without rights."""
    switch = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if not switch.exists() or switch.read_text().strip() != "1":
        return ""
    return " (AppArmor's rule: sysctl kernel.apparmor_restrict_unprivileged_userns)"


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _map_ids(pid: int) -> bytes:
    """Map the ids of the new user namespace; _EVERY_ID or, with only one to give, _ONE_ID."""
    uid, gid = os.getuid(), os.getgid()
    proc = Path(f"/proc/{pid}")
    if uid == 0:
        try:
            (proc / "uid_map").write_text(f"0 0 {_IDS}\n")
            (proc / "gid_map").write_text(f"0 0 {_IDS}\n")
            return _EVERY_ID
        except OSError:
            # Root of a container that has few ids itself.
            pass
    elif (first := _subids("uid")) and (first_group := _subids("gid")):
        rest = str(_IDS - 1)
        users = ["newuidmap", str(pid), "0", str(uid), "1", "1", first, rest]
        groups = ["newgidmap", str(pid), "0", str(gid), "1", "1", first_group, rest]
        try:
            if all(subprocess.run(argv, check=False).returncode == 0 for argv in (users, groups)):
                return _EVERY_ID
        except FileNotFoundError:
            pass
    (proc / "setgroups").write_text("deny")
    (proc / "uid_map").write_text(f"0 {uid} 1\n")
    (proc / "gid_map").write_text(f"0 {gid} 1\n")
    return _ONE_ID


def _subids(kind: str) -> str:
    """The first of this user's subordinate ids, "" if there are too few."""
    me = (pwd.getpwuid(os.getuid()).pw_name, str(os.getuid()))
    file = Path(f"/etc/sub{kind}")
    for line in file.read_text().splitlines() if file.exists() else ():
        owner, _, rest = line.partition(":")
        first, _, count = rest.partition(":")
        if owner in me and int(count) >= _IDS - 1:
            return first
    return ""


def _board(config: Config, listener: socket.socket, ready: Any, *, every_id: bool) -> None:
    """Process 1 of the board."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE, "private mounts")
    top = Path(config.mount_dir)
    _mount("tmpfs", top, "tmpfs", _MS_NODEV, f"mode=755,size={config.disk_mb}m")
    binfmt = _register_emulator(config, top)
    root = top / "root"
    for name in ("root", "upper", "work"):
        (top / name).mkdir()
    # Relative, because overlayfs gives a meaning to colons and commas in a path.
    os.chdir(config.base)
    layers = f"lowerdir=.,upperdir={top}/upper,workdir={top}/work,userxattr"
    _mount("overlay", root, "overlay", 0, layers)
    _devices(root)
    _mount("tmpfs", root / "run", "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=16m")
    (root / "run/sshd").mkdir(mode=0o755)
    _proc_and_sys(config, top, root)
    _write_files(config, root, every_id=every_id)
    socket.sethostname(config.hostname)
    _loopback_up()
    _enter(root)
    _try_emulator(config)
    ready.write(b"{}\n")
    ready.close()
    try:
        _serve(config, listener, every_id=every_id)
    finally:
        os.close(binfmt)


def _register_emulator(config: Config, top: Path) -> int:
    """Register the emulator for this namespace; returns the fd that keeps it registered.

    The emulator is opened now (flag F), so it need not be inside the board; P keeps
    argv[0]. A kernel without private registrations leaves the machine-wide one in force.
    """
    folder = top / "binfmt"
    folder.mkdir()
    try:
        _mount("binfmt_misc", folder, "binfmt_misc", 0)
    except Forbidden:
        return os.open(folder, os.O_RDONLY)
    magic = _MAGIC[config.arch]
    qemu = outside_rule(Path(config.qemu), magic, _MASK, top)
    rule = b":".join((b"", b"edgepack", b"M", b"", magic, _MASK, os.fsencode(qemu), b"FP"))
    (folder / "register").write_bytes(rule)
    return os.open(folder, os.O_RDONLY)


def outside_rule(emulator: Path, magic: bytes, mask: bytes, folder: Path) -> Path:
    """The emulator, or a copy of it in `folder` that the rule with `magic` and `mask` leaves alone.

    On an ARM computer the rule fits the emulator of the same architecture, too, and the kernel
    would start it with itself, until it gives up (ELOOP).
    """
    wanted, bits = (_unescaped(text) for text in (magic, mask))
    data = bytearray(emulator.read_bytes())
    if any((a ^ b) & bit for a, b, bit in zip(data, wanted, bits, strict=False)):
        return emulator
    data[_PADDING] = 1
    copy = folder / emulator.name
    copy.write_bytes(data)
    copy.chmod(0o755)
    return copy


def _unescaped(text: bytes) -> bytes:
    return text.decode("unicode_escape").encode("latin-1")


def _try_emulator(config: Config) -> None:
    child = os.fork()
    if child == 0:
        try:
            os.execve("/bin/true", ["true"], config.env)  # noqa: S606 - no shell wanted
        except OSError as error:
            os._exit(error.errno or 1)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == errno.ENOEXEC:
        raise Forbidden(
            "the kernel is older than 6.7 and has no machine-wide registration of "
            f"qemu-{config.arch}"
        )
    if code:
        raise OSError(f"{config.qemu} {config.env} fails to run the board's /bin/true: {code}")


def _devices(root: Path) -> None:
    dev = root / "dev"
    _mount("tmpfs", dev, "tmpfs", _MS_NOSUID, "mode=755,size=1m")
    (dev / "pts").mkdir()
    (dev / "shm").mkdir()
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        (dev / name).touch()
        _mount(f"/dev/{name}", dev / name, None, _MS_BIND)
    _mount("devpts", dev / "pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=620")
    _mount("tmpfs", dev / "shm", "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=1777,size=256m")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1"}
    for name, target in (links | {"stderr": "fd/2"}).items():
        (dev / name).symlink_to(target)


def _proc_and_sys(config: Config, top: Path, root: Path) -> None:
    _mount("proc", root / "proc", "proc", _MS_NOSUID | _MS_NODEV)
    (top / "proc").mkdir()
    for name, text in config.proc.items():
        file = top / "proc" / name
        file.write_text(text)
        _mount(file, root / "proc" / name, None, _MS_BIND)
    _mount("tmpfs", root / "sys", "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=4m")
    for name, text in config.sys.items():
        file = root / "sys" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    _mount("tmpfs", root / "sys", "tmpfs", _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def _write_files(config: Config, root: Path, *, every_id: bool) -> None:
    for entry in config.files:
        file = root / entry["path"].lstrip("/")
        made = [folder for folder in (file.parent, *file.parent.parents) if not folder.exists()]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(entry["data"]))
        file.chmod(entry["mode"])
        for folder in made:
            folder.chmod(0o755 if entry["mode"] & 0o044 else 0o700)
        if entry["owner"] == "pi" and every_id:
            for path in (file, *made):
                os.chown(path, config.pi_uid, config.pi_uid)


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _enter(root: Path) -> None:
    """Make `root` the root of this mount namespace and let go of the old one."""
    os.chdir(root)
    _check(_libc.syscall(_SYS_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _MNT_DETACH), "letting go of the old root")
    os.chdir("/")


def _serve(config: Config, listener: socket.socket, *, every_id: bool) -> NoReturn:
    """Hand each connection to an sshd of the board, as inetd would."""
    # Children that end are not waited for, whoever started them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            os.setsid()
            if not every_id:
                _become_pi(config.pi_uid)
            os.dup2(connection.fileno(), 0)
            os.dup2(connection.fileno(), 1)
            os.execve(config.sshd[0], config.sshd, config.env)  # noqa: S606 - no shell wanted
        connection.close()


def _become_pi(uid: int) -> None:
    """With one id only: show it as pi's, so that sshd is pi's own and switches to nobody."""
    outer = (os.getuid(), os.getgid())
    _unshare(_NEW_USER, "nested user namespace")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {outer[0]} 1\n")
    Path("/proc/self/gid_map").write_text(f"{uid} {outer[1]} 1\n")


def _unshare(flags: int, what: str) -> None:
    _check(_libc.unshare(flags), what)


def _mount(
    source: str | Path, target: str | Path, kind: str | None, flags: int, data: str | None = None
) -> None:
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode() if data else None,
    )
    _check(result, f"mounting {kind or source} on {target}")


def _check(result: int, what: str) -> None:
    if result < 0:
        raise Forbidden(f"{what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()

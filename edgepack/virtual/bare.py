"""Root file systems without any library: busybox, a static sshd and scp, and nothing else."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path

from edgepack.base.paths import atomic_dir, cache_dir, locked
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.boards import Board
from edgepack.virtual import apt
from edgepack.virtual.errors import RootfsError
from edgepack.virtual.rootfs import PI_UID
from edgepack.virtual.sshd import DROPBEAR
from edgepack.virtual.static_sshd import static_sshd

NO_LIBRARY = "none"
"""The suite of such boards."""

# The Debian release that the static busybox comes from: it needs nothing of it.
_SUITE = "bookworm"
# What OpenWrt's busybox has by default, as far as Debian's has it, and what starts a board.
_COMMANDS = """
[ ash awk basename cat chgrp chmod chown chroot clear cmp cp cut date dd df dirname dmesg du echo
egrep env expr false fgrep find free grep gunzip gzip halt head hexdump hostname id ifconfig
init ip kill killall less linux32 ln logger login ls md5sum mkdir mkfifo mknod mktemp mount mv nc
netstat passwd pidof ping pivot_root poweroff printf ps pwd readlink reboot reset rm rmdir
route sed seq setsid sh sha256sum sleep sort start-stop-daemon strings switch_root sync sysctl tail
tar tee test time top touch tr true umount uname uniq uptime vi wc wget which xargs yes zcat
"""
_FOLDERS = ("dev", "home", "proc", "root", "run", "sys", "tmp", "var/log", "var/tmp")
_FILES = {
    "etc/passwd": (
        "root:x:0:0:root:/root:/bin/sh\n"
        f"pi:x:{PI_UID}:{PI_UID}::/home/pi:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/:/bin/false\n"
    ),
    "etc/group": f"root:x:0:\npi:x:{PI_UID}:\nnogroup:x:65534:\n",
    "etc/shadow": "root:*:19000::::::\npi:*:19000::::::\n",
    "etc/shells": "/bin/sh\n",
    "etc/hosts": "127.0.0.1 localhost\n",
    # For the init "busybox": scripts of /etc/init.d in order, as of Buildroot.
    "etc/inittab": (
        "::sysinit:/bin/sh /etc/rc start\n"
        f"::respawn:{DROPBEAR.daemon} -F\n"
        "::shutdown:/bin/sh /etc/rc stop\n"
    ),
    "etc/rc": "for script in /etc/init.d/S??*; do\n[ ! -x $script ] || $script $1\ndone\n",
}


def bare_rootfs(board: Board, *, progress: Progress = NO_PROGRESS) -> Path:
    """The folder with a root file system for `board`'s architecture that holds no library.

    No loader either, nor anything of a C library: what runs there brings all it needs. Belongs
    to the calling user, as that of `rootfs.rootfs` does. Made once (about 10 s, 2 MB), then taken
    from the cache. Raises RootfsError, ToolchainError, ToolMissingError.
    """
    sshd = static_sshd(board, progress=progress)
    recipe = json.dumps([sshd.name, _SUITE, _COMMANDS, _FOLDERS, _FILES])
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    folder = cache_dir() / "rootfs" / f"{NO_LIBRARY}-{board.debian_arch}-{digest}"
    with locked(folder):
        if not folder.exists():
            progress.step(f"fetching busybox for {board.debian_arch}")
            with atomic_dir(folder) as work:
                _fill(work, sshd, board.debian_arch)
    return folder


def _fill(root: Path, sshd: Path, arch: str) -> None:
    for name in ("bin", "etc", "usr/bin", "usr/sbin", *_FOLDERS):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    with tempfile.TemporaryDirectory(dir=root.parent) as name:
        apt.unpack(["busybox-static"], Path(name), suite=_SUITE, arch=arch)
        busybox = Path(name) / "bin/busybox"
        if not busybox.is_file():
            raise RootfsError(f"busybox-static of {_SUITE} has no {busybox.name}")
        shutil.copy(busybox, root / "bin")
    for command in _COMMANDS.split():
        (root / "bin" / command).symlink_to("busybox")
    shutil.copy(sshd / "dropbear", root / "usr/sbin")
    shutil.copy(sshd / "scp", root / "usr/bin")
    for file, text in _FILES.items():
        (root / file).write_text(text)

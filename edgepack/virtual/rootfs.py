"""Root file systems of virtual boards: Debian userlands with a real sshd, cached per suite."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from edgepack.base.paths import atomic_dir, cache_dir, locked
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.virtual import apt
from edgepack.virtual.errors import RootfsError

PI_UID = 1000

# What a small Raspberry Pi OS has and a deployment over ssh touches.
_PACKAGES = (
    *("base-files", "bash", "coreutils", "dash", "diffutils", "findutils", "grep", "gzip"),
    *("hostname", "iproute2", "libc-bin", "libc6", "libgcc-s1", "libstdc++6", "mawk", "mount"),
    *("openssh-server", "openssh-sftp-server", "procps", "sed", "tar", "util-linux"),
)
_EXCLUDE = (
    *("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*"),
    *("/usr/share/perl5/*", "/usr/share/bash-completion/*", "/usr/share/lintian/*"),
    *("/usr/share/perl/*", "/usr/lib/*/perl/*", "/usr/lib/*/perl-base/*"),
    *("/usr/lib/*/gconv/*", "/usr/lib/locale/*"),
)
# Device nodes that only root can make or copy (each board has its own /dev), and what belongs
# to apt's own user where that user could write to it.
_EMPTIED = ("dev", "var/cache/apt", "var/lib/apt")
_FOLDERS = (*_EMPTIED, "home", "proc", "root", "run", "sys", "tmp", "var/log", "var/tmp")
_CONFIG = {
    "etc/passwd": (
        "root:x:0:0:root:/root:/bin/bash\n"
        "sshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n"
        f"pi:x:{PI_UID}:{PI_UID}::/home/pi:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    # No group `tty`: where only one user id is mapped, sshd could not give a terminal to it.
    "etc/group": f"root:x:0:\nshadow:x:42:\nutmp:x:43:\npi:x:{PI_UID}:\nnogroup:x:65534:\n",
    "etc/shadow": "root:*:19000::::::\nsshd:*:19000::::::\npi:*:19000::::::\n",
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files\n",
    "etc/shells": "/bin/sh\n/bin/bash\n",
    # Logins by key only; the sftp server is OpenSSH's own, with posix-rename and fsync.
    "etc/ssh/sshd_config": (
        "HostKey /etc/ssh/ssh_host_ed25519_key\n"
        "AuthenticationMethods publickey\n"
        "PermitRootLogin prohibit-password\n"
        "UsePAM no\n"
        "UseDNS no\n"
        "PrintMotd no\n"
        "PrintLastLog no\n"
        "LogLevel ERROR\n"
        "Subsystem sftp /usr/lib/openssh/sftp-server\n"
        "Include /etc/ssh/sshd_config.d/*.conf\n"
    ),
}
# Links that maintainer scripts would have made.
_LINKS = {"usr/bin/awk": "mawk", "etc/mtab": "/proc/self/mounts"}


def rootfs(suite: str, arch: str, *, progress: Progress = NO_PROGRESS) -> Path:
    """The folder with the root file system of a Debian `suite` ("bullseye") for `arch` ("armhf").

    All files belong to the calling user, who is root inside a board; homes, keys and host
    keys are not in it but come with each board. Made once (about 10 s, 35 to 75 MB), then taken
    from the cache. Raises RootfsError, ToolMissingError.
    """
    recipe = json.dumps([_PACKAGES, _EXCLUDE, _EMPTIED, _FOLDERS, _CONFIG, _LINKS])
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    folder = cache_dir() / "rootfs" / f"{suite}-{arch}-{digest}"
    with locked(folder):
        if not folder.exists():
            progress.step(f"fetching the {suite} root file system for {arch}")
            with atomic_dir(folder) as work:
                apt.unpack(_PACKAGES, work, suite=suite, arch=arch, exclude=_EXCLUDE)
                _configure(work)
    return folder


def _configure(root: Path) -> None:
    for name in _EMPTIED:
        shutil.rmtree(root / name, ignore_errors=True)
    for name in _FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "var/tmp").chmod(0o1777)
    for name, text in _CONFIG.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.write_text(text)
    for name, target in _LINKS.items():
        link = root / name
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    for name in ("bin/sh", "usr/sbin/sshd", "usr/lib/openssh/sftp-server"):
        if not (root / name).exists():
            raise RootfsError(f"{root}: the unpacked packages lack /{name}")

"""Root file systems of virtual boards: Debian userlands with a real sshd, cached per suite."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
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


@dataclass(frozen=True, kw_only=True)
class Init:
    """A process 1 that starts services: what is in a root file system for it."""

    packages: tuple[str, ...] = ()
    accounts: tuple[tuple[str, str], ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)


# What only costs time where there is one disk, one network card and no console.
_UNWANTED_UNITS = (
    *("getty.target", "systemd-ask-password-wall.path", "systemd-logind.service"),
    *("systemd-update-utmp.service", "systemd-update-utmp-runlevel.service"),
    *("systemd-random-seed.service", "systemd-remount-fs.service"),
)
INITS: Mapping[str, Init] = {
    # A shell script that starts sshd and nothing else.
    "script": Init(),
    "systemd": Init(
        packages=("dbus", "systemd"),
        accounts=(("messagebus:x:101:102::/nonexistent:/usr/sbin/nologin", "messagebus:x:102:"),),
        files={
            "etc/machine-id": "0123456789abcdef0123456789abcdef\n",
            "etc/systemd/system/sshd.service": (
                "[Service]\n"
                "RuntimeDirectory=sshd\n"
                "ExecStart=/usr/sbin/sshd -D\n"
                "Restart=always\n"
                "KillMode=process\n"
            ),
        },
        links={
            "etc/systemd/system/default.target": "/lib/systemd/system/multi-user.target",
            "etc/systemd/system/multi-user.target.wants/sshd.service": "../sshd.service",
            **{f"etc/systemd/system/{unit}": "/dev/null" for unit in _UNWANTED_UNITS},
        },
    ),
    # As of Buildroot and of many a vendor's board: scripts of /etc/init.d in order.
    "busybox": Init(
        packages=("busybox-static",),
        files={
            "etc/inittab": (
                "::sysinit:/bin/sh /etc/rc start\n"
                "::respawn:/usr/sbin/sshd -D\n"
                "::shutdown:/bin/sh /etc/rc stop\n"
            ),
            "etc/rc": (
                "for script in /etc/init.d/S??*; do\n[ ! -x $script ] || $script $1\ndone\n"
            ),
        },
    ),
}


OPENCL_PACKAGES = ("ocl-icd-libopencl1", "pocl-opencl-icd")
"""An OpenCL driver that computes on the CPU, for boards with a GPU: 200 MB unpacked."""


def rootfs(
    suite: str,
    arch: str,
    *,
    init: str = "script",
    opencl: bool = False,
    progress: Progress = NO_PROGRESS,
) -> Path:
    """The folder with the root file system of a Debian `suite` ("bullseye") for `arch` ("armhf").

    `init` is what its process 1 will be, one of INITS; with `opencl` it has a driver of OpenCL.

    All files belong to the calling user, who is root inside a board; homes, keys and host
    keys are not in it but come with each board. Made once (about 10 s, 35 to 75 MB), then taken
    from the cache. Raises RootfsError, ToolMissingError.
    """
    own = INITS[init]
    folder = name_rootfs(suite, arch, init=init, opencl=opencl)
    with locked(folder):
        if not folder.exists():
            progress.step(f"fetching the {suite} root file system for {arch}")
            with atomic_dir(folder) as work:
                packages = (*_PACKAGES, *own.packages, *(OPENCL_PACKAGES if opencl else ()))
                apt.unpack(packages, work, suite=suite, arch=arch, exclude=_EXCLUDE)
                _configure(work, own)
    return folder


def name_rootfs(suite: str, arch: str, *, init: str, opencl: bool = False) -> Path:
    """The folder that `rootfs` gives, whether it is made or not."""
    own = INITS[init]
    recipe = [_PACKAGES, _EXCLUDE, _EMPTIED, _FOLDERS, _CONFIG, _LINKS]
    recipe += [asdict(own)] if own != Init() else []
    recipe += [OPENCL_PACKAGES] if opencl else []
    digest = hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:12]
    return cache_dir() / "rootfs" / f"{suite}-{arch}-{digest}"


def _configure(root: Path, own: Init) -> None:
    for name in _EMPTIED:
        shutil.rmtree(root / name, ignore_errors=True)
    for name in _FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "var/tmp").chmod(0o1777)
    for name, text in {**_CONFIG, **own.files}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.write_text(text)
    for user, group in own.accounts:
        for name, line in (("etc/passwd", user), ("etc/group", group)):
            with (root / name).open("a") as accounts:
                accounts.write(f"{line}\n")
    for name, target in {**_LINKS, **own.links}.items():
        link = root / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    for name in ("bin/sh", "usr/sbin/sshd", "usr/lib/openssh/sftp-server"):
        if not (root / name).exists():
            raise RootfsError(f"{root}: the unpacked packages lack /{name}")

"""Virtual boards for tests."""

from __future__ import annotations

import contextlib
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepack import virtual
from edgepack.base import paths
from edgepack.base.paths import atomic_dir, cache_dir, locked
from edgepack.device import Address, SshOptions
from edgepack.device.ssh import SshDevice
from edgepack.virtual import VirtualBoard, apt
from tests.support import require_tool

# What is named by what it is made from: it takes long to make, and nobody changes it.
_SHARED = (
    "compiled", "cycles", "device-tool", "examples", "kernel", "oci", "opencv", "plan-runner",
    "rootfs", "runtime", "sdk", "static-sshd", "zig",
)  # fmt: skip


@contextlib.contextmanager
def own_cache(*also: str) -> Iterator[Path]:
    """A cache of our own, but for what takes long to make: `_SHARED` and the entries `also`.

    So no board of the user's, and none of a test that runs at the same time, is touched;
    boards that are left are stopped.
    """
    real = paths.cache_dir()
    with tempfile.TemporaryDirectory(prefix="edgepack-test-") as name:
        for shared in _SHARED:
            (real / shared).mkdir(exist_ok=True)
        for shared in {*_SHARED, *also}:
            (Path(name) / shared).symlink_to(real / shared)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(paths, "_cache_dir", Path(name))
            try:
                yield Path(name)
            finally:  # of a test that fails, too
                for board in virtual.list_running():
                    virtual.down(board.name)


@contextlib.contextmanager
def own_boards() -> Iterator[Path]:
    """`own_cache` for virtual boards, with the tools they need."""
    require_tool("qemu-arm-static", "qemu-arm")
    require_tool("mmdebstrap")
    with own_cache() as folder:
        yield folder


def login(board: VirtualBoard, user: str) -> SshDevice:
    """A connection to `board` as `user` ("pi" or "root")."""
    options = SshOptions(
        use_config=False,
        identity=board.key_file,
        identities_only=True,
        host_keys=(board.host_key,),
    )
    return SshDevice(Address(host=board.host, user=user, port=board.port), options=options)


def unpacked(name: str, packages: list[str], *, suite: str, arch: str) -> Path:
    """Debian packages with all they need, in a folder of the cache."""
    folder = cache_dir() / "oci" / f"test-{name}-{suite}-{arch}"
    with locked(folder):
        if not folder.exists():
            with atomic_dir(folder) as work:
                apt.unpack(packages, work / "root", suite=suite, arch=arch)
    return folder / "root"


def tar_of_missing(whole: Path, base: Path, archive: Path) -> None:
    """Write to `archive` what `whole` has and the root file system `base` has not, but no docs."""
    with tarfile.open(archive, "w") as out:
        for path in sorted(whole.rglob("*")):
            name = path.relative_to(whole)
            wanted = name.parts[0] in ("bin", "sbin", "lib", "usr", "etc")
            docs = name.parts[:2] == ("usr", "share") and name.parts[2:3] not in (
                ("dpkg",),
                ("dbus-1",),
            )
            if wanted and not docs and not (base / name).exists() and not path.is_dir():
                out.add(path, str(name))

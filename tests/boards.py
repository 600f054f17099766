"""Virtual boards for tests."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepack import paths, virtual
from edgepack.device import Address, SshOptions
from edgepack.device.ssh import SshDevice
from edgepack.virtual import VirtualBoard
from tests.support import require_tool

# What takes long to make, and no test changes.
_SHARED = ("device-tool", "kernel", "oci", "opencv", "rootfs", "zig")


@contextlib.contextmanager
def own_boards() -> Iterator[Path]:
    """A cache of our own, so that no board of the user's is touched; those left are stopped."""
    require_tool("qemu-arm-static", "qemu-arm")
    require_tool("mmdebstrap")
    real = paths.cache_dir()
    with tempfile.TemporaryDirectory(prefix="edgepack-test-") as name:
        for shared in _SHARED:
            (real / shared).mkdir(exist_ok=True)
            (Path(name) / shared).symlink_to(real / shared)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(paths, "_cache_dir", Path(name))
            yield Path(name)
            for board in virtual.list_running():
                virtual.down(board.name)


def login(board: VirtualBoard, user: str) -> SshDevice:
    """A connection to `board` as `user` ("pi" or "root")."""
    options = SshOptions(
        use_config=False,
        identity=board.key_file,
        identities_only=True,
        host_keys=(board.host_key,),
    )
    return SshDevice(Address(host=board.host, user=user, port=board.port), options=options)

"""What a bundle's app does under qemu-user, counted: guest instructions of one run."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from bench.arm import build_plugin
from edgepack.boards import get_board
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.manifest import APP
from tests.support import require_tool

_QEMU = {"armhf": "qemu-arm", "arm64": "qemu-aarch64"}


def instructions(bundle: Bundle, *words: str | Path) -> int:
    """Of edgepack-run with `words` and one thread, its start among them; the run must succeed.

    Libraries are those of Debian's cross compiler.
    """
    board = get_board(bundle.manifest.board)
    assert board.virtual is not None
    qemu = require_tool(_QEMU[board.debian_arch])  # the static one takes no plugins
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        out = Path(folder) / "count"
        command = ["env", "-i", qemu, "-cpu", board.virtual.qemu_cpu, "-L", f"/usr/{board.triple}"]
        plugin = ["-plugin", f"{build_plugin()},out={out}"]
        app = [bundle.file(APP), "--threads", "1", *words]
        done = subprocess.run(
            [*command, *plugin, *app], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return int(out.read_text())

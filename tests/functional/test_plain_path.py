"""Load, run, exit: what that takes of a board does not grow with what else the program can do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

from bench.arm import build_plugin
from edgepack.boards import get_board
from tests.means import SHAPE, means_app
from tests.support import require_tool

# Of the program of c6abe71, which had no postprocessing, live sources or server, with
# this model: instructions from start to end, pages of 4 KB that it touched, that it wrote to.
BEFORE = (1_376_317, 396, 47)


def test_a_run_takes_no_more_than_it_ever_did(tmp_path: Path) -> None:
    app, board = means_app(tmp_path, "rasp3b"), get_board("rasp3b")
    np.save(tmp_path / "x.npy", np.zeros(SHAPE, np.float32))
    plugin = build_plugin(Path(__file__).parents[1] / "pages.c")
    qemu = ["env", "-i", require_tool("qemu-arm"), "-cpu", "max", "-L", f"/usr/{board.triple}"]
    words = [app, "--threads", "1", "--input", tmp_path / "x.npy"]
    subprocess.run(
        [*qemu, "-plugin", f"{plugin},out={tmp_path / 'count'}", *words],
        check=True,
        capture_output=True,
    )
    taken = tuple(map(int, (tmp_path / "count").read_text().split()))
    print(f"instructions, pages, pages written: {taken}, of {BEFORE}")
    assert all(now <= before for now, before in zip(taken, BEFORE, strict=True))

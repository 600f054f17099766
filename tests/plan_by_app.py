"""Runs compiled models by the app of this machine, as a release is run."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgepack.boards import get_board
from edgepack.native.app import build_runtime
from edgepack.native.toolchain import select


def run_by_app(model: Path, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of the model whose compiled files are in a folder.

    Raises RuntimeError with what the app says if it fails.
    """
    board = get_board("local")
    made = build_runtime(board, select(board).toolchain)
    plan = json.loads((model / "graph.json").read_text(encoding="utf-8"))
    app = made.gpu_app if "gpu" in plan else made.app
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        bundle = Path(folder)
        (bundle / "manifest.json").write_text("{}")
        (bundle / "model").symlink_to(model.resolve())
        words = [str(app), "--bundle", folder]
        for index, array in enumerate(inputs):
            np.save(bundle / f"in{index}.npy", array)
            words += ["--input", f"{folder}/in{index}.npy"]
        outputs = [bundle / f"out{index}.npy" for index in range(len(plan["outputs"]))]
        for path in outputs:
            words += ["--output", str(path)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        return [np.load(path) for path in outputs]

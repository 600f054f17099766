"""What kernels compute that make do with little scratch memory, on every instruction set."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.headroom import LEAN, branches, joint, large_window, residual, rows, stem
from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target, save_cases, wrong_outputs


@every_target
def test_kernels_with_little_room(board: str, cpu: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    for make, shape in (
        (stem, (1, 3, 224, 224)),
        (large_window, (1, 3, 150, 134)),
        (rows, (1, 64, 6, 320)),
        (joint, (1, 16, 48, 48)),
        (residual, (1, 64, 24, 24)),
        (branches, (1, 48, 48, 48)),
    ):
        net, folder = Builder(), tmp_path / make.__name__
        folder.mkdir()
        path = save_cases(folder / "model.onnx", net, {"x": shape}, {"y": make(net)})
        x = rng.standard_normal(shape, "float32")
        _, got = compile_and_run(path, [x], board, cpu, folder, growth=LEAN)
        assert wrong_outputs(path, [x], got) == []

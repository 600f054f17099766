"""What kernels compute that make do with little scratch memory, on every instruction set."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.headroom import (
    HEADS,
    LEAN,
    branches,
    dense,
    halves,
    heads,
    joint,
    large_window,
    pooled,
    pooled_by_windows,
    residual,
    rows,
    stem,
)
from tests.onnx_models import Builder
from tests.targets import compile_and_run, every_target_in_parts, save_cases, wrong_outputs

_NETWORKS = (
    (stem, (1, 3, 224, 224)),
    (large_window, (1, 3, 150, 134)),
    (rows, (1, 64, 6, 320)),
    (joint, (1, 16, 48, 48)),
    (heads, HEADS),
    (residual, (1, 64, 24, 24)),
    (pooled, (1, 128, 508, 1)),
    (pooled_by_windows, (1, 3, 148, 132)),
    (branches, (1, 48, 48, 48)),
    (dense, (1, 16, 56, 56)),
    (halves, (1, 16, 40, 40)),
)


@every_target_in_parts
def test_kernels_with_little_room(board: str, cpu: str, part: slice, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    for make, shape in _NETWORKS[part]:
        net, folder = Builder(), tmp_path / make.__name__
        folder.mkdir()
        path = save_cases(folder / "model.onnx", net, {"x": shape}, {"y": make(net)})
        x = rng.standard_normal(shape, "float32")
        _, got = compile_and_run(path, [x], board, cpu, folder, growth=LEAN)
        assert wrong_outputs(path, [x], got) == []

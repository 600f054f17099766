"""How far a layer's result may be off."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgepack.flow.project import load_project
from edgepack.flow.tolerances import HALF_TOLERANCE, tolerance_of_layers


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", 1e-4),
        ('precision = "float16"\n', HALF_TOLERANCE),
        ('precision = "float16"\ntolerance = 0.001\n', 0.001),
        ("tolerance = 0.5\n", 0.5),
    ],
)
def test_layers_in_half_precision_may_be_further_off(
    tmp_path: Path, lines: str, expected: float
) -> None:
    (tmp_path / "m.onnx").touch()
    file = tmp_path / "edgepack.toml"
    file.write_text(f'[project]\nmodel = "m.onnx"\nboard = "rasp5b"\n{lines}')
    assert tolerance_of_layers(load_project(file, {})) == expected

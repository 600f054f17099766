"""The exporters' examples say what they need."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import script_dependencies

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples" / "exporters").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.stem))
def test_an_example_pins_what_it_imports(example: Path) -> None:
    source = example.read_text()
    pins = dict(package.split("==") for package in script_dependencies(source))
    page = (ROOT / "docs" / "guides" / "exporters.md").read_text()
    for name, version in pins.items():
        assert f"{name}=={version}" in page
    exporters = {"keras": "tf2onnx", "paddle": "paddle2onnx", "sklearn": "skl2onnx"}
    assert exporters[example.stem.removesuffix("_digits")] in pins

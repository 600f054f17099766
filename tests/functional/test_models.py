"""The short form of `./dev models`: a streaming model, a second of its minute of speech."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import models
from tests.support import require_tool


@pytest.mark.parametrize("target", [pytest.param("local", marks=pytest.mark.slow), "rasp3b"])
def test_a_voice_activity_detector_carries_its_state(target: str, tmp_path: Path) -> None:
    require_tool("qemu-arm-static")
    silero = models.MODELS[0]
    assert silero.name == "silero-vad"
    short = replace(silero, inputs=lambda loaded: silero.inputs(loaded)[300:330], emulated=30)
    row = models.check(short, target, tmp_path)
    assert (row.verdict, row.runs) == ("equal", 30)

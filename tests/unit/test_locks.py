"""What ./dev installs is named by its content: zig, from there, makes what devices run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", [f"requirements{of}.lock" for of in ("", "-dev", "-docs")])
def test_every_requirement_has_hashes(name: str) -> None:
    text = re.sub(r"\\\n", " ", (ROOT / name).read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) > 10
    marker = r"( ; (python_version < \"3\.\d+\"|platform_machine == \"x86_64\"))?"
    hashes = r"( +--hash=sha256:[0-9a-f]{64})+"
    for line in lines:
        assert re.fullmatch(rf"[\w.-]+==[\w.]+{marker}{hashes}", line), line[:80]
    script = (ROOT / "dev").read_text()
    installs = re.findall(r"pip install (?:[^;]|\\\n)*?;", script)
    assert installs
    # What comes from an index; a wheel that was made here has no index to come from.
    from_index = [install for install in installs if "--no-index" not in install]
    assert from_index
    assert all("--require-hashes" in install for install in from_index)

"""Where hard links are refused, a release is a copy: what room it takes is known beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgepack.bundle.bundle import Bundle
from edgepack.bundle.manifest import PARAMS
from edgepack.device import DiskFullError
from tests.bundles import FakeTool
from tests.device_tool import host_tool
from tests.fake_app import fake_bundle
from tests.faults.preload import environment
from tests.faults.rig import Rig

MARGIN = 1 << 20
"""What the device tool leaves free: kMarginBytes in install.cc."""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bundle, Bundle]]:
    """Two releases that differ in their weights."""
    folder = tmp_path_factory.mktemp("bundles")
    tool = FakeTool(path=host_tool(faults=True))
    weights = np.random.default_rng(1).bytes(3_000_000)
    yield (
        fake_bundle(folder / "a", weights=weights, tool=tool),
        fake_bundle(folder / "b", weights=weights[::-1], tool=tool),
    )


def rig(root: Path, free: int, **settings: str) -> Rig:
    """A device with so many bytes free."""
    root.mkdir(exist_ok=True)
    return Rig(
        root=root, tool=host_tool(faults=True), environment=environment(free=free, **settings)
    )


def size(bundle: Bundle) -> int:
    return sum(entry.size for entry in bundle.manifest.files.values())


def test_a_first_release(bundles: tuple[Bundle, Bundle], tmp_path: Path) -> None:
    first, _ = bundles
    once = size(first) + MARGIN
    assert rig(tmp_path / "links", once).deploy(first).outcome == "deployed"
    copies = tmp_path / "copies"
    for free in (once, 2 * size(first) + MARGIN - 1):
        with pytest.raises(DiskFullError, match="no hard links there: a release is a copy"):
            rig(copies, free, links="no").deploy(first)
        assert {path.name for path in copies.rglob("*") if path.is_file()} == {".lock"}
    report = rig(copies, 2 * size(first) + MARGIN, links="no").deploy(first)
    assert report.outcome == "deployed"
    files = [path for path in (copies / "releases").rglob("*") if path.is_file()]
    assert {path.stat().st_nlink for path in files} == {1}


def test_the_next_and_the_same_again(bundles: tuple[Bundle, Bundle], tmp_path: Path) -> None:
    first, second = bundles
    root = tmp_path / "device"
    rig(root, 1 << 40, links="no").deploy(first)
    needed = second.manifest.files[PARAMS].size + size(second) + MARGIN
    with pytest.raises(DiskFullError, match="a release is a copy"):
        rig(root, needed - 1, links="no").deploy(second)
    assert rig(root, needed, links="no").current() == first.manifest.release
    assert rig(root, needed, links="no").deploy(second).outcome == "deployed"
    # Nothing to be stored is nothing to be refused.
    assert rig(root, 0, links="no").deploy(second).outcome == "unchanged"
    # One that is there takes the room of a file at a time.
    back = max(entry.size for entry in first.manifest.files.values()) + MARGIN
    with pytest.raises(DiskFullError, match="a release is a copy"):
        rig(root, back - 1, links="no").deploy(first)
    assert rig(root, back, links="no").deploy(first).outcome == "activated"

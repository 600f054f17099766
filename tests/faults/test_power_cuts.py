"""The plug of a full-system board is pulled at any moment of a deploy, and it boots again.

After each cut: what is current is the old or the new release, every hash of it right; what a
deploy reported is there; the file system is clean once its journal was replayed; the next
deploy completes, and the one after changes nothing. With glibc on it, and without any library.

The same for the tool alone, killed at its steps on a light board without any library.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from edgepack import virtual
from edgepack.base.errors import ConnectError, EdgepackError, RemoteError
from edgepack.boards import Board, get_board
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.manifest import MANIFEST_NAME
from edgepack.deploy.transfer import Installed
from edgepack.device import open_virtual
from edgepack.virtual import VirtualBoard, state
from tests.boards import own_cache
from tests.bundles import FakeTool
from tests.device_tool import board_tool
from tests.fake_app import fake_bundle
from tests.faults.rig import Rig
from tests.support import require_tool

SEED = 20261121
PROFILES = ("rasp3b", "alpine-armv7")
RIG = Rig(root=Path("/home/pi/edgepack/tiny"), tool=Path("/home/pi/edgepack-device"))
_DISK_MB = 512


@pytest.fixture(scope="module", autouse=True)
def cache() -> Iterator[None]:
    """A board of our own, so that none of the user's is touched."""
    require_tool("qemu-system-aarch64")
    require_tool("mmdebstrap")
    with own_cache():
        yield


@pytest.fixture(scope="module", params=PROFILES)
def profile(request: pytest.FixtureRequest) -> Board:
    return get_board(request.param)


@pytest.fixture(scope="module")
def bundles(profile: Board, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Bundle]:
    """Two releases that differ in a tenth of the weights."""
    folder = tmp_path_factory.mktemp("bundles")
    weights = np.random.default_rng(1).integers(0, 256, 4_400_000, dtype=np.uint8)
    changed = weights.copy()
    changed[2_000_000:2_400_000] ^= 255
    tool = FakeTool(path=board_tool(profile))
    first, second = (
        fake_bundle(folder / name, board=profile, weights=content.tobytes(), tool=tool)
        for name, content in (("first", weights), ("second", changed))
    )
    return first, second


@dataclass
class Bench:
    """The board, plugged in."""

    profile: Board
    kind: str = "system"
    board: VirtualBoard = field(init=False)

    def boot(self) -> None:
        self.board = virtual.up(self.profile, name="power", kind=self.kind, disk_mb=_DISK_MB)

    def bring_tool(self) -> None:
        """The one that can be killed."""
        device = open_virtual(self.board)
        device.put(board_tool(self.profile), str(RIG.tool))
        device.run(f"chmod 755 {RIG.tool}")
        device.close()

    def run(self, command: str) -> str:
        device = open_virtual(self.board)
        try:
            return device.run(command).stdout
        finally:
            device.close()

    def deploy(self, bundle: Bundle, *, fault: str = "", log: Path | None = None) -> Installed:
        device = open_virtual(self.board)
        try:
            return RIG.deploy(bundle, device=device, fault=fault, log=log)
        finally:
            device.close()

    def cut(self) -> None:
        virtual.cut_power(self.board)

    def current(self) -> str:
        """The release that is current, every file of it just read by the board and right."""
        text = self.run(
            f"cd {RIG.root} && cd $(readlink current) && cat {MANIFEST_NAME} && echo @@ && "
            f"find . -type f ! -name '{MANIFEST_NAME}*' -exec sha256sum {{}} +"
        )
        manifest, _, sums = text.partition("@@\n")
        document = json.loads(manifest)
        wanted = {name: entry["sha256"] for name, entry in document["files"].items()}
        found = {path[2:]: digest for digest, path in map(str.split, sums.splitlines())}
        assert found == wanted
        return str(document["release"])

    def check_file_system(self, folder: Path) -> None:
        """Of a copy of the disk: the board itself replays its journal when it boots."""
        image = folder / "disk.img"
        source = state.folder(self.board.name) / "disk.img"
        subprocess.run(["cp", "--sparse=always", source, image], check=True)
        # 1 is "errors were corrected", as which it counts the replay.
        replayed = subprocess.run(
            ["e2fsck", "-p", image], check=False, capture_output=True, text=True
        )
        assert replayed.returncode in (0, 1), replayed.stdout
        clean = subprocess.run(
            ["e2fsck", "-fn", image], check=False, capture_output=True, text=True
        )
        assert clean.returncode == 0, clean.stdout
        image.unlink()


@pytest.fixture
def bench(profile: Board, bundles: tuple[Bundle, Bundle]) -> Iterator[Bench]:
    """A new board with the first release on it, for good."""
    bench = Bench(profile)
    bench.boot()
    bench.bring_tool()
    bench.deploy(bundles[0])
    bench.run("sync")
    yield bench
    virtual.down(bench.board.name)


def deploy_and_cut(bench: Bench, bundle: Bundle, after_s: float) -> bool:
    """Begin a deploy and cut the power `after_s` seconds later; whether it had been reported."""
    timer = threading.Timer(after_s, bench.cut)
    timer.start()
    reported = False
    with contextlib.suppress(ConnectError, RemoteError):
        bench.deploy(bundle)
        reported = timer.is_alive()
    timer.join()
    return reported


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["alpine-armv7"], indirect=True, scope="module")
@pytest.mark.parametrize("count", [50])
def test_kills_on_a_board_without_a_library(
    profile: Board, bundles: tuple[Bundle, Bundle], count: int
) -> None:
    old, new = bundles
    bench = Bench(profile, kind="light")
    bench.boot()
    try:
        bench.bring_tool()
        bench.deploy(old)
        log = RIG.tool.with_name("steps")
        bench.deploy(new, log=log)
        steps = bench.run(f"cat {log}").split()
        assert {"release.link", "current.rename", "health.golden"} <= set(steps)
        rng = random.Random(SEED)
        for _ in range(count):
            old, new = new, old
            number = rng.randrange(len(steps)) + 1
            with contextlib.suppress(EdgepackError):
                bench.deploy(new, fault=f"kill:{number}")
            assert bench.current() in (old.manifest.release, new.manifest.release), number
            bench.deploy(new)
            assert bench.current() == new.manifest.release
            again = bench.deploy(new)
            assert (again.outcome, again.received_bytes) == ("unchanged", 0)
    finally:
        virtual.down(bench.board.name)


@pytest.mark.slow
@pytest.mark.parametrize("count", [25])
def test_power_cuts(
    bench: Bench, bundles: tuple[Bundle, Bundle], tmp_path: Path, count: int
) -> None:
    old, new = bundles
    began = time.monotonic()
    bench.deploy(new)
    took_s = time.monotonic() - began
    old, new = new, old
    rng = random.Random(SEED)
    outcomes = []
    for _ in range(count):
        after_s = rng.uniform(0, 1.1 * took_s)
        reported = deploy_and_cut(bench, new, after_s)
        bench.check_file_system(tmp_path)
        bench.boot()
        current = bench.current()
        assert current in (old.manifest.release, new.manifest.release)
        if reported:
            assert current == new.manifest.release
        outcomes.append(f"{after_s:.2f} s: {'new' if current == new.manifest.release else 'old'}")
        bench.deploy(new)
        assert bench.current() == new.manifest.release
        again = bench.deploy(new)
        assert (again.outcome, again.received_bytes) == ("unchanged", 0)
        old, new = new, old
    print(f"\na deploy takes {took_s:.2f} s; current after a cut at", *outcomes, sep="\n  ")


@pytest.mark.slow
def test_a_missing_fsync_is_found(bench: Bench, bundles: tuple[Bundle, Bundle]) -> None:
    """The same tool without its fsyncs loses what it reported, and these assertions see it."""
    first, second = bundles
    bench.deploy(second)
    bench.cut()
    bench.boot()
    assert bench.current() == second.manifest.release
    bench.deploy(first, fault="nofsync")
    bench.cut()
    bench.boot()
    with pytest.raises((AssertionError, EdgepackError, ValueError)):
        assert bench.current() == first.manifest.release

"""A device whose clock is wrong: what it refuses then, what it remembers, and what mends that.

The device tool's clock is a fake, by tests/faults/preload.c; the operator's is this machine's.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from edgepack.bundle.bundle import Bundle
from edgepack.deploy.remote_tool import RefusedBundleError
from tests.bundles import FakeTool
from tests.device_tool import host_tool
from tests.fake_app import fake_bundle
from tests.faults.preload import Counts, environment
from tests.faults.rig import Rig, sign
from tests.ssh_keys import make_key, public

DAY = 86400
NOW = int(time.time())
END = NOW + 3650 * DAY
FAR = NOW + 7300 * DAY


@dataclass(frozen=True)
class Kit:
    """Two bundles by a key that ends in ten years, for a device that has the first."""

    first: Bundle
    second: Bundle
    signers: Path
    forever: Path


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    folder = tmp_path_factory.mktemp("clock")
    key = make_key(folder)
    bundles = [
        fake_bundle(
            folder / name, weights=name.encode() * 50, version=number,
            tool=FakeTool(path=host_tool(faults=True)),
        )
        for number, name in enumerate(("first", "second"), 1)
    ]  # fmt: skip
    for bundle in bundles:
        sign(bundle, key)
    end = time.strftime("%Y%m%d%H%M%SZ", time.gmtime(END))
    for name, options in (("signers", f',valid-before="{end}"'), ("forever", "")):
        line = f'release@here namespaces="edgepack-bundle"{options} {public(key)}\n'
        (folder / name).write_text(line)
    return Kit(*bundles, folder / "signers", folder / "forever")


class Board:
    """The device; without `at`, its clock is right."""

    def __init__(self, root: Path, kit: Kit) -> None:
        self._rig = Rig(root=root, tool=host_tool(faults=True))
        self._kit = kit
        assert self.call("install", str(kit.first.path), "--signers", str(kit.signers)) == "ok"
        assert abs(self.seen() - NOW) < DAY

    def rig(self, at: int | None) -> Rig:
        fake = environment(clock=at) if at is not None else {}
        return replace(self._rig, environment=fake)

    def call(self, *words: str, at: int | None = None) -> str:
        """ "ok", or what the tool says is wrong and the hint."""
        done = self.rig(at).call(*words)
        if done.returncode == 0:
            return "ok"
        error = json.loads(done.stdout)["error"]
        return f"{error['kind']}: {error['message']}; {error['hint']}"

    def from_a_stick(self, at: int | None = None) -> str:
        return self.call("install", str(self._kit.second.path), at=at)

    def from_an_operator(self, at: int | None = None) -> str:
        return self.rig(at).deploy(self._kit.second).outcome

    def seen(self) -> int:
        return int((self._rig.root / "trust/clock").stat().st_mtime)

    def saw(self, when: int) -> None:
        os.utime(self._rig.root / "trust/clock", (when, when))


@pytest.fixture
def board(kit: Kit, tmp_path: Path) -> Board:
    return Board(tmp_path / "root", kit)


def test_a_leap_forward_is_not_believed_for_longer_than_it_lasts(board: Board) -> None:
    assert "expired-key" in board.from_a_stick(at=FAR)
    assert board.call("rollback", "--to", "0" * 12, at=FAR).startswith("no-release")
    assert abs(board.seen() - NOW) < DAY
    # The clock is set, and nothing is left of it.
    assert board.from_a_stick() == "ok"


def test_a_leap_is_not_noted_by_what_succeeds_meanwhile(board: Board, kit: Kit) -> None:
    assert board.call("trust", "set", str(kit.forever)) == "ok"
    assert board.call("activate", kit.first.manifest.release) == "ok"
    before = board.seen()
    assert abs(before - NOW) < DAY
    assert board.from_a_stick(at=FAR) == "ok"
    assert board.call("activate", kit.first.manifest.release, at=FAR) == "ok"
    assert board.seen() == before


def test_nor_by_an_operator_whose_clock_says_something_else(board: Board, kit: Kit) -> None:
    assert board.call("trust", "set", str(kit.forever)) == "ok"
    assert board.call("activate", kit.first.manifest.release) == "ok"
    assert board.from_an_operator(at=FAR) == "deployed"
    assert abs(board.seen() - NOW) < DAY
    board.saw(FAR)
    assert board.from_an_operator(at=FAR + 400 * DAY) == "unchanged"
    assert board.seen() == FAR


def test_what_goes_on_as_clocks_do_is_noted_and_never_goes_back(board: Board) -> None:
    """Half a year in a drawer; then the battery dies."""
    board.saw(END - 100 * DAY)
    assert "expired-key" in board.from_a_stick(at=END + DAY)
    assert board.call("repair", at=END + DAY) == "ok"
    current = json.loads(board.rig(None).call("status").stdout)["current"]["release"]
    assert board.call("activate", current, at=END + DAY) == "ok"
    assert board.seen() == END + DAY
    for clock in (0, END - 1):
        refusal = board.from_a_stick(at=clock)
        assert "expired-key" in refusal
        assert "the latest time seen here" in refusal
        assert "edgepack trust set" in refusal
    assert board.seen() == END + DAY


def test_trust_set_heals(board: Board, kit: Kit) -> None:
    board.saw(FAR)
    assert "edgepack trust set" in board.from_a_stick()
    assert board.call("trust", "set", str(kit.signers)) == "ok"
    assert board.from_a_stick() == "ok"
    assert abs(board.seen() - NOW) < DAY


def test_a_signed_deploy_heals(board: Board) -> None:
    board.saw(FAR)
    # Not while the device's own clock says something else than the operator's.
    for wrong in (END + DAY, NOW - 30 * DAY):
        with pytest.raises(RefusedBundleError, match="was valid before"):
            board.from_an_operator(at=wrong)
        assert board.seen() == FAR
    for outcome in ("deployed", "unchanged"):
        assert board.from_an_operator() == outcome
        assert abs(board.seen() - NOW) < DAY
        board.saw(FAR)


def test_looking_notes_nothing(board: Board) -> None:
    board.saw(FAR)
    assert board.call("status", at=FAR + DAY) == "ok"
    assert board.call("verify", at=FAR + DAY) == "ok"
    assert board.seen() == FAR


IN_1970 = 7200


@pytest.mark.parametrize(("call", "at"), [("clock", n) for n in (1, 2, 3, 5)] + [
    ("fsync", n) for n in (1, 4, 10)] + [("renameat", n) for n in (1, 4, 10)]
)  # fmt: skip
def test_56_years_in_the_middle_of_the_first_deploy(
    call: str, at: int, kit: Kit, tmp_path: Path
) -> None:
    """It begins in 1970, and then the clock is set. On a board test_quota_and_clock.py does so."""
    counts = Counts(tmp_path / "counts")
    fake = environment(clock=IN_1970, calls=counts.path, inject=f"{call} {at} clock{NOW - IN_1970}")
    rig = Rig(root=tmp_path / "root", tool=host_tool(faults=True), environment=fake)
    assert rig.deploy(kit.first).outcome == "deployed"
    assert counts.read()[0] == 1, "it was over before"
    assert rig.current() == kit.first.manifest.release
    later = replace(rig, environment={})
    state = json.loads(later.call("status").stdout)
    assert (state["problems"], state["pending"]) == ([], None)
    assert later.deploy(kit.first).outcome == "unchanged"
    assert abs(int((rig.root / "trust/clock").stat().st_mtime) - NOW) < DAY
    assert later.deploy(kit.second).outcome == "deployed"


def test_a_key_that_is_not_valid_yet(kit: Kit, tmp_path: Path) -> None:
    """As a board without a battery sees it: the hint is the clock; once that is set, it counts."""
    signers = tmp_path / "signers"
    later = 'valid-after="20240101Z",namespaces'
    signers.write_text(kit.forever.read_text().replace("namespaces", later))
    rig = Rig(root=tmp_path / "root", tool=host_tool(faults=True))
    words = ("install", str(kit.first.path), "--signers", str(signers))
    early = replace(rig, environment=environment(clock=IN_1970)).call(*words)
    error = json.loads(early.stdout)["error"]
    assert error["kind"] == "expired-key"
    assert "is valid only after 2024-01-01 00:00:00 UTC; here it is 1970-01-01" in error["message"]
    assert error["hint"] == "is the device's clock right?"
    assert rig.current() is None
    assert rig.call(*words).returncode == 0
    assert rig.current() == kit.first.manifest.release

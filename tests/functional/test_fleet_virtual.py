"""A fleet of virtual boards: real ARM userlands, each with a real sshd, 32 and 64 bit mixed."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgepack import virtual
from edgepack.base.process import processes
from edgepack.boards import get_board
from edgepack.bundle.bundle import Bundle
from edgepack.cli import main
from edgepack.device import open_virtual
from tests.boards import own_boards
from tests.fake_app import FAKE_APP, FAKE_WRONG_APP, fake_bundle
from tests.integration import sshd_server

BOARDS = ("rasp3b", "rasp3b-64")
MODEL_ROOT = "edgepack/tiny"


@pytest.fixture(autouse=True)
def cache() -> Iterator[None]:
    """Boards of our own, so that none of the user's is touched."""
    with own_boards():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundles")


def bundles(folder: Path, app: str = FAKE_APP, **changes: Any) -> list[Bundle]:
    return [fake_bundle(folder / board, board=board, app=app, **changes) for board in BOARDS]


def fleet_file(folder: Path, count: int) -> Path:
    """`count` boards, half of them with 64 bits."""
    path = folder / "fleet.toml"
    path.write_text(
        f"""
[rollout]
waves = ["20%", "100%"]
max_failures = 0

[defaults]
address = "virtual"

[groups.small]
devices = ["arm[01:{count // 2:02}]"]
board = "rasp3b"

[groups.large]
devices = ["aarch[01:{count // 2:02}]"]
board = "rasp3b-64"
"""
    )
    return path


def fleet(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["fleet", *words, "--json", "-q"])
    out, err = capsys.readouterr()
    assert out, err
    assert code != 1, err  # a bug
    return code, json.loads(out)


def deploy(
    capsys: pytest.CaptureFixture[str], path: Path, made: list[Bundle], *flags: str
) -> tuple[int, dict[str, Any]]:
    words = [word for bundle in made for word in ("--bundle", str(bundle.path))]
    return fleet(capsys, "deploy", str(path), *words, *flags)


def current(name: str) -> str:
    """The release that is current on the board called `name`."""
    (board,) = (board for board in virtual.list_running() if board.name == name)
    device = open_virtual(board)
    try:
        link = device.run(f"readlink {MODEL_ROOT}/current").stdout.strip()
    finally:
        device.close()
    return link.removeprefix("releases/")


def releases(made: list[Bundle]) -> dict[str, str]:
    return {bundle.manifest.board: bundle.manifest.release for bundle in made}


def test_a_mixed_fleet(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = fleet_file(tmp_path, 4)
    page = tmp_path / "report.html"
    good = bundles(folder / "good")
    code, printed = deploy(capsys, path, good, "--html", str(page))
    assert code == 0
    assert printed["releases"] == {board: {id_: 2} for board, id_ in releases(good).items()}
    assert [(row["device"], row["wave"], row["outcome"]) for row in printed["devices"]] == [
        ("arm01", "canary", "deployed"),
        ("aarch01", "canary", "deployed"),
        ("arm02", "wave 1", "deployed"),
        ("aarch02", "wave 2", "deployed"),
    ]
    for row in printed["devices"]:
        assert current(row["device"]) == releases(good)[row["board"]]
        assert row["release"] in page.read_text()

    # A release that computes something else is stopped by the canaries, and undone there.
    bad = bundles(folder / "bad", app=FAKE_WRONG_APP)
    code, printed = deploy(capsys, path, bad, "--parallel", "1")
    assert (code, printed["status"]) == (8, "stopped")
    assert printed["reason"] == "1 of 2 canaries failed"
    outcomes = {row["device"]: row["outcome"] for row in printed["devices"]}
    assert outcomes == {
        "arm01": "failed", "aarch01": "waiting", "arm02": "waiting", "aarch02": "waiting",
    }  # fmt: skip
    for name in outcomes:
        assert current(name) == releases(good)["rasp3b" if "arm" in name else "rasp3b-64"]

    # A board that lost its power is deployed to again; what it had is gone with it.
    virtual.down("arm02")
    code, printed = deploy(capsys, path, good, "--limit", "small", "--again")
    assert code == 0
    assert {row["device"]: row["outcome"] for row in printed["devices"]} == {
        "arm01": "unchanged", "arm02": "deployed",
    }  # fmt: skip


def test_status_and_rollback(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fleet_file(tmp_path, 2)
    first, second = bundles(folder / "first"), bundles(folder / "second", weights=b"other" * 999)
    release = ("--name", "tiny")
    assert deploy(capsys, path, first)[0] == 0
    assert deploy(capsys, path, second, "--soak", "0.1")[0] == 0

    code, printed = fleet(capsys, "status", str(path), *release)
    assert code == 0
    for row in printed["devices"]:
        assert (row["outcome"], row["release"]) == ("ok", releases(second)[row["board"]])
        manifest = next(b.manifest for b in second if b.manifest.board == row["board"])
        assert row["model_sha256"] == manifest.model.sha256
        assert row["by"]

    # One board is gone: it is tried again the next time, the others are not.
    virtual.down("aarch01")
    code, printed = fleet(capsys, "rollback", str(path), *release, "--canary", "0")
    outcomes = {row["device"]: row["outcome"] for row in printed["devices"]}
    assert outcomes == {"arm01": "rolled back", "aarch01": "failed"}
    assert (code, printed["devices_ok"]) == (12, 1)
    assert current("arm01") == releases(first)["rasp3b"]
    assert deploy(capsys, path, second, "--limit", "large")[0] == 0
    # It has had one release since, which stays: no failed canary, but said by the exit code.
    code, printed = fleet(capsys, "rollback", str(path), *release)
    assert code == 12
    assert [row["outcome"] for row in printed["devices"]] == ["rolled back", "no earlier release"]
    assert current("arm01") == releases(first)["rasp3b"]

    # What was undone is not done any more.
    code, printed = deploy(capsys, path, second)
    assert {row["device"]: row["outcome"] for row in printed["devices"]} == {
        "arm01": "activated", "aarch01": "unchanged",
    }  # fmt: skip


def test_an_ansible_inventory_behind_a_jump_host(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything that is needed to get in comes from the inventory."""
    board = virtual.up(get_board("rasp3b"), name="behind")
    hop = sshd_server.start(tmp_path / "hop")
    nobody = contextlib.ExitStack()
    closed = nobody.enter_context(sshd_server.closed_port())
    try:
        (hop.folder / "authorized").write_text(Path(f"{board.key_file}.pub").read_text())
        known = tmp_path / "known_hosts"
        hop_line = hop.known_hosts_line.replace("127.0.0.1", "localhost")
        known.write_text(f"{hop_line}\n{board.host_key}\n")
        path = tmp_path / "hosts.yml"
        path.write_text(
            f"""shops:
  hosts:
    behind: &all
      ansible_host: {board.host}
      ansible_port: {board.port}
      ansible_user: {board.user}
      ansible_ssh_private_key_file: {board.key_file}
      ansible_ssh_common_args: -J {hop.user}@localhost:{hop.port} -o UserKnownHostsFile={known}
      edgepack_board: rasp3b
    "off":
      <<: *all
      ansible_port: {closed}
"""
        )
        made = [fake_bundle(folder / "jump", board="rasp3b")]
        flags = ["--canary", "0", "--ignore-unreachable"]
        code, printed = deploy(capsys, path, made, *flags)
        outcomes = {row["device"]: row["outcome"] for row in printed["devices"]}
        assert outcomes == {"behind": "deployed", "off": "unreachable"}
        assert (code, printed["status"]) == (6, "complete")
        assert "cannot be reached from localhost" in printed["devices"][1]["error"]
        assert current("behind") == made[0].manifest.release
        # The host key of what is in between is checked, too.
        known.write_text(board.host_key + "\n")
        code, printed = deploy(capsys, path, made, *flags, "--again")
        assert f"host key of localhost:{hop.port} is not known" in printed["devices"][0]["error"]
    finally:
        nobody.close()
        hop.stop()


def _boards_mb() -> int:
    """Memory of all processes of all boards: each page counted once (PSS)."""
    children: dict[int, list[int]] = {}
    for one in processes():
        children.setdefault(one.parent, []).append(one.pid)
    todo = [board.pid for board in virtual.list_running()]
    total_kb = 0
    while todo:
        pid = todo.pop()
        todo += children.get(pid, [])
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total_kb += int(text.partition("\nPss:")[2].split()[0])
    return total_kb // 1024


def _shared_mb() -> int:
    """Memory of all file systems in memory; the boards' disks are such."""
    return int(Path("/proc/meminfo").read_text().partition("Shmem:")[2].split()[0]) // 1024


class _Watch(threading.Thread):
    """The most memory of the boards, and open files of this process, while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.shared_before = _shared_mb()
        self.most_mb = self.most_disk_mb = self.most_files = 0
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(2):
            self.most_mb = max(self.most_mb, _boards_mb())
            self.most_disk_mb = max(self.most_disk_mb, _shared_mb() - self.shared_before)
            self.most_files = max(self.most_files, len(list(Path("/proc/self/fd").iterdir())))

    def __enter__(self) -> _Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.join()


@pytest.mark.slow
def test_fifty_boards_in_waves(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`./dev scale`: prints what it took; nothing is asserted about time."""
    path = fleet_file(tmp_path, 50)
    good = bundles(folder / "fifty", weights=os.urandom(14_000_000))
    started = time.monotonic()
    with _Watch() as watch:
        code, printed = deploy(capsys, path, good, "--parallel", "8")
        seconds = time.monotonic() - started
        assert code == 0
        assert printed["outcomes"] == {"deployed": 50}
        assert [wave["devices"] for wave in printed["waves"]] == [2, 10, 38]
        assert len(virtual.list_running()) == 50
        code, again = deploy(capsys, path, good, "--parallel", "8", "--again")
        assert (code, again["outcomes"]) == (0, {"unchanged": 50})
    for row in printed["devices"]:
        assert current(row["device"]) == releases(good)[row["board"]]
    each = sorted(row["seconds"] for row in printed["devices"])
    with capsys.disabled():
        print(
            f"\n50 boards, 14 MB each, 8 at once: {seconds:.0f} s with starting them, "
            f"again (unchanged): {again['seconds']:.0f} s; a board {each[25]:.1f} s (median), "
            f"{each[-1]:.1f} s (longest); at most {watch.most_mb} MB for the boards' processes, "
            f"{watch.most_disk_mb} MB for their disks; {watch.most_files} open files here"
        )

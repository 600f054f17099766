"""Deploys to real folders through a real shell, on devices that die, lie and fill up."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack.bundle import Bundle, open_bundle
from edgepack.deploy import (
    CorruptTransferError,
    LockedError,
    OutputsDifferError,
    Report,
    SmokeTestError,
    deploy_bundle,
    preview,
)
from edgepack.device import ConnectionLostError, DiskFullError, LocalDevice
from edgepack.errors import BundleError, MismatchError, RemoteError, UsageError
from edgepack.manifest import MANIFEST_NAME, PARAMS
from edgepack.release import wanted_files
from edgepack.remote_app import RunRequest, run_on_device
from tests.dying_device import FakeDyingDevice
from tests.fake_app import (
    FAKE_BLIND_APP,
    FAKE_CRASHING_APP,
    FAKE_WRONG_APP,
    fake_bundle,
)

ROOT = "edge pack/tiny"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """Releases of one model: `b` and `c` differ from `a` in weights, the rest in the app."""
    weights = bytearray(bytes(range(256)) * 400)
    weights[1000] ^= 1
    folder = tmp_path_factory.mktemp("bundles")
    return {
        "a": fake_bundle(folder / "a"),
        "b": fake_bundle(folder / "b", weights=bytes(weights)),
        "c": fake_bundle(folder / "c", weights=bytes(weights[::-1])),
        "crashing": fake_bundle(folder / "crashing", app=FAKE_CRASHING_APP),
        "wrong": fake_bundle(folder / "wrong", app=FAKE_WRONG_APP),
        "blind": fake_bundle(folder / "blind", app=FAKE_BLIND_APP),
        "noimage": fake_bundle(folder / "noimage", weights=bytes(weights[::-1]), name="other"),
    }


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def release_of(link: Path) -> str | None:
    return link.readlink().name if link.is_symlink() else None


def current(home: Path) -> str | None:
    """The current release, which must be whole."""
    link = home / ROOT / "current"
    name = release_of(link)
    if name is not None:
        assert open_bundle(link).manifest.release == name
    return name


def snapshot(home: Path) -> dict[str, Any]:
    """Everything below the root: content, links, modes and inodes."""
    found: dict[str, Any] = {}
    for path in sorted((home / ROOT).rglob("*")):
        status = path.lstat()
        content = path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
        found[str(path)] = (status.st_ino, status.st_mode, content)
    return found


def assert_tidy(home: Path, *releases: str) -> None:
    """Nothing below the root but these releases, links to them and their records."""
    names = {path.name for path in (home / ROOT).iterdir()}
    assert names <= {"releases", "current", "previous"}
    below = {path.name for path in (home / ROOT / "releases").iterdir()}
    assert below <= {*releases, *(f"{name}.smoke.json" for name in releases)}
    assert below >= set(releases)
    for name in releases:
        open_bundle(home / ROOT / "releases" / name)


def test_first_deploy(bundles: dict[str, Bundle], home: Path) -> None:
    bundle = bundles["a"]
    report = deploy_bundle(bundle, LocalDevice(home), ROOT)
    files = wanted_files(bundle)
    assert report.outcome == "deployed"
    assert report.before is report.previous is None
    assert set(report.sent_files) == set(files)
    assert report.sent_bytes == sum(file.size for file in files.values())
    assert report.model_bytes_sent == sum(
        file.size for path, file in files.items() if path.startswith("model/")
    )
    assert report.smoke_fresh
    assert report.smoke.max_abs_error == 1e-7
    assert report.smoke.top[0]["label"] == "dog"
    assert report.smoke.latency_ms == 1.5
    assert current(home) == report.release == bundle.manifest.release
    assert_tidy(home, report.release)
    assert list(report.seconds) == [
        *("facts", "state", "prepare", "send", "verify", "publish", "activate", "smoke")
    ]
    assert json.loads(json.dumps(report.to_dict()))["release"] == report.release


def test_unchanged_redeploy_sends_and_changes_nothing(
    bundles: dict[str, Bundle], home: Path
) -> None:
    deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    before = snapshot(home)
    device = FakeDyingDevice(home)
    report = deploy_bundle(bundles["a"], device, ROOT)
    assert (report.outcome, report.sent_bytes, report.smoke_fresh) == ("unchanged", 0, False)
    assert report.smoke.top[0]["label"] == "dog"  # of the record
    assert len(device.commands) == 3  # facts; lock and state; unlock
    assert snapshot(home) == before


def test_one_changed_weight_sends_weights_only(bundles: dict[str, Bundle], home: Path) -> None:
    deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    report = deploy_bundle(bundles["b"], LocalDevice(home), ROOT)
    assert set(report.sent_files) == {PARAMS, MANIFEST_NAME}
    assert report.model_bytes_sent == bundles["b"].file(PARAMS).stat().st_size
    assert set(report.reused_files) == set(wanted_files(bundles["b"])) - set(report.sent_files)
    assert report.before == report.previous == bundles["a"].manifest.release
    assert release_of(home / ROOT / "previous") == report.before
    assert current(home) == report.release
    assert_tidy(home, bundles["a"].manifest.release, report.release)


def test_back_to_an_older_release(bundles: dict[str, Bundle], home: Path) -> None:
    deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    deploy_bundle(bundles["b"], LocalDevice(home), ROOT)
    report = deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    assert (report.outcome, report.sent_bytes) == ("activated", 0)
    assert current(home) == bundles["a"].manifest.release
    assert release_of(home / ROOT / "previous") == bundles["b"].manifest.release


def test_old_releases_are_removed(bundles: dict[str, Bundle], home: Path) -> None:
    names = [bundles[name].manifest.release for name in "abc"]
    for name in "abc":
        report = deploy_bundle(bundles[name], LocalDevice(home), ROOT, keep=2)
    assert report.removed == (names[0],)
    assert_tidy(home, *names[1:])


def test_preview_changes_nothing(bundles: dict[str, Bundle], home: Path) -> None:
    todo = preview(bundles["a"], LocalDevice(home), ROOT)
    assert todo.send_bytes > 0
    assert list(home.iterdir()) == []
    deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    before = snapshot(home)
    assert preview(bundles["a"], LocalDevice(home), ROOT).steps == ()
    assert {send.path for send in preview(bundles["b"], LocalDevice(home), ROOT).sends} == {
        PARAMS,
        MANIFEST_NAME,
    }
    assert snapshot(home) == before


def test_the_gate_comes_before_any_byte(tmp_path: Path, home: Path) -> None:
    bundle = fake_bundle(tmp_path, board="rasp3b")
    with pytest.raises(BundleError):
        deploy_bundle(bundle, LocalDevice(home), ROOT)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("crashing", SmokeTestError, "segmentation fault"),
        ("wrong", OutputsDifferError, "outputs differ by 0.5"),
        ("blind", OutputsDifferError, "class 0 'cat' instead of 1 'dog'"),
    ],
)
def test_a_release_that_fails_its_test(
    bundles: dict[str, Bundle],
    home: Path,
    name: str,
    error: type[RemoteError | MismatchError],
    message: str,
) -> None:
    with pytest.raises(error, match=message) as first:
        deploy_bundle(bundles[name], LocalDevice(home), ROOT)
    assert first.value.exit_code == (7 if error is SmokeTestError else 8)
    assert "none is current now" in first.value.message
    assert current(home) is None

    good, older = bundles["b"].manifest.release, bundles["a"].manifest.release
    deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    deploy_bundle(bundles["b"], LocalDevice(home), ROOT)
    for _ in range(2):
        with pytest.raises(error, match=f"Release {good} is current again"):
            deploy_bundle(bundles[name], LocalDevice(home), ROOT)
        assert current(home) == good
        assert release_of(home / ROOT / "previous") == older


def test_current_release_that_fails_on_a_changed_system(
    bundles: dict[str, Bundle], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another kernel, say: the record of the test no longer counts."""
    deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    deploy_bundle(bundles["b"], LocalDevice(home), ROOT)
    record = home / ROOT / "releases" / f"{bundles['b'].manifest.release}.smoke.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "fingerprint": "other"}))
    assert deploy_bundle(bundles["b"], LocalDevice(home), ROOT).smoke_fresh
    record.write_text("{}")

    def fail(*_: object) -> None:
        raise MismatchError("outputs differ")

    monkeypatch.setattr("edgepack.deploy.run_smoke", fail)
    with pytest.raises(OutputsDifferError, match="is current again"):
        deploy_bundle(bundles["b"], LocalDevice(home), ROOT)
    assert current(home) == bundles["a"].manifest.release


def damage(file: Path) -> None:
    """Flip a bit in place, as a failing card does."""
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)


def test_damaged_release_is_repaired(bundles: dict[str, Bundle], home: Path) -> None:
    release = deploy_bundle(bundles["a"], LocalDevice(home), ROOT).release
    damage(home / ROOT / "releases" / release / PARAMS)
    report = deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    assert report.sent_files == (PARAMS,)
    assert current(home) == release
    assert_tidy(home, release)


def test_damaged_file_is_not_taken_over(bundles: dict[str, Bundle], home: Path) -> None:
    """Its manifest says it is the same file; its content is not."""
    old = deploy_bundle(bundles["a"], LocalDevice(home), ROOT).release
    damaged = home / ROOT / "releases" / old / "model/model.so"
    damage(damaged)
    content = damaged.read_bytes()
    report = deploy_bundle(bundles["b"], LocalDevice(home), ROOT)
    assert set(report.sent_files) == {PARAMS, MANIFEST_NAME, "model/model.so"}
    assert current(home) == report.release
    assert damaged.read_bytes() == content  # not written through a shared link


def test_executable_that_was_sent_again_is_executable(
    bundles: dict[str, Bundle], home: Path
) -> None:
    old = deploy_bundle(bundles["a"], LocalDevice(home), ROOT).release
    damage(home / ROOT / "releases" / old / "bin/edgepack-run")
    deploy_bundle(bundles["b"], LocalDevice(home), ROOT)
    assert os.access(home / ROOT / "current/bin/edgepack-run", os.X_OK)


class FakeCorruptingDevice(LocalDevice):
    """Stores another byte than it was sent."""

    def put(self, local: Path, remote: str, **options: Any) -> None:
        super().put(local, remote, **options)
        if remote.endswith(PARAMS):
            damage(self._home / remote)


def test_transfer_that_never_gets_right(bundles: dict[str, Bundle], home: Path) -> None:
    with pytest.raises(CorruptTransferError, match=PARAMS) as corrupt:
        deploy_bundle(bundles["a"], FakeCorruptingDevice(home), ROOT)
    assert corrupt.value.exit_code == 7
    assert current(home) is None


class FakeFullDevice(LocalDevice):
    """Has room for 1000 bytes."""

    def put(self, local: Path, remote: str, **options: Any) -> None:
        (self._home / remote).write_bytes(local.read_bytes()[:1000])
        if local.stat().st_size > 1000:
            raise DiskFullError("no space left on device")


def test_full_disk_is_left_as_it_was(bundles: dict[str, Bundle], home: Path) -> None:
    deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    before = snapshot(home)
    with pytest.raises(DiskFullError):
        deploy_bundle(bundles["b"], FakeFullDevice(home), ROOT)
    assert snapshot(home) == before


@pytest.fixture
def lock(home: Path) -> Callable[[str], Path]:
    def make(owner: str) -> Path:
        (home / ROOT).mkdir(parents=True)
        (home / ROOT / ".lock").symlink_to(owner)
        return home / ROOT / ".lock"

    return make


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def my_name() -> str:
    return f"{socket.gethostname()}-{uuid.getnode():012x}"


def test_lock_of_another_machine(
    bundles: dict[str, Bundle], home: Path, lock: Callable[[str], Path]
) -> None:
    link = lock(f"laptop-001122334455 1 token {boot_id()}")
    with pytest.raises(LockedError, match="laptop-001122334455 is deploying") as locked:
        deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    assert locked.value.exit_code == 7
    assert ".lock" in str(locked.value.hint)
    assert link.is_symlink()
    assert current(home) is None


def test_locks_of_the_dead(
    bundles: dict[str, Bundle], home: Path, lock: Callable[[str], Path]
) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    for owner in (
        f"laptop-001122334455 1 token {'0' * 36}",  # from before the device's last boot
        f"{my_name()} {gone.pid} token {boot_id()}",
        f"{my_name()} {os.getpid()} token {boot_id()}",  # ours, of a connection that was lost
    ):
        link = lock(owner)
        deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
        assert not link.is_symlink()
        assert current(home) == bundles["a"].manifest.release
        subprocess.run(["rm", "-r", home / ROOT], check=True)


def test_lock_of_a_living_process_here(
    bundles: dict[str, Bundle], home: Path, lock: Callable[[str], Path]
) -> None:
    lock(f"{my_name()} {os.getppid()} token {boot_id()}")
    with pytest.raises(LockedError):
        deploy_bundle(bundles["a"], LocalDevice(home), ROOT)


class FakeWaitingDevice(LocalDevice):
    """Waits in its first upload until it is told to go on."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.uploading = threading.Event()
        self.go_on = threading.Event()

    def put(self, local: Path, remote: str, **options: Any) -> None:
        self.uploading.set()
        assert self.go_on.wait(60)
        super().put(local, remote, **options)


def test_two_deploys_at_once(bundles: dict[str, Bundle], home: Path) -> None:
    device = FakeWaitingDevice(home)
    reports: list[Report] = []
    thread = threading.Thread(
        target=lambda: reports.append(deploy_bundle(bundles["a"], device, ROOT)), daemon=True
    )
    thread.start()
    assert device.uploading.wait(60)
    with pytest.raises(LockedError):
        deploy_bundle(bundles["b"], LocalDevice(home), ROOT)
    device.go_on.set()
    thread.join(60)
    assert current(home) == reports[0].release
    deploy_bundle(bundles["b"], LocalDevice(home), ROOT)
    assert_tidy(home, bundles["a"].manifest.release, bundles["b"].manifest.release)


@pytest.mark.parametrize(
    ("before", "name", "keep"),
    [("", "a", 3), ("a", "b", 3), ("ab", "c", 2), ("ab", "wrong", 2)],
    ids=["first", "one-weight", "and-remove", "fails-its-test"],
)
def test_death_at_every_moment(
    bundles: dict[str, Bundle], tmp_path: Path, before: str, name: str, keep: int
) -> None:
    """Old or new, never half; a second deploy completes it, a third changes nothing."""
    bundle, fails = bundles[name], name == "wrong"
    release = bundle.manifest.release
    earlier = [bundles[letter].manifest.release for letter in before]
    old = earlier[-1] if earlier else None
    start = tmp_path / "start"
    start.mkdir()
    for letter in before:
        deploy_bundle(bundles[letter], FakeDyingDevice(start), ROOT)

    def attempt(home: Path, *, fatal: int = 0) -> Report | None:
        device = FakeDyingDevice(home, fatal=fatal)
        if not fails:
            return deploy_bundle(bundle, device, ROOT, keep=keep)
        with pytest.raises(OutputsDifferError):
            deploy_bundle(bundle, device, ROOT, keep=keep)
        return None

    for fatal in range(1, 1000):
        home = tmp_path / "home"
        subprocess.run(["rm", "-rf", home], check=True)
        subprocess.run(["cp", "-a", start, home], check=True)
        try:
            attempt(home, fatal=fatal)
        except ConnectionLostError:
            pass
        else:
            break
        assert current(home) in {old, release}, f"operation {fatal}"

        attempt(home)
        assert current(home) == (old if fails else release), f"operation {fatal}"
        if not fails:
            assert_tidy(home, *earlier[-(keep - 1) :], release)
            after = snapshot(home)
            third = attempt(home)
            assert third is not None
            assert third.outcome == "unchanged"
            assert snapshot(home) == after, f"operation {fatal}"
    assert fatal > 20  # the shell was really taken apart


def test_cut_upload_sends_the_rest_only(bundles: dict[str, Bundle], tmp_path: Path) -> None:
    size = bundles["a"].file(PARAMS).stat().st_size
    for fatal in range(1, 1000):
        home = tmp_path / f"home{fatal}"
        home.mkdir()
        with pytest.raises(ConnectionLostError):
            deploy_bundle(bundles["a"], FakeDyingDevice(home, fatal=fatal), ROOT)
        part = home / ROOT / "releases" / f"{bundles['a'].manifest.release}.part"
        if (part / PARAMS).exists() and 0 < (part / PARAMS).stat().st_size < size:
            break
    arrived = {str(path.relative_to(part)) for path in part.rglob("*") if path.is_file()}
    report = deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    assert PARAMS in report.sent_files
    assert report.model_bytes_sent < sum(
        file.size
        for path, file in wanted_files(bundles["a"]).items()
        if path.startswith("model/") and path not in arrived - {PARAMS}
    )
    assert current(home) == report.release


def test_a_half_sent_file_shared_with_another_release(
    bundles: dict[str, Bundle], home: Path
) -> None:
    """A truncated link is not written through."""
    old = deploy_bundle(bundles["a"], LocalDevice(home), ROOT).release
    new = bundles["b"].manifest.release
    source = home / ROOT / "releases" / old / PARAMS
    source.write_bytes(bundles["b"].file(PARAMS).read_bytes()[:5000])
    part = home / ROOT / "releases" / f"{new}.part" / "model"
    part.mkdir(parents=True)
    (part / "params.bin").hardlink_to(source)
    report = deploy_bundle(bundles["b"], LocalDevice(home), ROOT)
    assert report.model_bytes_sent == bundles["b"].file(PARAMS).stat().st_size - 5000
    assert source.stat().st_size == 5000
    assert current(home) == new


def test_run_on_a_device(bundles: dict[str, Bundle], home: Path, tmp_path: Path) -> None:
    device = LocalDevice(home)
    photo = tmp_path / "it's a photo.PNG"
    photo.write_bytes(b"\x89PNG\r\n")
    with pytest.raises(RemoteError, match=r"there is no .*edgepack-run") as missing:
        run_on_device(device, ROOT, RunRequest(image=photo))
    assert "edgepack deploy" in str(missing.value.hint)
    deploy_bundle(bundles["a"], device, ROOT)
    out = tmp_path / "out.npy"
    answer = run_on_device(
        device, ROOT, RunRequest(image=photo, output=out, options=("--top", "3"))
    )
    assert answer["top"][0]["label"] == "dog"
    assert np.load(out).shape == (1, 4)
    assert run_on_device(device, ROOT, RunRequest(golden=True))["expected"]["ok"] is True
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(UsageError, match=f"not an image: {tmp_path}/text.png") as bad:
        run_on_device(device, ROOT, RunRequest(image=tmp_path / "text.png"))
    assert bad.value.hint == "use a PNG"
    with pytest.raises(UsageError, match="no such file"):
        run_on_device(device, ROOT, RunRequest(image=tmp_path / "missing.png"))
    with pytest.raises(UsageError, match=r"no such folder: .*/nowhere"):
        run_on_device(device, ROOT, RunRequest(golden=True, output=tmp_path / "nowhere/o.npy"))
    (home / ROOT / "current" / PARAMS).write_bytes(b"")
    with pytest.raises(RemoteError, match="exit code 5"):
        run_on_device(device, ROOT, RunRequest(golden=True))

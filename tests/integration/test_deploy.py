"""Deploys with the real device tool to real folders, on links and disks that fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack.base.errors import (
    BundleError,
    ConfigError,
    EdgepackError,
    NothingThereError,
    RemoteError,
    UsageError,
)
from edgepack.base.progress import make_progress
from edgepack.bundle.bundle import Bundle, open_bundle
from edgepack.bundle.manifest import APP, DEVICE_TOOL, LIBRARY, PARAMS, Health
from edgepack.bundle.signing import sign_folder
from edgepack.cli import main
from edgepack.cli.deploy_run import _status_for_page
from edgepack.cli.pages.deploy import deploy_page
from edgepack.cli.result_lines import deploy_lines
from edgepack.deploy.deploy import (
    DeployOptions,
    Report,
    SameVersionError,
    deploy_bundle,
    preview,
)
from edgepack.deploy.options import TrialRules
from edgepack.deploy.remote_app import RunRequest, run_on_device
from edgepack.deploy.remote_tool import (
    CorruptTransferError,
    HealthTimeoutError,
    Layout,
    LockedError,
    OutputsDifferError,
    RefusedBundleError,
    SmokeTestError,
    call,
    prune,
    status,
)
from edgepack.deploy.repair import repair
from edgepack.device import LocalDevice
from edgepack.device.base import Stream
from tests.fake_app import (
    FAKE_BLIND_APP,
    FAKE_CRASHING_APP,
    FAKE_HANGING_APP,
    FAKE_WRONG_APP,
    fake_bundle,
)
from tests.scripted_tool import ScriptedDevice

ROOT = "edge pack/tiny"
WEIGHTS = np.random.default_rng(1).bytes(3_000_000)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """Releases of one model: `b` and `c` differ from `a` in weights, the rest in the app."""
    changed = bytearray(WEIGHTS)
    changed[1_000_000] ^= 1
    folder = tmp_path_factory.mktemp("bundles")
    hanging = {"app": FAKE_HANGING_APP, "health": Health(timeout_s=1)}
    variants: dict[str, dict[str, Any]] = {
        "a": {},
        "b": {"weights": bytes(changed)},
        "c": {"weights": WEIGHTS[::-1]},
        "crashing": {"app": FAKE_CRASHING_APP},
        "wrong": {"app": FAKE_WRONG_APP},
        "blind": {"app": FAKE_BLIND_APP},
        "hanging": hanging,
        "slow": {"health": Health(max_latency_ms=1.0)},  # it says 1.5
        "large": {"health": Health(max_memory_mb=0.001)},
    }
    return {
        name: fake_bundle(folder / name, **{"weights": WEIGHTS, **changes})
        for name, changes in variants.items()
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
    """Everything below the root: content, links, modes and inodes; but who had the lock last."""
    found: dict[str, Any] = {}
    for path in sorted({*(home / ROOT).rglob("*")} - {home / ROOT / ".lock"}):
        status = path.lstat()
        content = path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
        found[str(path)] = (status.st_ino, status.st_mode, content)
    return found


def assert_tidy(home: Path, *bundles: Bundle) -> None:
    """Whole releases, and in the store what they need and nothing else."""
    root = home / ROOT
    releases = {bundle.manifest.release for bundle in bundles}
    assert {path.name for path in (root / "releases").iterdir()} == releases
    for name in releases:
        open_bundle(root / "releases" / name)
    needed = {entry.sha256 for bundle in bundles for entry in bundle.manifest.files.values()}
    assert {path.name for path in (root / "store").iterdir()} == needed
    assert list((root / "incoming").iterdir()) == []


class CountingDevice(LocalDevice):
    """Keeps the commands it was asked for."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.commands: list[str] = []

    def run(self, command: str, **options: Any) -> Any:
        self.commands.append(command)
        return super().run(command, **options)

    def open(self, command: str) -> Stream:
        self.commands.append(command)
        return super().open(command)


def test_first_deploy(bundles: dict[str, Bundle], home: Path) -> None:
    bundle = bundles["a"]
    report = deploy_bundle(bundle, LocalDevice(home), ROOT)
    files = bundle.manifest.files
    assert report.outcome == "deployed"
    assert report.before is report.previous is None
    assert set(report.sent_files) == set(files)
    # The tool went ahead; the rest is packed.
    content = bundle.manifest.total_bytes - files[DEVICE_TOOL].size
    assert files[PARAMS].size < report.sent_bytes < 1.001 * content + 1000
    assert files[PARAMS].size < report.model_bytes_sent < report.sent_bytes
    assert report.copied_bytes == 0
    assert report.links == 1
    assert report.smoke_fresh
    assert report.smoke.max_abs_error == 1e-7
    assert report.smoke.top[0]["label"] == "dog"
    assert report.smoke.latency_ms == 1.5
    assert current(home) == report.release == bundle.manifest.release
    assert_tidy(home, bundle)
    root = home / ROOT
    for path, entry in files.items():
        stored, linked = root / "store" / entry.sha256, root / "current" / path
        assert stored.stat().st_ino == linked.stat().st_ino
        assert os.access(linked, os.X_OK) == (entry.mode == "0755")
    assert (root / DEVICE_TOOL).read_bytes() == bundle.file(DEVICE_TOOL).read_bytes()
    assert list(report.seconds) == ["facts", "tool", "state", "send", "finish"]
    assert json.loads(json.dumps(report.to_dict()))["release"] == report.release


def test_what_is_said_is_what_happens(bundles: dict[str, Bundle], home: Path) -> None:
    """One count of what is sent, in one step; and nothing is installed that is there."""
    said: list[str] = []
    bundle = bundles["a"]
    todo = preview(bundle, LocalDevice(home), ROOT)
    report = deploy_bundle(bundle, LocalDevice(home), ROOT, progress=make_progress(said.append))
    size = bundle.manifest.total_bytes - bundle.manifest.files[DEVICE_TOOL].size
    assert report.missing_bytes == size
    (sending,) = (text for text in said if "send" in text or "upload" in text)
    # The tool went ahead, and the preview knows nothing of it being there by then.
    assert sending.startswith(f"sending {size / 1e6:.1f} MB: {PARAMS}, ")
    total = bundle.manifest.total_bytes / 1e6
    steps = dict(todo.steps)
    assert steps["send"].startswith(f"{total:.1f} MB, compressed to {todo.send_bytes / 1e6:.1f} MB")
    sent = next(line for line in deploy_lines(report, "m") if line.startswith("sent"))
    assert f"{size / 1e6:.1f} MB in" in sent
    assert f"compressed to {report.sent_bytes / 1e6:.1f} MB" in sent
    assert "the device installs, activates and tests it" in said

    said.clear()
    deploy_bundle(bundle, LocalDevice(home), ROOT, progress=make_progress(said.append))
    assert f"release {report.release} is there, complete and tested" in said
    assert not [text for text in said if "install" in text or "sending" in text]


def test_unchanged_redeploy_sends_and_changes_nothing(
    bundles: dict[str, Bundle], home: Path
) -> None:
    deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    before = snapshot(home)
    device = CountingDevice(home)
    report = deploy_bundle(bundles["a"], device, ROOT)
    assert (report.outcome, report.sent_bytes, report.smoke_fresh) == ("unchanged", 0, False)
    assert report.sent_files == ()
    assert report.smoke.top[0]["label"] == "dog"  # of the record
    assert len(device.commands) == 1
    assert snapshot(home) == before


def test_one_changed_weight_sends_the_chunks_around_it(
    bundles: dict[str, Bundle], home: Path
) -> None:
    deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    report = deploy_bundle(bundles["b"], LocalDevice(home), ROOT)
    assert report.sent_files == (PARAMS,)
    assert report.sent_bytes < 3 * (64 << 10)
    assert report.copied_bytes > 3_000_000 - 3 * (64 << 10)
    assert set(report.reused_files) == set(bundles["b"].manifest.files) - {PARAMS}
    assert report.before == report.previous == bundles["a"].manifest.release
    assert release_of(home / ROOT / "previous") == report.before
    assert current(home) == report.release
    assert_tidy(home, bundles["a"], bundles["b"])


def test_back_to_an_older_release(bundles: dict[str, Bundle], home: Path) -> None:
    deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    deploy_bundle(bundles["b"], LocalDevice(home), ROOT)
    report = deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    assert (report.outcome, report.sent_bytes) == ("activated", 0)
    assert current(home) == bundles["a"].manifest.release
    assert release_of(home / ROOT / "previous") == bundles["b"].manifest.release


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rollback"], "there is no release before the current one"),
        (["rollback", "--to", "0" * 12], f"there is no release {'0' * 12}"),
        (["status", "--root", "ROOT/other"], "there is no device tool in"),
        (["run", "--golden", "--root", "ROOT/other"], "there is no"),
        (["service", "install", "--root", "ROOT/other"], "no release is current"),
        (["board", "ssh", "nobody"], "no virtual board is running under this name: nobody"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_what_is_not_there_has_one_exit_code(
    words: list[str],
    said: str,
    bundles: dict[str, Bundle],
    home: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    root = str(home / ROOT)
    words = [word.replace("ROOT", root) for word in words]
    if words[0] != "board":
        words += ["--device", "local", "--board", "local"]
        words += ["--root", root] * ("--root" not in words)
    assert main(words) == NothingThereError.exit_code == 12
    assert said in capsys.readouterr().err


def test_old_releases_are_removed(bundles: dict[str, Bundle], home: Path) -> None:
    for name in "abc":
        report = deploy_bundle(
            bundles[name], LocalDevice(home), ROOT, options=DeployOptions(keep=2)
        )
    assert report.removed == (bundles["a"].manifest.release,)
    assert_tidy(home, bundles["b"], bundles["c"])


def test_preview_changes_nothing_and_is_right(bundles: dict[str, Bundle], home: Path) -> None:
    todo = preview(bundles["a"], LocalDevice(home), ROOT)
    assert [kind for kind, _ in todo.steps] == ["tool", "send", "install", "activate", "test"]
    assert todo.send_bytes > 3_000_000
    assert list(home.iterdir()) == []
    deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    before = snapshot(home)
    assert preview(bundles["a"], LocalDevice(home), ROOT).steps == ()
    todo = preview(bundles["c"], LocalDevice(home), ROOT, options=DeployOptions(keep=1))
    assert todo.send_files == (PARAMS,)
    assert todo.before == bundles["a"].manifest.release
    trial = preview(
        bundles["c"], LocalDevice(home), ROOT, options=DeployOptions(trial=TrialRules())
    )
    assert [kind for kind, _ in trial.steps] == ["send", "install", "test", "trial"]
    assert snapshot(home) == before
    report = deploy_bundle(bundles["c"], LocalDevice(home), ROOT)
    assert (todo.send_bytes, todo.send_files) == (report.sent_bytes, report.sent_files)


def test_the_gate_comes_before_any_byte(tmp_path: Path, home: Path) -> None:
    bundle = fake_bundle(tmp_path, board="rasp3b")
    with pytest.raises(BundleError):
        deploy_bundle(bundle, LocalDevice(home), ROOT)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("crashing", SmokeTestError, "crashed: Segmentation fault"),
        ("wrong", OutputsDifferError, r"outputs differ by 0\.5"),
        ("blind", OutputsDifferError, r"class 0 instead of 1 \(dog\)"),
        ("hanging", HealthTimeoutError, "more than 1 s"),
        ("slow", SmokeTestError, r"1\.5 ms, allowed are 1 ms"),
        ("large", SmokeTestError, r"MB of memory, allowed are 0\.001 MB"),
    ],
)
def test_a_release_that_fails_its_test(
    bundles: dict[str, Bundle], home: Path, name: str, error: type[EdgepackError], message: str
) -> None:
    with pytest.raises(error, match=message) as first:
        deploy_bundle(bundles[name], LocalDevice(home), ROOT)
    assert first.value.exit_code == (9 if name == "hanging" else 8)
    assert current(home) is None

    good, older = bundles["b"].manifest.release, bundles["a"].manifest.release
    deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    deploy_bundle(bundles["b"], LocalDevice(home), ROOT)
    for _ in range(2):
        with pytest.raises(error, match=good):  # says what is current again
            deploy_bundle(bundles[name], LocalDevice(home), ROOT)
        assert current(home) == good
        assert release_of(home / ROOT / "previous") == older


def damage(file: Path) -> None:
    """Flip a bit in place, as a failing card does."""
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    mode = file.stat().st_mode
    file.chmod(0o644)
    file.write_bytes(data)
    file.chmod(mode)


@pytest.mark.parametrize("path", [PARAMS, APP])
def test_a_damaged_release_is_repaired(bundles: dict[str, Bundle], home: Path, path: str) -> None:
    release = deploy_bundle(bundles["a"], LocalDevice(home), ROOT).release
    damage(home / ROOT / "releases" / release / path)
    report = deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    assert report.sent_files == (path,)
    assert current(home) == release
    assert_tidy(home, bundles["a"])


@pytest.mark.parametrize(
    ("content", "brought"), [(b"", True), (bytes(5000), True), (None, True), (b"?", False)]
)
def test_a_damaged_device_tool_is_repaired(
    bundles: dict[str, Bundle], home: Path, content: bytes | None, brought: bool
) -> None:
    """Empty, zeros, gone; or one byte longer, and still it runs."""
    release = deploy_bundle(bundles["a"], LocalDevice(home), ROOT).release
    tool = home / ROOT / DEVICE_TOOL
    tool.chmod(0o755)
    before = tool.read_bytes()
    if content is None:
        tool.unlink()
    else:
        # Not into the file itself: a tool that is about to end may still run from it.
        tool.unlink()
        tool.write_bytes(content if brought else before + content)
        tool.chmod(0o755)
    answer = repair(LocalDevice(home), ROOT)
    assert any(DEVICE_TOOL in line for line in answer.mended) == brought
    assert answer.lost == ()
    assert tool.read_bytes() == before
    assert current(home) == release
    assert repair(LocalDevice(home), ROOT).mended == ()
    deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    assert_tidy(home, bundles["a"])


def test_a_damaged_file_is_not_taken_over(bundles: dict[str, Bundle], home: Path) -> None:
    old = deploy_bundle(bundles["a"], LocalDevice(home), ROOT).release
    damage(home / ROOT / "releases" / old / LIBRARY)
    report = deploy_bundle(bundles["b"], LocalDevice(home), ROOT)
    assert set(report.sent_files) == {PARAMS, LIBRARY}
    assert current(home) == report.release


class FakeCorruptingDevice(LocalDevice):
    """Stores another byte than it was sent, at the end of what is longer than 100 kB."""

    def open(self, command: str) -> Stream:
        stream = super().open(command)
        write = stream.write

        def corrupt(data: bytes) -> None:
            write(data if len(data) < 100_000 else data[:-1] + bytes([data[-1] ^ 1]))

        stream.write = corrupt  # type: ignore[method-assign]
        return stream


def test_transfers_that_never_get_right(bundles: dict[str, Bundle], home: Path) -> None:
    with pytest.raises(CorruptTransferError, match=DEVICE_TOOL) as corrupt:
        deploy_bundle(bundles["a"], FakeCorruptingDevice(home), ROOT)
    assert corrupt.value.exit_code == 7
    assert not (home / ROOT / DEVICE_TOOL).exists()
    deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    with pytest.raises(CorruptTransferError, match=PARAMS):
        deploy_bundle(bundles["c"], FakeCorruptingDevice(home), ROOT)
    assert current(home) == bundles["a"].manifest.release
    deploy_bundle(bundles["c"], LocalDevice(home), ROOT)  # what was damaged is not kept


class FakeWaitingDevice(LocalDevice):
    """Waits in its upload until it is told to go on."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.uploading = threading.Event()
        self.go_on = threading.Event()

    def open(self, command: str) -> Stream:
        stream = super().open(command)
        write = stream.write

        def wait(data: bytes) -> None:
            if len(data) > 200_000:
                self.uploading.set()
                assert self.go_on.wait(60)
            write(data)

        stream.write = wait  # type: ignore[method-assign]
        return stream


def test_two_deploys_at_once(bundles: dict[str, Bundle], home: Path) -> None:
    """The second is told who holds the lock, or waits and then does its work."""
    deploy_bundle(bundles["a"], LocalDevice(home), ROOT)
    device = FakeWaitingDevice(home)
    reports: list[Report] = []

    def deploy(name: str, to: LocalDevice) -> threading.Thread:
        thread = threading.Thread(
            target=lambda: reports.append(deploy_bundle(bundles[name], to, ROOT)), daemon=True
        )
        thread.start()
        return thread

    first = deploy("c", device)
    assert device.uploading.wait(60)
    with pytest.raises(LockedError, match="receiving a release") as locked:
        deploy_bundle(bundles["b"], LocalDevice(home), ROOT, options=DeployOptions(wait_s=0))
    assert locked.value.exit_code == 7
    assert call(LocalDevice(home), ROOT, "status")["lock"]["pid"] > 0
    second = deploy("b", LocalDevice(home))
    device.go_on.set()
    first.join(60)
    second.join(60)
    assert [report.release for report in reports] == [
        bundles[name].manifest.release for name in "cb"
    ]
    assert current(home) == bundles["b"].manifest.release
    assert_tidy(home, *(bundles[name] for name in "abc"))


def test_status_rollback_and_prune(bundles: dict[str, Bundle], home: Path) -> None:
    device = LocalDevice(home)
    with pytest.raises(RemoteError, match="no device tool") as missing:
        call(device, ROOT, "status")
    assert "edgepack deploy" in str(missing.value.hint)
    for name in "abc":
        deploy_bundle(bundles[name], device, ROOT)
    a, b, c = (bundles[name].manifest.release for name in "abc")
    status = call(device, ROOT, "status")
    assert status["current"]["release"] == c
    assert status["current"]["model_sha256"] == bundles["c"].manifest.model.sha256
    assert status["current"]["by"].count("@") == 1
    assert status["current"]["health"]["outcome"] == "ok"
    assert status["previous"]["release"] == b
    assert {release["release"] for release in status["releases"]} == {a, b, c}
    assert status["pending"] is None
    # The tool tells that it is done shortly before it ends and lets go of the lock.
    for _ in range(1200):
        lock = call(device, ROOT, "status")["lock"]
        if lock is None:
            break
        time.sleep(0.1)
    assert lock is None

    call(device, ROOT, "rollback")
    assert (current(home), release_of(home / ROOT / "previous")) == (b, c)
    call(device, ROOT, "rollback", "--to", a)
    assert current(home) == a
    before = sorted((home / ROOT).rglob("*"))
    assert prune(device, ROOT, keep=1, dry_run=True).removed == (c,)
    assert sorted((home / ROOT).rglob("*")) == before
    with pytest.raises(UsageError, match="--dry-run is prune's only"):
        call(device, ROOT, "rollback", "--dry-run")
    assert call(device, ROOT, "prune", "--keep", "1")["removed"] == [c]
    assert_tidy(home, bundles["a"], bundles["b"])
    with pytest.raises(EdgepackError, match=c):
        call(device, ROOT, "rollback", "--to", c)


def test_signers_are_pinned_at_the_first_signed_deploy(tmp_path: Path, home: Path) -> None:
    """From then on unsigned bundles and lower versions are refused, by the device itself."""
    device = LocalDevice(home)
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    signers = tmp_path / "signers"
    signers.write_text(f"me@example.org {Path(f'{key}.pub').read_text()}")
    made = {
        version: fake_bundle(tmp_path / str(version), weights=b"x" * 100, version=version)
        for version in (1, 2, 3)
    }
    for version in (1, 2):
        sign_folder(made[version], key)
    report = deploy_bundle(made[2], device, ROOT, options=DeployOptions(signers=signers))
    assert str(report.signer).startswith("me@example.org SHA256:")
    assert report.pinned is not None
    assert report.version == 2
    before = snapshot(home)
    with pytest.raises(RefusedBundleError, match="is not signed") as unsigned:
        deploy_bundle(made[3], device, ROOT)
    assert unsigned.value.exit_code == 5
    with pytest.raises(RefusedBundleError, match="version 1"):
        deploy_bundle(made[1], device, ROOT)
    assert snapshot(home) == before
    report = deploy_bundle(made[1], device, ROOT, options=DeployOptions(allow_downgrade=True))
    assert current(home) == made[1].manifest.release
    assert report.pinned is None


def test_what_a_deploy_signs_has_a_new_version(tmp_path: Path, home: Path) -> None:
    """Once signers are pinned; it is refused before anything is sent."""
    from edgepack.cli import make_parser
    from edgepack.cli.transfer import deploy_options

    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    device = LocalDevice(home)
    options = deploy_options(make_parser().parse_args(["deploy", "--sign", str(key)]))

    def bundle(name: str, version: int) -> Bundle:
        made = fake_bundle(tmp_path / name, weights=name.encode() * 100, version=version)
        sign_folder(made, key)
        return open_bundle(made.path)

    first, other, newer = bundle("first", 7), bundle("other", 7), bundle("newer", 8)
    assert deploy_bundle(first, device, ROOT, options=options).pinned is not None
    before = snapshot(home)
    with pytest.raises(SameVersionError, match="with the same version, 7") as refused:
        deploy_bundle(other, device, ROOT, options=options)
    assert first.manifest.release in refused.value.message
    assert refused.value.exit_code == 5 and "auto" in str(refused.value.hint)
    # The device may have begun a file for what was to come, which did not.
    after = snapshot(home)
    begun = {path: kept for path, kept in after.items() if path not in before}
    assert all("/incoming/" in path and kept[2] == b"" for path, kept in begun.items())
    assert {path: kept for path, kept in after.items() if path in before} == before
    assert deploy_bundle(first, device, ROOT, options=options).outcome == "unchanged"
    # A bundle that was signed before goes over as it is, and the report says what it replaces.
    same = deploy_bundle(other, device, ROOT).same_version
    assert same == first.manifest.release
    assert deploy_bundle(newer, device, ROOT, options=options).outcome == "deployed"
    for lower in (first, bundle("none", 0)):
        with pytest.raises(RefusedBundleError, match="version"):
            deploy_bundle(lower, device, ROOT, options=options)
    assert current(home) == newer.manifest.release


@pytest.mark.parametrize("root", ["", "/", "-x", "~", "~root/x", "a\nb"])
def test_what_is_no_root(root: str) -> None:
    with pytest.raises(UsageError, match="--root"):
        Layout.of(root)


def test_roots(bundles: dict[str, Bundle], home: Path) -> None:
    assert Layout.of("~/edge pack/x/").root == "edge pack/x"
    device = LocalDevice(home)
    deploy_bundle(bundles["a"], device, f"{home}/it's/absolute")
    assert call(device, f"{home}/it's/absolute", "status")["current"]["name"] == "tiny"
    (home / "file").write_text("")
    with pytest.raises(RemoteError, match="file"):
        deploy_bundle(bundles["a"], device, "file")
    with pytest.raises(ConfigError, match="file not found"):
        deploy_bundle(bundles["a"], device, ROOT, options=DeployOptions(signers=home / "missing"))


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
        device, ROOT, RunRequest(image=photo, outputs=(out,), options=("--top", "3"))
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
        run_on_device(device, ROOT, RunRequest(golden=True, outputs=(tmp_path / "nowhere/o.npy",)))
    (home / ROOT / "current" / PARAMS).unlink()
    with pytest.raises(RemoteError, match="exit code 5"):
        run_on_device(device, ROOT, RunRequest(golden=True))


def test_a_tarball_installs_itself_as_a_deploy_does(
    bundles: dict[str, Bundle], home: Path, tmp_path: Path, write_tar: Callable[[Bundle], Path]
) -> None:
    """`tar xf bundle.tar.gz && ./install`: the same files, links and status."""
    deployed, unpacked = home, tmp_path / "unpacked"
    unpacked.mkdir()
    for name in "ab":
        deploy_bundle(bundles[name], LocalDevice(deployed), "edgepack/tiny")
        subprocess.run(["tar", "xf", write_tar(bundles[name])], cwd=unpacked, check=True)
        done = subprocess.run(
            [unpacked / bundles[name].path.name / "install"],
            env={"HOME": str(unpacked), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        states = [state(where / "edgepack/tiny") for where in (deployed, unpacked)]
        assert states[0] == states[1]
        statuses = [call(LocalDevice(where), "edgepack/tiny", "status") for where in
                    (deployed, unpacked)]  # fmt: skip
        assert without_times(statuses[0]) == without_times(statuses[1])


@pytest.fixture
def write_tar(tmp_path: Path) -> Callable[[Bundle], Path]:
    from edgepack.bundle.bundle import write_tarball

    def write(bundle: Bundle) -> Path:
        out = tmp_path / f"{bundle.path.name}.tar.gz"
        write_tarball(bundle, out)
        return out

    return write


def state(root: Path) -> dict[str, Any]:
    """Content, modes and links; of the records only that they are there."""
    found: dict[str, Any] = {}
    for path in {*root.rglob("*")} - {root / ".lock"}:
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = path.readlink()
        elif path.is_file():
            content = path.read_bytes() if path.parent.name not in ("state", "trust") else None
            found[name] = (path.stat().st_mode, content)
    return found


def without_times(status: dict[str, Any]) -> dict[str, Any]:
    for release in (status["current"], status["previous"] or {}):
        release.pop("since", None)
        release.pop("by", None)
        for key in ("at", "max_rss_mb"):  # the kernel's figure
            (release.get("health") or {}).pop(key, None)
    (status.get("newest") or {}).pop("at", None)
    return status


def test_the_page_says_what_changed(bundles: dict[str, Bundle], home: Path) -> None:
    device = LocalDevice(home)
    first = deploy_bundle(bundles["a"], device, ROOT)
    made = deploy_page(first, bundles["a"], status(device, ROOT))
    assert "There is none." in made
    second = deploy_bundle(bundles["b"], device, ROOT)
    made = deploy_page(second, bundles["b"], status(device, ROOT))
    text = re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", made, flags=re.DOTALL))
    words = " ".join(text.split())
    # The answer comes first, then the release before beside this one.
    assert words.index("smoke test passed: dog") < words.index("Since the release before")
    assert f"release {first.release} {second.release}" in words
    assert "one run 1.50 ms 1.50 ms" in words
    assert "files of the model." in words
    assert made.count("<details>") == 1
    assert made.index("<details>") < made.index(PARAMS) < made.index("</details>")
    digests = {bundles[name].manifest.model.sha256 for name in "ab"}
    assert words.count("changed") == len(digests) - 1


def test_a_device_that_is_lost_after_a_deploy_costs_no_more_than_a_part_of_its_page(
    bundles: dict[str, Bundle], home: Path
) -> None:
    device = LocalDevice(home)
    report = deploy_bundle(bundles["a"], device, ROOT)
    lost: Any = ScriptedDevice("pi", lambda _: "no JSON")
    assert _status_for_page(lost, ROOT) is None
    assert _status_for_page(device, ROOT) == status(device, ROOT)
    assert "smoke test passed: dog" in deploy_page(report, bundles["a"], None)

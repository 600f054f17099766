"""AdbDevice: Debian's real adb, and a stand-in for the daemon on the phone."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgepack.base.errors import ConnectError, RemoteError, UsageError
from edgepack.base.tools import ToolMissingError
from edgepack.boards import get_board
from edgepack.bundle.bundle import Bundle, open_bundle, write_tarball
from edgepack.bundle.manifest import APP, DEVICE_TOOL, LIBRARY, PARAMS
from edgepack.cli import main
from edgepack.deploy import remote_tool
from edgepack.deploy.deploy import DeployOptions, deploy_bundle
from edgepack.deploy.remote_app import RunRequest, run_on_device
from edgepack.deploy.remote_tool import Layout, put_tool
from edgepack.device import (
    AuthError,
    ConnectionLostError,
    Device,
    DiskFullError,
    RemoteCommandError,
    RemoteTimeout,
    SshOptions,
    UnreachableError,
    open_device,
)
from edgepack.device.adb import AdbDevice
from edgepack.device.facts import gather
from edgepack.device.lines import MAX_ERROR_BYTES
from edgepack.device.patience import Pace
from edgepack.gate.elf import read_elf
from tests.bundles import FakeTool
from tests.device_tool import static_host_tool
from tests.fake_app import fake_bundle
from tests.integration.cutting_proxy import CuttingProxy
from tests.stand_in_adbd import StandInAdbd
from tests.support import require_tool

ROOT = "edge pack/tiny"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A server of adb's of our own, which knows no other device, nor the user's keys."""
    require_tool("adb")
    folder = tmp_path_factory.mktemp("adb")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADB_SERVER_SOCKET", f"localfilesystem:{folder}/server")
        patch.setenv("ADB_LOCAL_TRANSPORT_MAX_PORT", "0")  # no search for emulators
        own = {**os.environ, "HOME": str(folder), "TMPDIR": str(folder)}
        subprocess.run(["adb", "start-server"], check=True, env=own, capture_output=True)
        yield
        subprocess.run(["adb", "kill-server"], check=True)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def adbd(server: None, home: Path) -> Iterator[StandInAdbd]:
    with StandInAdbd(home) as adbd:
        yield adbd
        disconnect()


def connect(serial: str) -> Device:
    options = SshOptions(command_timeout_s=60, connect_timeout_s=20)
    return open_device(f"adb:{serial}", get_board("local"), options=options)


def disconnect(*serial: str) -> None:
    """Have adb's server forget a device, or all."""
    subprocess.run(["adb", "disconnect", *serial], check=True, capture_output=True)


@pytest.fixture
def device(adbd: StandInAdbd) -> Device:
    return connect(adbd.serial)


def test_commands(device: Device, home: Path) -> None:
    done = device.run(
        "echo 'it'\"'\"'s'; echo \"$LC_ALL $HOME $PWD\"; cat; printf error >&2; exit 3", check=False
    )
    assert (done.returncode, done.stdout) == (3, f"it's\nC {home} {home}\n")
    assert done.stderr == "error"
    with pytest.raises(RemoteCommandError, match="exit code 1"):
        device.run("false")
    # What adb itself says of a device that is gone, and of a command of its own that failed.
    for code in (255, 1):
        said = "error: device offline"
        done = device.run(f"echo {said} >&2; exit {code}", check=False)
        assert (done.returncode, done.stderr) == (code, f"{said}\n")
    assert device.run("kill -SEGV $$", check=False).returncode == 139


def test_much_output_on_both_streams(device: Device) -> None:
    done = device.run("head -c 3000000 /dev/zero >&2; head -c 3000000 /dev/zero")
    assert len(done.stdout) == 3_000_000
    assert MAX_ERROR_BYTES - 100 < len(done.stderr) < MAX_ERROR_BYTES  # the end of it


def test_talking_to_a_command(device: Device) -> None:
    data = os.urandom(3_000_000)
    stream = device.open(
        "head -c 3000000 | sha256sum; read -r word; echo $word; echo x >&2; exit 3"
    )
    stream.write(data)
    assert stream.read_line().split()[0] == hashlib.sha256(data).hexdigest().encode()
    stream.write(b"hello\n")
    assert stream.read_line(30) == b"hello\n"
    assert stream.read_line() == b""
    done = stream.finish()
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "x\n")
    stream.close()


def test_a_command_that_hangs_up_or_is_silent(device: Device) -> None:
    stream = device.open("echo why; exit 1")
    with pytest.raises(BrokenPipeError):
        while True:
            stream.write(bytes(1 << 16))
    assert stream.read_line() == b"why\n"
    assert stream.finish().returncode == 1
    silent = device.open("sleep 30")
    with pytest.raises(ConnectionLostError):
        silent.read_line(0.1)
    silent.close()
    with pytest.raises(RemoteTimeout):
        device.run("echo begun; sleep 30", timeout_s=0.3)
    assert device.run("echo still here").stdout == "still here\n"


def test_files(device: Device, tmp_path: Path, home: Path) -> None:
    data = os.urandom(1_000_001)
    source, target = tmp_path / "source", home / "it's a file"
    source.write_bytes(data)
    sizes: list[int] = []
    device.put(source, target.name, sent=sizes.append)
    assert target.read_bytes() == data
    assert sum(sizes) == len(data)
    os.truncate(target, 300_001)
    device.put(source, target.name, offset=300_001)
    assert target.read_bytes() == data
    target.write_bytes(b"x" * 300_001 + data[300_001:])
    device.put(source, target.name, offset=300_001)
    assert target.read_bytes() == b"x" * 300_001 + data[300_001:]  # what is before is left alone
    device.get(target.name, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == target.read_bytes()
    (tmp_path / "empty").touch()
    device.put(tmp_path / "empty", target.name)
    assert target.read_bytes() == b""
    device.mkdir("a b/c")
    assert (home / "a b" / "c").is_dir()
    device.run("ln -s 'a b' link; ln -s two link.new")
    device.rename("link.new", "link")
    assert (home / "link").readlink() == Path("two")
    with pytest.raises(RemoteError, match=r"missing on adb:.*: .*No such file"):
        device.get("missing", tmp_path / "back")
    with pytest.raises(RemoteError, match=r"missing on adb:.*: .*No such file"):
        device.put(source, "missing", offset=5)
    with pytest.raises(RemoteError, match="no/folder on adb:"):
        device.put(source, "no/folder")
    with pytest.raises(RemoteError, match="No such file"):
        device.rename("missing", "link")
    with pytest.raises(RemoteError):
        device.rename("link", "a b")
    assert {path.name for path in home.iterdir()} == {"a b", "it's a file", "link"}
    with pytest.raises(DiskFullError):
        device.put(source, "/dev/full")


def test_a_connection_that_is_cut(adbd: StandInAdbd, device: Device, tmp_path: Path) -> None:
    stream = device.open("echo begun; sleep 30")
    assert stream.read_line(60) == b"begun\n"
    adbd.cut()
    with pytest.raises(ConnectionLostError, match=f"connection to adb:{adbd.serial} lost") as lost:
        stream.read_line(60)
    assert lost.value.exit_code == 6
    stream.close()
    device.reconnect()
    assert device.run("echo again").stdout == "again\n"
    stream = device.open("sleep 30")
    adbd.cut()
    with pytest.raises(ConnectionLostError):
        for _ in range(100):
            stream.write(bytes(100_000))
    stream.close()
    device.reconnect()
    # A command that answers when it is too late has no exit code either.
    stream = device.open("read -r word")
    adbd.cut()
    with pytest.raises(ConnectionLostError):
        stream.finish()
    stream.close()


def test_an_upload_that_is_cut(adbd: StandInAdbd, home: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(1_000_000))
    with CuttingProxy(adbd.port, cut_after=600_000) as proxy:
        device = connect(f"127.0.0.1:{proxy.port}")
        with pytest.raises(ConnectionLostError):
            device.put(source, "target")
        written = (home / "target").read_bytes()
        assert 0 < len(written) < 1_000_000
        assert source.read_bytes().startswith(written)
        device.reconnect()
        device.put(source, "target", offset=len(written))
        disconnect()  # the proxy waits for it
    assert (home / "target").read_bytes() == source.read_bytes()


def test_devices_that_cannot_be_used(server: None, tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match=r"adb:X1: .*not found; .* sees: none") as missing:
        connect("X1")
    assert "adb devices" in str(missing.value.hint)
    assert missing.value.exit_code == 6
    with pytest.raises(UnreachableError, match="adb:: no devices/emulators found"):
        connect("")
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1.*refused"):
        connect("127.0.0.1:1")
    for serial in ("-x", "a b", "\x1b[2J"):
        with pytest.raises(UsageError, match="not a serial number"):
            connect(serial)
    with StandInAdbd(tmp_path) as one, StandInAdbd(tmp_path) as two:
        connect(one.serial)
        assert connect("").name == f"adb:{one.serial}"
        connect(two.serial)
        with pytest.raises(UsageError, match=f"there are several: .*{two.serial}") as several:
            connect("")
        assert "--device adb:127.0.0.1:" in str(several.value.hint)
        with pytest.raises(UnreachableError, match=rf"sees: .*{two.serial} \(device\)"):
            connect("X1")
        disconnect()
    with StandInAdbd(tmp_path, features="cmd") as old:
        with pytest.raises(ConnectError, match="does not speak shell_v2") as refused:
            connect(old.serial)
        assert "SSH" in str(refused.value.hint)
    with StandInAdbd(tmp_path, authorized=False) as locked:
        with pytest.raises(AuthError, match="unauthorized") as unknown:
            connect(locked.serial)
        assert "accept this computer's key" in str(unknown.value.hint)
    disconnect()


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """As phones get them: without a library of kernels, and with a program that needs none."""
    weights = np.random.default_rng(1).bytes(2_000_000)
    folder = tmp_path_factory.mktemp("bundles")
    board = get_board("local").without_libc()
    tool = FakeTool(path=static_host_tool())
    return {
        "a": fake_bundle(folder / "a", board=board, weights=weights, tool=tool),
        "b": fake_bundle(folder / "b", board=board, weights=weights[::-1], tool=tool),
    }


def test_deploys(
    bundles: dict[str, Bundle],
    adbd: StandInAdbd,
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """First, unchanged, over a link that is cut again and again, run, status, and back."""
    device = connect(adbd.serial)
    app = read_elf(bundles["a"].file(APP))
    assert (app.interpreter, app.needed, LIBRARY in bundles["a"].manifest.files) == ("", (), False)
    report = deploy_bundle(bundles["a"], device, ROOT)
    assert (report.outcome, report.links) == ("deployed", 1)
    assert report.smoke.top[0]["label"] == "dog"
    facts = report.facts
    assert (facts.home, facts.model, facts.selinux) == (str(home), "Stand-in", "enforcing")
    # Each is a file of its own: Android lets nobody make hard links.
    release = home / ROOT / "current"
    assert {path.stat().st_nlink for path in release.rglob("*") if path.is_file()} == {1}
    assert open_bundle(release).manifest.release == bundles["a"].manifest.release
    assert deploy_bundle(bundles["a"], device, ROOT).outcome == "unchanged"

    with CuttingProxy(adbd.port, cut_after=900_000) as proxy:
        bad = connect(f"127.0.0.1:{proxy.port}")
        report = deploy_bundle(bundles["b"], bad, ROOT, options=DeployOptions(retries=3))
        disconnect(f"127.0.0.1:{proxy.port}")
    assert (report.outcome, report.links) == ("deployed", 3)
    assert report.sent_files == (PARAMS,)
    assert report.sent_bytes > 2_000_000  # over links that are all cut before: it went on
    assert open_bundle(release).manifest.release == bundles["b"].manifest.release

    photo, out = tmp_path / "it's.png", tmp_path / "out.npy"
    photo.write_bytes(b"\x89PNG\r\n")
    answer = run_on_device(device, ROOT, RunRequest(image=photo, outputs=(out,)))
    assert answer["top"][0]["label"] == "dog"
    assert np.load(out).shape == (1, 4)

    where = ["--device", f"adb:{adbd.serial}", "--root", ROOT, "--json"]
    assert main(["rollback", *where]) == 0
    assert main(["status", *where]) == 0
    said = capsys.readouterr().out
    status = json.loads(said[said.rindex("\n{") if "\n{" in said else 0 :])
    assert status["current"]["release"] == bundles["a"].manifest.release
    assert remote_tool.status(device, ROOT).current is not None


def test_a_first_install_with_adb_and_the_device_tool_alone(
    bundles: dict[str, Bundle], adbd: StandInAdbd, home: Path, tmp_path: Path
) -> None:
    """As docs/guides/android.md has it: no edgepack here, and no tar, mktemp or sha256sum there."""
    bundle, tarball = bundles["a"], tmp_path / "bundle.tar.gz"
    write_tarball(bundle, tarball)

    def adb(*words: str | Path, check: bool = True) -> str:
        command = ["adb", "-s", adbd.serial, *words]
        done = subprocess.run(command, check=check, capture_output=True, text=True, timeout=60)
        return done.stdout

    subprocess.run(["adb", "connect", adbd.serial], check=True, capture_output=True)
    adb("push", bundle.file(DEVICE_TOOL), tarball, str(home))
    tool = f"{home}/edgepack-device --json --root"
    done = json.loads(adb("shell", f"{tool} {home}/model install {home}/bundle.tar.gz"))
    assert done["outcome"] == "deployed"
    assert deploy_bundle(bundle, connect(adbd.serial), f"{home}/model").outcome == "unchanged"
    # What was changed on the way is not the bundle.
    data = bytearray(tarball.read_bytes())
    data[len(data) // 2] ^= 1
    tarball.write_bytes(data)
    adb("push", tarball, str(home))
    answer = adb("shell", f"{tool} {home}/other install {home}/bundle.tar.gz", check=False)
    assert json.loads(answer)["error"]["kind"] == "damaged"
    assert not (home / "other/current").exists()


def test_a_fleet_of_phones(
    bundles: dict[str, Bundle],
    server: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two, and one that is not there."""
    path = tmp_path / "fleet.toml"
    homes = [tmp_path / name for name in ("one", "two")]
    for folder in homes:
        folder.mkdir()
    with StandInAdbd(homes[0]) as one, StandInAdbd(homes[1]) as two:
        phones = {"one": one.serial, "two": two.serial, "gone": "127.0.0.1:1"}
        path.write_text(
            '[rollout]\ncanary = 0\nmax_failures = 1\n[defaults]\nboard = "local"\nuser = "pi"\n'
            + "".join(f'[devices.{name}]\naddress = "adb:{at}"\n' for name, at in phones.items())
        )
        words = ["fleet", "deploy", str(path), "--bundle", str(bundles["a"].path), "--json"]
        assert main(words) == 6
        rows = json.loads(capsys.readouterr().out)["devices"]
        assert {row["device"]: row["outcome"] for row in rows} == {
            "one": "deployed", "two": "deployed", "gone": "unreachable",
        }  # fmt: skip
        assert {row["address"] for row in rows} == {f"adb:{at}" for at in phones.values()}
        disconnect()
    for folder in homes:
        release = folder / "edgepack/tiny/current"
        assert open_bundle(release).manifest.release == bundles["a"].manifest.release


def test_a_device_without_sha256sum(
    bundles: dict[str, Bundle], device: Device, home: Path, tmp_path: Path
) -> None:
    """What was brought is read back."""
    tool = bundles["a"].file("bin/edgepack-device")
    digest = hashlib.sha256(tool.read_bytes()).hexdigest()
    put_tool(device, Layout.of(ROOT), tool, digest, sha256sum="", pace=Pace(None))
    assert (home / ROOT / "bin/edgepack-device").read_bytes() == tool.read_bytes()
    assert (home / ROOT / f"incoming/{digest}.part").read_bytes() == tool.read_bytes()
    assert gather(device, ROOT).protocol == 1
    with pytest.raises(remote_tool.CorruptTransferError):
        put_tool(device, Layout.of("b"), tool, "0" * 64, sha256sum="", pace=Pace(None))
    assert not (home / "b/bin/edgepack-device").exists()


def test_without_adb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissingError, match="not found: adb") as missing:
        AdbDevice("X1")
    assert missing.value.hint == "sudo apt-get install adb"

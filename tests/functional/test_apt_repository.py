"""`edgepack publish apt`: a folder of static files that Debian's apt takes releases from."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path

import pytest

import edgepack
from edgepack.base.process import Finished, run
from edgepack.cli import main
from edgepack.formats import apt_repository
from edgepack.formats.apt_repository import KEYRING
from tests.release_keys import KEY, gpg_keys

NAME = "edgepack-tiny-rasp3b"


@pytest.fixture(scope="module")
def gpg() -> Iterator[None]:
    """A home for gpg, with the key that signs and another."""
    with gpg_keys(KEY, "stranger@example.org"):
        yield


def package(
    folder: Path,
    number: int,
    *,
    name: str = NAME,
    architecture: str = "armhf",
    content: str = "",
) -> Path:
    """A Debian package with a name and a version as `package --format deb` gives them."""
    release = hashlib.sha256(f"{name}{number}{content}".encode()).hexdigest()[:12]
    path = folder / f"{name}_{number}+{release}_{architecture}.deb"
    root = folder / f"{path.name}.d"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "usr/lib/edgepack/tiny").mkdir(parents=True)
    (root / "usr/lib/edgepack/tiny/release").write_text(f"{release}{content}\n")
    (root / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: {number}+{release}\nArchitecture: {architecture}\n"
        "Maintainer: nobody <nobody@localhost>\nDescription: tiny\n"
    )
    words = ["--root-owner-group", "-Zxz", "--build", str(root), str(path)]
    run(["dpkg-deb", *words], env={"SOURCE_DATE_EPOCH": "0", "DPKG_DEB_THREADS_MAX": "1"})
    return path


def command(folder: Path, *words: str | Path, key: str = KEY) -> list[str]:
    """The command line; paths among `words` are packages to add."""
    files = [str(word) for word in words if isinstance(word, Path)]
    others = [word for word in words if isinstance(word, str)]
    return [
        "publish",
        "apt",
        str(folder),
        "--key",
        key,
        *(["--add", *files] * bool(files)),
        *others,
    ]


def publish(folder: Path, *words: str | Path, key: str = KEY) -> None:
    assert main(command(folder, *words, key=key)) == 0


def refused(
    capsys: pytest.CaptureFixture[str], folder: Path, *words: str | Path, key: str = KEY
) -> str:
    before = files(folder)
    capsys.readouterr()
    assert main(command(folder, *words, key=key)) == 2
    assert files(folder) == before
    return capsys.readouterr().err


def files(folder: Path) -> dict[str, bytes]:
    """All that a reader of the repository can see."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


class Device:
    """A Debian system, as far as apt knows of it: lists, a status and a machine-id."""

    def __init__(self, folder: Path, where: str, key: Path, architecture: str = "armhf") -> None:
        self._root = folder
        for name in ("etc/apt/apt.conf.d", "etc/apt/preferences.d", "var/lib/dpkg/info"):
            (folder / name).mkdir(parents=True)
        for name in ("var/cache/apt/archives/partial", "var/lib/apt/lists/partial"):
            (folder / name).mkdir(parents=True)
        (folder / "etc/apt/sources.list.d").mkdir()
        (folder / "etc/apt/sources.list.d/edgepack.sources").write_text(
            f"Types: deb\nURIs: {where}\nSuites: stable\nComponents: main\nSigned-By: {key}\n"
        )
        self._architecture = architecture
        self.has("")

    def has(self, version: str, name: str = NAME) -> None:
        """What is installed: that version, or nothing."""
        text = (
            f"Package: {name}\nStatus: install ok installed\nVersion: {version}\n"
            f"Architecture: {self._architecture}\nMaintainer: n <n@l>\nDescription: x\n\n"
        )
        (self._root / "var/lib/dpkg/status").write_text(text if version else "")

    def apt(self, *words: str, machine: int = 0, check: bool = True) -> Finished:
        options = {
            "Dir": self._root,
            "Dir::State::status": self._root / "var/lib/dpkg/status",
            "Dir::Bin::methods": "/usr/lib/apt/methods",
            "APT::Architecture": self._architecture,
            "APT::Architectures": self._architecture,
            "APT::Machine-ID": hashlib.md5(str(machine).encode()).hexdigest(),
            "APT::Sandbox::User": "",
            "APT::Update::Error-Mode": "any",
            # As apt has it; some images of containers switch them off.
            "Acquire::Check-Date": "true",
            "Acquire::Check-Valid-Until": "true",
        }
        chosen = [f"-o{name}={value}" for name, value in options.items()]
        env = {"APT_CONFIG": "/dev/null", "LC_ALL": "C"}
        return run(["apt-get", *chosen, *words], env=env, check=check)

    def update(self, *, check: bool = True) -> str:
        done = self.apt("update", check=check)
        assert check or done.returncode != 0, done.stdout
        return done.stdout + done.stderr

    def upgrade(self, machine: int = 0) -> str | None:
        """The version that an upgrade would bring; None for no upgrade."""
        said = self.apt("-s", "upgrade", machine=machine).stdout
        found = re.search(rf"^Inst {NAME} \[\S+\] \((\S+)", said, re.M)
        return found and found[1]


class _Static(http.server.SimpleHTTPRequestHandler):
    """Python's static server, which answers "not modified" as others do."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        self.server.seen.append((self.path.rpartition("/")[2], int(code)))  # type: ignore[attr-defined]


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """The folder's address, and which files were asked for, with the answers' status."""
    handler = functools.partial(_Static, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    seen: list[tuple[str, int]] = []
    server.seen = seen  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def device(tmp_path: Path, gpg: None) -> Device:
    repository = tmp_path / "repository"
    return Device(tmp_path / "device", f"file:{repository}", repository / KEYRING)


def version(path: Path) -> str:
    return path.name.split("_")[1]


def test_a_release_for_a_share_of_the_devices(tmp_path: Path, device: Device) -> None:
    first, second, third = (package(tmp_path, number) for number in (1, 2, 3))
    repository = tmp_path / "repository"
    publish(repository, first)
    publish(repository, second, "--phase", "30")
    device.update()
    device.has(version(first))
    machines = range(50)
    at_30 = {machine for machine in machines if device.upgrade(machine) == version(second)}
    # Of the numbers from 0 to 100 that apt draws 31 are at most 30. Names and machine-ids are the
    # same in each run, and so is what is drawn.
    assert 8 <= len(at_30) <= 23

    edgepack.publish_apt(repository, key=KEY, phase=60)
    device.update()
    at_60 = {machine for machine in machines if device.upgrade(machine) == version(second)}
    assert at_30 < at_60 < set(machines)

    # It is bad: who has it keeps it, nobody else gets it, from the pool neither.
    publish(repository, "--stop")
    device.update()
    assert not any(device.upgrade(machine) for machine in machines)
    assert not list(repository.rglob(second.name)) and list(repository.rglob(first.name))
    device.has(version(second))
    assert not device.upgrade()

    # The next one reaches everybody, whatever they have.
    publish(repository, third, "--phase", "100")
    device.update()
    for one in (first, second):
        device.has(version(one))
        assert all(device.upgrade(machine) == version(third) for machine in range(5))


def test_a_package_is_what_was_published(tmp_path: Path, gpg: None) -> None:
    repository, path = tmp_path / "repository", package(tmp_path, 1)
    publish(repository, path)
    with served(repository) as (where, _):
        device = Device(tmp_path / "device", where, repository / KEYRING)
        device.update()
        device.apt("-y", "-d", "install", NAME)
    (brought,) = (tmp_path / "device/var/cache/apt/archives").glob("*.deb")
    assert brought.read_bytes() == path.read_bytes()


def test_boards_of_one_architecture_and_others(tmp_path: Path, device: Device) -> None:
    repository = tmp_path / "repository"
    pynq = package(tmp_path, 1, name="edgepack-tiny-pynq")
    large = package(tmp_path, 1, name="edgepack-tiny-rk3399", architecture="arm64")
    publish(repository, package(tmp_path, 1), pynq, large)
    device.update()
    said = device.apt("-s", "install", NAME, "edgepack-tiny-pynq").stdout
    assert said.count("Inst ") == 2
    assert device.apt("-s", "install", "edgepack-tiny-rk3399", check=False).returncode != 0
    other = Device(tmp_path / "other", f"file:{repository}", repository / KEYRING, "arm64")
    other.update()
    assert "Inst " in other.apt("-s", "install", "edgepack-tiny-rk3399").stdout


def test_what_a_stranger_changed(tmp_path: Path, device: Device) -> None:
    repository, good = tmp_path / "repository", package(tmp_path, 1)
    publish(repository, good)
    device.update()
    old = tmp_path / "old"
    shutil.copytree(repository, old)

    # Other bytes in the package, in an index, and indices that somebody else signed.
    (path,) = repository.rglob(good.name)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert device.apt("-y", "-d", "install", NAME, check=False).returncode != 0
    path.write_bytes(good.read_bytes())

    second = package(tmp_path, 2)
    publish(repository, second)
    for index in repository.glob("dists/stable/main/binary-armhf/**/*"):
        if index.is_file():
            index.write_bytes(index.read_bytes().replace(b"tiny", b"tidy") + b"\n")
    device.update(check=False)
    shutil.rmtree(repository)
    shutil.copytree(old, repository)

    publish(repository, second, key="stranger@example.org")
    shutil.copy(old / KEYRING, repository / KEYRING)
    said = device.update(check=False)
    assert "NO_PUBKEY" in said or "not signed" in said
    device.has("0")
    assert device.upgrade() == version(good)


def test_a_repository_that_stands_still_or_goes_back(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, first = tmp_path / "repository", package(tmp_path, 1)
    release = apt_repository._release

    def of_then(dist: Path, valid_days: int | None) -> str:
        """As it was signed `days` ago."""
        text = release(dist, valid_days)
        for name in ("Date", "Valid-Until"):
            (line,) = re.findall(rf"^{name}: .*$", text, re.M)
            then = parsedate_to_datetime(line.partition(": ")[2]) - timedelta(days=days)
            text = text.replace(line, f"{name}: {format_datetime(then, usegmt=True)}")
        return text

    days = 2
    with monkeypatch.context() as patched:
        patched.setattr(apt_repository, "_release", of_then)
        publish(repository, first, "--valid-days", "1")
    assert "is expired" in device.update(check=False)
    assert device.apt("-s", "install", NAME, check=False).returncode != 0

    days = 1  # older than the next one, whose date has whole seconds
    with monkeypatch.context() as patched:
        patched.setattr(apt_repository, "_release", of_then)
        publish(repository, "--valid-days", "3")
    device.update()
    old = tmp_path / "old"
    shutil.copytree(repository, old)
    publish(repository, package(tmp_path, 2), "--valid-days", "3")
    device.update()
    device.has("0")
    newest = device.upgrade()
    assert newest is not None and newest.startswith("2+")
    shutil.rmtree(repository)
    shutil.copytree(old, repository)
    device.apt("update", check=False)
    assert device.upgrade() == newest


def test_versions_that_are_kept(tmp_path: Path, device: Device) -> None:
    repository = tmp_path / "repository"
    packages = [package(tmp_path, number) for number in range(1, 6)]
    for path in packages:
        publish(repository, path)
    device.update()
    wanted = f"{NAME}={version(packages[0])}"
    assert "Inst " in device.apt("-s", "install", wanted).stdout
    publish(repository, "--keep", "2")
    left = {path.name for path in repository.rglob("*.deb")}
    assert left == {path.name for path in packages[-2:]}
    device.update()
    assert device.apt("-s", "install", wanted, check=False).returncode != 0


def test_what_is_refused(tmp_path: Path, gpg: None, capsys: pytest.CaptureFixture[str]) -> None:
    repository = tmp_path / "repository"
    publish(repository, package(tmp_path, 2), "--phase", "5")
    same = package(tmp_path, 2, content="other")
    assert "is not above version 2" in refused(capsys, repository, same)
    lower = package(tmp_path, 1)
    assert "raise `version`" in refused(capsys, repository, lower)
    both = (package(tmp_path, 3), package(tmp_path, 3, content="x"))
    assert "is not above version 3" in refused(capsys, repository, *both)
    zero = package(tmp_path, 0)
    assert "version 0" in refused(capsys, repository, zero)
    foreign = package(tmp_path, 4, name="bash")
    assert "is no package of edgepack's" in refused(capsys, repository, foreign)
    strange = package(tmp_path, 4, architecture="sparc")
    assert "sparc" in refused(capsys, repository, strange)
    text = tmp_path / "text.deb"
    text.write_text("text")
    assert "not a Debian package" in refused(capsys, repository, text)
    assert "no such file" in refused(capsys, repository, tmp_path / "none.deb")
    assert "--phase: 101" in refused(capsys, repository, "--phase", "101")
    assert "edgepack-other" in refused(capsys, repository, "--stop", "--package", "edgepack-other")
    assert "--stop takes" in refused(capsys, repository, "--stop", "--phase", "5")
    # The same package again is no error: it has the phase that is said now.
    publish(repository, package(tmp_path / "again", 2), "--phase", "50")
    capsys.readouterr()
    assert main(["publish", "apt", str(repository), "--key", KEY, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["packages"]
    assert (row["package"], row["version"], row["phase"]) == (NAME, 2, 50)


def test_a_program_that_fails_changes_nothing(
    tmp_path: Path, gpg: None, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = tmp_path / "repository"
    publish(repository, package(tmp_path, 1))
    before = {name: data for name, data in files(repository).items() if "dists" in name}
    assert main(command(repository, package(tmp_path, 2), key="nobody@example.org")) != 0
    assert "gpg" in capsys.readouterr().err
    after = {name: data for name, data in files(repository).items() if "dists" in name}
    assert after == before
    publish(repository, package(tmp_path / "again", 2))


@pytest.mark.parametrize("stop_before", ["InRelease", "Release", "Packages.xz"])
def test_a_reader_while_it_is_changed(
    stop_before: str, tmp_path: Path, gpg: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads when the change was cut at any file sees the repository before."""
    repository, first = tmp_path / "repository", package(tmp_path, 1)
    publish(repository, first)
    copy = apt_repository._copy

    def cut(source: Path, target: Path) -> None:
        if target.name == stop_before:
            raise KeyboardInterrupt
        copy(source, target)

    with served(repository) as (where, _):
        known, fresh = (
            Device(tmp_path / name, where, repository / KEYRING) for name in ("known", "fresh")
        )
        known.update()
        monkeypatch.setattr(apt_repository, "_copy", cut)
        with pytest.raises(KeyboardInterrupt):
            apt_repository.publish(
                repository, apt_repository.Change(key=KEY, add=[package(tmp_path, 2)])
            )
        monkeypatch.undo()
        for one in (known, fresh):
            one.update()
            one.has("0")
            assert one.upgrade() == version(first)
        publish(repository, package(tmp_path / "again", 2, content="other bytes"))
        known.update()
        assert (known.upgrade() or "").startswith("2+")


def test_changes_within_a_second_are_seen_by_who_polls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP tells times of files in whole seconds, and "not modified" by them."""
    release = tmp_path / "InRelease"
    release.touch()
    os.utime(release, (1000.25, 1000.25))
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    for now in (1000.5, 1001.0, 1600.0, 900.0):  # the last: a clock that was set back
        monkeypatch.setattr(time, "time", lambda now=now: now)
        apt_repository._let_its_second_pass(release)
    (seconds,) = waited
    assert 1001 < 1000.5 + seconds < 1001.1


def test_a_poll_with_nothing_new(tmp_path: Path, gpg: None) -> None:
    repository = tmp_path / "repository"
    publish(repository, package(tmp_path, 1))
    with served(repository) as (where, seen):
        device = Device(tmp_path / "device", where, repository / KEYRING)
        device.update()
        seen.clear()
        device.update()
        assert seen == [("InRelease", 304)]

"""Packages for other update systems, made and installed by those systems' own programs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepack import formats, virtual
from edgepack.base.errors import ToolchainError
from edgepack.base.process import run
from edgepack.boards import get_board
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.service import Service
from edgepack.device.ssh import SshDevice
from edgepack.formats import Options, apt_repository, mender_server
from edgepack.virtual import apt
from edgepack.virtual.rootfs import rootfs
from tests import cross
from tests.boards import login, own_boards, tar_of_missing, unpacked
from tests.bundles import small_bundle
from tests.fake_app import FAKE_APP, FAKE_WRONG_APP, fake_bundle
from tests.release_keys import KEY, gpg_keys
from tests.support import require_tool

SUITE = "bullseye"


@pytest.fixture(scope="module", autouse=True)
def cache() -> Iterator[Path]:
    with own_boards() as folder:
        yield folder


def releases(folder: Path, board: str) -> tuple[Bundle, Bundle, Bundle]:
    """Version 1, version 2, and a version 3 that computes something else."""
    first, second, wrong = (
        fake_bundle(
            folder / str(version),
            board=board,
            app=app,
            version=version,
            service=Service(args=("--golden",), memory_mb=64),
        )
        for version, app in enumerate([FAKE_APP, FAKE_APP + "#\n", FAKE_WRONG_APP], start=1)
    )
    return first, second, wrong


def current(root: Path) -> str:
    return (root / "current").readlink().name


# --- deb ---


@pytest.fixture(scope="module")
def arm_releases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Bundle, Bundle]:
    return releases(tmp_path_factory.mktemp("arm"), "rasp3b")


def deb(bundle: Bundle, folder: Path) -> Path:
    require_tool("dpkg-deb")
    return formats.write_package("deb", bundle, get_board(bundle.manifest.board), folder).path


def test_equal_bundles_give_equal_debs(
    arm_releases: tuple[Bundle, Bundle, Bundle], tmp_path: Path
) -> None:
    bundle = arm_releases[0]
    first = deb(bundle, tmp_path / "a")
    os.utime(bundle.path / "manifest.json")
    previous = os.umask(0o077)
    try:
        second = deb(bundle, tmp_path / "b")
    finally:
        os.umask(previous)
    assert first.read_bytes() == second.read_bytes()
    assert first.name == f"edgepack-tiny-rasp3b_1+{bundle.manifest.release}_armhf.deb"
    fields = run(["dpkg-deb", "-f", first]).stdout
    assert "Architecture: armhf\n" in fields
    assert "Depends: libc6 (>= 2.31)\n" in fields
    assert "Provides: edgepack-tiny\nConflicts: edgepack-tiny\n" in fields
    listing = run(["dpkg-deb", "-c", first]).stdout
    assert all(line.split()[1] == "root/root" for line in listing.splitlines())
    assert "./lib/systemd/system/edgepack-tiny.service\n" in listing
    # What dpkg-deb unpacks is the bundle.
    run(["dpkg-deb", "-x", first, tmp_path / "x"])
    manifest = tmp_path / "x/usr/lib/edgepack/tiny/manifest.json"
    assert manifest.read_bytes() == (bundle.path / "manifest.json").read_bytes()


class Apt:
    """A board with Debian's apt, and no network to fetch anything from."""

    def __init__(self, device: SshDevice) -> None:
        self.device = device

    def prepare(self, work: Path) -> None:
        """Send apt and all it needs that the board's small root file system lacks."""
        base = rootfs(SUITE, "armhf")
        whole = unpacked("apt", ["apt"], suite=SUITE, arch="armhf")
        archive = work / "apt.tar"
        tar_of_missing(whole, base, archive)
        self.device.put(archive, "/root/apt.tar")
        # The board's libc6 was unpacked without dpkg; this is what dpkg would have noted.
        self.device.run(
            "tar xf /root/apt.tar -C / && ldconfig\n"
            "mkdir -p /var/lib/dpkg/info /var/lib/dpkg/updates /var/lib/apt/lists/partial "
            "/var/cache/apt/archives/partial /etc/apt/apt.conf.d\n"
            "version=$(ldd --version | sed -n '1s/.* //p')\n"
            'printf "Package: libc6\\nStatus: install ok installed\\nArchitecture: armhf\\n'
            'Maintainer: x\\nVersion: $version-1\\nDescription: x\\n" >/var/lib/dpkg/status\n'
            "echo 'APT::Sandbox::User \"root\";' >/etc/apt/apt.conf.d/90test"
        )

    def do(self, command: str, package: Path | None = None, *, check: bool = True) -> str:
        """Run an apt-get command, with the package in the working folder."""
        if package is not None:
            self.device.put(package, f"/root/{package.name}")
            command += f" ./{package.name}"
        result = self.device.run(
            f"cd /root && env -u HOME apt-get -y -o APT::Get::Show-Upgraded=true {command} 2>&1",
            check=False,
        )
        assert (result.returncode == 0) == check, result.stdout
        return result.stdout

    def brought(self, repository: Path) -> None:
        """The repository as it is now, on the board, and known to apt."""
        archive = repository.with_suffix(".tar")
        with tarfile.open(archive, "w") as tar:
            tar.add(repository, "repository")
        self.device.put(archive, "/root/repository.tar")
        self.device.run(
            "mkdir -p /srv; rm -rf /srv/repository; tar xf /root/repository.tar -C /srv\n"
            f"cp /srv/repository/{apt_repository.KEYRING} /root/key.asc\n"
            "mkdir -p /etc/apt/sources.list.d /etc/apt/preferences.d\n"
            "[ -s /etc/machine-id ] || echo 0123456789abcdef0123456789abcdef >/etc/machine-id\n"
            "echo 'deb [signed-by=/root/key.asc] file:/srv/repository stable main' "
            ">/etc/apt/sources.list"
        )
        self.do("update")

    def current(self) -> str:
        return self.device.run("readlink /var/lib/edgepack/tiny/current").stdout.strip()[9:]

    def state(self) -> str:
        """dpkg's own word for the package: "installed", "half-configured", "config-files"."""
        command = "dpkg-query -W -f '${db:Status-Status}' edgepack-tiny-rasp3b"
        return self.device.run(command, check=False).stdout


def test_apt_installs_upgrades_and_removes(
    arm_releases: tuple[Bundle, Bundle, Bundle], tmp_path: Path
) -> None:
    """The first release by hand; the others come from a repository."""
    first, second, wrong = arm_releases
    last = fake_bundle(tmp_path / "last", board="rasp3b", app=FAKE_APP + "##\n", version=4)
    repository = tmp_path / "repository"

    def publish(*add: Path, phase: int | None = None, withdraw: bool = False) -> None:
        change = apt_repository.Change(key=KEY, add=add, phase=phase, withdraw=withdraw)
        apt_repository.publish(repository, change)
        on.brought(repository)

    board = virtual.up(get_board("rasp3b"), name="apt")
    device = login(board, "root")
    on = Apt(device)
    root = "/var/lib/edgepack/tiny"
    with gpg_keys(KEY), contextlib.ExitStack() as stack:
        stack.callback(virtual.down, "apt")
        stack.callback(device.close)
        on.prepare(tmp_path)
        on.do("install", deb(first, tmp_path))
        assert (on.state(), on.current()) == ("installed", first.manifest.release)

        # To 2 of 101 devices only, of which this is none.
        publish(deb(second, tmp_path), phase=1)
        on.do("upgrade")
        assert on.current() == first.manifest.release
        publish(phase=100)
        on.do("upgrade")
        assert (on.state(), on.current()) == ("installed", second.manifest.release)
        assert device.run(f"{root}/current/bin/edgepack-run --golden").returncode == 0

        # A release that fails its test: apt says so, and what ran before runs on.
        publish(deb(wrong, tmp_path))
        said = on.do("upgrade", check=False)
        assert "error: " in said
        assert (on.state(), on.current()) == ("half-configured", second.manifest.release)
        # It goes, and the next one that works comes by itself.
        publish(withdraw=True)
        on.do("upgrade", check=False)
        assert on.current() == second.manifest.release
        publish(deb(last, tmp_path))
        on.do("upgrade")
        assert (on.state(), on.current()) == ("installed", last.manifest.release)
        # One from before, by hand.
        on.do("install --allow-downgrades", deb(first, tmp_path))
        assert (on.state(), on.current()) == ("installed", first.manifest.release)

        on.do("remove edgepack-tiny-rasp3b")
        assert on.state() == "config-files"
        left = device.run(f"cd {root} && find . -type f | sort").stdout.split()
        assert {name.split("/")[1] for name in left} <= {"state", "trust", ".lock"}
        on.do("purge edgepack-tiny-rasp3b")
        assert device.run("ls /var/lib/edgepack /usr/lib/edgepack", check=False).stdout == ""


# --- oci ---


def test_skopeo_and_umoci_read_the_image(tmp_path: Path) -> None:
    skopeo, umoci = require_tool("skopeo"), require_tool("umoci")
    qemu = require_tool("qemu-arm-static", "qemu-arm")
    # It needs what the real app needs of the image: the loader, libc and libm.
    app = cross.gcc(
        tmp_path,
        "#include <math.h>\n#include <stdio.h>\n"
        'int main(int c, char **v) { printf("%s %.3f\\n", v[1], cos(c - 2)); return 0; }\n',
        "-lm",
    )
    made = []
    for name in ("a", "b"):
        bundle = small_bundle(tmp_path / name, app=app, version=3)
        made.append(formats.write_package("oci", bundle, get_board("rasp3b"), tmp_path / name))
    assert made[0].sha256 == made[1].sha256

    image = f"oci-archive:{made[0].path}"
    inspected = json_of([skopeo, "inspect", image])
    assert (inspected["Os"], inspected["Architecture"]) == ("linux", "arm")
    assert inspected["Labels"] == {
        "edgepack.board": "rasp3b",
        "edgepack.model": "tiny",
        "edgepack.model-sha256": bundle.manifest.model.sha256,
        "edgepack.release": bundle.manifest.release,
        "edgepack.version": "3",
    }
    config = json_of([skopeo, "inspect", "--config", image])
    assert config["config"]["User"] == "65534:65534"
    # skopeo checks every digest on the way.
    run([skopeo, "copy", "--insecure-policy", image, f"dir:{tmp_path / 'dir'}"])
    run([skopeo, "copy", "--insecure-policy", f"dir:{tmp_path / 'dir'}", f"oci:{tmp_path}/i:x"])

    run([umoci, "unpack", "--rootless", "--image", f"{tmp_path}/i:x", tmp_path / "unpacked"])
    files = tmp_path / "unpacked/rootfs"
    listed = (bundle.path / "manifest.json").read_bytes()
    assert (files / "edgepack/manifest.json").read_bytes() == listed
    assert not (files / "bin/sh").exists()
    entry = files / "edgepack/bin/edgepack-run"
    assert config["config"]["Entrypoint"] == [f"/{entry.relative_to(files)}"]
    answer = run([qemu, "-L", files, entry, "--golden"])
    assert answer.stdout == "--golden 1.000\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="apt has an account of its own for root alone")
def test_what_is_unpacked_is_ours_where_others_reach_the_folder() -> None:
    """As in a cache below /opt or /var: below /root apt's account gets nowhere."""
    require_tool("mmdebstrap")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        root = Path(name) / "root"
        apt.unpack(["netbase"], root, suite="bookworm", arch="armhf")
        assert (root / "etc/services").exists()
        assert (root / "var/cache/apt/archives/partial").exists()
        assert {path.lstat().st_uid for path in root.rglob("*")} == {0}


def test_a_changed_image_is_refused(tmp_path: Path) -> None:
    """By skopeo: the digests in the layout are right ones, not only some."""
    skopeo = require_tool("skopeo")
    package = formats.write_package("oci", small_bundle(tmp_path), get_board("rasp3b"), tmp_path)
    data = bytearray(package.path.read_bytes())
    place = data.index(b"the kernels\n")
    data[place] ^= 1
    (tmp_path / "changed.tar").write_bytes(data)
    image = f"oci-archive:{tmp_path / 'changed.tar'}"
    with pytest.raises(ToolchainError, match=r"[Dd]igest"):
        run([skopeo, "copy", "--insecure-policy", image, f"dir:{tmp_path / 'dir'}"])


def json_of(command: list[str]) -> dict[str, object]:
    value: dict[str, object] = json.loads(run(command).stdout)
    return value


# --- mender ---


@pytest.fixture(scope="module")
def own_releases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Bundle, Bundle]:
    """For this machine, where the other systems' clients run."""
    return releases(tmp_path_factory.mktemp("own"), "local")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """private.pem, public.pem: EC, for Mender; ca.pem, key.pem, other.pem: RSA, for RAUC."""
    openssl = require_tool("openssl")
    folder = tmp_path_factory.mktemp("keys")
    run([openssl, "ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", "private.pem"],
        cwd=folder)  # fmt: skip
    run([openssl, "ec", "-in", "private.pem", "-pubout", "-out", "public.pem"], cwd=folder)
    for key, cert in (("key.pem", "ca.pem"), ("otherkey.pem", "other.pem")):
        command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30"]
        run([*command, "-subj", f"/CN={cert}", "-keyout", key, "-out", cert], cwd=folder)
    return folder


def test_mender_artifact_verifies_what_was_signed(
    arm_releases: tuple[Bundle, Bundle, Bundle], keys: Path, tmp_path: Path
) -> None:
    tool = require_tool("mender-artifact")
    bundle, board = arm_releases[0], get_board("rasp3b")
    package = formats.write_package(
        "mender",
        bundle,
        board,
        tmp_path,
        Options(key=keys / "private.pem", compatible="raspberrypi3"),
    )
    run([tool, "validate", "-k", keys / "public.pem", package.path])
    said = run([tool, "read", "-k", keys / "public.pem", package.path]).stdout
    assert f"Name: {bundle.manifest.folder_name}" in said
    assert "Compatible devices: '[raspberrypi3]'" in said
    assert "Type:   edgepack" in said
    found = mender_server.read_artifact(package.path)
    assert (found.name, found.device_types) == (bundle.manifest.folder_name, ("raspberrypi3",))
    data = bytearray(package.path.read_bytes())
    data[data.index(b"bundle.tar.gz") + 600] ^= 1
    package.path.write_bytes(data)
    with pytest.raises(ToolchainError):
        run([tool, "validate", "-k", keys / "public.pem", package.path])


class Mender:
    """Debian's Mender client in a root file system of its own, as this machine runs it."""

    def __init__(self, folder: Path, public_key: Path) -> None:
        arch = get_board("local").debian_arch
        packages = ["mender-client", "bash", "coreutils", "dash", "findutils", "gzip", "tar"]
        self.root = folder / "root"
        whole = unpacked("mender", [*packages, "sed"], suite="bookworm", arch=arch)
        # Of /dev nothing: a copy of its `zero` would never end.
        shutil.copytree(whole, self.root, symlinks=True, ignore=shutil.ignore_patterns("dev"))
        # In the package a link to a partition that images with Mender have.
        (self.root / "var/lib/mender").unlink()
        for name in ("var/lib/mender/scripts", "data", "etc/mender", "proc", "dev", "tmp"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        sh = self.root / "bin/sh"
        if not sh.exists():
            sh.symlink_to("dash")
        (self.root / "etc/mender/artifact_info").write_text("artifact_name=none\n")
        (self.root / "etc/mender/mender.conf").write_text(
            '{"ArtifactVerifyKey": "/etc/mender/key.pem", "ServerURL": "https://localhost"}\n'
        )
        (self.root / "var/lib/mender/device_type").write_text("device_type=local\n")
        shutil.copy(public_key, self.root / "etc/mender/key.pem")
        self.releases = self.root / "var/lib/edgepack/tiny"

    def provide(self, module: Path) -> None:
        shutil.copy(module, self.root / "usr/share/mender/modules/v3/edgepack")

    def do(self, *words: str) -> tuple[int, str]:
        script = 'mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && exec chroot "$@"'
        command = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "sh", "-c",
                   script, "sh", self.root, "/usr/bin/mender", "--no-syslog"]  # fmt: skip
        done = subprocess.run(
            [*command, *words],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def install(self, package: Path) -> tuple[int, str]:
        shutil.copy(package, self.root / "data/x.mender")
        return self.do("install", "/data/x.mender")


def test_mender_installs_commits_and_rolls_back(
    own_releases: tuple[Bundle, Bundle, Bundle], keys: Path, tmp_path: Path
) -> None:
    require_tool("mender-artifact")
    first, second, wrong = own_releases
    client = Mender(tmp_path, keys / "public.pem")
    made = {
        bundle.manifest.version: formats.write_package(
            "mender", bundle, get_board("local"), tmp_path, Options(key=keys / "private.pem")
        ).path
        for bundle in own_releases
    }
    client.provide(tmp_path / "mender-module-edgepack")
    code, said = client.install(made[1])
    assert code == 0, said
    assert client.do("commit")[0] == 0
    assert current(client.releases) == first.manifest.release

    code, said = client.install(made[2])
    assert code == 0, said
    assert current(client.releases) == second.manifest.release
    assert client.do("rollback")[0] == 0
    assert current(client.releases) == first.manifest.release

    code, said = client.install(made[3])
    assert code != 0
    assert current(client.releases) == first.manifest.release

    unsigned = formats.write_package("mender", second, get_board("local"), tmp_path / "unsigned")
    code, said = client.install(unsigned.path)
    assert code != 0
    assert "signature" in said
    assert current(client.releases) == first.manifest.release
    assert wrong.manifest.release not in {p.name for p in client.releases.glob("releases/*")} or (
        current(client.releases) != wrong.manifest.release
    )


# --- rauc ---


def rauc_package(bundle: Bundle, keys: Path, folder: Path) -> Path:
    require_tool("rauc")
    require_tool("mksquashfs")
    options = Options(key=keys / "key.pem", cert=keys / "ca.pem", compatible="Our Camera")
    board = get_board(bundle.manifest.board)
    return formats.write_package("rauc", bundle, board, folder, options).path


def test_rauc_verifies_its_bundle(
    arm_releases: tuple[Bundle, Bundle, Bundle], keys: Path, tmp_path: Path
) -> None:
    package = rauc_package(arm_releases[0], keys, tmp_path)
    said = run(["rauc", "info", f"--keyring={keys / 'ca.pem'}", package]).stdout
    assert "Compatible: \t'Our Camera'" in said
    assert f"Version:    \t'1+{arm_releases[0].manifest.release}'" in said
    with pytest.raises(ToolchainError, match="signature verification failed"):
        run(["rauc", "info", f"--keyring={keys / 'other.pem'}", package])


@pytest.mark.skipif(
    os.getuid() != 0 or not os.access("/dev/loop-control", os.W_OK),
    reason="RAUC mounts its bundles: that needs root and loop devices",
)
def test_rauc_installs(
    own_releases: tuple[Bundle, Bundle, Bundle], keys: Path, tmp_path: Path
) -> None:
    bus = require_tool("dbus-run-session")
    first, second, wrong = own_releases
    (tmp_path / "mnt").mkdir()
    config = tmp_path / "system.conf"
    config.write_text(
        f"[system]\ncompatible=Our Camera\nbootloader=noop\nmountprefix={tmp_path}/mnt\n\n"
        f"[keyring]\npath={keys / 'ca.pem'}\n\n"
        "[slot.rootfs.0]\ndevice=/dev/null\ntype=raw\nbootname=A\n"
    )
    script = (
        # (dbus-run-session takes this variable away.)
        "export DBUS_STARTER_BUS_TYPE=session\n"
        f"rauc -c {config} --override-boot-slot=A service >{tmp_path}/log 2>&1 & service=$!\n"
        "for _ in $(seq 100); do rauc status >/dev/null 2>&1 && break; sleep 0.1; done\n"
        'rauc install "$1"; code=$?; kill $service; wait $service; exit $code'
    )

    def install(bundle: Bundle) -> int:
        package = rauc_package(bundle, keys, tmp_path / str(bundle.manifest.version))
        done = subprocess.run(
            [bus, "--", "sh", "-c", script, "sh", package],
            env={
                "PATH": os.environ["PATH"],
                "DBUS_STARTER_BUS_TYPE": "session",
                "EDGEPACK_ROOT": str(tmp_path / "edgepack"),
            },
            capture_output=True,
            timeout=120,
            check=False,
        )
        return done.returncode

    root = tmp_path / "edgepack/tiny"
    assert install(first) == 0, (tmp_path / "log").read_text()
    assert current(root) == first.manifest.release
    assert install(second) == 0
    assert current(root) == second.manifest.release
    assert install(wrong) != 0
    assert current(root) == second.manifest.release
    assert "what was current before still is" in (tmp_path / "log").read_text()

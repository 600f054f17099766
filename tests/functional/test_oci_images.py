"""`publish oci` into Debian's docker-registry, read by skopeo; the unit by podman's quadlet."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edgepack
from edgepack.base.errors import ToolchainError, UsageError
from edgepack.base.process import run
from edgepack.boards import get_board
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.manifest import Health
from edgepack.bundle.service import Service
from edgepack.cli import main
from edgepack.formats import quadlet, registry
from edgepack.formats.registry import PublishedImages
from edgepack.model.errors import SourceError
from tests import cross, registries
from tests.boards import own_cache, unpacked
from tests.bundles import FakeTool, small_bundle
from tests.support import free_port, require_tool

# Static: their images are from scratch.
ARMV7, ARM64 = "alpine-armv7", "alpine-aarch64"
PLATFORMS = {ARMV7: ("arm", "v7"), ARM64: ("arm64", "v8")}
SERVICE = Service(args=("--watch", "/var/lib/photos", "--camera", "/dev/video0"), memory_mb=64)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the registry keeps what it is sent."""
    return tmp_path_factory.mktemp("registry")


@pytest.fixture(scope="module")
def where(store: Path) -> Iterator[str]:
    with own_cache(), registries.registry(store) as address:
        yield address


def bundles(folder: Path, **changes: Any) -> dict[str, Bundle]:
    """A bundle for each board, with a text for its program: nothing starts it."""
    return {
        board: small_bundle(folder / board, board=board, app=board.encode(), **changes)
        for board in PLATFORMS
    }


def publish(made: dict[str, Bundle], name: str, key: Path | None = None) -> PublishedImages:
    return registry.publish(made, {board: get_board(board) for board in made}, name, key)


def inspect(address: str, board: str, *words: str) -> Any:
    """What skopeo says of the image that an engine on that board takes."""
    arch, variant = PLATFORMS[board]
    command = ["skopeo", "--override-os", "linux", "--override-arch", arch]
    command += ["--override-variant", variant, "inspect", "--tls-verify=false", *words]
    return json.loads(run([*command, f"docker://{address}"]).stdout)


def blobs(store: Path) -> dict[str, int]:
    """The registry's blobs, by digest, with the time that each was written."""
    found = (store / "kept/docker/registry/v2/blobs/sha256").rglob("data")
    return {path.parent.name: path.stat().st_mtime_ns for path in found}


def test_each_board_finds_its_image_and_only_what_changed_is_sent(
    where: str, store: Path, tmp_path: Path
) -> None:
    name = f"{where}/shop/flowers:stable"
    first = bundles(tmp_path / "1", version=1, params=bytes(range(256)) * 40)
    said = publish(first, name)
    assert list(said.platforms.values()) == ["linux/arm/v7", "linux/arm64/v8"]
    raw = ["skopeo", "inspect", "--raw", "--tls-verify=false"]
    index = json.loads(run([*raw, f"docker://{name}"]).stdout)
    assert index["mediaType"] == "application/vnd.oci.image.index.v1+json"
    listed = {f"oci://{where}/shop/flowers@{one['digest']}" for one in index["manifests"]}
    assert listed == {*said.images.values()}
    for board, bundle in first.items():
        seen = inspect(name, board)
        assert seen["Labels"] == {
            "edgepack.board": board,
            "edgepack.model": "tiny",
            "edgepack.model-sha256": bundle.manifest.model.sha256,
            "edgepack.release": bundle.manifest.release,
            "edgepack.version": "1",
        }
        assert len(seen["Layers"]) == 3  # from scratch: no libc6

    # Again: the same address, and nothing is written.
    before = blobs(store)
    again = edgepack.publish_oci(f"oci://{name}", list(first.values()))
    assert again.address == said.address
    assert blobs(store) == before

    # Other weights: programs are not sent again.
    second = bundles(tmp_path / "2", version=2, params=bytes(range(255, -1, -1)) * 40)
    publish(second, name)
    after = blobs(store)
    assert {digest: after[digest] for digest in before} == before
    # The weights of both boards are one layer; for each board manifest.json and its like, config
    # and manifest; and the index.
    assert len(after) - len(before) == 1 + 2 * 3 + 1
    for board in PLATFORMS:
        layers = inspect(name, board)["Layers"]
        assert len({one.removeprefix("sha256:") for one in layers} & set(before)) == 1
    # The release from before is still there, by its digest.
    for address in said.images.values():
        run([*raw, address.replace("oci://", "docker://")])


def test_the_files_that_a_board_gets_are_the_bundle(where: str, tmp_path: Path) -> None:
    umoci = require_tool("umoci")
    made = bundles(tmp_path)
    name = f"{where}/shop/files:1"
    publish(made, name)
    for board, (arch, variant) in PLATFORMS.items():
        out = tmp_path / board / "image"
        words = ["skopeo", "--override-arch", arch, "--override-variant", variant]
        words += ["--insecure-policy", "copy", "--src-tls-verify=false", f"docker://{name}"]
        run([*words, f"oci:{out}:x"])
        unpacked_to = tmp_path / board / "unpacked"
        run([umoci, "unpack", "--rootless", "--image", f"{out}:x", unpacked_to])
        root = unpacked_to / "rootfs"
        assert [path.name for path in root.iterdir()] == ["edgepack"]
        theirs = made[board].path
        for file in theirs.rglob("*"):
            if file.is_file():
                copy = root / "edgepack" / file.relative_to(theirs)
                assert copy.read_bytes() == file.read_bytes()
                assert os.access(copy, os.X_OK) == os.access(file, os.X_OK)


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A private key, its public one, and somebody else's public one."""
    openssl = require_tool("openssl")
    for name in ("own", "other"):
        command = [openssl, "ecparam", "-genkey", "-name", "prime256v1", "-noout"]
        run([*command, "-out", tmp_path / f"{name}.pem"])
        out = tmp_path / f"{name}.pub"
        run([openssl, "ec", "-in", tmp_path / f"{name}.pem", "-pubout", "-out", out])
    return tmp_path / "own.pem", tmp_path / "own.pub", tmp_path / "other.pub"


def test_policies_of_podman_and_skopeo_take_what_was_signed(
    where: str, keys: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """Of skopeo 1.18, from Debian trixie: bookworm's is built without a check of signatures."""
    root = unpacked("skopeo", ["skopeo"], suite="trixie", arch="amd64")
    loader = [root / "usr/lib64/ld-linux-x86-64.so.2", "--library-path"]
    program = [*loader, root / "usr/lib/x86_64-linux-gnu", root / "usr/bin/skopeo"]
    private, public, other = keys
    made = bundles(tmp_path / "made")
    signed, plain = f"{where}/shop/signed:1", f"{where}/shop/plain:1"
    assert publish(made, signed, private).signed
    assert not publish(made, plain).signed
    registries_d = tmp_path / "registries.d"
    registries_d.mkdir()
    (registries_d / "x.yaml").write_text("default-docker:\n  use-sigstore-attachments: true\n")

    def pull(name: str, key: Path, board: str, *words: str) -> None:
        policy = tmp_path / "policy.json"
        rule = {
            "type": "sigstoreSigned",
            "keyPath": str(key),
            "signedIdentity": {"type": "matchRepository"},
        }
        policy.write_text(json.dumps({"default": [rule]}))
        arch, variant = PLATFORMS[board]
        command = [*program, "--policy", policy, "--registries.d", registries_d]
        command += ["--override-arch", arch, "--override-variant", variant]
        out = tmp_path / f"pulled-{len(list(tmp_path.iterdir()))}"
        run([*command, "copy", "--src-tls-verify=false", "--remove-signatures", *words,
             f"docker://{name}", f"dir:{out}"])  # fmt: skip

    for board in PLATFORMS:
        pull(signed, public, board)  # the image of a platform, as an engine pulls it
    pull(signed, public, ARM64, "--all")  # the index, as a mirror copies it
    for name, key in ((signed, other), (plain, public)):
        with pytest.raises(ToolchainError, match=r"signature|rejected"):
            pull(name, key, ARM64)


def test_cosign_takes_what_was_signed(
    where: str, keys: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """Of cosign 2, from Debian trixie; as the guide says, without a transparency log."""
    root = unpacked("cosign", ["cosign"], suite="trixie", arch="amd64")
    cosign = [root / "usr/bin/cosign", "verify", "--insecure-ignore-tlog", "--output", "json"]
    private, public, other = keys
    name = f"{where}/shop/cosigned:1"
    signed = publish(bundles(tmp_path / "1", version=1), name, private)
    for address in (signed.address, *signed.images.values()):
        here, digest = address.removeprefix("oci://"), address.rpartition("@")[2]
        said = json.loads(run([*cosign, "--key", public, here]).stdout)
        assert [one["critical"]["image"]["docker-manifest-digest"] for one in said] == [digest]
        with pytest.raises(ToolchainError, match="no matching signatures"):
            run([*cosign, "--key", other, here])
    run([*cosign, "--key", public, name])
    # What somebody puts under the name without the key.
    publish(bundles(tmp_path / "2", version=2), name)
    with pytest.raises(ToolchainError, match="no signatures found"):
        run([*cosign, "--key", public, name])


def test_what_cannot_be_published(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = bundles(tmp_path)
    twin = small_bundle(tmp_path / "twin", board="android-arm64")
    boards = {name: get_board(name) for name in (*PLATFORMS, "android-arm64")}
    both = {**made, "android-arm64": twin}
    with pytest.raises(UsageError, match="alpine-aarch64 and android-arm64 are both linux/arm64"):
        registry.publish(both, boards, f"{where}/shop/x:1")
    with pytest.raises(UsageError, match="a digest is what becomes"):
        registry.publish(made, boards, f"{where}/shop/x@sha256:{'0' * 64}")
    with pytest.raises(UsageError, match="no such file"):
        registry.publish(made, boards, f"{where}/shop/x:1", tmp_path / "none.pem")
    (tmp_path / "bad.pem").write_text("no key\n")
    with pytest.raises(ToolchainError, match="signing with"):
        registry.publish(made, boards, f"{where}/shop/x:1", tmp_path / "bad.pem")
    with pytest.raises(SourceError, match="cannot be asked"):
        registry.publish(made, boards, f"127.0.0.1:{free_port()}/shop/x:1")
    assert main(["publish", "oci", "ftp://x/y"]) == 2
    assert "not an address of a registry" in capsys.readouterr().err


def test_podman_s_quadlet_reads_the_unit(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of podman 5, from Debian trixie: what starts, what is checked, and what follows the tag."""
    root = unpacked("podman", ["podman"], suite="trixie", arch="amd64")
    units = tmp_path / "units"
    app = cross.gcc(tmp_path, "void _start(void) {}\n", "-static", "-nostdlib")
    library = cross.gcc(tmp_path, "void kernel(void) {}\n", "-shared", "-nostdlib")
    name = f"{where}/shop/watch"
    words = ["publish", "oci", f"oci://{name}", "--quadlet", str(units), "--json"]
    for service, status in ((None, 2), (SERVICE, 0)):
        folder = tmp_path / str(status)
        bundle = small_bundle(
            folder, app=app, tool=FakeTool(path=app), library=library, service=service
        )
        assert main([*words, "--bundle", str(bundle.path)]) == status
        said = capsys.readouterr()
        assert units.exists() == (status == 0)
    assert json.loads(said.out)["quadlet"] == str(units / "edgepack-tiny.container")
    done = subprocess.run(
        [root / "usr/libexec/podman/quadlet", "-dryrun", "-no-kmsg-log"],
        env={"QUADLET_UNIT_DIRS": str(units), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "Unsupported" not in done.stderr and "error" not in done.stderr.lower()
    start = next(line for line in done.stdout.splitlines() if line.startswith("ExecStart="))
    for words in (
        f" {name}:latest",
        " --label io.containers.autoupdate=registry ",
        " --sdnotify=healthy ",
        r""" --health-cmd "[\"/edgepack/bin/edgepack-run\", \"--golden\"]" """,
        " --health-on-failure kill ",
        " --device /dev/video0 ",
        " --group-add 44 ",
        " -v /var/lib/photos:/var/lib/photos:ro ",
        " --network none ",
        " --memory=128000000b ",  # the app, and its test beside it
        " --read-only ",
        " --cap-drop all ",
    ):
        assert words in f"{start} ", (words, start)
    assert "Restart=always" in done.stdout
    # However often it fails, it is started again; so it is when its camera comes back.
    assert "StartLimitIntervalSec=0" in done.stdout


def test_a_start_has_time_for_the_slowest_board_s_test(tmp_path: Path) -> None:
    quick, slow = (
        small_bundle(
            tmp_path / board, board=board, service=SERVICE, health=Health(timeout_s=limit_s)
        ).manifest
        for board, limit_s in ((ARM64, 60.0), (ARMV7, 1800.0))
    )
    lines = quadlet.unit([quick, slow], "registry.example/shop/x:1").splitlines()
    assert "HealthTimeout=1800s" in lines
    (limit,) = (line.partition("=")[2] for line in lines if line.startswith("TimeoutStartSec="))
    assert 1800 < int(limit) < 3600


def test_paths_that_a_unit_cannot_name(tmp_path: Path) -> None:
    service = replace(SERVICE, args=("--watch", "/var/lib/a:b"))
    bundle = small_bundle(tmp_path, board=ARM64, service=service)
    with pytest.raises(UsageError, match="cannot be written in podman's unit"):
        quadlet.unit([bundle.manifest], "registry.example/shop/x:1")

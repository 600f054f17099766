"""The files that start a service, judged by systemd's own tools and by a shell."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from edgepack.base.errors import UsageError
from edgepack.bundle.service import Service, access
from edgepack.deploy.remote_service import Site
from edgepack.deploy.service_files import (
    Place,
    account_name,
    cron_line,
    init_script,
    systemd_unit,
)
from tests.support import require_tool

SERVICE = Service(
    args=("--watch", "/tmp"), watchdog_s=30.0, memory_mb=120, writable=("/tmp",)
)  # fmt: skip
# systemd's own scale of exposure goes from 0.0 (best) to 10.0; `systemd-analyze security` calls
# what is below 2.0 "OK", and an ordinary unit has 9.6.
EXPOSURE = 1.0
# Devices are open to whoever may open them by their groups.
GPU_EXPOSURE = 1.6


def place(folder: Path, owner: str, account: str | None = None) -> Place:
    """A root folder with something in the tool's place: `verify` looks for it."""
    tool = folder / "bin/edgepack-device"
    tool.parent.mkdir(exist_ok=True)
    shutil.copy("/bin/true", tool)
    return Place(name="tiny", root=str(folder), owner=owner, tool=str(tool), account=account)


@pytest.mark.parametrize(
    ("owner", "gpu", "most"),
    [("root", None, EXPOSURE), ("daemon", None, EXPOSURE), ("root", ("video",), GPU_EXPOSURE)],
)
def test_systemd_takes_the_unit_and_finds_it_closed(
    owner: str, gpu: tuple[str, ...] | None, most: float, tmp_path: Path
) -> None:
    analyze = require_tool("systemd-analyze")
    unit = tmp_path / "edgepack-tiny.service"
    unit.write_text(systemd_unit(replace(place(tmp_path, owner), gpu_groups=gpu), SERVICE))
    verified = subprocess.run(
        [analyze, "verify", "--recursive-errors=no", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    # Complaints about this machine's own units do not name ours.
    assert "edgepack-tiny" not in verified.stderr, verified.stderr
    assert verified.returncode == 0
    command = [analyze, "security", "--offline=true", "--json=short", unit]
    report = subprocess.run(command, capture_output=True, text=True, check=False)
    found = {row["json_field"]: row for row in json.loads(report.stdout)}
    for row in ("UserOrDynamicUser", "NoNewPrivileges", "ProtectSystem", "PrivateNetwork"):
        assert found[row]["set"], row
    # What systemd itself says of whether devices can be opened.
    assert found["PrivateDevices"]["set"] == (gpu is None)
    text = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", unit],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    exposure = re.search(r"Overall exposure level for edgepack-tiny.service: ([0-9.]+)", text)
    assert exposure is not None
    assert float(exposure[1]) <= most


def test_verify_would_notice(tmp_path: Path) -> None:
    analyze = require_tool("systemd-analyze")
    unit = tmp_path / "edgepack-tiny.service"
    text = systemd_unit(place(tmp_path, "root"), SERVICE)
    unit.write_text(text.replace("MemoryMax=", "MemoryMaximum="))
    done = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False)
    assert "MemoryMaximum" in done.stderr


def test_limits_are_the_tables(tmp_path: Path) -> None:
    lines = systemd_unit(place(tmp_path, "pi", "camera"), SERVICE).splitlines()
    # The device tool becomes the owner by itself, without PAM and its files.
    recover = f"{tmp_path}/bin/edgepack-device recover --root {tmp_path} --owner pi"
    assert f"ExecStartPre=+-{recover}" in lines
    assert "User=camera" in lines
    assert "DynamicUser=yes" not in lines
    assert "MemoryMax=128000000" in lines
    assert "ReadWritePaths=/tmp" in lines
    assert "Restart=always" in lines
    bare = systemd_unit(place(tmp_path, "root"), Service(args=("--golden",), restart="never"))
    assert "DynamicUser=yes" in bare.splitlines()
    assert "Restart=no" in bare.splitlines()
    assert "MemoryMax" not in bare


@pytest.mark.parametrize(
    ("args", "who"),
    [
        (("--watch", "/in"), None),
        (("--serve", "unix:/run/x/s"), None),
        (("--serve", "8080"), "loopback"),
        (("--serve=127.0.0.1:8080",), "loopback"),
        (("--camera", "/dev/video0", "--preview", "[::1]:80"), "loopback"),
        (("--serve", "127.0.0.1.example:80"), "any"),
        (("--preview", "80", "--serve", "0.0.0.0:80"), "any"),
        (("--serve", "[0:0:0:0:0:0:0:1]:80"), "loopback"),
        (("--serve", "::1:80"), "loopback"),
        (("--serve", "192.168.1.2:80"), "any"),
    ],
)
def test_the_network_is_open_to_whom_the_app_lets_in(
    args: tuple[str, ...], who: str | None, tmp_path: Path
) -> None:
    service = Service(args=args)
    assert access(service).network == who
    lines = systemd_unit(place(tmp_path, "root"), service).splitlines()
    assert ("PrivateNetwork=yes" in lines) == (who is None)
    assert ("IPAddressDeny=any" in lines) == (who != "any")
    assert ("IPAddressAllow=localhost" in lines) == (who == "loopback")
    assert ("RestrictAddressFamilies=AF_UNIX" in lines) == (who is None)


def values(lines: list[str], key: str) -> list[str]:
    """All values of a directive, in their order."""
    return [line.partition("=")[2] for line in lines if line.startswith(f"{key}=")]


def test_what_a_service_touches_follows_from_its_arguments(tmp_path: Path) -> None:
    here = place(tmp_path, "root", "edgepack-tiny")
    args = ("--camera", "/dev/video0", "--out", "/data/my lines/%x.jsonl", "--preview", "80")
    service = Service(args=args, writable=("/more",))
    lines = systemd_unit(here, service).splitlines()
    # A camera that is plugged in again may get another number: 81 is V4L's major one.
    assert values(lines, "DeviceAllow") == ["char-81 rw"]
    assert values(lines, "PrivateDevices") == ["no"]
    assert values(lines, "DevicePolicy") == ["closed"]
    assert values(lines, "SupplementaryGroups") == ["video"]
    assert values(lines, "ReadWritePaths") == ['/more "/data/my lines"']
    assert values(lines, "RequiresMountsFor") == [f'{tmp_path} /more "/data/my lines"']
    assert values(lines, "AmbientCapabilities") == ["CAP_NET_BIND_SERVICE"]
    assert values(lines, "CapabilityBoundingSet") == ["CAP_NET_BIND_SERVICE"]
    assert values(lines, "SocketBindAllow") == ["tcp:80"]
    assert values(lines, "PrivateTmp") == ["yes"]
    words = shlex.split(init_script(here, service).replace("\\\n", " "))
    said = list(itertools.pairwise(words))
    for pair in (
        ("--writable", "/more"),
        ("--writable", "/data/my lines"),
        ("--group", "video"),
        ("--reads", "/dev/video0"),
    ):
        assert pair in said
    assert "--low-ports" in words

    # Nothing more: another service has none of it.
    lines = systemd_unit(here, Service(args=("--watch", "/in"))).splitlines()
    assert values(lines, "PrivateDevices") == ["yes"]
    assert values(lines, "CapabilityBoundingSet") == [""]
    for key in ("DeviceAllow", "SupplementaryGroups", "ReadWritePaths", "AmbientCapabilities"):
        assert values(lines, key) == []
    assert values(lines, "RequiresMountsFor") == [f"{tmp_path} /in"]


def test_folders_below_run_are_made_at_each_start(tmp_path: Path) -> None:
    here = place(tmp_path, "root", "edgepack-tiny")
    service = Service(args=("--serve", "unix:/run/mug/socket"))
    lines = systemd_unit(here, service).splitlines()
    assert values(lines, "RuntimeDirectory") == ["mug"]
    assert values(lines, "ReadWritePaths") == []
    script = init_script(here, service)
    assert "mkdir -p /run/mug && chown edgepack-tiny /run/mug\n" in script
    assert "--writable /run/mug" in script


@pytest.mark.parametrize("args", [("--watch", "/tmp/in"), ("--images", "/var/tmp/*/a.jpg")])
def test_what_lies_in_tmp_is_what_others_see(args: tuple[str, ...], tmp_path: Path) -> None:
    lines = systemd_unit(place(tmp_path, "root"), Service(args=args)).splitlines()
    assert values(lines, "PrivateTmp") == ["no"]


def test_the_init_script_is_plain_shell(tmp_path: Path) -> None:
    script = tmp_path / "edgepack-tiny"
    script.write_text(init_script(place(tmp_path, "root", "edgepack-tiny"), SERVICE))
    subprocess.run([require_tool("dash"), "-n", script], check=True)
    subprocess.run([require_tool("busybox"), "sh", "-n", script], check=True)
    usage = subprocess.run(["sh", script], capture_output=True, text=True, check=False)
    assert (usage.returncode, usage.stdout) == (2, "")
    assert "start|stop|restart|status" in usage.stderr


def test_the_line_for_cron() -> None:
    root = "/home/pi/x"
    here = Place(name="tiny", root=root, owner="pi", tool=f"{root}/bin/edgepack-device")
    line = cron_line(here)
    assert line.startswith(f"* * * * * {root}/bin/edgepack-device run --supervise --respawn ")
    assert shlex.split(line)[-2:] == ["#", "edgepack-tiny"]
    assert f"--lock {root}/.service.lock" in line


def site(*, service: Service, owner: str = "pi") -> Site:
    return Site(
        name="Tiny_1.0",
        root="/home/pi/tiny",
        owner=owner,
        login="admin",
        kind="init",
        rights="sudo",
        triple="arm-linux-gnueabihf",
        service=service,
    )


def test_a_gpu_is_opened_by_its_groups(tmp_path: Path) -> None:
    """Its driver opens device nodes that no argument names."""
    service = Service(args=("--camera", "/dev/video0"))
    here = replace(place(tmp_path, "root", "edgepack-tiny"), gpu_groups=("render", "video"))
    lines = systemd_unit(here, service).splitlines()
    assert values(lines, "PrivateDevices") == ["no"]
    assert values(lines, "DevicePolicy") == ["auto"]
    # systemd.exec(5): it implies a DeviceAllow=, by which DevicePolicy=auto closes all others.
    assert values(lines, "ProtectClock") == ["no"]
    assert values(lines, "DeviceAllow") == []
    assert values(lines, "CacheDirectory") == ["edgepack-tiny"]
    assert values(lines, "Environment") == ["CUDA_CACHE_PATH=/var/cache/edgepack-tiny"]
    assert values(lines, "SupplementaryGroups") == ["render video"]
    words = shlex.split(init_script(here, service).replace("\\\n", " "))
    assert [b for a, b in itertools.pairwise(words) if a == "--group"] == ["render", "video"]
    # Where there is no such group, systemd would not start the service.
    lines = systemd_unit(replace(here, gpu_groups=()), Service(args=("--golden",))).splitlines()
    assert values(lines, "PrivateDevices") == ["no"]
    assert values(lines, "SupplementaryGroups") == []


def test_the_account_is_one_of_its_own() -> None:
    """Who can change the releases, or is root, would run what he likes as whoever the app is."""
    bare = Service(args=("--golden",))
    for name in ("root", "pi", "admin"):
        theirs = Service(args=("--golden",), user=name)
        for kind in ("systemd", "init"):
            with pytest.raises(UsageError, match=f"must not run as {name}"):
                site(service=theirs).place(kind, theirs)
    assert site(service=bare).place("systemd", bare).account is None
    assert site(service=bare).place("init", bare).account == "edgepack-tiny-1-0"
    assert site(service=SERVICE).place("systemd", SERVICE).account == "edgepack-tiny-1-0"
    named = Service(args=("--golden",), user="camera")
    assert site(service=named).place("init", named).account == "camera"
    # Without root there is no other.
    assert site(service=bare).place("cron", bare).account == "admin"


def test_names_of_accounts_are_short_and_apart() -> None:
    long = [account_name(f"{'x' * 60}{i}") for i in range(3)]
    assert len(set(long)) == 3
    for name in (*long, account_name("Cat or Dog")):
        assert re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", name)


@pytest.mark.parametrize("kind", ["systemd", "init"])
def test_root_starts_nothing_that_the_login_can_write(kind: str) -> None:
    where = site(service=SERVICE).place(kind, SERVICE)
    text = systemd_unit(where, SERVICE) if kind == "systemd" else init_script(where, SERVICE)
    assert f"{where.root}/bin" not in text
    assert where.tool.startswith("/usr/local/lib/edgepack/")

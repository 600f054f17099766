"""A board with a quota on its disk, and one whose clock begins in 1970: a real kernel's, both.

The board is a full-system one with Debian's whole kernel, which has what quotas need.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack import virtual
from edgepack.boards import get_board
from edgepack.bundle import signing
from edgepack.bundle.bundle import Bundle
from edgepack.cli import main
from edgepack.deploy.deploy import DeployOptions, deploy_bundle
from edgepack.deploy.remote_tool import RefusedBundleError, status
from edgepack.device import DiskFullError
from edgepack.device.ssh import SshDevice
from edgepack.virtual import VirtualBoard, kernel
from tests.boards import login, own_boards
from tests.cross import gcc
from tests.fake_app import fake_bundle
from tests.functional.test_camera import MODULES, PACKAGES
from tests.integration.cutting_proxy import CuttingProxy
from tests.ssh_keys import make_key, public
from tests.support import require_tool

pytestmark = pytest.mark.slow

BOARD = "rasp3b"
YEAR = 365 * 86400
# What setquota(8) does: DEVICE, a user's number, its limits in KB and in files.
SET_QUOTA = r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/quota.h>
int main(int count, char **words) {
  struct dqblk limits = {0};
  if (count != 5) return 2;
  limits.dqb_bhardlimit = limits.dqb_bsoftlimit = strtoull(words[3], NULL, 10);
  limits.dqb_ihardlimit = limits.dqb_isoftlimit = strtoull(words[4], NULL, 10);
  limits.dqb_valid = QIF_LIMITS;
  if (quotactl(QCMD(Q_SETQUOTA, USRQUOTA), words[1], atoi(words[2]), (caddr_t)&limits) == 0)
    return 0;
  perror("quotactl");
  return 1;
}
"""


@pytest.fixture(scope="module")
def board() -> Iterator[VirtualBoard]:
    require_tool("qemu-system-aarch64")
    with own_boards(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_PACKAGES", PACKAGES)
        patch.setattr(kernel, "_MODULES", (*MODULES[:-1], "loop", "quota_v2"))
        yield virtual.up(get_board(BOARD), name="quota", kind="system", disk_mb=512)


@pytest.fixture(scope="module")
def pi(board: VirtualBoard) -> Iterator[SshDevice]:
    with contextlib.closing(login(board, "pi")) as device:
        yield device


@pytest.fixture(scope="module")
def root(board: VirtualBoard) -> Iterator[SshDevice]:
    with contextlib.closing(login(board, "root")) as device:
        yield device


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_key(tmp_path_factory.mktemp("key"))


@pytest.fixture(scope="module")
def bundle(key: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    weights = np.random.default_rng(1).bytes(3_000_000)
    bundle = fake_bundle(tmp_path_factory.mktemp("bundle") / "one", board=BOARD, weights=weights)
    signing.sign_folder(bundle, key)
    return bundle


@pytest.mark.parametrize("what", ["bytes", "files"])
def test_a_quota_at_every_step(
    what: str, pi: SshDevice, root: SshDevice, bundle: Bundle, tmp_path: Path
) -> None:
    """From nothing to enough, of bytes and of files: said by its name, and nothing is broken."""
    image, mounted = tmp_path / what, f"/quota-{what}"
    make = ["-q", "-t", "ext4", "-O", "quota", "-E", "quotatype=usrquota,root_owner=1000:1000"]
    subprocess.run([require_tool("mke2fs"), *make, image, "64M"], check=True)
    (tmp_path / "disk.gz").write_bytes(gzip.compress(image.read_bytes(), compresslevel=1))
    root.put(tmp_path / "disk.gz", f"/root/{what}.gz")
    root.put(gcc(tmp_path, SET_QUOTA, "-static"), "/root/set-quota")
    root.run(
        f"chmod +x /root/set-quota; gunzip /root/{what}.gz; mkdir {mounted}; "
        f"mount -o loop,usrquota /root/{what} {mounted}"
    )
    device = root.run(f"losetup -j /root/{what} -n -O NAME").stdout.strip()

    def limit(kilobytes: int, files: int) -> None:
        root.run(f"/root/set-quota {device} 1000 {kilobytes} {files}")

    # It is one of the kernel's own.
    limit(100, 0)
    own = pi.run(f"head -c 200000 /dev/zero >{mounted}/x; rm {mounted}/x", check=False)
    assert "Disk quota exceeded" in own.stderr
    where, refused = f"{mounted}/m", 0
    for step in range(20):
        limit(*((60 + 1100 * step, 0) if what == "bytes" else (0, 3 + 7 * step)))
        try:
            report = deploy_bundle(bundle, pi, where)
        except DiskFullError as error:
            refused += 1
            assert "the disk quota of this login on " in error.message, (step, error.message)
            assert "quota -s" in str(error.hint)
            assert "df -h" not in str(error.hint)
            assert not pi.run(f"ls {where}/current", check=False).stdout
            continue
        # All of it may have been there already, and only a record had no room.
        assert report.outcome in ("deployed", "activated")
        break
    current = status(pi, where).current
    assert current is not None
    assert current.release == bundle.manifest.release
    assert refused >= 3


def set_clock(root: SshDevice, seconds: int) -> None:
    root.run(f"date -s @{seconds} >/dev/null")


def clock(root: SshDevice) -> int:
    return int(root.run("date +%s").stdout)


def test_a_key_that_is_not_valid_yet(
    pi: SshDevice, root: SshDevice, bundle: Bundle, key: Path, tmp_path: Path
) -> None:
    """In 1970 it is refused, with a word about the clock; then the clock is set, and it counts."""
    signers = tmp_path / "signers"
    options = 'namespaces="edgepack-bundle",valid-after="20240101Z"'
    signers.write_text(f"release@here {options} {public(key)}\n")
    pinned = DeployOptions(signers=signers)
    set_clock(root, 7200)
    with pytest.raises(RefusedBundleError, match="is valid only after 2024-01-01") as refusal:
        deploy_bundle(bundle, pi, "early", options=pinned)
    assert "here it is 1970-01-01" in refusal.value.message
    assert refusal.value.hint == "is the device's clock right?"
    set_clock(root, int(time.time()))
    assert deploy_bundle(bundle, pi, "early", options=pinned).outcome == "deployed"
    seen = int(pi.run("stat -c %Y early/trust/clock").stdout)
    assert abs(seen - time.time()) < YEAR


@pytest.mark.parametrize("cut_after", [None, 1_000_000])
def test_56_years_in_the_middle_of_an_upload(
    board: VirtualBoard, root: SshDevice, bundle: Bundle, cut_after: int | None, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Of a rollout's: NTP sets the clock once there is a network, and here while it is used."""
    set_clock(root, 7200)
    where = f"jump{cut_after}"
    fleet, config, known = (tmp_path / name for name in ("fleet.toml", "config", "known_hosts"))
    with CuttingProxy(board.port, cut_after=cut_after, bytes_s=1e6) as proxy:
        known.write_text(board.host_key.replace(f":{board.port} ", f":{proxy.port} ", 1) + "\n")
        config.write_text(f"IdentityFile {board.key_file}\nUserKnownHostsFile {known}\n")
        fleet.write_text(
            f'[devices.shop]\naddress = "127.0.0.1"\nport = {proxy.port}\nuser = "pi"\n'
            f'board = "{BOARD}"\nroot = "{where}"\n'
        )
        jumped = threading.Event()

        def jump() -> None:
            while proxy.up_bytes < 2_000_000 and not jumped.wait(0.05):
                pass
            set_clock(root, int(time.time()))
            jumped.set()

        thread = threading.Thread(target=jump)
        thread.start()

        def deploy() -> dict[str, Any]:
            words = ["fleet", "deploy", str(fleet), "--bundle", str(bundle.path), "--json"]
            code = main([*words, "--ssh-config", str(config)])
            out = capsys.readouterr().out
            (row,) = json.loads(out)["devices"]
            assert (code, row["ok"]) == (0, True), out
            return dict(row)

        try:
            assert deploy()["outcome"] == "deployed"
            # In its middle: some had arrived, and some not.
            assert jumped.is_set()
        finally:
            jumped.set()
            thread.join()
        assert proxy.up_bytes > 3_000_000
        assert (proxy.cuts > 0) == (cut_after is not None)
        assert abs(clock(root) - time.time()) < YEAR
        (tmp_path / ".edgepack").rename(tmp_path / "journals")
        assert deploy()["outcome"] == "unchanged"
    with contextlib.closing(login(board, "pi")) as pi:
        state = status(pi, where)
        assert state.current is not None
        assert state.current.release == bundle.manifest.release
        pi.run(f"{where}/bin/edgepack-device --root {where} verify")
        problems = json.loads(
            pi.run(f"{where}/bin/edgepack-device --root {where} status --json").stdout
        )["problems"]
        assert problems == []
        seen = int(pi.run(f"stat -c %Y {where}/trust/clock").stdout)
        assert abs(seen - time.time()) < YEAR

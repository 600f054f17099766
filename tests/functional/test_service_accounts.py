"""The supervisor between real accounts: root, who starts it; the login, whose releases it runs,
and who may be hostile; and the account of the app."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgepack.bundle.service import Service
from tests import fake_app
from tests.bundles import FakeTool
from tests.device_tool import host_tool

LOGIN, APP = "daemon", "nobody"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes other accounts")


class Rig:
    """A device: root's own folder with the tool, the login's with a release."""

    def __init__(self, folder: Path) -> None:
        self.orders, self.root, self.log = folder / "orders", folder / "login/tiny", folder / "log"
        self.tool = folder / "edgepack-device"
        shutil.copy(host_tool(), self.tool)
        bundle = fake_app.fake_bundle(
            folder / "bundle",
            program=fake_app.SERVICE_PROGRAM,
            tool=FakeTool(path=self.tool),
            service=Service(args=("--orders", str(self.orders)), writable=(str(self.orders),)),
        )
        self.bundle = bundle.path
        for path in (self.orders, self.root.parent):
            path.mkdir(mode=0o755)
        shutil.chown(self.orders, APP)
        shutil.chown(self.root.parent, LOGIN)
        self.login(self.tool, "install", self.bundle, "--root", self.root, "--json")

    def login(self, *words: str | Path, check: bool = True) -> str:
        """What a command of the login's says."""
        done = subprocess.run(
            words, user=LOGIN, group=LOGIN, check=False, capture_output=True, text=True, cwd="/"
        )
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done.stdout

    @contextlib.contextmanager
    def service(self, *words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
        """`run --supervise` by root, until the block ends."""
        command = [self.tool, "run", "--supervise", "--root", self.root, "--user", APP]
        with subprocess.Popen([*command, "--log", self.log, *words], cwd="/") as process:
            try:
                yield process
            finally:
                process.terminate()
                process.wait(30)

    def order(self, text: str) -> None:
        (self.orders / ".new").write_text(text)
        (self.orders / ".new").rename(self.orders / "order")

    def said(self) -> str:
        return "".join(
            path.read_text() for path in (Path(f"{self.log}.1"), self.log) if path.exists()
        )


def until(condition: Callable[[], object], what: str) -> None:
    for _ in range(300):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail(f"{what} did not come")


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    # Not pytest's own folder, which other accounts cannot enter.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Rig(Path(name))


def test_three_logs_of_talk_and_a_restart(rig: Rig) -> None:
    for _ in range(2):
        with rig.service() as process:
            until(lambda: "app: uid 65534" in rig.said(), "the app")
            rig.order("talk")
            until(lambda: rig.said().rstrip().endswith("app: said all"), "the end of its talk")
            assert process.poll() is None
        sizes = [path.stat().st_size for path in (rig.log, Path(f"{rig.log}.1"))]
        assert sum(sizes) > 10**6
        assert max(sizes) <= 1 << 20
        rig.log.write_text("")

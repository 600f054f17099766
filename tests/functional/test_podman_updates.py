"""What `publish oci --quadlet` writes, run by podman 5 and systemd on full-system boards: updates
from Debian's docker-registry, podman's own rollback, and the unit's where podman's was cut."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack import virtual
from edgepack.boards import get_board
from edgepack.bundle.bundle import Bundle, Golden
from edgepack.cli import main
from edgepack.flow import job
from edgepack.flow.project import load_project
from edgepack.virtual import VirtualBoard, kernel, rootfs
from tests import registries
from tests.boards import login, own_boards
from tests.onnx_models import Builder
from tests.support import free_port, require_tool

pytestmark = pytest.mark.slow

UNIT = "edgepack-biases"
SIDE, KERNELS = 512, 32
MEMORY_MB = 60
"""Enough for the app, whose activations are 34 MB, but not for two of it."""
LONGEST_S = 900.0
SYSTEMD = rootfs.INITS["systemd"]
PODMAN = replace(SYSTEMD, packages=(*SYSTEMD.packages, "podman", "crun"))


def release(folder: Path, version: int, *, passes: bool = True) -> Bundle:
    """A service that answers zeros with its version; it may fail its smoke test."""
    folder.mkdir(parents=True)
    b = Builder()
    weights = b.const(np.ones((KERNELS, 1, 3, 3), np.float32))
    bias = b.const(np.full(KERNELS, version, np.float32))
    b.op("Conv", "x", weights, bias, pads=[1, 1, 1, 1], outputs=["a"])
    b.op("ReduceMean", "a", axes=[2, 3], keepdims=0, outputs=["y"])
    b.save(folder / "biases.onnx", {"x": [1, 1, SIDE, SIDE]}, {"y": [1, KERNELS]})
    (folder / "edgepack.toml").write_text(
        '[project]\nmodel = "biases.onnx"\nboard = "alpine-aarch64"\nverify = false\n'
        f'version = {version}\n[postprocess]\nkind = "tensors"\n'
        f'[service]\nargs = ["--serve", "8080"]\nmemory_mb = {MEMORY_MB}\n'
    )
    real = job.make_golden

    def doubled(*words: Any, **more: Any) -> Golden:
        golden = real(*words, **more)
        return replace(golden, outputs=tuple(2 * output for output in golden.outputs))

    with pytest.MonkeyPatch.context() as patch:
        if not passes:
            patch.setattr(job, "make_golden", doubled)
        made = job.make_job(load_project(folder / "edgepack.toml"))
        return job.package_job(made, folder / "bundle")


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Bundle]:
    """By version; the third fails."""
    folder = tmp_path_factory.mktemp("releases")
    return {
        version: release(folder / str(version), version, passes=version != 3)
        for version in (1, 2, 3)
    }


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    require_tool("qemu-system-aarch64")
    with own_boards(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_MODULES", (*kernel._MODULES, "overlay"))
        patch.setitem(rootfs.INITS, "systemd", PODMAN)  # type: ignore[arg-type]
        with registries.registry(tmp_path_factory.mktemp("registry")) as address:
            yield address


class Board:
    """A full-system board with podman."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.boot()

    def boot(self) -> None:
        self.up: VirtualBoard = virtual.up(
            get_board("rasp4b-64"),
            name=self.name,
            suite="trixie",
            kind="system",
            init="systemd",
            disk_mb=1024,
        )
        self.admin = login(self.up, "root")

    def cut_power(self) -> None:
        self.admin.close()
        virtual.cut_power(self.up)

    def out(self, command: str, *, check: bool = True) -> str:
        return self.admin.run(command, timeout_s=LONGEST_S, check=check).stdout.strip()

    @contextlib.contextmanager
    def forwarded(self, *words: str) -> Iterator[None]:
        """While ssh forwards what `words` say: the board itself reaches nothing."""
        command = [*virtual.ssh_command(replace(self.up, user="root")), "-N", *words]
        with subprocess.Popen([*command, "-o", "ExitOnForwardFailure=yes"]) as ssh:
            try:
                yield
            finally:
                ssh.terminate()

    def trust(self, where: str) -> None:
        """The registry speaks plain HTTP."""
        self.out(
            f"printf '[[registry]]\\nlocation = \"{where}\"\\ninsecure = true\\n' "
            ">/etc/containers/registries.conf.d/shop.conf"
        )

    def answer(self) -> float:
        """Of the service, to zeros; it may take a while until it is there."""
        value = {"name": "x", "shape": [1, 1, SIDE, SIDE], "datatype": "FP32"}
        body = json.dumps({"inputs": [{**value, "data": [0] * SIDE**2}]}).encode()
        port = free_port()
        answers: list[Any] = []

        def answered() -> bool:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v2/models/biases/infer",
                data=body,
                headers={"Content-Type": "application/json"},
            )
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(request, timeout=LONGEST_S) as response,
            ):
                answers.append(json.load(response))
            return bool(answers)

        with self.forwarded("-L", f"{port}:127.0.0.1:8080"):
            wait_for(answered)
        return float(answers[0]["outputs"][0]["data"][0])

    def update(self) -> str:
        """What the service that the timer starts says."""
        since = self.out("date +%s")
        self.out("systemctl start podman-auto-update", check=False)
        return self.out(f"journalctl -q -o cat --since @{since} -u podman-auto-update")


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.5)


def publish(bundle: Bundle, name: str, folder: Path) -> Path:
    """The unit that the command writes."""
    words = ["publish", "oci", f"oci://{name}", "--quadlet", str(folder)]
    assert main([*words, "--bundle", str(bundle.path)]) == 0
    return folder / f"{UNIT}.container"


def test_podman_updates_and_goes_back_by_itself(
    where: str, releases: dict[int, Bundle], tmp_path: Path
) -> None:
    """With an /etc that cannot be written, as on devices whose system is an image."""
    name = f"{where}/shop/biases:stable"
    unit = publish(releases[1], name, tmp_path)
    board = Board("podman")
    board.trust(where)
    board.admin.put(unit, f"/etc/containers/systemd/{unit.name}")
    board.out("mount --bind /etc /etc; mount -o remount,bind,ro /etc; systemctl daemon-reload")
    with board.forwarded("-R", f"{where.rpartition(':')[2]}:{where}"):
        board.out(f"systemctl start {UNIT}")
        assert board.answer() == 1
        # The hourly test, beside an app that has all the memory it ever has.
        board.out(f"podman healthcheck run {UNIT}")

        publish(releases[2], name, tmp_path)
        assert "true" in board.update().split()
        assert board.answer() == 2

        publish(releases[3], name, tmp_path)
        assert "rolled back" in board.update()
        assert board.answer() == 2
        container = board.out(f"podman inspect -f {{{{.Id}}}} {UNIT}")

    # Without a network nothing happens.
    assert "pinging container registry" in board.update()
    assert board.out("systemctl is-failed podman-auto-update") == "failed"
    assert board.out(f"podman inspect -f {{{{.Id}}}} {UNIT}") == container
    assert board.answer() == 2


def test_a_power_cut_while_a_bad_release_is_tested(
    where: str, releases: dict[int, Bundle], tmp_path: Path
) -> None:
    """Nobody asks podman to go back any more, and there is no network after it."""
    name = f"{where}/shop/cut:stable"
    unit = publish(releases[1], name, tmp_path)
    board = Board("cut")
    board.trust(where)
    board.out("mkdir -p /usr/share/containers/systemd")
    board.admin.put(unit, f"/usr/share/containers/systemd/{unit.name}")
    board.out("systemctl daemon-reload")
    with board.forwarded("-R", f"{where.rpartition(':')[2]}:{where}"):
        board.out(f"systemctl start {UNIT}")
        publish(releases[3], name, tmp_path)
        # The image is there once podman stops the old one.
        board.out(
            "systemctl start --no-block podman-auto-update; "
            f"while systemctl -q is-active {UNIT}; do sleep 0.2; done; sync"
        )
        board.cut_power()
    board.boot()
    # Until then the bad release answers, too.
    wait_for(lambda: board.out(f"systemctl is-active {UNIT}", check=False) == "active")
    assert "Failed to start" in board.out(f"journalctl -q -b -u {UNIT}")
    assert board.answer() == 1

"""Trials on virtual boards: under systemd on a kernel of its own, and where no kernel confines."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack import virtual
from edgepack.base.errors import RemoteError
from edgepack.boards import get_board
from edgepack.bundle.bundle import Bundle
from edgepack.deploy import remote_service
from edgepack.deploy.deploy import deploy_bundle
from edgepack.deploy.options import DeployOptions, TrialRules
from edgepack.deploy.remote_tool import status, trial
from edgepack.deploy.trial import TrialStatus
from edgepack.device.ssh import SshDevice
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import load_project
from tests.boards import login, own_boards
from tests.onnx_models import Builder
from tests.support import require_tool

pytestmark = pytest.mark.slow

ROOT = "/home/pi/edgepack/looks"
UNIT = "edgepack-looks"
PIPE = "/run/camera/frames"
SIDE, KERNELS = 96, 16
FRAMES = 100
"""Of each p50."""
LONGEST_S = 900.0


def release(folder: Path, version: int) -> Bundle:
    """Releases of one model, of two convolutions, that differ in nothing but their version."""
    rng = np.random.default_rng(5)
    b = Builder()
    hidden = b.const(rng.normal(size=(KERNELS, 3, 3, 3)).astype(np.float32))
    b.op("Conv", "x", hidden, pads=[1, 1, 1, 1], outputs=["a"])
    b.op("Relu", "a", outputs=["b"])
    last = b.const(rng.normal(size=(KERNELS, KERNELS, 3, 3)).astype(np.float32))
    b.op("Conv", "b", last, pads=[1, 1, 1, 1], outputs=["c"])
    b.op("ReduceMean", "c", axes=[2, 3], keepdims=0, outputs=["scores"])
    folder.mkdir()
    b.save(folder / "looks.onnx", {"x": [1, 3, SIDE, SIDE]}, {"scores": [1, KERNELS]})
    words = ["--frames", "bgr24", "--size", f"{SIDE}x{SIDE}", "--from", PIPE]
    (folder / "edgepack.toml").write_text(
        '[project]\nmodel = "looks.onnx"\nboard = "rasp3b"\nverify = false\n'
        f"version = {version}\n[preprocess]\n"
        f'resize = {{ mode = "exact", height = {SIDE}, width = {SIDE} }}\n'
        f"[service]\nargs = {json.dumps(words)}\n"
    )
    return package_job(make_job(load_project(folder / "edgepack.toml")), folder / "bundle")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Bundle]:
    require_tool("qemu-arm-static")
    folder = tmp_path_factory.mktemp("looks")
    return release(folder / "1", 1), release(folder / "2", 2)


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One core, whose clock counts instructions, a nanosecond each: what else this machine does
    changes nothing of what the board measures. Caches and memory cost nothing there."""
    real, folder = require_tool("qemu-system-aarch64"), tmp_path / "bin"
    folder.mkdir()
    wrapper = folder / "qemu-system-aarch64"
    wrapper.write_text(f'#!/bin/sh\nexec {real} "$@" -smp 1 -icount shift=0\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(1)


@contextlib.contextmanager
def camera(device: SshDevice, folder: Path) -> Iterator[None]:
    """Frames that come into the pipe, a few per second."""
    frames = np.random.default_rng(6).integers(0, 256, (20, SIDE, SIDE, 3), np.uint8)
    for number, frame in enumerate(frames):
        (folder / "frame").write_bytes(frame.tobytes())
        device.put(folder / "frame", f"frame{number}")
    feed = "while :; do for i in frame[0-9]*; do cat $i; sleep 0.2; done; done"
    device.run(f"sh -c '{feed}' >{PIPE} 2>/dev/null </dev/null & echo $! >feeder")
    try:
        yield
    finally:
        device.run("kill $(cat feeder)", check=False)


def test_where_no_kernel_confines_a_trial_is_refused(bundles: tuple[Bundle, Bundle]) -> None:
    """A light board: qemu-user has no seccomp filters."""
    first, second = bundles
    with own_boards(), contextlib.ExitStack() as stack:
        board = virtual.up(get_board("rasp3b"), kind="light")
        pi = stack.enter_context(contextlib.closing(login(board, "pi")))
        deploy_bundle(first, pi, ROOT)
        with pytest.raises(RemoteError, match="this kernel lacks seccomp filters"):
            deploy_bundle(second, pi, ROOT, options=DeployOptions(trial=TrialRules()))
        current = status(pi, ROOT).current
        assert current is not None
        assert current.release == first.manifest.release


class Service:
    """The app of the first release as systemd runs it, and a trial of the second."""

    def __init__(self, admin: SshDevice, pi: SshDevice, candidate: Bundle) -> None:
        self.admin, self.pi, self.candidate = admin, pi, candidate

    def out(self, command: str) -> str:
        return self.admin.run(command).stdout.strip()

    def frames(self, since: str) -> list[dict[str, Any]]:
        lines = self.out(f"journalctl -q -o cat --since {since} -u {UNIT}").splitlines()
        return [one for one in (json.loads(line) for line in lines if line[0] == "{") if
                "run_ms" in one]  # fmt: skip

    def now(self) -> str:
        return "@" + self.out("date +%s")

    def p50_ms(self) -> float:
        """What a frame takes from now on: decoding, preprocessing and the model."""
        since = self.now()
        wait_for(lambda: len(self.frames(since)) >= FRAMES)
        parts = ("decode_ms", "preprocess_ms", "run_ms")
        return statistics.median(sum(one[key] for key in parts) for one in self.frames(since))

    def candidates(self) -> list[int]:
        # In brackets, so that the shell that asks is none.
        program = f"[r]eleases/{self.candidate.manifest.release}/bin/edgepack-run --frames"
        return [int(one) for one in self.out(f"pgrep -f '{program}' || true").split()]

    def kilobytes(self, process: int, key: str) -> int:
        return int(self.out(f"grep -h ^{key}: /proc/{process}/smaps_rollup").split()[1])

    def begin(self, rules: TrialRules) -> None:
        options = DeployOptions(trial=rules)
        assert deploy_bundle(self.candidate, self.pi, ROOT, options=options).outcome == "on trial"

    def until(self, holds: Callable[[TrialStatus], bool]) -> TrialStatus:
        wait_for(lambda: holds(trial(self.pi, ROOT, "status")))
        return trial(self.pi, ROOT, "status")


@pytest.mark.usefixtures("counted")
def test_a_trial_beside_a_service_of_systemds(
    bundles: tuple[Bundle, Bundle], tmp_path: Path
) -> None:
    """It is confined, and takes little of the current release's time."""
    first, second = bundles
    rules = TrialRules(seconds=86400, share=1.0, min_pictures=5, max_latency=3.0)
    with own_boards(), contextlib.ExitStack() as stack:
        board = virtual.up(
            get_board("rasp3b"), name="trial", kind="system", init="systemd", disk_mb=512
        )
        admin = stack.enter_context(contextlib.closing(login(board, "root")))
        pi = stack.enter_context(contextlib.closing(login(board, "pi")))
        admin.run(f"mkdir -p /run/camera; mkfifo -m 644 {PIPE}")
        deploy_bundle(first, pi, ROOT)
        remote_service.install(admin, ROOT)
        service = Service(admin, pi, second)
        stack.enter_context(camera(admin, tmp_path))

        alone = service.p50_ms()
        service.begin(rules)
        service.until(lambda it: it.pictures > 0)
        (candidate,) = service.candidates()
        assert "\nSeccomp:\t2\n" in service.out(f"cat /proc/{candidate}/status")
        assert service.out(f"stat -c %U /proc/{candidate}") == "pi"
        beside = service.p50_ms()
        candidate_kb = [service.kilobytes(candidate, key) for key in ("Pss", "Rss")]
        done = trial(pi, ROOT, "stop")
        again = service.p50_ms()
        ratio = beside / statistics.mean((alone, again))
        print(
            f"p50 {alone:.3f} ms, beside the trial {beside:.3f}, after it {again:.3f}: {ratio:.3f}"
        )
        print(f"the candidate's PSS and RSS {candidate_kb} KB; {done}")
        assert (done.agreement, done.crashes) == (1.0, 0)
        assert done.pictures >= FRAMES // 2
        assert ratio <= 1.1  # the bar

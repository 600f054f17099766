"""Trials on virtual boards: under systemd on a kernel of its own, and where no kernel confines."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections import Counter
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
LARGE_SIDE, CLASSES = 256, 2048
FEW = 10
"""Frames after which memory does not grow any more."""
BESIDE_MODEL_BYTES = 8_000_000
"""What the app may take but for weights and activations: as in test_flow.py."""
MOST_MORE_BYTES = 1_000_000
"""What the current release's app may take for handing over pictures, with small ones of them."""


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
    return packed(folder, b, version, side=SIDE, classes=KERNELS)


def large_release(folder: Path, version: int) -> Bundle:
    """Of a model with megabytes of weights, which are others in each version, and activations."""
    rng = np.random.default_rng(version)
    b = Builder()
    kernels = b.const(rng.normal(size=(KERNELS, 3, 3, 3)).astype(np.float32))
    b.op("Conv", "x", kernels, pads=[1, 1, 1, 1], strides=[2, 2], outputs=["a"])
    b.op("Relu", "a", outputs=["b"])
    b.op("AveragePool", "b", kernel_shape=[16, 16], strides=[16, 16], outputs=["c"])
    b.op("Flatten", "c", outputs=["d"])
    means = KERNELS * (LARGE_SIDE // 32) ** 2
    b.op("MatMul", "d", b.const(rng.normal(size=(means, CLASSES)).astype(np.float32)),
         outputs=["scores"])  # fmt: skip
    return packed(folder, b, version, side=LARGE_SIDE, classes=CLASSES)


def packed(folder: Path, b: Builder, version: int, *, side: int, classes: int) -> Bundle:
    folder.mkdir(parents=True)
    b.save(folder / "looks.onnx", {"x": [1, 3, side, side]}, {"scores": [1, classes]})
    # More threads would wait for each other on cores that are not there.
    words = ["--frames", "bgr24", "--size", f"{side}x{side}", "--from", PIPE, "--threads", "1"]
    (folder / "edgepack.toml").write_text(
        '[project]\nmodel = "looks.onnx"\nboard = "rasp3b"\nverify = false\n'
        f"version = {version}\n[preprocess]\n"
        f'resize = {{ mode = "exact", height = {side}, width = {side} }}\n'
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
def camera(
    device: SshDevice, folder: Path, *, side: int = SIDE, every_s: float = 0.2
) -> Iterator[None]:
    """Frames that come into the pipe."""
    frames = np.random.default_rng(6).integers(0, 256, (20, side, side, 3), np.uint8)
    for number, frame in enumerate(frames):
        (folder / "frame").write_bytes(frame.tobytes())
        device.put(folder / "frame", f"frame{number}")
    feed = f"while :; do for i in frame[0-9]*; do cat $i; sleep {every_s}; done; done"
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


class Memory:
    """Of the programs of a root: the largest of some moments."""

    def __init__(self) -> None:
        self._bytes: dict[tuple[str, str], Counter[str]] = {}

    def add(self, moment: str, program: str, key: str, size: int) -> None:
        """`size` of a process that runs `program`."""
        self._bytes.setdefault((key, program), Counter())[moment] += size

    def most(self, key: str, release: str = "") -> int:
        """Of "Pss" or "Rss": of a release's app, or of all programs."""
        per_moment: Counter[str] = Counter()
        for (known, program), sizes in self._bytes.items():
            if known == key and program.startswith(f"releases/{release}" if release else ""):
                per_moment += sizes
        return max(per_moment.values(), default=0)


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

    def wait_for_frames(self, count: int) -> str:
        """Since when."""
        since = self.now()
        wait_for(lambda: len(self.frames(since)) >= count)
        return since

    def p50_ms(self) -> float:
        """What a frame takes from now on: decoding, preprocessing and the model."""
        since = self.wait_for_frames(FRAMES)
        parts = ("decode_ms", "preprocess_ms", "run_ms")
        return statistics.median(sum(one[key] for key in parts) for one in self.frames(since))

    def candidates(self) -> list[int]:
        # In brackets, so that the shell that asks is none.
        program = f"[r]eleases/{self.candidate.manifest.release}/bin/edgepack-run --frames"
        return [int(one) for one in self.out(f"pgrep -f '{program}' || true").split()]

    def kilobytes(self, process: int, key: str) -> int:
        return int(self.out(f"grep -h ^{key}: /proc/{process}/smaps_rollup").split()[1])

    def memory(self) -> Memory:
        told = self.out(
            "for i in 1 2 3; do ls -l /proc/[0-9]*/exe 2>/dev/null | "
            f"""sed -n 's|.*/proc/\\([0-9]*\\)/exe -> {ROOT}/|\\1 |p' | while read p e; do """
            "echo $i $e $(grep -hE '^(Pss|Rss):' /proc/$p/smaps_rollup); done; sleep 1; done"
        )
        print(told)
        largest = Memory()
        for line in told.splitlines():
            moment, program, *sizes = line.split()
            for key, kilobytes in zip(sizes[::3], sizes[1::3], strict=True):
                largest.add(moment, program, key.rstrip(":"), int(kilobytes) * 1024)
        return largest

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


def test_a_trial_takes_the_memory_of_its_model(tmp_path: Path) -> None:
    """Of a candidate that was trained again: no byte of its weights is the current release's."""
    require_tool("qemu-system-aarch64")
    first, second = (large_release(tmp_path / str(version), version) for version in (1, 2))
    rules = TrialRules(
        seconds=86400, share=1.0, min_pictures=5, max_latency=9.0, min_agreement=0,
        keep_disagreements=5,
    )  # fmt: skip
    with own_boards(), contextlib.ExitStack() as stack:
        board = virtual.up(
            get_board("rasp3b"), name="memory", kind="system", init="systemd", disk_mb=512
        )
        admin = stack.enter_context(contextlib.closing(login(board, "root")))
        pi = stack.enter_context(contextlib.closing(login(board, "pi")))
        admin.run(f"mkdir -p /run/camera; mkfifo -m 644 {PIPE}")
        deploy_bundle(first, pi, ROOT)
        remote_service.install(admin, ROOT)
        service = Service(admin, pi, second)
        stack.enter_context(camera(admin, tmp_path, side=LARGE_SIDE, every_s=1))

        service.wait_for_frames(FEW)
        before = service.memory()
        service.begin(rules)
        service.until(lambda it: it.pictures >= FEW)
        beside = service.memory()
        done = trial(pi, ROOT, "stop")
        service.wait_for_frames(FEW)
        after = service.memory()

    current, candidate = first.manifest.release, second.manifest.release
    model = second.manifest.model
    promised = model.params_bytes + model.arena_bytes + BESIDE_MODEL_BYTES
    for key in ("Pss", "Rss"):
        app = [moment.most(key, current) for moment in (before, beside, after)]
        print(f"{key}: the app before, beside and after {app}, "
              f"the candidate {beside.most(key, candidate)}, "
              f"all {[moment.most(key) for moment in (before, beside, after)]}")  # fmt: skip
    print(f"weights {model.params_bytes}, activations {model.arena_bytes}; {done}")
    resident = before.most("Rss", current)
    assert resident > model.params_bytes
    for later in (beside, after):
        assert later.most("Rss", current) <= resident + MOST_MORE_BYTES
    assert after.most("Rss", candidate) == 0
    assert model.params_bytes < beside.most("Pss", candidate) <= promised
    # The bar: all that runs for the trial, and what the app takes more.
    assert beside.most("Pss") - before.most("Pss") <= promised
    # What the device says of it; this kernel's own count (VmHWM) is too small.
    assert beside.most("Rss", candidate) <= done.peak_bytes <= promised

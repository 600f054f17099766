"""Sources that go on for long: memory stays as it is, whatever comes and wherever it goes."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edgepack.boards import get_board
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import load_project
from tests import outputs
from tests.means import SHAPE, means_app
from tests.onnx_models import Builder
from tests.support import require_tool

RAW = ("--frames", "rgb24", "--size", "32x8")
FRAME_BYTES = 32 * 8 * 3


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return means_app(tmp_path_factory.mktemp("means"))


@dataclass(frozen=True, kw_only=True)
class Allocations:
    """Of a run: how many, and the most bytes that were in use at a time."""

    count: int
    most_bytes: int


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Allocations]:
    folder = tmp_path_factory.mktemp("allocations")
    library, report = folder / "allocations.so", folder / "report"
    source = Path(__file__).parents[1] / "allocations.c"
    subprocess.run(
        [require_tool("gcc"), "-O1", "-shared", "-fPIC", "-o", library, source], check=True
    )

    def run(*words: str | Path, stdin: bytes = b"") -> Allocations:
        env = {**os.environ, "LD_PRELOAD": str(library), "ALLOCATIONS": str(report)}
        subprocess.run(list(map(str, words)), env=env, input=stdin, check=True, capture_output=True)
        count, most = map(int, report.read_text().split())
        return Allocations(count=count, most_bytes=most)

    return run


def jpegs(count: int, width: int = 64, height: int = 48) -> list[bytes]:
    """Soft noise, as photos are: each another one."""
    random = np.random.default_rng(0)
    frames = []
    for _ in range(count):
        noise = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
        frames.append(cv2.imencode(".jpg", cv2.GaussianBlur(noise, (0, 0), 3))[1].tobytes())
    return frames


def test_a_run_of_the_model_takes_no_memory(
    app: Path, counted: Callable[..., Allocations], tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", np.zeros(SHAPE, np.float32))
    words = (app, "--threads", "1", "--input", tmp_path / "x.npy", "--bench")
    few, many = counted(*words, "100"), counted(*words, "1100")
    # The list of times doubles four times.
    assert many.count - few.count <= 8


@pytest.mark.parametrize(
    ("kind", "most"),
    # cv::imdecode takes 13 for any JPEG, as a program that calls nothing else shows: OpenCV opens
    # each picture anew, and libjpeg has pools.
    [("raw", 0), ("mjpeg", 13)],
)
def test_a_frame_takes_no_memory(
    kind: str, most: int, app: Path, counted: Callable[..., Allocations], tmp_path: Path
) -> None:
    """Ten times the frames take no more at a time, and none but the decoder's."""
    if kind == "raw":
        stream, words = [bytes(FRAME_BYTES)], RAW
    else:
        stream, words = jpegs(20), ("--frames", "mjpeg")
    out = ("--out", tmp_path / "lines", "--rotate", "10K", "--keep", "2")

    def run(count: int) -> Allocations:
        frames = (stream * count)[:count]
        return counted(app, "--threads", "1", *words, *out, stdin=b"".join(frames))

    few, many = run(200), run(2000)
    each = (many.count - few.count) / 1800
    print(f"{kind}: {each:.3f} allocations for each frame")
    # A line that is longer than those before takes more, once for each buffer.
    assert each <= most + 0.02
    # How far the threads are ahead of each other differs from run to run: at most a frame each.
    assert many.most_bytes < few.most_bytes + 100_000


# Of each kind those whose results hold most lists.
FOUND = {
    case.name: case
    for case in outputs.CASES
    if case.name
    in (
        *("classes-softmax", "v8-points", "v5-maps", "centerface", "ssd", "keypoints"),
        *("segmentation", "text-lines", "ctc"),
    )
}


@pytest.fixture(scope="module")
def finders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """edgepack-run in a bundle whose model gives the outputs of a case for a white picture, zeros
    for a black one. One model has those of all cases; postprocess.json says which of them count.
    """
    folder = tmp_path_factory.mktemp("finders")
    b = Builder()
    grey = b.op("ReduceMean", "x", keepdims=0)
    shapes = {}
    for case in FOUND.values():
        for index, tensor in enumerate(case.tensors):
            name = f"{case.name}-{index}"
            b.op("Mul", b.const(tensor), grey, outputs=[name])
            shapes[name] = list(tensor.shape)
    model = b.model({"x": [1, 3, outputs.HEIGHT, outputs.WIDTH]}, shapes)
    (folder / "finders.onnx").write_bytes(model.SerializeToString())
    (folder / "edgepack.toml").write_text(
        '[project]\nmodel = "finders.onnx"\nboard = "local"\nverify = false\n'
        '[preprocess]\npreset = "zero-one"\n'
        f'resize = {{ mode = "exact", height = {outputs.HEIGHT}, width = {outputs.WIDTH} }}\n'
        '[postprocess]\nkind = "tensors"\n'
    )
    bundle = package_job(make_job(load_project(folder / "edgepack.toml")), folder / "bundle")

    def finder(name: str) -> Path:
        case = FOUND[name]
        names = tuple(f"{name}-{index}" for index in range(len(case.tensors)))
        spec = replace(case.spec, outputs=names)
        (bundle.path / "postprocess.json").write_text(spec.to_json())
        return bundle.path / "bin" / "edgepack-run"

    return finder


@pytest.mark.parametrize("kind", FOUND)
def test_what_is_found_takes_no_memory(
    kind: str,
    finders: Callable[[str], Path],
    counted: Callable[..., Allocations],
    tmp_path: Path,
) -> None:
    """Frames with much and with little in them, in turns: the lists of one lie where another's lay.
    Whatever was there before, the same frame has the same results.
    """
    app, lines = finders(kind), tmp_path / "lines"
    size = outputs.HEIGHT * outputs.WIDTH * 3
    pair = [b"\xff" * size, bytes(size)]
    words = ("--frames", "rgb24", "--size", f"{outputs.WIDTH}x{outputs.HEIGHT}", "--out", lines)

    def run(count: int) -> Allocations:
        lines.unlink(missing_ok=True)
        return counted(app, "--threads", "1", *words, stdin=b"".join(pair * (count // 2)))

    few, many = run(100), run(500)
    assert (many.count - few.count) / 400 <= 0.02
    assert many.most_bytes < few.most_bytes + 100_000
    found = []
    for line in lines.read_text().splitlines()[:-1]:
        values = json.loads(line)
        found.append({k: v for k, v in values.items() if k != "frame" and not k.endswith("_ms")})
    assert len(found) == 500
    assert found[0] != found[1]
    assert all(one == found[number % 2] for number, one in enumerate(found))


class Life:
    """A running app that is given frames, and what it has in RAM meanwhile."""

    def __init__(self, *words: str | Path) -> None:
        self.process = subprocess.Popen(
            list(map(str, words)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.lines: list[bytes] = []
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines[:] = [line]

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def rss_kb(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def end(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(600) == 0
        self.reader.join()
        end: dict[str, Any] = json.loads(self.lines[0])["end"]
        return end


def paced(life: Life, frames: list[bytes], count: int, period_s: float) -> tuple[int, int]:
    """Send frames at a rate; RSS in kB after a fifth of them, and at the end."""
    early = 0
    start = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, start + number * period_s - time.monotonic()))
        life.send(frames[number % len(frames)])
        if number == count // 5:
            early = life.rss_kb()
    return early, life.rss_kb()


@pytest.mark.parametrize(
    ("count", "period_s"), [(60, 0.0), pytest.param(2000, 1 / 30, marks=pytest.mark.slow)]
)
def test_mjpeg_at_a_cameras_rate(app: Path, count: int, period_s: float) -> None:
    """VGA pictures, some cut in half, some of another size: all others have a line."""
    frames = jpegs(10, 640, 480)
    cut, other = frames[0][: len(frames[0]) // 2], jpegs(1)[0]
    stream = [*frames[:4], cut, *frames[4:8], other]
    life = Life(app, "--threads", "1", "--frames", "mjpeg", "--size", "640x480")
    early, late = paced(life, stream, count, period_s)
    end = life.end()
    print(f"{count} frames: RSS {early} kB, then {late} kB; {end}")
    assert end["frames"] == count * 8 // 10
    assert end["broken"] == count * 2 // 10
    assert end["dropped"] == end["lost"] == 0
    assert late < early + 2000


@pytest.mark.slow
def test_a_hundred_thousand_frames(app: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "lines", "--rotate", "1M", "--keep", "2")
    life = Life(app, "--threads", "1", *RAW, *out)
    early, late = paced(life, [bytes(FRAME_BYTES)], 100_000, 0.0)
    print(f"100,000 frames: RSS {early} kB, then {late} kB")
    assert late < early + 500
    assert life.process.stdin is not None
    life.process.stdin.close()
    assert life.process.wait(600) == 0
    assert sorted(path.name for path in tmp_path.glob("lines*")) == ["lines", "lines.1", "lines.2"]
    last = json.loads((tmp_path / "lines").read_text().splitlines()[-1])["end"]
    assert (last["frames"], last["broken"], last["lost"]) == (100_000, 0, 0)


@pytest.mark.slow
def test_a_thousand_frames_on_a_boards_cpu(tmp_path: Path) -> None:
    qemu = require_tool("qemu-arm-static")
    app = means_app(tmp_path, "rasp3b")
    triple = get_board("rasp3b").triple
    frames = jpegs(10)
    life = Life(qemu, "-L", f"/usr/{triple}", app, "--threads", "1", "--frames", "mjpeg")
    early, late = paced(life, frames, 1000, 0.0)
    end = life.end()
    print(f"1,000 frames on {triple}: RSS {early} kB, then {late} kB; {end}")
    assert (end["frames"], end["broken"]) == (1000, 0)
    # The emulator's own memory is in it.
    assert late < early + 2000

"""--track: numbers of boxes that stay, as the reference gives them, on this machine and on ARM.

The frames say what the model finds: their first pixels are the boxes.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest

from edgepack.base.errors import ConfigError
from edgepack.base.process import run
from edgepack.boards import get_board
from edgepack.bundle.manifest import APP
from edgepack.flow.check import check_project
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import load_project
from edgepack.native.sdk import build_sdk, write_sdk
from edgepack.native.toolchain import select
from edgepack.postprocess.results import Box
from edgepack.postprocess.tracker import Tracker
from tests.brokers import Subscriber, broker
from tests.onnx_models import Builder
from tests.support import free_port, require_tool

SIDE, MOST = 128, 8
PROJECT = """
[project]
name = "tracked"
model = "boxes.onnx"
board = "{board}"
[preprocess]
resize = {{ mode = "exact", height = 128, width = 128 }}
[postprocess]
preset = "yolo-end2end"
score = 0.2
"""


@dataclass
class Thing:
    """What moves evenly: where, how fast, which class, and the frames in which it is seen."""

    corner: tuple[float, float]
    size: tuple[float, float]
    step: tuple[float, float]
    index: int
    frames: tuple[int, ...]

    def box(self, frame: int) -> tuple[float, float, float, float]:
        left, top = (at + frame * by for at, by in zip(self.corner, self.step, strict=True))
        return left, top, left + self.size[0], top + self.size[1]


def _frame(boxes: list[tuple[tuple[float, ...], int]]) -> bytes:
    """A picture (RGB) whose pixels say these boxes."""
    pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
    for row, (box, index) in enumerate(boxes):
        pixels[row, 0] = np.rint(box[:3])
        pixels[row, 1] = np.rint(box[3]), 250 - row, index
    return pixels.tobytes()


THINGS = (
    Thing((2, 10), (20, 30), (2, 0), 0, tuple(range(40))),
    Thing((100, 12), (20, 30), (-2, 0), 0, tuple(range(40))),  # comes towards the first
    Thing((40, 70), (16, 16), (1, 1), 1, (*range(10), *range(14, 40))),  # is missed in 4 frames
    Thing((40, 72), (16, 16), (1, 1), 2, tuple(range(40))),  # the same place, another class
    Thing((100, 90), (24, 24), (0, 0), 1, (*range(5), *range(20, 40))),  # for 15 frames
)


@pytest.fixture(scope="module", params=["local", "rasp3b"])
def app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("tracked")
    _save_model(folder / "boxes.onnx")
    file = folder / "edgepack.toml"
    file.write_text(PROJECT.format(board=request.param))
    bundle = package_job(make_job(load_project(file)), folder / "dist")
    board = make_job(load_project(file)).board
    start = [] if request.param == "local" else [
        require_tool("qemu-arm-static"), *("-L", f"/usr/{board.triple}")]  # fmt: skip
    return [*start, str(bundle.file(APP)), "--bundle", str(bundle.path)]


def _save_model(path: Path) -> None:
    """The boxes are what the picture's first pixels say."""
    b = Builder()
    ends = [b.const(one) for one in ([0, 0], [MOST, 2], [2, 3])]
    corner = b.op("Transpose", b.op("Slice", "x", *ends), perm=[0, 2, 3, 1])
    rows = b.op("Reshape", corner, b.const([1, MOST, 6]))
    b.op("Mul", rows, b.const([1, 1, 1, 1, 1 / 255, 1], "f4"), outputs=["rows"])
    b.save(path, {"x": [1, 3, SIDE, SIDE]}, {"rows": [1, MOST, 6]})


def _run(app: list[str], frames: list[bytes], *words: str) -> list[list[tuple[int, int]]]:
    """The class and number of each box in each frame."""
    size = ("--frames", "rgb24", "--size", f"{SIDE}x{SIDE}")
    done = subprocess.run(
        [*app, *size, "--json", *words], input=b"".join(frames), capture_output=True, check=True
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [
        [(box["index"], box.get("track", 0)) for box in line["boxes"]]
        for line in lines
        if "boxes" in line
    ]


def test_things_keep_their_numbers(app: list[str]) -> None:
    frames = []
    for number in range(40):
        there = [one for one in THINGS if number in one.frames]
        frames.append(_frame([(one.box(number), one.index) for one in there]))
    found = _run(app, frames, "--track", "8")
    numbers: dict[int, list[int]] = {at: [] for at in range(len(THINGS))}
    for number, boxes in enumerate(found):
        there = [at for at, one in enumerate(THINGS) if number in one.frames]
        assert [index for index, _ in boxes] == [THINGS[at].index for at in there]
        for at, (_, track) in zip(there, boxes, strict=True):
            numbers[at].append(track)
    assert [sorted(set(numbers[at])) for at in range(4)] == [[1], [2], [3], [4]]
    # It was away for longer than may be: somebody else, as far as anybody can tell.
    assert numbers[4] == [5] * 5 + [6] * 20
    assert all(track == 0 for boxes in _run(app, frames[:2]) for _, track in boxes)


def test_numbers_are_the_references(app: list[str]) -> None:
    """Of boxes that jump, overlap, and come and go."""
    random = np.random.default_rng(11)
    corners = random.integers(0, 90, (MOST, 2)).astype(float)
    frames, wanted = [], []
    tracker = Tracker(most_missed=2)
    for _ in range(60):
        corners = np.clip(corners + random.integers(-9, 10, (MOST, 2)), 0, 90)
        boxes = []
        for at in range(MOST):
            left, top = corners[at]
            side = 20 + int(random.integers(0, 12))
            if random.uniform() < 0.8:
                boxes.append(((left, top, left + side, top + side), at % 2))
        frames.append(_frame(boxes))
        seen = [
            Box(index=index, label="", score=0.9, box=tuple(map(float, box)))  # type: ignore[arg-type]
            for box, index in boxes
        ]
        wanted.append(tracker.see(seen))
    found = _run(app, frames, "--track", "2")
    assert [[track for _, track in boxes] for boxes in found] == wanted
    assert max(map(max, filter(None, wanted))) > MOST


def test_a_source_that_is_opened_again_continues_no_track(app: list[str], tmp_path: Path) -> None:
    frame = _frame([((10, 10, 50, 50), 0)])
    file = tmp_path / "frames"
    file.write_bytes(frame * 3)
    command = [*app, "--frames", "rgb24", "--size", f"{SIDE}x{SIDE}", "--json", "--track", "5"]
    command += ["--from", str(file), "--at-end", "retry"]
    tracks = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        for line in process.stdout:
            tracks += [box["track"] for box in json.loads(line).get("boxes", ())]
            if len(tracks) == 6:
                process.terminate()
    assert tracks[:6] == [1, 1, 1, 2, 2, 2]


COUNTER = """
[[counter]]
name = "gate"
class = "0"
line = [64, 0, 64, 128]
[[sink]]
name = "home"
url = "mqtt://127.0.0.1:{port}"
topic = "gate"
buffer = "{folder}"
counters = ["gate"]
[[when]]
name = "out"
counter = "gate"
direction = "out"
run = ["/bin/cp", "/dev/stdin", "{folder}/crossed"]
clip = {{ folder = "{folder}", after_s = 0.1, frames_per_s = 30 }}
"""


def test_a_folder_of_frames_is_counted_by_who_crosses(tmp_path: Path) -> None:
    """With a real broker: of the first two things, one goes right and one left over the line."""
    _save_model(tmp_path / "boxes.onnx")
    port = free_port()
    file = tmp_path / "edgepack.toml"
    file.write_text(PROJECT.format(board="local") + COUNTER.format(port=port, folder=tmp_path))
    bundle = package_job(make_job(load_project(file)), tmp_path / "dist")
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(28):  # at the last of which one of them has crossed
        pixels = _frame([(one.box(number), one.index) for one in THINGS[:2]])
        image = np.frombuffer(pixels, np.uint8).reshape(SIDE, SIDE, 3)
        cv2.imwrite(str(photos / f"{number:02}.png"), image[:, :, ::-1])
    words = ["--images", str(photos), "--track", "8", "--json", "--sinks", "connect=127.0.0.1"]
    with broker(tmp_path, port), Subscriber(port, "gate/counter/gate") as counts:
        subprocess.run(
            [str(bundle.file(APP)), "--bundle", str(bundle.path), *words],
            check=True,
            capture_output=True,
        )
        found = [json.loads(counts.take(1)[0][2])]
        while found[-1]["in"] + found[-1]["out"] < 2:
            found.append(json.loads(counts.take(1)[0][2]))
    # The line goes down, so what is to its right has the smaller x: from the left one goes out.
    assert found[-1] == {"in_view": 2, "seen": 2, "in": 1, "out": 1}
    crossed = json.loads((tmp_path / "crossed").read_text())
    # Of the one that goes to the right, whose middle is at 12 + 2 * frame; its margin is 1.
    assert crossed["image"].endswith("27.png")
    (clip,) = tmp_path.glob("out-*")
    kept = sorted(clip.glob("*.jpg"))
    assert kept
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in kept)
    assert {cv2.imread(str(path)).shape for path in kept} == {(SIDE, SIDE, 3)}


LIBRARY = """
import sys
from edgepack_runtime import Model
bundle, side, missed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with Model(bundle) as model, model.session() as session:
    session.track(missed)
    while frame := sys.stdin.buffer.read(3 * side * side):
        pixels = memoryview(frame).cast("B", (side, side, 3))
        session.set_pixels(pixels)
        session.run()
        print([(one["index"], one["track"]) for one in session.results()["boxes"]])
    session.reset()
    session.set_pixels(pixels)
    session.run()
    print(session.results()["boxes"][0]["track"])
"""
PROGRAM = """
#include <cstdlib>
#include <iostream>
#include <vector>
#include <edgepack/edgepack.hpp>
int main(int, char** words) {
  const edgepack::Model model(words[1]);
  edgepack::Session session(model);
  session.Track(std::atoi(words[3]));
  const int side = std::atoi(words[2]);
  std::vector<char> frame(static_cast<std::size_t>(3 * side * side));
  while (std::cin.read(frame.data(), static_cast<std::streamsize>(frame.size()))) {
    session.SetPixels(frame.data(), side, side, EDGEPACK_RGB);
    session.Run();
    std::cout << session.Results() << std::endl;
  }
}
"""


@pytest.mark.parametrize("app", ["local"], indirect=True)
def test_the_library_gives_the_numbers_of_the_app(app: list[str], tmp_path: Path) -> None:
    """In Python and C++; test_api.cc asks in C."""
    frames = []
    for number in range(24):
        there = [one for one in THINGS if number in one.frames]
        frames.append(_frame([(one.box(number), one.index) for one in there]))
    wanted = _run(app, frames, "--track", "8")
    board = get_board("local")
    toolchain = select(board).toolchain
    folder = tmp_path / "sdk"
    write_sdk(build_sdk(board, toolchain), folder)
    site = tmp_path / "site"
    with zipfile.ZipFile(next(folder.glob("python/*.whl"))) as wheel:
        wheel.extractall(site)
    words = [app[-1], str(SIDE), "8"]
    env = {"PYTHONPATH": str(site), "LD_LIBRARY_PATH": str(folder / "lib"), "PATH": "/usr/bin"}

    def lines(*command: str | Path) -> list[str]:
        done = subprocess.run(
            [*command, *words], input=b"".join(frames), capture_output=True, check=True, env=env
        )
        return done.stdout.decode().splitlines()

    *found, again = lines(sys.executable, "-W", "error", "-c", LIBRARY)
    assert [ast.literal_eval(line) for line in found] == wanted
    # A new sequence: nobody is known, and no number is used twice.
    assert int(again) > max(track for boxes in wanted for _, track in boxes)

    (tmp_path / "main.cc").write_text(PROGRAM)
    program = tmp_path / "program"
    library = (f"-I{folder}/include", f"-L{folder}/lib", "-ledgepack")
    run([require_tool("g++"), "-std=c++17", "-o", program, tmp_path / "main.cc", *library])
    found = lines(program)
    assert [
        [(box["index"], box["track"]) for box in json.loads(line)["boxes"]] for line in found
    ] == wanted


AGED = """
[[stage]]
name = "age"
model = "age.onnx"
most = 5
states = { before = "now" }
[stage.preprocess]
resize = { mode = "exact", height = 8, width = 8 }
[stage.postprocess]
kind = "tensors"
outputs = ["now"]
"""


@pytest.mark.parametrize("board", ["local", "rasp3b"])
def test_each_track_has_its_own_states(board: str, tmp_path: Path) -> None:
    """A model that counts how often it was run: of each thing the frames that it was in so far."""
    _save_model(tmp_path / "boxes.onnx")
    b = Builder()
    one = b.op("Add", b.op("Mul", b.op("ReduceMean", "x"), b.const(0, "f4")), b.const(1, "f4"))
    b.op("Add", "before", b.op("Reshape", one, b.const([1, 1])), outputs=["now"])
    b.save(tmp_path / "age.onnx", {"x": [1, 3, 8, 8], "before": [1, 1]}, {"now": [1, 1]})
    frames = []
    for number in range(24):
        there = [one for one in THINGS if number in one.frames]
        frames.append(_frame([(one.box(number), one.index) for one in there]))
    image = np.frombuffer(frames[0], np.uint8).reshape(SIDE, SIDE, 3)
    cv2.imwrite(str(tmp_path / "photo.png"), image[:, :, ::-1])
    file = tmp_path / "edgepack.toml"
    text = PROJECT.format(board=board).replace("board =", 'golden_image = "photo.png"\nboard =')
    file.write_text(text + AGED)
    job = make_job(load_project(file))
    bundle = package_job(job, tmp_path / "dist")
    start = [] if board == "local" else [
        require_tool("qemu-arm-static"), *("-L", f"/usr/{job.board.triple}")]  # fmt: skip
    app = [*start, str(bundle.file(APP)), "--bundle", str(bundle.path)]

    def ages(*words: str) -> list[list[float]]:
        size = ("--frames", "rgb24", "--size", f"{SIDE}x{SIDE}")
        done = subprocess.run(
            [*app, *size, "--json", *words], input=b"".join(frames), capture_output=True, check=True
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return [
            [box["answers"]["age"]["tensors"][0]["values"][0] for box in line["boxes"]]
            for line in lines
            if "boxes" in line
        ]

    seen = [0] * len(THINGS)
    wanted: list[list[float]] = []
    for number in range(24):
        there = [at for at, one in enumerate(THINGS) if number in one.frames]
        if number == 20:
            seen[4] = 0  # away for longer than may be: another one
        for at in there:
            seen[at] += 1
        wanted.append([seen[at] for at in there])
    assert ages("--track", "8") == wanted
    # Without tracks each box is the first one.
    assert ages() == [[1] * len(then) for then in wanted]
    check_project(job.project)


def test_what_cannot_be_tracked(app: list[str]) -> None:
    for words, text in (
        (("--golden", "--track", "3"), "--track needs --images, --frames or --camera"),
        (("--frames", "mjpeg", "--track", "-1"), "--track"),
        (("--watch", ".", "--track", "3"), "--track needs --images, --frames or --camera"),
    ):
        done = subprocess.run([*app, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert text in done.stderr


def test_a_service_that_tracks_no_boxes_is_refused(tmp_path: Path) -> None:
    b = Builder()
    b.op("ReduceMean", "x", axes=[2, 3], keepdims=0, outputs=["y"])
    b.save(tmp_path / "m.onnx", {"x": [1, 3, 8, 8]}, {"y": [1, 3]})
    file = tmp_path / "edgepack.toml"
    file.write_text(
        '[project]\nmodel = "m.onnx"\nboard = "rasp3b"\n[preprocess]\nresize = { mode = "exact", '
        'height = 8, width = 8 }\n[service]\nargs = ["--camera", "/dev/video0", "--track", "5"]\n'
    )
    with pytest.raises(ConfigError, match=r"--track: there are no boxes"):
        make_job(load_project(file))

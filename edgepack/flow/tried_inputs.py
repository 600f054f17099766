"""What a model can be tried with where nobody says it: shapes that run, and inputs that tell."""

from __future__ import annotations

import copy
import itertools
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgepack.base.errors import EdgepackError
from edgepack.flow.golden import SenselessGoldenError, check_golden
from edgepack.flow.reference import (
    golden_inputs,
    has_endless_loop,
    model_outputs,
    random_input,
)
from edgepack.frontend.forms import POOLINGS, has_larger_window
from edgepack.model import LoadedModel, TensorInfo

if TYPE_CHECKING:
    import onnx

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]

_MOST_BYTES = 64 << 20  # of a model that is run a thousand times
_MOST_CPU_S = 10.0
_MOST_SIZE = 512
_LENGTHS = (16, 128)
_WINDOWS = (512, 256, 1024, 128, 64, 32, 16)
"""Of an axis alone: what windows of sound have."""
_MOST_AXES = 2
_RATE = 16000.0
_TONE_HZ = 220.0
_LARGE = 0.01
_PEAKS_APART = 50
_LEAST_SOUND = 400  # values
_MOST_ROWS = 16


def find_running_shapes(
    model: LoadedModel, shapes: Shapes, guessed: Mapping[str, Sequence[int]]
) -> Shapes | None:
    """The first shapes that onnxruntime runs the model with: `shapes`, else those with other sizes
    of the `guessed` axes of each input; None if none does, or to try them all takes too long.

    Of the last of these axes the smallest size is taken: fewer features than weights know do not
    run. If another axis is a length, it runs with one more, too: otherwise, features are only
    counted together. Axes of one name have one size.
    """
    if model.proto.ByteSize() > _MOST_BYTES or not any(guessed.values()):
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            model.proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's errors have no common class
        log.debug("%s: no session to try shapes with: %s", model.path, error)
        return None

    pools = any(node.op_type in POOLINGS for node in model.proto.graph.node)
    sized = copy.deepcopy(model.proto) if pools else None

    def runs(candidate: Shapes) -> bool:
        return _runs(session, model, candidate) and not _is_too_small(sized, candidate)

    if runs(shapes):
        return shapes
    begun = time.process_time()
    # A table that is taken for a batch of one row may be frames of features.
    tables = {name: [0, *axes] for name, axes in guessed.items() if len(shapes[name]) == 2 and axes}
    for places in (guessed, tables if len(model.inputs) == 1 else {}):
        axes = [*_axes_by_name(model, shapes, places).values()]
        if not 0 < len(axes) <= _MOST_AXES:
            continue
        for sizes in _sizes(len(axes)):
            if time.process_time() - begun > _MOST_CPU_S:
                return None
            candidate = _with_sizes(shapes, axes, sizes)
            longer = _with_sizes(shapes, axes, (sizes[0] + 1, sizes[-1]))
            if runs(candidate) and (len(axes) == 1 or runs(longer)):
                return candidate
    return None


def _runs(session: Any, model: LoadedModel, shapes: Shapes) -> bool:
    """Whether all outputs have values, and some of them are numbers."""
    random = np.random.RandomState(0)
    infos = [replace(info, shape=tuple(shapes.get(info.name, info.shape))) for info in model.inputs]
    try:
        outputs = session.run(None, {one.name: random_input(one, random) for one in infos})
    except Exception as error:  # as above
        log.debug("%s: %s: %s", model.path, shapes, error)
        return False
    arrays = [np.asarray(output) for output in outputs]
    return all(array.size for array in arrays) and any(
        array.dtype.kind != "f" or np.isfinite(array).any() for array in arrays
    )


def _is_too_small(proto: onnx.ModelProto | None, shapes: Shapes) -> bool:
    """Whether a window of a model that pools, which is given these shapes, is larger than its
    image."""
    if proto is None:
        return False
    for value in proto.graph.input:
        for dim, size in zip(
            value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False
        ):
            dim.dim_value = size
    return has_larger_window(proto)


def _axes_by_name(
    model: LoadedModel, shapes: Shapes, guessed: Mapping[str, Sequence[int]]
) -> dict[object, list[tuple[str, int]]]:
    """The places of each axis that is guessed: those of one name are one axis. The batch of a state
    stays 1."""
    found: dict[object, list[tuple[str, int]]] = {}
    for info in model.inputs:
        for axis in guessed.get(info.name, ()):
            is_batch = axis > 0 and shapes[info.name][axis] == 1
            if not isinstance(info.shape[axis], int) and not is_batch:
                key = info.shape[axis] or (info.name, axis)
                found.setdefault(key, []).append((info.name, axis))
    return found


def _sizes(axes: int) -> Iterator[tuple[int, ...]]:
    if axes == 1:
        yield from ((size,) for size in (*_WINDOWS, *range(1, _MOST_SIZE + 1)))
    else:
        yield from itertools.product(_LENGTHS, range(1, _MOST_SIZE + 1))


def _with_sizes(
    shapes: Shapes, axes: Sequence[Sequence[tuple[str, int]]], sizes: Sequence[int]
) -> Shapes:
    changed = {name: list(shape) for name, shape in shapes.items()}
    for size, places in zip(sizes, axes, strict=False):
        for name, axis in places:
            changed[name][axis] = size
    return {name: tuple(shape) for name, shape in changed.items()}


# --- inputs ------------------------------------------------------------------------------------


def find_telling_inputs(model: LoadedModel) -> tuple[str, dict[str, Array]] | None:
    """What the first generated inputs are that tell something, and these by name, where random ones
    tell nothing (`check_golden`); None if random ones do, or none does.

    Outputs that are all but 0 tell less than others: their errors are large beside them. States are
    left out: they begin as on the device.
    """
    if has_endless_loop(model.proto):
        return None
    random = golden_inputs(model)
    names = {info.name for info in model.given}
    found: tuple[str, dict[str, Array]] | None = None
    largest = -1.0
    try:
        if _size_told(model, random) is not None:
            return None
        for what, values in _generated(model):
            inputs = [
                model.starts.get(info.name, np.zeros_like(one))
                if info.name in model.states
                else values.get(info.name, one)
                for info, one in zip(model.inputs, random, strict=True)
            ]
            size = _size_told(model, inputs)
            if size is not None and size > largest:
                largest = size
                made = zip(model.inputs, inputs, strict=True)
                found = what, {info.name: one for info, one in made if info.name in names}
            if largest >= _LARGE:
                return found
    except EdgepackError:
        return found  # `edgepack check` says what is wrong
    return found


def _size_told(model: LoadedModel, inputs: Sequence[Array]) -> float | None:
    """The largest number of the output where that is smallest; None if the outputs tell nothing."""
    others = [[np.zeros_like(one) for one in inputs], golden_inputs(model, seed=1)]
    outputs, *rest = model_outputs(model.path, model.proto, [inputs, *others])
    kept = model.states.values()
    try:
        check_golden(model, outputs, rest, given="", kept=kept)
    except SenselessGoldenError:
        return None
    told = [
        output
        for info, output in zip(model.outputs, outputs, strict=True)
        if info.name not in kept and output.size and output.dtype.kind in "fiu"
    ]
    sizes = (float(np.abs(np.nan_to_num(output.astype(float))).max()) for output in told)
    return min(sizes, default=1.0)


def _generated(model: LoadedModel) -> Iterator[tuple[str, dict[str, Array]]]:
    """Inputs for all that is no state, and what they are."""
    given = [info for info in model.given if np.dtype(info.dtype).kind in "fiu"]
    if any(_count(info) >= _LEAST_SOUND for info in given):
        yield "a tone", {info.name: _scaled(info, _tone(_count(info))) for info in given}
    noise = np.random.RandomState(2)
    yield (
        "noise from 0 to 1",
        {info.name: _scaled(info, noise.uniform(0, 1, _count(info))) for info in given},
    )
    yield "a ramp", {info.name: _scaled(info, np.linspace(-1, 1, _count(info))) for info in given}
    yield "waves", {info.name: _scaled(info, np.sin(np.arange(_count(info)))) for info in given}
    # As a spectrogram has: 0 between them.
    yield "peaks", {info.name: _scaled(info, _peaks(_count(info))) for info in given}
    if len(given) == 1:
        for row in _rows_of_weights(model, given[0]):
            yield "a row of the model's own data", {given[0].name: row}
    for scale in (10.0, 255.0):
        large = {info.name: _scaled(info, noise.uniform(0, scale, _count(info))) for info in given}
        yield f"noise from 0 to {scale:g}", large


def _count(info: TensorInfo) -> int:
    return int(np.prod([size for size in info.shape if isinstance(size, int)], dtype=np.int64))


def _tone(count: int) -> Array:
    at = np.arange(count) * 2 * np.pi * _TONE_HZ / _RATE
    tone: Array = 0.3 * np.sin(at) + 0.2 * np.sin(2 * at) + 0.1 * np.sin(3 * at)
    return tone


def _peaks(count: int) -> Array:
    peaks: Array = (np.arange(count) % _PEAKS_APART == 0).astype(float)
    return peaks


def _scaled(info: TensorInfo, values: Array) -> Array:
    """Values from -1 to 1 as an input has them: 8-bit integers fill their type, others are 0 or 1.
    One number that is called a bound is one, of nearly everything."""
    shape = tuple(size for size in info.shape if isinstance(size, int))
    dtype = np.dtype(info.dtype)
    if dtype.kind == "f" and not shape and info.name.lower().endswith(("min", "max")):
        return np.asarray(0 if info.name.lower().endswith("min") else 1e4, dtype)
    if dtype.kind == "f":
        return np.asarray(values.reshape(shape), dtype)
    if dtype.itemsize > 1:
        return np.asarray((values > 0).reshape(shape), dtype)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    whole = np.clip(np.rint((low + high + values * (high - low)) / 2), low, high)
    return np.asarray(whole.reshape(shape), dtype)


def _rows_of_weights(model: LoadedModel, info: TensorInfo) -> Iterator[Array]:
    """Rows of the tables in the model that are as long as a row of the input: nearest neighbours
    keep the data of their training."""
    from onnx import numpy_helper

    shape = tuple(size for size in info.shape if isinstance(size, int))
    if len(shape) != 2 or np.dtype(info.dtype).kind != "f":
        return
    for item in model.proto.graph.initializer:
        if len(item.dims) == 2 and item.dims[1] == shape[1] and item.dims[0] > 1:
            table = numpy_helper.to_array(item)
            if table.dtype.kind == "f":
                for row in table[:: max(1, len(table) // _MOST_ROWS)]:
                    yield np.broadcast_to(row, shape).astype(info.dtype)

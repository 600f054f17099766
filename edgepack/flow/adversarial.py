"""Inputs that tests forget: what broken sensors give, and positions at their bounds.

Random numbers are finite, of moderate size and all different; indices among them are 0 or 1. What
kernels do with NaN, infinities, a hot pixel, denormal numbers or an index one past the end, they do
not show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgepack.base.apart import Apart, CrashError
from edgepack.boards import Board
from edgepack.compiler import CompiledModel
from edgepack.compiler.backend.run import run_plan
from edgepack.flow.positions import first_outside, limits_of, position_uses
from edgepack.flow.reference import (
    Reference,
    ReferenceRunError,
    compare,
    other_ways,
    reference_outputs,
)
from edgepack.frontend.float16 import widen
from edgepack.model import LoadedModel, dtype_name
from edgepack.model.meanings import as_meant, choices_of_nan
from edgepack.native.emulate import EmulationError, run_emulated

Array = npt.NDArray[Any]

NAN, INFINITY, HOT = "NaN in one place", "an infinity in one place", "one hot value"
LIMITS = "alternating limits of the type"
BOUNDS, PAST = "positions at their bounds", "positions one past their bounds"
# Where a difference is recorded, not refused: products of an infinity with weights that only fill a
# vector are NaN in some kernels (Cortex-A53, tests/onnx_models.py's branches).
RECORDED: tuple[str, ...] = (NAN, INFINITY)
# What a depth camera gives where it sees nothing.
_HOT = 65535.0


def odd_cases(model: LoadedModel, golden: Sequence[Array]) -> dict[str, list[Array]]:
    """Inputs by what is odd about them, those first that tell most; golden where nothing is."""

    def floats(make: Callable[[Array], Array]) -> list[Array]:
        return [
            make(array.copy()) if array.dtype.kind == "f" and array.size else array
            for array in golden
        ]

    def one(value: float) -> list[Array]:
        return floats(lambda array: _put(array, value))

    cases: dict[str, list[Array]] = _position_cases(model, golden)
    if any(array.dtype.kind == "f" and array.size for array in golden):
        cases[NAN], cases[INFINITY], cases[HOT] = one(np.nan), one(np.inf), one(_HOT)
        cases["denormal numbers"] = floats(
            lambda array: np.copysign(np.finfo(array.dtype).smallest_subnormal, array)
        )
        cases["all equal"] = floats(np.ones_like)
    limits = [_limits(array) for array in golden]
    if any(one is not array for one, array in zip(limits, golden, strict=True)):
        cases[LIMITS] = limits
    return cases


def _put(array: Array, value: float) -> Array:
    """The array with a value in its middle, where windows reach it from all sides."""
    array[tuple(size // 2 for size in array.shape)] = min(value, float(np.finfo(array.dtype).max))
    if not np.isfinite(value):
        array[tuple(size // 2 for size in array.shape)] = value
    return array


def _limits(array: Array) -> Array:
    """The least and the largest value of the type in turns; of integers that may be positions or
    counts, which are wider than a byte, what they are."""
    kind, turns = array.dtype.kind, np.arange(array.size).reshape(array.shape) % 2 == 0
    limits: Any
    if kind == "f":
        limits = np.finfo(array.dtype)
    elif kind in "iu" and array.dtype.itemsize == 1:
        limits = np.iinfo(array.dtype)
    else:
        return array
    return np.asarray(np.where(turns, limits.max, limits.min), array.dtype).reshape(array.shape)


def _position_cases(model: LoadedModel, golden: Sequence[Array]) -> dict[str, list[Array]]:
    """Inputs that are positions or lengths by their use, at their bounds and one past them."""
    known = position_uses(model)
    if not known:
        return {}

    def filled(past: int) -> list[Array]:
        made = []
        for info, array in zip(model.inputs, golden, strict=True):
            if info.name not in known or not array.size:
                made.append(array)
                continue
            values, least_and_most = array.reshape(-1).tolist(), _range_of(array.dtype)
            found = limits_of(known[info.name], array)
            bounded = [at for at, limits in enumerate(found) if limits is not None]
            for turn, at in enumerate(bounded):
                low, high = found[at] or (0, 0)
                value = low - past if turn % 2 else high + past
                values[at] = max(least_and_most[0], min(value, least_and_most[1]))
            made.append(np.array(values, array.dtype).reshape(array.shape))
        return made

    return {BOUNDS: filled(0), PAST: filled(1)}


def _range_of(dtype: np.dtype[Any]) -> tuple[float, float]:
    limits = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    return limits.min, limits.max


def kinds(array: Array) -> Array:
    """Of each value whether it is finite (0), NaN (1), or an infinity (2 and -2)."""
    if array.dtype.kind != "f":
        return np.zeros(array.shape, np.int8)
    found = np.where(np.isnan(array), 1, np.where(np.isinf(array), 2, 0))
    return np.where(found == 2, np.copysign(2, array), found).astype(np.int8)


def other_kind(got: Array, wanted: Array) -> str | None:
    """In words where a value is of another kind than the reference's; None if none is."""
    mine, due = kinds(got), kinds(wanted)
    differs = np.argwhere(mine != due)
    if not len(differs):
        return None
    at = tuple(int(index) for index in differs[0])
    return f"{len(differs)} values are of another kind, at {at} {got[at]} instead of {wanted[at]}"


# ---------------------------------------------------------------- compared


def compare_odd(
    model: LoadedModel,
    board: Board,
    built: CompiledModel,
    cases: Mapping[str, Sequence[Array]],
    tolerance: float,
    made: Sequence[list[Array] | str] | None = None,
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, str] | None]:
    """The cases that told something, what differs in them by choice, and the first that is wrong
    with what is.

    Values are to be of the reference's kind, near it where they are finite, and equal where they
    are integers. Where it refuses an input, so may the board's code, or give what it likes; but a
    position past its bounds it has to refuse, too. Where other ways of the reference give other
    values, nothing can be said. `made` is what `run_all` gives, if it was asked before.
    """
    told: list[str] = []
    choices: list[str] = []
    wanted = reference_outputs(model, list(cases.values()), built.floats)
    if made is None:
        made = run_all(board, built, list(cases.values()))
    for (case, inputs), due, got in zip(cases.items(), wanted, made, strict=True):
        if isinstance(got, str):
            if got or due is not None:
                return tuple(told), tuple(choices), (case, got or "it is refused")
            told.append(case)
            continue
        if due is None:
            if case == PAST and (outside := _outside(model, inputs)) is not None:
                return tuple(told), tuple(choices), (case, outside)
            continue
        problem = _problem(built, got, due, tolerance)
        if problem is not None:
            if choice := _choice(case, model, built, due):
                choices.append(f"{case}: {choice}")
            elif not _is_sure(model, built, inputs, due, tolerance):
                continue
            elif case in RECORDED:
                choices.append(f"{case}: not as the reference: {problem}")
            else:
                return tuple(told), tuple(choices), (case, problem)
        told.append(case)
    return tuple(told), tuple(choices), None


def _outside(model: LoadedModel, inputs: Sequence[Array]) -> str | None:
    """What is wrong where the reference refuses inputs past their bounds and the board does not."""
    known = position_uses(model)
    for info, array in zip(model.inputs, inputs, strict=True):
        if (found := first_outside(known.get(info.name, ()), array)) is not None:
            return f"{found}: the reference refuses it, and here it has a result"
    return None


def run_all(
    board: Board, built: CompiledModel, cases: Sequence[Sequence[Array]]
) -> list[list[Array] | str]:
    """For each case the outputs; "" if the board's code refuses the input, else how it crashed."""
    try:
        if board.is_local:
            outputs: list[list[Array] | str] = Apart().call(run_here, built.folder, cases)
            return outputs
        return list(run_emulated(built.folder, board, cases))
    except (CrashError, EmulationError) as error:
        if len(cases) > 1:
            return [run_all(board, built, [inputs])[0] for inputs in cases]
        if isinstance(error, CrashError):
            return [f"it crashes ({error.how})"]
        # plan_runner.c's own exit code for a kernel that says it failed.
        return ["" if "exit code 3:" in error.message else f"it crashes ({error.message})"]


def run_here(folder: Path, cases: Sequence[Sequence[Array]]) -> list[list[Array] | str]:
    """The same on this machine, in a process that may crash."""
    made: list[list[Array] | str] = []
    for inputs in cases:
        try:
            made.append(run_plan(folder, inputs))
        except (RuntimeError, ValueError, IndexError):
            made.append("")
    return made


def _problem(
    built: CompiledModel, got: Sequence[Array], wanted: Sequence[Array], tolerance: float
) -> str | None:
    for info, output, reference in zip(built.outputs, got, wanted, strict=True):
        what = f"output '{info.name}'"
        if output.shape != reference.shape:
            return f"{what} is {output.shape} where the reference is {reference.shape}"
        if reference.dtype.kind != "f" and not (
            reference.dtype.kind in "iu" and reference.dtype.itemsize == 1
        ):
            differs = np.argwhere(output != reference)
            if len(differs):
                at = tuple(int(index) for index in differs[0])
                return (
                    f"{what}: {len(differs)} values are others, at {at} {output[at]} instead of "
                    f"{reference[at]}"
                )
            continue
        if (kind := other_kind(output, reference)) is not None:
            return f"{what}: {kind}"
        found = compare(output, reference, tolerance)
        bound = max(tolerance, _EXACT.get(info.dtype, 0.0))
        if found.max_abs_error > bound * max(_SMALLEST, found.max_abs_reference):
            return (
                f"{what} is off by {found.max_abs_error:.2g} where the largest value is "
                f"{found.max_abs_reference:.2g}"
            )
    return None


# Half a unit of a float16's last place, and a step of what is rounded to 8 bits
# (`flow.tolerances`); and what an output is compared with at least.
_EXACT, _SMALLEST = {"float16": 2**-10, "int8": 2**-7, "uint8": 2**-8}, 1e-2


def _choice(
    case: str, model: LoadedModel, built: CompiledModel, wanted: Sequence[Array]
) -> str | None:
    """Why a difference is one by choice; None if it is none."""
    if case in (NAN, INFINITY) and (found := choices_of_nan(model.proto)):
        return "; ".join(f"{item.operator}, {item.form}: {item.taken}" for item in found)
    if case in (NAN, INFINITY) and any("winograd" in layer.rule for layer in built.layers):
        return "Winograd's algorithm makes all results of a tile NaN that one value is in"
    if case in (INFINITY, HOT, LIMITS) and any(layer.dtype == "float16" for layer in built.layers):
        return "half precision has no numbers beyond 65504"
    if case == LIMITS and not all(
        np.isfinite(out).all() for out in wanted if out.dtype.kind == "f"
    ):
        return "sums overflow by the order in which they are added up"
    return None


def rounds_no_number(model: LoadedModel, inputs: Sequence[Array]) -> bool:
    """Whether NaN or an infinity becomes an integer on the way, which ONNX leaves open: as of an
    activation whose range is no float any more, that is quantised as it comes."""
    import onnx

    proto = type(model.proto)()
    proto.CopyFrom(model.proto)
    known = {value.name for value in (*proto.graph.input, *proto.graph.output)}
    known |= {tensor.name for tensor in proto.graph.initializer}
    rounded = sorted({node.input[0] for node in proto.graph.node if _rounds(node)})
    if not rounded:
        return False
    proto.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in rounded if name not in known
    )
    names = [value.name for value in proto.graph.output]
    values = dict(zip(names, Reference(widen(as_meant(proto))).run(inputs), strict=True))
    values |= zip((info.name for info in model.inputs), inputs, strict=True)
    return any(kinds(values[name]).any() for name in rounded if name in values)


def _rounds(node: Any) -> bool:
    """Whether a node makes integers of the values that it is given first."""
    if node.op_type == "Cast":
        to = next(item.i for item in node.attribute if item.name == "to")
        return dtype_name(to).startswith(("int", "uint"))
    return node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM")


def _is_sure(
    model: LoadedModel,
    built: CompiledModel,
    inputs: Sequence[Array],
    wanted: Sequence[Array],
    tolerance: float,
) -> bool:
    """Whether other ways of the reference give the same, and ONNX says what it is."""
    try:
        others = other_ways(model.path, model.proto, inputs, built.floats)
        if rounds_no_number(model, inputs):
            return False
    except ReferenceRunError:
        return False
    return all(_problem(built, other, wanted, tolerance) is None for other in others)

"""Inputs that tests forget: what broken sensors give, and positions at their bounds.

Random numbers are finite, of moderate size and all different; indices among them are 0 or 1. What
kernels do with NaN, infinities, a hot pixel, denormal numbers or an index one past the end, they do
not show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from edgepack.model import LoadedModel, dtype_name, walk_nodes
from edgepack.model.meanings import as_meant, choices_of_nan
from edgepack.model.structure import subgraphs
from edgepack.native.emulate import EmulationError, run_emulated

Array = npt.NDArray[Any]

NAN, INFINITY, HOT = "NaN in one place", "an infinity in one place", "one hot value"
LIMITS = "alternating limits of the type"
BOUNDS, PAST = "positions at their bounds", "positions one past their bounds"
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
            if not got and due is not None and case not in (BOUNDS, PAST) and _has_boxes(model):
                choices.append(f"{case}: {_BOXES}")
            elif got or due is not None:
                return tuple(told), tuple(choices), (case, got or "it is refused")
            told.append(case)
            continue
        if due is None:
            if case == PAST and (outside := _outside(model, inputs)) is not None:
                return tuple(told), tuple(choices), (case, outside)
            continue
        problems = _problems(built, got, due, tolerance)
        if problems:
            chosen = _chosen(case, model, built, inputs, due)
            choices += dict.fromkeys(
                f"{case}: {'; '.join(filter(None, chosen[name]))}"
                for name in problems
                if any(chosen.get(name, ()))
            )
            wrong = [name for name in problems if name not in chosen]
            if wrong := _sure(model, built, inputs, due, tolerance, wrong):
                return tuple(told), tuple(choices), (case, problems[wrong[0]])
            if not any(any(chosen.get(name, ())) for name in problems):
                continue
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


def _problems(
    built: CompiledModel, got: Sequence[Array], wanted: Sequence[Array], tolerance: float
) -> dict[str, str]:
    """What is wrong, by the names of outputs."""
    found = {
        info.name: _problem(info.dtype, output, reference, tolerance)
        for info, output, reference in zip(built.outputs, got, wanted, strict=True)
    }
    return {name: f"output '{name}'{problem}" for name, problem in found.items() if problem}


def _problem(dtype: str, output: Array, reference: Array, tolerance: float) -> str:
    if output.shape != reference.shape:
        return f" is {output.shape} where the reference is {reference.shape}"
    if reference.dtype.kind == "b" or (reference.dtype.kind in "iu" and _is_wide(reference)):
        return _others(output, reference)
    if (kind := other_kind(output, reference)) is not None:
        return f": {kind}"
    found = compare(output, reference, tolerance)
    bound = max(tolerance, _EXACT.get(dtype, 0.0))
    if found.max_abs_error > bound * max(_SMALLEST, found.max_abs_reference):
        return (
            f" is off by {found.max_abs_error:.2g} where the largest value is "
            f"{found.max_abs_reference:.2g}"
        )
    return ""


def _is_wide(array: Array) -> bool:
    """Whether it has integers that no float was rounded to."""
    return array.dtype.itemsize > 1


def _others(got: Array, wanted: Array) -> str:
    """Where values that are exact are others; "" if none is."""
    differs = np.argwhere(got != wanted)
    if not len(differs):
        return ""
    at = tuple(int(index) for index in differs[0])
    return f": {len(differs)} values are others, at {at} {got[at]} instead of {wanted[at]}"


# Half a unit of a float16's last place, and a step of what is rounded to 8 bits
# (`flow.tolerances`); and what an output is compared with at least.
_EXACT, _SMALLEST = {"float16": 2**-10, "int8": 2**-7, "uint8": 2**-8}, 1e-2


# ---------------------------------------------------------------- by choice

_HALF = "half precision has no numbers beyond 65504"
_ORDER = "sums overflow by the order in which they are added up"
_WINOGRAD = "Winograd's algorithm makes all results of a tile NaN that one value is in"
_BOXES = "boxes that are no number, or far beside their image, are refused"
# As a product with a matrix.
_SPREAD = "Resize with antialias: a NaN or an infinity reaches all results along the axes"
# Operators that add up.
_SUMS = frozenset(
    (
        *("AveragePool", "GlobalAveragePool", "LpPool"),
        *("Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "Attention"),
        *("LSTM", "GRU", "RNN"),
        *("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMean", "ReduceSum", "ReduceSumSquare"),
        *("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LRN"),
        *("LayerNormalization", "LpNormalization", "RMSNormalization"),
        *("CumSum", "Sum"),
    )
)
# Operators of which nobody says what they make of what is no number in one of these inputs: places
# in images, and scores by which boxes are ordered.
_UNSAID: Mapping[str, Sequence[int]] = {
    "DeformConv": (2,),
    "GridSample": (1,),
    "MaxRoiPool": (1,),
    "NonMaxSuppression": (0, 1),
    "RoiAlign": (1,),
}


def _chosen(
    case: str,
    model: LoadedModel,
    built: CompiledModel,
    inputs: Sequence[Array],
    wanted: Sequence[Array],
) -> dict[str, tuple[str, ...]]:
    """The outputs that follow from a choice on an input, and from which ones; "" is one that nobody
    made: what NaN becomes as an integer, for one."""
    proto = as_meant(model.proto)
    nodes = [(node, _read_by(node)) for node in proto.graph.node]
    asked = {name for node, reads in nodes if _may_choose(proto, node) for name in reads}
    if case == LIMITS:
        asked |= {name for node, _ in nodes if node.op_type in _SUMS for name in node.output}
    try:
        values = _values(proto, model, inputs, asked)
    except ReferenceRunError:
        return {info.name: ("",) for info in model.outputs}
    whys: dict[str, tuple[str, ...]] = {}
    made = {name for node, _ in nodes for name in node.output}
    everywhere: list[str] = []
    for why, value in _choices_of_layers(case, built):
        if value in made:
            whys[value] = (*whys.get(value, ()), why)
        else:
            everywhere.append(why)
    for node, reads in nodes:
        found = [why for name in reads for why in whys.get(name, ())]
        found += _choices_at(proto, node, values, case in (NAN, INFINITY))
        results = [values[name] for name in node.output if name in values]
        if case == LIMITS and node.op_type in _SUMS and any(kinds(one).any() for one in results):
            found.append(_ORDER)
        for name in node.output:
            if every := dict.fromkeys((*whys.get(name, ()), *found)):
                whys[name] = tuple(every)
    chosen = {}
    for info, due in zip(model.outputs, wanted, strict=True):
        overflows = [_ORDER] if case == LIMITS and kinds(due).any() else []
        if found := [*whys.get(info.name, ()), *everywhere, *overflows]:
            chosen[info.name] = tuple(dict.fromkeys(found))
    return chosen


def _has_boxes(model: LoadedModel) -> bool:
    return any(node.op_type in ("MaxRoiPool", "RoiAlign") for node in walk_nodes(model.proto.graph))


def _choices_of_layers(case: str, built: CompiledModel) -> Iterator[tuple[str, str]]:
    """What layers do by choice, and the tensors that are their results; "" if that is not known."""
    for layer in built.layers:
        if case in (NAN, INFINITY) and "winograd" in layer.rule:
            yield _WINOGRAD, layer.value
        if case in (INFINITY, HOT, LIMITS) and layer.dtype == "float16":
            yield _HALF, layer.value


def _may_choose(proto: Any, node: Any) -> bool:
    """Whether a node makes something by choice of values that are no numbers, or too large."""
    is_known = _rounds(node) or _interpolates(node) or node.op_type in _UNSAID
    return is_known or bool(choices_of_nan(proto, node))


def _choices_at(
    proto: Any, node: Any, values: Mapping[str, Array], may_be_no_number: bool
) -> list[str]:
    """What a node does by choice to what it is given; inside of branches and loops
    `may_be_no_number` says whether there may be any."""
    found = []
    given = [values.get(name) for name in node.input]
    odd = [place for place, array in enumerate(given) if array is not None and kinds(array).any()]
    for inner in _nodes_in(node):
        is_chosen = bool(odd) if inner is node else may_be_no_number
        if is_chosen or (inner is node and _is_beyond(node, given)):
            of_nan = choices_of_nan(proto, inner)
            found += [f"{item.operator}, {item.form}: {item.taken}" for item in of_nan]
            found += [""] * _rounds(inner)
        if is_chosen and _interpolates(inner):
            found.append(_SPREAD)
        unsaid = _UNSAID.get(inner.op_type, ())
        if unsaid and is_chosen and (inner is not node or not set(odd).isdisjoint(unsaid)):
            found.append("")
    return found


def _interpolates(node: Any) -> bool:
    """Whether its results are sums of all elements by weights, many of which are 0."""
    return node.op_type == "Resize" and any(
        item.name == "antialias" and item.i for item in node.attribute
    )


def _is_beyond(node: Any, given: Sequence[Array | None]) -> bool:
    """Whether floats become integers of a type that has no such numbers, or by a scale that a float
    cannot tell from 0."""
    if not given or given[0] is None or given[0].dtype.kind != "f" or not given[0].size:
        return False
    values = given[0].astype(np.float64)
    if node.op_type == "DynamicQuantizeLinear":
        scale = (max(0.0, values.max()) - min(0.0, values.min())) / 255
        return bool(scale < np.finfo(np.float32).tiny)
    if node.op_type != "Cast" or not _rounds(node):
        return False
    to = dtype_name(next(item.i for item in node.attribute if item.name == "to"))
    if to in ("int4", "uint4"):
        return True  # numpy has no limits of these
    limits, cut = np.iinfo(to), np.trunc(values)
    return bool(cut.min() < limits.min or cut.max() > limits.max)


def _nodes_in(node: Any) -> list[Any]:
    """A node, and those of graphs inside of it."""
    return [node, *(inner for graph in subgraphs(node) for inner in walk_nodes(graph))]


def _read_by(node: Any) -> list[str]:
    """The tensors that a node, or a graph inside of it, reads."""
    return [name for one in _nodes_in(node) for name in one.input if name]


def _values(
    proto: Any, model: LoadedModel, inputs: Sequence[Array], asked: set[str]
) -> dict[str, Array]:
    """Tensors inside of a model on an input, by the reference."""
    import onnx

    given = {info.name: array for info, array in zip(model.inputs, inputs, strict=True)}
    made = {name for node in proto.graph.node for name in node.output}
    if not (wanted := sorted(asked & made)):
        return given
    copy = type(proto)()
    copy.CopyFrom(proto)
    outputs = {value.name for value in copy.graph.output}
    copy.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in wanted if name not in outputs
    )
    names = [value.name for value in copy.graph.output]
    return given | dict(zip(names, Reference(widen(copy)).run(inputs), strict=True))


def _rounds(node: Any) -> bool:
    """Whether a node makes integers of the values that it is given first."""
    if node.op_type == "Cast":
        to = next(item.i for item in node.attribute if item.name == "to")
        return dtype_name(to).startswith(("int", "uint"))
    return node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM")


def _sure(
    model: LoadedModel,
    built: CompiledModel,
    inputs: Sequence[Array],
    wanted: Sequence[Array],
    tolerance: float,
    outputs: Sequence[str],
) -> list[str]:
    """Those of `outputs` of which other ways of the reference give the same; so does one that fuses
    nothing, for its fused operators have other results of an infinity than those they are made of.
    """
    if not outputs:
        return []
    try:
        others = other_ways(model.path, model.proto, inputs, built.floats)
        if others:
            others.append(Reference(widen(as_meant(model.proto)), fused=False).run(inputs))
    except ReferenceRunError:
        return []
    unsure = {name for other in others for name in _problems(built, other, wanted, tolerance)}
    return [name for name in outputs if name not in unsure]

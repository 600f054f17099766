"""Random models, compiled for this machine and run beside onnxruntime: `./dev fuzz graphs`.

    ./dev fuzz graphs [--seed S] [--count N] [--seconds T] [--only FAMILY] [--json FILE]

Graph number N is drawn from seed S + N: of one node or some, of any opset from 7 on, with all
element types and odd attributes. Each ends as one of `VERDICTS`: "same" as onnxruntime (onnx's
reference where that has no kernel), "refused" by an error that names what is wrong, "chosen" where
only what follows from a NaN or a too large integer differs that docs/reference/meanings.md has a
row for, or from Winograd's algorithm on an infinity, "unsteady" where ways of onnxruntime itself
are as far apart, "different", of another "type" or shape, or "untyped": an error without words of
its own, a crash. The last three are bugs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from edgepack.model.meanings import choices_of_nan, departures
from tests.fuzz import drawing, sketch

VERDICTS = ("same", "refused", "chosen", "unsteady", "different", "type", "untyped", "none")
BUGS = ("different", "type", "untyped")
# What a graph may take of a CPU, and, should it wait for something that does not come, of time: on
# a busy machine it is long in coming.
_CPU_LIMIT_S = 300.0
_LIMIT_S = 3600.0
WORKERS = 2
# Rounded to 8 bits, up or down by the last bits of float32: of 4e-6, 2^-8.
OF_BFLOAT16 = 1000.0
# Of float64, onnxruntime's Shrink, and norms by their attribute, are in float32; onnx's reference
# has float32's Erf, HardSwish with float32's sixth, and attributes that are left out (BN's epsilon,
# LRN's alpha) in float64, where ONNX has no attribute of that type.
_IN_FLOAT32 = frozenset(
    ("BatchNormalization", "Erf", "Gelu", "HardSwish", "LRN", "RMSNormalization", "Shrink")
)
OF_FLOAT32 = 2.0


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A model, the inputs it is run on, and what is due."""

    name: str
    model: onnx.ModelProto
    given: Sequence[np.ndarray]
    due: Sequence[np.ndarray]
    # Outputs that follow from an element that is a choice of its operator: a NaN, for one.
    chosen: frozenset[str] = frozenset()
    # How many times the last bits of float32 it may be off.
    times: float = 1.0

    @property
    def operators(self) -> str:
        """Its nodes in one line."""
        return " ".join(node.op_type for node in self.model.graph.node)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a model ended, and why."""

    name: str
    verdict: str
    why: str = ""
    operators: str = ""
    opset: int = 0


def drawn(seed: int, only: str = "") -> Drawn | None:
    """The model of a seed; None if nothing came of it, or nothing can say what is due."""
    made = drawing.draw_graph(seed, only=only)
    model = made.model()
    if not made.nodes or not model.graph.output:
        return None
    given = made.data()
    due = sketch.run_by_onnxruntime(model, names(model, given))
    by_reference = due is None
    if due is None:  # each node by what has it, as they were drawn
        due = [made.values[value.name] for value in model.graph.output]
    chosen = behind_choices(model, made.values, by_reference=by_reference)
    of_bfloat16 = any(value.dtype.name == "bfloat16" for value in made.values.values())
    times = times_of(model, of_bfloat16=of_bfloat16)
    return Drawn(name=str(seed), model=model, given=given, due=due, chosen=chosen, times=times)


def times_of(model: onnx.ModelProto, *, of_bfloat16: bool) -> float:
    """How many times the last bits of float32 the outputs of a model may be off."""
    if of_bfloat16:
        return OF_BFLOAT16
    of_float32 = any(node.op_type in _IN_FLOAT32 for node in model.graph.node)
    return OF_FLOAT32 if of_float32 else 1.0


def behind_choices(
    model: onnx.ModelProto, values: Mapping[str, np.ndarray], *, by_reference: bool = False
) -> frozenset[str]:
    """The tensors of a graph that follow from a NaN, an infinity or an integer that is too large,
    where the table of choices has a row for it; from a comparison or an order of floats that differ
    in their last bits; or, of a model that onnxruntime does not run, from what onnx's reference
    reads otherwise than is compiled."""
    found: set[str] = set()
    made = {name for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        given = [values[name] for name in node.input if name in values]
        if (
            found.intersection(node.input)
            or (not all(map(_is_finite, given)) and choices_of_nan(model, node))
            or (by_reference and (departures(model, node) or _is_wrong_in_reference(node, given)))
            or _is_too_large(node.op_type, given)
            or _is_left_unrounded(node, model)
            or _is_read_otherwise(node, given)
            or _overflows(node, given, values)
        ):
            found.update(node.output)
        elif _is_on_an_edge(node, values, made):
            # What TopK takes differs in its last bits as well, which is no other value.
            found.update(node.output[1:] if node.op_type == "TopK" else node.output)
    return frozenset(found)


_CONVOLUTIONS, _POOLS = ("Conv", "ConvTranspose"), ("AveragePool", "LpPool")


def _is_wrong_in_reference(node: onnx.NodeProto, values: Sequence[np.ndarray]) -> bool:
    """onnx's reference (1.23.2) gives each group of a ConvTranspose the first group's bias, unlike
    Conv's, onnxruntime and PyTorch; and the windows of a pool of sums that rounds up begin before
    the image, unlike those of a MaxPool, and of onnxruntime. Such a pool takes NaN for padding. A
    Resize by half_pixel_symmetric has another first position than ONNX's formula says, and a
    QuantizeLinear turns numbers of more steps than an int32 counts to the other end of the type.
    What an auto_pad pads says nothing of a pool's dilations; and those of a convolution are zeros
    among its weights, which an infinity makes NaN. A Unique that is not to sort does, alone."""
    given = {item.name: item.i for item in node.attribute}
    is_dilated = any(item.name == "dilations" and {*item.ints} != {1} for item in node.attribute)
    if is_dilated and node.op_type in (*_CONVOLUTIONS, *_POOLS, "MaxPool"):
        is_automatic = any(item.name == "auto_pad" for item in node.attribute)
        if is_automatic or not all(map(_is_finite, values)):
            return True
    if node.op_type in ("Resize", "Upsample"):
        is_symmetric = any(item.s == b"half_pixel_symmetric" for item in node.attribute)
        return is_symmetric or _has_another_size(values)
    if node.op_type == "QuantizeLinear" and len(values) > 1:
        steps = np.abs(wide(values[0])).max(initial=0) / np.abs(wide(values[1])).min(initial=np.inf)
        return not steps < 2**31
    if node.op_type in _POOLS:
        return given.get("ceil_mode", 0) != 0 or not all(map(_is_finite, values))
    if node.op_type == "Unique":
        return not given.get("sorted", 1)
    return node.op_type == "ConvTranspose" and len(node.input) > 2 and given.get("group", 1) != 1


def _has_another_size(values: Sequence[np.ndarray]) -> bool:
    """Whether sizes times scales, the last values, are integers in float32 only."""
    if not values:  # of values that only running the model tells
        return False
    sizes, scales = np.array(values[0].shape, "float32"), values[-1]
    if scales.dtype != np.float32 or scales.shape != sizes.shape:
        return False
    return bool((np.floor(sizes * scales) != np.floor(sizes.astype("float64") * scales)).any())


def _is_read_otherwise(node: onnx.NodeProto, given: Sequence[np.ndarray]) -> bool:
    """Whether the table of choices has a row for a node whatever its elements are."""
    attributes = [item.s for item in node.attribute]
    if node.op_type == "Resize":
        return b"half_pixel_symmetric" in attributes and not {b"linear", b"cubic"} & {*attributes}
    if not given:  # of values that only running the model tells
        return False
    if any(item.name == "saturate" and not item.i for item in node.attribute):
        # 240 is the largest number of the narrowest type.
        return not bool((np.abs(wide(given[0])) <= 240).all())  # nor is NaN
    if node.op_type in _NORMS:
        # In float32 the squares of such numbers are infinite.
        return given[0].dtype == np.float64 and not bool((np.abs(given[0]) < 1e18).all())
    if node.op_type == "LRN":
        return _leaves_squares(node, given[0])
    return node.op_type == "ReduceLogSumExp" and (
        given[0].dtype.kind in "iu"
        or bool(np.isnan(wide(given[0])).any() and (wide(given[0]) == np.inf).any())
    )


def _leaves_squares(node: onnx.NodeProto, image: np.ndarray) -> bool:
    """Whether squares that an LRN has taken away again leave an error, or are infinite."""
    known = {item.name: item.f or item.i for item in node.attribute}
    with np.errstate(over="ignore"):
        largest = np.square(image).max(initial=0) * known.get("alpha", 1e-4)
    left = np.finfo("float32").eps * largest / known["size"]
    return not left < 1e-6 * known.get("bias", 1.0)


_SUMS = frozenset(
    ("Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul", "ReduceL1", "ReduceL2", "ReduceMean",
     "ReduceProd", "ReduceSum", "ReduceSumSquare")
)  # fmt: skip


def _overflows(
    node: onnx.NodeProto, given: Sequence[np.ndarray], values: Mapping[str, np.ndarray]
) -> bool:
    """Whether parts of a sum or product of finite numbers are infinite: which, and whether they
    meet one of the other sign, depends on their order, and on how often they are rounded."""
    if node.op_type in _IN_FLOAT32 or node.op_type == "Resize":
        # onnxruntime rounds doubles to float32; cubic weights add up to less than 2 in size, for
        # each axis.
        first = (wide(a) for a in given[:1] if a.dtype.kind == "f")
        largest = (np.abs(a[np.isfinite(a)]).max(initial=0) for a in first)
        return any(size > np.finfo("float32").max / 16 for size in largest)
    made = [values[name] for name in node.output if name in values]
    if node.op_type == "ReduceProd" and given and made and made[0].dtype.kind == "f":
        # Some of the elements, which others would have made small again.
        with np.errstate(over="ignore"):
            large = np.maximum(np.abs(wide(given[0])), 1).prod()
        return bool(large > np.finfo(made[0].dtype).max)
    if node.op_type not in _SUMS or all(map(_is_finite, made)):
        return False
    if all(map(_is_finite, given)):
        return True
    finite = [np.abs(a[np.isfinite(a)]).max(initial=1.0) for a in map(wide, given)]
    with np.errstate(over="ignore"):
        most = np.prod(finite) * given[0].size
        most = np.square(most) if node.op_type in _SQUARES else most
    own = made[0].dtype if made[0].dtype.kind == "f" else np.dtype("float32")
    return bool(most > np.finfo(own).max)


_SQUARES = frozenset(("ReduceL2", "ReduceSumSquare"))


def _is_left_unrounded(node: onnx.NodeProto, model: onnx.ModelProto) -> bool:
    """Whether a DequantizeLinear is of a QuantizeLinear's integers, beside operators on integers:
    numbers between others are not rounded there (docs/guides/precision.md)."""
    nodes = model.graph.node
    quantised = {name for it in nodes if it.op_type == "QuantizeLinear" for name in it.output}
    return (
        node.op_type == "DequantizeLinear"
        and node.input[0] in quantised.difference(value.name for value in model.graph.output)
        and any(it.op_type.startswith("QLinear") for it in nodes)
    )


_NORMS = frozenset(("GroupNormalization", "LayerNormalization", "RMSNormalization"))


_COMPARISONS = frozenset(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"))


_RANKED = frozenset(("ArgMax", "ArgMin", "TopK"))


def _is_on_an_edge(node: onnx.NodeProto, values: Mapping[str, np.ndarray], made: set[str]) -> bool:
    """Whether a comparison, or an order, is of floats that differ in their last bits only, so that
    it tells how they were rounded."""
    if not made.intersection(node.input):
        return False
    if node.op_type in _COMPARISONS:
        a, b = (values[name] for name in node.input)
        return _differ_in_last_bits(a, b)
    if node.op_type in _RANKED and values[node.input[0]].ndim:
        axis = next((item.i for item in node.attribute if item.name == "axis"), None)
        default = -1 if node.op_type == "TopK" else 0
        ordered = np.sort(values[node.input[0]], axis=default if axis is None else axis)
        ordered = np.moveaxis(ordered, default if axis is None else axis, 0)
        return _differ_in_last_bits(ordered[:-1], ordered[1:])
    if node.op_type == "Unique":
        ordered = np.sort(values[node.input[0]], axis=None)
        return _differ_in_last_bits(ordered[:-1], ordered[1:])
    return False


def _differ_in_last_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether any pair of floats does. Halves may be equal that are not in float32, in which both
    are computed."""
    if a.dtype.kind != "f":
        return False
    halves = a.dtype == np.float16
    largest = np.maximum(np.abs(a), np.abs(b)).astype("float64")
    with np.errstate(invalid="ignore"):
        apart = np.abs(a.astype("float64") - b.astype("float64"))
    near = (apart <= 8 * np.finfo(a.dtype).eps * largest) & (largest > 0)
    return bool((near & (halves | (apart > 0))).any())


def _is_too_large(operator: str, given: Sequence[np.ndarray]) -> bool:
    """Whether an operator that onnxruntime may compute in floats has an integer result beyond its
    type, or may have: sums and products over all elements, not only those of an axis."""
    if operator not in _BEYOND or not given or given[0].dtype.kind not in "iu":
        return False
    values = np.abs(given[0].astype(float))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        largest = _BEYOND[operator](values, *given[1:2])
    return not np.max(largest, initial=0) <= np.iinfo(given[0].dtype).max


_BEYOND: Mapping[str, Callable[..., np.ndarray]] = {
    "Pow": lambda values, exponents: values ** exponents.astype(float),
    "ReduceL1": lambda values, *_: values.sum(),
    "ReduceL2": lambda values, *_: np.sqrt(np.square(values).sum()),
    "ReduceProd": lambda values, *_: np.maximum(values, 1).prod(),
    "ReduceSum": lambda values, *_: values.sum(),
    "ReduceSumSquare": lambda values, *_: np.square(values).sum(),
}


def names(model: onnx.ModelProto, given: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    return {info.name: value for info, value in zip(model.graph.input, given, strict=True)}


def _is_finite(value: np.ndarray) -> bool:
    narrow = value.dtype.name in sketch.NARROW
    return (value.dtype.kind != "f" and not narrow) or bool(np.isfinite(wide(value)).all())


def wide(value: np.ndarray) -> np.ndarray:
    """In float64, which all floats and integers of few bits are cast to."""
    return (
        value.astype("float32").astype("float64")
        if value.dtype.kind == "V"
        else (value.astype("float64"))
    )


# ---------------------------------------------------------------- one model


def judge(case: Drawn, work: Path) -> Verdict:
    """Compile a model for this machine, run it, compare."""
    opset = next(o.version for o in case.model.opset_import if not o.domain)
    made = run(case, work)
    verdict, why = made.verdict, made.why
    if made.outputs is not None:
        verdict, why = compared(case, made.outputs)
    if verdict == "different" and made.by_winograd and not all(map(_is_finite, case.given)):
        # An infinity makes results of its tile NaN (docs/guides/precision.md).
        plain = run(case, work, direct=True)
        if plain.outputs is not None and compared(case, plain.outputs)[0] not in BUGS:
            verdict = "chosen"
    return Verdict(name=case.name, verdict=verdict, why=why, operators=case.operators, opset=opset)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The outputs of a compiled model; or a verdict, and why."""

    outputs: Sequence[np.ndarray] | None = None
    by_winograd: bool = False
    verdict: str = ""
    why: str = ""


def run(case: Drawn, work: Path, *, direct: bool = False) -> Run:
    from edgepack.base.errors import EdgepackError
    from edgepack.boards import get_board
    from edgepack.compiler import compile_model
    from edgepack.frontend.errors import CompilerError
    from edgepack.frontend.precision import Precision
    from edgepack.model import ModelSpec
    from edgepack.native.toolchain import select
    from tests.plan_runner import run_plan

    path = work / "model.onnx"
    path.write_bytes(case.model.SerializeToString())
    board = get_board("local")
    toolchain = select(board, "gnu").toolchain
    try:
        spec, precision = ModelSpec(path=path), Precision(direct=direct)
        out = work / ("direct" if direct else "out")  # a library is loaded once for each path
        made = compile_model(spec, board, toolchain, out, precision=precision)
        by_winograd = any("winograd" in layer.rule for layer in made.layers)
        return Run(outputs=run_plan(made.folder, list(case.given)), by_winograd=by_winograd)
    except CompilerError as error:
        said = f"{error.message} <- {type(error.__cause__).__name__}: {_line(error.__cause__)}"
    except EdgepackError as error:
        said = f"{type(error).__name__}: {error}".replace(str(path), "model")
        if not _says_nothing(said):
            return Run(verdict="refused", why=said)
        said = f"{said.splitlines()[0]} <- {_line(error.__cause__)}"
    except Exception as error:
        said = f"{type(error).__name__}: {_line(error)}"
    return Run(verdict="untyped", why=said)


def compared(case: Drawn, got: Sequence[np.ndarray]) -> tuple[str, str]:
    """The verdict on outputs, and why."""
    free = [value.name not in case.chosen for value in case.model.graph.output]
    mine, due = (list(itertools.compress(values, free)) for values in (got, case.due))
    types = [(a.dtype, a.shape) for a in got], [(b.dtype, b.shape) for b in case.due]
    if types[0] != types[1]:
        # What is chosen may be more values or fewer, but of the same type.
        of_type = [a.dtype for a in got] == [b.dtype for b in case.due]
        if of_type and [a.shape for a in mine] == [b.shape for b in due]:
            wrong = differences(mine, due, due, case.times)
            return ("different", wrong) if wrong else ("chosen", f"{types[0]} for {types[1]}")
        return "type", f"{types[0]} for {types[1]}"
    wrong = differences(got, case.due, case.due, case.times)
    if not wrong:
        return "same", ""
    if not differences(mine, due, due, case.times):
        return "chosen", wrong
    return ("unsteady" if is_unsteady(case, got) else "different"), wrong


# What an error says that names nothing: neither an operator nor a form.
_EMPTY = (
    re.compile(r": '' cannot be compiled"),
    re.compile(r"cannot be compiled in this form: \d+ inputs"),
    re.compile(r"please report"),
    re.compile(r"not a straight line of calls"),
    re.compile(r"a tensor inside the model has type"),
)


def _says_nothing(text: str) -> bool:
    return any(pattern.search(text) for pattern in _EMPTY)


def _line(error: BaseException | None) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else "")[:300]


def differences(
    got: Sequence[np.ndarray],
    due: Sequence[np.ndarray],
    scale: Sequence[np.ndarray],
    times: float = 1.0,
) -> str:
    """How outputs differ; empty if they do not, but for `times` the last bits of their largest."""
    for number, (mine, theirs, by) in enumerate(zip(got, due, scale, strict=True)):
        if wrong := _difference(mine, theirs, by, times):
            return f"output {number}: {wrong}"
    return ""


# Numbers so many times as large as most of a tensor's are compared by themselves: beside one of
# 3e38, all others would be equal.
_HOT = 1e3


def _difference(mine: np.ndarray, due: np.ndarray, by: np.ndarray, times: float) -> str:
    """NaN, either infinity and numbers at the same places; and numbers that are near."""
    if (mine.shape, mine.dtype) != (due.shape, due.dtype):
        return f"{mine.dtype}{mine.shape} for {due.dtype}{due.shape}"
    if due.dtype.kind != "f":
        count = int(np.count_nonzero(mine != due))
        return f"{count} of {due.size} differ" if count else ""
    a, b = mine.astype("float64"), due.astype("float64")
    kinds = _kind(a) != _kind(b)
    if kinds.any():
        at = np.argmax(kinds)
        return f"{kinds.sum()} of {due.size} of another kind: {a.flat[at]} for {b.flat[at]}"
    sizes = np.abs(by[np.isfinite(by)].astype("float64"))
    with np.errstate(over="ignore"):
        usual = sizes[sizes <= _HOT * np.median(sizes[sizes > 0])] if (sizes > 0).any() else sizes
    # What was rounded in between is so far off in any type.
    own = {} if times == OF_BFLOAT16 else {"float16": 2.0**-10 / times}
    if times == 1.0:
        own["float64"] = 1e-12
    unit = times * own.get(by.dtype.name, 4e-6)
    atol = unit * float(usual.max(initial=1e-6))
    close = np.isclose(a, b, rtol=2 * unit, atol=atol, equal_nan=True)
    if close.all():
        return ""
    with np.errstate(all="ignore"):
        worst = np.nanmax(np.abs(a - b)[~close])
    return f"{np.count_nonzero(~close)} of {due.size} differ, by up to {worst:.2g}"


def _kind(value: np.ndarray) -> np.ndarray:
    """0 for a number, 1 for NaN, 2 and 3 for the infinities."""
    return np.select([np.isnan(value), value == np.inf, value == -np.inf], [1, 2, 3])


def is_unsteady(case: Drawn, got: Sequence[np.ndarray]) -> bool:
    """Whether other ways of onnxruntime are as far from the first as `got` is, but for what is
    chosen.

    Those are: with all its fusions, for inputs that differ by one part in a million, in float32
    where the model is in float16, in float64 where norms of float64 are in float32, which is how a
    board computes them, in float32 between casts to bfloat16, with an Erf, also in Gelu, that is
    one last bit nearer to 0, for all values of 1 + Erf are whole numbers of those, and with an
    InstanceNormalization as it is defined, of which onnxruntime makes one scale and shift (1e-4 off
    for one element). Behind a Resize, whose integers are cut off behind the point, onnx's reference
    is one; so it is of a model that onnxruntime does not run. What is cut off near an integer may
    be that or the next one.
    """
    from edgepack.frontend.float16 import widen

    random = np.random.default_rng(0)
    ways = [sketch.run_by_onnxruntime(case.model, names(case.model, case.given), optimise=True)]
    wide = widen(case.model)
    if wide is not case.model:
        ways.append(_run_whole(wide, case.given))
    exact = _with_exact_norms(case.model)
    if exact != case.model:
        ways.append(_run_whole(exact, case.given))
    for other in (
        _with_rough_erfs(case.model),
        _with_plain_norms(case.model),
        _with_wide_nodes(case.model),
    ):
        if other != case.model:
            ways.append(_run_whole(other, case.given))
    for _ in range(3):
        ways.append(_run_whole(case.model, [_nearby(value, random) for value in case.given]))
    by_reference = any(node.op_type in sketch.BY_REFERENCE for node in case.model.graph.node)
    if by_reference or ways[0] is None:
        ways.append(sketch.run_by_reference(case.model, names(case.model, case.given)))
    if any(node.op_type in ("Resize", "Upsample") for node in case.model.graph.node):
        ways += sketch.run_to_either_side(case.model, names(case.model, case.given))
    found = [way for way in ways if way is not None]
    for number, (mine, due) in enumerate(zip(got, case.due, strict=True)):
        is_chosen = case.model.graph.output[number].name in case.chosen
        if is_chosen or not differences([mine], [due], [due]):
            continue
        others = [way[number] for way in found if way[number].shape == due.shape]
        if not any(_as_far(mine, due, other) for other in others):
            return False
    return True


def _with_exact_norms(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with norms whose `stash_type` is float64."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    opsets = {item.domain: item.version for item in model.opset_import}
    for node in copy.graph.node:
        try:
            schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
        except onnx.defs.SchemaError:
            continue
        if "stash_type" in schema.attributes:
            others = [item for item in node.attribute if item.name != "stash_type"]
            del node.attribute[:]
            node.attribute.extend(others)
            node.attribute.append(onnx.helper.make_attribute("stash_type", onnx.TensorProto.DOUBLE))
    return copy


_ROUGH_GELU = """<domain: "rough", opset_import: ["": 20]> Gelu (x) => (y) {
  half = Constant <value_float = 0.5> ()
  one = Constant <value_float = 1.0> ()
  root = Constant <value_float = 0.7071067811865476> ()
  nearly = Constant <value_float = 0.99999988> ()
  scaled = Mul (x, root)
  erf = Erf (scaled)
  rough = Mul (erf, nearly)
  share = Add (rough, one)
  halved = Mul (x, half)
  y = Mul (halved, share)
}"""


# The same before something that is steep near 1, as Asin is.
_ROUGH_ERF = """<domain: "rough", opset_import: ["": 13]> Erf (x) => (y) {
  near = Erf (x)
  factor = Constant <value_float = 0.99999988> ()
  y = Mul (near, factor)
}"""


def _with_rough_erfs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each Erf of float32, also those of exact Gelus, 2^-23 nearer to 0."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    inferred = onnx.shape_inference.infer_shapes(model).graph
    kinds = {one.name: one.data_type for one in inferred.initializer}
    for value in itertools.chain(inferred.input, inferred.value_info):
        kinds[value.name] = value.type.tensor_type.elem_type
    rough = set()
    for node in copy.graph.node:
        exact = node.op_type == "Gelu" and not any(item.s == b"tanh" for item in node.attribute)
        if not (exact or node.op_type == "Erf") or node.domain:
            continue
        if kinds.get(node.input[0]) == onnx.TensorProto.FLOAT:
            rough.add(_ROUGH_GELU if exact else _ROUGH_ERF)
            node.domain = "rough"
            del node.attribute[:]
    if rough:
        copy.functions.extend(map(onnx.parser.parse_function, sorted(rough)))
        copy.opset_import.append(onnx.helper.make_opsetid("rough", 1))
    return copy


def _with_plain_norms(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with InstanceNormalization as ONNX defines it."""
    opset = next(item.version for item in model.opset_import if not item.domain)
    inferred = onnx.shape_inference.infer_shapes(model).graph
    kinds = {value.name: value.type.tensor_type.elem_type for value in inferred.output}
    for value in inferred.value_info:
        kinds[value.name] = value.type.tensor_type.elem_type
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    for node in model.graph.node:
        is_norm = node.op_type == "InstanceNormalization" and node.output[0] in kinds
        copy.graph.node.extend(
            _plain_norm(node, kinds[node.output[0]], opset) if is_norm else [node]
        )
    return copy


def _plain_norm(node: onnx.NodeProto, kind: int, opset: int) -> Iterator[onnx.NodeProto]:
    """The nodes of an InstanceNormalization, in an operator set from 7 on."""
    (y,) = node.output
    epsilon = next((item.f for item in node.attribute if item.name == "epsilon"), 1e-5)

    def op(name: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
        to = attributes.pop("to")
        return onnx.helper.make_node(name, inputs, [to], **attributes)

    def held(to: str, kind: int, *values: float) -> onnx.NodeProto:
        value = onnx.helper.make_tensor(to, kind, [len(values)], values)
        return op("Constant", to=to, value=value)

    def mean(of: str, to: str) -> onnx.NodeProto:
        if opset < 18:  # the first with axes that are an input
            return op("ReduceMean", of, to=to, axes=[2])
        return op("ReduceMean", of, f"{y}/axis", to=to)

    x, scale, shift = node.input
    yield held(f"{y}/rows", onnx.TensorProto.INT64, 0, 0, -1)
    yield held(f"{y}/column", onnx.TensorProto.INT64, -1, 1)
    if opset >= 18:
        yield held(f"{y}/axis", onnx.TensorProto.INT64, 2)
    yield held(f"{y}/least", kind, epsilon)
    yield op("Reshape", x, f"{y}/rows", to=f"{y}/flat")
    yield mean(f"{y}/flat", f"{y}/mean")
    yield op("Sub", f"{y}/flat", f"{y}/mean", to=f"{y}/centred")
    yield op("Mul", f"{y}/centred", f"{y}/centred", to=f"{y}/squares")
    yield mean(f"{y}/squares", f"{y}/variance")
    yield op("Add", f"{y}/variance", f"{y}/least", to=f"{y}/sum")
    yield op("Sqrt", f"{y}/sum", to=f"{y}/root")
    yield op("Div", f"{y}/centred", f"{y}/root", to=f"{y}/normal")
    yield op("Reshape", scale, f"{y}/column", to=f"{y}/scales")
    yield op("Reshape", shift, f"{y}/column", to=f"{y}/shifts")
    yield op("Mul", f"{y}/normal", f"{y}/scales", to=f"{y}/scaled")
    yield op("Add", f"{y}/scaled", f"{y}/shifts", to=f"{y}/shifted")
    yield op("Shape", x, to=f"{y}/shape")
    yield op("Reshape", f"{y}/shifted", f"{y}/shape", to=y)


def _with_wide_nodes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with nodes on float32 where they are on bfloat16: what a recurrent layer or a norm
    has inside is rounded to that by onnx's reference, and by no definition."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:], copy.graph.value_info[:]
    for node in model.graph.node:
        copy.graph.node.append(node)
        to = next((item.i for item in node.attribute if item.name == "to"), 0)
        if node.op_type == "Cast" and to == onnx.TensorProto.BFLOAT16:
            name = node.output[0]
            copy.graph.node[-1].output[0] = f"{name}/narrow"
            back = {"name": f"{name}/wide", "to": onnx.TensorProto.FLOAT}
            copy.graph.node.append(
                onnx.helper.make_node("Cast", [f"{name}/narrow"], [name], **back)
            )
    return copy if len(copy.graph.node) > len(model.graph.node) else model


def _run_whole(model: onnx.ModelProto, given: Sequence[np.ndarray]) -> list[np.ndarray] | None:
    inputs = names(model, given)
    for way in (sketch.run_by_onnxruntime, sketch.run_by_reference, sketch.run_by_each):
        if (made := way(model, inputs)) is not None:
            return made
    return None


# What another way may be nearer by, and ours still be one of them.
_TIMES = 16.0


def _as_far(mine: np.ndarray, due: np.ndarray, other: np.ndarray) -> bool:
    if due.dtype.kind != "f":
        # An integer behind floats is another one where those lie on an edge.
        count = np.count_nonzero(mine != due)
        return bool(0 < count <= 2 * np.count_nonzero(other != due) + 1) and bool(
            (other != due).any()
        )
    a, b, c = (value.astype("float64") for value in (mine, due, other))
    if (np.isnan(a) != np.isnan(b)).any() and not (np.isnan(c) != np.isnan(b)).any():
        return False
    with np.errstate(all="ignore"):
        off, apart = np.nanmax(np.abs(a - b), initial=0.0), np.nanmax(np.abs(c - b), initial=0.0)
    return bool(off <= _TIMES * apart)


def _nearby(value: np.ndarray, random: np.random.Generator) -> np.ndarray:
    if value.dtype.kind != "f":
        return value
    part = {"float16": 1e-3, "float64": 1e-14}.get(value.dtype.name, 1e-6)
    with np.errstate(over="ignore", invalid="ignore"):
        near = np.asarray(value * (1 + part * random.standard_normal(value.shape)), value.dtype)
    return np.where(np.isfinite(near), near, value)


# ---------------------------------------------------------------- many


def _work(pipe: Connection, draw: Callable[[Any], Drawn | None]) -> None:
    """A worker: draws and judges what it is told, until it is told None.

    It says when it has drawn: what breaks before is onnxruntime's.
    """
    while (task := pipe.recv()) is not None:
        case = draw(task)
        pipe.send(None)
        if case is None:
            pipe.send(Verdict(name=str(task), verdict="none"))
            continue
        with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
            pipe.send(judge(case, Path(folder)))


def cpu_of(pid: int) -> float:
    """The seconds of a CPU that a process has taken, and its children; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        tasks = Path(f"/proc/{pid}/task").glob("*/children")
        children = [int(child) for task in tasks for child in task.read_text("utf-8").split()]
    except OSError:
        return 0.0
    # Of its own, then of those whose end it has seen (proc_pid_stat(5): utime to cstime).
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return own + sum(map(cpu_of, children))


class _Worker:
    def __init__(self, draw: Callable[[Any], Drawn | None]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, draw), daemon=True)
        self.process.start()
        theirs.close()
        self.task: Any = None
        self.until = self.cpu_until_s = 0.0
        self.is_drawn = False

    def give(self, task: Any) -> None:
        self.task, self.until, self.is_drawn = task, time.monotonic() + _LIMIT_S, False
        self.cpu_until_s = cpu_of(self._pid) + _CPU_LIMIT_S
        self.pipe.send(task)

    @property
    def _pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def verdict(self) -> Verdict | None:
        """What became of it; None if that is not known yet. A broken worker has no process."""
        why = ""
        try:
            while self.pipe.poll():
                made = self.pipe.recv()
                if isinstance(made, Verdict):
                    return made
                self.is_drawn = True
            if not self.process.is_alive():
                why = f"the process ended with {self.process.exitcode}"
            elif cpu_of(self._pid) > self.cpu_until_s:
                why = f"it did not end in {_CPU_LIMIT_S:g} s of a CPU"
            elif time.monotonic() > self.until:
                why = f"it did not end in {_LIMIT_S:g} s"
            else:
                return None
        except EOFError:
            self.process.join()
            why = f"the process ended with {self.process.exitcode}"
        self.process.kill()
        self.process.join()
        return Verdict(name=str(self.task), verdict="untyped" if self.is_drawn else "none", why=why)


def judge_all(
    tasks: Iterable[Any], draw: Callable[[Any], Drawn | None], workers: int = WORKERS
) -> Iterator[Verdict]:
    """Verdicts as they come, from so many processes; one that crashes or hangs is replaced."""
    left = iter(tasks)
    busy: list[_Worker] = []

    def start(worker: _Worker | None = None) -> None:
        task = next(left, None)
        if task is None:
            if worker is not None:
                worker.pipe.send(None)
            return
        worker = worker or _Worker(draw)
        worker.give(task)
        busy.append(worker)

    for _ in range(workers):
        start()
    while busy:
        multiprocessing.connection.wait([worker.pipe for worker in busy], timeout=1)
        for worker in list(busy):
            made = worker.verdict()
            if made is None:
                continue
            yield made
            busy.remove(worker)
            start(worker if worker.process.is_alive() else None)


@dataclass(frozen=True)
class Draw:
    """Draws the model of a seed, of these families only."""

    only: str = ""

    def __call__(self, seed: int) -> Drawn | None:
        return drawn(seed, self.only)


def until(end: float, tasks: Iterable[int]) -> Iterator[int]:
    """Tasks until a time comes."""
    for task in tasks:
        if time.monotonic() > end:
            return
        yield task


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw and judge; exit code 1 if one is a bug."""
    parser = argparse.ArgumentParser(prog="./dev fuzz graphs")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="of the first (default: the time)"
    )
    parser.add_argument("--count", type=int, default=1 << 40, help="of graphs")
    parser.add_argument("--seconds", type=float, default=600, help="(default: 600)")
    parser.add_argument("--only", default="", help=f"of {', '.join(drawing.DRAWS)}")
    parser.add_argument("--json", type=Path, help="a file for verdicts, one a line")
    parser.add_argument("--workers", type=int, default=WORKERS)
    options = parser.parse_args(arguments)
    tasks = until(
        time.monotonic() + options.seconds, range(options.seed, options.seed + options.count)
    )
    counts = report(judge_all(tasks, Draw(options.only), options.workers), options.json)
    print(f"from seed {options.seed}")
    return int(any(counts[kind] for kind in BUGS))


def report(verdicts: Iterable[Verdict], file: Path | None) -> Counter[str]:
    """Print what is not the same, and how many of each verdict there are."""
    counts: Counter[str] = Counter()
    for made in verdicts:
        counts[made.verdict] += 1
        if file:
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(vars(made)) + "\n")
        if made.verdict in BUGS:
            what = f"{made.name} opset {made.opset} [{made.operators}]"
            print(f"{made.verdict:9} {what} {made.why.splitlines()[0]}", flush=True)
    total = sum(counts.values())
    print(", ".join(f"{counts[kind]} {kind}" for kind in VERDICTS), f"of {total}")
    return counts


if __name__ == "__main__":
    sys.exit(main())

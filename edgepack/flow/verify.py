"""The compiled model against the reference, on several inputs, before it goes into a bundle.

A board's machine code runs under an emulator. That takes a second for each 75 million multiply-adds
(MobileNetV2 for a Cortex-A53, qemu 7.2), so of a large model only the golden input is run so,
and all inputs by a build of the same graph for this machine.
"""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from edgepack.base.apart import Apart, CrashError
from edgepack.base.errors import MismatchError
from edgepack.base.kept import keep_file
from edgepack.base.paths import cache_dir, will_make
from edgepack.base.progress import NO_PROGRESS, Progress
from edgepack.boards import Board, get_board
from edgepack.bundle.verified import Verified, shown_case
from edgepack.compiler import CompiledModel, compile_with
from edgepack.compiler.backend.run import run_plan
from edgepack.compiler.limited import limits_for, within
from edgepack.compiler.settings import CompileSettings
from edgepack.flow.adversarial import PAST, compare_odd, odd_cases, run_here
from edgepack.flow.golden import SenselessGoldenError, check_golden
from edgepack.flow.ranking import in_order_of, is_drawn
from edgepack.flow.reference import (
    Array,
    compare,
    has_endless_loop,
    model_outputs,
    other_ways,
    random_input,
)
from edgepack.flow.tolerances import SMALLEST, largest_magnitude, tolerance_for
from edgepack.frontend.precision import FULL, Precision
from edgepack.model import (
    LoadedModel,
    ModelSpec,
    TensorInfo,
    infer_shapes,
    operator_name,
    tensor_info,
)
from edgepack.model.index import GraphIndex
from edgepack.native.emulate import EmulationError, emulator, run_emulated
from edgepack.native.toolchain import for_kernels, select

# Of other integers, which are indices and the like, so many may be others: equals that float
# arithmetic tells apart.
_OTHER_INTEGERS = 0.01
# What two ways of the reference are apart, so many times over, is what a device's way, a third, may
# be off: on MediaPipe's pose model (noise, float64 for truth) onnxruntime's were 2.6e-4 and 4.5e-4
# of the largest value off, and Winograd's algorithm in 32-bit ARM code 6.5e-4.
_APART = 4.0
# But no more: an input on which they are farther apart tells nothing, and is left out.
_MOST_APART = 5e-2
# Multiply-adds that are emulated at most, of all inputs together: some 20 s.
_EMULATED_MACS = 1_500_000_000
# What odd inputs may take: so many, and this share of a network's. NaN is emulated at a third of
# the speed of other numbers, and packing is to take a seventh more by them at most.
_ODD_MACS, _ODD_SHARE = 35_000_000, 0.36
# The same where a build for this machine runs them.
_LOCAL_ODD_MACS, _LEAST_LOCAL_ODD = 6_000_000_000, 3
# And where only that tells in which order the rows of the golden outputs come: some 5 minutes.
_ORDERED_MACS = 20_000_000_000
_SOURCES = (
    "verify.py",
    "adversarial.py",
    "golden.py",
    "positions.py",
    "ranking.py",
    "reference.py",
    "tolerances.py",
    "../model/meanings.py",
    "../native/emulate.py",
    "../native/plan_runner.c",
)

Cases = Mapping[str, Sequence[Array]]
_GOLDEN = "golden"


class VerifyError(MismatchError):
    """The compiled model gives other outputs than the reference."""


@dataclass(frozen=True, kw_only=True)
class Emulated:
    """Which of the inputs run under the board's emulator; `local` whether all run on a build
    for this machine.
    """

    cases: tuple[str, ...]
    local: bool


def share(board: Board, built: CompiledModel, cases: Sequence[str]) -> Emulated:
    """Where inputs are run: by `board`'s emulator if there is one, as far as that is quick."""
    if board.is_local or emulator(board) is None:
        return Emulated(cases=(), local=True)
    most = _EMULATED_MACS // max(1, sum(layer.macs for layer in built.layers))
    if most >= len(cases):
        return Emulated(cases=tuple(cases), local=False)
    return Emulated(cases=tuple(cases[: min(1, most)]), local=True)


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What came of a comparison: the first input and what is wrong with its outputs, if anything;
    the inputs that told something; the tolerance that was needed; and the reference's outputs for
    the golden input if their rows come in another order, which is as good. `wanted` are the
    reference's outputs."""

    problem: tuple[str, str] | None
    told: tuple[str, ...]
    tolerance: float
    wanted: Mapping[str, Sequence[Array]]
    golden: list[Array] | None = None


def verify(
    model: LoadedModel,
    board: Board,
    built: CompiledModel,
    golden: Sequence[Array],
    *,
    tolerance: float,
    build_local: Callable[[], CompiledModel],
    precision: Precision = FULL,
    given: str = "random inputs",
    progress: Progress = NO_PROGRESS,
) -> tuple[Verified, list[Array] | None]:
    """Compare `built`, for `board`, with the reference; what it was run on.

    Of outputs whose rows are sorted by a score, nearly equal ones may come in another order: then
    the second result is what the golden outputs are on the device, else None. `build_local` gives a
    build for this machine, if one is needed; `given` is what the golden input is, in words. What
    was compared before, with the same files, is not again. The tolerance of the result is more than
    `tolerance` where the reference itself is not as exact, see `difference`; an input on which it
    is anyone's guess is left out. Raises `SenselessGoldenError`, and `VerifyError` with the input,
    the output, and the first layer whose result differs.
    """
    cases = make_cases(model.inputs, golden)
    if has_endless_loop(model.proto):
        # It may well not end on inputs that mean nothing.
        cases = {_GOLDEN: golden}
    where = share(board, built, list(cases))
    own = built if board.is_local or not where.local else build_local()
    compared = [_hashes(built.folder), _hashes(own.folder)]
    key = hashlib.sha256(json.dumps([model.sha256, tolerance, asdict(where), compared]).encode())
    for source in _SOURCES:
        key.update((Path(__file__).parent / source).read_bytes())
    for inputs in cases.values():
        for array in inputs:
            key.update(array.tobytes())
    done = cache_dir() / "verified" / key.hexdigest()[:24]

    def compare_all() -> bytes:
        will_make(done)
        here = there = _Found(problem=None, told=(), tolerance=tolerance, wanted={})
        if where.cases:
            inputs = ", ".join(map(shown_case, where.cases))
            progress.step(f"comparing it with the reference, emulated: {inputs}")
            some = {name: cases[name] for name in where.cases}
            there = _check(model, some, tolerance, board, built, precision, given)
        local = get_board("local")
        ran = _Ran()
        odd: Cases = {}
        if where.local:
            progress.step("comparing a build for this machine with the reference")
            odd = _quick_odd_cases(model, golden, local, own)
            ran = _run_local(own.folder, cases, odd)
            here = _check(model, cases, tolerance, local, own, precision, given, ran.outputs)
            macs = sum(layer.macs for layer in built.layers)
            if here.golden is not None and not where.cases and not board.is_local:
                if emulator(board) is None or macs > _ORDERED_MACS:
                    there = replace(there, golden=here.golden)
                else:
                    progress.step("looking in which order the smoke test's outputs come, emulated")
                    only = {_GOLDEN: golden}
                    there = _check(model, only, tolerance, board, built, precision, given)
        verified = Verified(
            emulated=there.told,
            local=here.told,
            tolerance=max(here.tolerance, there.tolerance),
        )
        progress.step("comparing what it makes of odd inputs: NaN, infinities, limits")
        if where.cases:
            odd_there = _quick_odd_cases(model, golden, board, built)
            verified = _check_odd(model, odd_there, board, built, verified)
        if where.local:
            verified = _check_odd(model, odd, local, own, verified, ran.odd)
        return _remembered(verified, here.golden if board.is_local else there.golden)

    return _recalled(keep_file(done, compare_all))


def _hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of a compiled model, by name."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.iterdir())
        if file.is_file()
    }


def _quick_odd_cases(
    model: LoadedModel, golden: Sequence[Array], board: Board, built: CompiledModel
) -> Cases:
    """Of the odd inputs as many as are quick, those first that tell most."""
    if has_endless_loop(model.proto):
        return {}
    cases = odd_cases(model, golden)
    macs = max(1, sum(layer.macs for layer in built.layers))
    if board.is_local:
        most = max(_LEAST_LOCAL_ODD, _LOCAL_ODD_MACS // macs)
    else:
        most = int(_ODD_SHARE + _ODD_MACS / macs)
    quick = list(cases)[:most]
    # What is past its bounds is refused by the first kernel that reads it.
    return {name: inputs for name, inputs in cases.items() if name in quick or name == PAST}


@dataclass(frozen=True, kw_only=True)
class _Ran:
    """The outputs for cases, and what came of odd ones (see `run_all`); None if it crashed."""

    outputs: list[list[Array]] | None = None
    odd: list[list[Array] | str] | None = None


def _run_local(folder: Path, cases: Cases, odd: Cases) -> _Ran:
    """Both in one process of their own: much of what they cost is its start."""
    try:
        return Apart().call(_run_both, folder, list(cases.values()), list(odd.values()))
    except CrashError:
        return _Ran()  # each tells by itself at what


def _run_both(
    folder: Path, cases: Sequence[Sequence[Array]], odd: Sequence[Sequence[Array]]
) -> _Ran:
    return _Ran(outputs=_run_each(folder, cases), odd=run_here(folder, odd))


def _check_odd(
    model: LoadedModel,
    cases: Cases,
    board: Board,
    built: CompiledModel,
    verified: Verified,
    made: list[list[Array] | str] | None = None,
) -> Verified:
    """`verified`, and what was found of odd inputs: of `made`, if they ran already. Raises
    `VerifyError`."""
    if not cases:
        return verified
    tolerance = verified.tolerance
    told, choices, wrong = compare_odd(model, board, built, cases, tolerance, made)
    if wrong is not None:
        raise VerifyError(
            f"{model.path}: for {board.name}, with {wrong[0]}, {wrong[1]}",
            hint="please report it with the model; --no-verify makes the bundle anyway",
        )
    choices = tuple(dict.fromkeys((*verified.choices, *choices)))
    if board.is_local:
        return replace(verified, local=(*verified.local, *told), choices=choices)
    return replace(verified, emulated=(*verified.emulated, *told), choices=choices)


def _remembered(verified: Verified, golden: Sequence[Array] | None) -> bytes:
    """The result of `verify` as it is written down."""
    arrays = {f"output{number}": array for number, array in enumerate(golden or ())}
    file = io.BytesIO()
    np.savez(file, verified=np.array(json.dumps(asdict(verified))), **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _recalled(content: bytes) -> tuple[Verified, list[Array] | None]:
    with np.load(io.BytesIO(content)) as arrays:
        said = json.loads(str(arrays["verified"]))
        golden = [arrays[f"output{number}"] for number in range(len(arrays.files) - 1)]
    verified = Verified(
        emulated=tuple(said["emulated"]),
        local=tuple(said["local"]),
        tolerance=said["tolerance"],
        choices=tuple(said["choices"]),
    )
    return verified, golden or None


def _check(
    model: LoadedModel,
    cases: Cases,
    tolerance: float,
    board: Board,
    built: CompiledModel,
    precision: Precision,
    given: str,
    outputs: list[list[Array]] | None = None,
) -> _Found:
    """What was found where nothing is wrong; with `outputs`, if they are there already."""
    found = _compared(model.proto, board, built, cases, tolerance, outputs)
    others = [outputs for case, outputs in found.wanted.items() if case != _GOLDEN]
    kept = model.states.values()
    if _GOLDEN in found.wanted:
        check_golden(model, found.wanted[_GOLDEN], others, given=given, kept=kept)
    precision = replace(precision, floats=built.floats)
    if found.problem is not None:
        case, problem = found.problem
        raise VerifyError(
            f"{model.path}: for {board.name}, on {_input_of(case)}, {problem}; "
            + first_layer(model, board, cases[case], tolerance, precision),
            hint="please report it with the model; --no-verify makes the bundle anyway",
        )
    if _GOLDEN in cases and _GOLDEN not in found.told:
        raise VerifyError(
            f"{model.path}: the outputs for the smoke test's input hang on how sums are rounded: "
            "its rows all have one score, or the reference itself gives other outputs where the "
            "input differs by one part in a million",
            hint="give another photo (golden_image); --no-verify makes the bundle anyway",
        )
    return found


def _input_of(case: str) -> str:
    return "the smoke test's input" if case == _GOLDEN else f"the {case} input"


def make_cases(inputs: Sequence[TensorInfo], golden: Sequence[Array]) -> dict[str, Sequence[Array]]:
    """The inputs that are compared: golden, flat, random, and random of large values."""

    def each(make: Callable[[TensorInfo, Array], Array]) -> list[Array]:
        return [make(info, array) for info, array in zip(inputs, golden, strict=True)]

    def large(info: TensorInfo, array: Array) -> Array:
        kind = array.dtype.kind
        values = random_input(info, random) * (8 if kind == "f" else 1)
        return np.asarray(values, array.dtype)  # not a number where there are no axes

    random = np.random.RandomState(1)
    return {
        _GOLDEN: golden,
        "all-zero": each(lambda _, array: np.zeros_like(array)),
        "random": each(lambda info, _: random_input(info, random)),
        "large random": each(large),
    }


def check_tells(
    model: LoadedModel,
    golden: Sequence[Array],
    outputs: Sequence[Array],
    *,
    given: str,
    floats: Collection[str] = (),
) -> None:
    """Raise `SenselessGoldenError` if `golden` inputs with these `outputs`, the reference's, tell
    nothing: see `check_golden`. No compiled model is needed."""
    kept = model.states.values()
    check_golden(model, outputs, [], given=given, kept=kept)
    if has_endless_loop(model.proto):
        return  # as in `verify`
    others: list[list[Array]] = []
    for case, inputs in make_cases(model.inputs, golden).items():
        if case == _GOLDEN:
            continue
        others += model_outputs(model.path, model.proto, [inputs], floats)
        try:
            check_golden(model, outputs, others, given=given, kept=kept)
        except SenselessGoldenError:
            continue
        return  # one that gives something else is enough
    check_golden(model, outputs, others, given=given, kept=kept)


def difference(
    proto: object, board: Board, built: CompiledModel, cases: Cases, tolerance: float
) -> tuple[str, str] | None:
    """The first of `cases` whose outputs differ from the reference's, and how; None if none.

    The outputs of some models hang on the last bits of what is added up. Where one is off by more
    than `tolerance`, several times what other ways of the reference are apart is allowed; where
    those are far apart themselves, nothing can be said. Rows that are sorted by a score may come
    in another order where scores are nearly equal.
    """
    return _compared(proto, board, built, cases, tolerance).problem


def _compared(
    proto: object,
    board: Board,
    built: CompiledModel,
    cases: Cases,
    tolerance: float,
    outputs: list[list[Array]] | None = None,
) -> _Found:
    try:
        if outputs is not None:
            pass
        elif board.is_local:
            outputs = Apart().call(_run_each, built.folder, list(cases.values()))
        else:
            outputs = run_emulated(built.folder, board, list(cases.values()))
    except (CrashError, EmulationError) as error:
        how = error.how if isinstance(error, CrashError) else error.message
        first = (next(iter(cases)), f"it crashes ({how})")
        return _Found(problem=first, told=(), tolerance=tolerance, wanted={})
    wanted = model_outputs(built.folder, proto, list(cases.values()), built.floats)
    # An output may be next to nothing in one case: that is no measure of noise's error.
    largest = [
        max(SMALLEST, *map(largest_magnitude, values)) for values in zip(*wanted, strict=True)
    ]
    by_case = dict(zip(cases, wanted, strict=True))
    took, told = tolerance, []
    golden: list[Array] | None = None
    for case, got, reference in zip(cases, outputs, wanted, strict=True):
        # A photo's outputs are what counts, and may be far smaller than those of noise.
        most = (
            [max(SMALLEST, largest_magnitude(one)) for one in reference]
            if case == _GOLDEN
            else largest
        )
        problem, due = _difference(built, got, reference, most, tolerance)
        if problem is not None:
            others = other_ways(built.folder, proto, cases[case], built.floats)
            own = _apart(others, reference, most, tolerance)
            if max(own, default=0.0) > _MOST_APART:
                continue
            problem, due = _difference(built, got, reference, most, tolerance, own)
            took = max(took, tolerance + max(own, default=0.0))
            limits = [tolerance * one for one in most]
            if problem is not None and is_drawn(got, reference, limits):
                continue
        if problem is not None:
            problem_of = (case, problem)
            return _Found(problem=problem_of, told=(), tolerance=tolerance, wanted=by_case)
        told.append(case)
        if case == _GOLDEN and due is not reference:
            golden = list(due)
    return _Found(problem=None, told=tuple(told), tolerance=took, wanted=by_case, golden=golden)


def _apart(
    others: Sequence[Sequence[Array]],
    reference: Sequence[Array],
    largest: Sequence[float],
    tolerance: float,
) -> list[float]:
    """What a device may be off since other ways of the reference are, as parts of `largest`."""
    own = [0.0] * len(reference)
    for other in others:
        limits = [_MOST_APART / _APART * most for most in largest]
        due = in_order_of(other, reference, [tolerance * most for most in largest])
        due = due or in_order_of(other, reference, limits) or list(reference)
        for at, (one, output) in enumerate(zip(other, due, strict=True)):
            if one.shape != output.shape:
                own[at] = np.inf
            elif output.dtype.kind == "f":
                off = compare(one, output, 0.0).max_abs_error
                own[at] = max(own[at], _APART * off / largest[at] if np.isfinite(off) else 0.0)
            elif output.dtype.itemsize > 1:
                others_share = np.count_nonzero(one != output) / max(1, output.size)
                own[at] = max(own[at], np.inf if others_share > _OTHER_INTEGERS else 0.0)
    return own


def _run_each(folder: Path, cases: Sequence[Sequence[Array]]) -> list[list[Array]]:
    return [run_plan(folder, inputs) for inputs in cases]


def _difference(
    built: CompiledModel,
    got: Sequence[Array],
    wanted: Sequence[Array],
    largest: Sequence[float],
    tolerance: float,
    own: Sequence[float] | None = None,
) -> tuple[str | None, Sequence[Array]]:
    """What is wrong with outputs, and what they should be: `wanted`, or its rows reordered."""
    own = own or [0.0] * len(wanted)
    bounds = [
        (tolerance_for([info], tolerance) + off) * most
        for info, most, off in zip(built.outputs, largest, own, strict=True)
    ]
    problem = _first_problem(built, got, wanted, largest, tolerance, bounds)
    if problem is not None:
        ordered = in_order_of(got, wanted, bounds)
        if ordered is not None and not _first_problem(
            built, got, ordered, largest, tolerance, bounds
        ):
            return None, ordered
    return problem, wanted


def _first_problem(
    built: CompiledModel,
    got: Sequence[Array],
    wanted: Sequence[Array],
    largest: Sequence[float],
    tolerance: float,
    bounds: Sequence[float],
) -> str | None:
    for info, output, reference, most, bound in zip(
        built.outputs, got, wanted, largest, bounds, strict=True
    ):
        if output.shape != reference.shape:
            return (
                f"output '{info.name}' is {output.shape} where the reference is {reference.shape}"
            )
        if reference.dtype.kind in "iub" and reference.dtype.itemsize > 1:
            others = int(np.count_nonzero(output != reference))
            if others > _OTHER_INTEGERS * reference.size:
                return f"{others} of {reference.size} values of output '{info.name}' are others"
            continue
        found = compare(output, reference, tolerance)
        if found.max_abs_error > bound:
            limit = tolerance_for([info], tolerance)
            return (
                f"output '{info.name}' is off by {found.max_abs_error:.2g} where the largest value "
                f"is {most:.2g} (limit {limit:.0e} of it)"
            )
    return None


def first_layer(
    model: LoadedModel,
    board: Board,
    inputs: Sequence[Array],
    tolerance: float,
    precision: Precision = FULL,
) -> str:
    """The first node whose result differs when the model ends there, in words."""
    graph = infer_shapes(model.proto).graph
    known = GraphIndex(graph).results
    ends = []
    for node in model.proto.graph.node:
        value = known.get(node.output[0])
        if value is not None and "float" in tensor_info(value).dtype:
            ends.append((node, value))
    toolchain = for_kernels(select(board).toolchain, board)
    limits = limits_for(model)

    def differs(index: int) -> bool:
        proto = type(model.proto)()
        proto.CopyFrom(model.proto)
        del proto.graph.output[:]
        proto.graph.output.append(ends[index][1])
        with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
            path = Path(folder) / "part.onnx"
            path.write_bytes(proto.SerializeToString())
            built = within(
                path,
                limits,
                compile_with,
                ModelSpec(path=path),
                board,
                toolchain,
                Path(folder) / "out",
                CompileSettings(precision=precision),
            )
            return difference(proto, board, built, {"": inputs}, tolerance) is not None

    at = first_true(len(ends), differs)
    if at is None:
        return "cut off after any one of its layers it does not differ"
    node = ends[at][0]
    return f"the first layer to differ is {operator_name(node)} '{node.name or node.output[0]}'"


def first_true(count: int, holds: Callable[[int], bool]) -> int | None:
    """The first of `count` indices for which `holds`, which once true stays so; None if none."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low if low < count else None

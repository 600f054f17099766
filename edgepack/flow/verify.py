"""The compiled model against the reference, on several inputs, before it goes into a bundle.

A board's machine code does not run here; a build of the same graph for this machine does.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from edgepack.base.apart import Apart, CrashError
from edgepack.base.errors import MismatchError
from edgepack.base.paths import cache_dir, locked, write_atomic
from edgepack.boards import get_board
from edgepack.compiler import CompiledModel, compile_apart
from edgepack.compiler.backend.run import run_plan
from edgepack.compiler.limited import limits_for
from edgepack.flow.reference import Array, compare, random_input, run_reference
from edgepack.model import (
    LoadedModel,
    ModelSpec,
    TensorInfo,
    infer_shapes,
    operator_name,
    tensor_info,
)
from edgepack.native.toolchain import select

# What an output may be off, of its largest value: half a unit of a float16's last place is 2^-11;
# 8-bit integers may be one step off where a value lies between two.
_TOLERANCES = {"float16": 2**-10, "int8": 2**-7, "uint8": 2**-8}
# Of other integers, which are indices and the like, so many may be others: equals that float
# arithmetic tells apart.
_OTHER_INTEGERS = 0.01


class VerifyError(MismatchError):
    """The compiled model gives other outputs than the reference."""


def tolerance_for(outputs: Sequence[TensorInfo], tolerance: float) -> float:
    """The bound of max |error| / max |reference| for these outputs; at least `tolerance`."""
    return max([tolerance, *(_TOLERANCES.get(info.dtype, 0.0) for info in outputs)])


def verify(
    model: LoadedModel, built: CompiledModel, golden: Sequence[Array], *, tolerance: float
) -> tuple[str, ...]:
    """Compare a build for this machine with the reference; the names of the inputs it was run on.

    What was compared before, with the same files, is not again. Raises `VerifyError` with the
    input, the output, and the first layer whose result differs.
    """
    cases = make_cases(model.inputs, golden)
    key = hashlib.sha256(json.dumps([model.sha256, tolerance]).encode())
    for file in (built.library, built.graph, built.params, Path(__file__)):
        key.update(file.read_bytes())
    for inputs in cases.values():
        for array in inputs:
            key.update(array.tobytes())
    done = cache_dir() / "verified" / key.hexdigest()[:24]
    with locked(done):
        if done.exists():
            return tuple(cases)
        for case, inputs in cases.items():
            problem = difference(model.proto, built, inputs, tolerance)
            if problem is not None:
                raise VerifyError(
                    f"{model.path}: on {case} input, {problem}; "
                    + first_layer(model, inputs, tolerance),
                    hint="please report it with the model; --no-verify makes the bundle anyway",
                )
        write_atomic(done, b"")
    return tuple(cases)


def make_cases(inputs: Sequence[TensorInfo], golden: Sequence[Array]) -> dict[str, Sequence[Array]]:
    """The inputs that are compared: golden, flat, random, and random of large values."""

    def each(make: Callable[[TensorInfo, Array], Array]) -> list[Array]:
        return [make(info, array) for info, array in zip(inputs, golden, strict=True)]

    def large(info: TensorInfo, array: Array) -> Array:
        kind = array.dtype.kind
        return (random_input(info, random) * (8 if kind == "f" else 1)).astype(array.dtype)

    random = np.random.RandomState(1)
    return {
        "the golden": golden,
        "an all-zero": each(lambda _, array: np.zeros_like(array)),
        "a random": each(lambda info, _: random_input(info, random)),
        "a large random": each(large),
    }


def difference(
    proto: object, built: CompiledModel, inputs: Sequence[Array], tolerance: float
) -> str | None:
    """How the outputs differ from the reference's, None if they do not."""
    from edgepack.compiler.frontend.float16 import widened  # see flow/reference.py

    wanted = run_reference(widened(proto), {}, inputs)
    try:
        got = Apart().call(run_plan, built.folder, inputs)
    except CrashError as error:
        return f"it crashes ({error.how})"
    for info, output, reference in zip(built.outputs, got, wanted, strict=True):
        if reference.dtype.kind in "iub" and reference.dtype.itemsize > 1:
            others = int(np.count_nonzero(output != reference))
            if others > _OTHER_INTEGERS * reference.size:
                return f"{others} of {reference.size} values of output '{info.name}' are others"
            continue
        bound = tolerance_for([info], tolerance)
        found = compare(output, reference, bound)
        if not found.ok:
            return (
                f"output '{info.name}' is off by {found.max_abs_error:.2g} where the largest value "
                f"is {found.max_abs_reference:.2g} (limit {bound:.0e} of it)"
            )
    return None


def first_layer(model: LoadedModel, inputs: Sequence[Array], tolerance: float) -> str:
    """The first node whose result differs when the model ends there, in words."""
    graph = infer_shapes(model.proto).graph
    known = {value.name: value for value in (*graph.value_info, *graph.output)}
    ends = []
    for node in model.proto.graph.node:
        value = known.get(node.output[0])
        if value is not None and "float" in tensor_info(value).dtype:
            ends.append((node, value))
    board = get_board("local")
    toolchain = select(board).toolchain
    limits = limits_for(model)

    def differs(index: int) -> bool:
        proto = type(model.proto)()
        proto.CopyFrom(model.proto)
        del proto.graph.output[:]
        proto.graph.output.append(ends[index][1])
        with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
            path = Path(folder) / "part.onnx"
            path.write_bytes(proto.SerializeToString())
            built = compile_apart(
                ModelSpec(path=path), board, toolchain, Path(folder) / "out", limits=limits
            )
            return difference(proto, built, inputs, tolerance) is not None

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

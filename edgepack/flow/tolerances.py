"""How far outputs may be from the reference's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgepack.compiler import CompiledModel
from edgepack.flow.project import Project
from edgepack.flow.quantized import has_integers
from edgepack.flow.reference import Array
from edgepack.frontend.precision import FULL
from edgepack.model import LoadedModel, TensorInfo, walk_nodes

# What an output may be off, of its largest value: half a unit of a float16's last place is 2^-11;
# 8-bit integers may be one step off where a value lies between two.
_TOLERANCES = {"float16": 2**-10, "int8": 2**-7, "uint8": 2**-8}
# Of a model in half precision: MobileNetV2's logits were off by up to 0.9 % of the largest one, on
# four photos.
HALF_TOLERANCE = 3e-2
# Of a quantised model some of whose layers are in float, or have no form on integers: what differs
# there by a last bit may make another integer, a whole step off.
MIXED_TOLERANCE = 5e-2
# The tail of a sigmoid or softmax has the error of what is far larger before it: an output that
# stays below this is compared as if it reached it.
SMALLEST = 1e-2


def tolerance_of(project: Project, model: LoadedModel, compiled: CompiledModel) -> float:
    """The bound of max |error| / max |reference|: the project's, or what its precision takes."""
    tolerance = tolerance_of_layers(project)
    if _is_default(project) and _is_mixed(model, compiled):
        tolerance = max(tolerance, MIXED_TOLERANCE)
    return tolerance_for(model.outputs, tolerance)


def tolerance_of_layers(project: Project) -> float:
    """The same bound of a tensor inside of the model; of one on integers, where they are exact."""
    is_half = project.precision != FULL.name
    half = HALF_TOLERANCE if is_half and _is_default(project) else 0.0
    return max(project.tolerance, half)


def _is_default(project: Project) -> bool:
    return project.origins.get("tolerance", "default") == "default"


def _is_mixed(model: LoadedModel, compiled: CompiledModel) -> bool:
    """Whether what floats are computed to becomes integers again."""
    nodes = walk_nodes(model.proto.graph)
    if any(node.op_type == "DynamicQuantizeLinear" for node in nodes):
        return True
    if not has_integers(compiled):
        return False
    if compiled.floats:
        return True
    from edgepack.frontend import integer_reference

    found = integer_reference.integer_model(model.path, model.proto)
    return found is not None and integer_reference.rounds_between(found)


def tolerance_for(outputs: Sequence[TensorInfo], tolerance: float) -> float:
    """The bound of max |error| / max |reference| for these outputs; at least `tolerance`."""
    return max([tolerance, *(_TOLERANCES.get(info.dtype, 0.0) for info in outputs)])


def golden_tolerance(tolerance: float, outputs: Sequence[Array]) -> float:
    """`tolerance` for the golden outputs, more if all of them stay below `SMALLEST`."""
    largest = max(map(largest_magnitude, outputs), default=0.0)
    if not 0 < largest < SMALLEST:
        return tolerance
    return min(0.99, tolerance * SMALLEST / largest)


def largest_magnitude(values: Array) -> float:
    """The largest finite magnitude of an output."""
    numbers = np.abs(values.astype(np.float64))
    return float(numbers[np.isfinite(numbers)].max(initial=0.0))

"""Outputs of a compiled model as large as their counts say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def ends_of(graph: Mapping[str, Any]) -> list[int]:
    """Tensors of a plan (graph.json) that are to be read after a run: outputs, then counts."""
    return [*graph["outputs"], *(count["tensor"] for count in graph.get("counts", ()))]


def in_use(graph: Mapping[str, Any], values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """A plan's outputs without what lies behind the last element in use, of what `ends_of` names.

    Raises AssertionError for a count that is none.
    """
    outputs = list(values[: len(graph["outputs"])])
    for count, used in zip(graph.get("counts", ()), values[len(outputs) :], strict=True):
        output, axis = count["output"], count["axis"]
        assert 0 <= int(used) <= outputs[output].shape[axis]
        outputs[output] = outputs[output].take(range(int(used)), axis)
    return outputs

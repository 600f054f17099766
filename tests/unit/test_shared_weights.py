"""What two plans of one model have in common is in one file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgepack.bundle.shared_weights import without_shared


@dataclass(frozen=True)
class _Plan:
    graph: Path
    params: Path


def _plan(folder: Path, params: list[bytes], views: int = 0) -> _Plan:
    """A plan of these parameters; the first one is there a few times more, cut short."""
    folder.mkdir()
    content, tensors = bytearray(), [{"storage": "arena", "offset": 64, "bytes": 64}]
    for values in params:
        content += bytes(-len(content) % 64)
        tensors.append({"storage": "params", "offset": len(content), "bytes": len(values)})
        content += values
    tensors += [{"storage": "params", "offset": 0, "bytes": 8}] * views
    (folder / "params.bin").write_bytes(content)
    document = {"params_bytes": len(content), "tensors": tensors}
    (folder / "graph.json").write_text(json.dumps(document))
    return _Plan(folder / "graph.json", folder / "params.bin")


def test_large_parameters_are_read_from_the_other_plan(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    table, own, packed = (random.bytes(size) for size in ((1 << 20) + 4, 1 << 20, 1 << 20))
    few = random.bytes(100)
    other = _plan(tmp_path / "gpu", [few, packed, table])
    plan = _plan(tmp_path / "cpu", [table, few, own], views=2)
    made = without_shared(plan, other)
    assert made is not None
    document, params = json.loads(made[0]), made[1]
    assert document["params_bytes"] == len(params) < len(own) + len(few) + 64
    assert document["shared_bytes"] == other.params.stat().st_size
    files = {"params": params, "shared": other.params.read_bytes()}
    arena, *tensors = document["tensors"]
    assert arena == {"storage": "arena", "offset": 64, "bytes": 64}
    assert [tensor["storage"] for tensor in tensors] == [
        "shared",
        "params",
        "params",
        *["shared"] * 2,
    ]
    for tensor, values in zip(tensors, (table, few, own, table[:8], table[:8]), strict=True):
        start = tensor["offset"]
        assert start % 64 == 0
        assert files[tensor["storage"]][start : start + tensor["bytes"]] == values


def test_plans_without_a_table_stay_as_they_are(tmp_path: Path) -> None:
    few = bytes(range(100))
    plans = [_plan(tmp_path / name, [few, name.encode() * (1 << 20)]) for name in ("cpu", "gpu")]
    assert without_shared(plans[0], plans[1]) is None

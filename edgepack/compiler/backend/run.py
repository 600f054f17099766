"""Run a compiled model's plan on this machine, without the C++ runtime."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgepack.model.counts import ends_of, in_use


def run_plan(folder: Path, inputs: Sequence[np.ndarray], runs: int = 1) -> list[np.ndarray]:
    """Execute graph.json with the kernels of model.so in `folder`; outputs of the last of `runs`.

    The arena starts full of NaN patterns, so that bytes read before they were
    written show up in the results. Checks every tensor's place on the way.
    """
    import tvm  # noqa: F401 - fills the hooks by which kernels start threads
    import tvm_ffi

    graph = json.loads((folder / "graph.json").read_text())
    stores = {
        "arena": _aligned(np.full(graph["arena_bytes"], 0xFF, "uint8")),
        "params": _aligned(np.fromfile(folder / "params.bin", "uint8")),
    }
    tensors = []
    for tensor in graph["tensors"]:
        dtype = np.dtype(tensor["dtype"])
        end = tensor["offset"] + tensor["bytes"]
        assert tensor["offset"] % 64 == 0
        assert end <= stores[tensor["storage"]].nbytes
        assert tensor["bytes"] == dtype.itemsize * int(np.prod(tensor["shape"]))
        raw = stores[tensor["storage"]][tensor["offset"] : end]
        tensors.append(raw.view(dtype).reshape(tensor["shape"]))
    library = tvm_ffi.load_module(str(folder / "model.so"))
    wrapped = [tvm_ffi.from_dlpack(tensor) for tensor in tensors]
    for _ in range(runs):
        for index, value in zip(graph["inputs"], inputs, strict=True):
            assert value.dtype == tensors[index].dtype
            tensors[index][...] = value
        for call in graph["calls"]:
            library[call["kernel"]](*(wrapped[arg] for arg in call["args"]))
    return in_use(graph, [tensors[index].copy() for index in ends_of(graph)])


def _aligned(data: np.ndarray) -> np.ndarray:
    room = np.empty(data.nbytes + 64, "uint8")
    start = -room.ctypes.data % 64
    room[start : start + data.nbytes] = data
    return room[start : start + data.nbytes]

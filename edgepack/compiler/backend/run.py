"""Run a compiled model's plan on this machine, without the C++ runtime."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.model.counts import ends_of, in_use


def run_plan(folder: Path, inputs: Sequence[np.ndarray], runs: int = 1) -> list[np.ndarray]:
    """Execute graph.json with the kernels of model.so in `folder`; outputs of the last of `runs`.

    See `PlanRunner`.
    """
    runner = PlanRunner(folder)
    for _ in range(runs):
        outputs = runner.run(inputs)
    return outputs


class PlanRunner:
    """Executes graph.json with the kernels of model.so in `folder`.

    The arena starts full of NaN patterns, so that bytes read before they were
    written show up in the results; states are as they begin. Checks every tensor's place.
    """

    def __init__(self, folder: Path) -> None:
        import tvm  # noqa: F401 - fills the hooks by which kernels start threads
        import tvm_ffi

        self.graph = json.loads((folder / "graph.json").read_text())
        stores = {
            "arena": _aligned(np.full(self.graph["arena_bytes"], 0xFF, "uint8")),
            "params": _aligned(np.fromfile(folder / "params.bin", "uint8")),
        }
        self.tensors = []
        for tensor in self.graph["tensors"]:
            dtype = np.dtype(tensor["dtype"])
            end = tensor["offset"] + tensor["bytes"]
            assert tensor["offset"] % 64 == 0
            assert end <= stores[tensor["storage"]].nbytes
            assert tensor["bytes"] == dtype.itemsize * int(np.prod(tensor["shape"]))
            raw = stores[tensor["storage"]][tensor["offset"] : end]
            self.tensors.append(raw.view(dtype).reshape(tensor["shape"]))
        self._library = tvm_ffi.load_module(str(folder / "model.so"))
        self._wrapped = [tvm_ffi.from_dlpack(tensor) for tensor in self.tensors]
        self.reset()

    def reset(self) -> None:
        """Let all states be what they begin with, zeros unless the plan says else."""
        for state in self.graph.get("states", []):
            first = self.tensors[state["start"]] if "start" in state else 0
            self.tensors[self.graph["inputs"][state["input"]]][...] = first

    def run(self, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        """The outputs. An input that is None keeps what it has: a state what the last run left."""
        tensors, graph = self.tensors, self.graph
        for index, value in zip(graph["inputs"], inputs, strict=True):
            if value is not None:
                assert value.dtype == tensors[index].dtype
                tensors[index][...] = value
        for index in order(graph, lambda at: bool(tensors[at].reshape(-1)[0])):
            call = graph["calls"][index]
            self._library[call["kernel"]](*(self._wrapped[arg] for arg in call["args"]))
        return in_use(graph, [tensors[index].copy() for index in ends_of(graph)])


def order(graph: Mapping[str, Any], is_true: Callable[[int], bool]) -> Iterator[int]:
    """The calls of a plan (graph.json) in the order in which they are done, by number.

    `is_true` reads a tensor of one truth value, by number, when all calls before are done. Raises
    RuntimeError for a loop that goes on behind its last turn.
    """
    blocks = graph.get("blocks", [])

    def run(at: int, end: int, inner: int) -> Iterator[int]:
        while at < end:
            if inner == len(blocks) or blocks[inner]["first"] > at:
                yield at
                at += 1
                continue
            block = blocks[inner]
            for turn in itertools.count():
                if not is_true(block["condition"]) or (turn and block["most"] == 1):
                    break
                if turn == block["most"]:
                    raise RuntimeError(f"a loop goes on after {turn} turns")
                yield from run(at, block["end"], inner + 1)
            at = block["end"]
            while inner < len(blocks) and blocks[inner]["first"] < at:
                inner += 1

    yield from run(0, len(graph["calls"]), 0)


def _aligned(data: np.ndarray) -> np.ndarray:
    room = np.empty(data.nbytes + 64, "uint8")
    start = -room.ctypes.data % 64
    room[start : start + data.nbytes] = data
    return room[start : start + data.nbytes]

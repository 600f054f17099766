"""The ahead-of-time plan: which kernel reads and writes which bytes, in which order.

Tensors have fixed places, in one arena or in the parameter file. The calls of a loop or branch are
a block of them, which is repeated or left out. `bind` makes it of a lowered module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from edgepack.base.errors import ModelError
from edgepack.compiler.backend.report import LayerReport
from edgepack.model import TensorInfo

FORMAT = "edgepack-graph"
VERSION = 1


class PlanError(ModelError):
    """The model needs something at run time that a fixed list of kernel calls cannot do."""


@dataclass(frozen=True, kw_only=True)
class PlacedTensor:
    """A tensor at a fixed place; `storage` is "arena" or "params", `offset` in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    storage: str
    offset: int
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Call:
    """A kernel call; `args` index the plan's tensors: `inputs` of them, outputs, then scratch
    memory. If there are inputs only, the last one is written as well."""

    kernel: str
    args: tuple[int, ...]
    inputs: int = 0

    @property
    def read(self) -> tuple[int, ...]:
        """The tensors that it reads."""
        return self.args[: self.inputs]

    @property
    def written(self) -> tuple[int, ...]:
        """The tensors that it writes, maybe in part."""
        return self.args[self.inputs :] or self.args[-1:]


@dataclass(frozen=True, kw_only=True)
class PlanBlock:
    """Calls `first` to `end` (excluded) are done as long as tensor `condition` is true.

    At most `most` times: a loop that would go on then is an error. Of one time it is a branch. Of
    two blocks that begin at one call, the longer one comes first. `name` and `operator` are those
    of the ONNX node.
    """

    first: int
    end: int
    condition: int
    most: int
    name: str
    operator: str


@dataclass(frozen=True, kw_only=True)
class OutputCount:
    """Axis `axis` of output number `output` holds as many elements as tensor `tensor` says, an
    int64 of the arena; what lies behind them is not in use."""

    output: int
    axis: int
    tensor: int


@dataclass(frozen=True, kw_only=True)
class StatePlace:
    """Output number `output` lies where input number `input` does: what a run leaves there is
    found by the next one, unless the input is written before. Tensor `start` of the plan is what it
    is before the first run; without one that is zero."""

    input: int
    output: int
    start: int | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All of a model but its kernels' code."""

    model: str
    tensors: tuple[PlacedTensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    calls: tuple[Call, ...]
    arena_bytes: int
    counts: tuple[OutputCount, ...] = ()
    blocks: tuple[PlanBlock, ...] = ()
    states: tuple[StatePlace, ...] = ()
    params: bytes | bytearray = field(repr=False)

    @property
    def states_bytes(self) -> int:
        """Bytes of the arena that a run leaves for the next one."""
        return sum(self.tensors[self.inputs[state.input]].nbytes for state in self.states)

    def infos(self, indices: Sequence[int]) -> tuple[TensorInfo, ...]:
        """Names, dtypes and shapes of some of the tensors."""

        def bounded(index: int) -> tuple[int, ...]:
            return tuple(c.axis for c in self.counts if self.outputs[c.output] == index)

        return tuple(
            TensorInfo(name=t.name, dtype=t.dtype, shape=t.shape, bounded=bounded(index))
            for index, t in ((index, self.tensors[index]) for index in indices)
        )

    def to_json(self, layers: Sequence[LayerReport], gpu: Mapping[str, Any] | None = None) -> str:
        """The text of graph.json; one line per tensor and call. `layers` has one per call, `gpu`
        says what of it a GPU does."""
        head = {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "arena_bytes": self.arena_bytes,
            "params_bytes": len(self.params),
            "inputs": self.inputs,
            "outputs": self.outputs,
        }
        if self.counts:
            head["counts"] = [asdict(item) for item in self.counts]
        if self.blocks:
            head["blocks"] = [
                {"first": b.first, "end": b.end, "condition": b.condition, "most": b.most}
                for b in self.blocks
            ]
        if self.states:
            head["states"] = [
                {key: value for key, value in asdict(item).items() if value is not None}
                for item in self.states
            ]
        tensors = [
            {
                "name": t.name,
                "dtype": t.dtype,
                "shape": t.shape,
                "storage": t.storage,
                "offset": t.offset,
                "bytes": t.nbytes,
            }
            for t in self.tensors
        ]
        calls = [
            {
                "kernel": call.kernel,
                "args": call.args,
                # For people only: what a profile calls it.
                "layer": {"name": layer.layer, "operator": layer.operator, "macs": layer.macs},
            }
            for call, layer in zip(self.calls, layers, strict=True)
        ]
        if gpu:
            head["gpu"] = gpu
        text = json.dumps(head, indent=1)[:-2]
        for key, items in (("tensors", tensors), ("calls", calls)):
            text += f',\n "{key}": [\n' + ",\n".join(f"  {json.dumps(i)}" for i in items) + "\n ]"
        return text + "\n}\n"

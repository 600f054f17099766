"""Every operator family by itself, typical shapes, beside onnxruntime, on one thread.

The cases are in ops.txt. Both sides run in this process, in turns: our kernels in the order of the
plan, onnxruntime's session with its inputs and outputs bound. CPU time counts.
"""

from __future__ import annotations

import json
import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser

from bench.ours import NAME, TOLERANCE
from bench.results import Figure, geometric_mean, largest_error, load, median, ratio, store
from edgepack.base.errors import EdgepackError
from edgepack.base.progress import Progress
from edgepack.boards import get_board
from edgepack.compiler import compile_model
from edgepack.model import ModelSpec
from edgepack.native.toolchain import select

log = logging.getLogger(__name__)

PEER = "onnxruntime"
CASES = Path(__file__).with_name("ops.txt")

_Array = npt.NDArray[Any]
# What a side runs between two looks at the clock.
_BATCH_MS = 20.0
_OPSET = 18


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model of a few nodes, as ops.txt has it."""

    family: str
    name: str
    inputs: str
    nodes: str

    def model(self) -> onnx.ModelProto:
        """The checked model. Random constants are normal, with the scale of an average."""
        proto = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": {_OPSET}]> '
            f"case ({self.inputs}) => (float[] y) {{ {self.nodes} }}"
        )
        random = np.random.RandomState(1)
        given = {tensor.name for tensor in proto.graph.initializer}
        for value in list(proto.graph.input):
            if value.name in given:
                proto.graph.input.remove(value)
            elif not value.name.startswith("x"):
                shape = _shape(value)
                data = random.standard_normal(shape) / max(1, math.prod(shape[1:])) ** 0.5
                tensor = onnx.numpy_helper.from_array(data.astype(np.float32), value.name)
                proto.graph.initializer.append(tensor)
                proto.graph.input.remove(value)
        del proto.graph.output[:]
        inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
        proto.graph.output.extend(v for v in inferred.graph.value_info if v.name == "y")
        onnx.checker.check_model(proto)
        return proto


def read_cases(text: str) -> Iterator[Case]:
    """The cases of a file like ops.txt."""
    family, head, nodes = "", "", [""]
    for line in [*text.splitlines(), ""]:
        if line.startswith("    "):
            nodes.append(line.strip())
            continue
        if head:
            name, _, inputs = head.partition(": ")
            yield Case(family=family, name=name, inputs=inputs, nodes="\n".join(nodes))
        head, nodes = "", []
        if line.startswith("== "):
            family = line.removeprefix("== ")
        elif line and not line.startswith("#"):
            head = line


def _shape(value: onnx.ValueInfoProto) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two: `run` is one inference, `outputs` are those of the last one.

    `fill` writes the inputs.
    """

    fill: Callable[[], None]
    run: Callable[[], object]
    outputs: Callable[[], Sequence[_Array]]


def ours(path: Path, folder: Path, inputs: Sequence[_Array]) -> Side:
    """The kernels of a plan in their order. Compiled for one core: no parallel loops."""
    import tvm_ffi

    board = get_board("local")
    board = replace(board, clusters=(replace(board.clusters[0], cores=1),))
    compiled = compile_model(ModelSpec(path=path), board, select(board).toolchain, folder)
    graph = json.loads(compiled.graph.read_text())
    stores = {
        "arena": _aligned(np.zeros(graph["arena_bytes"], np.uint8)),
        "params": _aligned(np.fromfile(compiled.params, np.uint8)),
    }
    tensors = [
        stores[t["storage"]][t["offset"] : t["offset"] + t["bytes"]]
        .view(t["dtype"])
        .reshape(t["shape"])
        for t in graph["tensors"]
    ]
    given = [(tensors[index], value) for index, value in zip(graph["inputs"], inputs, strict=True)]
    # A run may leave something else in its inputs' memory. Other numbers take as long, but indices
    # have to be in range.
    gathers = any(node.op_type.startswith("Gather") for node in onnx.load(path).graph.node)
    indices = [(place, value) for place, value in given if gathers and value.dtype.kind != "f"]

    def fill() -> None:
        for place, value in given:
            place[...] = value

    library = tvm_ffi.load_module(str(compiled.library))
    calls = [
        (library[call["kernel"]], [tvm_ffi.from_dlpack(tensors[arg]) for arg in call["args"]])
        for call in graph["calls"]
    ]

    def run() -> None:
        for place, value in indices:
            place[...] = value
        for kernel, arguments in calls:
            kernel(*arguments)

    return Side(fill=fill, run=run, outputs=lambda: [tensors[index] for index in graph["outputs"]])


def theirs(path: Path, inputs: Sequence[_Array]) -> Side:
    """onnxruntime with one thread, nothing copied in or out."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    binding = session.io_binding()
    for info, value in zip(session.get_inputs(), inputs, strict=True):
        binding.bind_cpu_input(info.name, value)
    for info in session.get_outputs():
        binding.bind_output(info.name)
    return Side(
        fill=lambda: None,
        run=lambda: session.run_with_iobinding(binding),
        outputs=binding.copy_outputs_to_cpu,
    )


def _aligned(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A copy on the boundary of a cache line, as the device's arena is."""
    room = np.empty(data.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    room[start : start + data.nbytes] = data
    return room[start : start + data.nbytes]


def compare(case: Case, *, rounds: int) -> dict[str, Figure]:
    """Microseconds of both sides, the median of `rounds`; raises MismatchError."""
    with tempfile.TemporaryDirectory(prefix="edgepack-") as work:
        folder = Path(work)
        proto = case.model()
        path = folder / "case.onnx"
        onnx.save(proto, path)
        random = np.random.RandomState(0)
        inputs = [_sample(value, random) for value in proto.graph.input]
        sides = {NAME: ours(path, folder / "out", inputs), PEER: theirs(path, inputs)}
        for side in sides.values():
            side.fill()
            side.run()
        error = largest_error(sides[NAME].outputs(), sides[PEER].outputs(), TOLERANCE)
        batches = [(side, _batch(side), name) for name, side in sides.items()]
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for side, batch, name in batches:
                times[name].append(_time_us(side, batch))
    return {name: Figure(value=median(found), error=error) for name, found in times.items()}


def _sample(value: onnx.ValueInfoProto, random: np.random.RandomState) -> _Array:
    """Normal floats; integers are indices below 1000."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    if dtype.kind == "f":
        return random.standard_normal(_shape(value)).astype(dtype)
    return random.randint(0, 1000, _shape(value)).astype(dtype)


def _time_us(side: Side, count: int) -> float:
    side.fill()
    start = time.process_time()
    for _ in range(count):
        side.run()
    return (time.process_time() - start) / count * 1e6


def _batch(side: Side) -> int:
    """How many runs fill a batch."""
    return max(1, round(_BATCH_MS * 1e3 / max(_time_us(side, 3), 1.0)))


def measure(progress: Progress, *, rounds: int) -> None:
    """Measures and stores all cases; a failure is a figure too."""
    for case in read_cases(CASES.read_text()):
        progress.step(f"{case.family}: {case.name}")
        try:
            figures = compare(case, rounds=rounds)
        except EdgepackError as error:
            log.warning("%s", error)
            figures = {NAME: Figure(failed="fails")}
        store("ops", {case.family: {case.name: figures}})


def report() -> str:
    """Markdown of all figures so far, in microseconds, slowest beside the peer first."""
    tables = load("ops")
    lines = [["operator", "case", NAME, PEER, "ratio"], ["---", "---", "---:", "---:", "---:"]]
    found = []
    for family in dict.fromkeys(case.family for case in read_cases(CASES.read_text())):
        rows = tables.get(family, {})
        for name, figures in sorted(rows.items(), key=lambda row: -(ratio(row[1]) or 0.0)):
            one = ratio(figures)
            cells = [
                f"{figures[side].value:.1f}" if side in figures and figures[side].value else "fails"
                for side in (NAME, PEER)
            ]
            lines.append([family, name, *cells, f"{one:.2f}" if one else "-"])
            found += [one] if one else []
    mean = geometric_mean(found)
    if mean is not None:
        lines.append([f"geometric mean of {len(found)}", "", "", "", f"{mean:.2f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

"""What compiling a model takes, and the memory its tensors share at run time.

In the process that `edgepack compile` does it in, one per model, so that nothing is warm. CPU time
of it and of the linker: an idle machine takes no longer than that. Then a version of the model with
another weight is compiled, for which the cache has the kernels' machine code. For other CPUs the
memory is planned only.
"""

from __future__ import annotations

import math
import os
import resource
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import numpy_helper

from bench.models import KINDS, MODELS, WIDE, get_model
from bench.results import Figure, Rows, load, ordered, store
from edgepack.base.apart import Limits
from edgepack.base.paths import cache_dir, set_cache_dir
from edgepack.base.progress import Progress
from edgepack.boards import get_board
from edgepack.compiler import CompiledModel, compile_with, plan_model
from edgepack.compiler.limited import within
from edgepack.compiler.settings import CompileSettings
from edgepack.flow.optimize import DEFAULT_OPTIMIZE, GROWTH
from edgepack.frontend.load import load_model
from edgepack.model import ModelSpec
from edgepack.native.toolchain import select

BOARD = "local"
_COLUMNS = {
    "cpu_s": "CPU, s",
    "again_cpu_s": "CPU of another version, s",
    "arena_mb": "arena, MB",
    "arena_ratio": "over two neighbours",
    "alive_ratio": "over what is alive",
    "params_mb": "parameters, MB",
    "params_ratio": "over the model's",
}
# Boards, and other CPUs for them: those whose cores and caches leave room for other scratch memory.
_PLANNED = {
    "AVX-512": ("local", "znver4"),
    "Cortex-A72": ("rasp4b-64", ""),
    "Cortex-A53": ("rasp3b", ""),
    "Cortex-A9": ("pynq", ""),
}
_LIMITS = Limits(memory_mb=16384, cpu_s=3600)  # of no model here
# Done in place, or in the kernel of what comes before.
_BY_ELEMENT = {"Add", "BatchNormalization", "Clip", "Div", "Erf", "HardSigmoid", "HardSwish"}
_BY_ELEMENT |= {"Identity", "Mul", "Relu", "Sigmoid", "Sub"}


def measure(models: Sequence[str], progress: Progress) -> None:
    """Compiles and stores figures."""
    # Python keeps what it made of the sources, as where the package is installed.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for model in map(get_model, models):
        progress.step(f"compiling {model.name}")
        with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
            cpu_s, compiled = _compiled(model.path, Path(folder))
            other = Path(folder) / "other.onnx"
            _change(model.path, other)
            again_cpu_s, _ = _compiled(other, Path(folder))
        figures = {
            "cpu_s": cpu_s,
            "again_cpu_s": again_cpu_s,
            "arena_mb": compiled.arena_bytes / 1e6,
            "arena_ratio": compiled.arena_bytes / neighbours(onnx.load(model.path)),
            "alive_ratio": compiled.arena_bytes / alive(onnx.load(model.path)),
            "params_mb": compiled.params_bytes / 1e6,
            "params_ratio": compiled.params_bytes / _weights(onnx.load(model.path)),
        }
        rows = {name: Figure(value=value) for name, value in figures.items()}
        store("compile", {BOARD: {model.name: rows}})
    plan_arenas(models, progress)


def plan_arenas(models: Sequence[str], progress: Progress) -> None:
    """Stores the arenas of other CPUs, over what is alive at once; nothing is compiled."""
    for model in map(get_model, models):
        progress.step(f"planning {model.name}")
        checked, least = load_model(ModelSpec(path=model.path)), alive(onnx.load(model.path))
        rows = {}
        for name, (board, cpu) in _PLANNED.items():
            found = get_board(board)
            found = replace(found, cpu=cpu) if cpu else found
            plan, *_ = plan_model(checked, found, growth=GROWTH[DEFAULT_OPTIMIZE])
            rows[name] = Figure(value=plan.arena_bytes / least)
        store("compile", {"planned": {model.name: rows}})


def _compiled(model: Path, folder: Path) -> tuple[float, CompiledModel]:
    """CPU seconds of what `edgepack compile` does to a model; machine code is kept in `folder`."""
    board, cache = get_board(BOARD), cache_dir()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    set_cache_dir(folder)
    try:
        compiled = within(
            model,
            _LIMITS,
            compile_with,
            ModelSpec(path=model),
            board,
            select(board).toolchain,
            folder / "out",
            CompileSettings(growth=GROWTH[DEFAULT_OPTIMIZE]),
        )
    finally:
        set_cache_dir(cache)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, compiled


def neighbours(model: onnx.ModelProto) -> int:
    """Bytes of the two largest tensors that one node reads and writes.

    Nodes that compute by element are left out, and views: those need not have two.
    """
    sizes = _sizes(model)
    return max(
        max(sizes.get(name, 0) for name in node.input) + sum(sizes[name] for name in node.output)
        for node in model.graph.node
        if node.op_type not in _BY_ELEMENT and node.op_type not in _VIEWS and node.input
    )


def alive(model: onnx.ModelProto) -> int:
    """The largest sum of bytes of tensors that are alive at once, in the order of the nodes.

    Inputs are alive from the start, outputs to the end. A view is the tensor that it is of; a node
    that computes by element writes over an operand as large as its result that nobody reads later.
    """
    sizes, nodes, end = _sizes(model), model.graph.node, len(model.graph.node)
    last = {name: number for number, node in enumerate(nodes) for name in node.input}
    last |= {value.name: end for value in model.graph.output}
    # The memory that a tensor is in, by the name of the first one there, and who still needs it.
    place = {value.name: value.name for value in model.graph.input if value.name in sizes}
    needed = {name: {name} for name in place}
    most = 0
    for number, node in enumerate(nodes):
        for name in filter(None, node.output):
            views = node.input[:1] if node.op_type in _VIEWS else []
            over = [
                operand
                for operand in (node.input if node.op_type in _BY_ELEMENT else [])
                if sizes.get(operand) == sizes[name]
                and all(last.get(other, -1) <= number for other in needed.get(place[operand], ()))
            ]
            shared = [place[item] for item in (*views, *over) if item in place]
            place[name] = shared[0] if shared else name
            needed.setdefault(place[name], set()).add(name)
        most = max(most, sum(sizes[first] for first in needed))
        for name in [*node.input, *node.output]:
            if name in place and last.get(name, -1) <= number:
                needed.get(place[name], set()).discard(name)
                if not needed.get(place[name], {name}):
                    del needed[place[name]]
    return most


_VIEWS = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")


def _sizes(model: onnx.ModelProto) -> dict[str, int]:
    """Bytes of each tensor that is no constant."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    sizes: dict[str, int] = {}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        kind = value.type.tensor_type
        width = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize
        sizes[value.name] = width * math.prod(dim.dim_value for dim in kind.shape.dim)
    for tensor in inferred.initializer:  # of old models, inputs as well
        sizes.pop(tensor.name, None)
    return sizes


def _weights(model: onnx.ModelProto) -> int:
    """Bytes of all constants."""
    constants = [a.t for node in model.graph.node for a in node.attribute if a.name == "value"]
    return sum(int(numpy_helper.to_array(t).nbytes) for t in (*model.graph.initializer, *constants))


def _change(model: Path, out: Path) -> None:
    """A copy of a model whose largest weight is another one."""
    proto = onnx.load(model)
    constants = [a.t for node in proto.graph.node for a in node.attribute if a.name == "value"]
    weight = max([*proto.graph.initializer, *constants], key=lambda tensor: tensor.ByteSize())
    values = numpy_helper.to_array(weight)
    weight.CopyFrom(numpy_helper.from_array(values * values.dtype.type(0.5), weight.name))
    onnx.save(proto, out)


def report() -> str:
    """Markdown of all figures so far."""
    stored = load("compile")
    parts = [
        _table(rows, _COLUMNS)
        for names in (MODELS, WIDE, KINDS)
        if (rows := ordered(stored.get(BOARD, {}), names))
    ]
    if rows := ordered(stored.get("planned", {}), (*MODELS, *WIDE, *KINDS)):
        parts += [_OF_OTHERS, _table(rows, {name: name for name in _PLANNED})]
    return "\n\n".join(parts)


_OF_OTHERS = """The arena over what is alive, as it is planned for other CPUs: two cores with
AVX-512 (`znver4`), a Raspberry Pi 4 and 3 (four cores, each with scratch memory), and a PYNQ."""


def _table(rows: Rows, columns: Mapping[str, str]) -> str:
    lines = [
        f"| model | {' | '.join(columns.values())} |",
        f"| --- |{' ---: |' * len(columns)}",
    ]
    for model, figures in rows.items():
        values = (figures[name].value if name in figures else None for name in columns)
        words = ("-" if value is None else f"{value:.2f}" for value in values)
        lines.append(f"| {model} | {' | '.join(words)} |")
    return "\n".join(lines)

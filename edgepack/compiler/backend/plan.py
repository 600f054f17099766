"""The ahead-of-time plan: which kernel reads and writes which bytes, in which order.

`main` of a lowered module is a straight line. It is written out as tensors with
fixed places (in one arena, or in the parameter file) and calls.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, te, tirx, topi

from edgepack.base.errors import ModelError
from edgepack.compiler.backend import storage
from edgepack.compiler.backend.arena import ALIGNMENT, Block, align, allocate
from edgepack.compiler.backend.report import LayerReport
from edgepack.compiler.bound import Bound
from edgepack.compiler.tiles.tir import in_place
from edgepack.model import DTYPES, LoadedModel, TensorInfo

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
    """A kernel call; `args` index the plan's tensors: inputs, outputs, then scratch memory."""

    kernel: str
    args: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class OutputCount:
    """Axis `axis` of output number `output` holds as many elements as tensor `tensor` says, an
    int64 of the arena; what lies behind them is not in use."""

    output: int
    axis: int
    tensor: int


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
    params: bytes = field(repr=False)

    def infos(self, indices: Sequence[int]) -> tuple[TensorInfo, ...]:
        """Names, dtypes and shapes of some of the tensors."""

        def bounded(index: int) -> tuple[int, ...]:
            return tuple(c.axis for c in self.counts if self.outputs[c.output] == index)

        return tuple(
            TensorInfo(name=t.name, dtype=t.dtype, shape=t.shape, bounded=bounded(index))
            for index, t in ((index, self.tensors[index]) for index in indices)
        )

    def to_json(self, layers: Sequence[LayerReport]) -> str:
        """The text of graph.json; one line per tensor and call. `layers` has one per call."""
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
        text = json.dumps(head, indent=1)[:-2]
        for key, items in (("tensors", tensors), ("calls", calls)):
            text += f',\n "{key}": [\n' + ",\n".join(f"  {json.dumps(i)}" for i in items) + "\n ]"
        return text + "\n}\n"


def extract_plan(
    module: tvm.IRModule,
    model: LoadedModel,
    library: Mapping[str, tirx.PrimFunc],
    bounds: Sequence[Bound] = (),
) -> tuple[Plan, dict[str, tirx.PrimFunc]]:
    """The plan of a lowered module, and the kernels it calls by name.

    `bounds` are those of its outputs. `library` has the kernels that the module calls as packed
    functions. A kernel may have more arguments than its call names inputs and outputs: those last
    ones are scratch memory, which is placed in the arena for the time of the call. Raises
    `PlanError`.
    """
    builder = _PlanBuilder(module, model, library)
    main = module["main"]
    for parameter, info in zip(main.params, model.inputs, strict=True):
        builder.bind_input(parameter, info)
    for block in main.body.blocks:
        for binding in block.bindings:
            builder.bind(binding.var, binding.value)
    return builder.finish(main.body.body, bounds)


def report_layers(plan: Plan, fast: Sequence[LayerReport]) -> tuple[LayerReport, ...]:
    """A report per call of the plan; `fast` has those of the kernel library, in order."""
    library, known = {report.kernel for report in fast}, iter(fast)

    def generic(call: Call) -> LayerReport:
        tensors = [plan.tensors[index] for index in call.args]
        # Scratch memory is rare, and smaller than a result that is worth a look.
        return LayerReport(
            kernel=call.kernel,
            layer="",
            operator=call.kernel.rstrip("0123456789"),
            rule="generic",
            shape=tensors[-1].shape,
            dtype=tensors[-1].dtype,
            exact="",
            tile="",
            macs=0,
            cycles=0.0,
            nbytes=sum(tensor.nbytes for tensor in tensors),
        )

    return tuple(next(known) if call.kernel in library else generic(call) for call in plan.calls)


@dataclass
class _Value:
    """A tensor before it has a place.

    It shows the bytes of the value `root` (maybe itself) from byte `start` on. Of a root, `first`
    and `last` are the calls between which its bytes hold something; an input's do from -1 on, and
    an output's up to the end. `fixed` are inputs and outputs.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    root: int
    start: int = 0
    data: np.ndarray | None = None
    fixed: bool = False
    first: int = -1
    last: int = -1

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * (
            1 if self.dtype == "bool" else np.dtype(self.dtype).itemsize
        )


class _PlanBuilder:
    def __init__(
        self, module: tvm.IRModule, model: LoadedModel, library: Mapping[str, tirx.PrimFunc]
    ) -> None:
        self.module = module
        self.library = library
        self.model = model
        self.values: list[_Value] = []
        self.calls: list[Call] = []
        self.kernels: dict[str, tirx.PrimFunc] = {}
        self.known: dict[Any, int | tuple[int, ...]] = {}
        self.constants: dict[tuple[str, tuple[int, ...], bytes], int] = {}
        self.inputs: list[int] = []

    # ------------------------------------------------ bindings

    def bind_input(self, parameter: relax.Var, info: TensorInfo) -> None:
        index = self.new_value(parameter.ty, info.name)
        self.values[index].fixed = True
        self.known[parameter] = index
        self.inputs.append(index)

    def bind(self, var: relax.Var, value: relax.Expr) -> None:
        if not isinstance(value, relax.Call):
            self.known[var] = self.resolve(value)
            return
        name = value.op.name if isinstance(value.op, tvm.ir.Op) else ""
        shown, parts = storage.read_view(value), storage.read_joint(value)
        if shown is not None:
            self.known[var] = self.view(value.ty, self.one(shown[0]), shown[1])
        elif parts is not None:
            self.known[var] = self.joint(value.ty, [self.one(part) for part in parts])
        elif name == "relax.call_tir":
            self.known[var] = self.bind_call(
                value, value.args[0].name_hint, self.module[value.args[0]]
            )
        elif name == "relax.call_dps_packed" and value.args[0].global_symbol in self.library:
            kernel = value.args[0].global_symbol
            self.known[var] = self.bind_call(value, kernel, self.library[kernel])
        elif name == "relax.reshape":
            self.known[var] = self.view(value.ty, self.one(value.args[0]))
        else:
            what = value.args[0].value if name.endswith("packed") else name or value.op
            raise PlanError(
                f"{self.model.path}: the model needs '{what}' at run time, which the runtime lacks"
            )

    def view(self, like: relax.TensorType, source: int, start: int = 0) -> int:
        index = self.new_value(like)
        shown = self.values[source]
        assert start % ALIGNMENT == 0
        self.values[index].root = shown.root
        self.values[index].start = shown.start + start
        self.values[index].data = shown.data
        return index

    def joint(self, like: relax.TensorType, parts: Sequence[int]) -> int:
        index = self.new_value(like)
        made = self.values[index]
        made.first = min(self.values[part].first for part in parts)
        start = 0
        for part in parts:
            value = self.values[part]
            assert value.root == part, f"{value.name} cannot be put into {made.name}"
            assert value.data is None
            assert not value.fixed
            assert start % ALIGNMENT == 0
            self.move(part, index, start)
            start += value.nbytes
        assert start == made.nbytes
        return index

    def move(self, root: int, into: int, start: int = 0) -> None:
        """Let the bytes of `root` be those of `into` from byte `start` on."""
        target, last = self.values[into], self.values[root].last
        target.last = max(target.last, last)
        for value in self.values:
            if value.root == root:
                value.root = into
                value.start += start

    def bind_call(
        self, call: relax.Call, kernel: str, function: tirx.PrimFunc
    ) -> int | tuple[int, ...]:
        inputs = [self.one(arg) for arg in call.args[1]]
        types = list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]
        outputs = [self.new_value(ty) for ty in types]
        scratch = [
            self.new_value(buffer) for buffer in list(function.params)[len(inputs) + len(outputs) :]
        ]
        self.add_call(kernel, function, inputs, outputs, scratch)
        return tuple(outputs) if isinstance(call.ty, relax.TupleType) else outputs[0]

    def add_call(
        self,
        kernel: str,
        function: tirx.PrimFunc,
        inputs: list[int],
        outputs: list[int],
        scratch: Sequence[int] = (),
    ) -> None:
        now = len(self.calls)
        tvm_ffi.structural_walk(function.body, (tvm.ir.Call, self.check_call))
        self.kernels[kernel] = function
        for index in (*outputs, *scratch):
            self.values[index].first = now
        for index in (*inputs, *outputs, *scratch):
            root = self.values[self.values[index].root]
            root.last = max(root.last, now)
        self.calls.append(Call(kernel=kernel, args=(*inputs, *outputs, *scratch)))

    def check_call(self, call: tvm.ir.Call) -> None:
        """A kernel can call what is linked into it, but nothing by its name in TVM's registry."""
        if isinstance(call.op, tvm.ir.Op) and call.op.name == "tirx.tvm_call_packed":
            raise PlanError(
                f"{self.model.path}: the model needs '{call.args[0].value}' at run time, "
                "which the runtime lacks"
            )

    # ------------------------------------------------ values

    def new_value(self, like: relax.TensorType | tirx.Buffer, name: str | None = None) -> int:
        dtype = str(like.dtype)
        if dtype not in DTYPES:
            raise PlanError(f"{self.model.path}: a tensor inside the model has type {dtype}")
        index = len(self.values)
        shape = tuple(int(dim) for dim in like.shape)
        self.values.append(_Value(name or f"t{index}", dtype, shape, root=index))
        return index

    def one(self, expr: relax.Expr) -> int:
        index = self.resolve(expr)
        assert isinstance(index, int), f"{expr} is a tuple"
        return index

    def resolve(self, expr: relax.Expr) -> int | tuple[int, ...]:
        if isinstance(expr, relax.Var):
            return self.known[expr]
        if isinstance(expr, relax.Tuple):
            return tuple(self.one(item) for item in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            items = self.resolve(expr.tuple_value)
            assert isinstance(items, tuple)
            return items[int(expr.index)]
        if isinstance(expr, tvm.ir.GenericConst):
            return self.constant(expr)
        raise PlanError(f"{self.model.path}: not a straight line of calls: {type(expr).__name__}")

    def constant(self, expr: relax.Expr) -> int:
        data = expr.value.numpy()
        key = (str(expr.ty.dtype), tuple(data.shape), data.tobytes())
        if key not in self.constants:
            index = self.new_value(expr.ty)
            self.values[index].data = data
            self.constants[key] = index
        return self.constants[key]

    # ------------------------------------------------ the end

    def finish(
        self, body: relax.Expr, bounds: Sequence[Bound]
    ) -> tuple[Plan, dict[str, tirx.PrimFunc]]:
        results = self.resolve(body)
        names = [info.name for info in self.model.outputs]
        names += [f"count{i}" for i in range(1 + max((b.count for b in bounds), default=-1))]
        outputs: list[int] = []
        for name, index in zip(
            names, results if isinstance(results, tuple) else (results,), strict=True
        ):
            root = self.values[self.values[index].root]
            if root.fixed or root.data is not None:
                # An input, a constant, or an output that is there already.
                index = self.copy(index)  # noqa: PLW2901
                root = self.values[index]
            root.fixed = True
            if self.values[index].name != name:
                self.values[index].name = name
            outputs.append(index)
        for index in outputs:
            self.values[self.values[index].root].last = len(self.calls)
        self.reuse_storage()
        places, arena_bytes, params = self.place()
        tensors = tuple(
            PlacedTensor(
                name=value.name,
                dtype=value.dtype,
                shape=value.shape,
                storage="arena" if value.data is None else "params",
                offset=places[value.root] + value.start,
                nbytes=value.nbytes,
            )
            for value in self.values
        )
        plan = Plan(
            model=self.model.name,
            tensors=tensors,
            inputs=tuple(self.inputs),
            outputs=tuple(outputs[: len(self.model.outputs)]),
            counts=tuple(
                OutputCount(
                    output=bound.output,
                    axis=bound.axis,
                    tensor=outputs[len(self.model.outputs) + bound.count],
                )
                for bound in bounds
            ),
            calls=tuple(self.calls),
            arena_bytes=arena_bytes,
            params=params,
        )
        return plan, self.kernels

    def reuse_storage(self) -> None:
        """Let results take the place of an argument that nobody reads any more."""
        for now, call in enumerate(self.calls):
            for read, written in in_place(self.kernels[call.kernel]):
                result, argument = call.args[written], self.values[call.args[read]]
                old = self.values[argument.root]
                readers = [arg for arg in call.args if self.values[arg].root == argument.root]
                if (
                    self.values[result].root == result
                    and len(readers) == 1
                    and old.data is None
                    and old.last == now
                    and old.nbytes == argument.nbytes == self.values[result].nbytes
                ):
                    self.move(result, argument.root)

    def copy(self, source: int) -> int:
        value = self.values[source]
        index = len(self.values)
        self.values.append(_Value(f"t{index}", value.dtype, value.shape, root=index))
        if not value.nbytes:
            return index
        placeholder = te.placeholder(value.shape, value.dtype, name="data")
        function = te.create_prim_func([placeholder, topi.identity(placeholder)])
        name = "copy_" + "_".join([value.dtype, *map(str, value.shape)])
        self.add_call(name, function, [source], [index])
        return index

    def place(self) -> tuple[dict[int, int], int, bytes]:
        """Offsets of the root values, the arena's size, and the parameter file."""
        roots = [i for i, value in enumerate(self.values) if value.root == i and value.data is None]
        blocks = [
            Block(size=value.nbytes, first=value.first, last=value.last)
            for value in (self.values[i] for i in roots)
        ]
        offsets, arena_bytes = allocate(blocks)
        places = dict(zip(roots, offsets, strict=True))
        params = bytearray()
        for index, value in enumerate(self.values):
            if value.root == index and value.data is not None:
                params.extend(bytes(align(len(params)) - len(params)))
                places[index] = len(params)
                params.extend(value.data.tobytes())
        return places, arena_bytes, bytes(params)

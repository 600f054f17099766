"""The ahead-of-time plan: which kernel reads and writes which bytes, in which order.

`main` of a lowered module is a straight line. It is written out as tensors with
fixed places (in one arena, or in the parameter file) and calls. The calls of a loop or branch
are a block of them, which is repeated or left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi

from edgepack.base.errors import ModelError
from edgepack.compiler.backend import storage
from edgepack.compiler.backend.arena import Block, ByteRange, align, allocate
from edgepack.compiler.backend.constants import bounds_of
from edgepack.compiler.backend.kernel import Kernel
from edgepack.compiler.backend.report import LayerReport
from edgepack.compiler.bound import Bound
from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.layout import ALIGNMENT
from edgepack.model import DTYPES, LoadedModel, TensorInfo
from edgepack.model.errors import StateError
from edgepack.model.states import check_state

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


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """A lowered module: `library` has the kernels that it calls as packed functions, with a report
    of each such call in order, `blocks` the loops and branches that it calls. `devices` are the
    functions of the module that a GPU runs, by their names."""

    module: tvm.IRModule
    library: Mapping[str, Kernel]
    reports: Sequence[LayerReport]
    blocks: Mapping[str, LoweredBlock] = field(default_factory=dict)
    devices: Mapping[str, Kernel] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LoweredBlock:
    """As `frontend.blocks` has it. The one body of a loop has results: whether it goes on, the
    states, and those that are rows of its results. Both bodies of a branch have the same."""

    name: str
    operator: str
    states: int
    most: int
    bodies: tuple[Lowered, ...]


def extract_plan(
    lowered: Lowered, model: LoadedModel, bounds: Sequence[Bound] = ()
) -> tuple[Plan, dict[str, Kernel], tuple[LayerReport, ...]]:
    """The plan of a lowered module, the kernels it calls by name, and a report of each call.

    `bounds` are those of its outputs. A kernel may have more arguments than its call names inputs
    and outputs: those last ones are scratch memory, which is placed in the arena for the time of
    the call. Raises `PlanError`.
    """
    builder = _PlanBuilder(lowered, model)
    main = lowered.module["main"]
    for parameter, info in zip(main.params, model.inputs, strict=True):
        builder.bind_input(parameter, info)
    builder.walk(main)
    plan, kernels = builder.finish(main.body.body, bounds)
    reports = zip(plan.calls, builder.reports, strict=True)
    return plan, kernels, tuple(report or _generic(plan, call) for call, report in reports)


def _generic(plan: Plan, call: Call) -> LayerReport:
    """The report of a kernel that TVM lowered."""
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


@dataclass
class _Value:
    """A tensor before it has a place.

    It shows the bytes of the value `root` (maybe itself) from byte `start` on. Of a root, `first`
    and `last` are the calls between which its bytes hold something; an input's do from -1 on, and
    an output's up to the end. Of what a call writes, `first` is that call wherever its bytes are.
    `fixed` are inputs and outputs. `joined` are joints, which no call writes as one.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    root: int
    start: int = 0
    data: np.ndarray | None = None
    fixed: bool = False
    joined: bool = False
    first: int = -1
    last: int = -1

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * (
            1 if self.dtype == "bool" else np.dtype(self.dtype).itemsize
        )


class _PlanBuilder:
    def __init__(self, lowered: Lowered, model: LoadedModel) -> None:
        self.model = model
        self.values: list[_Value] = []
        self.calls: list[Call] = []
        self.reports: list[LayerReport | None] = []
        self.blocks: list[PlanBlock] = []
        self.depth = 0
        self.enter(lowered)
        self.kernels: dict[str, Kernel] = {}
        self.known: dict[Any, int | tuple[int, ...]] = {}
        self.constants: dict[tuple[str, tuple[int, ...], bytes], list[int]] = {}
        self.inputs: list[int] = []

    def enter(self, lowered: Lowered) -> None:
        """What is bound from now on is of this module."""
        self.lowered, self.fast = lowered, iter(lowered.reports)

    # ------------------------------------------------ bindings

    def walk(self, main: relax.Function) -> None:
        for block in main.body.blocks:
            for binding in block.bindings:
                self.bind(binding.var, binding.value)

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
        called = storage.read_block(value)
        if called is not None:
            results = self.bind_block(value.ty, *called)
            self.known[var] = results if isinstance(value.ty, relax.TupleType) else results[0]
        elif shown is not None:
            self.known[var] = self.view(value.ty, self.one(shown[0]), shown[1])
        elif parts is not None:
            self.known[var] = self.joint(value.ty, [self.one(part) for part in parts])
        elif name == "relax.call_tir":
            symbol = value.args[0].name_hint
            kernel = self.lowered.devices.get(symbol)
            kernel = kernel or Kernel.of(self.lowered.module[symbol])
            self.known[var] = self.bind_call(value, symbol, kernel)
        elif (
            name == "relax.call_dps_packed" and value.args[0].global_symbol in self.lowered.library
        ):
            symbol = value.args[0].global_symbol
            report = next(self.fast)
            if self.depth:
                # Nobody has values of a turn to compare them with.
                report = replace(report, value="")
            self.known[var] = self.bind_call(value, symbol, self.lowered.library[symbol], report)
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
        made.joined = True
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
        self,
        call: relax.Call,
        name: str,
        kernel: Kernel,
        report: LayerReport | None = None,
    ) -> int | tuple[int, ...]:
        inputs = [self.one(arg) for arg in call.args[1]]
        types = list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]
        outputs = [self.new_value(ty) for ty in types]
        scratch = [
            self.new_tensor(dtype, shape)
            for dtype, shape in kernel.facts.arguments[len(inputs) + len(outputs) :]
        ]
        self.add_call(name, kernel, inputs, outputs, scratch, report)
        return tuple(outputs) if isinstance(call.ty, relax.TupleType) else outputs[0]

    def add_call(
        self,
        name: str,
        kernel: Kernel,
        inputs: list[int],
        outputs: list[int],
        scratch: Sequence[int] = (),
        report: LayerReport | None = None,
    ) -> None:
        now = len(self.calls)
        if kernel.facts.packed:
            # It can call what is linked into it, but nothing by its name in TVM's registry.
            raise PlanError(
                f"{self.model.path}: the model needs '{kernel.facts.packed}' at run time, "
                "which the runtime lacks"
            )
        name = self.named(name, kernel)
        self.kernels[name].called(self.numbers_of(inputs))
        self.reports.append(report and replace(report, kernel=name))
        for index in (*outputs, *scratch):
            self.values[index].first = now
        for index in (*inputs, *outputs, *scratch):
            root = self.values[self.values[index].root]
            root.last = max(root.last, now)
        args = (*inputs, *outputs, *scratch)
        self.calls.append(Call(kernel=name, args=args, inputs=len(inputs)))

    def numbers_of(self, inputs: Sequence[int]) -> dict[int, tuple[int, int]]:
        """The bounds of those inputs of a call that are constants, by number."""
        data = ((number, self.values[index].data) for number, index in enumerate(inputs))
        bounds = ((number, bounds_of(item)) for number, item in data if item is not None)
        return {number: found for number, found in bounds if found is not None}

    def named(self, wanted: str, kernel: Kernel) -> str:
        """What a kernel is called: bodies of loops may have others of the same name."""
        name, count = wanted, 1
        while name in self.kernels:
            known = self.kernels[name]
            if known is kernel or known.facts.digest == kernel.facts.digest:
                return name
            count += 1
            name = f"{wanted}_b{count}"
        self.kernels[name] = kernel
        return name

    # ------------------------------------------------ loops and branches

    def bind_block(self, ty: relax.Type, key: str, args: Sequence[relax.Expr]) -> tuple[int, ...]:
        """The calls of a loop or of a branch's two ways; its results."""
        block = self.lowered.blocks[key]
        types = list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]
        given = [self.one(arg) for arg in args]
        if len(block.bodies) == 1:
            return self.loop(block, given, types)
        results = [self.new_value(item) for item in types]
        for condition, body in zip(given, block.bodies, strict=False):
            self.repeated(block, condition, results, partial(self.way, body, given[2:], results))
        return tuple(results)

    def way(self, body: Lowered, given: Sequence[int], results: Sequence[int]) -> None:
        """One way of a branch."""
        self.put_all(self.body(body, given), results, unread=True)

    def loop(
        self, block: LoweredBlock, given: Sequence[int], types: Sequence[relax.TensorType]
    ) -> tuple[int, ...]:
        """A loop: its states have places of their own, where each turn finds and leaves them."""
        starts = given[: 1 + block.states]
        condition, *states = (self.copy(index) for index in starts)
        rows = [self.new_value(item) for item in types[block.states :]]

        def turn() -> None:
            before = [condition, *states]
            made = self.body(block.bodies[0], [*states, *given[len(starts) :]])
            for row, whole in zip(made[len(before) :], rows, strict=True):
                self.put_row(row, states[0], whole, block.most)
            self.put_all(made[: len(before)], before)

        self.repeated(block, condition, rows, turn, states)
        return (*states, *rows)

    def repeated(
        self,
        block: LoweredBlock,
        condition: int,
        results: Sequence[int],
        write: Callable[[], None],
        states: Sequence[int] = (),
    ) -> None:
        """A block of the calls that `write` adds. What it reads of before lives through all of it,
        and so do its `states` and what it makes for later, the `results`."""
        first, place = len(self.calls), len(self.blocks)
        for index in results:
            value = self.values[index]
            value.first = first if value.first < 0 else value.first
        write()
        end = len(self.calls)
        if end == first:
            return
        kept = {self.values[index].root for index in (condition, *results, *states)}
        for call in self.calls[first:end]:
            kept |= {r for r in map(self.root_of, call.args) if self.values[r].first < first}
        for root in kept:
            self.values[root].last = max(self.values[root].last, end)
        made = PlanBlock(
            first=first,
            end=end,
            condition=condition,
            most=block.most,
            name=block.name,
            operator=block.operator,
        )
        self.blocks.insert(place, made)

    def body(self, body: Lowered, given: Sequence[int]) -> list[int]:
        """The calls of a body that reads `given`; its results."""
        outer = self.lowered, self.fast, self.known
        self.known = {}
        self.enter(body)
        self.depth += 1
        main = body.module["main"]
        self.known.update(zip(main.params, given, strict=True))
        self.walk(main)
        made = self.resolve(main.body.body)
        self.depth -= 1
        self.lowered, self.fast, self.known = outer
        return list(made) if isinstance(made, tuple) else [made]

    def put_all(self, made: Sequence[int], targets: Sequence[int], *, unread: bool = False) -> None:
        """Let the results of a turn be where the next one, or what follows, finds them.

        A result is computed right there if what was there is not read after that; `unread` if
        there is nothing to be read.
        """
        roots = [self.root_of(index) for index in targets]
        read = {self.root_of(index) for index in made}
        held: list[tuple[int, int]] = []
        for index, target, root in zip(made, targets, roots, strict=True):
            source = self.root_of(index)
            if source == root:
                continue
            if source in roots:
                # Another state as it was before this turn, and that one may be overwritten first.
                held.append((self.copy(index), target))
            elif root in read or not self.takes_place(index, root, unread=unread):
                held.append((index, target))
            read.add(source)
        for index, target in held:
            self.copy(index, target)

    def takes_place(self, index: int, root: int, *, unread: bool) -> bool:
        """Let a value be computed where `root` is, if nobody reads that from then on."""
        source, target = self.values[self.root_of(index)], self.values[root]
        free = (
            source.data is None
            and not source.fixed
            and source.nbytes == self.values[index].nbytes == target.nbytes
            and source.first >= target.first
            and (unread or source.first > target.last or self.replaces(source.root, root))
        )
        if free:
            self.move(self.root_of(index), root)
        return free

    def replaces(self, source: int, target: int) -> bool:
        """Whether the call that makes `source` may make it where `target` is."""
        now = self.values[source].first
        call = self.calls[now]
        return any(
            call.args[written] == source
            and self.root_of(call.args[read]) == target
            and self.may_replace(now, read, written)
            for read, written in self.kernels[call.kernel].facts.in_place
        )

    def put_row(self, row: int, turn: int, whole: int, most: int) -> None:
        """Copy a result of a turn into its row of `whole`."""
        value = self.values[row]
        size = math.prod(value.shape)
        if not size:
            return
        one, places, to = (
            self.shaped(index, shape)
            for index, shape in ((row, (size,)), (turn, (1,)), (whole, (most, size)))
        )
        name = f"row_{value.dtype}_{most}x{size}"
        kernel = Kernel.of(_row_kernel(value.dtype, most, size))
        self.add_call(name, kernel, [one, places, to], [])

    def shaped(self, index: int, shape: tuple[int, ...]) -> int:
        """The bytes of a value in another shape."""
        value = self.values[index]
        self.values.append(
            _Value(f"t{len(self.values)}", value.dtype, shape, value.root, value.start, value.data)
        )
        return len(self.values) - 1

    def root_of(self, index: int) -> int:
        return self.values[index].root

    # ------------------------------------------------ values

    def new_value(self, like: relax.TensorType, name: str | None = None) -> int:
        return self.new_tensor(str(like.dtype), tuple(int(dim) for dim in like.shape), name)

    def new_tensor(self, dtype: str, shape: tuple[int, ...], name: str | None = None) -> int:
        if dtype not in DTYPES:
            raise PlanError(f"{self.model.path}: a tensor inside the model has type {dtype}")
        index = len(self.values)
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
        # No copy: weights may be most of this process's memory.
        return self.stored(self.new_value(expr.ty), np.from_dlpack(expr.value))

    def stored(self, new: int, data: np.ndarray) -> int:
        """The last value, as a parameter; an equal one that is there already instead."""
        values = _bytes_of(data)
        some = values[:: max(1, values.size // _SAMPLE)].tobytes()
        alike = self.constants.setdefault((self.values[new].dtype, data.shape, some), [])
        for index in alike:
            known = self.values[index].data
            if known is not None and np.array_equal(_bytes_of(known), values):
                self.values.pop()
                return index
        self.values[new].data = data
        alike.append(new)
        return new

    # ------------------------------------------------ the end

    def finish(self, body: relax.Expr, bounds: Sequence[Bound]) -> tuple[Plan, dict[str, Kernel]]:
        results = self.resolve(body)
        names = [info.name for info in self.model.outputs]
        names += [f"count{i}" for i in range(1 + max((b.count for b in bounds), default=-1))]
        outputs = list(results if isinstance(results, tuple) else (results,))
        states = self.states()
        self.place_states(outputs, states, {bound.output for bound in bounds})
        kept = {state.output for state in states}
        for number, (name, index) in enumerate(zip(names, outputs, strict=True)):
            root = self.values[self.values[index].root]
            if number not in kept and (root.fixed or root.data is not None):
                # An input, a constant, or an output that is there already.
                index = outputs[number] = self.copy(index)  # noqa: PLW2901
                root = self.values[index]
            root.fixed = True
            if self.values[index].name != name:
                self.values[index].name = name
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
            blocks=tuple(self.blocks),
            states=states,
            arena_bytes=arena_bytes,
            params=params,
        )
        return plan, self.kernels

    def states(self) -> tuple[StatePlace, ...]:
        """The model's states, by numbers."""
        inputs, outputs = (
            [info.name for info in infos] for infos in (self.model.inputs, self.model.outputs)
        )
        return tuple(
            StatePlace(
                input=inputs.index(given), output=outputs.index(made), start=self.start(given)
            )
            for given, made in self.model.states.items()
        )

    def start(self, given: str) -> int | None:
        """The parameter that a state begins with; None if that is zero."""
        data = self.model.starts.get(given)
        if data is None:
            return None
        return self.stored(self.new_tensor(data.dtype.name, data.shape, f"{given}/start"), data)

    def place_states(
        self, outputs: list[int], states: Sequence[StatePlace], bounded: Collection[int]
    ) -> None:
        """Let each state be where the next run finds it, and `outputs` be there.

        Raises `StateError` for a result of another type or shape than its input, or one of the
        `bounded`.
        """
        for state in states:
            if state.output in bounded:
                raise StateError(
                    f"{self.model.path}: the size of output "
                    f"'{self.model.outputs[state.output].name}', which is a state, depends on the "
                    "data",
                    hint="a state has one size: let the model cut or fill it",
                )
            given, made = (
                (value.name, value.dtype, value.shape)
                for value in (
                    self.values[self.inputs[state.input]],
                    self.values[outputs[state.output]],
                )
            )
            made = (self.model.outputs[state.output].name, *made[1:])
            check_state(self.model.path, given, made)
        kept = {state.output for state in states}
        targets = [self.inputs[state.input] for state in states]
        places = set(targets)
        for number, index in enumerate(outputs):
            if number not in kept and self.root_of(index) in places:
                # What a state was before this run.
                outputs[number] = self.copy(index)
        self.put_all([outputs[state.output] for state in states], targets)
        for state, target in zip(states, targets, strict=True):
            outputs[state.output] = self.shaped(target, self.values[target].shape)
            self.values[target].last = len(self.calls)

    def reuse_storage(self) -> None:
        """Let results take the place of an argument that nobody reads any more."""
        for now, call in enumerate(self.calls):
            for read, written in self.kernels[call.kernel].facts.in_place:
                if self.may_replace(now, read, written):
                    self.move(call.args[written], self.root_of(call.args[read]))

    def may_replace(self, now: int, read: int, written: int) -> bool:
        """Whether a result of call `now` may lie where an argument is: nobody else reads that, then
        or later. Both by their numbers among the arguments."""
        call = self.calls[now]
        result, argument = call.args[written], self.values[call.args[read]]
        old = self.values[argument.root]
        readers = [arg for arg in call.args if self.root_of(arg) == argument.root]
        return (
            self.root_of(result) == result
            and len(readers) == 1
            and old.data is None
            and old.last == now
            and old.nbytes == argument.nbytes == self.values[result].nbytes
        )

    def copy(self, source: int, target: int | None = None) -> int:
        """A copy of a value, in a place of its own or in that of `target`."""
        value = self.values[source]
        outputs: list[int] = []
        if target is None:
            target = len(self.values)
            self.values.append(_Value(f"t{target}", value.dtype, value.shape, root=target))
            outputs = [target]
        if not value.nbytes:
            return target
        placeholder = te.placeholder(value.shape, value.dtype, name="data")
        function = te.create_prim_func([placeholder, topi.identity(placeholder)])
        name = "copy_" + "_".join([value.dtype, *map(str, value.shape)])
        inputs = [source] if outputs else [source, target]
        self.add_call(name, Kernel.of(function), inputs, outputs)
        return target

    def place(self) -> tuple[dict[int, int], int, bytearray]:
        """Offsets of the root values, the arena's size, and the parameter file."""
        roots = [i for i, value in enumerate(self.values) if value.root == i and value.data is None]
        offsets, arena_bytes = allocate(self.arena_blocks(roots))
        places = dict(zip(roots, offsets, strict=True))
        end, stored = 0, []
        for index, value in enumerate(self.values):
            if value.root == index and value.data is not None:
                places[index] = align(end)
                end = places[index] + value.nbytes
                stored.append((places[index], value.data))
        # Of their size at once: they may be most of this process's memory.
        params = bytearray(end)
        filled = np.frombuffer(params, "uint8")
        for start, data in stored:
            filled[start : start + data.nbytes] = _bytes_of(data)
        return places, arena_bytes, params

    def arena_blocks(self, roots: Sequence[int]) -> list[Block]:
        """What the arena is made of. The bytes of a joint's parts are in use from the calls on that
        write them; what lies there later (a result in place) changes nothing of that."""
        parts: dict[int, list[ByteRange]] = {root: [] for root in roots if self.values[root].joined}
        for value in self.values:
            if value.root in parts and value.first >= 0 and not value.joined:
                span = ByteRange(
                    start=value.start, stop=value.start + value.nbytes, first=value.first
                )
                parts[value.root].append(span)
        return [
            Block(
                size=value.nbytes,
                first=value.first,
                last=value.last,
                parts=tuple(parts.get(root, ())),
            )
            for root, value in ((root, self.values[root]) for root in roots)
        ]


# As many of a constant's bytes say whether it may be equal to another one.
_SAMPLE = 1024


def _bytes_of(data: np.ndarray) -> np.ndarray:
    """The bytes of an array that lies in order."""
    return data.reshape(-1).view("uint8")


def _row_kernel(dtype: str, most: int, size: int) -> tirx.PrimFunc:
    """Elements [size] to row number turn[0] of rows [most, size]."""
    row, turn = tir.buffer("row", [size], dtype), tir.buffer("turn", [1], "int64")
    rows = tir.buffer("rows", [most, size], dtype)
    at = tir.cast(tir.load(turn, [0]), "int32")
    i = tir.var("i")
    body = tir.loop(i, size, tir.store(rows, tir.load(row, [i]), [at, i]))
    return tir.function([row, turn, rows], body)

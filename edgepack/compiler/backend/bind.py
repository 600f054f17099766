"""The plan of a lowered module, whose `main` is a straight line: its calls in order, what they read
and write, and the blocks of them that are repeated or left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from edgepack.compiler.backend.draft import PlanDraft
from edgepack.compiler.backend.kernel import Kernel
from edgepack.compiler.backend.place import place_values
from edgepack.compiler.backend.plan import (
    Call,
    OutputCount,
    PlacedTensor,
    Plan,
    PlanBlock,
    PlanError,
    StatePlace,
)
from edgepack.compiler.backend.report import LayerReport
from edgepack.compiler.backend.share import put_results, reuse_arguments
from edgepack.frontend import storage
from edgepack.frontend.bound import Bound
from edgepack.frontend.owners import title_of
from edgepack.kernels.tiles import tir
from edgepack.model import (
    DTYPES,
    LoadedModel,
    TensorInfo,
    infer_shapes,
    tensor_info,
    walk_nodes,
)
from edgepack.model.errors import StateError
from edgepack.model.index import GraphIndex
from edgepack.model.states import check_state


def _no_kernel_has(model: LoadedModel, kind: str) -> PlanError:
    """The error for a tensor of a type that no kernel writes: it names the first operator, but for
    casts, that makes one. (What is fused into a kernel is in no node's name.)"""
    graph = infer_shapes(model.proto).graph
    kinds = {name: tensor_info(info).dtype for name, info in GraphIndex(graph).infos.items()}
    made = [node for node in walk_nodes(graph) if kind in map(kinds.get, node.output)]
    made.sort(key=lambda node: node.op_type == "Cast")
    where = title_of(made[0]) if made else "an operator"
    return PlanError(
        f"{model.path}: {where} works on {kind}, of which only results of casts are compiled, and "
        "what is fused with them",
        hint="cast to float32 or float16 around it",
    )


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
    binder = _Binder(lowered, model)
    main = lowered.module["main"]
    for parameter, info in zip(main.params, model.inputs, strict=True):
        binder.bind_input(parameter, info)
    binder.walk(main)
    plan, kernels = binder.finish(main.body.body, bounds)
    reports = zip(plan.calls, binder.draft.reports, strict=True)
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


class _Binder:
    def __init__(self, lowered: Lowered, model: LoadedModel) -> None:
        self.model = model
        self.draft = PlanDraft(model.path)
        self.blocks: list[PlanBlock] = []
        self.depth = 0
        self.enter(lowered)
        self.known: dict[Any, int | tuple[int, ...]] = {}
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
        index = self.draft.new_value(parameter.ty, info.name)
        self.draft.values[index].fixed = True
        self.known[parameter] = index
        self.inputs.append(index)

    def bind(self, var: relax.Var, value: relax.Expr) -> None:
        if not isinstance(value, relax.Call):
            self.known[var] = self.resolve(value)
            return
        types = value.ty.fields if isinstance(value.ty, relax.TupleType) else [value.ty]
        self.check_types(str(ty.dtype) for ty in types if isinstance(ty, relax.TensorType))
        name = value.op.name if isinstance(value.op, tvm.ir.Op) else ""
        shown, parts = storage.read_view(value), storage.read_joint(value)
        called = storage.read_block(value)
        if called is not None:
            results = self.bind_block(value.ty, *called)
            self.known[var] = results if isinstance(value.ty, relax.TupleType) else results[0]
        elif shown is not None:
            self.known[var] = self.draft.view(value.ty, self.one(shown[0]), shown[1])
        elif parts is not None:
            self.known[var] = self.draft.joint(value.ty, [self.one(part) for part in parts])
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
            self.known[var] = self.draft.view(value.ty, self.one(value.args[0]))
        else:
            what = value.args[0].global_symbol if name.endswith("packed") else name or value.op
            raise PlanError(
                f"{self.model.path}: the model needs '{what}' at run time, which the runtime lacks"
            )

    def check_types(self, kinds: Iterable[str]) -> None:
        """Raise PlanError if one of these is a type that no kernel has."""
        for kind in kinds:
            if kind not in DTYPES:
                raise _no_kernel_has(self.model, kind)

    def bind_call(
        self,
        call: relax.Call,
        name: str,
        kernel: Kernel,
        report: LayerReport | None = None,
    ) -> int | tuple[int, ...]:
        inputs = [self.one(arg) for arg in call.args[1]]
        types = list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else [call.ty]
        outputs = [self.draft.new_value(ty) for ty in types]
        self.check_types(dtype for dtype, _ in kernel.facts.arguments)
        scratch = [
            self.draft.new_tensor(dtype, shape)
            for dtype, shape in kernel.facts.arguments[len(inputs) + len(outputs) :]
        ]
        self.draft.add_call(name, kernel, inputs, outputs, scratch, report)
        return tuple(outputs) if isinstance(call.ty, relax.TupleType) else outputs[0]

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
        self.check_types([str(expr.ty.dtype)])
        # No copy: weights may be most of this process's memory.
        return self.draft.stored(self.draft.new_value(expr.ty), np.from_dlpack(expr.value))

    # ------------------------------------------------ loops and branches

    def bind_block(self, ty: relax.Type, key: str, args: Sequence[relax.Expr]) -> tuple[int, ...]:
        """The calls of a loop or of a branch's two ways; its results."""
        block = self.lowered.blocks[key]
        types = list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]
        given = [self.one(arg) for arg in args]
        if len(block.bodies) == 1:
            return self.loop(block, given, types)
        results = [self.draft.new_value(item) for item in types]
        for condition, body in zip(given, block.bodies, strict=False):
            self.repeated(block, condition, results, partial(self.way, body, given[2:], results))
        return tuple(results)

    def way(self, body: Lowered, given: Sequence[int], results: Sequence[int]) -> None:
        """One way of a branch."""
        put_results(self.draft, self.body(body, given), results, unread=True)

    def loop(
        self, block: LoweredBlock, given: Sequence[int], types: Sequence[relax.TensorType]
    ) -> tuple[int, ...]:
        """A loop: its states have places of their own, where each turn finds and leaves them."""
        starts = given[: 1 + block.states]
        condition, *states = (self.draft.copy(index) for index in starts)
        rows = [self.draft.new_value(item) for item in types[block.states :]]

        def turn() -> None:
            before = [condition, *states]
            made = self.body(block.bodies[0], [*states, *given[len(starts) :]])
            for row, whole in zip(made[len(before) :], rows, strict=True):
                self.put_row(row, states[0], whole, block.most)
            put_results(self.draft, made[: len(before)], before)

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
        first, place = len(self.draft.calls), len(self.blocks)
        for index in results:
            value = self.draft.values[index]
            value.first = first if value.first < 0 else value.first
        write()
        end = len(self.draft.calls)
        if end == first:
            return
        kept = {self.draft.values[index].root for index in (condition, *results, *states)}
        for call in self.draft.calls[first:end]:
            kept |= {
                r for r in map(self.draft.root_of, call.args) if self.draft.values[r].first < first
            }
        for root in kept:
            self.draft.keep(root, end)
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

    def put_row(self, row: int, turn: int, whole: int, most: int) -> None:
        """Copy a result of a turn into its row of `whole`."""
        value = self.draft.values[row]
        size = math.prod(value.shape)
        if not size:
            return
        one, places, to = (
            self.draft.shaped(index, shape)
            for index, shape in ((row, (size,)), (turn, (1,)), (whole, (most, size)))
        )
        name = f"row_{value.dtype}_{most}x{size}"
        kernel = Kernel.of(_row_kernel(value.dtype, most, size))
        self.draft.add_call(name, kernel, [one, places, to], [])

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
            root = self.draft.values[self.draft.values[index].root]
            if number not in kept and (root.fixed or root.data is not None):
                # An input, a constant, or an output that is there already.
                index = outputs[number] = self.draft.copy(index)  # noqa: PLW2901
                root = self.draft.values[index]
            root.fixed = True
            if self.draft.values[index].name != name:
                self.draft.values[index].name = name
        for index in outputs:
            self.draft.keep(index, len(self.draft.calls))
        reuse_arguments(self.draft)
        places, arena_bytes, params = place_values(self.draft)
        tensors = tuple(
            PlacedTensor(
                name=value.name,
                dtype=value.dtype,
                shape=value.shape,
                storage="arena" if value.data is None else "params",
                offset=places[value.root] + value.start,
                nbytes=value.nbytes,
            )
            for value in self.draft.values
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
            calls=tuple(self.draft.calls),
            blocks=tuple(self.blocks),
            states=states,
            arena_bytes=arena_bytes,
            params=params,
        )
        return plan, self.draft.kernels

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
        return self.draft.stored(
            self.draft.new_tensor(data.dtype.name, data.shape, f"{given}/start"), data
        )

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
                    self.draft.values[self.inputs[state.input]],
                    self.draft.values[outputs[state.output]],
                )
            )
            made = (self.model.outputs[state.output].name, *made[1:])
            check_state(self.model.path, given, made)
        kept = {state.output for state in states}
        targets = [self.inputs[state.input] for state in states]
        places = set(targets)
        for number, index in enumerate(outputs):
            if number not in kept and self.draft.root_of(index) in places:
                # What a state was before this run.
                outputs[number] = self.draft.copy(index)
        put_results(self.draft, [outputs[state.output] for state in states], targets)
        for state, target in zip(states, targets, strict=True):
            outputs[state.output] = self.draft.shaped(target, self.draft.values[target].shape)
            self.draft.keep(target, len(self.draft.calls))


def _row_kernel(dtype: str, most: int, size: int) -> tirx.PrimFunc:
    """Elements [size] to row number turn[0] of rows [most, size]."""
    row, turn = tir.buffer("row", [size], dtype), tir.buffer("turn", [1], "int64")
    rows = tir.buffer("rows", [most, size], dtype)
    at = tir.cast(tir.load(turn, [0]), "int32")
    i = tir.var("i")
    body = tir.loop(i, size, tir.store(rows, tir.load(row, [i]), [at, i]))
    return tir.function([row, turn, rows], body)

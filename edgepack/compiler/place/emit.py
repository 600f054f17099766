"""A Relax module -> the same with fast kernels for every layer that a rule takes.

Layers that no rule takes stay Relax operators on plain tensors. Nothing is decided here: `steps`
says what is called and converted, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax, tirx

from edgepack.base import apart
from edgepack.compiler.backend.code import kept_code
from edgepack.compiler.backend.kernel import KeptFacts, Kernel
from edgepack.compiler.backend.report import Joint, LayerReport, Stored
from edgepack.compiler.layers.plain import DYNAMIC
from edgepack.compiler.layers.tensors import ValueTable, shape_of_type
from edgepack.compiler.place.batch_parts import BatchPart, parts_of
from edgepack.compiler.place.placement import Placement, place_layers
from edgepack.compiler.place.steps import (
    CastStep,
    CopyStep,
    ImageStep,
    InputStep,
    JointStep,
    LoweredStep,
    MeanStep,
    PackStep,
    PlacedStep,
    RowsStep,
    TurnStep,
    UnpackStep,
    ViewStep,
    steps_of,
)
from edgepack.compiler.settings import DEFAULTS, CompileSettings
from edgepack.frontend.origin import origin_of
from edgepack.frontend.private import packed_name, stands_for
from edgepack.frontend.storage import joint, view
from edgepack.kernels.key import key_of_site
from edgepack.kernels.layer import Layer
from edgepack.kernels.limits import FREE
from edgepack.kernels.rules.rule import LayerKernel, LayerSite, product
from edgepack.kernels.rules.table import pack, unpack
from edgepack.kernels.signature import signature_of
from edgepack.kernels.tiles.cpu import cpu_model
from edgepack.kernels.tiles.layout import Blocked
from edgepack.kernels.value import Origin, Value

# What the parts of a layer may take, over the whole.
_MOST_SLOWER = 1.03
# What reports call the kernels that change a tensor's layout.
LAYOUT = "layout"
_LAYOUT_CHANGE = Origin(operator=LAYOUT, name="")


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """A module that calls `kernels` by name (as `call_dps_packed`), and what they are.

    `reports` has one entry per call, in order.
    """

    module: tvm.IRModule
    kernels: dict[str, Kernel]
    reports: tuple[LayerReport, ...]


def rewrite(
    module: tvm.IRModule,
    target: tvm.target.Target,
    settings: CompileSettings = DEFAULTS,
) -> Rewritten:
    """Put fast kernels into `main`, a function of one dataflow block.

    The result's `main` has the same inputs and outputs. Equal modules give equal results,
    names included. What `settings` mean for them says `place_layers`.
    """
    main = module["main"]
    emitter = _Emitter(main, place_layers(main, cpu_model(target), settings))
    new_main = emitter.emit()
    functions = dict(module.functions.items())
    updated = tvm.IRModule(functions, attrs=module.attrs)
    updated["main"] = new_main
    return Rewritten(
        module=updated, kernels=emitter.kernels.by_name, reports=tuple(emitter.reports)
    )


class _Kernels:
    """Kernels by name; equal ones are kept once."""

    def __init__(self) -> None:
        self.by_name: dict[str, Kernel] = {}
        self._known = KeptFacts(kept_code())

    def add(self, made: LayerKernel, key: str) -> str:
        """The name of a kernel, which `key` says everything of, or "" if none does."""
        kernel = self._kernel(made.function, key)
        candidate, count = made.name, 1
        while candidate in self.by_name:
            known = self.by_name[candidate]
            if known is kernel or known.facts.digest == kernel.facts.digest:
                return candidate
            count += 1
            candidate = f"{made.name}_v{count}"
        self.by_name[candidate] = kernel
        return candidate

    def _kernel(self, function: tirx.PrimFunc | Callable[[], tirx.PrimFunc], key: str) -> Kernel:
        if isinstance(function, tirx.PrimFunc):
            return Kernel.of(function)
        return self._known.kernel(key, function) if key else Kernel(function)


class _Emitter:
    """Writes the new function; `kernels` and `reports` fill while it does."""

    def __init__(self, main: relax.Function, placement: Placement) -> None:
        self.main = main
        self.placement = placement
        self.cpu = placement.cpu
        self.builder = relax.BlockBuilder()
        self.kernels = _Kernels()
        self.reports: list[LayerReport] = []
        self.names = _results(main, placement.values)
        # Values whose pixels the cores shared when they were made; see `LayerSite`.
        self.by_pixels: set[Value] = set()
        # In the new function: its inputs, and what each step made.
        self.inputs: dict[Value, relax.Expr] = {}
        self.made: dict[PlacedStep, relax.Expr] = {}
        self.means: dict[ImageStep, relax.Expr] = {}
        # Those in parts of which the first images are made first.
        self.forwards: set[PlacedStep] = set()

    def emit(self) -> relax.Function:
        """The new function."""
        parameters = [relax.Var(p.name, p.ty) for p in self.main.params]
        values = map(self.placement.values.of, self.main.params)
        self.inputs.update(zip(values, parameters, strict=True))
        planned = steps_of(self.main, self.placement)
        with self.builder.function("main", parameters, attrs=dict(self.main.attrs or {})):
            with self.builder.dataflow():
                for index, step in enumerate(planned.steps):
                    origin = step.layer.origin if isinstance(step, ImageStep | RowsStep) else None
                    if origin is not None:
                        what = f"making the kernel of {origin.operator} '{origin.name}'"
                        apart.at(what, index, len(planned.steps))
                    self.made[step] = self._step(step)
                body = self._substitute(self.main.body.body, planned.results)
                result = self.builder.emit_output(body)
            self.builder.emit_func_output(result)
        return self.builder.get()["main"]

    def _step(self, step: PlacedStep) -> relax.Expr:
        """What a step makes, emitted."""
        match step:
            case InputStep():
                made = self.inputs[step.value]
            case ImageStep():
                made = self._of_images(step)
            case MeanStep():
                made = self.means[step.kernel]
            case RowsStep():
                made = self._of_rows(step)
            case PackStep():
                made = self._packed(step)
            case UnpackStep():
                made = self._unpacked(step)
            case CopyStep():
                made = self._copied(step)
            case _:
                made = self.builder.emit(self._expression(step))
        return made

    def _expression(self, step: PlacedStep) -> relax.Expr:
        """A step that has no kernel of ours as an expression."""
        match step:
            case ViewStep():
                return view(self.made[step.source], step.shape, offset=step.offset)
            case JointStep():
                return joint([self.made[part] for part in step.parts], step.shape)
            case CastStep():
                return relax.op.astype(self.made[step.source], step.dtype)
            case TurnStep():
                return relax.op.permute_dims(self.made[step.source], [0, 1, 3, 2])
            case LoweredStep():
                if stands_for(step.expression, *DYNAMIC):
                    name = packed_name(step.expression)
                    raise ValueError(f"no rule is given for {name}, which TVM has no code for")
                return self._substitute(step.expression, step.reads)
            case _:
                raise TypeError(f"no such step: {step}")

    def _of_images(self, step: ImageStep) -> relax.Expr:
        """The call of a kernel on blocks of channels."""
        layer, rule = step.layer, step.rule
        site = self.placement.site(layer, by_pixels=layer.inputs[0] in self.by_pixels)
        kernel = rule.make(site)
        if kernel.by_pixels:
            self.by_pixels.add(layer.output)
        if layer.output in self.placement.in_parts:
            parts = [(part, rule.make(part.site)) for part in parts_of(site)]
            if parts and sum(made.cycles for _, made in parts) <= _MOST_SLOWER * kernel.cycles:
                return self._joined(step, site, parts)
        made = self._call(
            rule.name,
            kernel,
            [self.made[read] for read in step.reads],
            site.output.shape,
            site.output.element.name,
            mean=site.mean.shape if site.mean else None,
            layer=layer,
            shown=layer.output.shape,
            value=self.names.get(layer.output, ""),
            stored=_stored(site.output),
            key=key_of_site(rule, site),
        )
        if layer.mean is not None:
            self.means[step] = self.builder.emit(relax.TupleGetItem(made, 1))
            made = self.builder.emit(relax.TupleGetItem(made, 0))
        return made

    def _joined(
        self,
        step: ImageStep,
        whole: LayerSite,
        parts: Sequence[tuple[BatchPart, LayerKernel]],
    ) -> relax.Expr:
        """The calls of kernels for some images of a batch each.

        Results lie below what is read from the first image on, and above what is read from the last
        one on. In turns, so that those of a chain of layers stay where they are.
        """
        source = step.reads[0]
        while isinstance(source, ViewStep):
            source = source.source
        if source not in self.forwards:
            self.forwards.add(step)
        ordered = parts if step in self.forwards else parts[::-1]
        made = {}
        for part, kernel in ordered:
            own, is_last = part.site, part is ordered[-1][0]
            read = view(self.made[step.reads[0]], own.inputs[0].shape, offset=part.read)
            made[part.start] = self._call(
                step.rule.name,
                kernel,
                [self.builder.emit(read)],
                own.output.shape,
                own.output.element.name,
                layer=step.layer,
                shown=step.layer.output.shape,
                value=self.names.get(step.layer.output, "") if is_last else "",
                stored=_stored(whole.output),
                whole=Joint(shape=whole.output.shape, start=part.start) if is_last else None,
                key=key_of_site(step.rule, own),
            )
        in_order = [made[part.start] for part, _ in parts]
        return self.builder.emit(joint(in_order, whole.output.shape))

    def _of_rows(self, step: RowsStep) -> relax.Expr:
        """The call of a kernel on tensors as the model has them."""
        layer, rule = step.layer, step.rule
        return self._call(
            rule.name,
            rule.make(step.site),
            [self.made[read] for read in step.reads],
            step.site.output.shape,
            step.dtype,
            layer=layer,
            shown=layer.output.shape,
            value=self.names.get(layer.output, "") if step.is_whole else "",
            key=key_of_site(rule, step.site),
        )

    def _packed(self, step: PackStep) -> relax.Expr:
        kernel = pack(step.shape, step.layout, self.cpu, channels_last=step.channels_last)
        dtype = step.layout.element.name
        shape = step.layout.shape
        return self._call(LAYOUT, kernel, [self.made[step.source]], shape, dtype, shown=step.shown)

    def _unpacked(self, step: UnpackStep) -> relax.Expr:
        return self._call(
            LAYOUT,
            unpack(step.layout, step.shape, self.cpu, channels_last=step.channels_last),
            [self.made[step.source]],
            step.shape,
            step.dtype,
            shown=step.shown,
            value=self.names.get(step.value, "") if step.value is not None else "",
        )

    def _copied(self, step: CopyStep) -> relax.Expr:
        assert step.rule.joining is not None
        layout = step.layout
        kernel = step.rule.joining.copy(self.placement.layouts[step.value], layout)
        dtype, shown = layout.element.name, step.value.shape
        return self._call(
            "concat", kernel, [self.made[step.source]], layout.shape, dtype, shown=shown
        )

    def _call(
        self,
        rule: str,
        kernel: LayerKernel,
        read: Sequence[relax.Expr],
        shape: Sequence[int],
        dtype: str,
        *,
        shown: tuple[int, ...],
        mean: Sequence[int] | None = None,
        layer: Layer | None = None,
        value: str = "",
        stored: Stored | None = None,
        whole: Joint | None = None,
        key: str = "",
    ) -> relax.Expr:
        """Emit a kernel's call, its constants behind what it is to `read`; its result has `shape`,
        and is `shown` in the report.

        The `layer`, if it is one's, `value`, `stored` and `whole` are for the report, `key` says
        all that the kernel is made from. With a `mean`, the shape of a second result, it returns a
        tuple.
        """
        name = self.kernels.add(kernel, key)
        given = [*read, *(relax.const(np.ascontiguousarray(item)) for item in kernel.constants)]
        types = [relax.TensorType(list(dims), dtype) for dims in (shape, mean) if dims]
        call = relax.call_dps_packed(name, given, types if mean else types[0])
        tensors = [*(expr.ty for expr in given), *types]
        origin = layer.origin if layer is not None else _LAYOUT_CHANGE
        limits = self.placement.limits.of(layer) if layer else FREE
        self.reports.append(
            LayerReport(
                kernel=name,
                layer=origin.name if origin else "",
                operator=origin.operator if origin else rule,
                rule=rule,
                shape=shown,
                dtype=dtype,
                exact=limits.exact,
                tile=kernel.tile,
                macs=kernel.macs,
                cycles=kernel.cycles,
                nbytes=sum(
                    product(shape_of_type(tensor)) * np.dtype(str(tensor.dtype)).itemsize
                    for tensor in tensors
                ),
                value=value,
                result=len(given),
                stored=stored,
                joint=whole,
                signature=signature_of(layer, self.placement.limits) if layer else "",
                most_results=limits.most_results,
                limited=limits.reason,
            )
        )
        return self.builder.emit(call)

    def _substitute(self, expr: relax.Expr, reads: Mapping[Value, PlacedStep]) -> relax.Expr:
        """An expression of the old function in terms of the new one."""
        if isinstance(expr, relax.Var):
            return self.made[reads[self.placement.values.of(expr)]]
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._substitute(item, reads) for item in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._substitute(expr.tuple_value, reads), expr.index)
        if isinstance(expr, relax.Call):
            arguments = [self._substitute(argument, reads) for argument in expr.args]
            return relax.Call(expr.op, arguments, expr.attrs, expr.ty_args)
        return expr


def _results(main: relax.Function, values: ValueTable) -> dict[Value, str]:
    """The ONNX tensor that a value is, for those that are one."""
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    last: dict[Origin, relax.Var] = {}
    for binding in bindings:
        origin = origin_of(binding.value)
        if origin is not None and origin.result:
            last[origin] = binding.var
    found = {var: origin.result for origin, var in last.items()}
    for binding in reversed(bindings):
        # What is only reshaped to be it has its elements.
        value = binding.value
        is_reshape = isinstance(value, relax.Call) and value.op == _RESHAPE
        if is_reshape and binding.var in found and isinstance(value.args[0], relax.Var):
            found.setdefault(value.args[0], found[binding.var])
    return {values.of(var): result for var, result in found.items()}


_RESHAPE = tvm.ir.Op.get("relax.reshape")


def _stored(layout: Blocked) -> Stored:
    return Stored(
        batch=layout.batch,
        channels=layout.channels,
        height=layout.height,
        width=layout.width,
        block=0 if layout.planar else layout.block,
        top=layout.halo.top,
        left=layout.halo.left,
        front=layout.halo.front,
    )

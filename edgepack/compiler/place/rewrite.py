"""A Relax module -> the same with fast kernels for every layer that a rule takes.

Layers that no rule takes stay Relax operators on plain tensors; where the two kinds meet, a
tensor is packed into the blocked layout or unpacked from it, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from edgepack.compiler.backend.report import LayerReport
from edgepack.compiler.backend.storage import joint as joint_of
from edgepack.compiler.backend.storage import view
from edgepack.compiler.layers.fuse import fuse
from edgepack.compiler.layers.graph import (
    Convolution,
    Foreign,
    Layer,
    Resampling,
    Slice,
    Value,
    View,
    extent,
    read_layers,
    shape_of,
    shape_of_type,
    variables,
)
from edgepack.compiler.origin import Origin, merge, origin_of
from edgepack.compiler.rules import copies, joint
from edgepack.compiler.rules.rule import Alias, Kernel, Rule, Site, product
from edgepack.compiler.rules.table import PLAIN, RULES
from edgepack.compiler.tiles.cpu import CpuModel, cpu_model
from edgepack.compiler.tiles.layout import NO_HALO, Blocked, Halo

# What reports call the kernels that change a tensor's layout.
LAYOUT = "layout"
_LAYOUT_CHANGE = Origin(operator=LAYOUT, name="")


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """A module that calls `kernels` by name (as `call_dps_packed`), and what they are.

    `reports` has one entry per call, in order.
    """

    module: tvm.IRModule
    kernels: dict[str, tirx.PrimFunc]
    reports: tuple[LayerReport, ...]


def rewrite(
    module: tvm.IRModule,
    target: tvm.target.Target,
    *,
    rules: Sequence[Rule] = RULES,
    smallest: bool = False,
) -> Rewritten:
    """Put fast kernels into `main`, a function of one dataflow block.

    The result's `main` has the same inputs and outputs. Equal modules give equal results,
    names included. `smallest` leaves out those of the `rules` that store more weights to be faster.
    """
    main = module["main"]
    tried = [rule for rule in rules if not (smallest and rule.more_weights)]
    writer = _Writer(main, cpu_model(target), tried)
    new_main = writer.write()
    functions = dict(module.functions.items())
    updated = tvm.IRModule(functions, attrs=module.attrs)
    updated["main"] = new_main
    return Rewritten(
        module=updated, kernels=writer.kernels.functions, reports=tuple(writer.reports)
    )


class _Kernels:
    """Kernels by name; equal ones are kept once."""

    def __init__(self) -> None:
        self.functions: dict[str, tirx.PrimFunc] = {}

    def add(self, name: str, function: tirx.PrimFunc) -> str:
        candidate, count = name, 1
        while candidate in self.functions:
            if tvm_ffi.structural_equal(self.functions[candidate], function):
                return candidate
            count += 1
            candidate = f"{name}_v{count}"
        self.functions[candidate] = function
        return candidate


class _Writer:
    def __init__(self, main: relax.Function, cpu: CpuModel, rules: Sequence[Rule]) -> None:
        self.main = main
        self.cpu = cpu
        self.all_rules = rules
        self.builder = relax.BlockBuilder()
        self.kernels = _Kernels()
        self.reports: list[LayerReport] = []
        layers = read_layers(main)
        self.outputs = variables(main.body.body)
        # Views share the bytes of the value they show: it stands for them everywhere.
        self.root: dict[Value, Value] = {}
        # What each variable of the old function is.
        self.made = {var: value for layer in layers for var, value in layer.bindings}
        self.layers = fuse(self._without_views(layers), [self._root(v) for v in self.outputs])
        self.rules: dict[Value, Rule] = {}
        self.layouts: dict[Value, Blocked] = {}
        self.by_pixels: set[Value] = set()
        # Values that are written straight into a joint, and that joint.
        self.slots: dict[Value, Value] = {}
        # Where each value is, in the new function: plain as the model has it, or blocked.
        self.plain: dict[Value, relax.Expr] = {}
        self.blocked: dict[Value, relax.Expr] = {}

    # ------------------------------------------------ decisions

    def _root(self, value: Value) -> Value:
        return self.root.get(value, value)

    def _without_views(self, layers: Sequence[Layer]) -> list[Layer]:
        left = []
        for layer in layers:
            if isinstance(layer.operator, View):
                self.root[layer.output] = self._root(layer.inputs[0])
                continue
            left.append(
                Layer(
                    operator=layer.operator,
                    inputs=tuple(self._root(value) for value in layer.inputs),
                    output=layer.output,
                    expression=layer.expression,
                    operands=tuple(self._root(value) for value in layer.operands),
                    constants=layer.constants,
                    bindings=layer.bindings,
                )
            )
        return left

    def _decide(self) -> None:
        """Choose each layer's rule, and with it which values are blocked and their halos."""
        halos: dict[Value, Halo] = {}
        for layer in self.layers:
            rule = self._rule(layer)
            if rule is None:
                continue
            self.rules[layer.output] = rule
            wanted = rule.halo(layer)
            for value in layer.inputs:
                halos[value] = halos.get(value, NO_HALO).union(wanted)
        self._average_where_made()
        self._share_places(halos)
        for layer in self.layers:
            if layer.output in self.rules:
                for value in (*layer.inputs, *layer.operands, *layer.results):
                    self.layouts[value] = self._layout(value, halos.get(value, NO_HALO))
        for value in self.layouts:
            if self._stays_planar(value):
                self.layouts[value] = replace(self._layout(value, NO_HALO), planar=True)

    def _rule(self, layer: Layer) -> Rule | None:
        if isinstance(layer.operator, Foreign):
            return None
        if not isinstance(layer.operator, Convolution):
            # Not worth a change of layout by themselves.
            read = (*layer.inputs, *layer.operands)
            if not any(value in self.rules for value in read) or self._grows_at_the_end(layer):
                return None
        return next((rule for rule in self.all_rules if rule.takes(layer, self.cpu)), None)

    def _grows_at_the_end(self, layer: Layer) -> bool:
        """Whether a resize makes a larger image that is only read as the model has it.

        Then it is less work to change the layout of the smaller one.
        """
        if not isinstance(layer.operator, Resampling) or layer.expression:
            return False
        sizes = [product(shape_of(value)) for value in (layer.inputs[0], layer.output)]
        return sizes[0] < sizes[1] and all(
            isinstance(other.operator, Foreign)
            for other in self.layers
            if layer.output in (*other.inputs, *other.operands)
        )

    def _average_where_made(self) -> None:
        """Let kernels compute the mean of their result, as squeeze-and-excite wants it."""
        means: dict[Value, Layer] = {}
        for layer in self.layers:
            rule = self.rules.get(layer.output)
            if rule is None or not rule.is_mean or layer.expression:
                continue
            made_by = self.rules.get(layer.inputs[0])
            if made_by is not None and made_by.averages:
                means.setdefault(layer.inputs[0], layer)
        self.layers = [
            _with_mean(layer, means[layer.output]) if layer.output in means else layer
            for layer in self.layers
            if layer not in means.values()
        ]

    def _share_places(self, halos: dict[Value, Halo]) -> None:
        """Choose what is computed in its place in a joint, and give all that share bytes one halo.

        A part that needs a halo which its joint does not is copied: the joint's readers are worth
        more than the copy.
        """
        shared = [
            layer
            for layer in self.layers
            if self._alias(layer.output) is not None and extent(layer.output)[0] == 1
        ]
        slices = [layer for layer in shared if self._alias(layer.output) is Alias.VIEW]
        for layer in reversed(slices):
            (source,) = layer.inputs
            halos[source] = halos.get(source, NO_HALO).union(halos.get(layer.output, NO_HALO))
        for layer in reversed(shared):
            if layer in slices:
                continue
            halo = halos.get(layer.output, NO_HALO)
            for value in layer.inputs:
                computed = value in self.rules and self._alias(value) is not Alias.VIEW
                fits = halos.get(value, NO_HALO).union(halo) == halo
                if computed and fits and value not in self.slots:
                    self.slots[value] = layer.output
                    halos[value] = halo
        for layer in slices:
            halos[layer.output] = halos.get(layer.inputs[0], NO_HALO)

    def _alias(self, value: Value) -> Alias | None:
        """How the rule that makes a value can do without a kernel."""
        return self.rules[value].alias if value in self.rules else None

    def _stays_planar(self, value: Value) -> bool:
        """Whether all that read an image of the network's own layout can do so."""
        readers = [
            layer
            for layer in self.layers
            if value in (*layer.inputs, *layer.operands) and layer.output in self.rules
        ]
        return (
            value not in self.rules
            and len(shape_of(value)) == 4
            and all(
                value not in layer.operands
                and self.rules[layer.output].reads_planar(layer, self.cpu)
                for layer in readers
            )
        )

    def _layout(self, value: Value, halo: Halo) -> Blocked:
        batch, channels, height, width = extent(value)
        return Blocked(
            batch=batch,
            channels=channels,
            height=height,
            width=width,
            block=self.cpu.block(channels),
            halo=halo,
        )

    # ------------------------------------------------ the new function

    def write(self) -> relax.Function:
        """Emit everything in order; only what is needed in another layout is converted."""
        self._decide()
        parameters = [relax.Var(p.name, p.ty) for p in self.main.params]
        for old, new in zip(self.main.params, parameters, strict=True):
            self.plain[old] = new
        with self.builder.function("main", parameters, attrs=dict(self.main.attrs or {})):
            with self.builder.dataflow():
                for layer in self.layers:
                    self._write_layer(layer)
                result = self.builder.emit_output(self._substitute(self.main.body.body))
            self.builder.emit_func_output(result)
        return self.builder.get()["main"]

    def _write_layer(self, layer: Layer) -> None:
        rule = self.rules.get(layer.output)
        if rule is None:
            for var, value in layer.bindings:
                self.plain[var] = self._on_plain(var, value)
            return
        site = Site(
            layer=layer,
            inputs=tuple(self.layouts[value] for value in layer.inputs),
            operands=tuple(self.layouts[value] for value in layer.operands),
            output=self.layouts[layer.output],
            mean=self.layouts[layer.mean] if layer.mean is not None else None,
            by_pixels=layer.inputs[0] in self.by_pixels,
            cpu=self.cpu,
        )
        if rule.alias is not None:
            shared = self._in_place(site)
            if shared is not None:
                self.blocked[layer.output] = self.builder.emit(shared)
                return
        kernel = rule.make(site)
        if kernel.by_pixels:
            self.by_pixels.add(layer.output)
        read = [self._blocked(value) for value in (*layer.inputs, *layer.operands)]
        read += [relax.const(np.ascontiguousarray(values)) for values in kernel.constants]
        made = self._call(
            rule.name,
            kernel,
            read,
            shape=site.output.shape,
            mean=site.mean.shape if site.mean else None,
            shown=shape_of(layer.output),
            origin=merge(origin_of(value) for _, value in layer.bindings),
        )
        if layer.mean is not None:
            self.blocked[layer.mean] = self.builder.emit(relax.TupleGetItem(made, 1))
            made = self.builder.emit(relax.TupleGetItem(made, 0))
        self.blocked[layer.output] = made

    def _on_plain(self, var: relax.Var, value: relax.Expr) -> relax.Expr:
        """A value computed from plain tensors: by a kernel if there is a rule, else by TVM."""
        tried = (make(value, self.made, self.cpu) for make in PLAIN)
        is_call = isinstance(value, relax.Call)
        made = next((item for item in tried if item is not None), None) if is_call else None
        if made is None:
            return self.builder.emit(self._substitute(value))
        read = [self.builder.emit(view(self._plain(var), shape)) for var, shape in made.inputs]
        read += [relax.const(np.ascontiguousarray(values)) for values in made.kernel.constants]
        result = self._call(
            made.rule,
            made.kernel,
            read,
            shape=made.shape,
            dtype=made.dtype,
            shown=shape_of(var),
            origin=origin_of(value),
        )
        return self.builder.emit(view(result, shape_of(var)))

    def _in_place(self, site: Site) -> relax.Call | None:
        """A joint or a slice that shares its inputs' bytes."""
        layer = site.layer
        if isinstance(layer.operator, Slice):
            offset = joint.view_offset(site.inputs[0], layer.operator.first)
            source = self._blocked(layer.inputs[0])
            return None if offset is None else view(source, site.output.shape, offset=offset)
        # All parts have the joint's halo once they are in it.
        places = [replace(part, halo=site.output.halo) for part in site.inputs]
        if not joint.in_place(places, site.output):
            return None
        parts: list[relax.Expr] = []
        for value, layout, place in zip(layer.inputs, site.inputs, places, strict=True):
            part = self._blocked(value)
            if self.slots.get(value) is not layer.output or value in layer.inputs[: len(parts)]:
                copied = joint.copy(layout, place)
                shown = shape_of(value)
                part = self._call("concat", copied, [part], shape=place.shape, shown=shown)
            parts.append(part)
        return joint_of(parts, site.output.shape)

    def _call(
        self,
        rule: str,
        kernel: Kernel,
        read: Sequence[relax.Expr],
        *,
        shape: Sequence[int],
        shown: tuple[int, ...],
        dtype: str = "float32",
        mean: Sequence[int] | None = None,
        origin: Origin | None = _LAYOUT_CHANGE,
    ) -> relax.Expr:
        """Emit a kernel's call; its result has `shape`, and is `shown` in the report.

        With a `mean`, the shape of a second result, it returns a tuple.
        """
        name = self.kernels.add(kernel.name, kernel.function)
        types = [relax.TensorType(list(dims), dtype) for dims in (shape, mean) if dims]
        call = relax.call_dps_packed(name, list(read), types if mean else types[0])
        tensors = [*(expr.ty for expr in read), *types]
        self.reports.append(
            LayerReport(
                kernel=name,
                layer=origin.name if origin else "",
                operator=origin.operator if origin else rule,
                rule=rule,
                shape=shown,
                tile=kernel.tile,
                macs=kernel.macs,
                cycles=kernel.cycles,
                nbytes=sum(
                    product(shape_of_type(tensor)) * np.dtype(str(tensor.dtype)).itemsize
                    for tensor in tensors
                ),
            )
        )
        return self.builder.emit(call)

    def _blocked(self, value: Value) -> relax.Expr:
        """A value in the blocked layout, packed from the plain one the first time."""
        if value not in self.blocked:
            layout, plain = self.layouts[value], shape_of(value)
            data = self._plain(value)
            if layout.planar:
                packed = data
            elif _same_bytes(layout):
                packed = self.builder.emit(view(data, layout.shape))
            else:
                kernel = copies.pack(plain, layout, self.cpu)
                packed = self._call(LAYOUT, kernel, [data], shape=layout.shape, shown=plain)
            self.blocked[value] = packed
        return self.blocked[value]

    def _plain(self, value: Value) -> relax.Expr:
        """A value as the model has it, unpacked from the blocked layout the first time."""
        if value in self.plain:
            return self.plain[value]
        root, shape = self._root(value), shape_of(value)
        if root in self.blocked:
            layout = self.layouts[root]
            if _same_bytes(layout):
                made = self.builder.emit(view(self.blocked[root], shape))
            else:
                kernel = copies.unpack(layout, shape, self.cpu)
                made = self._call(LAYOUT, kernel, [self.blocked[root]], shape=shape, shown=shape)
        else:
            made = self.builder.emit(view(self.plain[root], shape))
        self.plain[value] = made
        return made

    def _substitute(self, expr: relax.Expr) -> relax.Expr:
        """An expression of the old function in terms of the new one, on plain tensors."""
        if isinstance(expr, relax.Var):
            return self._plain(expr)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._substitute(item) for item in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._substitute(expr.tuple_value), expr.index)
        if isinstance(expr, relax.Call):
            arguments = [self._substitute(argument) for argument in expr.args]
            return relax.Call(expr.op, arguments, expr.attrs, expr.ty_args)
        return expr


def _with_mean(layer: Layer, mean: Layer) -> Layer:
    """A layer that has the result of `mean` as a second one."""
    return replace(layer, mean=mean.output, bindings=(*layer.bindings, *mean.bindings))


def _same_bytes(layout: Blocked) -> bool:
    """Whether the blocked and the plain tensor have the same bytes in the same order."""
    one_pixel = layout.height == layout.width == 1 and not layout.halo
    return one_pixel and layout.channels % layout.block == 0

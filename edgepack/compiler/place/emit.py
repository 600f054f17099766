"""A Relax module -> the same with fast kernels for every layer that a rule takes.

Layers that no rule takes stay Relax operators on plain tensors; where the two kinds meet, a
tensor is packed into the blocked layout or unpacked from it, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax, tirx

from edgepack.base import apart
from edgepack.compiler.backend.code import kept_code
from edgepack.compiler.backend.kernel import KeptFacts, Kernel
from edgepack.compiler.backend.report import LayerReport, Stored
from edgepack.compiler.backend.storage import joint as joint_of
from edgepack.compiler.backend.storage import view
from edgepack.compiler.layers.plain import DYNAMIC
from edgepack.compiler.layers.tensors import ValueTable, shape_of, shape_of_type
from edgepack.compiler.origin import origin_of
from edgepack.compiler.place.placement import (
    JointOf,
    PlacedLayer,
    Placement,
    ViewAt,
    place_layers,
)
from edgepack.compiler.private import packed_name, stands_for
from edgepack.compiler.settings import DEFAULTS, CompileSettings
from edgepack.kernels.key import key_of_site
from edgepack.kernels.layer import Layer
from edgepack.kernels.rules.rule import LayerKernel, RowsSite, Rule, product
from edgepack.kernels.rules.table import pack, unpack
from edgepack.kernels.signature import signature_of
from edgepack.kernels.tiles.cpu import cpu_model
from edgepack.kernels.tiles.element import FLOAT16
from edgepack.kernels.tiles.layout import Blocked
from edgepack.kernels.value import Origin, Value

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
        self.results = _results(main, placement.values)
        # Values whose pixels the cores shared when they were made; see `LayerSite`.
        self.by_pixels: set[Value] = set()
        # Where each value is, in the new function: plain as the model has it, or blocked.
        self.plain: dict[Value, relax.Expr] = {}
        self.blocked: dict[Value, relax.Expr] = {}
        # Plain ones in half precision.
        self.halves: dict[Value, relax.Expr] = {}
        self.originals = {twin: value for value, twin in placement.twins.items()}
        # Transpositions to channels first whose results are read in the blocked layout, which is
        # packed from what they transpose; they are done only if anything else reads them.
        self.turned: dict[Value, relax.Call] = {}

    def emit(self) -> relax.Function:
        """Emit everything in order; only what is needed in another layout is converted."""
        parameters = [relax.Var(p.name, p.ty) for p in self.main.params]
        for old, new in zip(self.main.params, parameters, strict=True):
            self.plain[self.placement.values.of(old)] = new
        with self.builder.function("main", parameters, attrs=dict(self.main.attrs or {})):
            with self.builder.dataflow():
                for index, placed in enumerate(self.placement.layers):
                    self._layer(placed, index)
                result = self.builder.emit_output(self._substitute(self.main.body.body))
            self.builder.emit_func_output(result)
        return self.builder.get()["main"]

    def _layer(self, placed: PlacedLayer, index: int) -> None:
        layer, rule = placed.layer, placed.rule
        if rule is None:
            value = layer.output
            expression = self.placement.values.expressions[value]
            if value in self.placement.layouts and _order(expression) in _TO_FIRST:
                self.turned[value] = expression
            elif layer.is_reshape and self.placement.root(layer.inputs[0]) in self.halves:
                source = self._as_rows(layer.inputs[0], FLOAT16.name)
                self.halves[value] = self.builder.emit(view(source, value.shape))
            else:
                self.plain[value] = self._by_tvm(value, expression)
        elif placed.alias is not None:
            self.blocked[layer.output] = self.builder.emit(self._shared(layer, rule, placed.alias))
        else:
            origin = layer.origin
            if origin is not None:
                what = f"making the kernel of {origin.operator} '{origin.name}'"
                apart.at(what, index, len(self.placement.layers))
            if rule.rows is not None:
                self._of_rows(layer, rule, self.placement.rows_site(layer, rule))
            else:
                self._of_images(layer, rule)

    def _of_images(self, layer: Layer, rule: Rule) -> None:
        """Call the kernel of a layer that reads and makes blocks of channels."""
        site = self.placement.site(layer, by_pixels=layer.inputs[0] in self.by_pixels)
        kernel = rule.make(site)
        if kernel.by_pixels:
            self.by_pixels.add(layer.output)
        made = self._call(
            rule.name,
            kernel,
            [self._blocked(value) for value in (*layer.inputs, *layer.operands)],
            site.output.shape,
            site.output.element.name,
            mean=site.mean.shape if site.mean else None,
            layer=layer,
            shown=layer.output.shape,
            value=self.results.get(layer.output, ""),
            stored=_stored(site.output),
            key=key_of_site(rule, site),
        )
        if layer.mean is not None:
            self.blocked[layer.mean] = self.builder.emit(relax.TupleGetItem(made, 1))
            made = self.builder.emit(relax.TupleGetItem(made, 0))
        self.blocked[layer.output] = made

    def _of_rows(self, layer: Layer, rule: Rule, site: RowsSite) -> None:
        """Call the kernel of a layer on tensors as the model has them."""
        output, shape = site.output, layer.output.shape
        # In the place of an attention's queries are more elements than its results.
        whole = product(output.shape) == layer.output.size
        dtype = output.element.name if isinstance(output, Blocked) else output.dtype
        seen = zip((*layer.inputs, *layer.operands), (*site.inputs, *site.operands), strict=True)
        made = self._call(
            rule.name,
            rule.make(site),
            [
                self.builder.emit(view(self._as_rows(value, rows.dtype), rows.shape))
                for value, rows in seen
            ],
            output.shape,
            dtype,
            layer=layer,
            shown=shape,
            value=self.results.get(layer.output, "") if whole else "",
            key=key_of_site(rule, site),
        )
        if isinstance(output, Blocked):
            kernel = unpack(output, shape, self.cpu)
            made = self._call(LAYOUT, kernel, [made], shape, dtype, shown=shape)
        elif whole:
            made = self.builder.emit(view(made, shape))
        in_halves = not isinstance(output, Blocked) and output.dtype != layer.output.dtype
        (self.halves if in_halves else self.plain)[layer.output] = made

    def _shared(self, layer: Layer, rule: Rule, alias: ViewAt | JointOf) -> relax.Call:
        """A result that shares its inputs' bytes."""
        shape = self.placement.layouts[layer.output].shape
        if isinstance(alias, ViewAt):
            return view(self._blocked(layer.inputs[0]), shape, offset=alias.offset)
        parts = []
        for value, (layout, copied) in zip(layer.inputs, alias.parts, strict=True):
            part = self._blocked(value)
            if copied:
                assert rule.joining is not None
                kernel = rule.joining.copy(self.placement.layouts[value], layout)
                shown = value.shape
                dtype = layout.element.name
                part = self._call("concat", kernel, [part], layout.shape, dtype, shown=shown)
            parts.append(part)
        return joint_of(parts, shape)

    def _by_tvm(self, value: Value, expression: relax.Expr) -> relax.Expr:
        """A value computed by TVM, of tensors as the model has them."""
        if stands_for(expression, *DYNAMIC):
            name = packed_name(expression)
            raise ValueError(f"no rule is given for {name}, which TVM has no code for")
        if _order(expression) in _TO_LAST and self._is_only_blocked(self._value(expression)):
            return self._to_channels_last(value, self._value(expression))
        return self.builder.emit(self._substitute(expression))

    def _value(self, call: relax.Call) -> Value:
        """What a call reads first."""
        return self.placement.values.of(call.args[0])

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
        key: str = "",
    ) -> relax.Expr:
        """Emit a kernel's call, its constants behind what it is to `read`; its result has `shape`,
        and is `shown` in the report.

        The `layer`, if it is one's, `value` and `stored` are for the report, `key` says all that
        the kernel is made from. With a `mean`, the shape of a second result, it returns a tuple.
        """
        name = self.kernels.add(kernel, key)
        given = [*read, *(relax.const(np.ascontiguousarray(item)) for item in kernel.constants)]
        types = [relax.TensorType(list(dims), dtype) for dims in (shape, mean) if dims]
        call = relax.call_dps_packed(name, given, types if mean else types[0])
        tensors = [*(expr.ty for expr in given), *types]
        origin = layer.origin if layer is not None else _LAYOUT_CHANGE
        self.reports.append(
            LayerReport(
                kernel=name,
                layer=origin.name if origin else "",
                operator=origin.operator if origin else rule,
                rule=rule,
                shape=shown,
                dtype=dtype,
                exact=layer.limits.exact if layer else "",
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
                signature=signature_of(layer) if layer else "",
                most_results=layer.limits.most_results if layer else None,
                limited=layer.limits.reason if layer else "",
            )
        )
        return self.builder.emit(call)

    def _blocked(self, value: Value) -> relax.Expr:
        """A value in the blocked layout, packed from the plain one the first time."""
        if value not in self.blocked:
            layout, plain = self.placement.layouts[value], value.shape
            if layout.planar and plain == layout.shape:
                packed = self._plain(value)
            elif layout.planar or _same_bytes(layout):
                packed = self.builder.emit(view(self._plain(value), layout.shape))
            else:
                turned = self.turned.get(value)
                source = value if turned is None else self._value(turned)
                packed = self._call(
                    LAYOUT,
                    pack(source.shape, layout, self.cpu, channels_last=turned is not None),
                    [self._plain(source)],
                    layout.shape,
                    layout.element.name,
                    shown=plain,
                )
            self.blocked[value] = packed
        return self.blocked[value]

    def _plain(self, value: Value) -> relax.Expr:
        """A value as the model has it, unpacked from the blocked layout the first time."""
        if value in self.plain:
            return self.plain[value]
        root, shape = self.placement.root(value), value.shape
        if root in self.turned and root not in self.plain:
            self.plain[root] = self._by_tvm(root, self.turned[root])
            return self._plain(value)
        twin = self.placement.twins.get(root)
        if root in self.halves and root not in self.blocked and root not in self.plain:
            self.plain[root] = self.builder.emit(relax.op.astype(self.halves[root], root.dtype))
            return self._plain(value)
        if root not in self.blocked and root not in self.plain:
            # Made as its twin, or as what it is the twin of.
            other = twin if twin is not None else self.originals[root]
            made = self.builder.emit(_turn(self._plain(other), root.shape))
            if shape != root.shape:
                made = self.builder.emit(view(made, shape))
        elif root in self.blocked:
            layout = self.placement.layouts[root]
            if _same_bytes(layout):
                made = self.builder.emit(view(self.blocked[root], shape))
            else:
                made = self._unpacked(root, shape, shown=shape)
        else:
            made = self.builder.emit(view(self.plain[root], shape))
        self.plain[value] = made
        return made

    def _as_rows(self, value: Value, dtype: str) -> relax.Expr:
        """A value as the model has it, in half precision if it is wanted so."""
        if dtype == value.dtype or dtype != FLOAT16.name:
            return self._plain(value)
        if value not in self.halves:
            root = self.placement.root(value)
            if root in self.halves:
                made = view(self.halves[root], value.shape)
            else:
                made = relax.op.astype(self._plain(value), dtype)
            self.halves[value] = self.builder.emit(made)
        return self.halves[value]

    def _is_only_blocked(self, value: Value) -> bool:
        """Whether a value, with its channels first, would have to be unpacked."""
        if value in self.plain:
            return False
        root = self.placement.root(value)
        if root not in self.blocked or root in self.plain:
            return False
        layout = self.placement.layouts[root]
        pixels = (layout.batch, layout.channels, layout.height * layout.width)
        batch, channels, *sizes = value.shape
        is_same_image = (batch, channels, product(sizes)) == pixels
        return is_same_image and not layout.planar and not _same_bytes(layout)

    def _to_channels_last(self, made: Value, image: Value) -> relax.Expr:
        """The transposition of an image that is there in the blocked layout only."""
        root = self.placement.root(image)
        layout = self.placement.layouts[root]
        shape = (layout.batch, layout.height, layout.width, layout.channels)
        value = self.results.get(made, "")
        last = self._unpacked(root, shape, shown=made.shape, channels_last=True, value=value)
        return self.builder.emit(view(last, made.shape))

    def _unpacked(
        self,
        root: Value,
        shape: tuple[int, ...],
        *,
        shown: tuple[int, ...],
        channels_last: bool = False,
        value: str = "",
    ) -> relax.Expr:
        """A plain tensor of `shape` from what is there in the blocked layout."""
        layout = self.placement.layouts[root]
        return self._call(
            LAYOUT,
            unpack(layout, shape, self.cpu, channels_last=channels_last),
            [self.blocked[root]],
            shape,
            layout.element.accumulator,
            shown=shown,
            value=value,
        )

    def _substitute(self, expr: relax.Expr) -> relax.Expr:
        """An expression of the old function in terms of the new one, on plain tensors."""
        if isinstance(expr, relax.Var):
            return self._plain(self.placement.values.of(expr))
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._substitute(item) for item in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._substitute(expr.tuple_value), expr.index)
        if isinstance(expr, relax.Call):
            arguments = [self._substitute(argument) for argument in expr.args]
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
_PERMUTE = tvm.ir.Op.get("relax.permute_dims")
# Orders of axes that put the channels of images and of sequences last, or first again.
_TO_LAST = ((0, 2, 3, 1), (0, 2, 1))
_TO_FIRST = ((0, 3, 1, 2), (0, 2, 1))


def _order(value: relax.Expr) -> tuple[int, ...] | None:
    """The axes of a transposition of a computed tensor, None of anything else."""
    if not isinstance(value, relax.Call) or value.op != _PERMUTE or value.attrs.axes is None:
        return None
    if not isinstance(value.args[0], relax.Var):
        return None
    return tuple(int(axis) % len(value.attrs.axes) for axis in value.attrs.axes)


def _stored(layout: Blocked) -> Stored:
    return Stored(
        batch=layout.batch,
        channels=layout.channels,
        height=layout.height,
        width=layout.width,
        block=0 if layout.planar else layout.block,
        top=layout.halo.top,
        left=layout.halo.left,
    )


def _turn(image: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    """An image with rows and columns in each other's place, which is `shape` then."""
    if 1 in shape[-2:] or len(shape_of(image)) != len(shape):
        return view(image, shape)
    return relax.op.permute_dims(image, [0, 1, 3, 2])


def _same_bytes(layout: Blocked) -> bool:
    """Whether the blocked and the plain tensor have the same bytes in the same order."""
    one_pixel = layout.height == layout.width == 1 and not layout.halo
    is_plain = layout.element.name == layout.element.accumulator
    return one_pixel and is_plain and layout.channels % layout.block == 0

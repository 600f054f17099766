"""A Relax module -> the same with fast kernels for every layer that a rule takes.

Layers that no rule takes stay Relax operators on plain tensors; where the two kinds meet, a
tensor is packed into the blocked layout or unpacked from it, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax, tirx

from edgepack.base import apart
from edgepack.compiler.backend.code import kept_code
from edgepack.compiler.backend.kernel import KeptFacts, Kernel
from edgepack.compiler.backend.report import LayerReport, Stored
from edgepack.compiler.backend.storage import joint as joint_of
from edgepack.compiler.backend.storage import view
from edgepack.compiler.choices import NO_CHOICES, UNLIMITED, Choices
from edgepack.compiler.layers.attention import FEWEST_QUERIES, Attention
from edgepack.compiler.layers.layer import Layer, Value
from edgepack.compiler.layers.rows import RowProduct
from edgepack.compiler.layers.signature import signature_of
from edgepack.compiler.layers.strided import RowsAt
from edgepack.compiler.layers.tensors import shape_of, shape_of_type, variables
from edgepack.compiler.origin import Origin, merge, origin_of
from edgepack.compiler.place.known import key_of, key_of_site
from edgepack.compiler.place.placement import (
    JointOf,
    PlacedLayer,
    Placement,
    ViewAt,
    place_layers,
)
from edgepack.compiler.precision import FULL, Precision
from edgepack.compiler.rules import (
    attention,
    few_queries,
    integer_sums,
    joint,
    layout_transform,
    matrices,
)
from edgepack.compiler.rules.rule import LayerKernel, PlainKernel, Rule, product
from edgepack.compiler.rules.table import PLAIN, RULES
from edgepack.compiler.tiles.cpu import cpu_model
from edgepack.compiler.tiles.layout import Blocked

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
    *,
    rules: Sequence[Rule] = RULES,
    growth: float = UNLIMITED,
    precision: Precision = FULL,
    choices: Choices = NO_CHOICES,
    lean: bool = False,
) -> Rewritten:
    """Put fast kernels into `main`, a function of one dataflow block.

    The result's `main` has the same inputs and outputs. Equal modules give equal results,
    names included. Rules that store more weights to be faster store at most `growth` times the
    model's; at 1 they are left out.
    `choices` are for layers whose kernels are to be made otherwise than the cost model says.
    `lean`: no scratch memory is taken that the board needs more memory for; see `Headroom`.
    """
    main = module["main"]
    tried = tried_rules(rules, growth=growth)
    cpu = cpu_model(target)
    emitter = _Emitter(main, place_layers(main, cpu, tried, precision, choices, growth, lean))
    new_main = emitter.emit()
    functions = dict(module.functions.items())
    updated = tvm.IRModule(functions, attrs=module.attrs)
    updated["main"] = new_main
    return Rewritten(
        module=updated, kernels=emitter.kernels.by_name, reports=tuple(emitter.reports)
    )


def tried_rules(rules: Sequence[Rule], *, growth: float) -> list[Rule]:
    """Those of the rules that may store as many weights as they do."""
    return [rule for rule in rules if growth > 1 or not rule.more_weights]


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
        self.results = _results(main)
        self.outputs = {self.placement.root(value) for value in variables(main.body.body)}
        # Values whose rows lie in a larger tensor, which `plain` has for them.
        self.in_steps: dict[Value, RowsAt] = {}
        # Values whose pixels the cores shared when they were made; see `LayerSite`.
        self.by_pixels: set[Value] = set()
        # Where each value is, in the new function: plain as the model has it, or blocked.
        self.plain: dict[Value, relax.Expr] = {}
        self.blocked: dict[Value, relax.Expr] = {}
        self.originals = {twin: value for value, twin in placement.twins.items()}
        # Transpositions to channels first whose results are read in the blocked layout, which is
        # packed from what they transpose; they are done only if anything else reads them.
        self.turned: dict[Value, relax.Call] = {}

    def emit(self) -> relax.Function:
        """Emit everything in order; only what is needed in another layout is converted."""
        parameters = [relax.Var(p.name, p.ty) for p in self.main.params]
        for old, new in zip(self.main.params, parameters, strict=True):
            self.plain[old] = new
        with self.builder.function("main", parameters, attrs=dict(self.main.attrs or {})):
            with self.builder.dataflow():
                for index, placed in enumerate(self.placement.layers):
                    self._layer(placed, index)
                result = self.builder.emit_output(self._substitute(self.main.body.body))
            self.builder.emit_func_output(result)
        return self.builder.get()["main"]

    def _layer(self, placed: PlacedLayer, index: int) -> None:
        layer, rule = placed.layer, placed.rule
        if isinstance(layer.operator, Attention):
            self._attention(layer, layer.operator)
            return
        if isinstance(layer.operator, RowProduct) and self._rows(layer, layer.operator):
            return
        if rule is None:
            for var, value in layer.bindings:
                if layer.is_reshape and layer.inputs[0] in self.in_steps:
                    self.plain[var] = self.plain[layer.inputs[0]]
                    self.in_steps[var] = self.in_steps[layer.inputs[0]]
                elif var in self.placement.layouts and _order(value) in _TO_FIRST:
                    self.turned[var] = value
                else:
                    self.plain[var] = self._on_plain(var, value)
        elif placed.alias is not None:
            self.blocked[layer.output] = self.builder.emit(self._shared(layer, placed.alias))
        else:
            self._kernel(layer, rule, index)

    def _kernel(self, layer: Layer, rule: Rule, index: int) -> None:
        """Call the kernel of a layer, which is the one at `index`."""
        origin = merge(origin_of(value) for _, value in layer.bindings)
        if origin is not None:
            what = f"making the kernel of {origin.operator} '{origin.name}'"
            apart.at(what, index, len(self.placement.layers))
        site = self.placement.site(layer, by_pixels=layer.inputs[0] in self.by_pixels)
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
            dtype=site.output.element.name,
            mean=site.mean.shape if site.mean else None,
            shown=shape_of(layer.output),
            origin=merge(origin_of(value) for _, value in layer.bindings),
            value=self.results.get(layer.output, ""),
            stored=_stored(site.output),
            exact=layer.exact,
            signature=signature_of(layer),
            most_results=layer.most_results,
            limited=layer.limited,
            key=key_of_site(rule, site),
        )
        if layer.mean is not None:
            self.blocked[layer.mean] = self.builder.emit(relax.TupleGetItem(made, 1))
            made = self.builder.emit(relax.TupleGetItem(made, 0))
        self.blocked[layer.output] = made

    def _shared(self, layer: Layer, alias: ViewAt | JointOf) -> relax.Call:
        """A result that shares its inputs' bytes."""
        shape = self.placement.layouts[layer.output].shape
        if isinstance(alias, ViewAt):
            return view(self._blocked(layer.inputs[0]), shape, offset=alias.offset)
        parts = []
        for value, (layout, copied) in zip(layer.inputs, alias.parts, strict=True):
            part = self._blocked(value)
            if copied:
                kernel = joint.copy(self.placement.layouts[value], layout)
                shown = shape_of(value)
                dtype = layout.element.name
                part = self._call(
                    "concat", kernel, [part], shape=layout.shape, dtype=dtype, shown=shown
                )
            parts.append(part)
        return joint_of(parts, shape)

    def _on_plain(self, var: relax.Var, value: relax.Expr) -> relax.Expr:
        """A value computed from plain tensors: by a kernel if there is a rule, else by TVM."""
        if _order(value) in _TO_LAST and self._is_only_blocked(value.args[0]):
            return self._to_channels_last(var, value)
        tried = (make(value, self.placement.made, self.cpu) for make in PLAIN)
        is_call = isinstance(value, relax.Call)
        made = next((item for item in tried if item is not None), None) if is_call else None
        if made is None:
            return self.builder.emit(self._substitute(value))
        return self._plain_kernel(var, made, origin_of(value))

    def _attention(self, layer: Layer, operator: Attention) -> None:
        """An attention, whose results take the place of its queries if all that read them can."""
        if operator.result.shape[-2] < FEWEST_QUERIES:
            self._of_rows(layer, few_queries.make(operator, self.cpu))
            return
        found = None
        if self._is_read_once(operator.queries.value):
            found = attention.rows_in_queries(operator)
        if found is not None and not self._can_be_read(layer.output, found):
            found = None
        made = attention.make(operator, self.cpu, in_queries=found is not None, room=layer.room)
        self._of_rows(layer, made)
        if found is not None:
            self.in_steps[layer.output] = found

    def _can_be_read(self, value: Value, rows: RowsAt) -> bool:
        """Whether all that read a value, or its rows in another shape, are products that can read
        them where they would lie."""
        if value in self.outputs:
            return False
        for other in (placed.layer for placed in self.placement.layers):
            if value not in (*other.inputs, *other.operands):
                continue
            operator = other.operator
            if isinstance(operator, RowProduct):
                if value in map(self.placement.root, operator.operands):
                    return False
                if self._product_of_steps(operator, value, rows) is None:
                    return False
            elif not (other.is_reshape and self._can_be_read(other.output, rows)):
                return False
        return True

    def _is_read_once(self, value: Value | np.ndarray) -> bool:
        """Whether one layer reads a value that another one made, and nothing else does."""
        if not isinstance(value, relax.Var):
            return False
        root = self.placement.root(value)
        layers = [placed.layer for placed in self.placement.layers]
        readers = [layer for layer in layers if root in (*layer.inputs, *layer.operands)]
        return len(readers) == 1 and root not in {*self.main.params, *self.outputs}

    def _product_of_steps(
        self, operator: RowProduct, left: Value, rows: RowsAt
    ) -> PlainKernel | None:
        """A product of `left`, which has its rows there; None if there is no kernel."""
        product = operator.product
        if product.op != tvm.ir.Op.get("relax.matmul"):
            return None
        if [self.placement.root(var) for var in variables(product)] != [left]:
            return None
        made = matrices.make(product, self.placement.made, self.cpu, operator, rows)
        if made is None:
            return None
        (_, shape), *others = made.inputs
        return replace(made, inputs=((left, shape), *others))

    def _rows(self, layer: Layer, operator: RowProduct) -> bool:
        """A product with what follows it; False if there is no kernel for all of it."""
        given = [self.placement.root(var) for var in variables(operator.product)]
        if given[0] in self.in_steps:
            made = self._product_of_steps(operator, given[0], self.in_steps[given[0]])
            assert made is not None
            self._of_rows(layer, made)
            return True
        tried = (
            make(operator.product, self.placement.made, self.cpu, operator)
            for make in (matrices.make, integer_sums.make)
        )
        made = next((item for item in tried if item is not None), None)
        if made is not None:
            self._of_rows(layer, made)
        return made is not None

    def _of_rows(self, layer: Layer, made: PlainKernel) -> None:
        """Call the kernel of a layer on plain tensors."""
        origin = merge(origin_of(value) for _, value in layer.bindings)
        self.plain[layer.output] = self._plain_kernel(layer.output, made, origin)

    def _plain_kernel(self, var: relax.Var, made: PlainKernel, origin: Origin | None) -> relax.Expr:
        """A call of a kernel on plain tensors."""
        read = [self.builder.emit(view(self._plain(var), shape)) for var, shape in made.inputs]
        read += [relax.const(np.ascontiguousarray(values)) for values in made.kernel.constants]
        result = self._call(
            made.rule,
            made.kernel,
            read,
            shape=made.shape,
            dtype=made.dtype,
            shown=shape_of(var),
            origin=origin,
            value=self.results.get(var, ""),
            key=key_of(made.rule, made.made_from) if made.made_from is not None else "",
        )
        if made.layout is None:
            whole = product(made.shape) == product(shape_of(var))
            return self.builder.emit(view(result, shape_of(var))) if whole else result
        return self._call(
            LAYOUT,
            layout_transform.unpack(made.layout, shape_of(var), self.cpu),
            [result],
            shape=shape_of(var),
            dtype=made.dtype,
            shown=shape_of(var),
        )

    def _call(
        self,
        rule: str,
        kernel: LayerKernel,
        read: Sequence[relax.Expr],
        *,
        shape: Sequence[int],
        shown: tuple[int, ...],
        dtype: str,
        mean: Sequence[int] | None = None,
        origin: Origin | None = _LAYOUT_CHANGE,
        value: str = "",
        stored: Stored | None = None,
        exact: str = "",
        signature: str = "",
        most_results: int | None = None,
        limited: str = "",
        key: str = "",
    ) -> relax.Expr:
        """Emit a kernel's call; its result has `shape`, and is `shown` in the report.

        `value`, `stored`, `signature`, `most_results` and `limited` are the report's, `key` says
        all that the kernel is made from. With a `mean`, the shape of a second result, it returns a
        tuple.
        """
        name = self.kernels.add(kernel, key)
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
                dtype=dtype,
                exact=exact,
                tile=kernel.tile,
                macs=kernel.macs,
                cycles=kernel.cycles,
                nbytes=sum(
                    product(shape_of_type(tensor)) * np.dtype(str(tensor.dtype)).itemsize
                    for tensor in tensors
                ),
                value=value,
                result=len(read),
                stored=stored,
                signature=signature,
                most_results=most_results,
                limited=limited,
            )
        )
        return self.builder.emit(call)

    def _blocked(self, value: Value) -> relax.Expr:
        """A value in the blocked layout, packed from the plain one the first time."""
        if value not in self.blocked:
            layout, plain = self.placement.layouts[value], shape_of(value)
            if layout.planar and plain == layout.shape:
                packed = self._plain(value)
            elif layout.planar or _same_bytes(layout):
                packed = self.builder.emit(view(self._plain(value), layout.shape))
            else:
                turned = self.turned.get(value)
                source = value if turned is None else turned.args[0]
                packed = self._call(
                    LAYOUT,
                    layout_transform.pack(
                        shape_of(source), layout, self.cpu, channels_last=turned is not None
                    ),
                    [self._plain(source)],
                    shape=layout.shape,
                    dtype=layout.element.name,
                    shown=plain,
                )
            self.blocked[value] = packed
        return self.blocked[value]

    def _plain(self, value: Value) -> relax.Expr:
        """A value as the model has it, unpacked from the blocked layout the first time."""
        if value in self.plain:
            return self.plain[value]
        root, shape = self.placement.root(value), shape_of(value)
        if root in self.turned and root not in self.plain:
            self.plain[root] = self._on_plain(root, self.turned[root])
            return self._plain(value)
        twin = self.placement.twins.get(root)
        if root not in self.blocked and root not in self.plain:
            # Made as its twin, or as what it is the twin of.
            other = twin if twin is not None else self.originals[root]
            made = self.builder.emit(_turn(self._plain(other), shape_of(root)))
            if shape != shape_of(root):
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

    def _is_only_blocked(self, value: relax.Expr) -> bool:
        """Whether a value, with its channels first, would have to be unpacked."""
        if not isinstance(value, relax.Var) or value in self.plain:
            return False
        root = self.placement.root(value)
        if root not in self.blocked or root in self.plain:
            return False
        layout = self.placement.layouts[root]
        pixels = (layout.batch, layout.channels, layout.height * layout.width)
        batch, channels, *sizes = shape_of(value)
        is_same_image = (batch, channels, product(sizes)) == pixels
        return is_same_image and not layout.planar and not _same_bytes(layout)

    def _to_channels_last(self, var: relax.Var, call: relax.Call) -> relax.Expr:
        """The transposition of an image that is there in the blocked layout only."""
        root = self.placement.root(call.args[0])
        layout = self.placement.layouts[root]
        shape = (layout.batch, layout.height, layout.width, layout.channels)
        value = self.results.get(var, "")
        made = self._unpacked(root, shape, shown=shape_of(var), channels_last=True, value=value)
        return self.builder.emit(view(made, shape_of(var)))

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
            layout_transform.unpack(layout, shape, self.cpu, channels_last=channels_last),
            [self.blocked[root]],
            shape=shape,
            dtype=layout.element.accumulator,
            shown=shown,
            value=value,
        )

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


def _results(main: relax.Function) -> dict[Value, str]:
    """The ONNX tensor that a value is, for those that are one."""
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    last: dict[Origin, Value] = {}
    for binding in bindings:
        origin = origin_of(binding.value)
        if origin is not None and origin.result:
            last[origin] = binding.var
    found = {value: origin.result for origin, value in last.items()}
    for binding in reversed(bindings):
        # What is only reshaped to be it has its elements.
        value = binding.value
        is_reshape = isinstance(value, relax.Call) and value.op == _RESHAPE
        if is_reshape and binding.var in found and isinstance(value.args[0], relax.Var):
            found.setdefault(value.args[0], found[binding.var])
    return found


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

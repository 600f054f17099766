"""Relax operators -> kernels for a GPU, called in a straight line.

The layers are those of the CPU's compiler, with what it fuses into them; tensors stay as the model
has them. What no rule here takes, TVM lowers and fuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from edgepack.compiler.backend import constants
from edgepack.compiler.backend.kernel import Kernel
from edgepack.compiler.backend.report import LayerReport
from edgepack.compiler.gpu import (
    attention,
    convolution,
    epilogue,
    generic,
    halves,
    matrices,
    reads,
    rows,
    tensor_cores,
    windows,
    winograd,
)
from edgepack.compiler.gpu.image import HALF_BITS, PlainImage
from edgepack.compiler.gpu.kernel import DeviceKernel
from edgepack.compiler.layers.fuse import fuse
from edgepack.compiler.layers.plain import read_plain
from edgepack.compiler.layers.read import read_each
from edgepack.compiler.layers.tensors import constant_of, shape_of, variables
from edgepack.compiler.place.limits import limit_tiles
from edgepack.frontend.precision import Precision, misfit
from edgepack.frontend.storage import view
from edgepack.gpus import Gpu
from edgepack.kernels.layer import (
    Attention,
    Convolution,
    GlobalPooling,
    Layer,
    Norm,
    Pooling,
    Softmax,
    TransposedConvolution,
    View,
)
from edgepack.kernels.limits import LimitsByValue
from edgepack.kernels.tiles.expression import Operand
from edgepack.kernels.value import Value, extent


@dataclass(frozen=True, kw_only=True)
class RuledLayers:
    """A module that calls `kernels` by name (as `call_dps_packed`), with a report of each call."""

    module: tvm.IRModule
    kernels: dict[str, Kernel]
    reports: tuple[LayerReport, ...]


def rewrite(module: tvm.IRModule, gpu: Gpu, precision: Precision) -> RuledLayers:
    """Put kernels of the rules here into `main`, a function of one dataflow block.

    In half precision what they make for each other is stored as halves, and so are weights.
    """
    emitter = _GpuEmitter(module["main"], gpu, precision)
    made = tvm.IRModule(dict(module.functions.items()), attrs=module.attrs)
    made["main"] = emitter.emit()
    return RuledLayers(module=made, kernels=emitter.kernels, reports=tuple(emitter.reports))


def lower_rest(module: tvm.IRModule, target: tvm.target.Target) -> dict[str, DeviceKernel]:
    """Kernels of the functions that TVM lowered, by their names, but for those left to the CPU."""
    compared, numbers = reads.find_compared(module), constants.of_calls(module)
    made = {
        (name := var.name_hint): generic.make_kernel(
            name, function, target, compared.get(name, ()), numbers.get(name, {})
        )
        for var, function in module.functions.items()
        if isinstance(function, tirx.PrimFunc)
    }
    return {name: kernel for name, kernel in made.items() if kernel is not None}


class _GpuEmitter:
    def __init__(self, main: relax.Function, gpu: Gpu, precision: Precision) -> None:
        self.main, self.gpu, self.precision = main, gpu, precision
        self.builder = relax.BlockBuilder()
        self.read = read_each(main, lambda found: attention.takes(found, gpu))
        self.known = self.read.values
        self.kernels: dict[str, Kernel] = {}
        self.reports: list[LayerReport] = []
        self.values: dict[Value, relax.Expr] = {}
        self.roots: dict[Value, Value] = {}
        self.halves: frozenset[Value] = frozenset()
        self.limits = LimitsByValue()

    def emit(self) -> relax.Function:
        parameters = [relax.Var(p.name, p.ty) for p in self.main.params]
        self.values.update(zip(map(self.known.of, self.main.params), parameters, strict=True))
        layers = self._layers()
        inputs = [self.known.of(parameter) for parameter in self.main.params]
        limit_tiles(layers, inputs, self.precision, self.limits)
        if self.precision.is_half:
            self.halves = self._find_halves(layers)
        with self.builder.function("main", parameters, attrs=dict(self.main.attrs or {})):
            with self.builder.dataflow():
                for layer in layers:
                    made = self._kernel(layer)
                    if made is None:
                        for value in layer.computes:
                            expression = self._substitute(self.known.expressions[value])
                            self.values[value] = self.builder.emit(_of_one_place(expression))
                result = self.builder.emit_output(self._substitute(self.main.body.body))
            self.builder.emit_func_output(result)
        return self.builder.get()["main"]

    def _find_halves(self, layers: Sequence[Layer]) -> frozenset[Value]:
        """What is stored as halves: nothing that TVM's kernels compute with."""
        found = halves.HalfTensors(self._root, self.known)
        for layer in layers:
            code = self._code(layer)
            if code is None:
                found.add_foreign(layer)
                continue
            read = [value for value in _read(code, layer) if isinstance(value, Value)]
            found.add(layer.output, read, whole=_whole(layer))
            if self._exact(layer):
                found.refuse([layer.output])
        found.refuse(map(self.known.of, variables(self.main.body.body)))
        return found.largest()

    def _exact(self, layer: Layer) -> str:
        """Why a layer is to be float32 in half precision; empty if it is not."""
        operator = layer.operator
        why = ""
        if isinstance(operator, Convolution) and operator.weight.any():
            why = misfit(operator.weight)
        if why:
            return f"a weight {why}"
        exact = self.precision.exact
        nodes = layer.nodes
        if isinstance(operator, Attention) and layer.output.origin is not None:
            nodes = [layer.output.origin.name]  # scores are not stored
        return next((exact[name] for name in nodes if name in exact), "")

    def _layers(self) -> list[Layer]:
        left = []
        for layer in self.read.layers:
            if isinstance(layer.operator, View):
                root = layer.inputs[0]
                self.roots[layer.output] = self.roots.get(root, root)
            else:
                left.append(layer)
        results = map(self.known.of, variables(self.main.body.body))
        outputs = [self._root(value) for value in results]
        return fuse([self._on_roots(layer) for layer in left], outputs)

    def _on_roots(self, layer: Layer) -> Layer:
        return replace(
            layer,
            inputs=tuple(map(self._root, layer.inputs)),
            operands=tuple(map(self._root, layer.operands)),
        )

    def _root(self, value: Value) -> Value:
        return self.roots.get(value, value)

    def _value(self, value: Value) -> relax.Expr:
        if value not in self.values:
            root = self.values[self.roots[value]]
            self.values[value] = self.builder.emit(view(root, value.shape))
        return self.values[value]

    def _substitute(self, expr: relax.Expr) -> relax.Expr:
        if isinstance(expr, relax.Var):
            return self._value(self.known.of(expr))
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._substitute(item) for item in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._substitute(expr.tuple_value), expr.index)
        if isinstance(expr, relax.Call):
            arguments = [self._substitute(argument) for argument in expr.args]
            return relax.Call(expr.op, arguments, expr.attrs, expr.ty_args, expr.span)
        return expr

    def _kernel(self, layer: Layer) -> relax.Expr | None:
        made = self._code(layer)
        if made is None:
            return None
        read = _read(made, layer)
        given = [self._value(value) if isinstance(value, Value) else value for value in read]
        given += [relax.const(np.ascontiguousarray(values)) for values in made.constants]
        name = f"gpu_{made.kernel.facts.digest[:12]}"
        self.kernels[name] = made.kernel
        shape = layer.output.shape
        half = layer.output in self.halves
        exact = self._exact(layer) if self.precision.is_half else ""
        limits = self.limits.of(layer)
        report = _report(name, layer, made, len(given), half=half, exact=exact)
        report = replace(report, most_results=limits.most_results, limited=limits.reason)
        self.reports.append(report)
        ty = relax.TensorType(list(shape), self._dtype(layer.output))
        call = relax.call_dps_packed(name, given, ty)
        self.values[layer.output] = self.builder.emit(call)
        return self.values[layer.output]

    def _code(self, layer: Layer) -> LayerCode | None:
        """The code of a layer, in which known halves are read and stored as such."""
        half_weights = self.precision.is_half and not self._exact(layer)
        whole = self._attention(layer) or self._product(layer, half_weights) or self._row(layer)
        return whole or make_layer(
            layer,
            self.gpu,
            lambda value: self._root(value) in self.halves,
            half_weights,
            tf32=self.precision.is_tf32,
            most_results=self.limits.of(layer).most_results,
        )

    def _attention(self, layer: Layer) -> LayerCode | None:
        """The code of an attention."""
        operator = layer.operator
        if not isinstance(operator, Attention):
            return None
        tile = attention.choose(operator, self.gpu)
        assert tile is not None
        dtypes = [self._dtype(value) for value in layer.inputs]
        kernel, constants = attention.make(operator, dtypes, self._dtype(layer.output), tile)
        *heads, queries, width = operator.result.shape
        *_, keys, depth = operator.keys.places.shape
        return LayerCode(
            kernel=kernel,
            constants=constants,
            tile=f"{tile.queries}x{tile.keys}",
            rule="gpu attention",
            macs=int(np.prod(heads)) * queries * keys * (depth + width),
        )

    def _row(self, layer: Layer) -> LayerCode | None:
        """The code of a norm or a softmax of rows."""
        if len(layer.computes) != 1 or layer.operands or layer.expression:
            return None
        call = self.known.expressions[layer.computes[0]]
        read = read_plain(call, {}) if isinstance(call, relax.Call) else None
        if read is None or not isinstance(read.operator, Norm | Softmax):
            return None
        given = self.known.of(read.inputs[0])
        kernel, constants, tile = rows.make(
            read.operator,
            reads_half=self._is_half(given),
            makes_half=self._is_half(layer.output),
        )
        return LayerCode(
            kernel=kernel, constants=constants, tile=tile, rule="gpu rows", macs=0, read=(given,)
        )

    def _is_half(self, value: Value | relax.Expr) -> bool:
        return isinstance(value, Value) and self._root(value) in self.halves

    def _dtype(self, value: Value | relax.Expr) -> str:
        return HALF_BITS if self._is_half(value) else "float32"

    def _product(self, layer: Layer, half_weights: bool) -> LayerCode | None:
        """The code of a matrix product that is no layer: of one with a constant as of a
        convolution of its rows, or of two computed tensors."""
        if len(layer.computes) != 1 or layer.operands or layer.expression:
            return None
        call = self.known.expressions[layer.computes[0]]
        if not isinstance(call, relax.Call) or call.op != _MATMUL:
            return None
        if str(call.ty.dtype) != "float32" or isinstance(layer.operator, Convolution):
            return None
        left, right = (
            self.known.of(item) if isinstance(item, relax.Var) else item for item in call.args
        )
        weight, shape = constant_of(right), shape_of(call.args[0])
        if weight is not None and weight.ndim == 2 and isinstance(left, Value):
            half = (self._is_half(left), self._is_half(layer.output))
            half_weights = half_weights and not misfit(weight)
            tf32 = self.precision.is_tf32
            return _of_rows(left, shape, weight, self.gpu, half, half_weights, tf32=tf32)
        found = matrices.MatrixProduct.of(shape, shape_of(call.args[1]))
        if found is not None and self.halves:
            found = replace(
                found,
                left=self._dtype(left),
                right=self._dtype(right),
                output=self._dtype(layer.output),
            )
        code = matrices.make(found, self.gpu) if found is not None else None
        if found is None or code is None:
            return None
        macs = found.count * found.rows * found.depth * found.columns
        return LayerCode(
            kernel=code[0], tile=code[1], rule="gpu matrices", macs=macs, read=(left, right)
        )


_MATMUL = tvm.ir.Op.get("relax.matmul")
_TAKE = tvm.ir.Op.get("relax.take")


def _of_one_place(value: relax.Expr) -> relax.Expr:
    """An expression in which what is taken from one known place is a slice: that reads no place
    from memory, and TVM fuses it with others."""
    if not isinstance(value, relax.Call) or value.op != _TAKE:
        return value
    image, places = value.args[0], constant_of(value.args[1])
    if places is None or places.ndim or value.attrs.axis is None:
        return value
    shape, axis = list(shape_of(image)), int(value.attrs.axis)
    place = int(places)
    if not -shape[axis] <= place < shape[axis]:
        return value
    place %= shape[axis]
    taken = relax.op.strided_slice(image, [axis], [place], [place + 1])
    del shape[axis]
    return relax.op.reshape(taken, shape)


@dataclass(frozen=True, kw_only=True)
class LayerCode:
    """A layer's kernel, the constants behind its inputs, and what made it; `read` are its inputs,
    if they are not the layer's."""

    kernel: DeviceKernel
    constants: tuple[np.ndarray, ...] = ()
    tile: str
    rule: str
    macs: int = 0
    read: tuple[Value | relax.Expr, ...] = ()


def _whole(layer: Layer) -> tuple[Value, ...]:
    """What a layer's kernel reads as float32 only: halves have no room for some that mask."""
    operator = layer.operator
    if isinstance(operator, Attention):
        masks = (mask.source for mask in operator.masks)
        return tuple(layer.inputs[source] for source in masks if isinstance(source, int))
    if isinstance(operator, Convolution) and operator.gated:
        return layer.inputs[1:]
    return ()


def _read(code: LayerCode, layer: Layer) -> tuple[Value | relax.Expr, ...]:
    """What a layer's kernel reads, but for its constants."""
    return code.read or (*layer.inputs, *layer.operands)


def _of_rows(
    left: Value,
    shape: tuple[int, ...],
    weight: np.ndarray,
    gpu: Gpu,
    half: tuple[bool, bool],
    half_weights: bool,
    *,
    tf32: bool,
) -> LayerCode:
    """A product of rows with a constant: a 1x1 convolution of the pixels that they are; of the
    rows and the result there may be halves."""
    depth, columns = weight.shape
    rows = int(np.prod(shape[:-1]))
    operator = Convolution(
        weight=np.ascontiguousarray(weight.T)[:, :, None, None],
        bias=None,
        stride=(1, 1),
        before=(0, 0),
        dilation=(1, 1),
        groups=1,
    )
    image = PlainImage(batch=1, channels=depth, height=1, width=rows, rows=True)
    image = replace(image, half=half[0])
    site = convolution.ProductSite(
        operator=operator,
        image=image,
        output=replace(image, channels=columns, half=half[1]),
        expression=(),
        constants=(),
        operands=(),
        gpu=gpu,
        half_weights=half_weights,
        tf32=tf32,
    )
    kernel, constants, tile = tensor_cores.make(site) or convolution.make(site)
    return LayerCode(
        kernel=kernel,
        constants=constants,
        tile=tile,
        rule="gpu product",
        macs=rows * depth * columns,
        read=(left,),
    )


def _report(
    name: str, layer: Layer, made: LayerCode, result: int, *, half: bool, exact: str
) -> LayerReport:
    origin = layer.origin
    return LayerReport(
        kernel=name,
        layer=origin.name if origin else "",
        operator=origin.operator if origin else made.rule,
        rule=made.rule,
        shape=layer.output.shape,
        dtype="float16" if half else "float32",
        exact=exact,
        tile=made.tile,
        macs=made.macs,
        cycles=0.0,
        nbytes=sum(
            np.dtype(dtype).itemsize * int(np.prod(size))
            for dtype, size in made.kernel.facts.arguments
        ),
        result=result,
    )


def make_layer(
    layer: Layer,
    gpu: Gpu,
    is_half: Callable[[Value], bool],
    half_weights: bool,
    *,
    tf32: bool,
    most_results: int | None = None,
) -> LayerCode | None:
    """The code of a layer; None if no rule takes it. `is_half` tells which tensors are halves,
    `tf32` whether products may be of TF32, `most_results` how large tiles of Winograd's algorithm
    may be (`LayerLimits`)."""
    operator = layer.operator
    if not epilogue.knows(layer.expression):
        return None
    if not isinstance(operator, Convolution | Pooling | GlobalPooling):
        return None
    image, output, *operands = (
        image_of(value, half=is_half(value))
        for value in (layer.inputs[0], layer.output, *layer.operands)
    )
    is_product = isinstance(operator, Convolution) and not _is_depthwise(operator)
    if isinstance(operator, Convolution) and is_product and not convolution.takes(operator):
        return None
    alike = image.rows == output.rows or output.pixels * output.batch == 1
    if not (alike and _reads_alike(layer, operands, output)):
        return None
    if not is_product and (image.rows or output.rows):
        return None
    tensors: dict[str, Any] = {
        "operator": operator,
        "image": image,
        "output": output,
        "expression": layer.expression,
        "constants": layer.constants,
        "operands": tuple(operands),
    }
    rule = "gpu product"
    if is_product:
        site = convolution.ProductSite(gpu=gpu, half_weights=half_weights, tf32=tf32, **tensors)
        plan = winograd.choose(site, most_results)
        if plan is not None:
            rule, (kernel, constants, tile) = "gpu winograd", winograd.make(site, plan)
        else:
            kernel, constants, tile = tensor_cores.make(site) or convolution.make(site)
    else:
        rule, (kernel, constants, tile) = "gpu window", windows.make(windows.WindowSite(**tensors))
    macs = 0
    if isinstance(operator, Convolution):
        walked = image if isinstance(operator, TransposedConvolution) else output
        macs = operator.weight.size * output.batch * walked.pixels
    return LayerCode(kernel=kernel, constants=constants, tile=tile, rule=rule, macs=macs)


def _reads_alike(layer: Layer, operands: Sequence[PlainImage], output: PlainImage) -> bool:
    """Whether operands lie as the epilogue reads them."""
    for operation in layer.expression:
        for argument in operation.arguments:
            if isinstance(argument, Operand):
                image = operands[argument.index]
                if argument.pixel and (image.pixels != 1 or image.rows):
                    return False
                if not argument.pixel and replace(image, half=output.half) != output:
                    return False
    return True


def _is_depthwise(operator: Convolution) -> bool:
    return operator.weight.shape[1] == 1 and operator.groups > 1 and not operator.gated


def image_of(value: Value, *, half: bool = False) -> PlainImage:
    """A tensor as kernels here see it."""
    batch, channels, height, width = extent(value)
    return PlainImage(
        batch=batch,
        channels=channels,
        height=height,
        width=width,
        rows=len(value.shape) == 2,
        half=half,
    )

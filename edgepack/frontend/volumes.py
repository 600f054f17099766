"""Convolutions of volumes as convolutions of images, which the kernels are for.

A volume (1, C, D, H, W) is a batch of D images (D, C, H, W), and a window over several of them is
one over the channels of all: its taps along the depth lie side by side as channels. What connects
such layers is done on the images as well, so that they are turned round at the ends only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from edgepack.frontend.arithmetic import dtype_of, shape_of
from edgepack.frontend.conversions import is_static

# Taps that take more bytes than this are not laid side by side: each is convolved by itself and
# added to those before, which reads and writes the result as often (a guess). But images of this
# many channels fill blocks, and may be read where they are.
_MOST_BYTES = 1 << 24
_BLOCK = 4

_CONVOLUTIONS = ("relax.nn.conv3d", "relax.nn.conv3d_transpose")
_ELEMENTWISE = tuple(
    f"relax.{name}"
    for name in (
        *(
            "abs",
            "add",
            "ceil",
            "clip",
            "divide",
            "erf",
            "exp",
            "floor",
            "log",
            "maximum",
            "minimum",
        ),
        *("multiply", "negative", "power", "sigmoid", "sqrt", "subtract", "tanh", "nn.gelu"),
        *("nn.leakyrelu", "nn.relu", "nn.silu"),
    )
)


def with_images(function: relax.Function, *, in_place: bool = False) -> relax.Function:
    """The function with each convolution of a volume of floats, if it is one with constant weights,
    as one of images. `in_place`: its kernels read neighbouring images where they are, mostly."""
    names = {
        _name(binding.value)
        for block in function.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    }
    if names.isdisjoint(_CONVOLUTIONS):
        return function
    module = tvm.IRModule({"main": function})
    made = _Volumes(module, in_place=in_place).visit_expr(function)
    return relax.analysis.remove_all_unused(made)


def _name(call: relax.Call) -> str:
    return call.op.name if isinstance(call.op, tvm.ir.Op) else ""


def _numbers(values: Sequence[Any]) -> list[int]:
    return [int(value) for value in values]


def _is_volume(item: relax.Expr) -> bool:
    ty = item.ty
    if not isinstance(ty, relax.TensorType) or ty.ndim != 5 or not is_static(ty):
        return False
    return dtype_of(item) == "float32" and shape_of(item)[0] == 1 and 0 not in shape_of(item)


@mutator
class _Volumes(PyExprMutator):  # type: ignore[misc]
    """Writes calls on volumes as calls on images, and keeps the images of each result: what no call
    reads as a volume is left out later."""

    def __init__(self, module: tvm.IRModule, *, in_place: bool) -> None:
        super().__init__(module)
        self._in_place = in_place
        self._images: dict[relax.Var, relax.Var] = {}
        self._made: list[relax.Var] = []  # of the call that is being bound
        self._span: Any = None

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        self._made.clear()
        super().visit_var_binding_(binding)
        for images in self._made:
            self._images[self.get_var_remap(binding.var)] = images

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not _is_volume(call):
            return call
        self._span = call.span
        name = _name(call)
        if name == "relax.nn.conv3d":
            made = self._convolution(call)
        elif name == "relax.nn.conv3d_transpose":
            made = self._transposed(call)
        elif not any(item in self._images for item in _operands(call)):
            return call
        elif name in ("relax.nn.max_pool3d", "relax.nn.avg_pool3d"):
            made = self._pooling(call)
        elif name == "relax.mean":
            made = self._mean(call)
        elif name == "relax.concat":
            made = self._concatenation(call)
        elif name in _ELEMENTWISE:
            made = self._elementwise(call)
        else:
            made = None
        if made is None:
            return call
        self._made.append(made)
        turned = self._emit(relax.op.permute_dims(made, [1, 0, 2, 3]))
        return self._marked(relax.op.expand_dims(turned, 0))

    def _marked(self, expr: relax.Call) -> relax.Call:
        return relax.Call(expr.op, expr.args, expr.attrs, expr.ty_args, self._span)

    def _emit(self, expr: relax.Call) -> relax.Var:
        return self.builder_.emit(self._marked(expr))

    def _images_of(self, volume: relax.Expr) -> relax.Var:
        """(D, C, H, W)"""
        if volume not in self._images:
            flat = self._emit(relax.op.squeeze(volume, [0]))
            self._images[volume] = self._emit(relax.op.permute_dims(flat, [1, 0, 2, 3]))
        return self._images[volume]

    def _taps(
        self, images: relax.Var, firsts: Sequence[int], count: int, stride: int, fill: float = 0.0
    ) -> list[relax.Var]:
        """For each of `firsts` `count` images from that one on; there is `fill` outside of them."""
        depth = shape_of(images)[0]
        before = max(0, -min(firsts))
        after = max(0, max(firsts) + (count - 1) * stride + 1 - depth)
        if before or after:
            widths = [before, after, *[0] * 6]
            images = self._emit(relax.op.nn.pad(images, widths, "constant", fill))
        taps = []
        for first in firsts:
            start = first + before
            stop = start + (count - 1) * stride + 1
            if (start, stop, stride) == (0, shape_of(images)[0], 1):
                taps.append(images)
            else:
                cut = relax.op.strided_slice(images, [0], [start], [stop], [stride])
                taps.append(self._emit(cut))
        return taps

    def _convolution(self, call: relax.Call) -> relax.Var | None:
        data, weight = call.args
        if not isinstance(weight, tvm.ir.GenericConst) or not _is_volume(data):
            return None
        attrs, values = call.attrs, weight.value.numpy()
        pads, strides = _numbers(attrs.padding), _numbers(attrs.strides)
        dilations, groups = _numbers(attrs.dilation), int(attrs.groups)
        images = self._images_of(data)
        depth = shape_of(call)[2]
        firsts = [tap * dilations[0] - pads[0] for tap in range(values.shape[2])]
        taps = self._taps(images, firsts, depth, strides[0])

        def convolve(image: relax.Var, of: np.ndarray) -> relax.Var:
            return self._emit(
                relax.op.nn.conv2d(
                    image,
                    relax.const(np.ascontiguousarray(of)),
                    strides=strides[1:],
                    padding=[pads[1], pads[2], pads[4], pads[5]],
                    dilation=dilations[1:],
                    groups=groups,
                )
            )

        weights = [values[:, :, tap] for tap in range(len(taps))]
        is_read_there = self._in_place and shape_of(images)[1] % _BLOCK == 0
        if groups > 1 or (_bytes(taps) > _MOST_BYTES and not is_read_there):
            parts = [convolve(*pair) for pair in zip(taps, weights, strict=True)]
            return reduce(lambda one, other: self._emit(relax.op.add(one, other)), parts)
        return convolve(self._beside(taps), np.concatenate(weights, 1))

    def _transposed(self, call: relax.Call) -> relax.Var | None:
        """Each of as many results as the stride is deep is the convolution of some taps."""
        data, weight = call.args
        attrs = call.attrs
        if not isinstance(weight, tvm.ir.GenericConst) or not _is_volume(data):
            return None
        if int(attrs.groups) != 1 or any(size != 1 for size in _numbers(attrs.dilation)):
            return None
        values = weight.value.numpy()
        pads, strides = _numbers(attrs.padding), _numbers(attrs.strides)
        stride, depth = strides[0], shape_of(call)[2]
        count = -(-depth // stride)
        chosen = [
            range((turn + pads[0]) % stride, values.shape[2], stride) for turn in range(stride)
        ]
        if not all(chosen):
            return None
        images = self._images_of(data)

        def convolve(firsts: Sequence[int], of: np.ndarray) -> relax.Var:
            return self._emit(
                relax.op.nn.conv2d_transpose(
                    self._beside(self._taps(images, firsts, count, 1)),
                    relax.const(np.ascontiguousarray(of)),
                    strides=strides[1:],
                    padding=[pads[1], pads[2], pads[4], pads[5]],
                    output_padding=_numbers(attrs.output_padding)[1:],
                )
            )

        firsts = [
            [(turn + pads[0] - tap) // stride for tap in taps] for turn, taps in enumerate(chosen)
        ]
        weights = [np.concatenate([values[:, :, tap] for tap in taps], 0) for taps in chosen]
        if all(item == firsts[0] for item in firsts):
            # The results lie side by side as those of one convolution.
            results = [convolve(firsts[0], np.concatenate(weights, 1))]
        else:
            results = list(map(convolve, firsts, weights))
        channels, *pixels = values.shape[1], *shape_of(results[0])[2:]
        mixed = relax.op.reshape(self._beside(results), [count * stride, channels, *pixels])
        if count * stride == depth:
            return self._emit(mixed)
        return self._emit(relax.op.strided_slice(self._emit(mixed), [0], [0], [depth]))

    def _pooling(self, call: relax.Call) -> relax.Var | None:
        """Of each image, then of the images that a window sees."""
        attrs, maximum = call.attrs, _name(call) == "relax.nn.max_pool3d"
        size, strides = _numbers(attrs.pool_size), _numbers(attrs.strides)
        pads, dilations = _numbers(attrs.padding), _numbers(attrs.dilation)
        # A mean over images that are not there is one over fewer; so are windows that stand out.
        if attrs.ceil_mode or (not maximum and (pads[0] or pads[3])):
            return None
        pool = relax.op.nn.max_pool2d if maximum else relax.op.nn.avg_pool2d
        pooled = self._emit(
            pool(
                self._images_of(call.args[0]),
                size[1:],
                strides[1:],
                [pads[1], pads[2], pads[4], pads[5]],
                dilations[1:],
                count_include_pad=bool(attrs.count_include_pad),
            )
        )
        firsts = [tap * dilations[0] - pads[0] for tap in range(size[0])]
        fill = float(np.finfo("float32").min) if maximum else 0.0
        taps = self._taps(pooled, firsts, shape_of(call)[2], strides[0], fill)
        join = relax.op.maximum if maximum else relax.op.add
        joined = reduce(lambda one, other: self._emit(join(one, other)), taps)
        if maximum or len(taps) == 1:
            return joined
        return self._emit(relax.op.multiply(joined, relax.const(1 / len(taps), "float32")))

    def _mean(self, call: relax.Call) -> relax.Var | None:
        """Of a whole volume, as one image of one pixel."""
        axes = call.attrs.axis  # None: all
        if axes is None or _numbers(axes) != [2, 3, 4] or not call.attrs.keepdims:
            return None
        each = self._emit(relax.op.mean(self._images_of(call.args[0]), [2, 3], keepdims=True))
        return self._emit(relax.op.mean(each, 0, keepdims=True))

    def _concatenation(self, call: relax.Call) -> relax.Var | None:
        if int(call.attrs.axis) != 1 or not all(map(_is_volume, _operands(call))):
            return None
        return self._beside([self._images_of(item) for item in _operands(call)])

    def _elementwise(self, call: relax.Call) -> relax.Var | None:
        shape = shape_of(call)
        arguments = []
        for item in call.args:
            if not isinstance(item.ty, relax.TensorType):
                arguments.append(item)  # a bound of clip
                continue
            extents = [1] * (5 - item.ty.ndim) + shape_of(item)
            if extents == shape:
                arguments.append(self._images_of(item))
            elif math.prod(extents) == 1:
                arguments.append(self._reshaped(item, []))
            elif extents == [1, shape[1], 1, 1, 1]:
                arguments.append(self._reshaped(item, [1, shape[1], 1, 1]))
            else:
                return None
        return self._emit(relax.Call(call.op, arguments, call.attrs, call.ty_args))

    def _reshaped(self, item: relax.Expr, shape: list[int]) -> relax.Expr:
        if isinstance(item, tvm.ir.GenericConst):
            return relax.const(item.value.numpy().reshape(shape))
        return self._emit(relax.op.reshape(item, shape))

    def _beside(self, parts: Sequence[relax.Var]) -> relax.Var:
        return parts[0] if len(parts) == 1 else self._emit(relax.op.concat(list(parts), 1))


def _operands(call: relax.Call) -> list[relax.Expr]:
    first = call.args[0]
    return list(first.fields) if isinstance(first, relax.Tuple) else list(call.args)


def _bytes(tensors: Sequence[relax.Var]) -> int:
    return 4 * sum(math.prod(shape_of(item)) for item in tensors) if len(tensors) > 1 else 0

"""Transforms of signals as products with constant matrices."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, te

from edgepack.frontend.conversions import Node
from edgepack.frontend.errors import UnsupportedFormError


def dft(node: Node) -> relax.Expr:
    """DFT along an axis: real and imaginary parts are the last axis of its input and output.

    Of real input, complex input, and half a spectrum whose other half mirrors it (the inverse of a
    one-sided transform). Raises UnsupportedFormError for its length or axis is not a constant.
    """
    data, length, axis_given = (*node.inputs, None, None)[:3]
    axis = node.attributes.get("axis", 1) if node.opset < 20 else -2
    axis = axis if axis_given is None else _number(axis_given)
    inverse, one_sided = (bool(node.attributes.get(name, 0)) for name in ("inverse", "onesided"))
    size = None if length is None else _number(length)
    return _transformed(node, data, axis, size, inverse=inverse, one_sided=one_sided)


def stft(node: Node) -> relax.Expr:
    """STFT: frames of a signal, times a window, transformed one by one."""
    data, step, window, length = (*node.inputs, None, None)[:4]
    size = _number(length) if length is not None else int(window.ty.shape[0])
    hop, samples = _number(step), int(data.ty.shape[1])
    frames = 1 + (samples - size) // hop

    def framed(x: te.Tensor) -> te.Tensor:
        return te.compute(
            (x.shape[0], frames, size, x.shape[2]),
            lambda b, f, t, part: x(b, f * hop + t, part),
            name="frames",
        )

    if data.ty.ndim == 2:
        data = node.emit(relax.op.expand_dims(data, -1))
    made = node.compute(framed, data)
    if window is not None:
        wide = node.emit(relax.op.reshape(window, [1, 1, size, 1]))
        made = node.emit(relax.op.multiply(made, wide))
    one_sided = bool(node.attributes.get("onesided", 1))
    return _transformed(node, made, 2, None, inverse=False, one_sided=one_sided)


def _transformed(
    node: Node,
    data: relax.Expr,
    axis: int,
    length: int | None,
    *,
    inverse: bool,
    one_sided: bool,
) -> relax.Expr:
    shape, dtype = [int(extent) for extent in data.ty.shape], str(data.ty.dtype)
    axis = axis % len(shape)
    given, half = shape[axis], inverse and one_sided
    size = 2 * (given - 1) if half else given
    size = size if length is None else length
    wanted = size // 2 + 1 if one_sided and not inverse else size
    used = min(given, size // 2 + 1 if half else size)

    angles = 2 * np.pi * np.outer(np.arange(used), np.arange(wanted)) / size
    cosines, sines = np.cos(angles), np.sin(angles) * (-1 if inverse else 1)
    if half:
        # Each of these stands for its mirror image, too.
        twice = np.full((used, 1), 2.0)
        twice[0] = 1
        twice[size // 2 :] = 1 if size % 2 == 0 else 2
        cosines, sines = cosines * twice, sines * twice
    if inverse:
        cosines, sines = cosines / size, sines / size

    last = len(shape) - 2
    order = [i for i in range(len(shape) - 1) if i != axis] + [axis]
    kept = node.emit(relax.op.strided_slice(data, [axis], [0], [used]))

    def product(number: int, matrix: np.ndarray) -> relax.Expr:
        """One of the two parts, with the axis at the end, times a matrix."""
        part = node.emit(relax.op.strided_slice(kept, [last + 1], [number], [number + 1]))
        flat = node.emit(relax.op.squeeze(part, [last + 1]))
        turned = node.emit(relax.op.permute_dims(flat, order))
        return node.emit(relax.op.matmul(turned, relax.const(matrix, dtype)))

    real = product(0, cosines)
    imaginary = None if half else product(0, -sines)
    if shape[-1] == 2:
        real = node.emit(relax.op.add(real, product(1, sines)))
        if imaginary is not None:
            imaginary = node.emit(relax.op.add(imaginary, product(1, cosines)))
    back = [order.index(i) for i in range(len(order))]
    parts = [
        node.emit(relax.op.expand_dims(node.emit(relax.op.permute_dims(part, back)), -1))
        for part in (real, imaginary)
        if part is not None
    ]
    return parts[0] if len(parts) == 1 else relax.op.concat(parts, last + 1)


def _number(item: relax.Expr) -> int:
    if not isinstance(item, tvm.ir.GenericConst):
        raise UnsupportedFormError("its length or axis is not a constant")
    return int(item.value.numpy().reshape(-1)[0])

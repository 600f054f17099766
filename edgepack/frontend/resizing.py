"""ONNX's Resize as resizes of images [batch, channels, rows, columns], which have kernels.

A sequence is a row of an image whose other rows are the other channels. A volume is first resized
from plane to plane, with each plane as one long row, and then plane by plane: interpolation is
separable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from edgepack.frontend.errors import UnsupportedFormError
from edgepack.frontend.interpolation import Form, matrix

# Converts the inputs of a Resize, the way TVM does.
Convert = Callable[[list[relax.Expr | None]], relax.Expr]
# Makes a variable of an expression.
Emit = Callable[[relax.Expr], relax.Expr]


def emit_resize(
    inputs: Sequence[relax.Expr | None],
    attributes: Mapping[str, Any],
    opset: int,
    convert: Convert,
    emit: Emit,
) -> relax.Expr:
    """The result of a Resize of any opset: data, region, scales and sizes.

    Raises UnsupportedFormError for scales or sizes that are no constants, and as
    `resized_by_axis` does.
    """
    if opset < 11:
        # Of data and scales only; positions count from the corner.
        inputs = [inputs[0], None, *inputs[1:]]
        attributes = {
            "mode": attributes.get("mode", b"nearest"),
            "coordinate_transformation_mode": b"asymmetric",
            "nearest_mode": b"floor",
        }
    data, *given = (*inputs, None, None, None)[:4]
    numbers = [_numbers(item) for item in given]
    known = [item for item in numbers if item is not None]
    shape = _static_shape(data)
    if shape is None or len(known) < len(numbers):
        raise UnsupportedFormError("its scales, sizes or region are not constants")
    region, scales, sizes = _of_all_axes(known, shape, attributes)
    coordinates = attributes.get("coordinate_transformation_mode", b"half_pixel").decode()
    # Of scales in float32, as onnx infers it: 9 * (5 / 3) is 15 there.
    wide = sizes if sizes.size else scales.astype("float32") * np.array(shape, "float32")
    out = np.floor(wide).astype(int).tolist()
    if out == shape and coordinates != "tf_crop_and_resize":
        # Whatever the scales are: onnxruntime does the same.
        return data
    known = [region, scales, sizes]
    ratios = scales if scales.size else np.array(out) / shape
    if coordinates == "align_corners":
        # The last result lies on the last element, whatever size the scales would give before it is
        # rounded down (`meanings`).
        known = [region, np.zeros(0), np.array(out, "int64")]
    form = Form(
        mode={"bilinear": "linear"}.get(mode := attributes.get("mode", b"nearest").decode(), mode),
        coordinates=coordinates,
        nearest=attributes.get("nearest_mode", b"round_prefer_floor").decode(),
        cubic=attributes.get("cubic_coeff_a", -0.75),
        antialias=bool(attributes.get("antialias", 0)),
        exclude_outside=bool(attributes.get("exclude_outside", 0)),
    )
    by_tvm = (
        len(shape) in (3, 4, 5)
        and opset > 10
        and out[:2] == shape[:2]
        and not form.antialias
        and not attributes.get("axes")
        and coordinates != "half_pixel_symmetric"
        and attributes.get("keep_aspect_ratio_policy", b"stretch") == b"stretch"
    )
    if not by_tvm:
        # TVM's steps of integers are whole, and it rounds no position up.
        picks = form.mode == "nearest" and not np.array_equal(scales, scales.round())
        is_image = len(shape) == 4 and out[:2] == shape[:2] and form.mode != "cubic"
        if opset < 11 and (picks or is_image):
            return (
                _old_nearest(data, out, scales, emit)
                if picks
                else _old_image(data, form.mode, out, scales)
            )
        outside = float(attributes.get("extrapolation_value", 0.0))
        return resized_by_axis(data, form, out, ratios.tolist(), region, outside, emit)
    # Here TVM divides by the size of the result less 1, so that an axis of size 1 is doubled.
    divides = coordinates in ("align_corners", "tf_crop_and_resize")

    def image(value: relax.Expr, axes: Sequence[int | None]) -> relax.Expr:
        """A resize of the last two axes of an image, which are these axes of the data.

        None is an axis that is not resized.
        """
        moving, doubled = list(axes), []
        for at, axis in enumerate(axes, start=2):
            if coordinates == "align_corners" and axis is not None and out[axis] == 1:
                # The only result along such an axis is the first position.
                value = emit(_first(value, at))
                moving[at - 2] = None
            if divides and moving[at - 2] is None and _extent(value)[at] == 1:
                value = emit(relax.op.concat([value, value], at))
                doubled.append(at)
        region, by, to = (
            _of_image(item, kind, moving, value)
            for item, kind in zip(known, ("region", "scales", "sizes"), strict=True)
        )
        made = emit(_with_scales(convert([value, region, by, to]), by))
        for axis in doubled:
            made = emit(_first(made, axis))
        return made

    def reshaped(value: relax.Expr, to: Sequence[int]) -> relax.Expr:
        return emit(relax.op.reshape(value, list(to)))

    batch, channels, *inner = shape
    if len(inner) == 2:
        return image(data, [2, 3])
    if len(inner) == 1:
        rows = image(reshaped(data, [batch, channels, 1, *inner]), [None, 2])
        return relax.op.reshape(rows, [batch, channels, out[2]])
    depth, height, width = inner
    planes = image(reshaped(data, [batch, channels, depth, height * width]), [2, None])
    planes = image(reshaped(planes, [batch, channels * out[2], height, width]), [3, 4])
    return relax.op.reshape(planes, [batch, channels, *out[2:]])


def _of_all_axes(
    known: Sequence[np.ndarray], shape: Sequence[int], attributes: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Region, scales and sizes of all axes; an aspect ratio that is kept becomes a scale."""
    region, scales, sizes = known
    rank = len(shape)
    axes = [axis % rank for axis in attributes.get("axes") or range(rank)]
    policy = attributes.get("keep_aspect_ratio_policy", b"stretch").decode()
    if sizes.size and policy != "stretch":
        ratios = [size / shape[axis] for size, axis in zip(sizes.tolist(), axes, strict=True)]
        scale = min(ratios) if policy == "not_larger" else max(ratios)
        rounded = [int(np.floor(scale * shape[axis] + 0.5)) for axis in axes]
        # The scale itself counts, and the sizes that it is rounded to.
        scales, sizes = np.full(len(axes), scale), np.array(rounded, "int64")

    def wide(values: np.ndarray, others: np.ndarray) -> np.ndarray:
        made = others.astype(values.dtype if values.dtype.kind == "i" else "float64")
        made[axes] = values
        return made

    scales = wide(scales, np.ones(rank)) if scales.size else scales
    sizes = wide(sizes, np.array(shape, "int64")) if sizes.size else sizes
    if region.size:
        starts, ends = np.split(region, 2)
        region = np.concatenate([wide(starts, np.zeros(rank)), wide(ends, np.ones(rank))])
    return region, scales, sizes


def _old_image(data: relax.Expr, mode: str, out: Sequence[int], scales: np.ndarray) -> relax.Expr:
    """A resize of images as opset 10 and older ones have it."""
    return relax.op.image.resize2d(
        data,
        relax.ShapeExpr(list(out[2:])),
        roi=[0.0, 0.0, *scales[2:].tolist()],
        layout="NCHW",
        method="nearest_neighbor" if mode == "nearest" else mode,
        coordinate_transformation_mode="asymmetric",
        rounding_method="floor",
    )


def _old_nearest(
    data: relax.Expr, out: Sequence[int], scales: np.ndarray, emit: Emit
) -> relax.Expr:
    """Elements as opset 10 picks them: where an axis becomes shorter, positions are rounded up."""
    for axis, (size, scale) in enumerate(zip(_extent(data), scales.tolist(), strict=True)):
        if scale != 1:
            # In float32, as onnxruntime has it: 7 / 0.7 is 10 there.
            at = np.arange(out[axis], dtype="float32") / np.float32(scale)
            whole = np.minimum(np.ceil(at) if scale < 1 else np.floor(at), size - 1)
            data = emit(relax.op.take(data, relax.const(whole.astype("int64")), axis))
    return data


def resized_by_axis(
    data: relax.Expr,
    form: Form,
    out: Sequence[int],
    scales: Sequence[float],
    region: np.ndarray,
    outside: float,
    emit: Emit,
) -> relax.Expr:
    """A resize of any axes: along each a sum of a few elements by weights, a product with a matrix
    where results are sums of many (antialias), and a choice of elements for nearest.

    Raises UnsupportedFormError for an interpolation of integers.
    """
    shape, dtype = _extent(data), str(data.ty.dtype)
    rank = len(shape)
    if form.mode != "nearest" and not dtype.startswith("float"):
        raise UnsupportedFormError(f"it interpolates {dtype}")
    crops = form.coordinates == "tf_crop_and_resize"
    ends = region if region.size else np.array([0.0] * rank + [1.0] * rank)
    beyond = np.zeros([1] * rank, bool)
    for axis in range(rank):
        cropped = crops and (ends[axis], ends[rank + axis]) != (0, 1)
        if out[axis] == shape[axis] and not cropped:
            continue
        weights, missing = matrix(
            form, shape[axis], out[axis], scales[axis], (ends[axis], ends[rank + axis])
        )
        beyond = beyond | missing.reshape([-1 if i == axis else 1 for i in range(rank)])
        if form.mode == "nearest":
            indices = relax.const(weights.argmax(1), "int64")
            data = emit(relax.op.take(data, indices, axis))
            continue
        if 0 < (most := int(np.count_nonzero(weights, axis=1).max())) <= _FEW:
            data = _of_neighbours(data, weights, most, axis, emit)
            continue
        before, after = (
            math.prod(part) for part in (_extent(data)[:axis], _extent(data)[axis + 1 :])
        )
        flat = emit(relax.op.reshape(data, [before, shape[axis], after]))
        if after == 1:
            rows = emit(relax.op.reshape(data, [before, shape[axis]]))
            made = emit(relax.op.matmul(rows, relax.const(weights.T.copy(), dtype)))
        else:
            made = emit(relax.op.matmul(relax.const(weights, dtype), flat))
        to = [*_extent(data)[:axis], out[axis], *_extent(data)[axis + 1 :]]
        data = emit(relax.op.reshape(made, to))
    if beyond.any():
        mask = relax.const(beyond, "bool")
        data = emit(relax.op.where(mask, relax.const(outside, dtype), data))
    return data


# Elements that a result of linear or cubic interpolation is a sum of, at most.
_FEW = 4


def _of_neighbours(
    data: relax.Expr, weights: np.ndarray, most: int, axis: int, emit: Emit
) -> relax.Expr:
    """Sums of `most` (> 0) elements along `axis` by rows of `weights`, [results, elements]. Others,
    whose weight is 0, are not read: 0 times a NaN among them would be NaN."""
    rank, dtype = len(_extent(data)), str(data.ty.dtype)
    places = np.zeros((len(weights), most), "int64")
    factors = np.zeros((len(weights), most))
    for row, line in enumerate(weights):
        (own,) = np.nonzero(line)
        if own.size == 0:
            continue  # beyond the edge: another value takes its place
        # Rows with fewer read their first again: of eighths to halves all sums are exact.
        again = most - len(own)
        shares = 0.5 ** np.minimum(again, np.arange(again + 1, 0, -1)) if again else np.ones(1)
        places[row] = [*own[:1].repeat(again), *own]
        factors[row] = [*(line[own[0]] * shares), *line[own[1:]]]
    shape = [-1 if at == axis else 1 for at in range(rank)]

    def part(column: int) -> relax.Expr:
        picked = emit(relax.op.take(data, relax.const(places[:, column], "int64"), axis))
        factor = relax.const(factors[:, column].reshape(shape), dtype)
        return emit(relax.op.multiply(picked, factor))

    made = part(0)
    for column in range(1, most):
        made = emit(relax.op.add(made, part(column)))
    return made


def _first(value: relax.Expr, axis: int) -> relax.Expr:
    """The first position of an axis."""
    return relax.op.strided_slice(value, [axis], [0], [1])


def _numbers(item: relax.Expr | None) -> np.ndarray | None:
    """What a constant holds, nothing if it is left out; None if it is no constant."""
    if item is None:
        return np.zeros(0)
    return item.value.numpy() if isinstance(item, tvm.ir.GenericConst) else None


def _static_shape(data: relax.Expr | None) -> list[int] | None:
    if data is None or not isinstance(data.ty, relax.TensorType) or data.ty.shape is None:
        return None
    extents = list(data.ty.shape)
    known = all(isinstance(extent, tvm.tirx.IntImm) for extent in extents)
    return [int(extent) for extent in extents] if known else None


def _extent(value: relax.Expr) -> list[int]:
    return [int(extent) for extent in value.ty.shape]


def _of_image(
    numbers: np.ndarray, kind: str, axes: Sequence[int | None], value: relax.Expr
) -> relax.Expr | None:
    """A Resize's region, scales or sizes for some axes of its data as those of an image.

    The first two axes of the image are not resized.
    """
    if not numbers.size:
        return None
    if kind == "sizes":
        sizes = _extent(value)
        for i, axis in enumerate(axes):
            if axis is not None:
                sizes[2 + i] = int(numbers[axis])
        return relax.const(np.array(sizes, "int64"))

    def picked(values: np.ndarray, stays: float) -> list[float]:
        return [stays, stays, *(stays if axis is None else values[axis] for axis in axes)]

    if kind == "scales":
        return relax.const(np.array(picked(numbers, 1), "float32"))
    starts, ends = np.split(numbers, 2)
    return relax.const(np.array([*picked(starts, 0), *picked(ends, 1)], "float32"))


def _with_scales(made: relax.Expr, scales: relax.Expr | None) -> relax.Expr:
    """A resize of images with the scales that the model gives for rows and columns.

    TVM's operator has no place for them, and computes with the ratios of the sizes, which differ
    where a scale gives no whole size. They are put into the region's end, which is read with
    tf_crop_and_resize only; 0 where the model gives none.
    """
    is_image = isinstance(made, relax.Call) and made.op == tvm.ir.Op.get("relax.image.resize2d")
    if not is_image or made.attrs.coordinate_transformation_mode == "tf_crop_and_resize":
        return made
    attrs = made.attrs
    given = scales.value.numpy() if isinstance(scales, tvm.ir.GenericConst) else np.zeros(0)
    end = given[2:].tolist() if given.size == 4 else [0.0, 0.0]
    sizes = np.multiply([int(size) for size in list(made.args[0].ty.shape)[2:]], end)
    whole = np.allclose(sizes, np.round(sizes), atol=1e-3)
    if not whole and str(made.args[0].ty.dtype) != "float32":
        raise UnsupportedFormError(
            "its scales do not give a whole size, which is supported for float32 only"
        )
    return relax.op.image.resize2d(
        *made.args,
        roi=[0.0, 0.0, *end],
        layout=attrs.layout,
        method=attrs.method,
        coordinate_transformation_mode=attrs.coordinate_transformation_mode,
        rounding_method=attrs.rounding_method,
        cubic_alpha=attrs.cubic_alpha,
        cubic_exclude=attrs.cubic_exclude,
        extrapolation_value=attrs.extrapolation_value,
    )

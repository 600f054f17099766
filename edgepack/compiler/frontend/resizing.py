"""ONNX's Resize as resizes of images [batch, channels, rows, columns], which have kernels.

A sequence is a row of an image whose other rows are the other channels. A volume is first resized
from plane to plane, with each plane as one long row, and then plane by plane: interpolation is
separable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import relax

from edgepack.compiler.errors import UnsupportedFormError

# Converts the inputs of a Resize, the way TVM does.
Convert = Callable[[list[relax.Expr | None]], relax.Expr]
# Makes a variable of an expression.
Emit = Callable[[relax.Expr], relax.Expr]


def resized(
    inputs: Sequence[relax.Expr | None], coordinates: str, convert: Convert, emit: Emit
) -> relax.Expr:
    """The result of a Resize of opset 11 or later: data, region, scales and sizes.

    `coordinates` is its coordinate_transformation_mode. Raises UnsupportedFormError
    for scales that give no whole size if the data is not float32.
    """
    data, *given = (*inputs, None, None, None)[:4]
    numbers = [_numbers(item) for item in given]
    known = [item for item in numbers if item is not None]
    shape = _static_shape(data)
    if shape is None or len(known) < len(numbers) or len(shape) not in (3, 4, 5):
        return _with_scales(convert(list(inputs)), given[1])
    scales, sizes = known[1:]
    out = sizes.tolist() if sizes.size else np.floor(scales * np.array(shape)).astype(int).tolist()
    if out == shape:
        # Whatever the scales are: onnxruntime does the same.
        return data
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
        rows = image(reshaped(data, [batch, 1, channels, *inner]), [None, 2])
        return relax.op.reshape(rows, [batch, channels, out[2]])
    depth, height, width = inner
    planes = image(reshaped(data, [batch, channels, depth, height * width]), [2, None])
    planes = image(reshaped(planes, [batch, channels * out[2], height, width]), [3, 4])
    return relax.op.reshape(planes, [batch, channels, *out[2:]])


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
        raise UnsupportedFormError("scales that give no whole size, of what is not float32")
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

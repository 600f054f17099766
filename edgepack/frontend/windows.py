"""Operators that look through windows whose places are known, or that the data move."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax, te, tirx

from edgepack.frontend.arithmetic import dtype_of, shape_of
from edgepack.frontend.conversions import Node
from edgepack.frontend.errors import UnsupportedFormError
from edgepack.frontend.positions import Reach
from edgepack.kernels.whole.sampling import DeformedColumns, Sampling


def space_to_depth(node: Node) -> relax.Expr | None:
    """SpaceToDepth with the channels in front of the blocks (CRD); None for the other order."""
    if node.attributes.get("mode", b"DCR") != b"CRD":
        return None
    (data,) = node.inputs
    batch, channels, height, width = shape_of(data)
    size = node.attributes["blocksize"]
    parts = [batch, channels, height // size, size, width // size, size]
    blocks = node.emit(relax.op.reshape(data, parts))
    turned = node.emit(relax.op.permute_dims(blocks, [0, 1, 3, 5, 2, 4]))
    return relax.op.reshape(turned, [batch, channels * size * size, height // size, width // size])


def local_response_normalization(node: Node) -> relax.Expr | None:
    """LRN of an even number of channels, of float64, or not of images; None for other images."""
    (data,) = node.inputs
    shape, kind = shape_of(data), dtype_of(data)
    size = node.attributes["size"]
    if len(shape) in (3, 4) and size % 2 and kind == "float32":
        return None
    pixels = math.prod(shape[2:])
    square = node.emit(relax.op.multiply(data, data))
    column = node.emit(relax.op.reshape(square, [shape[0], 1, shape[1], pixels]))
    # The mean of some channels, those beside the tensor taken for zeros.
    pads = [(size - 1) // 2, 0, size // 2, 0]
    mean = relax.op.nn.avg_pool2d(
        column, [size, 1], [1, 1], pads, count_include_pad=True, layout="NCHW"
    )
    mean = node.emit(relax.op.reshape(node.emit(mean), shape))

    def number(name: str, default: float) -> relax.Expr:
        return relax.const(node.attributes.get(name, default), kind)

    scaled = node.emit(relax.op.multiply(mean, number("alpha", 1e-4)))
    scaled = node.emit(relax.op.add(scaled, number("bias", 1.0)))
    return relax.op.divide(data, node.emit(relax.op.power(scaled, number("beta", 0.75))))


def grid_sample(node: Node) -> relax.Expr | None:
    """GridSample where TVM would divide by the distance of the first pixel from the last, 0.

    On an axis of one pixel every place is that pixel: it gets a second one, and the first is taken.
    The second is what is beside it: a zero, or the same, which counts 0 times.
    Raises UnsupportedFormError for volumes in mode cubic.
    """
    data, grid = node.inputs
    attributes = node.attributes
    if data.ty.ndim == 5 and attributes.get("mode", b"linear") in (b"cubic", b"bicubic"):
        raise UnsupportedFormError("it interpolates a volume in mode cubic")
    if data.ty.ndim not in (4, 5):
        raise UnsupportedFormError(f"its image has {data.ty.ndim - 2} axes")
    if not dtype_of(data).startswith("float"):
        raise UnsupportedFormError(f"it samples {dtype_of(data)}")
    if dtype_of(grid) != dtype_of(data):
        grid = node.emit(relax.op.astype(grid, dtype_of(data)))
    single = [axis for axis in range(2, data.ty.ndim) if shape_of(data)[axis] == 1]
    if single and attributes.get("align_corners", 0):
        # The last axis of the image is the first number of a place.
        is_single = np.array([axis in single for axis in range(data.ty.ndim - 1, 1, -1)])
        first = relax.const(-1.0, dtype_of(data))
        grid = node.emit(relax.op.where(relax.const(is_single), first, grid))
        beside_is_zero = attributes.get("padding_mode", b"zeros") == b"zeros"
        for axis in single:
            beside = node.emit(relax.op.zeros_like(data)) if beside_is_zero else data
            data = node.emit(relax.op.concat([data, beside], axis))
    sampled = _sampled(node, data, grid)
    return node.by_tvm([data, grid]) if sampled is None else sampled


# Channels from which on they are worth lying side by side.
_FEWEST_TO_TURN = 4


def _sampled(node: Node, data: relax.Expr, grid: relax.Expr) -> relax.Expr | None:
    """An image sampled by a kernel of ours; None for what that does not do, and where no CPU is
    known: a GPU takes TVM's."""
    batch, channels, *size = shape_of(data)
    mode = {b"bilinear": "linear", b"linear": "linear", b"nearest": "nearest"}.get(
        node.attributes.get("mode", b"linear")
    )
    padding = node.attributes.get("padding_mode", b"zeros")
    if len(size) != 2 or mode is None or dtype_of(data) != "float32" or not node.cpu.isa:
        return None
    # TVM's reflection reads a pixel 0 times that is not beside the place: NaN, if it is infinite.
    if channels < _FEWEST_TO_TURN and padding != b"reflection":
        return None
    _, rows, columns, _ = shape_of(grid)
    layer = Sampling(
        batch=batch,
        channels=channels,
        height=size[0],
        width=size[1],
        places=rows * columns,
        mode=mode,
        padding=padding.decode(),
        align_corners=bool(node.attributes.get("align_corners", 0)),
        cpu=node.cpu,
    )
    if not math.prod((*shape_of(data), *layer.result)):
        return None
    turned = node.emit(relax.op.permute_dims(data, [0, 2, 3, 1]))
    places = node.emit(relax.op.reshape(grid, [batch, rows * columns, 2]))
    (made,) = node.call("sample", layer.function(), [turned, places], [(layer.result, "float32")])
    turned = node.emit(relax.op.permute_dims(made, [0, 2, 1]))
    return relax.op.reshape(turned, [batch, channels, rows, columns])


# Of a window with more points the largest of a row's are looked for first, then of a column's.
_WHOLE_POINTS = 25


def pad_by_numbers(node: Node) -> None:
    """Give a pooling by size (SAME) its borders as numbers, for TVM counts other results.

    Raises UnsupportedFormError where windows leave elements between them, and ONNX's borders are
    negative: which elements are seen differs among those that run it.
    """
    attributes, size = node.attributes, shape_of(node.inputs[0])[2:]
    automatic = attributes.get("auto_pad", b"NOTSET")
    if automatic not in (b"SAME_UPPER", b"SAME_LOWER"):
        return
    kernel, rank = attributes["kernel_shape"], len(size)
    strides, dilations = (attributes.get(n) or [1] * rank for n in ("strides", "dilations"))
    starts, ends = [], []
    for extent, count, stride, dilation in zip(size, kernel, strides, dilations, strict=True):
        total = (-(-extent // stride) - 1) * stride + (count - 1) * dilation + 1 - extent
        is_lower = automatic == b"SAME_LOWER"
        if total + is_lower < -1:
            raise UnsupportedFormError("its windows leave elements between them, padded by size")
        first = (max(total, 0) + is_lower) // 2
        starts.append(first)
        ends.append(max(total, 0) - first)
    attributes.update(auto_pad=b"NOTSET", pads=(*starts, *ends), ceil_mode=0)


def pool(node: Node) -> None:
    """AveragePool, by TVM, with borders as numbers."""
    pad_by_numbers(node)


def lp_pool(node: Node) -> None:
    """LpPool, by TVM, which takes averages times the window's size: so no window may reach beyond
    the border, where an average is of fewer elements."""
    pad_by_numbers(node)
    attributes, size = node.attributes, shape_of(node.inputs[0])[2:]
    if not attributes.get("ceil_mode", 0):
        return
    rank = len(size)
    strides, dilations = (attributes.get(n) or [1] * rank for n in ("strides", "dilations"))
    pads = list(attributes.get("pads") or [0] * (2 * rank))
    for axis, (extent, count, stride, dilation) in enumerate(
        zip(size, attributes["kernel_shape"], strides, dilations, strict=True)
    ):
        covered = (count - 1) * dilation + 1
        results = -(-(extent + pads[axis] + pads[rank + axis] - covered) // stride) + 1
        # A window that starts behind the image is none.
        results -= (results - 1) * stride >= extent + pads[axis]
        pads[rank + axis] = (results - 1) * stride + covered - extent - pads[axis]
    attributes.update(auto_pad=b"NOTSET", pads=tuple(pads), ceil_mode=0)


def max_pool(node: Node) -> relax.Expr | None:
    """MaxPool with the places of its results, or with large windows; None for others.

    The places are numbers in the whole tensor; with storage_order 1 its images are by columns.
    """
    pad_by_numbers(node)
    attributes = node.attributes
    (data,) = node.inputs
    if node.outputs < 2:
        return _by_axes(node, data)
    shape = shape_of(data)
    taps, inside = _windows(shape[2:], attributes)
    out, images, pixels = taps.shape[:-1], math.prod(shape[:2]), math.prod(shape[2:])
    flat = node.emit(relax.op.reshape(data, [images, pixels]))
    count = math.prod(out)
    taken = node.emit(relax.op.take(flat, relax.const(taps.reshape(count, -1), "int64"), 1))
    dtype = dtype_of(data)
    least = -np.inf if dtype.startswith("float") else np.iinfo(dtype).min
    mask = relax.const(inside.reshape(1, count, -1), "bool")
    seen = node.emit(relax.op.where(mask, taken, relax.const(least, dtype)))
    values = node.emit(relax.op.max(seen, -1))
    which = node.emit(relax.op.argmax(seen, -1))
    places = taps
    if attributes.get("storage_order", 0):
        order = np.arange(pixels).reshape(shape[2:][::-1]).transpose().reshape(-1)
        places = order[taps]
    starts = np.arange(count)[None] * taps.shape[-1]
    at = node.emit(relax.op.add(which, relax.const(starts, "int64")))
    table = relax.const(places.reshape(-1), "int64")
    place = node.emit(relax.op.take(table, at, 0))
    images_at = relax.const(np.arange(images)[:, None] * pixels, "int64")
    place = node.emit(relax.op.add(place, images_at))
    made = [*shape[:2], *out]
    return relax.Tuple([node.emit(relax.op.reshape(item, made)) for item in (values, place)])


def _by_axes(node: Node, data: relax.Expr) -> relax.Expr | None:
    """A large window of an image as one along the rows and one along the columns."""
    attributes = node.attributes
    kernel = attributes["kernel_shape"]
    usual = (
        len(kernel) == 2
        and attributes.get("auto_pad", b"NOTSET") in (b"NOTSET", b"VALID")
        and not attributes.get("ceil_mode", 0)
        and set(attributes.get("dilations") or [1]) == {1}
    )
    if not usual or min(kernel) == 1 or math.prod(kernel) <= _WHOLE_POINTS:
        return None
    (down, across) = attributes.get("strides") or [1, 1]
    top, left, bottom, right = attributes.get("pads") or [0] * 4
    rows = relax.op.nn.max_pool2d(data, [1, kernel[1]], [1, across], [0, left, 0, right])
    return relax.op.nn.max_pool2d(node.emit(rows), [kernel[0], 1], [down, 1], [top, 0, bottom, 0])


def _windows(size: Sequence[int], attributes: dict[str, object]) -> tuple[np.ndarray, np.ndarray]:
    """Which pixels each result of a pooling sees [*out, taps], and which of them there are."""
    rank = len(size)
    kernel = list(attributes["kernel_shape"])  # type: ignore[call-overload]
    strides = list(attributes.get("strides") or [1] * rank)  # type: ignore[call-overload]
    dilations = list(attributes.get("dilations") or [1] * rank)  # type: ignore[call-overload]
    covered = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    automatic = attributes.get("auto_pad", b"NOTSET")
    pads = list(attributes.get("pads") or [0] * (2 * rank))  # type: ignore[call-overload]
    if automatic in (b"SAME_UPPER", b"SAME_LOWER"):
        total = [
            max(0, (-(-n // s) - 1) * s + c - n)
            for n, s, c in zip(size, strides, covered, strict=True)
        ]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = [*small, *large] if automatic == b"SAME_UPPER" else [*large, *small]
    places: list[np.ndarray] = []
    for axis in range(rank):
        room = size[axis] + pads[axis] + pads[rank + axis] - covered[axis]
        count = room // strides[axis] + 1
        if attributes.get("ceil_mode", 0):
            count = -(-room // strides[axis]) + 1
            # A window that starts behind the image sees nothing.
            count -= (count - 1) * strides[axis] >= size[axis] + pads[axis]
        starts = np.arange(count) * strides[axis] - pads[axis]
        places.append(starts[:, None] + np.arange(kernel[axis]) * dilations[axis])
    index, inside = np.zeros([1] * (2 * rank), "int64"), np.ones([1] * (2 * rank), bool)
    for axis, place in enumerate(places):
        wide = [1] * (2 * rank)
        wide[axis], wide[rank + axis] = place.shape
        good = (place >= 0) & (place < size[axis])
        index = index * size[axis] + np.clip(place, 0, size[axis] - 1).reshape(wide)
        inside = inside & good.reshape(wide)
    out = [place.shape[0] for place in places]
    return index.reshape(*out, -1), inside.reshape(*out, -1)


def max_unpool(node: Node) -> relax.Expr:
    """MaxUnpool: zeros but for what a MaxPool kept, where it was.

    Places are numbers in the tensor that the pooling had; an output_shape puts zeros behind it.
    Raises UnsupportedFormError for its output_shape is not a constant.
    """
    data, places, wanted = (*node.inputs, None)[:3]
    shape, rank = shape_of(data), data.ty.ndim - 2
    kernel = node.attributes["kernel_shape"]
    strides = node.attributes.get("strides") or [1] * rank
    pads = node.attributes.get("pads") or [0] * (2 * rank)
    inner = [
        (shape[2 + i] - 1) * strides[i] - pads[i] - pads[rank + i] + kernel[i] for i in range(rank)
    ]
    whole = [*shape[:2], *inner]
    size = math.prod(shape)
    zeros = relax.op.full([math.prod(whole)], relax.const(0, dtype_of(data)), dtype_of(data))
    places = node.positions(places, [Reach(0, math.prod(whole) - 1)], "I")
    flat = [node.emit(relax.op.reshape(item, [size])) for item in (places, data)]
    made = node.emit(relax.op.scatter_elements(node.emit(zeros), *flat, axis=0))
    made = node.emit(relax.op.reshape(made, whole))
    if wanted is None:
        return made
    if not isinstance(wanted, tvm.ir.GenericConst):
        raise UnsupportedFormError("its output_shape is not a constant")
    to = wanted.value.numpy().tolist()
    widths = [item for old, new in zip(whole, to, strict=True) for item in (0, new - old)]
    return relax.op.nn.pad(made, widths, "constant", 0.0)


def col2im(node: Node) -> relax.Expr:
    """Col2Im: the sum of the blocks that lie on each pixel.

    Raises UnsupportedFormError for its sizes are not constants.
    """
    data, image, block = node.inputs
    if not all(isinstance(item, tvm.ir.GenericConst) for item in (image, block)):
        raise UnsupportedFormError("its sizes are not constants")
    size, kernel = (item.value.numpy().tolist() for item in (image, block))
    rank, taps = len(size), math.prod(kernel)
    attributes = {**node.attributes, "kernel_shape": kernel}
    seen, inside = _windows(size, attributes)
    batch, channels, columns = shape_of(data)
    pixels = math.prod(size)
    # For each pixel the elements of (taps, columns) that lie on it; one more, which is zero, else.
    lists: list[list[int]] = [[] for _ in range(pixels)]
    flat, there = seen.reshape(columns, taps), inside.reshape(columns, taps)
    for column, tap in itertools.product(range(columns), range(taps)):
        if there[column, tap]:
            lists[flat[column, tap]].append(tap * columns + column)
    most = max(map(len, lists))
    table = np.array([item + [taps * columns] * (most - len(item)) for item in lists])
    channels //= taps
    rows = node.emit(relax.op.reshape(data, [batch * channels, taps * columns]))
    padded = node.emit(relax.op.nn.pad(rows, [0, 0, 0, 1], "constant", 0.0))
    taken = node.emit(relax.op.take(padded, relax.const(table, "int64"), 1))
    made = node.emit(relax.op.sum(taken, -1))
    assert rank == len(size)
    return relax.op.reshape(made, [batch, channels, *size])


def _bilinear(
    image: te.Tensor, n: tirx.Expr, c: tirx.Expr, y: tirx.Expr, x: tirx.Expr
) -> tirx.Expr:
    """A value between four pixels, beyond the border of which there are zeros."""
    height, width = (int(extent) for extent in image.shape[2:])
    top, left = (tirx.Cast("int32", tirx.floor(item)) for item in (y, x))
    dtype = str(image.dtype)
    down, right = y - tirx.Cast(dtype, top), x - tirx.Cast(dtype, left)

    def pixel(row: tirx.Expr, column: tirx.Expr, weight: tirx.Expr) -> tirx.Expr:
        there = tirx.all(row >= 0, row < height, column >= 0, column < width)
        zero = tirx.const(0, dtype)
        return tirx.if_then_else(there, image(n, c, row, column), zero) * weight

    one = tirx.const(1, dtype)
    return (
        pixel(top, left, (one - down) * (one - right))
        + pixel(top, left + 1, (one - down) * right)
        + pixel(top + 1, left, down * (one - right))
        + pixel(top + 1, left + 1, down * right)
    )


def deform_conv(node: Node) -> relax.Expr:
    """DeformConv: the pixels that moved taps see, times the weights as a product of matrices."""
    data, weight, offset, bias, mask = (*node.inputs, None, None)[:5]
    if data.ty.ndim != 4:
        raise UnsupportedFormError("its input is not a batch of images (4 axes)")
    attributes = node.attributes
    batch, channels, _, _ = shape_of(data)
    out_channels, per_group, rows, columns = shape_of(weight)
    _, _, height, width = shape_of(offset)
    strides = attributes.get("strides") or [1, 1]
    pads = attributes.get("pads") or [0, 0, 0, 0]
    dilations = attributes.get("dilations") or [1, 1]
    groups, moved = attributes.get("group", 1), attributes.get("offset_group", 1)
    dtype, taps = dtype_of(data), rows * columns
    layer = DeformedColumns(
        batch=batch,
        channels=channels,
        height=shape_of(data)[2],
        width=shape_of(data)[3],
        results=(height, width),
        kernel=(rows, columns),
        strides=(strides[0], strides[1]),
        pads=(pads[0], pads[1]),
        dilations=(dilations[0], dilations[1]),
        groups=groups,
        moved=moved,
        masked=mask is not None,
        cpu=node.cpu,
    )
    if dtype == "float32" and layer.run >= _FEWEST_TO_TURN and node.cpu.isa:
        return _deformed_rows(node, layer)
    shared = channels // moved
    given = [data, offset, *([] if mask is None else [mask])]

    def columns_of(x: te.Tensor, by: te.Tensor, *factor: te.Tensor) -> te.Tensor:
        def one(
            n: tirx.Expr, c: tirx.Expr, tap: tirx.Expr, i: tirx.Expr, j: tirx.Expr
        ) -> tirx.Expr:
            of = c // shared * taps + tap
            y = i * strides[0] - pads[0] + tap // columns * dilations[0]
            x_at = j * strides[1] - pads[1] + tap % columns * dilations[1]
            y, x_at = (
                tirx.Cast(dtype, place) + by(n, 2 * of + axis, i, j)
                for axis, place in enumerate((y, x_at))
            )
            value = _bilinear(x, n, c, y, x_at)
            return value * factor[0](n, of, i, j) if factor else value

        shape = (batch, channels, taps, height, width)
        return te.compute(shape, one, name="deformed")

    seen = node.compute(columns_of, *given)
    pixels = height * width
    seen = node.emit(relax.op.reshape(seen, [batch, groups, per_group * taps, pixels]))
    matrix = node.emit(
        relax.op.reshape(weight, [1, groups, out_channels // groups, per_group * taps])
    )
    made = node.emit(relax.op.matmul(matrix, seen))
    made = node.emit(relax.op.reshape(made, [batch, out_channels, height, width]))
    if bias is None:
        return made
    return relax.op.add(made, node.emit(relax.op.reshape(bias, [1, out_channels, 1, 1])))


def _deformed_rows(node: Node, layer: DeformedColumns) -> relax.Expr:
    """DeformConv by a kernel of ours: a place's taps side by side, times the weights, in rows."""
    data, weight, offset, bias, mask = (*node.inputs, None, None)[:5]
    batch, groups, places, taps, each = layer.result
    wide = shape_of(weight)[0]
    turned = node.emit(relax.op.permute_dims(data, [0, 2, 3, 1]))
    by = node.emit(relax.op.reshape(offset, [batch, layer.moved, taps, 2, places]))
    given = [turned, by]
    if mask is not None:
        given.append(node.emit(relax.op.reshape(mask, [batch, layer.moved, taps, places])))
    (seen,) = node.call("deform", layer.function(), given, [(layer.result, "float32")])
    seen = node.emit(relax.op.reshape(seen, [batch, groups, places, taps * each]))
    matrix = node.emit(relax.op.reshape(weight, [groups, wide // groups, each, taps]))
    matrix = node.emit(relax.op.permute_dims(matrix, [0, 3, 2, 1]))
    matrix = node.emit(relax.op.reshape(matrix, [groups, taps * each, wide // groups]))
    if groups == 1:
        matrix = node.emit(relax.op.squeeze(matrix, [0]))
        seen = node.emit(relax.op.reshape(seen, [batch * places, taps * each]))
    made = node.emit(relax.op.matmul(seen, matrix))
    if bias is not None:
        shape = [wide] if groups == 1 else [groups, 1, wide // groups]
        made = node.emit(relax.op.add(made, node.emit(relax.op.reshape(bias, shape))))
    made = node.emit(relax.op.reshape(made, [batch, groups, places, wide // groups]))
    made = node.emit(relax.op.permute_dims(made, [0, 1, 3, 2]))
    return relax.op.reshape(made, [batch, wide, *layer.results])


def max_roi_pool(node: Node) -> relax.Expr:
    """MaxRoiPool, of boxes that begin with the number of their image, as a float."""
    data, boxes = node.inputs
    number, box = (
        node.emit(relax.op.strided_slice(boxes, [1], [first], [last]))
        for first, last in ((0, 1), (1, 5))
    )
    # As a float, for what is no number becomes one on some CPUs.
    number = node.positions(number, [Reach(0, shape_of(data)[0] - 1)], "rois")
    return node.by_tvm([data, node.emit(relax.op.concat([number, box], 1))])


# Boxes are within this many times the image, of those that take as long as they are large; and what
# is no number, or none to compute with, is beyond this.
_MOST_BESIDE, _FARTHEST = 4, 2**62


def roi_align(node: Node) -> relax.Expr:
    """RoiAlign, by TVM where the number of samples depends on the boxes."""
    data, boxes, of = node.inputs
    attributes = node.attributes
    of = node.positions(of, [Reach(0, shape_of(data)[0] - 1)], "batch_indices")
    samples = attributes.get("sampling_ratio", 0)
    farthest = _FARTHEST
    if samples <= 0:
        # Of a box there are as many samples as it has pixels, beside the image, too.
        scale = attributes.get("spatial_scale", 1.0)
        farthest = math.ceil(_MOST_BESIDE * max(shape_of(data)[2:]) / scale)
    boxes = node.positions(boxes, [Reach(-farthest, farthest)], "rois")
    if samples <= 0:
        return node.by_tvm([data, boxes, of])
    half = attributes.get(
        "coordinate_transformation_mode",
        b"half_pixel" if node.opset >= 16 else b"output_half_pixel",
    )
    scale = attributes.get("spatial_scale", 1.0)
    out = (attributes.get("output_height", 1), attributes.get("output_width", 1))
    is_max = attributes.get("mode", b"avg") == b"max"
    count, (_, channels, *size) = shape_of(boxes)[0], shape_of(data)
    dtype = dtype_of(data)
    # Channels side by side are read as vectors, and have their places in common.
    turned = channels >= _FEWEST_TO_TURN and bool(node.cpu.isa)
    if turned:
        data = node.emit(relax.op.permute_dims(data, [0, 2, 3, 1]))

    def number(value: float) -> tirx.Expr:
        return tirx.const(value, dtype)

    def sampled(x: te.Tensor, box: te.Tensor, image: te.Tensor) -> te.Tensor:
        def place(r: tirx.Expr, axis: int, cell: tirx.Expr, sample: tirx.Expr) -> tirx.Expr:
            # A box is x, y, x, y.
            start, end = (
                box(r, 1 - axis + 2 * i) * number(scale)
                - number(0.5 if half == b"half_pixel" else 0.0)
                for i in range(2)
            )
            length = end - start
            if half != b"half_pixel":
                length = tirx.max(length, number(1))
            step = length / number(out[axis])
            inner = (tirx.Cast(dtype, sample) + number(0.5)) / number(samples)
            return start + (tirx.Cast(dtype, cell) + inner) * step

        def value(
            r: tirx.Expr, c: tirx.Expr, i: tirx.Expr, j: tirx.Expr, k: tirx.Expr
        ) -> tirx.Expr:
            y = place(r, 0, i, k // samples)
            x_at = place(r, 1, j, k % samples)
            n = tirx.Cast("int32", image(r))
            inside = tirx.all(
                y >= number(-1),
                y <= number(size[0]),
                x_at >= number(-1),
                x_at <= number(size[1]),
            )
            return tirx.if_then_else(inside, near(n, c, y, x_at), number(0))

        def near(n: tirx.Expr, c: tirx.Expr, y: tirx.Expr, x_at: tirx.Expr) -> tirx.Expr:
            # Within a pixel of the border counts as on it.
            y, x_at = (
                tirx.min(tirx.max(at, number(0)), number(extent - 1))
                for at, extent in ((y, size[0]), (x_at, size[1]))
            )
            low = [tirx.Cast("int32", tirx.floor(at)) for at in (y, x_at)]
            high = [tirx.min(at + 1, extent - 1) for at, extent in zip(low, size, strict=True)]
            rest = [at - tirx.Cast(dtype, first) for at, first in zip((y, x_at), low, strict=True)]

            def pixel(row: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
                return x(n, row, column, c) if turned else x(n, c, row, column)

            terms = [
                pixel((low, high)[a][0], (low, high)[b][1])
                * (rest[0] if a else number(1) - rest[0])
                * (rest[1] if b else number(1) - rest[1])
                for a in range(2)
                for b in range(2)
            ]
            if is_max:
                # ONNX's maximum is that of the four weighted pixels.
                return tirx.max(tirx.max(terms[0], terms[1]), tirx.max(terms[2], terms[3]))
            return terms[0] + terms[1] + terms[2] + terms[3]

        if turned:
            shape = (count, *out, samples * samples, channels)
            return te.compute(shape, lambda r, i, j, k, c: value(r, c, i, j, k), name="samples")
        shape = (count, channels, *out, samples * samples)
        return te.compute(shape, value, name="samples")

    made = node.compute(sampled, data, boxes, of)
    axis = 3 if turned else 4
    made = node.emit(relax.op.max(made, axis) if is_max else relax.op.mean(made, axis))
    return relax.op.permute_dims(made, [0, 3, 1, 2]) if turned else made

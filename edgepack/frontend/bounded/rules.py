"""What each operator makes of a tensor that is not all in use, by the operator's name.

A rule writes the node for the largest size and says which axes of its result are not all in use.
What would mix what is in use with what is not is masked, or refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgepack.frontend.bounded.graph import INT64, Graph, Kind
from edgepack.frontend.bounded.size import Dim, Size
from edgepack.frontend.bounded.sources import top_k
from edgepack.frontend.bounded.values import product
from edgepack.frontend.errors import UnsupportedFormError
from edgepack.frontend.forms import attribute
from edgepack.frontend.selection import DOMAIN

Rule = Callable[[Graph, onnx.NodeProto], None]


def mixes(name: str, axis: int) -> UnsupportedFormError:
    """Why an operator cannot have a tensor."""
    return UnsupportedFormError(
        f"it mixes the elements of '{name}' along axis {axis}, whose number depends on the data"
    )


# ---------------------------------------------------------------- element by element


def elementwise(graph: Graph, node: onnx.NodeProto) -> None:
    """With broadcasting."""
    names = [name for name in node.input if name]
    rank = max(map(graph.rank, names))
    axes = _merged(graph, node, names, rank, rank)
    if node.op_type in ("Cast", "Identity"):
        _keep_clean(graph, node)
    graph.put(node, axes)


def _merged(
    graph: Graph, node: onnx.NodeProto, names: Sequence[str], rank: int, upto: int
) -> dict[int, Dim]:
    """The first `upto` of `rank` axes of tensors that are broadcast; makes their rooms equal."""
    made: dict[int, Dim] = {}
    for axis in range(upto):
        sizes: dict[str, Dim] = {}
        for name in names:
            own = axis - rank + graph.rank(name)
            if own >= 0 and graph.sizes(name)[own] != 1:
                sizes[name] = graph.sizes(name)[own]
        if not any(isinstance(size, Size) for size in sizes.values()):
            continue
        if len(set(sizes.values())) > 1:
            listed = " and ".join(f"'{name}'" for name in sizes)
            raise UnsupportedFormError(
                f"{listed} have sizes along axis {axis} that need not be equal"
            )
        room = min(graph.shape(name)[axis - rank + graph.rank(name)] for name in sizes)
        for position, name in enumerate(node.input):
            if name in sizes:
                own = axis - rank + graph.rank(name)
                node.input[position] = graph.cut(name, own, room)
        names = [name for name in node.input if name]
        made[axis] = next(iter(sizes.values()))
    return made


def _keep_clean(graph: Graph, node: onnx.NodeProto) -> None:
    if node.input[0] in graph.clean:
        graph.clean.add(node.output[0])


# ---------------------------------------------------------------- moved around


def transpose(graph: Graph, node: onnx.NodeProto) -> None:
    data = node.input[0]
    perm = attribute(node, "perm") or list(range(graph.rank(data)))[::-1]
    axes = graph.axes.get(data, {})
    _keep_clean(graph, node)
    graph.put(node, {to: axes[axis] for to, axis in enumerate(perm) if axis in axes})


def squeeze(graph: Graph, node: onnx.NodeProto) -> None:
    data = node.input[0]
    rank, axes = graph.rank(data), graph.axes.get(data, {})
    given = graph.fixed(node, 1, "axes")
    if not given and axes:
        raise UnsupportedFormError(
            f"without axes, and whether axis {min(axes)} is 1 long depends on the data"
        )
    gone = {axis % rank for axis in given} if given else set()
    for axis in gone & axes.keys():
        raise UnsupportedFormError(
            f"axis {axis} of '{data}' is as long as the data says, and only an axis that is 1 "
            "long can be taken away"
        )
    gone = gone or {axis for axis, n in enumerate(graph.shape(data)) if n == 1}
    left = [axis for axis in range(rank) if axis not in gone]
    sizes = {to: axes[axis] for to, axis in enumerate(left) if axis in axes}
    made = graph.reshape(data, [graph.shape(data)[axis] for axis in left], out=node.output[0])
    graph.set_axes(made, sizes)


def unsqueeze(graph: Graph, node: onnx.NodeProto) -> None:
    data = node.input[0]
    given = graph.fixed(node, 1, "axes") or []
    rank = graph.rank(data) + len(given)
    new = {axis % rank for axis in given}
    old = [axis for axis in range(rank) if axis not in new]
    shape = [1] * rank
    for axis, extent in zip(old, graph.shape(data), strict=True):
        shape[axis] = extent
    made = graph.reshape(data, shape, out=node.output[0])
    graph.set_axes(made, {old[axis]: size for axis, size in graph.axes.get(data, {}).items()})


def reshape(graph: Graph, node: onnx.NodeProto) -> None:
    wanted = graph.numbers(node, 1, "shape") or []
    copies = not attribute(node, "allowzero", 0)
    sizes = graph.sizes(node.input[0])
    shape = [
        sizes[axis] if copies and size == 0 and axis < len(sizes) else size
        for axis, size in enumerate(wanted)
    ]
    reshape_to_true_sizes(graph, node, shape)


def flatten(graph: Graph, node: onnx.NodeProto) -> None:
    sizes = graph.sizes(node.input[0])
    axis = attribute(node, "axis", 1)
    axis += len(sizes) if axis < 0 else 0
    try:
        reshape_to_true_sizes(graph, node, [product(sizes[:axis]), product(sizes[axis:])])
    except TypeError:
        raise UnsupportedFormError("two sizes that depend on the data become one") from None


def reshape_to_true_sizes(graph: Graph, node: onnx.NodeProto, shape: Sequence[Dim]) -> None:
    """A reshape to true sizes, of which one may be -1.

    The axes of input and result are matched from the left: where as much lies before an axis in
    both, its elements stay the first ones.
    """
    data, out = node.input[0], list(shape)
    sizes, room = graph.sizes(data), graph.shape(data)
    try:
        if -1 in out:
            at = out.index(-1)
            out[at] = _quotient(
                _without(sizes, out), [n for n in out if n != -1 and n not in sizes]
            )
        axes = _matched(sizes, room, out)
    except TypeError:
        raise UnsupportedFormError(
            f"'{data}' cannot be reshaped from {_text(sizes)} to {_text(shape)} without mixing "
            "elements that are in use with elements that are not"
        ) from None
    rooms = [extent for extent, _ in axes]
    made = graph.reshape(data, rooms, out=node.output[0])
    graph.set_axes(made, {axis: size for axis, (_, size) in enumerate(axes)})


def _without(sizes: Sequence[Dim], out: Sequence[Dim]) -> list[Dim]:
    """The sizes less those that the result has, too."""
    left = list(sizes)
    for size in out:
        if size != -1 and size in left:
            left.remove(size)
    return left


def _quotient(sizes: Sequence[Dim], by: Sequence[Dim]) -> Dim:
    total, divisor = product(sizes), product(by)
    if isinstance(divisor, Size):
        raise TypeError("a division by a count")
    if not isinstance(total, Size):
        return total // divisor
    made = total.divided(divisor)
    if made is None:
        raise TypeError("a division with a rest")
    return made


def _matched(
    sizes: Sequence[Dim], room: Sequence[int], out: Sequence[Dim]
) -> list[tuple[int, Dim]]:
    """Room and size of each axis of the result. Raises TypeError where there is no match."""
    made: list[tuple[int, Dim]] = []
    i = 0
    todo = list(out)
    while todo or i < len(sizes):
        # The shortest runs of axes on both sides that hold as many elements.
        mine, theirs = list(sizes[i : i + 1]), todo[:1]
        while (left := product(mine)) != (right := product(theirs)):
            grows = _is_less(left, right)
            if grows and i + len(mine) < len(sizes):
                mine.append(sizes[i + len(mine)])
            elif len(theirs) < len(todo):
                theirs.append(todo[len(theirs)])
            elif i + len(mine) < len(sizes):
                mine.append(sizes[i + len(mine)])
            else:
                raise TypeError("they do not match")
        made += _run(mine, room[i : i + len(mine)], theirs)
        i += len(mine)
        todo = todo[len(theirs) :]
    return made


def _is_less(one: Dim, other: Dim) -> bool:
    """Which of two products lacks factors."""
    if isinstance(one, Size) and isinstance(other, Size):
        return sum(n for _, n in one.terms) + one.constant < (
            sum(n for _, n in other.terms) + other.constant
        )
    if isinstance(other, Size):
        return True
    return not isinstance(one, Size) and one < other


def _run(mine: Sequence[Dim], room: Sequence[int], theirs: Sequence[Dim]) -> list[tuple[int, Dim]]:
    """The axes of a run: at most one of them is open, with as much before it in both."""
    open_ = [axis for axis, size in enumerate(mine) if isinstance(size, Size)]
    wanted = [axis for axis, size in enumerate(theirs) if isinstance(size, Size)]
    if not open_ and not wanted:
        return [(int(size), size) for size in theirs]  # type: ignore[arg-type]
    if len(open_) != 1 or len(wanted) != 1:
        raise TypeError("several counts")
    (a,), (b,) = open_, wanted
    if product(mine[:a]) != product(theirs[:b]):
        raise TypeError("other elements are before it")
    total, after = room[a] * math.prod(room[a + 1 :]), product(theirs[b + 1 :])
    if total % after:  # type: ignore[operator]
        raise TypeError("not a whole number")
    extent = total // after  # type: ignore[operator]
    return [(extent, size) if isinstance(size, Size) else (int(size), size) for size in theirs]


def _text(sizes: Sequence[Dim]) -> str:
    return "[" + ", ".join("?" if isinstance(size, Size) else str(size) for size in sizes) + "]"


def expand(graph: Graph, node: onnx.NodeProto) -> None:
    data = node.input[0]
    wanted = graph.numbers(node, 1, "shape") or []
    sizes = graph.sizes(data)
    rank = max(len(wanted), len(sizes))
    shape, axes = [], dict[int, Dim]()
    for axis in range(rank):
        mine: Dim = sizes[axis - rank] if axis - rank >= -len(sizes) else 1
        theirs: Dim = wanted[axis - rank] if axis - rank >= -len(wanted) else 1
        if mine not in (1, theirs) and theirs != 1:
            raise UnsupportedFormError(f"the sizes along axis {axis} need not be equal")
        size = theirs if mine == 1 else mine
        room = graph.shape(data)[axis - rank] if mine != 1 else graph.most(theirs)
        shape.append(max(room, 1) if isinstance(size, Size) else room)
        axes[axis] = size
    copy = graph.with_inputs(node, input1=graph.integers(shape))
    graph.put(copy, axes)


def constant_of_shape(graph: Graph, node: onnx.NodeProto) -> None:
    sizes = graph.numbers(node, 0, "shape") or []
    shape = [max(graph.most(size), 1) if isinstance(size, Size) else int(size) for size in sizes]
    value = attribute(node, "value")
    fill = np.zeros(1, "float32") if value is None else onnx.numpy_helper.to_array(value)
    made = graph.constant(np.full(shape, fill.reshape(-1)[0]), node.output[0])
    graph.set_axes(made, dict(enumerate(sizes)))


def range_(graph: Graph, node: onnx.NodeProto) -> None:
    start, end, step = (graph.numbers(node, i, "bounds") for i in range(3))
    if start is None or end is None or step is None or step[0] != 1:
        raise UnsupportedFormError("its number of elements depends on the data")
    size = end[0] - start[0]
    if isinstance(start[0], Size) or graph.least(size) < 0:
        raise UnsupportedFormError("its number of elements depends on the data")
    dtype = helper.tensor_dtype_to_np_dtype(graph.kind(node.input[0]).element)
    room = max(graph.most(size), 1)
    made = graph.constant(np.arange(start[0], start[0] + room).astype(dtype), node.output[0])
    graph.set_axes(made, {0: size})


def slice_(graph: Graph, node: onnx.NodeProto) -> None:
    data = node.input[0]
    starts = graph.numbers(node, 1, "starts") or []
    ends = graph.numbers(node, 2, "ends") or []
    rank = graph.rank(data)
    chosen = graph.fixed(node, 3, "axes") or list(range(len(starts)))
    steps = graph.fixed(node, 4, "steps") or [1] * len(starts)
    open_ = graph.axes.get(data, {})
    sizes: dict[int, Dim] = dict(open_)
    parts: list[tuple[int, int, int, int]] = []
    for axis_, start, end, step in zip(chosen, starts, ends, steps, strict=True):
        axis = axis_ % rank
        room = graph.shape(data)[axis]
        if axis not in open_ and not isinstance(start, Size) and not isinstance(end, Size):
            parts.append((axis, start, end, step))
            continue
        if step != 1:
            raise UnsupportedFormError(
                f"it has a step along axis {axis}, whose size depends on the data"
            )
        size: Dim = open_.get(axis, room)
        # A start behind the end leaves nothing, wherever it is.
        first, last = start, _clamped(graph, end, size)
        if isinstance(first, Size) or first < -(2**31):
            first = _clamped(graph, first, size)
        if isinstance(first, Size) or not 0 <= first < room:
            raise UnsupportedFormError(f"its start along axis {axis} depends on the data")
        left = graph.smaller(last - first, 0, larger=True)
        until = min(first + max(graph.most(left), 1), room)
        parts.append((axis, min(first, room - 1), until, 1))
        sizes[axis] = left
    made = data
    for number, (axis, start, end, step) in enumerate(parts):
        out = node.output[0] if number == len(parts) - 1 else graph.name("slice")
        made = _one_slice(graph, made, axis, (start, end, step), out)
    if data in graph.clean:
        graph.clean.add(made)
    graph.set_axes(made, sizes)


def _one_slice(graph: Graph, name: str, axis: int, bounds: tuple[int, int, int], out: str) -> str:
    start, end, step = bounds
    extent = len(
        range(graph.shape(name)[axis])[slice(start, None if end < -(2**31) else end, step)]
    )
    if step == 1:
        first, last, _ = slice(start, end).indices(graph.shape(name)[axis])
        return graph.slice(name, axis, first, max(last, first), out=out)
    old = graph.kind(name)
    shape = tuple(extent if at == axis else n for at, n in enumerate(old.shape))
    numbers = [graph.integers([number]) for number in (start, end, axis, step)]
    return graph.emit("Slice", [name, *numbers], Kind(old.element, shape), out=out)


def _clamped(graph: Graph, bound: Dim, size: Dim) -> Dim:
    """A bound of a slice, from the start, within 0 and the size."""
    if not isinstance(bound, Size) and bound < 0:
        if bound < -(2**31):
            return 0
        bound = size + bound
    elif not isinstance(bound, Size) and bound >= 2**31 - 1:
        return size
    return graph.smaller(graph.smaller(bound, size), 0, larger=True)


def pad(graph: Graph, node: onnx.NodeProto) -> None:
    data = node.input[0]
    rank, sizes = graph.rank(data), graph.sizes(data)
    pads = graph.numbers(node, 1, "pads") or []
    chosen = graph.fixed(node, 3, "axes") if len(node.input) > 3 else None
    axes = [axis % rank for axis in chosen] if chosen else list(range(rank))
    before, after = pads[: len(axes)], pads[len(axes) :]
    widths: list[tuple[Dim, Dim]] = [(0, 0)] * rank
    for axis, pair in zip(axes, zip(before, after, strict=True), strict=True):
        widths[axis] = pair
    value = _pad_value(graph, node)
    made, out, plain = data, dict[int, Dim](graph.axes.get(data, {})), [[0, 0] for _ in range(rank)]
    for axis, (start, end) in enumerate(widths):
        open_ = isinstance(sizes[axis], Size) or isinstance(end, Size)
        if isinstance(start, Size):
            raise UnsupportedFormError("the padding that it puts in front depends on the data")
        if not open_:
            plain[axis] = [start, int(end)]  # type: ignore[arg-type]
            continue
        if (start, end) == (0, 0):
            continue
        if attribute(node, "mode", b"constant") != b"constant" or start < 0 or value is None:
            raise mixes(data, axis)
        # What is behind becomes padding, of which there then may be too much or too little.
        made = graph.filled(made, value, [axis])
        size = sizes[axis] + start + end
        have, want = graph.shape(data)[axis] + start, max(graph.most(size), 1)
        plain[axis] = [start, want - have]
        out[axis] = size
    for axis, (_, end) in enumerate(plain):
        if end < 0:
            axes_of = graph.axes.get(made, {})
            made = graph.slice(made, axis, 0, graph.shape(made)[axis] + end)
            graph.set_axes(made, axes_of)
            plain[axis][1] = 0
    flat = [pair[0] for pair in plain] + [pair[1] for pair in plain]
    copy = helper.make_node("Pad", [made], node.output, name=node.name)
    copy.attribute.extend(item for item in node.attribute if item.name != "pads")
    if graph.opset < 11:
        copy.attribute.append(helper.make_attribute("pads", flat))
    else:
        copy.input.append(graph.integers(flat))
        if len(node.input) > 2 and node.input[2]:
            copy.input.append(node.input[2])
    graph.put(copy, out)


def _pad_value(graph: Graph, node: onnx.NodeProto) -> object:
    if graph.opset < 11:
        return attribute(node, "value", 0.0)
    if len(node.input) < 3 or not node.input[2]:
        return 0
    tensor = graph.tensors.get(node.input[2])
    return None if tensor is None else onnx.numpy_helper.to_array(tensor).reshape(-1)[0]


def concat(graph: Graph, node: onnx.NodeProto) -> None:
    names = list(node.input)
    rank = graph.rank(names[0])
    axis = attribute(node, "axis") % rank
    others = _equal_axes(graph, node, axis)
    names = list(node.input)
    sizes = [graph.sizes(name)[axis] for name in names]
    if not any(isinstance(size, Size) for size in sizes[:-1]):
        graph.put(node, {**others, axis: sum(sizes, start=0)})
        return
    # What is in use of each moves up to that of the one before.
    kind, rooms = graph.kind(names[0]), [graph.shape(name)[axis] for name in names]
    shape = list(kind.shape)
    shape[axis] = sum(rooms)
    whole = graph.emit("Concat", names, Kind(kind.element, tuple(shape)), axis=axis)
    starts = np.cumsum([0, *rooms[:-1]], dtype="int64")
    places = graph.emit_once(
        "BoundedPlaces",
        [graph.constant(starts), graph.vector(sizes)],
        Kind(INT64, (shape[axis],)),
        domain=DOMAIN,
        room=shape[axis],
    )
    made = graph.emit("Gather", [whole, places], graph.kind(whole), out=node.output[0], axis=axis)
    graph.set_axes(made, {**others, axis: sum(sizes, start=0)})


def _equal_axes(graph: Graph, node: onnx.NodeProto, but: int) -> dict[int, Dim]:
    """The axes of tensors of one shape but for an axis; makes their rooms equal."""
    made: dict[int, Dim] = {}
    for axis in range(graph.rank(node.input[0])):
        sizes = {graph.sizes(name)[axis] for name in node.input}
        if axis == but or not any(isinstance(size, Size) for size in sizes):
            continue
        if len(sizes) > 1:
            raise UnsupportedFormError(
                f"its inputs have sizes along axis {axis} that need not be equal"
            )
        room = min(graph.shape(name)[axis] for name in node.input)
        for position, name in enumerate(node.input):
            node.input[position] = graph.cut(name, axis, room)
        made[axis] = sizes.pop()
    return made


def split(graph: Graph, node: onnx.NodeProto) -> None:
    data = node.input[0]
    axes = graph.axes.get(data, {})
    axis = attribute(node, "axis", 0) % graph.rank(data)
    if axis in axes:
        raise UnsupportedFormError(f"its parts along axis {axis} depend on the data")
    graph.put(node, *([axes] * len(node.output)))


def tile(graph: Graph, node: onnx.NodeProto) -> None:
    data = node.input[0]
    axes = graph.axes.get(data, {})
    for axis, times in enumerate(graph.fixed(node, 1, "repeats") or []):
        if axis in axes and times != 1:
            raise UnsupportedFormError(f"it repeats axis {axis}, whose size depends on the data")
    graph.put(node, axes)


# ---------------------------------------------------------------- picked by indices


def gather(graph: Graph, node: onnx.NodeProto) -> None:
    data, indices = node.input
    axis = attribute(node, "axis", 0) % graph.rank(data)
    axes, picked = graph.axes.get(data, {}), graph.axes.get(indices, {})
    rank = graph.rank(indices)
    copy = graph.with_inputs(node, input1=_safe(graph, indices, axes.get(axis)))
    made = {at if at < axis else at + rank - 1: size for at, size in axes.items() if at != axis}
    made.update({axis + at: size for at, size in picked.items()})
    if data in graph.clean and not picked:
        graph.clean.add(node.output[0])
    graph.put(copy, made)


def _safe(graph: Graph, indices: str, size: Dim | None) -> str:
    """Indices that are valid where they mean nothing; and that count from the true end."""
    known = graph.tensors.get(indices)
    counts_back = known is None or bool((onnx.numpy_helper.to_array(known) < 0).any())
    if size is not None and counts_back and indices not in graph.clean:
        kind = graph.kind(indices)
        dtype = helper.tensor_dtype_to_np_dtype(kind.element)
        end = graph.scalar(size)
        if kind.element != INT64:
            end = graph.emit("Cast", [end], Kind(kind.element, ()), to=kind.element)
        zero = graph.constant(np.zeros((), dtype))
        below = graph.emit("Less", [indices, zero], Kind(TensorProto.BOOL, kind.shape))
        moved = graph.emit("Add", [indices, end], kind)
        axes = graph.axes.get(indices, {})
        indices = graph.emit("Where", [below, moved, indices], kind)
        # With nothing in use the last one would be before the first.
        indices = graph.emit("Max", [indices, zero], kind)
        graph.set_axes(indices, axes)
    return graph.zeroed(indices)


def _from_true_ends(graph: Graph, indices: str, sizes: Sequence[Dim | None]) -> str:
    """Indices along several axes, of which those of `sizes` count back from their true ends."""
    if all(size is None for size in sizes):
        return indices
    kind, axes = graph.kind(indices), graph.axes.get(indices, {})
    ends = [
        graph.constant(np.zeros(1, "int64"))
        if size is None
        else graph.reshape(graph.scalar(size), [1])
        for size in sizes
    ]
    end = graph.emit("Concat", ends, Kind(INT64, (len(ends),)), axis=0)
    zero = graph.constant(np.zeros((), "int64"))
    below = graph.emit("Less", [indices, zero], Kind(TensorProto.BOOL, kind.shape))
    moved = graph.emit("Add", [indices, end], kind)
    made = graph.emit("Where", [below, moved, indices], kind)
    graph.set_axes(made, axes)
    return made


def gather_nd(graph: Graph, node: onnx.NodeProto) -> None:
    data, indices = node.input
    batch = attribute(node, "batch_dims", 0)
    axes, picked = graph.axes.get(data, {}), graph.axes.get(indices, {})
    last, depth = graph.rank(indices) - 1, graph.shape(indices)[-1]
    if last in picked:
        raise mixes(indices, last)
    if any(axis < batch for axis in axes) or any(axis < batch for axis in picked):
        raise UnsupportedFormError("the size of its batches depends on the data")
    indices = _from_true_ends(graph, indices, [axes.get(batch + at) for at in range(depth)])
    copy = graph.with_inputs(node, input1=graph.zeroed(indices))
    made: dict[int, Dim] = dict(picked)
    made.update({last + at - batch - depth: n for at, n in axes.items() if at >= batch + depth})
    graph.put(copy, made)


def gather_elements(graph: Graph, node: onnx.NodeProto) -> None:
    data, indices = node.input
    axis = attribute(node, "axis", 0) % graph.rank(data)
    picked = graph.axes.get(indices, {})
    size = graph.axes.get(data, {}).get(axis)
    graph.put(graph.with_inputs(node, input1=_safe(graph, indices, size)), picked)


def scatter_nd(graph: Graph, node: onnx.NodeProto) -> None:
    """Updates that mean nothing go to one more slice, which is cut off."""
    data, indices, updates = node.input
    axes, picked = graph.axes.get(data, {}), graph.axes.get(indices, {})
    last = graph.rank(indices) - 1
    if last in picked or set(graph.axes.get(updates, {})) - set(picked):
        raise UnsupportedFormError("the number of its updates depends on the data")
    for axis in axes:
        if axis >= graph.shape(indices)[-1]:
            raise UnsupportedFormError(
                f"the sizes of its data and of its updates along axis {axis} need not be equal"
            )
    depth = graph.shape(indices)[-1]
    indices = _from_true_ends(graph, indices, [axes.get(at) for at in range(depth)])
    if not picked:
        graph.put(graph.with_inputs(node, input1=indices), axes)
        return
    kind, given = graph.kind(data), graph.kind(indices)
    rows = kind.shape[0]
    slot = np.zeros((1, *kind.shape[1:]), helper.tensor_dtype_to_np_dtype(kind.element))
    wide = Kind(kind.element, (rows + 1, *kind.shape[1:]))
    longer = graph.emit("Concat", [data, graph.constant(slot)], wide, axis=0)
    beyond = graph.constant(np.array([rows] + [0] * (given.shape[-1] - 1), "int64"))
    place = indices
    below = graph.emit(
        "Less",
        [place, graph.constant(np.zeros((), "int64"))],
        Kind(TensorProto.BOOL, given.shape),
    )
    ends = graph.constant(np.array(kind.shape[: given.shape[-1]], "int64"))
    # From the end of the tensor, not of the longer one.
    place = graph.emit("Where", [below, graph.emit("Add", [place, ends], given), place], given)
    for axis in picked:
        mask = graph.mask(indices, axis)
        place = graph.emit("Where", [mask, place, beyond], given)
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    made = graph.emit("ScatterND", [longer, place, updates], wide, **attributes)
    made = graph.slice(made, 0, 0, rows, out=node.output[0])
    graph.set_axes(made, axes)


def scatter_elements(graph: Graph, node: onnx.NodeProto) -> None:
    """As for `scatter_nd`."""
    data, indices, updates = node.input
    axes, picked = graph.axes.get(data, {}), graph.axes.get(indices, {})
    if graph.axes.get(updates, {}) != picked:
        raise UnsupportedFormError(
            "the numbers of its indices and of its updates need not be equal"
        )
    for axis in picked:
        room = min(graph.shape(indices)[axis], graph.shape(updates)[axis])
        indices, updates = (graph.cut(name, axis, room) for name in (indices, updates))
    axis = attribute(node, "axis", 0) % graph.rank(data)
    kind, given = graph.kind(data), graph.kind(indices)
    index_type = helper.tensor_dtype_to_np_dtype(given.element)
    rows = kind.shape[axis]
    slot = list(kind.shape)
    slot[axis] = 1
    wide = Kind(
        kind.element, tuple(rows + 1 if at == axis else n for at, n in enumerate(kind.shape))
    )
    zeros = np.zeros(slot, helper.tensor_dtype_to_np_dtype(kind.element))
    longer = graph.emit("Concat", [data, graph.constant(zeros)], wide, axis=axis)
    # From the end of what is in use, not of the longer tensor.
    end = graph.scalar(graph.sizes(data)[axis])
    if given.element != INT64:
        end = graph.emit("Cast", [end], Kind(given.element, ()), to=given.element)
    below = graph.emit(
        "Less",
        [indices, graph.constant(np.zeros((), index_type))],
        Kind(TensorProto.BOOL, given.shape),
    )
    place = graph.emit("Where", [below, graph.emit("Add", [indices, end], given), indices], given)
    beyond = graph.constant(np.array(rows, index_type))
    for at in picked:
        place = graph.emit("Where", [graph.mask(indices, at), place, beyond], given)
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    made = graph.emit(node.op_type, [longer, place, updates], wide, **attributes)
    made = graph.slice(made, axis, 0, rows, out=node.output[0])
    graph.set_axes(made, axes)


# ---------------------------------------------------------------- along an axis


# What leaves a reduction as it is.
_NEUTRAL = {
    "ReduceL1": 0,
    "ReduceL2": 0,
    "ReduceMean": 0,
    "ReduceProd": 1,
    "ReduceSum": 0,
    "ReduceSumSquare": 0,
}


def reduction(graph: Graph, node: onnx.NodeProto) -> None:
    data, op_type = node.input[0], node.op_type
    rank, axes = graph.rank(data), graph.axes.get(data, {})
    given = graph.fixed(node, 1, "axes")
    if not given and attribute(node, "noop_with_empty_axes", 0):
        graph.put(node, axes)
        return
    gone = [axis % rank for axis in given] if given else list(range(rank))
    keep = attribute(node, "keepdims", 1)
    left = [axis for axis in range(rank) if keep or axis not in gone]
    made: dict[int, Dim] = {
        to: axes[axis] for to, axis in enumerate(left) if axis in axes and axis not in gone
    }
    mixed = [axis for axis in gone if axis in axes]
    if not mixed:
        graph.put(node, made)
        return
    if op_type == "ReduceMean":
        _mean(graph, node, mixed, gone, made)
        return
    if op_type in ("ReduceMax", "ReduceMin"):
        neutral = graph.lowest(data, largest=op_type == "ReduceMin")
    elif op_type in ("ReduceLogSumExp",):
        neutral = graph.lowest(data)
    elif op_type in _NEUTRAL:
        neutral = _NEUTRAL[op_type]
    else:
        raise mixes(data, mixed[0])
    graph.put(graph.with_inputs(node, input0=graph.filled(data, neutral, mixed)), made)


def _mean(
    graph: Graph,
    node: onnx.NodeProto,
    mixed: Sequence[int],
    gone: Sequence[int],
    made: Mapping[int, Dim],
) -> None:
    """By the sum, over as many as there are."""
    data = node.input[0]
    try:
        total = product([graph.sizes(data)[axis] for axis in gone])
    except TypeError:
        raise mixes(data, mixed[0]) from None
    element, sums = graph.kind(data).element, graph.name("sum")
    filled = graph.filled(data, 0, mixed)
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.op_type, copy.input[0], copy.output[0] = "ReduceSum", filled, sums
    if graph.opset >= 13:
        kept = [item for item in copy.attribute if item.name != "axes"]
        del copy.attribute[:], copy.input[1:]
        copy.attribute.extend(kept)
        copy.input.append(graph.integers(gone))
    graph.put(copy, made)
    number = graph.emit("Cast", [graph.scalar(total)], Kind(element, ()), to=element)
    result = graph.emit("Div", [sums, number], graph.kind(sums), out=node.output[0])
    graph.set_axes(result, made)


def extremum(graph: Graph, node: onnx.NodeProto) -> None:
    """ArgMax and ArgMin."""
    data = node.input[0]
    rank, axes = graph.rank(data), graph.axes.get(data, {})
    axis, keep = attribute(node, "axis", 0) % rank, attribute(node, "keepdims", 1)
    left = [at for at in range(rank) if keep or at != axis]
    made: dict[int, Dim] = {to: axes[at] for to, at in enumerate(left) if at in axes and at != axis}
    if axis in axes:
        if attribute(node, "select_last_index", 0):
            raise mixes(data, axis)
        neutral = graph.lowest(data, largest=node.op_type == "ArgMin")
        data = graph.filled(data, neutral, [axis])
    graph.put(graph.with_inputs(node, input0=data), made)


def softmax(graph: Graph, node: onnx.NodeProto) -> None:
    data = node.input[0]
    rank, axes = graph.rank(data), graph.axes.get(data, {})
    axis = attribute(node, "axis", -1 if graph.opset >= 13 else 1) % rank
    along = [axis] if graph.opset >= 13 else range(axis, rank)
    # The least finite one: with nothing in use the result would be no number.
    least = np.finfo(helper.tensor_dtype_to_np_dtype(graph.kind(data).element)).min
    graph.put(graph.with_inputs(node, input0=graph.filled(data, least, list(along))), axes)


def cumulative(graph: Graph, node: onnx.NodeProto) -> None:
    data = node.input[0]
    filled = graph.filled(data, 0 if node.op_type == "CumSum" else 1)
    graph.put(graph.with_inputs(node, input0=filled), graph.axes.get(data, {}))


def top(graph: Graph, node: onnx.NodeProto) -> None:
    top_k(graph, node)


def mix_axes_from(name: str, default: int) -> Rule:
    """All axes from the one that an attribute says are mixed."""

    def rule(graph: Graph, node: onnx.NodeProto) -> None:
        data = node.input[0]
        axes = graph.axes.get(data, {})
        first = attribute(node, name, default) % graph.rank(data)
        for axis in axes:
            if axis >= first:
                raise mixes(data, axis)
        graph.put(node, *([axes] * len(node.output)))

    return rule


# ---------------------------------------------------------------- with weights


def matmul(graph: Graph, node: onnx.NodeProto) -> None:
    one, other = node.input[:2]
    ranks = graph.rank(one), graph.rank(other)
    axes = graph.axes.get(one, {}), graph.axes.get(other, {})
    for name, rank, own, inner in (
        (one, ranks[0], axes[0], ranks[0] - 1),
        (other, ranks[1], axes[1], max(ranks[1] - 2, 0)),
    ):
        if inner in own:
            raise mixes(name, inner)
        if rank < 2 and own:
            raise mixes(name, 0)
    rank = max(ranks)
    made = _merged(graph, node, list(node.input), rank, rank - 2)
    if ranks[0] >= 2 and ranks[0] - 2 in axes[0]:
        made[rank - 2] = axes[0][ranks[0] - 2]
    if ranks[1] >= 2 and ranks[1] - 1 in axes[1]:
        made[rank - 1 if ranks[0] >= 2 else rank - 2] = axes[1][ranks[1] - 1]
    graph.put(node, made)


def gemm(graph: Graph, node: onnx.NodeProto) -> None:
    one, others = node.input[0], node.input[1:]
    axes = graph.axes.get(one, {})
    rows = 1 if attribute(node, "transA", 0) else 0
    for name in others:
        for axis in graph.axes.get(name, {}):
            raise mixes(name, axis)
    for axis in axes:
        if axis != rows:
            raise mixes(one, axis)
    graph.put(node, {0: axes[rows]} if axes else {})


def by_batch(graph: Graph, node: onnx.NodeProto) -> None:
    """Each image for itself: the batch may be of any size."""
    data = node.input[0]
    axes = graph.axes.get(data, {})
    for position, name in enumerate(node.input):
        for axis in graph.axes.get(name, {}):
            if position or axis:
                raise mixes(name, axis)
        if position and graph.is_open(name):
            value = graph.value(name)
            assert value is not None
            numbers = np.array([graph.most(size) for size in value.flat], "int64")
            node.input[position] = graph.integers(numbers.reshape(value.shape).tolist())
    graph.put(node, *([axes] * len(node.output)))


def roi_align(graph: Graph, node: onnx.NodeProto) -> None:
    data, regions, batches = node.input
    axes, picked = graph.axes.get(data, {}), graph.axes.get(regions, {})
    if axes or set(picked) - {0}:
        raise mixes(data, next(iter(axes), 0))
    if graph.axes.get(batches, {}) not in ({}, picked):
        raise UnsupportedFormError("its numbers of regions and of their batches need not be equal")
    copy = graph.with_inputs(node, input1=graph.zeroed(regions), input2=graph.zeroed(batches))
    graph.put(copy, picked)


def one_hot(graph: Graph, node: onnx.NodeProto) -> None:
    indices = node.input[0]
    rank = graph.rank(indices) + 1
    axis = attribute(node, "axis", -1) % rank
    axes = graph.axes.get(indices, {})
    graph.put(node, {at if at < axis else at + 1: size for at, size in axes.items()})


_ELEMENTWISE = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
    Cast CastLike Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual
    HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod
    Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus
    Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
    """.split()  # noqa: SIM905, of such a length
_BY_BATCH = """
    AveragePool BatchNormalization Conv ConvTranspose DepthToSpace GlobalAveragePool GlobalMaxPool
    GroupNormalization InstanceNormalization LRN LpPool MaxPool Resize SpaceToDepth Upsample
    """.split()  # noqa: SIM905
_REDUCTIONS = [
    f"Reduce{kind}"
    for kind in (
        "L1",
        "L2",
        "LogSum",
        "LogSumExp",
        "Max",
        "Mean",
        "Min",
        "Prod",
        "Sum",
        "SumSquare",
    )
]

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, elementwise),
    **dict.fromkeys(_BY_BATCH, by_batch),
    **dict.fromkeys(_REDUCTIONS, reduction),
    "ArgMax": extremum,
    "ArgMin": extremum,
    "Concat": concat,
    "ConstantOfShape": constant_of_shape,
    "CumProd": cumulative,
    "CumSum": cumulative,
    "Expand": expand,
    "Flatten": flatten,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Gemm": gemm,
    "Hardmax": mix_axes_from("axis", -1),
    "LayerNormalization": mix_axes_from("axis", -1),
    "LogSoftmax": softmax,
    "LpNormalization": mix_axes_from("axis", -1),
    "MatMul": matmul,
    "OneHot": one_hot,
    "Pad": pad,
    "Range": range_,
    "RMSNormalization": mix_axes_from("axis", -1),
    "Reshape": reshape,
    "RoiAlign": roi_align,
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Slice": slice_,
    "Softmax": softmax,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "TopK": top,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
}

"""LSTM, GRU and RNN: a product over many steps for the inputs, and a kernel for the state.

The gates that the inputs make of a step are three or four times as large as what the layer makes of
them. So a long sequence is taken in parts, each with a product of its own: only the gates of one
part are there at once. No bytes move between the parts and the whole.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from tvm import relax

from edgepack.frontend.conversions import Node
from edgepack.frontend.errors import UnsupportedFormError
from edgepack.frontend.positions import Reach
from edgepack.frontend.quantized_operators import dynamic_quantize_linear
from edgepack.frontend.storage import joint, view
from edgepack.kernels.tiles.layout import ALIGNMENT
from edgepack.kernels.whole.recurrent import GATES, Activation, Recurrent, activation

# What the gates of a part take at most, over what the layer reads and writes. But a part has a few
# rows at least: reading weights once for all of them takes less than multiplying by them. It has
# more of so few elements that their product is made in blocks, out of which the gates are unpacked.
_SHARE_OF_GATES = 1 / 16
_LEAST_ROWS = 4
_FEW_ELEMENTS, _LEAST_ROWS_OF_FEW = 8, 16
_BYTES = {"float16": 2, "float32": 4, "float64": 8}

# Activations of one direction where the node names none.
_DEFAULT = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def lstm(node: Node) -> relax.Expr:
    """LSTM with peepholes, lengths, initial states, coupled gates, both directions and layouts."""
    return _layer(node, "LSTM")


def gru(node: Node) -> relax.Expr:
    """GRU, with the reset gate before or after the product."""
    return _layer(node, "GRU")


def rnn(node: Node) -> relax.Expr:
    """The plain recurrent layer."""
    return _layer(node, "RNN")


def dynamic_lstm(node: Node) -> relax.Expr:
    """DynamicQuantizeLSTM: the inputs rounded once, the states before each step.

    The weights become floats again. Raises UnsupportedFormError for inputs that are constants.
    """
    data, weights, recurrence, *rest = (*node.inputs, *[None] * 9)[:12]
    states, scales = rest[:5], rest[5:]
    if (lengths := states[1]) is not None:
        data = _with_zeros_behind(node, data, lengths)
    found = dynamic_quantize_linear(replace(node, inputs=[data]))
    if found is None:
        raise UnsupportedFormError("its input is a constant")
    whole, step, zero = (node.emit(item) for item in found.fields)
    given = [
        _real(node, whole, step, zero),
        *(
            node.emit(relax.op.permute_dims(_real(node, item, scale, point), [0, 2, 1]))
            for item, scale, point in ((weights, *scales[:2]), (recurrence, *scales[2:4]))
        ),
    ]
    return _layer(replace(node, inputs=[*given, *states]), "LSTM", quantised=True)


def _with_zeros_behind(node: Node, data: relax.Expr, lengths: relax.Expr) -> relax.Expr:
    """Zeros for the steps behind the longest sequence, which count in no range."""
    longest = node.emit(relax.op.max(lengths))
    numbers = np.arange(_shape(data)[0]).reshape(-1, 1, 1)
    steps = relax.const(numbers, str(lengths.ty.dtype))
    inside = node.emit(relax.op.less(steps, longest))
    return node.emit(relax.op.where(inside, data, relax.const(0.0, str(data.ty.dtype))))


def _real(node: Node, whole: relax.Expr, scale: relax.Expr, zero: relax.Expr | None) -> relax.Expr:
    """Integers as the floats they stand for; a scale per direction, or per direction and column."""

    def wide(item: relax.Expr) -> relax.Expr:
        item = node.emit(relax.op.astype(item, "float32"))
        if item.ty.ndim == 0:
            return item
        directions, *columns = _shape(item)
        return node.emit(relax.op.reshape(item, [directions, 1, *(columns or [1])]))

    made = node.emit(relax.op.astype(whole, "float32"))
    if zero is not None:
        made = node.emit(relax.op.subtract(made, wide(zero)))
    return node.emit(relax.op.multiply(made, wide(scale)))


def _layer(node: Node, kind: str, *, quantised: bool = False) -> relax.Expr:
    attributes = node.attributes
    data, weights, recurrence, bias, lengths, hidden, cell, peepholes = (*node.inputs, *[None] * 5)[
        :8
    ]
    by_batch = bool(attributes.get("layout", 0))
    if by_batch:
        data, hidden, cell = (
            None if item is None else node.emit(relax.op.permute_dims(item, [1, 0, 2]))
            for item in (data, hidden, cell)
        )
    steps, batch, _ = _shape(data)
    directions, _, size = _shape(recurrence)
    if lengths is not None:
        lengths = node.positions(lengths, [Reach(0, steps)], "sequence_lens")
    dtype = str(data.ty.dtype)
    way = attributes.get("direction", b"forward").decode()

    def zeros(*shape: int) -> relax.Expr:
        return relax.const(np.zeros(shape), dtype)

    def part(item: relax.Expr, direction: int) -> relax.Expr:
        """Of one direction."""
        shape = _shape(item)
        picked = relax.op.strided_slice(item, [0], [direction], [direction + 1])
        return node.emit(relax.op.reshape(node.emit(picked), shape[1:]))

    results: list[list[relax.Expr]] = []
    for direction in range(directions):
        layer = Recurrent(
            kind=kind,
            steps=steps,
            batch=batch,
            size=size,
            dtype=dtype,
            activations=_activations(node, kind, direction, dtype),
            cpu=node.cpu,
            backwards=way == "reverse" or direction == 1,
            clip=float(attributes.get("clip", 0.0)),
            joined=bool(attributes.get("input_forget", 0)),
            reset_after=bool(attributes.get("linear_before_reset", 0)) and kind == "GRU",
            has_lengths=lengths is not None,
            has_peepholes=kind == "LSTM" and peepholes is not None,
            quantised=quantised,
        )
        width = GATES[kind] * size
        turned = node.emit(relax.op.permute_dims(part(weights, direction), [1, 0]))
        turned = _in_units(node, turned, layer)
        given = {
            **_panels(node, part(recurrence, direction), layer),
            "hidden": zeros(batch, size) if hidden is None else part(hidden, direction),
            "cell": zeros(batch, size) if cell is None else part(cell, direction),
            "bias": zeros(size),
            "peepholes": None if peepholes is None else part(peepholes, direction),
            "lengths": lengths,
        }
        if bias is not None:
            ours = part(bias, direction)
            first, second = (
                node.emit(relax.op.strided_slice(ours, [0], [start], [start + width]))
                for start in (0, width)
            )
            if layer.reset_after:
                given["bias"] = node.emit(
                    relax.op.strided_slice(second, [0], [2 * size], [3 * size])
                )
                kept = node.emit(relax.op.strided_slice(second, [0], [0], [2 * size]))
                second = node.emit(relax.op.concat([kept, zeros(size)], 0))
            given["inputs bias"] = _in_units(node, node.emit(relax.op.add(first, second)), layer)
        if layer.reset_after:
            given["bias"] = _in_units(node, given["bias"], layer)
        results.append(_in_parts(node, layer, data, turned, given))
    axes = [2, 1, 1] if by_batch else [1, 0, 0]
    return relax.Tuple(
        [
            _together(node, [made[number] for made in results], axes[number], by_batch)
            for number in range(len(results[0]))
        ]
    )


def _in_parts(
    node: Node,
    layer: Recurrent,
    data: relax.Expr,
    weights: relax.Expr,
    given: Mapping[str, relax.Expr | None],
) -> list[relax.Expr]:
    """What one direction makes of (steps, batch, elements): the sequence, and the last states.

    Each part begins with the states that the one before ended with.
    """
    steps, batch, elements = _shape(data)
    # Beside a GPU the products are in another memory: all of a sequence is sent at once.
    parts = _parts(layer, elements) if node.alone else [(0, steps)]
    sequences = []
    now = dict(given)
    for first, behind in reversed(parts) if layer.backwards else parts:
        of = replace(layer, steps=behind - first)
        cut = _cut(node, data, first, behind)
        gates = node.emit(relax.op.matmul(cut, weights))
        if "inputs bias" in given:
            gates = node.emit(relax.op.add(gates, given["inputs bias"]))
        now["gates"] = node.emit(relax.op.reshape(gates, [of.steps, batch, of.width]))
        sequence, *states, _ = node.call(
            of.kind.lower(),
            of.function(),
            [now[name] for name in of.inputs()],
            list(of.results().values()),
        )
        sequences.append(sequence)
        now.update(zip(("hidden", "cell"), states, strict=False))
    if layer.backwards:
        sequences.reverse()
    if len(parts) > 1:
        sequences = [node.emit(joint(sequences, [steps, batch, layer.size]))]
    return [*sequences, *states]


def _parts(layer: Recurrent, elements: int) -> list[tuple[int, int]]:
    """The first step of each part, and the one behind it; each part's results begin at an aligned
    byte. All is one part where the sequences have lengths of their own, or the states are rounded
    with those of the step before."""
    steps = layer.steps
    if layer.has_lengths or layer.quantised:
        return [(0, steps)]
    aligned = ALIGNMENT // math.gcd(ALIGNMENT, _BYTES[layer.dtype] * layer.batch * layer.size)
    most = steps * (elements + layer.size) * _SHARE_OF_GATES / layer.width
    rows = _LEAST_ROWS_OF_FEW if elements < _FEW_ELEMENTS else _LEAST_ROWS
    count = max(1, steps // math.ceil(max(most, rows / layer.batch, aligned)))
    # As equal as can be: a short one at the end would have weights in another order.
    starts = [number * steps // count // aligned * aligned for number in range(count)]
    return list(itertools.pairwise([*starts, steps]))


def _cut(node: Node, data: relax.Expr, first: int, behind: int) -> relax.Expr:
    """The rows of some steps; what is not aligned is copied."""
    steps, batch, elements = _shape(data)
    rows, cut = [(behind - first) * batch, elements], data
    if behind - first < steps:
        offset = first * batch * elements * _BYTES[str(data.ty.dtype)]
        if offset % ALIGNMENT:
            cut = node.emit(relax.op.strided_slice(data, [0], [first], [behind]))
        else:
            cut = node.emit(view(data, [behind - first, batch, elements], offset=offset))
    return node.emit(relax.op.reshape(cut, rows))


def _in_units(node: Node, item: relax.Expr, layer: Recurrent) -> relax.Expr:
    """The last axis, of one or more gates, with zeros where a gate's last block has no units."""
    *outer, elements = _shape(item)
    missing = layer.units - layer.size
    if not missing:
        return item
    gates = elements // layer.size
    apart = node.emit(relax.op.reshape(item, [*outer, gates, layer.size]))
    padded = node.emit(relax.op.nn.pad(apart, [0, 0] * (len(outer) + 1) + [0, missing]))
    return node.emit(relax.op.reshape(padded, [*outer, gates * layer.units]))


def _panels(node: Node, recurrence: relax.Expr, layer: Recurrent) -> dict[str, relax.Expr]:
    """The weights of the state (gates * size, size), of each pass in the order of its reading."""
    turned = node.emit(relax.op.permute_dims(recurrence, [1, 0]))
    padded = _in_units(node, turned, layer)
    blocks = layer.units // layer.block
    apart = node.emit(relax.op.reshape(padded, [layer.size, -1, blocks, layer.block]))
    panels = node.emit(relax.op.permute_dims(apart, [2, 0, 1, 3]))
    if len(layer.passes) == 1:
        return {"weights0": panels}
    return {
        f"weights{number}": node.emit(
            relax.op.strided_slice(panels, [2], [gates.start], [gates.stop])
        )
        for number, gates in enumerate(layer.passes)
    }


def _together(node: Node, parts: Sequence[relax.Expr], axis: int, by_batch: bool) -> relax.Expr:
    """One result of all directions along a new axis."""
    if by_batch and len(_shape(parts[0])) == 3:
        parts = [node.emit(relax.op.permute_dims(part, [1, 0, 2])) for part in parts]
    wide = [node.emit(relax.op.expand_dims(part, axis)) for part in parts]
    return wide[0] if len(wide) == 1 else node.emit(relax.op.concat(wide, axis))


def _activations(node: Node, kind: str, direction: int, dtype: str) -> list[Activation]:
    """Those of one direction, each with the parameters that it takes of the node's lists."""
    count = len(_DEFAULT[kind])
    names = [name.decode() for name in node.attributes.get("activations", ())] or _DEFAULT[kind] * 2
    alphas, betas = (
        list(node.attributes.get(f"activation_{which}", ())) for which in ("alpha", "beta")
    )
    made = []
    for number, name in enumerate(names):
        takes = _PARAMETERS.get(name.lower(), 0)
        alpha = alphas.pop(0) if takes > 0 and alphas else None
        beta = betas.pop(0) if takes > 1 and betas else None
        if direction * count <= number < (direction + 1) * count:
            made.append(activation(name, alpha, beta, dtype))
    return made


# How many parameters an activation has.
_PARAMETERS = {
    "affine": 2,
    "elu": 1,
    "hardsigmoid": 2,
    "leakyrelu": 1,
    "scaledtanh": 2,
    "thresholdedrelu": 1,
}


def _shape(item: relax.Expr) -> list[int]:
    return [int(extent) for extent in item.ty.shape]

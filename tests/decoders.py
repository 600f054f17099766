"""Small decoders with caches for keys and values, as exporters of transformers write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto

from tests.onnx_models import Builder

_INT64 = TensorProto.INT64


def _elements(b: Builder, past: str, new: str, shape: list[int]) -> str:
    """As torch's index_copy becomes it: ScatterElements with the position for each element."""
    index = b.op("Expand", "position", b.const([*shape[:2], 1, shape[3]], "int64"))
    return b.op("ScatterElements", past, index, new, axis=2)


def _rows(b: Builder, past: str, new: str, shape: list[int]) -> str:
    """Rows of all heads by ScatterND."""
    heads = b.const(np.arange(shape[1]).reshape(1, -1, 1, 1), "int64")
    whole = b.const([1, shape[1], 1, 1], "int64")
    zeros = b.op("Mul", heads, b.const(0, "int64"))
    index = b.op("Concat", zeros, heads, b.op("Expand", "position", whole), axis=3)
    return b.op("ScatterND", past, index, new)


def _between(b: Builder, past: str, new: str, shape: list[int]) -> str:
    """As torch.onnx writes `past[:, :, position] = new`: the axis of the positions comes first."""
    del shape
    turned = b.op("Transpose", past, perm=[2, 0, 1, 3])
    index = b.op("Unsqueeze", "position", b.const([-1], "int64"))
    rows = b.op("Transpose", new, perm=[2, 0, 1, 3])
    updated = b.op("ScatterND", turned, index, rows)
    return b.op("Transpose", updated, perm=[1, 2, 0, 3])


def _steps(b: Builder, past: str, new: str, shape: list[int]) -> str:
    """The operator that ONNX made for it."""
    del shape
    return b.op("TensorScatter", past, new, "position", axis=2)


def _chosen(b: Builder, past: str, new: str, shape: list[int]) -> str:
    """A choice for each position, as a mask."""
    places = b.const(np.arange(shape[2]).reshape(1, 1, -1, 1), "int64")
    return b.op("Where", b.op("Equal", places, "position"), new, past)


def _shifted(b: Builder, past: str, new: str, shape: list[int]) -> str:
    """The oldest row goes, the newest comes last."""
    bounds = (b.const([at], "int64") for at in (1, shape[2], 2))
    return b.op("Concat", b.op("Slice", past, *bounds), new, axis=2)


def _longer(b: Builder, past: str, new: str, shape: list[int]) -> str:
    """One row longer than before."""
    del shape
    return b.op("Concat", past, new, axis=2)


UPDATES: Mapping[str, Callable[[Builder, str, str, list[int]], str]] = {
    "elements": _elements,
    "rows": _rows,
    "between": _between,
    "steps": _steps,
    "chosen": _chosen,
    "shifted": _shifted,
    "longer": _longer,
}


def decoder(
    update: str,
    *,
    layers: int = 2,
    heads: int = 2,
    positions: int = 16,
    depth: int = 8,
    names: tuple[str, str] = ("past_key_values.{}.{}", "present.{}.{}"),
) -> onnx.ModelProto:
    """A decoder that takes a token `ids` (1, 1) at `position` (1,), int64, and gives `logits`
    (1, 1, 50); its caches are (1, heads, positions, depth) float32, called as `names` say.

    `update` is one of UPDATES. Those that shift attend to the last rows, the others up to the
    position.
    """
    b = Builder(seed=3)
    width, cache = heads * depth, [1, heads, positions, depth]
    x = b.op("Gather", b.weight(50, width), "ids")
    rolling = update in ("shifted", "longer")
    seen = positions + (update == "longer")
    places = np.arange(seen).reshape(1, 1, 1, -1)
    if rolling:
        least = b.op("Sub", b.const(seen - 1, "int64"), "position")
        hidden = b.op("Less", b.const(places, "int64"), least)
    else:
        hidden = b.op("Greater", b.const(places, "int64"), "position")
    mask = b.op("Where", hidden, b.const(-1e9, "float32"), b.const(0, "float32"))
    inputs: dict[str, list[int]] = {"ids": [1, 1], "position": [1]}
    outputs: dict[str, list[int]] = {"logits": [1, 1, 50]}

    def dense(value: str, ins: int, outs: int) -> str:
        return b.op("Add", b.op("MatMul", value, b.weight(ins, outs)), b.weight(outs))

    for layer in range(layers):
        scale, bias = b.weight(width), b.weight(width)
        norm = b.op("LayerNormalization", x, scale, bias, axis=-1)
        split = b.const([1, 1, heads, depth], "int64")
        q, k, v = (
            b.op("Transpose", b.op("Reshape", dense(norm, width, width), split), perm=[0, 2, 1, 3])
            for _ in range(3)
        )
        caches = []
        for kind, new in (("key", k), ("value", v)):
            past, present = (name.format(layer, kind) for name in names)
            caches.append(UPDATES[update](b, past, new, cache))
            b.op("Identity", caches[-1], outputs=[present])
            inputs[past], outputs[present] = cache, [1, heads, seen, depth]
        scores = b.op("MatMul", q, b.op("Transpose", caches[0], perm=[0, 1, 3, 2]))
        scores = b.op("Add", b.op("Div", scores, b.const(np.sqrt(depth), "float32")), mask)
        attended = b.op("MatMul", b.op("Softmax", scores, axis=-1), caches[1])
        merged = b.op("Transpose", attended, perm=[0, 2, 1, 3])
        merged = b.op("Reshape", merged, b.const([1, 1, width], "int64"))
        x = b.op("Add", x, dense(merged, width, width))
        x = b.op("Add", x, dense(b.op("Relu", dense(x, width, 4 * width)), 4 * width, width))
    b.op("MatMul", x, b.weight(width, 50), outputs=["logits"])
    dtypes = {"ids": _INT64, "position": _INT64}
    opset = 24 if update == "steps" else 17
    proto = b.model(inputs, outputs, dtypes, opset=opset)
    proto.ir_version = 10
    return proto

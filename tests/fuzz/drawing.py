"""How nodes are drawn: for each operator, or family of operators, a function that adds one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.fuzz.sketch import (
    ALL,
    FLOAT8,
    FLOATS,
    FOUR_BITS,
    INTEGERS,
    NUMBERS,
    SIGNED,
    UNSIGNED,
    InvalidNodeError,
    Sketch,
    dtype_of,
)

Draw = Callable[[Sketch], Any]
DRAWS: dict[str, Draw] = {}
# Most tensors of real models are these.
_USUAL = ("float32",) * 6 + ("float64", "float16")


# What most nodes of real models are.
_OFTEN = (
    "unary",
    "unary",
    "unary",
    "binary",
    "binary",
    "binary",
    "norm",
    "conv",
    "reduce",
    "reshape",
)


def _drawn(draw: Draw) -> Draw:
    DRAWS[draw.__name__.strip("_")] = draw
    return draw


def draw_graph(seed: int, nodes: int | None = None, only: str = "") -> Sketch:
    """A graph of some nodes, of an opset of its own; of families with `only` in their names."""
    random = np.random.default_rng(seed)
    sketch = Sketch(
        seed, int(random.integers(7, 29)) if random.random() < 0.6 else int(random.integers(11, 22))
    )
    sketch.odd = sketch.chance(0.3)
    wanted = nodes or int(random.choice([1, 1, 2, 3, 4, 6, 9]))
    families = [name for name in (*DRAWS, *_OFTEN) if only in name]
    if sketch.chance(0.5):  # some graphs are of one type
        dtype = sketch.one_of(*NUMBERS) if sketch.chance(0.5) else "float32"
        sketch.input(sketch.numbers(dtype, sketch.shape(sketch.size(1, 4))))
    for _ in range(wanted * 12):
        if len(sketch.nodes) >= wanted:
            break
        try:
            DRAWS[sketch.one_of(*families)](sketch)
        except (InvalidNodeError, ValueError, ZeroDivisionError):
            continue
    return sketch


def _axis(s: Sketch, rank: int) -> int:
    axis = s.size(0, rank - 1)
    return axis - rank if s.chance(0.4) else axis


def _rank(s: Sketch, name: str) -> int:
    return s.values[name].ndim


def _broadcast_to(s: Sketch, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts against another, in one of the ways that models have."""
    kind = s.size(0, 4)
    if kind == 0:
        return ()
    if kind == 1:
        return (1,)
    if kind == 2 or not shape:
        return shape
    if kind == 3:
        return shape[s.size(0, len(shape) - 1) :]
    return tuple(1 if s.chance(0.5) else size for size in shape)


# ---------------------------------------------------------------- element by element

_UNARY: dict[str, tuple[int, tuple[str, ...]]] = {
    **dict.fromkeys(("Abs", "Neg", "Sign"), (9, NUMBERS)),
    **dict.fromkeys(
        (
            *("Relu", "Sigmoid", "Tanh", "Exp", "Sqrt", "Floor", "Ceil", "Reciprocal", "Softplus"),
            *(
                "Softsign",
                "Elu",
                "Selu",
                "LeakyRelu",
                "HardSigmoid",
                "Log",
                "Sin",
                "Cos",
                "Identity",
            ),
        ),
        (7, FLOATS),
    ),
    **dict.fromkeys(("Tan", "Asin", "Acos", "Atan"), (7, FLOATS)),
    **dict.fromkeys(
        ("Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Erf", "IsNaN", "Shrink"), (9, FLOATS)
    ),
    **dict.fromkeys(("IsInf", "ThresholdedRelu"), (10, FLOATS)),
    **dict.fromkeys(("Round",), (11, FLOATS)),
    **dict.fromkeys(("Celu",), (12, ("float32",))),
    **dict.fromkeys(("HardSwish",), (14, FLOATS)),
    **dict.fromkeys(("Mish",), (18, FLOATS)),
    **dict.fromkeys(("Gelu",), (20, FLOATS)),
    **dict.fromkeys(("Swish",), (24, FLOATS)),
    **dict.fromkeys(("BitwiseNot",), (18, INTEGERS)),
}


@_drawn
def _unary(s: Sketch) -> Any:
    name = s.one_of(*_UNARY)
    since, dtypes = _UNARY[name]
    if s.opset < since:
        raise InvalidNodeError
    x = s.tensor(dtypes if s.chance(0.4) else [t for t in _USUAL if t in dtypes] or dtypes)
    attributes: dict[str, Any] = {}
    if name in ("LeakyRelu", "Elu", "Celu", "ThresholdedRelu") and s.chance(0.7):
        attributes["alpha"] = float(
            s.one_of(0.01, 0.5, 1.0, 2.0, *((-0.3,) if name == "LeakyRelu" else ()))
        )
    if name == "HardSigmoid" and s.chance(0.6):
        attributes = {"alpha": float(s.one_of(0.1, 1 / 6, 0.5)), "beta": float(s.one_of(0.5, 0.1))}
    if name == "Selu" and s.chance(0.4):
        attributes = {"alpha": 1.3, "gamma": float(s.one_of(0.5, 2.0))}
    if name == "Shrink" and s.chance(0.7):
        attributes = {"bias": float(s.one_of(0.0, 0.5)), "lambd": float(s.one_of(0.2, 0.5, 1.0))}
    if name == "IsInf" and s.chance(0.5):
        attributes = {"detect_negative": s.size(0, 1), "detect_positive": s.size(0, 1)}
    if name == "Gelu" and s.chance(0.5):
        attributes["approximate"] = "tanh"
    if name in ("Sqrt", "Log", "Acosh") and s.chance(0.8):
        (x,) = s.op("Abs", x)
    return s.op(name, x, **attributes)


@_drawn
def _binary(s: Sketch) -> Any:
    name = s.one_of("Add", "Sub", "Mul", "Div", "Add", "Mul", "Pow", "Max", "Min", "Mod", "PRelu")
    x = s.tensor(s.one_of(_USUAL, NUMBERS))
    value = s.values[x]
    kind = value.dtype.name
    y = s.like(x, _broadcast_to(s, value.shape))
    attributes: dict[str, Any] = {}
    if s.chance(0.25):
        numbers = (0, 1, 2, 3) if kind in UNSIGNED else (0, 1, -1, 2, 0.5, -0.5, 3)
        y = s.const(s.one_of(*numbers), kind)
    if name in ("Div", "Mod") and value.dtype.kind in "iu":
        y = (
            s.const(s.one_of(1, 2, 3, 5, 7), kind)
            if s.chance(0.5)
            else s.input(np.asarray(s.random.integers(1, 9, s.values[y].shape), kind))
        )
    if name == "Mod":
        attributes["fmod"] = 1 if value.dtype.kind == "f" else s.size(0, 1)
    if name == "Pow":
        y = s.const(
            s.one_of(0, 1, 2, 3, 0.5, -1) if value.dtype.kind == "f" else s.one_of(0, 1, 2),
            s.one_of(kind, "float32", "int32", kind),
        )
    if name == "PRelu":
        y = s.like(x, s.one_of((1,), (), value.shape, value.shape[-1:]), const=0.9)
    pair = (y, x) if s.chance(0.3) and name != "PRelu" and name not in ("Div", "Mod") else (x, y)
    return s.op(name, *pair, **attributes)


@_drawn
def _several(s: Sketch) -> Any:
    name = s.one_of("Max", "Min", "Sum", "Mean")
    x = s.tensor(FLOATS if name in ("Sum", "Mean") else NUMBERS)
    others = [s.like(x, _broadcast_to(s, s.values[x].shape)) for _ in range(s.size(0, 3))]
    return s.op(name, x, *others)


@_drawn
def _compare(s: Sketch) -> Any:
    name = s.one_of("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
    x = s.tensor(s.one_of(_USUAL, ALL))
    return s.op(name, x, s.like(x, _broadcast_to(s, s.values[x].shape)))


@_drawn
def _logic(s: Sketch) -> Any:
    name = s.one_of("And", "Or", "Xor", "Not", "Not")
    x = s.tensor(["bool"])
    return (
        s.op(name, x)
        if name == "Not"
        else s.op(name, x, s.like(x, _broadcast_to(s, s.values[x].shape)))
    )


@_drawn
def _bits(s: Sketch) -> Any:
    x = s.tensor(INTEGERS)
    if s.chance(0.4):
        x = s.tensor(UNSIGNED)
        y = s.const(
            s.random.integers(0, 8, _broadcast_to(s, s.values[x].shape)), s.values[x].dtype.name
        )
        return s.op("BitShift", x, y, direction=s.one_of("LEFT", "RIGHT"))
    return s.op(
        s.one_of("BitwiseAnd", "BitwiseOr", "BitwiseXor"),
        x,
        s.like(x, _broadcast_to(s, s.values[x].shape)),
    )


@_drawn
def _cast(s: Sketch) -> Any:
    from onnx import helper

    x = s.tensor(ALL)
    to = s.one_of("float32", *ALL)
    value = s.values[x]
    # What is out of a type's range has no value in ONNX.
    if to in UNSIGNED and value.dtype.kind in "fi":
        (x,) = s.op("Abs", x)
    if np.dtype(to).kind in "iu" and value.dtype.kind == "f" and not np.isfinite(value).all():
        raise InvalidNodeError
    with np.errstate(all="ignore"):
        if (
            np.dtype(to).kind in "iu"
            and np.abs(value.astype("float64")).max(initial=0) > np.iinfo(to).max
        ):
            raise InvalidNodeError
    if s.opset >= 15 and s.chance(0.2):
        return s.op("CastLike", x, s.const(s.numbers(to, ())))
    return s.op("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))


@_drawn
def _where(s: Sketch) -> Any:
    x = s.tensor(ALL)
    shape = s.values[x].shape
    found = s.find(lambda v: v.dtype == bool and v.shape == shape)
    condition = found or s.input(s.random.random(_broadcast_to(s, shape)) < 0.5)
    y = s.like(x, _broadcast_to(s, shape))
    return s.op("Where", condition, *((x, y) if s.chance(0.5) else (y, x)))


@_drawn
def _clip(s: Sketch) -> Any:
    x = s.tensor(s.one_of(_USUAL, NUMBERS))
    kind = s.values[x].dtype.name
    low, high = (s.one_of(0, 1, -2), s.one_of(2, 6, 1)) if kind not in UNSIGNED else (1, 6)
    if s.opset < 11:
        kinds = s.size(0, 3)
        return s.op(
            "Clip",
            x,
            **({"min": float(low)} if kinds & 1 else {}),
            **({"max": float(high)} if kinds & 2 else {}),
        )
    make = s.const if s.chance(0.8) else (lambda v, d: s.input(np.asarray(v, d)))
    return s.op(
        "Clip",
        x,
        make(low, kind) if s.chance(0.7) else "",
        make(high, kind) if s.chance(0.7) else "",
    )


# ---------------------------------------------------------------- along axes

_REDUCE = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")


@_drawn
def _reduce(s: Sketch) -> Any:
    name = f"Reduce{s.one_of(*_REDUCE)}"
    x = s.tensor(s.one_of(_USUAL, (*NUMBERS, "bool")), least=1)
    value = s.values[x]
    if name == "ReduceProd" and value.dtype.kind in "iu":
        # Beyond the type onnxruntime has another number (`meanings`).
        product = np.prod(np.maximum(np.abs(value.astype("float64")), 1))
        if product > np.iinfo(value.dtype).max:
            raise InvalidNodeError
    rank = _rank(s, x)
    axes = [int(a) for a in s.random.permutation(rank)[: s.size(0, rank)]]
    axes = [a - rank if s.chance(0.3) else a for a in axes]
    attributes: dict[str, Any] = {"keepdims": s.size(0, 1)} if s.chance(0.8) else {}
    as_input = s.opset >= (13 if name == "ReduceSum" else 18)
    if name == "ReduceLogSum":
        (x,) = s.op("Abs", x)
    if not as_input:
        return s.op(name, x, axes=axes or None, **attributes)
    if s.chance(0.3):
        attributes["noop_with_empty_axes"] = s.size(0, 1)
    if not axes:
        return s.op(name, x, *([s.const([], "int64")] if s.chance(0.3) else []), **attributes)
    return s.op(name, x, s.const(axes, "int64"), **attributes)


@_drawn
def _arg(s: Sketch) -> Any:
    x = s.tensor(s.one_of(_USUAL, NUMBERS), least=1)
    attributes: dict[str, Any] = {"axis": _axis(s, _rank(s, x))} if s.chance(0.8) else {}
    if s.chance(0.6):
        attributes["keepdims"] = s.size(0, 1)
    if s.opset >= 12 and s.chance(0.5):
        attributes["select_last_index"] = s.size(0, 1)
    return s.op(s.one_of("ArgMax", "ArgMin"), x, **attributes)


@_drawn
def _softmax(s: Sketch) -> Any:
    x = s.tensor(FLOATS, least=1)
    axis = _axis(s, _rank(s, x)) if s.chance(0.7) else None
    if axis is None and s.opset < 13 and _rank(s, x) == 1:
        axis = 0  # their own is 1
    name = s.one_of("Softmax", "LogSoftmax", "Softmax", "Hardmax")
    if name == "Hardmax" and s.opset < 13 and s.values[x].dtype != np.float32:
        name = "Softmax"  # onnxruntime has none, and onnx's reference that of opset 13
    return s.op(name, x, axis=axis)


@_drawn
def _cumulate(s: Sketch) -> Any:
    x = s.tensor(
        s.one_of(_USUAL, ("float32", "float64", "int32", "int64", "uint32", "uint64")), least=1
    )
    axis = s.const(_axis(s, _rank(s, x)), s.one_of("int64", "int32"))
    name = "CumProd" if s.opset >= 26 and s.chance(0.4) else "CumSum"
    return s.op(name, x, axis, exclusive=s.size(0, 1), reverse=s.size(0, 1))


@_drawn
def _top_k(s: Sketch) -> Any:
    x = s.tensor(s.one_of(_USUAL, NUMBERS), least=1)
    axis = s.size(0, _rank(s, x) - 1)
    k = s.size(1, s.values[x].shape[axis])
    if s.opset < 10:
        return s.op("TopK", x, outputs=2, axis=axis, k=k)
    more = {"largest": s.size(0, 1)} if s.opset >= 11 else {}
    return s.op("TopK", x, s.const([k], "int64"), outputs=2, axis=axis, **more)


@_drawn
def _norm(s: Sketch) -> Any:
    name = s.one_of(
        *("BatchNormalization", "InstanceNormalization", "GroupNormalization"),
        *("LayerNormalization", "RMSNormalization"),
    )
    x = s.tensor(FLOATS, least=2)
    shape, kind = s.values[x].shape, s.values[x].dtype.name
    c = shape[1]

    def vector(positive: bool = False, of: tuple[int, ...] = (c,)) -> str:
        numbers = s.numbers(kind, of)
        return s.const(np.abs(numbers) + np.asarray(0.1, kind) if positive else numbers)

    epsilon = s.one_of(None, 1e-3, 1e-5)
    if name == "BatchNormalization":
        return s.op(name, x, vector(), vector(), vector(), vector(True), epsilon=epsilon)
    if name == "InstanceNormalization":
        return s.op(name, x, vector(), vector(), epsilon=epsilon)
    if name == "GroupNormalization":
        groups = s.one_of(*[g for g in range(1, c + 1) if c % g == 0])
        width = groups if s.opset < 21 else c
        return s.op(
            name, x, vector(of=(width,)), vector(of=(width,)), num_groups=groups, epsilon=epsilon
        )
    axis = _axis(s, len(shape))
    tail = shape[axis:]
    bias = [vector(of=tail)] if s.chance(0.7) and name == "LayerNormalization" else []
    outputs = s.one_of(1, 1, 1, 2, 3) if name == "LayerNormalization" and s.opset >= 17 else 1
    return s.op(name, x, vector(of=tail), *bias, outputs=outputs, axis=axis, epsilon=epsilon)


@_drawn
def _plain_norm(s: Sketch) -> Any:
    """Norms without weights."""
    name = s.one_of("LRN", "LpNormalization", "MeanVarianceNormalization")
    if name == "LpNormalization":
        x = s.tensor(FLOATS, least=2)
        return s.op(name, x, axis=s.one_of(None, 0, 1, -1), p=s.one_of(None, 1, 2))
    x = s.tensor(["float32"], rank=4)
    if name == "MeanVarianceNormalization":
        return s.op(name, x, axes=s.one_of(None, [0, 1], [1], [-1]))
    # Of even sizes onnx's reference leaves out what its text includes.
    numbers = {
        "alpha": s.one_of(None, 0.1),
        "beta": s.one_of(None, 0.5),
        "bias": s.one_of(None, 2.0),
    }
    return s.op(name, x, size=s.one_of(1, 3, 5), **numbers)


# ---------------------------------------------------------------- moving elements


@_drawn
def _reshape(s: Sketch) -> Any:
    x = s.tensor(ALL)
    shape = s.values[x].shape
    size = s.values[x].size
    kind = s.size(0, 3)
    if kind == 0:
        target = [-1]
    elif kind == 1 and len(shape) > 1:
        target = [0, -1]
    elif kind == 2 and len(shape) > 1:
        target = [*shape[1:], shape[0]]
    else:
        factors = [f for f in range(1, size + 1) if size % f == 0]
        f = s.one_of(*factors)
        target = [f, size // f] if s.chance(0.5) else [f, -1]
    more = {"allowzero": 1} if s.opset >= 14 and 0 not in target and s.chance(0.2) else {}
    return s.op("Reshape", x, s.const(target, "int64"), **more)


@_drawn
def _transpose(s: Sketch) -> Any:
    x = s.tensor(ALL, least=1)
    perm = [int(a) for a in s.random.permutation(_rank(s, x))] if s.chance(0.85) else None
    return s.op("Transpose", x, perm=perm)


@_drawn
def _flatten(s: Sketch) -> Any:
    x = s.tensor(s.one_of(_USUAL, ALL))
    rank = _rank(s, x)
    axis = s.one_of(None, s.size(0, rank), -s.size(0, rank) if s.opset >= 11 else 0)
    return s.op("Flatten", x, axis=axis)


@_drawn
def _squeeze(s: Sketch) -> Any:
    x = s.tensor(ALL)
    rank = _rank(s, x)
    ones = [a for a, size in enumerate(s.values[x].shape) if size == 1]
    name = s.one_of("Squeeze", "Unsqueeze")
    if name == "Squeeze":
        axes: list[int] | None = [a for a in ones if s.chance(0.7)] or None
        if not ones:
            name = "Unsqueeze"
    if name == "Unsqueeze":
        count = s.size(1, 2)
        axes = [int(a) for a in s.random.permutation(rank + count)[:count]]
        axes = [a - rank - count if s.chance(0.3) and s.opset >= 11 else a for a in axes]
    if s.opset < 13:
        return s.op(name, x, axes=axes)
    return s.op(name, x, *([s.const(axes, "int64")] if axes is not None else []))


@_drawn
def _concat(s: Sketch) -> Any:
    x = s.tensor(ALL, least=1)
    shape = s.values[x].shape
    axis = s.size(0, len(shape) - 1)
    others = []
    for _ in range(s.size(1, 3)):
        other = (*shape[:axis], s.size(1, 4), *shape[axis + 1 :])
        others.append(x if s.chance(0.15) else s.like(x, other))
    return s.op(
        "Concat", *others, x, axis=axis - len(shape) if s.chance(0.3) and s.opset >= 11 else axis
    )


@_drawn
def _split(s: Sketch) -> Any:
    x = s.tensor(ALL, least=1)
    shape = s.values[x].shape
    axis = s.size(0, len(shape) - 1)
    total = shape[axis]
    parts = s.size(1, min(3, total))
    if s.chance(0.5) and parts > 1:
        cuts = sorted(
            int(c) for c in s.random.choice(np.arange(1, total), parts - 1, replace=False)
        )
        sizes = [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]
        if s.opset < 13:
            return s.op("Split", x, outputs=parts, axis=axis, split=sizes)
        return s.op("Split", x, s.const(sizes, "int64"), outputs=parts, axis=axis)
    if s.opset < 18:
        if total % parts:
            raise InvalidNodeError
        return s.op("Split", x, outputs=parts, axis=axis)
    return s.op("Split", x, outputs=parts, axis=axis, num_outputs=parts)


@_drawn
def _slice(s: Sketch) -> Any:
    x = s.tensor(ALL, least=1)
    shape = s.values[x].shape
    axes = [int(a) for a in s.random.permutation(len(shape))[: s.size(1, len(shape))]]
    starts, ends, steps = [], [], []
    for a in axes:
        n = shape[a]
        step = s.one_of(1, 1, 1, 2, -1, -2) if s.opset >= 10 else 1
        if step > 0:
            start = s.size(0, n - 1)
            end = s.one_of(n, s.size(start + 1, n), 2**31 - 1, n + 5)
        else:
            start = s.one_of(n - 1, s.size(0, n - 1), n + 3, -1)
            end = s.one_of(-n - 1, -(2**31), -(n + 9))
        starts.append(start - n if s.chance(0.3) and 0 <= start < n else start)
        ends.append(end)
        steps.append(step)
    if s.opset < 10:
        return s.op("Slice", x, axes=axes, starts=starts, ends=ends)
    kind = s.one_of("int64", "int32")
    if any(abs(v) > 2**31 - 1 for v in ends):
        kind = "int64"
    axes = [a - len(shape) if s.chance(0.2) else a for a in axes]
    given = [s.const(starts, kind), s.const(ends, kind), s.const(axes, kind)]
    if steps != [1] * len(steps) or s.chance(0.3):
        given.append(s.const(steps, kind))
    return s.op("Slice", x, *given)


@_drawn
def _pad(s: Sketch) -> Any:
    x = s.tensor(s.one_of(_USUAL, ALL), least=1)
    shape, kind = s.values[x].shape, s.values[x].dtype.name
    mode = s.one_of(
        "constant", "constant", "reflect", "edge", *(("wrap",) if s.opset >= 19 else ())
    )
    widths = [s.size(0, 2) if s.chance(0.6) else 0 for _ in range(2 * len(shape))]
    if mode in ("reflect", "wrap"):
        widths = [min(w, shape[i % len(shape)] - 1) for i, w in enumerate(widths)]
    elif s.chance(0.2):
        at = s.size(0, len(widths) - 1)
        if shape[at % len(shape)] > 1:
            widths[at] = -1
    number = 0 if s.chance(0.4) else s.one_of(1, 2, *((0.5, -1.0) if kind in FLOATS else ()))
    if s.opset < 11:
        return s.op("Pad", x, pads=widths, mode=mode, value=float(number))
    value = [s.const(number, kind)] if mode == "constant" and s.chance(0.6) else []
    return s.op("Pad", x, s.const(widths, "int64"), *value, mode=mode)


@_drawn
def _repeat(s: Sketch) -> Any:
    x = s.tensor(ALL, least=1)
    shape = s.values[x].shape
    if s.chance(0.5):
        repeats = [s.size(1, 3) for _ in shape]
        return s.op("Tile", x, s.const(repeats, "int64"))
    if s.opset < 8:
        raise InvalidNodeError
    goal = [s.size(1, 3) if size == 1 and s.chance(0.7) else size for size in shape]
    goal = [s.size(1, 2), *goal] if s.chance(0.3) else goal
    goal = [1 if s.chance(0.2) else g for g in goal]
    return s.op("Expand", x, s.const(goal, "int64"))


def _positions(s: Sketch, size: int, shape: tuple[int, ...], negative: bool) -> np.ndarray:
    return s.random.integers(-size if negative else 0, size, shape)


@_drawn
def _gather(s: Sketch) -> Any:
    x = s.tensor(ALL, least=1)
    shape = s.values[x].shape
    axis = s.size(0, len(shape) - 1)
    kind, negative = s.one_of("int64", "int32"), s.opset >= 11
    make = s.const if s.chance(0.6) else s.input
    name = s.one_of("Gather", "Gather", "GatherElements", "GatherND")
    if name == "GatherND":
        depth = s.size(1, len(shape))
        at = np.stack(
            [
                _positions(s, shape[i], (s.size(1, 4),) if i == 0 else (1,), negative)
                * np.ones(1, int)
                for i in range(1)
            ],
            -1,
        )
        count = s.size(1, 4)
        at = np.stack([_positions(s, shape[i], (count,), negative) for i in range(depth)], -1)
        return s.op(name, x, make(at.astype("int64")))
    wanted = (
        s.shape(s.size(0, 2), 4)
        if name == "Gather"
        else tuple(s.size(1, n) if i != axis else s.size(1, 5) for i, n in enumerate(shape))
    )
    at = np.asarray(_positions(s, shape[axis], wanted, negative), kind)
    return s.op(name, x, make(at), axis=axis)


@_drawn
def _scatter(s: Sketch) -> Any:
    x = s.tensor(s.one_of(_USUAL, ALL), least=1)
    shape, kind = s.values[x].shape, s.values[x].dtype.name
    reductions = ["none"]
    if s.opset >= 16 and kind != "bool":
        reductions += ["add", "mul"]
    if s.opset >= 18 and kind != "bool":
        reductions += ["max", "min"]
    reduction = s.one_of(*reductions)
    more = {"reduction": reduction} if reduction != "none" else {}
    make = s.const if s.chance(0.5) else s.input
    if s.chance(0.5):
        axis = s.size(0, len(shape) - 1)
        wanted = tuple(s.size(1, n) for n in shape)
        # Of two updates of one place nobody says which is last.
        row = s.random.permutation(shape[axis])[: wanted[axis]]
        at = np.broadcast_to(
            row.reshape([-1 if i == axis else 1 for i in range(len(shape))]), wanted
        )
        name = "ScatterElements" if s.opset >= 11 else "Scatter"
        return s.op(
            name,
            x,
            make(np.array(at, "int64")),
            s.input(s.numbers(kind, wanted)),
            axis=axis,
            **more,
        )
    depth = s.size(1, len(shape))
    places = int(np.prod(shape[:depth]))
    flat = s.random.permutation(places)[: s.size(1, min(places, 5))]
    at = np.stack(np.unravel_index(flat, shape[:depth]), -1)
    updates = s.input(s.numbers(kind, (len(flat), *shape[depth:])))
    return s.op("ScatterND", x, make(at.astype("int64")), updates, **more)


@_drawn
def _blocks(s: Sketch) -> Any:
    name = s.one_of("DepthToSpace", "SpaceToDepth")
    b = s.size(1, 3)
    n, c, h, w = s.size(1, 2), s.size(1, 3), s.size(1, 4), s.size(1, 4)
    shape = (n, c * b * b, h, w) if name == "DepthToSpace" else (n, c, h * b, w * b)
    x = s.tensor(s.one_of(_USUAL, ALL), shape=shape)
    more = {"mode": s.one_of("DCR", "CRD")} if name == "DepthToSpace" and s.opset >= 11 else {}
    return s.op(name, x, blocksize=b, **more)


@_drawn
def _made(s: Sketch) -> Any:
    """Tensors that hang on the shape of another, or on nothing."""
    from onnx import helper, numpy_helper

    x = s.tensor(ALL, least=1)
    name = s.one_of("Shape", "Size", "ConstantOfShape", "EyeLike", "Trilu", "OneHot", "Range")
    if name in ("Shape", "Size"):
        more = {"start": -1} if name == "Shape" and s.opset >= 15 and s.chance(0.5) else {}
        return s.op(name, x, **more)
    if name == "ConstantOfShape":
        value = numpy_helper.from_array(s.numbers(s.one_of(*ALL), (1,)), "value")
        return s.op(name, *s.op("Shape", x), value=value)
    if name == "EyeLike":
        x = s.tensor(ALL, rank=2)
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(s.one_of("float32", *NUMBERS)))
        return s.op(name, x, dtype=s.one_of(None, kind), k=s.one_of(None, 1, -1))
    if name == "Trilu":
        x = s.tensor(ALL, least=2)
        k = [s.const(s.size(-2, 2), "int64")] if s.chance(0.6) else []
        return s.op(name, x, *k, upper=s.size(0, 1))
    if name == "OneHot":
        depth = s.size(1, 6)
        at = s.input(
            _positions(s, depth + 1, s.shape(s.size(1, 3), 4), True).astype(
                s.one_of("int64", "int32")
            )
        )
        kind = s.one_of("float32", "int64", "int32", "uint8", "bool")
        axis = s.one_of(None, 0, -1)
        return s.op(name, at, s.const([depth], "int64"), s.const([0, 1], kind), axis=axis)
    kind = s.one_of("int64", "int32", "float32")
    start, step = s.size(-3, 3), s.one_of(1, 2, -1)
    return s.op(
        "Range",
        s.const(start, kind),
        s.const(start + step * s.size(1, 6), kind),
        s.const(step, kind),
    )


@_drawn
def _order(s: Sketch) -> Any:
    name = s.one_of("ReverseSequence", "Unique", "NonZero", "Compress")
    if name == "ReverseSequence":
        x = s.tensor(s.one_of(_USUAL, ALL), least=2)
        time = s.size(0, 1)
        shape = s.values[x].shape
        lengths = s.const(s.random.integers(1, shape[time] + 1, shape[1 - time]), "int64")
        return s.op(name, x, lengths, time_axis=time, batch_axis=1 - time)
    x = s.tensor(s.one_of(_USUAL, ALL), least=1)
    if name == "NonZero":
        return s.op(name, x)
    if name == "Compress":
        axis = _axis(s, _rank(s, x)) if s.opset >= 11 else s.size(0, _rank(s, x) - 1)
        keep = s.random.random(s.values[x].shape[axis]) < 0.6
        return s.op(name, x, s.const(keep), axis=axis)
    # In order of appearance they are by onnxruntime only, whose kernel is of these types.
    by_it = s.values[x].dtype.name in ("float32", "float64", "int8", "int64")
    is_sorted = s.one_of(None, 1, 0 if by_it else 1)
    return s.op(name, x, outputs=s.size(1, 4), axis=s.one_of(None, 0), sorted=is_sorted)


# ---------------------------------------------------------------- windows and products


def _window(s: Sketch, spatial: int, sizes: tuple[int, ...]) -> dict[str, Any]:
    kernel = [s.size(1, min(3, size)) for size in sizes]
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if s.chance(0.6):
        attributes["strides"] = [s.size(1, 3) for _ in range(spatial)]
    kind = s.size(0, 3)
    if kind == 0:
        attributes["auto_pad"] = s.one_of("SAME_UPPER", "SAME_LOWER", "VALID")
    elif kind < 3:
        attributes["pads"] = [
            s.size(0, max(0, kernel[i % spatial] - 1)) for i in range(2 * spatial)
        ]
    return attributes


def _image(s: Sketch, dtypes: tuple[str, ...] = ("float32",) * 5 + ("float64", "float16")) -> str:
    found = s.find(lambda v: v.dtype.name in dtypes and 3 <= v.ndim <= 5 and min(v.shape[2:]) >= 2)
    if found is not None and s.chance(0.7):
        return found
    spatial = s.one_of(1, 2, 2, 2, 2, 3)
    shape = (s.size(1, 2), s.one_of(1, 2, 3, 4, 6, 8), *(s.size(2, 9) for _ in range(spatial)))
    return s.input(s.numbers(s.one_of(*dtypes), shape))


@_drawn
def _conv(s: Sketch) -> Any:
    x = _image(s)
    shape, kind = s.values[x].shape, s.values[x].dtype.name
    spatial, c = len(shape) - 2, shape[1]
    transposed = s.chance(0.3)
    groups = s.one_of(*[g for g in range(1, c + 1) if c % g == 0]) if s.chance(0.5) else 1
    out = groups * s.size(1, 5)
    attributes = _window(s, spatial, shape[2:])
    if s.chance(0.25) and attributes.get("auto_pad", "NOTSET") == "NOTSET":
        attributes["dilations"] = [s.size(1, 2) for _ in range(spatial)]
    kernel = attributes["kernel_shape"]
    first = (c, out // groups) if transposed else (out, c // groups)
    weight = np.asarray(
        s.random.standard_normal((*first, *kernel)) / np.sqrt(c * np.prod(kernel)), kind
    )
    bias = [s.const(s.numbers(kind, (out,)))] if s.chance(0.6) else []
    if s.chance(0.3):
        del attributes["kernel_shape"]
    if transposed and s.chance(0.3) and "strides" in attributes:
        attributes["output_padding"] = [s.size(0, stride - 1) for stride in attributes["strides"]]
    make = s.const if s.chance(0.9) else s.input
    return s.op(
        "ConvTranspose" if transposed else "Conv",
        x,
        make(weight),
        *bias,
        group=groups,
        **attributes,
    )


@_drawn
def _pool(s: Sketch) -> Any:
    name = s.one_of("MaxPool", "AveragePool", "MaxPool", "AveragePool", "LpPool")
    dtypes = (
        (*FLOATS, "int8", "uint8")
        if name == "MaxPool" and s.opset >= 12 and s.chance(0.2)
        else FLOATS
    )
    x = _image(s, dtypes)
    shape = s.values[x].shape
    attributes = _window(s, len(shape) - 2, shape[2:])
    if s.opset >= 10 and s.chance(0.4) and name != "LpPool":
        attributes["ceil_mode"] = 1
    if s.chance(0.2) and (
        (name == "MaxPool" and s.opset >= 10) or (name == "AveragePool" and s.opset >= 19)
    ):
        attributes["dilations"] = [s.size(1, 2) for _ in shape[2:]]
    if attributes.get("auto_pad", "").startswith("SAME") and "strides" in attributes:
        # onnxruntime fails where that is more than the window, and onnx's reference is off.
        pairs = zip(attributes["strides"], attributes["kernel_shape"], strict=True)
        attributes["strides"] = [min(pair) for pair in pairs]
    if name == "AveragePool" and s.chance(0.5):
        attributes["count_include_pad"] = s.size(0, 1)
    if name == "LpPool":
        attributes["p"] = s.one_of(1, 2, 3)
    outputs = 2 if name == "MaxPool" and s.opset >= 8 and s.chance(0.2) else 1
    return s.op(name, x, outputs=outputs, **attributes)


@_drawn
def _global_pool(s: Sketch) -> Any:
    return s.op(s.one_of("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _image(s))


@_drawn
def _product(s: Sketch) -> Any:
    name = s.one_of("MatMul", "MatMul", "Gemm", "Einsum")
    dtypes = s.one_of(_USUAL, ("float32", "float64", "int32", "int64", "uint32", "uint64"))
    make = s.const if s.chance(0.6) else s.input
    if name == "MatMul":
        x = s.tensor(dtypes, least=1)
        shape, kind = s.values[x].shape, s.values[x].dtype.name
        k, n = shape[-1], s.size(1, 6)
        other = s.one_of(
            (k, n), (k, n), (k,), (*shape[:-2], k, n), (2, k, n) if len(shape) <= 2 else (k, n)
        )
        return s.op(name, x, make(s.numbers(kind, other)))
    if name == "Gemm":
        x = s.tensor(dtypes, rank=2)
        kind = s.values[x].dtype.name
        turned, by = s.size(0, 1), s.size(0, 1)
        m, k = s.values[x].shape[:: -1 if turned else 1]
        n = s.size(1, 6)
        w = make(s.numbers(kind, (n, k) if by else (k, n)))
        bias = (
            [s.const(s.numbers(kind, s.one_of((n,), (1,), (m, n), (m, 1), ())))]
            if s.chance(0.7)
            else []
        )
        if not bias and s.opset < 11:
            bias = [s.const(s.numbers(kind, (n,)))]
        factor = s.one_of(None, 0.5, 2.0, 1.0)
        return s.op(
            name, x, w, *bias, transA=turned, transB=by, alpha=factor, beta=s.one_of(None, 0.5, 0.0)
        )
    equation, *shapes = s.one_of(
        ("ij,jk->ik", (2, 3), (3, 4)),
        ("bij,bjk->bik", (2, 3, 4), (2, 4, 3)),
        ("bhqd,bhkd->bhqk", (1, 2, 3, 4), (1, 2, 5, 4)),
        ("ii->i", (4, 4)),
        ("ij->ji", (3, 4)),
        ("ij->", (3, 4)),
        ("i,j->ij", (3,), (4,)),
        ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 2)),
        ("ij,ij->i", (3, 4), (3, 4)),
        ("ij,jk", (2, 3), (3, 4)),
    )
    kind = s.one_of("float32", "float32", "float64", "int32")
    given = [s.tensor([kind], shape=shape) for shape in shapes]
    return s.op(name, *given, equation=equation)


@_drawn
def _resize(s: Sketch) -> Any:
    x = _image(s, ("float32",) * 6 + ("uint8", "float16", "int32", "int8"))
    shape = s.values[x].shape
    mode = (
        s.one_of("nearest", "linear", "cubic") if s.opset >= 11 else s.one_of("nearest", "linear")
    )
    spatial = shape[2:]
    scales = [float(s.one_of(1, 2, 1.5, 0.5, 3, 0.7, 2.3)) for _ in spatial]
    if s.opset < 10:
        if s.opset < 9:
            return s.op("Upsample", x, mode=mode, scales=[1.0, 1.0, *(max(1.0, v) for v in scales)])
        return s.op(
            "Upsample", x, s.const([1.0, 1.0, *(max(1.0, v) for v in scales)], "float32"), mode=mode
        )
    if s.opset < 11:
        return s.op("Resize", x, s.const([1.0, 1.0, *scales], "float32"), mode=mode)
    where = s.one_of(
        "half_pixel",
        "asymmetric",
        "align_corners",
        # One result of a line lies at -0.5 by onnx's reference, at 0 by its text and onnxruntime,
        # which has cubic ones of images only.
        *(("pytorch_half_pixel",) if mode != "cubic" or len(spatial) == 2 else ()),
        None,
        *(("half_pixel_symmetric",) if s.opset >= 19 else ()),
    )
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": where}
    if mode == "nearest":
        attributes["nearest_mode"] = s.one_of(
            None, "floor", "ceil", "round_prefer_floor", "round_prefer_ceil"
        )
    if mode == "cubic":
        attributes["cubic_coeff_a"] = s.one_of(None, -0.5)
        attributes["exclude_outside"] = s.one_of(None, 0, 1)
    if s.opset >= 18 and mode != "nearest" and s.chance(0.3):
        attributes["antialias"] = 1
    if s.chance(0.4):
        sizes = [max(1, round(n * f)) for n, f in zip(spatial, scales, strict=True)]
        if s.opset >= 18 and s.chance(0.5):
            attributes["axes"] = list(range(2, len(shape)))
            if s.chance(0.4):
                attributes["keep_aspect_ratio_policy"] = s.one_of(
                    "not_larger", "not_smaller", "stretch"
                )
            return s.op("Resize", x, "", "", s.const(sizes, "int64"), **attributes)
        return s.op(
            "Resize",
            x,
            "" if s.opset >= 13 else s.const([], "float32"),
            "" if s.opset >= 13 else s.const([], "float32"),
            s.const([*shape[:2], *sizes], "int64"),
            **attributes,
        )
    roi = "" if s.opset >= 13 else s.const([], "float32")
    return s.op("Resize", x, roi, s.const([1.0, 1.0, *scales], "float32"), **attributes)


@_drawn
def _sample(s: Sketch) -> Any:
    x = s.tensor(["float32"], rank=4)
    n = s.values[x].shape[0]
    if s.opset < 16:
        raise InvalidNodeError
    grid = s.input(
        np.asarray(s.random.uniform(-1.2, 1.2, (n, s.size(1, 4), s.size(1, 4), 2)), "float32"),
        plain=True,
    )
    modes = ("bilinear", "nearest", "bicubic") if s.opset < 20 else ("linear", "nearest", "cubic")
    return s.op(
        "GridSample",
        x,
        grid,
        mode=s.one_of(None, *modes),
        padding_mode=s.one_of(None, "zeros", "border", "reflection"),
        align_corners=s.one_of(None, 0, 1),
    )


@_drawn
def _recurrent(s: Sketch) -> Any:
    name = s.one_of("LSTM", "GRU", "RNN")
    x = s.tensor(
        ["float32", "float32", "float32", "float64"] if name != "GRU" else ["float32"], rank=3
    )
    (length, batch, width), kind = s.values[x].shape, s.values[x].dtype.name
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[name]
    direction = s.one_of(None, "forward", "reverse", "bidirectional")
    ways = 2 if direction == "bidirectional" else 1
    hidden = s.size(1, 5)

    def weight(*shape: int) -> str:
        return s.const(np.asarray(s.random.standard_normal(shape) * 0.5, kind))

    given = [x, weight(ways, gates * hidden, width), weight(ways, gates * hidden, hidden)]
    given.append(weight(ways, 2 * gates * hidden) if s.chance(0.6) else "")
    # Of float64, which onnxruntime has no kernel for, onnx's reference forgets the lengths.
    if s.chance(0.2) and kind == "float32":
        given.append(s.const(s.random.integers(1, length + 1, batch), "int32"))
    else:
        given.append("")
    given.append(weight(ways, batch, hidden) if s.chance(0.4) else "")
    more: dict[str, Any] = {"direction": direction, "hidden_size": hidden}
    if name == "LSTM":
        given.append(weight(ways, batch, hidden) if s.chance(0.4) else "")
        given.append(weight(ways, 3 * hidden) if s.chance(0.2) else "")
    if name == "GRU":
        more["linear_before_reset"] = s.size(0, 1)
    if s.chance(0.2) and kind == "float32":  # onnx's reference forgets it
        more["clip"] = 0.8
    outputs = 3 if name == "LSTM" and s.chance(0.6) else s.size(1, 2)
    return s.op(name, *given, outputs=outputs, **more)


@_drawn
def _dropout(s: Sketch) -> Any:
    x = s.tensor(FLOATS)
    if s.opset < 12:
        return s.op("Dropout", x, ratio=0.5, outputs=s.size(1, 2))
    return s.op(
        "Dropout", x, *([s.const(0.3, "float32")] if s.chance(0.5) else []), outputs=s.size(1, 2)
    )


# ---------------------------------------------------------------- integers for floats


@_drawn
def _quantize(s: Sketch) -> Any:
    if s.opset < 10:
        raise InvalidNodeError
    x = s.tensor(
        ["float32", "float32", "float32", "float16"] if s.opset >= 19 else ["float32"], least=1
    )
    shape, kind = s.values[x].shape, s.values[x].dtype.name
    narrow = ["uint8", "int8"]
    if s.opset >= 21:
        narrow += ["int16", "uint16", "int4", "uint4"]
    if s.opset >= 19 and s.chance(0.2):
        narrow = [*FLOAT8, *(["float4_e2m1fn"] if s.opset >= 23 else [])]
    to = s.one_of(*narrow)
    form = (
        s.one_of("tensor", "tensor", "axis", "block")
        if s.opset >= 21
        else s.one_of("tensor", "axis")
        if s.opset >= 13
        else "tensor"
    )
    axis = _axis(s, len(shape))
    more: dict[str, Any] = {}
    of: tuple[int, ...] = ()
    if form == "axis":
        of, more = (shape[axis],), {"axis": axis}
    if form == "block":
        block = s.size(1, shape[axis])
        of = tuple(-(-n // block) if i == axis % len(shape) else n for i, n in enumerate(shape))
        more = {"axis": axis, "block_size": block}
    scale = s.const(np.asarray(s.random.uniform(0.02, 0.3, of), kind))
    zero = []
    if to != "uint8" or s.chance(0.8):
        dtype = dtype_of(to)
        low, high = (
            (0, 1)
            if "float" in to
            else (0, 16)
            if to == "uint4"
            else (-8, 8)
            if to == "int4"
            else (0, 200)
            if to[0] == "u"
            else (-50, 50)
        )
        zero = [s.const(s.random.integers(low, high, of).astype(dtype))]
    saturate = s.one_of(None, 0, 1) if to in FLOAT8 else None
    (q,) = s.op("QuantizeLinear", x, scale, *zero, saturate=saturate, **more)
    if s.chance(0.7) or to not in ALL:
        return s.op("DequantizeLinear", q, scale, *zero, **more)
    return [q]


@_drawn
def _dequantize(s: Sketch) -> Any:
    """Weights that are stored as integers, or as floats of 8 or 4 bits."""
    if s.opset < 13:
        raise InvalidNodeError
    kind = s.one_of("int8", "uint8", *(("int4", "uint4", "int4") if s.opset >= 21 else ()))
    if s.opset >= 19 and s.chance(0.2):
        kind = s.one_of(*FLOAT8, *(FOUR_BITS[2:] if s.opset >= 23 else ()))
    dtype = dtype_of(kind)
    k, n = s.size(2, 8), s.size(1, 6)
    ranges = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-128, 128), "uint8": (0, 256)}
    low, high = ranges.get(kind, (-6, 7))
    w = s.const(s.random.integers(low, high, (k, n)).astype(dtype))
    axis = s.size(0, 1)
    form = s.one_of("tensor", "axis", "block") if s.opset >= 21 else s.one_of("tensor", "axis")
    of: tuple[int, ...] = () if form == "tensor" else ((k, n)[axis],)
    more: dict[str, Any] = {} if form == "tensor" else {"axis": axis}
    if form == "block":
        block = s.size(1, (k, n)[axis])
        more["block_size"] = block
        of = tuple(-(-m // block) if i == axis else m for i, m in enumerate((k, n)))
    scale = s.const(np.asarray(s.random.uniform(0.02, 0.2, of), "float32"))
    offsets = s.random.integers(max(low, -4), 5, of) * ("float" not in kind)
    zero = [s.const(offsets.astype(dtype))] if s.chance(0.6) else []
    (made,) = s.op("DequantizeLinear", w, scale, *zero, **more)
    x = s.input(s.numbers("float32", (s.size(1, 4), k)))
    return s.op("MatMul", x, made)


# What a narrow tensor goes through: a name, how many of its like it reads, attributes.
_ON_NARROW: Sequence[tuple[str, int, dict[str, Any]]] = (
    *((name, 0, {}) for name in ("Identity", "Transpose", "Flatten", "Shape", "NonZero", "Relu")),
    *((name, 0, {}) for name in ("Neg", "Abs", "Sqrt", "Exp", "Sigmoid", "Tanh", "Floor", "IsNaN")),
    *((name, 0, {}) for name in ("Softmax", "ReduceSum", "ReduceMax", "Sign", "Erf")),
    *((name, 1, {}) for name in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Less", "Pow")),
    ("Concat", 1, {"axis": 0}),
    ("ArgMax", 0, {}),
)


@_drawn
def _narrow(s: Sketch) -> Any:
    """What is cast to a type of fewer bits, goes through some operators there, and comes back."""
    from onnx import helper

    if s.opset < 13:
        raise InvalidNodeError
    kinds = ["bfloat16", "bfloat16"]
    kinds += FLOAT8 if s.opset >= 19 else ()
    kinds += FOUR_BITS[: 3 if s.opset >= 23 else 2] if s.opset >= 21 else ()
    kind = s.one_of(*kinds)
    to = helper.np_dtype_to_tensor_dtype(dtype_of(kind))
    saturate = s.one_of(None, 0, 1) if kind in FLOAT8 and s.opset >= 19 else None

    def made(shape: tuple[int, ...]) -> str:
        """A new one, rarely an input of the model itself, or of its weights."""
        if kind in ("int4", "uint4"):
            numbers = s.random.integers(*((-8, 8) if kind == "int4" else (0, 16)), shape)
        else:
            numbers = s.random.standard_normal(shape) * s.one_of(1, 1, 300)
        if s.chance(0.1):
            return s.input(numbers.astype(dtype_of(kind)))
        if s.chance(0.2):
            return s.const(numbers.astype(dtype_of(kind)))
        wide = s.one_of("float32", "float32", "float16")
        x = s.input(numbers.astype(wide), plain=kind in ("int4", "uint4"))
        return s.op("Cast", x, to=to, saturate=saturate)[0]

    if kind not in ("int4", "uint4") and s.chance(0.6):
        start = s.tensor(FLOATS, least=1)
        (x,) = s.op("Cast", start, to=to, saturate=saturate)
    else:
        x = made(s.shape(s.size(1, 3)))
    for _ in range(s.size(0, 2)):
        name, others, attributes = s.one_of(*_ON_NARROW)
        like = [made(s.values[x].shape) for _ in range(others)]
        try:
            (x,) = s.op(name, x, *like, **attributes)
        except InvalidNodeError:
            continue
    if s.values[x].dtype.name in ALL:
        return [x]
    back = s.one_of("float32", "float32", "float32", "float16", "float64", "int32")
    if back == "int32" and not np.isfinite(s.values[x].astype("float32")).all():
        back = "float32"
    return s.op("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(back)))


@_drawn
def _integers(s: Sketch) -> Any:
    if s.opset < 10:
        raise InvalidNodeError
    name = s.one_of(
        "MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", "DynamicQuantizeLinear"
    )
    if name == "DynamicQuantizeLinear":
        return s.op(name, s.tensor(["float32"]), outputs=3)
    a, b = s.one_of("uint8", "int8"), s.one_of("int8", "uint8")
    a = "uint8" if b == "uint8" else a
    k, n = s.size(1, 6), s.size(1, 5)

    def zero(kind: str, of: tuple[int, ...] = ()) -> str:
        return s.const(s.random.integers(0, 20, of), kind)

    def scale() -> str:
        return s.const(float(s.random.uniform(0.01, 0.2)), "float32")

    def any_of(kind: str, shape: tuple[int, ...]) -> np.ndarray:
        info = np.iinfo(kind)
        return s.random.integers(info.min, info.max + 1, shape).astype(kind)

    if "MatMul" in name:
        x, w = s.input(any_of(a, (s.size(1, 4), k))), s.const(any_of(b, (k, n)))
        if name == "MatMulInteger":
            return s.op(name, x, w, *([zero(a), zero(b)] if s.chance(0.6) else []))
        return s.op(name, x, scale(), zero(a), w, scale(), zero(b), scale(), zero(a))
    x, w = s.input(any_of(a, (1, k, 5, 5))), s.const(any_of(b, (n, k, 3, 3)))
    more = {"pads": [1, 1, 1, 1]} if s.chance(0.5) else {}
    if name == "ConvInteger":
        return s.op(name, x, w, *([zero(a)] if s.chance(0.6) else []), **more)
    bias = [s.const(s.random.integers(-99, 99, n), "int32")] if s.chance(0.5) else []
    return s.op(name, x, scale(), zero(a), w, scale(), zero(b), scale(), zero(a), *bias, **more)


__all__ = ["DRAWS", "SIGNED", "draw_graph"]

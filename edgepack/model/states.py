"""States: inputs that are what an output was in the inference before."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgepack.base.errors import perhaps
from edgepack.model.errors import StateError
from edgepack.model.index import GraphIndex

# How exporters of transformers call the caches of a decoder: the start of an input's name, and of
# the output's (optimum, onnxruntime's GenAI and its tools for T5 and Whisper).
_PAST = {"past_key_values": "present", "past": "present"}
# ONNX's metadata in which a converter says which inputs are states, of a format that has states.
_METADATA = "edgepack.states"


def bind_states(path: Path, proto: Any, wanted: Mapping[str, str]) -> dict[str, str]:
    """The outputs that states become, by the inputs that they are.

    `wanted` has names, or patterns with one `*` each, which stands for the same text in both. To
    these come those that the model's own format says, and pairs that are called as exporters do it,
    if they are of one type and shape. An output of `wanted` that is longer than its input along one
    axis is cut: the state is the last part of it. Raises `StateError`.
    """
    from edgepack.model import infer_shapes, tensor_info

    graph = GraphIndex(proto.graph)
    inputs, outputs = graph.inputs, graph.outputs
    pairs = dict(_named(path, list(inputs), list(outputs), wanted))
    said = read_declared(proto)
    found = [
        (name, other)
        for name in inputs
        if (other := said[name][0] if name in said else _present(name)) in outputs
        and name not in pairs
        and other not in pairs.values()
    ]
    if not pairs and not found:
        return {}
    known = {value.name: value for value in infer_shapes(proto).graph.output}
    for name, other in found:
        given, made = tensor_info(inputs[name]), tensor_info(known[other])
        if (given.dtype, given.shape) == (made.dtype, made.shape) and _is_fixed(given.shape):
            pairs[name] = other
    for name, other in pairs.items():
        if not known[other].type.tensor_type.HasField("shape"):
            continue  # nothing infers it, as behind operators of others: the compiler compares
        given, made = tensor_info(inputs[name]), tensor_info(known[other])
        axis = _longer(given.shape, made.shape)
        if axis is not None:
            _keep_last(proto.graph, outputs[other], axis, given.shape)
            made = tensor_info(outputs[other])
        check_state(path, (name, given.dtype, given.shape), (other, made.dtype, made.shape))
    return {name: pairs[name] for name in inputs if name in pairs}


Tensor = tuple[str, str, Sequence[int | str | None]]


def check_state(path: Path, given: Tensor, made: Tensor) -> None:
    """Raise `StateError` unless an input and an output, by name, dtype and shape, can be a state.

    A dimension without a value may be any.
    """
    may_be = len(given[2]) == len(made[2]) and all(
        one == other or not isinstance(one, int) or not isinstance(other, int)
        for one, other in zip(given[2], made[2], strict=True)
    )
    if given[1] != made[1] or not may_be:
        raise StateError(
            f"{path}: input '{given[0]}' is {_text(given)}, "
            f"output '{made[0]}', which it is to keep, {_text(made)}",
            hint="a state and what becomes of it have one type and one shape; an output may be "
            "longer along one axis, of which the last part is kept then",
        )


def _named(
    path: Path, inputs: Sequence[str], outputs: Sequence[str], wanted: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Pairs of names; each input and output is in one of them only."""
    by_output: dict[str, str] = {}
    seen: set[str] = set()
    for pattern, target in wanted.items():
        if pattern.count("*") != target.count("*") or pattern.count("*") > 1:
            raise StateError(
                f"{path}: state {pattern}={target}: both names have one '*', or none has"
            )
        names = [name for name in inputs if _matches(pattern, name) is not None]
        if not names:
            raise StateError(
                f"{path}: state given for '{pattern}', which is not an input",
                hint=perhaps(pattern, inputs),
            )
        for name in names:
            other = target.replace("*", _matches(pattern, name) or "")
            if other not in outputs:
                raise StateError(
                    f"{path}: state '{name}' is to keep '{other}', which is not an output",
                    hint=perhaps(other, outputs),
                )
            if name in seen or other in by_output:
                twice = f"input '{name}'" if name in seen else f"output '{other}'"
                raise StateError(f"{path}: {twice} is in two states")
            seen.add(name)
            by_output[other] = name
            yield name, other


def _matches(pattern: str, name: str) -> str | None:
    """What `*` stands for in a name, "" if the pattern has none; None if it is another name."""
    start, star, end = pattern.partition("*")
    if not star:
        return "" if name == pattern else None
    found = re.fullmatch(f"{re.escape(start)}(.+){re.escape(end)}", name, re.DOTALL)
    return found[1] if found else None


def _present(name: str) -> str:
    """What exporters call the output of a cache, of an input's name; "" if that is none."""
    for past, present in _PAST.items():
        rest = name.removeprefix(past)
        if rest != name and rest[:1] in (".", "_"):
            return present + rest
    return ""


def _is_fixed(shape: Sequence[int | str | None]) -> bool:
    return all(isinstance(size, int) for size in shape)


def _longer(given: Sequence[int | str | None], made: Sequence[int | str | None]) -> int | None:
    """The only axis along which `made` differs, if it is longer there."""
    if len(given) != len(made) or not _is_fixed(given) or not _is_fixed(made):
        return None
    axes = [i for i, (one, other) in enumerate(zip(given, made, strict=True)) if one != other]
    longer = [i for i in axes if int(str(made[i])) > int(str(given[i]))]
    return longer[0] if len(axes) == 1 and longer else None


def _keep_last(graph: Any, output: Any, axis: int, shape: Sequence[int | str | None]) -> None:
    """Let an output be the last part of itself along an axis, as long as `shape` says."""
    import numpy as np
    from onnx import helper, numpy_helper

    whole = f"{output.name}/whole"
    for node in graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name == output.name:
                    names[i] = whole
    bounds = []
    for word, value in (("from", -int(str(shape[axis]))), ("to", 2**63 - 1), ("axis", axis)):
        bounds.append(f"{output.name}/{word}")
        graph.initializer.append(numpy_helper.from_array(np.array([value], "int64"), bounds[-1]))
    graph.node.append(
        helper.make_node("Slice", [whole, *bounds], [output.name], name=f"{output.name}/last")
    )
    for dim, size in zip(output.type.tensor_type.shape.dim, shape, strict=True):
        dim.dim_value = size


def _text(tensor: Tensor) -> str:
    _, dtype, shape = tensor
    return f"{dtype} ({', '.join('?' if size is None else str(size) for size in shape)})"


# ---------------------------------------------------------------- what they begin with


def declare(proto: Any, states: Mapping[str, tuple[str, Any]]) -> None:
    """Write into a converted model which inputs are states: the output that each keeps, and the
    array that it begins with, or None."""
    said: dict[str, tuple[str, list[Any]]] = {}
    for name, (output, start) in states.items():
        values = [] if start is None else start.reshape(-1).tolist()
        # One for all where they are equal.
        said[name] = (output, values[:1] if len(set(values)) == 1 else values)
    if said:
        proto.metadata_props.add(key=_METADATA, value=json.dumps(said))


def read_declared(proto: Any) -> dict[str, tuple[str, list[int | float]]]:
    """What `declare` wrote. What others wrote under its name says nothing."""
    text = next((item.value for item in proto.metadata_props if item.key == _METADATA), "{}")
    try:
        said = json.loads(text)
        found = {name: (output, list(start)) for name, (output, start) in said.items()}
    except (AttributeError, RecursionError, TypeError, ValueError):
        return {}
    are_right = all(
        isinstance(output, str) and all(isinstance(value, int | float) for value in start)
        for output, start in found.values()
    )
    return found if are_right else {}


def starts_of(path: Path, proto: Any, states: Mapping[str, str]) -> dict[str, Any]:
    """What states begin with, as arrays by the inputs' names, where that is not zero.

    It is what the model's format says, else of integers that stand for real numbers the one that
    stands for zero. Raises `StateError` if the format says what cannot be.
    """
    if not states:
        return {}
    import numpy as np

    from edgepack.model import tensor_info

    said, starts = read_declared(proto), {}
    for value in proto.graph.input:
        info = tensor_info(value)
        if info.name not in states or not _is_fixed(info.shape):
            continue
        shape = tuple(int(str(size)) for size in info.shape)
        _, first = said.get(info.name, ("", []))
        if not first and info.dtype in _INTEGERS:
            first = [_zero_point(proto, info.name, states[info.name])]
        try:
            array = np.array(first or [0], info.dtype)
            values = np.broadcast_to(array, shape) if array.size == 1 else array.reshape(shape)
        except (OverflowError, ValueError) as error:
            raise StateError(
                f"{path}: state '{info.name}' cannot begin with what the file says: {error}"
            ) from None
        if values.any():
            starts[info.name] = np.ascontiguousarray(values).reshape(shape)
    return starts


def begin_text(start: Any) -> str:
    """What a state begins with, for a person."""
    first = start.reshape(-1)[0]
    return f"{first}" if (start == first).all() else "values of the file"


_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")


# Where operators on integers have the zero point of an input, by the input's place; those of a
# QLinearConcat come in threes.
_ZERO_POINTS: Mapping[str, Mapping[int, int]] = {
    "DequantizeLinear": {0: 2},
    "QLinearConv": {0: 2},
    "QLinearMatMul": {0: 2, 3: 5},
    "QLinearAdd": {0: 2, 3: 5},
    "QLinearMul": {0: 2, 3: 5},
    "QLinearSigmoid": {0: 2},
    "QLinearLeakyRelu": {0: 2},
    "QLinearSoftmax": {0: 2},
    "QLinearAveragePool": {0: 2},
    "QLinearGlobalAveragePool": {0: 2},
    "QGemm": {0: 2, 3: 5},
    "ConvInteger": {0: 2, 1: 3},
    "MatMulInteger": {0: 2, 1: 3},
    "QLinearConcat": {2 + 3 * i: 4 + 3 * i for i in range(64)},
}
# Operators that only move integers about.
_MOVES = re.compile(
    "Concat|Flatten|Gather|Identity|Pad|Reshape|Slice|Split|Squeeze|Transpose|Unsqueeze|Where"
)


def _zero_point(proto: Any, name: str, output: str) -> int:
    """The integer that stands for zero in a state: of who reads it, else of who makes it."""
    from onnx import numpy_helper

    graph, index = proto.graph, GraphIndex(proto.graph)

    def read(names: Sequence[str], place: int) -> int | None:
        known = index.known.get(names[place]) if place < len(names) else None
        if known is None:
            return None
        found = numpy_helper.to_array(known).reshape(-1)
        return int(found[0]) if found.size == 1 and found.dtype.kind in "iu" else None

    for node, place in _readers(graph.node, name):
        for given, zero in _ZERO_POINTS.get(node.op_type, {}).items():
            if given == place and (found := read(node.input, zero)) is not None:
                return found
    node = index.makers.get(output)
    while node is not None and _MOVES.fullmatch(node.op_type) and node.input:
        node = index.makers.get(node.input[0])
    if node is not None and node.op_type == "QuantizeLinear":
        return read(node.input, 2) or 0
    return 0


def _readers(nodes: Iterable[Any], name: str) -> Iterator[tuple[Any, int]]:
    """The nodes that read a tensor, moved about or not, with the place among their inputs."""
    by_input: dict[str, list[tuple[Any, int]]] = {}
    for node in nodes:
        for place, given in enumerate(node.input):
            by_input.setdefault(given, []).append((node, place))
    left, seen = deque([name]), {name}
    while left:
        for node, place in by_input.get(left.popleft(), ()):
            yield node, place
            if _MOVES.fullmatch(node.op_type):
                left.extend(made for made in node.output if made not in seen)
                seen.update(node.output)


# ---------------------------------------------------------------- what may be states


# Words that tell an input from what becomes of it.
_ENDS = re.compile(
    "in|input|i|out|output|o|prev|previous|past|present|next|new|old|cur|current|init|initial|last"
    "|updated|n"
)
# Words for what a network works on, which it may give back in the same shape.
_DATA = re.compile(
    "images?|img|photo|picture|pixels?|rgb|bgr|frames?|x|y|data|audio|wave?|signal|src|mask|logits"
    "|features|spec|spectrum|tensor|feed|serving|default|args"
)


def propose_states(
    inputs: Sequence[Any], outputs: Sequence[Any], known: Mapping[str, str]
) -> dict[str, str]:
    """Inputs that an output could be kept for, beside the `known` states, as names and shapes tell.

    `inputs` and `outputs` are `TensorInfo`s. Names pair that are equal but for words such as `in`
    and `out`: `in_cache0` and `out_cache0`, `h0` and `hn`. A network needs one input that is no
    state.
    """
    by_name: dict[tuple[str, ...], list[Any]] = {}
    for info in outputs:
        if info.name not in known.values():
            for key in _keys(info.name):
                by_name.setdefault(key, []).append(info)
    found: dict[str, str] = {}
    for info in inputs:
        if info.name in known:
            continue
        pairs = [other for key in _keys(info.name) for other in by_name.get(key, ())]
        pairs = [other for other in pairs if _may_be_one(info, other)]
        names = {other.name for other in pairs} - set(found.values())
        if len(names) == 1:
            found[info.name] = names.pop()
    return found if len(found) + len(known) < len(inputs) else {}


def alike_states(
    inputs: Sequence[Any], outputs: Sequence[Any], known: Mapping[str, str]
) -> dict[str, str]:
    """Inputs that may be states by their shape alone, whatever they are called, beside the `known`
    ones: something to ask about, not to assume.

    As many outputs as inputs have the shape; of several, each goes with the output at its place.
    If all inputs have such a shape, one of them is what the network works on: the first, so those
    of its shape are left out.
    """
    given = [info for info in inputs if info.name not in known]
    made = [info for info in outputs if info.name not in known.values() and _tells(info)]
    fits = {
        info.name: others
        for info in filter(_tells, given)
        if (others := tuple(other.name for other in made if _may_be_one(info, other)))
    }
    pairs = {}
    for name, others in fits.items():
        rivals = [one for one, ones in fits.items() if set(ones) & set(others)]
        if len(rivals) == len(others) and all(fits[one] == others for one in rivals):
            pairs[name] = others[rivals.index(name)]
    if given and len(pairs) == len(given):
        first = fits[given[0].name]
        pairs = {name: other for name, other in pairs.items() if other not in first}
    words = {name: re.split(r"[^a-z]+", name.lower()) for name in pairs}
    return {
        name: other for name, other in pairs.items() if not any(map(_DATA.fullmatch, words[name]))
    }


def _tells(info: Any) -> bool:
    """Whether a shape is one of its own: more than one value, and at most one unknown size."""
    known = [size for size in info.shape if isinstance(size, int)]
    return len(info.shape) > 1 and max(known, default=1) > 1 and len(info.shape) - len(known) < 2


def _may_be_one(given: Any, made: Any) -> bool:
    return (
        given.dtype == made.dtype
        and len(given.shape) == len(made.shape) > 0
        and all(
            one == other or not isinstance(one, int) or not isinstance(other, int)
            for one, other in zip(given.shape, made.shape, strict=True)
        )
    )


def _keys(name: str) -> list[tuple[str, ...]]:
    """What is left of a name without the words that tell inputs from outputs; none if that may be
    anything. A `0` or `n` behind it, as in `h0` and `hn`, may be such a word."""
    # "stateN", "in_cache0" and "lstm.h0" as words.
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])", "_", name)
    words = [word for word in re.split(r"[^A-Za-z0-9]+", spaced.lower()) if word]
    words = [word.removesuffix("n") if word in ("hn", "cn") else word for word in words]
    left = [word for word in words if not _ENDS.fullmatch(word)]
    keys = [tuple(left)]
    if left and left[-1] == "0":
        keys.append(tuple(left[:-1]))
    named = [key for key in keys if any(not word.isdigit() for word in key)]
    return [key for key in named if not any(map(_DATA.fullmatch, key))]

"""States: inputs that are what an output was in the inference before."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgepack.base.errors import perhaps
from edgepack.model.errors import StateError

# How exporters of transformers call the caches of a decoder: the start of an input's name, and of
# the output's (optimum, onnxruntime's GenAI and its tools for T5 and Whisper).
_PAST = {"past_key_values": "present", "past": "present"}


def bind_states(path: Path, proto: Any, wanted: Mapping[str, str]) -> dict[str, str]:
    """The outputs that states become, by the inputs that they are.

    `wanted` has names, or patterns with one `*` each, which stands for the same text in both. To
    these come pairs that are called as exporters do it, if they are of one type and shape. An
    output of `wanted` that is longer than its input along one axis is cut: the state is the last
    part of it. Raises `StateError`.
    """
    from edgepack.model import infer_shapes, tensor_info

    inputs = {value.name: value for value in proto.graph.input}
    outputs = {value.name: value for value in proto.graph.output}
    pairs = dict(_named(path, list(inputs), list(outputs), wanted))
    found = [
        (name, other)
        for name in inputs
        if (other := _present(name)) in outputs
        and name not in pairs
        and other not in pairs.values()
    ]
    if not pairs and not found:
        return {}
    known = {value.name: tensor_info(value) for value in infer_shapes(proto).graph.output}
    for name, other in found:
        given, made = tensor_info(inputs[name]), known[other]
        if (given.dtype, given.shape) == (made.dtype, made.shape) and _is_fixed(given.shape):
            pairs[name] = other
    for name, other in pairs.items():
        given, made = tensor_info(inputs[name]), known[other]
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

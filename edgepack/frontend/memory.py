"""Whether a model fits a board's memory, and constants what may be spent on them."""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from edgepack.boards import Board
from edgepack.frontend.errors import BoardMemoryError, FoldingBudgetError
from edgepack.frontend.owners import title_of
from edgepack.model import TensorInfo, dtype_name, infer_shapes, tensor_info
from edgepack.model.index import GraphIndex
from edgepack.model.structure import subgraphs

_MB = 1 << 20
# What may be computed beforehand: an eighth of what compiling may take (without a limit, of 2 GB),
# for it is copied a few times; and for what quantised weights become, eight times the file.
_FOLDED_PART = 8
_FOLDED_BYTES = 256 * _MB
_FOLDED_PER_BYTE = 8


def check_before(path: Path, expanded: Any, board: Board) -> None:
    """Raise `BoardMemoryError` if a model can be seen not to fit before it is compiled.

    Its inputs, outputs and weights together, or one tensor inside alone, are more than the board
    has.
    """
    graph = infer_shapes(expanded).graph
    weights = weight_bytes(expanded)
    ends = sum(map(_bytes, map(tensor_info, (*graph.input, *graph.output))))
    # Weights may stand among the inputs of what onnx inferred.
    names = {value.name for value in expanded.graph.input}
    ends -= sum(_bytes(tensor_info(v)) for v in graph.input if v.name not in names)
    check_fits(path, ends, weights, board)
    constant = _constants(expanded.graph)
    makers = GraphIndex(expanded.graph).makers
    for info in map(tensor_info, graph.value_info):
        size, node = _bytes(info), makers.get(info.name)
        if size > board.memory_mb * _MB and node is not None and info.name not in constant:
            raise BoardMemoryError(
                f"{path}: the result of {title_of(node)}, "
                f"{info.dtype} {_by(info.shape)}, alone is {_mb(size)}, "
                f"but {board.name} has {board.memory_mb} MB",
                hint=_SMALLER,
            )


_SMALLER = "give the inputs smaller shapes (--shape), or take a smaller model or a larger board"


# Of a board's memory, what weights may take that are stored to be faster.
_WEIGHTS_PART = 4


def most_growth(expanded: Any, board: Board) -> float:
    """How many times a model's weights a board can hold, the rest beside them; 1 or more."""
    return max(1.0, board.memory_mb * _MB / _WEIGHTS_PART / max(1, weight_bytes(expanded)))


def weight_bytes(expanded: Any) -> int:
    """Bytes of a model's weights."""
    return sum(map(bytes_of, expanded.graph.initializer))


def check_fits(path: Path, arena: int, params: int, board: Board) -> None:
    """Raise `BoardMemoryError` if so many bytes are more than the board has."""
    if arena + params > board.memory_mb * _MB:
        raise BoardMemoryError(
            f"{path}: the model needs {_mb(arena + params)} (tensors {_mb(arena)}, "
            f"weights {_mb(params)}), but {board.name} has {board.memory_mb} MB",
            hint=_SMALLER,
        )


def check_folding(path: Path, proto: Any, size_bytes: int) -> None:
    """Raise `FoldingBudgetError` if nodes with constant inputs only make too many bytes.

    `size_bytes` is the size of the model's file. What this process may take decides, too.
    """
    budget = _FOLDED_BYTES + _FOLDED_PER_BYTE * size_bytes
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit != resource.RLIM_INFINITY:
        budget = max(budget, limit // _FOLDED_PART)
    constant = _constants(proto.graph)
    makers = GraphIndex(proto.graph).makers
    total = 0
    graph = infer_shapes(proto, values=False).graph
    for info in map(tensor_info, (*graph.value_info, *graph.output)):
        if info.name not in constant or info.name not in makers:
            continue
        total += _bytes(info)
        if total > budget:
            node = makers[info.name]
            raise FoldingBudgetError(
                f"{path}: constants that are computed beforehand take more than {_mb(budget)}: "
                f"{title_of(node)} makes {info.dtype} {_by(info.shape)}",
                hint="compute it in the application, make it smaller or, if it is right, give the "
                "compiler eight times its memory: --compile-memory-mb MB",
            )


def _constants(graph: Any) -> set[str]:
    """What is known before the first inference."""
    known = {tensor.name for tensor in graph.initializer} | {""}
    for node in graph.node:
        if all(name in known for name in node.input) and not any(subgraphs(node)):
            known.update(node.output)
    return known


def _bytes(info: TensorInfo) -> int:
    sizes = [size for size in info.shape if isinstance(size, int)]
    if len(sizes) < len(info.shape):
        return 0
    return math.prod(sizes) * _itemsize(info.dtype)


def bytes_of(tensor: Any) -> int:
    """Size of an `onnx.TensorProto`'s values."""
    count: int = math.prod(tensor.dims)
    return count * _itemsize(dtype_name(tensor.data_type))


def _itemsize(dtype: str) -> int:
    import numpy as np

    try:
        return np.dtype(dtype).itemsize
    except TypeError:  # text, or what numpy has no name for
        return 1


def _by(shape: Iterator[Any] | Sequence[Any]) -> str:
    return "x".join(map(str, shape))


def _mb(size: int) -> str:
    return f"{-(-size // _MB)} MB"

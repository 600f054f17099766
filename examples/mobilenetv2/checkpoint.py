"""Reads PyTorch checkpoints of the format before 1.6 (not the zip one), without PyTorch.

Such a file is a row of pickles: a magic number, a protocol number, facts of the
machine that wrote it, the state dict (whose tensors name their storage by a key),
and the list of storage keys; then each storage in that order: its number of
elements as an int64, and the elements, all little-endian.
"""

from __future__ import annotations

import collections
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from edgepack.base.errors import ModelError

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001


class CheckpointError(ModelError):
    """The file is not a checkpoint of this format, or is damaged."""


@dataclass
class _Storage:
    dtype: np.dtype[np.generic]
    count: int
    values: np.ndarray = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True)
class _Tensor:
    """A view of a storage; `offset` and `strides` count elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def array(self) -> np.ndarray:
        last = self.offset + sum(
            (size - 1) * step for size, step in zip(self.shape, self.strides, strict=True)
        )
        if not 0 <= self.offset <= last < self.storage.count:
            raise CheckpointError(f"a tensor of shape {self.shape} reaches out of its storage")
        view = np.lib.stride_tricks.as_strided(
            self.storage.values[self.offset :],
            self.shape,
            [step * self.storage.dtype.itemsize for step in self.strides],
            writeable=False,
        )
        return np.ascontiguousarray(view)


def _rebuild_tensor(
    storage: _Storage,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    *_grad_and_hooks: object,
) -> _Tensor:
    return _Tensor(storage, offset, shape, strides)


# The only names that a checkpoint of weights needs: anything else could run code.
_ALLOWED: dict[tuple[str, str], Callable[..., object] | np.dtype[np.generic]] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch", "FloatStorage"): np.dtype("<f4"),
    ("torch", "LongStorage"): np.dtype("<i8"),
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, storages: dict[str, _Storage]) -> None:
        super().__init__(file)
        self._storages = storages

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _ALLOWED:
            raise CheckpointError(f"the checkpoint asks for {module}.{name}, which is not allowed")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: object) -> _Storage:
        match pid:
            case ("storage", np.dtype() as dtype, str(key), str(), int(count), None):
                return self._storages.setdefault(key, _Storage(dtype, count))
        raise CheckpointError(f"the checkpoint holds a reference of an unknown kind: {pid!r}")


def read_checkpoint(path: Path) -> dict[str, np.ndarray]:
    """The state dict in `path`: parameter name -> float32 or int64 array.

    Raises `CheckpointError` if the file is not of this format, is cut short, or
    names anything but tensors.
    """
    storages: dict[str, _Storage] = {}

    with path.open("rb") as file:

        def read() -> object:
            return _Unpickler(file, storages).load()

        try:
            if read() != _MAGIC or read() != _PROTOCOL:
                raise CheckpointError(f"not a PyTorch checkpoint of the old format: {path}")
            read()  # facts of the machine
            state, keys = read(), read()
            if not isinstance(state, dict) or not isinstance(keys, list):
                raise CheckpointError(f"not a state dict: {path}")
            for key in keys:
                storage = storages[key]
                if np.fromfile(file, "<i8", 1).tolist() != [storage.count]:
                    raise CheckpointError(f"storage {key} is not as long as announced: {path}")
                storage.values = np.fromfile(file, storage.dtype, storage.count)
                if storage.values.size != storage.count:
                    raise CheckpointError(f"the checkpoint is cut short: {path}")
        except (pickle.UnpicklingError, EOFError, KeyError, ValueError, TypeError) as error:
            raise CheckpointError(f"not a readable checkpoint: {path}: {error}") from error
    return {name: tensor.array() for name, tensor in state.items() if isinstance(tensor, _Tensor)}

"""Frozen dataclasses as plain values and arrays: what a graph of any kind can carry of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

Plain = int | float | str | Sequence[int] | Sequence[float] | Sequence[str]
_ARRAYS = "arrays"

_T = TypeVar("_T")


def to_parts(record: Any) -> tuple[dict[str, Plain], list[np.ndarray]]:
    """The fields of a record: those that are arrays in order, the others by name.

    A field is a number, a text, a truth value, a tuple of one of these, an array, None, or a record
    itself, whose fields are called "outer.inner". None and empty tuples are left out.
    """
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    plain: dict[str, Plain] = {}
    for name, value in values.items():
        if is_dataclass(value):
            inner, _ = to_parts(value)
            plain |= {f"{name}.{item}": it for item, it in inner.items()}
        elif name not in arrays and value not in (None, ()):
            plain[name] = value
    if arrays:
        plain[_ARRAYS] = tuple(arrays)
    return plain, list(arrays.values())


def from_parts(kind: type[_T], plain: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> _T:
    """The record of `to_parts`. Of `arrays` the last ones are its own; texts may be bytes, and
    numbers and sequences of any type that stands for theirs."""
    names = [_text(name) for name in plain.get(_ARRAYS, ())]
    values: dict[str, Any] = dict(zip(names, arrays[len(arrays) - len(names) :], strict=True))
    for name, hint in _hints(kind).items():  # type: ignore[arg-type]
        if is_dataclass(hint):
            inside = {
                item.removeprefix(f"{name}."): value
                for item, value in plain.items()
                if item.startswith(f"{name}.")
            }
            values[name] = from_parts(hint, inside, ())  # type: ignore[arg-type]
        elif name not in values:
            values[name] = _read(hint, plain.get(name))
    return kind(**values)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _read(hint: Any, value: Any) -> Any:
    if get_origin(hint) is tuple:
        return tuple(_read(get_args(hint)[0], item) for item in value or ())
    if value is None:
        return None
    for kind in (bool, int, float):
        if hint is kind or kind in get_args(hint):
            return kind(value)
    return _text(value)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

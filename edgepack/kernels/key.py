"""A key of all that a layer's kernel is made from, but for the values of its weights.

Equal keys mean equal functions: what a rule makes of a site depends on nothing else. Code must not
depend on the values of weights and of constants per channel, which another version of a model has
others of; `tests/unit/test_known_kernels.py` holds the rules to that.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache

import numpy as np

from edgepack.kernels.choices import maker
from edgepack.kernels.layer import BlockQuantized, Convolution, Layer, Norm, RowProduct
from edgepack.kernels.limits import LayerLimits
from edgepack.kernels.rules.rule import LayerSite, RowsSite, Rule
from edgepack.kernels.rules.table import RULES
from edgepack.kernels.value import Value

# Of these only types and shapes are in the key: their values go into the parameters.
_WEIGHTS: Mapping[type, tuple[str, ...]] = {
    BlockQuantized: ("values", "scale", "zero_point"),
    Convolution: ("weight", "bias"),
    Layer: ("constants",),
    Norm: ("scale", "shift"),
    RowProduct: ("weight", "bias"),
}
# What no rule looks at: where a layer came from, and words for people.
_UNSEEN: Mapping[type, tuple[str, ...]] = {Layer: ("computes",), LayerLimits: ("exact", "reason")}


def key_of_site(rule: Rule, site: LayerSite | RowsSite) -> str:
    """The key of what `rule` makes of `site`; "" if its kernel depends on more than that can say.

    Those are rules that do not say `kept` or are not of the table, and layers on 8-bit integers,
    whose scales are in the code.
    """
    operator = site.layer.operator
    integers = getattr(operator, "quantized", None) is not None
    if integers or not rule.kept or not any(rule is known for known in RULES):
        return ""
    digest = hashlib.sha256()
    for part in (_makers(), rule.name, _Wording().of(site)):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:40]


class _Wording:
    """Text that says everything of what is made of dataclasses."""

    def __init__(self) -> None:
        self._values: dict[int, int] = {}

    def of(self, thing: object, *, by_shape: bool = False) -> str:
        """`by_shape`: the values of arrays are left out."""
        if isinstance(thing, Mapping):
            thing = sorted((self.of(key), self.of(thing[key])) for key in thing)
        elif isinstance(thing, frozenset):
            thing = sorted(map(self.of, thing))
        match thing:
            case None | bool() | int() | float() | str() | Enum():
                return repr(thing)
            case np.generic():
                return f"{thing.dtype}{thing.item()!r}"
            case np.ndarray():
                values = "" if by_shape else hashlib.sha256(thing.tobytes()).hexdigest()
                return f"{thing.dtype}{thing.shape}{values}"
            case Value():
                # Two tensors may be the same one.
                number = self._values.setdefault(id(thing), len(self._values))
                return f"{thing.dtype}{thing.shape}#{number}"
            case list() | tuple():
                return f"({','.join(self.of(item, by_shape=by_shape) for item in thing)})"
        return self._of_fields(thing)

    def _of_fields(self, thing: object) -> str:
        if not is_dataclass(thing):
            raise TypeError(f"no words for {type(thing).__name__}")
        unseen, weights = _named(_UNSEEN, thing), _named(_WEIGHTS, thing)
        parts = [
            f"{name}={self.of(getattr(thing, name), by_shape=name in weights)}"
            for name in (field.name for field in fields(thing))
            if name not in unseen
        ]
        return f"{type(thing).__module__}.{type(thing).__qualname__}({','.join(parts)})"


def _named(table: Mapping[type, tuple[str, ...]], thing: object) -> tuple[str, ...]:
    """The fields that a table names of something's class."""
    return next((names for kind, names in table.items() if isinstance(thing, kind)), ())


@cache
def _makers() -> str:
    return f"{maker()} {importlib.metadata.version('apache-tvm-ffi')}"

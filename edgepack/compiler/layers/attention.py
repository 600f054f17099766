"""Attention: the softmax of products of queries and keys, times values, for each head.

Where the heads lie in memory is kept as strides: the transpositions that exporters write round them
move nothing. Dense layers that make queries, keys or values of the same tensor are made one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard

import numpy as np
import tvm
from tvm import relax

from edgepack.compiler.layers.strided import Source, factor_of, sources
from edgepack.compiler.layers.tensors import constant_of, readers_of, shape_of, variables
from edgepack.frontend.origin import mark, origin_of
from edgepack.kernels.layer import FEWEST_QUERIES, Attention, TensorPart
from edgepack.kernels.places import (
    Places,
    View,
    broadcast,
    columns,
    places,
    reshape_view,
    transpose_view,
)
from edgepack.kernels.value import Origin

Binding = tuple[relax.Var, relax.Expr]
# The narrowest vector of all CPUs: fewer keys or numbers per key are none, nor are rows of values
# that do not fill theirs.
_VECTOR = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class _InMemory:
    """A tensor [heads.., rows, columns] in the memory of a variable, or of a constant."""

    value: relax.Var | np.ndarray
    places: Places


@dataclass(frozen=True, kw_only=True, eq=False)
class Attended:
    """An attention, what it reads, and the bindings that it stands for."""

    operator: Attention
    inputs: tuple[relax.Var, ...]
    inside: tuple[Binding, ...]


@dataclass(frozen=True, kw_only=True)
class Attentions:
    """A function's `bindings`, of each attention only the last one, and without views that nobody
    reads any more; `found` are the attentions by the variables of these."""

    bindings: Sequence[Binding]
    found: Mapping[relax.Var, Attended]


def attentions(
    bindings: Sequence[Binding],
    outputs: Sequence[relax.Var],
    takes: Callable[[Attention], bool] | None = None,
) -> Attentions:
    """The attentions of a function; if not all, those that a device `takes`."""
    search = _Search(bindings, outputs)
    matches = [
        match
        for var, value in bindings
        if _is(value, "nn.softmax")
        and (match := search.around(var, value)) is not None
        and (takes is None or takes(match.attended({}).operator))
    ]
    if not matches:
        return Attentions(bindings=bindings, found={})
    found = {match.result: match for match in matches}
    left = _living(bindings, {var: match.inputs for var, match in found.items()}, outputs)
    left, bases = _joined(left, outputs, found)
    attended = {var: match.attended(bases) for var, match in found.items()}
    return Attentions(
        bindings=_living(left, {var: made.inputs for var, made in attended.items()}, outputs),
        found=attended,
    )


def _living(
    bindings: Sequence[Binding],
    inputs: Mapping[relax.Var, Sequence[relax.Var]],
    outputs: Sequence[relax.Var],
) -> list[Binding]:
    """The bindings that something reads; `inputs` has what those of attentions read."""
    living = set(outputs)
    left = []
    for var, value in reversed(bindings):
        if var in living:
            left.append((var, value))
            living.update(inputs.get(var) or variables(value))
    return left[::-1]


def _is(value: relax.Expr | None, name: str) -> TypeGuard[relax.Call]:
    return isinstance(value, relax.Call) and value.op == tvm.ir.Op.get(f"relax.{name}")


def _is_float(value: relax.Expr) -> bool:
    return str(getattr(value.ty, "dtype", "")) == "float32"


# ------------------------------------------------ what an attention is


@dataclass(frozen=True, kw_only=True, eq=False)
class _Viewed:
    """Views `behind` the views of a source."""

    source: Source
    behind: tuple[View, ...]

    def part(self, bases: Mapping[relax.Var, tuple[relax.Var, tuple[View, ...]]]) -> _InMemory:
        """Where it lies; `bases` has variables that are views of another one now."""
        value, before = bases.get(self.source.value, (self.source.value, ()))
        found = replace(self.source, value=value).places(*before, behind=self.behind)
        assert found is not None
        return _InMemory(value=value, places=found)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Match:
    """An attention whose dense layers are not joined yet."""

    result: relax.Var
    queries: _Viewed
    keys: _Viewed
    values: _Viewed
    masks: tuple[_InMemory, ...]
    scale: float
    written: Places
    inside: tuple[Binding, ...]

    @property
    def bases(self) -> list[relax.Var]:
        """The variables in which queries, keys and values lie."""
        return [viewed.source.value for viewed in (self.queries, self.keys, self.values)]

    @property
    def inputs(self) -> list[relax.Var]:
        masks = (mask.value for mask in self.masks)
        return [*self.bases, *(value for value in masks if isinstance(value, relax.Var))]

    def attended(self, bases: Mapping[relax.Var, tuple[relax.Var, tuple[View, ...]]]) -> Attended:
        """The attention; `bases` are those of `_Viewed.part`."""
        queries, keys, values = (
            viewed.part(bases) for viewed in (self.queries, self.keys, self.values)
        )
        numbers = dict[relax.Var, int]()
        for part in (queries, keys, values, *self.masks):
            if isinstance(part.value, relax.Var):
                numbers.setdefault(part.value, len(numbers))

        def numbered(part: _InMemory) -> TensorPart:
            source = part.value
            if isinstance(source, relax.Var):
                source = numbers[source]
            return TensorPart(source=source, places=part.places)

        return Attended(
            operator=Attention(
                queries=numbered(queries),
                keys=numbered(keys),
                values=numbered(values),
                masks=tuple(map(numbered, self.masks)),
                scale=self.scale,
                result=self.written,
                sizes=tuple(math.prod(shape_of(var)) for var in numbers),
            ),
            inputs=tuple(numbers),
            inside=self.inside,
        )


@dataclass(kw_only=True)
class _Scores:
    """What a softmax is of: a `product` of queries and keys, times `scale`, and tensors that are
    `added`, each with the shape that the scores had then."""

    product: relax.Var
    inside: list[relax.Var]
    scale: float = 1.0
    added: list[tuple[relax.Expr, tuple[int, ...]]] = field(default_factory=list)


class _Search:
    """Looks for attentions in a function."""

    def __init__(self, bindings: Sequence[Binding], outputs: Sequence[relax.Var]) -> None:
        self.bindings = bindings
        self.made = dict(bindings)
        self.kept = set(outputs)
        self.readers = readers_of(bindings)

    def around(self, var: relax.Var, softmax: relax.Call) -> _Match | None:
        """The attention that a softmax is in the middle of."""
        rank = len(shape_of(var))
        if rank < 2 or not _is_float(var) or int(softmax.attrs.axis) % rank != rank - 1:
            return None
        scores, weighted = self._scores(softmax.args[0], var), self._weighted(var)
        if scores is None or weighted is None:
            return None
        first, second = self.made[scores.product], self.made[weighted[-1]]
        *heads, rows, keys = shape_of(scores.product)
        *lead, _, width = shape_of(weighted[-1])
        depth = shape_of(first.args[0])[-1]
        if min(keys, depth) < _VECTOR or width % _VECTOR:
            return None
        full = (*heads, rows, keys)
        result, written = self._written(weighted[-1], (*heads, rows, width))
        queries = self._part(first.args[0], (*heads, rows, depth), (*heads, rows, depth), [-1])
        columns_of_keys = (*heads, depth, keys)
        # Keys that nobody packs have to lie row by row.
        sides = [-2] if rows < FEWEST_QUERIES else [-2, -1]
        turned = self._part(first.args[1], columns_of_keys, columns_of_keys, sides)
        values = self._part(
            second.args[1], (*lead, keys, width), (*heads, keys, width), [-1], exact=True
        )
        masks = [self._mask(value, shape, full) for value, shape in scores.added]
        known = [mask for mask in masks if mask is not None]
        if queries is None or turned is None or values is None or written is None:
            return None
        if len(known) < len(masks):
            return None
        swap = transpose_view([*range(len(heads)), len(heads) + 1, len(heads)])
        inside = {*scores.inside, var, *weighted, *self._path(weighted[-1], result)}
        return _Match(
            result=result,
            queries=queries,
            keys=replace(turned, behind=(*turned.behind, swap)),
            values=values,
            masks=tuple(known),
            scale=scores.scale * queries.source.factor * turned.source.factor,
            written=written,
            inside=tuple(binding for binding in self.bindings if binding[0] in inside),
        )

    def _reader(self, var: relax.Var) -> relax.Var | None:
        """The only one that reads a variable."""
        found = self.readers[var]
        return found[0] if len(found) == 1 and var not in self.kept else None

    def _scores(self, value: relax.Expr, reader: relax.Var) -> _Scores | None:
        """What a softmax is of."""
        found = _Scores(product=reader, inside=[])
        while isinstance(value, relax.Var) and self._reader(value) is not None:
            call = self.made.get(value)
            found.inside.append(value)
            if _is(call, "matmul"):
                found.product = value
                both = all(isinstance(item, relax.Var) and _is_float(item) for item in call.args)
                return found if both and len(shape_of(value)) > 2 else None
            if _is(call, "reshape"):
                if shape_of(call)[-1:] != shape_of(call.args[0])[-1:]:
                    return None
                value = call.args[0]
            elif (multiple := factor_of(call)) is not None:
                value, factor = multiple
                found.scale *= factor
            elif _is(call, "add") and found.scale == 1:
                ours = [item for item in call.args if self._comes_from_product(item)]
                others = [item for item in call.args if item not in ours]
                if len(ours) != 1 or shape_of(ours[0]) != shape_of(value):
                    return None
                found.added.append((others[0], shape_of(value)))
                value = ours[0]
            else:
                return None
        return None

    def _comes_from_product(self, value: relax.Expr) -> bool:
        """Whether it is a product of two tensors, or what may be done to that before a softmax."""
        call = self.made.get(value) if isinstance(value, relax.Var) else None
        if _is(call, "matmul"):
            return isinstance(call.args[1], relax.Var)
        if _is(call, "add"):
            return any(self._comes_from_product(item) for item in call.args)
        if _is(call, "reshape"):
            return self._comes_from_product(call.args[0])
        multiple = factor_of(call)
        return multiple is not None and self._comes_from_product(multiple[0])

    def _weighted(self, var: relax.Var) -> list[relax.Var] | None:
        """The variables from behind a softmax to its product with the values."""
        path: list[relax.Var] = []
        while (reader := self._reader(var)) is not None:
            call = self.made[reader]
            path.append(reader)
            if _is(call, "matmul"):
                right = call.args[1]
                is_values = call.args[0] == var and isinstance(right, relax.Var)
                return path if is_values and _is_float(right) else None
            if not _is(call, "reshape") or shape_of(call)[-1:] != shape_of(var)[-1:]:
                return None
            var = reader
        return None

    def _part(
        self,
        value: relax.Expr,
        full: tuple[int, ...],
        shape: tuple[int, ...],
        axes: Sequence[int],
        *,
        exact: bool = False,
    ) -> _Viewed | None:
        """The farthest variable in whose memory a value lies, with the elements along one of `axes`
        side by side; as `shape`, once it is repeated to be `full`.

        The value may be a multiple of it unless `exact`.
        """
        behind = (broadcast(full), reshape_view(shape))
        for source in reversed(sources(value, self.made)):
            if _is_float(source.value) and not (exact and source.factor != 1):
                there = source.places(behind=behind)
                if there is not None and any(there.strides[axis] == 1 for axis in axes):
                    return _Viewed(source=source, behind=behind)
        return None

    def _mask(
        self, value: relax.Expr, shape: tuple[int, ...], full: tuple[int, ...]
    ) -> _InMemory | None:
        """What is added to scores of `shape`, as `full`."""
        constant = constant_of(value)
        behind = (broadcast(shape), reshape_view(full))
        if constant is not None:
            if constant.dtype != "float32":
                return None
            there = places(constant.shape, behind)
            return _InMemory(value=constant, places=there) if there is not None else None
        for source in reversed(sources(value, self.made)):
            if _is_float(source.value) and source.factor == 1:
                there = source.places(behind=behind)
                if there is not None and there.strides[-1] in (0, 1):
                    return _InMemory(value=source.value, places=there)
        return None

    def _written(self, var: relax.Var, shape: tuple[int, ...]) -> tuple[relax.Var, Places | None]:
        """The last transposition of a product, and where that has the product's elements, as
        `shape`. If its rows do not lie side by side there, it is left out."""
        best = var, places(shape_of(var), [reshape_view(shape)])
        back: list[View] = []
        while (reader := self._reader(var)) is not None:
            call = self.made[reader]
            if _is(call, "permute_dims"):
                axes = [int(axis) for axis in call.attrs.axes or range(len(shape_of(var)))[::-1]]
                back.insert(0, transpose_view(np.argsort(axes).tolist()))
                there = places(shape_of(reader), [*back, reshape_view(shape)])
                if there is not None and there.strides[-1] == 1:
                    best = reader, there
            elif _is(call, "reshape"):
                back.insert(0, reshape_view(shape_of(var)))
            else:
                break
            var = reader
        return best

    def _path(self, first: relax.Var, last: relax.Var) -> list[relax.Var]:
        """The variables from one to another that is read from it alone."""
        path = [first]
        while path[-1] != last:
            reader = self._reader(path[-1])
            assert reader is not None
            path.append(reader)
        return path


# ------------------------------------------------ dense layers of the same input


@dataclass(frozen=True, kw_only=True, eq=False)
class _Dense:
    """A variable that is rows of `rows`, a view of `source`, times `weight`, plus `bias`."""

    var: relax.Var
    rows: relax.Var
    source: relax.Var
    weight: np.ndarray
    bias: np.ndarray
    origins: tuple[Origin, ...]


def _joined(
    bindings: Sequence[Binding], outputs: Sequence[relax.Var], found: Mapping[relax.Var, _Match]
) -> tuple[list[Binding], dict[relax.Var, tuple[relax.Var, tuple[View, ...]]]]:
    """The bindings with one dense layer for those of the same input that only attentions read; and
    of which columns of it each of those is a view now."""
    made, readers = dict(bindings), readers_of(bindings)
    groups = defaultdict[relax.Var, dict[relax.Var, _Dense]](dict)
    for match in found.values():
        for base in match.bases:
            others = [reader for reader in readers[base] if reader not in found]
            dense = _dense(base, made, readers)
            if not others and base not in outputs and dense is not None:
                groups[dense.source][base] = dense
    bases: dict[relax.Var, tuple[relax.Var, tuple[View, ...]]] = {}
    added: dict[relax.Var, list[Binding]] = {}
    typed = relax.BlockBuilder().normalize
    for group in groups.values():
        members = [group[var] for var, _ in bindings if var in group]
        if len(members) < 2:
            continue
        first = members[0]
        made_here: list[Binding] = []

        origins = [origin for member in members for origin in member.origins]

        def bind(
            name: str,
            call: relax.Call,
            first: _Dense,
            bound: list[Binding],
            origins: Sequence[Origin],
        ) -> relax.Var:
            if origins:
                others = tuple(origin.name for origin in origins[1:])
                call = mark(call, replace(origins[0], result="", others=others))
            call = typed(call)
            bound.append((relax.Var(f"{first.var.name}_{name}", call.ty), call))
            return bound[-1][0]

        weight = np.concatenate([member.weight for member in members], axis=1)
        bias = np.concatenate([member.bias for member in members])
        product = relax.op.matmul(first.rows, relax.const(weight))
        rows = bind("product", product, first, made_here, origins)
        sums = relax.op.add(rows, relax.const(bias))
        joint = bind("joint", sums, first, made_here, origins)
        start = 0
        for member in members:
            width = len(member.bias)
            shape = shape_of(member.var)
            bases[member.var] = joint, (columns(start, width), reshape_view(shape))
            start += width
        added[first.var] = made_here
    left: list[Binding] = []
    for binding in bindings:
        left += added.get(binding[0], [binding])
    return left, bases


def _dense(
    var: relax.Var,
    made: Mapping[relax.Var, relax.Expr],
    readers: Mapping[relax.Var, Sequence[relax.Var]],
) -> _Dense | None:
    """The dense layer that a variable is the result of, if nothing else reads the product."""
    call, bias = made.get(var), None
    product = call
    if _is(call, "add"):
        constants = [constant_of(item) for item in call.args]
        data = [item for item in call.args if isinstance(item, relax.Var)]
        bias = next((item for item in constants if item is not None), None)
        if bias is None or len(data) != 1 or len(readers[data[0]]) != 1:
            return None
        product = made.get(data[0])
    if not _is(product, "matmul") or not isinstance(product.args[0], relax.Var):
        return None
    weight = constant_of(product.args[1])
    if weight is None or weight.ndim != 2 or weight.dtype != "float32":
        return None
    width = weight.shape[1]
    bias = np.zeros(width, "float32") if bias is None else bias
    if bias.dtype != "float32" or bias.size != width or bias.shape[-1] != width:
        return None
    rows = product.args[0]
    before = made.get(rows)
    source = rows
    if _is(before, "reshape") and isinstance(before.args[0], relax.Var):
        whole = shape_of(before.args[0])[-1:] == shape_of(rows)[-1:]
        source = before.args[0] if whole else rows
    return _Dense(
        var=var,
        rows=rows,
        source=source,
        weight=weight,
        bias=bias.reshape(width),
        origins=tuple(dict.fromkeys(filter(None, map(origin_of, (product, call))))),
    )

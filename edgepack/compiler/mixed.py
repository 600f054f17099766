"""Which layers of a quantised model are left in float, for that is faster.

Each operator that could be done on integers has a price in cycles either way, and so has the change
between integers and numbers, once for each tensor that is read as both. A tensor that does not fit
the cache goes to memory and comes back; numbers have four times the bytes. The cheapest way to part
the whole graph in two is the smallest cut, so that a layer that pays on integers only together with
its neighbours is found, too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgepack.base.minimum_cut import MinimumCut
from edgepack.compiler.settings import CompileSettings
from edgepack.frontend.integer_recognition import Recognition, Taken
from edgepack.kernels import integer
from edgepack.kernels.choices import FRESH, Ranked, Way
from edgepack.kernels.integer import IntegerOperator, Steps
from edgepack.kernels.layer import (
    Convolution,
    GlobalPooling,
    Layer,
    Operator,
    Pooling,
    TransposedConvolution,
)
from edgepack.kernels.price import cycles_of
from edgepack.kernels.rules.rule import Rule, product
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT16, FLOAT32, INT8, Element
from edgepack.kernels.value import Value

# The cost model is good to some tenth, and floats take four times the bytes and more: they have to
# be so much faster.
_MARGIN = 1.1
# Whole networks on integers are equal everywhere to the bit: less than this is not worth the loss.
_ENOUGH = 0.95
# The highest price of a byte in cycles, and how many are tried.
_DEAREST, _TRIED = 1e3, 24


def left_in_float(
    found: Recognition,
    cpu: CpuModel,
    settings: CompileSettings,
) -> dict[str, str]:
    """The nodes that are not done on integers, by name, and why.

    All weights take at most `settings.growth` times the bytes of the model's, if what it could do
    on integers is so.
    """
    prices = _Prices(found, cpu, settings)
    tensors = list(_tensors(found))
    spare = (settings.growth - 1) * sum(map(_weight_bytes, found.taken.values()))
    whole, kept = set(found.taken), _parted(found, prices, tensors)
    if _more_bytes(found, prices, kept) > spare:
        # Bytes get a price: the lowest one for which they fit.
        low, high = 0.0, _DEAREST
        kept = whole
        for _ in range(_TRIED):
            prices.per_byte = (low * high) ** 0.5 if low else high * 1e-6
            some = _parted(found, prices, tensors)
            if _more_bytes(found, prices, some) > spare:
                low = prices.per_byte
            else:
                high, kept = prices.per_byte, some
        prices.per_byte = high
    if _cycles(found, prices, tensors, kept) > _ENOUGH * _cycles(found, prices, tensors, whole):
        return {}
    left = {}
    for name, taken in found.taken.items():
        if name not in kept:
            integers, real = prices.of(name, taken)
            left[taken.node_name] = (
                f"that is faster: {real.cycles / 1e3:.0f} K cycles, "
                f"{integers / 1e3:.0f} on integers"
                if real.cycles < integers
                else "its neighbours do"
            )
    return left


def growth_of(found: Recognition, floats: Collection[str]) -> float:
    """How many times the bytes of integers weights take if those of `floats` are in float."""
    given = sum(map(_weight_bytes, found.taken.values()))
    more = sum(_weight_bytes(taken) for taken in found.taken.values() if taken.node_name in floats)
    return 1 + (FLOAT32.bytes - 1) * more / max(1, given)


def _weight_bytes(taken: Taken) -> int:
    operator = taken.operator
    products = integer.IntegerConvolution | integer.IntegerTransposed
    return operator.weight.size if isinstance(operator, products) else 0


def _more_bytes(found: Recognition, prices: _Prices, kept: Collection[str]) -> float:
    """What weights take beyond integers."""
    return sum(
        prices.of(name, taken)[1].more_bytes
        for name, taken in found.taken.items()
        if name not in kept
    )


def _parted(found: Recognition, prices: _Prices, tensors: Sequence[_Tensor]) -> set[str]:
    """What is done on integers where the whole graph is cheapest."""
    parting = MinimumCut()
    for name, taken in found.taken.items():
        whole, real = prices.of(name, taken)
        # On the first side is what is done on integers.
        parting.cost(name, parting.SECOND, whole)
        parting.cost(parting.FIRST, name, real.cycles * _MARGIN + real.more_bytes * prices.per_byte)
    for tensor in tensors:
        maker = tensor.name if tensor.name in found.taken else parting.SECOND
        parting.cost(maker, (tensor.name, "numbers"), prices.numbers(tensor.name))
        for reader in (*tensor.readers, *[parting.SECOND] * tensor.is_read_outside):
            parting.never((tensor.name, "numbers"), reader)
        parting.cost((tensor.name, "integers"), maker, prices.integers(tensor.name))
        for reader in tensor.readers:
            parting.never(reader, (tensor.name, "integers"))
    first = parting.first()
    return {name for name in found.taken if name in first}


@dataclass(frozen=True, kw_only=True)
class _Tensor:
    """A tensor that may be integers, with the operators in `Recognition.taken` that read it;
    `is_read_outside` says whether anything else does, which is done on numbers."""

    name: str
    readers: frozenset[str]
    is_read_outside: bool


def _tensors(found: Recognition) -> Iterator[_Tensor]:
    readers: dict[str, set[str]] = {name: set() for name in found.taken}
    for name, taken in found.taken.items():
        for given in taken.inputs:
            readers.setdefault(found.flat.get(given, given), set()).add(name)
    nodes = {id(taken.node) for taken in found.taken.values()}
    for name, inside in readers.items():
        numbers = [value for node in found.readers[name] for value in node.output]
        others = [node for value in numbers for node in found.readers[value]]
        is_read_outside = any(value in found.outputs for value in numbers) or not all(
            id(node) in nodes or node.op_type in _PASSING for node in others
        )
        yield _Tensor(name=name, readers=frozenset(inside), is_read_outside=is_read_outside)


def _cycles(
    found: Recognition, prices: _Prices, tensors: Sequence[_Tensor], kept: Collection[str]
) -> float:
    """The whole graph, with some of the operators on integers."""
    total = 0.0
    for name, taken in found.taken.items():
        integers, real = prices.of(name, taken)
        total += integers if name in kept else real.cycles
    for tensor in tensors:
        whole = [name for name in tensor.readers if name in kept]
        if tensor.name in kept:
            if tensor.is_read_outside or len(whole) < len(tensor.readers):
                total += prices.numbers(tensor.name)
        elif whole:
            total += prices.integers(tensor.name)
    return total


# They make a row of an image, whose readers are those of `by_integers`.
_PASSING = ("Flatten", "Reshape", "Squeeze")


class _Prices:
    """Cycles by the cost model. A byte that weights take beyond integers costs `per_byte`."""

    def __init__(self, found: Recognition, cpu: CpuModel, settings: CompileSettings) -> None:
        self.found, self.cpu, self.rules = found, cpu, settings.tried
        halves = settings.precision.is_half and cpu.computes(FLOAT16)
        self.element = FLOAT16 if halves else FLOAT32
        self.per_byte = 0.0
        self._known: dict[str, tuple[float, list[Ranked]]] = {}

    def of(self, name: str, taken: Taken) -> tuple[float, Ranked]:
        """Cycles of an operator on integers, and the form in float that costs least now."""
        if name not in self._known:
            shapes = [self._shape(item) for item in taken.inputs]
            out = taken.operator.shape(shapes)
            if isinstance(taken.operator, integer.IntegerFlatten):
                # Nothing either way: as what is around it.
                self._known[name] = 0.0, [Ranked(choice=_PLAIN, cycles=1.0)]
            else:
                moved = [*shapes, out]
                # In float a sum is made where its last part is, which reads the other one.
                is_sum = isinstance(taken.operator, integer.IntegerSum)
                more = self._traffic(shapes[:1] if is_sum else moved, self.element)
                forms = self._in_float(taken.operator, shapes, out)
                self._known[name] = (
                    self._cycles(taken.operator, shapes, out, INT8) + self._traffic(moved, INT8),
                    [replace(form, cycles=form.cycles + more) for form in forms],
                )
        whole, forms = self._known[name]
        return whole, min(forms, key=lambda one: one.cycles + one.more_bytes * self.per_byte)

    def _traffic(self, shapes: Sequence[Sequence[int]], element: Element) -> float:
        """Cycles to read or write tensors that are too large for the cache."""
        sizes = [product(shape) * element.bytes for shape in shapes]
        return sum(size for size in sizes if size > self.cpu.l2_bytes) / self.cpu.memory_bandwidth

    def numbers(self, tensor: str) -> float:
        """Numbers of a tensor of integers."""
        shape = self._shape(tensor)
        operator = integer.FromIntegers(steps=_ANY)
        return self._changed(shape) + self._cycles(operator, [shape], shape, self.element, INT8)

    def integers(self, tensor: str) -> float:
        """Integers of a tensor of numbers."""
        shape = self._shape(tensor)
        operator = integer.ToIntegers(steps=_ANY)
        return self._changed(shape) + self._cycles(operator, [shape], shape, INT8, self.element)

    def _changed(self, shape: Sequence[int]) -> float:
        """Cycles to move a tensor of either type."""
        return self._traffic([shape], INT8) + self._traffic([shape], self.element)

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.found.shapes[name])

    def _in_float(
        self, operator: IntegerOperator, shapes: Sequence[Sequence[int]], out: Sequence[int]
    ) -> list[Ranked]:
        if isinstance(operator, integer.IntegerConvolution):
            same = Convolution(
                # In float they are no whole numbers, which Winograd's rule leaves alone.
                weight=operator.weight * np.float32(0.1),
                bias=None,
                stride=operator.stride,
                before=operator.before,
                dilation=operator.dilation,
                groups=operator.groups,
            )
            layer = self._layer(same, shapes, out, self.element)
            more = operator.weight.size * (self.element.bytes - 1)
            return [replace(form, more_bytes=form.more_bytes + more) for form in self._forms(layer)]
        if isinstance(operator, integer.IntegerTransposed):
            transposed = TransposedConvolution(
                weight=operator.weight * np.float32(0.1),
                bias=None,
                stride=operator.stride,
                before=operator.before,
                dilation=(1, 1),
                groups=operator.groups,
            )
            cycles = self._cycles(transposed, shapes, out, self.element)
            more = operator.weight.size * (self.element.bytes - 1)
            return [Ranked(choice=_PLAIN, cycles=cycles, more_bytes=more)]
        return [Ranked(choice=_PLAIN, cycles=self._alike(operator, shapes, out))]

    def _forms(self, layer: Layer) -> list[Ranked]:
        """The plain one, and those that are faster for they store more weights."""
        able = self._able(layer.element)
        plain = [rule for rule in able if not rule.more_weights]
        found = [Ranked(choice=_PLAIN, cycles=cycles_of(layer, self.cpu, plain) or math.inf)]
        for rule in able:
            if rule.forms is not None and rule.takes(layer, self.cpu):
                # Whether there is memory for fresh weights is not known yet.
                forms = rule.forms(layer, self.cpu)[1:]
                found += [form for form in forms if form.choice.weights != FRESH]
        return found

    def _alike(
        self, operator: IntegerOperator, shapes: Sequence[Sequence[int]], out: Sequence[int]
    ) -> float:
        """Cycles of what has no weights."""
        if isinstance(operator, integer.IntegerMean):
            return self._cycles(GlobalPooling(kind="average"), shapes, out, self.element)
        if isinstance(operator, integer.IntegerPooling):
            pooling = Pooling(
                kind="average" if operator.average else "max",
                kernel=operator.kernel,
                stride=operator.stride,
                before=operator.before,
                after=operator.after,
                dilation=operator.dilation,
                count_padding=False,
            )
            return self._cycles(pooling, shapes, out, self.element)
        if isinstance(operator, integer.IntegerTable):
            # Functions like a sigmoid take about so many instructions. A guess.
            return 20 * product(out) / self.cpu.widest(self.element)
        if isinstance(operator, integer.IntegerSum | integer.IntegerProduct):
            # Done where the last of both is made, which reads the other one for it.
            vectors = product(out) / self.cpu.widest(self.element)
            return vectors / self.cpu.loads_per_cycle
        # Loads and stores of each vector; between pixels multiply-adds, of four of them.
        moves = {integer.IntegerChoice: 2.0, integer.IntegerInterpolation: 8.0}
        if type(operator) in moves:
            return moves[type(operator)] * product(out) / self.cpu.widest(self.element)
        return 0.0  # parts of a concatenation are made in their places

    def _cycles(
        self,
        operator: Operator,
        shapes: Sequence[Sequence[int]],
        out: Sequence[int],
        element: Element,
        reads: Element | None = None,
    ) -> float:
        layer = self._layer(operator, shapes, out, element, reads)
        found = cycles_of(layer, self.cpu, self._able(element))
        if found is None:  # TVM makes it, which is slow
            return _SLOW * product(out)
        return found

    def _able(self, element: Element) -> list[Rule]:
        return [rule for rule in self.rules if rule.halves or element != FLOAT16]

    @staticmethod
    def _layer(
        operator: Operator,
        shapes: Sequence[Sequence[int]],
        out: Sequence[int],
        element: Element,
        reads: Element | None = None,
    ) -> Layer:
        return Layer(
            operator=operator,
            inputs=tuple(_value(shape) for shape in shapes),
            output=_value(out),
            element=element,
            reads=reads,
            weights=FLOAT16 if element == FLOAT16 else FLOAT32,
        )


_ANY = Steps(scale=1.0, zero=0)
_PLAIN = Way(rule="")
# Cycles per element of what has no kernel. A guess.
_SLOW = 4.0


def _value(shape: Sequence[int]) -> Value:
    return Value(name="value", shape=tuple(shape))

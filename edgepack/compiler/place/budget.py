"""What may be stored beyond a model's weights, and which layers it is spent on.

A rule that is fast because it stores more weights (Winograd's) has several forms of a layer, each
with its bytes and the cost model's cycles, and those count what it reads from memory.
Of all layers those forms are taken that save most cycles within the bytes there are, and are worth
their bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from edgepack.kernels.choices import FRESH, Choices, Ranked, Way
from edgepack.kernels.layer import Convolution, Layer
from edgepack.kernels.limits import LimitsByValue
from edgepack.kernels.rules.rule import Rule
from edgepack.kernels.signature import signature_of
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.value import extent

# Parts that the bytes are counted in.
_PARTS = 2048
# What is not the plain form has to take this part of all layers' time away: it takes longer to
# compile, and more of the arena.
_WORTH_A_KERNEL = 0.005
# Twice the bytes have to take at least this part of the time away: they fill flash, and what else a
# board does reads memory, too.
_WORTH = 0.02


def spare_bytes(
    main: relax.Function, layers: Iterable[Layer], cpu: CpuModel, growth: float
) -> float:
    """What is left of `growth` times the constants' bytes if all are stored in plain form."""
    if growth == math.inf:
        return math.inf
    given = constant_bytes(main)
    padding = 0
    for layer in layers:
        operator = layer.operator
        if not isinstance(operator, Convolution):
            continue
        weight = operator.weight
        given -= weight.size * (weight.itemsize - layer.weights.bytes)
        outs = extent(layer.output)[1]
        block = cpu.block(outs, layer.element)
        padding += (-outs % block) * (weight.size // len(weight)) * layer.weights.bytes
    return max(0.0, (growth - 1) * given - padding)


def constant_bytes(main: relax.Function) -> int:
    """Of all constants of a function."""
    found = 0

    def add(constant: tvm.ir.GenericConst) -> None:
        nonlocal found
        shape = (int(size) for size in constant.ty.shape)
        found += math.prod(shape) * np.dtype(str(constant.ty.dtype)).itemsize

    tvm_ffi.structural_walk(main.body, (tvm.ir.GenericConst, add))
    return found


def forms_within(
    layers: Sequence[Layer],
    cpu: CpuModel,
    rules: Collection[Rule],
    spare: float,
    fixed: Choices,
    *,
    limits: LimitsByValue,
    frugal: bool = True,
    room: Callable[[Layer], int] | None = None,
) -> Choices:
    """The forms of layers within their `limits`, by signature; none if all are to have the fastest.

    Nothing is said of layers with a choice in `fixed`, whose bytes count. `frugal`: bytes are to be
    worth it, also where there is room for them. `room` tells the bytes of scratch memory that there
    are for kernels which transform weights in each run; without it none does.
    """
    forms: dict[str, list[Ranked]] = {}
    weights = 0
    alike: dict[str, list[Layer]] = {}
    for layer in layers:
        if signature := signature_of(layer, limits):
            alike.setdefault(signature, []).append(layer)
    for signature, group in alike.items():
        layer = group[0]
        own = limits.of(layer)
        able = (rule.within(own) for rule in rules)
        rule = next((rule for rule in able if rule.takes(layer, cpu)), None)
        if rule is None or rule.forms is None:
            continue
        found = rule.forms(layer, cpu)
        if signature in fixed:
            spare -= len(group) * _bytes_of(found, fixed[signature])
            continue
        found = list(filter(_is_stored, found))
        if room is not None and isinstance(layer.operator, Convolution):
            told = rule.within(replace(own, room=min(map(room, group))))
            assert told.forms is not None
            found += itertools.filterfalse(_is_stored, told.forms(layer, cpu))
        weights += sum(map(_plain_bytes, group))
        # One kernel for all of them.
        forms[signature] = [_times(len(group), form) for form in found]
    # What rules do of themselves.
    fastest = [min(filter(_is_stored, found), key=_cycles) for found in forms.values()]
    total = sum(map(_cycles, fastest))
    of_byte = _WORTH * total / max(1, weights) if frugal else 0.0

    def price(form: Ranked) -> Ranked:
        of_kernel = _WORTH_A_KERNEL * total if form.choice.results and frugal else 0.0
        return replace(form, cycles=form.cycles + of_byte * form.more_bytes + of_kernel)

    priced = [list(map(price, found)) for found in forms.values()]
    best = [min(found, key=_cycles) for found in priced]
    if sum(form.more_bytes for form in best) > spare:
        best = cheapest(priced, spare)
    if [form.choice for form in best] == [form.choice for form in fastest]:
        return {}
    return {signature: form.choice for signature, form in zip(forms, best, strict=True)}


def _is_stored(form: Ranked) -> bool:
    return form.choice.weights != FRESH


def _cycles(form: Ranked) -> float:
    return form.cycles


def _plain_bytes(layer: Layer) -> int:
    operator = layer.operator
    return operator.weight.size * layer.weights.bytes if isinstance(operator, Convolution) else 0


def _bytes_of(forms: Sequence[Ranked], choice: Way) -> int:
    found = (form for form in forms if form.choice.form == choice.form)
    return max((form.more_bytes for form in found), default=0)


def _times(count: int, form: Ranked) -> Ranked:
    return replace(form, cycles=count * form.cycles, more_bytes=count * form.more_bytes)


def cheapest(items: Sequence[Sequence[Ranked]], spare: float) -> list[Ranked]:
    """A form of each item, such that cycles are fewest and more bytes than `spare` are not taken.

    The first form of each takes none.
    """
    part = max(1, math.ceil(max(0.0, spare) / _PARTS))
    room = int(max(0.0, spare) // part)
    # The fewest cycles of the items so far, by the parts they may take; and the forms for that.
    cycles = np.zeros(room + 1)
    taken = []
    for forms in items:
        options = np.full((len(forms), room + 1), np.inf)
        for index, form in enumerate(forms):
            size = -(-form.more_bytes // part)
            if size <= room:
                options[index, size:] = cycles[: room + 1 - size] + form.cycles
        taken.append(options.argmin(axis=0))
        cycles = options.min(axis=0)
    chosen = []
    for forms, best in zip(reversed(items), reversed(taken), strict=True):
        form = forms[int(best[room])]
        room -= -(-form.more_bytes // part)
        chosen.append(form)
    return chosen[::-1]

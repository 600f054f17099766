"""Recurrent layers over a whole sequence: LSTM, GRU and RNN of one direction.

What the inputs contribute to the gates is a product over all steps at once, made before. Here each
step adds what the state contributes. Units are taken in blocks, of which a pass keeps all gates in
registers while it goes through the state once: the weights of a block lie in the order in which
they are read. What becomes of the gates follows for all units at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tvm import tirx

from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.tiles.element import FLOAT32
from edgepack.kernels.tiles.requantise import round_half_to_even
from edgepack.kernels.whole import kernel

# Units of a block, of which a pass keeps all gates in registers, most first.
_BLOCKS = (64, 32, 16, 8, 4)
# Turns of a pass that are one, where there are registers for what they load. With fewer LLVM, which
# moves loads up, stores some of the sums in each turn: a step of an LSTM on a Cortex-A9 takes 1.1
# times the instructions.
_UNROLLED, _REGISTERS_TO_UNROLL = 4, 32

Activation = Callable[[tirx.Expr], tirx.Expr]

# Numbers of a range in scratch memory: the least, the largest, the step, the zero point.
_RANGE = 4
_STEPS = 255.0

# Names of the gates in the order that ONNX has them in.
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@dataclass(frozen=True, kw_only=True)
class Recurrent:
    """One direction of a layer.

    `activations` are those of the gates, the candidate and, for LSTM, the cell, in ONNX's order.
    `clip` limits what goes into them. `joined`: the forget gate of an LSTM is 1 less the input
    gate. `reset_after`: a GRU's reset gate comes after the product with the weights
    (linear_before_reset). `quantised`: before each step the state is rounded to 256 steps between
    its least and its largest element, as onnxruntime's DynamicQuantizeLSTM does.
    """

    kind: str
    steps: int
    batch: int
    size: int
    dtype: str
    activations: Sequence[Activation]
    cpu: CpuModel
    backwards: bool = False
    clip: float = 0.0
    joined: bool = False
    reset_after: bool = False
    has_lengths: bool = False
    has_peepholes: bool = False
    quantised: bool = False

    @property
    def passes(self) -> list[range]:
        """Which gates are made of one and the same vector. A GRU's candidate is made of the state
        that is reset, if that comes first."""
        count = GATES[self.kind]
        apart = self.kind == "GRU" and not self.reset_after
        return [range(2), range(2, 3)] if apart else [range(count)]

    @cached_property
    def block(self) -> int:
        """Units whose gates are summed up at once, in half of the registers at most."""
        cpu, gates = self.cpu, max(map(len, self.passes))

        def vectors(units: int) -> tuple[int, int]:
            """Of one gate, and their lanes."""
            lanes = min(units, cpu.widest(FLOAT32))
            return units // lanes, lanes

        def cycles(units: int) -> float:
            """Of an element of the state: each sum waits for what it was before."""
            count, lanes = vectors(units)
            each = max(gates * count / cpu.rate(FLOAT32, lanes), cpu.fma_latency)
            return -(-self.size // units) * each

        able = [units for units in _BLOCKS if gates * vectors(units)[0] <= cpu.registers // 2]
        return min(able, key=cycles)

    @property
    def units(self) -> int:
        """Those of whole blocks. The last ones may be nobody's: weights of 0."""
        return -(-self.size // self.block) * self.block

    @property
    def width(self) -> int:
        """Elements of all gates."""
        return GATES[self.kind] * self.units

    def weight_shape(self, gates: range) -> tuple[int, ...]:
        """That of a pass's weights: by block, element of the state, gate and unit."""
        return (self.units // self.block, self.size, len(gates), self.block)

    def inputs(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shapes and types of the kernel's inputs, by name, in order."""
        state = (self.batch, self.size)
        every = {
            "gates": ((self.steps, self.batch, self.width), self.dtype),
            **{
                f"weights{number}": (self.weight_shape(gates), self.dtype)
                for number, gates in enumerate(self.passes)
            },
            "hidden": (state, self.dtype),
            "cell": (state, self.dtype) if self.kind == "LSTM" else None,
            # What a reset gate that comes after the product resets beside it.
            "bias": ((self.units,), self.dtype) if self.reset_after else None,
            "peepholes": ((3 * self.size,), self.dtype) if self.has_peepholes else None,
            "lengths": ((self.batch,), "int32") if self.has_lengths else None,
        }
        return {name: kind for name, kind in every.items() if kind is not None}

    def results(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """The same of its results, of which the last is scratch memory."""
        state = ((self.batch, self.size), self.dtype)
        made = {"sequence": ((self.steps, self.batch, self.size), self.dtype), "last": state}
        if self.kind == "LSTM":
            made["last_cell"] = state
        room = self.rounded
        if self.quantised:
            room += self.batch * self.size + _RANGE
        return {**made, "sums": ((room,), self.dtype)}

    @property
    def rounded(self) -> int:
        """Where in the scratch memory the rounded states are, and the numbers of their range:
        after the gates and a GRU's reset state."""
        return self.width + (self.units if len(self.passes) > 1 else 0)

    def function(self) -> tirx.PrimFunc:
        """The kernel."""
        given = {name: tir.buffer(name, *kind) for name, kind in self.inputs().items()}
        made = {name: tir.buffer(name, *kind) for name, kind in self.results().items()}
        return kernel(list(given.values()), list(made.values()), _Body(self, given, made).all())


@dataclass(frozen=True)
class _Body:
    layer: Recurrent
    given: dict[str, tirx.Buffer]
    made: dict[str, tirx.Buffer]

    def all(self) -> tir.Stmt:
        states = [("hidden", "last"), ("cell", "last_cell")]

        def start(b: tir.Expr) -> tir.Stmt:
            return tir.sequence(*(self.copy(*pair, b) for pair in states if pair[0] in self.given))

        def step(t: tir.Expr) -> tir.Stmt:
            turns = tir.loop_of("b", self.layer.batch, lambda b: self.turn(t, b))
            return tir.sequence(self.quantise(t), turns) if self.layer.quantised else turns

        def empty(b: tir.Expr) -> tir.Stmt:
            """The last state of a sequence without steps is 0, as onnxruntime has it."""
            zero = tirx.const(0, self.layer.dtype)

            def clear(name: str) -> tir.Stmt:
                return self.each(lambda u: self.put(name, zero, b, u))

            made = tir.sequence(*(clear(last) for given, last in states if given in self.given))
            return tirx.IfThenElse(self.get("lengths", b) <= 0, made, None)

        ends = [tir.loop_of("b", self.layer.batch, empty)] if self.layer.has_lengths else []
        return tir.sequence(
            tir.loop_of("b", self.layer.batch, start),
            tir.loop_of("t", self.layer.steps, step),
            *ends,
        )

    def turn(self, t: tir.Expr, b: tir.Expr) -> tir.Stmt:
        """A step of one sequence; after its end zeros."""
        layer = self.layer
        make = {"LSTM": self.lstm, "GRU": self.gru, "RNN": self.rnn}[layer.kind]
        if not layer.has_lengths:
            return make(layer.steps - 1 - t if layer.backwards else t, b)
        length = self.get("lengths", b)
        at = length - 1 - t if layer.backwards else t
        zero = tirx.const(0, layer.dtype)
        return tirx.IfThenElse(
            tir.expr(t) < length,
            make(at, b),
            self.each(lambda u: self.put("sequence", zero, t, b, u)),
        )

    def quantise(self, t: tir.Expr) -> tir.Stmt:
        """Round the states of all sequences, in one range that has 0 in it, and what was made in
        the step before `t`."""
        layer = self.layer
        start = layer.rounded + layer.batch * layer.size
        zero, one, most = (tirx.const(value, layer.dtype) for value in (0.0, 1.0, _STEPS))

        def number(at: int) -> tirx.Expr:
            return self.get("sums", start + at)

        def limited(value: tirx.Expr) -> tirx.Expr:
            return tirx.max(tirx.min(value, most), zero)

        def every(body: Callable[[tir.Expr, tir.Expr], tir.Stmt]) -> tir.Stmt:
            return tir.loop_of("b", layer.batch, lambda b: self.each(lambda u: body(b, u)))

        def goes_on(b: tir.Expr, body: tir.Stmt) -> tir.Stmt:
            if not layer.has_lengths:
                return body
            return tirx.IfThenElse(tir.expr(t) <= self.get("lengths", b), body, None)

        def look(b: tir.Expr, u: tir.Expr) -> tir.Stmt:
            value = self.get("last", b, u)
            return tir.sequence(
                self.put("sums", tirx.min(number(0), value), start),
                self.put("sums", tirx.max(number(1), value), start + 1),
            )

        def round_one(b: tir.Expr, u: tir.Expr) -> tir.Stmt:
            whole = self.rounded(self.get("last", b, u) / number(2)) + number(3)
            value = (limited(whole) - number(3)) * number(2)
            return self.put("sums", value, layer.rounded + b * layer.size + u)

        span = number(1) - number(0)
        return tir.sequence(
            self.put("sums", zero, start),
            self.put("sums", zero, start + 1),
            tir.loop_of(
                "b",
                layer.batch,
                lambda b: goes_on(b, self.each(lambda u: look(b, u))),
            ),
            self.put("sums", tirx.Select(span > zero, span / most, one), start + 2),
            self.put("sums", self.rounded(limited((zero - number(0)) / number(2))), start + 3),
            every(round_one),
        )

    # ------------------------------------------------ the layers

    def lstm(self, t: tir.Expr, b: tir.Expr) -> tir.Stmt:
        size, (gate, candidate, out) = self.layer.size, self.layer.activations
        cell = "last_cell"

        def summed(number: int, u: tir.Expr, place: int | None) -> tirx.Expr:
            value = self.sum(number, u)
            if place is not None and self.layer.has_peepholes:
                value = value + self.get("peepholes", place * size + u) * self.get(cell, b, u)
            return self.clipped(value)

        # In ONNX's order: input, output, forget, cell; and the peepholes input, output, forget.
        def next_cell(u: tir.Expr) -> tir.Stmt:
            into = gate(summed(0, u, 0))
            forget = tirx.const(1, self.layer.dtype) - into
            if not self.layer.joined:
                forget = gate(summed(2, u, 2))
            value = forget * self.get(cell, b, u) + into * candidate(summed(3, u, None))
            return self.put(cell, value, b, u)

        def hidden(u: tir.Expr) -> tir.Stmt:
            return self.keep(gate(summed(1, u, 1)) * out(self.get(cell, b, u)), t, b, u)

        return tir.sequence(self.product(0, t, b), self.each(next_cell), self.each(hidden))

    def gru(self, t: tir.Expr, b: tir.Expr) -> tir.Stmt:
        units, (gate, candidate) = self.layer.units, self.layer.activations
        one = tirx.const(1, self.layer.dtype)

        # In ONNX's order: update, reset, hidden.
        def reset(u: tir.Expr) -> tirx.Expr:
            return gate(self.clipped(self.sum(1, u)))

        def reset_linear(u: tir.Expr) -> tir.Stmt:
            value = self.get("gates", t, b, 2 * units + u) + reset(u) * self.sum(2, u)
            return self.put("sums", value, 2 * units + u)

        def reset_state(u: tir.Expr) -> tir.Stmt:
            return self.put("sums", reset(u) * self.get("last", b, u), 3 * units + u)

        def hidden(u: tir.Expr) -> tir.Stmt:
            update = gate(self.clipped(self.sum(0, u)))
            new = candidate(self.clipped(self.sum(2, u)))
            return self.keep((one - update) * new + update * self.get("last", b, u), t, b, u)

        if self.layer.reset_after:
            products = [self.product(0, t, b), self.each(reset_linear)]
        else:
            products = [
                self.product(0, t, b),
                self.each(reset_state),
                self.product(1, t, b, of=lambda k: self.get("sums", 3 * units + k)),
            ]
        return tir.sequence(*products, self.each(hidden))

    def rnn(self, t: tir.Expr, b: tir.Expr) -> tir.Stmt:
        (activation,) = self.layer.activations

        def hidden(u: tir.Expr) -> tir.Stmt:
            return self.keep(activation(self.clipped(self.sum(0, u))), t, b, u)

        return tir.sequence(self.product(0, t, b), self.each(hidden))

    # ------------------------------------------------ their parts

    def rounded(self, value: tirx.Expr) -> tirx.Expr:
        """The whole number next to one of a few hundred, half to even."""
        return tir.cast(round_half_to_even(value, 1), self.layer.dtype)

    def get(self, name: str, *at: tir.Expr) -> tirx.Expr:
        return tir.load(self.given.get(name, self.made.get(name)), at)

    def put(self, name: str, value: tirx.Expr, *at: tir.Expr) -> tir.Stmt:
        return tir.store(self.made[name], value, at)

    def each(self, body: Callable[[tir.Expr], tir.Stmt]) -> tir.Stmt:
        """A loop over the elements of the state."""
        return tir.loop_of("u", self.layer.size, body)

    def copy(self, source: str, target: str, b: tir.Expr) -> tir.Stmt:
        return self.each(lambda u: self.put(target, self.get(source, b, u), b, u))

    def clipped(self, value: tirx.Expr) -> tirx.Expr:
        if not self.layer.clip:
            return value
        most = tirx.const(self.layer.clip, self.layer.dtype)
        return tirx.max(tirx.min(value, most), -most)

    def sum(self, gate: int, u: tir.Expr) -> tirx.Expr:
        """What a pass made of a gate."""
        return self.get("sums", gate * self.layer.units + u)

    def keep(self, value: tirx.Expr, t: tir.Expr, b: tir.Expr, u: tir.Expr) -> tir.Stmt:
        """Store an element of the new state."""
        stored = self.put("last", value, b, u)
        return tir.sequence(stored, self.put("sequence", self.get("last", b, u), t, b, u))

    def product(
        self,
        number: int,
        t: tir.Expr,
        b: tir.Expr,
        of: Callable[[tir.Expr], tirx.Expr] | None = None,
    ) -> tir.Stmt:
        """The sums of a pass's gates: the inputs' part, and that of the state or another vector."""
        layer, gates = self.layer, self.layer.passes[number]
        sums = [tir.Local(f"sum{gate}", layer.block, layer.dtype) for gate in gates]

        def state(k: tir.Expr) -> tirx.Expr:
            if layer.quantised:
                return self.get("sums", layer.rounded + b * layer.size + k)
            return self.get("last", b, k)

        source = of or state

        def start(gate: int, place: tir.Expr) -> tirx.Expr:
            if layer.reset_after and gate == 2:
                return self.vector("bias", place)
            return self.vector("gates", t, b, gate * layer.units + place)

        def add(block: tir.Expr, k: tir.Expr) -> tir.Stmt:
            value = tir.spread(source(k), layer.block)
            weights = (
                self.vector(f"weights{number}", block, k, index, 0) for index in range(len(sums))
            )
            added = zip(sums, weights, strict=True)
            return tir.sequence(*(item.set(item.get() + value * weight) for item, weight in added))

        def one(block: tir.Expr) -> tir.Stmt:
            place = block * layer.block
            return tir.sequence(
                *(item.declare() for item in sums),
                *(item.set(start(gate, place)) for gate, item in zip(gates, sums, strict=True)),
                self.unrolled(layer.size, lambda k: add(block, k)),
                *(
                    tir.store(
                        self.made["sums"], item.get(), [gate * layer.units + place], layer.block
                    )
                    for gate, item in zip(gates, sums, strict=True)
                ),
            )

        return tir.loop_of("block", layer.units // layer.block, one)

    def unrolled(self, extent: int, body: Callable[[tir.Expr], tir.Stmt]) -> tir.Stmt:
        """A loop, with some turns in one if there are registers for what they load."""
        turns = _UNROLLED if self.layer.cpu.registers >= _REGISTERS_TO_UNROLL else 1
        full, rest = divmod(extent, turns)

        def some(first: tir.Expr, count: int) -> tir.Stmt:
            return tir.sequence(*(body(first + i) for i in range(count)))

        return tir.sequence(
            tir.loop_of("k", full, lambda k: some(k * turns, turns)) if full else None,
            some(full * turns, rest) if rest else None,
        )

    def vector(self, name: str, *at: tir.Expr) -> tirx.Expr:
        """A block's elements of an input."""
        return tir.load(self.given[name], at, self.layer.block)


# ---------------------------------------------------------------- activations


def activation(name: str, alpha: float | None, beta: float | None, dtype: str) -> Activation:
    """One of ONNX's activation functions, by its name in any case.

    Raises KeyError for a name that ONNX does not have.
    """

    def c(value: float) -> tirx.Expr:
        return tirx.const(value, dtype)

    default = {
        "affine": (1.0, 0.0),
        "leakyrelu": (0.01, 0.0),
        "thresholdedrelu": (1.0, 0.0),
        "scaledtanh": (1.0, 1.0),
        "hardsigmoid": (0.2, 0.5),
        "elu": (1.0, 0.0),
    }.get(name.lower(), (0.0, 0.0))
    a = c(default[0] if alpha is None else alpha)
    b = c(default[1] if beta is None else beta)
    zero, one = c(0.0), c(1.0)

    def softplus(x: tirx.Expr) -> tirx.Expr:
        # As frontend.arithmetic.softplus has it.
        power = tirx.exp(-tirx.abs(x))
        total = power + one
        return tirx.max(x, zero) + (tirx.log(total) + (power - (total - one)))

    made: dict[str, Activation] = {
        "relu": lambda x: tirx.max(x, zero),
        "tanh": tirx.tanh,
        "sigmoid": tirx.sigmoid,
        "affine": lambda x: a * x + b,
        "leakyrelu": lambda x: tirx.Select(x < zero, a * x, x),
        "thresholdedrelu": lambda x: tirx.Select(x > a, x, zero),
        "scaledtanh": lambda x: a * tirx.tanh(b * x),
        "hardsigmoid": lambda x: tirx.min(tirx.max(a * x + b, zero), one),
        "elu": lambda x: tirx.Select(x < zero, a * (tirx.exp(x) - one), x),
        "softsign": lambda x: x / (one + tirx.abs(x)),
        "softplus": softplus,
    }
    return made[name.lower()]

"""Recurrent layers over a whole sequence: LSTM, GRU and RNN of one direction.

What the inputs contribute to the gates is a product over all steps at once, made before. Here each
step adds what the state contributes: the weights of all gates lie side by side, a row for each
element of the state, so that a vector holds neighbouring gates, and eight rows are added in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx

from edgepack.kernels.tiles import tir
from edgepack.kernels.tiles.requantise import round_half_to_even
from edgepack.kernels.whole import kernel

# Rows of weights that are added to the gates at once: each load and store of a gate serves so many.
_ROWS = 8

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
    backwards: bool = False
    clip: float = 0.0
    joined: bool = False
    reset_after: bool = False
    has_lengths: bool = False
    has_peepholes: bool = False
    quantised: bool = False

    @property
    def width(self) -> int:
        """Elements of all gates."""
        return GATES[self.kind] * self.size

    def inputs(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shapes and types of the kernel's inputs, by name, in order."""
        state = (self.batch, self.size)
        every = {
            "gates": ((self.steps, self.batch, self.width), self.dtype),
            "weights": ((self.size, self.width), self.dtype),
            "hidden": (state, self.dtype),
            "cell": (state, self.dtype) if self.kind == "LSTM" else None,
            # What a reset gate that comes after the product resets beside it.
            "bias": ((self.size,), self.dtype) if self.reset_after else None,
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
        room = self.width + self.size
        if self.quantised:
            room += self.batch * self.size + _RANGE
        return {**made, "sums": ((room,), self.dtype)}

    @property
    def rounded(self) -> int:
        """Where in the scratch memory the rounded states are, and the numbers of their range."""
        return self.width + self.size

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
            return tir.sequence(self.quantise(), turns) if self.layer.quantised else turns

        return tir.sequence(
            tir.loop_of("b", self.layer.batch, start),
            tir.loop_of("t", self.layer.steps, step),
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

    def quantise(self) -> tir.Stmt:
        """Round the states of all sequences, in one range that has 0 in it."""
        layer = self.layer
        start = layer.rounded + layer.batch * layer.size
        zero, one, most = (tirx.const(value, layer.dtype) for value in (0.0, 1.0, _STEPS))

        def number(at: int) -> tirx.Expr:
            return self.get("sums", start + at)

        def limited(value: tirx.Expr) -> tirx.Expr:
            return tirx.max(tirx.min(value, most), zero)

        def every(body: Callable[[tir.Expr, tir.Expr], tir.Stmt]) -> tir.Stmt:
            return tir.loop_of("b", layer.batch, lambda b: self.each(lambda u: body(b, u)))

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
            every(look),
            self.put("sums", tirx.Select(span > zero, span / most, one), start + 2),
            self.put("sums", self.rounded(limited((zero - number(0)) / number(2))), start + 3),
            every(round_one),
        )

    # ------------------------------------------------ the layers

    def lstm(self, t: tir.Expr, b: tir.Expr) -> tir.Stmt:
        size, (gate, candidate, out) = self.layer.size, self.layer.activations
        cell = "last_cell"

        def summed(number: int, u: tir.Expr, place: int | None) -> tirx.Expr:
            value = self.get("sums", number * size + u)
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
            return self.put("sums", value, 4 * size + u)

        def hidden(u: tir.Expr) -> tir.Stmt:
            value = gate(summed(1, u, 1)) * out(self.get(cell, b, u))
            return tir.sequence(self.put("sequence", value, t, b, u), self.put("last", value, b, u))

        return tir.sequence(
            self.gates(t, b, 0, 4 * size),
            self.product(b, 0, 4 * size),
            self.each(next_cell),
            self.each(lambda u: self.put(cell, self.get("sums", 4 * size + u), b, u)),
            self.each(hidden),
        )

    def gru(self, t: tir.Expr, b: tir.Expr) -> tir.Stmt:
        size, (gate, candidate) = self.layer.size, self.layer.activations
        after = self.layer.reset_after
        one = tirx.const(1, self.layer.dtype)

        # In ONNX's order: update, reset, hidden.
        def reset(u: tir.Expr) -> tir.Stmt:
            value = gate(self.clipped(self.get("sums", size + u)))
            if after:
                linear = self.get("sums", 2 * size + u) + self.get("bias", u)
                value = self.get("gates", t, b, 2 * size + u) + value * linear
                return self.put("sums", value, 2 * size + u)
            # The state that the third product is made of.
            return self.put("sums", value * self.get("last", b, u), 3 * size + u)

        def hidden(u: tir.Expr) -> tir.Stmt:
            update = gate(self.clipped(self.get("sums", u)))
            new = candidate(self.clipped(self.get("sums", 2 * size + u)))
            return self.put(
                "sums", (one - update) * new + update * self.get("last", b, u), 3 * size + u
            )

        def keep(u: tir.Expr) -> tir.Stmt:
            value = self.get("sums", 3 * size + u)
            return tir.sequence(self.put("sequence", value, t, b, u), self.put("last", value, b, u))

        if after:
            zero = tirx.const(0, self.layer.dtype)
            products = [
                self.gates(t, b, 0, 2 * size),
                self.each(lambda u: self.put("sums", zero, 2 * size + u)),
                self.product(b, 0, 3 * size),
                self.each(reset),
            ]
        else:
            products = [
                self.gates(t, b, 0, 3 * size),
                self.product(b, 0, 2 * size),
                self.each(reset),
                self.product(b, 2 * size, 3 * size, of=lambda k: self.get("sums", 3 * size + k)),
            ]
        return tir.sequence(*products, self.each(hidden), self.each(keep))

    def rnn(self, t: tir.Expr, b: tir.Expr) -> tir.Stmt:
        (activation,) = self.layer.activations

        def hidden(u: tir.Expr) -> tir.Stmt:
            value = activation(self.clipped(self.get("sums", u)))
            return tir.sequence(self.put("sequence", value, t, b, u), self.put("last", value, b, u))

        size = self.layer.size
        return tir.sequence(self.gates(t, b, 0, size), self.product(b, 0, size), self.each(hidden))

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

    def gates(self, t: tir.Expr, b: tir.Expr, start: int, end: int) -> tir.Stmt:
        """The inputs' part of some gates."""
        return tir.loop_of(
            "g",
            end - start,
            lambda g: self.put("sums", self.get("gates", t, b, start + g), start + g),
        )

    def product(
        self,
        b: tir.Expr,
        start: int,
        end: int,
        of: Callable[[tir.Expr], tirx.Expr] | None = None,
    ) -> tir.Stmt:
        """Add the state's part of some gates, or that of another vector."""
        size = self.layer.size

        def state(k: tir.Expr) -> tirx.Expr:
            if self.layer.quantised:
                return self.get("sums", self.layer.rounded + b * size + k)
            return self.get("last", b, k)

        source = of or state

        def rows(first: tir.Expr, count: int) -> tir.Stmt:
            def one(g: tir.Expr) -> tir.Stmt:
                value = self.get("sums", start + g)
                for k in range(count):
                    weight = self.get("weights", first + k, start + g)
                    value = value + source(first + k) * weight
                return self.put("sums", value, start + g)

            return tir.loop_of("g", end - start, one)

        full, rest = divmod(size, _ROWS)
        parts = [tir.loop_of("k", full, lambda k: rows(k * _ROWS, _ROWS))] if full else []
        return tir.sequence(*parts, rows(full * _ROWS, rest) if rest else None)


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
        "softplus": lambda x: tirx.log(one + tirx.exp(x)),
    }
    return made[name.lower()]

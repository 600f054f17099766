"""Models whose loops and branches depend on the data."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, compose, helper

from tests.bodies import Body, graph
from tests.onnx_models import Builder

SCALARS = {"n": TensorProto.INT64, "first": TensorProto.BOOL, "flag": TensorProto.BOOL}


def convolutions() -> onnx.ModelProto:
    """n turns of a convolution, a Relu and a sum with what is around the loop."""
    body = Body()
    made = body.op("Relu", body.conv("state", 4, 4))
    body.op("Add", made, "x", outputs=["next"])
    body.op("Identity", "going", outputs=["goes"])
    shape = [1, 4, 6, 5]
    inner = graph(body, {"turn": [], "going": [], "state": shape}, {"goes": [], "next": shape})
    b = Builder()
    start = b.conv("x", 4, 4)
    b.op("Relu", b.op("Loop", "n", "", start, body=inner), outputs=["y"])
    return b.model({"n": [], "x": shape}, {"y": shape}, SCALARS)


def doubling() -> onnx.ModelProto:
    """A while: doubles as long as the sum is below a limit."""
    body = Body()
    body.op("Add", "state", "state", outputs=["next"])
    body.op("Less", body.op("ReduceSum", "next", keepdims=0), "limit", outputs=["goes"])
    inner = graph(body, {"turn": [], "going": [], "state": [3]}, {"goes": [], "next": [3]})
    b = Builder()
    b.op("Loop", "", "first", "x", outputs=["y"], body=inner)
    return b.model({"first": [], "limit": [], "x": [3]}, {"y": [3]}, SCALARS)


def exchanges() -> onnx.ModelProto:
    """States that change places, one that stays, one that becomes a constant, one that is the
    turn, and two that become the same value; the turn has an axis."""
    body = Body()
    body.op("Add", "c", body.op("Mul", "a", "b"), outputs=["sum"])
    body.op("Cast", "turn", to=1, outputs=["number"])
    body.op("Identity", "going", outputs=["goes"])
    names = ("a", "b", "c", "d", "e", "f", "g")
    sizes = {name: [2, 3] for name in names} | {"f": [1]}
    inner = graph(
        body,
        {"turn": [1], "going": [1]} | sizes,
        {"goes": [1], "b": None, "a": None, "sum": None, "d": None},
    )
    fixed = body.const(np.full((2, 3), 7), "float32")
    inner.initializer.append(body.weights[-1])
    for name in (fixed, "number", "sum"):
        inner.output.append(helper.make_tensor_value_info(name, 1, None))
    # Each result of a body has a name of its own.
    for i, value in enumerate(inner.output):
        inner.node.append(helper.make_node("Identity", [value.name], [f"result{i}"]))
        value.name = f"result{i}"
    b = Builder()
    one = b.const(np.zeros(1), "float32")
    twice = b.op("Add", "x", "x")
    given = ["x", twice, "x", "x", "x", one, twice]
    outputs = [f"y{i}" for i in range(7)]
    b.op("Loop", "n", "", *given, outputs=outputs, body=inner)
    return b.model({"n": [1], "x": [2, 3]}, dict.fromkeys(outputs), SCALARS)


def nested() -> onnx.ModelProto:
    """A loop whose turns are those of the one around it, on values of that one and of all around;
    its rows are the outer one's state."""
    inside = Body("inside")
    inside.op("Add", inside.op("Mul", "small", "scale"), "large", outputs=["grown"])
    inside.op("ReduceMax", "grown", keepdims=0, outputs=["most"])
    inside.op("Less", "most", inside.const(50, "float32"), outputs=["goes on"])
    inner = graph(
        inside,
        {"step": [], "going in": [], "small": [4]},
        {"goes on": [], "grown": [4], "most": []},
    )
    for value in (*inner.input[:2], *inner.output[:1]):
        kind = TensorProto.INT64 if value.name == "step" else TensorProto.BOOL
        value.type.tensor_type.elem_type = kind
    body = Body()
    limit = body.op("Min", body.op("Add", "turn", body.const(1, "int64")), body.const(9, "int64"))
    body.op("Loop", limit, "", "x", outputs=["small out", "tops"], body=inner)
    body.op("ReduceSum", "tops", keepdims=0, outputs=["sum of tops"])
    body.op("Add", "large", "small out", outputs=["next"])
    body.op("Identity", "going", outputs=["goes"])
    outer = graph(
        body,
        {"turn": [], "going": [], "large": [4]},
        {"goes": [], "next": [4]},
    )
    b = Builder()
    b.op("Loop", "n", "", "x", outputs=["y"], body=outer)
    return b.model({"n": [], "x": [4], "scale": []}, {"y": [4]}, SCALARS)


def early(most: int = 300) -> onnx.ModelProto:
    """A loop of many turns that data may end; rows, of two kinds, and a table that it reads."""
    body = Body()
    body.op("Gather", "table", "turn", outputs=["row"])
    body.op("Add", "state", "row", outputs=["next"])
    body.op("ReduceSum", "next", keepdims=0, outputs=["total"])
    body.op("Less", "turn", "n", outputs=["goes"])
    inner = graph(
        body,
        {"turn": [], "going": [], "state": [3]},
        {"goes": [], "next": [3], "total": [], "row": [3]},
    )
    b = Builder()
    b.op(
        "Loop",
        b.const(most, "int64"),
        "first",
        "x",
        outputs=["y", "totals", "rows"],
        body=inner,
    )
    return b.model(
        {"n": [], "first": [], "x": [3], "table": [most, 3]},
        {"y": [3], "totals": [None], "rows": [None, 3]},
        SCALARS,
    )


def limited() -> onnx.ModelProto:
    """Rows of a loop whose turns are an input, of which a Min says how many there may be."""
    body = Body()
    body.op("Add", "state", body.op("Cast", "turn", to=1), outputs=["next"])
    body.op("Identity", "going", outputs=["goes"])
    inner = graph(
        body, {"turn": [], "going": [], "state": [2, 2]}, {"goes": [], "next": None, "row": None}
    )
    inner.node.append(helper.make_node("Mul", ["state", "next"], ["row"]))
    b = Builder()
    turns = b.op("Min", "n", b.const(9, "int64"))
    b.op("Loop", turns, b.const(True, "bool"), "x", outputs=["y", "rows"], body=inner)
    return b.model({"n": [], "x": [2, 2]}, {"y": [2, 2], "rows": [None, 2, 2]}, SCALARS)


def long_scan(length: int = 200) -> onnx.ModelProto:
    """A Scan over many items along other axes, and from the end."""
    body = Body()
    mixed = body.op("MatMul", "state", body.weight(5, 5))
    body.op("Tanh", body.op("Add", mixed, body.op("Sub", "one", "other")), outputs=["next"])
    body.op("Mul", "next", "bias", outputs=["row"])
    inner = graph(
        body, {"state": [2, 5], "one": [2, 5], "other": [2, 5]}, {"next": None, "row": None}
    )
    inner.node.append(helper.make_node("Neg", ["next"], ["negative"]))
    inner.output.append(helper.make_tensor_value_info("negative", 1, None))
    b = Builder()
    start = b.const(np.zeros((2, 5)), "float32")
    b.op(
        "Scan",
        start,
        "x",
        "z",
        outputs=["last", "rows", "negatives"],
        body=inner,
        num_scan_inputs=2,
        scan_input_axes=[1, 0],
        scan_input_directions=[0, 1],
        scan_output_axes=[2, 1],
        scan_output_directions=[1, 0],
    )
    return b.model(
        {"x": [2, length, 5], "z": [length, 2, 5], "bias": [5]},
        {"last": [2, 5], "rows": [2, 5, length], "negatives": [2, length, 5]},
    )


def branches() -> onnx.ModelProto:
    """An If of three results: computed, one of those around it, a constant; and one in each of its
    branches, of which one has a loop."""
    inside = Body("turns")
    inside.op("Mul", "state", "x", outputs=["next"])
    inside.op("Identity", "going", outputs=["goes"])
    loop = graph(inside, {"turn": [], "going": [], "state": [3, 4]}, {"goes": [], "next": [3, 4]})
    bodies = {}
    for way, op_type in (("then", "Neg"), ("else", "Abs")):
        body = Body(way)
        deeper = {}
        for name in ("then", "else"):
            other = Body(f"{way}/{name}")
            if name == "then":
                other.op("Loop", "n", "", "x", outputs=[f"{way}/{name}/z"], body=loop)
            else:
                other.op("Sub", "x", other.const(3, "float32"), outputs=[f"{way}/{name}/z"])
            deeper[f"{name}_branch"] = graph(other, {}, {f"{way}/{name}/z": None})
        body.op("If", "first", outputs=[f"{way}/inner"], **deeper)
        body.op(op_type, f"{way}/inner", outputs=[f"{way}/0"])
        body.op("Identity", "x", outputs=[f"{way}/1"])
        value = body.const(np.full((2, 2), len(way) + (way == "then")), "float32")
        body.op("Identity", value, outputs=[f"{way}/2"])
        bodies[f"{way}_branch"] = graph(body, {}, {f"{way}/{i}": None for i in range(3)})
    b = Builder()
    b.op("If", "flag", outputs=["a", "b", "c"], **bodies)
    b.op("Add", "b", "x", outputs=["d"])
    inputs = {"flag": [], "first": [1], "n": [], "x": [3, 4]}
    return b.model(inputs, {"a": [3, 4], "b": [3, 4], "c": [2, 2], "d": [3, 4]}, SCALARS)


KINDS = {
    "convolutions": convolutions,
    "doubling": doubling,
    "exchanges": exchanges,
    "nested": nested,
    "early": early,
    "limited": limited,
    "scan": long_scan,
    "branches": branches,
}


def together() -> onnx.ModelProto:
    """All of them in one model."""
    whole, *others = [compose.add_prefix(make(), f"{name} ") for name, make in KINDS.items()]
    for other in others:
        for part in ("node", "initializer", "input", "output"):
            getattr(whole.graph, part).extend(getattr(other.graph, part))
    return whole


def inputs_of(proto: onnx.ModelProto, turns: int, *, first: bool, flag: bool) -> list[np.ndarray]:
    """Random numbers, and what decides."""
    random = np.random.default_rng(5)
    decided = {"n": np.int64(turns), "first": np.bool_(first), "flag": np.bool_(flag)}
    decided |= {"limit": np.float32(40), "scale": np.float32(1.5)}
    made = []
    for value in proto.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        name = value.name.split(" ")[-1]
        made.append(
            np.full(shape, decided[name])
            if name in decided
            else random.uniform(0.5, 1.5, shape).astype("float32")
        )
    return made


class Random:
    """A program drawn at random: arithmetic on [3, 4], loops and branches inside of each other."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"r{self.count}"

    def model(self) -> onnx.ModelProto:
        b = Body("main")
        values = ["x", "z"]
        for _ in range(5):
            values += self.statement(b, values, 0)
        outputs = []
        for number, value in enumerate(values[-4:]):
            outputs.append(b.op("Identity", value, outputs=[f"y{number}"]))
        shape = [3, 4]
        inputs: dict[str, list[int]] = {"x": shape, "z": shape, "n": [], "flag": []}
        return b.model(inputs, dict.fromkeys(outputs, shape), SCALARS)

    def some(self, values: list[str], count: int) -> list[str]:
        return [str(value) for value in self.random.choice(values, count)]

    def statement(self, b: Body, values: list[str], depth: int) -> list[str]:
        """The names of what it makes."""
        kind = self.random.integers(5 if depth < 2 else 3)
        if kind < 3:
            op_type = str(self.random.choice(["Add", "Sub", "Max", "Tanh", "MatMul", "Neg"]))
            one, other = self.some(values, 2)
            if op_type == "MatMul":
                other = b.weight(4, 4)
            inputs = [one] if op_type in ("Tanh", "Neg") else [one, other]
            return [b.op(op_type, *inputs, outputs=[self.name()])]
        return (self.loop if kind == 3 else self.branch)(b, values, depth)

    def flag(self, b: Body, values: list[str]) -> str:
        if self.random.random() < 0.3:
            return "flag"
        total = b.op("ReduceSum", self.some(values, 1)[0], keepdims=0, outputs=[self.name()])
        return b.op("Less", total, b.const(0.1, "float32"), outputs=[self.name()])

    def loop(self, b: Body, values: list[str], depth: int) -> list[str]:
        body = Body(self.name())
        states = [self.name() for _ in range(self.random.integers(1, 4))]
        turn, going = self.name(), self.name()
        known = [*values, *states]
        for _ in range(self.random.integers(1, 4)):
            known += self.statement(body, known, depth + 1)
        # What it read before may be what it leaves, too.
        ends = [
            body.op("Tanh", value, outputs=[self.name()]) if self.random.random() < 0.5 else value
            for value in self.some([*known[len(values) :], *known], len(states))
        ]
        row = body.op("ReduceMax", known[-1], axes=[0], keepdims=0, outputs=[self.name()])
        goes = going if self.random.random() < 0.5 else self.flag(body, known)
        ends = [body.op("Identity", end, outputs=[self.name()]) for end in (goes, *ends)]
        shape = [3, 4]
        inner = body.model(
            {turn: [], going: [], **dict.fromkeys(states, shape)},
            {ends[0]: [], **dict.fromkeys(ends[1:], shape), row: [4]},
            {turn: TensorProto.INT64, going: TensorProto.BOOL, ends[0]: TensorProto.BOOL},
        ).graph
        most = b.op("Min", "n", b.const(int(self.random.integers(2, 6)), "int64"))
        made = [self.name() for _ in states]
        rows = self.name()
        first = "" if self.random.random() < 0.7 else self.flag(b, values)
        b.op(
            "Loop", most, first, *self.some(values, len(states)), outputs=[*made, rows], body=inner
        )
        # Of rows, of which there may be none.
        total = b.op("ReduceSum", rows, b.const([0], "int64"), outputs=[self.name()])
        return [*made, b.op("Add", made[0], b.op("Tanh", total), outputs=[self.name()])]

    def branch(self, b: Body, values: list[str], depth: int) -> list[str]:
        bodies, count = {}, int(self.random.integers(1, 3))
        for way in ("then", "else"):
            body, known = Body(self.name()), list(values)
            for _ in range(self.random.integers(1, 4)):
                known += self.statement(body, known, depth + 1)
            ends = [
                body.op("Identity", value, outputs=[self.name()])
                for value in self.some(known, count)
            ]
            bodies[f"{way}_branch"] = body.model({}, {end: [3, 4] for end in ends}).graph
        outputs = [self.name() for _ in range(count)]
        b.op("If", self.flag(b, values), outputs=outputs, **bodies)
        return outputs

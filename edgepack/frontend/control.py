"""If, Loop and Scan that are known before the model runs, as straight lines.

An If whose condition is known is its branch. A loop of few turns, whose number is known, is written
out turn by turn; values that its body computes of constants are computed on the way, for its
condition may be one of them. What is left here `blocks` makes blocks of the plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.frontend.folding import compute_node, value_of_shape
from edgepack.frontend.forms import attribute, known_shapes
from edgepack.frontend.inlining import copy_nodes
from edgepack.model import opset_of
from edgepack.model.index import GraphIndex

CONTROL = ("If", "Loop", "Scan")
# A loop of more nodes is rather a block of the plan: each node would become a kernel.
FEW_NODES = 400
# More nodes than this are no straight line any more.
MOST_NODES = 20_000


def straighten(proto: onnx.ModelProto, most_nodes: int = FEW_NODES) -> onnx.ModelProto:
    """The model without the If, Loop and Scan that are known; the same if it has none.

    A loop of more than `most_nodes` is left alone.
    """
    if not any(node.op_type in CONTROL for node in proto.graph.node):
        return proto
    straight = onnx.ModelProto()
    straight.CopyFrom(proto)
    # A shape or a value that was found may be what another branch or loop waits for.
    found: dict[str, onnx.TensorProto] = {}
    has_changed = False
    for _ in range(_MOST_ROUNDS):
        line = _Unrolled(straight, most_nodes, dict(found))
        for node in list(straight.graph.node):
            line.add(node)
        del straight.graph.node[:]
        straight.graph.node.extend(line.nodes)
        straight.graph.initializer.extend(line.tensors)
        has_changed = has_changed or line.changed
        is_straight = not any(node.op_type in CONTROL for node in straight.graph.node)
        if is_straight or not (line.changed or len(line.found) > len(found)):
            break
        found = line.found
    return straight if has_changed else proto


# Each finds what those before it made known: torch.jit's models have an If in an If in an If, each
# of which asks for the rank of what the one before it gives.
_MOST_ROUNDS = 100


class _TooLongError(Exception):
    """The line would have too many nodes."""


@dataclass
class _Unrolled:
    """Nodes one after the other, with what is known of their values."""

    proto: onnx.ModelProto
    # Of one loop.
    most_nodes: int
    # Values that nodes compute of constants and shapes, by name.
    found: dict[str, onnx.TensorProto] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[onnx.TensorProto] = field(default_factory=list)
    changed: bool = False
    count: int = 0

    def __post_init__(self) -> None:
        self.known = GraphIndex(self.proto.graph).constants | self.found
        self.shapes = known_shapes(_with_values(self.proto, self.found))

    def add(self, node: onnx.NodeProto) -> None:
        """Put a node at the end, or what it stands for."""
        ways: dict[str, Callable[[onnx.NodeProto], list[onnx.NodeProto] | None]] = {
            "If": self.branch,
            "Loop": self.loop,
            "Scan": self.scan,
        }
        if node.op_type in ways and is_whole(node):
            before = (len(self.nodes), len(self.tensors), dict(self.known), dict(self.found))
            try:
                made = ways[node.op_type](node)
            except _TooLongError:
                made = None
            if made is not None:
                self.changed = True
                for item in made:
                    self.add(item)
                return
            del self.nodes[before[0] :], self.tensors[before[1] :]
            self.known, self.found = before[2:]
        self.learn(node)
        self.nodes.append(node)
        if len(self.nodes) > MOST_NODES + len(self.proto.graph.node):
            raise _TooLongError

    def learn(self, node: onnx.NodeProto) -> None:
        """Remember a node's results, if they are known."""
        if node.op_type in CONTROL or all(name in self.found for name in node.output if name):
            return
        made = value_of_shape(node, self.shapes) or compute_node(node, self.known, self.proto)
        for tensor in made or ():
            self.known[tensor.name] = self.found[tensor.name] = tensor

    def number(self, name: str) -> int | None:
        """An integer that is known."""
        value = self.value(name) if name else None
        return int(value.reshape(-1)[0]) if value is not None and value.size == 1 else None

    def value(self, name: str) -> np.ndarray | None:
        tensor = self.known.get(name)
        return None if tensor is None else np.asarray(numpy_helper.to_array(tensor))

    def prefix(self, node: onnx.NodeProto) -> str:
        self.count += 1
        return f"{node.name or node.output[0]}/{len(self.nodes)}.{self.count}/"

    def body(
        self, graph: onnx.GraphProto, given: Sequence[str], prefix: str
    ) -> tuple[list[onnx.NodeProto], list[str]]:
        """The nodes of a body that reads `given`, and the names of its results."""
        names = {value.name: name for value, name in zip(graph.input, given, strict=True)}
        for tensor in graph.initializer:
            copy = onnx.TensorProto()
            copy.CopyFrom(tensor)
            copy.name = prefix + tensor.name
            names[tensor.name] = copy.name
            self.tensors.append(copy)
            self.known[copy.name] = copy
        nodes = copy_nodes(graph.node, names, prefix)
        made = {name for node in graph.node for name in node.output}
        results = [
            names.get(value.name, prefix + value.name if value.name in made else value.name)
            for value in graph.output
        ]
        return nodes, results

    def branch(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """The branch that an If takes."""
        condition = self.value(node.input[0])
        if condition is None:
            return None
        taken = attribute(node, "then_branch" if condition.any() else "else_branch")
        nodes, results = self.body(taken, [], self.prefix(node))
        return [*nodes, *_named(results, node.output)]

    def loop(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """The turns of a Loop whose number is known."""
        body = attribute(node, "body")
        first, second = (*node.input, "", "")[:2]
        most, condition = self.number(first), self.value(second) if second else None
        has_most = bool(first)
        if (has_most and most is None) or (
            len(node.input) > 1 and node.input[1] and condition is None
        ):
            return None
        state = list(node.input[2:])
        rows: list[list[str]] = [[] for _ in body.output[1 + len(state) :]]
        turn, goes_on = 0, condition is None or bool(condition.any())
        line: list[onnx.NodeProto] = []
        while goes_on and (most is None or turn < most):
            prefix, inner = self.prefix(node), self.prefix(node)
            number, going = (
                self.constant(f"{prefix}{what}", np.array(value))
                for what, value in (("turn", np.int64(turn)), ("going", np.bool_(True)))
            )
            nodes, results = self.body(body, [number, going, *state], inner)
            for item in nodes:
                self.add(item)
            next_condition = self.value(results[0])
            if next_condition is None:
                return None
            goes_on, turn = bool(next_condition.any()), turn + 1
            state = results[1 : 1 + len(state)]
            for row, result in zip(rows, results[1 + len(state) :], strict=True):
                row.append(result)
            if turn * max(len(nodes), 1) > self.most_nodes:
                raise _TooLongError
        if rows and not turn:
            return None
        count = len(state)
        line += _named(state, node.output[:count])
        for row, output in zip(rows, node.output[count:], strict=False):
            line += self.stacked(row, output, 0, self.prefix(node))
        return line

    def scan(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """The turns of a Scan."""
        if opset_of(self.proto) < 9:
            return self.batched(node)
        return self.turns(node)

    def batched(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """A Scan of opset 8 as one of opset 9 for each image of the batch.

        One that is given their lengths is left alone.
        """
        lengths, *given = node.input
        if lengths or not given or not self.shape(given[0]):
            return None
        rows: list[list[str]] = [[] for _ in node.output]
        for image in range(self.shape(given[0])[0]):
            prefix = self.prefix(node)
            names = [
                self.slice(name, image, 0, f"{prefix}in{number}")
                for number, name in enumerate(given)
            ]
            made = [f"{prefix}out{number}" for number in range(len(node.output))]
            one = helper.make_node("Scan", names, made, name=f"{prefix}scan")
            for item in node.attribute:
                one.attribute.add().CopyFrom(item)
                if item.name == "directions":
                    one.attribute[-1].name = "scan_input_directions"
            nodes = self.turns(one)
            if nodes is None:
                return None
            for item in nodes:
                self.add(item)
            for row, name in zip(rows, made, strict=True):
                row.append(name)
        line = []
        for row, output in zip(rows, node.output, strict=True):
            line += self.stacked(row, output, 0, self.prefix(node))
        return line

    def turns(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """The turns of a Scan as opset 9 has it."""
        body, inputs = attribute(node, "body"), attribute(node, "num_scan_inputs")
        count = len(node.input) - inputs
        state, scanned = list(node.input[:count]), list(node.input[count:])
        outputs = len(body.output) - count
        ways = {
            name: list(attribute(node, name, [0] * size))
            for name, size in (
                ("scan_input_axes", inputs),
                ("scan_input_directions", inputs),
                ("scan_output_axes", outputs),
                ("scan_output_directions", outputs),
            )
        }
        sizes = {
            self.shape(name)[axis]
            for name, axis in zip(scanned, ways["scan_input_axes"], strict=True)
            if self.shape(name)
        }
        if len(sizes) != 1:
            return None
        (turns,) = sizes
        if turns * len(body.node) > self.most_nodes:
            return None
        rows: list[list[str]] = [[] for _ in range(outputs)]
        for turn in range(turns):
            prefix, inner = self.prefix(node), self.prefix(node)
            given = [
                self.slice(
                    name, turns - 1 - turn if backwards else turn, axis, f"{prefix}in{number}"
                )
                for number, (name, axis, backwards) in enumerate(
                    zip(
                        scanned,
                        ways["scan_input_axes"],
                        ways["scan_input_directions"],
                        strict=True,
                    )
                )
            ]
            nodes, results = self.body(body, [*state, *given], inner)
            for item in nodes:
                self.add(item)
            state = results[:count]
            for row, result in zip(rows, results[count:], strict=True):
                row.append(result)
        line = _named(state, node.output[:count])
        for row, output, axis, backwards in zip(
            rows,
            node.output[count:],
            ways["scan_output_axes"],
            ways["scan_output_directions"],
            strict=False,
        ):
            ordered = row[::-1] if backwards else row
            line += self.stacked(ordered, output, axis, self.prefix(node))
        return line

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value, () where it is not known."""
        value = self.value(name)
        return tuple(value.shape) if value is not None else self.shapes.get(name, ())

    def constant(self, name: str, value: np.ndarray) -> str:
        tensor = numpy_helper.from_array(value, name)
        self.tensors.append(tensor)
        self.known[name] = tensor
        return name

    def slice(self, name: str, index: int, axis: int, to: str) -> str:
        """One position of an axis, which is gone then."""
        shape = self.shape(name)
        if shape:
            self.shapes[to] = (*shape[:axis], *shape[axis + 1 :])
        bounds = {"starts": [index], "ends": [index + 1], "axes": [axis]}
        if opset_of(self.proto) < 10:
            self.add(helper.make_node("Slice", [name], [f"{to}/kept"], **bounds))
        else:
            inputs = [
                self.constant(f"{to}/{what}", np.array(value, "int64"))
                for what, value in bounds.items()
            ]
            self.add(helper.make_node("Slice", [name, *inputs], [f"{to}/kept"]))
        self.add(self.one_axis("Squeeze", f"{to}/kept", to, axis))
        return to

    def one_axis(self, op_type: str, name: str, to: str, axis: int) -> onnx.NodeProto:
        """Squeeze or Unsqueeze of an axis."""
        if opset_of(self.proto) < 13:
            return helper.make_node(op_type, [name], [to], axes=[axis])
        axes = self.constant(f"{to}/axes", np.array([axis], "int64"))
        return helper.make_node(op_type, [name, axes], [to])

    def stacked(
        self, row: Sequence[str], output: str, axis: int, prefix: str
    ) -> list[onnx.NodeProto]:
        """Values put together along a new axis."""
        if not output:
            return []
        names = [f"{prefix}{number}" for number in range(len(row))]
        nodes = [
            self.one_axis("Unsqueeze", name, to, axis) for name, to in zip(row, names, strict=True)
        ]
        return [*nodes, helper.make_node("Concat", names, [output], axis=axis)]


def is_whole(node: onnx.NodeProto) -> bool:
    """Whether a node has its bodies, and they have as many inputs and outputs as it needs."""
    outputs = len(node.output)
    if node.op_type == "If":
        bodies = [attribute(node, name) for name in ("then_branch", "else_branch")]
        return all(body is not None and len(body.output) == outputs for body in bodies)
    body = attribute(node, "body")
    if body is None:
        return False
    if node.op_type == "Scan":
        # Before opset 9 the first input is not one of the body.
        scanned = attribute(node, "num_scan_inputs") or 0
        given = len(body.input)
        states = given - scanned
        return (
            scanned > 0 <= states <= len(body.output)
            and given in (len(node.input), len(node.input) - 1)
            and outputs <= len(body.output)
        )
    state = max(len(node.input) - 2, 0)
    return len(body.input) == 2 + state and outputs <= len(body.output) - 1 >= state


def _with_values(proto: onnx.ModelProto, found: Mapping[str, onnx.TensorProto]) -> onnx.ModelProto:
    """The model with values that are known, and may be shapes, in the place of what makes them."""
    small = {
        name
        for name, tensor in found.items()
        if tensor.data_type == onnx.TensorProto.INT64 and math.prod(tensor.dims) <= _MOST_SIZES
    }
    told = onnx.ModelProto()
    told.CopyFrom(proto)
    nodes = []
    for node in told.graph.node:
        if small.issuperset(node.output):
            told.graph.initializer.extend(found[name] for name in node.output)
        else:
            nodes.append(node)
    if len(nodes) == len(proto.graph.node):
        return proto
    del told.graph.node[:]
    told.graph.node.extend(nodes)
    return told


# A longer list of numbers holds no sizes.
_MOST_SIZES = 64


def _named(results: Sequence[str], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """Results under the names of the node that they come from."""
    return [
        helper.make_node("Identity", [result], [output])
        for result, output in zip(results, outputs, strict=False)
        if output
    ]

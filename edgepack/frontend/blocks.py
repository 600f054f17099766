"""Loops and branches whose way depends on the data: their bodies become blocks of the plan.

Two nodes stand for all of them; their bodies are models of their own, by a key:

    Repeat: goes, states..., captured... -> states..., rows...
        While `goes` is true, the body makes it and the states anew. Its first state is the number
        of turns so far. What else it makes becomes the next row of a result.
    Choose: condition, its opposite, captured... -> results...
        The first body is computed if the condition holds, else the second one.

`captured` are values around the node that its body reads. All shapes are fixed; a result of rows
has room for the most turns that there may be, and is cut by a Compress behind the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.frontend.bound import Bound
from edgepack.frontend.bounded.graph import Kind
from edgepack.frontend.control import CONTROL
from edgepack.frontend.errors import Unsupported, UnsupportedOperatorError
from edgepack.frontend.forms import attribute
from edgepack.frontend.selection import DOMAIN
from edgepack.model import infer_shapes, operator_name, opset_of
from edgepack.model.index import GraphIndex
from edgepack.model.structure import subgraphs

REPEAT, CHOOSE = "Repeat", "Choose"

# As the runtime has them (cpp_runtime/app/src/graph.cc): of one loop, of loops inside of each
# other together, and how many may be inside of each other.
MOST_TURNS, MOST_TOGETHER, MOST_DEPTH = 1 << 20, 1 << 32, 8
# Of a loop that tells no maximum.
_USUAL_TURNS = 1 << 16

# The opset of Less on integers, of Compress, and of Scan as it is today.
_OLDEST = 9

_INT64, _BOOL = TensorProto.INT64, TensorProto.BOOL
_TURN = Kind(_INT64, ())
_FLAG = Kind(_BOOL, ())


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A model as it is imported: which axes of its outputs are not all in use, and its blocks."""

    proto: onnx.ModelProto
    bounds: tuple[Bound, ...] = ()
    blocks: dict[str, ControlBlock] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ControlBlock:
    """What a node Repeat or Choose does: one body or two. A Repeat has `states`, and takes at most
    `most` turns; `name` and `operator` are the ONNX node's."""

    name: str
    operator: str
    bodies: tuple[Prepared, ...]
    states: int = 0
    most: int = 1


@dataclass(frozen=True, kw_only=True)
class Around:
    """What a body is in: loops of so many turns together, and so many of them."""

    turns: int = 1
    depth: int = 0


Prepare = Callable[[onnx.ModelProto, Around], Prepared]


def with_blocks(
    path: Path, proto: onnx.ModelProto, prepare: Prepare, around: Around
) -> tuple[onnx.ModelProto, dict[str, ControlBlock]]:
    """A folded model with the nodes above for If, Loop and Scan; the same if it has none.

    `prepare` makes bodies ready. An If stays whose shapes are not fixed: `fix_sizes` computes both
    of its branches. Raises `UnsupportedOperatorError`.
    """
    if not any(node.op_type in CONTROL for node in proto.graph.node):
        return proto, {}
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    made.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    blocks: dict[str, ControlBlock] = {}
    open_: set[str] = set()
    while found := [
        (i, node)
        for i, node in enumerate(made.graph.node)
        if node.op_type in CONTROL and open_.isdisjoint(node.output)
    ]:
        at, node = found[0]
        writer = _BlockWriter(made, node, prepare, around, str(len(blocks)))
        try:
            block = writer.write()
        except _NoBlockError as error:
            if node.op_type == "If" and isinstance(error, _OpenShapeError):
                open_.update(node.output)
                continue
            raise _unsupported(path, node, error) from None
        blocks[writer.key] = block
        nodes = [*made.graph.node[:at], *writer.nodes, *made.graph.node[at + 1 :]]
        del made.graph.node[:]
        made.graph.node.extend(nodes)
        made.graph.initializer.extend(writer.tensors)
        made.graph.value_info.extend(
            helper.make_tensor_value_info(name, kind.element, kind.shape)
            for name, kind in writer.kinds.items()
        )
    return made, blocks


class _NoBlockError(Exception):
    """Why a node can be no block, and what can be done instead."""

    def __init__(self, why: str, instead: str) -> None:
        super().__init__(why)
        self.why, self.instead = why, instead


class _OpenShapeError(_NoBlockError):
    """A shape around a body or in it is not fixed."""

    def __init__(self, why: str) -> None:
        super().__init__(why, "export the model so that its body has fixed shapes")


def _unsupported(path: Path, node: onnx.NodeProto, error: _NoBlockError) -> Exception:
    found = Unsupported(
        operator=operator_name(node),
        node=_name_of(node),
        attributes="",
        inside="",
        why=error.why,
        instead=error.instead,
    )
    return UnsupportedOperatorError(path, [found])


def _name_of(node: onnx.NodeProto) -> str:
    return node.name or next(filter(None, node.output), "")


class _BlockWriter:
    """Writes what stands for one node: `nodes`, constants, and the kinds of what they make."""

    def __init__(
        self,
        proto: onnx.ModelProto,
        node: onnx.NodeProto,
        prepare: Prepare,
        around: Around,
        key: str,
    ) -> None:
        self.proto, self.node, self.prepare, self.around, self.key = (
            proto,
            node,
            prepare,
            around,
            key,
        )
        self.prefix = f"{_name_of(node)}/"
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.kinds: dict[str, Kind] = {}
        graph = GraphIndex(proto.graph)
        self.constants, self.makers = graph.constants, graph.makers
        self.known = _kinds(proto)

    def write(self) -> ControlBlock:
        if self.around.depth >= MOST_DEPTH:
            raise _NoBlockError(
                f"it is inside of {MOST_DEPTH} loops or branches", "export the model with fewer"
            )
        if opset_of(self.proto) < _OLDEST:
            raise _NoBlockError(
                f"in an opset before {_OLDEST} it has to be known before the model runs",
                "convert the model to a newer opset",
            )
        write = {"If": self.branch, "Loop": self.loop, "Scan": self.scan}
        return write[self.node.op_type]()

    # ------------------------------------------------ the three operators

    def branch(self) -> ControlBlock:
        """An If."""
        node = self.node
        graphs = [attribute(node, name) for name in ("then_branch", "else_branch")]
        captured = list(dict.fromkeys(name for graph in graphs for name in _free(graph)))
        variables = [name for name in captured if name not in self.constants]
        around = Around(turns=self.around.turns, depth=self.around.depth + 1)
        bodies = [
            self.prepared(
                _BodyModel(graph, self.proto, self.around.depth).model(self, [], variables, []),
                around,
            )
            for graph in graphs
        ]
        one, other = (_results(body) for body in bodies)
        if None in one or one != other:
            raise _OpenShapeError("the shapes of its branches differ or are not known")
        condition = self.scalar(node.input[0], "condition", _BOOL)
        opposite = self.emit("Not", [condition], "opposite", _FLAG)
        outputs = [name or f"{self.prefix}unused{i}" for i, name in enumerate(node.output)]
        self.put(CHOOSE, [condition, opposite, *variables], outputs)
        self.kinds.update(zip(outputs, [kind for kind in one if kind], strict=True))
        return ControlBlock(name=_name_of(node), operator="If", bodies=tuple(bodies))

    def loop(self) -> ControlBlock:
        """A Loop."""
        node, graph = self.node, attribute(self.node, "body")
        trip, first = (*node.input, "", "")[:2]
        if first in self.constants and numpy_helper.to_array(self.constants[first]).all():
            first = ""
        given = list(node.input[2:])
        rows = self.rows(graph, 1 + len(given), len(given))
        most = self.most(trip) if trip else None
        if rows and (most is None or most > MOST_TURNS):
            raise _NoBlockError(
                "it collects a result of each turn, and the most turns that it may take are not "
                "known or too many",
                f"make the number of turns a constant (--set INPUT=VALUE), or limit it by a Min "
                f"with a constant of at most {MOST_TURNS}",
            )
        body = _BodyModel(graph, self.proto, self.around.depth)
        turn, going = (value.name for value in graph.input[:2])
        body.give(going, np.ones(_dims(graph.input[1]), "bool"))
        body.turn(turn, _dims(graph.input[0]))
        goes = body.scalar(graph.output[0].name, "goes")
        conditions = [self.scalar(first, "first", _BOOL)] if first else []
        captured = []
        if trip:
            count = self.scalar(trip, "turns", _INT64)
            captured = [count] if count not in self.constants else []
            if not captured:
                body.give(count, numpy_helper.to_array(self.constants[count]))
            goes = body.op("And", [goes, body.op("Less", [body.next, count], "has")], "goes/has")
            zero = self.constant("zero", np.array(0, "int64"))
            conditions.append(self.emit("Less", [zero, count], "any", _FLAG))
        start = conditions[0] if conditions else self.constant("yes", np.array(True))
        if len(conditions) > 1:
            start = self.emit("And", conditions, "start", _FLAG)
        states = [value.name for value in graph.input[2:]]
        makes = [value.name for value in graph.output[1 : 1 + len(given)]]
        makes += [row for row, _ in rows.values()]
        block, outputs = self.repeat(
            body, start, list(zip(states, given, strict=True)), captured, [goes], makes, most
        )
        exact = not first and _goes_on(graph) and trip in self.constants
        wholes = outputs[1 + len(given) :]
        for i, ((_, name), whole) in enumerate(zip(rows.values(), wholes, strict=True)):
            self.cut(whole, outputs[0], name, f"used{i}", block.most, exact=exact)
        return block

    def scan(self) -> ControlBlock:
        """A Scan, as opset 9 has it."""
        node, graph = self.node, attribute(self.node, "body")
        scanned_count = attribute(node, "num_scan_inputs")
        count = len(node.input) - scanned_count
        given, scanned = list(node.input[:count]), list(node.input[count:])
        axes = attribute(node, "scan_input_axes", [0] * scanned_count)
        backwards = attribute(node, "scan_input_directions", [0] * scanned_count)
        turns = {self.kind(name).shape[axis] for name, axis in zip(scanned, axes, strict=True)}
        if len(turns) != 1 or max(turns) > MOST_TURNS:
            raise _OpenShapeError("its inputs' lengths differ or are too large")
        (most,) = turns
        body = _BodyModel(graph, self.proto, self.around.depth)
        body.turn("", ())
        items = [value.name for value in graph.input[count:]]
        for item, name, axis, back in zip(items, scanned, axes, backwards, strict=True):
            body.take(item, name, axis, most if back else None)
            if name in self.constants:
                body.give(name, numpy_helper.to_array(self.constants[name]))
        goes = body.op("Less", [body.next, body.constant("most", np.array(most, "int64"))], "goes")
        states = [value.name for value in graph.input[:count]]
        rows = self.rows(graph, count, count)
        makes = [value.name for value in graph.output[:count]]
        makes += [row for row, _ in rows.values()]
        captured = [name for name in dict.fromkeys(scanned) if name not in self.constants]
        start = self.constant("yes", np.array(True))
        block, outputs = self.repeat(
            body, start, list(zip(states, given, strict=True)), captured, [goes], makes, most
        )
        ways = attribute(node, "scan_output_directions", [0] * len(graph.output))
        places = attribute(node, "scan_output_axes", [0] * len(graph.output))
        for (i, (_, name)), whole in zip(rows.items(), outputs[1 + count :], strict=True):
            self.ordered(whole, name, f"order{i}", places[i], backwards=bool(ways[i]))
        return block

    def rows(self, graph: onnx.GraphProto, made: int, given: int) -> dict[int, tuple[str, str]]:
        """Results of turns that are put together, as the body and as the graph around it names
        them, by number; the first is the body's output `made` and the node's output `given`."""
        pairs = zip(graph.output[made:], self.node.output[given:], strict=False)
        return {i: (one.name, name) for i, (one, name) in enumerate(pairs) if name}

    def repeat(
        self,
        body: _BodyModel,
        start: str,
        states: Sequence[tuple[str, str]],
        captured: Sequence[str],
        goes: Sequence[str],
        makes: Sequence[str],
        most: int | None,
    ) -> tuple[ControlBlock, list[str]]:
        """A Repeat of a body, and its outputs: turns, states, and results of rows."""
        room = min(MOST_TURNS, MOST_TOGETHER // self.around.turns)
        limit = min(most, room) if most is not None else min(_USUAL_TURNS, room)
        if limit < 1 or (room < _USUAL_TURNS and (most is None or most > room)):
            raise _NoBlockError(
                "with the loops around it, it may take too many turns",
                "limit the number of turns by a Min with a constant",
            )
        variables = [name for name in _free(body.graph) if name not in self.constants]
        variables = list(dict.fromkeys([*captured, *variables]))
        proto = body.model(self, states, variables, [*goes, body.next, *makes])
        around = Around(turns=self.around.turns * limit, depth=self.around.depth + 1)
        prepared = self.prepared(proto, around)
        results = _results(prepared)
        kept = [self.kind(name) for _, name in states]
        for (name, _), before, after in zip(states, kept, results[2:], strict=False):
            if before != after:
                raise _OpenShapeError(
                    f"'{name}' changes its shape or type from turn to turn"
                    if after
                    else f"the shape that '{name}' has after a turn is not known"
                )
        rows = results[2 + len(states) :]
        if None in rows:
            raise _OpenShapeError("a result of its turns has a shape that depends on the data")
        outputs = [f"{self.prefix}count"]
        outputs += [
            name or f"{self.prefix}state{i}"
            for i, name in enumerate((*self.node.output, *[""] * len(states))[: len(states)])
        ]
        outputs += [f"{self.prefix}rows{i}" for i in range(len(rows))]
        zero = self.constant("none", np.array(0, "int64"))
        given = [name for _, name in states]
        self.put(REPEAT, [start, zero, *given, *variables], outputs)
        wide = [Kind(row.element, (limit, *row.shape)) for row in rows if row]
        self.kinds.update(zip(outputs, [_TURN, *kept, *wide], strict=True))
        block = ControlBlock(
            name=_name_of(self.node),
            operator=self.node.op_type,
            bodies=(prepared,),
            states=1 + len(states),
            most=limit,
        )
        return block, outputs

    # ------------------------------------------------ behind the node

    def cut(self, whole: str, turns: str, to: str, hint: str, most: int, *, exact: bool) -> None:
        """As many rows as there were turns."""
        if exact:
            self.nodes.append(helper.make_node("Identity", [whole], [to]))
            return
        places = self.constant(f"{hint}/places", np.arange(most, dtype="int64"))
        used = self.emit("Less", [places, turns], hint, Kind(_BOOL, (most,)))
        self.nodes.append(helper.make_node("Compress", [whole, used], [to], axis=0))

    def ordered(self, whole: str, to: str, hint: str, axis: int, *, backwards: bool) -> None:
        """Rows along another axis, or the last one first."""
        kind = self.kinds[whole]
        if backwards:
            places = np.arange(kind.shape[0] - 1, -1, -1, dtype="int64")
            indices = self.constant(f"{hint}/places", places)
            whole = self.emit("Gather", [whole, indices], f"{hint}/turned", kind, axis=0)
        rank = len(kind.shape)
        order = list(range(1, rank))
        order.insert(axis % rank, 0)
        self.nodes.append(helper.make_node("Transpose", [whole], [to], perm=order))

    # ------------------------------------------------ what is known

    def kind(self, name: str) -> Kind:
        """Raises _NoBlockError for a value without a fixed shape."""
        found = self.kinds.get(name) or self.known.get(name)
        if found is None:
            raise _OpenShapeError(
                f"it reads '{name}', whose shape is not known or which is not a tensor"
            )
        return found

    def most(self, name: str) -> int | None:
        """The largest that a number can be, None if that is not known."""
        while name not in self.constants:
            maker = self.makers.get(name)
            if maker is None or not maker.input:
                return None
            if maker.op_type in ("Min", "Clip"):
                limits = maker.input if maker.op_type == "Min" else maker.input[2:3]
                known = [self.most(limit) for limit in limits if limit in self.constants]
                return min((limit for limit in known if limit is not None), default=None)
            if maker.op_type not in ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"):
                return None
            name = maker.input[0]
        value = numpy_helper.to_array(self.constants[name])
        return max(0, int(value.reshape(-1)[0])) if value.size == 1 else None

    def prepared(self, proto: onnx.ModelProto, around: Around) -> Prepared:
        body = self.prepare(proto, around)
        if body.bounds:
            raise _OpenShapeError("the size of a result depends on the data")
        return body

    # ------------------------------------------------ writing

    def constant(self, hint: str, value: np.ndarray) -> str:
        name = self.prefix + hint
        if name not in self.constants:
            self.tensors.append(numpy_helper.from_array(value, name))
            self.constants[name] = self.tensors[-1]
        return name

    def emit(
        self, op_type: str, inputs: Sequence[str], hint: str, kind: Kind, **attributes: object
    ) -> str:
        name = self.prefix + hint
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        self.kinds[name] = kind
        return name

    def scalar(self, name: str, hint: str, element: int) -> str:
        """A value of one element without axes."""
        if name in self.constants:
            value = numpy_helper.to_array(self.constants[name])
            return self.constant(hint, value.reshape(()))
        if name in self.known and not self.known[name].shape:
            return name
        none = self.constant("scalar", np.zeros(0, "int64"))
        return self.emit("Reshape", [name, none], hint, Kind(element, ()))

    def put(self, op_type: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        node = helper.make_node(
            op_type, inputs, outputs, name=_name_of(self.node), domain=DOMAIN, body=self.key
        )
        self.nodes.append(node)


class _BodyModel:
    """A body as a model of its own: its inputs are states, and what it reads of the graph around
    it."""

    def __init__(self, graph: onnx.GraphProto, proto: onnx.ModelProto, depth: int) -> None:
        self.graph = onnx.GraphProto()
        self.graph.CopyFrom(graph)
        self.before: list[onnx.NodeProto] = []
        self.after: list[onnx.NodeProto] = []
        self.prefix = f"{graph.name or 'body'}.{depth}/"
        self.given = {tensor.name for tensor in graph.initializer}
        self.proto = proto
        self.count = ""
        self.next = ""

    def give(self, name: str, value: np.ndarray) -> str:
        """A constant in the place of an input or of a value around the body."""
        if name not in self.given:
            self.graph.initializer.append(numpy_helper.from_array(value, name))
            self.given.add(name)
        return name

    def constant(self, hint: str, value: np.ndarray) -> str:
        return self.give(self.prefix + hint, value)

    def op(
        self, op_type: str, inputs: Sequence[str], hint: str, *, to: str = "", **attrs: object
    ) -> str:
        """A node behind those of the body."""
        name = to or self.prefix + hint
        self.after.append(helper.make_node(op_type, inputs, [name], name=name, **attrs))
        return name

    def scalar(self, name: str, hint: str) -> str:
        none = self.constant("scalar", np.zeros(0, "int64"))
        return self.op("Reshape", [name, none], hint)

    def turn(self, name: str, dims: Sequence[int]) -> None:
        """The number of turns as the first state; in the body it is `name`, of shape `dims`."""
        self.count, hint = f"{self.prefix}turn", "shape of turn"
        if name:
            shape = self.constant(hint, np.array(dims, "int64"))
            self.before.append(helper.make_node("Reshape", [self.count, shape], [name]))
        one = self.constant("one", np.array(1, "int64"))
        self.next = self.op("Add", [self.count, one], "next")

    def take(self, item: str, name: str, axis: int, turned: int | None) -> None:
        """An item of `name`, of the last one of `turned` on if it is given."""
        index = self.count
        if turned is not None:
            last = self.constant("last", np.array(turned - 1, "int64"))
            index = f"{self.prefix}from the end"
            if not any(index in node.output for node in self.before):
                self.before.append(helper.make_node("Sub", [last, self.count], [index]))
        self.before.append(helper.make_node("Gather", [name, index], [item], axis=axis))

    def model(
        self,
        writer: _BlockWriter,
        states: Sequence[tuple[str, str]],
        variables: Sequence[str],
        outputs: Sequence[str],
    ) -> onnx.ModelProto:
        """The model; `outputs` are its own where none are given."""
        outputs = outputs or [value.name for value in self.graph.output]
        inputs = [(self.count, _TURN)] if self.count else []
        inputs += [(name, writer.kind(of)) for name, of in states]
        inputs += [(name, writer.kind(name)) for name in variables]
        for name in _free(self.graph):
            if name in writer.constants:
                self.give(name, numpy_helper.to_array(writer.constants[name]))
        results = []
        for number, name in enumerate(outputs):
            # Two results may be one value, or an input.
            result = f"{self.prefix}result{number}"
            self.after.append(helper.make_node("Identity", [name], [result], name=result))
            results.append(onnx.ValueInfoProto(name=result))
        nodes = [*self.before, *self.graph.node, *self.after]
        made = helper.make_graph(
            nodes,
            self.prefix.rstrip("/"),
            [helper.make_tensor_value_info(n, kind.element, kind.shape) for n, kind in inputs],
            results,
            self.graph.initializer,
        )
        imports = [item for item in self.proto.opset_import if item.domain != DOMAIN]
        proto = helper.make_model(made, opset_imports=imports, ir_version=self.proto.ir_version)
        return _with_output_types(proto)


def _with_output_types(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the element types of its outputs, which a model must have."""
    found = {value.name: value.type for value in infer_shapes(proto).graph.output}
    for value in proto.graph.output:
        value.type.CopyFrom(found[value.name])
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return proto


def _kinds(proto: onnx.ModelProto) -> dict[str, Kind]:
    """Element types and shapes of the tensors that are fixed."""
    found = {}
    for name, value in GraphIndex(infer_shapes(proto).graph).infos.items():
        tensor = value.type.tensor_type
        dims = tensor.shape.dim
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            found[name] = Kind(tensor.elem_type, tuple(dim.dim_value for dim in dims))
    for weight in proto.graph.initializer:
        found[weight.name] = Kind(weight.data_type, tuple(weight.dims))
    return found


def _results(body: Prepared) -> list[Kind | None]:
    """The kinds of a body's outputs, as far as they are known."""
    kinds = _kinds(body.proto)
    return [kinds.get(value.name) for value in body.proto.graph.output]


def _dims(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    """The shape of a number: () or (1,)."""
    return (1,) * len(value.type.tensor_type.shape.dim)


def _free(graph: onnx.GraphProto) -> Iterator[str]:
    """What a body reads of the graph around it."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own.update(name for node in graph.node for name in node.output)
    read = [name for node in graph.node for name in node.input if name]
    read += [name for node in graph.node for inner in subgraphs(node) for name in _free(inner)]
    read += [value.name for value in graph.output]
    yield from (name for name in dict.fromkeys(read) if name not in own)


def _goes_on(graph: onnx.GraphProto) -> bool:
    """Whether a Loop's body never ends it."""
    name, index = graph.output[0].name, GraphIndex(graph)
    while name in index.makers and index.makers[name].op_type == "Identity":
        name = index.makers[name].input[0]
    constant = index.constants.get(name)
    return name == graph.input[1].name or (
        constant is not None and bool(numpy_helper.to_array(constant).all())
    )

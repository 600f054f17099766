"""Each operator of ONNX with each element type, in each of its versions: `./dev fuzz types`.

    ./dev fuzz types [--only OPERATOR] [--sample N] [--seed S] [--json FILE]

onnx's own tests of single nodes, each type variable of their schemas bound to each type that it may
have, in each version of the operator that an opset from 7 on has. A type that no input of a model
may have is cast to inside. Verdicts are those of `./dev fuzz graphs`; "type" is another element
type or shape than onnx's inference says.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests import conformance
from tests.fuzz import graphs, sketch

# Of the tests of an operator so many, the smallest with other inputs and attributes.
_TEMPLATES = 2
_INSIDE = ("bfloat16", "int4", "uint4", "float8_e4m3fn", "float8_e5m2")
_ONNX_NAMES = {"float32": "float", "float64": "double"}
_NUMPY_NAMES = {
    "float8e4m3fn": "float8_e4m3fn",
    "float8e5m2": "float8_e5m2",
    **{theirs: ours for ours, theirs in _ONNX_NAMES.items()},
}

# What became an input, by the first opset in which it is one: its position and the attribute.
_WERE_ATTRIBUTES: Mapping[str, tuple[int, Mapping[int, str]]] = {
    "Clip": (11, {1: "min", 2: "max"}),
    "Dropout": (12, {1: "ratio"}),
    "Pad": (11, {1: "pads", 2: "value"}),
    "ReduceSum": (13, {1: "axes"}),
    **{
        f"Reduce{name}": (18, {1: "axes"})
        for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
    },
    "Slice": (10, {1: "starts", 2: "ends", 3: "axes"}),
    "Split": (13, {1: "split"}),
    "Squeeze": (13, {1: "axes"}),
    "TopK": (10, {1: "k"}),
    "Unsqueeze": (13, {1: "axes"}),
    "Upsample": (9, {1: "scales"}),
}


@dataclass(frozen=True, kw_only=True)
class Combination:
    """A model of one node, and its inputs."""

    name: str
    model: bytes
    given: Sequence[np.ndarray]


def draw(task: Combination) -> graphs.Drawn | None:
    """With what is due; of what nobody can run with its types only, None where a shape is open."""
    model = onnx.load_from_string(task.model)
    outputs = [value.type.tensor_type for value in model.graph.output]
    kinds = [helper.tensor_dtype_to_np_dtype(kind.elem_type) for kind in outputs]
    try:
        due = sketch.evaluated(model, graphs.names(model, task.given))
    except sketch.InvalidNodeError:
        shapes = [[dim.dim_value for dim in kind.shape.dim] for kind in outputs]
        if not all(
            kind.HasField("shape") and all(s) for kind, s in zip(outputs, shapes, strict=True)
        ):
            return None
        return graphs.Drawn(
            name=task.name,
            model=model,
            given=task.given,
            due=[np.zeros(shape, kind) for shape, kind in zip(shapes, kinds, strict=True)],
            chosen=frozenset(value.name for value in model.graph.output),
        )
    due = [np.asarray(value, kind) for value, kind in zip(due, kinds, strict=True)]
    values = graphs.names(model, task.given)
    for node in model.graph.node:
        if node.name.endswith("/cast"):  # in front of the one that is judged
            to = helper.tensor_dtype_to_np_dtype(node.attribute[0].i)
            values[node.output[0]] = values[node.input[0]].astype(to)
    return graphs.Drawn(
        name=task.name,
        model=model,
        given=task.given,
        due=due,
        chosen=graphs.behind_choices(model, values),
        times=graphs.times_of(model, of_bfloat16="bfloat16" in task.name),
    )


def combinations(only: str = "") -> Iterator[Combination]:
    """All of them; those that ONNX does not allow are left out."""
    for operator, templates in sorted(_templates().items()):
        if only in operator:
            yield from _of_operator(operator, templates)


def some(operators: Sequence[str], seed: int) -> Iterator[Combination]:
    """One of each of these operators, drawn at random."""
    rng = random.Random(seed)
    for operator, templates in sorted(_templates(operators).items()):
        yield rng.choice(list(_of_operator(operator, templates)))


_Template = tuple[onnx.ModelProto, Sequence[np.ndarray]]


def _of_operator(operator: str, templates: Sequence[_Template]) -> Iterator[Combination]:
    known: set[bytes] = set()
    for number, (model, given) in enumerate(templates):
        for made in _of_template(model, given, f"{operator}/{number}"):
            if made.model not in known:
                known.add(made.model)
                yield made


def _templates(operators: Sequence[str] = ()) -> dict[str, list[_Template]]:
    found = defaultdict(list)
    cases, _ = conformance.cases(operators)
    for case in cases:
        model = onnx.load_from_string(case.model)
        if case.operator == "several" or len(model.graph.node) != 1 or not case.data:
            continue
        node = model.graph.node[0]
        if node.domain or any(a.HasField("g") for a in node.attribute):
            continue
        if all(value.size for value in case.data[0][0]):
            found[case.operator].append((model, case.data[0][0]))
    chosen = {}
    for operator, some in found.items():
        some.sort(
            key=lambda item: (sum(v.size for v in item[1]), len(item[0].graph.node[0].attribute))
        )
        forms = {}
        for model, given in some:
            node = model.graph.node[0]
            forms.setdefault(
                (len(node.input), len(node.output), len(node.attribute)), (model, given)
            )
        chosen[operator] = list(forms.values())[:_TEMPLATES]
    return chosen


def _of_template(
    model: onnx.ModelProto, given: Sequence[np.ndarray], name: str
) -> Iterator[Combination]:
    op_type = model.graph.node[0].op_type
    for opset in _opsets(op_type):
        schema = onnx.defs.get_schema(op_type, opset)
        older = _older(model, schema, opset)
        if older is None:
            continue
        for binding, bound in _bindings(older, schema):
            made = _bound(older, given, schema, binding)
            if made is not None:
                yield Combination(
                    name=f"{name} opset {opset} {bound}", model=made[0], given=made[1]
                )
        for kind in sketch.ALL if op_type in ("Cast", "EyeLike") else ():
            to = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
            turned = onnx.ModelProto()
            turned.CopyFrom(older)
            node = turned.graph.node[0]
            word = "to" if op_type == "Cast" else "dtype"
            kept = [a for a in node.attribute if a.name != word]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute(word, to)])
            for source in sketch.ALL:
                made = _bound(turned, given, schema, {schema.inputs[0].type_str: source})
                if made is not None:
                    yield Combination(
                        name=f"{name} opset {opset} {source} to {kind}",
                        model=made[0],
                        given=made[1],
                    )


def _opsets(op_type: str) -> list[int]:
    """An opset for each version of an operator, and the newest."""
    found = set()
    for opset in range(sketch.OLDEST, sketch.NEWEST + 1):
        try:
            schema = onnx.defs.get_schema(op_type, opset)
        except onnx.defs.SchemaError:
            continue
        if not schema.deprecated:
            found.add(max(schema.since_version, sketch.OLDEST))
    return sorted(found)


def _older(model: onnx.ModelProto, schema: Any, opset: int) -> onnx.ModelProto | None:
    """The node as that version has it: inputs that were attributes, no attributes it lacks."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.opset_import[0].version = opset
    made.ir_version = sketch.ir_of(opset)
    node = made.graph.node[0]
    since, places = _WERE_ATTRIBUTES.get(node.op_type, (0, {}))
    values = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    for place in sorted(places, reverse=True) if opset < since else ():
        if place >= len(node.input):
            continue
        value = values.get(node.input[place])
        if value is None or not value.size:
            return None
        word = places[place]
        plain = value.tolist()
        if word in ("k", "min", "max", "value", "ratio"):
            plain = np.ravel(value).tolist()[0]
        node.attribute.append(helper.make_attribute(word, plain))
    if opset < since:
        left = [n for i, n in enumerate(node.input) if i not in places]
        del node.input[:]
        node.input.extend(left)
    kept = [a for a in node.attribute if a.name in schema.attributes]
    del node.attribute[:]
    node.attribute.extend(kept)
    if not schema.min_input <= len(node.input) <= schema.max_input:
        return None
    if len(node.output) > schema.max_output:
        del node.output[schema.max_output :]
    return made


def _variables(node: onnx.NodeProto, schema: Any) -> dict[str, str]:
    """The type variable of each input that has one, by the input's name."""
    found = {}
    for at, name in enumerate(node.input):
        formal = schema.inputs[min(at, len(schema.inputs) - 1)]
        found[name] = formal.type_str
    return found


def _bindings(model: onnx.ModelProto, schema: Any) -> Iterator[tuple[dict[str, str], str]]:
    """Which types the variables may have, one variable at a time."""
    used = set(_variables(model.graph.node[0], schema).values())
    yield {}, "as it is"
    for constraint in schema.type_constraints:
        if constraint.type_param_str not in used:
            continue
        for text in constraint.allowed_type_strs:
            inner = text.removeprefix("tensor(").removesuffix(")")
            kind = _NUMPY_NAMES.get(inner, inner)
            if kind in sketch.ALL or kind in _INSIDE:
                yield {constraint.type_param_str: kind}, f"{constraint.type_param_str}={kind}"


def _bound(
    model: onnx.ModelProto, given: Sequence[np.ndarray], schema: Any, binding: Mapping[str, str]
) -> tuple[bytes, Sequence[np.ndarray]] | None:
    """A model with its variables bound, and its inputs; None if ONNX does not allow it."""
    import ml_dtypes

    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    node = graph.node[0]
    variables = _variables(node, schema)
    kinds = {name: binding[var] for name, var in variables.items() if var in binding}
    for tensor in graph.initializer:
        if kind := kinds.get(tensor.name):
            value = _cast(numpy_helper.to_array(tensor), kind)
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    used = set(node.input)
    inputs, values = [], []
    for info, value in zip(list(graph.input), given, strict=True):
        if info.name not in used:
            continue
        kind = kinds.get(info.name, value.dtype.name)
        array = _cast(value, kind) if info.name in kinds else np.asarray(value)
        if kind in _INSIDE:
            inner = f"{info.name}/cast"
            to = helper.np_dtype_to_tensor_dtype(np.dtype(getattr(ml_dtypes, kind)))
            graph.node.insert(0, helper.make_node("Cast", [info.name], [inner], name=inner, to=to))
            for at, name in enumerate(node.input):
                if name == info.name:
                    node.input[at] = inner
            array = np.asarray(array, "float32")
        inputs.append(
            helper.make_tensor_value_info(
                info.name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
        )
        values.append(array)
    if not inputs:
        return None
    del graph.input[:], graph.output[:]
    graph.input.extend(inputs)
    for name in [n for n in node.output if n]:
        graph.output.append(helper.make_empty_tensor_value_info(name))
    made = _typed(made)
    return None if made is None else (made.SerializeToString(), values)


def _typed(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """With the types of its outputs, cast to where a model's output may not have them."""
    try:
        typed = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError):
        return None
    casts = []
    for value in typed.graph.output:
        kind = value.type.tensor_type.elem_type
        if not kind:
            return None
        if helper.tensor_dtype_to_np_dtype(kind).name in _INSIDE:
            casts.append((value.name, value))
    for name, value in casts:
        value.name = f"{name}/out"
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        typed.graph.node.append(
            helper.make_node(
                "Cast", [name], [value.name], name=value.name, to=onnx.TensorProto.FLOAT
            )
        )
    try:
        onnx.checker.check_model(typed, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError):
        return None
    return typed


def _cast(value: np.ndarray, kind: str) -> np.ndarray:
    """The numbers of a test as another type: none is out of its range."""
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, kind, kind))
    if value.dtype == dtype or value.dtype.kind in "US":
        return value
    if kind == "bool":
        return np.asarray(value > 0)
    if dtype.kind in "iu" or "int4" in kind:
        whole = np.round(value.astype("float64") * (3 if value.dtype.kind == "f" else 1))
        whole = np.nan_to_num(whole, nan=0, posinf=7, neginf=-7)
        least, most = (0, 100) if "uint" in kind else (-100, 100)
        if "int4" in kind:
            least, most = (0, 15) if "uint" in kind else (-8, 7)
        return np.asarray(np.clip(whole, least, most).astype("int64").astype(dtype))
    return np.asarray(value.astype("float32" if dtype.kind == "V" else "float64").astype(dtype))


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge all combinations, or some; exit code 1 if one is a bug."""
    parser = argparse.ArgumentParser(prog="./dev fuzz types")
    parser.add_argument("--only", default="", help="operators with this in their names")
    parser.add_argument("--sample", type=int, help="so many, drawn at random")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the sample")
    parser.add_argument("--json", type=Path, help="a file for verdicts, one a line")
    parser.add_argument("--workers", type=int, default=graphs.WORKERS)
    options = parser.parse_args(arguments)
    todo = list(combinations(options.only))
    if options.sample is not None:
        todo = random.Random(options.seed).sample(todo, min(options.sample, len(todo)))
    counts = graphs.report(graphs.judge_all(todo, draw, options.workers), options.json)
    return int(any(counts[kind] for kind in graphs.BUGS))


if __name__ == "__main__":
    sys.exit(main())

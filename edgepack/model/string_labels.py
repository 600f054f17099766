"""Words that a model ends in, as numbers: the labels of scikit-learn's classifiers.

A kernel computes numbers. Words that the model itself holds, and passes on to its outputs, become
their places in a list; so do the keys of the maps that ZipMap makes, whose values stay a tensor.
Words that come in, or that are taken apart, are left for the compiler to refuse.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from edgepack.model.index import GraphIndex

# Classifiers, and their attribute for labels that are numbers.
_CLASSIFIERS = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}
# Operators that pass on what they are given, by the inputs that hold it.
_PASSES: dict[str, slice] = {
    "ArrayFeatureExtractor": slice(1),
    "Flatten": slice(1),
    "Gather": slice(1),
    "Identity": slice(1),
    "Reshape": slice(1),
    "Squeeze": slice(1),
    "Transpose": slice(1),
    "Unsqueeze": slice(1),
    "Concat": slice(None),
    "Where": slice(1, 3),
}


def number_strings(proto: Any) -> tuple[str, ...]:
    """Make numbers of a model's words, where they are all its own; the words, by number.

    Changes `proto`. Outputs that were words are int64 then; of equal words the first counts.
    """
    _unzip(proto.graph)
    words = _Words(proto.graph)
    if not words.found or not words.all_numbered():
        return ()
    words.replace()
    return tuple(words.numbers)


def _unzip(graph: Any) -> None:
    """Give the tensors that ZipMap makes maps of under the names of these."""
    from onnx import TensorProto, helper

    outputs = GraphIndex(graph).outputs
    for node in graph.node:
        if node.op_type != "ZipMap" or node.output[0] not in outputs:
            continue
        sizes = [len(attribute.strings or attribute.ints) for attribute in node.attribute]
        value = outputs[node.output[0]]
        shape = [None, max(sizes, default=None)]
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, shape))
        node.CopyFrom(helper.make_node("Identity", node.input, node.output, name=node.name))


class _Words:
    """The words of a graph: names of the values that hold them, and their numbers."""

    def __init__(self, graph: Any) -> None:
        from onnx import TensorProto

        self.graph = graph
        self.string = TensorProto.STRING
        self.numbers: dict[str, int] = {}
        self.values = {t.name for t in graph.initializer if t.data_type == self.string}
        for node in graph.node:
            if self.makes(node):
                self.values.update(node.output[:1])
            for attribute in node.attribute:
                if attribute.name == "classlabels_strings":
                    self.learn(attribute.strings)
        self.found = bool(self.values)

    def learn(self, texts: Iterable[bytes]) -> list[int]:
        """The numbers of some words."""
        return [
            self.numbers.setdefault(text.decode("utf-8", "replace"), len(self.numbers))
            for text in texts
        ]

    def makes(self, node: Any) -> bool:
        """Whether a node's first result is words."""
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type in _CLASSIFIERS:
            return "classlabels_strings" in attributes
        if node.op_type in ("Constant", "LabelEncoder"):
            tensors = [attributes.get(name) for name in ("value", "values_tensor")]
            return not {"value_string", "value_strings", "values_strings"}.isdisjoint(
                attributes
            ) or any(item is not None and item.t.data_type == self.string for item in tensors)
        return self.passes(node)

    def passes(self, node: Any) -> bool:
        """Whether it passes words on as they are."""
        if node.op_type == "Cast":
            kinds = {attribute.i for attribute in node.attribute if attribute.name == "to"}
            return kinds == {self.string} and self.values.issuperset(node.input)
        given = node.input[_PASSES.get(node.op_type, slice(0))]
        return bool(given) and all(name in self.values for name in given)

    def all_numbered(self) -> bool:
        """Whether every word of the graph is one of its own, and only passed on or looked up."""
        if any(
            value.type.tensor_type.elem_type == self.string and value.name not in self.values
            for value in (*self.graph.input, *self.graph.output)
        ):
            return False
        return all(
            self.passes(node) or node.op_type == "LabelEncoder"
            for node in self.graph.node
            if not self.values.isdisjoint(node.input)
        )

    def replace(self) -> None:
        """Write the numbers into the graph."""
        from onnx import TensorProto, helper

        for tensor in self.graph.initializer:
            if tensor.data_type == self.string:
                tensor.CopyFrom(self.tensor(tensor))
        for node in self.graph.node:
            if node.op_type == "Cast" and not self.values.isdisjoint(node.input):
                node.CopyFrom(helper.make_node("Identity", node.input, node.output, name=node.name))
            for attribute in list(node.attribute):
                made = self.attribute(node.op_type, attribute)
                if made is not None:
                    attribute.CopyFrom(made)
        for value in (*self.graph.output, *self.graph.value_info):
            if value.name in self.values:
                value.type.tensor_type.elem_type = TensorProto.INT64

    def attribute(self, operator: str, attribute: Any) -> Any:
        """The attribute with numbers in the place of words; None if it has none."""
        from onnx import helper

        name = attribute.name
        if operator in _CLASSIFIERS and name == "classlabels_strings":
            return helper.make_attribute(_CLASSIFIERS[operator], self.learn(attribute.strings))
        if operator not in ("Constant", "LabelEncoder"):
            return None
        if attribute.HasField("t") and attribute.t.data_type == self.string:
            return helper.make_attribute(name, self.tensor(attribute.t))
        if name in ("value_string", "default_string"):
            kind = "int" if operator == "Constant" else "int64"
            return helper.make_attribute(name.replace("string", kind), *self.learn([attribute.s]))
        if name.endswith("_strings"):
            kind = "ints" if operator == "Constant" else "int64s"
            return helper.make_attribute(
                name.replace("strings", kind), self.learn(attribute.strings)
            )
        return None

    def tensor(self, tensor: Any) -> Any:
        """A tensor of words as one of their numbers."""
        from onnx import TensorProto, helper

        numbers = self.learn(tensor.string_data)
        return helper.make_tensor(tensor.name, TensorProto.INT64, tensor.dims, numbers)

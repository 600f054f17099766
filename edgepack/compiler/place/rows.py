"""Layers on tensors that lie as the model has them: which rule makes each, and where attentions put
their results."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from edgepack.kernels.layer import Attention, Layer, RowProduct
from edgepack.kernels.places import RowsAt
from edgepack.kernels.rules.rule import Rule
from edgepack.kernels.tiles.cpu import CpuModel
from edgepack.kernels.value import Value


def rule_of_rows(layer: Layer, rules: Sequence[Rule], cpu: CpuModel) -> Rule | None:
    """The rule that makes a layer's kernel from tensors as the model has them."""
    able = (rule for rule in rules if rule.rows is not None)
    return next((rule for rule in able if rule.takes(layer, cpu)), None)


def with_results_in_queries(
    layers: Sequence[Layer], kept: Collection[Value], rules: Sequence[Rule], cpu: CpuModel
) -> list[Layer]:
    """The layers, where the results of attentions take the place of their queries if all that read
    them can: products of rows, also through a reshape. The values that are `kept` are the network's
    inputs and results."""
    search = _RowReaders(layers, kept, rules, cpu)
    made: dict[Value, Layer] = {}
    roots: dict[Value, Value] = {}
    for layer in layers:
        operator = layer.operator
        if not isinstance(operator, Attention):
            continue
        rows = operator.rows_in_queries()
        found = rows and search.readers_in_steps(layer, operator, rows)
        if not found:
            continue
        made[layer.output] = replace(layer, operator=replace(operator, in_queries=True))
        for reader in found:
            if reader.is_reshape:
                roots[reader.output] = layer.output
            else:
                assert isinstance(reader.operator, RowProduct)
                product = replace(reader.operator, left_at=rows)
                made[reader.output] = replace(reader, operator=product, inputs=(layer.output,))
    return [made.get(layer.output, layer) for layer in layers if layer.output not in roots]


class _RowReaders:
    def __init__(
        self,
        layers: Sequence[Layer],
        kept: Collection[Value],
        rules: Sequence[Rule],
        cpu: CpuModel,
    ) -> None:
        self._kept, self._rules, self._cpu = kept, rules, cpu
        self._readers: dict[Value, list[Layer]] = {}
        for layer in layers:
            for value in dict.fromkeys((*layer.inputs, *layer.operands)):
                self._readers.setdefault(value, []).append(layer)

    def readers_in_steps(
        self, layer: Layer, operator: Attention, rows: RowsAt
    ) -> list[Layer] | None:
        """All that read an attention's result; None unless they can where its queries lie, and
        nothing else reads those."""
        rule = rule_of_rows(layer, self._rules, self._cpu)
        if rule is None or not rule.in_place_of_queries:
            return None
        assert isinstance(operator.queries.source, int)
        queries = layer.inputs[operator.queries.source]
        if queries in self._kept or len(self._readers[queries]) > 1:
            return None
        return self._in_steps(layer.output, rows)

    def _in_steps(self, value: Value, rows: RowsAt) -> list[Layer] | None:
        """What reads a value, or its rows in another shape; None unless all of it are products that
        can read them where they would lie."""
        if value in self._kept:
            return None
        found: list[Layer] = []
        for layer in self._readers.get(value, []):
            operator = layer.operator
            if isinstance(operator, RowProduct):
                moved = replace(layer, operator=replace(operator, left_at=rows))
                if layer.inputs != (value,) or value in layer.operands:
                    return None
                if rule_of_rows(moved, self._rules, self._cpu) is None:
                    return None
            else:
                others = self._in_steps(layer.output, rows) if layer.is_reshape else None
                if others is None:
                    return None
                found += others
            found.append(layer)
        return found

"""Graphs inside of nodes: bodies of loops, and branches."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto

from tests.onnx_models import Builder


class Body(Builder):
    """A graph inside of another, whose names are its own."""

    def __init__(self, name: str = "body") -> None:
        super().__init__()
        self.name = name

    def const(self, value: object, dtype: str | None = None) -> str:
        super().const(value, dtype)
        self.weights[-1].name = f"{self.name}/{self.weights[-1].name}"
        return self.weights[-1].name

    def op(
        self, op_type: str, *inputs: str, outputs: Sequence[str] = (), **attributes: object
    ) -> str:
        names = outputs or [f"{self.name}/v{len(self.nodes)}"]
        return super().op(op_type, *inputs, outputs=names, **attributes)


def graph(
    builder: Builder,
    inputs: dict[str, Sequence[int | None]],
    outputs: dict[str, Sequence[int] | None],
) -> onnx.GraphProto:
    """A body; a scalar is int64 or bool by its name."""
    types = {"turn": TensorProto.INT64, "going": TensorProto.BOOL, "goes": TensorProto.BOOL}
    return builder.model(inputs, outputs, types).graph

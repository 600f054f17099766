"""Quotients by constants become products where nobody can tell."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from edgepack.compiler.layers.quotients import as_products
from edgepack.compiler.layers.tensors import constant_of


def module(divisor: float | list[float], *after: str, dtype: str = "float32") -> tvm.IRModule:
    """x / divisor, and what comes after it, one after the other."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3,), dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = builder.emit(relax.op.divide(x, relax.const(np.asarray(divisor, dtype))))
            for name in after:
                operator = getattr(relax.op, name, None) or getattr(relax.op.nn, name)
                value = builder.emit(operator(value))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


def operators(made: tvm.IRModule) -> list[str]:
    bindings = [b for block in made["main"].body.blocks for b in block.bindings]
    calls = [b.value for b in bindings if isinstance(b.value, relax.Call)]
    return [call.op.name.removeprefix("relax.") for call in calls]


@pytest.mark.parametrize(
    ("divisor", "after", "expected"),
    [
        (2**0.5, ["erf"], "multiply"),
        (3.0, ["negative", "exp"], "multiply"),
        ([1.0, 3.0, 5.0], ["softmax"], "multiply"),
        (3.0, [], "divide"),  # who reads the model's output may take its floor
        (3.0, ["floor"], "divide"),
        (3.0, ["negative", "round"], "divide"),
        (8.0, ["floor"], "multiply"),
        ([8.0, 3.0, 1.0], ["floor"], "divide"),
        (0.0, ["exp"], "divide"),
        (1e39, ["exp"], "divide"),  # infinite
        (2.0**127, ["exp"], "divide"),  # its reciprocal is no normal number
    ],
)
def test_quotients_become_products(
    divisor: float | list[float], after: list[str], expected: str
) -> None:
    with np.errstate(over="ignore"):
        given = module(divisor, *after)
    made = as_products(given)
    assert operators(made) == [expected, *operators(given)[1:]]
    (first, *_), *_ = [block.bindings for block in made["main"].body.blocks]
    if expected == "multiply":
        factor = constant_of(first.value.args[1])
        np.testing.assert_allclose(factor, 1 / np.asarray(divisor), rtol=1e-7)
    else:
        assert made is given


def test_a_quotient_that_is_read_twice_is_looked_at_twice() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            third = builder.emit(relax.op.divide(x, relax.const(3.0, "float32")))
            both = builder.emit(relax.op.add(relax.op.exp(third), relax.op.floor(third)))
            result = builder.emit_output(relax.op.exp(both))
        builder.emit_func_output(result)
    given = builder.get()
    assert as_products(given) is given


def test_whole_numbers_are_left_alone() -> None:
    given = module(8, "negative", dtype="int32")
    assert as_products(given) is given

"""Constants that are computed before TVM would compile kernels for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax

from edgepack.compiler.frontend.folding import FoldByNumpy

FLOATS = np.arange(-3, 9, dtype="float32").reshape(3, 4)
INTEGERS = np.array([2, 0], "int64")


def const(value: np.ndarray) -> relax.Expr:
    return relax.const(value, str(value.dtype))


def folded(make: Callable[[relax.BlockBuilder], relax.Expr]) -> relax.Expr:
    """What becomes of one call, emitted in a function of its own."""
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            result = builder.emit_output(make(builder))
        builder.emit_func_output(result)
    module = builder.get()
    main = FoldByNumpy(module).visit_expr(module["main"])
    return main.body.blocks[0].bindings[-1].value


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (relax.op.permute_dims(const(FLOATS)), FLOATS.T),
        (relax.op.permute_dims(const(FLOATS[None]), [2, 0, 1]), FLOATS.T.reshape(4, 1, 3)),
        (relax.op.concat([const(FLOATS), const(FLOATS)], 1), np.hstack([FLOATS, FLOATS])),
        (relax.op.take(const(FLOATS), const(INTEGERS), 0), FLOATS[[2, 0]]),
        (relax.op.take(const(FLOATS), const(INTEGERS), 1), FLOATS[:, [2, 0]]),
        (relax.op.squeeze(const(FLOATS[:, None]), [1]), FLOATS),
        (relax.op.broadcast_to(const(FLOATS[:1]), (2, 4)), FLOATS[[0, 0]]),
        (relax.op.less(const(FLOATS), const(FLOATS[:, :1])), np.less(FLOATS, FLOATS[:, :1])),
        (relax.op.astype(const(INTEGERS), "float32"), INTEGERS.astype("float32")),
        (relax.op.negative(const(INTEGERS)), -INTEGERS),
    ],
)
def test_calls_of_constants_are_constants(call: relax.Expr, expected: np.ndarray) -> None:
    found = folded(lambda _: call)
    assert isinstance(found, tvm.ir.GenericConst)
    value = found.value.numpy()
    assert value.dtype == expected.dtype
    np.testing.assert_array_equal(value, expected)


def test_a_known_shape_is_a_constant() -> None:
    found = folded(
        lambda builder: relax.op.shape_to_tensor(builder.emit(relax.op.shape_of(const(FLOATS))))
    )
    np.testing.assert_array_equal(found.value.numpy(), [3, 4])


@pytest.mark.parametrize(
    "call",
    [
        # What is outside of the tensor, or of the integers, is TVM's to say.
        relax.op.take(const(FLOATS), const(np.array([-1, 3], "int64")), 0),
        relax.op.astype(const(FLOATS * 1e12), "int32"),
    ],
)
def test_what_numpy_may_see_otherwise_is_left(call: relax.Expr) -> None:
    assert isinstance(folded(lambda _: call), relax.Call)

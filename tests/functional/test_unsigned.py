"""Unsigned integers wrap, on every instruction set: expected is what numpy, so C, makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.targets import compile_and_run, every_target

COUNT = 100


@every_target
@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_sums_differences_and_products_wrap(
    tmp_path: Path, board: str, cpu: str, dtype: str
) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 14]> g ({dtype}[{COUNT}] x, {dtype}[{COUNT}] y) => '
        f"({dtype}[{COUNT}] sum, {dtype}[{COUNT}] less, {dtype}[{COUNT}] product, "
        f"{dtype}[{COUNT}] negative, bool[{COUNT}] below, {dtype}[{COUNT}] chain, {dtype}[1] all) "
        f"<{dtype} zero = {{0}}> {{ sum = Add(x, y)\n less = Sub(x, y)\n product = Mul(x, y)\n"
        "negative = Sub(zero, x)\n below = Less(less, x)\n both = Mul(sum, less)\n"
        "rest = Sub(both, product)\n chain = Add(rest, rest)\n"
        "all = ReduceSum<keepdims = 1>(x) }"
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    most = np.iinfo(dtype).max
    x, y = np.random.default_rng(0).integers(0, most, (2, COUNT), dtype, endpoint=True)
    x[:6] = [0, 1, most, most, most // 2 + 1, 5]
    y[:6] = [most, 2, most, 1, most // 2 + 1, 0]
    _, got = compile_and_run(path, [x, y], board, cpu, tmp_path)
    with np.errstate(over="ignore"):
        total, less, product = x + y, x - y, x * y
        rest = total * less - product
        due = [
            total,
            less,
            product,
            np.zeros_like(x) - x,
            less < x,
            rest + rest,
            x.sum(dtype=dtype),
        ]
    for one, other in zip(got, due, strict=True):
        np.testing.assert_array_equal(one.reshape(other.shape), other)

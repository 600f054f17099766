"""The definitions of operators on integers against onnxruntime's, on equal inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.kernels.integer import (
    IntegerConcatenation,
    IntegerConvolution,
    IntegerMean,
    IntegerOperator,
    IntegerProduct,
    IntegerSum,
    Steps,
    Target,
)

TYPES = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8}
every_type = pytest.mark.parametrize("dtype", TYPES)


def onnxruntime_says(
    op_type: str,
    inputs: Mapping[str, np.ndarray],
    order: str,
    domain: str = "",
    **attributes: object,
) -> np.ndarray:
    """The result of one node, whose inputs are named by `order`: data, then constants."""
    names = order.split()
    node = helper.make_node(op_type, names, ["y"], domain=domain, **attributes)
    data = inputs[names[0]]
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(
                names[0], helper.np_dtype_to_tensor_dtype(data.dtype), data.shape
            )
        ],
        [helper.make_empty_tensor_value_info("y")],
        [
            numpy_helper.from_array(array, name)
            for name, array in inputs.items()
            if name != names[0]
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    # Without VNNI its products of uint8 by int8 saturate, pair by pair, unless it is told not to:
    # onnxruntime_session_options_config_keys.h. Of int8 by int8 there is no such kernel.
    if data.dtype == np.uint8:
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (made,) = session.run(None, {names[0]: data})
    return np.asarray(made)


def integers(random: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    """Any of the type."""
    info = np.iinfo(dtype)
    return random.integers(info.min, info.max, size=shape, endpoint=True).astype(dtype)


def moved(array: np.ndarray) -> np.ndarray:
    """As operators have it: int8."""
    less = 128 if array.dtype == np.uint8 else 0
    return (array.astype("int32") - less).astype("int8")


def steps(scale: np.ndarray, zero: np.ndarray) -> Steps:
    return Steps(scale=float(scale), zero=int(moved(zero)))


def target(zero: np.ndarray) -> Target:
    return Target(zero=int(moved(zero)), low=-128, high=127)


def off_by(operator: IntegerOperator, given: list[np.ndarray], theirs: np.ndarray) -> int:
    """The largest difference, of results that are not all the same."""
    mine, theirs = operator.run([moved(array) for array in given]), moved(theirs)
    assert mine.shape == theirs.shape
    assert len(np.unique(theirs)) > min(30, theirs.size // 2)
    return int(np.abs(mine.astype("int32") - theirs).max())


def parameters(dtype: str, zero: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array(0.0235, "float32"), np.array(zero + np.iinfo(dtype).min, dtype)


@every_type
@pytest.mark.parametrize(
    ("kernel", "groups", "stride"), [(1, 1, 1), (3, 1, 2), (3, 24, 1), (5, 6, 2)]
)
def test_convolutions_are_onnxruntimes_to_the_bit(
    dtype: str, kernel: int, groups: int, stride: int
) -> None:
    random = np.random.default_rng(kernel + groups)
    ins = outs = 24
    x, (sx, zx) = integers(random, dtype, 2, ins, 11, 13), parameters(dtype, 37)
    w = random.integers(-128, 127, size=(outs, ins // groups, kernel, kernel), endpoint=True)
    w = w.astype("int8")
    sw = random.uniform(0.001, 0.004, outs).astype("float32")
    _, zy = parameters(dtype, 101)
    sy = np.array(0.02 * np.sqrt(w[0].size), "float32")
    b = random.integers(-3000, 3000, size=outs).astype("int32")
    zw = np.zeros(outs, "int8")
    given = {"x": x, "sx": sx, "zx": zx, "w": w, "sw": sw, "zw": zw, "sy": sy, "zy": zy, "b": b}
    theirs = onnxruntime_says(
        "QLinearConv",
        given,
        "x sx zx w sw zw sy zy b",
        group=groups,
        strides=[stride] * 2,
        pads=[kernel // 2] * 4,
    )
    zero = int(moved(zx))
    operator = IntegerConvolution(
        weight=w,
        bias=b - zero * w.astype("int32").sum(axis=(1, 2, 3), dtype="int32"),
        factor=(sx * sw / sy).astype("float32"),
        zero=zero,
        stride=(stride, stride),
        before=(kernel // 2, kernel // 2),
        after=(kernel // 2, kernel // 2),
        dilation=(1, 1),
        groups=groups,
        to=target(zy),
    )
    assert off_by(operator, [x], theirs) == 0


@every_type
def test_products_of_matrices_are_onnxruntimes_to_the_bit(dtype: str) -> None:
    random = np.random.default_rng(4)
    a, (sa, za) = integers(random, dtype, 9, 150), parameters(dtype, 50)
    b = random.integers(-127, 127, size=(150, 33), endpoint=True).astype("int8")
    sb, sy = np.array(0.003, "float32"), np.array(0.4, "float32")
    _, zy = parameters(dtype, 90)
    given = {"a": a, "sa": sa, "za": za, "b": b, "sb": sb, "zb": np.zeros((), "int8")}
    theirs = onnxruntime_says(
        "QLinearMatMul", given | {"sy": sy, "zy": zy}, "a sa za b sb zb sy zy"
    )
    zero = int(moved(za))
    operator = IntegerConvolution(
        weight=np.ascontiguousarray(b.T)[:, :, None, None],
        bias=-zero * b.astype("int32").sum(axis=0, dtype="int32"),
        factor=np.full(33, sa * sb / sy, "float32"),
        zero=zero,
        stride=(1, 1),
        before=(0, 0),
        after=(0, 0),
        dilation=(1, 1),
        groups=1,
        to=target(zy),
    )
    assert off_by(operator, [a], theirs) == 0


@every_type
def test_sums_and_means_are_one_step_off_at_most(dtype: str) -> None:
    random = np.random.default_rng(5)
    a, b = (integers(random, dtype, 1, 40, 20, 20) for _ in range(2))
    (sa, za), (_, zb), (_, zy) = (parameters(dtype, zero) for zero in (120, 130, 70))
    sb, sy = np.array(0.034, "float32"), np.array(0.05, "float32")
    given = {"a": a, "sa": sa, "za": za, "b": b, "sb": sb, "zb": zb, "sy": sy, "zy": zy}
    theirs = onnxruntime_says("QLinearAdd", given, "a sa za b sb zb sy zy", "com.microsoft")
    total = IntegerSum.of([steps(sa, za), steps(sb, zb)], steps(sy, zy), target(zy))
    assert total is not None
    assert off_by(total, [a, b], theirs) <= 1

    given = {"a": a, "sa": sa, "za": za, "b": b, "sb": sb, "zb": zb, "sy": sy, "zy": zy}
    theirs = onnxruntime_says("QLinearMul", given, "a sa za b sb zb sy zy", "com.microsoft")
    made = IntegerProduct(
        zeros=(int(moved(za)), int(moved(zb))), factor=float(sa * sb / sy), to=target(zy)
    )
    assert off_by(made, [a, b], theirs) <= 1

    small = np.array(0.002, "float32")
    given = {"a": a, "sa": sa, "za": za, "sy": small, "zy": zy}
    theirs = onnxruntime_says(
        "QLinearGlobalAveragePool", given, "a sa za sy zy", "com.microsoft", channels_last=0
    )
    mean = IntegerMean(
        pixels=400, zero=int(moved(za)), factor=float(np.float32(sa / (400 * small))), to=target(zy)
    )
    assert off_by(mean, [a], theirs) <= 1

    given = {"sy": sy, "zy": zy, "a": a, "sa": sa, "za": za, "b": b, "sb": sb, "zb": zb}
    theirs = onnxruntime_says(
        "QLinearConcat", given, "sy zy a sa za b sb zb", "com.microsoft", axis=1
    )
    joined = IntegerConcatenation(
        zeros=(int(moved(za)), int(moved(zb))),
        factors=(float(sa / sy), float(sb / sy)),
        to=target(zy),
    )
    assert off_by(joined, [a, b], theirs) <= 1

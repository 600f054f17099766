"""Operators on 8-bit integers equal their definition in numpy to the bit, on every target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.frontend import integer_reference
from edgepack.frontend.integer_recognition import NODE
from edgepack.frontend.precision import Precision
from tests.onnx_models import Builder
from tests.quantized_models import Chains, block, by_onnxruntime, photos
from tests.targets import compile_and_run, save_cases

TARGETS = [
    pytest.param("local", "native", id="x86"),
    pytest.param("local", "haswell", id="avx2", marks=pytest.mark.slow),
    pytest.param("local", "nehalem", id="sse4.2", marks=pytest.mark.slow),
    pytest.param("pynq", "cortex-a9", id="armv7-a9"),
    pytest.param("rk3399", "cortex-a72", id="aarch64-a72"),
    pytest.param("rasp5b", "cortex-a76", id="aarch64-a76"),
]
every_target = pytest.mark.parametrize(("board", "cpu"), TARGETS)

# Of the network's input: all of them read it.
CHANNELS, HEIGHT, WIDTH = 40, 9, 13


def cases(net: Builder, dtype: str) -> dict[str, str]:
    """A case per operator and form, of one input."""
    chains = Chains(net, dtype)
    x = chains.steps("x", 0.02)
    conv = chains.conv
    low = chains.info.min
    made = {
        "1x1": conv(x, CHANNELS, 24, [1, 1]),
        "1x1 to many": conv(x, CHANNELS, 83, [1, 1], after="Relu"),
        # Sums times factors that are beyond what can be rounded by adding a large number.
        "steep": conv(x, CHANNELS, 16, [1, 1], steep=True),
        "3x3": conv(x, CHANNELS, 20, [3, 3], pads=[1] * 4, after="Clip"),
        "3x3 strided": conv(x, CHANNELS, 16, [3, 3], pads=[0, 1, 1, 0], strides=[2, 2]),
        "dilated": conv(x, CHANNELS, 17, [3, 2], pads=[2, 1, 2, 1], dilations=[2, 2]),
        "groups": conv(x, CHANNELS, 20, [3, 3], pads=[1] * 4, group=4),
        "depthwise": conv(x, CHANNELS, CHANNELS, [3, 3], pads=[1] * 4, group=CHANNELS),
        "depthwise strided": conv(
            x, CHANNELS, CHANNELS, [3, 3], pads=[1] * 4, group=CHANNELS, strides=[2, 2]
        ),
        "depthwise 5x5": conv(x, CHANNELS, CHANNELS, [5, 5], pads=[2] * 4, group=CHANNELS),
        # Biases that no sum may be added to, of channels that are cut off whatever the input.
        "cut off": conv(x, CHANNELS, 20, [3, 3], pads=[1] * 4, after="Relu", cut_off=True),
        "depthwise, cut off": conv(
            x, CHANNELS, CHANNELS, [3, 3], pads=[1] * 4, group=CHANNELS, cut_off=True
        ),
        # The products of -128 are the ones that sums of two in 16 bits have no room for.
        "all of int8": conv(x, CHANNELS, 16, [1, 1], least=-128),
        "depthwise, all of int8": conv(
            x, CHANNELS, CHANNELS, [3, 3], pads=[1] * 4, group=CHANNELS, least=-128
        ),
    }
    transposed = chains.transposed
    made |= {
        "transposed 2x2": transposed(x, CHANNELS, 24, [2, 2], strides=[2, 2]),
        "transposed 4x4": transposed(
            x, CHANNELS, 37, [4, 4], strides=[2, 2], pads=[1] * 4, after="Relu"
        ),
        "transposed 3x3": transposed(
            x, CHANNELS, 16, [3, 3], strides=[2, 2], pads=[1] * 4, output_padding=[1, 1]
        ),
        "transposed, all of int8": transposed(
            x, CHANNELS, 16, [3, 2], strides=[1, 2], pads=[0, 0, 1, 1], least=-128
        ),
        "transposed, groups": transposed(
            x, CHANNELS, CHANNELS, [4, 4], strides=[2, 2], pads=[1] * 4, group=CHANNELS
        ),
    }
    wide = conv(x, CHANNELS, 32, [3, 3], pads=[1] * 4)
    also = conv(x, CHANNELS, 32, [1, 1], scale=0.013)
    pool = {"kernel_shape": [3, 3], "strides": [2, 2]}
    made |= {
        "add": chains.steps(net.op("Add", wide, also), 0.03),
        "add, clipped": chains.steps(net.op("Relu", net.op("Add", wide, also)), 0.011, low + 30),
        "product": chains.steps(net.op("Mul", wide, also), 0.002),
        "gates": chains.steps(
            net.op("Mul", chains.steps(net.op("GlobalAveragePool", wide), 0.004), also), 0.003
        ),
        "sigmoid": chains.steps(net.op("Sigmoid", wide), 1 / 256, low),
        "hard swish, cut off": chains.steps(
            net.op("Relu", net.op("HardSwish", made["3x3 strided"])), 0.01
        ),
        "swish": chains.steps(net.op("Mul", also, net.op("Sigmoid", also)), 0.02),
        "leaky": chains.steps(net.op("LeakyRelu", also, alpha=0.2), 0.02),
        "mean": chains.steps(net.op("GlobalAveragePool", wide), 0.004),
        "maximum": chains.steps(net.op("MaxPool", wide, pads=[1] * 4, **pool), 0.02),
        "average": chains.steps(net.op("AveragePool", wide, **pool), 0.01),
        "concat": chains.steps(net.op("Concat", wide, also, made["1x1"], axis=1), 0.02),
    }
    made |= {
        f"resize, {number}": chains.steps(
            net.op("Resize", wide, "", net.const([1.0, 1.0, *scales], "float32"), **form), *steps
        )
        for number, (scales, form, steps) in enumerate(
            (
                ((2.0, 2.0), {"mode": "nearest"}, (0.013,)),
                (
                    (3.0, 4.0),
                    {
                        "mode": "nearest",
                        "coordinate_transformation_mode": "asymmetric",
                        "nearest_mode": "floor",
                    },
                    (0.02,),
                ),
            )
        )
    }
    between = {"mode": "linear", "nearest_mode": "floor"}
    for number, (coordinates, sizes, steps) in enumerate(
        (
            ("half_pixel", (18, 26), (0.013,)),
            ("align_corners", (17, 20), (0.02, low)),
            ("asymmetric", (18, 39), (0.03, low + 255)),
            ("pytorch_half_pixel", (5, 1), (0.011,)),
        )
    ):
        target = net.const([1, 32, *sizes], "int64")
        form = {**between, "coordinate_transformation_mode": coordinates}
        made[f"between, {number}"] = chains.steps(
            net.op("Resize", wide, "", "", target, **form), *steps
        )
    vector = chains.steps(net.op("GlobalAveragePool", also), 0.006)
    weight, scale = chains.weight(10, 32)
    bias = chains.bias(10, scale * np.float32(0.006))
    row = net.op("Flatten", vector)
    made["dense"] = chains.steps(net.op("Gemm", row, weight, bias, transB=1), 0.004, low + 100)
    columns, _scale = chains.weight(32, 12, axis=1)
    made["product"] = chains.steps(net.op("MatMul", row, columns), 0.004, low + 140)
    return made


def integer_model(path: Path, dtype: str) -> list[np.ndarray]:
    """Saves the model, and makes an input that saturates here and there."""
    net = Builder(seed=8 if dtype == "int8" else 9)
    save_cases(path, net, {"x": (1, CHANNELS, HEIGHT, WIDTH)}, cases(net, dtype))
    random = np.random.default_rng(5)
    return [random.normal(scale=1.5, size=(1, CHANNELS, HEIGHT, WIDTH)).astype("float32")]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@every_target
def test_integers_are_those_of_the_definition(
    tmp_path: Path, board: str, cpu: str, dtype: str
) -> None:
    path = tmp_path / "model.onnx"
    inputs = integer_model(path, dtype)
    proto = integer_reference.integer_model(path, onnx.load(path))
    assert proto is not None
    assert {node.op_type for node in proto.graph.node} <= {NODE, "Identity"}
    expected = integer_reference.run(proto, inputs)
    whole = Precision(quantized="int8")
    _compiled, got = compile_and_run(path, inputs, board, cpu, tmp_path, precision=whole)
    wrong = []
    for info, mine, theirs in zip(proto.graph.output, got, expected, strict=True):
        steps = np.unique(theirs)
        assert len(steps) > min(theirs.size // 2, 40), f"{info.name}: a case that tells nothing"
        if not np.array_equal(mine, theirs):
            wrong.append(f"{info.name}: {np.count_nonzero(mine != theirs)} of {theirs.size}")
    assert not wrong, "\n".join(wrong)


def random_convolutions(path: Path, seed: int, count: int = 12) -> list[np.ndarray]:
    """Saves a model of convolutions by chance, each of an input of its own, and makes these."""
    net, random = Builder(seed=seed), np.random.default_rng(seed)
    chains = Chains(net, "int8")
    shapes, made = {}, {}

    def pick(*values: int) -> int:
        return int(random.choice(values))

    for number in range(count):
        # Every third is depthwise; few channels, a whole block, and some of the last one.
        depthwise = number % 3 == 0
        ins, outs = pick(1, 3, 8, 16, 21, 48), pick(1, 4, 16, 33)
        kernel = [pick(1, 2, 3, 5), pick(1, 2, 3, 5)]
        if number % 3 == 1:
            kernel = [1, 1]
        attributes: dict[str, object] = {
            "strides": [pick(1, 2, 3), pick(1, 2)],
            "dilations": [pick(1, 2), pick(1, 1, 2)],
            "pads": [int(random.integers(size)) for size in kernel * 2],
            "group": ins if depthwise else 1,
        }
        shapes[f"x{number}"] = (1, ins, pick(9, 10, 12), pick(9, 11, 13, 23))
        x = chains.steps(f"x{number}", 0.02, pick(-128, -3, 0, 90, 127))
        made[f"y{number}"] = chains.conv(
            x,
            ins,
            ins if depthwise else outs,
            kernel,
            scale=float(random.choice([0.003, 0.02, 0.05])),
            zero=pick(-128, -100, 0, 77, 127),
            least=pick(-127, -127, -128),
            steep=number % 5 == 4,
            after=str(random.choice(["", "Relu", "Clip"])),
            **attributes,
        )
    save_cases(path, net, shapes, made)
    return [random.normal(scale=1.5, size=shape).astype("float32") for shape in shapes.values()]


@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3, 4))])
@every_target
def test_convolutions_of_any_shape(tmp_path: Path, board: str, cpu: str, seed: int) -> None:
    path = tmp_path / "model.onnx"
    inputs = random_convolutions(path, seed)
    proto = integer_reference.integer_model(path, onnx.load(path))
    assert proto is not None
    expected = integer_reference.run(proto, inputs)
    assert sum(len(np.unique(one)) > 40 for one in expected) > len(expected) // 4
    whole = Precision(quantized="int8")
    _compiled, got = compile_and_run(path, inputs, board, cpu, tmp_path, precision=whole)
    pairs = zip(proto.graph.output, got, expected, strict=True)
    assert not [info.name for info, mine, theirs in pairs if not np.array_equal(mine, theirs)]


def random_transposed(path: Path, seed: int, count: int = 8) -> list[np.ndarray]:
    """Saves a model of transposed convolutions by chance, each of an input of its own."""
    net, random = Builder(seed=seed), np.random.default_rng(seed)
    chains = Chains(net, "uint8" if seed % 2 else "int8")
    low = chains.info.min
    shapes, made = {}, {}

    def pick(*values: int) -> int:
        return int(random.choice(values))

    for number in range(count):
        rank = 1 if number == 0 else 2
        strides = [pick(1, 2, 3) for _ in range(rank)]
        kernel = [step + pick(0, 1, 2) for step in strides]
        groups = pick(1, 1, 2)
        ins, outs = pick(3, 8, 21, 32) * groups, pick(1, 4, 16, 19) * groups
        pads = [int(random.integers(size)) for size in kernel * 2]
        given = [ins, *(pick(4, 7, 12) for _ in range(rank))]
        shapes[f"x{number}"] = (1, *given)
        x = chains.steps(f"x{number}", 0.02, low + pick(0, 60, 128, 200, 255))
        made[f"y{number}"] = chains.transposed(
            x,
            ins,
            outs,
            kernel,
            scale=float(random.choice([0.003, 0.01, 0.02])),
            zero=low + pick(40, 128, 200),
            least=pick(-127, -127, -128),
            after=str(random.choice(["", "Relu", "Clip"])),
            strides=strides,
            pads=pads,
            output_padding=[int(random.integers(step)) for step in strides],
            group=groups,
        )
    save_cases(path, net, shapes, made)
    return [random.normal(scale=1.5, size=shape).astype("float32") for shape in shapes.values()]


def random_resizes(path: Path, seed: int, count: int = 6) -> list[np.ndarray]:
    """Saves a model of linear resizes by chance, each of an input of its own."""
    net, random = Builder(seed=seed), np.random.default_rng(seed)
    chains = Chains(net, "int8" if seed % 2 else "uint8")
    low = chains.info.min
    shapes, made = {}, {}

    def pick(*values: int) -> int:
        return int(random.choice(values))

    forms = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
    for number in range(count):
        rank, channels = (1 if number == 0 else 2), pick(7, 16, 33)
        size = (1, 1) if number == 1 else tuple(pick(4, 9, 17) for _ in range(rank))
        shapes[f"x{number}"] = (1, channels, *size)
        # Only what a product makes is worth it.
        zero = low + pick(3, 60, 128, 200)
        x = chains.steps(f"x{number}", 0.02, zero)
        x = chains.conv(x, channels, channels, [1] * rank, zero=zero)
        sizes = net.const([1, channels, *(pick(5, 8, 21, 34) for _ in range(rank))], "int64")
        form = {"mode": "linear", "coordinate_transformation_mode": forms[number % len(forms)]}
        resized = net.op("Resize", x, "", "", sizes, **form)
        made[f"y{number}"] = chains.steps(
            resized, float(random.choice([0.006, 0.02, 0.03])), low + pick(0, 100, 255)
        )
    save_cases(path, net, shapes, made)
    return [random.normal(scale=1.5, size=shape).astype("float32") for shape in shapes.values()]


@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3, 4))])
@pytest.mark.parametrize("make", [random_transposed, random_resizes])
@every_target
def test_larger_images_of_any_shape(
    tmp_path: Path,
    board: str,
    cpu: str,
    make: Callable[[Path, int], list[np.ndarray]],
    seed: int,
) -> None:
    path = tmp_path / "model.onnx"
    inputs = make(path, seed)
    proto = integer_reference.integer_model(path, onnx.load(path))
    assert proto is not None
    assert {node.op_type for node in proto.graph.node} <= {NODE, "Identity"}
    expected = integer_reference.run(proto, inputs)
    assert sum(len(np.unique(one)) > 40 for one in expected) > len(expected) // 4
    whole = Precision(quantized="int8")
    _compiled, got = compile_and_run(path, inputs, board, cpu, tmp_path, precision=whole)
    pairs = zip(proto.graph.output, got, expected, strict=True)
    assert not [info.name for info, mine, theirs in pairs if not np.array_equal(mine, theirs)]


def sums_of_integers(path: Path, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Saves a model of MatMulInteger and ConvInteger; inputs of it, and what numpy says of them."""
    net, random = Builder(seed=seed), np.random.default_rng(seed)
    made: dict[str, str] = {}
    inputs: list[np.ndarray] = []
    expected: list[np.ndarray] = []

    def some(shape: tuple[int, ...], dtype: str, *, ends: bool = False) -> np.ndarray:
        info = np.iinfo(dtype)
        if ends:
            return random.choice([info.min, info.max], size=shape).astype(dtype)
        return random.integers(info.min, info.max + 1, size=shape).astype(dtype)

    def add(kind: str, x: np.ndarray, w: np.ndarray, *zeros: np.ndarray, **given: object) -> None:
        names = [f"x{len(inputs)}", net.const(w), *(net.const(zero) for zero in zeros)]
        made[f"y{len(inputs)}"] = net.op(kind, *names, **given)
        inputs.append(x)

    def wide(value: np.ndarray) -> np.ndarray:
        return value.astype("int64")

    products = (
        # rows, depth, columns, types, with zero points by rows and columns, extremes
        ((7,), 45, 10, "uint8", "int8", True, False),
        ((1,), 64, 33, "uint8", "int8", False, False),
        ((2, 5), 96, 48, "uint8", "uint8", True, False),
        ((130,), 200, 17, "int8", "int8", False, False),
        # Sums beyond 2 ** 24, which are done in parts.
        ((6,), 1500, 20, "uint8", "int8", False, True),
        ((2, 3, 4), 700, 16, "uint8", "uint8", True, True),
    )
    for rows, depth, columns, left, right, zeros, ends in products:
        x, w = some((*rows, depth), left, ends=ends), some((depth, columns), right, ends=ends)
        if ends:
            # All products of some sums have the same sign.
            info = np.iinfo(left)
            x[..., :] = np.where(w[:, 0] > w[:, 0].mean(), info.max, info.min)
        left_zero = some((), left)
        right_zero = some((columns,) if zeros else (), right)
        add("MatMulInteger", x, w, left_zero, right_zero)
        expected.append((wide(x) - left_zero) @ (wide(w) - right_zero))
    convolutions: tuple[tuple[tuple[int, ...], int, dict[str, object]], ...] = (
        ((1, 16, 12, 12), 24, {"pads": [1] * 4}),
        ((1, 5, 9, 11), 7, {"pads": [0, 1, 1, 0], "strides": [2, 1]}),
        ((1, 8, 10, 10), 8, {"group": 8, "pads": [1] * 4}),
        ((1, 6, 9, 9), 4, {"group": 2, "dilations": [2, 2]}),
        # Sums that are too long to be done in float32.
        ((1, 160, 5, 5), 4, {}),
    )
    for shape, outs, given in convolutions:
        groups = int(str(given.get("group", 1)))
        x = some(shape, "uint8")
        w = some((outs, shape[1] // groups, 3, 3), "int8", ends=shape[1] == 160)
        zero = some((), "uint8")
        add("ConvInteger", x, w, zero, **given)
        pads = np.array(given.get("pads", [0] * 4)).reshape(2, 2).T
        data = np.pad(wide(x) - zero, [(0, 0), (0, 0), *pads])
        reach = 2 * np.array(given.get("dilations", [1, 1])) + 1
        seen = np.lib.stride_tricks.sliding_window_view(data, tuple(reach), (2, 3))
        down, right_ = np.array(given.get("strides", [1, 1]))
        seen = seen[:, :, ::down, ::right_, :: reach[0] // 2, :: reach[1] // 2]
        seen = seen.reshape(1, groups, -1, *seen.shape[2:])
        wide_w = wide(w).reshape(groups, outs // groups, *w.shape[1:])
        sums = np.einsum("ngchwij,gocij->ngohw", seen, wide_w)
        expected.append(sums.reshape(1, outs, *sums.shape[3:]))
    shapes = {f"x{index}": x.shape for index, x in enumerate(inputs)}
    dtypes = {
        f"x{index}": onnx.helper.np_dtype_to_tensor_dtype(x.dtype) for index, x in enumerate(inputs)
    }
    save_cases(path, net, shapes, made, dtypes)
    return inputs, expected


@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.slow) for s in (2, 3))])
@every_target
def test_sums_of_integers_by_fast_kernels_are_exact(
    tmp_path: Path, board: str, cpu: str, seed: int
) -> None:
    """ConvInteger and MatMulInteger, whose scales are known only when the model runs."""
    path = tmp_path / "model.onnx"
    inputs, expected = sums_of_integers(path, seed)
    compiled, got = compile_and_run(path, inputs, board, cpu, tmp_path)
    rules = Counter(layer.rule for layer in compiled.layers)
    # All but one of ten columns.
    assert rules["int8 sums"] == len(expected) - 1
    assert rules["conv"] == 1
    wrong = [
        f"{index}: {np.count_nonzero(mine != theirs)} of {theirs.size}"
        for index, (mine, theirs) in enumerate(zip(got, expected, strict=True))
        if mine.dtype != np.int32 or not np.array_equal(mine, theirs)
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("board", "cpu"),
    [
        pytest.param("local", "native", id="x86"),
        pytest.param("rk3399", "cortex-a72", id="aarch64-a72"),
        pytest.param("pynq", "cortex-a9", id="armv7-a9", marks=pytest.mark.slow),
    ],
)
def test_operator_form_is_as_fast_and_as_exact(tmp_path: Path, board: str, cpu: str) -> None:
    """What onnxruntime's quantiser writes as QLinearConv and its like."""
    path = by_onnxruntime(tmp_path / "model.onnx", block(), photos())
    inputs = photos(1)
    proto = integer_reference.integer_model(path, onnx.load(path))
    assert proto is not None
    whole = Precision(quantized="int8")
    compiled, (got,) = compile_and_run(path, inputs, board, cpu, tmp_path, precision=whole)
    rules = {layer.layer: layer.rule for layer in compiled.layers}
    kinds = Counter(rules.values())
    assert {*kinds} > {"int8 add", "int8 mean", "int8 pool", "int8 concat"}
    # Six convolutions, and a product of a row.
    assert kinds["int8 conv"] == 7
    (expected,) = integer_reference.run(proto, inputs)
    np.testing.assert_array_equal(got, expected)


def deep(path: Path) -> list[np.ndarray]:
    """Saves a model of convolutions that pay on integers, and of some that Winograd's algorithm
    does with a fifth of the products in float."""
    net = Builder(seed=3)
    chains = Chains(net, "uint8")
    x = chains.steps("x", 0.02)
    around = {"pads": [1] * 4, "after": "Relu"}
    x = chains.conv(x, 64, 96, [1, 1], scale=0.015)
    inner = chains.conv(x, 96, 96, [3, 3], given=0.015, **around)
    inner = chains.conv(inner, 96, 96, [3, 3], **around)
    x = chains.steps(net.op("Add", x, inner), 0.03)
    x = chains.conv(x, 96, 128, [1, 1], given=0.03)
    save_cases(path, net, {"x": (1, 64, 16, 16)}, {"y": x})
    random = np.random.default_rng(5)
    return [random.normal(scale=1.5, size=(1, 64, 16, 16)).astype("float32")]


def noise_db(wanted: np.ndarray, got: np.ndarray) -> float:
    error = ((got - wanted.astype("float64")) ** 2).sum()
    return float(10 * np.log10((wanted.astype("float64") ** 2).sum() / error)) if error else 200.0


@pytest.mark.parametrize(
    ("board", "cpu", "quantized", "some"),
    [
        # Without dot products 3x3 windows are faster in float.
        pytest.param("rk3399", "cortex-a72", "auto", True, id="a72"),
        pytest.param("rk3399", "cortex-a72", "int8", False, id="a72-int8"),
        pytest.param("rasp5b", "cortex-a76", "auto", False, id="a76"),
        pytest.param("local", "native", "float", True, id="x86-float"),
    ],
)
def test_what_is_faster_in_float_is_left_so(
    tmp_path: Path, board: str, cpu: str, quantized: str, some: bool
) -> None:
    path = tmp_path / "model.onnx"
    inputs = deep(path)
    precision = Precision(quantized=quantized)
    compiled, (got,) = compile_and_run(path, inputs, board, cpu, tmp_path, precision=precision)
    rules = [layer.rule for layer in compiled.layers]
    assert bool(compiled.floats) == some
    assert ("int8 conv" in rules) == (quantized != "float")
    explained = [layer for layer in compiled.layers if layer.exact]
    assert bool(explained) == some
    proto = integer_reference.integer_model(path, onnx.load(path), compiled.floats)
    assert proto is not None
    (expected,) = integer_reference.run(proto, inputs)
    if some:
        # A last bit of a float may make another integer, a step off.
        assert noise_db(expected, got) > 45
    else:
        np.testing.assert_array_equal(got, expected)
    # What is not rounded comes nearer to numbers that never are.
    whole = integer_reference.integer_model(path, onnx.load(path))
    assert whole is not None
    real = integer_reference.integer_model(path, onnx.load(path), _names(path))
    assert real is not None
    ((rounded,), (exact,)) = (integer_reference.run(one, inputs) for one in (whole, real))
    assert noise_db(exact, got) >= noise_db(exact, rounded) - 0.1


def _names(path: Path) -> list[str]:
    return [node.name or node.output[0] for node in onnx.load(path).graph.node]

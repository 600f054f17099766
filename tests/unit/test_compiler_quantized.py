"""Quantised models: pairs of QuantizeLinear and DequantizeLinear reach the reader of layers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper
from tvm import relax

from edgepack.boards import get_board
from edgepack.compiler.backend import bind, schedule
from edgepack.compiler.backend.llvm import tvm_target
from edgepack.compiler.layers.fuse import fuse
from edgepack.compiler.layers.quantized_weights import keep_integers
from edgepack.compiler.layers.read import read_layers
from edgepack.compiler.place import lower
from edgepack.flow.reference import run_reference
from edgepack.frontend import importer, integer_recognition, integer_reference
from edgepack.frontend.importer import import_model
from edgepack.frontend.load import load_model
from edgepack.kernels import integer
from edgepack.kernels.layer import Convolution, Dequantize, Layer, Quantize
from edgepack.model import ModelSpec
from tests import onnx_models
from tests.onnx_models import Builder
from tests.quantized_models import Chains


def layers_of(path: Path) -> list[Layer]:
    """The layers that rules are offered."""
    module = keep_integers(import_model(load_model(ModelSpec(path=path))))
    main = relax.transform.FoldConstant()(module)["main"]
    read = read_layers(main)
    return fuse(read.layers, [read.values.of(main.body.body)])


def test_all_layers_of_a_quantised_model_are_of_integers(tmp_path: Path) -> None:
    layers = layers_of(onnx_models.quantized(tmp_path / "m.onnx"))
    assert [type(layer.operator).__name__ for layer in layers] == [
        "ToIntegers",
        "IntegerConvolution",
        "IntegerConvolution",
        "IntegerMean",
        "View",
        "IntegerConvolution",
        "FromIntegers",
    ]


def test_a_convolution_before_a_branch_is_computed_once(tmp_path: Path) -> None:
    b = Builder()

    def steps(value: str, name: str = "") -> str:
        parameters = b.const(0.1, "float32"), b.const(3, "int8")
        integers = b.op("QuantizeLinear", value, *parameters)
        return b.op("DequantizeLinear", integers, *parameters, outputs=[name] if name else ())

    def conv(value: str) -> str:
        weight = b.random.integers(-127, 128, size=(4, 4, 1, 1)).astype("int8")
        kernel = b.op("DequantizeLinear", b.const(weight), b.const(0.01, "float32"))
        return steps(b.op("Conv", value, kernel))

    branch = conv(steps("x"))
    total = steps(b.op("Add", branch, conv(branch)))
    steps(b.op("Add", total, conv(total)), "y")
    layers = layers_of(b.save(tmp_path / "m.onnx", {"x": [1, 4, 6, 6]}, {"y": [1, 4, 6, 6]}))
    assert Counter(type(layer.operator).__name__ for layer in layers) == {
        "ToIntegers": 1,
        "IntegerConvolution": 3,
        "IntegerSum": 2,
        "FromIntegers": 1,
    }


@pytest.mark.parametrize("producer", ["Exp", "Softmax", "MatMul", "CumSum"])
def test_what_two_nodes_read_is_computed_once(producer: str, tmp_path: Path) -> None:
    """Whoever converts it and them: ours and TVM's."""
    b = Builder()
    second = {"MatMul": [b.weight(6, 6)], "CumSum": [b.const(1, "int64")]}.get(producer, [])
    branch = b.op(producer, "x", *second)
    read = [b.op("Neg", branch), b.op("Abs", branch), branch, branch]
    integers = [
        b.op("DynamicQuantizeLinear", one, outputs=[f"q{i}", f"scale{i}", f"zero{i}"])
        for i, one in enumerate(read)
    ]
    ends = [b.op("Cast", one, to=TensorProto.FLOAT) for one in integers]
    b.op("Concat", *ends, axis=0, outputs=["y"])
    path = b.save(tmp_path / "m.onnx", {"x": [3, 6]}, {"y": [12, 6]})
    main = import_model(load_model(ModelSpec(path=path)))["main"]
    computed = [str(item.value) for block in main.body.blocks for item in block.bindings]
    assert len(set(computed)) == len(computed)


def test_pairs_and_integer_weights_are_seen_around_each_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = onnx_models.quantized(tmp_path / "m.onnx")
    # As where operators between them are not known.
    monkeypatch.setattr(importer, "with_integers", lambda proto, _leave: proto)
    layers = layers_of(path)
    kinds = [type(layer.operator).__name__ for layer in layers]
    pair = ["Quantize", "Dequantize"]
    assert kinds == [
        *(*pair, "Convolution", *pair, "Convolution"),
        *(*pair, "GlobalPooling", *pair, "View", "Convolution", *pair),
    ]
    images = [layer.operator for layer in layers if isinstance(layer.operator, Quantize)]
    assert [operator.zero_point for operator in images] == [128, 0, 120, 120, 128]
    np.testing.assert_allclose([o.scale for o in images], [0.02, 0.01, 0.01, 0.005, 0.002], 1e-6)
    again = [layer.operator for layer in layers if isinstance(layer.operator, Dequantize)]
    assert [(o.scale, o.zero_point, o.dtype) for o in again] == [
        (o.scale, o.zero_point, "uint8") for o in images
    ]
    # The file's own weights: those of the three layers are its only ones of many int8.
    tensors = map(numpy_helper.to_array, onnx.load(path).graph.initializer)
    stored = [tensor for tensor in tensors if tensor.dtype == np.int8 and tensor.ndim > 1]
    found = [layer.operator for layer in layers if isinstance(layer.operator, Convolution)]
    for operator, values in zip(found, stored, strict=True):
        assert operator.quantized is not None
        assert operator.quantized.values.dtype == np.int8
        assert operator.quantized.values.shape == operator.weight.shape
        np.testing.assert_array_equal(operator.quantized.values.reshape(values.shape), values)
        product = operator.quantized.values.astype("float32") * operator.quantized.scale
        np.testing.assert_array_equal(operator.weight, product)


@pytest.mark.parametrize("board", ["rasp3b", "local"])
def test_a_plan_without_rules_for_them_is_that_of_folded_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, board: str
) -> None:
    model = load_model(ModelSpec(path=onnx_models.quantized(tmp_path / "m.onnx")))
    target = tvm_target(get_board(board))
    monkeypatch.setattr(importer, "with_integers", lambda proto, _leave: proto)

    def made() -> tuple[str, bytes, dict[str, str]]:
        module, fast = lower.lower(import_model(model), target, model)
        lowered = bind.Lowered(
            module=schedule.schedule(module, target), library=fast.kernels, reports=fast.reports
        )
        laid_out, kernels, reports = bind.extract_plan(lowered, model)
        text = laid_out.to_json(reports)
        return (
            text,
            laid_out.params,
            {name: str(kernel.function) for name, kernel in kernels.items()},
        )

    kept = made()
    # FoldConstant then makes float32 of all weights, by TVM's own kernels.
    monkeypatch.setattr(lower, "keep_integers", lambda module, **_: module)
    assert made() == kept


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_integers_stand_for_the_numbers_that_onnx_defines(
    tmp_path: Path, dtype: str, axis: int | None
) -> None:
    b = Builder(5)
    limits = np.iinfo(dtype)
    values = b.random.integers(limits.min, limits.max, size=(6, 4, 1, 1), endpoint=True)
    per_tensor = axis is None
    shape = () if per_tensor else (values.shape[axis],)
    scale = b.random.uniform(0.001, 0.1, shape).astype("float32")
    zero = b.random.integers(0, 100, shape).astype(dtype)
    axes = {} if per_tensor else {"axis": axis}
    weight = b.op(
        "DequantizeLinear", b.const(values.astype(dtype)), b.const(scale), b.const(zero), **axes
    )
    b.op("Conv", "x", weight, outputs=["y"])
    path = b.save(tmp_path / "m.onnx", {"x": [1, 4, 5, 5]}, {"y": [1, 6, 5, 5]})
    (layer,) = layers_of(path)
    assert isinstance(layer.operator, Convolution)
    assert layer.operator.quantized is not None
    b.nodes = b.nodes[:1]
    (expected,) = run_reference(b.model({}, {weight: values.shape}), {}, [])
    np.testing.assert_array_equal(layer.operator.weight, expected)


@pytest.mark.parametrize("shared", [False, True])
def test_a_weight_that_something_else_reads_is_left_to_be_folded(shared: bool) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([1, 3, 4, 4], "float32"))
    values = relax.const(np.arange(-6, 6, dtype="int8").reshape(4, 3, 1, 1))
    scale, zero = relax.const(0.5, "float32"), relax.const(0, "int8")
    with builder.function("main", [x]):
        with builder.dataflow():
            weight = builder.emit(relax.op.dequantize(values, scale, zero, axis=0))
            made = builder.emit(relax.op.nn.conv2d(x, weight))
            also = builder.emit(relax.op.nn.relu(weight)) if shared else made
            results = builder.emit_output(relax.Tuple([made, also]))
        builder.emit_func_output(results)
    module = builder.get()
    assert ("edgepack.Quantized" in str(keep_integers(module))) == (not shared)


@pytest.mark.parametrize("board", ["rasp3b", "local"])
def test_rows_times_integer_weights_are_a_product(tmp_path: Path, board: str) -> None:
    """A transformer's layer: no image, so a rule for plain tensors takes it, by its type."""
    b = Builder(4)
    integers = b.random.integers(-127, 128, size=(24, 32)).astype("int8")
    weight = b.op("DequantizeLinear", b.const(integers), b.const(0.01, "float32"))
    b.op("MatMul", "x", weight, outputs=["y"])
    path = b.save(tmp_path / "m.onnx", {"x": [1, 6, 24]}, {"y": [1, 6, 32]})
    model = load_model(ModelSpec(path=path))
    _module, fast = lower.lower(import_model(model), tvm_target(get_board(board)), model)
    assert [report.rule for report in fast.reports] == ["product"]


@pytest.mark.parametrize(
    ("operator", "rounds"),
    [
        ("MaxPool", False),  # done on integers
        ("Transpose", False),  # done on numbers, which stay what they are
        ("InstanceNormalization", True),
        ("ConvTranspose", True),
    ],
)
def test_integers_made_of_floats_have_a_tolerance(operator: str, rounds: bool) -> None:
    """A last bit of what is computed in float is a whole step of an integer now and then."""
    b = Builder(3)

    def steps(value: str, scale: float) -> str:
        parameters = b.const(scale, "float32"), b.const(0, "int8")
        return b.op("DequantizeLinear", b.op("QuantizeLinear", value, *parameters), *parameters)

    def convolution(x: str) -> str:
        kernel = b.const(b.random.integers(-127, 128, (4, 4, 3, 3)).astype("int8"))
        weight = b.op("DequantizeLinear", kernel, b.const(0.01, "float32"), b.const(0, "int8"))
        return steps(b.op("Conv", x, weight), 0.1)

    x = convolution(steps("x", 0.02))
    made = {
        "MaxPool": lambda: b.op("MaxPool", x, kernel_shape=[2, 2]),
        "Transpose": lambda: b.op("Transpose", x, perm=[0, 1, 3, 2]),
        "InstanceNormalization": lambda: b.op("InstanceNormalization", x, b.weight(4), b.weight(4)),
        "ConvTranspose": lambda: b.op("ConvTranspose", x, b.weight(4, 4, 2, 2), strides=[2, 2]),
    }[operator]()
    b.op("Identity", convolution(steps(made, 0.05)), outputs=["y"])
    proto = b.model({"x": [1, 4, 14, 14]}, {"y": None})
    whole = integer_reference.integer_model(Path("m.onnx"), proto)
    assert whole is not None
    assert integer_reference.rounds_between(whole) == rounds


def test_sums_of_channels_that_are_cut_off_do_not_overflow() -> None:
    """onnxruntime's quantiser writes the largest biases there are for channels of tiny weights."""
    random = np.random.default_rng(3)
    end = 2**31 - 1
    weight = random.integers(-127, 128, (4, 300))
    total = np.array([-end, end, -end // 2, 17.0])
    factor = np.full(4, 1e-6, "float32")
    to = integer.Target(zero=-100, low=-128, high=127)
    bounded = integer_recognition._bounded(total, weight, factor, to)
    assert bounded is not None
    assert list(bounded[2:]) == list(total[2:])
    x = random.choice([-128, 127], (300, 200))
    x[:, 0], x[:, 1] = (np.where(weight[row] < 0, 127, -128) for row in (0, 1))
    x[:, 2], x[:, 3] = (np.where(weight[row] < 0, -128, 127) for row in (0, 1))
    sums = weight @ x + bounded.astype("int64")[:, None]
    assert np.abs(sums).max() <= end
    exact = np.clip(np.rint((weight @ x + total[:, None]) * factor[:, None]), -28, 227)
    got = to.requantised(sums.astype("int32"), factor[:, None])
    np.testing.assert_array_equal(got, (exact - 100).astype("int8"))
    # Where the result depends on the sum, there is no other bias.
    assert integer_recognition._bounded(total, weight, np.full(4, 1e-8, "float32"), to) is None


@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize(
    "coordinates",
    ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"],
)
def test_a_resize_of_integers_takes_onnxruntimes_pixels(
    tmp_path: Path, coordinates: str, nearest: str
) -> None:
    form = {
        "mode": "nearest",
        "coordinate_transformation_mode": coordinates,
        "nearest_mode": nearest,
    }
    # The last one's pixels depend on the precision that coordinates are computed in.
    ratios, scales_of = ((2.0, 3.0), (4.0, 0.5), (1.0, 5.0), (1.7, 0.4)), (0.02, 0.0273)
    net = Builder(seed=3)
    chains = Chains(net, "uint8")
    image = chains.conv(chains.steps("x", 0.02), 5, 4, [1, 1], scale=0.02, zero=120)
    outputs = {"image": net.op("Identity", image, outputs=["image"])}
    for index, pair in enumerate(ratios):
        scales = net.const([1.0, 1.0, *pair], "float32")
        resized = net.op("Resize", image, "", scales, **form)
        # In the same steps, and in others.
        chained = chains.steps(resized, scales_of[index % 2], 120)
        outputs[f"y{index}"] = net.op("Identity", chained, outputs=[f"y{index}"])
    proto = net.model({"x": (1, 5, 6, 8)}, dict.fromkeys(outputs), opset=19)
    for output in proto.graph.output:
        output.ClearField("type")
    proto = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    path = tmp_path / "net.onnx"
    onnx.save(proto, path)
    whole = integer_reference.integer_model(path, proto)
    assert whole is not None
    assert [node.op_type for node in whole.graph.node].count("Resize") == 1
    x = np.random.default_rng(1).normal(size=(1, 5, 6, 8)).astype("float32")
    pixels, *made = integer_reference.run(whole, [x])
    assert len(np.unique(pixels)) > 60
    for index, (pair, got) in enumerate(zip(ratios[:3], made[:3], strict=True)):
        alone = Builder()
        alone.op("Resize", "x", "", alone.const([1, 1, *pair], "float32"), outputs=["y"], **form)
        model = alone.model({"x": pixels.shape}, {"y": got.shape}, opset=19)
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        (theirs,) = session.run(None, {"x": pixels})
        scale = np.float32(scales_of[index % 2])
        steps = np.clip(np.rint(theirs / scale), -120, 135)
        np.testing.assert_array_equal(np.rint(got / scale), steps)


def steps_off(path: Path, scale: float, shape: tuple[int, ...]) -> list[float]:
    """How far the definition is from what onnxruntime computes operator by operator, in steps of
    the results, which are not all the same."""
    proto = onnx.load(path)
    whole = integer_reference.integer_model(path, proto)
    assert whole is not None
    kinds = {node.op_type for node in whole.graph.node}
    assert kinds <= {integer_recognition.NODE, "Identity"}
    x = np.random.default_rng(1).normal(size=shape).astype("float32")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    theirs = onnxruntime.InferenceSession(path, options).run(None, {"x": x})
    mine = integer_reference.run(whole, [x])
    assert min(len(np.unique(one)) for one in mine) > 60
    pairs = zip(mine, theirs, strict=True)
    return [float(np.abs(one - other).max() / np.float32(scale)) for one, other in pairs]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_transposed_convolution_of_integers_is_a_step_off_at_most(
    tmp_path: Path, dtype: str
) -> None:
    net, path = Builder(seed=7), tmp_path / "net.onnx"
    chains = Chains(net, dtype)
    x = chains.steps("x", 0.02)
    outputs: dict[str, str] = {}
    for index, (kernel, given) in enumerate(
        (
            ([2, 2], {"strides": [2, 2]}),
            ([4, 4], {"strides": [2, 2], "pads": [1] * 4, "after": "Relu"}),
            ([3, 3], {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}),
            ([3, 3], {"strides": [3, 1], "pads": [0, 2, 1, 0], "group": 2}),
        )
    ):
        made = chains.transposed(x, 6, 8, kernel, **given)  # type: ignore[arg-type]
        outputs[f"y{index}"] = net.op("Identity", made, outputs=[f"y{index}"])
    proto = net.model({"x": (1, 6, 7, 9)}, dict.fromkeys(outputs), opset=17)
    for output in proto.graph.output:
        output.ClearField("type")
    onnx.save(onnx.shape_inference.infer_shapes(proto, strict_mode=True), path)
    assert max(steps_off(path, 0.02, (1, 6, 7, 9))) < 1.01


@pytest.mark.parametrize("scale", [0.02, 0.009], ids=["same steps", "smaller steps"])
@pytest.mark.parametrize(
    "coordinates", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
)
def test_a_linear_resize_of_integers_is_a_step_off_at_most(
    tmp_path: Path, coordinates: str, scale: float
) -> None:
    form = {
        "mode": "linear",
        "coordinate_transformation_mode": coordinates,
        "nearest_mode": "floor",
    }
    net, path = Builder(seed=3), tmp_path / "net.onnx"
    chains = Chains(net, "uint8")
    image = chains.conv(chains.steps("x", 0.02), 5, 4, [1, 1], scale=0.02, zero=120)
    outputs: dict[str, str] = {}
    given = [
        {"scales": (2.0, 2.0)},
        {"scales": (3.0, 0.5)},
        {"sizes": (17, 23)},
        {"sizes": (40, 9)},
    ]
    for index, item in enumerate(given):
        if "scales" in item:
            size = net.const([1.0, 1.0, *item["scales"]], "float32"), ""
        else:
            size = "", net.const([1, 4, *item["sizes"]], "int64")
        made = chains.steps(net.op("Resize", image, "", *size, **form), scale, 120)
        outputs[f"y{index}"] = net.op("Identity", made, outputs=[f"y{index}"])
    proto = net.model({"x": (1, 5, 14, 18)}, dict.fromkeys(outputs), opset=17)
    for output in proto.graph.output:
        output.ClearField("type")
    onnx.save(onnx.shape_inference.infer_shapes(proto, strict_mode=True), path)
    assert max(steps_off(path, scale, (1, 5, 14, 18))) < 1.01

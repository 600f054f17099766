"""`edgepack quantize`: a small network with channels of very different sizes, on integers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from edgepack.cli import main
from edgepack.frontend import integer_reference
from edgepack.frontend.integer_recognition import NODE
from edgepack.quantization import mixed
from edgepack.quantization.biases import correct_biases
from edgepack.quantization.equalise import equalise_channels
from edgepack.quantization.errors import (
    AlreadyQuantizedError,
    CalibrationError,
    NothingToQuantizeError,
)
from edgepack.quantization.network import Array, FloatNetwork, noise_share, outputs
from edgepack.quantization.qdq_model import make_qdq_model, tensors_of, whole_nodes
from edgepack.quantization.quantize import CALIBRATION, quantize, snr
from edgepack.quantization.ranges import ByteSteps, TensorRange, sample_values, steps_for
from edgepack.quantization.rounding import moments, round_weights, scales_for
from tests.onnx_models import Builder

SIZE = 20


def network(*, seed: int = 1, blocks: int = 1) -> onnx.ModelProto:
    """Inverted residual blocks behind two convolutions, and a dense layer; the channels in a block
    differ by a factor of 30."""
    b = Builder(seed)
    ends = b.const(0.0, "float32"), b.const(6.0, "float32")

    def conv(data: str, ins: int, outs: int, kernel: int, sizes: Array, **given: object) -> str:
        weight = b.random.normal(size=(outs, ins // int(given.get("group", 1)), kernel, kernel))  # type: ignore[call-overload]
        weight *= sizes[:, None, None, None] / np.sqrt(weight[0].size)
        bias = b.const(b.random.normal(size=outs) * 0.1 * sizes, "float32")
        pads = [kernel // 2] * 4
        return b.op("Conv", data, b.const(weight, "float32"), bias, pads=pads, **given)

    def sizes(count: int) -> Array:
        return np.asarray(b.random.uniform(0.1, 3.0, size=count))

    x = b.op("Clip", conv("x", 3, 16, 3, sizes(16), strides=[2, 2]), *ends)
    last = conv(x, 16, 16, 1, np.ones(16))
    for _ in range(blocks):
        wide = b.op("Clip", conv(last, 16, 48, 1, sizes(48)), *ends)
        deep = b.op("Clip", conv(wide, 48, 48, 3, sizes(48), group=48), *ends)
        last = b.op("Add", last, conv(deep, 48, 16, 1, np.ones(16)))
    row = b.op("Flatten", b.op("GlobalAveragePool", b.op("Relu", last)))
    b.op("Gemm", row, b.weight(7, 16), b.weight(7), transB=1, outputs=["y"])
    model = b.model({"x": (1, 3, SIZE, SIZE)}, {"y": (1, 7)})
    return onnx.shape_inference.infer_shapes(model)


def photos(count: int, seed: int = 0) -> list[Array]:
    """Smooth, so that neighbours go together as in photos."""
    random = np.random.default_rng(seed)
    rough = random.normal(size=(count, 3, 6, 6)).astype("float32")
    return [
        np.stack([cv2.resize(channel, (SIZE, SIZE)) for channel in one])[None] * 2 for one in rough
    ]


@pytest.fixture(scope="module")
def net() -> FloatNetwork:
    return FloatNetwork(Path("net.onnx"), network())


def test_steps_round_as_onnxruntime_does() -> None:
    steps = ByteSteps.between(-1.3, 4.1)
    b = Builder()
    given = b.const(steps.scale, "float32"), b.const(steps.zero, "uint8")
    b.op("DequantizeLinear", b.op("QuantizeLinear", "x", *given), *given, outputs=["y"])
    session = onnxruntime.InferenceSession(
        b.model({"x": (999,)}, {"y": (999,)}).SerializeToString(),
        providers=["CPUExecutionProvider"],
    )
    x = np.linspace(-3, 6, 999, dtype="float32")
    np.testing.assert_array_equal(steps.rounded(x), session.run(None, {"x": x})[0])


def test_ranges_are_no_worse_than_from_end_to_end() -> None:
    values = np.append(np.linspace(-1, 1, 10**6), 2).astype("float32")
    whole = ByteSteps.between(-1, 2)

    def error(steps: ByteSteps) -> float:
        return float(((steps.rounded(values) - values) ** 2).mean())

    assert error(steps_for(values)) < 0.9 * error(whole)


def test_equal_channels_are_the_same_network(net: FloatNetwork) -> None:
    given = photos(12)
    made = equalise_channels(net, given)
    (exact,), (got,) = outputs(net.proto, given), outputs(made.proto, given)
    np.testing.assert_allclose(got, exact, atol=1e-4 * np.abs(exact).max())
    # And channels are of more equal size where a depthwise convolution reads them.
    (wide,) = (product.node.input[0] for product in net.products.values() if product.is_depthwise)
    spreads = []
    for one in (net, made):
        values = sample_values(one, given, [wide])
        largest = values[wide].reshape(12, 48, -1).max(axis=(0, 2))
        spreads.append(np.median(largest) / largest.max())
    assert spreads[1] > 1.1 * spreads[0]


def test_channels_are_made_equal_only_where_that_helps(
    net: FloatNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Clip cuts off what other photos have more of a channel that was made larger."""
    path, proto = Path("net.onnx"), network()
    given, judge = photos(16), [photo * 3 for photo in photos(16, seed=9)]
    far = [photo * (1 if index % 2 == 0 else 3) for index, photo in enumerate(given)]
    made = equalise_channels(net, given)
    (exact,), (cut,) = outputs(net.proto, judge), outputs(made.proto, judge)
    lost = snr([exact], [cut])
    (same,) = outputs(equalise_channels(net, given, room=np.inf).proto, judge)
    assert snr([exact], [same]) > max(lost + 10, 60)
    found = quantize(path, proto, far, judge).agreement.snr_db

    def tight(network: FloatNetwork, _photos: object, **_given: float) -> FloatNetwork:
        return equalise_channels(network, far[::2])

    monkeypatch.setattr("edgepack.quantization.quantize._equalised", tight)
    assert found > quantize(path, proto, far, judge).agreement.snr_db


def test_models_of_an_old_opset_are_quantised() -> None:
    b = Builder(3)
    x = b.op("Relu", b.conv("x", 3, 16))
    b.op("GlobalAveragePool", b.conv(x, 16, 8, 1), outputs=["y"])
    proto = b.model({"x": (1, 3, SIZE, SIZE)}, {"y": (1, 8, 1, 1)}, opset=9)
    # Before version 4 constants are inputs, too.
    proto.ir_version = 3
    proto.graph.input.extend(
        onnx.helper.make_tensor_value_info(item.name, item.data_type, item.dims)
        for item in proto.graph.initializer
    )
    found = quantize(Path("old.onnx"), proto, photos(8), photos(8, seed=9), snr_db=99, budget=0.5)
    assert found.agreement.snr_db > 20
    onnx.checker.check_model(found.model, full_check=True)


def test_weights_that_make_up_for_each_other_lose_less(net: FloatNetwork) -> None:
    given = photos(12)
    sums = moments(net, given, net.products)
    for name, product in net.products.items():
        made = round_weights(product, sums[name])
        scale = scales_for(product.weight)[:, None, None]
        nearest = np.clip(np.rint(product.weight / scale), -127, 127) * scale
        assert np.abs(made.weight).max() <= 127

        def lost(weight: Array, name: str = name, like: Array = product.weight) -> float:
            off = (weight - like).reshape(len(sums[name]), -1, sums[name].shape[1])
            return float(np.einsum("goi,gij,goj->", off, sums[name], off))

        assert lost(made.numbers) <= lost(nearest) * 1.001, name
    assert (made.weight != nearest / scale).any()


def test_biases_that_help_on_no_other_photos_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def worse(network: FloatNetwork, *_given: object) -> dict[str, Array]:
        return {name: product.bias + 0.3 for name, product in network.products.items()}

    path, proto = Path("net.onnx"), network()
    given, judge = photos(16), photos(16, seed=9)
    wanted = quantize(path, proto, given, judge).agreement.snr_db
    monkeypatch.setattr("edgepack.quantization.quantize.correct_biases", worse)
    found = quantize(path, proto, given, judge).agreement.snr_db
    assert found > 20
    assert found > wanted - 3


def test_all_of_it_is_done_on_integers() -> None:
    path, proto = Path("net.onnx"), network()
    calibration, judge = photos(16), photos(16, seed=9)
    found = quantize(path, proto, calibration, judge)
    onnx.checker.check_model(found.model, full_check=True)
    assert not found.untouched
    whole = integer_reference.integer_model(path, found.model)
    assert whole is not None
    kinds = [node.op_type for node in whole.graph.node]
    assert kinds.count(NODE) == len(kinds)
    # What a device computes, beside float32.
    got = np.stack([integer_reference.run(whole, [photo])[0].ravel() for photo in judge])
    assert snr(outputs(proto, judge), [got]) == pytest.approx(found.agreement.snr_db, abs=1.5)
    assert found.agreement.snr_db > 20
    assert {item.key for item in found.model.metadata_props} >= {CALIBRATION}
    others = quantize(path, proto, photos(16, seed=4), judge)
    assert others.calibration != found.calibration


def test_what_one_layer_is_off_is_corrected_once() -> None:
    net, given = FloatNetwork(Path("deep.onnx"), network(blocks=4)), photos(24)
    steps = {
        name: steps_for(found) for name, found in sample_values(net, given, tensors_of(net)).items()
    }
    sums = moments(net, given, net.products)
    weights = {name: round_weights(product, sums[name]) for name, product in net.products.items()}
    # All that comes behind the first layers is off by this one, too.
    off = list(net.products)[1]
    weights[off] = replace(weights[off], scale=weights[off].scale * np.float32(1.5))
    exact = outputs(net.proto, given)[0].mean(axis=0)

    def error(biases: dict[str, Array]) -> float:
        got = outputs(make_qdq_model(net, steps, weights, biases), given)[0].mean(axis=0)
        return float(np.abs(got - exact).max())

    before = error({name: product.bias for name, product in net.products.items()})
    assert error(correct_biases(net, steps, weights, given, shrink=False)) < before / 5


def test_noise_of_several_outputs_counts_by_their_sizes() -> None:
    large, small = np.full((2, 3), 300.0), np.full((2, 1), 0.5)
    off = [large, small * 1.1]
    assert noise_share([large, small], off) == pytest.approx(0.01 / 2)
    assert snr([large, small], off) == pytest.approx(-10 * np.log10(0.005))
    assert snr([large], [large]) == 300


def test_float_goes_where_it_helps_most_for_its_cost() -> None:
    path, proto = Path("net.onnx"), network()
    calibration, judge = photos(16), photos(16, seed=9)
    before = quantize(path, proto, calibration, judge)
    wanted = before.agreement.snr_db + 3
    found = quantize(path, proto, calibration, judge, snr_db=wanted, budget=1.0)
    assert found.agreement.snr_db >= wanted
    assert found.all_int8 == before.agreement
    assert found.in_float
    assert found.untouched
    # What is too dear makes way for what fits.
    all_of_them = quantize(path, proto, calibration, judge, snr_db=300, budget=9.0).in_float
    first = all_of_them[0]
    budget = first.cost * 0.99
    rest = quantize(path, proto, calibration, judge, snr_db=300, budget=budget).in_float
    assert rest
    assert first.tensor not in {one.tensor for one in rest}
    assert sum(one.cost for one in rest) <= budget
    # Nothing is spent beyond the budget.
    none = quantize(path, proto, calibration, judge, snr_db=99, budget=0.0)
    assert not none.in_float
    assert none.agreement == before.agreement


def test_a_tensor_without_integers_costs_more(net: FloatNetwork) -> None:
    steps = dict.fromkeys(tensors_of(net), ByteSteps.between(-1, 1))
    whole = mixed.cost_of(net, steps)
    for name in steps:
        rest = {key: value for key, value in steps.items() if key != name}
        assert mixed.cost_of(net, rest) > whole
        assert len(whole_nodes(net, rest)) < len(whole_nodes(net, steps))


def test_what_cannot_be_quantised_is_said() -> None:
    path, proto = Path("net.onnx"), network()
    given = photos(4)
    made = quantize(path, proto, given, given).model
    with pytest.raises(AlreadyQuantizedError, match=r"net\.onnx: .*quantised already"):
        quantize(path, made, given, given)
    b = Builder()
    b.op("Relu", "x", outputs=["y"])
    with pytest.raises(NothingToQuantizeError, match="no convolution"):
        quantize(path, b.model({"x": (1, 3)}, {"y": (1, 3)}), given, given)
    with pytest.raises(CalibrationError, match="no photos"):
        quantize(path, proto, [], given)


# ---------------------------------------------------------------- the command


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(network(), tmp_path / "net.onnx")
    (tmp_path / "edgepack.toml").write_text(
        '[project]\nmodel = "net.onnx"\n[preprocess]\nscale = 0.02\n'
        f'resize = {{ mode = "exact", height = {SIZE}, width = {SIZE} }}\n'
        '[quantize]\nimages = "photos"\n'
    )
    (tmp_path / "photos" / "more").mkdir(parents=True)
    random = np.random.default_rng(2)
    for index in range(8):
        pixels = cv2.resize(random.integers(0, 255, (5, 5, 3)).astype("uint8"), (30, 30))
        folder = "photos/more" if index % 2 else "photos"
        cv2.imwrite(str(tmp_path / folder / f"{index}.png"), pixels)
    return tmp_path


def test_the_command_writes_a_model_and_says_how_good_it_is(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", "--json", "--html", "q.html", "--cache-dir", "kept"]) == 0
    said = json.loads(capsys.readouterr().out)
    made = onnx.load(project / "net.int8.onnx")
    assert said["file"] == "net.int8.onnx"
    assert said["bytes"] == (project / "net.int8.onnx").stat().st_size
    assert (said["calibrated"], said["judged"]) == (6, 2)
    assert {item.key: item.value for item in made.metadata_props} == {
        "edgepack.calibration": said["calibration"],
        "edgepack.agreement": str(said["agreement"]["top1"]),
    }
    assert "ranges" not in said
    shown = (project / "q.html").read_text()
    assert shown.count("<circle") == len(said["layers"]) > 2
    # Each tensor that was made integers has a histogram, with the ends of its integers.
    quantised = {node.input[0] for node in made.graph.node if node.op_type == "QuantizeLinear"}
    assert shown.count("<figure>") == len(quantised) > 2
    assert "values of image" in shown or f"values of {made.graph.input[0].name}" in shown
    weights = [numpy_helper.to_array(item) for item in made.graph.initializer]
    assert sum(value.size for value in weights if value.dtype == np.int8) > 2000
    assert main(["quantize", "--cache-dir", "kept"]) == 0
    text = capsys.readouterr().out
    assert "calibrated on 6 photos" in text
    assert "few photos" in text
    assert said["warning"] == text.splitlines()[-1]


def test_one_photo_is_too_few(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "one").mkdir()
    (project / "photos" / "0.png").replace(project / "one" / "0.png")
    words = ["--images", "one", "--judge", "photos", "--html", "q.html"]
    assert main(["quantize", *words, "--cache-dir", "kept"]) == 0
    (line,) = (one for one in capsys.readouterr().out.splitlines() if "too few" in one)
    assert line.startswith("one photo is too few to calibrate on: ")
    assert line.split(";")[0] in (project / "q.html").read_text()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--images", "nowhere"], "--images: no such folder: nowhere"),
        (["--judge", "photos"], " photos are left to calibrate on"),
        (["--budget", "120"], "--budget: 120.0 is not between 0 and 100"),
    ],
)
def test_a_wrong_word_is_said(
    project: Path, capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    assert main(["quantize", *words, "--cache-dir", "kept"]) == 2
    assert problem in capsys.readouterr().err
    assert not (project / "net.int8.onnx").exists()


def test_a_range_says_what_is_cut_off() -> None:
    # 0 to 999, of which integers stand for 0 to 510 in steps of 2.
    numbers = np.arange(1000, dtype=np.float32)
    found = TensorRange.of("t", numbers, ByteSteps(scale=2.0, zero=0))
    assert (found.least, found.most, found.low, found.high) == (0, 999, 0, 510)
    assert sum(found.counts) == 1000
    assert found.cut == pytest.approx(488 / 1000)  # 511 is rounded to 510, 512 is cut off
    below = TensorRange.of("t", -numbers, ByteSteps.between(-999, 0))
    assert (below.cut, below.low) == (0, pytest.approx(-999))

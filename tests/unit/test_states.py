"""Which outputs inputs keep, and what is wrong with those that cannot."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.base.errors import UsageError
from edgepack.cli.options import parse_states
from edgepack.model import ModelSpec, TensorInfo, read_model
from edgepack.model.errors import StateError
from edgepack.model.states import alike_states, declare, propose_states
from tests.onnx_models import Builder

_INPUTS: dict[str, list[int | str | None]] = {
    "x": [4],
    "past_key_values.0.key": [1, 2, 3],
    "past_key_values.0.value": [1, 2, 3],
    "past_1": [4],
    "free": ["n"],
}
_OUTPUTS: dict[str, list[int | str | None] | None] = {
    "y": [4],
    "present.0.key": [1, 2, 3],
    "present.0.value": [1, 3, 3],
    "present_1": [4],
    "wide": [2, 3, 3],
    "free_next": ["n"],
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    b = Builder()
    b.op("Add", "x", "past_1", outputs=["y"])
    b.op("Relu", "past_key_values.0.key", outputs=["present.0.key"])
    row = b.const([[[1, 2, 3]]], "float32")
    b.op("Concat", "past_key_values.0.value", row, axis=1, outputs=["present.0.value"])
    b.op("Concat", "present.0.value", "present.0.value", axis=0, outputs=["wide"])
    b.op("Relu", "x", outputs=["present_1"])
    b.op("Relu", "free", outputs=["free_next"])
    return b.save(tmp_path / "model.onnx", _INPUTS, _OUTPUTS)


def test_states_by_the_names_of_exporters(path: Path) -> None:
    model = read_model(ModelSpec(path=path))
    # The other cache grows: what is kept of it is for the user to say.
    assert model.states == {"past_key_values.0.key": "present.0.key", "past_1": "present_1"}
    assert [info.name for info in model.given] == ["x", "past_key_values.0.value", "free"]
    assert [info.shape for info in model.outputs][2] == (1, 3, 3)


def test_states_that_are_declared(path: Path) -> None:
    wanted = {"past_key_values.*": "present.*", "x": "y"}
    model = read_model(ModelSpec(path=path, states=wanted))
    assert model.states == {
        "x": "y",
        "past_key_values.0.key": "present.0.key",
        "past_key_values.0.value": "present.0.value",
        "past_1": "present_1",
    }
    # The end of the one that is longer.
    assert [info.shape for info in model.outputs][2] == (1, 2, 3)
    assert model.proto.graph.node[-1].op_type == "Slice"


def test_a_declared_state_comes_before_one_by_name(path: Path) -> None:
    model = read_model(ModelSpec(path=path, states={"x": "present_1"}))
    assert model.states == {"x": "present_1", "past_key_values.0.key": "present.0.key"}


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ({"z": "y"}, "state given for 'z', which is not an input"),
        ({"q.*": "y.*"}, "state given for 'q.*', which is not an input"),
        ({"x": "z"}, "state 'x' is to keep 'z', which is not an output"),
        ({"past_key_values.*": "gone.*"}, "'past_key_values.0.key' is to keep 'gone.0.key', which"),
        ({"x": "y", "past_1": "y"}, "output 'y' is in two states"),
        ({"past_key_values.0.key": "y", "past_*.0.key": "present.0.*"}, "which is not an output"),
        (
            {"past_key_values.0.key": "wide", "past_key_values.*.key": "present.*.key"},
            "input 'past_key_values.0.key' is in two states",
        ),
        ({"x*": "y"}, "both names have one '*', or none has"),
        ({"a**": "b**"}, "both names have one '*', or none has"),
        (
            {"x": "present.0.key"},
            "input 'x' is float32 (4), output 'present.0.key', which it is to keep, "
            "float32 (1, 2, 3)",
        ),
        ({"past_key_values.0.key": "wide"}, "float32 (1, 2, 3), output 'wide'"),
    ],
)
def test_what_cannot_be_a_state(path: Path, states: dict[str, str], message: str) -> None:
    with pytest.raises(StateError) as raised:
        read_model(ModelSpec(path=path, states=states))
    assert message in raised.value.message


def test_the_words_of_the_command_line() -> None:
    assert parse_states(["h=h_next", "a.*=b.*"]) == {"h": "h_next", "a.*": "b.*"}
    for words in (["h"], ["=y"], ["h="], ["h=a", "h=b"]):
        with pytest.raises(UsageError):
            parse_states(words)


# ---------------------------------------------------------------- what they begin with


def _quantized(reader: str, zero: int, moved: bool) -> tuple[Builder, dict[str, list[int]]]:
    """A cache of int8 that is joined with a frame and read by `reader`."""
    b = Builder()
    scale, point = b.const(0.5, "float32"), b.const(zero, "int8")
    frames = b.op("Concat", "cache", "x", axis=2) if moved else "cache"
    if reader == "DequantizeLinear":
        b.op("DequantizeLinear", frames, scale, point, outputs=["y"])
    elif reader == "QLinearConv":
        weight = b.const([[[1]]], "int8")
        none = b.const(0, "int8")
        made = b.op("QLinearConv", frames, scale, point, weight, scale, none, scale, point)
        b.op("DequantizeLinear", made, scale, point, outputs=["y"])
    if moved:
        bounds = [b.const([at], "int64") for at in (1, 99, 2)]
        b.op("Slice", frames, *bounds, outputs=["cache_next"])
    else:
        b.op("Concat", "x", "x", "x", axis=2, outputs=["cache_next"])
    return b, {"x": [1, 1, 1], "cache": [1, 1, 3]}


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("reader", ["DequantizeLinear", "QLinearConv"])
@pytest.mark.parametrize("zero", [-128, 0, 7])
def test_a_quantized_state_begins_at_its_zero_point(
    reader: str, zero: int, moved: bool, tmp_path: Path
) -> None:
    b, inputs = _quantized(reader, zero, moved)
    size = 4 if moved else 3
    proto = b.model(inputs, {"y": [1, 1, size], "cache_next": [1, 1, 3]})
    for value in (*proto.graph.input, proto.graph.output[1]):
        value.type.tensor_type.elem_type = onnx.TensorProto.INT8
    onnx.save(proto, tmp_path / "model.onnx")
    spec = ModelSpec(path=tmp_path / "model.onnx", states={"cache": "cache_next"})
    starts = read_model(spec).starts
    if zero == 0:
        assert starts == {}
        return
    assert starts["cache"].dtype == np.int8
    np.testing.assert_array_equal(starts["cache"], np.full((1, 1, 3), zero))


def test_what_somebody_wrote_under_our_name_says_nothing(path: Path, tmp_path: Path) -> None:
    for text in ("[1", "[]", '{"x": 1}', '{"x": ["y", "z"]}', '{"x": ["y", [null]]}', "[" * 9999):
        proto = onnx.load(path)
        proto.metadata_props.add(key="edgepack.states", value=text)
        onnx.save(proto, tmp_path / "other.onnx")
        model = read_model(ModelSpec(path=tmp_path / "other.onnx"))
        assert model.states == {"past_key_values.0.key": "present.0.key", "past_1": "present_1"}
        assert model.starts == {}


def test_a_beginning_that_cannot_be_is_refused(path: Path, tmp_path: Path) -> None:
    proto = onnx.load(path)
    declare(proto, {"x": ("y", np.arange(5.0))})
    onnx.save(proto, tmp_path / "other.onnx")
    with pytest.raises(StateError, match="state 'x' cannot begin with what the file says"):
        read_model(ModelSpec(path=tmp_path / "other.onnx"))


# ---------------------------------------------------------------- what may be states


@pytest.mark.parametrize(
    ("given", "made", "due"),
    [
        # A keyword network of wenet, a voice activity detector, a recurrent network of PyTorch,
        # video matting, whisper's decoder, a noise suppressor, zipformer.
        ("x in_cache0 in_cache1", "y out_cache0 out_cache1", "in_cache0 in_cache1"),
        ("input state", "output stateN", "state"),
        ("input h0 c0", "output hn cn", "h0 c0"),
        ("input h_0 c_0", "output h_n c_n", "h_0 c_0"),
        ("input h c", "output hn cn", "h c"),
        ("src r1i r2i", "pha r1o r2o", "r1i r2i"),
        ("tokens in_n_layer_self_k_cache", "y out_n_layer_self_k_cache", "in_n_layer_self_k_cache"),
        ("mix conv_cache tra_cache", "enh conv_cache_out tra_cache_out", "conv_cache tra_cache"),
        ("x cached_key_0", "y new_cached_key_0", "cached_key_0"),
        ("x prevHidden", "y nextHidden", "prevHidden"),
        # What is no state: images and signals that come back, and all inputs at once.
        ("input", "output", ""),
        ("image_in", "image_out", ""),
        ("noise_in audio_in", "audio_out", ""),
        ("a_in", "a_out", ""),
        ("x a_in", "b_out", ""),
        # Two that fit.
        ("x h", "h_out h_next", ""),
    ],
)
def test_states_are_proposed_by_name_and_shape(given: str, made: str, due: str) -> None:
    def infos(names: str) -> list[TensorInfo]:
        return [TensorInfo(name=name, dtype="float32", shape=(1, 4)) for name in names.split()]

    found = propose_states(infos(given), infos(made), {})
    outputs = [name for name in made.split() if name not in ("y", "output", "pha", "enh")]
    assert list(found) == due.split()
    assert list(found.values()) == outputs[: len(found)]
    other = [TensorInfo(name=i.name, dtype=i.dtype, shape=(1, 5)) for i in infos(made)]
    assert propose_states(infos(given), other, {}) == {}
    known = dict(list(found.items())[:1])
    assert propose_states(infos(given), infos(made), known) == dict(list(found.items())[1:])


@pytest.mark.parametrize(
    ("given", "made", "due"),
    [
        # The halves of DTLN, whose states tf2onnx numbers; a batch may have a name on one side.
        ("input_2:1,1,257 input_3:1,2,128,2", "act:1,1,257 stack:1,2,128,2", "input_3=stack"),
        ("input_4:1,1,512 input_5:1,2,128,2", "conv:N,1,512 stack:N,2,128,2", "input_5=stack"),
        # Two of one shape, in their order; what the network works on may come last.
        ("a:1,80 b:2,N,64 c:2,N,64", "p:1,5 q:2,M,64 r:2,M,64", "b=q c=r"),
        ("h:1,64 sound:1,160", "next:1,64 p:1,2", "h=next"),
        # Not known: as many outputs do not have the shape, or the first input has it, too.
        ("a:1,80 b:2,1,64", "q:2,1,64 r:2,1,64", ""),
        ("a:1,80 b:2,1,64 c:2,1,64", "q:2,1,64", ""),
        ("mix:1,160 voice:1,160", "p:1,160 q:1,160", ""),
        # No shape of its own; another input of what it works on; no output of the shape.
        ("ids:1,T b:1,1", "p:1,T q:1,1", ""),
        ("a:1,80 mask:1,64", "q:1,64", ""),
        ("a:1,80 b:2,1,64", "q:1,1,64", ""),
    ],
)
def test_states_whose_shape_alone_speaks_for_them(given: str, made: str, due: str) -> None:
    def infos(texts: str) -> list[TensorInfo]:
        return [
            TensorInfo(
                name=name,
                dtype="float32",
                shape=tuple(int(one) if one.isdecimal() else one for one in sizes.split(",")),
            )
            for name, _, sizes in (text.partition(":") for text in texts.split())
        ]

    pairs = alike_states(infos(given), infos(made), {})
    assert [f"{name}={other}" for name, other in pairs.items()] == due.split()
    assert alike_states(infos(given), infos(made), pairs) == {}
    whole = [dataclasses.replace(info, dtype="int64") for info in infos(made)]
    assert alike_states(infos(given), whole, {}) == {}


def test_an_output_whose_shape_nobody_knows_may_be_a_state(tmp_path: Path) -> None:
    """Behind an operator through which nothing is inferred; a scalar is none of three axes."""
    b = Builder()
    b.op("Gelu", "h0", outputs=["kept"], domain="com.microsoft")
    b.op("Relu", "kept", outputs=["hN"])
    b.op("Relu", "x", outputs=["y"])
    b.op("ReduceSum", "h0", outputs=["sum"], keepdims=0)
    inputs: dict[str, list[int | str | None]] = {"x": [4], "h0": [3, 1, 4]}
    file = b.save(tmp_path / "m.onnx", inputs, {"y": [4], "hN": None, "sum": []})
    assert read_model(ModelSpec(path=file, states={"h0": "hN"})).states == {"h0": "hN"}
    with pytest.raises(StateError, match="output 'sum', which it is to keep, float32"):
        read_model(ModelSpec(path=file, states={"h0": "sum"}))

"""Which outputs inputs keep, and what is wrong with those that cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgepack.base.errors import UsageError
from edgepack.cli.options import parse_states
from edgepack.model import ModelSpec, read_model
from edgepack.model.errors import StateError
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

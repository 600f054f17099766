"""Golden tensors of files, and golden outputs that would pass whatever a board computes."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.flow.golden import (
    GoldenInputError,
    SenselessGoldenError,
    check_golden,
    read_tensors,
)
from edgepack.flow.reference import golden_inputs, make_golden
from edgepack.model import LoadedModel, ModelSpec, read_model
from tests.onnx_models import Builder


def _loaded(folder: Path, b: Builder, inputs: dict[str, list[int]], states: bool) -> LoadedModel:
    outputs = {"y": [1, 4], "h_next": [2]} if states else {"y": [1, 4]}
    onnx.save(b.model(inputs, outputs), folder / "model.onnx")
    spec = ModelSpec(path=folder / "model.onnx", states={"h": "h_next"} if states else {})
    return read_model(spec)


@pytest.fixture
def model(tmp_path: Path) -> LoadedModel:
    """y = x + the sum of h, which becomes 2 h + 1."""
    b = Builder()
    b.op("Add", "x", b.op("ReduceSum", "h", keepdims=0), outputs=["y"])
    one = b.const(1.0, "float32")
    b.op("Add", b.op("Add", "h", "h"), one, outputs=["h_next"])
    return _loaded(tmp_path, b, {"x": [1, 4], "h": [2]}, states=True)


def _save(path: Path, array: np.ndarray) -> Path:
    np.save(path, array)
    return path


def test_tensors_are_all_inputs_or_all_that_are_no_states(
    model: LoadedModel, tmp_path: Path
) -> None:
    x = _save(tmp_path / "x.npy", np.arange(4, dtype=">f4").reshape(1, 4))
    h = _save(tmp_path / "h.npy", np.ones(2, "float32"))
    golden = make_golden(model, files=[x])
    np.testing.assert_array_equal(golden.inputs[0], [[0, 1, 2, 3]])
    assert golden.inputs[0].dtype == np.float32
    # A state is what it is at first.
    np.testing.assert_array_equal(golden.inputs[1], [0, 0])
    np.testing.assert_array_equal(golden.outputs[0], [[0, 1, 2, 3]])
    both = golden_inputs(model, files=[x, h])
    np.testing.assert_array_equal(both[1], [1, 1])


def _npy(header: str) -> bytes:
    raw = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(raw).to_bytes(2, "little") + raw


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not a tensor of input 'x'"),
        (b"RIFF....WAVE", "not a tensor of input 'x'"),
        (_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4)}"), "not a tensor"),
        (_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1048576, 1048576)}"), "it is fl"),
        (_npy("{'descr': '|O', 'fortran_order': False, 'shape': (1, 4)}"), "Python objects"),
        (_npy("{'descr': '<f4'}"), "not a tensor"),
        (np.zeros((1, 4)), "it is float64"),
        (np.zeros((4,), "float32"), r"is float32 \(4,\), input 'x' is float32 \(1, 4\)"),
        (np.zeros((1, 4), "int32"), r"is int32 \(1, 4\), input 'x' is float32 \(1, 4\)"),
    ],
)
def test_files_that_are_none(
    content: bytes | np.ndarray, why: str, model: LoadedModel, tmp_path: Path
) -> None:
    path = tmp_path / "x.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content)
    with pytest.raises(GoldenInputError, match=why) as caught:
        read_tensors(model, [path])
    assert str(path) in caught.value.message
    assert "numpy.save" in str(caught.value.hint)


def test_as_many_files_as_inputs(model: LoadedModel, tmp_path: Path) -> None:
    file = _save(tmp_path / "x.npy", np.zeros((1, 4), "float32"))
    with pytest.raises(GoldenInputError, match="3 files, but the model takes 1 inputs: x") as e:
        read_tensors(model, [file] * 3)
    assert "one for each state" in str(e.value.hint)
    with pytest.raises(GoldenInputError, match="not a tensor of input 'x'"):
        read_tensors(model, [tmp_path])
    objects = io.BytesIO()
    np.save(objects, np.array([{}]), allow_pickle=True)
    file.write_bytes(objects.getvalue())
    with pytest.raises(GoldenInputError, match="Python objects"):
        read_tensors(model, [file])


_Y = np.array([[1.0, 2.0, 3.0, 4.0]], "float32")
_STATE = np.arange(2, dtype="float32")


@pytest.mark.parametrize(
    ("y", "others", "why"),
    [
        (_Y * np.nan, [_Y], r"output 'y' is not a number \(NaN\) everywhere"),
        (_Y * 0, [_Y], "all values of 'y' are one"),
        (_Y * 0 + np.inf, [_Y], "output 'y' is infinite everywhere"),
        (np.where(_Y > 1, np.nan, -np.inf), [_Y], r"is not a number \(NaN\) or infinite every"),
        (np.where(_Y > 2, np.inf, -np.inf), [_Y], "output 'y' is infinite everywhere"),
        (np.where(_Y > 2, np.nan, 7.0), [_Y], "all finite values of 'y' are one"),
        (np.where(_Y > 1, -np.inf, 7.0), [_Y], "all finite values of 'y' are one"),
        (np.array([[np.nan]], "float16"), [_Y], "output 'y' is not a number"),
        (_Y[:0], [_Y], "all values of 'y' are one"),
        (_Y, [_Y, _Y], "'y' are the same for all inputs"),
        (_Y[:, :1], [_Y[:, :1]], "'y' are the same for all inputs"),
    ],
)
def test_what_tells_nothing_is_refused(
    y: np.ndarray,
    others: list[np.ndarray],
    why: str,
    model: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the states become, which every input changes. The hint can be copied."""
    found = [[other, _STATE + i + 1] for i, other in enumerate(others)]
    with pytest.raises(SenselessGoldenError, match=why) as caught:
        check_golden(model, [y, _STATE], found, given="random inputs", kept=["h_next"])
    hint = str(caught.value.hint)
    ((python, option),) = re.findall(r"in Python (.*), and then --golden-input (\S+) ", hint)
    monkeypatch.chdir(model.path.parent)
    exec(python, {"numpy": np, "YOURS": [5, 6, 7, 8]})
    (read,) = read_tensors(model, [Path(option)]).values()
    np.testing.assert_array_equal(read, [[5, 6, 7, 8]])


@pytest.mark.parametrize("dead", [np.nan, np.inf, -np.inf])
def test_one_output_that_is_no_number_is_refused(dead: float, tmp_path: Path) -> None:
    """A constant one, infinite or not, may be right beside one that tells something; several
    constants are not."""
    b = Builder()
    b.op("Neg", "x", outputs=["a"])
    b.op("Abs", "x", outputs=["b"])
    path = b.save(tmp_path / "two.onnx", {"x": [1, 4]}, {"a": [1, 4], "b": [1, 4]})
    two = read_model(ModelSpec(path=path))
    for outputs in ([_Y, _Y * 0 + dead], [_Y * 0 + dead, _Y]):
        if np.isinf(dead):
            check_golden(two, outputs, [[_Y + 1, _Y]], given="random inputs")
            continue
        with pytest.raises(SenselessGoldenError, match=r"output '[ab]' is .* everywhere"):
            check_golden(two, outputs, [[_Y + 1, _Y]], given="random inputs")
    with pytest.raises(SenselessGoldenError, match=r"output 'a' is .* everywhere"):
        check_golden(two, [_Y * 0 + dead] * 2, [[_Y + 1, _Y]], given="random inputs")
    check_golden(two, [_Y, _Y * 0], [[_Y + 1, _Y]], given="random inputs")
    spoilt = np.where(_Y > 3, dead, _Y * 0)
    check_golden(two, [_Y, spoilt], [[_Y + 1, _Y]], given="random inputs")
    with pytest.raises(SenselessGoldenError, match="all finite values of 'a', 'b' are one"):
        check_golden(two, [_Y * 0, spoilt], [[_Y + 1, _Y]], given="random inputs")


def test_what_may_be_a_photo_and_many_inputs_are_named_by_keys(tmp_path: Path) -> None:
    b = Builder()
    names = [f"x{number}" for number in range(5)]
    b.op("Sum", *names, outputs=["y"])
    many = _loaded(tmp_path, b, {name: [1, 4] for name in names}, states=False)
    with pytest.raises(SenselessGoldenError) as caught:
        check_golden(many, [_Y * 0], [], given="random inputs")
    assert ": golden_input for other tensors; " in str(caught.value.hint)
    b = Builder()
    b.op("Flatten", "photo", outputs=["y"])
    photo = _loaded(tmp_path, b, {"photo": [1, 1, 2, 2]}, states=False)
    with pytest.raises(SenselessGoldenError) as caught:
        check_golden(photo, [_Y * 0], [], given="random inputs")
    assert ": golden_image for a photo, or in Python " in str(caught.value.hint)


def test_numbers_of_words_are_any_of_the_table(tmp_path: Path) -> None:
    """A model may pass over the first of them, which stand for nothing; each must be in the table,
    or onnxruntime refuses it."""
    b = Builder()
    table = b.const(np.arange(400, dtype=np.float32).reshape(100, 4))
    words = b.op("Gather", table, b.op("Cast", "words", to=onnx.TensorProto.INT32))
    masked = b.op("Mul", words, b.op("Unsqueeze", b.op("Cast", "mask", to=1), b.const([2])))
    b.op("ReduceSum", masked, b.const([1]), outputs=["y"], keepdims=0)
    inputs: dict[str, Sequence[int | str | None]] = {"words": [1, 64], "mask": [1, 64]}
    types = dict.fromkeys(inputs, onnx.TensorProto.INT64)
    path = b.save(tmp_path / "m.onnx", inputs, {"y": [1, 4]}, types)
    golden = make_golden(read_model(ModelSpec(path=path)))
    found, mask = golden.inputs
    assert len(np.unique(found)) > 30
    assert set(np.unique(mask)) == {0, 1}
    rows = np.arange(400).reshape(100, 4)[found[0]] * mask[0][:, None]
    np.testing.assert_allclose(golden.outputs[0], rows.sum(0, keepdims=True))


@pytest.mark.parametrize(
    ("y", "others"),
    [
        (_Y, []),
        (_Y, [_Y, _Y + 1]),
        # One class of one photo, and the only one of the first other input.
        (_Y[:, :1], [_Y[:, :1], _Y[:, 1:2]]),
        (np.where(_Y > 3, np.nan, _Y), [_Y]),
        (np.where(_Y > 2, np.inf, _Y), [_Y]),
        (_Y.astype("int64"), [_Y.astype("int64") + 1]),
    ],
)
def test_what_tells_something_is_taken(
    y: np.ndarray, others: list[np.ndarray], model: LoadedModel
) -> None:
    found = [[other, _STATE] for other in others]
    check_golden(model, [y, _STATE], found, given="random inputs", kept=["h_next"])

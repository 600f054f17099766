"""A release of another model under the same name is not replaced without a word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgepack.bundle.bundle import Bundle
from edgepack.deploy.other_model import OtherModelError, check_same_model
from edgepack.device import patience
from edgepack.device.errors import ConnectionLostError
from tests.bundles import small_bundle
from tests.scripted_tool import ScriptedDevice

LABELS = ("a", "b", "c", "d")


def bundle(folder: Path, **changes: Any) -> Bundle:
    return small_bundle(folder, labels=LABELS, **changes)


def device(current: Bundle | str) -> Any:
    text = current if isinstance(current, str) else current.file("manifest.json").read_text()
    return ScriptedDevice("pi", lambda _: text)


def trained_again(folder: Path, **changes: Any) -> Bundle:
    """Another file of the same model, but for `changes` of what was compiled."""
    made = bundle(folder)
    model = replace(made.manifest.model, sha256="cd" * 32, file="later.onnx", **changes)
    return replace(made, manifest=replace(made.manifest, model=model))


def test_the_same_model_and_what_it_was_trained_to_since(tmp_path: Path) -> None:
    there = bundle(tmp_path / "a")
    for own in (bundle(tmp_path / "b"), trained_again(tmp_path / "c")):
        check_same_model(device(there), "edgepack/x", own)


def test_other_outputs(tmp_path: Path) -> None:
    there = bundle(tmp_path / "a")
    outputs = (replace(there.manifest.model.outputs[0], shape=(1, 84, 525)),)
    with pytest.raises(OtherModelError) as caught:
        check_same_model(
            device(there), "edgepack/x", trained_again(tmp_path / "b", outputs=outputs)
        )
    assert caught.value.message == (
        f"pi: in edgepack/x is another model, {there.manifest.model.file}: its outputs are "
        "'scores' float32 (1, 4), those of later.onnx 'scores' float32 (1, 84, 525)"
    )
    assert "--replace" in (caught.value.hint or "")
    assert caught.value.exit_code == 2


def test_other_inputs_and_other_labels(tmp_path: Path) -> None:
    there = bundle(tmp_path / "a")
    inputs = (replace(there.manifest.model.inputs[0], name="picture"),)
    with pytest.raises(OtherModelError, match="its inputs are 'input' float32"):
        check_same_model(device(there), "x", trained_again(tmp_path / "b", inputs=inputs))
    own = trained_again(tmp_path / "c")
    other = small_bundle(tmp_path / "d", labels=("a", "b", "c", "e"))
    with pytest.raises(OtherModelError, match="its labels are others"):
        check_same_model(device(other), "x", own)
    # One that had no labels has got some.
    check_same_model(device(small_bundle(tmp_path / "e", labels=None)), "x", own)


def test_what_is_not_there_or_cannot_be_read(tmp_path: Path) -> None:
    own = bundle(tmp_path / "a")
    for text in ("", "{", "[]", "\x00"):
        check_same_model(device(text), "x", own)
    nothing = ScriptedDevice("pi", lambda _: "", returncode=1)
    check_same_model(nothing, "x", own)  # type: ignore[arg-type]


def test_a_lost_link_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a deploy does: a bad link neither ends it nor hides another model."""
    monkeypatch.setattr(patience.time, "sleep", lambda _: None)
    there, own = bundle(tmp_path / "a"), trained_again(tmp_path / "b")
    other = replace(own.manifest.model.outputs[0], name="boxes")
    own = trained_again(tmp_path / "c", outputs=(other,))
    text = there.file("manifest.json").read_text()
    events: list[str] = []

    def answer(_: str) -> str:
        events.append("ask")
        if len(events) < 5:
            raise ConnectionLostError("pi: the link is gone")
        return text

    board: Any = ScriptedDevice("pi", answer)
    monkeypatch.setattr(board, "reconnect", lambda: events.append("reconnect"), raising=False)
    with pytest.raises(ConnectionLostError):
        check_same_model(board, "x", own, retries=1)
    assert events == ["ask", "reconnect", "ask"]
    with pytest.raises(OtherModelError):
        check_same_model(board, "x", own, retries=3)

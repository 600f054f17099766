"""Names of models, folders, and the record of where a model is from."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from edgepack.base.errors import RemoteError, UsageError
from edgepack.cli import main
from edgepack.deploy import remote_tool
from edgepack.model.errors import SourceError
from edgepack.model.sources import is_source, local_model, source_of
from edgepack.model.sources.record import RECORD, ModelSource, write_record
from tests.bundles import small_bundle
from tests.onnx_models import one_conv
from tests.scripted_tool import ScriptedDevice

SOURCE = ModelSource(uri="hf://org/repo@0123/model.onnx", name="org/repo", revision="0123")


def test_a_client_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["check", "hf://org/repo"]) == SourceError.exit_code
    assert "pip install 'edgepack[hf]'" in capsys.readouterr().err


def test_a_folder_with_one_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="not a file, and no model in it"):
        local_model(tmp_path)
    (tmp_path / "onnx").mkdir()
    (tmp_path / ".git").mkdir()
    one_conv(tmp_path / ".git/other.onnx")
    model = one_conv(tmp_path / "onnx/model.onnx")
    assert local_model(tmp_path) == model
    assert main(["check", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == str(model)
    one_conv(tmp_path / "onnx/other.onnx")
    with pytest.raises(UsageError, match="2 models in it") as caught:
        local_model(tmp_path)
    assert str(tmp_path / "onnx/other.onnx") in str(caught.value.hint)


def test_a_file_of_that_name_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_source("hf://a/b") and is_source(Path("hf://a/b")) and not is_source("hf.onnx")
    Path("hf:/a").mkdir(parents=True)
    one_conv(Path("hf:/a/b"))
    assert not is_source("hf://a/b")


def test_the_record_is_of_these_files(tmp_path: Path) -> None:
    model = one_conv(tmp_path / "model.onnx")
    assert source_of(model) is None
    write_record(tmp_path, SOURCE, [model])
    assert source_of(model) == SOURCE
    assert source_of(one_conv(tmp_path / "other.onnx")) is None
    model.write_bytes(model.read_bytes() + b"\0")
    assert source_of(model) is None


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", '{"source": {}, "files": {"a": "b"}}', '{"source": 1, "files": {}}',
     '{"source": {"uri": "x"}, "files": {}}', '{"source": {"uri": "x"}, "files": {"a": 1}}',
     '{"source": {"uri": "x\\u001b[2J"}, "files": {"a": "b"}}', "\xff"],
)  # fmt: skip
def test_records_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD).write_text(text, encoding="latin-1")
    with pytest.raises(SourceError):
        source_of(one_conv(tmp_path / "model.onnx"))


def test_what_a_device_says() -> None:
    def device(text: str) -> Any:
        return ScriptedDevice("d", lambda _: text)

    assert remote_tool.source(device(SOURCE.to_json()), "r") == SOURCE
    assert remote_tool.source(device(""), "r") is None
    for text in ("x" * 10000, "{}", '{"uri": 1}', '{"uri": "a\\nb"}', '{"uri": "a", "more": ""}'):
        with pytest.raises(RemoteError):
            remote_tool.source(device(text), "r")


def test_a_bundle_says_it(tmp_path: Path) -> None:
    """As one of its files, which the manifest and so the signature cover."""
    bundle = small_bundle(tmp_path, source=SOURCE)
    assert bundle.source == SOURCE
    assert "source.json" in bundle.manifest.files
    assert small_bundle(tmp_path / "other").source is None

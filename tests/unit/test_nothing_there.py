"""Commands for a release that is not there: exit code 12, said before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgepack.base.errors import NothingThereError
from edgepack.cli import main
from tests.onnx_models import one_conv

AFTER_DEPLOYS = [
    ["status"],
    ["rollback"],
    ["prune"],
    ["repair"],
    ["logs"],
    ["bench"],
    ["bench", "--profile"],
    ["run", "--golden"],
    ["service", "status"],
    ["compare", "net.onnx", "--board", "local"],
    ["compare", "net.onnx", "--board", "local", "--release", "0123456789ab"],
]


@pytest.mark.parametrize("words", AFTER_DEPLOYS, ids=" ".join)
def test_nothing_there(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def compile_job(*_: object, **__: object) -> None:
        pytest.fail("compiled before the device was asked")

    monkeypatch.setattr("edgepack.flow.compare.compile_job", compile_job)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    one_conv(tmp_path / "net.onnx")
    assert main([*words, "--device", "local", "--name", "nothing"]) == NothingThereError.exit_code
    error = capsys.readouterr().err
    assert "edgepack/nothing" in error
    assert "hint: `edgepack deploy`" in error

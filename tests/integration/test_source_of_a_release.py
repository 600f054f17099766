"""Where a release's model came from, asked of a device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgepack.cli import main
from edgepack.deploy.deploy import deploy_bundle
from edgepack.device import LocalDevice
from edgepack.flow.deployment import Deployment
from edgepack.model.sources import ModelSource
from tests.fake_app import fake_bundle

SOURCE = ModelSource(
    uri="hf://org/repo@0123/model.onnx", name="org/repo", revision="0123", run_id="r1"
)


def test_status_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the release that is current, and of that only."""
    root = str(tmp_path / "root")
    words = ["status", "--device", "local", "--root", root]
    for name, source in (("a", SOURCE), ("b", None)):
        bundle = fake_bundle(tmp_path / name, weights=name.encode(), source=source)
        deploy_bundle(bundle, LocalDevice(), root)
        assert main([*words, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)["source"]
        assert (said or {}).get("uri") == (source.uri if source else None)
        assert main(words) == 0
        with Deployment(LocalDevice(), root) as deployed:
            assert deployed.status().source == source
        lines = [line for line in capsys.readouterr().out.splitlines() if "source" in line]
        assert lines == ([f"source    {source.uri}, run r1"] if source else [])

"""The bill of materials of a bundle, against the bundle's own files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from edgepack.bundle import sbom
from edgepack.bundle.bundle import open_bundle
from edgepack.cli import main
from tests.bundles import small_bundle

TYPES = {"application", "library", "file", "machine-learning-model", "firmware"}


def test_everything_is_in_it(tmp_path: Path) -> None:
    bundle = small_bundle(tmp_path, board="rasp3b")
    document = sbom.sbom(bundle)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", document["serialNumber"])
    parts = {part["bom-ref"]: part for part in document["components"]}
    assert len(parts) == len(document["components"])
    assert {part["type"] for part in parts.values()} <= TYPES
    on_disk = {
        str(path.relative_to(bundle.path)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in bundle.path.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    assert on_disk == {
        ref.removeprefix("file:"): part["hashes"][0]["content"]
        for ref, part in parts.items()
        if ref.startswith("file:")
    }
    # A component for each licence text, with that text.
    texts = {path.name: path for path in (bundle.path / "licenses").iterdir()}
    libraries = {part["name"]: part for ref, part in parts.items() if ref.startswith("library:")}
    assert libraries.keys() == texts.keys() - {"edgepack", "model"}
    assert libraries
    for name, part in libraries.items():
        text = part["licenses"][0]["license"]["text"]
        assert text["encoding"] == "base64"
        assert base64.b64decode(text["content"]) == texts[name].read_bytes()
    (link,) = document["dependencies"]
    assert link["ref"] == document["metadata"]["component"]["bom-ref"]
    assert set(link["dependsOn"]) == parts.keys()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = small_bundle(tmp_path, board="rasp3b")
    file = tmp_path / "sbom.json"
    for _ in range(2):
        assert main(["verify", str(bundle.path), "--sbom", str(file)]) == 0
        assert file.read_bytes() == sbom.to_bytes(open_bundle(bundle.path))
    assert json.loads(file.read_bytes())["metadata"]["component"]["name"] == bundle.manifest.name
    # Nothing is written of a bundle that is damaged.
    file.unlink()
    (bundle.path / "model" / "params.bin").write_bytes(b"x")
    assert main(["verify", str(bundle.path), "--sbom", str(file)]) == 5
    assert not file.exists()

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from edgepack.base.errors import BundleError
from edgepack.bundle.manifest import (
    Health,
    Manifest,
    ManifestError,
    UnsupportedSchemaError,
    check_name,
    check_path,
    parse_manifest,
    release_id,
)
from tests.bundles import small_bundle


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return small_bundle(tmp_path_factory.mktemp("manifest")).manifest


@pytest.fixture
def document(manifest: Manifest) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(manifest.to_bytes())
    return value


def encode(document: dict[str, Any]) -> bytes:
    """With the release id that the content has, so that the test reaches the field it is about."""
    return json.dumps({**document, "release": release_id(document)}).encode()


def test_what_is_written_is_what_is_read(manifest: Manifest) -> None:
    data = manifest.to_bytes()
    assert parse_manifest(data) == manifest
    assert parse_manifest(data).to_bytes() == data
    assert data.endswith(b"}\n")


def test_the_release_id_covers_every_other_field(document: dict[str, Any]) -> None:
    for key in document.keys() - {"release"}:
        assert release_id({**document, key: "changed"}) != document["release"]
    assert release_id({**document, "release": "changed"}) == document["release"]


def test_a_changed_manifest_is_noticed(document: dict[str, Any]) -> None:
    document["tolerance"] = 0.5
    with pytest.raises(ManifestError, match=r"release is [0-9a-f]{12}, its content"):
        parse_manifest(json.dumps(document).encode())


def test_another_schema_is_refused_before_anything_else(document: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedSchemaError, match="schema 4; this edgepack reads 1 to 3"):
        parse_manifest(encode({"schema": 4, "news": True}))


def test_the_first_schema_has_no_version_health_and_service(document: dict[str, Any]) -> None:
    old = {**document, "schema": 1}
    with pytest.raises(ManifestError, match="unknown key"):
        parse_manifest(encode(old))
    for key in ("version", "health", "service"):
        del old[key]
    for file in ("install", "bin/edgepack-device"):
        del old["files"][file]
    read = parse_manifest(encode(old))
    assert (read.version, read.health, read.service) == (0, Health(), None)
    assert json.loads(read.to_bytes()) == {**old, "release": release_id(old)}


def test_a_bundle_that_needs_no_c_library(tmp_path: Path) -> None:
    bundle = small_bundle(tmp_path, board="pixel2")
    document = json.loads(bundle.manifest.to_bytes())
    assert document["schema"] == 3
    assert document["compatible"]["linked"] == "static"
    assert "glibc" not in document["compatible"]
    assert "model/model.so" not in document["files"]
    read = parse_manifest(bundle.manifest.to_bytes())
    assert read == bundle.manifest
    assert read.is_static
    assert not parse_manifest(small_bundle(tmp_path).manifest.to_bytes()).is_static

    document["compatible"]["glibc"] = "2.31"
    with pytest.raises(ManifestError, match=r"compatible.glibc: unknown key"):
        parse_manifest(encode(document))
    del document["compatible"]["glibc"], document["compatible"]["linked"]
    with pytest.raises(ManifestError, match=r"compatible.linked: missing"):
        parse_manifest(encode(document))


def test_bounds_of_the_health_gate(document: dict[str, Any]) -> None:
    assert document["health"] == {
        "timeout_s": 600.0, "max_latency_ms": None, "max_memory_mb": None
    }  # fmt: skip
    document["health"] = {"timeout_s": 5, "max_latency_ms": 20.5, "max_memory_mb": None}
    assert parse_manifest(encode(document)).health == Health(timeout_s=5, max_latency_ms=20.5)


def dotted(document: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    *parents, last = path.split("|")
    for key in parents:
        document = document[key]
    return document, last


@pytest.mark.parametrize(
    "path",
    ["schema", "name", "board", "release", "compatible", "compatible|cpu", "compatible|hwcaps",
     "model", "model|sha256", "model|inputs", "model|arena_bytes", "tolerance", "scores",
     "version", "health", "health|timeout_s", "health|max_memory_mb", "service", "versions",
     "versions|tvm", "files", "files|model/model.so|mode"],
)  # fmt: skip
def test_every_key_must_be_there(document: dict[str, Any], path: str) -> None:
    table, key = dotted(document, path)
    del table[key]
    data = json.dumps(document).encode() if path == "release" else encode(document)
    with pytest.raises(ManifestError, match=f"{path.replace('|', '.')}: missing"):
        parse_manifest(data)


@pytest.mark.parametrize(
    "path", ["", "compatible", "model", "health", "versions", "files|model/model.so"]
)
def test_no_other_key_may_be_there(document: dict[str, Any], path: str) -> None:
    table, key = dotted(document, f"{path}|surprise" if path else "surprise")
    table[key] = 1
    with pytest.raises(ManifestError, match="surprise: unknown key"):
        parse_manifest(encode(document))


@pytest.mark.parametrize(
    ("path", "value"),
    [("schema", "1"), ("schema", True), ("name", "../x"), ("name", ""), ("name", 7),
     ("name", "-rf"), ("board", "a b"), ("compatible", []), ("compatible|hwcaps", "neon"),
     ("compatible|hwcaps", [1]), ("compatible|glibc", "new"), ("model|sha256", "AB" * 32),
     ("model|precision", "float8"), ("model|precision", 16),
     ("model|quantized", 3), ("model|quantized", {"in_float": 1, "calibration": ""}),
     ("model|quantized", {"in_float": -1, "calibration": "", "agreement": None}),
     ("model|quantized", {"in_float": 1, "calibration": "ab", "agreement": None}),
     ("model|quantized", {"in_float": 1, "calibration": "", "agreement": 1.5}),
     ("model|arena_bytes", -1), ("model|arena_bytes", 1.5), ("model|arena_bytes", True),
     ("model|inputs", [1]), ("model|inputs", [{"name": "x", "dtype": "float31", "shape": [1]}]),
     ("model|inputs", [{"name": "x", "dtype": "float32", "shape": [-1]}]),
     ("model|outputs", [{"name": "x", "dtype": "float32", "shape": [1], "bounded": [1]}]),
     ("tolerance", 0), ("tolerance", 1), ("tolerance", "small"), ("scores", "logits"),
     ("version", -1), ("version", "1"), ("health", []), ("health|timeout_s", 0),
     ("health|timeout_s", 2e6), ("health|timeout_s", None),
     ("health|max_latency_ms", -1), ("service", "unit"),
     ("files", []), ("files|model/model.so", "x"), ("files|model/model.so|size", "1"),
     ("files|model/model.so|mode", "4755"), ("files|model/model.so|sha256", "ab")],
)  # fmt: skip
def test_every_value_is_checked(document: dict[str, Any], path: str, value: object) -> None:
    table, key = dotted(document, path)
    table[key] = value
    with pytest.raises(ManifestError, match=r"manifest\.json: "):
        parse_manifest(encode(document))


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../x", "a/../b", "a//b", "a/", "", ".", ".hidden", "a\\b", "a b", "-x",
     "a/-rf", "a\nb", "a\0b", "ä", "x" * 101],
)  # fmt: skip
def test_unsafe_paths_are_refused(document: dict[str, Any], path: str) -> None:
    with pytest.raises(ManifestError, match="unsafe path"):
        check_path(path)
    document["files"][path] = document["files"]["model/model.so"]
    with pytest.raises(ManifestError, match="unsafe path"):
        parse_manifest(encode(document))


def test_names_are_path_parts() -> None:
    assert check_name("mobilenet_v2-1.0@x+y", "name") == "mobilenet_v2-1.0@x+y"
    with pytest.raises(ManifestError, match="bundle name: 'a/b'"):
        check_name("a/b", "bundle name")


@pytest.mark.parametrize(
    ("change", "message"),
    [({"model/model.so": None}, "model/model.so missing"),
     ({"manifest.json": "bin/edgepack-run"}, r"lists manifest\.json, which cannot"),
     ({"model": "bin/edgepack-run"}, "both a file and the folder"),
     ({"model/graph.json/x": "bin/edgepack-run"}, "both a file and the folder")],
)  # fmt: skip
def test_the_file_table_must_make_sense(
    document: dict[str, Any], change: dict[str, str | None], message: str
) -> None:
    for path, source in change.items():
        if source is None:
            del document["files"][path]
        else:
            document["files"][path] = document["files"][source]
    with pytest.raises(ManifestError, match=message):
        parse_manifest(encode(document))


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "not JSON"), (b"\xff", "not JSON"), (b"{", "not JSON"), (b"[]", "not a JSON object"),
     (b'{"schema": NaN}', "NaN"), (b'{"schema": 1, "schema": 1}', "'schema' is given twice"),
     (b'{"schema": 1, "name": "\\ud800"}', "not JSON"), (b"[" * 100_000, "not JSON"),
     (b'{"schema": 1' + b"0" * 400 + b"}", "inf is not a whole"),
     (b" " * (4 << 20) + b"{}", "4 MiB")],
)  # fmt: skip
def test_what_is_no_manifest_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        parse_manifest(data)


def test_errors_are_bundle_errors() -> None:
    assert issubclass(ManifestError, BundleError)
    assert ManifestError("x").exit_code == 5


def test_manifests_are_values(manifest: Manifest) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        manifest.name = "other"  # type: ignore[misc]

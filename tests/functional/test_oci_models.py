"""`publish model` and oci:// with Debian's docker-registry, and artefacts that others made."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image

from edgepack.base.errors import UsageError
from edgepack.cli import main
from edgepack.flow.monitor import photos_to_compare_with
from edgepack.flow.project import load_project
from edgepack.model.errors import SourceError
from edgepack.model.sources import local_model, oci, source_of
from tests import registries
from tests.boards import own_cache
from tests.onnx_models import Builder
from tests.support import free_port

PROJECT = """
[project]
name = "flowers"
model = "net/model.onnx"
labels = "labels.txt"
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registries.registry(tmp_path_factory.mktemp("registry")) as where:
        yield where


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A classifier with weights in another file, its labels and its project file."""
    folder = tmp_path / "made"
    (folder / "net").mkdir(parents=True)
    builder = Builder(seed=4)
    pooled = builder.op("GlobalAveragePool", builder.conv("x", 3, 12))
    builder.op("Flatten", pooled, outputs=["y"])
    proto = builder.model({"x": (1, 3, 8, 8)}, {"y": (1, 12)})
    tensor = max(proto.graph.initializer, key=lambda one: one.ByteSize())
    data = np.ascontiguousarray(numpy_helper.to_array(tensor)).tobytes()
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "model.data"), ("offset", "0"), ("length", str(len(data)))):
        tensor.external_data.add(key=key, value=value)
    (folder / "net/model.onnx").write_bytes(proto.SerializeToString())
    (folder / "net/model.data").write_bytes(data)
    (folder / "labels.txt").write_text("".join(f"class {number}\n" for number in range(12)))
    (folder / "edgepack.toml").write_text(PROJECT)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with own_cache():
        yield folder


def _pushed(registry: str, project: Path, capsys: pytest.CaptureFixture[str]) -> str:
    name = f"oci://{registry}/shop/flowers:v3"
    words = ["publish", "model", name, "--project", str(project / "edgepack.toml")]
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    files = ["edgepack.toml", "labels.txt", "net/model.data", "net/model.onnx"]
    assert sorted(said["files"]) == files
    address = said["address"]
    assert address.startswith(f"oci://{registry}/shop/flowers@sha256:")
    return str(address)


def test_to_the_registry_and_back(
    registry: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = _pushed(registry, project, capsys)
    assert _pushed(registry, project, capsys) == address  # equal files, equal digest
    for name in (f"oci://{registry}/shop/flowers:v3", address):
        model = local_model(name)
        assert model.read_bytes() == (project / "net/model.onnx").read_bytes()
        source = source_of(model)
        assert source is not None
        assert (source.uri, source.name) == (address, "shop/flowers")
        # The project file that came along is the one that counts.
        assert main(["check", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["seen"][0]["top"][0]["label"][:6] == "class "
    assert main(["init", address]) == 2
    assert "edgepack.toml came with the model" in capsys.readouterr().err
    # Beside the project that is made, all of it.
    kept = {file.relative_to("flowers").as_posix() for file in Path("flowers").rglob("*.*")}
    assert kept == {
        "edgepack-source.json", "edgepack.toml", "labels.txt", "net/model.data", "net/model.onnx",
    }  # fmt: skip
    assert main(["check", "--project", "flowers/edgepack.toml"]) == 0


def test_photos_that_a_deploy_needs_travel_and_others_stay(
    registry: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`[monitor]` is made from photos when a bundle is packed, `[quantize]` was before."""
    for folder, count in (("seen", 70), ("many", 3)):
        (project / folder).mkdir()
        for number in range(count):
            path = project / folder / f"{number:02}.png"
            Image.new("RGB", (9, 8), (number, 2 * number, 90)).save(path)
    words = '[preprocess]\npreset = "tf-imagenet"\n[quantize]\nimages = "many"\n'
    words += '[monitor]\nimages = "seen"\nmost = 50\n'
    (project / "edgepack.toml").write_text((project / "edgepack.toml").read_text() + words)
    name = f"oci://{registry}/shop/watched:1"
    words = f"publish model {name} --project {project / 'edgepack.toml'} --json"
    assert main(words.split()) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert len([file for file in files if file.startswith("seen/")]) == 50
    assert not any(file.startswith("many/") for file in files)

    chosen = photos_to_compare_with(load_project(local_model(name).parents[1] / "edgepack.toml"))
    theirs = photos_to_compare_with(load_project(project / "edgepack.toml"))
    assert [file.read_bytes() for file in chosen] == [file.read_bytes() for file in theirs]


def test_what_is_not_there(registry: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, words in (
        (f"{registry}/none/at-all:1", "not there"),
        (f"127.0.0.1:{free_port()}/shop/flowers", "cannot be asked"),
    ):
        with pytest.raises(SourceError, match=words):
            local_model(f"oci://{name}")
    for name in ("shop", "UPPER/Case:1", f"{registry}/a@sha256:12", f"{registry}/../a", "-o/x y"):
        with pytest.raises(UsageError, match="not a name in a registry"):
            local_model(f"oci://{name}")
    assert main(["publish", "model", "ftp://x/y"]) == 2
    assert "not an address of a registry" in capsys.readouterr().err


def test_files_that_lie_elsewhere_are_not_published(
    registry: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "labels.txt").unlink()
    (project.parent / "secret.txt").write_text("class\n" * 12)
    (project / "labels.txt").symlink_to(project.parent / "secret.txt")
    words = ["publish", "model", f"oci://{registry}/shop/other:1"]
    assert main([*words, "--project", str(project / "edgepack.toml")]) == 2
    assert "labels.txt" in capsys.readouterr().err


def _layout(folder: Path, files: list[tuple[str, bytes]], **changes: Any) -> Path:
    """An artefact as `oras push` writes it, of `files`."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def keep(data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data)}

    layers = [
        {"mediaType": "application/octet-stream", **keep(data)}
        | ({"annotations": {"org.opencontainers.image.title": name}} if name else {})
        for name, data in files
    ]
    config = {"mediaType": "application/vnd.oci.empty.v1+json", **keep(b"{}")}
    kind = "application/vnd.oci.image.manifest.v1+json"
    manifest = {"schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers}
    listed = {"mediaType": kind, **keep(json.dumps({**manifest, **changes}).encode())}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [listed]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["model.onnx"], ""),
        (["../model.onnx"], "a file that would lie elsewhere"),
        (["/etc/model.onnx"], "a file that would lie elsewhere"),
        (["a\\..\\model.onnx"], "a file that would lie elsewhere"),
        (["model.onnx", "model.onnx"], "two files of one name"),
        (["a", "a/model.onnx"], "two files of one name"),
        (["a.onnx", "b.onnx"], "2 models in it"),
        (["labels.txt"], "no model in it"),
        (["", "model.onnx"], "a layer without a file's name"),
    ],
)
def test_artefacts_of_others(
    names: list[str], words: str, registry: str, project: Path, tmp_path: Path
) -> None:
    proto = Builder().model({"x": (1, 2)}, {"x": (1, 2)})
    data = proto.SerializeToString()
    layout = _layout(tmp_path / "layout", [(name, data) for name in names])
    name = f"{registry}/others/m{hashlib.sha256(str(names).encode()).hexdigest()[:8]}:1"
    copy = ["skopeo", "copy", "--quiet", "--dest-tls-verify=false", f"oci:{layout}"]
    subprocess.run([*copy, f"docker://{name}"], check=True)
    if not words:
        assert local_model(f"oci://{name}").read_bytes() == data
        return
    with pytest.raises((SourceError, UsageError), match=words):
        local_model(f"oci://{name}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": None}, "no artefact of files"),
        ({"manifests": []}, "no artefact of files"),
        ({"layers": [{}] * 2100}, "2100 files; at most 2048"),
        ({"layers": [1]}, "a layer without a file's name"),
        ({"layers": {"a": 1}}, "layers"),
    ],
)
def test_manifests_that_are_none(change: dict[str, Any], words: str) -> None:
    """As bytes: a registry takes none of them."""
    with pytest.raises(SourceError, match=words):
        oci.files_in(json.dumps(change).encode(), "oci://r/m")


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"digest": "sha256:../../x", "size": 1}, "no SHA-256"),
        ({"digest": "sha256:" + "0" * 64, "size": -1}, "no size"),
        ({"digest": "sha256:" + "0" * 64, "size": True}, "no size"),
        ({"digest": "sha256:" + "0" * 64, "size": 1 << 40}, "GB; at most"),
    ],
)
def test_layers_that_are_none(layer: dict[str, Any], words: str) -> None:
    notes = {"annotations": {"org.opencontainers.image.title": "model.onnx"}}
    raw = json.dumps({"layers": [{**layer, **notes}]}).encode()
    with pytest.raises(SourceError, match=words):
        oci.files_in(raw, "oci://r/m")
    for bad in (b"", b"[]", b"{", b"\xff", b"{}" + b" " * (1 << 20)):
        with pytest.raises(SourceError):
            oci.files_in(bad, "oci://r/m")


def test_bytes_that_are_others(
    registry: str,
    project: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a stand-in for skopeo that brings them: the real one refuses them itself."""
    address = _pushed(registry, project, capsys)
    real: Callable[..., Any] = oci.run_skopeo

    def lying(words: Any, where: str, timeout_s: float) -> Any:
        done = real(words, where, timeout_s)
        if words[0] == "copy":
            folder = Path(words[-1].removeprefix("dir:"))
            for blob in folder.iterdir():
                if len(blob.name) == 64:
                    blob.write_bytes(blob.read_bytes() + b"x")
        return done

    monkeypatch.setattr(oci, "run_skopeo", lying)
    with pytest.raises(SourceError, match="what was fetched is not what the artefact lists"):
        local_model(address)
    monkeypatch.setattr(oci, "run_skopeo", real)
    assert local_model(address).is_file()  # nothing of it was kept

"""hf://org/repo: the hub's own client, against a stand-in for the hub on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import edgepack
from edgepack.base.errors import UsageError
from edgepack.base.paths import set_cache_dir
from edgepack.cli import main
from edgepack.flow.project import load_project
from edgepack.model.errors import ExternalDataError, SourceError
from edgepack.model.sources import local_model, source_of
from edgepack.model.sources.record import RECORD, ModelSource
from tests.hub_client import use_hub_client
from tests.onnx_models import Builder
from tests.stand_in_hub import COMMIT, Hub, serve

LABELS = {str(number): f"class {number}" for number in range(12)}
PROCESSOR = {
    **{"do_resize": True, "size": {"height": 32, "width": 32}, "resample": 2},
    **{"do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.25] * 3},
}


def classifier() -> onnx.ModelProto:
    builder = Builder()
    pooled = builder.op("GlobalAveragePool", builder.conv("pixel_values", 3, 12))
    builder.op("Flatten", pooled, outputs=["logits"])
    return builder.model({"pixel_values": ("b", 3, "h", "w")}, {"logits": ("b", 12)})


def with_weights_in(location: str) -> tuple[bytes, bytes]:
    """The classifier with its largest weight in another file, as the exporters write it."""
    proto = classifier()
    tensor = max(proto.graph.initializer, key=lambda one: one.ByteSize())
    data = np.ascontiguousarray(numpy_helper.to_array(tensor)).tobytes()
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(len(data)))):
        tensor.external_data.add(key=key, value=value)
    return proto.SerializeToString(), data


WHOLE = classifier().SerializeToString()
SPLIT, WEIGHTS = with_weights_in("model.onnx_data")
# id2label as transformers writes it: keys are text, and json.dumps(sort_keys) puts 10 before 2.
SETTINGS = {
    "config.json": json.dumps({"id2label": LABELS}, sort_keys=True).encode(),
    "preprocessor_config.json": json.dumps(PROCESSOR).encode(),
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    use_hub_client()
    from huggingface_hub import constants

    repositories = {
        "org/vit": {
            "README.md": b"# ViT",
            **{"model.safetensors": b"x" * 1000, "onnx/model.onnx": SPLIT},
            **{"onnx/model.onnx_data": WEIGHTS, **SETTINGS},
        },
        "org/many": {"onnx/model.onnx": WHOLE, "onnx/model_int8.onnx": WHOLE, "b.tflite": b"x"},
        "org/torch": {"model.safetensors": b"x", "config.json": b"{}"},
        "evil/up": {"../../evil.onnx": WHOLE},
        "evil/absolute": {"/evil.onnx": WHOLE},
        "evil/weights": {"model.onnx": with_weights_in("../../secret")[0]},
        "evil/missing": {"model.onnx": SPLIT},
        "evil/changed": {"model.onnx": WHOLE, **SETTINGS},
        "evil/no-model": {"model.onnx": b"\xff" * 100},
    }
    set_cache_dir(tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    with serve(Hub(repositories)) as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE",
            running.address + "/{repo_id}/resolve/{revision}/{filename}",
        )  # fmt: skip
        yield running
    set_cache_dir(None)  # type: ignore[arg-type]


def test_init_takes_what_belongs_to_the_model(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "hf://org/vit", "--json"]) == 0
    keys = {one["key"]: one for one in json.loads(capsys.readouterr().out)["keys"]}
    assert not any(one["guess"] for one in keys.values())
    project = load_project(Path("edgepack.toml"))
    assert project.name == "vit"
    assert project.model == Path("vit/onnx/model.onnx")
    assert project.labels is not None
    assert project.labels.read_text().splitlines() == list(LABELS.values())
    assert keys["labels"]["why"] == "from config.json"
    assert project.preprocess is not None and project.preprocess.std == (0.25,) * 3
    assert source_of(project.model) == ModelSource(
        uri=f"hf://org/vit@{COMMIT}/onnx/model.onnx", name="org/vit", revision=COMMIT
    )
    # Neither the other weights nor notes of the client.
    files = {path.relative_to("vit").as_posix() for path in Path("vit").rglob("*")}
    wanted = {"config.json", "preprocessor_config.json", "onnx/model.onnx", "onnx/model.onnx_data"}
    assert files == {*wanted, "onnx", RECORD}
    assert set(hub.fetched) == wanted

    # A second time nothing is fetched; a model that was changed is none of theirs any more.
    hub.fetched.clear()
    assert main(["init", "hf://org/vit", "--overwrite"]) == 0
    assert not hub.fetched
    Path("vit/onnx/model.onnx_data").write_bytes(bytes(len(WEIGHTS)))
    assert source_of(project.model) is None
    assert main(["init", "hf://org/vit", "--overwrite"]) == UsageError.exit_code
    assert "there already" in capsys.readouterr().err
    assert Path("vit/onnx/model.onnx_data").read_bytes() == bytes(len(WEIGHTS))


def test_other_commands_keep_it_in_the_cache(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check", "hf://org/vit", "--shape", "pixel_values=1,3,32,32"]
    for _ in range(2):
        assert main(["--cache-dir", str(tmp_path / "cache"), *words]) == 0
    assert hub.fetched.count("onnx/model.onnx") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache"]
    model = local_model("hf://org/vit@v1.0/onnx")
    assert model.is_relative_to(tmp_path / "cache")
    assert load_project(None, {"model": model}).name == "vit"
    checked = edgepack.check("hf://org/vit", shapes={"pixel_values": (1, 3, 32, 32)})
    assert checked.outputs[0].shape == (1, 12)


@pytest.mark.parametrize(
    "name",
    ["org/vit", "org/vit@main", "org/vit@refs/pr/1", "org/vit@refs%2Fpr%2F1", f"org/vit@{COMMIT}",
     "org/vit/onnx", "org/vit/onnx/model.onnx", f"org/vit@{COMMIT}/onnx/model.onnx"],
)  # fmt: skip
def test_names(hub: Hub, name: str) -> None:
    model = local_model(f"hf://{name}")
    assert str(source_of(model)) == f"hf://org/vit@{COMMIT}/onnx/model.onnx"
    assert local_model(Path(f"hf://{name}")) == model


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("org/many", UsageError, "3 models in it.*hf://org/many/b.tflite, hf://org/many/onnx/mod"),
        ("org/many@v1.0/onnx", UsageError, "2 models.*hf://org/many@v1.0/onnx/model_int8.onnx"),
        ("org/torch", SourceError, "no model in it.*optimum-cli"),
        ("org/none", SourceError, "no such repository"),
        ("org/vit@none", SourceError, "no such revision"),
        ("org/vit/none.onnx", SourceError, "no model in it"),
        ("org", UsageError, "not a model of Hugging Face"),
        ("org/..", UsageError, "not a model of Hugging Face"),
        ("org/vit/../other/m.onnx", SourceError, "would lie elsewhere"),
    ],
)
def test_what_is_not_there(hub: Hub, name: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"(?s){words}"):
        local_model(f"hf://{name}")


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("evil/up", SourceError, "would lie elsewhere"),
        ("evil/absolute", SourceError, "would lie elsewhere"),
        ("evil/weights", ExternalDataError, "not below the model's folder"),
        ("evil/missing", SourceError, "weights are missing.*model.onnx_data"),
        ("evil/changed", SourceError, "not what the repository lists"),
        ("evil/no-model", SourceError, "not an ONNX model"),
    ],
)
def test_a_repository_of_somebody_else_s(
    hub: Hub, tmp_path: Path, name: str, error: type[Exception], words: str
) -> None:
    """Nothing lies outside of the folder, and of what is refused nothing stays."""
    (tmp_path / "secret").write_bytes(b"mine")
    hub.sent["model.onnx"] = WHOLE if name != "evil/changed" else WHOLE[:-1] + b"\x00"
    if name in ("evil/weights", "evil/missing", "evil/no-model"):
        hub.sent.clear()
    work = tmp_path / "work" / "below"
    work.mkdir(parents=True)
    with pytest.raises(error, match=f"(?s){words}"):
        local_model(f"hf://{name}", beside=work)
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert left - {"cache"} == {"secret", "work", "work/below"}


def test_a_pinned_file_that_is_kept_needs_no_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In our cache, or in that of the client, where transformers and others have brought it."""
    import huggingface_hub
    from huggingface_hub import constants

    name = f"hf://org/vit@{COMMIT}/onnx/model.onnx"
    first = local_model(name)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    files = ("onnx/model.onnx", "onnx/model.onnx_data", *SETTINGS)
    for file in files:
        path = huggingface_hub.hf_hub_download(
            "org/vit", file, revision=COMMIT, cache_dir=tmp_path / "hub"
        )
    for snapshot in (path, first):
        assert Path(snapshot).is_file()
    asked = list(hub.asked)
    assert local_model(name) == first
    copied = local_model(name, beside=tmp_path / "work")
    assert hub.asked == asked
    assert copied.read_bytes() == SPLIT
    assert copied.with_name("model.onnx_data").read_bytes() == WEIGHTS
    assert json.loads((copied.parents[1] / "config.json").read_bytes()) == {"id2label": LABELS}
    assert source_of(copied) == source_of(first)

    # What was changed there is refused; what is not all there is asked for.
    snapshot = tmp_path / "hub/models--org--vit/snapshots" / COMMIT
    (snapshot / "onnx/model.onnx_data").resolve().write_bytes(WEIGHTS[:-1] + b"x")
    with pytest.raises(SourceError, match=r"in the client's cache: onnx/model\.onnx_data"):
        local_model(name, beside=tmp_path / "again")
    (snapshot / "onnx/model.onnx_data").unlink()
    assert local_model(name, beside=tmp_path / "again").read_bytes() == SPLIT
    assert len(hub.asked) > len(asked)
    with pytest.raises(SourceError, match="no such file in the repository"):
        local_model(f"hf://org/vit@{COMMIT}/other.onnx")


def test_settings_that_are_too_large_are_said(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("edgepack.model.sources.hugging_face._MAX_BESIDE", 100)
    assert len(SETTINGS["config.json"]) > 100
    local_model("hf://org/vit", beside=Path.cwd())
    assert any("config.json is left out: 0 MB of settings" in text for text in caplog.messages)
    assert not Path("vit/config.json").exists()


def test_without_a_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(SourceError, match="cannot be reached") as caught:
        local_model("hf://org/vit")
    assert caught.value.hint is not None and "without a network" in caught.value.hint

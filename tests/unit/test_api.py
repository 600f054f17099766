"""The functions of `import edgepack`: what commands do, as Python has it."""

from __future__ import annotations

import io
import os
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np
import onnx
import pytest
from PIL import Image

import edgepack
from edgepack.base.arguments import in_words_of_arguments
from edgepack.base.errors import (
    ConfigError,
    EdgepackError,
    ModelError,
    NothingThereError,
    UsageError,
)
from edgepack.bundle.manifest import Tensor
from edgepack.flow import deployment
from edgepack.flow.arguments import project_from
from edgepack.flow.average_precision import Guess, Thing, average_precision
from edgepack.flow.evaluate import Evaluation
from edgepack.flow.evaluate_boxes import BoxEvaluation
from edgepack.flow.init import draft_project
from edgepack.flow.project import load_project
from tests.onnx_models import Builder, one_conv


def classifier(path: Path, shape: list[Any]) -> Path:
    """Three scores, which are the means of the three channels."""
    net = Builder()
    net.op("GlobalAveragePool", "image", outputs=["mean"])
    net.op("Flatten", "mean", outputs=["scores"])
    return net.save(path, {"image": shape}, {"scores": [1, 3]})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return classifier(tmp_path / "net.onnx", [1, 3, 8, 8])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder for each class, with two photos of its colour."""
    folder = tmp_path / "photos"
    for index, name in enumerate(("red", "green", "blue")):
        (folder / name).mkdir(parents=True)
        for number in range(2):
            pixels = np.full((8 + number, 8, 3), 10, np.uint8)
            pixels[:, :, 2 - index] = 250  # OpenCV's are BGR
            cv2.imwrite(str(folder / name / f"{number}.png"), pixels)
    return folder


def test_help_fits_two_screens() -> None:
    text = pydoc.plain(pydoc.render_doc(edgepack))
    assert len(text.splitlines()) <= 80
    for name in ("init", "check", "deploy", "connect", "package", "evaluate", "quantize",
                 "compare", "tune"):  # fmt: skip
        assert f"{name}(" in text
        assert len((getattr(edgepack, name).__doc__ or "").splitlines()) <= 25
        assert callable(getattr(edgepack, name))


def test_help_loads_nothing_heavy() -> None:
    code = "import pydoc, sys, edgepack; dir(edgepack); print('loaded:', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"numpy", "onnx", "tvm", "cv2", "paramiko"}


@pytest.mark.parametrize("kind", [str, Path])
def test_from_a_model_to_its_accuracy(
    kind: type, model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files by `str` and by `Path`, as they come."""
    labels = tmp_path / "labels.txt"
    labels.write_text("red\ngreen\nblue\n")
    out = tmp_path / "own.toml"
    image = kind(photos / "green" / "0.png")
    draft = edgepack.init(
        kind(model), out=kind(out), preset="zero-one", labels=kind(labels), image=image,
        expected="green", board="rasp3b",
    )  # fmt: skip
    assert draft.path == out
    assert {"key": "version", "value": 1}.items() <= draft.rows()[1].items()
    assert "zero-one" in draft._repr_html_()

    seen = edgepack.check(project=kind(out))
    seen.check_expected()
    assert seen.rows()[0]["label"] == "green"
    both = [kind(photos / name / "0.png") for name in ("red", "blue")]
    seen = edgepack.check(kind(model), both, preprocess="zero-one", labels=kind(labels))
    assert [one.top[0].label for one in seen.seen] == ["red", "blue"]
    assert [row["index"] for row in seen.rows() if row["score"] > 0.4] == [0, 2]
    assert "blue" in seen._repr_html_()

    found = edgepack.evaluate(project=kind(out), images=kind(photos))
    assert isinstance(found, Evaluation)
    assert found.to_dict()["reference"]["top1"] == 1.0
    rows = found.rows()
    assert len(rows) == 6
    assert all(row["expected"] == row["reference"] for row in rows)
    assert "green/0.png" in found._repr_html_()
    # What the steps take.
    assert edgepack.load_project(kind(out)).model == model
    assert edgepack.inspect_model(kind(model)).inputs[0].shape == (1, 3, 8, 8)
    assert edgepack.ModelSpec(path=kind(model)).path == model
    assert edgepack.SshOptions(identity=kind(model)).identity == model
    assert edgepack.RunRequest(image=kind(model)).image == model


def test_the_boxes_of_a_data_set_as_rows() -> None:
    thing = Thing(index=1, box=(0, 0, 4, 4), area=16)
    guess = Guess(index=1, score=0.9, box=(0, 0, 4, 4))
    found = BoxEvaluation(
        photos=1,
        reference=average_precision([[thing]], [[guess]], [1]),
        on_device=average_precision([[thing]], [[]], [1]),
        labels=("cat", "dog"),
        device="board",
    )
    (row,) = found.rows()
    assert row == {
        "class": "dog", "objects": 1, "ap50": pytest.approx(1), "ap": pytest.approx(1),
        "device_ap50": 0.0, "device_ap": 0.0,
    }  # fmt: skip
    assert "dog" in found._repr_html_()


@pytest.mark.parametrize("preset", ["torchvision-imagenet", "timm", "tf-imagenet", "zero-one"])
@pytest.mark.parametrize(
    "shape", [[1, 3, 224, 224], [1, 3, 299, 299], ["n", 3, 96, 64], [1, 1, 28, 28], [1, 64, 64, 3]]
)
def test_a_preset_is_what_init_makes_of_it(preset: str, shape: list[Any], tmp_path: Path) -> None:
    """One rule: the size of the input, its layout and its channels change it in both."""
    net = Builder()
    net.op("Identity", "image", outputs=["y"])
    path = net.save(tmp_path / "net.onnx", {"image": shape}, {"y": shape})
    out = tmp_path / "edgepack.toml"
    draft_project(path, out, preset=preset).write()
    by_init = load_project(out)
    by_api = project_from("deploy", path, preprocess=preset, settings={})
    assert by_api.preprocess == by_init.preprocess
    assert by_api.shapes == by_init.shapes


@pytest.mark.parametrize(
    ("call", "said", "hint"),
    [
        (lambda m: edgepack.deploy(m, device="virtual"), "no board given", "add board=NAME"),
        (lambda m: edgepack.deploy(m, board="rasp3b"), "no device given",
         'add device="user@address", or device'),
        (lambda m: edgepack.deploy(m, board="rasp3c", device="virtual"),
         "board: unknown board: rasp3c", "perhaps you meant 'rasp3b'"),
        (lambda _: edgepack.deploy("none.onnx", board="rasp3b", device="virtual"),
         "model: no such file: none.onnx", None),
        (lambda m: edgepack.check(m, preprocess="tim"), "preprocess: unknown preset: tim",
         "perhaps you meant 'timm'"),
        (lambda m: edgepack.check(m, labels="none.txt"), "labels: no such file: none.txt", None),
        (lambda m: edgepack.evaluate(m, preprocess="timm"), "images: not given", "a folder"),
        (lambda m: edgepack.quantize(m, "nowhere", preprocess="timm"),
         "images: no such folder: nowhere", None),
        (lambda m: edgepack.init(m, out=m), "is there already", "overwrite=True"),
        (lambda m: edgepack.package(m, board="rasp3b", format="zip"), "unknown format: zip", None),
        (lambda m: edgepack.package(m, board="rasp3b", format="android-lib"),
         "android-lib is part of an Android app", 'board="android-arm64"'),
        (lambda _: edgepack.connect("local"), "which deployed model?", "give name or root"),
    ],
)  # fmt: skip
def test_errors_speak_of_arguments(
    call: Any, said: str, hint: str | None, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EdgepackError) as error:
        call(str(model))
    assert said in error.value.message
    assert hint is None or hint in str(error.value.hint)
    assert "--" not in str(error.value).replace("`", " ` ").split("`")[0]


@pytest.mark.parametrize("name", ["check", "evaluate", "quantize", "tune", "package", "deploy"])
def test_an_argument_that_is_none_is_named(name: str, model: Path) -> None:
    with pytest.raises(
        TypeError, match=rf"{name}\(\) has no argument 'lables'; perhaps .*'labels'"
    ):
        getattr(edgepack, name)(model, lables="x.txt")


def test_a_wrong_table_is_an_error_of_preprocess(model: Path) -> None:
    with pytest.raises(ConfigError, match="preprocess: resise: unknown key"):
        edgepack.check(model, preprocess={"resise": 3})


def test_a_model_is_needed() -> None:
    with pytest.raises(UsageError, match="no model given"):
        edgepack.check()


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("add --board NAME (`edgepack boards --json` lists them)",
         "add board=NAME (`edgepack boards --json` lists them)"),
        ("give --project FILE, --name NAME or --root DIR",
         "give project=FILE, name=NAME or root=DIR"),
        ("--no-verify makes the bundle anyway", "verify=False makes the bundle anyway"),
        ("add --static, or take it", "add static=True, or take it"),
        ("--expected needs --image", "expected needs images"),
        ("--golden-input: cannot read x--y.npy", "golden_input: cannot read x--y.npy"),
        ("command line: no such file", "model: no such file"),
        ("or --device virtual; --device virtually", 'or device="virtual"; device virtually'),
        ("a -- b", "a -- b"),
    ],
)  # fmt: skip
def test_words_of_options_become_those_of_arguments(text: str, spoken: str) -> None:
    assert in_words_of_arguments(text) == spoken


def test_mistakes_in_python_are_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    path = one_conv(tmp_path / "net.onnx")
    with pytest.raises(edgepack.EdgepackError, match="unknown board: rasp9"):
        edgepack.init(path, board="rasp9")
    assert not Path("edgepack.toml").exists()
    with pytest.raises(UsageError, match=r"^expected needs image\n"):  # of init, which has one
        edgepack.init(path, expected="cat")
    with pytest.raises(TypeError, match="'imgae'; perhaps you meant 'images'"):
        edgepack.check(path, imgae="x.png")
    with pytest.raises(ConfigError) as needed:
        edgepack.check(path, images="x.png")
    assert "preprocess, a preset's name" in str(needed.value.hint)
    array: Any = np.zeros((8, 8, 3), np.uint8)
    for given in (array, [array]):
        with pytest.raises(UsageError, match="images: ndarray is no path"):
            edgepack.check(path, images=given)
    for function in (edgepack.evaluate, edgepack.quantize):
        with pytest.raises(UsageError, match="images: ndarray is no path"):
            function(path, images=array)
    deployed = edgepack.connect("local", name="nothing")
    with pytest.raises(NothingThereError, match="local: no release is current in edgepack/nothing"):
        deployed.run([np.zeros((1, 3, 8, 8), np.float32)])


def test_iterators_are_lists_and_bytes_are_no_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    deployed = edgepack.connect("local", name="nothing")
    monkeypatch.setattr(deployment.Deployment, "_run", lambda _self, data, *_: data)
    assert deployed.run(name for name in ("a.png", "b.png")) == ["a.png", "b.png"]
    assert deployed.run(iter(())) == deployed.run([]) == []
    with deployed.session() as session:
        monkeypatch.setattr(type(session), "run", lambda _self, photo, **_: photo)
        assert list(session.stream("a.png")) == ["a.png"]
        assert list(session.stream(Path(name) for name in "ab")) == [Path("a"), Path("b")]
    tensor = Tensor(name="x", dtype="float32", shape=(1, 2))
    for given, name in ((b"PNG", "bytes"), (io.BytesIO(), "BytesIO"), (None, "NoneType")):
        with pytest.raises(ModelError, match=rf"given is {name}, which is no array"):
            list(deployment._matched(given, [tensor]))
    with pytest.raises(ModelError, match=r"the array is float64 \(2,\)"):
        list(deployment._matched([1.0, 2.0], [tensor]))


def test_what_is_no_path_is_refused_by_its_argument(model: Path, photos: Path) -> None:
    photo = photos / "red" / "0.png"
    encoded = os.fsencode(model)
    wrong: list[tuple[Any, str, str]] = [
        (encoded, "bytes", "os.fsdecode"),
        (onnx.load(model), "ModelProto", "onnx.save(model"),
        (3, "int", "a str or a Path"),
        ([model], "list", "a str or a Path"),
    ]
    for value, kind, how in wrong:
        for function in (edgepack.check, edgepack.init, edgepack.package, edgepack.deploy):
            with pytest.raises(UsageError, match=f"^model: {kind} is no path") as caught:
                function(value)
            assert how in (caught.value.hint or "")
        with pytest.raises(UsageError, match=f"^path: {kind} is no path"):
            edgepack.inspect_model(value)
    absent: Any = None
    with pytest.raises(UsageError, match=r"^model: not given"):
        edgepack.init(absent)
    with pytest.raises(UsageError, match=r"^labels: int is no path"):
        edgepack.check(model, labels=3)
    with photo.open("rb") as file, Image.open(photo) as picture:
        for images in (file, [file], picture, io.BytesIO(photo.read_bytes()), 3, {"a": photo}):
            with pytest.raises(UsageError, match=r"^images: \w+ is no path"):
                edgepack.check(model, cast("Any", images), preprocess="torchvision-imagenet")


def test_photos_may_come_from_anything_that_gives_paths(model: Path, photos: Path) -> None:
    photo = photos / "red" / "0.png"
    several: Any = (Path(photo) for _ in range(2))
    for images, count in ((np.str_(photo), 1), ((photo, str(photo)), 2), (several, 2)):
        checked = edgepack.check(model, images, preprocess="torchvision-imagenet")
        assert len(checked.seen) == count

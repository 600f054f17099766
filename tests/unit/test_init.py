"""`edgepack init` and `check`: what models and the files beside them say becomes a project."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

import edgepack
from edgepack.base.errors import ConfigError, EdgepackError, UsageError
from edgepack.base.schemas import schema_text
from edgepack.cli import main
from edgepack.flow.check import check_project
from edgepack.flow.init import Draft, draft_project
from edgepack.flow.project import Project, load_project, read_labels
from edgepack.flow.reference import ExpectedClassError
from edgepack.preprocess.presets import PRESETS, fit_size
from edgepack.preprocess.spec import PreprocessSpec, Resize
from tests.onnx_models import Builder
from tests.schemas import problems

ROOT = Path(__file__).parents[2]
IMAGE = (1, 3, 224, 224)


def model(
    path: Path,
    inputs: Mapping[str, Sequence[int | str]],
    classes: int = 10,
    *,
    dtype: int = TensorProto.FLOAT,
    last: str = "",
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Each class's score is the mean of the first input, the same for all, plus its number."""
    first = next(iter(inputs))
    nodes = [
        helper.make_node("Cast", [first], ["float"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["float"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Reshape", ["mean", "column"], ["flat"]),
        helper.make_node("Add", ["flat", "numbers"], ["scores"]),
    ]
    out = "scores"
    if last:
        nodes.append(helper.make_node(last, ["scores"], ["end"]))
        out = "end"
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, (1, classes))],
        [
            helper.make_tensor("column", TensorProto.INT64, [2], [-1, 1]),
            helper.make_tensor("numbers", TensorProto.FLOAT, [1, classes], range(classes)),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    helper.set_model_props(proto, dict(metadata or {}))
    onnx.save(proto, path)
    return path


def drafted(path: Path, **options: Any) -> tuple[Draft, Project]:
    """The draft, written, and what the other commands read of it."""
    draft = draft_project(path, path.parent / "edgepack.toml", **options)
    draft.write()
    return draft, load_project(draft.path)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_whole_table(name: str) -> None:
    spec = PreprocessSpec.from_table({"preset": name}, file="x")
    assert spec.size is not None
    assert spec == PreprocessSpec.from_table(PRESETS[name].table, file="x")
    for height, width in ((224, 224), (96, 96), (299, 299), (48, 320)):
        table = {"preset": name, **fit_size(PRESETS[name].table, height, width)}
        assert PreprocessSpec.from_table(table, file="x").size == (height, width)


def test_what_presets_make_of_a_pixel() -> None:
    """By the formulas of their sources: (p / 255 - mean) / std, p / 127.5 - 1, BGR - mean."""
    photo = np.full((300, 300, 3), (10, 128, 250), np.uint8)  # as OpenCV reads: B, G, R

    def values(name: str) -> list[float]:
        spec = PreprocessSpec.from_table({"preset": name}, file="x")
        return [float(v) for v in spec.tensor(spec.resized(photo))[0, :, 100, 100]]

    imagenet = [
        (250 / 255 - 0.485) / 0.229,
        (128 / 255 - 0.456) / 0.224,
        (10 / 255 - 0.406) / 0.225,
    ]
    assert values("torchvision-imagenet") == pytest.approx(imagenet, abs=1e-5)
    assert values("timm") == pytest.approx(imagenet, abs=1e-5)
    assert values("tf-imagenet") == pytest.approx([v / 127.5 - 1 for v in (250, 128, 10)], abs=1e-5)
    assert values("caffe") == pytest.approx([10 - 103.939, 128 - 116.779, 250 - 123.68], abs=1e-4)
    assert values("zero-one") == pytest.approx([250 / 255, 128 / 255, 10 / 255], abs=1e-6)


def test_keys_beside_a_preset() -> None:
    spec = PreprocessSpec.from_table(
        {"preset": "timm", "interpolation": "linear", "color": "bgr"}, file="x"
    )
    assert (spec.interpolation, spec.color, spec.crop) == ("linear", "bgr", (224, 224))
    whole = {"mode": "exact", "height": 32, "width": 64}
    spec = PreprocessSpec.from_table({"preset": "timm", "resize": whole}, file="x")
    assert (spec.resize, spec.crop) == (Resize(mode="exact", height=32, width=64), None)
    gray = PreprocessSpec.from_table({"preset": "timm", "color": "gray"}, file="x")
    assert gray.mean == (0.0,)
    with pytest.raises(ConfigError, match=r"t\.toml: preprocess\.preset: unknown value 'tim'") as e:
        PreprocessSpec.from_table({"preset": "tim"}, file="t.toml")
    assert e.value.hint == "perhaps you meant 'timm'"
    with pytest.raises(ConfigError, match=r"preprocess\.mean: .* 1 values for 3 channels"):
        PreprocessSpec.from_table({"preset": "timm", "mean": [0.5]}, file="t.toml")


def test_the_size_of_another_input() -> None:
    """timm: scale_size = int(math.floor(img_size / crop_pct))."""
    for size in (160, 192, 288, 299):
        resize = fit_size(PRESETS["timm"].table, size, size)["resize"]
        assert resize == {"mode": "shortest", "size": int(size / 0.875)}
    assert fit_size(PRESETS["timm"].table, 224, 224) == {}


def ramp(path: Path, height: int = 600, width: int = 800) -> Path:
    """A photo that gets brighter."""
    pixels = np.add.outer(np.arange(height), np.arange(width)) // 6
    cv2.imwrite(str(path), pixels[:, :, None].repeat(3, 2))
    return path


def test_photos_are_scaled_as_they_are_decoded_if_the_class_stays(tmp_path: Path) -> None:
    net = model(tmp_path / "net.onnx", {"image": IMAGE})  # the last class, whatever it sees
    draft, project = drafted(net, image=ramp(tmp_path / "photo.jpg"))
    assert project.preprocess is not None
    assert project.preprocess.decode == "scaled"
    assert 'decode = "scaled"  # photo.jpg is seen as the same class (9)' in draft.text
    # Where it makes no difference there is nothing to say.
    small = ramp(tmp_path / "small.jpg", 300, 300)
    for image in (small, ramp(tmp_path / "photo.png"), None):
        draft, _ = drafted(net, image=image, overwrite=True)
        assert "decode" not in draft.text


def test_photos_are_decoded_whole_if_the_class_would_be_another(tmp_path: Path) -> None:
    photo = ramp(tmp_path / "photo.jpg")
    ways = [
        PreprocessSpec.from_table({"preset": "zero-one", "decode": decode}, file="x")
        for decode in ("full", "scaled")
    ]
    middle = sum(float(way.load(photo).mean()) for way in ways) / 2
    # Two classes: whether the mean is above that.
    net = model(tmp_path / "net.onnx", {"image": IMAGE}, classes=2)
    proto = onnx.load(net)
    *_, column, numbers = proto.graph.node
    column.output[0] = "whole"
    numbers.CopyFrom(helper.make_node("Mul", ["over", "signs"], ["scores"]))
    proto.graph.node.insert(3, helper.make_node("Sub", ["whole", "middle"], ["over"]))
    proto.graph.initializer.extend(
        [
            helper.make_tensor("signs", TensorProto.FLOAT, [1, 2], [1, -1]),
            helper.make_tensor("middle", TensorProto.FLOAT, [1, 1], [middle]),
        ]
    )
    onnx.save(proto, net)
    draft, _ = drafted(net, image=photo, preset="zero-one")
    assert "decode" not in draft.text


def test_a_classifier_of_which_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("".join(f"class {i}\n" for i in range(10)))
    draft, project = drafted(model(tmp_path / "net.onnx", {"image": ("n", 3, 299, 299)}))
    assert project.shapes == {"image": (1, 3, 299, 299)}
    assert project.labels == tmp_path / "labels.txt"
    assert project.scores == "softmax"
    assert project.preprocess is not None
    assert (project.preprocess.size, project.preprocess.interpolation) == (
        (299, 299),
        "pil-bilinear",
    )
    assert [line.key for line in draft.lines if line.guessed] == ["preset"]
    assert "# a guess" in draft.text
    assert draft.open


def test_a_project_begins_with_a_version(tmp_path: Path) -> None:
    """Without one, the first signed release after it could not be told from those before."""
    out = tmp_path / "edgepack.toml"
    draft_project(model(tmp_path / "m.onnx", {"x": IMAGE}), out).write()
    assert load_project(out).version == 1
    assert load_project(out).origins["version"] == str(out)


def test_a_preset_is_no_guess(tmp_path: Path) -> None:
    draft, project = drafted(model(tmp_path / "net.onnx", {"image": IMAGE}), preset="timm")
    assert not draft.open
    assert "guess" not in draft.text
    assert project.preprocess == PreprocessSpec.from_table({"preset": "timm"}, file="x")


@pytest.mark.parametrize(
    ("last", "scores"), [("Softmax", "raw"), ("Sigmoid", "raw"), ("", "softmax")]
)
def test_whether_scores_need_a_softmax(tmp_path: Path, last: str, scores: str) -> None:
    _, project = drafted(model(tmp_path / "net.onnx", {"image": IMAGE}, last=last))
    assert project.scores == scores


@pytest.mark.parametrize("is_scaled", [True, False])
def test_a_softmax_that_is_spelled_out(tmp_path: Path, is_scaled: bool) -> None:
    """exp(x) / sum(exp(x)), as older exporters of Keras write it."""
    b = Builder()
    weights = b.const(np.eye(16, 5, dtype=np.float32))
    powers = b.op("Exp", b.op("MatMul", "row", weights))
    total = (
        b.op("ReduceSum", powers, b.const([1]), keepdims=1) if is_scaled else b.const([2.0], "f")
    )
    b.op("Div", powers, total, outputs=["kinds"])
    file = b.save(tmp_path / "net.onnx", {"row": ["many", 16]}, {"kinds": ["many", 5]})
    draft, project = drafted(file)
    line = next(line for line in draft.lines if line.key == "scores")
    assert (project.scores, line.why) == (
        ("raw", "they add up to 1") if is_scaled else ("softmax", "the model ends in Div: logits")
    )


@pytest.mark.parametrize(
    ("last", "options", "numbers_only"),
    [
        ("Transpose", {}, True),
        ("Softmax", {}, False),
        ("Transpose", {"labels": Path("points.txt")}, False),
    ],
)
def test_vectors_of_which_none_is_known_to_be_scores(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    last: str,
    options: dict[str, Any],
    numbers_only: bool,
) -> None:
    """Landmarks, and whether there is a face: an index of a landmark is no class."""
    monkeypatch.chdir(tmp_path)
    Path("points.txt").write_text("".join(f"point {number}\n" for number in range(8)))
    b = Builder()
    pooled = b.op("Flatten", b.op("GlobalAveragePool", b.conv("photo", 3, 8)))
    ends = {"perm": [0, 1]} if last == "Transpose" else {}
    b.op(last, b.op("Gemm", pooled, b.weight(8, 8)), outputs=["points"], **ends)
    b.op("Gemm", pooled, b.weight(8, 1), outputs=["is_face"])
    outputs = {"points": [1, 8], "is_face": [1, 1]}
    file = b.save(tmp_path / "face.onnx", {"photo": [1, 3, 32, 32]}, outputs)
    draft, project = drafted(file, **options)
    kinds = [line.value for line in draft.lines if line.key == "kind"]
    assert kinds == ["tensors"] * numbers_only
    assert (project.postprocess is not None) == numbers_only
    assert draft.tells_classes != numbers_only


def test_a_value_for_each_value_of_an_input_is_no_class(tmp_path: Path) -> None:
    """A noise suppressor's mask: its shape is the spectrum's."""
    b = Builder()
    b.op("Sigmoid", "spectrum", outputs=["mask"])
    shape: list[int | str | None] = [1, 1, 257]
    draft, _ = drafted(b.save(tmp_path / "m.onnx", {"spectrum": shape}, {"mask": shape}))
    assert not draft.tells_classes
    assert [line.value for line in draft.lines if line.key == "kind"] == ["tensors"]


def test_pixels_as_they_are_in_the_order_of_tensorflow(tmp_path: Path) -> None:
    path = model(tmp_path / "net.onnx", {"image": (1, 96, 96, 3)}, dtype=TensorProto.UINT8)
    _, project = drafted(path)
    spec = project.preprocess
    assert spec is not None
    assert (spec.dtype, spec.layout, spec.size) == ("uint8", "NHWC", (96, 96))


def test_gray_images(tmp_path: Path) -> None:
    _, project = drafted(model(tmp_path / "net.onnx", {"image": (1, 1, 28, 28)}))
    spec = project.preprocess
    assert spec is not None
    assert (spec.color, spec.size, spec.channels) == ("gray", (28, 28), 1)


@pytest.mark.parametrize(
    ("mode", "channels", "accept"),
    [
        *(("L", 3, ("gray",)), ("LA", 3, ("alpha", "gray")), ("RGBA", 3, ("alpha",))),
        *(("RGB", 3, ()), ("L", 1, ()), ("LA", 1, ("alpha",)), ("I;16", 3, ())),
    ],
)
def test_a_photo_is_taken_as_it_comes(
    mode: str, channels: int, accept: tuple[str, ...], tmp_path: Path
) -> None:
    """A page that was scanned in gray, a screenshot: more of the kind will come."""
    photo = tmp_path / "page.png"
    Image.new(mode, (40, 30)).save(photo)
    net = model(tmp_path / "net.onnx", {"image": (1, channels, 8, 8)})
    draft, project = drafted(net, image=photo)
    assert project.preprocess is not None
    assert project.preprocess.accept == accept
    told = {line.key: line.why for line in draft.lines}
    assert ("page.png" in told.get("accept", "")) == bool(accept)
    if mode != "I;16":
        assert main(["check", "--project", str(draft.path)]) == 0


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "is_rate"),
    [
        ("sr", (), TensorProto.INT64, True),
        ("sample_rate", (1,), TensorProto.INT32, True),
        ("SamplingRate", (), TensorProto.INT64, True),
        ("sr", (4,), TensorProto.INT64, False),
        ("sr", (1,), TensorProto.FLOAT, False),
        ("steps", (), TensorProto.INT64, False),
    ],
)
def test_a_sample_rate_is_a_constant(
    name: str, shape: tuple[int, ...], dtype: int, is_rate: bool, tmp_path: Path
) -> None:
    """As in speech detectors, whose window follows from it."""
    b = Builder()
    rate = b.op("ReduceMax", b.op("Cast", name, to=TensorProto.FLOAT), keepdims=0)
    b.op("Mul", b.op("ReduceMean", "sound", axes=[1], keepdims=0), rate, outputs=["y"])
    proto = b.model({"sound": [1, 512], name: shape}, {"y": [1]}, dtypes={name: dtype}, opset=17)
    onnx.save(proto, tmp_path / "net.onnx")
    draft, project = drafted(tmp_path / "net.onnx")
    assert project.constants == ({name: 16000} if is_rate else {})
    assert ("at what rate is the sound sampled? (see [set])" in draft.open) == is_rate


def test_what_ultralytics_writes(tmp_path: Path) -> None:
    path = model(
        tmp_path / "yolo.onnx",
        {"images": ("batch", 3, "height", "width")},
        2,
        metadata={
            "author": "Ultralytics",
            "task": "detect",
            "stride": "32",
            "imgsz": "[320, 480]",
            "names": "{0: 'per\\nson', 1: 'bicycle'}",
        },
    )
    draft, project = drafted(path)
    assert not any(line.guessed for line in draft.lines)
    assert project.shapes == {"images": (1, 3, 320, 480)}
    assert project.preprocess is not None
    assert project.preprocess.resize == Resize(mode="letterbox", height=320, width=480)
    assert (tmp_path / "labels.txt").read_text() == "per son\nbicycle\n"
    # What is there already is kept.
    (tmp_path / "labels.txt").write_text("mine\n")
    again, _ = drafted(path, overwrite=True)
    assert again.labels is not None
    assert again.labels[0].name == "yolo-labels.txt"
    assert (tmp_path / "labels.txt").read_text() == "mine\n"


LABELS = [f"class {i}" for i in range(10)]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("names", json.dumps(LABELS)),
        ("labels", str(LABELS)),
        ("classes", json.dumps({str(i): label for i, label in enumerate(LABELS)})),
        ("class_names", str(dict(enumerate(LABELS)))),
        ("Labels", json.dumps({label: i for i, label in enumerate(LABELS)})),
        ("labels", "\n".join(LABELS) + "\n"),
        ("names", ", ".join(f"'{label}'" for label in LABELS)),
        ("id2label", json.dumps({str(i): label for i, label in enumerate(LABELS)})),
        ("class_to_idx", str({label: i for i, label in enumerate(LABELS)})),
        (
            "categories",
            json.dumps(
                [{"id": 3 * i, "name": label} for i, label in reversed([*enumerate(LABELS)])]
            ),
        ),
        ("class_names", ",".join(LABELS)),
        ("names", json.dumps(", ".join(LABELS))),
        ("names", repr(", ".join(LABELS))),
        ("names", json.dumps(json.dumps(LABELS))),
        ("labels", "; ".join(LABELS)),
        ("labels", "|".join(LABELS)),
        ("labels", "\ufeff" + "\r\n".join(LABELS) + "\r\n"),
        ("labels", "\n".join(f"{i} {label}" for i, label in enumerate(LABELS))),
        ("labels", "\n".join(f"{i}: {label}" for i, label in enumerate(LABELS, start=1))),
        ("Class-Names", json.dumps(LABELS)),
        ("model.labels", json.dumps([{"label": label} for label in LABELS])),
        ("target_names", str(np.array(LABELS))),
        ("config", json.dumps({"id2label": dict(enumerate(LABELS)), "epochs": 3})),
        ("meta", json.dumps({"data": {"class_list": LABELS}})),
    ],
)
def test_labels_in_the_metadata(tmp_path: Path, key: str, text: str) -> None:
    draft, project = drafted(model(tmp_path / "m.onnx", {"x": IMAGE}, metadata={key: text}))
    assert project.labels is not None
    assert project.labels.read_text().splitlines() == LABELS
    assert "from the model's metadata" in draft.text


@pytest.mark.parametrize("count", [9, 10, 11])
def test_labels_that_only_spaces_part_are_one_for_each_class(tmp_path: Path, count: int) -> None:
    words = [f"kind{i}" for i in range(count)]
    path = model(tmp_path / "m.onnx", {"x": IMAGE}, metadata={"labels": " ".join(words)})
    _, project = drafted(path)
    if count == len(LABELS):
        assert project.labels is not None
        assert project.labels.read_text().split() == words
    else:
        assert project.labels is None


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("classes", "ten, as in the paper"),
        (
            "categories",
            json.dumps([{"id": i, "name": label} for i, label in enumerate(LABELS[:9])]),
        ),
        ("categories", json.dumps([{"id": 1, "name": label} for label in LABELS])),
        ("categories", json.dumps([{"id": str(i), "name": ""} for i in range(10)])),
        ("labels", ",".join("x" * 100 for _ in LABELS)),
        ("labels", ";;;;;;;;;"),
        ("labels", json.dumps("ten, as in the paper")),
        ("config", json.dumps({str(i): label for i, label in enumerate(LABELS)})),
        ("config", json.dumps({"note": LABELS})),
    ],
)
def test_what_is_no_list_of_labels(tmp_path: Path, key: str, text: str) -> None:
    _, project = drafted(model(tmp_path / "m.onnx", {"x": IMAGE}, metadata={key: text}))
    assert project.labels is None


_PBTXT = "".join(f'item {{ id: {i} name: "{label}" }}\n' for i, label in enumerate(LABELS, 1))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("labels.txt", "\n".join(f"{i} {label}" for i, label in enumerate(LABELS))),
        ("labels.txt", "\n".join(LABELS) + "\n\n\n"),
        ("Labels.txt", "\r\n".join(LABELS)),
        ("m.names", "\n".join(LABELS)),
        ("coco.names", "\n".join(LABELS)),
        ("labels.json", json.dumps(LABELS)),
        ("class_indices.json", json.dumps({label: i for i, label in enumerate(LABELS)})),
        ("metadata.json", json.dumps({"labels": LABELS, "imageSize": 224})),
        ("data.yaml", "nc: 10\nnames:\n" + "".join(f"- {label}\n" for label in LABELS)),
        ("labels.csv", "id,name\n" + "".join(f"{i},{x}\n" for i, x in enumerate(LABELS))),
        ("label_map.pbtxt", _PBTXT),
        # Keras and torchserve have ImageNet's own names of classes, too.
        (
            "imagenet_class_index.json",
            json.dumps({str(i): [f"n{i:08}", label] for i, label in enumerate(LABELS)}),
        ),
        ("labels.json", json.dumps({str(i): {"name": x} for i, x in enumerate(LABELS)})),
        ("labels.json", json.dumps({x: {"id": i} for i, x in enumerate(LABELS)})),
        ("labels.json", json.dumps({x: str(i) for i, x in enumerate(LABELS)})),
        ("labels.json", json.dumps({str(i): {"id": i, "name": x} for i, x in enumerate(LABELS)})),
        ("labels.json", json.dumps([[i, x] for i, x in enumerate(LABELS)])),
        ("labels.json", json.dumps([[x, i] for i, x in enumerate(LABELS)])),
        ("labels.json", json.dumps({str(i): x for i, x in enumerate(LABELS, 1)})),
        ("labels.json", json.dumps({f"LABEL_{i}": x for i, x in reversed([*enumerate(LABELS)])})),
        ("labels.json", "".join(f'{{"id": {i}, "name": "{x}"}}\n' for i, x in enumerate(LABELS))),
        ("labels.json", "".join(f'"{x}"\n' for x in LABELS)),
        ("metadata.json", json.dumps({"model": {"outputs": {"of": {"displayNames": LABELS}}}})),
    ],
)
@pytest.mark.parametrize("given", [False, True])
def test_labels_beside(tmp_path: Path, file: str, text: str, given: bool) -> None:
    """As Teachable Machine, darknet, Keras, YOLO and TensorFlow write them."""
    path = model(tmp_path / "m.onnx", {"x": IMAGE})
    beside = tmp_path / file
    if given:
        (tmp_path / "other").mkdir()
        beside = tmp_path / "other" / file
    beside.write_text(text, newline="")
    _, project = drafted(path, labels=beside if given else None)
    assert project.labels is not None
    assert read_labels(project.labels) == tuple(LABELS)
    assert beside.read_text() == text.replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("m.json", json.dumps({f"setting {i}": i for i in range(10)})),
        ("metadata.json", json.dumps(LABELS[:9])),
        ("labels.json", "{"),
        ("m.txt", "line\n" * 9),
        ("class_names.txt", "a\n\nb\n"),
        ("data.yaml", "a: [&x 1, *x]"),
        ("label_map.pbtxt", "item { id: 1 }"),
        ("labels.csv", "name\n"),
    ],
)
def test_files_beside_that_list_no_labels(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text)
    _, project = drafted(model(tmp_path / "m.onnx", {"x": IMAGE}))
    assert project.labels is None


@pytest.mark.parametrize("turn", [int, lambda i: str(9 - i)])
def test_digits_are_names(tmp_path: Path, turn: Callable[[int], int | str]) -> None:
    """As folders of digits give them to torchvision and Keras."""
    table = {str(i): turn(i) for i in range(10)}
    (tmp_path / "class_to_idx.json").write_text(json.dumps(table))
    _, project = drafted(model(tmp_path / "m.onnx", {"x": IMAGE}))
    assert project.labels is not None
    assert read_labels(project.labels) == tuple(str(turn(i)) for i in range(10))


@pytest.mark.parametrize(
    ("file", "text", "due"),
    [
        ("labels.json", json.dumps(LABELS[:9]), "labels.json lists 9"),
        ("classes.txt", "line\n" * 9, "classes.txt lists 9"),
        ("labels.json", json.dumps({"a": {"of": [1]}}), "none in a form that is known"),
        (
            "labels.json",
            json.dumps({str(2 * i): x for i, x in enumerate(LABELS)}),
            "none in a form",
        ),
        ("labels.json", json.dumps([[i // 2, x] for i, x in enumerate(LABELS)]), "lists 5"),
        ("metadata.json", json.dumps(LABELS[:9]), ""),
    ],
)
def test_labels_that_are_not_taken_are_asked_about(
    tmp_path: Path, file: str, text: str, due: str
) -> None:
    path = model(tmp_path / "m.onnx", {"x": IMAGE})
    (tmp_path / file).write_text(text)
    draft, _ = drafted(path)
    found = [question for question in draft.open if "classes called?" in question]
    assert len(found) == bool(due)
    assert all(due in question for question in found)
    if "none in" in due:
        with pytest.raises(ConfigError, match="no list of classes found in it"):
            draft_project(path, tmp_path / "b.toml", labels=tmp_path / file)


def test_mean_and_std_in_a_table(tmp_path: Path) -> None:
    said = {"normalization": json.dumps({"means": [104, 117, 123], "stds": [1, 1, 1]})}
    said["Color-Order"] = "BGR"
    _, project = drafted(model(tmp_path / "m.onnx", {"x": IMAGE}, metadata=said))
    spec = project.preprocess
    assert spec is not None
    assert (spec.color, spec.mean, spec.std) == ("bgr", (104, 117, 123), (1, 1, 1))


@pytest.mark.parametrize(
    ("mean", "std", "scale"),
    [
        ("[0.5, 0.25, 0.125]", "[0.5, 0.5, 0.25]", 1 / 255),
        ("123.675, 116.28, 103.53", "58.395, 57.12, 57.375", 1.0),
        ("127.5", "127.5", 1.0),
        ("0", "255", 1.0),
        ("(0.5,)", "[0.5]", 1 / 255),
        ("123.675 116.28 103.53", "58.395 57.12 57.375", 1.0),
    ],
)
@pytest.mark.parametrize("prefix", ["", "image_", "pixel_", "Normalize."])
def test_mean_and_std_in_the_metadata(
    tmp_path: Path, prefix: str, mean: str, std: str, scale: float
) -> None:
    said = {f"{prefix}mean": mean, f"{prefix}std": std}
    draft, project = drafted(model(tmp_path / "m.onnx", {"x": IMAGE}, metadata=said))
    spec = project.preprocess
    assert spec is not None
    assert spec.scale == pytest.approx(scale)
    assert len(spec.mean) == len(spec.std) == 3
    assert (spec.mean[0], spec.std[0]) == (
        pytest.approx(float(re.findall(r"[\d.]+", mean)[0])),
        pytest.approx(float(re.findall(r"[\d.]+", std)[0])),
    )
    # The rest is a guess, as before.
    assert spec.crop == (224, 224)
    assert [line.key for line in draft.lines if line.guessed] == ["preset"]
    _, gray = drafted(
        model(tmp_path / "g.onnx", {"x": (1, 1, 28, 28)}, metadata=said), overwrite=True
    )
    assert gray.preprocess is not None
    assert gray.preprocess.mean == ((float(mean.strip("(,)[]")),) if len(mean) < 8 else (0.0,))


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        ("[0, 0, 0]", "[1, 1, 1]"),  # of pixels from 0 to 255, or from 0 to 1
        ("[0.5, 0.5]", "[0.5, 0.5]"),
        ("[0.5, 0.5, 0.5]", "[0.5, 0, 0.5]"),
        ("[NaN, 0, 0]", "[1, 2, 3]"),
        ("[1e99, 0, 0]", "[1, 2, 3]"),
        ("'a'", "[1, 2, 3]"),
        ("[true, 0, 0]", "[1, 2, 3]"),
        ("[" * 5000, "[1, 2, 3]"),
    ],
)
def test_mean_and_std_that_say_nothing(tmp_path: Path, mean: str, std: str) -> None:
    plain = model(tmp_path / "plain.onnx", {"x": IMAGE})
    _, project = drafted(plain)
    said = model(tmp_path / "m.onnx", {"x": IMAGE}, metadata={"mean": mean, "std": std})
    _, other = drafted(said, overwrite=True)
    assert other.preprocess == project.preprocess


def test_labels_in_the_metadata_and_settings_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"size": 224}))
    path = model(tmp_path / "m.onnx", {"x": IMAGE}, metadata={"names": json.dumps(LABELS)})
    draft, project = drafted(path)
    assert project.labels is not None
    assert not any(line.guessed for line in draft.lines)


def test_what_hugging_face_writes(tmp_path: Path) -> None:
    """A ViT's files; in its repositories the model lies a folder further down."""
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "do_resize": True,
                "size": {"height": 224, "width": 224},
                "resample": 2,
                "do_normalize": True,
                "image_mean": [0.5, 0.5, 0.5],
                "image_std": [0.5, 0.5, 0.5],
            }
        )
    )
    labels = {str(i): f"class {i}" for i in range(10)}
    (tmp_path / "config.json").write_text(json.dumps({"id2label": labels}))
    (tmp_path / "onnx").mkdir()
    path = model(tmp_path / "onnx/model.onnx", {"pixel_values": ("b", 3, "h", "w")})
    draft, project = drafted(path)
    assert project.shapes == {"pixel_values": IMAGE}
    assert project.preprocess is not None
    want = {
        **{"color": "rgb", "scale": 1 / 255, "mean": [0.5] * 3, "std": [0.5] * 3},
        "interpolation": "pil-bilinear",
        "resize": {"mode": "exact", "height": 224, "width": 224},
    }
    assert project.preprocess == PreprocessSpec.from_table(want, file="x")
    assert not any(line.guessed for line in draft.lines)
    assert project.labels is not None
    assert len(project.labels.read_text().splitlines()) == 10


def test_hugging_face_s_centre_crop(tmp_path: Path) -> None:
    """CLIP's: the shorter edge to 224, bicubic, the centre of it."""
    settings = {
        **{"do_center_crop": True, "crop_size": {"height": 224, "width": 224}},
        **{"do_resize": True, "size": {"shortest_edge": 256}, "resample": 3},
        **{"do_normalize": True, "image_mean": [0.4] * 3, "image_std": [0.3] * 3},
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    _, project = drafted(model(tmp_path / "m.onnx", {"pixel_values": IMAGE}))
    spec = project.preprocess
    assert spec is not None
    assert spec.resize == Resize(mode="shortest", height=256, width=256)
    assert (spec.crop, spec.interpolation, spec.mean[0]) == ((224, 224), "pil-bicubic", 0.4)


def test_what_timm_writes(tmp_path: Path) -> None:
    config = {
        "architecture": "mobilenetv4_conv_small",
        "pretrained_cfg": {
            **{"input_size": [3, 224, 224], "interpolation": "bicubic", "crop_pct": 0.95},
            **{"crop_mode": "center", "mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7]},
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    _, project = drafted(model(tmp_path / "m.onnx", {"x": ("b", 3, 256, 256)}))
    spec = project.preprocess
    assert spec is not None
    assert spec.crop == (256, 256)
    assert spec.resize == Resize(mode="shortest", height=269, width=269)  # 256 / 0.95
    assert (spec.mean, spec.std) == ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))


@pytest.mark.parametrize("key", ["labels", "names", "classes"])
@pytest.mark.parametrize(
    "text", ["[1, 2, 3]", '["a", ["b"]]', '{"0": "a", "2": "b"}', '"abc"', "[" * 5000, '["a", ""]']
)
def test_labels_that_make_no_sense(tmp_path: Path, key: str, text: str) -> None:
    draft, _ = drafted(model(tmp_path / "m.onnx", {"x": IMAGE}, 3, metadata={key: text}))
    assert draft.labels is None


HOSTILE = ["[" * 5000, "{" * 5000, "{0: 'x'", "{1: 'x'}", "{0: ['y']}", "9" * 100_000, "__import__"]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_metadata_that_makes_no_sense(tmp_path: Path, text: str) -> None:
    said = {"author": "Ultralytics", "names": text, "imgsz": text}
    draft, project = drafted(model(tmp_path / "m.onnx", {"x": ("b", 3, "h", "w")}, metadata=said))
    assert project.shapes == {"x": (1, 3, 640, 640)}
    assert draft.labels is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "[" * 100_000, '{"input_size": [3, "a", 1]}', "\x00"]
)
def test_settings_that_make_no_sense(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    path = model(tmp_path / "m.onnx", {"x": IMAGE})
    with pytest.raises(ConfigError, match=r"config\.json"):
        draft_project(path, tmp_path / "edgepack.toml")
    assert not (tmp_path / "edgepack.toml").exists()


@pytest.mark.parametrize(
    "values",
    [
        {"size": "x", "crop_size": [1], "resample": "?", "image_mean": "m", "rescale_factor": None},
        {
            "size": {"height": -1, "width": 10**9},
            "do_normalize": True,
            "image_mean": [1, "2", None],
        },
        {"size": None, "crop_pct": True, "do_center_crop": 3},
    ],
)
def test_settings_of_other_kinds_are_passed_over(tmp_path: Path, values: dict[str, Any]) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values))
    path = model(tmp_path / "m.onnx", {"x": IMAGE})
    try:
        drafted(path)
    except EdgepackError as error:
        assert error.message
        assert not (tmp_path / "edgepack.toml").exists()


def test_inputs_that_are_no_photos(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", {"tokens": ("batch", "length", 8, 2)})
    draft, project = drafted(path)
    assert project.preprocess is None
    assert "tokens = [1, 8, 8, 2]  # a guess: nothing tells axis 1\n" in draft.text
    assert project.shapes == {"tokens": (1, 8, 8, 2)}
    assert draft.open == ("what shape has 'tokens'? (see [shapes])",)
    (tmp_path / "edgepack.toml").unlink()
    words = model(tmp_path / "words.onnx", {"words": (1, "length")}, dtype=TensorProto.INT64)
    assert drafted(words)[0].takes == ""  # no row of a table, whose columns are known
    with pytest.raises(UsageError, match="no input for a photo"):
        draft_project(path, tmp_path / "b.toml", preset="timm")


def test_columns_that_weights_tell_are_no_guess(tmp_path: Path) -> None:
    """Of a table, whose rows are taken then."""
    b = Builder()
    b.op(
        "MatMul", b.op("Sub", "x", b.const(np.ones(13, np.float32))), b.weight(13, 2), outputs=["y"]
    )
    draft, project = drafted(b.save(tmp_path / "m.onnx", {"x": [None, None]}, {"y": [None, 2]}))
    assert project.shapes == {"x": (1, 13)}
    assert (draft.open, draft.takes) == ((), "rows")
    assert "x = [1, 13]  # as many as the weights take\n" in draft.text


def test_axes_of_one_name_have_one_size(tmp_path: Path) -> None:
    """A batch is one in states, too, and what nothing tells is a guess, and a question."""
    b = Builder()
    b.op("Relu", "frames", outputs=["mask"])
    b.op("Relu", "h0", outputs=["hn"])
    inputs: dict[str, list[int | str | None]] = {
        "frames": ["batch", "time", 40],
        "h0": [3, "batch", 16],
    }
    file = b.save(tmp_path / "m.onnx", inputs, {"mask": [None] * 3, "hn": [3, "batch", 16]})
    draft, project = drafted(file)
    assert project.shapes == {"frames": (1, 8, 40), "h0": (3, 1, 16)}
    assert draft.open == (
        "are these inputs states? (see [states])",
        "what shape has 'frames'? (see [shapes])",
    )
    whys = {line.key: line.why for line in draft.lines}
    assert whys["frames"] == "a guess: nothing tells axis 1"


def test_what_may_be_a_state_by_its_shape_is_asked(tmp_path: Path) -> None:
    """The line is there, but says nothing until its sign is taken away. A photo is none."""
    b = Builder()
    b.op("Relu", "input_2", outputs=["mask"])
    b.op("Relu", "input_3", outputs=["stack"])
    b.op("Relu", "picture", outputs=["enhanced"])
    shapes: dict[str, list[int | str | None]] = {
        "input_2": [1, 1, 257],
        "input_3": [1, 2, 128, 2],
        "picture": [1, 1, 8, 8],
    }
    outputs = dict(zip(["mask", "stack", "enhanced"], shapes.values(), strict=True))
    file = b.save(tmp_path / "m.onnx", shapes, outputs)
    draft, project = drafted(file)
    assert project.states == {}
    assert "is 'input_3' a state? (see [states])" in draft.open
    assert not any("'picture' a state" in question for question in draft.open)
    draft.path.write_text(draft.text.replace("# input_3", "input_3"))
    assert load_project(draft.path).states == {"input_3": "stack"}


def test_names_that_toml_must_quote(tmp_path: Path) -> None:
    name = 'in:put "0"\\\x7f\u20ac'
    draft, project = drafted(model(tmp_path / "net €.onnx", {name: ("b", 3, 8, 8)}))
    assert project.shapes == {name: (1, 3, 8, 8)}
    assert project.model == tmp_path / "net €.onnx"
    assert draft.path.read_text() == draft.text


def test_editors_find_the_schema(tmp_path: Path) -> None:
    """The first line names it, from the file; it is written anew, another's file is not."""
    path = model(tmp_path / "net.onnx", {"image": IMAGE})
    draft, _ = drafted(path)
    word, _, name = draft.path.read_text().splitlines()[0].partition(" ")
    assert word == "#:schema"
    schema = draft.path.parent / name
    assert schema == draft.schema
    assert schema.read_text() == schema_text("edgepack.toml")
    values = tomllib.loads(draft.path.read_text())
    keywords = {key: json.loads(schema.read_text())[key] for key in ("properties", "required")}
    assert problems(values, {**keywords, "additionalProperties": False}, "") == []
    older = {**json.loads(schema.read_text()), "properties": {}}
    schema.write_text(json.dumps(older))
    draft_project(path, tmp_path / "other.toml").write()
    assert schema.read_text() == schema_text("edgepack.toml")
    schema.write_text("mine")
    with pytest.raises(UsageError, match=r"edgepack\.schema\.json is there already"):
        draft_project(path, tmp_path / "third.toml")


def test_a_file_is_not_overwritten_and_nothing_is_half_written(tmp_path: Path) -> None:
    path = model(tmp_path / "net.onnx", {"image": IMAGE})
    out = tmp_path / "edgepack.toml"
    out.write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        draft_project(path, out)
    (tmp_path / "few.txt").write_text("a\nb\n")
    with pytest.raises(ConfigError, match=r"few\.txt: 2 labels, but the model has 10 classes"):
        draft_project(path, out, labels=tmp_path / "few.txt", overwrite=True)
    assert out.read_text() == "mine"
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "edgepack.toml",
        "few.txt",
        "net.onnx",
    ]


def test_a_class_by_its_label(tmp_path: Path) -> None:
    names = tmp_path / "labels.txt"
    names.write_text("".join(f"class {i}\n" for i in range(8)) + "twin\nTwin\n")
    photo = tmp_path / "gray.png"
    cv2.imwrite(str(photo), np.full((300, 300, 3), 128, np.uint8))
    path = model(tmp_path / "net.onnx", {"image": IMAGE})
    draft, project = drafted(path, image=photo, expected="CLASS 3", preset="timm")
    assert 'expected_class = "class 3"' in draft.text
    assert project.expected_class == 3
    text = draft.text
    for wrong, message in (
        ('"clas 3"', r"expected_class: no label is 'clas 3' in .*labels\.txt"),
        ('"twin"', "expected_class: 2 labels are 'twin'"),
        ("true", "expected_class: True is not a whole number or a string"),
        ("-1", "expected_class: -1 is below 0"),
    ):
        draft.path.write_text(text.replace('"class 3"', wrong))
        with pytest.raises(ConfigError, match=message):
            load_project(draft.path)
    draft.path.write_text(text.replace('labels = "labels.txt"', ""))
    with pytest.raises(ConfigError, match="is a label, but no labels are given"):
        load_project(draft.path)


def test_check_says_what_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Class 9 has the highest score by the model's making."""
    photo = tmp_path / "gray.png"
    cv2.imwrite(str(photo), np.full((300, 300, 3), 128, np.uint8))
    (tmp_path / "labels.txt").write_text("".join(f"class {i}\n" for i in range(10)))
    path = model(tmp_path / "net.onnx", {"image": IMAGE})
    draft, project = drafted(path, image=photo, expected="class 9", preset="timm")
    checked = check_project(project)
    assert [one.index for one in checked.seen[0].top] == [9, 8, 7, 6, 5]
    checked.check_expected()
    assert main(["check", "--project", str(draft.path), "--top", "1"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].split() == [
        f"{1 / sum(np.exp(-i) for i in range(10)):.4f}",
        "9",
        "class",
        "9",
    ]

    _, project = drafted(path, image=photo, expected="4", preset="timm", overwrite=True)
    with pytest.raises(ExpectedClassError, match=r"sees class 9 \(class 9\), expected 4"):
        check_project(project).check_expected()
    assert main(["check", "--project", str(draft.path)]) == ExpectedClassError("").exit_code
    capsys.readouterr()
    assert main(["--json", "check", "--project", str(draft.path), "--image", str(photo)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["seen"][0]["top"][0]["label"] == "class 9"


def test_check_knows_inputs_that_are_constants(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = model(tmp_path / "net.onnx", {"image": (1, 3, 8, 8), "flag": (1,)})
    assert main(["check", str(path), "--set", "flag=0.5", "--json"]) == 0
    assert [info["name"] for info in json.loads(capsys.readouterr().out)["inputs"]] == ["image"]


def test_init_then_check_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model(tmp_path / "net.onnx", {"image": IMAGE})
    assert main(["init", "net.onnx", "--preset", "caffe", "--board", "rasp3b", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["next"] == ["edgepack check --image PHOTO", "edgepack deploy --device virtual"]
    assert main(["check"]) == 0
    assert "random inputs" in capsys.readouterr().out
    assert main(["init", "net.onnx"]) == 2
    assert "hint: name another with --out, or add --overwrite" in capsys.readouterr().err
    assert main(["init", "net.onnx", "--out", "b.toml", "--board", "rasp3"]) == 2
    assert "perhaps you meant 'rasp3b'" in capsys.readouterr().err
    assert main(["init", "net.onnx", "--out", "b.toml", "--preset", "tim"]) == 2
    assert main(["init", "net.onnx", "--out", "b.toml", "--image", "no.png"]) == 2
    assert not Path("b.toml").exists()


def test_the_reference_lists_every_preset() -> None:
    text = (ROOT / "docs/reference/edgepack-toml.md").read_text()
    for name, preset in PRESETS.items():
        assert f"| `{name}` | {preset.title} |" in text


def test_a_model_outside_of_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `init` writes is what the other commands read."""
    net = model(tmp_path / "net.onnx", {"x": IMAGE})
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for given in ("../net.onnx", str(net)):
        assert main(["init", given]) == 2
        said = capsys.readouterr().err
        assert "../net.onnx: outside of" in said and "--allow-outside" in said
        assert not list(folder.iterdir())
    with pytest.raises(UsageError, match="outside of") as refused:
        edgepack.init("../net.onnx")
    assert "edgepack.outside_allowed()" in (refused.value.hint or "")
    assert not list(folder.iterdir())
    with edgepack.outside_allowed():
        edgepack.init("../net.onnx").path.unlink()
    assert main(["init", "../net.onnx", "--allow-outside"]) == 0
    assert "next: edgepack check --allow-outside" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    assert main(["init", "net.onnx", "--out", "project/other.toml"]) == 2
    assert main(["init", "net.onnx"]) == 0


def test_where_the_file_goes(tmp_path: Path) -> None:
    """A new folder is made; a place where no file can be is named, by the command, too."""
    path = model(tmp_path / "m.onnx", {"x": IMAGE})
    draft = draft_project(path, tmp_path / "a" / "b" / "edgepack.toml")
    with edgepack.outside_allowed():
        draft.write()
    assert draft.path.is_file()
    for out, said in (
        (tmp_path / "a", "a is a folder"),
        (Path("/dev/null"), "/dev/null is no file"),
    ):
        with pytest.raises(UsageError, match=said):
            draft_project(path, out, overwrite=True)
    for out in (path / "edgepack.toml", Path("/proc/edgepack.toml")):
        with (
            edgepack.outside_allowed(),
            pytest.raises(UsageError, match="cannot be written"),
        ):
            draft_project(path, out).write()
        argv = ["--allow-outside", "init", str(path), "--out", str(out)]
        assert main(argv) == UsageError.exit_code

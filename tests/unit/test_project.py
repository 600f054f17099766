from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgepack.base.errors import ConfigError, UsageError
from edgepack.bundle.manifest import Health
from edgepack.bundle.monitor import Monitoring
from edgepack.bundle.service import Service
from edgepack.flow.project import Quantizing, default_name, load_project, project_name, read_labels
from edgepack.flow.stage_tables import Stage, TurnedBy
from edgepack.postprocess.classes import Classes
from edgepack.preprocess.spec import PreprocessSpec, Resize

FULL = """
[project]
name = "pets"
model = "net.onnx"
labels = "sub/labels.txt"
scores = "raw"
tolerance = 0.001
verify = false
golden_image = "cat.png"
expected_class = 3
version = 7
product = "door-7"
valid_until = "2199-01-31"
board = "pynq"
boards = ["mine.toml"]
device = "pi@10.0.0.2"
root = "/opt/pets"
toolchain = "gnu"
static = false
optimize = "size"
precision = "float16"
quantized = "int8"
compute = "cpu"

[shapes]
"image:0" = [1, 3, 8, 8]
mask = [1, 8]

[compile]
memory_mb = 4096
cpu_s = 900
exact = ["conv_0"]
bounded = ["mask"]

[tune]
records = ["pi.jsonl", "sub/other.jsonl"]

[quantize]
images = "sub"
snr_db = 20
budget = 0.05

[set]
"sr:0" = 16000
on = true
scales = [1, 0.5]

[states]
"past.*" = "present.*"

[preprocess]
color = "bgr"
resize = { mode = "exact", height = 8, width = 8 }

[postprocess]
kind = "classes"
top = 3

[health]
timeout_s = 30
max_latency_ms = 12.5

[service]
args = ["--watch", "/photos"]
memory_mb = 200

[monitor]
images = "sub"
most = 300
window = 200
interval_s = 60
notice = 0.2
alarm = 0.4
[[sink]]
name = "home"
url = "http://192.0.2.1:8000/seen"
buffer = "/photos/later"
[[stage]]
name = "breed"
model = "other.onnx"
labels = "sub/labels.txt"
classes = ["cat"]
most = 2
padding = 0.5
scores = "raw"
tolerance = 0.01
precision = "float16"
[stage.shapes]
x = [1, 3, 8, 8]
[stage.states]
hidden = "next"
[stage.preprocess]
resize = { mode = "exact", height = 8, width = 8 }
[stage.postprocess]
kind = "classes"
top = 2
[[stage]]
name = "upright"
model = "other.onnx"
align = "corners"
tall = 1.5
turned_by = { stage = "breed", class = "cat", score = 0.75 }
[stage.preprocess]
resize = { mode = "exact", height = 8, width = 8 }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    for name in ("net.onnx", "other.onnx", "sub/labels.txt", "cat.png", "mine.toml"):
        (tmp_path / name).write_text("x\n")
    for name in ("pi.jsonl", "sub/other.jsonl"):
        (tmp_path / name).write_text("x\n")
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "edgepack.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["a b", "../x", ".x", "x" * 65])
def test_bad_names_are_refused_before_anything_is_made(folder: Path, name: str) -> None:
    path = write(folder, FULL.replace('"pets"', f'"{name}"'))
    with pytest.raises(ConfigError, match=r"edgepack\.toml: not a name for a bundle: ") as caught:
        load_project(path)
    assert "letters, digits" in str(caught.value.hint)
    with pytest.raises(ConfigError, match="--name: not a name for a bundle: ''"):
        load_project(path, {"name": ""})


def test_every_key(folder: Path) -> None:
    project = load_project(write(folder, FULL))
    assert project.name == "pets"
    assert project.model == folder / "net.onnx"
    assert project.labels == folder / "sub/labels.txt"
    assert project.scores == "raw"
    assert project.tolerance == 0.001
    assert project.golden_image == folder / "cat.png"
    assert project.expected_class == 3
    assert project.version == 7
    assert project.health == Health(timeout_s=30, max_latency_ms=12.5, max_memory_mb=None)
    assert project.service == Service(args=("--watch", "/photos"), memory_mb=200)
    assert [(one.name, one.port, one.path) for one in project.sinks.sinks] == [
        ("home", 8000, "/seen")
    ]
    exact = PreprocessSpec(resize=Resize(mode="exact", height=8, width=8))
    assert project.stages == (
        Stage(
            where=f"{folder / 'edgepack.toml'}: stage[0]",
            name="breed",
            model=folder / "other.onnx",
            labels=folder / "sub/labels.txt",
            classes=("cat",),
            most=2,
            padding=0.5,
            align="box",
            tall=0,
            turned_by=None,
            scores="raw",
            tolerance=0.01,
            precision="float16",
            shapes={"x": (1, 3, 8, 8)},
            states={"hidden": "next"},
            preprocess=exact,
            postprocess=Classes(top=2),
        ),
        Stage(
            where=f"{folder / 'edgepack.toml'}: stage[1]",
            name="upright",
            model=folder / "other.onnx",
            labels=None,
            classes=(),
            most=8,
            padding=0,
            align="corners",
            tall=1.5,
            turned_by=TurnedBy(stage="breed", label="cat", score=0.75),
            scores="softmax",
            tolerance=1e-4,
            precision="float32",
            shapes={},
            states={},
            preprocess=exact,
            postprocess=None,
        ),
    )
    assert project.need_board() == "pynq"
    assert project.boards == (folder / "mine.toml",)
    assert project.need_device() == "pi@10.0.0.2"
    assert project.root == "/opt/pets"
    assert project.toolchain == "gnu"
    assert project.static is False
    assert project.optimize == "size"
    assert project.precision == "float16"
    assert project.quantized == "int8"
    assert project.monitor == Monitoring(
        images=folder / "sub", most=300, window=200, interval_s=60, notice=0.2, alarm=0.4
    )
    assert project.quantize == Quantizing(images=folder / "sub", snr_db=20, budget=0.05)
    assert not project.verify
    assert (project.compile_memory_mb, project.compile_cpu_s) == (4096, 900)
    assert (project.exact, project.bounded) == (("conv_0",), ("mask",))
    assert project.records == (folder / "pi.jsonl", folder / "sub" / "other.jsonl")
    assert project.shapes == {"image:0": (1, 3, 8, 8), "mask": (1, 8)}
    assert project.states == {"past.*": "present.*"}
    assert project.constants == {"sr:0": 16000, "on": True, "scales": (1, 0.5)}
    assert project.preprocess == PreprocessSpec(
        color="bgr", resize=Resize(mode="exact", height=8, width=8)
    )
    assert project.postprocess == Classes(top=3)
    assert (project.product, project.valid_until) == ("door-7", "2199-01-31T00:00:00Z")
    fields = set(vars(project)) - {"origins"}
    # A photo or tensors: not both.
    given = dict.fromkeys(fields - {"golden_input"}, str(folder / "edgepack.toml"))
    assert project.origins == {**given, "golden_input": "default"}


def test_golden_tensors_instead_of_a_photo(folder: Path) -> None:
    (folder / "sound.npy").write_bytes(b"")
    start = '[project]\nmodel = "net.onnx"\n'
    tensors = start + 'golden_input = ["sound.npy", "sub/labels.txt"]'
    project = load_project(write(folder, tensors))
    assert project.golden_input == (folder / "sound.npy", folder / "sub/labels.txt")
    with pytest.raises(ConfigError, match=r"golden_input: no such file: .*none\.npy"):
        load_project(write(folder, start + 'golden_input = ["none.npy"]'))
    with pytest.raises(ConfigError, match=r"golden_input: .*list"):
        load_project(write(folder, start + 'golden_input = "sound.npy"'))
    photo = '\ngolden_image = "cat.png"\n[preprocess]\n'
    with pytest.raises(ConfigError, match="golden_input and golden_image exclude each other"):
        load_project(write(folder, tensors + photo))
    # The command line's go before the file's photo, and what must be seen in it.
    photo = 'golden_image = "cat.png"\nexpected_class = 1\n[preprocess]\n'
    path = write(folder, start + photo)
    given = load_project(path, {"golden_input": (folder / "sound.npy",)})
    assert given.golden_input == (folder / "sound.npy",)
    assert (given.golden_image, given.expected_class) == (None, None)


def test_records_of_tuning_lie_beside_the_project_file(folder: Path) -> None:
    text = '[project]\nmodel = "net.onnx"'
    assert load_project(write(folder, text)).records == ()
    beside = folder / "tuning.jsonl"
    beside.write_text("")
    assert load_project(write(folder, text)).records == (beside,)
    assert load_project(write(folder, f"{text}\n[tune]\nrecords = []")).records == ()
    assert load_project(write(folder, text), {"records": ()}).records == ()
    assert load_project(None, {"model": folder / "net.onnx"}).records == ()
    with pytest.raises(ConfigError, match=r"records: no such file: .*gone.jsonl"):
        load_project(write(folder, f'{text}\n[tune]\nrecords = ["gone.jsonl"]'))


def test_defaults_and_where_they_come_from(folder: Path) -> None:
    project = load_project(write(folder, '[project]\nmodel = "net.onnx"'))
    assert project.name == "net"
    assert project.scores == "softmax"
    assert project.tolerance == 1e-4
    assert project.optimize == "balance"
    assert project.precision == "float32"
    assert project.quantized == "auto"
    assert project.verify
    assert project.shapes == {}
    assert project.preprocess is None
    assert project.origins["model"] == str(folder / "edgepack.toml")
    assert project.origins["name"] == "default"
    assert project.origins["board"] == "default"
    with pytest.raises(UsageError, match="no board") as caught:
        project.need_board()
    assert caught.value.exit_code == 2
    with pytest.raises(UsageError, match="no device"):
        project.need_device()


def test_flags_go_over_the_file_and_none_is_no_flag(folder: Path) -> None:
    flags = {
        "board": "rasp3b",
        "device": None,
        "model": folder / "other.onnx",
        "shapes": {"mask": (1, 9)},
    }
    project = load_project(write(folder, FULL), flags)
    assert project.board == "rasp3b"
    assert project.device == "pi@10.0.0.2"
    assert project.model == folder / "other.onnx"
    assert project.name == "pets"
    assert project.shapes == {"image:0": (1, 3, 8, 8), "mask": (1, 9)}
    assert project.origins["board"] == "--board"
    assert project.origins["model"] == "command line"
    assert project.origins["shapes"] == "--shape"
    assert project.origins["device"] == str(folder / "edgepack.toml")


def test_flags_alone_are_enough(folder: Path) -> None:
    project = load_project(None, {"model": folder / "net.onnx", "board": "local"})
    assert project.board == "local"
    assert project.origins["tolerance"] == "default"
    with pytest.raises(UsageError, match="no model"):
        load_project(None, {"board": "local"})
    with pytest.raises(ValueError, match="bord"):
        load_project(None, {"bord": "local"})


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[project]", "[projekt]", "project: missing|projekt: unknown key"),
        ("[preprocess]", "[preproces]", "preproces: unknown key.*perhaps you meant 'preprocess'"),
        ("board =", "bord =", "project.bord: unknown key.*perhaps you meant 'board'"),
        ("scores =", "score =", "project.score: unknown key.*perhaps you meant 'scores'"),
        ('"raw"', '"softmx"', "project.scores: unknown value.*perhaps you meant 'softmax'"),
        ('"gnu"', '"gcc"', "project.toolchain: unknown value 'gcc'"),
        ('"size"', '"sise"', "project.optimize: unknown value.*perhaps you meant 'size'"),
        ('"float16"', '"float61"', "project.precision: unknown value.*perhaps you meant 'float16'"),
        ("[1, 0.5]", '["1"]', "set.scales: .* is not a number"),
        ("= 900", "= 0", "compile.cpu_s: 0 is below 1"),
        ('["conv_0"]', "[1]", "compile.exact: 1 is not a string"),
        ('["conv_0"]', '"yes"', "compile.exact: 'yes' is not "),
        ('"pets"', "3", "project.name: 3 is not a string"),
        ('"pynq"', '""', "project.board: is empty"),
        ("0.001", "0", "project.tolerance: 0.0 is not between"),
        ("0.001", "true", "project.tolerance: True is not a number"),
        ("= 7", "= -7", "project.version: -7 is not a whole number of 0 or more"),
        ("= 30", "= 0", "health.timeout_s: 0.0 is not above 0"),
        ("max_latency_ms", "max_latency_s", "health.max_latency_s: unknown key"),
        ("= 3", "= -3", "project.expected_class: -3 is below 0"),
        ("= 3", '= "cat"', "expected_class: no label is 'cat' in "),
        ('["mine.toml"]', '"mine.toml"', "project.boards: .* is not a list"),
        ('["mine.toml"]', '["gone.toml"]', "boards: no such file: .*gone"),
        ('"net.onnx"', '"gone.onnx"', "model: no such file: .*gone"),
        ('"net.onnx"', '"sub"', "model: not a file: .*sub"),
        ("sub/labels", "labels", "labels: no such file"),
        ("cat.png", "dog.png", "golden_image: no such file: .*dog"),
        ("[1, 8]", "[1, 0]", "shapes.mask: .*size below 1"),
        ("[1, 8]", '"1,8"', "shapes.mask: '1,8' is not a list"),
        ("[1, 8]", "[1, 8.5]", "shapes.mask: 8.5 is not a whole number"),
        ('color = "bgr"', 'colour = "bgr"', "preprocess.colour: unknown key"),
        ("name =", "name", "not valid TOML: .*line 3"),
    ],
)
def test_every_mistake_names_the_key(folder: Path, old: str, new: str, says: str) -> None:
    assert old in FULL
    path = write(folder, FULL.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load_project(path)
    text = str(caught.value)
    assert text.startswith(str(path))
    assert re.search(says, text, re.DOTALL), text


def test_files_named_by_a_flag_are_checked_too(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"--labels: labels: no such file: .*gone\.txt"):
        load_project(write(folder, FULL), {"labels": folder / "gone.txt"})


def test_a_file_that_is_not_there_or_not_utf8(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"file not found: .*edgepack\.toml"):
        load_project(tmp_path / "edgepack.toml")
    with pytest.raises(ConfigError, match="cannot read"):
        load_project(tmp_path)
    (tmp_path / "edgepack.toml").write_bytes(b'[project]\nname = "caf\xe9"\n')
    with pytest.raises(ConfigError, match="not UTF-8 at byte 21"):
        load_project(tmp_path / "edgepack.toml")


def test_a_golden_image_needs_preprocessing_and_a_class_needs_an_image(folder: Path) -> None:
    start = '[project]\nmodel = "net.onnx"\n'
    with pytest.raises(ConfigError, match="golden_image needs preprocessing"):
        load_project(write(folder, start + 'golden_image = "cat.png"'))
    with pytest.raises(ConfigError, match="expected_class needs a golden_image"):
        load_project(write(folder, start + "expected_class = 3"))


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("cats.onnx", "cats"),
        ("birds/model.onnx", "birds"),
        ("birds/onnx/model.onnx", "birds"),
        ("runs/detect/train 3/weights/Best.onnx", "train-3"),
        ("my.project/last.tflite", "my.project"),
        ("birds/model_q8.onnx", "model_q8"),
    ],
)
def test_a_new_project_is_not_called_as_all_are(file: str, name: str) -> None:
    assert project_name(Path("/somewhere") / file) == name
    assert project_name(Path("/model.onnx")) == "model"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("mobilenet_v2.onnx", "mobilenet_v2"),
        ("My Net (v2).onnx", "My-Net-v2"),
        ("é.onnx", "model"),
        ("-x.y.onnx", "x.y"),
    ],
)
def test_default_names_are_good_folder_names(file: str, name: str) -> None:
    assert default_name(Path("somewhere") / file) == name


def test_labels(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes("tench\r\nété, summer\n".encode())
    assert read_labels(path) == ("tench", "été, summer")
    path.write_text("a\n\nb\n")
    with pytest.raises(ConfigError, match="line 2 is empty"):
        read_labels(path)
    path.write_text("")
    with pytest.raises(ConfigError, match="no labels"):
        read_labels(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_labels(path)
    with pytest.raises(ConfigError, match="not found"):
        read_labels(tmp_path / "none.txt")


@pytest.mark.parametrize(
    "label", ["a\x1b[2Jb", "a\x00b", "a\x07", "\u202ecba", "a\u2066b", "a\x9b31m", "a\x7fb"]
)
def test_labels_that_steer_a_terminal(folder: Path, label: str) -> None:
    file = folder / "sub/labels.txt"
    file.write_text(f"cat\n{label}\n")
    with pytest.raises(ConfigError, match=r"labels\.txt: line 2: a control character") as caught:
        read_labels(file)
    assert caught.value.message.isprintable()
    file.write_text("n0144\ttench\n\u0645\u06cc\u200c\u062e\n\u0915\u094d\u200d\n")
    assert len(read_labels(file)) == 3

"""[[stage]]: what the tables may say, which boxes a stage looks at, and at which pixels."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgepack.base.errors import ConfigError, ImageError
from edgepack.base.tables import to_toml
from edgepack.base.text import one_line
from edgepack.cli.result_lines import answer_lines
from edgepack.deploy.answers import Answer, SenselessError
from edgepack.deploy.app_answers import AppAnswer
from edgepack.flow.check import check_project
from edgepack.flow.job import make_job
from edgepack.flow.project import files_of, load_project
from edgepack.flow.stages import OpenStage, choose, crop_of, crop_tensor, cut_out, golden_crops
from edgepack.postprocess.results import Box, Results
from edgepack.preprocess.warp import warp_by_corners

SIDE = 32
PREPROCESS = {"resize": {"mode": "exact", "height": 8, "width": 8}}


def _model(path: Path, inputs: dict[str, list[int]], outputs: dict[str, Any]) -> Path:
    """A model whose outputs are constants, of tensors that hang on its inputs by a zero."""
    nodes, values = [], []
    first = next(iter(inputs))
    nodes.append(helper.make_node("ReduceSum", [first], ["sum"], keepdims=0))
    nodes.append(helper.make_node("Mul", ["sum", "zero"], ["nothing"]))
    for name, array in outputs.items():
        value = onnx.numpy_helper.from_array(np.asarray(array, np.float32), f"{name}_value")
        values.append(value)
        nodes.append(helper.make_node("Add", [value.name, "nothing"], [name]))
    values.append(onnx.numpy_helper.from_array(np.float32(0), "zero"))
    graph = helper.make_graph(
        nodes,
        "constant",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in inputs.items()],
        [
            helper.make_tensor_value_info(k, TensorProto.FLOAT, list(np.shape(v)))
            for k, v in outputs.items()
        ],
        values,
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A detector of three boxes in each photo, two of class 1; and a classifier."""
    rows = [[0, 0, 8, 8, 0.9, 0], [8, 8, 24, 24, 0.5, 1], [16, 0, 32, 16, 0.75, 1]]
    _model(tmp_path / "boxes.onnx", {"x": [1, 3, SIDE, SIDE]}, {"rows": [rows]})
    _model(tmp_path / "kinds.onnx", {"x": [1, 3, 8, 8]}, {"scores": [[0.0, 2.0, 1.0]]})
    _model(tmp_path / "pairs.onnx", {"x": [2, 3, 8, 8]}, {"scores": [[0.0, 1.0]] * 2})
    _model(tmp_path / "two.onnx", {"x": [1, 3, 8, 8], "y": [1]}, {"scores": [[0.0, 1.0]]})
    (tmp_path / "things.txt").write_text("cat\ndog\n")
    (tmp_path / "breeds.txt").write_text("a\nb\nc\n")
    noise = np.random.RandomState(0).randint(0, 256, (SIDE, SIDE, 3), np.uint8)
    cv2.imwrite(str(tmp_path / "photo.png"), noise)
    return tmp_path


def _project(folder: Path, *stages: dict[str, Any], **project: Any) -> Path:
    document: dict[str, Any] = {
        "project": {
            "model": "boxes.onnx",
            "labels": "things.txt",
            "golden_image": "photo.png",
            "board": "rasp3b",
            **project,
        },
        "preprocess": {"resize": {"mode": "exact", "height": SIDE, "width": SIDE}},
        "postprocess": {"preset": "yolo-end2end"},
        "stage": list(stages),
    }
    file = folder / "edgepack.toml"
    file.write_text(
        "".join(f"{key} = {to_toml(value)}\n" for key, value in document.items() if value)
    )
    return file


def _stage(**changes: Any) -> dict[str, Any]:
    stage = {"name": "breed", "model": "kinds.onnx", "preprocess": PREPROCESS, **changes}
    return {key: value for key, value in stage.items() if value is not None}


def _opened(folder: Path, **changes: Any) -> OpenStage:
    project = load_project(_project(folder, _stage(**changes)))
    job = make_job(project)
    (stage,) = job.stages
    return stage


@pytest.mark.parametrize(
    ("changes", "words", "hint"),
    [
        ({"nmae": "x"}, "stage[0].nmae: unknown key", "name"),
        ({"name": "../x"}, "stage[0].name: '../x' is not letters", None),
        ({"name": None}, "stage[0].name: missing", "a string"),
        ({"model": "no.onnx"}, "stage[0].model: no such file: ", None),
        ({"model": "../no.onnx"}, "stage[0].model: '../no.onnx' ", "put it into the folder"),
        ({"labels": "no.txt"}, "stage[0].labels: no such file: ", None),
        ({"most": 0}, "stage[0].most: 0 is not from 1 to 1000", None),
        ({"most": 2.5}, "stage[0].most: 2.5 is not a whole number", None),
        ({"padding": -0.1}, "stage[0].padding: -0.1 is not from 0 to 10", None),
        ({"padding": float("nan")}, "stage[0].padding: nan is not from 0 to 10", None),
        ({"classes": ["dog", "dog"]}, "stage[0].classes: 2 classes, or one twice", None),
        ({"align": "circle"}, "stage[0].align: unknown value 'circle'", "corners"),
        ({"tall": 1.5}, "stage[0].tall: is for crops by their corners", None),
        ({"align": "face", "turned_by": {}}, "stage[0].turned_by: is for crops by their", None),
        ({"align": "corners", "tall": -1.0}, "stage[0].tall: -1.0 is not from 0 to", None),
        ({"align": "corners", "turned_by": "breed"}, "stage[0].turned_by: 'breed' is not", None),
        (
            {"align": "corners", "turned_by": {"stage": "x", "class": "b", "score": 2.0}},
            "stage[0].turned_by.score: 2.0 is not from 0 to 1",
            None,
        ),
        (
            {"align": "corners", "turned_by": {"stage": "x", "class": "b", "degrees": 90}},
            "stage[0].turned_by.degrees: unknown key",
            None,
        ),
        ({"classes": "dog"}, "stage[0].classes: 'dog' is not a list", None),
        ({"precision": "int8"}, "stage[0].precision: unknown value 'int8'", None),
        ({"tolerance": 2.0}, "stage[0].tolerance: 2.0 is not between", None),
        ({"preprocess": None}, "stage[0].preprocess: missing", "a table"),
        (
            {"preprocess": {"resize": {"mode": "shortest", "size": 8}}},
            "stage[0].preprocess: crops are of any size",
            '"exact" or "letterbox"',
        ),
        ({"preprocess": {}}, "stage[0].preprocess: crops are of any size", '"exact"'),
        (
            {"preprocess": {**PREPROCESS, "decode": "scaled"}},
            "stage[0].preprocess.decode: is about files",
            "leave it out",
        ),
        (
            {"postprocess": {"kind": "clases"}},
            "stage[0].postprocess.kind: unknown value",
            "classes",
        ),
    ],
)
def test_a_table_that_cannot_be(
    folder: Path, changes: dict[str, Any], words: str, hint: str | None
) -> None:
    file = _project(folder, _stage(**changes))
    with pytest.raises(ConfigError) as error:
        load_project(file)
    assert error.value.message.startswith(f"{file}: ")
    assert words in error.value.message
    assert hint is None or hint in (error.value.hint or "")


def test_too_many_stages_and_two_of_one_name_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="9 tables; at most 8"):
        load_project(_project(folder, *(_stage(name=f"s{i}") for i in range(9))))
    with pytest.raises(ConfigError, match="two are called 'breed'"):
        load_project(_project(folder, _stage(), _stage()))


@pytest.mark.parametrize(
    ("changes", "words", "hint"),
    [
        ({"classes": ["dgo"]}, "stage[0].classes: the labels of the project's model have no class "
         "'dgo'", "dog"),
        ({"model": "pairs.onnx"}, "takes 2 images at a time", "one"),
        ({"postprocess": {"kind": "segmentation"}},
         "stage[0].postprocess: masks are those of a whole photo", "classes, boxes"),
        ({"model": "two.onnx"}, "has 2 inputs: x, y", "one image"),
        ({"model": "two.onnx", "states": {"y": "none"}}, "stage[0].states", "known: scores"),
        ({"preprocess": {"resize": {"mode": "exact", "height": 9, "width": 8}}},
         "stage[0]: preprocessing makes", "resize"),
        ({"align": "face"}, "stage[0].align: 'face' is by 5 points of a box, and the boxes of the "
         "project's model have 0", "CenterFace"),
        ({"labels": "things.txt"}, "stage[0]: 2 labels, but the outputs tell 3", "one line"),
        ({"postprocess": {"kind": "classes", "outputs": ["scroes"]}},
         "stage[0]: [postprocess] outputs: the model has no output 'scroes'", "scores"),
    ],
)  # fmt: skip
def test_a_stage_that_could_not_work_is_found_by_check(
    folder: Path, changes: dict[str, Any], words: str, hint: str
) -> None:
    file = _project(folder, _stage(**changes))
    with pytest.raises(ConfigError) as error:
        check_project(load_project(file))
    assert str(file) in error.value.message
    assert words in error.value.message
    assert hint in (error.value.hint or "")


def test_states_of_a_stage_are_of_tracks(folder: Path) -> None:
    """A service that follows no boxes would have nothing to keep them for."""
    outputs = {"scores": [[0.0, 2.0, 1.0]], "next": [0.5]}
    _model(folder / "two.onnx", {"x": [1, 3, 8, 8], "y": [1]}, outputs)
    stage = _stage(
        model="two.onnx",
        states={"y": "next"},
        postprocess={"kind": "classes", "outputs": ["scores"]},
    )
    file = _project(folder, stage)
    (seen,) = check_project(load_project(file)).seen
    assert seen.results is not None
    assert [box.answers["breed"].top[0].index for box in seen.results.boxes or ()] == [1, 1, 1]
    text = file.read_text()
    words = '"--camera", "/dev/video0"'
    file.write_text(f"{text}\n[service]\nargs = [{words}]\n")
    with pytest.raises(ConfigError, match="stage 'breed' keeps states of each track") as error:
        make_job(load_project(file))
    assert "--track" in (error.value.hint or "")
    file.write_text(f'{text}\n[service]\nargs = [{words}, "--track", "15"]\n')
    (opened,) = make_job(load_project(file)).stages
    assert opened.model.states == {"y": "next"}


def test_a_first_model_without_boxes_of_one_photo_has_no_stages(folder: Path) -> None:
    file = _project(folder, _stage())
    text = file.read_text()
    file.write_text(text.replace('{ preset = "yolo-end2end" }', '{ kind = "tensors" }'))
    with pytest.raises(ConfigError, match=r"kind 'tensors' of \[postprocess\]") as error:
        check_project(load_project(file))
    assert "yolo" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("project", "words"),
    [
        ({"static": True}, "has the kernels of one model"),
        ({"compute": "gpu"}, "run on the CPU, and compute is 'gpu'"),
        ({"golden_image": None}, "without a golden_image no stage can be tested"),
    ],
)
def test_programs_that_cannot_have_stages_are_refused_before_a_build(
    folder: Path, project: dict[str, Any], words: str
) -> None:
    known = {key: value for key, value in project.items() if value is not None}
    file = _project(folder, _stage(), **known)
    if "golden_image" in project and project["golden_image"] is None:
        file.write_text(file.read_text().replace('golden_image = "photo.png", ', ""))
    with pytest.raises(ConfigError, match=words) as error:
        make_job(load_project(file))
    assert error.value.hint


def _lines(folder: Path) -> Path:
    """A detector of lines of text that sees two: one upright, and one that is higher than wide."""
    sure = np.zeros((1, 1, SIDE, SIDE))
    sure[..., 4:10, 4:28] = 0.75
    sure[..., 14:30, 10:16] = 0.5
    _model(folder / "lines.onnx", {"x": [1, 3, SIDE, SIDE]}, {"sure": sure})
    (folder / "ways.txt").write_text("0\n180\n90\n")
    direction = _stage(name="way", align="corners", tall=1.5, labels="ways.txt", scores="raw")
    turned = {"stage": "way", "class": "180", "score": 1.5}
    text = _stage(name="text", align="corners", tall=1.5, turned_by={**turned, "score": 0.75})
    file = _project(folder, direction, text, model="lines.onnx", labels="ways.txt")
    file.write_text(file.read_text().replace('preset = "yolo-end2end"', 'preset = "ppocr-det"'))
    return file


def test_crops_are_straightened_and_turned_by_what_an_earlier_stage_says(folder: Path) -> None:
    """The first stage says class 1, "180", of every crop."""
    project = load_project(_lines(folder))
    way, text = make_job(project).stages
    (seen,) = check_project(project).seen
    assert seen.results is not None
    wide, high = seen.results.boxes or ()
    photo = np.asarray(cv2.imread(str(folder / "photo.png")))
    for box, turns in ((wide, 0), (high, 1)):
        upright = warp_by_corners(box.points).pixels(photo)
        for stage, more in ((way, 0), (text, 2)):
            crop = cut_out(stage, photo, box).pixels.astype(int)
            # Positions are multiples of 1/256 of a pixel.
            np.testing.assert_allclose(crop, np.rot90(upright, turns + more), atol=1)
    # Nothing is turned if the stage before is less sure, or has not looked.
    unsure = dataclasses.replace(high, answers={})
    np.testing.assert_array_equal(
        cut_out(text, photo, unsure).pixels, cut_out(way, photo, high).pixels
    )
    assert way.how_to_align() == {"align": "corners", "tall": 1.5, "turn": None}
    turn = {"stage": 0, "class": 1, "score": 0.75}
    assert text.how_to_align() == {"align": "corners", "tall": 1.5, "turn": turn}
    assert text.stage.line() == (
        "text: kinds.onnx looks at up to 8 boxes, straightened by their corners, turned by 'way'"
    )


@pytest.mark.parametrize(
    ("old", "new", "words", "hint"),
    [
        ('class = "180"', 'class = "half"', "stage[1].turned_by.class: the labels of stage 'way' "
         "have no class 'half'", None),
        ('stage = "way"', 'stage = "ways"', "stage[1].turned_by.stage: no stage before this one is "
         "called 'ways'", "way"),
        ('scores = "raw"', 'turned_by = {stage = "text", class = "180"}',
         "stage[0].turned_by.stage: no stage before this one is called 'text'", "before this one"),
        ('scores = "raw"', 'postprocess = {kind = "tensors"}', "stage[1].turned_by: stage 'way' "
         "gives no classes", "classes"),
    ],
)  # fmt: skip
def test_what_cannot_turn_a_crop(
    folder: Path, old: str, new: str, words: str, hint: str | None
) -> None:
    file = _lines(folder)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(ConfigError) as error:
        check_project(load_project(file))
    assert words in error.value.message
    assert hint is None or hint in (error.value.hint or "")


def test_the_files_of_stages_are_the_projects(folder: Path) -> None:
    names = {file.name for file in files_of(_project(folder, _stage(labels="breeds.txt")))}
    assert {"kinds.onnx", "breeds.txt", "boxes.onnx"} <= names


def test_a_stage_is_a_line_of_a_dry_run(folder: Path) -> None:
    stages = _stage(most=1), _stage(name="b", classes=["cat", "dog"], padding=0.5)
    assert [one.line() for one in load_project(_project(folder, *stages)).stages] == [
        "breed: kinds.onnx looks at up to one box",
        "b: kinds.onnx looks at up to 8 boxes of cat, dog, enlarged by 0.5",
    ]


def test_check_says_what_stages_see(folder: Path) -> None:
    stage = _stage(labels="breeds.txt", classes=["dog"], most=1)
    (seen,) = check_project(load_project(_project(folder, stage))).seen
    assert seen.results is not None
    boxes = seen.results.boxes or ()
    # The likeliest dog, not the cat that is likelier.
    assert [sorted(box.answers) for box in boxes] == [[], ["breed"], []]
    answer = boxes[1].answers["breed"]
    assert isinstance(answer, Results)
    assert [one.label for one in answer.top or ()] == ["b", "c", "a"]
    assert seen.results.to_dict()["stages"] == [
        {"stage": "breed", "boxes": 1, "dropped": 1, "failed": 0}
    ]


def test_a_golden_photo_without_a_box_for_a_stage_is_refused(folder: Path) -> None:
    opened = _opened(folder, classes=["cat"])
    project = load_project(folder / "edgepack.toml")
    dog = Box(index=1, label="dog", score=0.5, box=(1, 1, 9, 9))
    with pytest.raises(ConfigError, match="finds no box of cat in") as error:
        golden_crops(project, [opened], Results(boxes=(dog,)))
    assert "golden_image" in (error.value.hint or "")


def test_the_likeliest_boxes_are_chosen_in_their_order(folder: Path) -> None:
    opened = _opened(folder, classes=["dog"], most=2)

    def box(index: int, score: float, left: float = 0.0) -> Box:
        return Box(index=index, label="", score=score, box=(left, 0, left + 4, 4))

    boxes = [box(1, 0.2), box(0, 0.9), box(1, 0.4), box(1, 0.4), box(1, 0.8), box(1, 1, np.inf)]
    assert choose(opened, boxes) == ([2, 4], 2)
    assert choose(opened, []) == ([], 0)


@pytest.mark.parametrize(
    ("box", "padding", "pixels"),
    [
        ((1, 2, 3, 5), 0, (1, 2, 3, 5)),
        ((1.5, 2.5, 2.5, 3.5), 0, (1, 2, 3, 4)),
        ((4, 4, 8, 6), 0.25, (3, 3, 9, 7)),
        ((0, 0, 20, 10), 10, (0, 0, 20, 10)),
        ((20, 10, 20, 10), 0, (19, 9, 20, 10)),
        ((3, 3, 3, 3), 0, (3, 3, 4, 4)),
    ],
)
def test_a_crop_has_the_pixels_that_a_box_touches(
    box: tuple[float, ...], padding: float, pixels: tuple[int, ...]
) -> None:
    """The same table is in cpp_runtime/app/tests/test_stage_spec.cc."""
    assert crop_of(box, padding, 10, 20) == pixels


def test_a_crop_that_the_preprocessing_does_not_take(folder: Path) -> None:
    preprocess = {"resize": {"mode": "shortest", "size": 8}, "crop": {"height": 8, "width": 8}}
    opened = _opened(folder, preprocess=preprocess)
    photo = np.zeros((1, 1 << 22, 3), np.uint8)
    thin = Box(index=1, label="", score=1, box=(0, 0, 1 << 22, 1))
    with pytest.raises(ImageError):
        crop_tensor(opened, photo, thin)
    assert crop_tensor(opened, photo[:, :64], thin).shape == (1, 3, 8, 8)


def test_a_stage_is_named_in_what_is_wrong_with_it(folder: Path) -> None:
    """The second of two, without labels of the first model."""
    file = _project(folder, _stage(), _stage(name="other", classes=["dog"]))
    file.write_text(file.read_text().replace('labels = "things.txt", ', ""))
    project = load_project(file)
    with pytest.raises(ConfigError, match=r"stage\[1\].classes: the project's model has no label"):
        make_job(project)


def test_no_stages_are_nothing(folder: Path) -> None:
    project = load_project(_project(folder))
    assert project.stages == ()
    assert make_job(project).stages == ()


def test_what_a_device_says_of_boxes_is_written_below_them() -> None:
    evil, thin = one_line("evil\x1b[31m"), one_line("too\nthin")
    answer = AppAnswer.read(
        Answer(
            {
                "edgepack": "1",
                "boxes": [
                    {
                        "index": 1,
                        "label": "dog",
                        "score": 0.5,
                        "box": [1, 2, 3, 4],
                        "answers": {
                            "breed": {"top": [{"index": 2, "label": "c", "score": 0.75}]},
                            "plate": {"text": [{"text": "AB 12", "score": 0.5}]},
                            "evil\x1b[31m": {"error": "too\nthin"},
                        },
                    }
                ],
                "stages": [{"stage": "breed", "boxes": 1, "dropped": 2, "failed": 0}],
            },
            "device",
        )
    )
    assert answer_lines(answer) == [
        "    0.5000     1  dog  at 1.0,2.0 to 3.0,4.0",
        "    breed:",
        "        0.7500     2  c",
        "    plate:",
        "      AB 12",
        f"    {evil}: {thin}",
        "  breed: left out the least likely 2 of 3 boxes",
    ]
    assert "\x1b" not in "".join(answer_lines(answer))


def test_a_device_whose_answers_are_none_is_refused() -> None:
    box = {"index": 1, "score": 0.5, "box": [1, 2, 3, 4]}
    wrong: list[Any] = [[], {"breed": 7}, {"breed": {"top": {}}}, {"breed": {"boxes": [{}]}}]
    for answers in wrong:
        document = {"edgepack": "1", "boxes": [{**box, "answers": answers}]}
        with pytest.raises(SenselessError, match="answers"):
            AppAnswer.read(Answer(document, "device"))

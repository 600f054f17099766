"""Data sets for detectors: what COCO, YOLO and Roboflow write, and what is none."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgepack.base.errors import UsageError
from edgepack.flow.average_precision import Thing
from edgepack.flow.data_sets import DataSet, find_data_set
from edgepack.flow.outlines import Outline
from edgepack.postprocess.box_mask import BoxMask


def photo(path: Path) -> Path:
    """A file that is called as a photo; these tests decode none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


def coco(**changes: Any) -> dict[str, Any]:
    """Two photos, the second before the first, and two categories whose numbers have a gap."""
    return {
        "categories": [{"id": 1, "name": "cat"}, {"id": 7, "name": "Dog"}],
        "images": [
            {"id": 9, "file_name": "b.jpg", "height": 100, "width": 200},
            {"id": 3, "file_name": "a.jpg"},
        ],
        "annotations": [
            {"id": 0, "image_id": 9, "category_id": 7, "bbox": [1, 2.5, 30, 40], "area": 700},
            {"id": 1, "image_id": 9, "category_id": 1, "bbox": [0, 0, 5, 6], "iscrowd": 1},
            {"id": 2, "image_id": 8, "category_id": 1, "bbox": [0, 0, 5, 6]},
        ],
        **changes,
    }


def write_coco(file: Path, top: Any, photos: Path | None = None) -> Path:
    for name in ("a.jpg", "b.jpg"):
        photo((photos or file.parent) / name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(top))
    return file


def check_coco(found: DataSet) -> None:
    assert [one.name for one in found.photos] == ["a.jpg", "b.jpg"]  # by their numbers
    assert found.photos[0].things == ()
    assert found.photos[1].things == (
        Thing(index=7, box=(1.0, 2.5, 30.0, 40.0), area=700.0),
        Thing(index=1, box=(0.0, 0.0, 5.0, 6.0), area=30.0, crowd=True),
    )
    assert found.classes(["dog", "cat"], None) == {1: 1, 7: 0}
    assert found.classes([], 2) == {1: 0, 7: 1}


def test_coco_where_others_keep_it(tmp_path: Path) -> None:
    check_coco(find_data_set(write_coco(tmp_path / "one/labels.json", coco())))
    file = tmp_path / "two/labels.json"
    check_coco(find_data_set(write_coco(file, coco(), tmp_path / "two/images")))
    # As COCO is unpacked.
    file = tmp_path / "three/annotations/instances_val2017.json"
    write_coco(file, coco(), tmp_path / "three/val2017")
    (file.parent / "captions_val2017.json").write_text("{}")
    check_coco(find_data_set(file))
    check_coco(find_data_set(tmp_path / "three"))
    # As Roboflow exports it.
    for split in ("train", "valid"):
        write_coco(tmp_path / "four" / split / "_annotations.coco.json", coco())
    check_coco(find_data_set(tmp_path / "four"))
    assert find_data_set(tmp_path / "four").source.parent.name == "valid"
    assert find_data_set(tmp_path / "four", "train").source.parent.name == "train"
    with pytest.raises(UsageError, match="no split 'test'") as caught:
        find_data_set(tmp_path / "four", "test")
    assert caught.value.hint == "there are valid, train: --split"


def test_coco_as_windows_and_labelling_tools_write_it(tmp_path: Path) -> None:
    """Backslashes in paths, a byte order mark, and null for what is not known."""
    top = coco()
    for one in top["images"]:
        one["file_name"] = f"set\\photos\\{one['file_name']}"
    top["images"][1] |= {"height": None, "width": None}
    top["annotations"][0] |= {"iscrowd": None, "segmentation": None}
    top["annotations"][1]["area"] = None
    file = write_coco(tmp_path / "labels.json", top, tmp_path / "set/photos")
    file.write_text(json.dumps(top), encoding="utf-8-sig")
    check_coco(find_data_set(file))
    top["images"][0]["file_name"] = "..\\c.jpg"
    file.write_text(json.dumps(top))
    with pytest.raises(UsageError, match="is no path below"):
        find_data_set(file)


def test_coco_with_texts_and_floats_for_numbers(tmp_path: Path) -> None:
    """As pycocotools reads them; what is written `"7"` once may be written 7 elsewhere."""
    top = coco()
    top["categories"] = [{"id": "1", "name": "cat"}, {"id": 7.0, "name": "Dog"}]
    top["images"][0] |= {"id": "9", "height": 100.0, "width": 200.0}
    top["annotations"][0]["category_id"] = "7"
    check_coco(find_data_set(write_coco(tmp_path / "x.json", top)))

    kinds = {1: "c-cat", 7: "c-dog"}
    photos = {9: "b", 3: "a", 8: "c"}
    top = coco()
    for one in top["categories"]:
        one["id"] = kinds[one["id"]]
    for one in top["images"]:
        one["id"] = photos[one["id"]]
    for one in top["annotations"]:
        one |= {
            "category_id": kinds[one["category_id"]],
            "image_id": photos[one["image_id"]],
            "area": 9,
            "iscrowd": 0,
        }
    file = write_coco(tmp_path / "y.json", top)
    found = find_data_set(file)
    theirs = importlib.import_module("pycocotools.coco").COCO(str(file))
    order = sorted(theirs.getCatIds())
    for key, ours in zip(sorted(theirs.getImgIds()), found.photos, strict=True):
        assert theirs.imgs[key]["file_name"] == ours.name
        boxes = [(one["category_id"], tuple(one["bbox"])) for one in theirs.imgToAnns[key]]
        assert [(order[thing.index], thing.box) for thing in ours.things] == boxes
    assert found.classes(["dog", "cat"], None) == {0: 1, 1: 0}


def test_photos_that_lay_elsewhere_when_they_were_labelled(tmp_path: Path) -> None:
    """Only their last names count, in the file's own folders."""
    top = coco()
    for one in top["images"]:
        one["file_name"] = f"/home/somebody/photos/{one['file_name']}"
    check_coco(find_data_set(write_coco(tmp_path / "x.json", top, tmp_path / "images")))


def test_a_photo_of_another_size_than_its_annotations_is_refused(tmp_path: Path) -> None:
    found = find_data_set(write_coco(tmp_path / "x.json", coco())).photos[1]
    assert len(found.things_in(100, 200)) == 2
    with pytest.raises(UsageError, match=r"b\.jpg: the photo is 100 x 200, by its annotations 200"):
        found.things_in(200, 100)


def test_classes_that_are_not_the_models(tmp_path: Path) -> None:
    found = find_data_set(write_coco(tmp_path / "x.json", coco()))
    with pytest.raises(UsageError, match="class 7 'Dog' is none of the model's labels") as caught:
        found.classes(["cat", "dogs"], None)
    assert caught.value.hint == "known: cat, dogs"
    with pytest.raises(UsageError, match="class 1 'cat' is several of the model's labels"):
        found.classes(["cat", "cat", "dog"], None)
    with pytest.raises(UsageError, match="2 classes, but the project has no labels"):
        found.classes([], 80)
    # Roboflow's first category has no objects.
    more = [{"id": 0, "name": "animals"}, *coco()["categories"]]
    found = find_data_set(write_coco(tmp_path / "y.json", coco(categories=more)))
    assert found.classes(["cat", "dog"], None) == {1: 0, 7: 1}


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda top: top.pop("images"), "images: not a list"),
        (lambda top: top["images"].clear(), "no images in it"),
        (lambda top: top.update(categories=[]), "0 categories"),
        (lambda top: top["categories"].append({"id": 1, "name": "x"}), "[2].id: 1 is there twice"),
        (lambda top: top["categories"].append({"id": 2, "name": 5}), "[2].name: 5 is no text"),
        (lambda top: top["images"].append(5), "images[2]: not an object"),
        (lambda top: top["images"][0].update(id=""), "images[0].id: '' is no whole number or"),
        (lambda top: top["images"][0].update(id=9.5), "images[0].id: 9.5 is no whole number or"),
        (lambda top: top["images"][0].update(id="3"), "images[1].id: 3 is there twice"),
        (lambda top: top["images"][0].update(id=True), "images[0].id: True is no whole"),
        (lambda top: top["annotations"][0].update(category_id="dog"), "id: 'dog' is no category"),
        (lambda top: top["images"][0].update(id=3), "images[1].id: 3 is there twice"),
        (lambda top: top["images"][0].update(file_name="../x.jpg"), "is no path below"),
        (lambda top: top["images"][0].update(file_name="/etc/passwd"), "is no path below"),
        (lambda top: top["images"][0].update(file_name=5), "file_name: 5 is no path"),
        (lambda top: top["images"][0].update(file_name="\0"), "is no path below"),
        (lambda top: top["images"][0].update(file_name="c.jpg"), "1 of 2 photos are not there"),
        (lambda top: top["annotations"][0].update(category_id=2), "category_id: 2 is no category"),
        (lambda top: top["annotations"][0].update(bbox=[1, 2, 3]), "[0].bbox: [1, 2, 3] is not"),
        (lambda top: top["annotations"][0].update(bbox=[1, 2, -3, 4]), "has a side below 0"),
        (lambda top: top["annotations"][0].update(bbox=[1, 2, 3, 10**400]), "is not left, top"),
        (lambda top: top["annotations"][0].update(bbox=[1, 2, 3, True]), "is not left, top"),
        (lambda top: top["annotations"][0].update(area="big"), "area: 'big' is not an area"),
        (lambda top: top["annotations"][0].update(area=float("nan")), "area: nan is not an area"),
        (lambda top: top["annotations"][0].update(iscrowd=2), "iscrowd: 2 is not 0 or 1"),
    ],
)
def test_mistakes_in_a_coco_file(tmp_path: Path, change: Change, message: str) -> None:
    top = coco()
    change(top)
    file = write_coco(tmp_path / "x.json", top)
    with pytest.raises(UsageError) as caught:
        find_data_set(file)
    assert message in caught.value.message
    assert str(file) in caught.value.message


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\x00"])
def test_what_is_no_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UsageError, match=r"x\.json"):
        find_data_set(tmp_path / "x.json")


# ------------------------------------------------ YOLO

YAML = "path: .\ntrain: images/train\nval: images/val\nnames:\n  0: cat\n  1: no\n"


def yolo(folder: Path, text: str = YAML, rows: str = "1 0.5 0.25 0.2 0.1\n") -> Path:
    for name in ("b", "a"):
        photo(folder / f"images/val/{name}.jpg")
    photo(folder / "images/train/c.jpg")
    (folder / "labels/val").mkdir(parents=True, exist_ok=True)
    (folder / "labels/val/b.txt").write_text(rows)
    file = folder / "data.yaml"
    file.write_text(text)
    return file


def test_yolo(tmp_path: Path) -> None:
    for given in (yolo(tmp_path), tmp_path):
        found = find_data_set(given)
        assert found.names == {0: "cat", 1: "no"}  # not YAML's false
        assert [one.name for one in found.photos] == ["a.jpg", "b.jpg"]
        assert found.photos[0].things == ()  # without a file there are no objects
        (thing,) = found.photos[1].things_in(100, 200)
        assert thing.index == 1
        assert thing.box == pytest.approx((80, 20, 40, 10))
        assert thing.area == pytest.approx(400)
    assert [one.name for one in find_data_set(tmp_path, "train").photos] == ["c.jpg"]


def test_yolo_as_roboflow_exports_it(tmp_path: Path) -> None:
    text = (
        "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n"
        "nc: 2\nnames: ['cat', 'dog']\nroboflow:\n  license: CC\n"
    )
    photo(tmp_path / "valid/images/a.jpg")
    (tmp_path / "valid/labels").mkdir()
    (tmp_path / "valid/labels/a.txt").write_text("0 0.5 0.5 1 1\n")
    (tmp_path / "data.yaml").write_text(text)
    found = find_data_set(tmp_path)
    assert [(one.index, one.box) for one in found.photos[0].things] == [(0, (0, 0, 1, 1))]


def test_lists_of_photos_outlines_and_key_points(tmp_path: Path) -> None:
    text = YAML.replace("val: images/val", "val: [val.txt, images/train]")
    outline = "0 0.1 0.2 0.3 0.2 0.3 0.6 0.1 0.6\n"  # 0.2 x 0.4
    file = yolo(tmp_path, text, outline + "1 0 0 1 0 0 1\n\n")
    (tmp_path / "val.txt").write_text("images/val/b.jpg\n\n")
    found = find_data_set(file)
    assert [one.name for one in found.photos] == ["b.jpg", "c.jpg"]
    first, second = found.photos[0].things
    assert first.box == pytest.approx((0.1, 0.2, 0.2, 0.4))
    assert first.area == pytest.approx(0.08)
    assert second.box == pytest.approx((0, 0, 1, 1))
    assert second.area == pytest.approx(0.5)  # a triangle
    file = yolo(tmp_path, YAML.replace("val: images/val", r"val: images\val"), outline)
    assert [one.name for one in find_data_set(file).photos] == [
        one.name for one in find_data_set(yolo(tmp_path, YAML, outline)).photos
    ]
    pose = YAML + "kpt_shape: [2, 3]\n"
    file = yolo(tmp_path, pose, "0 0.5 0.5 0.2 0.2  0.1 0.1 2  0.9 0.9 2\n")
    (thing,) = find_data_set(file).photos[1].things
    assert thing.box == pytest.approx((0.4, 0.4, 0.2, 0.2))


def test_folders_without_a_yaml_file_have_the_models_numbers(tmp_path: Path) -> None:
    photo(tmp_path / "images/a.jpg")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/a.txt").write_text("3 0.5 0.5 1 1")
    found = find_data_set(tmp_path)
    assert found.classes(["a", "b", "c", "d"], None) == {3: 3}
    with pytest.raises(UsageError, match="class 3, but the model has 2 classes"):
        found.classes(["a", "b"], None)


def test_yolo_as_ultralytics_reads_it(tmp_path: Path) -> None:
    """Classes that only a number tells of, floats for numbers, and a row that is there twice."""
    file = yolo(tmp_path, "val: images/val\nnc: 4\n", "3.0 0.5 0.5 1 1\n" * 2 + "0 0.5 0.5 1 1\n")
    found = find_data_set(file)
    assert [thing.index for thing in found.photos[1].things] == [3, 0]
    assert found.classes(["a", "b", "c", "d"], None) == {0: 0, 3: 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("names: [a]\n", "no split 'val'"),
        ("val: images/val\n", "names: None is no list of classes"),
        ("val: images/val\nnames: 'cat, dog'\n", "names: 'cat, dog' is no list of classes"),
        ("val: images/val\nnames: {0: a, 2: b}\n", "is no list of classes"),
        ("val: images/val\nnames: {0: [a]}\n", "is no list of classes"),
        ("val: images/val\nnc: 3\nnames: [a, b]\n", "nc: '3', but 2 names"),
        ("val: images/none\nnames: [a]\n", "no such folder or file: 'images/none'"),
        ("val: [[images/val]]\nnames: [a]\n", "is no path of photos"),
        ("val: labels\nnames: [a]\n", "no photos in"),
        ("val: images/val\nnames: [a]\nkpt_shape: [x, 3]\n", "kpt_shape: ['x', '3'] is not points"),
        ("- a\n", "no table of names and splits"),
        ("a: &a [x]\nb: *a\n", "line 2: too deep, or an alias"),
        ("a: " + "[" * 100 + "]" * 100, "too deep"),
        ("a: [", "not valid YAML"),
        ("a: \x01", "not valid YAML"),
    ],
)
def test_mistakes_in_a_yaml_file(tmp_path: Path, text: str, message: str) -> None:
    file = yolo(tmp_path, text, "0 0.5 0.5 1 1")
    with pytest.raises(UsageError) as caught:
        find_data_set(file)
    assert message in caught.value.message
    assert str(file) in caught.value.message


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("2 0.5 0.5 1 1", "'2' is no number of a class"),
        ("-1 0.5 0.5 1 1", "'-1' is no number of a class"),
        ("0.5 0.5 0.5 1 1", "'0.5' is no number of a class"),
        ("cat 0.5 0.5 1 1", "'cat' is no number of a class"),
        ("0 0.5 0.5 1 x", "is not a class and numbers"),
        ("0 0.5 0.5 1 nan", "has numbers that are not from 0 to 1"),
        ("0 320 240 64 48", "has numbers that are not from 0 to 1"),
        ("0 0.5 0.5 1", "3 numbers are neither a box nor an outline"),
        ("0 0.5 0.5 1 1 0.5", "5 numbers are neither"),
    ],
)
def test_mistakes_in_a_row(tmp_path: Path, row: str, message: str) -> None:
    yolo(tmp_path, rows=f"1 0.5 0.5 1 1\n{row}\n")
    with pytest.raises(UsageError) as caught:
        find_data_set(tmp_path)
    assert message in caught.value.message
    assert "labels/val/b.txt: line 2: " in caught.value.message


def test_what_is_no_data_set(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    (tmp_path / "x.csv").write_text("")
    for given in (tmp_path, tmp_path / "x.csv", tmp_path / "none"):
        with pytest.raises(UsageError, match="--images: ") as caught:
            find_data_set(given)
        assert "COCO" in (caught.value.hint or "")


# ------------------------------------------------ outlines

# 2 x 3 pixels, the second column.
RUNS = {"size": [2, 3], "counts": [2, 2, 2]}


@pytest.mark.parametrize(
    ("segmentation", "outline"),
    [
        ([[1, 2, 3.5, 4, 5, 6]], Outline(polygons=((1, 2, 3.5, 4, 5, 6),))),
        (RUNS, Outline(mask=BoxMask(size=(2, 3), counts="222"))),
        ({**RUNS, "counts": "222"}, Outline(mask=BoxMask(size=(2, 3), counts="222"))),
        ([], None),
        (None, None),
    ],
)
def test_outlines_of_coco(tmp_path: Path, segmentation: Any, outline: Outline | None) -> None:
    top = coco()
    top["annotations"][0]["segmentation"] = segmentation
    file = write_coco(tmp_path / "x.json", top)
    assert find_data_set(file, outlines=True).photos[1].things[0].outline == outline
    assert find_data_set(file).photos[1].things[0].outline is None


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        (5, "segmentation: 5 is neither polygons nor run lengths"),
        ([5], "segmentation[0]: 5 is no polygon"),
        ([[1, 2, 3, 4]], "segmentation[0]: [1, 2, 3, 4] is no polygon"),
        ([[1, 2, 3, 4, 5, 6, 7]], "is no polygon"),
        ([[1, 2, 3, 4, 5, "6"]], "is no polygon"),
        ([[1, 2, 3, 4, 5, True]], "is no polygon"),
        ([[1, 2, 3, 4, 5, 1e300]], "is no polygon"),
        ({"counts": "222"}, "segmentation.size: None is not height and width"),
        ({**RUNS, "size": [2, 1 << 40]}, "is not height and width"),
        ({**RUNS, "size": [2, 0]}, "is not height and width"),
        ({"size": [2, 3]}, "segmentation.counts: None are no run lengths"),
        ({**RUNS, "counts": [2, 2, -2]}, "are no run lengths"),
        ({**RUNS, "counts": [2, 2, 2.0]}, "are no run lengths"),
        ({**RUNS, "counts": [2, 2, 1]}, "segmentation.counts: counts of 5 pixels, not of 2 x 3"),
        ({**RUNS, "counts": "22"}, "segmentation.counts: counts of 4 pixels, not of 2 x 3"),
        ({**RUNS, "counts": "2 2"}, "segmentation.counts: ' ' is no part of a mask's counts"),
        ({**RUNS, "counts": "oooo"}, "segmentation.counts: a mask's counts end within a length"),
    ],
)  # fmt: skip
def test_outlines_that_are_none(tmp_path: Path, segmentation: Any, message: str) -> None:
    top = coco()
    top["annotations"][1]["segmentation"] = segmentation
    with pytest.raises(UsageError) as caught:
        find_data_set(write_coco(tmp_path / "x.json", top), outlines=True)
    assert f"x.json: annotations[1].{message}" in caught.value.message or (
        message in caught.value.message and "annotations[1].segmentation" in caught.value.message
    )


def test_outlines_of_yolo(tmp_path: Path) -> None:
    photo(tmp_path / "images/a.jpg")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels/a.txt").write_text("0 0.1 0.2 0.5 0.2 0.5 0.6\n1 0.5 0.5 0.2 0.2\n")
    (found,) = find_data_set(tmp_path, outlines=True).photos
    first, second = found.things_in(100, 200)
    assert first.outline is not None
    assert first.outline.polygons == (pytest.approx((20, 20, 100, 20, 100, 60)),)
    assert second.outline is None
